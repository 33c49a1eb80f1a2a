//! Where the structures of an image are, and how a changed one is made to validate again: for fuzzing and for tests
//! that damage images on purpose.

use nacre_engine::{BLOCK_SIZE, Block, FileKind, Result};
use nacre_layout_parts::xattr::{self, Owner};
use nacre_media::Pm;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::blockmap::{self, Bounds, Found};
use crate::format::{
    LANES, LINE, RawHeader, RawSlot, RawSuperblock, TABLE_INODE, inode_seed, region, seal_any, slot_offset,
    switch_seed,
};
use crate::grow::TABLE_GENERATION;
use crate::recover::{Walk, table_addresses};
use crate::state::State;
use crate::superblock::Superblock;
use crate::switches::Read;

/// The kind of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A copy of the superblock.
    Superblock,
    /// A copy of the switch of a lane.
    Switch,
    /// The header in a copy of the inode of the inode table.
    TableHeader,
    /// The slot that is its state.
    TableSlot,
    /// The header of an inode in use.
    Header,
    /// The slot that is its state.
    Slot,
    /// A node of a tree.
    Node,
    /// A block of a directory.
    Directory,
    /// A block of an inode's extended attributes: a leaf or the index.
    Xattrs,
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
    /// The inode that it belongs to; 0 for none.
    pub inode: u64,
    /// The seed of its checksum.
    seed: u32,
}

/// The structures of a sound image.
pub fn structures<P: Pm>(pm: &P) -> Result<Vec<Structure>> {
    let superblock = crate::superblock::read(pm)?.superblock;
    let seed = superblock.seed();
    let switches = Read::from(pm, &superblock)?;
    let mut found = Vec::new();
    for offset in [0, 64 << 10] {
        found.push(Structure { kind: Kind::Superblock, offset, len: BLOCK_SIZE, inode: 0, seed: 0 });
    }
    let region = superblock.region(region::SWITCHES)?;
    for copy in 0..2 {
        let start = Block(region.start + copy).offset();
        found.extend((0..LANES).map(|lane| {
            let (offset, seed) = (start + lane * LINE, switch_seed(seed, lane));
            Structure { kind: Kind::Switch, offset, len: 8, inode: 0, seed }
        }));
    }
    let mut inodes = Vec::new();
    let mut walk = Walk::new(pm, &superblock, &switches);
    walk.run(&superblock, &mut |number, address, header, state| {
        inodes.push((number, address, *header, *state));
    })?;
    for address in table_addresses(&superblock)? {
        let kinds = [Kind::TableHeader, Kind::TableSlot];
        let which = walk.table_state.which;
        found.extend(parts(kinds, seed, address, (TABLE_INODE, TABLE_GENERATION), which));
    }
    for (number, address, header, state) in inodes {
        let kinds = [Kind::Header, Kind::Slot];
        found.extend(parts(kinds, seed, address, (number, header.generation), state.which));
        contents(pm, &superblock, number, &header, &state, &mut found)?;
    }
    Ok(found)
}

/// The header of an inode, and the slot that is its state.
fn parts(
    kinds: [Kind; 2],
    seed: u32,
    address: u64,
    (inode, generation): (u64, u32),
    which: usize,
) -> [Structure; 2] {
    let [header, slot] = kinds;
    let (offset, slot_seed) = (address + slot_offset(which), inode_seed(seed, inode, generation));
    [
        Structure { kind: header, offset: address, len: size_of::<RawHeader>() as u64, inode, seed },
        Structure { kind: slot, offset, len: size_of::<RawSlot>() as u64, inode, seed: slot_seed },
    ]
}

/// The blocks that an inode leads to.
fn contents<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    number: u64,
    header: &RawHeader,
    state: &State,
    found: &mut Vec<Structure>,
) -> Result<()> {
    let (seed, bounds) = (superblock.seed(), Bounds::of(superblock));
    let mut add = |kind, block| {
        let offset = Block(block).offset();
        found.push(Structure { kind, offset, len: BLOCK_SIZE, inode: number, seed });
    };
    if state.slot.xattrs() != 0 {
        let owner = Owner::new(pm, bounds, seed, number, header.generation);
        xattr::nodes_of(&owner, state.slot.xattrs())?.into_iter().for_each(|block| add(Kind::Xattrs, block));
    }
    let Some(kind) = FileKind::from_u8(header.kind) else { return Ok(()) };
    blockmap::map(pm, state.tree(kind), bounds).for_each_used(&mut |used| {
        match used {
            Found::Node(block) => add(Kind::Node, block),
            Found::Data(piece) if kind == FileKind::Directory => add(Kind::Directory, piece.place),
            Found::Data(..) => {}
        }
        true
    })
}

/// Makes a structure validate again after a change of its contents. Kinds without a checksum need nothing.
pub fn reseal<P: Pm>(pm: &P, structure: &Structure) -> Result<()> {
    let Structure { kind, offset, len, inode, seed } = *structure;
    let mut bytes = vec![0; len as usize];
    pm.read(offset, &mut bytes)?;
    match kind {
        Kind::Superblock => {
            if let Ok(raw) = RawSuperblock::mut_from_bytes(&mut bytes) {
                raw.checksum = raw.compute_checksum();
            }
        }
        Kind::Switch => {
            let value = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default()) & ((1 << 48) - 1);
            bytes = seal_any(value, seed).to_le_bytes().to_vec();
        }
        Kind::TableHeader | Kind::Header => {
            let mut raw = RawHeader::new_zeroed();
            raw.as_mut_bytes().copy_from_slice(&bytes);
            raw.checksum = raw.compute_checksum(seed, inode);
            bytes = raw.as_bytes().to_vec();
        }
        Kind::TableSlot | Kind::Slot => {
            let mut raw = RawSlot::new_zeroed();
            raw.as_mut_bytes().copy_from_slice(&bytes);
            raw.checksum = raw.compute_checksum(seed);
            bytes = raw.as_bytes().to_vec();
        }
        Kind::Xattrs => xattr::reseal(&mut bytes, seed, inode),
        Kind::Node | Kind::Directory => return Ok(()),
    }
    let copied = pm.copy(offset, &bytes)?;
    pm.fence(copied);
    Ok(())
}
