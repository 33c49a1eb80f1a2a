//! The attributes of an inode as version 1 has them: all together, and written anew with each change.

use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Resource, Result, XattrMode};
use nacre_layout_parts::rules::check_xattr_mode;
use nacre_layout_parts::xattr::format::{
    MAX_XATTR_TOTAL, RawXattr, RawXattrHeader, XATTR_HEADER, XATTR_ROOM,
};
use nacre_layout_parts::xattr::{Change, Owner, XattrSpace};
use nacre_media::Pm;
use zerocopy::{FromBytes, IntoBytes};

use crate::format::XATTR_MAGIC;
use crate::fs::Shared;

/// Attributes in the order in which they were set.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The blocks that a payload of this length needs beside the first.
fn blocks_for(len: usize) -> u64 {
    if len <= XATTR_ROOM { 0 } else { (len as u64).div_ceil(BLOCK_SIZE) }
}

/// Writes attributes to new blocks, the first of which is the place afterwards.
pub(super) fn write<P: Pm>(
    fs: &Shared<P>,
    owner: &Owner<'_, P>,
    xattrs: &[(&[u8], &[u8])],
    change: &mut Change,
) -> Result<()> {
    let mut payload = Vec::new();
    for (name, value) in xattrs {
        let raw = RawXattr { name_len: name.len() as u32, value_len: value.len() as u32 };
        payload.extend_from_slice(raw.as_bytes());
        payload.extend_from_slice(name);
        payload.extend_from_slice(value);
    }
    if payload.len() > MAX_XATTR_TOTAL {
        return Err(Error::no_space(Resource::Limit, 0));
    }
    let others = match blocks_for(payload.len()) {
        0 => Vec::new(),
        _ => fs.put(change, &payload)?,
    };
    let behind = if others.is_empty() { &payload[..] } else { others.as_bytes() };
    let mut header = RawXattrHeader {
        magic: XATTR_MAGIC,
        inode: owner.number,
        generation: owner.generation,
        count: xattrs.len() as u32,
        len: payload.len() as u64,
        ..RawXattrHeader::default()
    };
    header.checksum = checksum(&header, owner.seed, behind, &payload);
    let mut page = [header.as_bytes(), behind].concat();
    page.resize(page.len().next_multiple_of(64), 0);
    change.place = fs.put(change, &page)?[0];
    Ok(())
}

/// Sets an attribute, or removes it.
pub(super) fn change<P: Pm>(
    fs: &Shared<P>,
    owner: &Owner<'_, P>,
    name: &[u8],
    value: Option<(&[u8], XattrMode)>,
    change: &mut Change,
) -> Result<()> {
    let (mut xattrs, old) = match change.place {
        0 => (Xattrs::new(), Vec::new()),
        place => read(owner, place)?,
    };
    let position = xattrs.iter().position(|(other, _)| other == name);
    match value {
        Some((value, how)) => {
            check_xattr_mode(how, position.is_some())?;
            match position {
                Some(position) => xattrs[position].1 = value.to_vec(),
                None => xattrs.push((name.to_vec(), value.to_vec())),
            }
        }
        None => {
            xattrs.remove(position.ok_or(Error::new(Kind::NoAttribute))?);
        }
    }
    change.freed = old;
    if xattrs.is_empty() {
        change.place = 0;
        return Ok(());
    }
    let list: Vec<(&[u8], &[u8])> = xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    write(fs, owner, &list, change)
}

fn checksum(header: &RawXattrHeader, seed: u32, behind: &[u8], payload: &[u8]) -> u32 {
    let seed = crc32c::crc32c_append(seed, &header.as_bytes()[4..]);
    crc32c::crc32c_append(crc32c::crc32c_append(seed, behind), payload)
}

/// Reads the first block at `place` and the numbers of the others.
fn open<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<(RawXattrHeader, Vec<u8>, Vec<u64>)> {
    let first = owner.block(place)?;
    let header = owner.header(first)?;
    if header.magic != XATTR_MAGIC || header.len > MAX_XATTR_TOTAL as u64 {
        return Err(owner.damaged());
    }
    let others = blocks_for(header.len as usize);
    let behind = if others == 0 { header.len } else { others * 8 };
    if behind > XATTR_ROOM as u64 {
        return Err(owner.damaged());
    }
    let mut bytes = vec![0u8; behind as usize];
    owner.pm.read(Block(first).offset() + XATTR_HEADER as u64, &mut bytes)?;
    let mut blocks = vec![first];
    if others > 0 {
        for word in bytes.chunks_exact(8) {
            blocks.push(owner.block(u64::from_le_bytes(word.try_into().unwrap_or_default()))?);
        }
    }
    Ok((header, bytes, blocks))
}

/// The blocks, of which only the first must be readable.
pub(super) fn places_of<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Vec<u64>> {
    open(owner, place).map(|(_, _, blocks)| blocks)
}

/// All attributes, and the blocks that they are in, which validate.
pub(super) fn read<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<(Xattrs, Vec<u64>)> {
    let (header, behind, blocks) = open(owner, place)?;
    let payload = match &blocks[1..] {
        [] => behind.clone(),
        others => {
            let mut payload = vec![0u8; header.len as usize];
            for (&block, part) in others.iter().zip(payload.chunks_mut(BLOCK_SIZE as usize)) {
                owner.pm.read(Block(block).offset(), part)?;
            }
            payload
        }
    };
    if header.checksum != checksum(&header, owner.seed, &behind, &payload) {
        return Err(owner.damaged());
    }
    let mut xattrs = Xattrs::new();
    let mut rest = &payload[..];
    for _ in 0..header.count {
        let (raw, after) = RawXattr::read_from_prefix(rest).map_err(|_| owner.damaged())?;
        let (name, value) = (raw.name_len as usize, raw.value_len as usize);
        let name = after.get(..name).ok_or_else(|| owner.damaged())?;
        let value =
            after.get(name.len()..).and_then(|rest| rest.get(..value)).ok_or_else(|| owner.damaged())?;
        xattrs.push((name.to_vec(), value.to_vec()));
        rest = &after[name.len() + value.len()..];
    }
    Ok((xattrs, blocks))
}
