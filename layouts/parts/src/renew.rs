//! Blocks of metadata with media errors, made good again.
//!
//! Media errors refuse stores. Only a block that is written as a whole is good again, if the system can clear its
//! errors. So a repair keeps the lines of the block that can be read, and gives the others a pattern that no structure
//! has. Lost lines stay visible damage, also when a crash comes before the rest of the repair.

use nacre_engine::{BLOCK_SIZE, Block, Kind, LINE_SIZE, Result};
use nacre_media::{Durable, Pm};

use crate::report::Problem;

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

/// A block of an inode table that lost something.
#[derive(Debug)]
pub struct LostInodes {
    /// The block.
    pub block: Block,
    /// Numbers of the inodes that are lost.
    pub numbers: Vec<u64>,
    /// It has lines that cannot be read. Without one, a repair that a crash ended renewed the block, or other damage is
    /// in it.
    pub has_error: bool,
}

impl LostInodes {
    /// `None` for a block that lost nothing.
    pub fn of(pm: &impl Pm, block: Block, numbers: Vec<u64>) -> Option<LostInodes> {
        let has_error = is_lost(pm, block);
        (has_error || !numbers.is_empty()).then_some(LostInodes { block, numbers, has_error })
    }

    /// The problem that a check reports.
    pub fn problem(&self) -> Problem {
        let Block(block) = self.block;
        let cause = if self.has_error { "has a media error" } else { "is damaged" };
        let lost = match &self.numbers[..] {
            [] => {
                let what = format!("a media error in block {block} of the inode table");
                return Problem::loss(what, "write it again, empty");
            }
            [one] => format!("inode {one} is lost"),
            [first, .., last] => format!("{} of the inodes {first} to {last} are lost", self.numbers.len()),
        };
        let what = format!("{lost}: block {block} of the inode table {cause}");
        Problem::loss(what, "give up what is lost, with the names that refer to it")
    }
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

    use super::{LOST, LostInodes, is_lost, renew, store_word};

    #[test]
    fn the_cause_of_lost_inodes_is_told() {
        let pm = SimPm::from_image(&[7; 2 * 4096]);
        pm.poison(4096 + 64, 64);
        let words = |block, numbers| LostInodes::of(&pm, block, numbers).map(|lost| lost.problem().what);
        assert_eq!(words(Block(0), vec![]), None);
        let expected = [
            (Block(0), vec![3], "inode 3 is lost: block 0 of the inode table is damaged"),
            (
                Block(1),
                vec![3, 5],
                "2 of the inodes 3 to 5 are lost: block 1 of the inode table has a media error",
            ),
            (Block(1), vec![], "a media error in block 1 of the inode table"),
        ];
        for (block, numbers, expected) in expected {
            assert_eq!(words(block, numbers).as_deref(), Some(expected));
        }
    }

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
