//! Can the explorer fail? Mutants: the layout without one of its flushes or fences, each in turn, and with one of its
//! mistakes on purpose. Each must be found, or its place in the source must be listed with the reason why nothing is
//! lost without it. Mistakes of the write buffer over the layout must be found, too.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// A workload, its settings, and the sites that it and its recoveries pass.
struct Candidate {
    workload: Workload,
    settings: Settings,
    flushes: Vec<Site>,
    fences: Vec<Site>,
}

/// Where mutants are looked for.
struct Places {
    candidates: Vec<Candidate>,
    together: Vec<Together>,
    buffered: Vec<Buffered>,
}

#[derive(Clone, Copy)]
struct Trial {
    kind: &'static str,
    flaw: Flaw,
}

/// Makes all mutants of a layout whose name contains `only`, and looks for each, on so many threads. `progress` is
/// called for each.
pub fn self_test<S: Subject>(
    subject: &S,
    jobs: usize,
    seed: u64,
    only: &str,
    progress: &(dyn Fn(&Mutant) + Sync),
) -> Result<Vec<Mutant>> {
    let together = parallel(subject, jobs, threads_for(subject), Together::new)?;
    let mistakes = subject.mistakes();
    let is_meant = |site: &Site| subject.site_name(site).contains(only);
    let any_mistake = mistakes.iter().any(|mistake| mistake.words.contains(only));
    let candidates = parallel(subject, jobs, workloads(subject, seed), |rig, (workload, settings)| {
        let (flushes, fences) = sites(rig, &workload)?;
        // Nothing is looked for in others.
        if any_mistake || flushes.iter().chain(&fences).any(is_meant) {
            // The control: without a flaw nothing is found.
            let report = explore(rig, &workload, &settings)?;
            if let Some(violation) = report.violations.first() {
                return Err(Error::corrupt(format!("without any mutation: {violation}")));
            }
        }
        Ok(Candidate { workload, settings, flushes, fences })
    })?;
    let buffered = parallel(subject, jobs, (0..BUFFERED).map(|step| seed + step).collect(), Buffered::new)?;
    let mut trials = Vec::new();
    for (kind, list) in [("no flush", true), ("no fence", false)] {
        let of = |candidate: &Candidate| if list { &candidate.flushes } else { &candidate.fences }.clone();
        let mut all: Vec<Site> = candidates.iter().flat_map(of).collect();
        all.extend(buffered.iter().flat_map(|one| if list { &one.flushes } else { &one.fences }));
        all.sort_unstable();
        all.dedup();
        trials.extend(all.into_iter().map(|site| {
            let defect = if list { Defect::SkipFlushAt(site) } else { Defect::SkipFenceAt(site) };
            Trial { kind, flaw: Flaw::Memory(defect) }
        }));
    }
    let mut passed: Vec<Site> =
        candidates.iter().flat_map(|one| [&one.flushes, &one.fences]).flatten().copied().collect();
    passed.extend(together.iter().flat_map(|one| [&one.flushes, &one.fences]).flatten());
    passed.extend(buffered.iter().flat_map(|one| [&one.flushes, &one.fences]).flatten());
    let places = Places { candidates, together, buffered };
    let unpassed = unpassed(subject, &passed, only);
    unpassed.iter().for_each(progress);
    trials
        .extend(mistakes.iter().map(|mistake| Trial { kind: "mistake", flaw: Flaw::Layout(mistake.number) }));
    trials.extend(buffer_mistakes(subject));
    trials.retain(|trial| name_of(subject, trial.flaw).contains(only));
    let mut mutants = parallel(subject, jobs, trials, |rig, trial| {
        let mutant = try_mutant(rig, trial, &places)?;
        progress(&mutant);
        Ok(mutant)
    })?;
    mutants.extend(unpassed);
    Ok(mutants)
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

fn try_mutant<S: Subject>(rig: &mut Rig<'_, S>, trial: Trial, places: &Places) -> Result<Mutant> {
    let name = name_of(rig.subject, trial.flaw);
    let site = match trial.flaw {
        Flaw::Memory(Defect::SkipFlushAt(site) | Defect::SkipFenceAt(site)) => Some(site),
        _ => None,
    };
    let is_fence = trial.kind == "no fence";
    // A buffer that is not there can make no mistake.
    let in_buffer = trial.flaw.of_buffer().is_some();
    let passes = |flushes: &[Site], fences: &[Site]| {
        site.is_none_or(|site| if is_fence { fences } else { flushes }.contains(&site))
    };
    let mut images = 0;
    let mut found = None;
    for candidate in &places.candidates {
        if in_buffer || !passes(&candidate.flushes, &candidate.fences) {
            continue;
        }
        let settings = Settings { flaw: trial.flaw, ..candidate.settings };
        let problem = match explore(rig, &candidate.workload, &settings) {
            Ok(report) => {
                images += report.images + report.recovery_crashes;
                report.violations.first().map(in_words)
            }
            // It does not even get through its workload.
            Err(error) => Some(format!("{}, {error}", candidate.workload.name)),
        };
        if problem.is_some() {
            found = problem;
            break;
        }
    }
    let together = places.together.iter().filter(|_| !in_buffer);
    let mut together = together.filter(|together| passes(&together.flushes, &together.fences));
    while let Some(together) = together.next().filter(|_| found.is_none()) {
        found = together.find(rig, trial.flaw, &mut images);
    }
    let mut buffered = places.buffered.iter().filter(|one| passes(&one.flushes, &one.fences));
    while let Some(buffered) = buffered.next().filter(|_| found.is_none()) {
        found = buffered.find(rig, trial.flaw, &mut images);
    }
    let argument = rig.subject.harmless().iter();
    let argument = argument.clone().find(|harmless| harmless.site == name && harmless.is_fence == is_fence);
    let verdict = match (found, argument.filter(|_| site.is_some())) {
        (Some(found), None | Some(Harmless { by_chance: true, .. })) => Verdict::Found(found),
        (Some(found), Some(_)) => Verdict::WronglyArgued(found),
        (None, Some(harmless)) => Verdict::Argued(harmless.argument),
        (None, None) => Verdict::Missed,
    };
    Ok(Mutant { name, kind: trial.kind, verdict, images })
}

/// A workload of several threads, and the sites that they pass.
struct Together {
    workload: Threads,
    flushes: Vec<Site>,
    fences: Vec<Site>,
}

impl Together {
    /// Runs it without a flaw, where nothing must be found.
    fn new<S: Subject>(rig: &mut Rig<'_, S>, workload: Threads) -> Result<Together> {
        let mut together = Together { workload, flushes: Vec::new(), fences: Vec::new() };
        if let Some(problem) = together.find(rig, Flaw::None, &mut 0) {
            return Err(Error::corrupt(format!("without any mutation: {problem}")));
        }
        for seed in 0..INTERLEAVINGS {
            let (flushes, fences) = sites_of_threads(rig, &together.workload, seed)?;
            together.flushes.extend(flushes);
            together.fences.extend(fences);
        }
        Ok(together)
    }

    /// Some flaws show only when other threads go on in between.
    fn find<S: Subject>(&self, rig: &mut Rig<'_, S>, flaw: Flaw, images: &mut u64) -> Option<String> {
        for seed in 0..INTERLEAVINGS {
            let sampling = Sampling { exhaustive_up_to: 64, samples: 32, seed };
            match explore_threads(rig, &self.workload, seed, &sampling, flaw) {
                Ok(report) => {
                    *images += report.images;
                    if let Some(violation) = report.violations.first() {
                        return Some(in_words(violation));
                    }
                }
                Err(error) => return Some(format!("{}, {error}", self.workload.name)),
            }
        }
        None
    }
}

/// A sequence through a write buffer, and the sites that it passes.
struct Buffered {
    sequence: Cached,
    flushes: Vec<Site>,
    fences: Vec<Site>,
}

impl Buffered {
    /// Runs it without a flaw, where nothing must be found.
    fn new<S: Subject>(rig: &mut Rig<'_, S>, seed: u64) -> Result<Buffered> {
        let sequence = cached(rig.subject, seed);
        let (flushes, fences) = sites_of_cached(rig, &sequence)?;
        let buffered = Buffered { sequence, flushes, fences };
        match buffered.find(rig, Flaw::None, &mut 0) {
            Some(problem) => Err(Error::corrupt(format!("without any mutation: {problem}"))),
            None => Ok(buffered),
        }
    }

    fn find<S: Subject>(&self, rig: &mut Rig<'_, S>, flaw: Flaw, images: &mut u64) -> Option<String> {
        let settings = CachedSettings { flaw, max_violations: 1, ..CachedSettings::default() };
        match explore_cached(rig, &self.sequence, &settings) {
            Ok(report) => {
                *images += report.images;
                report.violations.first().map(in_words)
            }
            Err(error) => Some(format!("{}, {error}", self.sequence.name)),
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
