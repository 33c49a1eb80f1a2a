//! Disks that fail under a mount: one that takes nothing any more, and one that is cut short. What is on them fails, or is read
//! as it was; everything else works, and nothing hangs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::mount::MountFlags;

use crate::harness::{Ground, Tmpfs, bounded, can_mount, nacre, run, scratch, succeed, text};
use crate::tiers::{LIMIT, MIB, assert_content, content, json, places, refused, said, tiers, write};

/// Presets and options: without a write buffer and with one, which also writes to disks itself.
const MOUNTS: [(&str, Option<&str>); 2] =
    [("nova", None), ("nacre", Some("buffer=2M,tune=emulate:latency=100,tune=disk_threshold:0"))];

/// Writes a file and makes it durable; an error says that it may not be.
fn put(path: &Path, number: usize) -> io::Result<()> {
    let path = path.to_owned();
    bounded("a write", move || {
        let mut file = File::create(path)?;
        // In pieces, as what is large and stable is written.
        content(number).chunks(MIB / 16).try_for_each(|piece| file.write_all(piece))?;
        file.sync_all()
    })
}

fn get(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    bounded("a read", move || fs::read(path))
}

fn is_eio<T>(result: &io::Result<T>) -> bool {
    result.as_ref().err().and_then(io::Error::raw_os_error) == Some(libc::EIO)
}

/// Fills what is left of a file system.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let piece = vec![1; MIB];
    for len in [MIB, 4096] {
        while file.write_all(&piece[..len]).is_ok() {}
    }
}

fn failing(dir: &Path) -> Option<String> {
    tiers(dir)[0]["failing"].as_str().map(str::to_owned)
}

/// How often the log says something.
fn told(ground: &Ground, what: &str) -> usize {
    ground.mount_log().matches(what).count()
}

#[test]
fn a_disk_without_space_takes_nothing_and_loses_nothing() {
    if !can_mount("a tier on a full file system") {
        return;
    }
    for (preset, options) in MOUNTS {
        nothing_is_lost_on_a_full_disk(preset, options);
    }
}

fn nothing_is_lost_on_a_full_disk(preset: &str, options: Option<&str>) {
    let place = Tmpfs::new("32M");
    let mut ground = Ground::preset(preset, "64M", options);
    let (dir, disk) = (ground.dir(), place.path().join("disk"));
    json("tier add --size 256M", &[&dir, &disk]);
    // From the next mount on.
    let option = format!("tier={}", disk.display());
    ground.set_options(Some(&options.map_or(option.clone(), |options| format!("{options},{option}"))));
    write(&dir, 0..8);
    for number in 0..8 {
        json("demote", &[dir.join(number.to_string())]);
    }
    // Nobody else has it from now on.
    let hog = place.path().join("hog");
    fill(&hog);

    put(&dir.join("8"), 8).unwrap();
    let (output, words) = said("demote", &[&dir.join("8")]);
    assert_eq!(output.status.code(), Some(1), "{preset}: {words}");
    assert!(failing(&dir).is_some(), "{preset}: {}", tiers(&dir)[0]);
    assert_eq!(places(&dir.join("8")), [0], "{preset}");
    assert_content(&dir, 0..9);

    // Until memory is full: who wants more is told, and has what was there before.
    let mut end = 9;
    while end < 200 {
        match put(&dir.join(end.to_string()), end) {
            Ok(()) => end += 1,
            Err(error) => {
                let number = error.raw_os_error();
                assert!(matches!(number, Some(libc::ENOSPC | libc::EIO)), "{preset}: file {end}: {error}");
                break;
            }
        }
    }
    assert!((20..80).contains(&end), "{preset}: {end} files of 1 MiB in 64 MiB");
    let _ = fs::remove_file(dir.join(end.to_string()));
    assert_content(&dir, 0..end);
    // What needs no room, or makes some, works.
    fs::rename(dir.join("9"), dir.join("renamed")).unwrap();
    fs::rename(dir.join("renamed"), dir.join("9")).unwrap();
    fs::remove_file(dir.join("0")).unwrap();
    fs::remove_file(dir.join("10")).unwrap();
    put(&dir.join("10"), 10).unwrap();
    let (output, words) = said("tier drain", &[&dir, Path::new("1")]);
    assert!(!output.status.success(), "{preset}: there is no other place: {words}");
    json("tier drain --cancel", &[&dir, Path::new("1")]);
    assert_eq!(told(&ground, "tier 1 is failing"), 1, "{preset}: {}", ground.mount_log());

    // Whatever was acknowledged is there after a crash, and after an unmount, too.
    ground.kill();
    ground.mount();
    assert_content(&dir, 1..end);
    ground.remount();
    assert_content(&dir, 1..end);
    // It cannot even be written to that this mount uses it: the mount fails with it no more than later.
    json("mover pause", &[&dir]);
    let is_here = |number: &usize| places(&dir.join(number.to_string())) == [0];
    let here: Vec<usize> = (9..end).filter(is_here).collect();
    assert!(here.len() > 10, "{preset}: {here:?}");
    ground.unmount();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(File::options().write(true).open(&disk).unwrap(), hole, 0, 4096).unwrap();
    let more = place.path().join("more");
    fill(&more);
    ground.mount();
    assert!(tiers(&dir)[0]["missing"].as_str().is_some_and(|why| why.contains("no space")), "{preset}");
    assert!(is_eio(&get(&dir.join("1"))), "{preset}");
    here.into_iter().for_each(|number| assert_content(&dir, number..number + 1));
    fs::remove_file(&more).unwrap();
    json("tier online", &[&dir, &disk]);
    assert_content(&dir, 1..end);

    // It has space again: that shows by itself, and what found none before does now.
    fs::remove_file(&hog).unwrap();
    rustix::mount::mount_remount(place.path(), MountFlags::empty(), c"size=512M").unwrap();
    fill_up_to(&dir, end..end + 10, preset);
    let begun = Instant::now();
    while let Some(why) = failing(&dir) {
        assert!(begun.elapsed() < LIMIT, "{preset}: {why}");
        std::thread::sleep(Duration::from_millis(200));
        let _ = said("demote", &[&dir.join("8")]);
    }
    assert_content(&dir, 1..end + 10);
    ground.kill();
    ground.mount();
    assert_content(&dir, 1..end + 10);
    ground.unmount();
    ground.fsck();
    let checked = succeed(nacre().args(["fsck", "-n", "--tier"]).arg(&disk).arg(ground.image()), LIMIT);
    assert!(!checked.contains("tier 1"), "{preset}: {checked}");
}

/// It was lost, with a word in the log of the server only.
#[test]
fn what_no_disk_takes_keeps_it_mounted_unless_that_is_forced() {
    if !can_mount("an unmount with nowhere to write") {
        return;
    }
    let place = Tmpfs::new("64M");
    let (disk, hog) = (place.path().join("disk"), place.path().join("hog"));
    // Nothing that waits is old for as long as this takes.
    let options = "buffer=16M,buffer_age=1000000,tune=emulate:latency=100";
    let mut ground = Ground::preset("nacre", "24M", Some(options));
    let dir = ground.dir();
    json("tier add --size 256M", &[&dir, &disk]);
    ground.set_options(Some(&format!("{options},tier={}", disk.display())));
    (0..14).for_each(|number| put(&dir.join(number.to_string()), number).unwrap());
    // More than memory has left.
    accept(&dir, 14..26);
    fill(&hog);
    let output = run(nacre().arg("umount").arg(&dir), LIMIT).unwrap();
    let words = text(&output);
    assert!(!output.status.success() && words.contains("it stays mounted"), "{words}");
    assert_content(&dir, 0..26);
    // It was dropped after three attempts, and the next unmount said nothing of it.
    let often = "remount,buffer_age=100,tune=buffer_period:100";
    succeed(nacre().args(["mount", "-o", often]).args([ground.image(), &dir]), LIMIT);
    let failures = || json("info", &[&dir])["cache"]["failures"].as_u64().unwrap();
    let before = failures();
    crate::harness::until("it is tried again and again", || failures() > before + 20);
    assert_eq!(json("info", &[&dir])["cache"]["lost"].as_u64(), Some(0));
    assert_content(&dir, 0..26);

    fs::remove_file(&hog).unwrap();
    let started = Instant::now();
    while !run(nacre().arg("umount").arg(&dir), LIMIT).unwrap().status.success() {
        assert!(started.elapsed() < LIMIT, "{}", ground.mount_log());
    }
    ground.forget();
    assert!(!ground.mount_log().contains("lost"), "{}", ground.mount_log());
    ground.mount();
    assert_content(&dir, 0..26);

    json("promote", &[dir.join("14"), dir.join("15")]);
    accept(&dir, 26..38);
    fill(&hog);
    let output = run(nacre().args(["umount", "--force"]).arg(&dir), LIMIT).unwrap();
    assert!(!output.status.success() && text(&output).contains("did not end cleanly"), "{}", text(&output));
    ground.forget();
    assert!(ground.mount_log().contains("no space left"), "{}", ground.mount_log());
    fs::remove_file(&hog).unwrap();
    ground.mount();
    assert_content(&dir, 0..26);
    ground.unmount();
    ground.fsck();
}

/// Writes files, and waits for nothing.
fn accept(dir: &Path, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let path = dir.join(number.to_string());
        bounded("a write", move || fs::write(path, content(number))).unwrap();
    }
}

/// Writes files, each of which finds room sooner or later.
fn fill_up_to(dir: &Path, numbers: std::ops::Range<usize>, preset: &str) {
    for number in numbers {
        let begun = Instant::now();
        while let Err(error) = put(&dir.join(number.to_string()), number) {
            assert!(begun.elapsed() < LIMIT, "{preset}: file {number}: {error}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn what_was_cut_off_a_disk_is_an_error_and_never_zeros() {
    if !can_mount("a tier that is cut short") {
        return;
    }
    for (preset, options) in MOUNTS {
        for all in [true, false] {
            what_was_cut_off_is_lost_alone(preset, options, all);
        }
    }
}

/// All of the disk is cut off, or from the third file on.
fn what_was_cut_off_is_lost_alone(preset: &str, options: Option<&str>, all: bool) {
    let away = scratch();
    let disk = away.path().join("disk");
    let option = format!("tier={}", disk.display());
    let options = options.map_or(option.clone(), |options| format!("{options},{option}"));
    let mut ground = Ground::preset(preset, "64M", None);
    let dir = ground.dir();
    let file = |number: usize| dir.join(number.to_string());
    json("tier add --size 64M", &[&dir, &disk]);
    write(&dir, 0..8);
    for number in 0..5 {
        json("demote", &[file(number)]);
    }
    let starts = [0, 1, 2, 3, 4].map(|number| {
        let stat = json("stat", &[file(number)]);
        stat["extents"][0]["block"].as_u64().expect("a block") * 4096
    });
    assert!(starts.is_sorted(), "they lie in order: {starts:?}");
    let end = if all { 0 } else { starts[2] };
    let cut = |end| File::options().write(true).open(&disk).unwrap().set_len(end).unwrap();
    // What is in DRAM of it can still be read.
    ground.unmount();
    ground.set_options(Some(&options));
    ground.mount();
    assert_eq!(get(&file(0)).unwrap(), content(0));
    cut(end);

    let lost = |numbers: &[usize]| {
        for &number in numbers {
            let read = get(&file(number));
            assert!(is_eio(&read), "{preset}: file {number}: {:?}", read.map(|found| found.len()));
        }
    };
    lost(&[2, 3, 4]);
    match all {
        true => lost(&[1]),
        false => assert_content(&dir, 1..2),
    }
    assert_content(&dir, 5..8);
    assert!(failing(&dir).is_some(), "{preset}: {}", tiers(&dir)[0]);
    // Nothing is placed there.
    let (output, words) = said("demote", &[&file(5)]);
    assert_eq!(output.status.code(), Some(1), "{preset}: {words}");
    assert_eq!(places(&file(5)), [0], "{preset}");
    for number in 8..24 {
        put(&file(number), number).unwrap();
    }
    lost(&[2, 3, 4]);
    // A part of a block cannot be written, as the rest of it is not known; all of it can.
    let open = |number| File::options().write(true).open(file(number)).unwrap();
    let of_two = open(2);
    let part =
        bounded("a write", move || of_two.write_all_at(b"part", 4099).and_then(|()| of_two.sync_all()));
    assert!(is_eio(&part), "{preset}: {part:?}");
    let of_three = open(3);
    bounded("a write", move || of_three.write_all_at(&content(3), 0).and_then(|()| of_three.sync_all()))
        .unwrap();
    assert_eq!(get(&file(3)).unwrap(), content(3), "{preset}");
    fs::remove_file(file(4)).unwrap();
    let (output, words) = said("tier drain", &[&dir, Path::new("1")]);
    assert!(!output.status.success(), "{preset}: {words}");
    json("tier drain --cancel", &[&dir, Path::new("1")]);
    assert!(told(&ground, "tier 1 is failing") < 5, "{preset}: {}", ground.mount_log());
    // Who gives it back its size brings nothing back.
    assert_eq!(fs::metadata(&disk).unwrap().len(), end, "{preset}: nothing was written there");
    cut(64 << 20);
    lost(&[2]);
    refused("tier online", &[&dir, &disk], "offline first");
    json("tier offline", &[&dir, Path::new("1")]);
    let why = if all { "it is no tier" } else { "it was truncated, and made longer again" };
    refused("tier online", &[&dir, &disk], why);
    ground.unmount();

    let checked = |why: &str| {
        let arguments = ["fsck", "-p", "--tier"];
        let output = run(nacre().args(arguments).arg(&disk).arg(ground.image()), LIMIT).unwrap();
        assert!(!output.status.success() && text(&output).contains(why), "{preset}: {}", text(&output));
    };
    checked(why);
    cut(end);
    checked(if all { "it is empty" } else { "it was truncated" });
    ground.fsck();
    // It is missing, and that is all.
    cut(64 << 20);
    ground.set_options((!all).then_some(&*option));
    ground.mount();
    assert!(tiers(&dir)[0]["missing"].is_string(), "{preset}");
    lost(&[2]);
    assert_content(&dir, 3..4);
    assert_content(&dir, 5..24);
    ground.unmount();
    ground.fsck();
}
