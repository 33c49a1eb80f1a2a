//! Direct reclaim held the state of the mover while it wrote to a disk: everything else waited for that.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use nacre_engine::{Data, Durability, FileBlock, Names, WriteAt, XattrMode};
use nacre_mover::{Budget, MoverOptions, PIN, Phase};

use super::machine::{Layout, Machine, TIER, content, time};

/// Long after all writes.
const LATER_MS: u64 = 1_700_010_000_000;

fn a_background_pass_does_not_wait_for_the_disk_of_direct_reclaim<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let (fs, told) = (Arc::clone(&machine.fs), Arc::new(Mutex::new(None)));
    let tell = Arc::clone(&told);
    *machine.disks[0].meanwhile.lock().unwrap() = Some(Box::new(move || {
        let status = fs.status();
        let moved = fs.tick(LATER_MS, &Budget::default().unless(&|| true)).expect("it looks");
        *tell.lock().unwrap() = Some((status, moved));
    }));
    let mut expected = Vec::new();
    while machine.fs.status().moved == 0 {
        let number = expected.len();
        machine.file(number, 256);
        expected.push(content(number, 256));
    }
    let (status, moved) = told.lock().unwrap().take().expect("a disk was written");
    assert_eq!((status.phase, status.waiting, moved), (Phase::Moving, 1, 0));
    assert!(status.doing.is_some() && status.queue.files > 0, "{status:?}");
    let status = machine.fs.status();
    assert!((status.waiting, status.doing) == (0, None) && status.phase != Phase::Moving, "{status:?}");
    machine.crash(&expected);
}

/// All that can be demoted is in flight for one write when another one finds no room.
fn a_write_waits_for_blocks_in_flight_that_make_room<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let mut files = machine.files([128; 4]);
    let room = || machine.fs.layout().stat().available as usize;
    // The rest stays.
    while room() > 60 {
        let node = machine.file(files.len(), (room() - 40).min(200));
        machine.fs.set_xattr(&node, PIN, b"1", XattrMode::Set, None, time(0)).expect("set");
        files.push(node);
    }
    let (fs, second) = (Arc::clone(&machine.fs), machine.file(files.len(), 1));
    let bytes = content(files.len(), 96);
    let (expected, written) = (bytes.clone(), Arc::new(Mutex::new(None)));
    let tell = Arc::clone(&written);
    *machine.disks[0].meanwhile.lock().unwrap() = Some(Box::new(move || {
        let (other, node) = (Arc::clone(&fs), second.clone());
        let writer = std::thread::spawn(move || {
            let data = [IoSlice::new(&bytes)];
            other.write(&node, WriteAt::Offset(0), &data, Durability::Now, time(900)).map(drop)
        });
        while fs.status().waiting < 2 && !writer.is_finished() {
            std::thread::yield_now();
        }
        // Long enough for one that does not wait to give up.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let has_waited = !writer.is_finished();
        *tell.lock().unwrap() = Some((writer, second, has_waited));
    }));
    machine.file(files.len() + 1, 96);
    let (writer, second, has_waited) = written.lock().unwrap().take().expect("the disk was written");
    writer.join().expect("it ends").expect("there is room");
    assert!(has_waited, "for those blocks");
    assert!(machine.read(&second) == expected);
    assert!((512..600).contains(&machine.used(TIER)), "{} blocks", machine.used(TIER));
}

/// Many at once take no more from each other than there is.
fn writes_that_reclaim_together_all_find_room<L: Layout>() {
    const THREADS: usize = 4;
    const FILES: usize = 40;
    let options = MoverOptions { balance: false, group: 64, ..MoverOptions::default() };
    let machine = Machine::<L>::sized(16 << 20, &[128 << 20], options);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let machine = &machine;
            scope.spawn(move || (0..FILES).for_each(|file| drop(machine.file(thread * FILES + file, 96))));
        }
    });
    let expected: Vec<_> = (0..THREADS * FILES).map(|number| content(number, 96)).collect();
    assert!(machine.used(TIER) > (THREADS * FILES * 96 / 2) as u64, "{} blocks", machine.used(TIER));
    for (number, expected) in expected.iter().enumerate() {
        let node = machine.fs.lookup(&machine.fs.root(), number.to_string().as_bytes()).expect("a file");
        assert!(machine.read(&node) == *expected, "file {number}");
    }
    machine.crash(&expected);
}

/// A file of which one block in each part is written while the rest of it is on its way to a disk: the rest has moved.
fn a_block_that_is_written_keeps_only_itself_on_pm<L: Layout>() {
    const FILE: usize = 2048;
    let machine = Machine::<L>::new(64 << 20);
    let node = machine.file(0, FILE);
    let (fs, written) = (Arc::clone(&machine.fs), node.clone());
    *machine.disks[0].meanwhile.lock().unwrap() = Some(Box::new(move || {
        for part in 0..FILE as u64 / 512 {
            let data = [IoSlice::new(&[7; 4096])];
            let at = WriteAt::Offset((part * 512 + 100) * 4096);
            fs.write(&written, at, &data, Durability::Now, time(900)).expect("there is room");
        }
    }));
    let moved = machine.fs.demote(&node, TIER, FileBlock(0), u64::MAX, false).expect("it moves");
    assert_eq!((moved.moved, moved.changed), (FILE as u64 - 4, 4));
}

over_each_layout!(
    a_background_pass_does_not_wait_for_the_disk_of_direct_reclaim,
    a_write_waits_for_blocks_in_flight_that_make_room,
    writes_that_reclaim_together_all_find_room,
    a_block_that_is_written_keeps_only_itself_on_pm,
);
