//! Mounting and unmounting.

use std::sync::Arc;
use std::time::Instant;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{Error, Result};
use nacre_layout_parts::lifecycle::MountOptions;
use nacre_layout_parts::marks::refuse;
use nacre_layout_parts::mounted;
use nacre_layout_parts::mounting::{check_mount, free_blocks, lane_count};
use nacre_layout_parts::report::RecoveryReport;
use nacre_layout_parts::scrub::Scrubber;
use nacre_layout_parts::table::Table;
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::tier_table::listed;
use nacre_layout_parts::tiers::TierSpaces;
use nacre_layout_parts::versions::Versions;
use nacre_media::Pm;

use crate::blockmap::Bounds;
use crate::format::{ROOT_INODE, feature, state};
use crate::fs::Shared;
use crate::inode::Node;
use crate::recover::{Walk, table_addresses, table_tree};
use crate::superblock::{Summary, Superblock};
use crate::switches::{Read, Switches, usable};

/// A mounted file system with the shadow layout. Dropping it unmounts it, without telling of errors.
pub struct ShadowFs<P: Pm> {
    pub(crate) shared: Arc<Shared<P>>,
    pub(crate) root: Option<Node>,
    recovery: RecoveryReport,
    summary: Summary,
    pub(crate) scrubber: Mutex<Scrubber>,
}

impl<P: Pm + 'static> ShadowFs<P> {
    /// Mounts the file system on `pm`.
    pub fn mount(pm: Arc<P>, options: &MountOptions) -> Result<ShadowFs<P>> {
        let started = Instant::now();
        let found = crate::superblock::read(&*pm)?;
        let mut superblock = found.superblock;
        let read_only = options.read_only || options.media_read_only;
        check_mount(&superblock, options)?;
        let switches = Read::from(&*pm, &superblock)?;
        switches.check()?;
        let mut walk = Walk::new(&*pm, &superblock, &switches);
        let mut directories = 0;
        walk.run(&superblock, &mut |_, _, header, _| {
            directories += u64::from(header.kind == nacre_engine::FileKind::Directory as u8);
        })?;
        let recovery = walk.report(started, directories);
        if recovery.damage_count > 0 && !options.read_only {
            return Err(refuse(&recovery));
        }
        // Copies of which the other one is whole, and that no write makes good again.
        let bad = match options.media_read_only {
            false => recover(&*pm, &superblock, &walk, &switches)?,
            true => Vec::new(),
        };
        let count = lane_count(options);
        let alloc = free_blocks(&*pm, &superblock, &walk.marks, count)?;
        let tier_sizes: Vec<(u8, u64)> =
            listed(&superblock.raw).iter().map(|tier| (tier.number, tier.blocks)).collect();
        let tiers = TierSpaces::new(tier_sizes.iter().copied())?;
        for (&tier, marks) in &walk.tier_marks {
            tiers.with(tier, |alloc| marks.free_the_rest(alloc));
        }
        let table = Table::new(
            table_tree(&walk.table_state),
            std::mem::take(&mut walk.table),
            std::mem::take(&mut walk.free_inodes),
            superblock.raw.device_blocks,
            options.inode_cache,
        );
        let (damaged, table_state) = (std::mem::take(&mut walk.damaged), walk.table_state);
        let data_on_pm = walk.data_on_pm;
        drop(walk);
        if !read_only {
            superblock.raw.state = state::DIRTY;
            superblock.raw.mount_epoch += 1;
            superblock.raw.lanes = count as u32;
            superblock.write(&*pm)?;
        }
        let summary = superblock.summary(found.valid);
        let shared = Arc::new(Shared {
            seed: superblock.seed(),
            times: superblock.times(),
            hash_seed: superblock.raw.hash_seed,
            first_change: superblock.raw.mount_epoch << 32,
            switches: Switches::new(&switches, &superblock, count, &bad)?,
            bounds: Bounds::of(&superblock),
            in_place: superblock.raw.features_compatible & feature::OVERWRITE_IN_PLACE != 0,
            table_state: Mutex::new(table_state),
            table_addresses: usable(table_addresses(&superblock)?, &bad, || {
                "the inode of the inode table".to_owned()
            })?,
            superblock: Mutex::new(superblock),
            pm,
            alloc,
            tiers,
            tier_reader: RwLock::default(),
            data_on_pm: AtomicU64::new(data_on_pm),
            versions: Versions::default(),
            table,
            move_directories: Mutex::new(()),
            read_only,
            broken: AtomicBool::new(false),
            damaged,
        });
        let root = shared.hold(ROOT_INODE).map_err(|error| error.object("root directory"))?;
        root.inode.check_directory().map_err(|_| Error::corrupt("root directory"))?;
        let recovery = RecoveryReport { duration: started.elapsed(), ..recovery };
        Ok(ShadowFs { shared, root: Some(root), recovery, summary, scrubber: Mutex::default() })
    }
}

/// Writes what a recovery has to, durable when it returns. Gives the copies of switches and of the table's inode with a
/// media error that stays: they are not written any more, and the other copy of each is whole.
pub(crate) fn recover<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    walk: &Walk<'_, P>,
    switches: &Read,
) -> Result<Vec<u64>> {
    let mut bad = Vec::new();
    let neutral = walk.neutralise(pm, &mut bad)?;
    let mended = switches.mend(pm, superblock, &mut bad)?;
    if let Some(pending) = neutral.into_iter().chain(mended).reduce(|one, other| one.and(other)) {
        pm.fence(pending);
    }
    Ok(bad)
}

impl<P: Pm> ShadowFs<P> {
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
        if fs.alloc.contradicts_itself() || fs.tiers.contradicts_itself() {
            // The next mount sees the owners of blocks.
            superblock.raw.errors = superblock.raw.errors.saturating_add(1);
            superblock.write(&*fs.pm)?;
            return Err(Error::corrupt("a block that was free was freed again").advice("run fsck"));
        }
        superblock.raw.state = state::CLEAN;
        superblock.write(&*fs.pm)
    }
}

impl<P: Pm> Drop for ShadowFs<P> {
    fn drop(&mut self) {
        // Errors are reported by `unmount`; here the next mount finds the state dirty and recovers.
        let _ = self.shut_down();
    }
}
