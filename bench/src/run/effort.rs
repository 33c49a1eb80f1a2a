//! How much is done before a figure counts.

use std::str::FromStr;
use std::time::Duration;

/// Rounds, and how long each is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// Its name.
    pub name: &'static str,
    /// How long a round is, of workloads that run in slices.
    pub slice: Duration,
    /// Where operations are all alike, a round is this much shorter, and there are that many more. Other work on the
    /// machine comes and goes within some tenths of a second, and is to meet both sides of a ratio.
    pub parts: u32,
    /// Rounds at the begin of each sitting that do not count.
    pub warm_up: u64,
    /// Rounds that count of one sitting, at least. The next one sets the targets up anew. Pages and addresses that a
    /// target was given by chance make it some percent faster or slower for as long as it has them.
    pub sitting: u64,
    /// Rounds that are run in any case, and after which it ends in any case.
    pub rounds: (u64, u64),
    /// It ends when the interval of each ratio (of the value where there is none) is within this share of its median.
    pub precision: f64,
    /// How far from 1 the ratio of two of the same may be found, as a share; none where nothing is promised.
    pub promise: Option<f64>,
    /// No round begins after this time for one point.
    pub limit: Duration,
}

/// Shows that it runs; its figures mean little.
pub const QUICK: Effort = Effort {
    name: "quick",
    slice: Duration::from_millis(20),
    parts: 1,
    warm_up: 1,
    sitting: u64::MAX,
    rounds: (3, 3),
    precision: 1.0,
    promise: None,
    limit: Duration::from_secs(60),
};

/// Ratios to about 3 %.
pub const DEFAULT: Effort = Effort {
    name: "default",
    slice: Duration::from_millis(50),
    parts: 5,
    warm_up: 2,
    sitting: 10,
    rounds: (60, 1000),
    precision: 0.015,
    promise: Some(0.03),
    limit: Duration::from_secs(30),
};

/// Ratios to about 1 %.
pub const HIGH: Effort = Effort {
    name: "high",
    slice: Duration::from_millis(50),
    parts: 5,
    warm_up: 2,
    sitting: 10,
    rounds: (60, 5000),
    precision: 0.005,
    promise: Some(0.01),
    limit: Duration::from_secs(600),
};

impl Effort {
    /// For workloads whose operations are all alike.
    pub(super) fn in_parts(self) -> Effort {
        let Effort { slice, parts, warm_up, sitting, rounds: (least, most), .. } = self;
        let more = u64::from(parts);
        Effort {
            slice: slice / parts,
            parts: 1,
            warm_up: warm_up * more,
            sitting: sitting.saturating_mul(more),
            rounds: (least * more, most * more),
            ..self
        }
    }

    /// Whether targets are to be set up anew before a turn of a sitting, with so many that counted before it. That is
    /// so when it had its rounds, each of the targets came first equally often, and it lasted as long as their setup.
    pub(super) fn is_sitting_over(
        &self,
        counted: u64,
        targets: usize,
        lasted: Duration,
        set_up: Duration,
    ) -> bool {
        counted >= self.sitting && counted.is_multiple_of(targets.max(1) as u64) && lasted >= set_up
    }
}

impl FromStr for Effort {
    type Err = String;

    fn from_str(text: &str) -> Result<Effort, String> {
        [QUICK, DEFAULT, HIGH]
            .into_iter()
            .find(|effort| effort.name == text)
            .ok_or_else(|| "the efforts are: quick, default, high".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{DEFAULT, QUICK};

    #[test]
    fn there_are_more_of_what_is_shorter() {
        let parts = DEFAULT.in_parts();
        assert_eq!((parts.slice, parts.warm_up), (Duration::from_millis(10), 10));
        assert_eq!((parts.sitting, parts.rounds, parts.limit), (50, (300, 5000), DEFAULT.limit));
        assert_eq!(parts.in_parts(), parts);
        assert_eq!(QUICK.in_parts(), QUICK);
    }

    #[test]
    fn a_sitting_is_as_long_as_its_preparation_and_fair_to_all() {
        let over = |counted, lasted| {
            DEFAULT.is_sitting_over(counted, 3, Duration::from_secs(lasted), Duration::from_secs(5))
        };
        let rounds = DEFAULT.sitting;
        assert!((0..rounds).all(|counted| !over(counted, 9)));
        let fair = rounds.next_multiple_of(3);
        assert!((rounds..=fair).all(|counted| over(counted, 9) == (counted == fair)));
        assert!(!over(fair, 4));
        assert!(!QUICK.is_sitting_over(1000, 3, Duration::MAX, Duration::ZERO));
    }
}
