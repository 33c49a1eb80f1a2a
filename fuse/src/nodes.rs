//! The nodes that the kernel knows: each is held as long as the kernel has looked it up more often than forgotten.
//!
//! A node id is an inode number, except that the protocol gives the root the id 1; a layout whose root has another
//! number swaps the two. Holding a node keeps its inode from being reclaimed, so files that are open and unlinked
//! need no more than this: an open file keeps the kernel's inode, and that keeps its lookups.
//!
//! The table is sharded by number; a request takes one uncontended lock and allocates nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use fuser::INodeNo;
use nacre_engine::sync::Mutex;
use nacre_engine::{Names, Result};

/// Shards of the table; a power of two.
const SHARDS: usize = 128;

/// Numbers are spread by one multiplication (Fibonacci hashing).
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = spread(number);
    }
}

fn spread(number: u64) -> u64 {
    let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

struct Held<N> {
    node: N,
    lookups: u64,
}

type Table<N> = HashMap<u64, Held<N>, BuildHasherDefault<NumberHasher>>;

/// On its own cache lines, so that neighbours do not slow each other.
#[repr(align(128))]
struct Shard<N>(Mutex<Table<N>>);

/// The table of held nodes.
pub(crate) struct Nodes<L: Names> {
    shards: Box<[Shard<L::Node>]>,
    root: L::Node,
    root_number: u64,
}

impl<L: Names> Nodes<L> {
    /// A table that holds the root and nothing else.
    pub(crate) fn new(layout: &L) -> Nodes<L> {
        let root = layout.root();
        Nodes {
            shards: (0..SHARDS).map(|_| Shard(Mutex::new(HashMap::default()))).collect(),
            root_number: layout.id(&root).number,
            root,
        }
    }

    /// The node id of an inode number, and the number of a node id: the root's and 1 change places.
    pub(crate) fn swap(&self, number: u64) -> u64 {
        match number {
            n if n == self.root_number => INodeNo::ROOT.0,
            n if n == INodeNo::ROOT.0 => self.root_number,
            n => n,
        }
    }

    fn shard(&self, number: u64) -> &Mutex<Table<L::Node>> {
        // The map uses the low bits of the same product.
        &self.shards[(spread(number) >> 40) as usize % SHARDS].0
    }

    /// The node of a request. One that is not held (a file handle that outlived FORGET) is found by its number.
    pub(crate) fn get(&self, layout: &L, id: INodeNo) -> Result<L::Node> {
        if id == INodeNo::ROOT {
            return Ok(self.root.clone());
        }
        let number = self.swap(id.0);
        if let Some(held) = self.shard(number).lock().get(&number) {
            return Ok(held.node.clone());
        }
        layout.node_by_number(number)
    }

    /// Counts one lookup, for a reply that tells the kernel of this node.
    pub(crate) fn hold(&self, number: u64, node: L::Node) {
        if number == self.root_number {
            return;
        }
        match self.shard(number).lock().entry(number) {
            Entry::Occupied(mut entry) => entry.get_mut().lookups += 1,
            Entry::Vacant(entry) => {
                entry.insert(Held { node, lookups: 1 });
            }
        }
    }

    /// Takes back `count` lookups; the node is let go with the last one.
    pub(crate) fn forget(&self, id: INodeNo, count: u64) {
        let number = self.swap(id.0);
        let last = {
            let mut table = self.shard(number).lock();
            match table.entry(number) {
                Entry::Occupied(mut entry) => {
                    let held = entry.get_mut();
                    held.lookups = held.lookups.saturating_sub(count);
                    (held.lookups == 0).then(|| entry.remove())
                }
                Entry::Vacant(_) => None,
            }
        };
        // Outside the lock: this may reclaim an inode.
        drop(last);
    }

    /// Lets everything go.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let table = std::mem::take(&mut *shard.0.lock());
            drop(table);
        }
    }

    /// How many nodes are held, the root not counted.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use fuser::INodeNo;
    use nacre_engine::{FileKind, Kind, Names, NewInode, Timestamp};
    use nacre_lab::model::MemLayout;

    use super::Nodes;

    fn file(layout: &MemLayout, name: &[u8]) -> <MemLayout as Names>::Node {
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: &[],
            xattrs: &[],
            now: Timestamp::default(),
        };
        layout.create(&layout.root(), name, &new).unwrap()
    }

    #[test]
    fn a_node_is_held_until_its_last_lookup_is_forgotten() {
        let layout = MemLayout::default();
        let nodes = Nodes::new(&layout);
        let node = file(&layout, b"a");
        let number = layout.id(&node).number;
        let id = INodeNo(nodes.swap(number));
        nodes.hold(number, node.clone());
        nodes.hold(number, node);
        layout.unlink(&layout.root(), b"a", Timestamp::default()).unwrap();
        nodes.forget(id, 1);
        assert_eq!(nodes.len(), 1);
        assert!(nodes.get(&layout, id).is_ok(), "held without a link");
        nodes.forget(id, 1);
        assert_eq!(nodes.len(), 0);
        let gone = nodes.get(&layout, id).err().map(|error| error.kind());
        assert_eq!(gone, Some(Kind::Stale));
    }

    #[test]
    fn a_node_that_is_not_held_is_found_by_number() {
        let layout = MemLayout::default();
        let nodes = Nodes::new(&layout);
        let number = layout.id(&file(&layout, b"a")).number;
        let node = nodes.get(&layout, INodeNo(nodes.swap(number))).unwrap();
        assert_eq!(layout.id(&node).number, number);
        assert_eq!(nodes.len(), 0);
        // Forgetting more than was looked up is the kernel's mistake, not our end.
        nodes.forget(INodeNo(number), 7);
    }

    #[test]
    fn the_root_is_node_1_whatever_its_number() {
        let layout = MemLayout::default();
        let mut nodes = Nodes::new(&layout);
        let root = nodes.get(&layout, INodeNo::ROOT).unwrap();
        assert_eq!(layout.id(&root), layout.id(&layout.root()));
        nodes.root_number = 64;
        assert_eq!((nodes.swap(64), nodes.swap(1), nodes.swap(2)), (1, 64, 2));
    }
}
