//! Each read of 4 KiB of a file on a tier fetched 1 MiB, wherever it was: what is fetched follows how the file is read.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Data, Durability, FileBlock, FileKind, Names, NewInode, Timestamp, WriteAt};
use nacre_layout_parts::lifecycle::{MkfsOptions, MountOptions};
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{MoverOptions, TieredFs};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

use crate::batches::machine::{Layout, Node};

type Fs<L> = TieredFs<L, SimDisk>;

const FILE: usize = 16 << 20;
const BLOCK: usize = BLOCK_SIZE as usize;

fn content(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|at| (at / BLOCK * 7 + at) as u8).collect()
}

/// A file of which all is on a disk, and nothing in DRAM.
fn below<L: Layout>() -> (Fs<L>, Node<L>) {
    let memory = Arc::new(SimPm::with_disks(64 << 20, &[64 << 20]));
    L::mkfs(&memory, &MkfsOptions::default()).expect("mkfs");
    let layout = L::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::<L>::new(layout, MoverOptions::default());
    let now = Timestamp::new(1_700_000_000, 0);
    fs.add(SimDisk::of(&memory, 0), Uuid::from_u128(7), 1, 1, now).expect("a tier");
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        now,
        xattrs: &[],
        target: &[],
    };
    let node = fs.create(&fs.root(), b"file", &new).expect("create");
    let bytes = content(0, FILE);
    fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, now).expect("write");
    let moved = fs.demote(&node, 1, FileBlock(0), u64::MAX, false).expect("it moves");
    assert_eq!(moved.moved as usize, FILE / BLOCK);
    (fs, node)
}

/// Bytes that a read has the device read.
fn cost<L: Layout>(fs: &Fs<L>, node: &Node<L>, offset: usize, len: usize) -> u64 {
    let before = fs.tiers().traffic().0;
    let mut seen = vec![0; len];
    assert_eq!(fs.read(node, offset as u64, &mut seen, None).expect("read"), len);
    assert!(seen == content(offset, len), "{len} bytes at {offset}");
    fs.tiers().traffic().0 - before
}

fn reads_here_and_there_fetch_what_they_ask_for<L: Layout>() {
    let seed = 11;
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (fs, node) = below::<L>();
    const READS: u64 = 64;
    let total: u64 =
        (0..READS).map(|_| cost(&fs, &node, random.random_range(1..FILE / BLOCK) * BLOCK, BLOCK)).sum();
    // Two of them may be neighbours by chance.
    assert!(total <= (READS + 32) * BLOCK_SIZE, "{total} bytes for {READS} blocks");
    // Parts of blocks: the blocks that they lie in.
    let (fs, node) = below::<L>();
    assert_eq!(cost(&fs, &node, 9 * BLOCK + 100, 200), BLOCK_SIZE);
    assert_eq!(cost(&fs, &node, 999 * BLOCK - 1, 2), 2 * BLOCK_SIZE);
}

fn reads_in_order_fetch_more_and_more_and_nothing_twice<L: Layout>() {
    let (fs, node) = below::<L>();
    let fetched: Vec<u64> = (0..FILE / BLOCK)
        .map(|block| cost(&fs, &node, block * BLOCK, BLOCK))
        .filter(|bytes| *bytes > 0)
        .collect();
    assert_eq!(fetched.iter().sum::<u64>(), FILE as u64);
    assert_eq!(fetched[..5], [32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10]);
    assert!(fetched[5..].iter().rev().skip(1).all(|bytes| *bytes == 1 << 20), "{fetched:?}");
}

over_each_layout!(
    reads_here_and_there_fetch_what_they_ask_for,
    reads_in_order_fetch_more_and_more_and_nothing_twice,
);
