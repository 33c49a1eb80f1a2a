//! Opening files: flags, kinds, paths.

use nacre_engine::{FileKind, Kind};

use super::super::fs::{Fs, pattern};
use super::super::runner::Case;
use super::super::target::{Need, Open};
use super::{ALICE, case};

pub(super) const CASES: &[Case] = &[
    case("open-creates", &[], creates),
    case("open-missing", &[], missing),
    case("open-exclusive", &[], exclusive),
    case("open-through-dangling-symlink", &[], dangling),
    case("open-truncates", &[], truncates),
    case("open-directory", &[], directory),
    case("open-wants-directory", &[], wants_directory),
    case("open-no-follow", &[], no_follow),
    case("symlinks-in-a-row", &[], symlinks_in_a_row),
    case("path-through-a-file", &[], through_a_file),
    case("path-with-dots", &[], dots),
    case("path-with-slashes", &[], slashes),
    case("path-too-long", &[], too_long),
    case("handle-without-the-right", &[], wrong_handle),
    case("names-of-255-bytes", &[], long_names),
    case("names-of-any-byte", &[], any_byte),
    case("open-rights", &[Need::Users], rights),
    case("open-existing-with-create", &[], existing_with_create),
];

fn creates(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for mode in [0o644, 0o600, 0o777, 0o000, 0o4755, 0o2711, 0o1666] {
        let name = format!("mode-{mode:o}");
        let file = fs.opened(&name, Open::NEW.mode(mode));
        let stat = file.stat().unwrap();
        assert_eq!((stat.kind, stat.mode, stat.size, stat.links), (FileKind::Regular, mode, 0, 1));
        assert_eq!(fs.stat(&name), stat, "stat and fstat agree");
        assert_eq!(file.read_at(0, &mut [0; 10]), Ok(0));
    }
}

fn missing(fs: &mut Fs<'_>) {
    let fs = fs.view();
    assert_eq!(fs.open_error("no", Open::READ), Kind::NotFound);
    assert_eq!(fs.open_error("no", Open::BOTH), Kind::NotFound);
    assert_eq!(fs.open_error("no/file", Open::CREATE), Kind::NotFound);
    assert_eq!(fs.try_stat("no/file"), Err(Kind::NotFound));
    assert!(fs.names("").is_empty());
}

fn exclusive(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"old");
    fs.directory("dir");
    fs.symlink("nowhere", "link").unwrap();
    for name in ["file", "dir", "link"] {
        assert_eq!(fs.open_error(name, Open::NEW), Kind::Exists, "{name}");
    }
    assert_eq!(fs.read_file("file"), b"old");
    assert!(!fs.exists("nowhere"));
}

fn dangling(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.symlink("dir/target", "link").unwrap();
    assert_eq!(fs.open_error("link", Open::READ), Kind::NotFound);
    fs.opened("link", Open::CREATE).write_at(0, b"through").unwrap();
    assert_eq!(fs.read_file("dir/target"), b"through");
    assert_eq!(fs.stat("link").kind, FileKind::Symlink);
}

fn truncates(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let bytes = pattern(1, 0, 10_000);
    fs.write_file("file", &bytes);
    fs.chmod("file", 0o640).unwrap();
    let before = fs.stat("file");
    super::tick();
    let file = fs.opened("file", Open { truncate: true, ..Open::BOTH });
    let after = file.stat().unwrap();
    assert_eq!((after.number, after.mode, after.size), (before.number, 0o640, 0));
    assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    file.write_at(5000, b"x").unwrap();
    let mut expected = vec![0; 5001];
    expected[5000] = b'x';
    assert_eq!(fs.read_file("file"), expected, "nothing of the old content is seen again");
}

fn directory(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    assert_eq!(fs.open_error("dir", Open::WRITE), Kind::IsDirectory);
    assert_eq!(fs.open_error("dir", Open::BOTH), Kind::IsDirectory);
    assert_eq!(fs.open_error("dir", Open::CREATE), Kind::IsDirectory);
    let dir = fs.opened("dir", Open::READ);
    assert_eq!(dir.read_at(0, &mut [0; 8]), Err(Kind::IsDirectory));
    assert_eq!(dir.stat().unwrap().kind, FileKind::Directory);
}

fn wants_directory(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let wants = Open { directory: true, ..Open::READ };
    fs.directory("dir");
    fs.touch("file");
    fs.symlink("dir", "to-dir").unwrap();
    fs.symlink("file", "to-file").unwrap();
    assert!(fs.open("dir", wants).is_ok());
    assert!(fs.open("to-dir", wants).is_ok());
    assert_eq!(fs.open_error("file", wants), Kind::NotDirectory);
    assert_eq!(fs.open_error("to-file", wants), Kind::NotDirectory);
    assert_eq!(fs.open_error("to-dir", Open { no_follow: true, ..wants }), Kind::NotDirectory);
}

fn no_follow(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.write_file("dir/file", b"here");
    fs.symlink("dir/file", "link").unwrap();
    fs.symlink("dir", "way").unwrap();
    let no_follow = Open { no_follow: true, ..Open::READ };
    assert_eq!(fs.open_error("link", no_follow), Kind::TooManySymlinks);
    assert!(fs.open("way/file", no_follow).is_ok(), "only the last component counts");
}

fn symlinks_in_a_row(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.symlink("a", "b").unwrap();
    fs.symlink("b", "a").unwrap();
    assert_eq!(fs.open_error("a", Open::READ), Kind::TooManySymlinks);
    assert_eq!(fs.stat_following("a/x"), Err(Kind::TooManySymlinks));
    fs.write_file("link-0", b"end");
    for index in 1..=41 {
        fs.symlink(format!("link-{}", index - 1), format!("link-{index}")).unwrap();
    }
    assert_eq!(fs.read_file("link-40"), b"end", "40 links are followed");
    assert_eq!(fs.open_error("link-41", Open::READ), Kind::TooManySymlinks);
}

fn through_a_file(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    assert_eq!(fs.open_error("file/x", Open::READ), Kind::NotDirectory);
    assert_eq!(fs.open_error("file/x", Open::CREATE), Kind::NotDirectory);
    assert_eq!(fs.try_stat("file/"), Err(Kind::NotDirectory));
    assert_eq!(fs.try_stat("file/."), Err(Kind::NotDirectory));
    assert_eq!(fs.try_stat("file/.."), Err(Kind::NotDirectory));
    assert_eq!(fs.mkdir("file/x"), Err(Kind::NotDirectory));
    assert_eq!(fs.unlink("file/x"), Err(Kind::NotDirectory));
    assert_eq!(fs.rmdir("file/x"), Err(Kind::NotDirectory));
    assert_eq!(fs.symlink("t", "file/x"), Err(Kind::NotDirectory));
    assert_eq!(fs.link("file", "file/x"), Err(Kind::NotDirectory));
    assert_eq!(fs.rename("file/x", "y"), Err(Kind::NotDirectory));
    assert_eq!(fs.rename("file", "file/x"), Err(Kind::NotDirectory));
}

fn dots(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.directory("dir/inner");
    fs.write_file("file", b"1");
    assert_eq!(fs.read_file("dir/../file"), b"1");
    assert_eq!(fs.read_file("dir/./inner/../../file"), b"1");
    assert_eq!(fs.stat("dir/inner/..").number, fs.stat("dir").number);
    assert_eq!(fs.mkdir("dir/."), Err(Kind::Exists));
    assert_eq!(fs.mkdir("dir/.."), Err(Kind::Exists));
    assert_eq!(fs.rmdir("dir/inner/."), Err(Kind::InvalidInput));
    assert_eq!(fs.rmdir("dir/inner/.."), Err(Kind::NotEmpty));
    assert_eq!(fs.unlink("dir/.."), Err(Kind::IsDirectory));
    assert_eq!(fs.rename("dir/.", "other"), Err(Kind::Busy));
    assert_eq!(fs.rename("dir/inner", "dir/.."), Err(Kind::Busy));
    assert_eq!(fs.open_error("dir/.", Open::WRITE), Kind::IsDirectory);
}

fn slashes(fs: &mut Fs<'_>) {
    let fs = fs.view();
    assert_eq!(fs.mkdir("dir/"), Ok(()));
    fs.write_file("dir//file", b"1");
    assert_eq!(fs.read_file("dir///./file"), b"1");
    assert_eq!(fs.stat("dir/").number, fs.stat("dir").number);
    fs.symlink("dir", "link").unwrap();
    assert_eq!(fs.stat("link").kind, FileKind::Symlink);
    assert_eq!(fs.stat("link/").kind, FileKind::Directory);
    assert_eq!(fs.open_error("new/", Open::CREATE), Kind::IsDirectory);
    assert_eq!(fs.open_error("dir/file/", Open::READ), Kind::NotDirectory);
}

fn too_long(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let path = "./".repeat(2100);
    assert_eq!(fs.try_stat(&path), Err(Kind::NameTooLong));
    assert_eq!(fs.open_error(format!("{path}file"), Open::CREATE), Kind::NameTooLong);
    assert_eq!(fs.mkdir(format!("{path}dir")), Err(Kind::NameTooLong));
}

fn wrong_handle(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"content");
    let reader = fs.opened("file", Open::READ);
    assert_eq!(reader.write_at(0, b"x"), Err(Kind::BadHandle));
    assert_eq!(reader.set_len(0), Err(Kind::InvalidInput));
    let writer = fs.opened("file", Open::WRITE);
    assert_eq!(writer.read_at(0, &mut [0; 4]), Err(Kind::BadHandle));
    assert_eq!(writer.write_at(0, b"C"), Ok(1));
    assert_eq!(fs.read_file("file"), b"Content");
}

fn long_names(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let (name, too_long) = ("n".repeat(255), "n".repeat(256));
    fs.write_file(&name, b"long");
    fs.directory("d".repeat(255));
    fs.symlink(&name, "s".repeat(255)).unwrap();
    fs.link(&name, "l".repeat(255)).unwrap();
    fs.rename(&name, "r".repeat(255)).unwrap();
    assert_eq!(fs.read_file("l".repeat(255)), b"long");
    assert_eq!(fs.names("").len(), 4);
    assert!(fs.names("").iter().all(|name| name.len() == 255));
    assert_eq!(fs.open_error(&too_long, Open::CREATE), Kind::NameTooLong);
    assert_eq!(fs.try_stat(&too_long), Err(Kind::NameTooLong));
    assert_eq!(fs.mkdir(&too_long), Err(Kind::NameTooLong));
    assert_eq!(fs.symlink("t", &too_long), Err(Kind::NameTooLong));
    assert_eq!(fs.link("l".repeat(255), &too_long), Err(Kind::NameTooLong));
    assert_eq!(fs.rename("l".repeat(255), &too_long), Err(Kind::NameTooLong));
    assert_eq!(fs.rename(&too_long, "x"), Err(Kind::NameTooLong));
    assert_eq!(fs.unlink(&too_long), Err(Kind::NameTooLong));
    assert_eq!(fs.rmdir(&too_long), Err(Kind::NameTooLong));
}

fn any_byte(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mut expected = Vec::new();
    for byte in (1..=255u8).filter(|byte| *byte != b'/') {
        for name in [vec![byte], vec![byte; 200], vec![b'.', b'.', byte]] {
            if name != b"." {
                fs.write_file(&name, &[byte]);
                expected.push(name);
            }
        }
    }
    expected.sort();
    assert_eq!(fs.names(""), expected);
    for name in &expected {
        assert_eq!(fs.read_file(name), [*name.last().unwrap()]);
    }
}

fn rights(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for (mode, read, write) in
        [(0o600, false, false), (0o604, true, false), (0o602, false, true), (0o606, true, true)]
    {
        let name = format!("mode-{mode:o}");
        fs.write_file(&name, b"secret");
        fs.chmod(&name, mode).unwrap();
        fs.as_user(ALICE, |fs| {
            let verdict = |how| fs.open(&name, how).map(drop);
            let expect = |granted| if granted { Ok(()) } else { Err(Kind::AccessDenied) };
            assert_eq!(verdict(Open::READ), expect(read), "{name} for reading");
            assert_eq!(verdict(Open::WRITE), expect(write), "{name} for writing");
            assert_eq!(verdict(Open::BOTH), expect(read && write), "{name} for both");
            assert_eq!(verdict(Open { truncate: true, ..Open::WRITE }), expect(write), "{name} to truncate");
        });
    }
    assert_eq!(fs.read_file("mode-604"), b"secret");
    fs.as_user(ALICE, |fs| assert_eq!(fs.open_error("new", Open::CREATE), Kind::AccessDenied));
    fs.chmod("", 0o777).unwrap();
    fs.as_user(ALICE, |fs| {
        let file = fs.opened("locked", Open::NEW.mode(0o000));
        assert_eq!(file.write_at(0, b"mine"), Ok(4), "who makes a file may use it");
        assert_eq!(file.stat().unwrap().uid, ALICE.uid);
    });
}

fn existing_with_create(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"stays");
    fs.chmod("file", 0o640).unwrap();
    let before = fs.stat("file");
    let file = fs.opened("file", Open::CREATE.mode(0o777));
    assert_eq!(file.stat().unwrap(), before, "opening changes nothing");
    assert_eq!(fs.read_file("file"), b"stays");
}
