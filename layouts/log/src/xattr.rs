//! Extended attributes: entries of the inode's log, with an index in DRAM ([`xattr_index`](crate::xattr_index)).

use nacre_engine::{BLOCK_SIZE, Error, Kind, Resource, Result, Timestamp, XattrMode};
use nacre_layout_parts::rules::check_xattr_mode;
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::{Purpose, Run, Runs};
use crate::attributes::Attributes;
use crate::batch::Batch;
use crate::commit::Commit;
use crate::format::{LINE, MAX_ENTRY_LINES, XATTR_BYTES_OFFSET, XattrEntry, kind};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::log::{Log, Owner};
use crate::xattr_index::{Xattr, insert, read_blocks, remove};

/// Bytes that all names and values of an inode may take together.
const MAX_TOTAL: usize = 1 << 20;
/// A name and value that fit this many lines are in the entry; a larger value gets blocks of its own.
const INLINE_VALUE_LINES: usize = 16;

/// Adds the entry for setting an attribute to a batch; a value that does not fit goes to blocks, which join `pending`,
/// the stores that must be durable before the commit.
pub(crate) fn push_set<P: Pm>(
    fs: &Shared<P>,
    batch: &mut Batch,
    name: &[u8],
    value: &[u8],
    now: Timestamp,
    pending: &mut Option<Flushed>,
) -> Result<Option<Run>> {
    let mut entry = XattrEntry {
        name_len: name.len() as u16,
        value_len: value.len() as u32,
        ctime: fs.times.pack(now),
        ..XattrEntry::default()
    };
    entry.header.kind = kind::XATTR;
    if XATTR_BYTES_OFFSET + name.len() + value.len() <= INLINE_VALUE_LINES.min(MAX_ENTRY_LINES) * LINE {
        batch.push(&entry, XATTR_BYTES_OFFSET, &[name, value]);
        return Ok(None);
    }
    let run = fs.alloc.allocate_contiguous((value.len() as u64).div_ceil(BLOCK_SIZE), Purpose::Data)?;
    match fs.pm.copy(run.start.offset(), value) {
        Ok(flushed) => {
            *pending = Some(match pending.take() {
                Some(earlier) => earlier.and(flushed),
                None => flushed,
            });
        }
        Err(error) => {
            fs.alloc.free(run);
            return Err(error);
        }
    }
    entry.place = run.start.0;
    entry.value_checksum = crc32c::crc32c(value);
    batch.push(&entry, XATTR_BYTES_OFFSET, &[name]);
    Ok(Some(run))
}

impl<P: Pm> Shared<P> {
    pub(crate) fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        // The blocks of a value are freed only after it left the index, so the index stays locked while it is read.
        let slot = inode.xattrs.lock();
        let found =
            slot.as_ref().and_then(|index| index.position(name).map(|position| &index.list[position]));
        let xattr = found.ok_or(Error::new(Kind::NoAttribute))?;
        self.read_value(inode, xattr)
    }

    fn read_value(&self, inode: &Inode, xattr: &Xattr) -> Result<Vec<u8>> {
        if let Some(run) = xattr.run {
            return read_blocks(&*self.pm, inode.number, xattr, run);
        }
        let mut value = vec![0; xattr.value_len as usize];
        let offset = xattr.address + (XATTR_BYTES_OFFSET + xattr.name.len()) as u64;
        self.pm.read(offset, &mut value)?;
        Ok(value)
    }

    pub(crate) fn list_xattrs(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let slot = inode.xattrs.lock();
        let names = slot.as_ref().map(|index| index.list.iter().map(|xattr| xattr.name.to_vec()).collect());
        Ok(names.unwrap_or_default())
    }

    /// Sets an attribute, or removes it.
    pub(crate) fn change_xattrs(
        &self,
        inode: &Inode,
        name: &[u8],
        value: Option<(&[u8], XattrMode)>,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        inode.check_flags(nacre_engine::Attr::IMMUTABLE | nacre_engine::Attr::APPEND_ONLY)?;
        match value {
            Some((value, how)) => self.set_xattr(inode, name, (value, how), mode, now),
            None => self.remove_xattr(inode, name, now),
        }
    }

    fn set_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        (value, how): (&[u8], XattrMode),
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        let mut log = inode.log.lock();
        let (exists, total) = {
            let slot = inode.xattrs.lock();
            let list = slot.as_ref().map_or(&[][..], |index| &index.list);
            let total: usize = list.iter().map(|x| x.name.len() + x.value_len as usize).sum();
            (list.iter().any(|x| *x.name == *name), total)
        };
        check_xattr_mode(how, exists)?;
        if total + name.len() + value.len() > MAX_TOTAL {
            return Err(Error::no_space(Resource::Limit, 0));
        }
        let mut batch = Batch::default();
        let mut pending = None;
        let run = push_set(self, &mut batch, name, value, now, &mut pending)?;
        if let Some(mode) = mode {
            // With an ACL comes a mode, which stays when the ACL goes: all attributes, in the same operation.
            let attributes = Attributes { mode: (mode & 0o7777) as u16, ctime: now, ..inode.attr.get() };
            batch.push_line(&inode.attr_entry(&attributes, inode.size()));
        }
        let after = pending.map_or_else(Durable::nothing_before, |flushed| self.pm.fence(flushed));
        let (owner, address) = self.commit_or_free(inode, &mut log, &mut batch, run, after)?;
        log.index.hold(owner, 1);
        let xattr = Xattr {
            name: name.into(),
            value_len: value.len() as u32,
            run,
            checksum: if run.is_some() { crc32c::crc32c(value) } else { 0 },
            owner,
            address,
            sequence: log.state.next_sequence - 1 - u64::from(mode.is_some()),
        };
        let old = insert(&inode.xattrs, xattr);
        self.forget_xattr(&mut log, old);
        let mut attr = inode.attr.lock();
        if let Some(mode) = mode {
            attr.mode = mode as u16;
        }
        attr.ctime = now;
        inode.relatime.changed();
        Ok(())
    }

    fn commit_or_free(
        &self,
        inode: &Inode,
        log: &mut Log,
        batch: &mut Batch,
        run: Option<Run>,
        after: Durable,
    ) -> Result<(Owner, u64)> {
        let result = Commit::of(inode, log).after(after).append(self, batch);
        // After a media error it is unknown whether the entry that names it is there.
        if let (Err(error), Some(run)) = (&result, run)
            && error.kind() != Kind::Media
        {
            self.alloc.free(run);
        }
        self.pm.fence(result?);
        Ok(batch.placed(0))
    }

    fn remove_xattr(&self, inode: &Inode, name: &[u8], now: Timestamp) -> Result<()> {
        let mut log = inode.log.lock();
        if inode.xattrs.lock().as_ref().is_none_or(|index| index.position(name).is_none()) {
            return Err(Error::new(Kind::NoAttribute));
        }
        let mut entry =
            XattrEntry { name_len: name.len() as u16, ctime: self.times.pack(now), ..XattrEntry::default() };
        entry.header.kind = kind::XATTR_REMOVE;
        let mut batch = Batch::default();
        batch.push(&entry, XATTR_BYTES_OFFSET, &[name]);
        let flushed = Commit::of(inode, &mut log).append(self, &mut batch)?;
        self.pm.fence(flushed);
        let old = remove(&inode.xattrs, name);
        self.forget_xattr(&mut log, old);
        inode.attr.lock().ctime = now;
        inode.relatime.changed();
        Ok(())
    }

    fn forget_xattr(&self, log: &mut Log, old: Option<Xattr>) {
        if let Some(old) = old {
            log.index.release(old.owner, 1);
            if let Some(run) = old.run {
                self.alloc.free(run);
            }
        }
    }

    /// The blocks of all values, for giving them back.
    pub(crate) fn xattr_runs(&self, inode: &Inode) -> Runs {
        let slot = inode.xattrs.lock();
        slot.iter().flat_map(|index| index.list.iter().filter_map(|xattr| xattr.run)).collect()
    }
}
