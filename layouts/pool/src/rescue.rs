//! Repairs that need free space: sets in place of those that a directory lost, and names in `/lost+found`. They are
//! operations as those of a mount, so that a crash leaves each done or not.

use nacre_engine::{FileKind, InodeId, NewInode, Result, Timestamp};
use nacre_media::Pm;

use crate::counts::Purpose;
use crate::format::{ROOT_INODE, RawInode};
use crate::fs::Shared;
use crate::inode::kind_of;
use crate::sets::Entry;

/// The directory of inodes that have lost their names, in the root.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// A node of a directory that lost words.
pub(crate) struct Branch {
    pub(crate) node: u64,
    /// The indices of words that nothing proves.
    pub(crate) lost: Vec<u64>,
}

/// The repairs of a volume that need free space.
#[derive(Default)]
pub(crate) struct Rescue {
    pub(crate) branches: Vec<Branch>,
    /// Inodes that no name leads to.
    pub(crate) nameless: Vec<u64>,
}

impl Rescue {
    /// The repair of an inode without a name.
    pub(crate) const GIVE_NAME: &str = "give it one in /lost+found";
    /// The repair of a directory's node.
    pub(crate) const GO_ON: &str = "go on without its names; their inodes get names in /lost+found";
    /// The repairs that are made here.
    pub(crate) const REPAIRS: [&str; 2] = [Rescue::GIVE_NAME, Rescue::GO_ON];

    pub(crate) fn is_empty(&self) -> bool {
        self.branches.is_empty() && self.nameless.is_empty()
    }

    /// Does all of them, in a volume whose free space is counted.
    pub(crate) fn run<P: Pm>(&self, fs: &Shared<P>) -> Result<()> {
        for Branch { node, lost } in &self.branches {
            fs.change(|change| {
                change.put_empty_sets(*node, lost)?;
                change.commit()
            })?;
        }
        if self.nameless.is_empty() {
            return Ok(());
        }
        let dir = lost_and_found(fs)?;
        self.nameless.iter().try_for_each(|&number| give_name(fs, dir, number))
    }
}

/// The directory of inodes that have lost their names. It is made where it is missing. Where something else has its
/// name, the root serves.
fn lost_and_found<P: Pm>(fs: &Shared<P>) -> Result<u64> {
    let _lock = fs.lock(&[ROOT_INODE]);
    let root = fs.read_inode(ROOT_INODE)?;
    if let Some(found) = fs.find_in(ROOT_INODE, &root, LOST_AND_FOUND)? {
        return Ok(if found.kind()? == FileKind::Directory { found.raw.inode } else { ROOT_INODE });
    }
    fs.make_room(ROOT_INODE, LOST_AND_FOUND, Purpose::Metadata)?;
    let now = modified(fs, &root);
    let new = NewInode::of_root(FileKind::Directory, 0o700, now);
    fs.change(|change| {
        let id = change.make_inode(&new, ROOT_INODE, 1, Purpose::Metadata)?;
        let entry = Entry { name: LOST_AND_FOUND, id, kind: FileKind::Directory };
        change.add_name(ROOT_INODE, &entry, Purpose::Metadata)?;
        change.commit()?;
        Ok(id.number)
    })
}

/// The time of the last change of a directory: a check has no clock.
fn modified<P: Pm>(fs: &Shared<P>, dir: &RawInode) -> Timestamp {
    fs.times.unpack(dir.mtime).unwrap_or_default()
}

/// Gives an inode the name `#NUMBER` in a directory. Its links are counted by the next pass.
fn give_name<P: Pm>(fs: &Shared<P>, dir: u64, number: u64) -> Result<()> {
    let _lock = fs.lock(&[dir, number]);
    let raw = fs.read_inode(number)?;
    let (kind, directory) = (kind_of(&raw)?, fs.read_inode(dir)?);
    let mut name = format!("#{number}");
    while fs.find_in(dir, &directory, name.as_bytes())?.is_some() {
        name.push('#');
    }
    fs.make_room(dir, name.as_bytes(), Purpose::Metadata)?;
    fs.change(|change| {
        let id = InodeId { number, generation: raw.generation, volume: fs.geometry.volume };
        change.add_name(dir, &Entry { name: name.as_bytes(), id, kind }, Purpose::Metadata)?;
        if kind == FileKind::Directory {
            change.edit(number)?.parent = dir;
        }
        change.commit()
    })
}
