//! Runs operations on a layout, and collects their answers.

use std::fmt;
use std::io::IoSlice;
use std::ops::ControlFlow;

use nacre_engine::{
    Attr, BLOCK_SIZE, Data, Durability, Error, Extents, FileBlock, FileKind, InodeId, Kind, NewInode, Place,
    SetAttr, Timestamp, WriteAt,
};

use super::op::{Op, Path, SLOTS, Who, bytes, name, xattr_name};

/// The answer to an operation, as far as two file systems must agree on it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Failed(Kind),
    Bytes(Vec<u8>),
    Number(u64),
    Attr(Shown),
    Entries(Vec<(Vec<u8>, FileKind)>),
    Names(Vec<Vec<u8>>),
    /// Blocks (first, count) that have a place, written or not.
    Placed(Vec<(u64, u64)>),
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        !matches!(self, Answer::Failed(_))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => write!(f, "success"),
            Answer::Failed(kind) => write!(f, "{kind:?}"),
            Answer::Bytes(bytes) => {
                let start = &bytes[..bytes.len().min(16)];
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                write!(f, "{} bytes, {zeros} zeros first, start {start:02x?}", bytes.len())
            }
            Answer::Number(number) => write!(f, "{number}"),
            Answer::Attr(attr) => write!(f, "{attr:?}"),
            Answer::Entries(entries) => write!(f, "{} entries {entries:?}", entries.len()),
            Answer::Names(names) => {
                write!(f, "{:?}", names.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>())
            }
            Answer::Placed(runs) => write!(f, "blocks in place: {runs:?}"),
        }
    }
}

/// The permitted differences of a file system from the model.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// atime is that of the model (false if it is written lazily).
    pub exact_atime: bool,
    /// ctime is that of the model (false after a crash, because a link or a rename may have changed it only in DRAM).
    pub exact_ctime: bool,
    /// Allocated bytes are those of the model's blocks.
    pub exact_allocation: bool,
    /// Data and holes are where the model has them.
    pub exact_holes: bool,
    /// An inode that is gone can no longer be held by its number (false if it can until it is reclaimed, a moment
    /// later).
    pub exact_stale: bool,
}

impl Tolerance {
    /// As exact as can be.
    pub const NONE: Tolerance = Tolerance {
        exact_atime: true,
        exact_ctime: true,
        exact_allocation: true,
        exact_holes: true,
        exact_stale: true,
    };
}

/// The attributes that must agree: all but number, change counter, and the size of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    kind: FileKind,
    mode: u32,
    links: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    pub(super) size: u64,
    allocated: u64,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    btime: Timestamp,
    flags: u32,
}

impl Shown {
    pub(super) fn new(attr: &Attr, tolerance: Tolerance) -> Shown {
        let regular = attr.kind == FileKind::Regular;
        // The ctime of a removed directory is not compared.
        let removed = attr.kind == FileKind::Directory && attr.links == 0;
        Shown {
            kind: attr.kind,
            mode: attr.mode,
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: if attr.kind == FileKind::Directory { 0 } else { attr.size },
            allocated: if regular && tolerance.exact_allocation { attr.allocated } else { 0 },
            atime: if tolerance.exact_atime { attr.atime } else { Timestamp::default() },
            mtime: attr.mtime,
            ctime: if tolerance.exact_ctime && !removed { attr.ctime } else { Timestamp::default() },
            btime: attr.btime,
            flags: attr.flags,
        }
    }
}

/// A file system and the inodes that a sequence holds on it. Everything happens in one directory of it. Therefore
/// several sequences can run on one file system, and its root may be as mkfs makes it.
pub(super) struct World<'a, L: Extents> {
    slots: Vec<Option<L::Node>>,
    last_ids: LastIds,
    pub(super) root: L::Node,
    pub(super) fs: &'a L,
    tolerance: Tolerance,
}

/// The names of the inodes that the slots held last; they outlive a mount.
pub(super) type LastIds = Vec<Option<InodeId>>;

impl<'a, L: Data + Extents> World<'a, L> {
    /// The directory of this name, which is made if it is missing.
    pub(super) fn open(fs: &'a L, dir: &str, last_ids: LastIds, tolerance: Tolerance) -> World<'a, L> {
        let new = new_inode(FileKind::Directory, 0o700, &[], Timestamp::default());
        let root = match fs.lookup(&fs.root(), dir.as_bytes()) {
            Ok(root) => root,
            Err(_) => {
                fs.create(&fs.root(), dir.as_bytes(), &new).expect("a directory on an empty file system")
            }
        };
        World { slots: vec![None; SLOTS.into()], last_ids, root, fs, tolerance }
    }

    /// Lets go of everything.
    pub(super) fn close(self) -> LastIds {
        self.last_ids
    }

    /// The held inodes, by slot.
    pub(super) fn held(&self) -> impl Iterator<Item = (usize, &L::Node)> {
        self.slots.iter().enumerate().filter_map(|(slot, node)| node.as_ref().map(|node| (slot, node)))
    }

    /// Runs an operation. `None` when it is about a slot that holds nothing.
    pub(super) fn apply(&mut self, op: &Op, now: Timestamp) -> Option<Answer> {
        let answer = match op {
            Op::Release { slot } => {
                if let Some(node) = self.slots[usize::from(*slot)].take() {
                    self.release(*slot, node);
                }
                Ok(Answer::Done)
            }
            Op::HoldById { slot } => {
                let id = self.last_ids[usize::from(*slot)]?;
                self.fs.node(id).map(|node| self.hold(*slot, node))
            }
            Op::Hold { slot, path } => self.find(path).map(|node| self.hold(*slot, node)),
            _ => match self.names_op(op, now) {
                Some(answer) => answer,
                None => self.node_op(op, now)?,
            },
        };
        Some(answer.unwrap_or_else(|error| Answer::Failed(error.kind())))
    }

    fn hold(&mut self, slot: u8, node: L::Node) -> Answer {
        self.last_ids[usize::from(slot)] = Some(self.fs.id(&node));
        self.slots[usize::from(slot)] = Some(node);
        Answer::Done
    }

    /// Releases the inode that was held in a slot, in one of three ways: by a drop, with the hint that it is not
    /// expected to be used soon, or by parking and unparking it.
    fn release(&self, slot: u8, node: L::Node) {
        let number = self.fs.id(&node).number;
        match slot % 3 {
            0 => drop(node),
            1 => self.fs.let_go(node),
            _ => match self.fs.park(node) {
                Some(node) => drop(node),
                None => self.fs.unpark(number),
            },
        }
    }

    fn find(&self, path: &Path) -> Result<L::Node, Error> {
        let mut node = self.root.clone();
        for index in &path.0 {
            node = self.fs.lookup(&node, &name(*index))?;
        }
        Ok(node)
    }

    fn place(&self, path: &Path) -> Result<(L::Node, Vec<u8>), Error> {
        let (last, above) = path.0.split_last().ok_or(Kind::InvalidInput)?;
        Ok((self.find(&Path(above.to_vec()))?, name(*last)))
    }

    fn names_op(&mut self, op: &Op, now: Timestamp) -> Option<Result<Answer, Error>> {
        Some(match op {
            Op::Create { path, kind, slot, mode, with_xattr } => {
                self.create(path, *kind, *slot, *mode, *with_xattr, now)
            }
            Op::CreateUnnamed { slot } => {
                let node = self.fs.create_unnamed(&new_inode(FileKind::Regular, 0o600, &[], now));
                node.map(|node| self.hold(*slot, node))
            }
            Op::Unlink { path } => self
                .place(path)
                .and_then(|(dir, name)| self.fs.unlink(&dir, &name, now))
                .map(|()| Answer::Done),
            Op::Rmdir { path } => self
                .place(path)
                .and_then(|(dir, name)| self.fs.rmdir(&dir, &name, now))
                .map(|()| Answer::Done),
            Op::Rename { from, to, mode } => self.place(from).and_then(|(from_dir, from)| {
                let (to_dir, to) = self.place(to)?;
                self.fs.rename(&from_dir, &from, &to_dir, &to, *mode, now)?;
                Ok(Answer::Done)
            }),
            _ => return None,
        })
    }

    fn create(
        &mut self,
        path: &Path,
        kind: FileKind,
        slot: u8,
        mode: u32,
        with_xattr: bool,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let (dir, name) = self.place(path)?;
        let xattr: &[(&[u8], &[u8])] = &[(b"user.born", b"with it")];
        let xattrs = if with_xattr { xattr } else { &[] };
        let node = self.fs.create(&dir, &name, &new_inode(kind, mode, xattrs, now))?;
        Ok(self.hold(slot, node))
    }

    /// Operations on one node, which is found first.
    fn node_op(&mut self, op: &Op, now: Timestamp) -> Option<Result<Answer, Error>> {
        let (node, is_held) = match who(op)? {
            Who::Slot(slot) => (Ok(self.slots[usize::from(*slot)].clone()?), true),
            Who::Path(path) => (self.find(path), false),
        };
        let found = node.as_ref().ok().cloned();
        let answer = self.on_node(op, node, now);
        // Every second time nothing of it stays in DRAM, and the next operation reads what is on media.
        if let Some(node) = found.filter(|_| !is_held && now.secs / 1000 % 2 == 1) {
            self.fs.let_go(node);
        }
        answer
    }

    fn on_node(
        &mut self,
        op: &Op,
        node: Result<L::Node, Error>,
        now: Timestamp,
    ) -> Option<Result<Answer, Error>> {
        Some(node.and_then(|node| match op {
            Op::Link { path, .. } => {
                let (dir, name) = self.place(path)?;
                self.fs.link(&node, &dir, &name, now).map(|()| Answer::Done)
            }
            Op::ReadDir { piece, .. } => self.read_dir(&node, *piece),
            Op::ReadLink { .. } => self.fs.read_link(&node).map(Answer::Bytes),
            // Parents of the directory of this world, and of removed ones, are not compared with the model.
            Op::Parent { .. } if self.fs.id(&node) == self.fs.id(&self.root) || self.is_removed(&node)? => {
                Ok(Answer::Done)
            }
            Op::Parent { .. } => self.fs.parent(&node).and_then(|parent| self.shown(&parent)),
            Op::GetAttr { .. } => self.shown(&node),
            Op::SetAttr { change, .. } => self.set_attr(&node, change, now),
            Op::GetXattr { name, .. } => self.fs.get_xattr(&node, &xattr_name(*name)).map(Answer::Bytes),
            Op::SetXattr { name, len, seed, how, mode, .. } => {
                let value = bytes(*seed, *len);
                self.fs.set_xattr(&node, &xattr_name(*name), &value, *how, *mode, now).map(|()| Answer::Done)
            }
            Op::RemoveXattr { name, .. } => {
                self.fs.remove_xattr(&node, &xattr_name(*name), now).map(|()| Answer::Done)
            }
            Op::ListXattrs { .. } => self.fs.list_xattrs(&node).map(|mut names| {
                names.sort();
                Answer::Names(names)
            }),
            _ => self.content_op(&node, op, now),
        }))
    }

    fn content_op(&self, node: &L::Node, op: &Op, now: Timestamp) -> Result<Answer, Error> {
        match op {
            Op::Read { offset, len, stamped, .. } => {
                let mut buf = vec![0xEE; *len];
                let count = self.fs.read(node, *offset, &mut buf, stamped.then_some(now))?;
                buf.truncate(count);
                Ok(Answer::Bytes(buf))
            }
            Op::Write { offset, len, seed, split, .. } => {
                let data = bytes(*seed, *len);
                let (first, second) = data.split_at((*split).min(data.len()));
                let parts = [IoSlice::new(first), IoSlice::new(second)];
                let at = WriteAt::Offset(*offset);
                self.fs.write(node, at, &parts, Durability::Lazy, now).map(Answer::Number)
            }
            Op::Append { len, seed, .. } => {
                let data = bytes(*seed, *len);
                let parts = [IoSlice::new(&data)];
                self.fs.write(node, WriteAt::End, &parts, Durability::Now, now).map(Answer::Number)
            }
            Op::Fallocate { mode, offset, len, .. } => {
                self.fs.fallocate(node, *mode, *offset, *len, now).map(|()| Answer::Done)
            }
            Op::Seek { offset, to, .. } => {
                let answer = self.fs.seek(node, *offset, *to).map(Answer::Number);
                if self.tolerance.exact_holes { answer } else { Ok(Answer::Done) }
            }
            Op::Resolve { start, len, .. } => self.resolve(node, *start, *len),
            Op::Sync { .. } => self.fs.sync(node).map(|()| Answer::Done),
            _ => unreachable!("every other operation has been handled"),
        }
    }

    fn is_removed(&self, node: &L::Node) -> Result<bool, Error> {
        Ok(self.fs.getattr(node)?.links == 0)
    }

    fn shown(&self, node: &L::Node) -> Result<Answer, Error> {
        self.fs.getattr(node).map(|attr| Answer::Attr(Shown::new(&attr, self.tolerance)))
    }

    fn set_attr(&self, node: &L::Node, change: &SetAttr, now: Timestamp) -> Result<Answer, Error> {
        self.fs.setattr(node, change, now).map(|attr| Answer::Attr(Shown::new(&attr, self.tolerance)))
    }

    /// Reads a directory in pieces; panics if cookies or numbers are wrong.
    fn read_dir(&self, dir: &L::Node, piece: usize) -> Result<Answer, Error> {
        let mut entries = Vec::new();
        let (mut cookie, mut cookies) = (0, Vec::new());
        loop {
            let mut count = 0;
            self.fs.read_dir(dir, cookie, &mut |entry| {
                assert!((3..1 << 63).contains(&entry.cookie), "cookie {}", entry.cookie);
                entries.push((entry.name.to_vec(), entry.kind));
                cookies.push(entry.cookie);
                cookie = entry.cookie;
                count += 1;
                if count == piece { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if count < piece {
                break;
            }
        }
        cookies.sort_unstable();
        cookies.dedup();
        assert_eq!(cookies.len(), entries.len(), "a cookie was given twice");
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Answer::Entries(entries))
    }

    /// Which blocks have a place; extents must be in order and without gaps.
    fn resolve(&self, node: &L::Node, start: u64, len: u64) -> Result<Answer, Error> {
        if self.fs.kind(node) != FileKind::Regular {
            // Nothing says what the extents of something else are; asking for them must do no harm.
            let _ = self.fs.resolve(node, FileBlock(start), len);
            return Ok(Answer::Done);
        }
        let extents = self.fs.resolve(node, FileBlock(start), len)?;
        let blocks = self.fs.size(node)?.div_ceil(BLOCK_SIZE);
        let mut next = start;
        let mut placed: Vec<(u64, u64)> = Vec::new();
        for extent in extents {
            assert_eq!(extent.start.0, next, "extents follow each other");
            assert!(extent.len > 0, "an extent has blocks");
            next += extent.len;
            if extent.place == Place::Hole {
                continue;
            }
            match placed.last_mut() {
                Some((first, count)) if *first + *count == extent.start.0 => *count += extent.len,
                _ => placed.push((extent.start.0, extent.len)),
            }
        }
        assert_eq!(next, (start + len).min(blocks).max(start), "extents reach to the end of the range");
        Ok(if self.tolerance.exact_allocation { Answer::Placed(placed) } else { Answer::Done })
    }
}

fn new_inode<'a>(
    kind: FileKind,
    mode: u32,
    xattrs: &'a [(&'a [u8], &'a [u8])],
    now: Timestamp,
) -> NewInode<'a> {
    let target: &[u8] = match kind {
        FileKind::Symlink if mode.is_multiple_of(3) => &[b't'; 300],
        FileKind::Symlink => b"somewhere",
        _ => &[],
    };
    let rdev = if kind == FileKind::CharDevice { u64::from(mode) << 8 } else { 0 };
    NewInode { kind, mode, uid: mode * 7, gid: mode * 11, rdev, target, xattrs, now }
}

/// The node that an operation is about.
fn who(op: &Op) -> Option<&Who> {
    match op {
        Op::Link { node, .. }
        | Op::ReadLink { node }
        | Op::GetAttr { node }
        | Op::SetAttr { node, .. }
        | Op::Read { node, .. }
        | Op::Write { node, .. }
        | Op::Append { node, .. }
        | Op::Fallocate { node, .. }
        | Op::Seek { node, .. }
        | Op::Resolve { node, .. }
        | Op::GetXattr { node, .. }
        | Op::SetXattr { node, .. }
        | Op::RemoveXattr { node, .. }
        | Op::ListXattrs { node }
        | Op::Sync { node } => Some(node),
        Op::ReadDir { dir, .. } | Op::Parent { dir } => Some(dir),
        _ => None,
    }
}
