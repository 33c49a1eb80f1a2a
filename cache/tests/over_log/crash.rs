//! Crash images: what was synchronised is there, and of the rest no block is torn and no size lies.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nacre_cache::{CacheFs, CacheOptions, Clock, Settings};
use nacre_engine::{Data, Durability, Names, WriteAt};
use nacre_layout_log::{MkfsOptions, mkfs};
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::newcomers::mails;
use crate::{BLOCK, World, contents, mount_log, without_threads};

const BLOCKS: u64 = 6;

/// What each block of the file held after each of its writes, and after which sync.
#[derive(Default)]
struct History {
    /// By block: its contents after each write, with the number of the write.
    versions: Vec<Vec<(u64, Vec<u8>)>>,
    /// By number of the sync: the writes before it, and the size.
    syncs: Vec<(u64, u64)>,
}

/// Random writes of up to two blocks, appends, syncs and writeback under a pool of few blocks. Marks say which sync has
/// returned.
fn workload(world: &World, seed: u64) -> History {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut history = History::default();
    history.versions.resize(BLOCKS as usize, vec![(0, vec![])]);
    history.syncs.push((0, 0));
    let file = world.find("file").unwrap();
    let mut bytes: Vec<u8> = Vec::new();
    for number in 1..=60u64 {
        let len = rng.random_range(1..2 * BLOCK);
        let offset =
            if rng.random_bool(0.3) { bytes.len() } else { rng.random_range(0..bytes.len() + BLOCK) };
        let offset = offset.min(BLOCKS as usize * BLOCK - len);
        bytes.resize(bytes.len().max(offset + len), 0);
        bytes[offset..offset + len].fill(number as u8);
        let how = if rng.random_bool(0.05) { Durability::Now } else { Durability::Lazy };
        world.write(&file, WriteAt::Offset(offset as u64), &bytes[offset..offset + len], how).unwrap();
        for (block, now) in bytes.chunks(BLOCK).enumerate() {
            let versions = &mut history.versions[block];
            if versions.last().is_none_or(|(_, last)| last != now) {
                versions.push((number, now.to_vec()));
            }
        }
        if rng.random_bool(0.15) {
            world.fs.sync(&file).unwrap();
            history.syncs.push((number, bytes.len() as u64));
            world.pm.mark(history.syncs.len() as u64 - 1);
        }
    }
    history
}

/// A block as a crash left it is one of its versions, not older than the sync, cut or filled with zeros at the size.
fn is_a_version(history: &History, block: usize, synced: u64, found: &[u8]) -> bool {
    let versions = &history.versions[block];
    let oldest = versions.iter().rposition(|(number, _)| *number <= synced).unwrap_or(0);
    versions[oldest..].iter().any(|(_, version)| {
        let common = version.len().min(found.len());
        version[..common] == found[..common] && found[common..].iter().all(|byte| *byte == 0)
    })
}

#[test]
fn every_crash_leaves_what_was_synchronised_and_tears_no_block() {
    let (mut images, mut past) = (0, 0);
    for seed in 0..12 {
        // The file is new, and goes past DRAM as others did.
        let inherits = seed >= 6;
        let pm = Arc::new(SimPm::new(16 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let options = CacheOptions {
            settings: Settings { inherits, ..without_threads() },
            clock: Clock::Set(Arc::new(AtomicU64::new(1))),
            ..CacheOptions::new([4, 5, 16][seed as usize % 3] * BLOCK as u64)
        };
        let fs = CacheFs::new(mount_log(&pm), &options).unwrap();
        let world = World { pm: Arc::clone(&pm), clock: Arc::default(), fs };
        if inherits {
            mails(&world, 80, |_| true);
        }
        // One of them is by chance not as the others.
        world.create("file");
        let before = world.fs.status().written_eagerly;
        let start = pm.snapshot();
        pm.start_recording();
        let history = workload(&world, seed);
        let trace = pm.stop_recording();
        past += u64::from(inherits && world.fs.status().written_eagerly > before);
        world.fs.abandon().abandon();

        let mut replay = Replay::new(nacre_media::Image::from(start), &trace);
        let scratch = Arc::new(SimPm::new(16 << 20));
        while let Some(point) = replay.advance() {
            let sync = point.last_mark.unwrap_or(0);
            let (synced, size) = history.syncs[sync as usize];
            let sampling = Sampling { exhaustive_up_to: 4, samples: 4, seed };
            for image in replay.images(&sampling).iter() {
                scratch.load(replay.media());
                image.apply(&scratch);
                let crashed = mount_log(&scratch);
                let file = crashed.lookup(&crashed.root(), b"file").unwrap();
                let found = contents(&crashed, &file);
                let words = || format!("seed {seed}, point {}, {image:?}, after sync {sync}", point.index);
                assert!(found.len() as u64 >= size, "{}: {} bytes of {size}", words(), found.len());
                for (block, bytes) in found.chunks(BLOCK).enumerate() {
                    assert!(
                        is_a_version(&history, block, synced, bytes),
                        "{}: block {block} is torn",
                        words()
                    );
                }
                drop(file);
                crashed.abandon();
                images += 1;
            }
        }
    }
    assert!(past >= 5, "{past} went past DRAM");
    assert!(images > 500, "{images} images say little");
    println!("{images} images");
}

#[test]
fn a_crash_without_a_sync_leaves_the_file_as_it_was() {
    let world = crate::world(64);
    let file = world.create("file");
    world.put(&file, 0, b"synced");
    world.fs.sync(&file).unwrap();
    world.pass_ms(6000);
    world.fs.write(&file, WriteAt::End, &[IoSlice::new(b", not")], Durability::Lazy, crate::at(9)).unwrap();
    let crate::World { pm, fs, .. } = world;
    drop(file);
    fs.abandon().abandon();
    let fs = mount_log(&pm);
    let file = fs.lookup(&fs.root(), b"file").unwrap();
    assert_eq!((contents(&fs, &file), fs.getattr(&file).unwrap().mtime), (b"synced".to_vec(), crate::at(1)));
}
