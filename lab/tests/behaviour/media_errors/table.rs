//! Inodes that media errors take from the table of a layout that has one: they are given up, and nothing else is.

use std::sync::Arc;

use nacre_engine::FileKind;
use nacre_layout_inplace::{InplaceFs, anatomy as inplace_anatomy};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::report::Repair;
use nacre_layout_shadow::{ShadowFs, anatomy as shadow_anatomy};
use nacre_media::crash::{Replay, Sampling};
use nacre_media::{SimPm, Trace};

use super::common::{BLOCKS, NAMES, image, lookup, mount, new, put, read, the_rest_lives, try_mount};

/// A layout with a table of inodes.
trait InTable: Lifecycle<Pm = SimPm> {
    /// Where an inode in use is.
    fn inode_at(pm: &SimPm, number: u64) -> u64;
}

macro_rules! in_table {
    ($type:ty, $anatomy:ident, $kind:ident) => {
        impl InTable for $type {
            fn inode_at(pm: &SimPm, number: u64) -> u64 {
                let is_it = |found: &$anatomy::Structure| {
                    found.kind == $anatomy::Kind::$kind && found.inode == number
                };
                $anatomy::structures(pm).unwrap().into_iter().find(is_it).expect("an inode").offset
            }
        }
    };
}

in_table!(InplaceFs<SimPm>, inplace_anatomy, Inode);
in_table!(ShadowFs<SimPm>, shadow_anatomy, Header);

/// Numbers of the inodes in the first block of the table, which has the root.
const IN_ROOT_BLOCK: std::ops::Range<u64> = 1..16;

/// Everything that was not in the root's block is reached by a name, under its number or where it was.
fn all_others_are_there<F: InTable>(fs: &F, good: u64, files: u64) {
    let there = |number: u64, path: &str| {
        lookup(fs, &format!("#{number}"))
            .or_else(|_| lookup(fs, path))
            .unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let node = there(good, "good");
    for block in 0..BLOCKS {
        assert_eq!(read(fs, &node, block * 8192, 4096).unwrap(), [b'g'; 4096]);
    }
    for number in IN_ROOT_BLOCK.end..IN_ROOT_BLOCK.end + files {
        // The root is 1, the directory 2, and each name has the next.
        let index = number - 3;
        let node = there(number, &format!("dir/name-{index}"));
        assert_eq!(read(fs, &node, 0, 200).unwrap(), [index as u8; 100], "{number}");
    }
}

/// No file system without a root: its block of inodes could not be read, no mount and no repair was possible, and everything
/// else was lost with it. A crash in the repair loses no more.
fn a_lost_root_is_made_anew_with_all_that_is_left<F: InTable>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let good = fs.id(&lookup(&fs, "good").unwrap()).number;
    let files = NAMES + 3 - IN_ROOT_BLOCK.end;
    assert_eq!(fs.id(&lookup(&fs, &format!("dir/name-{}", NAMES - 1)).unwrap()).number, NAMES + 2);
    fs.unmount().unwrap();
    let at = F::inode_at(&pm, 1) / 4096 * 4096;
    let image = pm.snapshot();
    pm.poison(at, 4096);
    assert!(try_mount::<F>(&pm).is_err());
    for level in [Repair::None, Repair::Safe] {
        let told = F::check(&pm, level, None).unwrap();
        assert!(!told.is_sound() && told.problems.iter().any(|problem| problem.loses), "{level:?}: {told:?}");
        assert_eq!(pm.snapshot(), image, "{level:?}");
    }
    pm.start_recording();
    let report = F::check(&pm, Repair::All, None).unwrap();
    let trace = pm.stop_recording();
    assert!(report.is_sound(), "{report:?}");
    let now = F::check(&pm, Repair::None, None).unwrap();
    assert!(now.problems.is_empty(), "{now:?}");
    let fs: F = mount(&pm);
    all_others_are_there(&fs, good, files);
    let more = fs.create(&fs.root(), b"more", &new(FileKind::Regular)).unwrap();
    drop(more);
    fs.unmount().unwrap();
    assert!(F::check(&pm, Repair::None, None).unwrap().problems.is_empty());

    let poison = |pm: &SimPm| pm.poison(at, 4096);
    let tried = repair_again::<F>(image, &trace, 6, poison, |fs| all_others_are_there(fs, good, files));
    assert!(tried > 20, "{tried} images");
}

/// Crashes a repair everywhere, and repairs again what that leaves: as the crash left it, or damaged anew by `poison`.
/// Gives how often.
fn repair_again<F: InTable>(
    image: Vec<u8>,
    trace: &Trace,
    samples: u64,
    poison: impl Fn(&SimPm),
    is_whole: impl Fn(&F),
) -> u64 {
    let mut replay = Replay::new(image, trace);
    let sampling = Sampling { exhaustive_up_to: 2, samples, seed: 1 };
    let mut tried = 0;
    while replay.advance().is_some() {
        for crash in replay.images(&sampling).iter() {
            for is_bad in [false, true] {
                let pm = Arc::new(SimPm::from_image(&replay.crashed(&crash).to_vec()));
                if is_bad {
                    poison(&pm);
                }
                let report = F::check(&pm, Repair::All, None).unwrap();
                assert!(report.is_sound(), "{is_bad}, {crash:?}: {report:?}");
                let now = F::check(&pm, Repair::None, None).unwrap();
                assert!(now.problems.is_empty(), "{is_bad}, {crash:?}");
                let fs: F = mount(&pm);
                is_whole(&fs);
                fs.unmount().unwrap();
                tried += 1;
            }
        }
    }
    tried
}

/// A line of the table that only files are in: these are given up, and nothing else.
fn inodes_that_are_lost_take_their_names_along<F: InTable>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let lost = fs.id(&lookup(&fs, "dir/name-50").unwrap()).number;
    fs.unmount().unwrap();
    let inode = F::inode_at(&pm, lost);
    pm.poison(inode, 1);
    let report = F::check(&pm, Repair::All, None).unwrap();
    assert!(report.is_sound() && report.problems.iter().any(|problem| problem.loses), "{report:?}");
    assert!(F::check(&pm, Repair::None, None).unwrap().problems.is_empty());
    let fs: F = mount(&pm);
    let there = (0..NAMES).filter(|index| lookup(&fs, &format!("dir/name-{index}")).is_ok()).count();
    assert_eq!(there as u64, NAMES - 1);
    assert!(lookup(&fs, "dir/name-50").is_err());
    the_rest_lives(&fs, "without it");
    fs.unmount().unwrap();
}

/// Files that only a lost directory named get names in the root that is there, and nothing is freed; also when the
/// repair crashes.
fn what_a_lost_directory_named_is_found_in_the_root<F: InTable>() {
    let pm = image::<F>();
    let fs: F = mount(&pm);
    let late = fs.create(&fs.root(), b"late", &new(FileKind::Directory)).unwrap();
    let files = [b"a", b"b", b"c"].map(|name| fs.create(&late, name, &new(FileKind::Regular)).unwrap());
    for (index, file) in files.iter().enumerate() {
        put(&fs, file, 0, &[index as u8 + 1; 300]).unwrap();
    }
    let numbers = files.each_ref().map(|file| fs.id(file).number);
    let lost = fs.id(&late).number;
    drop((late, files));
    fs.unmount().unwrap();
    let inode = F::inode_at(&pm, lost);
    let (at, image) = (inode, pm.snapshot());
    let all_are_there = |fs: &F| {
        for (index, number) in numbers.iter().enumerate() {
            let name = String::from_utf8(vec![b'a' + index as u8]).unwrap();
            let node = lookup(fs, &format!("#{number}")).or_else(|_| lookup(fs, &format!("late/{name}")));
            assert_eq!(read(fs, &node.expect(&name), 0, 400).unwrap(), [index as u8 + 1; 300]);
        }
        assert!((0..NAMES).all(|index| lookup(fs, &format!("dir/name-{index}")).is_ok()));
        the_rest_lives(fs, "beside it");
    };
    pm.poison(at, 1);
    pm.start_recording();
    let report = F::check(&pm, Repair::All, None).unwrap();
    let trace = pm.stop_recording();
    assert!(report.is_sound(), "{report:?}");
    assert!(F::check(&pm, Repair::None, None).unwrap().problems.is_empty());
    let fs: F = mount(&pm);
    all_are_there(&fs);
    fs.unmount().unwrap();
    let poison = |pm: &SimPm| {
        if pm.snapshot()[at as usize..][..8] != [0; 8] {
            pm.poison(at, 1);
        }
    };
    repair_again::<F>(image, &trace, 4, poison, all_are_there);
}

macro_rules! tests {
    ($($layout:ident: $type:ty),+) => {
        $(mod $layout {
            use super::*;
            #[test]
            fn a_lost_root_is_made_anew_with_all_that_is_left() {
                super::a_lost_root_is_made_anew_with_all_that_is_left::<$type>();
            }
            #[test]
            fn inodes_that_are_lost_take_their_names_along() {
                super::inodes_that_are_lost_take_their_names_along::<$type>();
            }
            #[test]
            fn what_a_lost_directory_named_is_found_in_the_root() {
                super::what_a_lost_directory_named_is_found_in_the_root::<$type>();
            }
        })+
    };
}

tests!(inplace: InplaceFs<SimPm>, shadow: ShadowFs<SimPm>);
