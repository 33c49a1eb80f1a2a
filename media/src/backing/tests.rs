//! The bytes below loop devices, and their users.

use std::any::Any;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nacre_engine::{Kind, Result};

use super::{Access, Backing, backing_file, hold_all, look_below};
use crate::device::Device;

const MIB: u64 = 1 << 20;

/// A tree like that of the kernel, with a device in it.
fn describe(devices: &Path, number: (u32, u32), dir: &str, files: &[(&str, &str)]) -> u64 {
    let (major, minor) = number;
    let sysfs = devices.join(dir);
    fs::create_dir_all(&sysfs).unwrap();
    fs::write(sysfs.join("dev"), format!("{major}:{minor}\n")).unwrap();
    for (name, text) in files {
        let path = sysfs.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    symlink(&sysfs, devices.join(format!("{major}:{minor}"))).unwrap();
    libc::makedev(major, minor)
}

#[test]
fn the_bytes_below_loop_devices_partitions_and_mapped_devices_are_known() {
    let tree = tempfile::tempdir().unwrap();
    let devices = tree.path();
    let whole = [("size", "2048"), ("loop/backing_file", "/srv/image one"), ("loop/offset", "0")];
    let whole = describe(devices, (7, 3), "loop3", &whole);
    let later = [("size", "1024"), ("loop/backing_file", "/srv/image one"), ("loop/offset", "1048576")];
    let later = describe(devices, (7, 4), "loop4", &later);
    let part = [("partition", "2"), ("start", "512"), ("size", "256")];
    let part = describe(devices, (259, 0), "loop4/loop4p2", &part);
    let mapped = describe(devices, (252, 0), "dm-0", &[("size", "256")]);
    fs::create_dir_all(devices.join("dm-0/slaves")).unwrap();
    symlink(devices.join("loop3"), devices.join("dm-0/slaves/loop3")).unwrap();
    let disk = describe(devices, (8, 0), "sda", &[("size", "4096")]);

    let below = |device| {
        let mut found = Vec::new();
        look_below(devices, device, None, true, &mut found);
        found
    };
    let image = |loop_device, bytes| Backing { path: PathBuf::from("/srv/image one"), loop_device, bytes };
    assert_eq!(below(whole), [image(3, Some(0..MIB))]);
    assert_eq!(below(later), [image(4, Some(MIB..MIB + MIB / 2))]);
    let start = MIB + 512 * 512;
    assert_eq!(below(part), [image(4, Some(start..start + 256 * 512))]);
    assert_eq!(below(mapped), [image(3, None)]);
    assert!(below(disk).is_empty() && below(libc::makedev(9, 9)).is_empty());
    assert_eq!(backing_file(&devices.join("loop3")), Some(PathBuf::from("/srv/image one")));
}

/// A user of a file, directly or by a loop device over some of its bytes.
#[derive(Debug, Clone)]
enum User {
    Direct { writes: bool, part: Option<Range<u64>> },
    Loop { number: u64, bytes: Range<u64>, access: Access },
}

impl User {
    /// Its locks, for as long as the result lives.
    fn begin(&self, file: &Path) -> Result<Box<dyn Any>> {
        match self {
            User::Direct { writes, part } => Ok(Box::new(Device::open(file, !writes, part.as_ref())?)),
            User::Loop { number, bytes, access } => {
                let below =
                    Backing { path: file.to_owned(), loop_device: *number, bytes: Some(bytes.clone()) };
                Ok(Box::new(hold_all(&[below], "the loop device", *access)?))
            }
        }
    }
}

/// The same image was mounted twice, as a file and by a loop device, and lost data.
#[test]
fn a_file_and_the_loop_devices_over_it_have_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("image");
    fs::write(&file, vec![0; 2 * MIB as usize]).unwrap();
    let direct = |writes| User::Direct { writes, part: None };
    let part = |bytes| User::Direct { writes: true, part: Some(bytes) };
    let by_loop =
        |number, bytes, writes| User::Loop { number, bytes, access: Access { writes, is_part: false } };
    let part_by_loop =
        |number, bytes| User::Loop { number, bytes, access: Access { writes: true, is_part: true } };
    let (first, second, all) = (0..MIB, MIB..2 * MIB, 0..2 * MIB);
    for (one, other, fit) in [
        (direct(true), by_loop(0, all.clone(), true), false),
        (direct(true), by_loop(0, all.clone(), false), false),
        (direct(true), part_by_loop(0, all.clone()), false),
        (direct(false), by_loop(0, all.clone(), true), false),
        (direct(false), by_loop(0, first.clone(), true), false),
        (direct(false), by_loop(0, all.clone(), false), true),
        (by_loop(0, all.clone(), true), by_loop(1, all.clone(), true), false),
        (by_loop(0, all.clone(), true), by_loop(1, second.clone(), false), false),
        (by_loop(0, first.clone(), true), by_loop(1, second, true), true),
        (by_loop(0, all.clone(), false), by_loop(1, all.clone(), false), true),
        // Parts, which are zones: of one device they go together.
        (part(0..4096), part(4096..8192), true),
        (part_by_loop(0, all.clone()), part_by_loop(0, all.clone()), true),
        (part_by_loop(0, all.clone()), by_loop(0, all.clone(), false), true),
        (part_by_loop(0, all.clone()), part_by_loop(1, all.clone()), false),
        (part_by_loop(0, all.clone()), part(0..4096), false),
        (part_by_loop(0, all.clone()), by_loop(1, all.clone(), true), false),
        (by_loop(0, all.clone(), true), part(0..4096), false),
        // A look at the list of volumes.
        (direct(false), part(0..4096), true),
        (direct(false), part_by_loop(0, all), true),
    ] {
        for (one, other) in [(&one, &other), (&other, &one)] {
            let held = one.begin(&file).unwrap();
            let met = other.begin(&file).err().map(|error| error.kind());
            assert_eq!(met, (!fit).then_some(Kind::Busy), "{one:?} before {other:?}");
            drop(held);
            other.begin(&file).unwrap();
        }
    }
}

/// A file that is gone, or that this process may not open, keeps no device from being used.
#[test]
fn a_file_that_cannot_be_opened_is_left_out() {
    let below = Backing { path: "/no/such/file (deleted)".into(), loop_device: 0, bytes: Some(0..4096) };
    let access = Access { writes: true, is_part: false };
    assert!(hold_all(&[below], "the loop device", access).unwrap().is_empty());
}
