//! Reservations over PM and tiers. A buffer above could hold no more than a small PM had free, however much room tiers had:
//! all of its reservations were in PM.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Kind, Names,
    NewInode, Place, PlacedExtent, Reservation, Result, SetAttr, TierState, TierTable, Timestamp, WriteAt,
    WriteShape, XattrMode,
};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{Budget, MoverOptions, PIN, TieredFs};
use uuid::Uuid;

type Fs = TieredFs<LogFs<SimPm>, SimDisk>;
type Node = <Fs as Names>::Node;

const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const TIER: u8 = 1;
/// Blocks of memory.
const MEMORY: u64 = 4096;

/// Memory of 16 MiB over a tier of so many blocks.
fn machine(tier: u64) -> Fs {
    machine_over(&[tier])
}

/// The same over several, the first the fastest.
fn machine_over(tiers: &[u64]) -> Fs {
    let sizes: Vec<u64> = tiers.iter().map(|blocks| blocks * BLOCK_SIZE).collect();
    let memory = Arc::new(SimPm::with_disks(MEMORY * BLOCK_SIZE, &sizes));
    mkfs(&*memory, &MkfsOptions::default()).expect("mkfs");
    let layout = LogFs::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::new(layout, MoverOptions { balance: false, ..MoverOptions::default() });
    for rank in 1..=tiers.len() as u8 {
        fs.add(SimDisk::of(&memory, usize::from(rank) - 1), Uuid::from_u128(7), rank, 1, NOW)
            .expect("a tier");
    }
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

/// Writes back.
fn write_back(fs: &Fs, node: &Node, block: u64, blocks: u64, reservation: &Reservation) {
    let bytes = vec![block as u8; (blocks * BLOCK_SIZE) as usize];
    let (at, data) = (block * BLOCK_SIZE, &[IoSlice::new(&bytes)]);
    fs.write_back(node, at, data, reservation, NOW).expect("it was reserved");
}

/// Reserves space for one write of so many blocks: two for each, and one for the file.
fn reserve(fs: &Fs, blocks: u64) -> Result<Reservation> {
    fs.reserve_for(&WriteShape { blocks, files: 1, ..WriteShape::default() })
}

/// Reserves space for so many writes of four blocks.
fn reserve_some(fs: &Fs, writes: u64) -> Vec<Reservation> {
    (0..writes).map(|_| reserve(fs, 4).expect("there is room")).collect()
}

#[test]
fn more_is_set_aside_than_memory_has() {
    let fs = machine(8 * MEMORY);
    let before = (fs.stat().available, fs.layout().stat().available);
    let tier = free_on_tier(&fs);
    let half = reserve_some(&fs, tier / 18 - 10);
    let memory = before.1 - fs.layout().stat().available;
    assert!((tier / 64 - 10..tier / 64 + 10).contains(&memory), "{memory} blocks of memory");
    assert!(free_on_tier(&fs) == tier, "none is taken");
    // What then comes is set aside in memory.
    let rest: Vec<_> = std::iter::repeat_with(|| reserve(&fs, 4)).map_while(Result::ok).collect();
    let reserved = (half.len() + rest.len()) as u64 * 9;
    assert!(reserved + 20 > tier / 2 + before.1 && fs.layout().stat().available < 10, "{reserved}");
    assert_eq!((fs.stat().available, fs.stat().reserved), (before.0 - reserved, reserved));
    drop((half, rest));
    assert_eq!(fs.stat().reserved, 0);
    assert_eq!((fs.stat().available, fs.layout().stat().available), before);
}

/// Others, who move blocks down to make room, leave as much on tiers.
#[test]
fn nobody_else_takes_what_is_set_aside() {
    let fs = machine(MEMORY / 4);
    let (file, other) = (create(&fs, "file"), create(&fs, "other"));
    let reserved = reserve_some(&fs, 50);
    let count = reserved.len() as u64;
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
    for (number, reservation) in (0..).zip(reserved) {
        write_back(&fs, &file, number * 7, 4, &reservation);
        drop(reservation);
    }
    assert_written(&fs, &file, (0..count).map(|number| (number * 7, 4)));
    assert_written(&fs, &other, (0..written).step_by(8).map(|block| (block, 8)));
    // Now they may.
    write(&fs, &other, written, 8, Durability::Now).expect("there is room");
}

/// Who writes beside that, and takes whatever room is made.
#[test]
fn room_that_is_made_for_what_was_accepted_is_nobody_elses() {
    let fs = machine(MEMORY);
    let (file, other) = (create(&fs, "file"), create(&fs, "other"));
    let reserved = reserve_some(&fs, 220);
    let count = reserved.len() as u64;
    let mut written = 0;
    while write(&fs, &other, written, 8, Durability::Now).is_ok() {
        written += 8;
    }
    let mut refused = 0;
    for (number, reservation) in (0..).zip(reserved) {
        write_back(&fs, &file, number * 7, 4, &reservation);
        drop(reservation);
        // As much as it gets.
        while number % 50 == 0 && write(&fs, &other, written, 8, Durability::Now).is_ok() {
            written += 8;
        }
        refused += u64::from(write(&fs, &other, written, 1, Durability::Now).is_err());
    }
    assert!(refused > 0, "others got all that they wanted");
    assert_written(&fs, &file, (0..count).map(|number| (number * 7, 4)));
    assert_written(&fs, &other, (0..written).step_by(8).map(|block| (block, 8)));
}

#[test]
fn neither_fallocate_nor_a_drain_takes_it() {
    let fs = machine_over(&[MEMORY, MEMORY / 4]);
    let (file, other) = (create(&fs, "file"), create(&fs, "other"));
    let reserved = reserve_some(&fs, 200);
    let count = reserved.len() as u64;
    let allocate = |mib: u64, offset: u64| {
        fs.fallocate(&other, FallocateMode::AllocateKeepSize, offset << 20, mib << 20, NOW)
    };
    let mut allocated = 0;
    while allocate(1, allocated).is_ok() {
        allocated += 1;
    }
    assert!(allocated > 20, "{allocated} MiB");
    assert_eq!(allocate(8, 100).map_err(|error| error.kind()), Err(Kind::NoSpace));
    let drained = fs.drain(TIER, &Budget::default()).map(drop).map_err(|error| error.kind());
    assert_eq!(drained, Err(Kind::NoSpace), "the other tier is too small for it");
    assert_eq!(fs.layout().tiers()[0].state, TierState::Active);
    for (number, reservation) in (0..).zip(reserved) {
        write_back(&fs, &file, number * 7, 4, &reservation);
        drop(reservation);
    }
    assert_written(&fs, &file, (0..count).map(|number| (number * 7, 4)));
}

/// What cannot be in memory, since all that is there is to stay, is on disk rather than lost.
#[test]
fn what_was_accepted_goes_below_pinned_files() {
    let fs = machine(4 * MEMORY);
    let file = create(&fs, "file");
    fs.set_xattr(&file, PIN, b"1", XattrMode::Set, None, NOW).expect("pinned");
    let writes = || (0..MEMORY / 4 + 64).map(|number| (number * 4, 4));
    let reserved = reserve_some(&fs, MEMORY / 4 + 64);
    let blocks = reserved.len() as u64 * 4;
    for ((block, blocks), reservation) in writes().zip(reserved) {
        write_back(&fs, &file, block, blocks, &reservation);
    }
    let extents = fs.resolve(&file, FileBlock(0), u64::MAX).expect("resolve");
    let is_below = |place: &Place| matches!(place, Place::Tier { .. });
    let below: u64 = extents.iter().filter(|at| is_below(&at.place)).map(|at| at.len).sum();
    assert!(blocks > MEMORY && (blocks - MEMORY..blocks / 2).contains(&below), "{below} of {blocks} blocks");
    assert_written(&fs, &file, writes());
}

/// The same of parts of blocks, of a file that is on disk.
#[test]
fn parts_of_blocks_go_below_pinned_files() {
    let fs = machine(4 * MEMORY);
    let (file, pinned) = (create(&fs, "file"), create(&fs, "pinned"));
    let writes = || (0..600).map(|number| number * 3);
    for block in writes() {
        write(&fs, &file, block, 2, Durability::Now).expect("there is room");
    }
    fs.demote(&file, TIER, FileBlock(0), u64::MAX, false).expect("it moves");
    fs.set_xattr(&pinned, PIN, b"1", XattrMode::Set, None, NOW).expect("pinned");
    let mut filled = 0;
    while fs.layout().stat().available > 100 {
        write(&fs, &pinned, filled, 1, Durability::Now).expect("there is room");
        filled += 1;
    }
    let reserved: Vec<_> = writes().map(|_| reserve(&fs, 2).expect("there is room")).collect();
    let bytes = [0xee; 5000];
    for (block, reservation) in writes().zip(reserved) {
        let at = block * BLOCK_SIZE + 100;
        fs.write_back(&file, at, &[IoSlice::new(&bytes)], &reservation, NOW).expect("it was reserved");
    }
    for block in writes() {
        let mut seen = vec![0; 2 * BLOCK_SIZE as usize];
        fs.read(&file, block * BLOCK_SIZE, &mut seen, None).expect("read");
        let is_kept = |bytes: &[u8]| bytes.iter().all(|byte| *byte == block as u8);
        assert!(is_kept(&seen[..100]) && seen[100..5100] == bytes && is_kept(&seen[5100..]), "block {block}");
    }
    assert_eq!(fs.getattr(&file).expect("getattr").size, (599 * 3 + 2) * BLOCK_SIZE);
    assert_written(&fs, &pinned, (0..filled).map(|block| (block, 1)));
}

/// The rest of a file of which the first tier took a part goes to the next one.
#[test]
fn the_rest_of_a_file_is_not_forgotten() {
    let fs = machine_over(&[MEMORY / 16, MEMORY]);
    let (large, other) = (create(&fs, "large"), create(&fs, "other"));
    let fill = |file: &Node| {
        (0..).take_while(|block| write(&fs, file, block * 10, 10, Durability::Now).is_ok()).count() as u64
            * 10
    };
    while fs.layout().stat().available > 600 {
        write(&fs, &large, MEMORY - fs.layout().stat().available, 100, Durability::Now)
            .expect("there is room");
    }
    let more = fill(&other);
    assert!(more > 550 + MEMORY, "{more} blocks");
    assert_eq!(free_on_tier(&fs), 0);
}

/// It moves on when there is room again, though nobody came by it since.
#[test]
fn the_rest_of_a_file_moves_later() {
    let fs = machine(MEMORY / 2);
    let [small, large, pinned] = ["small", "large", "pinned"].map(|name| create(&fs, name));
    write(&fs, &small, 0, 500, Durability::Now).expect("there is room");
    fs.demote(&small, TIER, FileBlock(0), u64::MAX, false).expect("it moves");
    fs.set_xattr(&pinned, PIN, b"1", XattrMode::Set, None, NOW).expect("pinned");
    let fill = || {
        (0..).take_while(|block| write(&fs, &pinned, block * 10, 10, Durability::Now).is_ok()).count() as u64
            * 10
    };
    // Whoever needed room has looked everywhere.
    fill();
    fs.setattr(&pinned, &SetAttr { size: Some(0), ..SetAttr::default() }, NOW).expect("cut to nothing");
    let mut written = 0;
    while fs.layout().stat().available > 600 {
        write(&fs, &large, written, 100, Durability::Now).expect("there is room");
        written += 100;
    }
    let filled = fill();
    let is_above = |at: &&PlacedExtent| matches!(at.place, Place::Pm(_));
    let extents = fs.resolve(&large, FileBlock(0), u64::MAX).expect("resolve");
    let above: u64 = extents.iter().filter(is_above).map(|at| at.len).sum();
    assert!(free_on_tier(&fs) == 0 && above > 500, "{above} blocks of it are in memory");
    fs.unlink(&fs.root(), b"small", NOW).expect("unlink");
    drop(small);
    for block in filled..filled + 300 {
        write(&fs, &pinned, block, 1, Durability::Now).expect("the tier has room");
    }
    assert_written(&fs, &large, (0..written).step_by(100).map(|block| (block, 100)));
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

#[test]
fn a_drain_leaves_it_to_memory_that_has_room() {
    let fs = machine(MEMORY);
    let file = create(&fs, "file");
    let reserved = reserve_some(&fs, 100);
    let count = reserved.len() as u64;
    let before = fs.layout().stat().available;
    fs.drain(TIER, &Budget::default()).expect("memory has room");
    assert!(before - fs.layout().stat().available > count * 8, "it is reserved there");
    for (number, reservation) in (0..).zip(reserved) {
        write_back(&fs, &file, number * 7, 4, &reservation);
        drop(reservation);
    }
    assert_written(&fs, &file, (0..count).map(|number| (number * 7, 4)));
    assert_eq!(fs.layout().tier_space(TIER).map(|space| space.blocks - space.free).ok(), Some(0));
}

/// Blocks of a file that are on tiers.
fn on_tiers(fs: &Fs, node: &Node) -> u64 {
    let extents = fs.resolve(node, FileBlock(0), u64::MAX).expect("resolve");
    let below = extents.iter().filter(|extent| matches!(extent.place, Place::Tier { .. }));
    below.map(|extent| extent.len).sum()
}

/// As much as there is is taken, and the rest of a write fails.
fn fill(fs: &Fs, node: &Node) -> u64 {
    let mut written = 0;
    for step in [64, 8, 1] {
        while write(fs, node, written, step, Durability::Now).is_ok() {
            written += step;
        }
    }
    written
}

/// Room was made for all of it, whatever there was: nothing was left in memory.
#[test]
fn space_that_there_is_not_moves_nothing() {
    let fs = machine(4 * MEMORY);
    let (cold, file) = (create(&fs, "cold"), create(&fs, "file"));
    write(&fs, &cold, 0, MEMORY / 2, Durability::Now).expect("there is room");
    for mode in [FallocateMode::Allocate, FallocateMode::AllocateKeepSize, FallocateMode::ZeroRange] {
        let error = fs.fallocate(&file, mode, 0, 10 << 40, NOW).expect_err("nothing has so much");
        assert_eq!(error.kind(), Kind::NoSpace);
    }
    assert_eq!((on_tiers(&fs, &cold), fs.getattr(&file).expect("getattr").allocated), (0, 0));
    // What both together have is no less than before.
    let left = fs.stat().available;
    fs.fallocate(&file, FallocateMode::Allocate, 0, (left - 64) * BLOCK_SIZE, NOW).expect("there is room");
}

/// What is allocated behind the end of a file can be written, wherever it is, and whatever is full.
#[test]
fn what_was_allocated_behind_the_end_is_there_when_all_is_full() {
    let fs = machine(MEMORY / 4);
    let (file, log, other) = (create(&fs, "file"), create(&fs, "log"), create(&fs, "other"));
    write(&fs, &log, 0, 1, Durability::Now).expect("there is room");
    // Memory has no room for it.
    fs.fallocate(&other, FallocateMode::Allocate, 0, (fs.layout().stat().available - 40) * BLOCK_SIZE, NOW)
        .expect("there is room");
    for (node, from) in [(&file, 0), (&log, 1)] {
        let mode = FallocateMode::AllocateKeepSize;
        fs.fallocate(node, mode, from * BLOCK_SIZE, 60 * BLOCK_SIZE, NOW).expect("there is room");
    }
    let more = create(&fs, "more");
    fill(&fs, &more);
    write(&fs, &file, 7, 30, Durability::Now).expect("it was allocated");
    write(&fs, &file, 40, 20, Durability::Now).expect("it was allocated");
    assert_written(&fs, &file, [(7, 30), (40, 20)].into_iter());
    let bytes = [5; 3 * BLOCK_SIZE as usize];
    let at = fs.write(&log, WriteAt::End, &[IoSlice::new(&bytes)], Durability::Now, NOW);
    assert_eq!(at.expect("it was allocated"), BLOCK_SIZE);
    assert_eq!(fs.getattr(&log).expect("getattr").size, 4 * BLOCK_SIZE);
    assert!(write(&fs, &file, 100, 8, Durability::Now).is_err(), "nothing else has room");
}

/// The space of a tier that is not there is nobody's.
#[test]
fn nothing_is_allocated_on_a_tier_that_is_missing() {
    let fs = machine(MEMORY);
    let (file, other) = (create(&fs, "file"), create(&fs, "other"));
    write(&fs, &other, 0, MEMORY / 2, Durability::Now).expect("there is room");
    fs.detach(TIER, None, "it was pulled out").expect("a tier");
    let error = fs.fallocate(&file, FallocateMode::Allocate, 0, MEMORY * BLOCK_SIZE, NOW);
    assert_eq!(error.expect_err("memory has no room").kind(), Kind::NoSpace);
    assert_eq!(free_on_tier(&fs), MEMORY - 2);
}

/// Otherwise it would never be empty.
#[test]
fn nothing_moves_to_a_tier_that_is_being_drained() {
    let fs = machine(MEMORY);
    let file = create(&fs, "file");
    write(&fs, &file, 0, 8, Durability::Now).expect("there is room");
    fs.set_state(TIER, TierState::Draining).expect("set");
    let error = fs.demote(&file, TIER, FileBlock(0), 8, false).expect_err("it is being drained");
    assert!(error.kind() == Kind::NoSpace && error.to_string().contains("drained"), "{error}");
    fs.set_state(TIER, TierState::Active).expect("set");
    assert_eq!(fs.demote(&file, TIER, FileBlock(0), 8, false).expect("there is room").moved, 8);
}

/// Who maps a file had no space where cold blocks could have moved down.
#[test]
fn what_is_mapped_comes_up_when_memory_is_full() {
    let fs = machine(2 * MEMORY);
    let (file, other) = (create(&fs, "file"), create(&fs, "other"));
    write(&fs, &file, 0, 600, Durability::Now).expect("there is room");
    fs.demote(&file, TIER, FileBlock(0), 600, false).expect("there is room");
    let mut written = 0;
    while fs.layout().stat().available > 200 {
        written += write(&fs, &other, written, 8, Durability::Now).map(|_| 8).expect("there is room");
    }
    let extents = fs.pin(&file, FileBlock(0), 600).expect("others can move");
    assert!(extents.iter().all(|extent| matches!(extent.place, Place::Pm(_))), "{extents:?}");
    fs.unpin(&file);
    assert_written(&fs, &file, std::iter::once((0, 600)));
}

/// That something could not move was told for ever, and who waited for the mover failed, whatever was free since.
#[test]
fn what_could_not_move_is_forgotten_when_there_is_room() {
    let fs = machine(400);
    let file = create(&fs, "file");
    fill(&fs, &file);
    let now = 1_700_000_000_000;
    let failed = |after: u64| fs.tick(now + 1000 * after, &Budget::default()).is_err();
    assert!((0..60).any(failed), "nothing has room: {:?}", fs.status());
    assert!(fs.status().failure.is_some());
    let change = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(&file, &change, NOW).expect("it shrinks");
    fs.tick(now + 100_000, &Budget::default()).expect("nothing is to move");
    assert_eq!(fs.status().failure, None);
}
