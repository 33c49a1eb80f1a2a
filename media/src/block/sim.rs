//! A simulated disk beside simulated memory.
//!
//! Its bytes lie behind those of the PM, in one [`SimPm`]: so one trace holds the accesses to both, in order, and one
//! image the content of both after a crash. See [`crate::crash`].

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result};

use super::{BlockDevice, Transfer, check};
use crate::sim::SimPm;
use crate::token::Durable;

/// The byte that discarded blocks read as.
const DISCARDED: u8 = 0xDC;

/// A part of a [`SimPm`] that is a disk.
#[derive(Clone)]
pub struct SimDisk {
    memory: Arc<SimPm>,
    /// The first byte, behind the PM, and the number of bytes.
    start: u64,
    len: u64,
    name: String,
    /// It takes no writes.
    fails: Arc<AtomicBool>,
}

impl SimDisk {
    /// The disk with this number, from 0, of simulated memory that was [made with disks](SimPm::with_disks).
    pub fn of(memory: &Arc<SimPm>, number: usize) -> SimDisk {
        let (start, len) = memory.disk(number);
        let name = format!("simulated disk {number}");
        SimDisk { memory: Arc::clone(memory), start, len, name, fails: Arc::default() }
    }

    /// From now on writes and flushes of this handle, and of its clones, fail, or no longer do.
    pub fn fail_writes(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    fn check_fault(&self) -> Result<()> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Media).object(format!("{}: a fault that was asked for", self.name))),
            false => Ok(()),
        }
    }

    /// Makes these bytes unreadable until they are written again.
    pub fn poison(&self, offset: u64, len: u64) {
        assert!(offset + len <= self.len, "bytes of the disk");
        self.memory.poison_anywhere(self.start + offset, len);
    }

    /// Changes bytes without a trace: the hand of a test.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.len, "bytes of the disk");
        self.memory.poke(self.start + offset, bytes);
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk({}, {} bytes)", self.name, self.len)
    }
}

impl BlockDevice for SimDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn name(&self) -> &str {
        &self.name
    }

    #[track_caller]
    fn transfer(&self, batch: &mut [Transfer<'_>]) -> Result<()> {
        let site = Location::caller();
        for transfer in &mut *batch {
            check(transfer, self)?;
            let object = transfer.describe(&self.name);
            let made = match transfer {
                Transfer::Read { offset, into } => self.memory.disk_read(self.start + *offset, into),
                Transfer::Write { offset, from } => self.check_fault().map(|()| {
                    self.memory.disk_write(self.start + *offset, from, site);
                }),
            };
            made.map_err(|error| error.object(object))?;
        }
        Ok(())
    }

    #[track_caller]
    fn flush(&self) -> Result<Durable> {
        self.check_fault()?;
        self.memory.disk_flush(self.start..self.start + self.len, Location::caller());
        Ok(Durable::new())
    }

    /// Discarded blocks read as another content then, unless a crash comes before a flush.
    #[track_caller]
    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        let site = Location::caller();
        let mut there = [0; BLOCK_SIZE as usize];
        for block in (offset..offset + len).step_by(there.len()) {
            check(&Transfer::Read { offset: block, into: &mut there }, self)?;
            // A disk that was never written to there has nothing to lose, and what cannot be read is lost.
            let is_known = self.memory.disk_read(self.start + block, &mut there).is_ok();
            if is_known && there.iter().any(|byte| *byte != 0) {
                self.memory.disk_write(self.start + block, &[DISCARDED; BLOCK_SIZE as usize], site);
            }
        }
        Ok(true)
    }
}
