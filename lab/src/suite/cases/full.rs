//! A full device.

use nacre_engine::{FallocateMode, Kind};

use super::super::fs::{Fs, View, assert_same, pattern, read_exactly};
use super::super::runner::Case;
use super::super::target::{Need, Open};
use super::case;

const SMALL: &[Need] = &[Need::SmallDevice];

pub(super) const CASES: &[Case] = &[
    case("full-by-one-file", SMALL, one_file),
    case("full-by-many-files", SMALL, many_files),
    case("full-by-names", SMALL, names),
    case("full-and-still-usable", SMALL, usable),
    case("full-by-allocation", &[Need::SmallDevice, Need::Allocate], allocation),
    case("full-and-zeroed-or-nothing", &[Need::SmallDevice, Need::ZeroRange], zeroed),
    case("full-and-overwritten", SMALL, overwritten),
    case("full-and-preallocated", &[Need::SmallDevice, Need::Allocate], preallocated),
    case("full-of-preallocated", &[Need::SmallDevice, Need::Allocate], full_of_preallocated),
    case("full-of-small-preallocated", &[Need::SmallDevice, Need::Allocate], full_of_small_preallocated),
    case("full-and-many-writers", SMALL, many_writers),
    case("full-and-remounted", &[Need::SmallDevice, Need::Remount], remounted),
];

/// Appends until there is no space, in large and then in small pieces; returns how many bytes went in.
fn fill(fs: View<'_>, path: &str) -> u64 {
    let file = fs.opened(path, Open::CREATE);
    let mut offset = file.stat().expect("fstat").size;
    for piece in [1 << 20, 65_536, 4096] {
        loop {
            match file.write_at(offset, &pattern(7, offset, piece)) {
                Ok(count) => {
                    assert!(count > 0, "a write wrote nothing");
                    offset += count as u64;
                }
                Err(kind) => {
                    assert_eq!(kind, Kind::NoSpace);
                    break;
                }
            }
        }
    }
    assert_eq!(file.stat().expect("fstat").size, offset, "a refused write leaves nothing behind");
    offset
}

/// Both amounts are the same, except for bookkeeping.
fn assert_as_much(second: u64, first: u64) {
    assert!(second + first / 100 >= first, "first {first} bytes went in, then only {second}");
}

fn one_file(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let total = fs.target().space().unwrap().total;
    let first = fill(fs, "file");
    assert!(first > total / 2, "{first} of {total} bytes could be used");
    assert!(fs.target().space().unwrap().available < 1 << 20);
    fs.unlink("file").unwrap();
    for round in 0..3 {
        assert_as_much(fill(fs, "file"), first);
        if round == 1 {
            fs.truncate("file", 0).unwrap();
        }
        fs.unlink("file").unwrap();
    }
}

fn fill_with_files(fs: View<'_>, dir: &str) -> usize {
    let mut count = 0;
    loop {
        let path = format!("{dir}/file-{count}");
        let file = match fs.open(&path, Open::NEW) {
            Ok(file) => file,
            Err(Kind::NoSpace) => return count,
            Err(kind) => panic!("create {path}: {kind:?}"),
        };
        match file.write_at(0, &pattern(count as u64, 0, 20_000)) {
            Ok(20_000) => count += 1,
            Ok(_) | Err(Kind::NoSpace) => return count,
            Err(kind) => panic!("write {path}: {kind:?}"),
        }
    }
}

fn many_files(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mut first = None;
    for _ in 0..3 {
        fs.directory("dir");
        let count = fill_with_files(fs, "dir");
        assert!(count > 100);
        for index in (0..count).step_by(97) {
            let found = fs.read_file(format!("dir/file-{index}"));
            assert_same(&found, &pattern(index as u64, 0, 20_000), "on a full device");
        }
        for name in fs.names("dir") {
            fs.unlink([&b"dir/"[..], &name].concat()).unwrap();
        }
        fs.rmdir("dir").unwrap();
        let first = *first.get_or_insert(count);
        assert_as_much(count as u64, first as u64);
    }
}

fn names(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fill(fs, "big");
    // Names may still fit, but not for ever; and each that is there can go.
    fs.directory_or_full("dir");
    let mut count = 0;
    while count < 200_000 && fs.open(format!("{:0>200}", count), Open::NEW).is_ok() {
        count += 1;
    }
    for index in 0..count {
        fs.unlink(format!("{index:0>200}")).unwrap();
    }
    let size = fs.stat("big").size;
    assert_eq!(fs.truncate("big", size / 2), Ok(()));
    assert!(fill(fs, "second") > 0);
}

fn usable(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("keep", b"kept");
    fs.directory("dir");
    for index in 0..50 {
        fs.write_file(format!("dir/file-{index}"), &pattern(index, 0, 5000));
    }
    let size = fill(fs, "big");
    assert_eq!(fs.read_file("keep"), b"kept");
    let big = fs.opened("big", Open::READ);
    assert_same(
        &read_exactly(big.as_ref(), size - 4096, 4096),
        &pattern(7, size - 4096, 4096),
        "the last that went in",
    );
    for index in 0..50 {
        assert_eq!(fs.unlink(format!("dir/file-{index}")), Ok(()));
    }
    assert_eq!(fs.rmdir("dir"), Ok(()));
    fs.write_file("new", &pattern(1, 0, 50_000));
    assert_same(&fs.read_file("new"), &pattern(1, 0, 50_000), "in the space that was freed");
}

fn allocation(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let space = fs.target().space().unwrap();
    assert_eq!(file.fallocate(FallocateMode::Allocate, 0, space.total * 2), Err(Kind::NoSpace));
    assert_eq!(file.stat().unwrap().size, 0, "all or nothing");
    let lost = space.free.saturating_sub(fs.target().space().unwrap().free);
    assert!(lost < 64 << 10, "{lost} bytes are lost");
    let most = space.available / 10 * 9;
    assert_eq!(file.fallocate(FallocateMode::Allocate, 0, most), Ok(()));
    fill(fs, "other");
    // Allocated blocks are there for the file, however full the device is.
    for offset in (0..most).step_by(1 << 20) {
        assert_eq!(file.write_at(offset, &pattern(1, offset, 4096)), Ok(4096), "at {offset}");
    }
}

/// A range is zeroed when its holes find space, or stays as it is: its edges, too, which need none.
fn zeroed(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let (end, bytes) = (40 * 4096, pattern(3, 0, 5000));
    assert_eq!(file.write_at(end, &bytes), Ok(bytes.len()));
    fill(fs, "big");
    let whole = read_exactly(file.as_ref(), 0, end as usize + bytes.len());
    match file.fallocate(FallocateMode::ZeroRangeKeepSize, 3 * 4096, end + 1000 - 3 * 4096) {
        Err(Kind::NoSpace) => {}
        other => panic!("37 blocks on a full device: {other:?}"),
    }
    assert_same(&read_exactly(file.as_ref(), 0, whole.len()), &whole, "after a refusal");
    // Where a write needs a block for its first part, what it overwrites behind that stays.
    let from = end - 4096;
    assert_eq!(file.write_at(from, &[9; 8192]), Err(Kind::NoSpace));
    assert_same(&read_exactly(file.as_ref(), 0, whole.len()), &whole, "after a refused write");
}

fn remounted(fs: &mut Fs<'_>) {
    let first = fill(fs.view(), "file");
    fs.remount();
    let view = fs.view();
    assert_eq!(view.stat("file").size, first);
    let file = view.opened("file", Open::BOTH);
    assert_same(&read_exactly(file.as_ref(), 0, 1 << 20), &pattern(7, 0, 1 << 20), "after the mount");
    drop(file);
    view.unlink("file").unwrap();
    fs.remount();
    assert_as_much(fill(fs.view(), "file"), first);
}

/// A number below `below`, another one each time.
fn scattered(turn: u64, below: u64) -> u64 {
    turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % below
}

/// Existing blocks can be overwritten however full the device is, in pieces of any size, and again and again.
fn overwritten(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let mut content = pattern(1, 0, 300_000);
    fs.write_file("file", &content);
    fill(fs, "big");
    let file = fs.opened("file", Open::BOTH);
    for turn in 0..3000u64 {
        let len = [1, 4096, 65_536, 5000, 20_000][turn as usize % 5];
        let offset = scattered(turn, (content.len() - len) as u64);
        let offset = if turn % 3 == 0 { offset } else { offset / 4096 * 4096 };
        let bytes = pattern(turn, offset, len);
        assert_eq!(file.write_at(offset, &bytes), Ok(len), "{len} bytes at {offset}, turn {turn}");
        content[offset as usize..offset as usize + len].copy_from_slice(&bytes);
    }
    assert_same(&read_exactly(file.as_ref(), 0, content.len()), &content, "overwritten on a full device");
    // All of a file that has nearly all space, as one write.
    let size = fs.stat("big").size.min(8 << 20);
    let big = fs.opened("big", Open::BOTH);
    let bytes = pattern(9, 0, size as usize);
    assert_eq!(big.write_at(0, &bytes), Ok(bytes.len()));
    assert_same(&read_exactly(big.as_ref(), 0, bytes.len()), &bytes, "overwritten as a whole");
    assert_eq!(fs.unlink("file"), Ok(()));
    assert_eq!(fs.unlink("big"), Ok(()));
}

/// posix_fallocate(3): later writes do not fail for want of space.
fn preallocated(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let size = 1 << 20;
    assert_eq!(file.fallocate(FallocateMode::Allocate, 0, size), Ok(()));
    fill(fs, "big");
    for pass in 0..3 {
        for offset in (0..size).step_by(65_536) {
            assert_eq!(file.write_at(offset, &pattern(pass, offset, 65_536)), Ok(65_536), "pass {pass}");
        }
        assert_same(
            &read_exactly(file.as_ref(), 0, size as usize),
            &pattern(pass, 0, size as usize),
            "a pass",
        );
    }
    fs.truncate("big", 0).unwrap();
}

/// Nearly all of the device is one file that was allocated and not written, and is written block by block in any order.
fn full_of_preallocated(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let size = fs.target().space().unwrap().available / 10 * 9 / 4096 * 4096;
    assert_eq!(file.fallocate(FallocateMode::Allocate, 0, size), Ok(()));
    fill(fs, "big");
    let blocks = size / 4096;
    let mut last = std::collections::BTreeMap::new();
    for turn in 0..2 * blocks {
        let block = scattered(turn / 2 * 7 + turn % 2, blocks);
        let (within, len) = if turn % 5 == 0 { (100, 900) } else { (0, 4096) };
        let bytes = pattern(turn, 0, len);
        assert_eq!(file.write_at(block * 4096 + within, &bytes), Ok(len), "block {block} in turn {turn}");
        last.insert(block, (within, bytes));
    }
    for (block, (within, bytes)) in last {
        let found = read_exactly(file.as_ref(), block * 4096 + within, bytes.len());
        assert_same(&found, &bytes, "the last that was written");
    }
    assert_eq!(fs.unlink("file"), Ok(()));
    assert_eq!(fs.unlink("big"), Ok(()));
}

/// The device is full of small files that were allocated and not written. A block of each is written.
fn full_of_small_preallocated(fs: &mut Fs<'_>) {
    const SIZE: usize = 32 << 10;
    let fs = fs.view();
    fs.directory("dir");
    let path = |index: u64| format!("dir/file-{index}");
    let allocates = |index: &u64| match fs.open(path(*index), Open::NEW) {
        Ok(file) => match file.fallocate(FallocateMode::Allocate, 0, SIZE as u64) {
            Ok(()) => true,
            Err(kind) => {
                assert_eq!(kind, Kind::NoSpace);
                fs.unlink(path(*index)).unwrap();
                false
            }
        },
        Err(kind) => {
            assert_eq!(kind, Kind::NoSpace);
            false
        }
    };
    let count = (0u64..).take_while(allocates).count() as u64;
    assert!(count > 50, "{count} files");
    let (bytes, mut content) = (pattern(1, 8192, 4096), vec![0; SIZE]);
    for index in 0..count {
        let file = fs.opened(path(index), Open::BOTH);
        assert_eq!(file.write_at(8192, &bytes), Ok(bytes.len()), "file {index} of {count}");
    }
    content[8192..8192 + bytes.len()].copy_from_slice(&bytes);
    for index in 0..count {
        assert_same(&fs.read_file(path(index)), &content, "of allocated space");
    }
}

/// Many files, by many writers at once.
fn many_writers(fs: &mut Fs<'_>) {
    const WRITERS: u64 = 4;
    let fs = fs.view();
    for index in 0..64 {
        fs.write_file(format!("file-{index}"), &pattern(index, 0, 40_000));
    }
    fill(fs, "big");
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for turn in 0..400 {
                    let index = writer + WRITERS * scattered(turn, 64 / WRITERS);
                    let file = fs.opened(format!("file-{index}"), Open::BOTH);
                    let offset = scattered(turn + writer, 9) * 4096;
                    assert_eq!(file.write_at(offset, &pattern(turn, offset, 4000)), Ok(4000), "turn {turn}");
                    let seen = read_exactly(file.as_ref(), offset, 4000);
                    assert_same(&seen, &pattern(turn, offset, 4000), "what was just written");
                }
            });
        }
    });
    assert_eq!(fs.unlink("big"), Ok(()));
}
