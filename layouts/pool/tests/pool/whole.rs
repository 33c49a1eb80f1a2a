//! Properties that only this layout has: nothing of files in DRAM, mounts that read as much however many files there
//! are, operations with more changes than a lane has room for, and any number of lanes.

use std::io::IoSlice;
use std::sync::{Arc, Barrier};

use nacre_engine::{
    Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Names, NewInode, Place, Timestamp,
    WriteAt, XattrMode,
};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_layout_pool::{Mistake, Node, PoolFs, use_lane};
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};

type Fs = PoolFs<SimPm>;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode::of_root(kind, 0o755, now())
}

fn made(size: u64) -> Arc<SimPm> {
    let pm = Arc::new(SimPm::new(size));
    Fs::mkfs(&pm, &MkfsOptions::default()).unwrap();
    pm
}

fn mount(pm: &Arc<SimPm>) -> Fs {
    Fs::mount(Arc::clone(pm), &MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

fn assert_sound(pm: &SimPm) {
    let report = Fs::check(pm, Repair::None, None).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Files in directories of a hundred.
fn make_files(fs: &Fs, count: u64) {
    for index in 0..count / 100 {
        let dir =
            fs.create(&fs.root(), format!("dir-{index}").as_bytes(), &new(FileKind::Directory)).unwrap();
        for file in 0..100 {
            fs.create(&dir, format!("file-{file}").as_bytes(), &new(FileKind::Regular)).unwrap();
        }
    }
}

/// Lines that a mount reads behind the copies of the superblock.
fn lines_of_a_mount(pm: &Arc<SimPm>) -> u64 {
    let first = 17 * 4096 / 64;
    pm.start_noting_reads();
    let fs = mount(pm);
    pm.stop_noting_reads();
    let lines = (first..nacre_media::Pm::len(&**pm) / 64).filter(|&line| pm.was_read(line)).count();
    fs.unmount().unwrap();
    lines as u64
}

#[test]
fn a_mount_reads_as_much_however_many_files_there_are() {
    let pm = made(64 << 20);
    let few = lines_of_a_mount(&pm);
    let fs = mount(&pm);
    make_files(&fs, 5000);
    fs.unmount().unwrap();
    let many = lines_of_a_mount(&pm);
    assert!(many <= few + 8, "{few} lines, with files {many}");
    assert!(few < 400, "{few} lines");
    assert_sound(&pm);
}

#[test]
fn nothing_of_files_is_in_dram_unless_they_are_held() {
    let pm = made(64 << 20);
    let fs = mount(&pm);
    make_files(&fs, 100);
    let before = fs.index_bytes();
    make_files_again(&fs, 5000);
    let after = fs.index_bytes();
    assert!(after <= before + (16 << 10), "{before} bytes, {after} with 5000 files");
    let mut held: Vec<Node> = Vec::new();
    for dir in 0..50 {
        let dir = fs.lookup(&fs.root(), format!("more-{dir}").as_bytes()).unwrap();
        for file in 0..100 {
            held.push(fs.lookup(&dir, format!("file-{file}").as_bytes()).unwrap());
        }
    }
    let bytes = fs.index_bytes() - after;
    assert!(bytes <= 80 * held.len() as u64, "{bytes} bytes for {} inodes", held.len());
    drop(held);
    assert!(fs.index_bytes() <= after + (16 << 10), "they were let go");
    fs.unmount().unwrap();
}

fn make_files_again(fs: &Fs, count: u64) {
    for index in 0..count / 100 {
        let dir =
            fs.create(&fs.root(), format!("more-{index}").as_bytes(), &new(FileKind::Directory)).unwrap();
        for file in 0..100 {
            fs.create(&dir, format!("file-{file}").as_bytes(), &new(FileKind::Regular)).unwrap();
        }
    }
}

/// Attributes of an inode are written anew as a whole, in entries of pool blocks that have seven each. The bits of so many
/// pool blocks do not fit the list of a lane.
#[test]
fn an_operation_has_more_items_than_a_lane() {
    const VALUES: u64 = 24;
    let pm = made(16 << 20);
    let fs = mount(&pm);
    use_lane(0);
    let file = fs.create(&fs.root(), b"file", &new(FileKind::Regular)).unwrap();
    let set = |index: u64| {
        let (name, value) = (format!("user.{index}"), vec![index as u8; 64 << 10]);
        fs.set_xattr(&file, name.as_bytes(), &value, XattrMode::Create, None, now())
    };
    (0..VALUES).for_each(|index| set(index).unwrap());
    let base = pm.snapshot();
    pm.start_recording();
    set(VALUES).unwrap();
    let trace = pm.stop_recording();
    drop(file);
    fs.unmount().unwrap();
    assert_sound(&pm);
    let mut replay = Replay::new(base, &trace);
    let (mut before, mut after) = (0, 0);
    // Pool blocks are made on the way, each by a commit of its own. Some of all crash points, and the last ones.
    let fences = trace.fences();
    let mut point = 0;
    while replay.advance().is_some() {
        point += 1;
        if point % 16 != 0 && point + 4 < fences {
            continue;
        }
        let pm = Arc::new(SimPm::new(16 << 20));
        pm.load(replay.media());
        for image in
            replay.images(&Sampling { exhaustive_up_to: 1, samples: 2, ..Sampling::default() }).iter()
        {
            image.apply(&pm);
            let fs = mount(&pm);
            let file = fs.lookup(&fs.root(), b"file").unwrap();
            let names = fs.list_xattrs(&file).unwrap().len() as u64;
            for index in 0..names {
                let value = fs.get_xattr(&file, format!("user.{index}").as_bytes()).unwrap();
                assert!(value.iter().all(|&byte| byte == index as u8));
            }
            match names {
                VALUES => before += 1,
                names => {
                    assert_eq!(names, VALUES + 1);
                    after += 1;
                }
            }
            drop(file);
            fs.unmount().unwrap();
            assert_sound(&pm);
            pm.load(replay.media());
        }
    }
    assert!(before > 0 && after > 0, "{before} and {after}");
}

#[test]
fn any_number_of_lanes_does() {
    let pm = made(64 << 20);
    for lanes in [1, 2, 64] {
        let options = MountOptions { lanes: Some(lanes), background: false, ..MountOptions::default() };
        let fs = Fs::mount(Arc::clone(&pm), &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let fs = &fs;
                scope.spawn(move || {
                    let root = fs.root();
                    for turn in 0..50 {
                        let name = format!("{lanes}-{thread}-{turn}");
                        let file = fs.create(&root, name.as_bytes(), &new(FileKind::Regular)).unwrap();
                        let bytes = [IoSlice::new(&[7; 5000])];
                        fs.write(&file, WriteAt::Offset(100), &bytes, Durability::Now, now()).unwrap();
                        if turn % 2 == 0 {
                            fs.unlink(&root, name.as_bytes(), now()).unwrap();
                        }
                    }
                });
            }
        });
        fs.unmount().unwrap();
        assert_sound(&pm);
    }
}

/// The number of an inode is given to another one, which has another generation.
#[test]
fn a_number_comes_back_with_another_generation() {
    let pm = made(16 << 20);
    let fs = mount(&pm);
    let root = fs.root();
    let mut seen = std::collections::HashMap::new();
    for turn in 0..200 {
        let file = fs.create(&root, b"file", &new(FileKind::Regular)).unwrap();
        let id = fs.id(&file);
        if let Some(before) = seen.insert(id.number, id.generation) {
            assert!(id.generation > before, "turn {turn}");
            let stale = nacre_engine::InodeId { generation: before, ..id };
            assert!(fs.node(stale).is_err() && fs.node(id).is_ok());
        }
        drop(file);
        fs.unlink(&root, b"file", now()).unwrap();
    }
    assert!(seen.values().any(|&generation| generation > 1), "no number came back");
    drop(root);
    fs.unmount().unwrap();
}

/// A repair frees an inode that nothing leads to. The counts of the clean volume were those of before the repair.
#[test]
fn counts_are_right_after_a_repair_that_frees_something() {
    let pm = made(16 << 20);
    let fs = mount(&pm);
    let file = fs.create(&fs.root(), b"file", &new(FileKind::Regular)).unwrap();
    let bytes = [IoSlice::new(&[7; 50_000])];
    fs.write(&file, WriteAt::Offset(0), &bytes, Durability::Now, now()).unwrap();
    pm.seed_mistake(Mistake::OrphanForgotten.number());
    fs.unlink(&fs.root(), b"file", now()).unwrap();
    pm.seed_mistake(0);
    // It stays held, as at a crash.
    fs.abandon();
    drop(file);
    mount(&pm).unmount().unwrap();
    let found = Fs::check(&pm, Repair::None, None).unwrap();
    assert!(!found.is_sound(), "an inode without names is on no list");
    let report = Fs::check(&pm, Repair::Safe, None).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_sound(&pm);
}

/// Makes files of 20 KiB, until the device is full, and keeps each of them.
fn fill(fs: &Fs, prefix: &str, count: usize) -> Vec<(String, Node)> {
    let data = [7; 20 << 10];
    let mut files = Vec::new();
    while files.len() < count {
        let name = format!("{prefix}-{}", files.len());
        let Ok(file) = fs.create(&fs.root(), name.as_bytes(), &new(FileKind::Regular)) else { return files };
        let written = fs.write(&file, WriteAt::Offset(0), &[IoSlice::new(&data)], Durability::Now, now());
        if written.is_err() {
            fs.unlink(&fs.root(), name.as_bytes(), now()).unwrap();
            return files;
        }
        files.push((name, file));
    }
    files
}

/// The space of removed files is there for a thread, although another one has begun to free them.
#[test]
fn removed_files_leave_room_for_all_threads() {
    let pm = made(64 << 20);
    let fs = mount(&pm);
    let files = fill(&fs, "first", usize::MAX);
    assert!(files.len() > 1000, "{} files", files.len());
    for (name, _) in &files {
        fs.unlink(&fs.root(), name.as_bytes(), now()).unwrap();
    }
    drop(files);
    let begin = Barrier::new(2);
    let run = |prefix| {
        begin.wait();
        fill(&fs, prefix, 400).len()
    };
    let again: Vec<_> = std::thread::scope(|scope| {
        let threads = ["left", "right"].map(|prefix| scope.spawn(|| run(prefix)));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(again, [400, 400]);
    fs.unmount().unwrap();
    assert_sound(&pm);
}

/// Files of a length that is no power of two lie one behind the other, and few of them need a node of an index.
#[test]
fn files_of_any_length_fill_the_device() {
    let pm = made(64 << 20);
    let fs = mount(&pm);
    let files = fill(&fs, "file", usize::MAX);
    let stat = fs.stat();
    assert!(files.len() as u64 * 5 > stat.blocks * 9 / 10, "{} files of 5 blocks, {stat:?}", files.len());
    let apart = files.iter().filter(|(_, file)| fs.resolve(file, FileBlock(0), 5).unwrap().len() > 1).count();
    assert!(apart < files.len() / 50, "{apart} of {} are in several runs", files.len());
    drop(files);
    fs.unmount().unwrap();
    assert_sound(&pm);
}

/// Blocks that make up a group had words of a node, because they were allocated in two parts. An operation on all of
/// them led to the group as a whole, and freed its blocks with the node.
#[test]
fn blocks_of_a_group_stay_in_use_when_it_is_led_to_as_a_whole() {
    const MIB: u64 = 1 << 20;
    type Act = fn(&Fs, &Node, u64);
    let acts: [(&str, Act); 3] = [
        ("allocate", |fs, file, at| {
            fs.fallocate(file, FallocateMode::Allocate, at, 2 * MIB, now()).unwrap();
        }),
        ("zero", |fs, file, at| {
            fs.fallocate(file, FallocateMode::ZeroRange, at, 2 * MIB, now()).unwrap();
        }),
        ("write", |fs, file, at| {
            let bytes = vec![7; 2 << 20];
            fs.write(file, WriteAt::Offset(at), &[IoSlice::new(&bytes)], Durability::Now, now()).unwrap();
        }),
    ];
    for (what, act) in acts {
        use_lane(0);
        let pm = made(64 << 20);
        let fs = mount(&pm);
        let file = fs.create(&fs.root(), b"file", &new(FileKind::Regular)).unwrap();
        // Its tree has nodes for parts of 2 MiB from now on.
        let far = [IoSlice::new(&[1; 4096])];
        fs.write(&file, WriteAt::Offset(40 * MIB), &far, Durability::Now, now()).unwrap();
        let places: Vec<u64> = (1..8).map(|index| 2 * index * MIB).collect();
        let other = fs.create(&fs.root(), b"other", &new(FileKind::Regular)).unwrap();
        let allocate = |file: &Node, at: u64, len: u64| {
            fs.fallocate(file, FallocateMode::Allocate, at, len, now()).unwrap();
        };
        for at in &places {
            // Takes some of a group that is half free, so that the next half begins a group.
            allocate(&other, *at, 40 << 10);
            allocate(&file, *at, MIB);
            allocate(&file, at + MIB, MIB);
        }
        drop(other);
        let is_group = |at: &u64| {
            let found = fs.resolve(&file, FileBlock(at / 4096), 512).unwrap();
            let Place::Unwritten(block) = found[0].place else { panic!("{found:?}") };
            found.len() == 1 && block.0.is_multiple_of(512)
        };
        assert!(places.iter().any(is_group), "no part lies in a group as a whole");
        places.iter().for_each(|&at| act(&fs, &file, at));
        let allocated = fs.getattr(&file).unwrap().allocated;
        drop(file);
        fs.unmount().unwrap();
        assert_sound(&pm);
        assert_eq!(allocated, 7 * 2 * MIB + 4096, "{what}");
    }
}

/// An empty pool block was free once for each lane that takes entries from it: less was in use than really was.
#[test]
fn a_pool_block_of_several_lanes_is_counted_once() {
    // With fewer groups, all lanes have the pool blocks of the first.
    let pm = made(200 << 20);
    let fs = mount(&pm);
    for lane in 0..4 {
        use_lane(lane);
        let link = NewInode { target: &[b't'; 150], ..NewInode::of_root(FileKind::Symlink, 0o777, now()) };
        fs.create(&fs.root(), format!("link-{lane}").as_bytes(), &link).unwrap();
    }
    for lane in 0..4 {
        fs.unlink(&fs.root(), format!("link-{lane}").as_bytes(), now()).unwrap();
    }
    let before = fs.stat();
    fs.unmount().unwrap();
    let fs = mount(&pm);
    let after = fs.stat();
    assert_eq!((before.blocks, before.free), (after.blocks, after.free));
    assert!(before.blocks - before.free >= 64, "at least the pool block of the root is in use: {before:?}");
    fs.unmount().unwrap();
    assert_sound(&pm);
}
