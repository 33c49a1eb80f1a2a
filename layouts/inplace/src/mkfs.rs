//! Makes an empty file system.

use nacre_engine::{BLOCK_SIZE, Block, FileKind, Result};
use nacre_layout_parts::lifecycle::MkfsOptions;
use nacre_layout_parts::mkfs;
use nacre_layout_parts::names::seed_of;
use nacre_layout_parts::superblock::{check_size, erase};
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::format::{
    BLOCK_WORDS, FIRST_REGION_BLOCK, GROWTH_BLOCKS, INODE_MAGIC, INODE_SIZE, INODE_VERSION, LANE_BLOCKS,
    ROOT_INODE, RawInode, TABLE_INODE, feature, region, state, tree,
};
use crate::superblock::{LAYOUT, Summary, Superblock};

/// A device smaller than this has few lanes.
const SMALL_DEVICE: u64 = 256 << 20;

/// Makes an empty file system that fills the device. The old contents of the device are lost; the superblocks come
/// last, so a crash leaves the old file system, or none, or the new one.
pub fn mkfs<P: Pm>(pm: &P, options: &MkfsOptions) -> Result<Summary> {
    let blocks = pm.len() / BLOCK_SIZE;
    check_size(pm, "the in-place layout takes 16 MiB to 16 TiB")?;
    let mut superblock = describe(blocks, options)?;
    let seed = superblock.seed();
    let table_inode = superblock.region(region::INODE_TABLE)?.start;

    // No old superblock may stand beside new structures.
    erase(pm)?;
    // Regions, the table's one node, and its first blocks.
    let node = superblock.first_data_block();
    let first = node + 1;
    let end = first + GROWTH_BLOCKS;
    let zeroed = pm.zero(Block(FIRST_REGION_BLOCK).offset(), (end - FIRST_REGION_BLOCK) * BLOCK_SIZE)?;
    let mut words = [0u64; BLOCK_WORDS];
    for (word, block) in words.iter_mut().zip(first..end) {
        *word = block;
    }
    let mut table = new_inode(FileKind::Regular, 0o600, superblock.times().pack(options.now));
    table.size = GROWTH_BLOCKS * BLOCK_SIZE;
    table.root = node | 1 << tree::HEIGHT_SHIFT;
    table.checksum = table.compute_checksum(seed, TABLE_INODE);
    let mut root = new_inode(FileKind::Directory, 0o755, superblock.times().pack(options.now));
    (root.uid, root.gid) = options.root_owner;
    root.parent = ROOT_INODE;
    root.checksum = root.compute_checksum(seed, ROOT_INODE);
    let written = pm.copy(Block(node).offset(), words.as_bytes())?;
    let written = written.and(pm.copy(Block(table_inode).offset(), table.as_bytes())?);
    let written = written.and(pm.copy(Block(first).offset() + ROOT_INODE * INODE_SIZE, root.as_bytes())?);
    pm.fence(written.and(zeroed));
    superblock.write(pm)?;
    Ok(superblock.summary([true, true]))
}

/// An inode that is about to be written, without its checksum.
pub(crate) fn new_inode(kind: FileKind, mode: u16, now: u64) -> RawInode {
    let mut raw = RawInode::new_zeroed();
    raw.magic = INODE_MAGIC;
    raw.version = INODE_VERSION;
    raw.kind = kind as u8;
    raw.generation = 1;
    raw.links = 1;
    raw.mode = mode;
    (raw.btime, raw.mtime, raw.ctime, raw.atime) = (now, now, now, now);
    raw
}

fn describe(blocks: u64, options: &MkfsOptions) -> Result<Superblock> {
    let lanes = if blocks * BLOCK_SIZE < SMALL_DEVICE { 4 } else { 16 };
    let regions = [(region::BAD_BLOCKS, 1), (region::INODE_TABLE, 1), (region::JOURNAL, lanes * LANE_BLOCKS)];
    let mut superblock = mkfs::describe(&LAYOUT, blocks, options, &regions)?;
    superblock.raw.state = state::CLEAN;
    superblock.raw.hash_seed = seed_of(superblock.raw.uuid);
    superblock.raw.features_compatible = if options.linear_names { feature::LINEAR_NAMES } else { 0 };
    Ok(superblock)
}
