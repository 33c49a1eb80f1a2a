//! The scrub of this layout: compares both copies of its metadata and mends them, and finds the files that media errors
//! are in. The scrub itself is in `nacre-layout-parts`.

use std::collections::{BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Result};
use nacre_layout_parts::badblocks;
use nacre_layout_parts::report::{MediaReport, in_no_file};
pub(crate) use nacre_layout_parts::scrub::Scrubber;
use nacre_layout_parts::scrub::{
    NameVisitor, Retired, Scrubbed, Volume, all_bad_lines, bad_ranges, new_bad_blocks, untold,
};
use nacre_media::{Overlay, Pm};

use crate::bits;
use crate::copies::Copies;
use crate::format::pools::{INODES, SIZES};
use crate::format::{
    GROUP_BLOCKS, GROUP_BYTES, INODE_SIZE, POOL_BITS, POOL_HEAD, ROOT_INODE, RawInode, WORD_BITS,
};
use crate::fs::Shared;
use crate::geometry::Use;
use crate::mend::mend_page;
use crate::superblock::Found;
use crate::volumes;

/// Names that are read at a time.
const NAMES: usize = 128;
/// Structures that are compared while no operation is under way.
const AT_ONCE: usize = 64;

impl<P: Pm> Retired for Shared<P> {
    fn bad_blocks(&self) -> Vec<Block> {
        self.bad.lock().iter().map(|&block| Block(block)).collect()
    }

    fn withdraw(&self, block: Block) {
        self.bad.lock().insert(block.0);
        // One that is in use is withdrawn when it is freed.
        let _ = self.change(|change| {
            let index = change.group(block.0 / GROUP_BLOCKS)?;
            let edit = &mut change.groups[index];
            let bit = bits::run(block.0 % GROUP_BLOCKS, 1);
            let can_be_taken = matches!(self.geometry.use_of(edit.purpose), Use::Free | Use::Data);
            if !can_be_taken || !bits::meet(&edit.old, &bit) {
                return Ok(());
            }
            edit.taken = bit;
            change.commit()
        });
    }
}

impl<P: Pm + 'static> Scrubbed for Shared<P> {
    type Media = P;

    fn volume(&self) -> Volume<'_, P> {
        Volume {
            pm: &self.pm,
            superblock: &self.superblock,
            retired: self,
            read_only: self.read_only,
            root: ROOT_INODE,
        }
    }

    fn read_superblock(&self) -> Result<Found> {
        crate::superblock::read(&*self.pm)
    }

    fn check_copies(&self, found: &mut dyn FnMut(String, bool), spend: &mut dyn FnMut(u64) -> bool) {
        let geometry = self.geometry;
        let rows = [Copies::zone(&geometry), Copies::volume(&geometry), Copies::orphan_heads(&geometry)];
        let lanes = (0..geometry.lanes).map(|index| Copies::done(&geometry, index));
        for halves in [geometry.volumes, geometry.zones, geometry.maps, geometry.lanes_at] {
            self.mend_unreadable(halves.start..halves.start + 2 * halves.len, found);
        }
        self.compare(rows.into_iter().chain(lanes).collect(), found);
        for group in geometry.groups() {
            self.compare(vec![Copies::map(&geometry, group)], found);
            for block in self.pool_blocks(group).unwrap_or_default() {
                self.mend_unreadable(block..block + geometry.pool_block, found);
                self.compare_pool_block(block, found);
                if !spend(geometry.pool_block) {
                    return;
                }
            }
        }
    }

    fn inodes(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        for group in self.geometry.groups() {
            for block in self.pool_blocks(group).unwrap_or_default() {
                let Ok(head) = self.read_head(block) else { continue };
                if head.pool as usize != INODES {
                    continue;
                }
                let entries = (0..u64::from(head.count)).map(|index| block + POOL_HEAD + index * INODE_SIZE);
                let in_use = entries.filter(|&entry| self.is_in_use(INODES, entry).unwrap_or(false));
                numbers.extend(in_use.map(|entry| self.number_of(entry)));
            }
        }
        numbers
    }

    fn check_inode(&self, number: u64) -> Result<u64> {
        let _lock = self.read_lock(number);
        if !self.is_inode(self.address(number)?)? {
            return Err(Error::new(Kind::Stale));
        }
        let raw = self.read_inode(number)?;
        self.check_contents(number, &raw)
    }

    fn hits(&self, number: u64, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Result<Vec<String>> {
        let _lock = self.read_lock(number);
        let raw = self.read_inode(number)?;
        self.bad_in_contents(number, &raw, bad, told)
    }

    fn for_each_name(&self, number: u64, visit: &mut NameVisitor<'_>) -> Result<()> {
        self.visit_names(number, visit)
    }
}

impl<P: Pm> Shared<P> {
    /// The pool blocks of a group.
    pub(crate) fn pool_blocks(&self, group: u64) -> Result<Vec<u64>> {
        let (free, of_group) = self.read_map(group)?;
        if self.geometry.use_of(of_group) != Use::Pool {
            return Ok(Vec::new());
        }
        let slots = 0..self.geometry.pool_blocks_in_group();
        let blocks = slots.map(|slot| group * GROUP_BYTES + slot * self.geometry.pool_block);
        let in_use = |block: &u64| !bits::meet(&free, &bits::run(block % GROUP_BYTES / BLOCK_SIZE, 1));
        Ok(blocks.filter(in_use).collect())
    }

    /// Writes pages of metadata anew that have lines that cannot be read, in use or not.
    fn mend_unreadable(&self, bytes: Range<u64>, found: &mut dyn FnMut(String, bool)) {
        let mut page = [0; BLOCK_SIZE as usize];
        for at in bytes.step_by(BLOCK_SIZE as usize) {
            if self.pm.read(at, &mut page).is_ok() {
                continue;
            }
            let _lanes: Vec<_> = self.lanes.iter().map(|lane| lane.scratch.lock()).collect();
            let is_mended =
                !self.read_only && mend_page(&*self.pm, &self.geometry, Block(at / BLOCK_SIZE), &[]).is_ok();
            let outcome = if is_mended { ", and written from the other copy" } else { "" };
            found(format!("a media error in metadata, at byte {at} of the device{outcome}"), is_mended);
        }
    }

    fn compare_pool_block(&self, block: u64, found: &mut dyn FnMut(String, bool)) {
        let geometry = self.geometry;
        self.compare(vec![Copies::pool_head(&geometry, block)], found);
        let Ok(head) = self.read_head(block) else { return };
        let (pool, count) = (head.pool as usize, u64::from(head.count));
        let words = count.div_ceil(WORD_BITS) as usize;
        let what = format!("the bits of the pool block at byte {block}");
        self.compare(vec![Copies::words(block + POOL_BITS, block, words, what)], found);
        let entries: Vec<u64> = (0..count).map(|index| block + POOL_HEAD + index * SIZES[pool]).collect();
        for some in entries.chunks(AT_ONCE) {
            let _lanes: Vec<_> = self.lanes.iter().map(|lane| lane.scratch.lock()).collect();
            let in_use = some.iter().filter(|&&entry| self.is_in_use(pool, entry).unwrap_or(false));
            let copies = in_use.flat_map(|&entry| Copies::entry(&geometry, pool, entry)).collect();
            self.compare_locked(copies, found);
        }
    }

    fn compare(&self, copies: Vec<Copies<'_>>, found: &mut dyn FnMut(String, bool)) {
        // While all lanes are held, no operation is under way.
        let _lanes: Vec<_> = self.lanes.iter().map(|lane| lane.scratch.lock()).collect();
        self.compare_locked(copies, found);
    }

    fn compare_locked(&self, copies: Vec<Copies<'_>>, found: &mut dyn FnMut(String, bool)) {
        for copies in copies {
            let Some((what, fix)) = copies.compare(&*self.pm, &self.geometry).problem else { continue };
            let Some(fix) = fix.filter(|_| !self.read_only) else {
                found(what, false);
                continue;
            };
            let mended = self.store_copy(&fix.bytes, fix.address).is_ok();
            found(if mended { format!("{what}, and written from the other copy") } else { what }, mended);
        }
    }

    /// Writes a copy anew; pages with media errors as a whole.
    fn store_copy(&self, bytes: &[u8], address: u64) -> Result<()> {
        let stored = match self.pm.copy(address, bytes) {
            Err(error) if error.kind() == Kind::Media => {
                let last = (address + bytes.len() as u64 - 1) / BLOCK_SIZE;
                for page in address / BLOCK_SIZE..=last {
                    mend_page(&*self.pm, &self.geometry, Block(page), &[])?;
                }
                self.pm.copy(address, bytes)?
            }
            stored => stored?,
        };
        self.pm.fence(stored);
        Ok(())
    }

    /// Reads the metadata of an inode; gives its bytes.
    fn check_contents(&self, number: u64, raw: &RawInode) -> Result<u64> {
        self.attr(number, raw)?;
        let mut bytes = INODE_SIZE;
        if raw.attributes != 0 {
            self.read_xattrs(raw.attributes)?;
            bytes += BLOCK_SIZE;
        }
        match FileKind::from_u8(raw.kind) {
            Some(FileKind::Regular) => {
                self.for_each(self.tree(number, raw)?, 0, u64::MAX, &mut |_| {
                    bytes += 8;
                    Ok(())
                })?;
            }
            Some(FileKind::Directory) => {
                let mut sets = Vec::new();
                self.for_each_part(self.directory(number, raw)?, &mut |part| {
                    if let crate::directory::Part::Set(set) = part {
                        sets.push(set);
                    }
                    Ok(())
                })?;
                for set in sets {
                    bytes += SIZES[set.pool];
                    self.names_of(set)?.iter().try_for_each(|raw| self.name_of(raw).map(drop))?;
                }
            }
            Some(FileKind::Symlink) => drop(self.target_of(number, raw)?),
            _ => {}
        }
        Ok(bytes)
    }

    /// Descriptions of the bad lines in a file's blocks. Those in metadata have a second copy, and are told with it.
    fn bad_in_contents(
        &self,
        number: u64,
        raw: &RawInode,
        bad: &BTreeSet<u64>,
        told: &mut BTreeSet<u64>,
    ) -> Result<Vec<String>> {
        let mut hits = Vec::new();
        if raw.kind != FileKind::Regular as u8 {
            return Ok(hits);
        }
        self.for_each(self.tree(number, raw)?, 0, u64::MAX, &mut |piece| {
            let start = piece.offset();
            for Range { start: from, end } in bad_ranges(bad, start..start + piece.len * BLOCK_SIZE, told) {
                let at = piece.start * BLOCK_SIZE;
                hits.push(format!("a media error in bytes {} to {}", at + from - start, at + end - start));
            }
            Ok(())
        })?;
        Ok(hits)
    }

    fn visit_names(&self, number: u64, visit: &mut NameVisitor<'_>) -> Result<()> {
        let mut after = 0;
        loop {
            let batch = {
                let _lock = self.read_lock(number);
                let raw = self.read_inode(number)?;
                if !raw.is_directory() {
                    return Ok(());
                }
                self.list(self.directory(number, &raw)?, after, NAMES)?
            };
            for listed in &batch {
                after = listed.cookie;
                let goes_on = visit(&listed.name, listed.id.number, listed.kind == FileKind::Directory);
                if let ControlFlow::Break(()) = goes_on {
                    return Ok(());
                }
            }
            if batch.len() < NAMES {
                return Ok(());
            }
        }
    }
}

/// Reads every block of a file system that is not mounted, and reports those that cannot be read and their owners. With
/// `record`, the blocks of files among them are put into the list of bad blocks.
pub(crate) fn check_media<P: Pm>(pm: &P, record: bool) -> Result<MediaReport> {
    let superblock = crate::superblock::read(pm)?.superblock;
    if record {
        superblock.check_writable()?;
    }
    let (lines, retired) = all_bad_lines(pm, &superblock)?;
    let [told, _] = locate(&Overlay::new(pm), &retired);
    let errors = locate(&Overlay::new(pm), &lines).concat();
    let new_blocks = new_bad_blocks(pm, &superblock, &lines, record)?;
    Ok(MediaReport { errors, told, new_blocks })
}

/// Puts the blocks that the media lists as bad into the list of bad blocks, and takes them out of use.
pub(crate) fn retire_listed<P: Pm>(pm: &P) -> Result<u64> {
    let found = crate::superblock::read(pm)?;
    let count = nacre_layout_parts::scrub::retire_listed(pm, &found.superblock)?;
    if count == 0 {
        return Ok(0);
    }
    let blocks = badblocks::read(pm, &found.superblock)?.blocks;
    for geometry in volumes::all(pm, &found.superblock)? {
        let fs = volumes::open_one(pm, &found.superblock, geometry, false)?;
        fs.take_up(fs.count()?);
        blocks.iter().for_each(|&block| fs.withdraw(block));
        let counts = *fs.counts.lock();
        fs.change_rows(|row| row.keep(&counts), |zone| zone.keep(&counts))?;
        fs.settle_lanes()?;
    }
    Ok(count)
}

/// Describes the bad lines in files, and then those that are in no file. Operations that are not over are decided first.
fn locate<P: Pm>(pm: &P, lines: &BTreeSet<u64>) -> [Vec<String>; 2] {
    let mut told = BTreeSet::new();
    let words = match lines.is_empty() {
        true => Vec::new(),
        // Where nothing leads into the file system, every line is in no file.
        false => in_files(pm, lines, &mut told).unwrap_or_default(),
    };
    [words, untold(lines, &mut told).into_iter().map(in_no_file).collect()]
}

fn in_files<P: Pm>(pm: &P, lines: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Result<Vec<String>> {
    let found = crate::superblock::read(pm)?;
    let volumes = volumes::all(pm, &found.superblock)?;
    let of_several = volumes.len() > 1;
    let mut words = Vec::new();
    for geometry in volumes {
        // The files of a damaged volume are not known.
        let Ok(fs) = volumes::open_one(pm, &found.superblock, geometry, true) else { continue };
        let of = if of_several { format!("volume {}: ", fs.row.lock().name()) } else { String::new() };
        let hits = in_files_of(&fs, lines, told);
        words.extend(hits.into_iter().map(|hit| format!("{of}{hit}")));
    }
    Ok(words)
}

fn in_files_of<P: Pm>(fs: &Shared<P>, lines: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Vec<String> {
    let mut words = Vec::new();
    let mut pending = vec![(String::new(), ROOT_INODE)];
    let mut seen: HashMap<u64, ()> = HashMap::new();
    while let Some((path, number)) = pending.pop() {
        if seen.insert(number, ()).is_some() {
            continue;
        }
        let Ok(raw) = fs.read_inode(number) else { continue };
        let shown = if path.is_empty() { "/" } else { &path };
        let hits = fs.bad_in_contents(number, &raw, lines, told).unwrap_or_default();
        words.extend(hits.into_iter().map(|hit| format!("{shown} (inode {number}): {hit}")));
        // An unreadable directory leads nowhere.
        let _ = fs.visit_names(number, &mut |name, inode, _| {
            pending.push((format!("{path}/{}", String::from_utf8_lossy(name)), inode));
            ControlFlow::Continue(())
        });
    }
    words
}
