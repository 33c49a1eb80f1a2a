//! The status of the mover: its phase, the reason for waiting, and the temperature of the files that it knows.
//!
//! A status query never waits. While blocks move, information that only the moving thread has is left out, or dates
//! from when the blocks were chosen.

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, InodeId, Tiered};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, transfer_memory};
use nacre_policy::Hours;
use nacre_policy::migration::heat::AccessStatistics;
use nacre_tiers::PageCounters;

use crate::admin::hints::MEMORY;
use crate::engine::Mover;
use crate::engine::progress::{Doing, Phase, Queue};
use crate::engine::state::State;
use crate::settings::NextWindow;
use crate::stats::predictors::Accuracy;

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
    /// Blocks of PM that are in use, in percent.
    pub usage: f64,
    /// The usage above which cold blocks move down.
    pub threshold: f64,
    /// The usage above which the logs of files are compacted.
    pub log_threshold: u8,
    /// Logs that were made smaller, since the mount; a file counts each time.
    pub logs_compacted: u64,
    /// Logs that went to a tier, counted in the same way.
    pub logs_moved: u64,
    /// Bytes of PM that both have freed.
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
    /// Bytes that left PM by anti-caching.
    pub evicted: u64,
    /// Bytes that came up again by anti-caching, because they were read.
    pub promoted: u64,
    /// Blocks on PM that anti-caching knows: in its list, or found by a walk.
    pub listed_blocks: u64,
    /// Bytes of data on PM, and the bytes that it holds with anti-caching, where that is on.
    pub data: (u64, Option<u64>),
    /// Bytes that were read from PM since the mount, while there were tiers.
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

/// How hot the files are that the mover knows, by where it saw them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Temperature {
    /// Those with blocks on PM, by when they were written.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotFile {
    /// The number of its inode.
    pub inode: u64,
    /// Bytes that it has.
    pub size: u64,
    /// Where it has data, as `pm,1`; empty where that cannot be told.
    pub on: String,
    /// It has data on tiers; where that cannot be told, it was read from one.
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

/// Files by when they were written, or read, and the hottest of them.
fn look(statistics: &AccessStatistics<InodeId>, is_below: bool, now_ms: u64) -> (Ages, Vec<HotFile>) {
    let mut ages = Ages::default();
    let mut files = Vec::new();
    let ago = |time_ms: u64| (time_ms > 0).then(|| now_ms.saturating_sub(time_ms));
    for (id, heat, blocks) in statistics.known() {
        let size = blocks.saturating_mul(BLOCK_SIZE);
        let (read_ago_ms, written_ago_ms) = (ago(heat.read_ms), ago(heat.modified_ms));
        let age_ms = if is_below { read_ago_ms } else { written_ago_ms };
        ages.add(age_ms.unwrap_or(u64::MAX), size);
        let on = String::new();
        files.push(HotFile { inode: id.number, size, on, is_below, read_ago_ms, written_ago_ms });
    }
    if files.len() > HOTTEST {
        files.select_nth_unstable_by_key(HOTTEST, |file| (file.age_ms(), file.inode));
        files.truncate(HOTTEST);
    }
    (ages, files)
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// See [`TieredFs::status`](crate::TieredFs::status).
    pub(crate) fn status(&self) -> MoverStatus {
        let has_excess = self.has_excess();
        let (read, written) = self.stats.samples.traffic();
        let state = self.state_at_rest();
        let (is_idle, failure) = match &state {
            Some(state) => {
                let is_done = self.is_nothing_left(state) && !self.is_any_young(state);
                let is_told = !self.engine.hints.is_empty();
                let is_idle = !has_excess || is_done || state.failure.is_some();
                (is_idle && !is_told && !self.is_rebalancing(state), state.failure.clone())
            }
            None => (false, None),
        };
        let pages = self.places.tiers.pages();
        MoverStatus {
            paused: self.engine.paused.load(Ordering::Relaxed),
            is_idle,
            phase: self.phase(state.as_deref()),
            doing: self.engine.doing.lock().first(),
            queue: state
                .as_deref()
                .map_or_else(|| self.engine.queue.lock().clone(), |state| self.queue(state)),
            usage: self.places.usage(),
            threshold: self.threshold(),
            log_threshold: self.places.log_threshold(),
            logs_compacted: self.engine.counts.logs_compacted.load(Ordering::Relaxed),
            logs_moved: self.engine.counts.logs_moved.load(Ordering::Relaxed),
            log_bytes_freed: self.engine.counts.log_blocks_freed.load(Ordering::Relaxed) * BLOCK_SIZE,
            moved: self.engine.counts.moved.load(Ordering::Relaxed) * BLOCK_SIZE,
            lowered: self.engine.counts.lowered.load(Ordering::Relaxed) * BLOCK_SIZE,
            raised: self.engine.counts.raised.load(Ordering::Relaxed) * BLOCK_SIZE,
            descended: self.engine.counts.descended.load(Ordering::Relaxed) * BLOCK_SIZE,
            evicted: self.engine.counts.evicted.load(Ordering::Relaxed) * BLOCK_SIZE,
            promoted: self.engine.counts.promoted.load(Ordering::Relaxed) * BLOCK_SIZE,
            listed_blocks: state.as_deref().map_or(0, |state| self.known_blocks(state)),
            data: self.data_and_threshold(),
            hours: self.places.settings.now().options.hours,
            next_window: self.places.settings.now().next_window(self.stats.samples.time_ms()),
            rate: self.places.settings.rate(),
            read,
            read_below: self.stats.samples.reads().1,
            written,
            unheard: self.stats.samples.lost(),
            waiting: self.places.waiting.load(Ordering::Relaxed),
            synchronicity: self.stats.predictors.accuracy(),
            cached: pages.bytes(),
            cache_capacity: pages.capacity(),
            transfer_buffers: transfer_memory(),
            pages: pages.counters(),
            failure,
            told: self.engine.hints.len() as u64,
            refused: self.engine.hints.refused(),
        }
    }

    /// Blocks on PM that anti-caching knows. Removed ones may be in its list, and used ones count twice.
    fn known_blocks(&self, state: &State) -> u64 {
        state.anticache.len().min(self.places.layout.pm_use().data)
    }

    /// Bytes of data on PM, and those that it holds with anti-caching.
    fn data_and_threshold(&self) -> (u64, Option<u64>) {
        let threshold = self.places.settings.now().anticache_blocks(self.places.layout.stat().blocks);
        (self.places.layout.pm_use().data * BLOCK_SIZE, threshold.map(|blocks| blocks * BLOCK_SIZE))
    }

    /// The state, unless blocks move.
    fn state_at_rest(&self) -> Option<MutexGuard<'_, State>> {
        self.engine.state.try_lock().filter(|state| !state.in_flight.is_any())
    }

    /// Whether blocks are to leave PM now, and may: by anti-caching, or by the rules that it replaces.
    fn has_excess(&self) -> bool {
        if self.places.settings.has_anticache() {
            return self.places.has_tiers() && self.may_move() && self.above_threshold().is_some();
        }
        self.is_too_full()
    }

    /// Whether blocks wait until they are old enough.
    fn is_any_young(&self, state: &State) -> bool {
        !self.places.settings.has_anticache() && state.tpfs.on_pm.is_any_in_backoff()
    }

    /// Whether no known or discoverable file is left to move, except files that are too young.
    fn is_nothing_left(&self, state: &State) -> bool {
        // Samples left since the last tick may be of a file that can move.
        let is_heard = self.stats.samples.is_empty() && self.stats.samples.lost() == state.lost;
        if self.places.settings.has_anticache() {
            let is_known = state.anticache.is_empty() && self.engine.allocated.lock().is_empty();
            return is_known && !state.anticache.is_incomplete() && is_heard;
        }
        state.tpfs.scan.is_done() && state.tpfs.on_pm.is_empty() && is_heard
    }

    fn phase(&self, state: Option<&State>) -> Phase {
        match state {
            None => Phase::Moving,
            // Neither a pause nor the hours keep them.
            Some(_) if !self.engine.hints.is_empty() => {
                if self.is_limited() {
                    Phase::Limited
                } else {
                    Phase::Beginning
                }
            }
            Some(state) => self.phase_of_itself(state),
        }
    }

    /// The phase, or the reason for idling, without regard to requested placements.
    pub(crate) fn phase_of_itself(&self, state: &State) -> Phase {
        let has_excess = self.has_excess();
        if self.engine.paused.load(Ordering::Relaxed) {
            Phase::Paused
        } else if self.places.usable().is_empty() {
            Phase::NoTier
        } else if !self.is_in_hours() {
            Phase::OutsideHours
        } else if state.failure.is_some() {
            Phase::Failed
        } else if !has_excess && self.is_rebalancing(state) {
            if self.is_limited() { Phase::Limited } else { Phase::Beginning }
        } else if !has_excess {
            match self.places.settings.has_anticache() {
                true => Phase::BelowAnticache,
                false => Phase::BelowThreshold,
            }
        } else if self.is_limited() {
            Phase::Limited
        } else if !self.is_nothing_left(state) {
            Phase::Beginning
        } else if self.is_any_young(state) {
            Phase::Young
        } else {
            Phase::Nothing
        }
    }

    /// See [`TieredFs::temperature`](crate::TieredFs::temperature).
    pub(crate) fn temperature(&self) -> Option<Temperature> {
        let state = self.state_at_rest()?;
        let now_ms = self.stats.samples.time_ms();
        let (memory, mut hottest) = look(&state.tpfs.on_pm, false, now_ms);
        let (below, others) = look(&state.tpfs.on_tiers, true, now_ms);
        drop(state);
        hottest.extend(others);
        hottest.sort_unstable_by_key(|file| (file.age_ms(), file.inode));
        hottest.iter_mut().for_each(|file| self.find_hot(file));
        Some(Temperature { memory, below, hottest })
    }

    /// Looks up where a hot file has its data. The list that has the file knows only how it was used.
    fn find_hot(&self, file: &mut HotFile) {
        let Ok(node) = self.places.layout.node_by_number(file.inode) else { return };
        let on = match self.places.layout.log_image_at(&node) {
            // All of it is there, and a look-up might wait for the device.
            Some(image) => image.tier.to_string(),
            None => {
                let on = self.places.whereabouts(&node).ok();
                on.and_then(|on| String::from_utf8(on).ok()).unwrap_or_default()
            }
        };
        if !on.is_empty() {
            file.is_below = on != MEMORY;
            file.on = on;
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::{BLOCK_SIZE, InodeId};

    use super::{HOTTEST, look};
    use nacre_policy::migration::heat::AccessStatistics;
    use nacre_policy::migration::{Access, AccessKind};

    #[test]
    fn files_are_told_apart_by_age_and_the_hottest_named() {
        let mut heats = AccessStatistics::new(1 << 10, |id: InodeId| InodeId { generation: 0, ..id });
        let now_ms = 10_000_000;
        let ages_s = [1, 29, 30, 299, 300, 4000, 9999];
        for (number, age_s) in ages_s.into_iter().chain(5000..5100).enumerate() {
            let id = InodeId { number: number as u64 + 1, generation: 1, volume: 0 };
            let at_ms = now_ms - age_s * 1000;
            let kind = AccessKind::Written;
            heats.observe(&Access {
                file: id,
                kind,
                start: 0,
                blocks: 2,
                size: 2,
                modified_ms: at_ms,
                at_ms,
            });
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
