//! Makes an empty file system.

use nacre_engine::{BLOCK_SIZE, Block, FileKind, Result};
use nacre_layout_parts::lifecycle::MkfsOptions;
use nacre_layout_parts::mkfs;
use nacre_layout_parts::names::seed_of;
use nacre_layout_parts::superblock::{check_size, erase};
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::format::{
    FIRST_REGION_BLOCK, GROWTH_BLOCKS, INODE_MAGIC, INODE_SIZE, INODE_VERSION, NODE_WORDS, ROOT_INODE,
    RawHeader, RawInode, RawSlot, TABLE_INODE, feature, inode_seed, region, state,
};
use crate::grow::TABLE_GENERATION;
use crate::superblock::{LAYOUT, Summary, Superblock};
use crate::switches::unused;

/// Makes an empty file system that fills the device. The old contents of the device are lost; the superblocks come
/// last, so a crash leaves the old file system, or none, or the new one.
pub fn mkfs<P: Pm>(pm: &P, options: &MkfsOptions) -> Result<Summary> {
    let blocks = pm.len() / BLOCK_SIZE;
    check_size(pm, "the shadow layout takes 16 MiB to 16 TiB")?;
    let mut superblock = describe(blocks, options)?;
    let seed = superblock.seed();
    let table_inode = superblock.region(region::INODE_TABLE)?.start;
    let switches = superblock.region(region::SWITCHES)?.start;

    // No old superblock may stand beside new structures.
    erase(pm)?;
    // Regions, the table's one node, and its first blocks.
    let node = superblock.first_data_block();
    let first = node + 1;
    let end = first + GROWTH_BLOCKS;
    let zeroed = pm.zero(Block(FIRST_REGION_BLOCK).offset(), (end - FIRST_REGION_BLOCK) * BLOCK_SIZE)?;
    pm.fence(zeroed);
    let mut words = [0u64; NODE_WORDS];
    for (word, block) in words.iter_mut().zip(first..end) {
        *word = block;
    }
    let now = superblock.times().pack(options.now);
    let mut table =
        RawSlot { mode: 0o600, size: GROWTH_BLOCKS * BLOCK_SIZE, root: node, ..RawSlot::default() };
    table.set_height(1);
    let table = new_inode(TABLE_INODE, FileKind::Regular, table, now, seed);
    let (uid, gid) = options.root_owner;
    let root = RawSlot { mode: 0o755, uid, gid, parent_end: ROOT_INODE, ..RawSlot::default() };
    let root = new_inode(ROOT_INODE, FileKind::Directory, root, now, seed);
    let mut written = pm.copy(Block(node).offset(), words.as_bytes())?;
    let place_of_root = Block(first).offset() + ROOT_INODE * INODE_SIZE;
    let switches_of_lanes = unused(seed);
    for (offset, bytes) in [
        (Block(table_inode).offset(), table.as_bytes()),
        (Block(table_inode + 1).offset(), table.as_bytes()),
        (place_of_root, root.as_bytes()),
        (Block(switches).offset(), &switches_of_lanes[..]),
        (Block(switches + 1).offset(), &switches_of_lanes[..]),
    ] {
        written = written.and(pm.copy(offset, bytes)?);
    }
    pm.fence(written);
    superblock.write(pm)?;
    Ok(superblock.summary([true, true]))
}

/// A new inode with its first state.
pub(crate) fn new_inode(number: u64, kind: FileKind, slot: RawSlot, now: u64, volume_seed: u32) -> RawInode {
    let mut header = RawHeader {
        magic: INODE_MAGIC,
        version: INODE_VERSION,
        kind: kind as u8,
        generation: TABLE_GENERATION,
        btime: now,
        atime: now,
        ..RawHeader::default()
    };
    header.checksum = header.compute_checksum(volume_seed, number);
    let mut slot = RawSlot { sequence: 1, links: 1, mtime: now, ctime: now, ..slot };
    slot.checksum = slot.compute_checksum(inode_seed(volume_seed, number, header.generation));
    RawInode { header, slots: [slot, RawSlot::default()] }
}

fn describe(blocks: u64, options: &MkfsOptions) -> Result<Superblock> {
    let regions = [(region::BAD_BLOCKS, 1), (region::INODE_TABLE, 2), (region::SWITCHES, 2)];
    let mut superblock = mkfs::describe(&LAYOUT, blocks, options, &regions)?;
    superblock.raw.state = state::CLEAN;
    superblock.raw.hash_seed = seed_of(superblock.raw.uuid);
    superblock.raw.features_compatible =
        if options.overwrite_in_place { feature::OVERWRITE_IN_PLACE } else { 0 };
    Ok(superblock)
}
