//! The library as a program uses it.

use std::fs::Permissions;
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nacre::{
    FallocateMode, FileKind, FileOptions, FileSystem, Identity, Kind, MkfsOptions, OpenOptions, Place,
    Preset, RenameMode, Result, SetTime, XattrMode, mkfs,
};

const SIZE: u64 = 64 << 20;

fn memory() -> FileSystem {
    FileSystem::in_memory(SIZE, &OpenOptions::default()).unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T>, kind: Kind) {
    assert_eq!(result.err().map(|error| error.kind()), Some(kind));
}

fn names(fs: &FileSystem, dir: &str) -> Vec<String> {
    let entries = fs.read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// By the preset, or as asked for; other layouts have no choice.
#[test]
fn how_the_layout_shadow_overwrites_is_chosen_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pm");
    let made = |preset: Preset, overwrite_in_place: Option<bool>| {
        let options = MkfsOptions { preset, overwrite_in_place, force: true, ..MkfsOptions::with_size(SIZE) };
        mkfs(&path, &options).map(|made| made.atomic_write)
    };
    for (preset, chosen, is_atomic) in [
        (Preset::Bpfs, None, true),
        (Preset::Bpfs, Some(true), false),
        (Preset::Acbpfs, None, false),
        (Preset::Acbpfs, Some(false), true),
        (Preset::Nova, None, true),
        (Preset::Pmfs, None, false),
    ] {
        assert_eq!(made(preset, chosen).unwrap(), is_atomic, "{preset}, {chosen:?}");
        assert_eq!(nacre::info(&path).unwrap().volume.atomic_write, is_atomic);
    }
    refused(made(Preset::Nova, Some(true)), Kind::Unsupported);
}

#[test]
fn what_was_written_is_there_after_closing_and_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pm");
    let make = MkfsOptions { label: "here".into(), ..MkfsOptions::with_size(SIZE) };
    let fs = FileSystem::create(&path, &make, &OpenOptions::default()).unwrap();
    fs.create_dir_all("/a/b/c").unwrap();
    fs.write("/a/b/c/f", b"contents").unwrap();
    fs.symlink("b/c/f", "a/link").unwrap();
    fs.set_xattr("/a", "user.note", b"kept", XattrMode::Create).unwrap();
    let modified = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    fs.set_times("/a/b", SetTime::Omit, SetTime::At(modified.into())).unwrap();
    let file = fs.open_file("/a/b/c/f").unwrap();
    refused(fs.close(), Kind::Busy);
    drop(file);

    let fs = FileSystem::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(fs.read_to_string("a/link").unwrap(), "contents");
    assert_eq!(fs.get_xattr("/a", "user.note").unwrap(), b"kept");
    assert_eq!(fs.metadata("/a/b").unwrap().modified(), modified);
    let info = fs.info().unwrap();
    assert_eq!((info.volume.label.as_str(), info.volume.layout.as_str()), ("here", "log"));
    assert_eq!(info.device.promise, "process");
    assert!(info.space.unwrap().available > 0);
    refused(FileSystem::open(&path, &OpenOptions::default()), Kind::Busy);
    fs.close().unwrap();

    assert_eq!(nacre::info(&path).unwrap().volume.size, SIZE);
    for repair in [nacre::Repair::None, nacre::Repair::Safe, nacre::Repair::All] {
        let report = nacre::check(&path, repair, &nacre::CheckOptions::default()).unwrap();
        assert_eq!((report.problems, report.interrupted), (vec![], 0));
        assert_eq!((report.directories, report.files), (4, 2));
    }
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let fs = FileSystem::open(&path, &read_only).unwrap();
    assert_eq!(fs.read("/a/b/c/f").unwrap(), b"contents");
    refused(fs.write("/a/b/c/f", b"other"), Kind::ReadOnly);
    refused(fs.create_dir("/d"), Kind::ReadOnly);
}

#[test]
fn mkfs_overwrites_nothing_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    refused(mkfs(&path, &MkfsOptions::default()), Kind::NotFound);
    refused(mkfs(dir.path(), &MkfsOptions::with_size(SIZE)), Kind::IsDirectory);
    refused(mkfs(&path, &MkfsOptions::with_size(SIZE + 1)), Kind::InvalidInput);
    let refuse = |content: &[u8], at: u64, words: &str| {
        let mut file = std::fs::File::create(&path).unwrap();
        file.set_len(SIZE).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(content).unwrap();
        let error = mkfs(&path, &MkfsOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Exists);
        assert!(error.to_string().contains(words), "{error}");
    };
    refuse(b"XFSB", 0, "an XFS file system");
    refuse(b"LABELONE", 512, "an LVM2 physical volume");
    refuse(b"EFI PART", SIZE - 512, "a GPT partition table");
    refuse(b"my thesis", 5 << 20, "a plain file that is not empty");
    refused(mkfs(&path, &MkfsOptions::with_size(2 * SIZE)), Kind::Exists);
    let force = MkfsOptions { force: true, ..MkfsOptions::default() };
    assert_eq!(mkfs(&path, &force).unwrap().size, SIZE);
    refused(mkfs(&path, &MkfsOptions::default()), Kind::Exists);

    std::fs::write(&path, b"").unwrap();
    refused(mkfs(&path, &MkfsOptions::default()), Kind::InvalidInput);
    assert_eq!(mkfs(&path, &MkfsOptions::with_size(SIZE)).unwrap().size, SIZE);
}

/// A file was cut to a size that was refused then, and marks were gone before a label was found too long.
#[test]
fn a_forced_mkfs_that_is_refused_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("device"), dir.path().join("other"));
    std::fs::write(&path, b"my thesis").unwrap();
    let force = |size: Option<u64>| MkfsOptions { force: true, size, ..MkfsOptions::default() };
    for (size, words) in
        [(None, "9 bytes"), (Some(0), "0 bytes"), (Some(1 << 20), "1 MiB"), (Some(1 << 50), "1 PiB")]
    {
        let error = mkfs(&path, &force(size)).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
        assert!(
            error.to_string().contains(&format!("a size of {words}: a file system takes 16 MiB")),
            "{error}"
        );
    }
    let tier = |size| nacre::NewTier {
        device: nacre::TierDevice { path: path.clone(), emulation: None },
        size,
        rank: None,
        force: true,
    };
    for (size, words) in [(None, "9 bytes"), (Some(0), "0 bytes"), (Some(4096), "4 KiB")] {
        let make = MkfsOptions { tiers: vec![tier(size)], ..MkfsOptions::with_size(SIZE) };
        let error = mkfs(&other, &make).unwrap_err();
        assert!(
            error.to_string().contains(&format!("a size of {words}: a tier takes at least 1 MiB")),
            "{error}"
        );
        assert!(!other.exists());
    }
    let long = MkfsOptions { label: "x".repeat(65), ..force(Some(SIZE)) };
    assert!(
        mkfs(&path, &long).unwrap_err().to_string().contains("a label of 65 bytes: give one of at most 64")
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"my thesis");
}

#[test]
fn a_forced_mkfs_erases_the_old_marks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let mut file = std::fs::File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    for (offset, mark) in [(0, &b"hsqs"[..]), (32769, b"CD001"), (SIZE - 512, b"EFI PART")] {
        file.seek(SeekFrom::Start(offset)).unwrap();
        file.write_all(mark).unwrap();
    }
    drop(file);
    assert_eq!(nacre::signatures(&path).unwrap().len(), 3);
    mkfs(&path, &MkfsOptions { force: true, ..MkfsOptions::default() }).unwrap();
    assert!(nacre::signatures(&path).unwrap().iter().all(|found| found.name == "a nacre file system"));
}

/// Only the marks of the first two layouts were known: a pool or a shadow on a block device was overwritten.
#[test]
fn a_file_system_of_any_preset_is_not_overwritten_by_mistake() {
    const COPY: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    for preset in Preset::ALL {
        let path = dir.path().join(preset.as_str());
        let make = MkfsOptions { preset, ..MkfsOptions::with_size(16 << 20) };
        mkfs(&path, &make).unwrap();
        let marks = || {
            let marks = nacre::signatures(&path).unwrap();
            marks.into_iter().map(|mark| (mark.name, mark.offset)).collect::<Vec<_>>()
        };
        let [first, copy] = [0, COPY].map(|at| ("a nacre file system", at));
        assert_eq!(marks(), [first, copy], "{preset}");
        let forced = MkfsOptions { force: true, size: None, ..make.clone() };
        let lost = nacre::would_make(&path, &forced).unwrap().content;
        assert_eq!(lost.as_deref(), Some("it holds a nacre file system"), "{preset}");
        // Either copy is enough.
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        for (lost, left) in [(0, copy), (COPY, first)] {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, lost).unwrap();
            file.write_all_at(&[0; 4096], lost).unwrap();
            assert_eq!(marks(), [left], "{preset}");
            let error = mkfs(&path, &MkfsOptions { size: None, ..make.clone() }).unwrap_err();
            assert!(error.to_string().contains("it holds a nacre file system"), "{preset}: {error}");
            file.write_all_at(&bytes, lost).unwrap();
        }
    }
}

/// A dry run said that nothing known would be lost, where `info` found the structures.
#[test]
fn what_is_left_of_a_file_system_without_superblocks_is_not_overwritten_by_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pm");
    mkfs(&path, &MkfsOptions::with_size(SIZE)).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 68 << 10], 0).unwrap();
    drop(file);
    assert!(nacre::signatures(&path).unwrap().is_empty());
    let info = nacre::info(&path).unwrap_err().to_string();
    assert!(info.contains("structures at byte 77824 are there"), "{info}");
    let error = mkfs(&path, &MkfsOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Exists);
    let left = "it holds a nacre file system without a superblock: its structures at byte 77824 are there";
    assert!(error.to_string().contains(left), "{error}");
    let forced = MkfsOptions { force: true, ..MkfsOptions::default() };
    assert_eq!(nacre::would_make(&path, &forced).unwrap().content.as_deref(), Some(left));
    mkfs(&path, &forced).unwrap();
    assert_eq!(nacre::info(&path).unwrap().volume.size, SIZE);
}

/// Dry runs promised file systems that could not be made, and marks were gone before zones were found not to fit.
#[test]
fn a_dry_run_of_mkfs_is_refused_as_mkfs_is() {
    let dir = tempfile::tempdir().unwrap();
    let (path, disk) = (dir.path().join("pm"), dir.path().join("disk"));
    let tier = |path: &Path| nacre::NewTier {
        device: nacre::TierDevice { path: path.to_owned(), emulation: None },
        size: Some(32 << 20),
        rank: None,
        force: false,
    };
    let zones = MkfsOptions { preset: Preset::Spfs, zones: 2, ..MkfsOptions::with_size(SIZE) };
    let safe = MkfsOptions { require: nacre::Promise::PowerLoss, ..MkfsOptions::with_size(SIZE) };
    let twice = MkfsOptions { tiers: vec![tier(&path)], ..MkfsOptions::with_size(SIZE) };
    let within = dir.path().join("none/pm");
    for (path, options) in
        [(&path, &zones), (&path, &safe), (&path, &twice), (&within, &MkfsOptions::with_size(SIZE))]
    {
        let real = mkfs(path, options).unwrap_err();
        let dry = nacre::would_make(path, options).unwrap_err();
        assert_eq!((dry.kind(), dry.to_string()), (real.kind(), real.to_string()));
    }
    let elsewhere = MkfsOptions { tiers: vec![tier(&within)], ..MkfsOptions::with_size(SIZE) };
    refused(nacre::would_make(&path, &elsewhere), Kind::Io);
    let huge = nacre::would_make(&path, &MkfsOptions::with_size(16 << 40)).map(|_| ());
    let kind = huge.unwrap_err().kind();
    assert!(matches!(kind, Kind::NoSpace | Kind::FileTooBig), "{kind:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");

    let fits = MkfsOptions { tiers: vec![tier(&disk)], ..MkfsOptions::with_size(SIZE) };
    let would = nacre::would_make(&path, &fits).unwrap();
    assert_eq!((would.size, would.content, would.tiers), (SIZE, None, vec![(disk, 32 << 20)]));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
    let made = mkfs(&path, &MkfsOptions::with_size(SIZE)).unwrap();
    assert_eq!((made.size, nacre::info(&path).unwrap().device.promise), (SIZE, would.device.promise));

    // One that is there keeps its marks.
    let before = std::fs::read(&path).unwrap();
    let forced = MkfsOptions { force: true, size: None, ..zones };
    refused(mkfs(&path, &forced), Kind::InvalidInput);
    refused(nacre::would_make(&path, &forced), Kind::InvalidInput);
    let smaller = MkfsOptions { size: Some(32 << 20), force: true, ..MkfsOptions::default() };
    assert_eq!(nacre::would_make(&path, &smaller).unwrap().size, 32 << 20);
    assert!(std::fs::read(&path).unwrap() == before);
}

/// The in-place and the shadow layout called inodes used for which there is no space: 38,000 on an empty device.
#[test]
fn the_used_inodes_are_those_that_exist() {
    const FILES: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    for preset in Preset::ALL {
        let path = dir.path().join(preset.as_str());
        let make = MkfsOptions { preset, ..MkfsOptions::with_size(16 << 20) };
        let open = OpenOptions { buffer: nacre::WriteBuffer::Never, ..OpenOptions::default() };
        let fs = FileSystem::create(&path, &make, &open).unwrap();
        let used = || {
            let stat = fs.statfs();
            stat.inodes - stat.inodes_free
        };
        let before = used();
        assert!(before < 4, "{preset}: {before} inodes of an empty file system");
        for number in 0..FILES {
            fs.create_file(format!("/file-{number}")).unwrap();
        }
        assert_eq!(used() - before, FILES, "{preset}");
        // A device that is nearly full has few more, and no more of them used.
        let rest = fs.statfs().available.saturating_sub(64) * 4096;
        let file = fs.create_file("/rest").unwrap();
        file.allocate(0, rest).unwrap();
        drop(file);
        assert_eq!(used() - before, FILES + 1, "{preset}");
        let info = fs.info().unwrap().space.unwrap();
        assert_eq!(info.inodes - info.inodes_free, used(), "{preset}");
        fs.close().unwrap();
    }
}

#[test]
fn files_read_write_and_seek_like_those_of_std() {
    let fs = memory();
    let mut file = fs.create_file("f").unwrap();
    file.write_all(b"hello ").unwrap();
    let parts = [IoSlice::new(b"wor"), IoSlice::new(b"ld")];
    assert_eq!(file.write_vectored(&parts).unwrap(), 5);
    assert_eq!(
        file.read(&mut [0; 4]).unwrap_err().downcast::<nacre::Error>().unwrap().kind(),
        Kind::BadHandle
    );
    let mut file = FileOptions::new().read(true).write(true).open(&fs, "f").unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello world");
    assert_eq!(file.seek(SeekFrom::Current(-5)).unwrap(), 6);
    let (mut a, mut b) = ([0; 2], [0; 5]);
    let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(file.read_vectored(&mut bufs).unwrap(), 5);
    assert_eq!((&a, &b[..3]), (b"wo", &b"rld"[..]));
    assert_eq!(file.append(b"!").unwrap(), 11);
    file.set_len(5).unwrap();
    assert_eq!(file.read_all().unwrap(), b"hello");
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    assert_eq!(file.metadata().unwrap().mode(), 0o600);
    file.sync_all().unwrap();
    file.sync_data().unwrap();
}

#[test]
fn space_is_allocated_punched_and_found() {
    let fs = memory();
    let file = FileOptions::new().read(true).write(true).create_new(true).open(&fs, "/f").unwrap();
    file.write_at(&[1; 4096], 1 << 20).unwrap();
    assert_eq!((file.seek_data(0).unwrap(), file.seek_hole(0).unwrap()), (1 << 20, 0));
    file.write_at(&[2; 8192], 0).unwrap();
    file.punch_hole(0, 4096).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), 4096);
    file.allocate(2 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (2 << 20) + 4096);
    file.fallocate(FallocateMode::ZeroRange, 4096, 4096).unwrap();
    let mut block = [9; 4096];
    file.read_at(&mut block, 4096).unwrap();
    assert!(block.iter().all(|byte| *byte == 0));
    let extents = fs.extents("/f").unwrap();
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), (2 << 20) / 4096 + 1);
    assert!(extents.iter().any(|extent| matches!(extent.place, Place::Pm(_))), "{extents:?}");
    let copied = fs.copy("/f", "/copy").unwrap();
    assert_eq!(copied, (2 << 20) + 4096);
    assert_eq!(fs.read("/copy").unwrap(), fs.read("/f").unwrap());
    let unnamed = FileOptions::new().write(true).tmpfile(true).open(&fs, "/").unwrap();
    unnamed.link("/named").unwrap();
    assert_eq!(fs.metadata("/named").unwrap().nlink(), 1);
}

#[test]
fn names_are_made_moved_and_removed() {
    let fs = memory();
    fs.create_dir("/d/").unwrap();
    fs.create_dir_all("/d/e").unwrap();
    fs.write("/d/f", b"1").unwrap();
    refused(fs.create_dir("/d"), Kind::Exists);
    refused(fs.create_dir_all("/d/f"), Kind::NotDirectory);
    refused(fs.remove_dir("/d"), Kind::NotEmpty);
    refused(fs.remove_file("/d"), Kind::IsDirectory);
    refused(fs.remove_file("/d/f/"), Kind::NotDirectory);
    refused(fs.remove_dir("/d/f"), Kind::NotDirectory);
    refused(fs.rename("/d/f", "/g/"), Kind::NotDirectory);
    refused(fs.symlink("x", "/d/new/"), Kind::NotFound);
    fs.rename("/d/e", "/e/").unwrap();
    fs.write("/e/f", b"2").unwrap();
    fs.exchange("/d/f", "/e/f").unwrap();
    assert_eq!(fs.read("/d/f").unwrap(), b"2");
    refused(fs.rename_with("/d/f", "/e/f", RenameMode::NoReplace), Kind::Exists);
    fs.hard_link("/d/f", "/h").unwrap();
    assert_eq!(fs.metadata("/h").unwrap().nlink(), 2);
    fs.create_node("/pipe", FileKind::Fifo, 0o600, 0).unwrap();
    assert_eq!(fs.symlink_metadata("/pipe").unwrap().kind(), FileKind::Fifo);
    fs.symlink("/nowhere", "/l").unwrap();
    assert!(!fs.exists("/l").unwrap());
    assert_eq!(fs.read_link("/l").unwrap(), Path::new("/nowhere"));
    assert_eq!(names(&fs, "/"), ["d", "e", "h", "l", "pipe"]);
    fs.remove_dir_all("/d").unwrap();
    refused(fs.remove_dir_all("/h"), Kind::NotDirectory);
    assert_eq!(names(&fs, "/"), ["e", "h", "l", "pipe"]);
}

#[test]
fn a_large_tree_is_listed_and_removed() {
    let fs = memory();
    for dir in 0..3 {
        fs.create_dir_all(format!("/t/{dir}/deep")).unwrap();
        for file in 0..700 {
            fs.create_file(format!("/t/{dir}/{file}")).unwrap();
        }
    }
    fs.symlink("/", "/t/link").unwrap();
    let listed = names(&fs, "/t/1");
    assert_eq!(listed.len(), 701);
    fs.remove_dir_all("/t").unwrap();
    assert_eq!(names(&fs, "/"), [""; 0]);
}

#[test]
fn permissions_are_checked_for_a_user_who_asks_for_it() {
    let fs = memory();
    fs.set_permissions("/", Permissions::from_mode(0o755)).unwrap();
    fs.write("/secret", b"s").unwrap();
    fs.set_permissions("/secret", Permissions::from_mode(0o600)).unwrap();
    fs.chown("/secret", Some(1000), Some(1000)).unwrap();
    let ann = fs.as_user(Identity::checked(1000, 1000));
    let bob = fs.as_user(Identity::checked(1001, 1001));
    assert_eq!(ann.read("/secret").unwrap(), b"s");
    refused(bob.read("/secret"), Kind::AccessDenied);
    refused(bob.access("/secret", 4), Kind::AccessDenied);
    refused(bob.create_dir("/d"), Kind::AccessDenied);
    refused(bob.set_permissions("/secret", Permissions::from_mode(0o777)), Kind::NotPermitted);
    refused(fs.close(), Kind::Busy);
}

/// A device says by itself which layout it has.
#[test]
fn the_in_place_layout_is_found_on_its_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pm");
    let preset: nacre::Preset = "pmfs".parse().unwrap();
    let made = mkfs(&path, &MkfsOptions { preset, ..MkfsOptions::with_size(SIZE) }).unwrap();
    assert_eq!(
        (made.layout.as_str(), made.preset.as_str(), made.features.compatible),
        ("inplace", "pmfs", 1)
    );
    let fs = FileSystem::open(&path, &OpenOptions::default()).unwrap();
    fs.create_dir_all("/a/b").unwrap();
    fs.write("/a/b/f", b"contents").unwrap();
    fs.rename("/a/b/f", "/a/g").unwrap();
    assert_eq!(fs.scrub_status().state, "never");
    fs.start_scrub(None).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while fs.scrub_status().state == "running" {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    let scrubbed = fs.scrub_status();
    assert_eq!((scrubbed.state.as_str(), scrubbed.bytes), ("finished", SIZE));
    assert!(scrubbed.findings.is_empty(), "{scrubbed:?}");
    assert_eq!(fs.info().unwrap().volume.layout, "inplace");
    fs.close().unwrap();

    // With an index of names, too, whatever mkfs was told.
    let options = OpenOptions { name_index: Some(true), ..OpenOptions::default() };
    let fs = FileSystem::open(&path, &options).unwrap();
    assert_eq!(fs.read_to_string("/a/g").unwrap(), "contents");
    fs.close().unwrap();
    let checked = nacre::CheckOptions::default();
    let report = nacre::check(&path, nacre::Repair::None, &checked).unwrap();
    assert!(report.is_sound() && report.volume.layout == "inplace");
    assert_eq!((report.directories, report.files), (3, 1));
    let media = nacre::CheckOptions { media: true, ..checked };
    assert!(nacre::check(&path, nacre::Repair::None, &media).unwrap().is_sound());
    refused(mkfs(&path, &MkfsOptions::with_size(SIZE)), Kind::Exists);
}

#[test]
fn names_are_indexed_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("pm");
    let make = MkfsOptions { preset: Preset::Pmfs, ..MkfsOptions::with_size(64 << 20) };
    let fs = FileSystem::create(&device, &make, &OpenOptions::default()).unwrap();
    for number in 0..500 {
        fs.write(format!("/file {number}"), b"").unwrap();
    }
    fs.close().unwrap();
    let bytes = |name_index: Option<bool>| {
        let options = OpenOptions { name_index, ..OpenOptions::default() };
        let fs = FileSystem::open(&device, &options).unwrap();
        for number in 0..500 {
            fs.metadata(format!("/file {number}")).unwrap();
        }
        assert!(fs.metadata("/file 500").is_err());
        let bytes = fs.info().unwrap().space.unwrap().index_bytes;
        fs.close().unwrap();
        bytes
    };
    assert_eq!(bytes(None), bytes(Some(false)), "the preset has none");
    assert!(bytes(Some(true)) >= bytes(Some(false)) + 500 * 8);

    let log = dir.path().join("log");
    FileSystem::create(&log, &MkfsOptions::with_size(64 << 20), &OpenOptions::default())
        .unwrap()
        .close()
        .unwrap();
    let asked = OpenOptions { name_index: Some(false), ..OpenOptions::default() };
    let error = FileSystem::open(&log, &asked).unwrap_err();
    assert!(error.kind() == Kind::InvalidInput && error.to_string().contains("name_index"), "{error}");
}

/// Inodes that are not in use leave DRAM beyond a limit, and are read again.
#[test]
fn inodes_in_dram_have_a_limit() {
    let few = OpenOptions { inode_cache: Some(1023), ..OpenOptions::default() };
    let error = FileSystem::in_memory(64 << 20, &few).err().unwrap();
    assert!(error.kind() == Kind::InvalidInput && error.to_string().contains("1024"), "{error}");
    let options = OpenOptions { inode_cache: Some(1024), ..OpenOptions::default() };
    let fs = FileSystem::in_memory(64 << 20, &options).unwrap();
    for file in 0..3000 {
        fs.write(format!("/{file}"), file.to_string()).unwrap();
    }
    fs.sync().unwrap();
    for file in 0..3000 {
        assert_eq!(fs.read_to_string(format!("/{file}")).unwrap(), file.to_string());
    }
    let in_dram = || fs.info().unwrap().space.unwrap().inodes_in_dram;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while in_dram() > 1024 {
        assert!(std::time::Instant::now() < end, "{} inodes are in DRAM", in_dram());
        std::thread::yield_now();
    }
    fs.close().unwrap();
}
