//! The kernel's caches of this mount, and notices to the kernel of changes that bypass it.
//!
//! The kernel keeps names, attributes and pages practically for ever ([`LIFETIME`]), because each change passes
//! through it. Four things do not, and each has its remedy here:
//!
//! - The server drops set-id bits when contents change. The kernel would keep the old mode, for exec, too. Attributes
//!   of files with such bits are therefore never cached ([`lifetime`]).
//! - Commands of chattr(1) change ctime, and a copy within the server changes atime of its source. The kernel is told
//!   to ask again ([`Kernel::attributes_changed`]).
//! - Pages that a program has changed through a mapping, or that wait with `writeback`, are newer than the layout.
//!   Before the layout answers, they are written ([`Kernel::write_pages`]).
//! - A failed writeback is reported by fsync and close, which some programs never call. If the kernel buffers writes,
//!   the next write to that file reports it, too. A rename over another file does in any case ([`Kernel::failed`]).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use fuser::{Errno, FileAttr, FileType, INodeNo, Notifier};
use nacre_engine::Timestamp;
use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};

/// The time for which the kernel may cache names, their absence, and attributes: practically for ever, because every
/// change passes through this mount.
pub(crate) const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The largest number of files with a failed writeback that the next write or rename reports. Further failures are not
/// reported so.
const MAX_UNTOLD: usize = 1024;

/// The largest number of stored times of files. Pages follow their time within moments, so beyond this all are
/// dropped.
const MAX_MTIMES: usize = 4096;

/// The time for which the kernel may cache these attributes.
pub(crate) fn lifetime(attr: &FileAttr) -> Duration {
    let has_set_id = attr.kind == FileType::RegularFile && u32::from(attr.perm) & 0o6000 != 0;
    if has_set_id { Duration::ZERO } else { LIFETIME }
}

/// The kernel's side of one mount. Without a connection for notices nothing is sent.
#[derive(Default)]
pub(crate) struct Kernel {
    notifier: OnceLock<Notifier>,
    untold: Mutex<HashMap<INodeNo, Errno>>,
    /// Whether `untold` may have an entry.
    has_untold: AtomicBool,
    /// The times that the kernel gave to files that it wrote lately; see [`Kernel::mtime`].
    mtimes: Mutex<HashMap<INodeNo, Timestamp>>,
}

impl Kernel {
    /// Sets the connection for notices to the kernel.
    pub(crate) fn connect(&self, notifier: Notifier) {
        // A mount has one connection.
        let _ = self.notifier.set(notifier);
    }

    /// Makes the kernel ask for attributes of this node again. It waits for no other request.
    pub(crate) fn attributes_changed(&self, id: INodeNo) {
        self.invalidate(id, -1, 0);
    }

    /// Makes the kernel write its newer pages of these bytes of a file, waits for that, and drops its pages of the
    /// range. An end of `u64::MAX` is the end of any file.
    ///
    /// The pages come as requests of their own, so a thread that serves requests must never wait here.
    pub(crate) fn write_pages(&self, id: INodeNo, bytes: Range<u64>) {
        let limit = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let start = limit(bytes.start);
        // A length of 0 stands for the whole rest.
        let len = if bytes.end == u64::MAX { 0 } else { limit(bytes.end) - start };
        if len >= 0 && bytes.start < bytes.end {
            self.invalidate(id, start, len);
        }
    }

    fn invalidate(&self, id: INodeNo, offset: i64, len: i64) {
        if let Some(notifier) = self.notifier.get() {
            // It fails for a node that the kernel does not know, and at the end of the connection. The kernel caches
            // nothing then.
            let _ = notifier.inval_inode(id, offset, len);
        }
    }

    /// Notes a failed writeback of a file, for the next buffered write or a rename to report. If the kernel buffers
    /// writes, only buffered writes ask for uncached attributes with their handle.
    pub(crate) fn failed(&self, id: INodeNo, why: Errno) {
        let mut untold = self.untold.lock();
        if untold.len() < MAX_UNTOLD || untold.contains_key(&id) {
            untold.insert(id, why);
            self.has_untold.store(true, Ordering::Release);
        }
        drop(untold);
        self.attributes_changed(id);
    }

    /// The noted failure of this file. It stays noted.
    pub(crate) fn failure(&self, id: INodeNo) -> Option<Errno> {
        if !self.has_untold.load(Ordering::Acquire) {
            return None;
        }
        self.untold.lock().get(&id).copied()
    }

    /// The failure that a write to this file must report, once.
    #[inline]
    pub(crate) fn take_failure(&self, id: INodeNo) -> Option<Errno> {
        if !self.has_untold.load(Ordering::Acquire) {
            return None;
        }
        let mut untold = self.untold.lock();
        let why = untold.remove(&id);
        self.has_untold.store(!untold.is_empty(), Ordering::Release);
        why
    }

    /// Notes a time that the kernel gave a file, by its own clock or as utimensat(2) asked.
    pub(crate) fn note_mtime(&self, id: INodeNo, mtime: Timestamp) {
        let mut mtimes = self.mtimes.lock();
        if mtimes.len() >= MAX_MTIMES {
            mtimes.clear();
        }
        mtimes.insert(id, mtime);
    }

    /// The time of a file in the kernel, if it buffers writes. Pages may arrive after the request that sets their
    /// time. They must not set a later time: the kernel would never correct it, and a remount would show it.
    pub(crate) fn mtime(&self, id: INodeNo) -> Option<Timestamp> {
        self.mtimes.lock().get(&id).copied()
    }

    /// The kernel does not know this node any more.
    pub(crate) fn forgotten(&self, id: INodeNo, buffers: bool) {
        let _ = self.take_failure(id);
        if buffers {
            self.mtimes.lock().remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use fuser::{Errno, INodeNo};

    use super::{Kernel, MAX_UNTOLD};

    #[test]
    fn a_failure_is_told_once() {
        let kernel = Kernel::default();
        assert_eq!(kernel.take_failure(INodeNo(7)), None);
        kernel.failed(INodeNo(7), Errno::ENOSPC);
        kernel.failed(INodeNo(7), Errno::EFBIG);
        kernel.failed(INodeNo(8), Errno::ENOSPC);
        assert_eq!(kernel.failure(INodeNo(7)), Some(Errno::EFBIG));
        assert_eq!(kernel.take_failure(INodeNo(7)), Some(Errno::EFBIG));
        assert_eq!((kernel.failure(INodeNo(7)), kernel.failure(INodeNo(8))), (None, Some(Errno::ENOSPC)));
        assert_eq!(kernel.take_failure(INodeNo(7)), None);
        kernel.forgotten(INodeNo(8), false);
        assert_eq!(kernel.take_failure(INodeNo(8)), None);
    }

    #[test]
    fn failures_are_bounded() {
        let kernel = Kernel::default();
        (0..2 * MAX_UNTOLD as u64).for_each(|id| kernel.failed(INodeNo(id), Errno::ENOSPC));
        assert_eq!(kernel.untold.lock().len(), MAX_UNTOLD);
        kernel.failed(INodeNo(0), Errno::EIO);
        assert_eq!(kernel.take_failure(INodeNo(0)), Some(Errno::EIO));
    }
}
