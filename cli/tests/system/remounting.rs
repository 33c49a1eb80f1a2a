//! `mount -o remount` by mount(8) and by the command: flags of the kernel, and what the server makes of them.

use std::fs::{self, File};
use std::io::Write;
use std::process::Output;
use std::time::Duration;

use crate::harness::{can_mount, nacre, run, succeed, text, until};
use crate::place::Place;

const LIMIT: Duration = Duration::from_secs(60);

fn remount(place: &Place, options: &str) -> Output {
    place.mount(&["-o", &format!("remount,{options}")])
}

/// Remounts, again while a program that another test starts has a copy of a file that was open for writing.
fn remounted(place: &Place, options: &str) {
    until("it is remounted", || {
        let output = remount(place, options);
        let busy = text(&output).contains("in use");
        assert!(busy || output.status.success(), "{options}: {}", text(&output));
        !busy
    });
}

/// The options that the server says, and those of the kernel for this mount and for the file system.
fn options(place: &Place) -> (String, String, String) {
    let info = succeed(nacre().args(["info", "--json"]).arg(place.dir()), LIMIT);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let entry = place.entry();
    let fields: Vec<&str> = entry.split(' ').collect();
    (
        info["mount"]["options"].as_str().unwrap().to_owned(),
        fields[5].to_owned(),
        fields.last().unwrap().to_string(),
    )
}

/// It printed nothing.
#[test]
fn a_dry_run_of_a_remount_prints_the_changes() {
    if !can_mount("a dry run of a remount") {
        return;
    }
    let place = Place::new();
    assert!(place.mount(&["-o", "rw"]).status.success());
    for (options, changes) in [("ro,noexec", "ro,noexec"), ("rw", "nothing"), ("noatime", "noatime")] {
        let dry = place.mount(&["-n", "-o", &format!("remount,{options}")]);
        let said = text(&dry);
        let is_said = said.trim_end().ends_with(&format!("would be changed by a remount: {changes}"));
        assert!(dry.status.success() && is_said, "{options}: {said}");
    }
    let (server, mount, _) = options(&place);
    assert!(server.starts_with("rw") && mount.starts_with("rw"), "{server} {mount}");
    assert!(!mount.contains("noexec") && !mount.contains("noatime"), "{mount}");
    succeed(nacre().arg("umount").arg(place.dir()), LIMIT);
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    if !can_mount("remounting read-only") {
        return;
    }
    for options_of_mount in
        ["rw", "buffer=8M,tune=buffer_period:600000,buffer_age=600000,tune=emulate:latency=100"]
    {
        let place = Place::new();
        assert!(place.mount(&["-o", options_of_mount]).status.success());
        let path = place.dir().join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"accepted").unwrap();
        // As for the file systems of the kernel: not under a writer.
        let refused = remount(&place, "ro");
        assert_eq!(refused.status.code(), Some(32));
        let said = text(&refused);
        assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
        assert!(said.contains(&format!("has {} open for writing", path.display())), "{said}");
        file.write_all(b", still").unwrap();
        drop(file);
        remounted(&place, "ro,noatime");
        let (server, mount, of_all) = options(&place);
        assert!(server.starts_with("ro,noatime"), "{server}");
        assert!(
            mount.starts_with("ro") && mount.contains("noatime") && of_all.starts_with("ro"),
            "{mount} {of_all}"
        );
        let error = fs::write(place.dir().join("other"), b"").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        // Nothing waits any more: what was accepted survives a server that is killed.
        let said = text(&remount(&place, "tune=tier_group:64K"));
        assert!(said.contains("cannot be set while it is read-only"), "{said}");
        rustix::process::kill_process(place.server(), rustix::process::Signal::KILL).unwrap();
        until("it is dead", || rustix::fs::statfs(place.dir()).is_err());
        assert!(place.mount(&["-o", options_of_mount]).status.success());
        assert_eq!(fs::read(&path).unwrap(), b"accepted, still");
        remounted(&place, "ro");
        remounted(&place, "rw,tune=tier_group:64K");
        assert!(options(&place).0.starts_with("rw") && options(&place).0.contains("tune=tier_group:64K"));
        fs::write(&path, b"again").unwrap();
        place.free(|| place.umount_command(&place.dir()));
        assert!(place.is_clean());
        // A device that was opened to read cannot be written.
        assert!(place.mount(&["-o", "ro"]).status.success());
        let said = text(&remount(&place, "rw"));
        assert!(said.contains("it was mounted read-only"), "{said}");
        assert_eq!(fs::read(&path).unwrap(), b"again");
        place.free(|| place.umount_command(&place.dir()));
    }
}

#[test]
fn flags_of_a_mount_are_changed_and_kept() {
    if !can_mount("remounting with other flags") {
        return;
    }
    let place = Place::new();
    assert!(place.mount(&[]).status.success());
    remounted(&place, "nosuid,noexec,nosymfollow");
    let (server, mount, of_all) = options(&place);
    assert_eq!(
        (server.as_str(), mount.as_str()),
        ("rw,nosuid,noexec,nosymfollow", "rw,nosuid,noexec,relatime,nosymfollow")
    );
    assert!(of_all.starts_with("rw"), "{of_all}");
    let program = place.dir().join("true");
    fs::copy("/bin/true", &program).unwrap();
    assert!(std::process::Command::new(&program).status().is_err(), "noexec");
    // Flags that are not named stay.
    remounted(&place, "nodev,noatime");
    assert_eq!(options(&place).1, "rw,nosuid,nodev,noexec,noatime,nosymfollow");
    remounted(&place, "dev,suid,exec,symfollow,relatime");
    let (server, mount, _) = options(&place);
    assert_eq!((server.as_str(), mount.as_str()), ("rw", "rw,relatime"));
    assert!(std::process::Command::new(&program).status().unwrap().success());
    // As mount(8) hands it on: what is not named is off.
    let helper = |options: &str| {
        let mut command = place.helper("mount.nacre");
        run(command.arg(place.device()).arg(place.dir()).args(["-o", options]), LIMIT).unwrap()
    };
    assert!(helper("rw,relatime,remount,noexec,user_id=0,group_id=0,uhelper=nacre").status.success());
    assert_eq!(options(&place).1, "rw,noexec,relatime");
    assert!(helper("rw,noexec,relatime,remount,nosuid").status.success());
    assert!(helper("rw,remount,nosuid").status.success());
    assert_eq!(options(&place).1, "rw,nosuid,relatime");
    for (wrong, word) in [("sync", "\"sync\""), ("unheard-of", "unheard-of"), ("threads=9", "threads=9")] {
        let refused = remount(&place, wrong);
        assert!(!refused.status.success() && text(&refused).contains(word), "{}", text(&refused));
    }
    place.free(|| place.umount_command(&place.dir()));
}

#[test]
fn access_times_follow_a_remount() {
    if !can_mount("access times after a remount") {
        return;
    }
    let place = Place::new();
    let path = place.dir().join("file");
    // Over unmounts, as the kernel keeps times itself meanwhile.
    let moves = |options: &str| {
        let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert!(place.mount(&[]).status.success());
        fs::write(&path, b"read").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_times(fs::FileTimes::new().set_accessed(old)).unwrap();
        drop(file);
        place.free(|| place.umount_command(&place.dir()));
        assert!(place.mount(&[]).status.success());
        remounted(&place, options);
        fs::read(&path).unwrap();
        place.free(|| place.umount_command(&place.dir()));
        assert!(place.mount(&[]).status.success());
        let accessed = fs::metadata(&path).unwrap().accessed().unwrap();
        place.free(|| place.umount_command(&place.dir()));
        accessed != old
    };
    assert_eq!((moves("relatime"), moves("noatime"), moves("noatime,relatime")), (true, false, true));
}

#[test]
fn options_of_other_file_systems_are_said_to_change_nothing() {
    if !can_mount("options of other file systems") {
        return;
    }
    let place = Place::new();
    let mounted =
        place.mount(&["-o", "acl,user_xattr,lazytime,errors=remount-ro,commit=5,discard,context=system_u"]);
    assert!(mounted.status.success(), "{}", text(&mounted));
    let said = text(&mounted);
    for option in ["lazytime", "errors=remount-ro", "commit=5", "discard", "context=system_u"] {
        assert!(said.contains(&format!("the option {option:?} has no effect")), "{option}: {said}");
    }
    assert!(!said.contains("acl") && !said.contains("user_xattr"), "{said}");
    place.free(|| place.umount_command(&place.dir()));
}

/// The log says what becomes of a mount, with times that people read.
#[test]
fn the_log_tells_of_a_mount_from_its_begin_to_its_end() {
    if !can_mount("the log of a mount") {
        return;
    }
    let place = Place::new();
    let log = place.scratch.path().join("log");
    let option = format!("log={}", log.display());
    let told = || fs::read_to_string(&log).unwrap();
    let mounted_line =
        format!("{}: mounted on {} by nacre ", place.device().display(), place.dir().display());
    let unmounted_line = format!("{}: unmounted from {}\n", place.device().display(), place.dir().display());
    assert!(place.mount(&["-o", &option]).status.success());
    assert!(told().contains(&mounted_line) && told().contains("options rw\n"), "{}", told());
    assert!(!told().contains("recovered"), "it is new: {}", told());
    remounted(&place, "nosuid");
    assert!(
        told().contains(&format!("{}: remounted, options rw,nosuid\n", place.dir().display())),
        "{}",
        told()
    );
    fs::write(place.dir().join("file"), b"kept").unwrap();
    rustix::process::kill_process(place.server(), rustix::process::Signal::KILL).unwrap();
    until("it is dead", || rustix::fs::statfs(place.dir()).is_err());
    assert!(place.mount(&["-o", &option]).status.success());
    assert!(told().contains("there was no clean unmount; recovered in "), "{}", told());
    place.free(|| place.umount_command(&place.dir()));
    assert_eq!((told().matches(&mounted_line).count(), told().matches(&unmounted_line).count()), (2, 1));
    for line in told().lines() {
        let time = line.split(' ').next().unwrap();
        let is_right = time.len() == "2026-11-26T15:00:10.123+00:00".len() && time.as_bytes()[10] == b'T';
        assert!(is_right, "{line}");
    }
}
