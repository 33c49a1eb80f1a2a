//! Space is found for whatever was accepted, on a device that is full to the last block, whatever happens beside it.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nacre_cache::{CacheFs, CacheNode, CacheOptions, Clock, Settings};
use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, Data, Durability, Extents, FileKind, Kind, Names, NewInode, Result, SetAttr,
    Timestamp, WriteAt, XattrMode,
};
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{MoverOptions, TieredFs};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

/// Blocks of the device; the pool has as many.
const BLOCKS: u64 = 4096;

fn at(secs: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + secs, 7)
}

fn log() -> nacre_layout_log::LogFs<SimPm> {
    let pm = Arc::new(SimPm::new(BLOCKS * BLOCK_SIZE));
    nacre_layout_log::mkfs(&*pm, &nacre_layout_log::MkfsOptions::default()).unwrap();
    let options = nacre_layout_log::MountOptions { background: false, lanes: Some(2), ..Default::default() };
    nacre_layout_log::LogFs::mount(pm, &options).unwrap()
}

/// The same over a disk, with the mover that makes room.
fn log_over_disk(blocks: u64) -> TieredFs<nacre_layout_log::LogFs<SimPm>, SimDisk> {
    let pm = Arc::new(SimPm::with_disks(BLOCKS * BLOCK_SIZE, &[blocks * BLOCK_SIZE]));
    nacre_layout_log::mkfs(&*pm, &nacre_layout_log::MkfsOptions::default()).unwrap();
    let options = nacre_layout_log::MountOptions { background: false, lanes: Some(2), ..Default::default() };
    let layout = nacre_layout_log::LogFs::mount(Arc::clone(&pm), &options).unwrap();
    let fs = TieredFs::new(layout, MoverOptions { balance: false, ..MoverOptions::default() });
    fs.add(SimDisk::of(&pm, 0), Uuid::from_u128(7), 1, 1, at(0)).unwrap();
    fs
}

fn inplace() -> nacre_layout_inplace::InplaceFs<SimPm> {
    let pm = Arc::new(SimPm::new(BLOCKS * BLOCK_SIZE));
    nacre_layout_inplace::mkfs(&*pm, &nacre_layout_inplace::MkfsOptions::default()).unwrap();
    let options = nacre_layout_inplace::MountOptions { lanes: Some(2), ..Default::default() };
    nacre_layout_inplace::InplaceFs::mount(pm, &options).unwrap()
}

/// A file, and the byte that each block has that was accepted.
type Known<L> = (CacheNode<<L as Names>::Node>, BTreeMap<u64, u8>);

/// A cache, and what its files must contain.
struct World<L: BelowBuffer + Extents> {
    fs: CacheFs<L>,
    files: Vec<Known<L>>,
    now: i64,
}

impl<L: BelowBuffer + Extents + 'static> World<L> {
    fn over(layout: L, threads: usize) -> World<L> {
        let settings = Settings { threads, period_ms: 1, max_age_ms: 1, ..Settings::default() };
        let clock = if threads == 0 { Clock::Set(Arc::new(AtomicU64::new(1))) } else { Clock::Real };
        let options = CacheOptions { settings, clock, ..CacheOptions::new(BLOCKS * BLOCK_SIZE) };
        World { fs: CacheFs::new(layout, &options).unwrap(), files: Vec::new(), now: 0 }
    }

    fn now(&mut self) -> Timestamp {
        self.now += 1;
        at(self.now)
    }

    /// True for success, false for want of space; nothing else may happen.
    fn accepted<R>(result: Result<R>) -> bool {
        match result {
            Ok(_) => true,
            Err(error) if error.kind() == Kind::NoSpace => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn create(&mut self) {
        let name = format!("{}", self.files.len());
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
            xattrs: &[],
            now: self.now(),
        };
        match self.fs.create(&self.fs.root(), name.as_bytes(), &new) {
            Ok(file) => self.files.push((file, BTreeMap::new())),
            result => assert!(!Self::accepted(result.map(drop))),
        }
    }

    fn write(&mut self, file: usize, block: u64, blocks: u64, byte: u8, how: Durability) -> bool {
        let now = self.now();
        let bytes = vec![byte; (blocks * BLOCK_SIZE) as usize];
        let (file, known) = &mut self.files[file];
        let to = WriteAt::Offset(block * BLOCK_SIZE);
        let accepted = Self::accepted(self.fs.write(file, to, &[IoSlice::new(&bytes)], how, now));
        if accepted {
            known.extend((block..block + blocks).map(|block| (block, byte)));
        }
        accepted
    }

    /// What may go on beside writes, of all kinds.
    fn disturb(&mut self, random: &mut SmallRng) {
        let now = self.now();
        let index = random.random_range(0..self.files.len());
        let fs = &self.fs;
        let (file, known) = &mut self.files[index];
        match random.random_range(0..8) {
            0 | 1 => {
                let change = SetAttr { mtime: Some(at(-5)), mode: Some(0o600), ..SetAttr::default() };
                Self::accepted(fs.setattr(file, &change, now));
            }
            2 => {
                let value = vec![1; random.random_range(1..300)];
                Self::accepted(fs.set_xattr(file, b"user.name", &value, XattrMode::Set, None, now));
            }
            3 if random.random_range(0..4) == 0 => {
                let size = (64 << random.random_range(0..18)) * BLOCK_SIZE;
                if Self::accepted(fs.setattr(file, &SetAttr { size: Some(size), ..SetAttr::default() }, now))
                {
                    known.retain(|block, _| block * BLOCK_SIZE < size);
                }
            }
            4 => {
                let block = random.random_range(0..4000);
                self.write(index, block, 1, 9, Durability::Now);
            }
            // A sync may want a little space for a time of access, which nobody set aside.
            5 => fs.sync(file).unwrap(),
            6 => {
                let name = format!("other {}", random.random_range(0..40));
                let root = fs.root();
                if fs.unlink(&root, name.as_bytes(), now).is_err() {
                    Self::accepted(fs.link(file, &root, name.as_bytes(), now));
                }
            }
            _ => {
                let mut byte = [0];
                fs.read(file, 0, &mut byte, Some(now)).unwrap();
            }
        }
    }

    /// Everything that was accepted is written, and is what it was.
    fn assert_kept(&mut self) {
        self.fs.sync_all().unwrap();
        let status = self.fs.status();
        assert_eq!((status.failures, status.lost, status.used), (0, 0, 0));
        for (number, (file, known)) in self.files.iter().enumerate() {
            for (block, byte) in known {
                let mut read = vec![0; BLOCK_SIZE as usize];
                let count = self.fs.read(file, block * BLOCK_SIZE, &mut read, None).unwrap();
                assert_eq!(count, read.len(), "file {number}, block {block}");
                assert!(read.iter().all(|found| found == byte), "file {number}, block {block}");
            }
        }
    }
}

/// Writes of all shapes and whatever may go on beside them, until nothing is accepted any more, and on from there.
fn fill<L: BelowBuffer + Extents + 'static>(make: impl Fn() -> L, threads: usize, seed: u64) {
    fill_times(1, make, threads, seed);
}

/// The same of devices that have so many times as much space.
fn fill_times<L: BelowBuffer + Extents + 'static>(
    times: u64,
    make: impl Fn() -> L,
    threads: usize,
    seed: u64,
) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut world = World::over(make(), threads);
    // Single blocks far from each other, such that lie together, or a few in each of many files.
    let shape = seed % 3;
    (0..if shape == 2 { 700 } else { 10 }).for_each(|_| world.create());
    let mut refused = 0;
    for turn in 0..20_000 * times {
        let file = random.random_range(0..world.files.len());
        let (block, blocks) = match shape {
            0 => (random.random_range(0..3_000_000), 1),
            1 => (random.random_range(0..500 * times), random.random_range(1..12)),
            _ => (random.random_range(0..8 * times) * 2, 1),
        };
        refused += u64::from(!world.write(file, block, blocks, turn as u8, Durability::Lazy));
        if random.random_range(0..4) == 0 {
            world.disturb(&mut random);
        }
        if random.random_range(0..200) == 0 {
            world.create();
        }
        if refused > 300 {
            break;
        }
    }
    world.assert_kept();
    assert!(refused > 0, "seed {seed}: the device was not full");
}

#[test]
fn the_log_layout_finds_space_for_what_was_accepted() {
    (0..12).for_each(|seed| fill(log, 0, seed));
}

#[test]
fn the_log_layout_finds_it_with_threads_that_write_back() {
    (100..106).for_each(|seed| fill(log, 2, seed));
}

/// On the disk more is set aside than memory has.
#[test]
fn disks_have_space_for_what_was_accepted() {
    (0..6).for_each(|seed| fill_times(3, || log_over_disk(2 * BLOCKS), 0, seed));
    (6..12).for_each(|seed| fill_times(2, || log_over_disk(BLOCKS / 8), 0, seed));
}

#[test]
fn disks_have_it_with_threads_that_write_back() {
    (100..103).for_each(|seed| fill_times(3, || log_over_disk(2 * BLOCKS), 2, seed));
    (103..106).for_each(|seed| fill_times(2, || log_over_disk(BLOCKS / 8), 2, seed));
}

#[test]
fn the_inplace_layout_finds_space_for_what_was_accepted() {
    (0..12).for_each(|seed| fill(inplace, 0, seed));
}

#[test]
fn the_inplace_layout_finds_it_with_threads_that_write_back() {
    (100..106).for_each(|seed| fill(inplace, 2, seed));
}
