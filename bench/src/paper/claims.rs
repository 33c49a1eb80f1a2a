//! A paper's values next to the measured ones: [`Value`]s become [`Claim`]s of the report.

use super::{Across, Experiment, OverAt, Overall, Paper, Source, System, Value, Way};
use crate::counters;
use crate::report::schema::{Better, Claim, Meant};

/// A question to the measurements: one system at one point, and the ratio over another where there is one.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Of this experiment.
    pub experiment: &'a Experiment,
    /// The system, and the key of its point.
    pub of: (&'a System, &'a str),
    /// The divisor.
    pub over: Option<(&'a System, &'a str)>,
    /// Which way nacre's operations go.
    pub way: Way,
    /// A counter, instead of the experiment's own value.
    pub counter: Option<&'a str>,
}

/// A measured value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// The median.
    pub median: f64,
    /// Its confidence interval, where there is one.
    pub interval: Option<(f64, f64)>,
}

/// Answers a question, or returns the reason for its wait: `preset:hinfs is not there yet`.
pub type Answers<'a> = dyn FnMut(Asked<'_>) -> Result<Reading, String> + 'a;

/// One pair of systems at one point.
struct Case<'a> {
    experiment: &'a Experiment,
    of: &'a System,
    over: Option<&'a System>,
    at: &'a str,
    way: Way,
}

impl Experiment {
    /// The paper's claims about this experiment, next to the answers. If a part of a value waits, the claim is made
    /// from the rest, and names the rest only. Claims that compare nacre with peers appear twice where both ways were
    /// measured: in the process, and mounted.
    pub fn claims(&self, answers: &mut Answers<'_>) -> Vec<Claim> {
        let source = |value: &Value| source(&self.paper, value, &self.figure);
        self.values.iter().flat_map(|value| claims(value, &[self], source(value), answers)).collect()
    }
}

impl Paper {
    /// The paper's claims about several experiments together, where at least one of them is among the given.
    pub fn overall_claims(
        &self,
        overall: &Overall,
        ran: &[&Experiment],
        answers: &mut Answers<'_>,
    ) -> Vec<Claim> {
        let meant =
            |experiment: &&Experiment| overall.experiments.iter().any(|name| experiment.answers_to(name));
        let ran: Vec<&Experiment> = ran.iter().copied().filter(meant).collect();
        if ran.is_empty() {
            return Vec::new();
        }
        claims(&overall.value, &ran, source(&self.short, &overall.value, "text"), answers)
    }
}

fn source(paper: &str, value: &Value, figure: &str) -> String {
    match value.source {
        Source::Nacre => "nacre".to_owned(),
        Source::Text | Source::Table => format!("{paper}, {}", value.place.as_deref().unwrap_or(figure)),
    }
}

fn claims(
    value: &Value,
    experiments: &[&Experiment],
    source: String,
    answers: &mut Answers<'_>,
) -> Vec<Claim> {
    let ways = ways(value, experiments);
    let on = |way: &Way| claims_on(*way, ways.len() > 1, value, experiments, &source, answers);
    ways.iter().flat_map(on).collect()
}

/// The ways on which a value is looked for: both where it has nacre and peers of the kernel, or asks for both, and both
/// were measured, else one.
fn ways(value: &Value, experiments: &[&Experiment]) -> Vec<Way> {
    let named = || value.of.iter().chain(&value.over);
    let has = |kind: &str| {
        experiments.iter().any(|experiment| {
            let mut systems = named().filter_map(|name| experiment.system(name));
            systems.any(|system| system.target.as_ref().is_ok_and(|target| target.starts_with(kind)))
        })
    };
    let mut ways = Vec::new();
    for way in experiments.iter().flat_map(|experiment| experiment.ways()) {
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    if !(value.on_both || has("preset:") && has("peer:")) {
        ways.truncate(1);
    }
    ways
}

fn claims_on(
    way: Way,
    both: bool,
    value: &Value,
    experiments: &[&Experiment],
    source: &str,
    answers: &mut Answers<'_>,
) -> Vec<Claim> {
    let cases: Vec<Case<'_>> =
        experiments.iter().flat_map(|experiment| cases(value, experiment, way, both)).collect();
    if cases.is_empty() {
        return Vec::new();
    }
    let unit = || {
        let counter = value.counter.as_deref().and_then(counters::unit);
        counter.unwrap_or(&cases[0].experiment.metric.unit).to_owned()
    };
    let read: Vec<_> = cases.iter().map(|case| (case, case.read(value, answers))).collect();
    let claim = |cases: &[&Case<'_>], found: Result<Reading, String>| Claim {
        what: words(value, cases, both && way == Way::Mount),
        source: source.to_owned(),
        said: value.said,
        meant: value.is,
        unit: value.over.is_empty().then(unit),
        found: found.as_ref().ok().map(|reading| reading.median),
        interval: found.as_ref().ok().and_then(|reading| reading.interval),
        holds_if: value.goal.filter(|_| value.goal_on.is_none_or(|only| only == way)),
        waits_for: found.err(),
        weak_spot: weak_spot(value, cases),
    };
    if value.across == Across::Each {
        return read.into_iter().map(|(case, found)| claim(&[case], found)).collect();
    }
    let (used, readings): (Vec<&Case<'_>>, Vec<Reading>) =
        read.iter().filter_map(|(case, found)| Some((*case, *found.as_ref().ok()?))).unzip();
    match together(value.across, &readings) {
        Some(reading) => vec![claim(&used, Ok(reading))],
        None => {
            let mut reasons: Vec<String> = read.into_iter().filter_map(|(_, found)| found.err()).collect();
            reasons.sort();
            reasons.dedup();
            vec![claim(&cases.iter().collect::<Vec<_>>(), Err(reasons.join("; ")))]
        }
    }
}

/// The better side of a ratio in which the paper's system, one of ours here, is behind a peer or as good at the most.
fn weak_spot(value: &Value, cases: &[&Case<'_>]) -> Option<Better> {
    let is_ours = |system: &System| {
        let target = system.target.as_deref().unwrap_or_default();
        target.starts_with("preset:") || target.starts_with("mount:")
    };
    let sides = |case: &Case<'_>| Some((is_ours(case.of), is_ours(case.over?)));
    let sides: Option<Vec<(bool, bool)>> = cases.iter().map(|case| sides(case)).collect();
    let is_above = match sides?.as_slice() {
        [] => return None,
        sides if sides.iter().all(|sides| *sides == (true, false)) => true,
        sides if sides.iter().all(|sides| *sides == (false, true)) => false,
        // Of two of ours, neither is the one that is to be better.
        _ => return None,
    };
    let counter = value.counter.as_deref().and_then(counters::better);
    let more = counter.unwrap_or(cases[0].experiment.metric.better) == Better::More;
    let better = if more == is_above { Better::More } else { Better::Less };
    let is_weak = match better {
        Better::More => value.said <= 1.0 && value.is != Meant::AtLeast,
        Better::Less => value.said >= 1.0 && value.is != Meant::AtMost,
    };
    is_weak.then_some(better)
}

/// Every pair at every point. Systems that an experiment does not have are passed over: values of several experiments
/// name them all. Points of other programs are on mounts only.
fn cases<'a>(value: &'a Value, experiment: &'a Experiment, way: Way, both: bool) -> Vec<Case<'a>> {
    let pairs: Vec<(&String, Option<&String>)> = if value.over.is_empty() {
        value.of.iter().map(|of| (of, None)).collect()
    } else if value.of.len() == value.over.len() {
        value.of.iter().zip(value.over.iter().map(Some)).collect()
    } else {
        value.of.iter().flat_map(|of| value.over.iter().map(move |over| (of, Some(over)))).collect()
    };
    let every: Vec<&str> = if value.at.is_empty() {
        experiment.points.iter().map(|point| point.key.as_str()).collect()
    } else {
        value.at.iter().map(String::as_str).collect()
    };
    let mut cases = Vec::new();
    for (of, over) in pairs {
        let Some(of) = experiment.system(of) else { continue };
        let over = match over {
            None => None,
            Some(name) => match experiment.system(name) {
                None => continue,
                over => over,
            },
        };
        cases.extend(every.iter().filter_map(|at| {
            let outside = experiment.point(at).is_some_and(|point| point.needs_directory());
            match (outside, way, both) {
                (true, Way::Library, true) => None,
                (true, ..) => Some(Case { experiment, of, over, at, way: Way::Mount }),
                (false, ..) => Some(Case { experiment, of, over, at, way }),
            }
        }));
    }
    cases
}

impl Case<'_> {
    fn read(&self, value: &Value, answers: &mut Answers<'_>) -> Result<Reading, String> {
        let over = match self.over {
            None => None,
            Some(over) => {
                over.target.as_ref().map_err(Clone::clone)?;
                let at = match &value.over_at {
                    None => self.at,
                    Some(OverAt::Point(key)) => key,
                    Some(OverAt::Best) => self.best(over, value, answers)?,
                };
                self.is_there(at)?;
                Some((over, at))
            }
        };
        self.of.target.as_ref().map_err(Clone::clone)?;
        self.is_there(self.at)?;
        let of = (self.of, self.at);
        let counter = value.counter.as_deref();
        answers(Asked { experiment: self.experiment, of, over, way: self.way, counter })
    }

    fn is_there(&self, at: &str) -> Result<(), String> {
        let point = self.experiment.point(at).ok_or_else(|| format!("there is no point {at}"))?;
        point.workload.as_ref().map_err(Clone::clone).map(|_| ())
    }

    /// The point where a system does best, among those that were measured.
    fn best(&self, of: &System, value: &Value, answers: &mut Answers<'_>) -> Result<&str, String> {
        let mut best: Option<(f64, &str)> = None;
        let mut waits = "nothing was measured".to_owned();
        let counter = value.counter.as_deref();
        let better = counter.and_then(counters::better).unwrap_or(self.experiment.metric.better);
        for point in &self.experiment.points {
            let of = (of, point.key.as_str());
            let asked = Asked { experiment: self.experiment, of, over: None, way: self.way, counter };
            match answers(asked) {
                Err(why) => waits = why,
                Ok(reading) => {
                    let is_best = best.is_none_or(|(median, _)| match better {
                        Better::More => reading.median > median,
                        Better::Less => reading.median < median,
                    });
                    if is_best {
                        best = Some((reading.median, &point.key));
                    }
                }
            }
        }
        best.map(|(_, key)| key).ok_or(waits)
    }
}

/// One reading from several. The largest and the smallest keep their intervals; a mean has none.
fn together(across: Across, readings: &[Reading]) -> Option<Reading> {
    let by_median = |one: &&Reading, other: &&Reading| one.median.total_cmp(&other.median);
    match across {
        Across::Most => readings.iter().max_by(by_median).copied(),
        Across::Least => readings.iter().min_by(by_median).copied(),
        Across::Each | Across::Mean if readings.is_empty() => None,
        Across::Each | Across::Mean => {
            let sum: f64 = readings.iter().map(|reading| reading.median).sum();
            Some(Reading { median: sum / readings.len() as f64, interval: None })
        }
    }
}

/// `HiNFS over PMFS, NOVA; fileserver (largest): up to 127 % more`.
fn words(value: &Value, cases: &[&Case<'_>], mounted: bool) -> String {
    let mut points = Vec::new();
    let (mut of, mut over) = (Vec::new(), Vec::new());
    let add = |list: &mut Vec<String>, item: &str| {
        if !list.iter().any(|known| known == item) {
            list.push(item.to_owned());
        }
    };
    for case in cases {
        add(&mut of, &case.of.name);
        if let Some(system) = case.over {
            add(&mut over, &system.name);
        }
        let label = case.experiment.point(case.at).map_or(case.at, |point| &point.label);
        add(&mut points, label);
    }
    let several = cases.iter().any(|case| case.experiment.name != cases[0].experiment.name);
    let all = cases.first().is_some_and(|case| case.experiment.points.len() == points.len());
    let points = match points.len() {
        1 => points.join(""),
        _ if several => "all sweeps".to_owned(),
        _ if all => "all points".to_owned(),
        _ => points.join(", "),
    };
    let mut words = of.join(", ");
    match (&value.over_at, over.is_empty()) {
        (_, true) => words += &format!("; {points}"),
        (None, false) => words += &format!(" over {}; {points}", over.join(", ")),
        (Some(OverAt::Best), false) => words += &format!(" at {points}, over its best"),
        (Some(OverAt::Point(key)), false) => {
            let point = cases.first().and_then(|case| case.experiment.point(key));
            let label = point.map_or(key, |point| &point.label);
            words += &format!(" at {points} over {} at {label}", over.join(", "));
        }
    }
    let across = match value.across {
        Across::Each => None,
        Across::Mean => Some("mean"),
        Across::Most => Some("largest"),
        Across::Least => Some("smallest"),
    };
    if let Some(across) = across {
        words += &format!(" ({across})");
    }
    if mounted {
        words += ", mounted";
    }
    if !value.note.is_empty() {
        words += &format!(": {}", value.note);
    }
    words
}
