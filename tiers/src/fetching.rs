//! Blocks that are being fetched by read-ahead. A reader of one waits, and does not fetch it twice.

use nacre_engine::TierRun;
use nacre_engine::sync::atomic::{AtomicUsize, Ordering};
use nacre_engine::sync::{Condvar, Mutex};

/// All that are under way.
#[derive(Default)]
pub(crate) struct Fetching {
    runs: Mutex<Vec<TierRun>>,
    /// Their number: most reads find none, and take no lock.
    count: AtomicUsize,
    is_done: Condvar,
}

/// One of them, as long as this lives.
pub(crate) struct UnderWay<'f> {
    all: &'f Fetching,
    run: TierRun,
}

impl Fetching {
    /// These blocks are being fetched.
    pub(crate) fn begin(&self, run: TierRun) -> UnderWay<'_> {
        let mut runs = self.runs.lock();
        runs.push(run);
        self.count.store(runs.len(), Ordering::Relaxed);
        UnderWay { all: self, run }
    }

    /// Waits while a block is being fetched; false when it is not. Whether it is there then is another question.
    pub(crate) fn wait_for(&self, tier: u8, block: u64) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let is_it = |run: &TierRun| run.tier == tier && (run.start.0..run.start.0 + run.len).contains(&block);
        let mut has_waited = false;
        let mut runs = self.runs.lock();
        while runs.iter().any(is_it) {
            self.is_done.wait(&mut runs);
            has_waited = true;
        }
        has_waited
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut runs = self.all.runs.lock();
        if let Some(at) = runs.iter().position(|run| *run == self.run) {
            runs.swap_remove(at);
        }
        self.all.count.store(runs.len(), Ordering::Relaxed);
        self.all.is_done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nacre_engine::{Block, TierRun};

    use super::Fetching;

    #[test]
    fn who_asks_for_what_is_being_fetched_waits_for_that_and_nobody_else() {
        let fetching = Fetching::default();
        assert!(!fetching.wait_for(1, 10));
        let run = |start| TierRun { tier: 1, start: Block(start), len: 8 };
        let (one, same) = (fetching.begin(run(8)), fetching.begin(run(8)));
        assert!(![(1, 7), (1, 16), (2, 10)].into_iter().any(|(tier, block)| fetching.wait_for(tier, block)));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let has_waited = fetching.wait_for(1, 15);
                (has_waited, is_over.load(Ordering::SeqCst))
            });
            drop(one);
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_over.store(true, Ordering::SeqCst);
            drop(same);
            // It came while one of the two was under way, or behind both.
            let (has_waited, was_over) = waiting.join().unwrap();
            assert!(was_over || !has_waited);
        });
        assert!(!fetching.wait_for(1, 10) && fetching.runs.lock().is_empty());
    }
}
