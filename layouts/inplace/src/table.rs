//! The inode table on media. The table's own inode is in a region of its own, so that growing it is a transaction like
//! any other. Its state in DRAM is in `nacre-layout-parts`.

use nacre_engine::{Block, Result};
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::format::{RawInode, region};
use crate::superblock::Superblock;

/// Where the inode of the table is.
pub(crate) fn table_address(superblock: &Superblock) -> Result<u64> {
    Ok(Block(superblock.region(region::INODE_TABLE)?.start).offset())
}

/// Reads the inode at `address`, which may be anything.
pub(crate) fn read_inode(pm: &impl Pm, address: u64) -> Result<RawInode> {
    let mut raw = RawInode::new_zeroed();
    pm.read(address, raw.as_mut_bytes())?;
    Ok(raw)
}
