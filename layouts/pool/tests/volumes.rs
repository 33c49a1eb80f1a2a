//! Volumes and zones: each is a file system of its own, within its space, and is made and removed as a whole.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{Data, Durability, Extents, FileKind, Kind, Names, NewInode, Result, Timestamp, WriteAt};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_layout_pool::volumes::{self, NewVolume};
use nacre_layout_pool::{Mistake, PoolFs};
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
    assert!((600..1000).contains(&blocks), "{blocks} blocks below a quota of 1000");
    assert!(stat.blocks == 1000 && stat.available < 64, "{stat:?}");
    // A zone is half of the device.
    let (blocks, _) = fill("other", 100);
    assert!((28_000..32_768).contains(&blocks), "{blocks} blocks of a zone");
    let (blocks, _) = fill("main", 100);
    assert!((26_000..32_000).contains(&blocks), "{blocks} blocks of the other");
    let kept = volumes::list(&*pm).unwrap();
    let used: Vec<_> = kept.iter().map(|volume| (volume.zone, volume.used.unwrap() > 800)).collect();
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
    let report = Fs::check(&pm, Repair::All, None).unwrap();
    let told: Vec<_> = report.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert!(told.len() == 1 && told[0].contains("the row of volume 1"), "{told:?}");
    let after = pm.snapshot();
    let kept = (0..after.len()).step_by(4096).filter(|&at| after[at..].starts_with(&[7; 4096])).count();
    assert_eq!(kept, 400, "blocks of files, those of the damaged volume among them");
}
