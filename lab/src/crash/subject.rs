//! What is explored: a layout on simulated memory.

use std::sync::Arc;

use nacre_engine::{Data, Extents, Result};
use nacre_media::SimPm;

use super::tree::Ctime;

/// A layout, as far as the explorer has to know it.
pub trait Subject: Sync {
    /// The mounted file system. Dropping it is like the death of its process.
    type Fs: Data + Extents;

    /// Its name.
    fn name(&self) -> &'static str;

    /// What becomes of ctime in a crash.
    fn ctime(&self) -> Ctime;

    /// Makes an empty file system.
    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()>;

    /// Mounts, and recovers where that is due.
    fn mount(&self, pm: &Arc<SimPm>) -> Result<Self::Fs>;

    /// Unmounts cleanly.
    fn unmount(&self, fs: Self::Fs) -> Result<()>;

    /// Checks every invariant of the format on an unmounted file system; returns what is wrong. `crashed` says that it
    /// was not unmounted in order, and an interrupted write is no damage.
    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>>;
}
