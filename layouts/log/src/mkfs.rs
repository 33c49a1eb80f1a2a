//! Makes an empty file system.

use nacre_engine::{BLOCK_SIZE, Block, FileKind, Result, TimeRange};
use nacre_layout_parts::lifecycle::MkfsOptions;
use nacre_layout_parts::mkfs;
use nacre_layout_parts::names::seed_of;
use nacre_layout_parts::superblock::{check_size, erase};
use nacre_media::{Durable, Pm};
use zerocopy::{FromZeros, IntoBytes};

use crate::format::{
    CHUNK_BLOCKS, CHUNK_INODES, FIRST_REGION_BLOCK, FORMAT_VERSION, INODE_MAGIC, INODE_SIZE, INODE_VERSION,
    ROOT_INODE, RawInode, inode_seed, region, seal_word, state,
};
use crate::superblock::{LAYOUT, Summary, Superblock};
use crate::table::chunk_seed;

/// Makes an empty file system that fills the device. The old contents of the device are lost; the superblocks come
/// last, so a crash leaves the old file system, or none, or the new one.
pub fn mkfs<P: Pm>(pm: &P, options: &MkfsOptions) -> Result<Summary> {
    let blocks = pm.len() / BLOCK_SIZE;
    check_size(pm, "the log layout takes 16 MiB to 16 TiB")?;
    let mut superblock = describe(blocks, options)?;
    let table = superblock.region(crate::format::region::CHUNK_TABLE)?;
    let seed = superblock.seed();

    // No old superblock may stand beside new structures.
    erase(pm)?;
    let regions_end = superblock.first_data_block();
    let regions =
        pm.zero(Block(FIRST_REGION_BLOCK).offset(), (regions_end - FIRST_REGION_BLOCK) * BLOCK_SIZE)?;
    let chunk = regions_end;
    let inodes = pm.zero(Block(chunk).offset(), CHUNK_BLOCKS * BLOCK_SIZE)?;

    // Without a superblock the order of what it will point to does not matter.
    let root = root_inode(seed, options);
    let root_offset = Block(chunk).offset() + ROOT_INODE * INODE_SIZE;
    let root_written = pm.publish_entry(root_offset, root.as_bytes(), Durable::nothing_before())?;
    let word = seal_word(chunk, chunk_seed(seed, 0));
    let stored = pm.publish_u64(Block(table.start).offset(), word, Durable::nothing_before())?;
    let word_written = pm.flush(stored);
    pm.fence(regions.and(inodes).and(root_written).and(word_written));
    superblock.write(pm)?;
    Ok(superblock.summary([true, true]))
}

fn describe(blocks: u64, options: &MkfsOptions) -> Result<Superblock> {
    let chunk_words = blocks.div_ceil(CHUNK_INODES);
    let regions = [(region::BAD_BLOCKS, 1), (region::CHUNK_TABLE, (chunk_words * 8).div_ceil(BLOCK_SIZE))];
    let mut superblock = mkfs::describe(&LAYOUT, blocks, options, &regions)?;
    superblock.raw.hash_seed = seed_of(superblock.raw.uuid);
    // Dirty: the first mount counts the free blocks. It has one directory to read.
    superblock.raw.state = state::DIRTY;
    superblock.raw.settled_transactions = 1;
    Ok(superblock)
}

fn root_inode(seed: u32, options: &MkfsOptions) -> RawInode {
    let seed = inode_seed(seed, ROOT_INODE, 1);
    let mut root = RawInode::new_zeroed();
    root.magic = INODE_MAGIC;
    root.version = INODE_VERSION;
    root.kind = FileKind::Directory as u8;
    root.generation = 1;
    root.btime = TimeRange::of_version(FORMAT_VERSION).pack(options.now);
    root.mode = 0o755;
    (root.uid, root.gid) = options.root_owner;
    root.links = 2;
    root.parent = ROOT_INODE;
    root.cached_checksum = RawInode::compute_cached_checksum(2, ROOT_INODE, seed);
    root.checksum = root.compute_checksum(seed);
    root
}
