//! Extended attributes: all of an inode's together in blocks of their own, written anew with each change.
//!
//! The inode's word leads to the first block; a change writes other blocks, commits the word, and frees the old ones.

use nacre_engine::{Attr, BLOCK_SIZE, Block, Error, Kind, Result, Timestamp, XattrMode};
use nacre_media::{Flushed, Pm};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::alloc::{Purpose, Run, Runs};
use crate::blockmap::Bounds;
use crate::commit::{Transaction, join};
use crate::format::{
    MAX_XATTR_SIZE, RawXattr, RawXattrHeader, XATTR_MAGIC, XATTR_ROOM, inode_seed, tree, word,
};
use crate::fs::Shared;
use crate::inode::Inode;

/// The longest name.
const MAX_NAME: usize = 255;
/// Bytes that all names and values of an inode may take together, with what stands before each.
const MAX_TOTAL: usize = 1 << 20;
const HEADER: usize = size_of::<RawXattrHeader>();

/// Attributes in the order in which they were set.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Checks a name and a value before anything is written.
pub(crate) fn check(name: &[u8], value: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(Error::new(Kind::BufferTooSmall));
    }
    if value.len() > MAX_XATTR_SIZE {
        return Err(Error::new(Kind::TooBig));
    }
    Ok(())
}

/// Bytes behind a payload of this length that are in the first block, and the other blocks that it needs.
fn blocks_for(len: usize) -> u64 {
    if len <= XATTR_ROOM { 0 } else { (len as u64).div_ceil(BLOCK_SIZE) }
}

/// Writes attributes to new blocks; gives the first of them. `runs` takes what was allocated.
pub(crate) fn write<P: Pm>(
    fs: &Shared<P>,
    number: u64,
    generation: u32,
    xattrs: &[(&[u8], &[u8])],
    runs: &mut Runs,
    pending: &mut Option<Flushed>,
) -> Result<u64> {
    let mut payload = Vec::new();
    for (name, value) in xattrs {
        let raw = RawXattr { name_len: name.len() as u32, value_len: value.len() as u32 };
        payload.extend_from_slice(raw.as_bytes());
        payload.extend_from_slice(name);
        payload.extend_from_slice(value);
    }
    if payload.len() > MAX_TOTAL {
        return Err(Error::new(Kind::NoSpace));
    }
    let others = blocks_for(payload.len());
    fs.allocate(None, 1 + others, Purpose::Data, runs)?;
    let blocks: Vec<u64> = runs.iter().flat_map(|run| run.start.0..run.start.0 + run.len).collect();
    let mut page = vec![0u8; BLOCK_SIZE as usize];
    let behind = if others == 0 { payload.clone() } else { blocks[1..].as_bytes().to_vec() };
    page[HEADER..HEADER + behind.len()].copy_from_slice(&behind);
    let mut header = RawXattrHeader {
        magic: XATTR_MAGIC,
        inode: number,
        generation,
        count: xattrs.len() as u32,
        len: payload.len() as u64,
        ..RawXattrHeader::default()
    };
    header.checksum = checksum(&header, fs.seed, number, &behind, &payload);
    page[..HEADER].copy_from_slice(header.as_bytes());
    let used = (HEADER + behind.len()).next_multiple_of(64);
    *pending = join(pending.take(), fs.pm.copy(Block(blocks[0]).offset(), &page[..used])?);
    if others > 0 {
        for (&block, part) in blocks[1..].iter().zip(payload.chunks(BLOCK_SIZE as usize)) {
            *pending = join(pending.take(), fs.pm.copy(Block(block).offset(), part)?);
        }
    }
    Ok(blocks[0])
}

fn checksum(header: &RawXattrHeader, volume_seed: u32, number: u64, behind: &[u8], payload: &[u8]) -> u32 {
    let seed = inode_seed(volume_seed, number, header.generation);
    let seed = crc32c::crc32c_append(seed, &header.as_bytes()[4..]);
    crc32c::crc32c_append(crc32c::crc32c_append(seed, behind), payload)
}

/// Reads the first block at `place` and the numbers of the others.
fn open(
    pm: &impl Pm,
    bounds: Bounds,
    number: u64,
    generation: u32,
    place: u64,
) -> Result<(RawXattrHeader, Vec<u8>, Vec<u64>)> {
    let damaged = || Error::corrupt(format!("inode {number}: extended attributes"));
    let first = bounds.block(place).map_err(|_| damaged())?;
    let mut header = RawXattrHeader::new_zeroed();
    pm.read(Block(first).offset(), header.as_mut_bytes())?;
    let is_right = header.magic == XATTR_MAGIC && header.inode == number && header.generation == generation;
    if !is_right || header.len > MAX_TOTAL as u64 || place & tree::UNWRITTEN != 0 {
        return Err(damaged());
    }
    let others = blocks_for(header.len as usize);
    let behind = if others == 0 { header.len } else { others * 8 };
    if behind > XATTR_ROOM as u64 {
        return Err(damaged());
    }
    let mut bytes = vec![0u8; behind as usize];
    pm.read(Block(first).offset() + HEADER as u64, &mut bytes)?;
    let mut blocks = vec![first];
    if others > 0 {
        for word in bytes.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            blocks.push(bounds.block(word).map_err(|_| damaged())?);
        }
    }
    Ok((header, bytes, blocks))
}

/// The blocks of an inode's attributes, which need not be readable but for the first.
pub(crate) fn places_of(
    pm: &impl Pm,
    bounds: Bounds,
    number: u64,
    generation: u32,
    place: u64,
) -> Result<Vec<u64>> {
    open(pm, bounds, number, generation, place).map(|(_, _, blocks)| blocks)
}

/// The blocks of an inode's attributes, all of which validate.
pub(crate) fn blocks_of(
    pm: &impl Pm,
    bounds: Bounds,
    volume_seed: u32,
    number: u64,
    generation: u32,
    place: u64,
) -> Result<Vec<u64>> {
    read_blocks(pm, bounds, volume_seed, number, generation, place).map(|(_, _, blocks)| blocks)
}

/// Reads and validates everything: how many attributes, their bytes, and the blocks.
fn read_blocks(
    pm: &impl Pm,
    bounds: Bounds,
    volume_seed: u32,
    number: u64,
    generation: u32,
    place: u64,
) -> Result<(u32, Vec<u8>, Vec<u64>)> {
    let (header, behind, blocks) = open(pm, bounds, number, generation, place)?;
    let payload = match &blocks[1..] {
        [] => behind.clone(),
        others => {
            let mut payload = vec![0u8; header.len as usize];
            for (&block, part) in others.iter().zip(payload.chunks_mut(BLOCK_SIZE as usize)) {
                pm.read(Block(block).offset(), part)?;
            }
            payload
        }
    };
    if header.checksum != checksum(&header, volume_seed, number, &behind, &payload) {
        return Err(Error::corrupt(format!("inode {number}: extended attributes")));
    }
    Ok((header.count, payload, blocks))
}

impl<P: Pm> Shared<P> {
    /// All attributes, and the blocks that they are in. The inode is locked.
    fn xattrs(&self, inode: &Inode, place: u64) -> Result<(Xattrs, Vec<u64>)> {
        if place == 0 {
            return Ok((Xattrs::new(), Vec::new()));
        }
        let (count, payload, blocks) =
            read_blocks(&*self.pm, self.bounds, self.seed, inode.number, inode.generation, place)?;
        let damaged = || Error::corrupt(format!("inode {}: extended attributes", inode.number));
        let mut xattrs = Xattrs::new();
        let mut rest = &payload[..];
        for _ in 0..count {
            let (raw, after) = RawXattr::read_from_prefix(rest).map_err(|_| damaged())?;
            let (name, value) = (raw.name_len as usize, raw.value_len as usize);
            let name = after.get(..name).ok_or_else(damaged)?;
            let value = after.get(name.len()..name.len() + value).ok_or_else(damaged)?;
            xattrs.push((name.to_vec(), value.to_vec()));
            rest = &after[name.len() + value.len()..];
        }
        Ok((xattrs, blocks))
    }

    pub(crate) fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let body = inode.body.read();
        let (xattrs, _) = self.xattrs(inode, body.xattrs)?;
        let found = xattrs.into_iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value).ok_or(Error::new(Kind::NoAttribute))
    }

    pub(crate) fn list_xattrs(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let body = inode.body.read();
        let (xattrs, _) = self.xattrs(inode, body.xattrs)?;
        Ok(xattrs.into_iter().map(|(name, _)| name).collect())
    }

    pub(crate) fn set_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        check(name, value)?;
        inode.check_flags(Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
        self.change_xattrs(inode, mode, now, |xattrs| {
            let position = xattrs.iter().position(|(other, _)| other == name);
            match (how, position) {
                (XattrMode::Create, Some(_)) => return Err(Error::new(Kind::Exists)),
                (XattrMode::Replace, None) => return Err(Error::new(Kind::NoAttribute)),
                (_, Some(position)) => xattrs[position].1 = value.to_vec(),
                (_, None) => xattrs.push((name.to_vec(), value.to_vec())),
            }
            Ok(())
        })
    }

    pub(crate) fn remove_xattr(&self, inode: &Inode, name: &[u8], now: Timestamp) -> Result<()> {
        check(name, &[])?;
        inode.check_flags(Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
        self.change_xattrs(inode, None, now, |xattrs| {
            let position = xattrs.iter().position(|(other, _)| other == name);
            xattrs.remove(position.ok_or(Error::new(Kind::NoAttribute))?);
            Ok(())
        })
    }

    fn change_xattrs(
        &self,
        inode: &Inode,
        mode: Option<u32>,
        now: Timestamp,
        change: impl FnOnce(&mut Xattrs) -> Result<()>,
    ) -> Result<()> {
        let mut body = inode.body.write();
        let (mut xattrs, old) = self.xattrs(inode, body.xattrs)?;
        change(&mut xattrs)?;
        let mut runs = Runs::new();
        let mut pending = None;
        let mut transaction = Transaction::default();
        let list: Vec<(&[u8], &[u8])> =
            xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        let place = match list.is_empty() {
            true => Ok(0),
            false => write(self, inode.number, inode.generation, &list, &mut runs, &mut pending),
        };
        let mut attributes = inode.attr.get();
        attributes.mode = mode.map_or(attributes.mode, |mode| (mode & 0o7777) as u16);
        let result = place.and_then(|place| {
            transaction.word(inode.address + word::XATTRS, place);
            inode.put_changed(&mut transaction, now);
            transaction.word(inode.address + word::MODE, crate::space::mode_word(&attributes));
            self.commit(transaction, pending).map(|()| place)
        });
        match result {
            Ok(place) => {
                body.xattrs = place;
                for block in old {
                    self.alloc.free(Run { start: Block(block), len: 1 });
                }
                inode.attr.lock().mode = attributes.mode;
                inode.changed(now);
                Ok(())
            }
            Err(error) => {
                if !self.is_broken() {
                    self.free_runs(&runs);
                }
                Err(error)
            }
        }
    }
}
