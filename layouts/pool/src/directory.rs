//! The names of a directory: sets of 16 to 64 places, searched from the place of a name's hash on. A directory with more
//! names has a tree of nodes over sets, by the highest bits of the hash, 9 a level. How names change is in `sets`.
//!
//! Names are listed in the order of their cookies, which are their hashes. So a cookie survives everything, and a name
//! that stays is listed once.

use nacre_engine::{Error, FileKind, InodeId, Resource, Result};
use nacre_layout_parts::contract::Listed;
use nacre_media::Pm;
use smallvec::SmallVec;
use zerocopy::{FromZeros, IntoBytes};

use crate::blockmap::{Tree, again_and_again};
use crate::format::pools::{SETS, SIZES};
use crate::format::{
    INLINE_NAME, LEVEL_BITS, LONG_NAME, NODE_WORDS, PREFIX, RawDentry, RawInode, branch, word,
};
use crate::fs::Shared;

/// Bits of a name's hash.
pub(crate) const HASH_BITS: u32 = 54;
/// Bits of a cookie below them.
pub(crate) const TIE_BITS: u32 = 8;
/// Cookies below are those of `.` and `..` in front ends.
pub(crate) const FIRST_COOKIE: u64 = 3;
/// Bytes of a place.
pub(crate) const PLACE: u64 = size_of::<RawDentry>() as u64;

/// The hash of a name.
pub(crate) fn hash(name: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name, seed) >> (64 - HASH_BITS)
}

/// A set of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Set {
    /// The first byte.
    pub(crate) address: u64,
    /// The pool of its size.
    pub(crate) pool: usize,
}

impl Set {
    pub(crate) fn places(&self) -> u64 {
        SIZES[self.pool] / PLACE
    }

    /// The address of a place.
    pub(crate) fn place(&self, index: u64) -> u64 {
        self.address + index * PLACE
    }
}

/// The way from a directory's root to the set of a hash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) set: Set,
    /// The node that leads to it, and how many levels of nodes are above that.
    pub(crate) node: Option<(u64, u32)>,
    /// Bits of the hash, within the node's 9, that all its names have in common.
    pub(crate) depth: u32,
    /// The first hash behind those of its names.
    pub(crate) end: u64,
}

/// A name that was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) volume: u32,
    pub(crate) place: u64,
    pub(crate) raw: RawDentry,
}

impl Found {
    pub(crate) fn id(&self) -> InodeId {
        InodeId { number: self.raw.inode, generation: self.raw.generation, volume: self.volume }
    }

    pub(crate) fn kind(&self) -> Result<FileKind> {
        FileKind::from_u8(self.raw.kind).ok_or_else(|| Error::corrupt("directory: the kind of a name"))
    }
}

/// The word for a set. Of a set without a node, `depth` is its class.
pub(crate) fn set_word(set: Set, depth: u32) -> u64 {
    set.address >> branch::ADDRESS_SHIFT | branch::SET | u64::from(depth) << branch::DEPTH_SHIFT
}

/// Where the node of a directory is.
pub(crate) fn node_of(value: u64) -> u64 {
    (value & branch::ADDRESS_MASK) << branch::ADDRESS_SHIFT
}

/// The word for a node.
pub(crate) fn node_word(node: u64) -> u64 {
    node >> branch::ADDRESS_SHIFT
}

/// The index of a hash in a node below `above` others.
pub(crate) fn index_of(hash: u64, above: u32) -> u64 {
    hash >> (HASH_BITS - LEVEL_BITS * (above + 1)) & ((1 << LEVEL_BITS) - 1)
}

/// The bytes as a name.
pub(crate) fn dentry_of(bytes: &[u8]) -> RawDentry {
    let mut raw = RawDentry::new_zeroed();
    raw.as_mut_bytes().copy_from_slice(bytes);
    raw
}

impl<P: Pm> Shared<P> {
    /// The root of a directory, which is locked.
    pub(crate) fn directory(&self, number: u64, raw: &RawInode) -> Result<Tree> {
        Ok(Tree { height: raw.height, root: self.root_of(number, raw)? })
    }

    /// The set of a hash; `None` in a directory that never had a name.
    pub(crate) fn way(&self, directory: Tree, hash: u64) -> Result<Option<Way>> {
        if directory.root == 0 {
            return Ok(None);
        }
        let depth = |value: u64| (value >> branch::DEPTH_SHIFT) as u32;
        let damaged = || Error::corrupt("the tree of a directory");
        if directory.root & branch::SET != 0 {
            let pool = SETS + depth(directory.root) as usize;
            let set = Set { address: node_of(directory.root), pool };
            if pool > SETS + 2 || !self.geometry.is_entry(set.address, SIZES[pool]) {
                return Err(damaged());
            }
            return Ok(Some(Way { set, node: None, depth: 0, end: 1 << HASH_BITS }));
        }
        let mut node = node_of(directory.root);
        let mut above = 0;
        loop {
            if LEVEL_BITS * (above + 1) > HASH_BITS
                || !self.geometry.is_entry(node, SIZES[crate::format::pools::NODES])
            {
                return Err(damaged());
            }
            let at = node + index_of(hash, above) * 8;
            let seed = self.geometry.seed(node);
            let value = self.read_word(at, seed, || format!("the node at byte {node}"))?;
            if value & branch::SET == 0 {
                node = node_of(value);
                above += 1;
                continue;
            }
            let set = Set { address: node_of(value), pool: SETS + 2 };
            let depth = depth(value);
            if depth > LEVEL_BITS || !self.geometry.is_entry(set.address, SIZES[set.pool]) {
                return Err(damaged());
            }
            let low = HASH_BITS - LEVEL_BITS * above - depth;
            let end = ((hash >> low) + 1) << low;
            return Ok(Some(Way { set, node: Some((node, above)), depth, end }));
        }
    }

    /// A place of a set.
    pub(crate) fn read_place(&self, place: u64) -> Result<RawDentry> {
        let seed = self.geometry.seed(place);
        let mut bytes = [0; PLACE as usize];
        let is_valid = |bytes: &[u8]| {
            let raw = dentry_of(bytes);
            raw.head.checksum == raw.compute_checksum(seed)
        };
        self.read_entry(place, &mut bytes, is_valid, || format!("the name at byte {place}"))?;
        Ok(dentry_of(&bytes))
    }

    /// The name of a dentry.
    pub(crate) fn name_of(&self, raw: &RawDentry) -> Result<SmallVec<[u8; 40]>> {
        let len = usize::from(raw.name_len);
        if raw.flags & LONG_NAME == 0 {
            let name = raw.name.get(..len).ok_or_else(|| Error::corrupt("directory: a name"))?;
            return Ok(SmallVec::from_slice(name));
        }
        let bytes = self.read_bytes(long_name(raw), |_, _| {})?;
        if bytes.len() != len || bytes[..PREFIX] != raw.name[..PREFIX] {
            return Err(Error::corrupt("directory: a long name"));
        }
        Ok(SmallVec::from_vec(bytes))
    }

    fn is_name(&self, raw: &RawDentry, hash: u64, name: &[u8]) -> Result<bool> {
        if raw.cookie >> TIE_BITS != hash || raw.inode == 0 || usize::from(raw.name_len) != name.len() {
            return Ok(false);
        }
        if name.len() <= INLINE_NAME {
            return Ok(raw.name[..name.len()] == *name);
        }
        Ok(raw.name[..PREFIX] == name[..PREFIX] && self.name_of(raw)?[..] == *name)
    }

    /// Looks a name up in a directory, which is locked.
    pub(crate) fn find(&self, directory: Tree, name: &[u8]) -> Result<Option<Found>> {
        let hash = hash(name, self.hash_seed);
        let Some(Way { set, .. }) = self.way(directory, hash)? else { return Ok(None) };
        let places = set.places();
        for step in 0..places {
            let place = set.place((hash + step) % places);
            let raw = self.read_place(place)?;
            if raw.cookie == 0 {
                return Ok(None);
            }
            if self.is_name(&raw, hash, name)? {
                return Ok(Some(Found { volume: self.geometry.volume, place, raw }));
            }
        }
        Ok(None)
    }

    /// The names of a set, in no order.
    pub(crate) fn names_of(&self, set: Set) -> Result<Vec<RawDentry>> {
        let all = (0..set.places()).map(|index| self.read_place(set.place(index)));
        all.filter(|raw| raw.as_ref().map_or(true, |raw| raw.inode != 0)).collect()
    }

    /// At least `limit` entries behind the one with the cookie `after`, if there are as many.
    pub(crate) fn list(&self, directory: Tree, after: u64, limit: usize) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let mut hash = after >> TIE_BITS;
        while hash >> HASH_BITS == 0
            && listed.len() < limit
            && let Some(way) = self.way(directory, hash)?
        {
            let mut names = self.names_of(way.set)?;
            names.retain(|raw| raw.cookie > after);
            names.sort_unstable_by_key(|raw| raw.cookie);
            for raw in names {
                let name = self.name_of(&raw)?;
                let found = Found { volume: self.geometry.volume, place: 0, raw };
                listed.push(Listed { cookie: raw.cookie, name, id: found.id(), kind: found.kind()? });
            }
            hash = way.end;
        }
        Ok(listed)
    }

    /// Calls `visit` with each node and each set of a directory, a node after what is below it.
    pub(crate) fn for_each_part(&self, directory: Tree, visit: &mut PartVisitor<'_>) -> Result<()> {
        match self.way(directory, 0)? {
            None => Ok(()),
            Some(Way { set, node: None, .. }) => visit(Part::Set(set)),
            Some(_) => {
                let mut nodes_left = self.geometry.blocks();
                self.parts_below(node_of(directory.root), 0, &mut nodes_left, visit)
            }
        }
    }

    fn parts_below(
        &self,
        node: u64,
        above: u32,
        nodes_left: &mut u64,
        visit: &mut PartVisitor<'_>,
    ) -> Result<()> {
        *nodes_left = nodes_left.checked_sub(1).ok_or_else(|| again_and_again(node))?;
        if LEVEL_BITS * (above + 1) > HASH_BITS {
            return Err(Error::corrupt("the tree of a directory"));
        }
        let mut words = [0; NODE_WORDS];
        self.read_node(node, 0, &mut words)?;
        // Words that follow each other may lead to one set.
        for same in words.chunk_by(|first, second| first == second) {
            match same[0] {
                value if value & branch::SET != 0 => {
                    visit(Part::Set(Set { address: node_of(value), pool: SETS + 2 }))?;
                }
                value => self.parts_below(node_of(value), above + 1, nodes_left, visit)?,
            }
        }
        visit(Part::Node(node))
    }
}

/// A visitor of the parts of a directory.
pub(crate) type PartVisitor<'v> = dyn FnMut(Part) -> Result<()> + 'v;

/// A part of a directory.
pub(crate) enum Part {
    Set(Set),
    Node(u64),
}

/// Where a long name is.
pub(crate) fn long_name(raw: &RawDentry) -> u64 {
    let mut address = [0; 8];
    address.copy_from_slice(&raw.name[PREFIX..]);
    u64::from_le_bytes(address)
}

/// The cookie for a name of a hash, of which `ties` are taken. [`NoSpace`](nacre_engine::Kind::NoSpace) when all are.
pub(crate) fn cookie_for(hash: u64, ties: &[u8]) -> Result<u64> {
    let cookies = (hash << TIE_BITS..).take(1 << TIE_BITS);
    let mut free = cookies.filter(|cookie| *cookie >= FIRST_COOKIE && !ties.contains(&(*cookie as u8)));
    free.next()
        .ok_or_else(|| Error::no_space(Resource::Limit, 0).object("a directory with too many equal hashes"))
}

const _: () = assert!(word::NODE_SHIFT >= branch::ADDRESS_SHIFT);
