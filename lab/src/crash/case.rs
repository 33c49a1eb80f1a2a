//! One crash as text, and making it smaller.

use std::fmt::Write as _;

use nacre_engine::{Error, Kind, Result};
use nacre_media::crash::Sampling;

use super::cached::{self, CachedCase};
use super::explore::{Settings, explore, reproduce_workload};
use super::op::Op;
use super::record::{Flaw, Rig};
use super::recovery::{take_crash, write_again};
use super::report::{Case, Lines, Violation, WorkloadCase};
use super::smaller::{drop_each, drop_parts};
use super::subject::{Mounting, Subject};
use super::thread_case::{self, ThreadsCase};
use super::workload::Workload;

const TITLE: &str = "nacre crash trace 1";
/// Explorations that making a case smaller may take.
const MAX_TRIES: usize = 300;

impl Case {
    /// The crash as text that [`Case::parse`] reads, of a layout with this name. `words` are added for people.
    pub fn to_text<S: Subject>(&self, subject: &S, words: &[String]) -> String {
        let mut text = format!("{TITLE}\n");
        for line in words.iter().flat_map(|words| words.lines()) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "layout {}\nname {}", subject.name(), self.name());
        match self {
            Case::Workload(case) => case.write(&mut text),
            Case::Threads(case) => case.write(&mut text, subject),
            Case::Cached(case) => case.write(&mut text),
        }
        text
    }

    /// Parses the output of [`Case::to_text`]; returns the name of the layout, too.
    pub fn parse(text: &str) -> Result<(String, Case)> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(Error::new(Kind::InvalidInput)
                .object("a file that is no crash trace")
                .advice("give one that nacre crash has written"));
        }
        let mut rest = Vec::new();
        let (mut layout, mut name) = (String::new(), String::new());
        for line in lines.filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match line.split_once(' ').ok_or_else(|| wrong(line))? {
                ("layout", word) => layout = word.to_string(),
                ("name", words) => name = words.to_string(),
                (word, words) => rest.push((line, word, words)),
            }
        }
        let has = |wanted: &str| rest.iter().any(|(_, word, _)| *word == wanted);
        let case = match () {
            () if has(thread_case::WORD) => Case::Threads(ThreadsCase::parse(name, &rest)?),
            () if has(cached::WORD) => Case::Cached(CachedCase::parse(name, &rest)?),
            () => Case::Workload(WorkloadCase::parse(name, &rest)?),
        };
        Ok((layout, case))
    }
}

/// The error for an unreadable line of a trace.
pub(super) fn wrong(line: &str) -> Error {
    Error::new(Kind::InvalidInput).object(format!("\"{line}\" in a crash trace"))
}

impl WorkloadCase {
    fn write(&self, text: &mut String) {
        if self.mistake != 0 {
            let _ = writeln!(text, "mistake {}", self.mistake);
        }
        write_mounting(text, self.workload.mounting, self.workload.fills);
        for op in &self.workload.setup {
            let _ = writeln!(text, "setup {}", op.to_text());
        }
        for op in &self.workload.ops {
            let _ = writeln!(text, "op {}", op.to_text());
        }
        let _ = writeln!(text, "crash {}", self.point);
        write_lines(text, "landed", &self.landed);
        write_again(text, self.recovery.as_ref());
    }

    /// From lines, each with its first word and the rest.
    fn parse(name: String, lines: &[(&str, &str, &str)]) -> Result<WorkloadCase> {
        let workload = Workload { name, ..Workload::default() };
        let mut case = WorkloadCase { workload, mistake: 0, point: 0, landed: Lines::new(), recovery: None };
        for &(line, word, rest) in lines {
            match word {
                "mistake" => case.mistake = rest.parse().map_err(|_| wrong(line))?,
                "lanes" => case.workload.mounting.lanes = rest.parse().map_err(|_| wrong(line))?,
                "background" => case.workload.mounting.background = rest == "yes",
                "fills" => case.workload.fills = rest == "yes",
                "setup" => case.workload.setup.push(Op::parse(rest)?),
                "op" => case.workload.ops.push(Op::parse(rest)?),
                _ => take_crash((word, rest), &mut case.point, &mut case.landed, &mut case.recovery)
                    .ok_or_else(|| wrong(line))?,
            }
        }
        Ok(case)
    }
}

pub(super) fn write_mounting(text: &mut String, mounting: Mounting, fills: bool) {
    let _ = writeln!(text, "lanes {}", mounting.lanes);
    for (word, _) in [("background", mounting.background), ("fills", fills)].iter().filter(|(_, yes)| *yes) {
        let _ = writeln!(text, "{word} yes");
    }
}

pub(super) fn write_lines(text: &mut String, word: &str, lines: &Lines) {
    for (line, bytes) in lines {
        let _ = writeln!(text, "{word} {:#x} {}", line * 64, hex(bytes));
    }
}

pub(super) fn read_line(text: &str) -> Option<(u64, [u8; 64])> {
    let (offset, bytes) = text.split_once(' ')?;
    let offset = read_offset(offset).filter(|offset| offset % 64 == 0)?;
    Some((offset / 64, read_hex(bytes)?.try_into().ok()?))
}

pub(super) fn read_offset(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn read_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len() / 2).map(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()).collect()
}

/// Looks for a smaller crash with a problem: fewer operations, fewer lines that landed.
pub fn minimise<S: Subject>(rig: &mut Rig<'_, S>, violation: &Violation) -> Result<Violation> {
    let case = match &violation.case {
        Case::Workload(case) => case.clone(),
        Case::Threads(case) => return thread_case::minimise(rig, case, violation),
        Case::Cached(case) => return cached::minimise(rig, case, violation),
    };
    let mut smaller = Smaller { rig, best: violation.clone(), case, tries: 0 };
    smaller.drop_operations(|workload| &mut workload.ops);
    smaller.drop_operations(|workload| &mut workload.setup);
    smaller.drop_lines()?;
    Ok(smaller.best)
}

struct Smaller<'r, 's, S: Subject> {
    rig: &'r mut Rig<'s, S>,
    best: Violation,
    /// That of `best`.
    case: WorkloadCase,
    tries: usize,
}

impl<S: Subject> Smaller<'_, '_, S> {
    fn drop_operations(&mut self, list: impl Fn(&mut Workload) -> &mut Vec<Op>) {
        drop_parts(list(&mut self.case.workload.clone()).len(), |part| {
            let mut workload = self.case.workload.clone();
            list(&mut workload).drain(part);
            self.is_still_violated(workload);
            list(&mut self.case.workload.clone()).len()
        });
    }

    /// Explores a smaller workload, and keeps the violation that it finds.
    fn is_still_violated(&mut self, mut workload: Workload) {
        if workload.ops.is_empty() || self.tries >= MAX_TRIES {
            return;
        }
        self.tries += 1;
        workload.explored_from = 0;
        let in_recovery = self.case.recovery.is_some();
        let mistake = self.case.mistake;
        let settings = Settings {
            sampling: Sampling { exhaustive_up_to: 512, samples: 64, seed: 1 },
            empty_every: 4,
            recovery_every: if in_recovery { 4 } else { u64::MAX },
            max_violations: 1,
            flaw: if mistake == 0 { Flaw::None } else { Flaw::Layout(mistake) },
            ..Settings::default()
        };
        let Ok(report) = explore(self.rig, &workload, &settings) else { return };
        let Some(violation) = report.violations.into_iter().next() else { return };
        let Case::Workload(case) = &violation.case else { return };
        self.case = case.clone();
        self.best = violation;
    }

    fn drop_lines(&mut self) -> Result<()> {
        drop_each(self.case.landed.len(), |index| {
            let mut case = self.case.clone();
            case.landed.remove(index);
            let (situation, problems) = reproduce_workload(self.rig, &case)?;
            let is_violated = !problems.is_empty() && case.recovery.is_none();
            if is_violated {
                self.case = case.clone();
                self.best = Violation { case: Case::Workload(case), situation, problems };
            }
            Ok(is_violated)
        })
    }
}
