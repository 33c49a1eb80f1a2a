//! Targets in turns on one workload, until the figures are sure enough.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use nacre_engine::without_number;

use super::cold::{self, Cold};
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

/// Rounds after which a point may end because its time is over.
pub(crate) const FEW: u64 = 9;

/// The common settings of all points of a run.
pub struct Setting<'a> {
    /// Where targets are made.
    pub place: &'a Workplace,
    /// The program `nacre`.
    pub program: &'a Path,
    /// A directory on a disk.
    pub disk: &'a Path,
    /// The emulation of nacre's PM, where a target does not give one.
    pub emulate: Option<&'a str>,
    /// The limit of the page cache of each target, in bytes, where a target does not give one.
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
    /// Told the current work, and how much of a point is behind it, from 0 to 1; 1 once, when it is finished.
    pub progress: &'a dyn Fn(&str, f64),
}

/// Where cgroups with a limit can be made, or why nowhere; looked for when they are first needed.
pub type FoundGroups = LazyCell<Result<Groups, String>>;

/// One target at one point.
pub struct Outcome {
    /// Its name in the report.
    pub target: String,
    /// The parts that it is made of.
    pub about: String,
    /// The costs that its operations include.
    pub pays: Pays,
    /// Its results.
    pub point: Point,
}

/// A target, and its results so far.
struct Side<'a> {
    entrant: &'a Entrant,
    about: String,
    pays: Pays,
    samples: Vec<Sample>,
    disturbed: usize,
    times: Times,
    counters: Counters,
    seat: Option<Seat>,
}

/// A target at work, for one sitting.
struct Seat {
    // Dropped in this order: the handle that keeps an emulated disk to its pace, the worker, then its target.
    _hurry: Option<std::process::ChildStdin>,
    worker: Worker,
    group: Option<Group>,
    prepared: Prepared,
}

/// The value of one round.
#[derive(Clone, Copy)]
struct Sample {
    sitting: u64,
    round: u64,
    value: f64,
}

/// Runs one workload on targets in turns. Targets that cannot be had are noted. When the run is to end, the finished
/// rounds count; if no target has finished a round, nothing does.
pub fn run_point(
    setting: &Setting<'_>,
    request: &Request,
    place: &Place,
    absent: &mut Vec<Absent>,
) -> Result<Vec<Outcome>, Error> {
    let workload = place.workload.as_str();
    let work = workload::make(&workload.parse()?, setting.scale)?;
    if let Some(why) = work.missing() {
        absent.push(Absent { what: workload.to_owned(), why });
        return Ok(Vec::new());
    }
    let effort = match work.length() {
        Length::Whole => Effort { slice: Duration::ZERO, ..setting.effort },
        Length::Slice => setting.effort,
        Length::Short => setting.effort.in_parts(),
    };
    let effort = Effort { warm_up: effort.warm_up.max(place.warm_up), ..effort };
    let ground = Ground {
        place: setting.place,
        load: Load { bytes: work.bytes(), files: work.files() },
        emulate: setting.emulate,
        disk: setting.disk,
        program: setting.program,
    };
    let sides = place.entrants.iter().map(Side::new).collect();
    let mut turns = Turns {
        setting,
        request,
        workload,
        cold: place.cold,
        flush: place.flush,
        settle: Duration::from_secs(place.settle),
        ground,
        effort,
        sides,
        absent,
        counted: 0,
    };
    turns.all()?;
    let Turns { sides, .. } = turns;
    let cycle = sides.len();
    let base = base_of(&sides, request).map(|side| (side.entrant.name.clone(), side.samples.clone()));
    Ok(sides
        .into_iter()
        .filter(|side| !side.samples.is_empty())
        .map(|side| side.finish(workload, base.as_ref(), cycle))
        .collect())
}

/// A point while it is measured.
struct Turns<'a> {
    setting: &'a Setting<'a>,
    request: &'a Request,
    workload: &'a str,
    cold: Cold,
    flush: Option<u64>,
    settle: Duration,
    ground: Ground<'a>,
    effort: Effort,
    sides: Vec<Side<'a>>,
    absent: &'a mut Vec<Absent>,
    /// Rounds that count.
    counted: u64,
}

impl Turns<'_> {
    /// Sittings, until the figures are sure, the time is over, or the run is to end.
    fn all(&mut self) -> Result<(), Error> {
        let mut begin = None;
        for sitting in 0.. {
            let preparing = Instant::now();
            if begin.is_some_and(|begin| self.is_over(begin)) || !self.sit_down(sitting)? {
                break;
            }
            let settled = self.warm_up(sitting)?;
            let Some(first) = settled.filter(|_| !self.sides.is_empty()) else { return Ok(()) };
            let (seated, preparing) = (Instant::now(), preparing.elapsed());
            let begin = *begin.get_or_insert(seated);
            for turn in 0.. {
                if self.effort.is_sitting_over(turn, self.sides.len(), seated.elapsed(), preparing) {
                    break;
                }
                if self.is_over(begin) || !self.round(sitting, first + turn, Some(begin))? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The rounds at the begin of a sitting that do not count; gives the number of the next one. `None` when the run is to end.
    fn warm_up(&mut self, sitting: u64) -> Result<Option<u64>, Error> {
        let seated = Instant::now();
        let mut turn = 0;
        while !self.sides.is_empty() && (turn < self.effort.warm_up || seated.elapsed() < self.settle) {
            if !self.round(sitting, turn, None)? {
                return Ok(None);
            }
            turn += 1;
        }
        Ok(Some(turn))
    }

    fn is_over(&self, begin: Instant) -> bool {
        let Effort { rounds: (fewest, most), precision, limit, .. } = self.effort;
        self.sides.is_empty()
            || self.counted >= most
            || self.counted >= fewest && is_sure(&self.sides, self.request, precision)
            || self.counted >= fewest.min(FEW) && begin.elapsed() > limit
    }

    /// Sets every target up, beginning with another one each time, because the last one finds other free DRAM and
    /// caches than the rest. The previous targets go away first: there may be no room for both. False when the run is
    /// to end.
    fn sit_down(&mut self, sitting: u64) -> Result<bool, Error> {
        self.sides.iter_mut().for_each(|side| side.seat = None);
        let watch = self.request.measure == Measure::Counter(counters::SYNCED.to_owned());
        let mut failed = Vec::new();
        let first = sitting as usize % self.sides.len().max(1);
        for place in 0..self.sides.len() {
            if self.setting.stop.is_set() {
                return Ok(false);
            }
            let at = (first + place) % self.sides.len();
            let side = &mut self.sides[at];
            if self.counted == 0 {
                let what = format!("{}: preparing {}", self.workload, side.entrant.name);
                (self.setting.progress)(&what, 0.0);
            }
            match side.sit_down(&self.ground, self.setting, self.workload, watch) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => failed.push((at, error)),
            }
        }
        self.leave(failed);
        Ok(true)
    }

    /// One round of each target, which counts if a time is given at which those that do began. False when the run is to end.
    fn round(&mut self, sitting: u64, turn: u64, begin: Option<Instant>) -> Result<bool, Error> {
        let passed = begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
        let done = f64::max(
            passed / self.effort.limit.as_secs_f64(),
            self.counted as f64 / self.effort.rounds.1 as f64,
        );
        let what = format!("{}: round {}", self.workload, self.counted + 1);
        (self.setting.progress)(&what, done.min(0.99));
        let working = self.sides.iter().filter_map(|side| Some(&side.seat.as_ref()?.prepared));
        if self.cold.before(turn) && working.clone().any(|prepared| prepared.cached) {
            cold::empty(working.filter_map(|prepared| match &prepared.opening {
                Opening::Directory(path) => Some(path.as_path()),
                Opening::Library { .. } => None,
            }))?;
        }
        if self.cold.before(turn) && !self.empty()? {
            return Ok(false);
        }
        // Random numbers begin anew with each sitting, and are others.
        let seed = self.setting.seed.wrapping_add(sitting);
        let order = Order::Run { number: turn, seed, slice: self.effort.slice, flush: self.flush };
        let counts = begin.map(|_| (sitting, self.counted));
        // Another one begins each time, so that no target always follows the same.
        let first = (sitting + turn) as usize % self.sides.len();
        let mut failed = Vec::new();
        for place in 0..self.sides.len() {
            let at = (first + place) % self.sides.len();
            match self.sides[at].round(&order, self.setting, counts, &self.request.measure) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => failed.push((at, error)),
            }
        }
        self.leave(failed);
        self.counted += u64::from(counts.is_some());
        Ok(true)
    }

    /// Empties the caches of targets that no page cache is of. False when the run is to end.
    fn empty(&mut self) -> Result<bool, Error> {
        let mut failed = Vec::new();
        for (at, side) in self.sides.iter_mut().enumerate() {
            let Some(Seat { worker, prepared, .. }) = &mut side.seat else { continue };
            if !prepared.opening.has_cache() {
                continue;
            }
            match worker.tell(&Order::Empty, self.setting.stop) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(false),
                Err(error) => failed.push((at, error)),
            }
        }
        self.leave(failed);
        Ok(true)
    }

    /// Takes those out that have failed, and notes why.
    fn leave(&mut self, mut failed: Vec<(usize, Error)>) {
        failed.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, error) in failed {
            let side = self.sides.remove(at);
            let name = side.entrant.name.clone();
            // Before it has worked, the reason is not the workload's.
            let what = if side.seat.is_none() { name } else { format!("{name} at {}", self.workload) };
            self.absent.push(Absent { what, why: without_number(error.to_string()) });
        }
    }
}

fn base_of<'s, 'a>(sides: &'s [Side<'a>], request: &Request) -> Option<&'s Side<'a>> {
    let baseline = request.baseline.as_deref()?;
    sides.iter().find(|side| side.entrant.name == baseline)
}

/// Whether each figure is as precise as asked for.
fn is_sure(sides: &[Side<'_>], request: &Request, precision: f64) -> bool {
    let (base, cycle) = (base_of(sides, request), sides.len());
    sides.iter().all(|side| {
        let values = match base {
            Some(base) if !std::ptr::eq(base, side) => {
                independent(&ratios(&side.samples, &base.samples), cycle)
            }
            Some(_) => return true,
            None => independent(&side.samples, cycle),
        };
        let (low, high) = stats::median_interval(&values);
        // A ratio of nothing to nothing does not become surer.
        low.is_nan() || (high - low) / 2.0 <= precision * stats::median(&values).abs()
    })
}

/// Ratios of the rounds that both have.
fn ratios(samples: &[Sample], base: &[Sample]) -> Vec<Sample> {
    let base: BTreeMap<u64, f64> = base.iter().map(|sample| (sample.round, sample.value)).collect();
    samples.iter().filter_map(|at| Some(Sample { value: at.value / base.get(&at.round)?, ..*at })).collect()
}

/// Values that do not depend on each other. These are the medians of sittings, as soon as there are enough of them for
/// an interval; before that, those of cycles; and rounds where there are few.
fn independent(samples: &[Sample], cycle: usize) -> Vec<f64> {
    let sittings: Vec<Vec<f64>> =
        samples.chunk_by(|a, b| a.sitting == b.sitting).map(|sitting| cycles(sitting, cycle)).collect();
    if sittings.len() >= stats::FEWEST_FOR_INTERVAL {
        return sittings.iter().map(|sitting| stats::median(sitting)).collect();
    }
    let cycles = sittings.concat();
    if cycles.len() < stats::FEWEST_FOR_INTERVAL { values(samples) } else { cycles }
}

/// The means of so many rounds each, in which each target came first once. The first one finds other cores and caches
/// than the rest, which is worth up to a fifth of the time of small requests.
fn cycles(sitting: &[Sample], cycle: usize) -> Vec<f64> {
    if cycle < 2 || sitting.len() < cycle {
        return values(sitting);
    }
    sitting.chunks_exact(cycle).map(|rounds| stats::mean(&values(rounds))).collect()
}

fn values(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.value).collect()
}

impl<'a> Side<'a> {
    fn new(entrant: &'a Entrant) -> Side<'a> {
        Side {
            entrant,
            about: String::new(),
            pays: Pays::Kernel,
            samples: Vec::new(),
            disturbed: 0,
            times: Times::default(),
            counters: Counters::default(),
            seat: None,
        }
    }

    /// Sets the target up and has the workload prepared on it. False when the run is to end.
    fn sit_down(
        &mut self,
        ground: &Ground<'_>,
        setting: &Setting<'_>,
        workload: &str,
        watch: bool,
    ) -> Result<bool, Error> {
        let mut prepared = self.entrant.plan.set_up(ground)?;
        let worker = Worker::start(setting.program)?;
        let group = hold(&worker, &mut prepared, self.entrant.plan.dram().or(setting.memory), setting)?;
        (self.about, self.pays) = (prepared.about.clone(), prepared.pays);
        let opening = prepared.opening.clone();
        let _hurry = prepared.hurry.take();
        let mut seat = Seat { _hurry, worker, group, prepared };
        let order = Order::Prepare { opening, workload: workload.to_owned(), scale: setting.scale, watch };
        let told = seat.worker.tell(&order, setting.stop)?;
        self.seat = Some(seat);
        Ok(told.is_some())
    }

    /// Runs a round, which counts as this one of this sitting. False when the run is to end.
    fn round(
        &mut self,
        order: &Order,
        setting: &Setting<'_>,
        counts: Option<(u64, u64)>,
        measure: &Measure,
    ) -> Result<bool, Error> {
        let Some(Seat { prepared, worker, group, .. }) = &mut self.seat else { return Ok(false) };
        // The question to the server for its traffic takes time that is not the workload's.
        let before = prepared.traffic();
        let (server, disk) = (prepared.server().map(counters::processor_time), prepared.disk_work());
        let Some(Answer::Ran(ran)) = worker.tell(order, setting.stop)? else { return Ok(false) };
        let served = prepared.server().map(counters::processor_time);
        let disk = prepared.disk_work().zip(disk).map(|(now, then)| now.since(then));
        let Some((sitting, round)) = counts else { return Ok(true) };
        let measured = ran.measured();
        self.times.merge(&measured.times);
        let after = prepared.traffic();
        let Ran { cpu, traffic, disturbed, synced, .. } = *ran;
        self.disturbed += usize::from(disturbed > 0);
        let traffic = traffic.or_else(|| Some(counters::difference(before?, after?)));
        let served = served.zip(server).map_or(0, |(after, before)| after.saturating_sub(before));
        let peak = group.as_ref().and_then(Group::peak);
        let counted = Counted { cpu: cpu + served, traffic, preempted: disturbed, synced, peak, disk };
        let mut alone = Counters::default();
        alone.add(&measured, &counted);
        self.samples.push(Sample { sitting, round, value: measure.of(&measured, &alone)? });
        self.counters.add(&measured, &counted);
        Ok(true)
    }

    fn finish(self, workload: &str, base: Option<&(String, Vec<Sample>)>, cycle: usize) -> Outcome {
        let target = self.entrant.name.clone();
        let ratio = base.filter(|(name, _)| *name != target).map(|(_, base)| {
            let ratios = independent(&ratios(&self.samples, base), cycle);
            Ratio {
                median: stats::median(&ratios),
                interval: stats::median_interval(&ratios),
                p: stats::alike(&ratios),
            }
        });
        let samples = values(&self.samples);
        let point = Point {
            workload: workload.to_owned(),
            target: self.entrant.plan.name(),
            median: stats::median(&samples),
            interval: stats::median_interval(&independent(&self.samples, cycle)),
            sittings: self.samples.chunk_by(|a, b| a.sitting == b.sitting).map(<[Sample]>::len).collect(),
            samples,
            disturbed: self.disturbed,
            ratio,
            latency: self.times.iter().map(|(op, times)| latency(op.name(), times)).collect(),
            counters: self.counters.finish(),
            ..Point::default()
        };
        Outcome { target, about: self.about, pays: self.pays, point }
    }
}

/// Limits a worker, and the page cache that it fills, to the DRAM of the run.
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
    use super::{Sample, independent, ratios};

    fn samples(of: &[(u64, u64, f64)]) -> Vec<Sample> {
        of.iter().map(|&(sitting, round, value)| Sample { sitting, round, value }).collect()
    }

    #[test]
    fn only_rounds_that_both_have_are_compared() {
        let base = samples(&[(0, 2, 6.0), (0, 3, 1.0), (1, 4, 1.0)]);
        let found = ratios(&samples(&[(0, 1, 2.0), (0, 2, 3.0), (1, 4, 1.0)]), &base);
        assert_eq!(found.iter().map(|at| (at.round, at.value)).collect::<Vec<_>>(), [(2, 0.5), (4, 1.0)]);
    }

    #[test]
    fn a_sitting_counts_once() {
        let few = samples(&[(0, 0, 1.0), (0, 1, 2.0), (1, 2, 9.0)]);
        assert_eq!(independent(&few, 1), [1.0, 2.0, 9.0]);
        let many: Vec<_> = (0..7).flat_map(|sitting| (0..3).map(move |round| (sitting, round))).collect();
        let many: Vec<_> = many.iter().map(|&(a, b)| (a, 3 * a + b, a as f64 + b as f64 / 10.0)).collect();
        assert_eq!(independent(&samples(&many), 1), [0.1, 1.1, 2.1, 3.1, 4.1, 5.1, 6.1]);
    }

    /// Whoever comes second is four times as fast here.
    #[test]
    fn who_comes_first_does_not_matter() {
        let rounds: Vec<_> = (0..13).map(|at| (0, at, if at % 2 == 0 { 0.5 } else { 2.0 })).collect();
        assert_eq!(independent(&samples(&rounds), 2), [1.0; 6]);
        assert_eq!(independent(&samples(&rounds[..3]), 2), [0.5, 2.0, 0.5], "too few cycles");
    }
}
