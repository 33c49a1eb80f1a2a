//! Paths and open files.

use std::io::{IoSlice, IoSliceMut, SeekFrom};
use std::ops::ControlFlow;

use crate::common::{ANN, BOB, Fs, ROOT, chmod, mkdir, mode, open_fs, refused, touch};
use nacre_engine::{FallocateMode, Kind, SeekTo, XattrMode};
use nacre_vfs::{Create, OpenFlags};

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    append: false,
    create: false,
    create_new: false,
    truncate: false,
    directory: false,
    nofollow: false,
    tmpfile: false,
    sync: false,
    dsync: false,
    path: false,
};
const CREATE: OpenFlags = OpenFlags { write: true, create: true, ..READ };

fn symlink(fs: &Fs, name: &str, target: &str) {
    fs.create(&ROOT, fs.root(), name.as_bytes(), &Create::symlink(target.as_bytes())).unwrap();
}

fn resolves(fs: &Fs, path: &str) -> nacre_engine::Result<u64> {
    fs.resolve(&ANN, fs.root(), path.as_bytes(), true).map(|node| fs.id(&node).number)
}

#[test]
fn a_path_is_walked_through_dots_slashes_and_links() {
    let fs = open_fs();
    let dir = mkdir(&fs, &ROOT, fs.root(), "d", 0o755);
    let file = touch(&fs, &ROOT, &dir, "f", 0o644);
    symlink(&fs, "to-d", "d");
    symlink(&fs, "to-f", "/to-d/./f");
    let number = fs.id(&file).number;
    for path in ["d/f", "/d/f", "//d///f", "./d/../d/f", "to-d/f", "to-f", "../../d/f"] {
        assert_eq!(resolves(&fs, path).unwrap(), number, "{path}");
    }
    let root = fs.id(fs.root()).number;
    for path in ["/", "///", ".", "..", "/..", "d/..", "to-d/.."] {
        assert_eq!(resolves(&fs, path).unwrap(), root, "{path}");
    }
    refused(resolves(&fs, ""), Kind::NotFound);
    refused(resolves(&fs, "d/f/"), Kind::NotDirectory);
    refused(resolves(&fs, "d/f/."), Kind::NotDirectory);
    refused(resolves(&fs, "d/f/.."), Kind::NotDirectory);
    refused(resolves(&fs, "d/f/g"), Kind::NotDirectory);
    refused(resolves(&fs, "to-f/"), Kind::NotDirectory);
    refused(resolves(&fs, "none/f"), Kind::NotFound);
    refused(resolves(&fs, &"x".repeat(256)), Kind::NameTooLong);
    refused(resolves(&fs, &"x/".repeat(2048)), Kind::NameTooLong);
    let link = fs.resolve(&ANN, fs.root(), b"to-d", false).unwrap();
    assert_eq!(fs.read_link(&link).unwrap(), b"d");
    let followed = fs.resolve(&ANN, fs.root(), b"to-d/", false).unwrap();
    assert_eq!(fs.id(&followed), fs.id(&dir), "a slash follows the link");
}

#[test]
fn forty_links_are_followed_and_no_more() {
    let fs = open_fs();
    touch(&fs, &ROOT, fs.root(), "0", 0o644);
    for link in 1..=41 {
        symlink(&fs, &link.to_string(), &(link - 1).to_string());
    }
    assert!(resolves(&fs, "40").is_ok());
    refused(resolves(&fs, "41"), Kind::TooManySymlinks);
    symlink(&fs, "loop", "loop");
    refused(resolves(&fs, "loop"), Kind::TooManySymlinks);
    refused(fs.open(&ANN, fs.root(), b"loop", CREATE, 0o644), Kind::TooManySymlinks);
}

#[test]
fn every_directory_on_the_way_must_let_one_through() {
    let fs = open_fs();
    let dir = mkdir(&fs, &ANN, fs.root(), "d", 0o700);
    touch(&fs, &ANN, &dir, "f", 0o666);
    refused(fs.resolve(&BOB, fs.root(), b"d/f", true), Kind::AccessDenied);
    refused(fs.resolve(&BOB, fs.root(), b"d/.", true), Kind::AccessDenied);
    assert!(fs.resolve(&ROOT, fs.root(), b"d/f", true).is_ok());
}

#[test]
fn opening_makes_cuts_and_refuses_as_asked() {
    let fs = open_fs();
    let file = fs.open(&ANN, fs.root(), b"f", CREATE, 0o666).unwrap();
    assert_eq!(mode(&fs, file.node()), 0o644);
    file.write(&fs, b"content").unwrap();
    let new = OpenFlags { create_new: true, write: true, ..READ };
    refused(fs.open(&ANN, fs.root(), b"f", new, 0o666), Kind::Exists);
    let cut = OpenFlags { truncate: true, write: true, ..READ };
    assert_eq!(fs.open(&ANN, fs.root(), b"f", cut, 0).unwrap().getattr(&fs).unwrap().size, 0);
    refused(fs.open(&BOB, fs.root(), b"f", CREATE, 0o666), Kind::AccessDenied);
    assert!(fs.open(&BOB, fs.root(), b"f", READ, 0).is_ok());
    mkdir(&fs, &ANN, fs.root(), "d", 0o755);
    refused(fs.open(&ANN, fs.root(), b"d", CREATE, 0o666), Kind::IsDirectory);
    refused(fs.open(&ANN, fs.root(), b"new/", CREATE, 0o666), Kind::IsDirectory);
    let directory = OpenFlags { directory: true, ..READ };
    refused(fs.open(&ANN, fs.root(), b"f", directory, 0), Kind::NotDirectory);
    assert!(fs.open(&ANN, fs.root(), b"d", directory, 0).is_ok());
    symlink(&fs, "dangling", "made");
    refused(fs.open(&ANN, fs.root(), b"dangling", new, 0o666), Kind::Exists);
    let nofollow = OpenFlags { nofollow: true, ..READ };
    refused(fs.open(&ANN, fs.root(), b"dangling", nofollow, 0), Kind::TooManySymlinks);
    let held = OpenFlags { nofollow: true, path: true, ..OpenFlags::default() };
    let link = fs.open(&ANN, fs.root(), b"dangling", held, 0).unwrap();
    refused(link.read_at(&fs, &mut [0], 0), Kind::BadHandle);
    fs.open(&ANN, fs.root(), b"dangling", CREATE, 0o666).unwrap();
    assert!(resolves(&fs, "made").is_ok(), "made through the link");
    refused(fs.open(&ANN, fs.root(), b"f", OpenFlags::default(), 0), Kind::InvalidInput);
}

#[test]
fn an_unnamed_file_can_be_given_a_name() {
    let fs = open_fs();
    let flags = OpenFlags { tmpfile: true, write: true, ..READ };
    let file = fs.open(&ANN, fs.root(), b".", flags, 0o600).unwrap();
    file.write(&fs, b"kept").unwrap();
    fs.link(&ANN, file.node(), fs.root(), b"named").unwrap();
    let mut buf = [0; 8];
    let again = fs.open(&ANN, fs.root(), b"named", READ, 0).unwrap();
    assert_eq!(again.read(&fs, &mut buf).unwrap(), 4);
    assert_eq!(&buf[..4], b"kept");
}

#[test]
fn a_handle_reads_and_writes_where_it_stands() {
    let fs = open_fs();
    let file = fs.open(&ANN, fs.root(), b"f", CREATE, 0o644).unwrap();
    let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two")];
    assert_eq!(file.writev(&fs, &parts).unwrap(), 7);
    assert_eq!(file.write_at(&fs, b"!", 7).unwrap(), 1);
    assert_eq!((file.offset(), file.seek(&fs, SeekFrom::End(-4)).unwrap()), (7, 4));
    let (mut a, mut b) = ([0; 2], [0; 8]);
    let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(file.readv(&fs, &mut bufs).unwrap(), 4);
    assert_eq!((&a, &b[..2]), (b"tw", &b"o!"[..]));
    refused(file.seek(&fs, SeekFrom::Current(-9)), Kind::InvalidInput);
    assert_eq!(file.offset(), 8);
    file.set_len(&fs, 3).unwrap();
    assert_eq!(file.read(&fs, &mut a).unwrap(), 0);

    let log = fs.open(&ANN, fs.root(), b"f", OpenFlags { append: true, ..READ }, 0).unwrap();
    assert_eq!(log.write_at(&fs, b"+", 0).unwrap(), 1);
    assert_eq!(log.write(&fs, b"-").unwrap(), 1);
    assert_eq!((log.offset(), log.append(&fs, &[IoSlice::new(b"*")]).unwrap()), (5, 5));
    let mut all = [0; 8];
    assert_eq!(log.read_at(&fs, &mut all, 0).unwrap(), 6);
    assert_eq!(&all[..6], b"one+-*");
}

#[test]
fn a_handle_is_held_to_how_it_was_opened() {
    let fs = open_fs();
    touch(&fs, &ANN, fs.root(), "f", 0o644);
    let reader = fs.open(&ANN, fs.root(), b"f", READ, 0).unwrap();
    refused(reader.write(&fs, b"x"), Kind::BadHandle);
    refused(reader.set_len(&fs, 1), Kind::InvalidInput);
    refused(reader.fallocate(&fs, FallocateMode::Allocate, 0, 1), Kind::BadHandle);
    let write = OpenFlags { write: true, ..OpenFlags::default() };
    let writer = fs.open(&ANN, fs.root(), b"f", write, 0).unwrap();
    refused(writer.read(&fs, &mut [0]), Kind::BadHandle);
    chmod(&fs, &ANN, writer.node(), 0o400).unwrap();
    writer.write_at(&fs, b"x", 8191).unwrap();
    writer.fallocate(&fs, FallocateMode::PunchHole, 0, 4096).unwrap();
    assert_eq!(writer.seek_content(&fs, 0, SeekTo::Data).unwrap(), 4096);
    refused(writer.fallocate(&fs, FallocateMode::Allocate, 0, 0), Kind::InvalidInput);
    let dir = fs.open(&ANN, fs.root(), b".", READ, 0).unwrap();
    refused(dir.read(&fs, &mut [0]), Kind::IsDirectory);
    let mut names = Vec::new();
    dir.read_dir(&fs, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(names, [b".".to_vec(), b"..".to_vec(), b"f".to_vec()]);
}

/// A handle remembers that it has nothing to drop; it must look again when somebody gives a file set-id bits.
#[test]
fn set_id_bits_that_come_after_the_first_write_go_with_the_next() {
    let fs = open_fs();
    let file = fs.open(&ANN, fs.root(), b"f", CREATE, 0o755).unwrap();
    file.write(&fs, b"x").unwrap();
    chmod(&fs, &ANN, file.node(), 0o4755).unwrap();
    fs.set_xattr(&ROOT, file.node(), b"security.capability", b"c", XattrMode::Set).unwrap();
    file.write(&fs, b"x").unwrap();
    assert_eq!(mode(&fs, file.node()), 0o755);
    refused(fs.get_xattr(&ROOT, file.node(), b"security.capability"), Kind::NoAttribute);
}

#[test]
fn cookies_continue_where_they_say() {
    let fs = open_fs();
    for name in ["a", "b", "c"] {
        touch(&fs, &ANN, fs.root(), name, 0o644);
    }
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let before = names.len();
        fs.read_dir(&ANN, fs.root(), cookie, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            cookie = entry.cookie;
            ControlFlow::Break(())
        })
        .unwrap();
        if names.len() == before {
            break;
        }
    }
    names[2..].sort();
    assert_eq!(names, [".", "..", "a", "b", "c"]);
}
