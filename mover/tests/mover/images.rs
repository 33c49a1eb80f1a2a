//! A log with many extents stayed in memory for ever, however cold its file. Where all blocks of a file are on one tier, what its
//! log says of them goes there, too.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Kind, LogOffload,
    Names, NewInode, Relocate, SetAttr, TierTable, Timestamp, WriteAt, XattrMode,
};
use nacre_layout_log::anatomy::{self, structures};
use nacre_layout_log::check::{Problem, Repair, check, check_with_tiers};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::block::SimDisk;
use nacre_media::{Pm, SimPm};
use nacre_mover::{Budget, MoverOptions, TieredFs};
use nacre_tiers::{Label, TierSet};
use uuid::Uuid;

type Fs = TieredFs<LogFs<SimPm>, SimDisk>;
type Node = <Fs as Names>::Node;

const BLOCK: usize = BLOCK_SIZE as usize;
const TIER: u8 = 1;
const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);
const VOLUME: Uuid = Uuid::from_u128(7);
/// The kind of the entry of an image.
const IMAGE: u8 = 10;
/// Every second block of a file is written.
const BLOCKS: usize = 200;

fn mount(memory: &Arc<SimPm>, with_disk: bool) -> Fs {
    let layout = LogFs::mount(Arc::clone(memory), &MountOptions::default()).expect("mount");
    let token = layout.summary().mount_epoch + 2;
    let fs = Fs::new(layout, MoverOptions { balance: false, page_cache: 0, ..MoverOptions::default() });
    if with_disk {
        fs.attach(SimDisk::of(memory, 0), VOLUME, Some(token)).expect("the tier");
    }
    fs
}

/// The file `a` with holes and an attribute, all of it on the tier, its log included; and `b` in memory.
fn machine() -> (Arc<SimPm>, Fs) {
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[16 << 20; 2]));
    mkfs(&*memory, &MkfsOptions::default()).expect("mkfs");
    let layout = LogFs::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::new(layout, MoverOptions { balance: false, page_cache: 0, ..MoverOptions::default() });
    fs.add(SimDisk::of(&memory, 0), VOLUME, 1, 1, NOW).expect("a tier");
    let a = create(&fs, "a");
    (0..BLOCKS).step_by(2).for_each(|block| put(&fs, &a, block, 1));
    fs.layout().set_xattr(&a, b"user.x", b"value", XattrMode::Set, None, NOW).expect("an attribute");
    let b = create(&fs, "b");
    put(&fs, &b, 0, 3);
    fs.demote(&a, TIER, FileBlock(0), u64::MAX, false).expect("room");
    let before = fs.layout().stat().free;
    while !fs.layout().compact_log(&a, true).expect("a log").is_done {}
    let freed = fs.move_log(&a).expect("room on the tier");
    assert!(freed > 0 && fs.layout().stat().free >= before + freed, "{freed}");
    assert_eq!(fs.layout().log_image_at(&a).map(|run| (run.tier, run.len)), Some((TIER, 1)));
    assert_eq!(fs.move_log(&a).expect("nothing to do"), 0);
    (memory, fs)
}

fn create(fs: &Fs, name: &str) -> Node {
    let (kind, mode) = (FileKind::Regular, 0o644);
    let new = NewInode { kind, mode, uid: 0, gid: 0, rdev: 0, now: NOW, xattrs: &[], target: &[] };
    fs.create(&fs.root(), name.as_bytes(), &new).expect("create")
}

fn find(fs: &Fs, name: &str) -> Node {
    fs.lookup(&fs.root(), name.as_bytes()).expect("the file")
}

fn put(fs: &Fs, node: &Node, block: usize, blocks: usize) {
    let bytes: Vec<u8> = (block..block + blocks).flat_map(|block| [byte(block); BLOCK]).collect();
    let at = WriteAt::Offset((block * BLOCK) as u64);
    fs.write(node, at, &[IoSlice::new(&bytes)], Durability::Now, NOW).expect("room");
}

fn byte(block: usize) -> u8 {
    block as u8 | 1
}

/// What a block of `a` has, or none where it is a hole.
fn original(block: usize) -> u8 {
    if block.is_multiple_of(2) { byte(block) } else { 0 }
}

fn assert_content(fs: &Fs, node: &Node, blocks: usize, expected: impl Fn(usize) -> u8) {
    let mut bytes = vec![0; blocks * BLOCK];
    assert_eq!(fs.read(node, 0, &mut bytes, None).expect("read"), bytes.len());
    for (block, content) in bytes.chunks(BLOCK).enumerate() {
        assert!(
            content.iter().all(|got| *got == expected(block)),
            "block {block} begins with {}",
            content[0]
        );
    }
}

fn used_on_tier(fs: &Fs) -> u64 {
    let space = fs.layout().tier_space(TIER).expect("a tier");
    space.blocks - space.free
}

/// Ends it, in order or not.
fn end(fs: Fs, crash: bool) {
    match crash {
        true => fs.into_layout().abandon(),
        false => fs.into_layout().unmount().expect("unmount"),
    }
}

/// The tier, for who checks a file system that is not mounted.
fn tiers(memory: &Arc<SimPm>) -> TierSet<SimDisk> {
    let (tiers, disk) = (TierSet::new(0), SimDisk::of(memory, 0));
    let label = Label::read(&disk).expect("a label").expect("a tier");
    tiers.attach(TIER, disk, label);
    tiers
}

/// Ends it, in order or not, checks what is there with what is on the tier, and mounts again.
fn again(memory: &Arc<SimPm>, fs: Fs, crash: bool) -> Fs {
    end(fs, crash);
    let tiers = tiers(memory);
    for readers in [None, Some(&tiers as _)] {
        let report = check_with_tiers(&**memory, Repair::None, readers).expect("check");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
    mount(memory, true)
}

#[test]
fn what_is_in_the_file_stays_and_its_attributes_change_alone() {
    for crash in [false, true] {
        let (memory, fs) = machine();
        let used = used_on_tier(&fs);
        assert_eq!(used, BLOCKS as u64 / 2 + 1);
        let fs = again(&memory, fs, crash);
        let a = find(&fs, "a");
        let attr = fs.getattr(&a).expect("attributes");
        let size = ((BLOCKS - 1) * BLOCK) as u64;
        assert_eq!((attr.size, attr.allocated), (size, BLOCKS as u64 / 2 * BLOCK_SIZE));
        assert_eq!(used_on_tier(&fs), used);
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        fs.layout().setattr(&a, &change, NOW).expect("a change of mode");
        fs.layout().set_xattr(&a, b"user.y", &[7; 100], XattrMode::Set, None, NOW).expect("an attribute");
        assert!(fs.layout().log_image_at(&a).is_some());
        assert_content(&fs, &a, BLOCKS - 1, original);
        drop(a);
        let fs = again(&memory, fs, !crash);
        let a = find(&fs, "a");
        assert!(fs.layout().log_image_at(&a).is_some());
        assert_eq!(fs.getattr(&a).expect("attributes").mode, 0o600);
        assert_eq!(fs.layout().get_xattr(&a, b"user.x").expect("the attribute"), b"value");
        assert_eq!(fs.layout().get_xattr(&a, b"user.y").expect("the attribute"), [7; 100]);
        // What is written now must not be where the file is.
        let c = create(&fs, "c");
        put(&fs, &c, 0, 100);
        fs.demote(&c, TIER, FileBlock(0), u64::MAX, false).expect("room");
        assert_content(&fs, &a, BLOCKS - 1, original);
        assert_eq!(used_on_tier(&fs), used + 100);
    }
}

#[test]
fn changes_of_blocks_bring_the_log_back() {
    type Act = fn(&Fs, &Node);
    type Content = fn(usize) -> u8;
    let size = (BLOCKS - 1) * BLOCK;
    let write: Act = |fs, a| put(fs, a, 1, 1);
    let part: Act = |fs, a| {
        let at = WriteAt::Offset(10);
        fs.write(a, at, &[IoSlice::new(&[byte(0); 5])], Durability::Now, NOW).map(drop).expect("room");
    };
    let cut: Act = |fs, a| {
        let change = SetAttr { size: Some(10 * BLOCK_SIZE), ..SetAttr::default() };
        fs.setattr(a, &change, NOW).map(drop).expect("a truncation");
    };
    let hole: Act = |fs, a| {
        fs.fallocate(a, FallocateMode::PunchHole, 2 * BLOCK_SIZE, BLOCK_SIZE, NOW).map(drop).expect("a hole");
    };
    let up: Act = |fs, a| fs.promote(a, FileBlock(0), u64::MAX).map(drop).expect("room");
    let back: Act = |fs, a| assert!(fs.layout().take_log_back(a).expect("room"));
    let acts: [(Act, usize, Content); 6] = [
        (write, size, |block| if block == 1 { byte(1) } else { original(block) }),
        (part, size, original),
        (cut, 10 * BLOCK, original),
        (hole, size, |block| if block == 2 { 0 } else { original(block) }),
        (up, size, original),
        (back, size, original),
    ];
    for (number, (act, size, content)) in acts.into_iter().enumerate() {
        for (is_loaded, crash) in [(true, true), (false, true), (false, false)] {
            let (memory, mut fs) = machine();
            if !is_loaded {
                fs = again(&memory, fs, crash);
            }
            let a = find(&fs, "a");
            act(&fs, &a);
            assert_eq!(fs.layout().log_image_at(&a), None, "act {number}");
            assert_content(&fs, &a, size / BLOCK, content);
            drop(a);
            let fs = again(&memory, fs, crash);
            let a = find(&fs, "a");
            assert_content(&fs, &a, size / BLOCK, content);
            let on_tier = fs.layout().resolve_movable(&a, FileBlock(0), u64::MAX).expect("the file");
            let on_tier =
                on_tier.iter().filter(|one| matches!(one.extent.place, nacre_engine::Place::Tier { .. }));
            assert_eq!(used_on_tier(&fs), on_tier.map(|one| one.extent.len).sum(), "act {number}");
            // It may go down again.
            drop(a);
            fs.unlink(&fs.root(), b"a", NOW).expect("unlink");
            assert_eq!(used_on_tier(&fs), 0, "act {number}");
        }
    }
}

#[test]
fn a_missing_tier_fails_what_asks_for_blocks_and_nothing_else() {
    for crash in [false, true] {
        let (memory, fs) = machine();
        end(fs, crash);
        let fs = mount(&memory, false);
        let (a, b) = (find(&fs, "a"), find(&fs, "b"));
        let error = fs.read(&a, 0, &mut [0; 10], None).expect_err("the tier is missing");
        assert_eq!(error.kind(), Kind::DeviceLost);
        assert!(error.object_name().starts_with("tier 1: "), "{error}");
        let written = fs.write(&a, WriteAt::Offset(0), &[IoSlice::new(&[1; 3])], Durability::Now, NOW);
        assert_eq!(written.expect_err("the tier is missing").kind(), Kind::DeviceLost);
        assert_content(&fs, &b, 3, byte);
        put(&fs, &b, 0, 4);
        assert_eq!(fs.getattr(&a).expect("attributes").size, ((BLOCKS - 1) * BLOCK) as u64);
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        fs.layout().setattr(&a, &change, NOW).expect("a change of mode");
        // It comes back.
        fs.attach(SimDisk::of(&memory, 0), VOLUME, Some(99)).expect("the tier");
        assert_content(&fs, &a, BLOCKS - 1, original);
        assert_eq!(used_on_tier(&fs), BLOCKS as u64 / 2 + 1);
    }
}

#[test]
fn a_file_that_goes_while_its_tier_is_missing_gives_all_back() {
    for crash in [false, true] {
        let (memory, fs) = machine();
        end(fs, crash);
        let fs = mount(&memory, false);
        fs.unlink(&fs.root(), b"a", NOW).expect("unlink");
        fs.into_layout().unmount().expect("unmount");
        assert!(check(&*memory, false).expect("check").problems.is_empty());
        let fs = mount(&memory, true);
        assert_eq!(used_on_tier(&fs), 0, "after a crash: {crash}");
        // After a crash, while it is still to be counted, too.
        fs.into_layout().abandon();
        drop(mount(&memory, true));
    }
}

#[test]
fn a_mount_without_the_tier_does_not_forget_what_is_on_it() {
    let (memory, fs) = machine();
    fs.into_layout().abandon();
    for _ in 0..2 {
        let fs = mount(&memory, false);
        put(&fs, &find(&fs, "b"), 0, 1);
        fs.into_layout().unmount().expect("unmount");
    }
    let fs = mount(&memory, true);
    let c = create(&fs, "c");
    put(&fs, &c, 0, 150);
    fs.demote(&c, TIER, FileBlock(0), u64::MAX, false).expect("room");
    assert_content(&fs, &find(&fs, "a"), BLOCKS - 1, original);
    assert_content(&fs, &c, 150, byte);
    assert_eq!(used_on_tier(&fs), BLOCKS as u64 / 2 + 1 + 150);
}

#[test]
fn a_damaged_image_harms_its_file_alone_until_that_is_gone() {
    let (memory, fs) = machine();
    let image = fs.layout().log_image_at(&find(&fs, "a")).expect("an image");
    fs.into_layout().abandon();
    SimDisk::of(&memory, 0).poke(image.start.offset() + 40, &[0xff; 3]);
    let fs = mount(&memory, true);
    let a = find(&fs, "a");
    let error = fs.read(&a, 0, &mut [0; 10], None).expect_err("nobody knows where it is");
    assert_eq!(error.kind(), Kind::Corrupt);
    assert_content(&fs, &find(&fs, "b"), 3, byte);
    let space = fs.layout().tier_space(TIER).expect("a tier");
    assert!(space.free == 0 && !space.is_counted, "nobody knows what is free");
    drop(a);
    fs.into_layout().unmount().expect("unmount");
    let tiers = tiers(&memory);
    let report = check_with_tiers(&*memory, Repair::None, Some(&tiers)).expect("check");
    assert!(
        report.problems.iter().any(|problem| problem.what.contains("the offloaded extent map at block")),
        "{report:?}"
    );
    let fs = mount(&memory, true);
    fs.unlink(&fs.root(), b"a", NOW).expect("unlink");
    let fs = again(&memory, fs, false);
    assert_eq!(used_on_tier(&fs), 0);
    assert!(fs.layout().tier_space(TIER).expect("a tier").is_counted);
}

/// The blocks of such a file stay in use until the next mount, which nothing said.
#[test]
fn blocks_of_a_removed_file_with_a_damaged_image_count_as_leaked() {
    for is_known in [true, false] {
        let (memory, fs) = machine();
        let image = fs.layout().log_image_at(&find(&fs, "a")).expect("an image");
        fs.into_layout().unmount().expect("unmount");
        SimDisk::of(&memory, 0).poke(image.start.offset() + 40, &[0xff; 3]);
        let fs = mount(&memory, true);
        if is_known {
            assert!(fs.read(&find(&fs, "a"), 0, &mut [0; 10], None).is_err(), "the map is damaged");
        }
        let space = || fs.layout().tier_space(TIER).expect("a tier");
        assert_eq!((space().is_counted, space().leaked), (true, 0));
        fs.unlink(&fs.root(), b"a", NOW).expect("unlink");
        // A thread frees what is removed.
        let end = Instant::now() + Duration::from_secs(60);
        let is_over = || space().leaked > 0 && used_on_tier(&fs) <= space().leaked;
        while !is_over() && Instant::now() < end {
            thread::yield_now();
        }
        assert_eq!((space().leaked, used_on_tier(&fs)), (BLOCKS as u64 / 2, BLOCKS as u64 / 2));
        let fs = again(&memory, fs, false);
        assert_eq!(fs.layout().tier_space(TIER).expect("a tier").leaked, 0);
        assert_eq!(used_on_tier(&fs), 0);
    }
}

/// It looked full, and all that was cold there went to slower ones, at each mount.
#[test]
fn a_tier_of_which_nobody_knows_what_is_free_gives_nothing_to_slower_ones() {
    for is_damaged in [true, false] {
        let (memory, fs) = machine();
        let image = fs.layout().log_image_at(&find(&fs, "a")).expect("an image");
        fs.demote(&find(&fs, "b"), TIER, FileBlock(0), u64::MAX, false).expect("room");
        fs.into_layout().abandon();
        if is_damaged {
            SimDisk::of(&memory, 0).poke(image.start.offset() + 40, &[0xff; 3]);
        }
        let fs = mount(&memory, true);
        fs.add(SimDisk::of(&memory, 1), VOLUME, 9, 1, NOW).expect("a slower tier");
        assert_eq!(fs.layout().tier_space(TIER).expect("a tier").is_counted, !is_damaged);
        fs.tick(1_800_000_000_000, &Budget::default()).expect("it looks");
        assert_eq!(fs.status().descended, 0, "damaged: {is_damaged}");
        assert_content(&fs, &find(&fs, "b"), 3, byte);
    }
}

#[test]
fn a_drain_takes_logs_back_and_the_tier_can_go() {
    for crash in [false, true] {
        let (memory, fs) = machine();
        let fs = again(&memory, fs, crash);
        let error = fs.remove(TIER).expect_err("it is in use");
        assert_eq!(error.kind(), Kind::Busy);
        let drained = fs.drain(TIER, &Budget::default()).expect("room in memory");
        assert!(drained.is_done && drained.left == 0, "{drained:?}");
        fs.remove(TIER).expect("nothing is on it");
        let a = find(&fs, "a");
        assert_content(&fs, &a, BLOCKS - 1, original);
        drop(a);
        fs.into_layout().abandon();
        assert!(check(&*memory, false).expect("check").problems.is_empty());
        let fs = mount(&memory, false);
        assert_content(&fs, &find(&fs, "a"), BLOCKS - 1, original);
    }
}

/// A sector of a disk that cannot be read is no reason to be without the disk.
#[test]
fn an_image_that_cannot_be_read_harms_its_file_alone() {
    let (memory, fs) = machine();
    let image = fs.layout().log_image_at(&find(&fs, "a")).expect("an image");
    fs.demote(&find(&fs, "b"), TIER, FileBlock(0), u64::MAX, false).expect("room");
    fs.into_layout().abandon();
    SimDisk::of(&memory, 0).poison(image.start.offset(), 8);
    let fs = mount(&memory, true);
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    fs.tiers().listen(Box::new(move |what| listener.lock().unwrap().push(what.to_owned())));
    let told = told.lock().unwrap().join("; ");
    assert!(told.contains("tier 1: its free blocks are unknown"), "{told}");
    let error = fs.read(&find(&fs, "a"), 0, &mut [0; 10], None).expect_err("the device says so");
    assert_eq!(error.kind(), Kind::Media);
    assert_content(&fs, &find(&fs, "b"), 3, byte);
    assert_eq!(fs.layout().tier_space(TIER).expect("a tier").free, 0, "nobody knows what is free");
    let tiers = tiers(&memory);
    // When it is gone all of the tier can be used again, at once.
    fs.unlink(&fs.root(), b"a", NOW).expect("unlink");
    let begun = std::time::Instant::now();
    while used_on_tier(&fs) != 3 {
        assert!(begun.elapsed().as_secs() < 60, "{} blocks", used_on_tier(&fs));
        std::thread::yield_now();
    }
    fs.into_layout().unmount().expect("unmount");
    let report = check_with_tiers(&*memory, Repair::None, Some(&tiers)).expect("check");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn fsck_tells_of_an_image_that_cannot_be_read() {
    let (memory, fs) = machine();
    let image = fs.layout().log_image_at(&find(&fs, "a")).expect("an image");
    fs.into_layout().unmount().expect("unmount");
    SimDisk::of(&memory, 0).poison(image.start.offset(), 8);
    let tiers = tiers(&memory);
    for repair in [Repair::None, Repair::All] {
        let report = check_with_tiers(&*memory, repair, Some(&tiers)).expect("check");
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        let what = &report.problems[0].what;
        assert!(what.contains("of inode") && !report.is_sound(), "{what}");
    }
    // Memory is as it was.
    let fs = mount(&memory, true);
    assert_content(&fs, &find(&fs, "b"), 3, byte);
    assert_eq!(used_on_tier(&fs), BLOCKS as u64 / 2 + 1, "what is free is known from the unmount");
}

#[test]
fn a_tier_that_takes_no_writes_leaves_the_log_where_it_is() {
    let (memory, fs) = machine();
    let a = find(&fs, "a");
    assert!(fs.layout().take_log_back(&a).expect("room"));
    let used = used_on_tier(&fs);
    let disk = SimDisk::of(&memory, 0);
    fs.tiers().detach(TIER, "it is replaced by one that can fail");
    fs.attach(disk.clone(), VOLUME, Some(99)).expect("the tier");
    disk.fail_writes(true);
    for time in 0..3 {
        // Then it is left alone for a while.
        assert!(fs.move_log(&a).is_err() || time > 0, "the disk fails");
        assert_eq!((fs.layout().log_image_at(&a), used_on_tier(&fs)), (None, used));
    }
    disk.fail_writes(false);
    drop(a);
    let fs = again(&memory, fs, false);
    let a = find(&fs, "a");
    assert!(fs.move_log(&a).expect("room on the tier") > 0);
    assert_content(&fs, &a, BLOCKS - 1, original);
}

/// Or else it could not be written later where memory is full, or the tier is missing by then.
#[test]
fn a_write_that_waits_has_the_log_back_before() {
    let (memory, fs) = machine();
    fs.into_layout().unmount().expect("unmount");
    let fs = mount(&memory, false);
    let error = fs.expect_write(&find(&fs, "a")).expect_err("the tier is missing");
    assert_eq!(error.kind(), Kind::DeviceLost);
    fs.attach(SimDisk::of(&memory, 0), VOLUME, Some(99)).expect("the tier");
    let a = find(&fs, "a");
    fs.expect_write(&a).expect("room");
    assert_eq!(fs.layout().log_image_at(&a), None);
    assert_eq!(fs.move_log(&a).expect("it stays until it was written"), 0);
    put(&fs, &a, 0, 1);
    fs.demote(&a, TIER, FileBlock(0), u64::MAX, false).expect("room");
    assert!(fs.move_log(&a).expect("room on the tier") > 0);
}

/// Who goes through all files must not read each of them.
#[test]
fn what_asks_not_where_blocks_are_reads_nothing() {
    let (memory, fs) = machine();
    let fs = again(&memory, fs, false);
    let a = find(&fs, "a");
    fs.getattr(&a).expect("attributes");
    assert!(fs.layout().compact_log(&a, true).expect("a log").is_done);
    assert_eq!(fs.move_log(&a).expect("it is there"), 0);
    fs.layout().get_xattr(&a, b"user.x").expect("the attribute");
    assert_eq!(fs.tiers().traffic_of(TIER).reads, 0);
    assert_content(&fs, &a, BLOCKS - 1, original);
    assert!(fs.tiers().traffic_of(TIER).reads > 0);
}

/// Two that name one place cannot both be right, and the one that a repair leaves is whole.
#[test]
fn a_repair_parts_images_in_one_place() {
    let (memory, fs) = machine();
    let c = create(&fs, "c");
    (0..BLOCKS).step_by(2).for_each(|block| put(&fs, &c, block, 1));
    fs.demote(&c, TIER, FileBlock(0), u64::MAX, false).expect("room");
    assert!(fs.move_log(&c).expect("room on the tier") > 0);
    let numbers = [find(&fs, "a"), c].map(|node| fs.id(&node).number);
    fs.into_layout().unmount().expect("unmount");
    let image_of = |number: u64| {
        let all = structures(&*memory).expect("a sound image").into_iter();
        let mut entries =
            all.filter(|one| one.inode == number && one.kind == anatomy::Kind::Entry).map(|one| {
                let mut bytes = vec![0; one.len as usize];
                memory.read(one.offset, &mut bytes).expect("read");
                (one, bytes)
            });
        entries.find(|(_, bytes)| bytes[4] == IMAGE).expect("the entry of an image")
    };
    let ((_, of_a), (entry, _)) = (image_of(numbers[0]), image_of(numbers[1]));
    memory.poke(entry.offset + 16, &of_a[16..24]);
    anatomy::reseal(&*memory, &entry).expect("it validates again");
    let report = check(&*memory, true).expect("check");
    let lost = |problem: &Problem| problem.what.contains("in blocks of another") && problem.loses;
    assert!(report.is_sound() && report.problems.iter().any(lost), "{:?}", report.problems);
    let fs = mount(&memory, true);
    let contents = ["a", "c"].map(|name| {
        let mut bytes = vec![0; (BLOCKS - 1) * BLOCK];
        fs.read(&find(&fs, name), 0, &mut bytes, None).expect("read");
        bytes
    });
    let is_whole = |bytes: &Vec<u8>| (0..BLOCKS - 1).all(|block| bytes[block * BLOCK] == original(block));
    let is_hole = |bytes: &Vec<u8>| bytes.iter().all(|byte| *byte == 0);
    assert!(contents.iter().any(is_whole) && contents.iter().any(is_hole));
    assert_eq!(used_on_tier(&fs), BLOCKS as u64 / 2 + 1);
}

/// The attribute of a file goes like any other, whether its log can be read or not.
#[test]
fn an_attribute_goes_while_the_log_is_on_a_tier() {
    for with_disk in [true, false] {
        let (memory, fs) = machine();
        end(fs, false);
        let fs = mount(&memory, with_disk);
        let a = find(&fs, "a");
        fs.layout().remove_xattr(&a, b"user.x", NOW).expect("it says nothing of blocks");
        assert!(fs.layout().log_image_at(&a).is_some(), "the log stays where it is");
        drop(a);
        end(fs, true);
        let fs = mount(&memory, true);
        let a = find(&fs, "a");
        assert!(fs.layout().list_xattrs(&a).expect("list").is_empty());
        assert_content(&fs, &a, BLOCKS - 1, original);
        drop(a);
        end(fs, false);
    }
}
