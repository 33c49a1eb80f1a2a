//! Full devices and volumes: allocated space is written, and contents are overwritten, though no room for a node is left.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Kind, Names, NewInode, Place, Result,
    Timestamp, WriteAt,
};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_layout_pool::volumes::{self, NewVolume};
use nacre_layout_pool::{Node, PoolFs, use_lane};
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};

type Fs = PoolFs<SimPm>;

const BLOCK: u64 = 4096;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn made(size: u64) -> Arc<SimPm> {
    use_lane(0);
    let pm = Arc::new(SimPm::new(size));
    Fs::mkfs(&pm, &MkfsOptions::default()).unwrap();
    pm
}

fn mount(pm: &Arc<SimPm>, volume: &str) -> Fs {
    let volume = Some(volume.to_owned());
    Fs::mount(Arc::clone(pm), &MountOptions { background: false, volume, ..MountOptions::default() }).unwrap()
}

fn assert_sound(pm: &SimPm) {
    let report = Fs::check(pm, Repair::None, None).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

fn write(fs: &Fs, file: &Node, at: u64, bytes: &[u8]) -> Result<()> {
    fs.write(file, WriteAt::Offset(at), &[IoSlice::new(bytes)], Durability::Now, now()).map(drop)
}

fn content(fs: &Fs, file: &Node) -> Vec<u8> {
    let mut bytes = vec![0; fs.size(file).unwrap() as usize];
    let count = fs.read(file, 0, &mut bytes, None).unwrap();
    assert_eq!(count, bytes.len());
    bytes
}

/// Whether all blocks of a file lie together and are written.
fn is_one_extent(fs: &Fs, file: &Node, blocks: u64) -> bool {
    let extents = fs.resolve(file, FileBlock(0), blocks).unwrap();
    matches!(extents[..], [extent] if extent.len == blocks && matches!(extent.place, Place::Pm(_)))
}

/// Makes files until nothing more fits, each by `make`.
fn fill(fs: &Fs, prefix: &str, make: impl Fn(&Node) -> Result<()>) -> Vec<Node> {
    let mut files = Vec::new();
    loop {
        let name = format!("{prefix}-{}", files.len());
        let new = NewInode::of_root(FileKind::Regular, 0o644, now());
        let file = match fs.create(&fs.root(), name.as_bytes(), &new) {
            Ok(file) => file,
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace);
                return files;
            }
        };
        if let Err(error) = make(&file) {
            assert_eq!(error.kind(), Kind::NoSpace);
            drop(file);
            fs.unlink(&fs.root(), name.as_bytes(), now()).unwrap();
            return files;
        }
        files.push(file);
    }
}

fn allocate(fs: &Fs, file: &Node, mode: FallocateMode, blocks: u64) -> Result<()> {
    fs.fallocate(file, mode, 0, blocks * BLOCK, now())
}

/// Writes each range to all files, which must have these contents afterwards, changed by the writes.
fn write_to_each(fs: &Fs, files: &[Node], mut expected: Vec<u8>, ranges: &[(u64, usize)], what: &str) {
    for &(at, len) in ranges {
        let bytes = vec![(at as u8 ^ len as u8) | 2; len]; // neither 0 nor 1, as before
        for (index, file) in files.iter().enumerate() {
            let written = write(fs, file, at, &bytes);
            assert!(written.is_ok(), "file {index} {what}, at {at}: {written:?}");
        }
        expected[at as usize..at as usize + len].copy_from_slice(&bytes);
    }
    let wrong = files.iter().filter(|file| content(fs, file) != expected).count();
    assert_eq!(wrong, 0, "of {} files {what}", files.len());
}

/// The first write into a part of an extent that was never written needs a node, and the reserve had nodes for a
/// quarter of such files.
#[test]
fn allocated_space_can_be_written_on_a_full_device() {
    for blocks in [8, 16, 17, 64, 256] {
        let pm = made(64 << 20);
        let fs = mount(&pm, "main");
        let files = fill(&fs, "file", |file| allocate(&fs, file, FallocateMode::Allocate, blocks));
        assert!(files.len() as u64 * blocks > 12_000, "{} files of {blocks} blocks", files.len());
        drop(fill(&fs, "small", |file| write(&fs, file, 0, &[1; 4096])));
        let ranges = [(2 * BLOCK, 4096), (5 * BLOCK + 50, 100), (2 * BLOCK + 7, 5000), (0, 1)];
        let zeros = vec![0; (blocks * BLOCK) as usize];
        write_to_each(&fs, &files, zeros, &ranges, &format!("of {blocks} blocks"));
        drop(files);
        fs.unmount().unwrap();
        assert_sound(&pm);
    }
}

/// The same with space behind the size: it is there for appends, and for writes with a gap before them.
#[test]
fn allocated_space_behind_the_size_can_be_written_on_a_full_device() {
    let pm = made(64 << 20);
    let fs = mount(&pm, "main");
    let files = fill(&fs, "file", |file| allocate(&fs, file, FallocateMode::AllocateKeepSize, 8));
    assert!(files.len() > 1000, "{} files", files.len());
    drop(fill(&fs, "small", |file| write(&fs, file, 0, &[1; 4096])));
    let orders: [&[(u64, usize)]; 3] = [
        &[(0, 1000), (1000, 5000), (6000, 4096), (10_096, 22_672)],
        &[(5 * BLOCK, 100), (BLOCK + 3, 200), (7 * BLOCK, 4096)],
        &[(BLOCK, 4096), (3 * BLOCK + 17, 9000), (0, 100)],
    ];
    for (turn, order) in orders.iter().enumerate() {
        for (index, file) in files.iter().enumerate().filter(|(index, _)| index % 3 == turn) {
            let mut expected = Vec::new();
            for &(at, len) in *order {
                let bytes = vec![at as u8 | 1; len];
                let written = write(&fs, file, at, &bytes);
                assert!(written.is_ok(), "file {index}, at {at}: {written:?}");
                expected.resize(expected.len().max(at as usize + len), 0);
                expected[at as usize..at as usize + len].copy_from_slice(&bytes);
            }
            assert!(content(&fs, file) == expected, "file {index}");
            assert_eq!(fs.getattr(file).unwrap().allocated, 8 * BLOCK, "file {index}");
        }
    }
    drop(files);
    fs.unmount().unwrap();
    assert_sound(&pm);
}

/// The first overwrite of a part of an extent needs a node as well.
#[test]
fn files_can_be_overwritten_on_a_full_device_and_at_a_quota() {
    for quota in [0, 5120] {
        let pm = made(64 << 20);
        let new = NewVolume { name: "mail".into(), quota, now: now(), ..NewVolume::default() };
        volumes::create(Arc::clone(&pm), &new).unwrap();
        let fs = mount(&pm, "mail");
        let files = fill(&fs, "file", |file| write(&fs, file, 0, &[1; 30_000]));
        assert!(files.len() > 400, "{} files", files.len());
        let ranges = [(2 * BLOCK, 4096), (12_345, 100), (2 * BLOCK, 4096), (29_000, 1000)];
        write_to_each(&fs, &files, vec![1; 30_000], &ranges, &format!("of quota {quota}"));
        drop(files);
        fs.unmount().unwrap();
        assert_sound(&pm);
    }
}

/// A part of a whole group that was allocated is written after small files took all nodes.
#[test]
fn an_allocated_group_can_be_written_without_room_for_a_node() {
    const GROUPS: u64 = 20;
    let pm = made(64 << 20);
    let fs = mount(&pm, "main");
    let big = fs.create(&fs.root(), b"big", &NewInode::of_root(FileKind::Regular, 0o644, now())).unwrap();
    allocate(&fs, &big, FallocateMode::Allocate, GROUPS * 512).unwrap();
    let files = fill(&fs, "file", |file| write(&fs, file, 0, &[1; 8 * 4096]));
    files.iter().for_each(|file| write(&fs, file, BLOCK, &[2; 4096]).unwrap());
    assert!(is_one_extent(&fs, files.last().unwrap(), 8), "nodes are left");
    let mut expected = vec![0; (GROUPS * 512 * BLOCK) as usize];
    for group in 0..GROUPS {
        let at = (group * 512 + 7 * group) * BLOCK + 100;
        write(&fs, &big, at, &[9; 5000]).unwrap();
        expected[at as usize..at as usize + 5000].fill(9);
    }
    let is_written = |group: &u64| {
        let extents = fs.resolve(&big, FileBlock(group * 512), 512).unwrap();
        matches!(extents[..], [extent] if matches!(extent.place, Place::Pm(_)))
    };
    assert!((0..GROUPS).any(|group| is_written(&group)), "each group had room for a node");
    assert!(content(&fs, &big) == expected);
    drop((files, big));
    fs.unmount().unwrap();
    assert_sound(&pm);
}

/// Two files of 8 blocks on a full device without room for a node: one is allocated, and one has this content.
fn without_nodes(mode: FallocateMode) -> (Arc<SimPm>, Fs, Vec<u8>) {
    let pm = made(16 << 20);
    let fs = mount(&pm, "main");
    let create = |name: &str| {
        let new = NewInode::of_root(FileKind::Regular, 0o644, now());
        fs.create(&fs.root(), name.as_bytes(), &new).unwrap()
    };
    allocate(&fs, &create("allocated"), mode, 8).unwrap();
    let bytes: Vec<u8> = (0..8 * BLOCK).map(|index| (index % 251) as u8).collect();
    write(&fs, &create("written"), 0, &bytes).unwrap();
    let files = fill(&fs, "file", |file| write(&fs, file, 0, &[1; 8 * 4096]));
    // They take the nodes that are left.
    files.iter().for_each(|file| write(&fs, file, BLOCK, &[2; 4096]).unwrap());
    assert!(is_one_extent(&fs, files.last().unwrap(), 8), "nodes are left");
    drop(files);
    // It stays mounted: an unmount gives empty pool blocks back, which have room for nodes.
    (pm, fs, bytes)
}

/// Such a write is all or nothing after a crash.
#[test]
fn writes_without_room_for_a_node_are_atomic() {
    use FallocateMode::{Allocate, AllocateKeepSize};
    let cases: [(&str, FallocateMode, u64, usize); 6] = [
        ("allocated", Allocate, 2 * BLOCK, 4096),
        ("allocated", Allocate, 3 * BLOCK + 100, 9000),
        ("allocated", AllocateKeepSize, 0, 100),
        ("allocated", AllocateKeepSize, 4 * BLOCK + 9, 5000),
        ("written", Allocate, 2 * BLOCK, 4096),
        ("written", Allocate, BLOCK - 50, 100),
    ];
    for (name, mode, at, len) in cases {
        let what = format!("{len} bytes at {at} of {name}, {mode:?}");
        let (pm, fs, bytes) = without_nodes(mode);
        let file = fs.lookup(&fs.root(), name.as_bytes()).unwrap();
        let before = content(&fs, &file);
        assert!(name != "written" || before == bytes, "{what}");
        let mut after = before.clone();
        after.resize(after.len().max(at as usize + len), 0);
        after[at as usize..at as usize + len].fill(9);
        let base = pm.snapshot();
        pm.start_recording();
        write(&fs, &file, at, &vec![9; len]).unwrap();
        let trace = pm.stop_recording();
        let shown = (after.len() as u64).div_ceil(BLOCK);
        assert!(is_one_extent(&fs, &file, shown), "{what}: it has no node");
        assert!(content(&fs, &file) == after, "{what}");
        drop(file);
        fs.abandon();
        let mut replay = Replay::new(base, &trace);
        let (mut old, mut new) = (0, 0);
        while let Some(point) = replay.advance() {
            let sampling = Sampling { exhaustive_up_to: 4, samples: 6, seed: point.index as u64 };
            for image in replay.images(&sampling).iter() {
                let pm = Arc::new(SimPm::new(16 << 20));
                pm.load(replay.media());
                image.apply(&pm);
                let fs = mount(&pm, "main");
                let file = fs.lookup(&fs.root(), name.as_bytes()).unwrap();
                let found = content(&fs, &file);
                assert!(found == before || found == after, "{what}, {point:?}: neither old nor new");
                *if found == after { &mut new } else { &mut old } += 1;
                drop(file);
                fs.unmount().unwrap();
                assert_sound(&pm);
            }
        }
        assert!(old > 0 && new > 0, "{what}: {old} old and {new} new images");
    }
}

/// Pool blocks that are missing keep no blocks that they could not take.
#[test]
fn what_small_files_give_back_can_be_taken_on_a_full_device() {
    let pm = made(64 << 20);
    let fs = mount(&pm, "main");
    let small = |number: u64| format!("small-{number}");
    for number in 0..300 {
        let new = NewInode::of_root(FileKind::Regular, 0o644, now());
        let file = fs.create(&fs.root(), small(number).as_bytes(), &new).unwrap();
        write(&fs, &file, 0, &[1; BLOCK as usize]).unwrap();
    }
    let large = fs.create(&fs.root(), b"large", &NewInode::of_root(FileKind::Regular, 0o644, now())).unwrap();
    let mut end = 0;
    let mut fill_up = || {
        for size in [1 << 20, BLOCK] {
            while write(&fs, &large, end, &vec![2; size as usize]).is_ok() {
                end += size;
            }
        }
    };
    fill_up();
    let empty = fill(&fs, "empty", |_| Ok(()));
    assert!(empty.len() > 300, "{}", empty.len());
    fill_up();
    (0..300).for_each(|number| fs.unlink(&fs.root(), small(number).as_bytes(), now()).unwrap());
    let taken =
        empty.iter().take(300).take_while(|file| write(&fs, file, 0, &[3; BLOCK as usize]).is_ok()).count();
    // A part may go to the reserve.
    assert!(taken > 150, "{taken}");
    drop((empty, large));
    fs.unmount().unwrap();
    assert_sound(&pm);
}
