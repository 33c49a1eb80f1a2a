//! A target next to a copy of itself (A/A test): the difference between the two is the error of the harness.

use std::str::FromStr;

use super::effort::Effort;
use crate::report::schema::{Bound, Claim, Experiment, Meant};
use crate::spec::Spec;

/// An experiment's claims about the harness: for each target that is a copy of the baseline (`copy=WORD`), that their
/// ratio is 1, within the error that the effort allows.
pub fn claims(experiment: &Experiment, effort: &Effort) -> Vec<Claim> {
    let Some(baseline) = experiment.baseline.as_deref() else { return Vec::new() };
    let copies = experiment
        .series
        .iter()
        .filter(|series| series.target != baseline && original(&series.target) == original(baseline));
    let claim = |target: &str, label: &str, (median, interval)| Claim {
        what: format!("{target} over itself; {label}"),
        source: "nacre".to_owned(),
        said: 1.0,
        meant: Meant::About,
        unit: None,
        found: Some(median),
        interval: Some(interval),
        holds_if: effort.promise.map(|share| Bound::Between(1.0 - share, 1.0 + share)),
        waits_for: None,
        weak_spot: None,
    };
    copies
        .flat_map(|series| {
            series.points.iter().filter_map(|point| {
                let ratio = point.ratio.as_ref()?;
                Some(claim(&series.target, &point.label, (ratio.median, ratio.interval)))
            })
        })
        .collect()
}

/// The name of a target without the parameters that make it a copy.
fn original(target: &str) -> String {
    match Spec::from_str(target) {
        Ok(spec) => spec.without("copy").to_string(),
        Err(_) => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::claims;
    use crate::report::sample;
    use crate::report::schema::{Bound, Ratio, Verdict};
    use crate::run::effort::{DEFAULT, HIGH, QUICK};

    #[test]
    fn copies_are_held_to_their_original_and_others_are_not() {
        let mut experiment = sample::report().experiments.remove(0);
        experiment.baseline = Some("preset:nova,pm=1g".to_owned());
        experiment.series.truncate(3);
        let names = ["preset:nova,pm=1g", "preset:nova,copy=b,pm=1g", "preset:nova,copy=b,pm=2g"];
        assert_eq!(experiment.series.len(), names.len(), "the sample has as many targets");
        for (series, name) in experiment.series.iter_mut().zip(names) {
            series.target = name.to_owned();
            series.points.truncate(1);
            series.points[0].ratio = Some(Ratio { median: 1.02, interval: (0.99, 1.04), p: 0.5 });
        }
        let found = claims(&experiment, &DEFAULT);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.starts_with("preset:nova,copy=b,pm=1g over itself"), "{}", found[0].what);
        assert_eq!(
            (found[0].holds_if, found[0].verdict()),
            (Some(Bound::Between(0.97, 1.03)), Verdict::Holds)
        );
        assert_eq!(claims(&experiment, &HIGH)[0].verdict(), Verdict::Missed);
        assert_eq!(claims(&experiment, &QUICK)[0].verdict(), Verdict::Beside);
        experiment.baseline = None;
        assert!(claims(&experiment, &DEFAULT).is_empty());
    }
}
