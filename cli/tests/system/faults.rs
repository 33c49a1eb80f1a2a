//! What a device, the kernel or a second owner can do to a mount: each is a clear error of what it touches, and the
//! rest goes on.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::harness::{self, Ground, PRESETS, Tmpfs, nacre, run, succeed, text};
use crate::load::{self, Plan};
use crate::workers::Workers;

const LIMIT: Duration = Duration::from_secs(60);
const BLOCK: u64 = 4096;

/// Where the first block of a file is on the device.
fn first_byte(ground: &Ground, name: &str) -> u64 {
    let stat = succeed(nacre().args(["stat", "--json"]).arg(ground.dir().join(name)), LIMIT);
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    stat["extents"][0]["block"].as_u64().expect("a block") * BLOCK
}

#[test]
fn a_media_error_is_told_of_by_read_scrub_and_fsck() {
    if !harness::can_mount("media errors on a mount") {
        return;
    }
    PRESETS.into_iter().for_each(a_media_error_is_told_of);
}

fn a_media_error_is_told_of(preset: &str) {
    let mut ground = Ground::preset(preset, "64M", None);
    let (bad, good) = (ground.dir().join("bad"), ground.dir().join("good"));
    for path in [&bad, &good] {
        fs::write(path, vec![7; 8 * BLOCK as usize]).expect("a file");
    }
    let output = run(nacre().args(["scrub", "status"]).arg(ground.dir()), LIMIT).expect("scrub status");
    assert!(output.status.success() && text(&output).contains("not scrubbed"), "{}", text(&output));
    assert_eq!(harness::scrubbed(&ground).0, 0, "nothing is damaged");
    let at = first_byte(&ground, "bad") + 3 * BLOCK + 64;
    ground.unmount();

    ground.set_options(Some(&format!("tune=emulate:poison={at}+64")));
    ground.mount();
    let mut file = fs::File::open(&bad).expect("open");
    let mut block = [0; BLOCK as usize];
    for index in 0..8 {
        file.seek(SeekFrom::Start(index * BLOCK)).expect("seek");
        match file.read_exact(&mut block) {
            Ok(()) => assert!(index != 3 && block == [7; BLOCK as usize], "block {index}"),
            Err(error) => assert_eq!((index, error.raw_os_error()), (3, Some(libc::EIO)), "{error}"),
        }
    }
    drop(file);
    assert_eq!(fs::read(&good).expect("another file"), vec![7; 8 * BLOCK as usize]);
    fs::write(ground.dir().join("new"), "new").expect("the mount lives");
    let (code, words) = harness::scrubbed(&ground);
    assert!(code == 1 && words.contains("/bad (inode"), "{words}");
    assert!(words.contains(&format!("bytes {} to {}", 3 * BLOCK + 64, 3 * BLOCK + 128)), "{words}");
    assert!(words.contains("1 bad block\n"), "{words}");
    // It is retired and was told: neither the next scrub nor the next mount finds anything new.
    for _ in 0..2 {
        let (code, words) = harness::scrubbed(&ground);
        assert!(code == 0 && words.contains("known before: /bad (inode"), "{words}");
        assert!(words.contains("0 findings") && words.contains("1 bad block\n"), "{words}");
        ground.remount();
    }
    ground.unmount();

    let fsck = |arguments: &[&str]| {
        let poison = format!("poison={at}+64");
        let command = &mut nacre();
        let output =
            run(command.arg("fsck").args(arguments).args(["--emulate", &poison]).arg(ground.image()), LIMIT)
                .expect("fsck ends");
        (output.status.code(), text(&output))
    };
    let (code, words) = fsck(&["-n", "-c"]);
    assert!(code == Some(0) && words.contains("/bad (inode"), "scrub has recorded the block: {words}");
    assert!(words.contains("reported before") && !words.contains("is lost"), "{words}");
    let (code, words) = fsck(&["-n"]);
    assert!(code == Some(0) && !words.contains("/bad"), "only -c reads data: {words}");
}

#[test]
fn a_device_that_is_cut_short_costs_what_was_there() {
    if !harness::can_mount("a truncated device") {
        return;
    }
    PRESETS.into_iter().for_each(what_was_cut_off_is_lost);
}

fn what_was_cut_off_is_lost(preset: &str) {
    let mut ground = Ground::preset(preset, "64M", None);
    let path = ground.dir().join("file");
    fs::write(&path, vec![9; 40 << 20]).expect("a file");
    ground.remount();
    let device = OpenOptions::new().write(true).open(ground.image()).expect("the image");
    device.set_len(24 << 20).expect("truncate");
    // What is left of it, and whether its inode is, depends on the lanes of the threads that wrote; not all of it fits.
    let error = fs::read(&path).expect_err("a part of the file is gone");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(rustix::fs::statfs(ground.dir()).is_ok(), "the mount lives");
    // Its unmount may fail: what it writes may have been in the part that is gone.
    ground.kill();
    for arguments in [&["fsck", "-n"][..], &["fsck", "-y"], &["info"]] {
        let output = run(nacre().args(arguments).arg(ground.image()), LIMIT).expect("it ends");
        let words = text(&output);
        assert!(!output.status.success() && words.contains("was truncated"), "{arguments:?}: {words}");
    }
    let again = ground.beside().join("again");
    fs::create_dir(&again).expect("a directory");
    let output = run(nacre().arg("mount").arg(ground.image()).arg(&again), LIMIT).expect("mount ends");
    assert!(!output.status.success() && text(&output).contains("was truncated"), "{}", text(&output));
}

#[test]
fn a_read_only_device_is_mounted_only_to_read() {
    if !harness::can_mount("a read-only device") {
        return;
    }
    PRESETS.into_iter().for_each(a_read_only_device_is_only_read);
}

fn a_read_only_device_is_only_read(preset: &str) {
    let place = Tmpfs::new("32M");
    let (device, dir) = (place.path().join("pm"), harness::scratch());
    succeed(nacre().args(["mkfs", "--preset", preset, "--size", "16M"]).arg(&device), LIMIT);
    // The first mount counts what is free.
    let mount = |options: &[&str]| {
        run(nacre().arg("mount").args(options).arg(&device).arg(dir.path()), LIMIT).unwrap()
    };
    let umount = || succeed(nacre().arg("umount").arg(dir.path()), LIMIT);
    assert!(mount(&[]).status.success());
    umount();
    rustix::mount::mount_remount(place.path(), MountFlags::RDONLY, c"").expect("remount read-only");
    // The dry run was refused.
    let output = mount(&["-n"]);
    let words = text(&output);
    assert!(output.status.success() && words.contains("would be mounted read-only"), "{words}");
    assert!(!harness::is_mount_point(dir.path()));
    let output = mount(&[]);
    let words = text(&output);
    assert!(output.status.success() && words.contains("write-protected, and mounted read-only"), "{words}");
    assert!(fs::write(dir.path().join("file"), "x").is_err());
    umount();
    let output = mount(&["-o", "ro"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
    assert!(fs::write(dir.path().join("file"), "x").is_err());
    umount();
    let output = run(nacre().args(["fsck", "-y"]).arg(&device), LIMIT).unwrap();
    assert!(
        !output.status.success() && text(&output).to_lowercase().contains("read-only"),
        "{}",
        text(&output)
    );
    succeed(nacre().args(["fsck", "-n"]).arg(&device), LIMIT);
}

#[test]
fn a_device_on_a_full_tmpfs_is_refused_when_it_is_made() {
    if !harness::can_mount("a full tmpfs") {
        return;
    }
    PRESETS.into_iter().for_each(a_device_without_space_is_refused);
}

fn a_device_without_space_is_refused(preset: &str) {
    let place = Tmpfs::new("40M");
    let device = place.path().join("pm");
    let output =
        run(nacre().args(["mkfs", "--preset", preset, "--size", "64M"]).arg(&device), LIMIT).unwrap();
    let words = text(&output).to_lowercase();
    assert!(!output.status.success() && words.contains("space"), "{words}");
    assert!(!device.exists(), "nothing is left behind");
    // A sparse device, as a copy leaves it, gets its space before it is mounted or is refused.
    let sparse = fs::File::create(&device).unwrap();
    let small = place.path().join("small");
    succeed(nacre().args(["mkfs", "--preset", preset, "--size", "16M"]).arg(&small), LIMIT);
    fs::copy(&small, &device).unwrap();
    fs::remove_file(&small).unwrap();
    sparse.set_len(64 << 20).unwrap();
    let dir = harness::scratch();
    let output = run(nacre().arg("mount").arg(&device).arg(dir.path()), LIMIT).unwrap();
    let words = text(&output).to_lowercase();
    assert!(!output.status.success() && words.contains("space"), "{words}");
}

/// Somebody has the device.
fn is_busy(ground: &Ground) -> bool {
    let output = run(nacre().args(["fsck", "-n"]).arg(ground.image()), LIMIT).expect("fsck ends");
    text(&output).contains("in use")
}

/// The server of a connection that is gone ends by itself, and lets go of the device.
fn let_the_server_end(ground: &mut Ground) {
    let end = Instant::now() + LIMIT;
    while is_busy(ground) {
        assert!(Instant::now() < end, "the server ends with its connection\n{}", ground.mount_log());
        std::thread::sleep(Duration::from_millis(5));
    }
    ground.forget();
}

#[test]
fn an_aborted_connection_loses_nothing_acknowledged() {
    if !harness::can_mount("an aborted connection") {
        return;
    }
    PRESETS.into_iter().for_each(what_was_acknowledged_survives_an_abort);
}

fn what_was_acknowledged_survives_an_abort(preset: &str) {
    let mut ground = Ground::preset(preset, "64M", None);
    let path = ground.dir().join("file");
    fs::write(&path, "acknowledged").expect("a file");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("sync");
    // MNT_FORCE aborts the connection of a FUSE mount.
    rustix::mount::unmount(ground.dir(), UnmountFlags::FORCE | UnmountFlags::DETACH).expect("abort");
    let_the_server_end(&mut ground);
    ground.mount();
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "acknowledged");
    ground.unmount();
    ground.fsck();
}

/// Processes that are writing get an error, and nothing that they were told was done is missing.
#[test]
fn a_connection_aborted_under_load_loses_nothing_acknowledged() {
    if !harness::can_mount("an aborted connection under load") {
        return;
    }
    let seed = harness::seed("an aborted connection");
    let mut in_flight = 0;
    for preset in PRESETS {
        // Acknowledged by fsync, and by the return of a call.
        for sync in [true, false] {
            in_flight += abort_under_load(preset, seed, sync);
        }
    }
    assert!(in_flight > 0, "no connection was aborted in the middle of an operation");
}

/// Gives the operations that were in flight.
fn abort_under_load(preset: &str, seed: u64, sync: bool) -> usize {
    let mut ground = Ground::preset(preset, "256M", None);
    let (dir, ledgers) = (ground.dir().join("load"), ground.beside().join("ledgers"));
    let plan = Plan { dir, ledgers, workers: 3, seed, sync, in_place: ground.overwrites_in_place() };
    let mut workers = Workers::start(&plan);
    workers.wait_for(100 + seed % 300);
    // As long as something is open the mount cannot go, only its connection: so the workers are in it until the end.
    let held = fs::File::open(ground.dir()).expect("the mount");
    let aborted_ns = load::now_ns();
    let refused = rustix::mount::unmount(ground.dir(), UnmountFlags::FORCE);
    assert_eq!(refused, Err(rustix::io::Errno::BUSY), "{preset}: it is in use");
    let (acknowledged, in_flight) = workers.end(aborted_ns);
    drop(held);
    let_the_server_end(&mut ground);
    ground.mount();
    match load::check(&plan) {
        Ok(checked) => println!("{preset}: {acknowledged} acknowledged, {in_flight} in flight, {checked:?}"),
        Err(text) => panic!("{preset}, sync {sync}, aborted (NACRE_SEED={seed}):\n{text}"),
    }
    ground.unmount();
    ground.fsck();
    in_flight
}

#[test]
fn a_second_owner_is_refused_by_every_command() {
    if !harness::can_mount("two owners") {
        return;
    }
    PRESETS.into_iter().for_each(a_second_owner_is_refused);
}

fn a_second_owner_is_refused(preset: &str) {
    let ground = Ground::preset(preset, "64M", None);
    let other = ground.beside().join("other");
    fs::create_dir(&other).expect("a directory");
    let image = ground.image().display().to_string();
    let dir = other.display().to_string();
    for arguments in [
        &["mount", &image, &dir][..],
        &["fsck", "-n", &image],
        &["fsck", "-y", &image],
        &["mkfs", "-f", &image],
    ] {
        let output = run(nacre().args(arguments), LIMIT).expect("it ends");
        assert!(
            !output.status.success() && text(&output).contains("in use"),
            "{arguments:?}: {}",
            text(&output)
        );
    }
    fs::write(ground.dir().join("file"), "still served").expect("the owner goes on");
}
