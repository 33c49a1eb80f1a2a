//! Holes: fallocate, SEEK_HOLE and SEEK_DATA, files larger than the device.

use nacre_engine::{FallocateMode, Kind, SeekTo};

use super::super::fs::{Fs, assert_same, data_runs, fallocate, pattern, read_exactly, write_all};
use super::super::runner::Case;
use super::super::target::{Need, Open};
use super::case;

const BLOCK: u64 = 4096;

pub(super) const CASES: &[Case] = &[
    case("allocate", &[Need::Allocate], allocate),
    case("allocate-keeps-content", &[Need::Allocate], allocate_keeps),
    case("allocate-and-truncate", &[Need::Allocate], allocate_and_truncate),
    case("punch-every-alignment", &[Need::PunchHole], punch_alignments),
    case("punch-frees", &[Need::PunchHole, Need::ExactAllocation], punch_frees),
    case("punch-at-the-end", &[Need::PunchHole], punch_at_the_end),
    case("punch-and-write-again", &[Need::PunchHole], punch_and_write),
    case("zero-every-alignment", &[Need::ZeroRange], zero_alignments),
    case("zero-grows-or-keeps", &[Need::ZeroRange], zero_grows),
    case("fallocate-errors", &[Need::Allocate], errors),
    case("fallocate-beyond-the-largest", &[Need::Allocate, Need::SizeLimit], beyond_largest),
    case("seek-runs", &[Need::SeekHole], seek_runs),
    case("seek-errors", &[Need::SeekHole], seek_errors),
    case("seek-after-punch", &[Need::SeekHole, Need::PunchHole], seek_after_punch),
    case("seek-after-truncate", &[Need::SeekHole], seek_after_truncate),
    case("huge-file", &[Need::HugeFiles], huge),
    case("huge-file-many-extents", &[Need::HugeFiles], huge_extents),
    case("allocated-is-counted", &[Need::ExactAllocation], counted),
    case("fallocate-remount", &[Need::Allocate, Need::PunchHole, Need::Remount], remount),
];

fn allocate(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    fallocate(file.as_ref(), FallocateMode::AllocateKeepSize, 0, 100_000);
    let stat = file.stat().unwrap();
    assert_eq!(stat.size, 0);
    assert!(stat.allocated >= 100_000, "{} bytes are allocated", stat.allocated);
    fallocate(file.as_ref(), FallocateMode::Allocate, 5000, 100_000);
    let stat = file.stat().unwrap();
    assert_eq!(stat.size, 105_000);
    assert!(stat.allocated >= 105_000);
    assert_eq!(read_exactly(file.as_ref(), 0, 105_000), vec![0; 105_000]);
    fallocate(file.as_ref(), FallocateMode::Allocate, 0, 10);
    assert_eq!(file.stat().unwrap().size, 105_000, "it never shrinks");
}

fn allocate_keeps(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut expected = vec![0; 80_000];
    for (offset, len) in [(100, 5000), (20_000, 1), (40_960, 4096)] {
        let bytes = pattern(offset, 0, len);
        file.write_at(offset, &bytes).unwrap();
        expected[offset as usize..offset as usize + len].copy_from_slice(&bytes);
    }
    fallocate(file.as_ref(), FallocateMode::Allocate, 0, 80_000);
    assert_same(&fs.read_file("file"), &expected, "allocated around data");
    for offset in [0, 8191, 60_000] {
        file.write_at(offset, b"into it").unwrap();
        expected[offset as usize..offset as usize + 7].copy_from_slice(b"into it");
    }
    assert_same(&fs.read_file("file"), &expected, "written into it");
}

fn allocate_and_truncate(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    file.write_at(0, b"start").unwrap();
    fallocate(file.as_ref(), FallocateMode::AllocateKeepSize, 0, 1 << 20);
    assert_eq!(fs.read_file("file"), b"start");
    file.set_len(300_000).unwrap();
    let mut expected = vec![0; 300_000];
    expected[..5].copy_from_slice(b"start");
    assert_same(&fs.read_file("file"), &expected, "extended over what was allocated");
    file.set_len(5).unwrap();
    assert!(file.stat().unwrap().allocated <= 2 * BLOCK, "a truncation frees what was allocated");
}

/// Erases every range of a set and compares with plain bytes.
fn erase_alignments(fs: &mut Fs<'_>, mode: FallocateMode) {
    let fs = fs.view();
    for start in [0u64, 1, 64, 4095, 4096, 4097, 8191, 10_000] {
        let file = fs.opened(format!("file-{start}"), Open::NEW);
        for len in [1u64, 63, 4095, 4096, 4097, 8192, 8193, 20_000] {
            let mut expected = pattern(start + len, 0, 40_000);
            write_all(file.as_ref(), 0, &expected);
            fallocate(file.as_ref(), mode, start, len);
            expected[start as usize..(start + len) as usize].fill(0);
            let found = read_exactly(file.as_ref(), 0, 40_000);
            assert_same(&found, &expected, &format!("{len} bytes erased from {start}"));
            assert_eq!(file.stat().unwrap().size, 40_000);
        }
    }
}

fn punch_alignments(fs: &mut Fs<'_>) {
    erase_alignments(fs, FallocateMode::PunchHole);
}

fn zero_alignments(fs: &mut Fs<'_>) {
    erase_alignments(fs, FallocateMode::ZeroRangeKeepSize);
}

fn punch_frees(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    write_all(file.as_ref(), 0, &pattern(1, 0, 1 << 20));
    assert_eq!(file.stat().unwrap().allocated, 1 << 20);
    fallocate(file.as_ref(), FallocateMode::PunchHole, 100 * BLOCK, 50 * BLOCK);
    assert_eq!(file.stat().unwrap().allocated, (256 - 50) * BLOCK);
    fallocate(file.as_ref(), FallocateMode::PunchHole, 10 * BLOCK + 1, 2 * BLOCK - 2);
    assert_eq!(file.stat().unwrap().allocated, (256 - 50) * BLOCK, "only whole blocks");
    fallocate(file.as_ref(), FallocateMode::PunchHole, 0, 1 << 20);
    let stat = file.stat().unwrap();
    assert_eq!((stat.size, stat.allocated), (1 << 20, 0));
}

fn punch_at_the_end(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut expected = pattern(1, 0, 10_000);
    write_all(file.as_ref(), 0, &expected);
    fallocate(file.as_ref(), FallocateMode::PunchHole, 9000, 100_000);
    expected[9000..].fill(0);
    assert_same(&fs.read_file("file"), &expected, "over the end");
    fallocate(file.as_ref(), FallocateMode::PunchHole, 50_000, 100_000);
    assert_same(&fs.read_file("file"), &expected, "beyond the end");
    let empty = fs.opened("empty", Open::NEW);
    fallocate(empty.as_ref(), FallocateMode::PunchHole, 0, 4096);
    assert_eq!(fs.stat("empty").size, 0);
}

fn punch_and_write(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut expected = pattern(1, 0, 100_000);
    write_all(file.as_ref(), 0, &expected);
    for round in 0..60u64 {
        let start = (round * 7919) % 80_000;
        let len = 1 + (round * 3571) % 19_000;
        fallocate(file.as_ref(), FallocateMode::PunchHole, start, len);
        expected[start as usize..(start + len) as usize].fill(0);
        let bytes = pattern(round, 0, 500);
        let at = (start + len / 2) as usize;
        write_all(file.as_ref(), at as u64, &bytes);
        expected.resize(expected.len().max(at + 500), 0);
        expected[at..at + 500].copy_from_slice(&bytes);
        assert_same(&fs.read_file("file"), &expected, &format!("round {round}"));
    }
}

fn zero_grows(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut expected = pattern(1, 0, 10_000);
    write_all(file.as_ref(), 0, &expected);
    fallocate(file.as_ref(), FallocateMode::ZeroRangeKeepSize, 5000, 20_000);
    expected[5000..].fill(0);
    assert_same(&fs.read_file("file"), &expected, "the size stays");
    fallocate(file.as_ref(), FallocateMode::ZeroRange, 8000, 22_001);
    expected.resize(30_001, 0);
    assert_same(&fs.read_file("file"), &expected, "the size grows");
    assert!(file.stat().unwrap().allocated >= 24_576, "what is zeroed is allocated");
}

fn errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"1");
    let file = fs.opened("file", Open::BOTH);
    assert_eq!(file.fallocate(FallocateMode::Allocate, 0, 0), Err(Kind::InvalidInput));
    let reader = fs.opened("file", Open::READ);
    assert_eq!(reader.fallocate(FallocateMode::Allocate, 0, 10), Err(Kind::BadHandle));
    assert_eq!(fs.read_file("file"), b"1");
}

fn beyond_largest(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    assert_eq!(file.fallocate(FallocateMode::Allocate, 1 << 62, 4096), Err(Kind::FileTooBig));
    assert_eq!(file.fallocate(FallocateMode::AllocateKeepSize, 0, 1 << 62), Err(Kind::FileTooBig));
    assert_eq!(file.stat().unwrap().allocated, 0);
}

fn seek_runs(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    assert!(data_runs(file.as_ref()).is_empty());
    for (start, count) in [(3, 1), (10, 5), (100, 2), (15, 1)] {
        write_all(file.as_ref(), start * BLOCK, &pattern(start, 0, (count * BLOCK) as usize));
    }
    file.write_at(200 * BLOCK + 10, b"x").unwrap();
    let runs = [(3, 4), (10, 16), (100, 102)].map(|(start, end)| (start * BLOCK, end * BLOCK));
    let mut expected = runs.to_vec();
    expected.push((200 * BLOCK, 200 * BLOCK + 11));
    assert_eq!(data_runs(file.as_ref()), expected);
    assert_eq!(file.seek(0, SeekTo::Hole), Ok(0));
    assert_eq!(file.seek(3 * BLOCK + 5, SeekTo::Data), Ok(3 * BLOCK + 5), "inside data");
    assert_eq!(file.seek(10 * BLOCK + 5, SeekTo::Hole), Ok(16 * BLOCK));
    assert_eq!(file.seek(20 * BLOCK + 1, SeekTo::Hole), Ok(20 * BLOCK + 1), "inside a hole");
    assert_eq!(file.seek(200 * BLOCK + 10, SeekTo::Hole), Ok(200 * BLOCK + 11), "the end is a hole");
    file.set_len(300 * BLOCK).unwrap();
    assert_eq!(file.seek(201 * BLOCK, SeekTo::Data), Err(Kind::NoSuchOffset), "no data up to the end");
}

fn seek_errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", &pattern(1, 0, 5000));
    let file = fs.opened("file", Open::READ);
    for to in [SeekTo::Data, SeekTo::Hole] {
        assert_eq!(file.seek(5000, to), Err(Kind::NoSuchOffset));
        assert_eq!(file.seek(1 << 40, to), Err(Kind::NoSuchOffset));
    }
    assert_eq!(file.seek(4999, SeekTo::Data), Ok(4999));
    assert_eq!(file.seek(4999, SeekTo::Hole), Ok(5000));
}

fn seek_after_punch(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    write_all(file.as_ref(), 0, &pattern(1, 0, (20 * BLOCK) as usize));
    fallocate(file.as_ref(), FallocateMode::PunchHole, 5 * BLOCK, 3 * BLOCK);
    fallocate(file.as_ref(), FallocateMode::PunchHole, 10 * BLOCK + 1, BLOCK);
    assert_eq!(data_runs(file.as_ref()), [(0, 5 * BLOCK), (8 * BLOCK, 20 * BLOCK)]);
    fallocate(file.as_ref(), FallocateMode::PunchHole, 0, 20 * BLOCK);
    assert!(data_runs(file.as_ref()).is_empty());
    assert_eq!(file.seek(0, SeekTo::Hole), Ok(0));
}

fn seek_after_truncate(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    write_all(file.as_ref(), 0, &pattern(1, 0, (10 * BLOCK) as usize));
    file.set_len(3 * BLOCK + 100).unwrap();
    assert_eq!(data_runs(file.as_ref()), [(0, 3 * BLOCK + 100)]);
    file.set_len(10 * BLOCK).unwrap();
    assert_eq!(data_runs(file.as_ref()), [(0, 4 * BLOCK)], "what was cut off is a hole");
}

fn huge(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let size = 16u64 << 40;
    let file = fs.opened("file", Open::NEW);
    file.set_len(size).unwrap();
    assert_eq!(file.stat().unwrap().size, size);
    for offset in [0, (1 << 31) - 3, (1 << 32) - 3, (1 << 40) + 5, size - 10] {
        file.write_at(offset, b"ten  bytes").unwrap();
    }
    for offset in [0, (1 << 31) - 3, (1 << 32) - 3, (1 << 40) + 5, size - 10] {
        assert_eq!(read_exactly(file.as_ref(), offset, 10), b"ten  bytes", "at {offset}");
    }
    assert_eq!(read_exactly(file.as_ref(), 1 << 35, 100), vec![0; 100]);
    assert_eq!(file.read_at(size, &mut [0; 10]), Ok(0));
    assert!(file.stat().unwrap().allocated <= 64 << 10);
    file.set_len(1 << 32).unwrap();
    assert_eq!(read_exactly(file.as_ref(), (1 << 32) - 3, 3), b"ten");
    file.set_len(size).unwrap();
    assert_eq!(read_exactly(file.as_ref(), 1 << 32, 100), vec![0; 100]);
}

fn huge_extents(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let place = |index: u64| (index * 25_214_903_917) % (16 << 40) / BLOCK * BLOCK;
    for index in 0..1500 {
        write_all(file.as_ref(), place(index), &pattern(index, 0, 100));
    }
    for index in 0..1500 {
        assert_same(
            &read_exactly(file.as_ref(), place(index), 100),
            &pattern(index, 0, 100),
            "a lonely extent",
        );
    }
}

fn counted(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    assert_eq!(file.stat().unwrap().allocated, 0);
    write_all(file.as_ref(), 0, &pattern(1, 0, 100_000));
    assert_eq!(file.stat().unwrap().allocated, 25 * BLOCK);
    write_all(file.as_ref(), 1 << 30, b"x");
    assert_eq!(file.stat().unwrap().allocated, 26 * BLOCK);
    write_all(file.as_ref(), 0, &pattern(2, 0, 100_000));
    assert_eq!(file.stat().unwrap().allocated, 26 * BLOCK, "overwriting takes nothing");
    file.set_len(5000).unwrap();
    assert_eq!(file.stat().unwrap().allocated, 2 * BLOCK);
    file.set_len(0).unwrap();
    assert_eq!(file.stat().unwrap().allocated, 0);
}

fn remount(fs: &mut Fs<'_>) {
    let mut expected = pattern(1, 0, 60_000);
    let view = fs.view();
    let file = view.opened("file", Open::NEW);
    write_all(file.as_ref(), 0, &expected);
    fallocate(file.as_ref(), FallocateMode::PunchHole, 10_000, 20_000);
    expected[10_000..30_000].fill(0);
    fallocate(file.as_ref(), FallocateMode::Allocate, 50_000, 50_000);
    expected.resize(100_000, 0);
    file.write_at(90_000, b"x").unwrap();
    expected[90_000] = b'x';
    let (stat, runs) = (file.stat().unwrap(), data_runs(file.as_ref()));
    drop(file);
    fs.remount();
    let view = fs.view();
    assert_same(&view.read_file("file"), &expected, "after the mount");
    assert_eq!(view.stat("file").allocated, stat.allocated);
    assert_eq!(data_runs(view.opened("file", Open::READ).as_ref()), runs);
}
