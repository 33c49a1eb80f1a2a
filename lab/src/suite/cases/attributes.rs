//! Attributes: mode, owner, times, space.

use nacre_engine::{Attr, FileKind, Kind, RenameMode, Timestamp, XattrMode};

use super::super::fs::{Fs, pattern, read_exactly, write_all};
use super::super::runner::Case;
use super::super::target::{Need, Open, SetTime};
use super::{assert_times, case, tick};

pub(super) const CASES: &[Case] = &[
    case("chmod", &[], chmod),
    case("chown", &[Need::Users], chown),
    case("chown-drops-set-id", &[Need::Users], chown_drops),
    case("chown-symlink", &[Need::Users], chown_symlink),
    case("utimens", &[], utimens),
    case("utimens-now", &[], utimens_now),
    case("utimens-wide", &[Need::WideTimes], utimens_wide),
    case("utimens-beyond", &[Need::WideTimes, Need::Remount], utimens_beyond),
    case("utimens-symlink", &[], utimens_symlink),
    case("relatime", &[], relatime),
    case("attribute-errors", &[], errors),
    case("immutable", &[Need::InodeFlags], immutable),
    case("append-only", &[Need::InodeFlags], append_only),
    case("append-only-open", &[Need::InodeFlags], append_only_open),
    case("append-only-directory", &[Need::InodeFlags], append_only_directory),
    case("space-is-counted", &[Need::ExactAllocation], space),
    case("attributes-remount", &[Need::Remount, Need::WideTimes], remount),
];

fn chmod(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.directory("dir");
    fs.symlink("file", "link").unwrap();
    for mode in [0, 0o777, 0o1777, 0o2755, 0o4711, 0o7777, 0o644] {
        for path in ["file", "dir"] {
            assert_times(fs, path, "c", || fs.chmod(path, mode).unwrap());
            assert_eq!(fs.stat(path).mode, mode, "{path}");
        }
    }
    fs.chmod("link", 0o600).unwrap();
    assert_eq!((fs.stat("file").mode, fs.stat("link").mode), (0o600, 0o777), "a link is followed");
    let file = fs.opened("file", Open::BOTH);
    file.chmod(0o400).unwrap();
    assert_eq!(file.write_at(0, b"x"), Ok(1), "an open file stays open for writing");
    assert_eq!(fs.stat("file").mode, 0o400);
    fs.chmod("dir", 0o755).unwrap();
}

fn chown(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.directory("dir");
    for path in ["file", "dir"] {
        assert_times(fs, path, "c", || fs.chown(path, Some(11), Some(12)).unwrap());
        assert_eq!((fs.stat(path).uid, fs.stat(path).gid), (11, 12));
        fs.chown(path, None, Some(13)).unwrap();
        assert_eq!((fs.stat(path).uid, fs.stat(path).gid), (11, 13));
        fs.chown(path, Some(14), None).unwrap();
        assert_eq!((fs.stat(path).uid, fs.stat(path).gid), (14, 13));
        fs.chown(path, Some(0xFFFF_FFF0), Some(0x8000_0000)).unwrap();
        assert_eq!((fs.stat(path).uid, fs.stat(path).gid), (0xFFFF_FFF0, 0x8000_0000));
    }
}

fn chown_drops(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.directory("dir");
    for (uid, gid) in [(Some(5), None), (None, Some(5)), (Some(6), Some(6))] {
        fs.chmod("file", 0o6755).unwrap();
        fs.chown("file", uid, gid).unwrap();
        assert_eq!(fs.stat("file").mode, 0o755);
    }
    fs.chmod("dir", 0o6755).unwrap();
    fs.chown("dir", Some(5), Some(5)).unwrap();
    assert_eq!(fs.stat("dir").mode, 0o6755, "a directory keeps them");
}

fn chown_symlink(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.symlink("file", "link").unwrap();
    fs.lchown("link", Some(21), Some(22)).unwrap();
    assert_eq!((fs.stat("link").uid, fs.stat("link").gid, fs.stat("file").uid), (21, 22, 0));
    fs.chown("link", Some(31), Some(32)).unwrap();
    assert_eq!((fs.stat("link").uid, fs.stat("file").uid, fs.stat("file").gid), (21, 31, 32));
}

fn utimens(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.directory("dir");
    let (first, second) = (Timestamp::new(1_000_000_000, 123_456_789), Timestamp::new(1, 999_999_999));
    for path in ["file", "dir"] {
        let before = fs.stat(path);
        tick();
        fs.set_times(path, SetTime::At(first), SetTime::At(second)).unwrap();
        let stat = fs.stat(path);
        assert_eq!((stat.atime, stat.mtime), (first, second), "to the nanosecond");
        assert!(stat.ctime > before.ctime, "ctime is the time of the change");
        fs.set_times(path, SetTime::Omit, SetTime::At(first)).unwrap();
        assert_eq!((fs.stat(path).atime, fs.stat(path).mtime), (first, first));
        fs.set_times(path, SetTime::At(second), SetTime::Omit).unwrap();
        assert_eq!((fs.stat(path).atime, fs.stat(path).mtime), (second, first));
        assert_times(fs, path, "", || fs.set_times(path, SetTime::Omit, SetTime::Omit).unwrap());
    }
}

fn utimens_now(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let old = SetTime::At(Timestamp::new(1000, 1));
    fs.touch("file");
    let reference = fs.stat("file").mtime;
    fs.set_times("file", old, old).unwrap();
    tick();
    fs.set_times("file", SetTime::Now, SetTime::Now).unwrap();
    let stat = fs.stat("file");
    assert!(stat.atime > reference && stat.mtime > reference);
    assert!(stat.mtime.secs - reference.secs < 3600);
    fs.set_times("file", old, old).unwrap();
    fs.set_times("file", SetTime::Omit, SetTime::Now).unwrap();
    assert_eq!(fs.stat("file").atime, Timestamp::new(1000, 1));
    assert!(fs.stat("file").mtime > reference);
}

/// Seconds and nanoseconds that formats get wrong.
const TIMES: [(i64, u32); 12] = [
    (-2_147_483_648, 0),
    (-315_619_140, 123),
    (-2, 500_000_000),
    (0, 0),
    (0, 1),
    (-1, 999_999_999),
    (-1_000_000_000, 5),
    ((1 << 31) - 1, 1),
    (1 << 31, 2),
    ((1 << 32) + 7, 3),
    (7_258_118_400, 999_999_999),
    (15_032_385_535, 999_999_999),
];

fn utimens_wide(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    for (secs, nanos) in TIMES {
        let time = Timestamp::new(secs, nanos);
        fs.set_times("file", SetTime::At(time), SetTime::At(time)).unwrap();
        assert_eq!((fs.stat("file").atime, fs.stat("file").mtime), (time, time));
    }
}

/// A time that cannot be kept is refused and changes nothing: stat reports the same time before and after a remount.
fn utimens_beyond(fs: &mut Fs<'_>) {
    let view = fs.view();
    view.touch("file");
    let known = Timestamp::new(1_000_000_000, 7);
    for secs in [i64::MIN, -(1 << 34), -(1 << 31) - 1, 15_032_385_536, 1 << 34, i64::MAX] {
        let view = fs.view();
        let time = Timestamp::new(secs, 0);
        for (atime, mtime) in [(SetTime::At(time), SetTime::Omit), (SetTime::Omit, SetTime::At(time))] {
            view.set_times("file", SetTime::At(known), SetTime::At(known)).unwrap();
            let before = view.stat("file");
            let set = view.set_times("file", atime, mtime);
            let after = view.stat("file");
            match set {
                Ok(()) => assert!([after.atime, after.mtime].contains(&time), "{secs}: taken and not kept"),
                Err(kind) => {
                    assert_eq!(kind, Kind::InvalidInput, "{secs}");
                    assert_eq!(
                        (after.atime, after.mtime, after.ctime),
                        (before.atime, before.mtime, before.ctime)
                    );
                }
            }
        }
        let before = view.stat("file");
        fs.remount();
        let after = fs.view().stat("file");
        assert_eq!((after.atime, after.mtime), (before.atime, before.mtime), "{secs}: after a remount");
    }
}

fn utimens_symlink(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.symlink("file", "link").unwrap();
    let before = fs.stat("file");
    let time = Timestamp::new(77, 7);
    fs.set_times("link", SetTime::At(time), SetTime::At(time)).unwrap();
    assert_eq!(fs.stat("link").mtime, time);
    assert_eq!(fs.stat("file").mtime, before.mtime);
}

fn relatime(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"content");
    let at = |secs| SetTime::At(Timestamp::new(secs, 0));
    let read = || {
        let file = fs.opened("file", Open::READ);
        read_exactly(file.as_ref(), 0, 7);
        drop(file);
        fs.stat("file").atime
    };
    fs.set_times("file", at(1000), at(2000)).unwrap();
    tick();
    let first = read();
    assert!(first.secs > 2000, "atime older than mtime is renewed");
    tick();
    assert_eq!(read(), first, "and then left alone");
    tick();
    fs.chmod("file", 0o600).unwrap();
    tick();
    assert!(read() > first, "atime older than ctime is renewed");
}

fn errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let now = SetTime::Now;
    assert_eq!(fs.chmod("no", 0o600), Err(Kind::NotFound));
    assert_eq!(fs.chown("no", Some(1), None), Err(Kind::NotFound));
    assert_eq!(fs.set_times("no", now, now), Err(Kind::NotFound));
    fs.symlink("nowhere", "link").unwrap();
    assert_eq!(fs.chmod("link", 0o600), Err(Kind::NotFound));
    assert_eq!(fs.stat_following("link"), Err(Kind::NotFound));
}

fn immutable(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let refused = Err(Kind::NotPermitted);
    fs.write_file("file", b"content");
    fs.directory("dir");
    fs.touch("dir/inner");
    fs.touch("other");
    fs.set_flags("file", Attr::IMMUTABLE).unwrap();
    fs.set_flags("dir", Attr::IMMUTABLE).unwrap();
    assert_eq!(fs.read_file("file"), b"content");
    assert_eq!(fs.open_error("file", Open::WRITE), Kind::NotPermitted);
    assert_eq!(fs.unlink("file"), refused);
    assert_eq!(fs.rename("file", "new"), refused);
    assert_eq!(fs.rename("other", "file"), refused);
    assert_eq!(fs.rename_mode("other", "file", RenameMode::NoReplace), Err(Kind::Exists));
    assert_eq!(fs.link("file", "new"), refused);
    assert_eq!(fs.chmod("file", 0o600), refused);
    assert_eq!(fs.set_times("file", SetTime::At(Timestamp::new(1, 0)), SetTime::Omit), refused);
    assert_eq!(fs.open_error("dir/new", Open::CREATE), Kind::NotPermitted);
    assert_eq!(fs.unlink("dir/inner"), refused);
    assert_eq!(fs.mkdir("dir/new"), refused);
    assert_eq!(fs.rename("other", "dir/other"), refused);
    assert_eq!(fs.rename("dir/inner", "inner"), refused);
    assert_eq!(fs.rmdir("dir"), refused, "before it is seen that it is not empty");
    fs.set_flags("file", 0).unwrap();
    fs.set_flags("dir", 0).unwrap();
    assert_eq!(fs.unlink("file"), Ok(()));
    assert_eq!(fs.unlink("dir/inner"), Ok(()));
}

fn append_only(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let refused = Err(Kind::NotPermitted);
    fs.write_file("file", b"log:");
    fs.set_flags("file", Attr::APPEND_ONLY).unwrap();
    assert_eq!(fs.open_error("file", Open { truncate: true, ..Open::APPEND }), Kind::NotPermitted);
    let file = fs.opened("file", Open::APPEND);
    assert_eq!(file.append(b" line"), Ok(5));
    assert_eq!(file.set_len(0), refused);
    assert_eq!(fs.unlink("file"), refused);
    assert_eq!(fs.rename("file", "new"), refused);
    assert_eq!(fs.link("file", "new"), refused);
    assert_eq!(fs.chmod("file", 0o600), refused);
    drop(file);
    fs.set_flags("file", 0).unwrap();
    assert_eq!(fs.read_file("file"), b"log: line");
}

fn append_only_open(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"log:");
    fs.set_flags("file", Attr::APPEND_ONLY).unwrap();
    assert_eq!(fs.open_error("file", Open::WRITE), Kind::NotPermitted);
    fs.set_flags("file", 0).unwrap();
}

fn append_only_directory(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.touch("dir/old");
    fs.set_flags("dir", Attr::APPEND_ONLY).unwrap();
    fs.touch("dir/new");
    fs.directory("dir/sub");
    assert_eq!(fs.unlink("dir/new"), Err(Kind::NotPermitted));
    assert_eq!(fs.rmdir("dir/sub"), Err(Kind::NotPermitted));
    assert_eq!(fs.rename("dir/old", "dir/renamed"), Err(Kind::NotPermitted));
    fs.set_flags("dir", 0).unwrap();
    assert_eq!(fs.names("dir"), [&b"new"[..], b"old", b"sub"]);
}

fn space(fs: &mut Fs<'_>) {
    const SIZE: u64 = 4 << 20;
    let fs = fs.view();
    let space = || fs.target().space().unwrap();
    let before = space();
    assert!(before.free <= before.total && before.available <= before.free);
    fs.touch("file");
    let file = fs.opened("file", Open::BOTH);
    write_all(file.as_ref(), 0, &pattern(1, 0, SIZE as usize));
    let full = space();
    assert_eq!(full.total, before.total);
    let used = before.free - full.free;
    assert!((SIZE..SIZE + SIZE / 8).contains(&used), "{used} bytes went for {SIZE}");
    drop(file);
    fs.unlink("file").unwrap();
    let lost = before.free.saturating_sub(space().free);
    assert!(lost < 64 << 10, "{lost} bytes are lost");
}

fn remount(fs: &mut Fs<'_>) {
    let view = fs.view();
    for (index, (secs, nanos)) in TIMES.into_iter().enumerate() {
        let path = format!("file-{index}");
        view.touch(&path);
        view.chmod(&path, 0o7000 + index as u32).unwrap();
        let time = Timestamp::new(secs, nanos);
        view.set_times(&path, SetTime::At(time), SetTime::At(Timestamp::new((-secs).max(-(1 << 31)), nanos)))
            .unwrap();
    }
    view.mknod("fifo", FileKind::Fifo, 0o644, 0).unwrap();
    view.set_xattr("file-0", "user.name", "value", XattrMode::Set).unwrap();
    tick();
    let before: Vec<_> = view.names("").iter().map(|name| view.stat(name)).collect();
    fs.remount();
    let view = fs.view();
    let after: Vec<_> = view.names("").iter().map(|name| view.stat(name)).collect();
    assert_eq!(before, after);
}
