//! `nacre bench run` on every peer: what can be had here is measured, what cannot is reported with the reason, and
//! nothing is left, also after Ctrl-C and after SIGKILL.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{can_mount, has_program, nacre, scratch, text, wait};

pub(crate) const LIMIT: Duration = Duration::from_secs(300);
/// Every process of a run inherits it.
const MARK: &str = "NACRE_BENCH_TEST";

/// Peers that every Linux with the programs can have.
const PEERS: [&str; 11] = [
    "peer:tmpfs",
    "peer:ramfs",
    "peer:ext4",
    "peer:xfs",
    "peer:ext2",
    "peer:ext4-disk",
    "peer:xfs-disk,disk=optane-ssd",
    "peer:ext4-disk,disk=nvme",
    "peer:xfs-disk,disk=sata-ssd",
    "peer:ext4-dj,disk=optane-ssd,size=64M",
    "peer:xfs-ml,size=64M",
];
/// Peers that need a kernel with them.
const RARE: [&str; 4] = ["peer:dm-writecache,size=64M", "peer:ext4-dax", "peer:nilfs2", "peer:f2fs"];

/// A run in a directory of its own, where all its traces are.
pub(crate) struct Run {
    dir: TempDir,
    mark: String,
}

impl Run {
    pub(crate) fn new(test: &str) -> Run {
        Run { dir: scratch(), mark: format!("{test}-{}", std::process::id()) }
    }

    pub(crate) fn report(&self) -> PathBuf {
        self.dir.path().join("report.json")
    }

    /// Everything temporary, and disks, are below this one.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    pub(crate) fn start(&self, workload: &str, targets: &[&str], more: &[&str]) -> Child {
        let mut command: Command = nacre();
        command.args(["bench", "run", workload]);
        targets.iter().for_each(|target| {
            command.args(["-t", target]);
        });
        command.args(more).arg("--json").arg(self.report());
        self.spawn(command)
    }

    /// Starts a command in a group of processes of its own, as a shell does.
    pub(crate) fn spawn(&self, mut command: Command) -> Child {
        fs::create_dir_all(self.temporary()).expect("a directory");
        command.env("TMPDIR", self.temporary()).env(MARK, &self.mark).process_group(0);
        let output = fs::File::create(self.dir.path().join("output")).expect("a file");
        command.stdin(Stdio::null()).stdout(output.try_clone().expect("a second handle")).stderr(output);
        command.spawn().expect("nacre bench runs")
    }

    /// The output of a run that ended with an error.
    pub(crate) fn refused(&self, child: Child) -> String {
        let status = wait(child, LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", self.said()));
        assert!(!status.success(), "{status}\n{}", self.said());
        self.said()
    }

    pub(crate) fn finish(&self, child: Child) -> Value {
        let status = wait(child, LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", self.said()));
        assert!(status.success(), "{status}\n{}", self.said());
        let report = fs::read(self.report()).unwrap_or_else(|error| panic!("{error}\n{}", self.said()));
        serde_json::from_slice(&report).expect("a report is JSON")
    }

    /// As [`Run::finish`], of a run that may fail.
    pub(crate) fn finish_any(&self, child: Child) -> Value {
        wait(child, LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", self.said()));
        let report = fs::read(self.report()).unwrap_or_default();
        serde_json::from_slice(&report).unwrap_or_default()
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.dir.path().join("output")).unwrap_or_default()
    }

    /// What is there of it: mounts, loop devices, mapped devices, cgroups, files.
    pub(crate) fn traces(&self, process: u32) -> Vec<String> {
        let place = self.temporary();
        let place = place.to_str().expect("a plain name");
        let name = format!("nacre-bench-{process}-");
        let mut found: Vec<String> = fs::read_to_string("/proc/self/mounts")
            .expect("mounts")
            .lines()
            .filter(|line| line.contains(place))
            .map(str::to_owned)
            .collect();
        for entry in list(Path::new("/sys/block")) {
            let file = fs::read_to_string(entry.join("loop/backing_file")).unwrap_or_default();
            if file.contains(place) {
                found.push(format!("{}: {file}", entry.display()));
            }
        }
        let named =
            |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
        found.extend(
            list(Path::new("/dev/mapper"))
                .iter()
                .filter(|path| named(path))
                .map(|path| path.display().to_string()),
        );
        let mut groups = vec![PathBuf::from("/sys/fs/cgroup")];
        while let Some(group) = groups.pop() {
            if named(&group) {
                found.push(group.display().to_string());
            }
            groups.extend(list(&group).into_iter().filter(|path| path.is_dir() && !path.is_symlink()));
        }
        found.extend(list(&self.temporary()).iter().map(|path| path.display().to_string()));
        found
    }

    /// Its processes that are there.
    pub(crate) fn processes(&self) -> Vec<String> {
        let mark = format!("{MARK}={}", self.mark);
        let marked = |path: &PathBuf| {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let found = list(Path::new("/proc")).into_iter().filter(marked);
        found
            .map(|path| fs::read_to_string(path.join("cmdline")).unwrap_or_default().replace('\0', " "))
            .collect()
    }

    /// Asserts that nothing is left of it. What ends by itself may take a moment.
    pub(crate) fn assert_gone(&self, process: u32) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let left = [self.traces(process), self.processes()].concat();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "left: {left:#?}\n{}", self.said());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Ctrl-C, as a terminal sends it: to all processes of the group.
pub(crate) fn interrupt(child: &Child) {
    let group = Pid::from_raw(child.id() as i32).expect("a process");
    kill_process_group(group, Signal::INT).expect("kill");
}

pub(crate) fn list(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

pub(crate) fn can_run(test: &str) -> bool {
    can_mount(test) && ["losetup", "mkfs.ext4", "mkfs.xfs"].iter().all(|program| has_program(test, program))
}

#[test]
fn every_peer_is_measured_or_reported_and_nothing_is_left() {
    if !can_run("every_peer_is_measured_or_reported_and_nothing_is_left") {
        return;
    }
    let run = Run::new("peers");
    let targets = [&PEERS[..], &RARE[..]].concat();
    let child = run.start(
        "micro.write,file=4m,sync=16",
        &targets,
        &["--baseline", "peer:tmpfs", "--effort", "quick"],
    );
    let process = child.id();
    let report = run.finish(child);
    run.assert_gone(process);
    assert_eq!(report["complete"], true);
    let series = report["experiments"][0]["series"].as_array().expect("series");
    let about = |target: &str| {
        let found = series.iter().find(|series| series["target"] == target)?;
        found["about"].as_str()
    };
    for peer in PEERS {
        assert!(about(peer).is_some(), "{peer} was not measured: {}", report["absent"]);
    }
    assert!(about(PEERS[9]).expect("measured").contains("emulated disk: optane-ssd"), "{series:?}");
    // Every sixteenth write is synced, so that nearly all of them reach the loop devices, the journals and the logs.
    let on_disk = |target: &str| {
        let found = series.iter().find(|series| series["target"] == target)?;
        found["points"][0]["counters"]["disk.bytes"].as_f64()
    };
    for peer in PEERS {
        let bytes = on_disk(peer);
        match peer {
            "peer:tmpfs" | "peer:ramfs" => assert_eq!(bytes, None, "{peer} has no device"),
            _ => assert!(bytes.is_some_and(|bytes| bytes >= 2048.0), "{peer}: {bytes:?} bytes for 4 KiB"),
        }
    }
    for peer in RARE {
        let absent = report["absent"].as_array().expect("absent");
        let why =
            absent.iter().find(|absent| absent["what"] == peer).and_then(|absent| absent["why"].as_str());
        assert!(about(peer).is_some() || why.is_some_and(|why| !why.is_empty()), "{peer}: neither");
    }
}

/// A terminal is what script(1) makes one.
#[test]
fn progress_is_shown_at_a_terminal_and_nowhere_else() {
    let test = "progress_is_shown_at_a_terminal_and_nowhere_else";
    if !has_program(test, "script") {
        return;
    }
    let run = Run::new("progress");
    let bench = ["bench", "run", "micro.write,file=4m", "-t", "preset:nova", "--effort", "quick"];
    let plain: Command = nacre();
    let typed = [&[plain.get_program().to_str().expect("a plain name")], &bench[..]].concat().join(" ");
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &typed, "/dev/null"]).env("TERM", "xterm");
    let status = wait(run.spawn(terminal), LIMIT).expect("it ends");
    assert!(status.success(), "{}", run.said());
    let said = run.said();
    assert!(said.contains("micro.write,file=4m: round 1") && said.contains(" % "), "{said:?}");

    let mut elsewhere = nacre();
    elsewhere.args(bench);
    let status = wait(run.spawn(elsewhere), LIMIT).expect("it ends");
    assert!(status.success() && !run.said().contains(": round "), "{:?}", run.said());
}

#[test]
fn page_caches_are_held_and_the_report_says_so() {
    let test = "page_caches_are_held_and_the_report_says_so";
    if !can_run(test) {
        return;
    }
    let run = Run::new("memory");
    let child = run.start(
        "micro.write,file=128m",
        &["peer:xfs-disk", "peer:tmpfs"],
        &["--memory", "64M", "--effort", "quick"],
    );
    let process = child.id();
    let status = wait(child, LIMIT).expect("it ends");
    if run.said().contains("--memory needs a memory cgroup") {
        assert!(!status.success());
        crate::harness::left_out(test, "no memory cgroup can be made");
        return;
    }
    assert!(status.success(), "{}", run.said());
    run.assert_gone(process);
    let report: Value = serde_json::from_slice(&fs::read(run.report()).expect("a report")).expect("JSON");
    assert_eq!(report["options"]["memory"], 64 << 20);
    let series = report["experiments"][0]["series"].as_array().expect("series");
    let held = |series: &Value| series["about"].as_str().expect("text").contains("held to 64 MiB");
    assert_eq!(series.iter().map(held).collect::<Vec<_>>(), [true, false]);
    // Nowhere near the file's size, and up to the limit: it was held, and to no less.
    let peaks: Vec<_> =
        series.iter().map(|series| series["points"][0]["counters"]["memory.peak"].as_f64()).collect();
    let limit = f64::from(64 << 20);
    assert!(peaks[0].is_some_and(|peak| peak > limit * 0.9 && peak <= limit), "{peaks:?}");
    assert_eq!(peaks[1], None);
}

#[test]
fn an_interrupted_run_reports_what_it_has_and_leaves_nothing() {
    if !can_run("an_interrupted_run_reports_what_it_has_and_leaves_nothing") {
        return;
    }
    let run = Run::new("interrupted");
    let targets = ["peer:ext4-dj,size=64M,disk=hdd", "peer:xfs-disk,disk=hdd", "peer:tmpfs"];
    // Long enough: every write of the first two moves the head of a disk.
    let child = run.start("micro.write,file=64m,pattern=random,sync=1", &targets, &["--effort", "high"]);
    let process = child.id();
    let end = Instant::now() + LIMIT;
    while !run.traces(process).iter().any(|trace| trace.contains("xfs")) {
        assert!(Instant::now() < end, "nothing was mounted\n{}", run.said());
        thread::sleep(Duration::from_millis(20));
    }
    interrupt(&child);
    let report = run.finish(child);
    run.assert_gone(process);
    assert_eq!(report["complete"], false);
    assert!(report["schema"].is_u64() && report["experiments"].is_array(), "{report}");
}

#[test]
fn interrupted_figures_report_what_they_have_and_leave_nothing() {
    if !can_mount("interrupted_figures_report_what_they_have_and_leave_nothing") {
        return;
    }
    let run = Run::new("figures");
    let mut command = nacre();
    command.args(["bench", "figures", "--only", "mount.*", "--seconds", "100", "--json"]).arg(run.report());
    let child = run.spawn(command);
    let process = child.id();
    let end = Instant::now() + LIMIT;
    while run.traces(process).iter().filter(|trace| trace.contains("fuse")).count() < 2 {
        assert!(Instant::now() < end, "nothing was mounted\n{}", run.said());
        thread::sleep(Duration::from_millis(20));
    }
    interrupt(&child);
    let status = wait(child, LIMIT).expect("it ends");
    run.assert_gone(process);
    assert!(!status.success() && run.said().contains("interrupted"), "{status}\n{}", run.said());
    let report: Value = serde_json::from_slice(&fs::read(run.report()).expect("a report")).expect("JSON");
    assert_eq!(report["complete"], false);
    assert!(report["experiments"].as_array().expect("experiments").is_empty(), "{report}");
}

#[test]
fn figures_write_the_report_that_the_other_commands_read() {
    let run = Run::new("rows");
    let mut command = nacre();
    let page = run.dir.path().join("report.html");
    command.args(["bench", "figures", "--quick", "--only", "stat", "--only", "emulator.line-1200"]);
    let child = run.spawn({
        command.arg("--json").arg(run.report()).arg("--html").arg(&page);
        command
    });
    let report = run.finish(child);
    assert!(run.said().contains("target") && run.said().contains("emulator.line-1200"), "{}", run.said());
    assert_eq!((&report["complete"], &report["options"]["effort"]), (&true.into(), &"quick".into()));
    assert!(report["commit"].is_string() && report["machine"]["cpu"].is_string(), "{report}");
    let row = &report["experiments"][0];
    assert_eq!((&row["name"], &row["baseline"]), (&"stat".into(), &"peer:tmpfs".into()));
    assert_eq!(row["series"][0]["points"][0]["samples"].as_array().expect("samples").len(), 3, "{row}");
    assert_eq!(row["claims"][0]["holds_if"]["at_most"], 0.2, "{row}");
    assert!(row["claims"][0]["found"].as_f64().expect("a value") > 0.0, "{row}");
    assert!(fs::read_to_string(&page).expect("a page").contains("stat of 1,000 files in turn"));
    let report = run.report();
    let drawn = nacre().args(["bench", "report"]).arg(&report).output().expect("nacre runs");
    assert!(drawn.status.success() && text(&drawn).contains("repeat it: nacre bench figures --only stat"));
    let compared = nacre().args(["bench", "compare"]).args([&report, &report]).output().expect("nacre runs");
    assert!(compared.status.success() && text(&compared).contains("0 of 3 got worse"), "{}", text(&compared));
}

#[test]
fn the_next_run_takes_away_what_a_killed_one_left() {
    if !can_run("the_next_run_takes_away_what_a_killed_one_left") {
        return;
    }
    let run = Run::new("killed");
    let targets = ["peer:ext4-dj,size=64M,disk=hdd", "peer:xfs-disk", "mount:nova"];
    let mut child = run.start("micro.write,file=64m", &targets, &["--effort", "high"]);
    let process = child.id();
    let end = Instant::now() + LIMIT;
    while !run.traces(process).iter().any(|trace| trace.contains("fuse") && trace.contains("nova")) {
        assert!(Instant::now() < end, "nothing was mounted\n{}", run.said());
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(!run.traces(process).is_empty());
    let child = run.start("micro.write,file=4m", &["peer:tmpfs"], &["--effort", "quick"]);
    let next = child.id();
    assert_eq!(run.finish(child)["complete"], true);
    assert!(run.said().contains("a run that was killed had left it"), "{}", run.said());
    run.assert_gone(process);
    run.assert_gone(next);
}

#[test]
fn targets_that_do_not_exist_are_refused_with_what_does() {
    let output = nacre()
        .args(["bench", "run", "micro.write", "-t", "peer:ext4-disk,disk=tape"])
        .output()
        .expect("nacre runs");
    assert!(!output.status.success());
    assert!(text(&output).contains("optane-ssd"), "{}", text(&output));
}
