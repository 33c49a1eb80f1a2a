//! The structures of this layout alone: switches and the table's inode in two copies, inodes in a table, trees and directories.

use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, FileKind, Kind, Names, RenameMode, Result};
use nacre_lab::crash::Tree;
use nacre_layout_shadow::anatomy::{self, Structure, structures};
use nacre_layout_shadow::check::{Repair, check, check_media, check_with};
use nacre_layout_shadow::{Mistake, MountOptions, ShadowFs};
use nacre_media::crash::{Replay, Sampling};
use nacre_media::{Pm, SimPm};

use super::common::{
    BLOCKS, NAMES, image, lookup, mount, new, now, put, read, scrub, the_rest_lives, try_mount,
};

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

/// An error that no write clears, as on a devdax device, in one copy: the other one is written alone. Also a page of it, so
/// that it is one copy of each switch.
#[test]
fn a_copy_that_cannot_be_written_is_done_without() {
    for kind in [anatomy::Kind::TableSlot, anatomy::Kind::Switch] {
        for (copy, len) in [(0, 1), (1, 1), (0, 4096), (1, 4096)] {
            let pm = image::<Fs>();
            let expected = tree(&pm).unwrap();
            let place = copies(&pm, kind)[copy];
            pm.poison(place / len * len, len);
            pm.keep_poison();
            assert!(check(&*pm, false).unwrap().is_sound(), "{kind:?}: the other copy is as good");
            let fs: Fs = mount(&pm);
            assert_eq!(expected.differences(&Tree::of(&fs).unwrap()), [""; 0], "{kind:?}");
            the_rest_lives(&fs, "a copy");
            // More than the table has places for.
            for number in 0..600 {
                fs.create(&fs.root(), format!("of-{number}").as_bytes(), &new(FileKind::Regular)).unwrap();
            }
            let made = Tree::of(&fs).unwrap();
            fs.unmount().unwrap();
            assert!(check(&*pm, true).unwrap().is_sound(), "{kind:?}: after it was used");
            assert_eq!(made.differences(&tree(&pm).unwrap()), [""; 0], "{kind:?}: after a mount");
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

/// The older slot of a file waits for a word in a node that is free since. It was judged, too, so that an error in that
/// node took the file, and with it the mount.
#[test]
fn an_error_in_a_node_that_an_older_slot_waits_for_is_no_matter() {
    let nodes_of = |pm: &SimPm, inode: u64| -> Vec<u64> {
        let is_node = |one: &Structure| one.kind == anatomy::Kind::Node && one.inode == inode;
        structures(pm).unwrap().into_iter().filter(is_node).map(|one| one.offset).collect()
    };
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let good = lookup(&fs, "good").unwrap();
    let number = fs.id(&good).number;
    // A word and a slot, and then a slot alone, with another root.
    put(&fs, &good, 4 * BLOCK_SIZE, &[b'g'; 4096]).unwrap();
    let before = nodes_of(&pm, number);
    put(&fs, &good, 8 * BLOCK_SIZE, &[b'g'; 3 * 4096]).unwrap();
    let after = nodes_of(&pm, number);
    assert!(before.len() == 1 && after.len() == 1 && before != after, "{before:?}, {after:?}");
    drop(good);
    fs.unmount().unwrap();
    pm.poison(before[0], BLOCK_SIZE);
    pm.keep_poison();
    let report = check(&*pm, false).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    let fs: Fs = mount(&pm);
    let good = lookup(&fs, "good").unwrap();
    for block in 0..BLOCKS {
        assert_eq!(read(&fs, &good, block * 2 * BLOCK_SIZE, 4096).unwrap(), [b'g'; 4096], "block {block}");
    }
    drop(good);
    fs.unmount().unwrap();
}

/// The number of a free inode that cannot be read was given back, and was the next one again: no file could be made.
#[test]
fn a_free_inode_that_cannot_be_read_fails_one_create() {
    /// Bytes of an inode.
    const INODE: u64 = 256;
    for line in 0..4 {
        let pm = image::<Fs>();
        let fs: Fs = mount(&pm);
        // The next one is behind the last, in the same block of the table.
        let mut at = 0;
        for index in 0.. {
            let made = fs.create(&fs.root(), format!("before-{index}").as_bytes(), &new(FileKind::Regular));
            let number = fs.id(&made.unwrap()).number;
            let is_it = |one: &Structure| one.kind == anatomy::Kind::Header && one.inode == number;
            at = structures(&*pm).unwrap().into_iter().find(is_it).unwrap().offset + INODE;
            if !at.is_multiple_of(BLOCK_SIZE) {
                break;
            }
        }
        pm.poison(at + line * 64, 1);
        let make = || fs.create(&fs.root(), b"made", &new(FileKind::Regular)).map(drop);
        assert_eq!(make().unwrap_err().kind(), Kind::Media, "line {line}");
        make().unwrap_or_else(|error| panic!("line {line}: {error}"));
        the_rest_lives(&fs, "a free inode");
        fs.unmount().unwrap();
    }
}
