//! The steps that are alike in the mounts of layouts that walk over all of their blocks.

use nacre_engine::{Error, Kind, Result};
use nacre_media::Pm;

use crate::alloc::Allocator;
use crate::badblocks;
use crate::lifecycle::MountOptions;
use crate::marks::Marks;
use crate::superblock::Superblock;

/// Refuses a mount that cannot write and has to.
pub fn check_mount(superblock: &Superblock, options: &MountOptions) -> Result<()> {
    if options.media_read_only && !superblock.is_clean() {
        return Err(Error::new(Kind::ReadOnly)
            .object("recovery after a crash")
            .advice("it has to write: mount it writable once"));
    }
    if options.read_only || options.media_read_only { Ok(()) } else { superblock.check_writable() }
}

/// Lanes for allocation: as the options say, or one for each CPU.
pub fn lane_count(options: &MountOptions) -> usize {
    let default = || std::thread::available_parallelism().map_or(1, usize::from);
    options.lanes.unwrap_or_else(default).clamp(1, 64)
}

/// The blocks that nothing uses, by the marks of the walk.
pub fn free_blocks<P: Pm>(pm: &P, superblock: &Superblock, marks: &Marks, lanes: usize) -> Result<Allocator> {
    let device_blocks = superblock.raw.device_blocks;
    let alloc = Allocator::new(device_blocks, lanes, reserve(device_blocks));
    badblocks::read(pm, superblock)?.blocks.iter().for_each(|&block| alloc.withdraw(block));
    marks.free_the_rest(&alloc);
    Ok(alloc)
}

/// Blocks that only metadata may use, so that a full file system can be tidied up: names are moved, and blocks copied.
/// 1 in 256, at least 16, at most 16 MiB. Removing needs no block at all.
fn reserve(device_blocks: u64) -> u64 {
    (device_blocks / 256).clamp(16, 4096)
}
