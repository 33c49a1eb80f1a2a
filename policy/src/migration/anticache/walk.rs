//! The way of a walk over all files: which files are looked at next, and when another walk is worth it.
//!
//! A walk goes in rounds. A round looks at the names of all files and keeps a limited number of files: those that were
//! modified first, of those behind the last round. Their blocks are looked at after that, the oldest file first. A
//! round that kept all files is the last one of the walk.

use std::collections::BinaryHeap;

use crate::migration::PAUSE_MS;

/// Milliseconds between two walks while nothing says that something was missed. A file that is renamed during a walk may
/// be in none of the directories when the walk is there.
const RECHECK_MS: u64 = 10 * PAUSE_MS;

/// The part of a walk that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// There is no walk.
    Rest,
    /// The names of all files.
    Names,
    /// The blocks of the files that were kept.
    Blocks,
}

/// A walk.
#[derive(Debug)]
pub(super) struct Walk<F> {
    pub(super) stage: Stage,
    /// Files of a round, at most.
    most_files: usize,
    /// The last file of the rounds before, by its modification. None before the first round.
    after: Option<(u64, F)>,
    /// The files that were modified first, as far as the names were looked at; the one modified last is on top.
    kept: BinaryHeap<(u64, F)>,
    /// This round has passed files by.
    is_cut: bool,
    /// The files whose blocks are looked at, the oldest one at the end.
    files: Vec<(u64, F)>,
    /// The next block of that one.
    at: u64,
    /// Since the walk began, blocks may have been missed for which the list heard no access.
    has_missed: bool,
    /// Since then, the list has given up blocks.
    has_dropped: bool,
    /// The walk has found blocks.
    has_found: bool,
    /// When the last round ended, in milliseconds since 1970.
    ended_ms: Option<u64>,
}

impl<F: Copy + Ord> Walk<F> {
    /// None was made yet; a round keeps at most so many files.
    pub(super) fn new(most_files: usize) -> Walk<F> {
        Walk {
            stage: Stage::Rest,
            most_files: most_files.max(1),
            after: None,
            kept: BinaryHeap::new(),
            is_cut: false,
            files: Vec::new(),
            at: 0,
            has_missed: true,
            has_dropped: false,
            has_found: false,
            ended_ms: None,
        }
    }

    /// Blocks may be on PM of which nothing is known.
    pub(super) fn is_incomplete(&self) -> bool {
        self.has_missed || self.has_dropped || self.after.is_some() || self.stage != Stage::Rest
    }

    /// The list has given up blocks that are on PM.
    pub(super) fn has_dropped(&self) -> bool {
        self.has_dropped
    }

    /// An access was not heard, or blocks were given up that did not move.
    pub(super) fn miss(&mut self) {
        self.has_missed = true;
    }

    /// The list was full and gave up a block.
    pub(super) fn drop_one(&mut self) {
        self.has_dropped = true;
    }

    /// Begins a round, if it is worth it at this time. `is_needed`: nothing is known that could leave PM.
    pub(super) fn begin(&mut self, now_ms: u64, is_needed: bool) -> bool {
        let ended_ms = self.ended_ms;
        let is_past = |pause: u64| ended_ms.is_none_or(|ended_ms| now_ms.abs_diff(ended_ms) >= pause);
        let is_worth_it = self.after.is_some()
            || match (self.has_dropped, self.has_missed) {
                (true, _) => self.has_found || is_past(PAUSE_MS),
                // A sample is always lost under load, and mostly the list knows enough without it.
                (false, true) => is_needed && self.has_found || is_past(PAUSE_MS),
                (false, false) => is_past(RECHECK_MS),
            };
        if self.stage != Stage::Rest || !is_worth_it {
            return false;
        }
        if self.after.is_none() {
            // A block that is missed from here on may be behind the walk.
            (self.has_missed, self.has_dropped, self.has_found) = (false, false, false);
        }
        (self.stage, self.is_cut) = (Stage::Names, false);
        self.kept.clear();
        true
    }

    /// A name leads to a file with blocks on PM, which was modified at this time.
    pub(super) fn keep(&mut self, modified_ms: u64, file: F) {
        let found = (modified_ms, file);
        if self.after.is_some_and(|after| found <= after) {
            return;
        }
        if self.kept.len() < self.most_files {
            self.kept.push(found);
            return;
        }
        self.is_cut = true;
        if let Some(mut last) = self.kept.peek_mut()
            && found < *last
        {
            *last = found;
        }
    }

    /// All names were looked at.
    pub(super) fn end_names(&mut self, now_ms: u64) {
        self.files = std::mem::take(&mut self.kept).into_sorted_vec();
        // A file with several names.
        self.files.dedup();
        self.files.reverse();
        (self.stage, self.at) = (Stage::Blocks, 0);
        self.end_if_done(now_ms);
    }

    /// The next file and the block from which it is looked at.
    pub(super) fn next(&self) -> Option<(F, u64)> {
        self.files.last().map(|&(_, file)| (file, self.at))
    }

    /// That file was looked at up to a block, or to its end.
    pub(super) fn looked(&mut self, up_to: Option<u64>, has_found: bool, now_ms: u64) {
        self.has_found |= has_found;
        self.at = up_to.unwrap_or(0);
        if up_to.is_none() {
            self.after = self.files.pop().or(self.after);
            self.end_if_done(now_ms);
        }
    }

    fn end_if_done(&mut self, now_ms: u64) {
        if self.files.is_empty() {
            self.files = Vec::new();
            (self.stage, self.ended_ms) = (Stage::Rest, Some(now_ms));
            if !self.is_cut {
                self.after = None;
            }
        }
    }
}
