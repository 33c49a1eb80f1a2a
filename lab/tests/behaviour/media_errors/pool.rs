//! Second copies of all metadata, which only this layout has. One damaged copy of anything loses nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use nacre_engine::{FileKind, Kind, Names, NewInode, RenameMode, Result, SetAttr, XattrMode};
use nacre_lab::crash::Tree;
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::report::Repair;
use nacre_layout_pool::anatomy::{self, structures};
use nacre_layout_pool::{Mistake, PoolFs};
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};
use nacre_media::sim::Event;

use super::common::{LINE, checked, image, lookup, mount, new, now, put, read, scrub};

type Fs = PoolFs<SimPm>;

/// Bytes of a page, the unit in which hardware clears media errors.
pub(crate) const PAGE: u64 = 4096;

/// A file system with every kind of structure: long names, targets of both sizes, trees of both kinds, attributes.
pub(crate) fn everything() -> Arc<SimPm> {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let root = fs.root();
    let deep = fs.create(&root, b"deep", &new(FileKind::Directory)).unwrap();
    for len in [33, 100, 180, 255] {
        fs.create(&deep, &vec![b'n'; len], &new(FileKind::Regular)).unwrap();
    }
    for len in [20, 90, 3000] {
        let target = vec![b't'; len];
        let link = NewInode { target: &target, ..new(FileKind::Symlink) };
        fs.create(&deep, format!("link-{len}").as_bytes(), &link).unwrap();
    }
    let large = fs.create(&deep, b"large", &new(FileKind::Regular)).unwrap();
    put(&fs, &large, 3 << 20, &[7; 10_000]).unwrap();
    drop((root, deep, large));
    fs.unmount().unwrap();
    pm
}

/// The lines of metadata: those that a mount, a walk and a check read, without the data of files.
fn metadata(pm: &Arc<SimPm>) -> BTreeSet<u64> {
    let data: BTreeSet<u64> = {
        let fs: Fs = mount(pm);
        let tree = data_lines(&fs);
        fs.unmount().unwrap();
        tree
    };
    let copy = Arc::new(SimPm::from_image(&pm.snapshot()));
    copy.start_noting_reads();
    checked::<Fs>(&copy, false);
    let fs: Fs = mount(&copy);
    Tree::of(&fs).unwrap();
    fs.abandon();
    copy.stop_noting_reads();
    // The superblock and the list of bad blocks are of all layouts.
    let lines = (18 * PAGE..pm_len(pm)).step_by(LINE as usize);
    lines.filter(|line| copy.was_read(line / LINE) && !data.contains(line)).collect()
}

pub(crate) fn pm_len(pm: &SimPm) -> u64 {
    nacre_media::Pm::len(pm)
}

/// The lines of all blocks of files.
fn data_lines(fs: &Fs) -> BTreeSet<u64> {
    use nacre_engine::{BLOCK_SIZE, Extents, FileBlock, Place};
    let mut lines = BTreeSet::new();
    let mut dirs = vec![fs.root()];
    while let Some(dir) = dirs.pop() {
        let mut names = Vec::new();
        fs.read_dir(&dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        for name in names {
            let node = fs.lookup(&dir, &name).unwrap();
            if fs.kind(&node) == FileKind::Directory {
                dirs.push(node);
                continue;
            }
            for extent in fs.resolve(&node, FileBlock(0), u64::MAX).unwrap() {
                if let Place::Pm(block) = extent.place {
                    let bytes = block.offset()..block.offset() + extent.len * BLOCK_SIZE;
                    lines.extend(bytes.step_by(LINE as usize));
                }
            }
        }
    }
    lines
}

/// With a part of one copy lost the tree is what it was, a scrub mends it, and then nothing is damaged.
fn survives(pm: &Arc<SimPm>, expected: &Tree, what: &str, is_mended_by_use: bool) {
    let found = (|| -> Result<Tree> {
        let fs: Fs = super::common::try_mount(pm)?;
        let tree = Tree::of(&fs);
        let status = scrub(&fs);
        let unrepaired = status.findings.iter().filter(|words| !words.contains("written")).count();
        assert!(unrepaired == 0 || is_mended_by_use, "{what}: {status:?}");
        fs.unmount()?;
        tree
    })();
    let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(expected.differences(&found), Vec::<String>::new(), "{what}");
    let report = checked::<Fs>(pm, false);
    assert!(report.is_sound(), "{what}: {:?}", report.problems);
}

/// Each page of metadata in turn is lost, every seventh line is, and a bit of each of these lines is flipped: primary and
/// backup. Zero losses. With `NACRE_POISON_ALL` it is each line.
#[test]
fn one_lost_copy_of_anything_loses_nothing() {
    let pm = everything();
    let base = pm.snapshot();
    let expected = {
        let fs: Fs = mount(&pm);
        let tree = Tree::of(&fs).unwrap();
        fs.abandon();
        tree
    };
    let lines = metadata(&Arc::new(SimPm::from_image(&base)));
    assert!(lines.len() > 2000, "{} lines", lines.len());
    let pages: BTreeSet<u64> = lines.iter().map(|line| line / PAGE * PAGE).collect();
    for &page in &pages {
        let pm = Arc::new(SimPm::from_image(&base));
        pm.poison(page, PAGE);
        survives(&pm, &expected, &format!("page {page}"), false);
    }
    let lose = |line: u64| {
        let pm = Arc::new(SimPm::from_image(&base));
        pm.poison(line, 1);
        survives(&pm, &expected, &format!("line {line}"), false);
        let pm = Arc::new(SimPm::from_image(&base));
        // The time of access, at the start of a line, is covered by no checksum.
        let at = line + 16 + line / LINE % 40;
        pm.poke(at, &[base[at as usize] ^ 0x10]);
        survives(&pm, &expected, &format!("a bit of byte {at}"), true);
    };
    if std::env::var_os("NACRE_POISON_ALL").is_none() {
        return lines.into_iter().step_by(7).for_each(lose);
    }
    // Thousands of file systems: on all cores.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let some = lines.iter().skip(thread).step_by(threads);
            scope.spawn(|| some.copied().for_each(&lose));
        }
    });
}

/// An operation was under way at the crash, with everything of its last step durable, and then a page is lost: the tree is
/// that of before or of after it.
#[test]
fn a_lost_page_beside_an_unfinished_operation_loses_nothing() {
    type Act = fn(&Fs) -> Result<()>;
    let acts: [(&str, Act); 5] = [
        ("create", |fs| fs.create(&fs.root(), b"created", &new(FileKind::Regular)).map(drop)),
        ("unlink", |fs| fs.unlink(&fs.root(), b"bad", now())),
        ("rename", |fs| {
            let dir = lookup(fs, "dir")?;
            fs.rename(&fs.root(), b"bad", &dir, b"moved", RenameMode::Replace, now())
        }),
        ("overwrite", |fs| put(fs, &lookup(fs, "bad")?, 0, &[b'o'; 9000]).map(drop)),
        ("attributes", |fs| {
            let node = lookup(fs, "bad")?;
            fs.setattr(&node, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, now())?;
            fs.set_xattr(&node, b"user.new", &[3; 5000], XattrMode::Set, None, now())
        }),
    ];
    for (what, act) in acts {
        let pm = everything();
        let fs: Fs = mount(&pm);
        let before = Tree::of(&fs).unwrap();
        let base = pm.snapshot();
        pm.start_recording();
        act(&fs).unwrap();
        let trace = pm.stop_recording();
        let after = Tree::of(&fs).unwrap();
        fs.abandon();
        let mut replay = Replay::new(base, &trace);
        while replay.advance().is_some() {
            let crashed = replay.media().clone();
            let image = Arc::new(SimPm::new(pm_len(&pm)));
            image.load(&crashed);
            let bytes = image.snapshot();
            let lines = metadata_pages(&image);
            for page in lines.into_iter().step_by(3) {
                let pm = Arc::new(SimPm::from_image(&bytes));
                pm.poison(page, PAGE);
                let fs: Fs = mount(&pm);
                let found = Tree::of(&fs).unwrap_or_else(|error| panic!("{what}, page {page}: {error}"));
                let is_one = [&before, &after].iter().any(|tree| tree.differences(&found).is_empty());
                assert!(
                    is_one || what == "attributes",
                    "{what}, page {page}: {:?}",
                    before.differences(&found)
                );
                scrub(&fs);
                fs.unmount().unwrap();
                let report = checked::<Fs>(&pm, false);
                assert!(report.is_sound(), "{what}, page {page}: {:?}", report.problems);
            }
        }
    }
}

/// At each crash of a rename one copy of the lanes is lost, too: the other one says what the operation was to change. An
/// intent in one copy is found out by that.
#[test]
fn a_lost_copy_of_the_lanes_loses_nothing() {
    assert_eq!(problems_without_lanes(0), Vec::<String>::new());
    let mistake = Mistake::ALL.iter().find(|mistake| mistake.words() == "an intent is in one copy").unwrap();
    assert!(!problems_without_lanes(mistake.number()).is_empty());
}

/// The problems of all crashes of a rename that a layout with a mistake makes, with each page of lanes lost in turn.
fn problems_without_lanes(mistake: u32) -> Vec<String> {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let before = Tree::of(&fs).unwrap();
    let base = pm.snapshot();
    pm.seed_mistake(mistake);
    pm.start_recording();
    let dir = lookup(&fs, "dir").unwrap();
    fs.rename(&fs.root(), b"bad", &dir, b"moved", RenameMode::Replace, now()).unwrap();
    drop(dir);
    let trace = pm.stop_recording();
    pm.seed_mistake(0);
    let after = Tree::of(&fs).unwrap();
    fs.abandon();
    let page_of_lane = |event: &Event| match event {
        Event::Store { offset, site, .. } if site.file().ends_with("lanes.rs") => Some(offset / PAGE * PAGE),
        _ => None,
    };
    let pages: BTreeSet<u64> = trace.events.iter().filter_map(page_of_lane).collect();
    assert_eq!(pages.len(), 2, "both copies of one lane");
    let (mut replay, mut problems) = (Replay::new(base, &trace), Vec::new());
    while let Some(point) = replay.advance() {
        let sampling = Sampling { exhaustive_up_to: 16, samples: 16, seed: 1 };
        for image in replay.images(&sampling).iter() {
            for &page in &pages {
                let pm = Arc::new(SimPm::new(pm_len(&pm)));
                pm.load(replay.media());
                image.apply(&pm);
                pm.poison(page, PAGE);
                let found = super::common::try_mount(&pm).and_then(|fs: Fs| {
                    let tree = Tree::of(&fs);
                    fs.abandon();
                    tree
                });
                let problem = match found {
                    Ok(tree) if [&before, &after].iter().any(|one| one.differences(&tree).is_empty()) => {
                        continue;
                    }
                    Ok(tree) => before.differences(&tree).join(", "),
                    Err(error) => error.to_string(),
                };
                problems.push(format!("{point:?}, page {page}, {image:?}: {problem}"));
            }
        }
    }
    problems
}

/// The pages that a recovery and a walk read, without those of the superblock.
pub(crate) fn metadata_pages(pm: &Arc<SimPm>) -> BTreeSet<u64> {
    let copy = Arc::new(SimPm::from_image(&pm.snapshot()));
    copy.start_noting_reads();
    let fs: Fs = mount(&copy);
    Tree::of(&fs).unwrap();
    let data = data_lines(&fs);
    fs.abandon();
    copy.stop_noting_reads();
    let lines = (18 * PAGE..pm_len(pm)).step_by(LINE as usize);
    lines
        .filter(|line| copy.was_read(line / LINE) && !data.contains(line))
        .map(|line| line / PAGE * PAGE)
        .collect()
}

/// A lost line of data is an error of its range alone.
#[test]
fn a_lost_line_of_data_is_an_error_of_its_range() {
    let pm = image::<Fs>();
    let fs: Fs = mount(&pm);
    let bad = lookup(&fs, "bad").unwrap();
    pm.poison(super::common::place_of(&fs, &bad, 4), 1);
    assert_eq!(read(&fs, &bad, 4 * 4096, 4096), Err(Kind::Media));
    assert_eq!(read(&fs, &bad, 2 * 4096, 4096).unwrap(), vec![b'b'; 4096]);
    drop(bad);
    fs.unmount().unwrap();
}

/// Both copies of a line of each kind of structure are gone: a check and a scrub say so, and go on. The comparison of two
/// lost lines of checked words called itself for ever, which ended the process.
#[test]
fn both_copies_of_a_line_are_told_of() {
    let good = everything().snapshot();
    let found = structures(&SimPm::from_image(&good)).unwrap();
    for kind in [
        anatomy::Kind::Orphans,
        anatomy::Kind::Map,
        anatomy::Kind::PoolBits,
        anatomy::Kind::Inode,
        anatomy::Kind::Neighbours,
        anatomy::Kind::Name,
        anatomy::Kind::Node,
        anatomy::Kind::Bytes,
    ] {
        // The primary of one, and its backup right behind it.
        let first = found.iter().position(|structure| structure.kind == kind).expect("there is one");
        let pm = Arc::new(SimPm::from_image(&good));
        let fs: Fs = mount(&pm);
        for structure in &found[first..first + 2] {
            pm.poke(structure.offset, &[0x5a; 64][..structure.len.min(64) as usize]);
        }
        let status = scrub(&fs);
        assert!(!status.findings.is_empty() || !status.known.is_empty(), "{kind:?}: {status:?}");
        fs.abandon();
        // Nothing proves what was there; a list of orphans may be counted anew.
        let report = <Fs as Lifecycle>::check(&pm, Repair::None, None);
        assert!(report.is_ok_and(|report| !report.problems.is_empty()), "{kind:?}");
        let _ = <Fs as Lifecycle>::check(&pm, Repair::All, None);
    }
}
