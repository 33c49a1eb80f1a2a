//! Compacting the logs of files, where persistent memory is nearly full (paper 002, section 5.6).
//!
//! Moving data makes more room, and sooner: logs come after it, above a threshold of their own that is higher than any of
//! those above which blocks move. Then all files are looked at that were not written for a while, and the layout makes the
//! log of each as small as it can be, a portion at a time; whoever works with a file goes first. Who finds no space for a
//! write, and nothing more to move, has the logs of all files compacted, as many of them as it takes.
//!
//! What a log says of where its file's blocks are goes to a tier then, where all of them are on that one.
//!
//! What of a file is cold does not matter here as it does where blocks move, since nothing becomes slower: it is only that
//! a log which grows on would have to be compacted again.

use std::collections::VecDeque;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, InodeId, Kind, LogImage, Result, TierRun, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::temperature::WHOLE_FILE_MS;

use crate::fs::MoverFs;
use crate::keeper::Keeper;
use crate::status::{Doing, Way};
use crate::walk::{AT_ONCE, PAUSE_MS, STEP, Trail};
use crate::watch::millis;

/// Names that are looked at for who waits for room, at the most; who comes next goes on from there.
const FOR_ROOM: usize = 4 * STEP;

/// The way through all files, for their logs.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    trail: Trail,
    /// Files that were found and are still to be compacted.
    found: VecDeque<InodeId>,
    /// A walk goes on, or its files are still to be compacted.
    is_walking: bool,
    /// When the last walk ended, in milliseconds since 1970.
    ended_ms: Option<u64>,
}

impl Logs {
    /// Whether another walk may find something at this time.
    fn is_worth_it(&self, now_ms: u64) -> bool {
        self.ended_ms.is_none_or(|ended_ms| now_ms.abs_diff(ended_ms) >= PAUSE_MS)
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// The usage above which logs are compacted, in percent.
    pub(crate) fn log_threshold(&self) -> u8 {
        self.log_threshold.load(Ordering::Relaxed) as u8
    }

    /// Whether logs are to be compacted of which nobody needs the space at once.
    fn compacts(&self) -> bool {
        self.layout.has_logs()
            && self.sink.is_on()
            && self.usage() > f64::from(self.log_threshold())
            && !self.paused.load(Ordering::Relaxed)
            && self.is_in_hours()
    }

    /// Compacts logs of files that are write-cold at this time, while usage is above the threshold.
    pub(crate) fn compact_cold(&self, keeper: &mut Keeper, now_ms: u64, goes_on: &dyn Fn() -> bool) {
        let is_cold = |modified_ms: u64| modified_ms.saturating_add(WHOLE_FILE_MS) < now_ms;
        while goes_on() && self.compacts() {
            if self.compact_next(&mut keeper.logs, now_ms, &is_cold).is_none() {
                return;
            }
        }
    }

    /// Compacts logs until so many blocks of persistent memory are available, as far as that comes about soon; gives the
    /// number of blocks that it freed.
    pub(crate) fn compact_until(&self, keeper: &mut Keeper, wanted: u64) -> u64 {
        let (mut freed, mut looked_at) = (0, 0);
        let now_ms = self.sink.time_ms();
        while self.layout.has_logs() && looked_at < FOR_ROOM && self.layout.stat().available < wanted {
            // Of files that were passed by for not being cold, and lately, too.
            let logs = &mut keeper.logs_for_room;
            let Some(went) = self.compact_next(logs, now_ms, &|_| true) else { break };
            freed += went.freed;
            looked_at += went.looked_at;
        }
        freed
    }

    /// Compacts the log of the next file, or looks for more; nothing when there is none, or was none lately.
    fn compact_next(&self, logs: &mut Logs, now_ms: u64, is_meant: &dyn Fn(u64) -> bool) -> Option<Went> {
        if let Some(id) = logs.found.pop_front() {
            // One that is gone, or cannot be read, has nothing for us; who uses it is told.
            return Some(Went { freed: self.compact(id, is_meant).unwrap_or(0), looked_at: 0 });
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
            logs.trail.begin(self.layout.id(&self.layout.root()));
        }
        let step = self.advance(&mut logs.trail, AT_ONCE)?;
        logs.found.extend(step.files);
        Some(Went { freed: 0, looked_at: step.names + 1 })
    }

    /// Compacts the log of a file whose time of modification is meant; gives the number of blocks that are free now.
    fn compact(&self, id: InodeId, is_meant: &dyn Fn(u64) -> bool) -> Result<u64> {
        let node = self.layout.node(id)?;
        if !is_meant(millis(self.layout.getattr(&node)?.mtime)) {
            return Ok(0);
        }
        let _doing = self.begin(Doing { inode: id.number, files: 1, way: Way::Compacted });
        let mut freed = 0;
        let mut begin = true;
        loop {
            let portion = self.layout.compact_log(&node, std::mem::take(&mut begin));
            if let Ok(portion) = &portion {
                freed += portion.freed;
            }
            if portion.map_or(true, |portion| portion.is_done) {
                break;
            }
        }
        if freed > 0 {
            self.logs_compacted.fetch_add(1, Ordering::Relaxed);
        }
        // What cannot be written to its tier stays where it is.
        let moved = self.move_log(&node).unwrap_or(0);
        if moved > 0 {
            self.logs_moved.fetch_add(1, Ordering::Relaxed);
        }
        self.log_blocks_freed.fetch_add(freed + moved, Ordering::Relaxed);
        Ok(freed + moved)
    }

    /// Moves what a file's log says of its blocks to the tier that all of them are on, where there is one; gives the number
    /// of blocks of persistent memory that are free now.
    pub fn move_log(&self, node: &L::Node) -> Result<u64> {
        let Some(image) = self.layout.log_image(node)? else { return Ok(0) };
        if self.usable().iter().all(|tier| tier.number != image.tier) {
            return Ok(0);
        }
        let blocks = image.content.len() as u64 / BLOCK_SIZE;
        let runs = self.layout.allocate_on(image.tier, None, blocks)?;
        let published = match runs[..] {
            [run] => self.write_image(node, &image, run),
            _ => Ok(None),
        };
        // After a media error nobody knows whether the file has it: then the blocks stay taken.
        if published.as_ref().map_or_else(|error| error.kind() != Kind::Media, Option::is_none) {
            runs.into_iter().for_each(|run| self.layout.free_on(run));
        }
        Ok(published?.unwrap_or(0))
    }

    fn write_image(&self, node: &L::Node, image: &LogImage, run: TierRun) -> Result<Option<u64>> {
        self.tiers.write(&[(run, &image.content)])?;
        let proof = self.tiers.flush([image.tier])?;
        self.layout.publish_log_image(node, image, run, proof)
    }
}

/// What came of a step.
struct Went {
    freed: u64,
    looked_at: usize,
}
