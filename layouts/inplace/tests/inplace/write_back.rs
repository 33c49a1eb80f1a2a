//! Writeback while its data is on its way: slow PM keeps no other operation waiting.

use std::io::IoSlice;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nacre_engine::{
    BelowBuffer, Data, Durability, Extents, FileKind, Names, NewInode, Result, SetAttr, Timestamp, WriteAt,
    WriteShape,
};
use nacre_layout_inplace::check::check;
use nacre_layout_inplace::{InplaceFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::{Durable, Flushed, Pm, SimPm, Stored};

const BLOCK: usize = 4096;
/// Far more than anything here takes: whoever has not come by then waits for ever.
const FOR_EVER: Duration = Duration::from_secs(20);

/// Memory whose next fence ends when it is told to.
struct Gated {
    pm: SimPm,
    gate: Mutex<Option<(SyncSender<()>, Receiver<()>)>>,
}

impl Pm for Gated {
    fn len(&self) -> u64 {
        self.pm.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.pm.read(offset, buf)
    }

    fn load_u64(&self, offset: u64) -> Result<u64> {
        self.pm.load_u64(offset)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<Stored> {
        self.pm.store(offset, bytes)
    }

    fn copy(&self, offset: u64, bytes: &[u8]) -> Result<Flushed> {
        self.pm.copy(offset, bytes)
    }

    fn zero(&self, offset: u64, len: u64) -> Result<Flushed> {
        self.pm.zero(offset, len)
    }

    fn flush(&self, stored: Stored) -> Flushed {
        self.pm.flush(stored)
    }

    fn fence(&self, flushed: Flushed) -> Durable {
        let gate = self.gate.lock().unwrap().take();
        if let Some((reached, open)) = gate {
            reached.send(()).unwrap();
            open.recv().unwrap();
        }
        self.pm.fence(flushed)
    }

    fn publish_u64(&self, offset: u64, value: u64, after: Durable) -> Result<Stored> {
        self.pm.publish_u64(offset, value, after)
    }

    fn publish_entry(&self, offset: u64, bytes: &[u8], after: Durable) -> Result<Flushed> {
        self.pm.publish_entry(offset, bytes, after)
    }
}

struct World {
    pm: Arc<Gated>,
    fs: InplaceFs<Gated>,
    /// Eight blocks of ones.
    file: Node,
}

fn now(secs: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + secs, 7)
}

fn mount(pm: &Arc<Gated>) -> InplaceFs<Gated> {
    InplaceFs::mount(Arc::clone(pm), &MountOptions { lanes: Some(2), ..MountOptions::default() }).unwrap()
}

fn new() -> NewInode<'static> {
    NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 1,
        gid: 2,
        rdev: 0,
        target: b"",
        xattrs: &[],
        now: now(0),
    }
}

impl World {
    fn new() -> World {
        let pm = Arc::new(Gated { pm: SimPm::new(16 << 20), gate: Mutex::new(None) });
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = mount(&pm);
        // What is free is not all zeros.
        let waste = fs.create(&fs.root(), b"waste", &new()).unwrap();
        let bytes = vec![0xee; 3000 * BLOCK];
        fs.write(&waste, WriteAt::End, &[IoSlice::new(&bytes)], Durability::Now, now(0)).unwrap();
        drop(waste);
        fs.unlink(&fs.root(), b"waste", now(0)).unwrap();
        let file = fs.create(&fs.root(), b"file", &new()).unwrap();
        let world = World { pm, fs, file };
        world.put(0, &[1; 8 * BLOCK]);
        world
    }

    /// In slices of a block, as a write buffer has them.
    fn put(&self, block: usize, bytes: &[u8]) {
        let slices: Vec<IoSlice<'_>> = bytes.chunks(BLOCK).map(IoSlice::new).collect();
        let at = WriteAt::Offset((block * BLOCK) as u64);
        self.fs.write(&self.file, at, &slices, Durability::Now, now(1)).unwrap();
    }

    /// The same, as a write buffer does.
    fn put_back(&self, block: usize, bytes: &[u8]) {
        let slices: Vec<IoSlice<'_>> = bytes.chunks(BLOCK).map(IoSlice::new).collect();
        let blocks = slices.len() as u64;
        let shape = WriteShape { blocks, groups: blocks, files: 1, extra: 0 };
        let reservation = self.fs.reserve_for(&shape).unwrap();
        self.fs.write_back(&self.file, (block * BLOCK) as u64, &slices, &reservation, now(1)).unwrap();
    }

    /// The first byte of each block of the file, all of whose bytes are the same.
    fn blocks(&self) -> Vec<u8> {
        self.blocks_from(0)
    }

    fn blocks_from(&self, first: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.fs.getattr(&self.file).unwrap().size as usize - first * BLOCK];
        let at = (first * BLOCK) as u64;
        assert_eq!(self.fs.read(&self.file, at, &mut bytes, None).unwrap(), bytes.len());
        let blocks = bytes.chunks(BLOCK);
        blocks
            .inspect(|block| assert!(block.iter().all(|byte| *byte == block[0])))
            .map(|block| block[0])
            .collect()
    }

    /// Writes twos; `meanwhile` comes to its end before the first fence does.
    fn put_back_beside(&self, block: usize, len: usize, meanwhile: impl FnOnce() + Send) {
        let (reached, is_reached) = sync_channel(1);
        let (open, is_open) = sync_channel(1);
        let (done, is_done) = sync_channel(1);
        *self.pm.gate.lock().unwrap() = Some((reached, is_open));
        let came = std::thread::scope(|scope| {
            scope.spawn(|| self.put_back(block, &vec![2; len]));
            is_reached.recv_timeout(FOR_EVER).unwrap();
            scope.spawn(move || {
                meanwhile();
                done.send(()).unwrap();
            });
            let came = is_done.recv_timeout(FOR_EVER);
            // Whoever waits goes on, so that a failure is one and no hang.
            open.send(()).unwrap();
            came
        });
        came.expect("no operation waits for writeback");
    }

    /// What is free is what a mount finds to be, and all is well.
    fn end(self) {
        let World { pm, fs, file } = self;
        drop(file);
        let free = fs.stat().free;
        fs.unmount().unwrap();
        let fs = mount(&pm);
        assert_eq!(fs.stat().free, free);
        fs.unmount().unwrap();
        let report = check(&*pm, false).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }

    /// What others do with the file and beside it.
    fn use_it(&self) {
        let (fs, root) = (&self.fs, self.fs.root());
        fs.setattr(&self.file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, now(2)).unwrap();
        fs.link(&self.file, &root, b"second", now(3)).unwrap();
        fs.unlink(&root, b"file", now(4)).unwrap();
        fs.create(&root, b"third", &new()).unwrap();
        assert_eq!(fs.getattr_at(&root, b"second").unwrap().ctime, now(4));
    }
}

#[test]
fn nobody_waits_for_what_is_overwritten() {
    let world = World::new();
    world.put_back_beside(2, 4 * BLOCK, || {
        assert_eq!(world.blocks(), [1, 1, 2, 2, 2, 2, 1, 1], "all of it or nothing");
        world.use_it();
    });
    assert_eq!(world.blocks(), [1, 1, 2, 2, 2, 2, 1, 1]);
    let attr = world.fs.getattr(&world.file).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (now(4), now(4)), "what was changed since stays changed");
    world.end();
}

#[test]
fn nobody_waits_for_new_blocks() {
    let world = World::new();
    world.put_back_beside(6, 4 * BLOCK, || {
        assert_eq!(world.blocks(), [1; 8], "all of it or nothing");
        world.use_it();
    });
    assert_eq!(world.blocks(), [1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    world.end();
}

#[test]
fn what_was_written_meanwhile_is_not_lost_and_no_block_is() {
    let world = World::new();
    world.put_back_beside(8, 4 * BLOCK, || {
        // One of the blocks that it allocates, and behind them.
        world.put(9, &[7; BLOCK]);
        world.put(13, &[8; BLOCK]);
        assert_eq!(world.blocks()[8..], [0, 7, 0, 0, 0, 8]);
    });
    assert_eq!(world.blocks()[7..], [1, 2, 2, 2, 2, 0, 8]);
    world.end();
}

/// Behind the end of the file nothing is zeroed. When others let it grow meanwhile, that is no end any more.
#[test]
fn the_rest_of_a_new_block_is_zeroed_when_the_file_grew_over_it() {
    let world = World::new();
    world.put_back_beside(8, BLOCK / 2, || world.put(9, &[5; BLOCK]));
    let mut bytes = vec![9; BLOCK];
    assert_eq!(world.fs.read(&world.file, 8 * BLOCK as u64, &mut bytes, None).unwrap(), BLOCK);
    assert_eq!((bytes[0], bytes[BLOCK / 2 - 1]), (2, 2));
    assert!(bytes[BLOCK / 2..].iter().all(|byte| *byte == 0));
    assert_eq!(world.blocks_from(9), [5]);
    world.end();
}

#[test]
fn a_truncation_takes_no_block_that_is_written_to() {
    let world = World::new();
    let (reached, is_reached) = sync_channel(1);
    let (open, is_open) = sync_channel(1);
    *world.pm.gate.lock().unwrap() = Some((reached, is_open));
    let change = SetAttr { size: Some(0), ..SetAttr::default() };
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| world.put_back(2, &[2; 4 * BLOCK]));
        is_reached.recv_timeout(FOR_EVER).unwrap();
        let cut = scope.spawn(|| world.fs.setattr(&world.file, &change, now(5)).unwrap());
        // It may not have begun yet; what it must not do is end, however long it has been at it.
        let ended = (0..1000).any(|_| {
            std::thread::yield_now();
            cut.is_finished()
        });
        open.send(()).unwrap();
        ended
    });
    assert!(!ended, "the blocks are free and written to");
    assert_eq!(world.blocks(), [0; 0]);
    world.end();
}
