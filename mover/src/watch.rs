//! Access statistics: samples that foreground operations leave, and the temperatures that the mover derives from them.
//!
//! An operation leaves a sample if there is room for it and the buffer is not locked at that moment; it never waits.
//! Times are those of the operations, in milliseconds since 1970.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::{InodeId, Timestamp};
use nacre_media::thread_number;
use nacre_policy::temperature::{EntryHeat, Span, WHOLE_FILE_MS, read_hot, spans, write_cold};
use nacre_policy::thresholds::Recent;
use nacre_policy::{FileAccess, Heat, Rules, Temperatures};

/// Samples that wait, at most.
const MAX_SAMPLES: usize = 4096;
/// Blocks that have a temperature of their own: 2 MiB.
const PART: u64 = 512;
/// Parts of a file that have one; of larger files, parts are larger.
const MAX_PARTS: u64 = 4096;

/// The kind of an access to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// They were written to persistent memory.
    Written,
    /// They were read from there.
    Read,
    /// They were read from a tier, or from DRAM before it.
    ReadBelow,
}

/// One access to blocks of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) id: InodeId,
    pub(crate) access: Access,
    pub(crate) start: u64,
    pub(crate) blocks: u64,
    /// The size of the file in blocks, as far as the operation knows it.
    pub(crate) size: u64,
    /// When the file was modified.
    pub(crate) modified_ms: u64,
    pub(crate) at_ms: u64,
}

/// The counters of some threads: on their own cache lines, so that other threads do not wait for them.
#[derive(Default)]
#[repr(align(128))]
struct Counts {
    read: AtomicU64,
    read_below: AtomicU64,
    written: AtomicU64,
    lost: AtomicU64,
}

/// So many; a thread has its own while there are no more of them.
const COUNTS: usize = 16;

/// Where samples wait.
#[derive(Default)]
pub(crate) struct Sink {
    samples: Mutex<Vec<Sample>>,
    /// There is no room for more.
    is_full: AtomicBool,
    /// There are tiers: otherwise no samples are needed.
    is_on: AtomicBool,
    counts: [Counts; COUNTS],
    /// About now, in milliseconds since 1970, for operations that bring no time.
    time_ms: AtomicU64,
    recent: Mutex<Recent>,
}

impl Sink {
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Sets the current time.
    pub(crate) fn set_time(&self, now_ms: u64) {
        self.time_ms.store(now_ms, Ordering::Relaxed);
        self.recent.lock().look(now_ms, self.traffic());
    }

    /// Bytes that were read from persistent memory lately, and written to it.
    pub(crate) fn recent_traffic(&self) -> (u64, u64) {
        self.recent.lock().bytes(self.traffic())
    }

    /// The last time that was set.
    pub(crate) fn time_ms(&self) -> u64 {
        self.time_ms.load(Ordering::Relaxed)
    }

    fn own(&self) -> &Counts {
        &self.counts[thread_number() as usize % COUNTS]
    }

    fn sum(&self, of: fn(&Counts) -> &AtomicU64) -> u64 {
        self.counts.iter().map(|counts| of(counts).load(Ordering::Relaxed)).sum()
    }

    /// Counts bytes.
    pub(crate) fn count(&self, access: Access, bytes: u64) {
        let own = self.own();
        let sum = match access {
            Access::Written => &own.written,
            Access::Read => &own.read,
            Access::ReadBelow => &own.read_below,
        };
        sum.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Leaves a sample, if there is room; else it is not even made.
    pub(crate) fn note(&self, sample: impl FnOnce() -> Option<Sample>) {
        if self.is_full.load(Ordering::Relaxed) {
            self.own().lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(sample) = sample() else { return };
        match self.samples.try_lock() {
            Some(mut samples) if samples.len() < MAX_SAMPLES => {
                samples.push(sample);
                self.is_full.store(samples.len() == MAX_SAMPLES, Ordering::Relaxed);
            }
            _ => {
                self.own().lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn take(&self) -> Vec<Sample> {
        let mut samples = self.samples.lock();
        self.is_full.store(false, Ordering::Relaxed);
        std::mem::take(&mut *samples)
    }

    /// Whether no samples were left since they were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples that wait.
    pub(crate) fn len(&self) -> usize {
        self.samples.lock().len()
    }

    /// Samples for which there was no room.
    pub(crate) fn unheard(&self) -> u64 {
        self.sum(|counts| &counts.lost)
    }

    /// Bytes that were read from persistent memory, and from tiers.
    pub(crate) fn reads(&self) -> (u64, u64) {
        (self.sum(|counts| &counts.read), self.sum(|counts| &counts.read_below))
    }

    /// Bytes that were read from persistent memory, and written to it.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.sum(|counts| &counts.read), self.sum(|counts| &counts.written))
    }
}

/// Milliseconds since 1970; what is before that is at its start.
pub(crate) fn millis(time: Timestamp) -> u64 {
    u64::try_from(time.secs)
        .unwrap_or(0)
        .saturating_mul(1000)
        .saturating_add(u64::from(time.nanos) / 1_000_000)
}

/// How hot files are, as far as they are on persistent memory, or on tiers.
pub(crate) struct Heats {
    lists: Temperatures<InodeId>,
    /// Those in the lists, and at most as many others: the history of a file that moved is still known when it is back.
    files: HashMap<InodeId, FileHeat>,
    /// Files that were taken out while some of their blocks were too young to move, by when these no longer are, in
    /// milliseconds. No more than are in the lists.
    resting: BTreeSet<(u64, InodeId)>,
    /// The same by modification time: direct reclaim takes the coldest of all.
    resting_by_modification: BTreeSet<(u64, InodeId)>,
    max_files: usize,
    /// A file was dropped from the lists since this was last asked.
    has_dropped: bool,
}

/// One file, and its parts.
#[derive(Debug, Clone, Default)]
struct FileHeat {
    heat: Heat,
    size: u64,
    last_modified_ms: u64,
    /// When anything was done with it that was heard of.
    last_used_ms: u64,
    access: FileAccess,
    /// Modified and read, by part.
    parts: BTreeMap<u64, (u64, u64)>,
    /// When its rest is over, and its key among those that rest, by modification.
    rest: Option<(u64, u64)>,
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

/// The parts of a file that move.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) id: InodeId,
    pub(crate) spans: Vec<Span>,
}

impl Heats {
    /// Lists of at most so many files.
    pub(crate) fn new(max_files: usize) -> Heats {
        Heats {
            lists: Temperatures::new(max_files),
            files: HashMap::new(),
            resting: BTreeSet::new(),
            resting_by_modification: BTreeSet::new(),
            max_files,
            has_dropped: false,
        }
    }

    /// Before another file is known: the one that had its inode before is gone, and as few are known as fit.
    fn make_room(&mut self, id: InodeId) {
        if self.files.contains_key(&id) {
            return;
        }
        self.forget(InodeId { generation: id.generation.wrapping_sub(1), ..id });
        if self.files.len() >= 2 * self.max_files {
            // The next access of those that are in no list begins anew.
            let lists = &self.lists;
            self.files.retain(|id, file| file.rest.is_some() || lists.has(*id));
        }
    }

    fn list(&mut self, id: InodeId, heat: Heat) {
        self.has_dropped |= self.lists.set(id, heat).is_some();
    }

    pub(crate) fn take_in(&mut self, sample: &Sample) {
        self.make_room(sample.id);
        // It is in the lists from now on, as it is now.
        self.end_rest(sample.id);
        let is_write = sample.access == Access::Written;
        let file = self.files.entry(sample.id).or_insert_with(|| {
            // One that is read only was modified, too, if not under our eyes: the coldest it is not for that.
            let modified_ms = if is_write { 0 } else { sample.modified_ms };
            let heat = Heat { modified_ms, read_ms: 0 };
            FileHeat { heat, last_modified_ms: modified_ms, ..FileHeat::default() }
        });
        let before = file.part_blocks();
        file.size = sample.size.max(sample.start + sample.blocks);
        let len = file.part_blocks();
        if len != before {
            file.parts.clear();
        }
        for part in sample.start / len..(sample.start + sample.blocks.max(1)).div_ceil(len) {
            let times = file.parts.entry(part).or_default();
            let time = if is_write { &mut times.0 } else { &mut times.1 };
            *time = (*time).max(sample.at_ms);
        }
        if is_write {
            // Of what it shows only reads are asked for here, on which no rule has a say.
            file.access.wrote(sample.blocks, &Rules::default());
            file.heat.wrote(sample.blocks, file.size, sample.at_ms);
            file.last_modified_ms = file.last_modified_ms.max(sample.at_ms);
        } else {
            file.access.read(sample.blocks);
            file.heat.read(sample.blocks, file.size, sample.at_ms);
        }
        file.last_used_ms = file.last_used_ms.max(sample.at_ms);
        let heat = file.heat;
        self.list(sample.id, heat);
    }

    /// A file that has blocks here. Of one that was not accessed yet nothing but its attributes is known.
    pub(crate) fn found(&mut self, id: InodeId, size: u64, modified_ms: u64) {
        self.make_room(id);
        let file = self.files.entry(id).or_insert_with(|| {
            let heat = Heat { modified_ms, read_ms: 0 };
            FileHeat { heat, size, last_modified_ms: modified_ms, ..FileHeat::default() }
        });
        let heat = file.heat;
        self.list(id, heat);
    }

    /// A file that was taken out has blocks that did not move.
    pub(crate) fn put_back(&mut self, id: InodeId) {
        if let Some(file) = self.files.get(&id) {
            let heat = file.heat;
            self.list(id, heat);
        }
    }

    pub(crate) fn forget(&mut self, id: InodeId) {
        self.end_rest(id);
        self.files.remove(&id);
        self.lists.remove(id);
    }

    /// A file that was taken out rests until its young blocks are old.
    fn rest(&mut self, id: InodeId, now_ms: u64) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.rest.is_none()) else { return };
        if self.resting.len() >= self.max_files {
            self.has_dropped = true;
            return;
        }
        // As soon as it moves whole; a clock that was set back must not put that off.
        let due_ms = file.last_modified_ms.min(now_ms).saturating_add(WHOLE_FILE_MS + 1);
        let modified_ms = file.heat.modified_ms;
        file.rest = Some((due_ms, modified_ms));
        self.resting.insert((due_ms, id));
        self.resting_by_modification.insert((modified_ms, id));
    }

    fn end_rest(&mut self, id: InodeId) {
        if let Some((due_ms, modified_ms)) = self.files.get_mut(&id).and_then(|file| file.rest.take()) {
            self.resting.remove(&(due_ms, id));
            self.resting_by_modification.remove(&(modified_ms, id));
        }
    }

    /// Files rest that will move when they are old, if nothing happens to them.
    pub(crate) fn is_any_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Lists files again whose back-off is over at this time.
    fn wake(&mut self, now_ms: u64) {
        while let Some(&(_, id)) = self.resting.first().filter(|(due_ms, _)| *due_ms <= now_ms) {
            self.end_rest(id);
            self.put_back(id);
        }
    }

    /// Takes out the file that was modified longest ago, with those parts that are demoted at this time. The rest of it
    /// comes when it is old.
    pub(crate) fn coldest(&mut self, now_ms: u64) -> Option<Chosen> {
        self.wake(now_ms);
        let (id, heat) = self.lists.pop_write_cold()?;
        let file = self.files.get(&id)?;
        let entries = file.entries();
        let cold: Vec<_> = write_cold(&entries, heat, file.last_modified_ms, now_ms).collect();
        let (is_whole, spans) = (cold.len() == entries.len(), spans(cold));
        if !is_whole {
            self.rest(id, now_ms);
        }
        Some(Chosen { id, spans })
    }

    /// The same for direct reclaim: all parts of the file, and whether or not it backs off.
    pub(crate) fn coldest_whole(&mut self) -> Option<Chosen> {
        let resting = self.resting_by_modification.first().copied();
        let listed = self.lists.least_modified_ms();
        let id = match resting {
            Some((modified_ms, id)) if listed.is_none_or(|listed| modified_ms < listed) => {
                self.lists.remove(id);
                id
            }
            _ => self.lists.pop_write_cold()?.0,
        };
        self.end_rest(id);
        let entries = self.files.get(&id)?.entries();
        Some(Chosen { id, spans: spans(&entries) })
    }

    /// The file that was read last, with those parts that were not read before the rest; with rules, only one that is
    /// read-dominated. It stays in the lists, as one that was never read: others come next, until it is read again.
    pub(crate) fn hottest(&mut self, rules: Option<&Rules>) -> Option<Chosen> {
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
                return Some(Chosen { id, spans });
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Files that wait in the lists, and those that rest.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.lists.len(), self.resting.len())
    }

    /// Those that move down first, and the blocks that they have.
    pub(crate) fn coldest_ones(&self, most: usize) -> impl Iterator<Item = (InodeId, u64)> {
        self.lists.write_cold_first().take(most).map(|id| (id, self.size(id)))
    }

    /// Those that were read last.
    pub(crate) fn hottest_ones(&self, most: usize) -> impl Iterator<Item = (InodeId, u64)> {
        self.lists.read_hot_first().take(most).map(|id| (id, self.size(id)))
    }

    /// The files whose back-off ends first, and when it ends, in milliseconds.
    pub(crate) fn young_ones(&self, most: usize) -> impl Iterator<Item = (InodeId, u64, u64)> {
        self.resting.iter().take(most).map(|&(due_ms, id)| (id, self.size(id), due_ms))
    }

    fn size(&self, id: InodeId) -> u64 {
        self.files.get(&id).map_or(0, |file| file.size)
    }

    /// Those files, how hot they are, and their blocks.
    pub(crate) fn known(&self) -> impl Iterator<Item = (InodeId, Heat, u64)> {
        let is_here = |(id, file): &(&InodeId, &FileHeat)| file.rest.is_some() || self.lists.has(**id);
        self.files.iter().filter(is_here).map(|(id, file)| (*id, file.heat, file.size))
    }

    /// When anything was done with a file that was heard of; 0 where nothing was.
    pub(crate) fn last_used_ms(&self, id: InodeId) -> u64 {
        self.files.get(&id).map_or(0, |file| file.last_used_ms)
    }

    /// Files for which the lists have room.
    pub(crate) fn room(&self) -> usize {
        self.max_files.saturating_sub(self.lists.len())
    }

    /// Whether a file was dropped from the lists since this was asked last.
    pub(crate) fn has_dropped(&mut self) -> bool {
        std::mem::take(&mut self.has_dropped)
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;
    use nacre_policy::Rules;

    use super::{Access, Heats, PART, Sample};

    fn id(number: u64) -> InodeId {
        InodeId { number, generation: 1, volume: 0 }
    }

    fn write(number: u64, start: u64, blocks: u64, size: u64, at_ms: u64) -> Sample {
        Sample { id: id(number), access: Access::Written, start, blocks, size, modified_ms: at_ms, at_ms }
    }

    fn read(number: u64, start: u64, blocks: u64, size: u64, at_ms: u64) -> Sample {
        Sample { access: Access::Read, ..write(number, start, blocks, size, at_ms) }
    }

    #[test]
    fn what_is_read_most_comes_once_and_again_when_it_is_read_again() {
        let mut heats = Heats::new(1 << 16);
        let rules = Rules::default();
        // Read three times over, and once; a part of the first is read on.
        (0..3).for_each(|time| heats.take_in(&read(1, 0, 4 * PART, 4 * PART, 1000 + time)));
        heats.take_in(&read(2, 0, 100, 100, 5000));
        heats.take_in(&read(1, 2 * PART, PART, 4 * PART, 4000));
        let hot = heats.hottest(Some(&rules)).unwrap();
        assert_eq!(
            (hot.id, hot.spans.len(), hot.spans[0].start, hot.spans[0].len),
            (id(1), 1, 2 * PART, PART)
        );
        assert!(heats.hottest(Some(&rules)).is_none() && heats.hottest(None).is_none());
        // It is not forgotten as one that may move down.
        assert_eq!(heats.coldest_whole().unwrap().id, id(1));
        heats.take_in(&read(2, 0, 100, 100, 6000));
        heats.take_in(&read(2, 0, 100, 100, 7000));
        assert_eq!(heats.hottest(Some(&rules)).unwrap().spans[0].len, PART);
        // A write makes it one that is not read.
        heats.take_in(&write(2, 0, 1, 100, 8000));
        heats.take_in(&read(2, 0, 100, 100, 9000));
        assert!(heats.hottest(Some(&rules)).is_none());
        heats.take_in(&read(2, 0, 100, 100, 9000));
        assert_eq!(heats.hottest(None).unwrap().id, id(2));
    }

    #[test]
    fn the_file_that_rests_goes_whole_and_of_a_busy_one_the_old_part() {
        let mut heats = Heats::new(1 << 16);
        heats.take_in(&write(1, 0, 4 * PART, 4 * PART, 100_000));
        heats.take_in(&write(2, 0, 10, 10, 1000));
        heats.take_in(&write(1, 3 * PART, 10, 4 * PART, 150_000));
        let cold = heats.coldest(160_000).unwrap();
        assert_eq!((cold.id, cold.spans[0].start, cold.spans[0].len), (id(2), 0, PART));
        // Its last part was written since.
        let cold = heats.coldest(160_000).unwrap();
        assert_eq!((cold.id, cold.spans.len(), cold.spans[0].len), (id(1), 1, 3 * PART));
        assert!(heats.coldest(160_000).is_none() && heats.is_empty());
        // That is not so for ever, and whoever needs space takes it as it is.
        assert!(heats.coldest(180_000).is_none());
        assert_eq!(heats.coldest(180_001).unwrap().spans[0].len, 4 * PART);
        heats.take_in(&write(1, 3 * PART, 10, 4 * PART, 195_000));
        assert_eq!(heats.coldest(195_000).unwrap().spans[0].len, 3 * PART);
        assert!(heats.coldest(195_000).is_none());
        assert_eq!(heats.coldest_whole().unwrap().spans[0].len, 4 * PART);
        assert!(heats.coldest_whole().is_none());
        // Who comes again is in the lists again.
        heats.take_in(&write(1, 0, 1, 4 * PART, 170_000));
        assert_eq!(heats.coldest_whole().unwrap().spans[0].len, 4 * PART);
    }

    #[test]
    fn a_file_that_is_read_is_as_old_as_it_is() {
        let mut heats = Heats::new(1 << 16);
        heats.take_in(&Sample { modified_ms: 3000, ..read(1, 0, 10, 10, 100_000) });
        heats.take_in(&write(2, 0, 10, 10, 2000));
        heats.found(id(3), 10, 4000);
        let cold: Vec<_> = std::iter::from_fn(|| heats.coldest_whole()).map(|cold| cold.id).collect();
        assert_eq!(cold, [2, 1, 3].map(id), "reads are no sign of age");
    }

    /// It rested for 30 seconds from when it was looked at, so that a file that was 29 seconds old moved when it was 59.
    #[test]
    fn a_file_that_rests_moves_as_soon_as_it_is_old() {
        let mut heats = Heats::new(1 << 16);
        heats.take_in(&write(1, 0, 10, 10, 100_000));
        assert!(heats.coldest(129_000).unwrap().spans.is_empty(), "all of it is young");
        assert!(heats.coldest(130_000).is_none());
        assert_eq!(heats.coldest(130_001).unwrap().spans[0].len, PART);
        // The clock was set back.
        heats.take_in(&write(2, 0, 10, 10, 900_000));
        assert!(heats.coldest(200_000).unwrap().spans.is_empty());
        assert!(heats.coldest(230_001).is_some());
    }

    /// The oldest files rested, as all were young, and who needed space took those that were written last.
    #[test]
    fn who_needs_space_takes_the_oldest_of_those_that_rest_and_those_that_do_not() {
        let mut heats = Heats::new(1 << 16);
        (1..=3).for_each(|number| heats.take_in(&write(number, 0, 10, 10, 1000 + number)));
        assert_eq!(
            (1..=3).filter_map(|_| heats.coldest(1100)).filter(|cold| cold.spans.is_empty()).count(),
            3
        );
        assert!(heats.is_empty() && heats.is_any_resting());
        heats.take_in(&write(4, 0, 10, 10, 1200));
        // It was written again: the newest of all.
        heats.take_in(&write(2, 0, 10, 10, 1300));
        let taken: Vec<_> = std::iter::from_fn(|| heats.coldest_whole()).map(|cold| cold.id.number).collect();
        assert_eq!(taken, [1, 3, 4, 2]);
        assert!(!heats.is_any_resting() && heats.resting_by_modification.is_empty());
    }

    #[test]
    fn no_more_files_are_known_than_there_is_room_for() {
        let mut heats = Heats::new(10);
        (0..1000).for_each(|number| heats.found(id(number), 10, 1000 + number));
        assert!(heats.files.len() <= 20 && heats.room() == 0, "{}", heats.files.len());
        assert!(heats.has_dropped() && !heats.has_dropped());
        (1000..2000).for_each(|number| heats.take_in(&write(number, 0, 1, 1, 5000)));
        assert!(heats.files.len() <= 20, "{}", heats.files.len());
        // What is in the lists is known.
        let cold: Vec<_> = std::iter::from_fn(|| heats.coldest_whole()).map(|cold| cold.id).collect();
        assert_eq!(cold, (0..10).map(id).collect::<Vec<_>>());
    }

    /// Files that are made and removed again took the room of those that are there.
    #[test]
    fn a_file_has_the_place_of_the_one_that_had_its_inode_before() {
        let mut heats = Heats::new(10);
        let of = |generation| InodeId { generation, ..id(1) };
        heats.take_in(&write(2, 0, 1, 1, 1000));
        for generation in 1..100 {
            heats.take_in(&Sample { id: of(generation), ..write(1, 0, 1, 1, 2000) });
            assert_eq!((heats.counts().0, heats.files.len()), (2, 2));
        }
        assert!(!heats.has_dropped());
        heats.rest(of(99), 3000);
        heats.found(of(100), 1, 3000);
        assert_eq!((heats.counts(), heats.files.len()), ((2, 0), 2));
        assert_eq!(heats.coldest(100_000).map(|chosen| chosen.id), Some(id(2)));
        assert_eq!(heats.coldest(100_000).map(|chosen| chosen.id), Some(of(100)));
        assert!(heats.coldest(100_000).is_none());
    }

    #[test]
    fn large_files_have_large_parts() {
        let mut heats = Heats::new(1 << 16);
        heats.take_in(&write(1, 0, 1, 1 << 32, 1000));
        heats.take_in(&write(1, 1 << 31, 1, 1 << 32, 90_000));
        let parts = heats.files[&id(1)].entries().len() as u64;
        assert!((2..=2 * super::MAX_PARTS).contains(&parts), "{parts}");
    }
}
