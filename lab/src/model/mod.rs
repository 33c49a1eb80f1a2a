//! The reference model: the contract in DRAM, simple and obviously right rather than fast.
//!
//! One lock protects a plain [`State`]. Files are maps of 4 KiB blocks, so sparse files of any size cost nothing.
//! Directories are maps from cookie to entry; a cookie depends on its name. Error kinds and their precedence are those
//! of Linux. If two things are wrong, the kernel's order of checks decides (`may_delete`, `may_create`,
//! `do_renameat2`).
//!
//! [`Mutant`] is the same with one deliberate flaw: the tests that compare layouts with the model must find each of
//! them.

mod data;
mod mutant;
mod names;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use nacre_engine::{FileBlock, FileKind, InodeId, Result, Timestamp};
use parking_lot::Mutex;

use state::{ROOT, State};

pub use mutant::{Flaw, Mutant};

/// The largest file of the model: 16 TiB.
pub const MAX_FILE_SIZE: u64 = 1 << 44;
/// The largest value of an extended attribute.
pub const MAX_XATTR_SIZE: usize = 64 << 10;

/// The contract in DRAM.
pub struct MemLayout {
    state: Arc<Mutex<State>>,
    root: MemNode,
    /// Parked inodes, by number: the model holds them.
    parked: Mutex<BTreeMap<u64, MemNode>>,
}

/// A held inode of [`MemLayout`].
#[derive(Clone)]
pub struct MemNode {
    hold: Arc<Hold>,
}

/// A reference that keeps an inode from being reclaimed. It must never be dropped while the state is locked.
struct Hold {
    state: Arc<Mutex<State>>,
    id: InodeId,
    kind: FileKind,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.get_mut(self.id.number).holds -= 1;
        state.reclaim_if_unused(self.id.number);
    }
}

impl Default for MemLayout {
    /// 4 GiB and a million inodes.
    fn default() -> MemLayout {
        MemLayout::new(1 << 20, 1 << 20)
    }
}

impl MemLayout {
    /// An empty file system of `capacity` blocks for data and `max_inodes` inodes. A block or an inode takes DRAM only
    /// when it is stored.
    pub fn new(capacity: u64, max_inodes: u64) -> MemLayout {
        MemLayout::over(State::new(capacity, max_inodes))
    }

    /// The file system as it is after an unmount and a mount: nothing is held, and inodes without a name are gone. The
    /// copy is independent of this one.
    #[must_use]
    pub fn remount(&self) -> MemLayout {
        MemLayout::over(self.state.lock().remounted())
    }

    /// Changes the number of blocks for data, and of inodes. The contents must fit: a layout that replays a journal into
    /// an unbounded model bounds it at the end.
    pub fn set_capacity(&self, capacity: u64, max_inodes: u64) {
        let mut state = self.state.lock();
        assert!(state.used <= capacity && state.inodes.len() as u64 <= max_inodes, "the contents fit");
        (state.capacity, state.max_inodes) = (capacity, max_inodes);
    }

    /// The blocks of a regular file that are not holes, beyond its end, too, and whether each was written.
    pub fn blocks_of(&self, node: &MemNode) -> Result<Vec<(FileBlock, bool)>> {
        let state = self.state.lock();
        let blocks = state.get(node.number()).blocks()?;
        Ok(blocks.iter().map(|(&index, block)| (FileBlock(index), block.bytes.is_some())).collect())
    }

    /// Sets times that a file system may keep lazily to their values after a crash.
    pub(crate) fn set_lazy_times(&self, node: &MemNode, atime: Timestamp, ctime: Timestamp) {
        let mut state = self.state.lock();
        let attr = &mut state.get_mut(node.number()).attr;
        (attr.atime, attr.ctime) = (atime, ctime);
    }

    fn over(state: State) -> MemLayout {
        let state = Arc::new(Mutex::new(state));
        let root = hold(&state, &mut state.lock(), ROOT);
        MemLayout { state, root, parked: Mutex::default() }
    }

    fn hold(&self, state: &mut State, number: u64) -> MemNode {
        hold(&self.state, state, number)
    }
}

/// Holds an inode. The result must outlive the lock on `state`.
fn hold(shared: &Arc<Mutex<State>>, state: &mut State, number: u64) -> MemNode {
    let inode = state.get_mut(number);
    inode.holds += 1;
    MemNode { hold: Arc::new(Hold { state: Arc::clone(shared), id: inode.attr.id, kind: inode.attr.kind }) }
}

impl MemNode {
    fn number(&self) -> u64 {
        self.hold.id.number
    }
}
