//! Messages about tiers: one that is missing, a drain that cannot end, tiers that a check did not look at. No device in
//! use is overwritten, under any name.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::harness::{
    Ground, can_mount, has_program, left_out, memory, nacre, program, run, scratch, scrubbed, succeed, text,
};
use crate::tier_commands::Loop;
use crate::tiers::{LIMIT, MIB, assert_content, json, refused, said, tiers, write};

/// Mounts in the background; what it says, and whether it succeeds.
fn mount_in_background(ground: &Ground, options: &str) -> (bool, String) {
    let log = ground.beside().join("background.log");
    let options = format!("{options},log={}", log.display());
    let mut command = nacre();
    command.args(["mount", "-o", options.trim_start_matches(',')]).arg(ground.image()).arg(ground.dir());
    let output = run(&mut command, LIMIT).unwrap();
    // Standard output says that it is mounted.
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn umount(ground: &Ground) {
    succeed(nacre().arg("umount").arg(ground.dir()), LIMIT);
}

/// A tier that `tier add` took in some directory was missing after the next mount, and only a log knew.
#[test]
fn a_tier_is_found_where_it_was_and_one_that_is_missing_is_told() {
    if !can_mount("tiers that are found, or missing") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let (dir, elsewhere) = (ground.dir(), scratch());
    let (disk, other) = (elsewhere.path().join("disk"), elsewhere.path().join("other"));
    let (output, words) = said("tier add --size 64M", &[&dir, &disk]);
    assert!(output.status.success() && !words.contains("will not find"), "{words}");
    write(&dir, 0..2);
    json("demote", &[dir.join("0")]);
    ground.remount();
    assert_eq!(tiers(&dir)[0]["device"].as_str(), disk.to_str());
    assert_content(&dir, 0..2);
    ground.unmount();

    fs::rename(&disk, &other).unwrap();
    let (mounted, words) = mount_in_background(&ground, "ro");
    let last = format!("tier 1 is missing: it was not found, last it was {}", disk.display());
    assert!(mounted && words.contains(&last), "{words}");
    assert!(words.contains("mounted without tier 1: its blocks cannot be read"), "{words}");
    assert!(fs::read(dir.join("0")).is_err() && fs::read(dir.join("1")).is_ok());
    umount(&ground);
    // A mount that needs all tiers is refused.
    let (mounted, words) = mount_in_background(&ground, "tiers=all");
    assert!(!mounted && words.contains("tier 1: it was not found") && words.contains("tiers=all"), "{words}");
    assert!(fs::read_dir(&dir).unwrap().next().is_none());
    let all = format!("tiers=all,tier={}", other.display());
    // A dry run, too: it was not.
    for (options, is_taken) in [("tiers=all", false), ("tiers=found", true), (all.as_str(), true)] {
        let mut command = nacre();
        command.args(["mount", "-n", "-o", options]).arg(ground.image()).arg(&dir);
        let output = run(&mut command, LIMIT).unwrap();
        let words = text(&output);
        assert_eq!(output.status.success(), is_taken, "{options}: {words}");
        let last = format!("tier 1: it was not found, last it was {}", disk.display());
        assert!(is_taken || words.contains(&last), "{words}");
    }
    let (mounted, words) = mount_in_background(&ground, &all);
    assert!(mounted && words.is_empty(), "{words}");
    assert_content(&dir, 0..2);
    umount(&ground);
    // It is noted where it is now; an older copy where it was is told from it.
    fs::copy(&other, &disk).unwrap();
    let (mounted, words) = mount_in_background(&ground, "tiers=all");
    assert!(mounted && words.is_empty(), "{words}");
    umount(&ground);
    fs::remove_file(&other).unwrap();
    let given = format!("tier={}", disk.display());
    let (mounted, words) = mount_in_background(&ground, &given);
    assert!(!mounted && words.contains("was not used together with this file system last"), "{words}");
    // Neither is the file system damaged, nor a device gone.
    fs::copy(&disk, &other).unwrap();
    let (mounted, words) = mount_in_background(&ground, "tiers=all");
    assert!(!mounted && words.contains("; one of them is an older copy"), "{words}");
    assert!(!words.contains("damaged") && !words.contains("is gone"), "{words}");
}

/// A tier that was found where it was last was looked at again beside the PM, and the missing one's message said that it is in
/// use: by the mount itself.
#[test]
fn a_mount_that_lacks_a_tier_does_not_say_that_it_uses_another() {
    if !can_mount("a tier that is missing beside another") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let beside = ground.image().parent().unwrap().to_owned();
    for name in ["one", "two"] {
        json("tier add --size 64M", &[&ground.dir(), &beside.join(name)]);
    }
    ground.unmount();
    fs::remove_file(beside.join("one")).unwrap();
    let (mounted, words) = mount_in_background(&ground, "tiers=all");
    assert!(!mounted && words.contains("tier 1: it was not found, last it was"), "{words}");
    assert!(!words.contains("in use") && !words.contains("looked at"), "{words}");
}

/// A path without room in the superblock is reported when its tier is added.
#[test]
fn a_tier_that_the_next_mount_does_not_find_is_told_when_it_is_added() {
    if !can_mount("tiers with long paths") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let (dir, elsewhere) = (ground.dir(), scratch());
    let deep = elsewhere.path().join("x".repeat(250)).join("y".repeat(20));
    fs::create_dir_all(&deep).unwrap();
    let (output, words) = said("tier add --size 64M", &[&dir, &deep.join("disk")]);
    assert!(output.status.success() && words.contains("the next mount will not find it"), "{words}");
    assert!(words.contains("is tier 1 of"), "{words}");
    ground.remount();
    // Devices of other tests may be named behind it.
    let why = tiers(&dir)[0]["missing"].as_str().map(str::to_owned).expect("it is missing");
    assert_eq!(why.split(';').next(), Some("it was not found"), "{why}");
    ground.unmount();
    // So does mkfs, of those alone that are not found.
    let (other, beside) = (ground.beside().join("other"), ground.beside().join("near"));
    let far = deep.join("far");
    let sized = |path: &Path| format!("{}:64M", path.display());
    let mut command = nacre();
    command.args(["mkfs", "--size", "64M", "--tier", &sized(&beside), "--tier", &sized(&far)]).arg(&other);
    let words = text(&run(&mut command, LIMIT).unwrap());
    let warning = format!("mkfs: {}: the next mount will not find it", far.display());
    assert!(words.contains(&warning) && words.matches("will not find").count() == 1, "{words}");
    assert!(words.contains("-o tier=") && words.contains("made a file system"), "{words}");
}

/// It began, placed nothing there any more, and so the file system was full.
#[test]
fn a_drain_without_room_is_refused_and_a_draining_tier_is_told() {
    if !can_mount("drains without room") {
        return;
    }
    let mut ground = Ground::nacre("32M", None);
    let (dir, beside) = (ground.dir(), ground.image().parent().unwrap().to_owned());
    json("tier add --size 64M", &[&dir, &beside.join("disk")]);
    write(&dir, 0..60);
    for words in ["tier drain", "tier remove", "tier drain -n", "tier remove -n"] {
        let (output, words) = said(words, &[&dir, Path::new("1")]);
        assert!(!output.status.success() && words.contains("too little"), "{words}");
        assert!(words.contains("tier 1: ") && words.contains("nothing was changed"), "{words}");
        assert_eq!(tiers(&dir)[0]["draining"], false);
    }
    // One that was begun while there was room.
    (0..40).for_each(|number| fs::remove_file(dir.join(number.to_string())).unwrap());
    json("tier drain", &[dir.as_path(), Path::new("1")]);
    ground.unmount();
    let (mounted, words) = mount_in_background(&ground, "");
    assert!(
        mounted && words.contains("tier 1 is being drained: new blocks do not go to its free"),
        "{words}"
    );
    let put = |number: usize| fs::write(dir.join(number.to_string()), vec![1; MIB]);
    let full = (100..140).find_map(|number| put(number).err()).expect("it is full");
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    let log = fs::read_to_string(ground.beside().join("background.log")).unwrap();
    assert!(log.contains("no space is left, and tier 1 has"), "{log}");
    let (_, words) = said("tier list", &[&dir]);
    assert!(words.contains("draining, takes no new blocks"), "{words}");
    json("tier drain --cancel", &[dir.as_path(), Path::new("1")]);
    (200..230).for_each(|number| put(number).expect("there is room again"));
    umount(&ground);
    ground.fsck();
}

#[test]
fn scrub_and_fsck_say_what_of_tiers_they_looked_at() {
    if !can_mount("checks of tiers") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let (dir, elsewhere) = (ground.dir(), scratch());
    let disk = elsewhere.path().join("disk");
    json("tier add --size 64M", &[&dir, &disk]);
    write(&dir, 0..2);
    json("demote", &[dir.join("0")]);
    let (code, words) = scrubbed(&ground);
    assert!(code == 0 && words.contains("tier 1: 1 MiB of files read\n"), "{words}");
    assert!(words.contains("not checked: contents of files have no checksums"), "{words}");
    json("tier offline", &[dir.as_path(), Path::new("1")]);
    let (code, words) = scrubbed(&ground);
    assert!(code == 0 && words.contains("not checked: tier 1: "), "{code}: {words}");
    ground.unmount();

    let fsck = |more: &[&Path]| {
        let output = run(nacre().args(["fsck", "-n"]).args(more).arg(ground.image()), LIMIT).unwrap();
        (output.status.code(), text(&output))
    };
    let (code, words) = fsck(&[]);
    let unseen =
        format!("tier 1 was not checked, nor the blocks of files there; --tier {} checks", disk.display());
    assert!(code == Some(0) && words.contains(&unseen), "{words}");
    let (code, words) = fsck(&[Path::new("--tier"), &disk]);
    assert!(code == Some(0) && !words.contains("was not checked"), "{words}");
    // A mistake of who calls it is none of the file system.
    let letter = elsewhere.path().join("letter");
    fs::write(&letter, vec![b'a'; MIB]).unwrap();
    for (path, why) in [(letter.as_path(), "it is no tier"), (Path::new("/nothing"), "no such file")] {
        let (code, words) = fsck(&[Path::new("--tier"), path]);
        assert!(code == Some(8) && words.contains(why) && !words.contains("DAMAGED"), "{code:?}: {words}");
    }
}

/// The same bytes under other names: a lock is on one inode only.
#[test]
fn nothing_that_is_in_use_is_overwritten_whatever_its_name() {
    const TEST: &str = "devices in use under other names";
    if !can_mount(TEST) {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let (dir, beside) = (ground.dir(), ground.image().parent().unwrap().to_owned());
    let (disk, image) = (beside.join("disk"), ground.image().to_owned());
    json("tier add --size 64M", &[&dir, &disk]);
    write(&dir, 0..2);
    json("demote", &[dir.join("0")]);
    let others = memory();
    let other = others.path().join("other");
    let mut names: Vec<PathBuf> = vec![image.clone(), disk.clone()];
    for (number, file) in [&image, &disk].into_iter().enumerate() {
        let (hard, soft) =
            (beside.join(format!("hard-{number}")), others.path().join(format!("soft-{number}")));
        fs::hard_link(file, &hard).unwrap();
        symlink(file, &soft).unwrap();
        names.extend([hard, soft]);
    }
    let loops: Option<Vec<Loop>> = names[..4].iter().map(|file| Loop::over(file)).collect();
    let Some(loops) = loops else { return left_out(TEST, "loop devices cannot be had") };
    names.extend(loops.iter().map(|device| device.path().to_owned()));
    for name in &names {
        for words in ["tier add -f", "tier add -f -n"] {
            refused(words, &[&dir, name], "in use");
        }
        refused("tier replace -f", &[&dir, Path::new("1"), name], "");
        refused("mkfs -f", &[name], "in use");
        refused("mkfs -f -n", &[name], "in use");
        refused("mkfs -f --tier", &[name, &other], "");
    }
    // A file on the file system itself, behind a loop device.
    let inside = dir.join("inside");
    File::create(&inside).unwrap().set_len(16 << 20).unwrap();
    let within = Loop::over(&inside).unwrap();
    refused("tier add -f", &[&dir, within.path()], "on the file system");
    drop(within);
    assert_content(&dir, 0..2);
    ground.remount();
    assert_content(&dir, 0..2);
    ground.unmount();
    ground.fsck();

    // A file system whose PM is a loop device: the file below it, and another loop device over the same file.
    succeed(
        nacre()
            .args(["mount", "-o"])
            .arg(format!("log={}", others.path().join("log").display()))
            .arg(loops[0].path())
            .arg(&dir),
        LIMIT,
    );
    for name in [&image, loops[2].path(), loops[0].path()] {
        refused("mkfs -f", &[name], "in use");
    }
    umount(&ground);
    // Read-only mounts keep others from overwriting, too.
    succeed(nacre().args(["mount", "-o", "ro"]).arg(&image).arg(&dir), LIMIT);
    for name in [&image, loops[0].path(), names[2].as_path()] {
        refused("mkfs -f", &[name], "in use");
    }
    umount(&ground);
}

/// A disk was overwritten while one of its partitions was mounted read-only: that mount has locked the partition only.
#[test]
fn a_disk_is_not_overwritten_while_a_partition_is_used_nor_the_reverse() {
    const TEST: &str = "partitions of devices in use";
    if !can_mount(TEST) || !has_program(TEST, "addpart") {
        return;
    }
    let beside = memory();
    let (image, dir) = (beside.path().join("image"), beside.path().join("mnt"));
    fs::create_dir(&dir).unwrap();
    File::create(&image).unwrap().set_len(160 << 20).unwrap();
    let Some(device) = Loop::with(&["--partscan"], &image) else {
        return left_out(TEST, "loop devices cannot be had");
    };
    let disk = device.path();
    let part = |number: u64| PathBuf::from(format!("{}p{number}", disk.display()));
    // A kernel that reads no partition table takes partitions one by one. The unit is 512 bytes.
    for number in [1, 2] {
        let words = [number, 2048 + (number - 1) * 131_072, 131_072].map(|word| word.to_string());
        let output = run(program("addpart").arg(disk).args(words), LIMIT).unwrap();
        if !output.status.success() || !part(number).exists() {
            return left_out(TEST, "the kernel gives loop devices no partitions");
        }
    }
    // As in /dev/disk/by-id.
    let by_id = |name: &str, of: &Path| {
        let link = beside.path().join(name);
        symlink(of, &link).unwrap();
        link
    };
    let (disk_id, first_id, second_id) =
        (by_id("disk", disk), by_id("part1", &part(1)), by_id("part2", &part(2)));
    let disks = [disk, &disk_id, &image];
    let (first, second) = (part(1), part(2));
    let mkfs = |path: &Path| succeed(nacre().args(["mkfs", "-f"]).arg(path), LIMIT);
    let mount = |options: &str, path: &Path| {
        let options = format!("log={},{options}", beside.path().join("log").display());
        succeed(nacre().args(["mount", "-o", &options]).arg(path).arg(&dir), LIMIT);
    };
    let umount = || succeed(nacre().arg("umount").arg(&dir), LIMIT);

    mkfs(&first);
    for options in ["rw", "ro"] {
        mount(options, &first_id);
        for name in disks.into_iter().chain([first.as_path(), &first_id]) {
            refused("mkfs -f", &[name], "in use");
        }
        mkfs(&second);
        mkfs(&second_id);
        umount();
    }
    mkfs(disk);
    for options in ["rw", "ro"] {
        mount(options, &disk_id);
        for name in [&first, &first_id, &second, &second_id] {
            refused("mkfs -f", &[name], "in use");
        }
        umount();
    }

    // The same of tiers.
    let mut ground = Ground::nacre("32M", None);
    json("tier add -f", &[&ground.dir(), &first_id]);
    for name in disks.into_iter().chain([first.as_path(), &first_id]) {
        refused("mkfs -f", &[name], "in use");
        refused("tier add -f", &[&ground.dir(), name], "in use");
        refused("tier replace -f", &[&ground.dir(), Path::new("1"), name], "");
    }
    json("tier replace -f", &[ground.dir().as_path(), Path::new("1"), &second_id]);
    mkfs(&first);
    ground.unmount();
    ground.fsck();
}

/// All bytes of a file, as a number.
fn sum(path: &Path) -> u64 {
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes.chunks(8).fold(0, |sum: u64, word| {
        word.iter().fold(sum.rotate_left(7), |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
    })
}

/// To look at it wrote a recovery to the device.
#[test]
fn what_was_not_unmounted_in_order_is_looked_at_without_a_write() {
    if !can_mount("a look at an image that needs recovery") {
        return;
    }
    for preset in ["nova", "pmfs"] {
        let mut ground = Ground::preset(preset, "64M", None);
        let dir = ground.dir();
        write(&dir, 0..5);
        ground.kill();
        let before = sum(ground.image());
        let (mounted, words) = mount_in_background(&ground, "ro");
        assert!(
            mounted && words.contains("recovered in DRAM, and nothing is written to it"),
            "{preset}: {words}"
        );
        assert_content(&dir, 0..5);
        assert_eq!(fs::write(dir.join("new"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
        // Another one looks at the same time, on its own.
        let second = ground.beside().join("second");
        fs::create_dir(&second).unwrap();
        succeed(nacre().args(["mount", "-o", "ro"]).arg(ground.image()).arg(&second), LIMIT);
        assert_content(&second, 0..5);
        succeed(nacre().arg("umount").arg(&second), LIMIT);
        umount(&ground);
        assert_eq!(sum(ground.image()), before, "{preset}");
        // To write it is recovered as ever.
        ground.mount();
        assert_content(&dir, 0..5);
        ground.unmount();
        ground.fsck();
    }
}

/// A device that cannot be written was no reason to mount it read-only, as mount(8) does.
#[test]
fn what_is_write_protected_is_mounted_read_only() {
    const TEST: &str = "write-protected devices";
    if !can_mount(TEST) {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let dir = ground.dir();
    write(&dir, 0..2);
    ground.unmount();
    let before = sum(ground.image());
    let Some(device) = Loop::with(&["--read-only"], ground.image()) else {
        return left_out(TEST, "loop devices cannot be had");
    };
    for options in ["", "rw"] {
        let log = format!("log={},{options}", ground.beside().join("log").display());
        let output = run(nacre().args(["mount", "-o", &log]).arg(device.path()).arg(&dir), LIMIT).unwrap();
        let words = text(&output);
        assert!(
            output.status.success() && words.contains("write-protected, and mounted read-only"),
            "{words}"
        );
        assert_content(&dir, 0..2);
        assert_eq!(fs::write(dir.join("new"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
        umount(&ground);
    }
    refused("mkfs -f", &[device.path()], "write-protected");
    drop(device);
    assert_eq!(sum(ground.image()), before);
}
