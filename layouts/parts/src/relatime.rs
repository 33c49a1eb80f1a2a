//! When a read moves the time of access: relatime, the kernel's default.

use nacre_engine::Timestamp;
use nacre_engine::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::attributes::Attributes;

/// An older time of access is moved by any read.
const OLD_SECS: i64 = 24 * 60 * 60;

/// The state that a read looks at, without a lock: it moves atime when that is not newer than mtime and ctime, or a day
/// old.
pub struct Relatime {
    /// mtime or ctime is not older than atime.
    is_behind: AtomicBool,
    secs: AtomicI64,
}

impl Relatime {
    /// That of an inode with these attributes.
    pub fn of(attributes: &Attributes) -> Relatime {
        Relatime {
            is_behind: AtomicBool::new(is_behind(attributes)),
            secs: AtomicI64::new(attributes.atime.secs),
        }
    }

    /// A read at this time moves atime.
    #[inline]
    pub fn is_due(&self, now: Timestamp) -> bool {
        let is_old = now.secs.saturating_sub(self.secs.load(Ordering::Relaxed)) > OLD_SECS;
        is_old || self.is_behind.load(Ordering::Relaxed)
    }

    /// The attributes were set. Under their lock.
    pub fn set(&self, attributes: &Attributes) {
        self.secs.store(attributes.atime.secs, Ordering::Relaxed);
        self.is_behind.store(is_behind(attributes), Ordering::Relaxed);
    }

    /// mtime or ctime moved on.
    #[inline]
    pub fn changed(&self) {
        // Written once between two reads, so that threads share the line.
        if !self.is_behind.load(Ordering::Relaxed) {
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }
}

fn is_behind(attributes: &Attributes) -> bool {
    attributes.atime <= attributes.mtime || attributes.atime <= attributes.ctime
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_after_a_change_or_a_day_moves_it() {
        let at = |secs| Timestamp::new(secs, 0);
        let attributes = |atime, mtime, ctime| Attributes {
            atime: at(atime),
            mtime: at(mtime),
            ctime: at(ctime),
            ..Attributes::default()
        };
        let relatime = Relatime::of(&attributes(5, 5, 4));
        assert!(relatime.is_due(at(6)), "of the same moment");
        relatime.set(&attributes(6, 5, 4));
        assert!(!relatime.is_due(at(7)) && !relatime.is_due(at(6 + OLD_SECS)));
        assert!(relatime.is_due(at(7 + OLD_SECS)));
        relatime.changed();
        assert!(relatime.is_due(at(7)));
        relatime.set(&attributes(7, 5, 8));
        assert!(relatime.is_due(at(9)));
    }
}
