//! The scrub of this layout: compares both copies of its metadata and mends them, and finds the files that media errors
//! are in. The scrub itself is in `nacre-layout-parts`.

use std::collections::{BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Result};
use nacre_layout_parts::badblocks::Share;
use nacre_layout_parts::contract::read_dir;
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
use crate::superblock::{Found, Superblock};
use crate::{repair, volumes, zones};

/// Structures that are compared while no operation is under way.
const AT_ONCE: usize = 64;

impl<P: Pm> Retired for Shared<P> {
    fn bad_blocks(&self) -> Vec<Block> {
        self.bad.all()
    }

    fn withdraw(&self, block: Block) {
        let group = block.0 / GROUP_BLOCKS;
        // The process that has another zone finds what is bad there.
        if !self.geometry.groups().contains(&group) {
            return;
        }
        // Its bit may go on saying that it is free: the list counts.
        let noted = self.change(|change| {
            let index = change.group(group)?;
            let edit = &change.groups[index];
            let bit = bits::run(block.0 % GROUP_BLOCKS, 1);
            if bits::meet(&bits::without(&edit.old, &edit.bad), &bit) {
                self.count_bad(edit, &bit);
            }
            self.bad.insert(block);
            Ok(())
        });
        if noted.is_err() {
            // The map of its group cannot be read, and counts for nothing.
            self.bad.insert(block);
        }
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
            is_shared: self.pm.is_shared(),
            share: Share { part: self.geometry.zone.into(), of: self.zones.into() },
            root: ROOT_INODE,
        }
    }

    fn read_superblock(&self) -> Result<Found> {
        crate::superblock::read(&*self.pm)
    }

    fn range(&self, end: u64) -> Range<u64> {
        let groups = self.geometry.groups();
        // Behind the last group of the device there may be less than one.
        let is_last = groups.end == end / GROUP_BYTES;
        groups.start * GROUP_BYTES..if is_last { end } else { groups.end * GROUP_BYTES }
    }

    fn is_ours(&self, block: Block) -> bool {
        let is_other = |(_, of_group)| matches!(self.geometry.use_of(of_group), Use::Other(_));
        let group = block.0 / GROUP_BLOCKS;
        block.0 < self.geometry.first_data_block || !self.read_map(group).is_ok_and(is_other)
    }

    fn check_copies(&self, found: &mut dyn FnMut(String, bool), spend: &mut dyn FnMut(u64) -> bool) {
        let mut mended = 0;
        self.compare_all(
            &mut |what, is_mended| {
                mended += u64::from(is_mended);
                found(what, is_mended);
            },
            spend,
        );
        self.count_damage(mended, 0);
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
    /// Compares the copies of everything, and mends them. `found` and `spend` are those of a scrub.
    fn compare_all(&self, found: &mut dyn FnMut(String, bool), spend: &mut dyn FnMut(u64) -> bool) {
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

    /// Whether metadata is at an address: in a region, or in a pool block of this volume. It stays so while the caller
    /// holds all lanes. Without them an operation may free a pool block, and another one put data of files there.
    pub(crate) fn has_metadata(&self, address: u64) -> bool {
        let block = self.geometry.pool_of(address);
        let of_group = || self.pool_blocks(self.geometry.group_of(address));
        address / BLOCK_SIZE < self.geometry.first_data_block
            || of_group().is_ok_and(|blocks| blocks.contains(&block))
    }

    /// Writes pages of metadata anew that have lines that cannot be read, in use or not.
    fn mend_unreadable(&self, bytes: Range<u64>, found: &mut dyn FnMut(String, bool)) {
        let mut page = [0; BLOCK_SIZE as usize];
        for at in bytes.step_by(BLOCK_SIZE as usize) {
            if self.pm.read(at, &mut page).is_ok() {
                continue;
            }
            let _lanes: Vec<_> = self.lanes.iter().map(|lane| lane.scratch.lock()).collect();
            if !self.has_metadata(at) {
                return;
            }
            let is_mended =
                !self.read_only && mend_page(&*self.pm, &self.geometry, Block(at / BLOCK_SIZE), &[]).is_ok();
            if is_mended {
                self.damaged.is_mended(at, BLOCK_SIZE);
            }
            let outcome = if is_mended { ", and written from the other copy" } else { "" };
            found(format!("a media error in metadata, at byte {at} of the device{outcome}"), is_mended);
        }
    }

    fn compare_pool_block(&self, block: u64, found: &mut dyn FnMut(String, bool)) {
        let geometry = self.geometry;
        let mut next = 0;
        loop {
            let _lanes: Vec<_> = self.lanes.iter().map(|lane| lane.scratch.lock()).collect();
            // It may be given back between two turns, and be another one then.
            if !self.has_metadata(block) {
                return;
            }
            if next == 0 {
                self.compare_locked(vec![Copies::pool_head(&geometry, block)], found);
            }
            let Ok(head) = self.read_head(block) else { return };
            let (pool, count) = (head.pool as usize, u64::from(head.count));
            if next == 0 {
                let words = count.div_ceil(WORD_BITS) as usize;
                let what = format!("the bits of the pool block at byte {block}");
                self.compare_locked(vec![Copies::words(block + POOL_BITS, block, words, what)], found);
            }
            let some = (next..count).take(AT_ONCE).map(|index| block + POOL_HEAD + index * SIZES[pool]);
            let in_use = some.filter(|&entry| self.is_in_use(pool, entry).unwrap_or(false));
            let copies = in_use.flat_map(|entry| Copies::entry(&geometry, pool, entry)).collect();
            self.compare_locked(copies, found);
            next += AT_ONCE as u64;
            if next >= count {
                return;
            }
        }
    }

    fn compare(&self, copies: Vec<Copies<'_>>, found: &mut dyn FnMut(String, bool)) {
        // While all lanes are held, no operation is under way.
        let _lanes: Vec<_> = self.lanes.iter().map(|lane| lane.scratch.lock()).collect();
        self.compare_locked(copies, found);
    }

    fn compare_locked(&self, copies: Vec<Copies<'_>>, found: &mut dyn FnMut(String, bool)) {
        for copies in copies {
            let Some((what, fixes)) = copies.compare(&*self.pm, &self.geometry).problem else { continue };
            if fixes.is_empty() || self.read_only {
                found(what, false);
                continue;
            }
            let mended = fixes.iter().all(|fix| self.store_copy(&fix.bytes, fix.address).is_ok());
            if mended {
                fixes.iter().for_each(|fix| self.damaged.is_mended(fix.address, fix.bytes.len() as u64));
            }
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
        let read = |after, limit| {
            let _lock = self.read_lock(number);
            let raw = self.read_inode(number)?;
            if !raw.is_directory() {
                return Ok(Vec::new());
            }
            self.list(self.directory(number, &raw)?, after, limit)
        };
        read_dir(0, read, &mut |entry| visit(entry.name, entry.id.number, entry.kind == FileKind::Directory))
    }
}

/// Reads every block of a file system that is not mounted, and reports those that cannot be read and their owners. With
/// `record`, the blocks of files among them are put into the list of bad blocks.
pub(crate) fn check_media<P: Pm>(pm: &P, record: bool, volume: Option<&str>) -> Result<MediaReport> {
    let superblock = crate::superblock::read(pm)?.superblock;
    if record {
        superblock.check_writable()?;
    }
    let (mut lines, mut retired) = all_bad_lines(pm, &superblock)?;
    let mut share = Share::ALL;
    if let Some(name) = volume {
        let geometry = volumes::find(pm, &superblock, Some(name))?;
        let groups = geometry.groups();
        let bytes = groups.start * GROUP_BYTES..groups.end * GROUP_BYTES;
        lines.retain(|line| bytes.contains(line));
        retired.retain(|line| bytes.contains(line));
        share = Share { part: geometry.zone.into(), of: zones::count(pm, &superblock).into() };
    }
    let zones = volumes::zones_to_check(pm, &superblock, volume)?;
    let [told, _] = locate(&Overlay::new(pm), &retired, &zones);
    let errors = locate(&Overlay::new(pm), &lines, &zones).concat();
    let note = |share| new_bad_blocks(pm, &superblock, &lines, share);
    let new_blocks = match note(None)? {
        0 => 0,
        _ if record => and_count(pm, &superblock, &zones, || note(Some(share)))?,
        new_blocks => new_blocks,
    };
    Ok(MediaReport { errors, told, new_blocks })
}

/// Puts the blocks that the media lists as bad into the list of bad blocks, which takes them out of use.
pub(crate) fn retire_listed<P: Pm>(pm: &P) -> Result<u64> {
    let superblock = crate::superblock::read(pm)?.superblock;
    let zones = volumes::zones_to_check(pm, &superblock, None)?;
    if pm.known_errors().is_empty() {
        return Ok(0);
    }
    and_count(pm, &superblock, &zones, || nacre_layout_parts::scrub::retire_listed(pm, &superblock))
}

/// Bad blocks do not count as free: the counts that clean unmounts kept are others then. They do not count while `note`
/// adds blocks, so that a mount after a crash counts anew.
fn and_count<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    zones: &[u32],
    note: impl FnOnce() -> Result<u64>,
) -> Result<u64> {
    repair::forget_counts(pm, superblock, zones)?;
    let count = note()?;
    repair::recount(pm, superblock, zones, false)?;
    Ok(count)
}

/// Describes the bad lines in files, and then those that are in no file. Operations that are not over are decided first.
fn locate<P: Pm>(pm: &P, lines: &BTreeSet<u64>, zones: &[u32]) -> [Vec<String>; 2] {
    let mut told = BTreeSet::new();
    let words = match lines.is_empty() {
        true => Vec::new(),
        // Where nothing leads into the file system, every line is in no file.
        false => in_files(pm, lines, &mut told, zones).unwrap_or_default(),
    };
    [words, untold(lines, &mut told).into_iter().map(in_no_file).collect()]
}

fn in_files<P: Pm>(
    pm: &P,
    lines: &BTreeSet<u64>,
    told: &mut BTreeSet<u64>,
    zones: &[u32],
) -> Result<Vec<String>> {
    let found = crate::superblock::read(pm)?;
    let volumes = volumes::all(pm, &found.superblock, zones)?;
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

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::Arc;

    use nacre_engine::{
        BLOCK_SIZE, Data, Durability, Extents, FileBlock, FileKind, Names, NewInode, Place, Timestamp,
        WriteAt,
    };
    use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
    use nacre_media::SimPm;

    use crate::mount::PoolFs;

    /// The scrub had a list of the pool blocks of a group. One of them had been given back meanwhile, and its first half
    /// had data: the head that was left in its second half was written over that.
    #[test]
    fn data_where_a_pool_block_was_is_not_written_over() {
        nacre_layout_parts::alloc::use_lane(0);
        let pm = Arc::new(SimPm::new(64 << 20));
        let options = MkfsOptions { uuid: Some(uuid::Uuid::from_u128(7)), ..MkfsOptions::default() };
        <PoolFs<SimPm> as Lifecycle>::mkfs(&pm, &options).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let fs = <PoolFs<SimPm> as Lifecycle>::mount(Arc::clone(&pm), &options).unwrap();
        let now = Timestamp::new(1_700_000_000, 0);
        let create = |name: &str| {
            let new = NewInode::of_root(FileKind::Regular, 0o644, now);
            fs.create(&fs.root(), name.as_bytes(), &new).unwrap()
        };
        let data = create("data");
        let names: Vec<String> = (0..10_000).map(|number| format!("file-{number}")).collect();
        names.iter().for_each(|name| drop(create(name)));
        let groups = fs.shared.geometry.groups();
        let all = || -> Vec<u64> {
            groups.clone().flat_map(|group| fs.shared.pool_blocks(group).unwrap()).collect()
        };
        let before = all();
        names.iter().for_each(|name| fs.unlink(&fs.root(), name.as_bytes(), now).unwrap());
        fs.shared.reclaim_all();
        fs.shared.release_active().unwrap();
        let gone: Vec<u64> = before.iter().copied().filter(|block| !all().contains(block)).collect();
        assert!(gone.len() > 5, "{} of {} pool blocks were given back", gone.len(), before.len());

        // Data comes until it has the first half of one of them, and not the second.
        let bytes = [0x5a; BLOCK_SIZE as usize];
        let place = |index: u64| match fs.resolve(&data, FileBlock(index), 1).unwrap()[0].place {
            Place::Pm(block) => block.offset(),
            other => panic!("it is at {other:?}"),
        };
        let found = (0..).find_map(|index| {
            let at = WriteAt::Offset(index * BLOCK_SIZE);
            fs.write(&data, at, &[IoSlice::new(&bytes)], Durability::Now, now).expect("there is room");
            gone.iter().copied().find(|&block| block == place(index)).map(|block| (index, block))
        });
        let (index, block) = found.expect("data is put where pool blocks were");
        let mut findings = Vec::new();
        let mut note = |words: String, _| findings.push(words);
        fs.shared.compare_pool_block(block, &mut note);
        fs.shared.damaged.note(block, 64);
        fs.shared.mend_noted().unwrap();
        let mut seen = [0; BLOCK_SIZE as usize];
        fs.read(&data, index * BLOCK_SIZE, &mut seen, None).unwrap();
        assert!(seen == bytes && findings.is_empty(), "{findings:?}");
    }
}
