//! The life of the layout, from mkfs to fsck.

use nacre_engine::{Capabilities, Result, TierReader};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::lifecycle_by_modules;
use nacre_layout_parts::report::{CheckReport, MediaReport, Repair};
use nacre_layout_parts::scrub::retire_listed;
use nacre_media::Pm;

use crate::format::MAGIC;
use crate::layout::CAPABILITIES;
use crate::mount::ShadowFs;
use crate::superblock::{self, Summary};
use crate::{check, mkfs, scrub};

impl<P: Pm + 'static> Lifecycle for ShadowFs<P> {
    type Pm = P;

    const NAME: &'static str = "shadow";
    const MAGIC: [u8; 8] = MAGIC;
    const CAPABILITIES: Capabilities = CAPABILITIES;

    lifecycle_by_modules!();

    fn probe(pm: &P) -> Result<Summary> {
        Ok(superblock::read(pm)?.summary())
    }

    fn check(pm: &P, repair: Repair, _: Option<&dyn TierReader>) -> Result<CheckReport> {
        check::check_with(pm, repair)
    }

    fn check_media(pm: &P, record: bool) -> Result<MediaReport> {
        scrub::check_media(pm, record)
    }

    fn retire_listed(pm: &P) -> Result<u64> {
        retire_listed(pm, &superblock::read(pm)?.superblock)
    }
}
