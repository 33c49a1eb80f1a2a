//! Writes past DRAM over blocks that are in it.

use nacre_engine::{Attr, Durability, Names, SetAttr, WriteAt};

use crate::{BLOCK, at, world};

const LINE: usize = 64;

#[test]
fn a_synchronous_write_takes_along_what_waits_of_its_blocks() {
    let world = world(64);
    let file = world.create("file");
    world.put(&file, 0, &[1; 4 * BLOCK]);
    world.put_now(&file, 100, &[2; 2 * BLOCK]);
    let mut expected = vec![1; 3 * BLOCK];
    expected[100..100 + 2 * BLOCK].fill(2);
    assert_eq!(world.bytes_on_media("file").unwrap(), expected, "with what its size shows");
    let status = world.fs.status();
    assert_eq!(status.used, 1, "they have left, and the block that it did not touch waits");
    // Of the first block the lines 0 and 1, and of the last all but its first.
    let beside = (2 + 63) * LINE;
    assert_eq!(status.written_back, beside as u64, "what it replaces is written by nobody");
    assert_eq!(status.overwritten, (3 * BLOCK - beside) as u64);
    expected.extend([1; BLOCK]);
    assert_eq!(world.get(&file), expected);
    world.unmount();
}

#[test]
fn a_synchronous_append_shows_no_size_without_what_was_appended_before() {
    for earlier in [10, BLOCK, 3 * BLOCK + 100] {
        let world = world(64);
        let file = world.create("file");
        let mut expected = Vec::new();
        for value in 1..5 {
            world.append(&file, &vec![value; earlier]);
            expected.extend(vec![value; earlier]);
        }
        let offset = world.write(&file, WriteAt::End, &[9; 77], Durability::Now).unwrap();
        assert_eq!(offset, 4 * earlier as u64);
        expected.extend([9; 77]);
        assert_eq!(world.bytes_on_media("file").unwrap(), expected);
        assert_eq!((world.get(&file), world.fs.status().used), (expected, 0));
        assert_eq!(world.attr(&file).mtime, at(1));
        world.unmount();
    }
}

#[test]
fn a_file_that_may_only_be_appended_to_takes_a_synchronous_append_over_what_waits() {
    let world = world(64);
    let file = world.create("log");
    let change = SetAttr { flags: Some(Attr::APPEND_ONLY), ..SetAttr::default() };
    world.fs.setattr(&file, &change, at(2)).unwrap();
    world.append(&file, b"one ");
    world.write(&file, WriteAt::End, b"two", Durability::Now).unwrap();
    assert_eq!(world.bytes_on_media("log").unwrap(), b"one two");
    world.unmount();
}

#[test]
fn single_bytes_over_scattered_lines_keep_the_rest_of_each() {
    let world = world(64);
    let file = world.create("file");
    let mut expected = vec![7; BLOCK];
    world.put_now(&file, 0, &expected);
    for line in [0, 5, 20, 63] {
        world.put(&file, (line * LINE + 3) as u64, &[line as u8; 10]);
        expected[line * LINE + 3..][..10].fill(line as u8);
    }
    for (offset, value) in [(5 * LINE + 8, 100), (40 * LINE + 1, 101), (BLOCK - 1, 102)] {
        world.put_now(&file, offset as u64, &[value]);
        expected[offset] = value;
        assert_eq!((world.get(&file), world.fs.status().used), (expected.clone(), 0));
        assert_eq!(world.bytes_on_media("file").unwrap(), expected);
        world.put(&file, 20 * LINE as u64, &[value; 3]);
        expected[20 * LINE..][..3].fill(value);
    }
    world.unmount();
}
