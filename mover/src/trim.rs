//! Telling the devices of tiers which blocks nobody uses, as fstrim(8) asks of a file system.
//!
//! Blocks are taken before the device is told, and given back behind that: or else it might forget what somebody writes
//! meanwhile. What is free may be forgotten at any time, after a crash, too: it could as well have been written for somebody
//! else.

use nacre_engine::{BLOCK_SIZE, Block, Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::fs::MoverFs;

/// Blocks that are taken at once: who looks for room finds so much less for as long as the device takes.
const AT_ONCE: u64 = (64 << 20) / BLOCK_SIZE;
/// Of what is free this part at the most, so that a tier that is nearly full does not seem to be full.
const SHARE: u64 = 16;

/// How far a tier was trimmed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Bytes that its device was told of: none where it has no use for that.
    pub bytes: u64,
    /// Where the next call goes on; `None` where all was looked at.
    pub next: Option<Block>,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Tells the device of a tier which blocks nobody uses, from one on, as far as `goes_on` says. Runs of fewer bytes than
    /// `least` are left out; one of more than what is taken at once is several.
    ///
    /// [`DeviceLost`](nacre_engine::Kind::DeviceLost) where the device is missing, [`Io`](nacre_engine::Kind::Io) or
    /// [`Media`](nacre_engine::Kind::Media) where it fails.
    pub fn trim(
        &self,
        tier: u8,
        from: Block,
        least: u64,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Trimmed> {
        let mut done = Trimmed { bytes: 0, next: Some(from) };
        while let Some(from) = done.next.filter(|_| goes_on()) {
            let most = (self.layout.tier_space(tier)?.free / SHARE).clamp(1, AT_ONCE);
            let Some(run) = self.layout.take_free_on(tier, from, most)? else {
                done.next = None;
                break;
            };
            // One that ends where as much was taken as may be goes on behind that, and is as long as anybody wants.
            let is_meant = run.len == most || run.len * BLOCK_SIZE >= least;
            let told = if is_meant { self.tiers.discard(run) } else { Ok(false) };
            self.layout.free_on(run);
            if told.map_err(|error| error.operation("trim"))? {
                done.bytes += run.len * BLOCK_SIZE;
            }
            done.next = Some(Block(run.start.0 + run.len));
        }
        Ok(done)
    }
}
