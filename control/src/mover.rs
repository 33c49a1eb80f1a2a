//! The mover of a mount and its access statistics, as it reports them. A field that an older mount does not report is
//! zero.

use serde::{Deserialize, Serialize};

/// The state of the mover's own work; `doing` includes drains.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoverInfo {
    /// It moves blocks only for direct reclaim.
    pub paused: bool,
    /// Nothing is to be moved now, or nothing can be.
    pub idle: bool,
    /// The phase, or the reason for idling: `moving`, `paused`, `no_tier`, `outside_hours`, `failed`,
    /// `below_threshold`, `below_anticache`, `limited`, `beginning`, `young` or `nothing`.
    pub phase: String,
    /// The file whose blocks are moving, alone or with others: moved by the mover itself or, while it moves none, by a
    /// drain.
    pub doing: Option<DoingInfo>,
    /// The queue of data to be moved; while blocks move, as it was when the last of them were chosen.
    pub queue: QueueInfo,
    /// Operations that wait for room.
    pub waiting: u64,
    /// Blocks of PM that are in use, in percent.
    pub usage_percent: f64,
    /// The usage above which blocks that were not written for long move down, without anti-caching.
    pub threshold_percent: f64,
    /// The usage above which the logs of files that were not written for long are compacted.
    pub log_threshold_percent: u8,
    /// Logs that became smaller by that, since the file system was opened; a file counts each time.
    pub logs_compacted: u64,
    /// Logs that went to the tier that their file is on, counted in the same way.
    pub logs_moved: u64,
    /// Bytes of PM that both freed.
    pub log_bytes_freed: u64,
    /// Bytes that it moved because space was short, since the file system was opened.
    pub moved: u64,
    /// Bytes that it moved down, into DRAM, because they were read.
    pub lowered: u64,
    /// Bytes that it moved up because they were read.
    pub raised: u64,
    /// Bytes that it moved from tiers that are nearly full to slower ones.
    pub descended: u64,
    /// Bytes that left PM by anti-caching.
    pub evicted: u64,
    /// Bytes that came up again by anti-caching, because they were read.
    pub promoted: u64,
    /// Blocks on PM that anti-caching knows: in its list, or found by a walk; 0 while blocks move.
    pub listed_blocks: u64,
    /// Bytes of data on PM.
    pub data: u64,
    /// Bytes of data that PM holds with anti-caching; none without it.
    pub anticache: Option<u64>,
    /// Bytes that it moves in a second, at most.
    pub rate: Option<u64>,
    /// The hours in which it moves blocks by itself, as `22:00-06:00`; none when it always does.
    pub hours: Option<String>,
    /// Outside its hours, when the next window begins, in milliseconds since 1970.
    pub next_window_ms: Option<u64>,
    /// The same in local time of the process, as `22:00`.
    pub next_window: Option<String>,
    /// Bytes that were read from PM since then, while there were tiers.
    pub read: u64,
    /// Bytes that were read from tiers, or from DRAM before them.
    pub read_below: u64,
    /// Bytes that were written to it.
    pub written: u64,
    /// Accesses of which it did not hear, because it was behind.
    pub unheard: u64,
    /// Intervals between syncs of a file that were as short, or as long, as the synchronicity predictor expected.
    pub synchronicity_right: u64,
    /// Those that were not.
    pub synchronicity_wrong: u64,
    /// Bytes of DRAM with blocks of tiers.
    pub cached: u64,
    /// Bytes of DRAM that there may be of them.
    pub cache_size: u64,
    /// Bytes of DRAM for transfers between DRAM and tiers, in progress or kept for the next ones: those of all file
    /// systems of this process.
    pub transfer_buffers: u64,
    /// Bytes of tiers that were read from DRAM.
    pub cache_hits: u64,
    /// Bytes that were not there.
    pub cache_misses: u64,
    /// Bytes that were given up for others.
    pub cache_evicted: u64,
    /// Why it moved nothing when it last tried.
    pub failure: Option<String>,
    /// Files that were told to move by their attribute `user.nacre.tier`, and wait.
    pub told: u64,
    /// Why the last of them was refused, or stayed where it is.
    pub refused: Option<String>,
}

/// A file whose blocks are moving.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DoingInfo {
    /// The number of its inode; 0 where a drain looks for files.
    pub inode: u64,
    /// The name of the file, where the command that asked has found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Files that move together, this one the first of them; 0 where a drain looks for files.
    pub files: u64,
    /// `space`: down, because space is short. `lowered`: into DRAM, because they are read. `raised`: up, because they
    /// are read. `descended`: from a tier that is nearly full to a slower one. `told`: to the requested placement of
    /// the file. `drained`: away from a tier that is drained. `compacted`: nowhere, its log is compacted.
    pub way: String,
    /// The number of the tier that is drained, where one is.
    pub tier: Option<u8>,
    /// Bytes that were on that tier when these files were looked for.
    pub left: Option<u64>,
}

/// The queue of data to be moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueInfo {
    /// Files that move when it is their turn, the coldest first. With anti-caching blocks leave, and no file waits.
    pub files: u64,
    /// Files of which some blocks are too young.
    pub young: u64,
    /// Accesses that the mover hears of when it looks.
    pub accesses: u64,
    /// It looks for files of which it knows nothing.
    pub looking: bool,
    /// The next items, up to eight of each kind, and why each waits.
    pub first: Vec<QueuedInfo>,
}

/// A file of which blocks wait to be moved, or a tier that waits to be drained on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuedInfo {
    /// The number of its inode; 0 of a tier.
    pub inode: u64,
    /// The name of the file, where the command that asked has found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes that the file has, wherever they are, or that are on the tier.
    pub bytes: u64,
    /// Why it is to move; see [`DoingInfo::way`].
    pub way: String,
    /// The number of the tier, of one.
    pub tier: Option<u8>,
    /// The cause for waiting. `turn`: those before it. `young`: its blocks are not old enough. `interrupted`: the drain
    /// must be resumed. `no_room`: PM has no room below the threshold. Otherwise the reason why the mover moves nothing
    /// by itself: `paused`, `no_tier`, `outside_hours`, `failed`, `below_threshold` or `limited`.
    pub why: String,
    /// How long its blocks are too young, in milliseconds.
    pub young_for_ms: Option<u64>,
}

/// How hot the files are that the mover knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemperatureInfo {
    /// The limits of ages, in seconds.
    pub ages_s: Vec<u64>,
    /// Files with blocks on PM, by when they were written.
    pub memory: AgesInfo,
    /// Files that were read from tiers, by when they were.
    pub below: AgesInfo,
    /// Files that were read or written last, the hottest first.
    pub hottest: Vec<HotFileInfo>,
}

/// Files younger than each limit, and last those that are older.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgesInfo {
    /// How many.
    pub files: Vec<u64>,
    /// Bytes that they have, wherever these are.
    pub bytes: Vec<u64>,
}

/// A file that is hot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotFileInfo {
    /// The number of its inode.
    pub inode: u64,
    /// The name of the file, where the command that asked has found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes that it has.
    pub size: u64,
    /// Where it has data, as `user.nacre.tier` says it: `pm,1`; empty where that cannot be told.
    pub on: String,
    /// It has data on tiers; where that cannot be told, it was read from one.
    pub below: bool,
    /// Milliseconds since its blocks were read, on average.
    pub read_ago_ms: Option<u64>,
    /// Milliseconds since its blocks were written, on average.
    pub written_ago_ms: Option<u64>,
}
