//! The state in DRAM: the reference model, and the layout's own inode numbers.
//!
//! The model reuses numbers, and which ones depends on the time at which inodes are reclaimed. Records cannot name inodes by
//! them. So each inode has a number of the layout, which is never used again. While it has one, this state holds its node of
//! the model.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicU32, Ordering};
use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, Data, Durability, Error, FallocateMode, FileBlock, FileKind, InodeId, Kind,
    Names, NewInode, RenameMode, Reservation, Result, SetAttr, WriteAt, XattrMode,
};
use nacre_lab::model::{MemLayout, MemNode};
use nacre_layout_parts::held::{Held, Holdable};

use super::journal::Journal;
use super::op::{Op, Seed};

/// The number of the root.
pub(super) const ROOT: u64 = 1;
/// The largest data of one record of a compaction, in blocks.
const RUN: usize = 16;

/// An inode that has names, or is held.
pub(crate) struct Inode {
    id: InodeId,
    pub(super) kind: FileKind,
    /// Its node of the model.
    pub(super) node: MemNode,
    holds: AtomicU32,
    let_go: Arc<Mutex<Vec<u64>>>,
}

impl Holdable for Inode {
    fn id(&self) -> InodeId {
        self.id
    }

    fn holds(&self) -> &AtomicU32 {
        &self.holds
    }

    fn is_let_go(&self) {
        self.let_go.lock().push(self.id.number);
    }
}

/// An inode that a caller holds.
pub(crate) type Node = Held<Inode>;

/// Everything that there is.
pub(super) struct State {
    pub(super) model: MemLayout,
    inodes: BTreeMap<u64, Arc<Inode>>,
    /// The numbers of inodes by those of the model.
    numbers: HashMap<u64, u64>,
    /// The number of the next inode.
    pub(super) next: u64,
    /// A regular file was made immutable or append-only once.
    pub(super) guarded: bool,
    /// Inodes that may have neither names nor holds.
    let_go: Arc<Mutex<Vec<u64>>>,
}

/// A state as operations.
pub(super) struct Dump {
    /// Their bytes, in order.
    pub(super) operations: Vec<Vec<u8>>,
    /// The bytes of those that are not about data.
    pub(super) names: u64,
}

impl Dump {
    fn put(&mut self, op: &Op<'_>) {
        let operation = op.encode();
        if !matches!(op, Op::Write { .. } | Op::WriteBack { .. } | Op::Fallocate { .. }) {
            self.names += Journal::record_len(operation.len());
        }
        self.operations.push(operation);
    }
}

impl State {
    /// An empty root, and room for anything: a replayed operation had its room.
    pub(super) fn empty() -> State {
        let mut state = State {
            model: MemLayout::new(u64::MAX, u64::MAX),
            inodes: BTreeMap::new(),
            numbers: HashMap::new(),
            next: ROOT,
            guarded: false,
            let_go: Arc::default(),
        };
        let root = state.model.root();
        state.adopt(ROOT, root);
        state
    }

    /// Applies the operations of a journal, in order, and forgets the inodes that have no names then.
    pub(super) fn replay(mut next: impl FnMut() -> Result<Option<Vec<u8>>>) -> Result<State> {
        let mut state = State::empty();
        let mut count = 0;
        while let Some(operation) = next()? {
            let op = Op::decode(&operation).ok_or_else(|| Error::corrupt("an operation of unknown form"))?;
            if (count == 0) != matches!(op, Op::Begin { .. }) {
                return Err(Error::corrupt("an epoch that does not begin as one"));
            }
            state.apply(&op).map_err(|error| Error::corrupt(format!("{op:?}: {error}")))?;
            count += 1;
        }
        if count == 0 {
            return Err(Error::corrupt("an epoch without records"));
        }
        state.let_go.lock().extend(state.inodes.keys());
        state.sweep();
        Ok(state)
    }

    /// The inode with this number.
    pub(super) fn get(&self, number: u64) -> Result<&Arc<Inode>> {
        self.inodes.get(&number).ok_or_else(|| Kind::Stale.into())
    }

    /// Holds the inode with this number.
    pub(super) fn hold(&self, number: u64) -> Result<Node> {
        let inode = Arc::clone(self.get(number)?);
        inode.holds.fetch_add(1, Ordering::Relaxed);
        Ok(Held::from_held(inode))
    }

    /// The number of an inode of the model.
    pub(super) fn number_of(&self, node: &MemNode) -> u64 {
        self.id_of(self.model.id(node)).number
    }

    /// The identity of an inode of the model.
    pub(super) fn id_of(&self, id: InodeId) -> InodeId {
        InodeId { number: self.numbers[&id.number], generation: 1, volume: 0 }
    }

    /// Gives an inode of the model a number.
    fn adopt(&mut self, number: u64, node: MemNode) {
        self.numbers.insert(self.model.id(&node).number, number);
        let id = InodeId { number, generation: 1, volume: 0 };
        let (kind, let_go) = (self.model.kind(&node), Arc::clone(&self.let_go));
        self.inodes.insert(number, Arc::new(Inode { id, kind, node, holds: AtomicU32::new(0), let_go }));
        self.next = self.next.max(number + 1);
    }

    /// The inode that may lose its last name by an operation.
    pub(super) fn victim(&self, op: &Op<'_>) -> Option<u64> {
        let (Op::Unlink { dir, name, .. } | Op::Rmdir { dir, name, .. } | Op::Rename { to: (dir, name), .. }) =
            *op
        else {
            return None;
        };
        let node = self.model.lookup(&self.get(dir).ok()?.node, name).ok()?;
        Some(self.number_of(&node))
    }

    /// Looks at an inode again when it may have neither names nor holds.
    pub(super) fn may_be_unused(&self, number: u64) {
        self.let_go.lock().push(number);
    }

    /// Forgets inodes that have neither names nor holds.
    pub(super) fn sweep(&mut self) {
        let let_go = std::mem::take(&mut *self.let_go.lock());
        for number in let_go {
            let is_unused = |inode: &&Arc<Inode>| {
                let links = self.model.getattr(&inode.node).map_or(0, |attr| attr.links);
                links == 0 && inode.holds.load(Ordering::Acquire) == 0
            };
            if let Some(inode) = self.inodes.get(&number).filter(is_unused) {
                self.numbers.remove(&self.model.id(&inode.node).number);
                self.inodes.remove(&number);
            }
        }
    }

    /// Whether a crash may leave the effect of an operation. Of an inode without names only a regular file can get one.
    pub(super) fn lasts(&self, op: &Op<'_>) -> Result<bool> {
        let (Op::SetAttr { number, .. } | Op::SetXattr { number, .. } | Op::RemoveXattr { number, .. }) = *op
        else {
            return Ok(true);
        };
        let inode = self.get(number)?;
        Ok(inode.kind == FileKind::Regular || self.model.getattr(&inode.node)?.links > 0)
    }

    /// Makes an operation, now or again after a crash. If it fails, nothing has changed.
    pub(super) fn apply(&mut self, op: &Op<'_>) -> Result<()> {
        let node = |number: u64| self.get(number).map(|inode| inode.node.clone());
        match *op {
            Op::Begin { next, guarded } => (self.next, self.guarded) = (next, guarded),
            Op::Create { number, dir, name, ref inode } => {
                let new = &inode.to_new();
                let made = match dir {
                    0 => self.model.create_unnamed(new)?,
                    _ => self.model.create(&node(dir)?, name, new)?,
                };
                self.adopt(number, made);
            }
            Op::Link { number, dir, name, now } => self.model.link(&node(number)?, &node(dir)?, name, now)?,
            Op::Unlink { dir, name, now } => self.model.unlink(&node(dir)?, name, now)?,
            Op::Rmdir { dir, name, now } => self.model.rmdir(&node(dir)?, name, now)?,
            Op::Rename { from: (from_dir, from), to: (to_dir, to), mode, whiteout, now } => {
                let from_dir = node(from_dir)?;
                self.model.rename(&from_dir, from, &node(to_dir)?, to, mode, now)?;
                if let RenameMode::Whiteout { .. } = mode {
                    let left = self.model.lookup(&from_dir, from)?;
                    // The old name still has its inode if both names were of one.
                    if !self.numbers.contains_key(&self.model.id(&left).number) {
                        self.adopt(whiteout, left);
                    }
                }
            }
            Op::SetAttr { number, ref change, now } => {
                self.model.setattr(&node(number)?, change, now)?;
                self.guarded |= self.get(number)?.kind == FileKind::Regular && change.guards();
            }
            Op::SetXattr { number, name, value, how, mode, now } => {
                self.model.set_xattr(&node(number)?, name, value, how, mode, now)?;
            }
            Op::RemoveXattr { number, name, now } => self.model.remove_xattr(&node(number)?, name, now)?,
            Op::Write { number, at, bytes, now } => {
                self.model.write(&node(number)?, at, &[IoSlice::new(bytes)], Durability::Now, now)?;
            }
            Op::WriteBack { number, offset, bytes, now } => {
                let none = Reservation::default();
                self.model.write_back(&node(number)?, offset, &[IoSlice::new(bytes)], &none, now)?;
            }
            Op::Times { number, mtime, atime, now } => {
                self.model.write_back_times(&node(number)?, mtime, atime, &Reservation::default(), now)?;
            }
            Op::Fallocate { number, mode, offset, len, now } => {
                self.model.fallocate(&node(number)?, mode, offset, len, now)?;
            }
        }
        Ok(())
    }

    /// The operations that make this state of an empty one.
    pub(super) fn dump(&self) -> Result<Dump> {
        let mut dump = Dump { operations: Vec::new(), names: 0 };
        dump.put(&Op::Begin { next: self.next, guarded: self.guarded });
        let mut seen = BTreeSet::from([ROOT]);
        let mut directories = VecDeque::from([ROOT]);
        while let Some(dir) = directories.pop_front() {
            for (name, number) in self.names(dir)? {
                let inode = self.get(number)?;
                if !seen.insert(number) {
                    let now = self.model.getattr(&inode.node)?.ctime;
                    dump.put(&Op::Link { number, dir, name: &name, now });
                    continue;
                }
                self.dump_creation(&mut dump, inode, dir, &name)?;
                if inode.kind == FileKind::Directory {
                    directories.push_back(number);
                }
            }
        }
        for (&number, inode) in &self.inodes {
            if inode.kind == FileKind::Regular && seen.insert(number) {
                self.dump_creation(&mut dump, inode, 0, b"")?;
            }
        }
        // Times of directories change with their names, and flags forbid changes: attributes come last.
        for &number in &seen {
            self.dump_contents(&mut dump, self.get(number)?)?;
        }
        Ok(dump)
    }

    fn names(&self, dir: u64) -> Result<Vec<(Vec<u8>, u64)>> {
        let mut names = Vec::new();
        self.model.read_dir(&self.get(dir)?.node, 0, &mut |entry| {
            names.push((entry.name.to_vec(), self.id_of(entry.id).number));
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    fn dump_creation(&self, dump: &mut Dump, inode: &Inode, dir: u64, name: &[u8]) -> Result<()> {
        let attr = self.model.getattr(&inode.node)?;
        let target = match attr.kind {
            FileKind::Symlink => self.model.read_link(&inode.node)?,
            _ => Vec::new(),
        };
        let new = NewInode {
            target: &target,
            rdev: attr.rdev,
            ..NewInode::of_root(attr.kind, attr.mode, attr.btime)
        };
        dump.put(&Op::Create { number: inode.id.number, dir, name, inode: Seed::of(&new) });
        Ok(())
    }

    fn dump_contents(&self, dump: &mut Dump, inode: &Inode) -> Result<()> {
        let (number, attr) = (inode.id.number, self.model.getattr(&inode.node)?);
        let now = attr.ctime;
        if inode.kind == FileKind::Regular {
            // Of an empty file, too: a write needs no more room for names and attributes.
            let change = SetAttr { size: Some(attr.size), ..SetAttr::default() };
            dump.put(&Op::SetAttr { number, change, now });
            let blocks = self.model.blocks_of(&inode.node)?;
            let is_next = |a: &(FileBlock, bool), b: &(FileBlock, bool)| a.0.0 + 1 == b.0.0 && a.1 == b.1;
            for run in blocks.chunk_by(is_next).flat_map(|run| run.chunks(RUN)) {
                let (start, is_written) = run[0];
                let (offset, len) = (start.offset(), run.len() as u64 * BLOCK_SIZE);
                if is_written {
                    let mut bytes = vec![0; len as usize];
                    let count = self.model.read(&inode.node, offset, &mut bytes, None)?;
                    let (at, bytes) = (WriteAt::Offset(offset), &bytes[..count]);
                    dump.put(&Op::Write { number, at, bytes, now });
                } else {
                    let mode = FallocateMode::AllocateKeepSize;
                    dump.put(&Op::Fallocate { number, mode, offset, len, now });
                }
            }
        }
        for name in self.model.list_xattrs(&inode.node)? {
            let value = self.model.get_xattr(&inode.node, &name)?;
            let (name, value, how) = (&name[..], &value[..], XattrMode::Set);
            dump.put(&Op::SetXattr { number, name, value, how, mode: None, now });
        }
        let change = SetAttr {
            mode: Some(attr.mode),
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            atime: Some(attr.atime),
            mtime: Some(attr.mtime),
            flags: Some(attr.flags),
            ..SetAttr::default()
        };
        dump.put(&Op::SetAttr { number, change, now });
        Ok(())
    }
}
