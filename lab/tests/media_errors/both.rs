//! What holds for either layout.

use std::slice;

use nacre_engine::{BLOCK_SIZE, Kind};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::LogFs;
use nacre_media::{Pm, SimPm};

use crate::common::{
    LINE, Layout, NAMES, SIZE, fill, image, lookup, mount, now, place_of, read, scrub, the_rest_lives,
};

fn a_sound_file_system_has_no_findings<F: Layout>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let status = scrub(&fs);
    assert!(status.finished && status.findings.is_empty(), "{status:?}");
    // The root, the directory, and two files beside its own.
    assert_eq!((status.bytes, status.inodes), (SIZE, NAMES + 4));
    fs.end();
    assert!(F::media(&pm, false).errors.is_empty());
}

fn bad_data_is_an_error_of_its_range_and_never_used_again<F: Layout>() {
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
    fs.end();
    for round in 0..2 {
        // Known again after a clean unmount, and after a crash.
        let fs: F = mount(&pm);
        assert_eq!(fs.status().bad_blocks, 1);
        fill(&fs, at);
        if round == 0 { fs.die() } else { fs.end() }
    }
    let checked = F::checked(&pm, false);
    assert!(checked.problems == 0 && checked.bad_blocks == 1, "{checked:?}");
}

fn a_check_names_bad_data_and_takes_it_out_of_use<F: Layout>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let at = place_of(&fs, &lookup(&fs, "bad").unwrap(), 20);
    fs.end();
    pm.poison(at + 64, 2 * LINE);
    let free = SIZE - BLOCK_SIZE;
    pm.poison(free, 1);
    assert_eq!(F::checked(&pm, false).problems, 0, "structures are sound");
    let found = F::media(&pm, false);
    assert_eq!((found.new_blocks, found.errors.len()), (2, 3), "{found:?}");
    for (index, within) in [64, 128].into_iter().enumerate() {
        let from = 20 * BLOCK_SIZE + within;
        let range = format!("a media error in bytes {from} to {}", from + LINE);
        let words = &found.errors[index];
        assert!(words.starts_with("/bad (inode") && words.ends_with(&range), "{found:?}");
    }
    assert!(found.errors[2].contains(&format!("byte {free}, in no file")), "{found:?}");
    assert_eq!(F::media(&pm, true).new_blocks, 2);
    assert_eq!(F::media(&pm, false).new_blocks, 0, "they are known");
    assert_eq!(F::checked(&pm, false).bad_blocks, 2);
    let fs: F = mount(&pm);
    fill(&fs, free);
    fs.end();
}

fn either_superblock_is_mended_from_the_other<F: Layout>() {
    for offset in [0, 64 << 10] {
        for mounted in [false, true] {
            let pm = image::<F>();
            let fs = mounted.then(|| mount::<F>(&pm));
            pm.poison(offset, 3 * LINE);
            if let Some(fs) = fs {
                the_rest_lives(&fs, "superblock");
                let status = scrub(&fs);
                assert_eq!((status.repaired, status.bad_blocks), (1, 0), "{status:?}");
                fs.end();
            } else {
                assert!(!F::checked(&pm, false).is_sound);
                assert!(F::checked(&pm, true).is_sound);
            }
            pm.read(offset, &mut [0; 4096]).expect("written anew");
            assert_eq!(F::checked(&pm, false).problems, 0);
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
            either_superblock_is_mended_from_the_other
        );)+
    };
}

tests!(log: LogFs<SimPm>, inplace: InplaceFs<SimPm>);
