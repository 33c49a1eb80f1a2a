//! Mounting and unmounting as people, fstab and init systems do it: in the background, by signals, under the names of
//! the helpers, and when something is in the way.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    can_mount, has_program, is_mount_point, left_out, nacre, run, succeed, text, until, wait,
};
use crate::place::Place;

const LIMIT: Duration = Duration::from_secs(60);

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_mount_in_the_background_is_ready_and_umount_frees_the_device() {
    if !can_mount("mounting in the background") {
        return;
    }
    let place = Place::new();
    for round in 0..5 {
        let mounted = place.mount(&[]);
        assert_eq!(mounted.status.code(), Some(0), "{}", text(&mounted));
        assert_eq!(fs::read_dir(place.dir()).unwrap().count(), round);
        fs::write(place.dir().join(round.to_string()), b"kept").unwrap();
        // By directory and by device.
        let by_device = round % 2 == 1;
        let target = if by_device { place.device() } else { place.dir() };
        place.free(|| place.umount_command(&target));
        // Nobody has the device any more, and it was closed in order.
        assert!(place.is_clean());
    }
}

#[test]
fn the_table_of_mounts_shows_what_was_asked_for() {
    if !can_mount("the options of a mount") {
        return;
    }
    let place = Place::new();
    place.mount(&[]);
    let entry = place.entry();
    assert!(entry.contains(&format!("- fuse.nacre {}", place.device().display())), "{entry}");
    assert!(
        entry.contains("allow_other") && !entry.contains("nodev") && !entry.contains("nosuid"),
        "{entry}"
    );
    place.free(|| place.umount_command(&place.dir()));
    place.mount(&["-o", "ro,nodev,nosuid", "-o", "noexec,noatime,sync"]);
    let entry = place.entry();
    for option in ["ro,", "nodev", "nosuid", "noexec", "noatime"] {
        assert!(entry.contains(option), "{option}: {entry}");
    }
    assert!(File::create(place.dir().join("file")).is_err());
    place.free(|| place.umount_command(&place.dir()));
}

/// The kernel's own default is half of it; a MiB made pages of mappings slow.
#[test]
fn the_kernel_reads_ahead_as_far_as_it_is_told() {
    if !can_mount("how far the kernel reads ahead") {
        return;
    }
    let place = Place::new();
    assert!(place.mount(&[]).status.success());
    let device = fs::metadata(place.dir()).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    // In a container nobody may change it.
    match File::options().write(true).open(&setting) {
        Ok(_) => assert_eq!(fs::read_to_string(setting).unwrap().trim(), "256"),
        Err(error) => left_out("how far the kernel reads ahead", &error.to_string()),
    }
    place.free(|| place.umount_command(&place.dir()));
}

#[test]
fn signals_end_a_mount_in_order() {
    if !can_mount("ending a mount by a signal") {
        return;
    }
    let place = Place::new();
    for name in [Signal::TERM, Signal::INT, Signal::HUP] {
        let server = place.serve();
        fs::write(place.dir().join("file"), b"kept").unwrap();
        signal(&server, name);
        // If another test's program held a file at this moment, the mount ends with that.
        let status = wait(server, LIMIT).unwrap();
        assert!(status.success(), "{name:?}: {status}");
        assert!(!is_mount_point(&place.dir()) && place.is_clean(), "{name:?}");
    }
}

#[test]
fn a_mount_in_use_outlives_one_signal_and_not_two() {
    if !can_mount("ending a mount in use") {
        return;
    }
    let place = Place::new();
    let mut server = place.serve();
    let mut file = File::create(place.dir().join("file")).unwrap();
    assert_eq!(place.umount(&[]).status.code(), Some(1), "a mount in use is not unmounted");
    signal(&server, Signal::TERM);
    until("it is detached", || !is_mount_point(&place.dir()));
    file.write_all(b"still served").unwrap();
    assert!(server.try_wait().unwrap().is_none());
    let switch = std::env::temp_dir().join(format!("nacre-fusectl-{}", server.id()));
    signal(&server, Signal::TERM);
    assert!(wait(server, LIMIT).unwrap().success());
    assert!(file.write_all(b"lost").is_err());
    assert!(!switch.exists(), "what it was ended by is left behind");
    drop(file);
    assert!(place.is_clean());
    place.mount(&[]);
    assert_eq!(fs::read(place.dir().join("file")).unwrap(), b"still served");
    // Lazily: gone from the tree, served until it is closed.
    let held = File::open(place.dir().join("file")).unwrap();
    assert_eq!(place.umount(&["--lazy"]).status.code(), Some(0));
    assert!(!is_mount_point(&place.dir()));
    drop(held);
    // By force: gone at once.
    until("the device is free", || place.mount(&[]).status.success());
    let held = File::open(place.dir().join("file")).unwrap();
    assert_eq!(place.umount(&["--force"]).status.code(), Some(0));
    assert!(place.is_clean());
    drop(held);
}

/// Whoever reads its messages may be gone first, as a terminal that was closed: the server ended in the middle.
#[test]
fn a_server_in_the_foreground_outlives_who_reads_its_messages() {
    if !can_mount("a server that nobody listens to") {
        return;
    }
    let place = Place::new();
    let mut command = nacre();
    command.args(["mount", "-f", "-o", "buffer"]).arg(place.device()).arg(place.dir());
    let mut server =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((server.stdout.take(), server.stderr.take()));
    until("it is mounted", || is_mount_point(&place.dir()));
    let mut file = File::create(place.dir().join("file")).unwrap();
    file.write_all(b"buffered").unwrap();
    // In use: it says so.
    signal(&server, Signal::HUP);
    until("it is detached", || !is_mount_point(&place.dir()));
    drop(file);
    assert!(wait(server, LIMIT).unwrap().success());
    assert!(place.is_clean());
    place.mount(&[]);
    assert_eq!(fs::read(place.dir().join("file")).unwrap(), b"buffered");
    place.free(|| place.umount_command(&place.dir()));
}

/// A signal that found nothing at its place was the last one that was heard.
#[test]
fn signals_end_a_mount_that_was_taken_out_of_the_tree() {
    if !can_mount("ending a mount that was detached") {
        return;
    }
    let place = Place::new();
    let mut server = place.serve();
    let mut file = File::create(place.dir().join("file")).unwrap();
    assert_eq!(place.umount(&["--lazy"]).status.code(), Some(0));
    signal(&server, Signal::TERM);
    std::thread::sleep(Duration::from_millis(200));
    file.write_all(b"still served").unwrap();
    assert!(server.try_wait().unwrap().is_none(), "a program uses it");
    signal(&server, Signal::TERM);
    assert!(wait(server, LIMIT).unwrap().success());
    assert!(file.write_all(b"lost").is_err());
    assert!(place.is_clean());
}

/// It waited for the end of a server that had another place to serve.
#[test]
fn one_of_two_places_is_unmounted_at_once() {
    if !can_mount("a mount in two places") {
        return;
    }
    let place = Place::new();
    place.mount(&[]);
    let other = place.scratch.path().join("other");
    fs::create_dir(&other).unwrap();
    succeed(Command::new("mount").arg("--bind").args([place.dir(), other.clone()]), LIMIT);
    succeed(nacre().arg("umount").arg(&other), Duration::from_secs(30));
    assert!(is_mount_point(&place.dir()) && !is_mount_point(&other));
    fs::write(place.dir().join("file"), b"served").unwrap();
    place.free(|| place.umount_command(&place.dir()));
    assert!(place.is_clean());
    // Two servers, who only read.
    place.mount(&["-o", "ro"]);
    succeed(nacre().args(["mount", "-o", "ro"]).args([place.device(), other.clone()]), LIMIT);
    for dir in [place.dir(), other] {
        succeed(nacre().arg("umount").arg(&dir), Duration::from_secs(30));
        assert!(!is_mount_point(&dir));
    }
}

#[test]
fn the_next_mount_replaces_a_dead_one() {
    if !can_mount("replacing a dead mount") {
        return;
    }
    let place = Place::new();
    for round in 0..3 {
        let mounted = place.mount(&[]);
        assert_eq!(mounted.status.code(), Some(0), "{}", text(&mounted));
        assert_eq!(fs::read_dir(place.dir()).unwrap().count(), round);
        fs::write(place.dir().join(round.to_string()), b"acknowledged").unwrap();
        kill_process(place.server(), Signal::KILL).unwrap();
        until("it is dead", || rustix::fs::statfs(place.dir()).is_err());
    }
    let mounted = place.mount(&[]);
    assert_eq!(mounted.status.code(), Some(0), "{}", text(&mounted));
    let entries = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let layers = entries.lines().filter(|line| line.split(' ').nth(4) == place.dir().to_str()).count();
    assert_eq!(layers, 1, "dead mounts are cleared away");
    place.free(|| place.umount_command(&place.dir()));
}

#[test]
fn failures_have_the_exit_codes_of_mount() {
    if !can_mount("failures of mount") {
        return;
    }
    let place = Place::new();
    let code = |output: Output, word: &str| {
        assert!(text(&output).contains(word), "{word}: {}", text(&output));
        output.status.code()
    };
    assert_eq!(code(place.mount(&["-o", "unheard-of"]), "unheard-of"), Some(1));
    assert_eq!(code(place.mount(&["-o", "writeback,direct_io"]), "exclude"), Some(1));
    assert_eq!(code(place.mount(&["--require", "power"]), "pm.img"), Some(32));
    place.mount(&[]);
    let server = format!("process {} (nacre) has it", place.server().as_raw_nonzero());
    assert_eq!(code(place.mount(&[]), &server), Some(32));
    let place_in_words = format!("it is mounted on {}", place.dir().display());
    assert_eq!(code(place.mount(&[]), &place_in_words), Some(32));
    place.free(|| place.umount_command(&place.dir()));
    assert_eq!(code(place.umount(&[]), "nothing is mounted"), Some(1));
    assert_eq!(code(place.umount(&["-n"]), "nothing is mounted"), Some(1));
    fs::write(place.device(), vec![0; 1 << 20]).unwrap();
    assert_eq!(code(place.mount(&[]), "no nacre file system"), Some(32));
    let missing = run(nacre().args(["mount", "/nowhere"]).arg(place.dir()), LIMIT).unwrap();
    assert_eq!(code(missing, "/nowhere"), Some(32));
    let missing = run(nacre().arg("mount").arg(place.device()).arg("/nowhere"), LIMIT).unwrap();
    assert!(text(&missing).contains("no such directory") && !text(&missing).contains("os error"));
    assert_eq!(code(missing, "/nowhere"), Some(32));
    let file = run(nacre().arg("mount").args([place.device(), place.device()]), LIMIT).unwrap();
    assert_eq!(code(file, "not a directory"), Some(32));
    assert!(!is_mount_point(&place.dir()));
}

/// A dry run took a log for granted that the mount could not open.
#[test]
fn a_dry_run_looks_for_the_log() {
    if !can_mount("a dry run of a mount with a log") {
        return;
    }
    let place = Place::new();
    let log = |path: &str| format!("log={}", place.scratch.path().join(path).display());
    let missing = log("missing/log");
    for dry in [&["-n"][..], &[]] {
        let refused = place.mount(&[dry, &["-o", missing.as_str()]].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).contains("open the log"), "{}", text(&refused));
    }
    let would = place.mount(&["-n", "-o", log("log").as_str()]);
    assert!(would.status.success() && text(&would).contains("would be mounted"), "{}", text(&would));
    assert!(!place.scratch.path().join("log").exists() && !is_mount_point(&place.dir()));
}

#[test]
fn fstab_works_through_the_helpers() {
    if !can_mount("the helpers of mount(8)") {
        return;
    }
    let place = Place::new();
    let mount = |arguments: &[&str]| {
        let mut command = place.helper("mount.nacre");
        run(command.arg(place.device()).arg(place.dir()).args(arguments), LIMIT).unwrap().status.code()
    };
    assert_eq!(mount(&["-f", "-o", "rw"]), Some(0), "-f is a trial");
    assert!(!is_mount_point(&place.dir()));
    let options = "defaults,auto,nofail,_netdev,x-systemd.automount,user,noatime,nodev";
    assert_eq!(mount(&["-o", options, "-v", "-t", "nacre"]), Some(0));
    assert!(place.entry().contains("nodev"));
    let umount = |name: &str| {
        let mut command = place.helper(name);
        command.arg(place.dir()).arg("-n");
        command
    };
    place.free(|| umount("umount.nacre"));
    assert!(place.is_clean());
    assert_eq!(mount(&["-o", "compress=zstd"]), Some(1));
    assert_eq!(mount(&["-s", "-o", "compress=zstd"]), Some(0), "the sloppy pass over what is unknown");
    place.free(|| umount("umount.fuse.nacre"));
    let missing = |options: &str| {
        let mut command = place.helper("mount.fuse.nacre");
        run(command.arg("/nowhere").arg(place.dir()).args(["-o", options]), LIMIT).unwrap().status.code()
    };
    assert_eq!((missing("nofail"), missing("rw")), (Some(0), Some(32)));
}

#[test]
fn a_user_mounts_or_is_told_why_not() {
    const TEST: &str = "mounting as a user";
    if !can_mount(TEST) || !has_program(TEST, "setpriv") {
        return;
    }
    let place = Place::new();
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
    [place.memory.path(), &place.device(), &place.dir()].into_iter().for_each(own);
    let as_nobody = |arguments: &[&str], places: &[PathBuf]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        // The program itself may lie where the user cannot go.
        let program = place.scratch.path().join("nacre");
        if !program.exists() {
            fs::copy(env!("CARGO_BIN_EXE_nacre"), &program).unwrap();
        }
        run(command.arg(program).args(arguments).args(places), LIMIT).unwrap()
    };
    let mounted = as_nobody(&["mount"], &[place.device(), place.dir()]);
    if mounted.status.success() {
        let entry = place.entry();
        assert!(
            entry.contains("nosuid") && entry.contains("nodev") && !entry.contains("allow_other"),
            "{entry}"
        );
        let umounted = as_nobody(&["umount"], &[place.dir()]);
        assert!(umounted.status.success(), "{}", text(&umounted));
        assert!(place.is_clean());
    } else {
        assert_eq!(mounted.status.code(), Some(32));
        let said = text(&mounted);
        assert!(said.contains("mount as root") || said.contains("fusermount3"), "{said}");
    }
}
