//! A crash of several threads as text, and making it smaller.
//!
//! The text holds the run itself, in its order up to the crash: the file system at its start, every store, flush and
//! fence, and the beginning and end of each operation. So the crash is reproduced to the bit, on any machine at any
//! time. A replayed case tests recovery, and no longer the code that the threads ran. Only a new exploration shows
//! whether that code was fixed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::panic::Location;

use nacre_engine::{LINE_SIZE, Result};
use nacre_media::crash::{CrashImage, Sampling};
use nacre_media::sim::{Event, Site, StoreKind};
use nacre_media::{Image, Trace};

use super::case::{hex, read_hex, read_line, read_offset, write_lines, write_mounting, wrong};
use super::explore::{IMPOSSIBLE, MEMORY};
use super::op::Op;
use super::record::{Flaw, Rig};
use super::recovery::{crash_again, take_crash, write_again};
use super::report::{Again, Case, Lines, Violation};
use super::smaller::{drop_each, drop_parts};
use super::subject::Subject;
use super::threads::{Run, Threads, Walk, explore_threads, mark, of_mark};
use super::verify::Depth;

/// The word that only traces of several threads have.
pub(super) const WORD: &str = "thread";
/// Runs that making a case smaller may take.
const MAX_RUNS: usize = 400;
/// Interleavings that a smaller workload is tried with.
const INTERLEAVINGS: u64 = 12;

/// A crash of several threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadsCase {
    /// The workload that ran.
    pub workload: Threads,
    /// The mistake that the layout made on purpose, 0 for none.
    pub mistake: u32,
    /// The contents of simulated PM when the threads began, all of it durable: the lines that are not zero.
    pub start: Lines,
    /// The recorded trace of the threads up to the crash.
    pub trace: Trace,
    /// The crash point of that trace.
    pub point: usize,
    /// Lines that landed, beyond those that are durable at the point.
    pub landed: Lines,
    /// So many blocks are free when everything is removed.
    pub free_when_empty: u64,
    /// When recovery crashed, too.
    pub recovery: Option<Again>,
}

impl ThreadsCase {
    pub(super) fn new(
        workload: &Threads,
        mistake: u32,
        run: &Run,
        point: usize,
        landed: Lines,
    ) -> ThreadsCase {
        let lines = (0..run.start.len() / LINE_SIZE).map(|line| (line, run.start.line(line)));
        ThreadsCase {
            workload: workload.clone(),
            mistake,
            start: lines.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).collect(),
            trace: run.trace.clone(),
            point,
            landed,
            free_when_empty: run.free_when_empty,
            recovery: None,
        }
    }

    fn run(&self) -> Run {
        let mut start = Image::zeros(MEMORY);
        self.start.iter().for_each(|(line, bytes)| start.set_line(*line, bytes));
        Run { start, trace: self.trace.clone(), free_when_empty: self.free_when_empty }
    }

    pub(super) fn write<S: Subject>(&self, text: &mut String, subject: &S) {
        if self.mistake != 0 {
            let _ = writeln!(text, "mistake {}", self.mistake);
        }
        write_mounting(text, self.workload.mounting, self.workload.fills);
        for op in &self.workload.setup {
            let _ = writeln!(text, "setup {}", op.to_text());
        }
        for (thread, ops) in self.workload.threads.iter().enumerate() {
            for op in ops {
                let _ = writeln!(text, "{WORD} {thread} {}", op.to_text());
            }
        }
        let _ = writeln!(text, "free {}", self.free_when_empty);
        write_lines(text, "start", &self.start);
        self.write_events(text, subject);
        let _ = writeln!(text, "crash {}", self.point);
        write_lines(text, "landed", &self.landed);
        write_again(text, self.recovery.as_ref());
    }

    fn write_events<S: Subject>(&self, text: &mut String, subject: &S) {
        let place = |site: Site| subject.site_name(site);
        for event in &self.trace.events {
            let _ = match event {
                Event::Store { thread, offset, bytes, kind, site } => {
                    let kind = if *kind == StoreKind::Cached { "store" } else { "store-past-cache" };
                    writeln!(text, "{kind} {thread} {offset:#x} {} {}", hex(bytes), place(site))
                }
                Event::Flush { thread, offset, len, site } => {
                    writeln!(text, "flush {thread} {offset:#x} {len} {}", place(site))
                }
                Event::Fence { thread, site } => writeln!(text, "fence {thread} {}", place(site)),
                Event::DiskWrite { thread, offset, bytes, site } => {
                    writeln!(text, "disk-write {thread} {offset:#x} {} {}", hex(bytes), place(site))
                }
                Event::DiskFlush { thread, offset, len, site } => {
                    writeln!(text, "disk-flush {thread} {offset:#x} {len} {}", place(site))
                }
                Event::Mark(value) => {
                    let (thread, index, ends) = of_mark(*value);
                    writeln!(text, "{} {thread} {index}", if ends { "returned" } else { "begins" })
                }
            };
        }
    }

    /// From lines, each with its first word and the rest.
    pub(super) fn parse(name: String, lines: &[(&str, &str, &str)]) -> Result<ThreadsCase> {
        let mut case = ThreadsCase {
            workload: Threads { name, ..Threads::default() },
            mistake: 0,
            start: Lines::new(),
            trace: Trace::default(),
            point: 0,
            landed: Lines::new(),
            free_when_empty: 0,
            recovery: None,
        };
        for &(line, word, rest) in lines {
            case.take(word, rest).ok_or_else(|| wrong(line))?;
        }
        let inside = |offset: u64, len: u64| offset.checked_add(len).is_some_and(|end| end <= MEMORY);
        let line_inside = |(line, _): &(u64, [u8; 64])| inside(line * LINE_SIZE, LINE_SIZE);
        let event_inside = |event: &Event| match event {
            Event::Store { offset, bytes, .. } => inside(*offset, bytes.len() as u64),
            Event::Flush { offset, len, .. } | Event::DiskFlush { offset, len, .. } => inside(*offset, *len),
            Event::DiskWrite { offset, bytes, .. } => inside(*offset, bytes.len() as u64),
            Event::Fence { .. } => true,
            Event::Mark(value) => {
                let (thread, index, _) = of_mark(*value);
                case.workload.threads.get(thread).is_some_and(|ops| index < ops.len())
            }
        };
        let again = case.recovery.iter().flat_map(|again| &again.landed);
        if !case.start.iter().chain(&case.landed).chain(again).all(line_inside)
            || !case.trace.events.iter().all(event_inside)
        {
            return Err(wrong("something outside of the memory or of the threads"));
        }
        Ok(case)
    }

    /// Takes one line in; `None` when it cannot be read.
    fn take(&mut self, word: &str, rest: &str) -> Option<()> {
        let mut words = rest.split(' ');
        let events = &mut self.trace.events;
        // The storing place in the source is only information for people.
        let site: Site = Location::caller();
        match word {
            "mistake" => self.mistake = rest.parse().ok()?,
            "lanes" => self.workload.mounting.lanes = rest.parse().ok()?,
            "background" => self.workload.mounting.background = rest == "yes",
            "fills" => self.workload.fills = rest == "yes",
            "setup" => self.workload.setup.push(Op::parse(rest).ok()?),
            WORD => {
                let (thread, op) = rest.split_once(' ')?;
                let thread: usize = thread.parse().ok()?;
                let threads = &mut self.workload.threads;
                if thread == threads.len() {
                    threads.push(Vec::new());
                }
                threads.get_mut(thread)?.push(Op::parse(op).ok()?);
            }
            "free" => self.free_when_empty = rest.parse().ok()?,
            "start" => self.start.push(read_line(rest)?),
            "store" | "store-past-cache" => {
                let kind = if word == "store" { StoreKind::Cached } else { StoreKind::NonTemporal };
                let thread = words.next()?.parse().ok()?;
                let offset = read_offset(words.next()?)?;
                let bytes = read_hex(words.next()?)?.into();
                events.push(Event::Store { thread, offset, bytes, kind, site });
            }
            "flush" => {
                let thread = words.next()?.parse().ok()?;
                let offset = read_offset(words.next()?)?;
                events.push(Event::Flush { thread, offset, len: words.next()?.parse().ok()?, site });
            }
            "disk-write" => {
                let thread = words.next()?.parse().ok()?;
                let offset = read_offset(words.next()?)?;
                events.push(Event::DiskWrite {
                    thread,
                    offset,
                    bytes: read_hex(words.next()?)?.into(),
                    site,
                });
            }
            "disk-flush" => {
                let thread = words.next()?.parse().ok()?;
                let offset = read_offset(words.next()?)?;
                events.push(Event::DiskFlush { thread, offset, len: words.next()?.parse().ok()?, site });
            }
            "fence" => events.push(Event::Fence { thread: words.next()?.parse().ok()?, site }),
            "begins" | "returned" => {
                let (thread, index): (u32, u32) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                events.push(Event::Mark(mark(thread as usize, index as usize, word == "returned")));
            }
            _ => return take_crash((word, rest), &mut self.point, &mut self.landed, &mut self.recovery),
        }
        Some(())
    }
}

/// Crashes the recorded run again; returns the situation, and the problems.
pub(super) fn reproduce<S: Subject>(
    rig: &mut Rig<'_, S>,
    case: &ThreadsCase,
) -> Result<(String, Vec<String>)> {
    let (_, model, _) = rig.prepare(&case.workload)?;
    let run = case.run();
    let mut walk = Walk::new(&case.workload, &model, &run, rig.subject.overwrites());
    while let Some(point) = walk.advance()? {
        if point.index != case.point {
            continue;
        }
        let allows = |(line, bytes): &&(u64, [u8; 64])| walk.replay.allows(*line, bytes);
        if let Some((line, _)) = case.landed.iter().find(|landed| !allows(landed)) {
            let words = format!("{IMPOSSIBLE}: these bytes cannot land at {:#x}", line * LINE_SIZE);
            return Ok((words, Vec::new()));
        }
        rig.pm.load(walk.replay.media());
        rig.pm.seed_mistake(case.mistake);
        let image = CrashImage { index: 0, lines: case.landed.clone(), choice: "from a trace" };
        let problems = match &case.recovery {
            None => walk.judge(rig, &image, Depth::Empty),
            Some(again) if crash_again(rig, walk.replay.crashed(&image), again, None) => {
                walk.judge_memory(rig, Depth::Empty)
            }
            Some(_) => {
                rig.pm.seed_mistake(0);
                return Ok((format!("{IMPOSSIBLE}: recovery has no such crash point"), Vec::new()));
            }
        };
        rig.pm.seed_mistake(0);
        let again = if case.recovery.is_some() { "; then during recovery" } else { "" };
        return Ok((format!("{}; {image:?}{again}", walk.in_words()), problems));
    }
    Ok((format!("{IMPOSSIBLE}: there is no such crash point"), Vec::new()))
}

/// Looks for a smaller crash with a problem: fewer operations, each smaller workload in several interleavings; then
/// fewer lines that landed; then nothing after that.
pub(super) fn minimise<S: Subject>(
    rig: &mut Rig<'_, S>,
    case: &ThreadsCase,
    violation: &Violation,
) -> Result<Violation> {
    let mut smaller = Smaller { rig, best: violation.clone(), case: case.clone(), runs: 0 };
    smaller.drop_operations();
    smaller.drop_setup();
    smaller.drop_lines()?;
    smaller.cut()
}

struct Smaller<'r, 's, S: Subject> {
    rig: &'r mut Rig<'s, S>,
    best: Violation,
    /// That of `best`.
    case: ThreadsCase,
    runs: usize,
}

impl<S: Subject> Smaller<'_, '_, S> {
    /// Removes whole threads, then single operations, the last one first: operations after the crash go at once.
    fn drop_operations(&mut self) {
        for thread in (0..self.case.workload.threads.len()).rev() {
            let mut workload = self.case.workload.clone();
            workload.threads.remove(thread);
            if !workload.threads.is_empty() {
                self.is_still_violated(&workload);
            }
        }
        for thread in (0..self.case.workload.threads.len()).rev() {
            for index in (0..self.case.workload.threads[thread].len()).rev() {
                let mut workload = self.case.workload.clone();
                workload.threads[thread].remove(index);
                if !workload.threads[thread].is_empty() {
                    self.is_still_violated(&workload);
                }
            }
        }
    }

    fn drop_setup(&mut self) {
        drop_parts(self.case.workload.setup.len(), |part| {
            let mut workload = self.case.workload.clone();
            workload.setup.drain(part);
            self.is_still_violated(&workload);
            self.case.workload.setup.len()
        });
    }

    /// Runs a smaller workload several times, and keeps a violation if there is one.
    fn is_still_violated(&mut self, workload: &Threads) {
        let flaw = if self.case.mistake == 0 { Flaw::None } else { Flaw::Layout(self.case.mistake) };
        for seed in 0..INTERLEAVINGS {
            if self.runs >= MAX_RUNS {
                return;
            }
            self.runs += 1;
            let sampling = Sampling { exhaustive_up_to: 64, samples: 48, seed };
            // A workload that cannot run without the removed operations is no smaller case.
            let Ok(report) = explore_threads(self.rig, workload, seed, &sampling, flaw) else { return };
            let found = report.violations.into_iter().next();
            if let Some((violation, case)) = found.and_then(|found| Some((found.clone(), of(&found)?))) {
                (self.best, self.case) = (violation, case);
                return;
            }
        }
    }

    fn drop_lines(&mut self) -> Result<()> {
        drop_each(self.case.landed.len(), |index| {
            let mut case = self.case.clone();
            case.landed.remove(index);
            self.try_case(case)
        })
    }

    /// Takes the events after the crash away, and numbers the threads of the rest from 0.
    fn cut(mut self) -> Result<Violation> {
        let mut case = self.case.clone();
        let run = case.run();
        let mut replay = nacre_media::crash::Replay::new(run.start, &run.trace);
        while let Some(point) = replay.advance() {
            if point.index == case.point {
                case.trace.events.truncate(point.events);
            }
        }
        let mut numbers = HashMap::new();
        for event in &mut case.trace.events {
            if let Event::Store { thread, .. }
            | Event::Flush { thread, .. }
            | Event::Fence { thread, .. }
            | Event::DiskWrite { thread, .. }
            | Event::DiskFlush { thread, .. } = event
            {
                let next = numbers.len() as u32;
                *thread = *numbers.entry(*thread).or_insert(next);
            }
        }
        self.try_case(case)?;
        Ok(self.best)
    }

    fn try_case(&mut self, case: ThreadsCase) -> Result<bool> {
        let (situation, problems) = reproduce(self.rig, &case)?;
        let is_violated = !problems.is_empty();
        if is_violated {
            self.case = case.clone();
            self.best = Violation { case: Case::Threads(case), situation, problems };
        }
        Ok(is_violated)
    }
}

fn of(violation: &Violation) -> Option<ThreadsCase> {
    match &violation.case {
        Case::Threads(case) => Some(case.clone()),
        Case::Workload(_) | Case::Cached(_) => None,
    }
}
