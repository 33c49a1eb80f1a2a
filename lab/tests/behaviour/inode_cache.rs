//! Inodes whose state leaves DRAM: what was kept lazily is there, what has no name and is held stays, and what is looked at
//! again is what it was. Each inode that was ever looked at took some 750 bytes until the unmount once.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nacre_engine::{
    Attr, Data, Durability, Extents, FileKind, InodeCache, Kind, Names, NewInode, RenameMode, SetAttr,
    Timestamp, WriteAt, XattrMode,
};
use nacre_lab::crash::{Inplace, Log, Mounting, Pool, Shadow, Subject};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::LogFs;
use nacre_layout_parts::lifecycle::Lifecycle as _;
use nacre_layout_pool::PoolFs;
use nacre_layout_shadow::ShadowFs;
use nacre_media::SimPm;

fn now(secs: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + secs, 7)
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode { kind, mode: 0o644, uid: 1, gid: 2, rdev: 0, target: b"", xattrs: &[], now: now(0) }
}

fn write<F: Data>(fs: &F, node: &F::Node, at: WriteAt, bytes: &[u8]) {
    fs.write(node, at, &[IoSlice::new(bytes)], Durability::Now, now(1)).unwrap();
}

fn content<F: Data>(fs: &F, node: &F::Node) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(node).unwrap().size as usize];
    assert_eq!(fs.read(node, 0, &mut bytes, None).unwrap(), bytes.len());
    bytes
}

/// Attributes but for the change counter, which may grow.
fn without_change(attr: Attr) -> Attr {
    Attr { change: 0, ..attr }
}

fn empty<S: Subject>(subject: &S) -> (Arc<SimPm>, S::Fs) {
    let pm = Arc::new(SimPm::new(32 << 20));
    subject.mkfs(&pm).unwrap();
    let fs = subject.mount(&pm, Mounting::default()).unwrap();
    (pm, fs)
}

/// Lets go of what a name in the root refers to.
fn let_go<F: Data>(fs: &F, name: &[u8]) {
    fs.let_go(fs.lookup(&fs.root(), name).unwrap());
}

fn each(log: impl Fn(Log), inplace: impl Fn(Inplace), pool: impl Fn(Pool), shadow: impl Fn(Shadow)) {
    log(Log);
    inplace(Inplace);
    pool(Pool);
    shadow(Shadow);
}

/// Times of reads and of names are kept in DRAM until something else is written.
fn lazy_state_is_kept<S: Subject>(subject: S) {
    let (pm, fs) = empty(&subject);
    let root = fs.root();
    let file = fs.create(&root, b"file", &new(FileKind::Regular)).unwrap();
    let (dir, other) = (new(FileKind::Directory), new(FileKind::Directory));
    let (dir, other) = (fs.create(&root, b"dir", &dir).unwrap(), fs.create(&root, b"other", &other).unwrap());
    write(&fs, &file, WriteAt::Offset(0), &[7; 9000]);
    fs.set_xattr(&file, b"user.name", b"value", XattrMode::Set, None, now(2)).unwrap();
    fs.link(&file, &dir, b"second", now(3)).unwrap();
    fs.link(&file, &dir, b"third", now(4)).unwrap();
    fs.unlink(&dir, b"third", now(5)).unwrap();
    fs.rename(&root, b"dir", &other, b"dir", RenameMode::Replace, now(6)).unwrap();
    fs.read(&file, 0, &mut [0; 10], Some(now(7))).unwrap();
    let (was, was_dir) = (fs.getattr(&file).unwrap(), fs.getattr(&dir).unwrap());
    assert_eq!((was.links, was.atime), (2, now(7)));
    let before = fs.inode_cache().loaded;
    let numbers = [fs.id(&file), fs.id(&dir)].map(|id| id.number);
    fs.let_go(file);
    fs.let_go(dir);
    assert_eq!(fs.inode_cache().loaded, before - 2, "neither is in DRAM");
    let [file, dir] = numbers.map(|number| fs.node_by_number(number).unwrap());
    assert_eq!(fs.inode_cache().loaded, before);
    let is = fs.getattr(&file).unwrap();
    assert!(is.change >= was.change, "it went back from {} to {}", was.change, is.change);
    assert_eq!(without_change(is), without_change(was));
    assert_eq!(without_change(fs.getattr(&dir).unwrap()), without_change(was_dir));
    assert_eq!(content(&fs, &file), [7; 9000]);
    assert_eq!(fs.get_xattr(&file, b"user.name").unwrap(), b"value");
    assert_eq!(fs.id(&fs.parent(&dir).unwrap()), fs.id(&other));
    // It goes on from there, and a mount finds the same, in order or not.
    write(&fs, &file, WriteAt::End, &[8; 100]);
    let grown = fs.getattr(&file).unwrap();
    assert!(grown.change > is.change);
    [file, dir, other].into_iter().for_each(|node| fs.let_go(node));
    drop(root);
    subject.abandon(fs);
    assert_eq!(subject.check(&pm, true).unwrap(), [""; 0]);
    let fs = subject.mount(&pm, Mounting::default()).unwrap();
    let file = fs.lookup(&fs.root(), b"file").unwrap();
    assert_eq!(without_change(fs.getattr(&file).unwrap()), without_change(grown));
    let_go(&fs, b"file");
    drop(file);
    subject.unmount(fs).unwrap();
    assert_eq!(subject.check(&pm, false).unwrap(), [""; 0]);
}

#[test]
fn what_is_kept_lazily_is_written_before_it_leaves() {
    each(lazy_state_is_kept, lazy_state_is_kept, lazy_state_is_kept, lazy_state_is_kept);
}

/// A holder of an inode has it, also when others let go of it.
fn what_is_held_stays<S: Subject>(subject: S) {
    let (_pm, fs) = empty(&subject);
    let root = fs.root();
    let free = fs.stat().free;
    let file = fs.create(&root, b"file", &new(FileKind::Regular)).unwrap();
    write(&fs, &file, WriteAt::Offset(0), &[7; 50_000]);
    fs.unlink(&root, b"file", now(2)).unwrap();
    fs.let_go(file.clone());
    assert_eq!(content(&fs, &file), [7; 50_000]);
    let unnamed = fs.create_unnamed(&new(FileKind::Regular)).unwrap();
    fs.let_go(unnamed.clone());
    fs.link(&unnamed, &root, b"named", now(3)).unwrap();
    let id = fs.id(&file);
    fs.let_go(file);
    assert_eq!(fs.node(id).err().map(|error| error.kind()), Some(Kind::Stale));
    fs.let_go(unnamed);
    fs.unlink(&root, b"named", now(4)).unwrap();
    // An inode's chunk and a directory's block stay.
    assert!(fs.stat().free + 64 >= free, "{} of {free} blocks are free", fs.stat().free);
    // A pin is of DRAM only.
    let mapped = fs.create(&root, b"mapped", &new(FileKind::Regular)).unwrap();
    write(&fs, &mapped, WriteAt::Offset(0), &[7; 9000]);
    fs.pin(&mapped, nacre_engine::FileBlock(0), 3).unwrap();
    let id = fs.id(&mapped);
    fs.let_go(mapped);
    let mapped = fs.node(id).unwrap();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(fs.setattr(&mapped, &cut, now(5)).unwrap_err().kind(), Kind::Busy);
    fs.unpin(&mapped);
    fs.setattr(&mapped, &cut, now(6)).unwrap();
}

#[test]
fn what_somebody_has_does_not_leave() {
    each(what_is_held_stays, what_is_held_stays, what_is_held_stays, what_is_held_stays);
}

fn parked_inodes_outlive_their_names<S: Subject>(subject: S) {
    let (_pm, fs) = empty(&subject);
    let root = fs.root();
    let file = fs.create(&root, b"file", &new(FileKind::Regular)).unwrap();
    write(&fs, &file, WriteAt::Offset(0), &[7; 50_000]);
    let id = fs.id(&file);
    assert!(fs.park(file).is_none(), "it is kept");
    let_go(&fs, b"file");
    assert!(fs.node(id).is_ok(), "it is read again");
    let free = fs.stat().free;
    fs.unlink(&root, b"file", now(2)).unwrap();
    fs.create(&root, b"file", &new(FileKind::Regular)).unwrap();
    assert!(fs.stat().free <= free, "its blocks are its own");
    let found = fs.node_by_number(id.number).unwrap();
    assert_eq!((fs.id(&found), fs.getattr(&found).unwrap().links), (id, 0));
    assert_eq!(content(&fs, &found), [7; 50_000]);
    drop(found);
    assert!(fs.node_by_number(id.number).is_ok(), "still");
    fs.unpark(id.number);
    let gone = fs.node(id).err().map(|error| error.kind());
    assert_eq!(gone, Some(Kind::Stale));
    fs.unlink(&root, b"file", now(3)).unwrap();
    assert!(fs.stat().free >= free + 12, "they are given back");
    // One that has its name goes from DRAM, and is there.
    let loaded = fs.inode_cache().loaded;
    let other = fs.create(&root, b"other", &new(FileKind::Regular)).unwrap();
    let number = fs.id(&other).number;
    fs.park(other);
    fs.unpark(number);
    assert_eq!(fs.inode_cache().loaded, loaded);
    assert!(fs.lookup(&root, b"other").is_ok());
    // To end what was not begun does nothing.
    fs.unpark(number);
    assert!(fs.lookup(&root, b"other").is_ok());
}

#[test]
fn what_is_parked_outlives_its_names() {
    each(
        parked_inodes_outlive_their_names,
        parked_inodes_outlive_their_names,
        parked_inodes_outlive_their_names,
        parked_inodes_outlive_their_names,
    );
}

/// As many threads as there are use some files while others let go of them: no change is lost.
fn no_change_is_lost<S: Subject>(subject: S)
where
    S::Fs: Sync,
{
    const FILES: usize = 3;
    const RECORDS: usize = 200;
    let (pm, fs) = empty(&subject);
    let name = |file: usize| format!("file {file}").into_bytes();
    for file in 0..FILES {
        drop(fs.create(&fs.root(), &name(file), &new(FileKind::Regular)).unwrap());
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (fs, is_over) = (&fs, &is_over);
        let writers: Vec<_> = (0..2 * FILES)
            .map(|writer| {
                scope.spawn(move || {
                    for record in 0..RECORDS {
                        let node = fs.lookup(&fs.root(), &name(writer % FILES)).unwrap();
                        write(fs, &node, WriteAt::End, &[writer as u8 + 1; 30]);
                        if record % 50 == 7 {
                            fs.sync(&node).unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                (0..FILES).for_each(|file| let_go(fs, &name(file)));
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    for file in 0..FILES {
        let node = fs.lookup(&fs.root(), &name(file)).unwrap();
        let bytes = content(&fs, &node);
        let mut counts = [0; 2 * FILES + 1];
        for record in bytes.chunks(30) {
            assert!(record.iter().all(|byte| *byte == record[0]), "a record is whole");
            counts[usize::from(record[0])] += 1;
        }
        assert_eq!((counts[file + 1], counts[file + 1 + FILES]), (RECORDS, RECORDS), "file {file}");
    }
    subject.unmount(fs).unwrap();
    assert_eq!(subject.check(&pm, false).unwrap(), [""; 0]);
}

#[test]
fn no_change_is_lost_while_inodes_leave() {
    each(no_change_is_lost, no_change_is_lost, no_change_is_lost, no_change_is_lost);
}

/// More files than may be in DRAM: the rest leaves, by itself, and is found.
fn there_is_a_limit<F: Data + Extents>(fs: &F) {
    let limit = fs.inode_cache().limit;
    let count = 3 * limit as usize;
    let name = |file: usize| format!("file {file}").into_bytes();
    let held = fs.create(&fs.root(), b"held", &new(FileKind::Regular)).unwrap();
    for file in 0..count {
        let node = fs.create(&fs.root(), &name(file), &new(FileKind::Regular)).unwrap();
        if file % 8 == 0 {
            write(fs, &node, WriteAt::Offset(0), &[file as u8; 70]);
        }
        if file % 40 == 0 {
            fs.read(&node, 0, &mut [0; 70], Some(now(file as i64))).unwrap();
        }
    }
    comes_below(fs, limit);
    for file in (0..count).rev() {
        let node = fs.lookup(&fs.root(), &name(file)).unwrap();
        assert_eq!(content(fs, &node), vec![file as u8; if file % 8 == 0 { 70 } else { 0 }], "file {file}");
        if file % 40 == 0 {
            assert_eq!(fs.getattr(&node).unwrap().atime, now(file as i64), "file {file}");
        }
    }
    comes_below(fs, limit);
    write(fs, &held, WriteAt::End, b"whoever holds one has it");
}

fn comes_below<F: Names>(fs: &F, limit: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while fs.inode_cache().loaded > limit {
        assert!(Instant::now() < end, "{:?}", fs.inode_cache());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn beyond_the_limit_inodes_leave_the_log_layout() {
    let pm = Arc::new(SimPm::new(64 << 20));
    Log.mkfs(&pm).unwrap();
    let options = || nacre_layout_log::MountOptions {
        inode_cache: InodeCache::MIN_LIMIT,
        ..nacre_layout_log::MountOptions::default()
    };
    let fs = LogFs::mount(Arc::clone(&pm), &options()).unwrap();
    there_is_a_limit(&fs);
    fs.unmount().unwrap();
    assert_eq!(Log.check(&pm, false).unwrap(), [""; 0]);
    // Where nothing may change, too.
    let options = nacre_layout_log::MountOptions { read_only: true, ..options() };
    let fs = LogFs::mount(Arc::clone(&pm), &options).unwrap();
    only_looked_at(&fs);
}

#[test]
fn beyond_the_limit_inodes_leave_the_in_place_layout() {
    let pm = Arc::new(SimPm::new(64 << 20));
    Inplace.mkfs(&pm).unwrap();
    let options = |read_only| nacre_layout_inplace::MountOptions {
        read_only,
        inode_cache: InodeCache::MIN_LIMIT,
        ..nacre_layout_inplace::MountOptions::default()
    };
    let fs = InplaceFs::mount(Arc::clone(&pm), &options(false)).unwrap();
    there_is_a_limit(&fs);
    fs.unmount().unwrap();
    assert_eq!(Inplace.check(&pm, false).unwrap(), [""; 0]);
    only_looked_at(&InplaceFs::mount(Arc::clone(&pm), &options(true)).unwrap());
}

/// Here what is held is all that is in DRAM, whatever the limit.
#[test]
fn beyond_the_limit_inodes_leave_the_pool_layout() {
    let pm = Arc::new(SimPm::new(64 << 20));
    Pool.mkfs(&pm).unwrap();
    let options = |read_only| nacre_layout_pool::MountOptions {
        read_only,
        inode_cache: InodeCache::MIN_LIMIT,
        ..nacre_layout_pool::MountOptions::default()
    };
    let fs = PoolFs::mount(Arc::clone(&pm), &options(false)).unwrap();
    there_is_a_limit(&fs);
    fs.unmount().unwrap();
    assert_eq!(Pool.check(&pm, false).unwrap(), [""; 0]);
    only_looked_at(&PoolFs::mount(Arc::clone(&pm), &options(true)).unwrap());
}

#[test]
fn beyond_the_limit_inodes_leave_the_shadow_layout() {
    let pm = Arc::new(SimPm::new(64 << 20));
    Shadow.mkfs(&pm).unwrap();
    let options = |read_only| nacre_layout_shadow::MountOptions {
        read_only,
        inode_cache: InodeCache::MIN_LIMIT,
        ..nacre_layout_shadow::MountOptions::default()
    };
    let fs = ShadowFs::mount(Arc::clone(&pm), &options(false)).unwrap();
    there_is_a_limit(&fs);
    fs.unmount().unwrap();
    assert_eq!(Shadow.check(&pm, false).unwrap(), [""; 0]);
    only_looked_at(&ShadowFs::mount(Arc::clone(&pm), &options(true)).unwrap());
}

fn only_looked_at<F: Data>(fs: &F) {
    let mut names = Vec::new();
    fs.read_dir(&fs.root(), 0, &mut |entry| {
        names.push(entry.name.to_vec());
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert!(names.len() as u64 > 3 * InodeCache::MIN_LIMIT);
    for name in &names {
        fs.getattr_at(&fs.root(), name).unwrap();
    }
    comes_below(fs, InodeCache::MIN_LIMIT);
    names.iter().for_each(|name| let_go(fs, name));
    assert!(fs.inode_cache().loaded <= 1, "{:?}", fs.inode_cache());
}
