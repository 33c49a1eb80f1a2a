//! Volumes and zones: each is a file system of its own, within its space, and is made and removed as a whole.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BelowBuffer, Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Kind, Names, NewInode, Place,
    RenameMode, Result, SetAttr, Timestamp, WriteAt, WriteShape,
};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_layout_pool::use_lane;
use nacre_layout_pool::volumes::{self, NewVolume};
use nacre_layout_pool::{Mistake, PoolFs, anatomy, check_volume};
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};

type Fs = PoolFs<SimPm>;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn made(size: u64, zones: u32) -> Arc<SimPm> {
    let pm = Arc::new(SimPm::new(size));
    Fs::mkfs(&pm, &MkfsOptions { zones, ..MkfsOptions::default() }).unwrap();
    pm
}

fn try_mount(pm: &Arc<SimPm>, volume: Option<&str>) -> Result<Fs> {
    let volume = volume.map(str::to_owned);
    Fs::mount(Arc::clone(pm), &MountOptions { background: false, volume, ..MountOptions::default() })
}

fn mount(pm: &Arc<SimPm>, volume: &str) -> Fs {
    try_mount(pm, Some(volume)).unwrap()
}

fn assert_sound(pm: &SimPm) {
    let report = Fs::check(pm, Repair::None, None).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

fn new_volume(name: &str, zone: u32, quota: u64) -> NewVolume {
    NewVolume { name: name.to_owned(), zone, quota, now: now(), ..NewVolume::default() }
}

/// Makes a file of so many blocks.
fn make_file(fs: &Fs, name: &str, blocks: usize) -> Result<()> {
    let file = fs.create(&fs.root(), name.as_bytes(), &NewInode::of_root(FileKind::Regular, 0o644, now()))?;
    let data = vec![7; blocks * 4096];
    fs.write(&file, WriteAt::Offset(0), &[IoSlice::new(&data)], Durability::Now, now()).map(drop)
}

fn names(fs: &Fs) -> Vec<String> {
    let mut names = Vec::new();
    fs.read_dir(&fs.root(), 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    names.sort();
    names
}

fn listed(pm: &SimPm) -> Vec<String> {
    volumes::list(pm).unwrap().into_iter().map(|volume| volume.name).collect()
}

#[test]
fn volumes_have_their_own_files() {
    let pm = made(64 << 20, 1);
    assert_eq!(listed(&pm), ["main"]);
    let fs = mount(&pm, "main");
    make_file(&fs, "first", 10).unwrap();
    fs.unlink(&fs.root(), b"first", now()).unwrap();
    fs.unmount().unwrap();
    let free = || mount(&pm, "main").stat().free;
    let before = free();
    volumes::create(Arc::clone(&pm), &new_volume("mail", 0, 0)).unwrap();
    let again = volumes::create(Arc::clone(&pm), &new_volume("mail", 0, 0)).unwrap_err();
    assert_eq!(again.kind(), Kind::Exists);
    assert_eq!(try_mount(&pm, None).err().map(|error| error.kind()), Some(Kind::InvalidInput));
    assert_eq!(try_mount(&pm, Some("none")).err().map(|error| error.kind()), Some(Kind::NotFound));
    for (volume, file) in [("main", "of-main"), ("mail", "of-mail")] {
        let fs = mount(&pm, volume);
        make_file(&fs, file, 100).unwrap();
        assert_eq!(names(&fs), [file]);
        let node = fs.lookup(&fs.root(), file.as_bytes()).unwrap();
        let id = fs.id(&node);
        drop(node);
        fs.unmount().unwrap();
        assert_sound(&pm);
        let other = if volume == "main" { "mail" } else { "main" };
        let fs = mount(&pm, other);
        assert_eq!(fs.node(id).err().map(|error| error.kind()), Some(Kind::Stale), "a handle of {volume}");
        fs.unmount().unwrap();
    }
    // After a crash of the one, the other counts anew what is free.
    let fs = mount(&pm, "mail");
    make_file(&fs, "more", 2000).unwrap();
    fs.abandon();
    let fs = mount(&pm, "main");
    assert_eq!(names(&fs), ["of-main"]);
    fs.unmount().unwrap();
    assert_sound(&pm);
    volumes::remove(Arc::clone(&pm), "mail").unwrap();
    assert_eq!(listed(&pm), ["main"]);
    assert_sound(&pm);
    let fs = mount(&pm, "main");
    fs.unlink(&fs.root(), b"of-main", now()).unwrap();
    fs.unmount().unwrap();
    assert_eq!(free(), before, "what the volume had is free");
    assert_sound(&pm);
}

#[test]
fn a_full_volume_leaves_the_others_alone() {
    let pm = made(256 << 20, 2);
    assert_eq!(volumes::zone_count(&*pm).unwrap(), 2);
    for (name, zone, quota) in [("small", 0, 1000), ("other", 1, 0)] {
        volumes::create(Arc::clone(&pm), &new_volume(name, zone, quota)).unwrap();
    }
    let missing = volumes::create(Arc::clone(&pm), &new_volume("third", 2, 0)).unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    let fill = |volume: &str, blocks: usize| {
        let fs = mount(&pm, volume);
        let mut count = 0;
        loop {
            match make_file(&fs, &format!("file-{count}"), blocks) {
                Ok(()) => count += 1,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::NoSpace);
                    break;
                }
            }
        }
        let stat = fs.stat();
        fs.unmount().unwrap();
        assert_sound(&pm);
        (count * blocks as u64, stat)
    };
    let (blocks, stat) = fill("small", 10);
    assert!((550..1000).contains(&blocks), "{blocks} blocks below a quota of 1000");
    assert!(stat.blocks == 1000 && stat.available < 64, "{stat:?}");
    // A zone is half of the device.
    let (blocks, _) = fill("other", 100);
    assert!((28_000..32_768).contains(&blocks), "{blocks} blocks of a zone");
    let (blocks, _) = fill("main", 100);
    assert!((26_000..32_000).contains(&blocks), "{blocks} blocks of the other");
    let kept = volumes::list(&*pm).unwrap();
    let used: Vec<_> = kept.iter().map(|volume| (volume.zone, volume.used.unwrap() > 600)).collect();
    assert_eq!(used, [(0, true), (0, true), (1, true)]);
}

#[test]
fn zones_are_mounted_at_once() {
    let pm = made(256 << 20, 2);
    volumes::create(Arc::clone(&pm), &new_volume("other", 1, 0)).unwrap();
    let (main, other) = (mount(&pm, "main"), mount(&pm, "other"));
    std::thread::scope(|scope| {
        for (fs, name) in [(&main, "a"), (&other, "b")] {
            scope.spawn(move || {
                for index in 0..200 {
                    make_file(fs, &format!("{name}-{index}"), 3).unwrap();
                }
            });
        }
    });
    assert_eq!((names(&main).len(), names(&other).len()), (200, 200));
    main.unmount().unwrap();
    other.abandon();
    assert_eq!(names(&mount(&pm, "other")).len(), 200);
    assert_sound(&pm);
}

#[test]
fn what_cannot_be_is_refused() {
    let pm = made(64 << 20, 1);
    for name in ["", "a#b", "a/b", "a,b", "a\nb"] {
        let refused = volumes::create(Arc::clone(&pm), &new_volume(name, 0, 0)).unwrap_err();
        assert_eq!(refused.kind(), Kind::InvalidInput, "{name:?}");
    }
    let few = Fs::mkfs(&SimPm::new(64 << 20), &MkfsOptions { zones: 2, ..MkfsOptions::default() });
    assert_eq!(few.unwrap_err().kind(), Kind::InvalidInput);
    for index in 1..64 {
        volumes::create(Arc::clone(&pm), &new_volume(&format!("volume-{index}"), 0, 0))
            .map_err(|error| assert_eq!(error.kind(), Kind::NoSpace))
            .ok();
    }
    let full = volumes::create(Arc::clone(&pm), &new_volume("one more", 0, 0)).unwrap_err();
    assert_eq!(full.kind(), Kind::NoSpace);
    assert_sound(&pm);
    for name in listed(&pm) {
        volumes::remove(Arc::clone(&pm), &name).unwrap();
    }
    assert_sound(&pm);
    assert_eq!(try_mount(&pm, None).err().map(|error| error.kind()), Some(Kind::NotFound));
    volumes::create(Arc::clone(&pm), &new_volume("main", 0, 0)).unwrap();
    try_mount(&pm, None).unwrap().unmount().unwrap();
    assert_sound(&pm);
}

type Looked = std::result::Result<(), String>;

/// Crashes an operation everywhere, and looks at the images. Gives what is wrong with them, and how many there were.
fn crash(
    mistake: Option<Mistake>,
    base: &[u8],
    run: impl Fn(&Arc<SimPm>),
    look: impl Fn(&Arc<SimPm>) -> Looked,
) -> (Vec<String>, u64) {
    let pm = Arc::new(SimPm::from_image(base));
    pm.seed_mistake(mistake.map_or(0, Mistake::number));
    pm.start_recording();
    run(&pm);
    let trace = pm.stop_recording();
    let mut replay = Replay::new(base.to_vec(), &trace);
    let (mut wrong, mut count) = (Vec::new(), 0);
    while let Some(_point) = replay.advance() {
        pm.load(replay.media());
        for image in
            replay.images(&Sampling { samples: 4, exhaustive_up_to: 4, ..Sampling::default() }).iter()
        {
            image.apply(&pm);
            count += 1;
            wrong.extend(look(&pm).err());
            pm.load(replay.media());
        }
    }
    (wrong, count)
}

/// After a crash, the volume is there as a whole or not at all, and the other one is as it was.
fn look(pm: &Arc<SimPm>) -> Looked {
    let fs = try_mount(pm, Some("main")).map_err(|error| error.to_string())?;
    let kept = names(&fs);
    fs.unmount().map_err(|error| error.to_string())?;
    let report = Fs::check(pm, Repair::None, None).map_err(|error| error.to_string())?;
    if kept != ["kept"] || !report.problems.is_empty() {
        return Err(format!("{kept:?}, {:?}", report.problems));
    }
    for name in listed(pm) {
        let fs = try_mount(pm, Some(&name)).map_err(|error| error.to_string())?;
        make_file(&fs, "new", 10).map_err(|error| error.to_string())?;
        fs.unmount().map_err(|error| error.to_string())?;
    }
    sound(pm)
}

fn sound(pm: &Arc<SimPm>) -> Looked {
    let report = Fs::check(pm, Repair::None, None).map_err(|error| error.to_string())?;
    if report.problems.is_empty() { Ok(()) } else { Err(format!("{:?}", report.problems)) }
}

#[test]
fn volumes_are_made_and_removed_as_a_whole() {
    let pm = made(16 << 20, 1);
    let fs = mount(&pm, "main");
    make_file(&fs, "kept", 20).unwrap();
    fs.unmount().unwrap();
    let before = pm.snapshot();
    let create = |pm: &Arc<SimPm>| drop(volumes::create(Arc::clone(pm), &new_volume("mail", 0, 0)));
    volumes::create(Arc::clone(&pm), &new_volume("mail", 0, 0)).unwrap();
    let fs = mount(&pm, "mail");
    (0..5).for_each(|index| make_file(&fs, &format!("file-{index}"), 100).unwrap());
    fs.unmount().unwrap();
    let with_volume = pm.snapshot();
    let remove = |pm: &Arc<SimPm>| drop(volumes::remove(Arc::clone(pm), "mail"));
    for (base, run) in [(&before, &create as &dyn Fn(&Arc<SimPm>)), (&with_volume, &remove)] {
        let (wrong, count) = crash(None, base, run, look);
        assert!(wrong.is_empty() && count > 50, "{count} images: {:?}", wrong.first());
    }
    let (wrong, _) = crash(Some(Mistake::VolumeRowEarly), &before, create, look);
    assert!(!wrong.is_empty(), "the row of a volume before its root");
    let (wrong, _) = crash(Some(Mistake::VolumeRemovedInSteps), &with_volume, remove, look);
    assert!(!wrong.is_empty(), "the row of a volume goes before its groups");
}

/// A mount ends a removal that a crash interrupted. Its own operations are recovered after the next crash.
#[test]
fn a_mount_that_ends_a_removal_is_recovered() {
    let pm = made(16 << 20, 1);
    volumes::create(Arc::clone(&pm), &new_volume("mail", 0, 0)).unwrap();
    let fs = mount(&pm, "mail");
    (0..3).for_each(|index| make_file(&fs, &format!("file-{index}"), 600).unwrap());
    fs.unmount().unwrap();
    let base = pm.snapshot();
    pm.start_recording();
    volumes::remove(Arc::clone(&pm), "mail").unwrap();
    let trace = pm.stop_recording();
    let mut replay = Replay::new(base, &trace);
    let is_going = |pm: &SimPm| volumes::list(pm).unwrap().iter().any(|volume| volume.going);
    loop {
        assert!(replay.advance().is_some(), "the removal is seen on its way");
        pm.load(replay.media());
        if is_going(&pm) {
            break;
        }
    }
    let base = pm.snapshot();
    let run = |pm: &Arc<SimPm>| {
        let fs = mount(pm, "main");
        make_file(&fs, "kept", 20).unwrap();
        fs.unlink(&fs.root(), b"kept", now()).unwrap();
        make_file(&fs, "again", 20).unwrap();
        fs.abandon();
    };
    let (wrong, count) = crash(None, &base, run, |pm| {
        sound(pm)?;
        let fs = try_mount(pm, Some("main")).map_err(|error| error.to_string())?;
        fs.unmount().map_err(|error| error.to_string())?;
        sound(pm)
    });
    assert!(wrong.is_empty() && count > 50, "{count} images, {} wrong: {:?}", wrong.len(), wrong.first());
}

/// A volume whose row is lost leaves the others alone, and its groups.
#[test]
fn a_damaged_volume_leaves_the_others_alone() {
    let pm = made(64 << 20, 1);
    for name in ["mail", "build"] {
        volumes::create(Arc::clone(&pm), &new_volume(name, 0, 0)).unwrap();
        let fs = mount(&pm, name);
        make_file(&fs, "file", 100).unwrap();
        fs.unmount().unwrap();
    }
    let image = pm.snapshot();
    let name = |at: &usize| image[*at..].starts_with(b"mail\0");
    let places: Vec<usize> = (0..image.len()).step_by(8).filter(name).collect();
    assert_eq!(places.len(), 2, "both copies of the row");
    for at in places {
        pm.poke(at as u64, b"MAIL");
    }
    assert!(listed(&pm) == ["main", "build"] && !Fs::probe(&*pm).unwrap().clean);
    for (volume, kind) in [("main", None), ("build", None), ("mail", Some(Kind::Corrupt))] {
        let mounted = try_mount(&pm, Some(volume));
        assert_eq!(mounted.as_ref().err().map(|error| error.kind()), kind, "{volume}");
        if let Ok(fs) = mounted {
            make_file(&fs, "more", 100).unwrap();
            fs.unmount().unwrap();
        }
    }
    volumes::create(Arc::clone(&pm), &new_volume("new", 0, 0)).unwrap();
    // A repair without loss leaves it alone, and everything else.
    let report = Fs::check(&pm, Repair::Safe, None).unwrap();
    let told: Vec<_> = report.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert!(told.len() == 1 && told[0].contains("the row of volume 1") && report.loses(), "{told:?}");
    let after = pm.snapshot();
    let kept = (0..after.len()).step_by(4096).filter(|&at| after[at..].starts_with(&[7; 4096])).count();
    assert_eq!(kept, 400, "blocks of files, those of the damaged volume among them");
    let report = Fs::check(&pm, Repair::All, None).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_sound(&pm);
    for (volume, files) in [("main", 1), ("build", 2), ("new", 0)] {
        let fs = mount(&pm, volume);
        assert_eq!(names(&fs).len(), files, "{volume}");
        fs.unmount().unwrap();
    }
}

/// The blocks of all files in the root.
fn blocks_of(fs: &Fs) -> Vec<u64> {
    let mut blocks = Vec::new();
    for name in names(fs) {
        let file = fs.lookup(&fs.root(), name.as_bytes()).unwrap();
        for extent in fs.resolve(&file, FileBlock(0), u64::MAX).unwrap() {
            let Place::Pm(first) = extent.place else { panic!("{extent:?}") };
            blocks.extend(first.0..first.0 + extent.len);
        }
    }
    blocks
}

fn fill(fs: &Fs) {
    let full = (0..).find_map(|index| make_file(fs, &format!("file-{index}"), 50).err());
    assert_eq!(full.map(|error| error.kind()), Some(Kind::NoSpace));
}

/// A block of the list whose bit says that it is free was allocated, and a check could not repair what came of it.
#[test]
fn a_bad_block_is_not_allocated_though_its_bit_says_free() {
    let pm = made(64 << 20, 1);
    // Far behind what is in use, within a group that is free as a whole.
    let bad = 20 * 512 + 77;
    pm.poison(bad * 4096, 64);
    let media = Fs::check_media(&pm, true).unwrap();
    assert_eq!((media.new_blocks, media.errors.len()), (1, 1), "{:?}", media.errors);
    assert_sound(&pm);
    let fs = mount(&pm, "main");
    fill(&fs);
    assert!(!blocks_of(&fs).contains(&bad));
    fs.unmount().unwrap();
    assert_sound(&pm);
    let fs = mount(&pm, "main");
    names(&fs).iter().for_each(|name| fs.unlink(&fs.root(), name.as_bytes(), now()).unwrap());
    fs.abandon();
    assert_sound(&pm);
}

/// A bad block of another zone ended the process, or was taken in the zone of a process that had it mounted.
#[test]
fn a_zone_has_its_own_bad_blocks() {
    // Which groups a volume takes first depends on the lane: none with these blocks.
    use_lane(0);
    let pm = made(256 << 20, 2);
    // In the second zone.
    let bad = 100 * 512 + 3;
    pm.list_as_bad(bad * 4096..bad * 4096 + 64);
    assert_eq!(Fs::retire_listed(&pm).unwrap(), 1);
    assert_sound(&pm);
    let more = 101 * 512 + 9;
    pm.poison(more * 4096, 64);
    let scrubbed = |fs: &Fs| {
        fs.start_scrub(1 << 40).unwrap();
        while fs.scrub_status().running {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        fs.scrub_status()
    };
    let main = mount(&pm, "main");
    let status = scrubbed(&main);
    assert_eq!((status.findings, status.known.len()), (Vec::new(), 0), "they are another zone's");
    main.unmount().unwrap();
    volumes::create(Arc::clone(&pm), &new_volume("other", 1, 0)).unwrap();
    let other = mount(&pm, "other");
    let status = scrubbed(&other);
    assert_eq!((status.findings.len(), status.known.len()), (1, 1), "{status:?}");
    fill(&other);
    let blocks = blocks_of(&other);
    assert!(!blocks.contains(&bad) && !blocks.contains(&more));
    other.unmount().unwrap();
    assert_sound(&pm);
}

/// A page with rows of several zones was written as a whole while another process might change its own row there.
#[test]
fn a_page_that_zones_share_is_mended_with_the_device_alone() {
    let pm = made(256 << 20, 2);
    volumes::create(Arc::clone(&pm), &new_volume("other", 1, 0)).unwrap();
    let rows: Vec<_> = anatomy::structures(&*pm).unwrap();
    let row = rows.iter().find(|structure| structure.kind == anatomy::Kind::Zone).unwrap().offset;
    pm.set_shared(true);
    let main = mount(&pm, "main");
    pm.poison(row + 2048, 64);
    main.start_scrub(1 << 40).unwrap();
    while main.scrub_status().running {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let status = main.scrub_status();
    assert_eq!((status.findings.is_empty(), status.repaired), (false, 0), "{status:?}");
    main.unmount().unwrap();
    pm.set_shared(false);
    let main = mount(&pm, "main");
    main.start_scrub(1 << 40).unwrap();
    while main.scrub_status().running {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(main.scrub_status().repaired, 1);
    main.unmount().unwrap();
    assert_sound(&pm);
}

#[test]
fn a_zone_is_checked_beside_a_mount_of_another_one() {
    let pm = made(256 << 20, 2);
    volumes::create(Arc::clone(&pm), &new_volume("other", 1, 0)).unwrap();
    let other = mount(&pm, "other");
    make_file(&other, "file", 10).unwrap();
    other.unmount().unwrap();
    let heads = anatomy::structures(&*pm).unwrap();
    let in_other = |structure: &&anatomy::Structure| {
        structure.kind == anatomy::Kind::PoolHead && structure.offset > 128 << 20
    };
    let head = heads.iter().find(in_other).unwrap();
    pm.set_shared(true);
    let main = mount(&pm, "main");
    make_file(&main, "of main", 10).unwrap();
    pm.poke(head.offset + 8, &[0xee; 8]);
    for (repair, repaired) in [(Repair::None, false), (Repair::Safe, true)] {
        let report = check_volume(&*pm, repair, "other").unwrap();
        let problems = &report.problems;
        assert!(problems.len() == 1 && problems[0].repaired == repaired, "{problems:?}");
        assert_eq!((report.summary.label.as_str(), report.walk.files), ("other", 1));
    }
    make_file(&main, "more of main", 10).unwrap();
    main.unmount().unwrap();
    pm.set_shared(false);
    assert_sound(&pm);
}

/// Overwrites, cuts and removals need a few blocks until their end, and data that was accepted needs its own.
#[test]
fn a_full_quota_can_be_worked_with() {
    let pm = made(64 << 20, 1);
    volumes::create(Arc::clone(&pm), &new_volume("mail", 0, 1500)).unwrap();
    let fs = mount(&pm, "mail");
    fill(&fs);
    while make_file(&fs, "small", 1).is_ok() {
        let at = format!("small-{}", names(&fs).len());
        fs.rename(&fs.root(), b"small", &fs.root(), at.as_bytes(), RenameMode::Replace, now()).unwrap();
    }
    let _ = fs.unlink(&fs.root(), b"small", now());
    let file = fs.lookup(&fs.root(), b"file-0").unwrap();
    let data = [3; 8192];
    let over = |offset| {
        fs.write(&file, WriteAt::Offset(offset), &[IoSlice::new(&data)], Durability::Now, now()).unwrap();
    };
    over(0);
    over(2048);
    fs.fallocate(&file, FallocateMode::PunchHole, 4096 * 7 + 100, 4096 * 5 - 50, now()).unwrap();
    fs.setattr(&file, &SetAttr { size: Some(4096 * 20 + 9), ..SetAttr::default() }, now()).unwrap();
    fs.rename(&fs.root(), b"file-1", &fs.root(), b"another", RenameMode::Replace, now()).unwrap();
    fs.unlink(&fs.root(), b"another", now()).unwrap();
    fs.unmount().unwrap();
    assert_sound(&pm);
    let fs = mount(&pm, "mail");
    let shape = WriteShape { blocks: 2000, ..WriteShape::default() };
    assert_eq!(
        fs.reserve_for(&shape).err().map(|error| error.kind()),
        Some(Kind::NoSpace),
        "beyond the quota"
    );
    fs.unmount().unwrap();
}

/// One row of a zone without a copy kept every volume of the device from being mounted, and checked.
#[test]
fn a_zone_without_a_row_leaves_the_others_alone() {
    let pm = made(256 << 20, 2);
    volumes::create(Arc::clone(&pm), &new_volume("other", 1, 0)).unwrap();
    let rows = anatomy::structures(&*pm).unwrap();
    let rows: Vec<_> = rows.iter().filter(|structure| structure.kind == anatomy::Kind::Zone).collect();
    // Each has a primary and a backup.
    assert_eq!(rows.len(), 4);
    let of_second: Vec<u64> =
        rows.iter().map(|row| row.offset).filter(|at| at % 4096 != rows[0].offset % 4096).collect();
    of_second.iter().for_each(|&at| pm.poke(at + 8, &[0xee; 8]));
    let main = mount(&pm, "main");
    make_file(&main, "file", 10).unwrap();
    main.unmount().unwrap();
    assert!(try_mount(&pm, Some("other")).is_err());
    let report = Fs::check(&pm, Repair::Safe, None).unwrap();
    assert!(report.problems.iter().any(|problem| problem.what.contains("zone 1")), "{:?}", report.problems);
    assert_eq!(report.walk.files, 1);
    // The superblock says what the row was.
    assert!(report.is_sound() && !report.loses(), "{:?}", report.problems);
    mount(&pm, "other").unmount().unwrap();
    assert_sound(&pm);
}

/// A volume was made that could have no file: its first name found no room below the quota, though some was shown.
#[test]
fn a_quota_has_room_for_names_and_for_what_it_shows() {
    // Pool blocks have 64 blocks.
    for quota in [1, 64, 100, 147, 159, 160, 161, 200, 300, 1000] {
        let pm = made(64 << 20, 1);
        let before = pm.snapshot();
        let created = volumes::create(Arc::clone(&pm), &new_volume("mail", 0, quota));
        if quota < 160 {
            let error = created.unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidInput, "{quota}");
            assert!(error.to_string().contains("640 KiB"), "{error}");
            assert!(pm.snapshot() == before, "nothing is written");
            continue;
        }
        created.unwrap();
        let fs = mount(&pm, "mail");
        let available = fs.stat().available;
        assert!((1..quota).contains(&available), "{available} blocks of {quota}");
        make_file(&fs, "file", available as usize).unwrap();
        assert_eq!(fs.stat().available, 0, "{quota}");
        fs.unmount().unwrap();
        assert_sound(&pm);
    }
}
