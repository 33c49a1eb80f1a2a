//! Blocks of metadata with media errors, made good again.
//!
//! Media errors refuse stores. Only a block that is written as a whole is good again, if the system can clear its
//! errors. So a repair keeps the lines of the block that can be read, and gives the others a pattern that no structure
//! has. Lost lines stay visible damage, also when a crash comes before the rest of the repair.

use nacre_engine::{BLOCK_SIZE, Block, Kind, LINE_SIZE, Result};
use nacre_media::{Durable, Pm};

/// The byte that fills a line that was lost: as a checked word, a checksum, a magic number or a block it is wrong.
const LOST: u8 = 0xbd;

/// The bytes of a block, with the pattern in lines that cannot be read; false when there is none.
fn what_is_left(pm: &impl Pm, block: Block) -> ([u8; BLOCK_SIZE as usize], bool) {
    let mut bytes = [0; BLOCK_SIZE as usize];
    if pm.read(block.offset(), &mut bytes).is_ok() {
        return (bytes, false);
    }
    let mut lost = false;
    for (line, at) in
        bytes.chunks_exact_mut(LINE_SIZE as usize).zip((block.offset()..).step_by(LINE_SIZE as usize))
    {
        if pm.read(at, line).is_err() {
            line.fill(LOST);
            lost = true;
        }
    }
    (bytes, lost)
}

/// Writes a block anew, changed by `edit`, durable when it returns. [`Media`](Kind::Media) where its errors stay. The
/// caller makes sure that a crash may leave any part of the change.
pub fn renew(pm: &impl Pm, block: Block, edit: impl FnOnce(&mut [u8; BLOCK_SIZE as usize])) -> Result<()> {
    let (mut bytes, _) = what_is_left(pm, block);
    edit(&mut bytes);
    let copied = pm.copy(block.offset(), &bytes)?;
    pm.fence(copied);
    Ok(())
}

/// The same for a block that is put elsewhere.
pub fn copy_of_what_is_left(pm: &impl Pm, from: Block, to: Block) -> Result<()> {
    let (bytes, _) = what_is_left(pm, from);
    let copied = pm.copy(to.offset(), &bytes)?;
    pm.fence(copied);
    Ok(())
}

/// A word of these bytes has the pattern of lost bytes.
pub fn has_pattern(bytes: &[u8]) -> bool {
    bytes.as_chunks::<8>().0.contains(&[LOST; 8])
}

/// Whether a line of a block cannot be read.
pub fn is_lost(pm: &impl Pm, block: Block) -> bool {
    what_is_left(pm, block).1
}

/// Stores a word, durable when it returns, and with it renews its block where that has a media error there.
pub fn store_word(pm: &impl Pm, offset: u64, word: u64) -> Result<()> {
    match pm.publish_u64(offset, word, Durable::nothing_before()) {
        Ok(stored) => {
            let flushed = pm.flush(stored);
            pm.fence(flushed);
            Ok(())
        }
        Err(error) if error.kind() == Kind::Media => {
            let within = (offset % BLOCK_SIZE) as usize;
            renew(pm, Block(offset / BLOCK_SIZE), |bytes| {
                bytes[within..within + 8].copy_from_slice(&word.to_le_bytes());
            })
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::{Block, Kind};
    use nacre_media::{Pm, SimPm};

    use super::{LOST, is_lost, renew, store_word};

    #[test]
    fn what_can_be_read_is_kept_and_the_rest_is_seen_to_be_lost() {
        let pm = SimPm::from_image(&[7; 2 * 4096]);
        pm.poison(4096 + 64, 64);
        assert!(is_lost(&pm, Block(1)) && !is_lost(&pm, Block(0)));
        store_word(&pm, 4096, 9).unwrap();
        assert!(is_lost(&pm, Block(1)), "a word beside it needs no more");
        store_word(&pm, 4096 + 72, 9).unwrap();
        let mut bytes = [0; 4096];
        pm.read(4096, &mut bytes).unwrap();
        let mut expected = [7; 4096];
        expected[..8].copy_from_slice(&9u64.to_le_bytes());
        expected[64..128].fill(LOST);
        expected[72..80].copy_from_slice(&9u64.to_le_bytes());
        assert_eq!(bytes, expected);
        pm.poison(0, 1);
        pm.keep_poison();
        assert_eq!(renew(&pm, Block(0), |_| {}).unwrap_err().kind(), Kind::Media);
    }
}
