//! Targets in turns on one workload, until the figures are sure enough.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use super::cold;
use super::effort::Effort;
use super::experiment::{Entrant, Place, Request};
use super::measure::Measure;
use super::memory::{Group, Groups};
use super::stop::Stop;
use super::worker::{Answer, Order, Ran, Worker};
use crate::Error;
use crate::counters::{self, Counted, Counters};
use crate::place::Workplace;
use crate::report::schema::{Absent, Latency, Pays, Point, Ratio};
use crate::stats;
use crate::target::plan::{Ground, Load, Opening, Prepared};
use crate::workload::{self, Length, recorder::Times};

/// Shares of operations whose time is reported.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 1.0];

/// What all points of a run have in common.
pub struct Setting<'a> {
    /// Where targets are made.
    pub place: &'a Workplace,
    /// The program `nacre`.
    pub program: &'a Path,
    /// A directory on a disk.
    pub disk: &'a Path,
    /// What memory of nacre is slowed down to, where a target does not say.
    pub emulate: Option<&'a str>,
    /// What the page cache of each target is held to, in bytes, where a target does not say.
    pub memory: Option<u64>,
    /// Where groups for that are made.
    pub groups: &'a FoundGroups,
    /// Of random numbers.
    pub seed: u64,
    /// Sizes are multiplied by this.
    pub scale: f64,
    /// How much is done.
    pub effort: Effort,
    /// Set when the run is to end.
    pub stop: &'a Stop,
    /// Told what is done, and how much of a point is behind it, from 0 to 1; 1 once, when it is finished.
    pub progress: &'a dyn Fn(&str, f64),
}

/// Where memory cgroups can be made, or why nowhere; looked for when they are first needed.
pub type FoundGroups = LazyCell<Result<Groups, String>>;

/// One target at one point.
pub struct Outcome {
    /// Its name in the report.
    pub target: String,
    /// What it is made of.
    pub about: String,
    /// What it pays for.
    pub pays: Pays,
    /// What it did.
    pub point: Point,
}

/// A target at work.
struct Side<'a> {
    entrant: &'a Entrant,
    samples: Vec<(u64, f64)>,
    disturbed: usize,
    times: Times,
    counters: Counters,
    // Dropped in this order: what holds an emulated disk to its pace, who works, then what is worked on.
    _hurry: Option<std::process::ChildStdin>,
    worker: Worker,
    group: Option<Group>,
    prepared: Prepared,
}

/// Runs one workload on targets in turns. What cannot be had is noted; when the run is to end, what was finished counts,
/// and nothing if no target has finished a round.
pub fn run_point(
    setting: &Setting<'_>,
    request: &Request,
    place: &Place,
    absent: &mut Vec<Absent>,
) -> Result<Vec<Outcome>, Error> {
    let (workload, baseline) = (place.workload.as_str(), request.baseline.as_deref());
    let work = workload::make(&workload.parse()?, setting.scale)?;
    if let Some(why) = work.missing() {
        absent.push(Absent { what: workload.to_owned(), why });
        return Ok(Vec::new());
    }
    let ground = Ground {
        place: setting.place,
        load: Load { bytes: work.bytes(), files: work.files() },
        emulate: setting.emulate,
        disk: setting.disk,
        program: setting.program,
    };
    let mut sides = Vec::new();
    let watch = request.measure == Measure::Counter(counters::SYNCED.to_owned());
    for entrant in &place.entrants {
        if setting.stop.is_set() {
            return Ok(Vec::new());
        }
        (setting.progress)(&format!("{workload}: preparing {}", entrant.name), 0.0);
        match Side::start(entrant, &ground, setting, workload, watch) {
            Ok(Some(side)) => sides.push(side),
            Ok(None) => return Ok(Vec::new()),
            Err(error) => absent.push(Absent { what: entrant.name.clone(), why: error.to_string() }),
        }
    }
    let effort = Effort { warm_up: setting.effort.warm_up.max(place.warm_up), ..setting.effort };
    let slice = if work.length() == Length::Whole { std::time::Duration::ZERO } else { effort.slice };
    let begin = Instant::now();
    let mut number = 0;
    'rounds: while !sides.is_empty() && number < effort.warm_up + effort.rounds.1 {
        let counted = number.saturating_sub(effort.warm_up);
        if counted >= effort.rounds.0
            && (begin.elapsed() > effort.limit || is_sure(&sides, baseline, effort.precision))
        {
            break;
        }
        let done = f64::max(
            begin.elapsed().as_secs_f64() / effort.limit.as_secs_f64(),
            number as f64 / (effort.warm_up + effort.rounds.1) as f64,
        );
        (setting.progress)(&format!("{workload}: round {}", number + 1), done.min(0.99));
        if place.cold.before(number) && sides.iter().any(|side| side.prepared.cached) {
            cold::empty(sides.iter().filter_map(|side| match &side.prepared.opening {
                Opening::Directory(path) => Some(path.as_path()),
                Opening::Library { .. } => None,
            }))?;
        }
        // Another one begins each time, so that nobody always follows the same.
        let first = number as usize % sides.len();
        let mut failed = Vec::new();
        for turn in 0..sides.len() {
            let at = (first + turn) % sides.len();
            let order = Order::Run { number, seed: setting.seed, slice };
            match sides[at].round(&order, setting, number >= effort.warm_up, &request.measure) {
                Ok(true) => {}
                Ok(false) => break 'rounds,
                Err(error) => failed.push((at, error)),
            }
        }
        failed.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, error) in failed {
            let what = format!("{} at {workload}", sides.remove(at).entrant.name);
            absent.push(Absent { what, why: error.to_string() });
        }
        number += 1;
    }
    let base = baseline.and_then(|name| sides.iter().find(|side| side.entrant.name == name));
    let base = base.map(|side| (side.entrant.name.clone(), side.samples.clone()));
    Ok(sides
        .into_iter()
        .filter(|side| !side.samples.is_empty())
        .map(|side| side.finish(workload, base.as_ref()))
        .collect())
}

/// Whether each figure is as precise as asked for.
fn is_sure(sides: &[Side<'_>], baseline: Option<&str>, precision: f64) -> bool {
    let base = baseline.and_then(|name| sides.iter().find(|side| side.entrant.name == name));
    sides.iter().all(|side| {
        let values = match base {
            Some(base) if !std::ptr::eq(base, side) => ratios(&side.samples, &base.samples),
            Some(_) => return true,
            None => side.samples.iter().map(|(_, value)| *value).collect(),
        };
        let (low, high) = stats::median_interval(&values);
        // A ratio of nothing to nothing does not become surer.
        low.is_nan() || (high - low) / 2.0 <= precision * stats::median(&values).abs()
    })
}

/// Ratios of the rounds that both have.
fn ratios(samples: &[(u64, f64)], base: &[(u64, f64)]) -> Vec<f64> {
    let base: BTreeMap<u64, f64> = base.iter().copied().collect();
    samples.iter().filter_map(|(round, value)| Some(value / base.get(round)?)).collect()
}

impl<'a> Side<'a> {
    /// Sets a target up and has the workload prepared on it. None when the run is to end.
    fn start(
        entrant: &'a Entrant,
        ground: &Ground<'_>,
        setting: &Setting<'_>,
        workload: &str,
        watch: bool,
    ) -> Result<Option<Side<'a>>, Error> {
        let mut prepared = entrant.plan.set_up(ground)?;
        let worker = Worker::start(setting.program)?;
        let group = hold(&worker, &mut prepared, entrant.plan.dram().or(setting.memory), setting)?;
        let mut side = Side {
            entrant,
            samples: Vec::new(),
            disturbed: 0,
            times: Times::default(),
            counters: Counters::default(),
            _hurry: prepared.hurry.take(),
            worker,
            group,
            prepared,
        };
        let order = Order::Prepare {
            opening: side.prepared.opening.clone(),
            workload: workload.to_owned(),
            scale: setting.scale,
            watch,
        };
        Ok(side.worker.tell(&order, setting.stop)?.map(|_| side))
    }

    /// Runs a round. False when the run is to end.
    fn round(
        &mut self,
        order: &Order,
        setting: &Setting<'_>,
        counts: bool,
        measure: &Measure,
    ) -> Result<bool, Error> {
        let before = self.prepared.traffic(setting.program);
        let server = self.prepared.server().map(crate::counters::processor_time);
        let Some(Answer::Ran(ran)) = self.worker.tell(order, setting.stop)? else { return Ok(false) };
        if !counts {
            return Ok(true);
        }
        let Order::Run { number, .. } = order else { return Ok(false) };
        let measured = ran.measured();
        self.times.merge(&measured.times);
        let after = self.prepared.traffic(setting.program);
        let served = self.prepared.server().map(crate::counters::processor_time);
        let Ran { cpu, traffic, disturbed, synced, .. } = *ran;
        self.disturbed += usize::from(disturbed > 0);
        let traffic = traffic.or_else(|| Some(crate::counters::difference(before?, after?)));
        let served = served.zip(server).map_or(0, |(after, before)| after.saturating_sub(before));
        let peak = self.group.as_ref().and_then(Group::peak);
        let counted = Counted { cpu: cpu + served, traffic, preempted: disturbed, synced, peak };
        let mut alone = Counters::default();
        alone.add(&measured, &counted);
        self.samples.push((*number, measure.of(&measured, &alone)?));
        self.counters.add(&measured, &counted);
        Ok(true)
    }

    fn finish(self, workload: &str, base: Option<&(String, Vec<(u64, f64)>)>) -> Outcome {
        let samples: Vec<f64> = self.samples.iter().map(|(_, value)| *value).collect();
        let target = self.entrant.name.clone();
        let ratio = base.filter(|(name, _)| *name != target).map(|(_, base)| {
            let ratios = ratios(&self.samples, base);
            Ratio {
                median: stats::median(&ratios),
                interval: stats::median_interval(&ratios),
                p: stats::alike(&ratios),
            }
        });
        let point = Point {
            workload: workload.to_owned(),
            target: self.entrant.plan.name(),
            median: stats::median(&samples),
            interval: stats::median_interval(&samples),
            samples,
            disturbed: self.disturbed,
            ratio,
            latency: self.times.iter().map(|(op, times)| latency(op.name(), times)).collect(),
            counters: self.counters.finish(),
            ..Point::default()
        };
        Outcome { target, about: self.prepared.about.clone(), pays: self.prepared.pays, point }
    }
}

/// Holds a worker, and the page cache that it fills, to the memory of the run.
fn hold(
    worker: &Worker,
    prepared: &mut Prepared,
    bytes: Option<u64>,
    setting: &Setting<'_>,
) -> Result<Option<Group>, Error> {
    let Some(bytes) = bytes.filter(|_| prepared.cached) else { return Ok(None) };
    let groups = LazyCell::force(setting.groups).as_ref().map_err(Clone::clone)?;
    let group = groups.make(&worker.process().to_string(), bytes)?;
    group.enter(worker.process())?;
    prepared.about.push_str(&format!(", page cache and worker held to {}", nacre_engine::size::print(bytes)));
    Ok(Some(group))
}

/// Times of one kind of operation, in nanoseconds.
fn latency(operation: &str, times: &hdrhistogram::Histogram<u64>) -> Latency {
    let tick = crate::clock::nanos_per_tick();
    let nanos = |ticks: u64| ticks as f64 * tick;
    let quantiles = QUANTILES.map(|share| (share, nanos(times.value_at_quantile(share))));
    // Steps of a tenth: enough for a drawing.
    let drawn = times.iter_log(64, 1.1);
    let histogram = drawn.map(|step| (nanos(step.value_iterated_to()), step.count_since_last_iteration()));
    Latency {
        operation: operation.to_owned(),
        count: times.len(),
        mean: times.mean() * tick,
        quantiles: quantiles.to_vec(),
        histogram: histogram.filter(|(_, count)| *count > 0).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::ratios;

    #[test]
    fn only_rounds_that_both_have_are_compared() {
        assert_eq!(ratios(&[(1, 2.0), (2, 3.0), (4, 1.0)], &[(2, 6.0), (3, 1.0), (4, 1.0)]), [0.5, 1.0]);
    }
}
