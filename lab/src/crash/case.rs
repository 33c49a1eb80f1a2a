//! One crash as text, and making it smaller.

use std::fmt::Write as _;

use nacre_engine::{Error, Kind, Result};
use nacre_media::crash::Sampling;

use super::explore::{Settings, explore, reproduce};
use super::op::Op;
use super::record::{Flaw, Rig};
use super::report::{Again, Case, Lines, Recovery, Violation};
use super::subject::Subject;
use super::workload::Workload;

const TITLE: &str = "nacre crash trace 1";
/// Explorations that making a case smaller may take.
const MAX_TRIES: usize = 300;

impl Case {
    /// The crash as text that [`Case::parse`] reads, of a layout with this name. `words` are added for people.
    pub fn to_text(&self, layout: &str, words: &[String]) -> String {
        let mut text = format!("{TITLE}\n");
        for line in words.iter().flat_map(|words| words.lines()) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "layout {layout}\nname {}", self.workload.name);
        if self.mistake != 0 {
            let _ = writeln!(text, "mistake {}", self.mistake);
        }
        for op in &self.workload.setup {
            let _ = writeln!(text, "setup {}", op.to_text());
        }
        for op in &self.workload.ops {
            let _ = writeln!(text, "op {}", op.to_text());
        }
        let _ = writeln!(text, "crash {}", self.point);
        write_lines(&mut text, &self.landed);
        if let Some(again) = &self.recovery {
            let word = match again.by {
                Recovery::Mount => "crash-in-mount",
                Recovery::Repair => "crash-in-repair",
            };
            let _ = writeln!(text, "{word} {}", again.point);
            write_lines(&mut text, &again.landed);
        }
        text
    }

    /// Reads what [`Case::to_text`] wrote; gives the name of the layout, too.
    pub fn parse(text: &str) -> Result<(String, Case)> {
        let wrong =
            |line: &str| Error::new(Kind::InvalidInput).object(format!("\"{line}\" in a crash trace"));
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(Error::new(Kind::InvalidInput).object("a file that is no crash trace"));
        }
        let workload = Workload { name: String::new(), setup: Vec::new(), ops: Vec::new(), explored_from: 0 };
        let mut case = Case { workload, mistake: 0, point: 0, landed: Lines::new(), recovery: None };
        let mut layout = String::new();
        for line in lines.filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (word, rest) = line.split_once(' ').ok_or_else(|| wrong(line))?;
            match word {
                "layout" => layout = rest.to_string(),
                "name" => case.workload.name = rest.to_string(),
                "mistake" => case.mistake = rest.parse().map_err(|_| wrong(line))?,
                "setup" => case.workload.setup.push(Op::parse(rest)?),
                "op" => case.workload.ops.push(Op::parse(rest)?),
                "crash" => case.point = rest.parse().map_err(|_| wrong(line))?,
                "crash-in-mount" | "crash-in-repair" => {
                    let by = if word == "crash-in-mount" { Recovery::Mount } else { Recovery::Repair };
                    let point = rest.parse().map_err(|_| wrong(line))?;
                    case.recovery = Some(Again { by, point, landed: Lines::new() });
                }
                "landed" => {
                    let landed = read_line(rest).ok_or_else(|| wrong(line))?;
                    match &mut case.recovery {
                        Some(again) => again.landed.push(landed),
                        None => case.landed.push(landed),
                    }
                }
                _ => return Err(wrong(line)),
            }
        }
        Ok((layout, case))
    }
}

fn write_lines(text: &mut String, lines: &Lines) {
    for (line, bytes) in lines {
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "landed {:#x} {bytes}", line * 64);
    }
}

fn read_line(text: &str) -> Option<(u64, [u8; 64])> {
    let (offset, hex) = text.split_once(' ')?;
    let offset = u64::from_str_radix(offset.strip_prefix("0x")?, 16).ok()?;
    let mut bytes = [0; 64];
    if hex.len() != 128 || !hex.is_ascii() || offset % 64 != 0 {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).ok()?;
    }
    Some((offset / 64, bytes))
}

/// Looks for a smaller crash with a problem: fewer operations, fewer lines that landed.
pub fn minimise<S: Subject>(rig: &mut Rig<'_, S>, violation: &Violation) -> Result<Violation> {
    let mut smaller = Smaller { rig, best: violation.clone(), tries: 0 };
    smaller.drop_operations(|workload| &mut workload.ops);
    smaller.drop_operations(|workload| &mut workload.setup);
    smaller.drop_lines()?;
    Ok(smaller.best)
}

struct Smaller<'r, 's, S: Subject> {
    rig: &'r mut Rig<'s, S>,
    best: Violation,
    tries: usize,
}

impl<S: Subject> Smaller<'_, '_, S> {
    /// Takes operations away, many at once as long as that works, then one by one.
    fn drop_operations(&mut self, list: impl Fn(&mut Workload) -> &mut Vec<Op>) {
        let mut count = list(&mut self.best.case.workload.clone()).len();
        let mut portion = count.div_ceil(2);
        while portion > 0 {
            let mut from = 0;
            while from < count {
                let mut workload = self.best.case.workload.clone();
                let ops = list(&mut workload);
                let kept = ops.len();
                ops.drain(from..(from + portion).min(kept));
                match self.violation_of(workload) {
                    Some(violation) => {
                        self.best = violation;
                        count = list(&mut self.best.case.workload.clone()).len();
                    }
                    None => from += portion,
                }
            }
            portion = if portion == 1 { 0 } else { portion.div_ceil(2) };
        }
    }

    fn violation_of(&mut self, mut workload: Workload) -> Option<Violation> {
        if workload.ops.is_empty() || self.tries >= MAX_TRIES {
            return None;
        }
        self.tries += 1;
        workload.explored_from = 0;
        let in_recovery = self.best.case.recovery.is_some();
        let mistake = self.best.case.mistake;
        let settings = Settings {
            sampling: Sampling { exhaustive_up_to: 512, samples: 64, seed: 1 },
            empty_every: 4,
            recovery_every: if in_recovery { 4 } else { u64::MAX },
            max_violations: 1,
            flaw: if mistake == 0 { Flaw::None } else { Flaw::Layout(mistake) },
            ..Settings::default()
        };
        explore(self.rig, &workload, &settings).ok()?.violations.into_iter().next()
    }

    fn drop_lines(&mut self) -> Result<()> {
        let mut index = 0;
        while index < self.best.case.landed.len() {
            let mut case = self.best.case.clone();
            case.landed.remove(index);
            let (situation, problems) = reproduce(self.rig, &case)?;
            if problems.is_empty() || case.recovery.is_some() {
                index += 1;
            } else {
                self.best = Violation { case, situation, problems };
            }
        }
        Ok(())
    }
}
