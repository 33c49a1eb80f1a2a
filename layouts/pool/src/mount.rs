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
use nacre_layout_parts::mounted;
use nacre_layout_parts::report::RecoveryReport;
use nacre_media::Pm;

use crate::bad::BadBlocks;
use crate::counting::{COUNTED_AT_ONCE, Counting};
use crate::counts::{Counts, Hints};
use crate::format::{ROOT_INODE, RawVolume};
use crate::fs::{GROUP_LOCKS, Shared, stripes};
use crate::geometry::Geometry;
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
    worker: Option<Worker>,
}

/// The thread that counts what a crash left uncounted, and frees the inodes without names that it left.
struct Worker {
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
    let zones = zones::count(&*pm, &superblock).max(geometry.zone + 1);
    let bad = BadBlocks::of(badblocks::read(&*pm, &superblock)?.blocks);
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
        copies_together: Mutex::new(()),
        orphans_left: AtomicBool::new(false),
        hints: Hints::new(geometry.groups()),
        counting: Counting::of(&geometry.groups()),
        counts: Mutex::new(Counts::none(&geometry, row.quota)),
        reserved: Arc::default(),
        held: HeldTable::new(geometry.volume),
        inode_cache: InodeCache::DEFAULT_LIMIT,
        damaged: Damaged::default(),
        move_directories: Mutex::new(()),
        bad,
        row: Mutex::new(row),
        zones,
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
        if !read_only && found.valid != [true; 2] && zones::count(&*pm, &superblock) == 1 {
            superblock.write(&*pm)?;
        }
        let mut shared = open(pm, superblock, geometry, row, &recovered, read_only)?;
        shared.inode_cache = options.inode_cache;
        shared.damaged.is_counted.store(!read_only, Ordering::Release);
        if let Some(lanes) = options.lanes {
            shared.lanes.truncate(lanes.clamp(1, shared.lanes.len()));
        }
        if row.clean == 1 && zone.counted == 1 && Counts::can_be(&row, &zone, &geometry) {
            shared.take_up(Counts::kept(&geometry, &row, &zone));
        }
        if !read_only {
            let began = |row: &mut RawVolume| (row.clean, row.mount_epoch) = (0, row.mount_epoch + 1);
            shared.change_rows(began, |zone| zone.counted = 0)?;
            summary.mount_epoch += 1;
        }
        let shared = Arc::new(shared);
        let root = shared.hold(ROOT_INODE, None).map_err(|error| error.object("root directory"))?;
        root.inode.check_directory().map_err(|_| Error::corrupt("root directory"))?;
        let worker = shared.begin_work(options.background)?;
        let recovery = RecoveryReport {
            torn: recovered.back,
            rolled_back: recovered.forward,
            duration: started.elapsed(),
            ..RecoveryReport::default()
        };
        Ok(PoolFs { shared, root: Some(root), recovery, summary, scrubber: Mutex::default(), worker })
    }
}

impl<P: Pm + 'static> Shared<P> {
    /// Does what a crash left to do, in a thread if there may be one.
    fn begin_work(self: &Arc<Shared<P>>, in_background: bool) -> Result<Option<Worker>> {
        let stop = Arc::new(AtomicBool::new(false));
        if !in_background {
            self.work(&stop);
            return Ok(None);
        }
        let has_orphans = !self.read_only && self.orphan_left(&BTreeSet::new())?.is_some();
        if self.is_counted() && !has_orphans {
            return Ok(None);
        }
        self.orphans_left.store(has_orphans, Ordering::Release);
        let (fs, until) = (Arc::clone(self), Arc::clone(&stop));
        let thread = thread::Builder::new().name("nacre-recover".to_owned()).spawn(move || {
            background::begin();
            fs.work(&until);
        });
        let thread =
            thread.map_err(|error| Error::io("mount", "the thread that counts free space", error))?;
        Ok(Some(Worker { stop, thread }))
    }

    fn work(&self, stop: &AtomicBool) {
        while !self.is_counted() && !stop.load(Ordering::Acquire) {
            self.count_some(COUNTED_AT_ONCE);
        }
        if !self.read_only {
            self.reclaim_left(stop);
        }
    }
}

impl<P: Pm> PoolFs<P> {
    mounted!(P);

    /// The counts of now are kept, and the volume is clean.
    fn shut_down(&mut self) -> Result<()> {
        self.stop_threads();
        if self.root.take().is_none() || self.shared.read_only {
            return Ok(());
        }
        let fs = &self.shared;
        fs.reclaim_all();
        fs.reclaim_left(&AtomicBool::new(false));
        fs.mend_noted()?;
        fs.release_active()?;
        fs.finish_counting();
        // The next mount counts again what could not be read.
        if fs.counts_are_right() {
            let counts = *fs.counts.lock();
            let ended = |row: &mut RawVolume| {
                row.clean = 1;
                row.keep(&counts);
            };
            fs.change_rows(ended, |zone| zone.keep(&counts))?;
        }
        fs.settle_lanes()
    }

    fn stop_threads(&mut self) {
        self.scrubber.lock().stop();
        if let Some(Worker { stop, thread }) = self.worker.take() {
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
