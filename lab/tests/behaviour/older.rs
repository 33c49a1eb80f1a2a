//! File systems of version 1 stay what they are: this code reads and writes them by the rules of that version.
//!
//! `../data/version-1-*.lines` were made by the last program that knew version 1 only. Each is an image of 16 MiB, stored
//! as the runs of its lines of 64 bytes that are not zero. A run is the number of its first line (u32), the number of
//! its lines (u16), and the lines.

use std::sync::Arc;

use nacre_engine::{Attr, Kind, Names, SetAttr, Timestamp, XattrMode};
use nacre_media::SimPm;

const SIZE: u64 = 16 << 20;
const LINE: usize = 64;
const NOW: Timestamp = Timestamp::new(1_800_000_000, 1);

/// Name of each file, and its atime and mtime.
const FILES: [(&str, i64, u32); 6] = [
    ("first", -8_589_934_592, 0),
    ("1811", -5_000_000_000, 123_456_789),
    ("1960", -315_619_140, 123_456_789),
    ("epoch", 0, 123_456_789),
    ("2038", 1 << 31, 123_456_789),
    ("last", 8_589_934_591, 123_456_789),
];

/// The image that a sample stands for.
fn image(sample: &[u8]) -> Arc<SimPm> {
    let pm = SimPm::new(SIZE);
    let mut rest = sample;
    while let Some((head, behind)) = rest.split_first_chunk::<6>() {
        let first = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let len = usize::from(u16::from_le_bytes([head[4], head[5]])) * LINE;
        pm.poke(u64::from(first) * LINE as u64, &behind[..len]);
        rest = &behind[len..];
    }
    assert!(rest.is_empty());
    Arc::new(pm)
}

fn at(secs: i64) -> SetAttr {
    SetAttr { mtime: Some(Timestamp::new(secs, 5)), ..SetAttr::default() }
}

fn small(index: usize) -> (Vec<u8>, Vec<u8>) {
    (format!("user.small-{index:02}").into_bytes(), format!("{index:02}").repeat(index % 9).into_bytes())
}

/// Checks the sample's content: the files that the older program made.
fn assert_as_made<N: Names>(fs: &N) {
    let attr = |name: &str| -> Attr { fs.getattr_at(&fs.root(), name.as_bytes()).unwrap() };
    for (name, secs, nanos) in FILES {
        let time = Timestamp::new(secs, nanos);
        assert_eq!((attr(name).atime, attr(name).mtime), (time, time), "{name}");
    }
    assert_eq!(attr("dir").mtime, Timestamp::new(-5_000_000_000, 0));
    let dir = fs.lookup(&fs.root(), b"dir").unwrap();
    assert_eq!(fs.read_link(&fs.lookup(&dir, b"link").unwrap()).unwrap(), [b't'; 200]);
    assert_eq!(fs.get_xattr(&dir, b"user.one").unwrap(), b"1");
    let file = fs.lookup(&fs.root(), b"epoch").unwrap();
    assert_eq!(fs.list_xattrs(&file).unwrap().len(), 41);
    for (name, value) in (0..40).map(small) {
        assert_eq!(fs.get_xattr(&file, &name).unwrap(), value);
    }
    assert_eq!(fs.get_xattr(&file, b"user.large").unwrap(), b"ab".repeat(3000));
}

/// Changes that the first mount makes: times within the range of version 1 and beyond it, attributes of each size.
fn change<N: Names>(fs: &N) {
    let file = fs.lookup(&fs.root(), b"2038").unwrap();
    fs.setattr(&file, &at(-6_000_000_000), NOW).unwrap();
    for secs in [8_589_934_592, -8_589_934_593, 15_032_385_535] {
        let refused = fs.setattr(&file, &at(secs), NOW).unwrap_err();
        assert_eq!(refused.kind(), Kind::InvalidInput, "{refused}");
        assert!(refused.to_string().contains("1697 to 2242"), "{refused}");
    }
    assert_eq!(fs.getattr(&file).unwrap().mtime, Timestamp::new(-6_000_000_000, 5));
    for len in [10, 1500, 9000] {
        let name = format!("user.{len}");
        fs.set_xattr(&file, name.as_bytes(), &vec![7; len], XattrMode::Create, None, NOW).unwrap();
    }
    // A clock that is wrong is held to the range.
    let far = Timestamp::new(1 << 40, 0);
    fs.set_xattr(&file, b"user.later", b"", XattrMode::Create, None, far).unwrap();
}

fn assert_changed<N: Names>(fs: &N) {
    let file = fs.lookup(&fs.root(), b"2038").unwrap();
    let attr = fs.getattr(&file).unwrap();
    assert_eq!(attr.mtime, Timestamp::new(-6_000_000_000, 5));
    assert_eq!(attr.ctime, Timestamp::new(8_589_934_591, 0));
    for len in [10, 1500, 9000] {
        assert_eq!(fs.get_xattr(&file, format!("user.{len}").as_bytes()).unwrap(), vec![7; len]);
    }
}

macro_rules! layout {
    ($module:ident, $layout:ident, $fs:ident, $sample:literal) => {
        mod $module {
            use nacre_engine::{FileKind, NewInode};
            use nacre_lab::older::{make_version, make_version_1};
            use nacre_layout_parts::lifecycle::Lifecycle;
            use $layout::check::check;
            use $layout::{MkfsOptions, MountOptions, mkfs, $fs};

            use super::*;

            fn mount(pm: &Arc<SimPm>) -> $fs<SimPm> {
                $fs::mount(Arc::clone(pm), &MountOptions::default()).unwrap()
            }

            fn assert_sound(pm: &SimPm) {
                let report = check(pm, false).unwrap();
                assert!(report.problems.is_empty(), "{:?}", report.problems);
                assert_eq!(report.summary.version, 1);
            }

            #[test]
            fn what_the_last_program_of_version_1_made_is_read_and_written() {
                let pm = image(include_bytes!($sample));
                assert_sound(&pm);
                let fs = mount(&pm);
                assert_as_made(&fs);
                change(&fs);
                fs.unmount().unwrap();
                assert_sound(&pm);
                // A crash, after which everything is read again.
                mount(&pm).abandon();
                assert_sound(&pm);
                let fs = mount(&pm);
                assert_changed(&fs);
                fs.unmount().unwrap();
                assert_sound(&pm);
                assert_eq!($fs::<SimPm>::probe(&*pm).unwrap().version, 1);
            }

            #[test]
            fn what_mkfs_makes_holds_the_times_of_version_2_from_one_mount_to_the_next() {
                let times = [-(1i64 << 31), -1, 0, 8_589_934_592, 15_032_385_535];
                let pm = Arc::new(SimPm::new(SIZE));
                mkfs(&*pm, &MkfsOptions::default()).unwrap();
                assert_eq!($fs::<SimPm>::probe(&*pm).unwrap().version, 2);
                let make = |fs: &$fs<SimPm>, secs: i64| {
                    let (kind, now) = (FileKind::Regular, Timestamp::new(secs, 9));
                    let new = NewInode {
                        kind,
                        mode: 0o644,
                        uid: 0,
                        gid: 0,
                        rdev: 0,
                        target: b"",
                        xattrs: &[],
                        now,
                    };
                    fs.create(&fs.root(), secs.to_string().as_bytes(), &new).unwrap();
                };
                let fs = mount(&pm);
                times.iter().for_each(|&secs| make(&fs, secs));
                fs.unmount().unwrap();
                for _ in 0..2 {
                    let fs = mount(&pm);
                    for secs in times {
                        let attr = fs.getattr_at(&fs.root(), secs.to_string().as_bytes()).unwrap();
                        let time = Timestamp::new(secs, 9);
                        assert_eq!([attr.atime, attr.mtime, attr.ctime, attr.btime], [time; 4]);
                    }
                    fs.abandon();
                }
            }

            #[test]
            fn a_version_that_nobody_knows_is_refused() {
                let pm = Arc::new(SimPm::new(SIZE));
                mkfs(&*pm, &MkfsOptions::default()).unwrap();
                let refused = |version| {
                    make_version(&*pm, version).unwrap();
                    let mounted = $fs::mount(Arc::clone(&pm), &MountOptions::default()).err();
                    let checked = check(&*pm, true).err();
                    [mounted, checked, $fs::<SimPm>::probe(&*pm).err()].map(|error| error.expect("refused"))
                };
                for error in refused(3) {
                    assert_eq!(error.kind(), Kind::Unsupported);
                    let words = error.to_string();
                    assert!(words.contains("format version 3 (this program reads up to 2)"), "{words}");
                    assert!(words.contains("use a newer nacre"), "{words}");
                }
                for error in refused(0) {
                    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                    assert!(error.to_string().contains("superblock: version"), "{error}");
                }
                make_version(&*pm, 2).unwrap();
                mount(&pm).unmount().unwrap();
            }

            /// The helper of other tests makes what that program would have made.
            #[test]
            fn an_image_that_was_made_older_has_the_times_of_its_version() {
                let pm = Arc::new(SimPm::new(SIZE));
                mkfs(&*pm, &MkfsOptions::default()).unwrap();
                make_version_1(&*pm).unwrap();
                let fs = mount(&pm);
                fs.setattr(&fs.root(), &at(-8_000_000_000), NOW).unwrap();
                assert!(fs.setattr(&fs.root(), &at(9_000_000_000), NOW).is_err());
                fs.unmount().unwrap();
                assert_sound(&pm);
                let attr = |fs: &$fs<SimPm>| fs.getattr(&fs.root()).unwrap();
                assert_eq!(attr(&mount(&pm)).mtime, Timestamp::new(-8_000_000_000, 5));
            }
        }
    };
}

layout!(log, nacre_layout_log, LogFs, "../data/version-1-log.lines");
layout!(inplace, nacre_layout_inplace, InplaceFs, "../data/version-1-inplace.lines");
