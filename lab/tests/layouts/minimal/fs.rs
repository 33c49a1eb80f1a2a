//! The contract: each operation under one lock, which changes are durable before they are released.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::sync::{Mutex, MutexGuard};
use nacre_engine::{
    Attr, BLOCK_SIZE, BelowBuffer, Capabilities, Data, DirEntry, Durability, Extents, FallocateMode,
    FileBlock, FileKind, InodeCache, InodeId, Kind, LINE_SIZE, Names, NewInode, PlacedExtent, RenameMode,
    Reservation, Result, SetAttr, Timestamp, WriteAt, WriteCost, WriteShape, XattrMode, forward_data,
    forward_extents, forward_names, no_tiers_below_buffer,
};
use nacre_lab::model::{MAX_FILE_SIZE, MAX_XATTR_SIZE, MemNode};
use nacre_layout_parts::held::Holdable;
use nacre_layout_parts::report::RecoveryReport;
use nacre_layout_parts::superblock::Summary;
use nacre_media::SimPm;

use super::journal::{Journal, Step, half_len};
use super::op::{Op, Seed};
use super::state::{Node, State};

/// The most bytes that a block of data takes in a compacted journal: a record of its own.
const BLOCK_RECORD: u64 = BLOCK_SIZE + 64;
/// Bytes of names and attributes for each inode that may exist.
const INODE_RECORDS: u64 = 400;
/// Entries that are read from a directory at once.
const ENTRIES: usize = 64;

/// The capabilities of every file system with this layout.
pub(super) const CAPABILITIES: Capabilities = Capabilities {
    durable_on_return: true,
    atomic_write: true,
    in_place_feature: 0,
    max_file_size: MAX_FILE_SIZE,
    max_xattr_size: MAX_XATTR_SIZE,
    write_unit: LINE_SIZE,
    write_cost: WriteCost { block: 1, group: 0, group_blocks: 1, file: 0 },
    max_tiers: 0,
    max_volumes: 1,
    always_indexes_names: true,
};

/// The layout, mounted.
pub(crate) struct MinimalFs {
    pub(super) pm: Arc<SimPm>,
    shared: Mutex<Shared>,
    root: Node,
    pub(super) summary: Summary,
    pub(super) recovery: RecoveryReport,
}

/// Everything under the lock.
pub(super) struct Shared {
    pub(super) state: State,
    journal: Journal,
    /// The most bytes that records of names and attributes take in a compacted journal.
    names: u64,
    parked: BTreeMap<u64, Node>,
}

impl Shared {
    /// A state that a journal holds, with the room of its device. It is compacted before anything changes.
    pub(super) fn new(pm: &SimPm, state: State, journal: Journal) -> Shared {
        state.model.set_capacity(half_len(pm) / 16 * 12 / BLOCK_RECORD, max_names(pm) / INODE_RECORDS);
        // The first compaction says how many they are.
        Shared { state, journal, names: u64::MAX, parked: BTreeMap::new() }
    }

    /// Begins an epoch that holds the state and nothing else.
    pub(super) fn compact(&mut self, pm: &SimPm, step: Step) -> Result<()> {
        let dump = self.state.dump()?;
        assert!(dump.names <= self.names, "the records of names and attributes are counted");
        self.names = dump.names;
        self.journal.begin_epoch(pm, step, &dump.operations)
    }

    /// Makes an operation durable, or fails and changes nothing.
    fn change(&mut self, pm: &SimPm, op: &Op<'_>) -> Result<()> {
        let operation = op.encode();
        let len = Journal::record_len(operation.len());
        let growth = op.growth(len);
        if !self.has_room(pm, len, growth) {
            self.compact(pm, Step::Compaction)?;
            if !self.has_room(pm, len, growth) {
                return Err(Kind::NoSpace.into());
            }
        }
        let lasts = self.state.lasts(op)?;
        let victim = self.state.victim(op);
        self.state.apply(op)?;
        self.names += growth;
        if lasts {
            self.journal.append(pm, &operation)?;
        }
        if let Some(victim) = victim {
            self.state.may_be_unused(victim);
            self.state.sweep();
        }
        Ok(())
    }

    fn has_room(&self, pm: &SimPm, len: u64, growth: u64) -> bool {
        self.journal.has_room(pm, len) && (growth == 0 || self.names + growth <= max_names(pm))
    }

    /// A node of this layout for one of the model.
    fn node(&self, node: &MemNode) -> Result<Node> {
        self.state.hold(self.state.number_of(node))
    }

    /// Makes an inode, without a name if `dir` is 0.
    fn create(&mut self, pm: &SimPm, dir: u64, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        let number = self.state.next;
        self.change(pm, &Op::Create { number, dir, name, inode: Seed::of(new) })?;
        self.state.hold(number)
    }
}

/// The most bytes that records of names and attributes may take in a compacted journal.
fn max_names(pm: &SimPm) -> u64 {
    half_len(pm) / 16 * 3
}

impl MinimalFs {
    /// A mount of a compacted state.
    pub(super) fn new(
        pm: Arc<SimPm>,
        shared: Shared,
        summary: Summary,
        recovery: RecoveryReport,
    ) -> Result<MinimalFs> {
        let root = shared.state.hold(super::state::ROOT)?;
        Ok(MinimalFs { pm, shared: Mutex::new(shared), root, summary, recovery })
    }

    /// The state of now. Inodes that were let go are gone.
    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        let mut shared = self.shared.lock();
        shared.state.sweep();
        shared
    }

    fn change(&self, op: &Op<'_>) -> Result<()> {
        self.lock().change(&self.pm, op)
    }

    /// Attributes under the numbers of this layout. The model counts changes anew at each mount, and epochs grow.
    fn own(&self, shared: &Shared, attr: Attr) -> Attr {
        let change = (self.summary.mount_epoch << 32) + attr.change;
        Attr { id: shared.state.id_of(attr.id), change, ..attr }
    }
}

/// Asks the model, under the lock.
macro_rules! model {
    ($this:ident, |$model:ident $(, $node:ident)*| $body:expr) => {{
        let shared = $this.lock();
        let $model = &shared.state.model;
        $(let $node = &$node.inode.node;)*
        $body
    }};
}

/// Asks the model for a node, under the lock.
macro_rules! found {
    ($this:ident, |$model:ident $(, $node:ident)*| $body:expr) => {{
        let shared = $this.lock();
        let $model = &shared.state.model;
        $(let $node = &$node.inode.node;)*
        $body.and_then(|node| shared.node(&node))
    }};
}

fn number(node: &Node) -> u64 {
    node.inode.id().number
}

impl Names for MinimalFs {
    type Node = Node;

    forward_names!(model, found: lookup parent read_link note_read size get_xattr list_xattrs);

    fn root(&self) -> Node {
        self.root.clone()
    }

    fn node(&self, id: InodeId) -> Result<Node> {
        if (id.generation, id.volume) != (1, 0) {
            return Err(Kind::Stale.into());
        }
        self.node_by_number(id.number)
    }

    fn node_by_number(&self, number: u64) -> Result<Node> {
        self.lock().state.hold(number)
    }

    fn id(&self, node: &Node) -> InodeId {
        node.inode.id()
    }

    fn kind(&self, node: &Node) -> FileKind {
        node.inode.kind
    }

    fn let_go(&self, node: Node) {
        drop(node);
    }

    fn park(&self, node: Node) -> Option<Node> {
        let before = self.lock().parked.insert(number(&node), node);
        assert!(before.is_none(), "one caller parks an inode, once");
        None
    }

    fn unpark(&self, number: u64) {
        self.lock().parked.remove(&number);
    }

    fn inode_cache(&self) -> InodeCache {
        InodeCache::default()
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        self.lock().create(&self.pm, number(dir), name, new)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        self.lock().create(&self.pm, 0, b"", new)
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.change(&Op::Link { number: number(node), dir: number(dir), name, now })
    }

    fn unlink(&self, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.change(&Op::Unlink { dir: number(dir), name, now })
    }

    fn rmdir(&self, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.change(&Op::Rmdir { dir: number(dir), name, now })
    }

    fn rename(
        &self,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let mut shared = self.lock();
        let whiteout = shared.state.next;
        let (from, to) = ((number(from_dir), from), (number(to_dir), to));
        shared.change(&self.pm, &Op::Rename { from, to, mode, whiteout, now })
    }

    fn read_dir(
        &self,
        dir: &Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut after = cookie;
        loop {
            // The visitor may call us, so it runs without the lock.
            let mut entries = Vec::new();
            let shared = self.lock();
            shared.state.model.read_dir(&dir.inode.node, after, &mut |entry| {
                let id = shared.state.id_of(entry.id);
                entries.push((entry.cookie, entry.name.to_vec(), id, entry.kind));
                if entries.len() < ENTRIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            drop(shared);
            for (cookie, name, id, kind) in &entries {
                if visit(DirEntry { cookie: *cookie, name, id: *id, kind: *kind }).is_break() {
                    return Ok(());
                }
                after = *cookie;
            }
            if entries.len() < ENTRIES {
                return Ok(());
            }
        }
    }

    fn has_guarded(&self) -> bool {
        self.lock().state.guarded
    }

    fn getattr(&self, node: &Node) -> Result<Attr> {
        let shared = self.lock();
        Ok(self.own(&shared, shared.state.model.getattr(&node.inode.node)?))
    }

    fn getattr_at(&self, dir: &Node, name: &[u8]) -> Result<Attr> {
        let shared = self.lock();
        Ok(self.own(&shared, shared.state.model.getattr_at(&dir.inode.node, name)?))
    }

    fn setattr(&self, node: &Node, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        let mut shared = self.lock();
        shared.change(&self.pm, &Op::SetAttr { number: number(node), change: *change, now })?;
        Ok(self.own(&shared, shared.state.model.getattr(&node.inode.node)?))
    }

    fn set_xattr(
        &self,
        node: &Node,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        self.change(&Op::SetXattr { number: number(node), name, value, how, mode, now })
    }

    fn remove_xattr(&self, node: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.change(&Op::RemoveXattr { number: number(node), name, now })
    }
}

impl Data for MinimalFs {
    forward_data!(model, found: read seek);

    fn write(
        &self,
        node: &Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        _: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        let bytes: &[u8] = &data.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
        let mut shared = self.lock();
        let size = shared.state.model.size(&node.inode.node)?;
        shared.change(&self.pm, &Op::Write { number: number(node), at, bytes, now })?;
        Ok(match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => size,
        })
    }

    fn fallocate(
        &self,
        node: &Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        self.change(&Op::Fallocate { number: number(node), mode, offset, len, now })
    }

    fn sync(&self, _: &Node) -> Result<()> {
        Ok(())
    }

    fn closed(&self, _: &Node) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
}

impl Extents for MinimalFs {
    forward_extents!(model, found: resolve stat index_bytes);

    fn pin(&self, _: &Node, _: FileBlock, _: u64) -> Result<Vec<PlacedExtent>> {
        // Data is in records, and moves with each compaction.
        Err(Kind::Unsupported.into())
    }

    fn unpin(&self, _: &Node) {}

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }
}

impl BelowBuffer for MinimalFs {
    no_tiers_below_buffer!();

    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        self.lock().state.model.reserve_for(shape)
    }

    fn write_back(
        &self,
        node: &Node,
        offset: u64,
        data: &[IoSlice<'_>],
        _: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        let bytes: &[u8] = &data.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
        self.change(&Op::WriteBack { number: number(node), offset, bytes, now })
    }

    fn write_back_times(
        &self,
        node: &Node,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        _: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        self.change(&Op::Times { number: number(node), mtime, atime, now })
    }
}
