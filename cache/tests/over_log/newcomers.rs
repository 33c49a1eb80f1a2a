//! New files, and what is appended: past DRAM where such were synchronised each time, where that is asked for.

use nacre_cache::Settings;
use nacre_engine::{Data, Names};

use crate::{BLOCK, World, at, without_threads, world_with};

fn learning() -> World {
    world_with(64, Settings { inherits: true, ..without_threads() })
}

/// Writes new files, as mail servers do; gives how many bytes went past DRAM.
pub(crate) fn mails(world: &World, count: usize, is_synced: impl Fn(usize) -> bool) -> u64 {
    let before = world.fs.status().written_eagerly;
    for number in 0..count {
        let name = format!("mail{number}");
        let file = world.create(&name);
        let body = vec![number as u8 | 1; BLOCK + 700];
        world.append(&file, &body);
        if is_synced(number) {
            world.fs.sync(&file).unwrap();
        }
        assert!(world.get(&file) == body, "file {number}");
        world.fs.unlink(&world.fs.root(), name.as_bytes(), at(3)).unwrap();
    }
    world.fs.status().written_eagerly - before
}

#[test]
fn new_files_that_are_always_synchronised_go_past_dram_and_others_do_not() {
    const ALL: u64 = 200 * (BLOCK as u64 + 700);
    let world = learning();
    let eager = mails(&world, 200, |_| true);
    assert!((ALL / 2..ALL).contains(&eager), "{eager} of {ALL}");
    // Until that is seen.
    let eager = mails(&world, 1000, |_| false);
    assert!(eager < ALL, "{eager}");
    assert_eq!(mails(&world, 200, |_| false), 0);
    let world = learning();
    assert_eq!(mails(&world, 200, |number| number % 2 == 0), 0, "one of two");
    let plain = world_with(64, without_threads());
    assert_eq!(mails(&plain, 200, |_| true), 0, "nobody asked for it");
}

#[test]
fn what_is_appended_takes_after_what_was_appended_before() {
    let world = learning();
    let file = world.create("log");
    let mut expected = Vec::new();
    let mut append = |len: usize| {
        let before = world.fs.status();
        let bytes = vec![expected.len() as u8 | 1; len];
        world.append(&file, &bytes);
        expected.extend(bytes);
        assert!(world.get(&file) == expected);
        let after = world.fs.status();
        (after.written_eagerly - before.written_eagerly, after.written_lazily - before.written_lazily)
    };
    assert_eq!(append(6000), (0, 6000), "nothing is known");
    world.fs.sync(&file).unwrap();
    assert_eq!(append(6000), (6000, 0));
    world.fs.sync(&file).unwrap();
    // Small pieces, of which several are of one block: the first ones still take after those before.
    assert_eq!((append(50), append(50)), ((50, 0), (50, 0)));
    world.fs.sync(&file).unwrap();
    assert_eq!((append(50), append(50), append(50)), ((0, 50), (0, 50), (0, 50)));
    world.fs.sync(&file).unwrap();
    assert_eq!(append(50), (0, 50), "they were better there");
    world.fs.sync(&file).unwrap();
    assert_eq!(append(5000), (5000, 0), "and one alone was not");
    world.fs.sync(&file).unwrap();
    // Long after the last synchronisation nothing is known any more.
    world.clock.fetch_add(6000, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(append(5000), (0, 5000));
}

/// A file that goes past DRAM because others do, and is not as they are.
#[test]
fn a_new_file_that_is_written_in_small_pieces_goes_through_dram_before_long() {
    let world = learning();
    mails(&world, 200, |_| true);
    let before = world.fs.status().written_eagerly;
    // One of sixteen goes through DRAM in any case.
    for name in ["one", "other"] {
        let file = world.create(name);
        let mut expected = Vec::new();
        for piece in 0..200 {
            let bytes = [piece | 1; 20];
            world.append(&file, &bytes);
            expected.extend(bytes);
        }
        assert!(world.get(&file) == expected);
    }
    let eager = world.fs.status().written_eagerly - before;
    assert!((20..200).contains(&eager), "{eager}");
}
