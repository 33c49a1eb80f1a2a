//! Many of everything.

use super::super::fs::{Fs, assert_same, pattern};
use super::super::runner::Case;
use super::super::target::Need;
use super::case;

pub(super) const CASES: &[Case] = &[
    case("many-small-files", &[], many_files),
    case("many-small-files-remount", &[Need::Remount], many_files_remount),
    case("many-directories", &[], many_directories),
    case("directory-of-20000", &[], big_directory),
];

fn size_of(index: usize) -> usize {
    [0, 1, 17, 64, 100, 511, 1000, 4095, 4096, 4097, 6000][index % 11]
}

fn many_files(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for dir in 0..10 {
        fs.directory(format!("dir-{dir}"));
    }
    for index in 0..3000 {
        fs.write_file(format!("dir-{}/file-{index}", index % 10), &pattern(index as u64, 0, size_of(index)));
    }
    for index in (0..3000).step_by(2) {
        fs.unlink(format!("dir-{}/file-{index}", index % 10)).unwrap();
    }
    for index in (1..3000).step_by(2) {
        let path = format!("dir-{}/file-{index}", index % 10);
        assert_same(&fs.read_file(&path), &pattern(index as u64, 0, size_of(index)), &path);
    }
}

fn many_files_remount(fs: &mut Fs<'_>) {
    let view = fs.view();
    for index in 0..2000 {
        view.write_file(format!("file-{index}"), &pattern(index as u64, 0, size_of(index)));
    }
    for index in (0..2000).step_by(3) {
        view.unlink(format!("file-{index}")).unwrap();
        view.write_file(format!("again-{index}"), b"again");
    }
    fs.remount();
    let view = fs.view();
    assert_eq!(view.list("").len(), 2000);
    for index in 0..2000 {
        if index % 3 == 0 {
            assert_eq!(view.read_file(format!("again-{index}")), b"again");
        } else {
            let path = format!("file-{index}");
            assert_same(&view.read_file(&path), &pattern(index as u64, 0, size_of(index)), &path);
        }
    }
}

fn many_directories(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let before = fs.stat("").links;
    for index in 0..1000 {
        fs.directory(format!("dir-{index}"));
        fs.directory(format!("dir-{index}/inner"));
    }
    assert_eq!(fs.stat("").links, before + 1000);
    for index in (0..1000).step_by(2) {
        fs.rename(format!("dir-{index}/inner"), format!("dir-{}/second", index + 1)).unwrap();
        fs.rmdir(format!("dir-{index}")).unwrap();
    }
    assert_eq!(fs.stat("").links, before + 500);
    assert_eq!(fs.stat("dir-1").links, 4);
}

fn big_directory(fs: &mut Fs<'_>) {
    const COUNT: usize = 20_000;
    let fs = fs.view();
    for index in 0..COUNT {
        fs.touch(format!("an-entry-with-a-name-of-its-own-{index}"));
    }
    assert_eq!(fs.list("").len(), COUNT);
    for index in (0..COUNT).step_by(37) {
        assert!(fs.exists(format!("an-entry-with-a-name-of-its-own-{index}")));
        assert!(!fs.exists(format!("an-entry-that-is-not-there-{index}")));
    }
    for index in (0..COUNT).step_by(2) {
        fs.unlink(format!("an-entry-with-a-name-of-its-own-{index}")).unwrap();
    }
    let mut odd: Vec<_> =
        (1..COUNT).step_by(2).map(|i| format!("an-entry-with-a-name-of-its-own-{i}").into_bytes()).collect();
    odd.sort();
    assert_eq!(fs.names(""), odd);
}
