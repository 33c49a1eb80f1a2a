//! The contract of a layout with tiers, implemented.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Block, CompactedLog, Copied, CopiedFile, Draw, Error, FileBlock, FreeRun, Kind, LogImage, LogOffload,
    Movable, PlacedExtent, PmUse, Relocate, Result, Tier, TierBlocks, TierChange, TierRead, TierReader,
    TierRun, TierSpace, TierTable, Timestamp, WriteAt, WriteToTier, Written,
};
use nacre_layout_parts::lifecycle::OverTiers;
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::tier_paths::{known, note_path};
use nacre_media::{Durable, Pm};

use crate::alloc::Purpose;
use crate::inode::Node;
use crate::mount::ShadowFs;
use crate::relocate::AsWritten;

impl<P: Pm + 'static> OverTiers for ShadowFs<P> {
    fn is_read_only(&self) -> bool {
        self.shared.read_only
    }

    fn tier_path(&self, number: u8) -> Option<PathBuf> {
        let mut known = known(&self.shared.superblock.lock()).into_iter();
        known.find_map(|(other, path)| (other == number).then_some(path))
    }

    fn note_tier_path(&self, number: u8, path: &Path) -> Result<bool> {
        let fs = self.writable()?;
        note_path(&mut fs.superblock.lock(), &*fs.pm, number, path)
    }
}

impl<P: Pm + 'static> TierTable for ShadowFs<P> {
    fn tiers(&self) -> Vec<Tier> {
        self.shared.tier_list()
    }

    fn change_tier(&self, change: TierChange) -> Result<()> {
        self.writable()?.change_tier(change)
    }

    fn tier_space(&self, tier: u8) -> Result<TierSpace> {
        self.shared.tiers.space(tier)
    }

    fn set_unusable(&self, tiers: &[u8]) {
        self.shared.tiers.set_unusable(tiers);
    }

    /// The trees on PM name all blocks that are in use.
    fn count_tier(&self, _: u8) -> Result<Option<Error>> {
        Ok(None)
    }
}

impl<P: Pm + 'static> TierBlocks for ShadowFs<P> {
    fn read_or_resolve(
        &self,
        node: &Node,
        offset: u64,
        buf: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<TierRead> {
        self.shared.read_or_resolve(&node.inode, offset, buf, now)
    }

    fn pm_use(&self) -> PmUse {
        self.shared.reclaim_buried();
        PmUse {
            unused: self.shared.alloc.unreserved_blocks(),
            data: self.shared.data_on_pm.load(Ordering::Relaxed),
        }
    }

    fn allocate_on(&self, tier: u8, goal: Option<Block>, blocks: u64) -> Result<Vec<TierRun>> {
        self.writable()?.tiers.allocate(tier, goal, blocks)
    }

    fn take_free_on(&self, tier: u8, from: Block, least: u64, most: u64) -> Result<FreeRun> {
        self.writable()?.tiers.take_free(tier, from, least, most)
    }

    fn put_back_on(&self, run: TierRun) {
        self.shared.tiers.put_back(run);
    }

    fn free_on(&self, run: TierRun) {
        self.shared.free_on_tier(run);
    }

    fn begin_reads(&self) -> u64 {
        self.shared.tiers.begin_reads()
    }

    fn end_reads(&self, ticket: u64) {
        let tiers = &self.shared.tiers;
        tiers.end_reads(ticket).into_iter().for_each(|run| tiers.put_back(run));
    }
}

impl<P: Pm + 'static> Relocate for ShadowFs<P> {
    type Proof = Durable;

    fn resolve_allocated(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.resolve_allocated(&node.inode, start, len)
    }

    fn resolve_movable(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<Movable>> {
        self.shared.resolve_movable(&node.inode, start, len)
    }

    fn resolve_unwritten(&self, node: &Node, most: u64) -> Result<Vec<Movable>> {
        self.shared.resolve_unwritten(&node.inode, most)
    }

    fn publish(&self, files: &[CopiedFile<'_, Node>], proof: Durable) -> Vec<Result<Vec<Copied>>> {
        let publish = |file: &CopiedFile<'_, Node>| {
            self.writable()?.publish(&file.node.inode, file.copied, proof.again())
        };
        files.iter().map(publish).collect()
    }

    fn bring_up(
        &self,
        node: &Node,
        from: &Movable,
        content: &[u8],
        draw: Draw<'_>,
        _: Timestamp,
    ) -> Result<bool> {
        self.writable()?.bring_up(&node.inode, from, content, Purpose::of_write(draw))
    }

    fn replace_unwritten(&self, node: &Node, tier: u8, start: FileBlock, len: u64) -> Result<u64> {
        self.writable()?.replace_unwritten(&node.inode, tier, start, len)
    }
}

impl<P: Pm + 'static> WriteToTier for ShadowFs<P> {
    fn publish_write(
        &self,
        node: &Node,
        written: &[Written],
        size: u64,
        draw: Draw<'_>,
        now: Timestamp,
        proof: Durable,
    ) -> Result<()> {
        let write = AsWritten { purpose: Purpose::of_write(draw), now, has: false };
        self.writable()?.publish_write(&node.inode, written, size, write, proof).map(drop)
    }

    fn publish_first_write(
        &self,
        node: &Node,
        written: &[Written],
        size: u64,
        now: Timestamp,
        proof: Durable,
        _: bool,
    ) -> Result<bool> {
        let write = AsWritten { purpose: Purpose::Data, now, has: true };
        self.writable()?.publish_write(&node.inode, written, size, write, proof)
    }

    /// As an ordinary write, which takes the reserve for blocks in place of others.
    fn overwrite(
        &self,
        node: &Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<u64> {
        self.writable()?.write(&node.inode, at, data, Purpose::of_write(draw), now)
    }

    fn change_below(
        &self,
        node: &Node,
        from: &Movable,
        now: Timestamp,
        change: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        self.writable()?.change_below(&node.inode, from, now, change)
    }
}

/// There are no logs: trees of blocks stay on PM.
impl<P: Pm + 'static> LogOffload for ShadowFs<P> {
    fn has_logs(&self) -> bool {
        false
    }

    fn compact_log(&self, _: &Node, _: bool) -> Result<CompactedLog> {
        Err(Error::new(Kind::Unsupported))
    }

    /// There are no images; a scrub reads blocks of files.
    fn read_images_with(&self, reader: Arc<dyn TierReader>) {
        *self.shared.tier_reader.write() = Some(reader);
    }

    fn log_image(&self, _: &Node, _: &dyn Fn(u8) -> bool) -> Result<Option<LogImage>> {
        Ok(None)
    }

    fn publish_log_image(&self, _: &Node, _: &LogImage, _: TierRun, _: Durable) -> Result<Option<u64>> {
        Ok(None)
    }

    fn log_image_at(&self, _: &Node) -> Option<TierRun> {
        None
    }

    fn take_log_back(&self, _: &Node) -> Result<bool> {
        Ok(false)
    }
}
