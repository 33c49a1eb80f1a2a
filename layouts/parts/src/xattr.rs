//! The extended attributes of an inode as a tree of blocks: leaves, in the order of names, and above them, where there
//! is more than one, an index, which is one block.
//!
//! A change writes the one leaf that it is in, or two in its place, and the index, to new blocks, beside those of a long
//! value. The layout commits the first block and frees the old ones. So a change's cost does not grow with the
//! attributes. When the index has no room for one more leaf, all leaves are written anew, as full as they can be, which
//! leaves room for a hundred splits.

pub mod format;

use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Resource, Result, XattrMode};
use nacre_media::{Flushed, Pm};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::alloc::Runs;
use crate::format::inode_seed;
use crate::rules::{MAX_NAME, check_xattr_mode};
use crate::tree::Bounds;
use format::{
    MAX_XATTR_SIZE, MAX_XATTR_TOTAL, RawXattr, RawXattrHeader, XATTR_HEADER, XATTR_INDEX_MAGIC, XATTR_INLINE,
    XATTR_LEAF_MAGIC, XATTR_LEAVES, XATTR_ROOM,
};

const RECORD: usize = size_of::<RawXattr>();

/// The inode that owns the attributes, and the media that they are read from.
pub struct Owner<'a, P> {
    /// The media.
    pub pm: &'a P,
    /// The blocks that attributes may have.
    pub bounds: Bounds,
    /// The inode's number.
    pub number: u64,
    /// The inode's generation.
    pub generation: u32,
    /// The seed of all checksums.
    pub seed: u32,
}

impl<'a, P: Pm> Owner<'a, P> {
    /// The inode of a number and a generation.
    pub fn new(pm: &'a P, bounds: Bounds, volume_seed: u32, number: u64, generation: u32) -> Owner<'a, P> {
        Owner { pm, bounds, number, generation, seed: inode_seed(volume_seed, number, generation) }
    }

    /// The error for damage of the attributes.
    pub fn damaged(&self) -> Error {
        Error::corrupt(format!("inode {}: extended attributes", self.number))
    }

    /// The block that a word leads to.
    pub fn block(&self, word: u64) -> Result<u64> {
        match self.bounds.block(word) {
            Ok(block) if block == word => Ok(block),
            _ => Err(self.damaged()),
        }
    }

    /// The header of a block, which is this inode's.
    pub fn header(&self, block: u64) -> Result<RawXattrHeader> {
        let mut header = RawXattrHeader::new_zeroed();
        self.pm.read(Block(block).offset(), header.as_mut_bytes())?;
        let is_own = header.inode == self.number && header.generation == self.generation;
        if is_own { Ok(header) } else { Err(self.damaged()) }
    }
}

/// A change of an inode's attributes on its way.
#[derive(Default)]
pub struct Change {
    /// The first block, or 0; before the change and then after it.
    pub place: u64,
    /// The blocks that it has written.
    pub allocated: Runs,
    /// Their flushes.
    pub pending: Option<Flushed>,
    /// The blocks that nothing leads to after its commit.
    pub freed: Vec<u64>,
}

/// The state of a layout that attributes change in.
pub trait XattrSpace {
    /// The media of attributes.
    type Media: Pm;

    /// The media.
    fn media(&self) -> &Self::Media;

    /// Writes bytes to new blocks; gives their numbers. The change takes the blocks and their flushes.
    fn put(&self, change: &mut Change, bytes: &[u8]) -> Result<Vec<u64>>;
}

/// One attribute of a leaf.
struct Record {
    name: Vec<u8>,
    value: Value,
}

enum Value {
    Here(Vec<u8>),
    /// In blocks of its own.
    Blocks {
        len: u32,
        checksum: u32,
        blocks: Vec<u64>,
    },
}

impl Record {
    /// A new one; a long value is written.
    fn write<S: XattrSpace>(space: &S, name: &[u8], value: &[u8], change: &mut Change) -> Result<Record> {
        let value = match value.len() {
            ..=XATTR_INLINE => Value::Here(value.to_vec()),
            len => Value::Blocks {
                len: len as u32,
                checksum: crc32c::crc32c(value),
                blocks: space.put(change, value)?,
            },
        };
        Ok(Record { name: name.to_vec(), value })
    }

    fn value_len(&self) -> usize {
        match &self.value {
            Value::Here(value) => value.len(),
            Value::Blocks { len, .. } => *len as usize,
        }
    }

    /// The blocks of its value, where it has some.
    fn blocks(&self) -> &[u64] {
        match &self.value {
            Value::Here(_) => &[],
            Value::Blocks { blocks, .. } => blocks,
        }
    }

    /// Bytes that it takes in its leaf.
    fn len(&self) -> usize {
        let value = match &self.value {
            Value::Here(value) => value.len(),
            Value::Blocks { blocks, .. } => 4 + blocks.len() * 8,
        };
        RECORD + self.name.len() + value
    }

    fn push_to(&self, bytes: &mut Vec<u8>) {
        let raw = RawXattr { name_len: self.name.len() as u32, value_len: self.value_len() as u32 };
        bytes.extend_from_slice(raw.as_bytes());
        bytes.extend_from_slice(&self.name);
        match &self.value {
            Value::Here(value) => bytes.extend_from_slice(value),
            Value::Blocks { checksum, blocks, .. } => {
                bytes.extend_from_slice(checksum.as_bytes());
                bytes.extend_from_slice(blocks.as_bytes());
            }
        }
    }

    /// The first record of `bytes`, and the bytes behind it; nothing when there is none.
    fn parse(bytes: &[u8]) -> Option<(Record, &[u8])> {
        let (raw, rest) = RawXattr::read_from_prefix(bytes).ok()?;
        let (name_len, value_len) = (raw.name_len as usize, raw.value_len as usize);
        if !(1..=MAX_NAME).contains(&name_len) || value_len > MAX_XATTR_SIZE {
            return None;
        }
        let (name, rest) = rest.split_at_checked(name_len)?;
        let (value, rest) = if value_len <= XATTR_INLINE {
            let (value, rest) = rest.split_at_checked(value_len)?;
            (Value::Here(value.to_vec()), rest)
        } else {
            let (checksum, rest) = rest.split_first_chunk::<4>()?;
            let (words, rest) = rest.split_at_checked(value_len.div_ceil(BLOCK_SIZE as usize) * 8)?;
            let (words, _) = words.as_chunks::<8>();
            let blocks = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            (Value::Blocks { len: raw.value_len, checksum: u32::from_le_bytes(*checksum), blocks }, rest)
        };
        Some((Record { name: name.to_vec(), value }, rest))
    }
}

/// The bytes that an attribute counts for in the limit of an inode.
fn counts(name: &[u8], value_len: usize) -> u64 {
    (RECORD + name.len() + value_len) as u64
}

fn counts_of(records: &[Record]) -> u64 {
    records.iter().map(|record| counts(&record.name, record.value_len())).sum()
}

/// The blocks of all attributes of an inode, except those of long values.
#[derive(Default)]
struct Tree {
    /// The block above the leaves, where there is more than one.
    index: Option<u64>,
    leaves: Vec<u64>,
    /// The bytes that all attributes count for.
    total: u64,
    /// The records of the leaf, if there is one only, until they are taken.
    only: Option<Vec<Record>>,
}

impl Tree {
    fn open<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Tree> {
        if place == 0 {
            return Ok(Tree::default());
        }
        let first = owner.block(place)?;
        let (header, behind) = read_block(owner, first)?;
        if header.magic == XATTR_LEAF_MAGIC {
            let records = records_of(owner, &header, &behind)?;
            let total = counts_of(&records);
            return Ok(Tree { index: None, leaves: vec![first], total, only: Some(records) });
        }
        let (words, _) = behind.as_chunks::<8>();
        let leaves = words.iter().map(|word| owner.block(u64::from_le_bytes(*word)));
        let leaves = leaves.collect::<Result<Vec<_>>>()?;
        if leaves.len() < 2 {
            return Err(owner.damaged());
        }
        Ok(Tree { index: Some(first), leaves, total: header.len, only: None })
    }

    /// The leaf that has a name, if any has it, and its records; the tree is not empty.
    fn leaf_of<P: Pm>(&mut self, owner: &Owner<'_, P>, name: &[u8]) -> Result<(usize, Vec<Record>)> {
        let (mut at, mut end, mut records) = (0, self.leaves.len(), self.only.take());
        while end - at > 1 {
            let middle = at.midpoint(end);
            let other = read_leaf(owner, self.leaves[middle])?;
            if other[0].name[..] <= *name {
                (at, records) = (middle, Some(other));
            } else {
                end = middle;
            }
        }
        let records = records.map_or_else(|| read_leaf(owner, self.leaves[at]), Ok)?;
        Ok((at, records))
    }
}

/// Reads a block of the tree, which validates; gives the bytes behind the header.
fn read_block<P: Pm>(owner: &Owner<'_, P>, block: u64) -> Result<(RawXattrHeader, Vec<u8>)> {
    let header = owner.header(block)?;
    let len = len_behind(&header).filter(|len| *len <= XATTR_ROOM).ok_or_else(|| owner.damaged())?;
    let mut behind = vec![0u8; len];
    owner.pm.read(Block(block).offset() + XATTR_HEADER as u64, &mut behind)?;
    if header.checksum != checksum(&header, owner.seed, &behind) {
        return Err(owner.damaged());
    }
    Ok((header, behind))
}

/// How many bytes there are behind a header; nothing when it is none of a tree.
fn len_behind(header: &RawXattrHeader) -> Option<usize> {
    match header.magic {
        XATTR_LEAF_MAGIC => usize::try_from(header.len).ok(),
        XATTR_INDEX_MAGIC => Some(header.count as usize * 8),
        _ => None,
    }
}

fn checksum(header: &RawXattrHeader, seed: u32, behind: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &header.as_bytes()[4..]), behind)
}

/// The records of a leaf: at least one, in the order of names.
fn records_of<P: Pm>(owner: &Owner<'_, P>, header: &RawXattrHeader, behind: &[u8]) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    let mut rest = behind;
    while !rest.is_empty() {
        let (record, after) = Record::parse(rest).ok_or_else(|| owner.damaged())?;
        record.blocks().iter().try_for_each(|&block| owner.block(block).map(drop))?;
        if records.last().is_some_and(|last| last.name >= record.name) {
            return Err(owner.damaged());
        }
        records.push(record);
        rest = after;
    }
    let is_right = !records.is_empty() && records.len() == header.count as usize;
    if is_right { Ok(records) } else { Err(owner.damaged()) }
}

fn read_leaf<P: Pm>(owner: &Owner<'_, P>, block: u64) -> Result<Vec<Record>> {
    let (header, behind) = read_block(owner, block)?;
    if header.magic != XATTR_LEAF_MAGIC {
        return Err(owner.damaged());
    }
    records_of(owner, &header, &behind)
}

fn read_value<P: Pm>(owner: &Owner<'_, P>, record: &Record) -> Result<Vec<u8>> {
    match &record.value {
        Value::Here(value) => Ok(value.clone()),
        Value::Blocks { len, checksum, blocks } => {
            let mut value = vec![0u8; *len as usize];
            for (&block, part) in blocks.iter().zip(value.chunks_mut(BLOCK_SIZE as usize)) {
                owner.pm.read(Block(block).offset(), part)?;
            }
            if crc32c::crc32c(&value) == *checksum { Ok(value) } else { Err(owner.damaged()) }
        }
    }
}

/// Writes a block of the tree.
fn write_block<S: XattrSpace>(
    space: &S,
    owner: &Owner<'_, S::Media>,
    (magic, count, len): (u32, usize, u64),
    behind: &[u8],
    change: &mut Change,
) -> Result<u64> {
    debug_assert!(behind.len() <= XATTR_ROOM);
    let mut header = RawXattrHeader {
        magic,
        inode: owner.number,
        generation: owner.generation,
        count: count as u32,
        len,
        ..RawXattrHeader::default()
    };
    header.checksum = checksum(&header, owner.seed, behind);
    let mut page = [header.as_bytes(), behind].concat();
    page.resize(page.len().next_multiple_of(64), 0);
    Ok(space.put(change, &page)?[0])
}

/// Writes leaves, of which each takes a part of the records; gives their blocks.
fn write_leaves<S: XattrSpace>(
    space: &S,
    owner: &Owner<'_, S::Media>,
    parts: &[&[Record]],
    change: &mut Change,
) -> Result<Vec<u64>> {
    let mut bytes = Vec::new();
    let mut write = |records: &&[Record]| {
        bytes.clear();
        records.iter().for_each(|record| record.push_to(&mut bytes));
        write_block(space, owner, (XATTR_LEAF_MAGIC, records.len(), bytes.len() as u64), &bytes, change)
    };
    parts.iter().map(&mut write).collect()
}

/// Writes the index of leaves, where one is needed; the change takes the first block.
fn write_index<S: XattrSpace>(
    space: &S,
    owner: &Owner<'_, S::Media>,
    leaves: &[u64],
    total: u64,
    change: &mut Change,
) -> Result<()> {
    change.place = match leaves {
        [] => 0,
        [leaf] => *leaf,
        // More than the limit of an inode fills: the index that was read lied about that.
        leaves if leaves.len() > XATTR_LEAVES => return Err(owner.damaged()),
        leaves => {
            write_block(space, owner, (XATTR_INDEX_MAGIC, leaves.len(), total), leaves.as_bytes(), change)?
        }
    };
    Ok(())
}

/// The records of one leaf after a change of one: in two parts of about the same size where one has no room for them.
fn halves(records: &[Record]) -> Vec<&[Record]> {
    let len: usize = records.iter().map(Record::len).sum();
    if records.is_empty() {
        return Vec::new();
    }
    if len <= XATTR_ROOM {
        return vec![records];
    }
    let mut first = 0;
    let middle = records.iter().take_while(|record| {
        let goes_on = first < len / 2;
        first += record.len();
        goes_on
    });
    let (one, other) = records.split_at(middle.count());
    vec![one, other]
}

/// Records in as few parts as there are leaves needed for them.
fn packed(records: &[Record]) -> Vec<&[Record]> {
    let mut len = 0;
    records
        .chunk_by(|record, next| {
            len += record.len();
            let fits = len + next.len() <= XATTR_ROOM;
            len = if fits { len } else { 0 };
            fits
        })
        .collect()
}

/// Writes the attributes of an inode that has none.
pub fn write_all<S: XattrSpace>(
    space: &S,
    owner: &Owner<'_, S::Media>,
    xattrs: &[(&[u8], &[u8])],
    change: &mut Change,
) -> Result<()> {
    let mut sorted = xattrs.to_vec();
    sorted.sort_by_key(|(name, _)| *name); // stable: the last value of a name comes last
    let total: u64 = sorted.iter().map(|(name, value)| counts(name, value.len())).sum();
    if total > MAX_XATTR_TOTAL as u64 {
        return Err(Error::no_space(Resource::Limit, 0));
    }
    let last = sorted.chunk_by(|one, next| one.0 == next.0).filter_map(|same| same.last());
    let records = last.map(|(name, value)| Record::write(space, name, value, change));
    let records = records.collect::<Result<Vec<_>>>()?;
    let leaves = write_leaves(space, owner, &packed(&records), change)?;
    write_index(space, owner, &leaves, counts_of(&records), change)
}

/// Sets an attribute, or removes it.
pub fn change<S: XattrSpace>(
    space: &S,
    owner: &Owner<'_, S::Media>,
    name: &[u8],
    value: Option<(&[u8], XattrMode)>,
    change: &mut Change,
) -> Result<()> {
    let mut tree = Tree::open(owner, change.place)?;
    let (at, mut records) = match tree.leaves.is_empty() {
        true => (0, Vec::new()),
        false => tree.leaf_of(owner, name)?,
    };
    let position = records.binary_search_by(|record| record.name[..].cmp(name));
    let old = position.ok().map(|position| &records[position]);
    let left = tree.total.checked_sub(old.map_or(0, |old| counts(name, old.value_len())));
    let mut total = left.ok_or_else(|| owner.damaged())?;
    change.freed.extend(old.map_or(&[][..], Record::blocks));
    match value {
        Some((value, how)) => {
            check_xattr_mode(how, position.is_ok())?;
            total += counts(name, value.len());
            if total > MAX_XATTR_TOTAL as u64 {
                return Err(Error::no_space(Resource::Limit, 0));
            }
            let record = Record::write(space, name, value, change)?;
            match position {
                Ok(position) => records[position] = record,
                Err(position) => records.insert(position, record),
            }
        }
        None => {
            records.remove(position.map_err(|_| Error::new(Kind::NoAttribute))?);
        }
    }
    change.freed.extend(tree.index);
    let mut leaves = tree.leaves;
    let replaced = at..(at + 1).min(leaves.len());
    let parts = halves(&records);
    if leaves.len() - replaced.len() + parts.len() > XATTR_LEAVES {
        let mut all = Vec::new();
        for &leaf in &leaves[..at] {
            all.extend(read_leaf(owner, leaf)?);
        }
        all.extend(records);
        for &leaf in &leaves[replaced.end..] {
            all.extend(read_leaf(owner, leaf)?);
        }
        change.freed.extend(&leaves);
        leaves = write_leaves(space, owner, &packed(&all), change)?;
    } else {
        let written = write_leaves(space, owner, &parts, change)?;
        change.freed.extend(leaves.splice(replaced, written));
    }
    write_index(space, owner, &leaves, total, change)
}

/// The value of an attribute.
pub fn get<P: Pm>(owner: &Owner<'_, P>, place: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let (_, records) = Tree::open(owner, place)?.leaf_of(owner, name)?;
    let found = records.iter().find(|record| record.name == name);
    found.map(|record| read_value(owner, record)).transpose()
}

/// The names of all attributes.
pub fn names<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for leaf in Tree::open(owner, place)?.leaves {
        names.extend(read_leaf(owner, leaf)?.into_iter().map(|record| record.name));
    }
    Ok(names)
}

/// The index and the leaves.
pub fn nodes_of<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Vec<u64>> {
    let tree = Tree::open(owner, place)?;
    Ok(tree.index.into_iter().chain(tree.leaves).collect())
}

/// The blocks, as far as they can be found.
pub fn places_of<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Vec<u64>> {
    let tree = Tree::open(owner, place)?;
    let mut blocks: Vec<u64> = tree.index.into_iter().collect();
    for leaf in tree.leaves {
        blocks.push(leaf);
        let records = read_leaf(owner, leaf).unwrap_or_default();
        blocks.extend(records.iter().flat_map(Record::blocks));
    }
    Ok(blocks)
}

/// The blocks, everything in which validates.
pub fn blocks_of<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Vec<u64>> {
    let tree = Tree::open(owner, place)?;
    let mut blocks: Vec<u64> = tree.index.into_iter().collect();
    let (mut total, mut last) = (0, Vec::new());
    for leaf in tree.leaves {
        blocks.push(leaf);
        for record in read_leaf(owner, leaf)? {
            read_value(owner, &record)?;
            if record.name <= last {
                return Err(owner.damaged());
            }
            total += counts(&record.name, record.value_len());
            blocks.extend(record.blocks());
            last = record.name;
        }
    }
    if total == tree.total && total <= MAX_XATTR_TOTAL as u64 { Ok(blocks) } else { Err(owner.damaged()) }
}

/// Makes a block of a tree validate again after a change of its contents.
pub fn reseal(block: &mut [u8], volume_seed: u32, number: u64) {
    let mut header = RawXattrHeader::new_zeroed();
    header.as_mut_bytes().copy_from_slice(&block[..XATTR_HEADER]);
    let Some(behind) = len_behind(&header).and_then(|len| block[XATTR_HEADER..].get(..len)) else { return };
    header.checksum = checksum(&header, inode_seed(volume_seed, number, header.generation), behind);
    block[..XATTR_HEADER].copy_from_slice(header.as_bytes());
}
