//! One crash of a sequence as text, and making it smaller.

use std::fmt::Write as _;

use nacre_cache::{Checker, Granularity};
use nacre_engine::Result;

use super::super::case::{write_lines, write_mounting, wrong};
use super::super::op::Op;
use super::super::record::{Flaw, Rig};
use super::super::recovery::{take_crash, write_again};
use super::super::report::{Again, Case, Lines, Violation};
use super::super::smaller::{drop_each, drop_parts};
use super::super::subject::Subject;
use super::{BufferMistake, Cached, CachedSettings, explore};

/// The word that only traces of such a crash have.
pub(in super::super) const WORD: &str = "pool";
/// The word before the number of a mistake of the buffer.
const BUFFER_MISTAKE: &str = "buffer-mistake";
/// Explorations that making a case smaller may take.
const MAX_TRIES: usize = 300;

/// A crash of a sequence through a write buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedCase {
    /// The sequence that ran.
    pub sequence: Cached,
    /// The mistake that the layout made on purpose, 0 for none.
    pub mistake: u32,
    /// The mistake that the buffer made on purpose.
    pub buffer_mistake: Option<BufferMistake>,
    /// The crash point of its trace.
    pub point: usize,
    /// Lines that landed, beyond those that are durable at the point.
    pub landed: Lines,
    /// When recovery crashed, too.
    pub recovery: Option<Again>,
}

impl CachedCase {
    /// The deliberate flaw of the run.
    pub(super) fn flaw(&self) -> Flaw {
        match (self.buffer_mistake, self.mistake) {
            (Some(mistake), _) => Flaw::Cache(mistake),
            (None, 0) => Flaw::None,
            (None, number) => Flaw::Layout(number),
        }
    }

    pub(in super::super) fn write(&self, text: &mut String) {
        let Cached { pool, granularity, checker, inherits, mounting, left, ops, .. } = &self.sequence;
        let _ = writeln!(text, "{WORD} {pool}");
        if self.mistake != 0 {
            let _ = writeln!(text, "mistake {}", self.mistake);
        }
        if let Some(mistake) = self.buffer_mistake {
            let _ = writeln!(text, "{BUFFER_MISTAKE} {}", mistake as u32);
        }
        let words = [
            ("whole-blocks", *granularity == Granularity::Blocks),
            ("no-checker", *checker == Checker::Off),
            ("disk-checker", *checker == Checker::Disk),
            ("inherits", *inherits),
        ];
        for (word, _) in words.iter().filter(|(_, yes)| *yes) {
            let _ = writeln!(text, "{word} yes");
        }
        write_mounting(text, *mounting, false);
        if let Some(left) = left {
            let _ = writeln!(text, "left {left}");
        }
        for op in ops {
            let _ = writeln!(text, "op {}", op.to_text());
        }
        let _ = writeln!(text, "crash {}", self.point);
        write_lines(text, "landed", &self.landed);
        write_again(text, self.recovery.as_ref());
    }

    /// From lines, each with its first word and the rest.
    pub(in super::super) fn parse(name: String, lines: &[(&str, &str, &str)]) -> Result<CachedCase> {
        let sequence = Cached { name, ..Cached::default() };
        let (landed, recovery) = (Lines::new(), None);
        let mut case = CachedCase { sequence, mistake: 0, buffer_mistake: None, point: 0, landed, recovery };
        for &(line, word, rest) in lines {
            let sequence = &mut case.sequence;
            match word {
                WORD => sequence.pool = rest.parse().map_err(|_| wrong(line))?,
                "mistake" => case.mistake = rest.parse().map_err(|_| wrong(line))?,
                BUFFER_MISTAKE => {
                    let mistake = rest.parse().ok().and_then(BufferMistake::numbered);
                    case.buffer_mistake = Some(mistake.ok_or_else(|| wrong(line))?);
                }
                "whole-blocks" if rest == "yes" => sequence.granularity = Granularity::Blocks,
                "no-checker" if rest == "yes" => sequence.checker = Checker::Off,
                "inherits" if rest == "yes" => sequence.inherits = true,
                "disk-checker" if rest == "yes" => sequence.checker = Checker::Disk,
                "lanes" => sequence.mounting.lanes = rest.parse().map_err(|_| wrong(line))?,
                "left" => sequence.left = Some(rest.parse().map_err(|_| wrong(line))?),
                "op" => sequence.ops.push(Op::parse(rest)?),
                _ => take_crash((word, rest), &mut case.point, &mut case.landed, &mut case.recovery)
                    .ok_or_else(|| wrong(line))?,
            }
        }
        Ok(case)
    }
}

/// Reproduces the crash: the situation, and the problems.
pub(in super::super) fn reproduce<S: Subject>(
    rig: &mut Rig<'_, S>,
    case: &CachedCase,
) -> Result<(String, Vec<String>)> {
    explore::reproduce(rig, case)
}

/// Looks for a smaller crash with a problem: fewer operations, fewer lines that landed.
pub(in super::super) fn minimise<S: Subject>(
    rig: &mut Rig<'_, S>,
    case: &CachedCase,
    violation: &Violation,
) -> Result<Violation> {
    let mut smaller = Smaller { rig, best: violation.clone(), case: case.clone(), tries: 0 };
    smaller.drop_operations();
    smaller.drop_lines()?;
    Ok(smaller.best)
}

struct Smaller<'r, 's, S: Subject> {
    rig: &'r mut Rig<'s, S>,
    best: Violation,
    /// That of `best`.
    case: CachedCase,
    tries: usize,
}

impl<S: Subject> Smaller<'_, '_, S> {
    fn drop_operations(&mut self) {
        drop_parts(self.case.sequence.ops.len(), |part| {
            let mut sequence = self.case.sequence.clone();
            sequence.ops.drain(part);
            self.is_still_violated(&sequence);
            self.case.sequence.ops.len()
        });
    }

    /// Explores a smaller sequence, and keeps the violation that it finds. A sequence that cannot run without the
    /// removed operations counts as no violation.
    fn is_still_violated(&mut self, sequence: &Cached) {
        if sequence.ops.is_empty() || self.tries >= MAX_TRIES {
            return;
        }
        self.tries += 1;
        let flaw = self.case.flaw();
        let recovery_every = if self.case.recovery.is_some() { 4 } else { u64::MAX };
        let settings =
            CachedSettings { max_violations: 1, flaw, recovery_every, ..CachedSettings::default() };
        let Ok(report) = explore::explore_cached(self.rig, sequence, &settings) else { return };
        let Some(violation) = report.violations.into_iter().next() else { return };
        if let Case::Cached(case) = &violation.case {
            self.case = case.clone();
            self.best = violation;
        }
    }

    fn drop_lines(&mut self) -> Result<()> {
        drop_each(self.case.landed.len(), |index| {
            let mut case = self.case.clone();
            case.landed.remove(index);
            let (situation, problems) = reproduce(self.rig, &case)?;
            // After a crash in recovery no line is dropped, because recovery of another image may run differently.
            let is_violated = !problems.is_empty() && case.recovery.is_none();
            if is_violated {
                self.case = case.clone();
                self.best = Violation { case: Case::Cached(case), situation, problems };
            }
            Ok(is_violated)
        })
    }
}
