//! A read-only mount refuses every change with EROFS, and needs no right to write to the device. Stands in for the tests of
//! pjdfstest that remount, which cannot run anywhere.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use crate::harness::{self, Ground};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_read_only_mount_changes_nothing() {
    if !harness::can_mount("read-only mounts") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let dir = ground.dir();
    fs::create_dir(dir.join("dir")).expect("a directory");
    fs::write(dir.join("file"), "content").expect("a file");
    ground.unmount();
    let before = fs::read(ground.image()).expect("the image");

    ground.set_options(Some("ro"));
    ground.mount();
    let (file, other) = (dir.join("file"), dir.join("other"));
    let attempts: [(&str, io::Result<()>); 11] = [
        ("create", File::create_new(&other).map(drop)),
        ("open to write", OpenOptions::new().write(true).open(&file).map(drop)),
        ("open to truncate", OpenOptions::new().write(true).truncate(true).open(&file).map(drop)),
        ("mkdir", fs::create_dir(&other)),
        ("symlink", symlink("x", &other)),
        ("link", fs::hard_link(&file, &other)),
        ("rename", fs::rename(&file, &other)),
        ("unlink", fs::remove_file(&file)),
        ("rmdir", fs::remove_dir(dir.join("dir"))),
        ("chmod", fs::set_permissions(&file, Permissions::from_mode(0o600))),
        ("chown", std::os::unix::fs::chown(&file, Some(1), Some(1))),
    ];
    for (name, result) in attempts {
        let error = result.expect_err(name);
        assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{name}: {error}");
    }
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    let error = File::open(&file).expect("open to read").set_times(times).expect_err("utimensat");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS), "utimensat: {error}");
    let error =
        rustix::fs::setxattr(&file, "user.a", b"b", rustix::fs::XattrFlags::empty()).expect_err("setxattr");
    assert_eq!(error, rustix::io::Errno::ROFS, "setxattr");
    assert_eq!(fs::read_to_string(&file).expect("reading"), "content");
    ground.unmount();
    assert!(
        before == fs::read(ground.image()).expect("the image"),
        "a read-only mount has written to the device"
    );
}

/// It told of a crash that never was, and that everything is lost with the process, "in the heap only".
#[test]
fn a_read_only_mount_of_a_new_file_system_tells_of_no_crash() {
    if !harness::can_mount("read-only mounts of new file systems") {
        return;
    }
    let (memory, dir) = (harness::memory(), harness::scratch());
    let options = format!("ro,log={}", memory.path().join("log").display());
    for preset in ["nacre", "pmfs", "spfs", "bpfs"] {
        let image = memory.path().join(preset);
        let mkfs = ["mkfs", "--size", "32M", "--preset", preset];
        harness::succeed(harness::nacre().args(mkfs).arg(&image), LIMIT);
        let before = fs::read(&image).expect("the image");
        let mut mount = harness::nacre();
        mount.args(["mount", "-o", &options]).arg(&image).arg(dir.path());
        let said = harness::text(&harness::run(&mut mount, LIMIT).expect("an end"));
        assert!(!said.contains("clean unmount") && !said.contains("heap"), "{preset}: {said}");
        assert!(said.contains("safe against the death of the process"), "{preset}: {said}");
        let info = harness::run(harness::nacre().args(["info", "--json"]).arg(dir.path()), LIMIT);
        let info: serde_json::Value =
            serde_json::from_str(&harness::text(&info.expect("an end"))).expect("JSON");
        assert_eq!(info["device"]["promise"], "process", "{preset}");
        harness::succeed(harness::nacre().arg("umount").arg(dir.path()), LIMIT);
        assert!(before == fs::read(&image).expect("the image"), "{preset}");
    }
}
