//! The write buffer over each layout, with a pool of four blocks: all that plain layouts are asked for, and that what waited
//! for media is there when it was synchronised, that the pool and the layout's space are free again then, and that no
//! writer waits for ever. Time stands still: blocks grow old only where the settings say at once.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_cache::{CacheFs, CacheNode, CacheOptions, Clock, Settings};
use nacre_engine::RenameMode::Replace;
use nacre_engine::sync::shuttle::thread;
use nacre_engine::{
    Attr, BelowBuffer, Data, Durability, Extents, FallocateMode, Names, Result, Timestamp, WriteAt,
};
use nacre_lab::crash::{Inplace, Log, Mounting};
use nacre_media::SimPm;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::call::{Call, D, E, F, G};
use crate::run::{Layout, Workload, explore_on, explore_with, schedules, seed};
use crate::{random_call, workload};

/// The least that a pool has: two writes of two blocks fill it.
const BLOCKS: u64 = 4;
const BLOCK: usize = 4096;

/// A layout below a write buffer.
#[derive(Debug, Clone, Copy)]
struct Buffered<S> {
    layout: S,
    settings: Settings,
}

/// Threads write back when the pool is full, and writers where there are none.
fn lazy<S>(layout: S, threads: usize) -> Buffered<S> {
    Buffered { layout, settings: Settings { threads, ..Settings::default() } }
}

/// Threads write back whatever there is.
fn busy<S>(layout: S, threads: usize) -> Buffered<S> {
    let settings = Settings { threads, low_percent: 100, high_percent: 100, ..Settings::default() };
    Buffered { layout, settings }
}

impl<S: Layout<Fs: BelowBuffer + Extents>> Layout for Buffered<S> {
    type Fs = CacheFs<S::Fs>;

    fn name(&self) -> String {
        format!("{}+threads={},low={}", self.layout.name(), self.settings.threads, self.settings.low_percent)
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        self.layout.mkfs(pm)
    }

    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<CacheFs<S::Fs>> {
        let options = CacheOptions {
            settings: self.settings,
            clock: Clock::Set(Arc::default()),
            ..CacheOptions::new(BLOCKS * BLOCK as u64)
        };
        CacheFs::new(self.layout.mount(pm, mounting)?, &options)
    }

    fn unmount(&self, fs: CacheFs<S::Fs>) -> Result<()> {
        let (below, flushed) = fs.unmount();
        flushed?;
        self.layout.unmount(below)
    }

    fn abandon(&self, fs: CacheFs<S::Fs>) {
        fs.sync_all().expect("everything is written");
        assert_idle(&fs);
        self.layout.abandon(fs.abandon());
    }

    fn check(&self, pm: &Arc<SimPm>) -> Result<Vec<String>> {
        self.layout.check(pm)
    }
}

/// Nothing waits for media, and nothing is set aside for it.
fn assert_idle<L: BelowBuffer + Extents>(fs: &CacheFs<L>) {
    assert_eq!(fs.status().used, 0, "blocks of the pool are in use");
    assert_eq!(fs.status().lost, 0);
    loop {
        let before = fs.layout().stat();
        let stat = fs.stat();
        // Blocks may be freed in the background.
        if fs.layout().stat() == before {
            return assert_eq!(stat, before, "space of the layout is set aside");
        }
    }
}

/// The pool fills up: without threads, with one, and with two.
fn explore_full(workload: &Workload) {
    for threads in 0..3 {
        explore_on(lazy(Log, threads), workload, schedules());
        explore_on(lazy(Inplace, threads), workload, schedules());
    }
}

/// Writeback is under way all the time.
fn explore_busy(workload: &Workload) {
    explore_on(busy(Log, 1), workload, schedules());
    explore_on(busy(Inplace, 1), workload, schedules());
}

#[test]
fn buffered_writers_that_share_a_small_pool() {
    explore_full(&workload(
        &[],
        &[
            &[Call::Write(F, 0, 8192), Call::Write(F, 8000, 500), Call::Write(F, 12288, 4096)],
            &[Call::Write(G, 0, 4096), Call::Write(G, 4096, 8192), Call::Append(G, 100)],
        ],
    ));
}

/// Two may fill the pool with what they are permitted, before anything of it can be written back; the third waits for
/// that.
#[test]
fn a_buffered_writer_that_finds_nothing_to_write_back() {
    explore_full(&workload(
        &[],
        &[&[Call::Write(F, 0, 8192)], &[Call::Write(G, 0, 8192)], &[Call::Write(F, 8192, 4096)]],
    ));
}

#[test]
fn buffered_writes_beside_a_truncation() {
    let workload = workload(
        &[Call::Write(F, 0, 5000)],
        &[
            &[Call::Write(F, 4096, 4096), Call::Append(F, 1000), Call::Read(F, 4096, 4096)],
            &[Call::Truncate(F, 4500), Call::Write(F, 4400, 50), Call::Truncate(F, 6000)],
        ],
    );
    explore_busy(&workload);
    explore_full(&workload);
}

#[test]
fn buffered_writes_beside_a_punched_hole() {
    let workload = workload(
        &[Call::Write(F, 0, 12288)],
        &[
            &[Call::Write(F, 4000, 200), Call::Write(F, 8192, 4096), Call::Read(F, 4096, 4096)],
            &[Call::Punch(F, 4096, 8192), Call::Write(F, 5000, 100)],
        ],
    );
    explore_busy(&workload);
    explore_full(&workload);
}

/// What nobody can read any more need not be written, and its blocks of the pool are free again.
#[test]
fn buffered_writes_beside_the_removal_of_their_file() {
    let workload = workload(
        &[Call::Create(D, "a"), Call::WriteNamed(D, "a", 0, 4096)],
        &[
            &[Call::WriteNamed(D, "a", 4096, 4096), Call::Write(F, 0, 8192)],
            &[Call::Unlink(D, "a"), Call::Create(D, "a")],
            &[Call::Write(G, 0, 8192)],
        ],
    );
    explore_busy(&workload);
    explore_full(&workload);
}

#[test]
fn buffered_writes_beside_renames_over_their_file() {
    explore_busy(&workload(
        &[Call::Create(D, "a"), Call::Create(D, "b"), Call::WriteNamed(D, "a", 0, 4096)],
        &[
            &[Call::WriteNamed(D, "a", 4096, 100), Call::Write(F, 0, 100)],
            &[Call::Rename(D, "a", D, "b", Replace), Call::ReadDir(D)],
            &[Call::Link(F, E, "l"), Call::Append(F, 100)],
        ],
    ));
}

#[test]
fn synchronous_writes_beside_buffered_ones() {
    let workload = workload(
        &[],
        &[
            &[Call::Write(F, 0, 100), Call::WriteNow(F, 100, 5000), Call::Size(F)],
            &[Call::Append(F, 4096), Call::Sync(F), Call::Read(F, 0, 4096)],
            &[Call::Append(F, 9000), Call::Write(F, 200, 10)],
        ],
    );
    explore_busy(&workload);
    explore_full(&workload);
}

/// A file that the buffer gets to know while its flags change must not be known by those that it had.
#[test]
fn flags_that_are_set_beside_the_first_buffered_write() {
    let workload = workload(&[], &[&[Call::SetFlags(F, Attr::IMMUTABLE)], &[Call::Write(F, 0, 100)]]);
    let after = vec![Call::Write(F, 0, 10), Call::Append(F, 10), Call::Size(F)];
    explore_busy(&Workload { after, ..workload });
}

/// Whoever finds a file protected leaves the answer to the layout, which may allow it by then.
#[test]
fn flags_that_are_taken_away_beside_buffered_writes() {
    let setup = [Call::Append(F, 100), Call::SetFlags(F, Attr::IMMUTABLE)];
    // The first makes the buffer know the file by its flags.
    let clears = [Call::Write(F, 0, 1), Call::SetFlags(F, 0), Call::Append(F, 10)];
    for other in [Call::Truncate(F, 5000), Call::Append(F, 5000), Call::Write(F, 90, 20)] {
        for threads in [[&clears[..], &[other]], [&clears, &[Call::Write(F, 0, 1), other]]] {
            let after = vec![Call::Append(F, 10), Call::Size(F)];
            explore_busy(&Workload { after, ..workload(&setup, &threads) });
        }
    }
}

/// What a thread wrote before it synchronised is on media then, whatever others do.
#[test]
fn what_was_written_before_a_sync_is_on_media() {
    fn body<L: BelowBuffer + Extents>(fs: CacheFs<L>) -> CacheFs<L> {
        let fs = Arc::new(fs);
        let writers = (1..3_u8).map(|number| {
            let fs = Arc::clone(&fs);
            thread::spawn(move || {
                let file = file(&fs);
                let offset = u64::from(number) * 6000;
                for turn in 0..2 {
                    let bytes = vec![number + 10 * turn; 3000];
                    write(&*fs, &file, offset + u64::from(turn) * 2000, &bytes);
                    fs.sync(&file).unwrap();
                    assert_below(&fs, offset + u64::from(turn) * 2000, &bytes);
                }
            })
        });
        let others: Vec<_> = writers.collect();
        let last = file(&fs);
        write(&*fs, &last, 20_000, &[9; 5000]);
        others.into_iter().for_each(|writer| writer.join().unwrap());
        fs.sync_all().unwrap();
        assert_idle(&fs);
        assert_below(&fs, 20_000, &[9; 5000]);
        drop(last);
        Arc::into_inner(fs).unwrap()
    }
    for threads in 0..2 {
        explore_with(busy(Log, threads), body);
        explore_with(busy(Inplace, threads), body);
    }
}

/// Two writers, while the threads become so many, and write back until so much of the pool is free, in percent.
fn change_beside_writers<L: BelowBuffer + Extents>(fs: CacheFs<L>, changes: &[(usize, u8)]) -> CacheFs<L> {
    let fs = Arc::new(fs);
    let writers = (1..3_u8).map(|number| {
        let fs = Arc::clone(&fs);
        thread::spawn(move || {
            let file = file(&fs);
            for turn in 0..2 {
                write(&*fs, &file, u64::from(number) * 40_960 + turn * 8192, &[number; 2 * BLOCK]);
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let usual = fs.settings();
    for &(threads, percent) in changes {
        let settings = Settings { threads, low_percent: percent, high_percent: percent, ..usual };
        fs.set(settings).unwrap();
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    fs.sync_all().unwrap();
    assert_idle(&fs);
    for number in 1..3_u8 {
        assert_below(&fs, u64::from(number) * 40_960, &[number; 4 * BLOCK]);
    }
    Arc::into_inner(fs).unwrap()
}

/// A writer that waits for threads goes on when they are taken away, and threads that come find what waits.
#[test]
fn threads_that_come_and_go_beside_buffered_writers() {
    explore_with(lazy(Log, 1), |fs| change_beside_writers(fs, &[(2, 5), (0, 5), (1, 50)]));
    explore_with(lazy(Inplace, 0), |fs| change_beside_writers(fs, &[(2, 5), (0, 5), (1, 50)]));
}

/// Nobody waits for what the threads freed by the settings before.
#[test]
fn threads_that_write_back_more_or_less_beside_buffered_writers() {
    explore_with(busy(Log, 1), |fs| change_beside_writers(fs, &[(1, 5)]));
    explore_with(lazy(Log, 1), |fs| change_beside_writers(fs, &[(1, 100)]));
    explore_with(lazy(Inplace, 1), |fs| change_beside_writers(fs, &[(1, 100), (1, 5)]));
}

/// What is written while the file is mapped, or was before, is on media without a sync.
#[test]
fn a_file_that_is_mapped_beside_buffered_writes() {
    fn body<L: BelowBuffer + Extents>(fs: CacheFs<L>) -> CacheFs<L> {
        let fs = Arc::new(fs);
        let writer = thread::spawn({
            let fs = Arc::clone(&fs);
            move || (0..2).for_each(|turn| write(&*fs, &file(&fs), turn * 5000, &[7; 5000]))
        });
        let mapped = file(&fs);
        fs.bypass(&mapped).unwrap();
        writer.join().unwrap();
        assert_below(&fs, 0, &[7; 10_000]);
        assert_idle(&fs);
        fs.end_bypass(&mapped);
        drop(mapped);
        Arc::into_inner(fs).unwrap()
    }
    explore_with(busy(Log, 1), body);
    explore_with(lazy(Inplace, 0), body);
}

/// Blocks that the layout has behind the end of a file are not counted again for what waits to be written there.
#[test]
fn blocks_allocated_beside_a_buffered_write() {
    fn body<L: BelowBuffer + Extents>(fs: CacheFs<L>) -> CacheFs<L> {
        let fs = Arc::new(fs);
        let writer = thread::spawn({
            let fs = Arc::clone(&fs);
            move || write(&*fs, &file(&fs), 0, &[7; BLOCK])
        });
        let node = file(&fs);
        let mode = FallocateMode::AllocateKeepSize;
        fs.fallocate(&node, mode, 0, 2 * BLOCK as u64, Timestamp::default()).unwrap();
        writer.join().unwrap();
        let waiting = fs.getattr(&node).unwrap();
        fs.sync(&node).unwrap();
        let written = fs.getattr(&node).unwrap();
        assert_eq!((waiting.size, waiting.allocated), (written.size, written.allocated));
        drop(node);
        Arc::into_inner(fs).unwrap()
    }
    explore_with(lazy(Log, 0), body);
    explore_with(lazy(Inplace, 0), body);
}

/// A block that was left out is none, whatever of the others is on its way.
#[test]
fn holes_are_not_counted_beside_writeback() {
    fn body<L: BelowBuffer + Extents>(fs: CacheFs<L>) -> CacheFs<L> {
        let fs = Arc::new(fs);
        let writer = thread::spawn({
            let fs = Arc::clone(&fs);
            move || [0, 5].into_iter().for_each(|block| write(&*fs, &file(&fs), block * 4096, &[7; BLOCK]))
        });
        let node = file(&fs);
        for _ in 0..6 {
            let attr = fs.getattr(&node).unwrap();
            assert!(attr.allocated <= 2 * BLOCK as u64, "{} of {}", attr.allocated, attr.size);
        }
        writer.join().unwrap();
        fs.sync(&node).unwrap();
        assert_eq!(fs.getattr(&node).unwrap().allocated, 2 * BLOCK as u64);
        drop(node);
        Arc::into_inner(fs).unwrap()
    }
    explore_with(busy(Log, 1), body);
    explore_with(busy(Inplace, 1), body);
}

/// As the random workloads of plain layouts, with synchronous writes, syncs, and one thread.
#[test]
fn random_buffered_workloads() {
    let mut rng = SmallRng::seed_from_u64(seed());
    for turn in 0..schedules() / 5 {
        let mut calls = || (0..3).map(|_| random_call(&mut rng)).collect::<Vec<_>>();
        let threads = vec![calls(), calls()];
        let setup =
            vec![Call::Create(D, "a"), Call::Create(E, "b"), Call::Mkdir(D, "c"), Call::Append(F, 9000)];
        let workload = Workload { setup, threads, after: Vec::new() };
        println!("{workload:?}");
        let threads = turn % 2;
        explore_on(busy(Log, threads), &workload, 50);
        explore_on(busy(Inplace, threads), &workload, 50);
    }
}

/// The file `d/f`, by a node of its own.
fn file<L: BelowBuffer + Extents>(fs: &CacheFs<L>) -> CacheNode<L::Node> {
    fs.lookup(&fs.lookup(&fs.root(), b"d").unwrap(), b"f").unwrap()
}

fn write<L: Data>(fs: &L, node: &L::Node, offset: u64, bytes: &[u8]) {
    let at = WriteAt::Offset(offset);
    fs.write(node, at, &[IoSlice::new(bytes)], Durability::Lazy, Timestamp::default()).unwrap();
}

/// The layout has these bytes in `d/f`.
fn assert_below<L: BelowBuffer + Extents>(fs: &CacheFs<L>, offset: u64, bytes: &[u8]) {
    let below = fs.layout();
    let node = below.lookup(&below.lookup(&below.root(), b"d").unwrap(), b"f").unwrap();
    let mut found = vec![0; bytes.len()];
    assert_eq!(below.read(&node, offset, &mut found, None).unwrap(), bytes.len());
    assert!(found == bytes, "at {offset}");
}
