//! Names of large directories, whose logs are collected all the time.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::{FileKind, InodeId, Names, NewInode, RenameMode, Timestamp};
use nacre_layout_log::check::check;
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::SimPm;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

type Fs = LogFs<SimPm>;

const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const FILES: usize = 120;

fn mount(pm: &Arc<SimPm>) -> Fs {
    let options = MountOptions { background: false, lanes: Some(1), ..MountOptions::default() };
    LogFs::mount(Arc::clone(pm), &options).unwrap()
}

fn create(fs: &Fs, dir: &Node, name: &str, kind: FileKind) -> InodeId {
    let new = NewInode { kind, mode: 0o755, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now: NOW };
    fs.id(&fs.create(dir, name.as_bytes(), &new).unwrap())
}

/// Names and inodes, as they are listed, and as they are looked up one by one.
fn both(fs: &Fs, dir: &Node) -> [BTreeMap<String, InodeId>; 2] {
    let mut listed = BTreeMap::new();
    fs.read_dir(dir, 0, &mut |entry| {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        assert!(listed.insert(name, entry.id).is_none(), "a name is there twice");
        ControlFlow::Continue(())
    })
    .unwrap();
    let found = |name: &String| (name.clone(), fs.id(&fs.lookup(dir, name.as_bytes()).unwrap()));
    let looked_up = listed.keys().map(found).collect();
    [listed, looked_up]
}

/// The log was collected to make room for the new entries, of which one was then where the entry had been that was replaced: it
/// was the new name that the index lost.
#[test]
fn a_rename_replaces_what_it_found_wherever_that_is_by_then() {
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let pm = Arc::new(SimPm::new(16 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let mut fs = mount(&pm);
        let mut random = SmallRng::seed_from_u64(7);
        let mut expected = [BTreeMap::new(), BTreeMap::new()];
        for (index, dir) in ["a", "b"].into_iter().enumerate() {
            let node = {
                create(&fs, &fs.root(), dir, FileKind::Directory);
                fs.lookup(&fs.root(), dir.as_bytes()).unwrap()
            };
            for file in 0..FILES {
                let name = format!("{file:0>240}");
                let id = create(&fs, &node, &name, FileKind::Regular);
                expected[index].insert(name, id);
            }
        }
        for turn in 0..60 {
            let dirs = [b"a", b"b"].map(|dir| fs.lookup(&fs.root(), dir).unwrap());
            for number in 0..500 {
                let (from, to) = (random.random_range(0..2), random.random_range(0..2));
                let target = format!("{:0>240}", random.random_range(0..FILES));
                let source = match mode {
                    RenameMode::Exchange => format!("{:0>240}", random.random_range(0..FILES)),
                    _ => {
                        let name = format!("new-{turn}-{number}");
                        let id = create(&fs, &dirs[from], &name, FileKind::Regular);
                        expected[from].insert(name.clone(), id);
                        name
                    }
                };
                let (source_name, target_name) = (source.as_bytes(), target.as_bytes());
                fs.rename(&dirs[from], source_name, &dirs[to], target_name, mode, NOW).unwrap();
                let moved = expected[from].remove(&source).unwrap();
                let replaced =
                    if (from, &source) == (to, &target) { Some(moved) } else { expected[to].remove(&target) };
                expected[to].insert(target, moved);
                if mode == RenameMode::Exchange
                    && let Some(replaced) = replaced
                {
                    expected[from].insert(source, replaced);
                }
            }
            for (dir, expected) in dirs.iter().zip(&expected) {
                let [listed, looked_up] = both(&fs, dir);
                assert!(listed == *expected && looked_up == *expected, "{mode:?}, turn {turn}");
            }
            drop(dirs);
            if turn % 10 == 9 {
                fs.unmount().unwrap();
                let report = check(&*pm, false).unwrap();
                assert!(report.problems.is_empty(), "{:?}", report.problems);
                fs = mount(&pm);
            }
        }
    }
}
