//! A file system in memory over disks that count their flushes.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Error, Extents, FileBlock, FileKind, Kind, Names, NewInode, Place, Result,
    Timestamp, WriteAt,
};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions, OverTiers};
use nacre_layout_parts::report::Repair;
use nacre_media::block::{BlockDevice, SimDisk, Transfer};
use nacre_media::{Durable, SimPm};
use nacre_mover::{MoverOptions, TieredFs};
use uuid::Uuid;

/// A layout over simulated PM whose files may have blocks on tiers.
pub(crate) trait Layout: OverTiers<Pm = SimPm> + 'static {}

impl<L: OverTiers<Pm = SimPm> + 'static> Layout for L {}

pub(crate) type Fs<L> = TieredFs<L, Disk>;
pub(crate) type Node<L> = <L as Names>::Node;

pub(crate) const BLOCK: usize = BLOCK_SIZE as usize;
/// The tier of the first disk.
pub(crate) const TIER: u8 = 1;
/// That of the second.
pub(crate) const OTHER: u8 = 2;

type Act = Box<dyn FnOnce() + Send>;

/// A disk that counts its flushes, and has something done while the next one is under way.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) disk: SimDisk,
    flushes: Arc<AtomicU64>,
    pub(crate) meanwhile: Arc<Mutex<Option<Act>>>,
    /// Something that is done before the next write.
    pub(crate) before_write: Arc<Mutex<Option<Act>>>,
    /// Something that is done behind the next read, before it returns.
    pub(crate) after_read: Arc<Mutex<Option<Act>>>,
    /// Blocks that cannot be read.
    pub(crate) unreadable: Arc<Mutex<Vec<u64>>>,
}

impl Disk {
    /// The disk with this number beside simulated PM.
    pub(crate) fn of(memory: &Arc<SimPm>, number: usize) -> Disk {
        Disk {
            disk: SimDisk::of(memory, number),
            flushes: Arc::default(),
            meanwhile: Arc::default(),
            before_write: Arc::default(),
            after_read: Arc::default(),
            unreadable: Arc::default(),
        }
    }
}

impl BlockDevice for Disk {
    fn len(&self) -> u64 {
        self.disk.len()
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn transfer(&self, batch: &mut [Transfer<'_>]) -> Result<()> {
        let unreadable = self.unreadable.lock().unwrap();
        for transfer in &*batch {
            let Transfer::Read { offset, .. } = transfer else { continue };
            let range = *offset / BLOCK_SIZE..(*offset + transfer.len()).div_ceil(BLOCK_SIZE);
            if unreadable.iter().any(|block| range.contains(block)) {
                return Err(Error::new(Kind::Media));
            }
        }
        drop(unreadable);
        if batch.iter().any(|transfer| matches!(transfer, Transfer::Write { .. })) {
            let act = self.before_write.lock().unwrap().take();
            if let Some(act) = act {
                act();
            }
        }
        self.disk.transfer(batch)?;
        if batch.iter().any(|transfer| matches!(transfer, Transfer::Read { .. })) {
            let act = self.after_read.lock().unwrap().take();
            if let Some(act) = act {
                act();
            }
        }
        Ok(())
    }
    fn flush(&self) -> Result<Durable> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(act) = meanwhile {
            act();
        }
        self.disk.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.disk.discard(offset, len)
    }
}

pub(crate) struct Machine<L: Layout> {
    pub(crate) memory: Arc<SimPm>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) fs: Arc<Fs<L>>,
}

pub(crate) fn time(at: usize) -> Timestamp {
    Timestamp::new(1_700_000_000 + at as i64, 0)
}

pub(crate) fn content(number: usize, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / 512 + number * 7 + 1) as u8).collect()
}

impl<L: Layout> Machine<L> {
    /// A tier of so many bytes; reads move nothing.
    pub(crate) fn new(disk: u64) -> Machine<L> {
        Machine::with(&[disk], MoverOptions { balance: false, ..MoverOptions::default() })
    }

    /// Tiers of so many bytes, the first the fastest.
    pub(crate) fn with(sizes: &[u64], options: MoverOptions) -> Machine<L> {
        Machine::sized(16 << 20, sizes, options)
    }

    /// Tiers below memory of so many bytes.
    pub(crate) fn sized(memory: u64, sizes: &[u64], options: MoverOptions) -> Machine<L> {
        let memory = Arc::new(SimPm::with_disks(memory, sizes));
        L::mkfs(&memory, &MkfsOptions::default()).expect("mkfs");
        let layout = L::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
        let fs = Fs::<L>::new(layout, options);
        let disks: Vec<Disk> = (0..sizes.len()).map(|number| Disk::of(&memory, number)).collect();
        for (disk, rank) in disks.iter().zip(1..) {
            fs.add(disk.clone(), Uuid::from_u128(7), rank, 1, time(0)).expect("a tier");
            disk.flushes.store(0, Ordering::Relaxed);
        }
        Machine { memory, disks, fs: Arc::new(fs) }
    }

    /// Files of so many blocks each.
    pub(crate) fn files(&self, blocks: impl IntoIterator<Item = usize>) -> Vec<Node<L>> {
        blocks.into_iter().enumerate().map(|(number, blocks)| self.file(number, blocks)).collect()
    }

    pub(crate) fn file(&self, number: usize, blocks: usize) -> Node<L> {
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            now: time(number),
            xattrs: &[],
            target: &[],
        };
        let node = self.fs.create(&self.fs.root(), number.to_string().as_bytes(), &new).expect("create");
        self.put(&node, &content(number, blocks), time(number));
        node
    }

    /// A file of so many blocks on the first tier. Each hundred of them lies before those that precede it in the file,
    /// so that each comes up alone.
    pub(crate) fn scattered(&self, number: usize, blocks: usize) -> Node<L> {
        let node = self.file(number, blocks);
        for start in (0..blocks).step_by(100).rev() {
            self.fs.demote(&node, TIER, FileBlock(start as u64), 100, false).expect("room");
        }
        assert_eq!(self.below(&node), blocks as u64);
        self.fs.tiers().pages().drop_tier(TIER);
        node
    }

    fn put(&self, node: &Node<L>, bytes: &[u8], now: Timestamp) {
        self.fs
            .write(node, WriteAt::Offset(0), &[IoSlice::new(bytes)], Durability::Now, now)
            .expect("there is room");
    }

    /// A block of a file that is in memory cannot be read any more.
    pub(crate) fn poison(&self, node: &Node<L>, block: u64) {
        let place = self.fs.resolve(node, FileBlock(block), 1).expect("resolve")[0].place;
        let Place::Pm(at) = place else { panic!("it is on {place:?}") };
        self.memory.poison(at.offset(), 64);
    }

    pub(crate) fn read(&self, node: &Node<L>) -> Vec<u8> {
        self.read_at(node, None)
    }

    /// The same, by somebody who says when.
    pub(crate) fn read_at(&self, node: &Node<L>, now: Option<Timestamp>) -> Vec<u8> {
        let mut seen = vec![0; self.fs.getattr(node).expect("getattr").size as usize];
        assert_eq!(self.fs.read(node, 0, &mut seen, now).expect("read"), seen.len());
        seen
    }

    /// Those of a tier's disk since it was added.
    pub(crate) fn flushes(&self, tier: u8) -> u64 {
        self.disks[usize::from(tier) - 1].flushes.load(Ordering::Relaxed)
    }

    /// Blocks that are in use on a tier.
    pub(crate) fn used(&self, tier: u8) -> u64 {
        self.fs.layout().tier_space(tier).map(|space| space.blocks - space.free).expect("a tier")
    }

    /// The blocks of a file that are on tiers.
    pub(crate) fn below(&self, node: &Node<L>) -> u64 {
        let extents = self.fs.resolve(node, FileBlock(0), u64::MAX).expect("resolve");
        let on_tier = extents.iter().filter(|extent| matches!(extent.place, Place::Tier { .. }));
        on_tier.map(|extent| extent.len).sum()
    }

    /// Crashes, and looks at all files again.
    pub(crate) fn crash(self, expected: &[Vec<u8>]) {
        let Machine { memory, disks, fs } = self;
        Lifecycle::abandon(Arc::into_inner(fs).expect("nobody else has it").into_layout());
        let report = L::check(&memory, Repair::None, None).expect("check");
        assert!(report.is_sound(), "{:?}", report.problems);
        let layout = L::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
        let fs = Fs::<L>::new(layout, MoverOptions::default());
        for disk in &disks {
            fs.attach(disk.clone(), Uuid::from_u128(7), Some(2)).expect("the tier is there");
        }
        let machine = Machine::<L> { memory, disks, fs: Arc::new(fs) };
        for (number, expected) in expected.iter().enumerate() {
            let node = machine.fs.lookup(&machine.fs.root(), number.to_string().as_bytes()).expect("a file");
            assert!(machine.read(&node) == *expected, "file {number}");
        }
    }
}
