//! The order in which several threads run.
//!
//! One thread runs at a time. A seed decides whether a thread that is about to fence must wait while others go on. So
//! the windows between a store and its fence are wide open, and other threads see stores that are not durable yet. If a
//! running thread waits for a lock that a stopped thread holds, this is noticed after [`PATIENCE`], and the stopped
//! thread goes on. The interleaving then may differ from run to run, so only the trace of a run tells its outcome.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// How long a thread may have its turn without a fence or an end before another goes on.
const PATIENCE: Duration = Duration::from_millis(20);
/// The number of a thread that takes no turns.
const NOBODY: usize = usize::MAX;

/// The turns of the threads.
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    turn: usize,
    /// Threads that are not done.
    running: Vec<usize>,
    rng: SmallRng,
    /// Grows with each sign of life.
    events: u64,
}

thread_local!(static ME: Cell<usize> = const { Cell::new(NOBODY) });

impl Turns {
    pub(super) fn new(threads: usize, seed: u64) -> Turns {
        let state =
            State { turn: 0, running: (0..threads).collect(), rng: SmallRng::seed_from_u64(seed), events: 0 };
        Turns { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Gives the turn to a random thread, perhaps this one, and waits for it to come back. With `on`, to another one
    /// when there is one.
    pub(super) fn pass(&self, on: bool) {
        let me = ME.get();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events += 1;
        if me == NOBODY {
            return; // a thread of the layout's own goes as it likes
        }
        let State { turn, running, rng, .. } = &mut *state;
        if *turn == me {
            let others: Vec<usize> = running.iter().copied().filter(|&other| other != me || !on).collect();
            if !others.is_empty() {
                *turn = others[rng.random_range(0..others.len())];
            }
        }
        self.changed.notify_all();
        self.wait(state, me);
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while state.turn != me {
            let events = state.events;
            let waited = self.changed.wait_timeout(state, PATIENCE);
            let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = locked;
            // The thread that has the turn waits, presumably for a lock that this thread holds.
            if timeout.timed_out() && state.events == events {
                state.turn = me;
                state.events += 1;
            }
        }
    }

    pub(super) fn begin(&self, me: usize) {
        ME.set(me);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.wait(state, me);
    }

    pub(super) fn end(&self) {
        let me = ME.get();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events += 1;
        state.running.retain(|&other| other != me);
        if state.turn == me
            && let Some(&next) = state.running.first()
        {
            state.turn = next;
        }
        self.changed.notify_all();
    }
}
