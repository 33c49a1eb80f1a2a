//! The status of the mover: its phase, the reason for waiting, and the temperature of the files that it knows.
//!
//! A status query never waits. While blocks move, information that only the moving thread has is left out, or dates
//! from when the blocks were chosen.

use std::collections::BTreeMap;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Tiered};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, transfer_memory};
use nacre_policy::Hours;
use nacre_tiers::PageCounters;

use crate::fs::MoverFs;
use crate::keeper::Keeper;
use crate::predict::Accuracy;
use crate::queue::Queue;
use crate::settings::NextWindow;
use crate::watch::Heats;

/// The ages by which files are told apart, in seconds: younger than each of these, and older than all.
pub const AGES_S: [u64; 3] = [30, 300, 3600];
/// Files of each kind that are named as the hottest.
const HOTTEST: usize = 8;

/// The state of the mover's own work; `doing` includes drains.
#[derive(Debug, Clone)]
pub struct MoverStatus {
    /// It was told to pause.
    pub paused: bool,
    /// Nothing is to be moved now, or nothing can be.
    pub is_idle: bool,
    /// The phase, or the reason for idling.
    pub phase: Phase,
    /// The file whose blocks are moving, alone or with others: moved by the mover itself or, while it moves none, by a
    /// drain.
    pub doing: Option<Doing>,
    /// The queue of data to be moved; while blocks move, as it was when the last of them were chosen.
    pub queue: Queue,
    /// Blocks of persistent memory that are in use, in percent.
    pub usage: f64,
    /// The usage above which cold blocks move down.
    pub threshold: f64,
    /// The usage above which the logs of files are compacted.
    pub log_threshold: u8,
    /// Logs that were made smaller, since the mount; a file counts each time.
    pub logs_compacted: u64,
    /// Logs that went to a tier, counted in the same way.
    pub logs_moved: u64,
    /// Bytes of persistent memory that both have freed.
    pub log_bytes_freed: u64,
    /// Bytes that moved because space was short, since the mount.
    pub moved: u64,
    /// Bytes that it moves in a second, at most.
    pub rate: Option<u64>,
    /// When it moves blocks by itself.
    pub hours: Hours,
    /// Outside its hours, when they begin again.
    pub next_window: Option<NextWindow>,
    /// Bytes that moved down, into DRAM, because they were read.
    pub lowered: u64,
    /// Bytes that moved up because they were read.
    pub raised: u64,
    /// Bytes that moved from tiers that are nearly full to slower ones.
    pub descended: u64,
    /// Bytes that were read from persistent memory since the mount, while there were tiers.
    pub read: u64,
    /// Bytes that were read from tiers, or from DRAM before them.
    pub read_below: u64,
    /// Bytes that were written to it.
    pub written: u64,
    /// Accesses of which it did not hear, because it was behind.
    pub unheard: u64,
    /// Operations that wait for room.
    pub waiting: u64,
    /// Whether files were synchronised as soon as was expected of them.
    pub synchronicity: Accuracy,
    /// Bytes of tiers in DRAM.
    pub cached: u64,
    /// Bytes of tiers that may be there.
    pub cache_capacity: u64,
    /// Bytes of DRAM that transfers of tiers have beside it, those of all file systems of this process.
    pub transfer_buffers: u64,
    /// How often reads of tiers hit or missed the page cache.
    pub pages: PageCounters,
    /// Why it moved nothing when it last tried.
    pub failure: Option<String>,
    /// Files that were told to move, and wait.
    pub told: u64,
    /// Why the last of them was refused, or stayed where it is.
    pub refused: Option<String>,
}

/// The phase of the mover, or the reason for idling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Blocks move.
    Moving,
    /// It was told to pause.
    Paused,
    /// No tier takes blocks: there is none, or all are missing, failing, or being drained.
    NoTier,
    /// It is outside its hours.
    OutsideHours,
    /// Nothing could be moved when it last tried.
    Failed,
    /// Usage is below the threshold.
    BelowThreshold,
    /// As much was moved as the limit allows for now.
    Limited,
    /// There is something to move, or to look for, and it begins soon.
    Beginning,
    /// Every file that could move is too young.
    Young,
    /// Nothing that is in use can move.
    Nothing,
}

impl Phase {
    /// Its name for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Moving => "moving",
            Phase::Paused => "paused",
            Phase::NoTier => "no_tier",
            Phase::OutsideHours => "outside_hours",
            Phase::Failed => "failed",
            Phase::BelowThreshold => "below_threshold",
            Phase::Limited => "limited",
            Phase::Beginning => "beginning",
            Phase::Young => "young",
            Phase::Nothing => "nothing",
        }
    }
}

/// A file whose blocks are moving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doing {
    /// The number of its inode; 0 where a drain looks for files.
    pub inode: u64,
    /// Files that move together, this one the first of them; none where a drain looks for files.
    pub files: u64,
    /// Why they move.
    pub way: Way,
}

/// Why blocks move, and so where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Down, because space is short.
    Space,
    /// Down, into DRAM, because they are read.
    Lowered,
    /// Up, because they are read.
    Raised,
    /// From a tier that is nearly full to a slower one.
    Descended,
    /// To where the file was told to be.
    Told,
    /// They do not: the log of the file is compacted, because space is short.
    Compacted,
    /// Away from a tier that is drained.
    Drained {
        /// Its number.
        tier: u8,
        /// Bytes that were on it when these files were looked for.
        left: u64,
    },
}

impl Way {
    /// Its name for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Way::Space => "space",
            Way::Lowered => "lowered",
            Way::Raised => "raised",
            Way::Descended => "descended",
            Way::Told => "told",
            Way::Compacted => "compacted",
            Way::Drained { .. } => "drained",
        }
    }

    /// The tier that is drained, and bytes that are on it.
    pub fn drained(self) -> Option<(u8, u64)> {
        match self {
            Way::Drained { tier, left } => Some((tier, left)),
            _ => None,
        }
    }
}

/// How hot the files are that the mover knows, by where it saw them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Temperature {
    /// Those with blocks on persistent memory, by when they were written.
    pub memory: Ages,
    /// Those that were read from tiers, by when they were.
    pub below: Ages,
    /// Those that were read or written last: of each kind a few, the hottest first.
    pub hottest: Vec<HotFile>,
}

/// Files by age; the limits are [`AGES_S`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ages {
    /// How many.
    pub files: [u64; AGES_S.len() + 1],
    /// Bytes that they have, wherever these are.
    pub bytes: [u64; AGES_S.len() + 1],
}

/// A file that is hot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotFile {
    /// The number of its inode.
    pub inode: u64,
    /// Bytes that it has.
    pub size: u64,
    /// It was read from a tier, or from DRAM before it.
    pub is_below: bool,
    /// Milliseconds since its blocks were read, on average; of one that just moved, since then.
    pub read_ago_ms: Option<u64>,
    /// Milliseconds since its blocks were written, on average.
    pub written_ago_ms: Option<u64>,
}

impl HotFile {
    fn age_ms(&self) -> u64 {
        self.read_ago_ms.unwrap_or(u64::MAX).min(self.written_ago_ms.unwrap_or(u64::MAX))
    }
}

impl Ages {
    fn add(&mut self, age_ms: u64, bytes: u64) {
        let at = AGES_S.iter().position(|limit| age_ms < limit * 1000).unwrap_or(AGES_S.len());
        self.files[at] += 1;
        self.bytes[at] = self.bytes[at].saturating_add(bytes);
    }
}

/// The moves in progress: at most one that keeps PM from being full, and one drain of each tier.
#[derive(Debug, Default)]
pub(crate) struct AllDoing {
    keeper: Option<Doing>,
    drains: BTreeMap<u8, Doing>,
}

impl AllDoing {
    fn first(&self) -> Option<Doing> {
        self.keeper.or_else(|| self.drains.values().next().copied())
    }
}

/// Blocks of a file move as long as this lives.
pub(crate) struct Moving<'f> {
    all: &'f Mutex<AllDoing>,
    drained: Option<u8>,
}

impl<'f> Moving<'f> {
    fn begin(all: &'f Mutex<AllDoing>, doing: Doing) -> Moving<'f> {
        let drained = match doing.way {
            Way::Drained { tier, .. } => {
                all.lock().drains.insert(tier, doing);
                Some(tier)
            }
            _ => {
                all.lock().keeper = Some(doing);
                None
            }
        };
        Moving { all, drained }
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        match self.drained {
            Some(tier) => drop(all.drains.remove(&tier)),
            None => all.keeper = None,
        }
    }
}

/// Files by when they were written, or read, and the hottest of them.
fn look(heats: &Heats, is_below: bool, now_ms: u64) -> (Ages, Vec<HotFile>) {
    let mut ages = Ages::default();
    let mut files = Vec::new();
    let ago = |time_ms: u64| (time_ms > 0).then(|| now_ms.saturating_sub(time_ms));
    for (id, heat, blocks) in heats.known() {
        let size = blocks.saturating_mul(BLOCK_SIZE);
        let (read_ago_ms, written_ago_ms) = (ago(heat.read_ms), ago(heat.modified_ms));
        let age_ms = if is_below { read_ago_ms } else { written_ago_ms };
        ages.add(age_ms.unwrap_or(u64::MAX), size);
        files.push(HotFile { inode: id.number, size, is_below, read_ago_ms, written_ago_ms });
    }
    if files.len() > HOTTEST {
        files.select_nth_unstable_by_key(HOTTEST, |file| (file.age_ms(), file.inode));
        files.truncate(HOTTEST);
    }
    (ages, files)
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Says of a file that its blocks move.
    pub(crate) fn begin(&self, doing: Doing) -> Moving<'_> {
        Moving::begin(&self.doing, doing)
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// The status of the mover.
    pub fn status(&self) -> MoverStatus {
        let is_too_full = self.is_too_full();
        let (read, written) = self.sink.traffic();
        let keeper = self.keeper.try_lock();
        let (is_idle, failure) = match &keeper {
            Some(keeper) => {
                let is_done = self.is_nothing_left(keeper) && !keeper.heats.is_any_resting();
                let is_told = !self.wishes.is_empty();
                let is_idle = !is_too_full || is_done || keeper.failure.is_some();
                (is_idle && !is_told && !self.is_descending(keeper), keeper.failure.clone())
            }
            None => (false, None),
        };
        let pages = self.tiers.pages();
        MoverStatus {
            paused: self.paused.load(Ordering::Relaxed),
            is_idle,
            phase: self.phase(keeper.as_deref()),
            doing: self.doing.lock().first(),
            queue: keeper.as_deref().map_or_else(|| self.queue.lock().clone(), |keeper| self.queue(keeper)),
            usage: self.usage(),
            threshold: self.threshold(),
            log_threshold: self.log_threshold(),
            logs_compacted: self.logs_compacted.load(Ordering::Relaxed),
            logs_moved: self.logs_moved.load(Ordering::Relaxed),
            log_bytes_freed: self.log_blocks_freed.load(Ordering::Relaxed) * BLOCK_SIZE,
            moved: self.moved.load(Ordering::Relaxed) * BLOCK_SIZE,
            lowered: self.lowered.load(Ordering::Relaxed) * BLOCK_SIZE,
            raised: self.raised.load(Ordering::Relaxed) * BLOCK_SIZE,
            descended: self.descended.load(Ordering::Relaxed) * BLOCK_SIZE,
            hours: self.settings.now().options.hours,
            next_window: self.settings.now().next_window(self.sink.time_ms()),
            rate: self.settings.rate(),
            read,
            read_below: self.sink.reads().1,
            written,
            unheard: self.sink.unheard(),
            waiting: self.waiting.load(Ordering::Relaxed),
            synchronicity: self.predictors.accuracy(),
            cached: pages.bytes(),
            cache_capacity: pages.capacity(),
            transfer_buffers: transfer_memory(),
            pages: pages.counters(),
            failure,
            told: self.wishes.len() as u64,
            refused: self.wishes.refused(),
        }
    }

    /// Whether no known or discoverable file is left to move, except files that are too young.
    fn is_nothing_left(&self, keeper: &Keeper) -> bool {
        // Samples left since the last tick may be of a file that can move.
        let is_heard = self.sink.is_empty() && self.sink.unheard() == keeper.unheard;
        keeper.walk.is_done() && keeper.heats.is_empty() && is_heard
    }

    fn phase(&self, keeper: Option<&Keeper>) -> Phase {
        match keeper {
            None => Phase::Moving,
            // Neither a pause nor the hours keep them.
            Some(_) if !self.wishes.is_empty() => {
                if self.is_limited() {
                    Phase::Limited
                } else {
                    Phase::Beginning
                }
            }
            Some(keeper) => self.phase_of_itself(keeper),
        }
    }

    /// The phase, or the reason for idling, without regard to requested placements.
    pub(crate) fn phase_of_itself(&self, keeper: &Keeper) -> Phase {
        if self.paused.load(Ordering::Relaxed) {
            Phase::Paused
        } else if self.usable().is_empty() {
            Phase::NoTier
        } else if !self.settings.now().is_in_hours(self.sink.time_ms()) {
            Phase::OutsideHours
        } else if keeper.failure.is_some() {
            Phase::Failed
        } else if !self.is_too_full() && self.is_descending(keeper) {
            if self.is_limited() { Phase::Limited } else { Phase::Beginning }
        } else if !self.is_too_full() {
            Phase::BelowThreshold
        } else if self.is_limited() {
            Phase::Limited
        } else if !self.is_nothing_left(keeper) {
            Phase::Beginning
        } else if keeper.heats.is_any_resting() {
            Phase::Young
        } else {
            Phase::Nothing
        }
    }

    /// How hot the files are that it knows; `None` while it moves blocks.
    pub fn temperature(&self) -> Option<Temperature> {
        let keeper = self.keeper.try_lock()?;
        let now_ms = self.sink.time_ms();
        let (memory, mut hottest) = look(&keeper.heats, false, now_ms);
        let (below, others) = look(&keeper.below, true, now_ms);
        drop(keeper);
        hottest.extend(others);
        hottest.sort_unstable_by_key(|file| (file.age_ms(), file.inode));
        Some(Temperature { memory, below, hottest })
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::sync::Mutex;
    use nacre_engine::{BLOCK_SIZE, InodeId};

    use super::{AllDoing, Doing, HOTTEST, Moving, Way, look};
    use crate::watch::{Access, Heats, Sample};

    #[test]
    fn drains_show_beside_what_moves_by_itself() {
        let all = Mutex::new(AllDoing::default());
        let begin = |inode, way| Moving::begin(&all, Doing { inode, files: 1, way });
        let shown = || all.lock().first().map(|doing| doing.inode);
        let first = begin(10, Way::Drained { tier: 1, left: 0 });
        let second = begin(20, Way::Drained { tier: 2, left: 0 });
        assert_eq!(shown(), Some(10));
        let keeper = begin(30, Way::Space);
        assert_eq!(shown(), Some(30));
        // What ends takes nothing else with it.
        drop(first);
        assert_eq!(shown(), Some(30));
        drop(keeper);
        assert_eq!(shown(), Some(20));
        drop(second);
        assert_eq!(shown(), None);
    }

    #[test]
    fn files_are_told_apart_by_age_and_the_hottest_named() {
        let mut heats = Heats::new(1 << 10);
        let now_ms = 10_000_000;
        let ages_s = [1, 29, 30, 299, 300, 4000, 9999];
        for (number, age_s) in ages_s.into_iter().chain(5000..5100).enumerate() {
            let id = InodeId { number: number as u64 + 1, generation: 1, volume: 0 };
            let at_ms = now_ms - age_s * 1000;
            let access = Access::Written;
            heats.take_in(&Sample { id, access, start: 0, blocks: 2, size: 2, modified_ms: at_ms, at_ms });
        }
        let (ages, hottest) = look(&heats, false, now_ms);
        assert_eq!(ages.files, [2, 2, 1, 102]);
        assert_eq!(ages.bytes.iter().sum::<u64>(), 107 * 2 * BLOCK_SIZE);
        let mut numbers: Vec<u64> = hottest.iter().map(|file| file.inode).collect();
        numbers.sort_unstable();
        assert_eq!(numbers.len(), HOTTEST);
        assert_eq!(numbers[..6], [1, 2, 3, 4, 5, 6], "{numbers:?}");
        assert!(hottest.iter().all(|file| file.read_ago_ms.is_none() && file.written_ago_ms.is_some()));
        // A file may have more blocks than have a number of bytes: it ends where no device does.
        heats.found(InodeId { number: 1 << 20, generation: 1, volume: 0 }, 1 << 53, now_ms);
        assert_eq!(look(&heats, false, now_ms).1.iter().map(|file| file.size).max(), Some(u64::MAX));
        heats.forget(InodeId { number: 1 << 20, generation: 1, volume: 0 });
        // As files that are read from tiers, none of them was ever read.
        assert_eq!(look(&heats, true, now_ms).0.files, [0, 0, 0, 107]);
    }
}
