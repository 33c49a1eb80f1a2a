//! What is durable without fsync(2), when the server of a mount is killed: writes under O_SYNC, O_DSYNC and RWF_DSYNC also
//! where others are buffered, every write of a mount with `sync`, and what was written to a mapping once msync(2) returns.

use std::ffi::{CString, c_void};
use std::fs::{self, File, OpenOptions};
use std::io::IoSlice;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::ptr;
use std::thread;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{CWD, FallocateFlags, RenameFlags};
use rustix::io::ReadWriteFlags;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::harness::{self, BUFFERED, Ground, PRESETS};
use crate::lazy::LAZY;

const LIMIT: Duration = Duration::from_secs(30);
/// The presets that buffer on a mount with `lazy`: of each layout, and of each kind of buffer.
const LAZY_PRESETS: [&str; 4] = ["nacre", "hinfs", "hinfs-wb", "hinfs-nclfw"];
const PAGE: usize = 4096;

/// Opens a file to read and write, makes it where it is not there.
fn open(path: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path).expect("open")
}

#[test]
fn synchronous_writes_of_a_lazy_mount_are_there_after_kill_9() {
    if !harness::can_mount("synchronous writes of lazy mounts") {
        return;
    }
    for preset in LAZY_PRESETS {
        let mut ground = Ground::preset(preset, "64M", Some(LAZY));
        let dir = ground.dir();
        let path = |name: &str| dir.join(name);
        let mut expected = vec![1; 100_000];
        let files =
            [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)].map(|(name, flags)| open(&path(name), flags));
        for file in &files {
            file.write_all_at(&expected, 0).expect("write");
            // A part of a block that is there.
            file.write_all_at(&[2; 100], 5000).expect("write");
        }
        let plain = open(&path("call"), 0);
        for (bytes, offset) in [(&expected[..], 0), (&[2; 100], 5000)] {
            let count = rustix::io::pwritev2(&plain, &[IoSlice::new(bytes)], offset, ReadWriteFlags::DSYNC);
            assert_eq!(count.expect("pwritev2"), bytes.len());
        }
        expected[5000..5100].fill(2);
        // A copy within the file system, which reaches the server as one request and without the flags of the handle.
        let copied = open(&path("copy"), libc::O_SYNC);
        let count = rustix::fs::copy_file_range(&files[0], None, &copied, None, expected.len());
        assert_eq!(count.expect("copy_file_range"), expected.len());
        // The same to a file that is there, which the kernel opens without a word to the server.
        drop(open(&path("copy over"), 0));
        let over = open(&path("copy over"), libc::O_SYNC);
        let count = rustix::fs::copy_file_range(&files[0], Some(&mut 0), &over, None, expected.len());
        assert_eq!(count.expect("copy_file_range"), expected.len());
        // Over what waits: that may go, what was written over it may not.
        open(&path("mixed"), 0).write_all_at(&[3; 3 * PAGE], 0).expect("write");
        open(&path("mixed"), libc::O_SYNC).write_all_at(&[4; 10], 5000).expect("write");
        // The control: such writes wait.
        open(&path("waits"), 0).write_all_at(&expected, 0).expect("write");
        let made = open(&path("copy waits"), 0);
        let count = rustix::fs::copy_file_range(&files[0], Some(&mut 0), &made, None, expected.len());
        assert_eq!(count.expect("copy_file_range"), expected.len());
        drop((files, plain, copied, over, made));
        ground.kill();
        ground.set_options(None);
        ground.mount();
        for name in ["sync", "dsync", "call", "copy", "copy over"] {
            assert!(fs::read(path(name)).expect("read") == expected, "{preset}: {name}");
        }
        let mixed = fs::read(path("mixed")).expect("read");
        assert_eq!(mixed.get(5000..5010), Some(&[4; 10][..]), "{preset}");
        assert!(mixed.iter().all(|byte| [0, 3, 4].contains(byte)), "{preset}: what was never written shows");
        for name in ["waits", "copy waits"] {
            assert_eq!(fs::read(path(name)).expect("read"), b"", "{preset}: nobody asked for {name}");
        }
        ground.unmount();
        ground.fsck();
    }
}

#[test]
fn every_write_of_a_mount_with_sync_is_there_after_kill_9() {
    if !harness::can_mount("mounts with sync") {
        return;
    }
    for preset in ["nova", "pmfs"].into_iter().chain(LAZY_PRESETS) {
        let mut ground = Ground::preset(preset, "64M", Some("sync"));
        let path = ground.dir().join("file");
        let mut expected = vec![1; 300_000];
        let file = open(&path, 0);
        file.write_all_at(&expected, 0).expect("write");
        file.write_all_at(&[2; 10_000], 1234).expect("write");
        file.write_all_at(&[3; 10], 310_000).expect("write");
        drop(file);
        expected[1234..11_234].fill(2);
        expected.resize(310_000, 0);
        expected.extend([3; 10]);
        ground.kill();
        ground.mount();
        assert!(fs::read(&path).expect("read") == expected, "{preset}");
        ground.unmount();
        ground.fsck();
    }
}

/// No mount is both: neither from the beginning nor by a remount.
#[test]
fn a_mount_that_buffers_is_not_mounted_with_sync() {
    if !harness::can_mount("lazy mounts with sync") {
        return;
    }
    let mut ground = Ground::preset("hinfs", "64M", Some("sync"));
    let remount = |ground: &Ground, options: &str| {
        let mut command = harness::nacre();
        command.args(["mount", "-o", options]).arg(ground.image()).arg(ground.dir());
        let refused = harness::run(&mut command, LIMIT).expect("it runs");
        assert!(!refused.status.success(), "{options}: {refused:?}");
        harness::text(&refused)
    };
    let words = remount(&ground, "remount,buffer_age=1000");
    assert!(words.contains("no write buffer"), "{words}");
    ground.unmount();
    for options in ["buffer,sync", "sync,buffer=8M", "preset=hinfs-wb,sync,buffer_age=1000"] {
        ground.set_options(Some(options));
        let words = ground.try_mount().expect_err(options);
        assert!(words.contains("buffer excludes writeback and sync"), "{options}: {words}");
    }
    ground.set_options(Some(LAZY));
    ground.mount();
    let words = remount(&ground, "remount,sync");
    assert!(words.contains("\"sync\" cannot be changed"), "{words}");
    ground.unmount();
}

/// A file that is mapped shared, from its beginning on.
struct Mapped {
    start: *mut c_void,
    len: usize,
}

impl Mapped {
    /// The file must be as long, and stay so: pages behind its end cannot be touched.
    fn new(file: &File, len: usize) -> Mapped {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        Mapped { start: start.expect("mmap"), len }
    }

    /// Changes bytes, and waits until msync(2) says that they are durable.
    fn write_and_sync(&mut self, range: Range<usize>, byte: u8) {
        self.try_write_and_sync(range, byte).expect("msync");
    }

    /// Changes bytes.
    fn write(&mut self, range: Range<usize>, byte: u8) {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is within the mapping, which is there as long as `self`, and to which no reference exists.
        unsafe { ptr::write_bytes(self.start.cast::<u8>().add(range.start), byte, range.len()) };
    }

    fn try_write_and_sync(&mut self, range: Range<usize>, byte: u8) -> rustix::io::Result<()> {
        self.write(range.clone(), byte);
        let page = range.start / PAGE * PAGE;
        // SAFETY: the range is within the mapping, and begins with a page.
        unsafe { rustix::mm::msync(self.start.add(page), range.end - page, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and nobody uses it behind this.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}

/// The mapping is still there when the server dies. What write(2) had put below it, which waits on a lazy mount, is of the same
/// file and so durable with it.
#[test]
fn what_msync_acknowledged_is_there_after_kill_9() {
    if !harness::can_mount("msync") {
        return;
    }
    const LEN: usize = 64 * PAGE;
    let mut random = StdRng::seed_from_u64(harness::seed("msync"));
    let bare = PRESETS.map(|preset| (preset, None));
    let lazy = LAZY_PRESETS.map(|preset| (preset, Some(LAZY)));
    let writeback = BUFFERED.into_iter().filter(|kind| kind.options == "writeback");
    let writeback = writeback.map(|kind| (kind.preset, Some(kind.options)));
    for (preset, options) in bare.into_iter().chain(lazy).chain(writeback) {
        let mut ground = Ground::preset(preset, "64M", options);
        for round in 0..3_u8 {
            let path = ground.dir().join(format!("mapped{round}"));
            let file = open(&path, 0);
            let mut expected = vec![100 + round; LEN];
            file.write_all_at(&expected, 0).expect("write");
            if options == Some("writeback") {
                // It waits in pages of the kernel's, of which msync writes those that it is told.
                file.sync_data().expect("fdatasync");
            }
            let mut mapped = Mapped::new(&file, LEN);
            for byte in 0..20 {
                let start = random.random_range(0..LEN);
                let range = start..(start + random.random_range(1..3 * PAGE)).min(LEN);
                mapped.write_and_sync(range.clone(), byte);
                expected[range].fill(byte);
            }
            ground.kill();
            drop((mapped, file));
            ground.mount();
            let found = fs::read(&path).expect("read");
            assert!(found == expected, "{}, round {round}", ground.name());
        }
        ground.unmount();
        ground.fsck();
    }
}

/// Linkers and databases make a file, store all of it through a mapping, and rename it over the old one. After a kill the name
/// had neither the old contents nor the new ones.
#[test]
fn a_mapped_file_replaces_another_with_its_contents() {
    if !harness::can_mount("mapped files that replace others") {
        return;
    }
    const LEN: usize = 2 * PAGE + 100;
    let bare = PRESETS.map(|preset| (preset, None));
    let lazy = LAZY_PRESETS.map(|preset| (preset, Some(LAZY)));
    for (preset, options) in bare.into_iter().chain(lazy).chain([("nova", Some("writeback"))]) {
        let mut ground = Ground::preset(preset, "64M", options);
        let dir = ground.dir();
        let kinds = [
            ("hole", false, RenameFlags::empty()),
            ("unwritten", true, RenameFlags::empty()),
            ("exchanged", false, RenameFlags::EXCHANGE),
        ];
        let mapped = kinds.map(|(name, is_allocated, flags)| {
            let (old, new) = (dir.join(name), dir.join(format!("{name}.new")));
            let file = open(&old, 0);
            file.write_all_at(&[1; LEN], 0).expect("write");
            file.sync_all().expect("fsync");
            let file = open(&new, 0);
            if is_allocated {
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LEN as u64).expect("fallocate");
            } else {
                file.set_len(LEN as u64).expect("ftruncate");
            }
            let mut mapped = Mapped::new(&file, LEN);
            mapped.write(0..LEN, 2);
            rustix::fs::renameat_with(CWD, &new, CWD, &old, flags).expect("rename");
            (mapped, file)
        });
        ground.kill();
        drop(mapped);
        ground.set_options(None);
        ground.mount();
        for (name, ..) in kinds {
            let found = fs::read(dir.join(name)).expect("read");
            assert!(found == [2; LEN] || found == [1; LEN], "{}, {name}: neither", ground.name());
        }
        ground.unmount();
        ground.fsck();
    }
}

/// The kernel drops pages that it cannot send to a server that has ended, without an error of its own. On a mount with
/// neither buffer, msync(2) does not reach the server, and the guide says so.
#[test]
fn a_server_that_has_ended_synchronises_nothing() {
    if !harness::can_mount("synchronising beside a dead server") {
        return;
    }
    for (preset, options, is_told) in [
        ("nova", "writeback", true),
        ("pmfs", "writeback", true),
        ("nova", LAZY, true),
        ("nova", "noatime", false),
    ] {
        let mut ground = Ground::preset(preset, "64M", Some(options));
        let path = ground.dir().join("file");
        let file = open(&path, 0);
        file.write_all_at(&[1; 2 * PAGE], 0).expect("write");
        file.sync_all().expect("fsync");
        let mut mapped = Mapped::new(&file, 2 * PAGE);
        mapped.write_and_sync(0..10, 2);
        ground.kill();
        let synced = mapped.try_write_and_sync(0..10, 3);
        assert_eq!(synced.is_err(), is_told, "{preset}, {options}: msync {synced:?}");
        let written = file.write_at(&[4; PAGE], PAGE as u64);
        let synced = [file.sync_all(), file.sync_data()];
        // Where the kernel takes the write, it is the fsync that fails.
        assert!(
            written.is_err() || synced.iter().all(Result::is_err),
            "{preset}, {options}: {written:?} {synced:?}"
        );
        assert!(rustix::fs::statfs(ground.dir()).is_err(), "{preset}, {options}");
        drop((mapped, file));
        ground.mount();
        let found = fs::read(&path).expect("read");
        assert!(found[..10] == [2; 10] && found[PAGE..] == [1; PAGE], "{preset}, {options}");
        ground.unmount();
        ground.fsck();
    }
}

/// Times that stat(2) has shown beside the kernel's own buffer are those after a remount.
#[test]
fn times_beside_the_kernels_buffer_are_those_of_the_kernel() {
    if !harness::can_mount("times with writeback") {
        return;
    }
    let mut ground = Ground::preset("nova", "64M", Some("writeback"));
    let path = |name: &str| ground.dir().join(name);
    let times = |path: &Path| {
        let attr = fs::metadata(path).expect("stat");
        [(attr.mtime(), attr.mtime_nsec()), (attr.ctime(), attr.ctime_nsec())]
    };
    let paths = ["same size", "shorter", "mode"].map(path);
    for path in &paths {
        let file = open(path, 0);
        file.write_all_at(&[1; 10_000], 0).expect("write");
        file.sync_all().expect("fsync");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_modified(long_ago).expect("utimensat");
    }
    thread::sleep(Duration::from_millis(20));
    let [same, shorter, mode] = &paths;
    // By path: the kernel sends ftruncate(2) with its times.
    for (path, size) in [(same, 10_000), (shorter, 5000)] {
        let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: the path ends with a NUL, and lives as long as the call.
        assert_eq!(unsafe { libc::truncate(path.as_ptr(), size) }, 0);
    }
    fs::set_permissions(mode, fs::Permissions::from_mode(0o600)).expect("chmod");
    let shown = [same, shorter, mode].map(|path| times(path));
    ground.remount();
    assert_eq!([same, shorter, mode].map(|path| times(path)), shown);
    assert_eq!((times(same)[0].0, times(mode)[0].0), (1_000_000_000, 1_000_000_000));
    ground.unmount();
    ground.fsck();
}
