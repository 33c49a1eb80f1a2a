//! The contract's space: that of PM and of all tiers.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Capabilities, Error, Extents, FileBlock, FsStat, Kind, Place, PlacedExtent, Result, Tiered,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::engine::reclaim::ATTEMPTS;
use crate::fs::TieredFs;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Extents for TieredFs<L, D> {
    fn resolve(&self, node: &L::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.places.layout.resolve(node, start, len)
    }

    fn pin(&self, node: &L::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        // A mapping wants PM. Until it is pinned, others may demote it again.
        for _ in 0..ATTEMPTS {
            let _moved = self.mover().with_reclaim(|| self.places.promote(node, start, len))?;
            let extents = self.places.layout.pin(node, start, len)?;
            if !extents.iter().any(|extent| matches!(extent.place, Place::Tier { .. })) {
                return Ok(extents);
            }
            self.places.layout.unpin(node);
        }
        Err(Error::new(Kind::Busy)
            .operation("map")
            .object(format!("inode {}", self.places.layout.id(node).number))
            .advice("blocks of it move all the time"))
    }

    fn unpin(&self, node: &L::Node) {
        self.places.layout.unpin(node);
        // While it was mapped it stayed, and every scan has passed it by.
        self.engine.scan_again.store(true, Ordering::Relaxed);
    }

    fn stat(&self) -> FsStat {
        self.mover().stat()
    }

    fn index_bytes(&self) -> u64 {
        self.places.layout.index_bytes() + self.places.tiers.pages().bytes()
    }

    fn capabilities(&self) -> Capabilities {
        self.places.layout.capabilities()
    }
}
