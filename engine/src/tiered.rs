//! The contract of a layout whose files may have blocks on tiers: [`Tiered`].
//!
//! A layout does no disk I/O. It knows which blocks of which tier belong to which file, allocates their space, and
//! commits the places of blocks. A component above it ("the mover") reads and writes them. If a log has moved to a
//! tier as an offloaded extent map ([`LogImage`]), the layout reads it through the mover's [`TierReader`].
//!
//! - **Reading.** A read that meets a block on a tier fails with [`Elsewhere`](crate::Kind::Elsewhere), and nothing is
//!   changed. Then the mover resolves the range and reads the tier, between [`Tiered::begin_reads`] and
//!   [`Tiered::end_reads`], so that no block freed meanwhile is written by others.
//! - **Writing** whole blocks needs no old contents. An operation that keeps a part of a block on a tier fails with
//!   `Elsewhere`; the mover [promotes it](Tiered::bring_up) and tries again.
//! - **Moving.** Blocks are resolved with a version, copied without a lock, and [committed](Tiered::publish). The
//!   commit fails if the version has changed.

use std::io::IoSlice;
use std::sync::Arc;

use crate::contract::{Data, Durability, Extents, PlacedExtent, WriteAt};
use crate::error::{Error, Kind, Result};
use crate::units::{Block, FileBlock, Timestamp};

/// The largest number of tiers of a file system; their numbers are 1 to this.
pub const MAX_TIERS: u8 = 32;

/// The use of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierState {
    /// Blocks are placed on it.
    Active,
    /// Its blocks are moving to other places, and no new ones are placed on it.
    Draining,
}

/// A tier, as the file system knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// The number, from 1 on, by which places refer to the tier.
    pub number: u8,
    /// Its identifier for machines, which its own superblock has, too.
    pub uuid: [u8; 16],
    /// Blocks of the device.
    pub blocks: u64,
    /// The token in its superblock. Each mount chooses a new one, so that older copies are recognised.
    pub token: u64,
    /// The token that is being written there, or 0. If it is not 0, the superblock may have either.
    pub pending: u64,
    /// Smaller is faster; equal devices have the same.
    pub rank: u8,
    /// Its use.
    pub state: TierState,
}

/// How the list of tiers changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierChange {
    /// Adds a tier, or changes one.
    Set(Tier),
    /// Removes the tier with this number, which holds no blocks.
    Remove(u8),
}

/// The space of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierSpace {
    /// Blocks that files could use if none was in use.
    pub blocks: u64,
    /// Blocks that are not in use.
    pub free: u64,
    /// Whether the free blocks are known. After a crash a part of the tier may have to be read first, and until then
    /// nothing is free.
    pub is_counted: bool,
}

/// Blocks of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierRun {
    /// The tier.
    pub tier: u8,
    /// The first block.
    pub start: Block,
    /// The number of blocks.
    pub len: u64,
}

/// Blocks of a file, and the version of the part of its index that holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Movable {
    /// The blocks and their place.
    pub extent: PlacedExtent,
    /// Changes as soon as one of the blocks, or a neighbour, gets another place or, behind the end of the file, other
    /// bytes.
    pub version: u64,
}

/// Blocks of a file that were copied to a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Their old place and its version: at most one [`Movable`], or a part of it.
    pub from: Movable,
    /// The tier with the copies, which are contiguous.
    pub tier: u8,
    /// The block with the first copy.
    pub block: Block,
}

/// Blocks of one file that were copied to a tier.
#[derive(Debug, Clone, Copy)]
pub struct CopiedFile<'c, N> {
    /// The file.
    pub node: &'c N,
    /// The blocks and the places of their copies.
    pub copied: &'c [Copied],
    /// The time at which the blocks were written.
    pub modified: Timestamp,
}

/// Whole blocks of a file that were written to a tier instead of to persistent memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The first block in the file.
    pub start: FileBlock,
    /// The place of the first block's content; the others follow.
    pub run: TierRun,
}

/// The result of compacting a portion of a file's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactedLog {
    /// Blocks of persistent memory that are free now.
    pub freed: u64,
    /// Whether there is no further portion.
    pub is_done: bool,
}

/// An offloaded extent map: the state of a file's log in a form that a tier may keep instead of persistent memory. All
/// blocks of the file are on that tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogImage {
    /// The tier.
    pub tier: u8,
    /// Whole blocks.
    pub content: Vec<u8>,
    /// Changes as soon as the file changes.
    pub version: u64,
}

/// Reads blocks of tiers for a layout that keeps extent maps there and scrubs data of files there.
pub trait TierReader: Send + Sync {
    /// The contents of blocks of a tier. [`DeviceLost`](Kind::DeviceLost) if the tier is missing.
    fn read_image(&self, run: TierRun) -> Result<Vec<u8>>;

    /// Checks both copies of a tier's own superblock, and repairs a damaged one from the other. Returns the damaged
    /// ones. [`DeviceLost`](Kind::DeviceLost) if the tier is missing.
    fn check_superblock(&self, tier: u8) -> Result<Vec<DamagedCopy>> {
        let _ = tier;
        Ok(Vec::new())
    }
}

/// A copy of a tier's superblock that does not validate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedCopy {
    /// The copy, in words.
    pub copy: &'static str,
    /// Whether it was rewritten from the other copy.
    pub is_repaired: bool,
}

/// The result of a search for free blocks on a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FreeRun {
    /// The blocks, now taken.
    pub run: Option<TierRun>,
    /// The block with which the next search continues; `None` after the last.
    pub next: Option<Block>,
    /// Whether the blocks from there on belong to the same run.
    pub is_within: bool,
}

/// A layout whose files may have blocks on tiers.
pub trait Tiered: Data + Extents {
    /// Proof that data written to a tier is durable.
    type Proof;

    /// The tiers, by number.
    fn tiers(&self) -> Vec<Tier>;

    /// Changes the list of tiers, durably. [`Busy`](crate::Kind::Busy) for the removal of a tier with blocks in use,
    /// [`InvalidInput`](crate::Kind::InvalidInput) for an unknown number.
    fn change_tier(&self, change: TierChange) -> Result<()>;

    /// Unused blocks of persistent memory, reserved or not, without the blocks that the layout keeps for itself.
    /// Without those it could make no change any more.
    fn memory_left(&self) -> u64;

    /// Space statistics of a tier.
    fn tier_space(&self, tier: u8) -> Result<TierSpace>;

    /// Sets the tiers that take no blocks now, although they are active. Blocks that are allocated and not written
    /// then go to other tiers. Each call replaces the set.
    fn set_unusable(&self, tiers: &[u8]);

    /// Takes blocks of a tier, from `goal` on as far as these are free, in as few runs as possible.
    /// [`NoSpace`](crate::Kind::NoSpace) if too few are free. This is in DRAM only: blocks that are not committed are
    /// free again after a crash.
    fn allocate_on(&self, tier: u8, goal: Option<Block>, blocks: u64) -> Result<Vec<TierRun>>;

    /// Takes blocks of the first run of at least `least` free blocks on a tier from block `from` on. It takes at most
    /// `most` blocks, up to the next multiple of that. The caller [puts them back](Tiered::put_back_on) soon; other
    /// allocations do not find them meanwhile.
    fn take_free_on(&self, tier: u8, from: Block, least: u64, most: u64) -> Result<FreeRun>;

    /// Frees them as before. They were never given to a file, so they have no readers.
    fn put_back_on(&self, run: TierRun);

    /// Frees blocks that were taken and not committed.
    fn free_on(&self, run: TierRun);

    /// Begins reads of tiers. No block of a tier that was in use is reused until [`Tiered::end_reads`] with the same
    /// number.
    fn begin_reads(&self) -> u64;

    /// Ends reads of tiers.
    fn end_reads(&self, ticket: u64);

    /// As [`resolve`](Extents::resolve), and behind the end of the file, too.
    fn resolve_allocated(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>>;

    /// The places of the blocks from `start` on, each with its version. At most `len` blocks, without holes, up to the
    /// end of the file's last block.
    fn resolve_movable(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<Movable>>;

    /// The first blocks of a file that are on PM, allocated and not written, each with its version. At most `most`
    /// blocks, also behind the end of the file. They move without being copied.
    fn resolve_unwritten(&self, node: &Self::Node, most: u64) -> Result<Vec<Movable>>;

    /// Commits relocations: the places of copies, and the places allocated for unwritten blocks. Each file has
    /// operations of its own. For each file, in order, it returns the blocks that stay as they are, because their
    /// version has changed or the log had no space. An error of one file, or blocks left by it, does not affect the
    /// others. Contents, sizes and times of the files do not change. Replaced blocks are free afterwards. The proof
    /// covers all copies: one flush of the device is enough for any number of files.
    fn publish(&self, files: &[CopiedFile<'_, Self::Node>], proof: Self::Proof) -> Vec<Result<Vec<Copied>>>;

    /// Commits a write of whole blocks on tiers, as one operation. The last block may reach behind `size`. The file
    /// has at least that size afterwards.
    fn publish_write(
        &self,
        node: &Self::Node,
        written: &[Written],
        size: u64,
        durability: Durability,
        now: Timestamp,
        proof: Self::Proof,
    ) -> Result<()>;

    /// The same for a write that comes now, to blocks that the file has at these places already, allocated and not
    /// written. False, without a change, if one of them is not. If it `joins`, the blocks were written before or are
    /// zeros. The log then needs fewer entries, and more space is there for that.
    fn publish_first_write(
        &self,
        node: &Self::Node,
        written: &[Written],
        size: u64,
        now: Timestamp,
        proof: Self::Proof,
        joins: bool,
    ) -> Result<bool>;

    /// Writes if direct reclaim failed: blocks on PM are overwritten with the layout's reserve for that, as
    /// [`write`](crate::Data::write) does without tiers. [`NoSpace`](crate::Kind::NoSpace), without a change, if other
    /// blocks are written, too.
    fn overwrite(
        &self,
        node: &Self::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64>;

    /// Promotes blocks of one [`Movable`] to persistent memory; `content` is their contents. False, without a change,
    /// if the version has changed. For a promised write it takes space that other writes may not, and the write
    /// returns the blocks. With [`Durability::Lazy`] it takes the layout's reserve for overwriting, and as many other
    /// blocks must be demoted then. It is durable in any case.
    fn bring_up(
        &self,
        node: &Self::Node,
        from: &Movable,
        content: &[u8],
        durability: Durability,
        modified: Timestamp,
    ) -> Result<bool>;

    /// Lets `change` overwrite blocks of one [`Movable`] in place on their tier, if there is no space for other ways.
    /// No log entry records it, and a crash may leave a part. No other thread changes the file meanwhile, or moves the
    /// blocks. False, without a change, if the version has changed.
    fn change_below(
        &self,
        node: &Self::Node,
        from: &Movable,
        now: Timestamp,
        change: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool>;

    /// Moves blocks in the range that a file has allocated and not written on a draining tier. They go to persistent
    /// memory or, if that is full, to active tiers. Returns their number.
    fn replace_unwritten(&self, node: &Self::Node, tier: u8, start: FileBlock, len: u64) -> Result<u64>;

    /// Whether files have logs, on persistent memory, that [`Tiered::compact_log`] may make smaller.
    fn has_logs(&self) -> bool {
        false
    }

    /// Compacts a portion of a file's log: the first one if `begin`, otherwise the one behind the last. A log without
    /// changes since its compaction is skipped at once. It waits for no operation: if the file is being changed, or
    /// the copy finds no space, it does nothing. The visible state of the file does not change. Atomic, and durable on
    /// return. [`Unsupported`](Kind::Unsupported) if files have no logs.
    fn compact_log(&self, node: &Self::Node, begin: bool) -> Result<CompactedLog> {
        let _ = (node, begin);
        Err(Error::new(Kind::Unsupported).operation("compact"))
    }

    /// Sets the reader of offloaded extent maps.
    fn read_images_with(&self, reader: Arc<dyn TierReader>) {
        let _ = reader;
    }

    /// Counts the blocks of a tier that can be read now. After a crash this counts the blocks that offloaded extent
    /// maps on it name. Until then nothing is free on it, and its maps are not read. Once for each mount; later calls
    /// do nothing.
    ///
    /// A map that is damaged or cannot be read fails for its file alone. Nothing is free on the tier then while that
    /// file exists. If two maps name one block, this lasts until the next mount. Returns the fault of the first such
    /// map. An error if the tier is missing after all.
    fn count_tier(&self, tier: u8) -> Result<Option<Error>> {
        let _ = tier;
        Ok(None)
    }

    /// The extent map of a file to offload. `None` unless all blocks of the file are on one tier that `may_be_on`
    /// allows. `None` also if one is shared or about to be freed, or no persistent memory would become free. It does
    /// not wait: `None` for a file that is being changed.
    fn log_image(&self, node: &Self::Node, may_be_on: &dyn Fn(u8) -> bool) -> Result<Option<LogImage>> {
        let _ = (node, may_be_on);
        Ok(None)
    }

    /// Replaces the file's log by an extent map that was written to `run`: atomic, and durable on return. Returns the
    /// number of blocks of persistent memory that became free; none, without a change, if the file has changed since.
    fn publish_log_image(
        &self,
        node: &Self::Node,
        image: &LogImage,
        run: TierRun,
        proof: Self::Proof,
    ) -> Result<Option<u64>> {
        let _ = (node, image, run, proof);
        Ok(None)
    }

    /// The place of a file's offloaded extent map, if it has one.
    fn log_image_at(&self, node: &Self::Node) -> Option<TierRun> {
        let _ = node;
        None
    }

    /// Moves a log back to persistent memory, as every change of places does; false if it was there.
    fn take_log_back(&self, node: &Self::Node) -> Result<bool> {
        let _ = node;
        Ok(false)
    }
}
