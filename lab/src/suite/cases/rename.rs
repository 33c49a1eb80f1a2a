//! rename in all its modes.

use nacre_engine::{FileKind, Kind, RenameMode};

use super::super::fs::{Fs, View, read_exactly};
use super::super::runner::Case;
use super::super::target::{Need, Open};
use super::{ALICE, assert_times, case};

pub(super) const CASES: &[Case] = &[
    case("rename-file", &[], file),
    case("rename-directory", &[], directory),
    case("rename-other-kinds", &[], other_kinds),
    case("rename-replaces", &[], replaces),
    case("rename-replaces-open", &[], replaces_open),
    case("rename-replaces-one-of-two-names", &[], replaces_linked),
    case("rename-same-inode", &[], same_inode),
    case("rename-directory-over-directory", &[], over_directory),
    case("rename-wrong-kinds", &[], wrong_kinds),
    case("rename-below-itself", &[], below_itself),
    case("rename-errors", &[], errors),
    case("rename-no-replace", &[], no_replace),
    case("rename-exchange", &[Need::Exchange], exchange),
    case("rename-exchange-directories", &[Need::Exchange], exchange_directories),
    case("rename-exchange-errors", &[Need::Exchange], exchange_errors),
    case("rename-whiteout", &[Need::Whiteout], whiteout),
    case("rename-whiteout-owner", &[Need::Whiteout, Need::Users], whiteout_owner),
    case("rename-whiteout-remount", &[Need::Whiteout, Need::Remount], whiteout_remount),
    case("rename-times", &[], times),
    case("rename-open-file", &[], open_file),
    case("rename-often", &[], often),
    case("rename-through-symlink", &[], through_symlink),
    case("rename-remount", &[Need::Remount, Need::Exchange], remount),
];

fn file(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.write_file("a", b"content");
    let number = fs.stat("a").number;
    fs.rename("a", "b").unwrap();
    assert!(!fs.exists("a"));
    fs.rename("b", "dir/c").unwrap();
    assert!(!fs.exists("b"));
    assert_eq!((fs.stat("dir/c").number, fs.stat("dir/c").links), (number, 1));
    assert_eq!(fs.read_file("dir/c"), b"content");
    fs.rename("dir/c", "a").unwrap();
    assert_eq!(fs.names(""), [&b"a"[..], b"dir"]);
    assert!(fs.names("dir").is_empty());
}

fn directory(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("old");
    fs.directory("new");
    fs.directory("old/moving");
    fs.directory("old/moving/inner");
    fs.write_file("old/moving/inner/file", b"deep");
    fs.rename("old/moving", "new/moved").unwrap();
    assert_eq!((fs.stat("old").links, fs.stat("new").links), (2, 3));
    assert_eq!(fs.read_file("new/moved/inner/file"), b"deep");
    assert_eq!(fs.stat("new/moved/..").number, fs.stat("new").number, "its parent is another");
    assert_eq!(fs.rmdir("new"), Err(Kind::NotEmpty));
    fs.rename("new/moved", "new/again").unwrap();
    assert_eq!(fs.stat("new").links, 3);
    fs.rmdir("old").unwrap();
}

fn other_kinds(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.symlink("nowhere", "link").unwrap();
    fs.mknod("fifo", FileKind::Fifo, 0o600, 0).unwrap();
    fs.rename("link", "dir/link").unwrap();
    fs.rename("fifo", "dir/fifo").unwrap();
    assert_eq!(fs.read_link("dir/link").unwrap(), b"nowhere");
    assert_eq!(fs.stat("dir/fifo").kind, FileKind::Fifo);
    fs.write_file("file", b"1");
    fs.rename("file", "dir/link").unwrap();
    assert_eq!(fs.read_file("dir/link"), b"1", "the link itself was replaced");
    fs.rename("dir/fifo", "dir/link").unwrap();
    assert_eq!(fs.names("dir"), [b"link"]);
}

fn replaces(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    for round in 0..20 {
        fs.write_file("new", format!("round {round}").as_bytes());
        let target = if round % 2 == 0 { "target" } else { "dir/target" };
        fs.write_file("target", b"old");
        fs.write_file("dir/target", b"old");
        let number = fs.stat("new").number;
        fs.rename("new", target).unwrap();
        assert!(!fs.exists("new"));
        assert_eq!(fs.stat(target).number, number);
        assert_eq!(fs.read_file(target), format!("round {round}").as_bytes());
    }
    assert_eq!(fs.names(""), [&b"dir"[..], b"target"]);
}

fn replaces_open(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("target", b"old content");
    fs.write_file("new", b"new content");
    let old = fs.opened("target", Open::BOTH);
    fs.rename("new", "target").unwrap();
    assert_eq!(old.stat().unwrap().links, 0);
    assert_eq!(read_exactly(old.as_ref(), 0, 11), b"old content");
    old.write_at(0, b"OLD").unwrap();
    assert_eq!(fs.read_file("target"), b"new content");
    assert_eq!(read_exactly(old.as_ref(), 0, 11), b"OLD content");
}

fn replaces_linked(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("target", b"kept");
    fs.link("target", "other").unwrap();
    fs.touch("new");
    fs.rename("new", "target").unwrap();
    assert_eq!((fs.stat("other").links, fs.read_file("other")), (1, b"kept".to_vec()));
    assert_eq!(fs.stat("target").links, 1);
}

fn same_inode(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.write_file("a", b"1");
    fs.link("a", "b").unwrap();
    fs.link("a", "dir/c").unwrap();
    assert_eq!(fs.rename("a", "a"), Ok(()));
    assert_eq!(fs.rename("a", "b"), Ok(()));
    assert_eq!(fs.rename("a", "dir/c"), Ok(()));
    assert_eq!(fs.stat("a").links, 3, "nothing happened");
    assert_eq!(fs.names(""), [&b"a"[..], b"b", b"dir"]);
    assert_eq!(fs.rename("dir", "dir"), Ok(()));
}

fn over_directory(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for name in ["from", "to", "to/empty", "to/full"] {
        fs.directory(name);
    }
    fs.touch("to/full/file");
    fs.directory("from/dir");
    fs.touch("from/dir/file");
    assert_eq!(fs.rename("from/dir", "to/full"), Err(Kind::NotEmpty));
    assert_eq!((fs.stat("from").links, fs.stat("to").links), (3, 4));
    assert_eq!(fs.rename("from/dir", "to/empty"), Ok(()));
    assert_eq!((fs.stat("from").links, fs.stat("to").links), (2, 4));
    assert_eq!(fs.names("to/empty"), [b"file"]);
    assert_eq!(fs.rename("to/empty", "to/full"), Err(Kind::NotEmpty));
    fs.unlink("to/full/file").unwrap();
    assert_eq!(fs.rename("to/empty", "to/full"), Ok(()));
    assert_eq!(fs.stat("to").links, 3);
}

fn wrong_kinds(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.directory("full");
    fs.touch("full/file");
    fs.touch("file");
    fs.symlink("dir", "link").unwrap();
    assert_eq!(fs.rename("dir", "file"), Err(Kind::NotDirectory));
    assert_eq!(fs.rename("dir", "link"), Err(Kind::NotDirectory));
    assert_eq!(fs.rename("file", "dir"), Err(Kind::IsDirectory));
    assert_eq!(fs.rename("file", "full"), Err(Kind::IsDirectory));
    assert_eq!(fs.rename("link", "dir"), Err(Kind::IsDirectory));
    assert_eq!(fs.names(""), [&b"dir"[..], b"file", b"full", b"link"]);
}

fn below_itself(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("a");
    fs.directory("a/b");
    fs.directory("a/b/c");
    fs.touch("a/b/file");
    assert_eq!(fs.rename("a", "a/new"), Err(Kind::InvalidInput));
    assert_eq!(fs.rename("a", "a/b/new"), Err(Kind::InvalidInput));
    assert_eq!(fs.rename("a", "a/b/c"), Err(Kind::InvalidInput));
    assert_eq!(fs.rename("a/b", "a/b/c/d"), Err(Kind::InvalidInput));
    assert_eq!(fs.rename("a/b/c", "a"), Err(Kind::NotEmpty));
    assert_eq!(
        fs.rename("a/b/file", "a/b"),
        Err(Kind::NotEmpty),
        "an ancestor, before its kind is looked at"
    );
    assert_eq!(fs.rename("a/b/c", "a/c"), Ok(()), "upwards is fine");
}

fn errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"1");
    fs.directory("dir");
    assert_eq!(fs.rename("no", "new"), Err(Kind::NotFound));
    assert_eq!(fs.rename("no", "file"), Err(Kind::NotFound));
    assert_eq!(fs.rename("file", "no/new"), Err(Kind::NotFound));
    assert_eq!(fs.rename("no/file", "new"), Err(Kind::NotFound));
    assert_eq!(fs.read_file("file"), b"1");
}

fn no_replace(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("a", b"a");
    fs.write_file("b", b"b");
    fs.directory("dir");
    fs.link("a", "link").unwrap();
    let mode = RenameMode::NoReplace;
    for target in ["b", "dir", "a", "link"] {
        assert_eq!(fs.rename_mode("a", target, mode), Err(Kind::Exists), "{target}");
    }
    assert_eq!(fs.rename_mode("dir", "b", mode), Err(Kind::Exists));
    assert_eq!(fs.rename_mode("no", "b", mode), Err(Kind::NotFound));
    assert_eq!(fs.read_file("b"), b"b");
    assert_eq!(fs.rename_mode("a", "new", mode), Ok(()));
    assert_eq!(fs.rename_mode("new", "dir/new", mode), Ok(()));
    assert_eq!(fs.rename_mode("dir", "moved", mode), Ok(()));
    assert_eq!(fs.read_file("moved/new"), b"a");
}

fn exchange(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mode = RenameMode::Exchange;
    fs.directory("dir");
    fs.write_file("a", b"content a");
    fs.write_file("b", b"content b");
    fs.write_file("dir/c", b"content c");
    fs.rename_mode("a", "b", mode).unwrap();
    assert_eq!((fs.read_file("a"), fs.read_file("b")), (b"content b".to_vec(), b"content a".to_vec()));
    fs.rename_mode("a", "dir/c", mode).unwrap();
    assert_eq!((fs.read_file("a"), fs.read_file("dir/c")), (b"content c".to_vec(), b"content b".to_vec()));
    assert_eq!(fs.rename_mode("a", "a", mode), Ok(()));
    fs.link("a", "a2").unwrap();
    assert_eq!(fs.rename_mode("a", "a2", mode), Ok(()));
    assert_eq!(fs.stat("a").links, 2);
    fs.symlink("t", "link").unwrap();
    fs.rename_mode("link", "b", mode).unwrap();
    assert_eq!(fs.read_link("b").unwrap(), b"t");
    assert_eq!(fs.read_file("link"), b"content a");
}

fn exchange_directories(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mode = RenameMode::Exchange;
    for name in ["left", "right", "left/dir", "left/dir/inner", "right/dir"] {
        fs.directory(name);
    }
    fs.write_file("right/file", b"file");
    fs.touch("right/dir/mark");
    fs.rename_mode("left/dir", "right/dir", mode).unwrap();
    assert_eq!((fs.stat("left").links, fs.stat("right").links), (3, 3));
    assert_eq!(
        (fs.names("left/dir"), fs.names("right/dir")),
        (vec![b"mark".to_vec()], vec![b"inner".to_vec()])
    );
    assert_eq!(fs.stat("left/dir/..").number, fs.stat("left").number);
    fs.rename_mode("left/dir", "right/file", mode).unwrap();
    assert_eq!((fs.stat("left").links, fs.stat("right").links), (2, 4), "a directory for a file");
    assert_eq!(fs.read_file("left/dir"), b"file");
    assert_eq!(fs.stat("right/file/..").number, fs.stat("right").number);
    assert_eq!(fs.names("right/file"), [b"mark"]);
}

fn exchange_errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mode = RenameMode::Exchange;
    fs.directory("dir");
    fs.directory("dir/inner");
    fs.touch("file");
    assert_eq!(fs.rename_mode("file", "no", mode), Err(Kind::NotFound));
    assert_eq!(fs.rename_mode("no", "file", mode), Err(Kind::NotFound));
    assert_eq!(fs.rename_mode("dir", "dir/inner", mode), Err(Kind::InvalidInput));
    assert_eq!(fs.rename_mode("dir/inner", "dir", mode), Err(Kind::InvalidInput));
    assert_eq!(fs.names(""), [&b"dir"[..], b"file"]);
}

fn is_whiteout(fs: View<'_>, path: &str) -> bool {
    let stat = fs.stat(path);
    (stat.kind, stat.rdev, stat.mode, stat.links) == (FileKind::CharDevice, 0, 0, 1)
}

fn whiteout(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mode = RenameMode::WHITEOUT;
    fs.directory("dir");
    fs.write_file("a", b"content");
    fs.rename_mode("a", "b", mode).unwrap();
    assert!(is_whiteout(fs, "a"));
    assert_eq!(fs.read_file("b"), b"content");
    fs.write_file("dir/old", b"replaced");
    let number = fs.stat("b").number;
    fs.rename_mode("b", "dir/old", mode).unwrap();
    assert!(is_whiteout(fs, "b"));
    assert_eq!((fs.stat("dir/old").number, fs.stat("dir/old").links), (number, 1));
    assert_ne!(fs.stat("a").number, fs.stat("b").number, "each rename leaves a new one");
    assert_eq!(fs.names(""), [&b"a"[..], b"b", b"dir"]);
    fs.directory("moves");
    fs.write_file("moves/inner", b"deep");
    fs.rename_mode("moves", "dir/moved", mode).unwrap();
    assert!(is_whiteout(fs, "moves"));
    assert_eq!(fs.read_file("dir/moved/inner"), b"deep");
    assert_eq!(fs.stat("dir").links, 3);
    fs.link("dir/old", "link").unwrap();
    assert_eq!(fs.rename_mode("dir/old", "link", mode), Ok(()), "two names of one inode");
    assert_eq!((fs.stat("dir/old").number, fs.stat("link").number), (number, number));
    assert_eq!(fs.rename_mode("no", "new", mode), Err(Kind::NotFound));
    assert_eq!(fs.rename_mode("link", "dir", mode), Err(Kind::IsDirectory));
    assert_eq!(fs.rename_mode("dir", "dir/moved/below", mode), Err(Kind::InvalidInput));
    fs.rename_mode("a", "dir/a", mode).unwrap();
    assert!(is_whiteout(fs, "a") && is_whiteout(fs, "dir/a"), "a whiteout moves like any other inode");
    for name in ["a", "b", "moves", "dir/a"] {
        fs.unlink(name).unwrap();
    }
    assert_eq!(fs.names(""), [&b"dir"[..], b"link"]);
}

fn whiteout_owner(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for (name, mode, group) in [("plain", 0o755, ALICE.gid), ("group", 0o2755, 55)] {
        fs.directory(name);
        fs.chown(name, Some(ALICE.uid), Some(55)).unwrap();
        fs.chmod(name, mode).unwrap();
        fs.as_user(ALICE, |fs| {
            fs.touch(format!("{name}/file"));
            fs.rename_mode(format!("{name}/file"), format!("{name}/moved"), RenameMode::WHITEOUT).unwrap();
        });
        let left = fs.stat(format!("{name}/file"));
        assert_eq!((left.uid, left.gid), (ALICE.uid, group), "{name}");
    }
}

fn whiteout_remount(fs: &mut Fs<'_>) {
    let view = fs.view();
    view.directory("dir");
    view.write_file("a", b"a");
    view.write_file("b", b"b");
    view.rename_mode("a", "dir/a", RenameMode::WHITEOUT).unwrap();
    view.rename_mode("b", "c", RenameMode::WHITEOUT).unwrap();
    fs.remount();
    let view = fs.view();
    assert!(is_whiteout(view, "a") && is_whiteout(view, "b"));
    assert_eq!((view.read_file("dir/a"), view.read_file("c")), (b"a".to_vec(), b"b".to_vec()));
}

fn times(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("from");
    fs.directory("to");
    fs.touch("from/file");
    assert_times(fs, "from", "mc", || fs.rename("from/file", "to/file").unwrap());
    assert_times(fs, "from", "mc", || fs.rename("to/file", "from/file").unwrap());
    assert_times(fs, "from/file", "", || fs.rename("from/file", "from/file").unwrap());
    let before = fs.stat("from/file");
    super::tick();
    fs.rename("from/file", "to/file").unwrap();
    super::assert_times_since(&before, &fs.stat("to/file"), "to/file", "c");
    fs.touch("to/old");
    fs.link("to/old", "to/other-name").unwrap();
    assert_times(fs, "to/other-name", "c", || fs.rename("to/file", "to/old").unwrap());
}

fn open_file(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    let file = fs.opened("a", Open::NEW);
    file.write_at(0, b"before ").unwrap();
    fs.rename("a", "dir/b").unwrap();
    file.write_at(7, b"after").unwrap();
    assert_eq!(fs.read_file("dir/b"), b"before after");
}

fn often(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.write_file("a", b"travels");
    let long = "b".repeat(200);
    for _ in 0..700 {
        fs.rename("a", &long).unwrap();
        fs.rename(&long, "dir/c").unwrap();
        fs.rename("dir/c", "a").unwrap();
    }
    assert_eq!(fs.read_file("a"), b"travels");
    assert_eq!(fs.names(""), [&b"a"[..], b"dir"]);
    assert!(fs.names("dir").is_empty());
}

fn through_symlink(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("real");
    fs.symlink("real", "way").unwrap();
    fs.write_file("file", b"1");
    fs.rename("file", "way/file").unwrap();
    assert_eq!(fs.read_file("real/file"), b"1");
    fs.rename("way/file", "real/other").unwrap();
    assert_eq!(fs.names("real"), [b"other"]);
}

fn remount(fs: &mut Fs<'_>) {
    let view = fs.view();
    for name in ["a", "b", "a/dir", "b/dir"] {
        view.directory(name);
    }
    view.write_file("a/file", b"a");
    view.write_file("b/file", b"b");
    view.touch("a/dir/in-a");
    view.rename_mode("a/file", "b/file", RenameMode::Exchange).unwrap();
    view.rename_mode("a/dir", "b/dir", RenameMode::Exchange).unwrap();
    view.rename("a/file", "a/renamed").unwrap();
    view.write_file("a/new", b"new");
    view.rename("a/new", "b/file").unwrap();
    view.directory("a/goes");
    view.rename("a/goes", "b/came").unwrap();
    fs.remount();
    let view = fs.view();
    assert_eq!(view.names("a"), [&b"dir"[..], b"renamed"]);
    assert_eq!(view.names("b"), [&b"came"[..], b"dir", b"file"]);
    assert_eq!((view.read_file("a/renamed"), view.read_file("b/file")), (b"b".to_vec(), b"new".to_vec()));
    assert_eq!(view.names("b/dir"), [b"in-a"]);
    assert_eq!((view.stat("a").links, view.stat("b").links), (3, 4));
    assert_eq!(view.stat("b/came/..").number, view.stat("b").number);
}
