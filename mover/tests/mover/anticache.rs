//! Anti-caching over the shadow layout (paper 004): PM holds what was used last, exactly up to the threshold, and a block
//! has one valid copy.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Kind, Names, NewInode, Place,
    TierBlocks, TierRun, TierTable, Timestamp, WriteAt,
};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_shadow::{MkfsOptions, MountOptions, ShadowFs, mkfs};
use nacre_media::SimPm;
use nacre_mover::{Budget, MoverOptions, Phase, Threshold, TieredFs};
use uuid::Uuid;

use crate::batches::machine::Disk;

type Fs = TieredFs<ShadowFs<SimPm>, Disk>;
type Node = <Fs as Names>::Node;

/// Blocks of a file of figure 4: 40 KB.
const FILE: u64 = 10;
const FILES: u64 = 10;
const NOW_MS: u64 = 1_700_000_000_000;
const VOLUME: Uuid = Uuid::from_u128(7);

fn options(blocks: u64) -> MoverOptions {
    MoverOptions { anticache: Some(Threshold::Bytes(blocks * BLOCK_SIZE)), ..MoverOptions::default() }
}

fn now(second: u64) -> Timestamp {
    Timestamp::new(1_700_000_000 + second as i64, 0)
}

fn bytes(file: u64) -> Vec<u8> {
    (0..FILE * BLOCK_SIZE).map(|at| (at / 64 + file * 31) as u8).collect()
}

fn write(fs: &Fs, node: &Node, offset: u64, data: &[u8], second: u64) {
    let at = WriteAt::Offset(offset);
    fs.write(node, at, &[IoSlice::new(data)], Durability::Now, now(second)).expect("write");
}

/// Ten files of 40 KB, the first one written first, and room for `blocks` of their blocks.
fn ten_files(blocks: u64) -> (Arc<SimPm>, Fs, Vec<Node>) {
    let (pm, _, fs, nodes) = ten_files_over(&[64 << 20], blocks);
    (pm, fs, nodes)
}

/// The same over disks of so many bytes, the first one the fastest.
fn ten_files_over(disks: &[u64], blocks: u64) -> (Arc<SimPm>, Vec<Disk>, Fs, Vec<Node>) {
    ten_files_with(disks, options(blocks))
}

/// The same with these options.
fn ten_files_with(disks: &[u64], options: MoverOptions) -> (Arc<SimPm>, Vec<Disk>, Fs, Vec<Node>) {
    let pm = Arc::new(SimPm::with_disks(64 << 20, disks));
    mkfs(&*pm, &MkfsOptions::default()).expect("mkfs");
    let layout = ShadowFs::mount(Arc::clone(&pm), &MountOptions::default()).expect("mount");
    let fs = Fs::new(layout, options);
    let disks: Vec<Disk> = (0..disks.len()).map(|number| Disk::of(&pm, number)).collect();
    for (disk, rank) in disks.iter().zip(1..) {
        fs.add(disk.clone(), VOLUME, rank, 1, now(0)).expect("a tier");
    }
    let nodes = (0..FILES).map(|file| {
        let node = create(&fs, &format!("file-{file}"), file);
        write(&fs, &node, 0, &bytes(file), file);
        node
    });
    let nodes = nodes.collect();
    (pm, disks, fs, nodes)
}

fn create(fs: &Fs, name: &str, second: u64) -> Node {
    let new = NewInode::of_root(FileKind::Regular, 0o644, now(second));
    fs.create(&fs.root(), name.as_bytes(), &new).expect("create")
}

/// The same file system after an unmount and a mount. The next pass that finds too much on PM walks over all files, and
/// its list knows each block there.
fn again(pm: &Arc<SimPm>, disks: &[Disk], fs: Fs, blocks: u64) -> (Fs, Vec<Node>) {
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    let layout = ShadowFs::mount(Arc::clone(pm), &MountOptions::default()).expect("mount");
    let fs = Fs::new(layout, options(blocks));
    disks.iter().for_each(|disk| _ = fs.attach(disk.clone(), VOLUME, Some(2)).expect("its tier"));
    let nodes = (0..FILES).map(|file| fs.lookup(&fs.root(), format!("file-{file}").as_bytes()));
    let nodes = nodes.collect::<Result<_, _>>().expect("they are there");
    (fs, nodes)
}

fn tick(fs: &Fs) -> u64 {
    fs.tick(NOW_MS, &Budget::default()).expect("it goes on")
}

/// How many blocks of a file are on PM.
fn on_pm(fs: &Fs, node: &Node) -> u64 {
    let extents = fs.layout().resolve(node, FileBlock(0), FILE).expect("its places");
    extents.iter().filter(|extent| matches!(extent.place, Place::Pm(_))).map(|extent| extent.len).sum()
}

fn all_on_pm(fs: &Fs, nodes: &[Node]) -> Vec<u64> {
    nodes.iter().map(|node| on_pm(fs, node)).collect()
}

/// The files from one on are as they were written.
fn all_are_whole(fs: &Fs, nodes: &[Node], first: u64) {
    for (file, node) in (first..).zip(nodes) {
        let mut seen = vec![0; (FILE * BLOCK_SIZE) as usize];
        fs.read(node, 0, &mut seen, None).expect("read");
        assert!(seen == bytes(file), "file {file}");
    }
}

/// Reads a file, and has those who read ahead do what that left to them.
fn read(fs: &Fs, node: &Node, file: u64) {
    fs.ahead().begin();
    let mut seen = vec![0; (FILE * BLOCK_SIZE) as usize];
    let count = fs.read(node, 0, &mut seen, Some(now(100))).expect("read");
    assert!(count == seen.len() && seen == bytes(file), "the content of file {file}");
    if on_pm(fs, node) < FILE {
        let fetch = fs.ahead().take().expect("blocks that come up");
        fs.fetch(&fetch).expect("they come");
    }
}

#[test]
fn exactly_the_excess_goes_and_the_oldest_first() {
    let (_, fs, nodes) = ten_files(25);
    assert_eq!(fs.layout().pm_use().data, FILES * FILE);
    assert_eq!(tick(&fs), FILES * FILE - 25);
    assert_eq!(fs.layout().pm_use().data, 25, "exact to the block");
    assert_eq!(all_on_pm(&fs, &nodes), [0, 0, 0, 0, 0, 0, 0, 5, 10, 10]);
    assert_eq!(tick(&fs), 0, "there is nothing above it");
    all_are_whole(&fs, &nodes, 0);
}

/// It spoke of the threshold of the rules that anti-caching replaces, and named files on the tier that were to move down.
#[test]
fn the_status_is_that_of_anti_caching() {
    // Five files leave, and a half of the next one.
    let (_pm, fs, nodes) = ten_files(45);
    let seen = || {
        let status = fs.status();
        (status.phase, status.is_idle, status.queue.files, status.queue.first.len())
    };
    assert_eq!(seen(), (Phase::Beginning, false, 0, 0));
    assert_eq!(tick(&fs), 55);
    assert_eq!(seen(), (Phase::BelowAnticache, true, 0, 0));
    let hottest = fs.temperature().expect("nothing moves").hottest;
    let mut places = BTreeSet::new();
    for hot in hottest {
        let node = nodes.iter().find(|node| fs.id(node).number == hot.inode).expect("one of the files");
        let on = match on_pm(&fs, node) {
            0 => "1",
            FILE => "pm",
            _ => "pm,1",
        };
        assert_eq!((&hot.on[..], hot.is_below), (on, on != "pm"));
        places.insert(hot.on);
    }
    assert_eq!(places.len(), 3, "{places:?}");
    // Its hours and its pause are as with the other rules.
    fs.pause(true);
    assert_eq!(seen(), (Phase::Paused, true, 0, 0));
}

#[test]
fn what_is_read_comes_up_and_leaves_no_second_copy() {
    let (_, fs, nodes) = ten_files(FILE);
    tick(&fs);
    assert_eq!(all_on_pm(&fs, &nodes), [0, 0, 0, 0, 0, 0, 0, 0, 0, 10]);
    let used = |fs: &Fs| {
        let space = fs.layout().tier_space(1).expect("a tier");
        space.blocks - space.free
    };
    assert_eq!(used(&fs), (FILES - 1) * FILE);
    read(&fs, &nodes[2], 2);
    assert_eq!((on_pm(&fs, &nodes[2]), used(&fs)), (FILE, (FILES - 2) * FILE));
    assert_eq!(tick(&fs), FILE, "the file that was written last makes room");
    assert_eq!(all_on_pm(&fs, &nodes), [0, 0, 10, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fs.layout().pm_use().data + used(&fs), FILES * FILE, "each block is in one place");
}

#[test]
fn a_write_of_a_cold_block_needs_no_read_unless_it_keeps_a_part() {
    let (_, fs, nodes) = ten_files(FILE);
    tick(&fs);
    let read_from_disk = |fs: &Fs| fs.tiers().traffic().0;
    let before = read_from_disk(&fs);
    write(&fs, &nodes[0], 3 * BLOCK_SIZE, &[7; BLOCK_SIZE as usize], 200);
    assert_eq!((on_pm(&fs, &nodes[0]), read_from_disk(&fs)), (1, before));
    write(&fs, &nodes[0], 5 * BLOCK_SIZE + 100, b"part", 201);
    assert_eq!(on_pm(&fs, &nodes[0]), 2, "that block came up first");
    let mut expected = bytes(0);
    expected[3 * BLOCK_SIZE as usize..4 * BLOCK_SIZE as usize].fill(7);
    expected[5 * BLOCK_SIZE as usize + 100..][..4].copy_from_slice(b"part");
    let mut seen = vec![0; expected.len()];
    fs.read(&nodes[0], 0, &mut seen, None).expect("read");
    assert!(seen == expected);
}

/// Blocks that were evicted are in one place; those that are read ahead to DRAM have a lifetime.
#[test]
fn blocks_in_dram_without_a_read_do_not_stay() {
    let (_, fs, nodes) = ten_files(FILE);
    tick(&fs);
    let in_dram = || fs.tiers().pages().bytes();
    assert_eq!(in_dram(), 0, "a block that was evicted has one copy");
    for found in fs.layout().resolve(&nodes[1], FileBlock(0), FILE).expect("its places") {
        let Place::Tier { tier, block } = found.place else { panic!("{found:?} is not on a tier") };
        fs.tiers().fetch(TierRun { tier, start: block, len: found.len });
    }
    assert_eq!(in_dram(), FILE * BLOCK_SIZE, "read ahead");
    let mut seen = vec![0; (FILE * BLOCK_SIZE) as usize];
    fs.read(&nodes[0], 0, &mut seen, None).expect("read");
    fs.read(&nodes[0], 0, &mut seen, None).expect("read from DRAM");
    for seconds in [5, 10, 15] {
        fs.tick(NOW_MS + seconds * 1000, &Budget::default()).expect("it goes on");
    }
    assert_eq!(in_dram(), FILE * BLOCK_SIZE, "the blocks that were read");
    // The time is a setting.
    for found in fs.layout().resolve(&nodes[1], FileBlock(0), FILE).expect("its places") {
        let Place::Tier { tier, block } = found.place else { panic!("{found:?} is not on a tier") };
        fs.tiers().fetch(TierRun { tier, start: block, len: found.len });
    }
    fs.change(&MoverOptions { prefetch_age_ms: 50, ..options(FILE) });
    for ms in [16_000, 16_050] {
        assert_eq!(in_dram(), 2 * FILE * BLOCK_SIZE, "read ahead");
        fs.tick(NOW_MS + ms, &Budget::default()).expect("it goes on");
    }
    assert_eq!(in_dram(), FILE * BLOCK_SIZE, "no read came");
}

/// A write that finds no space takes it from the tail of the same list, though the threshold is not reached.
#[test]
fn a_write_without_space_takes_that_of_the_oldest_blocks() {
    let (_, fs, nodes) = ten_files(16 << 10);
    let rest = fs.layout().stat().available - 64;
    let file = create(&fs, "large", 50);
    let piece = vec![3; 256 * BLOCK_SIZE as usize];
    for at in 0..rest / 256 {
        write(&fs, &file, at * 256 * BLOCK_SIZE, &piece, 50);
    }
    // Not by files, and not by writes alone: a file was read since, and one block of another was written.
    read(&fs, &nodes[4], 4);
    write(&fs, &nodes[2], 3 * BLOCK_SIZE, &[7; BLOCK_SIZE as usize], 51);
    assert_eq!(all_on_pm(&fs, &nodes), [FILE; FILES as usize]);
    for at in rest / 256..rest / 256 + 2 {
        write(&fs, &file, at * 256 * BLOCK_SIZE, &piece, 52);
    }
    assert_eq!(all_on_pm(&fs, &nodes), [0, 0, 1, 0, 10, 0, 0, 0, 0, 0]);
    assert!(fs.status().evicted >= (8 * FILE + 9) * BLOCK_SIZE);
}

/// After a mount nothing was used: the files go in the order of their last modification.
#[test]
fn after_a_mount_the_files_that_were_modified_first_go_first() {
    let (pm, disks, fs, nodes) = ten_files_over(&[64 << 20], FILES * FILE);
    assert_eq!(tick(&fs), 0);
    write(&fs, &nodes[0], 0, &bytes(0), 300);
    drop(nodes);
    let (fs, nodes) = again(&pm, &disks, fs, 2 * FILE);
    assert_eq!(fs.layout().pm_use().data, FILES * FILE);
    assert_eq!(tick(&fs), (FILES - 2) * FILE);
    assert_eq!(all_on_pm(&fs, &nodes), [10, 0, 0, 0, 0, 0, 0, 0, 0, 10]);
}

/// A disk with room for a part of a file took that part, and the list had given up all of it: the rest never left PM.
#[test]
fn what_found_no_room_on_the_first_disk_leaves_all_the_same() {
    let (pm, disks, fs, nodes) = ten_files_over(&[256 * BLOCK_SIZE, 64 << 20], FILES * FILE);
    // Of 256 blocks the first and the last are the tier's own, and four are left.
    let filler = create(&fs, "filler", 50);
    write(&fs, &filler, 0, &vec![3; 250 * BLOCK_SIZE as usize], 50);
    fs.demote(&filler, 1, FileBlock(0), 250, false).expect("there is room");
    drop((nodes, filler));
    let (fs, nodes) = again(&pm, &disks, fs, 25);
    let free = |tier| fs.layout().tier_space(tier).expect("a tier").free;
    assert_eq!((free(1), fs.layout().pm_use().data), (4, FILES * FILE));
    assert_eq!(tick(&fs), FILES * FILE - 25);
    assert_eq!((free(1), fs.layout().pm_use().data), (0, 25), "exact to the block");
    fs.change(&options(0));
    tick(&fs);
    assert_eq!((fs.layout().pm_use().data, all_on_pm(&fs, &nodes)), (0, vec![0; FILES as usize]));
    all_are_whole(&fs, &nodes, 0);
}

/// A block is written while it is copied, by a write that leaves no sample.
#[test]
fn what_is_written_on_its_way_leaves_later() {
    let (pm, disks, fs, nodes) = ten_files_over(&[64 << 20], FILES * FILE);
    drop(nodes);
    let (fs, nodes) = again(&pm, &disks, fs, 25);
    let (fs, node) = (Arc::new(fs), nodes[0].clone());
    let other = Arc::clone(&fs);
    *disks[0].meanwhile.lock().unwrap() = Some(Box::new(move || {
        let first = &bytes(0)[..BLOCK_SIZE as usize];
        let (at, data) = (WriteAt::Offset(0), [IoSlice::new(first)]);
        other.layout().write(&node, at, &data, Durability::Now, now(400)).expect("write");
    }));
    assert_eq!(tick(&fs), FILES * FILE - 25);
    assert!(disks[0].meanwhile.lock().unwrap().is_none(), "it was written");
    assert_eq!((fs.layout().pm_use().data, on_pm(&fs, &nodes[0])), (25, 1), "exact to the block");
    for blocks in [20, 7, 0] {
        fs.change(&options(blocks));
        tick(&fs);
        assert_eq!(fs.layout().pm_use().data, blocks, "exact to the block");
    }
    all_are_whole(&fs, &nodes, 0);
}

/// The oldest block cannot be read: it was chosen at each pass, and nothing else left PM.
#[test]
fn a_block_that_cannot_be_read_keeps_no_other_on_pm() {
    let (pm, fs, nodes) = ten_files(95);
    let Place::Pm(bad) = fs.layout().resolve(&nodes[0], FileBlock(0), 1).expect("its place")[0].place else {
        panic!("it is on PM")
    };
    pm.poison(bad.offset(), 64);
    let pass = || fs.tick(NOW_MS, &Budget::default()).map_err(|error| error.kind());
    assert_eq!(pass(), Err(Kind::Media));
    assert_eq!((pass(), fs.layout().pm_use().data), (Ok(5), 95));
    assert_eq!(on_pm(&fs, &nodes[0]), 5, "the blocks that were chosen with it");
    fs.change(&options(0));
    assert_eq!(pass(), Err(Kind::Media));
    assert_eq!(all_on_pm(&fs, &nodes), [5, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    all_are_whole(&fs, &nodes[1..], 1);
}

/// Blocks that were never written counted as data and could not leave: all data left PM for them, again and again.
#[test]
fn blocks_that_were_never_written_send_no_data_to_disk() {
    let (pm, disks, fs, nodes) = ten_files_over(&[64 << 20], FILES * FILE);
    let allocate = |fs: &Fs, name: &str, blocks: u64| {
        let node = create(fs, name, 50);
        fs.fallocate(&node, FallocateMode::Allocate, 0, blocks * BLOCK_SIZE, now(50)).expect("space");
        node
    };
    let used = |fs: &Fs| {
        let space = fs.layout().tier_space(1).expect("a tier");
        space.blocks - space.free
    };
    let one = allocate(&fs, "one", 200);
    assert_eq!((fs.layout().pm_use().data, used(&fs)), (FILES * FILE + 200, 0));
    assert_eq!((tick(&fs), tick(&fs)), (200, 0));
    assert_eq!((fs.layout().pm_use().data, used(&fs)), (FILES * FILE, 200), "exact to the block");
    assert_eq!(all_on_pm(&fs, &nodes), [FILE; FILES as usize]);
    assert_eq!(fs.tiers().traffic(), (0, 0), "nothing was copied");
    // After a mount they are found like all others.
    let other = allocate(&fs, "other", 150);
    drop((nodes, one, other));
    let (fs, nodes) = again(&pm, &disks, fs, FILES * FILE);
    assert_eq!((fs.layout().pm_use().data, tick(&fs)), (FILES * FILE + 150, 150));
    assert_eq!((all_on_pm(&fs, &nodes), used(&fs)), (vec![FILE; FILES as usize], 350));
    // One that is written is data, and the oldest block leaves for it.
    let one = fs.lookup(&fs.root(), b"one").expect("a file");
    write(&fs, &one, 7 * BLOCK_SIZE, &[7; BLOCK_SIZE as usize], 60);
    assert_eq!((tick(&fs), on_pm(&fs, &nodes[0]), used(&fs)), (1, FILE - 1, 350));
    let mut seen = [9; 2 * BLOCK_SIZE as usize];
    fs.read(&one, 6 * BLOCK_SIZE, &mut seen, None).expect("read");
    assert!(seen[..4096].iter().all(|byte| *byte == 0) && seen[4096..].iter().all(|byte| *byte == 7));
}

/// While it is off it sees no accesses; the list is not complete when it is on again.
#[test]
fn what_was_written_while_it_was_off_leaves_too() {
    let (pm, disks, fs, nodes) = ten_files_over(&[64 << 20], FILES * FILE);
    drop(nodes);
    let (fs, nodes) = again(&pm, &disks, fs, 50);
    assert_eq!(tick(&fs), 50);
    fs.change(&MoverOptions::default());
    write(&fs, &nodes[0], 0, &bytes(0), 300);
    assert_eq!((tick(&fs), fs.layout().pm_use().data), (0, 60));
    fs.change(&options(0));
    assert_eq!((tick(&fs), fs.layout().pm_use().data), (60, 0));
    all_are_whole(&fs, &nodes, 0);
}

/// The list was full and gave up the oldest blocks: these stayed, and newer ones left.
#[test]
fn blocks_for_which_the_list_is_too_short_leave_first() {
    // 56 blocks, and four runs that a walk found.
    let few = MoverOptions { known_files: 8, ..options(FILES * FILE) };
    let (_, _, fs, nodes) = ten_files_with(&[64 << 20], few);
    let whole = FILE;
    for (blocks, expected) in [
        (95, [5, whole, whole, whole, whole, whole, whole, whole, whole, whole]),
        (50, [0, 0, 0, 0, 0, whole, whole, whole, whole, whole]),
        (7, [0, 0, 0, 0, 0, 0, 0, 0, 0, 7]),
    ] {
        let before = fs.layout().pm_use().data;
        fs.change(&options(blocks));
        assert_eq!(tick(&fs), before - blocks, "exact to the block");
        assert_eq!(all_on_pm(&fs, &nodes), expected, "{blocks} blocks");
    }
    all_are_whole(&fs, &nodes, 0);
}

/// As little as possible is known, of blocks, of runs and of files: all blocks leave, and no more than the excess.
#[test]
fn however_little_is_known_no_block_is_forgotten() {
    let few = MoverOptions { known_files: 1, ..options(FILES * FILE) };
    let (_, _, fs, nodes) = ten_files_with(&[64 << 20], few);
    for blocks in [99, 60, 23, 1, 0] {
        fs.change(&options(blocks));
        tick(&fs);
        assert_eq!(fs.layout().pm_use().data, blocks, "exact to the block");
    }
    all_are_whole(&fs, &nodes, 0);
    // A block that is written next leaves as well.
    write(&fs, &nodes[3], 0, &bytes(3), 200);
    assert_eq!((tick(&fs), on_pm(&fs, &nodes[3])), (FILE, 0));
}

/// After a mount the list knew only what was written since, and that left though all other blocks were older.
#[test]
fn blocks_are_known_before_pm_holds_too_many() {
    const LARGE: u64 = 3000;
    let (pm, disks, fs, nodes) = ten_files_over(&[64 << 20], FILES * FILE + LARGE);
    let large = create(&fs, "large", 50);
    write(&fs, &large, 0, &vec![3; (LARGE * BLOCK_SIZE) as usize], 50);
    drop((nodes, large));
    let (fs, nodes) = again(&pm, &disks, fs, FILES * FILE + LARGE);
    assert_eq!(fs.status().listed_blocks, 0);
    assert_eq!((tick(&fs), tick(&fs), tick(&fs)), (0, 0, 0), "PM holds as much as it may");
    assert_eq!(fs.status().listed_blocks, FILES * FILE + LARGE, "a walk went on meanwhile");
    let new = create(&fs, "new", 60);
    write(&fs, &new, 0, &bytes(10), 60);
    assert_eq!((tick(&fs), on_pm(&fs, &new)), (FILE, FILE));
    assert_eq!(all_on_pm(&fs, &nodes), [0, 10, 10, 10, 10, 10, 10, 10, 10, 10]);
}

/// No access tells of blocks that an order brought up: they stayed, however much was above the threshold.
#[test]
fn blocks_that_an_order_brought_up_leave_again() {
    let (_, fs, nodes) = ten_files(0);
    assert_eq!((tick(&fs), tick(&fs)), (FILES * FILE, 0));
    for node in &nodes[..3] {
        assert_eq!(fs.promote(node, FileBlock(0), FILE).expect("there is room").moved, FILE);
        assert_eq!((tick(&fs), on_pm(&fs, node)), (FILE, 0));
    }
    let up = fs.promote_some(&nodes, FileBlock(0), &Budget::default());
    assert_eq!((up.moved, tick(&fs), fs.layout().pm_use().data), (FILES * FILE, FILES * FILE, 0));
    all_are_whole(&fs, &nodes, 0);
}

#[test]
fn a_share_of_pm_is_a_threshold_too_and_can_change() {
    let (_, fs, nodes) = ten_files(FILES * FILE);
    assert_eq!(tick(&fs), 0);
    fs.change(&MoverOptions { anticache: Some(Threshold::Percent(0)), ..MoverOptions::default() });
    assert_eq!(tick(&fs), FILES * FILE);
    assert!(all_on_pm(&fs, &nodes).iter().all(|blocks| *blocks == 0));
    assert_eq!(fs.period().as_millis(), 10);
    fs.change(&MoverOptions::default());
    assert_eq!(fs.period().as_millis(), 100);
}
