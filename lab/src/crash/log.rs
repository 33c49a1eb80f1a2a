//! The log layout as the explorer sees it.

use nacre_layout_log::LogFs;
use nacre_media::SimPm;

use super::source::{Sources, Spot};
use super::subject::{Elsewhere, Harmless, Mistake, Registered};
use super::tree::Ctime;

/// The log layout.
#[derive(Debug, Clone, Copy, Default)]
pub struct Log;

/// The files that store, flush or fence.
pub(super) static SOURCES: Sources = Sources::new(
    "layouts/log/src",
    &[
        ("check.rs", include_str!("../../../layouts/log/src/check.rs")),
        ("checkpoint.rs", include_str!("../../../layouts/log/src/checkpoint.rs")),
        ("collect.rs", include_str!("../../../layouts/log/src/collect.rs")),
        ("commit.rs", include_str!("../../../layouts/log/src/commit.rs")),
        ("compact.rs", include_str!("../../../layouts/log/src/compact.rs")),
        ("evict.rs", include_str!("../../../layouts/log/src/evict.rs")),
        ("file/change.rs", include_str!("../../../layouts/log/src/file/change.rs")),
        ("file/write/commit.rs", include_str!("../../../layouts/log/src/file/write/commit.rs")),
        ("file/write/prepare.rs", include_str!("../../../layouts/log/src/file/write/prepare.rs")),
        ("fs.rs", include_str!("../../../layouts/log/src/fs.rs")),
        ("layout.rs", include_str!("../../../layouts/log/src/layout.rs")),
        ("mkfs.rs", include_str!("../../../layouts/log/src/mkfs.rs")),
        ("mount.rs", include_str!("../../../layouts/log/src/mount.rs")),
        ("namespace.rs", include_str!("../../../layouts/log/src/namespace.rs")),
        ("overwrite.rs", include_str!("../../../layouts/log/src/overwrite.rs")),
        ("pages.rs", include_str!("../../../layouts/log/src/pages.rs")),
        ("publish.rs", include_str!("../../../layouts/log/src/publish.rs")),
        ("recover.rs", include_str!("../../../layouts/log/src/recover.rs")),
        ("rename.rs", include_str!("../../../layouts/log/src/rename.rs")),
        ("space.rs", include_str!("../../../layouts/log/src/space.rs")),
        ("table.rs", include_str!("../../../layouts/log/src/table.rs")),
        ("xattr.rs", include_str!("../../../layouts/log/src/xattr.rs")),
    ],
);

/// Offset of the word in an inode that names its log's first page, and bytes of an inode.
const HEAD: (u64, u64) = (40, 256);

const COMMIT_POINTS: [&str; 20] = [
    "an inode is made",
    "an entry in the inode",
    "entries in a page",
    "a batch over two pages",
    "data before its entry",
    "zeros before the size grows",
    "a large attribute before its entry",
    "a page is linked",
    "the log moves to a page (head)",
    "collection links copies",
    "collection unlinks a page",
    "a transaction in two logs",
    "transactions are settled",
    "a chunk of inodes",
    "a chunk of single blocks",
    "a mount marks dirty",
    "an unmount writes what is cached",
    "a checkpoint",
    "an unmount marks clean",
    "recovery repairs",
];

/// Of the zeros in a new chunk of inodes.
const ZEROED_INODES: &str = "needless for crashes: an inode is read only when a name refers to it, and whoever makes it \
                             writes all of it; zeros keep old data from being taken for inodes by anything else";

/// Flushes and fences that no crash misses. Those that the argument calls needless could go.
const HARMLESS: [Harmless; 5] = [
    Harmless {
        site: "evict.rs write_out 2",
        is_fence: true,
        argument: "recovery counts what is cached anew; this one is for an unmount by another thread, which does not \
                   write again what is not in DRAM any more",
        by_chance: false,
    },
    Harmless {
        site: "mount.rs shut_down 3",
        is_fence: true,
        argument: "the fences of the checkpoint come before the state is clean; this one is for a device without room \
                   for a checkpoint",
        by_chance: false,
    },
    Harmless { site: "mkfs.rs mkfs 2", is_fence: false, argument: ZEROED_INODES, by_chance: false },
    Harmless { site: "table.rs publish_chunk 3", is_fence: false, argument: ZEROED_INODES, by_chance: false },
    Harmless {
        site: "table.rs publish_chunk 9",
        is_fence: true,
        argument: "whoever makes the chunk fences for its word with the first inode that it takes from it; this one is \
                   for a thread that has run out and takes another of them before that",
        by_chance: true,
    },
];

/// The commit point of a store, by its place in the source.
fn commit_of_store(spot: Spot, offset: u64) -> Option<usize> {
    Some(match (spot.file, spot.function) {
        ("namespace.rs", "build_inode" | "add_name" | "make_unnamed") => 0,
        ("commit.rs", "write_lines") if spot.text.contains("proof") => 2,
        ("commit.rs", "write_lines") => 1,
        ("file/change.rs", "zero_gap") => 5,
        ("xattr.rs", "push_set") => 6,
        ("commit.rs", "add_page") if spot.text.contains(".link(") && offset % HEAD.1 == HEAD.0 => 8,
        ("commit.rs", "add_page") if spot.text.contains(".link(") => 7,
        ("fs.rs", "settle") => 12,
        ("table.rs", "publish_chunk") if spot.text.contains("CHUNK_SCATTERED") => 14,
        ("table.rs", "publish_chunk") if spot.text.contains("publish_u64") => 13,
        ("mount.rs", "mark_dirty") => 15,
        ("fs.rs", "write_cached") => 16,
        ("checkpoint.rs", "write") => 17,
        ("mount.rs", "shut_down") => 18,
        ("recover.rs", "repair") => 19,
        _ => return None,
    })
}

/// Commit points that sequences through a write buffer do not reach, or seldom.
const COVERED_UNBUFFERED: [Elsewhere; 1] = [Elsewhere {
    points: &[
        "a batch over two pages",
        "a large attribute before its entry",
        "a page is linked",
        "collection links copies",
        "collection unlinks a page",
        "a transaction in two logs",
        "transactions are settled",
        "a chunk of inodes",
        "a chunk of single blocks",
    ],
    reason: "a run without --cached covers them: through a buffer go sixty operations on four names in one directory",
}];

/// Commit points that a run with tiers reaches too seldom.
pub(super) const COVERED_WITHOUT_TIERS: [Elsewhere; 1] = [Elsewhere {
    points: &["collection unlinks a page", "a chunk of single blocks"],
    reason: "a run of the layout log covers them, by the same lines: they need workloads of hundreds of operations",
}];

/// Sites that no workload passes, each with the reason.
const PASSED_ELSEWHERE: [(&str, &str); 6] = [
    ("compact.rs put_into_inode 1", WITH_A_DISK),
    ("compact.rs put_into_inode 3", WITH_A_DISK),
    ("publish.rs bring_up 1", WITH_A_DISK),
    ("publish.rs copy_runs 1", WITH_A_DISK),
    ("publish.rs moved 1", WITH_A_DISK),
    ("publish.rs publish_write 2", WITH_A_DISK),
];

const WITH_A_DISK: &str = "only with a disk below: log-with-disk and log-on-disk pass there";

impl Registered for Log {
    type Fs = LogFs<SimPm>;

    const COVERED_UNBUFFERED: &'static [Elsewhere] = &COVERED_UNBUFFERED;

    // Link, unlink and rename commit in the directory's log alone. The ctime of the inodes that they name is kept lazily.
    const CTIME: Ctime = Ctime::MayLag;
    const COMMIT_POINTS: &'static [&'static str] = &COMMIT_POINTS;
    const HARMLESS: &'static [Harmless] = &HARMLESS;
    const PASSED_ELSEWHERE: &'static [(&'static str, &'static str)] = &PASSED_ELSEWHERE;

    fn sources() -> &'static Sources {
        &SOURCES
    }

    fn commit_of_store(spot: Spot, offset: u64) -> Option<usize> {
        commit_of_store(spot, offset)
    }

    fn commit_of_fence(fence: Option<Spot>, last: Option<Spot>) -> Option<usize> {
        let (fence, last) = (fence?, last.map_or("", |spot| spot.function));
        Some(match (fence.file, fence.function) {
            ("commit.rs", "write_lines") => 3,
            ("file/write/commit.rs", "commit_write") => 4,
            ("collect.rs", "replace_pages") if last == "write_chain" => 9,
            ("collect.rs", "replace_pages") => 10,
            ("compact.rs", "put_into_inode") if last == "put_into_inode" => 9,
            ("rename.rs", "rename_across") => 11,
            _ => return None,
        })
    }

    fn mistakes() -> Vec<Mistake> {
        let all = nacre_layout_log::Mistake::ALL.into_iter();
        all.map(|mistake| Mistake { number: mistake as u32, words: mistake.words() }).collect()
    }
}
