//! Two reports of the same work: the values that got worse, and how sure that is.
//!
//! Points are matched by experiment, target and workload with all its parameters. The runs did not take turns, so
//! samples are compared without pairs. Differences of the machine between the runs count as differences of the
//! targets: the threshold is for that. The probabilities are adjusted for the number of points.
//!
//! Rounds of one sitting share the pages and addresses that the target was given, so a hundred of them say little more
//! than one. Where both runs had a few sittings, these are compared, each by its median.

use std::fmt::Write;

use nacre_engine::size;
use serde::Serialize;

use super::merge::Named;
use super::schema::{Better, Experiment, Place, Point, Report};
use super::text::short;
use crate::stats;

/// Below this a difference is no accident.
const LEVEL: f64 = 0.05;

/// The mark of a result that is less sure than it looks.
const ROUNDS: &str = " (rounds of too few sittings)";

/// The version of a comparison as JSON.
const SCHEMA: u32 = 2;

/// The result of the comparison of two reports.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    schema: u32,
    /// Their names.
    a: String,
    b: String,
    /// The share by which values may get worse.
    threshold: f64,
    /// Further differences of the runs.
    differences: Vec<Difference>,
    /// The worst first.
    changes: Vec<Change>,
    /// Experiment, target and workload of points that only one of them has.
    only_a: Vec<String>,
    only_b: Vec<String>,
}

/// Something about the runs that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    what: String,
    a: String,
    b: String,
}

/// One point in both reports.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    experiment: String,
    target: String,
    workload: String,
    unit: String,
    /// Whether sittings were compared, as is right, or rounds, for want of sittings.
    sittings: bool,
    /// Medians of the compared samples.
    a: f64,
    b: f64,
    /// Median of b over median of a, and its interval of 95 %.
    ratio: f64,
    interval: (f64, f64),
    /// As [`Change::ratio`], turned so that above one is better.
    gain: f64,
    /// The probability that both have the same source, alone and adjusted for the number of points.
    p: f64,
    q: f64,
    verdict: Verdict,
}

/// The result of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Worse by more than the threshold, for sure: the whole interval is.
    Worse,
    /// Better by more than the threshold, likewise.
    Better,
    /// Not the same, and perhaps within the threshold.
    Close,
    /// Nothing tells them apart.
    Alike,
    /// Too few rounds to tell anything.
    Unsure,
}

impl Comparison {
    /// Compares `b` with `a`, which came before.
    pub fn new(a: &Named, b: &Named, threshold: f64) -> Comparison {
        let mut differences = differences(&a.report, &b.report);
        let (of_a, of_b) = (points(&a.report), points(&b.report));
        let mut changes = Vec::new();
        let mut only_a = Vec::new();
        for (key, experiment, point) in &of_a {
            match of_b.iter().find(|(other, ..)| other == key) {
                None => only_a.push(key.join(" ")),
                Some((_, other, _)) if other.metric != experiment.metric => {
                    differences.push(Difference {
                        what: format!("metric of {}", key.join(" ")),
                        a: experiment.metric.words(),
                        b: other.metric.words(),
                    });
                }
                Some((_, _, other)) => changes.push(change(key, experiment, point, other)),
            }
        }
        let only_b = of_b
            .iter()
            .filter(|(key, ..)| of_a.iter().all(|(other, ..)| other != key))
            .map(|(key, ..)| key.join(" "))
            .collect();
        // Points with too few rounds do not count as questions.
        let mut asked: Vec<&mut Change> =
            changes.iter_mut().filter(|change| change.verdict != Verdict::Unsure).collect();
        let probabilities: Vec<f64> = asked.iter().map(|change| change.p).collect();
        for (change, q) in asked.iter_mut().zip(stats::adjusted(&probabilities)) {
            change.q = q;
            change.verdict = verdict(change, threshold);
        }
        changes.sort_by(|a, b| a.verdict.cmp(&b.verdict).then(a.gain.total_cmp(&b.gain)));
        let (a, b) = (a.name.clone(), b.name.clone());
        Comparison { schema: SCHEMA, a, b, threshold, differences, changes, only_a, only_b }
    }

    /// How many points got worse by more than the threshold.
    pub fn worse(&self) -> usize {
        self.changes.iter().filter(|change| change.verdict == Verdict::Worse).count()
    }

    /// For terminals.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Difference { what, a, b } in &self.differences {
            let _ = writeln!(text, "{what}: {} has {a}, {} has {b}", self.a, self.b);
        }
        for (name, only) in [(&self.a, &self.only_a), (&self.b, &self.only_b)] {
            only.iter().for_each(|what| {
                let _ = writeln!(text, "only in {name}: {what}");
            });
        }
        let _ = writeln!(
            text,
            "{:<7} {:>10} {:>10} {:>7} {:>15} {:>8}  what (ratio: {} over {}; q: adjusted for {} comparisons)",
            "",
            "before",
            "after",
            "ratio",
            "95 %",
            "q",
            self.b,
            self.a,
            self.changes.iter().filter(|change| change.verdict != Verdict::Unsure).count()
        );
        for change in &self.changes {
            let verdict = match change.verdict {
                Verdict::Worse => "WORSE",
                Verdict::Better => "better",
                Verdict::Close => "close",
                Verdict::Alike => "alike",
                Verdict::Unsure => "unsure",
            };
            let interval = format!("{:.3} - {:.3}", change.interval.0, change.interval.1);
            let _ = writeln!(
                text,
                "{verdict:<7} {:>10} {:>10} {:>7.3} {interval:>15} {:>8.2e}  {} {} {}{}",
                short(change.a),
                short(change.b),
                change.ratio,
                change.q,
                change.unit,
                change.target,
                if change.workload.starts_with(&change.experiment) {
                    change.workload.clone()
                } else {
                    format!("{} {}", change.experiment, change.workload)
                },
                if change.sittings { "" } else { ROUNDS }
            );
        }
        let _ = writeln!(
            text,
            "{} of {} got worse by more than {} %",
            self.worse(),
            self.changes.len(),
            short(self.threshold * 100.0)
        );
        text
    }
}

/// The key of a point, its experiment, and the point itself.
type Keyed<'a> = ([String; 3], &'a Experiment, &'a Point);

fn points(report: &Report) -> Vec<Keyed<'_>> {
    let mut all = Vec::new();
    for experiment in &report.experiments {
        for series in &experiment.series {
            for point in &series.points {
                let key = [experiment.name.clone(), series.target.clone(), point.workload.clone()];
                all.push((key, experiment, point));
            }
        }
    }
    all
}

fn change(key: &[String; 3], experiment: &Experiment, a: &Point, b: &Point) -> Change {
    let [name, target, workload] = key.clone();
    let blocks = sittings(a).zip(sittings(b));
    let by_sittings = blocks.is_some();
    let (a, b) = blocks.unwrap_or_else(|| (a.samples.clone(), b.samples.clone()));
    let (before, after) = (stats::median(&a), stats::median(&b));
    let ratio = after / before;
    Change {
        experiment: name,
        target,
        workload,
        unit: experiment.metric.unit.clone(),
        sittings: by_sittings,
        a: before,
        b: after,
        ratio,
        interval: stats::ratio_interval(&b, &a),
        gain: match experiment.metric.better {
            Better::More => ratio,
            Better::Less => 1.0 / ratio,
        },
        p: if by_sittings { stats::same_mean(&a, &b) } else { stats::same_source(&a, &b) },
        q: 1.0,
        // Until all probabilities are known; points with too few rounds keep it.
        verdict: if a.len().min(b.len()) < stats::FEWEST || !ratio.is_finite() {
            Verdict::Unsure
        } else {
            Verdict::Alike
        },
    }
}

/// The median of each sitting; none where there are too few of them.
fn sittings(point: &Point) -> Option<Vec<f64>> {
    let mut rest = point.samples.as_slice();
    let medians: Vec<f64> = point
        .sittings
        .iter()
        .map(|&count| {
            let (sitting, others) = rest.split_at(count.min(rest.len()));
            rest = others;
            stats::median(sitting)
        })
        .collect();
    (rest.is_empty() && medians.len() >= stats::FEWEST).then_some(medians)
}

fn verdict(change: &Change, threshold: f64) -> Verdict {
    if change.q > LEVEL {
        return Verdict::Alike;
    }
    let (low, high) = change.interval;
    let (low, high) = if change.gain == change.ratio { (low, high) } else { (1.0 / high, 1.0 / low) };
    if high < 1.0 / (1.0 + threshold) {
        Verdict::Worse
    } else if low > 1.0 + threshold {
        Verdict::Better
    } else {
        Verdict::Close
    }
}

/// Differences of the runs, besides their figures.
fn differences(a: &Report, b: &Report) -> Vec<Difference> {
    let emulate = |report: &Report| report.options.emulate.clone().unwrap_or_else(|| "none".to_owned());
    let memory = |report: &Report| format!("{:.1} GiB", report.machine.memory_gib);
    let held = |report: &Report| report.options.memory.map_or_else(|| "by target".to_owned(), size::print);
    let whole = |report: &Report| if report.complete { "yes" } else { "no" }.to_owned();
    let unsaid = |value: Option<String>| value.unwrap_or_else(|| "not said".to_owned());
    let warm_up = |report: &Report| report.options.warm_up.map(|rounds| rounds.to_string());
    let settle = |report: &Report| report.options.settle.map(|seconds| seconds.to_string());
    let flush = |report: &Report| report.options.flush.map_or_else(|| "nothing".to_owned(), size::print);
    let disk = |report: &Report| report.options.disk.as_ref().map(Place::words);
    let both = [
        ("version", a.version.clone(), b.version.clone()),
        ("commit", a.commit.clone(), b.commit.clone()),
        ("processor", a.machine.cpu.clone(), b.machine.cpu.clone()),
        ("cores", a.machine.cores.to_string(), b.machine.cores.to_string()),
        ("memory", memory(a), memory(b)),
        ("kernel", a.machine.kernel.clone(), b.machine.kernel.clone()),
        ("effort", a.options.effort.clone(), b.options.effort.clone()),
        ("seed", a.options.seed.to_string(), b.options.seed.to_string()),
        ("scale", scale(a.options.scale), scale(b.options.scale)),
        ("emulated memory", emulate(a), emulate(b)),
        ("page caches held to", held(a), held(b)),
        ("page caches emptied", unsaid(a.options.cold.clone()), unsaid(b.options.cold.clone())),
        ("rounds before those that count", unsaid(warm_up(a)), unsaid(warm_up(b))),
        ("seconds before those that count", unsaid(settle(a)), unsaid(settle(b))),
        ("a round writes and syncs", flush(a), flush(b)),
        ("files for disks", unsaid(disk(a)), unsaid(disk(b))),
        ("complete", whole(a), whole(b)),
    ];
    let differ = both.into_iter().filter(|(_, a, b)| a != b);
    let mut all: Vec<_> = differ.map(|(what, a, b)| Difference { what: what.to_owned(), a, b }).collect();
    all.extend(factors(a, b));
    all
}

/// Experiments that had different factors, where a run had several: points of another size are not comparable.
fn factors(a: &Report, b: &Report) -> Vec<Difference> {
    if !(a.options.scale.is_nan() || b.options.scale.is_nan()) {
        return Vec::new();
    }
    let of =
        |report: &Report, experiment: &Experiment| scale(experiment.scale.unwrap_or(report.options.scale));
    let same = |one: &Experiment| b.experiments.iter().find(|other| other.name == one.name);
    let both = a.experiments.iter().filter_map(|one| Some((one, of(a, one), of(b, same(one)?))));
    both.filter(|(_, a, b)| a != b)
        .map(|(one, a, b)| Difference { what: format!("scale of {}", one.name), a, b })
        .collect()
}

fn scale(factor: f64) -> String {
    if factor.is_nan() { "by experiment".to_owned() } else { factor.to_string() }
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Verdict, factors};
    use crate::report::merge::Named;
    use crate::report::sample;
    use crate::report::schema::{Better, Place, Point, Report};
    use crate::stats;

    fn compare(threshold: f64, change: impl FnOnce(&mut Report)) -> Comparison {
        let report = sample::report();
        let mut other = report.clone();
        change(&mut other);
        let named = |name: &str, report| Named { name: name.to_owned(), report };
        Comparison::new(&named("a", report), &named("b", other), threshold)
    }

    fn slower(report: &mut Report, experiment: usize, factor: f64) {
        for point in &mut report.experiments[experiment].series[0].points {
            point.samples.iter_mut().for_each(|value| *value *= factor);
        }
    }

    #[test]
    fn a_report_is_like_itself() {
        let found = compare(0.03, |_| {});
        assert!(found.changes.len() > 10 && found.worse() == 0, "{}", found.text());
        assert!(
            found.changes.iter().all(|change| matches!(change.verdict, Verdict::Alike | Verdict::Unsure))
        );
        assert!(found.differences.is_empty() && found.only_a.is_empty() && found.only_b.is_empty());
    }

    #[test]
    fn what_got_slower_is_worse_and_what_got_faster_is_better() {
        // The first experiment counts throughput, the third one time.
        for (experiment, factor, threshold, expected) in [
            (0, 0.8, 0.03, Verdict::Worse),
            (0, 1.2, 0.03, Verdict::Better),
            (0, 0.9, 0.15, Verdict::Close),
            (0, 1.1, 0.15, Verdict::Close),
            (2, 1.2, 0.03, Verdict::Worse),
            (2, 0.8, 0.03, Verdict::Better),
        ] {
            let found = compare(threshold, |report| slower(report, experiment, factor));
            let first = &found.changes.iter().find(|change| change.ratio != 1.0).expect("a change");
            assert_eq!(first.verdict, expected, "{experiment} {factor}: {}", found.text());
            assert!(first.interval.0 <= first.ratio && first.ratio <= first.interval.1, "{}", found.text());
            assert_eq!(found.worse() > 0, expected == Verdict::Worse);
        }
    }

    #[test]
    fn few_rounds_are_no_regression() {
        let found = compare(0.03, |report| {
            slower(report, 0, 0.5);
            report.experiments[0].series[0].points.iter_mut().for_each(|point| point.samples.truncate(3));
        });
        assert_eq!(found.worse(), 0, "{}", found.text());
        assert!(found.text().contains("unsure"));
    }

    #[test]
    fn what_only_one_has_and_what_else_differs_is_said() {
        let found = compare(0.03, |report| {
            let gone = report.experiments[0].series.remove(1);
            report.experiments[1].series[0].points[0].workload.push_str(",theta=0.5");
            report.machine.kernel = "Linux 9".to_owned();
            report.options.scale = 0.5;
            assert_eq!(gone.target, "mount:nova");
        });
        let text = found.text();
        assert!(text.contains("kernel: a has") && text.contains("scale: a has 1, b has 0.5"), "{text}");
        assert!(text.contains("only in a: filebench mount:nova"), "{text}");
        assert!(text.contains("only in b: micro.write preset:nova micro.write,io=64,theta=0.5"), "{text}");
    }

    /// A run with caches emptied before each round once stood beside one without, and not a word was said.
    #[test]
    fn what_a_run_was_asked_for_is_no_secret() {
        let text = compare(0.03, |report| {
            report.options.cold = Some("rounds".to_owned());
            report.options.warm_up = Some(5);
            report.options.settle = Some(40);
            report.options.flush = Some(64 << 20);
            let on_memory = Place { path: "/tmp".to_owned(), file_system: "tmpfs".to_owned() };
            report.options.disk = Some(on_memory);
            report.experiments[0].metric.better = Better::Less;
        })
        .text();
        for said in [
            "page caches emptied: a has never, b has rounds",
            "rounds before those that count: a has 0, b has 5",
            "seconds before those that count: a has not said, b has 40",
            "a round writes and syncs: a has nothing, b has 64 MiB",
            "files for disks: a has /tmp (ext4), b has /tmp (tmpfs)",
            "a has op/s (more is better), b has op/s (less is better)",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }

    #[test]
    fn factors_that_were_chosen_are_compared_by_experiment() {
        let mut chosen = sample::report();
        chosen.options.scale = f64::NAN;
        let mut other = chosen.clone();
        other.experiments[1].scale = Some(0.25);
        let whole = sample::report();
        let found = |a: &Report, b: &Report| factors(a, b).into_iter().map(|found| (found.what, found.b));
        let expected = ("scale of micro.write".to_owned(), "0.25".to_owned());
        assert_eq!(found(&chosen, &other).collect::<Vec<_>>(), [expected]);
        assert_eq!(found(&chosen, &whole).count(), 0, "they are the same, each for itself or all at once");
        // Before version 3 nobody noted what was chosen.
        chosen.experiments[0].scale = None;
        assert_eq!(found(&whole, &chosen).next().map(|(_, b)| b).as_deref(), Some("by experiment"));
    }

    /// Ten rounds in each of these sittings, all but alike within one.
    fn sat(point: &mut Point, sittings: &[f64]) {
        let rounds = |value: &f64| (0..10).map(|round| value * (1.0 + f64::from(round) / 1e4)).collect();
        point.samples = sittings.iter().flat_map(|value| -> Vec<f64> { rounds(value) }).collect();
        point.sittings = vec![10; sittings.len()];
    }

    /// Two runs of the same binary, in which pages that targets were given by chance made a sitting up to 15 % faster or
    /// slower: sixty rounds against sixty were once called a regression with more than a million to one.
    #[test]
    fn sittings_that_fell_badly_are_no_regression_and_a_real_one_is() {
        let before = [1.00, 1.10, 1.02, 1.08, 1.05, 1.06];
        let by_chance = [0.93, 1.09, 1.00, 0.95, 1.04, 0.97];
        let slower = before.map(|value| value * 0.8);
        let mut a = sample::report();
        sat(&mut a.experiments[0].series[0].points[0], &before);
        for (after, expected) in [(by_chance, Verdict::Alike), (slower, Verdict::Worse)] {
            let mut b = a.clone();
            sat(&mut b.experiments[0].series[0].points[0], &after);
            let points = [&a, &b].map(|report| &report.experiments[0].series[0].points[0]);
            let by_rounds = stats::same_source(&points[0].samples, &points[1].samples);
            let ratio = stats::median(&points[1].samples) / stats::median(&points[0].samples);
            assert!(by_rounds < 1e-6 && ratio < 0.97, "rounds alone are sure of both: {by_rounds} {ratio}");
            let named = |name: &str, report: &Report| Named { name: name.to_owned(), report: report.clone() };
            let found = Comparison::new(&named("a", &a), &named("b", &b), 0.03);
            let change = found.changes.iter().find(|change| change.ratio != 1.0).expect("a change");
            assert!(change.verdict == expected && change.sittings, "{}", found.text());
            assert_eq!(found.worse(), usize::from(expected == Verdict::Worse));
        }
    }

    #[test]
    fn what_may_be_within_the_threshold_is_close() {
        let before = [1.00, 1.02, 1.01, 0.99, 1.03, 0.98];
        let mut a = sample::report();
        sat(&mut a.experiments[0].series[0].points[0], &before);
        let mut b = a.clone();
        sat(&mut b.experiments[0].series[0].points[0], &before.map(|value| value * 0.96));
        let named = |name: &str, report: &Report| Named { name: name.to_owned(), report: report.clone() };
        let found = Comparison::new(&named("a", &a), &named("b", &b), 0.03);
        let change = found.changes.iter().find(|change| change.ratio != 1.0).expect("a change");
        assert!(change.gain < 1.0 / 1.03 && change.p < 0.05, "{}", found.text());
        assert_ne!(change.verdict, Verdict::Worse, "{}", found.text());
    }
}
