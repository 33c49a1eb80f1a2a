//! Logs were compacted only as they grew: pages that an old file had needed once, and a page of each file whose data had
//! moved to a disk, stayed in memory however full it was. The mover goes through them now.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, FileKind, Kind, Names, NewInode, TierState, Timestamp, WriteAt,
};
use nacre_layout_log::check::check;
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{Budget, MoverOptions, Phase, TieredFs};
use uuid::Uuid;

type Fs = TieredFs<LogFs<SimPm>, SimDisk>;
type Node = <Fs as Names>::Node;

const BLOCK: usize = BLOCK_SIZE as usize;
const FILES: u64 = 300;
const BLOCKS: usize = 7;
/// When the files were written, in seconds since 1970.
const WRITTEN: i64 = 1_700_000_000;

fn options(log_threshold: u8, hours: &str) -> MoverOptions {
    let hours = hours.parse().expect("hours");
    MoverOptions { balance: false, log_threshold, hours, ..MoverOptions::default() }
}

/// Memory with files of one entry each, whose logs have a page since they had more. No block of them can move, as the only
/// tier is being drained.
fn machine(options: MoverOptions) -> (Arc<SimPm>, Fs) {
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[16 << 20]));
    mkfs(&*memory, &MkfsOptions::default()).expect("mkfs");
    let layout = LogFs::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::new(layout, options);
    let now = Timestamp::new(WRITTEN, 0);
    fs.add(SimDisk::of(&memory, 0), Uuid::from_u128(7), 1, 1, now).expect("a tier");
    fs.set_state(1, TierState::Draining).expect("a change of state");
    for number in 0..FILES {
        let node = create(&fs, &number.to_string());
        (0..BLOCKS).step_by(2).for_each(|block| put(&fs, &node, block, 1, 0).expect("room"));
        put(&fs, &node, 0, BLOCKS, number as u8).expect("room");
    }
    (memory, fs)
}

fn create(fs: &Fs, name: &str) -> Node {
    let now = Timestamp::new(WRITTEN, 0);
    let (kind, mode) = (FileKind::Regular, 0o644);
    let new = NewInode { kind, mode, uid: 0, gid: 0, rdev: 0, now, xattrs: &[], target: &[] };
    fs.create(&fs.root(), name.as_bytes(), &new).expect("create")
}

fn put(fs: &Fs, node: &Node, block: usize, blocks: usize, byte: u8) -> nacre_engine::Result<()> {
    let bytes = vec![byte; blocks * BLOCK];
    let (at, now) = (WriteAt::Offset((block * BLOCK) as u64), Timestamp::new(WRITTEN, 0));
    fs.write(node, at, &[IoSlice::new(&bytes)], Durability::Now, now).map(drop)
}

/// So many seconds after the files were written.
fn keep(fs: &Fs, seconds: i64) -> (u64, u64) {
    let at_ms = (WRITTEN + seconds) as u64 * 1000;
    assert_eq!(fs.tick(at_ms, &Budget::default()).expect("it keeps"), 0, "no block moves");
    compacted(fs)
}

fn compacted(fs: &Fs) -> (u64, u64) {
    let status = fs.status();
    (status.logs_compacted, status.log_bytes_freed / BLOCK_SIZE)
}

fn assert_all_is_there(memory: &SimPm, fs: Fs) {
    let mut bytes = vec![0; BLOCKS * BLOCK];
    for number in 0..FILES {
        let node = fs.lookup(&fs.root(), number.to_string().as_bytes()).expect("the file");
        assert_eq!(fs.read(&node, 0, &mut bytes, None).expect("read"), bytes.len());
        assert!(bytes.iter().all(|byte| *byte == number as u8), "file {number}");
    }
    fs.into_layout().abandon();
    let report = check(memory, false).expect("check");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn logs_of_old_files_are_compacted_above_the_threshold() {
    let (memory, fs) = machine(options(50, "always"));
    let usage = fs.usage();
    assert!(usage > 55.0, "{usage} %");
    assert_eq!(keep(&fs, 10), (0, 0), "they are young");
    assert_eq!(keep(&fs, 35), (0, 0), "they were just looked at");
    fs.pause(true);
    assert_eq!(keep(&fs, 70), (0, 0));
    fs.pause(false);
    // A file that was written since is young. All others have no page any more.
    let node = fs.lookup(&fs.root(), b"7").expect("the file");
    let now = Timestamp::new(WRITTEN + 71, 0);
    fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&[7; BLOCK])], Durability::Now, now).expect("room");
    assert_eq!(keep(&fs, 72), (FILES - 1, FILES - 1));
    let less = usage - fs.usage();
    assert!(less > 6.0, "{less} % less");
    assert_eq!(fs.status().phase, Phase::NoTier);
    assert_eq!(keep(&fs, 100), (FILES - 1, FILES - 1), "it is too soon to look again");
    assert_eq!(keep(&fs, 103), (FILES, FILES));
    drop(node);
    assert_all_is_there(&memory, fs);
}

#[test]
fn below_the_threshold_and_outside_their_hours_they_stay() {
    let (_, fs) = machine(options(100, "always"));
    assert_eq!(keep(&fs, 100), (0, 0));
    fs.change(&options(95, "always"));
    assert_eq!(keep(&fs, 200), (0, 0));
    // WRITTEN is 22:13.
    fs.change(&options(50, "01:00-02:00"));
    assert_eq!(keep(&fs, 300), (0, 0));
    fs.change(&options(50, "22:00-23:00"));
    assert_eq!(keep(&fs, 400), (FILES, FILES));
}

#[test]
fn a_write_that_finds_no_room_has_logs_compacted() {
    let (memory, fs) = machine(options(100, "always"));
    let large = create(&fs, "large");
    let error = (0..).find_map(|block| put(&fs, &large, block, 1, 1).err()).expect("it is full");
    assert_eq!(error.kind(), Kind::NoSpace);
    // The large file has a log, too.
    let (logs, freed) = compacted(&fs);
    assert!(logs == FILES + 1 && freed > FILES, "{freed} blocks of {logs} logs");
    drop(large);
    assert!(fs.usage() > 99.0, "{} %", fs.usage());
    assert_all_is_there(&memory, fs);
}
