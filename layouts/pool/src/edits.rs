//! Parts of an operation that is being prepared: maps, words of bits, and inodes, as they are and as they will be.

use crate::bits::{self, Bits};
use crate::format::{MAP_WORDS, RawInode};

/// The words of a map.
pub(crate) fn with_purpose(free: &Bits, purpose: u64) -> [u64; MAP_WORDS + 1] {
    let mut words = [purpose; MAP_WORDS + 1];
    words[..MAP_WORDS].copy_from_slice(&bits::to_words(free));
    words
}

/// The map of a group in an operation.
pub(crate) struct GroupEdit {
    pub(crate) group: u64,
    /// As on media.
    pub(crate) old: Bits,
    pub(crate) old_purpose: u64,
    /// Blocks that the operation takes.
    pub(crate) taken: Bits,
    /// Blocks that it frees. They are not free before the commit.
    pub(crate) freed: Bits,
    /// Blocks that it uses until its end.
    pub(crate) borrowed: Bits,
    /// Blocks with media errors: they are not taken, free or not.
    pub(crate) bad: Bits,
    pub(crate) purpose: u64,
}

impl GroupEdit {
    /// Blocks that can be taken.
    pub(crate) fn available(&self) -> Bits {
        let free = bits::without(&self.old, &self.taken);
        bits::without(&bits::without(&free, &self.borrowed), &self.bad)
    }

    /// The bits after the commit.
    pub(crate) fn new_bits(&self) -> Bits {
        bits::either(&bits::without(&self.old, &self.taken), &self.freed)
    }

    /// The words of the map on media: the bits, then the purpose.
    pub(crate) fn old_words(&self) -> [u64; MAP_WORDS + 1] {
        with_purpose(&self.old, self.old_purpose)
    }

    /// Those after the commit.
    pub(crate) fn new_words(&self) -> [u64; MAP_WORDS + 1] {
        with_purpose(&self.new_bits(), self.purpose)
    }

    /// Nothing of it changes.
    pub(crate) fn is_untouched(&self) -> bool {
        self.taken == [0; 8] && self.freed == [0; 8] && self.borrowed == [0; 8]
    }
}

/// A word of bits in an operation.
pub(crate) struct BitsEdit {
    pub(crate) address: u64,
    /// The pool block that it is of.
    pub(crate) block: u64,
    pub(crate) pool: usize,
    pub(crate) old: u64,
    pub(crate) taken: u64,
    pub(crate) freed: u64,
}

/// An inode in an operation.
pub(crate) struct InodeEdit {
    pub(crate) number: u64,
    pub(crate) address: u64,
    pub(crate) old: RawInode,
    pub(crate) new: RawInode,
}
