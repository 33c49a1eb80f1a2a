//! A write buffer over memory and a disk, to which nearly all goes at once that it accepted: large or small, aligned or not.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_cache::{CacheFs, CacheOptions, Settings as CacheSettings};
use nacre_engine::{Data, Durability, FileKind, Names, Timestamp, WriteAt};
use nacre_lab::calls::{Settings, check_for};
use nacre_lab::environment::{model_time, number};
use nacre_lab::model::MemLayout;
use nacre_lab::suite::{VfsTarget, all_cases, run};
use nacre_media::Frames;
use nacre_media::sim::{Event, Trace};
use nacre_mover::{LargeWrites, MoverOptions, Rules, TieredFs};

use super::unrest::{counts_space, takes_minutes};
use super::{Fs, Layout, MEMORY, Machine, bytes_below, new_inode, small};

type Buffered<L> = CacheFs<Arc<Fs<L>>>;
type Node<L> = <Buffered<L> as Names>::Node;

const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);
const MIB: u64 = 1 << 20;
/// A buffer that is used up all the time.
const SMALL: u64 = 64 * 4096;
/// What is written at once.
const PIECE: u64 = 16 << 10;

/// So many bytes, which two threads look at every few milliseconds.
fn restless(size: u64) -> CacheOptions {
    let settings = CacheSettings { threads: 2, period_ms: 2, max_age_ms: 5, ..CacheSettings::default() };
    CacheOptions { settings, ..CacheOptions::new(size) }
}

/// Nothing is written but by who asks for it.
fn calm() -> CacheOptions {
    let settings = CacheSettings { threads: 0, max_age_ms: 3_600_000, ..CacheSettings::default() };
    CacheOptions { settings, ..CacheOptions::new(8 * MIB) }
}

/// A buffer over the file system, which sends nearly all that waited to disk from now on.
fn over<L: Layout>(machine: &Machine<L>, fs: Arc<Fs<L>>, options: &CacheOptions) -> Buffered<L> {
    let layout = machine.calm(fs).into_layout();
    let rules = Rules { sync_blocks: 1, large_writes: 0, ..Rules::default() };
    let mover = MoverOptions { rules, disk_threshold: Some(0), ..small() };
    let fs = TieredFs::with_frames(layout, mover, Arc::new(Frames::default()))
        .with_large_writes(LargeWrites::ToDisk);
    CacheFs::new(machine.serve(fs), options).expect("a write buffer")
}

fn unmount<L: Layout>(machine: &Machine<L>, fs: Buffered<L>) {
    let (below, flushed) = fs.unmount();
    flushed.expect("everything is written");
    machine.unmount(below);
}

fn target<L: Layout>(machine: &Machine<L>, fs: Arc<Fs<L>>, size: u64) -> VfsTarget<Buffered<L>> {
    let again = machine.clone();
    let reopen = Arc::new(move |old: Buffered<L>| {
        unmount(&again, old);
        over(&again, again.mount(), &restless(size))
    });
    VfsTarget::new("a buffer over memory and a disk", over(machine, fs, &restless(size)), reopen, &[])
}

fn passes<L: Layout>(is_calm: bool, size: u64, which: fn(&str) -> bool) -> Machine<L> {
    let (machine, fs) = Machine::<L>::new(is_calm);
    let mut target = target(&machine, fs, size);
    let cases: Vec<_> = all_cases().into_iter().filter(|case| which(case.name)).collect();
    assert!(cases.len() > 4);
    let report = run(&mut target, &cases, &[]);
    report.assert_clean();
    unmount(&machine, target.into_layout());
    machine
}

fn the_suite_passes_while_blocks_move<L: Layout>() {
    let machine = passes::<L>(false, SMALL, |name| !counts_space(name));
    assert!(machine.unrest.moved.load(Ordering::Relaxed) > 0);
}

fn a_file_system_is_full_when_all_of_its_devices_are<L: Layout>() {
    if takes_minutes::<L>() {
        return;
    }
    passes::<L>(true, SMALL, counts_space);
}

/// However much of it waits: what was set aside for it in memory and on the disk is there when it is written.
fn what_was_accepted_finds_room_until_all_is_full<L: Layout>() {
    for (memory, buffer) in [(16, 8), (16, 34), (64, 34)] {
        let (machine, fs, _) = Machine::<L>::with_disks(memory * MIB, &[1]);
        let options = CacheOptions { settings: calm().settings, ..CacheOptions::new(buffer * MIB) };
        let fs = over(&machine, Arc::new(fs), &options);
        let node = fs.create(&fs.root(), b"file", &new_inode(FileKind::Regular, NOW)).expect("create");
        let mut end = 0;
        for piece in [MIB, PIECE, 4096] {
            let bytes = vec![3; piece as usize];
            while fs
                .write(&node, WriteAt::Offset(end), &[IoSlice::new(&bytes)], Durability::Lazy, NOW)
                .is_ok()
            {
                end += piece;
            }
        }
        let what = format!("{memory} MiB of memory, {buffer} MiB of a buffer, {end} bytes accepted");
        fs.sync(&node).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(end > (memory + 64) * MIB * 9 / 10, "{what}");
        let mut seen = vec![0; MIB as usize];
        for at in (0..end).step_by(seen.len()) {
            let count = fs.read(&node, at, &mut seen, None).expect("read");
            assert!(count > 0 && seen[..count].iter().all(|byte| *byte == 3), "{what}: at {at}");
        }
        drop(node);
        unmount(&machine, fs);
    }
}

fn random_calls_are_like_the_model_while_blocks_move<L: Layout>() {
    let (machine, fs) = Machine::<L>::new(false);
    let mut target = target(&machine, fs, SMALL);
    let layout = MemLayout::new(1 << 20, 1 << 20);
    let reopen = Arc::new(|old: MemLayout| old.remount());
    let mut model = VfsTarget::new("the reference model", layout, reopen, &[]);
    // Of what waits in DRAM nothing is allocated yet.
    let settings =
        Settings { calls: 1500, compare_every: 100, remount_every: Some(400), exact_allocation: false };
    let total = match check_for(&mut target, &mut model, settings, number("NACRE_SEED"), model_time()) {
        Ok(total) => total,
        Err(failure) => panic!("{failure}"),
    };
    total.assert_mixed();
    println!("{:?}, {} blocks moved", total.total(), machine.unrest.moved.load(Ordering::Relaxed));
    unmount(&machine, target.into_layout());
}

/// What a sync does with what `write` has written before: bytes of each transfer to the disk, flushes of it, and fences.
fn costs_of_a_sync<L: Layout>(write: impl Fn(&Buffered<L>, &Node<L>)) -> (Vec<u64>, usize, usize) {
    let (machine, fs) = Machine::<L>::new(true);
    let fs = over(&machine, fs, &calm());
    let node = fs.create(&fs.root(), b"file", &new_inode(FileKind::Regular, NOW)).expect("create");
    write(&fs, &node);
    machine.memory.start_recording();
    fs.sync(&node).expect("sync");
    let Trace { events } = machine.memory.stop_recording();
    let (mut writes, mut flushes, mut fences) = (Vec::new(), 0, 0);
    for event in &events {
        match event {
            Event::DiskWrite { offset, bytes, .. } => {
                assert!(*offset >= MEMORY, "disks lie behind the memory");
                writes.push(bytes.len() as u64);
            }
            Event::DiskFlush { .. } => flushes += 1,
            Event::Fence { .. } => fences += 1,
            _ => {}
        }
    }
    drop(node);
    unmount(&machine, fs);
    (writes, flushes, fences)
}

fn write<L: Layout>(fs: &Buffered<L>, node: &Node<L>, durability: Durability) {
    let piece = vec![7; PIECE as usize];
    for at in (0..MIB).step_by(piece.len()) {
        fs.write(node, WriteAt::Offset(at), &[IoSlice::new(&piece)], durability, NOW).expect("write");
    }
}

fn a_sync_of_what_goes_to_disk_is_one_write_one_flush_and_a_commit<L: Layout>() {
    let (writes, flushes, fences) = costs_of_a_sync::<L>(|fs, node| {
        write(fs, node, Durability::Lazy);
        let below = fs.layout().node(fs.id(node)).expect("it is there");
        assert_eq!(bytes_below(fs.layout(), &below), 0, "it waits in DRAM");
    });
    // The first write of a file replaces nothing, and goes on from nothing: it goes to memory.
    assert_eq!((writes, flushes), (vec![MIB - PIECE], 1));
    assert!((1..=4).contains(&fences), "{fences} fences, of two commits");
}

fn a_sync_of_what_is_in_memory_costs_nothing<L: Layout>() {
    let costs = costs_of_a_sync::<L>(|fs, node| write(fs, node, Durability::Now));
    assert_eq!(costs, (Vec::new(), 0, 0));
}

over_each_layout!(
    the_suite_passes_while_blocks_move,
    a_file_system_is_full_when_all_of_its_devices_are,
    what_was_accepted_finds_room_until_all_is_full,
    random_calls_are_like_the_model_while_blocks_move,
    a_sync_of_what_goes_to_disk_is_one_write_one_flush_and_a_commit,
    a_sync_of_what_is_in_memory_costs_nothing,
);
