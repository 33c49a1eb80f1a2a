//! Memory whose stores stay in DRAM: what a repair would do is done on it, and the media below keep what they have.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nacre_engine::{BLOCK_SIZE, Error, Kind, LINE_SIZE, Result};

use crate::pm::Pm;
use crate::token::{Durable, Flushed, Stored};

const BLOCK: usize = BLOCK_SIZE as usize;

/// The memory `below` with changes that are forgotten when this is dropped. They take a block of DRAM for each block
/// that is stored to.
#[derive(Debug)]
pub struct Overlay<'a, P> {
    below: &'a P,
    changed: Mutex<HashMap<u64, Box<[u8; BLOCK]>>>,
}

impl<'a, P: Pm> Overlay<'a, P> {
    /// Nothing is changed yet.
    pub fn new(below: &'a P) -> Overlay<'a, P> {
        Overlay { below, changed: Mutex::default() }
    }

    fn changed(&self) -> MutexGuard<'_, HashMap<u64, Box<[u8; BLOCK]>>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.below.len() => Ok(()),
            _ => Err(Error::new(Kind::InvalidInput).object(format!("bytes {offset}+{len}"))),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        let mut changed = self.changed();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % BLOCK_SIZE) as usize;
            let count = (BLOCK - within).min(bytes.len() - done);
            let block = match changed.entry(at / BLOCK_SIZE) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(Box::new(self.copy_of(at / BLOCK_SIZE)))
                }
            };
            block[within..within + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        Ok(())
    }

    /// What is below, line by line: a line that cannot be read is zero once another line of its block is stored to.
    fn copy_of(&self, block: u64) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        let start = block * BLOCK_SIZE;
        for (index, line) in bytes.chunks_exact_mut(LINE_SIZE as usize).enumerate() {
            let at = start + index as u64 * LINE_SIZE;
            if at + LINE_SIZE > self.below.len() || self.below.read(at, line).is_err() {
                line.fill(0);
            }
        }
        bytes
    }
}

impl<P: Pm> Pm for Overlay<'_, P> {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check(offset, buf.len() as u64)?;
        let changed = self.changed();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = (at % BLOCK_SIZE) as usize;
            let count = (BLOCK - within).min(buf.len() - done);
            let part = &mut buf[done..done + count];
            match changed.get(&(at / BLOCK_SIZE)) {
                Some(block) => part.copy_from_slice(&block[within..within + count]),
                None => self.below.read(at, part)?,
            }
            done += count;
        }
        Ok(())
    }

    fn load_u64(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<Stored> {
        self.write(offset, bytes)?;
        Ok(Stored::new(offset, bytes.len() as u64))
    }

    fn copy(&self, offset: u64, bytes: &[u8]) -> Result<Flushed> {
        self.write(offset, bytes)?;
        Ok(Flushed::new())
    }

    fn zero(&self, offset: u64, len: u64) -> Result<Flushed> {
        self.check(offset, len)?;
        let mut at = offset;
        while at < offset + len {
            let count = (BLOCK_SIZE - at % BLOCK_SIZE).min(offset + len - at);
            self.write(at, &[0; BLOCK][..count as usize])?;
            at += count;
        }
        Ok(Flushed::new())
    }

    fn flush(&self, _stored: Stored) -> Flushed {
        Flushed::new()
    }

    fn fence(&self, _flushed: Flushed) -> Durable {
        Durable::new()
    }

    fn publish_u64(&self, offset: u64, value: u64, _after: Durable) -> Result<Stored> {
        self.store(offset, &value.to_le_bytes())
    }

    fn publish_entry(&self, offset: u64, bytes: &[u8], _after: Durable) -> Result<Flushed> {
        self.copy(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::Overlay;
    use crate::{Pm, SimPm};

    #[test]
    fn what_is_stored_stays_above() {
        let below = SimPm::from_image(&[7; 8192]);
        let above = Overlay::new(&below);
        above.copy(4090, &[1; 12]).unwrap().may_be_lost();
        above.zero(0, 8).unwrap().may_be_lost();
        let mut bytes = [0; 8192];
        above.read(0, &mut bytes).unwrap();
        let mut expected = [7; 8192];
        expected[..8].fill(0);
        expected[4090..4102].fill(1);
        assert_eq!(bytes, expected);
        assert_eq!(below.snapshot(), [7; 8192]);
        assert_eq!(above.load_u64(0).unwrap(), 0);
        assert!(above.store(8190, &[0; 3]).is_err() && above.read(u64::MAX, &mut [0; 2]).is_err());
    }
}
