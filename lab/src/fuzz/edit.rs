//! Changes to structures of an image, as an input says.
//!
//! An edit has 14 bytes: structure (2), offset in it (2), kind of change (1), choice of the structure and whether its
//! checksum is made right again (1), a value (8). A structure is one of all, or one of its kind.

use nacre_engine::BLOCK_SIZE;
use nacre_media::block::{BlockDevice, Pages, SimDisk};
use nacre_media::{Pm, SimPm};

use super::Input;

/// Edits that one input may have.
const MAX_EDITS: usize = 64;

/// Where an image is edited.
pub(super) trait Place {
    /// False if it cannot be read.
    fn look(&self, offset: u64, bytes: &mut [u8]) -> bool;
    fn change(&self, offset: u64, bytes: &[u8]);
}

impl Place for SimPm {
    fn look(&self, offset: u64, bytes: &mut [u8]) -> bool {
        self.read(offset, bytes).is_ok()
    }

    fn change(&self, offset: u64, bytes: &[u8]) {
        self.poke(offset, bytes);
    }
}

impl Place for SimDisk {
    fn look(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let first = offset / BLOCK_SIZE * BLOCK_SIZE;
        let mut blocks =
            Pages::new(((offset - first) as usize + bytes.len()).next_multiple_of(BLOCK_SIZE as usize));
        let is_read = BlockDevice::read(self, first, &mut blocks).is_ok();
        bytes.copy_from_slice(&blocks[(offset - first) as usize..][..bytes.len()]);
        is_read
    }

    fn change(&self, offset: u64, bytes: &[u8]) {
        self.poke(offset, bytes);
    }
}

/// Edits the image, and gives the structures whose checksums are to be made right again. `range` is the offset and the
/// length of a structure.
pub(super) fn apply<S: Copy>(
    image: &impl Place,
    all: &[S],
    kinds: &[Vec<S>],
    range: impl Fn(&S) -> (u64, u64),
    mut input: Input<'_>,
) -> Vec<S> {
    let mut touched = Vec::new();
    for _ in 0..MAX_EDITS {
        if input.is_empty() {
            break;
        }
        let (index, within) = (usize::from(input.short()), u64::from(input.short()));
        let (what, how, value) = (input.byte(), input.byte(), input.word());
        let among = match usize::from(how >> 1) {
            0 => all,
            kind => &kinds[(kind - 1) % kinds.len()],
        };
        let structure = among[index % among.len()];
        let (offset, len) = range(&structure);
        let within = within % len;
        let width = [1u64, 2, 4, 8][usize::from(what & 3)].min(len - within);
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..width as usize];
        if !image.look(offset + within, bytes) {
            continue;
        }
        for (byte, given) in bytes.iter_mut().zip(value.to_le_bytes()) {
            *byte = match what >> 2 & 3 {
                0 => given,
                1 => *byte ^ given,
                2 => byte.wrapping_add(given),
                _ => 0,
            };
        }
        image.change(offset + within, bytes);
        if how & 1 == 0 {
            touched.push(structure);
        }
    }
    touched
}
