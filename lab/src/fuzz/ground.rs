//! The file system that images are made from, and the operations on an image that can be mounted.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet};
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FallocateMode, FileBlock, FileKind, NewInode, RenameMode, Result,
    SeekTo, SetAttr, Timestamp, WriteAt, XattrMode,
};
use nacre_layout_log::anatomy::{Kind, Structure, structures};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::{Image, SimPm};

/// The smallest device.
pub(super) const SIZE: u64 = 16 << 20;
/// Inodes that a walk looks at.
const MAX_INODES: usize = 2000;
/// Bytes that are read of a file, at its beginning and at its end.
const MAX_READ: usize = 64 << 10;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn new(kind: FileKind) -> NewInode<'static> {
    let target: &[u8] = if kind == FileKind::Symlink { b"target" } else { b"" };
    NewInode { target, ..NewInode::of_root(kind, 0o755, now()) }
}

/// An image and where its structures are.
pub(super) struct Ground<S> {
    pub(super) image: Image,
    pub(super) structures: Vec<S>,
    /// The same by their kinds.
    pub(super) kinds: Vec<Vec<S>>,
}

impl<S: Copy> Ground<S> {
    pub(super) fn new<K: Ord>(bytes: Vec<u8>, structures: Vec<S>, kind: impl Fn(&S) -> K) -> Ground<S> {
        let mut kinds: BTreeMap<K, Vec<S>> = BTreeMap::new();
        for structure in &structures {
            kinds.entry(kind(structure)).or_default().push(*structure);
        }
        Ground { structures, kinds: kinds.into_values().collect(), image: Image::from(bytes) }
    }
}

/// Kinds of structures are told apart by the kind of an entry of a log, too, so that rare kinds are met as often as
/// frequent ones.
fn ground(bytes: Vec<u8>) -> Ground<Structure> {
    let structures = structures(&SimPm::from_image(&bytes)).expect("a sound image");
    let image = bytes.clone();
    let kind = |structure: &Structure| {
        let entry = if structure.kind == Kind::Entry { image[structure.offset as usize + 4] } else { 0 };
        (structure.kind, entry)
    };
    let mut ground = Ground::new(bytes, structures, kind);
    // These came later, and inputs are to mean what they meant.
    ground.structures.retain(|structure| structure.kind != Kind::BadBlock);
    ground
}

/// The images: one after a clean unmount, and one as a crash leaves it.
pub(super) fn grounds() -> &'static [Ground<Structure>; 2] {
    static GROUNDS: OnceLock<[Ground<Structure>; 2]> = OnceLock::new();
    GROUNDS.get_or_init(|| {
        let pm = Arc::new(SimPm::new(SIZE));
        let uuid = Some(uuid::Uuid::from_u128(0x6675_7a7a));
        mkfs(&*pm, &MkfsOptions { uuid, ..MkfsOptions::default() }).expect("mkfs");
        let fs = mount(&pm).expect("mount");
        populate(&fs).expect("a tree");
        let crashed = pm.snapshot();
        fs.unmount().expect("unmount");
        [pm.snapshot(), crashed].map(ground)
    })
}

/// The simulated PM of this thread, with the bytes of an image.
pub(super) fn memory(image: &Image) -> Arc<SimPm> {
    thread_local!(static MEMORY: OnceCell<Arc<SimPm>> = const { OnceCell::new() });
    let pm = MEMORY.with(|memory| Arc::clone(memory.get_or_init(|| Arc::new(SimPm::new(SIZE)))));
    pm.load(image);
    pm
}

pub(super) fn mount(pm: &Arc<SimPm>) -> Result<LogFs<SimPm>> {
    let options = MountOptions { lanes: Some(1), background: false, ..MountOptions::default() };
    LogFs::mount(Arc::clone(pm), &options)
}

fn put<F: Data>(fs: &F, node: &F::Node, at: WriteAt, bytes: &[u8]) -> Result<()> {
    fs.write(node, at, &[IoSlice::new(bytes)], Durability::Now, now()).map(drop)
}

pub(super) fn populate<F: Data>(fs: &F) -> Result<()> {
    let root = fs.root();
    let dir = fs.create(&root, b"dir", &new(FileKind::Directory))?;
    let deep = fs.create(&dir, b"deep", &new(FileKind::Directory))?;
    for index in 0..90 {
        let name = format!("{index}-{}", "n".repeat(index * 2));
        let file = fs.create(&dir, name.as_bytes(), &new(FileKind::Regular))?;
        put(fs, &file, WriteAt::End, &vec![index as u8; index * 50])?;
        if index % 9 == 0 {
            fs.unlink(&dir, name.as_bytes(), now())?;
        }
    }
    let file = fs.create(&deep, b"file", &new(FileKind::Regular))?;
    for index in 0..150u64 {
        put(fs, &file, WriteAt::Offset(index * 2 * BLOCK_SIZE), &[7; 2000])?;
    }
    fs.fallocate(&file, FallocateMode::PunchHole, 20 * BLOCK_SIZE, 9 * BLOCK_SIZE, now())?;
    fs.fallocate(&file, FallocateMode::Allocate, 400 * BLOCK_SIZE, 9 * BLOCK_SIZE, now())?;
    fs.set_xattr(&file, b"user.small", b"value", XattrMode::Set, None, now())?;
    fs.set_xattr(&file, b"user.large", &[9; 5000], XattrMode::Set, None, now())?;
    fs.create(&root, b"link", &new(FileKind::Symlink))?;
    let target = vec![b't'; 1000];
    fs.create(&root, b"long", &NewInode { target: &target, ..new(FileKind::Symlink) })?;
    fs.link(&file, &root, b"second", now())?;
    fs.rename(&dir, b"10-nnnnnnnnnnnnnnnnnnnn", &deep, b"moved", RenameMode::Replace, now())?;
    fs.create(&root, b"fifo", &new(FileKind::Fifo))?;
    fs.create(&root, b"empty", &new(FileKind::Regular)).map(drop)
}

/// Reads everything that can be reached, within bounds. Gives the first error and the regular files.
pub(super) fn read_all<F: Data + Extents>(fs: &F) -> (Option<nacre_engine::Error>, Vec<F::Node>) {
    let mut first = None;
    let mut note = |error| {
        first.get_or_insert(error);
    };
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    let mut pending = vec![fs.root()];
    while let Some(node) = pending.pop() {
        if seen.len() >= MAX_INODES || !seen.insert(fs.id(&node)) {
            continue;
        }
        if let Err(error) = look_at(fs, &node) {
            note(error);
        }
        if fs.kind(&node) == FileKind::Regular {
            files.push(node.clone());
        }
        if fs.kind(&node) != FileKind::Directory {
            continue;
        }
        let mut names = Vec::new();
        let listed = fs.read_dir(&node, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            if names.len() < MAX_INODES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if let Err(error) = listed {
            note(error);
        }
        for name in names {
            match fs.lookup(&node, &name) {
                Ok(child) => pending.push(child),
                Err(error) => note(error),
            }
        }
    }
    (first, files)
}

fn look_at<F: Data + Extents>(fs: &F, node: &F::Node) -> Result<()> {
    let attr = fs.getattr(node)?;
    for name in fs.list_xattrs(node)? {
        fs.get_xattr(node, &name)?;
    }
    match attr.kind {
        FileKind::Regular => {
            let mut bytes = vec![0; MAX_READ];
            fs.read(node, 0, &mut bytes, Some(now()))?;
            fs.read(node, attr.size.saturating_sub(MAX_READ as u64), &mut bytes, None)?;
            fs.resolve(node, FileBlock(0), 1000)?;
            // Beyond the end that is an error, and a right one.
            let _ = fs.seek(node, attr.size / 2, SeekTo::Hole);
        }
        FileKind::Symlink => drop(fs.read_link(node)?),
        FileKind::Directory => drop(fs.parent(node)?),
        _ => {}
    }
    Ok(())
}

/// Changes all files and directories. Errors are allowed, because the file system is damaged.
pub(super) fn change_all<F: Data + Extents>(fs: &F, files: &[F::Node]) {
    let root = fs.root();
    let _ = fs
        .create(&root, b"new", &new(FileKind::Regular))
        .and_then(|node| put(fs, &node, WriteAt::End, &[1; 9000]));
    let _ = fs.create(&root, b"newdir", &new(FileKind::Directory));
    for node in files.iter().take(20) {
        let _ = put(fs, node, WriteAt::Offset(100), &[2; 5000]);
        let _ = put(fs, node, WriteAt::End, &[3; 100]);
        let _ = fs.set_xattr(node, b"user.new", &[4; 2000], XattrMode::Set, None, now());
        let _ = fs.fallocate(node, FallocateMode::PunchHole, 0, 8192, now());
        let _ = fs.setattr(node, &SetAttr { size: Some(777), ..SetAttr::default() }, now());
    }
    let mut names = Vec::new();
    let _ = fs.read_dir(&root, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        if names.len() < 50 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Ok(dir) = fs.lookup(&root, b"dir") {
        let _ = fs.rename(&dir, b"deep", &root, b"deep", RenameMode::NoReplace, now());
        let _ = fs.rename(&root, b"newdir", &dir, b"deep", RenameMode::NoReplace, now());
        let _ = fs.rename(&root, b"deep", &dir, b"deep", RenameMode::Exchange, now());
        let mut inside = Vec::new();
        let _ = fs.read_dir(&dir, 0, &mut |entry| {
            inside.push(entry.name.to_vec());
            if inside.len() < 50 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        inside.iter().for_each(|name| drop(fs.unlink(&dir, name, now())));
    }
    for name in names {
        let _ = fs.unlink(&root, &name, now());
        let _ = fs.rmdir(&root, &name, now());
    }
    let _ = fs.sync_all();
    let _ = (fs.stat(), fs.index_bytes());
}
