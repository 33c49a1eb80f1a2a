//! A way through all directories, a step at a time.

use std::ops::ControlFlow;

use nacre_engine::{FileKind, InodeId, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::places::Places;

/// Names that are read of a directory at once.
pub(crate) const AT_ONCE: usize = 256;

/// A way through all directories.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    /// Directories that are not done, and the cookie of the last name in each that is; the last one goes on. There are
    /// as many at the most as a directory's names that are read at once, for each directory above.
    waiting: Vec<(InodeId, u64)>,
}

impl Trail {
    pub(crate) fn goes_on(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn begin(&mut self, root: InodeId) {
        self.waiting.push((root, 0));
    }
}

/// The files found in a part of a directory.
pub(crate) struct Found {
    /// How many names were looked at.
    pub(crate) names: usize,
    /// Files among them.
    pub(crate) files: Vec<InodeId>,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// Goes on by this many names, at most; nothing at the end of the way.
    pub(crate) fn advance(&self, trail: &mut Trail, most: usize) -> Option<Found> {
        let (dir, after) = trail.waiting.pop()?;
        let mut names = Vec::new();
        // A directory that was removed meanwhile, or cannot be read, has nothing for us.
        if let Ok(node) = self.layout.node(dir) {
            let _ = self.layout.read_dir(&node, after, &mut |entry| {
                names.push((entry.cookie, entry.id, entry.kind));
                if names.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        if let Some((cookie, ..)) = names.last().filter(|_| names.len() == most) {
            trail.waiting.push((dir, *cookie));
        }
        let mut found = Found { names: names.len(), files: Vec::new() };
        for (_, id, kind) in names {
            match kind {
                FileKind::Directory => trail.waiting.push((id, 0)),
                FileKind::Regular => found.files.push(id),
                _ => {}
            }
        }
        Some(found)
    }
}
