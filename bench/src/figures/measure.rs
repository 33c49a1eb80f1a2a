//! Two sides measured beside each other, in short batches that take turns.
//!
//! A batch is long enough that reading the clock around it costs nothing, and short enough that other work of the
//! machine hits both sides alike. The figure is the median of the ratios of neighbouring batches. A round in which the
//! scheduler took the core away for another process measured that process; it does not count, unless there is no
//! other.

use std::time::{Duration, Instant};

use crate::run::stop::Stop;

/// How long a row may take.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    /// Time after which no new round starts.
    pub(crate) time: Duration,
    /// Rounds that are run in any case, and rounds after which it ends.
    pub(crate) rounds: (usize, usize),
    /// Rounds before those that count.
    pub(crate) warm_up: usize,
    /// Ends it at once.
    pub(crate) stop: Stop,
}

/// One side of a comparison: it runs the batch of a round and returns how long the operations took, without the time
/// to prepare them.
pub(crate) type Side<'a> = &'a mut dyn FnMut(u64) -> Duration;

/// The times of both sides, in nanoseconds an operation, one for each round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pairs {
    pub(crate) ours: Vec<f64>,
    pub(crate) peer: Vec<f64>,
    /// Rounds that do not count.
    pub(crate) disturbed: usize,
}

/// Runs both sides in turns; every other round the peer begins.
pub(crate) fn interleave(budget: &Budget, operations: u64, ours: Side<'_>, peer: Side<'_>) -> Pairs {
    let mut pairs = Pairs::default();
    for round in 0..budget.warm_up {
        if budget.stop.is_set() {
            break;
        }
        ours(round as u64);
        peer(round as u64);
    }
    let mut disturbed = Pairs::default();
    let begin = Instant::now();
    for round in 0..budget.rounds.1 {
        let is_enough = round >= budget.rounds.0 && begin.elapsed() >= budget.time;
        // A ratio needs one round.
        if is_enough || round > 0 && budget.stop.is_set() {
            break;
        }
        let turn = (budget.warm_up + round) as u64;
        let per_operation = |time: Duration| time.as_nanos() as f64 / operations as f64;
        let taken_away = times_taken_away();
        let (first, second) = if round % 2 == 0 {
            (ours(turn), peer(turn))
        } else {
            let first = peer(turn);
            (ours(turn), first)
        };
        let kept = if times_taken_away() == taken_away { &mut pairs } else { &mut disturbed };
        kept.ours.push(per_operation(first));
        kept.peer.push(per_operation(second));
    }
    if pairs.ours.len() < budget.rounds.0 {
        pairs.ours.append(&mut disturbed.ours);
        pairs.peer.append(&mut disturbed.peer);
    }
    pairs.disturbed = disturbed.ours.len();
    pairs
}

/// How often the scheduler took the core away from this thread.
pub(crate) fn times_taken_away() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills a struct of that type, and all zeros are one, too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw
}

/// Times one batch.
#[inline]
pub(crate) fn timed(batch: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    batch();
    begin.elapsed()
}

impl Pairs {
    /// The ratio of each round, ours over the peer's.
    pub(crate) fn ratios(&self) -> Vec<f64> {
        self.ours.iter().zip(&self.peer).map(|(ours, peer)| ours / peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Budget, Stop, interleave};

    #[test]
    fn both_sides_take_turns_and_are_counted_alike() {
        let budget = Budget { time: Duration::ZERO, rounds: (5, 9), warm_up: 2, stop: Stop::default() };
        let (mut ours, mut peer) = (Vec::new(), Vec::new());
        let pairs = interleave(
            &budget,
            10,
            &mut |round| {
                ours.push(round);
                Duration::from_nanos(100)
            },
            &mut |round| {
                peer.push(round);
                Duration::from_nanos(200)
            },
        );
        assert_eq!(ours, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(peer, ours);
        assert_eq!(pairs.ratios(), [0.5; 5]);
        assert_eq!(pairs.ours[0], 10.0);
    }
}
