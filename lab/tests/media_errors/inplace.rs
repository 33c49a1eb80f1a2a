//! What is this layout's own: an inode table, trees and directories.

use std::sync::Arc;

use nacre_engine::{FileKind, Kind, Names, RenameMode};
use nacre_lab::crash::Tree;
use nacre_layout_inplace::anatomy::{self, Structure, structures};
use nacre_layout_inplace::check::{Repair, check, check_media, check_with};
use nacre_layout_inplace::{InplaceFs, MountOptions};
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};

use crate::common::{NAMES, image, lookup, mount, new, now, read, scrub, the_rest_lives};

type Fs = InplaceFs<SimPm>;

/// Metadata that goes bad under a mount is found and named, and what needs it fails while the rest goes on. A mount that
/// may write refuses what says which blocks are in use; one that only reads shows the rest.
#[test]
fn bad_metadata_is_an_error_of_its_file() {
    let pm = image::<Fs>();
    let found = structures(&*pm).unwrap();
    for kind in [anatomy::Kind::Inode, anatomy::Kind::Node, anatomy::Kind::Directory, anatomy::Kind::Xattrs] {
        let pm = image::<Fs>();
        let fs: Fs = mount(&pm);
        let (dir, bad) =
            (fs.id(&lookup(&fs, "dir").unwrap()).number, fs.id(&lookup(&fs, "bad").unwrap()).number);
        let (owner, path) = if kind == anatomy::Kind::Directory { (dir, "/dir") } else { (bad, "/bad") };
        let of_owner = |structure: &&Structure| structure.kind == kind && structure.inode == owner;
        let place = found.iter().find(of_owner).unwrap_or_else(|| panic!("{kind:?} of {owner}"));
        pm.poison(place.offset, 1);
        the_rest_lives(&fs, "metadata");
        let named = |words: &String| words.starts_with(&format!("{path} (inode {owner}): "));
        let words = check_media(&*pm, false).unwrap().errors;
        assert!(words.iter().any(named), "{kind:?}: {words:?}");
        let status = scrub(&fs);
        assert!(status.findings.iter().any(named), "{kind:?}: {status:?}");
        let status = scrub(&fs);
        assert!(status.findings.is_empty() && status.known.iter().any(named), "{kind:?} again: {status:?}");
        fs.abandon();
        let words = check_media(&*pm, false).unwrap().errors;
        assert!(words.is_empty(), "told of by the scrub: {kind:?}: {words:?}");
        assert!(!check(&*pm, false).unwrap().is_sound(), "{kind:?}");
        let options = MountOptions { lanes: Some(1), ..MountOptions::default() };
        let mounted = InplaceFs::mount(Arc::clone(&pm), &options);
        if kind == anatomy::Kind::Directory {
            let fs = mounted.expect("names say nothing of blocks");
            assert!((0..NAMES).any(|at| lookup(&fs, &format!("dir/name-{at}")).is_err()));
            the_rest_lives(&fs, "metadata");
            fs.abandon();
            continue;
        }
        let refused = mounted.err().unwrap_or_else(|| panic!("{kind:?}: mounted"));
        assert!(matches!(refused.kind(), Kind::Corrupt | Kind::Media), "{kind:?}: {refused}");
        let fs =
            InplaceFs::mount(Arc::clone(&pm), &MountOptions { read_only: true, ..options }).expect("mount");
        assert_eq!(read(&fs, &lookup(&fs, "good").unwrap(), 0, 100).unwrap(), [b'g'; 100]);
        fs.unmount().unwrap();
    }
}

/// A rename was interrupted between its names, and what would undo it cannot be read: a directory without a name was freed
/// with all that is in it, as if that lost nothing.
#[test]
fn what_a_lost_lane_leaves_without_a_name_is_not_freed_as_no_loss() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let root = fs.root();
    let to = fs.create(&root, b"to", &new(FileKind::Directory)).unwrap();
    fs.create(&to, b"other", &new(FileKind::Regular)).unwrap();
    let to = fs.id(&to).number;
    let found = structures(&*pm).unwrap();
    let place = |kind, inode| found.iter().find(|s| s.kind == kind && s.inode == inode).unwrap();
    let names = place(anatomy::Kind::Directory, to);
    let without = pm.snapshot();
    let range = names.offset as usize..(names.offset + names.len) as usize;
    fs.rename(&root, b"dir", &lookup(&fs, "to").unwrap(), b"dir", RenameMode::Replace, now()).unwrap();
    pm.poke(names.offset, &without[range]);
    pm.poison(place(anatomy::Kind::Commit, 0).offset, 1);
    drop(root);
    fs.abandon();
    let before = pm.snapshot();
    for level in [Repair::None, Repair::Safe] {
        let told = check_with(&*pm, level).unwrap();
        assert!(told.problems.iter().any(|problem| problem.loses), "{level:?}: {told:?}");
        assert!(told.problems.iter().all(|problem| !problem.repaired), "{level:?}: {told:?}");
        assert_eq!(pm.snapshot(), before, "{level:?}");
    }
    let report = check_with(&*pm, Repair::All).unwrap();
    assert!(report.is_sound() && report.problems.iter().any(|problem| problem.loses), "{report:?}");
    assert!(check(&*pm, false).unwrap().problems.is_empty());
    the_rest_lives(&mount::<Fs>(&pm), "without it");
}

/// A journal that cannot be read is refused by a mount, told, and made anew where nothing was under way; after a crash, where
/// everything else is as it should be.
#[test]
fn a_bad_journal_is_made_anew_where_nothing_is_lost_with_it() {
    let kinds = [anatomy::Kind::Commit, anatomy::Kind::Undo];
    let cases = kinds.into_iter().flat_map(|kind| [(kind, true), (kind, false)]);
    // In the last lane there never was anything.
    for ((kind, is_clean), is_used) in cases.flat_map(|case| [(case, true), (case, false)]) {
        let pm = image::<Fs>();
        let fs: Fs = mount(&pm);
        if is_clean {
            fs.unmount().unwrap();
        } else {
            fs.abandon();
        }
        let mut places = structures(&*pm).unwrap().into_iter().filter(|structure| structure.kind == kind);
        let place = if is_used { places.next() } else { places.next_back() };
        let place = place.unwrap_or_else(|| panic!("{kind:?}"));
        pm.poison(place.offset, 1);
        let options = MountOptions { lanes: Some(1), ..MountOptions::default() };
        let refused =
            InplaceFs::mount(Arc::clone(&pm), &options).err().expect("a mount needs it").to_string();
        assert!(refused.contains("the journal") && refused.contains("fsck"), "{kind:?}: {refused}");
        let told = check(&*pm, false).unwrap();
        let of_journal = |what: &str| what.contains("the journal");
        assert!(told.problems.iter().any(|problem| of_journal(&problem.what)), "{kind:?}: {told:?}");
        assert!(InplaceFs::mount(Arc::clone(&pm), &options).is_err(), "{kind:?}: a check changes nothing");
        let report = check(&*pm, true).unwrap();
        assert!(report.is_sound(), "{kind:?}, clean {is_clean}: {report:?}");
        assert!(check(&*pm, false).unwrap().problems.is_empty());
        let fs = InplaceFs::mount(Arc::clone(&pm), &options).expect("mount");
        assert_eq!(read(&fs, &lookup(&fs, "good").unwrap(), 0, 100).unwrap(), [b'g'; 100]);
        fs.unmount().unwrap();
    }
}

/// A crash while a lane is made anew puts nothing back that is over: its entries go before what says that they are.
#[test]
fn a_journal_that_is_made_anew_undoes_nothing() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    fs.unmount().unwrap();
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    let before = Tree::of(&InplaceFs::mount(Arc::clone(&pm), &read_only).unwrap()).unwrap();
    let image = pm.snapshot();
    let is_used = |place: &Structure| {
        place.kind == anatomy::Kind::Commit && image[place.offset as usize..][..8] != [0; 8]
    };
    let commit = structures(&*pm).unwrap().into_iter().find(is_used).expect("a lane with entries");
    pm.poison(commit.offset, 1);
    pm.start_recording();
    assert!(check(&*pm, true).unwrap().is_sound());
    let trace = pm.stop_recording();
    let mut replay = Replay::new(image.clone(), &trace);
    let sampling = Sampling { exhaustive_up_to: 4, samples: 64, seed: 1 };
    let mut tried = 0;
    while replay.advance().is_some() {
        for crash in replay.images(&sampling).iter() {
            let pm = Arc::new(SimPm::from_image(&replay.crashed(&crash).to_vec()));
            let fs = InplaceFs::mount(Arc::clone(&pm), &MountOptions::default()).expect("mount");
            assert_eq!(before.differences(&Tree::of(&fs).unwrap()), [""; 0], "{crash:?}");
            fs.unmount().unwrap();
            assert!(check(&*pm, false).unwrap().problems.is_empty(), "{crash:?}");
            tried += 1;
        }
    }
    assert!(tried > 5, "{tried} images");
}

/// Numbers of the inodes in the first block of the table, which has the root.
const IN_ROOT_BLOCK: std::ops::Range<u64> = 1..16;

/// Where the root's block of inodes is.
fn root_block(pm: &SimPm) -> u64 {
    let root = structures(pm).unwrap().into_iter().find(|s| s.kind == anatomy::Kind::Inode && s.inode == 1);
    root.expect("a root").offset / 4096 * 4096
}

/// Everything that was not in the root's block is reached by a name, under its number or where it was.
fn all_others_are_there(fs: &Fs, good: u64, files: u64) {
    let there = |number: u64, path: &str| {
        lookup(fs, &format!("#{number}"))
            .or_else(|_| lookup(fs, path))
            .unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let node = there(good, "good");
    for block in 0..crate::common::BLOCKS {
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
#[test]
fn a_lost_root_is_made_anew_with_all_that_is_left() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let good = fs.id(&lookup(&fs, "good").unwrap()).number;
    let files = NAMES + 3 - IN_ROOT_BLOCK.end;
    assert_eq!(fs.id(&lookup(&fs, &format!("dir/name-{}", NAMES - 1)).unwrap()).number, NAMES + 2);
    fs.unmount().unwrap();
    let at = root_block(&pm);
    let image = pm.snapshot();
    pm.poison(at, 4096);
    assert!(InplaceFs::mount(Arc::clone(&pm), &MountOptions::default()).is_err());
    for level in [Repair::None, Repair::Safe] {
        let told = check_with(&*pm, level).unwrap();
        assert!(!told.is_sound() && told.problems.iter().any(|problem| problem.loses), "{level:?}: {told:?}");
        assert_eq!(pm.snapshot(), image, "{level:?}");
    }
    pm.start_recording();
    let report = check(&*pm, true).unwrap();
    let trace = pm.stop_recording();
    assert!(report.is_sound(), "{report:?}");
    let now = check(&*pm, false).unwrap();
    assert!(now.problems.is_empty(), "{now:?}");
    let fs: Fs = mount(&pm);
    all_others_are_there(&fs, good, files);
    let more = fs.create(&fs.root(), b"more", &new(FileKind::Regular)).unwrap();
    drop(more);
    fs.unmount().unwrap();
    assert!(check(&*pm, false).unwrap().problems.is_empty());

    let mut replay = Replay::new(image, &trace);
    let sampling = Sampling { exhaustive_up_to: 2, samples: 6, seed: 1 };
    let mut tried = 0;
    while replay.advance().is_some() {
        for crash in replay.images(&sampling).iter() {
            // The page is as the crash left it, or bad again.
            for is_bad in [false, true] {
                let pm = Arc::new(SimPm::from_image(&replay.crashed(&crash).to_vec()));
                if is_bad {
                    pm.poison(at, 4096);
                }
                let report = check(&*pm, true).unwrap();
                assert!(report.is_sound(), "{is_bad}, {crash:?}: {report:?}");
                assert!(check(&*pm, false).unwrap().problems.is_empty(), "{is_bad}, {crash:?}");
                let fs: Fs = mount(&pm);
                all_others_are_there(&fs, good, files);
                fs.unmount().unwrap();
                tried += 1;
            }
        }
    }
    assert!(tried > 20, "{tried} images");
}

/// A line of the table that only files are in: these are given up, and nothing else.
#[test]
fn inodes_that_are_lost_take_their_names_along() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let lost = fs.id(&lookup(&fs, "dir/name-50").unwrap()).number;
    fs.unmount().unwrap();
    let inode =
        structures(&*pm).unwrap().into_iter().find(|s| s.kind == anatomy::Kind::Inode && s.inode == lost);
    pm.poison(inode.unwrap().offset, 1);
    let report = check(&*pm, true).unwrap();
    assert!(report.is_sound() && report.problems.iter().any(|problem| problem.loses), "{report:?}");
    assert!(check(&*pm, false).unwrap().problems.is_empty());
    let fs: Fs = mount(&pm);
    let there = (0..NAMES).filter(|index| lookup(&fs, &format!("dir/name-{index}")).is_ok()).count();
    assert_eq!(there as u64, NAMES - 1);
    assert!(lookup(&fs, "dir/name-50").is_err());
    the_rest_lives(&fs, "without it");
    fs.unmount().unwrap();
}

/// Files that only a lost directory named get names in the root that is there, and nothing is freed; also when the
/// repair crashes.
#[test]
fn what_a_lost_directory_named_is_found_in_the_root() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let late = fs.create(&fs.root(), b"late", &new(FileKind::Directory)).unwrap();
    let files = [b"a", b"b", b"c"].map(|name| fs.create(&late, name, &new(FileKind::Regular)).unwrap());
    for (index, file) in files.iter().enumerate() {
        crate::common::put(&fs, file, 0, &[index as u8 + 1; 300]).unwrap();
    }
    let numbers = files.each_ref().map(|file| fs.id(file).number);
    let lost = fs.id(&late).number;
    drop((late, files));
    fs.unmount().unwrap();
    let inode =
        structures(&*pm).unwrap().into_iter().find(|s| s.kind == anatomy::Kind::Inode && s.inode == lost);
    let (at, image) = (inode.unwrap().offset, pm.snapshot());
    let all_are_there = |fs: &Fs| {
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
    let report = check(&*pm, true).unwrap();
    let trace = pm.stop_recording();
    assert!(report.is_sound(), "{report:?}");
    assert!(check(&*pm, false).unwrap().problems.is_empty());
    let fs: Fs = mount(&pm);
    all_are_there(&fs);
    fs.unmount().unwrap();
    let mut replay = Replay::new(image, &trace);
    let sampling = Sampling { exhaustive_up_to: 2, samples: 4, seed: 1 };
    while replay.advance().is_some() {
        for crash in replay.images(&sampling).iter() {
            for is_bad in [false, true] {
                let pm = Arc::new(SimPm::from_image(&replay.crashed(&crash).to_vec()));
                if is_bad && pm.snapshot()[at as usize..][..8] != [0; 8] {
                    pm.poison(at, 1);
                }
                let report = check(&*pm, true).unwrap();
                assert!(report.is_sound(), "{is_bad}, {crash:?}: {report:?}");
                assert!(check(&*pm, false).unwrap().problems.is_empty(), "{is_bad}, {crash:?}");
                let fs: Fs = mount(&pm);
                all_are_there(&fs);
                fs.unmount().unwrap();
            }
        }
    }
}
