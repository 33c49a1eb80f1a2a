//! What is written is read, from DRAM and media; what reaches media is what is dirty.

use std::sync::atomic::Ordering;

use nacre_cache::{Checker, Granularity, Settings};
use nacre_engine::{
    Data, Durability, Extents, FallocateMode, FileBlock, Kind, Names, SeekTo, SetAttr, WriteAt,
};
use nacre_media::sim::Event;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::{BLOCK, World, at, without_threads, world, world_with};

#[test]
fn a_buffered_write_is_seen_and_not_on_media() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, 10, b"hello");
    let attr = world.attr(&file);
    assert_eq!((attr.size, attr.mtime, attr.ctime, attr.allocated), (15, at(1), at(1), BLOCK as u64));
    assert_eq!(world.fs.getattr_at(&world.fs.root(), b"file").unwrap(), attr);
    assert_eq!(world.get(&file), b"\0\0\0\0\0\0\0\0\0\0hello");
    assert_eq!(world.append(&file, b" world"), 15);
    assert_eq!(world.bytes_on_media("file").unwrap(), b"", "neither bytes nor size");
    world.fs.sync(&file).unwrap();
    assert_eq!(world.bytes_on_media("file").unwrap(), b"\0\0\0\0\0\0\0\0\0\0hello world");
    let status = world.fs.status();
    assert_eq!((status.used, status.written_lazily, status.written_eagerly), (0, 11, 0));
    assert!(!world.fs.capabilities().durable_on_return);
    world.unmount();
}

#[test]
fn a_small_write_fetches_only_the_lines_that_it_half_covers() {
    let world = world(64);
    let file = world.create("file");
    world.put_now(&file, 0, &[7; BLOCK]);
    // The paper's example (section 3.3.2): bytes 0 to 112 need a part of one line.
    world.put(&file, 0, &[1; 112]);
    assert_eq!(world.fs.status().fetched, 64);
    world.put(&file, 1000, &[2; 10]);
    assert_eq!(world.fs.status().fetched, 128);
    world.put(&file, 2048, &[3; 64]);
    world.put(&file, 1001, &[2; 10]);
    assert_eq!(world.fs.status().fetched, 128, "whole lines and lines in DRAM need nothing");
    let mut expected = vec![7; BLOCK];
    expected[..112].fill(1);
    expected[1000..1011].fill(2);
    expected[2048..2112].fill(3);
    assert_eq!(world.get(&file), expected);
    world.fs.sync_all().unwrap();
    assert_eq!(world.bytes_on_media("file").unwrap(), expected);
    world.unmount();
}

#[test]
fn whole_blocks_fetch_and_write_whole_blocks() {
    let world = world_with(64, Settings { granularity: Granularity::Blocks, ..without_threads() });
    let file = world.create("file");
    world.put_now(&file, 0, &[7; 2 * BLOCK]);
    world.put(&file, 100, &[1; 10]);
    world.fs.sync(&file).unwrap();
    let status = world.fs.status();
    assert_eq!((status.fetched, status.written_back), (BLOCK as u64, BLOCK as u64));
    world.unmount();
}

/// Bytes of contents that the trace stores: those in stores of whole lines of this value.
fn stored(world: &World, value: u8, run: impl FnOnce()) -> usize {
    world.pm.start_recording();
    run();
    let trace = world.pm.stop_recording();
    let bytes = trace.events.iter().map(|event| match event {
        Event::Store { bytes, .. } if bytes.len() >= 64 && bytes.iter().all(|byte| *byte == value) => {
            bytes.len()
        }
        _ => 0,
    });
    bytes.sum()
}

#[test]
fn only_dirty_lines_reach_media() {
    let world = world(64);
    let file = world.create("file");
    world.put_now(&file, 0, &[0xA5; 64]);
    // Behind the end the log layout writes in place: what it is given is what it stores.
    let bytes = stored(&world, 0x5A, || {
        world.put(&file, 64, &[0x5A; 64]);
        world.put(&file, 64, &[0x5A; 64]);
        world.put(&file, 128, &[0x5A; 64]);
        world.fs.sync(&file).unwrap();
    });
    assert_eq!(bytes, 128, "two lines, one of them written twice");
    let status = world.fs.status();
    assert_eq!((status.written_back, status.overwritten), (128, 64));
    world.unmount();
}

#[test]
fn what_is_removed_before_its_writeback_never_reaches_media() {
    let world = world(64);
    let bytes = stored(&world, 0x5A, || {
        for turn in 0..5 {
            let file = world.create("file");
            world.put(&file, 0, &[0x5A; 3 * BLOCK]);
            if turn % 2 == 0 {
                drop(file);
                world.fs.unlink(&world.fs.root(), b"file", at(2)).unwrap();
            } else {
                world.truncate(&file, 0);
                world.fs.unlink(&world.fs.root(), b"file", at(2)).unwrap();
            }
        }
        world.fs.sync_all().unwrap();
    });
    assert_eq!(bytes, 0);
    let status = world.fs.status();
    assert_eq!((status.used, status.discarded, status.written_back), (0, 5 * 3 * BLOCK as u64, 0));
    world.unmount();
}

#[test]
fn a_file_that_is_removed_while_it_is_open_is_read_and_then_forgotten() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, 0, b"still here");
    world.fs.unlink(&world.fs.root(), b"file", at(2)).unwrap();
    assert_eq!(world.get(&file), b"still here");
    world.put(&file, 5, b"!");
    assert_eq!(world.get(&file), b"still!here");
    drop(file);
    world.fs.sync_all().unwrap();
    let status = world.fs.status();
    assert_eq!((status.used, status.written_back), (0, 0));
    world.unmount();
}

#[test]
fn a_replaced_file_is_forgotten_and_its_successor_is_on_media() {
    let world = world(64);
    let (old, new) = (world.create("file"), world.create("new"));
    world.put(&old, 0, &[1; BLOCK]);
    world.put(&new, 0, b"new");
    drop((old, new));
    let root = world.fs.root();
    world.fs.rename(&root, b"new", &root, b"file", nacre_engine::RenameMode::Replace, at(2)).unwrap();
    assert_eq!(world.bytes_on_media("file").unwrap(), b"new");
    let status = world.fs.status();
    assert_eq!((status.used, status.discarded, status.written_back), (0, BLOCK as u64, 3));
    world.unmount();
}

#[test]
fn a_truncation_cuts_what_is_buffered() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, 0, &[9; 10_000]);
    world.truncate(&file, 5000);
    world.truncate(&file, 9000);
    let mut expected = vec![9; 5000];
    expected.resize(9000, 0);
    assert_eq!(world.get(&file), expected);
    world.put(&file, 8990, &[8; 100]);
    expected.resize(9090, 0);
    expected[8990..].fill(8);
    assert_eq!(world.get(&file), expected);
    world.fs.sync(&file).unwrap();
    assert_eq!(world.bytes_on_media("file").unwrap(), expected);
    world.unmount();
}

#[test]
fn data_and_holes_are_found_in_dram() {
    let world = world(64);
    let file = world.create("file");
    world.put_now(&file, 0, &[1; BLOCK]);
    world.put(&file, 3 * BLOCK as u64, &[1; 10]);
    let block = BLOCK as u64;
    let seek = |offset, to| world.fs.seek(&file, offset, to).map_err(|error| error.kind());
    assert_eq!(seek(0, SeekTo::Hole), Ok(block));
    assert_eq!(seek(block, SeekTo::Data), Ok(3 * block));
    assert_eq!(seek(3 * block + 5, SeekTo::Data), Ok(3 * block + 5));
    assert_eq!(seek(3 * block, SeekTo::Hole), Ok(3 * block + 10));
    assert_eq!(seek(3 * block + 10, SeekTo::Data), Err(Kind::NoSuchOffset));
    assert_eq!(world.attr(&file).allocated, 2 * block);
    let places = world.fs.resolve(&file, FileBlock(0), 4).unwrap();
    assert_eq!(places.iter().map(|place| place.len).collect::<Vec<_>>(), [1, 2, 1], "written first");
    world.unmount();
}

#[test]
fn a_punched_hole_replaces_what_is_buffered() {
    let world = world(64);
    let file = world.create("file");
    world.put_now(&file, 0, &[1; 6 * BLOCK]);
    world.put(&file, 0, &[2; 6 * BLOCK]);
    let block = BLOCK as u64;
    world.fs.fallocate(&file, FallocateMode::PunchHole, 100, 4 * block, at(3)).unwrap();
    let mut expected = vec![2; 6 * BLOCK];
    expected[100..100 + 4 * BLOCK].fill(0);
    assert_eq!(world.get(&file), expected);
    assert_eq!(world.fs.status().discarded, 3 * block, "three blocks lie in it as a whole");
    assert_eq!(world.attr(&file).mtime, at(3));
    world.unmount();
}

/// A write into blocks that were allocated beforehand was counted as if it took space, and a truncation to between the
/// size on media and the buffered one left such blocks behind it.
#[test]
fn blocks_that_were_allocated_behind_the_end_are_counted_once() {
    let world = world(64);
    let (file, block) = (world.create("file"), BLOCK as u64);
    world.fs.fallocate(&file, FallocateMode::AllocateKeepSize, 4 * block, 2 * block, at(2)).unwrap();
    world.put(&file, 4 * block, &[1; BLOCK]);
    assert_eq!(world.attr(&file).allocated, 2 * block);
    world.truncate(&file, block);
    assert_eq!(world.attr(&file).allocated, 0);
    world.put(&file, 0, &[2; BLOCK]);
    assert_eq!(world.fs.status().used, 1, "buffered again");
    world.unmount();
}

#[test]
fn times_that_are_set_stay() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, 0, b"x");
    let change = SetAttr { mtime: Some(at(-500)), ..SetAttr::default() };
    world.fs.setattr(&file, &change, at(5)).unwrap();
    let attr = world.attr(&file);
    assert_eq!((attr.mtime, attr.ctime, attr.size), (at(-500), at(5), 1));
    world.fs.sync(&file).unwrap();
    let after = world.attr(&file);
    assert_eq!((after.mtime, after.ctime, after.size), (at(-500), at(5), 1));
    world.unmount();
}

#[test]
fn protected_files_refuse_buffered_writes_as_the_layout_does() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, 0, b"before");
    let flags = |flags| SetAttr { flags: Some(flags), ..SetAttr::default() };
    world.fs.setattr(&file, &flags(nacre_engine::Attr::APPEND_ONLY), at(2)).unwrap();
    assert_eq!(world.bytes_on_media("file").unwrap(), b"before", "what was accepted is written first");
    let refused = world.write(&file, WriteAt::Offset(0), b"x", Durability::Lazy).unwrap_err();
    assert_eq!(refused.kind(), Kind::NotPermitted);
    world.append(&file, b", after");
    assert_eq!(world.get(&file), b"before, after");
    world.fs.sync(&file).unwrap();
    assert_eq!(world.bytes_on_media("file").unwrap(), b"before, after");
    let far = world.write(&file, WriteAt::Offset(u64::MAX - 1), b"xyz", Durability::Lazy).unwrap_err();
    assert!(matches!(far.kind(), Kind::NotPermitted | Kind::FileTooBig));
    world.unmount();
}

/// A size and flags in one change: what waited below the new size was written after it, which the flags forbade, and
/// everything of the unmount failed.
#[test]
fn flags_that_come_with_a_size_forbid_nothing_that_was_accepted() {
    for size in [100, 2 * BLOCK as u64 + 100, 100_000] {
        let world = world(64);
        let file = world.create("file");
        world.put(&file, 0, &[1; 3 * BLOCK]);
        let change =
            SetAttr { size: Some(size), flags: Some(nacre_engine::Attr::IMMUTABLE), ..SetAttr::default() };
        world.fs.setattr(&file, &change, at(2)).unwrap();
        let mut expected = vec![1; 3 * BLOCK];
        expected.resize(size as usize, 0);
        assert_eq!(world.bytes_on_media("file").unwrap(), expected, "what was accepted is written first");
        assert_eq!(world.get(&file), expected);
        let refused = world.write(&file, WriteAt::Offset(0), b"x", Durability::Lazy).unwrap_err();
        assert_eq!(refused.kind(), Kind::NotPermitted);
        let refused = world.fs.setattr(&file, &SetAttr { mtime: Some(at(3)), ..SetAttr::default() }, at(3));
        assert_eq!(refused.unwrap_err().kind(), Kind::NotPermitted);
        drop(file);
        world.unmount();
    }
}

#[test]
fn random_calls_leave_what_a_vector_holds() {
    for seed in 0..30 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let granularity = if seed % 5 == 4 { Granularity::Blocks } else { Granularity::Lines };
        let world = world_with([4, 9, 64][seed as usize % 3], Settings { granularity, ..without_threads() });
        let file = world.create("file");
        let mut model: Vec<u8> = Vec::new();
        for turn in 0..400 {
            world.clock.fetch_add(rng.random_range(0..300), Ordering::Relaxed);
            match rng.random_range(0..20) {
                0..12 => {
                    let len = if rng.random_bool(0.2) {
                        rng.random_range(1..30_000)
                    } else {
                        rng.random_range(1..300)
                    };
                    let bytes: Vec<u8> = (0..len).map(|_| rng.random_range(1..=255)).collect();
                    let offset = if rng.random_bool(0.3) { model.len() } else { rng.random_range(0..60_000) };
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].copy_from_slice(&bytes);
                    let how = if rng.random_bool(0.1) { Durability::Now } else { Durability::Lazy };
                    let to = if offset + len == model.len()
                        && rng.random_bool(0.5)
                        && world.attr(&file).size == offset as u64
                    {
                        WriteAt::End
                    } else {
                        WriteAt::Offset(offset as u64)
                    };
                    assert_eq!(world.write(&file, to, &bytes, how).unwrap(), offset as u64);
                }
                12 | 13 => {
                    let size = rng.random_range(0..60_000);
                    model.resize(size, 0);
                    world.truncate(&file, size as u64);
                }
                14 => {
                    let (offset, len) = (rng.random_range(0..60_000), rng.random_range(1..20_000));
                    let end = (offset + len).min(model.len());
                    model[offset.min(end)..end].fill(0);
                    world
                        .fs
                        .fallocate(&file, FallocateMode::PunchHole, offset as u64, len as u64, at(2))
                        .unwrap();
                }
                15 => world.fs.sync(&file).unwrap(),
                _ => {
                    let (offset, len) = (rng.random_range(0..60_000), rng.random_range(1..20_000));
                    let mut bytes = vec![0xEE; len];
                    let count = world.fs.read(&file, offset as u64, &mut bytes, None).unwrap();
                    let expected = model.get(offset..(offset + len).min(model.len())).unwrap_or(&[]);
                    assert!(
                        bytes[..count] == *expected,
                        "seed {seed}, turn {turn}: bytes {offset} to {}",
                        offset + len
                    );
                }
            }
            assert_eq!(world.attr(&file).size, model.len() as u64, "seed {seed}, turn {turn}");
        }
        assert!(world.get(&file) == model, "seed {seed}");
        world.fs.sync(&file).unwrap();
        assert!(world.bytes_on_media("file").unwrap() == model, "seed {seed}, on media");
        assert_eq!(world.fs.status().used, 0);
        world.unmount();
    }
}

/// The size grew in DRAM over the last block on media: what is behind its old end is data as the rest of the block is.
#[test]
fn the_rest_of_the_last_block_on_media_is_data() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, BLOCK as u64, b"x");
    world.fs.sync(&file).unwrap();
    world.put(&file, 9 * BLOCK as u64, b"y");
    let seek = |offset| world.fs.seek(&file, offset, nacre_engine::SeekTo::Data).unwrap();
    assert_eq!(seek(BLOCK as u64 + 500), BLOCK as u64 + 500);
    assert_eq!(seek(2 * BLOCK as u64), 9 * BLOCK as u64);
    world.unmount();
}

/// A block that was allocated only is written in DRAM, and cut before the first byte of that: it was written to all the same,
/// and is data. It was said to be a hole once.
#[test]
fn a_block_that_was_allocated_is_data_once_it_is_written_and_cut() {
    let world = world(16);
    let (file, block) = (world.create("file"), BLOCK as u64);
    world.fs.fallocate(&file, FallocateMode::ZeroRangeKeepSize, 0, 2 * block, at(1)).unwrap();
    // As long as blocks lie behind the end, nothing is buffered: a truncation takes them away.
    world.put(&file, 9 * block, b"far");
    world.truncate(&file, 2 * block + 441);
    world.put(&file, 2 * block - 128, &[7; BLOCK]);
    world.truncate(&file, block + 1);
    assert!(world.fs.status().used > 0, "it is in DRAM: the test would say nothing");
    assert_eq!(world.fs.seek(&file, 0, SeekTo::Data).unwrap(), block);
    world.fs.sync(&file).unwrap();
    assert_eq!(world.fs.seek(&file, 0, SeekTo::Data).unwrap(), block);
    assert_eq!(world.get(&file), [0; BLOCK + 1]);
    world.unmount();
}

#[test]
fn an_append_does_not_write_the_line_before_it_again() {
    let world = world_with(16, Settings { checker: Checker::Off, ..without_threads() });
    let file = world.create("file");
    world.put(&file, 0, &[1; 1000]);
    world.fs.sync(&file).unwrap();
    assert_eq!(world.fs.status().written_back, 1000);
    world.append(&file, &[2; 100]);
    world.fs.sync(&file).unwrap();
    assert_eq!(world.fs.status().written_back, 1100, "and not from 960, where the line begins");
    world.append(&file, &[3; 100]);
    world.put(&file, 1095, &[4; 5]);
    world.fs.sync(&file).unwrap();
    assert_eq!(world.fs.status().written_back, 1100 + 1200 - 1088, "what is before the end has changed");
    let expected = [vec![1; 1000], vec![2; 95], vec![4; 5], vec![3; 100]].concat();
    assert_eq!(world.bytes_on_media("file").unwrap(), expected);
    assert_eq!(world.get(&file), expected);
    world.unmount();
}
