//! The shadow layout as the explorer sees it.

use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions};
use nacre_layout_shadow::ShadowFs;
use nacre_media::SimPm;

use super::source::{Sources, Spot};
use super::subject::{Elsewhere, Harmless, Mistake, Overwrites, Registered};
use super::tree::Ctime;

/// The shadow layout, with copy on write, as the preset `bpfs` makes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shadow;

/// The same with written blocks overwritten in place, as the preset `acbpfs` makes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShadowInPlace;

/// The files that store, flush or fence.
pub(super) static SOURCES: Sources = Sources::new(
    "layouts/shadow/src",
    &[
        ("check.rs", include_str!("../../../layouts/shadow/src/check.rs")),
        ("commit.rs", include_str!("../../../layouts/shadow/src/commit.rs")),
        ("file.rs", include_str!("../../../layouts/shadow/src/file.rs")),
        ("grow.rs", include_str!("../../../layouts/shadow/src/grow.rs")),
        ("lift.rs", include_str!("../../../layouts/shadow/src/lift.rs")),
        ("mkfs.rs", include_str!("../../../layouts/shadow/src/mkfs.rs")),
        ("mount.rs", include_str!("../../../layouts/shadow/src/mount.rs")),
        ("names.rs", include_str!("../../../layouts/shadow/src/names.rs")),
        ("namespace.rs", include_str!("../../../layouts/shadow/src/namespace.rs")),
        ("publish.rs", include_str!("../../../layouts/shadow/src/publish.rs")),
        ("recover.rs", include_str!("../../../layouts/shadow/src/recover.rs")),
        ("relocate.rs", include_str!("../../../layouts/shadow/src/relocate.rs")),
        ("space.rs", include_str!("../../../layouts/shadow/src/space.rs")),
        ("switches.rs", include_str!("../../../layouts/shadow/src/switches.rs")),
        ("xattr.rs", include_str!("../../../layouts/shadow/src/xattr.rs")),
    ],
);

const COMMIT_POINTS: [&str; 17] = [
    "a slot",
    "a word of a tree",
    "a switch",
    "a record of a directory",
    "a new block of a directory",
    "a new inode",
    "new nodes of a tree, and words behind its end",
    "data before what shows it",
    "zeros before the size grows",
    "the rest of a block that is copied",
    "extended attributes in new blocks",
    "the inode table grows",
    "a mount marks dirty, an unmount clean",
    "recovery neutralises",
    SWITCHES,
    "the time of a read",
    DEAD,
];

/// An entry of the list below, which no interleaving shows either.
const fn harmless(site: &'static str, is_fence: bool, argument: &'static str) -> Harmless {
    Harmless { site, is_fence, argument, by_chance: false }
}

const HARMLESS: [Harmless; 13] = [
    harmless("a switch is in one line", false, TWO_FAULTS),
    harmless("the inode table grows over blocks that were not zeroed", false, NO_INODES),
    harmless("grow.rs publish_growth 2", false, NO_INODES),
    Harmless { by_chance: true, ..harmless("grow.rs publish_growth 5", true, GROWN_BY_ITS_MAKER) },
    harmless("mkfs.rs mkfs 2", true, ZEROED_FIRST),
    harmless("mount.rs recover 1", true, RECOVERED_AGAIN),
    harmless("recover.rs neutralise 1", false, OTHER_COPY),
    harmless("recover.rs neutralise 2", false, USED_AGAIN),
    harmless("space.rs write_atime 3", false, LAZY_ATIME),
    harmless("space.rs write_atime 3", true, LAZY_ATIME),
    harmless("switches.rs mend 2", false, OTHER_COPY),
    harmless("switches.rs publish 1", false, TWO_FAULTS),
    harmless("switches.rs publish 2", false, TWO_FAULTS),
];

const TWO_FAULTS: &str = "harmless until the other line is lost, too: lab/tests/behaviour/media_errors/shadow.rs loses it at each crash \
     (a_lost_copy_of_a_switch_loses_nothing)";
const NO_INODES: &str = "harmless with what programs write: no inode is valid without a checksum of the UUID, its number and its \
     generation; zeros are there for data that was made to be taken for inodes";
const GROWN_BY_ITS_MAKER: &str = "the thread that grows the table fences for it with the first inode that it takes from it; this one is for other \
     threads, which may take inodes of it before that";
const OTHER_COPY: &str = "the other copy is whole and counts; the next mount makes this one like it again, and so does the next change";
const USED_AGAIN: &str = "harmless until the generation is used and power is lost again, which is beyond the explorer: \
     lab/tests/crash/shadow.rs does both (what_is_neutralised_stays_so)";
const ZEROED_FIRST: &str = "harmless on its own: stores of one thread to one place reach media in their order, and the fence before the \
     superblock covers the zeros, too";
const RECOVERED_AGAIN: &str = "harmless: a mount that changes anything marks the file system as in use behind this, and that fence comes \
     before any change; a crash before it leaves what the next mount recovers again";
/// The word stands for itself, and it is written with a sync so that not every crash loses it.
const LAZY_ATIME: &str =
    "the time of the last read may be lost in a crash: it is written so that it is not lost in a shutdown";

/// The commit point of a store, by its place in the source.
fn commit_of_store(spot: Spot) -> Option<usize> {
    Some(match (spot.file, spot.function) {
        ("commit.rs", "put_sealed") => 0,
        ("commit.rs", "store_word") => 1,
        ("switches.rs", "publish") => 2,
        ("names.rs", "write") if spot.text.contains("pm.store") => 3,
        ("names.rs", "write") => 4,
        ("namespace.rs", "put_header") => 5,
        ("lift.rs", "write") | ("file.rs", "commit_block") => 6,
        ("file.rs", "copy_to") => 7,
        ("file.rs", "zero_gap") => 8,
        ("file.rs", "copy_bytes" | "zero_edge") => 9,
        ("xattr.rs", "put") => 10,
        ("grow.rs", "publish_growth") => 11,
        ("mount.rs", "mount" | "shut_down") => 12,
        ("recover.rs", "neutralise") => 13,
        ("switches.rs", "mend") => 14,
        ("space.rs", "write_atime") => 15,
        ("names.rs", "free_dead") => 16,
        _ => return None,
    })
}

/// Unequal copies of switches, times of reads, and lines of dead names.
const FIRST: [&str; 10] = [
    "create",
    "unlink",
    "link",
    "rename-across",
    "rename-exchange",
    "rename-across-replacing",
    "reads",
    "let-go",
    "remount",
    "names-of-other-lengths",
];

/// Commit points that sequences through a write buffer do not reach, or seldom.
const COVERED_UNBUFFERED: [Elsewhere; 2] = [
    Elsewhere {
        points: &["extended attributes in new blocks", "the inode table grows", "the time of a read", DEAD],
        reason: "a run without --cached covers them: through a buffer go no attributes, no reads, and four names",
    },
    Elsewhere { points: &[SWITCHES], reason: "a run without --cached covers it: recovery has no buffer" },
];

/// Commit points that a run with tiers reaches too seldom: they are those of [`FIRST`].
pub(super) const COVERED_WITHOUT_TIERS: [Elsewhere; 1] = [Elsewhere {
    points: &[SWITCHES, DEAD],
    reason: "a run of shadow or shadow-in-place covers them, by the same lines: it begins with the workloads that do",
}];

const SWITCHES: &str = "recovery makes switches equal";
const DEAD: &str = "dead records become free";

/// Sites that no workload passes, each with the reason.
const PASSED_ELSEWHERE: [(&str, &str); 6] = [
    ("check.rs fix 1", DAMAGE_ONLY),
    ("check.rs fix 2", DAMAGE_ONLY),
    ("lift.rs store_in_place 1", MISTAKE_ONLY),
    ("publish.rs reuse_now 1", MISTAKE_ONLY),
    ("publish.rs reuse_now 2", MISTAKE_ONLY),
    ("relocate.rs copy_runs 1", WITH_A_DISK),
];

const DAMAGE_ONLY: &str = "only where damage is repaired: slots, each of which the next repair writes again";
const WITH_A_DISK: &str = "only with a disk below: shadow-with-disk passes there";
const MISTAKE_ONLY: &str = "a mistake on purpose: what ships never comes here";

/// A mistake as a subject lists it.
fn listed(mistake: &nacre_layout_shadow::Mistake) -> Mistake {
    Mistake { number: mistake.number(), words: mistake.words() }
}

/// Those that show with tiers alone.
pub(super) fn mistakes_with_tiers() -> Vec<Mistake> {
    nacre_layout_shadow::Mistake::WITH_TIERS.iter().map(listed).collect()
}

macro_rules! registered {
    () => {
        type Fs = ShadowFs<SimPm>;

        const CTIME: Ctime = Ctime::Exact;
        const COMMIT_POINTS: &'static [&'static str] = &COMMIT_POINTS;
        const HARMLESS: &'static [Harmless] = &HARMLESS;
        const PASSED_ELSEWHERE: &'static [(&'static str, &'static str)] = &PASSED_ELSEWHERE;
        const FIRST: &'static [&'static str] = &FIRST;
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
            let all = nacre_layout_shadow::Mistake::ALL.iter().filter(|mistake| mistake.shows_alone());
            all.map(listed).collect()
        }
    };
}

impl Registered for Shadow {
    registered!();
}

impl Registered for ShadowInPlace {
    registered!();

    fn name(&self) -> &'static str {
        "shadow-in-place"
    }

    fn overwrites(&self) -> Overwrites {
        Overwrites::InPartsWithTimes
    }

    fn properties(&self) -> MkfsOptions {
        MkfsOptions { overwrite_in_place: true, ..Shadow.properties() }
    }
}

const _: () = assert!(<ShadowFs<SimPm> as Lifecycle>::CAPABILITIES.atomic_write);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{COMMIT_POINTS, SOURCES, commit_of_store};

    /// A function of the layout had another name, and its commit point was covered by no image.
    #[test]
    fn each_commit_point_is_a_place_in_the_source() {
        let found: BTreeSet<usize> = SOURCES.stores().into_iter().filter_map(commit_of_store).collect();
        let missing = (0..COMMIT_POINTS.len()).filter(|point| !found.contains(point));
        assert_eq!(missing.map(|point| COMMIT_POINTS[point]).collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
