//! The index of an inode's extended attributes in DRAM, rebuilt from the log.

use std::ops::ControlFlow;

use nacre_engine::sync::Mutex;
use nacre_engine::{BLOCK_SIZE, Block, Error, Result};
use nacre_media::Pm;

use crate::alloc::Run;
use crate::format::{MAX_XATTR_SIZE, XATTR_BYTES_OFFSET, XattrEntry, place};
use crate::log::Owner;

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
    /// Where an attribute is in the list.
    pub(crate) fn position(&self, name: &[u8]) -> Option<usize> {
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
pub(crate) fn read_blocks(pm: &impl Pm, inode: u64, xattr: &Xattr, run: Run) -> Result<Vec<u8>> {
    let mut value = vec![0; xattr.value_len as usize];
    pm.read(run.start.offset(), &mut value)?;
    if crc32c::crc32c(&value) != xattr.checksum {
        let name = String::from_utf8_lossy(&xattr.name).into_owned();
        return Err(Error::corrupt(format!("inode {inode}: value of attribute {name}")));
    }
    Ok(value)
}

/// The attributes with values in blocks of their own that cannot be read or do not validate, and why.
pub(crate) fn damaged_values(pm: &impl Pm, inode: u64, slot: &XattrSlot) -> Vec<(Box<[u8]>, Error)> {
    let mut damaged = Vec::new();
    for_each(slot, |xattr| {
        if let Some(run) = xattr.run
            && let Err(error) = read_blocks(pm, inode, xattr, run)
        {
            damaged.push((xattr.name.clone(), error));
        }
        ControlFlow::Continue(())
    });
    damaged
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
