//! The life of the layout, from mkfs to fsck.

use std::sync::Arc;

use nacre_engine::{Capabilities, Result, TierReader};
use nacre_layout_parts::findings::Findings;
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::lifecycle_by_modules;
use nacre_layout_parts::report::{CheckReport, MediaReport, Repair};
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

    lifecycle_by_modules!();

    fn probe(pm: &P) -> Result<Summary> {
        volumes::probe(pm)
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

    fn findings(&self) -> Arc<Findings> {
        Arc::clone(&self.shared.damaged.findings)
    }
}
