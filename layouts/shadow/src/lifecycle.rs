//! The life of the layout, from mkfs to fsck.

use std::path::PathBuf;
use std::sync::Arc;

use nacre_engine::{Capabilities, Result, Tier, TierReader};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::{CheckReport, MediaReport, RecoveryReport, Repair};
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_layout_parts::tier_paths;
use nacre_layout_parts::tier_table::listed;
use nacre_media::Pm;

use crate::format::MAGIC;
use crate::layout::CAPABILITIES;
use crate::mount::ShadowFs;
use crate::superblock::{self, Summary};
use crate::{check, mkfs};

impl<P: Pm + 'static> Lifecycle for ShadowFs<P> {
    type Pm = P;

    const NAME: &'static str = "shadow";
    const MAGIC: [u8; 8] = MAGIC;
    const CAPABILITIES: Capabilities = CAPABILITIES;

    fn probe(pm: &P) -> Result<Summary> {
        superblock::probe(pm)
    }

    fn leaves_trace(block: &[u8]) -> bool {
        superblock::leaves_trace(block)
    }

    fn known_tiers(pm: &P) -> Result<Vec<Tier>> {
        Ok(listed(&superblock::read(pm)?.superblock.raw))
    }

    fn known_tier_paths(pm: &P) -> Result<Vec<(u8, PathBuf)>> {
        Ok(tier_paths::known(&superblock::read(pm)?.superblock))
    }

    fn check_writable(pm: &P) -> Result<()> {
        superblock::check_writable(pm)
    }

    fn mkfs(pm: &P, options: &MkfsOptions) -> Result<Summary> {
        mkfs::mkfs(pm, options)
    }

    fn mount(pm: Arc<P>, options: &MountOptions) -> Result<ShadowFs<P>> {
        ShadowFs::mount(pm, options)
    }

    fn unmount(self) -> Result<()> {
        ShadowFs::unmount(self)
    }

    fn abandon(self) {
        ShadowFs::abandon(self);
    }

    fn pm(&self) -> &Arc<P> {
        ShadowFs::pm(self)
    }

    fn summary(&self) -> &Summary {
        ShadowFs::summary(self)
    }

    fn recovery(&self) -> &RecoveryReport {
        ShadowFs::recovery(self)
    }

    fn check(pm: &P, repair: Repair, _: Option<&dyn TierReader>) -> Result<CheckReport> {
        check::check_with(pm, repair)
    }

    fn check_media(pm: &P, record: bool) -> Result<MediaReport> {
        check::check_media(pm, record)
    }

    fn retire_listed(pm: &P) -> Result<u64> {
        check::retire_listed(pm)
    }

    fn start_scrub(&self, rate: u64) -> Result<()> {
        self.scrubber.lock().start(&self.shared, rate)
    }

    fn scrub_status(&self) -> ScrubStatus {
        self.scrubber.lock().status(&*self.shared)
    }
}
