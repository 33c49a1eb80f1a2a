//! Settings of a test run from environment variables.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The number that a variable of the environment has, if it is set.
///
/// # Panics
///
/// When it is set to something else.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// How long each random test looks for differences: `NACRE_MODEL_SECONDS`, or 2 seconds.
pub fn model_time() -> Duration {
    Duration::from_secs(number("NACRE_MODEL_SECONDS").unwrap_or(2))
}

/// The seeds to run: `NACRE_SEED` alone, or random ones until [`model_time`] is over, at least one.
pub fn seeds() -> impl Iterator<Item = u64> {
    let asked = number("NACRE_SEED");
    let (start, limit) = (Instant::now(), model_time());
    let mut rng = SmallRng::from_os_rng();
    let mut first = true;
    std::iter::from_fn(move || {
        let is_first = std::mem::take(&mut first);
        match asked {
            Some(seed) => is_first.then_some(seed),
            None => (is_first || start.elapsed() < limit).then(|| rng.random_range(0..1 << 32)),
        }
    })
}
