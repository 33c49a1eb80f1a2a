//! Tiers as people use them: added, filled, drained, replaced, pulled out and put back on a mount.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::ptr;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::harness::{
    self, Ground, can_mount, has_program, memory, nacre, run, scratch, succeed, text, until, wait,
};

pub(super) const LIMIT: Duration = Duration::from_secs(120);
pub(super) const MIB: usize = 1 << 20;

pub(super) fn content(number: usize) -> Vec<u8> {
    (0..MIB).map(|at| (at / 4096 * 31 + number) as u8).collect()
}

/// A command on places, which must succeed; what it prints as JSON.
pub(super) fn json<P: AsRef<Path>>(words: &str, places: &[P]) -> Value {
    let mut command = nacre();
    command.args(words.split(' ')).arg("--json").args(places.iter().map(AsRef::as_ref));
    let said = succeed(&mut command, LIMIT);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{words}: {error}: {said}"))
}

/// The same, of which the words count.
pub(super) fn said(words: &str, places: &[&Path]) -> (Output, String) {
    let output = run(nacre().args(words.split(' ')).args(places), LIMIT).unwrap();
    let text = text(&output);
    (output, text)
}

pub(super) fn refused(words: &str, places: &[&Path], why: &str) {
    harness::fails(nacre().args(words.split(' ')).args(places), &[why], LIMIT);
}

pub(super) fn tiers(dir: &Path) -> Vec<Value> {
    json("tier list", &[dir])["tiers"].as_array().unwrap().clone()
}

/// Which tiers a file has blocks on; 0 for persistent memory.
pub(super) fn places(file: &Path) -> Vec<u64> {
    let said = json("stat", &[file]);
    let extents = said["extents"].as_array().unwrap().iter();
    let mut found: Vec<u64> = extents.map(|extent| extent["tier"].as_u64().unwrap_or(0)).collect();
    found.dedup();
    found
}

pub(super) fn write(dir: &Path, numbers: std::ops::Range<usize>) -> Vec<PathBuf> {
    let put = |number: usize| {
        let path = dir.join(number.to_string());
        fs::write(&path, content(number)).unwrap();
        path
    };
    numbers.map(put).collect()
}

pub(super) fn assert_content(dir: &Path, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let found = fs::read(dir.join(number.to_string())).unwrap();
        assert!(found == content(number), "file {number}");
    }
}

#[test]
fn files_move_down_and_up_and_a_tier_is_replaced() {
    if !can_mount("tiers on a mount") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    // Where a mount looks for them.
    let (dir, beside) = (ground.dir(), ground.image().parent().unwrap().to_owned());
    let [first, second, third] = ["first", "second", "third"].map(|name| beside.join(name));
    refused("demote", &[&dir], "no tier in use");
    assert_eq!(tiers(&dir).len(), 0);

    // Nothing is overwritten by mistake, and a dry run does nothing.
    fs::write(&first, b"a letter").unwrap();
    refused("tier add", &[&dir, &first], "not empty");
    fs::remove_file(&first).unwrap();
    refused("tier add", &[&dir, &first], "give a size");
    refused("tier add --size 64M", &[&dir, &dir.join("inside")], "on the file system");
    succeed(nacre().args(["tier", "add", "-n", "--size", "64M"]).args([&dir, &first]), LIMIT);
    assert!(!first.exists());
    assert_eq!(json("tier add --size 96M", &[&dir, &first])["tier"], 1);
    refused("tier add", &[&dir, &first], "");
    let total = json("df", &[&dir])["file_systems"][0]["total"].as_u64().unwrap();
    assert!(total > 150 << 20, "{total}");

    let sub = dir.join("sub");
    fs::create_dir(&sub).unwrap();
    write(&sub, 0..8);
    fs::hard_link(sub.join("3"), dir.join("again")).unwrap();
    refused("demote", &[&sub], "-r includes");
    let all = 8 * MIB as u64;
    assert_eq!(json("demote -r -n", &[&sub])["files"], 8);
    // A file with names in two of the paths counted twice.
    assert_eq!(json("demote -r -n", &[&sub, &dir.join("again")])["files"], 8);
    assert_eq!(json("pin -r -n", &[sub.join("3"), dir.join("again")])["count"], 1);
    assert_eq!(json("demote -r", &[&dir])["moved"], all);
    assert_eq!(places(&sub.join("3")), [1]);
    let list = &tiers(&dir)[0];
    assert_eq!(list["size"].as_u64().unwrap() - list["free"].as_u64().unwrap(), all);
    ground.remount();
    assert_content(&sub, 0..8);
    assert_eq!(json("promote", &[sub.join("0")])["moved"], MIB as u64);
    assert_eq!((places(&sub.join("0")), places(&sub.join("1"))), (vec![0], vec![1]));

    // Everything goes to the other tier, and then to one that takes its place.
    assert_eq!(json("tier add --size 64M --rank 7", &[&dir, &second])["tier"], 2);
    assert_eq!(json("tier remove -n", &[&dir, Path::new("1")])["dry_run"], true);
    refused("tier remove", &[&dir, Path::new("9")], "no tier of this file system");
    let removed = json("tier remove", &[&dir, &first]);
    assert_eq!((removed["tier"].as_u64(), removed["moved"].as_u64()), (Some(1), Some(all - MIB as u64)));
    assert_eq!(places(&sub.join("1")), [2]);
    refused("tier replace", &[&dir, Path::new("2"), &second], "it is the device of that tier already");
    let replaced = json("tier replace --size 64M", &[dir.as_path(), Path::new("2"), &third]);
    assert_eq!(replaced["moved"].as_u64(), Some(all - MIB as u64));
    let list = tiers(&dir);
    assert_eq!((list.len(), list[0]["rank"].as_u64()), (1, Some(7)));
    assert_eq!(places(&sub.join("1")), [1]);
    // What was a tier can be one again.
    assert_eq!(json("tier add -f", &[&dir, &first])["tier"], 2);
    json("tier drain", &[&dir, Path::new("2")]);
    assert_eq!(tiers(&dir)[1]["draining"], true);
    json("tier drain --cancel", &[&dir, Path::new("2")]);
    assert_eq!(tiers(&dir)[1]["draining"], false);
    ground.remount();
    assert_content(&sub, 0..8);
    ground.unmount();
    ground.fsck();
}

/// Each file had a write and a flush of its own, and the first one that could not move ended it all.
#[test]
fn many_files_move_together_and_one_that_cannot_stops_no_other() {
    const FILES: usize = 5000;
    const FEW: usize = 40;
    if !can_mount("many files that move") {
        return;
    }
    let mut ground = Ground::nacre("128M", None);
    let dir = ground.dir();
    json("tier add --size 128M", &[&dir, &ground.image().parent().unwrap().join("disk")]);
    let (many, few) = (dir.join("many"), dir.join("few"));
    for (sub, files) in [(&many, FILES), (&few, FEW)] {
        fs::create_dir(sub).unwrap();
        (0..files).for_each(|number| fs::write(sub.join(number.to_string()), number.to_string()).unwrap());
    }
    let count = |answer: &Value, field: &str| answer[field].as_u64().unwrap_or_else(|| panic!("{answer}"));
    let dry = json("demote -r -n", &[&many]);
    assert_eq!((count(&dry, "files"), count(&dry, "moved")), (FILES as u64, 0));
    let went = json("demote -r", &[&many]);
    let all = FILES as u64 * 4096;
    assert_eq!(
        (count(&went, "files"), count(&went, "moved"), count(&went, "failed")),
        (FILES as u64, all, 0)
    );
    let writes = count(&tiers(&dir)[0], "writes");
    assert!(writes <= FILES as u64 / 20, "{writes} writes");
    let came = json("promote -r", &[&many]);
    assert_eq!((count(&came, "moved"), count(&came, "failed")), (all, 0));

    refused("demote -r --tier 9", &[&many], "no such tier");

    // A file cannot be read.
    let stat = json("stat", &[few.join("17")]);
    let at = stat["extents"][0]["block"].as_u64().unwrap() * 4096;
    ground.unmount();
    ground.set_options(Some(&format!("tune=emulate:poison={at}+64")));
    ground.mount();
    let (output, words) = said("demote -r", &[&few]);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("few/17: ") && words.contains("40 files, 156 KiB moved, 1 failed"), "{words}");
    assert_eq!(words.matches("demote: ").count(), 1, "{words}");
    for number in 0..FEW {
        assert_eq!(places(&few.join(number.to_string())), [u64::from(number != 17)], "file {number}");
    }
    let output = run(nacre().args(["demote", "-r", "--json"]).arg(&few), LIMIT).unwrap();
    let again: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((count(&again, "files"), count(&again, "moved"), count(&again, "failed")), (FEW as u64, 0, 1));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    for number in (0..FEW).filter(|number| *number != 17) {
        assert_eq!(fs::read(few.join(number.to_string())).unwrap(), number.to_string().as_bytes());
    }
}

#[test]
fn what_is_on_a_tier_that_was_pulled_out_fails_until_it_is_back() {
    const TEST: &str = "a tier that is pulled out";
    if !can_mount(TEST) {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let dir = ground.dir();
    let disk = ground.beside().join("disk");
    json("tier add --size 64M", &[&dir, &disk]);
    write(&dir, 0..4);
    json("demote", &[dir.join("0"), dir.join("1")]);
    // Nothing of it is in the kernel's cache, or in ours.
    ground.unmount();
    let (away, elsewhere) = (scratch(), memory());
    let moved = away.path().join("a,name");
    fs::rename(&disk, &moved).unwrap();
    ground.mount();
    let missing = |dir: &Path| tiers(dir)[0]["missing"].is_string();
    assert!(missing(&dir));
    let fails = |number: usize| {
        let error = fs::read(dir.join(number.to_string())).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "file {number}");
    };
    (0..10).for_each(|_| fails(0));
    assert_content(&dir, 2..4);
    write(&dir, 4..6);
    // It was said once, and not again by each who asks for what is on it.
    let log = ground.mount_log();
    assert_eq!(log.matches("tier 1").count(), 1, "{log}");
    assert!(log.contains("tier 1 is missing"), "{log}");
    // An older copy is not taken for it, nor another tier.
    let copy = elsewhere.path().join("copy");
    fs::copy(&moved, &copy).unwrap();
    assert_eq!(json("tier online", &[&dir, &moved])["tier"], 1);
    assert_content(&dir, 0..6);
    json("tier offline", &[&dir, Path::new("1")]);
    assert!(missing(&dir));
    // A device that was to take its place was a tier afterwards, although nothing could move to it.
    let third = ground.beside().join("third");
    for replace in ["tier replace --size 64M", "tier replace -n --size 64M"] {
        refused(replace, &[&dir, Path::new("1"), &third], "bring its device back");
    }
    assert!(tiers(&dir).len() == 1 && !third.exists());
    refused("tier online", &[&dir, &copy], "not used together with this file system last");
    refused("tier online", &[&dir, &dir.join("0")], "on the file system");
    refused("tier online", &[&dir, Path::new("/etc/passwd")], "");
    json("tier online", &[&dir, &moved]);
    assert_content(&dir, 0..6);
    let log = ground.mount_log();
    assert!(log.contains("tier 1 is missing: it was taken offline"), "{log}");
    assert_eq!(log.matches("tier 1 is there").count(), 2, "{log}");

    // By an option that says where it is.
    let option = format!("\"tier={}\"", moved.display());
    ground.unmount();
    ground.set_options(Some(&option));
    ground.mount();
    assert!(!missing(&dir));
    let info = json("info", &[&dir]);
    assert!(info["mount"]["options"].as_str().unwrap().contains("a,name"), "{info}");
    assert_eq!(info["tiers"][0]["number"], 1);
    assert_content(&dir, 0..6);
    // A remount, by which nothing changes, takes what fstab says.
    let image = ground.image().to_owned();
    let remount = format!("remount,{option}");
    succeed(nacre().args(["mount", "-o", &remount]).arg(&image).arg(&dir), LIMIT);
    let other = run(nacre().args(["mount", "-o", "remount,tier=/dev/null"]).arg(&image).arg(&dir), LIMIT);
    assert!(text(&other.unwrap()).contains("nacre tier online"));
    ground.unmount();
    ground.fsck();
}

#[test]
fn the_mover_keeps_memory_from_being_full_and_pinned_files_stay() {
    const TEST: &str = "the mover on a mount";
    if !can_mount(TEST) {
        return;
    }
    let ground = Ground::nacre("64M", None);
    let dir = ground.dir();
    json("tier add --size 256M", &[&dir, &ground.beside().join("disk")]);
    let kept = dir.join("kept");
    fs::create_dir(&kept).unwrap();
    assert_eq!(json("pin", &[&kept])["count"], 1);
    write(&kept, 0..10);
    write(&dir, 10..100);
    // What would be done is not done.
    let (output, words) = said("mover pause -n", &[&dir]);
    assert!(
        output.status.success() && words.contains("blocks would move only when a write finds no space"),
        "{words}"
    );
    let dry = json("mover limit -n", &[&dir, Path::new("1G")]);
    assert_eq!((&dry["dry_run"], dry["rate"].is_null(), &dry["paused"]), (&true.into(), true, &false.into()));
    let paused = json("mover pause", &[&dir]);
    assert_eq!((&paused["paused"], &paused["dry_run"]), (&true.into(), &false.into()));
    assert_eq!(json("mover resume -n", &[&dir])["paused"], true);
    refused("mover wait", &[&dir], "paused");
    // What waits is named, with the cause, as soon as the mover has looked.
    let mut waiting = Vec::new();
    until("the mover has looked", || {
        waiting.clone_from(json("mover status", &[&dir])["queue"]["first"].as_array().unwrap());
        !waiting.is_empty()
    });
    assert!(
        waiting.iter().all(|queued| queued["why"] == "paused" && queued["way"] == "space"),
        "{waiting:?}"
    );
    let (_, words) = said("mover status", &[&dir]);
    assert!(words.contains("waits:") && words.contains("because space is short: it is paused"), "{words}");
    json("mover resume", &[&dir]);
    assert_eq!(json("mover limit", &[&dir, Path::new("1G")])["rate"], 1 << 30);
    json("mover limit", &[&dir, Path::new("none")]);
    let status = json("mover wait --timeout 60", &[&dir]);
    assert!(status["idle"] == true && status["moved"].as_u64().unwrap() > 20 << 20, "{status}");
    let percent = |field: &str| status[field].as_f64().unwrap();
    assert!(percent("usage_percent") <= percent("threshold_percent"), "{status}");
    assert_eq!((places(&kept.join("0")), places(&dir.join("10"))), (vec![0], vec![1]));
    assert_content(&kept, 0..10);
    assert_content(&dir, 10..100);
    assert_eq!(json("unpin -r", &[&kept])["count"], 11);
    let (output, words) = said("mover status", &[&dir]);
    assert!(output.status.success() && words.contains("% in use"), "{words}");
    // A file that was told to go where it cannot is named.
    let told = rustix::fs::setxattr(kept.join("0"), "user.nacre.tier", b"9", rustix::fs::XattrFlags::empty());
    assert_eq!(told, Err(rustix::io::Errno::INVAL));
    let (_, words) = said("mover status", &[&dir]);
    assert!(words.contains(" kept/0: user.nacre.tier of \"9\": ") && !words.contains("inode "), "{words}");
    // Only who mounted it changes this.
    if has_program(TEST, "setpriv") {
        let as_nobody = |words: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
            let output = run(command.arg(env!("CARGO_BIN_EXE_nacre")).args(words).arg(&dir), LIMIT).unwrap();
            (output.status.success(), text(&output))
        };
        let (done, words) = as_nobody(&["mover", "pause"]);
        assert!(!done && words.contains("only root"), "{words}");
        assert!(as_nobody(&["tier", "list"]).0);
    }
}

#[test]
fn top_shows_places_and_traffic_and_ends_with_the_mount() {
    if !can_mount("top on a mount") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let dir = ground.dir();
    // Without tiers, too.
    let now = json("top", &[&dir]);
    assert_eq!((now["places"][0]["name"].as_str(), now["schema"].as_u64()), (Some("pm"), Some(1)));
    json("tier add --size 64M", &[&dir, &ground.beside().join("disk")]);
    write(&dir, 0..4);
    json("demote", &[dir.join("0"), dir.join("1")]);
    let place = |now: &Value, name: &str| {
        let places = now["places"].as_array().unwrap();
        places.iter().find(|place| place["name"] == name).unwrap_or_else(|| panic!("{now}")).clone()
    };
    let now = json("top", &[&dir]);
    let (memory, tier) = (place(&now, "pm"), place(&now, "tier 1"));
    assert!(memory["written"].as_u64().unwrap() >= 4 * MIB as u64, "{now}");
    assert_eq!((tier["used"].as_u64(), tier["written"].as_u64()), (Some(2 << 20), Some(2 << 20)), "{now}");
    assert!(
        tier["writes"].as_u64().unwrap() >= 2 && place(&now, "dram")["size"].as_u64().unwrap() >= 64 << 20
    );
    // The same as text, where nobody looks at a terminal; and line by line.
    for words in ["top --once", "top"] {
        let (output, text) = said(words, &[&dir]);
        assert!(output.status.success() && text.contains("tier 1") && text.contains("mover"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    let (output, lines) = said("top --json --interval 0.1 --count 3", &[&dir]);
    let looks: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(output.status.success() && looks.len() == 3, "{lines}");
    assert!(looks[0]["at_ms"].as_u64() < looks[2]["at_ms"].as_u64(), "{lines}");
    let status = json("mover status", &[&dir]);
    assert!(status["phase"].is_string() && status["cache_size"].as_u64() == Some(64 << 20), "{status}");
    let remount = |options: &str| {
        run(nacre().args(["mount", "-o", options]).arg(ground.image()).arg(&dir), LIMIT).unwrap()
    };
    let done = remount("remount,tier_cache=8M,tune=tier_balance:off");
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(json("mover status", &[&dir])["cache_size"].as_u64(), Some(8 << 20));
    let options = json("info", &[&dir])["mount"]["options"].as_str().unwrap().to_owned();
    assert!(options.contains("tier_cache=8M,tune=tier_balance:off"), "{options}");
    // A window of an hour that begins after the next full hour but one.
    let hour = Command::new("date").arg("+%H").output().unwrap().stdout;
    let hour: u64 = String::from_utf8(hour).unwrap().trim().parse().unwrap();
    let hours = format!("{:02}:00-{:02}:00", (hour + 2) % 24, (hour + 3) % 24);
    let done = remount(&format!("remount,mover_hours={hours},mover_limit=64M"));
    assert!(done.status.success(), "{}", text(&done));
    let status = json("mover status", &[&dir]);
    assert_eq!((&status["hours"], &status["rate"]), (&hours[..].into(), &(64 << 20).into()), "{status}");
    assert_eq!(status["next_window"], hours[..5], "{status}");
    let (_, words) = said("info", &[&dir]);
    assert!(words.contains(&format!("outside its hours, {hours}, until {}", &hours[..5])), "{words}");
    let done = remount("remount,mover_hours=always,mover_limit=none");
    assert!(done.status.success(), "{}", text(&done));
    let status = json("mover status", &[&dir]);
    assert!(
        status["hours"].is_null() && status["rate"].is_null() && status["next_window"].is_null(),
        "{status}"
    );
    let wrong = remount("remount,tune=tier_group:5000");
    assert!(!wrong.status.success() && text(&wrong).contains("whole blocks"), "{}", text(&wrong));
    refused("top --interval 0", &[&dir], "seconds");
    refused("top", &[Path::new("/proc")], "not on a mounted nacre file system");
    // What it looked at goes away.
    let out = scratch();
    let said = fs::File::create(out.path().join("said")).unwrap();
    let mut command = nacre();
    command.args(["top", "--json", "--interval", "0.2"]).arg(&dir).stdout(Stdio::null()).stderr(said);
    let child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    ground.unmount();
    let status = wait(child, LIMIT).unwrap();
    let said = fs::read_to_string(out.path().join("said")).unwrap();
    assert!(status.code() == Some(1) && said.contains("it is not mounted any more"), "{said}");
}

/// Both ends of a terminal: ours, which does not wait for what is not there yet, and that of programs.
pub(super) fn terminal() -> (fs::File, fs::File) {
    let (mut ours, mut theirs) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptors are ours to write, and the size lives as long as the call.
    let made = unsafe {
        libc::openpty(&raw mut ours, &raw mut theirs, ptr::null_mut(), ptr::null(), &raw const size)
    };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both are new and nobody else's.
    let (ours, theirs) = unsafe { (fs::File::from_raw_fd(ours), fs::File::from_raw_fd(theirs)) };
    rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK).unwrap();
    (ours, theirs)
}

/// Whether a terminal hands on lines, and not each key.
fn hands_on_lines(terminal: &fs::File) -> bool {
    let mut mode = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: the mode is ours to write, and read only when it was written.
    let mode = unsafe {
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), mode.as_mut_ptr()), 0);
        mode.assume_init()
    };
    mode.c_lflag & libc::ICANON != 0
}

/// A signal ended it at once, and left a shell that echoed nothing, on a screen that was not its own.
#[test]
fn a_signal_leaves_the_terminal_of_top_as_it_was() {
    if !can_mount("top in a terminal") {
        return;
    }
    let ground = Ground::nacre("64M", None);
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let (mut ours, theirs) = terminal();
        assert!(hands_on_lines(&theirs));
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = nacre();
        command.arg("top").arg(ground.dir()).stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        let mut said = Vec::new();
        let mut listen = || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = ours.read(&mut some) {
                said.extend_from_slice(&some[..count]);
            }
            String::from_utf8_lossy(&said).into_owned()
        };
        let begun = Instant::now();
        while hands_on_lines(&theirs) || !listen().contains("\u{1b}[?1049h") {
            assert!(begun.elapsed() < LIMIT, "it does not begin: {:?}", listen());
            std::thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: kill takes numbers, and the process is our child, which nobody has waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let status = wait(child, LIMIT).unwrap();
        assert_eq!(status.signal(), Some(signal), "{status}");
        let said = listen();
        assert!(hands_on_lines(&theirs) && said.contains("\u{1b}[?1049l"), "{said:?}");
        assert!(said.rfind("\u{1b}[?25h") > said.rfind("\u{1b}[?25l"), "the cursor shows: {said:?}");
    }
}

#[test]
fn mkfs_makes_tiers() {
    if !can_mount("mkfs with tiers") {
        return;
    }
    let (memory, disks) = (memory(), scratch());
    let (image, disk) = (memory.path().join("pm.img"), disks.path().join("disk"));
    let tier = format!("--tier={}:64M@optane-ssd", disk.display());
    let mkfs = |words: &[&str]| {
        let mut command = nacre();
        command.args(["mkfs", "--size", "64M"]).args(words).arg(&image);
        run(&mut command, LIMIT).unwrap()
    };
    let refused = mkfs(&["--preset", "pmfs", &tier]);
    assert!(!refused.status.success() && text(&refused).contains("tiers on the layout inplace"));
    assert!(mkfs(&["-n", &tier]).status.success());
    assert!(!image.exists() && !disk.exists());
    // What is refused is refused before anything is made.
    fs::write(&disk, b"a letter").unwrap();
    assert!(!mkfs(&[&tier]).status.success() && !image.exists());
    assert_eq!(fs::metadata(&disk).unwrap().len(), 8);
    fs::remove_file(&disk).unwrap();
    let made = mkfs(&[&tier]);
    assert!(made.status.success(), "{}", text(&made));
    assert_eq!(fs::metadata(&disk).unwrap().size(), 64 << 20);
    let dir = disks.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    let option = format!("tier={}@optane-ssd", disk.display());
    succeed(nacre().args(["mount", "-o", &option]).arg(&image).arg(&dir), LIMIT);
    let found = tiers(&dir);
    succeed(nacre().arg("umount").arg(&dir), LIMIT);
    assert_eq!((found.len(), found[0]["number"].as_u64()), (1, Some(1)));
    assert_eq!(found[0]["device"].as_str().map(Path::new), Some(disk.as_path()));
}

/// A file of many extents has a log of many pages, which goes to the disk where the file is, and is there after a mount.
#[test]
fn logs_of_old_files_go_to_their_tier() {
    const TEST: &str = "logs that move";
    if !can_mount(TEST) {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let dir = ground.dir();
    let disk = ground.image().with_file_name("disk");
    json("tier add --size 256M", &[&dir, &disk]);
    // So much of memory is in use that logs are worth it.
    let stays = dir.join("stays");
    fs::create_dir(&stays).unwrap();
    json("pin", &[&stays]);
    write(&stays, 0..40);
    let pieces = dir.join("pieces");
    let file = fs::File::create(&pieces).unwrap();
    let piece = |number: u64| [number as u8 | 1; 4096];
    (0..500).for_each(|number| file.write_all_at(&piece(number), number * 8192).unwrap());
    file.sync_all().unwrap();
    json("demote", &[&pieces]);
    let years_ago = SystemTime::now() - Duration::from_secs(100_000_000);
    file.set_times(fs::FileTimes::new().set_modified(years_ago)).unwrap();
    drop(file);
    let remount = "remount,tune=log_threshold:50";
    let image = ground.image().to_owned();
    succeed(nacre().args(["mount", "-o", remount]).arg(&image).arg(&dir), LIMIT);
    let (begun, mut status) = (Instant::now(), json("mover status", &[&dir]));
    while status["logs_moved"] == 0 {
        assert!(begun.elapsed() < LIMIT, "{status}");
        std::thread::sleep(Duration::from_millis(100));
        status = json("mover status", &[&dir]);
    }
    let assert_whole = || {
        let file = fs::File::open(&pieces).unwrap();
        let mut got = [0; 8192];
        (0..499).for_each(|number| {
            file.read_exact_at(&mut got, number * 8192).unwrap();
            assert!(got[..4096] == piece(number) && got[4096..] == [0; 4096], "piece {number}");
        });
    };
    assert_whole();
    ground.unmount();
    let checked = succeed(nacre().args(["fsck", "-n", "--tier"]).arg(&disk).arg(&image), LIMIT);
    assert!(!checked.contains("tier 1"), "{checked}");
    ground.mount();
    assert_whole();
    assert_eq!(places(&pieces).into_iter().collect::<std::collections::BTreeSet<_>>(), [0, 1].into());
    // What changes it brings its log back.
    let file = fs::OpenOptions::new().write(true).open(&pieces).unwrap();
    file.write_all_at(&piece(7), 7 * 8192).unwrap();
    file.sync_all().unwrap();
    drop(file);
    ground.kill();
    ground.mount();
    assert_whole();
    ground.unmount();
    ground.fsck();
}
