//! Extended attributes.

use nacre_engine::{FileKind, Kind, XattrMode};

use super::super::fs::{Fs, pattern};
use super::super::runner::Case;
use super::super::target::{Need, Open};
use super::{assert_times, case};

const USER: &[Need] = &[Need::UserXattrs];

pub(super) const CASES: &[Case] = &[
    case("xattr-set-and-get", USER, set_and_get),
    case("xattr-modes", USER, modes),
    case("xattr-errors", USER, errors),
    case("xattr-sizes", &[Need::UserXattrs, Need::BigXattrs], sizes),
    case("xattr-many", USER, many),
    case("xattr-long-names", USER, long_names),
    case("xattr-overwrite-often", USER, overwrite_often),
    case("xattr-of-other-kinds", &[Need::UserXattrs, Need::TrustedXattrs], other_kinds),
    case("xattr-goes-with-the-inode", USER, goes_with_inode),
    case("xattr-remount", &[Need::UserXattrs, Need::BigXattrs, Need::Remount], remount),
];

fn set_and_get(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"content");
    fs.directory("dir");
    for path in ["file", "dir"] {
        assert!(fs.xattr_names(path, "user.").is_empty());
        for value in [&b"value"[..], b"", b"\0binary\xff\0", b"other"] {
            assert_times(fs, path, "c", || fs.set_xattr(path, "user.a", value, XattrMode::Set).unwrap());
            assert_eq!(fs.get_xattr(path, "user.a").unwrap(), value);
        }
        fs.set_xattr(path, "user.b", "second", XattrMode::Set).unwrap();
        assert_eq!(fs.xattr_names(path, "user."), [b"user.a", b"user.b"]);
        assert_times(fs, path, "c", || fs.remove_xattr(path, "user.a").unwrap());
        assert_eq!(fs.get_xattr(path, "user.a"), Err(Kind::NoAttribute));
        assert_eq!(fs.get_xattr(path, "user.b").unwrap(), b"second");
    }
    assert_eq!(fs.read_file("file"), b"content");
}

fn modes(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    assert_eq!(fs.set_xattr("file", "user.a", "1", XattrMode::Replace), Err(Kind::NoAttribute));
    assert_eq!(fs.set_xattr("file", "user.a", "1", XattrMode::Create), Ok(()));
    assert_eq!(fs.set_xattr("file", "user.a", "2", XattrMode::Create), Err(Kind::Exists));
    assert_eq!(fs.get_xattr("file", "user.a").unwrap(), b"1");
    assert_eq!(fs.set_xattr("file", "user.a", "3", XattrMode::Replace), Ok(()));
    assert_eq!(fs.get_xattr("file", "user.a").unwrap(), b"3");
}

fn errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    assert_eq!(fs.get_xattr("no", "user.a"), Err(Kind::NotFound));
    assert_eq!(fs.get_xattr("file", "user.a"), Err(Kind::NoAttribute));
    assert_eq!(fs.remove_xattr("file", "user.a"), Err(Kind::NoAttribute));
    assert_eq!(fs.set_xattr("file", "strange.a", "1", XattrMode::Set), Err(Kind::Unsupported));
    assert_eq!(fs.set_xattr("file", "user.a", vec![0; 65_537], XattrMode::Set), Err(Kind::TooBig));
    assert!(fs.xattr_names("file", "user.").is_empty());
}

fn sizes(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    for (round, len) in
        [1, 15, 16, 17, 63, 64, 100, 255, 256, 1000, 4000, 4096, 4097, 20_000, 65_536, 3, 65_535, 0]
            .into_iter()
            .enumerate()
    {
        let value = pattern(round as u64, 0, len);
        fs.set_xattr("file", "user.value", &value, XattrMode::Set).unwrap();
        assert_eq!(fs.get_xattr("file", "user.value").unwrap(), value, "{len} bytes");
    }
}

fn many(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    let value = |index: u64| pattern(index, 0, (index as usize * 13) % 200);
    for index in 0..100 {
        fs.set_xattr("file", format!("user.name-{index:03}"), value(index), XattrMode::Create).unwrap();
    }
    for index in (0..100).step_by(3) {
        fs.remove_xattr("file", format!("user.name-{index:03}")).unwrap();
    }
    let left: Vec<u64> = (0..100).filter(|index| index % 3 != 0).collect();
    let names: Vec<_> = left.iter().map(|index| format!("user.name-{index:03}").into_bytes()).collect();
    assert_eq!(fs.xattr_names("file", "user."), names);
    for index in left {
        assert_eq!(fs.get_xattr("file", format!("user.name-{index:03}")).unwrap(), value(index));
    }
}

fn long_names(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    for len in [6, 60, 64, 128, 254, 255] {
        let name = format!("user.{}", "n".repeat(len - 5));
        fs.set_xattr("file", &name, name.as_bytes(), XattrMode::Create).unwrap();
    }
    for len in [6, 60, 64, 128, 254, 255] {
        let name = format!("user.{}", "n".repeat(len - 5));
        assert_eq!(fs.get_xattr("file", &name).unwrap(), name.as_bytes());
    }
    let other = "user.with space, \u{fc} and /slash";
    fs.set_xattr("file", other, "1", XattrMode::Create).unwrap();
    assert_eq!(fs.get_xattr("file", other).unwrap(), b"1");
}

fn overwrite_often(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    for round in 0..1500u64 {
        let value = pattern(round, 0, (round as usize * 31) % 700);
        fs.set_xattr("file", "user.value", &value, XattrMode::Set).unwrap();
        if round % 50 == 0 {
            assert_eq!(fs.get_xattr("file", "user.value").unwrap(), value);
        }
    }
    assert_eq!(fs.xattr_names("file", "user."), [b"user.value"]);
}

fn other_kinds(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.symlink("t", "link").unwrap();
    fs.mknod("fifo", FileKind::Fifo, 0o600, 0).unwrap();
    for path in ["link", "fifo"] {
        assert_eq!(fs.set_xattr(path, "user.a", "1", XattrMode::Set), Err(Kind::NotPermitted), "{path}");
        fs.set_xattr(path, "trusted.a", path, XattrMode::Set).unwrap();
        assert_eq!(fs.get_xattr(path, "trusted.a").unwrap(), path.as_bytes());
    }
    assert_eq!(fs.read_link("link").unwrap(), b"t");
}

fn goes_with_inode(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.set_xattr("file", "user.a", "1", XattrMode::Set).unwrap();
    fs.link("file", "link").unwrap();
    fs.rename("file", "moved").unwrap();
    assert_eq!(fs.get_xattr("link", "user.a").unwrap(), b"1");
    assert_eq!(fs.get_xattr("moved", "user.a").unwrap(), b"1");
    fs.truncate("moved", 0).unwrap();
    drop(fs.opened("moved", Open { truncate: true, ..Open::WRITE }));
    assert_eq!(fs.get_xattr("moved", "user.a").unwrap(), b"1");
    fs.unlink("link").unwrap();
    fs.unlink("moved").unwrap();
    for index in 0..20 {
        fs.touch(format!("new-{index}"));
        assert!(fs.xattr_names(format!("new-{index}"), "user.").is_empty());
    }
}

fn remount(fs: &mut Fs<'_>) {
    let view = fs.view();
    view.touch("file");
    view.directory("dir");
    for len in [0, 10, 300, 5000, 65_536] {
        let value = pattern(len as u64, 0, len);
        view.set_xattr("file", format!("user.len-{len}"), &value, XattrMode::Set).unwrap();
    }
    view.set_xattr("dir", "user.a", "first", XattrMode::Set).unwrap();
    view.set_xattr("dir", "user.b", "gone", XattrMode::Set).unwrap();
    view.set_xattr("dir", "user.a", "second", XattrMode::Set).unwrap();
    view.remove_xattr("dir", "user.b").unwrap();
    fs.remount();
    let view = fs.view();
    for len in [0, 10, 300, 5000, 65_536] {
        let value = view.get_xattr("file", format!("user.len-{len}")).unwrap();
        assert_eq!(value, pattern(len as u64, 0, len), "{len} bytes");
    }
    assert_eq!(view.xattr_names("dir", "user."), [b"user.a"]);
    assert_eq!(view.get_xattr("dir", "user.a").unwrap(), b"second");
}
