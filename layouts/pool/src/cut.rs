//! Giving up: a way to something that cannot be read, or that something else has, is removed. An inode that loses its
//! name keeps its bits, and the next pass finds it (`compare`).

use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::blockmap::{Tree, node_of, span};
use crate::copies::Fix;
use crate::directory::{self, FIRST_COOKIE, HASH_BITS, Set};
use crate::format::pools::{INODES, NODES, SETS};
use crate::format::{
    ATIME, LEVEL_BITS, NEXT_ORPHAN, NODE_WORDS, ROOT_INODE, RawDentry, RawHead, RawInode, branch, open_any,
    seal_any, status, word,
};
use crate::rescue::{Branch, Rescue};
use crate::sets::sealed;
use crate::walk::Walk;

impl<P: Pm> Walk<'_, P> {
    /// Both copies of something that is given up become this.
    fn give_up(&mut self, address: u64, bytes: &[u8]) {
        self.cuts.push(Fix { address, bytes: bytes.to_vec() });
    }

    /// A place of a set has no name any more. A search goes on behind it.
    pub(crate) fn cut_name(&mut self, place: u64, cookie: u64, what: String) {
        self.loss(what, "remove the name; an inode without any other gets one in /lost+found");
        let raw = RawDentry { cookie: cookie.max(FIRST_COOKIE), ..RawDentry::default() };
        let raw = sealed(raw, self.fs.geometry.seed(place), SETS, 0);
        self.give_up(place, raw.as_bytes());
    }

    /// A word of a node leads nowhere any more.
    fn cut_word(&mut self, address: u64, seed: u32) {
        self.give_up(address, &seal_any(0, seed).to_le_bytes());
    }

    /// Changes an inode that can be read, beside what else it gives up.
    fn edit_inode(&mut self, number: u64, raw: &RawInode, edit: impl FnOnce(&mut RawInode)) {
        edit(self.edited.entry(number).or_insert(*raw));
    }

    /// The sealed word that leads nowhere, of an inode that can be read.
    fn no_root(&self, number: u64) -> u64 {
        seal_any(0, self.fs.address(number).map_or(0, |address| self.fs.geometry.seed(address)))
    }

    pub(crate) fn cut_attributes(&mut self, number: u64, raw: &RawInode) {
        self.loss(format!("inode {number}: its extended attributes cannot be read"), "remove them");
        self.edit_inode(number, raw, |raw| raw.attributes = 0);
    }

    /// Times that no clock can have shown become that of the volume's creation.
    pub(crate) fn reset_times(&mut self, number: u64, raw: &RawInode) {
        self.loss(
            format!("inode {number}: its times cannot be"),
            "set them to that of the volume's creation",
        );
        let (fs, created) = (self.fs, self.fs.row.lock().created);
        let right = |time: u64| if fs.times.unpack(time).is_some() { time } else { created };
        self.edit_inode(number, raw, |raw| {
            (raw.mtime, raw.ctime, raw.btime) = (right(raw.mtime), right(raw.ctime), right(raw.btime));
        });
    }

    /// Writes the inodes that give something up. Words that are stored apart from the rest stay as they are.
    pub(crate) fn put_edited(&mut self) {
        for (number, mut raw) in std::mem::take(&mut self.edited) {
            if let Ok(address) = self.fs.address(number) {
                raw.head.checksum = raw.compute_checksum(self.fs.geometry.seed(address));
                self.put_inode(address, &raw);
            }
        }
    }

    /// An inode becomes this, but for its time of access and its place in a list.
    pub(crate) fn put_inode(&mut self, address: u64, raw: &RawInode) {
        let bytes = raw.as_bytes();
        for part in [0..ATIME, ATIME + 8..NEXT_ORPHAN, NEXT_ORPHAN + 16..bytes.len() as u64] {
            self.fix(address + part.start, &bytes[part.start as usize..part.end as usize]);
        }
    }

    /// The root directory is made anew where it was, without names.
    pub(crate) fn new_root(&mut self) {
        let (fs, geometry) = (self.fs, self.fs.geometry);
        if !self.reach(INODES, fs.root) {
            return self.damage("the root directory: no pool block has it");
        }
        self.loss("the root directory cannot be read", "make a new one; its files get names in /lost+found");
        let (seed, row) = (geometry.seed(fs.root), *fs.row.lock());
        let mut raw = RawInode::new_zeroed();
        raw.head = RawHead { status: status::CONSISTENT, pool: INODES as u8, ..RawHead::default() };
        raw.generation = fs.generation_at(fs.root, row.generation_seed).wrapping_add(1).max(1);
        (raw.links, raw.mode, raw.kind) = (1, 0o755, nacre_engine::FileKind::Directory as u8);
        (raw.mtime, raw.ctime, raw.atime, raw.btime) = (row.created, row.created, row.created, row.created);
        raw.parent = ROOT_INODE;
        raw.root = seal_any(0, seed);
        (raw.next_orphan, raw.previous_orphan) = (seal_any(0, seed), seal_any(0, seed));
        raw.head.checksum = raw.compute_checksum(seed);
        self.give_up(fs.root, raw.as_bytes());
    }

    /// A checked word, from either copy.
    pub(crate) fn word(&self, address: u64, seed: u32) -> Option<u64> {
        let copies = [address, self.fs.geometry.twin(address)];
        copies.iter().find_map(|&copy| open_any(self.fs.pm.load_u64(copy).ok()?, seed))
    }

    /// The words of a node. `None` for those that are lost in both copies.
    fn words(&self, node: u64) -> Vec<Option<u64>> {
        let mut words = [0; NODE_WORDS];
        if self.fs.read_node(node, 0, &mut words).is_ok() {
            return words.map(Some).to_vec();
        }
        let seed = self.fs.geometry.seed(node);
        (0..NODE_WORDS as u64).map(|index| self.word(node + index * 8, seed)).collect()
    }

    /// Blocks of a file are led to. False where none can be, or where another file has some of them.
    fn blocks(&mut self, start: u64, len: u64) -> bool {
        self.fs.geometry.is_data(start, len) && self.mark(start, len)
    }

    /// Everything that a file leads to; gives its blocks.
    pub(crate) fn file(&mut self, number: u64, raw: &RawInode) -> u64 {
        let root = self.fs.root_of(number, raw).ok();
        let tree = root.map(|root| Tree { height: raw.height, root });
        let blocks = tree.and_then(|tree| match tree.extent() {
            Some(extent) => self.blocks(extent.block, extent.len).then_some(extent.len),
            None if tree.height == 0 => Some(0),
            None => {
                let node = node_of(tree.root);
                self.reach(NODES, node).then(|| self.node(node, u32::from(tree.height), number))
            }
        });
        blocks.unwrap_or_else(|| {
            let what = format!("inode {number}: its map leads to what is not there, or not its own");
            self.loss(what, "make a hole of it");
            let none = self.no_root(number);
            self.edit_inode(number, raw, |raw| (raw.height, raw.root) = (0, none));
            0
        })
    }

    /// A node of a file and what is below it; gives how many blocks that are.
    fn node(&mut self, node: u64, height: u32, number: u64) -> u64 {
        let seed = self.fs.geometry.seed(node);
        let (mut blocks, mut lost) = (0, 0);
        for (value, at) in self.words(node).into_iter().zip((node..).step_by(8)) {
            let below = match value {
                Some(0) => continue,
                Some(value) if height == 1 || height == 2 && value & word::HUGE != 0 => {
                    self.blocks(value & word::BLOCK_MASK, span(height - 1)).then_some(span(height - 1))
                }
                Some(value) => {
                    let child = node_of(value);
                    self.reach(NODES, child).then(|| self.node(child, height - 1, number))
                }
                None => None,
            };
            match below {
                Some(below) => blocks += below,
                None => {
                    self.cut_word(at, seed);
                    lost += span(height - 1);
                }
            }
        }
        if lost > 0 {
            let what = format!("inode {number}: the map of {lost} of its blocks is lost, or not its own");
            self.loss(what, "make holes of them");
        }
        blocks
    }

    /// The sets of a directory. One whose tree leads to what is not there has none any more.
    pub(crate) fn parts(&mut self, number: u64, raw: &RawInode) -> Vec<Set> {
        let mut sets = Vec::new();
        let is_whole = match self.fs.root_of(number, raw) {
            Ok(0) => true,
            Ok(root) if root & branch::SET != 0 => {
                let pool = SETS + (root >> branch::DEPTH_SHIFT) as usize;
                let set = Set { address: directory::node_of(root), pool };
                sets.push(set);
                pool <= SETS + 2 && self.reach(pool, set.address)
            }
            Ok(root) => self.branch(number, directory::node_of(root), 0, &mut sets),
            Err(_) => false,
        };
        if is_whole {
            return sets;
        }
        let what = format!("directory {number}: the tree of its names leads to what is not there");
        self.loss(what, "empty it; its files get names in /lost+found");
        let none = self.no_root(number);
        self.edit_inode(number, raw, |raw| {
            (raw.height, raw.root) = (0, none);
            (raw.entries, raw.subdirectories) = (0, 0);
        });
        Vec::new()
    }

    /// A node of a directory and what is below it. False if that leads to what is not there.
    fn branch(&mut self, number: u64, node: u64, above: u32, sets: &mut Vec<Set>) -> bool {
        if LEVEL_BITS * (above + 1) > HASH_BITS || !self.reach(NODES, node) {
            return false;
        }
        let words = self.whole_words(number, node);
        for same in words.chunk_by(|first, second| first == second) {
            let Some(value) = same[0] else { continue };
            if value & branch::SET == 0 {
                if !self.branch(number, directory::node_of(value), above + 1, sets) {
                    return false;
                }
                continue;
            }
            let set = Set { address: directory::node_of(value), pool: SETS + 2 };
            if value >> branch::DEPTH_SHIFT > u64::from(LEVEL_BITS) || !self.reach(set.pool, set.address) {
                return false;
            }
            sets.push(set);
        }
        true
    }

    /// The words of a node of a directory. Of those that are lost, words beside them prove some: a set says how many
    /// words lead to it. The others are to lead to new sets.
    fn whole_words(&mut self, number: u64, node: u64) -> Vec<Option<u64>> {
        let mut words = self.words(node);
        if words.iter().all(Option::is_some) {
            return words;
        }
        let seed = self.fs.geometry.seed(node);
        let mut proved = Vec::new();
        for (index, value) in words.iter().enumerate() {
            let Some(value) = value.filter(|value| value & branch::SET != 0) else { continue };
            let depth = (value >> branch::DEPTH_SHIFT).min(LEVEL_BITS.into());
            let span = 1 << (u64::from(LEVEL_BITS) - depth);
            let first = index / span * span;
            proved.extend((first..first + span).filter(|&at| words[at].is_none()).map(|at| (at, value)));
        }
        proved.dedup();
        if !proved.is_empty() {
            let what = format!("directory {number}: words of the node at byte {node} are lost");
            self.problem(what, "write them as the words beside them say");
        }
        for (at, value) in proved {
            if words[at].is_none() {
                words[at] = Some(value);
                self.fix(node + at as u64 * 8, &seal_any(value, seed).to_le_bytes());
            }
        }
        let lost: Vec<u64> = (0..).zip(&words).filter(|(_, word)| word.is_none()).map(|(at, _)| at).collect();
        if !lost.is_empty() {
            let what = format!("directory {number}: names behind the node at byte {node} are lost");
            self.loss(what, Rescue::GO_ON);
            self.branches.push(Branch { node, lost });
        }
        words
    }
}
