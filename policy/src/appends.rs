//! The predictor for new blocks. A model of blocks knows nothing of a new block, and would have each pass through
//! DRAM before its first synchronisation. With [`Model::inherits`](crate::Model) set, an append follows the earlier
//! appends to its file. The first blocks of a new file follow those of other new files.
//!
//! This is outside of the paper, where blocks begin lazy.

use std::ops::Range;

use crate::benefit::Path;
use crate::ghost::Judged;

/// The appends to one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Appends {
    /// The verdict of the last synchronisations on appends; `None` before the first that had one.
    path: Option<Path>,
    /// Blocks that were written past DRAM since the last synchronisation, each as often as it was.
    touched: u64,
    /// The range that these blocks span.
    blocks: Range<u64>,
}

impl Appends {
    /// The path of the next append, if anything is known.
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

    /// Many of them were written more than once since the last synchronisation: DRAM would have taken that once.
    pub fn is_repetitive(&self) -> bool {
        2 * self.touched > 3 * (self.blocks.end - self.blocks.start)
    }

    /// A synchronisation, which said this about the blocks of which the model knows.
    pub fn synced(&mut self, judged: &Judged) {
        if self.is_repetitive() || judged.lazy > judged.eager {
            self.path = Some(Path::Lazy);
        } else if self.touched > 0 || judged.eager > 0 {
            self.path = Some(Path::Eager);
        }
        (self.touched, self.blocks) = (0, 0..0);
    }
}

/// The new-file predictor: whether recent new files were synchronised with each of their blocks written once.
///
/// A file that goes through DRAM costs [`COST`], and brings [`GAIN`] when it is synchronised so. A file that is never
/// synchronised brings nothing, so the predictor need not see a file end. More than seven of eight must be
/// synchronised for the score to grow. At a score of [`SURE`] or more, new files bypass DRAM. One file in
/// [`SAMPLES`], chosen at random, still goes through DRAM, so that a change of the pattern is noticed. The choice is
/// random because programs often alternate between kinds of files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Newcomers {
    score: i32,
    random: u64,
    /// When one was last synchronised so, and when one was last written to for the first time.
    last_ms: u64,
    asked_ms: u64,
}

const COST: i32 = 7;
const GAIN: i32 = 8;
const SURE: i32 = 32;
const MOST: i32 = 64;
/// Of files that are written before the first of them is synchronised so many are counted, some 150.
const LEAST: i32 = -1024;
const SAMPLES: u64 = 16;

impl Newcomers {
    /// The path of a new file at its first write. A positive score is forgotten if no new file was synchronised for
    /// longer than `forget_ms`. The whole score is forgotten if no new file was written to for that long.
    pub fn path(&mut self, now_ms: u64, forget_ms: u64) -> Path {
        if now_ms.saturating_sub(self.asked_ms) > forget_ms {
            self.score = 0;
        } else if now_ms.saturating_sub(self.last_ms) > forget_ms {
            self.score = self.score.min(0);
        }
        self.asked_ms = now_ms;
        if self.score >= SURE {
            // Knuth's generator; its upper bits are the random ones.
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if !(self.random >> 32).is_multiple_of(SAMPLES) {
                return Path::Eager;
            }
        }
        self.score = (self.score - COST).max(LEAST);
        Path::Lazy
    }

    /// A new file that went through DRAM is synchronised for the first time; `is_eager` is that it was no better there.
    pub fn synced(&mut self, is_eager: bool, now_ms: u64) {
        if is_eager {
            self.score = (self.score + GAIN).min(MOST);
            self.last_ms = now_ms;
        }
    }

    /// A new file that went past DRAM is synchronised: there are such still.
    pub fn past_one_synced(&mut self, now_ms: u64) {
        self.last_ms = self.last_ms.max(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::{Appends, Newcomers, SAMPLES};
    use crate::benefit::Path;
    use crate::ghost::Judged;

    const EAGER: Judged = Judged { lazy: 0, eager: 3, accurate: 0, inaccurate: 0 };
    const LAZY: Judged = Judged { lazy: 3, eager: 2, accurate: 0, inaccurate: 0 };

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
        // A header, and the rest of a mail.
        appends.wrote(6..7);
        appends.wrote(6..9);
        assert!(!appends.is_repetitive());
        appends.synced(&Judged { lazy: 1, eager: 2, ..EAGER });
        assert_eq!(appends.path(), Some(Path::Eager), "most of it once");
        appends.wrote(6..7);
        assert!(!appends.is_repetitive());
        appends.wrote(6..7);
        assert!(appends.is_repetitive());
        appends.synced(&Judged::default());
        assert_eq!(appends.path(), Some(Path::Lazy));
        assert!(!appends.is_repetitive(), "it begins anew");
        appends.wrote(7..8);
        appends.synced(&LAZY);
        assert_eq!(appends.path(), Some(Path::Lazy), "another block is better in DRAM");
    }

    /// The machine is up for longer than anything is remembered.
    const START: u64 = 1_000_000;

    /// Of so many new files, of which those are synchronised that `is_synced` says, each batch of them at its end: how many go
    /// past DRAM.
    fn eager_ones(newcomers: &mut Newcomers, files: u64, batch: u64, is_synced: impl Fn(u64) -> bool) -> u64 {
        let mut eager = 0;
        for first in (0..files).step_by(batch as usize) {
            let of_batch: Vec<u64> = (START + first..START + first + batch).collect();
            let paths: Vec<_> = of_batch.iter().map(|file| newcomers.path(*file, 5000)).collect();
            for (file, path) in of_batch.into_iter().zip(paths) {
                match path {
                    Path::Eager => eager += 1,
                    Path::Lazy if is_synced(file - START) => newcomers.synced(true, file),
                    Path::Lazy => {}
                }
            }
        }
        eager
    }

    #[test]
    fn new_files_go_past_dram_when_nearly_all_are_synchronised() {
        for batch in [1, 20, 100] {
            let mut newcomers = Newcomers::default();
            let eager = eager_ones(&mut newcomers, 2000, batch, |_| true);
            // Of a large batch the last ones do not, as nothing is known of its first ones yet.
            assert!((1000..2000 - 1000 / SAMPLES).contains(&eager), "{eager} in batches of {batch}");
            // None is any more: a few hundred later none goes past it.
            let late = eager_ones(&mut newcomers, 1000, batch, |_| false);
            assert!(late < 300, "{late} in batches of {batch}");
            let some =
                |part: u64| eager_ones(&mut Newcomers::default(), 10_000, batch, |file| file % 20 * 5 < part);
            assert_eq!([5, 50, 80].map(some), [0, 0, 0], "percent, in batches of {batch}");
        }
    }

    /// Were it each sixteenth, it could be one that is synchronised each time.
    #[test]
    fn files_that_come_in_turns_are_seen_as_they_are() {
        for period in [2, 4, 8, 16] {
            let mut newcomers = Newcomers::default();
            eager_ones(&mut newcomers, 1000, 1, |_| true);
            let eager = eager_ones(&mut newcomers, 4000, 1, |file| file % period == 0);
            assert!(eager < 1000, "{eager}, one of {period}");
        }
    }

    #[test]
    fn new_files_that_are_better_in_dram_stay_there_and_all_is_forgotten_in_time() {
        let mut newcomers = Newcomers::default();
        for now_ms in START..START + 1000 {
            assert_eq!(newcomers.path(now_ms, 5000), Path::Lazy);
            newcomers.synced(false, now_ms);
        }
        let mut newcomers = Newcomers::default();
        eager_ones(&mut newcomers, 1000, 1, |_| true);
        let mut late = newcomers.clone();
        assert!((0..5).any(|_| newcomers.path(START + 5500, 5000) == Path::Eager));
        assert!((0..20).all(|_| late.path(START + 7000, 5000) == Path::Lazy));
        // Those that went past it count for that, too.
        let mut kept = late.clone();
        eager_ones(&mut kept, 1000, 1, |_| true);
        kept.past_one_synced(START + 4000);
        assert!((0..5).any(|_| kept.path(START + 5500, 5000) == Path::Eager));
    }
}
