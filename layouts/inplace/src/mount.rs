//! Mounting and unmounting.

use std::sync::Arc;
use std::time::Instant;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::AtomicBool;
use nacre_engine::{Error, Result};
use nacre_layout_parts::lifecycle::MountOptions;
use nacre_layout_parts::marks::refuse;
use nacre_layout_parts::mounted;
use nacre_layout_parts::mounting::{check_mount, free_blocks, lane_count};
use nacre_layout_parts::report::RecoveryReport;
use nacre_layout_parts::scrub::Scrubber;
use nacre_layout_parts::table::Table;
use nacre_layout_parts::table::inodes::Inodes;
use nacre_media::Pm;

use crate::blockmap::{Bounds, open};
use crate::format::{ROOT_INODE, feature, region, state};
use crate::fs::Shared;
use crate::inode::Node;
use crate::recover::{Walk, read_journal, roll_back};
use crate::superblock::Summary;
use crate::table::table_address;
use crate::transaction::Journal;

/// A mounted file system with the in-place layout. Dropping it unmounts it, without telling of errors.
pub struct InplaceFs<P: Pm> {
    pub(crate) shared: Arc<Shared<P>>,
    pub(crate) root: Option<Node>,
    recovery: RecoveryReport,
    summary: Summary,
    pub(crate) scrubber: Mutex<Scrubber>,
}

impl<P: Pm + 'static> InplaceFs<P> {
    /// Mounts the file system on `pm`.
    pub fn mount(pm: Arc<P>, options: &MountOptions) -> Result<InplaceFs<P>> {
        let started = Instant::now();
        let found = crate::superblock::read(&*pm)?;
        let mut superblock = found.superblock;
        let read_only = options.read_only || options.media_read_only;
        check_mount(&superblock, options)?;
        let mut lanes = read_journal(&*pm, &superblock)?;
        // A clean one may have a transaction that was undone already: the crash came before that was settled.
        let rolled_back = if options.media_read_only { 0 } else { roll_back(&*pm, &superblock, &mut lanes)? };
        let mut walk = Walk::new(&*pm, &superblock);
        walk.run(&superblock, &mut |_, _, _| {})?;
        let recovery = walk.report(started, rolled_back);
        if recovery.damage_count > 0 && !options.read_only {
            return Err(refuse(&recovery));
        }
        let count = lane_count(options);
        let alloc = free_blocks(&*pm, &superblock, &walk.marks, count)?;
        let next: Vec<u64> = lanes.iter().map(|lane| lane.next()).collect();
        let table = Table::new(
            open(walk.table_root),
            std::mem::take(&mut walk.table),
            std::mem::take(&mut walk.free_inodes),
            superblock.raw.device_blocks,
            options.inode_cache,
        );
        let damaged = std::mem::take(&mut walk.damaged);
        drop(walk);
        if !read_only {
            superblock.raw.state = state::DIRTY;
            superblock.raw.mount_epoch += 1;
            superblock.raw.lanes = count as u32;
            superblock.write(&*pm)?;
        }
        let linear = superblock.raw.features_compatible & feature::LINEAR_NAMES != 0;
        let summary = superblock.summary(found.valid);
        let shared = Arc::new(Shared {
            seed: superblock.seed(),
            times: superblock.times(),
            xattr_trees: superblock.raw.version >= 2,
            hash_seed: superblock.raw.hash_seed,
            table_address: table_address(&superblock)?,
            journal: Journal::new(superblock.region(region::JOURNAL)?, superblock.seed(), &next),
            bounds: Bounds::of(&superblock),
            superblock: Mutex::new(superblock),
            pm,
            alloc,
            table,
            move_directories: Mutex::new(()),
            read_only,
            name_index: options.name_index.unwrap_or(!linear),
            broken: AtomicBool::new(false),
            damaged,
        });
        let root = shared.hold(ROOT_INODE).map_err(|error| error.object("root directory"))?;
        root.inode.check_directory().map_err(|_| Error::corrupt("root directory"))?;
        let recovery = RecoveryReport { duration: started.elapsed(), ..recovery };
        Ok(InplaceFs { shared, root: Some(root), recovery, summary, scrubber: Mutex::default() })
    }
}

impl<P: Pm> InplaceFs<P> {
    mounted!(P);

    fn stop_threads(&mut self) {
        self.scrubber.lock().stop();
    }

    fn shut_down(&mut self) -> Result<()> {
        self.stop_threads();
        if self.root.take().is_none() || self.shared.read_only {
            return Ok(());
        }
        let fs = &self.shared;
        fs.check_unbroken()?;
        fs.table.lazy().iter().try_for_each(|inode| fs.persist_lazy(inode))?;
        let mut superblock = fs.superblock.lock();
        if fs.alloc.contradicts_itself() {
            // The next mount sees the owners of blocks.
            superblock.raw.errors = superblock.raw.errors.saturating_add(1);
            superblock.write(&*fs.pm)?;
            return Err(Error::corrupt("a block that was free was freed again").advice("run fsck"));
        }
        superblock.raw.state = state::CLEAN;
        superblock.write(&*fs.pm)
    }
}

impl<P: Pm> Drop for InplaceFs<P> {
    fn drop(&mut self) {
        // Errors are reported by `unmount`; here the next mount finds the state dirty and recovers.
        let _ = self.shut_down();
    }
}
