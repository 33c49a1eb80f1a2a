//! Making random calls. The generator learns from the answers which names exist, so that most calls meet something.

use nacre_engine::{BLOCK_SIZE, FallocateMode, FileKind, RenameMode, SeekTo, XattrMode};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::call::{Bytes, Call, SLOTS, plain_time};
use super::play::Answer;
use crate::suite::{Open, SetTime};

pub(super) struct Generator {
    rng: SmallRng,
    /// What should exist, and whether it is a directory.
    known: Vec<(Vec<u8>, FileKind)>,
    remount_every: Option<u32>,
}

impl Generator {
    pub(super) fn new(seed: u64, remount_every: Option<u32>) -> Generator {
        Generator { rng: SmallRng::seed_from_u64(seed), known: Vec::new(), remount_every }
    }

    /// Takes note of what a call came to.
    pub(super) fn learn(&mut self, call: &Call, answer: &Answer) {
        if matches!(answer, Answer::Failed(_)) {
            return;
        }
        match call {
            Call::Open { path, how, .. } if how.create => self.insert(&path.0, FileKind::Regular),
            Call::Mkdir { path, .. } => self.insert(&path.0, FileKind::Directory),
            Call::Symlink { path, .. } => self.insert(&path.0, FileKind::Symlink),
            Call::Mknod { path, .. } => self.insert(&path.0, FileKind::Regular),
            Call::Link { from, to } => {
                let kind = self.kind(&from.0).unwrap_or(FileKind::Regular);
                self.insert(&to.0, kind);
            }
            Call::Unlink { path } | Call::Rmdir { path } => self.known.retain(|(name, _)| *name != path.0),
            Call::Rename { from, to, mode } => self.renamed(&from.0, &to.0, *mode),
            _ => {}
        }
    }

    fn kind(&self, path: &[u8]) -> Option<FileKind> {
        self.known.iter().find(|(name, _)| name == path).map(|(_, kind)| *kind)
    }

    fn insert(&mut self, path: &[u8], kind: FileKind) {
        if self.kind(path).is_none() {
            self.known.push((path.to_vec(), kind));
        }
    }

    fn renamed(&mut self, from: &[u8], to: &[u8], mode: RenameMode) {
        if from == to {
            return;
        }
        if mode != RenameMode::Exchange {
            self.known.retain(|(name, _)| name != to);
        }
        for (name, _) in &mut self.known {
            for (old, new) in [(from, to), (to, from)] {
                if let Some(rest) = name.strip_prefix(old)
                    && (rest.is_empty() || rest[0] == b'/')
                {
                    *name = [new, rest].concat();
                    break;
                }
            }
        }
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        *choices.choose(&mut self.rng).expect("a choice")
    }

    fn name(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..60) {
            0 => vec![b'l'; 255],
            1 => vec![b't'; 256],
            2 => b"any \n\xff byte".to_vec(),
            3 => b".".to_vec(),
            4 => b"..".to_vec(),
            _ => vec![b'a' + self.rng.random_range(0..8)],
        }
    }

    /// Something that should exist.
    fn there(&mut self, wanted: impl Fn(FileKind) -> bool) -> Option<Vec<u8>> {
        let all: Vec<_> = self.known.iter().filter(|(_, kind)| wanted(*kind)).collect();
        all.choose(&mut self.rng).map(|(name, _)| name.clone())
    }

    /// A directory, mostly one that exists; empty for the root.
    fn directory(&mut self) -> Vec<u8> {
        if self.rng.random_ratio(1, 3) {
            return Vec::new();
        }
        self.there(|kind| kind == FileKind::Directory).unwrap_or_default()
    }

    /// A name in a directory that mostly exists.
    fn new_path(&mut self) -> Bytes {
        let mut path = if self.rng.random_ratio(1, 15) {
            self.there(|kind| kind != FileKind::Directory).unwrap_or_default()
        } else {
            self.directory()
        };
        let depth = path.iter().filter(|byte| **byte == b'/').count();
        if depth > 3 {
            path.clear();
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(self.name());
        if self.rng.random_ratio(1, 40) {
            path.push(b'/');
        }
        Bytes(path)
    }

    /// Mostly something that exists and is of a kind that is wanted.
    fn path_of(&mut self, wanted: impl Fn(FileKind) -> bool) -> Bytes {
        match self.rng.random_range(0..12) {
            0 => self.new_path(),
            1 => Bytes(self.there(|_| true).unwrap_or_default()),
            _ => match self.there(wanted) {
                Some(mut path) => {
                    match self.rng.random_range(0..40) {
                        0 => path.push(b'/'),
                        1 => path.extend(b"/."),
                        2 => path.extend(b"/.."),
                        3 => path = [b"./".as_slice(), &path].concat(),
                        _ => {}
                    }
                    Bytes(path)
                }
                None => self.new_path(),
            },
        }
    }

    fn path(&mut self) -> Bytes {
        self.path_of(|_| true)
    }

    fn content_path(&mut self) -> Bytes {
        self.path_of(|kind| matches!(kind, FileKind::Regular | FileKind::Symlink))
    }

    fn slot(&mut self) -> u8 {
        self.rng.random_range(0..SLOTS)
    }

    fn offset(&mut self) -> u64 {
        let block = self.rng.random_range(0..40) * BLOCK_SIZE;
        match self.rng.random_range(0..20) {
            0..6 => block,
            6 => block + 1,
            7 => block + BLOCK_SIZE - 1,
            8 => self.pick(&[(1 << 31) - 1, 1 << 32, (1 << 40) + 17]),
            _ => self.rng.random_range(0..40 * BLOCK_SIZE),
        }
    }

    fn len(&mut self) -> usize {
        match self.rng.random_range(0..12) {
            0..3 => BLOCK_SIZE as usize * self.rng.random_range(1..6),
            3..6 => self.rng.random_range(1..200),
            6 => 0,
            7 => self.rng.random_range(1..100_000),
            _ => self.rng.random_range(1..10_000),
        }
    }

    /// Never sticky: what the kernel forbids in sticky directories, whatever the file system, is a setting of the machine.
    fn mode(&mut self) -> u32 {
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..0o10000) & !0o1000,
            _ => self.pick(&[0o644, 0o600, 0o755, 0o4755, 0o2755, 0]),
        }
    }

    fn how(&mut self) -> Open {
        let (read, write) = self.pick(&[(true, false), (false, true), (true, true), (true, true)]);
        let mut how = Open { read, write, mode: self.mode(), ..Open::READ };
        how.create = self.rng.random_ratio(1, 2);
        how.exclusive = how.create && self.rng.random_ratio(1, 6);
        how.truncate = write && self.rng.random_ratio(1, 6);
        how.append = write && self.rng.random_ratio(1, 4);
        how.sync = self.rng.random_ratio(1, 10);
        how.no_follow = self.rng.random_ratio(1, 10);
        how.directory = !how.create && self.rng.random_ratio(1, 20);
        how
    }

    fn time(&mut self) -> SetTime {
        match self.rng.random_range(0..4) {
            0 => SetTime::Omit,
            1 => SetTime::Now,
            _ => SetTime::At(plain_time(self.rng.random())),
        }
    }

    /// The next call.
    pub(super) fn call(&mut self) -> Call {
        if self.remount_every.is_some_and(|every| self.rng.random_ratio(1, every)) {
            return if self.rng.random() { Call::Remount } else { Call::Crash };
        }
        match self.rng.random_range(0..10) {
            0..4 => self.content_call(),
            4..8 => self.name_call(),
            _ => self.attribute_call(),
        }
    }

    fn content_call(&mut self) -> Call {
        let slot = self.slot();
        match self.rng.random_range(0..30) {
            0..8 => {
                let path = if self.rng.random_ratio(1, 3) { self.new_path() } else { self.content_path() };
                Call::Open { slot, path, how: self.how() }
            }
            8 => Call::Close { slot },
            9..13 => Call::Pread { slot, offset: self.offset(), len: self.len() },
            13..18 => Call::Pwrite { slot, offset: self.offset(), len: self.len(), seed: self.rng.random() },
            18..21 => Call::Append { slot, len: self.len(), seed: self.rng.random() },
            21..23 => Call::Ftruncate { slot, size: self.offset() },
            23..26 => {
                let mode = self.pick(&[
                    FallocateMode::Allocate,
                    FallocateMode::AllocateKeepSize,
                    FallocateMode::PunchHole,
                    FallocateMode::ZeroRange,
                    FallocateMode::ZeroRangeKeepSize,
                ]);
                // Not at the far offsets: tmpfs has to find the memory.
                let offset = self.offset() % (64 * BLOCK_SIZE);
                Call::Fallocate { slot, mode, offset, len: self.len() as u64 }
            }
            26..28 => {
                let offset = self.offset() % (64 * BLOCK_SIZE);
                Call::Lseek { slot, offset, to: self.pick(&[SeekTo::Data, SeekTo::Hole]) }
            }
            28 => Call::Fsync { slot, only_data: self.rng.random() },
            _ => Call::Fstat { slot },
        }
    }

    fn name_call(&mut self) -> Call {
        match self.rng.random_range(0..30) {
            0..5 => Call::Mkdir { path: self.new_path(), mode: self.mode() },
            5..8 => {
                let path = self.path_of(|kind| kind == FileKind::Directory);
                Call::Rmdir { path }
            }
            8..12 => Call::Unlink { path: self.path_of(|kind| kind != FileKind::Directory) },
            12..15 => {
                let from = self.path_of(|kind| kind != FileKind::Directory);
                Call::Link { from, to: self.new_path() }
            }
            15..17 => {
                let target = match self.rng.random_range(0..8) {
                    0 => vec![b'z'; 300],
                    // Never upwards: what lies above the sequence's directory is not the same on both sides.
                    1 => b".".to_vec(),
                    2 => Vec::new(),
                    3 => [b"./a/".as_slice(), &[b'a' + self.rng.random_range(0..8)]].concat(),
                    4 => vec![b'z'; 4096],
                    _ => vec![b'a' + self.rng.random_range(0..8)],
                };
                Call::Symlink { target: Bytes(target), path: self.new_path() }
            }
            17 => Call::Mknod { path: self.new_path(), mode: self.mode() },
            18..26 => {
                let mode = self.pick(&[
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ]);
                let to = if self.rng.random() { self.new_path() } else { self.path() };
                Call::Rename { from: self.path(), to, mode }
            }
            26..28 => {
                let path = self.path_of(|kind| kind == FileKind::Directory);
                Call::Readdir { path, piece: self.pick(&[1, 2, 3, 100]) }
            }
            _ => Call::Readlink { path: self.path_of(|kind| kind == FileKind::Symlink) },
        }
    }

    fn attribute_call(&mut self) -> Call {
        let name = self.rng.random_range(0..4);
        let follow = self.rng.random_ratio(2, 3);
        match self.rng.random_range(0..24) {
            0..4 => Call::Stat { path: self.path(), follow },
            4..7 => Call::Chmod { path: self.path(), mode: self.mode() },
            7..10 => {
                let mut id = || self.rng.random_bool(0.6).then(|| self.rng.random_range(0..3000));
                let (uid, gid) = (id(), id());
                Call::Chown { path: self.path(), uid, gid, follow }
            }
            10..13 => {
                let (atime, mtime) = (self.time(), self.time());
                Call::Utimens { path: self.path(), atime, mtime, follow }
            }
            13..15 => Call::Truncate { path: self.content_path(), size: self.offset() },
            15 => Call::Fchmod { slot: self.slot(), mode: self.mode() },
            16..20 => {
                let how = self.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
                let len = self.pick(&[0, 1, 10, 100, 1000, 3000]);
                Call::Setxattr { path: self.path(), name, len, seed: self.rng.random(), how }
            }
            20..22 => Call::Getxattr { path: self.path(), name },
            22 => Call::Removexattr { path: self.path(), name },
            _ => Call::Listxattr { path: self.path() },
        }
    }
}
