//! How long runs will take, for `nacre bench paper -n`.
//!
//! A point takes the time in which its targets are set up and prepared, then that of the rounds that do not count, then
//! that of those that do. Most points go on until the effort's limit, because ratios are seldom sure before. So this
//! is an estimate from above for a machine of some GB a second, not a promise: a figure that is sure ends sooner.

use crate::run::effort::Effort;
use crate::run::experiment::Place;
use crate::run::rounds::FEW;
use crate::target::plan::Load;
use crate::workload::{self, Length};

/// Bytes that are written, or made present, in a second.
const BYTES: f64 = 1e9;
/// Files that are made in a second.
const FILES: f64 = 50e3;
/// Seconds that a target takes at any size: a process, mkfs, a mount.
const TARGET: f64 = 0.3;

/// Seconds that a place takes, at a factor of the paper's sizes.
pub(super) fn seconds(place: &Place, scale: f64, effort: &Effort) -> f64 {
    let work = place.workload.parse().and_then(|spec| workload::make(&spec, scale));
    // The reason why a workload cannot be made is told when it is to run.
    let Ok(work) = work else { return 0.0 };
    let load = Load { bytes: work.bytes(), files: work.files() };
    let once = load.bytes as f64 / BYTES + load.files as f64 / FILES;
    let opened: f64 =
        place.entrants.iter().map(|entrant| TARGET + entrant.plan.needs(load) as f64 / BYTES).sum();
    let targets = place.entrants.len() as f64;
    // A turn is a round of each target.
    let turn = match work.length() {
        Length::Whole if work.reopens().is_some() => opened,
        Length::Whole => targets * once,
        Length::Slice | Length::Short => targets * effort.slice.as_secs_f64(),
    };
    let turn = turn + targets * place.flush.unwrap_or(0) as f64 / BYTES;
    let warm_up = effort.warm_up.max(place.warm_up) as f64 * turn;
    let (fewest, most) = effort.rounds;
    let least = fewest.min(FEW) as f64 * turn;
    let counted = effort.limit.as_secs_f64().max(least).min(most as f64 * turn);
    opened + targets * once + warm_up.max(place.settle as f64) + counted
}

/// `about 40 s`, `about 6 min`, `about 2 h 5 min`.
pub(super) fn about(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match minutes {
        0 => format!("about {} s", seconds.ceil()),
        1..=59 => format!("about {minutes} min"),
        _ => format!("about {} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::{about, seconds};
    use crate::paper::find;
    use crate::paper::runs::{Means, Runs};
    use crate::run::effort::{DEFAULT, HIGH, QUICK};

    fn total(name: &str, scale: f64, effort: &crate::run::effort::Effort) -> f64 {
        let means = Means { in_process: true, ..Means::default() };
        let runs = Runs::new(find(name)[0], scale, &means);
        assert!(!runs.places.is_empty(), "{name}");
        runs.places.iter().map(|place| seconds(place, scale, effort)).sum()
    }

    #[test]
    fn more_work_and_more_effort_take_longer() {
        // Eleven points, each up to the limit.
        let records = total("spfs-fig7a.read", 1.0, &DEFAULT);
        assert!((11.0 * 30.0..11.0 * 60.0).contains(&records), "{records}");
        assert!(total("spfs-fig7a.read", 1.0, &QUICK) < records / 5.0);
        assert!(total("spfs-fig7a.read", 1.0, &HIGH) > 3.0 * records);
        // Three rounds of two mounts, with a million files made before each.
        let [small, large] = [0.001, 1.0].map(|scale| total("spfs-mount", scale, &QUICK));
        assert!(small < 20.0 && large > 10.0 * small, "{small} {large}");
    }

    #[test]
    fn times_are_in_words() {
        assert_eq!(
            [0.2, 29.0, 59.0, 7500.0].map(about),
            ["about 1 s", "about 29 s", "about 1 min", "about 2 h 5 min"]
        );
    }
}
