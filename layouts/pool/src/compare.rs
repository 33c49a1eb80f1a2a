//! The second half of a check: what the walk found, against the bits, the inodes and the counts.

use std::collections::BTreeMap;

use nacre_engine::size;
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::bits;
use crate::check::Walk;
use crate::edits::with_purpose;
use crate::format::pools::SIZES;
use crate::format::{
    GROUP_BLOCKS, POOL_BITS, POOL_HEAD, ROOT_INODE, RawVolume, WORD_BITS, purpose, seal_any,
};
use crate::geometry::Use;
use crate::zones;

impl<P: Pm> Walk<'_, P> {
    /// Entries in use that nothing leads to, and entries that are led to and not in use.
    pub(crate) fn compare_entries(&mut self) {
        let is_whole = self.problems.iter().all(|(_, repair)| !repair.is_empty());
        let leaked: Vec<(u64, usize)> = self
            .allocated
            .iter()
            .filter(|(entry, _)| !self.reached.contains_key(entry))
            .map(|(&entry, &pool)| (entry, pool))
            .collect();
        let lost: Vec<u64> = self
            .reached
            .iter()
            .filter(|(entry, pool)| self.allocated.get(entry) != Some(pool))
            .map(|(&entry, _)| entry)
            .collect();
        for entry in lost {
            self.damage(format!("the entry at byte {entry} is used and says that it is free"));
        }
        let mut words: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (entry, pool) in leaked {
            let what = format!("nothing leads to the entry at byte {entry}");
            self.problems.push((what, if is_whole { "free it" } else { "" }));
            let block = self.fs.geometry.pool_of(entry);
            let index = (entry - block - POOL_HEAD) / SIZES[pool];
            let word = words.entry(block + POOL_BITS + index / WORD_BITS * 8).or_insert((block, 0));
            word.1 |= 1 << (index % WORD_BITS);
        }
        for (address, (block, freed)) in words.into_iter().filter(|_| is_whole) {
            let seed = self.fs.geometry.seed(block);
            if let Ok(free) = self.fs.read_word(address, seed, String::new) {
                self.fix(address, &seal_any(free | freed, seed).to_le_bytes());
            }
        }
    }

    /// Blocks against the bits of their groups.
    pub(crate) fn compare_blocks(&mut self) {
        let geometry = self.fs.geometry;
        for (group, (_, of_group)) in geometry.groups().zip(self.maps.clone()) {
            let is_empty = self.used[(group - geometry.first_group) as usize] == [0; 8];
            if !is_empty && matches!(geometry.use_of(of_group), Use::Free | Use::Other(_)) {
                self.damage(format!(
                    "group {group}: blocks in use are in a group of another volume, or of none"
                ));
            }
        }
        for group in geometry.groups().take_while(|&group| geometry.regions_in(group) > 0) {
            self.mark(group * GROUP_BLOCKS, geometry.regions_in(group), "the regions");
        }
        let is_whole = self.problems.iter().all(|(_, repair)| !repair.is_empty());
        for group in geometry.groups() {
            let index = (group - geometry.first_group) as usize;
            let (free, of_group) = self.maps[index];
            let (used, bad) = (self.used[index], self.fs.bad.of_group(group));
            let of = geometry.use_of(of_group);
            if !self.is_ours(of) {
                continue;
            }
            if bits::meet(&free, &used) {
                self.damage(format!("group {group}: blocks in use say that they are free"));
            }
            // Blocks with media errors say that they are free, or do not.
            let owned = bits::either(&used, &bad);
            let leaked = bits::without(&bits::without(&[u64::MAX; 8], &owned), &free);
            let is_stray = matches!(of, Use::Other(_));
            if leaked != [0; 8] || is_stray {
                let what = match of {
                    Use::Other(owner) => {
                        format!("group {group}: it belongs to volume {owner}, which is not there")
                    }
                    _ => format!("group {group}: {} blocks belong to nothing", bits::count(&leaked)),
                };
                self.problems.push((what, if is_whole { "free them" } else { "" }));
                if is_whole {
                    let map = geometry.map(group);
                    let seed = geometry.seed(map);
                    let free = bits::either(&free, &leaked);
                    let is_empty = bits::count(&free) + geometry.regions_in(group) == GROUP_BLOCKS;
                    let is_free = is_stray || of == Use::Data && is_empty;
                    let words = with_purpose(&free, if is_free { purpose::FREE } else { of_group });
                    self.fix(map, words.map(|word| seal_any(word, seed)).as_bytes());
                }
            }
        }
    }

    /// The names of inodes against their counts.
    pub(crate) fn compare_inodes(&mut self) {
        let is_whole = self.problems.iter().all(|(_, repair)| !repair.is_empty());
        let mut fixes = Vec::new();
        for (&number, seen) in &self.inodes {
            let mut raw = seen.raw;
            let names = if number == ROOT_INODE { 1 } else { seen.names };
            if raw.links != names {
                let links = size::count(raw.links.into(), "link", "links");
                self.problems.push((
                    format!("inode {number} says {links} and has {names}"),
                    if is_whole { "count them" } else { "" },
                ));
                raw.links = names;
            }
            if raw.is_directory() {
                if raw.parent != seen.parent && names > 0 {
                    let parent = seen.parent;
                    let what = format!("directory {number} does not say that it is in directory {parent}");
                    self.problems.push((what, if is_whole { "say so" } else { "" }));
                    raw.parent = parent;
                }
                if (raw.entries, raw.subdirectories) != (seen.entries, seen.subdirectories) {
                    let what =
                        format!("directory {number} says {} names and has {}", raw.entries, seen.entries);
                    self.problems.push((what, if is_whole { "count them" } else { "" }));
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
        for (address, raw) in fixes.into_iter().filter(|_| is_whole) {
            self.fix(address, raw.as_bytes());
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
                if zone.counted == 1 && self.owners.is_some() && zone.counts() != zone_after.counts() {
                    let (said, has) = (zone.counts(), zone_after.counts());
                    let what =
                        format!("the zone says that free blocks and groups are {said:?}, and has {has:?}");
                    self.problems.push((what, "count them"));
                }
                if row.counts() != after.counts() {
                    let (said, has) = (row.counts(), after.counts());
                    let what =
                        format!("the volume says that free blocks and inodes are {said:?}, and has {has:?}");
                    self.problems.push((what, "count them"));
                }
            }
            Err(error) => self.damage(error.to_string()),
        }
    }
}
