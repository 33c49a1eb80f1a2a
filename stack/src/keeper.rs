//! The thread that keeps persistent memory from being full.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use nacre_engine::{Error, Result, background};
use nacre_vfs::Vfs;

use crate::layout::AnyLayout;

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(100);
/// How long it goes on at the most before it looks at the clock again: its hours may be over.
const GOES_ON: Duration = Duration::from_secs(10);

/// Runs as long as this lives.
pub(crate) struct Keeper {
    ends: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Begins to look after a file system that may have tiers.
    pub(crate) fn start(vfs: &Arc<Vfs<AnyLayout>>) -> Result<Keeper> {
        let ends = Arc::new((Mutex::new(false), Condvar::new()));
        let (vfs, told) = (Arc::downgrade(vfs), Arc::clone(&ends));
        let thread = thread::Builder::new()
            .name("nacre-mover".to_owned())
            .spawn(move || keep(&vfs, &told))
            .map_err(|error| Error::io("open", "background thread", error))?;
        Ok(Keeper { ends, thread: Some(thread) })
    }

    /// Ends it, and waits for what it is doing.
    pub(crate) fn stop(&mut self) {
        *self.ends.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ends.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

fn keep(vfs: &Weak<Vfs<AnyLayout>>, ends: &(Mutex<bool>, Condvar)) {
    background::begin();
    let is_over = || *ends.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let over = ends.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *over {
            return;
        }
        let (over, _) = ends.1.wait_timeout(over, PERIOD).unwrap_or_else(PoisonError::into_inner);
        if *over {
            return;
        }
        drop(over);
        let Some(vfs) = vfs.upgrade() else { return };
        if let Some(mover) = vfs.layout().mover() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let begun = Instant::now();
            // A device that fails, or a tier that is full, is told to who meets it; later it may be otherwise.
            let _ = mover.keep(now.as_millis() as u64, &|| !is_over() && begun.elapsed() < GOES_ON);
        }
    }
}

/// Seconds that local time is ahead of UTC at a time in milliseconds since 1970. The time zone is that of the system, or of
/// `TZ`, and is looked at again every few minutes; without any it is UTC.
pub(crate) fn local_ahead_s(at_ms: u64) -> i64 {
    let at = i64::try_from(at_ms).ok().and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok());
    at.map_or(0, |at| TimeZone::system().to_offset(at).seconds().into())
}
