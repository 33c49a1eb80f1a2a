//! Tests that hold for each of these layouts.

use std::slice;
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Kind};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::LogFs;
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_pool::PoolFs;
use nacre_layout_shadow::ShadowFs;
use nacre_media::{Pm, SimPm};

use super::common::{
    LINE, NAMES, SIZE, checked, fill, image, lookup, make, media, mount, now, place_of, read, scrub,
    the_rest_lives, try_mount,
};

fn a_sound_file_system_has_no_findings<F: Lifecycle<Pm = SimPm>>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let status = scrub(&fs);
    assert!(status.finished && status.findings.is_empty(), "{status:?}");
    // The root, the directory, and two files beside its own.
    assert_eq!((status.bytes, status.inodes), (SIZE, NAMES + 4));
    fs.unmount().unwrap();
    assert!(media::<F>(&pm, false).errors.is_empty());
}

fn bad_data_is_an_error_of_its_range_and_never_used_again<F: Lifecycle<Pm = SimPm>>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let bad = lookup(&fs, "bad").unwrap();
    let at = place_of(&fs, &bad, 20);
    pm.poison(at + 128, LINE);
    let offset = 20 * BLOCK_SIZE;
    assert_eq!(read(&fs, &bad, offset, 4096), Err(Kind::Media));
    assert_eq!(
        read(&fs, &bad, offset - 8192, 16384),
        Err(Kind::Media),
        "less would look like the end of the file"
    );
    assert_eq!(read(&fs, &bad, offset, 128).unwrap(), [b'b'; 128], "before the line");
    assert_eq!(read(&fs, &bad, offset + 192, 1000).unwrap(), [b'b'; 1000], "behind it");
    assert_eq!(read(&fs, &bad, 40 * BLOCK_SIZE, 4096).unwrap(), [b'b'; 4096], "another block");
    the_rest_lives(&fs, "data");

    let status = scrub(&fs);
    assert!(status.finished && status.bad_blocks == 1, "{status:?}");
    let number = fs.id(&bad).number;
    let words = format!("/bad (inode {number}): a media error in bytes {} to {}", offset + 128, offset + 192);
    assert_eq!(status.findings, slice::from_ref(&words), "{status:?}");
    // It is retired, and was told.
    let status = scrub(&fs);
    assert_eq!((&status.findings[..], &status.known[..]), (&[][..], &[words][..]), "{status:?}");
    drop(bad);
    fs.unlink(&fs.root(), b"bad", now()).unwrap();
    fill(&fs, at);
    fs.unmount().unwrap();
    for round in 0..2 {
        // Known again after a clean unmount, and after a crash.
        let fs: F = mount(&pm);
        assert_eq!(fs.scrub_status().bad_blocks, 1);
        fill(&fs, at);
        if round == 0 { fs.abandon() } else { fs.unmount().unwrap() }
    }
    let checked = checked::<F>(&pm, false);
    assert!(checked.problems.is_empty() && checked.bad_blocks == 1, "{checked:?}");
}

fn a_check_names_bad_data_and_takes_it_out_of_use<F: Lifecycle<Pm = SimPm>>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let at = place_of(&fs, &lookup(&fs, "bad").unwrap(), 20);
    fs.unmount().unwrap();
    pm.poison(at + 64, 2 * LINE);
    let free = SIZE - BLOCK_SIZE;
    pm.poison(free, 1);
    assert_eq!(checked::<F>(&pm, false).problems.len(), 0, "structures are sound");
    let found = media::<F>(&pm, false);
    assert_eq!((found.new_blocks, found.errors.len()), (2, 2), "{found:?}");
    let from = 20 * BLOCK_SIZE + 64;
    let range = format!("a media error in bytes {from} to {}", from + 2 * LINE);
    let words = &found.errors[0];
    assert!(words.starts_with("/bad (inode") && words.ends_with(&range), "{found:?}");
    let words = format!("bytes {free} to {} of the device, in no file", free + LINE);
    assert!(found.errors[1].contains(&words), "{found:?}");
    assert_eq!(media::<F>(&pm, true).new_blocks, 2);
    let again = media::<F>(&pm, false);
    assert_eq!(
        (again.new_blocks, again.errors.len()),
        (0, 0),
        "what was told of and is out of use is not told again"
    );
    assert_eq!(checked::<F>(&pm, false).bad_blocks, 2);
    let fs: F = mount(&pm);
    fill(&fs, free);
    fs.unmount().unwrap();
}

/// A page is what the kernel takes away at a time, and one finding; what it lists as bad is found without reading it.
fn a_bad_page_is_one_finding<F: Lifecycle<Pm = SimPm>>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let at = place_of(&fs, &lookup(&fs, "bad").unwrap(), 20);
    fs.unmount().unwrap();
    pm.poison(at, BLOCK_SIZE);
    pm.list_as_bad(SIZE - 8192..SIZE - 4096);
    pm.list_as_bad(SIZE - 1000..u64::MAX);
    let found = media::<F>(&pm, false);
    assert_eq!((found.new_blocks, found.errors.len()), (3, 3), "{found:?}");
    let range = format!("bytes {} to {}", 20 * BLOCK_SIZE, 21 * BLOCK_SIZE);
    assert!(found.errors[0].starts_with("/bad (inode") && found.errors[0].ends_with(&range), "{found:?}");
    let listed = format!("bytes {} to {} of", SIZE - 8192, SIZE - 4096);
    assert!(found.errors[1].contains(&listed), "{found:?}");
    let fs: F = mount(&pm);
    let told = scrub(&fs);
    assert_eq!((told.findings.len(), told.bad_blocks), (3, 3), "{told:?}");
    let again = scrub(&fs);
    assert_eq!((again.findings.len(), again.bad_blocks), (0, 3), "{again:?}");
    fs.unmount().unwrap();
    assert!(media::<F>(&pm, true).errors.is_empty());
}

fn either_superblock_is_mended_from_the_other<F: Lifecycle<Pm = SimPm>>() {
    for offset in [0, 64 << 10] {
        for mounted in [false, true] {
            let pm = image::<F>();
            let fs = mounted.then(|| mount::<F>(&pm));
            pm.poison(offset, 3 * LINE);
            if let Some(fs) = fs {
                the_rest_lives(&fs, "superblock");
                let status = scrub(&fs);
                assert_eq!((status.repaired, status.bad_blocks), (1, 0), "{status:?}");
                fs.unmount().unwrap();
            } else {
                assert!(!checked::<F>(&pm, false).is_sound());
                assert!(checked::<F>(&pm, true).is_sound());
            }
            pm.read(offset, &mut [0; 4096]).expect("written anew");
            assert_eq!(checked::<F>(&pm, false).problems.len(), 0);
        }
    }
}

/// On a device whose errors nothing clears, another place stands for a superblock that cannot be written: two are whole at any
/// time.
fn a_superblock_that_stays_bad_is_put_elsewhere<F: Lifecycle<Pm = SimPm>>() {
    const COPIES: [u64; 2] = [0, 64 << 10];
    for (bad, other) in [(COPIES[0], COPIES[1]), (COPIES[1], COPIES[0])] {
        let pm = image::<F>();
        pm.poison(bad, BLOCK_SIZE);
        pm.keep_poison();
        for round in 0..3 {
            // Mounted, after an unmount and after a crash; written each time.
            let fs: F = mount(&pm);
            the_rest_lives(&fs, "superblock");
            let status = scrub(&fs);
            let of_superblock = |words: &&String| words.contains("of the superblock");
            assert_eq!(status.findings.iter().find(of_superblock), None, "{status:?}");
            if round == 1 { fs.abandon() } else { fs.unmount().unwrap() }
        }
        assert!(checked::<F>(&pm, true).is_sound());
        assert_eq!(checked::<F>(&pm, false).problems.len(), 0, "what stands for it is as good");
        // The other one goes bad, too: nothing may be written where one place alone is left.
        let before = pm.snapshot();
        pm.poison(other, BLOCK_SIZE);
        assert_eq!(try_mount::<F>(&pm).map(drop).unwrap_err().kind(), Kind::Media);
        assert!(pm.snapshot() == before);
        // The device is mended: an old copy elsewhere does not count.
        let healed = Arc::new(SimPm::from_image(&pm.snapshot()));
        let fs: F = mount(&healed);
        fs.unmount().unwrap();
        assert_eq!(checked::<F>(&healed, false).problems.len(), 0);
        the_rest_lives(&mount::<F>(&healed), "after it");
    }
}

/// mkfs makes a file system on a device that is bad where a superblock goes, and leaves none of an older one.
fn a_file_system_is_made_beside_bad_superblocks<F: Lifecycle<Pm = SimPm>>() {
    for (bad, stays) in [(0, true), (64 << 10, true), (32 << 10, true), (0, false), (64 << 10, false)] {
        let pm = image::<F>();
        pm.poison(bad, BLOCK_SIZE);
        if stays {
            pm.keep_poison();
        }
        make::<F>(&pm);
        let fs: F = mount(&pm);
        assert!(lookup(&fs, "good").is_err(), "it is a new one");
        fs.unmount().unwrap();
        assert_eq!(checked::<F>(&pm, false).problems.len(), 0);
    }
}

/// A list of bad blocks with a media error costs what it said and no more: it is mounted and, where the error can be cleared,
/// repaired.
fn a_bad_list_of_bad_blocks_stops_nothing<F: Lifecycle<Pm = SimPm>>() {
    for stays in [false, true] {
        let pm = image::<F>();
        pm.poison(SIZE - BLOCK_SIZE, 1);
        assert_eq!(media::<F>(&pm, true).new_blocks, 1);
        pm.poison(17 * BLOCK_SIZE, BLOCK_SIZE);
        if stays {
            pm.keep_poison();
        }
        assert!(!checked::<F>(&pm, false).problems.is_empty());
        let fs: F = mount(&pm);
        the_rest_lives(&fs, "list");
        fs.unmount().unwrap();
        checked::<F>(&pm, true);
        assert_eq!(checked::<F>(&pm, false).problems.len(), usize::from(stays));
        the_rest_lives(&mount::<F>(&pm), "list");
        if !stays {
            assert_eq!(media::<F>(&pm, true).new_blocks, 1, "found again");
        }
    }
}

macro_rules! tests {
    ($layout:ident, $type:ty; $($name:ident),+) => {
        mod $layout {
            use super::*;
            $(#[test] fn $name() { super::$name::<$type>() })+
        }
    };
    ($($layout:ident: $type:ty),+) => {
        $(tests!($layout, $type;
            a_sound_file_system_has_no_findings,
            bad_data_is_an_error_of_its_range_and_never_used_again,
            a_check_names_bad_data_and_takes_it_out_of_use,
            a_bad_page_is_one_finding,
            either_superblock_is_mended_from_the_other,
            a_superblock_that_stays_bad_is_put_elsewhere,
            a_file_system_is_made_beside_bad_superblocks,
            a_bad_list_of_bad_blocks_stops_nothing
        );)+
    };
}

tests!(log: LogFs<SimPm>, inplace: InplaceFs<SimPm>, pool: PoolFs<SimPm>, shadow: ShadowFs<SimPm>);
