//! Extended attributes: entries of the inode's log, with an index in DRAM.

use std::ops::ControlFlow;

use nacre_engine::sync::Mutex;
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result, Timestamp, XattrMode};
use nacre_layout_parts::rules::{check_xattr, check_xattr_mode};
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::{Purpose, Run, Runs};
use crate::attributes::Attributes;
use crate::batch::Batch;
use crate::commit::Commit;
use crate::format::{LINE, MAX_ENTRY_LINES, MAX_XATTR_SIZE, XATTR_BYTES_OFFSET, XattrEntry, kind, place};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::log::{Log, Owner};
use crate::space::attr_entry;

/// Bytes that all names and values of an inode may take together.
const MAX_TOTAL: usize = 1 << 20;
/// A name and value that fit this many lines are in the entry; a larger value gets blocks of its own.
const INLINE_VALUE_LINES: usize = 16;

/// One attribute.
#[derive(Debug, Clone)]
pub(crate) struct Xattr {
    pub(crate) name: Box<[u8]>,
    pub(crate) value_len: u32,
    /// Blocks of the value, when it is not in the entry.
    pub(crate) run: Option<Run>,
    pub(crate) checksum: u32,
    pub(crate) owner: Owner,
    pub(crate) address: u64,
    pub(crate) sequence: u64,
}

/// All attributes of an inode, in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct XattrIndex {
    pub(crate) list: Vec<Xattr>,
}

/// The index of an inode; `None` while it has no attribute.
pub(crate) type XattrSlot = Mutex<Option<Box<XattrIndex>>>;

impl XattrIndex {
    fn position(&self, name: &[u8]) -> Option<usize> {
        self.list.iter().position(|xattr| *xattr.name == *name)
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        self.list.iter().map(|x| (size_of::<Xattr>() + x.name.len()) as u64).sum()
    }
}

/// Takes an attribute into the index; gives back the one that it replaces.
pub(crate) fn insert(slot: &XattrSlot, xattr: Xattr) -> Option<Xattr> {
    let mut slot = slot.lock();
    let index = slot.get_or_insert_default();
    match index.position(&xattr.name) {
        Some(position) => Some(std::mem::replace(&mut index.list[position], xattr)),
        None => {
            index.list.push(xattr);
            None
        }
    }
}

/// Takes an attribute out of the index.
pub(crate) fn remove(slot: &XattrSlot, name: &[u8]) -> Option<Xattr> {
    let mut slot = slot.lock();
    let index = slot.as_mut()?;
    let removed = index.position(name).map(|position| index.list.remove(position));
    if index.list.is_empty() {
        *slot = None;
    }
    removed
}

/// An entry of media as an attribute of the index.
pub(crate) fn from_entry(entry: &XattrEntry, bytes: &[u8], owner: Owner, address: u64) -> Result<Xattr> {
    let damaged = || Error::corrupt(format!("extended attribute at byte {address}"));
    let name_end = XATTR_BYTES_OFFSET + usize::from(entry.name_len);
    let name = bytes.get(XATTR_BYTES_OFFSET..name_end).ok_or_else(damaged)?;
    if entry.reserved != 0
        || entry.reserved2 != 0
        || name.is_empty()
        || entry.value_len as usize > MAX_XATTR_SIZE
    {
        return Err(damaged());
    }
    let run = (entry.place != 0).then(|| Run {
        start: Block(entry.place & place::BLOCK_MASK),
        len: u64::from(entry.value_len).div_ceil(BLOCK_SIZE),
    });
    if run.is_none() && name_end + entry.value_len as usize > bytes.len() {
        return Err(damaged());
    }
    Ok(Xattr {
        name: name.into(),
        value_len: entry.value_len,
        run,
        checksum: entry.value_checksum,
        owner,
        address,
        sequence: entry.header.sequence,
    })
}

/// Reads a value that has blocks of its own, and validates it.
fn read_blocks(pm: &impl Pm, inode: u64, xattr: &Xattr, run: Run) -> Result<Vec<u8>> {
    let mut value = vec![0; xattr.value_len as usize];
    pm.read(run.start.offset(), &mut value)?;
    if crc32c::crc32c(&value) != xattr.checksum {
        let name = String::from_utf8_lossy(&xattr.name).into_owned();
        return Err(Error::corrupt(format!("inode {inode}: value of attribute {name}")));
    }
    Ok(value)
}

/// The attributes with values in blocks of their own that cannot be read or do not validate, and why.
pub(crate) fn damaged_values(pm: &impl Pm, inode: &Inode) -> Vec<(Box<[u8]>, Error)> {
    let mut damaged = Vec::new();
    for_each(&inode.xattrs, |xattr| {
        if let Some(run) = xattr.run
            && let Err(error) = read_blocks(pm, inode.number, xattr, run)
        {
            damaged.push((xattr.name.clone(), error));
        }
        ControlFlow::Continue(())
    });
    damaged
}

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

    pub(crate) fn list_xattrs(&self, inode: &Inode) -> Vec<Vec<u8>> {
        let slot = inode.xattrs.lock();
        slot.as_ref()
            .map(|index| index.list.iter().map(|xattr| xattr.name.to_vec()).collect())
            .unwrap_or_default()
    }

    pub(crate) fn set_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        check_xattr(name, value, MAX_XATTR_SIZE)?;
        inode.check_flags(nacre_engine::Attr::IMMUTABLE | nacre_engine::Attr::APPEND_ONLY)?;
        let mut log = inode.log.lock();
        let (exists, total) = {
            let slot = inode.xattrs.lock();
            let list = slot.as_ref().map_or(&[][..], |index| &index.list);
            let total: usize = list.iter().map(|x| x.name.len() + x.value_len as usize).sum();
            (list.iter().any(|x| *x.name == *name), total)
        };
        check_xattr_mode(how, exists)?;
        if total + name.len() + value.len() > MAX_TOTAL {
            return Err(Error::new(Kind::NoSpace));
        }
        let mut batch = Batch::default();
        let mut pending = None;
        let run = push_set(self, &mut batch, name, value, now, &mut pending)?;
        if let Some(mode) = mode {
            // With an ACL comes a mode, which stays when the ACL goes: all attributes, in the same operation.
            let attributes = Attributes { mode: (mode & 0o7777) as u16, ctime: now, ..inode.attr.get() };
            batch.push_line(&attr_entry(inode, &attributes, inode.size()));
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

    pub(crate) fn remove_xattr(&self, inode: &Inode, name: &[u8], now: Timestamp) -> Result<()> {
        check_xattr(name, &[], MAX_XATTR_SIZE)?;
        inode.check_flags(nacre_engine::Attr::IMMUTABLE | nacre_engine::Attr::APPEND_ONLY)?;
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

/// Looks at each attribute until `visit` breaks.
pub(crate) fn for_each(slot: &XattrSlot, mut visit: impl FnMut(&mut Xattr) -> ControlFlow<()>) {
    if let Some(index) = slot.lock().as_mut() {
        for xattr in &mut index.list {
            if visit(xattr).is_break() {
                return;
            }
        }
    }
}
