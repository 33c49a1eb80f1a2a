//! Images of logs on tiers (paper 002, section 5.6: log migration).
//!
//! If all blocks of a cold file are on one tier, its extent map may be offloaded to that tier. This is an *image*: a
//! list of its extents in blocks of the tier. Its log on PM has the rest, size, attributes and times, and names the
//! image by an entry; no entry says where blocks are then. Images name only blocks of the tier that they are on, so
//! that the free blocks of other media never depend on them.
//!
//! **Reading.** Nothing is read of an image until an operation asks where a block is ([`Shared::file`]); attributes are
//! in the log. Then the mover, which has the devices, reads it, and the map is filled. It stays filled.
//!
//! **Changing.** An operation that changes where blocks are brings the log back first ([`Log::take_image_back`], called
//! by [`Commit`](crate::commit::Commit)). So no entry that says where blocks are ever follows that of an image, and
//! reading needs no order among them.
//!
//! **Commits.** Both ways work like a compaction of the whole log: copies where nothing reads, durable, then one store
//! of the word that leads to them. The image is durable before that, and its blocks are free after it.
//!
//! **After a crash** reading the logs does not count the blocks that images name. A tier with images has nothing free
//! until they are read ([`Shared::count_tier`]). Its images are not read for files before: a file could free blocks, or
//! take its log back, before its own blocks are counted. A file that goes while its image cannot be read leaves its
//! blocks in use; then the next mount counts.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Error, FileKind, Kind, LogImage, Result, TierRun};
use nacre_layout_parts::format::incompatible;
use nacre_media::{Durable, Pm};
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::alloc::Purpose;
use crate::blockmap::{BlockMap, Piece};
use crate::format::{INLINE_LINES, ImageEntry, MAX_FILE_SIZE, PAGE_LINES, RawImageHeader, kind, place};
use crate::fs::Shared;
use crate::image::{Image, Whose, content_of, extents_on_one_tier};
use crate::inode::{Body, Inode};
use crate::log::{IN_IMAGE, Log, NO_PAGE};
use crate::survivor::{Gathered, Loose, References, Survivor, line_count, name_anew, pack, reseal};

/// Images that are read at once when a tier is counted.
const AT_ONCE: usize = 16;

impl<P: Pm> Shared<P> {
    /// The block map of a regular file, with all that is in its image.
    #[inline]
    pub(crate) fn file<'i>(&self, inode: &'i Inode) -> Result<&'i BlockMap> {
        let map = inode.file_map()?;
        if inode.image.is_unread() {
            self.read_image(inode, map)?;
        }
        Ok(map)
    }

    #[cold]
    fn read_image(&self, inode: &Inode, map: &BlockMap) -> Result<()> {
        let tier = inode.image.get().map_or(0, |image| image.run.tier);
        if self.tiers.waits_for_count(tier) {
            return Err(Error::new(Kind::DeviceLost)
                .object(format!("tier {tier}: it was missing since the mount, and has the extent map"))
                .advice("nacre tier list shows the tiers; give the place of one to nacre tier online"));
        }
        inode.image.fill(|image| {
            let extents = self.extents_of(image, inode.whose())?;
            for Piece { start, len, place, owner } in &extents {
                map.replace(*start, *len, Some(*place), *owner, |_| {});
            }
            // One that could not be read before.
            self.tiers.count_image(image.run.tier, inode.number, &extents);
            Ok(())
        })
    }

    pub(crate) fn extents_of(&self, image: &Image, whose: Whose) -> Result<Vec<Piece>> {
        let reader = self.image_reader.read().clone();
        let reader = reader.ok_or_else(|| {
            Error::new(Kind::DeviceLost)
                .object(format!("tier {}: no reader is attached", image.run.tier))
                .advice("open the file system with its tiers")
        })?;
        // A change of the set of tiers does not wait for a device.
        let reach = self.reach.read().clone();
        image.read(&*reader, whose, self.seed, &reach)
    }

    /// The image of a file's log, where there is to be one.
    pub(crate) fn log_image(
        &self,
        inode: &Arc<Inode>,
        may_be_on: &dyn Fn(u8) -> bool,
    ) -> Result<Option<LogImage>> {
        let map = inode.file_map()?;
        let Some(mut log) = inode.log.try_lock() else { return Ok(None) };
        if !log.takes_image(inode) || log.compaction.no_image_at == log.state.next_sequence {
            return Ok(None);
        }
        // If the first block is not on the tier, not all are.
        let (_, first) = map.next_mapped(0).unwrap_or_default();
        if place::tier(first) != 0 && !may_be_on(place::tier(first)) {
            return Ok(None);
        }
        // It is true until the file changes.
        log.compaction.no_image_at = log.state.next_sequence;
        let Some((tier, extents, file_blocks)) = extents_on_one_tier(map) else { return Ok(None) };
        let rest = log.gather_whole(self, inode)?.survivors;
        if pages_for(line_count(&rest) + 1, &rest) >= log.index.page_count as usize {
            return Ok(None);
        }
        log.compaction.no_image_at = 0;
        let content = content_of(inode.whose(), &extents, file_blocks);
        Ok(Some(LogImage { tier, content, version: log.state.next_sequence }))
    }

    /// Puts an image in the place of a file's log.
    pub(crate) fn publish_log_image(
        &self,
        inode: &Arc<Inode>,
        image: &LogImage,
        run: TierRun,
        proof: Durable,
    ) -> Result<Option<u64>> {
        let map = self.file(inode)?;
        let wrong = || Error::new(Kind::InvalidInput).object(format!("blocks of tier {}", run.tier));
        let (header, _) = RawImageHeader::read_from_prefix(&image.content).map_err(|_| wrong())?;
        let image_blocks = u32::try_from(run.len).map_err(|_| wrong())?;
        let mut entry = ImageEntry {
            place: place::on_tier(run.tier, run.start.0),
            image_blocks,
            extents: header.extents,
            file_blocks: header.file_blocks,
            image_checksum: crc32c::crc32c_append(inode.seed, &image.content),
            ..ImageEntry::default()
        };
        entry.header.kind = kind::IMAGE;
        entry.header.lines = 1;
        let found = Image::of(&entry, &self.reach.read()).ok_or_else(wrong)?;
        if run.tier != image.tier || image.content.len() as u64 != run.len * BLOCK_SIZE {
            return Err(wrong());
        }
        let mut log = inode.log.lock();
        if log.state.next_sequence != image.version || !log.takes_image(inode) {
            return Ok(None);
        }
        self.require_images()?;
        let before = log.index.page_count;
        log.put_image(self, inode, map, entry, found, proof)?;
        Ok(Some(u64::from(before.saturating_sub(log.index.page_count))))
    }

    /// Code that does not know images is to refuse the file system from now on.
    fn require_images(&self) -> Result<()> {
        let mut superblock = self.superblock.lock();
        if superblock.raw.features_incompatible & incompatible::LOG_IMAGES != 0 {
            return Ok(());
        }
        superblock.raw.features_incompatible |= incompatible::LOG_IMAGES;
        superblock.write(&*self.pm).inspect_err(|_| {
            superblock.raw.features_incompatible &= !incompatible::LOG_IMAGES;
        })
    }

    /// Brings the log of a file back from its tier.
    pub(crate) fn take_log_back(&self, inode: &Arc<Inode>) -> Result<bool> {
        if !inode.image.is_there() {
            return Ok(false);
        }
        self.file(inode)?;
        let mut log = inode.log.lock();
        if log.state.dead_inode || !inode.image.is_there() {
            return Ok(false);
        }
        log.take_image_back(self, inode, Purpose::Data)?;
        Ok(true)
    }

    /// A write of the file comes later: its log is to be here then.
    pub(crate) fn expect_write(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.take_log_back(inode)? {
            let mut log = inode.log.lock();
            log.compaction.no_image_at = log.state.next_sequence;
        }
        Ok(())
    }

    /// Frees the blocks of the image of an inode that is gone. If the image can be read, the map has the file's blocks,
    /// for the caller to free.
    pub(crate) fn let_go_of_image(&self, inode: &Inode) {
        let Some(image) = inode.image.get() else { return };
        let Body::File(map) = &inode.body else { return };
        let was_never_counted = self.tiers.forget_uncounted(image.run.tier, inode.number);
        if !was_never_counted && inode.image.is_unread() && self.read_image(inode, map).is_err() {
            // The next mount finds that they have no owner.
            self.tiers.count_at_next_mount(image.run.tier, image.file_blocks);
        }
        inode.image.set(None);
        self.tiers.free(image.run);
    }

    /// Counts the blocks that images on a tier name; see [`Tiered::count_tier`](nacre_engine::Tiered::count_tier).
    pub(crate) fn count_tier(&self, tier: u8) -> Result<Option<Error>> {
        let Some(images) = self.tiers.uncounted_images(tier) else { return Ok(None) };
        let next = std::sync::atomic::AtomicUsize::new(0);
        let (lost, damage) = (parking_lot::Mutex::new(None), parking_lot::Mutex::new(None));
        let count = || {
            while lost.lock().is_none()
                && let Some((whose, image)) = images.get(next.fetch_add(1, Ordering::Relaxed))
            {
                match self.extents_of(image, *whose) {
                    Ok(extents) => self.tiers.count_image(tier, whose.number, &extents),
                    Err(error) if error.kind() == Kind::DeviceLost => *lost.lock() = Some(error),
                    Err(error) => drop(damage.lock().get_or_insert(error)),
                }
            }
        };
        // A device has many reads under way at once; for a few it is not worth threads.
        let threads = if images.len() < 4 * AT_ONCE { 1 } else { AT_ONCE };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(count)));
            count();
        });
        if let Some(error) = lost.into_inner() {
            return Err(error);
        }
        let is_contradictory = self.tiers.all_are_read(tier);
        let contradiction = || {
            Error::corrupt(format!("tier {tier}: the blocks that offloaded extent maps name"))
                .advice("run fsck with this tier: it says which files name one block")
        };
        Ok(damage.into_inner().or_else(|| is_contradictory.then(contradiction)))
    }
}

/// Pages that so many lines take; none where the inode has room for them.
fn pages_for(lines: usize, survivors: &[Survivor]) -> usize {
    // The entry of the image may need a page of its own.
    if lines <= INLINE_LINES { 0 } else { pack(survivors).len().max(lines.div_ceil(PAGE_LINES)) }
}

impl Log {
    /// Whether an image may take the place of this log.
    fn takes_image(&self, inode: &Inode) -> bool {
        let is_whole = !self.state.broken && !self.state.dead_inode && !inode.trim_is_pending();
        is_whole
            && self.index.head != NO_PAGE
            && inode.kind == FileKind::Regular
            && inode.links() > 0
            && !inode.image.is_there()
    }

    /// All live entries except those that say where blocks are.
    fn gather_whole<P: Pm>(&self, fs: &Shared<P>, inode: &Inode) -> Result<Gathered> {
        let mut gathered = Gathered::new(true, Some(Loose::of_whole()));
        match self.index.head {
            NO_PAGE => self.gather_inline(fs, inode, &mut gathered)?,
            _ => self.index.page_order().try_for_each(|page| self.gather(fs, inode, page, &mut gathered))?,
        }
        Ok(gathered)
    }

    /// Replaces all of this log by the gathered entries, in the inode where it has room for them.
    fn replace_whole<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        survivors: &[Survivor],
        purpose: Purpose,
    ) -> Result<()> {
        let old = (self.index.head != NO_PAGE).then_some((self.index.head, self.index.tail));
        match old {
            Some((_, last)) if line_count(survivors) <= INLINE_LINES => {
                self.put_into_inode(fs, inode, last, survivors)?;
            }
            // From the inode's lines to these there is no way in one store.
            old => self.replace_pages(fs, inode, old, &pack(survivors), purpose)?,
        }
        self.end_collection();
        Ok(())
    }

    fn put_image<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        map: &BlockMap,
        mut entry: ImageEntry,
        image: Image,
        written: Durable,
    ) -> Result<()> {
        self.drop_dead_pages(fs, inode)?;
        let Gathered { mut survivors, loose, .. } = self.gather_whole(fs, inode)?;
        let sequence = loose.map_or(0, |loose| loose.greatest);
        entry.header.sequence = sequence;
        let mut bytes = SmallVec::from_slice(entry.as_bytes());
        reseal(&mut bytes, inode.seed);
        survivors.push(Survivor {
            bytes,
            sequence,
            old_owner: IN_IMAGE,
            old_address: 0,
            references: References::Inode,
        });
        // The word that leads to the entry is stored behind the flush of the image.
        let _ = written;
        self.replace_whole(fs, inode, &survivors, Purpose::Removal)?;
        let mut pieces = Vec::new();
        map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| pieces.push(piece));
        pieces.into_iter().for_each(|piece| map.change_owner(piece, IN_IMAGE));
        inode.image.set(Some(image));
        self.compaction.done_at = self.state.next_sequence;
        Ok(())
    }

    /// Has entries say again where blocks are, instead of an image.
    pub(crate) fn take_image_back<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        purpose: Purpose,
    ) -> Result<()> {
        if self.state.broken {
            // A part of an operation would become all of it.
            return Err(Error::new(Kind::Media).object(format!("log of inode {}", inode.number)));
        }
        let (Some(image), Body::File(map)) = (inode.image.get(), &inode.body) else { return Ok(()) };
        if inode.image.is_unread() {
            // A change of where blocks are must know where they were.
            return Err(image.damaged(inode.whose()));
        }
        self.drop_dead_pages(fs, inode)?;
        let Gathered { mut survivors, loose, .. } = self.gather_whole(fs, inode)?;
        let mut loose = loose.unwrap_or_default();
        loose.take_all(map, inode.pack(inode.attr.get().mtime));
        name_anew(loose, inode.seed, &mut survivors);
        self.replace_whole(fs, inode, &survivors, purpose)?;
        inode.image.set(None);
        fs.tiers.free(image.run);
        Ok(())
    }
}
