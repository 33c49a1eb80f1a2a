//! Small sequences on the log layout that went wrong once. The suite or a random sequence found each of them.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FallocateMode, FileKind, Kind, Names, NewInode, RenameMode,
    SetAttr, Timestamp, WriteAt, XattrMode,
};
use nacre_layout_log::anatomy::{self, reseal, structures};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::crash::{Replay, Sampling};
use nacre_media::{Pm, SimPm};

fn at(secs: i64) -> Timestamp {
    Timestamp::new(secs, 0)
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode::of_root(kind, 0o644, at(1))
}

fn empty(size: u64) -> LogFs<SimPm> {
    let pm = Arc::new(SimPm::new(size));
    mkfs(&*pm, &MkfsOptions::default()).expect("mkfs");
    mount(pm)
}

fn mount(pm: Arc<SimPm>) -> LogFs<SimPm> {
    LogFs::mount(pm, &MountOptions::default()).expect("mount")
}

fn remount(fs: LogFs<SimPm>) -> LogFs<SimPm> {
    let pm = Arc::clone(fs.pm());
    fs.unmount().expect("unmount");
    mount(pm)
}

fn crash(fs: &LogFs<SimPm>) -> LogFs<SimPm> {
    mount(Arc::new(SimPm::from_image(&fs.pm().snapshot())))
}

fn append(fs: &LogFs<SimPm>, node: &Node, bytes: &[u8]) -> Result<u64, Kind> {
    let result = fs.write(node, WriteAt::End, &[IoSlice::new(bytes)], Durability::Lazy, at(2));
    result.map_err(|error| error.kind())
}

/// Appends until there is no space; returns the number of blocks.
fn fill(fs: &LogFs<SimPm>, node: &Node) -> u64 {
    let mut blocks = 0;
    for pieces in [256, 1] {
        let bytes = vec![7; pieces * BLOCK_SIZE as usize];
        while append(fs, node, &bytes).is_ok() {
            blocks += pieces as u64;
        }
    }
    blocks
}

/// The mode came back to what it was before, because it stood in the entry of an attribute that was removed.
#[test]
fn a_mode_that_came_with_an_attribute_outlives_the_attribute() {
    let fs = empty(16 << 20);
    let root = fs.root();
    let dir = fs.create(&root, b"j", &new(FileKind::Directory)).unwrap();
    fs.set_xattr(&dir, b"user.a", &[1; 57], XattrMode::Create, Some(0o640), at(2)).unwrap();
    fs.rename(&root, b"j", &root, b"e", RenameMode::Replace, at(3)).unwrap();
    fs.remove_xattr(&dir, b"user.a", at(4)).unwrap();
    let fs = crash(&fs);
    let dir = fs.lookup(&fs.root(), b"e").unwrap();
    fs.set_xattr(&dir, b"user.a", &[2; 141], XattrMode::Set, None, at(5)).unwrap();
    assert_eq!(fs.getattr(&dir).unwrap().mode, 0o640);
    drop(dir);
    let fs = remount(fs);
    let dir = fs.lookup(&fs.root(), b"e").unwrap();
    assert_eq!(fs.getattr(&dir).unwrap().mode, 0o640);
}

/// A large truncation leaves its blocks to the background thread, which gave up when it came while the truncation still
/// held its lock: then nobody freed them.
#[test]
fn a_truncation_on_a_full_device_gives_its_space_back() {
    let fs = empty(32 << 20);
    let other = fs.create(&fs.root(), b"other", &new(FileKind::Regular)).unwrap();
    for round in 0..20 {
        let node = fs.create(&fs.root(), b"file", &new(FileKind::Regular)).unwrap();
        let blocks = fill(&fs, &node);
        let half = SetAttr { size: Some(blocks / 2 * BLOCK_SIZE), ..SetAttr::default() };
        fs.setattr(&node, &half, at(3)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(2);
        while append(&fs, &other, &[1; BLOCK_SIZE as usize]).is_err() {
            assert!(Instant::now() < deadline, "round {round}: nothing is free after the truncation");
            thread::yield_now();
        }
        drop(node);
        fs.unlink(&fs.root(), b"file", at(4)).unwrap();
    }
}

/// What is allocated can be written, whatever else fills the device: that is what allocating is for.
#[test]
fn allocated_blocks_can_be_written_on_a_full_device() {
    let fs = empty(16 << 20);
    let node = fs.create(&fs.root(), b"reserved", &new(FileKind::Regular)).unwrap();
    fs.fallocate(&node, FallocateMode::Allocate, 0, 1 << 20, at(2)).unwrap();
    let other = fs.create(&fs.root(), b"other", &new(FileKind::Regular)).unwrap();
    fill(&fs, &other);
    for block in 0..(1 << 20) / BLOCK_SIZE {
        let bytes = [block as u8; BLOCK_SIZE as usize];
        let at_block = WriteAt::Offset(block * BLOCK_SIZE);
        let written = fs.write(&node, at_block, &[IoSlice::new(&bytes)], Durability::Lazy, at(3));
        written.unwrap_or_else(|error| panic!("block {block}: {error}"));
    }
}

/// Between the removal of the old name from the index and the insertion of the new one, lookups found nothing.
#[test]
fn a_name_that_is_replaced_is_always_there() {
    let fs = empty(16 << 20);
    let root = fs.root();
    fs.create(&root, b"target", &new(FileKind::Regular)).unwrap();
    let writers = AtomicUsize::new(2);
    thread::scope(|scope| {
        let (fs, root, writers) = (&fs, &root, &writers);
        for writer in 0..2 {
            scope.spawn(move || {
                let name = format!("new-{writer}");
                for round in 0..10_000 {
                    let node = fs.create(root, name.as_bytes(), &new(FileKind::Regular)).unwrap();
                    append(fs, &node, &[7; 5000]).unwrap();
                    fs.rename(root, name.as_bytes(), root, b"target", RenameMode::Replace, at(round))
                        .unwrap();
                }
                writers.fetch_sub(1, Ordering::Relaxed);
            });
            scope.spawn(move || {
                let mut lookups = 0u64;
                while writers.load(Ordering::Relaxed) > 0 {
                    let node = fs.lookup(root, b"target");
                    let node = node.unwrap_or_else(|error| panic!("after {lookups} lookups: {error}"));
                    assert_eq!(fs.kind(&node), FileKind::Regular);
                    lookups += 1;
                }
            });
        }
    });
    let mut names = Vec::new();
    fs.read_dir(&root, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(names, [b"target"]);
}

/// A change of ctime alone makes atime older than ctime, so the next read renews it.
#[test]
fn a_read_after_a_change_of_attributes_renews_atime() {
    let fs = empty(16 << 20);
    let root = fs.root();
    let node = fs.create(&root, b"a", &new(FileKind::Regular)).unwrap();
    append(&fs, &node, b"content").unwrap();
    let read = |secs| {
        fs.read(&node, 0, &mut [0; 7], Some(at(secs))).unwrap();
        fs.getattr(&node).unwrap().atime
    };
    assert_eq!(read(10), at(10));
    fs.link(&node, &root, b"b", at(11)).unwrap();
    assert_eq!(read(12), at(12), "after a link");
    fs.rename(&root, b"b", &root, b"c", RenameMode::Replace, at(13)).unwrap();
    assert_eq!(read(14), at(14), "after a rename");
    fs.unlink(&root, b"c", at(15)).unwrap();
    assert_eq!(read(16), at(16), "after an unlink");
    fs.set_xattr(&node, b"user.a", b"1", XattrMode::Set, None, at(17)).unwrap();
    assert_eq!(read(18), at(18), "after setting an attribute");
    fs.remove_xattr(&node, b"user.a", at(19)).unwrap();
    assert_eq!(read(20), at(20), "after removing an attribute");
    assert_eq!(read(21), at(20), "and then it stays");
}

/// An immutable or append-only inode could be changed in everything but its size.
#[test]
fn flags_protect_attributes_and_contents() {
    let fs = empty(16 << 20);
    let node = fs.create(&fs.root(), b"file", &new(FileKind::Regular)).unwrap();
    append(&fs, &node, b"content").unwrap();
    let kind_of = |result: Result<_, nacre_engine::Error>| result.map(drop).map_err(|error| error.kind());
    for flags in [nacre_engine::Attr::IMMUTABLE, nacre_engine::Attr::APPEND_ONLY] {
        fs.setattr(&node, &SetAttr { flags: Some(flags), ..SetAttr::default() }, at(3)).unwrap();
        for change in [
            SetAttr { mode: Some(0o600), ..SetAttr::default() },
            SetAttr { uid: Some(5), ..SetAttr::default() },
            SetAttr { mtime: Some(at(5)), ..SetAttr::default() },
            SetAttr { size: Some(1), ..SetAttr::default() },
        ] {
            assert_eq!(kind_of(fs.setattr(&node, &change, at(4))), Err(Kind::NotPermitted), "{change:?}");
        }
        for mode in [FallocateMode::PunchHole, FallocateMode::ZeroRange, FallocateMode::ZeroRangeKeepSize] {
            let verdict = fs.fallocate(&node, mode, 0, 4096, at(4)).map_err(|error| error.kind());
            assert_eq!(verdict, Err(Kind::NotPermitted), "{mode:?}");
        }
        fs.setattr(&node, &SetAttr { flags: Some(0), ..SetAttr::default() }, at(5)).unwrap();
    }
    assert!(fs.stat().available > 0);
}

/// An open file that lost its last name changed its ctime by that, and the next read did not move atime past it.
#[test]
fn a_read_after_the_last_unlink_moves_atime() {
    let fs = empty(16 << 20);
    let root = fs.root();
    let file = fs.create(&root, b"file", &new(FileKind::Regular)).unwrap();
    append(&fs, &file, b"content").unwrap();
    let mut buffer = [0; 7];
    fs.read(&file, 0, &mut buffer, Some(at(3))).unwrap();
    fs.unlink(&root, b"file", at(4)).unwrap();
    fs.read(&file, 0, &mut buffer, Some(at(5))).unwrap();
    assert_eq!(fs.getattr(&file).unwrap().atime, at(5));
}

/// The target of a symbolic link stood in a page of the log that nothing referred to, and was collected with it.
#[test]
fn the_target_of_a_link_outlives_many_changes_of_its_attributes() {
    let mut fs = empty(16 << 20);
    let link = NewInode { target: b"somewhere", ..new(FileKind::Symlink) };
    fs.create(&fs.root(), b"link", &link).unwrap();
    for round in 0..3 {
        let node = fs.lookup(&fs.root(), b"link").unwrap();
        for change in 0..300 {
            let value = [change as u8; 200];
            fs.set_xattr(&node, b"trusted.name", &value, XattrMode::Set, None, at(2 + round)).unwrap();
        }
        assert_eq!(fs.read_link(&node).unwrap(), b"somewhere");
        drop(node);
        fs = if round == 1 { crash(&fs) } else { remount(fs) };
        let node = fs.lookup(&fs.root(), b"link").unwrap();
        assert_eq!(fs.read_link(&node).unwrap(), b"somewhere");
        assert_eq!(fs.getattr(&node).unwrap().size, 9);
    }
}

/// A crash had torn one copy of the superblock; the mount after it wrote the other copy first, and when another crash
/// tore that one, too, there was none. The crash explorer found it.
#[test]
fn two_crashes_do_not_tear_both_superblocks() {
    let fs = empty(16 << 20);
    let unmounted = Arc::clone(fs.pm());
    fs.unmount().unwrap();
    for torn in [0, 16 * BLOCK_SIZE] {
        let pm = Arc::new(SimPm::from_image(&unmounted.snapshot()));
        pm.poke(torn + 192, &[0x55; 64]);
        let before = pm.snapshot();
        pm.start_recording();
        mount(Arc::clone(&pm)).abandon();
        let trace = pm.stop_recording();
        let mut replay = Replay::new(before, &trace);
        while replay.advance().is_some() {
            pm.load(replay.media());
            for image in replay.images(&Sampling { exhaustive_up_to: 16, samples: 16, seed: 1 }).iter() {
                image.apply(&pm);
                mount(Arc::clone(&pm)).abandon();
                pm.load(replay.media());
            }
        }
    }
}

/// Blocks that are in use.
fn used(fs: &LogFs<SimPm>) -> u64 {
    let stat = fs.stat();
    stat.blocks - stat.free
}

/// A directory in which names come and go filled the device with their removals: as long as names that stay stood at the
/// beginning of its log, collection kept each removal behind them for ever. Found by a benchmark that made and removed
/// files for ten seconds.
#[test]
fn removals_do_not_pile_up_behind_names_that_stay() {
    let fs = empty(16 << 20);
    let root = fs.root();
    for number in 0..1000 {
        fs.create(&root, format!("stays {number}").as_bytes(), &new(FileKind::Regular)).unwrap();
    }
    // Some of those that stay go, too, at any time.
    let churn = |fs: &LogFs<SimPm>, rounds: std::ops::Range<u32>| {
        let root = fs.root();
        for round in rounds {
            for number in 0..100 {
                fs.create(&root, format!("comes {number}").as_bytes(), &new(FileKind::Regular)).unwrap();
            }
            for number in 0..100 {
                fs.unlink(&root, format!("comes {number}").as_bytes(), at(2)).unwrap();
            }
            fs.unlink(&root, format!("stays {}", round * 7 % 1000).as_bytes(), at(2)).unwrap();
        }
    };
    churn(&fs, 0..20);
    let before = used(&fs);
    churn(&fs, 20..140);
    // 24,000 entries were added, 375 pages of them.
    assert!(used(&fs) < before + 100, "{before} blocks became {}", used(&fs));
    let gone: std::collections::HashSet<_> = (0..140).map(|round| round * 7 % 1000).collect();
    for fs in [crash(&fs), remount(fs)] {
        for number in 0..1000 {
            let found = fs.lookup(&fs.root(), format!("stays {number}").as_bytes());
            assert_eq!(found.is_ok(), !gone.contains(&number), "stays {number}");
        }
        for number in 0..100 {
            assert!(fs.lookup(&fs.root(), format!("comes {number}").as_bytes()).is_err(), "comes {number}");
        }
    }
}

/// The same of holes in a file, and of extended attributes.
#[test]
fn holes_and_removed_attributes_do_not_pile_up() {
    let fs = empty(16 << 20);
    let file = fs.create(&fs.root(), b"f", &new(FileKind::Regular)).unwrap();
    let write = |block: u64, byte: u8| {
        let bytes = vec![byte; BLOCK_SIZE as usize];
        let at_block = WriteAt::Offset(block * BLOCK_SIZE);
        fs.write(&file, at_block, &[IoSlice::new(&bytes)], Durability::Lazy, at(2)).unwrap();
    };
    // Every other block, so that each is an entry.
    (0..800).for_each(|number| write(2 * number, 1));
    for number in 0..100 {
        let name = format!("user.{number}");
        fs.set_xattr(&file, name.as_bytes(), b"stays", XattrMode::Create, None, at(2)).unwrap();
    }
    let churn = |rounds: std::ops::Range<u64>| {
        for round in rounds {
            for number in 0..40 {
                write(2001 + 2 * number, 2);
            }
            for number in 0..40 {
                let offset = (2001 + 2 * number) * BLOCK_SIZE;
                fs.fallocate(&file, FallocateMode::PunchHole, offset, BLOCK_SIZE, at(2)).unwrap();
            }
            fs.fallocate(&file, FallocateMode::PunchHole, 2 * round * BLOCK_SIZE, BLOCK_SIZE, at(2)).unwrap();
            for _ in 0..20 {
                fs.set_xattr(&file, b"user.comes", b"goes", XattrMode::Create, None, at(2)).unwrap();
                fs.remove_xattr(&file, b"user.comes", at(2)).unwrap();
            }
        }
    };
    churn(0..30);
    let before = used(&fs);
    churn(30..250);
    // 220 blocks were punched for good; 26,000 entries were added, 400 pages of them.
    assert!(used(&fs) + 100 < before, "{before} blocks became {}", used(&fs));
    drop(file);
    for fs in [crash(&fs), remount(fs)] {
        let file = fs.lookup(&fs.root(), b"f").unwrap();
        let mut block = vec![9; BLOCK_SIZE as usize];
        for number in 0..1900 {
            fs.read(&file, number * BLOCK_SIZE, &mut block, None).unwrap();
            let stays = number % 2 == 0 && (500..1600).contains(&number);
            assert!(block.iter().all(|&byte| byte == u8::from(stays)), "block {number}");
        }
        assert_eq!(fs.list_xattrs(&file).unwrap().len(), 100);
    }
}

/// A log whose numbers are used up takes no more: an entry with a greater number would be taken for a torn one.
#[test]
fn a_log_without_numbers_left_refuses_and_loses_nothing() {
    let fs = empty(16 << 20);
    let node = fs.create(&fs.root(), b"file", &new(FileKind::Regular)).expect("create");
    append(&fs, &node, b"one").expect("append");
    let number = fs.id(&node).number;
    drop(node);
    let pm = Arc::clone(fs.pm());
    fs.unmount().expect("unmount");
    let newest = structures(&*pm)
        .expect("structures")
        .into_iter()
        .filter(|structure| structure.inode == number && structure.kind == anatomy::Kind::Entry);
    let entry = newest.max_by_key(|structure| sequence_of(&pm, structure)).expect("an entry");
    // Two numbers are left.
    pm.poke(entry.offset + 8, &((1u64 << 62) - 3).to_le_bytes());
    reseal(&*pm, &entry).expect("reseal");

    let fs = mount(pm);
    let node = fs.lookup(&fs.root(), b"file").expect("lookup");
    assert_eq!(append(&fs, &node, b" two"), Ok(3));
    assert_eq!(append(&fs, &node, b" three"), Ok(7));
    assert_eq!(append(&fs, &node, b" four"), Err(Kind::NoSpace));
    assert_eq!(
        fs.setattr(&node, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, at(3))
            .map(drop)
            .map_err(|e| e.kind()),
        Err(Kind::NoSpace)
    );
    let fs = crash(&fs);
    let node = fs.lookup(&fs.root(), b"file").expect("lookup");
    let mut found = [0; 32];
    let length = fs.read(&node, 0, &mut found, None).expect("read");
    assert_eq!(&found[..length], b"one two three");
    // Others are not concerned.
    let other = fs.create(&fs.root(), b"other", &new(FileKind::Regular)).expect("create");
    append(&fs, &other, b"here").expect("append");
}

fn sequence_of(pm: &SimPm, entry: &anatomy::Structure) -> u64 {
    let mut word = [0; 8];
    pm.read(entry.offset + 8, &mut word).expect("read");
    u64::from_le_bytes(word)
}
