//! The contract of a layout with tiers, and of a layer below a write buffer.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, CompactedLog, Copied, CopiedFile, Draw, Error, FileBlock, LogImage, LogOffload,
    Movable, PlacedExtent, PmUse, Relocate, Reservation, Result, TierBlocks, TierReader, TierRun, TierTable,
    Timestamp, WriteAt, WriteShape, WriteToTier, Written,
};
use nacre_layout_parts::lifecycle::OverTiers;
use nacre_layout_parts::{
    movable_by_inode, tier_blocks_by_state, tier_paths_in_superblock, tier_table_by_state,
    writes_back_by_inode,
};
use nacre_media::{Durable, Pm};

use crate::alloc::Purpose;
use crate::format::MAX_FILE_SIZE;
use crate::inode::Node;
use crate::layout::CAPABILITIES;
use crate::mount::LogFs;
use crate::publish::AsWritten;

impl<P: Pm + 'static> OverTiers for LogFs<P> {
    tier_paths_in_superblock!();
}

impl<P: Pm + 'static> TierTable for LogFs<P> {
    tier_table_by_state!();

    fn count_tier(&self, tier: u8) -> Result<Option<Error>> {
        self.shared.count_tier(tier)
    }
}

impl<P: Pm + 'static> TierBlocks for LogFs<P> {
    tier_blocks_by_state!();

    fn pm_use(&self) -> PmUse {
        let fs = &self.shared;
        fs.free_all_now();
        let data = fs.device_blocks - fs.first_data_block - fs.alloc.free_blocks();
        PmUse { unused: fs.alloc.unreserved_blocks(), data }
    }

    fn put_back_on(&self, run: TierRun) {
        self.shared.tiers.found_free(run);
    }

    fn free_on(&self, run: TierRun) {
        self.shared.tiers.free(run);
    }

    fn end_reads(&self, ticket: u64) {
        self.shared.tiers.end_reads(ticket);
    }
}

impl<P: Pm + 'static> Relocate for LogFs<P> {
    type Proof = Durable;

    movable_by_inode!();

    fn resolve_allocated(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.resolve_to(&node.inode, start, len, MAX_FILE_SIZE / BLOCK_SIZE)
    }

    fn publish(&self, files: &[CopiedFile<'_, Node>], proof: Durable) -> Vec<Result<Vec<Copied>>> {
        let publish = |file: &CopiedFile<'_, Node>| {
            self.writable()?.publish(&file.node.inode, file.copied, file.modified, proof.again())
        };
        files.iter().map(publish).collect()
    }

    fn bring_up(
        &self,
        node: &Node,
        from: &Movable,
        content: &[u8],
        draw: Draw<'_>,
        modified: Timestamp,
    ) -> Result<bool> {
        self.writable()?.bring_up(&node.inode, from, content, Purpose::of_write(draw), modified)
    }
}

impl<P: Pm + 'static> WriteToTier for LogFs<P> {
    fn publish_write(
        &self,
        node: &Node,
        written: &[Written],
        size: u64,
        draw: Draw<'_>,
        now: Timestamp,
        proof: Durable,
    ) -> Result<()> {
        let write = AsWritten { purpose: Purpose::of_write(draw), now, has: None };
        self.writable()?.publish_write(&node.inode, written, size, write, proof).map(drop)
    }

    fn publish_first_write(
        &self,
        node: &Node,
        written: &[Written],
        size: u64,
        now: Timestamp,
        proof: Durable,
        joins: bool,
    ) -> Result<bool> {
        let has = Some(if joins { Purpose::Overwrite } else { Purpose::Pieces });
        let write = AsWritten { purpose: Purpose::Data, now, has };
        self.writable()?.publish_write(&node.inode, written, size, write, proof)
    }

    fn overwrite(
        &self,
        node: &Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<u64> {
        self.writable()?.write_or_borrow(&node.inode, at, data, Purpose::of_write(draw), now, true)
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

impl<P: Pm + 'static> LogOffload for LogFs<P> {
    fn has_logs(&self) -> bool {
        true
    }

    fn compact_log(&self, node: &Node, begin: bool) -> Result<CompactedLog> {
        self.writable()?.compact_log(&node.inode, begin)
    }

    fn read_images_with(&self, reader: Arc<dyn TierReader>) {
        *self.shared.image_reader.write() = Some(reader);
    }

    fn log_image(&self, node: &Node, may_be_on: &dyn Fn(u8) -> bool) -> Result<Option<LogImage>> {
        self.writable()?.log_image(&node.inode, may_be_on)
    }

    fn publish_log_image(
        &self,
        node: &Node,
        image: &LogImage,
        run: TierRun,
        proof: Durable,
    ) -> Result<Option<u64>> {
        self.writable()?.publish_log_image(&node.inode, image, run, proof)
    }

    fn log_image_at(&self, node: &Node) -> Option<TierRun> {
        node.inode.image.get().map(|image| image.run)
    }

    fn take_log_back(&self, node: &Node) -> Result<bool> {
        self.writable()?.take_log_back(&node.inode)
    }
}

/// A layer above decides the tiers of writes, and borrows DRAM.
impl<P: Pm + 'static> BelowBuffer for LogFs<P> {
    writes_back_by_inode!(Purpose);

    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        let fs = self.writable()?;
        let blocks = CAPABILITIES.write_cost.of(shape);
        fs.with_deferred_frees(|| fs.alloc.reserve_blocks(blocks))
    }

    fn goes_to_disk(&self, _: &Node, _: u64, _: u64) -> bool {
        false
    }

    fn accepted(&self, _: &Node, _: u64, _: u64) {}

    fn expect_write(&self, node: &Node) -> Result<()> {
        if node.inode.image.is_there() { self.writable()?.expect_write(&node.inode) } else { Ok(()) }
    }

    fn give_up_dram(&self) {}
}
