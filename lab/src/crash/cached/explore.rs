//! Running a sequence through a write buffer with a trace, and crashing it at every point.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_cache::{CacheFs, CacheOptions, Clock, Settings};
use nacre_engine::{BelowBuffer, Data, Error, Extents, Kind, Names, Result};
use nacre_media::crash::{CrashImage, Point, Replay, Sampling};
use nacre_media::sim::Site;
use nacre_media::{Image, Trace};

use super::super::explore::IMPOSSIBLE;
use super::super::op::{Op, Runner};
use super::super::record::{Flaw, MARK_BEGIN, MARK_END, Progress, Rig, is_unexpected, sites_of};
use super::super::recovery::{crash_again, in_words, trace_recovery};
use super::super::report::{Again, Case, Recovery, Report, Violation, lines_of};
use super::super::spread::{self, RARE};
use super::super::subject::{FULL, Mounting, Overwrites, Subject};
use super::super::tree::Tree;
use super::super::verify::{Depth, caught, panic_words, turn_of, write_and_empty};
use super::mistakes::BufferMistake;
use super::promise::{Belief, Found, State, judge};
use super::{BLOCK, Cached, CachedCase};

/// Milliseconds between two operations: after some of them a block that is no longer synchronised counts as lazy again.
const TICK_MS: u64 = 700;

/// How thoroughly a sequence is explored.
#[derive(Debug, Clone, Copy)]
pub struct CachedSettings {
    /// The images of each point.
    pub sampling: Sampling,
    /// One image in so many is checked before it is mounted.
    pub check_every: u64,
    /// One image in so many is also unmounted, checked, mounted under a buffer, written and emptied.
    pub empty_every: u64,
    /// In the recovery of one image in so many there is another crash.
    pub recovery_every: u64,
    /// The images of each point of such a recovery.
    pub recovery_sampling: Sampling,
    /// Few images of each point, and more only where the sequence has had few of a commit point.
    pub few: bool,
    /// The exploration ends after so many violations.
    pub max_violations: usize,
    /// The deliberate flaw, to test whether it is found.
    pub flaw: Flaw,
    /// The guarantees that the judge assumes.
    pub belief: Belief,
}

impl Default for CachedSettings {
    fn default() -> CachedSettings {
        CachedSettings {
            sampling: Sampling { exhaustive_up_to: 16, samples: 12, seed: 0 },
            check_every: 1,
            empty_every: 16,
            recovery_every: 64,
            recovery_sampling: Sampling { exhaustive_up_to: 8, samples: 8, seed: 0 },
            few: false,
            max_violations: 5,
            flaw: Flaw::None,
            belief: Belief::Right,
        }
    }
}

/// A sequence that was run.
struct Recording {
    /// The contents of simulated PM when the first operation began, all of it durable.
    start: Image,
    trace: Trace,
    /// The guarantees after so many operations.
    states: Vec<State>,
    /// Where the running system differed from that.
    live: Option<String>,
}

/// The buffer of a sequence. It has no threads, and its time is set: the same sequence does the same.
fn buffer(sequence: &Cached, clock: &Arc<AtomicU64>) -> CacheOptions {
    let Cached { granularity, checker, inherits, pool, .. } = *sequence;
    let settings = Settings { threads: 0, granularity, checker, inherits, ..Settings::default() };
    CacheOptions { settings, clock: Clock::Set(Arc::clone(clock)), ..CacheOptions::new(pool * BLOCK as u64) }
}

fn record<S: Subject>(
    rig: &mut Rig<'_, S>,
    sequence: &Cached,
    flaw: Flaw,
    belief: Belief,
) -> Result<Recording> {
    let (subject, pm) = (rig.subject, &rig.pm);
    pm.seed_mistake(0);
    pm.load(&rig.blank);
    subject.use_lane(0);
    subject.mkfs(pm)?;
    let layout = subject.mount(pm, sequence.mounting)?;
    let clock = Arc::new(AtomicU64::new(1));
    if let Some(left) = sequence.left {
        subject.fill(&layout, left)?;
    }
    let mut runner = Runner::buffered(CacheFs::new(layout, &buffer(sequence, &clock))?);
    let start = pm.image();
    pm.seed_mistake(flaw.mistake());
    pm.start_recording_with(flaw.defect());
    let (mut states, mut live) = (vec![State::default()], None);
    for (index, op) in sequence.ops.iter().enumerate() {
        let before = &states[index];
        if !before.allows(op) && sequence.left.is_some() {
            // There was no room for what it needs.
            states.push(before.clone());
            continue;
        }
        if !before.allows(op) {
            return Err(Error::new(Kind::InvalidInput).object(format!("{op:?}, which cannot be done then")));
        }
        clock.fetch_add(TICK_MS, Ordering::Relaxed);
        subject.use_lane(index);
        let number = index + 1;
        pm.mark(MARK_BEGIN + index as u64);
        // Relocations, by the mover or by an operation, happen below the buffer.
        let moved = subject.relocate(runner.fs.layout(), op);
        let mut is_done = true;
        match (op, flaw.of_buffer()) {
            _ if moved.is_some() => {
                let failed = moved.and_then(Result::err).filter(is_unexpected);
                live = live.or(failed.map(|error| format!("{op:?}: {error}")));
            }
            (Op::Sync(_) | Op::SyncAll, _) if belief == Belief::LostSync => {}
            (Op::Remount, mistake) => {
                subject.unmount(taken_off(runner.into_fs(), mistake)?)?;
                let layout = subject.mount(pm, sequence.mounting)?;
                runner = Runner::buffered(CacheFs::new(layout, &buffer(sequence, &clock))?);
            }
            (_, mistake) => {
                let step = number as u64;
                let done = match mistake {
                    Some(mistake) => mistake.run(&mut runner, step, op),
                    None => runner.run(step, op),
                };
                is_done = done.is_ok();
                done.or_else(|error| if may_lack_room(sequence, op, &error) { Ok(()) } else { Err(error) })?;
            }
        }
        pm.mark(MARK_END + index as u64);
        let state = if is_done { before.after(op, number, belief) } else { before.clone() };
        live = live.or(state.differs(&contents(&runner.fs)?).map(|why| format!("after {op:?}: {why}")));
        states.push(state);
    }
    let trace = pm.stop_recording();
    subject.abandon(runner.into_fs().abandon());
    pm.seed_mistake(0);
    Ok(Recording { start, trace, states, live })
}

/// Whether an operation may have failed for lack of space, and then has done nothing. A write that was accepted always
/// has space.
fn may_lack_room(sequence: &Cached, op: &Op, error: &Error) -> bool {
    let was_accepted = matches!(op, Op::Sync(_) | Op::SyncAll | Op::Close(_) | Op::Unlink(_));
    sequence.left.is_some() && error.kind() == Kind::NoSpace && !was_accepted
}

/// The layout without its buffer, when both are unmounted.
fn taken_off<L: BelowBuffer + Extents>(cache: CacheFs<L>, mistake: Option<BufferMistake>) -> Result<L> {
    if mistake == Some(BufferMistake::UnmountForgets) {
        return Ok(cache.abandon());
    }
    let (layout, flushed) = cache.unmount();
    flushed.map(|()| layout)
}

/// The same; a panic is an error.
fn record_caught<S: Subject>(
    rig: &mut Rig<'_, S>,
    sequence: &Cached,
    flaw: Flaw,
    belief: Belief,
) -> Result<Recording> {
    let recording = caught(|| record(rig, sequence, flaw, belief));
    rig.pm.stop_recording();
    rig.pm.seed_mistake(0);
    recording.unwrap_or_else(|panic| {
        Err(Error::corrupt(format!("panic in {}: {}", sequence.name, panic_words(&*panic))))
    })
}

/// The names in the root, each with its file, except the one that only takes space.
pub(super) fn files_in_root<F: Names>(fs: &F) -> Result<Vec<(Vec<u8>, F::Node)>> {
    let root = fs.root();
    let mut names = Vec::new();
    fs.read_dir(&root, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })?;
    names.retain(|name| name != FULL.as_bytes());
    names.into_iter().map(|name| fs.lookup(&root, &name).map(|node| (name, node))).collect()
}

/// The names in the root, and the contents of the files.
fn contents<F: Data>(fs: &F) -> Result<Found> {
    let mut files = BTreeMap::new();
    for (name, node) in files_in_root(fs)? {
        let attr = fs.getattr(&node)?;
        let mut content = vec![0; attr.size as usize + 1];
        let count = fs.read(&node, 0, &mut content, None)?;
        content.truncate(count);
        files.insert(String::from_utf8_lossy(&name).into_owned(), (attr.id.number, content));
    }
    Ok(files)
}

/// Runs the sequence and crashes it everywhere. An error means that the sequence itself could not be run.
pub fn explore_cached<S: Subject>(
    rig: &mut Rig<'_, S>,
    sequence: &Cached,
    settings: &CachedSettings,
) -> Result<Report> {
    let recording = record_caught(rig, sequence, settings.flaw, settings.belief)?;
    let mut explorer = Explorer::new(rig, sequence, settings, &recording);
    if let Some(why) = &recording.live {
        explorer.violation(0, None, None, "no crash yet".to_owned(), vec![why.clone()]);
        return Ok(explorer.report);
    }
    explorer.rig.pm.seed_mistake(settings.flaw.mistake());
    let mut replay = Replay::new(recording.start.clone(), &recording.trace);
    while let Some(point) = replay.advance() {
        if explorer.is_full() {
            break;
        }
        explorer.rig.pm.load(replay.media());
        explorer.visit(&replay, point, Progress::at(point.last_mark));
    }
    explorer.rig.pm.seed_mistake(0);
    Ok(explorer.report)
}

/// The lines of the program that flush and those that fence, as the sequence passes them.
pub(in super::super) fn sites_of_cached<S: Subject>(
    rig: &mut Rig<'_, S>,
    sequence: &Cached,
) -> Result<(Vec<Site>, Vec<Site>)> {
    Ok(sites_of(&record_caught(rig, sequence, Flaw::None, Belief::Right)?.trace))
}

/// Reproduces one crash: the situation, and the problems.
pub(super) fn reproduce<S: Subject>(
    rig: &mut Rig<'_, S>,
    case: &CachedCase,
) -> Result<(String, Vec<String>)> {
    let found = crash_case(rig, case);
    rig.pm.seed_mistake(0);
    found
}

fn crash_case<S: Subject>(rig: &mut Rig<'_, S>, case: &CachedCase) -> Result<(String, Vec<String>)> {
    let flaw = case.flaw();
    let settings = CachedSettings { flaw, ..CachedSettings::default() };
    let recording = record_caught(rig, &case.sequence, flaw, Belief::Right)?;
    if let Some(why) = recording.live {
        return Ok(("no crash yet".to_owned(), vec![why]));
    }
    let explorer = Explorer::new(rig, &case.sequence, &settings, &recording);
    explorer.rig.pm.seed_mistake(case.mistake);
    let mut replay = Replay::new(recording.start.clone(), &recording.trace);
    while let Some(point) = replay.advance() {
        if point.index != case.point {
            continue;
        }
        if let Some((line, _)) = case.landed.iter().find(|(line, bytes)| !replay.allows(*line, bytes)) {
            let why = format!("{IMPOSSIBLE}: these bytes cannot land at {:#x}", line * 64);
            return Ok((why, Vec::new()));
        }
        let progress = Progress::at(point.last_mark);
        let image = CrashImage { index: 0, lines: case.landed.clone(), choice: "from a trace" };
        explorer.rig.pm.load(replay.media());
        image.apply(&explorer.rig.pm);
        let mut situation = explorer.situation(progress, &image);
        if let Some(again) = &case.recovery {
            if !crash_again(explorer.rig, replay.crashed(&image), again, flaw.defect()) {
                return Ok((format!("{IMPOSSIBLE}: recovery has no such crash point"), Vec::new()));
            }
            situation += "; then during recovery";
        }
        let problems = explorer.judge(progress, Depth::Empty);
        return Ok((situation, problems));
    }
    Ok((format!("{IMPOSSIBLE}: there is no such crash point"), Vec::new()))
}

struct Explorer<'e, 's, S: Subject> {
    rig: &'e mut Rig<'s, S>,
    sequence: &'e Cached,
    settings: &'e CachedSettings,
    recording: &'e Recording,
    /// Images that were recovered, by hash.
    seen: HashSet<u64>,
    /// The same, with the progress that each was judged by.
    judged: HashSet<(u64, Progress)>,
    /// Recoveries that were crashed in.
    recoveries: u64,
    report: Report,
}

impl<'e, 's, S: Subject> Explorer<'e, 's, S> {
    fn new(
        rig: &'e mut Rig<'s, S>,
        sequence: &'e Cached,
        settings: &'e CachedSettings,
        recording: &'e Recording,
    ) -> Self {
        let report = Report::new(rig.subject.commit_points().len());
        let (seen, judged) = (HashSet::new(), HashSet::new());
        Explorer { rig, sequence, settings, recording, seen, judged, recoveries: 0, report }
    }

    fn is_full(&self) -> bool {
        self.report.violations.len() >= self.settings.max_violations
    }

    fn violation(
        &mut self,
        point: usize,
        image: Option<&CrashImage>,
        recovery: Option<Again>,
        situation: String,
        problems: Vec<String>,
    ) {
        let case = CachedCase {
            sequence: self.sequence.clone(),
            mistake: self.settings.flaw.mistake(),
            buffer_mistake: self.settings.flaw.of_buffer(),
            point,
            landed: image.map(lines_of).unwrap_or_default(),
            recovery,
        };
        self.report.violations.push(Violation { case: Case::Cached(case), situation, problems });
    }

    fn visit(&mut self, replay: &Replay<'_>, point: Point, progress: Progress) {
        let images = replay.images(&self.sampling(replay, point));
        self.report.points += 1;
        self.report.exhaustive += u64::from(images.is_exhaustive());
        let before = self.report.images;
        for image in images.iter() {
            if self.is_full() {
                break;
            }
            let hash = replay.hash_of(&image);
            if !self.judged.insert((hash, progress)) {
                self.report.repeated += 1;
                continue;
            }
            let CachedSettings { check_every, empty_every, .. } = *self.settings;
            let depth = Depth::by_turn(image.index, point.index, check_every, empty_every);
            image.apply(&self.rig.pm);
            let problems = self.judge(progress, depth);
            self.report.images += u64::from(self.seen.insert(hash));
            self.report.checked += u64::from(depth >= Depth::Check);
            self.report.emptied += u64::from(depth == Depth::Empty);
            if !problems.is_empty() {
                let situation = self.situation(progress, &image);
                self.violation(point.index, Some(&image), None, situation, problems);
            } else if turn_of(image.index, point.index).is_multiple_of(self.settings.recovery_every) {
                self.recoveries += 1;
                self.crash_recovery(replay, &image, point.index, progress);
            }
            self.rig.pm.load(replay.media());
        }
        let count = self.report.images - before;
        self.report.count_commits(self.rig.subject, replay, point, count);
    }

    fn sampling(&self, replay: &Replay<'_>, point: Point) -> Sampling {
        let CachedSettings { sampling, few, .. } = *self.settings;
        if !few {
            return sampling;
        }
        spread::few(sampling, self.report.has_fewer(RARE, self.rig.subject, replay, point))
    }

    /// Recovers one image with a trace, and crashes at every point of that.
    fn crash_recovery(&mut self, replay: &Replay<'_>, image: &CrashImage, point: usize, progress: Progress) {
        let by = Recovery::by_turn(self.recoveries);
        let crashed = replay.crashed(image);
        let trace = trace_recovery(self.rig, &crashed, by, self.settings.flaw.defect());
        let mut recovery = Replay::new(crashed, &trace);
        while let Some(at) = recovery.advance() {
            let images = recovery.images(&self.settings.recovery_sampling);
            self.report.count_commits(self.rig.subject, &recovery, at, images.len());
            for again in images.iter() {
                self.rig.pm.load(recovery.media());
                again.apply(&self.rig.pm);
                self.report.recovery_crashes += 1;
                let problems = self.judge(progress, Depth::Empty);
                if !problems.is_empty() && !self.is_full() {
                    let situation = self.situation(progress, image) + &in_words(by, &again);
                    let second = Again { by, point: at.index, landed: lines_of(&again) };
                    self.violation(point, Some(image), Some(second), situation, problems);
                }
            }
        }
    }

    /// Recovers the image in simulated PM, and returns its problems.
    fn judge(&self, progress: Progress, depth: Depth) -> Vec<String> {
        match caught(|| self.recover(progress, depth)) {
            Ok(Ok(problems)) => problems,
            Ok(Err(error)) => vec![error.to_string()],
            Err(panic) => vec![format!("panic: {}", panic_words(&*panic))],
        }
    }

    fn recover(&self, progress: Progress, depth: Depth) -> Result<Vec<String>> {
        let (subject, pm) = (self.rig.subject, &self.rig.pm);
        let mut problems = Vec::new();
        if depth >= Depth::Check {
            problems = subject.check(pm, true)?;
        }
        subject.use_lane(0);
        let fs = subject.mount(pm, self.sequence.mounting).map_err(|e| e.operation("mount"))?;
        let found = contents(&fs).map_err(|e| e.operation("read after the crash"))?;
        let unit = if subject.overwrites() == Overwrites::Whole { BLOCK } else { 8 };
        let Progress { acknowledged, in_flight, .. } = progress;
        problems.extend(judge(&self.recording.states, acknowledged, in_flight, &found, unit).err());
        if depth < Depth::Empty || !problems.is_empty() {
            subject.abandon(fs);
            return Ok(problems);
        }
        subject.unmount(fs)?;
        problems.extend(subject.check(pm, false)?);
        // From here on as any other user of it, under a buffer again.
        let clock = Arc::new(AtomicU64::new(1));
        let fs = CacheFs::new(subject.mount(pm, Mounting::default())?, &buffer(self.sequence, &clock))?;
        if contents(&fs)? != found {
            problems.push("after a clean unmount it is not what it was".to_owned());
        }
        let tree = Tree::of(&fs)?;
        let (layout, flushed) =
            write_and_empty(fs, &tree, self.sequence.left.is_some(), &mut problems)?.unmount();
        flushed?;
        subject.unmount(layout)?;
        problems.extend(subject.check(pm, false)?);
        Ok(problems)
    }

    fn situation(&self, progress: Progress, image: &CrashImage) -> String {
        progress.situation(&self.sequence.ops, image)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nacre_media::sim::Event;

    use super::super::super::explore::MEMORY;
    use super::super::super::record::{Flaw, MARK_BEGIN, MARK_END, Rig};
    use super::super::super::tiered::LogWithDisk;
    use super::super::{BLOCK, Belief, cached};
    use super::record;

    /// Or else no crash comes between what goes from the buffer to the disk and its commit, or between the steps of a move
    /// below a buffer; with room in memory and without.
    #[test]
    fn what_waits_goes_to_the_disk_and_blocks_move() {
        for subject in [LogWithDisk::default(), LogWithDisk::ON_DISK] {
            let mut rig = Rig::new(&subject, MEMORY);
            // By the first word of the operation in which they were written.
            let mut blocks: BTreeMap<String, usize> = BTreeMap::new();
            for seed in 1..25 {
                let sequence = cached(&subject, seed);
                let recording = record(&mut rig, &sequence, Flaw::None, Belief::Right).unwrap();
                assert_eq!(recording.live, None, "{}", sequence.name);
                let mut doing = None;
                for event in &recording.trace.events {
                    match event {
                        Event::Mark(mark) if *mark >= MARK_END => doing = None,
                        Event::Mark(mark) => doing = sequence.ops.get((*mark - MARK_BEGIN) as usize),
                        Event::DiskWrite { bytes, .. } => {
                            let words = doing.expect("nothing is written between operations").to_text();
                            let word = words.split(' ').next().unwrap_or_default();
                            let place = if sequence.left.is_some() { "full, " } else { "" };
                            *blocks.entry(format!("{place}{word}")).or_default() += bytes.len() / BLOCK;
                        }
                        _ => {}
                    }
                }
            }
            println!("{subject:?}: {blocks:?}");
            let words = ["write", "append", "sync", "sync-all", "rename", "remount", "demote", "move-log"];
            for word in words.into_iter().chain(["full, write"]) {
                assert!(
                    blocks.get(word).is_some_and(|blocks| *blocks >= 1),
                    "{subject:?}, {word}: {blocks:?}"
                );
            }
        }
    }
}
