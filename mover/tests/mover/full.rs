//! A full file system over tiers. PM that was full of unwritten blocks was full for good, however empty its tier was.
//! Pieces of one file were demoted as one batch, whose entries took more log pages than the reserve has. Existing
//! blocks could not be overwritten.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Kind, Names, NewInode,
    Resource, Result, Timestamp, WriteAt, XattrMode,
};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{Budget, MoverOptions, PIN, TIER, TieredFs};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

use crate::batches::machine::{Layout, Node};

type Fs<L> = TieredFs<L, SimDisk>;

const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const MIB: u64 = 1 << 20;

fn options(group: u64) -> MoverOptions {
    MoverOptions { balance: false, group: group / BLOCK_SIZE, ..MoverOptions::default() }
}

fn machine<L: Layout>(memory: u64, tier: u64, group: u64) -> (Arc<SimPm>, Fs<L>) {
    let memory = Arc::new(SimPm::with_disks(memory, &[tier]));
    L::mkfs(&memory, &MkfsOptions::default()).expect("mkfs");
    let layout = L::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::<L>::new(layout, options(group));
    fs.add(SimDisk::of(&memory, 0), Uuid::from_u128(7), 1, 1, NOW).expect("a tier");
    (memory, fs)
}

fn create<L: Layout>(fs: &Fs<L>, name: &str) -> Result<Node<L>> {
    let (kind, mode) = (FileKind::Regular, 0o644);
    let new = NewInode { kind, mode, uid: 0, gid: 0, rdev: 0, now: NOW, xattrs: &[], target: &[] };
    fs.create(&fs.root(), name.as_bytes(), &new)
}

fn write<L: Layout>(fs: &Fs<L>, node: &Node<L>, offset: u64, bytes: &[u8]) -> Result<u64> {
    fs.write(node, WriteAt::Offset(offset), &[IoSlice::new(bytes)], Durability::Now, NOW)
}

fn byte_at<L: Layout>(fs: &Fs<L>, node: &Node<L>, offset: u64) -> u8 {
    let mut byte = [0];
    assert_eq!(fs.read(node, offset, &mut byte, None).expect("read"), 1);
    byte[0]
}

/// Fills PM with blocks that are not written, in files of their own; gives these.
fn preallocate<L: Layout>(fs: &Fs<L>, mode: FallocateMode) -> Vec<Node<L>> {
    let mut files = Vec::new();
    let mut size = fs.layout().stat().available / 2;
    while size > 0 {
        if fs.layout().stat().available < size {
            size /= 2;
            continue;
        }
        let node = create(fs, &format!("allocated-{}", files.len())).expect("a file");
        fs.fallocate(&node, mode, 0, size * BLOCK_SIZE, NOW).expect("space");
        files.push(node);
    }
    files
}

fn assert_sound<L: Layout>(memory: &Arc<SimPm>, fs: Fs<L>) {
    Lifecycle::abandon(fs.into_layout());
    let report = L::check(memory, Repair::None, None).expect("check");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// A write that finds PM full relocates a bounded number of blocks, and a write on a full file system none.
fn a_write_on_a_full_device_moves_a_bounded_amount<L: Layout>() {
    const GROUP: u64 = MIB;
    /// The least that direct reclaim makes free, in blocks.
    const AT_LEAST: u64 = 2048;
    let (_, fs) = machine::<L>(32 * MIB, 64 * MIB, GROUP);
    let file = create(&fs, "file").expect("there is room");
    let block = [7; BLOCK_SIZE as usize];
    let (mut relocations, mut offset) = (0, 0);
    let error = loop {
        let before = fs.status().moved;
        match write(&fs, &file, offset, &block) {
            Ok(_) => offset += BLOCK_SIZE,
            Err(error) => break error,
        }
        let moved = fs.status().moved - before;
        assert!(moved <= AT_LEAST * BLOCK_SIZE + GROUP, "{moved} bytes moved at {offset}");
        relocations += u64::from(moved > 0);
    };
    assert!((4..=64 * MIB / BLOCK_SIZE).contains(&relocations), "{relocations} relocations");
    assert_eq!(error.shortage().map(|shortage| shortage.of), Some(Resource::Pm));
    assert!(error.to_string().contains("of PM"), "{error}");
    let before = fs.status().moved;
    for _ in 0..10 {
        assert_eq!(write(&fs, &file, offset, &block).map_err(|error| error.kind()), Err(Kind::NoSpace));
    }
    assert_eq!(fs.status().moved, before);
}

fn blocks_that_were_never_written_make_room<L: Layout>() {
    for mode in [FallocateMode::Allocate, FallocateMode::AllocateKeepSize] {
        let (memory, fs) = machine::<L>(16 * MIB, 64 * MIB, 16 * MIB);
        let files = preallocate(&fs, mode);
        assert!(fs.layout().stat().available < 16, "memory is full");
        let used =
            |fs: &Fs<L>| fs.layout().tier_space(1).map(|space| space.blocks - space.free).expect("a tier");
        for index in 0..600 {
            let node = create(&fs, &format!("new-{index}")).expect("the tier is empty");
            write(&fs, &node, 0, &[7; 5000]).expect("the tier is empty");
        }
        assert!(used(&fs) > 100, "{} blocks are on the tier", used(&fs));
        // They are the file's as before.
        let first = &files[0];
        let allocated = fs.getattr(first).expect("attributes").allocated;
        write(&fs, first, 3 * BLOCK_SIZE, &[9; 10_000]).expect("it has the space");
        assert_eq!((byte_at(&fs, first, 0), byte_at(&fs, first, 3 * BLOCK_SIZE + 1)), (0, 9));
        assert_eq!(fs.getattr(first).expect("attributes").allocated, allocated);
        drop(files);
        assert_sound(&memory, fs);
    }
}

/// A demoted file left its preallocated blocks on PM.
fn a_demoted_file_takes_its_unwritten_blocks_along<L: Layout>() {
    const BLOCKS: u64 = 8 * MIB / BLOCK_SIZE;
    let (memory, fs) = machine::<L>(64 * MIB, 64 * MIB, MIB);
    let used = |fs: &Fs<L>| fs.layout().tier_space(1).map(|space| space.blocks - space.free).expect("a tier");
    let put = |name: &str, mode| {
        let node = create(&fs, name).expect("a file");
        fs.fallocate(&node, mode, 0, BLOCKS * BLOCK_SIZE, NOW).expect("space");
        write(&fs, &node, 3 * MIB, &[9; 10_000]).expect("it has the space");
        node
    };
    let modes = [FallocateMode::Allocate, FallocateMode::AllocateKeepSize];
    let files: Vec<Node<L>> = ["one", "two"].iter().zip(modes).map(|(name, mode)| put(name, mode)).collect();
    let hinted = put("hinted", FallocateMode::Allocate);
    let free = fs.layout().stat().available;
    assert_eq!(used(&fs), 0);

    // A range of a file is its written blocks only.
    assert_eq!(fs.demote(&files[0], 1, FileBlock(0), BLOCKS, false).expect("room").moved, 3);
    assert_eq!(fs.demote(&files[0], 1, FileBlock(0), u64::MAX, false).expect("room").moved, BLOCKS - 3);
    assert_eq!(used(&fs), BLOCKS);
    let done = fs.demote_some(&files, FileBlock(0), 1, &Budget::default());
    assert_eq!((done.moved, done.next, done.failed.len()), (BLOCKS, 2, 0));
    assert_eq!(used(&fs), 2 * BLOCKS);
    fs.set_xattr(&hinted, TIER, b"1", XattrMode::Set, None, NOW).expect("a hint");
    fs.tick(1_700_010_000_000, &Budget::default()).expect("it moves");
    assert_eq!((used(&fs), fs.status().told), (3 * BLOCKS, 0));
    let freed = fs.layout().stat().available - free;
    assert!((3 * BLOCKS - 16..=3 * BLOCKS).contains(&freed), "{freed} blocks of PM are free again");
    for node in files.iter().chain([&hinted]) {
        assert_eq!(fs.getattr(node).expect("attributes").allocated, BLOCKS * BLOCK_SIZE);
        assert_eq!((byte_at(&fs, node, MIB), byte_at(&fs, node, 3 * MIB + 9999)), (0, 9));
    }

    // A file whose unwritten blocks find no room keeps them on PM, and says so.
    let large = create(&fs, "large").expect("a file");
    fs.fallocate(&large, FallocateMode::Allocate, 0, 48 * MIB, NOW).expect("space");
    let error = fs.demote(&large, 1, FileBlock(0), u64::MAX, false).expect_err("no room");
    assert_eq!((error.kind(), used(&fs)), (Kind::NoSpace, 3 * BLOCKS));
    fs.set_xattr(&large, TIER, b"1", XattrMode::Set, None, NOW).expect("a hint");
    fs.tick(1_700_010_001_000, &Budget::default()).expect("it goes on");
    let refused = fs.status().refused.expect("there is no room");
    assert!(refused.contains("no space"), "{refused}");
    drop((files, hinted, large));
    assert_sound(&memory, fs);
}

/// After a mount nobody knows of them.
fn they_are_found_after_a_mount<L: Layout>() {
    let (memory, fs) = machine::<L>(16 * MIB, 64 * MIB, 16 * MIB);
    drop(preallocate(&fs, FallocateMode::AllocateKeepSize));
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    let layout = L::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::<L>::new(layout, options(16 * MIB));
    fs.attach(SimDisk::of(&memory, 0), Uuid::from_u128(7), Some(2)).expect("the tier");
    for index in 0..300 {
        create(&fs, &format!("new-{index}")).expect("the tier is empty");
    }
    assert_sound(&memory, fs);
}

/// Space that nobody can use is not available.
fn what_cannot_move_is_told_by_what_is_available<L: Layout>() {
    let (memory, fs) = machine::<L>(16 * MIB, 64 * MIB, 16 * MIB);
    let root = fs.root();
    fs.set_xattr(&root, PIN, b"1", XattrMode::Set, None, NOW).expect("a pin");
    let files = preallocate(&fs, FallocateMode::Allocate);
    assert!(fs.stat().available > 1000, "the tier is empty");
    let error =
        (0..100_000).find_map(|index| create(&fs, &format!("new-{index}")).err()).expect("it is full");
    assert_eq!(error.kind(), Kind::NoSpace);
    assert_eq!((fs.stat().available, fs.stat().inodes_free), (0, 0));
    // Existing blocks can be written.
    write(&fs, &files[0], 0, &[5; 100_000]).expect("it has the space");
    write(&fs, &files[0], 7, &[6; 100_000]).expect("it has the space");
    // PM that is free again is available, and so are blocks that may move.
    fs.unlink(&root, b"allocated-1", NOW).expect("unlink");
    drop(files);
    assert!(fs.stat().available > 1000 && fs.stat().inodes_free > 0);
    create(&fs, "another").expect("there is room");
    assert_sound(&memory, fs);
}

/// Random writes to a file that is larger than PM, one block each: its log has an entry for each block.
fn a_file_in_many_pieces_moves_over_all_sizes_of_memory_and_groups<L: Layout>() {
    for (memory, group) in [(16, 16), (16, 256), (16, 1), (32, 256)] {
        let (pm, fs) = machine::<L>(memory * MIB, 128 * MIB, group * MIB);
        let file = create(&fs, "file").expect("a file");
        let blocks = 3 * memory * MIB / BLOCK_SIZE;
        let mut random = SmallRng::seed_from_u64(memory + group);
        let mut last = vec![0; blocks as usize];
        for turn in 0..2 * blocks {
            let block = random.random_range(0..blocks);
            let byte = (turn % 251) as u8 + 1;
            write(&fs, &file, block * BLOCK_SIZE, &[byte; BLOCK_SIZE as usize])
                .unwrap_or_else(|error| panic!("{memory} MiB, groups of {group}, turn {turn}: {error}"));
            last[block as usize] = byte;
        }
        let size = fs.getattr(&file).expect("attributes").size;
        for (block, byte) in (0..size / BLOCK_SIZE).zip(last) {
            assert_eq!(byte_at(&fs, &file, block * BLOCK_SIZE), byte, "block {block}");
        }
        drop(file);
        assert_sound(&pm, fs);
    }
}

/// PM and the tier are full, and existing blocks are overwritten wherever they are.
fn what_is_there_can_be_overwritten_when_everything_is_full<L: Layout>() {
    let (memory, fs) = machine::<L>(16 * MIB, 8 * MIB, MIB);
    let old = create(&fs, "old").expect("a file");
    let allocated = create(&fs, "allocated").expect("a file");
    write(&fs, &old, 0, &vec![1; MIB as usize]).expect("space");
    fs.demote(&old, 1, nacre_engine::FileBlock(0), 64, false).expect("it moves");
    fs.fallocate(&allocated, FallocateMode::Allocate, 0, MIB, NOW).expect("space");
    let filler = create(&fs, "filler").expect("a file");
    let (mut size, mut piece) = (0, 65_536);
    while piece > 0 {
        match write(&fs, &filler, size, &vec![2; piece]) {
            Ok(_) => size += piece as u64,
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace);
                piece = if piece > 4096 { 4096 } else { 0 };
            }
        }
    }
    assert!(size > 19 * MIB && fs.stat().available < 64, "{size} bytes and {:?}", fs.stat());
    let mut random = SmallRng::seed_from_u64(8);
    let mut content = [vec![1; MIB as usize], vec![0; MIB as usize], vec![2; size as usize]];
    for turn in 0..3000 {
        let which = turn % 3;
        let node = [&old, &allocated, &filler][which];
        let len = [1, 4096, 3000, 65_536, 8192][turn % 5];
        let offset = random.random_range(0..=(content[which].len() - len) as u64);
        let offset = if turn % 2 == 0 { offset / BLOCK_SIZE * BLOCK_SIZE } else { offset };
        let bytes = vec![(turn % 200) as u8 + 3; len];
        write(&fs, node, offset, &bytes)
            .unwrap_or_else(|error| panic!("turn {turn}, {len} bytes at {offset} of {which}: {error}"));
        content[which][offset as usize..offset as usize + len].copy_from_slice(&bytes);
    }
    for (which, content) in content.iter().enumerate() {
        let node = [&old, &allocated, &filler][which];
        let mut found = vec![0; content.len()];
        assert_eq!(fs.read(node, 0, &mut found, None).expect("read"), found.len());
        let differs = found.iter().zip(content).position(|(found, is)| found != is);
        assert_eq!(differs, None, "file {which}");
    }
    drop((old, allocated, filler));
    assert_sound(&memory, fs);
}

over_each_layout!(
    a_write_on_a_full_device_moves_a_bounded_amount,
    blocks_that_were_never_written_make_room,
    a_demoted_file_takes_its_unwritten_blocks_along,
    they_are_found_after_a_mount,
    what_cannot_move_is_told_by_what_is_available,
    a_file_in_many_pieces_moves_over_all_sizes_of_memory_and_groups,
    what_is_there_can_be_overwritten_when_everything_is_full,
);
