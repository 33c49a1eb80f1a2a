//! The hours of the day in which blocks move by themselves. Outside them the mover is as if paused: direct reclaim and
//! requested placements do not wait for them.

use nacre_engine::Tiered;
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::{Hours, Minute};

use crate::fs::MoverFs;

/// When the next window of the hours begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextWindow {
    /// In milliseconds since 1970.
    pub at_ms: u64,
    /// In local time.
    pub minute: Minute,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Whether blocks may move by themselves at the time of the last tick. Before the first tick nothing moves anyway,
    /// and status queries must not report the hours of 1970.
    pub(crate) fn is_in_hours(&self) -> bool {
        let (hours, now_ms) = (self.hours(), self.sink.time_ms());
        now_ms == 0 || hours.is_always() || hours.is_open(Minute::of(now_ms, (self.ahead_s)(now_ms)))
    }

    /// When they may again; `None` when they may now.
    pub(crate) fn next_window(&self) -> Option<NextWindow> {
        if self.is_in_hours() {
            return None;
        }
        let at_ms = self.hours().opens_ms(self.sink.time_ms(), &self.ahead_s)?;
        Some(NextWindow { at_ms, minute: Minute::of(at_ms, (self.ahead_s)(at_ms)) })
    }

    pub(crate) fn hours(&self) -> Hours {
        *self.hours.lock()
    }
}
