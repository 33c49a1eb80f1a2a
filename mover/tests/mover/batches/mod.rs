//! Each file that moved had a write, a flush of the device and a commit of its own: with many small files, moving was
//! waiting for flushes. Files that move together share the write and the flush, and each stands for itself in all else.

mod descent;
mod drains;
pub(crate) mod machine;
mod orders;
mod queue;
mod reads;
mod reclaim;
mod trim;

use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use nacre_engine::{
    BLOCK_SIZE, Copied, CopiedFile, Data, Durability, Extents, FallocateMode, FileBlock, Kind, Movable,
    Names, Place, Relocate as _, Result, SetAttr, TierBlocks as _, TierRun, WriteAt,
};
use nacre_layout_log::LogFs;
use nacre_media::SimPm;
use nacre_media::block::{BlockDevice, Pages};
use nacre_mover::{Budget, Moved, MoverOptions, PIN, Way};

use self::machine::{BLOCK, Layout, Machine, TIER, content, time};

fn moved(blocks: u64) -> Moved {
    Moved { moved: blocks, changed: 0 }
}

fn many_small_files_move_with_one_write_and_one_flush<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let sizes: Vec<usize> = (0..300).map(|number| number % 3 + 1).collect();
    let files = machine.files(sizes.iter().copied());
    let expected: Vec<_> = sizes.iter().enumerate().map(|(number, size)| content(number, *size)).collect();
    let done = machine.fs.demote_files(&files, TIER, true);
    for (number, (done, size)) in done.iter().zip(&sizes).enumerate() {
        assert_eq!(done.as_ref().ok(), Some(&moved(*size as u64)), "file {number}");
    }
    assert_eq!((machine.flushes(TIER), machine.used(TIER)), (1, 600));
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

/// A part of a file that is still to be read has a block that another thread relocates. Nothing was read of that part
/// then, and its unchanged blocks were published with zeros.
fn a_block_that_leaves_before_it_is_read_spoils_no_other<L: Layout>() {
    /// As many as are read at once.
    const FIRST: u64 = 4096;
    const LEAVES: u64 = FIRST + 3;
    let options = MoverOptions { balance: false, group: 2 * FIRST, ..MoverOptions::default() };
    let machine = Machine::<L>::sized(32 << 20, &[64 << 20], options);
    let node = machine.file(0, FIRST as usize + 8);
    let (fs, other, disk) = (Arc::clone(&machine.fs), node.clone(), machine.disks[0].disk.clone());
    *machine.disks[0].before_write.lock().unwrap() = Some(Box::new(move || {
        let layout = fs.layout();
        let found = layout.resolve_movable(&other, FileBlock(LEAVES), 1).expect("it is there");
        let run = layout.allocate_on(TIER, None, 1).expect("there is room")[0];
        let at = LEAVES as usize * BLOCK;
        disk.write(run.start.offset(), &content(0, FIRST as usize + 8)[at..at + BLOCK]).expect("a write");
        let copied = [Copied { from: found[0], tier: TIER, block: run.start }];
        let file = CopiedFile { node: &other, copied: &copied, modified: time(0) };
        let refused = layout.publish(&[file], disk.flush().expect("a flush")).remove(0);
        assert_eq!(refused.expect("it is published"), []);
    }));
    let done = machine.fs.demote_files(std::slice::from_ref(&node), TIER, true);
    assert!(machine.disks[0].before_write.lock().unwrap().is_none(), "more than one write");
    assert_eq!(done[0].as_ref().ok(), Some(&Moved { moved: FIRST + 7, changed: 1 }));
    machine.fs.tiers().pages().drop_tier(TIER);
    let (read, expected) = (machine.read(&node), content(0, FIRST as usize + 8));
    let wrong = |block: &usize| read[block * BLOCK..][..BLOCK] != expected[block * BLOCK..][..BLOCK];
    assert_eq!((0..FIRST as usize + 8).filter(wrong).collect::<Vec<_>>(), []);
}

/// The mover does so by itself, moves no more than it has to, and leaves alone what is pinned. The figures are of small
/// files without metadata of their own, as the log layout has them.
#[test]
fn what_is_cold_moves_together() {
    let machine = Machine::<LogFs<SimPm>>::new(64 << 20);
    let mut files = Vec::new();
    while machine.fs.usage() < 75.0 {
        files.push(machine.file(files.len(), 2));
    }
    machine.fs.set_xattr(&files[3], PIN, b"1", nacre_engine::XattrMode::Set, None, time(0)).expect("set");
    let now_ms = 1_700_010_000_000;
    let excess = machine.fs.usage() - machine.fs.threshold();
    let blocks = (excess / 100.0 * machine.fs.layout().stat().blocks as f64) as u64;
    let (fs, told) = (Arc::clone(&machine.fs), Arc::new(Mutex::new(None)));
    let tell = Arc::clone(&told);
    *machine.disks[0].meanwhile.lock().unwrap() =
        Some(Box::new(move || *tell.lock().unwrap() = fs.status().doing));
    let moved = machine.fs.tick(now_ms, &Budget::default()).expect("blocks move");
    let doing = told.lock().unwrap().expect("blocks moved");
    assert!(doing.files > 300 && doing.files <= moved / 2, "{doing:?} of {moved} blocks");
    assert_eq!((doing.inode, doing.way), (machine.fs.id(&files[0]).number, Way::Space));
    assert!(machine.fs.usage() <= machine.fs.threshold(), "{} %", machine.fs.usage());
    assert!(moved > 600 && moved <= blocks + blocks / 4, "{moved} blocks for {blocks}");
    // One for most of it, and some for the log that says so.
    assert!(machine.flushes(TIER) <= 6, "{} flushes for {} files", machine.flushes(TIER), moved / 2);
    assert_eq!((machine.below(&files[0]), machine.below(&files[3])), (2, 0), "the coldest, and the pinned");
    assert_eq!(machine.below(files.last().expect("a file")), 0, "the hottest");
    assert_eq!(machine.fs.status().moved, moved * BLOCK_SIZE);
    // Whoever needs room gets it the same way.
    let (flushes, before) = (machine.flushes(TIER), machine.used(TIER));
    for number in files.len()..files.len() + 2000 {
        files.push(machine.file(number, 2));
    }
    let (flushes, moved) = (machine.flushes(TIER) - flushes, machine.used(TIER) - before);
    assert!(moved > 2000 && flushes <= 2 + moved / 200, "{flushes} flushes for {moved} blocks");
    let expected: Vec<_> = (0..files.len()).map(|number| content(number, 2)).collect();
    for (number, node) in files.iter().enumerate() {
        assert!(machine.read(node) == expected[number], "file {number}");
    }
    drop(files);
    machine.crash(&expected);
}

fn a_block_that_changes_meanwhile_stays_alone<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = machine.files([3; 40]);
    let (fs, node) = (Arc::clone(&machine.fs), files[20].clone());
    let newer = content(99, 1);
    let bytes = newer.clone();
    *machine.disks[0].meanwhile.lock().unwrap() = Some(Box::new(move || {
        fs.write(&node, WriteAt::Offset(BLOCK_SIZE), &[IoSlice::new(&bytes)], Durability::Now, time(100))
            .expect("write");
    }));
    let done = machine.fs.demote_files(&files, TIER, true);
    for (number, done) in done.iter().enumerate() {
        let expected = if number == 20 { Moved { moved: 2, changed: 1 } } else { moved(3) };
        assert_eq!(done.as_ref().ok(), Some(&expected), "file {number}");
    }
    assert_eq!((machine.flushes(TIER), machine.used(TIER), machine.below(&files[20])), (1, 40 * 3 - 1, 2));
    let mut expected: Vec<_> = (0..40).map(|number| content(number, 3)).collect();
    expected[20][BLOCK..2 * BLOCK].copy_from_slice(&newer);
    for (number, node) in files.iter().enumerate() {
        assert!(machine.read(node) == expected[number], "file {number}");
    }
    // Its blocks are another's now, who reads his own.
    assert!(machine.fs.demote_files(&files, TIER, true).iter().all(Result::is_ok));
    assert_eq!(machine.used(TIER), 40 * 3);
    assert!(machine.read(&files[20]) == expected[20]);
    drop(files);
    machine.crash(&expected);
}

/// One that cannot be read, and one that a program has mapped.
fn a_file_that_fails_does_so_alone<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = machine.files([3; 40]);
    machine.poison(&files[7], 1);
    machine.fs.layout().pin(&files[30], FileBlock(0), 3).expect("pin");
    let done = machine.fs.demote_files(&files, TIER, true);
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
    assert_eq!((machine.flushes(TIER), machine.used(TIER)), (1, 38 * 3), "what they would have had is free");
    for (number, node) in files.iter().enumerate().filter(|(number, _)| *number != 7) {
        assert!(machine.read(node) == content(number, 3), "file {number}");
    }
}

/// One of several that are larger than a transfer cannot be read near its end: those around it move.
fn a_large_file_that_fails_at_its_end_does_so_alone<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let sizes = [300, 900, 1, 700, 260];
    let files = machine.files(sizes);
    let expected: Vec<_> =
        sizes.into_iter().enumerate().map(|(number, size)| content(number, size)).collect();
    machine.poison(&files[1], 880);
    let done = machine.fs.demote_files(&files, TIER, true);
    for (number, (done, size)) in done.iter().zip(sizes).enumerate() {
        let came = done.as_ref().map_err(nacre_engine::Error::kind);
        let expected = if number == 1 { Err(Kind::Media) } else { Ok(&moved(size as u64)) };
        assert_eq!(came, expected, "file {number}");
        assert_eq!(machine.below(&files[number]), if number == 1 { 0 } else { size as u64 });
    }
    assert_eq!((machine.flushes(TIER), machine.used(TIER)), (1, 300 + 1 + 700 + 260));
    let is_readable = |number: &usize| *number != 1;
    for number in (0..sizes.len()).filter(is_readable) {
        assert!(machine.read(&files[number]) == expected[number], "file {number} in DRAM");
    }
    machine.fs.tiers().pages().drop_tier(TIER);
    for number in (0..sizes.len()).filter(is_readable) {
        assert!(machine.read(&files[number]) == expected[number], "file {number} on the disk");
    }
    // Where the device fails nothing moves.
    let more = machine.file(9, 800);
    machine.disks[0].disk.fail_writes(true);
    let done = machine.fs.demote_files(std::slice::from_ref(&more), TIER, true);
    assert!(done[0].as_ref().is_err_and(|error| error.kind() == Kind::Media), "{done:?}");
    assert_eq!((machine.used(TIER), machine.below(&more)), (1261, 0));
    assert!(machine.read(&more) == content(9, 800));
}

/// More than what is in DRAM at once: it is read and written in parts, behind which there is one flush. A file that lies in
/// two of the parts cannot be read in the second of them.
fn a_large_group_moves_in_parts<L: Layout>() {
    let options = MoverOptions { balance: false, group: (64 << 20) / BLOCK_SIZE, ..MoverOptions::default() };
    let machine = Machine::<L>::sized(48 << 20, &[64 << 20], options);
    let sizes = [3000, 1, 2500, 500, 1];
    let files = machine.files(sizes);
    let expected: Vec<_> =
        sizes.into_iter().enumerate().map(|(number, size)| content(number, size)).collect();
    machine.poison(&files[2], 2000);
    let done = machine.fs.demote_files(&files, TIER, true);
    for (number, (done, size)) in done.iter().zip(sizes).enumerate() {
        let came = done.as_ref().map_err(nacre_engine::Error::kind);
        let expected = if number == 2 { Err(Kind::Media) } else { Ok(&moved(size as u64)) };
        assert_eq!(came, expected, "file {number}");
    }
    assert_eq!((machine.flushes(TIER), machine.used(TIER), machine.below(&files[2])), (1, 3502, 0));
    for cached in [true, false] {
        for number in [0, 1, 3, 4] {
            assert!(machine.read(&files[number]) == expected[number], "file {number}, cached: {cached}");
        }
        assert_eq!(machine.fs.tiers().traffic_of(TIER).reads == 0, cached);
        machine.fs.tiers().pages().drop_tier(TIER);
    }
    // And up again.
    let up = machine.fs.promote(&files[0], FileBlock(0), 3000).expect("there is room");
    assert_eq!((up, machine.below(&files[0]), machine.used(TIER)), (moved(3000), 0, 502));
    assert!(machine.read(&files[0]) == expected[0]);
}

/// Who names a file twice, as its links do, moves it once.
fn a_file_that_comes_twice_moves_once<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = machine.files([3; 3]);
    let twice: Vec<_> = [0, 1, 1, 2, 0].map(|number| files[number].clone()).into();
    let done: Vec<_> = machine.fs.demote_files(&twice, TIER, true).into_iter().flatten().collect();
    assert_eq!(done, [3, 3, 0, 3, 0].map(moved));
    assert_eq!(machine.used(TIER), 9);
}

fn a_device_that_fails_moves_nothing_and_keeps_no_space<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = machine.files([2; 40]);
    machine.disks[0].disk.fail_writes(true);
    let done = machine.fs.demote_files(&files, TIER, true);
    assert!(done.iter().all(|done| done.as_ref().is_err_and(|error| error.kind() == Kind::Media)));
    assert_eq!(machine.used(TIER), 0);
    machine.disks[0].disk.fail_writes(false);
    let done = machine.fs.demote_files(&files, TIER, true);
    assert!(done.into_iter().all(|done| done.is_ok_and(|done| done == moved(2))));
    assert_eq!(machine.used(TIER), 80);
}

/// Where a batch finds no room, as many of its files move as there is room for.
fn the_last_room_of_a_tier_is_used<L: Layout>() {
    let machine = Machine::<L>::new(256 * BLOCK_SIZE);
    let files = machine.files([5; 100]);
    let done = machine.fs.demote_files(&files, TIER, false);
    let went: u64 = done.iter().flatten().map(|done| done.moved).sum();
    let full = done.iter().filter_map(|done| done.as_ref().err());
    assert!(full.map(nacre_engine::Error::kind).all(|kind| kind == Kind::NoSpace));
    // The first and the last block are the tier's own.
    assert_eq!((went, machine.used(TIER)), (250, 250), "of 254 blocks");
    assert!(machine.flushes(TIER) <= 12, "{}", machine.flushes(TIER));
    for (number, node) in files.iter().enumerate() {
        assert!(machine.read(node) == content(number, 5), "file {number}");
    }
}

/// What moves is gathered in memory that others had before, and a file ends in the middle of a block.
fn behind_the_end_of_a_file_there_are_zeros_on_disk<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let file = machine.file(0, 1);
    let change = SetAttr { size: Some(100), ..SetAttr::default() };
    machine.fs.setattr(&file, &change, time(1)).expect("truncated");
    let mut before: Vec<Pages> = (0..80).map(|_| Pages::lent(BLOCK)).collect();
    before.iter_mut().for_each(|pages| pages.fill(9));
    drop(before);
    let done = machine.fs.demote_files(std::slice::from_ref(&file), TIER, false);
    assert_eq!(done[0].as_ref().ok(), Some(&moved(1)));
    let place = machine.fs.resolve(&file, FileBlock(0), 1).expect("resolve")[0].place;
    let Place::Tier { block, .. } = place else { panic!("it is on {place:?}") };
    let mut seen = vec![0xff; BLOCK];
    machine.disks[0].read(block.offset(), &mut seen).expect("read");
    assert!(seen[..100] == content(0, 1)[..100] && seen[100..].iter().all(|byte| *byte == 0));
}

/// A block is overwritten on its tier while it comes up. The old bytes were kept for the next try, and came up with the
/// new version: the write was lost.
fn a_block_that_is_overwritten_below_comes_up_as_it_is<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let node = machine.file(0, 4);
    machine.fs.demote(&node, TIER, FileBlock(0), 4, false).expect("there is room");
    machine.fs.tiers().pages().drop_tier(TIER);
    let newer = content(99, 1);
    let (fs, other, bytes) = (Arc::clone(&machine.fs), node.clone(), newer.clone());
    let disk = machine.disks[0].disk.clone();
    *machine.disks[0].after_read.lock().unwrap() = Some(Box::new(move || {
        let found = fs.layout().resolve_movable(&other, FileBlock(0), 1).expect("it is there")[0];
        let Place::Tier { block, .. } = found.extent.place else { panic!("it is at {found:?}") };
        let mut change = || {
            disk.write(block.offset(), &bytes)?;
            fs.tiers().pages().rewritten(TIER, block, 1);
            disk.flush().map(drop)
        };
        assert!(fs.layout().change_below(&other, &found, time(100), &mut change).expect("it is written"));
    }));
    let up = machine.fs.promote(&node, FileBlock(0), 4).expect("there is room");
    assert!(machine.disks[0].after_read.lock().unwrap().is_none(), "it was read");
    assert_eq!((up, machine.below(&node)), (moved(4), 0));
    let mut expected = content(0, 4);
    expected[..BLOCK].copy_from_slice(&newer);
    assert!(machine.read(&node) == expected);
    drop(node);
    machine.crash(&[expected]);
}

/// Of the log layout, whose entries are many: a commit in parts, the second of which is refused, because the file is mapped, and written blocks may not move. The
/// blocks of the first part were given back to the tier, and the file had them.
#[test]
fn a_part_of_a_commit_that_is_refused_leaves_the_part_before_it() {
    /// As many entries as are committed together.
    const PART: u64 = 126;
    let machine = Machine::<LogFs<SimPm>>::new(64 << 20);
    let node = machine.file(0, 1);
    for at in 0..PART {
        let offset = (2 + 2 * at) * BLOCK_SIZE;
        let mode = FallocateMode::AllocateKeepSize;
        machine.fs.fallocate(&node, mode, offset, BLOCK_SIZE, time(1)).expect("there is room");
    }
    let layout = machine.fs.layout();
    let mut found = layout.resolve_unwritten(&node, u64::MAX).expect("they are there");
    assert_eq!(found.len() as u64, PART, "each alone");
    found.extend(layout.resolve_movable(&node, FileBlock(0), 1).expect("it is there"));
    let run = layout.allocate_on(TIER, None, PART + 1).expect("there is room")[0];
    assert_eq!(run.len, PART + 1);
    let copy = |(at, from): (u64, &Movable)| Copied { from: *from, tier: TIER, block: run.start.plus(at) };
    let copied: Vec<Copied> = (0..).zip(&found).map(copy).collect();
    layout.pin(&node, FileBlock(0), 1).expect("pin");
    let file = CopiedFile { node: &node, copied: &copied, modified: time(0) };
    let proof = machine.disks[0].flush().expect("a flush");
    let refused = layout.publish(&[file], proof).remove(0).expect("a part of it");
    assert_eq!(refused, copied[PART as usize..], "the written block");
    layout.unpin(&node);
    layout.free_on(TierRun { len: 1, start: refused[0].block, ..run });
    assert_eq!((machine.used(TIER), machine.below(&node)), (PART, 0));
    // No other file is given them.
    let other = machine.file(1, 5);
    assert!(machine.fs.demote_files(std::slice::from_ref(&other), TIER, false)[0].is_ok());
    assert_eq!(machine.used(TIER), PART + 5);
    drop((node, other));
    machine.crash(&[content(0, 1), content(1, 5)]);
}

over_each_layout!(
    many_small_files_move_with_one_write_and_one_flush,
    a_block_that_leaves_before_it_is_read_spoils_no_other,
    a_block_that_changes_meanwhile_stays_alone,
    a_file_that_fails_does_so_alone,
    a_large_file_that_fails_at_its_end_does_so_alone,
    a_large_group_moves_in_parts,
    a_file_that_comes_twice_moves_once,
    a_device_that_fails_moves_nothing_and_keeps_no_space,
    the_last_room_of_a_tier_is_used,
    behind_the_end_of_a_file_there_are_zeros_on_disk,
    a_block_that_is_overwritten_below_comes_up_as_it_is,
);
