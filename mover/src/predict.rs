//! What the writes and syncs of files have shown, and where the next write belongs for that (TPFS, section 4).
//!
//! It is known in DRAM, of files that were written since the mount and as long as there is room: a file of which nothing
//! is known is asynchronous, and its next write is the first of its size. Both send it to persistent memory.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::BuildHasherDefault;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, SMALL};
use nacre_engine::{BLOCK_SIZE, InodeHasher, InodeId};
use nacre_policy::placement::{OldEntry, is_large, write_counter};
use nacre_policy::{FileAccess, Rules};

const SHARDS: usize = if SMALL { 1 } else { 64 };
/// Files that a shard knows at the most: 65,536 in all.
const MAX_FILES: usize = 1024;
/// Entries of a file that are known at the most; with more, those at its begin are forgotten.
const MAX_ENTRIES: usize = 1024;
/// After so many durable writes of a file in a row its entries are forgotten: nobody asks about such writes, and to keep entries
/// for them would cost each of them time.
const DURABLE_IN_A_ROW: u8 = 64;

/// Where writes go that a write buffer has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Where the predictors say, by these rules.
    Predicted(Rules),
    /// To disk, whatever they say: for tests of that way.
    Disk,
}

impl Default for Placement {
    fn default() -> Placement {
        Placement::Predicted(Rules::default())
    }
}

/// How often the synchronicity predictor was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accuracy {
    /// Intervals between syncs that were as expected.
    pub right: u64,
    /// Intervals that were not.
    pub wrong: u64,
}

/// Blocks of a file in numbers: the first one, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Span {
    /// The blocks that bytes lie in.
    pub(crate) fn of(offset: u64, len: u64) -> Span {
        let start = offset / BLOCK_SIZE;
        Span { start, len: offset.saturating_add(len).div_ceil(BLOCK_SIZE) - start }
    }

    pub(crate) fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// What is known of all files.
pub(crate) struct Predictors {
    /// As it was set up; what of the rules can be changed is beside it.
    placement: Placement,
    sync_blocks: AtomicU64,
    large_writes: AtomicU64,
    read_factor: AtomicU64,
    shards: Box<[Shard]>,
}

/// Some files, on their own cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    files: Mutex<Files>,
    /// The name of a file whose durable writes change nothing, as long as nothing else is done to it; 0 for none.
    settled: AtomicU64,
    right: AtomicU64,
    wrong: AtomicU64,
}

type Files = HashMap<InodeId, Seen, BuildHasherDefault<InodeHasher>>;

/// What is known of one.
#[derive(Default)]
struct Seen {
    access: FileAccess,
    /// Its writes that are not overwritten, by their first block: their blocks, and the counter of each.
    entries: BTreeMap<u64, (u64, u16)>,
    /// Its last writes that were durable, as far as they are counted.
    durable: u8,
}

impl Predictors {
    pub(crate) fn new(placement: Placement) -> Predictors {
        let rules = match placement {
            Placement::Predicted(rules) => rules,
            Placement::Disk => Rules::default(),
        };
        Predictors {
            placement,
            sync_blocks: AtomicU64::new(rules.sync_blocks),
            large_writes: AtomicU64::new(rules.large_writes.into()),
            read_factor: AtomicU64::new(rules.read_factor),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    /// From now on a file is synchronous or read-dominated, and a write large and stable, as these rules say; what was seen stays
    /// known.
    pub(crate) fn change(&self, rules: Rules) {
        self.sync_blocks.store(rules.sync_blocks, Ordering::Relaxed);
        self.large_writes.store(rules.large_writes.into(), Ordering::Relaxed);
        self.read_factor.store(rules.read_factor, Ordering::Relaxed);
    }

    /// The rules now; none where they have no say.
    pub(crate) fn rules(&self) -> Option<Rules> {
        let Placement::Predicted(rules) = self.placement else { return None };
        Some(Rules {
            sync_blocks: self.sync_blocks.load(Ordering::Relaxed),
            // It came from as few bits.
            large_writes: self.large_writes.load(Ordering::Relaxed) as u16,
            read_factor: self.read_factor.load(Ordering::Relaxed),
            ..rules
        })
    }

    fn shard(&self, id: InodeId) -> &Shard {
        &self.shards[id.number as usize % SHARDS]
    }

    /// A write, in whichever way; with `durable`, one that is as good as synchronised.
    pub(crate) fn wrote(&self, id: InodeId, span: Span, durable: bool) {
        let Some(rules) = self.rules() else { return };
        let shard = self.shard(id);
        if durable && span.len < rules.sync_blocks && shard.settled.load(Ordering::Relaxed) == name(id) {
            return shard.count(Some(true));
        }
        let mut files = shard.files.lock();
        if files.len() >= MAX_FILES && !files.contains_key(&id) {
            // Which of them is written again nobody knows: all begin anew.
            files.clear();
            shard.settled.store(0, Ordering::Relaxed);
        }
        let seen = files.entry(id).or_default();
        let mut found = seen.access.wrote(span.len, &rules);
        if durable {
            found = found.or(seen.access.synced());
        }
        seen.durable = if durable { seen.durable.saturating_add(1) } else { 0 };
        if seen.durable >= DURABLE_IN_A_ROW {
            seen.entries = BTreeMap::new();
        }
        // Of a file that was only ever written so, no write is asked about.
        if !durable || !seen.entries.is_empty() {
            seen.replace(span);
        }
        let is_settled = durable && seen.entries.is_empty() && seen.access.is_synchronous();
        if is_settled || shard.settled.load(Ordering::Relaxed) == name(id) {
            shard.settled.store(if is_settled { name(id) } else { 0 }, Ordering::Relaxed);
        }
        shard.count(found);
    }

    /// A sync.
    pub(crate) fn synced(&self, id: InodeId) {
        let shard = self.shard(id);
        if let Entry::Occupied(mut seen) = shard.files.lock().entry(id) {
            shard.count(seen.get_mut().access.synced());
        }
    }

    /// Whether a write that comes now is large, stable and asynchronous.
    pub(crate) fn is_for_disk(&self, id: InodeId, span: Span) -> bool {
        let Some(rules) = self.rules() else { return true };
        let files = self.shard(id).files.lock();
        let Some(seen) = files.get(&id) else { return false };
        !seen.access.is_synchronous()
            && is_large(span.len, write_counter(span.len, &seen.replaced_by(span)), &rules)
    }

    /// What of a span was written before by writes that were for disk, in the order of the file.
    pub(crate) fn parts_for_disk(&self, id: InodeId, span: Span) -> Vec<Span> {
        let Some(rules) = self.rules() else { return vec![span] };
        let files = self.shard(id).files.lock();
        let Some(seen) = files.get(&id).filter(|seen| !seen.access.is_synchronous()) else {
            return Vec::new();
        };
        let mut parts: Vec<Span> = Vec::new();
        for (start, len, counter) in seen.overlapping(span) {
            if !is_large(len, counter, &rules) {
                continue;
            }
            // The last one comes first.
            let (start, end) = (start.max(span.start), (start + len).min(span.end()));
            match parts.last_mut() {
                Some(behind) if behind.start == end => *behind = Span { start, len: behind.end() - start },
                _ => parts.push(Span { start, len: end - start }),
            }
        }
        parts.reverse();
        parts
    }

    pub(crate) fn accuracy(&self) -> Accuracy {
        let sum = |of: fn(&Shard) -> &AtomicU64| {
            self.shards.iter().map(|shard| of(shard).load(Ordering::Relaxed)).sum()
        };
        Accuracy { right: sum(|shard| &shard.right), wrong: sum(|shard| &shard.wrong) }
    }
}

impl Shard {
    fn count(&self, found: Option<bool>) {
        match found {
            Some(true) => self.right.fetch_add(1, Ordering::Relaxed),
            Some(false) => self.wrong.fetch_add(1, Ordering::Relaxed),
            None => 0,
        };
    }
}

/// A file in one number. Two may have the same, and then one is taken for the other: what is predicted for it is worse.
fn name(id: InodeId) -> u64 {
    id.number.rotate_left(32) ^ u64::from(id.generation) ^ u64::from(id.volume) << 24
}

impl Seen {
    /// Entries with blocks in a span, the last one first: the first block, their number, the counter.
    fn overlapping(&self, span: Span) -> impl Iterator<Item = (u64, u64, u16)> + '_ {
        self.entries
            .range(..span.end())
            .rev()
            .map(|(&start, &(len, counter))| (start, len, counter))
            .take_while(move |(start, len, _)| start + len > span.start)
    }

    /// What a write of a span replaces, and what it goes on from.
    fn replaced_by(&self, span: Span) -> Vec<OldEntry> {
        let covered = |start: u64, len: u64| (start + len).min(span.end()) - start.max(span.start);
        let mut old: Vec<OldEntry> = self
            .overlapping(span)
            .map(|(start, len, counter)| OldEntry { blocks: len, covered: covered(start, len), counter })
            .collect();
        let before = self.entries.range(..span.start).next_back();
        if let Some((start, &(len, counter))) = before
            && start + len == span.start
        {
            old.push(OldEntry { blocks: len, covered: 0, counter });
        }
        old
    }

    /// A write of a span: what it replaces of the others goes, and its counter comes from them.
    fn replace(&mut self, span: Span) {
        if let Some((len, counter)) = self.entries.get_mut(&span.start).filter(|(len, _)| *len == span.len) {
            *counter =
                write_counter(span.len, &[OldEntry { blocks: *len, covered: *len, counter: *counter }]);
            return;
        }
        let counter = write_counter(span.len, &self.replaced_by(span));
        let old: Vec<_> = self.overlapping(span).collect();
        for (start, len, counter) in old {
            self.entries.remove(&start);
            if start < span.start {
                self.entries.insert(start, (span.start - start, counter));
            }
            if start + len > span.end() {
                self.entries.insert(span.end(), (start + len - span.end(), counter));
            }
        }
        self.entries.insert(span.start, (span.len, counter));
        while self.entries.len() > MAX_ENTRIES {
            self.entries.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;
    use nacre_policy::Rules;

    use super::{Accuracy, MAX_ENTRIES, MAX_FILES, Placement, Predictors, SHARDS, Seen, Span};

    fn id(number: u64) -> InodeId {
        InodeId { number, generation: 1, volume: 0 }
    }

    fn span(start: u64, len: u64) -> Span {
        Span { start, len }
    }

    #[test]
    fn what_is_rewritten_as_a_whole_again_and_again_is_for_disk() {
        let known = Predictors::new(Placement::default());
        for round in 0..5 {
            assert!(!known.is_for_disk(id(1), span(0, 256)), "after {round} writes");
            known.wrote(id(1), span(0, 256), false);
        }
        assert!(known.is_for_disk(id(1), span(0, 256)) && !known.is_for_disk(id(2), span(0, 256)));
        assert!(!known.is_for_disk(id(1), span(0, 1)), "a small write to it");
        known.wrote(id(1), span(0, 256), false);
        assert_eq!(known.parts_for_disk(id(1), span(0, 256)), [span(0, 256)]);
        assert_eq!(known.parts_for_disk(id(1), span(200, 200)), [span(200, 56)], "the rest is unknown");
        known.wrote(id(1), span(17, 4), false);
        assert_eq!(known.parts_for_disk(id(1), span(10, 20)), [span(10, 7), span(21, 9)]);
        // A sync before 1024 blocks were written: it would have been read too early by whoever waits for it.
        known.synced(id(1));
        known.wrote(id(1), span(0, 256), false);
        known.synced(id(1));
        assert!(!known.is_for_disk(id(1), span(0, 256)));
        assert!(known.parts_for_disk(id(1), span(0, 256)).is_empty());
    }

    #[test]
    fn a_log_that_is_appended_to_in_large_pieces_is_for_disk() {
        let known = Predictors::new(Placement::default());
        let mut at = 0;
        while !known.is_for_disk(id(1), span(at, 64)) {
            known.wrote(id(1), span(at, 64), false);
            at += 64;
        }
        assert_eq!(at, 5 * 64, "as many as the rule says");
        assert!(!known.is_for_disk(id(1), span(at, 8)) && !known.is_for_disk(id(1), span(at + 1, 64)));
    }

    #[test]
    fn rules_that_change_hold_for_what_was_seen_before() {
        let known = Predictors::new(Placement::default());
        (0..5).for_each(|_| known.wrote(id(1), span(0, 256), false));
        let is_for_disk = |large_writes| {
            known.change(Rules { large_writes, ..Rules::default() });
            known.is_for_disk(id(1), span(0, 256))
        };
        assert_eq!([4, 100, 2].map(is_for_disk), [true, false, true]);
        // 256 blocks between two syncs are many now.
        known.change(Rules { sync_blocks: 100, ..Rules::default() });
        (0..3).for_each(|_| {
            known.wrote(id(1), span(0, 256), false);
            known.synced(id(1));
        });
        assert!(known.is_for_disk(id(1), span(0, 256)));
        let for_tests = Predictors::new(Placement::Disk);
        for_tests.change(Rules { large_writes: 100, ..Rules::default() });
        assert!(for_tests.rules().is_none() && for_tests.is_for_disk(id(1), span(0, 1)));
    }

    #[test]
    fn synchronous_writes_are_so_many_syncs() {
        let known = Predictors::new(Placement::default());
        for _ in 0..2000 {
            known.wrote(id(1), span(0, 1), true);
        }
        assert!(!known.is_for_disk(id(1), span(0, 1)));
        assert_eq!(known.accuracy(), Accuracy { right: 1999, wrong: 0 });
        known.synced(id(9));
        assert_eq!(known.accuracy(), Accuracy { right: 1999, wrong: 0 }, "nothing was written");
    }

    /// What is remembered of the file that was written last so is not taken for another, nor after it was written otherwise.
    #[test]
    fn a_file_that_is_written_otherwise_is_not_settled() {
        let rules = Rules { sync_blocks: 10, ..Rules::default() };
        let known = Predictors::new(Placement::Predicted(rules));
        let other = id(1 + SHARDS as u64);
        (0..3).for_each(|_| known.wrote(id(1), span(0, 1), true));
        assert_eq!(known.accuracy(), Accuracy { right: 2, wrong: 0 });
        known.wrote(other, span(0, 1), true);
        assert_eq!(known.accuracy(), Accuracy { right: 2, wrong: 0 }, "its first");
        known.wrote(other, span(0, 100), true);
        assert_eq!(known.accuracy(), Accuracy { right: 2, wrong: 1 }, "too many blocks");
        (0..3).for_each(|_| known.wrote(id(1), span(0, 1), true));
        known.wrote(id(1), span(0, 100), false);
        assert_eq!(known.accuracy(), Accuracy { right: 5, wrong: 2 });
        known.wrote(id(1), span(0, 1), true);
        assert!(!known.is_for_disk(id(1), span(0, 100)), "a sync came in the middle of what was long");
        assert_eq!(known.accuracy(), Accuracy { right: 5, wrong: 2 });
    }

    /// What is written both ways is known as it is: a durable write is one that others are compared with.
    #[test]
    fn synchronous_writes_count_among_others() {
        let known = Predictors::new(Placement::default());
        (0..3).for_each(|_| known.wrote(id(1), span(0, 256), false));
        (0..3).for_each(|_| known.wrote(id(1), span(0, 256), true));
        known.wrote(id(1), span(1000, 2000), false);
        assert!(known.is_for_disk(id(1), span(0, 256)), "asynchronous again, and written five times");
        known.wrote(id(1), span(10, 1), true);
        known.wrote(id(1), span(1000, 2000), false);
        assert!(!known.is_for_disk(id(1), span(10, 1)) && known.is_for_disk(id(1), span(11, 200)));
    }

    /// A file that was laid out once and is written durably since was looked up, entry by entry, with each write.
    #[test]
    fn entries_of_a_file_that_is_written_durably_are_forgotten() {
        let known = Predictors::new(Placement::default());
        (0..5).for_each(|_| known.wrote(id(1), span(0, 256), false));
        let is_settled = || known.shard(id(1)).settled.load(super::Ordering::Relaxed) == super::name(id(1));
        for number in 1..super::DURABLE_IN_A_ROW {
            known.wrote(id(1), span(7, 1), true);
            assert!(!is_settled(), "after {number}");
        }
        // One that is not begins the row anew.
        known.wrote(id(1), span(0, 256), false);
        (1..super::DURABLE_IN_A_ROW).for_each(|_| known.wrote(id(1), span(7, 1), true));
        assert!(!is_settled());
        known.wrote(id(1), span(7, 1), true);
        assert!(is_settled());
        // What is written otherwise then is large and stable after as many writes as of any file.
        for round in 0..5 {
            assert!(!known.is_for_disk(id(1), span(0, 2048)), "after {round} writes");
            known.wrote(id(1), span(0, 2048), false);
        }
        assert!(known.is_for_disk(id(1), span(0, 2048)) && !is_settled());
    }

    #[test]
    fn writes_replace_what_they_cover() {
        let mut seen = Seen::default();
        seen.replace(span(0, 10));
        seen.replace(span(4, 2));
        let entries: Vec<_> = seen.entries.iter().map(|(start, (len, _))| (*start, *len)).collect();
        assert_eq!(entries, [(0, 4), (4, 2), (6, 4)]);
        seen.replace(span(3, 20));
        let entries: Vec<_> = seen.entries.iter().map(|(start, (len, _))| (*start, *len)).collect();
        assert_eq!(entries, [(0, 3), (3, 20)]);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let known = Predictors::new(Placement::Predicted(Rules::default()));
        for number in 0..2 * (MAX_FILES * SHARDS) as u64 {
            known.wrote(id(number), span(0, 1), false);
        }
        assert!(known.shards.iter().all(|shard| (1..=MAX_FILES).contains(&shard.files.lock().len())));
        let mut seen = Seen::default();
        (0..2 * MAX_ENTRIES as u64).for_each(|at| seen.replace(span(2 * at, 1)));
        assert_eq!(seen.entries.len(), MAX_ENTRIES);
    }
}
