//! A device that is full must say so, keep what it has, and come back to life when files are deleted.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags};

use crate::harness::{self, Ground, PRESETS};

const CHUNK: usize = 256 * 1024;

/// Content of chunk `index`: every byte depends on it.
fn chunk(index: u64) -> Vec<u8> {
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..CHUNK / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect()
}

/// Writes files of one chunk until the device is full; returns how many are whole.
fn fill(dir: &Path) -> u64 {
    for index in 0.. {
        let path = dir.join(format!("file{index}"));
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&chunk(index))?;
            file.sync_all()
        });
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                // What is there of the last file is in the way; deleting must work on a full device.
                if path.exists() {
                    fs::remove_file(&path).expect("deleting on a full device");
                }
                return index;
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    unreachable!("a device has an end")
}

fn verify(dir: &Path, files: u64) {
    for index in 0..files {
        let path = dir.join(format!("file{index}"));
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(bytes == chunk(index), "{} is not what was written", path.display());
    }
}

fn available(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).expect("statvfs");
    stat.f_bavail * stat.f_frsize
}

#[test]
fn filled_emptied_and_filled_again() {
    if !harness::can_mount("a full device") {
        return;
    }
    for mut ground in Ground::each("64M") {
        let dir = ground.dir();
        let name = ground.name().to_owned();
        let empty = available(&dir);
        let mut first = 0;
        for round in 0..3 {
            let files = fill(&dir);
            let left = available(&dir);
            assert!(left < 2 * CHUNK as u64, "{name}: full, but {left} bytes are said to be available");
            if round == 0 {
                first = files;
                assert!(
                    first * CHUNK as u64 > empty * 9 / 10,
                    "{name}: {empty} bytes were promised, {first} files fit"
                );
            }
            assert!(
                files * 50 >= first * 49,
                "{name}: {first} files fitted at first, {files} in round {round}"
            );
            verify(&dir, files);
            ground.remount();
            verify(&dir, files);
            for index in 0..files {
                fs::remove_file(dir.join(format!("file{index}"))).expect("deleting on a full device");
            }
            let again = available(&dir);
            assert!(
                again >= empty / 100 * 98,
                "{name}: {empty} bytes were available at first, {again} after deleting"
            );
        }
        ground.unmount();
        ground.fsck();
    }
}

/// With writeback the kernel takes data for which there is no space. A rename replaced the old file all the same, without an
/// error, and neither the old contents nor the new ones were left.
#[test]
fn data_without_space_replaces_no_file() {
    if !harness::can_mount("renames on a full device") {
        return;
    }
    for preset in PRESETS {
        let mut ground = Ground::preset(preset, "64M", Some("writeback"));
        let (dir, name) = (ground.dir(), ground.name().to_owned());
        // The first file is still open when it is renamed.
        let pairs = [("open.new", "open", true), ("closed.new", "closed", false)];
        for (new, old, _) in pairs {
            File::create(dir.join(new)).unwrap();
            let mut file = File::create(dir.join(old)).unwrap();
            file.write_all(b"old contents").unwrap();
            file.sync_all().unwrap();
        }
        assert!(fill(&dir) > 0, "{name}");
        for (new, old, stays_open) in pairs {
            let (new, old) = (dir.join(new), dir.join(old));
            let mut file = File::options().write(true).open(&new).unwrap();
            // More than any reserve of this device.
            file.write_all(&vec![1; 3 << 20]).unwrap();
            let file = stays_open.then_some(file);
            for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::empty()] {
                let moved = rustix::fs::renameat_with(CWD, &new, CWD, &old, flags);
                assert_eq!(moved, Err(rustix::io::Errno::NOSPC), "{name}, {flags:?}, open: {stays_open}");
            }
            drop(file);
            assert_eq!(fs::read(&old).unwrap(), b"old contents", "{name}, open: {stays_open}");
        }
        // With space again the same file replaces the other.
        fs::remove_file(dir.join("file0")).unwrap();
        fs::write(dir.join("open.new"), b"new contents").unwrap();
        fs::rename(dir.join("open.new"), dir.join("open")).unwrap();
        ground.remount();
        assert_eq!(fs::read(dir.join("open")).unwrap(), b"new contents", "{name}");
        assert_eq!(fs::read(dir.join("closed")).unwrap(), b"old contents", "{name}");
        ground.unmount();
        ground.fsck();
    }
}

/// The output of xfs_io(8) for these commands, standard error included.
fn xfs_io(file: &Path, commands: &[&str]) -> String {
    let mut program = harness::program("xfs_io");
    commands.iter().for_each(|command| {
        program.args(["-c", command]);
    });
    harness::text(&harness::run(program.arg(file), Duration::from_secs(60)).expect("xfs_io"))
}

/// Stores through a mapping into a hole are accepted before the file system hears of them. On a full device they vanished, and
/// only one descriptor was ever told. A part of the reserve is theirs; beyond it each open descriptor is told once.
#[test]
fn stores_into_holes_of_a_full_device() {
    if !harness::can_mount("stores on a full device") || !harness::has_program("stores", "xfs_io") {
        return;
    }
    for mut ground in Ground::each("64M").filter(Ground::is_nacre) {
        let (dir, name) = (ground.dir(), ground.name().to_owned());
        let sparse = dir.join("sparse");
        File::create(&sparse).unwrap().set_len(8 << 20).unwrap();
        let files = fill(&dir);
        assert_eq!(fill_rest(&dir).kind(), ErrorKind::StorageFull, "{name}");
        let told = xfs_io(&sparse, &["mmap -w 0 8m", "mwrite -S 0x61 0 64k", "msync -s 0 64k", "fsync"]);
        assert!(!told.contains("No space"), "{name}: {told}");
        ground.remount();
        let content = fs::read(&sparse).unwrap();
        assert!(content[..65_536].iter().all(|byte| *byte == 0x61), "{name}");
        // More than any reserve of this device. The kernel tells each descriptor that was open, once, by fsync(2) or msync(2).
        let path = sparse.display().to_string();
        let open = format!("open {path}");
        let told = xfs_io(
            &sparse,
            &[&open, "mmap -w 0 8m", "mwrite -S 0x62 1m 7m", "fsync", "fsync", "file 0", "fsync", "fsync"],
        );
        assert_eq!(told.matches("No space left").count(), 2, "{name}: {told}");
        // A file whose data is lost replaces no other one unnoticed.
        let replaced = fs::rename(&sparse, dir.join("file0"));
        assert_eq!(replaced.unwrap_err().kind(), ErrorKind::StorageFull, "{name}");
        assert!(fs::read(dir.join("file0")).unwrap() == chunk(0), "{name}");
        // The reserve for removals is still there.
        for index in 0..files {
            fs::remove_file(dir.join(format!("file{index}"))).unwrap();
        }
        fs::write(dir.join("new"), [1; 100_000]).unwrap();
        ground.unmount();
        ground.fsck();
    }
}

/// Fills the rest of a device block by block, until that is refused; the error.
fn fill_rest(dir: &Path) -> std::io::Error {
    let mut file = match File::create(dir.join("rest")) {
        Ok(file) => file,
        Err(error) => return error,
    };
    loop {
        if let Err(error) = file.write_all(&[7; 4096]) {
            return error;
        }
    }
}
