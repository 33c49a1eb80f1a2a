//! The bodies of the fuzz targets: plain functions on bytes, so that the corpus is replayed by `cargo test` on stable.
//!
//! - [`image`]: an image whose structures are changed, with right checksums or without: it may be refused or repaired.
//! - [`inplace`]: an image of the in-place layout whose structures are changed, its journal among them.
//! - [`pool`]: an image of the pool layout whose structures are changed, one copy of them or both.
//! - [`shadow`]: an image of the shadow layout whose structures are changed, its switches among them.
//! - [`log`]: entries of any content, with right checksums, as the log of an inode.
//! - [`tier`]: PM and a disk below it, both changed: superblocks of the tier, offloaded extent maps, entries that name
//!   blocks of it.
//! - [`fuse`]: FUSE requests of any form, to a server over a sound file system of either layout.
//!
//! The target `options` reads command lines; its body is in the command's own crate.
//!
//! None may panic, hang, allocate without bound, or read outside; `fuzz/` drives them by coverage. Each input that a
//! target once failed on is a test in `lab/tests/behaviour/fuzz.rs`, with its story.

mod damaged;
mod edit;
pub mod fuse;
mod ground;
pub mod image;
pub mod inplace;
pub mod log;
pub mod pool;
pub mod shadow;
pub mod tier;

/// The bytes of an input, taken from the front; when they are used up there are only zeros.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'d>(&'d [u8]);

impl<'d> Input<'d> {
    pub(crate) fn new(data: &'d [u8]) -> Input<'d> {
        Input(data)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let count = N.min(self.0.len());
        let (front, rest) = self.0.split_at(count);
        self.0 = rest;
        let mut bytes = [0; N];
        bytes[..count].copy_from_slice(front);
        bytes
    }

    /// The next `at` bytes, and the bytes behind them.
    pub(crate) fn split(self, at: usize) -> (Input<'d>, Input<'d>) {
        let (front, rest) = self.0.split_at(at.min(self.0.len()));
        (Input(front), Input(rest))
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(crate) fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}
