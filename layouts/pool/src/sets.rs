//! Changing the names of a directory. A set that is full is replaced by a larger one, or by two that each have a half
//! of its hashes.

use nacre_engine::{Error, FileKind, InodeId, Kind, Resource, Result};
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::blockmap::Tree;
use crate::commit::Change;
use crate::counts::Purpose;
use crate::directory::{
    Found, HASH_BITS, PLACE, Part, Set, TIE_BITS, Way, cookie_for, hash, index_of, long_name, node_word,
    set_word,
};
use crate::format::pools::{NAMES, NODES, SETS};
use crate::format::{
    INLINE_NAME, LEVEL_BITS, LONG_NAME, NODE_WORDS, PREFIX, RawDentry, RawHead, seal_any, status,
};
use crate::fs::Shared;
use crate::inode::{MAX_LINKS, miscounted};
use crate::seeded::Mistake;

/// Of so many places of a set, one less is used before a larger one takes its place.
const SPARE: u64 = 8;

/// A set that is about to be written: its places.
struct New {
    set: Set,
    places: Vec<RawDentry>,
}

/// A name and the inode that it will refer to.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) id: InodeId,
    pub(crate) kind: FileKind,
}

impl New {
    /// Puts a name of the old set, of which there are no more than places.
    fn put(&mut self, raw: RawDentry) {
        let hash = raw.cookie >> TIE_BITS;
        let count = self.places.len() as u64;
        let places = (0..count).map(|step| ((hash + step) % count) as usize);
        if let Some(at) = { places }.find(|&at| self.places[at].cookie == 0) {
            self.places[at] = raw;
        }
    }
}

/// 1 for the kind of a directory.
fn is_directory(kind: u8) -> u32 {
    u32::from(kind == FileKind::Directory as u8)
}

/// A dentry with its head and checksum, for a place.
pub(crate) fn sealed(mut raw: RawDentry, seed: u32, pool: usize, sequence: u16) -> RawDentry {
    let status = if raw.inode == 0 { status::UNUSED } else { status::CONSISTENT };
    raw.head = RawHead { status, pool: pool as u8, sequence, checksum: 0 };
    raw.head.checksum = raw.compute_checksum(seed);
    raw
}

impl<P: Pm> Change<'_, P> {
    /// The place of a set becomes this.
    fn put_place(&mut self, place: u64, raw: RawDentry, sequence: u16) {
        let raw = sealed(raw, self.fs.geometry.seed(place), SETS, sequence.wrapping_add(1));
        self.item(place, raw.as_bytes());
    }

    /// Adds a name that is not there. There is room for it ([`Shared::make_room`]).
    pub(crate) fn add_name(&mut self, dir: u64, entry: &Entry<'_>, purpose: Purpose) -> Result<()> {
        let raw = *self.edit(dir)?;
        let directory = self.fs.directory(dir, &raw)?;
        let hash = hash(entry.name, self.fs.hash_seed);
        let room = self.fs.room(directory, raw.entries, hash)?;
        let Room::Free { place, sequence, ties } = room else {
            return Err(Error::corrupt(format!("directory {dir}: a set that was made has no room")));
        };
        let mut dentry = self.new_dentry(entry, purpose)?;
        dentry.cookie = cookie_for(hash, &ties)?;
        self.put_place(place, dentry, sequence);
        let inode = self.edit(dir)?;
        let subdirectories = inode.subdirectories + is_directory(entry.kind as u8);
        if subdirectories > MAX_LINKS {
            return Err(Error::new(Kind::TooManyLinks));
        }
        (inode.entries, inode.subdirectories) = (inode.entries + 1, subdirectories);
        Ok(())
    }

    /// A dentry without its cookie; a long name is written to an entry.
    fn new_dentry(&mut self, entry: &Entry<'_>, purpose: Purpose) -> Result<RawDentry> {
        let mut raw = RawDentry {
            inode: entry.id.number,
            generation: entry.id.generation,
            kind: entry.kind as u8,
            name_len: entry.name.len() as u8,
            ..RawDentry::default()
        };
        if entry.name.len() <= INLINE_NAME {
            raw.name[..entry.name.len()].copy_from_slice(entry.name);
        } else {
            let address = self.write_bytes(entry.name, NAMES, purpose)?;
            raw.flags = LONG_NAME;
            raw.name[..PREFIX].copy_from_slice(&entry.name[..PREFIX]);
            raw.name[PREFIX..].copy_from_slice(&address.to_le_bytes());
        }
        Ok(raw)
    }

    fn new_set(&mut self, pool: usize, purpose: Purpose) -> Result<New> {
        let set = Set { address: self.entry(pool, purpose)?, pool };
        Ok(New { set, places: vec![RawDentry::default(); set.places() as usize] })
    }

    /// Words of a directory's node that are lost, in order, lead to new sets without names. No set of another word of
    /// the node is for their hashes.
    pub(crate) fn put_empty_sets(&mut self, node: u64, lost: &[u64]) -> Result<()> {
        let mut rest = lost;
        while let Some(&first) = rest.first() {
            // As many words as can lead to one set: an aligned power of two.
            let span = |depth: u32| 1 << (LEVEL_BITS - depth);
            let are_lost = |depth: &u32| {
                let span: u64 = span(*depth);
                let last = rest.get(span as usize - 1);
                first.is_multiple_of(span) && last == Some(&(first + span - 1))
            };
            let depth = (0..=LEVEL_BITS).find(are_lost).unwrap_or(LEVEL_BITS);
            let new = self.new_set(SETS + 2, Purpose::Metadata)?;
            self.write_set(&new)?;
            let count = span(depth) as usize;
            let words = self.sealed_words(node, &vec![set_word(new.set, depth); count]);
            self.item(node + first * 8, words.as_bytes());
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Writes a set to which nothing leads yet.
    fn write_set(&mut self, new: &New) -> Result<()> {
        let mut bytes = Vec::with_capacity(new.places.len() * PLACE as usize);
        for (index, raw) in (0..).zip(&new.places) {
            let seed = self.fs.geometry.seed(new.set.place(index));
            bytes.extend_from_slice(sealed(*raw, seed, new.set.pool, 0).as_bytes());
        }
        self.write_new(new.set.address, &bytes)
    }
}

/// Room for a name.
enum Room {
    /// A free place, its sequence, and the ties of names with the same hash.
    Free { place: u64, sequence: u16, ties: Vec<u8> },
    /// The set has none.
    Full(Way),
    /// The directory has no set.
    NoSet,
}

impl<P: Pm> Shared<P> {
    /// Where a name of a hash can be put, in a directory with so many names.
    fn room(&self, directory: Tree, entries: u64, hash: u64) -> Result<Room> {
        let Some(way) = self.way(directory, hash)? else { return Ok(Room::NoSet) };
        let places = way.set.places();
        if way.node.is_none() && entries >= places - places / SPARE {
            return Ok(Room::Full(way));
        }
        let (mut free, mut ties) = (None, Vec::new());
        for step in 0..places {
            let place = way.set.place((hash + step) % places);
            let raw = self.read_place(place)?;
            if raw.inode == 0 {
                free.get_or_insert((place, raw.head.sequence));
            } else if raw.cookie >> TIE_BITS == hash {
                ties.push(raw.cookie as u8);
            }
            if raw.cookie == 0 {
                break;
            }
        }
        Ok(match free {
            Some((place, sequence)) => Room::Free { place, sequence, ties },
            None => Room::Full(way),
        })
    }

    /// Makes room for a name in a directory, which is locked. A set that is full is split in operations of their own,
    /// which change nothing that a user sees.
    pub(crate) fn make_room(&self, dir: u64, name: &[u8], purpose: Purpose) -> Result<()> {
        let hash = hash(name, self.hash_seed);
        loop {
            let raw = self.read_inode(dir)?;
            let room = self.room(self.directory(dir, &raw)?, raw.entries, hash)?;
            if matches!(room, Room::Free { .. }) {
                return Ok(());
            }
            self.change(|change| {
                match &room {
                    Room::Full(way) => change.grow(dir, way, hash, purpose)?,
                    _ => {
                        let new = change.new_set(SETS, purpose)?;
                        change.write_set(&new)?;
                        change.set_root(dir, 0, set_word(new.set, 0))?;
                    }
                }
                change.commit()
            })?;
        }
    }
}

/// More room in place of a set that has none.
impl<P: Pm> Change<'_, P> {
    fn grow(&mut self, dir: u64, way: &Way, hash: u64, purpose: Purpose) -> Result<()> {
        let names = self.fs.names_of(way.set)?;
        let old = way.set;
        match way.node {
            // The next class of sets.
            None if old.pool < SETS + 2 => {
                let mut new = self.new_set(old.pool + 1, purpose)?;
                names.into_iter().for_each(|raw| new.put(raw));
                self.set_root(dir, 0, set_word(new.set, (new.set.pool - SETS) as u32))?;
                if Mistake::SetSwappedEarly.is_made(&*self.fs.pm) {
                    self.put_inodes();
                    self.commit_part()?;
                }
                self.write_set(&new)?;
            }
            None => {
                let node = self.new_branch(&names, 0, purpose)?;
                self.set_root(dir, 1, node_word(node))?;
            }
            Some((node, above)) => {
                let span = 1 << (LEVEL_BITS - way.depth);
                let first = index_of(hash, above) / span * span;
                let mut words = vec![0; span as usize];
                if way.depth == LEVEL_BITS {
                    // All bits of this node are taken.
                    words[0] = node_word(self.new_branch(&names, above + 1, purpose)?);
                } else {
                    self.split(&names, above, (first, way.depth), &mut words, purpose)?;
                }
                let words = self.sealed_words(node, &words);
                self.item(node + first * 8, words.as_bytes());
                if Mistake::SplitInSteps.is_made(&*self.fs.pm) {
                    // The old set is empty before the new ones take its place.
                    self.clear_set(old)?;
                }
            }
        }
        self.free_entry(old.pool, old.address)
    }

    /// A mistake on purpose: an operation of its own removes what another one has not copied yet.
    fn clear_set(&mut self, set: Set) -> Result<()> {
        for index in 0..set.places() {
            let place = set.place(index);
            let seed = self.fs.geometry.seed(place);
            for copy in [place, self.fs.geometry.twin(place)] {
                let cleared =
                    self.fs.pm.copy(copy, sealed(RawDentry::default(), seed, SETS, 0).as_bytes())?;
                self.fs.pm.fence(cleared);
            }
        }
        Ok(())
    }

    fn sealed_words(&self, node: u64, words: &[u64]) -> Vec<u64> {
        let seed = self.fs.geometry.seed(node);
        words.iter().map(|word| seal_any(*word, seed)).collect()
    }

    /// A new node for names of which the nodes above have taken bits of the hash.
    fn new_branch(&mut self, names: &[RawDentry], above: u32, purpose: Purpose) -> Result<u64> {
        if LEVEL_BITS * (above + 1) > HASH_BITS {
            return Err(Error::no_space(Resource::Limit, 0).object("a directory with too many equal hashes"));
        }
        let mut words = vec![0; NODE_WORDS];
        self.split(names, above, (0, 0), &mut words, purpose)?;
        let node = self.entry(NODES, purpose)?;
        let words = self.sealed_words(node, &words);
        self.write_new(node, words.as_bytes())?;
        Ok(node)
    }

    /// Two new sets for the names of a node's words from `first` on, which have `depth` bits in common.
    fn split(
        &mut self,
        names: &[RawDentry],
        above: u32,
        (first, depth): (u64, u32),
        words: &mut [u64],
        purpose: Purpose,
    ) -> Result<()> {
        let (low, high) = words.split_at_mut(words.len() / 2);
        let middle = first + low.len() as u64;
        let is_low = |raw: &&RawDentry| index_of(raw.cookie >> TIE_BITS, above) < middle;
        let (left, right): (Vec<&RawDentry>, Vec<&RawDentry>) = names.iter().partition(is_low);
        for (part, names) in [(low, left), (high, right)] {
            let mut new = self.new_set(SETS + 2, purpose)?;
            names.into_iter().for_each(|raw| new.put(*raw));
            self.write_set(&new)?;
            part.fill(set_word(new.set, depth + 1));
        }
        Ok(())
    }

    /// Removes a name. `keeps_mark` if the operation adds another one, which may be found by way of its place.
    pub(crate) fn remove_name(&mut self, dir: u64, found: &Found, keeps_mark: bool) -> Result<()> {
        if found.raw.flags & LONG_NAME != 0 {
            self.free_bytes(long_name(&found.raw))?;
        }
        // A search that ended here would not find the names behind it, unless there are none.
        let is_last = !keeps_mark && self.fs.read_place(self.next_place(dir, found)?)?.cookie == 0;
        let cookie = if is_last { 0 } else { found.raw.cookie };
        self.put_place(found.place, RawDentry { cookie, ..RawDentry::default() }, found.raw.head.sequence);
        let inode = self.edit(dir)?;
        let subdirectories = inode.subdirectories.checked_sub(is_directory(found.raw.kind));
        let fewer = inode.entries.checked_sub(1).zip(subdirectories);
        (inode.entries, inode.subdirectories) = fewer.ok_or_else(|| miscounted(dir))?;
        Ok(())
    }

    fn next_place(&mut self, dir: u64, found: &Found) -> Result<u64> {
        let raw = *self.edit(dir)?;
        let directory = self.fs.directory(dir, &raw)?;
        let way = self.fs.way(directory, found.raw.cookie >> TIE_BITS)?;
        let Some(Way { set, .. }) = way else { return Ok(found.place) };
        let index = (found.place - set.address) / PLACE;
        Ok(set.place((index + 1) % set.places()))
    }

    /// A name refers to another inode from now on.
    pub(crate) fn replace_name(&mut self, dir: u64, found: &Found, entry: &Entry<'_>) -> Result<()> {
        let raw = RawDentry {
            inode: entry.id.number,
            generation: entry.id.generation,
            kind: entry.kind as u8,
            ..found.raw
        };
        self.put_place(found.place, raw, found.raw.head.sequence);
        let inode = self.edit(dir)?;
        inode.subdirectories = inode.subdirectories + is_directory(raw.kind) - is_directory(found.raw.kind);
        Ok(())
    }

    /// Frees all sets and nodes of a directory without names.
    pub(crate) fn free_directory(&mut self, directory: Tree) -> Result<()> {
        let mut parts = Vec::new();
        self.fs.for_each_part(directory, &mut |part| {
            parts.push(part);
            Ok(())
        })?;
        parts.into_iter().try_for_each(|part| match part {
            Part::Set(set) => self.free_entry(set.pool, set.address),
            Part::Node(node) => self.free_entry(NODES, node),
        })
    }
}

const _: () = assert!(HASH_BITS.is_multiple_of(LEVEL_BITS));
