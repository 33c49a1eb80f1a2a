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
    /// Rounds at the begin of each sitting that do not count.
    pub warm_up: u64,
    /// Rounds that count of one sitting. The next one sets the targets up anew: pages and addresses that a target was
    /// given by chance make it some percent faster or slower for as long as it has them.
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
    slice: Duration::from_millis(100),
    warm_up: 2,
    sitting: u64::MAX,
    rounds: (9, 200),
    precision: 0.015,
    promise: Some(0.03),
    limit: Duration::from_secs(30),
};

/// Ratios to about 1 %.
pub const HIGH: Effort = Effort {
    name: "high",
    slice: Duration::from_millis(100),
    warm_up: 2,
    sitting: 10,
    rounds: (60, 1000),
    precision: 0.005,
    promise: Some(0.01),
    limit: Duration::from_secs(300),
};

impl FromStr for Effort {
    type Err = String;

    fn from_str(text: &str) -> Result<Effort, String> {
        [QUICK, DEFAULT, HIGH]
            .into_iter()
            .find(|effort| effort.name == text)
            .ok_or_else(|| "the efforts are: quick, default, high".to_owned())
    }
}
