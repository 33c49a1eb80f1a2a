//! Reading directories, also while they change.

use std::collections::{BTreeMap, BTreeSet};

use nacre_engine::{FileKind, Kind};

use super::super::fs::{Fs, View};
use super::super::runner::Case;
use super::super::target::{Listed, Need};
use super::case;

pub(super) const CASES: &[Case] = &[
    case("readdir-kinds", &[], kinds),
    case("readdir-errors", &[], errors),
    case("readdir-in-pieces", &[], in_pieces),
    case("readdir-cookies", &[], cookies),
    case("readdir-while-adding", &[Need::StableCookies], while_adding),
    case("readdir-while-removing", &[Need::StableCookies], while_removing),
    case("readdir-while-renaming", &[Need::StableCookies], while_renaming),
    case("readdir-rename-as-read", &[Need::StableCookies], rename_as_read),
    case("readdir-replace-as-read", &[Need::StableCookies], replace_as_read),
    case("readdir-make-as-read", &[Need::StableCookies], make_as_read),
    case("readdir-move-as-read", &[Need::StableCookies], move_as_read),
    case("readdir-removed-position", &[Need::StableCookies], removed_position),
    case("readdir-remove-as-read", &[Need::StableCookies], remove_as_read),
    case("readdir-remount", &[Need::Remount, Need::StableCookies], remounted),
    case("directory-filled-and-emptied", &[], filled_and_emptied),
    case("directory-deep", &[], deep),
    case("directory-similar-names", &[], similar_names),
];

fn make(fs: View<'_>, dir: &str, count: usize) {
    for index in 0..count {
        fs.touch(format!("{dir}/file-{index:05}"));
    }
}

fn name(index: usize) -> Vec<u8> {
    format!("file-{index:05}").into_bytes()
}

/// Reads on from a cookie in pieces until the end.
fn rest(fs: View<'_>, dir: &str, mut cookie: u64, piece: usize) -> Vec<Listed> {
    let mut all = Vec::new();
    loop {
        let entries = fs.read_dir(dir, cookie, piece).expect("readdir");
        let Some(last) = entries.last() else { return all };
        cookie = last.cookie;
        all.extend(entries);
    }
}

/// Counts how often each name was reported.
fn count(entries: &[Listed]) -> BTreeMap<Vec<u8>, usize> {
    let mut counts = BTreeMap::new();
    for entry in entries {
        *counts.entry(entry.name.clone()).or_insert(0) += 1;
    }
    counts
}

/// Every name that was there all the while must have been reported exactly once.
fn assert_once(entries: &[Listed], steady: impl Iterator<Item = usize>) {
    let counts = count(entries);
    for index in steady {
        let times = counts.get(&name(index)).copied().unwrap_or(0);
        assert_eq!(times, 1, "file-{index:05} was reported {times} times");
    }
}

fn kinds(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.touch("file");
    fs.symlink("t", "symlink").unwrap();
    fs.mknod("fifo", FileKind::Fifo, 0o600, 0).unwrap();
    fs.mknod("socket", FileKind::Socket, 0o600, 0).unwrap();
    let entries = fs.list("");
    assert_eq!(entries.len(), 5);
    for entry in entries {
        let stat = fs.stat(&entry.name);
        assert_eq!((entry.kind, entry.number), (stat.kind, stat.number), "{:?}", entry.name);
    }
    assert!(fs.list("dir").is_empty());
}

fn errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    assert_eq!(fs.read_dir("file", 0, 1), Err(Kind::NotDirectory));
    assert_eq!(fs.read_dir("no", 0, 1), Err(Kind::NotFound));
}

fn in_pieces(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    make(fs, "dir", 150);
    for piece in [1, 2, 7, 64, 1000] {
        let entries = rest(fs, "dir", 0, piece);
        assert_eq!(entries.len(), 150, "in pieces of {piece}");
        assert_once(&entries, 0..150);
    }
}

fn cookies(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    make(fs, "dir", 60);
    let all = fs.list("dir");
    let distinct: BTreeSet<u64> = all.iter().map(|entry| entry.cookie).collect();
    assert_eq!(distinct.len(), 60, "each entry has a cookie of its own");
    for (index, entry) in all.iter().enumerate() {
        assert_eq!(rest(fs, "dir", entry.cookie, 1000), all[index + 1..], "after entry {index}");
    }
}

fn while_adding(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    make(fs, "dir", 200);
    let mut entries = fs.read_dir("dir", 0, 90).unwrap();
    for index in 0..300 {
        fs.touch(format!("dir/new-{index}"));
    }
    entries.extend(rest(fs, "dir", entries.last().unwrap().cookie, 10));
    assert_once(&entries, 0..200);
    assert!(count(&entries).values().all(|times| *times == 1), "nothing is reported twice");
}

fn while_removing(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    make(fs, "dir", 200);
    let mut entries = fs.read_dir("dir", 0, 90).unwrap();
    for index in (0..200).step_by(3) {
        fs.unlink(format!("dir/file-{index:05}")).unwrap();
    }
    let later = rest(fs, "dir", entries.last().unwrap().cookie, 10);
    assert!(
        later.iter().all(|entry| fs.exists([&b"dir/"[..], &entry.name].concat())),
        "what is gone is not listed"
    );
    entries.extend(later);
    assert_once(&entries, (0..200).filter(|index| index % 3 != 0));
}

fn while_renaming(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.directory("other");
    make(fs, "dir", 200);
    let mut entries = fs.read_dir("dir", 0, 90).unwrap();
    for index in (0..200).step_by(4) {
        fs.rename(format!("dir/file-{index:05}"), format!("dir/renamed-{index}")).unwrap();
    }
    for index in (1..200).step_by(4) {
        fs.rename(format!("dir/file-{index:05}"), format!("other/{index}")).unwrap();
    }
    entries.extend(rest(fs, "dir", entries.last().unwrap().cookie, 10));
    assert_once(&entries, (0..200).filter(|index| index % 4 > 1));
    assert_eq!(fs.list("dir").len(), 150);
}

/// Names that stay, beside those that change while they are read.
const STEADY: usize = 100;
/// Names that change.
const RESTLESS: usize = 200;

/// Reads a directory in small pieces, and disturbs each restless name as soon as it is reported. The reading must end
/// in any case, and each name that stays is reported once. Returns how often each name was reported.
fn disturbed(fs: View<'_>, piece: usize, mut disturb: impl FnMut(&[u8])) -> BTreeMap<Vec<u8>, usize> {
    fs.directory("dir");
    make(fs, "dir", STEADY);
    (0..RESTLESS).for_each(|index| fs.touch(format!("dir/restless-{index:05}")));
    let (mut cookie, mut all) = (0, Vec::new());
    loop {
        let entries = fs.read_dir("dir", cookie, piece).unwrap();
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        for entry in &entries {
            if !entry.name.starts_with(b"file-") {
                disturb(&entry.name);
            }
        }
        all.extend(entries);
        assert!(all.len() < 10 * (STEADY + RESTLESS), "reading does not end");
    }
    assert_once(&all, 0..STEADY);
    count(&all)
}

fn in_dir(name: &[u8]) -> Vec<u8> {
    [b"dir/", name].concat()
}

fn remove_all(fs: View<'_>) {
    for name in fs.names("dir") {
        fs.unlink(in_dir(&name)).unwrap();
    }
    fs.rmdir("dir").unwrap();
}

/// Reading never ended: a name that was renamed was the last one from then on.
fn rename_as_read(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for (round, piece) in [1, 13, 1000].into_iter().enumerate() {
        let counts = disturbed(fs, piece, |name| {
            let other = match name.strip_suffix(b".new") {
                Some(old) => old.to_vec(),
                None => [name, b".new"].concat(),
            };
            fs.rename(in_dir(name), in_dir(&other)).unwrap();
        });
        assert!(counts.values().all(|times| *times <= 3), "in round {round}: {counts:?}");
        remove_all(fs);
        // Each time to a name that there never was.
        let mut fresh = 0;
        disturbed(fs, piece, |name| {
            fresh += 1;
            fs.rename(in_dir(name), in_dir(format!("fresh-{fresh}").as_bytes())).unwrap();
        });
        remove_all(fs);
    }
}

/// A name that another file takes has been there all the while.
fn replace_as_read(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("other");
    for from in ["other/new", "dir/restless-new"] {
        let mut seen = 0;
        let counts = disturbed(fs, 7, |name| {
            if !name.starts_with(b"restless-0") {
                return;
            }
            seen += 1;
            fs.touch(from);
            fs.rename(from, in_dir(name)).unwrap();
            // One before it, and one behind, as may be.
            fs.touch(from);
            fs.rename(from, format!("dir/restless-{:05}", seen * 71 % RESTLESS)).unwrap();
        });
        for index in 0..RESTLESS {
            let name = format!("restless-{index:05}").into_bytes();
            assert_eq!(counts.get(&name), Some(&1), "restless-{index:05}, replaced by {from}");
        }
        remove_all(fs);
    }
}

/// Another name is made for each that is reported.
fn make_as_read(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mut made = 0;
    let counts = disturbed(fs, 11, |_| {
        made += 1;
        fs.touch(format!("dir/made-{made}"));
    });
    assert!(counts.values().all(|times| *times == 1), "a name is reported once: {counts:?}");
}

/// Each name leaves the directory when it is reported, and comes back at once.
fn move_as_read(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("other");
    let counts = disturbed(fs, 3, |name| {
        fs.rename(in_dir(name), "other/guest").unwrap();
        fs.rename("other/guest", in_dir(name)).unwrap();
    });
    assert!(counts.values().all(|times| *times <= 3), "a name is reported a few times: {counts:?}");
}

fn removed_position(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    make(fs, "dir", 50);
    let all = fs.list("dir");
    let position = &all[20];
    fs.unlink([&b"dir/"[..], &position.name].concat()).unwrap();
    assert_eq!(rest(fs, "dir", position.cookie, 7), all[21..], "a cookie outlives its entry");
}

fn remove_as_read(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    make(fs, "dir", 500);
    let mut cookie = 0;
    loop {
        let entries = fs.read_dir("dir", cookie, 13).unwrap();
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        for entry in &entries {
            fs.unlink([&b"dir/"[..], &entry.name].concat()).unwrap();
        }
    }
    assert!(fs.list("dir").is_empty(), "one pass removes everything");
}

fn remounted(fs: &mut Fs<'_>) {
    let view = fs.view();
    view.directory("dir");
    make(view, "dir", 100);
    view.unlink("dir/file-00030").unwrap();
    view.rename("dir/file-00031", "dir/renamed").unwrap();
    let all = view.list("dir");
    fs.remount();
    let view = fs.view();
    assert_eq!(view.list("dir"), all, "order and cookies are the same");
    assert_eq!(rest(view, "dir", all[49].cookie, 9), all[50..]);
    view.touch("dir/another");
    let after = view.list("dir");
    let another = after.iter().find(|entry| entry.name == b"another").unwrap();
    assert!(all.iter().all(|entry| entry.cookie != another.cookie), "a new entry has a new cookie");
}

fn filled_and_emptied(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    for round in 0..12 {
        make(fs, "dir", 300);
        assert_eq!(fs.list("dir").len(), 300, "round {round}");
        for index in 0..300 {
            fs.unlink(format!("dir/file-{index:05}")).unwrap();
        }
        assert!(fs.list("dir").is_empty(), "round {round}");
    }
    fs.rmdir("dir").unwrap();
}

fn deep(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mut path = "d".to_owned();
    for _ in 0..600 {
        fs.directory(&path);
        path.push_str("/d");
    }
    fs.write_file(&path, b"bottom");
    assert_eq!(fs.read_file(&path), b"bottom");
    fs.unlink(&path).unwrap();
    for _ in 0..600 {
        path.truncate(path.len() - 2);
        fs.rmdir(&path).unwrap();
    }
    assert!(fs.list("").is_empty());
}

fn similar_names(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mut names = BTreeSet::new();
    for len in 1..=255 {
        names.insert("a".repeat(len));
        names.insert(format!("{}b", "a".repeat(len - 1)));
    }
    for (index, name) in names.iter().enumerate() {
        fs.write_file(name, &index.to_le_bytes());
    }
    for (index, name) in names.iter().enumerate() {
        assert_eq!(fs.read_file(name), index.to_le_bytes(), "{name}");
    }
    assert!(!fs.exists("c"));
    assert_eq!(fs.list("").len(), names.len());
}
