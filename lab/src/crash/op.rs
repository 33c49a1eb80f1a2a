//! The operations of workloads, and running them on any implementation of the contract.

use std::fmt;
use std::io::IoSlice;

use nacre_engine::{
    Attr, BLOCK_SIZE, BelowBuffer, Data, Durability, Error, Extents, FallocateMode, FileKind, Kind, Names,
    NewInode, RenameMode, Result, SetAttr, Timestamp, WriteAt, WriteShape, XattrMode,
};

/// One operation. Paths are relative to the root, components separated by `/`.
#[derive(Clone, PartialEq, Eq)]
pub enum Op {
    /// Makes a file, directory or node.
    Create(&'static str, FileKind),
    /// Makes a file that is born with extended attributes.
    CreateWithXattr(&'static str),
    /// Makes a symbolic link: its path, its target.
    Symlink(&'static str, &'static str),
    /// Writes so many bytes at an offset.
    Write(&'static str, u64, usize),
    /// Writes so many bytes at the end.
    Append(&'static str, usize),
    /// Reads all of it, which may change the time of the last read.
    Read(&'static str),
    /// Changes the size.
    Truncate(&'static str, u64),
    /// Changes the space of a range.
    Fallocate(&'static str, FallocateMode, u64, u64),
    /// Moves the first name to the second.
    Rename(&'static str, &'static str, RenameMode),
    /// Gives the first another name, the second.
    Link(&'static str, &'static str),
    /// Removes the name of a file.
    Unlink(&'static str),
    /// Removes a directory.
    Rmdir(&'static str),
    /// Changes permission bits, owner and group at once.
    SetAttr(&'static str, u32),
    /// Sets the times of the last read and of the last change of data, to so many seconds.
    SetTimes(&'static str, i64),
    /// Sets the flags of the inode.
    SetFlags(&'static str, u32),
    /// Sets an attribute to a value of so many bytes.
    SetXattr(&'static str, &'static str, usize),
    /// Removes an attribute.
    RemoveXattr(&'static str, &'static str),
    /// Holds the file open from now on.
    Hold(&'static str),
    /// Lets go of everything that is held.
    Release,
    /// Lets go of the inode that the path names, which is not expected to be used soon: nothing of it stays in DRAM.
    LetGo(&'static str),
    /// Makes a file without a name, writes so many bytes, then names it.
    UnnamedThenLink(&'static str, usize),
    /// Writes so many bytes at an offset, and waits until they are durable.
    WriteThrough(&'static str, u64, usize),
    /// Closes the file after writing.
    Close(&'static str),
    /// Makes everything about a file durable.
    Sync(&'static str),
    /// Makes everything durable.
    SyncAll,
    /// Holds the file open, then removes the name.
    UnlinkOpen(&'static str),
    /// Moves blocks of a file, so many from one on, to a tier.
    Demote(&'static str, u64, u64),
    /// Moves all blocks of two files to a tier, together.
    DemoteBoth(&'static str, &'static str),
    /// Moves all blocks of a file to the last tier, from PM and from the other tiers.
    DemoteLast(&'static str),
    /// The mover does all its work, with a first tier that counts as nearly full: the coldest files move from there to
    /// the last one.
    Descend,
    /// Anti-caching evicts what is above a threshold of so many blocks, the blocks first that were not used for longest.
    Evict(u64),
    /// Reads a file; its blocks on a tier come up behind that.
    BringUp(&'static str),
    /// Tells the device of the first tier which of its blocks are unused.
    Trim,
    /// Promotes blocks of a file, so many from one on, to persistent memory.
    Promote(&'static str, u64, u64),
    /// Makes the log of a file as small as it can be.
    Compact(&'static str),
    /// Moves the extent map in the log of a file to the tier that its blocks are on.
    MoveLog(&'static str),
    /// Makes a device a tier.
    AddTier,
    /// Moves everything from the first tier to the others, or up where there is none, and removes it.
    RemoveTier,
    /// Unmounts and mounts again.
    Remount,
    /// Makes a new file system over this one, without an unmount.
    Mkfs,
    /// Makes a volume of this name, with at most so many blocks, or without a limit (0). The mounted one is unmounted
    /// before, and mounted again.
    MakeVolume(&'static str, u64),
    /// Removes a volume that is not mounted, in the same way.
    RemoveVolume(&'static str),
    /// The operations from now on go to this volume.
    UseVolume(&'static str),
    /// Damages one copy of a structure: of this kind, with this number among those of the kind. It is a part of a setup,
    /// and is done when the file system is mounted, just before the first crash.
    Damage(&'static str, u64, Twin),
}

/// A copy of a structure that is there twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twin {
    /// The first one, which is read.
    Primary,
    /// The other one.
    Backup,
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create(path, kind) => write!(f, "create {kind:?} {path}"),
            Op::CreateWithXattr(path) => write!(f, "create {path} with an attribute"),
            Op::Symlink(path, target) => write!(f, "symlink {path} to {target}"),
            Op::Write(path, offset, len) => write!(f, "write {len} bytes at {offset} of {path}"),
            Op::Append(path, len) => write!(f, "append {len} bytes to {path}"),
            Op::Truncate(path, size) => write!(f, "truncate {path} to {size}"),
            Op::Fallocate(path, mode, offset, len) => write!(f, "{mode:?} {len} bytes at {offset} of {path}"),
            Op::Rename(from, to, mode) => write!(f, "rename {from} to {to} ({mode:?})"),
            Op::Link(from, to) => write!(f, "link {from} as {to}"),
            Op::Unlink(path) => write!(f, "unlink {path}"),
            Op::Rmdir(path) => write!(f, "rmdir {path}"),
            Op::SetAttr(path, mode) => write!(f, "chmod {path} to {mode:o}, and chown"),
            Op::SetTimes(path, secs) => write!(f, "set the times of {path} to {secs}"),
            Op::SetFlags(path, flags) => write!(f, "set the flags of {path} to {flags}"),
            Op::Read(path) => write!(f, "read {path}"),
            Op::SetXattr(path, name, len) => write!(f, "set attribute {name} of {path} to {len} bytes"),
            Op::RemoveXattr(path, name) => write!(f, "remove attribute {name} of {path}"),
            Op::Hold(path) => write!(f, "hold {path} open"),
            Op::Release => write!(f, "close everything"),
            Op::LetGo(path) => write!(f, "let go of {path}"),
            Op::UnnamedThenLink(path, len) => write!(f, "link an unnamed file of {len} bytes as {path}"),
            Op::WriteThrough(path, offset, len) => {
                write!(f, "write {len} bytes at {offset} of {path}, durably")
            }
            Op::Close(path) => write!(f, "close {path}"),
            Op::Sync(path) => write!(f, "sync {path}"),
            Op::SyncAll => write!(f, "sync everything"),
            Op::UnlinkOpen(path) => write!(f, "hold {path} open and unlink it"),
            Op::Demote(path, start, blocks) => write!(f, "demote blocks {start}+{blocks} of {path}"),
            Op::DemoteBoth(one, other) => write!(f, "demote {one} and {other} together"),
            Op::DemoteLast(path) => write!(f, "demote {path} to the last tier"),
            Op::Descend => write!(f, "cold files go to the last tier"),
            Op::Evict(blocks) => write!(f, "evict all blocks but {blocks}"),
            Op::BringUp(path) => write!(f, "read {path}, whose blocks come up"),
            Op::Trim => write!(f, "trim a tier"),
            Op::Promote(path, start, blocks) => write!(f, "promote blocks {start}+{blocks} of {path}"),
            Op::Compact(path) => write!(f, "compact the log of {path}"),
            Op::MoveLog(path) => write!(f, "move the log of {path} to a tier"),
            Op::AddTier => write!(f, "add a tier"),
            Op::RemoveTier => write!(f, "drain and remove a tier"),
            Op::Remount => write!(f, "unmount and mount"),
            Op::Mkfs => write!(f, "mkfs"),
            Op::MakeVolume(name, 0) => write!(f, "make volume {name}"),
            Op::MakeVolume(name, quota) => write!(f, "make volume {name} of at most {quota} blocks"),
            Op::RemoveVolume(name) => write!(f, "remove volume {name}"),
            Op::UseVolume(name) => write!(f, "use volume {name}"),
            Op::Damage(kind, number, twin) => write!(f, "damage the {twin:?} of {kind} {number}"),
        }
    }
}

impl Op {
    /// It changes data that can be read already, where a layout writes in place.
    pub(super) fn overwrites(&self) -> bool {
        use FallocateMode::{PunchHole, ZeroRange, ZeroRangeKeepSize};
        matches!(
            self,
            Op::Write(..)
                | Op::WriteThrough(..)
                | Op::Append(..)
                | Op::Fallocate(_, PunchHole | ZeroRange | ZeroRangeKeepSize, ..)
        )
    }

    /// It makes, removes or changes over to a volume.
    pub(super) fn is_of_volumes(&self) -> bool {
        matches!(self, Op::MakeVolume(..) | Op::RemoveVolume(_) | Op::UseVolume(_))
    }
}

/// A file system and the files that are held open on it.
pub struct Runner<F: Data + Extents> {
    /// The file system.
    pub fs: F,
    held: Vec<F::Node>,
    writing: Writing<F>,
}

/// How writes are made that say nothing else.
pub(super) enum Writing<F: Names> {
    /// With this durability.
    As(Durability),
    /// As a write buffer writes accepted data back.
    Back(WriteReserved<F>),
}

/// Reserves space for a write and writes back. `None` if that is not possible now.
type WriteReserved<F> = fn(&F, &<F as Names>::Node, u64, &[IoSlice<'_>], Timestamp) -> Option<Result<()>>;

impl<F: Names> Clone for Writing<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Names> Copy for Writing<F> {}

/// Writes back whole blocks that a write buffer accepted twice.
fn write_reserved<F: BelowBuffer>(
    fs: &F,
    node: &F::Node,
    offset: u64,
    pieces: &[IoSlice<'_>],
    now: Timestamp,
) -> Option<Result<()>> {
    let len = length(pieces);
    let blocks = len / BLOCK_SIZE;
    fs.expect_write(node).ok()?;
    let reservation = fs.reserve_for(&WriteShape { blocks, groups: blocks, files: 1, extra: 0 }).ok()?;
    (0..2).for_each(|_| fs.accepted(node, offset, len));
    Some(fs.write_back(node, offset, pieces, &reservation, now))
}

fn length(pieces: &[IoSlice<'_>]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Eight bytes of the data of step `step`: different for neighbours, pages and steps, and none of them zero.
fn pattern(step: u64, word: u64) -> [u8; 8] {
    let z = (step << 40 ^ word).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((z ^ z >> 29) | 0x0101_0101_0101_0101).to_le_bytes()
}

/// The time of a step.
pub(super) fn time(step: u64) -> Timestamp {
    Timestamp::new(1_000_000 + step as i64, step as u32)
}

/// The data that step `step` writes.
pub fn payload(step: u64, len: usize) -> Vec<u8> {
    let mut data: Vec<u8> = (0..len.div_ceil(8) as u64).flat_map(|word| pattern(step, word)).collect();
    data.truncate(len);
    data
}

impl<F: Data + Extents> Runner<F> {
    /// Nothing is held yet.
    pub fn new(fs: F) -> Runner<F> {
        Runner { fs, held: Vec::new(), writing: Writing::As(Durability::Now) }
    }

    /// The same, with writes that may wait in a buffer.
    pub fn buffered(fs: F) -> Runner<F> {
        Runner { writing: Writing::As(Durability::Lazy), ..Runner::new(fs) }
    }

    /// The same. With `back`, whole blocks are written as a write buffer writes them back.
    pub fn writing(fs: F, back: bool) -> Runner<F>
    where
        F: BelowBuffer,
    {
        let writing = if back { Writing::Back(write_reserved::<F>) } else { Writing::As(Durability::Now) };
        Runner { writing, ..Runner::new(fs) }
    }

    fn hands(&self) -> Hands<'_, F> {
        Hands { fs: &self.fs, writing: self.writing }
    }

    /// Returns the file system; all held files are released.
    pub fn into_fs(mut self) -> F {
        self.held.clear();
        self.fs
    }

    /// Does one operation, as step `step` of its workload, which is also its time.
    pub fn run(&mut self, step: u64, op: &Op) -> Result<()> {
        let Runner { fs, held, writing } = self;
        Hands { fs, writing: *writing }.run(step, op, held)
    }

    /// Appends to a file with any path.
    pub fn append(&self, step: u64, path: &str, len: usize) -> Result<()> {
        self.hands().append(step, path, len)
    }

    /// Takes all flags off a file with any path.
    pub(super) fn unprotect(&self, step: u64, path: &str) -> Result<()> {
        let change = SetAttr { flags: Some(0), ..SetAttr::default() };
        self.fs.setattr(&self.hands().walk(path)?, &change, time(step)).map(drop)
    }

    /// Removes a name of any path.
    pub fn remove(&self, step: u64, path: &str, kind: FileKind) -> Result<()> {
        self.hands().remove(step, path, kind)
    }
}

/// Runs operations on a borrowed file system, which other threads may use at the same time.
pub(super) struct Hands<'f, F: Names> {
    pub(super) fs: &'f F,
    pub(super) writing: Writing<F>,
}

impl<F: Names> Clone for Hands<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Names> Copy for Hands<'_, F> {}

impl<F: Data + Extents> Hands<'_, F> {
    fn walk(self, path: &str) -> Result<F::Node> {
        let mut node = self.fs.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            node = self.fs.lookup(&node, name.as_bytes())?;
        }
        Ok(node)
    }

    fn split(self, path: &str) -> Result<(F::Node, &[u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.walk(dir)?, name.as_bytes()))
    }

    /// Appends to a file with any path.
    fn append(self, step: u64, path: &str, len: usize) -> Result<()> {
        self.write(path, WriteAt::End, &payload(step, len), self.writing, time(step))
    }

    /// Removes a name of any path.
    fn remove(self, step: u64, path: &str, kind: FileKind) -> Result<()> {
        let (dir, name) = self.split(path)?;
        match kind {
            FileKind::Directory => self.fs.rmdir(&dir, name, time(step)),
            _ => self.fs.unlink(&dir, name, time(step)),
        }
    }

    /// Does one operation, as step `step` of its workload, which is also its time.
    pub(super) fn run(self, step: u64, op: &Op, held: &mut Vec<F::Node>) -> Result<()> {
        let now = time(step);
        match op {
            Op::Create(..) | Op::CreateWithXattr(_) | Op::Symlink(..) | Op::UnnamedThenLink(..) => {
                self.make(step, op, now)
            }
            Op::Write(path, offset, len) => {
                self.write(path, WriteAt::Offset(*offset), &payload(step, *len), self.writing, now)
            }
            Op::WriteThrough(path, offset, len) => self.write(
                path,
                WriteAt::Offset(*offset),
                &payload(step, *len),
                Writing::As(Durability::Now),
                now,
            ),
            Op::Append(path, len) => self.append(step, path, *len),
            Op::Read(path) => {
                let node = self.walk(path)?;
                let mut bytes = vec![0; self.fs.size(&node)? as usize];
                self.fs.read(&node, 0, &mut bytes, Some(now)).map(drop)
            }
            Op::Truncate(path, size) => {
                let change = SetAttr { size: Some(*size), ..SetAttr::default() };
                self.fs.setattr(&self.walk(path)?, &change, now).map(drop)
            }
            Op::Fallocate(path, mode, offset, len) => {
                self.fs.fallocate(&self.walk(path)?, *mode, *offset, *len, now)
            }
            Op::Rename(from, to, mode) => {
                let ((from_dir, from), (to_dir, to)) = (self.split(from)?, self.split(to)?);
                self.fs.rename(&from_dir, from, &to_dir, to, *mode, now)
            }
            Op::Link(from, to) => {
                let (dir, name) = self.split(to)?;
                self.fs.link(&self.walk(from)?, &dir, name, now)
            }
            Op::Unlink(path) => self.split(path).and_then(|(dir, name)| self.fs.unlink(&dir, name, now)),
            Op::Rmdir(path) => self.split(path).and_then(|(dir, name)| self.fs.rmdir(&dir, name, now)),
            Op::SetAttr(path, mode) => {
                let ids = (Some(100 + step as u32), Some(200 + step as u32));
                let change = SetAttr { mode: Some(*mode), uid: ids.0, gid: ids.1, ..SetAttr::default() };
                self.fs.setattr(&self.walk(path)?, &change, now).map(drop)
            }
            Op::SetTimes(path, secs) => {
                let (atime, mtime) = (Timestamp::new(*secs, 1), Timestamp::new(*secs, 2));
                let change = SetAttr { atime: Some(atime), mtime: Some(mtime), ..SetAttr::default() };
                self.fs.setattr(&self.walk(path)?, &change, now).map(drop)
            }
            Op::SetFlags(path, flags) => {
                let change = SetAttr { flags: Some(*flags), ..SetAttr::default() };
                self.fs.setattr(&self.walk(path)?, &change, now).map(drop)
            }
            Op::SetXattr(path, name, len) => {
                let node = self.walk(path)?;
                self.fs.set_xattr(&node, name.as_bytes(), &payload(step, *len), XattrMode::Set, None, now)
            }
            Op::RemoveXattr(path, name) => self.fs.remove_xattr(&self.walk(path)?, name.as_bytes(), now),
            Op::Hold(path) => {
                let node = self.walk(path)?;
                held.push(node);
                Ok(())
            }
            Op::Release => {
                held.clear();
                Ok(())
            }
            Op::LetGo(path) => {
                self.fs.let_go(self.walk(path)?);
                Ok(())
            }
            Op::Close(path) => self.fs.closed(&self.walk(path)?),
            Op::Sync(path) => self.fs.sync(&self.walk(path)?),
            Op::SyncAll => self.fs.sync_all(),
            Op::UnlinkOpen(path) => {
                let node = self.walk(path)?;
                held.push(node);
                self.split(path).and_then(|(dir, name)| self.fs.unlink(&dir, name, now))
            }
            // The caller runs these, because it has the simulated PM, or knows that the file system has tiers.
            Op::Remount
            | Op::Mkfs
            | Op::Demote(..)
            | Op::DemoteBoth(..)
            | Op::DemoteLast(..)
            | Op::Promote(..)
            | Op::Compact(..)
            | Op::MoveLog(..)
            | Op::AddTier
            | Op::RemoveTier
            | Op::Descend
            | Op::Evict(_)
            | Op::BringUp(_)
            | Op::Trim
            | Op::MakeVolume(..)
            | Op::RemoveVolume(_)
            | Op::UseVolume(_)
            | Op::Damage(..) => Err(Error::new(Kind::Unsupported)),
        }
    }

    fn make(self, step: u64, op: &Op, now: Timestamp) -> Result<()> {
        let new =
            |kind, mode| NewInode { kind, mode, uid: 7, gid: 8, rdev: 0, target: b"", xattrs: &[], now };
        match op {
            Op::Create(path, kind) => {
                let (dir, name) = self.split(path)?;
                let mode = if *kind == FileKind::Directory { 0o755 } else { 0o644 };
                self.fs.create(&dir, name, &new(*kind, mode)).map(drop)
            }
            Op::CreateWithXattr(path) => {
                let (dir, name) = self.split(path)?;
                let value = payload(step, 40);
                let xattrs: [(&[u8], &[u8]); 1] = [(b"user.born", &value)];
                self.fs
                    .create(&dir, name, &NewInode { xattrs: &xattrs, ..new(FileKind::Regular, 0o600) })
                    .map(drop)
            }
            Op::Symlink(path, target) => {
                let (dir, name) = self.split(path)?;
                let link = NewInode { target: target.as_bytes(), ..new(FileKind::Symlink, 0o777) };
                self.fs.create(&dir, name, &link).map(drop)
            }
            Op::UnnamedThenLink(path, len) => {
                let node = self.fs.create_unnamed(&new(FileKind::Regular, 0o640))?;
                let data = payload(step, *len);
                self.fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&data)], Durability::Now, now)?;
                let (dir, name) = self.split(path)?;
                self.fs.link(&node, &dir, name, now)
            }
            _ => Err(Error::new(Kind::InvalidInput).object(format!("{op:?} makes nothing"))),
        }
    }

    fn write(self, path: &str, at: WriteAt, data: &[u8], writing: Writing<F>, now: Timestamp) -> Result<()> {
        // In two pieces, as a vectored write: they must still be one operation.
        let (one, two) = data.split_at(data.len() / 3);
        let pieces = [IoSlice::new(one), IoSlice::new(two)];
        let node = self.walk(path)?;
        let (node, pieces) = (&node, &pieces[..]);
        let durability = match (writing, at) {
            (Writing::Back(write), WriteAt::Offset(offset)) if self.may_go_back(node, offset, pieces)? => {
                if let Some(written) = write(self.fs, node, offset, pieces, now) {
                    return written;
                }
                Durability::Now
            }
            (Writing::Back(_), _) => Durability::Now,
            (Writing::As(durability), _) => durability,
        };
        self.fs.write(node, at, pieces, durability, now).map(drop)
    }

    /// Whether a write is all of whole blocks, because only those go somewhere else, and nothing forbids it.
    fn may_go_back(self, node: &F::Node, offset: u64, pieces: &[IoSlice<'_>]) -> Result<bool> {
        let len = length(pieces);
        let is_whole = offset.is_multiple_of(BLOCK_SIZE) && len.is_multiple_of(BLOCK_SIZE);
        let is_free = self.fs.getattr(node)?.flags & (Attr::IMMUTABLE | Attr::APPEND_ONLY) == 0;
        Ok(len > 0 && is_whole && is_free && self.fs.kind(node) == FileKind::Regular)
    }
}
