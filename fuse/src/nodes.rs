//! The nodes that the kernel knows. Each is held while the kernel has looked it up more often than forgotten.
//!
//! A node id is an inode number, except that the protocol gives the root the id 1. If the layout's root has another
//! number, the two are swapped. A held node keeps its inode from being reclaimed. This suffices for files that are
//! open and unlinked: an open file keeps the kernel's inode, and that keeps its lookups.
//!
//! A node keeps the state of its inode in DRAM. If the kernel knows more inodes than the layout should keep there,
//! nodes that were not used lately are *parked*. The layout keeps the inode of a parked node, and may drop its state
//! ([`Names::park`]). The next request for one finds it by its number.
//!
//! The table is sharded by number. A request takes one uncontended lock and allocates nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use fuser::INodeNo;
use nacre_engine::sync::Mutex;
use nacre_engine::{Names, Result};

/// Shards of the table; a power of two.
const SHARDS: usize = 128;
/// A shard with room for at most this many nodes keeps it.
const FEW: usize = 32;

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
    /// Whether a request used it since the last search for nodes to park.
    used: bool,
}

type Table<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// The nodes that the kernel knows, by number. On its own cache lines, so that neighbours do not slow each other.
#[repr(align(128))]
struct Shard<N>(Mutex<Known<N>>);

struct Known<N> {
    held: Table<Held<N>>,
    /// The number of lookups of each parked node.
    parked: Table<u64>,
    /// The number of held nodes above which some are parked.
    park_at: usize,
    /// Whether there were many nodes. Then the last allocation is freed, too, and with it the heap around it.
    were_many: bool,
}

/// The table of held nodes.
pub(crate) struct Nodes<L: Names> {
    shards: Box<[Shard<L::Node>]>,
    root: L::Node,
    root_number: u64,
    /// The largest number of nodes that a shard should hold.
    limit: usize,
}

/// The node id of an inode number, and the number of a node id: the root's number and 1 are swapped.
pub(crate) fn swapped(number: u64, root_number: u64) -> u64 {
    match number {
        n if n == root_number => INodeNo::ROOT.0,
        n if n == INodeNo::ROOT.0 => root_number,
        n => n,
    }
}

impl<L: Names> Nodes<L> {
    /// A table that holds the root and nothing else.
    pub(crate) fn new(layout: &L) -> Nodes<L> {
        // Other users need inodes, too, and the layout drops no state of parked inodes while it has room.
        let limit = layout.inode_cache().limit / 4 * 3 / SHARDS as u64;
        Nodes::with_limit(layout, usize::try_from(limit).unwrap_or(usize::MAX).clamp(4, usize::MAX / 2))
    }

    fn with_limit(layout: &L, limit: usize) -> Nodes<L> {
        let root = layout.root();
        let known = || Known {
            held: HashMap::default(),
            parked: HashMap::default(),
            park_at: limit,
            were_many: false,
        };
        Nodes {
            shards: (0..SHARDS).map(|_| Shard(Mutex::new(known()))).collect(),
            root_number: layout.id(&root).number,
            root,
            limit,
        }
    }

    /// The node id of an inode number, and the number of a node id.
    pub(crate) fn swap(&self, number: u64) -> u64 {
        swapped(number, self.root_number)
    }

    pub(crate) fn root_number(&self) -> u64 {
        self.root_number
    }

    fn shard(&self, number: u64) -> &Mutex<Known<L::Node>> {
        // The map uses the low bits of the same product.
        &self.shards[(spread(number) >> 40) as usize % SHARDS].0
    }

    /// The node of a request. A node that is not held (it is parked, or a file handle outlived FORGET) is found by its
    /// number.
    pub(crate) fn get(&self, layout: &L, id: INodeNo) -> Result<L::Node> {
        if id == INodeNo::ROOT {
            return Ok(self.root.clone());
        }
        let number = self.swap(id.0);
        if let Some(held) = self.shard(number).lock().held.get_mut(&number) {
            held.used = true;
            return Ok(held.node.clone());
        }
        // Not under the lock, because it may have to be read from media.
        let node = layout.node_by_number(number)?;
        let mut known = self.shard(number).lock();
        if let Some(lookups) = known.parked.remove(&number) {
            known.held.insert(number, Held { node: node.clone(), lookups, used: true });
            layout.unpark(number);
            self.park_some(layout, &mut known);
        }
        Ok(node)
    }

    /// Counts one lookup, for a reply that passes this node to the kernel.
    pub(crate) fn hold(&self, layout: &L, number: u64, node: L::Node) {
        if number == self.root_number {
            return;
        }
        let mut known = self.shard(number).lock();
        if known.held.capacity() == 0 {
            // Growth from nothing would leave fragments in the heaps of threads.
            known.held.reserve(FEW / 8 * 7);
        }
        match known.held.entry(number) {
            Entry::Occupied(mut entry) => {
                let held = entry.get_mut();
                (held.lookups, held.used) = (held.lookups + 1, true);
            }
            Entry::Vacant(entry) => {
                entry.insert(Held { node, lookups: 1, used: false });
                if !known.parked.is_empty() {
                    known.is_held_again(layout, number);
                }
                if known.held.len() > known.park_at {
                    self.park_some(layout, &mut known);
                }
            }
        }
    }

    /// Takes back `count` lookups, and drops the node with the last one.
    pub(crate) fn forget(&self, layout: &L, id: INodeNo, count: u64) {
        let number = self.swap(id.0);
        let mut known = self.shard(number).lock();
        let last = match known.held.entry(number) {
            Entry::Occupied(mut entry) => {
                let held = entry.get_mut();
                held.lookups = held.lookups.saturating_sub(count);
                (held.lookups == 0).then(|| entry.remove())
            }
            Entry::Vacant(_) => {
                known.forget_parked(layout, number, count);
                None
            }
        };
        known.shrink(self.limit);
        drop(known);
        // Outside the lock, because this may reclaim an inode or drop its state in DRAM.
        if let Some(held) = last {
            layout.let_go(held.node);
        }
    }

    /// Parks nodes that were not used lately, if there are too many.
    #[cold]
    fn park_some(&self, layout: &L, known: &mut Known<L::Node>) {
        if known.held.len() <= known.park_at {
            return;
        }
        let most = known.held.len() - self.limit + self.limit.div_ceil(4);
        let cold: Vec<u64> =
            known.held.iter().filter(|(_, held)| !held.used).map(|(number, _)| *number).take(most).collect();
        known.held.values_mut().for_each(|held| held.used = false);
        for number in cold {
            let Some(held) = known.held.remove(&number) else { continue };
            match layout.park(held.node) {
                None => drop(known.parked.insert(number, held.lookups)),
                Some(node) => drop(known.held.insert(number, Held { node, used: true, ..held })),
            }
        }
        // If all were used, or cannot be parked, the next search comes after some more nodes.
        known.park_at = self.limit.max(known.held.len() + self.limit / 8);
    }

    /// Drops all nodes.
    pub(crate) fn clear(&self, layout: &L) {
        for shard in &self.shards {
            let mut known = shard.0.lock();
            let (held, parked) = (std::mem::take(&mut known.held), std::mem::take(&mut known.parked));
            drop(known);
            drop(held);
            parked.into_keys().for_each(|number| layout.unpark(number));
        }
    }

    /// How many nodes are held, the root not counted.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().held.len()).sum()
    }

    /// How many there is room for.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        let of = |known: &Known<L::Node>| known.held.capacity() + known.parked.capacity();
        self.shards.iter().map(|shard| of(&shard.0.lock())).sum()
    }

    /// How many are parked.
    #[cfg(test)]
    fn parked(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().parked.len()).sum()
    }
}

impl<N> Known<N> {
    /// Holds a node again that was parked.
    fn is_held_again<L: Names<Node = N>>(&mut self, layout: &L, number: u64) {
        if let Some(lookups) = self.parked.remove(&number) {
            if let Some(held) = self.held.get_mut(&number) {
                held.lookups += lookups;
            }
            layout.unpark(number);
        }
    }

    fn forget_parked<L: Names<Node = N>>(&mut self, layout: &L, number: u64, count: u64) {
        let Entry::Occupied(mut entry) = self.parked.entry(number) else { return };
        *entry.get_mut() = entry.get().saturating_sub(count);
        if *entry.get() == 0 {
            entry.remove();
            // Under the lock, otherwise it could end a new park.
            layout.unpark(number);
        }
    }

    /// Frees room after most nodes have left.
    fn shrink(&mut self, limit: usize) {
        let Known { held, parked, park_at, were_many } = self;
        if held.capacity() > FEW && held.len() < held.capacity() / 8 {
            held.shrink_to(2 * held.len());
            (*park_at, *were_many) = (limit, true);
        }
        if parked.capacity() > FEW && parked.len() < parked.capacity() / 8 {
            parked.shrink_to(2 * parked.len());
            *were_many = true;
        }
        if *were_many && held.is_empty() && parked.is_empty() {
            (*held, *parked, *were_many) = (HashMap::default(), HashMap::default(), false);
        }
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
        nodes.hold(&layout, number, node.clone());
        nodes.hold(&layout, number, node);
        layout.unlink(&layout.root(), b"a", Timestamp::default()).unwrap();
        nodes.forget(&layout, id, 1);
        assert_eq!(nodes.len(), 1);
        assert!(nodes.get(&layout, id).is_ok(), "held without a link");
        nodes.forget(&layout, id, 1);
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
        nodes.forget(&layout, INodeNo(number), 7);
    }

    /// The kernel knew each inode that it had ever looked up, and so all of them were in DRAM.
    #[test]
    fn few_nodes_are_held_of_the_many_that_the_kernel_knows() {
        let layout = MemLayout::default();
        let nodes = Nodes::with_limit(&layout, 4);
        let names: Vec<String> = (0..20_000).map(|number| format!("file {number}")).collect();
        let numbers: Vec<u64> = names
            .iter()
            .map(|name| {
                let node = file(&layout, name.as_bytes());
                let number = layout.id(&node).number;
                nodes.hold(&layout, number, node);
                number
            })
            .collect();
        assert!(nodes.len() <= 8 * super::SHARDS, "{} are held", nodes.len());
        assert_eq!(nodes.len() + nodes.parked(), numbers.len());
        // A parked inode is found, and held again. One without a name is there until the kernel forgets it.
        let id = |index: usize| INodeNo(nodes.swap(numbers[index]));
        for (index, name) in names.iter().enumerate() {
            layout.unlink(&layout.root(), name.as_bytes(), Timestamp::default()).unwrap();
            let node = nodes.get(&layout, id(index)).unwrap();
            assert_eq!(layout.id(&node).number, numbers[index]);
            assert_eq!(layout.getattr(&node).unwrap().links, 0);
        }
        assert!(nodes.len() <= 8 * super::SHARDS && nodes.len() + nodes.parked() == numbers.len());
        for (index, &number) in numbers.iter().enumerate() {
            // A second lookup of some.
            if index % 3 == 0 {
                let node = nodes.get(&layout, id(index)).unwrap();
                nodes.hold(&layout, number, node);
                nodes.forget(&layout, id(index), 1);
                assert!(nodes.get(&layout, id(index)).is_ok());
            }
            nodes.forget(&layout, id(index), 1);
            let gone = nodes.get(&layout, id(index)).err().map(|error| error.kind());
            assert_eq!(gone, Some(Kind::Stale));
        }
        assert_eq!((nodes.len(), nodes.parked()), (0, 0));
        assert_eq!(nodes.capacity(), 0, "no room is left");
    }

    #[test]
    fn what_is_asked_for_is_not_parked() {
        let layout = MemLayout::default();
        let nodes = Nodes::with_limit(&layout, 4);
        let node = file(&layout, b"hot");
        let hot = layout.id(&node).number;
        nodes.hold(&layout, hot, node);
        for number in 0..5_000 {
            let node = file(&layout, format!("file {number}").as_bytes());
            nodes.hold(&layout, layout.id(&node).number, node);
            nodes.get(&layout, INodeNo(nodes.swap(hot))).unwrap();
            assert!(nodes.shard(hot).lock().held.contains_key(&hot), "after {number} others");
        }
        assert!(nodes.parked() > 4_000);
        nodes.clear(&layout);
        assert_eq!((nodes.len(), nodes.parked()), (0, 0));
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
