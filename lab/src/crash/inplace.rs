//! The in-place layout as the explorer sees it.

use nacre_layout_inplace::InplaceFs;
use nacre_layout_parts::lifecycle::MkfsOptions;
use nacre_media::SimPm;

use super::source::{Sources, Spot};
use super::subject::{Elsewhere, Harmless, LINKED_BY_ITS_MAKER, Mistake, Registered};
use super::tree::Ctime;

/// The in-place layout, with an index of names for each directory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inplace;

/// The same without one, as the presets `pmfs` and `hinfs` make it: lookups scan the directory, and recent results are
/// remembered.
#[derive(Debug, Clone, Copy, Default)]
pub struct InplaceLinear;

/// The files that store, flush or fence.
pub(super) static SOURCES: Sources = Sources::new(
    "layouts/inplace/src",
    &[
        ("check.rs", include_str!("../../../layouts/inplace/src/check.rs")),
        ("commit.rs", include_str!("../../../layouts/inplace/src/commit.rs")),
        ("names.rs", include_str!("../../../layouts/inplace/src/names.rs")),
        ("file.rs", include_str!("../../../layouts/inplace/src/file.rs")),
        ("grow.rs", include_str!("../../../layouts/inplace/src/grow.rs")),
        ("mkfs.rs", include_str!("../../../layouts/inplace/src/mkfs.rs")),
        ("mount.rs", include_str!("../../../layouts/inplace/src/mount.rs")),
        ("namespace.rs", include_str!("../../../layouts/inplace/src/namespace.rs")),
        ("recover.rs", include_str!("../../../layouts/inplace/src/recover.rs")),
        ("space.rs", include_str!("../../../layouts/inplace/src/space.rs")),
        ("tree_edit.rs", include_str!("../../../layouts/inplace/src/tree_edit.rs")),
        ("write_back.rs", include_str!("../../../layouts/inplace/src/write_back.rs")),
        ("xattr.rs", include_str!("../../../layouts/inplace/src/xattr.rs")),
    ],
);

const COMMIT_POINTS: [&str; 15] = [
    "undo entries",
    "words in place",
    "a commit entry",
    "a single word",
    "free space of a directory",
    "a new inode",
    "a new block of a directory",
    "a new node of a tree",
    "data before what shows it",
    "zeros before the size grows",
    "extended attributes in new blocks",
    "the inode table grows",
    "a mount marks dirty, an unmount clean",
    "recovery undoes",
    "recovery ends a transaction",
];

const HARMLESS: [Harmless; 4] = [
    Harmless { site: "space.rs write_atime 3", is_fence: false, argument: LAZY_ATIME, by_chance: false },
    Harmless { site: "space.rs write_atime 4", is_fence: true, argument: LAZY_ATIME, by_chance: false },
    Harmless {
        site: "namespace.rs make_unnamed 1",
        is_fence: true,
        argument: LINKED_BY_ITS_MAKER,
        by_chance: false,
    },
    Harmless {
        site: "recover.rs roll_back 4",
        is_fence: false,
        argument: "harmless until a third crash, with changes between it and the second, which is not made here; a test \
                   of the layout's own has that (what_was_undone_is_over_before_anything_changes)",
        by_chance: false,
    },
];

/// The commit point of a store, by its place in the source.
fn commit_of_store(spot: Spot) -> Option<usize> {
    Some(match (spot.file, spot.function) {
        ("commit.rs", "journal") if spot.text.contains("publish_entry") => 0,
        ("commit.rs", "journal") if spot.text.contains("pm.store") => 1,
        ("commit.rs", "journal") => 2,
        ("commit.rs", "store_word") => 3,
        ("commit.rs", "store_idle") => 4,
        ("namespace.rs", "build_inode") => 5,
        ("names.rs", "finish") => 6,
        ("tree_edit.rs", "finish") => 7,
        ("file.rs", "copy_to") => 8,
        ("file.rs", "zero_gap") => 9,
        ("xattr.rs", "put") => 10,
        ("grow.rs", "grow_table") => 11,
        ("mount.rs", "mount" | "shut_down") => 12,
        ("recover.rs", "roll_back") if spot.text.contains("pm.store") => 13,
        ("recover.rs", "roll_back") => 14,
        _ => return None,
    })
}

/// Commit points that sequences through a write buffer do not reach.
const COVERED_UNBUFFERED: [Elsewhere; 1] = [Elsewhere {
    points: &["extended attributes in new blocks", "the inode table grows"],
    reason: "a run without --cached covers them: through a buffer go no attributes, and four files",
}];

/// Commit points that a short run reaches too seldom. Only the search for names is another one.
const COVERED_WITH_AN_INDEX: [Elsewhere; 1] = [Elsewhere {
    points: &["a single word"],
    reason: "a run of the layout inplace covers it, by the same lines: few operations change one word alone",
}];

/// The word stands for itself, and it is written with a sync so that not every crash loses it.
const LAZY_ATIME: &str =
    "the time of the last read may be lost in a crash: it is written so that it is not lost in a shutdown";

/// Sites that no workload passes, each with the reason.
const PASSED_ELSEWHERE: [(&str, &str); 6] = [
    ("recover.rs renew_lane 1", MEDIA_ONLY),
    ("recover.rs renew_lane 2", MEDIA_ONLY),
    ("recover.rs renew_lane 3", MEDIA_ONLY),
    ("recover.rs renew_lane 4", MEDIA_ONLY),
    ("space.rs reuse_now 1", MISTAKE_ONLY),
    ("space.rs reuse_now 2", MISTAKE_ONLY),
];

const MEDIA_ONLY: &str = "only after a media error: lab/tests/behaviour/media_errors crashes there";
const MISTAKE_ONLY: &str = "a mistake on purpose: what ships never comes here";

impl Registered for Inplace {
    type Fs = InplaceFs<SimPm>;

    const COVERED_UNBUFFERED: &'static [Elsewhere] = &COVERED_UNBUFFERED;
    const CTIME: Ctime = Ctime::Exact;
    const COMMIT_POINTS: &'static [&'static str] = &COMMIT_POINTS;
    const HARMLESS: &'static [Harmless] = &HARMLESS;
    const PASSED_ELSEWHERE: &'static [(&'static str, &'static str)] = &PASSED_ELSEWHERE;

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
        let all = nacre_layout_inplace::Mistake::ALL.into_iter();
        all.map(|mistake| Mistake { number: mistake as u32, words: mistake.words() }).collect()
    }
}

/// How names are searched for is no matter of media: all but mkfs is the same. Mounts do as the superblock says.
impl Registered for InplaceLinear {
    type Fs = InplaceFs<SimPm>;

    const COVERED_ELSEWHERE: &'static [Elsewhere] = &COVERED_WITH_AN_INDEX;
    const COVERED_UNBUFFERED: &'static [Elsewhere] = Inplace::COVERED_UNBUFFERED;
    const CTIME: Ctime = Inplace::CTIME;
    const COMMIT_POINTS: &'static [&'static str] = Inplace::COMMIT_POINTS;
    const HARMLESS: &'static [Harmless] = Inplace::HARMLESS;
    const PASSED_ELSEWHERE: &'static [(&'static str, &'static str)] = Inplace::PASSED_ELSEWHERE;

    fn sources() -> &'static Sources {
        Inplace::sources()
    }

    fn commit_of_store(spot: Spot, offset: u64) -> Option<usize> {
        Inplace::commit_of_store(spot, offset)
    }

    fn commit_of_fence(fence: Option<Spot>, last: Option<Spot>) -> Option<usize> {
        Inplace::commit_of_fence(fence, last)
    }

    fn mistakes() -> Vec<Mistake> {
        <Inplace as Registered>::mistakes()
    }

    fn name(&self) -> &'static str {
        "inplace-linear"
    }

    fn properties(&self) -> MkfsOptions {
        MkfsOptions { linear_names: true, ..Inplace.properties() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::{Extents, FileKind};
    use nacre_media::SimPm;

    use super::{Inplace, InplaceLinear};
    use crate::crash::explore::MEMORY;
    use crate::crash::op::{Op, Runner};
    use crate::crash::subject::{Mounting, Subject};

    /// An index of names takes DRAM for each of them. Without this the two subjects could be the same.
    #[test]
    fn one_has_an_index_and_one_searches() {
        let bytes = |subject: &dyn Fn(&Arc<SimPm>)| {
            let pm = Arc::new(SimPm::new(MEMORY));
            subject(&pm);
            let mut runner = Runner::new(Inplace.mount(&pm, Mounting::default()).expect("a mount"));
            // In the root, which is held and so counted.
            for step in 1..400 {
                let name: &'static str = Box::leak(format!("a-name-of-some-length-{step}").into_boxed_str());
                runner.run(step, &Op::Create(name, FileKind::Regular)).expect("a file");
            }
            let fs = runner.into_fs();
            let bytes = fs.index_bytes();
            Inplace.abandon(fs);
            bytes
        };
        let indexed = bytes(&|pm| Inplace.mkfs(pm).expect("a file system"));
        let searched = bytes(&|pm| InplaceLinear.mkfs(pm).expect("a file system"));
        assert!(indexed > searched, "{indexed} bytes with an index, {searched} without");
    }
}
