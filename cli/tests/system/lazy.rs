//! A mount with our write buffer, whose server is killed: what was synchronised is there, and what replaced a file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{self, Ground};

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(30);
/// Nothing is written back of itself; on memory that is slower than DRAM, or else writes go past the buffer.
pub(crate) const LAZY: &str =
    "buffer=8M,buffer_age=86400000,tune=buffer_period:86400000,tune=emulate:latency=200";

#[test]
fn what_was_synchronised_survives_the_death_of_a_lazy_mount() {
    if !harness::can_mount("a lazy mount") {
        return;
    }
    let mut ground = Ground::nacre("128M", Some(LAZY));
    let path = |name: &str| ground.dir().join(name);
    let put = |name: &str, content: &[u8]| {
        let mut file = File::create(path(name)).expect("create");
        file.write_all(content).expect("write");
        file
    };
    for name in ["cut", "cut2", "target"] {
        put(name, b"old").sync_all().expect("fsync");
    }
    let long = vec![7; 300_000];
    put("synced", &long).sync_data().expect("fdatasync");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(libc::O_SYNC)
        .open(path("sync"))
        .expect("open");
    file.write_all(&long).expect("a synchronous write");
    drop(file);
    drop(put("cut", b"new in place of what was cut"));
    // A shell closes what it has cut before anything is written, through a copy of the handle.
    let mut shell = harness::program("sh");
    shell.arg("-c").arg("printf 'from a shell' >cut2").current_dir(ground.dir());
    harness::succeed(&mut shell, LIMIT);
    drop(put("new", b"new by a rename"));
    fs::rename(path("new"), path("target")).expect("rename");
    drop(put("waits", &long));
    assert_eq!(fs::read(path("waits")).expect("read"), long);
    let paths = ["synced", "sync", "cut", "cut2", "target", "waits"].map(path);
    ground.kill();
    ground.set_options(None);
    ground.mount();
    let [synced, sync, cut, cut2, target, waits] = paths.map(|path| fs::read(path).expect("read"));
    assert!(synced == long && sync == long);
    assert_eq!(cut, b"new in place of what was cut");
    assert_eq!(cut2, b"from a shell");
    assert_eq!(target, b"new by a rename");
    assert_eq!(waits, b"", "nobody asked for it, and the buffer was not full");
    ground.unmount();
    ground.fsck();
}

/// What waits is written soon after the mount is told to wait no longer; what cannot be changed is refused.
#[test]
fn a_remount_changes_how_long_writes_wait() {
    if !harness::can_mount("a remount") {
        return;
    }
    let mut ground = Ground::nacre("128M", Some(LAZY));
    let content = vec![7; 300_000];
    let path = ground.dir().join("waits");
    fs::write(&path, &content).expect("write");
    let info = |ground: &Ground| {
        let said = harness::succeed(harness::nacre().args(["info", "--json"]).arg(ground.dir()), LIMIT);
        serde_json::from_str::<serde_json::Value>(&said).expect("JSON")
    };
    assert!(info(&ground)["cache"]["used"].as_u64().expect("a number") >= 300_000);
    let remount = |options: &str| {
        let mut command = harness::nacre();
        command.args(["mount", "-o", options]).arg(ground.image()).arg(ground.dir());
        harness::run(&mut command, LIMIT).expect("it runs")
    };
    for (options, word) in [
        ("remount,sync", "\"sync\" cannot be changed"),
        ("remount,buffer=16M", "size"),
        ("remount,tune=buffer_low:90", "buffer_high"),
    ] {
        let refused = remount(options);
        assert!(!refused.status.success() && harness::text(&refused).contains(word), "{refused:?}");
    }
    assert_eq!(
        remount("remount,rw,buffer_age=10,tune=buffer_period:20,tune=buffer_forget:30").status.code(),
        Some(0)
    );
    let told = info(&ground);
    let options = told["mount"]["options"].as_str().expect("options");
    assert!(
        ["buffer_age=10", "tune=buffer_period:20", "tune=buffer_forget:30"]
            .iter()
            .all(|set| options.contains(set)),
        "{options}"
    );
    let end = Instant::now() + LIMIT;
    while info(&ground)["cache"]["used"].as_u64() != Some(0) {
        assert!(Instant::now() < end, "it still waits: {}", info(&ground)["cache"]);
        thread::sleep(Duration::from_millis(20));
    }
    ground.kill();
    ground.set_options(None);
    ground.mount();
    assert!(fs::read(&path).expect("read") == content);
    ground.unmount();
    ground.fsck();
}

/// sync(2) and syncfs(2) reach what the kernel buffers, and a lazy mount not at all: nothing of what it was told to keep may
/// be claimed for them.
#[test]
fn what_syncs_of_each_kind_reach() {
    if !harness::can_mount("sync, syncfs and fsync") {
        return;
    }
    for (options, is_reached) in [(None, true), (Some("writeback"), true), (Some(LAZY), false)] {
        for call in ["sync", "syncfs", "fsync"] {
            let mut ground = Ground::nacre("64M", options);
            let content = vec![7; 300_000];
            // The kernel may have learnt from the first that there is nothing to ask for.
            let paths = ["first", "second"].map(|name| ground.dir().join(name));
            for path in &paths {
                fs::write(path, &content).expect("write");
                match call {
                    "sync" => rustix::fs::sync(),
                    "syncfs" => rustix::fs::syncfs(File::open(ground.dir()).expect("open")).expect("syncfs"),
                    _ => File::open(path).and_then(|file| file.sync_all()).expect("fsync"),
                }
            }
            ground.kill();
            ground.set_options(None);
            ground.mount();
            for path in &paths {
                let found = fs::read(path).expect("read");
                let is_there = is_reached || call == "fsync";
                assert_eq!(found == content, is_there, "{options:?}, {call}: {} bytes", found.len());
            }
            ground.unmount();
            ground.fsck();
        }
    }
}
