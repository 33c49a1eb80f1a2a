//! Builds an inode in DRAM from its log.

use std::collections::BTreeSet;
use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Result, TimeRange, Timestamp};
use nacre_media::Pm;

use crate::attributes::Attributes;
use crate::blockmap::{BlockMap, Piece};
use crate::directory::{Directory, NameHash, Slot};
use crate::format::{
    AttrEntry, DENTRY_NAME_OFFSET, DentryEntry, HoleEntry, MAX_FILE_SIZE, RawInode, RemoveEntry,
    SYMLINK_TARGET_OFFSET, SymlinkEntry, WriteEntry, XattrEntry, flag, kind, place,
};
use crate::image::Image;
use crate::inode::{Body, Contents, Graveyard, Inode};
use crate::log::{GROWTH, INLINE, Log, NO_PAGE, NOT_LISTED, Owner, Page};
use crate::places::Reach;
use crate::scan::{Ending, Entry, LogSource, Scan, Spot, scan_log};
use crate::xattr_index;

/// The context that an inode is built with.
pub(crate) struct LoadContext<'a> {
    pub(crate) hash_seed: u64,
    pub(crate) times: TimeRange,
    pub(crate) graveyard: &'a Arc<Graveyard>,
    pub(crate) reach: &'a Reach,
    pub(crate) ending: Ending,
    /// The last batch is not committed.
    pub(crate) drop_last: bool,
}

/// A directory's entries in the order of the log, while it is read.
#[derive(Default)]
pub(crate) struct Names {
    /// (sequence number, slot, kind, generation, alive), by number.
    list: Vec<(u64, Slot, FileKind, u32, bool)>,
}

/// A name of a directory that was loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub(crate) number: u64,
    pub(crate) generation: u32,
    pub(crate) kind: FileKind,
    pub(crate) address: u64,
}

/// An inode that was built, and the result of the scan of its log.
pub(crate) struct Loaded {
    pub(crate) inode: Inode,
    pub(crate) scan: Scan,
    pub(crate) children: Vec<Child>,
}

struct Builder<'a> {
    number: u64,
    hash_seed: u64,
    times: TimeRange,
    kind: FileKind,
    attributes: Attributes,
    size: u64,
    blocks: u64,
    map: BlockMap,
    names: Names,
    symlink: Option<Box<[u8]>>,
    xattrs: xattr_index::XattrSlot,
    log: Log,
    /// Owners of the pages by their index in the scan: the same, as pages are inserted in order.
    reach: &'a Reach,
    /// There are, or were, blocks on tiers.
    on_tiers: bool,
    /// The image that says where blocks are instead of entries.
    image: Option<Image>,
    source: &'a LogSource,
}

/// Builds the inode from its validated bytes `raw`.
pub(crate) fn load_inode(
    pm: &impl Pm,
    source: LogSource,
    raw: &RawInode,
    context: &LoadContext<'_>,
) -> Result<Loaded> {
    let (mut builder, btime) = Builder::new(&source, raw, context)?;
    let scan =
        scan_log(pm, source, raw, context.ending, context.drop_last, &mut |entry| builder.apply(entry))?;
    builder.check_target()?;
    if let Some(piece) = builder.unreachable().first() {
        let Piece { start, len, place, .. } = *piece;
        return Err(Error::corrupt(format!(
            "inode {}: blocks {start} to {} are on tier {}, where they cannot be",
            source.number,
            start + len,
            place::tier(place)
        )));
    }
    Ok(builder.finish(raw, btime, scan, context.graveyard))
}

/// Builds an inode from entries that a repair has saved, each with its number as [`Spot::Page`] and 64 times that as
/// its address. Those that contradict the format are passed over and reported to `refused`.
pub(crate) fn load_saved<'e>(
    source: LogSource,
    raw: &RawInode,
    context: &LoadContext<'_>,
    entries: impl Iterator<Item = Entry<'e>>,
    mut refused: impl FnMut(&Entry<'_>, Error),
) -> Result<Loaded> {
    let entries: Vec<Entry<'e>> = entries.collect();
    // Those whose blocks cannot be where they say; that shows when everything is read.
    let mut passed_over: BTreeSet<Owner> = BTreeSet::new();
    loop {
        let (mut builder, btime) = Builder::new(&source, raw, context)?;
        let mut scan = Scan { next_sequence: crate::format::FIRST_SEQUENCE, ..Scan::default() };
        let mut errors = Vec::new();
        for (index, entry) in (0..).zip(&entries) {
            scan.next_sequence = scan.next_sequence.max(entry.header.sequence.saturating_add(1));
            if passed_over.contains(&index) {
                builder.owner_of(entry);
                errors.push((entry, builder.damaged(entry, "blocks on a tier, where they cannot be")));
            } else if let Err(error) = builder.apply(entry) {
                errors.push((entry, error));
            }
        }
        let unreachable = builder.unreachable();
        if !unreachable.is_empty() {
            passed_over.extend(unreachable.iter().map(|piece| piece.owner));
            continue;
        }
        builder.check_target()?;
        errors.into_iter().for_each(|(entry, error)| refused(entry, error));
        return Ok(builder.finish(raw, btime, scan, context.graveyard));
    }
}

impl<'a> Builder<'a> {
    fn new(
        source: &'a LogSource,
        raw: &RawInode,
        context: &LoadContext<'a>,
    ) -> Result<(Builder<'a>, Timestamp)> {
        let damaged = |what: &str| Error::corrupt(format!("inode {}: {what}", source.number));
        let kind = FileKind::from_u8(raw.kind).ok_or_else(|| damaged("kind"))?;
        let btime = context.times.unpack(raw.btime).ok_or_else(|| damaged("time of creation"))?;
        if raw.mode & !0o7777 != 0 {
            return Err(damaged("mode"));
        }
        let builder = Builder {
            number: source.number,
            hash_seed: context.hash_seed,
            times: context.times,
            kind,
            attributes: crate::inode::first_attributes(raw, btime),
            size: 0,
            blocks: 0,
            map: BlockMap::default(),
            names: Names::default(),
            symlink: None,
            xattrs: Mutex::new(None),
            log: Log::default(),
            reach: context.reach,
            on_tiers: false,
            image: None,
            source,
        };
        Ok((builder, btime))
    }

    fn apply(&mut self, entry: &Entry<'_>) -> Result<()> {
        let owner = self.owner_of(entry);
        match entry.header.kind {
            kind::WRITE => self.apply_write(entry, owner)?,
            kind::ATTR => self.apply_attr(entry)?,
            kind::HOLE => {
                let hole: HoleEntry = entry.get()?;
                let most = MAX_FILE_SIZE / BLOCK_SIZE;
                if hole.file_block > most || self.image.is_some() {
                    return Err(self.damaged(entry, "place of a hole"));
                }
                self.replace(hole.file_block, hole.blocks.min(most), None, owner);
                self.set_size(hole.size, entry)?;
                self.touch(hole.mtime, entry)?;
            }
            kind::DENTRY => self.apply_dentry(entry, owner)?,
            kind::REMOVE => {
                let remove: RemoveEntry = entry.get()?;
                self.touch(remove.time, entry)?;
                if let Some(owner) = self.names.remove(remove.cookie) {
                    self.log.index.release(owner, 1);
                }
            }
            kind::XATTR | kind::XATTR_REMOVE => self.apply_xattr(entry, owner)?,
            kind::IMAGE => {
                let image = Image::of(&entry.get()?, self.reach);
                // All of a log was written anew when it got its image.
                let is_only = self.image.is_none() && self.blocks == 0 && self.kind == FileKind::Regular;
                let image = image.filter(|_| is_only).ok_or_else(|| self.damaged(entry, "image"))?;
                self.blocks = image.file_blocks;
                self.image = Some(image);
            }
            kind::SYMLINK => {
                let link: SymlinkEntry = entry.get()?;
                let target =
                    entry.bytes.get(SYMLINK_TARGET_OFFSET..).and_then(|b| b.get(..link.target_len as usize));
                let target = target.filter(|t| !t.is_empty()).ok_or_else(|| self.damaged(entry, "target"))?;
                self.symlink = Some(target.into());
                self.size = target.len() as u64;
            }
            _ => {} // a transaction, or an unknown kind that may be skipped
        }
        Ok(())
    }

    /// A symbolic link leads somewhere: its target is in an entry or in its first block.
    fn check_target(&self) -> Result<()> {
        let in_block = || {
            let is_written = self.map.find(0, 1).0.is_some_and(|raw| raw & place::UNWRITTEN == 0);
            is_written && (1..BLOCK_SIZE).contains(&self.size)
        };
        if self.kind != FileKind::Symlink || self.symlink.is_some() || in_block() {
            return Ok(());
        }
        Err(Error::corrupt(format!("inode {}: a symbolic link without a target", self.number)))
    }

    /// Pieces that are said to be on a tier, and cannot be there.
    fn unreachable(&self) -> Vec<Piece> {
        let mut found = Vec::new();
        if self.on_tiers {
            self.map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| {
                if !self.reach.holds(piece.place, piece.len) {
                    found.push(piece);
                }
            });
        }
        found
    }

    /// Counts the entry in the log and gives the owner of its contents.
    fn owner_of(&mut self, entry: &Entry<'_>) -> Owner {
        let owner = match entry.spot {
            Spot::Inline(line) => INLINE + line as u32,
            Spot::Page(page) => {
                while self.log.index.pages.len() <= page {
                    self.log.index.pages.push(Page::empty(Block(0)));
                }
                page as u32
            }
        };
        self.log.index.note_entry(owner, &entry.header, entry.bytes);
        owner
    }

    fn apply_write(&mut self, entry: &Entry<'_>, owner: Owner) -> Result<()> {
        let write: WriteEntry = entry.get()?;
        let start = write.file_block & place::BLOCK_MASK;
        let blocks = u64::from(write.blocks);
        let moved = entry.header.flags & flag::MOVED != 0;
        // A tier that is gone may be named by entries without effect.
        let on_tier = place::tier(write.place) != 0;
        self.on_tiers |= on_tier;
        let in_range = blocks > 0
            && (start + blocks) * BLOCK_SIZE <= MAX_FILE_SIZE
            && (if on_tier { Reach::can_be(write.place) } else { self.reach.holds(write.place, blocks) })
            && !(moved && write.size != 0)
            && write.reserved == 0;
        // Only files have blocks that move.
        let is_file = self.kind == FileKind::Regular || self.kind == FileKind::Symlink && !moved && !on_tier;
        if !in_range || !is_file || self.image.is_some() {
            return Err(self.damaged(entry, "extent"));
        }
        self.replace(start, blocks, Some(write.place), owner);
        self.log.index.hold(owner, blocks);
        self.blocks += blocks;
        if moved {
            return Ok(());
        }
        self.set_size(write.size, entry)?;
        self.touch(write.mtime, entry)
    }

    fn apply_attr(&mut self, entry: &Entry<'_>) -> Result<()> {
        let attr: AttrEntry = entry.get()?;
        let time = |packed| self.times.unpack(packed).ok_or_else(|| self.damaged(entry, "time"));
        self.attributes = Attributes {
            mode: attr.mode & 0o7777,
            policy: attr.policy,
            uid: attr.uid,
            gid: attr.gid,
            flags: attr.flags,
            atime: time(attr.atime)?,
            mtime: time(attr.mtime)?,
            ctime: time(attr.ctime)?,
        };
        if self.kind == FileKind::Regular {
            self.set_size(attr.size, entry)?;
            if entry.header.flags & flag::TRUNCATE != 0 {
                if self.image.is_some() {
                    return Err(self.damaged(entry, "truncation of blocks in an offloaded extent map"));
                }
                let end = attr.size.div_ceil(BLOCK_SIZE);
                self.replace(end, MAX_FILE_SIZE / BLOCK_SIZE - end, None, 0);
            }
        }
        Ok(())
    }

    fn apply_dentry(&mut self, entry: &Entry<'_>, owner: Owner) -> Result<()> {
        let dentry: DentryEntry = entry.get()?;
        let end = DENTRY_NAME_OFFSET + usize::from(dentry.name_len);
        let name = entry.bytes.get(DENTRY_NAME_OFFSET..end).filter(|name| !name.is_empty());
        let is_name = |name: &&[u8]| {
            !matches!(name, [b'.'] | [b'.', b'.']) && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
        };
        let name = name.filter(is_name).ok_or_else(|| self.damaged(entry, "name"))?;
        let kind = FileKind::from_u8(dentry.kind).ok_or_else(|| self.damaged(entry, "kind of a name"))?;
        if self.kind != FileKind::Directory || dentry.inode == 0 || dentry.inode > u64::from(u32::MAX) {
            return Err(self.damaged(entry, "name"));
        }
        // By its number it is found when it is removed.
        if self.names.list.last().is_some_and(|&(number, ..)| number >= entry.header.sequence) {
            return Err(self.damaged(entry, "number of a name"));
        }
        self.touch(dentry.time, entry)?;
        let slot = Slot::new(entry.address, NameHash::of(name, self.hash_seed), dentry.inode, owner);
        self.names.list.push((entry.header.sequence, slot, kind, dentry.generation, true));
        self.log.index.hold(owner, 1);
        Ok(())
    }

    fn apply_xattr(&mut self, entry: &Entry<'_>, owner: Owner) -> Result<()> {
        let raw: XattrEntry = entry.get()?;
        let xattr = xattr_index::from_entry(&raw, entry.bytes, owner, entry.address)?;
        if xattr.run.is_some_and(|run| !self.reach.holds(run.start.0, run.len)) {
            return Err(self.damaged(entry, "place of an attribute's value"));
        }
        let old = if entry.header.kind == kind::XATTR {
            self.log.index.hold(owner, 1);
            xattr_index::insert(&self.xattrs, xattr)
        } else {
            xattr_index::remove(&self.xattrs, &xattr.name)
        };
        if let Some(old) = old {
            self.log.index.release(old.owner, 1);
        }
        self.attributes.ctime = self.times.unpack(raw.ctime).ok_or_else(|| self.damaged(entry, "time"))?;
        Ok(())
    }

    fn replace(&mut self, start: u64, blocks: u64, place: Option<u64>, owner: Owner) {
        let (log, count) = (&mut self.log, &mut self.blocks);
        self.map.replace(start, blocks, place, owner, |piece| {
            log.index.release(piece.owner, piece.len);
            *count -= piece.len;
        });
    }

    fn set_size(&mut self, size: u64, entry: &Entry<'_>) -> Result<()> {
        if size > MAX_FILE_SIZE {
            return Err(self.damaged(entry, "size"));
        }
        self.size = size;
        Ok(())
    }

    fn touch(&mut self, packed: u64, entry: &Entry<'_>) -> Result<()> {
        let time = self.times.unpack(packed).ok_or_else(|| self.damaged(entry, "time"))?;
        self.attributes.mtime = time;
        self.attributes.ctime = time;
        Ok(())
    }

    fn damaged(&self, entry: &Entry<'_>, what: &str) -> Error {
        Error::corrupt(format!("inode {}: entry at byte {}: {what}", self.number, entry.address))
    }

    fn finish(mut self, raw: &RawInode, btime: Timestamp, scan: Scan, graveyard: &Arc<Graveyard>) -> Loaded {
        self.finish_log(&scan);
        let alive = self.names.list.iter().filter(|&&(.., alive)| alive);
        let mut children = Vec::with_capacity(self.names.list.len());
        children.extend(alive.map(|&(_, slot, kind, generation, _)| Child {
            number: slot.inode(),
            generation,
            kind,
            address: slot.address(),
        }));
        let body = match self.kind {
            FileKind::Directory => Body::Directory(Box::new(self.names.into_directory(raw.parent))),
            FileKind::Symlink => match self.symlink.take() {
                Some(target) => Body::Symlink(target),
                None => Body::File(self.map),
            },
            FileKind::Regular => Body::File(self.map),
            _ => Body::Special,
        };
        let contents = Contents {
            body,
            size: self.size,
            blocks: self.blocks,
            log: self.log,
            image: self.image,
            xattrs: self.xattrs,
        };
        let inode = Inode::new(
            *self.source,
            raw,
            self.kind,
            btime,
            (self.attributes, self.times),
            contents,
            graveyard,
        );
        Loaded { inode, scan, children }
    }

    fn finish_log(&mut self, scan: &Scan) {
        let log = &mut self.log;
        log.state.next_sequence = scan.next_sequence;
        log.state.last_transaction = scan.greatest_transaction;
        while log.index.pages.len() < scan.pages.len() {
            log.index.pages.push(Page::empty(Block(0)));
        }
        for (index, scanned) in scan.pages.iter().enumerate() {
            let page = &mut log.index.pages[index];
            page.block = scanned.block;
            page.first_sequence = scanned.first_sequence;
            page.previous = if index == 0 { NO_PAGE } else { index as u32 - 1 };
            page.next = if index + 1 == scan.pages.len() { NO_PAGE } else { index as u32 + 1 };
        }
        if !scan.pages.is_empty() {
            log.index.head = 0;
            log.index.page_count = scan.pages.len() as u32;
            log.index.tail = scan.pages.len() as u32 - 1;
            let tail = log.index.tail;
            log.index.dead = NO_PAGE;
            for page in 0..tail {
                log.index.pages[page as usize].next_dead = NOT_LISTED;
                if log.index.pages[page as usize].live == 0 {
                    log.index.note_dead(page);
                }
            }
            log.collector.at = log.collector.at.max(log.index.page_count * GROWTH);
        }
    }
}

impl Names {
    /// Removes the name with this number; gives its owner.
    fn remove(&mut self, number: u64) -> Option<Owner> {
        let index = self.list.binary_search_by_key(&number, |&(number, ..)| number).ok()?;
        let (_, slot, _, _, alive) = &mut self.list[index];
        std::mem::replace(alive, false).then_some(slot.owner)
    }

    fn into_directory(self, parent: u64) -> Directory {
        let directory = Directory::new(parent);
        let alive: Vec<_> = self.list.into_iter().filter(|&(.., alive)| alive).collect();
        let subdirectories = alive.iter().filter(|&&(_, _, kind, ..)| kind == FileKind::Directory).count();
        let slots: Vec<_> = alive.into_iter().map(|(_, slot, ..)| slot).collect();
        directory.fill(&slots, subdirectories as u32);
        directory
    }
}
