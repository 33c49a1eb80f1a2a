//! A file system of either layout, and what is done with it.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FileBlock, FileKind, Kind, NewInode, Place, Result, Timestamp,
    WriteAt, XattrMode,
};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::{CheckReport, MediaReport, Repair};
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_media::SimPm;

pub(crate) const SIZE: u64 = 16 << 20;
pub(crate) const LINE: u64 = 64;
/// Names in the directory.
pub(crate) const NAMES: u64 = 200;
/// Blocks that each file has, every other one of its first.
pub(crate) const BLOCKS: u64 = 150;

pub(crate) fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

pub(crate) fn new(kind: FileKind) -> NewInode<'static> {
    NewInode::of_root(kind, 0o644, now())
}

pub(crate) fn make<F: Lifecycle<Pm = SimPm>>(pm: &SimPm) {
    F::mkfs(pm, &MkfsOptions::default()).unwrap();
}

pub(crate) fn try_mount<F: Lifecycle<Pm = SimPm>>(pm: &Arc<SimPm>) -> Result<F> {
    let options = MountOptions { background: false, lanes: Some(1), ..MountOptions::default() };
    F::mount(Arc::clone(pm), &options)
}

pub(crate) fn mount<F: Lifecycle<Pm = SimPm>>(pm: &Arc<SimPm>) -> F {
    try_mount(pm).expect("mount")
}

/// The check of an unmounted file system. With `repair`, what loses nothing is repaired.
pub(crate) fn checked<F: Lifecycle<Pm = SimPm>>(pm: &SimPm, repair: bool) -> CheckReport {
    F::check(pm, if repair { Repair::Safe } else { Repair::None }, None).unwrap()
}

/// A search for media errors on an unmounted file system.
pub(crate) fn media<F: Lifecycle<Pm = SimPm>>(pm: &SimPm, record: bool) -> MediaReport {
    F::check_media(pm, record).unwrap()
}

pub(crate) fn put<F: Data>(fs: &F, node: &F::Node, offset: u64, bytes: &[u8]) -> Result<u64> {
    fs.write(node, WriteAt::Offset(offset), &[IoSlice::new(bytes)], Durability::Now, now())
}

pub(crate) fn read<F: Data>(
    fs: &F,
    node: &F::Node,
    offset: u64,
    len: usize,
) -> std::result::Result<Vec<u8>, Kind> {
    let mut bytes = vec![0; len];
    let count = fs.read(node, offset, &mut bytes, None).map_err(|error| error.kind())?;
    bytes.truncate(count);
    Ok(bytes)
}

pub(crate) fn lookup<F: Data>(fs: &F, path: &str) -> Result<F::Node> {
    path.split('/').try_fold(fs.root(), |dir, name| fs.lookup(&dir, name.as_bytes()))
}

/// Two files with attributes, and a directory with names; unmounted in order.
pub(crate) fn image<F: Lifecycle<Pm = SimPm>>() -> Arc<SimPm> {
    let pm = Arc::new(SimPm::new(SIZE));
    make::<F>(&pm);
    let fs: F = mount(&pm);
    let root = fs.root();
    let dir = fs.create(&root, b"dir", &new(FileKind::Directory)).unwrap();
    for index in 0..NAMES {
        let file = fs.create(&dir, format!("name-{index}").as_bytes(), &new(FileKind::Regular)).unwrap();
        put(&fs, &file, 0, &[index as u8; 100]).unwrap();
    }
    for name in ["bad", "good"] {
        let file = fs.create(&root, name.as_bytes(), &new(FileKind::Regular)).unwrap();
        for block in 0..BLOCKS {
            put(&fs, &file, block * 2 * BLOCK_SIZE, &[name.as_bytes()[0]; 4096]).unwrap();
        }
        fs.set_xattr(&file, b"user.large", &[9; 9000], XattrMode::Set, None, now()).unwrap();
    }
    drop((root, dir));
    fs.unmount().unwrap();
    pm
}

/// Where a block of a file is.
pub(crate) fn place_of<F: Data + Extents>(fs: &F, node: &F::Node, block: u64) -> u64 {
    let places = fs.resolve(node, FileBlock(block), 1).unwrap();
    let Place::Pm(found) = places[0].place else { panic!("{places:?}") };
    found.offset()
}

/// Everything but `bad` is as it was, and can be changed.
pub(crate) fn the_rest_lives<F: Data>(fs: &F, what: &str) {
    let good = lookup(fs, "good").unwrap_or_else(|error| panic!("{what}: {error}"));
    for block in 0..BLOCKS {
        let bytes =
            read(fs, &good, block * 2 * BLOCK_SIZE, 4096).unwrap_or_else(|kind| panic!("{what}: {kind:?}"));
        assert!(bytes.iter().all(|&byte| byte == b'g'), "{what}");
    }
    put(fs, &good, 0, &[b'g'; 4096]).unwrap_or_else(|error| panic!("{what}: {error}"));
    let new =
        fs.create(&fs.root(), b"new", &new(FileKind::Regular)).unwrap_or_else(|e| panic!("{what}: {e}"));
    put(fs, &new, 0, b"new").unwrap();
    fs.unlink(&fs.root(), b"new", now()).unwrap();
}

pub(crate) fn scrub<F: Lifecycle<Pm = SimPm>>(fs: &F) -> ScrubStatus {
    fs.start_scrub(u64::MAX).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let status = fs.scrub_status();
        if !status.running {
            return status;
        }
        assert!(Instant::now() < end, "{status:?}");
        std::thread::yield_now();
    }
}

/// Takes all space; none of it is at the bad place.
pub(crate) fn fill<F: Data + Extents>(fs: &F, bad: u64) {
    let node = fs.create(&fs.root(), b"fill", &new(FileKind::Regular)).unwrap();
    let mut size = 0;
    for piece in [64, 1] {
        while put(fs, &node, size, &vec![1; piece * 4096]).is_ok() {
            size += piece as u64 * BLOCK_SIZE;
        }
    }
    assert!(size > SIZE / 2);
    for extent in fs.resolve(&node, FileBlock(0), size / BLOCK_SIZE).unwrap() {
        let Place::Pm(block) = extent.place else { continue };
        assert!(!(block.offset()..block.offset() + extent.len * BLOCK_SIZE).contains(&bad));
    }
    drop(node);
    fs.unlink(&fs.root(), b"fill", now()).unwrap();
}
