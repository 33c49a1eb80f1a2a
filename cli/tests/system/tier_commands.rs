//! What commands about tiers say that they would do, and what is left of them when they are interrupted.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::harness::{
    Ground, can_mount, has_program, left_out, memory, nacre, run, succeed, text, until, wait,
};
use crate::tiers::{LIMIT, MIB, assert_content, json, places, refused, said, terminal, tiers, write};

/// All that these commands may change of a file system.
fn state(dir: &Path, files: usize) -> Value {
    let mut found = tiers(dir);
    for tier in &mut found {
        let tier = tier.as_object_mut().expect("a tier");
        tier.retain(|name, _| {
            ["number", "free", "rank", "draining", "device", "missing"].contains(&&name[..])
        });
    }
    let places: Vec<_> = (0..files).map(|number| places(&dir.join(number.to_string()))).collect();
    let pins: Vec<_> = (0..files).map(|number| is_pinned(&dir.join(number.to_string()))).collect();
    json!({ "tiers": found, "places": places, "pins": pins })
}

fn is_pinned(path: &Path) -> bool {
    rustix::fs::getxattr(path, "user.nacre.pin", &mut [0u8; 8][..]).is_ok()
}

#[test]
fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    const FILES: usize = 4;
    if !can_mount("dry runs") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let (dir, beside) = (ground.dir(), ground.beside().to_owned());
    let [first, second, third] = ["first", "second", "third"].map(|name| beside.join(name));
    json("tier add --size 64M", &[&dir, &first]);
    json("tier add --size 64M", &[&dir, &second]);
    write(&dir, 0..FILES);
    let file = |number: usize| dir.join(number.to_string());
    json("demote --tier 1", &[file(0), file(1)]);
    json("pin", &[file(3)]);
    let dry = |words: &str, places: &[&Path], says: &str| {
        let before = state(&dir, FILES);
        let (output, text) = said(&format!("{words} -n"), places);
        assert!(output.status.success() && text.contains(says), "{words}: {text}");
        assert_eq!(json(&format!("{words} -n"), places)["dry_run"], true, "{words}");
        assert_eq!(state(&dir, FILES), before, "{words}");
    };
    let (one, two) = (Path::new("1"), Path::new("2"));
    dry("tier drain", &[&dir, one], "tier 1: 2 MiB would be moved to other places");
    dry("tier remove", &[&dir, one], "tier 1: 2 MiB would be moved to other places, and its device released");
    dry("tier offline", &[&dir, one], "tier 1: would be offline");
    let says = format!(
        "tier 1: 2 MiB would be moved to {} and other places, and its device released",
        third.display()
    );
    dry("tier replace --size 64M", &[&dir, one, &third], &says);
    // By a tier that is there, as when it goes on.
    dry("tier replace", &[&dir, one, &second], "tier 1: 2 MiB would be moved to ");
    dry("tier add --size 64M", &[&dir, &third], "would become a tier of ");
    assert!(!third.exists());
    dry("promote", &[&file(0), &file(2)], "2 files would be moved, if their blocks can");
    dry("demote", &[&file(2)], "1 file would be moved, if its blocks can");
    dry("pin", &[&file(0), &file(1)], "2 files and directories: would be pinned");
    dry("pin -r", &[&dir], "5 files and directories: would be pinned");
    dry("unpin", &[&file(3)], "1 file or directory: would be not pinned any more");
    assert!(is_pinned(&file(3)) && !is_pinned(&dir));

    json("tier drain", &[&dir, two]);
    dry("tier drain --cancel", &[&dir, two], "tier 2: would be used again");
    assert_eq!(tiers(&dir)[1]["draining"], true);
    json("tier drain --cancel", &[&dir, two]);
    json("tier offline", &[&dir, one]);
    dry("tier online", &[&dir, &first], "first: would be tier 1 of ");
    assert!(tiers(&dir)[0]["missing"].is_string());
    json("tier online", &[&dir, &first]);

    // What would be refused is refused, in the same words.
    let letter = beside.join("letter");
    fs::write(&letter, "a letter").unwrap();
    for (words, places, why) in [
        ("tier add", &[&dir, &letter][..], "not empty"),
        ("tier add", &[&dir, &third], "give a size"),
        ("tier add -f", &[&dir, &first], "in use"),
        ("tier replace --size 64M", &[&dir, &"1".into(), &first], "it is the device of that tier already"),
        ("tier replace", &[&dir, &"1".into(), &letter], "not empty"),
        ("tier online", &[&dir, &first], "offline first"),
        ("tier online", &[&dir, &letter], "it is too small"),
        ("tier online", &[&dir, &third], "no such file"),
        ("tier offline", &[&dir, &"9".into()], "no tier of this file system"),
    ] {
        let places: Vec<&Path> = places.iter().map(|place: &&PathBuf| place.as_path()).collect();
        same_refusal(words, &places, why);
    }
    ground.unmount();
    ground.fsck();
}

/// A missing path ended the command before the files after it moved. Links and pipes were passed over in silence.
#[test]
fn a_path_that_fails_is_named_and_the_others_move_or_are_pinned() {
    if !can_mount("files that move beside paths that fail") {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    let (dir, disk) = (ground.dir(), ground.beside().join("disk"));
    json("tier add --size 96M", &[&dir, &disk]);
    let files = write(&dir, 0..3);
    let [missing, link, pipe] = ["missing", "link", "pipe"].map(|name| dir.join(name));
    symlink("0", &link).unwrap();
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (output, words) = said("demote", &[&files[0], &missing, &files[1], &link, &pipe, &files[2]]);
    assert_eq!(output.status.code(), Some(1), "{words}");
    for (path, why) in [
        (&missing, "No such file or directory"),
        (&link, "it is a symbolic link; give the file"),
        (&pipe, "it is neither a file nor a directory"),
    ] {
        assert!(words.contains(&format!("nacre: demote: {}: {why}", path.display())), "{words}");
    }
    assert!(words.contains("3 files, 3 MiB moved, 3 failed\n"), "{words}");
    for file in &files {
        assert_eq!(places(file), [1], "{}", file.display());
    }
    let output = run(nacre().args(["promote", "--json"]).args([&missing, &files[0]]), LIMIT).unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((number(&told, "files"), number(&told, "failed")), (1, 1), "{told}");
    assert_eq!((output.status.code(), places(&files[0])), (Some(1), vec![0]));
    for (words, what, is_it) in [("pin", "pinned", true), ("unpin", "not pinned any more", false)] {
        let (output, text) = said(words, &[&missing, &link, &files[1]]);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("1 file or directory: {what}, 2 failed\n")), "{text}");
        assert_eq!((is_pinned(&files[1]), is_pinned(&files[0])), (is_it, false));
    }
    // A link was said not to answer. Its file does, also for a link from elsewhere.
    let elsewhere = ground.beside().join("elsewhere");
    symlink(&files[2], &elsewhere).unwrap();
    assert_eq!((places(&link), places(&elsewhere)), (vec![0], vec![1]));
    ground.unmount();
    ground.fsck();
}

/// Something is refused, and a dry run of it in the same words.
fn same_refusal(words: &str, places: &[&Path], why: &str) {
    refused(words, places, why);
    let [wet, dry] = ["", " -n"].map(|dry| said(&format!("{words}{dry}"), places));
    assert_eq!((dry.0.status.code(), dry.1), (wet.0.status.code(), wet.1), "{words}");
}

/// It said that it would work.
#[test]
fn a_layout_without_tiers_refuses_them_in_a_dry_run_too() {
    if !can_mount("tiers on the layout inplace") {
        return;
    }
    let mut ground = Ground::preset("pmfs", "64M", None);
    let (dir, disk) = (ground.dir(), ground.beside().join("disk"));
    for words in ["tier add --size 64M", "tier online"] {
        same_refusal(words, &[&dir, &disk], "tiers on the layout inplace");
    }
    // No tier is advised to a layout that cannot have one, top shows it all the same, and no setting is dropped silently.
    write(&dir, 0..1);
    for (words, path) in [("tier list", dir.clone()), ("demote", dir.join("0"))] {
        let (_, said) = said(words, &[&path]);
        assert!(said.contains("its layout cannot have any") && !said.contains("tier add"), "{said}");
    }
    let (top, shown) = said("top --once", &[&dir]);
    assert!(top.status.success() && shown.contains("pm "), "{shown}");
    let image = ground.image().to_owned();
    let mount = |arguments: &[&str]| {
        text(&run(nacre().arg("mount").args(arguments).args([&image, &dir]), LIMIT).unwrap())
    };
    let words = mount(&["-o", "remount,tier_cache=8M"]);
    assert!(words.contains("its layout has no tiers; leave it out"), "{words}");
    ground.unmount();
    let words = mount(&["-n", "-o", "tier=/x"]);
    assert!(words.contains("tier /x on the layout inplace: leave it out"), "{words}");
    let place = memory();
    let image = place.path().join("pm");
    // An open of a pipe waits for its other end.
    let pipe = place.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    refused("mkfs -f", &[&pipe], "not a pipe");
    let tier = format!("mkfs --preset pmfs --size 64M --tier {}:64M", disk.display());
    same_refusal(&tier, &[&image], "tiers on the layout inplace");
    let other = format!("mkfs --layout inplace --size 64M --tier {}:64M", disk.display());
    same_refusal(&other, &[&image], "tiers on the layout inplace");
    assert!(!disk.exists() && !image.exists());
}

const FILES: usize = 24;

/// A file system whose files are on tier 1, which is slow to read; tier 2 has room for all.
fn with_a_slow_tier() -> Ground {
    let ground = Ground::nacre("64M", None);
    let dir = ground.dir();
    let [slow, other] = ["slow", "other"].map(|name| ground.image().with_file_name(name));
    json("tier add --size 64M --emulate nvme,read-bandwidth=6M", &[&dir, &slow]);
    json("tier add --size 64M --rank 7", &[&dir, &other]);
    // Or else what was written is in DRAM.
    succeed(nacre().args(["mount", "-o", "remount,tier_cache=1M"]).arg(ground.image()).arg(&dir), LIMIT);
    write(&dir, 0..FILES);
    for number in 0..FILES {
        json("demote --tier 1", &[dir.join(number.to_string())]);
    }
    ground
}

fn left(dir: &Path) -> u64 {
    let tier = &tiers(dir)[0];
    tier["size"].as_u64().unwrap() - tier["free"].as_u64().unwrap()
}

/// A drain of tier 1 that has moved something, and not all.
fn draining(dir: &Path, stderr: Stdio) -> Child {
    let all = left(dir);
    let mut command = nacre();
    command.args(["tier", "drain"]).arg(dir).arg("1").stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    while left(dir) == all {
        assert!(begun.elapsed() < LIMIT && child.try_wait().unwrap().is_none(), "it moves nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn a_drain_that_is_interrupted_goes_on_when_it_is_called_again() {
    if !can_mount("a drain that is interrupted") {
        return;
    }
    let mut ground = with_a_slow_tier();
    let (dir, all) = (ground.dir(), (FILES * MIB) as u64);
    // Its command is killed: it ends there.
    let mut child = draining(&dir, Stdio::null());
    child.kill().unwrap();
    child.wait().unwrap();
    let mut before = left(&dir);
    loop {
        // What was begun for it is done in a moment.
        std::thread::sleep(Duration::from_secs(2));
        let now = left(&dir);
        if now == before {
            break;
        }
        before = now;
    }
    assert!(before > 0 && before < all, "{before} of {all}");
    assert_eq!(tiers(&dir)[0]["draining"], true);
    assert_content(&dir, 0..FILES);

    // The file system goes while another one is at it: the drain says so.
    let child = draining(&dir, Stdio::piped());
    let signal = |signal| {
        // SAFETY: kill takes numbers, and the process is our child, which nobody has waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    };
    // It is in the file system nearly all the time.
    signal(libc::SIGSTOP);
    ground.unmount();
    signal(libc::SIGCONT);
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("not mounted"), "{}", text(&output));
    ground.mount();
    let between = left(&dir);
    assert!(between > 0 && between < before, "{between} of {before}");
    assert_eq!(tiers(&dir)[0]["draining"], true);
    assert_content(&dir, 0..FILES);
    let done = json("tier drain", &[dir.as_path(), Path::new("1")]);
    assert_eq!((done["moved"].as_u64(), left(&dir)), (Some(between), 0));
    assert_eq!(places(&dir.join("0")), [2]);
    json("tier remove", &[dir.as_path(), Path::new("1")]);
    ground.kill();
    ground.mount();
    assert_content(&dir, 0..FILES);
    ground.unmount();
    ground.fsck();
}

#[test]
fn a_drain_says_how_far_it_is_to_a_terminal_only() {
    if !can_mount("the progress of a drain") {
        return;
    }
    let ground = with_a_slow_tier();
    let dir = ground.dir();
    let (mut ours, theirs) = terminal();
    let mut child = draining(&dir, Stdio::from(theirs));
    let mut stdout = child.stdout.take().unwrap();
    let status = wait(child, LIMIT).unwrap();
    let mut seen = Vec::new();
    let mut some = [0; 4096];
    while let Ok(count @ 1..) = ours.read(&mut some) {
        seen.extend_from_slice(&some[..count]);
    }
    let (seen, mut out) = (String::from_utf8_lossy(&seen).into_owned(), String::new());
    stdout.read_to_string(&mut out).unwrap();
    assert!(status.success() && out == "tier 1: is empty, 24 MiB moved to other places\n", "{out:?}");
    let lines: Vec<_> = seen.split('\r').filter(|line| line.contains("left")).map(str::trim).collect();
    assert!(lines.len() > 2, "{seen:?}");
    for line in &lines {
        assert!(
            line.starts_with("tier 1: ") && line.contains(" moved, ") && line.ends_with(" left"),
            "{line:?}"
        );
    }
    assert!(lines.iter().any(|line| !line.contains(" 0 B")), "{lines:?}");
    assert!(lines.last().unwrap().ends_with("moved, 0 B left"), "{lines:?}");
    assert!(seen.ends_with(" \r") && !seen.contains('\n'), "nothing of it stays: {seen:?}");

    // Who reads it from a file hears only how it ended.
    json("tier drain --cancel", &[dir.as_path(), Path::new("1")]);
    json("demote --tier 1", &[dir.join("0")]);
    let (out, err) = (ground.beside().join("out"), ground.beside().join("err"));
    let mut command = nacre();
    command.args(["tier", "drain"]).arg(&dir).arg("1");
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
    assert!(wait(command.spawn().unwrap(), LIMIT).unwrap().success());
    assert_eq!(fs::read_to_string(&err).unwrap(), "");
    assert_eq!(fs::read_to_string(&out).unwrap(), "tier 1: is empty, 1 MiB moved to other places\n");
}

/// A loop device over a file, until the end.
pub(super) struct Loop(PathBuf);

impl Loop {
    pub(super) fn over(file: &Path) -> Option<Loop> {
        Loop::with(&[], file)
    }

    /// The same with more options of losetup.
    pub(super) fn with(options: &[&str], file: &Path) -> Option<Loop> {
        let mut losetup = Command::new("losetup");
        let output = run(losetup.args(["--find", "--show"]).args(options).arg(file), LIMIT).unwrap();
        output.status.success().then(|| Loop(PathBuf::from(text(&output).trim())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.0), LIMIT);
    }
}

/// Bytes that a file takes where it is.
fn allocated(file: &Path) -> u64 {
    fs::metadata(file).unwrap().blocks() * 512
}

/// An SSD that is never told what is free gets slow, and a tier that is a file never gets smaller.
#[test]
fn devices_are_told_what_nobody_uses() {
    const TEST: &str = "tiers that are trimmed";
    if !can_mount(TEST) {
        return;
    }
    let mut ground = Ground::nacre("64M", None);
    // Where a mount looks for them.
    let (dir, beside) = (ground.dir(), ground.image().parent().unwrap().to_owned());
    assert!(json("tier trim", &[&dir])["tiers"].as_array().unwrap().is_empty());
    let has_fstrim = has_program(TEST, "fstrim");
    let fstrim = |user: &[&str], words: &[&str]| {
        let (program, before) = user.split_first().unwrap_or((&"fstrim", &[]));
        let after: &[&str] = if user.is_empty() { &[] } else { &["fstrim"] };
        let mut command = Command::new(program);
        let output = run(command.args(before).args(after).args(words).arg(&dir), LIMIT).unwrap();
        (output.status.success(), text(&output))
    };
    if has_fstrim {
        let (done, words) = fstrim(&[], &[]);
        assert!(!done && words.contains("not supported"), "{words}");
    }

    let (file, back) = (beside.join("file"), beside.join("back"));
    File::create(&back).unwrap().set_len(64 << 20).unwrap();
    json("tier add --size 64M", &[&dir, &file]);
    let device = Loop::over(&back);
    let files = if let Some(device) = &device {
        json("tier add", &[&dir, &device.0]);
        vec![&file, &back]
    } else {
        left_out("trim of a block device", "losetup gives no loop device");
        vec![&file]
    };
    write(&dir, 0..8);
    for (number, tier) in (0..8).zip([1, 2].into_iter().cycle()) {
        let tier = if device.is_some() { tier } else { 1 };
        json(&format!("demote --tier {tier}"), &[dir.join(number.to_string())]);
    }
    let sizes = || files.iter().map(|file| allocated(file)).collect::<Vec<_>>();
    let before = sizes();
    (4..8).for_each(|number| fs::remove_file(dir.join(number.to_string())).unwrap());
    let used = || tiers(&dir).iter().map(|tier| number(tier, "size") - number(tier, "free")).sum::<u64>();
    until("what was removed is free", || used() == 4 * MIB as u64);
    let dry = json("tier trim -n", &[&dir]);
    assert_eq!((dry["dry_run"].as_bool(), dry["tiers"].as_array().unwrap().len()), (Some(true), files.len()));
    assert_eq!(sizes(), before, "only said");
    assert_eq!(json("tier trim --minimum 1G", &[dir.as_path(), Path::new("1")])["tiers"][0]["trimmed"], 0);
    assert_eq!(sizes(), before, "no run is so long");

    let trimmed = json("tier trim", &[&dir]);
    for (number, (before, after)) in before.iter().zip(sizes()).enumerate() {
        let told = trimmed["tiers"][number]["trimmed"].as_u64().unwrap();
        assert!(told > 50 << 20, "{trimmed}");
        let gone = 4 * MIB as u64 / files.len() as u64;
        assert!(after + gone <= *before, "{}: {before}, {after} now", files[number].display());
    }
    if has_fstrim {
        let (done, words) = fstrim(&[], &["-v"]);
        assert!(done && words.contains("trimmed"), "{words}");
        let (done, words) = fstrim(&[], &["--length", "1M"]);
        assert!(!done && words.contains("Invalid argument"), "a part of what has no addresses: {words}");
        if has_program(TEST, "setpriv") {
            let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
            let (done, words) = fstrim(&nobody, &[]);
            assert!(!done && words.contains("not permitted"), "{words}");
        }
    }
    refused("tier trim", &[&dir, Path::new("9")], "no tier of this file system");

    assert_content(&dir, 0..4);
    ground.remount();
    assert_content(&dir, 0..4);
    write(&dir, 4..8);
    assert_content(&dir, 0..8);
    ground.unmount();
    ground.fsck();
}

fn number(tier: &Value, field: &str) -> u64 {
    tier[field].as_u64().unwrap_or_else(|| panic!("{tier}"))
}
