//! Mounting and unmounting.

use std::sync::Arc;
use std::time::Instant;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::thread::{self, JoinHandle};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, background};
use nacre_layout_parts::lifecycle::MountOptions;
use nacre_layout_parts::mounted;
use nacre_layout_parts::mounting::lane_count;
use nacre_layout_parts::report::RecoveryReport;
use nacre_layout_parts::scrub::Scrubber;
use nacre_layout_parts::versions::Versions;
use nacre_media::Pm;

use crate::alloc::Allocator;
use crate::badblocks;
use crate::checkpoint;
use crate::format::{ROOT_INODE, state};
use crate::fs::{Shared, Transactions};
use crate::inode::{Graveyard, Inode, Node};
use crate::places::Reach;
use crate::recover::{Walk, refuse};
use crate::scan::Ending;
use crate::seeded::fault;
use crate::superblock::{Summary, Superblock};
use crate::table::InodeTable;
use crate::tiers::Tiers;

/// A mounted file system with the log layout. Dropping it unmounts it, without telling of errors.
pub struct LogFs<P: Pm> {
    pub(crate) shared: Arc<Shared<P>>,
    pub(crate) root: Option<Node>,
    recovery: RecoveryReport,
    thread: Option<JoinHandle<()>>,
    pub(crate) scrubber: Mutex<Scrubber>,
    summary: Summary,
}

impl<P: Pm + 'static> LogFs<P> {
    /// Mounts the file system on `pm`.
    pub fn mount(pm: Arc<P>, options: &MountOptions) -> Result<LogFs<P>> {
        let found = crate::superblock::read(&*pm)?;
        let mut superblock = found.superblock;
        let read_only = options.read_only || options.media_read_only;
        if !read_only {
            superblock.check_writable()?;
        }
        let lanes = lane_count(options);
        let device_blocks = superblock.raw.device_blocks;
        let alloc = Allocator::new(device_blocks, lanes, reserve(device_blocks));
        let inodes = InodeTable::of(&superblock, lanes, options.inode_cache)?;
        for block in badblocks::read(&*pm, &superblock)?.blocks {
            alloc.withdraw(block);
        }
        let reach = Reach::of(pm.len() / BLOCK_SIZE, &superblock.raw);
        let tiers = Tiers::new(&reach)?;
        let recovery = bring_up(&*pm, &mut superblock, &reach, &alloc, &tiers, &inodes, options)?;
        inodes.offer_free();

        let settled = superblock.raw.settled_transactions;
        if !read_only {
            mark_dirty(&*pm, &mut superblock, lanes)?;
        }
        let summary = superblock.summary(found.valid);
        let shared = Arc::new(Shared {
            seed: superblock.seed(),
            times: superblock.times(),
            hash_seed: superblock.raw.hash_seed,
            first_data_block: superblock.first_data_block(),
            superblock: Mutex::new(superblock),
            pm,
            alloc,
            tiers,
            versions: Versions::default(),
            reach: RwLock::new(reach),
            image_reader: RwLock::new(None),
            inodes,
            graveyard: Arc::new(Graveyard::default()),
            transactions: Transactions {
                next: AtomicU64::new(settled),
                settled: AtomicU64::new(settled),
                gate: RwLock::new(()),
            },
            move_directories: Mutex::new(()),
            overwriting: Mutex::new(()),
            read_only,
            unread: Mutex::default(),
            trims: Mutex::default(),
            freeing: AtomicBool::new(false),
            background: options.background && !read_only,
            has_thread: options.background,
            evicted: Mutex::default(),
            stopping: AtomicBool::new(false),
            device_blocks,
        });
        let root = shared.hold(ROOT_INODE).map_err(|error| error.object("root directory"))?;
        root.inode.directory().map_err(|_| Error::corrupt("root directory"))?;
        // It frees nothing of a file system that is only read, but inodes leave DRAM there, too.
        let thread = if shared.has_thread { Some(start_background(&shared)?) } else { None };
        Ok(LogFs { shared, root: Some(root), recovery, thread, scrubber: Mutex::default(), summary })
    }
}

impl<P: Pm> LogFs<P> {
    mounted!(P);

    /// Whether every change is refused.
    pub fn is_read_only(&self) -> bool {
        self.shared.read_only
    }

    fn shut_down(&mut self) -> Result<()> {
        self.stop_threads();
        if self.root.take().is_none() || self.shared.read_only {
            return Ok(());
        }
        let fs = &self.shared;
        fault!(fs.pm, CleanTooSoon => mark_clean_early(fs)?);
        fs.free_everything_waiting();
        fs.reclaim_unread();
        let mut changed: Vec<Arc<Inode>> = Vec::new();
        fs.inodes.for_each_loaded(|inode| {
            let lazy = inode.lazy.load(Ordering::Acquire) || inode.cached_changed.load(Ordering::Acquire);
            if inode.links() == 0 || lazy {
                changed.push(Arc::clone(inode));
            }
        });
        let mut flushed = fs.pm.zero(0, 0)?;
        for inode in changed {
            if inode.links() == 0 {
                fs.free_inode(&inode);
                continue;
            }
            fs.persist_lazy(&inode)?;
            flushed = flushed.and(fs.write_cached(&inode)?);
        }
        fs.pm.fence(flushed);
        let mut superblock = fs.superblock.lock();
        if fs.alloc.contradicts_itself() || fs.tiers.contradicts_itself() {
            // The next mount counts the free blocks from the logs, and sees their owners.
            superblock.raw.errors = superblock.raw.errors.saturating_add(1);
            superblock.write(&*fs.pm)?;
            return Err(Error::corrupt("a block that was free was freed again").advice("run fsck"));
        }
        let checkpoint = match fs.tiers.is_counted() {
            true => checkpoint::write(fs, superblock.raw.mount_epoch)?,
            false => None, // the next mount counts
        };
        superblock.raw.state = state::CLEAN;
        superblock.raw.checkpoint = checkpoint.map_or(0, |block| block.0);
        superblock.raw.settled_transactions = fs.transactions.next.load(Ordering::Relaxed);
        superblock.write(&*fs.pm)
    }

    fn stop_threads(&mut self) {
        self.scrubber.lock().stop();
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.graveyard.nudge();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened; blocks that it did not free, the next recovery
            // frees.
            let _ = thread.join();
        }
    }
}

impl<P: Pm> Drop for LogFs<P> {
    fn drop(&mut self) {
        // Errors are reported by `unmount`; here the next mount finds the state dirty and recovers.
        let _ = self.shut_down();
    }
}

/// From now on the checkpoint is out of date, and a mount after a crash recovers.
fn mark_dirty<P: Pm>(pm: &P, superblock: &mut Superblock, lanes: usize) -> Result<()> {
    superblock.raw.state = state::DIRTY;
    superblock.raw.mount_epoch += 1;
    superblock.raw.lanes = lanes as u32;
    superblock.raw.checkpoint = 0;
    fault!(pm, NotMarkedDirty => return Ok(()));
    superblock.write(pm)
}

/// Marks a file system clean that is still to be changed, as a mistake.
fn mark_clean_early<P: Pm>(fs: &Shared<P>) -> Result<()> {
    let mut superblock = fs.superblock.lock();
    superblock.raw.state = state::CLEAN;
    superblock.write(&*fs.pm)
}

/// Brings the allocator and the inode table up to date, from the checkpoint or from the logs.
fn bring_up<P: Pm>(
    pm: &P,
    superblock: &mut Superblock,
    reach: &Reach,
    alloc: &Allocator,
    tiers: &Tiers,
    inodes: &InodeTable,
    options: &MountOptions,
) -> Result<RecoveryReport> {
    let started = Instant::now();
    let chunks = inodes.load_chunks(pm)?;
    let raw = &superblock.raw;
    if superblock.is_clean() && raw.checkpoint != 0 {
        checkpoint::read(pm, superblock, reach, alloc, tiers, inodes)
            .map_err(|error| error.advice("run fsck: it can rebuild the checkpoint"))?;
        return Ok(RecoveryReport { duration: started.elapsed(), ..RecoveryReport::default() });
    }
    if options.media_read_only && !superblock.is_clean() {
        return Err(Error::new(Kind::ReadOnly)
            .object("recovery after a crash")
            .advice("it has to write: mount it writable once"));
    }
    let ending = if superblock.is_clean() { Ending::Clean } else { Ending::MayBeTorn };
    let mut walk = Walk::new(pm, inodes, &chunks, superblock, reach, ending);
    walk.run();
    let report = walk.report(started);
    if report.damage_count > 0 && !options.read_only {
        return Err(refuse(&report));
    }
    if ending == Ending::MayBeTorn {
        // Logs with torn entries cannot be read; where something is damaged, that is all that is erased.
        walk.repair()?;
        if report.damage_count == 0 {
            let greatest = walk.greatest_transaction();
            superblock.raw.settled_transactions = superblock.raw.settled_transactions.max(greatest + 1);
        }
    }
    walk.free_the_rest(alloc, superblock.first_data_block(), superblock.raw.device_blocks);
    walk.free_the_rest_of_tiers(tiers);
    Ok(RecoveryReport { duration: started.elapsed(), ..report })
}

/// Blocks that only metadata may use, so that a full file system can be emptied: 1 in 64, at least 32, at most 64 MiB.
pub(crate) fn reserve(device_blocks: u64) -> u64 {
    (device_blocks / 64).clamp(32, (64 << 20) / BLOCK_SIZE)
}

fn start_background<P: Pm + 'static>(shared: &Arc<Shared<P>>) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new()
        .name("nacre-free".to_owned())
        .spawn(move || {
            background::begin();
            shared.run_background();
        })
        .map_err(|error| Error::io("mount", "background thread", error))
}
