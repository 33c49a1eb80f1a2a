//! Many workloads on many cores.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nacre_engine::{Error, Kind, Result};
use nacre_media::crash::Sampling;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::cached::{CachedSettings, cached, explore_cached};
use super::explore::{MEMORY, Settings, explore};
use super::full::full;
use super::lanes::lanes;
use super::randomly::random;
use super::record::{Flaw, Rig};
use super::report::Report;
use super::sequences::{Length, sequences};
use super::spread::{self, Kinds, at_most, kind_of, own_points, short_of_images};
use super::subject::{Mounting, Subject};
use super::threads::{Threads, explore_threads, threads_for};
use super::workload::{Workload, deep, deep_for, fixed};

/// Time between two looks at the workers.
const TICK: Duration = Duration::from_millis(200);
/// Time between two writes of the progress file.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// One kind of workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A script for each operation.
    Fixed,
    /// Logs that grow, are collected, and cross pages; inodes that run out.
    Deep,
    /// So many random workloads of some dozen operations.
    Random(usize),
    /// All sequences of one length.
    Sequences(Length),
    /// Each operation on full devices; one in so many of these workloads.
    Full(usize),
    /// Workloads that only the subject has.
    Own,
    /// Several lanes.
    Lanes,
    /// Several threads, each workload with so many interleavings.
    Threads(u64),
    /// So many sequences through a write buffer.
    Cached(u64),
}

/// The unit of work of a worker.
enum Job {
    Workload(Workload, Settings),
    /// One that the subject wants first. It is never explored with few images.
    First(Workload, Settings),
    Threads(Threads, u64, Sampling),
    /// The sequence of this seed: there may be millions, so that they are made when their turn comes.
    Cached(u64, CachedSettings),
}

impl Job {
    /// The kind of its workload; `None` when it comes first anyway.
    fn kind(&self) -> Option<String> {
        match self {
            Job::Workload(workload, _) => Some(kind_of(&workload.name)),
            Job::First(..) => None,
            Job::Threads(workload, ..) => Some(kind_of(&workload.name)),
            Job::Cached(..) => Some(String::new()),
        }
    }

    /// Explores its workload, in full or with few images; returns its name, too.
    fn explore<S: Subject>(&self, rig: &mut Rig<'_, S>, is_full: bool) -> (String, Result<Report>) {
        match self {
            Job::Workload(workload, settings) if !is_full => {
                let recovery_sampling = spread::few(settings.recovery_sampling, false);
                let settings = Settings { few: true, recovery_sampling, ..*settings };
                (workload.name.clone(), explore(rig, workload, &settings))
            }
            Job::Workload(workload, settings) | Job::First(workload, settings) => {
                (workload.name.clone(), explore(rig, workload, settings))
            }
            Job::Threads(workload, seed, sampling) => {
                let sampling = if is_full { *sampling } else { spread::few(*sampling, false) };
                (workload.name.clone(), explore_threads(rig, workload, *seed, &sampling, Flaw::None))
            }
            Job::Cached(seed, settings) => {
                let sequence = cached(rig.subject, *seed);
                let few = spread::few(settings.recovery_sampling, false);
                let recovery_sampling = if is_full { settings.recovery_sampling } else { few };
                let settings = CachedSettings { few: !is_full, recovery_sampling, ..*settings };
                let explored = explore_cached(rig, &sequence, &settings);
                (sequence.name, explored)
            }
        }
    }
}

/// The scope of an exploration.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// Seed of the workloads, the samples and the order.
    pub seed: u64,
    /// The workloads.
    pub stages: Vec<Stage>,
    /// The most images of a crash point; as many as the stages ask for when not given.
    pub per_point: Option<u64>,
}

/// Limits at which a campaign ends before all is explored.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Threads.
    pub jobs: usize,
    /// After so long.
    pub time: Option<Duration>,
    /// After so many images.
    pub images: Option<u64>,
    /// After so many violations.
    pub violations: usize,
}

impl Limits {
    /// It may end before all is explored and nothing is wrong.
    fn are_bounds(&self) -> bool {
        self.time.is_some() || self.images.is_some()
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'p> {
    /// Since the start of this run.
    pub elapsed: Duration,
    /// The report so far, earlier runs included.
    pub report: &'p Report,
    /// Images of this run.
    pub images: u64,
    /// Workloads that are done, and all of them.
    pub workloads: (usize, usize),
    /// Workloads that are explored, be it with few images.
    pub visited: usize,
}

/// The outcome of a campaign.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The counts and violations, earlier runs included.
    pub report: Report,
    /// How long this run took.
    pub elapsed: Duration,
    /// Images of this run.
    pub images: u64,
    /// Workloads that are done, and all of them.
    pub workloads: (usize, usize),
    /// Workloads that are explored, be it with few images.
    pub visited: usize,
    /// Workloads that could not be run.
    pub failures: Vec<String>,
}

impl Outcome {
    /// Everything was explored and nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.report.violations.is_empty() && self.failures.is_empty()
    }
}

/// The workloads that a subject wants first.
fn first<S: Subject>(subject: &S) -> impl Iterator<Item = Workload> {
    let names = subject.first();
    fixed().into_iter().chain(deep()).filter(move |workload| names.contains(&workload.name.as_str()))
}

impl Stage {
    /// Its workloads, and how each is explored.
    fn jobs<S: Subject>(self, subject: &S, seed: u64, per_point: Option<u64>) -> Vec<Job> {
        let mut settings = self.settings(seed);
        if let Some(most) = per_point {
            settings.sampling = at_most(settings.sampling, most);
        }
        let workloads = match self {
            Stage::Fixed => fixed(),
            Stage::Deep => deep_for(subject),
            Stage::Random(count) => (0..count as u64).map(|i| random(seed.wrapping_add(i), 14)).collect(),
            Stage::Sequences(length) => sequences(length, seed),
            Stage::Full(one_in) => full().into_iter().step_by(one_in.max(1)).collect(),
            Stage::Lanes => lanes(seed),
            Stage::Own => {
                let mut own = subject.workloads();
                // A run that ends early has seen some of each kind.
                own.shuffle(&mut SmallRng::seed_from_u64(seed));
                let first = first(subject).flat_map(|workload| {
                    // With many images, and with few and a crash in the recovery of each.
                    let each = |exhaustive_up_to, samples, recovery_every| Settings {
                        sampling: Sampling { exhaustive_up_to, samples, ..settings.sampling },
                        recovery_every,
                        ..settings
                    };
                    let all = [each(1 << 11, 256, 128), each(16, 8, 1)];
                    all.map(|settings| Job::First(workload.clone(), settings))
                });
                let own = own.into_iter().map(|workload| Job::Workload(workload, settings));
                return first.chain(own).collect();
            }
            Stage::Cached(count) => {
                let sampling = settings.sampling;
                let settings = CachedSettings { sampling, ..CachedSettings::default() };
                let seeds = (0..count).map(|i| seed.wrapping_add(i));
                return seeds.map(|seed| Job::Cached(seed, settings)).collect();
            }
            Stage::Threads(count) => {
                let each = (0..count).flat_map(|i| {
                    // In one lane, where threads take turns, and in a lane for each.
                    let lanes = if i % 2 == 0 { 1 } else { 3 };
                    let in_lanes = move |workload: Threads| {
                        let mounting = Mounting { lanes, ..workload.mounting };
                        (Threads { mounting, ..workload }, seed.wrapping_add(i))
                    };
                    threads_for(subject).into_iter().map(in_lanes)
                });
                return each.map(|(w, seed)| Job::Threads(w, seed, settings.sampling)).collect();
            }
        };
        workloads.into_iter().map(|workload| Job::Workload(workload, settings)).collect()
    }

    fn settings(self, seed: u64) -> Settings {
        let sampling = |exhaustive_up_to, samples| Sampling { exhaustive_up_to, samples, seed };
        let recovery_sampling = Sampling { seed, ..Settings::default().recovery_sampling };
        let common = Settings { recovery_sampling, ..Settings::default() };
        match self {
            Stage::Fixed | Stage::Random(_) | Stage::Sequences(Length::One) => {
                Settings { sampling: sampling(1 << 11, 256), recovery_every: 128, ..common }
            }
            // Of many operations a few images each.
            Stage::Deep => Settings {
                sampling: sampling(8, 8),
                samples_per_line: 1,
                empty_every: 16,
                recovery_every: 512,
                ..common
            },
            Stage::Threads(_) => Settings { sampling: sampling(64, 48), ..common },
            Stage::Own => {
                Settings { sampling: sampling(64, 48), recovery_every: 64, empty_every: 4, ..common }
            }
            Stage::Cached(_) => Settings { sampling: sampling(16, 12), ..common },
            Stage::Full(_) => Settings { sampling: sampling(64, 48), recovery_every: 256, ..common },
            Stage::Lanes => Settings { sampling: sampling(128, 96), recovery_every: 256, ..common },
            Stage::Sequences(_) => {
                Settings { sampling: sampling(512, 256), empty_every: 16, recovery_every: 256, ..common }
            }
        }
    }
}

impl Campaign {
    /// The campaign that a progress file must have been written for.
    fn key(&self, layout: &str) -> String {
        format!("{layout}, seed {}, {:?}, {:?}", self.seed, self.stages, self.per_point)
    }

    /// Explores. With `file`, continues from that progress file, and writes it from time to time and at the end.
    /// Without one, and with limits, it explores few images of many workloads first (see [`spread`](super::spread)).
    pub fn run<S: Subject>(
        &self,
        subject: &S,
        limits: &Limits,
        file: Option<&Path>,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<Outcome> {
        let started = Instant::now();
        let of_stage = |(number, stage): (usize, &Stage)| {
            let jobs = stage.jobs(subject, self.seed, self.per_point);
            jobs.into_iter().map(move |job| (number, job))
        };
        let stages = self.stages.iter().enumerate();
        let (stages, workloads): (Vec<usize>, Vec<Job>) = stages.flat_map(of_stage).unzip();
        let key = self.key(subject.name());
        let file = file.map(progress_file).transpose()?;
        let file = file.as_deref();
        let saved = match file.filter(|file| file.exists()) {
            Some(file) => Saved::read(file, &key, subject)?,
            None => Saved::default(),
        };
        let todo = (0..workloads.len()).filter(|index| !saved.done.contains(index)).collect();
        let is_buffered = self.stages.iter().any(|stage| matches!(stage, Stage::Cached(_)));
        let shared = Shared {
            workloads,
            own: own_points(subject, is_buffered),
            limits,
            started,
            stop: AtomicBool::new(false),
            images: AtomicU64::new(0),
            found: Mutex::new(Found { saved, few: BTreeMap::new(), failures: Vec::new() }),
        };
        // A file that cannot be written is known before hours of work.
        if let Some(file) = file {
            shared.save(file, &key, subject)?;
        }
        let mut last_save = Instant::now();
        let mut watch = || {
            shared.report_progress(progress);
            if let Some(file) = file
                && last_save.elapsed() >= SAVE_EVERY
            {
                shared.save(file, &key, subject)?;
                last_save = Instant::now();
            }
            Ok(())
        };
        if limits.are_bounds() && file.is_none() {
            shared.spread(subject, &stages, self.seed, &mut watch)?;
        } else {
            shared.round(subject, &Round::new(todo, true), &mut watch)?;
        }
        shared.report_progress(progress);
        if let Some(file) = file {
            shared.save(file, &key, subject)?;
        }
        let images = shared.images.load(Ordering::Relaxed);
        let total = shared.workloads.len();
        let found = shared.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Outcome {
            elapsed: started.elapsed(),
            images,
            workloads: (found.saved.done.len(), total),
            visited: found.visited(),
            report: found.saved.report,
            failures: found.failures,
        })
    }
}

/// Workloads that the workers take in turn.
struct Round {
    todo: Vec<usize>,
    next: AtomicUsize,
    /// They are explored in full.
    is_full: bool,
}

impl Round {
    fn new(todo: Vec<usize>, is_full: bool) -> Round {
        Round { todo, next: AtomicUsize::new(0), is_full }
    }
}

/// The state that the workers share.
struct Shared<'c> {
    workloads: Vec<Job>,
    /// Whether the run is to cover each commit point.
    own: Vec<bool>,
    limits: &'c Limits,
    started: Instant,
    stop: AtomicBool,
    images: AtomicU64,
    found: Mutex<Found>,
}

struct Found {
    saved: Saved,
    /// The counts of workloads that were explored with few images. The saved report has them, too.
    few: BTreeMap<usize, Report>,
    failures: Vec<String>,
}

impl Found {
    /// Takes in an exploration without a violation. One in full stands for the one with few images.
    fn add(&mut self, workload: usize, report: Report, is_full: bool) {
        if let Some(few) = self.few.remove(&workload) {
            self.saved.report.take_away(&few);
        }
        if is_full {
            self.saved.done.insert(workload);
        } else {
            self.few.insert(workload, report.clone());
        }
        self.saved.report.add(report);
    }

    fn visited(&self) -> usize {
        self.saved.done.len() + self.few.len()
    }
}

impl Shared<'_> {
    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All workloads, each of the stage with this number, in the rounds of a run that may end early.
    fn spread<S: Subject>(
        &self,
        subject: &S,
        stages: &[usize],
        seed: u64,
        watch: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let jobs = || self.workloads.iter().zip(stages).enumerate();
        let comes_first = jobs().filter(|(_, (job, _))| job.kind().is_none());
        let mut todo: Vec<usize> = comes_first.map(|(index, _)| index).collect();
        let kinds = jobs().filter_map(|(index, (job, stage))| Some((index, (*stage, job.kind()?))));
        let kinds = Kinds::new(kinds, seed);
        todo.extend(kinds.firsts());
        self.round(subject, &Round::new(todo, false), watch)?;
        let wanted = self.wanted();
        self.round(subject, &Round::new(kinds.others(&wanted), false), watch)?;
        let mut todo = kinds.all(&self.wanted());
        // The rest could not be run, or has its violations.
        todo.retain(|workload| self.found().few.contains_key(workload));
        self.round(subject, &Round::new(todo, true), watch)
    }

    /// Workloads that reach a commit point that is short of images.
    fn wanted(&self) -> BTreeSet<usize> {
        let found = self.found();
        short_of_images(&self.own, &found.saved.report, &found.few)
    }

    /// Has workers explore these workloads. `watch` is called meanwhile.
    fn round<S: Subject>(
        &self,
        subject: &S,
        round: &Round,
        watch: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let jobs = self.limits.jobs.max(1).min(round.todo.len());
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| self.work(subject, round))).collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                std::thread::sleep(TICK);
                watch()?;
            }
            Ok(())
        })
    }

    fn work<S: Subject>(&self, subject: &S, round: &Round) {
        if self.is_over() {
            return;
        }
        let mut rig = Rig::new(subject, MEMORY);
        while !self.is_over() {
            let Some(&index) = round.todo.get(round.next.fetch_add(1, Ordering::Relaxed)) else { return };
            let job = &self.workloads[index];
            let is_full = round.is_full || matches!(job, Job::First(..));
            let (name, explored) = job.explore(&mut rig, is_full);
            let mut found = self.found();
            match explored {
                Ok(report) => {
                    self.images.fetch_add(report.images + report.recovery_crashes, Ordering::Relaxed);
                    if report.violations.is_empty() {
                        found.add(index, report, is_full);
                    } else {
                        found.saved.report.violations.extend(report.violations);
                    }
                    if found.saved.report.violations.len() >= self.limits.violations {
                        self.stop.store(true, Ordering::Relaxed);
                    }
                }
                Err(error) => found.failures.push(format!("{name}: {error}")),
            }
        }
    }

    fn is_over(&self) -> bool {
        let images = self.images.load(Ordering::Relaxed);
        self.stop.load(Ordering::Relaxed)
            || self.limits.time.is_some_and(|time| self.started.elapsed() >= time)
            || self.limits.images.is_some_and(|limit| images >= limit)
    }

    fn report_progress(&self, progress: &mut dyn FnMut(&Progress<'_>)) {
        let found = self.found();
        progress(&Progress {
            elapsed: self.started.elapsed(),
            report: &found.saved.report,
            images: self.images.load(Ordering::Relaxed),
            workloads: (found.saved.done.len(), self.workloads.len()),
            visited: found.visited(),
        });
    }

    fn save<S: Subject>(&self, file: &Path, key: &str, subject: &S) -> Result<()> {
        let text = self.found().saved.to_text(key, subject);
        // Written beside it and renamed: a kill leaves the old file or the new one.
        let beside = file.with_extension("new");
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, file));
        written.map_err(|error| Error::io("write", file.display().to_string(), error))
    }
}

/// The path of a progress file behind its symbolic links: a link is not replaced by a file. Nor is a device.
fn progress_file(file: &Path) -> Result<PathBuf> {
    let object = file.display().to_string();
    let wrong = |what: &str| {
        Err(Error::new(Kind::InvalidInput).object(format!("{object}: {what}")).advice("give a regular file"))
    };
    match std::fs::metadata(file) {
        Ok(found) if found.is_file() => {
            std::fs::canonicalize(file).map_err(|error| Error::io("read", object.clone(), error))
        }
        Ok(_) => wrong("it is no regular file"),
        Err(_) if file.is_symlink() => wrong("it is a symbolic link that leads to no file"),
        Err(_) => Ok(file.to_owned()),
    }
}

/// The contents of a progress file. Violations are not in it, because each has a file of its own. The workload of a
/// violation counts as not done, so that a run after a fix repeats it first.
#[derive(Debug, Default)]
struct Saved {
    done: BTreeSet<usize>,
    report: Report,
}

const TITLE: &str = "nacre crash progress 2";

impl Saved {
    fn to_text<S: Subject>(&self, key: &str, subject: &S) -> String {
        let report = &self.report;
        let mut text = format!("{TITLE}\nof {key}\n");
        let numbers = [
            ("points", report.points),
            ("exhaustive", report.exhaustive),
            ("images", report.images),
            ("repeated", report.repeated),
            ("checked", report.checked),
            ("emptied", report.emptied),
            ("recovery", report.recovery_crashes),
        ];
        for (name, number) in numbers {
            let _ = writeln!(text, "{name} {number}");
        }
        for (name, count) in subject.commit_points().iter().zip(&report.commit_points) {
            let _ = writeln!(text, "commit {count} {name}");
        }
        for index in &self.done {
            let _ = writeln!(text, "done {index}");
        }
        text
    }

    fn read<S: Subject>(file: &Path, key: &str, subject: &S) -> Result<Saved> {
        let object = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| Error::io("read", object.clone(), error))?;
        let wrong = |what: &str| {
            Error::new(Kind::InvalidInput)
                .object(format!("{object}: {what}"))
                .advice("remove it, or give another file")
        };
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(wrong("it holds no progress of an exploration"));
        }
        if lines.next() != Some(&format!("of {key}")) {
            return Err(wrong("it is of an exploration with other options"));
        }
        let mut saved = Saved::default();
        let report = &mut saved.report;
        report.commit_points = vec![0; subject.commit_points().len()];
        for line in lines {
            let (word, rest) = line.split_once(' ').ok_or_else(|| wrong("a line of it is damaged"))?;
            let (number, name) = rest.split_once(' ').unwrap_or((rest, ""));
            let number: u64 = number.parse().map_err(|_| wrong("a line of it is damaged"))?;
            match word {
                "points" => report.points = number,
                "exhaustive" => report.exhaustive = number,
                "images" => report.images = number,
                "repeated" => report.repeated = number,
                "checked" => report.checked = number,
                "emptied" => report.emptied = number,
                "recovery" => report.recovery_crashes = number,
                "commit" => {
                    let index = subject.commit_points().iter().position(|point| *point == name);
                    report.commit_points[index.ok_or_else(|| wrong("a line of it is damaged"))?] = number;
                }
                "done" => {
                    saved.done.insert(number as usize);
                }
                _ => return Err(wrong("a line of it is damaged")),
            }
        }
        Ok(saved)
    }
}
