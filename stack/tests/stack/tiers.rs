//! Tiers in the library: added, found again, missing, drained and removed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nacre::{
    Budget, CheckOptions, FileBlock, FileOptions, FileSystem, Kind, MkfsOptions, NewTier, OpenOptions, Place,
    Preset, Repair, TierDevice, TierSettings, UncheckedTier, WriteBuffer,
};

const MIB: u64 = 1 << 20;

fn options() -> OpenOptions {
    OpenOptions { buffer: WriteBuffer::Never, ..OpenOptions::default() }
}

fn device(path: PathBuf) -> TierDevice {
    TierDevice { path, emulation: None }
}

fn new(path: PathBuf, size: u64) -> NewTier {
    NewTier { device: device(path), size: Some(size), rank: None, force: false }
}

fn create(dir: &Path, options: &OpenOptions) -> FileSystem {
    FileSystem::create(dir.join("pm"), &MkfsOptions::with_size(64 * MIB), options).unwrap()
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 100) as u8).collect()
}

fn places(fs: &FileSystem, path: &str) -> Vec<u8> {
    let extents = fs.extents(path).unwrap().into_iter();
    let mut tiers: Vec<u8> =
        extents.map(|extent| if let Place::Tier { tier, .. } = extent.place { tier } else { 0 }).collect();
    tiers.dedup();
    tiers
}

#[test]
fn files_live_on_tiers_and_are_found_there_again() {
    for buffer in [WriteBuffer::Never, WriteBuffer::Preset] {
        let dir = tempfile::tempdir().unwrap();
        let options = OpenOptions { buffer, ..OpenOptions::default() };
        let fs = create(dir.path(), &options);
        let before = fs.statfs();
        assert_eq!(fs.add_tier(&new(dir.path().join("disk"), 256 * MIB)).unwrap(), 1);
        let after = fs.statfs();
        assert_eq!(after.blocks - before.blocks, 256 * MIB / 4096 - 2);
        let bytes = content(5_000_000);
        fs.write("large", &bytes).unwrap();
        fs.sync().unwrap();
        assert_eq!(fs.demote("large", 1).unwrap(), 5_001_216);
        assert_eq!(places(&fs, "large"), [1]);
        assert!(fs.read("large").unwrap() == bytes);
        let info = &fs.tiers()[0];
        assert_eq!((info.number, info.size - info.free), (1, 5_001_216));
        assert!(info.device.as_ref().unwrap().ends_with("disk") && info.missing.is_none());
        fs.close().unwrap();
        // Without being told where it is.
        let fs = FileSystem::open(dir.path().join("pm"), &options).unwrap();
        assert!(fs.read("large").unwrap() == bytes);
        assert_eq!(fs.promote("large").unwrap(), 5_001_216);
        assert_eq!(places(&fs, "large"), [0]);
        fs.close().unwrap();
    }
}

/// Each had an order, a write and a flush of its own.
#[test]
fn files_move_together_by_the_numbers_of_their_inodes() {
    const FILES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(dir.path().join("disk"), 64 * MIB)).unwrap();
    let mut inodes = vec![fs.metadata("/").unwrap().ino()];
    for number in 0..FILES {
        fs.write(number.to_string(), content(5000)).unwrap();
        inodes.push(fs.metadata(number.to_string()).unwrap().ino());
    }
    // What is gone, and what is a directory, has nothing to move; even where it is the one to go on with.
    fs.remove_file("98").unwrap();
    inodes.swap(0, 99);
    let all = (FILES as u64 - 1) * 8192;
    let done = fs.move_files(&inodes, Some(1), FileBlock(7), &Budget::default()).unwrap();
    assert_eq!((done.moved, done.next, done.from, done.failed.len()), (all, inodes.len(), 0, 0));
    let traffic = fs.tiers()[0].traffic;
    assert!(traffic.writes <= 4 && traffic.written == all, "{traffic:?}");
    // Back, by somebody who has little time.
    let (mut moved, mut next, mut from) = (0, 0, 0);
    while next < inodes.len() {
        let done = fs
            .move_files(&inodes[next..], None, FileBlock(from), &Budget::default().unless(&|| true))
            .unwrap();
        assert!((done.next, done.from) > (0, from) && done.failed.is_empty(), "{done:?}");
        (moved, next, from) = (moved + done.moved, next + done.next, done.from);
    }
    assert_eq!(moved, all);
    // Who fails is told of by its place: one is mapped.
    let mapped = FileOptions::new().read(true).write(true).open(&fs, "41").unwrap();
    let mapping = mapped.map(0..4096).unwrap();
    let done = fs.move_files(&inodes, Some(1), FileBlock(0), &Budget::default()).unwrap();
    assert_eq!((done.moved, done.next, done.failed.len()), (all - 8192, inodes.len(), 1));
    assert_eq!((done.failed[0].0, done.failed[0].1.kind()), (42, Kind::Busy));
    drop(mapping);
    drop(mapped);
    // Where nothing can go there, nothing else is said of each.
    let kind = |to| fs.move_files(&inodes, Some(to), FileBlock(0), &Budget::default()).unwrap_err().kind();
    assert_eq!(kind(2), Kind::InvalidInput);
    fs.detach_tier(1).unwrap();
    assert_eq!(kind(1), Kind::DeviceLost);
    fs.attach_tier(&device(dir.path().join("disk"))).unwrap();
    for number in (0..FILES).filter(|number| *number != 98) {
        assert!(fs.read(number.to_string()).unwrap() == content(5000), "file {number}");
    }
    fs.close().unwrap();
}

/// While memory has room they stay there, but in TPFS: what was accepted before somebody changed that is written so, too.
#[test]
fn large_writes_stay_on_memory_that_has_room() {
    let dir = tempfile::tempdir().unwrap();
    let made = MkfsOptions { preset: Preset::Nacre, ..MkfsOptions::with_size(64 * MIB) };
    let fs = FileSystem::create(dir.path().join("pm"), &made, &OpenOptions::default()).unwrap();
    fs.add_tier(&new(dir.path().join("disk"), 256 * MIB)).unwrap();
    let piece = content(512 << 10);
    let write = |name| {
        (0..8).for_each(|_| fs.write(name, &piece).unwrap());
        fs.sync().unwrap();
        assert!(fs.read(name).unwrap() == piece);
        places(&fs, name)
    };
    assert_eq!(write("room"), [0]);
    let always = TierSettings { disk_threshold: Some(0), ..TierSettings::default() };
    fs.set_tiers(&always).unwrap();
    assert_eq!(write("said"), [1]);
    fs.set_tiers(&TierSettings::default()).unwrap();
    assert_eq!(write("said"), [0]);
}

/// Pieces that a file is appended to in, and a file that is rewritten as a whole: from the sixth write on they are for disk.
/// What is synchronised soon stays on memory, as small writes do.
#[test]
fn large_writes_that_nobody_waits_for_go_to_disk_at_once() {
    for preset in [Preset::Tpfs, Preset::Nacre] {
        let dir = tempfile::tempdir().unwrap();
        let made = MkfsOptions { preset, ..MkfsOptions::with_size(64 * MIB) };
        let path = dir.path().join("pm");
        let tier_settings = TierSettings { disk_threshold: Some(0), ..TierSettings::default() };
        let options = OpenOptions { tier_settings, ..OpenOptions::default() };
        let fs = FileSystem::create(&path, &made, &options).unwrap();
        fs.add_tier(&new(dir.path().join("disk"), 256 * MIB)).unwrap();
        let piece = content(512 << 10);
        let (log, mail) = (fs.create_file("log").unwrap(), fs.create_file("mail").unwrap());
        for number in 0..8 {
            log.write_at(&piece, number * piece.len() as u64).unwrap();
            fs.write("whole", &piece).unwrap();
            mail.write_at(&piece, number * piece.len() as u64).unwrap();
            mail.sync_all().unwrap();
        }
        fs.sync().unwrap();
        assert_eq!((places(&fs, "log"), places(&fs, "whole")), (vec![0, 1], vec![1]), "{preset}");
        assert_eq!(places(&fs, "mail"), [0], "{preset}");
        let status = fs.mover_status().unwrap();
        assert_eq!((status.synchronicity_right, status.synchronicity_wrong), (7, 0), "{preset}");
        log.write_at(b"small", 3_000_000).unwrap();
        fs.set_xattr("whole", nacre::PIN, b"1", nacre::XattrMode::Set).unwrap();
        fs.write("whole", &piece).unwrap();
        drop((log, mail));
        fs.close().unwrap();
        let fs = FileSystem::open(&path, &OpenOptions::default()).unwrap();
        let mut logged = piece.repeat(8);
        logged[3_000_000..3_000_005].copy_from_slice(b"small");
        assert!(fs.read("log").unwrap() == logged && fs.read("whole").unwrap() == piece);
        assert!(fs.read("mail").unwrap() == piece.repeat(8));
        assert_eq!(places(&fs, "whole"), [0], "{preset}: it is pinned");
        fs.close().unwrap();
    }
}

#[test]
fn what_is_on_a_tier_that_is_missing_fails_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (pm, disk) = (dir.path().join("pm"), dir.path().join("disk"));
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(disk.clone(), 64 * MIB)).unwrap();
    for name in ["here", "there"] {
        fs.write(name, content(100_000)).unwrap();
    }
    fs.demote("there", 1).unwrap();
    fs.close().unwrap();
    let away = dir.path().join("elsewhere");
    std::fs::create_dir(&away).unwrap();
    let moved = away.join("other-name");
    std::fs::rename(&disk, &moved).unwrap();
    let fs = FileSystem::open(&pm, &options()).unwrap();
    assert!(fs.read("here").unwrap() == content(100_000));
    let error = fs.read("there").unwrap_err();
    assert_eq!(error.kind(), Kind::DeviceLost);
    assert!(error.to_string().contains("tier 1"), "{error}");
    assert!(fs.tiers()[0].missing.is_some());
    fs.write("new", content(5000)).unwrap();
    // It is known by what it is, not by where.
    assert_eq!(fs.attach_tier(&device(moved.clone())).unwrap(), 1);
    assert!(fs.read("there").unwrap() == content(100_000));
    fs.detach_tier(1).unwrap();
    assert_eq!(fs.read("there").unwrap_err().kind(), Kind::DeviceLost);
    fs.close().unwrap();
    let given = OpenOptions { tiers: vec![device(moved)], ..options() };
    let fs = FileSystem::open(&pm, &given).unwrap();
    assert!(fs.read("there").unwrap() == content(100_000));
    fs.close().unwrap();
    let fs = FileSystem::open(&pm, &OpenOptions { read_only: true, ..given }).unwrap();
    assert!(fs.read("there").unwrap() == content(100_000));
    assert_eq!(fs.demote("here", 1).unwrap_err().kind(), Kind::ReadOnly);
}

/// A check said nothing of tiers: that one was an older copy, or had lost a copy of its superblock, showed when it was mounted.
#[test]
fn a_check_says_whether_devices_are_its_tiers() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (pm, disk, older) = (path("pm"), path("disk"), path("older"));
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(disk.clone(), 64 * MIB)).unwrap();
    let check = |pm: &Path, tier: &Path, repair: Repair| {
        nacre::check(pm, repair, &CheckOptions { tiers: vec![tier.to_owned()], ..CheckOptions::default() })
    };
    assert_eq!(check(&pm, &disk, Repair::None).unwrap_err().kind(), Kind::Busy);
    fs.close().unwrap();
    std::fs::copy(&disk, &older).unwrap();
    FileSystem::open(&pm, &options()).unwrap().close().unwrap();
    assert!(check(&pm, &disk, Repair::All).unwrap().problems.is_empty());

    // A copy that is damaged is written from the other, and when nothing is to be changed, nothing is.
    let whole = std::fs::read(&disk).unwrap();
    for (at, copy) in [(50, "the first copy"), (whole.len() - 4096 + 50, "the last copy")] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&disk, &bytes).unwrap();
        let report = check(&pm, &disk, Repair::None).unwrap();
        let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
        assert!(problem.what.contains("tier 1") && problem.what.contains(copy), "{problem:?}");
        assert!(problem.repair.is_some() && !problem.loses && !report.is_sound());
        assert!(std::fs::read(&disk).unwrap() == bytes);
        let report = check(&pm, &disk, Repair::Safe).unwrap();
        assert!(report.is_sound() && report.is_repaired(), "{:?}", report.problems);
        assert!(std::fs::read(&disk).unwrap() == whole);
    }

    // What cannot be repaired is left alone, and it is said what can be done.
    let (short, none, others) = (path("short"), path("none"), path("others"));
    std::fs::write(&short, &whole[..8 * MIB as usize]).unwrap();
    std::fs::write(&none, vec![0_u8; MIB as usize]).unwrap();
    std::fs::create_dir(&others).unwrap();
    let other = create(&others, &options());
    other.add_tier(&new(others.join("disk"), 64 * MIB)).unwrap();
    other.close().unwrap();
    for (tier, why, advice) in [
        (older, "not used together", "older copy"),
        (short, "it has 8 MiB, and the tier 64 MiB", "restore its size"),
    ] {
        let before = std::fs::read(&tier).unwrap();
        let report = check(&pm, &tier, Repair::All).unwrap();
        let [problem] = &report.problems[..] else { panic!("{why}: {:?}", report.problems) };
        assert!(problem.what.contains(why) && problem.advice.unwrap().contains(advice), "{problem:?}");
        assert!(problem.repair.is_none() && !report.is_sound() && std::fs::read(&tier).unwrap() == before);
    }
    // A path that is no tier of it is a mistake of the caller, and not damage; nothing is checked or repaired before
    // that.
    let removed = path("removed");
    let fs = FileSystem::open(&pm, &options()).unwrap();
    assert_eq!(fs.add_tier(&new(removed.clone(), 64 * MIB)).unwrap(), 2);
    let bytes = std::fs::read(&removed).unwrap();
    fs.remove_tier(2).unwrap();
    fs.close().unwrap();
    std::fs::write(&removed, bytes).unwrap();
    for (tier, why) in [
        (none, "it is no tier"),
        (others.join("disk"), "of file system"),
        (removed, "was removed from it"),
        (path("nothing"), "no such file"),
    ] {
        let error = check(&pm, &tier, Repair::All).unwrap_err();
        assert!(error.kind() != Kind::Corrupt && error.to_string().contains(why), "{error}");
    }
    let twice = CheckOptions { tiers: vec![disk.clone(), disk.clone()], ..CheckOptions::default() };
    let error = nacre::check(&pm, Repair::None, &twice).unwrap_err();
    assert!(error.to_string().contains("is given twice"), "{error}");
    // Those of which nobody said where they are were not looked at.
    let report = nacre::check(&pm, Repair::None, &CheckOptions::default()).unwrap();
    let unchecked = UncheckedTier { number: 1, last: Some(disk.clone()) };
    assert_eq!(report.tiers_not_checked, [unchecked]);
    assert!(check(&pm, &disk, Repair::None).unwrap().tiers_not_checked.is_empty());
    let inplace = path("inplace");
    let make = MkfsOptions { preset: Preset::Pmfs, ..MkfsOptions::with_size(64 * MIB) };
    nacre::mkfs(&inplace, &make).unwrap();
    assert_eq!(check(&inplace, &disk, Repair::None).unwrap_err().kind(), Kind::InvalidInput);
}

/// While any tier was missing, nobody was told that another device was lost.
#[test]
fn an_error_is_that_of_the_tier_that_is_missing_or_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let fs = create(dir.path(), &options());
    for number in 1..=2 {
        assert_eq!(fs.add_tier(&new(dir.path().join(format!("disk-{number}")), 64 * MIB)).unwrap(), number);
        fs.write(number.to_string(), content(100_000)).unwrap();
        fs.demote(number.to_string(), number).unwrap();
    }
    let error_of = |number: u8| {
        fs.detach_tier(number).unwrap();
        fs.read(number.to_string()).unwrap_err()
    };
    let second = error_of(2);
    assert!(fs.is_of_missing_tier(&second));
    fs.attach_tier(&device(dir.path().join("disk-2"))).unwrap();
    assert!(!fs.is_of_missing_tier(&second), "it is there again");
    let first = error_of(1);
    assert!(fs.is_of_missing_tier(&first) && !fs.is_of_missing_tier(&second));
    // Its device is gone and it is not known to be missing; and a tier with a number that begins like that of another.
    for object in ["read of 4096 bytes at 8192 of /dev/sdb", "tier 12: it is not attached"] {
        assert!(!fs.is_of_missing_tier(&nacre::Error::new(Kind::DeviceLost).object(object)), "{object}");
    }
    let other = nacre::Error::new(Kind::Media).object(first.object_name());
    assert!(!fs.is_of_missing_tier(&other), "it fails, and is there");
    fs.close().unwrap();
}

#[test]
fn an_older_copy_and_another_file_systems_tier_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (pm, disk, copy) = (dir.path().join("pm"), dir.path().join("disk"), dir.path().join("copy"));
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(disk.clone(), 64 * MIB)).unwrap();
    fs.write("file", content(100_000)).unwrap();
    fs.close().unwrap();
    std::fs::copy(&disk, &copy).unwrap();
    let pm_copy = dir.path().join("pm-copy");
    std::fs::copy(&pm, &pm_copy).unwrap();
    let fs = FileSystem::open(&pm, &options()).unwrap();
    fs.demote("file", 1).unwrap();
    fs.close().unwrap();
    std::fs::rename(&disk, dir.path().join("newer")).unwrap();
    let given = |path: &Path| OpenOptions { tiers: vec![device(path.to_owned())], ..options() };
    let error = FileSystem::open(&pm, &given(&copy)).unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("older copy"), "{error}");
    assert!(!error.to_string().contains("damaged"), "{error}");
    // The other way round.
    let error = FileSystem::open(&pm_copy, &given(&dir.path().join("newer"))).unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("older copy"), "{error}");
    let other = dir.path().join("others");
    std::fs::create_dir(&other).unwrap();
    drop(create(&other, &options()));
    let error = FileSystem::open(other.join("pm"), &given(&dir.path().join("newer"))).unwrap_err();
    assert!(
        error.kind() == Kind::InvalidInput && error.to_string().contains("another file system"),
        "{error}"
    );
    let fs = FileSystem::open(&pm, &options()).unwrap();
    assert!(fs.read("file").unwrap() == content(100_000));
}

/// Both had the number that this mount had chosen: the copy was taken, and what had moved since was read as it had been before.
#[test]
fn a_copy_that_was_made_under_the_mount_is_an_older_one() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, copy) = (dir.path().join("disk"), dir.path().join("copy"));
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(disk.clone(), 64 * MIB)).unwrap();
    fs.write("file", content(100_000)).unwrap();
    std::fs::copy(&disk, &copy).unwrap();
    fs.demote("file", 1).unwrap();
    for given in [&copy, &disk] {
        let error = fs.attach_tier(&device(given.clone())).unwrap_err();
        assert!(error.kind() == Kind::Busy && error.to_string().contains("offline first"), "{error}");
        assert!(fs.read("file").unwrap() == content(100_000));
    }
    fs.detach_tier(1).unwrap();
    let error = fs.attach_tier(&device(copy.clone())).unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("older copy"), "{error}");
    assert_eq!(fs.attach_tier(&device(disk.clone())).unwrap(), 1);
    assert!(fs.read("file").unwrap() == content(100_000));
    // So is one that was made while it was offline, once it is used again.
    fs.detach_tier(1).unwrap();
    std::fs::copy(&disk, &copy).unwrap();
    assert_eq!(fs.attach_tier(&device(disk)).unwrap(), 1);
    fs.detach_tier(1).unwrap();
    assert_eq!(fs.attach_tier(&device(copy)).unwrap_err().kind(), Kind::Corrupt);
}

/// The line of fstab names where the tier is, and the disk was pulled out.
#[test]
fn a_tier_that_is_not_where_it_is_said_to_be_keeps_nothing_from_being_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let (pm, disk) = (dir.path().join("pm"), dir.path().join("disk"));
    let fs = create(dir.path(), &options());
    let given = OpenOptions { tiers: vec![device(dir.path().join("gone"))], ..options() };
    fs.close().unwrap();
    let error = FileSystem::open(&pm, &given).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "it has no tiers: {error}");
    let fs = FileSystem::open(&pm, &options()).unwrap();
    fs.add_tier(&new(disk.clone(), 64 * MIB)).unwrap();
    for name in ["here", "there"] {
        fs.write(name, content(100_000)).unwrap();
    }
    fs.demote("there", 1).unwrap();
    fs.close().unwrap();
    // It is found where it is.
    let fs = FileSystem::open(&pm, &given).unwrap();
    assert!(fs.read("there").unwrap() == content(100_000));
    fs.close().unwrap();
    std::fs::rename(&disk, dir.path().join("not-found").with_extension("away")).unwrap();
    std::fs::create_dir(dir.path().join("away")).unwrap();
    std::fs::rename(dir.path().join("not-found.away"), dir.path().join("away/disk")).unwrap();
    let fs = FileSystem::open(&pm, &given).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    fs.on_tiers(move |what| tell.lock().unwrap().push(what.to_owned()));
    assert!(told.lock().unwrap().iter().any(|what| what.contains("gone")), "{told:?}");
    assert!(fs.read("here").unwrap() == content(100_000));
    assert_eq!(fs.read("there").unwrap_err().kind(), Kind::DeviceLost);
}

/// What it was found to hold lay behind the end that it has now.
#[test]
fn a_file_that_was_a_tier_becomes_a_smaller_one() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(disk.clone(), 64 * MIB)).unwrap();
    fs.close().unwrap();
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let fs = create(&other, &options());
    assert_eq!(fs.add_tier(&NewTier { force: true, ..new(disk.clone(), 32 * MIB) }).unwrap(), 1);
    fs.close().unwrap();
    let make = MkfsOptions { size: Some(16 * MIB), force: true, ..MkfsOptions::default() };
    nacre::mkfs(&disk, &make).unwrap();
}

/// Its file was cut under whoever had it mapped before it was told that somebody has it.
#[test]
fn what_somebody_uses_does_not_get_another_size() {
    let dir = tempfile::tempdir().unwrap();
    let (pm, disk) = (dir.path().join("pm"), dir.path().join("disk"));
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(disk.clone(), 64 * MIB)).unwrap();
    fs.write("file", content(100_000)).unwrap();
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let others = create(&other, &options());
    let sizes = || [&pm, &disk].map(|path| std::fs::metadata(path).unwrap().len());
    let before = sizes();
    for (path, size) in [(&pm, 2 * MIB), (&disk, 2 * MIB), (&pm, 1 << 30)] {
        let forced = NewTier { force: true, ..new(path.clone(), size) };
        let error = others.add_tier(&forced).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        let make = MkfsOptions { size: Some(size), force: true, ..MkfsOptions::default() };
        let error = nacre::mkfs(path, &make).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        let error = nacre::would_make(path, &make).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        let error = others.would_add_tier(&forced).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        assert_eq!(sizes(), before);
    }
    // Where one of several is refused, the others are as they were.
    let unused = dir.path().join("unused");
    std::fs::write(&unused, [b'x'; 8192]).unwrap();
    let tier = NewTier { force: true, ..new(unused.clone(), 2 * MIB) };
    let make = MkfsOptions { size: Some(2 * MIB), force: true, tiers: vec![tier], ..MkfsOptions::default() };
    assert_eq!(nacre::mkfs(&pm, &make).unwrap_err().kind(), Kind::Busy);
    assert_eq!(std::fs::read(&unused).unwrap(), [b'x'; 8192]);
    assert!(fs.read("file").unwrap() == content(100_000));
}

#[test]
fn a_tier_is_drained_before_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(dir.path().join("disk"), 64 * MIB)).unwrap();
    fs.create_dir("d").unwrap();
    for name in ["one", "d/two"] {
        fs.write(name, content(300_000)).unwrap();
        fs.demote(name, 1).unwrap();
    }
    let error = fs.remove_tier(1).unwrap_err();
    assert!(error.kind() == Kind::Busy && error.to_string().contains("drain"), "{error}");
    let marks = nacre::signatures(dir.path().join("disk")).unwrap();
    let places: Vec<_> = marks.iter().map(|mark| (mark.name, mark.offset)).collect();
    let name = "a tier of a nacre file system";
    assert_eq!(places, [(name, 0), (name, 64 * MIB - 4096)], "either end names it");
    // Interrupted, and begun again.
    let step = || fs.drain_tier(1, &Budget::default().unless(&|| true)).unwrap();
    assert!(!step().is_done && fs.tiers()[0].draining);
    fs.use_tier(1).unwrap();
    assert!(!fs.tiers()[0].draining);
    let mut steps = 0;
    loop {
        let drained = step();
        assert_eq!(drained.moved + drained.left, 2 * 303_104);
        if drained.is_done {
            break;
        }
        steps += 1;
    }
    assert_eq!(steps, 4, "two directories and two files");
    fs.remove_tier(1).unwrap();
    assert!(fs.tiers().is_empty());
    assert!(nacre::signatures(dir.path().join("disk")).unwrap().is_empty(), "the device is nobody's");
    for name in ["one", "d/two"] {
        assert!(fs.read(name).unwrap() == content(300_000));
    }
    fs.close().unwrap();
    let fs = FileSystem::open(dir.path().join("pm"), &options()).unwrap();
    assert!(fs.read("d/two").unwrap() == content(300_000));
}

#[test]
fn what_holds_something_becomes_no_tier_by_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let fs = create(dir.path(), &options());
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    drop(create(&other, &options()));
    let taken = NewTier { size: None, ..new(other.join("pm"), 0) };
    let error = fs.add_tier(&taken).unwrap_err();
    assert!(error.kind() == Kind::Exists && error.to_string().contains("nacre file system"), "{error}");
    let text = dir.path().join("text");
    std::fs::write(&text, vec![b'x'; 2 << 20]).unwrap();
    let error = fs.add_tier(&NewTier { size: None, ..new(text, 0) }).unwrap_err();
    assert_eq!(error.kind(), Kind::Exists);
    assert_eq!(fs.add_tier(&new(dir.path().join("small"), 4096)).unwrap_err().kind(), Kind::InvalidInput);
    assert!(!dir.path().join("small").exists(), "the file that was made for it is gone");
    assert_eq!(fs.add_tier(&NewTier { force: true, ..taken }).unwrap(), 1);
    let inplace = MkfsOptions { preset: Preset::Pmfs, ..MkfsOptions::with_size(32 * MIB) };
    let fs = FileSystem::create(dir.path().join("pmfs"), &inplace, &options()).unwrap();
    let error = fs.add_tier(&new(dir.path().join("disk"), 64 * MIB)).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
}

/// Nobody asks for it: what is cold goes down while the rest is written.
#[test]
fn cold_files_move_down_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(dir.path().join("disk"), 256 * MIB)).unwrap();
    for number in 0..120u8 {
        fs.write(format!("{number}"), vec![number; 1 << 20]).unwrap();
    }
    let has_moved = |path: &str| places(&fs, path).contains(&1);
    let begin = std::time::Instant::now();
    while !has_moved("0") && begin.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(has_moved("0") && !has_moved("119"), "the oldest is on the tier, the newest is not");
    for number in 0..120u8 {
        assert!(fs.read(format!("{number}")).unwrap() == vec![number; 1 << 20], "{number}");
    }
    fs.close().unwrap();
}

/// Setting the attribute asks for it, and the mover does it by itself.
#[test]
fn the_attribute_of_a_file_says_where_it_is_and_where_to_go() {
    let dir = tempfile::tempdir().unwrap();
    let fs = create(dir.path(), &options());
    fs.write("file", content(5_000_000)).unwrap();
    let set = |value: &str| fs.set_xattr("file", nacre::TIER, value.as_bytes(), nacre::XattrMode::Set);
    assert_eq!(fs.get_xattr("file", nacre::TIER).unwrap_err().kind(), Kind::NoAttribute, "without tiers");
    assert_eq!(set("pm").unwrap_err().kind(), Kind::Unsupported);
    fs.add_tier(&new(dir.path().join("disk"), 64 * MIB)).unwrap();
    let uuid = fs.tiers()[0].uuid.clone();
    for (asked, then) in [("1", "1"), ("pm", "pm"), (uuid.as_str(), "1")] {
        set(asked).unwrap();
        let begin = std::time::Instant::now();
        while fs.mover_status().unwrap().told > 0 && begin.elapsed().as_secs() < 20 {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(fs.get_xattr("file", nacre::TIER).unwrap(), then.as_bytes(), "{asked}");
        assert!(fs.list_xattrs("file").unwrap().is_empty());
    }
    let error = set("2").unwrap_err();
    assert!(error.kind() == Kind::InvalidInput && error.to_string().contains("give pm, or"), "{error}");
    assert!(fs.mover_status().unwrap().refused.unwrap().contains("give pm, or"));
    fs.write("empty", []).unwrap();
    assert_eq!(fs.get_xattr("empty", nacre::TIER).unwrap(), b"", "it has no data");
    assert!(fs.read("file").unwrap() == content(5_000_000));
    fs.close().unwrap();
}

fn caching(cache: Option<u64>) -> TierSettings {
    TierSettings { cache, ..TierSettings::default() }
}

/// What is read from tiers is kept in as much DRAM as was said, and no layout takes what it cannot have.
#[test]
fn what_is_read_from_tiers_is_kept_within_what_was_asked_for() {
    for (asked, most) in [(None, 64 * MIB), (Some(MIB), MIB)] {
        let dir = tempfile::tempdir().unwrap();
        let fs = create(dir.path(), &OpenOptions { tier_settings: caching(asked), ..options() });
        fs.add_tier(&new(dir.path().join("disk"), 64 * MIB)).unwrap();
        let bytes = content(8 * MIB as usize);
        fs.write("large", &bytes).unwrap();
        fs.demote("large", 1).unwrap();
        assert!(fs.read("large").unwrap() == bytes);
        let cached = fs.mover_status().unwrap().cached;
        // It is kept in chunks of 64 KiB, of which the first and the last may hold other blocks, too.
        assert!(cached > 0 && cached <= most.min(8 * MIB + (128 << 10)), "{asked:?}: {cached}");
        fs.close().unwrap();
    }
    for (preset, asked, why) in [
        (Preset::Nova, MIB - 1, "1 MiB to 1 TiB"),
        (Preset::Nova, (1 << 40) + 1, "1 MiB to 1 TiB"),
        (Preset::Pmfs, MIB, "settings of tiers on the layout inplace"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let make = MkfsOptions { preset, ..MkfsOptions::with_size(64 * MIB) };
        let asked = OpenOptions { tier_settings: caching(Some(asked)), ..options() };
        let error = FileSystem::create(dir.path().join("pm"), &make, &asked).unwrap_err();
        assert!(error.kind() == Kind::InvalidInput && error.to_string().contains(why), "{error}");
    }
}

/// All at once or, when one of them cannot be had, none.
#[test]
fn settings_of_tiers_change_while_they_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(dir.path().join("disk"), 64 * MIB)).unwrap();
    let bytes = content(8 * MIB as usize);
    fs.write("large", &bytes).unwrap();
    let writes_of_demotion = || {
        let before = fs.tiers()[0].traffic.writes;
        fs.demote("large", 1).unwrap();
        fs.tiers()[0].traffic.writes - before
    };
    let cached = || {
        assert!(fs.read("large").unwrap() == bytes);
        fs.mover_status().unwrap().cached
    };
    let at_once = writes_of_demotion();
    assert!(at_once < 128 && cached() >= 8 * MIB, "{at_once}");
    fs.set_tiers(&TierSettings { group: Some(64 << 10), ..caching(Some(MIB)) }).unwrap();
    assert_eq!(fs.mover_status().unwrap().cache_size, MIB);
    assert!(cached() <= MIB, "what is too much goes");
    let wrong = TierSettings { group: Some(5000), ..caching(Some(32 * MIB)) };
    assert_eq!(fs.set_tiers(&wrong).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(fs.mover_status().unwrap().cache_size, MIB, "nothing of it was taken up");
    fs.promote("large").unwrap();
    assert_eq!(writes_of_demotion(), 128, "8 MiB in pieces of 64 KiB");
    // What is not said is as usual again.
    fs.set_tiers(&TierSettings::default()).unwrap();
    assert_eq!(fs.mover_status().unwrap().cache_size, 64 * MIB);
    fs.close().unwrap();
    let inplace = MkfsOptions { preset: Preset::Pmfs, ..MkfsOptions::with_size(32 * MIB) };
    let fs = FileSystem::create(dir.path().join("pmfs"), &inplace, &options()).unwrap();
    assert_eq!(fs.set_tiers(&caching(Some(MIB))).unwrap_err().kind(), Kind::Unsupported);
}

/// A tier is pulled out and put back, 50 times, while files are written, read and moved. What is on it fails while it is away;
/// what was acknowledged is there, wherever it is, once it is back.
#[test]
fn a_tier_that_is_pulled_out_again_and_again_loses_nothing() {
    const FILES: usize = 12;
    const SIZE: usize = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let fs = create(dir.path(), &options());
    fs.add_tier(&new(disk.clone(), 64 * MIB)).unwrap();
    let bytes = |file: usize, version: u32| -> Vec<u8> {
        (0..SIZE).map(|at| (at / 512 + 7 * file + 31 * version as usize) as u8).collect()
    };
    for file in 0..FILES {
        fs.write(file.to_string(), bytes(file, 0)).unwrap();
    }
    let ends = AtomicBool::new(false);
    let (failed, moved) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // While it is away.
    let is_away = |error: &nacre::Error| error.kind() == Kind::DeviceLost;
    let versions: Vec<u32> = std::thread::scope(|scope| {
        let user = |first: usize| {
            let mut versions = vec![0; FILES];
            let mut random = 0x9e37_79b9_u32.wrapping_mul(first as u32 + 1);
            while !ends.load(Ordering::Relaxed) {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let file = first + 2 * ((random >> 16) as usize % (FILES / 2));
                let handle = fs.open_file(file.to_string()).unwrap();
                if random >> 28 < 4 {
                    let version = versions[file] + 1;
                    let mut opened = nacre::FileOptions::new();
                    let handle = opened.write(true).open(&fs, file.to_string()).unwrap();
                    match handle.write_at(&bytes(file, version), 0) {
                        Ok(count) => {
                            assert_eq!(count, SIZE, "a write is whole");
                            versions[file] = version;
                        }
                        // Its last block has a part that is on the tier: nothing was written.
                        Err(error) => {
                            assert!(is_away(&error), "{error}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                match handle.read_all() {
                    Ok(found) => assert!(found == bytes(file, versions[file]), "file {file}"),
                    Err(error) => {
                        assert!(is_away(&error), "{error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            versions
        };
        let users = [0, 1].map(|first| scope.spawn(move || user(first)));
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for file in 0..FILES {
                    let done = [fs.demote(file.to_string(), 1), fs.promote(file.to_string())];
                    moved.fetch_add(
                        done.iter().filter(|done| matches!(done, Ok(1..))).count(),
                        Ordering::Relaxed,
                    );
                }
            }
        });
        for round in 0..2000 {
            // On a busy machine it may be away only while nobody needs it.
            let has_shown = [&failed, &moved].iter().all(|count| count.load(Ordering::Relaxed) > 0);
            if round >= 50 && has_shown {
                break;
            }
            std::thread::sleep(Duration::from_micros(500 + 137 * (round * 7 % 50)));
            fs.detach_tier(1).unwrap();
            std::thread::sleep(Duration::from_micros(100 + 91 * (round * 11 % 50)));
            // Who uses the device still has it for a moment.
            while let Err(error) = fs.attach_tier(&device(disk.clone())) {
                assert_eq!(error.kind(), Kind::Busy, "{error}");
                std::thread::yield_now();
            }
        }
        ends.store(true, Ordering::Relaxed);
        let [even, odd] = users.map(|user| user.join().unwrap());
        even.into_iter().zip(odd).map(|(even, odd)| even.max(odd)).collect()
    });
    println!("{failed:?} operations failed, {moved:?} moves, versions {versions:?}");
    assert!(failed.into_inner() > 0 && moved.into_inner() > 0);
    let check = |fs: &FileSystem| {
        for (file, version) in versions.iter().enumerate() {
            assert!(fs.read(file.to_string()).unwrap() == bytes(file, *version), "file {file}");
        }
    };
    check(&fs);
    fs.close().unwrap();
    let report = nacre::check(dir.path().join("pm"), nacre::Repair::None, &Default::default()).unwrap();
    assert!(report.is_sound(), "{report:?}");
    let fs = FileSystem::open(dir.path().join("pm"), &options()).unwrap();
    check(&fs);
}
