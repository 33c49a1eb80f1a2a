//! Crashing at every point of a recorded workload.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_engine::{Error, Result};
use nacre_media::crash::{CrashImage, Images, Replay, Sampling};
use nacre_media::sim::Defect;
use nacre_media::{Image, SimPm};

use super::record::{Progress, Recording, record};
use super::report::{Place, Report, Violation};
use super::subject::Subject;
use super::verify::{Depth, Expected, judge};
use super::workload::Workload;

/// How thoroughly a workload is explored.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes of simulated memory.
    pub len: u64,
    /// The images of each point.
    pub sampling: Sampling,
    /// More samples for more pending lines: so many for each line, up to [`MAX_SAMPLES_BY_LINES`].
    pub samples_per_line: u64,
    /// One image in so many is also checked, emptied and filled.
    pub empty_every: u64,
    /// In the recovery of one image in so many there is another crash.
    pub recovery_every: u64,
    /// The images of each point of such a recovery.
    pub recovery_sampling: Sampling,
    /// The exploration ends after so many violations.
    pub max_violations: usize,
    /// What is wrong with the memory, to see whether it is found.
    pub defect: Option<Defect>,
}

/// See [`Settings::samples_per_line`].
pub const MAX_SAMPLES_BY_LINES: u64 = 256;

impl Settings {
    fn images(&self, replay: &Replay<'_>) -> Images {
        let by_lines = (replay.pending_lines() as u64 * self.samples_per_line).min(MAX_SAMPLES_BY_LINES);
        replay.images(&Sampling { samples: self.sampling.samples.max(by_lines), ..self.sampling })
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            len: 16 << 20,
            sampling: Sampling::default(),
            samples_per_line: 0,
            empty_every: 16,
            recovery_every: 64,
            recovery_sampling: Sampling { exhaustive_up_to: 8, samples: 8, seed: 0 },
            max_violations: 5,
            defect: None,
        }
    }
}

/// Runs the workload and crashes it everywhere. An error means that the workload itself could not be run.
pub fn explore<S: Subject>(subject: &S, workload: &Workload, settings: &Settings) -> Result<Report> {
    let recording = record_caught(subject, workload, settings)?;
    let mut explorer = Explorer::new(subject, workload, settings, &recording);
    if !recording.live_differences.is_empty() {
        let place = Place { point: 0, image: 0, recovery: None };
        explorer.violation(place, "no crash yet".to_string(), recording.live_differences.clone());
    }
    let mut replay = Replay::new(Image::zeros(recording.len), &recording.trace);
    while let Some(point) = replay.advance() {
        if explorer.is_full() {
            break;
        }
        if let Some(progress) = Progress::at(point.last_mark) {
            explorer.visit(&replay, point.index, progress);
        }
    }
    Ok(explorer.report)
}

/// Produces one crash of the same exploration again, and goes to the bottom of it.
pub fn explore_one<S: Subject>(
    subject: &S,
    workload: &Workload,
    settings: &Settings,
    place: Place,
) -> Result<Report> {
    let recording = record_caught(subject, workload, settings)?;
    let mut explorer = Explorer::new(subject, workload, settings, &recording);
    let mut replay = Replay::new(Image::zeros(recording.len), &recording.trace);
    while let Some(point) = replay.advance() {
        let Some(progress) = Progress::at(point.last_mark).filter(|_| point.index == place.point) else {
            continue;
        };
        explorer.pm.load(replay.media());
        let image = settings.images(&replay).image(place.image);
        match place.recovery {
            None => explorer.judge(&replay, &image, place, progress, Depth::Empty),
            Some(_) => explorer.crash_recovery(&replay, &image, place, progress),
        }
    }
    Ok(explorer.report)
}

fn record_caught<S: Subject>(subject: &S, workload: &Workload, settings: &Settings) -> Result<Recording> {
    let recording = AssertUnwindSafe(|| record(subject, workload, settings.len, settings.defect));
    catch_unwind(recording).unwrap_or_else(|panic| {
        let words = super::verify::panic_words(&*panic).to_string();
        Err(Error::corrupt(format!("panic in {}: {words}", workload.name)))
    })
}

struct Explorer<'e, S: Subject> {
    subject: &'e S,
    workload: &'e Workload,
    settings: &'e Settings,
    recording: &'e Recording,
    /// Memory to recover in; between images it holds what is durable at the point.
    pm: Arc<SimPm>,
    report: Report,
}

impl<'e, S: Subject> Explorer<'e, S> {
    fn new(subject: &'e S, workload: &'e Workload, settings: &'e Settings, recording: &'e Recording) -> Self {
        let pm = Arc::new(SimPm::new(recording.len));
        Explorer { subject, workload, settings, recording, pm, report: Report::default() }
    }

    fn is_full(&self) -> bool {
        self.report.violations.len() >= self.settings.max_violations
    }

    fn violation(&mut self, place: Place, situation: String, problems: Vec<String>) {
        self.report.violations.push(Violation {
            subject: self.subject.name(),
            workload: self.workload.name.clone(),
            seed: self.settings.sampling.seed,
            place,
            situation,
            problems,
        });
    }

    fn visit(&mut self, replay: &Replay<'_>, point: usize, progress: Progress) {
        let images = self.settings.images(replay);
        self.pm.load(replay.media());
        self.report.points += 1;
        self.report.exhaustive += usize::from(images.is_exhaustive());
        for image in images.iter() {
            if self.is_full() {
                return;
            }
            // Which images get more attention changes from point to point, so that it is not always the same kind.
            let turn = image.index + 5 * point as u64;
            let deep = turn.is_multiple_of(self.settings.empty_every);
            let place = Place { point, image: image.index, recovery: None };
            self.judge(replay, &image, place, progress, if deep { Depth::Empty } else { Depth::Look });
            if turn.is_multiple_of(self.settings.recovery_every) {
                self.crash_recovery(replay, &image, place, progress);
            }
        }
    }

    /// Recovers one image and puts the memory back.
    fn judge(
        &mut self,
        replay: &Replay<'_>,
        image: &CrashImage,
        place: Place,
        progress: Progress,
        depth: Depth,
    ) {
        image.apply(&self.pm);
        let expected = self.expected(progress);
        let problems = judge(self.subject, &self.pm, &expected, depth);
        self.report.images += 1;
        self.report.emptied += u64::from(depth == Depth::Empty);
        if !problems.is_empty() {
            self.violation(place, self.situation(progress, image), problems);
        }
        self.pm.load(replay.media());
    }

    /// Recovers one image with a trace, and crashes at every point of that. `place.recovery` picks one such crash.
    fn crash_recovery(&mut self, replay: &Replay<'_>, image: &CrashImage, place: Place, progress: Progress) {
        let mut crashed = replay.media().clone();
        image.apply_to(&mut crashed);
        self.pm.load(&crashed);
        self.pm.start_recording();
        let mounted = catch_unwind(AssertUnwindSafe(|| self.subject.mount(&self.pm)));
        let trace = self.pm.stop_recording();
        // A mount that fails here failed without the trace, too, and was reported.
        drop(mounted);
        let expected = self.expected(progress);
        let mut recovery = Replay::new(crashed, &trace);
        while let Some(point) = recovery.advance() {
            let images = recovery.images(&self.settings.recovery_sampling);
            self.pm.load(recovery.media());
            for again in images.iter() {
                if place.recovery.is_some_and(|wanted| wanted != (point.index, again.index)) {
                    continue;
                }
                again.apply(&self.pm);
                let problems = judge(self.subject, &self.pm, &expected, Depth::Empty);
                self.report.recovery_crashes += 1;
                if !problems.is_empty() && !self.is_full() {
                    let place = Place { recovery: Some((point.index, again.index)), ..place };
                    self.violation(place, self.situation(progress, image), problems);
                }
                self.pm.load(recovery.media());
            }
        }
        self.pm.load(replay.media());
    }

    fn expected(&self, progress: Progress) -> Expected<'e> {
        let recording = self.recording;
        Expected { allowed: progress.allowed(&recording.states), free_when_empty: recording.free_when_empty }
    }

    fn situation(&self, progress: Progress, image: &CrashImage) -> String {
        let ops = &self.workload.ops;
        let doing = match progress.in_flight {
            true => format!("during \"{:?}\"", ops[progress.acknowledged]),
            false if progress.acknowledged == 0 => "before the first operation".to_string(),
            false => format!("after \"{:?}\"", ops[progress.acknowledged - 1]),
        };
        format!("{doing}; {image:?}")
    }
}
