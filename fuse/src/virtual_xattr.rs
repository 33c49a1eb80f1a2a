//! Extended attributes that no inode stores, through which commands query a mounted file system.
//!
//! - `system.nacre.extents` on a regular file: the places of its extents from the beginning on;
//!   `system.nacre.extents.N` from file block N on. The value is JSON. `extents` is an array of `{start, len, place,
//!   block}` in blocks, with `tier` if the place is one. `next` is the block with which to continue, or null at the
//!   end. A value holds at most [`EXTENTS_PER_PAGE`], because the kernel allows 64 KiB.
//! - any other attribute that the [control](crate::Control) of the mount knows, on any file.
//!
//! They do not show in lists. Readers of a file's attributes may read them, except those that name files of other
//! users. Root, and the user that mounted, may read all and set those of the control.

use std::sync::Arc;

use nacre_engine::{FileBlock, FileKind, Kind, Place, PlacedExtent, Result};
use nacre_vfs::Layout;

use crate::control::Control;
use crate::server::Server;

/// The prefix of each name.
const PREFIX: &[u8] = nacre_control::PREFIX.as_bytes();
/// Extents in one value.
const EXTENTS_PER_PAGE: usize = 512;
/// Blocks in the first search; more while they hold few extents.
const FIRST_WINDOW: u64 = 1024;

impl<L: Layout> Server<L> {
    /// The value of a virtual attribute; `None` for the name of an ordinary one.
    pub(crate) fn virtual_xattr(&self, node: &L::Node, uid: u32, name: &[u8]) -> Option<Result<Vec<u8>>> {
        let name = name.strip_prefix(PREFIX)?;
        if name == b"extents" {
            return Some(self.extents(node, 0));
        }
        if let Some(start) = name.strip_prefix(b"extents.").and_then(number) {
            return Some(self.extents(node, start));
        }
        let ask = |control: &Arc<dyn Control>| {
            control.ask(self.vfs.id(node), std::str::from_utf8(name).ok()?, may_tell(uid))
        };
        let answer = self.control.as_ref().and_then(ask);
        Some(answer.map_or_else(|| Err(Kind::NoAttribute.into()), |answer| answer.map(String::into_bytes)))
    }

    /// Runs the command of setting a virtual attribute; `None` for an ordinary one.
    pub(crate) fn set_virtual_xattr(
        &self,
        node: &L::Node,
        uid: u32,
        name: &[u8],
        value: &[u8],
    ) -> Option<Result<()>> {
        let name = name.strip_prefix(PREFIX)?;
        if !may_tell(uid) {
            return Some(Err(Kind::NotPermitted.into()));
        }
        let Some(control) = &self.control else { return Some(Err(Kind::Unsupported.into())) };
        let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) else {
            return Some(Err(Kind::InvalidInput.into()));
        };
        let told = control.tell(self.vfs.id(node), name, value);
        Some(told.unwrap_or_else(|| Err(Kind::Unsupported.into())))
    }

    fn extents(&self, node: &L::Node, start: u64) -> Result<Vec<u8>> {
        if self.vfs.kind(node) != FileKind::Regular {
            return Err(Kind::NoAttribute.into());
        }
        let mut found: Vec<PlacedExtent> = Vec::new();
        let mut at = start;
        let mut window = FIRST_WINDOW;
        let next = loop {
            let part = self.vfs.layout().resolve(node, FileBlock(at), window)?;
            let Some(last) = part.last() else { break None };
            let end = last.start.0 + last.len;
            part.into_iter().for_each(|extent| append(&mut found, extent));
            if found.len() >= EXTENTS_PER_PAGE {
                found.truncate(EXTENTS_PER_PAGE);
                break found.last().map(|last| last.start.0 + last.len);
            }
            if end < at.saturating_add(window) {
                break None;
            }
            at = end;
            window = window.saturating_mul(4).min(u64::MAX - at);
        };
        Ok(page(&found, next).into_bytes())
    }
}

/// Whether a user may change the behaviour of the mount: root, and the user that mounted it.
pub(crate) fn may_tell(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Adds an extent, as part of the last one if it continues it.
fn append(found: &mut Vec<PlacedExtent>, extent: PlacedExtent) {
    if let Some(last) = found.last_mut()
        && last.start.0 + last.len == extent.start.0
        && continues(last, extent.place)
    {
        last.len += extent.len;
        return;
    }
    found.push(extent);
}

fn continues(before: &PlacedExtent, after: Place) -> bool {
    match (before.place, after) {
        (Place::Hole, Place::Hole) => true,
        (Place::Pm(a), Place::Pm(b)) | (Place::Unwritten(a), Place::Unwritten(b)) => a.plus(before.len) == b,
        (Place::Tier { tier: a, block: from }, Place::Tier { tier: b, block: to }) => {
            a == b && from.plus(before.len) == to
        }
        _ => false,
    }
}

fn page(extents: &[PlacedExtent], next: Option<u64>) -> String {
    let rows: Vec<String> = extents.iter().map(row).collect();
    let next = next.map_or_else(|| "null".to_owned(), |next| next.to_string());
    format!("{{\"extents\":[{}],\"next\":{next}}}", rows.join(","))
}

fn row(extent: &PlacedExtent) -> String {
    let place = match extent.place {
        Place::Hole => "\"place\":\"hole\"".to_owned(),
        Place::Pm(block) => format!("\"place\":\"pm\",\"block\":{}", block.0),
        Place::UnwrittenOnTier { tier, block } => {
            format!("\"place\":\"unwritten\",\"tier\":{tier},\"block\":{}", block.0)
        }
        Place::Unwritten(block) => format!("\"place\":\"unwritten\",\"block\":{}", block.0),
        Place::Tier { tier, block } => format!("\"place\":\"tier\",\"tier\":{tier},\"block\":{}", block.0),
    };
    format!("{{\"start\":{},\"len\":{},{place}}}", extent.start.0, extent.len)
}

#[cfg(test)]
mod tests {
    use nacre_engine::{Block, FileBlock, Place, PlacedExtent};

    use super::{EXTENTS_PER_PAGE, append, number, page};

    fn extent(start: u64, len: u64, place: Place) -> PlacedExtent {
        PlacedExtent { start: FileBlock(start), len, place }
    }

    #[test]
    fn what_continues_is_one_extent() {
        let mut found = Vec::new();
        append(&mut found, extent(0, 4, Place::Pm(Block(10))));
        append(&mut found, extent(4, 2, Place::Pm(Block(14))));
        append(&mut found, extent(6, 1, Place::Pm(Block(17))));
        append(&mut found, extent(7, 8, Place::Hole));
        append(&mut found, extent(15, 8, Place::Hole));
        assert_eq!(
            page(&found, Some(23)),
            "{\"extents\":[{\"start\":0,\"len\":6,\"place\":\"pm\",\"block\":10},\
             {\"start\":6,\"len\":1,\"place\":\"pm\",\"block\":17},\
             {\"start\":7,\"len\":16,\"place\":\"hole\"}],\"next\":23}"
        );
    }

    #[test]
    fn the_longest_page_fits_the_kernel() {
        let place = Place::Tier { tier: u8::MAX, block: Block(u64::MAX) };
        let extents = vec![extent(u64::MAX, u64::MAX, place); EXTENTS_PER_PAGE];
        assert!(page(&extents, Some(u64::MAX)).len() <= 65536);
    }

    #[test]
    fn only_numbers_are_numbers() {
        assert_eq!(number(b"17"), Some(17));
        assert_eq!(number(b"-1"), None);
        assert_eq!(number(b""), None);
    }
}
