//! DRAM that a write buffer and the page cache of tiers share.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_cache::{CacheFs, CacheOptions, Settings};
use nacre_engine::{Data, Durability, FileBlock, FileKind, Names, Timestamp, WriteAt};
use nacre_media::Frames;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Fs, Layout, Machine, TIER, VOLUME, new_inode};

type Buffered<L> = CacheFs<Fs<L>>;

const BLOCK: u64 = 4096;
const BUFFER: u64 = 12 << 20;
/// What the machine has.
const CACHE: u64 = 4 << 20;
/// What writes may have, and reads in any case: half of the cache is lent.
const WRITES: u64 = BUFFER + CACHE / 2;
const READS: u64 = CACHE / 2;
const FILE: u64 = 24 << 20;
const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);
/// Beyond what is shared: what each thread has in its hands to put it in, and what was given back while it was written to
/// media, of each thread that writes back.
const IN_HANDS: u64 = 8 * (64 << 10) + 4 * (1 << 20);

fn content(block: u64) -> u8 {
    (block * 7 % 251) as u8
}

/// A file all of which is on the tier, and a buffer over it.
fn buffered<L: Layout>() -> (Machine<L>, Arc<Frames>, Buffered<L>) {
    let (machine, fs, _) = Machine::<L>::with_disks(64 << 20, &[1]);
    let node = fs.create(&fs.root(), b"below", &new_inode(FileKind::Regular, NOW)).expect("create");
    for block in 0..FILE / BLOCK {
        let bytes = vec![content(block); BLOCK as usize];
        fs.write(&node, WriteAt::Offset(block * BLOCK), &[IoSlice::new(&bytes)], Durability::Now, NOW)
            .expect("write");
    }
    fs.demote(&node, TIER, FileBlock(0), FILE / BLOCK, false).expect("it moves");
    drop(node);
    let frames = Arc::new(Frames::default());
    let fs = machine.over(fs.into_layout(), Arc::clone(&frames));
    fs.attach(machine.disk(), VOLUME, Some(2)).expect("the tier");
    let size = BUFFER + fs.lend_dram();
    assert_eq!(size, WRITES);
    let settings = Settings { max_age_ms: 3_600_000, ..Settings::default() };
    let options = CacheOptions { settings, frames: Some(Arc::clone(&frames)), ..CacheOptions::new(size) };
    (machine, frames, CacheFs::new(fs, &options).expect("a cache"))
}

fn pages<L: Layout>(fs: &Buffered<L>) -> u64 {
    fs.layout().tiers().pages().bytes()
}

fn unmount<L: Layout>(fs: Buffered<L>, machine: &Machine<L>) {
    let (below, result) = fs.unmount();
    result.expect("it was written");
    machine.unmount(Arc::new(below));
}

fn read_all<L: Layout>(fs: &Buffered<L>) {
    let node = fs.lookup(&fs.root(), b"below").expect("lookup");
    let mut seen = vec![0; BLOCK as usize];
    // Each of them again at once: it is used.
    for block in (0..FILE / BLOCK).flat_map(|block| [block; 2]) {
        assert_eq!(fs.read(&node, block * BLOCK, &mut seen, None).expect("read"), seen.len());
        assert!(seen.iter().all(|byte| *byte == content(block)), "block {block}");
    }
}

fn reads_use_what_writes_do_not_and_give_it_back<L: Layout>() {
    let (machine, frames, fs) = buffered::<L>();
    read_all(&fs);
    let all = BUFFER + CACHE;
    let most = all - WRITES / 8;
    assert!((most - (1 << 20)..=most).contains(&pages(&fs)), "{} of {most}", pages(&fs));
    // Writes get all that is theirs, and reads keep what is theirs.
    let node = fs.create(&fs.root(), b"above", &new_inode(FileKind::Regular, NOW)).expect("create");
    let bytes = vec![1; 64 << 10];
    let mut written = 0;
    while written < WRITES / 10 * 9 {
        fs.write(&node, WriteAt::Offset(written), &[IoSlice::new(&bytes)], Durability::Lazy, NOW)
            .expect("write");
        written += bytes.len() as u64;
        assert!(pages(&fs) + fs.status().used * BLOCK <= all, "{written}");
    }
    assert_eq!(fs.status().used * BLOCK, written, "nothing had to leave");
    read_all(&fs);
    assert!((READS - (1 << 20)..=all - written).contains(&pages(&fs)), "{}", pages(&fs));
    assert!(frames.bytes() <= all + (64 << 10), "{}", frames.bytes());
    // They are over.
    fs.sync_all().expect("sync");
    read_all(&fs);
    assert!(pages(&fs) >= most - (1 << 20), "{}", pages(&fs));
    assert!(frames.bytes() <= all + IN_HANDS, "{}", frames.bytes());
    drop(node);
    unmount(fs, &machine);
}

/// Frames are what takes memory: there are never more than both may have together.
fn together_they_never_have_more_than_both_may_have<L: Layout>() {
    let (machine, frames, fs) = buffered::<L>();
    let ends = AtomicBool::new(false);
    let mut reached = 0;
    std::thread::scope(|scope| {
        let (fs, ends, frames) = (&fs, &ends, &frames);
        for seed in 0..2 {
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed);
                let node = fs.lookup(&fs.root(), b"below").expect("lookup");
                let mut seen = vec![0; 3 * BLOCK as usize];
                while !ends.load(Ordering::Relaxed) {
                    let block = random.random_range(0..FILE / BLOCK - 3);
                    fs.read(&node, block * BLOCK, &mut seen, None).expect("read");
                    for (at, bytes) in (block..).zip(seen.chunks(BLOCK as usize)) {
                        assert!(bytes.iter().all(|byte| *byte == content(at)), "block {at}");
                    }
                }
            });
        }
        let writers: Vec<_> = (0..2u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed);
                    let new = new_inode(FileKind::Regular, NOW);
                    let name = format!("above {seed}");
                    let node = fs.create(&fs.root(), name.as_bytes(), &new).expect("create");
                    let bytes = vec![1; 64 << 10];
                    for turn in 0..1500 {
                        let at = WriteAt::Offset(random.random_range(0..100) * bytes.len() as u64);
                        fs.write(&node, at, &[IoSlice::new(&bytes)], Durability::Lazy, NOW).expect("write");
                        if turn % 300 == 299 {
                            fs.sync(&node).expect("sync");
                        }
                    }
                })
            })
            .collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let bytes = frames.bytes();
            assert!(bytes <= BUFFER + CACHE + IN_HANDS, "{bytes}");
            reached = reached.max(bytes);
            std::thread::yield_now();
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(reached >= BUFFER + CACHE - (2 << 20), "all of it was used: {reached}");
    unmount(fs, &machine);
}

over_each_layout!(
    reads_use_what_writes_do_not_and_give_it_back,
    together_they_never_have_more_than_both_may_have,
);
