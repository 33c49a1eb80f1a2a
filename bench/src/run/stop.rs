//! Ctrl-C: a run ends with the results so far, and takes everything down that it set up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set when the run is to end.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by SIGINT, SIGTERM and SIGHUP from now on.
    pub fn on_signals() -> std::io::Result<Stop> {
        let stop = Stop::default();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            signal_hook::flag::register(signal, stop.0.clone())?;
        }
        Ok(stop)
    }

    /// Whether it is to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Signals from the terminal go to all its processes; those that work for another leave it to that one to end them.
pub fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGHUP] {
        // SAFETY: to ignore a signal runs no code of ours.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}
