//! The second half of a check: what the walk found, against the bits, the inodes and the counts.
//!
//! An entry or block that is led to is in use, whatever its bits say. Only a pass that gives nothing up knows the
//! others.

use std::collections::{BTreeMap, BTreeSet};

use nacre_engine::{FileKind, size};
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::bits;
use crate::edits::with_purpose;
use crate::format::pools::{INODES, SIZES};
use crate::format::{
    GROUP_BLOCKS, POOL_BITS, POOL_HEAD, ROOT_INODE, RawInode, RawVolume, WORD_BITS, purpose, seal_any,
};
use crate::geometry::Use;
use crate::inode::kind_of;
use crate::rescue::Rescue;
use crate::walk::Walk;
use crate::zones;

/// A word of bits that a check changes.
#[derive(Default)]
struct Word {
    block: u64,
    freed: u64,
    taken: u64,
}

impl<P: Pm> Walk<'_, P> {
    /// The word with the bit of an entry, and the bit.
    fn bit_of(&self, entry: u64, pool: usize) -> (u64, u64, u64) {
        let block = self.fs.geometry.pool_of(entry);
        let index = (entry - block - POOL_HEAD) / SIZES[pool];
        (block, block + POOL_BITS + index / WORD_BITS * 8, 1 << (index % WORD_BITS))
    }

    /// Entries in use that nothing leads to, and entries that are led to and not in use.
    pub(crate) fn compare_entries(&mut self) {
        let mut words: BTreeMap<u64, Word> = BTreeMap::new();
        let is_lost = |(entry, pool): &(&u64, &usize)| self.allocated.get(entry) != Some(pool);
        let mut unused: Vec<_> = self.reached.iter().filter(is_lost).map(|(&e, &pool)| (e, pool)).collect();
        unused.sort_unstable();
        for (entry, pool) in unused {
            let (block, word, bit) = self.bit_of(entry, pool);
            // The bits of other pool blocks are not known in this pass.
            if self.heads.contains_key(&block) && !self.lost_bits.contains_key(&word) {
                let what = format!("the entry at byte {entry} is used and says that it is free");
                self.problem(what, "say that it is in use");
                let word = words.entry(word).or_default();
                (word.block, word.taken) = (block, word.taken | bit);
            }
        }
        if let Some(is_whole) = self.is_whole() {
            self.compare_lost_bits(is_whole);
            self.compare_unreached(is_whole, &mut words);
        }
        for (address, Word { block, freed, taken }) in words {
            let seed = self.fs.geometry.seed(block);
            if let Some(free) = self.word(address, seed) {
                self.fix(address, &seal_any((free | freed) & !taken, seed).to_le_bytes());
            }
        }
    }

    /// Entries in use that nothing leads to. Inodes with links have lost their names, and keep what they lead to.
    fn compare_unreached(&mut self, is_whole: bool, words: &mut BTreeMap<u64, Word>) {
        let is_leaked = |(entry, _): &(&u64, &usize)| !self.reached.contains_key(entry);
        let leaked: Vec<_> = self.allocated.iter().filter(is_leaked).map(|(&e, &pool)| (e, pool)).collect();
        let nameless: BTreeMap<u64, u64> = leaked
            .iter()
            .filter(|(entry, pool)| *pool == INODES && self.is_worth_a_name(*entry))
            .map(|&(entry, _)| (self.fs.number_of(entry), entry))
            .collect();
        if is_whole && !nameless.is_empty() && self.unread().next().is_some() {
            // Their blocks are in use for the maps that are written anew first. Then they get names.
            for &number in nameless.keys() {
                self.inode(number, 0);
            }
            self.inodes.retain(|number, _| !nameless.contains_key(number));
            return;
        }
        if is_whole && !nameless.is_empty() {
            for &number in nameless.keys() {
                self.problem(format!("inode {number} has no name"), Rescue::GIVE_NAME);
            }
            // Those below another one come back with it.
            let below: BTreeSet<u64> = nameless.keys().flat_map(|&number| self.named_by(number)).collect();
            self.nameless = nameless.keys().copied().filter(|number| !below.contains(number)).collect();
            if self.nameless.is_empty() {
                self.nameless.extend(nameless.keys().next());
            }
            self.is_rebuilding = true;
            return;
        }
        for (entry, pool) in leaked {
            let what = format!("nothing leads to the entry at byte {entry}");
            self.problem(what, if is_whole { "free it" } else { "" });
            if is_whole {
                let (block, word, bit) = self.bit_of(entry, pool);
                let word = words.entry(word).or_default();
                (word.block, word.freed) = (block, word.freed | bit);
            }
        }
    }

    /// An inode that had a name, and is not a link without a target.
    fn is_worth_a_name(&self, entry: u64) -> bool {
        let number = self.fs.number_of(entry);
        let is_link = |raw: &RawInode| kind_of(raw).is_ok_and(|kind| kind == FileKind::Symlink);
        let has_more = |raw: RawInode| raw.links > 0 && (!is_link(&raw) || self.has_target(number, &raw));
        self.fs.read_inode(number).is_ok_and(has_more)
    }

    /// The inodes that a directory names, as far as it can be read.
    fn named_by(&self, number: u64) -> Vec<u64> {
        let fs = self.fs;
        let names = || {
            let raw = fs.read_inode(number)?;
            let names = if raw.is_directory() {
                fs.list(fs.directory(number, &raw)?, 0, usize::MAX)?
            } else {
                Vec::new()
            };
            Ok::<_, nacre_engine::Error>(names)
        };
        let names = names().unwrap_or_default();
        names.into_iter().map(|name| name.id.number).filter(|&other| other != number).collect()
    }

    /// Words of bits that are lost: what something leads to is in use.
    fn compare_lost_bits(&mut self, is_whole: bool) {
        for (word, block) in std::mem::take(&mut self.lost_bits) {
            let what = format!("both copies of bits of the pool block at byte {block} are damaged");
            self.problem(what, if is_whole { "write them as what is led to says" } else { "" });
            let Some(&pool) = self.heads.get(&block).filter(|_| is_whole) else { continue };
            let index = (word - block - POOL_BITS) / 8;
            let mut free = self.fs.all_bits(pool, index);
            for entry in 0..WORD_BITS {
                let at = block + POOL_HEAD + (index * WORD_BITS + entry) * SIZES[pool];
                if self.reached.contains_key(&at) {
                    free &= !(1 << entry);
                }
            }
            self.fix(word, &seal_any(free, self.fs.geometry.seed(block)).to_le_bytes());
        }
    }

    /// Blocks against the bits of their groups.
    pub(crate) fn compare_blocks(&mut self) {
        let geometry = self.fs.geometry;
        let taken_over: Vec<u64> = geometry.groups().filter(|&group| self.takes_over(group)).collect();
        for group in geometry.groups().take_while(|&group| geometry.regions_in(group) > 0) {
            self.mark(group * GROUP_BLOCKS, geometry.regions_in(group));
        }
        let is_whole = self.is_whole();
        let mut strays: BTreeMap<u64, u64> = BTreeMap::new();
        for (group, map) in geometry.groups().zip(self.maps.clone()) {
            let Some((free, of_group)) = map else { continue };
            let of = geometry.use_of(of_group);
            let is_new = taken_over.contains(&group);
            if !self.is_ours(of) && !is_new {
                continue;
            }
            let (used, bad) =
                (self.used[(group - geometry.first_group) as usize], self.fs.bad.of_group(group));
            let mut after = bits::without(&free, &used);
            if after != free {
                let what = format!("group {group}: blocks in use say that they are free");
                self.problem(what, "say that they are in use");
            }
            // Blocks with media errors say that they are free, or do not.
            let owned = bits::either(&used, &bad);
            let mut leaked = bits::without(&bits::without(&[u64::MAX; 8], &owned), &free);
            match of {
                Use::Other(owner) if !is_new => {
                    *strays.entry(owner).or_default() += u64::from(is_whole.is_some());
                    // A file that cannot be read yet may have some of its blocks.
                    if is_whole != Some(true) {
                        continue;
                    }
                }
                _ if leaked == [0; 8] => {}
                _ => match is_whole {
                    Some(is_whole) => {
                        let what =
                            format!("group {group}: {} blocks belong to nothing", bits::count(&leaked));
                        self.problem(what, if is_whole { "free them" } else { "" });
                        leaked = if is_whole { leaked } else { [0; 8] };
                    }
                    None => leaked = [0; 8],
                },
            }
            after = bits::either(&after, &leaked);
            let is_empty = bits::count(&after) + geometry.regions_in(group) == GROUP_BLOCKS;
            let of_group = match of {
                _ if is_new => geometry.data(),
                Use::Other(_) => purpose::FREE,
                Use::Data if is_empty => purpose::FREE,
                _ => of_group,
            };
            if after != free || Some((free, of_group)) != map {
                self.put_map(group, &after, of_group);
            }
        }
        for (owner, groups) in strays.into_iter().filter(|(_, groups)| *groups > 0) {
            let groups = size::count(groups, "group belongs", "groups belong");
            let what = format!("{groups} to volume {owner} of zone {}, which is not there", geometry.zone);
            match is_whole {
                Some(true) => self.loss(what, "give them back; the files of that volume are lost"),
                _ => self.damage(what),
            }
        }
    }

    /// The map of a group becomes this.
    pub(crate) fn put_map(&mut self, group: u64, free: &bits::Bits, of_group: u64) {
        let map = self.fs.geometry.map(group);
        let seed = self.fs.geometry.seed(map);
        let words = with_purpose(free, of_group).map(|word| seal_any(word, seed));
        self.fix(map, words.as_bytes());
    }

    /// A group of no volume has blocks of a file of this one: it becomes this one's.
    fn takes_over(&mut self, group: u64) -> bool {
        let index = (group - self.fs.geometry.first_group) as usize;
        let Some((_, of_group)) = self.maps[index].filter(|_| self.used[index] != [0; 8]) else {
            return false;
        };
        let of = self.fs.geometry.use_of(of_group);
        let what = format!("group {group}: blocks in use are in a group of another volume, or of none");
        match of {
            Use::Data | Use::Pool => false,
            Use::Other(owner) if !self.is_stray(owner) => {
                self.damage(what);
                false
            }
            Use::Free | Use::Other(_) => {
                self.problem(what, "say that the group is the volume's");
                true
            }
        }
    }

    /// The names of inodes against their counts.
    pub(crate) fn compare_inodes(&mut self) {
        let Some(is_whole) = self.is_whole() else { return };
        let mut problems = Vec::new();
        let mut fixes = Vec::new();
        for (&number, seen) in &self.inodes {
            let mut raw = seen.raw;
            let names = if number == ROOT_INODE { 1 } else { seen.names };
            if raw.links != names {
                let links = size::count(raw.links.into(), "link", "links");
                problems.push((format!("inode {number} says {links} and has {names}"), "count them"));
                raw.links = names;
            }
            if let Some(blocks) = seen.blocks.filter(|&blocks| blocks != raw.entries) {
                let what = format!("inode {number} says {} blocks and has {blocks}", raw.entries);
                problems.push((what, "count them"));
                raw.entries = blocks;
            }
            if raw.is_directory() {
                if raw.parent != seen.parent && names > 0 {
                    let parent = seen.parent;
                    let what = format!("directory {number} does not say that it is in directory {parent}");
                    problems.push((what, "say so"));
                    raw.parent = parent;
                }
                if (raw.entries, raw.subdirectories) != (seen.entries, seen.subdirectories) {
                    let what =
                        format!("directory {number} says {} names and has {}", raw.entries, seen.entries);
                    problems.push((what, "count them"));
                    (raw.entries, raw.subdirectories) = (seen.entries, seen.subdirectories);
                }
            }
            if raw != seen.raw
                && let Ok(address) = self.fs.address(number)
            {
                raw.head.checksum = raw.compute_checksum(self.fs.geometry.seed(address));
                fixes.push((address, raw));
            }
        }
        for (what, repair) in problems {
            self.problem(what, if is_whole { repair } else { "" });
        }
        for (address, raw) in fixes.into_iter().filter(|_| is_whole) {
            self.put_inode(address, &raw);
        }
    }

    /// The counts of a clean unmount.
    pub(crate) fn compare_counts(&mut self, row: &RawVolume) {
        let superblock = self.fs.superblock.lock().clone();
        let counted = zones::row(&*self.fs.pm, &superblock, &self.fs.geometry);
        match counted.and_then(|zone| Ok((zone, self.fs.count()?))) {
            Ok((zone, counts)) => {
                let (mut after, mut zone_after) = (*row, zone);
                after.keep(&counts);
                zone_after.keep(&counts);
                if self.owners.is_some() && zone.counts() != zone_after.counts() {
                    let (said, has) = (zone.counts(), zone_after.counts());
                    let what =
                        format!("the zone says that free blocks and groups are {said:?}, and has {has:?}");
                    self.problem(what, "count them");
                }
                if row.counts() != after.counts() {
                    let (said, has) = (row.counts(), after.counts());
                    let what =
                        format!("the volume says that free blocks and inodes are {said:?}, and has {has:?}");
                    self.problem(what, "count them");
                }
            }
            Err(error) => self.damage(error.to_string()),
        }
    }
}
