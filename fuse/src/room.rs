//! Waiting for space that is about to be given back.
//!
//! An unlinked file keeps its space until the kernel forgets its inode, and FORGET comes after the reply to UNLINK.
//! With several serving threads, one may find no space for a program's next write while another is about to read that
//! FORGET. Other file systems have freed the space when unlink(2) returns, so ENOSPC would be wrong then. The server
//! cannot know whether a FORGET is on its way, because a program may keep the file open. It therefore waits for it
//! shortly, and once after each removal of a name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nacre_engine::{Result, Step, with_room};

/// Milliseconds between attempts. Their sum exceeds the wait of a thread for a busy core, and is small beside the work
/// of a program on a full device.
const WAITS: [u64; Step::Forgets.tries() as usize] = [1, 2, 4, 8, 16, 20];

/// The waits of one operation.
struct Waits {
    /// The number of removals when they began.
    removals: u64,
    /// The waits that are left.
    pauses: &'static [u64],
}

/// The state that tells whether removed files may still give space back.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Names removed so far.
    removals: AtomicU64,
    /// The value of `removals` at the last wait without success.
    waited_for: AtomicU64,
}

impl Room {
    /// A name was removed, or replaced by another.
    pub(crate) fn removed(&self) {
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs `attempt`, which changes nothing if it finds no space, and repeats it while space may come.
    pub(crate) fn find<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let mut waits = None;
        let result = with_room(Step::Forgets, attempt, |_| Ok(self.wait(&mut waits)));
        if let Some(Waits { removals, pauses }) = waits
            && pauses.is_empty()
            && result.is_err()
        {
            self.waited_for.fetch_max(removals, Ordering::Relaxed);
        }
        result
    }

    /// Waits once more. False if all removals were waited for before.
    #[cold]
    fn wait(&self, waits: &mut Option<Waits>) -> bool {
        let removals = self.removals.load(Ordering::Relaxed);
        let Waits { removals, pauses } = waits.get_or_insert(Waits { removals, pauses: &WAITS });
        let Some((pause, rest)) = pauses.split_first() else { return false };
        if *removals == self.waited_for.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(*pause));
        *pauses = rest;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nacre_engine::{Error, Kind, Result};

    use super::{Room, WAITS};

    /// There is space at attempt `at`, counted from 0; how often was it tried?
    fn attempts(room: &Room, at: u32) -> (Result<u32>, u32) {
        let tried = Cell::new(0);
        let result = room.find(|| {
            tried.set(tried.get() + 1);
            if tried.get() > at { Ok(tried.get()) } else { Err(Error::from(Kind::NoSpace)) }
        });
        (result, tried.get())
    }

    #[test]
    fn space_that_comes_late_is_found() {
        let room = Room::default();
        room.removed();
        assert_eq!(attempts(&room, 0).1, 1);
        assert_eq!(attempts(&room, 3).0.unwrap(), 4);
        assert_eq!(attempts(&room, 2).0.unwrap(), 3, "success is no reason to stop waiting");
    }

    #[test]
    fn each_removal_is_waited_for_once() {
        let room = Room::default();
        let all = WAITS.len() as u32 + 1;
        assert_eq!(attempts(&room, u32::MAX).1, 1, "nothing was removed");
        room.removed();
        let (result, tried) = attempts(&room, u32::MAX);
        assert_eq!((result.unwrap_err().kind(), tried), (Kind::NoSpace, all));
        assert_eq!(attempts(&room, u32::MAX).1, 1);
        room.removed();
        assert_eq!(attempts(&room, u32::MAX).1, all);
    }

    #[test]
    fn other_failures_are_told_at_once() {
        let room = Room::default();
        room.removed();
        let tried = Cell::new(0);
        let result: Result<()> = room.find(|| {
            tried.set(tried.get() + 1);
            Err(Kind::Io.into())
        });
        assert_eq!((result.unwrap_err().kind(), tried.get()), (Kind::Io, 1));
    }
}
