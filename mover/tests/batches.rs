//! Each file that moved had a write, a flush of the device and a commit of its own: with many small files, moving was
//! waiting for flushes. Files that move together share the write and the flush, and each stands for itself in all else.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FileBlock, FileKind, Kind, Names, NewInode, Place, Result,
    SetAttr, Tiered, Timestamp, WriteAt,
};
use nacre_layout_log::check::check;
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::block::{BlockDevice, Pages, SimDisk, Transfer};
use nacre_media::{Durable, SimPm};
use nacre_mover::{Moved, MoverFs, MoverOptions, PIN};
use uuid::Uuid;

type Fs = MoverFs<LogFs<SimPm>, Disk>;
type Node = <Fs as Names>::Node;

const BLOCK: usize = BLOCK_SIZE as usize;
const TIER: u8 = 1;

type Act = Box<dyn FnOnce() + Send>;

/// A disk that counts its flushes, and has something done while the next one is under way.
#[derive(Clone)]
struct Disk {
    disk: SimDisk,
    flushes: Arc<AtomicU64>,
    meanwhile: Arc<Mutex<Option<Act>>>,
}

impl BlockDevice for Disk {
    fn len(&self) -> u64 {
        self.disk.len()
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn transfer(&self, batch: &mut [Transfer<'_>]) -> Result<()> {
        self.disk.transfer(batch)
    }
    fn flush(&self) -> Result<Durable> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(act) = meanwhile {
            act();
        }
        self.disk.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(offset, len)
    }
}

struct Machine {
    memory: Arc<SimPm>,
    disk: Disk,
    fs: Arc<Fs>,
}

fn time(at: usize) -> Timestamp {
    Timestamp::new(1_700_000_000 + at as i64, 0)
}

fn content(number: usize, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / 512 + number * 7 + 1) as u8).collect()
}

impl Machine {
    /// A tier of so many bytes.
    fn new(disk: u64) -> Machine {
        let memory = Arc::new(SimPm::with_disks(16 << 20, &[disk]));
        mkfs(&*memory, &MkfsOptions::default()).expect("mkfs");
        let layout = LogFs::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
        let fs = Fs::new(layout, MoverOptions { balance: false, ..MoverOptions::default() });
        let disk = Disk { disk: SimDisk::of(&memory, 0), flushes: Arc::default(), meanwhile: Arc::default() };
        fs.add(disk.clone(), Uuid::from_u128(7), 1, 1, time(0)).expect("a tier");
        disk.flushes.store(0, Ordering::Relaxed);
        Machine { memory, disk, fs: Arc::new(fs) }
    }

    /// Files of so many blocks each.
    fn files(&self, blocks: impl IntoIterator<Item = usize>) -> Vec<Node> {
        blocks.into_iter().enumerate().map(|(number, blocks)| self.file(number, blocks)).collect()
    }

    fn file(&self, number: usize, blocks: usize) -> Node {
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            now: time(number),
            xattrs: &[],
            target: &[],
        };
        let node = self.fs.create(&self.fs.root(), number.to_string().as_bytes(), &new).expect("create");
        self.put(&node, &content(number, blocks), time(number));
        node
    }

    fn put(&self, node: &Node, bytes: &[u8], now: Timestamp) {
        self.fs
            .write(node, WriteAt::Offset(0), &[IoSlice::new(bytes)], Durability::Now, now)
            .expect("there is room");
    }

    fn read(&self, node: &Node) -> Vec<u8> {
        let mut seen = vec![0; self.fs.getattr(node).expect("getattr").size as usize];
        assert_eq!(self.fs.read(node, 0, &mut seen, None).expect("read"), seen.len());
        seen
    }

    fn flushes(&self) -> u64 {
        self.disk.flushes.load(Ordering::Relaxed)
    }

    /// Blocks that are in use on the tier.
    fn used(&self) -> u64 {
        self.fs.layout().tier_space(TIER).map(|space| space.blocks - space.free).expect("a tier")
    }

    /// The same of one file.
    fn below(&self, node: &Node) -> u64 {
        let extents = self.fs.resolve(node, FileBlock(0), u64::MAX).expect("resolve");
        let on_tier = extents.iter().filter(|extent| matches!(extent.place, Place::Tier { .. }));
        on_tier.map(|extent| extent.len).sum()
    }

    /// Crashes, and looks at all files again.
    fn crash(self, expected: &[Vec<u8>]) {
        let Machine { memory, disk, fs } = self;
        Arc::into_inner(fs).expect("nobody else has it").into_layout().abandon();
        let report = check(&*memory, false).expect("check");
        assert!(report.is_sound(), "{:?}", report.problems);
        let layout = LogFs::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
        let fs = Fs::new(layout, MoverOptions::default());
        fs.attach(disk.clone(), Uuid::from_u128(7), Some(2)).expect("the tier is there");
        let machine = Machine { memory, disk, fs: Arc::new(fs) };
        for (number, expected) in expected.iter().enumerate() {
            let node = machine.fs.lookup(&machine.fs.root(), number.to_string().as_bytes()).expect("a file");
            assert!(machine.read(&node) == *expected, "file {number}");
        }
    }
}

fn moved(blocks: u64) -> Moved {
    Moved { moved: blocks, changed: 0 }
}

#[test]
fn many_small_files_move_with_one_write_and_one_flush() {
    let machine = Machine::new(64 << 20);
    let sizes: Vec<usize> = (0..300).map(|number| number % 3 + 1).collect();
    let files = machine.files(sizes.iter().copied());
    let expected: Vec<_> = sizes.iter().enumerate().map(|(number, size)| content(number, *size)).collect();
    let done = machine.fs.move_files_down(&files, TIER, true);
    for (number, (done, size)) in done.iter().zip(&sizes).enumerate() {
        assert_eq!(done.as_ref().ok(), Some(&moved(*size as u64)), "file {number}");
    }
    assert_eq!((machine.flushes(), machine.used()), (1, 600));
    let traffic = machine.fs.tiers().traffic_of(TIER);
    assert!(traffic.writes <= 2 && traffic.written_bytes == 600 * BLOCK_SIZE, "{traffic:?}");
    // Copies of all of them are in DRAM, and on the disk.
    for cached in [true, false] {
        for (number, node) in files.iter().enumerate() {
            assert!(machine.read(node) == expected[number], "file {number}");
        }
        assert_eq!(machine.fs.tiers().traffic_of(TIER).reads == 0, cached);
        machine.fs.tiers().pages().drop_tier(TIER);
    }
    drop(files);
    machine.crash(&expected);
}

/// The mover does so by itself, moves no more than it has to, and leaves alone what is pinned.
#[test]
fn what_is_cold_moves_together() {
    let machine = Machine::new(64 << 20);
    let mut files = Vec::new();
    while machine.fs.usage() < 75.0 {
        files.push(machine.file(files.len(), 2));
    }
    machine.fs.set_xattr(&files[3], PIN, b"1", nacre_engine::XattrMode::Set, None, time(0)).expect("set");
    let now_ms = 1_700_010_000_000;
    let excess = machine.fs.usage() - machine.fs.threshold();
    let blocks = (excess / 100.0 * machine.fs.layout().stat().blocks as f64) as u64;
    let moved = machine.fs.keep(now_ms, &|| true).expect("blocks move");
    assert!(machine.fs.usage() <= machine.fs.threshold(), "{} %", machine.fs.usage());
    assert!(moved > 600 && moved <= blocks + blocks / 4, "{moved} blocks for {blocks}");
    // One for most of it, and some for the log that says so.
    assert!(machine.flushes() <= 6, "{} flushes for {} files", machine.flushes(), moved / 2);
    assert_eq!((machine.below(&files[0]), machine.below(&files[3])), (2, 0), "the coldest, and the pinned");
    assert_eq!(machine.below(files.last().expect("a file")), 0, "the hottest");
    assert_eq!(machine.fs.status().moved, moved * BLOCK_SIZE);
    // Whoever needs room gets it the same way.
    let (flushes, before) = (machine.flushes(), machine.used());
    for number in files.len()..files.len() + 2000 {
        files.push(machine.file(number, 2));
    }
    let (flushes, moved) = (machine.flushes() - flushes, machine.used() - before);
    assert!(moved > 2000 && flushes <= 2 + moved / 200, "{flushes} flushes for {moved} blocks");
    let expected: Vec<_> = (0..files.len()).map(|number| content(number, 2)).collect();
    for (number, node) in files.iter().enumerate() {
        assert!(machine.read(node) == expected[number], "file {number}");
    }
    drop(files);
    machine.crash(&expected);
}

#[test]
fn a_file_that_changes_meanwhile_gives_up_alone() {
    let machine = Machine::new(64 << 20);
    let files = machine.files([3; 40]);
    let (fs, node) = (Arc::clone(&machine.fs), files[20].clone());
    let newer = content(99, 1);
    let bytes = newer.clone();
    *machine.disk.meanwhile.lock().unwrap() = Some(Box::new(move || {
        fs.write(&node, WriteAt::Offset(BLOCK_SIZE), &[IoSlice::new(&bytes)], Durability::Now, time(100))
            .expect("write");
    }));
    let done = machine.fs.move_files_down(&files, TIER, true);
    for (number, done) in done.iter().enumerate() {
        let expected = if number == 20 { Moved { moved: 0, changed: 3 } } else { moved(3) };
        assert_eq!(done.as_ref().ok(), Some(&expected), "file {number}");
    }
    assert_eq!((machine.flushes(), machine.used(), machine.below(&files[20])), (1, 39 * 3, 0));
    let mut expected: Vec<_> = (0..40).map(|number| content(number, 3)).collect();
    expected[20][BLOCK..2 * BLOCK].copy_from_slice(&newer);
    for (number, node) in files.iter().enumerate() {
        assert!(machine.read(node) == expected[number], "file {number}");
    }
    // Its blocks are another's now, who reads his own.
    assert!(machine.fs.move_files_down(&files, TIER, true).iter().all(Result::is_ok));
    assert_eq!(machine.used(), 40 * 3);
    assert!(machine.read(&files[20]) == expected[20]);
    drop(files);
    machine.crash(&expected);
}

/// One that cannot be read, and one that a program has mapped.
#[test]
fn a_file_that_fails_does_so_alone() {
    let machine = Machine::new(64 << 20);
    let files = machine.files([3; 40]);
    let first = machine.fs.resolve(&files[7], FileBlock(0), 1).expect("resolve")[0].place;
    let Place::Pm(block) = first else { panic!("it is on {first:?}") };
    machine.memory.poison(block.plus(1).offset(), 64);
    machine.fs.layout().pin(&files[30], FileBlock(0), 3).expect("pin");
    let done = machine.fs.move_files_down(&files, TIER, true);
    for (number, (done, node)) in done.iter().zip(&files).enumerate() {
        let came = done.as_ref().map_err(nacre_engine::Error::kind);
        match number {
            7 => assert_eq!(came, Err(Kind::Media)),
            30 => assert_eq!(came, Err(Kind::Busy)),
            _ => assert_eq!(came, Ok(&moved(3)), "file {number}"),
        }
        assert_eq!(machine.below(node), if matches!(number, 7 | 30) { 0 } else { 3 }, "file {number}");
    }
    machine.fs.layout().unpin(&files[30]);
    assert_eq!((machine.flushes(), machine.used()), (1, 38 * 3), "what they would have had is free");
    for (number, node) in files.iter().enumerate().filter(|(number, _)| *number != 7) {
        assert!(machine.read(node) == content(number, 3), "file {number}");
    }
}

#[test]
fn a_device_that_fails_moves_nothing_and_keeps_no_space() {
    let machine = Machine::new(64 << 20);
    let files = machine.files([2; 40]);
    machine.disk.disk.fail_writes(true);
    let done = machine.fs.move_files_down(&files, TIER, true);
    assert!(done.iter().all(|done| done.as_ref().is_err_and(|error| error.kind() == Kind::Media)));
    assert_eq!(machine.used(), 0);
    machine.disk.disk.fail_writes(false);
    let done = machine.fs.move_files_down(&files, TIER, true);
    assert!(done.into_iter().all(|done| done.is_ok_and(|done| done == moved(2))));
    assert_eq!(machine.used(), 80);
}

/// Where a batch finds no room, as many of its files move as there is room for.
#[test]
fn the_last_room_of_a_tier_is_used() {
    let machine = Machine::new(256 * BLOCK_SIZE);
    let files = machine.files([5; 100]);
    let done = machine.fs.move_files_down(&files, TIER, false);
    let went: u64 = done.iter().flatten().map(|done| done.moved).sum();
    let full = done.iter().filter_map(|done| done.as_ref().err());
    assert!(full.map(nacre_engine::Error::kind).all(|kind| kind == Kind::NoSpace));
    // The first and the last block are the tier's own.
    assert_eq!((went, machine.used()), (250, 250), "of 254 blocks");
    assert!(machine.flushes() <= 12, "{}", machine.flushes());
    for (number, node) in files.iter().enumerate() {
        assert!(machine.read(node) == content(number, 5), "file {number}");
    }
}

/// What moves is gathered in memory that others had before, and a file ends in the middle of a block.
#[test]
fn behind_the_end_of_a_file_there_are_zeros_on_disk() {
    let machine = Machine::new(64 << 20);
    let file = machine.file(0, 1);
    let change = SetAttr { size: Some(100), ..SetAttr::default() };
    machine.fs.setattr(&file, &change, time(1)).expect("truncated");
    let mut before: Vec<Pages> = (0..80).map(|_| Pages::lent(BLOCK)).collect();
    before.iter_mut().for_each(|pages| pages.fill(9));
    drop(before);
    let done = machine.fs.move_files_down(std::slice::from_ref(&file), TIER, false);
    assert_eq!(done[0].as_ref().ok(), Some(&moved(1)));
    let place = machine.fs.resolve(&file, FileBlock(0), 1).expect("resolve")[0].place;
    let Place::Tier { block, .. } = place else { panic!("it is on {place:?}") };
    let mut seen = vec![0xff; BLOCK];
    machine.disk.read(block.offset(), &mut seen).expect("read");
    assert!(seen[..100] == content(0, 1)[..100] && seen[100..].iter().all(|byte| *byte == 0));
}
