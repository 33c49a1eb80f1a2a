//! The operations of a worker, on a tree in DRAM, on a directory, and as a line of the ledger.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};

use super::tree::{Contents, Entry, Tree};
use super::{BLOCK, TEMPORARY, content};

/// A change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Append {
        seed: u64,
        len: u64,
    },
    /// Overwrite one block.
    Overwrite {
        block: u64,
        seed: u64,
    },
    /// Shorten the file, or extend it by a hole.
    Truncate {
        len: u64,
    },
    /// Punch a hole.
    Punch {
        offset: u64,
        len: u64,
    },
    SetXattr {
        key: String,
        seed: u64,
        len: u64,
    },
    RemoveXattr {
        key: String,
    },
    /// Call fsync, and nothing else.
    Sync,
}

/// One operation of a worker on its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    Change {
        name: String,
        change: Change,
    },
    /// Write a temporary file, and rename it over the name.
    Replace {
        name: String,
        seed: u64,
        len: u64,
    },
    /// Rename an entry, possibly over a file.
    Rename {
        from: String,
        to: String,
    },
    /// Exchange the names of two entries.
    Exchange {
        one: String,
        other: String,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        target: String,
        name: String,
    },
    MakeDirectory {
        name: String,
    },
    RemoveDirectory {
        name: String,
    },
    Unlink {
        name: String,
    },
}

impl Change {
    /// The verb, and the words after the name of the file.
    fn to_words(&self) -> (&'static str, String) {
        match self {
            Change::Append { seed, len } => ("append", format!("{seed} {len}")),
            Change::Overwrite { block, seed } => ("overwrite", format!("{block} {seed}")),
            Change::Truncate { len } => ("truncate", format!("{len}")),
            Change::Punch { offset, len } => ("punch", format!("{offset} {len}")),
            Change::SetXattr { key, seed, len } => ("setxattr", format!("{key} {seed} {len}")),
            Change::RemoveXattr { key } => ("removexattr", key.clone()),
            Change::Sync => ("fsync", String::new()),
        }
    }

    fn from_words(verb: &str, words: &[&str]) -> Option<Change> {
        let number = |index: usize| words.get(index)?.parse::<u64>().ok();
        let key = || words.first().map(|word| (*word).to_owned());
        Some(match verb {
            "append" => Change::Append { seed: number(0)?, len: number(1)? },
            "overwrite" => Change::Overwrite { block: number(0)?, seed: number(1)? },
            "truncate" => Change::Truncate { len: number(0)? },
            "punch" => Change::Punch { offset: number(0)?, len: number(1)? },
            "setxattr" => Change::SetXattr { key: key()?, seed: number(1)?, len: number(2)? },
            "removexattr" => Change::RemoveXattr { key: key()? },
            "fsync" => Change::Sync,
            _ => return None,
        })
    }

    fn apply(&self, file: &mut Contents) {
        match self {
            Change::Append { seed, len } => file.bytes.extend(content(*seed, *len)),
            Change::Overwrite { block, seed } => {
                let start = (block * BLOCK) as usize;
                file.bytes[start..start + BLOCK as usize].copy_from_slice(&content(*seed, BLOCK));
            }
            Change::Truncate { len } => file.bytes.resize(*len as usize, 0),
            Change::Punch { offset, len } => {
                let end = ((offset + len) as usize).min(file.bytes.len());
                file.bytes[*offset as usize..end].fill(0);
            }
            Change::SetXattr { key, seed, len } => {
                file.xattrs.insert(key.clone(), content(*seed, *len));
            }
            Change::RemoveXattr { key } => {
                file.xattrs.remove(key);
            }
            Change::Sync => {}
        }
    }

    fn perform(&self, path: &Path, sync: bool) -> io::Result<()> {
        let append = matches!(self, Change::Append { .. });
        let mut file = OpenOptions::new().append(append).write(true).open(path)?;
        match self {
            Change::Append { seed, len } => file.write_all(&content(*seed, *len))?,
            Change::Overwrite { block, seed } => file.write_all_at(&content(*seed, BLOCK), block * BLOCK)?,
            Change::Truncate { len } => file.set_len(*len)?,
            Change::Punch { offset, len } => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, hole, *offset, *len)?;
            }
            Change::SetXattr { key, seed, len } => {
                rustix::fs::setxattr(path, key.as_str(), &content(*seed, *len), XattrFlags::empty())?;
            }
            Change::RemoveXattr { key } => rustix::fs::removexattr(path, key.as_str())?,
            Change::Sync => file.sync_all()?,
        }
        if sync { file.sync_all() } else { Ok(()) }
    }
}

impl Operation {
    pub(super) fn to_line(&self) -> String {
        match self {
            Operation::Change { name, change } => {
                let (verb, rest) = change.to_words();
                format!("{verb} {name} {rest}").trim_end().to_owned()
            }
            Operation::Replace { name, seed, len } => format!("replace {name} {seed} {len}"),
            Operation::Rename { from, to } => format!("rename {from} {to}"),
            Operation::Exchange { one, other } => format!("exchange {one} {other}"),
            Operation::Link { from, to } => format!("link {from} {to}"),
            Operation::Symlink { target, name } => format!("symlink {target} {name}"),
            Operation::MakeDirectory { name } => format!("mkdir {name}"),
            Operation::RemoveDirectory { name } => format!("rmdir {name}"),
            Operation::Unlink { name } => format!("unlink {name}"),
        }
    }

    pub(super) fn from_words(words: &[&str]) -> Option<Operation> {
        let name = |index: usize| words.get(index).map(|word| (*word).to_owned());
        let number = |index: usize| words.get(index)?.parse::<u64>().ok();
        Some(match *words.first()? {
            "replace" => Operation::Replace { name: name(1)?, seed: number(2)?, len: number(3)? },
            "rename" => Operation::Rename { from: name(1)?, to: name(2)? },
            "exchange" => Operation::Exchange { one: name(1)?, other: name(2)? },
            "link" => Operation::Link { from: name(1)?, to: name(2)? },
            "symlink" => Operation::Symlink { target: name(1)?, name: name(2)? },
            "mkdir" => Operation::MakeDirectory { name: name(1)? },
            "rmdir" => Operation::RemoveDirectory { name: name(1)? },
            "unlink" => Operation::Unlink { name: name(1)? },
            verb => Operation::Change { name: name(1)?, change: Change::from_words(verb, &words[2..])? },
        })
    }

    /// Applies the operation to the expected state.
    pub(super) fn apply(&self, tree: &mut Tree) {
        match self {
            Operation::Change { name, change } => {
                if let Some(file) = tree.file_mut(name) {
                    change.apply(file);
                }
            }
            Operation::Replace { name, seed, len } => tree.put(name, content(*seed, *len)),
            Operation::Rename { from, to } => tree.rename(from, to),
            Operation::Exchange { one, other } => tree.exchange(one, other),
            Operation::Link { from, to } => tree.link(from, to),
            Operation::Symlink { target, name } => {
                tree.names.insert(name.clone(), Entry::Symlink(target.clone()));
            }
            Operation::MakeDirectory { name } => {
                tree.names.insert(name.clone(), Entry::Directory);
            }
            Operation::RemoveDirectory { name } | Operation::Unlink { name } => tree.remove(name),
        }
    }

    /// Applies the operation to the real directory, and makes it durable as `sync` says.
    pub(super) fn perform(&self, dir: &Path, sync: bool) -> io::Result<()> {
        let changed: &[&String] = match self {
            Operation::Change { name, change } => return change.perform(&dir.join(name), sync),
            Operation::Replace { name, seed, len } => {
                let temporary = dir.join(TEMPORARY);
                let mut file = File::create(&temporary)?;
                file.write_all(&content(*seed, *len))?;
                if sync {
                    file.sync_all()?;
                }
                drop(file);
                fs::rename(&temporary, dir.join(name))?;
                &[name]
            }
            Operation::Rename { from, to } => {
                fs::rename(dir.join(from), dir.join(to))?;
                &[from, to]
            }
            Operation::Exchange { one, other } => {
                let (from, to) = (dir.join(one), dir.join(other));
                rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE)?;
                &[one, other]
            }
            Operation::Link { from, to } => {
                fs::hard_link(dir.join(from), dir.join(to))?;
                &[to]
            }
            Operation::Symlink { target, name } => {
                std::os::unix::fs::symlink(target, dir.join(name))?;
                &[name]
            }
            Operation::MakeDirectory { name } => {
                fs::create_dir(dir.join(name))?;
                &[name]
            }
            Operation::RemoveDirectory { name } => {
                fs::remove_dir(dir.join(name))?;
                &[name]
            }
            Operation::Unlink { name } => {
                fs::remove_file(dir.join(name))?;
                &[name]
            }
        };
        if sync { changed.iter().try_for_each(|name| sync_parent(&dir.join(name))) } else { Ok(()) }
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().expect("a name is below the worker's directory"))?.sync_all()
}
