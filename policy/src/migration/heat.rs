//! The temperatures of files, derived from accesses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use crate::migration::{Access, AccessKind, Chosen};
use crate::placement::{FileAccess, Rules};
use crate::temperature::{EntryHeat, Heat, Temperatures, WHOLE_FILE_MS, read_hot, spans, write_cold};

/// Blocks that have a temperature of their own: 2 MiB.
const PART: u64 = 512;

/// Parts of a file that have one; of larger files, parts are larger.
const MAX_PARTS: u64 = 4096;

/// How hot files are, as far as they are on PM, or on tiers.
pub struct AccessStatistics<F> {
    lists: Temperatures<F>,
    /// Those in the lists, and at most as many others: the history of a file that moved is still known when it is back.
    files: HashMap<F, FileHeat>,
    /// Files that were taken out while some of their blocks were too young to move, by when these no longer are, in
    /// milliseconds. No more than are in the lists.
    in_backoff: BTreeSet<(u64, F)>,
    /// The same by modification time: direct reclaim takes the coldest of all.
    in_backoff_by_modification: BTreeSet<(u64, F)>,
    max_files: usize,
    /// The file that had the inode of a file before, and is gone.
    before: fn(F) -> F,
    /// A file was dropped from the lists since this was last asked.
    has_dropped: bool,
}

/// One file, and its parts.
#[derive(Debug, Clone, Default)]
struct FileHeat {
    heat: Heat,
    size: u64,
    last_modified_ms: u64,
    /// When anything was done with it that was sampled.
    last_used_ms: u64,
    access: FileAccess,
    /// Modified and read, by part.
    parts: BTreeMap<u64, (u64, u64)>,
    /// When its rest is over, and its key among those that rest, by modification.
    backoff: Option<(u64, u64)>,
}

impl FileHeat {
    fn part_blocks(&self) -> u64 {
        PART * (self.size / (PART * MAX_PARTS) + 1).next_power_of_two()
    }

    fn entries(&self) -> Vec<EntryHeat> {
        let len = self.part_blocks();
        let parts = 0..self.size.div_ceil(len);
        parts
            .map(|part| {
                let (modified_ms, read_ms) = self.parts.get(&part).copied().unwrap_or_default();
                EntryHeat { start: part * len, len, modified_ms, read_ms }
            })
            .collect()
    }
}

impl<F: Copy + Ord + Hash> AccessStatistics<F> {
    /// Lists of at most so many files. `before` is the file that had the inode of a file before: it is gone once the other
    /// one is known.
    pub fn new(max_files: usize, before: fn(F) -> F) -> AccessStatistics<F> {
        AccessStatistics {
            lists: Temperatures::new(max_files),
            files: HashMap::new(),
            in_backoff: BTreeSet::new(),
            in_backoff_by_modification: BTreeSet::new(),
            max_files,
            before,
            has_dropped: false,
        }
    }

    /// Before another file is known: the one that had its inode before is gone, and as few are known as fit.
    fn make_room(&mut self, id: F) {
        if self.files.contains_key(&id) {
            return;
        }
        self.forget((self.before)(id));
        if self.files.len() >= 2 * self.max_files {
            // The next access of those that are in no list begins anew.
            let lists = &self.lists;
            self.files.retain(|id, file| file.backoff.is_some() || lists.has(*id));
        }
    }

    fn list(&mut self, id: F, heat: Heat) {
        self.has_dropped |= self.lists.set(id, heat).is_some();
    }

    /// An access to blocks of a file.
    pub fn observe(&mut self, access: &Access<F>) {
        self.make_room(access.file);
        // It is in the lists from now on, as it is now.
        self.end_backoff(access.file);
        let is_write = access.kind == AccessKind::Written;
        let file = self.files.entry(access.file).or_insert_with(|| {
            // One that is read only was modified, too, if not under our eyes: the coldest it is not for that.
            let modified_ms = if is_write { 0 } else { access.modified_ms };
            let heat = Heat { modified_ms, read_ms: 0 };
            FileHeat { heat, last_modified_ms: modified_ms, ..FileHeat::default() }
        });
        let before = file.part_blocks();
        file.size = access.size.max(access.start + access.blocks);
        let len = file.part_blocks();
        if len != before {
            file.parts.clear();
        }
        for part in access.start / len..(access.start + access.blocks.max(1)).div_ceil(len) {
            let times = file.parts.entry(part).or_default();
            let time = if is_write { &mut times.0 } else { &mut times.1 };
            *time = (*time).max(access.at_ms);
        }
        if is_write {
            // Of what it shows only reads are asked for here, on which no rule has a say.
            file.access.wrote(access.blocks, &Rules::default());
            file.heat.wrote(access.blocks, file.size, access.at_ms);
            file.last_modified_ms = file.last_modified_ms.max(access.at_ms);
        } else {
            file.access.read(access.blocks);
            file.heat.read(access.blocks, file.size, access.at_ms);
        }
        file.last_used_ms = file.last_used_ms.max(access.at_ms);
        let heat = file.heat;
        self.list(access.file, heat);
    }

    /// A file that has blocks here. Of one that was not accessed yet nothing but its attributes is known.
    pub fn found(&mut self, id: F, size: u64, modified_ms: u64) {
        self.make_room(id);
        let file = self.files.entry(id).or_insert_with(|| {
            let heat = Heat { modified_ms, read_ms: 0 };
            FileHeat { heat, size, last_modified_ms: modified_ms, ..FileHeat::default() }
        });
        let heat = file.heat;
        self.list(id, heat);
    }

    /// A file that was taken out has blocks that did not move.
    pub fn put_back(&mut self, id: F) {
        if let Some(file) = self.files.get(&id) {
            let heat = file.heat;
            self.list(id, heat);
        }
    }

    /// A file is gone.
    pub fn forget(&mut self, id: F) {
        self.end_backoff(id);
        self.files.remove(&id);
        self.lists.remove(id);
    }

    /// A file that was taken out backs off until its young blocks are old.
    fn back_off(&mut self, id: F, now_ms: u64) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.backoff.is_none()) else { return };
        if self.in_backoff.len() >= self.max_files {
            self.has_dropped = true;
            return;
        }
        // As soon as it moves whole; a clock that was set back must not put that off.
        let due_ms = file.last_modified_ms.min(now_ms).saturating_add(WHOLE_FILE_MS + 1);
        let modified_ms = file.heat.modified_ms;
        file.backoff = Some((due_ms, modified_ms));
        self.in_backoff.insert((due_ms, id));
        self.in_backoff_by_modification.insert((modified_ms, id));
    }

    fn end_backoff(&mut self, id: F) {
        if let Some((due_ms, modified_ms)) = self.files.get_mut(&id).and_then(|file| file.backoff.take()) {
            self.in_backoff.remove(&(due_ms, id));
            self.in_backoff_by_modification.remove(&(modified_ms, id));
        }
    }

    /// Files rest that will move when they are old, if nothing happens to them.
    pub fn is_any_in_backoff(&self) -> bool {
        !self.in_backoff.is_empty()
    }

    /// Lists files again whose back-off is over at this time.
    fn wake(&mut self, now_ms: u64) {
        while let Some(&(_, id)) = self.in_backoff.first().filter(|(due_ms, _)| *due_ms <= now_ms) {
            self.end_backoff(id);
            self.put_back(id);
        }
    }

    /// Takes out the file that was modified longest ago, with those parts that are demoted at this time. The rest of it
    /// comes when it is old.
    pub fn coldest(&mut self, now_ms: u64) -> Option<Chosen<F>> {
        self.wake(now_ms);
        let (id, heat) = self.lists.pop_write_cold()?;
        let file = self.files.get(&id)?;
        let entries = file.entries();
        let cold: Vec<_> = write_cold(&entries, heat, file.last_modified_ms, now_ms).collect();
        let (is_whole, spans) = (cold.len() == entries.len(), spans(cold));
        if !is_whole {
            self.back_off(id, now_ms);
        }
        Some(Chosen { file: id, spans })
    }

    /// The same for direct reclaim: all parts of the file, and whether or not it backs off.
    pub fn coldest_whole(&mut self) -> Option<Chosen<F>> {
        let resting = self.in_backoff_by_modification.first().copied();
        let listed = self.lists.least_modified_ms();
        let id = match resting {
            Some((modified_ms, id)) if listed.is_none_or(|listed| modified_ms < listed) => {
                self.lists.remove(id);
                id
            }
            _ => self.lists.pop_write_cold()?.0,
        };
        self.end_backoff(id);
        let entries = self.files.get(&id)?.entries();
        Some(Chosen { file: id, spans: spans(&entries) })
    }

    /// The file that was read last, with those parts that were not read before the rest; with rules, only one that is
    /// read-dominated. It stays in the lists, as one that was never read: others come next, until it is read again.
    pub fn hottest(&mut self, rules: Option<&Rules>) -> Option<Chosen<F>> {
        loop {
            let (id, heat) = self.lists.pop_read_hot()?;
            let Some(file) = self.files.get_mut(&id) else { continue };
            let is_hot = rules.is_none_or(|rules| file.access.is_read_dominated(file.size, rules));
            let spans = if is_hot { spans(read_hot(&file.entries(), heat)) } else { Vec::new() };
            file.heat.read_ms = 0;
            file.parts.values_mut().for_each(|times| times.1 = 0);
            let heat = file.heat;
            self.list(id, heat);
            if !spans.is_empty() {
                return Some(Chosen { file: id, spans });
            }
        }
    }

    /// Whether no file waits in the lists.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Files that wait in the lists, and those that rest.
    pub fn counts(&self) -> (usize, usize) {
        (self.lists.len(), self.in_backoff.len())
    }

    /// Those that move down first, and the blocks that they have.
    pub fn coldest_ones(&self, most: usize) -> impl Iterator<Item = (F, u64)> {
        self.lists.write_cold_first().take(most).map(|id| (id, self.size(id)))
    }

    /// Those that were read last.
    pub fn hottest_ones(&self, most: usize) -> impl Iterator<Item = (F, u64)> {
        self.lists.read_hot_first().take(most).map(|id| (id, self.size(id)))
    }

    /// The files whose back-off ends first, and when it ends, in milliseconds.
    pub fn young_ones(&self, most: usize) -> impl Iterator<Item = (F, u64, u64)> {
        self.in_backoff.iter().take(most).map(|&(due_ms, id)| (id, self.size(id), due_ms))
    }

    fn size(&self, id: F) -> u64 {
        self.files.get(&id).map_or(0, |file| file.size)
    }

    /// Those files, how hot they are, and their blocks.
    pub fn known(&self) -> impl Iterator<Item = (F, Heat, u64)> {
        let is_here = |(id, file): &(&F, &FileHeat)| file.backoff.is_some() || self.lists.has(**id);
        self.files.iter().filter(is_here).map(|(id, file)| (*id, file.heat, file.size))
    }

    /// When anything was done with a file that was sampled; 0 where nothing was.
    pub fn last_used_ms(&self, id: F) -> u64 {
        self.files.get(&id).map_or(0, |file| file.last_used_ms)
    }

    /// Files for which the lists have room.
    pub fn room(&self) -> usize {
        self.max_files.saturating_sub(self.lists.len())
    }

    /// Whether a file was dropped from the lists since this was asked last.
    pub fn has_dropped(&mut self) -> bool {
        std::mem::take(&mut self.has_dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, AccessKind, PART};
    use crate::placement::Rules;

    type AccessStatistics = super::AccessStatistics<Id>;
    type Sample = Access<Id>;

    /// A file: its inode, and its generation.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    struct Id {
        number: u64,
        generation: u32,
    }

    fn statistics(max_files: usize) -> AccessStatistics {
        AccessStatistics::new(max_files, |id| Id { generation: id.generation.wrapping_sub(1), ..id })
    }

    fn id(number: u64) -> Id {
        Id { number, generation: 1 }
    }

    fn write(number: u64, start: u64, blocks: u64, size: u64, at_ms: u64) -> Sample {
        Sample { file: id(number), kind: AccessKind::Written, start, blocks, size, modified_ms: at_ms, at_ms }
    }

    fn read(number: u64, start: u64, blocks: u64, size: u64, at_ms: u64) -> Sample {
        Sample { kind: AccessKind::Read, ..write(number, start, blocks, size, at_ms) }
    }

    #[test]
    fn what_is_read_most_comes_once_and_again_when_it_is_read_again() {
        let mut known = statistics(1 << 16);
        let rules = Rules::default();
        // Read three times over, and once; a part of the first is read on.
        (0..3).for_each(|time| known.observe(&read(1, 0, 4 * PART, 4 * PART, 1000 + time)));
        known.observe(&read(2, 0, 100, 100, 5000));
        known.observe(&read(1, 2 * PART, PART, 4 * PART, 4000));
        let hot = known.hottest(Some(&rules)).unwrap();
        assert_eq!(
            (hot.file, hot.spans.len(), hot.spans[0].start, hot.spans[0].len),
            (id(1), 1, 2 * PART, PART)
        );
        assert!(known.hottest(Some(&rules)).is_none() && known.hottest(None).is_none());
        // It is not forgotten as one that may move down.
        assert_eq!(known.coldest_whole().unwrap().file, id(1));
        known.observe(&read(2, 0, 100, 100, 6000));
        known.observe(&read(2, 0, 100, 100, 7000));
        assert_eq!(known.hottest(Some(&rules)).unwrap().spans[0].len, PART);
        // A write makes it one that is not read.
        known.observe(&write(2, 0, 1, 100, 8000));
        known.observe(&read(2, 0, 100, 100, 9000));
        assert!(known.hottest(Some(&rules)).is_none());
        known.observe(&read(2, 0, 100, 100, 9000));
        assert_eq!(known.hottest(None).unwrap().file, id(2));
    }

    #[test]
    fn the_file_that_rests_goes_whole_and_of_a_busy_one_the_old_part() {
        let mut known = statistics(1 << 16);
        known.observe(&write(1, 0, 4 * PART, 4 * PART, 100_000));
        known.observe(&write(2, 0, 10, 10, 1000));
        known.observe(&write(1, 3 * PART, 10, 4 * PART, 150_000));
        let cold = known.coldest(160_000).unwrap();
        assert_eq!((cold.file, cold.spans[0].start, cold.spans[0].len), (id(2), 0, PART));
        // Its last part was written since.
        let cold = known.coldest(160_000).unwrap();
        assert_eq!((cold.file, cold.spans.len(), cold.spans[0].len), (id(1), 1, 3 * PART));
        assert!(known.coldest(160_000).is_none() && known.is_empty());
        // That is not so for ever, and whoever needs space takes it as it is.
        assert!(known.coldest(180_000).is_none());
        assert_eq!(known.coldest(180_001).unwrap().spans[0].len, 4 * PART);
        known.observe(&write(1, 3 * PART, 10, 4 * PART, 195_000));
        assert_eq!(known.coldest(195_000).unwrap().spans[0].len, 3 * PART);
        assert!(known.coldest(195_000).is_none());
        assert_eq!(known.coldest_whole().unwrap().spans[0].len, 4 * PART);
        assert!(known.coldest_whole().is_none());
        // A file that comes again is in the lists again.
        known.observe(&write(1, 0, 1, 4 * PART, 170_000));
        assert_eq!(known.coldest_whole().unwrap().spans[0].len, 4 * PART);
    }

    #[test]
    fn a_file_that_is_read_is_as_old_as_it_is() {
        let mut known = statistics(1 << 16);
        known.observe(&Sample { modified_ms: 3000, ..read(1, 0, 10, 10, 100_000) });
        known.observe(&write(2, 0, 10, 10, 2000));
        known.found(id(3), 10, 4000);
        let cold: Vec<_> = std::iter::from_fn(|| known.coldest_whole()).map(|cold| cold.file).collect();
        assert_eq!(cold, [2, 1, 3].map(id), "reads are no sign of age");
    }

    /// It rested for 30 seconds from when it was looked at, so that a file that was 29 seconds old moved when it was
    /// 59.
    #[test]
    fn a_file_that_rests_moves_as_soon_as_it_is_old() {
        let mut known = statistics(1 << 16);
        known.observe(&write(1, 0, 10, 10, 100_000));
        assert!(known.coldest(129_000).unwrap().spans.is_empty(), "all of it is young");
        assert!(known.coldest(130_000).is_none());
        assert_eq!(known.coldest(130_001).unwrap().spans[0].len, PART);
        // The clock was set back.
        known.observe(&write(2, 0, 10, 10, 900_000));
        assert!(known.coldest(200_000).unwrap().spans.is_empty());
        assert!(known.coldest(230_001).is_some());
    }

    /// The oldest files rested, as all were young, and who needed space took those that were written last.
    #[test]
    fn who_needs_space_takes_the_oldest_of_those_that_rest_and_those_that_do_not() {
        let mut known = statistics(1 << 16);
        (1..=3).for_each(|number| known.observe(&write(number, 0, 10, 10, 1000 + number)));
        assert_eq!(
            (1..=3).filter_map(|_| known.coldest(1100)).filter(|cold| cold.spans.is_empty()).count(),
            3
        );
        assert!(known.is_empty() && known.is_any_in_backoff());
        known.observe(&write(4, 0, 10, 10, 1200));
        // It was written again: the newest of all.
        known.observe(&write(2, 0, 10, 10, 1300));
        let taken: Vec<_> =
            std::iter::from_fn(|| known.coldest_whole()).map(|cold| cold.file.number).collect();
        assert_eq!(taken, [1, 3, 4, 2]);
        assert!(!known.is_any_in_backoff() && known.in_backoff_by_modification.is_empty());
    }

    #[test]
    fn no_more_files_are_known_than_there_is_room_for() {
        let mut known = statistics(10);
        (0..1000).for_each(|number| known.found(id(number), 10, 1000 + number));
        assert!(known.files.len() <= 20 && known.room() == 0, "{}", known.files.len());
        assert!(known.has_dropped() && !known.has_dropped());
        (1000..2000).for_each(|number| known.observe(&write(number, 0, 1, 1, 5000)));
        assert!(known.files.len() <= 20, "{}", known.files.len());
        // Files in the lists are known.
        let cold: Vec<_> = std::iter::from_fn(|| known.coldest_whole()).map(|cold| cold.file).collect();
        assert_eq!(cold, (0..10).map(id).collect::<Vec<_>>());
    }

    /// Files that are made and removed again took the room of those that are there.
    #[test]
    fn a_file_has_the_place_of_the_one_that_had_its_inode_before() {
        let mut known = statistics(10);
        let of = |generation| Id { generation, ..id(1) };
        known.observe(&write(2, 0, 1, 1, 1000));
        for generation in 1..100 {
            known.observe(&Sample { file: of(generation), ..write(1, 0, 1, 1, 2000) });
            assert_eq!((known.counts().0, known.files.len()), (2, 2));
        }
        assert!(!known.has_dropped());
        known.back_off(of(99), 3000);
        known.found(of(100), 1, 3000);
        assert_eq!((known.counts(), known.files.len()), ((2, 0), 2));
        assert_eq!(known.coldest(100_000).map(|chosen| chosen.file), Some(id(2)));
        assert_eq!(known.coldest(100_000).map(|chosen| chosen.file), Some(of(100)));
        assert!(known.coldest(100_000).is_none());
    }

    #[test]
    fn large_files_have_large_parts() {
        let mut known = statistics(1 << 16);
        known.observe(&write(1, 0, 1, 1 << 32, 1000));
        known.observe(&write(1, 1 << 31, 1, 1 << 32, 90_000));
        let parts = known.files[&id(1)].entries().len() as u64;
        assert!((2..=2 * super::MAX_PARTS).contains(&parts), "{parts}");
    }
}
