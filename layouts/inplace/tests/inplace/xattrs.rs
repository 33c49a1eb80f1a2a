//! Extended attributes as a tree of blocks: what a change costs, its limits, and what a check finds in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use nacre_engine::{Extents, FileKind, Kind, Names, NewInode, Result, Timestamp, XattrMode};
use nacre_layout_inplace::anatomy::{self, Kind as Structure};
use nacre_layout_inplace::check::check;
use nacre_layout_inplace::{InplaceFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::sim::Event;
use nacre_media::{Pm, SimPm};

const BLOCK: u64 = 4096;
const NOW: Timestamp = Timestamp::new(1_700_000_000, 7);

struct Made {
    pm: Arc<SimPm>,
    fs: Option<InplaceFs<SimPm>>,
}

impl Made {
    fn new() -> Made {
        let pm = Arc::new(SimPm::new(32 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let made = Made { fs: Some(mount(&pm)), pm };
        let kind = FileKind::Regular;
        let new = NewInode { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now: NOW };
        made.fs().create(&made.fs().root(), b"file", &new).unwrap();
        made
    }

    fn fs(&self) -> &InplaceFs<SimPm> {
        self.fs.as_ref().unwrap()
    }

    fn file(&self) -> Node {
        self.fs().lookup(&self.fs().root(), b"file").unwrap()
    }

    fn set(&self, name: &str, value: &[u8]) -> Result<()> {
        self.fs().set_xattr(&self.file(), name.as_bytes(), value, XattrMode::Set, None, NOW)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.fs().remove_xattr(&self.file(), name.as_bytes(), NOW)
    }

    fn free(&self) -> u64 {
        self.fs().stat().free
    }

    fn assert_has(&self, expected: &BTreeMap<String, Vec<u8>>) {
        let file = self.file();
        let mut names = self.fs().list_xattrs(&file).unwrap();
        names.sort();
        assert!(names.iter().eq(expected.keys().map(String::as_bytes)), "{} names", names.len());
        for (name, value) in expected {
            assert_eq!(self.fs().get_xattr(&file, name.as_bytes()).unwrap(), *value, "{name}");
        }
    }

    /// Unmounts, checks, and mounts again; what is free is what a mount counts.
    fn again(&mut self) {
        let free = self.free();
        self.fs.take().unwrap().unmount().unwrap();
        self.assert_sound();
        self.fs = Some(mount(&self.pm));
        assert_eq!(self.free(), free, "blocks were lost");
    }

    fn assert_sound(&self) {
        let report = check(&*self.pm, false).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

fn mount(pm: &Arc<SimPm>) -> InplaceFs<SimPm> {
    InplaceFs::mount(Arc::clone(pm), &MountOptions::default()).unwrap()
}

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) % n
    }
}

/// All attributes of a file were written anew with each change, so that 1600 of them took a quadratic time.
#[test]
fn what_a_change_writes_does_not_grow_with_the_attributes() {
    let made = Made::new();
    let stored = |name: &str| {
        made.pm.start_recording();
        made.set(name, &[b'v'; 50]).unwrap();
        let trace = made.pm.stop_recording();
        let bytes = |event: &Event| if let Event::Store { bytes, .. } = event { bytes.len() } else { 0 };
        trace.events.iter().map(bytes).sum::<usize>() as u64
    };
    let most = (0..4000).map(|index| stored(&format!("user.k{}_{index}", index % 7))).max().unwrap();
    assert!(most < 4 * BLOCK, "{most} bytes in one change: at most two leaves, the index, and a transaction");
}

#[test]
fn random_changes_leave_what_they_say_and_give_back_what_they_took() {
    for seed in 1..=3 {
        let mut random = Random(seed);
        let mut made = Made::new();
        let before = made.free();
        let mut expected = BTreeMap::new();
        for round in 0..900u64 {
            // First mostly more of them, then mostly fewer.
            let sets = random.below(10) < if round < 500 { 7 } else { 3 };
            let number = random.below(150);
            let name = format!("user.{number}.{}", "n".repeat((number * 7 % 230) as usize));
            if sets {
                let len =
                    [random.below(60), random.below(1100), random.below(9000)][random.below(3) as usize];
                let value = vec![round as u8; len as usize];
                made.set(&name, &value).unwrap();
                expected.insert(name, value);
            } else {
                let removed = made.remove(&name).map_err(|error| error.kind());
                let is_there = expected.remove(&name).is_some();
                assert_eq!(removed, if is_there { Ok(()) } else { Err(Kind::NoAttribute) }, "seed {seed}");
            }
            if round % 100 == 99 {
                made.again();
                made.assert_has(&expected);
            }
        }
        made.assert_has(&expected);
        for name in expected.keys() {
            made.remove(name).unwrap();
        }
        made.again();
        assert_eq!(made.free(), before, "seed {seed}");
    }
}

/// In the order of their names they leave each block half full, so that the index has no room for all before the limit.
#[test]
fn an_index_that_is_full_is_packed_and_the_limit_is_told() {
    let mut made = Made::new();
    let before = made.free();
    let mut expected = BTreeMap::new();
    for index in 0.. {
        let (name, value) = (format!("user.{index:05}"), vec![index as u8; 1000]);
        match made.set(&name, &value) {
            Ok(()) => expected.insert(name, value),
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace);
                break;
            }
        };
    }
    assert!(expected.len() > 1020, "1 MiB of attributes: {}", expected.len());
    assert!(before - made.free() < 520, "{} blocks", before - made.free());
    made.assert_has(&expected);
    made.again();
    made.assert_has(&expected);
    let names: Vec<_> = expected.keys().cloned().collect();
    for name in names.iter().step_by(2).chain(names.iter().skip(1).step_by(2)) {
        made.remove(name).unwrap();
        expected.remove(name);
    }
    made.assert_has(&expected);
    made.again();
    assert_eq!(made.free(), before);
}

#[test]
fn a_full_device_refuses_an_attribute_and_keeps_what_is_there() {
    let mut made = Made::new();
    let value = vec![9; 60_000];
    let mut expected = BTreeMap::new();
    let root = made.fs().root();
    for file in 0.. {
        let kind = FileKind::Regular;
        let new = NewInode { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now: NOW };
        let Ok(node) = made.fs().create(&root, format!("other-{file}").as_bytes(), &new) else { break };
        let set = |index: u64| {
            let name = format!("user.{index}");
            made.fs().set_xattr(&node, name.as_bytes(), &value, XattrMode::Set, None, NOW)
        };
        if let Some(error) = (0..16).map(set).find_map(Result::err) {
            assert_eq!(error.kind(), Kind::NoSpace);
            break;
        }
    }
    for index in 0..100 {
        let (name, value) = (format!("user.{index}"), vec![index as u8; 900]);
        let free = made.free();
        match made.set(&name, &value) {
            Ok(()) => drop(expected.insert(name, value)),
            Err(error) => assert_eq!((error.kind(), made.free()), (Kind::NoSpace, free)),
        }
    }
    drop(root);
    made.assert_has(&expected);
    made.again();
    made.assert_has(&expected);
}

/// Any byte of an index or a leaf that changes is reported by its readers, and a check finds it.
#[test]
fn damage_in_any_block_is_found() {
    let mut made = Made::new();
    for index in 0..40 {
        made.set(&format!("user.{index}"), &vec![index as u8; 300]).unwrap();
    }
    made.fs.take().unwrap().unmount().unwrap();
    let structures = anatomy::structures(&*made.pm).unwrap();
    let blocks: Vec<_> = structures.iter().filter(|found| found.kind == Structure::Xattrs).collect();
    assert!(blocks.len() > 3, "an index and leaves: {blocks:?}");
    for block in blocks {
        for at in [0, 4, 8, 16, 20, 24, 32, 64, 70, 100] {
            let mut byte = [0];
            made.pm.read(block.offset + at, &mut byte).unwrap();
            made.pm.poke(block.offset + at, &[byte[0] ^ 0x10]);
            let report = check(&*made.pm, false).unwrap();
            assert!(report.problems.iter().any(|problem| problem.what.contains("attributes")), "byte {at}");
            made.pm.poke(block.offset + at, &byte);
        }
    }
    made.assert_sound();
}
