//! The DRAM of the pool layout: it keeps nothing of files that were let go, and at most 64 bytes of one that is held.
//!
//! The test has a process of its own, so that its DRAM is the layout's. Its PM is a mapped file, whose
//! pages do not count. `NACRE_FILES` is how many files it makes (100,000 by default; a million in `make nightly`).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nacre_engine::{Extents, FileKind, Names, NewInode, Timestamp};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_layout_pool::{Node, PoolFs};
use nacre_media::{PmOptions, RealPm};

type Fs = PoolFs<RealPm>;

/// Files that are made without a word in `NACRE_FILES`.
const FILES: u64 = 100_000;
const PER_DIRECTORY: u64 = 1000;
/// Files that are held, at most.
const HELD: u64 = 100_000;
/// Bytes of locks, lanes and rows, at most.
const FIXED: u64 = 256 << 10;
/// Bytes of the device for each byte of hints.
const GROUP: u64 = 2 << 20;
/// Bytes of a held inode, at most.
const INODE: u64 = 64;
/// Bytes by which the process grows, at most.
const GROWTH: u64 = 2 << 20;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn directory(number: u64) -> Vec<u8> {
    format!("d{number:04}").into_bytes()
}

fn file(number: u64) -> Vec<u8> {
    format!("f{number:07}").into_bytes()
}

/// Makes files in directories of a thousand, and holds none of them afterwards.
fn make(fs: &Fs, files: u64) {
    let mut dir = None;
    for number in 0..files {
        if number % PER_DIRECTORY == 0 {
            let new = NewInode::of_root(FileKind::Directory, 0o755, now());
            dir = Some(fs.create(&fs.root(), &directory(number / PER_DIRECTORY), &new).expect("a directory"));
        }
        let new = NewInode::of_root(FileKind::Regular, 0o644, now());
        fs.create(dir.as_ref().expect("a directory"), &file(number), &new).expect("a file");
    }
}

/// Finds files, and gives each to `each`.
fn find(fs: &Fs, files: u64, mut each: impl FnMut(Node)) {
    let mut dir = None;
    for number in 0..files {
        if number % PER_DIRECTORY == 0 {
            dir = Some(fs.lookup(&fs.root(), &directory(number / PER_DIRECTORY)).expect("the directory"));
        }
        each(fs.lookup(dir.as_ref().expect("the directory"), &file(number)).expect("the file"));
    }
}

/// Bytes of this process that belong to it alone.
fn anonymous() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn mount(pm: &Arc<RealPm>) -> Fs {
    // A thread behind the mount would take DRAM for a moment.
    let options = MountOptions { background: false, ..MountOptions::default() };
    Fs::mount(Arc::clone(pm), &options).expect("mount")
}

#[test]
fn files_that_were_let_go_leave_nothing_in_dram() {
    let files =
        std::env::var("NACRE_FILES").map_or(FILES, |text| text.parse().expect("NACRE_FILES: a number"));
    let shared = Path::new("/dev/shm");
    let dir = match shared.is_dir() {
        true => tempfile::Builder::new().prefix("nacre-test-").tempdir_in(shared),
        false => tempfile::tempdir(),
    };
    let dir = dir.expect("a directory");
    // Two copies of an inode and of its name take less than a kilobyte.
    let size = (files * 1024 + (64 << 20)).next_multiple_of(GROUP);
    let pm = RealPm::create(dir.path().join("pm"), size, &PmOptions::default()).expect("a file");
    let pm = Arc::new(pm);
    Fs::mkfs(&pm, &MkfsOptions::default()).expect("mkfs");
    let bound = FIXED + size / GROUP;

    let fs = mount(&pm);
    let before = anonymous();
    make(&fs, files);
    let (made, grown) = (fs.index_bytes(), anonymous().saturating_sub(before));
    assert!(made <= bound, "{made} bytes with {files} files made and let go, and {bound} are allowed");
    assert!(grown < GROWTH, "the process grew by {grown} bytes with {files} files");

    let count = files.min(HELD);
    let mut held = Vec::with_capacity(count as usize);
    find(&fs, count, |node| held.push(node));
    let bytes = fs.index_bytes().saturating_sub(made);
    assert!(bytes <= INODE * count, "{bytes} bytes for {count} held inodes");
    // They are counted at all.
    assert!(bytes >= INODE / 2 * count, "{bytes} bytes for {count} held inodes");
    drop(held);

    let mut found = 0;
    find(&fs, files, |_| found += 1);
    let left = fs.index_bytes();
    assert_eq!(found, files);
    assert!(left <= bound, "{left} bytes after {found} files were found, and {bound} are allowed");
    fs.unmount().expect("unmount");

    let fs = mount(&pm);
    let mounted = fs.index_bytes();
    assert!(mounted <= bound, "{mounted} bytes of a mount of {files} files, and {bound} are allowed");
    fs.abandon();
    let fs = mount(&pm);
    let crashed = fs.index_bytes();
    assert!(crashed <= bound, "{crashed} bytes of a mount after a crash, and {bound} are allowed");
    fs.unmount().expect("unmount");
    let report = Fs::check(&*pm, Repair::None, None).expect("check");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
