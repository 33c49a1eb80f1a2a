//! Damaged copies: reading the other one, noting lines, and writing pages anew.

use std::collections::BTreeSet;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;

use crate::format::LINE;
use crate::geometry::Geometry;

/// The byte that fills a line of a row that is lost in both copies: no row validates with it.
const LOST: u8 = 0xbd;

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

/// Mends a page of metadata from the other copy: `bad` lines alone, or the whole page if it has lines that cannot be
/// read, because a media error goes with its page. No operation of this process is under way.
///
/// [`Media`](Kind::Media) for such a page that zones share: another process may change its own lines there.
pub(crate) fn mend_page(pm: &impl Pm, geometry: &Geometry, page: Block, bad: &[u64]) -> Result<()> {
    let own = page.offset();
    let primary = geometry.primary(own);
    let other = if primary == own { geometry.twin(own) } else { primary };
    let mut bytes = [0; BLOCK_SIZE as usize];
    let mut is_readable = true;
    for (index, line) in bytes.chunks_exact_mut(LINE as usize).enumerate() {
        let within = index as u64 * LINE;
        let own_line = pm.read(own + within, line);
        is_readable &= own_line.is_ok();
        if bad.contains(&(own + within)) || own_line.is_err() {
            let from_other = pm.read(other + within, line);
            if from_other.is_err() && (own_line.is_err() || pm.read(own + within, line).is_err()) {
                // Both are lost: zeros validate nowhere but in rows, where they say that there is none.
                line.fill(if geometry.has_rows(own) { LOST } else { 0 });
            }
        }
    }
    let mut pending = None;
    if is_readable {
        for line in bad {
            let within = (line - own) as usize;
            pending = join(pending, pm.copy(*line, &bytes[within..within + LINE as usize])?);
        }
    } else if page.0 >= geometry.first_data_block || !pm.is_shared() {
        pending = join(pending, pm.copy(own, &bytes)?);
    } else {
        return Err(Error::new(Kind::Media)
            .object(format!("a page that zones share, at byte {own} of the device"))
            .advice("nacre fsck -p mends it, while nothing of the device is mounted"));
    }
    if let Some(pending) = pending {
        pm.fence(pending);
    }
    Ok(())
}
