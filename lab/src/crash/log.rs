//! The log layout as the explorer sees it.

use std::sync::Arc;

use nacre_engine::Result;
use nacre_layout_log::check::{CheckReport, check};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs, probe, use_lane};
use nacre_media::SimPm;
use nacre_media::sim::Site;

use super::source::{Sources, Spot};
use super::subject::{Harmless, LINKED_BY_ITS_MAKER, Mistake, Moment, Mounting, Subject};
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
    Harmless {
        site: "namespace.rs create_unnamed 2",
        is_fence: true,
        argument: LINKED_BY_ITS_MAKER,
        by_chance: false,
    },
    Harmless {
        site: "table.rs publish_chunk 3",
        is_fence: false,
        argument: "needless for crashes: an inode is read only when a name refers to it, and whoever makes it writes \
                   all of it; zeros keep old data from being taken for inodes by anything else",
        by_chance: false,
    },
    Harmless {
        site: "table.rs publish_chunk 9",
        is_fence: true,
        argument: "whoever makes the chunk fences for its word with the first inode that it takes from it; this one is \
                   for a thread that has run out and takes another of them before that",
        by_chance: true,
    },
];

/// The problems of a report, in words.
pub(super) fn words_of(report: CheckReport, crashed: bool) -> Vec<String> {
    let problems = report.problems.into_iter().map(|problem| problem.what);
    // A crash may tear the copy that was being written; nothing can tell that from damage, and a mount mends it.
    let torn = |what: &String| crashed && what.ends_with("of the superblock is damaged");
    problems.filter(|what| !torn(what)).collect()
}

/// The commit point of a store, by its place in the source.
fn commit_of_store(spot: Spot, offset: u64) -> Option<usize> {
    Some(match (spot.file, spot.function) {
        ("namespace.rs", "build_inode" | "add_name" | "create_unnamed") => 0,
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

/// Sites that no workload passes, each with the reason.
const PASSED_ELSEWHERE: [(&str, &str); 6] = [
    ("compact.rs put_into_inode 1", WITH_A_DISK),
    ("compact.rs put_into_inode 3", WITH_A_DISK),
    ("publish.rs bring_up 2", WITH_A_DISK),
    ("publish.rs copy_runs 1", WITH_A_DISK),
    ("publish.rs moved 1", WITH_A_DISK),
    ("publish.rs publish_write 2", WITH_A_DISK),
];

const WITH_A_DISK: &str = "only with a disk below: log-with-disk and log-on-disk pass there";

impl Subject for Log {
    type Fs = LogFs<SimPm>;

    fn name(&self) -> &'static str {
        "log"
    }

    fn ctime(&self) -> Ctime {
        // Link, unlink and rename commit in the directory's log alone; the ctime of what they name is kept lazily.
        Ctime::MayLag
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        let uuid = Some(uuid::Uuid::from_u128(0x6e61_6372_6500_4000_8000_0000_0000_0001));
        mkfs(&**pm, &MkfsOptions { uuid, ..MkfsOptions::default() }).map(drop)
    }

    fn is_formatted(&self, pm: &Arc<SimPm>) -> bool {
        probe(&**pm).is_ok()
    }

    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<LogFs<SimPm>> {
        let Mounting { lanes, background } = mounting;
        let options = MountOptions { lanes: Some(lanes), background, ..MountOptions::default() };
        LogFs::mount(Arc::clone(pm), &options)
    }

    fn use_lane(&self, lane: usize) {
        use_lane(lane);
    }

    fn unmount(&self, fs: LogFs<SimPm>) -> Result<()> {
        fs.unmount()
    }

    fn abandon(&self, fs: LogFs<SimPm>) {
        fs.abandon();
    }

    fn repair(&self, pm: &Arc<SimPm>) -> Result<()> {
        check(&**pm, true).map(drop)
    }

    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>> {
        Ok(words_of(check(&**pm, false)?, crashed))
    }

    fn commit_points(&self) -> &'static [&'static str] {
        &COMMIT_POINTS
    }

    fn commits_at(&self, moment: &Moment<'_>, hit: &mut dyn FnMut(usize)) {
        let mut seen = [false; COMMIT_POINTS.len()];
        for &(site, offset) in moment.stores {
            if let Some(point) = SOURCES.spot(site).and_then(|spot| commit_of_store(spot, offset)) {
                seen[point] = true;
            }
        }
        let at = |site: Option<Site>| {
            site.and_then(|site| SOURCES.spot(site)).map_or(("", ""), |spot| (spot.file, spot.function))
        };
        match at(moment.fence) {
            ("commit.rs", "write_lines") => seen[3] = true,
            ("file/write/commit.rs", "commit_write") => seen[4] = true,
            ("collect.rs", "replace_pages") if at(moment.last_fence).1 == "write_chain" => seen[9] = true,
            ("collect.rs", "replace_pages") => seen[10] = true,
            ("compact.rs", "put_into_inode") if at(moment.last_fence).1 == "put_into_inode" => seen[9] = true,
            ("rename.rs", "rename_across") => seen[11] = true,
            _ => {}
        }
        (0..seen.len()).filter(|&point| seen[point]).for_each(hit);
    }

    fn site_name(&self, site: Site) -> String {
        SOURCES.name(site)
    }

    fn atomic_write(&self) -> bool {
        true
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let all = nacre_layout_log::Mistake::ALL.into_iter();
        all.map(|mistake| Mistake { number: mistake as u32, words: mistake.words() }).collect()
    }

    fn harmless(&self) -> &'static [Harmless] {
        &HARMLESS
    }

    fn unpassed(&self, passed: &[Site]) -> Vec<String> {
        SOURCES.all_but(passed)
    }

    fn passed_elsewhere(&self) -> &'static [(&'static str, &'static str)] {
        &PASSED_ELSEWHERE
    }
}
