//! A rough idea of which names exist, so that most operations of a sequence meet something.

use nacre_engine::{FileKind, RenameMode};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use super::op::{Op, Path};

/// The names that should exist after a sequence, and whether each is a directory. Flags and the longest names are not
/// thought of: being wrong now and then does no harm.
#[derive(Default)]
pub(super) struct Guess {
    names: Vec<(Path, bool)>,
}

impl Guess {
    /// Something that should exist.
    pub(super) fn any(&self, rng: &mut SmallRng) -> Option<Path> {
        self.names.choose(rng).map(|(path, _)| path.clone())
    }

    /// Something that should exist and is no directory.
    pub(super) fn file(&self, rng: &mut SmallRng) -> Option<Path> {
        let all: Vec<_> = self.names.iter().filter(|(_, directory)| !directory).collect();
        all.choose(rng).map(|(path, _)| path.clone())
    }

    /// A directory that should exist; the root, too.
    pub(super) fn directory(&self, rng: &mut SmallRng) -> Path {
        let all: Vec<_> = self.names.iter().filter(|(_, directory)| *directory).collect();
        all.choose(rng).map_or(Path(Vec::new()), |(path, _)| path.clone())
    }

    /// Takes note of an operation.
    pub(super) fn note(&mut self, op: &Op) {
        match op {
            Op::Create { path, kind, .. } => self.insert(path, *kind == FileKind::Directory),
            Op::Link { path, .. } => self.insert(path, false),
            Op::Unlink { path } if self.find(path) == Some(false) => self.remove(path),
            Op::Rmdir { path } if self.find(path) == Some(true) && self.is_empty(path) => self.remove(path),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            _ => {}
        }
    }

    fn find(&self, path: &Path) -> Option<bool> {
        if path.0.is_empty() {
            return Some(true);
        }
        self.names.iter().find(|(name, _)| name == path).map(|(_, directory)| *directory)
    }

    fn is_empty(&self, path: &Path) -> bool {
        !self.names.iter().any(|(name, _)| is_below(name, path))
    }

    fn insert(&mut self, path: &Path, directory: bool) {
        let parent = Path(path.0[..path.0.len().saturating_sub(1)].to_vec());
        if self.find(&parent) == Some(true) && self.find(path).is_none() {
            self.names.push((path.clone(), directory));
        }
    }

    fn remove(&mut self, path: &Path) {
        self.names.retain(|(name, _)| name != path);
    }

    fn rename(&mut self, from: &Path, to: &Path, mode: RenameMode) {
        let (Some(source), target) = (self.find(from), self.find(to)) else { return };
        let impossible = match (mode, target) {
            (RenameMode::NoReplace, Some(_)) | (RenameMode::Exchange, None) => true,
            (RenameMode::Replace, Some(target)) => target != source || !self.is_empty(to),
            _ => false,
        };
        if impossible || from == to || is_below(to, from) || is_below(from, to) {
            return;
        }
        if mode == RenameMode::Replace {
            self.remove(to);
        }
        for (name, _) in &mut self.names {
            for (old, new) in [(from, to), (to, from)] {
                if name == old || is_below(name, old) {
                    *name = Path([&new.0[..], &name.0[old.0.len()..]].concat());
                    break;
                }
            }
        }
    }
}

fn is_below(path: &Path, dir: &Path) -> bool {
    path.0.len() > dir.0.len() && path.0.starts_with(&dir.0)
}
