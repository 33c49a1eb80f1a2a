//! Random calls. The generator learns from the answers which names and attributes exist and which files are open, so
//! that most calls meet something.

use nacre_engine::{BLOCK_SIZE, FallocateMode, FileKind, RenameMode, SeekTo, XattrMode};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::call::{Bytes, Call, SLOTS, plain_time};
use super::play::Answer;
use crate::suite::{Open, SetTime};

pub(super) struct Generator {
    rng: SmallRng,
    /// Paths that should exist, each with its kind.
    known: Vec<(Vec<u8>, FileKind)>,
    /// Extended attributes that were set lately: path and name.
    attributes: Vec<(Vec<u8>, u8)>,
    open: [Option<Open>; SLOTS as usize],
    remount_every: Option<u32>,
}

impl Generator {
    pub(super) fn new(seed: u64, remount_every: Option<u32>) -> Generator {
        let rng = SmallRng::seed_from_u64(seed);
        Generator {
            rng,
            known: Vec::new(),
            attributes: Vec::new(),
            open: [None; SLOTS as usize],
            remount_every,
        }
    }

    /// Records the answer to a call.
    pub(super) fn learn(&mut self, call: &Call, answer: &Answer) {
        if let Call::Open { slot, .. } = call {
            self.open[usize::from(*slot)] = None;
        }
        if matches!(answer, Answer::Failed(_)) {
            return;
        }
        match call {
            Call::Open { slot, path, how } => {
                self.open[usize::from(*slot)] = Some(*how);
                if how.create {
                    self.insert(&path.0, FileKind::Regular);
                }
            }
            Call::Close { slot } => self.open[usize::from(*slot)] = None,
            Call::Remount | Call::Crash => self.open = [None; SLOTS as usize],
            Call::Setxattr { path, name, .. } => {
                if self.attributes.len() == 4 {
                    self.attributes.remove(0);
                }
                self.attributes.push((path.0.clone(), *name));
            }
            Call::Removexattr { path, name } => {
                self.attributes.retain(|(other, number)| (other, number) != (&path.0, name));
            }
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

    /// Mostly one that was opened in a way that is wanted.
    fn slot_of(&mut self, wanted: impl Fn(&Open) -> bool) -> u8 {
        let fitting = |slot: &u8| self.open[usize::from(*slot)].as_ref().is_some_and(&wanted);
        let slots: Vec<u8> = (0..SLOTS).filter(fitting).collect();
        match slots.choose(&mut self.rng) {
            Some(&slot) if self.rng.random_ratio(7, 8) => slot,
            _ => self.slot(),
        }
    }

    fn slot_in_use(&mut self) -> u8 {
        self.slot_of(|_| true)
    }

    fn written_slot(&mut self) -> u8 {
        self.slot_of(|how| how.write)
    }

    /// Mostly an attribute that is there.
    fn attribute(&mut self) -> (Bytes, u8) {
        match self.attributes.choose(&mut self.rng).cloned() {
            Some((path, name)) if self.rng.random_ratio(3, 4) => (Bytes(path), name),
            _ => (self.path(), self.rng.random_range(0..4)),
        }
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

    /// A mode, never sticky: the kernel's restrictions in sticky directories are a setting of the machine, not of the
    /// file system.
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
        how.append = write && self.rng.random_ratio(1, 3);
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
        match self.rng.random_range(0..11) {
            0..4 => self.content_call(),
            4..8 => self.name_call(),
            _ => self.attribute_call(),
        }
    }

    fn content_call(&mut self) -> Call {
        match self.rng.random_range(0..36) {
            0..7 => {
                let path = if self.rng.random_ratio(1, 3) { self.new_path() } else { self.content_path() };
                Call::Open { slot: self.slot(), path, how: self.how() }
            }
            7..9 => Call::Close { slot: self.slot_in_use() },
            9..13 => {
                let slot = self.slot_of(|how| how.read);
                Call::Pread { slot, offset: self.offset(), len: self.len() }
            }
            13..17 => {
                let slot = self.written_slot();
                Call::Pwrite { slot, offset: self.offset(), len: self.len(), seed: self.rng.random() }
            }
            17..22 => {
                let slot = self.slot_of(|how| how.append);
                Call::Append { slot, len: self.len(), seed: self.rng.random() }
            }
            22..25 => Call::Ftruncate { slot: self.written_slot(), size: self.offset() },
            25..28 => {
                let mode = self.pick(&[
                    FallocateMode::Allocate,
                    FallocateMode::AllocateKeepSize,
                    FallocateMode::PunchHole,
                    FallocateMode::ZeroRange,
                    FallocateMode::ZeroRangeKeepSize,
                ]);
                // Not at the far offsets: tmpfs has to find the DRAM.
                let offset = self.offset() % (64 * BLOCK_SIZE);
                Call::Fallocate { slot: self.written_slot(), mode, offset, len: self.len() as u64 }
            }
            28..32 => {
                // Often near the start: few files are long.
                let offset = self.offset() % (self.pick(&[4, 64]) * BLOCK_SIZE);
                Call::Lseek { slot: self.slot_in_use(), offset, to: self.pick(&[SeekTo::Data, SeekTo::Hole]) }
            }
            32..34 => Call::Fsync { slot: self.slot_in_use(), only_data: self.rng.random() },
            _ => Call::Fstat { slot: self.slot_in_use() },
        }
    }

    fn name_call(&mut self) -> Call {
        match self.rng.random_range(0..36) {
            0..5 => Call::Mkdir { path: self.new_path(), mode: self.mode() },
            5..10 => {
                let path = self.path_of(|kind| kind == FileKind::Directory);
                Call::Rmdir { path }
            }
            10..14 => Call::Unlink { path: self.path_of(|kind| kind != FileKind::Directory) },
            14..17 => {
                let from = self.path_of(|kind| kind != FileKind::Directory);
                Call::Link { from, to: self.new_path() }
            }
            17..20 => {
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
            20..23 => Call::Mknod { path: self.new_path(), mode: self.mode() },
            23..31 => {
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
            31..33 => {
                let path = self.path_of(|kind| kind == FileKind::Directory);
                Call::Readdir { path, piece: self.pick(&[1, 2, 3, 100]) }
            }
            _ => Call::Readlink { path: self.path_of(|kind| kind == FileKind::Symlink) },
        }
    }

    fn attribute_call(&mut self) -> Call {
        let name = self.rng.random_range(0..4);
        let follow = self.rng.random_ratio(2, 3);
        match self.rng.random_range(0..36) {
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
            13..16 => Call::Truncate { path: self.content_path(), size: self.offset() },
            16..19 => Call::Fchmod { slot: self.slot_in_use(), mode: self.mode() },
            19..24 => {
                let how = self.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
                let len = self.pick(&[0, 1, 10, 100, 1000, 3000]);
                Call::Setxattr { path: self.path(), name, len, seed: self.rng.random(), how }
            }
            24..29 => {
                let (path, name) = self.attribute();
                Call::Getxattr { path, name }
            }
            29..34 => {
                let (path, name) = self.attribute();
                Call::Removexattr { path, name }
            }
            _ => Call::Listxattr { path: self.path() },
        }
    }
}
