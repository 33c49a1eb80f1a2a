//! Where tiers were last: hints in the superblock, for the next mount. Their bytes are in `nacre-layout-parts`.

use std::path::{Path, PathBuf};

use nacre_engine::{Kind, Result};
use nacre_layout_parts::tier_paths::{known, note_path};
use nacre_media::Pm;

use crate::mount::LogFs;

/// Where the tiers of a file system were last, as far as that is known, without mounting it.
pub fn known_tier_paths(pm: &impl Pm) -> Result<Vec<(u8, PathBuf)>> {
    Ok(known(&crate::superblock::read(pm)?.superblock))
}

impl<P: Pm> LogFs<P> {
    /// Where the device of a tier was last, if that is known.
    pub fn tier_path(&self, number: u8) -> Option<PathBuf> {
        let mut known = known(&self.shared.superblock.lock()).into_iter();
        known.find_map(|(other, path)| (other == number).then_some(path))
    }

    /// Notes where the device of a tier is, durably, for the next mount. False where there is no room for it: 255 bytes
    /// for one path, about 1000 for all.
    pub fn note_tier_path(&self, number: u8, path: &Path) -> Result<bool> {
        if self.shared.read_only {
            return Err(Kind::ReadOnly.into());
        }
        note_path(&mut self.shared.superblock.lock(), &*self.shared.pm, number, path)
    }
}
