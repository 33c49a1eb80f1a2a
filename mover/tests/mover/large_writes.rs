//! Large asynchronous writes went to disk however much room memory had, which is the faster place.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, Data, Durability, FileKind, Names, NewInode, Timestamp, WriteAt,
};
use nacre_layout_parts::lifecycle::{MkfsOptions, MountOptions};
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{Budget, LargeWrites, MoverOptions, Threshold, TieredFs};
use uuid::Uuid;

use crate::batches::machine::{Layout, Node};

type Fs<L> = TieredFs<L, SimDisk>;

const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
/// A write that is large.
const LARGE: u64 = 64 * BLOCK_SIZE;

/// Memory of 16 MiB and a tier, and a file of which nothing is known but that large writes overwrite it.
fn machine<L: Layout>(usual: LargeWrites, disk_threshold: Option<u8>) -> (Fs<L>, Node<L>) {
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[32 << 20]));
    L::mkfs(&memory, &MkfsOptions::default()).expect("mkfs");
    let layout = L::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::<L>::new(layout, options(disk_threshold)).with_large_writes(usual);
    fs.add(SimDisk::of(&memory, 0), Uuid::from_u128(7), 1, 1, NOW).expect("a tier");
    let node = create(&fs, "large");
    (0..8).for_each(|_| fs.accepted(&node, 0, LARGE));
    keep(&fs);
    (fs, node)
}

fn create<L: Layout>(fs: &Fs<L>, name: &str) -> Node<L> {
    let (kind, mode) = (FileKind::Regular, 0o644);
    let new = NewInode { kind, mode, uid: 0, gid: 0, rdev: 0, now: NOW, xattrs: &[], target: &[] };
    fs.create(&fs.root(), name.as_bytes(), &new).expect("create")
}

fn options(disk_threshold: Option<u8>) -> MoverOptions {
    MoverOptions { balance: false, disk_threshold, ..MoverOptions::default() }
}

fn keep<L: Layout>(fs: &Fs<L>) {
    fs.pause(true);
    fs.tick(NOW.secs as u64 * 1000, &Budget::default()).expect("it keeps");
    fs.pause(false);
}

/// So many MiB are written durably, in a file that is not large for it.
fn use_memory<L: Layout>(fs: &Fs<L>, node: &Node<L>, part: u64) {
    let bytes = vec![7; 1 << 20];
    let at = WriteAt::Offset(part << 20);
    fs.write(node, at, &[IoSlice::new(&bytes)], Durability::Now, NOW).expect("what is cold moves");
}

fn they_go_to_disk_where_memory_is_full_or_somebody_says_so<L: Layout>() {
    let (fs, node) = machine::<L>(LargeWrites::ToDisk, None);
    assert!(fs.goes_to_disk(&node, 0, LARGE), "as in the paper");
    let (fs, node) = machine::<L>(LargeWrites::WhereBlocksMove, Some(0));
    assert!(fs.goes_to_disk(&node, 0, LARGE), "it was said");
    let (fs, node) = machine::<L>(LargeWrites::WhereBlocksMove, None);
    let other = create(&fs, "small");
    let mut seen = [false; 2];
    for part in 0..14 {
        let is_for_disk = fs.goes_to_disk(&node, 0, LARGE);
        assert_eq!(is_for_disk, fs.usage() > fs.threshold() - 5.0, "{} % of {}", fs.usage(), fs.threshold());
        seen[usize::from(is_for_disk)] = true;
        use_memory(&fs, &other, part);
        keep(&fs);
    }
    assert_eq!(seen, [true; 2]);
    assert!(!fs.goes_to_disk(&node, 0, BLOCK_SIZE), "that one is small");
    // While it is mounted.
    fs.change(&options(Some(100)));
    keep(&fs);
    assert!(!fs.goes_to_disk(&node, 0, LARGE));
    fs.change(&options(Some(0)));
    assert!(fs.goes_to_disk(&node, 0, LARGE), "nobody needs to look for that");
}

fn who_finds_no_room_says_that_there_is_none<L: Layout>() {
    let (fs, node) = machine::<L>(LargeWrites::WhereBlocksMove, Some(100));
    let other = create(&fs, "small");
    for part in 0..20 {
        assert!(part > 12 || !fs.goes_to_disk(&node, 0, LARGE), "at {part} MiB");
        use_memory(&fs, &other, part);
    }
    assert!(fs.goes_to_disk(&node, 0, LARGE), "more than there is room for");
    keep(&fs);
    assert!(!fs.goes_to_disk(&node, 0, LARGE), "not until somebody looks again");
}

/// Anti-caching decides by what was used last, not by the writes before.
fn with_anticaching_no_write_goes_to_disk_by_itself<L: Layout>() {
    let (fs, node) = machine::<L>(LargeWrites::ToDisk, None);
    assert!(fs.goes_to_disk(&node, 0, LARGE));
    let anticache = Some(Threshold::Percent(50));
    fs.change(&MoverOptions { anticache, ..options(None) });
    assert!(!fs.goes_to_disk(&node, 0, LARGE), "neither a large one");
    fs.change(&options(None));
    assert!(fs.goes_to_disk(&node, 0, LARGE));
}

over_each_layout!(
    they_go_to_disk_where_memory_is_full_or_somebody_says_so,
    who_finds_no_room_says_that_there_is_none,
    with_anticaching_no_write_goes_to_disk_by_itself,
);
