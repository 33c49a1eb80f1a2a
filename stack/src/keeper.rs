//! Threads that work for a file system with tiers: one keeps persistent memory from being full, others read ahead.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use nacre_engine::{Error, Result, background};
use nacre_mover::{Ahead, Budget};
use nacre_vfs::Vfs;

use crate::layout::AnyLayout;

/// When it looks for the first time.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// How long it goes on, at most, before it looks at the clock again: its hours may be over.
const GOES_ON: Duration = Duration::from_secs(10);

/// Threads that read ahead. A device does several transfers at once: one thread copies the blocks that have arrived
/// while another waits.
const READERS: usize = 2;

/// Runs as long as this lives.
pub(crate) struct Keeper {
    ends: Arc<(Mutex<bool>, Condvar)>,
    ahead: Option<Arc<Ahead>>,
    threads: Vec<JoinHandle<()>>,
}

impl Keeper {
    /// Begins to look after a file system that may have tiers.
    pub(crate) fn start(vfs: &Arc<Vfs<AnyLayout>>) -> Result<Keeper> {
        let ends = Arc::new((Mutex::new(false), Condvar::new()));
        let ahead = vfs.layout().mover().map(|mover| Arc::clone(mover.ahead()));
        // Threads that were begun end with it, also when the next one cannot be started.
        let mut keeper = Keeper { ends, ahead, threads: Vec::new() };
        let (weak, told) = (Arc::downgrade(vfs), Arc::clone(&keeper.ends));
        keeper.spawn("nacre-mover", move || keep(&weak, &told))?;
        if let Some(ahead) = &keeper.ahead {
            ahead.begin();
        }
        for _ in 0..READERS {
            let Some(ahead) = keeper.ahead.clone() else { break };
            let weak = Arc::downgrade(vfs);
            keeper.spawn("nacre-ahead", move || read_ahead(&weak, &ahead))?;
        }
        Ok(keeper)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
        self.threads.push(thread.map_err(|error| Error::io("open", "background thread", error))?);
        Ok(())
    }

    /// Ends the threads, and waits for their work in progress.
    pub(crate) fn stop(&mut self) {
        *self.ends.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ends.1.notify_all();
        if let Some(ahead) = &self.ahead {
            ahead.end();
        }
        for thread in self.threads.drain(..) {
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
    let mut period = FIRST_LOOK;
    let is_over = || *ends.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let over = ends.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *over {
            return;
        }
        let (over, _) = ends.1.wait_timeout(over, period).unwrap_or_else(PoisonError::into_inner);
        if *over {
            return;
        }
        drop(over);
        let Some(vfs) = vfs.upgrade() else { return };
        if let Some(mover) = vfs.layout().mover() {
            period = mover.period();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // The operation that meets a failing device or a full tier gets the error; later it may be otherwise.
            let _ =
                mover.tick(now.as_millis() as u64, &Budget::until(Instant::now() + GOES_ON).unless(&is_over));
        }
    }
}

fn read_ahead(vfs: &Weak<Vfs<AnyLayout>>, ahead: &Ahead) {
    while let Some(fetch) = ahead.take() {
        let Some(vfs) = vfs.upgrade() else { return };
        if let Some(mover) = vfs.layout().mover() {
            // The reader of these blocks gets the error.
            let _ = mover.fetch(&fetch);
        }
    }
}

/// Seconds that local time is ahead of UTC at a time in milliseconds since 1970. The time zone is that of the system, or of
/// `TZ`, and is looked at again every few minutes; without any it is UTC.
pub(crate) fn local_ahead_s(at_ms: u64) -> i64 {
    let at = i64::try_from(at_ms).ok().and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok());
    at.map_or(0, |at| TimeZone::system().to_offset(at).seconds().into())
}
