//! Making random sequences.

use nacre_engine::{
    Attr, BLOCK_SIZE, FallocateMode, FileKind, RenameMode, SeekTo, SetAttr, TimeRange, Timestamp, XattrMode,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::op::{NAMES, Op, Path, SLOTS, Who};
use super::run::time_of;
use super::tree::Guess;
use super::world::{Tolerance, World};
use crate::model::MemLayout;

/// The subject of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Everything, in a small tree with few names, so that operations meet.
    Tree,
    /// The content of one file.
    OneFile,
    /// Names only: directories, links, renames.
    Names,
}

/// A sequence of so many operations; the same for the same seed. One in `mount_every` is followed by a mount.
///
/// The operations run on `model` while they are made, so that the generator knows which names exist.
pub fn sequence(
    seed: u64,
    profile: Profile,
    length: usize,
    mount_every: Option<u32>,
    mut model: MemLayout,
) -> Vec<Op> {
    let mut generator = Generator {
        rng: SmallRng::seed_from_u64(seed),
        profile,
        guess: Guess::default(),
        flags_to_clear: None,
    };
    let mut ops = Vec::with_capacity(length);
    let mut ids = vec![None; SLOTS.into()];
    while ops.len() < length {
        let mut world = World::open(&model, "w", ids, Tolerance::NONE);
        while ops.len() < length {
            let op = if profile == Profile::OneFile && ops.is_empty() {
                let path = Path(vec![0]);
                Op::Create { path, kind: FileKind::Regular, slot: 0, mode: 0o644, with_xattr: false }
            } else {
                generator.next_op(mount_every)
            };
            let mounts = matches!(op, Op::Remount | Op::Crash);
            if !mounts && world.apply(&op, time_of(ops.len() + 1)).is_some_and(|answer| answer.is_success()) {
                generator.guess.note(&op);
            }
            ops.push(op);
            if mounts {
                break;
            }
        }
        ids = world.close();
        model = model.remount();
    }
    ops
}

struct Generator {
    rng: SmallRng,
    profile: Profile,
    guess: Guess,
    /// Where flags were set that soon have to go, or nothing could be changed any more; and after how many steps.
    flags_to_clear: Option<(Who, u32)>,
}

impl Generator {
    fn next_op(&mut self, mount_every: Option<u32>) -> Op {
        if mount_every.is_some_and(|every| self.rng.random_ratio(1, every)) {
            return if self.rng.random() { Op::Remount } else { Op::Crash };
        }
        match self.flags_to_clear.take() {
            Some((node, 0)) => Op::SetAttr { node, change: SetAttr { flags: Some(0), ..SetAttr::default() } },
            Some((node, steps)) => {
                self.flags_to_clear = Some((node, steps - 1));
                self.op()
            }
            None => self.op(),
        }
    }

    fn op(&mut self) -> Op {
        match self.profile {
            Profile::OneFile => self.content_op(),
            Profile::Names if self.rng.random_ratio(1, 8) => self.attribute_op(),
            Profile::Names => self.names_op(),
            Profile::Tree => match self.rng.random_range(0..12) {
                0..5 => self.names_op(),
                5..8 => self.content_op(),
                _ => self.attribute_op(),
            },
        }
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        *choices.choose(&mut self.rng).expect("a choice")
    }

    /// Mostly a path at which something should be.
    fn path(&mut self) -> Path {
        match (self.rng.random_range(0..10), self.guess.any(&mut self.rng)) {
            (0..8, Some(path)) => path,
            (8, _) => self.new_path(),
            _ => self.any_path(),
        }
    }

    /// Mostly a path in a directory that should be there.
    fn new_path(&mut self) -> Path {
        if self.rng.random_ratio(1, 10) {
            return self.any_path();
        }
        let mut path =
            if self.rng.random_ratio(1, 3) { Path(Vec::new()) } else { self.guess.directory(&mut self.rng) };
        path.0.truncate(5);
        path.0.push(self.name());
        path
    }

    fn any_path(&mut self) -> Path {
        let depth = self.pick(&[1, 1, 1, 2, 2, 3]);
        Path((0..depth).map(|_| self.name()).collect())
    }

    fn name(&mut self) -> u8 {
        if self.rng.random_ratio(1, 40) { NAMES - 1 } else { self.rng.random_range(0..NAMES - 1) }
    }

    fn slot(&mut self) -> u8 {
        self.rng.random_range(0..SLOTS)
    }

    fn who(&mut self) -> Who {
        if self.profile == Profile::OneFile {
            return Who::Path(Path(vec![0]));
        }
        match self.rng.random_range(0..20) {
            0 => Who::Path(Path(Vec::new())),
            1..9 => Who::Slot(self.slot()),
            _ => Who::Path(self.path()),
        }
    }

    fn names_op(&mut self) -> Op {
        match self.rng.random_range(0..48) {
            0..4 => Op::Hold { slot: self.slot(), path: self.path() },
            4..6 => Op::Release { slot: self.slot() },
            6..8 => Op::HoldById { slot: self.slot() },
            8..17 => self.create(),
            17..19 => Op::CreateUnnamed { slot: self.slot() },
            19..23 => {
                let node = match self.guess.file(&mut self.rng) {
                    Some(path) if self.rng.random_ratio(2, 3) => Who::Path(path),
                    _ => self.who(),
                };
                Op::Link { node, path: self.new_path() }
            }
            23..27 => Op::Unlink { path: self.file_path() },
            27..33 => {
                let path = match self.guess.empty_directory(&mut self.rng) {
                    Some(path) if self.rng.random_ratio(5, 6) => path,
                    _ => self.path(),
                };
                Op::Rmdir { path }
            }
            33..41 => self.rename(),
            41..44 => Op::ReadDir { dir: self.dir(), piece: self.pick(&[1, 2, 3, 100]) },
            44..46 => {
                let node = match self.guess.of_kind(&mut self.rng, FileKind::Symlink) {
                    Some(path) if self.rng.random_ratio(4, 5) => Who::Path(path),
                    _ => self.who(),
                };
                Op::ReadLink { node }
            }
            _ => Op::Parent { dir: self.dir() },
        }
    }

    /// Mostly a directory.
    fn dir(&mut self) -> Who {
        if self.rng.random_ratio(2, 3) { Who::Path(self.guess.directory(&mut self.rng)) } else { self.who() }
    }

    fn create(&mut self) -> Op {
        let kind = self.pick(&[
            FileKind::Regular,
            FileKind::Regular,
            FileKind::Regular,
            FileKind::Regular,
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Directory,
            FileKind::Directory,
            FileKind::Directory,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::CharDevice,
        ]);
        let mode = self.rng.random_range(0..0o10000);
        Op::Create {
            path: if self.rng.random_ratio(3, 4) { self.new_path() } else { self.path() },
            kind,
            slot: self.slot(),
            mode,
            with_xattr: self.rng.random_ratio(1, 10),
        }
    }

    fn rename(&mut self) -> Op {
        let mode = self.pick(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            RenameMode::Exchange,
            RenameMode::Whiteout { uid: 7, gid: 8 },
        ]);
        let to = if self.rng.random() { self.new_path() } else { self.path() };
        Op::Rename { from: self.path(), to, mode }
    }

    /// Offsets near the edges of blocks more often than others, and sometimes very far.
    fn offset(&mut self) -> u64 {
        let block = self.rng.random_range(0..64) * BLOCK_SIZE;
        match self.rng.random_range(0..40) {
            0..12 => block,
            12..16 => block + 1,
            16..20 => block + BLOCK_SIZE - 1,
            20..24 => block + 64 * self.rng.random_range(0..64),
            24 => (2 << 20) - self.rng.random_range(0..3) * 2000,
            25 => self.pick(&[1 << 31, 1 << 32, (1 << 40) + 17, (16 << 40) - 5000]),
            26 if self.profile == Profile::Tree => self.pick(&[u64::MAX, 1 << 62, 1 << 63]),
            _ => self.rng.random_range(0..64 * BLOCK_SIZE),
        }
    }

    fn len(&mut self) -> usize {
        match self.rng.random_range(0..20) {
            0..5 => BLOCK_SIZE as usize * self.rng.random_range(1..8),
            5..9 => self.rng.random_range(1..200),
            9 => BLOCK_SIZE as usize - 1,
            10 => BLOCK_SIZE as usize + 1,
            11 => self.rng.random_range(1..150_000),
            12 if self.rng.random_ratio(1, 4) => 0,
            _ => self.rng.random_range(1..20_000),
        }
    }

    /// Mostly the path of something that should exist and be no directory.
    fn file_path(&mut self) -> Path {
        match self.guess.file(&mut self.rng) {
            Some(path) if self.rng.random_ratio(2, 3) => path,
            _ => self.path(),
        }
    }

    /// Mostly something that should have content.
    fn file(&mut self) -> Who {
        match self.guess.of_kind(&mut self.rng, FileKind::Regular) {
            Some(path) if self.profile == Profile::Tree && self.rng.random_ratio(3, 4) => Who::Path(path),
            _ => self.who(),
        }
    }

    fn content_op(&mut self) -> Op {
        let node = self.file();
        match self.rng.random_range(0..36) {
            0..11 => Op::Write {
                node,
                offset: self.offset(),
                len: self.len(),
                seed: self.rng.random(),
                split: self.pick(&[0, 0, 0, 1, 100, 5000]),
            },
            11..14 => Op::Append { node, len: self.len(), seed: self.rng.random() },
            14..20 => Op::Read { node, offset: self.offset(), len: self.len(), stamped: self.rng.random() },
            20..23 => Op::SetAttr { node, change: SetAttr { size: Some(self.size()), ..SetAttr::default() } },
            23..28 => self.fallocate(node),
            28..32 => Op::Seek { node, offset: self.offset(), to: self.pick(&[SeekTo::Data, SeekTo::Hole]) },
            32..34 => {
                Op::Resolve { node, start: self.rng.random_range(0..70), len: self.rng.random_range(0..80) }
            }
            _ => Op::Sync { node },
        }
    }

    fn size(&mut self) -> u64 {
        if self.rng.random_ratio(1, 5) { 0 } else { self.offset() }
    }

    fn fallocate(&mut self, node: Who) -> Op {
        let mode = self.pick(&[
            FallocateMode::Allocate,
            FallocateMode::AllocateKeepSize,
            FallocateMode::PunchHole,
            FallocateMode::PunchHole,
            FallocateMode::ZeroRange,
            FallocateMode::ZeroRangeKeepSize,
        ]);
        Op::Fallocate { node, mode, offset: self.offset(), len: self.len() as u64 }
    }

    fn attribute_op(&mut self) -> Op {
        let node = self.who();
        // One name more often than the others, so that attributes meet.
        let name = if self.rng.random() { 0 } else { self.rng.random_range(0..5) };
        match self.rng.random_range(0..18) {
            0..3 => Op::GetAttr { node },
            3..6 => self.setattr(node),
            6..10 => Op::SetXattr {
                node,
                name,
                len: self.xattr_len(),
                seed: self.rng.random(),
                how: self.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]),
                mode: self.pick(&[None, None, Some(0o640)]),
            },
            10..14 => Op::GetXattr { node, name },
            14..17 => Op::RemoveXattr { node, name },
            _ => Op::ListXattrs { node },
        }
    }

    fn xattr_len(&mut self) -> usize {
        match self.rng.random_range(0..12) {
            0 => self.pick(&[0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537]),
            1..4 => self.rng.random_range(0..3000),
            _ => self.rng.random_range(0..150),
        }
    }

    fn setattr(&mut self, node: Who) -> Op {
        let time = |generator: &mut Self| {
            let (first, last) = (TimeRange::default().min_secs(), TimeRange::default().max_secs());
            let far = [i64::MIN, first - 1, first, -1, 0, last, last + 1, i64::MAX];
            let secs = if generator.rng.random() {
                generator.pick(&far)
            } else {
                generator.rng.random_range(0..last)
            };
            Timestamp::new(secs, generator.rng.random_range(0..1_000_000_000))
        };
        let mut change = SetAttr::default();
        for _ in 0..self.rng.random_range(1..3) {
            match self.rng.random_range(0..11) {
                0..3 => change.mode = Some(self.rng.random_range(0..0o10000)),
                3..5 => change.uid = Some(self.rng.random()),
                5..7 => change.gid = Some(self.rng.random()),
                // Not from the future, where relatime means nothing.
                7 => change.atime = Some(time(self).min(Timestamp::new(900_000, 0))),
                8 => change.mtime = Some(time(self)),
                9 => change.size = Some(self.size()),
                _ if self.flags_to_clear.is_none() => {
                    change.flags = Some(self.pick(&[Attr::IMMUTABLE, Attr::APPEND_ONLY]));
                    self.flags_to_clear = Some((node.clone(), self.rng.random_range(0..12)));
                }
                _ => change.flags = Some(0),
            }
        }
        Op::SetAttr { node, change }
    }
}
