//! Listing and removing directories.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use nacre_engine::{FileKind, Result};
use nacre_vfs::{Caller, Vfs};

use crate::fs::FileSystem;
use crate::layout::{AnyLayout, AnyNode};
use crate::metadata::Metadata;

/// Entries that are fetched at once.
const BATCH: usize = 256;

/// An entry of a directory, as it was when it was listed.
#[derive(Debug, Clone)]
pub struct DirEntry {
    listed: Arc<Listed>,
    name: OsString,
    kind: FileKind,
    number: u64,
}

/// The common state of the entries of one listing.
#[derive(Debug)]
struct Listed {
    fs: FileSystem,
    path: PathBuf,
}

impl DirEntry {
    /// Its name.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The path of the directory, as it was given, with the name.
    pub fn path(&self) -> PathBuf {
        self.listed.path.join(&self.name)
    }

    /// The kind of the object that it refers to.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// The inode number of the object that it refers to.
    pub fn ino(&self) -> u64 {
        self.number
    }

    /// The attributes of the object that has this name by now; symbolic links are not followed.
    pub fn metadata(&self) -> Result<Metadata> {
        self.listed.fs.symlink_metadata(self.path())
    }
}

/// The entries of a directory. Entries made or removed meanwhile may or may not appear; every other entry appears once.
pub struct ReadDir {
    listed: Arc<Listed>,
    node: AnyNode,
    batch: VecDeque<DirEntry>,
    cookie: u64,
    done: bool,
}

impl ReadDir {
    pub(crate) fn new(fs: FileSystem, node: AnyNode, path: PathBuf) -> Result<ReadDir> {
        let listed = Arc::new(Listed { fs, path });
        let mut entries = ReadDir { listed, node, batch: VecDeque::new(), cookie: 0, done: false };
        entries.fetch()?;
        Ok(entries)
    }

    fn fetch(&mut self) -> Result<()> {
        let ReadDir { listed, node, batch, cookie, .. } = self;
        let inner = &listed.fs.inner;
        inner.vfs.read_dir(&inner.identity.caller(), node, *cookie, &mut |entry| {
            *cookie = entry.cookie;
            if !matches!(entry.name, b"." | b"..") {
                batch.push_back(DirEntry {
                    listed: listed.clone(),
                    name: OsString::from_vec(entry.name.to_vec()),
                    kind: entry.kind,
                    number: entry.id.number,
                });
            }
            if batch.len() == BATCH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.done = self.batch.len() < BATCH;
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.batch.is_empty()
            && !self.done
            && let Err(error) = self.fetch()
        {
            self.done = true;
            return Some(Err(error));
        }
        self.batch.pop_front().map(Ok)
    }
}

/// A directory that is to be removed once it is empty.
struct Doomed {
    parent: AnyNode,
    name: Vec<u8>,
    node: AnyNode,
}

/// Removes a directory and everything below it.
pub(crate) fn remove_tree(
    vfs: &Vfs<AnyLayout>,
    caller: &Caller<'_>,
    parent: &AnyNode,
    name: &[u8],
    node: AnyNode,
) -> Result<()> {
    let mut stack = vec![Doomed { parent: parent.clone(), name: name.to_vec(), node }];
    while let Some(doomed) = stack.last() {
        let dir = doomed.node.clone();
        let batch = list(vfs, caller, &dir)?;
        if batch.is_empty() {
            vfs.rmdir(caller, &doomed.parent, &doomed.name)?;
            stack.pop();
            continue;
        }
        for (name, kind) in batch {
            if kind == FileKind::Directory {
                let node = vfs.lookup(caller, &dir, OsStr::new(&name).as_bytes())?;
                stack.push(Doomed { parent: dir.clone(), name: name.into_vec(), node });
            } else {
                vfs.unlink(caller, &dir, name.as_bytes())?;
            }
        }
    }
    Ok(())
}

/// The first entries of a directory.
fn list(vfs: &Vfs<AnyLayout>, caller: &Caller<'_>, dir: &AnyNode) -> Result<Vec<(OsString, FileKind)>> {
    let mut batch = Vec::new();
    vfs.read_dir(caller, dir, 2, &mut |entry| {
        batch.push((OsString::from_vec(entry.name.to_vec()), entry.kind));
        if batch.len() == BATCH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(batch)
}
