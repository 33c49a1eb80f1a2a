//! The buffer benefit model at work.

use nacre_cache::Settings;
use nacre_engine::{Data, Durability, WriteAt};
use nacre_policy::{Checker, Latencies};

use crate::{BLOCK, World, without_threads, world_with};

/// A pool whose hundredth has room for some blocks.
fn world(checker: Checker) -> World {
    let latencies = Some(Latencies { dram_ns: 20, pm_ns: 200 });
    world_with(1024, Settings { checker, latencies, ..without_threads() })
}

#[test]
fn blocks_that_are_synced_after_each_write_bypass_until_five_seconds_pass() {
    let world = world(Checker::Full);
    let file = world.create("file");
    world.put(&file, 0, &[1; BLOCK]);
    world.fs.sync(&file).unwrap();
    assert_eq!((world.fs.status().written_eagerly, world.fs.status().ghosts), (0, 1));
    world.put(&file, 0, &[2; BLOCK]);
    assert_eq!(world.fs.status().written_eagerly, BLOCK as u64);
    assert_eq!(world.bytes_on_media("file").unwrap(), [2; BLOCK]);
    world.fs.sync(&file).unwrap();
    assert_eq!((world.fs.status().accurate, world.fs.status().inaccurate), (1, 0));
    world.pass_ms(5001);
    world.put(&file, 0, &[3; BLOCK]);
    assert_eq!(world.fs.status().written_eagerly, BLOCK as u64, "lazy again");
    assert_eq!(world.fs.status().used, 1);
    world.unmount();
}

#[test]
fn blocks_that_are_overwritten_between_syncs_are_buffered() {
    let world = world(Checker::Full);
    let file = world.create("file");
    for _ in 0..4 {
        for turn in 0..5 {
            world.put(&file, 0, &[turn; 256]);
        }
        world.fs.sync(&file).unwrap();
    }
    let status = world.fs.status();
    assert_eq!((status.written_eagerly, status.accurate, status.accuracy()), (0, 3, Some(1.0)));
    assert_eq!(status.written_back, 4 * 256);
    world.unmount();
}

#[test]
fn without_the_check_everything_is_buffered() {
    let world = world(Checker::Off);
    let file = world.create("file");
    for _ in 0..3 {
        world.put(&file, 0, &[1; BLOCK]);
        world.fs.sync(&file).unwrap();
    }
    let status = world.fs.status();
    assert_eq!((status.written_eagerly, status.accurate), (0, 2));
    world.unmount();
}

#[test]
fn a_write_to_blocks_of_both_kinds_leaves_both_as_they_should_be() {
    let world = world(Checker::Full);
    let file = world.create("file");
    world.put(&file, 0, &[1; BLOCK]);
    world.fs.sync(&file).unwrap();
    world.put(&file, 0, &[2; 3 * BLOCK]);
    assert_eq!(world.bytes_on_media("file").unwrap(), [2; BLOCK], "the first is eager, the others wait");
    assert_eq!((world.fs.status().used, world.attr(&file).size), (2, 3 * BLOCK as u64));
    world.unmount();
}

#[test]
fn synchronous_writes_and_mounts_and_pinned_files_bypass() {
    let world = world(Checker::Full);
    let file = world.create("file");
    world.put(&file, 0, &[1; 3 * BLOCK]);
    world.put_now(&file, BLOCK as u64, &[2; 10]);
    let mut expected = vec![1; 3 * BLOCK];
    expected[BLOCK..BLOCK + 10].fill(2);
    assert_eq!(world.bytes_on_media("file").unwrap(), expected[..2 * BLOCK], "with what its size shows");
    assert_eq!(world.get(&file), expected);
    world.fs.bypass(&file).unwrap();
    assert_eq!(world.bytes_on_media("file").unwrap(), expected);
    world.put(&file, 0, b"pinned");
    assert_eq!(&world.bytes_on_media("file").unwrap()[..6], b"pinned");
    world.fs.end_bypass(&file);
    let settings = world.fs.settings();
    world.fs.set(Settings { sync: true, ..settings }).unwrap();
    world.put(&file, 0, b"synced");
    assert_eq!(&world.bytes_on_media("file").unwrap()[..6], b"synced");
    world.fs.set(settings).unwrap();
    world.write(&file, WriteAt::Offset(0), b"lazily", Durability::Lazy).unwrap();
    assert_eq!(&world.bytes_on_media("file").unwrap()[..6], b"synced");
    world.unmount();
}

#[test]
fn what_the_model_remembers_is_bounded() {
    let world = world(Checker::Full);
    for number in 0..1000 {
        let file = world.create(&format!("file {number}"));
        world.put(&file, 0, &[1; 64]);
        world.fs.sync(&file).unwrap();
    }
    let ghosts = world.fs.status().ghosts;
    assert!(ghosts > 0 && ghosts * 128 <= 1024 * BLOCK as u64 / 100, "{ghosts} blocks");
    world.unmount();
}

#[test]
fn on_memory_as_fast_as_dram_only_parts_of_blocks_are_buffered() {
    let latencies = Some(Latencies { dram_ns: 8, pm_ns: 8 });
    let world = world_with(64, Settings { latencies, ..without_threads() });
    let file = world.create("file");
    world.put(&file, 0, &[1; 3 * BLOCK]);
    assert_eq!((world.fs.status().used, world.fs.status().written_eagerly), (0, 3 * BLOCK as u64));
    assert_eq!(world.bytes_on_media("file").unwrap(), [1; 3 * BLOCK]);
    // A copy of the block would be 64 lines for 2.
    world.put(&file, 100, &[2; 100]);
    assert_eq!((world.fs.status().used, world.fs.status().written_lazily), (1, 100));
    // What overlaps it finds it written.
    world.put(&file, 0, &[3; 150]);
    world.put(&file, 0, &[4; BLOCK]);
    assert_eq!(world.fs.status().used, 0);
    assert_eq!(world.bytes_on_media("file").unwrap()[..BLOCK], [4; BLOCK]);
    world.fs.sync(&file).unwrap();
    world.unmount();
}

#[test]
fn settings_that_do_not_say_what_a_line_costs_leave_what_was_measured() {
    let fast = Some(Latencies { dram_ns: 8, pm_ns: 8 });
    let world = world_with(64, Settings { latencies: fast, ..without_threads() });
    world.fs.set(Settings { forget_ms: 1, ..without_threads() }).unwrap();
    assert_eq!((world.fs.settings().latencies, world.fs.settings().forget_ms), (fast, 1));
    let slow = Some(Latencies::default());
    world.fs.set(Settings { latencies: slow, ..without_threads() }).unwrap();
    assert_eq!(world.fs.settings().latencies, slow, "numbers that are the usual ones are a choice, too");
    world.unmount();
}
