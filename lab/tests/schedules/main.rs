//! Threads on one file system, on each layout over simulated memory, in many schedules: what each call answered and what
//! is left must be explained by some order of the calls, and what is on media must be sound and the same. A thread
//! that waits for ever fails a test.
//!
//! Built only with `RUSTFLAGS="--cfg nacre_shuttle"`; `scripts/schedules.sh` does that. `NACRE_SCHEDULES` is the number of
//! schedules for each workload and scheduler, `NACRE_SEED` the seed of both, and of the random workloads.
//! `NACRE_SCHEDULE`, with the name of one test and the layout in `NACRE_LAYOUT`, runs the schedule that this test printed when
//! it failed; a random workload runs again with its seed.

#![cfg(nacre_shuttle)]

mod cached;
mod call;
#[path = "../layouts/mod.rs"]
mod layouts;
mod order;
mod run;

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::RenameMode::{Exchange, NoReplace, Replace};
use nacre_engine::sync::shuttle::thread;
use nacre_engine::{
    Data, Durability, Extents, FileKind, Kind, LogOffload, Names, SetAttr, Tier, TierChange, TierState,
    TierTable, Timestamp, WriteAt,
};
use nacre_lab::crash::{Inplace, Log, Pool, Shadow};
use nacre_layout_log::{LogFs, Mistake};
use nacre_media::SimPm;
use nacre_vfs::{Caller, Create, OpenFlags, Vfs, VfsOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use call::{Call, D, E, F, G, H};
use run::{Workload, explore, explore_some, explore_with, finds, schedules, seed};

fn workload(setup: &[Call], threads: &[&[Call]]) -> Workload {
    Workload {
        setup: setup.to_vec(),
        threads: threads.iter().map(|calls| calls.to_vec()).collect(),
        after: Vec::new(),
    }
}

#[test]
fn one_name() {
    explore(&workload(
        &[],
        &[
            &[Call::Create(D, "a"), Call::Unlink(D, "a")],
            &[Call::Create(D, "a"), Call::Lookup(D, "a")],
            &[Call::ReadDir(D), Call::Lookup(D, "a")],
        ],
    ));
}

#[test]
fn names_that_move_within_a_directory() {
    explore(&workload(
        &[Call::Create(D, "a"), Call::Create(D, "b")],
        &[
            &[Call::Rename(D, "a", D, "b", Replace), Call::Create(D, "a")],
            &[Call::Rename(D, "b", D, "c", NoReplace), Call::Unlink(D, "c")],
            &[Call::Lookup(D, "b"), Call::Lookup(D, "a"), Call::ReadDir(D)],
        ],
    ));
}

#[test]
fn names_that_move_between_directories() {
    explore(&workload(
        &[Call::Create(D, "a"), Call::Create(E, "b")],
        &[
            &[Call::Rename(D, "a", E, "a", Replace), Call::Unlink(E, "b")],
            &[Call::Rename(E, "b", D, "a", Replace), Call::Create(D, "c")],
        ],
    ));
}

#[test]
fn a_move_seen_from_outside() {
    explore(&workload(
        &[Call::Create(D, "a"), Call::Create(E, "b")],
        &[
            &[Call::Rename(D, "a", E, "b", Exchange)],
            &[Call::Lookup(E, "b"), Call::Lookup(D, "a"), Call::Lookup(E, "b")],
        ],
    ));
}

#[test]
fn directories_that_move_below_each_other() {
    explore(&workload(
        &[Call::Mkdir(D, "x"), Call::Mkdir(E, "y")],
        &[
            &[Call::Rename(0, "d", E, "d", Replace), Call::Create(D, "a")],
            &[Call::Rename(0, "e", D, "e", Replace), Call::Create(E, "b")],
            &[Call::Rmdir(D, "x"), Call::Mkdir(D, "x")],
        ],
    ));
}

#[test]
fn directories_that_go_while_they_are_filled() {
    explore(&workload(
        &[Call::Mkdir(0, "x")],
        &[
            &[Call::Rmdir(0, "h"), Call::ReadDir(0)],
            &[Call::Create(H, "a"), Call::Lookup(H, "a")],
            &[Call::Rename(0, "x", 0, "h", Replace), Call::Unlink(H, "a")],
        ],
    ));
}

#[test]
fn links_and_the_last_name() {
    explore(&workload(
        &[],
        &[
            &[Call::Unlink(D, "f"), Call::Lookup(E, "l")],
            &[Call::Link(F, E, "l"), Call::Unlink(E, "l")],
            &[Call::Link(F, D, "m"), Call::Append(F, 10)],
        ],
    ));
}

/// One state of an inode is in use at a time, also where it leaves DRAM and is read again.
#[test]
fn inodes_that_leave_dram() {
    let links = [Call::Create(D, "a"), Call::Create(D, "b")];
    explore(&workload(
        &links,
        &[
            &[Call::LetGo(D, "a"), Call::LetGo(D, "a")],
            &[Call::WriteNamed(D, "a", 0, 300), Call::Lookup(D, "a")],
            &[Call::WriteNamed(D, "a", 4000, 5000)],
        ],
    ));
    explore(&workload(
        &links,
        &[
            &[Call::LetGo(D, "a"), Call::LetGo(E, "a")],
            &[Call::Rename(D, "a", E, "a", Replace), Call::WriteNamed(E, "a", 0, 100)],
            &[Call::Unlink(D, "b"), Call::Create(D, "b"), Call::LetGo(D, "b")],
        ],
    ));
}

#[test]
fn directories_that_leave_dram() {
    explore(&workload(
        &[Call::Mkdir(D, "x"), Call::Mkdir(E, "y")],
        &[
            &[Call::LetGo(D, "x"), Call::LetGo(E, "x")],
            &[Call::Rename(D, "x", E, "x", Replace), Call::Rename(E, "x", E, "y", Replace)],
            &[Call::LetGo(E, "y"), Call::Rmdir(E, "y"), Call::Mkdir(E, "y")],
        ],
    ));
}

#[test]
fn inodes_that_are_kept_and_not_held() {
    explore(&workload(
        &[Call::Create(D, "a")],
        &[
            &[Call::Park(D, "a")],
            &[Call::Unlink(D, "a"), Call::Create(D, "a")],
            &[Call::LetGo(D, "a"), Call::Lookup(D, "a")],
        ],
    ));
}

#[test]
fn appends_and_sizes() {
    explore(&workload(
        &[Call::Append(F, 100)],
        &[
            &[Call::Append(F, 4000), Call::Size(F)],
            &[Call::Append(F, 300), Call::Read(F, 0, 100)],
            &[Call::Truncate(F, 50), Call::Append(F, 10)],
        ],
    ));
}

/// One write changes what is before the end of the file and grows it: a reader sees all of that in a block, or nothing.
#[test]
fn ends_that_are_read_while_they_move() {
    let threads: [&[Call]; 3] = [
        &[Call::Write(F, 8840, 602), Call::Write(F, 9400, 9000)],
        &[Call::Read(F, 8192, 1373), Call::Read(F, 8192, 4096)],
        &[Call::Read(F, 8800, 5000)],
    ];
    explore(&workload(&[Call::Append(F, 9000)], &threads[..2]));
    explore(&workload(&[Call::Append(F, 9000)], &[&threads[0][..1], threads[1], threads[2]]));
    // In a hole no block gives way to another.
    explore(&workload(&[Call::Append(F, 9000), Call::Punch(F, 8192, 808)], &threads[..2]));
}

#[test]
fn parts_of_one_block() {
    explore(&workload(
        &[Call::Append(F, 8192)],
        &[
            &[Call::Write(F, 0, 100), Call::Write(F, 4000, 200)],
            &[Call::Write(F, 100, 100), Call::Read(F, 0, 300)],
            &[Call::Punch(F, 50, 100), Call::Read(F, 4096, 200)],
        ],
    ));
}

/// What one keeps of the last block is what another has just written behind the end.
#[test]
fn parts_of_the_last_block_while_the_file_grows() {
    explore(&workload(
        &[Call::Append(F, 9000)],
        &[
            &[Call::Write(F, 6181, 2572), Call::Read(F, 8192, 4096)],
            &[Call::Write(F, 7894, 2917), Call::Write(F, 8200, 100)],
            &[Call::Append(F, 50)],
        ],
    ));
}

/// More extents than a leaf lists, so that it becomes an array of slots.
#[test]
fn blocks_that_are_read_while_they_move() {
    explore(&workload(
        &[Call::Append(F, 40960), Call::Write(F, 0, 1), Call::Write(F, 8192, 1), Call::Write(F, 16384, 1)],
        &[
            &[Call::Write(F, 0, 4096), Call::Write(G, 0, 4096)],
            &[Call::Read(F, 0, 4096), Call::Read(F, 0, 4096)],
            &[Call::Write(F, 0, 4096), Call::Append(G, 4096)],
        ],
    ));
}

#[test]
fn blocks_freed_in_the_background() {
    explore(&workload(
        &[Call::Append(F, 20 * 4096), Call::Append(G, 12 * 4096)],
        &[
            &[Call::Truncate(F, 0), Call::Append(F, 5000), Call::SyncAll],
            &[Call::Truncate(F, 9000), Call::Read(F, 4096, 100)],
            &[Call::Unlink(E, "g"), Call::Create(E, "g")],
        ],
    ));
}

/// A name of five lines, so that a page of the log is full with every dozen of them.
fn long(index: usize) -> &'static str {
    ["a", "b", "c", "d"][index % 4].repeat(245).leak()
}

/// A log of a dozen pages, most of which is garbage, and the last of which is nearly full.
#[test]
fn names_while_their_log_is_collected() {
    let mut setup = vec![Call::Create(D, "kept")];
    for turn in 0..96 {
        setup.extend([Call::Create(D, long(turn)), Call::Unlink(D, long(turn))]);
    }
    setup.extend([Call::Create(D, long(3)), Call::Rename(D, long(3), E, long(3), Replace)]);
    explore(&workload(
        &setup,
        &[
            &[Call::Create(D, long(0)), Call::Create(D, long(1)), Call::Unlink(D, long(0))],
            &[Call::Lookup(D, "kept"), Call::ReadDir(D)],
            &[Call::Rename(E, long(3), D, long(2), Replace), Call::Lookup(D, long(2))],
        ],
    ));
}

#[test]
fn a_file_while_its_log_is_collected() {
    let mut setup = vec![Call::Append(F, 5 * 4096)];
    for turn in 0..520 {
        setup.push(Call::Write(F, turn % 3 * 4096, 4096));
    }
    let overwrites: Vec<Call> = (0..3).map(|block| Call::Write(F, block * 4096, 4096)).collect();
    explore(&workload(
        &setup,
        &[
            &overwrites,
            &[Call::Read(F, 4096, 4096), Call::Read(F, 16384, 100)],
            &[Call::Truncate(F, 8192), Call::Append(F, 100)],
        ],
    ));
}

#[test]
fn attributes() {
    explore(&workload(
        &[Call::SetXattr(F, "user.a", 10), Call::Append(F, 10)],
        &[
            &[Call::SetMode(F, 0o600), Call::Mode(F), Call::GetXattr(F, "user.a")],
            &[Call::SetXattr(F, "user.a", 300), Call::SetMode(F, 0o640)],
            &[Call::Link(F, E, "l"), Call::Mode(F), Call::SyncAll],
        ],
    ));
}

/// No attribute depends on the order: the read makes atime its own, the change of the mode leaves it as it is.
#[test]
fn a_read_beside_a_change_of_attributes() {
    let threads: [&[Call]; 2] = [&[Call::Read(F, 0, 10)], &[Call::SetMode(F, 0o600)]];
    let workload = workload(&[Call::Append(F, 10)], &threads);
    explore(&Workload { after: vec![Call::Atime(F), Call::Mode(F)], ..workload });
}

/// A write of somebody who may not have set-id bits removes them, also such as were set while he wrote before.
#[test]
fn set_id_bits_beside_writes() {
    fn body<S: Data + Extents>(fs: S) -> S {
        let vfs = Arc::new(Vfs::new(fs, VfsOptions::default()));
        let root = Caller { umask: 0, ..Caller::ROOT };
        let user = Caller { uid: 7, gid: 7, check: true, ..root };
        let file = vfs.create(&root, vfs.root(), b"file", &Create::file(0o777)).unwrap();
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let handle = Arc::new(vfs.open_node(&user, file.clone(), flags).unwrap());
        let writes = thread::spawn({
            let (vfs, handle) = (Arc::clone(&vfs), Arc::clone(&handle));
            move || handle.write(&vfs, b"one").map(drop)
        });
        let sets = thread::spawn({
            let (vfs, file) = (Arc::clone(&vfs), file.clone());
            let change = SetAttr { mode: Some(0o4777), ..SetAttr::default() };
            move || vfs.setattr(&Caller::ROOT, &file, &change, false).map(drop)
        });
        for thread in [writes, sets] {
            thread.join().unwrap().unwrap();
        }
        handle.write(&vfs, b"two").unwrap();
        let attr = vfs.getattr(&file).unwrap();
        assert_eq!((attr.mode, attr.size), (0o777, 6));
        drop((handle, file));
        Arc::into_inner(vfs).unwrap().into_layout()
    }
    explore_with(Log, body);
    explore_with(Inplace, body);
    explore_with(Pool, body);
    explore_with(Shadow, body);
}

/// Whoever knows a file by its number, as a write buffer and a handle of NFS do, holds it while it is there, or is told
/// that it is gone. It was read from media again while it was being reclaimed, and what was written to it then was lost
/// space, or lay in another's blocks.
#[test]
fn a_file_that_is_held_by_its_number_while_it_goes() {
    fn body<S: Data + Extents>(fs: S) -> S {
        let root = fs.root();
        let new = |uid| call::new_inode(FileKind::Regular, uid);
        let write = |fs: &S, node: &S::Node| {
            let at = WriteAt::Offset(0);
            fs.write(node, at, &[IoSlice::new(&[7; 5000])], Durability::Now, Timestamp::default())
        };
        let file = fs.create(&root, b"goes", &new(1)).unwrap();
        write(&fs, &file).unwrap();
        let id = fs.id(&file);
        drop((file, root));
        let fs = Arc::new(fs);
        let removes = thread::spawn({
            let fs = Arc::clone(&fs);
            move || {
                fs.unlink(&fs.root(), b"goes", Timestamp::default()).unwrap();
                drop(fs.create(&fs.root(), b"comes", &new(2)).unwrap());
            }
        });
        let holds = thread::spawn({
            let fs = Arc::clone(&fs);
            move || {
                for _ in 0..2 {
                    match fs.node(id) {
                        Ok(node) => drop(write(&fs, &node).unwrap()),
                        Err(error) => assert_eq!(error.kind(), Kind::Stale),
                    }
                }
            }
        });
        for thread in [removes, holds] {
            thread.join().unwrap();
        }
        let comes = fs.lookup(&fs.root(), b"comes").unwrap();
        let attr = fs.getattr(&comes).unwrap();
        assert_eq!((attr.uid, attr.size), (2, 0));
        drop(comes);
        Arc::into_inner(fs).unwrap()
    }
    explore_with(Log, body);
    explore_with(Inplace, body);
    explore_with(Pool, body);
    explore_with(Shadow, body);
}

/// A truncation had let go of the log before it was known that blocks are to be freed: a log that was gathered in between named
/// them once more, behind the truncation.
#[test]
fn a_truncation_while_the_log_is_gathered() {
    fn body(fs: LogFs<SimPm>) -> LogFs<SimPm> {
        let (uuid, state) = ([1; 16], TierState::Active);
        let tier = Tier { number: 1, uuid, blocks: 300, token: 1, pending: 0, rank: 1, state };
        fs.change_tier(TierChange::Set(tier)).unwrap();
        let file = fs.create(&fs.root(), b"file", &call::new_inode(FileKind::Regular, 1)).unwrap();
        let write = |node, block: u64, blocks: usize| {
            let (at, bytes) = (WriteAt::Offset(block * 4096), vec![block as u8; blocks * 4096]);
            fs.write(node, at, &[IoSlice::new(&bytes)], Durability::Now, Timestamp::default()).unwrap();
        };
        // Three pages, with a few blocks in each: they become one.
        (0..160).for_each(|turn| write(&file, if turn % 20 == 0 { turn / 10 } else { 20 }, 1));
        let threads = {
            let (fs, file) = (Arc::new(fs), Arc::new(file));
            let truncates = thread::spawn({
                let (fs, file) = (Arc::clone(&fs), Arc::clone(&file));
                move || {
                    [18, 14, 10, 6, 2].into_iter().try_for_each(|blocks| {
                        let change = SetAttr { size: Some(blocks * 4096), ..SetAttr::default() };
                        fs.setattr(&file, &change, Timestamp::default()).map(drop)
                    })
                }
            });
            let gathers = thread::spawn({
                let (fs, file) = (Arc::clone(&fs), Arc::clone(&file));
                move || (0..10).try_for_each(|_| fs.compact_log(&file, true).map(drop))
            });
            [truncates, gathers].into_iter().for_each(|thread| thread.join().unwrap().unwrap());
            (Arc::into_inner(fs).unwrap(), Arc::into_inner(file).unwrap())
        };
        let (fs, file) = threads;
        // Another file has what was cut off.
        let other = fs.create(&fs.root(), b"other", &call::new_inode(FileKind::Regular, 2)).unwrap();
        let bytes = vec![9; 16 * 4096];
        let at = WriteAt::Offset(0);
        fs.write(&other, at, &[IoSlice::new(&bytes)], Durability::Now, Timestamp::default()).unwrap();
        drop((file, other));
        fs
    }
    explore_with(Log, body);
}

/// Threads that write through one handle never write over each other.
#[test]
fn one_offset_for_all() {
    fn body<S: Data + Extents>(fs: S) -> S {
        let vfs = Arc::new(Vfs::new(fs, VfsOptions::default()));
        let flags = OpenFlags { read: true, write: true, create: true, ..OpenFlags::default() };
        let handle = vfs.open(&Caller::ROOT, vfs.root(), b"file", flags, 0o600).unwrap();
        let handle = Arc::new(handle);
        let write = |byte: u8| {
            let (vfs, handle) = (Arc::clone(&vfs), Arc::clone(&handle));
            thread::spawn(move || handle.write(&vfs, &[byte; 3]).map(drop))
        };
        for thread in [write(1), write(2), write(3)] {
            thread.join().unwrap().unwrap();
        }
        let mut bytes = [0; 10];
        assert_eq!(handle.read_at(&vfs, &mut bytes, 0).unwrap(), 9);
        let mut parts: Vec<&[u8]> = bytes[..9].chunks(3).collect();
        parts.sort_unstable();
        assert_eq!(parts, [[1; 3], [2; 3], [3; 3]]);
        drop(handle);
        Arc::into_inner(vfs).unwrap().into_layout()
    }
    explore_with(Log, body);
    explore_with(Inplace, body);
    explore_with(Pool, body);
    explore_with(Shadow, body);
}

/// Two or three threads with two or three calls each, of any kind.
#[test]
fn random_workloads() {
    let mut rng = SmallRng::seed_from_u64(seed());
    for _ in 0..schedules() / 5 {
        let threads = rng.random_range(2..4);
        let calls = 6 / threads;
        let threads = (0..threads).map(|_| (0..calls).map(|_| random_call(&mut rng)).collect()).collect();
        let setup =
            vec![Call::Create(D, "a"), Call::Create(E, "b"), Call::Mkdir(D, "c"), Call::Append(F, 9000)];
        let workload = Workload { setup, threads, after: Vec::new() };
        println!("{workload:?}");
        explore_some(&workload, 50);
    }
}

fn random_call(rng: &mut SmallRng) -> Call {
    let mut any = |count: usize| rng.random_range(0..count);
    let names = ["a", "b", "c", "f"];
    let (dir, other, name, to) = (1 + any(2), 1 + any(2), names[any(4)], names[any(4)]);
    let (file, block) = (any(2), any(3) as u64 * 4096);
    match any(31) {
        0..2 => Call::Create(dir, name),
        2 => Call::Mkdir(dir, name),
        3..5 => Call::Unlink(dir, name),
        5 => Call::Rmdir(dir, name),
        6..10 => Call::Rename(dir, name, other, to, [Replace, Replace, NoReplace, Exchange][any(4)]),
        10..12 => Call::Link(file, dir, name),
        12 => Call::Lookup(dir, name),
        13 => Call::ReadDir(dir),
        14..16 => Call::Write(file, block + any(4000) as u64, 1 + any(5000)),
        16..18 => Call::Append(file, 1 + any(9000)),
        18 => Call::Truncate(file, any(10000) as u64),
        19 => Call::Punch(file, block, 1 + any(9000) as u64),
        20 => Call::Size(file),
        21 => Call::SetMode(file, 0o600 + any(64) as u32),
        22 => Call::SetXattr(file, "user.a", 1 + any(300)),
        23..26 => Call::Read(file, block, 1 + any(4096)),
        26 => Call::GetXattr(file, "user.a"),
        27 => Call::SyncAll,
        28 => Call::Sync(file),
        _ => Call::WriteNow(file, block + any(4000) as u64, 1 + any(5000)),
    }
}

/// Each mistake on purpose (of the log layout) is found.
#[test]
fn mistakes_between_threads_are_found() {
    for mistake in Mistake::BETWEEN_THREADS {
        let workload = match mistake {
            Mistake::LockedAsCalled => workload(
                &[Call::Create(D, "a"), Call::Create(E, "b")],
                &[&[Call::Rename(D, "a", E, "a", Replace)], &[Call::Rename(E, "b", D, "b", Replace)]],
            ),
            Mistake::NameSoughtEarly => workload(&[], &[&[Call::Create(D, "a")], &[Call::Create(D, "a")]]),
            Mistake::HeldLate => workload(
                &[Call::Create(D, "a")],
                &[&[Call::Lookup(D, "a")], &[Call::Unlink(D, "a"), Call::Create(D, "b")]],
            ),
            Mistake::SizeReadEarly => workload(&[], &[&[Call::Append(F, 10)], &[Call::Append(F, 10)]]),
            Mistake::EdgeNotChecked => {
                workload(&[Call::Append(F, 4096)], &[&[Call::Write(F, 0, 100)], &[Call::Write(F, 200, 100)]])
            }
            Mistake::GrowthNotSeen => {
                workload(&[Call::Append(F, 1000)], &[&[Call::Write(F, 0, 100)], &[Call::Write(F, 900, 500)]])
            }
            Mistake::SizeNotReadAgain => workload(
                &[Call::Append(F, 100)],
                &[&[Call::Read(F, 0, 100)], &[Call::Truncate(F, 50), Call::Append(F, 10)]],
            ),
            Mistake::RenamedInSteps => workload(
                &[Call::Create(D, "a")],
                &[&[Call::Rename(D, "a", D, "b", Replace)], &[Call::ReadDir(D)]],
            ),
            Mistake::LinkedWhenGone => workload(&[], &[&[Call::Link(F, E, "l")], &[Call::Unlink(D, "f")]]),
            other => panic!("no workload for {other:?}"),
        };
        assert!(finds(Log, &workload, mistake as u32), "not found: {}", mistake.words());
    }
}

/// The same for those of the shadow layout: two renames that lock two directories against each other wait for ever.
#[test]
fn mistakes_of_the_shadow_layout_between_threads_are_found() {
    use nacre_layout_shadow::Mistake;
    for mistake in Mistake::BETWEEN_THREADS {
        let workload = match mistake {
            Mistake::LockedAsCalled => workload(
                &[Call::Create(D, "a"), Call::Create(E, "b")],
                &[&[Call::Rename(D, "a", E, "a", Replace)], &[Call::Rename(E, "b", D, "b", Replace)]],
            ),
            other => panic!("no workload for {other:?}"),
        };
        assert!(finds(Shadow, &workload, mistake.number()), "not found: {}", mistake.words());
    }
}
