//! Volumes of a device: made, mounted by their names, apart from each other, and removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::harness::{self, bounded, can_mount, is_mount_point, memory, nacre, run, scratch, succeed, text};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// A device, usually with two zones, and directories to mount on.
struct Place {
    memory: TempDir,
    scratch: TempDir,
}

impl Place {
    fn new() -> Place {
        Place::made(&["--zones", "2", "--size", "256M"])
    }

    /// One that is made with these arguments.
    fn made(arguments: &[&str]) -> Place {
        let place = Place { memory: memory(), scratch: scratch() };
        let mkfs = ["mkfs", "--preset", "spfs"];
        succeed(nacre().args(mkfs).args(arguments).arg(place.device()), LIMIT);
        place
    }

    fn device(&self) -> PathBuf {
        self.memory.path().join("pm.img")
    }

    fn volume(&self, name: &str) -> PathBuf {
        nacre::with_volume(&self.device(), name)
    }

    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.scratch.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn nacre(&self, args: &[&str], path: &Path) -> Output {
        run(nacre().args(args).arg(path), LIMIT).unwrap()
    }

    fn fails(&self, args: &[&str], path: &Path, words: &[&str]) {
        harness::fails(nacre().args(args).arg(path), words, LIMIT);
    }
}

#[test]
fn volumes_are_made_listed_and_removed() {
    let place = Place::new();
    let would = text(&place.nacre(&["volume", "create", "-n"], &place.volume("mail")));
    assert!(would.contains("would be made"), "{would}");
    let made =
        text(&place.nacre(&["volume", "create", "--zone", "1", "--quota", "20M"], &place.volume("mail")));
    assert!(made.contains("is made"), "{made}");
    place.fails(&["volume", "create"], &place.volume("mail"), &["mail", "exists"]);
    place.fails(&["volume", "create"], &place.device(), &["DEVICE#NAME"]);
    place.fails(&["volume", "create", "--zone", "2"], &place.volume("more"), &["zone 2"]);
    let listed = text(&place.nacre(&["volume", "list"], &place.device()));
    assert!(listed.contains("main") && listed.contains("mail") && listed.contains("20 MiB"), "{listed}");
    let json = text(&place.nacre(&["volume", "list", "--json"], &place.device()));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["volumes"][1]["quota"].as_u64(), Some(20 << 20));
    let info = text(&place.nacre(&["info"], &place.device()));
    assert!(info.contains("mail: zone 1"), "{info}");
    place.fails(&["df"], &place.device(), &["the volumes main, mail", "DEVICE#NAME"]);
    let df = text(&place.nacre(&["df"], &place.volume("mail")));
    assert!(df.contains("20 MiB"), "{df}");
    // Files are not removed by mistake.
    let options = nacre::OpenOptions::default();
    let fs = nacre::FileSystem::open(place.volume("mail"), &options).unwrap();
    fs.create_file("/letter").unwrap();
    fs.close().unwrap();
    place.fails(&["volume", "remove"], &place.volume("mail"), &["1 file", "-f"]);
    for remove in [&["volume", "remove"][..], &["volume", "remove", "-n"]] {
        place.fails(remove, &place.volume("none"), &["none", "main, mail"]);
    }
    let would = text(&place.nacre(&["volume", "remove", "-n", "-f"], &place.volume("mail")));
    assert!(would.contains("would be removed"), "{would}");
    let removed = text(&place.nacre(&["volume", "remove", "-f"], &place.volume("mail")));
    assert!(removed.contains("is removed"), "{removed}");
    assert_eq!(nacre::volumes(place.device()).unwrap().len(), 1);
    succeed(nacre().arg("fsck").arg(place.device()), LIMIT);
    // Another layout has none.
    let other = place.memory.path().join("nova.img");
    succeed(nacre().args(["mkfs", "--preset", "nova", "--size", "64M"]).arg(&other), LIMIT);
    place.fails(&["volume", "list"], &other, &["layout log", "spfs"]);
    place.fails(&["mkfs", "--preset", "nova", "--zones", "2", "-f"], &other, &["zones", "layout pool"]);
}

/// The process that serves a volume.
fn server_of(place: &Place, name: &str) -> String {
    let info = text(&place.nacre(&["info"], &place.volume(name)));
    info.lines().find_map(|line| line.strip_prefix("process:")).unwrap().trim().to_owned()
}

/// The limit of a volume holds for what the buffer accepts, too, and a crash loses nothing that was synchronised.
#[test]
fn a_volume_may_be_below_a_write_buffer() {
    if !can_mount("a volume below a write buffer") {
        return;
    }
    let place = Place::new();
    succeed(nacre().args(["volume", "create", "--quota", "20M"]).arg(place.volume("mail")), LIMIT);
    let mail = place.dir("mail");
    let mount = || {
        succeed(nacre().args(["mount", "-o", "buffer=8M"]).args([&place.volume("mail"), &mail]), LIMIT);
    };
    mount();
    let content = vec![7; 3 << 20];
    for name in ["synchronised", "written"] {
        fs::write(mail.join(name), &content).unwrap();
    }
    fs::File::open(mail.join("synchronised")).unwrap().sync_all().unwrap();
    succeed(Command::new("kill").args(["-9", &server_of(&place, "mail")]), LIMIT);
    succeed(nacre().arg("umount").arg(&mail), LIMIT);
    mount();
    assert!(fs::read(mail.join("synchronised")).unwrap() == content);
    fs::write(mail.join("written"), &content).unwrap();
    let full = fs::write(mail.join("large"), vec![8; 20 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    succeed(nacre().arg("umount").arg(&mail), LIMIT);
    succeed(nacre().arg("mount").args([&place.volume("mail"), &mail]), LIMIT);
    assert!(fs::read(mail.join("written")).unwrap() == content);
    succeed(nacre().arg("umount").arg(&mail), LIMIT);
    succeed(nacre().arg("fsck").arg(place.device()), LIMIT);
}

/// The mount of a device with one zone has all of it: the list was refused beside it.
#[test]
fn volumes_are_listed_beside_the_mount_that_has_the_device() {
    if !can_mount("a list of volumes beside a mount") {
        return;
    }
    let place = Place::made(&["--size", "64M"]);
    let dir = place.dir("mnt");
    let names = |path: &Path| -> Vec<(String, bool)> {
        let listed = succeed(nacre().args(["volume", "list", "--json"]).arg(path), LIMIT);
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let row = |row: &serde_json::Value| {
            (row["name"].as_str().unwrap().to_owned(), row["clean"].as_bool().unwrap())
        };
        listed["volumes"].as_array().unwrap().iter().map(row).collect()
    };
    let (main, mail) = (("main".to_owned(), true), ("mail".to_owned(), true));
    let is_mounted = |(name, _): (String, bool)| (name, false);
    succeed(nacre().arg("mount").args([&place.device(), &dir]), LIMIT);
    assert_eq!(names(&place.device()), [is_mounted(main.clone())]);
    let info = text(&place.nacre(&["info"], &dir));
    assert!(!info.contains("main: zone"), "the only one is no news: {info}");
    succeed(nacre().arg("umount").arg(&dir), LIMIT);
    succeed(nacre().args(["volume", "create"]).arg(place.volume("mail")), LIMIT);
    succeed(nacre().arg("mount").args([&place.volume("mail"), &dir]), LIMIT);
    for path in [place.device(), place.volume("mail"), place.volume("main")] {
        assert_eq!(names(&path), [main.clone(), is_mounted(mail.clone())], "{}", path.display());
    }
    let listed = text(&place.nacre(&["volume", "list"], &place.device()));
    assert!(listed.contains("clean\n"), "{listed}");
    // It showed a dash for what the volume holds, and said that it may be mounted.
    fs::write(dir.join("file"), vec![1; 3 << 20]).unwrap();
    let row = text(&place.nacre(&["volume", "list", "--json"], &place.device()));
    let row: serde_json::Value = serde_json::from_str(&row).unwrap();
    let row = &row["volumes"][1];
    assert!(row["used"].as_u64().unwrap() >= 3 << 20 && row["inodes"] == 2, "{row}");
    assert_eq!(row["mountpoint"], dir.to_str().unwrap());
    place.fails(&["volume", "remove"], &place.volume("mail"), &["it is mounted on", dir.to_str().unwrap()]);
    let info = text(&place.nacre(&["info"], &dir));
    assert!(info.contains("main: zone 0") && info.contains("mail: zone 0"), "{info}");
    place.fails(&["volume", "remove"], &place.volume("main"), &["another process"]);
    succeed(nacre().arg("umount").arg(&dir), LIMIT);
    assert_eq!(names(&place.device()), [main, mail]);
    // Another layout has none.
    let other = place.memory.path().join("nova.img");
    succeed(nacre().args(["mkfs", "--preset", "nova", "--size", "64M"]).arg(&other), LIMIT);
    succeed(nacre().arg("mount").args([&other, &dir]), LIMIT);
    place.fails(&["volume", "list"], &other, &["another process"]);
    succeed(nacre().arg("umount").arg(&dir), LIMIT);
}

#[test]
fn volumes_of_two_zones_are_mounted_at_once() {
    if !can_mount("volumes of two zones") {
        return;
    }
    let place = Place::new();
    for (name, zone) in [("mail", "1"), ("third", "1")] {
        succeed(nacre().args(["volume", "create", "--zone", zone]).arg(place.volume(name)), LIMIT);
    }
    let (main, mail) = (place.dir("main"), place.dir("mail"));
    succeed(nacre().arg("mount").args([&place.volume("main"), &main]), LIMIT);
    // As in fstab.
    succeed(nacre().args(["mount", "-o", "volume=mail"]).args([&place.device(), &mail]), LIMIT);
    for (dir, name) in [(&main, "of-main"), (&mail, "of-mail")] {
        fs::write(dir.join(name), name).unwrap();
        let names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [name]);
    }
    // A zone has one mount, and changes of volumes have the device alone.
    let third = run(nacre().arg("mount").args([&place.volume("third"), &place.dir("third")]), LIMIT).unwrap();
    let said = text(&third);
    assert!(!third.status.success() && said.contains("another process"), "{said}");
    assert!(
        said.contains(&format!("volume mail of the same zone is mounted on {}", mail.display())),
        "{said}"
    );
    for change in
        [&["volume", "remove", "-f"][..], &["volume", "remove", "-f", "-n"], &["volume", "create", "-n"]]
    {
        let name = if change.contains(&"create") { "fourth" } else { "third" };
        place.fails(change, &place.volume(name), &["another process"]);
    }
    place.fails(&["fsck"], &place.device(), &["another process"]);
    place.fails(&["mkfs", "-f", "--preset", "spfs"], &place.device(), &["in use"]);
    // It showed the last of them only.
    for paths in [vec![], vec![place.device()]] {
        let df = text(&run(nacre().arg("df").args(paths), LIMIT).unwrap());
        assert!(df.contains("pm.img#main") && df.contains("pm.img#mail"), "{df}");
    }
    // The one that was mounted last was taken, and even unmounted, without a question.
    let unclear = ["umount", "umount -n", "mover status", "top --once", "scrub status"];
    for command in unclear.map(|words| words.split(' ').collect::<Vec<_>>()) {
        place.fails(&command, &place.device(), &["pm.img#main on ", "pm.img#mail on ", "DEVICE#NAME"]);
    }
    assert!(is_mount_point(&main) && is_mount_point(&mail));
    // It said that there is no such directory.
    place.fails(&["umount"], &place.volume("third"), &["nothing is mounted there"]);
    // The mounts say what is in their zones, which their device does not know meanwhile.
    let listed = text(&place.nacre(&["volume", "list"], &place.device()));
    for dir in [&main, &mail] {
        assert!(listed.contains(&format!("mounted on {}", dir.display())), "{listed}");
    }
    let df = text(&place.nacre(&["df"], &place.volume("mail")));
    assert!(!df.contains("pm.img#main") && df.contains("pm.img#mail"), "{df}");
    let info = text(&place.nacre(&["info"], &place.volume("mail")));
    assert!(info.contains(&mail.display().to_string()), "{info}");
    // One of them is killed. The other one goes on, and the next mount recovers it.
    succeed(Command::new("kill").args(["-9", &server_of(&place, "mail")]), LIMIT);
    fs::write(main.join("more"), b"more").unwrap();
    succeed(nacre().arg("umount").arg(&mail), LIMIT);
    succeed(nacre().arg("mount").args([&place.volume("mail"), &mail]), LIMIT);
    assert_eq!(fs::read(mail.join("of-mail")).unwrap(), b"of-mail");
    for dir in [&mail, &main] {
        let dir = dir.clone();
        bounded("umount", move || {
            succeed(nacre().arg("umount").arg(&dir), LIMIT);
            assert!(!is_mount_point(&dir));
        });
    }
    succeed(nacre().arg("fsck").arg(place.device()), LIMIT);
}
