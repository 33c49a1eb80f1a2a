//! The images of one crash point.

use std::collections::BTreeSet;
use std::fmt;

use nacre_engine::LINE_SIZE;

use super::LineBytes;
use super::pending::{Landed, Line};
use super::sector::{self, SectorBytes, Versions};
use crate::image::Image;
use crate::sim::SimPm;

/// When all images are made, and how many when not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// All images are made when there are at most so many.
    pub exhaustive_up_to: u64,
    /// Otherwise so many are.
    pub samples: u64,
    /// The seed of the choice of samples.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { exhaustive_up_to: 1 << 12, samples: 256, seed: 0 }
    }
}

/// The images that a crash may leave at one point, by number.
#[derive(Debug)]
pub struct Images {
    lines: Vec<Choice>,
    sectors: Vec<SectorChoice>,
    plan: Plan,
    seed: u64,
    /// The order of all pending stores, when samples are made.
    order: Vec<u64>,
}

/// One line and its possible contents after a crash.
#[derive(Debug)]
struct Choice {
    line: u64,
    before: LineBytes,
    pending: Line,
    /// Every content that the line may have, when all images are made; the first is the one before.
    outcomes: Vec<LineBytes>,
}

/// One sector of a disk, and its possible contents after a crash. The first is the content before, the last that of
/// the last write, each with its place in the order of all stores.
#[derive(Debug)]
struct SectorChoice {
    sector: u64,
    outcomes: Vec<(u64, SectorBytes)>,
}

/// One outcome of everything that was pending.
struct Outcome {
    lines: Vec<LineBytes>,
    /// Numbers of outcomes.
    sectors: Vec<usize>,
}

#[derive(Debug)]
enum Plan {
    All { count: u64 },
    Samples { count: u64 },
}

/// One image: the lines that differ from the durable state at the point.
#[derive(Clone, PartialEq, Eq)]
pub struct CrashImage {
    /// Its number among the images of its point.
    pub index: u64,
    /// Line (offset divided by 64) and content, ascending.
    pub lines: Vec<(u64, LineBytes)>,
    /// How it was chosen, in words.
    pub choice: &'static str,
}

impl fmt::Debug for CrashImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<u64> = self.lines.iter().map(|(line, _)| *line).collect();
        write!(f, "image {} ({}): lines {lines:x?} changed", self.index, self.choice)
    }
}

impl CrashImage {
    /// Changes simulated memory that holds the durable state at the point into this image.
    pub fn apply(&self, pm: &SimPm) {
        for (line, bytes) in &self.lines {
            pm.poke(line * LINE_SIZE, bytes);
        }
    }

    /// The same for an image.
    pub(super) fn apply_to(&self, media: &mut Image) {
        for (line, bytes) in &self.lines {
            media.set_line(*line, bytes);
        }
    }
}

impl Images {
    pub(super) fn new<'a>(
        lines: impl Iterator<Item = (u64, LineBytes, &'a Line)>,
        sectors: impl Iterator<Item = (u64, SectorBytes, &'a Versions)>,
        sampling: &Sampling,
        point: u64,
    ) -> Images {
        let mut lines: Vec<Choice> = lines
            .map(|(line, before, pending)| Choice {
                line,
                before,
                pending: pending.reduced(&before),
                outcomes: Vec::new(),
            })
            .filter(|choice| !choice.pending.is_empty())
            .collect();
        let sectors: Vec<SectorChoice> = sectors
            .map(|(sector, before, versions)| SectorChoice { sector, outcomes: versions.outcomes(before) })
            .filter(|choice| choice.outcomes.len() > 1)
            .collect();
        let seed = mix(sampling.seed ^ mix(point));
        let limit = sampling.exhaustive_up_to;
        let mut product = Some(1u64);
        for choice in &mut lines {
            product = product
                .filter(|product| *product <= limit)
                .and_then(|product| product.checked_mul(choice.enumerate(limit)?));
        }
        for choice in &sectors {
            product = product
                .filter(|product| *product <= limit)
                .and_then(|product| product.checked_mul(choice.outcomes.len() as u64));
        }
        let plan = match product.filter(|product| *product <= limit) {
            Some(count) => Plan::All { count },
            None => Plan::Samples { count: sampling.samples.max(2) },
        };
        let mut order = Vec::new();
        if matches!(plan, Plan::Samples { .. }) {
            order.extend(lines.iter().flat_map(|choice| choice.pending.sequences()));
            order.extend(sectors.iter().flat_map(|choice| choice.outcomes[1..].iter().map(|(at, _)| *at)));
            order.sort_unstable();
        }
        Images { lines, sectors, plan, seed, order }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        match self.plan {
            Plan::All { count } | Plan::Samples { count } => count,
        }
    }

    /// Never: a crash leaves at least the durable state.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// True when these are all the images that are allowed.
    pub fn is_exhaustive(&self) -> bool {
        matches!(self.plan, Plan::All { .. })
    }

    /// All of them in turn.
    pub fn iter(&self) -> impl Iterator<Item = CrashImage> {
        (0..self.len()).map(|index| self.image(index))
    }

    /// The image with this number, below [`Images::len`].
    pub fn image(&self, index: u64) -> CrashImage {
        assert!(index < self.len(), "there are {} images", self.len());
        let (outcome, choice) = match self.plan {
            Plan::All { .. } => (self.combination(index), "one of all"),
            Plan::Samples { count } => self.sample(index, count),
        };
        let lines = outcome.lines.into_iter().zip(&self.lines);
        let lines = lines.filter(|(after, choice)| *after != choice.before);
        let mut changed: Vec<_> = lines.map(|(after, choice)| (choice.line, after)).collect();
        // Sectors lie behind all lines of the PM, so that the order is kept.
        for (number, choice) in outcome.sectors.into_iter().zip(&self.sectors) {
            let [before, after] = [0, number].map(|number| sector::lines_in(&choice.outcomes[number].1));
            let lines = sector::lines_of(choice.sector).zip(before.zip(after));
            let lines = lines.filter(|(_, (before, after))| before != after);
            changed.extend(lines.map(|(line, (_, after))| (line, after)));
        }
        CrashImage { index, lines: changed, choice }
    }

    fn combination(&self, mut index: u64) -> Outcome {
        let mut digit = |radix: usize| {
            let digit = (index % radix as u64) as usize;
            index /= radix as u64;
            digit
        };
        let lines = self.lines.iter().map(|choice| choice.outcomes[digit(choice.outcomes.len())]).collect();
        let sectors = self.sectors.iter().map(|choice| digit(choice.outcomes.len())).collect();
        Outcome { lines, sectors }
    }

    /// Sample number `index`: the regular ones; then, where the program was stopped between its stores (one in eight);
    /// then in turn the four that single a line or a sector out; then random ones.
    fn sample(&self, index: u64, count: u64) -> (Outcome, &'static str) {
        let mut random = Random(mix(self.seed ^ index));
        type Lands = fn(u8) -> bool;
        // Of sectors it is the number within eight that lands or not.
        const REGULAR: [(&str, Lands); 5] = [
            ("nothing landed", |_| false),
            ("everything landed", |_| true),
            ("the first half of every line landed", |word| word < 4),
            ("the second half of every line landed", |word| word >= 4),
            ("every other word landed", |word| word % 2 == 1),
        ];
        if let Some((words, lands)) = REGULAR.get(index as usize) {
            let sector = |choice: &SectorChoice| choice.all_if(lands((choice.sector % 8) as u8));
            return (self.each(|choice| choice.pending.by_word(lands), sector), words);
        }
        let mut step = index - REGULAR.len() as u64;
        if !self.sectors.is_empty() && !self.lines.is_empty() {
            if step < 2 {
                let memory = step == 0;
                let words = if memory { "only the memory's landed" } else { "only the disks' landed" };
                let line = |choice: &Choice| choice.pending.nothing_or_all(memory);
                return (self.each(line, |choice| choice.all_if(!memory)), words);
            }
            step -= 2;
        }
        let prefixes = (count / 8).min(self.order.len() as u64);
        if step < prefixes {
            let last = self.order[(self.order.len() as u64 * step / prefixes) as usize];
            let sector = |choice: &SectorChoice| {
                choice.outcomes.iter().rposition(|(at, _)| *at <= last).unwrap_or_default()
            };
            let until = self.each(|choice| choice.pending.until(last), sector);
            return (until, "the stores up to one of them landed");
        }
        // Up to three quarters of the samples single out a line: each line in turn where there are few, a random one
        // where there are many.
        step -= prefixes;
        let units = (self.lines.len() + self.sectors.len()) as u64;
        let kinds = 4 * units;
        if step < kinds && step < count * 3 / 4 {
            let few = kinds <= count * 3 / 4;
            let chosen = if few { step / 4 } else { random.below(units) };
            return self.single_out(chosen as usize, step % 4, &mut random);
        }
        let weight = random.below(7) + 1;
        // Both draw from one sequence of numbers.
        let random = std::cell::RefCell::new(random);
        let below = |n: u64| random.borrow_mut().below(n);
        let line = |choice: &Choice| {
            if below(8) < weight {
                match below(3) {
                    0 => choice.pending.nothing_or_all(true),
                    _ => choice.pending.by_word(|_| below(2) == 0),
                }
            } else {
                choice.pending.nothing_or_all(false)
            }
        };
        let sector = |choice: &SectorChoice| {
            if below(8) < weight { below(choice.outcomes.len() as u64) as usize } else { 0 }
        };
        (self.each(line, sector), "a random part landed")
    }

    /// `chosen` counts lines, then sectors.
    fn single_out(&self, chosen: usize, kind: u64, random: &mut Random) -> (Outcome, &'static str) {
        let others = kind % 2 == 1;
        let torn = kind >= 2;
        let pattern = random.below(256);
        let line = self.lines.get(chosen).map(|choice| choice.line);
        let sector = chosen.checked_sub(self.lines.len()).map(|at| self.sectors[at].sector);
        let outcome = self.each(
            |choice| {
                if Some(choice.line) != line {
                    choice.pending.nothing_or_all(others)
                } else if torn {
                    choice.pending.by_word(|word| pattern >> word & 1 == 1)
                } else {
                    choice.pending.nothing_or_all(!others)
                }
            },
            |choice| {
                if Some(choice.sector) != sector {
                    choice.all_if(others)
                } else if torn {
                    pattern as usize % choice.outcomes.len()
                } else {
                    choice.all_if(!others)
                }
            },
        );
        let words = match (kind, line) {
            (0, Some(_)) => "one line landed",
            (1, Some(_)) => "all but one line landed",
            (2, Some(_)) => "one line landed in part",
            (_, Some(_)) => "all lines landed, one in part",
            (0, None) => "one sector landed",
            (1, None) => "all but one sector landed",
            (2, None) => "one sector landed, in any of its versions",
            (_, None) => "everything landed, of one sector any version",
        };
        (outcome, words)
    }

    fn each(&self, landed: impl Fn(&Choice) -> Landed, sector: impl Fn(&SectorChoice) -> usize) -> Outcome {
        let after = |choice: &Choice| choice.pending.after(choice.before, &landed(choice));
        Outcome {
            lines: self.lines.iter().map(after).collect(),
            sectors: self.sectors.iter().map(sector).collect(),
        }
    }
}

impl SectorChoice {
    /// The number of the last write, or of the content before.
    fn all_if(&self, landed: bool) -> usize {
        if landed { self.outcomes.len() - 1 } else { 0 }
    }
}

impl Choice {
    /// Lists every content that the line may have; `None` when there are too many.
    fn enumerate(&mut self, limit: u64) -> Option<u64> {
        let combinations = self.pending.combinations(limit)?;
        let mut seen = BTreeSet::new();
        for index in 0..combinations {
            let after = self.pending.after(self.before, &self.pending.combination(index));
            if seen.insert(after) {
                self.outcomes.push(after);
            }
        }
        Some(self.outcomes.len() as u64)
    }
}

/// Numbers that look random (splitmix64); the same everywhere for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % n
    }
}

pub(super) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
