//! What a mount is asked and told beyond files: the attributes `system.nacre.NAME`.

use nacre_engine::{InodeId, Result};

/// Answers for a mount, and does what it is told. It is called by threads that serve requests: whatever takes long is to be
/// asked for in parts, and nothing may ask the mount itself.
pub trait Control: Send + Sync {
    /// The value of the attribute `system.nacre.NAME`, which is JSON and at most 64 KiB, for whoever may read attributes of
    /// this file; `may_tell` is that he may also set them. `None` when there is no such attribute.
    fn ask(&self, file: InodeId, name: &str, may_tell: bool) -> Option<Result<String>>;

    /// Does what setting `system.nacre.NAME` of this file says, for root or the user that mounted. `None` when there is no
    /// such attribute.
    fn tell(&self, file: InodeId, name: &str, value: &str) -> Option<Result<()>>;

    /// Tells devices which bytes of them nobody uses, in runs of at least so many, as fstrim(8) asks; gives how many those are.
    /// For root or the user that mounted, and not in
    /// parts: it may take long. `None` where no device can be told.
    fn trim(&self, least: u64) -> Option<Result<u64>>;
}
