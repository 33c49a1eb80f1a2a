//! The checkpoint, which a clean unmount leaves so that the next mount need not read every log.
//!
//! A chain of blocks, taken from the free ones, with the free runs and the inodes in use. The blocks themselves are
//! listed as free: once the file system is mounted again (and marked dirty, durably) nothing needs them.

use nacre_engine::{BLOCK_SIZE, Block, Error, Result, TierRun};
use nacre_media::Pm;
use zerocopy::{FromBytes, IntoBytes};

use crate::alloc::{Allocator, Purpose, Run};
use crate::format::{
    CHECKPOINT_MAGIC, CheckpointChunk, CheckpointHeader, CheckpointRun, checksum_of, place, seal,
};
use crate::fs::Shared;
use crate::places::Reach;
use crate::superblock::Superblock;
use crate::table::InodeTable;
use crate::tiers::Tiers;

const HEADER: usize = size_of::<CheckpointHeader>();
const ROOM: usize = BLOCK_SIZE as usize - HEADER;
const RUNS_PER_BLOCK: usize = ROOM / size_of::<CheckpointRun>();
const CHUNKS_PER_BLOCK: usize = ROOM / size_of::<CheckpointChunk>();

/// Writes a checkpoint; gives its first block, or `None` when there is no room for it (the next mount then reads the
/// logs). Durable when it returns.
pub(crate) fn write<P: Pm>(fs: &Shared<P>, epoch: u64) -> Result<Option<Block>> {
    let mut runs = Vec::new();
    fs.alloc.for_each_free_run(|run| runs.push(CheckpointRun { start: run.start.0, blocks: run.len }));
    fs.tiers.for_each_free_run(|run| {
        runs.push(CheckpointRun { start: place::on_tier(run.tier, run.start.0), blocks: run.len });
    });
    let mut chunks = Vec::new();
    fs.inodes.for_each_chunk(|chunk, used| chunks.push(CheckpointChunk { chunk, used, reserved: 0 }));
    let count = runs.len().div_ceil(RUNS_PER_BLOCK) + chunks.len().div_ceil(CHUNKS_PER_BLOCK);
    let mut places = crate::alloc::Runs::new();
    if fs.alloc.allocate(count as u64, Purpose::Metadata, &mut places).is_err() {
        return Ok(None);
    }
    let blocks: Vec<Block> =
        places.iter().flat_map(|run| (0..run.len).map(|i| Block(run.start.0 + i))).collect();
    let run_parts = runs.chunks(RUNS_PER_BLOCK).map(|part| (part.as_bytes(), part.len(), 0));
    let chunk_parts = chunks.chunks(CHUNKS_PER_BLOCK).map(|part| (part.as_bytes(), 0, part.len()));
    for (index, (records, runs, chunks)) in run_parts.chain(chunk_parts).enumerate() {
        let next = blocks.get(index + 1).map_or(0, |block| block.0);
        let header = CheckpointHeader {
            checksum: 0,
            magic: CHECKPOINT_MAGIC,
            epoch,
            next,
            runs: runs as u32,
            chunks: chunks as u32,
            reserved: [0; 4],
        };
        let mut bytes = [0u8; BLOCK_SIZE as usize];
        bytes[..HEADER].copy_from_slice(header.as_bytes());
        bytes[HEADER..HEADER + records.len()].copy_from_slice(records);
        seal(&mut bytes, fs.seed);
        let copied = fs.pm.copy(blocks[index].offset(), &bytes)?;
        fs.pm.fence(copied);
    }
    Ok(blocks.first().copied())
}

/// Reads the checkpoint that a superblock names into allocators in which nothing is free and a table in which no inode
/// is in use.
pub(crate) fn read(
    pm: &impl Pm,
    superblock: &Superblock,
    reach: &Reach,
    alloc: &Allocator,
    tiers: &Tiers,
    inodes: &InodeTable,
) -> Result<()> {
    let (seed, epoch) = (superblock.seed(), superblock.raw.mount_epoch);
    let damaged = |what: &str| Error::corrupt(format!("checkpoint: {what}"));
    let device_blocks = pm.len() / BLOCK_SIZE;
    let mut next = Some(Block(superblock.raw.checkpoint));
    let mut seen = 0;
    let mut last_end = superblock.first_data_block();
    let mut bytes = [0u8; BLOCK_SIZE as usize];
    while let Some(block) = next {
        if block.0 >= device_blocks || seen > device_blocks {
            return Err(damaged("a block beyond the device"));
        }
        seen += 1;
        pm.read(block.offset(), &mut bytes)?;
        let (header, records) =
            CheckpointHeader::read_from_prefix(&bytes[..]).map_err(|_| damaged("header"))?;
        let checksum = checksum_of(&bytes, seed);
        let (runs, chunks) = (header.runs as usize, header.chunks as usize);
        let fits = runs <= RUNS_PER_BLOCK && chunks <= CHUNKS_PER_BLOCK && (runs == 0 || chunks == 0);
        if header.checksum != checksum || header.magic != CHECKPOINT_MAGIC || header.epoch != epoch || !fits {
            return Err(damaged("header"));
        }
        for record in records.chunks_exact(size_of::<CheckpointRun>()).take(runs) {
            let run = CheckpointRun::read_from_bytes(record).map_err(|_| damaged("run"))?;
            let bits = run.start & (place::UNWRITTEN | place::SHARED);
            let is_there = bits == 0 && run.blocks <= place::BLOCK_MASK && reach.holds(run.start, run.blocks);
            if !is_there || run.start < last_end || run.blocks == 0 {
                return Err(damaged("run"));
            }
            let (start, len) = (Block(run.start & place::BLOCK_MASK), run.blocks);
            match place::tier(run.start) {
                0 => alloc.free(Run { start, len }),
                tier => tiers.found_free(TierRun { tier, start, len }),
            }
            last_end = run.start + run.blocks;
        }
        for record in records.chunks_exact(size_of::<CheckpointChunk>()).take(chunks) {
            let chunk = CheckpointChunk::read_from_bytes(record).map_err(|_| damaged("inodes"))?;
            inodes.mark_chunk_used(chunk.chunk, chunk.used)?;
        }
        next = (header.next != 0).then_some(Block(header.next));
    }
    Ok(())
}
