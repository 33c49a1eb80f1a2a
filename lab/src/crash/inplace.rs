//! The in-place layout as the explorer sees it.

use std::sync::Arc;

use nacre_engine::Result;
use nacre_layout_inplace::check::check;
use nacre_layout_inplace::{InplaceFs, MkfsOptions, MountOptions, mkfs, probe, use_lane};
use nacre_media::SimPm;
use nacre_media::sim::Site;

use super::source::{Sources, Spot};
use super::subject::{Harmless, LINKED_BY_ITS_MAKER, Mistake, Moment, Mounting, Subject};
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
        ("blockmap.rs", include_str!("../../../layouts/inplace/src/blockmap.rs")),
        ("check.rs", include_str!("../../../layouts/inplace/src/check.rs")),
        ("commit.rs", include_str!("../../../layouts/inplace/src/commit.rs")),
        ("names.rs", include_str!("../../../layouts/inplace/src/names.rs")),
        ("file.rs", include_str!("../../../layouts/inplace/src/file.rs")),
        ("fs.rs", include_str!("../../../layouts/inplace/src/fs.rs")),
        ("mkfs.rs", include_str!("../../../layouts/inplace/src/mkfs.rs")),
        ("mount.rs", include_str!("../../../layouts/inplace/src/mount.rs")),
        ("namespace.rs", include_str!("../../../layouts/inplace/src/namespace.rs")),
        ("promised.rs", include_str!("../../../layouts/inplace/src/promised.rs")),
        ("recover.rs", include_str!("../../../layouts/inplace/src/recover.rs")),
        ("space.rs", include_str!("../../../layouts/inplace/src/space.rs")),
        ("table.rs", include_str!("../../../layouts/inplace/src/table.rs")),
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
    Harmless { site: "fs.rs write_atime 3", is_fence: false, argument: LAZY_ATIME, by_chance: false },
    Harmless { site: "fs.rs write_atime 4", is_fence: true, argument: LAZY_ATIME, by_chance: false },
    Harmless {
        site: "namespace.rs create_unnamed 1",
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
        ("blockmap.rs", "finish") => 7,
        ("file.rs", "copy_to") => 8,
        ("file.rs", "zero_gap") => 9,
        ("xattr.rs", "put") => 10,
        ("table.rs", "grow_table") => 11,
        ("mount.rs", "mount" | "shut_down") => 12,
        ("recover.rs", "roll_back") if spot.text.contains("pm.store") => 13,
        ("recover.rs", "roll_back") => 14,
        _ => return None,
    })
}

/// The word stands for itself, and it is written with a sync so that not every crash loses it.
const LAZY_ATIME: &str =
    "the time of the last read may be lost in a crash: it is written so that it is not lost in a shutdown";

/// Sites that no workload passes, each with the reason.
const PASSED_ELSEWHERE: [(&str, &str); 8] = [
    ("recover.rs renew_lane 1", MEDIA_ONLY),
    ("recover.rs renew_lane 2", MEDIA_ONLY),
    ("recover.rs renew_lane 3", MEDIA_ONLY),
    ("recover.rs renew_lane 4", MEDIA_ONLY),
    ("check.rs check_with 1", DAMAGE_ONLY),
    ("check.rs check_with 2", DAMAGE_ONLY),
    ("space.rs reuse_now 1", MISTAKE_ONLY),
    ("space.rs reuse_now 2", MISTAKE_ONLY),
];

const DAMAGE_ONLY: &str =
    "only where damage is repaired: single words, each of which the next repair writes again";
const MEDIA_ONLY: &str = "only after a media error: lab/tests/media_errors crashes there";
const MISTAKE_ONLY: &str = "a mistake on purpose: what ships never comes here";

fn make(pm: &Arc<SimPm>, linear_names: bool) -> Result<()> {
    let uuid = Some(uuid::Uuid::from_u128(0x6e61_6372_6500_4000_8000_0000_0000_0002));
    mkfs(&**pm, &MkfsOptions { uuid, linear_names, ..MkfsOptions::default() }).map(drop)
}

impl Subject for Inplace {
    type Fs = InplaceFs<SimPm>;

    fn name(&self) -> &'static str {
        "inplace"
    }

    fn ctime(&self) -> Ctime {
        Ctime::Exact
    }

    fn atomic_write(&self) -> bool {
        false
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        make(pm, false)
    }

    fn is_formatted(&self, pm: &Arc<SimPm>) -> bool {
        probe(&**pm).is_ok()
    }

    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<InplaceFs<SimPm>> {
        // It has no thread of its own.
        let options = MountOptions { lanes: Some(mounting.lanes), ..MountOptions::default() };
        InplaceFs::mount(Arc::clone(pm), &options)
    }

    fn use_lane(&self, lane: usize) {
        use_lane(lane);
    }

    fn unmount(&self, fs: InplaceFs<SimPm>) -> Result<()> {
        fs.unmount()
    }

    fn abandon(&self, fs: InplaceFs<SimPm>) {
        fs.abandon();
    }

    fn repair(&self, pm: &Arc<SimPm>) -> Result<()> {
        check(&**pm, true).map(drop)
    }

    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>> {
        let problems = check(&**pm, false)?.problems.into_iter().map(|problem| problem.what);
        // A crash may tear the copy that was being written; nothing can tell that from damage, and a mount mends it.
        let torn = |what: &String| crashed && what.ends_with("of the superblock is damaged");
        Ok(problems.filter(|what| !torn(what)).collect())
    }

    fn commit_points(&self) -> &'static [&'static str] {
        &COMMIT_POINTS
    }

    fn commits_at(&self, moment: &Moment<'_>, hit: &mut dyn FnMut(usize)) {
        let mut seen = [false; COMMIT_POINTS.len()];
        for &(site, _) in moment.stores {
            if let Some(point) = SOURCES.spot(site).and_then(commit_of_store) {
                seen[point] = true;
            }
        }
        (0..seen.len()).filter(|&point| seen[point]).for_each(hit);
    }

    fn site_name(&self, site: Site) -> String {
        SOURCES.name(site)
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let all = nacre_layout_inplace::Mistake::ALL.into_iter();
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

/// How names are searched for is no matter of media: all but mkfs is the same.
impl Subject for InplaceLinear {
    type Fs = InplaceFs<SimPm>;

    fn name(&self) -> &'static str {
        "inplace-linear"
    }

    fn ctime(&self) -> Ctime {
        Inplace.ctime()
    }

    fn atomic_write(&self) -> bool {
        Inplace.atomic_write()
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        make(pm, true)
    }

    fn is_formatted(&self, pm: &Arc<SimPm>) -> bool {
        Inplace.is_formatted(pm)
    }

    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<InplaceFs<SimPm>> {
        // As every mount that is not told otherwise, it does what the superblock says.
        Inplace.mount(pm, mounting)
    }

    fn use_lane(&self, lane: usize) {
        Inplace.use_lane(lane);
    }

    fn unmount(&self, fs: InplaceFs<SimPm>) -> Result<()> {
        Inplace.unmount(fs)
    }

    fn abandon(&self, fs: InplaceFs<SimPm>) {
        Inplace.abandon(fs);
    }

    fn repair(&self, pm: &Arc<SimPm>) -> Result<()> {
        Inplace.repair(pm)
    }

    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>> {
        Inplace.check(pm, crashed)
    }

    fn commit_points(&self) -> &'static [&'static str] {
        Inplace.commit_points()
    }

    fn commits_at(&self, moment: &Moment<'_>, hit: &mut dyn FnMut(usize)) {
        Inplace.commits_at(moment, hit);
    }

    fn site_name(&self, site: Site) -> String {
        Inplace.site_name(site)
    }

    fn mistakes(&self) -> Vec<Mistake> {
        Inplace.mistakes()
    }

    fn harmless(&self) -> &'static [Harmless] {
        Inplace.harmless()
    }

    fn unpassed(&self, passed: &[Site]) -> Vec<String> {
        Inplace.unpassed(passed)
    }

    fn passed_elsewhere(&self) -> &'static [(&'static str, &'static str)] {
        Inplace.passed_elsewhere()
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
