//! The DRAM that a mount takes, and its server when DRAM is short.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crate::harness::{self, Ground, PRESETS};

const LIMIT: Duration = Duration::from_secs(60);

/// The information of a mount about itself.
fn info(ground: &Ground) -> serde_json::Value {
    let said = harness::succeed(harness::nacre().args(["info", "--json"]).arg(ground.dir()), LIMIT);
    serde_json::from_str(&said).expect("JSON")
}

fn inodes_in_dram(ground: &Ground) -> u64 {
    info(ground)["space"]["inodes_in_dram"].as_u64().expect("a number of inodes")
}

fn index_bytes(ground: &Ground) -> u64 {
    info(ground)["space"]["index_bytes"].as_u64().expect("bytes")
}

/// A file of the server's in /proc.
fn of_server(ground: &Ground, name: &str) -> String {
    let pid = info(ground)["mount"]["pid"].as_u64().expect("a process");
    fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it runs")
}

/// Bytes of DRAM that the server has for itself.
fn anonymous_bytes(ground: &Ground) -> u64 {
    let status = of_server(ground, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    let kib = line.trim().strip_suffix(" kB").expect("in KiB").parse::<u64>().expect("a number");
    kib << 10
}

fn make_files(dir: &Path, dirs: usize, files: usize) {
    for outer in 0..dirs {
        let dir = dir.join(format!("dir {outer}"));
        fs::create_dir(&dir).expect("a directory");
        for file in 0..files {
            fs::write(dir.join(format!("file {file}")), file.to_string()).expect("a file");
        }
    }
}

/// Looks at each file below a directory; gives how many there are.
fn look_at_all(dir: &Path) -> u64 {
    let mut count = 0;
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let found = fs::symlink_metadata(&path).expect("its attributes");
        count += if found.is_dir() { look_at_all(&path) } else { 1 };
    }
    count
}

/// Makes the kernel forget what it knows of names and inodes: a FUSE server gets FORGET for each.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").expect("drop_caches");
}

/// Some 750 bytes of each inode that was ever looked at stayed until the unmount.
#[test]
fn what_the_kernel_forgets_is_given_back() {
    if !harness::can_mount("DRAM of inodes that the kernel forgot") {
        return;
    }
    for preset in PRESETS {
        let mut ground = Ground::preset(preset, "128M", None);
        let name = ground.name().to_owned();
        make_files(&ground.dir(), 20, 1000);
        ground.remount();
        // With glibc's 7, what threads keep lies around many pages.
        for setting in ["tcache_count=2", "trim_threshold=524288"] {
            assert!(!cfg!(target_env = "gnu") || of_server(&ground, "environ").contains(setting));
        }
        // Threads and their buffers take their DRAM with the first requests.
        assert_eq!(look_at_all(&ground.dir().join("dir 0")), 1000);
        harness::until(&name, || {
            forget();
            inodes_in_dram(&ground) < 10
        });
        let (indexes, before) = (index_bytes(&ground), anonymous_bytes(&ground));
        // Other tests make the kernel forget, too.
        harness::until(&name, || look_at_all(&ground.dir()) == 20_000 && inodes_in_dram(&ground) > 15_000);
        let most = anonymous_bytes(&ground);
        // The layout `pool` keeps a held inode, and nothing of its contents.
        let each = if preset == "spfs" { 30 } else { 300 };
        assert!(index_bytes(&ground) > indexes + 15_000 * each, "{name}: {indexes}");
        harness::until(&name, || {
            forget();
            inodes_in_dram(&ground) < 10
        });
        assert!(index_bytes(&ground) <= indexes * 12 / 10, "{name}: {} of {indexes}", index_bytes(&ground));
        // Of 20,000 small objects, some pages stay in use for one of them. The server looks at its heap now and then.
        let kept = if preset == "spfs" { 2 << 20 } else { most.saturating_sub(before) / 4 };
        harness::until(&format!("{name}: {before} bytes before, {most} at most"), || {
            anonymous_bytes(&ground) < before + kept
        });
        // A file that is looked at again is there.
        assert_eq!(fs::read_to_string(ground.dir().join("dir 7/file 77")).expect("a file"), "77");
        ground.unmount();
        ground.fsck();
    }
}

/// The kernel knows all of them, and is asked for none.
#[test]
fn few_inodes_are_in_dram_where_few_may_be() {
    if !harness::can_mount("a limit of inodes in DRAM") {
        return;
    }
    for preset in PRESETS {
        let mut ground = Ground::preset(preset, "128M", Some("inode_cache=1024"));
        let name = ground.name().to_owned();
        let dir = ground.dir();
        let gone = dir.join("gone");
        fs::write(&gone, "it is open").expect("a file");
        let mut open = File::open(&gone).expect("an open file");
        make_files(&dir, 5, 1000);
        assert_eq!(look_at_all(&dir), 5001);
        fs::remove_file(&gone).expect("its name goes");
        harness::until(&name, || inodes_in_dram(&ground) <= 1100);
        assert_eq!(info(&ground)["space"]["inode_cache"], 1024);
        for (outer, file) in (0..5).flat_map(|outer| (0..1000).map(move |file| (outer, file))) {
            let path = dir.join(format!("dir {outer}/file {file}"));
            let said =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(said, file.to_string(), "{name}: {}", path.display());
        }
        harness::until(&name, || inodes_in_dram(&ground) <= 1100);
        let mut said = String::new();
        open.read_to_string(&mut said).expect("the file without a name");
        assert_eq!(said, "it is open", "{name}");
        drop(open);
        ground.unmount();
        ground.fsck();
    }
}

/// The server is what the kernel's OOM killer took first: it counts the pages of the device that is mapped as its own.
#[test]
fn other_processes_are_ended_before_the_server() {
    if !harness::can_mount("the OOM killer's score of a server") {
        return;
    }
    let ground = Ground::nacre("32M", None);
    let said = info(&ground);
    let pid = said["mount"]["pid"].as_u64().expect("a process");
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it runs");
    assert_eq!(said["mount"]["oom_score_adj"].to_string(), score.trim());
    // Root of a container may not.
    match score.trim() {
        "-999" => assert_eq!(ground.mount_log().matches("DRAM is short").count(), 0),
        _ => {
            let said = ground.mount_log();
            let words = ["when DRAM is short", "oom_score_adj", "OOMScoreAdjust=-999"];
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
    let text = harness::succeed(harness::nacre().arg("info").arg(ground.dir()), LIMIT);
    assert!(text.contains(&format!("oom_score_adj {}", score.trim())), "{text}");
}

/// A server that was killed can say nothing itself.
#[test]
fn a_server_that_died_is_told() {
    if !harness::can_mount("what is said of a server that died") {
        return;
    }
    let mut ground = Ground::nacre("32M", None);
    ground.kill();
    for command in ["df", "info"] {
        let output = harness::run(harness::nacre().arg(command).arg(ground.dir()), LIMIT).expect("it runs");
        let text = harness::text(&output);
        assert!(!output.status.success() && text.contains("its server has ended"), "{command}: {text}");
        assert!(text.contains("the next mount recovers it"), "{command}: {text}");
    }
    let text = harness::succeed(harness::nacre().arg("info").arg(ground.image()), LIMIT);
    assert!(text.contains("dead mount") && text.contains(&ground.dir().display().to_string()), "{text}");
    ground.mount();
    assert!(
        ground.mount_log().contains("the server of the previous mount here died"),
        "{}",
        ground.mount_log()
    );
}
