//! Crashing at every point of a recorded workload.

use std::collections::HashMap;

use nacre_engine::Result;
use nacre_media::crash::{CrashImage, Point, Replay, Sampling};
use nacre_media::sim::Site;

use super::cached;
use super::op::Op;
use super::record::{Flaw, Progress, Recording, Rig, sites_of};
use super::recovery::{crash_again, in_words, trace_recovery};
use super::report::{Again, Case, Lines, Recovery, Report, Violation, WorkloadCase, lines_of};
use super::spread::{self, RARE};
use super::subject::{Mounting, Overwrites, Subject};
use super::thread_case;
use super::verify::{Depth, Expected, Judged, Remaking, caught, judge, turn_of};
use super::volumes::look_around;
use super::workload::Workload;

/// How thoroughly a workload is explored.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The images of each point.
    pub sampling: Sampling,
    /// More samples for more pending lines: so many for each line, up to [`MAX_SAMPLES_BY_LINES`].
    pub samples_per_line: u64,
    /// One image in so many is checked before it is mounted.
    pub check_every: u64,
    /// One image in so many is also unmounted, checked, filled and emptied.
    pub empty_every: u64,
    /// In the recovery of one image in so many there is another crash.
    pub recovery_every: u64,
    /// The images of each point of such a recovery.
    pub recovery_sampling: Sampling,
    /// Few images of each point, and more only where the workload has had few of a commit point.
    pub few: bool,
    /// The exploration ends after so many violations.
    pub max_violations: usize,
    /// The deliberate flaw, to test whether it is found.
    pub flaw: Flaw,
}

/// See [`Settings::samples_per_line`].
pub const MAX_SAMPLES_BY_LINES: u64 = 256;

/// Bytes of simulated PM of an exploration, unless it says otherwise.
pub const MEMORY: u64 = 16 << 20;

impl Settings {
    fn sampling(&self, replay: &Replay<'_>) -> Sampling {
        let by_lines = (replay.pending_lines() as u64 * self.samples_per_line).min(MAX_SAMPLES_BY_LINES);
        Sampling { samples: self.sampling.samples.max(by_lines), ..self.sampling }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sampling: Sampling::default(),
            samples_per_line: 0,
            check_every: 1,
            empty_every: 4,
            recovery_every: 64,
            recovery_sampling: Sampling { exhaustive_up_to: 8, samples: 8, seed: 0 },
            few: false,
            max_violations: 5,
            flaw: Flaw::None,
        }
    }
}

/// Runs the workload and crashes it everywhere. An error means that the workload itself could not be run.
pub fn explore<S: Subject>(rig: &mut Rig<'_, S>, workload: &Workload, settings: &Settings) -> Result<Report> {
    let recording = rig.record(workload, settings.flaw)?;
    rig.pm.seed_mistake(settings.flaw.mistake());
    let mut explorer = Explorer::new(rig, workload, settings, &recording);
    if !recording.live_differences.is_empty() {
        let problems = recording.live_differences.clone();
        explorer.violation(0, Vec::new(), None, "no crash yet".to_string(), problems);
    }
    let mut replay = Replay::new(recording.start.clone(), &recording.trace);
    while let Some(point) = replay.advance() {
        let progress = Progress::at(point.last_mark);
        if explorer.is_full() {
            break;
        }
        if progress.is_explored(workload) {
            explorer.visit(&replay, point, progress);
        }
    }
    let report = explorer.report;
    rig.pm.seed_mistake(0);
    Ok(report)
}

/// The lines of the program that flush and that fence when the workload runs, and when its crashes are recovered from.
pub fn sites<S: Subject>(rig: &mut Rig<'_, S>, workload: &Workload) -> Result<(Vec<Site>, Vec<Site>)> {
    let recording = rig.record(workload, Flaw::None)?;
    let (mut flushes, mut fences) = recording.sites();
    let mut replay = Replay::new(recording.start.clone(), &recording.trace);
    while let Some(point) = replay.advance() {
        if !Progress::at(point.last_mark).is_explored(workload) {
            continue;
        }
        // Half of what is pending: recovery has something to do. In the last ones copies of the same differ.
        let images = replay.images(&Sampling { exhaustive_up_to: 0, samples: 8, seed: 0 });
        for image in images.iter() {
            rig.pm.load(replay.media());
            image.apply(&rig.pm);
            rig.pm.start_recording();
            // Nothing of what fails here matters: only where it flushes and fences.
            let _ = caught(|| {
                if image.index % 2 == 1 {
                    rig.subject.repair(&rig.pm)?;
                }
                rig.subject.unmount(rig.subject.mount(&rig.pm, Mounting::default())?)
            });
            let (flushed, fenced) = sites_of(&rig.pm.stop_recording());
            flushes.extend(flushed);
            fences.extend(fenced);
        }
    }
    for list in [&mut flushes, &mut fences] {
        list.sort_unstable();
        list.dedup();
    }
    Ok((flushes, fences))
}

/// The message for a crash that is impossible with the layout as it is.
pub(super) const IMPOSSIBLE: &str = "this crash cannot happen";

/// Reproduces one crash in depth: the situation, and the problems. For a crash that cannot happen (any more) the
/// message says so, and there are no problems.
pub fn reproduce<S: Subject>(rig: &mut Rig<'_, S>, case: &Case) -> Result<(String, Vec<String>)> {
    match case {
        Case::Workload(case) => reproduce_workload(rig, case),
        Case::Threads(case) => thread_case::reproduce(rig, case),
        Case::Cached(case) => cached::reproduce(rig, case),
    }
}

pub(super) fn reproduce_workload<S: Subject>(
    rig: &mut Rig<'_, S>,
    case: &WorkloadCase,
) -> Result<(String, Vec<String>)> {
    let flaw = if case.mistake == 0 { Flaw::None } else { Flaw::Layout(case.mistake) };
    let settings = Settings { flaw, ..Settings::default() };
    let recording = rig.record(&case.workload, flaw)?;
    rig.pm.seed_mistake(case.mistake);
    let mut explorer = Explorer::new(rig, &case.workload, &settings, &recording);
    let mut found = (format!("{IMPOSSIBLE}: there is no such crash point"), Vec::new());
    if !recording.live_differences.is_empty() {
        found = ("no crash yet".to_string(), recording.live_differences.clone());
    }
    let mut replay = Replay::new(recording.start.clone(), &recording.trace);
    while let Some(point) = replay.advance() {
        if point.index != case.point || !recording.live_differences.is_empty() {
            continue;
        }
        if let Some((line, _)) = case.landed.iter().find(|(line, bytes)| !replay.allows(*line, bytes)) {
            found = (format!("{IMPOSSIBLE}: these bytes cannot land at {:#x}", line * 64), Vec::new());
            continue;
        }
        let progress = Progress::at(point.last_mark);
        let image = CrashImage { index: 0, lines: case.landed.clone(), choice: "from a trace" };
        explorer.rig.pm.load(replay.media());
        let judged = match &case.recovery {
            None => {
                image.apply(&explorer.rig.pm);
                let expected = explorer.expected(progress);
                Some(judge(explorer.rig.subject, &explorer.rig.pm, &expected, Depth::Empty))
            }
            Some(again) => explorer.crash_recovery_once(&replay, &image, progress, again),
        };
        if let Some(judged) = judged {
            found = (explorer.situation(progress, &image), judged.problems);
        }
    }
    rig.pm.seed_mistake(0);
    Ok(found)
}

struct Explorer<'e, 's, S: Subject> {
    rig: &'e mut Rig<'s, S>,
    workload: &'e Workload,
    settings: &'e Settings,
    recording: &'e Recording,
    /// The state that each image was recovered to, by hash.
    seen: HashMap<u64, Option<usize>>,
    /// Each operation that overwrites in place: the state before it, and the one after.
    torn: Vec<(usize, usize)>,
    /// Recoveries that were crashed in.
    recoveries: u64,
    report: Report,
}

impl<'e, 's, S: Subject> Explorer<'e, 's, S> {
    fn new(
        rig: &'e mut Rig<'s, S>,
        workload: &'e Workload,
        settings: &'e Settings,
        recording: &'e Recording,
    ) -> Self {
        let report = Report::new(rig.subject.commit_points().len());
        let ops = workload.ops.iter().enumerate();
        // On a full device a write is done in pieces, or in place.
        let overwrites = rig.subject.overwrites();
        let may_tear = overwrites != Overwrites::Whole || workload.fills;
        let with_times = overwrites == Overwrites::InPartsWithTimes || workload.fills;
        let torn = ops.filter(|(_, op)| may_tear && op.overwrites());
        let both = |index| [(index, index + 1), (index + 1, index)];
        let torn = torn.flat_map(|(index, _)| both(index).into_iter().take(1 + usize::from(with_times)));
        let torn = torn.collect();
        Explorer { rig, workload, settings, recording, seen: HashMap::new(), torn, recoveries: 0, report }
    }

    fn is_full(&self) -> bool {
        self.report.violations.len() >= self.settings.max_violations
    }

    fn violation(
        &mut self,
        point: usize,
        landed: Lines,
        recovery: Option<Again>,
        situation: String,
        problems: Vec<String>,
    ) {
        let case = WorkloadCase {
            workload: self.workload.clone(),
            mistake: self.settings.flaw.mistake(),
            point,
            landed,
            recovery,
        };
        let case = Case::Workload(case);
        self.report.violations.push(Violation { case, situation, problems });
    }

    fn visit(&mut self, replay: &Replay<'_>, point: Point, progress: Progress) {
        self.rig.pm.load(replay.media());
        let sampling = self.sampling(replay, point);
        let relevant = self.lines_read(replay, &sampling);
        let images = replay.images_of(&sampling, |line| relevant.binary_search(&line).is_ok());
        self.report.points += 1;
        self.report.exhaustive += u64::from(images.is_exhaustive());
        let before = self.report.images;
        for image in images.iter() {
            if self.is_full() {
                return;
            }
            self.try_image(replay, &image, point, progress);
        }
        let count = self.report.images - before;
        self.report.count_commits(self.rig.subject, replay, point, count);
    }

    fn sampling(&self, replay: &Replay<'_>, point: Point) -> Sampling {
        let sampling = self.settings.sampling(replay);
        if !self.settings.few {
            return sampling;
        }
        spread::few(sampling, self.report.has_fewer(RARE, self.rig.subject, replay, point))
    }

    /// The pending lines that recovery reads, found out by recovering the image in which everything landed, and the one
    /// in which nothing did. Lines that recovery never reads cannot change its result.
    fn lines_read(&mut self, replay: &Replay<'_>, sampling: &Sampling) -> Vec<u64> {
        let pending: Vec<u64> = replay.lines_pending().collect();
        if pending.len() < 8 {
            return pending;
        }
        let mut read = vec![false; pending.len()];
        let images = replay.images(&Sampling { exhaustive_up_to: 0, samples: 2, ..*sampling });
        for image in images.iter() {
            image.apply(&self.rig.pm);
            self.rig.pm.start_noting_reads();
            let fs = caught(|| self.rig.subject.mount(&self.rig.pm, Mounting::default()));
            if let Ok(Ok(fs)) = fs {
                let walked = caught(|| super::tree::Tree::of(&fs).is_ok());
                if walked.is_err() {
                    self.rig.subject.abandon(fs);
                    return pending;
                }
                match caught(|| look_around(self.rig.subject, &self.rig.pm, fs, Mounting::default())) {
                    Ok(Ok((fs, _))) => self.rig.subject.abandon(fs),
                    // It stopped early, too.
                    _ => read.fill(true),
                }
            } else {
                // It stopped before it had read all that it would.
                read.fill(true);
            }
            self.rig.pm.stop_noting_reads();
            for (line, read) in pending.iter().zip(&mut read) {
                *read |= self.rig.pm.was_read(*line);
            }
            self.rig.pm.load(replay.media());
        }
        pending.into_iter().zip(read).filter(|(_, read)| *read).map(|(line, _)| line).collect()
    }

    fn try_image(&mut self, replay: &Replay<'_>, image: &CrashImage, point: Point, progress: Progress) {
        let hash = replay.hash_of(image);
        if let Some(state) = self.seen.get(&hash) {
            let allowed = progress.allowed();
            let equal = |state: usize| {
                allowed.clone().any(|other| {
                    other == state || self.recording.states[other] == self.recording.states[state]
                })
            };
            if state.is_some_and(equal) {
                self.report.repeated += 1;
                return;
            }
        }
        let Settings { check_every, empty_every, recovery_every, .. } = *self.settings;
        let depth = Depth::by_turn(image.index, point.index, check_every, empty_every);
        image.apply(&self.rig.pm);
        let judged = judge(self.rig.subject, &self.rig.pm, &self.expected(progress), depth);
        self.report.images += u64::from(self.seen.insert(hash, judged.state).is_none());
        self.report.checked += u64::from(depth >= Depth::Check);
        self.report.emptied += u64::from(depth == Depth::Empty);
        let is_good = judged.problems.is_empty();
        if !is_good {
            let situation = self.situation(progress, image);
            self.violation(point.index, lines_of(image), None, situation, judged.problems);
        }
        let expected = self.expected(progress);
        let crashes_again = turn_of(image.index, point.index).is_multiple_of(recovery_every);
        if crashes_again && is_good && expected.remaking == Remaking::No {
            self.recoveries += 1;
            self.crash_recovery(replay, image, point, progress, Recovery::by_turn(self.recoveries));
        }
        self.rig.pm.load(replay.media());
    }

    /// Recovers one image with a trace, and crashes at every point of that.
    fn crash_recovery(
        &mut self,
        replay: &Replay<'_>,
        image: &CrashImage,
        point: Point,
        progress: Progress,
        by: Recovery,
    ) {
        let crashed = replay.crashed(image);
        let trace = trace_recovery(self.rig, &crashed, by, self.settings.flaw.defect());
        let mut recovery = Replay::new(crashed, &trace);
        while let Some(at) = recovery.advance() {
            let images = recovery.images(&self.settings.recovery_sampling);
            self.rig.pm.load(recovery.media());
            for again in images.iter() {
                again.apply(&self.rig.pm);
                let Judged { problems, .. } =
                    judge(self.rig.subject, &self.rig.pm, &self.expected(progress), Depth::Empty);
                self.report.recovery_crashes += 1;
                if !problems.is_empty() && !self.is_full() {
                    let situation = self.situation(progress, image) + &in_words(by, &again);
                    let second = Again { by, point: at.index, landed: lines_of(&again) };
                    self.violation(point.index, lines_of(image), Some(second), situation, problems);
                }
                self.rig.pm.load(recovery.media());
            }
            self.report.count_commits(self.rig.subject, &recovery, at, images.len());
        }
    }

    fn crash_recovery_once(
        &mut self,
        replay: &Replay<'_>,
        image: &CrashImage,
        progress: Progress,
        again: &Again,
    ) -> Option<Judged> {
        let defect = self.settings.flaw.defect();
        crash_again(self.rig, replay.crashed(image), again, defect)
            .then(|| judge(self.rig.subject, &self.rig.pm, &self.expected(progress), Depth::Empty))
    }

    fn expected(&self, progress: Progress) -> Expected<'_> {
        let next = self.workload.ops.get(progress.acknowledged);
        Expected {
            states: &self.recording.states,
            allowed: progress.allowed(),
            torn: match progress.in_flight {
                true => &self.torn,
                false => &[],
            },
            remaking: match next {
                Some(Op::Mkfs) if progress.made => Remaking::Made,
                Some(Op::Mkfs) if progress.in_flight => Remaking::Begun,
                _ => Remaking::No,
            },
            free_when_empty: self.recording.free_when_empty,
            mounting: self.recording.mountings[progress.acknowledged],
            fills: self.workload.fills,
            damaged: self.workload.setup.iter().any(|op| matches!(op, Op::Damage(..))),
        }
    }

    fn situation(&self, progress: Progress, image: &CrashImage) -> String {
        progress.situation(&self.workload.ops, image)
    }
}
