//! Writeback of a write buffer to a layout.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    Attr, BelowBuffer, Data, Durability, FileKind, Kind, Names, NewInode, SetAttr, Timestamp, WriteAt,
    WriteShape, XattrMode,
};
use nacre_lab::crash::{Inplace, Log, Mounting, Pool, Shadow, Subject};
use nacre_media::SimPm;

fn now(secs: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + secs, 7)
}

fn get<S: Data>(fs: &S, node: &S::Node) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(node).unwrap().size as usize];
    assert_eq!(fs.read(node, 0, &mut bytes, None).unwrap(), bytes.len());
    bytes
}

#[test]
fn the_log_layout_writes_back() {
    accepted_data_is_written_back_after_other_changes(Log);
}

#[test]
fn the_in_place_layout_writes_back() {
    accepted_data_is_written_back_after_other_changes(Inplace);
}

#[test]
fn the_pool_layout_writes_back() {
    accepted_data_is_written_back_after_other_changes(Pool);
}

#[test]
fn the_shadow_layout_writes_back() {
    accepted_data_is_written_back_after_other_changes(Shadow);
}

/// A write buffer accepts a write, and before it comes here the file is made immutable, gets a name, gets an attribute: what
/// was accepted is written all the same, and what was done since is not undone. An unmount failed with `NotPermitted`
/// once, and a ctime went back to the write's.
fn accepted_data_is_written_back_after_other_changes<S: Subject>(subject: S) {
    let pm = Arc::new(SimPm::new(16 << 20));
    subject.mkfs(&pm).unwrap();
    let fs = subject.mount(&pm, Mounting::default()).unwrap();
    let root = fs.root();
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 1,
        gid: 2,
        rdev: 0,
        target: b"",
        xattrs: &[],
        now: now(0),
    };
    let file = fs.create(&root, b"file", &new).unwrap();
    let write = |offset, byte: u8, how, secs| {
        fs.write(&file, WriteAt::Offset(offset), &[IoSlice::new(&[byte; 5000])], how, now(secs))
    };
    let reservation = fs.reserve_for(&WriteShape { blocks: 8, groups: 4, files: 1, extra: 0 }).unwrap();
    let write_back = |offset, byte: u8, secs| {
        fs.write_back(&file, offset, &[IoSlice::new(&[byte; 5000])], &reservation, now(secs))
    };
    let settle = |secs| {
        fs.write_back_times(&file, now(secs), None, &reservation, now(secs))?;
        fs.getattr(&file).map(|attr| (attr.mtime, attr.ctime, attr.flags))
    };
    for (turn, flags) in [Attr::IMMUTABLE, Attr::APPEND_ONLY].into_iter().enumerate() {
        let since = 20 + turn as i64;
        let protect = SetAttr { flags: Some(flags), ..SetAttr::default() };
        fs.setattr(&file, &protect, now(since)).unwrap();
        write_back(turn as u64 * 10_000, 7, 3).unwrap();
        assert_eq!(fs.getattr(&file).unwrap().ctime, now(since));
        assert_eq!(settle(4).unwrap(), (now(4), now(since), flags));
        assert_eq!(write(0, 9, Durability::Now, 30).unwrap_err().kind(), Kind::NotPermitted);
        let touch = SetAttr { mtime: Some(now(30)), ..SetAttr::default() };
        assert_eq!(fs.setattr(&file, &touch, now(30)).unwrap_err().kind(), Kind::NotPermitted);
    }
    fs.setattr(&file, &SetAttr { flags: Some(0), ..SetAttr::default() }, now(40)).unwrap();
    fs.set_xattr(&file, b"user.name", b"value", XattrMode::Set, None, now(41)).unwrap();
    write_back(5000, 8, 5).unwrap();
    assert_eq!(settle(5).unwrap(), (now(5), now(41), 0));
    fs.link(&file, &root, b"second", now(42)).unwrap();
    write_back(20_000, 8, 6).unwrap();
    assert_eq!(settle(6).unwrap(), (now(6), now(42), 0));
    let contents = get(&fs, &file);
    assert!(
        [(0, 7), (5000, 8), (10_000, 7), (15_000, 0), (20_000, 8)]
            .iter()
            .all(|&(at, byte)| contents[at] == byte)
    );
    drop((file, reservation));
    subject.unmount(fs).unwrap();
    let fs = subject.mount(&pm, Mounting::default()).unwrap();
    let file = fs.lookup(&fs.root(), b"second").unwrap();
    let attr = fs.getattr(&file).unwrap();
    assert_eq!((attr.mtime, attr.ctime, attr.size), (now(6), now(42), 25_000));
    assert_eq!(get(&fs, &file), contents);
    drop(file);
    subject.unmount(fs).unwrap();
    assert!(subject.check(&pm, false).unwrap().is_empty());
}
