//! A rough idea of which names exist, so that most operations of a sequence meet something.

use nacre_engine::{FileKind, RenameMode};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use super::op::{Op, Path, Who};

/// The names that exist after the operations of a sequence that succeeded, and the kind of each. Two names of one inode
/// that were renamed onto each other may both stay; being wrong now and then does no harm.
#[derive(Default)]
pub(super) struct Guess {
    names: Vec<(Path, FileKind)>,
}

impl Guess {
    /// Something that should exist.
    pub(super) fn any(&self, rng: &mut SmallRng) -> Option<Path> {
        self.names.choose(rng).map(|(path, _)| path.clone())
    }

    /// Something that should exist and is no directory.
    pub(super) fn file(&self, rng: &mut SmallRng) -> Option<Path> {
        self.one_of(rng, |kind, _| kind != FileKind::Directory)
    }

    /// Something of this kind that should exist.
    pub(super) fn of_kind(&self, rng: &mut SmallRng, wanted: FileKind) -> Option<Path> {
        self.one_of(rng, |kind, _| kind == wanted)
    }

    /// A directory that should exist; the root, too.
    pub(super) fn directory(&self, rng: &mut SmallRng) -> Path {
        self.of_kind(rng, FileKind::Directory).unwrap_or(Path(Vec::new()))
    }

    /// A directory that should exist and have nothing in it.
    pub(super) fn empty_directory(&self, rng: &mut SmallRng) -> Option<Path> {
        self.one_of(rng, |kind, path| kind == FileKind::Directory && self.is_empty(path))
    }

    fn one_of(&self, rng: &mut SmallRng, wanted: impl Fn(FileKind, &Path) -> bool) -> Option<Path> {
        let all: Vec<_> = self.names.iter().filter(|(path, kind)| wanted(*kind, path)).collect();
        all.choose(rng).map(|(path, _)| path.clone())
    }

    /// Takes note of an operation that succeeded.
    pub(super) fn note(&mut self, op: &Op) {
        match op {
            Op::Create { path, kind, .. } => self.insert(path, *kind),
            Op::Link { node, path } => {
                let kind = match node {
                    Who::Path(path) => self.find(path),
                    Who::Slot(_) => None,
                };
                self.insert(path, kind.unwrap_or(FileKind::Regular));
            }
            Op::Unlink { path } | Op::Rmdir { path } => self.remove(path),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            _ => {}
        }
    }

    fn find(&self, path: &Path) -> Option<FileKind> {
        if path.0.is_empty() {
            return Some(FileKind::Directory);
        }
        self.names.iter().find(|(name, _)| name == path).map(|(_, kind)| *kind)
    }

    fn is_empty(&self, path: &Path) -> bool {
        !self.names.iter().any(|(name, _)| is_below(name, path))
    }

    fn insert(&mut self, path: &Path, kind: FileKind) {
        if self.find(path).is_none() {
            self.names.push((path.clone(), kind));
        }
    }

    fn remove(&mut self, path: &Path) {
        self.names.retain(|(name, _)| name != path);
    }

    fn rename(&mut self, from: &Path, to: &Path, mode: RenameMode) {
        if from == to {
            return;
        }
        if mode != RenameMode::Exchange {
            self.remove(to);
        }
        let had = self.find(from).is_some();
        for (name, _) in &mut self.names {
            for (old, new) in [(from, to), (to, from)] {
                if name == old || is_below(name, old) {
                    *name = Path([&new.0[..], &name.0[old.0.len()..]].concat());
                    break;
                }
            }
        }
        if had && matches!(mode, RenameMode::Whiteout { .. }) {
            self.insert(from, FileKind::CharDevice);
        }
    }
}

fn is_below(path: &Path, dir: &Path) -> bool {
    path.0.len() > dir.0.len() && path.0.starts_with(&dir.0)
}
