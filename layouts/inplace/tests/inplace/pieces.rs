//! Changes of a file that take as many undo entries as they can: each must fit a lane of the journal.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Names, NewInode, SetAttr};
use nacre_engine::{Place, Timestamp, WriteAt};
use nacre_layout_inplace::check::check;
use nacre_layout_inplace::{InplaceFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::SimPm;

const BLOCK: u64 = 4096;
/// Blocks that a word of the highest node of the highest tree covers.
const HIGH: u64 = 1 << 27;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 7)
}

struct Made {
    pm: Arc<SimPm>,
    fs: InplaceFs<SimPm>,
    file: Node,
}

impl Made {
    fn new(size: u64) -> Made {
        let pm = Arc::new(SimPm::new(size));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let options = MountOptions { lanes: Some(1), ..MountOptions::default() };
        let fs = InplaceFs::mount(Arc::clone(&pm), &options).unwrap();
        let kind = FileKind::Regular;
        let new =
            NewInode { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now: now() };
        let file = fs.create(&fs.root(), b"file", &new).unwrap();
        Made { pm, fs, file }
    }

    fn write(&self, block: u64, bytes: &[u8]) {
        let at = WriteAt::Offset(block * BLOCK);
        self.fs.write(&self.file, at, &[IoSlice::new(bytes)], Durability::Now, now()).unwrap();
    }

    /// Writes every other block of the first so many.
    fn comb(&self, blocks: u64) {
        (0..blocks).step_by(2).for_each(|block| self.write(block, &[7; BLOCK as usize]));
    }

    fn fallocate(&self, mode: FallocateMode, first: u64, len: u64) {
        self.fs.fallocate(&self.file, mode, first * BLOCK, len * BLOCK, now()).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![1; self.fs.getattr(&self.file).unwrap().size as usize];
        assert_eq!(self.fs.read(&self.file, 0, &mut bytes, None).unwrap(), bytes.len());
        bytes
    }

    fn ends_whole(self) {
        let Made { pm, fs, file } = self;
        drop(file);
        fs.unmount().unwrap();
        let problems = check(&*pm, false).unwrap().problems;
        assert!(problems.is_empty(), "{problems:?}");
    }
}

#[test]
fn every_other_block_is_allocated() {
    let made = Made::new(64 << 20);
    made.comb(2048);
    made.fallocate(FallocateMode::Allocate, 0, 2048);
    let places = made.fs.resolve(&made.file, FileBlock(0), 2048).unwrap();
    assert!(places.iter().all(|extent| extent.place != Place::Hole));
    let bytes = made.bytes();
    assert!(bytes.chunks(BLOCK as usize).zip(0..).all(|(block, at)| block[9] == 7 * u8::from(at % 2 == 0)));
    made.ends_whole();
}

#[test]
fn every_other_block_becomes_zeros() {
    let made = Made::new(64 << 20);
    made.fallocate(FallocateMode::Allocate, 0, 2049);
    made.comb(2049);
    made.fallocate(FallocateMode::ZeroRange, 1, 2048);
    let bytes = made.bytes();
    assert!(bytes[..BLOCK as usize].iter().all(|&byte| byte == 7));
    assert!(bytes[BLOCK as usize..].iter().all(|&byte| byte == 0));
    made.ends_whole();
}

#[test]
fn one_write_fills_every_other_block() {
    let made = Made::new(64 << 20);
    made.comb(2049);
    made.write(1, &vec![9; 2048 * BLOCK as usize]);
    assert!(made.bytes()[BLOCK as usize..].iter().all(|&byte| byte == 9));
    made.ends_whole();
}

/// The file blocks for which every other word changes in the nodes of each level that `edge`, where a hole begins or ends,
/// is in: before it, or behind.
fn beside(edge: u64, behind: bool) -> Vec<u64> {
    let mut blocks = Vec::new();
    for width in [1, 1 << 9, 1 << 18] {
        let word = edge / width;
        let words = if behind { word + 1..(word / 512 + 1) * 512 } else { word / 512 * 512..word };
        blocks.extend(words.step_by(2).map(|word| word * width));
    }
    blocks
}

#[test]
fn a_hole_has_two_edges_in_every_level() {
    let made = Made::new(128 << 20);
    let (first, end) = (1, 2 * HIGH - 1);
    let mut blocks = beside(first - 1, true);
    blocks.extend(beside(end, false));
    let kept = [first - 1, end];
    for &block in blocks.iter().chain(&kept) {
        made.fallocate(FallocateMode::Allocate, block, 1);
    }
    let free = made.fs.stat().free;
    made.fallocate(FallocateMode::PunchHole, first, end - first);
    assert!(made.fs.stat().free >= free + blocks.len() as u64);
    for block in kept {
        let places = made.fs.resolve(&made.file, FileBlock(block), 1).unwrap();
        assert!(places.iter().all(|extent| extent.place != Place::Hole), "block {block}");
    }
    let places = made.fs.resolve(&made.file, FileBlock(first), end - first).unwrap();
    assert!(places.iter().all(|extent| extent.place == Place::Hole));
    made.ends_whole();
}

/// As many as a file can have in the nodes that its end is in.
#[test]
fn a_truncation_has_one_edge_in_every_level() {
    let made = Made::new(128 << 20);
    let mut blocks = beside(0, true);
    blocks.extend((1..32).map(|word| word * HIGH));
    blocks.iter().for_each(|&block| made.fallocate(FallocateMode::Allocate, block, 1));
    let change = SetAttr { size: Some(BLOCK), ..SetAttr::default() };
    made.fs.setattr(&made.file, &change, now()).unwrap();
    let places = made.fs.resolve(&made.file, FileBlock(1), u64::MAX - 1).unwrap();
    assert!(places.is_empty());
    made.ends_whole();
}
