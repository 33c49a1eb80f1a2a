//! Writeback that fails: for how long it is tried, who is told, and who need not wait for it.

use std::sync::mpsc::channel;
use std::time::Duration;

use nacre_cache::Settings;
use nacre_engine::{Data, Durability, Extents, FileBlock, Kind, Names, Place, RenameMode, WriteAt};

use crate::pressure::eventually;
use crate::{BLOCK, File, World, at, world_with};

/// One thread that writes at once whatever there is, and tries again after as many milliseconds of the test's clock.
fn eager_thread(period_ms: u64) -> Settings {
    Settings { threads: 1, max_age_ms: 0, period_ms, ..Settings::default() }
}

/// A file of so many blocks, each with one line that waits and that cannot be written: what is kept of its block cannot be
/// read.
fn failing(world: &World, name: &str, blocks: u64) -> File {
    let file = world.create(name);
    world.put_now(&file, 0, &vec![1; blocks as usize * BLOCK]);
    for extent in world.fs.resolve(&file, FileBlock(0), blocks).unwrap() {
        let Place::Pm(first) = extent.place else { panic!("{extent:?}") };
        (0..extent.len).for_each(|block| world.pm.poison(first.offset() + block * BLOCK as u64 + 1024, 64));
    }
    (0..blocks).for_each(|block| world.put(&file, block * BLOCK as u64, &[3; 64]));
    file
}

fn first_line(world: &World, file: &File, block: u64) -> [u8; 64] {
    let mut line = [0; 64];
    world.fs.read(file, block * BLOCK as u64, &mut line, None).unwrap();
    line
}

/// Without a check: the layout keeps the blocks of a write that met a media error until it is mounted after a crash.
fn unmount(world: World) -> nacre_engine::Result<()> {
    let (layout, flushed) = world.fs.unmount();
    layout.unmount().unwrap();
    flushed
}

#[test]
fn a_file_that_fails_is_tried_again_after_each_period_and_given_up_the_third_time() {
    let world = world_with(64, eager_thread(20));
    let (tell, told) = channel();
    world.fs.on_loss(Box::new(move |id, bytes| tell.send((id.number, bytes)).unwrap()));
    let file = failing(&world, "file", 1);
    for attempt in 1..=3 {
        eventually("it is tried", || world.fs.status().failures == attempt);
        let lost = if attempt < 3 { 0 } else { 64 };
        eventually("it is given up", || world.fs.status().lost == lost);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(world.fs.status().failures, attempt, "no time has passed");
        world.pass_ms(20);
    }
    assert_eq!(world.fs.status().used, 0);
    assert_eq!(told.recv(), Ok((world.fs.id(&file).number, 64)));
    assert_eq!(world.fs.sync(&file).unwrap_err().kind(), Kind::Media);
    world.fs.sync(&file).unwrap();
    // What comes after it has as many attempts.
    world.put(&file, 0, &[4; 64]);
    eventually("it is tried", || world.fs.status().failures == 4);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((world.fs.status().lost, first_line(&world, &file, 0)), (64, [4; 64]));
    world.put(&file, 0, &[5; BLOCK]);
    drop(file);
    assert_eq!(unmount(world).unwrap_err().kind(), Kind::Media, "it tells of it, too");
}

#[test]
fn a_sync_that_fails_keeps_what_waits_however_often_it_is_called() {
    let world = world_with(64, eager_thread(20));
    let file = failing(&world, "file", 2);
    let other = world.create("other");
    for turn in 0..10 {
        world.put(&other, 0, &[turn; 64]);
        assert_eq!(world.fs.sync_all().unwrap_err().kind(), Kind::Media);
        assert_eq!(world.fs.sync(&file).unwrap_err().kind(), Kind::Media);
        assert_eq!(world.bytes_on_media("other").unwrap(), [turn; 64]);
    }
    let status = world.fs.status();
    assert_eq!((status.lost, first_line(&world, &file, 1)), (0, [3; 64]));
    // Whole blocks need nothing of the old ones: what was wrong is over.
    world.put(&file, 0, &[4; 2 * BLOCK]);
    let _ = world.fs.sync(&file);
    assert_eq!(world.bytes_on_media("file").unwrap(), [4; 2 * BLOCK]);
    world.pass_ms(20);
    let _ = world.fs.sync_all();
    world.fs.sync_all().unwrap();
    drop((file, other));
    unmount(world).unwrap();
}

/// The pool is full of what fails, and it is not tried again before a day has passed.
fn whoever_finds_no_room_goes_past(threads: usize) {
    let day = 24 * 60 * 60 * 1000;
    let world = world_with(4, Settings { threads, period_ms: day, ..Settings::default() });
    let file = failing(&world, "file", 4);
    let other = world.create("other");
    for turn in 0..10 {
        world.put(&other, turn * 2 * BLOCK as u64, &[7; BLOCK]);
    }
    let on_media = world.bytes_on_media("other").unwrap();
    assert_eq!(on_media.chunks(BLOCK).filter(|block| **block == [7; BLOCK]).count(), 10);
    let status = world.fs.status();
    // Threads may have several of its blocks under way at once.
    assert!((1..=1 + threads as u64).contains(&status.failures), "{status:?}");
    assert_eq!((status.lost, status.used), (0, 4));
    let over = world.write(&file, WriteAt::Offset(64), &[8; 64], Durability::Now);
    assert_eq!(over.unwrap_err().kind(), Kind::Media, "and who writes there is told");
    assert_eq!(first_line(&world, &file, 3), [3; 64]);
    drop((file, other));
    assert_eq!(unmount(world).unwrap_err().kind(), Kind::Media);
}

#[test]
fn who_finds_no_room_for_what_fails_goes_past_it() {
    whoever_finds_no_room_goes_past(0);
}

#[test]
fn who_finds_no_room_for_what_fails_goes_past_it_beside_threads() {
    whoever_finds_no_room_goes_past(2);
}

/// More of one file that fails than one search looks at.
#[test]
fn what_fails_is_in_nobodys_way() {
    let world = world_with(600, Settings { threads: 0, ..Settings::default() });
    let file = failing(&world, "file", 400);
    let other = world.create("other");
    for block in 0..1000 {
        world.put(&other, block * 2 * BLOCK as u64, &[7; BLOCK]);
    }
    let status = world.fs.status();
    assert_eq!((status.failures, status.lost, status.written_eagerly), (1, 0, 400 * BLOCK as u64));
    drop((file, other));
    assert_eq!(unmount(world).unwrap_err().kind(), Kind::Media);
}

/// The new file, beside the old one.
fn what_was_to_replace_a_file_is_given_up() -> (World, File) {
    let world = world_with(64, eager_thread(20));
    world.put_now(&world.create("config"), 0, b"old");
    let file = failing(&world, "config.new", 1);
    eventually("it is given up", || {
        world.pass_ms(20);
        let status = world.fs.status();
        (status.lost, status.used) == (64, 0)
    });
    (world, file)
}

/// Whoever never synchronises writes a new file, closes it, and renames it over the old one.
#[test]
fn what_was_lost_does_not_replace_what_is_whole() {
    let (world, file) = what_was_to_replace_a_file_is_given_up();
    let root = world.fs.root();
    for _ in 0..2 {
        assert_eq!(world.fs.closed(&file).unwrap_err().kind(), Kind::Media);
        for mode in [RenameMode::Replace, RenameMode::Exchange] {
            let renamed = world.fs.rename(&root, b"config.new", &root, b"config", mode, at(2));
            assert_eq!(renamed.unwrap_err().kind(), Kind::Media);
        }
    }
    assert_eq!(world.get(&world.find("config").unwrap()), b"old");
    assert_eq!(world.fs.sync(&file).unwrap_err().kind(), Kind::Media, "it is told all the same");
    // Who goes on all the same knows.
    world.fs.closed(&file).unwrap();
    world.fs.rename(&root, b"config.new", &root, b"config", RenameMode::Replace, at(2)).unwrap();
    drop(file);
    assert_eq!(unmount(world).unwrap_err().kind(), Kind::Media);
}

#[test]
fn what_was_lost_is_nothing_to_a_file_that_is_written_anew() {
    let (world, file) = what_was_to_replace_a_file_is_given_up();
    let root = world.fs.root();
    world.truncate(&file, 0);
    world.put(&file, 0, b"new");
    world.fs.closed(&file).unwrap();
    world.fs.rename(&root, b"config.new", &root, b"config", RenameMode::Replace, at(2)).unwrap();
    assert_eq!(world.bytes_on_media("config").unwrap(), b"new");
    assert_eq!(world.fs.sync(&file).unwrap_err().kind(), Kind::Media);
    drop(file);
    let _ = unmount(world);
}
