//! Where the structures of an image are, and how a changed one is made to validate again: for fuzzing and for tests
//! that damage images on purpose.

use nacre_engine::{BLOCK_SIZE, Result};
use nacre_media::{Overlay, Pm};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::copies::Copies;
use crate::format::pools::{INODES, NODES, SETS, SIZES};
use crate::format::{
    BYTES_HEAD, LANE_ITEMS, POOL_BITS, POOL_HEAD, RawBytes, RawInode, RawIntent, RawItem, RawPoolHead,
    RawSuperblock, RawVolume, RawZone, VOLUME_BYTES, WORD_BITS, bytes_checksum, intent_checksum, seal_any,
};
use crate::fs::Shared;
use crate::{volumes, zones};

/// The kind of a structure. Of all but superblocks there is a primary and a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A copy of the superblock.
    Superblock,
    /// The row of a zone.
    Zone,
    /// The row of a volume.
    Volume,
    /// The heads of a volume's lists of orphans.
    Orphans,
    /// The intent of a lane.
    Intent,
    /// The word of a lane that says which operation is over.
    Done,
    /// The map of a group.
    Map,
    /// The head of a pool block.
    PoolHead,
    /// The bits of its entries.
    PoolBits,
    /// An inode in use.
    Inode,
    /// Its neighbours in a list of orphans.
    Neighbours,
    /// A place for a name.
    Name,
    /// A node of a tree.
    Node,
    /// A long name, a target or a part of attributes.
    Bytes,
}

/// One structure of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Structure {
    /// Its kind.
    pub kind: Kind,
    /// Its first byte.
    pub offset: u64,
    /// Its size in bytes.
    pub len: u64,
    /// The seed of its checksums.
    seed: u32,
}

/// The structures of a sound image.
pub fn structures<P: Pm>(pm: &P) -> Result<Vec<Structure>> {
    let superblock = crate::superblock::read(pm)?.superblock;
    let mut found: Vec<Structure> = [0, 64 << 10]
        .map(|offset| Structure { kind: Kind::Superblock, offset, len: BLOCK_SIZE, seed: 0 })
        .into();
    // Operations that a crash interrupted are completed or undone in DRAM, and the image stays as it is.
    let overlay = Overlay::new(pm);
    for geometry in volumes::all(&overlay, &superblock, &zones::readable(&overlay, &superblock))? {
        let fs = volumes::open_one(&overlay, &superblock, geometry, true)?;
        of_volume(&fs, &mut |kind, copies| {
            let (places, len, seed) = copies.places(&fs.geometry);
            found.extend(places.map(|offset| Structure { kind, offset, len, seed }));
        })?;
    }
    Ok(found)
}

/// Calls `add` with each structure of a volume, and of its zone.
fn of_volume<P: Pm>(fs: &Shared<P>, add: &mut impl FnMut(Kind, Copies<'_>)) -> Result<()> {
    let geometry = fs.geometry;
    add(Kind::Zone, Copies::zone(&geometry));
    add(Kind::Volume, Copies::volume(&geometry));
    add(Kind::Orphans, Copies::orphan_heads(&geometry));
    for index in 0..geometry.lanes {
        add(Kind::Done, Copies::done(&geometry, index));
        let lane = geometry.lane(index);
        add(Kind::Intent, Copies::words(lane, lane, size_of::<RawIntent>() / 8, String::new()));
    }
    for group in geometry.groups() {
        add(Kind::Map, Copies::map(&geometry, group));
        for block in fs.pool_blocks(group)? {
            add(Kind::PoolHead, Copies::pool_head(&geometry, block));
            let head = fs.read_head(block)?;
            let (pool, count) = (head.pool as usize, u64::from(head.count));
            let words = count.div_ceil(WORD_BITS) as usize;
            add(Kind::PoolBits, Copies::words(block + POOL_BITS, block, words, String::new()));
            for entry in (0..count).map(|index| block + POOL_HEAD + index * SIZES[pool]) {
                if fs.is_in_use(pool, entry)? {
                    let kinds = match pool {
                        INODES => [Kind::Inode, Kind::Neighbours],
                        SETS..=3 => [Kind::Name; 2],
                        NODES => [Kind::Node; 2],
                        _ => [Kind::Bytes; 2],
                    };
                    let copies = Copies::entry(&geometry, pool, entry).into_iter().enumerate();
                    copies.for_each(|(index, copies)| add(kinds[index.min(1)], copies));
                }
            }
        }
    }
    Ok(())
}

/// Makes a structure validate again after a change of its contents.
pub fn reseal<P: Pm>(pm: &P, structure: &Structure) -> Result<()> {
    let Structure { kind, offset, len, seed } = *structure;
    let mut bytes = vec![0; len as usize];
    pm.read(offset, &mut bytes)?;
    let checksum = match kind {
        Kind::Superblock => {
            if let Ok(raw) = RawSuperblock::mut_from_bytes(&mut bytes) {
                raw.checksum = raw.compute_checksum();
            }
            None
        }
        Kind::Orphans | Kind::Done | Kind::Map | Kind::PoolBits | Kind::Neighbours | Kind::Node => {
            let (words, _) = bytes.as_chunks_mut::<8>();
            for word in words {
                let value = u64::from_le_bytes(*word) & ((1 << 48) - 1);
                *word = seal_any(value, seed).to_le_bytes();
            }
            None
        }
        Kind::Zone => Some(read_from::<RawZone>(&bytes).compute_checksum(seed)),
        Kind::Volume => {
            let mut raw = RawVolume::new_zeroed();
            raw.as_mut_bytes()[..VOLUME_BYTES].copy_from_slice(&bytes);
            Some(raw.compute_checksum(seed))
        }
        Kind::PoolHead => Some(read_from::<RawPoolHead>(&bytes).compute_checksum(seed)),
        Kind::Inode => Some(read_from::<RawInode>(&bytes).compute_checksum(seed)),
        Kind::Name | Kind::Bytes => {
            let len = match kind {
                Kind::Name => bytes.len(),
                _ => BYTES_HEAD + read_from::<RawBytes>(&bytes[..BYTES_HEAD]).len as usize,
            };
            bytes.get(..len).map(|covered| bytes_checksum(covered, seed))
        }
        Kind::Intent => {
            let intent = read_from::<RawIntent>(&bytes);
            // More than a lane has are in a list elsewhere, or nowhere.
            let count = (intent.items as usize).min(64);
            let mut items = vec![0; count * size_of::<RawItem>()];
            pm.read(offset + LANE_ITEMS, &mut items)?;
            Some(intent_checksum(&intent, &items, seed))
        }
    };
    if let Some(checksum) = checksum {
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    }
    let copied = pm.copy(offset, &bytes)?;
    pm.fence(copied);
    Ok(())
}

fn read_from<T: FromZeros + IntoBytes + FromBytes>(bytes: &[u8]) -> T {
    let mut raw = T::new_zeroed();
    raw.as_mut_bytes().copy_from_slice(bytes);
    raw
}
