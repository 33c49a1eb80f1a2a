//! Messages about a device whose superblocks are damaged. Either copy that is left counts. As long as anything of a
//! file system is there, no message advises to make one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nacre::{
    CheckOptions, Emulation, FileSystem, Kind, LayoutKind, MkfsOptions, OpenOptions, Preset, Repair, check,
    mkfs,
};

const SIZE: u64 = 64 << 20;
const COPIES: [u64; 2] = [0, 64 << 10];

fn made(dir: &Path, preset: Preset) -> PathBuf {
    let path = dir.join(preset.as_str());
    let _ = std::fs::remove_file(&path);
    let fs = FileSystem::create(
        &path,
        &MkfsOptions { preset, ..MkfsOptions::with_size(SIZE) },
        &OpenOptions::default(),
    );
    let fs = fs.unwrap();
    fs.write("/kept", b"content").unwrap();
    fs.close().unwrap();
    path
}

fn poison(offset: u64) -> Emulation {
    format!("dram,poison={offset}+4096").parse().unwrap()
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// The layout `inplace` was not recognised when its first copy could not be read, though the second was valid.
#[test]
fn either_copy_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    for preset in [Preset::Nova, Preset::Pmfs] {
        for copy in COPIES {
            let path = made(dir.path(), preset);
            let emulation = Some(poison(copy));
            let checked = CheckOptions { emulation: emulation.clone(), ..CheckOptions::default() };
            let what = format!("{preset}, copy at {copy}");
            let told = check(&path, Repair::None, &checked).expect(&what);
            assert_eq!(told.volume.superblock_copies, 1, "{what}");
            assert!(!told.is_sound() && told.problems.len() == 1, "{what}: {told:?}");
            // Mounted with the error, written, and read again.
            let open = OpenOptions { emulation, ..OpenOptions::default() };
            let fs = FileSystem::open(&path, &open).expect(&what);
            assert_eq!(fs.read("/kept").unwrap(), b"content", "{what}");
            fs.write("/more", b"more").unwrap();
            fs.close().expect(&what);
            // The emulated error is there again, and the page was written over before.
            let report = check(&path, Repair::Safe, &checked).expect(&what);
            assert!(report.is_repaired() && report.is_sound(), "{what}: {report:?}");
            let now = check(&path, Repair::None, &CheckOptions::default()).unwrap();
            assert!(now.problems.is_empty() && now.volume.superblock_copies == 2, "{what}: {now:?}");
            // Bytes that are wrong are as bad as those that cannot be read.
            overwrite(&path, copy, &[0x5a; 4096]);
            assert_eq!(nacre::info(&path).expect(&what).volume.superblock_copies, 1);
            let refused = mkfs(&path, &MkfsOptions::default()).unwrap_err();
            assert!(
                refused.kind() == Kind::Exists && refused.to_string().contains("a nacre file system"),
                "{refused}"
            );
            FileSystem::open(&path, &OpenOptions::default()).expect(&what).close().unwrap();
        }
    }
}

fn errors(path: &Path) -> Vec<String> {
    let open = FileSystem::open(path, &OpenOptions::default()).unwrap_err();
    let checked = check(path, Repair::All, &CheckOptions::default()).unwrap_err();
    let info = nacre::info(path).unwrap_err();
    [open, checked, info].into_iter().map(|error| error.to_string()).collect()
}

#[test]
fn nobody_is_told_to_make_one_over_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("the magic of the first, the checksum of the second", |path| {
            overwrite(path, COPIES[0], &[0; 8]);
            overwrite(path, COPIES[1] + 100, &[1]);
        }),
        ("both checksums", |path| COPIES.into_iter().for_each(|copy| overwrite(path, copy + 100, &[1]))),
        ("both copies", |path| COPIES.into_iter().for_each(|copy| overwrite(path, copy, &[0; 4096]))),
        ("all before the regions", |path| overwrite(path, 0, &[0; 17 * 4096])),
        ("cut off", |path| File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap()),
    ];
    for preset in [Preset::Nova, Preset::Pmfs, Preset::Spfs, Preset::Bpfs] {
        for (what, damage) in damages {
            let path = made(dir.path(), preset);
            damage(&path);
            for error in errors(&path) {
                assert!(!error.contains("mkfs"), "{preset}, {what}: {error}");
                assert!(
                    error.contains("superblock") || error.contains("truncated"),
                    "{preset}, {what}: {error}"
                );
            }
        }
    }
}

#[test]
fn what_is_something_else_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    for error in errors(&path) {
        assert!(error.contains("nacre mkfs makes one"), "{error}");
    }
    overwrite(&path, 0x438, &[0x53, 0xef]);
    for error in errors(&path) {
        assert!(error.contains("ext2") && !error.contains("mkfs"), "{error}");
    }
    overwrite(&path, 0, b"nacreTIR");
    for error in errors(&path) {
        assert!(error.contains("a tier of a nacre file system") && !error.contains("mkfs"), "{error}");
    }
}

#[test]
fn a_preset_and_another_layout_contradict_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pm");
    for (preset, layout) in [(Preset::Hinfs, LayoutKind::Log), (Preset::Nova, LayoutKind::Inplace)] {
        let options = MkfsOptions { preset, layout: Some(layout), ..MkfsOptions::with_size(SIZE) };
        let refused = mkfs(&path, &options).unwrap_err();
        let words = refused.to_string();
        assert_eq!(refused.kind(), Kind::InvalidInput);
        assert!(words.contains(preset.as_str()) && words.contains(layout.as_str()), "{words}");
        assert!(!path.exists());
    }
    let options = MkfsOptions { layout: Some(LayoutKind::Inplace), ..MkfsOptions::with_size(SIZE) };
    assert_eq!(mkfs(&path, &options).unwrap().layout, "inplace");
}

/// `info` said preset nacre of each layout that was made without a preset, and this preset was refused then.
#[test]
fn the_preset_that_is_told_is_one_that_it_can_be_opened_with() {
    let dir = tempfile::tempdir().unwrap();
    for layout in LayoutKind::ALL {
        let path = dir.path().join(layout.as_str());
        mkfs(&path, &MkfsOptions { layout: Some(layout), ..MkfsOptions::with_size(SIZE) }).unwrap();
        let told: Preset = nacre::info(&path).unwrap().volume.preset.parse().unwrap();
        let options = |preset| OpenOptions { preset: Some(preset), ..OpenOptions::default() };
        FileSystem::would_open(&path, &options(told)).unwrap();
        FileSystem::open(&path, &options(told)).unwrap().close().unwrap();
        for preset in Preset::ALL.into_iter().filter(|preset| *preset != told && preset.layout() != layout) {
            let error = FileSystem::open(&path, &options(preset)).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidInput, "{preset} on {layout}");
        }
    }
}
