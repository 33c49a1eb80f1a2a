//! Gathering the live entries of pages, for a collection or a compaction.

use std::ops::ControlFlow;

use nacre_engine::Result;
use nacre_engine::sync::atomic::Ordering;
use nacre_media::Pm;
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::format::{
    EntryHeader, HoleEntry, INLINE_LINES, LINE, PAGE_LINES, TransactionEntry, WriteEntry, flag, kind, place,
};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::log::{INLINE, LiveIndex, Log, Owner, dentry_name, is_negative};
use crate::scan::parse_entry;
use crate::seeded::fault;
use crate::survivor::{
    Gathered, Loose, LooseBlocks, OldEntry, References, is_whole, live_pieces, only_places, reseal,
};
use crate::xattr_index;

impl Log {
    /// Adds the live entries of a page; not all of them when they are more than fit in one, but where their blocks are
    /// gathered apart.
    pub(crate) fn gather<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        page: u32,
        gathered: &mut Gathered,
    ) -> Result<()> {
        let block = self.index.pages[page as usize].block;
        let mut bytes = [0u8; LINE * PAGE_LINES];
        fs.pm.read(block.offset() + LINE as u64, &mut bytes)?;
        let mut line = 0;
        let limit = if gathered.loose.is_some() { usize::MAX } else { gathered.survivors.len() + PAGE_LINES };
        while line < PAGE_LINES && gathered.survivors.len() <= limit {
            let Some(header) = parse_entry(&bytes[line * LINE..], inode.seed) else {
                line += 1;
                continue;
            };
            let count = usize::from(header.lines);
            let bytes = &bytes[line * LINE..(line + count) * LINE];
            let address = block.offset() + ((1 + line) * LINE) as u64;
            self.gather_entry(fs, inode, &OldEntry { owner: page, address, header, bytes }, gathered)?;
            line += count;
        }
        Ok(())
    }

    /// Adds the live entries of the inode's lines, by their numbers.
    pub(crate) fn gather_inline<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        gathered: &mut Gathered,
    ) -> Result<()> {
        let address = inode.address + LINE as u64;
        let mut bytes = [0u8; LINE * INLINE_LINES];
        fs.pm.read(address, &mut bytes)?;
        let mut order: SmallVec<[usize; INLINE_LINES]> =
            (0..INLINE_LINES).filter(|&line| self.index.inline[line].kind != 0).collect();
        order.sort_by_key(|&line| (self.index.inline[line].sequence, line));
        for line in order {
            let Some(header) = parse_entry(&bytes[line * LINE..], inode.seed) else { continue };
            let bytes = &bytes[line * LINE..][..usize::from(header.lines) * LINE];
            let (owner, address) = (INLINE + line as u32, address + (line * LINE) as u64);
            self.gather_entry(fs, inode, &OldEntry { owner, address, header, bytes }, gathered)?;
        }
        Ok(())
    }

    fn gather_entry<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        old: &OldEntry<'_>,
        gathered: &mut Gathered,
    ) -> Result<()> {
        let OldEntry { owner, address, header, bytes } = *old;
        // An entry that only says where blocks are may share the number of an entry that says more of the file.
        let says = |last: Option<(Owner, u64)>| {
            last.is_some_and(|(_, sequence)| sequence == header.sequence) && !only_places(&header)
        };
        let LiveIndex { last_touch, last_attr, last_ctime, .. } = self.index;
        let is_last_touch = says(last_touch);
        let is_last = is_last_touch || says(last_attr) || says(last_ctime);
        if let Some(loose) = &mut gathered.loose {
            loose.greatest = loose.greatest.max(header.sequence);
        }
        let references = match header.kind {
            kind::WRITE if gathered.loose.is_some() => {
                gather_loose(inode, old, is_last_touch, gathered);
                return Ok(());
            }
            kind::WRITE if !is_last_touch => return gather_write(inode, old, gathered),
            kind::WRITE => {
                let pieces = live_pieces(inode, owner, bytes, usize::MAX);
                gathered.stuck |= !is_whole(bytes, &pieces);
                References::Pieces(pieces)
            }
            kind::DENTRY | kind::XATTR => {
                let (is_live, references) = match header.kind {
                    kind::DENTRY => (has_name(inode, bytes, fs.hash_seed, address), References::Name),
                    _ => (has_attribute(inode, address), References::Attribute),
                };
                gathered.dead |= !is_live;
                gathered.stuck |= !is_live && is_last;
                match is_live {
                    true => references,
                    false if is_last => References::Nothing,
                    false => return Ok(()),
                }
            }
            kind::TRANSACTION => return settle_before(fs, bytes),
            kind::IMAGE if gathered.loose.as_ref().is_some_and(|loose| loose.is_whole) => return Ok(()),
            kind::SYMLINK | kind::IMAGE => References::Inode,
            other
                if is_negative(other, header.flags)
                    && !gathered.at_head
                    && !self.is_gone(fs, header.sequence) =>
            {
                References::Nothing
            }
            _ if is_last => References::Nothing,
            kind::ATTR | kind::HOLE | kind::REMOVE | kind::XATTR_REMOVE => return Ok(()),
            _ => References::Nothing, // an entry of a newer program
        };
        gathered.keep(old, bytes, references, inode.seed);
        Ok(())
    }

    /// Whether no page before an entry with this sequence number holds an entry that it took away.
    fn is_gone<P: Pm>(&self, fs: &Shared<P>, sequence: u64) -> bool {
        fault!(fs.pm, RemovalForgotten => return true);
        sequence < self.collector.gone_before
    }
}

/// Whether a dentry of media is the one that the index of a directory has.
fn has_name(inode: &Inode, entry: &[u8], hash_seed: u64, address: u64) -> bool {
    let name = dentry_name(entry).unwrap_or_default();
    matches!(&inode.body, Body::Directory(directory) if directory.refers_to(name, hash_seed, address))
}

/// Whether an inode has the extended attribute of this entry.
fn has_attribute(inode: &Inode, address: u64) -> bool {
    let mut is_there = false;
    xattr_index::for_each(&inode.xattrs, |xattr| {
        is_there |= xattr.address == address;
        ControlFlow::Continue(())
    });
    is_there
}

/// Settles a transaction whose entries are copied without it.
fn settle_before<P: Pm>(fs: &Shared<P>, entry: &[u8]) -> Result<()> {
    let number = TransactionEntry::read_from_prefix(entry).map_or(0, |(entry, _)| entry.transaction);
    fault!(fs.pm, NotSettled => return Ok(()));
    if number >= fs.transactions.settled.load(Ordering::Relaxed) {
        fs.settle()?;
    }
    Ok(())
}

/// Adds the live part of a write: an entry for each run of blocks, joined with the entry before where it continues it.
/// Live blocks are live wherever in the log they are named, so their order among themselves is free.
fn gather_write(inode: &Inode, old: &OldEntry<'_>, gathered: &mut Gathered) -> Result<()> {
    let Ok((raw, _)) = WriteEntry::read_from_prefix(old.bytes) else { return Ok(()) };
    let pieces = live_pieces(inode, old.owner, old.bytes, PAGE_LINES);
    gathered.dead |= !is_whole(old.bytes, &pieces);
    for piece in pieces {
        if let Some(last) = gathered.survivors.last_mut()
            && let References::Pieces(pieces) = &mut last.references
            && let Ok((mut joined, _)) = WriteEntry::read_from_prefix(&last.bytes)
            && joined.file_block + u64::from(joined.blocks) == piece.start
            && joined.place + u64::from(joined.blocks) == piece.place
            && joined.header.flags & flag::MOVED == raw.header.flags & flag::MOVED
            && u64::from(joined.blocks) + piece.len <= u64::from(u32::MAX)
        {
            joined.blocks += piece.len as u32;
            joined.size = raw.size;
            joined.mtime = raw.mtime;
            joined.header.sequence = raw.header.sequence;
            last.bytes.copy_from_slice(joined.as_bytes());
            last.sequence = raw.header.sequence;
            pieces.push(piece);
            reseal(&mut last.bytes, inode.seed);
            continue;
        }
        let counter = raw.file_block & !place::BLOCK_MASK;
        let copy = WriteEntry {
            file_block: piece.start | counter,
            blocks: piece.len as u32,
            place: piece.place,
            ..raw
        };
        let references = References::Pieces(SmallVec::from_slice(&[piece]));
        gathered.keep(old, copy.as_bytes(), references, inode.seed);
    }
    Ok(())
}

/// Takes the live blocks of a write entry apart. Its size and times stay if no later entry says them.
fn gather_loose(inode: &Inode, old: &OldEntry<'_>, is_last_touch: bool, gathered: &mut Gathered) {
    let Ok((raw, _)) = WriteEntry::read_from_prefix(old.bytes) else { return };
    let pieces = live_pieces(inode, old.owner, old.bytes, Loose::MOST_PIECES);
    let is_live = is_whole(old.bytes, &pieces);
    gathered.dead |= !is_live;
    let Some(loose) = &mut gathered.loose else { return };
    if is_last_touch && is_live && !loose.is_whole {
        let start = raw.file_block & place::BLOCK_MASK;
        loose.kept = start..start + u64::from(raw.blocks);
        gathered.keep(old, old.bytes, References::Pieces(pieces), inode.seed);
        return;
    }
    // With too many of them none is looked at.
    let most = Loose::MOST_PIECES + 1;
    let blocks = pieces.into_iter().map(|piece| LooseBlocks { piece, modified: raw.mtime });
    loose.blocks.extend(blocks.take(most.saturating_sub(loose.blocks.len())));
    if is_last_touch {
        let header = EntryHeader { kind: kind::HOLE, flags: 0, ..raw.header };
        let hole = HoleEntry { header, size: raw.size, mtime: raw.mtime, ..HoleEntry::default() };
        gathered.keep(old, hole.as_bytes(), References::Nothing, inode.seed);
    }
}
