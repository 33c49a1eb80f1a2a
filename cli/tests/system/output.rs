//! Commands whose output is closed or full. They panicked, with a backtrace and the exit code 101.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{can_mount, memory, nacre, scratch, succeed, wait};
use crate::place::Place;

const LIMIT: Duration = Duration::from_secs(60);

/// A device without space, as standard output or standard error.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("every Linux has it").into()
}

/// A pipe without a reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

/// The exit code of a command with this standard output, and its standard error.
fn with_output(command: &mut Command, output: Stdio) -> (Option<i32>, String) {
    let mut errors = tempfile::tempfile().unwrap();
    let child = command.stdin(Stdio::null()).stdout(output).stderr(errors.try_clone().unwrap()).spawn();
    let status = wait(child.expect("the command starts"), LIMIT).expect("the command ends");
    let mut said = String::new();
    errors.rewind().unwrap();
    errors.read_to_string(&mut said).unwrap();
    (status.code(), said)
}

#[test]
fn a_failure_that_cannot_be_told_has_its_exit_code() {
    let dir = memory();
    let missing = dir.path().join("missing");
    for (words, code) in [
        ("mkfs", 1),
        ("mkfs --nonsense", 2),
        ("fsck -n", 8),
        ("fsck --nonsense", 16),
        ("df", 1),
        ("info", 1),
        ("umount", 1),
        ("umount -n", 1),
        ("stat", 1),
        ("demote", 1),
        ("bench report", 1),
    ] {
        for errors in [full(), closed()] {
            let mut command = nacre();
            command.args(words.split(' ')).arg(&missing).stdin(Stdio::null()).stdout(Stdio::null());
            let child = command.stderr(errors).spawn().expect("the command starts");
            assert_eq!(wait(child, LIMIT).expect("the command ends").code(), Some(code), "{words}");
        }
    }
}

#[test]
fn a_dry_run_says_that_its_output_is_full() {
    let (memory, scratch) = (memory(), scratch());
    let device = memory.path().join("pm.img");
    succeed(nacre().args(["mkfs", "--size", "64M"]).arg(&device), LIMIT);
    let mount = || {
        let mut command = nacre();
        command.args(["mount", "-n"]).args([device.as_path(), scratch.path()]);
        command
    };
    let (code, said) = with_output(&mut mount(), full());
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(said, "nacre: write: standard output: No space left on device\n");
    // No reader is left that could miss something.
    assert_eq!(with_output(&mut mount(), closed()), (Some(0), String::new()));
}

#[test]
fn a_dry_unmount_says_that_its_output_is_full_or_that_the_mount_is_busy() {
    if !can_mount("an unmount without output") {
        return;
    }
    let place = Place::new();
    assert!(place.mount(&[]).status.success());
    let umount = || {
        let mut command = nacre();
        command.args(["umount", "-n"]).arg(place.dir());
        command
    };
    let (code, said) = with_output(&mut umount(), full());
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said, "nacre: write: standard output: No space left on device\n");
    assert_eq!(with_output(&mut umount(), closed()), (Some(0), String::new()));
    // It said that a mount in use would be unmounted.
    fs::write(place.dir().join("file"), "data").unwrap();
    let open = File::open(place.dir().join("file")).unwrap();
    let (code, said) = with_output(&mut umount(), Stdio::null());
    assert!(code == Some(1) && said.contains("in use: process") && said.contains("--force"), "{said}");
    let (code, said) = with_output(umount().arg("--lazy"), Stdio::null());
    assert_eq!(code, Some(0), "{said}");
    drop(open);
    place.free(|| place.umount_command(&place.dir()));
}
