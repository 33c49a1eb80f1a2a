//! Metadata is there twice: reading it from the copy that is whole, and mending the other.
//!
//! A reader takes the primary. Where that cannot be read or does not validate, it takes the backup, and notes the lines
//! of the primary. They are written anew before the next operation begins, while no operation is under way: then the
//! two copies of everything are equal.

use std::collections::BTreeSet;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_media::Pm;

use crate::format::{LINE, open_any};
use crate::fs::Shared;
use crate::geometry::Geometry;

/// Turns after which a reader believes that a structure is damaged, and not just being changed.
const TURNS: usize = 64;

/// Lines that are to be written anew from their copies.
#[derive(Default)]
pub(crate) struct Damaged {
    any: AtomicBool,
    lines: Mutex<BTreeSet<u64>>,
    /// Lines that were written anew.
    pub(crate) mended: AtomicU64,
    /// Lines that could not be.
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

    fn take(&self) -> BTreeSet<u64> {
        let mut lines = self.lines.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut lines)
    }
}

/// Reads the first of two copies that is whole. Gives which one it was.
pub(crate) fn read_either(
    pm: &impl Pm,
    copies: [u64; 2],
    buffer: &mut [u8],
    is_valid: impl Fn(&[u8]) -> bool,
) -> Result<usize> {
    let mut failed = Error::corrupt("both copies");
    for (index, address) in copies.into_iter().enumerate() {
        match pm.read(address, buffer) {
            Ok(()) if is_valid(buffer) => return Ok(index),
            Ok(()) => {}
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl<P: Pm> Shared<P> {
    /// Reads metadata at an address of a primary, from either copy. `lost` words an error.
    pub(crate) fn read_entry(
        &self,
        address: u64,
        buffer: &mut [u8],
        is_valid: impl Fn(&[u8]) -> bool,
        lost: impl Fn() -> String,
    ) -> Result<()> {
        if self.pm.read(address, buffer).is_ok() && is_valid(buffer) {
            return Ok(());
        }
        self.read_again(address, buffer, &is_valid).map_err(|error| error.object(lost()))
    }

    #[cold]
    fn read_again(&self, address: u64, buffer: &mut [u8], is_valid: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        // Another thread may be writing it: first the backup, then the primary.
        for _ in 0..TURNS {
            if self.pm.read(address, buffer).is_ok() && is_valid(buffer) {
                return Ok(());
            }
            nacre_engine::sync::hint::spin_loop();
        }
        let copies = [address, self.geometry.twin(address)];
        let found = read_either(&*self.pm, copies, buffer, is_valid)?;
        if found == 1 {
            self.damaged.note(address, buffer.len() as u64);
        }
        Ok(())
    }

    /// Reads checked words at an address, which all have one seed.
    pub(crate) fn read_words(
        &self,
        address: u64,
        seed: u32,
        words: &mut [u64],
        lost: impl Fn() -> String,
    ) -> Result<()> {
        use zerocopy::IntoBytes;
        let is_valid = |bytes: &[u8]| {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().all(|word| open_any(u64::from_le_bytes(*word), seed).is_some())
        };
        if self.pm.read(address, words.as_mut_bytes()).is_err() || !is_valid(words.as_bytes()) {
            // Damage takes a line. The others of these words may have theirs in the backup: line by line.
            let mut at = 0;
            while at < words.len() {
                let place = address + at as u64 * 8;
                let count = ((LINE - place % LINE) / 8) as usize;
                let end = (at + count).min(words.len());
                let part = words[at..end].as_mut_bytes();
                self.read_again(place, part, &is_valid).map_err(|error| error.object(lost()))?;
                at = end;
            }
        }
        for word in words {
            *word &= (1 << 48) - 1;
        }
        Ok(())
    }

    /// Reads one checked word.
    pub(crate) fn read_word(&self, address: u64, seed: u32, lost: impl Fn() -> String) -> Result<u64> {
        if let Ok(word) = self.pm.load_u64(address)
            && let Some(value) = open_any(word, seed)
        {
            return Ok(value);
        }
        let mut words = [0];
        self.read_words(address, seed, &mut words, lost)?;
        Ok(words[0])
    }

    /// Writes the noted lines anew. The caller has no lane.
    pub(crate) fn mend_noted(&self) -> Result<()> {
        if !self.damaged.is_any() || self.read_only {
            return Ok(());
        }
        // While all lanes are held, no operation is under way.
        let _lanes: Vec<_> = self.lanes.iter().map(|lane| lane.scratch.lock()).collect();
        let lines = self.damaged.take();
        let pages: BTreeSet<u64> = lines.iter().map(|line| line / BLOCK_SIZE).collect();
        for page in pages {
            let of_page: Vec<u64> = lines.iter().copied().filter(|line| line / BLOCK_SIZE == page).collect();
            match mend_page(&*self.pm, &self.geometry, Block(page), &of_page) {
                Ok(()) => {
                    self.damaged.mended.fetch_add(of_page.len() as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == Kind::Media => self.damaged.lasting.lock().extend(of_page),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
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
