//! Scrubbing blocks of files on tiers, and the tiers' own superblocks. A scrub once read PM only, and said that all was
//! well.

use std::io::IoSlice;

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FileBlock, FileKind, Names, Place, Timestamp, WriteAt,
};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_media::block::SimDisk;

use super::{Fs, Layout, MEMORY, Machine, Node, TIER, new_inode};

const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);
const BLOCKS: u64 = 700;

fn scrub<L: Layout>(fs: &Fs<L>) -> ScrubStatus {
    fs.layout().start_scrub(u64::MAX).expect("it starts");
    loop {
        let status = fs.layout().scrub_status();
        if !status.running {
            assert!(status.finished, "{status:?}");
            return status;
        }
        std::thread::yield_now();
    }
}

/// A file that is on a tier as a whole.
fn put_below<L: Layout>(fs: &Fs<L>, name: &str, blocks: u64, tier: u8) -> Node<L> {
    let node = fs.create(&fs.root(), name.as_bytes(), &new_inode(FileKind::Regular, NOW)).expect("create");
    for block in 0..blocks {
        let bytes = vec![block as u8; BLOCK_SIZE as usize];
        let at = WriteAt::Offset(block * BLOCK_SIZE);
        fs.write(&node, at, &[IoSlice::new(&bytes)], Durability::Now, NOW).expect("write");
    }
    fs.demote(&node, tier, FileBlock(0), u64::MAX, false).expect("it moves");
    node
}

/// The byte of a tier's device at which a block of a file is.
fn place_of<L: Layout>(fs: &Fs<L>, node: &Node<L>, block: u64) -> u64 {
    let extents = fs.resolve(node, FileBlock(block), 1).expect("resolve");
    let Place::Tier { block, .. } = extents[0].place else { panic!("{extents:?}") };
    block.offset()
}

fn findings<L: Layout>(fs: &Fs<L>) -> Vec<String> {
    scrub(fs).findings
}

fn what_a_disk_cannot_read_is_told_by_file_and_range<L: Layout>() {
    let (machine, fs, disks) = Machine::<L>::with_disks(MEMORY, &[1, 1]);
    let nodes = [put_below(&fs, "one", BLOCKS, TIER), put_below(&fs, "two", 3, 2)];
    let status = scrub(&fs);
    assert!(status.findings.is_empty(), "{:?}", status.findings);
    let read: Vec<_> =
        status.tiers.iter().map(|tier| (tier.number, tier.bytes, tier.unread.clone())).collect();
    assert_eq!(read, [(1, BLOCKS * BLOCK_SIZE, None), (2, 3 * BLOCK_SIZE, None)]);

    // Two ranges of one file, one of which ends what is read at once, and all of the other file.
    for block in [254, 255, 256, 600] {
        disks[0].poison(place_of(&fs, &nodes[0], block), 1);
    }
    (0..3).for_each(|block| disks[1].poison(place_of(&fs, &nodes[1], block), 1));
    let check = |fs: &Fs<L>| {
        let found = findings(fs);
        for words in ["/one (inode", "/two (inode"] {
            assert!(found.iter().any(|finding| finding.starts_with(words)), "{found:?}");
        }
        let ranges = [(254, 257, 1), (600, 601, 1), (0, 3, 2)].map(|(from, to, tier)| {
            let [from, to] = [from, to].map(|block| block * BLOCK_SIZE);
            format!("bytes {from} to {to} of it cannot be read on tier {tier}")
        });
        assert!(ranges.iter().all(|range| found.iter().any(|finding| finding.contains(range))), "{found:?}");
        assert_eq!(found.len(), 3, "{found:?}");
    };
    check(&fs);
    // Also of files that nobody has used since the mount.
    drop(nodes);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    let fs = machine.open();
    for (number, disk) in disks.iter().enumerate() {
        fs.attach(disk.clone(), super::VOLUME, Some(77 + number as u64)).expect("attach");
    }
    check(&fs);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
}

fn a_superblock_of_a_tier_is_written_from_its_other_copy<L: Layout>() {
    let (machine, fs, disks) = Machine::<L>::with_disks(MEMORY, &[1]);
    drop(put_below(&fs, "file", 1, TIER));
    disks[0].poke(50, &[0xff; 3]);
    let status = scrub(&fs);
    assert_eq!(
        status.findings,
        ["tier 1: the first copy of its superblock was damaged and is written again"]
    );
    assert_eq!(status.repaired, 1);
    assert!(findings(&fs).is_empty());
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

fn a_tier_that_is_missing_is_not_damage_and_is_said_not_to_be_read<L: Layout>() {
    let (machine, fs, disks) = Machine::<L>::with_disks(MEMORY, &[1, 1]);
    drop([put_below(&fs, "one", 5, TIER), put_below(&fs, "two", 3, 2)]);
    fs.tiers().detach(TIER, "it was taken offline");
    let status = scrub(&fs);
    assert!(status.findings.is_empty(), "{:?}", status.findings);
    let [missing, there] = &status.tiers[..] else { panic!("{:?}", status.tiers) };
    assert!(missing.unread.as_ref().is_some_and(|why| why.contains("taken offline")), "{missing:?}");
    assert_eq!((missing.bytes, missing.used), (0, 5 * BLOCK_SIZE));
    assert_eq!((there.bytes, &there.unread), (3 * BLOCK_SIZE, &None));
    drop(disks);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

/// Where the list of a file's extents is on the tier, it is read, and its checksum counts.
fn a_list_of_extents_on_a_tier_is_checked<L: Layout>() {
    let (machine, fs, _) = Machine::<L>::with_disks(MEMORY, &[1]);
    if !fs.layout().has_logs() {
        println!("left out: the layout {} has no logs", L::NAME);
        return;
    }
    let node = put_below(&fs, "file", 70, TIER);
    assert!(fs.move_log(&node).expect("it moves") > 0, "it has pages of a log");
    let image = fs.layout().log_image_at(&node).expect("an image");
    drop(node);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    let attach = || {
        let fs = machine.open();
        let token = Lifecycle::summary(fs.layout()).mount_epoch + 50;
        fs.attach(SimDisk::of(&machine.memory, 0), super::VOLUME, Some(token)).expect("attach");
        fs
    };
    let fs = attach();
    let status = scrub(&fs);
    assert!(status.findings.is_empty(), "{:?}", status.findings);
    assert_eq!(status.tiers[0].bytes, (70 + image.len) * BLOCK_SIZE);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.disk().poke(image.start.offset() + 40, &[0xff; 3]);
    let fs = attach();
    let found = findings(&fs);
    assert!(found.len() == 1 && found[0].starts_with("/file (inode"), "{found:?}");
    assert!(found[0].contains("the offloaded extent map at block"), "{found:?}");
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
}

over_each_layout!(
    what_a_disk_cannot_read_is_told_by_file_and_range,
    a_superblock_of_a_tier_is_written_from_its_other_copy,
    a_tier_that_is_missing_is_not_damage_and_is_said_not_to_be_read,
    a_list_of_extents_on_a_tier_is_checked,
);
