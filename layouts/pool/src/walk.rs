//! The walk of a check over a volume: both copies of its structures, and everything that names and lists lead to.
//!
//! If something is led to and neither copy of it can be read, the way to it is given up (`cut`). The next pass looks
//! at the rest. Only a pass that gives up nothing can tell what nothing leads to (`compare`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use nacre_engine::{BLOCK_SIZE, FileKind, Result};
use nacre_layout_parts::report::Problem;
use nacre_layout_parts::rules::check_name;
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::bits::{self, Bits};
use crate::blockmap::Tree;
use crate::copies::{Copies, Fix};
use crate::directory::{Set, TIE_BITS, hash, long_name};
use crate::format::pools::{ATTRIBUTES, INODES, NAMES, NODES, SIZES};
use crate::format::{
    GROUP_BLOCKS, GROUP_BYTES, INLINE_TARGET, LANE_DONE, LONG_NAME, NEXT_ORPHAN, ORPHAN_HEADS, POOL_BITS,
    POOL_HEAD, ROOT_INODE, RawBytes, RawDentry, RawInode, RawVolume, VOLUME_BYTES, WORD_BITS, seal_any,
    volume_state,
};
use crate::fs::Shared;
use crate::geometry::Use;
use crate::inode::kind_of;
use crate::rescue::Branch;

/// The repair of a damaged copy.
const FROM_OTHER: &str = "write it from the other copy";
/// The repair of a list of orphans: what is on it has no names, and is freed as everything that nothing leads to.
const FORGET_LIST: &str = "forget the list; its inodes, which have no names, are freed";

/// The findings about an inode.
pub(crate) struct Seen {
    pub(crate) raw: RawInode,
    /// Names that refer to it.
    pub(crate) names: u32,
    /// The directory of its name.
    pub(crate) parent: u64,
    pub(crate) entries: u64,
    pub(crate) subdirectories: u32,
    /// Blocks of a file.
    pub(crate) blocks: Option<u64>,
}

pub(crate) struct Walk<'f, P: Pm> {
    pub(crate) fs: &'f Shared<P>,
    /// The rows of all volumes of the zone, if this walk is to look at the groups of none, too.
    pub(crate) owners: Option<&'f BTreeSet<u64>>,
    pub(crate) problems: Vec<Problem>,
    /// Copies to be written from the other one.
    pub(crate) mends: Vec<Fix>,
    /// Changes of both copies.
    pub(crate) edits: Vec<Fix>,
    /// Those that give something up.
    pub(crate) cuts: Vec<Fix>,
    /// Inodes that give something up.
    pub(crate) edited: BTreeMap<u64, RawInode>,
    /// Nodes of directories that lost words.
    pub(crate) branches: Vec<Branch>,
    /// Inodes with links that no name leads to, but for those below another one of them.
    pub(crate) nameless: Vec<u64>,
    /// The bits of each group, and its purpose. `None` for a map that cannot be read.
    pub(crate) maps: Vec<Option<(Bits, u64)>>,
    /// The pool of each pool block.
    pub(crate) heads: BTreeMap<u64, usize>,
    /// Pool blocks without a head, and the damage.
    headless: BTreeMap<u64, String>,
    /// The pools of what leads into them.
    claims: BTreeMap<u64, BTreeSet<usize>>,
    /// Words of bits that are lost, with their pool blocks.
    pub(crate) lost_bits: BTreeMap<u64, u64>,
    /// Entries in use, by their bits, with their pools.
    pub(crate) allocated: BTreeMap<u64, usize>,
    /// Entries that something leads to.
    pub(crate) reached: HashMap<u64, usize>,
    /// Blocks that something is in.
    pub(crate) used: Vec<Bits>,
    pub(crate) inodes: BTreeMap<u64, Seen>,
    /// Symbolic links whose target is lost.
    dropped: BTreeSet<u64>,
    /// Sets of directories that were not read yet.
    sets: HashMap<u64, Vec<Set>>,
    /// Something is written that could not be read. The next pass reads more.
    pub(crate) is_rebuilding: bool,
    pub(crate) directories: u64,
    pub(crate) free: u64,
    pub(crate) in_use: u64,
}

impl<'f, P: Pm> Walk<'f, P> {
    pub(crate) fn new(fs: &'f Shared<P>, owners: Option<&'f BTreeSet<u64>>) -> Walk<'f, P> {
        Walk {
            fs,
            owners,
            problems: Vec::new(),
            mends: Vec::new(),
            edits: Vec::new(),
            cuts: Vec::new(),
            edited: BTreeMap::new(),
            branches: Vec::new(),
            nameless: Vec::new(),
            maps: Vec::new(),
            heads: BTreeMap::new(),
            headless: BTreeMap::new(),
            claims: BTreeMap::new(),
            lost_bits: BTreeMap::new(),
            allocated: BTreeMap::new(),
            reached: HashMap::new(),
            used: vec![[0; 8]; fs.geometry.groups().count()],
            inodes: BTreeMap::new(),
            dropped: BTreeSet::new(),
            sets: HashMap::new(),
            is_rebuilding: false,
            directories: 0,
            free: 0,
            in_use: 0,
        }
    }

    pub(crate) fn everything(&mut self, row: &RawVolume, is_counted: bool) {
        self.rows();
        self.space();
        if row.state == volume_state::LIVE {
            self.tree();
            self.orphans();
        }
        self.find_heads();
        if self.is_rebuilding {
            // Entries behind a lost head may be whole, and are looked at again.
            self.problems.retain(|problem| !problem.loses);
            self.cuts.clear();
            self.edited.clear();
            self.branches.clear();
        }
        self.edits.append(&mut self.cuts);
        self.put_edited();
        self.compare_entries();
        self.give_back_headless();
        self.compare_blocks();
        self.compare_inodes();
        if is_counted && self.is_whole() == Some(true) && self.unread().next().is_none() {
            self.compare_counts(row);
        }
    }

    /// Damage that nothing repairs.
    pub(crate) fn damage(&mut self, what: impl Into<String>) {
        self.problem(what, "");
    }

    /// A problem with a repair that loses nothing; see [`Problem`].
    pub(crate) fn problem(&mut self, what: impl Into<String>, repair: &'static str) {
        self.problems.push(Problem { what: what.into(), repair, loses: false, repaired: false });
    }

    /// A problem whose repair gives something up.
    pub(crate) fn loss(&mut self, what: impl Into<String>, repair: &'static str) {
        self.problems.push(Problem { what: what.into(), repair, loses: true, repaired: false });
    }

    /// Whether everything that something leads to is as it should be, or can be made so. `None` while something is
    /// given up, or found again: the next pass tells.
    pub(crate) fn is_whole(&self) -> Option<bool> {
        if self.is_rebuilding || self.problems.iter().any(|problem| problem.loses) {
            return None;
        }
        Some(self.problems.iter().all(|problem| !problem.repair.is_empty()))
    }

    /// Groups whose maps cannot be read.
    pub(crate) fn unread(&self) -> impl Iterator<Item = u64> {
        let groups = self.fs.geometry.groups().zip(&self.maps);
        groups.filter(|(_, map)| map.is_none()).map(|(group, _)| group)
    }

    fn is_unread(&self, group: u64) -> bool {
        let index = group.checked_sub(self.fs.geometry.first_group);
        index.and_then(|index| self.maps.get(index as usize)).is_some_and(Option::is_none)
    }

    /// Compares both copies of a structure. A description of the damage where neither is whole.
    fn both(&mut self, copies: &Copies<'_>) -> Option<String> {
        let found = copies.compare(&*self.fs.pm, &self.fs.geometry);
        let (what, fixes) = found.problem?;
        if fixes.is_empty() {
            return Some(what);
        }
        // It is put together from both, and cannot be read before.
        self.is_rebuilding |= !found.is_readable;
        self.problem(what, FROM_OTHER);
        self.mends.extend(fixes);
        None
    }

    /// A change of both copies.
    pub(crate) fn fix(&mut self, address: u64, bytes: &[u8]) {
        self.edits.push(Fix { address, bytes: bytes.to_vec() });
    }

    /// Checked words become 0 where neither copy of them is whole.
    fn lose_words(&mut self, address: u64, owner: u64, count: u64) {
        let seed = self.fs.geometry.seed(owner);
        for at in (0..count).map(|index| address + index * 8) {
            if self.word(at, seed).is_none() {
                self.fix(at, &seal_any(0, seed).to_le_bytes());
            }
        }
    }

    /// Rows of zones and volumes, and lanes.
    fn rows(&mut self) {
        let geometry = self.fs.geometry;
        if self.owners.is_some() {
            if let Some(what) = self.both(&Copies::zone(&geometry)) {
                self.damage(what);
            }
            for index in 0..geometry.lanes {
                let Some(what) = self.both(&Copies::done(&geometry, index)) else { continue };
                // The recovery has looked at the operation of the lane, whatever the lost word was.
                self.problem(what, "write the number of the last operation that was begun");
                let lane = geometry.lane(index);
                let done = *self.fs.lanes[index as usize].done.lock();
                let word = seal_any(done, geometry.seed(lane)).to_le_bytes();
                for copy in [lane, geometry.twin(lane)] {
                    self.mends.push(Fix { address: copy + LANE_DONE, bytes: word.to_vec() });
                }
            }
        }
        if self.fs.row.lock().state == volume_state::LIVE {
            if let Some(what) = self.both(&Copies::volume(&geometry)) {
                self.damage(what);
            }
            if let Some(what) = self.both(&Copies::orphan_heads(&geometry)) {
                self.problem(what, FORGET_LIST);
                let row = geometry.row();
                self.lose_words(row + VOLUME_BYTES as u64, row, ORPHAN_HEADS as u64);
            }
        }
    }

    /// Maps, and the heads of pool blocks; which entries are in use.
    fn space(&mut self) {
        let geometry = self.fs.geometry;
        for group in geometry.groups() {
            // A map that is lost in both copies is told with what volumes have in the group.
            self.both(&Copies::map(&geometry, group));
            let map = self.fs.read_map(group).ok();
            self.maps.push(map);
            let Some((free, of_group)) = map else { continue };
            let of = geometry.use_of(of_group);
            if self.is_ours(of) {
                let usable = bits::count(&bits::without(&free, &self.fs.bad.of_group(group)));
                self.free += usable;
                // A damaged map may have blocks of regions free.
                self.in_use += (GROUP_BLOCKS - geometry.regions_in(group)).saturating_sub(usable);
            }
            if of != Use::Pool {
                continue;
            }
            let blocks = geometry.pool_block / BLOCK_SIZE;
            for slot in 0..geometry.pool_blocks_in_group() {
                let all = bits::run(slot * blocks, blocks);
                let block = group * GROUP_BYTES + slot * geometry.pool_block;
                // Of one that is free in parts the head tells whether it is there.
                let is_there = !bits::meet(&free, &all)
                    || bits::without(&all, &free) != [0; 8] && self.fs.read_head(block).is_ok();
                if is_there {
                    self.pool_block(block);
                }
            }
        }
    }

    /// Whether this walk looks at a group with such a use. The first one of a zone takes those of no volume.
    pub(crate) fn is_ours(&self, of: Use) -> bool {
        match of {
            Use::Free => self.owners.is_some(),
            Use::Data | Use::Pool => true,
            Use::Other(owner) => self.is_stray(owner),
        }
    }

    /// Whether this walk looks at the groups of a volume that is not there.
    pub(crate) fn is_stray(&self, owner: u64) -> bool {
        self.owners.is_some_and(|owners| !owners.contains(&owner))
    }

    fn pool_block(&mut self, block: u64) {
        let geometry = self.fs.geometry;
        let lost = self.both(&Copies::pool_head(&geometry, block));
        let Ok(head) = self.fs.read_head(block) else {
            let what =
                lost.unwrap_or_else(|| format!("the head of the pool block at byte {block} cannot be"));
            self.headless.insert(block, what);
            return;
        };
        self.mark(block / BLOCK_SIZE, geometry.pool_block / BLOCK_SIZE);
        let pool = head.pool as usize;
        self.heads.insert(block, pool);
        let count = u64::from(head.count);
        let what = format!("the bits of the pool block at byte {block}");
        self.both(&Copies::words(block + POOL_BITS, block, count.div_ceil(WORD_BITS) as usize, what));
        for (address, bits) in self.fs.bits_behind_the_end(block, pool).unwrap_or_default() {
            let what = format!("the pool block at byte {block} says that entries behind its end are free");
            self.problem(what, "say so no more");
            self.fix(address, &seal_any(bits, geometry.seed(block)).to_le_bytes());
        }
        for index in 0..count {
            let entry = block + POOL_HEAD + index * SIZES[pool];
            match self.fs.is_in_use(pool, entry) {
                Ok(true) => {
                    self.allocated.insert(entry, pool);
                    self.entry(pool, entry);
                }
                Ok(false) => {}
                Err(_) => drop(self.lost_bits.insert(block + POOL_BITS + index / WORD_BITS * 8, block)),
            }
        }
    }

    /// Compares the copies of an entry. A loss of both is told with the way to it.
    fn entry(&mut self, pool: usize, entry: u64) {
        for (index, copies) in Copies::entry(&self.fs.geometry, pool, entry).iter().enumerate() {
            let lost = self.both(copies);
            if pool == INODES
                && index == 1
                && let Some(what) = lost
            {
                self.problem(what, "say that it is on no list");
                self.lose_words(entry + NEXT_ORPHAN, entry, 2);
            }
        }
    }

    /// Blocks have an owner. False where one has another owner already, or none can be there.
    pub(crate) fn mark(&mut self, start: u64, len: u64) -> bool {
        let (mut at, mut is_first) = (start, true);
        while at < start + len {
            let group = at / GROUP_BLOCKS;
            let count = (GROUP_BLOCKS - at % GROUP_BLOCKS).min(start + len - at);
            let run = bits::run(at % GROUP_BLOCKS, count);
            let index = group.checked_sub(self.fs.geometry.first_group);
            let Some(used) = index.and_then(|index| self.used.get_mut(index as usize)) else { return false };
            is_first &= !bits::meet(used, &run);
            *used = bits::either(used, &run);
            at += count;
        }
        is_first
    }

    /// An entry is led to. False where none can be, or something else leads to it.
    pub(crate) fn reach(&mut self, pool: usize, address: u64) -> bool {
        let geometry = self.fs.geometry;
        if !geometry.is_entry(address, SIZES[pool]) {
            return false;
        }
        let block = geometry.pool_of(address);
        let is_there = match self.heads.get(&block) {
            Some(&of_block) => of_block == pool,
            None if self.headless.contains_key(&block) => {
                self.claims.entry(block).or_default().insert(pool);
                true
            }
            None => {
                self.is_unread(geometry.group_of(address))
                    && self.fs.read_head(block).is_ok_and(|head| head.pool as usize == pool)
            }
        };
        is_there && self.reached.insert(address, pool).is_none()
    }

    /// The pools of pool blocks without a head, by what leads to their entries, or by the entries. And pool blocks in
    /// groups whose maps cannot be read, by the entries that something leads to.
    fn find_heads(&mut self) {
        let geometry = self.fs.geometry;
        for (block, what) in std::mem::take(&mut self.headless) {
            let claims: Vec<usize> = self.claims.remove(&block).into_iter().flatten().collect();
            let pool = match claims[..] {
                [] => self.pool_of_bytes(block),
                [pool] => Some(pool),
                _ => None,
            };
            if let Some(pool) = pool {
                self.problem(what, "write it anew: its entries are of one pool");
                let head = self.fs.new_head(block, pool);
                self.fix(block, head.as_bytes());
                self.mark(block / BLOCK_SIZE, geometry.pool_block / BLOCK_SIZE);
                self.is_rebuilding = true;
            } else if !claims.is_empty() {
                self.damage(what);
            } else {
                self.headless.insert(block, what);
            }
        }
        let is_lost = |&&entry: &&u64| self.is_unread(geometry.group_of(entry));
        let blocks: BTreeSet<u64> =
            self.reached.keys().filter(is_lost).map(|&entry| geometry.pool_of(entry)).collect();
        blocks.into_iter().for_each(|block| {
            self.mark(block / BLOCK_SIZE, geometry.pool_block / BLOCK_SIZE);
        });
    }

    /// Pool blocks without a head that nothing leads into: their blocks belong to nothing. Inodes without names get
    /// names before that, in a pass of their own, because what they lead to may be there.
    fn give_back_headless(&mut self) {
        let geometry = self.fs.geometry;
        for (block, what) in std::mem::take(&mut self.headless) {
            if self.claims.contains_key(&block) {
                // Something of an inode without a name is there, and the next pass knows its pool.
                self.mark(block / BLOCK_SIZE, geometry.pool_block / BLOCK_SIZE);
                continue;
            }
            let is_whole = self.is_whole() == Some(true);
            self.problem(what, if is_whole { "give its blocks back: nothing leads to it" } else { "" });
        }
    }

    /// The pool of a pool block with entries of bytes, which say it. The ways to them do not, as they could not be
    /// read.
    fn pool_of_bytes(&self, block: u64) -> Option<usize> {
        let geometry = self.fs.geometry;
        let says_so = |pool: usize, entry: u64| {
            let mut raw = RawBytes::new_zeroed();
            let is_whole = Copies::entry(&geometry, pool, entry).iter().all(|copies| {
                copies.compare(&*self.fs.pm, &geometry).problem.is_none_or(|(_, fixes)| !fixes.is_empty())
            });
            let is_read = self.fs.pm.read(entry, raw.as_mut_bytes()).is_ok();
            // An entry of lost bits may be in use.
            let is_used = self.fs.is_in_use(pool, entry).unwrap_or(true);
            is_used && is_whole && is_read && usize::from(raw.head.pool) == pool
        };
        let mut pools = (NAMES..NODES).chain([ATTRIBUTES]).filter(|&pool| {
            let entries = 0..self.fs.entries_in_block(pool);
            let mut entries = entries.map(|index| block + POOL_HEAD + index * SIZES[pool]);
            entries.any(|entry| says_so(pool, entry))
        });
        pools.next().filter(|_| pools.next().is_none())
    }

    /// Every inode that a name leads to.
    fn tree(&mut self) {
        if !self.inode(ROOT_INODE, ROOT_INODE) {
            return self.new_root();
        }
        let mut queue = VecDeque::from([ROOT_INODE]);
        while let Some(number) = queue.pop_front() {
            let Some(raw) = self.inodes.get(&number).map(|seen| seen.raw) else { continue };
            self.directory(number, &raw, &mut queue);
        }
    }

    /// Reads an inode and everything that it has, the first time that it is met. Whether it is there.
    pub(crate) fn inode(&mut self, number: u64, parent: u64) -> bool {
        if self.inodes.contains_key(&number) {
            return true;
        }
        let (Ok(address), Ok(raw)) = (self.fs.address(number), self.fs.read_inode(number)) else {
            return false;
        };
        if number == ROOT_INODE && !raw.is_directory() || !self.reach(INODES, address) {
            return false;
        }
        let blocks = self.contents(number, &raw);
        if self.fs.attr(number, &raw).is_err() {
            self.reset_times(number, &raw);
        }
        self.directories += u64::from(raw.is_directory());
        let seen = Seen { raw, names: 0, parent, entries: 0, subdirectories: 0, blocks };
        self.inodes.insert(number, seen);
        true
    }

    /// Everything that an inode leads to, without names. Gives the blocks of a file.
    fn contents(&mut self, number: u64, raw: &RawInode) -> Option<u64> {
        if raw.attributes != 0 && !(self.bytes(raw.attributes) && self.fs.read_xattrs(raw.attributes).is_ok())
        {
            self.cut_attributes(number, raw);
        }
        match kind_of(raw).ok()? {
            FileKind::Regular => return Some(self.file(number, raw)),
            FileKind::Directory => {
                let sets = self.parts(number, raw);
                self.sets.insert(number, sets);
            }
            FileKind::Symlink => {
                let is_inline = raw.size as usize <= INLINE_TARGET;
                let has_bytes = is_inline || self.fs.root_of(number, raw).is_ok_and(|root| self.bytes(root));
                if !has_bytes || !self.has_target(number, raw) {
                    self.dropped.insert(number);
                }
            }
            _ => {}
        }
        None
    }

    /// Whether the target of a symbolic link can be read. Without one the link is worth nothing.
    pub(crate) fn has_target(&self, number: u64, raw: &RawInode) -> bool {
        let is_target = |target: Vec<u8>| !target.is_empty() && !target.contains(&0);
        self.fs.target_of(number, raw).is_ok_and(is_target)
    }

    /// Entries of bytes are led to. Whether all of them are there.
    fn bytes(&mut self, address: u64) -> bool {
        let mut parts = Vec::new();
        let is_read = self.fs.read_bytes(address, |pool, at| parts.push((pool, at))).is_ok();
        is_read && parts.into_iter().fold(true, |all, (pool, at)| self.reach(pool, at) && all)
    }

    /// The names of a directory.
    fn directory(&mut self, number: u64, raw: &RawInode, queue: &mut VecDeque<u64>) {
        let Ok(tree) = self.fs.directory(number, raw) else { return };
        let (mut names, mut cookies) = (HashSet::new(), BTreeSet::new());
        for set in self.sets.remove(&number).unwrap_or_default() {
            for place in (0..set.places()).map(|index| set.place(index)) {
                let Ok(raw) = self.fs.read_place(place) else {
                    let what = format!("directory {number}: the name at byte {place} cannot be read");
                    self.cut_name(place, 0, what);
                    continue;
                };
                if raw.inode == 0 {
                    continue;
                }
                let read = self.name_in(number, tree, set, &raw);
                let mut is_first = |name: Vec<u8>| names.insert(name) && cookies.insert(raw.cookie);
                let read = read.and_then(|name| {
                    let shown = String::from_utf8_lossy(&name).into_owned();
                    is_first(name).then_some(()).ok_or_else(|| format!("{shown:?} is there twice"))?;
                    self.refer(number, &raw, queue).map_err(|what| format!("{shown:?} {what}"))
                });
                if let Err(what) = read {
                    self.cut_name(place, raw.cookie, format!("directory {number}: {what}"));
                }
            }
        }
    }

    /// The name of a place of a set, or a description of its damage.
    fn name_in(&mut self, number: u64, tree: Tree, set: Set, raw: &RawDentry) -> Result<Vec<u8>, String> {
        let fs = self.fs;
        let has_bytes = raw.flags & LONG_NAME == 0 || self.bytes(long_name(raw));
        let Some(name) = fs.name_of(raw).ok().filter(|_| has_bytes) else {
            return Err(format!("the name of inode {} cannot be read", raw.inode));
        };
        let shown = String::from_utf8_lossy(&name).into_owned();
        if check_name(&name).is_err() {
            return Err(format!("the name {shown:?} cannot be one"));
        }
        let hash = hash(&name, fs.hash_seed);
        let is_placed = fs.way(tree, hash).ok().flatten().is_some_and(|way| way.set == set);
        // A place before it may be lost, which ends no search once it is given up.
        let is_found = !matches!(fs.find(tree, &name), Ok(None));
        if raw.cookie >> TIE_BITS != hash || !is_placed || !is_found {
            return Err(format!("{shown:?} of directory {number} is not where it is looked for"));
        }
        Ok(name.to_vec())
    }

    /// A name refers to an inode, which is read. A description of what is wrong with that.
    fn refer(&mut self, dir: u64, raw: &RawDentry, queue: &mut VecDeque<u64>) -> Result<(), &'static str> {
        let is_new = !self.inodes.contains_key(&raw.inode);
        let is_directory = raw.kind == FileKind::Directory as u8;
        if !self.inode(raw.inode, dir) || self.dropped.contains(&raw.inode) {
            return Err("refers to an inode that cannot be read");
        }
        let Some(seen) = self.inodes.get_mut(&raw.inode) else { return Ok(()) };
        if seen.raw.generation != raw.generation || seen.raw.kind != raw.kind {
            return Err("refers to no inode");
        }
        if is_directory && !is_new {
            return Err("is the second name of a directory");
        }
        seen.names += 1;
        if is_directory {
            queue.push_back(raw.inode);
        }
        if let Some(parent) = self.inodes.get_mut(&dir) {
            parent.entries += 1;
            parent.subdirectories += u32::from(is_directory);
        }
        Ok(())
    }

    /// The lists of inodes without names.
    fn orphans(&mut self) {
        let row = self.fs.geometry.row();
        for list in 0..ORPHAN_HEADS {
            // One whose head is lost is forgotten with its row.
            let Ok(mut number) = self.fs.first_orphan(list) else { continue };
            let mut before = 0;
            while number != 0 {
                let near = self.fs.neighbours(number);
                let has_place = near.as_ref().is_ok_and(|near| near[1] == before)
                    && !self.inodes.contains_key(&number)
                    && self.fs.read_inode(number).is_ok_and(|raw| raw.links == 0);
                if !has_place || !self.inode(number, 0) || self.dropped.contains(&number) {
                    self.problem(format!("inode {number}: its place in a list of orphans"), FORGET_LIST);
                    let head = row + VOLUME_BYTES as u64 + list as u64 * 8;
                    self.fix(head, &seal_any(0, self.fs.geometry.seed(row)).to_le_bytes());
                    break;
                }
                (before, number) = (number, near.map_or(0, |near| near[0]));
            }
        }
    }
}
