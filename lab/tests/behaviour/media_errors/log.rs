//! What is this layout's own: logs, their repair, and data that is never overwritten.

use nacre_engine::{BLOCK_SIZE, Kind, Names};
use nacre_layout_log::LogFs;
use nacre_layout_log::check::{Repair, check, check_media, check_with};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_media::{Pm, SimPm};

use super::common::{
    BLOCKS, LINE, NAMES, SIZE, fill, image, lookup, mount, place_of, put, read, scrub, the_rest_lives,
    try_mount,
};

type Fs = LogFs<SimPm>;

/// A whole block in its place heals the file; the old one goes out of use.
#[test]
fn bad_data_is_healed_by_a_write() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let bad = lookup(&fs, "bad").unwrap();
    let at = place_of(&fs, &bad, 20);
    pm.poison(at + 128, LINE);
    assert_eq!(scrub(&fs).bad_blocks, 1);
    put(&fs, &bad, 20 * BLOCK_SIZE, &[b'b'; 4096]).unwrap();
    assert_eq!(read(&fs, &bad, 20 * BLOCK_SIZE, 4096).unwrap(), [b'b'; 4096]);
    assert_ne!(place_of(&fs, &bad, 20), at);
    drop(bad);
    fill(&fs, at);
    fs.unmount().unwrap();
    assert!(check(&*pm, false).unwrap().problems.is_empty());
}

/// The address of an inode in the only chunks of this image.
fn inode_address(pm: &SimPm, number: u64) -> u64 {
    let word = pm.load_u64(18 * BLOCK_SIZE + number / 256 * 8).unwrap();
    (word & ((1 << 47) - 1)) * BLOCK_SIZE + number % 256 * 256
}

fn log_pages(pm: &SimPm, number: u64) -> Vec<u64> {
    let mut next = pm.load_u64(inode_address(pm, number) + 40).unwrap();
    let mut pages = Vec::new();
    while next != 0 {
        let page = (next & ((1 << 48) - 1)) * BLOCK_SIZE;
        pages.push(page);
        next = pm.load_u64(page + 48).unwrap();
    }
    pages
}

#[test]
fn bad_metadata_is_an_error_of_its_file() {
    for what in ["header", "entry", "page header", "directory"] {
        let pm = image::<Fs>();
        let fs: Fs = mount(&pm);
        let number = fs.id(&lookup(&fs, "bad").unwrap()).number;
        let directory = fs.id(&lookup(&fs, "dir").unwrap()).number;
        fs.unmount().unwrap();
        let (pages, names) = (log_pages(&pm, number), log_pages(&pm, directory));
        let (at, path) = match what {
            "header" => (inode_address(&pm, number), "bad"),
            "entry" => (pages[1] + 20 * LINE, "bad"),
            "page header" => (pages[1], "bad"),
            _ => (names[1] + 10 * LINE, "dir/name-3"),
        };
        pm.poison(at, LINE);
        // After an unmount in order an inode is read when it is used.
        let fs: Fs = mount(&pm);
        assert_eq!(lookup(&fs, path).map(drop).map_err(|error| error.kind()), Err(Kind::Media), "{what}");
        the_rest_lives(&fs, what);
        let status = scrub(&fs);
        let owner = if what == "directory" { "/dir (inode" } else { "/bad (inode" };
        let named = |finding: &String| finding.starts_with(owner);
        assert!(status.findings.iter().any(named), "{what}: {status:?}");
        let again = scrub(&fs);
        assert!(again.findings.is_empty() && again.known.iter().any(named), "{what} again: {again:?}");
        fs.unmount().unwrap();

        let told = check(&*pm, false).unwrap();
        assert!(!told.is_sound(), "{what}");
        assert!(
            told.problems.iter().any(|p| p.what.contains(owner) || p.what.contains("/bad")),
            "{what}: {told:?}"
        );
        let report = check(&*pm, true).unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
        assert!(check(&*pm, false).unwrap().problems.is_empty(), "{what}");
        let fs: Fs = mount(&pm);
        the_rest_lives(&fs, what);
        let names = (0..NAMES).filter(|index| lookup(&fs, &format!("dir/name-{index}")).is_ok()).count();
        assert_eq!(names, if what == "directory" { NAMES - 1 } else { NAMES } as usize);
        if let Ok(bad) = lookup(&fs, "bad") {
            let lost = (0..BLOCKS)
                .filter(|block| read(&fs, &bad, block * 2 * BLOCK_SIZE, 4096).unwrap() != [b'b'; 4096]);
            assert!(lost.count() <= 1, "{what}");
        } else {
            panic!("{what}: the file is gone");
        }
        fs.unmount().unwrap();
    }
}

#[test]
fn a_crash_does_not_hide_bad_metadata() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let number = fs.id(&lookup(&fs, "bad").unwrap()).number;
    fs.abandon();
    let page = log_pages(&pm, number)[1];
    pm.poison(page + 20 * LINE, LINE);
    let refused = try_mount::<Fs>(&pm).map(drop).expect_err("recovery cannot read it");
    assert!(refused.to_string().contains("fsck"), "{refused}");
    assert!(check(&*pm, true).unwrap().is_sound());
    the_rest_lives(&mount::<Fs>(&pm), "after the repair");
}

#[test]
fn a_damaged_list_of_bad_blocks_costs_no_more_than_its_words() {
    let pm = image::<Fs>();
    check_media(&*pm, true).unwrap();
    pm.poison(SIZE - 4096, 1);
    pm.poison(SIZE - 8192, 1);
    assert_eq!(check_media(&*pm, true).unwrap().new_blocks, 2);
    pm.poke(17 * BLOCK_SIZE, &[0x55; 8]);
    let fs: Fs = mount(&pm);
    assert_eq!(fs.scrub_status().bad_blocks, 1);
    fs.unmount().unwrap();
    let told = check(&*pm, false).unwrap();
    assert!(!told.is_sound() && told.problems[0].what.contains("list of bad blocks"), "{told:?}");
    assert!(check_with(&*pm, Repair::Safe).unwrap().is_sound());
    assert_eq!(check_media(&*pm, true).unwrap().new_blocks, 1, "found again");
    assert_eq!(check(&*pm, false).unwrap().bad_blocks, 2);
}

/// The table that leads to inodes, all of its page: a repair found it and could not write it, and a page of it has hundreds of
/// words that were never written.
#[test]
fn a_bad_chunk_table_is_written_anew() {
    for len in [LINE, BLOCK_SIZE] {
        let pm = image::<Fs>();
        pm.poison(18 * BLOCK_SIZE, len);
        assert!(try_mount::<Fs>(&pm).is_err());
        let told = check(&*pm, false).unwrap();
        assert!(!told.is_sound() && told.problems.len() <= 3, "{told:?}");
        let report = check_with(&*pm, Repair::Safe).unwrap();
        assert!(report.is_sound(), "{report:?}");
        assert!(check(&*pm, false).unwrap().problems.is_empty());
        let fs: Fs = mount(&pm);
        the_rest_lives(&fs, "table");
        assert_eq!(names(&fs), NAMES as usize);
        fs.unmount().unwrap();
    }
}

fn names(fs: &Fs) -> usize {
    (0..NAMES).filter(|index| lookup(fs, &format!("dir/name-{index}")).is_ok()).count()
}

/// The block of the root's inode, which has fifteen others: what was in the root's log is still there, and where the error
/// stays the inodes are elsewhere from then on.
#[test]
fn a_bad_block_of_inodes_is_written_anew_or_put_elsewhere() {
    for stays in [false, true] {
        let pm = image::<Fs>();
        pm.poison(inode_address(&pm, 0), BLOCK_SIZE);
        if stays {
            pm.keep_poison();
        }
        assert!(try_mount::<Fs>(&pm).is_err());
        assert!(!check(&*pm, false).unwrap().is_sound());
        let report = check(&*pm, true).unwrap();
        assert!(report.is_sound(), "stays {stays}: {report:?}");
        assert!(check(&*pm, false).unwrap().problems.is_empty(), "stays {stays}");
        let fs: Fs = mount(&pm);
        let found =
            |name: &&&str| lookup(&fs, name).is_ok() || lookup(&fs, &format!("lost+found/{name}")).is_ok();
        assert!(["lost+found"].iter().filter(found).count() == 1, "what lost its name is somewhere");
        let good =
            fs.create(&fs.root(), b"more", &super::common::new(nacre_engine::FileKind::Regular)).unwrap();
        put(&fs, &good, 0, b"more").unwrap();
        drop(good);
        fs.unmount().unwrap();
        assert!(check(&*pm, false).unwrap().problems.is_empty(), "stays {stays}");
    }
}
