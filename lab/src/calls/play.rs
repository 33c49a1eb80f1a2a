//! Runs the calls of a sequence, and collects their answers.

use std::fmt;
use std::io::IoSlice;

use nacre_engine::{FileKind, Kind, Timestamp};

use super::call::{CLOCK, Call, SLOTS, xattr_name};
use crate::suite::{File, Open, Outcome, Stat, Target};

/// The answer to a call, as far as two file systems must agree on it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Failed(Kind),
    Bytes(Vec<u8>),
    Number(u64),
    Stat(Shown),
    Names(Vec<Vec<u8>>),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => write!(f, "success"),
            Answer::Failed(kind) => write!(f, "{kind:?}"),
            Answer::Bytes(bytes) => {
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                let start = bytes[..bytes.len().min(24)].escape_ascii();
                write!(f, "{} bytes, {zeros} zeros first, \"{start}\"", bytes.len())
            }
            Answer::Number(number) => write!(f, "{number}"),
            Answer::Stat(stat) => write!(f, "{stat:?}"),
            Answer::Names(names) => {
                write!(
                    f,
                    "{:?}",
                    names.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>()
                )
            }
        }
    }
}

/// The result of stat(2), without fields that depend on the clock, the file system, or earlier inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    kind: FileKind,
    mode: u32,
    links: u64,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    /// Set only if utimensat(2) set it; a time from the clock is not compared.
    mtime: Option<Timestamp>,
}

impl Shown {
    pub(super) fn new(stat: &Stat, exact_allocation: bool) -> Shown {
        let is_directory = stat.kind == FileKind::Directory;
        Shown {
            kind: stat.kind,
            mode: stat.mode,
            links: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            size: if is_directory { 0 } else { stat.size },
            allocated: if exact_allocation && stat.kind == FileKind::Regular { stat.allocated } else { 0 },
            mtime: (stat.mtime.secs < CLOCK).then_some(stat.mtime),
        }
    }
}

/// A target during a part of a sequence in which it stays mounted. Everything happens below one directory.
pub(super) struct Player<'t> {
    target: &'t dyn Target,
    dir: Vec<u8>,
    files: Vec<Option<(Box<dyn File + 't>, Open)>>,
    exact_allocation: bool,
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_add((at / 64) as u8).max(1)).collect()
}

impl<'t> Player<'t> {
    pub(super) fn new(target: &'t dyn Target, dir: &[u8], exact_allocation: bool) -> Player<'t> {
        let files = (0..SLOTS).map(|_| None).collect();
        Player { target, dir: dir.to_vec(), files, exact_allocation }
    }

    fn at(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.dir.clone() } else { [&self.dir, b"/".as_slice(), path].concat() }
    }

    fn show(&self, stat: Stat) -> Answer {
        Answer::Stat(Shown::new(&stat, self.exact_allocation))
    }

    /// How the file in a slot was opened; `None` when there is none.
    pub(super) fn is_open(&self, slot: u8) -> Option<Open> {
        self.files[usize::from(slot)].as_ref().map(|(_, how)| *how)
    }

    /// Whether a directory is open in a slot.
    pub(super) fn is_directory(&self, slot: u8) -> bool {
        let file = self.files[usize::from(slot)].as_ref();
        file.is_some_and(|(file, _)| file.stat().is_ok_and(|stat| stat.kind == FileKind::Directory))
    }

    /// Makes a call. `None` when it is about a slot with nothing open.
    pub(super) fn play(&mut self, call: &Call) -> Option<Answer> {
        let outcome = match call {
            Call::Open { slot, path, how } => {
                // The file that was open is closed first, so that the order of close and open is the same everywhere.
                self.files[usize::from(*slot)] = None;
                self.target.open(&self.at(&path.0), *how).map(|file| {
                    self.files[usize::from(*slot)] = Some((file, *how));
                    Answer::Done
                })
            }
            Call::Close { slot } => {
                self.files[usize::from(*slot)].take()?;
                Ok(Answer::Done)
            }
            Call::Pread { slot, .. }
            | Call::Pwrite { slot, .. }
            | Call::Append { slot, .. }
            | Call::Ftruncate { slot, .. }
            | Call::Fallocate { slot, .. }
            | Call::Lseek { slot, .. }
            | Call::Fsync { slot, .. }
            | Call::Fstat { slot }
            | Call::Fchmod { slot, .. } => {
                let (file, _) = self.files[usize::from(*slot)].as_ref()?;
                self.on_file(call, file.as_ref())
            }
            _ => self.on_path(call),
        };
        Some(outcome.unwrap_or_else(Answer::Failed))
    }

    fn on_file(&self, call: &Call, file: &dyn File) -> Outcome<Answer> {
        match call {
            Call::Pread { offset, len, .. } => {
                let mut buffer = vec![0xEE; *len];
                let count = file.read_at(*offset, &mut buffer)?;
                buffer.truncate(count);
                Ok(Answer::Bytes(buffer))
            }
            Call::Pwrite { offset, len, seed, .. } => {
                let bytes = pattern(*seed, *len);
                file.write_vectored_at(*offset, &[IoSlice::new(&bytes)]).map(|n| Answer::Number(n as u64))
            }
            Call::Append { len, seed, .. } => {
                file.append(&pattern(*seed, *len)).map(|n| Answer::Number(n as u64))
            }
            Call::Ftruncate { size, .. } => file.set_len(*size).map(|()| Answer::Done),
            Call::Fallocate { mode, offset, len, .. } => {
                file.fallocate(*mode, *offset, *len).map(|()| Answer::Done)
            }
            Call::Lseek { offset, to, .. } => file.seek(*offset, *to).map(Answer::Number),
            Call::Fsync { only_data, .. } => file.sync(*only_data).map(|()| Answer::Done),
            Call::Fstat { .. } => file.stat().map(|stat| self.show(stat)),
            Call::Fchmod { mode, .. } => file.chmod(*mode).map(|()| Answer::Done),
            _ => unreachable!("a call on an open file"),
        }
    }

    fn on_path(&self, call: &Call) -> Outcome<Answer> {
        let target = self.target;
        let done = |()| Answer::Done;
        match call {
            Call::Stat { path, follow } => {
                target.stat(&self.at(&path.0), *follow).map(|stat| self.show(stat))
            }
            Call::Mkdir { path, mode } => target.mkdir(&self.at(&path.0), *mode).map(done),
            Call::Rmdir { path } => target.rmdir(&self.at(&path.0)).map(done),
            Call::Unlink { path } => target.unlink(&self.at(&path.0)).map(done),
            Call::Link { from, to } => target.link(&self.at(&from.0), &self.at(&to.0)).map(done),
            Call::Symlink { target: to, path } => target.symlink(&to.0, &self.at(&path.0)).map(done),
            Call::Readlink { path } => target.read_link(&self.at(&path.0)).map(Answer::Bytes),
            Call::Mknod { path, mode } => {
                target.mknod(&self.at(&path.0), FileKind::Regular, *mode, 0).map(done)
            }
            Call::Rename { from, to, mode } => {
                target.rename(&self.at(&from.0), &self.at(&to.0), *mode).map(done)
            }
            Call::Readdir { path, piece } => self.names(&self.at(&path.0), *piece),
            Call::Truncate { path, size } => target.truncate(&self.at(&path.0), *size).map(done),
            Call::Chmod { path, mode } => target.chmod(&self.at(&path.0), *mode).map(done),
            Call::Chown { path, uid, gid, follow } => {
                target.chown(&self.at(&path.0), *uid, *gid, *follow).map(done)
            }
            Call::Utimens { path, atime, mtime, follow } => {
                target.set_times(&self.at(&path.0), *atime, *mtime, *follow).map(done)
            }
            Call::Getxattr { path, name } => {
                target.get_xattr(&self.at(&path.0), &xattr_name(*name)).map(Answer::Bytes)
            }
            Call::Setxattr { path, name, len, seed, how } => {
                target.set_xattr(&self.at(&path.0), &xattr_name(*name), &pattern(*seed, *len), *how).map(done)
            }
            Call::Removexattr { path, name } => {
                target.remove_xattr(&self.at(&path.0), &xattr_name(*name)).map(done)
            }
            Call::Listxattr { path } => {
                let mut names = target.list_xattrs(&self.at(&path.0))?;
                names.sort();
                Ok(Answer::Names(names))
            }
            _ => unreachable!("a call on a path"),
        }
    }

    /// The names in a directory, read in pieces, in order.
    fn names(&self, path: &[u8], piece: usize) -> Outcome<Answer> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let listed = self.target.read_dir(path, cookie, piece)?;
            let Some(last) = listed.last() else { break };
            cookie = last.cookie;
            names.extend(listed.into_iter().map(|entry| entry.name));
        }
        names.sort();
        Ok(Answer::Names(names))
    }

    /// Everything below a path: names, attributes, contents.
    pub(super) fn tree(&self, path: &[u8], seen: &mut Vec<(Vec<u8>, Vec<Answer>)>) -> Result<(), String> {
        let full = self.at(path);
        let failed = |what: &str, kind: Kind| format!("{what} of \"{}\": {kind:?}", path.escape_ascii());
        let stat = self.target.stat(&full, false).map_err(|kind| failed("stat", kind))?;
        let mut about = vec![self.show(stat)];
        match stat.kind {
            FileKind::Regular => {
                let file = self.target.open(&full, Open::READ).map_err(|kind| failed("open", kind))?;
                // Sparse files are compared where they have something.
                let len = stat.size.min(1 << 20) as usize;
                let mut bytes = vec![0; len];
                let count = file.read_at(0, &mut bytes).map_err(|kind| failed("read", kind))?;
                bytes.truncate(count);
                about.push(Answer::Bytes(bytes));
            }
            FileKind::Symlink => {
                let target = self.target.read_link(&full).map_err(|kind| failed("readlink", kind))?;
                about.push(Answer::Bytes(target));
            }
            _ => {}
        }
        if matches!(stat.kind, FileKind::Regular | FileKind::Directory) {
            let mut names = self.target.list_xattrs(&full).map_err(|kind| failed("listxattr", kind))?;
            names.sort();
            for name in &names {
                let value = self.target.get_xattr(&full, name).map_err(|kind| failed("getxattr", kind))?;
                about.push(Answer::Bytes(value));
            }
            about.push(Answer::Names(names));
        }
        seen.push((path.to_vec(), about));
        if stat.kind == FileKind::Directory {
            let Answer::Names(names) = self.names(&full, 100).map_err(|kind| failed("readdir", kind))? else {
                unreachable!("names are names")
            };
            for name in names {
                let below = if path.is_empty() { name } else { [path, b"/", &name].concat() };
                self.tree(&below, seen)?;
            }
        }
        Ok(())
    }

    /// Removes everything below a path, and it.
    pub(super) fn remove(&self, path: &[u8]) -> Result<(), String> {
        let failed = |kind: Kind| format!("removing \"{}\": {kind:?}", path.escape_ascii());
        let full = self.at(path);
        if self.target.stat(&full, false).map_err(failed)?.kind != FileKind::Directory {
            return self.target.unlink(&full).map_err(failed);
        }
        let Answer::Names(names) = self.names(&full, 100).map_err(failed)? else {
            unreachable!("names are names")
        };
        for name in names {
            self.remove(&if path.is_empty() { name } else { [path, b"/", &name].concat() })?;
        }
        self.target.rmdir(&full).map_err(failed)
    }
}
