//! Small pools, several threads, full devices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre_cache::{CacheOptions, Settings};
use nacre_engine::{Attr, Data, Durability, Extents, Kind, Names, SetAttr, WriteAt};

use crate::{BLOCK, World, at, without_threads, world, world_with};

/// Four writers, each with a file and with a part of a common one, over a pool of four blocks.
fn write_from_four_threads(world: &World, turns: u64) {
    let common = world.create("common");
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let common = common.clone();
            scope.spawn(move || {
                let own = world.create(&format!("own {writer}"));
                for turn in 0..turns {
                    let block = turn * 7 % 16;
                    let bytes = [writer * 16 + (turn % 16) as u8; 1000];
                    world.put(&own, block * 4096 + turn % 3000, &bytes);
                    // A common block is 4 parts of 1024 bytes, one for each writer.
                    world.put(&common, block * 4096 + u64::from(writer) * 1024, &bytes);
                    if turn % 37 == 0 {
                        world.fs.sync(&own).unwrap();
                    }
                    let mut read = [0; 1000];
                    let at = block * 4096 + u64::from(writer) * 1024;
                    assert_eq!(world.fs.read(&common, at, &mut read, None).unwrap(), 1000);
                    assert_eq!(read, bytes, "nobody else writes there");
                }
            });
        }
    });
    let status = world.fs.status();
    assert!(status.used <= status.blocks && status.stalls > 0, "{status:?}");
    let buffered: Vec<_> =
        (0..4).map(|writer| world.get(&world.find(&format!("own {writer}")).unwrap())).collect();
    let shared = world.get(&common);
    world.fs.sync_all().unwrap();
    for (writer, bytes) in buffered.into_iter().enumerate() {
        assert!(world.bytes_on_media(&format!("own {writer}")).unwrap() == bytes);
    }
    assert!(world.bytes_on_media("common").unwrap() == shared);
    assert_eq!((world.fs.status().used, world.fs.status().failures), (0, 0));
}

#[test]
fn four_blocks_are_enough_for_four_writers_without_threads() {
    let world = world(4);
    write_from_four_threads(&world, 300);
    world.unmount();
}

#[test]
fn four_blocks_are_enough_for_four_writers_with_threads() {
    let world = world_with(4, Settings { threads: 3, ..Settings::default() });
    write_from_four_threads(&world, 300);
    world.unmount();
}

/// Waits for what threads do at some time; a minute is never.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn threads_start_below_low_and_stop_above_high() {
    let settings = Settings { threads: 1, low_percent: 50, high_percent: 75, ..Settings::default() };
    let world = world_with(100, settings);
    let file = world.create("file");
    // Single blocks with gaps: each is a flight of its own.
    for block in 0..49 {
        world.put(&file, block * 2 * BLOCK as u64, &[1; BLOCK]);
    }
    world.fs.set(Settings { period_ms: 1, low_percent: 75, ..settings }).unwrap();
    eventually("75 blocks are free", || world.fs.status().used <= 25);
    world.fs.set(Settings { threads: 0, ..settings }).unwrap();
    assert_eq!(world.fs.status().used, 25, "and not more");
    world.unmount();
}

/// Nobody has to wait for room first, nor for the time of the next look.
#[test]
fn whoever_takes_the_pool_below_low_calls_the_threads() {
    let day = 24 * 60 * 60 * 1000;
    let settings =
        Settings { threads: 1, low_percent: 50, high_percent: 75, period_ms: day, ..Settings::default() };
    let world = world_with(100, settings);
    let file = world.create("file");
    for round in 0..3 {
        let free = 100 - world.fs.status().used;
        for block in 0..free - 49 {
            world.put(&file, (round * 1000 + block * 2) * BLOCK as u64, &[1; BLOCK]);
        }
        eventually("75 blocks are free", || world.fs.status().used <= 25);
    }
    assert_eq!(world.fs.status().stalls, 0);
    world.unmount();
}

#[test]
fn old_blocks_are_written_and_young_ones_are_not() {
    let settings = Settings { threads: 2, period_ms: 1, ..Settings::default() };
    let world = world_with(100, settings);
    let (old, young) = (world.create("old"), world.create("young"));
    world.put(&old, 0, b"old");
    world.pass_ms(20_000);
    world.put(&young, 0, b"young");
    world.pass_ms(10_001);
    eventually("the old file is on media", || world.bytes_on_media("old").unwrap() == b"old");
    assert_eq!(world.bytes_on_media("young").unwrap(), b"");
    world.fs.set(Settings { max_age_ms: 100, ..settings }).unwrap();
    eventually("the other one is, too", || world.bytes_on_media("young").unwrap() == b"young");
    world.unmount();
}

#[test]
fn files_grow_in_order_whatever_is_oldest() {
    let world = world_with(64, Settings { threads: 0, max_age_ms: 0, ..Settings::default() });
    let file = world.create("file");
    // The later part is the older one.
    world.put(&file, 8 * BLOCK as u64, &[8; BLOCK]);
    world.pass_ms(10);
    for block in 0..8 {
        world.put(&file, block * BLOCK as u64, &[block as u8 + 1; BLOCK]);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let settings = world.fs.settings();
            world.fs.set(Settings { threads: 1, period_ms: 1, ..settings }).unwrap();
            eventually("everything is written", || world.fs.status().used == 0);
            stop.store(true, Ordering::Release);
        });
        while !stop.load(Ordering::Acquire) {
            let on_media = world.bytes_on_media("file").unwrap();
            for (block, bytes) in on_media.chunks(BLOCK).enumerate() {
                assert!(bytes.iter().all(|byte| *byte != 0), "block {block} is shown and not written");
            }
        }
    });
    world.unmount();
}

#[test]
fn what_was_accepted_fits_and_what_does_not_fit_is_refused_at_once() {
    let world = world(512);
    let mut files = Vec::new();
    let refused = 'full: loop {
        let file = world.create(&format!("{}", files.len()));
        for block in 0..64 {
            match world.write(&file, WriteAt::Offset(block * BLOCK as u64), &[7; BLOCK], Durability::Lazy) {
                Ok(_) => {}
                Err(error) => {
                    files.push((file, block));
                    break 'full error;
                }
            }
        }
        files.push((file, 64));
    };
    assert_eq!(refused.kind(), Kind::NoSpace);
    world.fs.sync_all().unwrap();
    assert_eq!((world.fs.status().failures, world.fs.status().lost), (0, 0));
    for (file, blocks) in &files {
        assert!(world.get(file) == vec![7; *blocks as usize * BLOCK]);
    }
    assert!(world.fs.stat().available < 64);
    drop(files);
    for number in 0.. {
        if world.fs.unlink(&world.fs.root(), format!("{number}").as_bytes(), at(2)).is_err() {
            break;
        }
    }
    world.unmount();
}

#[test]
fn space_that_is_set_aside_is_not_available_and_comes_back() {
    let world = world(64);
    let before = world.fs.stat();
    let file = world.create("file");
    world.put(&file, 0, &[1; 5 * BLOCK]);
    assert_eq!(world.fs.stat().available, before.available - 5);
    let cost = world.fs.capabilities().write_cost;
    let below = world.fs.layout().stat().available;
    assert_eq!(below, before.available - 5 * cost.block - cost.file, "with what its metadata may take");
    world.truncate(&file, 0);
    assert_eq!(world.fs.stat().available, before.available);
    world.unmount();
}

#[test]
fn impossible_settings_are_refused() {
    let kind = |options: CacheOptions| {
        let pm = std::sync::Arc::new(nacre_media::SimPm::new(16 << 20));
        nacre_layout_log::mkfs(&*pm, &nacre_layout_log::MkfsOptions::default()).unwrap();
        nacre_cache::CacheFs::new(crate::mount_log(&pm), &options).err().map(|error| error.kind())
    };
    assert_eq!(kind(CacheOptions::new(3 * 4096)), Some(Kind::InvalidInput));
    let wrong = [
        Settings { low_percent: 30, ..without_threads() },
        Settings { high_percent: 101, ..without_threads() },
        Settings { threads: 65, ..Settings::default() },
        Settings { period_ms: 0, ..without_threads() },
    ];
    for settings in wrong {
        assert_eq!(kind(CacheOptions { settings, ..CacheOptions::new(1 << 20) }), Some(Kind::InvalidInput));
    }
    assert_eq!(kind(CacheOptions::new(1 << 20)), None);
}

#[test]
fn a_writer_that_waits_for_threads_goes_on_when_they_are_taken_away() {
    let world = world(4);
    let usual = world.fs.settings();
    let stop = AtomicBool::new(false);
    let is_stuck = std::thread::scope(|scope| {
        for writer in 0..2 {
            let (world, stop) = (&world, &stop);
            scope.spawn(move || {
                let file = world.create(&format!("file {writer}"));
                for turn in (0..64).cycle() {
                    world.put(&file, turn * 2 * BLOCK as u64, &[1; BLOCK]);
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
        }
        let is_stuck = (0..1000).any(|_| {
            world.fs.set(Settings { threads: 1, ..usual }).unwrap();
            world.fs.set(Settings { threads: 0, ..usual }).unwrap();
            let (before, start) = (world.fs.status().written_lazily, Instant::now());
            while world.fs.status().written_lazily == before && start.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            world.fs.status().written_lazily == before
        });
        stop.store(true, Ordering::Release);
        // Whoever waits is helped, so that a failure is one and no hang.
        world.fs.set(Settings { threads: 1, ..usual }).unwrap();
        is_stuck
    });
    assert!(!is_stuck, "a writer waits for nobody");
    world.unmount();
}

/// Whichever comes first, the file is immutable afterwards: the cache does not know it by the flags that it had.
#[test]
fn flags_that_are_set_beside_the_first_write_hold() {
    let world = world(64);
    for round in 0..300 {
        let file = world.create(&format!("file {round}"));
        let (writer, other) = (file.clone(), file.clone());
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                let _ = world.write(&writer, WriteAt::Offset(0), b"may come first", Durability::Lazy);
            });
            barrier.wait();
            let change = SetAttr { flags: Some(Attr::IMMUTABLE), ..SetAttr::default() };
            world.fs.setattr(&other, &change, at(3)).unwrap();
        });
        let later = world.write(&file, WriteAt::Offset(0), b"too late", Durability::Lazy);
        assert_eq!(later.map_err(|error| error.kind()), Err(Kind::NotPermitted), "round {round}");
        let bare = SetAttr { flags: Some(0), ..SetAttr::default() };
        world.fs.setattr(&file, &bare, at(4)).unwrap();
        world.fs.unlink(&world.fs.root(), format!("file {round}").as_bytes(), at(5)).unwrap();
    }
    world.unmount();
}

/// The threads stop at High_f, so whoever wants more than that writes back by itself.
#[test]
fn a_writer_of_more_than_the_threads_free_waits_for_nobody() {
    let day = 24 * 60 * 60 * 1000;
    let settings = Settings { threads: 1, period_ms: day, max_age_ms: day, ..Settings::default() };
    let world = world_with(8, settings);
    let file = world.create("file");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for write in 0..6 {
                world.put(&file, write * 10 * BLOCK as u64, &[1; 4 * BLOCK]);
            }
        });
        let start = Instant::now();
        while !writer.is_finished() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_stuck = !writer.is_finished();
        // It is helped, so that a failure is one and no hang.
        world.fs.set(Settings { threads: 1, high_percent: 100, ..settings }).unwrap();
        assert!(!is_stuck, "a writer waits for nobody");
    });
    world.unmount();
}
