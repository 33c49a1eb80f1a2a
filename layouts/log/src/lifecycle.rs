//! The life of the layout, from mkfs to fsck.

use nacre_engine::{Capabilities, Result, TierReader};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::lifecycle_by_modules;
use nacre_layout_parts::report::{CheckReport, MediaReport, Repair};
use nacre_layout_parts::scrub::retire_listed;
use nacre_media::Pm;

use crate::format::MAGIC;
use crate::layout::CAPABILITIES;
use crate::mount::LogFs;
use crate::superblock::{self, Summary};
use crate::{check, mkfs};

impl<P: Pm + 'static> Lifecycle for LogFs<P> {
    type Pm = P;

    const NAME: &'static str = "log";
    const MAGIC: [u8; 8] = MAGIC;
    const CAPABILITIES: Capabilities = CAPABILITIES;

    lifecycle_by_modules!();

    fn probe(pm: &P) -> Result<Summary> {
        Ok(superblock::read(pm)?.summary())
    }

    fn check(pm: &P, repair: Repair, tiers: Option<&dyn TierReader>) -> Result<CheckReport> {
        check::check_with_tiers(pm, repair, tiers)
    }

    fn check_media(pm: &P, record: bool) -> Result<MediaReport> {
        check::check_media(pm, record)
    }

    fn retire_listed(pm: &P) -> Result<u64> {
        retire_listed(pm, &superblock::read(pm)?.superblock)
    }
}
