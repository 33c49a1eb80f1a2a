//! The end of a mount: through umount(8), beside servers that hang or are dead, in other mount namespaces, and while it is used.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    can_mount, fails, has_program, is_mount_point, left_out, nacre, run, succeed, text, until,
};
use crate::place::Place;

const LIMIT: Duration = Duration::from_secs(60);

/// A mount namespace of its own, with the helpers where mount(8) and umount(8) look for them, and an empty /run.
struct Namespace {
    child: Child,
    /// It ends when this is closed.
    stdin: Option<ChildStdin>,
}

impl Namespace {
    /// Mounts of other tests are let go there: their servers would go on for them.
    fn new(before: &str) -> Namespace {
        let script = format!(
            "for dir in $(findmnt -rn -t fuse.nacre -o TARGET); do umount -i -l $dir; done; {before}\necho ready; read end"
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare runs");
        let stdin = child.stdin.take();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let namespace = Namespace { child, stdin };
        assert_eq!(line, "ready\n");
        namespace
    }

    fn with_helpers(place: &Place) -> Namespace {
        let helpers = place.scratch.path().join("sbin");
        fs::create_dir(&helpers).unwrap();
        for name in ["mount.nacre", "mount.fuse.nacre", "umount.nacre", "umount.fuse.nacre"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nacre"), helpers.join(name)).unwrap();
        }
        let sbin = fs::canonicalize("/sbin").unwrap();
        Namespace::new(&format!(
            "mount --bind {} {} && mount -t tmpfs tmpfs /run",
            helpers.display(),
            sbin.display()
        ))
    }

    /// A command that runs there.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.child.id().to_string(), "-m", "--", program]);
        command
    }

    fn nacre(&self) -> Command {
        self.command(env!("CARGO_BIN_EXE_nacre"))
    }

    /// A file as it is there.
    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let inside = path.as_ref().strip_prefix("/").unwrap().to_owned();
        Path::new(&format!("/proc/{}/root", self.child.id())).join(inside)
    }

    fn utab(&self) -> String {
        fs::read_to_string(self.path("/run/mount/utab")).unwrap_or_default()
    }

    fn server(&self, dir: &Path) -> Pid {
        let info = succeed(self.nacre().args(["info", "--json"]).arg(dir), LIMIT);
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        Pid::from_raw(info["mount"]["pid"].as_i64().expect("a process") as i32).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

fn can_make_namespaces(test: &str) -> bool {
    let programs = ["unshare", "nsenter", "findmnt", "umount"];
    if !can_mount(test) || !programs.iter().all(|program| has_program(test, program)) {
        return false;
    }
    let made =
        run(Command::new("unshare").args(["-m", "true"]), LIMIT).is_ok_and(|output| output.status.success());
    // The helpers hide the files of /sbin.
    let is_apart = !fs::canonicalize("/sbin").unwrap().join("umount").exists();
    if !made || !is_apart {
        left_out(test, "there are no mount namespaces, or umount(8) is in /sbin");
    }
    made && is_apart
}

/// True when nothing has the device.
fn is_free(device: &Path) -> bool {
    let file = File::open(device).unwrap();
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Stops a process with all its threads.
fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    until("it is stopped", || {
        fs::read_dir(&tasks).unwrap().flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    });
}

/// umount(8) of a directory did not call the helper: it returned before anything was written, and a crash lost it.
#[test]
fn umount_8_returns_when_what_was_accepted_is_written() {
    const TEST: &str = "umount(8) of a mount that buffers";
    if !can_make_namespaces(TEST) {
        return;
    }
    let place = Place::new();
    let namespace = Namespace::with_helpers(&place);
    let (device, dir) = (place.device(), place.dir());
    let (device_name, dir_name) = (device.to_str().unwrap(), dir.to_str().unwrap());
    succeed(nacre().args(["mkfs", "-f", "--preset", "hinfs"]).arg(&device), LIMIT);
    let options = "buffer=16M,tune=buffer_period:600000,buffer_age=600000,tune=emulate:latency=1000";
    let data: Vec<u8> =
        (0..4 << 20).map(|byte: u32| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let ways: [&[&str]; 7] = [
        &[dir_name],
        &[device_name],
        // As systemd does it.
        &[dir_name, "-c"],
        &["-a", "-t", "fuse.nacre"],
        &["-l", dir_name],
        &["-f", dir_name],
        &["-i", dir_name],
    ];
    for way in ways {
        let options = if way[0] == "-i" { "rw" } else { options };
        succeed(namespace.nacre().args(["mount", "-o", options]).args([&device, &dir]), LIMIT);
        let entry = format!("SRC={device_name} TARGET={dir_name} ROOT=/ OPTS=uhelper=nacre\n");
        assert_eq!(namespace.utab(), entry);
        fs::write(namespace.path(dir.join("file")), &data).unwrap();
        let server = namespace.server(&dir);
        let output = run(namespace.command("umount").args(way), LIMIT).unwrap();
        assert!(output.status.success(), "{way:?}: {}", text(&output));
        if way[0] == "-i" {
            // No helper is called then; the server ends by itself.
            until("the server ends", || is_free(&device));
        }
        assert!(is_free(&device), "{way:?}: the device is in use when umount returns: {}", text(&output));
        let _ = kill_process(server, Signal::KILL);
        assert_eq!(namespace.utab(), "", "{way:?}");
        assert!(place.is_clean(), "{way:?}");
        succeed(nacre().arg("mount").args([&device, &dir]), LIMIT);
        let found = fs::read(dir.join("file")).unwrap();
        assert!(found == data, "{way:?}: {} bytes of {}", found.len(), data.len());
        fs::remove_file(dir.join("file")).unwrap();
        place.free(|| place.umount_command(&dir));
    }
}

/// umount(8) found no entry for the mount that was left, and returned before anything was written.
#[test]
fn umount_8_of_the_mount_that_is_left_returns_when_what_was_accepted_is_written() {
    if !can_make_namespaces("umount(8) of the mount that is left") {
        return;
    }
    let place = Place::new();
    let namespace = Namespace::with_helpers(&place);
    let device = place.device();
    let [above, renamed, other] = ["above", "renamed", "other"].map(|name| place.scratch.path().join(name));
    let dir = above.join("mnt");
    fs::create_dir_all(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    succeed(nacre().args(["mkfs", "-f", "--preset", "hinfs"]).arg(&device), LIMIT);
    let options = "buffer=16M,tune=buffer_period:600000,buffer_age=600000,tune=emulate:latency=1000";
    let data: Vec<u8> =
        (0..4 << 20).map(|byte: u32| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (from, to) = (dir.to_str().unwrap(), other.to_str().unwrap());
    // The change of the mount, its place then, the option of umount(8), and the directory that is mounted there.
    let ways = [
        (format!("unshare -m --propagation private umount {from}"), dir.clone(), None, ""),
        (format!("mount --bind {from} {to} && umount {from}"), other.clone(), None, ""),
        (
            format!("mkdir {from}/sub && mount --bind {from}/sub {to} && umount {from}"),
            other.clone(),
            None,
            "sub",
        ),
        (format!("mount --rbind {from} {to} && umount {from}"), other.clone(), Some("-R"), ""),
        (format!("mv {} {}", above.display(), renamed.display()), renamed.join("mnt"), None, ""),
    ];
    for (change, place_then, option, root) in ways {
        succeed(namespace.nacre().args(["mount", "-o", options]).args([&device, &dir]), LIMIT);
        succeed(namespace.command("sh").args(["-c", &change]), LIMIT);
        let target = format!("TARGET={} ", place_then.display());
        if place_then.starts_with(&renamed) {
            // The server notices a new name within seconds.
            until("the entry has the new name", || namespace.utab().contains(&target));
        }
        assert!(namespace.utab().contains(&target), "{change}: {}", namespace.utab());
        assert_eq!(namespace.utab().lines().count(), 1, "{change}: {}", namespace.utab());
        fs::write(namespace.path(place_then.join("file")), &data).unwrap();
        let server = namespace.server(&place_then);
        let mut umount = namespace.command("umount");
        let output = run(umount.args(option).arg(&place_then), LIMIT).unwrap();
        assert!(output.status.success(), "{change}: {}", text(&output));
        assert!(is_free(&device), "{change}: the device is in use when umount returns: {}", text(&output));
        let _ = kill_process(server, Signal::KILL);
        assert_eq!(namespace.utab(), "", "{change}");
        assert!(place.is_clean(), "{change}");
        if renamed.exists() {
            fs::rename(&renamed, &above).unwrap();
        }
        succeed(nacre().arg("mount").args([&device, &place.dir()]), LIMIT);
        let file = place.dir().join(root).join("file");
        let found = fs::read(&file).unwrap();
        assert!(found == data, "{change}: {} bytes of {}", found.len(), data.len());
        fs::remove_file(file).unwrap();
        place_is_free(&place);
    }
}

/// The server of a mount in another mount namespace goes on after the last program there: no message had a way out.
#[test]
fn a_mount_that_only_another_namespace_has_is_named() {
    if !can_make_namespaces("a mount that only another namespace has") {
        return;
    }
    let place = Place::new();
    let namespace = Namespace::new("");
    succeed(namespace.nacre().arg("mount").args([place.device(), place.dir()]), LIMIT);
    fs::write(namespace.path(place.dir().join("file")), b"kept").unwrap();
    let server = namespace.server(&place.dir()).as_raw_nonzero().to_string();
    drop(namespace);
    assert!(!is_free(&place.device()) && !is_mount_point(&place.dir()));
    let (device, dir) = (place.device(), place.dir());
    let remedy = format!(
        "it is mounted on {} in another mount namespace, that of its server; nsenter -t {server} -m nacre umount {0} ",
        dir.display()
    );
    for arguments in [&["mount"][..], &["umount"], &["df"], &["info"]] {
        let mut command = nacre();
        command.args(arguments).arg(&device).args((arguments[0] == "mount").then_some(&dir));
        fails(&mut command, &[&remedy], LIMIT);
    }
    let mut umount = Command::new("nsenter");
    umount.args(["-t", &server, "-m", "--", env!("CARGO_BIN_EXE_nacre"), "umount"]).arg(&dir);
    succeed(&mut umount, LIMIT);
    assert!(is_free(&device) && place.is_clean());
    assert!(place.mount(&[]).status.success());
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"kept");
    place_is_free(&place);
}

/// "Unmount it first", said one command; "nothing is mounted there", said the other.
#[test]
fn the_directory_of_an_image_that_was_renamed_is_named() {
    if !can_mount("the image of a mount under another name") {
        return;
    }
    let place = Place::new();
    assert!(place.mount(&[]).status.success());
    let renamed = place.memory.path().join("renamed.img");
    fs::rename(place.device(), &renamed).unwrap();
    let (dir, name) = (place.dir(), place.device());
    let way_out =
        format!("it is mounted on {} under the name {}; nacre umount ", dir.display(), name.display());
    for command in ["info", "umount", "df"] {
        fails(nacre().arg(command).arg(&renamed), &[&way_out], LIMIT);
    }
    place_is_free(&place);
    until("the server ends", || is_free(&renamed));
    fs::rename(&renamed, place.device()).unwrap();
    assert!(place.is_clean());
}

/// syncfs(2) returns before the kernel has written its pages, and the end of the connection discards them: a part of
/// the file was gone, without a word.
#[test]
fn a_forced_unmount_gives_nothing_up_in_silence() {
    if !can_mount("a forced unmount beside the kernel's cache") {
        return;
    }
    let place = Place::new();
    let data: Vec<u8> =
        (0..16 << 20).map(|byte: u32| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let options = ["-o", "writeback,tune=emulate:latency=4000"];
    assert!(place.mount(&options).status.success());
    let path = place.dir().join("file");
    // It is held open: otherwise close(2) waits for the pages, and the mount is not busy.
    let mut file = File::create(&path).unwrap();
    file.write_all(&data).unwrap();
    let output = place.umount(&["--force"]);
    let said = text(&output);
    assert!(output.status.success() && !is_mount_point(&place.dir()), "{said}");
    drop(file);
    assert!(place.mount(&[]).status.success());
    let found = fs::read(&path).unwrap();
    let is_told = said.contains("data in the kernel is given up");
    assert!(found == data || is_told, "{} bytes of {}: {said}", found.len(), data.len());
    place_is_free(&place);
}

/// umount(8) removes a mount whose server is stopped. By force it says that the server has the device.
#[test]
fn umount_8_beside_a_stopped_server_loses_nothing() {
    const TEST: &str = "umount(8) beside a server that is stopped";
    if !can_make_namespaces(TEST) {
        return;
    }
    let place = Place::new();
    let namespace = Namespace::with_helpers(&place);
    let (device, dir) = (place.device(), place.dir());
    succeed(nacre().args(["mkfs", "-f", "--preset", "hinfs"]).arg(&device), LIMIT);
    let data = vec![0x5a; 1 << 20];
    for way in ["-f", "-l"] {
        let options = "buffer=16M,tune=buffer_period:600000,buffer_age=600000";
        succeed(namespace.nacre().args(["mount", "-o", options]).args([&device, &dir]), LIMIT);
        fs::write(namespace.path(dir.join(way)), &data).unwrap();
        let server = namespace.server(&dir);
        stop(server);
        let output = run(namespace.command("umount").arg(way).arg(&dir), LIMIT).unwrap();
        let says_so = text(&output).contains("is stopped");
        assert!(output.status.success() || way == "-f" && says_so, "{way}: {}", text(&output));
        assert_eq!(namespace.utab(), "", "{way}");
        assert!(!is_free(&device), "{way}: the server is stopped, and has the device");
        kill_process(server, Signal::CONT).unwrap();
        until("the server ends", || is_free(&device));
        assert!(place.is_clean(), "{way}");
        succeed(nacre().arg("mount").args([&device, &dir]), LIMIT);
        assert!(fs::read(dir.join(way)).unwrap() == data, "{way}");
        place.free(|| place.umount_command(&dir));
    }
}

#[test]
fn entries_of_servers_that_were_killed_go() {
    if !can_make_namespaces("entries of servers that were killed") {
        return;
    }
    let place = Place::new();
    let namespace = Namespace::with_helpers(&place);
    let mount = || succeed(namespace.nacre().arg("mount").args([place.device(), place.dir()]), LIMIT);
    mount();
    let entry = namespace.utab();
    kill_process(namespace.server(&place.dir()), Signal::KILL).unwrap();
    until("the device is free", || is_free(&place.device()));
    mount();
    assert_eq!(namespace.utab(), entry, "one for the mount that replaced it");
    kill_process(namespace.server(&place.dir()), Signal::KILL).unwrap();
    until("the device is free", || is_free(&place.device()));
    succeed(namespace.command("umount").arg(place.dir()), LIMIT);
    assert_eq!(namespace.utab(), "");
    // A remount by mount(8) hands on what the entry says.
    mount();
    succeed(namespace.command("mount").args(["-o", "remount,rw"]).arg(place.dir()), LIMIT);
    // A signal ends a mount, and its entry.
    kill_process(namespace.server(&place.dir()), Signal::TERM).unwrap();
    until("the device is free", || is_free(&place.device()));
    assert_eq!(namespace.utab(), "");
}

#[test]
fn nothing_waits_for_a_server_that_it_does_not_need() {
    if !can_mount("commands beside a server that was stopped") {
        return;
    }
    let (stopped, other) = (Place::new(), Place::new());
    assert!(stopped.mount(&[]).status.success() && other.mount(&[]).status.success());
    let server = stopped.server();
    stop(server);
    let beside = |arguments: &[&str], path: &Path| run(nacre().args(arguments).arg(path), LIMIT).unwrap();
    let df = run(nacre().arg("df"), LIMIT).unwrap();
    let said = text(&df);
    assert_eq!(df.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{}\n", other.dir().display())), "{said}");
    let silence = format!("process {}) is stopped", server.as_raw_nonzero());
    assert!(said.contains(&stopped.dir().display().to_string()) && said.contains(&silence), "{said}");
    assert!(said.contains(&format!("; kill -CONT {} lets it continue", server.as_raw_nonzero())), "{said}");
    assert!(beside(&["info"], &other.dir()).status.success());
    assert!(beside(&["umount", "-n"], &stopped.dir()).status.success());
    assert!(beside(&["umount"], &other.dir()).status.success());
    // A command that needs the server's answer says why there is none.
    thread::scope(|scope| {
        for arguments in [
            &["info"][..],
            &["top", "--once"],
            &["tier", "list"],
            &["umount"],
            &["df"],
            &["mount", "-o", "ro"],
        ] {
            let (silence, stopped) = (&silence, &stopped);
            scope.spawn(move || {
                let paths = if arguments[0] == "mount" {
                    vec![stopped.device(), stopped.dir()]
                } else {
                    vec![stopped.dir()]
                };
                let output = run(nacre().args(arguments).args(paths), LIMIT).unwrap();
                assert!(!output.status.success());
                assert!(text(&output).contains(silence), "{arguments:?}: {}", text(&output));
            });
        }
    });
    assert!(is_mount_point(&stopped.dir()));
    let lazily = stopped.umount(&["--lazy"]);
    assert!(lazily.status.success() && text(&lazily).contains("is stopped"), "{}", text(&lazily));
    assert!(!is_mount_point(&stopped.dir()));
    kill_process(server, Signal::CONT).unwrap();
    until("the server ends", || is_free(&stopped.device()));
    // By force.
    assert!(stopped.mount(&[]).status.success());
    let server = stopped.server();
    stop(server);
    let forced = stopped.umount(&["--force"]);
    assert_eq!(forced.status.code(), Some(1), "the device is not free");
    assert!(text(&forced).contains("is stopped") && !is_mount_point(&stopped.dir()), "{}", text(&forced));
    kill_process(server, Signal::CONT).unwrap();
    until("the server ends", || is_free(&stopped.device()));
    assert!(stopped.is_clean());
}

/// Commands asked the path before they asked whether its mount answers, and hung without a word.
#[test]
fn a_path_on_a_mount_that_hangs_hangs_no_command() {
    if !can_mount("paths on the mount of a server that was stopped") {
        return;
    }
    let (stopped, other) = (Place::new(), Place::new());
    assert!(stopped.mount(&[]).status.success());
    fs::write(stopped.dir().join("file"), b"data").unwrap();
    let link = stopped.scratch.path().join("link");
    std::os::unix::fs::symlink("mnt", &link).unwrap();
    let server = stopped.server();
    stop(server);
    let words = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (there, device, dir) = (words(stopped.dir()), words(other.device()), words(other.dir()));
    let (link, new) = (words(link), words(other.memory.path().join("new.img")));
    let of_it = |rest: &str| format!("{there}{rest}");
    let commands = [
        vec!["umount".to_owned(), of_it("/file")],
        vec!["umount".to_owned(), "-n".to_owned(), of_it("/sub")],
        vec!["umount".to_owned(), format!("{link}/file")],
        vec!["volume".to_owned(), "list".to_owned(), of_it("")],
        vec!["volume".to_owned(), "create".to_owned(), of_it("#a")],
        vec!["volume".to_owned(), "create".to_owned(), of_it("/img#a")],
        vec!["volume".to_owned(), "remove".to_owned(), of_it("/img#a")],
        vec!["fsck".to_owned(), "-n".to_owned(), of_it("")],
        vec!["fsck".to_owned(), "-n".to_owned(), of_it("/file")],
        vec!["fsck".to_owned(), "-n".to_owned(), "--tier".to_owned(), of_it("/t"), device.clone()],
        vec!["mkfs".to_owned(), of_it("")],
        vec!["mkfs".to_owned(), "--size".to_owned(), "16M".to_owned(), of_it("/img")],
        vec!["mkfs".to_owned(), "--size=32M".to_owned(), "--tier".to_owned(), of_it("/t:16M"), new.clone()],
        vec!["mount".to_owned(), there.clone(), dir.clone()],
        vec!["mount".to_owned(), of_it("/img"), dir.clone()],
        vec!["mount".to_owned(), "-o".to_owned(), format!("tier={there}/t"), device.clone(), dir.clone()],
        vec!["mount".to_owned(), "--log".to_owned(), of_it("/log"), device.clone(), dir.clone()],
        vec!["mount".to_owned(), device.clone(), of_it("/sub")],
        vec!["mount".to_owned(), device.clone(), format!("{link}/sub")],
        vec!["stat".to_owned(), "--device".to_owned(), of_it("/img"), "/file".to_owned()],
        vec!["info".to_owned(), of_it("/img#a")],
    ];
    let silence = format!("process {}) is stopped", server.as_raw_nonzero());
    thread::scope(|scope| {
        for command in &commands {
            let silence = &silence;
            scope.spawn(move || {
                let output = run(nacre().args(command), LIMIT).unwrap_or_else(|e| panic!("{command:?}: {e}"));
                let said = text(&output);
                assert!(!output.status.success() && said.contains(silence), "{command:?}: {said}");
                assert!(said.contains("waiting: ") && said.contains("nacre umount --force"), "{said}");
            });
        }
    });
    assert!(!Path::new(&new).exists() && !is_mount_point(&other.dir()));
    kill_process(server, Signal::CONT).unwrap();
    place_is_free(&stopped);
    assert!(stopped.is_clean());
}

/// The source of each mount was looked at, also of one whose image is on a mount that hangs.
#[test]
fn an_image_on_a_mount_that_hangs_hides_no_other_device() {
    if !can_mount("an image on the mount of a server that was stopped") {
        return;
    }
    let (stopped, other) = (Place::new(), Place::new());
    assert!(stopped.mount(&[]).status.success() && other.mount(&[]).status.success());
    let (image, above) = (stopped.dir().join("img"), stopped.scratch.path().join("above"));
    fs::create_dir(&above).unwrap();
    succeed(nacre().args(["mkfs", "--size", "16M"]).arg(&image), LIMIT);
    succeed(nacre().arg("mount").args([&image, &above]), LIMIT);
    let server = stopped.server();
    stop(server);
    let output = run(nacre().arg("umount").arg(other.device()), LIMIT);
    kill_process(server, Signal::CONT).unwrap();
    let output = output.expect("it waits for no other mount");
    assert!(output.status.success(), "{}", text(&output));
    succeed(nacre().arg("umount").arg(&above), LIMIT);
    place_is_free(&stopped);
}

#[test]
fn a_dead_server_is_told_and_hides_no_other() {
    if !can_mount("commands beside a server that was killed") {
        return;
    }
    let (dead, other) = (Place::new(), Place::new());
    assert!(dead.mount(&[]).status.success() && other.mount(&[]).status.success());
    kill_process(dead.server(), Signal::KILL).unwrap();
    until("the device is free", || is_free(&dead.device()));
    let df = run(nacre().arg("df"), LIMIT).unwrap();
    assert_eq!(df.status.code(), Some(1));
    assert!(text(&df).contains(&format!("{}\n", other.dir().display())), "{}", text(&df));
    let output = run(nacre().args(["df", "--json"]), LIMIT).unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed = said["failed"].as_array().unwrap();
    let of_it = failed.iter().find(|failed| failed["mountpoint"] == dead.dir().to_str().unwrap());
    assert!(of_it.unwrap()["error"].as_str().unwrap().contains("its server has ended"), "{said}");
    // By their names, too: nothing was listed where one of them failed.
    let paths = [dead.dir(), PathBuf::from("/nowhere"), other.dir()];
    let df = run(nacre().arg("df").args(&paths), LIMIT).unwrap();
    assert_eq!(df.status.code(), Some(1));
    let said = text(&df);
    assert!(said.contains(&format!("{}\n", other.dir().display())), "{said}");
    assert!(said.contains("its server has ended") && said.contains("df: /nowhere: "), "{said}");
    let output = run(nacre().args(["df", "--json"]).args(&paths), LIMIT).unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = |field: &str| said[field].as_array().unwrap().len();
    assert_eq!((rows("file_systems"), rows("failed")), (1, 2), "{said}");
    for arguments in [
        &["info"][..],
        &["df"],
        &["top", "--once"],
        &["tier", "list"],
        &["mover", "status"],
        &["scrub", "status"],
        &["stat"],
        &["volume", "list"],
    ] {
        let output = run(nacre().args(arguments).arg(dead.dir()), LIMIT).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = text(&output);
        let advice = format!("its server has ended; nacre umount {}", dead.dir().display());
        assert!(said.contains(&advice) && !said.contains("os error"), "{arguments:?}: {said}");
        let operation = arguments.join(" ").replace(" --once", "");
        assert!(said.starts_with(&format!("nacre: {operation}: ")), "{said}");
    }
    // A remount has nothing to change, and a dry run leaves the dead mount.
    let remount = |arguments: &[&str]| dead.mount(&[&["-o", "remount,ro"], arguments].concat());
    for (arguments, why) in [
        (&["-n"][..], "its server has ended"),
        (&["-n"], "its server has ended"),
        (&[], "the dead mount is removed"),
    ] {
        let output = remount(arguments);
        assert!(!output.status.success() && text(&output).contains(why), "{arguments:?}: {}", text(&output));
    }
    assert!(dead.mount(&[]).status.success());
    assert!(dead.umount(&[]).status.success());
    place_is_free(&other);
}

fn place_is_free(place: &Place) {
    place.free(|| place.umount_command(&place.dir()));
}

/// It waited two minutes for a server that had another namespace to serve.
#[test]
fn another_namespace_that_has_the_mount_is_named() {
    if !can_make_namespaces("a mount in two namespaces") {
        return;
    }
    let place = Place::new();
    assert!(place.mount(&[]).status.success());
    fs::write(place.dir().join("file"), b"kept").unwrap();
    let namespace = Namespace::new("");
    // That lets go of what tests have mounted; this one is to be there.
    assert!(!namespace.path(place.dir()).join("file").exists());
    drop(namespace);
    let script = format!(
        "for dir in $(findmnt -rn -t fuse.nacre -o TARGET); do [ $dir = {} ] || umount -i -l $dir; done; echo ready; read end",
        place.dir().display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let output = unmounted(&place);
    let said = text(&output);
    assert!(output.status.success() && !is_mount_point(&place.dir()), "{said}");
    assert!(
        said.contains(&format!("another mount namespace, that of process {}, still has it", child.id())),
        "{said}"
    );
    assert!(!is_free(&place.device()));
    drop(child.stdin.take());
    child.wait().unwrap();
    until("the server ends", || is_free(&place.device()));
    assert!(place.is_clean());
}

/// Unmounts, again while a program that another test starts has our files.
fn unmounted(place: &Place) -> Output {
    let mut output = place.umount(&[]);
    until("it is unmounted", || {
        let busy = text(&output).contains("in use");
        if busy {
            output = place.umount(&[]);
        }
        !busy
    });
    output
}

#[test]
fn who_uses_a_mount_is_named() {
    if !can_mount("users of a mount") {
        return;
    }
    let place = Place::new();
    assert!(place.mount(&[]).status.success());
    fs::write(place.dir().join("file"), b"data").unwrap();
    let mut sleep = Command::new("sleep").arg("600").current_dir(place.dir()).spawn().unwrap();
    let said = text(&place.umount(&[]));
    assert!(
        said.contains(&format!("in use: process {} (sleep) has its working directory there", sleep.id())),
        "{said}"
    );
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    let file = File::open(place.dir().join("file")).unwrap();
    let said = text(&place.umount(&[]));
    let own = format!("process {}", std::process::id());
    let path = place.dir().join("file");
    assert!(said.contains(&own) && said.contains(&format!("has {} open", path.display())), "{said}");
    drop(file);
    let below = place.dir().join("below");
    fs::create_dir(&below).unwrap();
    succeed(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&below), LIMIT);
    let said = text(&place.umount(&[]));
    assert!(said.contains(&format!("another mount is on {}", below.display())), "{said}");
    succeed(Command::new("umount").arg(&below), LIMIT);
    place_is_free(&place);
}

/// df(1) has each mount for moments: a third of all unmounts beside it were refused.
#[test]
fn programs_that_look_at_a_mount_keep_nobody_from_unmounting_it() {
    if !can_mount("unmounting beside programs that look") {
        return;
    }
    let place = Place::new();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0_u64;
            while !ends.load(Ordering::Relaxed) {
                count += u64::from(File::open(place.dir()).is_ok());
            }
            assert!(count > 0);
        });
        let outcomes: Vec<_> = (0..10)
            .map(|_| {
                let mounted = place.mount(&[]);
                (mounted, place.umount(&[]))
            })
            .collect();
        ends.store(true, Ordering::Relaxed);
        for (mounted, output) in outcomes {
            assert!(mounted.status.success(), "{}", text(&mounted));
            assert!(output.status.success(), "{}", text(&output));
        }
    });
    assert!(place.is_clean());
}
