//! Can the explorer fail? Mutants: the layout without one of its flushes or fences, each in turn, and with one of its
//! mistakes on purpose. Each must be found, or its place in the source must be listed with the reason why nothing is
//! lost without it. Mistakes of the write buffer over the layout must be found, too.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use nacre_engine::{Error, Result};
use nacre_media::crash::Sampling;
use nacre_media::sim::{Defect, Site};

use super::cached::{BufferMistake, Cached, CachedSettings, cached, explore_cached, sites_of_cached};
use super::explore::{MEMORY, Settings, explore, sites};
use super::full::full;
use super::lanes::lanes;
use super::op::Op;
use super::record::{Flaw, Rig};
use super::report::Violation;
use super::sequences::{Length, sequences};
use super::subject::{Harmless, Overwrites, Subject};
use super::threads::{Threads, explore_threads, sites_of_threads, threads_for};
use super::workload::{Workload, deep_for, fixed};

/// Interleavings of threads that a mutant is looked for in.
const INTERLEAVINGS: u64 = 20;
/// Sequences through a write buffer that a mutant is looked for in. Each of them passes the sites that only buffered
/// writes pass.
const BUFFERED: u64 = 24;

/// One mutant, and its verdict.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// Where it is, or which mistake.
    pub name: String,
    /// The kind of the flaw.
    pub kind: &'static str,
    /// Whether it was found.
    pub verdict: Verdict,
    /// Images that were recovered for that.
    pub images: u64,
}

/// Whether a mutant was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was, in this workload; the problem that showed it.
    Found(String),
    /// It was not, and this is why it does no harm.
    Argued(&'static str),
    /// It was not, and no reason is stated.
    Missed,
    /// It is said to do no harm, but it was found.
    WronglyArgued(String),
}

impl Mutant {
    /// The self-test passes with it.
    pub fn is_good(&self) -> bool {
        matches!(self.verdict, Verdict::Found(_) | Verdict::Argued(_))
    }
}

/// Which mutants a self-test makes, and how long it looks for them.
#[derive(Debug, Clone, Copy, Default)]
pub struct SelfTest<'a> {
    /// The seed of samples.
    pub seed: u64,
    /// Only mutants whose name contains this.
    pub only: &'a str,
    /// Images at least for a mutant that is argued to do no harm, where there are so many; `None` for all.
    pub argued: Option<u64>,
}

/// How far a self-test is: the first number of the second.
#[derive(Debug, Clone, Copy)]
pub enum SelfTestStep<'a> {
    /// Workloads are prepared: their sites are known.
    Prepared(usize, usize),
    /// Mutants are tried, this one last.
    Tried(&'a Mutant, usize, usize),
}

/// Counts what is done, of so much.
struct Count {
    done: AtomicUsize,
    all: usize,
}

impl Count {
    fn of(all: usize) -> Count {
        Count { done: AtomicUsize::new(0), all }
    }

    /// One more is done: how many are, of how many.
    fn one(&self) -> (usize, usize) {
        (self.done.fetch_add(1, Ordering::Relaxed) + 1, self.all)
    }
}

/// A place where a mutant is looked for.
enum Search {
    /// A workload, and how thoroughly it is explored.
    Alone(Workload, Settings),
    /// A workload of several threads: some flaws show only when other threads go on in between.
    Together(Threads),
    /// A sequence through a write buffer.
    Buffered(Cached),
}

/// A search, and the sites that it and its recoveries pass.
struct Place {
    search: Search,
    flushes: Vec<Site>,
    fences: Vec<Site>,
    /// The problem that it finds without a flaw, once that was asked.
    control: OnceLock<Option<String>>,
}

#[derive(Clone, Copy)]
struct Trial {
    kind: &'static str,
    flaw: Flaw,
}

/// Makes mutants of a layout, and looks for each, on so many threads. `report` is called for each step.
pub fn self_test<S: Subject>(
    subject: &S,
    jobs: usize,
    test: SelfTest<'_>,
    report: &(dyn Fn(SelfTestStep<'_>) + Sync),
) -> Result<Vec<Mutant>> {
    let SelfTest { seed, only, argued } = test;
    let searches = searches(subject, seed);
    let prepared = Count::of(searches.len());
    let places = parallel(subject, jobs, searches, |rig, search| {
        let place = Place::new(rig, search)?;
        let (done, all) = prepared.one();
        report(SelfTestStep::Prepared(done, all));
        Ok(place)
    })?;
    let passed: Vec<Site> =
        places.iter().flat_map(|place| [&place.flushes, &place.fences]).flatten().copied().collect();
    let unpassed = unpassed(subject, &passed, only);
    let mut trials = trials(&places);
    let mistakes = subject.mistakes();
    trials
        .extend(mistakes.iter().map(|mistake| Trial { kind: "mistake", flaw: Flaw::Layout(mistake.number) }));
    trials.extend(buffer_mistakes(subject));
    trials.retain(|trial| name_of(subject, trial.flaw).contains(only));
    let tried = Count::of(unpassed.len() + trials.len());
    let tell = |mutant: &Mutant| {
        let (done, all) = tried.one();
        report(SelfTestStep::Tried(mutant, done, all));
    };
    unpassed.iter().for_each(tell);
    let mut mutants = parallel(subject, jobs, trials, |rig, trial| {
        let mutant = try_mutant(rig, trial, &places, argued)?;
        tell(&mutant);
        Ok(mutant)
    })?;
    mutants.extend(unpassed);
    Ok(mutants)
}

/// Everything that mutants are looked for in, the quickest first.
fn searches<S: Subject>(subject: &S, seed: u64) -> Vec<Search> {
    let alone =
        workloads(subject, seed).into_iter().map(|(workload, settings)| Search::Alone(workload, settings));
    let together = threads_for(subject).into_iter().map(Search::Together);
    let buffered = (0..BUFFERED).map(|step| Search::Buffered(cached(subject, seed + step)));
    alone.chain(together).chain(buffered).collect()
}

/// A mutant for each flush and each fence that is passed in one thread.
fn trials(places: &[Place]) -> Vec<Trial> {
    let mut trials = Vec::new();
    let places = || places.iter().filter(|place| !matches!(place.search, Search::Together(_)));
    for (kind, list) in [("no flush", true), ("no fence", false)] {
        let of = |place: &Place| if list { &place.flushes } else { &place.fences }.clone();
        let mut all: Vec<Site> = places().flat_map(of).collect();
        all.sort_unstable();
        all.dedup();
        trials.extend(all.into_iter().map(|site| {
            let defect = if list { Defect::SkipFlushAt(site) } else { Defect::SkipFenceAt(site) };
            Trial { kind, flaw: Flaw::Memory(defect) }
        }));
    }
    trials
}

/// Mistakes of a buffer over the layout.
fn buffer_mistakes<S: Subject>(subject: &S) -> impl Iterator<Item = Trial> {
    let atomic_write = subject.overwrites() == Overwrites::Whole;
    let mistakes = BufferMistake::ALL.into_iter().filter(move |mistake| mistake.is_one(atomic_write));
    mistakes.map(|mistake| Trial { kind: "mistake of the buffer", flaw: Flaw::Cache(mistake) })
}

/// Sites that flush or fence in the source, but in no workload: a missing one would go unnoticed.
fn unpassed<S: Subject>(subject: &S, passed: &[Site], only: &str) -> Vec<Mutant> {
    let names = subject.unpassed(passed).into_iter().filter(|name| name.contains(only));
    let elsewhere = subject.passed_elsewhere();
    let verdict = |name: &str| match elsewhere.iter().find(|(known, _)| *known == name) {
        Some((_, reason)) => Verdict::Argued(reason),
        None => Verdict::Missed,
    };
    names.map(|name| Mutant { verdict: verdict(&name), name, kind: "not passed", images: 0 }).collect()
}

/// Where mutants are looked for: short workloads first.
fn workloads<S: Subject>(subject: &S, seed: u64) -> Vec<(Workload, Settings)> {
    let settings = Settings {
        sampling: Sampling { exhaustive_up_to: 512, samples: 96, seed },
        check_every: 2,
        empty_every: 8,
        recovery_every: 16,
        max_violations: 1,
        ..Settings::default()
    };
    let few = Settings {
        sampling: Sampling { exhaustive_up_to: 16, samples: 16, seed },
        samples_per_line: 1,
        recovery_every: 256,
        ..settings
    };
    let own = subject.workloads().into_iter().filter(|workload| workload.ops.len() == 1);
    let short = fixed().into_iter().chain(sequences(Length::One, seed)).chain(own);
    // A new file system is thousands of lines for one fence, and few of them matter.
    let one = |workload: Workload| {
        let many = if workload.ops.contains(&Op::Mkfs) { 4 } else { 1 };
        let sampling = Sampling { samples: many * settings.sampling.samples, ..settings.sampling };
        (workload, Settings { sampling, ..settings })
    };
    let mut all: Vec<_> = short.map(one).collect();
    // Of workloads that differ in a number only, the first will do.
    let first = |workload: &Workload| match workload.name.rsplit_once('-') {
        Some((_, number)) => number.parse::<u64>().is_err() || number == "0",
        None => true,
    };
    all.extend(deep_for(subject).into_iter().filter(first).map(|workload| (workload, few)));
    // Of full devices, and of several lanes, what others do not reach.
    let names = [
        "full at an unmount",
        "full of removals",
        "overwritten on a full device (Removals",
        "extents of both, 0",
        "inodes run out, 0",
    ];
    let is_named = |workload: &Workload| names.iter().any(|name| workload.name.contains(name));
    all.extend(full().into_iter().chain(lanes(seed)).filter(is_named).map(|workload| (workload, few)));
    all.sort_by_key(|(workload, _)| workload.ops.len());
    all
}

fn name_of<S: Subject>(subject: &S, flaw: Flaw) -> String {
    match flaw {
        Flaw::Memory(Defect::SkipFlushAt(site) | Defect::SkipFenceAt(site)) => subject.site_name(site),
        Flaw::Layout(number) => {
            let mistakes = subject.mistakes();
            let mistake = mistakes.iter().find(|mistake| mistake.number == number);
            mistake.map_or_else(String::new, |mistake| mistake.words.to_string())
        }
        Flaw::Cache(mistake) => mistake.words().to_string(),
        _ => String::new(),
    }
}

fn try_mutant<S: Subject>(
    rig: &mut Rig<'_, S>,
    trial: Trial,
    places: &[Place],
    argued: Option<u64>,
) -> Result<Mutant> {
    let name = name_of(rig.subject, trial.flaw);
    let is_fence = trial.kind == "no fence";
    let argument = rig.subject.harmless().iter();
    let argument = argument.clone().find(|harmless| harmless.site == name && harmless.is_fence == is_fence);
    let argument = argument.filter(|_| trial.flaw.of_buffer().is_none());
    let most = argument.and(argued).unwrap_or(u64::MAX);
    let mut images = 0;
    let mut found = None;
    for place in places.iter().filter(|place| place.may_show(trial.flaw)) {
        if images >= most {
            break;
        }
        found = place.find(rig, trial.flaw, &mut images);
        if found.is_some() {
            place.check_control(rig)?;
            break;
        }
    }
    let verdict = match (found, argument) {
        (Some(found), None | Some(Harmless { by_chance: true, .. })) => Verdict::Found(found),
        (Some(found), Some(_)) => Verdict::WronglyArgued(found),
        (None, Some(harmless)) => Verdict::Argued(harmless.argument),
        (None, None) => Verdict::Missed,
    };
    Ok(Mutant { name, kind: trial.kind, verdict, images })
}

impl Place {
    /// Runs it for its sites.
    fn new<S: Subject>(rig: &mut Rig<'_, S>, search: Search) -> Result<Place> {
        let (flushes, fences) = match &search {
            Search::Alone(workload, _) => sites(rig, workload)?,
            Search::Together(workload) => {
                let mut all = (Vec::new(), Vec::new());
                for seed in 0..INTERLEAVINGS {
                    let (flushes, fences) = sites_of_threads(rig, workload, seed)?;
                    all.0.extend(flushes);
                    all.1.extend(fences);
                }
                all
            }
            Search::Buffered(sequence) => sites_of_cached(rig, sequence)?,
        };
        Ok(Place { search, flushes, fences, control: OnceLock::new() })
    }

    /// A buffer that is not there can make no mistake, and a site that is not passed can be left out.
    fn may_show(&self, flaw: Flaw) -> bool {
        match flaw {
            Flaw::Cache(_) => matches!(self.search, Search::Buffered(_)),
            Flaw::Memory(Defect::SkipFlushAt(site)) => self.flushes.contains(&site),
            Flaw::Memory(Defect::SkipFenceAt(site)) => self.fences.contains(&site),
            _ => true,
        }
    }

    /// Looks for a flaw: the problem that shows it.
    fn find<S: Subject>(&self, rig: &mut Rig<'_, S>, flaw: Flaw, images: &mut u64) -> Option<String> {
        // With an error it does not even get through.
        let mut judge = |name: &str, result: Result<(u64, Option<String>)>| match result {
            Ok((tried, problem)) => {
                *images += tried;
                problem
            }
            Err(error) => Some(format!("{name}, {error}")),
        };
        let first = |violations: &[Violation]| violations.first().map(in_words);
        match &self.search {
            Search::Alone(workload, settings) => {
                let report = explore(rig, workload, &Settings { flaw, ..*settings });
                let result =
                    report.map(|report| (report.images + report.recovery_crashes, first(&report.violations)));
                judge(&workload.name, result)
            }
            Search::Together(workload) => (0..INTERLEAVINGS).find_map(|seed| {
                let sampling = Sampling { exhaustive_up_to: 64, samples: 32, seed };
                let report = explore_threads(rig, workload, seed, &sampling, flaw);
                judge(&workload.name, report.map(|report| (report.images, first(&report.violations))))
            }),
            Search::Buffered(sequence) => {
                let settings = CachedSettings { flaw, max_violations: 1, ..CachedSettings::default() };
                let report = explore_cached(rig, sequence, &settings);
                judge(&sequence.name, report.map(|report| (report.images, first(&report.violations))))
            }
        }
    }

    /// The control: where something was found, nothing must be found without a flaw.
    fn check_control<S: Subject>(&self, rig: &mut Rig<'_, S>) -> Result<()> {
        match self.control.get_or_init(|| self.find(rig, Flaw::None, &mut 0)) {
            Some(problem) => Err(Error::corrupt(format!("without any mutation: {problem}"))),
            None => Ok(()),
        }
    }
}

fn in_words(violation: &Violation) -> String {
    let problem = violation.problems.first().map_or("", String::as_str);
    format!("{}, {problem}", violation.case.name())
}

/// Calls a function with each item, on threads with a rig each; returns the results in order.
fn parallel<S: Subject, T: Send, R: Send>(
    subject: &S,
    jobs: usize,
    items: Vec<T>,
    work: impl Fn(&mut Rig<'_, S>, T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let one = || {
            let mut rig = Rig::new(subject, MEMORY);
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(index) else { return Ok::<(), Error>(()) };
                let item = item.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(item) = item {
                    let result = work(&mut rig, item)?;
                    *results[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                }
            }
        };
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(one)).collect();
        for worker in workers {
            match worker.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<(), Error>(())
    })?;
    let results = results.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok(results.flatten().collect())
}
