//! The pool layout as the explorer sees it.

use std::sync::Arc;

use nacre_engine::{Error, Kind, Result, Timestamp};
use nacre_layout_pool::volumes::{self, NewVolume};
use nacre_layout_pool::{PoolFs, anatomy};
use nacre_media::{Pm as _, SimPm};
use uuid::Uuid;

use super::damage::with_damage;
use super::op::Twin;
use super::source::{Sources, Spot};
use super::subject::{Elsewhere, Harmless, Mistake, Registered, VolumeState, Volumes};
use super::tree::Ctime;
use super::volume_workloads::with_volumes;
use super::workload::Workload;

/// The pool layout.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pool;

/// The same with volumes that are made, removed, and mounted in turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolVolumes;

/// The files that store, flush or fence.
pub(super) static SOURCES: Sources = Sources::new(
    "layouts/pool/src",
    &[
        ("buddy.rs", include_str!("../../../layouts/pool/src/buddy.rs")),
        ("commit.rs", include_str!("../../../layouts/pool/src/commit.rs")),
        ("file.rs", include_str!("../../../layouts/pool/src/file.rs")),
        ("full.rs", include_str!("../../../layouts/pool/src/full.rs")),
        ("inode.rs", include_str!("../../../layouts/pool/src/inode.rs")),
        ("lanes.rs", include_str!("../../../layouts/pool/src/lanes.rs")),
        ("mend.rs", include_str!("../../../layouts/pool/src/mend.rs")),
        ("mkfs.rs", include_str!("../../../layouts/pool/src/mkfs.rs")),
        ("mount.rs", include_str!("../../../layouts/pool/src/mount.rs")),
        ("places.rs", include_str!("../../../layouts/pool/src/places.rs")),
        ("pools.rs", include_str!("../../../layouts/pool/src/pools.rs")),
        ("recover.rs", include_str!("../../../layouts/pool/src/recover.rs")),
        ("repair.rs", include_str!("../../../layouts/pool/src/repair.rs")),
        ("scrub.rs", include_str!("../../../layouts/pool/src/scrub.rs")),
        ("sets.rs", include_str!("../../../layouts/pool/src/sets.rs")),
        ("space.rs", include_str!("../../../layouts/pool/src/space.rs")),
        ("twin.rs", include_str!("../../../layouts/pool/src/twin.rs")),
    ],
);

const COMMIT_POINTS: [&str; 11] = [
    "an intent",
    "backups",
    "primaries",
    "an operation is done",
    "a new entry",
    "data before what leads to it",
    "zeros before the size grows",
    "a new pool block",
    "a list of items outside its lane",
    "recovery makes copies equal",
    "the time of a read",
];

/// An entry of the list below, which no interleaving shows either.
const fn harmless(site: &'static str, is_fence: bool, argument: &'static str) -> Harmless {
    Harmless { site, is_fence, argument, by_chance: false }
}

const HARMLESS: [Harmless; 19] = [
    harmless("an intent is in one copy", false, TWO_FAULTS),
    harmless("the number of an inode keeps its generation", false, NOT_IN_THE_TREE),
    harmless("inode.rs note_read 1", false, LAZY_ATIME),
    harmless("inode.rs note_read 2", true, LAZY_ATIME),
    Harmless { by_chance: true, ..harmless("mend.rs mend_page 3", true, MENDED_BEFORE) },
    harmless("mkfs.rs mkfs 1", false, OLD_INTENTS),
    harmless("mkfs.rs mkfs 2", true, BEFORE_SUPERBLOCKS),
    harmless("mkfs.rs write_zone 2", true, BEFORE_SUPERBLOCKS),
    harmless("mkfs.rs write_zone 3", false, WRITTEN_AGAIN),
    harmless("mkfs.rs write_zone 4", true, BEFORE_SUPERBLOCKS),
    harmless("mount.rs mount 1", false, OTHER_SUPERBLOCK),
    harmless("mount.rs mount 1", true, OTHER_SUPERBLOCK),
    harmless("pools.rs settle_lanes 1", true, NEXT_FENCE),
    harmless("pools.rs write_pool_block 2", false, OLD_GENERATIONS),
    harmless("recover.rs recover 2", true, RECOVERED_AGAIN),
    Harmless { by_chance: true, ..harmless("repair.rs store 1", false, DAMAGE_ONLY) },
    Harmless { by_chance: true, ..harmless("repair.rs store 3", true, DAMAGE_ONLY) },
    // With volumes these are found.
    harmless("the row of a volume is there before its root", false, VOLUMES_ONLY),
    harmless("the row of a volume goes before its groups", false, VOLUMES_ONLY),
];
/// The number of those that are harmless with several volumes, too.
const WITH_VOLUMES: usize = HARMLESS.len() - 2;

const TWO_FAULTS: &str = "harmless until a line of the other copy is lost, too: lab/tests/behaviour/media_errors loses it at each crash \
     (a_lost_copy_of_the_lanes_loses_nothing)";
const NOT_IN_THE_TREE: &str = "harmless to the tree: what a caller kept from before is mistaken for it, which lab/tests/crash sees \
     (a_number_used_again_has_another_generation)";
const LAZY_ATIME: &str =
    "the time of the last read may be lost in a crash: it is written so that it is not lost in a shutdown";
const BEFORE_SUPERBLOCKS: &str = "a later fence of the same thread covers it before the superblocks, without which there is no file system";
const MENDED_BEFORE: &str = "the fence of the intent of the operation that follows covers it, before any backup changes; this one is for \
     operations of other threads";
const WRITTEN_AGAIN: &str =
    "the commit of the volume that mkfs makes writes the row again, with its counts, before the superblocks";
const OLD_INTENTS: &str =
    "what is written over is as new; an intent that is left is of another UUID, or finds both copies equal";
const VOLUMES_ONLY: &str = "not passed by workloads that have one volume: those of pool-volumes find both";
const RECOVERED_AGAIN: &str =
    "the first fence of the mount's own operation covers it; until then a recovery does the same again";
const OLD_GENERATIONS: &str =
    "a new inode has a generation above what its entry had: without zeros, above what data left there";
const OTHER_SUPERBLOCK: &str = "the other copy is whole, and the next mount writes this one again";
const NEXT_FENCE: &str =
    "the first fence of the operation that changes the purpose covers it, before anything of that is stored";

/// The commit point of a store, by its place in the source.
fn commit_of_store(spot: Spot) -> Option<usize> {
    Some(match (spot.file, spot.function) {
        ("lanes.rs", "write_intent") => 0,
        ("commit.rs", "run") if spot.text.contains("pm.copy") => 1,
        ("commit.rs", "run") => 2,
        ("lanes.rs", "store_done") => 3,
        ("commit.rs", "write_one") => 4,
        ("file.rs", "copy_part" | "copy_edge") | ("space.rs", "zero_edges") => 5,
        ("places.rs", "zero_tail") => 6,
        ("pools.rs", "write_pool_block") => 7,
        ("commit.rs", "place_list") => 8,
        ("recover.rs", "copy_item") => 9,
        ("inode.rs", "note_read") => 10,
        _ => return None,
    })
}

/// The free blocks of the fragmented device are counted for layouts whose metadata has no groups.
const LEFT_OUT: [(&str, &str); 1] = [(
    "inode-chunk-scattered",
    "a chunk of single blocks: inodes are in pool blocks, which are never scattered",
)];

/// Commit points that sequences through a write buffer do not reach.
const COVERED_UNBUFFERED: [Elsewhere; 1] = [Elsewhere {
    points: &["a list of items outside its lane", "the time of a read"],
    reason: "a run without --cached covers them: through a buffer go no reads, and no operation on many nodes of a map",
}];

/// Commit points that runs reach which begin with other workloads than those of volumes.
const COVERED_WITHOUT_VOLUMES: [Elsewhere; 1] = [Elsewhere {
    points: &["a list of items outside its lane", "the time of a read"],
    reason: "a run of the layout pool covers them, by the same lines: it begins with the workloads that have them",
}];

/// Workloads with the commits that are rare elsewhere.
const FIRST: [&str; 5] = ["reads", "let-go", "remount", "wide-map-0", "wide-map-3"];

/// Sites that no workload passes, each with the reason.
const PASSED_ELSEWHERE: [(&str, &str); 13] = [
    ("buddy.rs store_outside 1", MISTAKE_ONLY),
    ("buddy.rs store_outside 2", MISTAKE_ONLY),
    ("commit.rs commit 1", NOTHING_CHANGES),
    ("commit.rs take_back 1", MEDIA_ONLY),
    ("commit.rs take_back 2", MEDIA_ONLY),
    ("full.rs place_together 1", FULL_ONLY),
    ("mend.rs mend_page 2", LOST_PAGES),
    ("repair.rs store 2", LOST_PAGES),
    ("scrub.rs store_copy 1", SCRUB_ONLY),
    ("scrub.rs store_copy 2", SCRUB_ONLY),
    ("scrub.rs store_copy 3", SCRUB_ONLY),
    ("sets.rs clear_set 1", MISTAKE_ONLY),
    ("sets.rs clear_set 2", MISTAKE_ONLY),
];

const DAMAGE_ONLY: &str =
    "only where damage is repaired: a copy is written as the other one is, which the next repair does again";
const LOST_PAGES: &str = "only where lines cannot be read, which no image of a crash says: lab/tests/behaviour/media_errors crashes it \
     (a_repair_that_is_interrupted_loses_nothing)";
const SCRUB_ONLY: &str = "only in a scrub, which no workload has: lab/tests/behaviour/media_errors crashes it \
     (a_repair_that_is_interrupted_loses_nothing)";
const FULL_ONLY: &str = "only where no room for a node is left, as on no device here: layouts/pool/tests/pool/full.rs crashes it \
     (writes_without_room_for_a_node_are_atomic)";
const MEDIA_ONLY: &str = "only after a media error in the middle of a commit: no crash is tried there";
const MISTAKE_ONLY: &str = "a mistake on purpose: what ships never comes here";
const NOTHING_CHANGES: &str =
    "only where nothing changes: nothing leads to what was written, and all of it is free";

macro_rules! registered {
    () => {
        type Fs = PoolFs<SimPm>;

        const CTIME: Ctime = Ctime::Exact;
        const COMMIT_POINTS: &'static [&'static str] = &COMMIT_POINTS;
        const PASSED_ELSEWHERE: &'static [(&'static str, &'static str)] = &PASSED_ELSEWHERE;
        const LEFT_OUT: &'static [(&'static str, &'static str)] = &LEFT_OUT;
        const COVERED_UNBUFFERED: &'static [Elsewhere] = &COVERED_UNBUFFERED;

        fn sources() -> &'static Sources {
            &SOURCES
        }

        fn commit_of_store(spot: Spot, _: u64) -> Option<usize> {
            commit_of_store(spot)
        }

        fn commit_of_fence(_: Option<Spot>, _: Option<Spot>) -> Option<usize> {
            None
        }

        fn mistakes() -> Vec<Mistake> {
            let all = nacre_layout_pool::Mistake::ALL.iter();
            all.map(|mistake| Mistake { number: mistake.number(), words: mistake.words() }).collect()
        }

        fn damage_one(pm: &SimPm, kind: &str, number: u64, twin: Twin) -> Result<()> {
            damage(pm, kind, number, twin)
        }
    };
}

impl Registered for Pool {
    registered!();

    const HARMLESS: &'static [Harmless] = &HARMLESS;
    const FIRST: &'static [&'static str] = &FIRST;

    fn own_workloads() -> Vec<Workload> {
        with_damage()
    }
}

impl Registered for PoolVolumes {
    registered!();

    const HARMLESS: &'static [Harmless] = HARMLESS.split_at(WITH_VOLUMES).0;
    const VOLUMES: Option<&'static dyn Volumes> = Some(&PoolVolumes);
    const COVERED_ELSEWHERE: &'static [Elsewhere] = &COVERED_WITHOUT_VOLUMES;

    fn name(&self) -> &'static str {
        "pool-volumes"
    }

    fn own_workloads() -> Vec<Workload> {
        // Those of the layout are in its list of what is passed.
        [with_volumes(), with_damage()].concat()
    }
}

impl Volumes for PoolVolumes {
    fn list(&self, pm: &SimPm) -> Result<Vec<VolumeState>> {
        let listed = volumes::list(pm)?.into_iter();
        let state = |volume: volumes::VolumeSummary| VolumeState {
            name: volume.name,
            quota: volume.quota.unwrap_or(0),
            is_going: volume.going,
        };
        Ok(listed.map(state).collect())
    }

    fn make(&self, pm: &Arc<SimPm>, name: &str, quota: u64, now: Timestamp) -> Result<()> {
        // The same whenever the same is done, or a trace of a crash would say nothing; and another one for each volume.
        let uuid = Some(Uuid::from_u64_pair(0x6e61_6372_6500_4000, now.secs as u64));
        let new = NewVolume { name: name.to_owned(), uuid, quota, now, ..NewVolume::default() };
        volumes::create(Arc::clone(pm), &new).map(drop)
    }

    fn remove(&self, pm: &Arc<SimPm>, name: &str) -> Result<()> {
        volumes::remove(Arc::clone(pm), name)
    }
}

/// Structures that workloads damage, by the words of [`Op::Damage`](super::op::Op::Damage), and the byte of them.
const DAMAGED: [(&str, anatomy::Kind, u64); 7] = [
    ("inode", anatomy::Kind::Inode, 8),
    ("name", anatomy::Kind::Name, 8),
    ("node", anatomy::Kind::Node, 8),
    ("bytes", anatomy::Kind::Bytes, 8),
    ("bits", anatomy::Kind::PoolBits, 0),
    ("map", anatomy::Kind::Map, 0),
    ("row", anatomy::Kind::Volume, 8),
];

/// Inverts bytes of one copy.
fn damage(pm: &SimPm, kind: &str, number: u64, twin: Twin) -> Result<()> {
    let no_such = || Error::new(Kind::NotFound).object(format!("{kind} {number}"));
    let (_, meant, within) = DAMAGED.iter().find(|(name, ..)| *name == kind).ok_or_else(no_such)?;
    let mut structures = anatomy::structures(pm)?.into_iter().filter(|structure| structure.kind == *meant);
    // Each has its primary before its backup.
    let found = structures.nth(2 * number as usize + usize::from(twin == Twin::Backup));
    let at = found.ok_or_else(no_such)?.offset + within;
    let mut bytes = [0; 8];
    pm.read(at, &mut bytes)?;
    pm.poke(at, &bytes.map(|byte| !byte));
    Ok(())
}
