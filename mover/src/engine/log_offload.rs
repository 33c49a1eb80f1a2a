//! Compacting the logs of files, where PM is nearly full (paper 002, section 5.6).
//!
//! Moving data makes more room, and sooner. Logs are therefore compacted only above a threshold of their own, which is
//! higher than any of those above which blocks move. Then all files are looked at that were not written for a while,
//! and the layout compacts the log of each, a portion at a time. Operations on the file go first. If a write finds no
//! space, and nothing more can move, the logs of all files are compacted, as many of them as it takes.
//!
//! The extent map in a log is then offloaded to a tier, if all blocks of the file are on that one.
//!
//! The log of a file is compacted even where parts of the file are warm, since nothing becomes slower: a log that grows
//! on would only have to be compacted again.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Error, InodeId, LogImage, Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::temperature::WHOLE_FILE_MS;

use crate::engine::Mover;
use crate::engine::budget::Budget;
use crate::engine::executor::{Taken, Why};
use crate::engine::progress::{Doing, Way};
use crate::engine::reclaim::Flight;
use crate::engine::scan::STEP;
use crate::engine::state::{Logs, State};
use crate::engine::trail::AT_ONCE;
use crate::stats::samples::millis;

/// Names that are looked at for one operation that waits for room, at most; the next one goes on from there.
const FOR_ROOM: usize = 4 * STEP;

/// Files whose logs go to tiers together: a flush for all of them.
const TOGETHER: usize = 64;

/// Bytes of images after which no further one is made before these are written. One may be larger.
const MOST_BYTES: usize = 16 << 20;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Whether logs are to be compacted whose space is not needed at once.
    fn compacts(&self) -> bool {
        self.places.layout.has_logs()
            && self.places.has_tiers()
            && self.places.usage() > f64::from(self.places.log_threshold())
            && !self.engine.paused.load(Ordering::Relaxed)
            && self.is_in_hours()
    }

    /// Compacts logs of files that are write-cold at this time, while usage is above the threshold.
    pub(crate) fn compact_cold(&self, state: &mut State, now_ms: u64, budget: &Budget<'_>) {
        let is_cold = |modified_ms: u64| modified_ms.saturating_add(WHOLE_FILE_MS) < now_ms;
        while budget.goes_on() && self.compacts() {
            match self.next_logs(&mut state.logs, now_ms) {
                Some(LogStep::Files(files)) => drop(self.compact_some(files, &is_cold)),
                Some(LogStep::Scanned(_)) => {}
                None => return,
            }
        }
    }

    /// Compacts logs until so many blocks of PM can be used, as far as that comes about soon; gives the number of blocks
    /// that it freed. The state is locked to take files, and not while their logs are compacted and offloaded.
    pub(crate) fn compact_until(&self, wanted: u64, why: Why) -> u64 {
        let (mut freed, mut looked_at) = (0, 0);
        let now_ms = self.stats.samples.time_ms();
        let mut state = self.engine.state.lock();
        while self.places.layout.has_logs() && looked_at < FOR_ROOM && self.room_here(why) < wanted {
            // Of files that were passed by for not being cold, and lately, too.
            match self.next_logs(&mut state.logs_for_room, now_ms) {
                Some(LogStep::Files(files)) => {
                    let flight = Flight::begin(self.engine, &mut state, 0);
                    drop(state);
                    freed += self.compact_some(files, &|_| true);
                    state = flight.land();
                }
                Some(LogStep::Scanned(names)) => looked_at += names,
                // Blocks in flight may be room enough.
                None if state.in_flight.is_any() => self.engine.landed.wait(&mut state),
                None => break,
            }
        }
        freed
    }

    /// The next files of which the logs may be compacted, or a step of the search for more; nothing when there is none,
    /// or was none lately.
    fn next_logs(&self, logs: &mut Logs, now_ms: u64) -> Option<LogStep> {
        if !logs.found.is_empty() {
            return Some(LogStep::Files(logs.found.drain(..logs.found.len().min(TOGETHER)).collect()));
        }
        if !logs.trail.goes_on() {
            if std::mem::take(&mut logs.is_walking) {
                logs.ended_ms = Some(now_ms);
                return None;
            }
            if !logs.is_worth_it(now_ms) {
                return None;
            }
            logs.is_walking = true;
            logs.trail.begin(self.places.layout.id(&self.places.layout.root()));
        }
        let step = self.places.advance(&mut logs.trail, AT_ONCE)?;
        logs.found.extend(step.files);
        Some(LogStep::Scanned(step.names + 1))
    }

    /// Compacts the logs of files whose modification time `is_meant` accepts, and offloads them to their tiers; gives
    /// the number of blocks that are free now.
    fn compact_some(&self, ids: Vec<InodeId>, is_meant: &dyn Fn(u64) -> bool) -> u64 {
        let (mut freed, mut nodes) = (0, Vec::new());
        for id in ids {
            // A removed or unreadable file has nothing to compact; its user gets the error.
            if let Ok(node) = self.places.layout.node(id)
                && self.places.layout.getattr(&node).is_ok_and(|attr| is_meant(millis(attr.mtime)))
            {
                freed += self.compact(id, &node);
                nodes.push(node);
            }
        }
        // A log that cannot be written to its tier stays where it is.
        let moved: Vec<u64> =
            self.move_logs(&nodes).into_iter().flatten().filter(|freed| *freed > 0).collect();
        self.engine.counts.logs_moved.fetch_add(moved.len() as u64, Ordering::Relaxed);
        freed += moved.iter().sum::<u64>();
        self.engine.counts.log_blocks_freed.fetch_add(freed, Ordering::Relaxed);
        freed
    }

    /// Compacts the log of a file; gives the number of blocks that are free now.
    fn compact(&self, id: InodeId, node: &L::Node) -> u64 {
        let _doing = self.begin(Doing { inode: id.number, files: 1, way: Way::Compacted });
        let mut freed = 0;
        let mut begin = true;
        loop {
            let portion = self.places.layout.compact_log(node, std::mem::take(&mut begin));
            if let Ok(portion) = &portion {
                freed += portion.freed;
            }
            if portion.map_or(true, |portion| portion.is_done) {
                break;
            }
        }
        if freed > 0 {
            self.engine.counts.logs_compacted.fetch_add(1, Ordering::Relaxed);
        }
        freed
    }

    /// See [`TieredFs::move_log`](crate::TieredFs::move_log).
    pub(crate) fn move_log(&self, node: &L::Node) -> Result<u64> {
        self.move_logs(std::slice::from_ref(node)).pop().unwrap_or(Ok(0))
    }

    /// The same for several. One that fails does so alone, unless the device does.
    fn move_logs(&self, nodes: &[L::Node]) -> Vec<Result<u64>> {
        let mut moved = Vec::new();
        while moved.len() < nodes.len() {
            moved.extend(self.move_some_logs(&nodes[moved.len()..]));
        }
        moved
    }

    /// The first of them, with one write and one flush for all that this moves: no more than DRAM is for.
    fn move_some_logs(&self, nodes: &[L::Node]) -> Vec<Result<u64>> {
        let usable = self.places.usable();
        let may_be_on = |tier: u8| usable.iter().any(|one| one.number == tier);
        let imaged = |node: &L::Node| {
            let Some(image) = self.places.layout.log_image(node, &may_be_on)? else { return Ok(None) };
            let blocks = image.content.len() as u64 / BLOCK_SIZE;
            let taken = Taken::new(self.places, self.places.take_on(image.tier, None, blocks, false)?);
            // An image is in one piece; where there is none so large the log stays.
            Ok((taken.runs().len() == 1).then_some(Imaged { image, taken }))
        };
        let (mut images, mut bytes) = (Vec::new(), 0);
        for node in nodes {
            let image: Result<Option<Imaged<'_, L, D>>> = imaged(node);
            bytes += image.iter().flatten().map(|one| one.image.content.len()).sum::<usize>();
            images.push(image);
            if bytes >= MOST_BYTES {
                break;
            }
        }
        let there = images.iter().flatten().flatten();
        let pieces: Vec<_> = there.map(|one| (one.taken.runs()[0], &one.image.content[..])).collect();
        let mut tiers: Vec<u8> = pieces.iter().map(|(run, _)| run.tier).collect();
        tiers.sort_unstable();
        tiers.dedup();
        let written = self.places.tiers.write(&pieces).and_then(|()| self.places.tiers.flush(tiers));
        drop(pieces);
        let published = nodes.iter().zip(images).map(|(node, image)| match image? {
            Some(one) => self.commit_image(node, one, &written),
            None => Ok(0),
        });
        published.collect()
    }

    fn commit_image(
        &self,
        node: &L::Node,
        image: Imaged<'_, L, D>,
        written: &Result<Durable>,
    ) -> Result<u64> {
        let Imaged { image, taken } = image;
        let proof = match written {
            Ok(proof) => proof.again(),
            Err(error) => return Err(Error::new(error.kind()).object(error.object_name().to_owned())),
        };
        match self.places.layout.publish_log_image(node, &image, taken.runs()[0], proof) {
            Ok(Some(freed)) => {
                taken.keep();
                Ok(freed)
            }
            Ok(None) => Ok(0),
            Err(error) => Err(taken.keep_unless_unpublished(error)),
        }
    }
}

/// The image of a log, and blocks for it.
struct Imaged<'f, L: Tiered<Proof = Durable>, D: BlockDevice + 'static> {
    image: LogImage,
    taken: Taken<'f, L, D>,
}

/// A step of compaction.
enum LogStep {
    /// Files whose logs may be compacted.
    Files(Vec<InodeId>),
    /// So many names were looked at for more.
    Scanned(usize),
}
