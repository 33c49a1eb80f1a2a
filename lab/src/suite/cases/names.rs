//! Links, symbolic links, nodes and directories: making and removing names.

use nacre_engine::{FileKind, Kind, Timestamp};

use super::super::fs::{Fs, pattern, read_exactly};
use super::super::runner::Case;
use super::super::target::{Need, Open, SetTime};
use super::{assert_times, case, tick};

pub(super) const CASES: &[Case] = &[
    case("link-counts", &[], link_counts),
    case("link-errors", &[], link_errors),
    case("link-of-other-kinds", &[], link_of_other_kinds),
    case("link-often", &[], link_often),
    case("unlink-errors", &[], unlink_errors),
    case("unlink-open", &[], unlink_open),
    case("unlink-open-by-two", &[], unlink_open_by_two),
    case("unlink-one-of-two-names", &[], unlink_one_of_two),
    case("mkdir", &[], mkdir),
    case("mkdir-errors", &[], mkdir_errors),
    case("rmdir", &[], rmdir),
    case("rmdir-errors", &[], rmdir_errors),
    case("remove-older-than-directory", &[], remove_older),
    case("symlink", &[], symlink),
    case("symlink-long", &[], symlink_long),
    case("symlink-errors", &[], symlink_errors),
    case("mknod", &[], mknod),
    case("mknod-device", &[Need::DeviceNodes], mknod_device),
    case("times-of-names", &[], times_of_names),
    case("numbers", &[], numbers),
    case("number-used-again", &[], used_again),
    case("unnamed-file", &[Need::Unnamed], unnamed),
    case("remount-keeps-all-kinds", &[Need::Remount], remount_keeps),
    case("remount-removes-unlinked", &[Need::Remount], remount_removes),
];

fn link_counts(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.write_file("a", b"same");
    fs.link("a", "b").unwrap();
    fs.link("b", "dir/c").unwrap();
    for name in ["a", "b", "dir/c"] {
        assert_eq!(fs.stat(name).links, 3, "{name}");
        assert_eq!(fs.stat(name).number, fs.stat("a").number, "{name}");
    }
    fs.write_file("dir/c", b"changed");
    assert_eq!(fs.read_file("a"), b"changed");
    fs.unlink("a").unwrap();
    assert_eq!(fs.stat("b").links, 2);
    fs.unlink("dir/c").unwrap();
    assert_eq!((fs.stat("b").links, fs.read_file("b")), (1, b"changed".to_vec()));
}

fn link_errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.directory("dir");
    assert_eq!(fs.link("file", "dir"), Err(Kind::Exists));
    assert_eq!(fs.link("file", "file"), Err(Kind::Exists));
    assert_eq!(fs.link("dir", "other"), Err(Kind::NotPermitted));
    assert_eq!(fs.link("dir", "file"), Err(Kind::Exists));
    assert_eq!(fs.link("no", "other"), Err(Kind::NotFound));
    assert_eq!(fs.link("file", "no/other"), Err(Kind::NotFound));
    assert_eq!(fs.stat("file").links, 1);
}

fn link_of_other_kinds(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.symlink("target", "symlink").unwrap();
    fs.mknod("fifo", FileKind::Fifo, 0o600, 0).unwrap();
    for name in ["symlink", "fifo"] {
        let other = format!("{name}-2");
        fs.link(name, &other).unwrap();
        assert_eq!((fs.stat(&other).number, fs.stat(&other).links), (fs.stat(name).number, 2));
        fs.unlink(name).unwrap();
        assert_eq!(fs.stat(&other).links, 1);
    }
    assert_eq!(fs.read_link("symlink-2").unwrap(), b"target");
}

fn link_often(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"1");
    for index in 0..1000 {
        fs.link("file", format!("name-{index}")).unwrap();
    }
    assert_eq!(fs.stat("name-999").links, 1001);
    for index in 0..1000 {
        fs.unlink(format!("name-{index}")).unwrap();
    }
    assert_eq!((fs.stat("file").links, fs.read_file("file")), (1, b"1".to_vec()));
}

fn unlink_errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    assert_eq!(fs.unlink("dir"), Err(Kind::IsDirectory));
    assert_eq!(fs.unlink("no"), Err(Kind::NotFound));
    assert_eq!(fs.unlink("no/no"), Err(Kind::NotFound));
    fs.symlink("dir", "link").unwrap();
    assert_eq!(fs.unlink("link"), Ok(()), "the link goes, not what it points to");
    assert_eq!(fs.names(""), [b"dir"]);
}

fn unlink_open(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let bytes = pattern(2, 0, 50_000);
    fs.write_file("file", &bytes);
    let file = fs.opened("file", Open::BOTH);
    fs.unlink("file").unwrap();
    assert!(!fs.exists("file"));
    let stat = file.stat().unwrap();
    assert_eq!((stat.links, stat.size), (0, 50_000));
    assert_eq!(read_exactly(file.as_ref(), 0, 50_000), bytes);
    file.write_at(60_000, b"still").unwrap();
    assert_eq!(read_exactly(file.as_ref(), 60_000, 5), b"still");
    file.set_len(10).unwrap();
    file.sync(false).unwrap();
    fs.write_file("file", b"another");
    assert_ne!(fs.stat("file").number, stat.number, "the number is not free yet");
    assert_eq!(read_exactly(file.as_ref(), 0, 10), bytes[..10]);
    drop(file);
    assert_eq!(fs.read_file("file"), b"another");
}

fn unlink_open_by_two(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"0123456789");
    let first = fs.opened("file", Open::BOTH);
    let second = fs.opened("file", Open::READ);
    fs.unlink("file").unwrap();
    first.write_at(0, b"abc").unwrap();
    drop(first);
    for index in 0..50 {
        fs.write_file(format!("other-{index}"), &pattern(index, 0, 5000));
    }
    assert_eq!(read_exactly(second.as_ref(), 0, 10), b"abc3456789");
}

fn unlink_one_of_two(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("a", b"content");
    fs.link("a", "b").unwrap();
    let file = fs.opened("a", Open::BOTH);
    fs.unlink("a").unwrap();
    assert_eq!(file.stat().unwrap().links, 1);
    file.write_at(0, b"C").unwrap();
    drop(file);
    assert_eq!(fs.read_file("b"), b"Content");
}

fn mkdir(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let before = fs.stat("").links;
    for mode in [0o755, 0o700, 0o777, 0o1777, 0o000] {
        let name = format!("mode-{mode:o}");
        fs.mkdir_mode(&name, mode).unwrap();
        let stat = fs.stat(&name);
        assert_eq!((stat.kind, stat.mode, stat.links), (FileKind::Directory, mode, 2));
        assert_eq!(fs.stat(format!("{name}/..")).number, fs.stat("").number);
    }
    assert_eq!(fs.stat("").links, before + 5, "each subdirectory has a link to its parent");
    fs.directory("mode-755/inner");
    assert_eq!(fs.stat("mode-755").links, 3);
}

fn mkdir_errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.directory("dir");
    fs.symlink("nowhere", "link").unwrap();
    for name in ["file", "dir", "link"] {
        assert_eq!(fs.mkdir(name), Err(Kind::Exists), "{name}");
    }
    assert_eq!(fs.mkdir("no/dir"), Err(Kind::NotFound));
    assert!(!fs.exists("nowhere"));
}

fn rmdir(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let before = fs.stat("");
    for _ in 0..3 {
        fs.directory("dir");
        fs.directory("dir/inner");
        fs.touch("dir/file");
        fs.unlink("dir/file").unwrap();
        fs.rmdir("dir/inner").unwrap();
        assert_eq!(fs.stat("dir").links, 2);
        fs.rmdir("dir").unwrap();
        assert!(!fs.exists("dir"));
        assert_eq!(fs.open_error("dir/file", Open::CREATE), Kind::NotFound);
    }
    assert_eq!(fs.stat("").links, before.links);
}

fn rmdir_errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.directory("dir");
    fs.touch("dir/file");
    fs.symlink("dir", "link").unwrap();
    assert_eq!(fs.rmdir("file"), Err(Kind::NotDirectory));
    assert_eq!(fs.rmdir("link"), Err(Kind::NotDirectory));
    assert_eq!(fs.rmdir("dir"), Err(Kind::NotEmpty));
    assert_eq!(fs.rmdir("no"), Err(Kind::NotFound));
    assert_eq!(fs.names("dir"), [b"file"]);
}

/// Layouts lock inodes in the order of their numbers: an older inode than its directory comes before it, and a younger
/// one behind it.
fn remove_older(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"older");
    fs.directory("inner");
    fs.touch("inner/file");
    fs.directory("dir");
    fs.rename("file", "dir/old-file").unwrap();
    fs.rename("inner", "dir/old-inner").unwrap();
    fs.write_file("dir/new-file", b"younger");
    fs.directory("dir/new-inner");
    fs.touch("dir/new-inner/file");
    assert_eq!(fs.stat("dir").links, 4);
    for age in ["old", "new"] {
        let (file, inner) = (format!("dir/{age}-file"), format!("dir/{age}-inner"));
        let other = format!("dir/{age}-file-2");
        fs.link(&file, &other).unwrap();
        assert_eq!(fs.unlink(&inner), Err(Kind::IsDirectory), "{age}");
        assert_eq!(fs.rmdir(&file), Err(Kind::NotDirectory), "{age}");
        assert_eq!(fs.rmdir(&inner), Err(Kind::NotEmpty), "{age}");
        fs.unlink(&file).unwrap();
        assert_eq!((fs.exists(&file), fs.stat(&other).links), (false, 1), "{age}");
        assert_eq!(fs.unlink(&file), Err(Kind::NotFound), "{age}");
        fs.unlink(&other).unwrap();
        assert_eq!(fs.unlink(&other), Err(Kind::NotFound), "{age}");
        fs.unlink(format!("{inner}/file")).unwrap();
        fs.rmdir(&inner).unwrap();
        assert_eq!((fs.exists(&other), fs.exists(&inner)), (false, false), "{age}");
    }
    assert_eq!((fs.stat("dir").links, fs.names("dir").len()), (2, 0));
    fs.rmdir("dir").unwrap();
}

fn symlink(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for target in [&b"a"[..], b"dir/../file", b"/absolute", b"with\nany \xff\x01 byte", b"//"] {
        fs.symlink(target, "link").unwrap();
        assert_eq!(fs.read_link("link").unwrap(), target);
        let stat = fs.stat("link");
        assert_eq!((stat.kind, stat.size, stat.links), (FileKind::Symlink, target.len() as u64, 1));
        assert_eq!(stat.mode, 0o777);
        fs.unlink("link").unwrap();
    }
    fs.directory("dir");
    fs.write_file("dir/file", b"found");
    fs.symlink("dir", "way").unwrap();
    fs.symlink("../dir/file", "dir/up").unwrap();
    assert_eq!(fs.read_file("way/file"), b"found");
    assert_eq!(fs.read_file("way/up"), b"found", "relative to the directory of the link");
    assert_eq!(fs.stat_following("way").unwrap().kind, FileKind::Directory);
}

fn symlink_long(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for len in [1, 50, 59, 60, 61, 100, 191, 192, 255, 256, 1000, 4000, 4095] {
        let target = "t".repeat(len);
        fs.symlink(&target, format!("link-{len}")).unwrap();
        assert_eq!(fs.read_link(format!("link-{len}")).unwrap(), target.as_bytes(), "{len}");
    }
    assert_eq!(fs.symlink("t".repeat(4096), "link"), Err(Kind::NameTooLong));
}

fn symlink_errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    assert_eq!(fs.symlink("t", "file"), Err(Kind::Exists));
    assert_eq!(fs.symlink("", "link"), Err(Kind::NotFound));
    assert_eq!(fs.symlink("t", "no/link"), Err(Kind::NotFound));
    assert_eq!(fs.read_link("file"), Err(Kind::InvalidInput));
    assert_eq!(fs.read_link("no"), Err(Kind::NotFound));
}

fn mknod(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for (name, kind) in [("fifo", FileKind::Fifo), ("socket", FileKind::Socket), ("file", FileKind::Regular)]
    {
        fs.mknod(name, kind, 0o640, 0).unwrap();
        let stat = fs.stat(name);
        assert_eq!((stat.kind, stat.mode, stat.links, stat.size), (kind, 0o640, 1, 0));
        assert_eq!(fs.mknod(name, kind, 0o640, 0), Err(Kind::Exists));
    }
    fs.write_file("file", b"a file like any other");
    fs.chmod("fifo", 0o600).unwrap();
    assert_eq!(fs.stat("fifo").mode, 0o600);
}

fn mknod_device(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for (major, minor) in [(1, 3), (8, 255), (259, 65_536), (4095, 1_048_575)] {
        let rdev = rustix::fs::makedev(major, minor);
        for kind in [FileKind::CharDevice, FileKind::BlockDevice] {
            let name = format!("{kind:?}-{major}-{minor}");
            fs.mknod(&name, kind, 0o600, rdev).unwrap();
            assert_eq!((fs.stat(&name).kind, fs.stat(&name).rdev), (kind, rdev));
        }
    }
}

fn times_of_names(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    assert_times(fs, "dir", "mc", || fs.touch("dir/file"));
    assert_times(fs, "dir/file", "c", || fs.link("dir/file", "other").unwrap());
    assert_times(fs, "dir", "mc", || fs.link("dir/file", "dir/third").unwrap());
    assert_times(fs, "other", "c", || fs.unlink("dir/third").unwrap());
    assert_times(fs, "dir", "mc", || fs.unlink("dir/file").unwrap());
    assert_times(fs, "dir", "mc", || fs.directory("dir/inner"));
    assert_times(fs, "dir", "mc", || fs.rmdir("dir/inner").unwrap());
    assert_times(fs, "dir", "mc", || fs.symlink("t", "dir/link").unwrap());
    assert_times(fs, "dir", "mc", || fs.mknod("dir/fifo", FileKind::Fifo, 0o600, 0).unwrap());
    assert_times(fs, "dir", "", || assert_eq!(fs.mkdir("dir/link"), Err(Kind::Exists)));
    assert_times(fs, "dir", "", || assert_eq!(fs.unlink("dir/no"), Err(Kind::NotFound)));
}

fn numbers(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for index in 0..100 {
        fs.touch(format!("file-{index}"));
    }
    let mut numbers: Vec<u64> = (0..100).map(|index| fs.stat(format!("file-{index}")).number).collect();
    for entry in fs.list("") {
        assert_eq!(fs.stat(&entry.name).number, entry.number, "readdir and stat agree");
    }
    numbers.push(fs.stat("").number);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 101, "every inode has a number of its own");
}

fn used_again(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for round in 0..200u64 {
        fs.write_file("file", &pattern(round, 0, 3000 + round as usize));
        let old = Timestamp::new(1000, 0);
        fs.set_times("file", SetTime::At(old), SetTime::At(old)).unwrap();
        fs.unlink("file").unwrap();
        let file = fs.opened("file", Open::NEW.mode(0o600));
        let stat = file.stat().unwrap();
        assert_eq!((stat.size, stat.mode, stat.links), (0, 0o600, 1));
        assert!(stat.mtime.secs > 1000, "a new file has new times");
        file.write_at(4096, b"x").unwrap();
        assert_eq!(read_exactly(file.as_ref(), 0, 4096), vec![0; 4096], "and no old content");
        fs.unlink("file").unwrap();
    }
}

fn unnamed(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.open_unnamed("", 0o600).unwrap();
    file.write_at(0, b"nobody knows").unwrap();
    let stat = file.stat().unwrap();
    assert_eq!((stat.links, stat.size, stat.mode), (0, 12, 0o600));
    assert_eq!(read_exactly(file.as_ref(), 0, 12), b"nobody knows");
    assert!(fs.names("").is_empty());
    fs.touch("file");
    assert_eq!(fs.open_unnamed("file", 0o600).map(drop), Err(Kind::NotDirectory));
}

fn remount_keeps(fs: &mut Fs<'_>) {
    let view = fs.view();
    view.directory("dir");
    view.write_file("dir/file", &pattern(3, 0, 100_000));
    view.link("dir/file", "link").unwrap();
    view.symlink("dir/file", "symlink").unwrap();
    view.mknod("fifo", FileKind::Fifo, 0o620, 0).unwrap();
    view.chmod("dir", 0o2750).unwrap();
    view.directory("dir/empty");
    tick();
    let paths = ["", "dir", "dir/file", "link", "symlink", "fifo", "dir/empty"];
    let before: Vec<_> = paths.iter().map(|path| view.stat(path)).collect();
    fs.remount();
    let view = fs.view();
    for (path, before) in paths.iter().zip(before) {
        assert_eq!(view.stat(path), before, "{path}");
    }
    assert_eq!(view.read_file("link"), pattern(3, 0, 100_000));
    assert_eq!(view.read_link("symlink").unwrap(), b"dir/file");
    assert_eq!(view.names(""), [&b"dir"[..], b"fifo", b"link", b"symlink"]);
}

fn remount_removes(fs: &mut Fs<'_>) {
    let free = |fs: &Fs<'_>| fs.view().target().space().unwrap().free;
    fs.remount();
    let before = free(fs);
    {
        let view = fs.view();
        let file = view.opened("file", Open::NEW);
        file.write_at(0, &pattern(1, 0, 1 << 20)).unwrap();
        view.unlink("file").unwrap();
    }
    fs.remount();
    assert!(fs.view().names("").is_empty());
    let lost = before.saturating_sub(free(fs));
    assert!(lost < 64 << 10, "{lost} bytes are lost");
}
