//! Queries and commands of a mount through the attributes `system.nacre.NAME`.

use nacre_engine::{InodeId, Result};

/// The queries and commands of a mount. Threads that serve requests call it. Long work must be asked for in parts, and
/// it must not ask the mount itself.
pub trait Control: Send + Sync {
    /// The value of the attribute `system.nacre.NAME`, JSON of at most 64 KiB. The caller may read attributes of this
    /// file. `may_tell` is true if the caller may also set them. `None` if there is no such attribute.
    fn ask(&self, file: InodeId, name: &str, may_tell: bool) -> Option<Result<String>>;

    /// Runs the command of setting `system.nacre.NAME` of this file, for root or the user that mounted. `None` if
    /// there is no such attribute.
    fn tell(&self, file: InodeId, name: &str, value: &str) -> Option<Result<()>>;

    /// Discards unused bytes of devices, in runs of at least `least` bytes, as fstrim(8) asks, and returns their
    /// number. For root or the user that mounted. It is not split into parts and may take long. `None` if no device
    /// supports it.
    fn trim(&self, least: u64) -> Option<Result<u64>>;

    /// The label of the file system, empty if it has none.
    fn label(&self) -> Result<String>;
}
