//! Data and space of the contract, through the cache.

use std::io::IoSlice;

use nacre_engine::{
    BelowBuffer, Capabilities, Data, Durability, Extents, FallocateMode, FileBlock, FsStat, PlacedExtent,
    Result, SeekTo, Timestamp, WriteAt,
};

use crate::fs::CacheFs;

impl<L: BelowBuffer + Extents> Data for CacheFs<L> {
    #[inline]
    fn read(&self, node: &Self::Node, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize> {
        self.shared.read(node, offset, buf, now)
    }

    fn write(
        &self,
        node: &Self::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        self.shared.write(node, at, data, durability, now)
    }

    fn fallocate(
        &self,
        node: &Self::Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        self.shared.with_space(|| self.shared.fallocate(node, mode, offset, len, now))
    }

    fn seek(&self, node: &Self::Node, offset: u64, to: SeekTo) -> Result<u64> {
        self.shared.seek(node, offset, to)
    }

    fn sync(&self, node: &Self::Node) -> Result<()> {
        self.shared.sync(node)
    }

    fn closed(&self, node: &Self::Node) -> Result<()> {
        self.shared.closed(node)
    }

    fn sync_all(&self) -> Result<()> {
        self.shared.sync_all()
    }
}

impl<L: BelowBuffer + Extents> Extents for CacheFs<L> {
    fn resolve(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.flush_node(node)?;
        self.shared.layout.resolve(&node.inner, start, len)
    }

    fn pin(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.bypass(node)?;
        self.shared.layout.pin(&node.inner, start, len).inspect_err(|_| self.end_bypass(node))
    }

    fn unpin(&self, node: &Self::Node) {
        self.shared.layout.unpin(&node.inner);
        self.end_bypass(node);
    }

    fn stat(&self) -> FsStat {
        self.shared.stat()
    }

    fn index_bytes(&self) -> u64 {
        let shared = &*self.shared;
        shared.layout.index_bytes() + shared.pool.bytes() + shared.table.bytes()
    }

    fn capabilities(&self) -> Capabilities {
        // A write of several blocks may reach media in several operations.
        Capabilities { durable_on_return: false, atomic_write: false, ..self.shared.layout.capabilities() }
    }
}
