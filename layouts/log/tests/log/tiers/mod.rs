//! Files whose blocks are on tiers: moved, written past the layout, brought up, kept over mounts and crashes.

mod compaction;

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Copied, CopiedFile, Data, Draw, Durability, Extents, FallocateMode, FileBlock, FileKind,
    Kind, Movable, Names, NewInode, Place, Relocate, RenameMode, Reservation, Result, SeekTo, SetAttr, Tier,
    TierBlocks, TierChange, TierSpace, TierState, TierTable, Timestamp, WriteAt, WriteToTier, Written,
};
use nacre_layout_log::check::check;
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::block::{BlockDevice, SimDisk};
use nacre_media::{Durable, SimPm};

type Fs = LogFs<SimPm>;

const BLOCK: usize = BLOCK_SIZE as usize;
/// Blocks of the tier.
const TIER: u64 = 512;
const NEVER: Timestamp = Timestamp::new(0, 0);

fn now(secs: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + secs, 7)
}

fn mount(memory: &Arc<SimPm>) -> Fs {
    let options = MountOptions { background: false, lanes: Some(2), ..MountOptions::default() };
    LogFs::mount(Arc::clone(memory), &options).unwrap()
}

/// A machine with a disk, and a file system on its memory that has the disk as tier 3.
struct Machine {
    memory: Arc<SimPm>,
    disk: SimDisk,
}

impl Machine {
    fn new() -> (Machine, Fs) {
        let memory = Arc::new(SimPm::with_disks(16 << 20, &[TIER * BLOCK_SIZE]));
        mkfs(&*memory, &MkfsOptions::default()).unwrap();
        let fs = mount(&memory);
        fs.change_tier(TierChange::Set(tier())).unwrap();
        let disk = SimDisk::of(&memory, 0);
        (Machine { memory, disk }, fs)
    }

    /// Unmounts, or crashes with everything on media, checks, and mounts again.
    fn remount(&self, fs: Fs, crash: bool) -> Fs {
        if crash {
            fs.abandon()
        } else {
            fs.unmount().unwrap()
        }
        let report = check(&*self.memory, false).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
        mount(&self.memory)
    }

    /// Moves what of a file can be, to the tier; gives what was refused.
    fn move_down(&self, fs: &Fs, node: &Node, start: u64, len: u64) -> Vec<Copied> {
        let found = fs.resolve_movable(node, FileBlock(start), len).unwrap();
        let copied = self.copy(fs, node, &found);
        let proof = self.disk.flush().unwrap();
        let refused = publish(fs, node, &copied, now(9), proof).unwrap();
        for Copied { from, tier, block } in &refused {
            let (start, len) = (*block, from.extent.len);
            fs.free_on(nacre_engine::TierRun { tier: *tier, start, len });
        }
        refused
    }

    fn copy(&self, fs: &Fs, node: &Node, found: &[Movable]) -> Vec<Copied> {
        let mut copied = Vec::new();
        for from in found.iter().filter(|from| matches!(from.extent.place, Place::Pm(_))) {
            let mut at = from.extent.start.0;
            for run in fs.allocate_on(3, None, from.extent.len).unwrap() {
                let mut bytes = vec![0; (run.len * BLOCK_SIZE) as usize];
                fs.read(node, at * BLOCK_SIZE, &mut bytes, None).unwrap();
                self.disk.write(run.start.offset(), &bytes).unwrap();
                let extent = nacre_engine::PlacedExtent { start: FileBlock(at), len: run.len, ..from.extent };
                let Place::Pm(block) = from.extent.place else { unreachable!() };
                let place = Place::Pm(block.plus(at - from.extent.start.0));
                let extent = nacre_engine::PlacedExtent { place, ..extent };
                copied.push(Copied { from: Movable { extent, ..*from }, tier: 3, block: run.start });
                at += run.len;
            }
        }
        copied
    }

    /// The content of a file, from wherever it is.
    fn content(&self, fs: &Fs, node: &Node) -> Vec<u8> {
        let size = fs.getattr(node).unwrap().size;
        let mut bytes = vec![0; size.next_multiple_of(BLOCK_SIZE) as usize];
        for extent in fs.resolve(node, FileBlock(0), u64::MAX).unwrap() {
            let from = extent.start.offset() as usize;
            let part = &mut bytes[from..from + (extent.len * BLOCK_SIZE) as usize];
            match extent.place {
                Place::Tier { tier: 3, block } => self.disk.read(block.offset(), part).unwrap(),
                Place::Tier { tier, .. } => panic!("tier {tier}"),
                _ => drop(fs.read(node, extent.start.offset(), part, None).unwrap()),
            }
        }
        bytes.truncate(size as usize);
        bytes
    }

    /// Brings up what of a range is on the tier.
    fn bring_up(&self, fs: &Fs, node: &Node, start: u64, len: u64) {
        // Each changes the version of its neighbours.
        loop {
            let found = fs.resolve_movable(node, FileBlock(start), len).unwrap();
            let on_tier = found.iter().find_map(|from| match from.extent.place {
                Place::Tier { block, .. } => Some((from, block)),
                _ => None,
            });
            let Some((from, block)) = on_tier else { return };
            let mut bytes = vec![0; (from.extent.len * BLOCK_SIZE) as usize];
            self.disk.read(block.offset(), &mut bytes).unwrap();
            assert!(fs.bring_up(node, from, &bytes, Draw::Available, now(9)).unwrap());
        }
    }
}

/// Publishes what was copied of one file.
fn publish(
    fs: &Fs,
    node: &Node,
    copied: &[Copied],
    modified: Timestamp,
    proof: Durable,
) -> Result<Vec<Copied>> {
    let mut done = fs.publish(&[CopiedFile { node, copied, modified }], proof);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

fn tier() -> Tier {
    Tier { number: 3, uuid: [7; 16], blocks: TIER, token: 1, pending: 0, rank: 2, state: TierState::Active }
}

fn create(fs: &Fs, name: &str) -> Node {
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 1,
        gid: 2,
        rdev: 0,
        target: b"",
        xattrs: &[],
        now: now(0),
    };
    fs.create(&fs.root(), name.as_bytes(), &new).unwrap()
}

fn put(fs: &Fs, node: &Node, offset: u64, bytes: &[u8]) -> nacre_engine::Result<u64> {
    fs.write(node, WriteAt::Offset(offset), &[IoSlice::new(bytes)], Durability::Now, now(1))
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn is_elsewhere<T: std::fmt::Debug>(result: nacre_engine::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == Kind::Elsewhere)
}

fn used(fs: &Fs) -> u64 {
    let TierSpace { blocks, free, .. } = fs.tier_space(3).unwrap();
    assert_eq!(blocks, TIER - 2);
    blocks - free
}

#[test]
fn tiers_are_known_over_mounts_and_go_when_they_are_empty() {
    let (machine, fs) = Machine::new();
    assert_eq!(fs.tiers(), [tier()]);
    for crash in [false, true] {
        let fs = mount(&machine.memory);
        drop(machine.remount(fs, crash));
    }
    drop(fs);
    let fs = mount(&machine.memory);
    let draining = Tier { state: TierState::Draining, token: 2, pending: 3, ..tier() };
    fs.change_tier(TierChange::Set(draining)).unwrap();
    let other = Tier { number: 32, uuid: [8; 16], rank: 1, ..tier() };
    fs.change_tier(TierChange::Set(other)).unwrap();
    let kind = |change| fs.change_tier(change).unwrap_err().kind();
    assert_eq!(kind(TierChange::Set(Tier { number: 4, ..tier() })), Kind::Exists, "the same device");
    assert_eq!(kind(TierChange::Set(Tier { blocks: 100, ..tier() })), Kind::InvalidInput);
    // More than all tiers have together, or than there is memory for.
    for blocks in [1 << 36, (1 << 48) - 1] {
        assert_eq!(
            kind(TierChange::Set(Tier { number: 4, uuid: [9; 16], blocks, ..tier() })),
            Kind::InvalidInput
        );
    }
    assert_eq!(kind(TierChange::Set(Tier { number: 33, uuid: [9; 16], ..tier() })), Kind::InvalidInput);
    assert_eq!(kind(TierChange::Set(Tier { number: 0, uuid: [9; 16], ..tier() })), Kind::InvalidInput);
    assert_eq!(kind(TierChange::Remove(5)), Kind::InvalidInput);
    let node = create(&fs, "file");
    put(&fs, &node, 0, &bytes(3 * BLOCK, 1)).unwrap();
    machine.move_down(&fs, &node, 0, 2);
    assert_eq!((kind(TierChange::Remove(3)), used(&fs)), (Kind::Busy, 2));
    drop(node);
    let fs = machine.remount(fs, true);
    assert_eq!(fs.tiers(), [draining, other]);
    let node = fs.lookup(&fs.root(), b"file").unwrap();
    machine.bring_up(&fs, &node, 0, 9);
    fs.change_tier(TierChange::Remove(3)).unwrap();
    drop(node);
    let fs = machine.remount(fs, false);
    assert_eq!(fs.tiers(), [other]);
    assert_eq!(fs.tier_space(3).unwrap_err().kind(), Kind::InvalidInput);
}

#[test]
fn what_was_moved_is_there_and_read_by_nobody_here() {
    for crash in [false, true] {
        let (machine, fs) = Machine::new();
        let node = create(&fs, "file");
        let content = bytes(20 * BLOCK + 100, 3);
        put(&fs, &node, 0, &content).unwrap();
        let attr = fs.getattr(&node).unwrap();
        let free = fs.stat().free;
        assert!(machine.move_down(&fs, &node, 2, 19).is_empty());
        assert_eq!((fs.stat().free, used(&fs)), (free + 19, 19));
        let after = fs.getattr(&node).unwrap();
        assert_eq!((after.size, after.mtime, after.ctime), (attr.size, attr.mtime, attr.ctime));
        assert_eq!(after.allocated, attr.allocated);
        let mut buffer = vec![0; 3 * BLOCK];
        assert_eq!(fs.read(&node, 0, &mut buffer[..2 * BLOCK], None).unwrap(), 2 * BLOCK);
        assert!(is_elsewhere(fs.read(&node, 0, &mut buffer, None)));
        assert_eq!(fs.seek(&node, 5 * BLOCK_SIZE, SeekTo::Hole).unwrap(), content.len() as u64);
        drop(node);
        let fs = machine.remount(fs, crash);
        let node = fs.lookup(&fs.root(), b"file").unwrap();
        assert!(machine.content(&fs, &node) == content);
        let again = fs.getattr(&node).unwrap();
        assert_eq!((again.size, again.mtime, again.ctime), (attr.size, attr.mtime, attr.ctime));
        assert_eq!(used(&fs), 19);
        fs.unlink(&fs.root(), b"file", now(3)).unwrap();
        drop(node);
        fs.stat();
        assert_eq!(used(&fs), 0);
    }
}

/// The rest of it has moved.
#[test]
fn a_copy_of_what_changed_since_is_refused() {
    type Change = fn(&Fs, &Node);
    let changes: [(Change, std::ops::Range<u64>); 5] = [
        (|fs, node| assert!(put(fs, node, 3 * BLOCK_SIZE, &bytes(BLOCK, 5)).is_ok()), 3..4),
        // In place, behind the end that was.
        (
            |fs, node| {
                fs.write(node, WriteAt::End, &[IoSlice::new(b"more")], Durability::Now, now(2)).unwrap();
            },
            8..9,
        ),
        (
            |fs, node| {
                fs.fallocate(node, FallocateMode::PunchHole, 2 * BLOCK_SIZE, BLOCK_SIZE, now(2)).unwrap()
            },
            2..3,
        ),
        (
            |fs, node| {
                fs.fallocate(node, FallocateMode::ZeroRange, 4 * BLOCK_SIZE, BLOCK_SIZE, now(2)).unwrap()
            },
            4..5,
        ),
        (
            |fs, node| {
                let change = SetAttr { size: Some(BLOCK_SIZE), ..SetAttr::default() };
                fs.setattr(node, &change, now(2)).unwrap();
            },
            // Up to the largest file: a change of the whole file.
            0..9,
        ),
    ];
    for (change, blocks) in changes {
        let (machine, fs) = Machine::new();
        let node = create(&fs, "file");
        put(&fs, &node, 0, &bytes(8 * BLOCK + 10, 4)).unwrap();
        let found = fs.resolve_movable(&node, FileBlock(0), 100).unwrap();
        let copied = machine.copy(&fs, &node, &found);
        change(&fs, &node);
        let expected = machine.content(&fs, &node);
        let refused = publish(&fs, &node, &copied, NEVER, machine.disk.flush().unwrap()).unwrap();
        let len = blocks.end - blocks.start;
        let part = Copied {
            from: copied[0].from.part(blocks.start, len),
            block: copied[0].block.plus(blocks.start),
            ..copied[0]
        };
        assert_eq!(refused, [part]);
        fs.free_on(nacre_engine::TierRun { tier: part.tier, start: part.block, len });
        assert!(machine.content(&fs, &node) == expected && used(&fs) == 9 - len, "{blocks:?}");
    }
}

/// The blocks go elsewhere and come back to their place, with the same content: what was copied in between may be another
/// file's.
#[test]
fn blocks_that_left_and_came_back_are_not_what_they_were() {
    let (machine, fs) = Machine::new();
    let node = create(&fs, "file");
    put(&fs, &node, 0, &bytes(2 * BLOCK, 4)).unwrap();
    assert!(machine.move_down(&fs, &node, 0, 2).is_empty());
    let looked = fs.resolve_movable(&node, FileBlock(0), 2).unwrap();
    let &[first] = &looked[..] else { panic!("{looked:?}") };
    let Place::Tier { block: home, .. } = first.extent.place else { panic!("{first:?}") };
    let move_to = |goal: nacre_engine::Block| {
        let &[from] = &fs.resolve_movable(&node, FileBlock(0), 2).unwrap()[..] else { panic!("one piece") };
        let &[run] = &fs.allocate_on(3, Some(goal), 2).unwrap()[..] else { panic!("one run") };
        let copied = [Copied { from, tier: 3, block: run.start }];
        let proof = machine.disk.flush().unwrap();
        assert_eq!(publish(&fs, &node, &copied, NEVER, proof).unwrap(), []);
        run.start
    };
    assert_ne!(move_to(home.plus(10)), home);
    assert_eq!(move_to(home), home);
    let now_there = fs.resolve_movable(&node, FileBlock(0), 2).unwrap();
    assert_eq!(now_there[0].extent, first.extent, "the same place");
    let copied = [Copied { from: first, tier: 3, block: fs.allocate_on(3, None, 2).unwrap()[0].start }];
    let proof = machine.disk.flush().unwrap();
    assert_eq!(publish(&fs, &node, &copied, NEVER, proof).unwrap(), copied);
}

/// Between the copy and its publishing the file gets another name, loses one of two, or its only one.
#[test]
fn a_file_that_is_renamed_or_removed_while_it_moves_loses_nothing() {
    for crash in [false, true] {
        let (machine, fs) = Machine::new();
        let names = ["renamed", "over", "linked", "open"];
        let nodes = names.map(|name| create(&fs, name));
        for (node, seed) in nodes.iter().zip(1..) {
            put(&fs, node, 0, &bytes(4 * BLOCK, seed)).unwrap();
        }
        fs.link(&nodes[2], &fs.root(), b"link", now(1)).unwrap();
        let copied = nodes
            .each_ref()
            .map(|node| machine.copy(&fs, node, &fs.resolve_movable(node, FileBlock(0), 4).unwrap()));
        let proof = machine.disk.flush().unwrap();
        let root = fs.root();
        // The second one goes with it, and is open, as the last one.
        fs.rename(&root, b"renamed", &root, b"over", RenameMode::Replace, now(2)).unwrap();
        fs.unlink(&root, b"linked", now(2)).unwrap();
        fs.unlink(&root, b"open", now(2)).unwrap();
        let files: Vec<_> = nodes
            .iter()
            .zip(&copied)
            .map(|(node, copied)| CopiedFile { node, copied, modified: NEVER })
            .collect();
        for ((name, copied), done) in names.iter().zip(&copied).zip(fs.publish(&files, proof)) {
            // What it says is so: either it moved, or what was copied is for others.
            for Copied { from, tier, block } in done.unwrap_or_else(|_| copied.clone()) {
                let (start, len) = (block, from.extent.len);
                fs.free_on(nacre_engine::TierRun { tier, start, len });
            }
            let seed = names.iter().position(|other| other == name).unwrap() as u8 + 1;
            let node = &nodes[usize::from(seed) - 1];
            assert!(machine.content(&fs, node) == bytes(4 * BLOCK, seed), "{name}");
        }
        // Those that have a name moved: to be renamed is no reason to stay.
        let is_below = |node: &Node| {
            let extents = fs.resolve(node, FileBlock(0), 4).unwrap();
            extents.iter().all(|extent| matches!(extent.place, Place::Tier { .. }))
        };
        assert!(is_below(&nodes[0]) && is_below(&nodes[2]));
        drop((nodes, root));
        let fs = machine.remount(fs, crash);
        for (name, seed) in [("over", 1), ("link", 3)] {
            let node = fs.lookup(&fs.root(), name.as_bytes()).unwrap();
            assert!(machine.content(&fs, &node) == bytes(4 * BLOCK, seed), "{name}");
        }
        for name in ["renamed", "linked", "open"] {
            assert!(fs.lookup(&fs.root(), name.as_bytes()).is_err(), "{name}");
        }
        fs.stat();
        assert_eq!(used(&fs), 8, "nobody else has anything there");
    }
}

#[test]
fn what_keeps_a_part_of_a_block_needs_it_up_here() {
    let (machine, fs) = Machine::new();
    let node = create(&fs, "file");
    let mut content = bytes(9 * BLOCK + 1000, 6);
    put(&fs, &node, 0, &content).unwrap();
    machine.move_down(&fs, &node, 0, 10);
    let resize = |size| fs.setattr(&node, &SetAttr { size: Some(size), ..SetAttr::default() }, now(2));
    // None of these changes anything.
    assert!(is_elsewhere(put(&fs, &node, 100, b"part")));
    assert!(is_elsewhere(put(&fs, &node, 3 * BLOCK_SIZE, &bytes(BLOCK + 1, 0))));
    assert!(is_elsewhere(fs.write(&node, WriteAt::End, &[IoSlice::new(b"end")], Durability::Now, now(2))));
    assert!(is_elsewhere(put(&fs, &node, 20 * BLOCK_SIZE, b"far")));
    assert!(is_elsewhere(resize(9 * BLOCK_SIZE + 1001)));
    assert!(is_elsewhere(fs.fallocate(&node, FallocateMode::PunchHole, 100, BLOCK_SIZE, now(2))));
    assert!(is_elsewhere(fs.fallocate(&node, FallocateMode::ZeroRange, 100, 200, now(2))));
    assert!(machine.content(&fs, &node) == content);
    // These need nothing of what was there.
    put(&fs, &node, 3 * BLOCK_SIZE, &bytes(2 * BLOCK, 7)).unwrap();
    content[3 * BLOCK..5 * BLOCK].copy_from_slice(&bytes(2 * BLOCK, 7));
    fs.fallocate(&node, FallocateMode::PunchHole, 5 * BLOCK_SIZE, BLOCK_SIZE, now(2)).unwrap();
    fs.fallocate(&node, FallocateMode::ZeroRange, 6 * BLOCK_SIZE, BLOCK_SIZE, now(2)).unwrap();
    content[5 * BLOCK..7 * BLOCK].fill(0);
    assert!(machine.content(&fs, &node) == content);
    assert_eq!(used(&fs), 6);
    // Brought up, everything goes.
    machine.bring_up(&fs, &node, 9, 1);
    fs.write(&node, WriteAt::End, &[IoSlice::new(b"end")], Durability::Now, now(2)).unwrap();
    content.extend(b"end");
    machine.bring_up(&fs, &node, 0, 1);
    put(&fs, &node, 100, b"part").unwrap();
    content[100..104].copy_from_slice(b"part");
    assert!(machine.content(&fs, &node) == content);
    resize(2 * BLOCK_SIZE).unwrap();
    content.truncate(2 * BLOCK);
    assert_eq!(used(&fs), 1);
    drop(node);
    let fs = machine.remount(fs, true);
    let node = fs.lookup(&fs.root(), b"file").unwrap();
    assert!(machine.content(&fs, &node) == content);
    // Growing from a whole block on needs no zeros there.
    fs.setattr(&node, &SetAttr { size: Some(3 * BLOCK_SIZE + 5), ..SetAttr::default() }, now(2)).unwrap();
    content.resize(3 * BLOCK + 5, 0);
    assert!(machine.content(&fs, &node) == content);
}

#[test]
fn a_write_may_go_to_a_tier() {
    for crash in [false, true] {
        let (machine, fs) = Machine::new();
        let node = create(&fs, "file");
        let mut content = bytes(4 * BLOCK + 10, 8);
        put(&fs, &node, 0, &content).unwrap();
        let new = bytes(6 * BLOCK, 9);
        let mut written = Vec::new();
        let mut at = 2;
        for run in fs.allocate_on(3, None, 6).unwrap() {
            let from = (at - 2) * BLOCK;
            machine.disk.write(run.start.offset(), &new[from..from + run.len as usize * BLOCK]).unwrap();
            written.push(Written { start: FileBlock(at as u64), run });
            at += run.len as usize;
        }
        let size = 8 * BLOCK_SIZE - 100;
        let proof = machine.disk.flush().unwrap();
        fs.publish_write(&node, &written, size, Draw::Reserved(&Reservation::default()), now(5), proof)
            .unwrap();
        content.resize(size as usize, 0);
        content[2 * BLOCK..].copy_from_slice(&new[..6 * BLOCK - 100]);
        let attr = fs.getattr(&node).unwrap();
        assert_eq!((attr.size, attr.mtime, attr.ctime), (size, now(5), now(5)));
        drop(node);
        let fs = machine.remount(fs, crash);
        let node = fs.lookup(&fs.root(), b"file").unwrap();
        assert!(machine.content(&fs, &node) == content);
        assert_eq!((used(&fs), fs.getattr(&node).unwrap().mtime), (6, now(5)));
        // Behind a gap that is on persistent memory: it reads as zeros.
        machine.bring_up(&fs, &node, 7, 1);
        let run = fs.allocate_on(3, None, 1).unwrap()[0];
        machine.disk.write(run.start.offset(), &new[..BLOCK]).unwrap();
        let far = [Written { start: FileBlock(9), run }];
        fs.publish_write(
            &node,
            &far,
            10 * BLOCK_SIZE,
            Draw::Reserved(&Reservation::default()),
            now(6),
            machine.disk.flush().unwrap(),
        )
        .unwrap();
        content.resize(9 * BLOCK, 0);
        content.extend(&new[..BLOCK]);
        assert!(machine.content(&fs, &node) == content);
    }
}

#[test]
fn blocks_that_were_freed_wait_for_who_may_be_reading_them() {
    let (machine, fs) = Machine::new();
    let node = create(&fs, "file");
    put(&fs, &node, 0, &bytes(4 * BLOCK, 1)).unwrap();
    machine.move_down(&fs, &node, 0, 4);
    let rest = fs.allocate_on(3, None, TIER - 2 - 4).unwrap();
    let early = fs.begin_reads();
    put(&fs, &node, 0, &bytes(BLOCK, 2)).unwrap();
    let late = fs.begin_reads();
    put(&fs, &node, BLOCK_SIZE, &bytes(BLOCK, 2)).unwrap();
    assert_eq!(used(&fs), TIER - 2 - 2, "they count as free");
    let take = || fs.allocate_on(3, None, 1).map_err(|error| error.kind());
    assert_eq!(take(), Err(Kind::NoSpace));
    fs.end_reads(early);
    assert!(take().is_ok());
    assert_eq!(take(), Err(Kind::NoSpace));
    fs.end_reads(late);
    assert!(take().is_ok());
    assert_eq!(take(), Err(Kind::NoSpace));
    rest.into_iter().for_each(|run| fs.free_on(run));
    assert_eq!(fs.allocate_on(3, None, TIER).map_err(|error| error.kind()), Err(Kind::NoSpace));
}

#[test]
fn a_file_that_a_program_has_mapped_stays() {
    let (machine, fs) = Machine::new();
    let node = create(&fs, "file");
    put(&fs, &node, 0, &bytes(4 * BLOCK, 1)).unwrap();
    let found = fs.resolve_movable(&node, FileBlock(0), 4).unwrap();
    let copied = machine.copy(&fs, &node, &found);
    fs.pin(&node, FileBlock(0), 4).unwrap();
    let proof = || machine.disk.flush().unwrap();
    assert_eq!(publish(&fs, &node, &copied, NEVER, proof()).unwrap_err().kind(), Kind::Busy);
    fs.unpin(&node);
    // The program may have stored to it.
    assert_eq!(publish(&fs, &node, &copied, NEVER, proof()).unwrap(), copied);
    let found = fs.resolve_movable(&node, FileBlock(0), 4).unwrap();
    let copied = machine.copy(&fs, &node, &found);
    assert!(publish(&fs, &node, &copied, NEVER, proof()).unwrap().is_empty());
}

/// Of files that are published together by the proof of one flush, one that changed and one that is mapped stay where they
/// are, and the others move, also when the machine crashes then.
#[test]
fn files_that_are_published_together_do_so_each_for_itself() {
    let (machine, fs) = Machine::new();
    let names = ["first", "changed", "mapped", "last"];
    let nodes = names.map(|name| create(&fs, name));
    for (node, seed) in nodes.iter().zip(1..) {
        put(&fs, node, 0, &bytes(2 * BLOCK, seed)).unwrap();
    }
    let copied: Vec<Vec<Copied>> = nodes
        .iter()
        .map(|node| machine.copy(&fs, node, &fs.resolve_movable(node, FileBlock(0), 2).unwrap()))
        .collect();
    let proof = machine.disk.flush().unwrap();
    put(&fs, &nodes[1], BLOCK_SIZE, &bytes(BLOCK, 9)).unwrap();
    fs.pin(&nodes[2], FileBlock(0), 2).unwrap();
    let files: Vec<_> = nodes
        .iter()
        .zip(&copied)
        .map(|(node, copied)| CopiedFile { node, copied, modified: NEVER })
        .collect();
    let done = fs.publish(&files, proof);
    let came: Vec<_> = done.iter().map(|done| done.as_ref().map_err(nacre_engine::Error::kind)).collect();
    let changed =
        Copied { from: copied[1][0].from.part(1, 1), block: copied[1][0].block.plus(1), ..copied[1][0] };
    assert_eq!(came, [Ok(&vec![]), Ok(&vec![changed]), Err(Kind::Busy), Ok(&vec![])]);
    for Copied { from, tier, block } in [changed].iter().chain(&copied[2]) {
        fs.free_on(nacre_engine::TierRun { tier: *tier, start: *block, len: from.extent.len });
    }
    assert_eq!(used(&fs), 5);
    fs.unpin(&nodes[2]);
    drop(nodes);
    let fs = machine.remount(fs, true);
    assert_eq!(used(&fs), 5);
    for (name, seed) in names.iter().zip(1..) {
        let mut expected = bytes(2 * BLOCK, seed);
        if *name == "changed" {
            expected[BLOCK..].copy_from_slice(&bytes(BLOCK, 9));
        }
        let node = fs.lookup(&fs.root(), name.as_bytes()).unwrap();
        assert!(machine.content(&fs, &node) == expected, "{name}");
    }
}

/// Many moves up and down between writes: the log is collected, and says at the end where everything is, how long the file
/// is, and when it was changed.
#[test]
fn logs_with_moves_are_collected_and_read() {
    let (machine, mut fs) = Machine::new();
    let mut random = 1u64;
    let mut next = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % limit
    };
    let mut content = Vec::new();
    drop(create(&fs, "file"));
    for turn in 0..3000u64 {
        let node = fs.lookup(&fs.root(), b"file").unwrap();
        let (start, len) = (next(40), 1 + next(12));
        match next(8) {
            0..3 => drop(machine.move_down(&fs, &node, start, len)),
            3..5 => machine.bring_up(&fs, &node, start, len),
            5 => {
                let blocks = content.len().div_ceil(BLOCK) as u64;
                machine.bring_up(&fs, &node, blocks.saturating_sub(1), 1);
                let size = next(44 * BLOCK_SIZE);
                machine.bring_up(&fs, &node, size / BLOCK_SIZE, 1);
                let change = SetAttr { size: Some(size), ..SetAttr::default() };
                fs.setattr(&node, &change, now(turn as i64)).unwrap();
                content.resize(size as usize, 0);
            }
            _ => {
                let (from, new) = (start as usize * BLOCK, bytes(len as usize * BLOCK, turn as u8));
                let blocks = content.len().div_ceil(BLOCK) as u64;
                machine.bring_up(&fs, &node, blocks.saturating_sub(1), 1);
                put(&fs, &node, from as u64, &new).unwrap();
                content.resize(content.len().max(from + new.len()), 0);
                content[from..from + new.len()].copy_from_slice(&new);
            }
        }
        let after = fs.getattr(&node).unwrap();
        let attr = (after.size, after.mtime, after.ctime);
        drop(node);
        if turn % 250 == 249 {
            fs = machine.remount(fs, turn % 500 == 249);
            let node = fs.lookup(&fs.root(), b"file").unwrap();
            let after = fs.getattr(&node).unwrap();
            assert_eq!((after.size, after.mtime, after.ctime), attr, "turn {turn}");
            assert!(machine.content(&fs, &node) == content, "turn {turn}");
        }
    }
    let extents = {
        let node = fs.lookup(&fs.root(), b"file").unwrap();
        fs.resolve(&node, FileBlock(0), u64::MAX).unwrap()
    };
    let on_tier = extents.iter().filter(|extent| matches!(extent.place, Place::Tier { .. }));
    assert_eq!(on_tier.map(|extent| extent.len).sum::<u64>(), used(&fs));
}

#[test]
fn a_block_of_a_tier_that_two_files_claim_is_found() {
    let (machine, fs) = Machine::new();
    let nodes = ["one", "two"].map(|name| create(&fs, name));
    let run = fs.allocate_on(3, None, 1).unwrap()[0];
    for node in &nodes {
        let written = [Written { start: FileBlock(0), run }];
        fs.publish_write(
            node,
            &written,
            BLOCK_SIZE,
            Draw::Reserved(&Reservation::default()),
            now(1),
            machine.disk.flush().unwrap(),
        )
        .unwrap();
    }
    drop(nodes);
    fs.abandon();
    let report = check(&*machine.memory, false).unwrap();
    let problem = report.problems.iter().find(|problem| problem.what.contains("belong to another, too"));
    let problem = problem.unwrap_or_else(|| panic!("{:?}", report.problems));
    assert!(problem.loses, "{problem:?}");
    assert!(check(&*machine.memory, true).unwrap().is_sound());
    let fs = mount(&machine.memory);
    assert_eq!(used(&fs), 1);
}

#[test]
fn allocated_blocks_of_a_tier_that_goes_get_other_places() {
    for crash in [false, true] {
        let (machine, fs) = Machine::new();
        let allocate = |node: &Node, blocks: u64| {
            fs.fallocate(node, FallocateMode::AllocateKeepSize, 0, blocks * BLOCK_SIZE, now(1)).unwrap();
        };
        let (full, node) = (create(&fs, "full"), create(&fs, "file"));
        allocate(&full, fs.stat().available - 10);
        allocate(&node, 20);
        assert_eq!(used(&fs), 20, "there was no room for them elsewhere");
        put(&fs, &node, 3 * BLOCK_SIZE, &bytes(BLOCK, 1)).unwrap();
        assert_eq!(used(&fs), 19);
        let before = fs.getattr(&node).unwrap();
        drop(full);
        fs.unlink(&fs.root(), b"full", now(2)).unwrap();
        fs.change_tier(TierChange::Set(Tier { state: TierState::Draining, ..tier() })).unwrap();
        assert_eq!(fs.replace_unwritten(&node, 2, FileBlock(0), u64::MAX).unwrap(), 0);
        assert_eq!(fs.replace_unwritten(&node, 3, FileBlock(0), 2).unwrap(), 2);
        assert_eq!(fs.replace_unwritten(&node, 3, FileBlock(0), u64::MAX).unwrap(), 17);
        assert_eq!(fs.replace_unwritten(&node, 3, FileBlock(0), u64::MAX).unwrap(), 0);
        assert_eq!(used(&fs), 0);
        fs.change_tier(TierChange::Remove(3)).unwrap();
        let free = fs.stat().free;
        drop(node);
        let fs = machine.remount(fs, crash);
        assert_eq!(fs.stat().free, free);
        let node = fs.lookup(&fs.root(), b"file").unwrap();
        let after = fs.getattr(&node).unwrap();
        assert_eq!((after.size, after.allocated), (4 * BLOCK_SIZE, 20 * BLOCK_SIZE));
        assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
        let mut expected = vec![0; 3 * BLOCK];
        expected.extend(bytes(BLOCK, 1));
        assert!(machine.content(&fs, &node) == expected);
    }
}

/// Of two tiers of one rank, the second got nothing before the first was full.
#[test]
fn allocated_blocks_take_turns_among_tiers_of_one_rank() {
    let (machine, fs) = Machine::new();
    for (number, rank) in [(5, 2), (9, 3)] {
        fs.change_tier(TierChange::Set(Tier { number, uuid: [number; 16], rank, ..tier() })).unwrap();
    }
    let allocate = |node: &Node, start: u64, blocks: u64| {
        let (offset, len) = (start * BLOCK_SIZE, blocks * BLOCK_SIZE);
        fs.fallocate(node, FallocateMode::AllocateKeepSize, offset, len, now(1)).unwrap();
    };
    let used = |fs: &Fs| {
        [3, 5, 9].map(|tier| {
            let TierSpace { blocks, free, .. } = fs.tier_space(tier).unwrap();
            blocks - free
        })
    };
    let files: Vec<_> = (0..6).map(|number| create(&fs, &number.to_string())).collect();
    let full = create(&fs, "full");
    allocate(&full, 0, fs.stat().available - 10);
    files.iter().for_each(|node| allocate(node, 0, 20));
    assert_eq!(used(&fs), [60, 60, 0]);
    // A file that grows stays where it is.
    (1..10).for_each(|part| allocate(&files[0], part * 20, 20));
    let mut grown = used(&fs);
    grown.sort_unstable();
    assert_eq!(grown, [0, 60, 240]);
    // Where one of them is full, the other takes the rest, and the slower one what is left.
    allocate(&files[1], 20, 510 + 510 - 300 + 7);
    assert_eq!(used(&fs), [510, 510, 7]);
    drop((files, full));
    let fs = machine.remount(fs, true);
    assert_eq!(used(&fs), [510, 510, 7]);
}
