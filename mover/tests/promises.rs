//! A buffer above could hold no more than a small memory had free, whatever room there was on tiers: all that it accepted had
//! its space set aside in memory.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FileBlock, FileKind, Kind, Names, NewInode, Place, Result, Tiered,
    Timestamp, WriteAt, XattrMode,
};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{MoverFs, MoverOptions, PIN};
use uuid::Uuid;

type Fs = MoverFs<LogFs<SimPm>, SimDisk>;
type Node = <Fs as Names>::Node;

const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const TIER: u8 = 1;
/// Blocks of memory.
const MEMORY: u64 = 4096;

/// Memory of 16 MiB over a tier of so many blocks.
fn machine(tier: u64) -> Fs {
    let memory = Arc::new(SimPm::with_disks(MEMORY * BLOCK_SIZE, &[tier * BLOCK_SIZE]));
    mkfs(&*memory, &MkfsOptions::default()).expect("mkfs");
    let layout = LogFs::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::new(layout, MoverOptions { balance: false, ..MoverOptions::default() });
    fs.add(SimDisk::of(&memory, 0), Uuid::from_u128(7), 1, 1, NOW).expect("a tier");
    fs
}

fn create(fs: &Fs, name: &str) -> Node {
    let (kind, mode) = (FileKind::Regular, 0o644);
    let new = NewInode { kind, mode, uid: 0, gid: 0, rdev: 0, now: NOW, xattrs: &[], target: &[] };
    fs.create(&fs.root(), name.as_bytes(), &new).expect("create")
}

fn write(fs: &Fs, node: &Node, block: u64, blocks: u64, how: Durability) -> Result<u64> {
    let bytes = vec![block as u8; (blocks * BLOCK_SIZE) as usize];
    fs.write(node, WriteAt::Offset(block * BLOCK_SIZE), &[IoSlice::new(&bytes)], how, NOW)
}

/// What `write` has written there, block by block.
fn assert_written(fs: &Fs, node: &Node, writes: impl Iterator<Item = (u64, u64)>) {
    for (block, blocks) in writes {
        let mut seen = vec![0; (blocks * BLOCK_SIZE) as usize];
        assert_eq!(fs.read(node, block * BLOCK_SIZE, &mut seen, None).expect("read"), seen.len());
        assert!(seen.iter().all(|byte| *byte == block as u8), "block {block}");
    }
}

fn free_on_tier(fs: &Fs) -> u64 {
    fs.layout().tier_space(TIER).expect("a tier").free
}

/// Sets aside for writes of four blocks, as long as there is space; gives the blocks.
fn reserve_all(fs: &Fs) -> u64 {
    std::iter::repeat_with(|| fs.reserve(9)).take_while(Result::is_ok).count() as u64 * 9
}

#[test]
fn more_is_set_aside_than_memory_has() {
    let fs = machine(8 * MEMORY);
    let before = (fs.stat().available, fs.layout().stat().available);
    let tier = free_on_tier(&fs);
    for _ in 0..tier / 18 - 10 {
        fs.reserve(9).expect("half of the tier");
    }
    let memory = before.1 - fs.layout().stat().available;
    assert!((tier / 128 - 10..tier / 128 + 10).contains(&memory), "{memory} blocks of memory");
    assert!(free_on_tier(&fs) == tier, "none is taken");
    // What then comes is set aside in memory.
    let promised = (tier / 18 - 10) * 9 + reserve_all(&fs);
    assert!(promised + 20 > tier / 2 + before.1 && fs.layout().stat().available < 10, "{promised}");
    assert_eq!(fs.stat().available, before.0 - promised);
    for _ in 0..promised / 9 {
        fs.release(9);
    }
    assert_eq!((fs.stat().available, fs.layout().stat().available), before);
}

/// Others, who move blocks down to make room, leave as much on tiers.
#[test]
fn nobody_else_takes_what_is_set_aside() {
    let fs = machine(MEMORY / 4);
    let (file, other) = (create(&fs, "file"), create(&fs, "other"));
    let promised = (0..50).map(|_| fs.reserve(9).expect("there is room")).count() as u64;
    let mut written = 0;
    let error = loop {
        match write(&fs, &other, written, 8, Durability::Now) {
            Ok(_) => written += 8,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(free_on_tier(&fs) >= 50 * 8, "{} blocks are left", free_on_tier(&fs));
    assert!(written > MEMORY * 9 / 10 && fs.layout().stat().available < 64, "{written} blocks");
    for number in 0..promised {
        write(&fs, &file, number * 7, 4, Durability::Promised).expect("it was set aside");
        fs.release(9);
    }
    assert_written(&fs, &file, (0..promised).map(|number| (number * 7, 4)));
    assert_written(&fs, &other, (0..written).step_by(8).map(|block| (block, 8)));
    // Now they may.
    write(&fs, &other, written, 8, Durability::Now).expect("there is room");
}

/// What cannot be in memory, since all that is there is to stay, is on disk rather than lost.
#[test]
fn what_was_accepted_goes_below_pinned_files() {
    let fs = machine(4 * MEMORY);
    let file = create(&fs, "file");
    fs.set_xattr(&file, PIN, b"1", XattrMode::Set, None, NOW).expect("pinned");
    let writes = || (0..MEMORY / 4 + 64).map(|number| (number * 4, 4));
    let blocks = writes().map(|_| fs.reserve(9).expect("there is room")).count() as u64 * 4;
    for (block, blocks) in writes() {
        write(&fs, &file, block, blocks, Durability::Promised).expect("it was set aside");
        fs.release(9);
    }
    let extents = fs.resolve(&file, FileBlock(0), u64::MAX).expect("resolve");
    let is_below = |place: &Place| matches!(place, Place::Tier { .. });
    let below: u64 = extents.iter().filter(|at| is_below(&at.place)).map(|at| at.len).sum();
    assert!(blocks > MEMORY && (blocks - MEMORY..blocks / 2).contains(&below), "{below} of {blocks} blocks");
    assert_written(&fs, &file, writes());
}

/// A file of which a tier had no room for all stayed as a whole, and who needed room found none.
#[test]
fn a_part_of_a_file_moves_where_there_is_no_room_for_all() {
    let fs = machine(MEMORY / 16);
    let (large, other) = (create(&fs, "large"), create(&fs, "other"));
    let mut written = 0;
    while fs.layout().stat().available > 600 {
        write(&fs, &large, written, 100, Durability::Now).expect("there is room");
        written += 100;
    }
    let tier = free_on_tier(&fs);
    let more =
        (0..).take_while(|block| write(&fs, &other, *block, 1, Durability::Now).is_ok()).count() as u64;
    assert!(free_on_tier(&fs) == 0 && more > 550 + tier, "{more} blocks with {tier} of the tier");
    assert_written(&fs, &large, (0..written).step_by(100).map(|block| (block, 100)));
}
