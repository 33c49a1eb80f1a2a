//! The contract's data: reads and writes wherever blocks are.

use std::io::IoSlice;

use nacre_engine::{
    BelowBuffer, Data, Draw, Durability, FallocateMode, Reservation, Result, SeekTo, Tiered, Timestamp,
    WriteAt, WriteShape,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::fs::TieredFs;
use crate::stats::predictors::blocks_of;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Data for TieredFs<L, D> {
    fn read(&self, node: &L::Node, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize> {
        self.files().read(node, offset, buf, now)
    }

    fn write(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        self.files().write(node, at, data, durability, now)
    }

    fn fallocate(
        &self,
        node: &L::Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        self.files().fallocate(node, mode, offset, len, now)
    }

    fn seek(&self, node: &L::Node, offset: u64, to: SeekTo) -> Result<u64> {
        self.places.layout.seek(node, offset, to)
    }

    fn sync(&self, node: &L::Node) -> Result<()> {
        if self.places.predicts() {
            self.stats.predictors.synced(self.places.layout.id(node));
        }
        self.places.layout.sync(node)
    }

    fn closed(&self, node: &L::Node) -> Result<()> {
        self.places.layout.closed(node)
    }

    fn sync_all(&self) -> Result<()> {
        self.places.layout.sync_all()
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> BelowBuffer for TieredFs<L, D> {
    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        self.places.reserve_for(shape)
    }

    fn write_back(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        self.files().write_back(node, offset, data, Draw::Reserved(reservation), now)
    }

    fn write_back_times(
        &self,
        node: &L::Node,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        let set = || self.places.layout.write_back_times(node, mtime, atime, reservation, now);
        self.files().with_edges(node, 1, Draw::Reserved(reservation), |_| Vec::new(), set)
    }

    fn goes_to_disk(&self, node: &L::Node, offset: u64, len: u64) -> bool {
        self.files().is_for_disk(node, offset, len)
    }

    fn accepted(&self, node: &L::Node, offset: u64, len: u64) {
        if self.places.predicts() {
            self.stats.predictors.wrote(self.places.layout.id(node), blocks_of(offset, len), false);
        }
    }

    fn expect_write(&self, node: &L::Node) -> Result<()> {
        self.mover().with_reclaim(|| self.places.layout.expect_write(node))
    }

    fn give_up_dram(&self) {
        self.places.tiers.pages().give_up();
    }
}
