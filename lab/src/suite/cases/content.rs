//! Reading and writing files.

use std::io::IoSlice;

use nacre_engine::Kind;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::fs::{Fs, assert_same, pattern, read_exactly, write_all};
use super::super::runner::Case;
use super::super::target::{File, Need, Open, SetTime};
use super::{assert_times, case};
use nacre_engine::Timestamp;

pub(super) const CASES: &[Case] = &[
    case("write-and-read-around-blocks", &[], around_blocks),
    case("write-and-read-around-2-mib", &[], around_huge_pages),
    case("write-beyond-the-end", &[], beyond_the_end),
    case("read-beyond-the-end", &[], read_beyond),
    case("write-nothing", &[], write_nothing),
    case("write-large", &[], large),
    case("write-vectored", &[], vectored),
    case("append", &[], append),
    case("append-by-two", &[], append_by_two),
    case("append-small-pieces", &[], append_small),
    case("overwrite-often", &[], overwrite_often),
    case("overwrite-parts", &[], overwrite_parts),
    case("truncate-shorter", &[], truncate_shorter),
    case("truncate-longer", &[], truncate_longer),
    case("truncate-and-write-again", &[], truncate_and_write),
    case("truncate-errors", &[], truncate_errors),
    case("two-handles", &[], two_handles),
    case("two-files-in-turn", &[], two_files),
    case("sync", &[], sync),
    case("write-times", &[], times),
    case("random-io", &[], random_io),
    case("random-io-remount", &[Need::Remount], random_io_remount),
    case("beyond-the-largest-file", &[Need::SizeLimit], beyond_largest),
];

/// A file and its expected content.
struct Mirror<'a> {
    file: &'a dyn File,
    bytes: Vec<u8>,
}

impl Mirror<'_> {
    fn write(&mut self, offset: usize, data: &[u8]) {
        write_all(self.file, offset as u64, data);
        if data.is_empty() {
            return;
        }
        self.bytes.resize(self.bytes.len().max(offset + data.len()), 0);
        self.bytes[offset..offset + data.len()].copy_from_slice(data);
    }

    fn truncate(&mut self, size: usize) {
        self.file.set_len(size as u64).expect("ftruncate");
        self.bytes.resize(size, 0);
    }

    fn check(&self, what: &str) {
        assert_eq!(self.file.stat().expect("fstat").size, self.bytes.len() as u64, "{what}: size");
        assert_same(&read_exactly(self.file, 0, self.bytes.len()), &self.bytes, what);
    }
}

fn around(fs: &mut Fs<'_>, boundary: usize, distances: &[usize], lengths: &[usize]) {
    let fs = fs.view();
    let size = 2 * boundary.max(1 << 15);
    for (round, distance) in distances.iter().enumerate() {
        let file = fs.opened(format!("file-{distance}"), Open::NEW);
        let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
        mirror.write(0, &pattern(100 + round as u64, 0, size));
        for (index, len) in lengths.iter().enumerate() {
            let offset = boundary - distance;
            mirror.write(offset, &pattern((round * 50 + index) as u64, 0, *len));
            let from = offset.saturating_sub(100);
            let found = read_exactly(file.as_ref(), from as u64, len + 200);
            let what = format!("{len} bytes at {offset}");
            assert_same(&found, &mirror.bytes[from..from + len + 200], &what);
        }
        mirror.check("the whole file");
    }
}

fn around_blocks(fs: &mut Fs<'_>) {
    let distances = [0, 1, 2, 7, 8, 63, 64, 65, 511, 512, 2048, 4032, 4095, 4096];
    let lengths = [1, 2, 7, 8, 63, 64, 65, 127, 512, 4095, 4096, 4097, 8191, 8192, 8193, 12_289];
    around(fs, 8192, &distances, &lengths);
}

fn around_huge_pages(fs: &mut Fs<'_>) {
    let distances = [0, 1, 64, 4095, 4096, 4097, 100_000];
    let lengths = [1, 2, 64, 65, 4096, 4097, 65_536, 100_001, 262_144];
    around(fs, 2 << 20, &distances, &lengths);
}

fn beyond_the_end(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for (size, offset) in
        [(0, 1), (0, 4096), (1, 4095), (100, 200), (4096, 8192), (5000, 100_000), (4095, 4097)]
    {
        let file = fs.opened(format!("file-{size}-{offset}"), Open::NEW);
        let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
        mirror.write(0, &pattern(1, 0, size));
        mirror.write(offset, b"beyond");
        mirror.check("with a hole");
    }
}

fn read_beyond(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", &pattern(1, 0, 5000));
    let file = fs.opened("file", Open::READ);
    let mut buf = [0; 100];
    assert_eq!(file.read_at(5000, &mut buf), Ok(0));
    assert_eq!(file.read_at(1 << 40, &mut buf), Ok(0));
    assert_eq!(file.read_at(4990, &mut buf), Ok(10));
    assert_eq!(buf[..10], pattern(1, 4990, 10));
    assert_eq!(file.read_at(0, &mut []), Ok(0));
}

fn write_nothing(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"abc");
    let file = fs.opened("file", Open::BOTH);
    assert_times(fs, "file", "", || {
        assert_eq!(file.write_at(0, b""), Ok(0));
        assert_eq!(file.write_at(1000, b""), Ok(0));
    });
    assert_eq!(fs.read_file("file"), b"abc");
}

fn large(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
    mirror.write(0, &pattern(1, 0, 8 << 20));
    mirror.check("8 MiB at once");
    mirror.write(1_000_003, &pattern(2, 0, 5_000_011));
    mirror.check("5 MB over it");
    let mut offset = 0;
    for len in [1usize, 4095, 4097, 65_537, 1_000_000, 3_333_333].iter().cycle() {
        let len = (*len).min(mirror.bytes.len() - offset);
        assert_same(
            &read_exactly(file.as_ref(), offset as u64, len),
            &mirror.bytes[offset..offset + len],
            "a part",
        );
        offset += len;
        if offset == mirror.bytes.len() {
            break;
        }
    }
}

fn vectored(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let parts: Vec<Vec<u8>> = [5, 0, 4096, 1, 4091, 3, 10_000]
        .iter()
        .enumerate()
        .map(|(i, len)| pattern(i as u64, 0, *len))
        .collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let whole = parts.concat();
    for offset in [0, 1, 4000, 4096, 8191] {
        assert_eq!(file.write_vectored_at(offset, &slices), Ok(whole.len()));
        assert_same(&read_exactly(file.as_ref(), offset, whole.len()), &whole, "vectored");
    }
    assert_eq!(file.write_vectored_at(0, &[]), Ok(0));
}

fn append(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"start");
    let file = fs.opened("file", Open::APPEND);
    assert_eq!(file.append(b" more"), Ok(5));
    let other = fs.opened("file", Open::BOTH);
    other.set_len(2).unwrap();
    assert_eq!(file.append(b"+"), Ok(1), "to the end that is now");
    other.write_at(10, b"x").unwrap();
    assert_eq!(file.append(b"end"), Ok(3));
    assert_eq!(fs.read_file("file"), b"st+\0\0\0\0\0\0\0xend");
}

fn append_by_two(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let (first, second) = (fs.opened("file", Open::APPEND), fs.opened("file", Open::APPEND));
    let mut expected = Vec::new();
    for round in 0..100u64 {
        let bytes = pattern(round, 0, 1 + (round as usize * 37) % 300);
        let file = if round % 3 == 0 { &first } else { &second };
        assert_eq!(file.append(&bytes), Ok(bytes.len()));
        expected.extend(bytes);
    }
    assert_same(&fs.read_file("file"), &expected, "two appenders");
}

fn append_small(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::APPEND);
    let mut expected = Vec::new();
    for round in 0..3000u64 {
        let bytes = pattern(round, 0, 37);
        file.append(&bytes).unwrap();
        expected.extend(bytes);
    }
    assert_same(&fs.read_file("file"), &expected, "3000 appends");
}

fn overwrite_often(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
    mirror.write(0, &pattern(0, 0, 20_000));
    for round in 0..4000u64 {
        let offset = (round as usize * 1237) % 16_000;
        let len = if round % 5 == 0 { 4096 } else { 1 + round as usize % 100 };
        mirror.write(offset, &pattern(round, 0, len));
        if round % 500 == 0 {
            mirror.check("meanwhile");
        }
    }
    mirror.check("4000 overwrites");
}

fn overwrite_parts(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
    mirror.write(0, &pattern(0, 0, 40_960));
    // Old extents cut at their start, their end, in the middle, and covered whole.
    for (round, (offset, len)) in [
        (0, 4096),
        (36_864, 4096),
        (8192, 4096),
        (4096, 12_288),
        (6000, 10),
        (20_000, 9000),
        (0, 40_960),
        (39_000, 5000),
    ]
    .into_iter()
    .enumerate()
    {
        mirror.write(offset, &pattern(10 + round as u64, 0, len));
        mirror.check("after a part");
    }
}

fn truncate_shorter(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for size in [0, 1, 63, 64, 4095, 4096, 4097, 8192, 20_000, 29_999] {
        let file = fs.opened(format!("file-{size}"), Open::NEW);
        let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
        mirror.write(0, &pattern(size as u64, 0, 30_000));
        mirror.truncate(size);
        mirror.check("shorter");
        assert_eq!(file.read_at(size as u64, &mut [0; 10]), Ok(0));
        mirror.truncate(30_000);
        mirror.check("and longer: what was cut off reads as zeros");
    }
}

fn truncate_longer(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
    mirror.write(0, b"start");
    for size in [6, 4096, 4097, 100_000, 1 << 20] {
        mirror.truncate(size);
        mirror.check("longer");
    }
    fs.truncate("file", 7).unwrap();
    assert_eq!(fs.read_file("file"), b"start\0\0");
}

fn truncate_and_write(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
    for round in 0..40usize {
        mirror.write(0, &pattern(round as u64, 0, 10_000 + round));
        mirror.truncate((round * 997) % 10_000);
        mirror.write(9000 + (round * 131) % 5000, b"new");
        mirror.check("cut and written");
        mirror.truncate(0);
    }
}

fn truncate_errors(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    assert_eq!(fs.truncate("dir", 0), Err(Kind::IsDirectory));
    assert_eq!(fs.truncate("no", 0), Err(Kind::NotFound));
}

fn two_handles(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let writer = fs.opened("file", Open::CREATE);
    let reader = fs.opened("file", Open::READ);
    for round in 0..100u64 {
        let bytes = pattern(round, 0, 5000);
        writer.write_at(round * 100, &bytes).unwrap();
        assert_same(&read_exactly(reader.as_ref(), round * 100, 5000), &bytes, "seen at once");
    }
    writer.set_len(3).unwrap();
    assert_eq!(reader.stat().unwrap().size, 3);
}

fn two_files(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let (a, b) = (fs.opened("a", Open::NEW), fs.opened("b", Open::NEW));
    let mut left = Mirror { file: a.as_ref(), bytes: Vec::new() };
    let mut right = Mirror { file: b.as_ref(), bytes: Vec::new() };
    for round in 0..300u64 {
        left.write(round as usize * 777, &pattern(round, 0, 1000));
        right.write(round as usize * 555, &pattern(round + 1000, 0, 1000));
    }
    left.check("a");
    right.check("b");
}

fn sync(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open { sync: true, ..Open::NEW });
    file.write_at(0, b"durable").unwrap();
    assert_eq!(file.sync(true), Ok(()));
    assert_eq!(file.sync(false), Ok(()));
    let dir = fs.opened("", Open::READ);
    assert_eq!(dir.sync(false), Ok(()));
    assert_eq!(fs.read_file("file"), b"durable");
}

fn times(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"content");
    let file = fs.opened("file", Open::BOTH);
    assert_times(fs, "file", "mc", || assert_eq!(file.write_at(0, b"x"), Ok(1)));
    assert_times(fs, "file", "mc", || assert_eq!(file.write_at(100, b"x"), Ok(1)));
    assert_times(fs, "file", "mc", || file.set_len(50).unwrap());
    assert_times(fs, "file", "mc", || fs.truncate("file", 60).unwrap());
    assert_times(fs, "file", "", || drop(read_exactly(file.as_ref(), 0, 50)));
    assert_times(fs, "file", "", || file.sync(false).unwrap());
    let old = SetTime::At(Timestamp::new(10, 10));
    fs.set_times("file", old, old).unwrap();
    file.write_at(0, b"y").unwrap();
    assert_eq!(fs.stat("file").atime, Timestamp::new(10, 10), "writing is not reading");
}

fn random_steps(mirror: &mut Mirror<'_>, rng: &mut SmallRng, steps: usize) {
    const MAX: usize = 300_000;
    for step in 0..steps {
        let offset = rng.random_range(0..MAX);
        let len = match rng.random_range(0..4) {
            0 => rng.random_range(1..200),
            1 => 4096,
            _ => rng.random_range(1..60_000),
        };
        match rng.random_range(0..10) {
            0 => mirror.truncate(offset),
            1..=4 => mirror.write(offset, &pattern(rng.random_range(0..256), 0, len)),
            5 => mirror.write(offset / 4096 * 4096, &pattern(step as u64, 0, 8192)),
            _ => {
                let from = offset.min(mirror.bytes.len());
                let len = len.min(mirror.bytes.len() - from);
                let found = read_exactly(mirror.file, from as u64, len);
                assert_same(&found, &mirror.bytes[from..from + len], &format!("step {step}, from {from}"));
            }
        }
    }
    mirror.check("at the end");
}

fn random_io(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for seed in 0..4 {
        let file = fs.opened(format!("file-{seed}"), Open::NEW);
        let mut mirror = Mirror { file: file.as_ref(), bytes: Vec::new() };
        random_steps(&mut mirror, &mut SmallRng::seed_from_u64(seed), 400);
    }
}

fn random_io_remount(fs: &mut Fs<'_>) {
    let mut rng = SmallRng::seed_from_u64(99);
    let mut bytes = Vec::new();
    for _ in 0..6 {
        let view = fs.view();
        let file = view.opened("file", Open::CREATE);
        let mut mirror = Mirror { file: file.as_ref(), bytes };
        mirror.check("after the mount");
        random_steps(&mut mirror, &mut rng, 150);
        bytes = mirror.bytes;
        drop(file);
        fs.remount();
    }
    assert_same(&fs.view().read_file("file"), &bytes, "after the last mount");
}

fn beyond_largest(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let file = fs.opened("file", Open::NEW);
    assert_eq!(file.write_at(1 << 62, b"x"), Err(Kind::FileTooBig));
    assert_eq!(file.set_len(1 << 62), Err(Kind::FileTooBig));
    assert_eq!(fs.stat("file").size, 0);
}
