//! The contract of a layout with tiers, implemented.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    CompactedLog, Copied, CopiedFile, Draw, Error, FileBlock, Kind, LogImage, LogOffload, Movable,
    PlacedExtent, PmUse, Relocate, Result, TierBlocks, TierReader, TierRun, TierTable, Timestamp, WriteAt,
    WriteToTier, Written,
};
use nacre_layout_parts::lifecycle::OverTiers;
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::{
    movable_by_inode, tier_blocks_by_state, tier_paths_in_superblock, tier_table_by_state,
};
use nacre_media::{Durable, Pm};

use crate::alloc::Purpose;
use crate::inode::Node;
use crate::mount::ShadowFs;
use crate::relocate::AsWritten;

impl<P: Pm + 'static> OverTiers for ShadowFs<P> {
    tier_paths_in_superblock!();
}

impl<P: Pm + 'static> TierTable for ShadowFs<P> {
    tier_table_by_state!();

    /// The trees on PM name all blocks that are in use.
    fn count_tier(&self, _: u8) -> Result<Option<Error>> {
        Ok(None)
    }
}

impl<P: Pm + 'static> TierBlocks for ShadowFs<P> {
    tier_blocks_by_state!();

    fn pm_use(&self) -> PmUse {
        self.shared.reclaim_buried();
        PmUse {
            unused: self.shared.alloc.unreserved_blocks(),
            data: self.shared.data_on_pm.load(Ordering::Relaxed),
        }
    }

    fn put_back_on(&self, run: TierRun) {
        self.shared.tiers.put_back(run);
    }

    fn free_on(&self, run: TierRun) {
        self.shared.free_on_tier(run);
    }

    fn end_reads(&self, ticket: u64) {
        let tiers = &self.shared.tiers;
        tiers.end_reads(ticket).into_iter().for_each(|run| tiers.put_back(run));
    }
}

impl<P: Pm + 'static> Relocate for ShadowFs<P> {
    type Proof = Durable;

    movable_by_inode!();

    fn resolve_allocated(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.resolve_allocated(&node.inode, start, len)
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
