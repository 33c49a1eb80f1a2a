//! The structures of this layout alone: switches and the table's inode in two copies, inodes in a table, trees and directories.

use std::sync::Arc;

use nacre_engine::{FileKind, Kind, Names, RenameMode, Result};
use nacre_lab::crash::Tree;
use nacre_layout_shadow::anatomy::{self, Structure, structures};
use nacre_layout_shadow::check::{Repair, check, check_media, check_with};
use nacre_layout_shadow::{Mistake, MountOptions, ShadowFs};
use nacre_media::crash::{Replay, Sampling};
use nacre_media::{Pm, SimPm};

use crate::common::{NAMES, image, lookup, mount, new, now, put, read, scrub, the_rest_lives, try_mount};

type Fs = ShadowFs<SimPm>;

/// Metadata that goes bad under a mount is found and named, and what needs it fails while the rest goes on. A mount that
/// may write refuses it; one that only reads shows the rest.
#[test]
fn bad_metadata_is_an_error_of_its_file() {
    use anatomy::Kind::{Directory, Header, Node, Slot, Xattrs};
    let found = structures(&*image::<Fs>()).unwrap();
    for kind in [Header, Slot, Node, Directory, Xattrs] {
        let pm = image::<Fs>();
        let fs: Fs = mount(&pm);
        let (dir, bad) =
            (fs.id(&lookup(&fs, "dir").unwrap()).number, fs.id(&lookup(&fs, "bad").unwrap()).number);
        let (owner, path) = if kind == Directory { (dir, "dir") } else { (bad, "bad") };
        let of_owner = |structure: &&Structure| structure.kind == kind && structure.inode == owner;
        let place = found.iter().find(of_owner).unwrap_or_else(|| panic!("{kind:?} of {owner}"));
        pm.poison(place.offset, 1);
        the_rest_lives(&fs, "metadata");
        let named = |words: &String| words.starts_with(&format!("/{path} (inode {owner}): "));
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
        let refused = try_mount::<Fs>(&pm).err().unwrap_or_else(|| panic!("{kind:?}: mounted"));
        assert!(matches!(refused.kind(), Kind::Corrupt | Kind::Media), "{kind:?}: {refused}");
        assert!(refused.to_string().contains("fsck"), "{kind:?}: {refused}");
        let options = MountOptions { read_only: true, lanes: Some(1), ..MountOptions::default() };
        let fs = ShadowFs::mount(Arc::clone(&pm), &options).expect("mount");
        let error = lookup(&fs, path).map(drop).unwrap_err();
        assert!(matches!(error.kind(), Kind::Corrupt | Kind::Media), "{kind:?}: {error}");
        assert_eq!(read(&fs, &lookup(&fs, "good").unwrap(), 0, 100).unwrap(), [b'g'; 100]);
        fs.unmount().unwrap();
    }
}

/// The places of the copies of a structure of which there are two.
fn copies(pm: &SimPm, kind: anatomy::Kind) -> [u64; 2] {
    let found: Vec<u64> =
        structures(pm).unwrap().iter().filter(|s| s.kind == kind).map(|s| s.offset).collect();
    [found[0], found[found.len() / 2]]
}

fn tree(pm: &Arc<SimPm>) -> Result<Tree> {
    let fs: Fs = try_mount(pm)?;
    let tree = Tree::of(&fs);
    fs.unmount()?;
    tree
}

/// The inode of the table and each switch have two copies. A mount takes the other one, and writes both.
#[test]
fn one_lost_copy_is_mended_by_a_mount() {
    let base = image::<Fs>().snapshot();
    let expected = tree(&Arc::new(SimPm::from_image(&base))).unwrap();
    type Harm = fn(&SimPm, u64);
    // A line, its page, and bits alone.
    let harms: [Harm; 3] = [
        |pm, place| pm.poison(place, 1),
        |pm, place| pm.poison(place / 4096 * 4096, 4096),
        |pm, place| pm.poke(place, &[0x5a; 4]),
    ];
    for kind in [anatomy::Kind::TableHeader, anatomy::Kind::TableSlot, anatomy::Kind::Switch] {
        let [first, second] = copies(&SimPm::from_image(&base), kind);
        for (harm, [place, other]) in
            harms.into_iter().flat_map(|harm| [[first, second], [second, first]].map(|p| (harm, p)))
        {
            let pm = Arc::new(SimPm::from_image(&base));
            harm(&pm, place);
            assert!(check(&*pm, false).unwrap().is_sound(), "{kind:?}: the other copy is as good");
            let fs: Fs = mount(&pm);
            assert_eq!(expected.differences(&Tree::of(&fs).unwrap()), [""; 0], "{kind:?}");
            the_rest_lives(&fs, "a copy");
            fs.unmount().unwrap();
            pm.read(place, &mut [0; 64]).expect("written anew");
            let expected = tree(&pm).unwrap();
            pm.poison(other, 1);
            assert_eq!(expected.differences(&tree(&pm).unwrap()), [""; 0], "{kind:?}: then the other");
        }
    }
}

/// Without the inode of the table nothing is known.
#[test]
fn both_copies_of_the_tables_inode_are_needed_by_everything() {
    let pm = image::<Fs>();
    copies(&pm, anatomy::Kind::TableSlot).into_iter().for_each(|place| pm.poison(place, 1));
    assert_eq!(try_mount::<Fs>(&pm).map(drop).unwrap_err().kind(), Kind::Corrupt);
    assert!(!check(&*pm, true).unwrap().is_sound());
}

type Act = fn(&Fs) -> Result<()>;

/// Operations that a switch commits, one after the other.
const ACTS: [Act; 5] = [
    |fs| fs.create(&fs.root(), b"created", &new(FileKind::Regular)).map(drop),
    |fs| fs.rename(&fs.root(), b"bad", &lookup(fs, "dir")?, b"moved", RenameMode::Replace, now()),
    |fs| fs.link(&lookup(fs, "dir/moved")?, &fs.root(), b"linked", now()),
    |fs| fs.rename(&fs.root(), b"created", &fs.root(), b"linked", RenameMode::Replace, now()),
    |fs| fs.unlink(&fs.root(), b"linked", now()),
];

/// At each crash of an operation one copy of the switch of its lane is lost, too. The other one says what counts: all that
/// was acknowledged. A switch in one line is found out by that.
#[test]
fn a_lost_copy_of_a_switch_loses_nothing() {
    assert_eq!(problems_without_switches(0), Vec::<String>::new());
    let mistake = Mistake::ALL.iter().find(|mistake| mistake.words() == "a switch is in one line").unwrap();
    assert!(!problems_without_switches(mistake.number()).is_empty());
}

/// The problems of all crashes of the operations that a layout with a mistake does, with each line of the switch lost in
/// turn.
fn problems_without_switches(mistake: u32) -> Vec<String> {
    let pm = image::<Fs>();
    let lines = copies(&pm, anatomy::Kind::Switch);
    let fs: Fs = mount(&pm);
    let mut problems = Vec::new();
    for (number, act) in ACTS.into_iter().enumerate() {
        let before = Tree::of(&fs).unwrap();
        let base = pm.snapshot();
        pm.seed_mistake(mistake);
        pm.start_recording();
        act(&fs).unwrap();
        let trace = pm.stop_recording();
        pm.seed_mistake(0);
        let after = Tree::of(&fs).unwrap();
        let mut replay = Replay::new(base, &trace);
        while let Some(point) = replay.advance() {
            let sampling = Sampling { exhaustive_up_to: 4, samples: 8, seed: 1 };
            for image in replay.images(&sampling).iter() {
                for line in lines {
                    let crashed = Arc::new(SimPm::new(pm.len()));
                    crashed.load(replay.media());
                    image.apply(&crashed);
                    crashed.poison(line, 1);
                    let problem = match tree(&crashed) {
                        Ok(found)
                            if [&before, &after].iter().any(|one| one.differences(&found).is_empty()) =>
                        {
                            let report = check(&*crashed, false).unwrap();
                            if report.problems.is_empty() {
                                continue;
                            }
                            format!("{:?}", report.problems)
                        }
                        Ok(found) => before.differences(&found).join(", "),
                        Err(error) => error.to_string(),
                    };
                    problems.push(format!("{number}, {point:?}, line {line}, {image:?}: {problem}"));
                }
            }
        }
    }
    fs.unmount().unwrap();
    problems
}

/// A switch of which both copies are lost is refused by a mount, and told. It is made anew where everything else is as it
/// should be, and takes back nothing that was acknowledged.
#[test]
fn a_lost_switch_is_made_anew_where_nothing_contradicts_it() {
    for (is_clean, lane) in [(true, 0), (false, 0), (true, 63), (false, 63)] {
        for level in [Repair::Safe, Repair::All] {
            let pm = image::<Fs>();
            let lines = copies(&pm, anatomy::Kind::Switch).map(|line| line + lane * 64);
            let fs: Fs = mount(&pm);
            ACTS[0](&fs).unwrap();
            let expected = Tree::of(&fs).unwrap();
            if is_clean {
                fs.unmount().unwrap()
            } else {
                fs.abandon()
            }
            lines.into_iter().for_each(|line| pm.poison(line, 1));
            let refused = try_mount::<Fs>(&pm).map(drop).unwrap_err().to_string();
            assert!(refused.contains("switch of lane") && refused.contains("fsck"), "{refused}");
            let told = check(&*pm, false).unwrap();
            assert!(told.problems.iter().any(|problem| problem.what.contains("switch")), "{told:?}");
            assert!(try_mount::<Fs>(&pm).is_err(), "a check changes nothing");
            assert!(check_with(&*pm, level).unwrap().is_sound());
            assert!(check(&*pm, false).unwrap().problems.is_empty());
            let fs: Fs = mount(&pm);
            assert_eq!(expected.differences(&Tree::of(&fs).unwrap()), [""; 0]);
            // Its next generation is above all tags that are there.
            ACTS[1..].iter().try_for_each(|act| act(&fs)).unwrap();
            the_rest_lives(&fs, "a new switch");
            fs.unmount().unwrap();
            assert!(check(&*pm, false).unwrap().problems.is_empty());
        }
    }
}

/// Both copies are lost at a crash in the middle of an operation: what a repair calls sound can be used, and nothing else
/// is mounted.
#[test]
fn a_switch_that_is_lost_within_an_operation_is_judged_by_the_rest() {
    let pm = image::<Fs>();
    let lines = copies(&pm, anatomy::Kind::Switch);
    let fs: Fs = mount(&pm);
    let mut sound = 0;
    for act in ACTS {
        let base = pm.snapshot();
        pm.start_recording();
        act(&fs).unwrap();
        let trace = pm.stop_recording();
        let mut replay = Replay::new(base, &trace);
        while replay.advance().is_some() {
            for image in replay.images(&Sampling { exhaustive_up_to: 2, samples: 6, seed: 1 }).iter() {
                let crashed = Arc::new(SimPm::new(pm.len()));
                crashed.load(replay.media());
                image.apply(&crashed);
                lines.into_iter().for_each(|line| crashed.poison(line, 1));
                assert!(try_mount::<Fs>(&crashed).is_err());
                if !check(&*crashed, true).unwrap().is_sound() {
                    assert!(try_mount::<Fs>(&crashed).is_err());
                    continue;
                }
                sound += 1;
                assert!(check(&*crashed, false).unwrap().problems.is_empty());
                let fs: Fs = mount(&crashed);
                the_rest_lives(&fs, "a new switch");
                fs.create(&fs.root(), b"other", &new(FileKind::Directory)).unwrap();
                fs.unmount().unwrap();
                let report = check(&*crashed, false).unwrap();
                assert!(report.problems.is_empty(), "{report:?}");
            }
        }
    }
    assert!(sound > 10, "{sound}");
    fs.unmount().unwrap();
}

/// Numbers of the inodes in the first block of the table, which has the root.
const IN_ROOT_BLOCK: std::ops::Range<u64> = 1..16;

/// Where the root's block of inodes is.
fn root_block(pm: &SimPm) -> u64 {
    let root = structures(pm).unwrap().into_iter().find(|s| s.kind == anatomy::Kind::Header && s.inode == 1);
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
    assert!(ShadowFs::mount(Arc::clone(&pm), &MountOptions::default()).is_err());
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
        structures(&*pm).unwrap().into_iter().find(|s| s.kind == anatomy::Kind::Header && s.inode == lost);
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
        structures(&*pm).unwrap().into_iter().find(|s| s.kind == anatomy::Kind::Header && s.inode == lost);
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

/// Each line of the root in turn: whichever it is, the root is made anew.
#[test]
fn any_line_of_the_root_that_is_lost_makes_a_new_one() {
    for line in 0..4 {
        let pm = image::<Fs>();
        let root =
            structures(&*pm).unwrap().into_iter().find(|s| s.kind == anatomy::Kind::Header && s.inode == 1);
        pm.poison(root.unwrap().offset + line * 64, 1);
        assert!(try_mount::<Fs>(&pm).is_err());
        assert!(check(&*pm, true).unwrap().is_sound());
        assert!(check(&*pm, false).unwrap().problems.is_empty());
        let fs: Fs = mount(&pm);
        let names: usize = (2..NAMES + 5).filter(|number| lookup(&fs, &format!("#{number}")).is_ok()).count();
        assert_eq!(names, 3, "the directory and both files");
        fs.create(&fs.root(), b"more", &new(FileKind::Directory)).unwrap();
        fs.unmount().unwrap();
        assert!(check(&*pm, false).unwrap().problems.is_empty());
    }
}

/// A symbolic link may lead to the bytes that lost lines are filled with.
#[test]
fn a_target_of_lost_bytes_is_not_lost() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let link = nacre_engine::NewInode { target: &[0xbd; 16], ..new(FileKind::Symlink) };
    let lost = fs.create(&fs.root(), b"lost", &new(FileKind::Regular)).unwrap();
    let lost_number = fs.id(&lost).number;
    fs.create(&fs.root(), b"link", &link).unwrap();
    put(&fs, &lost, 0, b"lost").unwrap();
    drop(lost);
    fs.unmount().unwrap();
    let place = structures(&*pm).unwrap().into_iter().find(|s| s.inode == lost_number).unwrap();
    pm.poison(place.offset, 1);
    assert!(check(&*pm, true).unwrap().is_sound());
    let fs: Fs = mount(&pm);
    assert!(lookup(&fs, "lost").is_err());
    assert_eq!(fs.read_link(&lookup(&fs, "link").unwrap()).unwrap(), [0xbd; 16]);
    fs.unmount().unwrap();
}
