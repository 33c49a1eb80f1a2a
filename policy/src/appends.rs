//! Blocks that are new: a model of blocks knows nothing of them, and would have each pass through DRAM before its first
//! synchronisation. Who asks for it ([`Model::inherits`](crate::Model)) has them take after those before them: what is appended
//! after what was appended to the file before, and the first blocks of a new file after those of other new files.
//!
//! This is outside of the paper, where blocks begin lazy.

use std::ops::Range;

use crate::benefit::Path;
use crate::ghost::Judged;

/// What was appended to one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Appends {
    /// What the last synchronisations said of it; `None` before the first that had something to say.
    path: Option<Path>,
    /// Blocks that were written past DRAM since the last synchronisation, each as often as it was.
    touched: u64,
    /// Those blocks, and what lies between them.
    blocks: Range<u64>,
}

impl Appends {
    /// The path of what is appended next, if anything is known.
    pub fn path(&self) -> Option<Path> {
        self.path
    }

    /// Bytes of these blocks were appended past DRAM.
    pub fn wrote(&mut self, blocks: Range<u64>) {
        self.touched = self.touched.saturating_add(blocks.end.saturating_sub(blocks.start));
        self.blocks = match self.blocks.is_empty() {
            true => blocks,
            false => self.blocks.start.min(blocks.start)..self.blocks.end.max(blocks.end),
        };
    }

    /// Most of them were written more than once since the last synchronisation: DRAM would have taken that once.
    pub fn is_repetitive(&self) -> bool {
        self.touched > 2 * (self.blocks.end - self.blocks.start)
    }

    /// A synchronisation, which said this about the blocks of which the model knows.
    pub fn synced(&mut self, judged: &Judged) {
        let is_repeated = self.touched > self.blocks.end - self.blocks.start;
        if is_repeated || judged.lazy > 0 {
            self.path = Some(Path::Lazy);
        } else if self.touched > 0 || judged.eager > 0 {
            self.path = Some(Path::Eager);
        }
        (self.touched, self.blocks) = (0, 0..0);
    }
}

/// What became of new files lately: whether each block of them was written once, and synchronised then.
///
/// A file that goes through DRAM costs [`COST`], and brings [`GAIN`] when it is synchronised so. One that never is brings
/// nothing: so it is not needed to see a file end. More than seven of eight must be synchronised for the sum to grow. Above
/// [`SURE`] the others go past DRAM; of them one of [`SAMPLES`] does not, by which it is seen when that changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Newcomers {
    score: u32,
    turn: u32,
    /// When one was last synchronised so.
    last_ms: u64,
}

const COST: u32 = 7;
const GAIN: u32 = 8;
const SURE: u32 = 32;
const MOST: u32 = 64;
const SAMPLES: u32 = 16;

impl Newcomers {
    /// The path of a new file that is written to for the first time. All is forgotten when none was synchronised for longer
    /// than `forget_ms`.
    pub fn path(&mut self, now_ms: u64, forget_ms: u64) -> Path {
        if now_ms.saturating_sub(self.last_ms) > forget_ms {
            self.score = 0;
        }
        if self.score >= SURE {
            self.turn = (self.turn + 1) % SAMPLES;
            if self.turn > 0 {
                return Path::Eager;
            }
        }
        self.score = self.score.saturating_sub(COST);
        Path::Lazy
    }

    /// A new file that went through DRAM is synchronised for the first time; `is_eager` is that nothing of it was better there.
    pub fn synced(&mut self, is_eager: bool, now_ms: u64) {
        if is_eager {
            self.score = (self.score + GAIN).min(MOST);
            self.last_ms = now_ms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Appends, Newcomers, SAMPLES};
    use crate::benefit::Path;
    use crate::ghost::Judged;

    const EAGER: Judged = Judged { lazy: 0, eager: 3, accurate: 0, inaccurate: 0 };
    const LAZY: Judged = Judged { lazy: 1, eager: 3, accurate: 0, inaccurate: 0 };

    #[test]
    fn what_is_appended_takes_after_what_was() {
        let mut appends = Appends::default();
        assert_eq!(appends.path(), None);
        appends.synced(&Judged::default());
        assert_eq!(appends.path(), None, "nothing was written");
        appends.synced(&LAZY);
        assert_eq!(appends.path(), Some(Path::Lazy));
        appends.synced(&EAGER);
        assert_eq!(appends.path(), Some(Path::Eager));
        appends.synced(&Judged::default());
        assert_eq!(appends.path(), Some(Path::Eager), "it stays");
    }

    #[test]
    fn what_is_appended_in_small_pieces_goes_through_dram() {
        let mut appends = Appends::default();
        appends.wrote(0..4);
        appends.wrote(4..6);
        appends.synced(&Judged::default());
        assert_eq!(appends.path(), Some(Path::Eager), "each block once");
        appends.wrote(6..7);
        assert!(!appends.is_repetitive());
        appends.wrote(6..7);
        appends.wrote(6..7);
        assert!(appends.is_repetitive());
        appends.synced(&Judged::default());
        assert_eq!(appends.path(), Some(Path::Lazy));
        assert!(!appends.is_repetitive(), "it begins anew");
        appends.wrote(7..8);
        appends.synced(&LAZY);
        assert_eq!(appends.path(), Some(Path::Lazy), "another block is better in DRAM");
    }

    /// Of so many new files, every `synced`-th of which is not synchronised: how many go past DRAM.
    fn eager_ones(newcomers: &mut Newcomers, files: u64, left: u64) -> u64 {
        let mut eager = 0;
        for file in 0..files {
            match newcomers.path(file, 5000) {
                Path::Eager => eager += 1,
                Path::Lazy if left > 0 && file % left == 0 => {}
                Path::Lazy => newcomers.synced(true, file),
            }
        }
        eager
    }

    #[test]
    fn new_files_go_past_dram_when_nearly_all_are_synchronised() {
        let mut newcomers = Newcomers::default();
        let eager = eager_ones(&mut newcomers, 1000, 0);
        assert!((800..1000 - 1000 / u64::from(SAMPLES)).contains(&eager), "{eager}");
        // None is any more: a few hundred later none goes past it.
        let eager: u64 =
            (1000..2000).map(|now_ms| u64::from(newcomers.path(now_ms, 5000) == Path::Eager)).sum();
        assert!(eager < 150, "{eager}");
        assert_eq!(eager_ones(&mut Newcomers::default(), 1000, 2), 0, "one of two");
        assert_eq!(eager_ones(&mut Newcomers::default(), 1000, 5), 0, "four of five are too few");
    }

    #[test]
    fn new_files_that_are_better_in_dram_stay_there_and_all_is_forgotten_in_time() {
        let mut newcomers = Newcomers::default();
        for now_ms in 0..1000 {
            assert_eq!(newcomers.path(now_ms, 5000), Path::Lazy);
            newcomers.synced(false, now_ms);
        }
        eager_ones(&mut newcomers, 1000, 0);
        let mut late = newcomers.clone();
        assert!((0..2).any(|_| newcomers.path(5500, 5000) == Path::Eager));
        assert!((0..20).all(|_| late.path(7000, 5000) == Path::Lazy));
    }
}
