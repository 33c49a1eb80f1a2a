//! The kernel's caches of this mount, and how the kernel hears of changes that pass it by.
//!
//! The kernel keeps names, attributes and pages as good as for ever ([`LIFETIME`]): each change passes through it. Four
//! things do not, and each has its remedy here:
//!
//! - The server takes set-id bits away when contents change. The kernel would go on with the mode that it has, for exec,
//!   too. So attributes of files with such bits are never kept ([`lifetime`]).
//! - Commands of chattr(1) change ctime, and a copy within the server changes atime of its source. The kernel is told to
//!   ask again ([`Kernel::attributes_changed`]).
//! - Pages that a program has changed through a mapping, or that wait with `writeback`, are newer than the layout. An
//!   answer from the layout has them written first ([`Kernel::write_pages`]).
//! - Writeback that fails is told by fsync and close, which some programs never ask. The next write to that file is told,
//!   too, where the kernel buffers writes ([`Kernel::failed`]).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use fuser::{Errno, FileAttr, FileType, INodeNo, Notifier};
use nacre_engine::Timestamp;
use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};

/// How long the kernel may keep names, their absence, and attributes: as good as for ever, for every change passes
/// through this mount.
pub(crate) const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Files whose failed writeback waits for a write that it can be told to; of more than these some are not told so.
const MAX_UNTOLD: usize = 1024;

/// Files whose times are remembered. Their pages come within moments, so that all may be forgotten at more.
const MAX_MTIMES: usize = 4096;

/// How long the kernel may keep these attributes.
pub(crate) fn lifetime(attr: &FileAttr) -> Duration {
    let has_set_id = attr.kind == FileType::RegularFile && u32::from(attr.perm) & 0o6000 != 0;
    if has_set_id { Duration::ZERO } else { LIFETIME }
}

/// The kernel's side of one mount. Without a connection that takes messages nothing is sent.
#[derive(Default)]
pub(crate) struct Kernel {
    notifier: OnceLock<Notifier>,
    untold: Mutex<HashMap<INodeNo, Errno>>,
    /// There may be such a file.
    has_untold: AtomicBool,
    /// The times that the kernel gave files which it wrote lately; see [`Kernel::mtime`].
    mtimes: Mutex<HashMap<INodeNo, Timestamp>>,
}

impl Kernel {
    /// From here on the kernel is told through this connection.
    pub(crate) fn connect(&self, notifier: Notifier) {
        // A mount has one connection.
        let _ = self.notifier.set(notifier);
    }

    /// Has the kernel ask for attributes of this node again. It waits for no other request.
    pub(crate) fn attributes_changed(&self, id: INodeNo) {
        self.invalidate(id, -1, 0);
    }

    /// Has the kernel write what it holds of these bytes of a file and the layout does not have, and waits for that. Its pages
    /// of the range go. An end of `u64::MAX` is that of all files.
    ///
    /// The pages come as requests of their own, and so a thread that serves requests must never wait here.
    pub(crate) fn write_pages(&self, id: INodeNo, bytes: Range<u64>) {
        let limit = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let start = limit(bytes.start);
        // A length of 0 stands for all the rest.
        let len = if bytes.end == u64::MAX { 0 } else { limit(bytes.end) - start };
        if len >= 0 && bytes.start < bytes.end {
            self.invalidate(id, start, len);
        }
    }

    fn invalidate(&self, id: INodeNo, offset: i64, len: i64) {
        if let Some(notifier) = self.notifier.get() {
            // It fails for a node that the kernel does not know, and when the connection ends: nothing is kept then.
            let _ = notifier.inval_inode(id, offset, len);
        }
    }

    /// Writeback of a file failed. Buffered writes ask for attributes that are not kept, with their handle, and nothing
    /// else does where the kernel buffers: so the next one of this file can be told.
    pub(crate) fn failed(&self, id: INodeNo, why: Errno) {
        let mut untold = self.untold.lock();
        if untold.len() < MAX_UNTOLD || untold.contains_key(&id) {
            untold.insert(id, why);
            self.has_untold.store(true, Ordering::Release);
        }
        drop(untold);
        self.attributes_changed(id);
    }

    /// The failure that a write to this file is to be told, once.
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

    /// The kernel gave a file this time, by its own clock or as utimensat(2) asked.
    pub(crate) fn note_mtime(&self, id: INodeNo, mtime: Timestamp) {
        let mut mtimes = self.mtimes.lock();
        if mtimes.len() >= MAX_MTIMES {
            mtimes.clear();
        }
        mtimes.insert(id, mtime);
    }

    /// The time that a file has for the kernel, where it buffers writes. Pages may come behind the request that sets their
    /// time: they must not set a later one, which the kernel would never correct and a remount show.
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
        assert_eq!(kernel.take_failure(INodeNo(7)), Some(Errno::EFBIG));
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
