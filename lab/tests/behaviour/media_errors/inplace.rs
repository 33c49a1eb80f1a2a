//! The structures of this layout alone: the journal, trees and directories.

use std::sync::Arc;

use nacre_engine::{FileKind, Kind, Names, RenameMode};
use nacre_lab::crash::Tree;
use nacre_layout_inplace::anatomy::{self, Structure, structures};
use nacre_layout_inplace::check::{Repair, check, check_media, check_with};
use nacre_layout_inplace::{InplaceFs, MountOptions};
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};

use super::common::{NAMES, image, lookup, mount, new, now, read, scrub, the_rest_lives};

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
