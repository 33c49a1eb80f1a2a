//! Recovery: transactions without a commit entry are undone.
//!
//! Recovery can be repeated any number of times. The old values go back while the lane's commit entry is as it was.
//! Only when all of them are durable does the commit entry take the generation, which ends the transaction. Nothing
//! else is left to do after a crash. Inodes without links are free, so files that were open and unlinked need no list;
//! which blocks and inodes are free is found by reading the table and the trees ([`Walk`]).

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Result};
use nacre_layout_parts::marks::Marks;
use nacre_layout_parts::report::RecoveryReport;
use nacre_media::{Durable, Flushed, Pm};
use zerocopy::{FromZeros, IntoBytes};

use crate::blockmap::{self, Bounds, Found};
use crate::format::{
    INODE_SIZE, LINE, MAX_GENERATION, RawInode, RawUndo, Region, TABLE_INODE, lane_seed, open_word, region,
    seal_word,
};
use crate::inode::has_tree;
use crate::seeded::Mistake;
use crate::superblock::Superblock;
use crate::table::{read_inode, table_address};
use crate::transaction::{LANE_BYTES, join, lane_address, lane_count};
use crate::xattr::{self, Owner};

/// The contents of a lane.
pub(crate) struct LaneState {
    /// Every transaction up to this generation is over.
    pub(crate) committed: u64,
    /// The entries of the transaction that is not, in the order in which they were made.
    pub(crate) undo: Vec<RawUndo>,
}

impl LaneState {
    /// The generation of the next transaction, once the one that is not over is undone.
    pub(crate) fn next(&self) -> u64 {
        self.undo.first().map_or(self.committed, |entry| entry.generation) + 1
    }
}

/// Reads one lane of the journal.
fn read_lane<P: Pm>(pm: &P, superblock: &Superblock, journal: Region, lane: u64) -> Result<LaneState> {
    let volume_seed = superblock.seed();
    let bounds = Bounds::of(superblock);
    let files = Block(bounds.first).offset()..Block(bounds.end).offset();
    let table = table_address(superblock)?;
    let table = table..table + INODE_SIZE;
    let (address, seed) = (lane_address(journal, lane), lane_seed(volume_seed, lane));
    let damaged = || Error::corrupt(format!("lane {lane} of the journal"));
    let committed = open_word(pm.load_u64(address)?, seed, &|| format!("lane {lane} of the journal"))?;
    let committed = committed.unwrap_or(0);
    if committed >= MAX_GENERATION {
        return Err(damaged());
    }
    let mut bytes = vec![0u8; (LANE_BYTES - LINE) as usize];
    pm.read(address + LINE, &mut bytes)?;
    let mut undo: Vec<RawUndo> = Vec::new();
    let mut entry = RawUndo::new_zeroed();
    for line in bytes.chunks_exact(LINE as usize) {
        entry.as_mut_bytes().copy_from_slice(line);
        if !entry.is_valid(seed) || entry.generation <= committed {
            continue;
        }
        let last = entry.address.checked_add(u64::from(entry.words) * 8 - 1).ok_or_else(damaged)?;
        let is_inside = |range: &Range<u64>| range.contains(&entry.address) && range.contains(&last);
        // A lane has one transaction under way, and none begins before the one before is over.
        if !(is_inside(&files) || is_inside(&table))
            || undo.first().is_some_and(|first| first.generation != entry.generation)
        {
            return Err(damaged());
        }
        undo.push(entry);
    }
    Ok(LaneState { committed, undo })
}

/// Reads the journal, a lane at a time.
pub(crate) fn read_journal<P: Pm>(pm: &P, superblock: &Superblock) -> Result<Vec<LaneState>> {
    read_lanes(pm, superblock)?.into_iter().collect()
}

/// The same, where lanes that are damaged do not keep the others from being read.
pub(crate) fn read_lanes<P: Pm>(pm: &P, superblock: &Superblock) -> Result<Vec<Result<LaneState>>> {
    let journal = superblock.region(region::JOURNAL)?;
    if lane_count(journal) == 0 {
        return Err(Error::corrupt("superblock: a journal without a lane"));
    }
    let in_words = |error: Error| {
        error
            .operation("read the journal")
            .advice("run nacre fsck, which writes an empty one if no operation was in flight")
    };
    let read = |lane| read_lane(pm, superblock, journal, lane).map_err(in_words);
    Ok((0..lane_count(journal)).map(read).collect())
}

/// The generation of the last transaction of which a lane has anything, over or not. Nothing when it never had one, or
/// when its commit entry does not validate, so that nothing in it is undone.
fn last_generation<P: Pm>(pm: &P, address: u64, seed: u32) -> Option<u64> {
    let committed =
        pm.load_u64(address).and_then(|word| open_word(word, seed, &String::new)).ok()?.unwrap_or(0);
    let mut entry = RawUndo::new_zeroed();
    let generations = (LINE..LANE_BYTES).step_by(LINE as usize).filter_map(|line| {
        pm.read(address + line, entry.as_mut_bytes()).ok()?;
        entry.is_valid(seed).then_some(entry.generation)
    });
    Some(generations.fold(committed, u64::max)).filter(|last| (1..MAX_GENERATION).contains(last))
}

/// Makes a lane of the journal as mkfs makes it. Media errors go with the whole blocks that are written, where the
/// system can clear them.
pub(crate) fn renew_lane<P: Pm>(pm: &P, superblock: &Superblock, lane: u64) -> Result<()> {
    let address = lane_address(superblock.region(region::JOURNAL)?, lane);
    let seed = lane_seed(superblock.seed(), lane);
    let clear = |at: u64, len: u64| -> Result<()> {
        let cleared = pm.zero(at, len)?;
        pm.fence(cleared);
        Ok(())
    };
    // All its transactions are over. Otherwise a crash could leave a part of a transaction, which would be undone.
    if let Some(last) = last_generation(pm, address, seed) {
        let word = seal_word(last, seed);
        let ended = pm.flush(pm.publish_u64(address, word, Durable::nothing_before())?);
        pm.fence(ended);
    }
    // Entries of transactions that are over must not outlive the commit entry that says so. In its block they go line
    // by line; those in lines that cannot be written cannot be read, either.
    clear(address + BLOCK_SIZE, LANE_BYTES - BLOCK_SIZE)?;
    for line in (LINE..BLOCK_SIZE).step_by(LINE as usize) {
        match clear(address + line, LINE) {
            Err(error) if error.kind() == Kind::Media => {}
            done => done?,
        }
    }
    clear(address, BLOCK_SIZE)
}

/// Undoes uncommitted transactions; gives their number.
pub(crate) fn roll_back<P: Pm>(pm: &P, superblock: &Superblock, lanes: &mut [LaneState]) -> Result<u64> {
    if Mistake::NotUndone.is_made(pm) {
        return Ok(0);
    }
    let journal = superblock.region(region::JOURNAL)?;
    let mut undone: Option<Flushed> = None;
    for state in lanes.iter() {
        for entry in state.undo.iter().rev() {
            let old = &entry.old[..usize::from(entry.words)];
            let stored = pm.store(entry.address, old.as_bytes())?;
            undone = join(undone, pm.flush(stored));
        }
    }
    let Some(undone) = undone else { return Ok(0) };
    let mut after = Some(if Mistake::SettledEarly.is_made(pm) {
        undone.may_be_lost();
        Durable::nothing_before()
    } else {
        pm.fence(undone)
    });
    let mut count = 0;
    for (lane, state) in lanes.iter_mut().enumerate() {
        let Some(generation) = state.undo.first().map(|entry| entry.generation) else { continue };
        count += 1;
        if !Mistake::NotSettled.is_made(pm) {
            let word = seal_word(generation, lane_seed(superblock.seed(), lane as u64));
            // The one fence above covers the undone words of every lane.
            let after = after.take().unwrap_or_else(Durable::nothing_before);
            let stored = pm.publish_u64(lane_address(journal, lane as u64), word, after)?;
            // Any change first marks the file system dirty, which fences; until then undoing it again changes nothing.
            pm.flush(stored).may_be_lost();
        }
        state.committed = generation;
        state.undo.clear();
    }
    Ok(count)
}

/// A walk over all inodes: finds the blocks and inodes in use.
pub(crate) struct Walk<'a, P> {
    pm: &'a P,
    seed: u32,
    bounds: Bounds,
    /// The blocks in use, and damage.
    pub(crate) marks: Marks,
    /// Numbers that can be given out.
    pub(crate) free_inodes: Vec<u64>,
    /// Inodes with a tree or attributes that cannot be followed.
    pub(crate) damaged: BTreeSet<u64>,
    /// The blocks of the inode table.
    pub(crate) table: Vec<u64>,
    pub(crate) table_root: u64,
    directories: u64,
    files: u64,
}

impl<'a, P: Pm> Walk<'a, P> {
    /// Nothing is read yet.
    pub(crate) fn new(pm: &'a P, superblock: &Superblock) -> Walk<'a, P> {
        let bounds = Bounds::of(superblock);
        Walk {
            pm,
            seed: superblock.seed(),
            bounds,
            marks: Marks::new(bounds),
            free_inodes: Vec::new(),
            damaged: BTreeSet::new(),
            table: Vec::new(),
            table_root: 0,
            directories: 0,
            files: 0,
        }
    }

    /// Reads everything; `visit` is called with each inode that is in use. An error means that there is no table.
    pub(crate) fn run(
        &mut self,
        superblock: &Superblock,
        visit: &mut dyn FnMut(&mut Walk<'a, P>, u64, &RawInode),
    ) -> Result<()> {
        let table = read_inode(self.pm, table_address(superblock)?)?;
        if !table.is_used(self.seed, TABLE_INODE) {
            return Err(Error::corrupt("the inode of the inode table"));
        }
        self.table_root = table.root;
        let count = table.size / BLOCK_SIZE;
        if count > self.bounds.end || !table.size.is_multiple_of(BLOCK_SIZE) {
            return Err(Error::corrupt("the size of the inode table"));
        }
        let mut blocks = vec![0u64; count as usize];
        self.take_tree(&table, "the inode table", &mut |block, place| {
            if let Some(slot) = blocks.get_mut(block as usize) {
                *slot = place;
            }
        })?;
        if blocks.is_empty() || blocks.contains(&0) {
            return Err(Error::corrupt("the inode table has a hole"));
        }
        self.table = blocks;
        for index in 0..self.table.len() {
            let mut page = [0u8; BLOCK_SIZE as usize];
            let first = index as u64 * crate::format::BLOCK_INODES;
            if let Err(error) = self.pm.read(Block(self.table[index]).offset(), &mut page) {
                self.marks.note(error.object(format!("inodes from {first} on")));
                continue;
            }
            for (slot, bytes) in page.chunks_exact(crate::format::INODE_SIZE as usize).enumerate() {
                let number = first + slot as u64;
                let mut raw = RawInode::new_zeroed();
                raw.as_mut_bytes().copy_from_slice(bytes);
                self.inode(number, &raw, visit);
            }
        }
        Ok(())
    }

    fn inode(
        &mut self,
        number: u64,
        raw: &RawInode,
        visit: &mut dyn FnMut(&mut Walk<'a, P>, u64, &RawInode),
    ) {
        if number == TABLE_INODE {
            return;
        }
        if raw.links == 0 {
            self.free_inodes.push(number);
            return;
        }
        let kind = FileKind::from_u8(raw.kind).filter(|_| raw.is_valid(self.seed, number));
        let Some(kind) = kind else {
            self.marks.note(format!("inode {number}: header"));
            return;
        };
        match kind {
            FileKind::Directory => self.directories += 1,
            _ => self.files += 1,
        }
        if let Err(error) = self.take_tree(raw, &format!("inode {number}"), &mut |_, _| {}) {
            self.damaged.insert(number);
            self.marks.note(error);
        }
        if raw.xattrs != 0 {
            let owner = Owner::new(self.pm, self.bounds, self.seed, number, raw.generation);
            if let Err(error) = self.marks.take_xattrs(number, xattr::blocks_of(&owner, raw.xattrs)) {
                self.damaged.insert(number);
                self.marks.note(error);
            }
        }
        visit(self, number, raw);
    }

    /// Takes the blocks of a tree into use; `visit` is called with each file block and its place.
    fn take_tree(&mut self, raw: &RawInode, what: &str, visit: &mut dyn FnMut(u64, u64)) -> Result<()> {
        if !FileKind::from_u8(raw.kind).is_some_and(has_tree) {
            return Ok(());
        }
        let map = blockmap::map(self.pm, raw.root, self.bounds);
        let mut twice = None;
        let end = raw.size.div_ceil(BLOCK_SIZE);
        map.for_each_used(&mut |found| {
            let block = match found {
                Found::Node(block) => block,
                Found::Data(piece) => {
                    let at = piece.start;
                    if at >= end && piece.is_written {
                        self.marks.note(format!("{what}: block {at} is beyond its end"));
                    }
                    visit(at, piece.place);
                    piece.place
                }
            };
            if !self.marks.take(block) {
                twice = Some(block);
                return false;
            }
            true
        })
        .map_err(|error| error.object(format!("{what}: tree of blocks")))?;
        match twice {
            Some(block) => Err(Error::corrupt(format!("{what}: block {block} is in use already"))),
            None => Ok(()),
        }
    }

    /// The report of the walk.
    pub(crate) fn report(&self, started: Instant, rolled_back: u64) -> RecoveryReport {
        self.marks.report(started, self.directories, self.files, rolled_back)
    }
}

#[cfg(test)]
mod tests {
    use nacre_media::crash::{Replay, Sampling};
    use nacre_media::{Pm, SimPm};
    use zerocopy::IntoBytes;

    use super::{read_journal, renew_lane, roll_back};
    use crate::format::{LINE, RawUndo, lane_seed, region};
    use crate::transaction::lane_address;
    use crate::{MkfsOptions, mkfs};

    const SIZE: u64 = 16 << 20;
    /// Somewhere in free space.
    const PLACE: u64 = 8 << 20;

    /// Puts the undo entry for `words` at `address` into line `line` of a lane.
    fn put(pm: &SimPm, lane: u64, line: u64, generation: u64, address: u64, words: &[u64]) {
        let superblock = crate::superblock::read(pm).unwrap().superblock;
        let journal = superblock.region(region::JOURNAL).unwrap();
        let mut entry = RawUndo { words: words.len() as u8, generation, address, ..RawUndo::default() };
        entry.old[..words.len()].copy_from_slice(words);
        entry.checksum = entry.compute_checksum(lane_seed(superblock.seed(), lane));
        pm.poke(lane_address(journal, lane) + line * LINE, entry.as_bytes());
    }

    fn recover(pm: &SimPm) -> u64 {
        let superblock = crate::superblock::read(pm).unwrap().superblock;
        let mut lanes = read_journal(pm, &superblock).unwrap();
        roll_back(pm, &superblock, &mut lanes).unwrap()
    }

    fn made() -> SimPm {
        let pm = SimPm::new(SIZE);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        pm
    }

    #[test]
    fn what_was_not_committed_is_undone_once() {
        let pm = made();
        put(&pm, 1, 1, 1, PLACE, &[11, 12]);
        put(&pm, 1, 3, 1, PLACE + 64, &[13]);
        put(&pm, 2, 1, 1, PLACE + 128, &[14]);
        assert_eq!(recover(&pm), 2);
        let words = [0, 8, 64, 128].map(|at| pm.load_u64(PLACE + at).unwrap());
        assert_eq!(words, [11, 12, 13, 14]);
        // It is over: what others store there later stays.
        pm.poke(PLACE, &99u64.to_le_bytes());
        assert_eq!(recover(&pm), 0);
        assert_eq!(pm.load_u64(PLACE).unwrap(), 99);
    }

    /// The explorer crashes once and within one recovery; that a transaction is not undone after a third crash, when
    /// others have changed the same words, is seen here: the superblock's fence covers what ended it.
    #[test]
    fn what_was_undone_is_over_before_anything_changes() {
        let pm = made();
        put(&pm, 1, 1, 1, PLACE, &[11, 12]);
        let before = pm.image();
        pm.start_recording();
        assert_eq!(recover(&pm), 1);
        crate::superblock::read(&pm).unwrap().superblock.write(&pm).unwrap();
        let trace = pm.stop_recording();
        let mut replay = Replay::new(before, &trace);
        while replay.advance().is_some() {}
        // What is durable then, and nothing that was only stored.
        pm.load(replay.media());
        assert_eq!(recover(&pm), 0);
        assert_eq!(pm.load_u64(PLACE).unwrap(), 11);
    }

    #[test]
    fn entries_of_earlier_transactions_and_torn_ones_do_not_count() {
        let pm = made();
        put(&pm, 0, 1, 1, PLACE, &[11]);
        assert_eq!(recover(&pm), 1);
        put(&pm, 0, 5, 1, PLACE, &[12]);
        let superblock = crate::superblock::read(&pm).unwrap().superblock;
        let journal = superblock.region(region::JOURNAL).unwrap();
        put(&pm, 0, 1, 2, PLACE + 8, &[13]);
        pm.poke(lane_address(journal, 0) + LINE + 24, &[77]);
        assert_eq!(recover(&pm), 0);
        assert_eq!(pm.load_u64(PLACE).unwrap(), 11);
        assert_eq!(pm.load_u64(PLACE + 8).unwrap(), 0);
    }

    #[test]
    fn two_transactions_of_one_lane_are_damage() {
        let pm = made();
        put(&pm, 0, 1, 1, PLACE, &[11]);
        put(&pm, 0, 2, 2, PLACE, &[12]);
        let superblock = crate::superblock::read(&pm).unwrap().superblock;
        assert!(read_journal(&pm, &superblock).is_err());
    }

    /// Wherever a crash comes while a lane is made anew, none of its entries is undone: the one of the later transaction
    /// would be alone when those of the other are gone.
    #[test]
    fn what_is_left_of_a_lane_that_is_made_anew_is_over() {
        let pm = made();
        put(&pm, 0, 1, 1, PLACE, &[11]);
        put(&pm, 0, 2, 2, PLACE, &[12]);
        put(&pm, 0, 3, 2, PLACE + 64, &[13]);
        let superblock = crate::superblock::read(&pm).unwrap().superblock;
        let before = pm.image();
        pm.start_recording();
        renew_lane(&pm, &superblock, 0).unwrap();
        let trace = pm.stop_recording();
        assert_eq!(recover(&pm), 0);
        let journal = superblock.region(region::JOURNAL).unwrap();
        let first = lane_address(journal, 0) / LINE;
        let mut replay = Replay::new(before, &trace);
        while replay.advance().is_some() {
            let images = replay.images_of(&Sampling::default(), |line| (first..first + 4).contains(&line));
            for image in images.iter() {
                pm.load(&replay.crashed(&image));
                // One that is damaged still is made anew again.
                if read_journal(&pm, &superblock).is_ok() {
                    assert_eq!(recover(&pm), 0, "{image:?}");
                }
            }
        }
    }
}
