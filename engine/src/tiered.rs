//! The contract of a layout whose files may have blocks on tiers: [`Tiered`].
//!
//! A layout does no disk I/O. It knows which blocks of which tier belong to which file, gives out their space, and commits
//! where blocks are; whoever is above it ("the mover") reads and writes them. Where a log has moved to a tier as an image
//! ([`LogImage`]), the layout asks the mover for it through a [`TierReader`].
//!
//! - **Reading.** What meets a block on a tier fails with [`Elsewhere`](crate::Kind::Elsewhere), and nothing is changed.
//!   Then the mover resolves the range and reads the tier, between [`Tiered::begin_reads`] and [`Tiered::end_reads`], so that
//!   no block that is freed meanwhile is written by others.
//! - **Writing** whole blocks needs nothing of what was there. An operation that keeps a part of a block on a tier fails with
//!   `Elsewhere`; the mover [brings it up](Tiered::bring_up) and asks again.
//! - **Moving.** Blocks are resolved with a version, copied without a lock, and [published](Tiered::publish), which fails
//!   where the version is another one by then.

use std::io::IoSlice;
use std::sync::Arc;

use crate::contract::{Data, Durability, Extents, PlacedExtent, WriteAt};
use crate::error::{Error, Kind, Result};
use crate::units::{Block, FileBlock, Timestamp};

/// The most tiers of a file system; their numbers are 1 to this.
pub const MAX_TIERS: u8 = 32;

/// What is done with a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierState {
    /// Blocks are placed on it.
    Active,
    /// Its blocks are on their way elsewhere, and no new ones are placed on it.
    Draining,
}

/// A tier, as the file system knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// From 1 on; places name it by this.
    pub number: u8,
    /// Its name for machines, which its own superblock has, too.
    pub uuid: [u8; 16],
    /// Blocks of the device.
    pub blocks: u64,
    /// The number that its superblock has: chosen anew by each mount, so that older copies are told from it.
    pub token: u64,
    /// The number that is being written there, or 0: then it may have either.
    pub pending: u64,
    /// Smaller is faster; equal devices have the same.
    pub rank: u8,
    /// What is done with it.
    pub state: TierState,
}

/// How the list of tiers changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierChange {
    /// A tier is there, or is another one than before.
    Set(Tier),
    /// The tier with this number, on which nothing is, is gone.
    Remove(u8),
}

/// The space of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierSpace {
    /// Blocks that files could use if none was in use.
    pub blocks: u64,
    /// Blocks that are not in use.
    pub free: u64,
    /// After a crash something on it may have to be read before it is known what is free; until then nothing is.
    pub is_counted: bool,
}

/// Blocks of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierRun {
    /// The tier.
    pub tier: u8,
    /// The first block.
    pub start: Block,
    /// How many.
    pub len: u64,
}

/// Blocks of a file, and the version of the part of its index that they are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Movable {
    /// The blocks, and where they are.
    pub extent: PlacedExtent,
    /// Another one as soon as one of the blocks, or a neighbour, has another place or, behind the end of the file, other
    /// bytes.
    pub version: u64,
}

/// Blocks of a file that were copied to a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Where they were, and with which version; no more than one [`Movable`], or a part of it.
    pub from: Movable,
    /// Where the copy of the first is; the others follow.
    pub tier: u8,
    /// Its block.
    pub block: Block,
}

/// Blocks of one file that were copied to a tier.
#[derive(Debug, Clone, Copy)]
pub struct CopiedFile<'c, N> {
    /// The file.
    pub node: &'c N,
    /// Which blocks, and where their copies are.
    pub copied: &'c [Copied],
    /// When the blocks were written.
    pub modified: Timestamp,
}

/// Whole blocks of a file that were written to a tier instead of to persistent memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The first block in the file.
    pub start: FileBlock,
    /// Where the content of the first is; the others follow.
    pub run: TierRun,
}

/// What compacting a portion of a file's log has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactedLog {
    /// Blocks of persistent memory that are free now.
    pub freed: u64,
    /// There is no further portion.
    pub is_done: bool,
}

/// What a file's log says of its blocks, in a form that a tier may keep instead of persistent memory: of a file all of whose
/// blocks are on that tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogImage {
    /// The tier.
    pub tier: u8,
    /// Whole blocks.
    pub content: Vec<u8>,
    /// Another one as soon as the file has changed.
    pub version: u64,
}

/// Reads blocks of tiers for a layout that keeps log images there, and that scrubs what files have there.
pub trait TierReader: Send + Sync {
    /// What is in blocks of a tier. [`DeviceLost`](Kind::DeviceLost) when the tier is missing.
    fn read_image(&self, run: TierRun) -> Result<Vec<u8>>;

    /// Checks both copies of a tier's own superblock, and writes a damaged one from the other. Gives the damaged ones.
    /// [`DeviceLost`](Kind::DeviceLost) when the tier is missing.
    fn check_superblock(&self, tier: u8) -> Result<Vec<DamagedCopy>> {
        let _ = tier;
        Ok(Vec::new())
    }
}

/// A copy of a tier's superblock that does not validate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedCopy {
    /// Which one, in words.
    pub copy: &'static str,
    /// It was written from the other one.
    pub is_repaired: bool,
}

/// What was found of free blocks on a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FreeRun {
    /// The blocks, taken.
    pub run: Option<TierRun>,
    /// Where the next look goes on; `None` where all was looked at.
    pub next: Option<Block>,
    /// The blocks from there on are of the same run.
    pub is_within: bool,
}

/// A layout whose files may have blocks on tiers.
pub trait Tiered: Data + Extents {
    /// Proof that what was written to a tier is durable.
    type Proof;

    /// The tiers, by number.
    fn tiers(&self) -> Vec<Tier>;

    /// Changes the list of tiers, durably. [`Busy`](crate::Kind::Busy) for the removal of a tier with blocks in use,
    /// [`InvalidInput`](crate::Kind::InvalidInput) for a number that there is not.
    fn change_tier(&self, change: TierChange) -> Result<()>;

    /// Blocks of persistent memory that are not in use, set aside or not, but for those that the layout keeps for itself: without
    /// them nothing could be changed any more.
    fn memory_left(&self) -> u64;

    /// Space and its use on a tier.
    fn tier_space(&self, tier: u8) -> Result<TierSpace>;

    /// Of those that blocks may be placed on these do not take any now: what is allocated and not written goes elsewhere, until
    /// it is said anew.
    fn set_unusable(&self, tiers: &[u8]);

    /// Takes blocks of a tier, from `goal` on as far as these are free, in as few runs as can be had;
    /// [`NoSpace`](crate::Kind::NoSpace) when there are not so many. It is DRAM only: what is not published is free again
    /// after a crash.
    fn allocate_on(&self, tier: u8, goal: Option<Block>, blocks: u64) -> Result<Vec<TierRun>>;

    /// Takes blocks of the first run of at least `least` free ones on a tier, from one on: at most `most`, and up to the next
    /// multiple of that. They are [put back](Tiered::put_back_on) soon: who needs room does not find them meanwhile.
    fn take_free_on(&self, tier: u8, from: Block, least: u64, most: u64) -> Result<FreeRun>;

    /// They are free as before: nobody was given them, and so nobody can be reading them.
    fn put_back_on(&self, run: TierRun);

    /// Gives back what was taken and not published.
    fn free_on(&self, run: TierRun);

    /// From now on no block of a tier is given out again that was in use, until [`Tiered::end_reads`] with the same number.
    fn begin_reads(&self) -> u64;

    /// Ends it.
    fn end_reads(&self, ticket: u64);

    /// The same as [`resolve`](Extents::resolve), behind the end of the file, too.
    fn resolve_allocated(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>>;

    /// The places of the blocks from `start` on, at most `len` blocks, holes left out, clipped to the end of the file's
    /// last block, each with its version.
    fn resolve_movable(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<Movable>>;

    /// The first blocks of a file that are on PM, allocated and not written, at most `most` of them, also behind the
    /// end of the file, each with its version. They move without being copied.
    fn resolve_unwritten(&self, node: &Self::Node, most: u64) -> Result<Vec<Movable>>;

    /// Commits, for each file as operations of its own, the places that blocks were copied to, and those that unwritten
    /// blocks are allocated at. Gives of each file, in order, the blocks whose version was another one by then, or for
    /// which the log had no space. These stay as they are. A file that fails, or gives something up, is no matter to
    /// the others. Contents, sizes and times of the files do not change. Blocks that are replaced are free then. The
    /// proof is of all that was copied: one flush of the device is enough for any number of files.
    fn publish(&self, files: &[CopiedFile<'_, Self::Node>], proof: Self::Proof) -> Vec<Result<Vec<Copied>>>;

    /// Commits a write, as one operation: whole blocks that are on tiers, of which the last may reach behind `size`. The
    /// file has at least that size then.
    fn publish_write(
        &self,
        node: &Self::Node,
        written: &[Written],
        size: u64,
        durability: Durability,
        now: Timestamp,
        proof: Self::Proof,
    ) -> Result<()>;

    /// The same for a write that comes now, to blocks that the file has at these places already, allocated and not written.
    /// False, and nothing is changed, when one of them is not. When it `joins`, they were written before or are zeros: the log is
    /// to say less of them, and more space is there for that.
    fn publish_first_write(
        &self,
        node: &Self::Node,
        written: &[Written],
        size: u64,
        now: Timestamp,
        proof: Self::Proof,
        joins: bool,
    ) -> Result<bool>;

    /// Writes, when no room can be made: blocks that are on PM already are overwritten with the layout's reserve for
    /// that, as [`write`](crate::Data::write) does where there are no tiers. [`NoSpace`](crate::Kind::NoSpace), and
    /// nothing is changed, where other blocks are written, too.
    fn overwrite(
        &self,
        node: &Self::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64>;

    /// Brings blocks of one [`Movable`] up to persistent memory: `content` is what is in them. False, and nothing is
    /// changed, when the version is another one. For a write that was promised it takes what no other may: the write gives the
    /// blocks back. With [`Durability::Lazy`] it takes what the layout keeps for overwriting: then as many others are to go
    /// down. It is durable in any case.
    fn bring_up(
        &self,
        node: &Self::Node,
        from: &Movable,
        content: &[u8],
        durability: Durability,
        modified: Timestamp,
    ) -> Result<bool>;

    /// Has `change` overwrite blocks of one [`Movable`] where they are, on their tier, when there is space for nothing
    /// else. No entry says it, and a crash may leave a part. No other thread changes the file meanwhile, or moves the
    /// blocks. False, and nothing is changed, when the version is another one.
    fn change_below(
        &self,
        node: &Self::Node,
        from: &Movable,
        now: Timestamp,
        change: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool>;

    /// Gives blocks of a draining tier that a file has allocated and not written, of those in the range, other places: on
    /// persistent memory or, where that is full, on tiers that blocks are placed on. Gives their number.
    fn replace_unwritten(&self, node: &Self::Node, tier: u8, start: FileBlock, len: u64) -> Result<u64>;

    /// Whether files have logs, on persistent memory, that [`Tiered::compact_log`] may make smaller.
    fn has_logs(&self) -> bool {
        false
    }

    /// Makes a portion of a file's log as small as what it says allows: the first one, where it is to `begin`, or the one
    /// behind the last. A log that has not changed since it was compacted is passed over at once. It waits for nobody: a
    /// file that is being changed, and a layout that finds no space for the copy, is done with nothing. Nothing that can be
    /// seen of the file changes; atomic and durable when it returns. [`Unsupported`](Kind::Unsupported) where files have no
    /// logs.
    fn compact_log(&self, node: &Self::Node, begin: bool) -> Result<CompactedLog> {
        let _ = (node, begin);
        Err(Error::new(Kind::Unsupported).operation("compact"))
    }

    /// From now on log images are read by this.
    fn read_images_with(&self, reader: Arc<dyn TierReader>) {
        let _ = reader;
    }

    /// A tier can be read now. After a crash that is when the blocks are counted that log images on it name: until then
    /// nothing is free on it, and its images are not read. Once for each mount; later calls do nothing.
    ///
    /// An image that cannot be read, or is damaged, fails for its file alone; nothing is free on the tier then as long as that
    /// file is there, or, where two name one block, until the next mount. Gives what is wrong with the first of them. An error
    /// is that the tier is missing after all.
    fn count_tier(&self, tier: u8) -> Result<Option<Error>> {
        let _ = tier;
        Ok(None)
    }

    /// The image of a file's log, if its blocks are all on one tier, which is one of those that it may be on, none of them is
    /// shared or about to be freed, and memory would be free for it. It waits for nobody: of a file that is being changed
    /// there is none.
    fn log_image(&self, node: &Self::Node, may_be_on: &dyn Fn(u8) -> bool) -> Result<Option<LogImage>> {
        let _ = (node, may_be_on);
        Ok(None)
    }

    /// Puts an image that was written to `run` in the place of the file's log: atomic, and durable when it returns. Gives the
    /// number of blocks of persistent memory that are free now; none, and nothing is changed, when the file has changed since.
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

    /// Where the image of a file's log is, if it has one.
    fn log_image_at(&self, node: &Self::Node) -> Option<TierRun> {
        let _ = node;
        None
    }

    /// Brings a log back to persistent memory, as every change of where blocks are does; false when it was there.
    fn take_log_back(&self, node: &Self::Node) -> Result<bool> {
        let _ = node;
        Ok(false)
    }
}
