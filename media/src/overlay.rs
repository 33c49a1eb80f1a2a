//! Persistent memory whose stores stay in DRAM: a repair can run on it, and the media below stay unchanged.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nacre_engine::{BLOCK_SIZE, Error, Kind, LINE_SIZE, Result};

use crate::pm::Pm;
use crate::token::{Durable, Flushed, Stored};

const BLOCK: usize = BLOCK_SIZE as usize;
const LINE: usize = LINE_SIZE as usize;

/// The medium `below`, with changes that are forgotten when this is dropped. Each block that is stored to takes a
/// block of DRAM. Media errors refuse the same accesses as below, so that a dry run shows only repairs that can be
/// done.
#[derive(Debug)]
pub struct Overlay<'a, P> {
    below: &'a P,
    changed: Mutex<HashMap<u64, Changed>>,
}

/// A block that was stored to.
#[derive(Debug)]
struct Changed {
    bytes: Box<[u8; BLOCK]>,
    /// Its lines that cannot be accessed, a bit each.
    bad: u64,
}

impl Changed {
    /// Accesses bytes of it: they are there.
    fn check(&self, within: usize, count: usize) -> Result<()> {
        let (first, end) = (within / LINE, (within + count).div_ceil(LINE));
        let lines = u64::MAX >> (64 - (end - first)) << first;
        if self.bad & lines == 0 {
            Ok(())
        } else {
            Err(Error::new(Kind::Media).object("a line that cannot be accessed"))
        }
    }
}

impl<'a, P: Pm> Overlay<'a, P> {
    /// Nothing is changed yet.
    pub fn new(below: &'a P) -> Overlay<'a, P> {
        Overlay { below, changed: Mutex::default() }
    }

    fn changed(&self) -> MutexGuard<'_, HashMap<u64, Changed>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.below.len() => Ok(()),
            _ => Err(Error::new(Kind::InvalidInput).object(format!("bytes {offset}+{len}"))),
        }
    }

    /// A store that is `past_cache` and covers whole blocks goes over media errors in them.
    fn write(&self, offset: u64, bytes: &[u8], past_cache: bool) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        let mut changed = self.changed();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % BLOCK_SIZE) as usize;
            let count = (BLOCK - within).min(bytes.len() - done);
            let block = changed.entry(at / BLOCK_SIZE).or_insert_with(|| self.copy_of(at / BLOCK_SIZE));
            if past_cache && count == BLOCK {
                block.bad = 0;
            }
            block.check(within, count)?;
            block.bytes[within..within + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        Ok(())
    }

    /// A copy of the block below.
    fn copy_of(&self, block: u64) -> Changed {
        let mut changed = Changed { bytes: Box::new([0; BLOCK]), bad: 0 };
        let start = block * BLOCK_SIZE;
        for (index, line) in changed.bytes.chunks_exact_mut(LINE).enumerate() {
            let at = start + index as u64 * LINE_SIZE;
            // A device may end within a block.
            if at + LINE_SIZE <= self.below.len() && self.below.read(at, line).is_err() {
                changed.bad |= 1 << index;
                line.fill(0);
            }
        }
        changed
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
                Some(block) => {
                    block.check(within, count)?;
                    part.copy_from_slice(&block.bytes[within..within + count]);
                }
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
        self.write(offset, bytes, false)?;
        Ok(Stored::new(offset, bytes.len() as u64))
    }

    fn copy(&self, offset: u64, bytes: &[u8]) -> Result<Flushed> {
        self.write(offset, bytes, true)?;
        Ok(Flushed::new())
    }

    fn zero(&self, offset: u64, len: u64) -> Result<Flushed> {
        self.check(offset, len)?;
        let mut at = offset;
        while at < offset + len {
            let count = (BLOCK_SIZE - at % BLOCK_SIZE).min(offset + len - at);
            self.write(at, &[0; BLOCK][..count as usize], true)?;
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

    fn known_errors(&self) -> Vec<std::ops::Range<u64>> {
        self.below.known_errors()
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

    /// It let a repair store to lines that no hardware lets it store to: a dry run said that it would repair what it could not.
    #[test]
    fn media_errors_below_are_errors_above() {
        let below = SimPm::from_image(&[7; 8192]);
        below.poison(4096 + 128, 64);
        let above = Overlay::new(&below);
        let mut line = [0; 64];
        assert!(above.store(4096 + 128, &line).is_err() && above.read(4096 + 128, &mut line).is_err());
        above.copy(4096, &[1; 64]).unwrap().may_be_lost();
        assert!(above.copy(4096 + 100, &line).is_err() && above.read(4096 + 100, &mut line).is_err());
        above.read(4096 + 64, &mut line).unwrap();
        assert_eq!(line, [7; 64]);
        above.copy(4000, &[2; 96 + 4096]).unwrap().may_be_lost();
        above.read(4096 + 128, &mut line).unwrap();
        assert_eq!(line, [2; 64]);
        assert!(below.read(4096 + 128, &mut line).is_err());
    }
}
