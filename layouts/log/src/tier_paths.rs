//! Where tiers were last: hints in the superblock, for the next mount. Their bytes are in `nacre-layout-parts`.

use std::path::{Path, PathBuf};

use nacre_engine::{Kind, Result};
use nacre_layout_parts::lifecycle::OverTiers;
use nacre_layout_parts::tier_paths::{known, note_path};
use nacre_media::Pm;

use crate::mount::LogFs;

impl<P: Pm + 'static> OverTiers for LogFs<P> {
    fn is_read_only(&self) -> bool {
        LogFs::is_read_only(self)
    }

    fn tier_path(&self, number: u8) -> Option<PathBuf> {
        let mut known = known(&self.shared.superblock.lock()).into_iter();
        known.find_map(|(other, path)| (other == number).then_some(path))
    }

    fn note_tier_path(&self, number: u8, path: &Path) -> Result<bool> {
        if self.shared.read_only {
            return Err(Kind::ReadOnly.into());
        }
        note_path(&mut self.shared.superblock.lock(), &*self.shared.pm, number, path)
    }
}
