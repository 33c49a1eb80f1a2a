//! Mounting and unmounting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::thread::{self, JoinHandle};
use nacre_engine::{Error, InodeCache, Kind, Result, background};
use nacre_layout_parts::badblocks;
use nacre_layout_parts::lifecycle::MountOptions;
use nacre_layout_parts::report::RecoveryReport;
use nacre_media::Pm;

use crate::bits;
use crate::counts::{Counts, Hints};
use crate::format::pools::INODES;
use crate::format::{GROUP_BYTES, ROOT_INODE, RawVolume};
use crate::fs::{GROUP_LOCKS, Shared, stripes};
use crate::geometry::{Geometry, Use};
use crate::held::{HeldTable, Node};
use crate::lanes::Lane;
use crate::mend::Damaged;
use crate::recover::{Recovered, is_needed, recover};
use crate::scrub::Scrubber;
use crate::seeded::Mistake;
use crate::superblock::{Summary, Superblock};
use crate::{volumes, zones};

/// A mounted file system with the pool layout. Dropping it unmounts it, without telling of errors.
pub struct PoolFs<P: Pm> {
    pub(crate) shared: Arc<Shared<P>>,
    pub(crate) root: Option<Node>,
    recovery: RecoveryReport,
    summary: Summary,
    pub(crate) scrubber: Mutex<Scrubber>,
    reclaimer: Option<Reclaimer>,
}

/// The thread that frees inodes without names that a crash left.
struct Reclaimer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The state of a file system whose lanes are decided.
pub(crate) fn open<P: Pm>(
    pm: Arc<P>,
    superblock: Superblock,
    geometry: Geometry,
    row: RawVolume,
    recovered: &Recovered,
    read_only: bool,
) -> Result<Shared<P>> {
    let bad: BTreeSet<u64> =
        badblocks::read(&*pm, &superblock)?.blocks.into_iter().map(|block| block.0).collect();
    let lane = |(index, &done): (usize, &u64)| Lane::new(&geometry, index as u64, done);
    let sequence = if Mistake::SequenceEarly.is_made(&*pm) { 0 } else { recovered.sequence };
    Ok(Shared {
        times: superblock.times(),
        superblock: Mutex::new(superblock),
        root: row.root,
        hash_seed: row.hash_seed,
        read_only,
        broken: AtomicBool::new(false),
        sequence: AtomicU64::new(sequence),
        lanes: recovered.done.iter().enumerate().map(lane).collect(),
        stripes: stripes(),
        group_locks: (0..GROUP_LOCKS).map(|_| Mutex::new(())).collect(),
        orphans: Mutex::new(()),
        orphans_left: AtomicBool::new(false),
        hints: Hints::new(geometry.groups()),
        counts: Mutex::new(Counts::none(&geometry, row.quota)),
        reserved: Arc::default(),
        held: HeldTable::new(geometry.volume),
        inode_cache: InodeCache::DEFAULT_LIMIT,
        damaged: Damaged::default(),
        move_directories: Mutex::new(()),
        bad: Mutex::new(bad),
        row: Mutex::new(row),
        geometry,
        pm,
    })
}

impl<P: Pm + 'static> PoolFs<P> {
    /// Mounts the file system on `pm`.
    pub(crate) fn mount(pm: Arc<P>, options: &MountOptions) -> Result<PoolFs<P>> {
        let started = Instant::now();
        let found = crate::superblock::read(&*pm)?;
        let read_only = options.read_only || options.media_read_only;
        if !read_only {
            found.superblock.check_writable()?;
        }
        let geometry = volumes::find(&*pm, &found.superblock, options.volume.as_deref())?;
        let recovered = if options.media_read_only {
            if is_needed(&*pm, &geometry)? {
                return Err(Error::new(Kind::ReadOnly)
                    .object("recovery after a crash")
                    .advice("it has to write: mount it writable once"));
            }
            Recovered { done: vec![0; geometry.lanes as usize], ..Recovered::default() }
        } else if read_only {
            recover(&*pm, &geometry)?
        } else {
            volumes::finish(&pm, &found.superblock, &geometry)?
        };
        let row = volumes::read(&*pm, &found.superblock, &geometry)?;
        let zone = zones::row(&*pm, &found.superblock, &geometry)?;
        let mut summary = volumes::summary(&found, &row);
        let mut superblock = found.superblock.clone();
        superblock.note_copies(&found);
        // Where there are several zones, another process may have one.
        if !read_only && found.valid != [true; 2] && zones::count(&*pm, &superblock)? == 1 {
            superblock.write(&*pm)?;
        }
        let mut shared = open(pm, superblock, geometry, row, &recovered, read_only)?;
        shared.inode_cache = options.inode_cache;
        if let Some(lanes) = options.lanes {
            shared.lanes.truncate(lanes.clamp(1, shared.lanes.len()));
        }
        if row.clean == 1 && zone.counted == 1 && Counts::can_be(&row, &zone, &geometry) {
            shared.counts.lock().take_up(&row, &zone);
        } else {
            let (counted, unused) = shared.count()?;
            *shared.counts.lock() = counted;
            // A crash came between the making of a pool block and its first entry.
            if !read_only {
                unused.into_iter().try_for_each(|block| shared.release_pool_block(block))?;
            }
        }
        if !read_only {
            let began = |row: &mut RawVolume| (row.clean, row.mount_epoch) = (0, row.mount_epoch + 1);
            shared.change_rows(began, |zone| zone.counted = 0)?;
            summary.mount_epoch += 1;
        }
        let shared = Arc::new(shared);
        let root = shared.hold(ROOT_INODE, None).map_err(|error| error.object("root directory"))?;
        root.inode.check_directory().map_err(|_| Error::corrupt("root directory"))?;
        let reclaimer = if read_only { None } else { shared.begin_reclaim(options.background)? };
        let recovery = RecoveryReport {
            torn: recovered.back,
            rolled_back: recovered.forward,
            duration: started.elapsed(),
            ..RecoveryReport::default()
        };
        Ok(PoolFs { shared, root: Some(root), recovery, summary, scrubber: Mutex::default(), reclaimer })
    }
}

impl<P: Pm + 'static> Shared<P> {
    /// Frees inodes without names that a crash left, in a thread if there may be one.
    fn begin_reclaim(self: &Arc<Shared<P>>, in_background: bool) -> Result<Option<Reclaimer>> {
        let stop = Arc::new(AtomicBool::new(false));
        if !in_background {
            self.reclaim_left(&stop);
            return Ok(None);
        }
        if self.orphan_left(&BTreeSet::new())?.is_none() {
            return Ok(None);
        }
        self.orphans_left.store(true, Ordering::Release);
        let (fs, until) = (Arc::clone(self), Arc::clone(&stop));
        let thread = thread::Builder::new().name("nacre-reclaim".to_owned()).spawn(move || {
            background::begin();
            fs.reclaim_left(&until);
        });
        let thread = thread.map_err(|error| Error::io("mount", "the thread that frees inodes", error))?;
        Ok(Some(Reclaimer { stop, thread }))
    }
}

impl<P: Pm> Shared<P> {
    /// Counts free blocks and inodes, from the bits; and finds pool blocks without an entry in use.
    pub(crate) fn count(&self) -> Result<(Counts, Vec<u64>)> {
        let geometry = self.geometry;
        let mut counts = Counts::none(&geometry, self.row.lock().quota);
        let mut unused = Vec::new();
        for group in geometry.groups() {
            let (free, of_group) = self.read_map(group)?;
            let of = geometry.use_of(of_group);
            self.hints.note(group, of, &free);
            counts.add_group(of, &free, geometry.regions_in(group));
            if of != Use::Pool {
                continue;
            }
            for slot in 0..geometry.pool_blocks_in_group() {
                let block = group * GROUP_BYTES + slot * geometry.pool_block;
                let within = block % GROUP_BYTES / nacre_engine::BLOCK_SIZE;
                if bits::meet(&free, &bits::run(within, 1)) {
                    continue;
                }
                let pool = self.read_head(block)?.pool as usize;
                let in_use = self.entries_in_use(block, pool)?;
                if pool == INODES {
                    counts.inodes += in_use;
                }
                unused.extend((in_use == 0).then_some(block));
            }
        }
        Ok((counts, unused))
    }
}

impl<P: Pm> PoolFs<P> {
    /// The report of the recovery at this mount.
    pub(crate) fn recovery_report(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// The contents of the superblock at this mount.
    pub(crate) fn summary_at_mount(&self) -> &Summary {
        &self.summary
    }

    /// Unmounts: the counts of now are kept, and the volume is clean.
    pub(crate) fn shut_down(&mut self) -> Result<()> {
        self.stop_threads();
        if self.root.take().is_none() || self.shared.read_only {
            return Ok(());
        }
        let fs = &self.shared;
        fs.reclaim_all();
        fs.reclaim_left(&AtomicBool::new(false));
        fs.release_active()?;
        let counts = *fs.counts.lock();
        let ended = |row: &mut RawVolume| {
            row.clean = 1;
            row.keep(&counts);
        };
        fs.change_rows(ended, |zone| zone.keep(&counts))?;
        fs.settle_lanes()
    }

    /// Ends the threads, and lets go of the file system as a process does that is killed.
    pub(crate) fn let_go_of_everything(&mut self) {
        self.stop_threads();
        self.root = None;
    }

    fn stop_threads(&mut self) {
        self.scrubber.lock().stop();
        if let Some(Reclaimer { stop, thread }) = self.reclaimer.take() {
            stop.store(true, Ordering::Release);
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl<P: Pm> Drop for PoolFs<P> {
    fn drop(&mut self) {
        // Errors are reported by `unmount`; here the next mount finds the state dirty and recovers.
        let _ = self.shut_down();
    }
}
