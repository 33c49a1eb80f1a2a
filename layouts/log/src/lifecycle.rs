//! The life of the layout, from mkfs to fsck.

use std::path::PathBuf;
use std::sync::Arc;

use nacre_engine::{Capabilities, Result, Tier, TierReader};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::{CheckReport, MediaReport, RecoveryReport, Repair};
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_media::Pm;

use crate::format::MAGIC;
use crate::layout::CAPABILITIES;
use crate::mount::LogFs;
use crate::superblock::{self, Summary};
use crate::{check, mkfs, tier_paths};

impl<P: Pm + 'static> Lifecycle for LogFs<P> {
    type Pm = P;

    const NAME: &'static str = "log";
    const MAGIC: [u8; 8] = MAGIC;
    const CAPABILITIES: Capabilities = CAPABILITIES;

    fn probe(pm: &P) -> Result<Summary> {
        superblock::probe(pm)
    }

    fn leaves_trace(block: &[u8]) -> bool {
        superblock::leaves_trace(block)
    }

    fn known_tiers(pm: &P) -> Result<Vec<Tier>> {
        superblock::known_tiers(pm)
    }

    fn known_tier_paths(pm: &P) -> Result<Vec<(u8, PathBuf)>> {
        tier_paths::known_tier_paths(pm)
    }

    fn check_writable(pm: &P) -> Result<()> {
        superblock::check_writable(pm)
    }

    fn mkfs(pm: &P, options: &MkfsOptions) -> Result<Summary> {
        mkfs::mkfs(pm, options)
    }

    fn mount(pm: Arc<P>, options: &MountOptions) -> Result<LogFs<P>> {
        LogFs::mount(pm, options)
    }

    fn unmount(self) -> Result<()> {
        LogFs::unmount(self)
    }

    fn abandon(self) {
        LogFs::abandon(self);
    }

    fn pm(&self) -> &Arc<P> {
        LogFs::pm(self)
    }

    fn summary(&self) -> &Summary {
        LogFs::summary(self)
    }

    fn recovery(&self) -> &RecoveryReport {
        LogFs::recovery(self)
    }

    fn check(pm: &P, repair: Repair, tiers: Option<&dyn TierReader>) -> Result<CheckReport> {
        check::check_with_tiers(pm, repair, tiers)
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
