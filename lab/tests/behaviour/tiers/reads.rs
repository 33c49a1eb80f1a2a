//! Blocks that move because they are read.

use std::io::IoSlice;

use nacre_engine::{Data, Durability, FileKind, Names, Timestamp, WriteAt, XattrMode};
use nacre_mover::{Budget, PIN};

use super::{Layout, Machine, Node, bytes_below, new_inode};

/// What is read over and over moves to disk and into DRAM while all reads come from memory, and up again when none do.
fn reads_come_from_memory_and_from_dram<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::<L>::new(true);
    let time = |at: i64| Timestamp::new(1_700_000_000 + at, 0);
    let put = |name: &str| {
        let new = new_inode(FileKind::Regular, time(0));
        let node = fs.create(&fs.root(), name.as_bytes(), &new).expect("create");
        let bytes: Vec<u8> = (0..FILE).map(|at| (at / 512) as u8 ^ name.as_bytes()[0]).collect();
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(0))
            .expect("write");
        (node, bytes)
    };
    let (hot, pinned, written) = (put("hot"), put("pinned"), put("written"));
    fs.set_xattr(&pinned.0, PIN, b"1", XattrMode::Set, None, time(0)).expect("set");
    let below = |node: &Node<L>| bytes_below(&fs, node);
    let read = |(node, bytes): &(Node<L>, Vec<u8>), at: i64| {
        let mut buffer = vec![0; FILE as usize];
        assert_eq!(fs.read(node, 0, &mut buffer, Some(time(at))).expect("read"), buffer.len());
        assert!(buffer == *bytes, "second {at}");
    };
    let keep =
        |second: i64| fs.tick((1_700_000_000 + second as u64) * 1000, &Budget::default()).expect("it keeps");
    keep(0);
    for second in 1..=4 {
        assert_eq!(below(&hot.0), 0, "second {second}");
        // It is read as often as the others, and written between.
        fs.write(&written.0, WriteAt::Offset(0), &[IoSlice::new(&written.1)], Durability::Now, time(second))
            .expect("write");
        [&hot, &pinned, &written].into_iter().for_each(|file| read(file, second));
        keep(second);
    }
    // Four seconds were as one, and a quarter of the 4 MiB of DRAM is what it takes in a second.
    assert_eq!([&hot.0, &pinned.0, &written.0].map(below), [FILE, 0, 0]);
    assert_eq!((fs.status().lowered, fs.status().moved), (FILE, 0));
    let traffic = fs.tiers().traffic();
    // Reads of both are nothing that asks for more.
    for second in 5..=9 {
        [&hot, &pinned].into_iter().for_each(|file| read(file, second));
        assert_eq!(keep(second), 0, "second {second}");
    }
    assert_eq!(fs.tiers().traffic(), traffic, "all of it was in DRAM");
    for second in 10..=13 {
        assert_eq!((below(&hot.0), fs.status().raised), (FILE, 0), "second {second}");
        read(&hot, second);
        keep(second);
    }
    assert_eq!((below(&hot.0), fs.status().raised), (0, FILE));
    read(&hot, 14);
    // Nobody reads anything.
    (15..30).for_each(|second| assert_eq!(keep(second), 0));
    drop((hot, pinned, written));
    machine.unmount(fs);
}

/// What is read is more than DRAM has room for: no more of it moves than that, and nothing is read from disk.
fn what_dram_has_no_room_for_stays_in_memory<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::<L>::new(true);
    let time = |at: i64| Timestamp::new(1_700_000_000 + at, 0);
    let bytes = vec![7; FILE as usize];
    let files: Vec<_> = (0..16)
        .map(|number| {
            let new = new_inode(FileKind::Regular, time(0));
            let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new).expect("create");
            fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(0))
                .expect("write");
            node
        })
        .collect();
    for second in 0..20 {
        for node in &files {
            let mut buffer = vec![0; FILE as usize];
            fs.read(node, 0, &mut buffer, Some(time(second))).expect("read");
            assert!(buffer == bytes, "second {second}");
        }
        fs.tick((1_700_000_000 + second as u64) * 1000, &Budget::default()).expect("it keeps");
    }
    let (lowered, dram) = (fs.status().lowered, fs.tiers().pages().capacity());
    // Where blocks lie, a chunk of 64 KiB may be half full.
    assert!((dram - (64 << 10)..=dram).contains(&lowered), "{lowered} of {dram}");
    assert_eq!(fs.tiers().traffic().0, 0, "nothing was read from disk");
    drop(files);
    machine.unmount(fs);
}

over_each_layout!(reads_come_from_memory_and_from_dram, what_dram_has_no_room_for_stays_in_memory,);
