//! The life of the layout, from mkfs to fsck.

use std::path::PathBuf;
use std::sync::Arc;

use nacre_engine::{Capabilities, Result, Tier, TierReader};
use nacre_layout_parts::findings::Findings;
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::{CheckReport, MediaReport, RecoveryReport, Repair};
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_media::Pm;

use crate::format::MAGIC;
use crate::layout::CAPABILITIES;
use crate::mount::PoolFs;
use crate::superblock::{self, Summary};
use crate::{check, mkfs, scrub, volumes};

impl<P: Pm + 'static> Lifecycle for PoolFs<P> {
    type Pm = P;

    const NAME: &'static str = "pool";
    const MAGIC: [u8; 8] = MAGIC;
    const CAPABILITIES: Capabilities = CAPABILITIES;

    fn probe(pm: &P) -> Result<Summary> {
        volumes::probe(pm)
    }

    fn leaves_trace(block: &[u8]) -> bool {
        superblock::leaves_trace(block)
    }

    fn known_tiers(_: &P) -> Result<Vec<Tier>> {
        Ok(Vec::new())
    }

    fn known_tier_paths(_: &P) -> Result<Vec<(u8, PathBuf)>> {
        Ok(Vec::new())
    }

    fn check_writable(pm: &P) -> Result<()> {
        superblock::check_writable(pm)
    }

    fn mkfs(pm: &P, options: &MkfsOptions) -> Result<Summary> {
        mkfs::mkfs(pm, options)
    }

    fn mount(pm: Arc<P>, options: &MountOptions) -> Result<PoolFs<P>> {
        PoolFs::mount(pm, options)
    }

    fn unmount(mut self) -> Result<()> {
        self.shut_down()
    }

    fn abandon(mut self) {
        self.let_go_of_everything();
    }

    fn pm(&self) -> &Arc<P> {
        &self.shared.pm
    }

    fn summary(&self) -> &Summary {
        self.summary_at_mount()
    }

    fn recovery(&self) -> &RecoveryReport {
        self.recovery_report()
    }

    fn check(pm: &P, repair: Repair, _: Option<&dyn TierReader>) -> Result<CheckReport> {
        check::check(pm, repair, None)
    }

    fn check_media(pm: &P, record: bool) -> Result<MediaReport> {
        scrub::check_media(pm, record, None)
    }

    fn retire_listed(pm: &P) -> Result<u64> {
        scrub::retire_listed(pm)
    }

    fn start_scrub(&self, rate: u64) -> Result<()> {
        self.scrubber.lock().start(&self.shared, rate)
    }

    fn scrub_status(&self) -> ScrubStatus {
        self.scrubber.lock().status(&*self.shared)
    }

    fn findings(&self) -> Arc<Findings> {
        Arc::clone(&self.shared.damaged.findings)
    }
}
