//! Damaged copies: reading the other one, noting lines, and writing pages anew.

use std::collections::BTreeSet;
use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_layout_parts::findings::Findings;
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;

use crate::format::{INODE_SIZE, LINE, NEXT_ORPHAN, open_any};
use crate::geometry::Geometry;

/// Places of damage that are told, at most: a mount keeps them in DRAM.
const MOST_TOLD: usize = 10_000;
/// The byte that fills a line of a row that is lost in both copies: no row validates with it.
const LOST: u8 = 0xbd;

/// Damage that was met: lines that are to be written anew from their copies, and structures that are lost.
#[derive(Default)]
pub(crate) struct Damaged {
    /// Something is to be mended or counted.
    any: AtomicBool,
    noted: Mutex<Noted>,
    /// Lines that cannot be mended.
    pub(crate) lasting: Mutex<BTreeSet<u64>>,
    /// The row of the volume counts damage: a mount does that. A check repairs it instead.
    pub(crate) is_counted: AtomicBool,
    /// Descriptions of it, each told once.
    pub(crate) findings: Arc<Findings>,
}

/// Damage that is not mended or counted yet.
#[derive(Default)]
pub(crate) struct Noted {
    pub(crate) lines: BTreeSet<u64>,
    /// Where the structures begin whose copy is mended with these lines.
    pub(crate) places: BTreeSet<u64>,
    /// Structures without a copy that is whole.
    pub(crate) lost: u32,
    /// The first lines of structures that were told.
    told: BTreeSet<u64>,
}

impl Damaged {
    /// The lines of these bytes are to be mended.
    pub(crate) fn note(&self, address: u64, len: u64) {
        self.note_copy(address, len, || format!("metadata at byte {address}"));
    }

    /// One copy of a structure is damaged.
    pub(crate) fn note_copy(&self, address: u64, len: u64, what: impl FnOnce() -> String) {
        let first = address / LINE * LINE;
        let lasting = self.lasting.lock();
        let mut noted = self.noted.lock();
        let lines = (first..address + len).step_by(LINE as usize).filter(|line| !lasting.contains(line));
        let before = noted.lines.len();
        noted.lines.extend(lines);
        if noted.lines.len() > before {
            noted.places.insert(address);
        }
        if noted.is_new(first) {
            self.findings.note(format!("one copy of {} is damaged, and the other one is used", what()));
        }
        self.any.store(noted.is_any(), Ordering::Release);
    }

    /// Both copies of a structure are damaged.
    pub(crate) fn note_lost(&self, address: u64, what: impl FnOnce() -> String) {
        let mut noted = self.noted.lock();
        // The place of a loss is told apart from that of a damaged copy, which came before.
        if noted.is_new(address / LINE * LINE + 1) {
            noted.lost = noted.lost.saturating_add(1);
            let what = what();
            self.findings.note(format!("both copies of {what} are damaged; unmount, and run nacre fsck"));
        }
        self.any.store(noted.is_any(), Ordering::Release);
    }

    /// A scrub has mended these bytes, and counts that: a note of a reader about them is no more to be done.
    pub(crate) fn is_mended(&self, address: u64, len: u64) {
        let (first, end) = (address / LINE * LINE, address + len);
        let mut noted = self.noted.lock();
        noted.lines.retain(|line| !(first..end).contains(line));
        noted.places.retain(|place| !(first..end).contains(place));
        self.any.store(noted.is_any(), Ordering::Release);
    }

    /// Whether something is to be mended or counted.
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Noted {
        let mut noted = self.noted.lock();
        self.any.store(false, Ordering::Release);
        let told = std::mem::take(&mut noted.told);
        std::mem::replace(&mut *noted, Noted { told, ..Noted::default() })
    }
}

impl Noted {
    fn is_any(&self) -> bool {
        !self.lines.is_empty() || self.lost > 0
    }

    /// Whether a place was not told before. Beyond a bound, none is told.
    fn is_new(&mut self, place: u64) -> bool {
        self.told.len() < MOST_TOLD && self.told.insert(place)
    }
}

/// Reads the first of two copies that is whole. Gives which one it was. An error does not name the structure: its caller
/// does.
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

/// The words of a list of orphans at the start of a line that may be the third one of an inode, if they are whole. They
/// have checks of their own, so that the other copy of them may be the damaged one.
fn words_of_list(geometry: &Geometry, address: u64, line: &[u8]) -> Option<[u8; 16]> {
    let inode = geometry.primary(address).checked_sub(NEXT_ORPHAN)?;
    let words = *line.first_chunk::<16>()?;
    let is_whole = |word: &[u8; 8]| open_any(u64::from_le_bytes(*word), geometry.seed(inode)).is_some();
    (inode.is_multiple_of(INODE_SIZE) && words.as_chunks::<8>().0.iter().all(is_whole)).then_some(words)
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
            let words = own_line.as_ref().ok().and_then(|()| words_of_list(geometry, own + within, line));
            let from_other = pm.read(other + within, line);
            if from_other.is_err() && (own_line.is_err() || pm.read(own + within, line).is_err()) {
                // Both are lost: zeros validate nowhere but in rows, where they say that there is none.
                line.fill(if geometry.has_rows(own) { LOST } else { 0 });
            }
            if let Some(words) = words {
                line[..words.len()].copy_from_slice(&words);
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
