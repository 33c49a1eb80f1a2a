//! Entries that hold bytes: long names, targets of symbolic links, attributes. Bytes that do not fit one entry continue
//! in another.

use nacre_engine::{Error, Result};
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::commit::Change;
use crate::counts::Purpose;
use crate::format::pools::{ATTRIBUTES, NAMES, NODES, SIZES};
use crate::format::{BYTES_HEAD, RawBytes, RawHead, bytes_checksum, status};
use crate::fs::Shared;

/// The most bytes of all parts together.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// The pool of an entry for so many bytes: of names, if they fit one.
fn pool_of(len: usize, smallest: usize) -> usize {
    let fits = |pool: &usize| BYTES_HEAD + len <= SIZES[*pool] as usize;
    (smallest..NODES).find(fits).unwrap_or(ATTRIBUTES)
}

impl<P: Pm> Shared<P> {
    /// One entry: its pool, where the next part is, and its bytes.
    pub(crate) fn read_part(&self, address: u64, into: &mut Vec<u8>) -> Result<(usize, u64)> {
        let lost = || format!("the bytes at {address}");
        let head = self.read_pool_of(address)?;
        let size = SIZES[head] as usize;
        let seed = self.geometry.seed(address);
        let mut entry = [0; SIZES[ATTRIBUTES] as usize];
        let entry = &mut entry[..size];
        let is_valid = |entry: &[u8]| {
            let raw = of_bytes(entry);
            let end = BYTES_HEAD + raw.len as usize;
            end <= entry.len() && raw.head.checksum == bytes_checksum(&entry[..end], seed)
        };
        self.read_entry(address, entry, is_valid, lost)?;
        let raw = of_bytes(entry);
        into.extend_from_slice(&entry[BYTES_HEAD..BYTES_HEAD + raw.len as usize]);
        Ok((head, raw.next))
    }

    /// The pool of an entry of bytes.
    fn read_pool_of(&self, address: u64) -> Result<usize> {
        let damaged = || Error::corrupt(format!("the bytes at {address}"));
        let pool = self.read_head(self.geometry.pool_of(address)).map_err(|_| damaged())?.pool as usize;
        let holds_bytes = (NAMES..NODES).contains(&pool) || pool == ATTRIBUTES;
        if holds_bytes && self.geometry.is_entry(address, SIZES[pool]) { Ok(pool) } else { Err(damaged()) }
    }

    /// The bytes of an entry and of those behind it. Calls `visit` with the pool and the address of each.
    pub(crate) fn read_bytes(&self, address: u64, mut visit: impl FnMut(usize, u64)) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut at = address;
        while at != 0 {
            let (pool, next) = self.read_part(at, &mut bytes)?;
            visit(pool, at);
            at = next;
            if bytes.len() > MAX_BYTES {
                return Err(Error::corrupt(format!("the bytes at {address}: they have no end")));
            }
        }
        Ok(bytes)
    }
}

fn of_bytes(entry: &[u8]) -> RawBytes {
    let mut raw = RawBytes::new_zeroed();
    raw.as_mut_bytes().copy_from_slice(&entry[..BYTES_HEAD]);
    raw
}

impl<P: Pm> Change<'_, P> {
    /// Writes bytes to new entries, of the pool `smallest` or a larger one; gives the first.
    pub(crate) fn write_bytes(&mut self, bytes: &[u8], smallest: usize, purpose: Purpose) -> Result<u64> {
        let most = SIZES[ATTRIBUTES] as usize - BYTES_HEAD;
        let mut next = 0;
        // The last part first: each leads to the one behind it.
        for part in bytes.chunks(most).rev() {
            let pool = if bytes.len() > most { ATTRIBUTES } else { pool_of(part.len(), smallest) };
            let address = self.entry(pool, purpose)?;
            let mut raw = RawBytes::new_zeroed();
            raw.head = RawHead { status: status::CONSISTENT, pool: pool as u8, ..RawHead::default() };
            raw.next = next;
            raw.len = part.len() as u32;
            let mut entry = Vec::with_capacity(BYTES_HEAD + part.len());
            entry.extend_from_slice(raw.as_bytes());
            entry.extend_from_slice(part);
            let checksum = bytes_checksum(&entry, self.fs.geometry.seed(address));
            entry[..4].copy_from_slice(&checksum.to_le_bytes());
            entry.resize(entry.len().next_multiple_of(8), 0);
            self.write_new(address, &entry)?;
            next = address;
        }
        Ok(next)
    }

    /// Frees all entries of such bytes.
    pub(crate) fn free_bytes(&mut self, address: u64) -> Result<()> {
        let mut parts = Vec::new();
        self.fs.read_bytes(address, |pool, at| parts.push((pool, at)))?;
        parts.into_iter().try_for_each(|(pool, at)| self.free_entry(pool, at))
    }
}
