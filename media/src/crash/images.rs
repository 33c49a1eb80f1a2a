//! The images of one crash point.

use std::collections::BTreeSet;
use std::fmt;

use nacre_engine::LINE_SIZE;

use super::LineBytes;
use super::pending::{Landed, Line};
use crate::image::Image;
use crate::sim::SimPm;

/// When all images are made, and how many when not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// All images are made when there are at most so many.
    pub exhaustive_up_to: u64,
    /// Otherwise so many are.
    pub samples: u64,
    /// What the choice of samples depends on.
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
    plan: Plan,
    seed: u64,
    /// The order of all pending stores, when samples are made.
    order: Vec<u64>,
}

/// One line and what may have become of it.
#[derive(Debug)]
struct Choice {
    line: u64,
    before: LineBytes,
    pending: Line,
    /// Every content that the line may have, when all images are made; the first is the one before.
    outcomes: Vec<LineBytes>,
}

#[derive(Debug)]
enum Plan {
    All { count: u64 },
    Samples { count: u64 },
}

/// One image: the lines that differ from what is durable at the point.
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
    /// Changes a memory that holds what is durable at the point into this image.
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
        let seed = mix(sampling.seed ^ mix(point));
        let mut product = Some(1u64);
        for choice in &mut lines {
            product = product
                .filter(|product| *product <= sampling.exhaustive_up_to)
                .and_then(|product| product.checked_mul(choice.enumerate(sampling.exhaustive_up_to)?));
        }
        let plan = match product.filter(|product| *product <= sampling.exhaustive_up_to) {
            Some(count) => Plan::All { count },
            None => Plan::Samples { count: sampling.samples.max(2) },
        };
        let mut order = Vec::new();
        if matches!(plan, Plan::Samples { .. }) {
            order.extend(lines.iter().flat_map(|choice| choice.pending.sequences()));
            order.sort_unstable();
        }
        Images { lines, plan, seed, order }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        match self.plan {
            Plan::All { count } | Plan::Samples { count } => count,
        }
    }

    /// Never: a crash leaves at least what is durable.
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
        let (lines, choice) = match self.plan {
            Plan::All { .. } => (self.combination(index), "one of all"),
            Plan::Samples { count } => self.sample(index, count),
        };
        let lines = lines.into_iter().zip(&self.lines).filter(|(after, choice)| *after != choice.before);
        CrashImage { index, lines: lines.map(|(after, choice)| (choice.line, after)).collect(), choice }
    }

    fn combination(&self, mut index: u64) -> Vec<LineBytes> {
        let pick = |choice: &Choice| {
            let radix = choice.outcomes.len() as u64;
            let outcome = choice.outcomes[(index % radix) as usize];
            index /= radix;
            outcome
        };
        self.lines.iter().map(pick).collect()
    }

    /// Sample number `index`: the five regular ones; then, where the program was stopped between its stores (one in
    /// eight); then in turn the four that single a line out; then random ones.
    fn sample(&self, index: u64, count: u64) -> (Vec<LineBytes>, &'static str) {
        let mut random = Random(mix(self.seed ^ index));
        type Lands = fn(u8) -> bool;
        let regular: Option<(&'static str, Lands)> = match index {
            0 => Some(("nothing landed", |_| false)),
            1 => Some(("everything landed", |_| true)),
            2 => Some(("the first half of every line landed", |word| word < 4)),
            3 => Some(("the second half of every line landed", |word| word >= 4)),
            4 => Some(("every other word landed", |word| word % 2 == 1)),
            _ => None,
        };
        if let Some((words, lands)) = regular {
            return (self.each(|choice| choice.pending.by_word(lands)), words);
        }
        let prefixes = (count / 8).min(self.order.len() as u64);
        if index - 5 < prefixes {
            let last = self.order[(self.order.len() as u64 * (index - 5) / prefixes) as usize];
            return (self.each(|choice| choice.pending.until(last)), "the stores up to one of them landed");
        }
        // Up to three quarters of the samples single out a line: each line in turn where there are few, a random one
        // where there are many.
        let step = index - 5 - prefixes;
        let kinds = 4 * self.lines.len() as u64;
        if step < kinds && step < count * 3 / 4 {
            let few = kinds <= count * 3 / 4;
            let chosen = if few { step / 4 } else { random.below(self.lines.len() as u64) };
            return self.single_out(self.lines[chosen as usize].line, step % 4, &mut random);
        }
        let weight = random.below(7) + 1;
        let lines = self.each(|choice| {
            if random.below(8) < weight {
                match random.below(3) {
                    0 => choice.pending.nothing_or_all(true),
                    _ => choice.pending.by_word(|_| random.below(2) == 0),
                }
            } else {
                choice.pending.nothing_or_all(false)
            }
        });
        (lines, "a random part landed")
    }

    fn single_out(&self, line: u64, kind: u64, random: &mut Random) -> (Vec<LineBytes>, &'static str) {
        let others = kind % 2 == 1;
        let torn = kind >= 2;
        let lines = self.each(|choice| {
            if choice.line != line {
                choice.pending.nothing_or_all(others)
            } else if torn {
                let pattern = random.below(256);
                choice.pending.by_word(|word| pattern >> word & 1 == 1)
            } else {
                choice.pending.nothing_or_all(!others)
            }
        });
        let words = match kind {
            0 => "one line landed",
            1 => "all but one line landed",
            2 => "one line landed in part",
            _ => "all lines landed, one in part",
        };
        (lines, words)
    }

    fn each(&self, mut landed: impl FnMut(&Choice) -> Landed) -> Vec<LineBytes> {
        self.lines.iter().map(|choice| choice.pending.after(choice.before, &landed(choice))).collect()
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
