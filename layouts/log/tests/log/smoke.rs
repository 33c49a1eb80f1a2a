//! The life of a file system in one test: everything once, remounted in order and after a crash.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::{
    Data, Durability, FileKind, Kind, Names, NewInode, RenameMode, SetAttr, Timestamp, WriteAt,
};
use nacre_layout_log::check::check;
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::SimPm;

type Fs = LogFs<SimPm>;

fn now(secs: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + secs, 7)
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode { kind, mode: 0o644, uid: 1, gid: 2, rdev: 0, target: b"", xattrs: &[], now: now(0) }
}

fn mount(pm: &Arc<SimPm>) -> Fs {
    let options = MountOptions { background: false, lanes: Some(2), ..MountOptions::default() };
    LogFs::mount(Arc::clone(pm), &options).unwrap()
}

fn put(fs: &Fs, node: &Node, offset: u64, bytes: &[u8]) {
    fs.write(node, WriteAt::Offset(offset), &[IoSlice::new(bytes)], Durability::Now, now(1)).unwrap();
}

fn get(fs: &Fs, node: &Node) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(node).unwrap().size as usize];
    assert_eq!(fs.read(node, 0, &mut bytes, Some(now(2))).unwrap(), bytes.len());
    bytes
}

fn names(fs: &Fs, dir: &Node) -> Vec<String> {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        ControlFlow::Continue(())
    })
    .unwrap();
    names.sort();
    names
}

fn build(fs: &Fs) {
    let root = fs.root();
    let dir = fs.create(&root, b"dir", &new(FileKind::Directory)).unwrap();
    let file = fs
        .create(
            &dir,
            b"a file with a name that is longer than one line of an entry can hold it",
            &new(FileKind::Regular),
        )
        .unwrap();
    put(fs, &file, 0, b"hello");
    put(fs, &file, 5, b" world");
    put(fs, &file, 100_000, b"far");
    for i in 0..200u32 {
        put(fs, &file, u64::from(i % 7) * 5000, &[i as u8; 3000]);
    }
    fs.link(&file, &root, b"second", now(3)).unwrap();
    let link =
        fs.create(&root, b"link", &NewInode { target: b"dir/somewhere", ..new(FileKind::Symlink) }).unwrap();
    assert_eq!(fs.read_link(&link).unwrap(), b"dir/somewhere");
    for i in 0..300 {
        let name = format!("file-{i}");
        fs.create(&dir, name.as_bytes(), &new(FileKind::Regular)).unwrap();
    }
    for i in 0..290 {
        fs.unlink(&dir, format!("file-{i}").as_bytes(), now(4)).unwrap();
    }
    let sub = fs.create(&dir, b"sub", &new(FileKind::Directory)).unwrap();
    fs.rename(&dir, b"file-295", &sub, b"moved", RenameMode::Replace, now(5)).unwrap();
    fs.rename(&dir, b"file-296", &dir, b"file-297", RenameMode::Replace, now(5)).unwrap();
    fs.rename(&dir, b"sub", &root, b"sub", RenameMode::Replace, now(5)).unwrap();
    fs.rename(&root, b"second", &dir, b"file-298", RenameMode::Exchange, now(5)).unwrap();
    fs.set_xattr(&file, b"user.big", &[9; 60_000], nacre_engine::XattrMode::Set, None, now(6)).unwrap();
    fs.set_xattr(&file, b"user.small", b"value", nacre_engine::XattrMode::Create, None, now(6)).unwrap();
    fs.setattr(&file, &SetAttr { mode: Some(0o600), size: Some(50_001), ..SetAttr::default() }, now(7))
        .unwrap();
    put(fs, &file, 60_000, b"again");
}

fn verify(fs: &Fs) {
    let root = fs.root();
    assert_eq!(names(fs, &root), ["dir", "link", "second", "sub"]);
    let dir = fs.lookup(&root, b"dir").unwrap();
    let expected = [
        "a file with a name that is longer than one line of an entry can hold it",
        "file-290",
        "file-291",
        "file-292",
        "file-293",
        "file-294",
        "file-297",
        "file-298",
        "file-299",
    ];
    assert_eq!(names(fs, &dir), expected);
    let file = fs.lookup(&dir, expected[0].as_bytes()).unwrap();
    assert_eq!(fs.getattr(&file).unwrap().links, 2);
    assert_eq!(fs.getattr(&file).unwrap().mode, 0o600);
    let mut content = vec![0u8; 60_005];
    content[..11].copy_from_slice(b"hello world");
    for i in 0..200usize {
        content[i % 7 * 5000..][..3000].fill(i as u8);
    }
    content[50_001..].fill(0);
    content[60_000..].copy_from_slice(b"again");
    assert!(get(fs, &file) == content);
    assert_eq!(fs.get_xattr(&file, b"user.big").unwrap(), vec![9; 60_000]);
    assert_eq!(fs.get_xattr(&file, b"user.small").unwrap(), b"value");
    assert_eq!(fs.id(&fs.lookup(&dir, b"file-298").unwrap()), fs.id(&file));
    let sub = fs.lookup(&root, b"sub").unwrap();
    assert_eq!(names(fs, &sub), ["moved"]);
    assert_eq!(fs.id(&fs.parent(&sub).unwrap()), fs.id(&root));
    assert_eq!(fs.lookup(&dir, b"file-295").unwrap_err().kind(), Kind::NotFound);
    assert_eq!(fs.rmdir(&root, b"sub", now(9)).unwrap_err().kind(), Kind::NotEmpty);
}

#[test]
fn everything_survives_unmount_and_crash() {
    let pm = Arc::new(SimPm::new(32 << 20));
    mkfs(&*pm, &MkfsOptions { label: "smoke".into(), ..MkfsOptions::default() }).unwrap();
    let fs = mount(&pm);
    build(&fs);
    verify(&fs);
    fs.abandon();
    let report = check(&*pm, false).unwrap();
    assert_eq!(report.problems, []);
    let fs = mount(&pm);
    assert!(fs.recovery().walked);
    verify(&fs);
    fs.unmount().unwrap();
    let report = check(&*pm, false).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.summary.clean);
    let fs = mount(&pm);
    assert!(!fs.recovery().walked);
    verify(&fs);
    fs.unmount().unwrap();
}

/// With half of the device free but no two blocks in a row, files can still be made: their inodes are scattered.
#[test]
fn inodes_fit_between_scattered_blocks() {
    let pm = Arc::new(SimPm::new(16 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = mount(&pm);
    let root = fs.root();
    let big = fs.create(&root, b"big", &new(FileKind::Regular)).unwrap();
    let mut blocks = 0u64;
    let block = [7u8; 4096];
    let write =
        |offset| fs.write(&big, WriteAt::Offset(offset), &[IoSlice::new(&block)], Durability::Now, now(1));
    while write(blocks * 4096).is_ok() {
        blocks += 1;
    }
    for hole in (0..blocks).step_by(2) {
        fs.fallocate(&big, nacre_engine::FallocateMode::PunchHole, hole * 4096, 4096, now(2)).unwrap();
    }
    for i in 0..1500 {
        fs.create(&root, format!("{i}").as_bytes(), &new(FileKind::Regular)).unwrap();
    }
    fs.abandon();
    assert_eq!(check(&*pm, false).unwrap().problems, []);
    let fs = mount(&pm);
    assert_eq!(names(&fs, &fs.root()).len(), 1501);
    let big = fs.lookup(&fs.root(), b"big").unwrap();
    let mut byte = [0];
    for at in [1, 2, blocks - 1] {
        fs.read(&big, at * 4096, &mut byte, None).unwrap();
        assert_eq!(byte[0], if at % 2 == 0 { 0 } else { 7 });
    }
    fs.unmount().unwrap();
    assert_eq!(check(&*pm, false).unwrap().problems, []);
}
