//! Takes one inode from media, however damaged: its header, its log, and the inode that the log describes.

use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Resource, TimeRange};
use nacre_media::Pm;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::salvage::{Grounds, Salvage, Saved, read_inode_lines, turn_one_bit};
use super::survey::Chunks;
use crate::format::{
    AttrEntry, INODE_HEAD_OFFSET, INODE_MAGIC, INODE_VERSION, LINE, RawInode, TransactionEntry,
    XATTR_BYTES_OFFSET, XattrEntry, inode_seed, kind, open_word, seal_word,
};
use crate::inode::Graveyard;
use crate::load::{LoadContext, Loaded, load_saved};
use crate::places::Reach;
use crate::recover::Peer;
use crate::scan::{Ending, Entry, LogSource, Spot, parse_entry, read_inode};
use crate::superblock::Superblock;

/// The facts that a name states about the inode that it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) number: u64,
    pub(super) generation: u32,
    pub(super) kind: FileKind,
}

/// An inode as far as it can be had.
pub(super) struct Taken {
    pub(super) source: LogSource,
    pub(super) raw: RawInode,
    /// The header, or lines of the inode, must be written anew.
    pub(super) rewrite: bool,
    pub(super) entries: Vec<Saved>,
    pub(super) loaded: Loaded,
    pub(super) pages: Vec<Block>,
    /// Descriptions of damage, and whether something is lost with it.
    pub(super) damage: Vec<(String, bool)>,
    /// A sequence number that nothing of the inode has reached.
    pub(super) next_sequence: u64,
}

impl Taken {
    pub(super) fn loses(&self) -> bool {
        self.damage.iter().any(|&(_, lost)| lost)
    }
}

/// An inode with a header that is right, or was made right.
struct Opened {
    source: LogSource,
    raw: RawInode,
    /// See [`Taken`].
    rewrite: bool,
    damage: Vec<(String, bool)>,
}

/// Takes inodes.
pub(super) struct Taker<'a, P> {
    pub(super) grounds: Grounds<'a, P>,
    chunks: &'a Chunks,
    pub(super) volume_seed: u32,
    hash_seed: u64,
    times: TimeRange,
    /// Transactions below are committed.
    settled: u64,
    graveyard: Arc<Graveyard>,
    pub(super) reach: Reach,
}

impl<'a, P: Pm> Taker<'a, P> {
    pub(super) fn new(grounds: Grounds<'a, P>, chunks: &'a Chunks, superblock: &Superblock) -> Taker<'a, P> {
        Taker {
            chunks,
            volume_seed: superblock.seed(),
            hash_seed: superblock.raw.hash_seed,
            times: superblock.times(),
            settled: superblock.raw.settled_transactions,
            graveyard: Arc::default(),
            reach: Reach::of(grounds.pm.len() / BLOCK_SIZE, &superblock.raw),
            grounds,
        }
    }

    /// The inode that a name refers to, or why there is none, in words.
    pub(super) fn take(&self, claim: Claim) -> Result<Taken, String> {
        let Opened { source, raw, rewrite, damage } = self.open(claim)?;
        let mut salvage = self.grounds.salvage(source, &raw);
        self.settle_transactions(source, &mut salvage);
        let mut taken = self.build(source, raw, salvage).map_err(|error| error.to_string())?;
        taken.damage.splice(0..0, damage);
        taken.rewrite = rewrite;
        if rewrite {
            adopt_attributes(&mut taken);
        }
        Ok(taken)
    }

    /// The same without its log.
    fn open(&self, claim: Claim) -> Result<Opened, String> {
        let Claim { number, generation, kind } = claim;
        let address = self.chunks.address(number).filter(|_| number != 0);
        let address = address.ok_or_else(|| format!("inode {number}, which does not exist"))?;
        let (mut raw, bad_lines) = read_inode_lines(self.grounds.pm, address);
        let mut damage: Vec<(String, bool)> =
            bad_lines.iter().map(|at| (format!("a media error at byte {at}"), false)).collect();
        let found = raw.is_valid(inode_seed(self.volume_seed, number, raw.generation)) && plausible(&raw);
        if found && (raw.generation != generation || raw.kind != kind as u8) {
            return Err(format!("an inode {number} that is gone or of another kind"));
        }
        let seed = inode_seed(self.volume_seed, number, generation);
        let source = LogSource { number, generation, seed, address };
        let mut rewrite = !bad_lines.is_empty();
        if !found {
            let header_is_lost = bad_lines.first() == Some(&address);
            let words = self.mend_header(source, kind, &mut raw, header_is_lost)?;
            damage.push(words);
            rewrite = true;
        }
        if bad_lines.iter().any(|&at| at != address) {
            raw.lines.iter_mut().filter(|line| line[..] == [0xff; LINE]).for_each(|line| line.fill(0));
            if raw.head == 0 {
                damage.push(("operations of its log in lines that cannot be read".to_owned(), true));
            }
        }
        Ok(Opened { source, raw, rewrite, damage })
    }

    /// After a crash a last operation in two directories counts if the other one has it, too, as far as that can be
    /// read. A log that is written anew is committed as it is. A settled transaction needs no number any more; an
    /// unsettled one keeps it, because the other directory may ask.
    fn settle_transactions(&self, source: LogSource, salvage: &mut Salvage) {
        let is_open = |entry: &TransactionEntry| entry.transaction >= self.settled;
        let last = salvage.last_transaction().filter(|(_, entry)| is_open(entry));
        if let Some((first, entry)) = last.filter(|_| self.grounds.ending == Ending::MayBeTorn) {
            match self.peer_has(&entry, source.number) {
                Peer::Has => {}
                Peer::HasNot => salvage.entries.truncate(first),
                Peer::Unreadable => {
                    let peer = entry.peer;
                    let what = format!("directory {peer} cannot prove that both had its last operation");
                    salvage.damage.push((what, true));
                }
            }
        }
        salvage.entries.retain(|saved| {
            saved.header.kind != kind::TRANSACTION || saved.transaction().is_some_and(|entry| is_open(&entry))
        });
    }

    /// Whether the other directory of a transaction has it, too.
    fn peer_has(&self, transaction: &TransactionEntry, asking: u64) -> Peer {
        let (number, generation) = (transaction.peer, transaction.peer_generation);
        let Ok(opened) = self.open(Claim { number, generation, kind: FileKind::Directory }) else {
            return if self.is_another(number, generation) { Peer::HasNot } else { Peer::Unreadable };
        };
        let salvage = self.grounds.salvage(opened.source, &opened.raw);
        let mut entries = salvage.entries.iter().filter_map(Saved::transaction);
        if entries.any(|entry| entry.transaction == transaction.transaction && entry.peer == asking) {
            return Peer::Has;
        }
        let loses = salvage.loses() || opened.damage.iter().any(|&(_, lost)| lost);
        if loses { Peer::Unreadable } else { Peer::HasNot }
    }

    /// Whether a valid inode has this number, in another life.
    fn is_another(&self, number: u64, generation: u32) -> bool {
        let address = self.chunks.address(number).filter(|_| number != 0);
        let raw = address.and_then(|address| read_inode(self.grounds.pm, address).ok());
        raw.is_some_and(|raw| {
            raw.generation != generation && raw.is_valid(inode_seed(self.volume_seed, number, raw.generation))
        })
    }

    /// An inode that is to be made, with this header and nothing in its log.
    pub(super) fn take_new(&self, number: u64, raw: RawInode) -> Result<Taken, Error> {
        let address = self.chunks.address(number).ok_or_else(|| Error::no_space(Resource::Inodes, 0))?;
        let seed = inode_seed(self.volume_seed, number, raw.generation);
        let source = LogSource { number, generation: raw.generation, seed, address };
        let mut taken = self.build(source, raw, Salvage::default())?;
        taken.rewrite = true;
        Ok(taken)
    }

    fn build(&self, source: LogSource, raw: RawInode, salvage: Salvage) -> Result<Taken, Error> {
        let Salvage { entries, pages, mut damage, greatest, .. } = salvage;
        let context = LoadContext {
            hash_seed: self.hash_seed,
            times: self.times,
            graveyard: &self.graveyard,
            reach: &self.reach,
            ending: Ending::Clean,
            drop_last: false,
        };
        let mut refused = Vec::new();
        let numbered = entries.iter().enumerate().map(|(index, saved)| Entry {
            header: saved.header,
            bytes: &saved.bytes,
            spot: Spot::Page(index),
            address: (index * LINE) as u64,
        });
        let loaded = load_saved(source, &raw, &context, numbered, |entry, error| {
            refused.push(entry.address as usize / LINE);
            let number = entry.header.sequence;
            damage.push((format!("operation {number} of its log makes no sense ({error})"), true));
        })?;
        let next_sequence = loaded.scan.next_sequence.max(greatest + 1);
        // Numbers of entries stay as they are, because the index in DRAM knows them: a refused entry stays as one
        // without effect.
        let mut entries = entries;
        refused.into_iter().for_each(|index| entries[index].bytes.clear());
        for (name, error) in
            crate::xattr_index::damaged_values(self.grounds.pm, source.number, &loaded.inode.xattrs)
        {
            damage.push((error.to_string(), true));
            // Older values of it are not to come back.
            entries
                .iter_mut()
                .filter(|saved| is_attribute(saved, &name))
                .for_each(|saved| saved.bytes.clear());
        }
        Ok(Taken { source, raw, rewrite: false, entries, loaded, pages, damage, next_sequence })
    }

    /// Makes a header that does not validate valid again: by turning one bit, or from the facts that its log proves.
    fn mend_header(
        &self,
        source: LogSource,
        kind: FileKind,
        raw: &mut RawInode,
        is_lost: bool,
    ) -> Result<(String, bool), String> {
        let (number, generation) = (source.number, source.generation);
        let mut turned = *raw;
        let is_right = |bytes: &[u8]| {
            let mut copy = *raw;
            copy.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
            copy.generation == generation
                && copy.kind == kind as u8
                && copy.is_valid(source.seed)
                && plausible(&copy)
        };
        if !is_lost && turn_one_bit(&mut turned.as_mut_bytes()[..INODE_HEAD_OFFSET as usize], is_right) {
            *raw = turned;
            return Ok(("a flipped bit in its header".to_owned(), false));
        }
        let head = if is_lost { None } else { self.proven_head(source, raw.head) };
        // The rest of the pages of a log that is in the inode by now proves nothing.
        let is_found = is_lost && !self.grounds.lines_are_newest(source, raw);
        let head = head.or_else(|| self.found_head(source, is_found));
        let has_lines = raw.head == 0 && has_inline_entry(raw, source.seed);
        let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
        if (head.is_none() && !has_lines) || is_device {
            return Err(format!("inode {number}: its header is damaged, and nothing else of it validates"));
        }
        let lines = raw.lines;
        let mode = if kind == FileKind::Directory { 0o700 } else { 0o600 };
        *raw = RawInode {
            magic: INODE_MAGIC,
            version: INODE_VERSION,
            kind: kind as u8,
            generation,
            mode,
            head: head.map_or(0, |block| seal_word(block.0, source.seed)),
            lines,
            ..RawInode::new_zeroed()
        };
        raw.links = if kind == FileKind::Directory { 2 } else { 1 };
        raw.cached_checksum = RawInode::compute_cached_checksum(raw.links, raw.parent, source.seed);
        raw.checksum = raw.compute_checksum(source.seed);
        Ok((
            "its header; owner and permissions are lost as far as its log does not have them".to_owned(),
            true,
        ))
    }

    fn proven_head(&self, source: LogSource, word: u64) -> Option<Block> {
        let block = Block(open_word(word, source.seed, &String::new).ok().flatten()?);
        self.grounds
            .survey
            .of(source.number, source.generation)
            .any(|page| page.block == block)
            .then_some(block)
    }

    /// The only page of the log that no other page of it leads to.
    fn found_head(&self, source: LogSource, is_lost: bool) -> Option<Block> {
        let pages: Vec<_> = self.grounds.survey.of(source.number, source.generation).collect();
        let leads = |block: Block| pages.iter().any(|page| page.next == seal_word(block.0, source.seed));
        let mut heads =
            pages.iter().filter(|page| !leads(page.block) && !(self.grounds.is_taken)(page.block));
        match (heads.next(), heads.next()) {
            (Some(page), None) if is_lost => Some(page.block),
            _ => None,
        }
    }
}

/// An entry that sets or removes this attribute.
pub(super) fn is_attribute(saved: &Saved, name: &[u8]) -> bool {
    let entry = XattrEntry::read_from_prefix(&saved.bytes);
    let length = entry.map_or(0, |(entry, _)| usize::from(entry.name_len));
    let named = saved.bytes.get(XATTR_BYTES_OFFSET..XATTR_BYTES_OFFSET + length);
    matches!(saved.header.kind, kind::XATTR | kind::XATTR_REMOVE) && named == Some(name)
}

/// The header is plausible.
fn plausible(raw: &RawInode) -> bool {
    FileKind::from_u8(raw.kind).is_some() && TimeRange::is_packed(raw.btime) && raw.mode & !0o7777 == 0
}

fn has_inline_entry(raw: &RawInode, seed: u32) -> bool {
    let lines = raw.lines.as_flattened();
    (0..raw.lines.len()).any(|line| parse_entry(&lines[line * LINE..], seed).is_some())
}

/// A header that was made anew takes the attributes in the log.
fn adopt_attributes(taken: &mut Taken) {
    let attr = taken.entries.iter().rev().filter(|saved| saved.header.kind == kind::ATTR);
    let attr = attr.into_iter().find_map(|saved| AttrEntry::read_from_prefix(&saved.bytes).ok());
    if let Some((attr, _)) = attr {
        let raw = &mut taken.raw;
        (raw.mode, raw.uid, raw.gid, raw.flags) = (attr.mode & 0o7777, attr.uid, attr.gid, attr.flags);
        raw.checksum = raw.compute_checksum(taken.source.seed);
    }
}
