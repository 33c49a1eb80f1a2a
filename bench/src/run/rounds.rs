//! Targets in turns on one workload, until the figures are sure enough.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use super::effort::Effort;
use super::memory::{Group, Groups};
use super::stop::Stop;
use super::worker::{Answer, Order, Ran, Worker};
use crate::Error;
use crate::counters::Counters;
use crate::place::Workplace;
use crate::report::schema::{Absent, Latency, Pays, Point, Ratio};
use crate::stats;
use crate::target::plan::{Ground, Plan, Prepared};
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
    /// What the page cache of each target is held to, in bytes, and where groups for that are made.
    pub memory: Option<(u64, Groups)>,
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

/// One target at one point.
pub struct Outcome {
    /// The target.
    pub target: String,
    /// What it is made of.
    pub about: String,
    /// What it pays for.
    pub pays: Pays,
    /// What it did.
    pub point: Point,
}

/// A target at work.
struct Side {
    plan: Plan,
    samples: Vec<(u64, f64)>,
    disturbed: usize,
    times: Times,
    counters: Counters,
    // Dropped in this order: what holds an emulated disk to its pace, who works, then what is worked on.
    _hurry: Option<std::process::ChildStdin>,
    worker: Worker,
    _group: Option<Group>,
    prepared: Prepared,
}

/// Runs one workload on targets in turns. What cannot be had is noted; when the run is to end, what was finished counts,
/// and nothing if no target has finished a round.
pub fn run_point(
    setting: &Setting<'_>,
    plans: &[Plan],
    baseline: Option<&str>,
    workload: &str,
    absent: &mut Vec<Absent>,
) -> Result<Vec<Outcome>, Error> {
    let work = workload::make(&workload.parse()?, setting.scale)?;
    if let Some(why) = work.missing() {
        absent.push(Absent { what: workload.to_owned(), why });
        return Ok(Vec::new());
    }
    let ground = Ground {
        place: setting.place,
        bytes: work.bytes(),
        files: work.files(),
        emulate: setting.emulate,
        disk: setting.disk,
        program: setting.program,
    };
    let mut sides = Vec::new();
    for plan in plans {
        if setting.stop.is_set() {
            return Ok(Vec::new());
        }
        (setting.progress)(&format!("{workload}: preparing {}", plan.name()), 0.0);
        match Side::start(plan, &ground, setting, workload) {
            Ok(Some(side)) => sides.push(side),
            Ok(None) => return Ok(Vec::new()),
            Err(error) => absent.push(Absent { what: plan.name(), why: error.to_string() }),
        }
    }
    let value = work.value();
    let effort = setting.effort;
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
        // Another one begins each time, so that nobody always follows the same.
        let first = number as usize % sides.len();
        let mut failed = Vec::new();
        for turn in 0..sides.len() {
            let at = (first + turn) % sides.len();
            let order = Order::Run { number, seed: setting.seed, slice };
            match sides[at].round(&order, setting, number >= effort.warm_up, value) {
                Ok(true) => {}
                Ok(false) => break 'rounds,
                Err(error) => failed.push((at, error)),
            }
        }
        failed.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, error) in failed {
            let what = format!("{} at {workload}", sides.remove(at).plan.name());
            absent.push(Absent { what, why: error.to_string() });
        }
        number += 1;
    }
    let base = baseline.and_then(|name| sides.iter().find(|side| side.plan.name() == name));
    let base = base.map(|side| (side.plan.name(), side.samples.clone()));
    Ok(sides
        .into_iter()
        .filter(|side| !side.samples.is_empty())
        .map(|side| side.finish(workload, base.as_ref()))
        .collect())
}

/// Whether each figure is as precise as asked for.
fn is_sure(sides: &[Side], baseline: Option<&str>, precision: f64) -> bool {
    let base = baseline.and_then(|name| sides.iter().find(|side| side.plan.name() == name));
    sides.iter().all(|side| {
        let values = match base {
            Some(base) if !std::ptr::eq(base, side) => ratios(&side.samples, &base.samples),
            Some(_) => return true,
            None => side.samples.iter().map(|(_, value)| *value).collect(),
        };
        let (low, high) = stats::median_interval(&values);
        (high - low) / 2.0 <= precision * stats::median(&values).abs()
    })
}

/// Ratios of the rounds that both have.
fn ratios(samples: &[(u64, f64)], base: &[(u64, f64)]) -> Vec<f64> {
    let base: BTreeMap<u64, f64> = base.iter().copied().collect();
    samples.iter().filter_map(|(round, value)| Some(value / base.get(round)?)).collect()
}

impl Side {
    /// Sets a target up and has the workload prepared on it. None when the run is to end.
    fn start(
        plan: &Plan,
        ground: &Ground<'_>,
        setting: &Setting<'_>,
        workload: &str,
    ) -> Result<Option<Side>, Error> {
        let mut prepared = plan.set_up(ground)?;
        let worker = Worker::start(setting.program)?;
        let group = hold(&worker, &mut prepared, setting)?;
        let mut side = Side {
            plan: plan.clone(),
            samples: Vec::new(),
            disturbed: 0,
            times: Times::default(),
            counters: Counters::default(),
            _hurry: prepared.hurry.take(),
            worker,
            _group: group,
            prepared,
        };
        let order = Order::Prepare {
            opening: side.prepared.opening.clone(),
            workload: workload.to_owned(),
            scale: setting.scale,
        };
        Ok(side.worker.tell(&order, setting.stop)?.map(|_| side))
    }

    /// Runs a round. False when the run is to end.
    fn round(
        &mut self,
        order: &Order,
        setting: &Setting<'_>,
        counts: bool,
        value: workload::Value,
    ) -> Result<bool, Error> {
        let before = self.prepared.traffic(setting.program);
        let server = self.prepared.server().map(crate::counters::processor_time);
        let Some(Answer::Ran(ran)) = self.worker.tell(order, setting.stop)? else { return Ok(false) };
        if !counts {
            return Ok(true);
        }
        let Order::Run { number, .. } = order else { return Ok(false) };
        let measured = ran.measured();
        self.samples.push((*number, value.of(&measured)));
        self.times.merge(&measured.times);
        let after = self.prepared.traffic(setting.program);
        let served = self.prepared.server().map(crate::counters::processor_time);
        let Ran { cpu, traffic, disturbed, .. } = *ran;
        self.disturbed += usize::from(disturbed > 0);
        let traffic = traffic.or_else(|| Some(crate::counters::difference(before?, after?)));
        let served = served.zip(server).map_or(0, |(after, before)| after.saturating_sub(before));
        self.counters.add(&measured, cpu + served, traffic, disturbed);
        Ok(true)
    }

    fn finish(self, workload: &str, base: Option<&(String, Vec<(u64, f64)>)>) -> Outcome {
        let samples: Vec<f64> = self.samples.iter().map(|(_, value)| *value).collect();
        let target = self.plan.name();
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
fn hold(worker: &Worker, prepared: &mut Prepared, setting: &Setting<'_>) -> Result<Option<Group>, Error> {
    let Some((bytes, groups)) = &setting.memory else { return Ok(None) };
    if !prepared.cached {
        return Ok(None);
    }
    let group = groups.make(&worker.process().to_string(), *bytes)?;
    group.enter(worker.process())?;
    prepared
        .about
        .push_str(&format!(", page cache and worker held to {}", nacre_engine::size::print(*bytes)));
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
