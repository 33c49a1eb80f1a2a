//! Memory that is full: blocks move down, by themselves and for who needs room.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_engine::{Data, Durability, Extents, FileBlock, FileKind, Names, Place, Timestamp, WriteAt};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_mover::{Budget, MoverOptions};

use super::{DISK, Fs, Layout, MEMORY, Machine, Node, TIER, VOLUME, new_inode};

/// Twice as much as memory holds is written, file by file: it is full only when both devices are. Then the coldest files are
/// on the disk, and memory is below its threshold again.
fn memory_is_kept_from_being_full<L: Layout>() {
    const FILE: usize = 1 << 20;
    let machine = Machine::<L>::formatted(MEMORY, &[DISK]);
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
        fs.promote(node, FileBlock(0), u64::MAX).unwrap_or_default();
        let bytes = content(number);
        // Written again, in the same order.
        let now = time(2000 + number as i64);
        fs.write(node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, now).expect("write");
    }
    assert!(fs.usage() > fs.threshold(), "{} %, the threshold is {} %", fs.usage(), fs.threshold());
    let now_ms = 1_700_010_000_000;
    let moved = fs.tick(now_ms, &Budget::default()).expect("blocks move");
    assert!(moved > 0 && fs.usage() <= fs.threshold(), "{} % after {moved} blocks", fs.usage());
    let is_below = |node: &Node<L>| {
        let extents = fs.resolve(node, FileBlock(0), u64::MAX).expect("resolve");
        extents.iter().any(|extent| matches!(extent.place, Place::Tier { .. }))
    };
    assert!(is_below(&files[0]) && !is_below(files.last().expect("a file")), "the coldest moves first");
    assert_eq!(fs.tick(now_ms, &Budget::default()).expect("nothing to do"), 0);
    for (number, node) in (0..).zip(&files) {
        fs.read(node, 0, &mut seen, None).expect("read");
        assert!(seen == content(number), "file {number}");
    }
    drop(files);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

/// Many writers who find memory full at once, as large as what they need together: each gets room, as long as the disk has
/// some.
fn many_writers_find_room_at_once<L: Layout>() {
    const FILE: u64 = 4 << 20;
    const WRITERS: u64 = 32;
    let machine = Machine::<L>::formatted(16 << 20, &[512 << 20]);
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
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

/// More old files are on the tier than the mover knows files: they took all the room in its lists after a mount, so that
/// those in memory were not found, and a write failed with the disk empty.
fn room_is_found_behind_any_number_of_files_that_are_below_already<L: Layout>() {
    const LARGE: u64 = 1 << 20;
    let machine = Machine::<L>::formatted(16 << 20, &[DISK]);
    let few = MoverOptions { known_files: 8, group: 32, ..MoverOptions::default() };
    let open = || Fs::<L>::new(machine.mount_layout(), few.clone());
    let fs = open();
    let time = |at: u64| Timestamp::new(1_700_000_000 + at as i64, 0);
    fs.add(machine.disk(), VOLUME, 1, 1, time(0)).expect("a tier");
    let put = |fs: &Fs<L>, dir: &Node<L>, number: u64, len: u64| {
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
        fs.demote(&node, TIER, FileBlock(0), 1, false).expect("it moves");
    }
    (1000..1010).for_each(|number| drop(put(&fs, &dir, number, LARGE)));
    drop(dir);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");

    let fs = open();
    let token = Lifecycle::summary(fs.layout()).mount_epoch + 2;
    fs.attach(machine.disk(), VOLUME, Some(token)).expect("the tier is attached");
    let root = fs.root();
    (2000..2040).for_each(|number| drop(put(&fs, &root, number, LARGE)));
    // Nor is the mover kept from them.
    assert!(fs.usage() > fs.threshold());
    fs.tick(1_700_010_000_000, &Budget::default()).expect("blocks move");
    assert!(fs.usage() <= fs.threshold(), "{} %", fs.usage());
    drop(root);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

/// Who needed room waited for the mover until all that there was to move had moved.
fn who_needs_room_waits_for_no_more_than_a_group<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::<L>::new(true);
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
        let begins = || {
            if groups.fetch_add(1, Ordering::Relaxed) == 0 {
                scope.spawn(|| put("urgent", 8 * FILE, 2000));
                while fs.status().waiting == 0 {
                    std::thread::yield_now();
                }
            }
            false
        };
        let moved = fs.tick(1_700_010_000_000, &Budget::default().unless(&begins)).expect("blocks move");
        assert!((1..=32).contains(&moved), "{moved} blocks");
    });
    assert!(fs.status().waiting == 0 && fs.usage() > fs.threshold());
    machine.unmount(fs);
}

over_each_layout!(
    memory_is_kept_from_being_full,
    many_writers_find_room_at_once,
    room_is_found_behind_any_number_of_files_that_are_below_already,
    who_needs_room_waits_for_no_more_than_a_group,
);
