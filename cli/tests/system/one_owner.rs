//! A device has one owner, under any of its names: a file, and the loop devices over it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::{self, can_mount, left_out, memory, nacre, run, scratch, succeed, text};
use crate::tier_commands::Loop;

const LIMIT: Duration = Duration::from_secs(60);

/// A command on a device, and perhaps a directory, that fails with these words.
fn fails(words: &[&str], paths: &[&Path], because: &[&str]) {
    harness::fails(nacre().args(words).args(paths), because, LIMIT);
}

fn mount(device: &Path, dir: &Path, log: &Path) {
    let options = format!("log={}", log.display());
    succeed(nacre().args(["mount", "-o", &options]).args([device, dir]), LIMIT);
}

fn umount(dir: &Path) {
    succeed(nacre().arg("umount").arg(dir), LIMIT);
}

/// Both mounts succeeded, and files of which one had said that they were durable were lost.
#[test]
fn an_image_and_the_loop_devices_over_it_are_mounted_once() {
    const TEST: &str = "an image and the loop devices over it";
    if !can_mount(TEST) {
        return;
    }
    let (beside, dirs) = (memory(), scratch());
    let [here, there] = ["here", "there"].map(|name| dirs.path().join(name));
    let log = beside.path().join("log");
    fs::create_dir(&here).unwrap();
    fs::create_dir(&there).unwrap();
    for preset in ["nacre", "spfs"] {
        let image = beside.path().join(preset);
        succeed(nacre().args(["mkfs", "--size", "64M", "--preset", preset]).arg(&image), LIMIT);
        let (Some(one), Some(two)) = (Loop::over(&image), Loop::over(&image)) else {
            return left_out(TEST, "loop devices cannot be had");
        };
        let orders: [(&Path, [&Path; 2]); 2] =
            [(&image, [one.path(), two.path()]), (one.path(), [&image, two.path()])];
        for (number, (first, others)) in orders.into_iter().enumerate() {
            mount(first, &here, &log);
            let file = here.join(format!("file-{number}"));
            fs::write(&file, b"kept").unwrap();
            let place = format!("mounted on {}", here.display());
            for other in others {
                fails(&["mount"], &[other, &there], &["another process", &place]);
                fails(&["mount", "-o", "ro"], &[other, &there], &["another process", &place]);
                for words in [&["fsck", "-y"][..], &["fsck", "-p", "-f"], &["fsck", "-n"], &["info"], &["df"]]
                {
                    fails(words, &[other], &["another process", &place]);
                }
                fails(&["mkfs", "-f"], &[other], &["in use"]);
            }
            assert_eq!(fs::read(&file).unwrap(), b"kept");
            umount(&here);
            succeed(nacre().arg("fsck").arg(&image), LIMIT);
        }
        // Readers go together.
        succeed(nacre().args(["mount", "-o", "ro"]).args([image.as_path(), &here]), LIMIT);
        succeed(nacre().arg("info").arg(one.path()), LIMIT);
        fails(&["mount"], &[two.path(), &there], &["another process"]);
        umount(&here);
        // A loop device over a file that is not in use is used as any device.
        mount(two.path(), &there, &log);
        for number in 0..2 {
            assert_eq!(fs::read(there.join(format!("file-{number}"))).unwrap(), b"kept");
        }
        umount(&there);
    }
}

/// Volumes of different zones are mounted at once, also by a loop device. By its file none of them is meanwhile.
#[test]
fn zones_are_mounted_together_by_one_loop_device() {
    const TEST: &str = "zones by a loop device";
    if !can_mount(TEST) {
        return;
    }
    let (beside, dirs) = (memory(), scratch());
    let image = beside.path().join("image");
    let log = beside.path().join("log");
    succeed(nacre().args(["mkfs", "--size", "256M", "--preset", "spfs", "--zones", "2"]).arg(&image), LIMIT);
    succeed(nacre().args(["volume", "create", "--zone", "1"]).arg(nacre::with_volume(&image, "mail")), LIMIT);
    let (Some(one), Some(two)) = (Loop::over(&image), Loop::over(&image)) else {
        return left_out(TEST, "loop devices cannot be had");
    };
    let dir = |name: &str| -> PathBuf {
        let dir = dirs.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    };
    let there = dir("there");
    for device in [image.as_path(), one.path()] {
        let volume = |name| nacre::with_volume(device, name);
        mount(&volume("main"), &dir("main"), &log);
        let others = [image.as_path(), one.path(), two.path()].into_iter().filter(|other| *other != device);
        for other in others {
            for name in ["main", "mail"] {
                fails(&["mount"], &[&nacre::with_volume(other, name), &there], &["another process"]);
            }
            fails(&["fsck", "-y"], &[other], &["another process"]);
        }
        mount(&volume("mail"), &dir("mail"), &log);
        for name in ["main", "mail"] {
            fs::write(dir(name).join("file"), name).unwrap();
        }
        // It named a volume of another zone, as one of the same, or this command itself.
        let all = "all volumes of the device must be unmounted";
        for words in [&["volume", "create"][..], &["volume", "create", "--zone", "1"]] {
            fails(words, &[&volume("more")], &["another process", "volume mail is mounted on", all]);
        }
        fails(
            &["volume", "remove", "-f"],
            &[&volume("mail")],
            &["mail: it is mounted on", "unmount it first"],
        );
        let own = run(nacre().args(["fsck", "-n"]).arg(device), LIMIT).unwrap();
        let said = text(&own);
        assert!(said.contains(all) && !said.contains("by this process"), "{said}");
        assert!(!said.contains("of the same zone"), "{said}");
        for name in ["main", "mail"] {
            assert_eq!(fs::read(dir(name).join("file")).unwrap(), name.as_bytes());
            umount(&dir(name));
        }
        succeed(nacre().arg("fsck").arg(&image), LIMIT);
    }
}

/// The old file system was overwritten before the tier was refused.
#[test]
fn a_tier_that_shares_bytes_with_a_new_file_system_is_refused_before_it_is_made() {
    const TEST: &str = "a tier that shares bytes with PM";
    if !can_mount(TEST) {
        return;
    }
    let beside = memory();
    let image = beside.path().join("image");
    succeed(nacre().args(["mkfs", "--size", "64M"]).arg(&image), LIMIT);
    let (Some(one), Some(two)) = (Loop::over(&image), Loop::over(&image)) else {
        return left_out(TEST, "loop devices cannot be had");
    };
    let before = fs::read(&image).unwrap();
    for tier in [image.as_path(), two.path()] {
        let tier = tier.display().to_string();
        for words in [&["mkfs", "-f", "-n", "--tier", &tier][..], &["mkfs", "-f", "--tier", &tier]] {
            fails(words, &[one.path()], &[]);
            assert!(fs::read(&image).unwrap() == before, "{words:?}");
        }
    }
}
