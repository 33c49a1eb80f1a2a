//! Free blocks: their bits on PM are the only truth. An operation that takes blocks of a group, or frees them, has the
//! lock of the group until its commit.

use std::sync::atomic::Ordering;

use nacre_engine::{Block, Error, Kind, Resource, Result};
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::bits::{self, Bits};
use crate::commit::Change;
use crate::counts::{Hints, Purpose, Run, Runs, SHORT, UNKNOWN, WHOLE};
use crate::edits::GroupEdit;
use crate::format::{GROUP_BLOCKS, MAP_WORDS, purpose, seal_any};
use crate::fs::Shared;
use crate::geometry::Use;
use crate::seeded::Mistake;

/// The answer of a search.
enum Found {
    /// Blocks of a group.
    At(usize, u64),
    /// None. Another operation has a group that was not looked at.
    Nowhere(Option<usize>),
}

impl<P: Pm> Shared<P> {
    /// The bits and the purpose of a group.
    pub(crate) fn read_map(&self, group: u64) -> Result<(Bits, u64)> {
        let address = self.geometry.map(group);
        let mut words = [0; MAP_WORDS + 1];
        let seed = self.geometry.seed(address);
        self.read_words(address, seed, &mut words, || format!("the map of group {group}"))?;
        let (map, purpose) = words.split_at(MAP_WORDS);
        let mut bits = [0; MAP_WORDS];
        bits.copy_from_slice(map);
        Ok((bits::of_words(&bits), purpose[0]))
    }

    /// A mistake on purpose: both copies are stored beside the operation.
    fn store_outside(&self, address: u64, bytes: &[u8]) {
        for place in [address, self.geometry.twin(address)] {
            if let Ok(copied) = self.pm.copy(place, bytes) {
                self.pm.fence(copied);
            }
        }
    }
}

impl<P: Pm> Change<'_, P> {
    /// The index of a group's map, which is locked.
    pub(crate) fn group(&mut self, group: u64) -> Result<usize> {
        if let Some(index) = self.groups.iter().position(|edit| edit.group == group) {
            return Ok(index);
        }
        self.lock_group(group)?;
        let (old, old_purpose) = self.fs.read_map(group)?;
        let none = [0; 8];
        self.groups.push(GroupEdit {
            group,
            old,
            old_purpose,
            taken: none,
            freed: none,
            borrowed: none,
            bad: self.fs.bad.of_group(group),
            purpose: old_purpose,
        });
        Ok(self.groups.len() - 1)
    }

    /// Takes blocks from the count.
    pub(crate) fn take_space(&mut self, blocks: u64, purpose: Purpose) -> Result<()> {
        if blocks > 0 {
            let mut counts = self.fs.counts.lock();
            counts.take(blocks, purpose, self.fs.reserved.blocks())?;
            self.is_full = counts.is_full();
            self.taken_space += blocks;
        }
        Ok(())
    }

    /// Allocates blocks, in as few runs as there are, the first behind `goal` if that is free.
    pub(crate) fn allocate(
        &mut self,
        goal: Option<u64>,
        blocks: u64,
        purpose: Purpose,
        runs: &mut Runs,
    ) -> Result<()> {
        self.take_space(blocks, purpose)?;
        self.find_runs(goal, blocks, runs)
    }

    /// Allocates blocks that lie together; gives the first.
    pub(crate) fn allocate_together(&mut self, blocks: u64, purpose: Purpose) -> Result<u64> {
        self.take_space(blocks, purpose)?;
        match self.search(blocks)? {
            Found::At(index, start) => {
                let edit = &mut self.groups[index];
                edit.taken = bits::either(&edit.taken, &bits::run(start, blocks));
                Ok(edit.group * GROUP_BLOCKS + start)
            }
            Found::Nowhere(Some(lock)) => {
                self.taken = Some(lock);
                Err(Error::new(Kind::Busy))
            }
            Found::Nowhere(None) => Err(Error::no_space(Resource::Pm, blocks)),
        }
    }

    /// Finds blocks that were taken from the count.
    pub(crate) fn find_runs(&mut self, goal: Option<u64>, blocks: u64, runs: &mut Runs) -> Result<()> {
        let mut left = blocks;
        if let Some(goal) = goal {
            left -= self.take_at(goal, left, runs)?;
        }
        let mut most = GROUP_BLOCKS;
        while left > 0 {
            let len = left.min(most);
            match self.search(len)? {
                Found::At(index, start) => {
                    let run = bits::run(start, len);
                    let edit = &mut self.groups[index];
                    edit.taken = bits::either(&edit.taken, &run);
                    let start = edit.group * GROUP_BLOCKS + start;
                    push(runs, Run { start, len });
                    left -= len;
                }
                Found::Nowhere(Some(lock)) if len == 1 => {
                    self.taken = Some(lock);
                    return Err(Error::new(Kind::Busy));
                }
                Found::Nowhere(_) if len == 1 => return Err(Error::no_space(Resource::Pm, left)),
                Found::Nowhere(_) => most = len.next_power_of_two() / 2,
            }
        }
        Ok(())
    }

    /// Takes free blocks from `goal` on, within its group; gives how many.
    fn take_at(&mut self, goal: u64, most: u64, runs: &mut Runs) -> Result<u64> {
        let (group, within) = (goal / GROUP_BLOCKS, goal % GROUP_BLOCKS);
        // A file of groups begins its next one at a group's start.
        if within == 0 || !self.fs.geometry.groups().contains(&group) {
            return Ok(0);
        }
        let Ok(index) = self.group(group) else {
            self.taken = None;
            return Ok(0);
        };
        if !self.has_data(index) {
            return Ok(0);
        }
        let edit = &mut self.groups[index];
        let len = bits::free_from(&edit.available(), within, most);
        if len > 0 {
            edit.taken = bits::either(&edit.taken, &bits::run(within, len));
            push(runs, Run { start: goal, len });
        }
        Ok(len)
    }

    /// Finds a run of free blocks: near the last one, then in a group that is in use, then in any. On a full device
    /// groups with short runs alone come first: the long ones are left for blocks that must lie together.
    fn search(&mut self, len: u64) -> Result<Found> {
        let first = self.lane.group.load(Ordering::Relaxed);
        let mut busy = None;
        if self.is_full && len <= SHORT {
            for group in self.fs.geometry.groups_from(first) {
                let hint = self.fs.hints.get(group);
                if Hints::has_short_runs(hint)
                    && Hints::may_have(hint, len)
                    && let Some(at) = self.try_group(group, len, &mut busy)?
                {
                    self.lane.group.store(group, Ordering::Relaxed);
                    return Ok(at);
                }
            }
        }
        if let Some(at) = self.try_group(first, len, &mut busy)? {
            return Ok(at);
        }
        let may_break = !self.fs.is_counted() || self.fs.counts.lock().may_break_group();
        let turns: &[bool] = if may_break || len == 1 { &[false, true] } else { &[false] };
        for &whole in turns {
            for group in self.fs.geometry.groups_from(first) {
                let hint = self.fs.hints.get(group);
                if !Hints::may_have(hint, len) || (!whole && hint == WHOLE) {
                    continue;
                }
                if let Some(at) = self.try_group(group, len, &mut busy)? {
                    self.lane.group.store(group, Ordering::Relaxed);
                    return Ok(at);
                }
            }
        }
        Ok(Found::Nowhere(busy))
    }

    fn try_group(&mut self, group: u64, len: u64, busy: &mut Option<usize>) -> Result<Option<Found>> {
        if !self.fs.hints.may_be_data(group) {
            return Ok(None);
        }
        let index = match self.group(group) {
            Ok(index) => index,
            Err(error) if error.kind() == Kind::Busy && self.taken.is_some() => {
                *busy = self.taken.take();
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let edit = &self.groups[index];
        let available = edit.available();
        if self.has_data(index)
            && let Some(start) = bits::find(&available, len)
        {
            return Ok(Some(Found::At(index, start)));
        }
        self.fs.hints.note(group, self.fs.geometry.use_of(edit.purpose), &available);
        if edit.is_untouched() {
            self.groups.swap_remove(index);
        }
        Ok(None)
    }

    /// Frees blocks. They can be taken after the commit.
    pub(crate) fn free_run(&mut self, run: Run) -> Result<()> {
        let mut run = run;
        while run.len > 0 {
            let (group, within) = (run.start / GROUP_BLOCKS, run.start % GROUP_BLOCKS);
            let len = run.len.min(GROUP_BLOCKS - within);
            let mut freed = bits::run(within, len);
            let index = self.group(group)?;
            let edit = &mut self.groups[index];
            if bits::meet(&bits::either(&edit.old, &edit.freed), &freed) {
                return Err(Error::corrupt(format!("group {group}: a free block is freed")));
            }
            // Blocks with media errors stay in use.
            freed = bits::without(&freed, &edit.bad);
            edit.freed = bits::either(&edit.freed, &freed);
            run = Run { start: run.start + len, len: run.len - len };
        }
        Ok(())
    }

    /// Uses free blocks until the end of the operation; gives the first byte.
    pub(crate) fn borrow_run(&mut self, blocks: u64) -> Result<u64> {
        if blocks > GROUP_BLOCKS {
            return Err(Error::no_space(Resource::Limit, blocks));
        }
        match self.search(blocks)? {
            Found::At(index, start) => {
                let edit = &mut self.groups[index];
                edit.borrowed = bits::either(&edit.borrowed, &bits::run(start, blocks));
                Ok(Block(edit.group * GROUP_BLOCKS + start).offset())
            }
            Found::Nowhere(Some(lock)) => {
                self.taken = Some(lock);
                Err(Error::new(Kind::Busy))
            }
            Found::Nowhere(None) => Err(Error::no_space(Resource::Pm, blocks)),
        }
    }

    /// Whether files of this volume may have blocks of a group.
    fn has_data(&self, index: usize) -> bool {
        matches!(self.fs.geometry.use_of(self.groups[index].purpose), Use::Free | Use::Data)
    }

    /// Items for the maps that change. A group belongs to the volume from its first block on, to its last.
    pub(crate) fn put_groups(&mut self) {
        let Change { fs, items, groups, .. } = self;
        for edit in groups {
            let geometry = &fs.geometry;
            let address = geometry.map(edit.group);
            let free = bits::count(&edit.new_bits()) + geometry.regions_in(edit.group);
            match geometry.use_of(edit.purpose) {
                Use::Free if edit.taken != [0; 8] => edit.purpose = geometry.data(),
                Use::Data if free == GROUP_BLOCKS => edit.purpose = purpose::FREE,
                _ => {}
            }
            let (old, new) = (edit.old_words(), edit.new_words());
            let changed = |index: &usize| old[*index] != new[*index];
            let (first, last) = ((0..=MAP_WORDS).find(changed), (0..=MAP_WORDS).rfind(changed));
            let seed = geometry.seed(address);
            if let (Some(first), Some(last)) = (first, last) {
                let mut sealed = new;
                let changed = &mut sealed[first..=last];
                changed.iter_mut().for_each(|word| *word = seal_any(*word, seed));
                let bytes = changed.as_bytes();
                let at = address + first as u64 * 8;
                if Mistake::BitsOutside.is_made(&*fs.pm) {
                    fs.store_outside(at, bytes);
                } else {
                    items.put(at, bytes);
                }
            }
        }
    }

    /// Notes hints for later searches, after the commit.
    pub(crate) fn hint_groups(&self) {
        for edit in &self.groups {
            self.fs.hints.note(edit.group, self.fs.geometry.use_of(edit.purpose), &edit.new_bits());
        }
    }

    /// The index of a group without a block in use, of which the operation changes nothing; it is locked.
    pub(crate) fn whole_group(&mut self) -> Result<Option<usize>> {
        let first = self.lane.pool_group.load(Ordering::Relaxed);
        let mut busy = None;
        for group in self.fs.geometry.groups_from(first) {
            let hint = self.fs.hints.get(group);
            let is_ours = self.groups.iter().any(|edit| edit.group == group);
            if is_ours || !(hint == UNKNOWN || hint == WHOLE) {
                continue;
            }
            if let Some(Found::At(index, _)) = self.try_group(group, GROUP_BLOCKS, &mut busy)? {
                return Ok(Some(index));
            }
        }
        if busy.is_some() {
            self.taken = busy;
            return Err(Error::new(Kind::Busy));
        }
        Ok(None)
    }
}

/// Adds a run, which may continue the last one.
fn push(runs: &mut Runs, run: Run) {
    match runs.last_mut() {
        Some(last) if last.start + last.len == run.start => last.len += run.len,
        _ => runs.push(run),
    }
}
