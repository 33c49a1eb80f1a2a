//! Where the structures of an image are, and how a changed one is made to validate again: for fuzzing and for tests
//! that damage images on purpose.

use nacre_engine::{BLOCK_SIZE, Block, Result};
use nacre_media::Pm;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::blockmap::{self, Bounds, Found};
use crate::format::{
    BLOCK_INODES, INODE_SIZE, LINE, RawInode, RawSuperblock, RawUndo, lane_seed, region, seal_word,
};
use crate::recover::Walk;
use crate::table::table_address;
use crate::transaction::{lane_address, lane_count};
use crate::xattr::{self, Owner};

/// The kind of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A copy of the superblock.
    Superblock,
    /// The commit entry of a lane of the journal.
    Commit,
    /// A line of a lane that may be an undo entry.
    Undo,
    /// The inode of the inode table.
    Table,
    /// An inode in use.
    Inode,
    /// A node of a tree.
    Node,
    /// A block of a directory.
    Directory,
    /// A block of an inode's extended attributes: a leaf or the index (in version 1, the first).
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

/// Undo entries of each lane that are listed; the rest of it is like them.
const UNDO_LISTED: u64 = 8;

/// The structures of a sound image.
pub fn structures<P: Pm>(pm: &P) -> Result<Vec<Structure>> {
    let superblock = crate::superblock::read(pm)?.superblock;
    let seed = superblock.seed();
    let bounds = Bounds::of(&superblock);
    let mut found = Vec::new();
    for offset in [0, 64 << 10] {
        found.push(Structure { kind: Kind::Superblock, offset, len: BLOCK_SIZE, inode: 0, seed: 0 });
    }
    let journal = superblock.region(region::JOURNAL)?;
    for lane in 0..lane_count(journal) {
        let (offset, seed) = (lane_address(journal, lane), lane_seed(seed, lane));
        found.push(Structure { kind: Kind::Commit, offset, len: 8, inode: 0, seed });
        let undo =
            |line| Structure { kind: Kind::Undo, offset: offset + line * LINE, len: LINE, inode: 0, seed };
        found.extend((1..=UNDO_LISTED).map(undo));
    }
    let table = table_address(&superblock)?;
    found.push(Structure { kind: Kind::Table, offset: table, len: INODE_SIZE, inode: 0, seed });
    let mut inodes = Vec::new();
    let mut walk = Walk::new(pm, &superblock);
    walk.run(&superblock, &mut |_, number, raw| inodes.push((number, *raw)))?;
    for (number, raw) in inodes {
        let block = walk.table[(number / BLOCK_INODES) as usize];
        let offset = Block(block).offset() + number % BLOCK_INODES * INODE_SIZE;
        let mut add = |kind, offset, len| found.push(Structure { kind, offset, len, inode: number, seed });
        add(Kind::Inode, offset, INODE_SIZE);
        if raw.xattrs != 0 {
            for block in xattr::nodes_of(&Owner::new(pm, bounds, seed, number, raw.generation), raw.xattrs)? {
                add(Kind::Xattrs, Block(block).offset(), BLOCK_SIZE);
            }
        }
        let is_directory = raw.kind == nacre_engine::FileKind::Directory as u8;
        blockmap::map(pm, raw.root, bounds).for_each_used(&mut |used| {
            match used {
                Found::Node(block) => add(Kind::Node, Block(block).offset(), BLOCK_SIZE),
                Found::Data(piece) if is_directory => {
                    add(Kind::Directory, piece.block().offset(), BLOCK_SIZE)
                }
                Found::Data(..) => {}
            }
            true
        })?;
    }
    Ok(found)
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
        Kind::Commit => {
            let value = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default()) & ((1 << 48) - 1);
            bytes = if value == 0 { 0 } else { seal_word(value, seed) }.to_le_bytes().to_vec();
        }
        Kind::Undo => {
            let mut raw = RawUndo::new_zeroed();
            raw.as_mut_bytes().copy_from_slice(&bytes);
            raw.checksum = raw.compute_checksum(seed);
            bytes = raw.as_bytes().to_vec();
        }
        Kind::Table | Kind::Inode => {
            let mut raw = RawInode::new_zeroed();
            raw.as_mut_bytes().copy_from_slice(&bytes);
            raw.checksum = raw.compute_checksum(seed, inode);
            bytes = raw.as_bytes().to_vec();
        }
        Kind::Xattrs => xattr::reseal(&mut bytes, seed, inode),
        Kind::Node | Kind::Directory => return Ok(()),
    }
    let copied = pm.copy(offset, &bytes)?;
    pm.fence(copied);
    Ok(())
}
