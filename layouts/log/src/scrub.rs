//! The scrub of this layout: reads inodes with their logs, and values of attributes. The scrub itself is in
//! `nacre-layout-parts`.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Block, DamagedCopy, Error, FileKind, Kind, Result, TierReader, TierRun};
use nacre_layout_parts::scrub::{NameVisitor, Scrubbed, TierPart, Volume, bad_ranges};
use nacre_media::Pm;

use crate::alloc::Run;
use crate::blockmap::Piece;
use crate::format::{CHUNK_INODES, INODE_SIZE, MAX_FILE_SIZE, ROOT_INODE, place};
use crate::fs::Shared;
use crate::image::Image;
use crate::inode::{Body, Inode};
use crate::scan::{Ending, LogSource, read_inode, scan_log};
use crate::superblock::Found;

/// Names that are read at a time.
const NAMES: usize = 128;

impl<P: Pm + 'static> Scrubbed for Shared<P> {
    type Media = P;

    fn volume(&self) -> Volume<'_, P> {
        Volume::of_device(&self.pm, &self.superblock, &self.alloc, self.read_only, ROOT_INODE)
    }

    fn read_superblock(&self) -> Result<Found> {
        crate::superblock::read(&*self.pm)
    }

    fn inodes(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.inodes.for_each_chunk(|chunk, used| {
            let set = |index: &u64| used[(index / 64) as usize] >> (index % 64) & 1 == 1;
            numbers.extend((0..CHUNK_INODES).filter(set).map(|index| chunk * CHUNK_INODES + index));
        });
        numbers
    }

    fn check_inode(&self, number: u64) -> Result<u64> {
        self.with_inode(number, |inode, in_use| {
            let mut pages = inode.log.lock().index.page_count;
            if in_use {
                let log = inode.log.lock();
                if log.state.dead_inode {
                    return Ok(0);
                }
                let raw = read_inode(&*self.pm, inode.address)?;
                if !raw.is_valid(inode.seed) {
                    return Err(Error::corrupt("header"));
                }
                let (generation, seed, address) = (inode.generation, inode.seed, inode.address);
                let source = LogSource { number, generation, seed, address };
                pages = scan_log(&*self.pm, source, &raw, Ending::Clean, false, &mut |_| Ok(()))?.pages.len()
                    as u32;
            }
            self.check_values(inode)?;
            Ok((1 + u64::from(pages)) * BLOCK_SIZE)
        })
    }

    fn hits(&self, number: u64, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Result<Vec<String>> {
        self.with_inode(number, |inode, _| Ok(hits(inode, bad, told)))
    }

    fn for_each_name(&self, number: u64, visit: &mut NameVisitor<'_>) -> Result<()> {
        let node = self.hold(number)?;
        let Ok(directory) = node.inode.directory() else { return Ok(()) };
        let mut after = 0;
        loop {
            let batch = directory.read(&*self.pm, self.hash_seed, after, NAMES)?;
            for dentry in &batch {
                after = dentry.cookie(self.hash_seed);
                let is_directory = dentry.raw.kind == FileKind::Directory as u8;
                if visit(dentry.name(), dentry.raw.inode, is_directory).is_break() {
                    return Ok(());
                }
            }
            if batch.len() < NAMES {
                return Ok(());
            }
        }
    }

    fn tiers(&self) -> Vec<(u8, u64)> {
        let used = |number| {
            let space = self.tiers.space(number).unwrap_or_default();
            (space.blocks - space.free) * BLOCK_SIZE
        };
        self.tier_list().iter().map(|tier| (tier.number, used(tier.number))).collect()
    }

    fn check_tier(&self, number: u8) -> Result<Vec<DamagedCopy>> {
        self.tier_reader()?.check_superblock(number)
    }

    fn on_tiers(&self, number: u64) -> Result<Vec<TierPart>> {
        let (mut parts, image) = self.with_inode(number, |inode, _| {
            let image = inode.image.get().map(|image| (image, inode.whose(), inode.image.is_unread()));
            Ok((mapped_on_tiers(inode), image))
        })?;
        if let Some((image, whose, is_unread)) = image {
            parts.push(TierPart { run: image.run, in_file: None });
            // No lock is held while a disk is waited for. The reader of a part reports the blocks that cannot be read.
            if is_unread {
                match self.extents_of(&image, whose) {
                    Ok(pieces) => parts.extend(pieces.iter().filter_map(part_of)),
                    Err(error) if error.kind() == Kind::Corrupt && self.has_image(number, &image) => {
                        return Err(error);
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(parts)
    }

    fn read_tier(&self, run: TierRun) -> Result<()> {
        self.tier_reader()?.read_image(run).map(drop)
    }
}

/// A piece that is on a tier, and written.
fn part_of(piece: &Piece) -> Option<TierPart> {
    let tier = place::tier(piece.place);
    let start = Block(piece.place & place::BLOCK_MASK);
    let is_written = piece.place & place::UNWRITTEN == 0;
    let run = TierRun { tier, start, len: piece.len };
    (tier != 0 && is_written).then_some(TierPart { run, in_file: Some(piece.start) })
}

/// The parts of an inode's map that are on tiers.
fn mapped_on_tiers(inode: &Inode) -> Vec<TierPart> {
    let mut parts = Vec::new();
    if let Body::File(map) = &inode.body {
        map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| parts.extend(part_of(&piece)));
    }
    parts
}

impl<P: Pm> Shared<P> {
    fn tier_reader(&self) -> Result<Arc<dyn TierReader>> {
        let reader = self.image_reader.read().clone();
        reader.ok_or_else(|| Error::new(Kind::DeviceLost).object("tiers: no reader is attached"))
    }

    /// Whether an inode has this image still.
    fn has_image(&self, number: u64, image: &Image) -> bool {
        self.with_inode(number, |inode, _| Ok(inode.image.get().as_ref() == Some(image))).unwrap_or(false)
    }

    /// Calls `look` with an inode: the one that is in DRAM (true), or else one that is read for this only, so that a
    /// scrub fills no DRAM. That one does not change meanwhile, because no operation can take it into use.
    fn with_inode<R>(&self, number: u64, look: impl FnOnce(&Inode, bool) -> Result<R>) -> Result<R> {
        let slot = self.inodes.slot(number)?.read();
        if let Some(inode) = &*slot {
            let inode = Arc::clone(inode);
            drop(slot);
            return look(&inode, true);
        }
        if !self.inodes.is_readable(number) {
            return Err(Error::new(Kind::Stale));
        }
        look(&self.load(number)?, false)
    }

    /// Values of attributes in blocks have checksums.
    fn check_values(&self, inode: &Inode) -> Result<()> {
        for name in self.list_xattrs(inode)? {
            match self.get_xattr(inode, &name) {
                Err(error) if error.kind() != Kind::NoAttribute => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The parts of an inode that the bad lines are in.
pub(crate) fn hits(inode: &Inode, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Vec<String> {
    let mut hits = Vec::new();
    for range in bad_ranges(bad, inode.address..inode.address + INODE_SIZE, told) {
        hits.push(format!("a media error in its inode, at byte {}", range.start));
    }
    let mut look = |run: Run, told: &mut BTreeSet<u64>, words: &dyn Fn(Range<u64>) -> String| {
        let start = run.start.offset();
        for range in bad_ranges(bad, start..start + run.len * BLOCK_SIZE, told) {
            hits.push(words(range.start - start..range.end - start));
        }
    };
    for run in inode.log.lock().index.blocks() {
        look(run, told, &|within| {
            format!("a media error in its log, at byte {}", run.start.offset() + within.start)
        });
    }
    if let Body::File(map) = &inode.body {
        map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| {
            if place::tier(piece.place) != 0 {
                return;
            }
            let run = Run { start: Block(piece.place & place::BLOCK_MASK), len: piece.len };
            look(run, told, &|within| {
                let from = piece.start * BLOCK_SIZE;
                format!("a media error in bytes {} to {}", from + within.start, from + within.end)
            });
        });
    }
    crate::xattr_index::for_each(&inode.xattrs, |xattr| {
        if let Some(run) = xattr.run {
            let name = String::from_utf8_lossy(&xattr.name).into_owned();
            look(run, told, &|_| format!("a media error in the value of attribute {name}"));
        }
        ControlFlow::Continue(())
    });
    hits
}
