//! The findings of an exploration.

use std::fmt;

use nacre_media::crash::{CrashImage, Point, Replay};

use super::cached::CachedCase;
use super::subject::{Moment, Subject};
use super::thread_case::ThreadsCase;
use super::workload::Workload;

/// Lines (offset divided by 64) and their contents after a crash.
pub type Lines = Vec<(u64, [u8; 64])>;

/// One crash, with everything that is needed to produce it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Case {
    /// Of one thread: its workload is run again, and leaves the same trace.
    Workload(WorkloadCase),
    /// A crash of several threads, which never run the same way twice: their stores are recorded.
    Threads(ThreadsCase),
    /// Through a write buffer.
    Cached(CachedCase),
}

/// A crash of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadCase {
    /// The workload that ran.
    pub workload: Workload,
    /// The mistake that the layout made on purpose, 0 for none.
    pub mistake: u32,
    /// The crash point of the workload's trace.
    pub point: usize,
    /// Lines that landed, beyond those that are durable at the point.
    pub landed: Lines,
    /// When recovery crashed, too.
    pub recovery: Option<Again>,
}

/// A crash in the recovery from a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    /// The kind of recovery.
    pub by: Recovery,
    /// The crash point of its trace.
    pub point: usize,
    /// Lines that landed, beyond those that are durable at the point.
    pub landed: Lines,
}

/// The kinds of recovery; the file system is then unmounted, in the same trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// A mount.
    Mount,
    /// A repair, and then a mount.
    Repair,
}

impl Case {
    /// The name of the workload that ran.
    pub fn name(&self) -> &str {
        match self {
            Case::Workload(case) => &case.workload.name,
            Case::Threads(case) => &case.workload.name,
            Case::Cached(case) => &case.sequence.name,
        }
    }
}

pub(super) fn lines_of(image: &CrashImage) -> Lines {
    image.lines.clone()
}

/// A crash after which the file system was wrong.
#[derive(Debug, Clone)]
pub struct Violation {
    /// How to produce it again.
    pub case: Case,
    /// The situation, in words.
    pub situation: String,
    /// The problems that were found.
    pub problems: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.case.name(), self.situation)?;
        for problem in self.problems.iter().take(8) {
            writeln!(f, "    {problem}")?;
        }
        if self.problems.len() > 8 {
            writeln!(f, "    and {} more", self.problems.len() - 8)?;
        }
        Ok(())
    }
}

/// The counts of an exploration, and its findings.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Crash points.
    pub points: u64,
    /// Points of which all images were tried.
    pub exhaustive: u64,
    /// Different images recovered, each counted once for its workload.
    pub images: u64,
    /// Images that had been recovered before at another point of the same workload, and were compared only.
    pub repeated: u64,
    /// Images that were also checked before they were mounted.
    pub checked: u64,
    /// Images that were also emptied, filled, checked and mounted again.
    pub emptied: u64,
    /// Crashes within recovery.
    pub recovery_crashes: u64,
    /// Images (those of recovery included) at each commit point of the layout.
    pub commit_points: Vec<u64>,
    /// The violations that were found.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Nothing yet, of a layout with so many commit points.
    pub(super) fn new(commit_points: usize) -> Report {
        Report { commit_points: vec![0; commit_points], ..Report::default() }
    }

    /// Adds the counts and violations of another exploration.
    pub fn add(&mut self, other: Report) {
        self.points += other.points;
        self.exhaustive += other.exhaustive;
        self.images += other.images;
        self.repeated += other.repeated;
        self.checked += other.checked;
        self.emptied += other.emptied;
        self.recovery_crashes += other.recovery_crashes;
        self.add_commit_points(&other.commit_points);
        self.violations.extend(other.violations);
    }

    pub(super) fn add_commit_points(&mut self, counts: &[u64]) {
        if self.commit_points.len() < counts.len() {
            self.commit_points.resize(counts.len(), 0);
        }
        for (sum, count) in self.commit_points.iter_mut().zip(counts) {
            *sum += count;
        }
    }

    /// Takes the counts of another exploration away again, which were added before.
    pub(super) fn take_away(&mut self, other: &Report) {
        self.points -= other.points;
        self.exhaustive -= other.exhaustive;
        self.images -= other.images;
        self.repeated -= other.repeated;
        self.checked -= other.checked;
        self.emptied -= other.emptied;
        self.recovery_crashes -= other.recovery_crashes;
        for (sum, count) in self.commit_points.iter_mut().zip(&other.commit_points) {
            *sum -= count;
        }
    }

    /// Counts images of a crash point for each commit point that a crash there hits.
    pub(super) fn count_commits<S: Subject>(
        &mut self,
        subject: &S,
        replay: &Replay<'_>,
        point: Point,
        count: u64,
    ) {
        subject.commits_at(&moment(replay, point), &mut |commit| self.commit_points[commit] += count);
    }

    /// Whether a crash point hits a commit point that has had fewer images than that.
    pub(super) fn has_fewer<S: Subject>(
        &self,
        images: u64,
        subject: &S,
        replay: &Replay<'_>,
        point: Point,
    ) -> bool {
        let mut fewer = false;
        subject
            .commits_at(&moment(replay, point), &mut |commit| fewer |= self.commit_points[commit] < images);
        fewer
    }
}

/// The stores before a crash point, and the fences around them.
fn moment<'m>(replay: &'m Replay<'_>, point: Point) -> Moment<'m> {
    Moment { stores: replay.stores(), fence: point.fence, last_fence: replay.last_fence() }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} crash points ({} with all their images), {} images recovered ({} more are repeated), {} of them \
             checked, {} emptied and filled, {} crashes within recovery, {} violations",
            self.points,
            self.exhaustive,
            self.images,
            self.repeated,
            self.checked,
            self.emptied,
            self.recovery_crashes,
            self.violations.len()
        )?;
        self.violations.iter().try_for_each(|violation| write!(f, "{violation}"))
    }
}
