//! The history of the writes and syncs of files, and where the next write belongs because of it (TPFS, section 4).
//!
//! The history is in DRAM, of files that were written since the mount and as long as there is room. An unknown file is
//! asynchronous, and its next write is the first of its size. Both send it to PM.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, SMALL};
use nacre_engine::{BLOCK_SIZE, InodeHasher, InodeId};
use nacre_policy::placement::{OldEntry, is_large, write_counter};
use nacre_policy::temperature::Span;
use nacre_policy::{FileAccess, Rules};
use smallvec::SmallVec;

use crate::settings::Settings;

const SHARDS: usize = if SMALL { 1 } else { 64 };

/// Files that a shard knows, at most: 65,536 in all.
const MAX_FILES: usize = 1024;

/// Entries of a file that are known, at most; with more, some of those at its begin are forgotten.
const MAX_ENTRIES: usize = 1024;

/// So many at once.
const FORGOTTEN: usize = 64;

/// Entries that a file keeps room for when it takes the place of another one.
const FEW: usize = 8;

/// After this many durable writes of a file in a row its entries are forgotten: they are not needed for such writes,
/// and would cost each of them time.
const DURABLE_IN_A_ROW: u8 = 64;

/// How often the synchronicity predictor was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accuracy {
    /// Intervals between syncs that were as expected.
    pub right: u64,
    /// Intervals that were not.
    pub wrong: u64,
}

/// The blocks that bytes lie in.
pub(crate) fn blocks_of(offset: u64, len: u64) -> Span {
    let start = offset / BLOCK_SIZE;
    Span { start, len: offset.saturating_add(len).div_ceil(BLOCK_SIZE) - start }
}

/// The history of all files.
pub(crate) struct Predictors {
    settings: Arc<Settings>,
    shards: Box<[Shard]>,
}

/// Some files, on their own cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    files: Mutex<Files>,
    /// The name of a file whose durable writes change nothing, as long as nothing else is done to it; 0 for none.
    settled: AtomicU64,
    /// Durable writes of that file with fewer blocks than this change nothing.
    settled_below: AtomicU64,
    right: AtomicU64,
    wrong: AtomicU64,
}

/// By inode, without its generation: a new file has the place of the removed one that had its number before.
type Files = HashMap<InodeId, Seen, BuildHasherDefault<InodeHasher>>;

fn place(id: InodeId) -> InodeId {
    InodeId { generation: 0, ..id }
}

/// The history of one file.
#[derive(Default)]
struct Seen {
    generation: u32,
    access: FileAccess,
    /// Its writes that are not overwritten, in the order of the file.
    entries: Vec<Known>,
    /// Its last writes that were durable, as far as they are counted.
    durable: u8,
}

/// A write.
#[derive(Debug, Clone, Copy)]
struct Known {
    span: Span,
    counter: u16,
}

impl Predictors {
    pub(crate) fn new(settings: Arc<Settings>) -> Predictors {
        Predictors { settings, shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// The rules have changed; the history stays.
    pub(crate) fn changed(&self) {
        for shard in &self.shards {
            // Under the lock: writes noted after this are judged by the new rules.
            let _files = shard.files.lock();
            shard.settled.store(0, Ordering::Relaxed);
        }
    }

    fn rules(&self) -> Rules {
        self.settings.rules()
    }

    fn shard(&self, id: InodeId) -> &Shard {
        &self.shards[id.number as usize % SHARDS]
    }

    /// A write, in whichever way; with `durable`, one that is as good as synchronised.
    pub(crate) fn wrote(&self, id: InodeId, span: Span, durable: bool) {
        let shard = self.shard(id);
        let is_settled = || shard.settled.load(Ordering::Relaxed) == name(id);
        if durable && is_settled() && span.len < shard.settled_below.load(Ordering::Relaxed) {
            return shard.count(Some(true));
        }
        let mut files = shard.files.lock();
        let rules = self.rules();
        if files.len() >= MAX_FILES && !files.contains_key(&place(id)) {
            // It is unknown which of them is written again: all begin anew.
            files.clear();
            shard.settled.store(0, Ordering::Relaxed);
        }
        let seen = files.entry(place(id)).or_default();
        seen.become_one_of(id.generation);
        let mut found = seen.access.wrote(span.len, &rules);
        if durable {
            found = found.or(seen.access.synced());
        }
        seen.durable = if durable { seen.durable.saturating_add(1) } else { 0 };
        if seen.durable >= DURABLE_IN_A_ROW {
            seen.entries = Vec::new();
        }
        // Of a file that was only ever written so, no write is asked about.
        if !durable || !seen.entries.is_empty() {
            seen.replace(span);
        }
        let settles = durable && seen.entries.is_empty() && seen.access.is_synchronous();
        if settles || is_settled() {
            shard.settled_below.store(rules.sync_blocks, Ordering::Relaxed);
            shard.settled.store(if settles { name(id) } else { 0 }, Ordering::Relaxed);
        }
        shard.count(found);
    }

    /// A sync.
    pub(crate) fn synced(&self, id: InodeId) {
        let shard = self.shard(id);
        if let Some(seen) =
            shard.files.lock().get_mut(&place(id)).filter(|seen| seen.generation == id.generation)
        {
            shard.count(seen.access.synced());
        }
    }

    /// Whether a write that comes now is large, stable and asynchronous.
    pub(crate) fn is_for_disk(&self, id: InodeId, span: Span) -> bool {
        let rules = self.rules();
        let files = self.shard(id).files.lock();
        let Some(seen) = seen_of(&files, id) else { return false };
        !seen.access.is_synchronous()
            && is_large(span.len, write_counter(span.len, &seen.replaced_by(span)), &rules)
    }

    /// The parts of a span that were written before by writes that were for disk, in the order of the file.
    pub(crate) fn parts_for_disk(&self, id: InodeId, span: Span) -> Vec<Span> {
        let rules = self.rules();
        let files = self.shard(id).files.lock();
        let Some(seen) = seen_of(&files, id).filter(|seen| !seen.access.is_synchronous()) else {
            return Vec::new();
        };
        let mut parts: Vec<Span> = Vec::new();
        for known in seen.overlapping(span) {
            if !is_large(known.span.len, known.counter, &rules) {
                continue;
            }
            let (start, end) = (known.span.start.max(span.start), known.span.end().min(span.end()));
            match parts.last_mut() {
                Some(before) if before.end() == start => before.len += end - start,
                _ => parts.push(Span { start, len: end - start }),
            }
        }
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

fn seen_of(files: &Files, id: InodeId) -> Option<&Seen> {
    files.get(&place(id)).filter(|seen| seen.generation == id.generation)
}

impl Seen {
    /// It is another file's now, unless it is that one's already.
    fn become_one_of(&mut self, generation: u32) {
        if self.generation == generation {
            return;
        }
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        entries.shrink_to(FEW);
        *self = Seen { generation, entries, ..Seen::default() };
    }

    /// Where the entries with blocks in a span are.
    fn indexes_in(&self, span: Span) -> Range<usize> {
        let from = self.entries.partition_point(|known| known.span.end() <= span.start);
        let behind = self.entries[from..].partition_point(|known| known.span.start < span.end());
        from..from + behind
    }

    /// Entries with blocks in a span, in the order of the file.
    fn overlapping(&self, span: Span) -> &[Known] {
        &self.entries[self.indexes_in(span)]
    }

    /// The entries that a write of a span replaces, and the one that it goes on from.
    fn replaced_by(&self, span: Span) -> SmallVec<[OldEntry; FEW]> {
        let at = self.indexes_in(span);
        let old = |known: &Known| {
            let covered = known.span.end().min(span.end()) - known.span.start.max(span.start);
            OldEntry { blocks: known.span.len, covered, counter: known.counter }
        };
        let before = self.entries[..at.start].last().filter(|known| known.span.end() == span.start);
        let before =
            before.map(|known| OldEntry { blocks: known.span.len, covered: 0, counter: known.counter });
        self.entries[at].iter().map(old).chain(before).collect()
    }

    /// A write of a span: the entries that it covers go, and its counter comes from them.
    fn replace(&mut self, span: Span) {
        let counter = write_counter(span.len, &self.replaced_by(span));
        let at = self.indexes_in(span);
        let new = Known { span, counter };
        if let [known] = &mut self.entries[at.clone()]
            && known.span == span
        {
            *known = new;
            return;
        }
        let old = &self.entries[at.clone()];
        // The rest of the first and of the last one; both may be one.
        let before = old.first().filter(|known| known.span.start < span.start);
        let before = before
            .map(|known| Known { span: Span { len: span.start - known.span.start, ..known.span }, ..*known });
        let behind = old.last().filter(|known| known.span.end() > span.end());
        let behind = behind.map(|known| Known {
            span: Span { start: span.end(), len: known.span.end() - span.end() },
            ..*known
        });
        self.entries.splice(at, before.into_iter().chain([new]).chain(behind));
        // The next one may become three.
        if self.entries.len() + 2 > MAX_ENTRIES {
            self.entries.drain(..FORGOTTEN);
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;
    use nacre_policy::Rules;
    use nacre_policy::placement::{OldEntry, write_counter};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::{Accuracy, FORGOTTEN, MAX_ENTRIES, MAX_FILES, Predictors, SHARDS, Seen, Span};
    use crate::settings::{MoverOptions, Settings};

    fn id(number: u64) -> InodeId {
        InodeId { number, generation: 1, volume: 0 }
    }

    fn predictors(rules: Rules) -> Predictors {
        let options = MoverOptions { rules, ..MoverOptions::default() };
        Predictors::new(std::sync::Arc::new(Settings::new(options)))
    }

    fn change(known: &Predictors, rules: Rules) {
        known.settings.set_options(MoverOptions { rules, ..MoverOptions::default() });
        known.changed();
    }

    fn span(start: u64, len: u64) -> Span {
        Span { start, len }
    }

    #[test]
    fn what_is_rewritten_as_a_whole_again_and_again_is_for_disk() {
        let known = predictors(Rules::default());
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
        let known = predictors(Rules::default());
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
        let known = predictors(Rules::default());
        (0..5).for_each(|_| known.wrote(id(1), span(0, 256), false));
        let is_for_disk = |large_writes| {
            change(&known, Rules { large_writes, ..Rules::default() });
            known.is_for_disk(id(1), span(0, 256))
        };
        assert_eq!([4, 100, 2].map(is_for_disk), [true, false, true]);
        // 256 blocks between two syncs are many now.
        change(&known, Rules { sync_blocks: 100, ..Rules::default() });
        (0..3).for_each(|_| {
            known.wrote(id(1), span(0, 256), false);
            known.synced(id(1));
        });
        assert!(known.is_for_disk(id(1), span(0, 256)));
    }

    #[test]
    fn synchronous_writes_are_so_many_syncs() {
        let known = predictors(Rules::default());
        for _ in 0..2000 {
            known.wrote(id(1), span(0, 1), true);
        }
        assert!(!known.is_for_disk(id(1), span(0, 1)));
        assert_eq!(known.accuracy(), Accuracy { right: 1999, wrong: 0 });
        known.synced(id(9));
        assert_eq!(known.accuracy(), Accuracy { right: 1999, wrong: 0 }, "nothing was written");
    }

    /// The finding of the file that was written last durably holds for no other one, and not after another write.
    #[test]
    fn a_file_that_is_written_otherwise_is_not_settled() {
        let rules = Rules { sync_blocks: 10, ..Rules::default() };
        let known = predictors(rules);
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

    /// Blocks that are written both ways are known as they are: a durable write is one that others are compared with.
    #[test]
    fn synchronous_writes_count_among_others() {
        let known = predictors(Rules::default());
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
        let known = predictors(Rules::default());
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
        // A write of another kind then is large and stable after as many writes as of any file.
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
        let entries: Vec<_> = seen.entries.iter().map(|known| (known.span.start, known.span.len)).collect();
        assert_eq!(entries, [(0, 4), (4, 2), (6, 4)]);
        seen.replace(span(3, 20));
        let entries: Vec<_> = seen.entries.iter().map(|known| (known.span.start, known.span.len)).collect();
        assert_eq!(entries, [(0, 3), (3, 20)]);
    }

    #[test]
    fn entries_are_the_blocks_that_were_written_each_by_its_last_write() {
        let mut rng = SmallRng::seed_from_u64(7);
        let mut seen = Seen::default();
        // Of each block the number of the write.
        let mut blocks = [None; 80];
        for number in 0..2000_u16 {
            let start = rng.random_range(0..60);
            let written = span(start, rng.random_range(1..20));
            seen.replace(written);
            // For what follows a counter tells one write from the other.
            let last =
                seen.entries.iter_mut().find(|known| known.span == written).expect("it is there as a whole");
            last.counter = number;
            (written.start..written.end()).for_each(|block| blocks[block as usize] = Some(number));
            let ends = seen.entries.windows(2).all(|two| two[0].span.end() <= two[1].span.start);
            assert!(ends && seen.entries.iter().all(|known| known.span.len > 0), "{:?}", seen.entries);
            let mut found = [None; 80];
            for known in &seen.entries {
                (known.span.start..known.span.end())
                    .for_each(|block| found[block as usize] = Some(known.counter));
            }
            assert_eq!(found, blocks, "write {number}: {written:?}");
        }
    }

    /// The counter of a write by what it replaces and goes on from, in the plainest way.
    fn expected(before: &[(Span, u16)], written: Span) -> u16 {
        let inside = |known: &Span| {
            (known.start..known.end()).filter(|block| (written.start..written.end()).contains(block)).count()
                as u64
        };
        let old = before.iter().filter(|(known, _)| inside(known) > 0 || known.end() == written.start);
        let old = old.map(|(known, counter)| OldEntry {
            blocks: known.len,
            covered: inside(known),
            counter: *counter,
        });
        write_counter(written.len, &old.collect::<Vec<_>>())
    }

    #[test]
    fn counters_are_those_of_what_is_replaced() {
        let mut rng = SmallRng::seed_from_u64(11);
        let mut seen = Seen::default();
        let mut largest = 0;
        for number in 0..5000 {
            // Now and then the same again, or what comes behind it.
            let last = seen.entries.last().map_or(span(0, 4), |known| known.span);
            let written = match rng.random_range(0..4) {
                0 => last,
                1 if last.end() < 200 => span(last.end(), last.len),
                _ => span(rng.random_range(0..60), rng.random_range(1..30)),
            };
            let before: Vec<_> = seen.entries.iter().map(|known| (known.span, known.counter)).collect();
            seen.replace(written);
            let found =
                seen.entries.iter().find(|known| known.span == written).expect("it is there as a whole");
            assert_eq!(
                found.counter,
                expected(&before, written),
                "write {number}: {written:?} over {before:?}"
            );
            largest = largest.max(found.counter);
        }
        assert!(largest > 3, "{largest}");
    }

    #[test]
    fn what_is_known_is_bounded() {
        let known = predictors(Rules::default());
        for number in 0..2 * (MAX_FILES * SHARDS) as u64 {
            known.wrote(id(number), span(0, 1), false);
        }
        assert!(known.shards.iter().all(|shard| (1..=MAX_FILES).contains(&shard.files.lock().len())));
        let mut seen = Seen::default();
        (0..2 * MAX_ENTRIES as u64).for_each(|at| seen.replace(span(2 * at, 1)));
        assert!((MAX_ENTRIES - FORGOTTEN..=MAX_ENTRIES).contains(&seen.entries.len()));
        assert_eq!(seen.entries.last().map(|known| known.span), Some(span(4 * MAX_ENTRIES as u64 - 2, 1)));
    }

    /// A program that makes files and removes them again would have it know nothing else before long.
    #[test]
    fn a_file_has_the_place_of_the_one_that_had_its_number_before() {
        let known = predictors(Rules::default());
        let of = |generation| InodeId { generation, ..id(1) };
        (0..5).for_each(|_| known.wrote(of(1), span(0, 256), false));
        assert!(known.is_for_disk(of(1), span(0, 256)) && !known.is_for_disk(of(2), span(0, 256)));
        assert!(known.parts_for_disk(of(2), span(0, 256)).is_empty());
        known.synced(of(2));
        assert_eq!(known.accuracy(), Accuracy::default());
        known.wrote(of(2), span(0, 256), false);
        assert!(!known.is_for_disk(of(1), span(0, 256)) && !known.is_for_disk(of(2), span(0, 256)));
        assert_eq!(known.parts_for_disk(of(2), span(0, 256)), []);
        assert_eq!(known.shard(id(1)).files.lock().len(), 1);
    }
}
