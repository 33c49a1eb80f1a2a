//! Damaged copies: reading the other one, noting lines, and writing pages anew.

use std::collections::BTreeSet;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_media::Pm;

use crate::format::LINE;
use crate::geometry::Geometry;

/// Lines that are to be written anew from their copies.
#[derive(Default)]
pub(crate) struct Damaged {
    any: AtomicBool,
    lines: Mutex<BTreeSet<u64>>,
    /// Lines that cannot be mended.
    pub(crate) lasting: Mutex<BTreeSet<u64>>,
}

impl Damaged {
    /// The lines of these bytes are to be mended.
    pub(crate) fn note(&self, address: u64, len: u64) {
        let first = address / LINE * LINE;
        let lasting = self.lasting.lock();
        let mut lines = self.lines.lock();
        lines.extend((first..address + len).step_by(LINE as usize).filter(|line| !lasting.contains(line)));
        self.any.store(!lines.is_empty(), Ordering::Release);
    }

    /// Whether lines are to be mended.
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> BTreeSet<u64> {
        let mut lines = self.lines.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut lines)
    }
}

/// Reads the first of two copies that is whole. Gives which one it was. An error does not name the structure: its caller does.
pub(crate) fn read_either(
    pm: &impl Pm,
    copies: [u64; 2],
    buffer: &mut [u8],
    is_valid: impl Fn(&[u8]) -> bool,
) -> Result<usize> {
    let mut failed = Error::new(Kind::Corrupt);
    for (index, address) in copies.into_iter().enumerate() {
        match pm.read(address, buffer) {
            Ok(()) if is_valid(buffer) => return Ok(index),
            Ok(()) => {}
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Writes a page of metadata anew: `bad` lines, and those that cannot be read, from the other copy, the rest from
/// itself. No operation is under way.
pub(crate) fn mend_page(pm: &impl Pm, geometry: &Geometry, page: Block, bad: &[u64]) -> Result<()> {
    let own = page.offset();
    let primary = geometry.primary(own);
    let other = if primary == own { geometry.twin(own) } else { primary };
    let mut bytes = [0; BLOCK_SIZE as usize];
    for (index, line) in bytes.chunks_exact_mut(LINE as usize).enumerate() {
        let within = index as u64 * LINE;
        let is_bad = bad.contains(&(own + within));
        if is_bad || pm.read(own + within, line).is_err() {
            let from_other = pm.read(other + within, line);
            if from_other.is_err() && (!is_bad || pm.read(own + within, line).is_err()) {
                // Both are lost: zeros validate nowhere.
                line.fill(0);
            }
        }
    }
    let copied = pm.copy(own, &bytes)?;
    pm.fence(copied);
    Ok(())
}
