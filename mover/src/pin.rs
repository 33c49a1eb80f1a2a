//! Files that users have told the mover to leave alone.

use nacre_engine::{Kind, Names, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::fs::MoverFs;

/// The extended attribute that pins a file, independent of its value. Files and directories inherit it from the
/// directory that they are made in.
pub const PIN: &[u8] = b"user.nacre.pin";

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    pub(crate) fn is_pinned(&self, node: &<L as Names>::Node) -> bool {
        // A file with an unreadable attribute is left alone, too.
        !matches!(self.layout.get_xattr(node, PIN), Err(error) if error.kind() == Kind::NoAttribute)
    }

    /// The value for files and directories made in a directory.
    pub(crate) fn inherited_pin(&self, dir: &<L as Names>::Node) -> Option<Vec<u8>> {
        // Without tiers, too: there may be some later.
        self.layout.get_xattr(dir, PIN).ok()
    }
}
