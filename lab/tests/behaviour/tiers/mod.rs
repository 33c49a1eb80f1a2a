//! Files over PM and disks, while their blocks move: the user of the file system sees nothing of it. Each test runs
//! over each layout whose files may have blocks on tiers. A test of something that a layout does not have, as logs that
//! move, is left out by the capability, and says so.

/// Makes tests of functions that are generic over the layout: one for each layout with tiers.
macro_rules! over_each_layout {
    ($($test:ident),* $(,)?) => {
        mod log {
            $(
                #[test]
                fn $test() {
                    super::$test::<nacre_layout_log::LogFs<nacre_media::SimPm>>();
                }
            )*
        }

        mod shadow {
            $(
                #[test]
                fn $test() {
                    super::$test::<nacre_layout_shadow::ShadowFs<nacre_media::SimPm>>();
                }
            )*
        }
    };
}

mod buffered;
mod dram;
mod reads;
mod room;
mod scrub;
mod several;
mod unrest;
mod wishes;

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nacre_engine::{Extents, FileBlock, FileKind, Names, NewInode, Place, Timestamp};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions, OverTiers};
use nacre_layout_parts::report::Repair;
use nacre_media::block::SimDisk;
use nacre_media::{Frames, SimPm};
use nacre_mover::{MoverOptions, TieredFs};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

/// A layout over simulated PM whose files may have blocks on tiers.
trait Layout: OverTiers<Pm = SimPm> + 'static {}

impl<L: OverTiers<Pm = SimPm> + 'static> Layout for L {}

type Fs<L> = TieredFs<L, SimDisk>;
type Node<L> = <L as Names>::Node;

const MEMORY: u64 = 64 << 20;
const DISK: u64 = 64 << 20;
/// Of no matter: nobody looks at it.
const VOLUME: Uuid = Uuid::from_u128(0x6e61_6372_6500_4000_8000_0000_0000_0007);
const TIER: u8 = 1;

/// A machine with memory and a disk.
struct Machine<L> {
    memory: Arc<SimPm>,
    unrest: Arc<Unrest>,
    /// Nobody moves blocks but who needs their space.
    is_calm: bool,
    layout: PhantomData<fn() -> L>,
}

impl<L> Clone for Machine<L> {
    fn clone(&self) -> Machine<L> {
        let (memory, unrest) = (Arc::clone(&self.memory), Arc::clone(&self.unrest));
        Machine { memory, unrest, is_calm: self.is_calm, layout: PhantomData }
    }
}

/// An inode of root's.
fn new_inode(kind: FileKind, now: Timestamp) -> NewInode<'static> {
    NewInode::of_root(kind, 0o755, now)
}

/// All is small, so that it is used up, and groups so small that there are several.
fn small() -> MoverOptions {
    MoverOptions { page_cache: 4 << 20, read_ahead: 8, group: 32, ..MoverOptions::default() }
}

/// Bytes of a file that are on tiers.
fn bytes_below<L: Layout>(fs: &Fs<L>, node: &Node<L>) -> u64 {
    let extents = fs.resolve(node, FileBlock(0), u64::MAX).expect("resolve");
    let on_tier = extents.iter().filter(|extent| matches!(extent.place, Place::Tier { .. }));
    on_tier.map(|extent| extent.len * 4096).sum()
}

/// Somebody who moves blocks of any file up and down and compacts logs, all the time.
#[derive(Default)]
struct Unrest {
    ends: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    moved: AtomicU64,
    changed: AtomicU64,
    /// Pages of logs.
    freed: AtomicU64,
    /// Logs that went to the disk.
    logs: AtomicU64,
}

impl<L: Layout> Machine<L> {
    fn new(is_calm: bool) -> (Machine<L>, Arc<Fs<L>>) {
        let (machine, fs, _) = Machine::<L>::with_disks(MEMORY, &[1]);
        let (machine, fs) = (Machine { is_calm, ..machine }, Arc::new(fs));
        machine.begin(&fs);
        (machine, fs)
    }

    /// With so many bytes of memory, and disks of these ranks as tiers 1 and on. Nobody moves blocks but who needs their
    /// space.
    fn with_disks(memory: u64, ranks: &[u8]) -> (Machine<L>, Fs<L>, Vec<SimDisk>) {
        let machine = Machine::<L>::formatted(memory, &vec![DISK; ranks.len()]);
        let fs = machine.open();
        let now = Timestamp::new(1_700_000_000, 0);
        let disks: Vec<_> = (0..ranks.len()).map(|number| SimDisk::of(&machine.memory, number)).collect();
        for ((disk, rank), number) in disks.iter().zip(ranks).zip(TIER..) {
            assert_eq!(fs.add(disk.clone(), VOLUME, *rank, 1, now).expect("a tier"), number);
        }
        (machine, fs, disks)
    }

    /// With so many bytes of memory, an empty file system, and disks of these sizes that are no tiers yet.
    fn formatted(memory: u64, disks: &[u64]) -> Machine<L> {
        let memory = Arc::new(SimPm::with_disks(memory, disks));
        L::mkfs(&memory, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
        Machine { memory, unrest: Arc::default(), is_calm: true, layout: PhantomData }
    }

    fn disk(&self) -> SimDisk {
        SimDisk::of(&self.memory, 0)
    }

    fn open(&self) -> Fs<L> {
        self.over(self.mount_layout(), Arc::default())
    }

    fn mount_layout(&self) -> L {
        L::mount(Arc::clone(&self.memory), &MountOptions::default()).expect("mount")
    }

    fn over(&self, layout: L, frames: Arc<Frames>) -> Fs<L> {
        TieredFs::with_frames(layout, small(), frames)
    }

    fn mount(&self) -> Arc<Fs<L>> {
        self.serve(self.open())
    }

    /// With its disk, and somebody who moves blocks unless it is calm.
    fn serve(&self, fs: Fs<L>) -> Arc<Fs<L>> {
        let token = Lifecycle::summary(fs.layout()).mount_epoch + 2;
        fs.attach(self.disk(), VOLUME, Some(token)).expect("the tier is attached");
        let fs = Arc::new(fs);
        self.begin(&fs);
        fs
    }

    fn begin(&self, fs: &Arc<Fs<L>>) {
        if self.is_calm {
            return;
        }
        self.unrest.ends.store(false, Ordering::Relaxed);
        let (fs, unrest) = (Arc::clone(fs), Arc::clone(&self.unrest));
        let thread = std::thread::spawn(move || unrest.run(&fs));
        *self.unrest.thread.lock().expect("nobody panicked") = Some(thread);
    }

    /// Ends the unrest; gives the file system back.
    fn calm(&self, fs: Arc<Fs<L>>) -> Fs<L> {
        self.unrest.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.unrest.thread.lock().expect("nobody panicked").take() {
            thread.join().expect("moving blocks panicked");
        }
        Arc::into_inner(fs).expect("nobody else has it")
    }

    fn unmount(&self, fs: Arc<Fs<L>>) {
        Lifecycle::unmount(self.calm(fs).into_layout()).expect("unmount");
        self.assert_sound();
    }

    fn crash(&self, fs: Arc<Fs<L>>) {
        Lifecycle::abandon(self.calm(fs).into_layout());
        self.assert_sound();
    }

    fn assert_sound(&self) {
        let report = L::check(&self.memory, Repair::None, None).expect("check");
        assert!(report.problems.is_empty(), "the check finds: {:?}", report.problems);
    }
}

impl Unrest {
    fn run<L: Layout>(&self, fs: &Fs<L>) {
        let mut random = SmallRng::from_os_rng();
        while !self.ends.load(Ordering::Relaxed) {
            self.visit(fs, &fs.root(), &mut random);
        }
    }

    /// Moves blocks of each file in a directory and below it.
    fn visit<L: Layout>(&self, fs: &Fs<L>, dir: &Node<L>, random: &mut SmallRng) {
        let mut children = Vec::new();
        let listed = fs.read_dir(dir, 0, &mut |entry| {
            children.push((entry.id, entry.kind));
            ControlFlow::Continue(())
        });
        if listed.is_err() {
            return;
        }
        for (id, kind) in children {
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            let Ok(node) = fs.node(id) else { continue };
            match kind {
                FileKind::Directory => self.visit(fs, &node, random),
                FileKind::Regular => self.shake(fs, &node, random),
                _ => {}
            }
        }
        std::thread::yield_now();
    }

    fn shake<L: Layout>(&self, fs: &Fs<L>, node: &Node<L>, random: &mut SmallRng) {
        let mut begin = true;
        while fs.layout().has_logs()
            && random.random_ratio(1, 2)
            && let Ok(went) = fs.layout().compact_log(node, std::mem::take(&mut begin))
        {
            self.freed.fetch_add(went.freed, Ordering::Relaxed);
        }
        let (start, len) = (random.random_range(0..80), random.random_range(1..200));
        let start = if random.random_ratio(1, 2) { 0 } else { start };
        let moved = match random.random_ratio(2, 3) {
            true => fs.demote(node, TIER, FileBlock(start), len, random.random()),
            false => fs.promote(node, FileBlock(start), len),
        };
        // A full device, a file that is mapped or gone: what is asked of the file system decides what may fail.
        if let Ok(moved) = moved {
            self.moved.fetch_add(moved.moved, Ordering::Relaxed);
            self.changed.fetch_add(moved.changed, Ordering::Relaxed);
        }
        if fs.layout().has_logs()
            && random.random_ratio(1, 2)
            && let Ok(freed) = fs.move_log(node)
        {
            self.logs.fetch_add(u64::from(freed > 0), Ordering::Relaxed);
        }
    }
}
