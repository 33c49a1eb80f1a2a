//! What is on media before what, seen at every moment: media is read as the next process would find it.

use nacre_engine::{Data, Kind, Names, RenameMode, SetAttr};

use crate::{BLOCK, at, world};

#[test]
fn replacing_a_file_by_a_rename_never_leaves_an_empty_one() {
    let world = world(64);
    let root = world.fs.root();
    let old = world.create("config");
    world.put(&old, 0, b"old");
    world.fs.sync(&old).unwrap();
    let new = world.create("config.new");
    world.put(&new, 0, b"new contents");
    world.fs.rename(&root, b"config.new", &root, b"config", RenameMode::Replace, at(2)).unwrap();
    assert_eq!(world.bytes_on_media("config").unwrap(), b"new contents");
    world.unmount();
}

#[test]
fn replacing_a_file_by_a_truncation_is_done_when_it_is_closed() {
    let world = world(64);
    let file = world.create("config");
    world.put(&file, 0, b"old");
    world.fs.sync(&file).unwrap();
    world.truncate(&file, 0);
    world.put(&file, 0, b"new contents");
    world.fs.closed(&file).unwrap();
    assert_eq!(world.bytes_on_media("config").unwrap(), b"new contents");
    // Only then: closing costs nothing otherwise.
    world.put(&file, 0, b"even newer c");
    world.fs.closed(&file).unwrap();
    assert_eq!(world.bytes_on_media("config").unwrap(), b"new contents");
    // A shell closes the handle that it opened with before anything is written through the copy of it.
    world.truncate(&file, 0);
    world.fs.closed(&file).unwrap();
    world.put(&file, 0, b"from a shell");
    world.fs.closed(&file).unwrap();
    assert_eq!(world.bytes_on_media("config").unwrap(), b"from a shell");
    // What was never on media cannot be missed.
    let other = world.create("other");
    world.put(&other, 0, b"x");
    world.truncate(&other, 0);
    world.put(&other, 0, b"y");
    world.fs.closed(&other).unwrap();
    assert_eq!(world.bytes_on_media("other").unwrap(), b"");
    world.unmount();
}

#[test]
fn both_sides_of_an_exchange_and_the_target_of_a_link_are_written_first() {
    let world = world(64);
    let root = world.fs.root();
    let (a, b, c) = (world.create("a"), world.create("b"), world.create("c"));
    world.put(&a, 0, b"was a");
    world.put(&b, 0, b"was b");
    world.put(&c, 0, b"c");
    world.fs.rename(&root, b"a", &root, b"b", RenameMode::Exchange, at(2)).unwrap();
    assert_eq!(world.bytes_on_media("a").unwrap(), b"was b");
    assert_eq!(world.bytes_on_media("b").unwrap(), b"was a");
    assert_eq!(world.bytes_on_media("c").unwrap(), b"");
    world.fs.link(&c, &root, b"d", at(2)).unwrap();
    assert_eq!(world.bytes_on_media("d").unwrap(), b"c");
    world.unmount();
}

#[test]
fn a_rename_to_a_free_name_waits_for_nothing() {
    let world = world(64);
    let root = world.fs.root();
    let file = world.create("a");
    world.put(&file, 0, b"later");
    world.fs.rename(&root, b"a", &root, b"b", RenameMode::Replace, at(2)).unwrap();
    assert_eq!((world.bytes_on_media("b").unwrap().len(), world.fs.status().used), (0, 1));
    world.unmount();
}

#[test]
fn a_truncation_shows_nothing_that_is_not_written() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, 0, &[1; 3 * BLOCK]);
    world.truncate(&file, 2 * BLOCK as u64);
    assert_eq!(world.bytes_on_media("file").unwrap(), [1; 2 * BLOCK]);
    world.put(&file, 2 * BLOCK as u64, &[2; BLOCK]);
    world.truncate(&file, 5 * BLOCK as u64);
    let on_media = world.bytes_on_media("file").unwrap();
    assert_eq!((on_media.len(), &on_media[2 * BLOCK..3 * BLOCK]), (5 * BLOCK, &[2; BLOCK][..]));
    world.unmount();
}

#[test]
fn a_synchronous_write_far_behind_the_end_shows_what_waits_before_it() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, 0, &[1; BLOCK]);
    world.put_now(&file, 2 * BLOCK as u64, &[3; 10]);
    let on_media = world.bytes_on_media("file").unwrap();
    assert_eq!((on_media.len(), &on_media[..BLOCK]), (2 * BLOCK + 10, &[1; BLOCK][..]));
    world.unmount();
}

#[test]
fn a_sync_that_fails_leaves_everything_as_it_was() {
    let world = world(64);
    let file = world.create("file");
    world.put_now(&file, 0, &[1; 4 * BLOCK]);
    // Overwriting a part of a line must read what it keeps, and that cannot be read.
    world.put(&file, 0, &[2; 64]);
    let place = nacre_engine::Extents::resolve(&world.fs, &file, nacre_engine::FileBlock(1), 1).unwrap();
    let nacre_engine::Place::Pm(block) = place[0].place else { panic!("{place:?}") };
    world.pm.poison(block.offset() + 1024, 64);
    world.put(&file, BLOCK as u64, &[3; 64]);
    let error = world.fs.sync(&file).unwrap_err();
    assert_eq!(error.kind(), Kind::Media);
    for (offset, value) in [(0, 2), (BLOCK as u64, 3)] {
        let mut bytes = [0; 64];
        world.fs.read(&file, offset, &mut bytes, None).unwrap();
        assert_eq!(bytes, [value; 64], "it is still there");
    }
    // The whole block, which needs nothing of the old one.
    world.put(&file, BLOCK as u64, &[4; BLOCK]);
    world.fs.sync(&file).unwrap();
    assert_eq!(&world.bytes_on_media("file").unwrap()[BLOCK..2 * BLOCK], &[4; BLOCK]);
    // No fsck: the layout keeps the blocks of a write that met a media error until it is mounted after a crash.
    drop(file);
    let (layout, flushed) = world.fs.unmount();
    flushed.unwrap();
    layout.unmount().unwrap();
}

#[test]
fn an_unmount_writes_everything() {
    let world = world(64);
    for number in 0..20 {
        let file = world.create(&format!("{number}"));
        world.put(&file, 0, &[number; 5000]);
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(world.fs.setattr(&file, &mode, at(3)).unwrap().size, 5000);
    }
    let crate::World { pm, fs, .. } = world;
    let (layout, flushed) = fs.unmount();
    flushed.unwrap();
    layout.unmount().unwrap();
    let fs = crate::mount_log(&pm);
    for number in 0..20u8 {
        let file = fs.lookup(&fs.root(), format!("{number}").as_bytes()).unwrap();
        assert_eq!(crate::contents(&fs, &file), [number; 5000]);
    }
}
