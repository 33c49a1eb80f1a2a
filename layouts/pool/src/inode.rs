//! Inodes: read where they are, changed as items of operations.

use nacre_engine::{Attr, BLOCK_SIZE, Error, FileKind, InodeId, Kind, NewInode, Result, Timestamp};
use nacre_layout_parts::rules::InodeFacts;
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::commit::Change;
use crate::counts::Purpose;
use crate::edits::InodeEdit;
use crate::format::pools::{self, INODES};
use crate::format::{
    ATIME, INODE_SIZE, LINE, MAX_FILE_SIZE, NEXT_ORPHAN, ROOT_INODE, RawHead, RawInode, open_any, seal_any,
    status,
};
use crate::fs::Shared;
use crate::geometry::Use;
use crate::held::{Name, Node};
use crate::seeded::Mistake;

/// Whether the bytes are an inode in use.
fn is_inode(bytes: &[u8], seed: u32) -> bool {
    RawInode::ref_from_bytes(bytes).is_ok_and(|raw| {
        raw.head.status == status::CONSISTENT && raw.head.checksum == raw.compute_checksum(seed)
    })
}

/// A time before which no inode was read: relatime moves the time of access when it is not newer, or a day old.
const OLD_SECS: i64 = 24 * 60 * 60;

impl<P: Pm> Shared<P> {
    /// Where an inode is.
    pub(crate) fn address(&self, number: u64) -> Result<u64> {
        self.geometry.inode(number, self.root).ok_or(Error::new(Kind::Stale))
    }

    /// The number of the inode at an address.
    pub(crate) fn number_of(&self, address: u64) -> u64 {
        if address == self.root { ROOT_INODE } else { address / INODE_SIZE }
    }

    /// The same without a lock. It is taken if the inode is being changed.
    pub(crate) fn peek_inode(&self, number: u64) -> Result<RawInode> {
        let address = self.address(number)?;
        let mut raw = RawInode::new_zeroed();
        if self.pm.read(address, raw.as_mut_bytes()).is_ok()
            && is_inode(raw.as_bytes(), self.geometry.seed(address))
        {
            return Ok(raw);
        }
        let _lock = self.read_lock(number);
        self.read_inode(number)
    }

    /// An inode that is there, and locked: it is held, or has a name.
    pub(crate) fn read_inode(&self, number: u64) -> Result<RawInode> {
        let address = self.address(number)?;
        let seed = self.geometry.seed(address);
        let mut raw = RawInode::new_zeroed();
        let is_valid = |bytes: &[u8]| is_inode(bytes, seed);
        self.read_entry(address, raw.as_mut_bytes(), is_valid, || format!("inode {number}"))?;
        if !raw.can_be() {
            return Err(Error::corrupt(format!("inode {number}")));
        }
        Ok(raw)
    }

    /// The value of an inode's root.
    pub(crate) fn root_of(&self, number: u64, raw: &RawInode) -> Result<u64> {
        let seed = self.geometry.seed(self.address(number)?);
        open_any(raw.root, seed).ok_or_else(|| Error::corrupt(format!("the root of inode {number}")))
    }

    /// The attributes of an inode.
    pub(crate) fn attr(&self, number: u64, raw: &RawInode) -> Result<Attr> {
        let damaged = |what: &str| Error::corrupt(format!("inode {number}: {what}"));
        if !raw.can_be() {
            return Err(damaged("its counts"));
        }
        let time = |packed| self.times.unpack(packed).ok_or_else(|| damaged("time"));
        let kind = kind_of(raw)?;
        let is_directory = kind == FileKind::Directory;
        Ok(Attr {
            id: InodeId { number, generation: raw.generation, volume: self.geometry.volume },
            kind,
            mode: u32::from(raw.mode),
            links: if is_directory && raw.links > 0 { 2 + raw.subdirectories } else { raw.links },
            uid: raw.uid,
            gid: raw.gid,
            rdev: u64::from(raw.rdev),
            size: raw.size,
            allocated: if kind == FileKind::Regular { raw.entries * BLOCK_SIZE } else { 0 },
            // It is stored alone, and no checksum tells whether it is whole.
            atime: self.times.unpack(raw.atime).unwrap_or_default(),
            mtime: time(raw.mtime)?,
            ctime: time(raw.ctime)?,
            btime: time(raw.btime)?,
            flags: raw.flags,
            change: raw.change,
        })
    }

    /// Holds the inode with a number, of any generation or of this one.
    pub(crate) fn hold(&self, number: u64, generation: Option<u32>) -> Result<Node> {
        let stale = || Error::new(Kind::Stale);
        let _lock = self.read_lock(number);
        if let Some(node) = self.held.hold_again(number) {
            return if generation.is_none_or(|generation| generation == node.inode.generation) {
                Ok(node)
            } else {
                Err(stale())
            };
        }
        let address = self.address(number)?;
        if !self.is_inode(address)? {
            return Err(stale());
        }
        let raw = self.read_inode(number)?;
        let is_parked = raw.links == 0 && self.held.is_held(number);
        if raw.links == 0 && !is_parked || generation.is_some_and(|generation| generation != raw.generation) {
            return Err(stale());
        }
        let id = InodeId { number, generation: raw.generation, volume: self.geometry.volume };
        self.held.hold(id, kind_of(&raw)?, if is_parked { Name::Gone } else { Name::There })
    }

    /// Whether an inode in use is at an address where one can be.
    pub(crate) fn is_inode(&self, address: u64) -> Result<bool> {
        let group = self.geometry.group_of(address);
        let (free, of_group) = self.read_map(group)?;
        let block = self.geometry.pool_of(address);
        let slot = crate::bits::run(block % crate::format::GROUP_BYTES / BLOCK_SIZE, 1);
        if self.geometry.use_of(of_group) != Use::Pool || crate::bits::meet(&free, &slot) {
            return Ok(false);
        }
        Ok(self.read_head(block)?.pool as usize == INODES && self.is_in_use(INODES, address)?)
    }

    /// A read moves the time of access where relatime says so. It is stored alone.
    pub(crate) fn note_read(&self, number: u64, raw: &RawInode, now: Timestamp) -> Result<()> {
        if self.read_only || !self.is_atime_due(raw, now) {
            return Ok(());
        }
        let address = self.address(number)? + ATIME;
        let packed = self.times.pack(now).to_le_bytes();
        // The primary last: a line that is mended meanwhile does not take the older time.
        let mut pending = None;
        for place in [self.geometry.twin(address), address] {
            let stored = self.pm.store(place, &packed)?;
            pending = join(pending, self.pm.flush(stored));
        }
        // An unmount by another thread cannot make it durable.
        if let Some(pending) = pending {
            self.pm.fence(pending);
        }
        Ok(())
    }

    fn is_atime_due(&self, raw: &RawInode, now: Timestamp) -> bool {
        let time = |packed| self.times.unpack(packed).unwrap_or_default();
        let (atime, mtime, ctime) = (time(raw.atime), time(raw.mtime), time(raw.ctime));
        atime <= mtime || atime <= ctime || now.secs.saturating_sub(atime.secs) > OLD_SECS
    }
}

/// The kind of an inode that was read.
pub(crate) fn kind_of(raw: &RawInode) -> Result<FileKind> {
    FileKind::from_u8(raw.kind).ok_or_else(|| Error::corrupt("the kind of an inode"))
}

/// The most names of one inode, and the most directories in one.
pub(crate) const MAX_LINKS: u32 = u32::MAX / 2;
/// No inode has so many names or blocks: more than a device of 16 TiB has room for.
const MOST_COUNTED: u64 = 1 << 40;

/// The error of an inode that has more of something than it counts.
pub(crate) fn miscounted(number: u64) -> Error {
    Error::corrupt(format!("inode {number} has more than it counts")).advice("run fsck")
}

impl RawInode {
    /// mtime and ctime are `now`.
    pub(crate) fn modified(&mut self, now: u64) {
        (self.mtime, self.ctime) = (now, now);
        self.change += 1;
    }

    /// ctime is `now`.
    pub(crate) fn changed(&mut self, now: u64) {
        self.ctime = now;
        self.change += 1;
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory as u8
    }

    /// Whether there can be such an inode.
    fn can_be(&self) -> bool {
        FileKind::from_u8(self.kind).is_some()
            && self.size <= MAX_FILE_SIZE
            && self.height <= 5
            && self.entries < MOST_COUNTED
            && self.links.max(self.subdirectories) <= MAX_LINKS
    }
}

impl<P: Pm> Change<'_, P> {
    /// The index of an inode, which the caller has locked.
    pub(crate) fn inode(&mut self, number: u64) -> Result<usize> {
        if let Some(index) = self.inodes.iter().position(|edit| edit.number == number) {
            return Ok(index);
        }
        let raw = self.fs.read_inode(number)?;
        self.know(number, &raw)?;
        Ok(self.inodes.len() - 1)
    }

    /// An inode that the caller has locked, and read for the first time in this operation.
    pub(crate) fn know(&mut self, number: u64, raw: &RawInode) -> Result<()> {
        let address = self.fs.address(number)?;
        self.inodes.push(InodeEdit { number, address, old: *raw, new: *raw });
        Ok(())
    }

    /// The inode as the operation leaves it.
    pub(crate) fn edit(&mut self, number: u64) -> Result<&mut RawInode> {
        let index = self.inode(number)?;
        Ok(&mut self.inodes[index].new)
    }

    /// The root of an inode that has one will be this.
    pub(crate) fn set_root(&mut self, number: u64, height: u8, value: u64) -> Result<()> {
        let seed = self.fs.geometry.seed(self.fs.address(number)?);
        let raw = self.edit(number)?;
        raw.height = height;
        raw.root = seal_any(value, seed);
        Ok(())
    }

    /// Items for the inodes that change.
    pub(crate) fn put_inodes(&mut self) {
        let Change { fs, items, inodes, .. } = self;
        for edit in inodes.iter_mut().filter(|edit| edit.new != edit.old) {
            let raw = &mut edit.new;
            raw.head.sequence = raw.head.sequence.wrapping_add(1);
            raw.head.checksum = raw.compute_checksum(fs.geometry.seed(edit.address));
            let (new, old) = (raw.as_bytes(), edit.old.as_bytes());
            let behind = ATIME as usize + 8..NEXT_ORPHAN as usize;
            items.put(edit.address, &new[..LINE as usize]);
            let atime = ATIME as usize..ATIME as usize + 8;
            if new[atime.clone()] != old[atime.clone()] {
                items.put(edit.address + ATIME, &new[atime]);
            }
            if new[behind.clone()] != old[behind.clone()] {
                items.put(edit.address + behind.start as u64, &new[behind]);
            }
        }
    }

    /// Writes a new inode, to which nothing leads yet. Its number and generation.
    pub(crate) fn make_inode(
        &mut self,
        new: &NewInode<'_>,
        parent: u64,
        links: u32,
        purpose: Purpose,
    ) -> Result<InodeId> {
        let address = self.entry(INODES, purpose)?;
        let fs = self.fs;
        let seed = fs.geometry.seed(address);
        let head = fs.read_head(fs.geometry.pool_of(address))?;
        let step = u32::from(!Mistake::GenerationKept.is_made(&*fs.pm));
        let generation = fs.generation_at(address, head.generation_seed).wrapping_add(step).max(1);
        let now = fs.times.pack(new.now);
        let mut raw = RawInode::new_zeroed();
        raw.head = RawHead { status: status::CONSISTENT, pool: INODES as u8, ..RawHead::default() };
        raw.generation = generation;
        raw.links = links;
        raw.mode = (new.mode & 0o7777) as u16;
        raw.kind = new.kind as u8;
        (raw.mtime, raw.ctime, raw.atime, raw.btime) = (now, now, now, now);
        raw.rdev = new.rdev as u32;
        (raw.uid, raw.gid) = (new.uid, new.gid);
        raw.parent = if new.kind == FileKind::Directory { parent } else { 0 };
        let mut root = 0;
        if new.kind == FileKind::Symlink {
            raw.size = new.target.len() as u64;
            if new.target.len() <= raw.target.len() {
                raw.target[..new.target.len()].copy_from_slice(new.target);
            } else {
                root = self.write_bytes(new.target, pools::NAMES, purpose)?;
            }
        }
        if !new.xattrs.is_empty() {
            raw.attributes = self.write_attributes(new.xattrs, purpose)?;
        }
        raw.root = seal_any(root, seed);
        (raw.next_orphan, raw.previous_orphan) = (seal_any(0, seed), seal_any(0, seed));
        raw.head.checksum = raw.compute_checksum(seed);
        self.write_new(address, raw.as_bytes())?;
        Ok(InodeId { number: fs.number_of(address), generation, volume: fs.geometry.volume })
    }
}

/// An inode, as the rules of names see it.
pub(crate) struct Facts {
    pub(crate) number: u64,
    pub(crate) raw: RawInode,
}

impl InodeFacts for Facts {
    const ROOT: u64 = ROOT_INODE;

    fn number(&self) -> u64 {
        self.number
    }

    fn is_directory(&self) -> bool {
        self.raw.is_directory()
    }

    fn links(&self) -> u32 {
        self.raw.links
    }

    fn flags(&self) -> u32 {
        self.raw.flags
    }

    fn parent(&self) -> Result<u64> {
        if self.is_directory() { Ok(self.raw.parent) } else { Err(Error::new(Kind::NotDirectory)) }
    }

    fn is_empty(&self) -> Result<bool> {
        if self.is_directory() { Ok(self.raw.entries == 0) } else { Err(Error::new(Kind::NotDirectory)) }
    }
}
