//! Which calls of a trace wait for which, when its threads are threads here.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use crate::trace::format::{Trace, What};

/// For each call, those on other threads that must be over before it. These are the last with the same handle or path,
/// the last that made or opened its parent, and everything before and after a renamed or removed directory.
pub(super) fn dependencies(trace: &Trace, threads: u32) -> Vec<Vec<u32>> {
    #[derive(PartialEq, Eq, Hash)]
    enum Key<'a> {
        Handle(u32),
        Path(&'a Path),
    }
    let mut last: HashMap<Key<'_>, (u32, u32)> = HashMap::new();
    let mut last_of: Vec<Option<u32>> = vec![None; threads as usize];
    let mut barrier: Option<(u32, u32)> = None;
    let mut dirs: HashSet<&Path> = trace.dirs.iter().map(PathBuf::as_path).collect();
    let mut all = Vec::with_capacity(trace.calls.len());
    for (at, call) in trace.calls.iter().enumerate() {
        let (at, thread) = (at as u32, call.thread);
        let mut after: Vec<u32> = Vec::new();
        let mut wait = |found: Option<(u32, u32)>| {
            after.extend(found.filter(|(_, other)| *other != thread).map(|(index, _)| index));
        };
        wait(barrier);
        if let What::Mkdir { path } = &call.what {
            dirs.insert(path.as_path());
        }
        let moves = match &call.what {
            What::Rmdir { .. } => true,
            What::Rename { path, .. } => dirs.contains(path.as_path()),
            _ => false,
        };
        if moves {
            last_of
                .iter()
                .enumerate()
                .for_each(|(other, index)| wait(index.map(|index| (index, other as u32))));
            barrier = Some((at, thread));
        }
        if let Some(handle) = call.what.handle() {
            wait(last.insert(Key::Handle(handle), (at, thread)));
        }
        for path in call.what.paths().into_iter().flatten() {
            wait(path.parent().and_then(|parent| last.get(&Key::Path(parent)).copied()));
            wait(last.insert(Key::Path(path), (at, thread)));
        }
        last_of[thread as usize] = Some(at);
        after.sort_unstable();
        after.dedup();
        all.push(after);
    }
    all
}

/// How far a thread is, for those that wait for it.
#[derive(Default)]
pub(super) struct Done {
    /// One more than the number of its last call that is over.
    calls: AtomicU64,
    /// Threads that sleep until it gets further.
    asleep: AtomicU64,
    lock: Mutex<()>,
    further: Condvar,
}

/// How often a thread looks before it sleeps: a few microseconds, as long as most calls take.
const LOOKS: u32 = 100;

impl Done {
    /// Its calls up to this number are over.
    pub(super) fn reach(&self, calls: u64) {
        // Both in one order with a sleeper's accesses: either it sees the new number, or it is seen.
        self.calls.store(calls, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.further.notify_all();
        }
    }

    /// Waits until a call is over; whether there was need to.
    pub(super) fn wait(&self, call: u32) -> bool {
        let over = || self.calls.load(Ordering::SeqCst) > u64::from(call);
        if over() {
            return false;
        }
        for _ in 0..LOOKS {
            if over() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let mut held = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while !over() {
            held = self.further.wait(held).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        drop(held);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Done, dependencies};
    use crate::trace::format::Trace;

    #[test]
    fn calls_wait_for_those_on_other_threads_that_they_need() {
        let text = "nacre-trace 1\n0 0 mkdir d\n0 1 mkdir e\n0 1 open 0 wc d/f\n0 0 write 0 0 1\n0 0 unlink g\n0 1 rmdir e\n0 0 stat x\n";
        let trace = Trace::parse(text).unwrap();
        let after = dependencies(&trace, 2);
        assert_eq!(after, [vec![], vec![], vec![0], vec![2], vec![], vec![4], vec![5]]);
    }

    #[test]
    fn who_waits_goes_on_when_the_call_is_over() {
        let (first, second) = (Done::default(), Done::default());
        let (told, mut wrong) = (AtomicU64::new(0), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for call in 0..20_000 {
                    told.store(u64::from(call), Ordering::Relaxed);
                    first.reach(u64::from(call) + 1);
                    second.wait(call);
                }
            });
            for call in 0..20_000 {
                first.wait(call);
                wrong += u32::from(told.load(Ordering::Relaxed) != u64::from(call));
                second.reach(u64::from(call) + 1);
            }
        });
        assert_eq!(wrong, 0, "what was written before a call ended is seen after it");
        assert!(!first.wait(7), "that one is long over");
    }
}
