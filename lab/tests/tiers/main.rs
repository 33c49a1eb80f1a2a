//! Files over memory and a disk, while their blocks move all the time: the behaviour suite, random calls beside the
//! reference model, and many mounts and crashes. Whoever uses the file system sees nothing of it.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nacre_engine::{
    Data, Durability, Extents, FileBlock, FileKind, Kind, Names, NewInode, Place, TierState, Tiered,
    Timestamp, WriteAt, XattrMode,
};
use nacre_lab::calls::{Settings, check_for};
use nacre_lab::environment::{model_time, number};
use nacre_lab::model::MemLayout;
use nacre_lab::suite::{VfsTarget, all_cases, run};
use nacre_layout_log::check::check;
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{MoverFs, MoverOptions, PIN, TIER as PLACE};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

type Fs = MoverFs<LogFs<SimPm>, SimDisk>;

const MEMORY: u64 = 64 << 20;
const DISK: u64 = 64 << 20;
/// Of no matter: nobody looks at it.
const VOLUME: Uuid = Uuid::from_u128(0x6e61_6372_6500_4000_8000_0000_0000_0007);
const TIER: u8 = 1;

/// A machine with memory and a disk.
#[derive(Clone)]
struct Machine {
    memory: Arc<SimPm>,
    unrest: Arc<Unrest>,
    /// Nobody moves blocks but who needs their space.
    is_calm: bool,
}

/// An inode of root's.
fn new_inode(kind: FileKind, now: Timestamp) -> NewInode<'static> {
    NewInode { kind, mode: 0o755, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now }
}

/// Bytes of a file that are on tiers.
fn bytes_below(fs: &Fs, node: &<Fs as Names>::Node) -> u64 {
    let extents = fs.resolve(node, FileBlock(0), u64::MAX).expect("resolve");
    let on_tier = extents.iter().filter(|extent| matches!(extent.place, Place::Tier { .. }));
    on_tier.map(|extent| extent.len * 4096).sum()
}

/// Somebody who moves blocks of any file up and down, all the time.
#[derive(Default)]
struct Unrest {
    ends: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    moved: AtomicU64,
    changed: AtomicU64,
}

impl Machine {
    fn new(is_calm: bool) -> (Machine, Arc<Fs>) {
        let memory = Arc::new(SimPm::with_disks(MEMORY, &[DISK]));
        mkfs(&*memory, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
        let machine = Machine { memory, unrest: Arc::default(), is_calm };
        let fs = machine.open();
        let now = Timestamp::new(1_700_000_000, 0);
        let number = fs.add(machine.disk(), VOLUME, 1, 1, now).expect("a tier");
        assert_eq!(number, TIER);
        let fs = Arc::new(fs);
        machine.begin(&fs);
        (machine, fs)
    }

    fn disk(&self) -> SimDisk {
        SimDisk::of(&self.memory, 0)
    }

    fn open(&self) -> Fs {
        let layout = LogFs::mount(Arc::clone(&self.memory), &MountOptions::default()).expect("mount");
        // Small, so that it is used up, and groups so small that there are several.
        let options =
            MoverOptions { page_cache: 4 << 20, read_ahead: 8, group: 32, ..MoverOptions::default() };
        MoverFs::new(layout, options)
    }

    fn mount(&self) -> Arc<Fs> {
        let fs = self.open();
        let token = fs.layout().summary().mount_epoch + 2;
        fs.attach(self.disk(), VOLUME, Some(token)).expect("the tier is attached");
        let fs = Arc::new(fs);
        self.begin(&fs);
        fs
    }

    fn begin(&self, fs: &Arc<Fs>) {
        if self.is_calm {
            return;
        }
        self.unrest.ends.store(false, Ordering::Relaxed);
        let (fs, unrest) = (Arc::clone(fs), Arc::clone(&self.unrest));
        let thread = std::thread::spawn(move || unrest.run(&fs));
        *self.unrest.thread.lock().expect("nobody panicked") = Some(thread);
    }

    /// Ends the unrest; gives the file system back.
    fn calm(&self, fs: Arc<Fs>) -> Fs {
        self.unrest.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.unrest.thread.lock().expect("nobody panicked").take() {
            thread.join().expect("moving blocks panicked");
        }
        Arc::into_inner(fs).expect("nobody else has it")
    }

    fn unmount(&self, fs: Arc<Fs>) {
        self.calm(fs).into_layout().unmount().expect("unmount");
        self.assert_sound();
    }

    fn crash(&self, fs: Arc<Fs>) {
        self.calm(fs).into_layout().abandon();
        self.assert_sound();
    }

    fn assert_sound(&self) {
        let report = check(&*self.memory, false).expect("check");
        assert!(report.problems.is_empty(), "the check finds: {:?}", report.problems);
    }
}

impl Unrest {
    fn run(&self, fs: &Fs) {
        let mut random = SmallRng::from_os_rng();
        while !self.ends.load(Ordering::Relaxed) {
            self.visit(fs, &fs.root(), &mut random);
        }
    }

    /// Moves blocks of each file in a directory and below it.
    fn visit(&self, fs: &Fs, dir: &<Fs as Names>::Node, random: &mut SmallRng) {
        let mut children = Vec::new();
        let listed = fs.read_dir(dir, 0, &mut |entry| {
            children.push((entry.id, entry.kind));
            ControlFlow::Continue(())
        });
        if listed.is_err() {
            return;
        }
        for (id, kind) in children {
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            let Ok(node) = fs.node(id) else { continue };
            match kind {
                FileKind::Directory => self.visit(fs, &node, random),
                FileKind::Regular => self.shake(fs, &node, random),
                _ => {}
            }
        }
        std::thread::yield_now();
    }

    fn shake(&self, fs: &Fs, node: &<Fs as Names>::Node, random: &mut SmallRng) {
        let (start, len) = (random.random_range(0..80), random.random_range(1..200));
        let start = if random.random_ratio(1, 2) { 0 } else { start };
        let moved = match random.random_ratio(2, 3) {
            true => fs.move_down(node, TIER, FileBlock(start), len, random.random()),
            false => fs.bring_up(node, FileBlock(start), len),
        };
        // A full device, a file that is mapped or gone: what is asked of the file system decides what may fail.
        if let Ok(moved) = moved {
            self.moved.fetch_add(moved.moved, Ordering::Relaxed);
            self.changed.fetch_add(moved.changed, Ordering::Relaxed);
        }
    }
}

fn target(machine: &Machine, fs: Arc<Fs>) -> VfsTarget<Arc<Fs>> {
    let (again, after) = (machine.clone(), machine.clone());
    let reopen = Arc::new(move |old: Arc<Fs>| {
        again.unmount(old);
        again.mount()
    });
    let crash = Arc::new(move |old: Arc<Fs>| {
        after.crash(old);
        after.mount()
    });
    VfsTarget::new("the log layout over memory and a disk", fs, reopen, &[]).with_crash(crash)
}

fn passes(is_calm: bool, which: fn(&str) -> bool) -> u64 {
    let (machine, fs) = Machine::new(is_calm);
    let mut target = target(&machine, fs);
    let cases: Vec<_> = all_cases().into_iter().filter(|case| which(case.name)).collect();
    assert!(cases.len() > 4);
    let report = run(&mut target, &cases, &[]);
    machine.unmount(target.into_layout());
    report.assert_clean();
    machine.unrest.moved.load(Ordering::Relaxed)
}

/// Does it until enough blocks have moved to tell something: on a machine that is busy the thread that moves them hardly runs.
fn is_told(mut run: impl FnMut() -> u64) {
    let enough = (0..20).map(|_| run()).any(|moved| moved > 100);
    assert!(enough, "hardly a block was moved");
}

#[test]
fn the_suite_passes_while_blocks_move() {
    is_told(|| passes(false, |name| !counts_space(name)));
}

/// A copy that is being made takes space, and who makes it keeps the file, so that how much there is can only be told when nobody
/// does.
fn counts_space(name: &str) -> bool {
    name.starts_with("full-") || name == "space-is-counted"
}

#[test]
fn a_file_system_is_full_when_all_of_its_devices_are() {
    passes(true, counts_space);
}

#[test]
fn random_calls_are_like_the_model_while_blocks_move() {
    let (machine, fs) = Machine::new(false);
    let mut target = target(&machine, fs);
    let layout = MemLayout::new(1 << 20, 1 << 20);
    let reopen = Arc::new(|old: MemLayout| old.remount());
    let mut model = VfsTarget::new("the reference model", layout, reopen, &[]);
    let settings =
        Settings { calls: 1500, compare_every: 100, remount_every: Some(400), exact_allocation: true };
    let unrest = Arc::clone(&machine.unrest);
    is_told(|| {
        let seed = number("NACRE_SEED");
        let total = match check_for(&mut target, &mut model, settings, seed, model_time()) {
            Ok(total) => total,
            Err(failure) => panic!("{failure}"),
        };
        total.assert_mixed();
        let moved = unrest.moved.load(Ordering::Relaxed);
        let changed = unrest.changed.load(Ordering::Relaxed);
        println!("{:?}, {moved} blocks moved, {changed} changed meanwhile", total.total());
        moved
    });
    let fs = target.into_layout();
    assert!(fs.stat().free > 0);
    machine.unmount(fs);
}

/// Twice as much as memory holds is written, file by file: it is full only when both devices are. Then the coldest files are
/// on the disk, and memory is below its threshold again.
#[test]
fn memory_is_kept_from_being_full() {
    const FILE: usize = 1 << 20;
    let memory = Arc::new(SimPm::with_disks(MEMORY, &[DISK]));
    mkfs(&*memory, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
    let machine = Machine { memory, unrest: Arc::default(), is_calm: true };
    let fs = machine.open();
    let time = |secs: i64| Timestamp::new(1_700_000_000 + secs, 0);
    fs.add(machine.disk(), VOLUME, 1, 1, time(0)).expect("a tier");
    let content =
        |file: u64| -> Vec<u8> { (0..FILE as u64).map(|at| (at / 4096 * 7 + file) as u8).collect() };
    let mut files = Vec::new();
    for number in 0.. {
        let new = new_inode(FileKind::Regular, time(number as i64));
        let Ok(node) = fs.create(&fs.root(), format!("{number}").as_bytes(), &new) else { break };
        let bytes = content(number);
        let slices = [IoSlice::new(&bytes)];
        match fs.write(&node, WriteAt::Offset(0), &slices, Durability::Now, time(number as i64)) {
            Ok(_) => files.push(node),
            Err(error) => {
                assert_eq!(error.kind(), nacre_engine::Kind::NoSpace);
                break;
            }
        }
    }
    let all = (MEMORY + DISK) as usize / FILE;
    assert!(files.len() > all * 9 / 10, "{} of {all} MiB went in", files.len());
    let mut seen = vec![0; FILE];
    for (number, node) in (0..).zip(&files) {
        assert_eq!(fs.read(node, 0, &mut seen, None).expect("read"), FILE);
        assert!(seen == content(number), "file {number}");
    }
    // The latter half goes. Of what stays the older files are on the disk.
    for number in files.len() / 2..files.len() {
        fs.unlink(&fs.root(), format!("{number}").as_bytes(), time(1000)).expect("unlink");
    }
    files.truncate(files.len() / 2);
    for (number, node) in (0..).zip(&files) {
        fs.bring_up(node, FileBlock(0), u64::MAX).unwrap_or_default();
        let bytes = content(number);
        // Written again, in the same order.
        let now = time(2000 + number as i64);
        fs.write(node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, now).expect("write");
    }
    assert!(fs.usage() > fs.threshold(), "{} %, the threshold is {} %", fs.usage(), fs.threshold());
    let now_ms = 1_700_010_000_000;
    let moved = fs.keep(now_ms, &|| true).expect("blocks move");
    assert!(moved > 0 && fs.usage() <= fs.threshold(), "{} % after {moved} blocks", fs.usage());
    let is_below = |node: &<Fs as Names>::Node| {
        let extents = fs.resolve(node, FileBlock(0), u64::MAX).expect("resolve");
        extents.iter().any(|extent| matches!(extent.place, Place::Tier { .. }))
    };
    assert!(is_below(&files[0]) && !is_below(files.last().expect("a file")), "the coldest moves first");
    assert_eq!(fs.keep(now_ms, &|| true).expect("nothing to do"), 0);
    for (number, node) in (0..).zip(&files) {
        fs.read(node, 0, &mut seen, None).expect("read");
        assert!(seen == content(number), "file {number}");
    }
    drop(files);
    fs.into_layout().unmount().expect("unmount");
    machine.assert_sound();
}

/// Many writers who find memory full at once, as large as what they need together: each gets room, as long as the disk has
/// some.
#[test]
fn many_writers_find_room_at_once() {
    const FILE: u64 = 4 << 20;
    const WRITERS: u64 = 32;
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[512 << 20]));
    mkfs(&*memory, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
    let machine = Machine { memory, unrest: Arc::default(), is_calm: true };
    let fs = machine.open();
    let time = |at: u64| Timestamp::new(1_700_000_000 + at as i64, 0);
    fs.add(machine.disk(), VOLUME, 1, 1, time(0)).expect("a tier");
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let fs = &fs;
            scope.spawn(move || {
                let now = time(writer);
                let new = new_inode(FileKind::Regular, now);
                let node = fs.create(&fs.root(), format!("{writer}").as_bytes(), &new).expect("create");
                let (large, small) = (vec![writer as u8; 256 << 10], vec![!writer as u8; 4096]);
                let put = |at, bytes: &[u8]| {
                    let slices = [IoSlice::new(bytes)];
                    fs.write(&node, WriteAt::Offset(at), &slices, Durability::Now, now)
                        .expect("there is room");
                };
                (0..FILE).step_by(large.len()).for_each(|at| put(at, &large));
                (0..FILE).step_by(3 * small.len()).for_each(|at| put(at, &small));
                let mut seen = vec![0; FILE as usize];
                assert_eq!(fs.read(&node, 0, &mut seen, None).expect("read"), seen.len());
                for (number, block) in seen.chunks(small.len()).enumerate() {
                    let expected = if number % 3 == 0 { &small } else { &large[..small.len()] };
                    assert!(block == expected, "block {number} of writer {writer}");
                }
            });
        }
    });
    fs.into_layout().unmount().expect("unmount");
    machine.assert_sound();
}

/// More old files are on the tier than the mover knows files: they took all the room in its lists after a mount, so that
/// those in memory were not found, and a write failed with the disk empty.
#[test]
fn room_is_found_behind_any_number_of_files_that_are_below_already() {
    const LARGE: u64 = 1 << 20;
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[DISK]));
    mkfs(&*memory, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
    let machine = Machine { memory, unrest: Arc::default(), is_calm: true };
    let few = MoverOptions { known_files: 8, group: 32, ..MoverOptions::default() };
    let open = || {
        let layout = LogFs::mount(Arc::clone(&machine.memory), &MountOptions::default()).expect("mount");
        Fs::new(layout, few.clone())
    };
    let fs = open();
    let time = |at: u64| Timestamp::new(1_700_000_000 + at as i64, 0);
    fs.add(machine.disk(), VOLUME, 1, 1, time(0)).expect("a tier");
    let put = |fs: &Fs, dir: &<Fs as Names>::Node, number: u64, len: u64| {
        let new = new_inode(FileKind::Regular, time(number));
        let node = fs.create(dir, format!("{number}").as_bytes(), &new).expect("create");
        let bytes = vec![number as u8; len as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(number))
            .expect("there is room");
        node
    };
    // Some directories, one of them with more names than are read at once.
    let mut dir = fs.root();
    for number in 0..400 {
        if number % 100 == 0 && number < 300 {
            dir = fs.create(&dir, b"deeper", &new_inode(FileKind::Directory, time(0))).expect("create");
        }
        let node = put(&fs, &dir, number, 4096);
        fs.move_down(&node, TIER, FileBlock(0), 1, false).expect("it moves");
    }
    (1000..1010).for_each(|number| drop(put(&fs, &dir, number, LARGE)));
    drop(dir);
    fs.into_layout().unmount().expect("unmount");

    let fs = open();
    let token = fs.layout().summary().mount_epoch + 2;
    fs.attach(machine.disk(), VOLUME, Some(token)).expect("the tier is attached");
    let root = fs.root();
    (2000..2040).for_each(|number| drop(put(&fs, &root, number, LARGE)));
    // Nor is the mover kept from them.
    assert!(fs.usage() > fs.threshold());
    fs.keep(1_700_010_000_000, &|| true).expect("blocks move");
    assert!(fs.usage() <= fs.threshold(), "{} %", fs.usage());
    drop(root);
    fs.into_layout().unmount().expect("unmount");
    machine.assert_sound();
}

/// Who needed room waited for the mover until all that there was to move had moved.
#[test]
fn who_needs_room_waits_for_no_more_than_a_group() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::new(true);
    let time = |at: u64| Timestamp::new(1_700_000_000 + at as i64, 0);
    let put = |name: &str, len: u64, at: u64| {
        let new = new_inode(FileKind::Regular, time(at));
        let node = fs.create(&fs.root(), name.as_bytes(), &new).expect("create");
        let bytes = vec![1; len as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(at))
            .expect("there is room");
    };
    // Until memory is full.
    (0..).take_while(|_| fs.status().moved == 0).for_each(|at| put(&at.to_string(), FILE, at));
    (0..12).for_each(|at| put(&format!("more {at}"), FILE / 2, 1000 + at));
    let groups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let goes_on = || {
            if groups.fetch_add(1, Ordering::Relaxed) == 0 {
                scope.spawn(|| put("urgent", 8 * FILE, 2000));
                while fs.status().waiting == 0 {
                    std::thread::yield_now();
                }
            }
            true
        };
        let moved = fs.keep(1_700_010_000_000, &goes_on).expect("blocks move");
        assert!((1..=32).contains(&moved), "{moved} blocks");
    });
    assert!(fs.status().waiting == 0 && fs.usage() > fs.threshold());
    machine.unmount(fs);
}

/// A tier that took no writes failed whoever needed room, although there was another one; and the mover tried it with the
/// same file again and again.
#[test]
fn a_tier_that_fails_to_take_writes_leaves_them_to_others() {
    const FILE: u64 = 1 << 20;
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[DISK, DISK]));
    mkfs(&*memory, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
    let machine = Machine { memory, unrest: Arc::default(), is_calm: true };
    let fs = machine.open();
    let time = |at: u64| Timestamp::new(1_700_000_000 + at as i64, 0);
    let disks = [0, 1].map(|number| SimDisk::of(&machine.memory, number));
    for (rank, disk) in (1..).zip(&disks) {
        fs.add(disk.clone(), VOLUME, rank, 1, time(0)).expect("a tier");
    }
    let put = |number: u64| {
        let new = new_inode(FileKind::Regular, time(number));
        let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new)?;
        let bytes = vec![number as u8; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(number))
    };
    let keep = |second: u64| fs.keep((1_700_000_000 + second) * 1000, &|| true);
    let used = |tier| fs.layout().tier_space(tier).map(|space| space.blocks - space.free).expect("a tier");
    let errors = || fs.tiers().attachment(TIER).expect("it is there").errors;
    keep(0).expect("there is nothing to do");
    disks[0].fail_writes(true);
    (0..40).for_each(|number| assert_eq!(put(number).expect("the other one has room"), 0));
    assert!(used(1) == 0 && used(2) > 20 * 256);
    assert_eq!(errors(), 1, "it was tried once");
    let failing = || fs.tiers().attachment(TIER).expect("it is there").failing;
    assert!(failing().is_some_and(|why| why.contains("asked for")));
    // Not before its time, and then once more.
    let mut next = 40..;
    let mut fill = || {
        while fs.usage() <= fs.threshold() {
            assert_eq!(put(next.next().expect("a number")).expect("there is room"), 0);
        }
    };
    fill();
    keep(100).expect("what is cold moves");
    assert_eq!(errors(), 2);
    fill();
    keep(101).expect("what is cold moves");
    assert_eq!(errors(), 2);
    // With both it is as if there were no room, and nobody is told that a device fails.
    disks[1].fail_writes(true);
    let error = (1000..1040).find_map(|number| put(number).err()).expect("memory is full");
    assert_eq!(error.kind(), nacre_engine::Kind::NoSpace);
    assert!(keep(102).is_ok() || fs.status().failure.is_some());
    disks.iter().for_each(|disk| disk.fail_writes(false));
    let before = used(1);
    assert!(keep(400).expect("they work again") > 0);
    assert!(used(1) > before && failing().is_none());
    fs.into_layout().unmount().expect("unmount");
    machine.assert_sound();
}

/// Blocks went on to where others could not be read any more; but where there is no other tier that is better than no space.
#[test]
fn a_tier_that_cannot_be_read_is_filled_last() {
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[DISK, DISK]));
    mkfs(&*memory, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
    let machine = Machine { memory, unrest: Arc::default(), is_calm: true };
    let fs = machine.open();
    let time = |at: u64| Timestamp::new(1_700_000_000 + at as i64, 0);
    let disks = [0, 1].map(|number| SimDisk::of(&machine.memory, number));
    for (rank, disk) in (1..).zip(&disks) {
        fs.add(disk.clone(), VOLUME, rank, 1, time(0)).expect("a tier");
    }
    let mut next = 0..;
    let mut fill_and_keep = |second: u64| {
        while fs.usage() <= fs.threshold() {
            let number = next.next().expect("a number");
            let new = new_inode(FileKind::Regular, time(number));
            let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new).expect("create");
            let bytes = IoSlice::new(&[5; 1 << 20]);
            fs.write(&node, WriteAt::Offset(0), &[bytes], Durability::Now, time(number)).expect("write");
        }
        fs.keep((1_700_000_000 + second) * 1000, &|| true).expect("it keeps")
    };
    let used = || {
        [1, 2]
            .map(|tier| fs.layout().tier_space(tier).map(|space| space.blocks - space.free).expect("a tier"))
    };
    assert!(fill_and_keep(1000) > 0);
    let [first, 0] = used() else { panic!("the fastest is filled first: {:?}", used()) };
    disks[0].poison(500 * 4096, 1);
    fs.tiers().read_blocks(1, nacre_engine::Block(500), &mut [0; 4096]).expect_err("it cannot be read");
    assert!(fill_and_keep(1000) > 0);
    let [same, second] = used();
    assert!(same == first && second > 0 && fs.tiers().attachment(1).expect("there").failing.is_some());
    // It is all that there is.
    fs.tiers().detach(2, "it was taken offline");
    assert!(fill_and_keep(1000) > 0 && used()[0] > first);
    fs.into_layout().unmount().expect("unmount");
    machine.assert_sound();
}

/// With a tier that nothing is placed on, what was on it was gone from df, as if it had been removed.
#[test]
fn what_is_on_a_tier_is_counted_while_nothing_is_placed_there() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::new(true);
    let now = Timestamp::new(1_700_000_000, 0);
    let node = fs.create(&fs.root(), b"file", &new_inode(FileKind::Regular, now)).expect("create");
    let bytes = vec![1; FILE as usize];
    fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, now).expect("write");
    fs.move_down(&node, TIER, FileBlock(0), u64::MAX, false).expect("it moves");
    let before = fs.stat();
    let free = fs.layout().tier_space(TIER).expect("a tier").free;
    let assert_full = |what: &str| {
        let stat = fs.stat();
        assert_eq!(
            (stat.blocks, stat.free, stat.available),
            (before.blocks, before.free - free, before.available - free),
            "{what}"
        );
    };
    fs.set_state(TIER, TierState::Draining).expect("it drains");
    assert_full("draining");
    fs.set_state(TIER, TierState::Active).expect("it is used again");
    assert_eq!(fs.stat(), before);
    fs.tiers().detach(TIER, "it was pulled out");
    assert_full("missing");
    drop(node);
    machine.unmount(fs);
}

/// Of two tiers of one rank, the second got nothing before the first was full.
#[test]
fn tiers_of_one_rank_take_turns() {
    const FILE: u64 = 1 << 20;
    let memory = Arc::new(SimPm::with_disks(MEMORY, &[DISK, DISK, DISK]));
    mkfs(&*memory, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
    let machine = Machine { memory, unrest: Arc::default(), is_calm: true };
    let fs = machine.open();
    let time = |at: u64| Timestamp::new(1_700_000_000 + at as i64, 0);
    for (number, rank) in [2, 1, 1].into_iter().enumerate() {
        fs.add(SimDisk::of(&machine.memory, number), VOLUME, rank, 1, time(0)).expect("a tier");
    }
    for number in 0..50 {
        let new = new_inode(FileKind::Regular, time(number));
        let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new).expect("create");
        let bytes = vec![number as u8; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(number))
            .expect("there is room");
    }
    let moved = fs.keep(1_700_010_000_000, &|| true).expect("blocks move");
    let used = |tier| fs.layout().tier_space(tier).map(|space| space.blocks - space.free).expect("a tier");
    assert!(moved > 1000 && used(1) == 0 && used(2).abs_diff(used(3)) <= 32, "{} and {}", used(2), used(3));
    fs.into_layout().unmount().expect("unmount");
    machine.assert_sound();
}

#[test]
fn pinned_files_stay_and_the_mover_moves_as_much_as_it_is_let() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::new(true);
    let time = |at: i64| Timestamp::new(1_700_000_000 + at, 0);
    let new = |kind, at| new_inode(kind, time(at));
    let put = |dir: &<Fs as Names>::Node, at: i64| {
        let node = fs.create(dir, format!("{at}").as_bytes(), &new(FileKind::Regular, at)).expect("create");
        let bytes = vec![at as u8; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(at))
            .expect("write");
        node
    };
    let below = |node: &<Fs as Names>::Node| bytes_below(&fs, node);
    // Whatever is made in a pinned directory, directly or not, is pinned; and it is the oldest.
    let outer = fs.create(&fs.root(), b"kept", &new(FileKind::Directory, 0)).expect("create");
    fs.set_xattr(&outer, PIN, b"1", XattrMode::Set, None, time(0)).expect("set");
    let inner = fs.create(&outer, b"inner", &new(FileKind::Directory, 0)).expect("create");
    let kept: Vec<_> = (1..=40).map(|at| put(&inner, at)).collect();
    let others: Vec<_> = (41..=58).map(|at| put(&fs.root(), at)).collect();
    assert_eq!(fs.get_xattr(&kept[0], PIN).expect("inherited"), b"1");
    assert!(fs.get_xattr(&others[0], PIN).is_err());

    let now = |second: u64| 1_700_010_000_000 + 1000 * second;
    assert!(fs.usage() > fs.threshold(), "{} %", fs.usage());
    fs.pause(true);
    assert_eq!(fs.keep(now(0), &|| true).expect("it pauses"), 0);
    assert!(fs.status().paused && fs.status().is_idle);
    fs.pause(false);
    // A group of 128 KiB more than that is possible.
    fs.limit(Some(FILE));
    assert!(!fs.status().is_idle);
    let moved = 4096 * fs.keep(now(10), &|| true).expect("blocks move");
    assert!((FILE..=FILE + (128 << 10)).contains(&moved), "{moved}");
    assert_eq!(fs.keep(now(10), &|| true).expect("no time passed"), 0);
    let more = 4096 * fs.keep(now(11), &|| true).expect("blocks move");
    assert!((FILE - (256 << 10)..=FILE + (128 << 10)).contains(&more), "{more}");
    assert_eq!(others.iter().map(below).sum::<u64>(), moved + more);
    let status = fs.status();
    assert_eq!((status.moved, status.rate, status.is_idle), (moved + more, Some(FILE), false));

    fs.limit(None);
    fs.keep(now(20), &|| true).expect("blocks move");
    assert!(fs.usage() > fs.threshold() && fs.status().is_idle, "nothing else can move");
    // A wait for the mover ended before what was just written had been looked at.
    let late = put(&fs.root(), 59);
    assert!(!fs.status().is_idle, "what was just written can move");
    assert_eq!(others.iter().map(below).sum::<u64>(), 18 * FILE);
    assert_eq!(kept.iter().map(below).sum::<u64>(), 0, "pinned");
    // Who needs space does not get theirs, either: what goes down is the others'.
    fs.pause(true);
    let more: Vec<_> = (100..140).map(|at| put(&fs.root(), at)).collect();
    assert_eq!(kept.iter().map(below).sum::<u64>(), 0, "pinned");
    fs.pause(false);
    fs.remove_xattr(&kept[3], PIN, time(1000)).expect("unpin");
    fs.keep(now(2000), &|| true).expect("blocks move");
    assert_eq!((below(&kept[3]), below(&kept[4])), (FILE, 0));
    drop((outer, inner, kept, others, late, more));
    machine.unmount(fs);
}

/// Who sets the attribute does not wait, and nothing of it stays behind.
#[test]
fn a_file_goes_where_its_attribute_says() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::new(true);
    let now = Timestamp::new(1_700_000_000, 0);
    let put = |name: &str| {
        let node =
            fs.create(&fs.root(), name.as_bytes(), &new_inode(FileKind::Regular, now)).expect("create");
        let bytes = vec![name.as_bytes()[0]; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, now).expect("write");
        node
    };
    let says = |node: &<Fs as Names>::Node| {
        String::from_utf8(fs.get_xattr(node, PLACE).expect("it says where it is")).expect("text")
    };
    let set = |node: &<Fs as Names>::Node, value: &str| {
        fs.set_xattr(node, PLACE, value.as_bytes(), XattrMode::Set, None, now)
    };
    let keep = |second: u64| fs.keep(1_700_010_000_000 + 1000 * second, &|| true).expect("it keeps");
    let (one, gone) = (put("one"), put("gone"));
    assert_eq!(says(&one), "pm");
    set(&one, "1").expect("set");
    set(&gone, "1").expect("set");
    fs.unlink(&fs.root(), b"gone", now).expect("unlink");
    drop(gone);
    assert_eq!((says(&one).as_str(), fs.status().told, fs.status().is_idle), ("pm", 2, false));
    assert!(fs.list_xattrs(&one).expect("list").is_empty(), "it is not stored");
    assert_eq!(keep(0), FILE / 4096);
    assert_eq!((says(&one).as_str(), bytes_below(&fs, &one)), ("1", FILE));
    assert_eq!((fs.status().told, fs.status().is_idle, fs.status().refused), (0, true, None));
    // A block that is written is in memory, and the rest is where it was.
    fs.write(&one, WriteAt::Offset(0), &[IoSlice::new(&[7; 4096])], Durability::Now, now).expect("write");
    assert_eq!(says(&one), "pm,1");

    for wrong in ["pm,1", "2", ""] {
        assert_eq!(set(&one, wrong).expect_err("no place").kind(), Kind::InvalidInput, "{wrong:?}");
        let refused = fs.status().refused.expect("in words");
        assert!(refused.contains(&format!("{wrong:?}")), "{refused}");
    }
    let create = fs.set_xattr(&one, PLACE, b"pm", XattrMode::Create, None, now);
    assert_eq!(create.expect_err("it is there").kind(), Kind::Exists);
    let dir = fs.create(&fs.root(), b"dir", &new_inode(FileKind::Directory, now)).expect("create");
    assert_eq!(set(&dir, "pm").expect_err("a directory").kind(), Kind::InvalidInput);
    assert_eq!(fs.get_xattr(&dir, PLACE).expect_err("a directory").kind(), Kind::NoAttribute);

    // What was taken back stays; what was not moves while the mover is paused, and no faster than it may.
    set(&one, "pm").expect("set");
    fs.remove_xattr(&one, PLACE, now).expect("taken back");
    assert_eq!(fs.remove_xattr(&one, PLACE, now).expect_err("nothing waits").kind(), Kind::NoAttribute);
    assert_eq!(keep(1), 0);
    fs.pause(true);
    fs.limit(Some(FILE / 4));
    set(&one, "pm").expect("set");
    assert!((FILE / 4..=FILE / 4 + (128 << 10)).contains(&(4096 * keep(10))));
    assert_eq!((says(&one).as_str(), fs.status().told), ("pm,1", 1));
    for second in 11..16 {
        keep(second);
    }
    assert_eq!((says(&one).as_str(), fs.status().told), ("pm", 0));

    fs.tiers().detach(TIER, "it was taken offline");
    assert_eq!(set(&one, "1").expect_err("missing").kind(), Kind::DeviceLost);
    drop((one, dir));
    machine.unmount(fs);
}

/// What is read over and over moves to disk and into DRAM while all reads come from memory, and up again when none do.
#[test]
fn reads_come_from_memory_and_from_dram() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::new(true);
    let time = |at: i64| Timestamp::new(1_700_000_000 + at, 0);
    let put = |name: &str| {
        let new = new_inode(FileKind::Regular, time(0));
        let node = fs.create(&fs.root(), name.as_bytes(), &new).expect("create");
        let bytes: Vec<u8> = (0..FILE).map(|at| (at / 512) as u8 ^ name.as_bytes()[0]).collect();
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(0))
            .expect("write");
        (node, bytes)
    };
    let (hot, pinned, written) = (put("hot"), put("pinned"), put("written"));
    fs.set_xattr(&pinned.0, PIN, b"1", XattrMode::Set, None, time(0)).expect("set");
    let below = |node: &<Fs as Names>::Node| bytes_below(&fs, node);
    let read = |(node, bytes): &(<Fs as Names>::Node, Vec<u8>), at: i64| {
        let mut buffer = vec![0; FILE as usize];
        assert_eq!(fs.read(node, 0, &mut buffer, Some(time(at))).expect("read"), buffer.len());
        assert!(buffer == *bytes, "second {at}");
    };
    let keep = |second: i64| fs.keep((1_700_000_000 + second as u64) * 1000, &|| true).expect("it keeps");
    keep(0);
    for second in 1..=4 {
        assert_eq!(below(&hot.0), 0, "second {second}");
        // It is read as often as the others, and written between.
        fs.write(&written.0, WriteAt::Offset(0), &[IoSlice::new(&written.1)], Durability::Now, time(second))
            .expect("write");
        [&hot, &pinned, &written].into_iter().for_each(|file| read(file, second));
        keep(second);
    }
    // Four seconds were as one, and a quarter of the 4 MiB of DRAM is what it takes in a second.
    assert_eq!([&hot.0, &pinned.0, &written.0].map(below), [FILE, 0, 0]);
    assert_eq!((fs.status().lowered, fs.status().moved), (FILE, 0));
    let traffic = fs.tiers().traffic();
    // Reads of both are nothing that asks for more.
    for second in 5..=9 {
        [&hot, &pinned].into_iter().for_each(|file| read(file, second));
        assert_eq!(keep(second), 0, "second {second}");
    }
    assert_eq!(fs.tiers().traffic(), traffic, "all of it was in DRAM");
    for second in 10..=13 {
        assert_eq!((below(&hot.0), fs.status().raised), (FILE, 0), "second {second}");
        read(&hot, second);
        keep(second);
    }
    assert_eq!((below(&hot.0), fs.status().raised), (0, FILE));
    read(&hot, 14);
    // Nobody reads anything.
    (15..30).for_each(|second| assert_eq!(keep(second), 0));
    drop((hot, pinned, written));
    machine.unmount(fs);
}

/// What is read is more than DRAM has room for: no more of it moves than that, and nothing is read from disk.
#[test]
fn what_dram_has_no_room_for_stays_in_memory() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::new(true);
    let time = |at: i64| Timestamp::new(1_700_000_000 + at, 0);
    let bytes = vec![7; FILE as usize];
    let files: Vec<_> = (0..16)
        .map(|number| {
            let new = new_inode(FileKind::Regular, time(0));
            let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new).expect("create");
            fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(0))
                .expect("write");
            node
        })
        .collect();
    for second in 0..20 {
        for node in &files {
            let mut buffer = vec![0; FILE as usize];
            fs.read(node, 0, &mut buffer, Some(time(second))).expect("read");
            assert!(buffer == bytes, "second {second}");
        }
        fs.keep((1_700_000_000 + second as u64) * 1000, &|| true).expect("it keeps");
    }
    let (lowered, dram) = (fs.status().lowered, fs.tiers().pages().capacity());
    // Where blocks lie, a chunk of 64 KiB may be half full.
    assert!((dram - (64 << 10)..=dram).contains(&lowered), "{lowered} of {dram}");
    assert_eq!(fs.tiers().traffic().0, 0, "nothing was read from disk");
    drop(files);
    machine.unmount(fs);
}
