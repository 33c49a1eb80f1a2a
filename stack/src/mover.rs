//! The mover, which moves blocks by itself: its status, its statistics of files, and its settings.

use nacre_control::{
    AgesInfo, DoingInfo, HotFileInfo, MoverInfo, QueueInfo, QueuedInfo, TemperatureInfo, TrafficInfo,
};
use nacre_engine::Result;
use nacre_mover::{Ages, Cause, Doing, HotFile, MoverStatus, Queue, Queued, Temperature};
use nacre_tiers::TierTraffic;

use crate::fs::FileSystem;

/// Accesses of a tier's device since the file system was opened.
pub(crate) fn traffic_of(traffic: TierTraffic) -> TrafficInfo {
    let TierTraffic { reads, read_bytes, writes, written_bytes } = traffic;
    TrafficInfo { reads, read: read_bytes, writes, written: written_bytes }
}

fn mover_info(status: MoverStatus) -> MoverInfo {
    let doing = |Doing { inode, files, way }: Doing| {
        let (tier, left) = way.drained().unzip();
        DoingInfo { inode, name: None, files, way: way.as_str().to_owned(), tier, left }
    };
    MoverInfo {
        paused: status.paused,
        idle: status.is_idle,
        phase: status.phase.as_str().to_owned(),
        doing: status.doing.map(doing),
        queue: queue_info(status.queue),
        waiting: status.waiting,
        usage_percent: status.usage,
        threshold_percent: status.threshold,
        log_threshold_percent: status.log_threshold,
        logs_compacted: status.logs_compacted,
        logs_moved: status.logs_moved,
        log_bytes_freed: status.log_bytes_freed,
        moved: status.moved,
        lowered: status.lowered,
        raised: status.raised,
        descended: status.descended,
        evicted: status.evicted,
        promoted: status.promoted,
        listed_blocks: status.listed_blocks,
        data: status.data.0,
        anticache: status.data.1,
        rate: status.rate,
        hours: (!status.hours.is_always()).then(|| status.hours.to_string()),
        next_window_ms: status.next_window.map(|next| next.at_ms),
        next_window: status.next_window.map(|next| next.minute.to_string()),
        read: status.read,
        read_below: status.read_below,
        written: status.written,
        unheard: status.unheard,
        synchronicity_right: status.synchronicity.right,
        synchronicity_wrong: status.synchronicity.wrong,
        cached: status.cached,
        cache_size: status.cache_capacity,
        transfer_buffers: status.transfer_buffers,
        cache_hits: status.pages.hit_bytes,
        cache_misses: status.pages.missed_bytes,
        cache_evicted: status.pages.evicted_bytes,
        failure: status.failure,
        told: status.told,
        refused: status.refused,
    }
}

fn queue_info(queue: Queue) -> QueueInfo {
    let Queue { files, young, accesses, is_looking, first } = queue;
    let queued = |Queued { inode, bytes, way, cause }: Queued| QueuedInfo {
        inode,
        name: None,
        bytes,
        way: way.as_str().to_owned(),
        tier: way.drained().map(|(tier, _)| tier),
        why: cause.as_str().to_owned(),
        young_for_ms: match cause {
            Cause::Young(ms) => Some(ms),
            _ => None,
        },
    };
    QueueInfo { files, young, accesses, looking: is_looking, first: first.into_iter().map(queued).collect() }
}

fn temperature_info(temperature: Temperature) -> TemperatureInfo {
    let ages = |ages: Ages| AgesInfo { files: ages.files.to_vec(), bytes: ages.bytes.to_vec() };
    let file = |file: HotFile| {
        let HotFile { inode, size, on, is_below, read_ago_ms, written_ago_ms } = file;
        HotFileInfo { inode, name: None, size, on, below: is_below, read_ago_ms, written_ago_ms }
    };
    TemperatureInfo {
        ages_s: nacre_mover::AGES_S.to_vec(),
        memory: ages(temperature.memory),
        below: ages(temperature.below),
        hottest: temperature.hottest.into_iter().map(file).collect(),
    }
}

impl FileSystem {
    /// The status of the mover; none if there is no mover.
    pub fn mover_status(&self) -> Option<MoverInfo> {
        let mover = self.mover().ok()?;
        Some(mover_info(mover.status()))
    }

    /// How hot the files are that the mover knows; none where there is no mover, and while it moves blocks. It looks at
    /// all of them, and is asked once in a second at the most.
    pub fn temperature(&self) -> Option<TemperatureInfo> {
        self.mover().ok()?.temperature().map(temperature_info)
    }

    /// Has the mover move blocks only for direct reclaim, or as usual again.
    pub fn pause_mover(&self, paused: bool) -> Result<()> {
        self.mover().map(|mover| mover.pause(paused))
    }

    /// Sets the bytes that the mover moves in a second, at most; direct reclaim is exempt.
    pub fn limit_mover(&self, rate: Option<u64>) -> Result<()> {
        self.mover().map(|mover| mover.limit(rate))
    }
}
