//! Metadata is there twice: reading it from the copy that is whole, and mending the other.
//!
//! A reader takes the primary. Where that cannot be read or does not validate, it takes the backup, and notes the lines
//! of the primary. They are written anew before the next operation begins, while no operation is under way: then the
//! two copies of everything are equal.

use std::collections::BTreeSet;
use std::time::SystemTime;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Block, Kind, Result};
use nacre_media::Pm;

use crate::format::{LINE, open_any};
use crate::fs::Shared;
use crate::mend::{Noted, mend_page, read_either};

/// Turns after which a reader believes that a structure is damaged, and not just being changed.
const TURNS: usize = 64;

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
        self.read_again(address, buffer, &is_valid, &lost)
    }

    #[cold]
    fn read_again(
        &self,
        address: u64,
        buffer: &mut [u8],
        is_valid: &dyn Fn(&[u8]) -> bool,
        lost: &dyn Fn() -> String,
    ) -> Result<()> {
        // Another thread may be writing it: first the backup, then the primary.
        for _ in 0..TURNS {
            if self.pm.read(address, buffer).is_ok() && is_valid(buffer) {
                return Ok(());
            }
            nacre_engine::sync::hint::spin_loop();
        }
        let copies = [address, self.geometry.twin(address)];
        match read_either(&*self.pm, copies, buffer, is_valid) {
            Ok(0) => Ok(()),
            Ok(_) => {
                self.damaged.note_copy(address, buffer.len() as u64, lost);
                Ok(())
            }
            Err(error) => {
                // A reader without a lock may come to a pool block that was given back.
                if self.has_metadata(address) {
                    self.damaged.note_lost(address, lost);
                }
                Err(error.object(lost()))
            }
        }
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
                self.read_again(place, part, &is_valid, &lost)?;
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

    /// Writes the noted lines anew, and counts what was noted in the row of the volume. The caller has no lane.
    pub(crate) fn mend_noted(&self) -> Result<()> {
        if !self.damaged.is_any() || self.read_only {
            return Ok(());
        }
        let (mended, lost) = self.mend_lines()?;
        self.count_damage(mended, lost);
        Ok(())
    }

    /// Counts structures of which a copy was mended, and lost ones, in the row of the volume. The caller has no lane.
    pub(crate) fn count_damage(&self, mended: u64, lost: u32) {
        if (mended, lost) == (0, 0) || !self.damaged.is_counted.load(Ordering::Acquire) {
            return;
        }
        let now = self.times.pack(SystemTime::now().into());
        // Without the lock of the superblock, which a caller may have.
        let counted = self.change(|change| {
            let mut row = self.row.lock();
            let after = change.put_row(&row, |row| {
                row.mended = row.mended.saturating_add(mended);
                row.errors = row.errors.saturating_add(lost);
                row.last_error = if lost > 0 { now } else { row.last_error };
            });
            change.commit()?;
            *row = after;
            Ok(())
        });
        // A row that cannot be written keeps the operation that waits for this from nothing.
        drop(counted);
    }

    /// Writes the noted lines anew. Gives how many structures that mends, and how many are lost.
    fn mend_lines(&self) -> Result<(u64, u32)> {
        // While all lanes are held, no operation is under way.
        let _lanes: Vec<_> = self.lanes.iter().map(|lane| lane.scratch.lock()).collect();
        let Noted { lines, mut places, lost, .. } = self.damaged.take();
        let pages: BTreeSet<u64> = lines.iter().map(|line| line / BLOCK_SIZE).collect();
        // A pool block may have been given back since, and have data of files now.
        for page in pages.into_iter().filter(|page| self.has_metadata(page * BLOCK_SIZE)) {
            let of_page: Vec<u64> = lines.iter().copied().filter(|line| line / BLOCK_SIZE == page).collect();
            match mend_page(&*self.pm, &self.geometry, Block(page), &of_page) {
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Media => {
                    places.retain(|place| place / BLOCK_SIZE != page);
                    self.damaged.lasting.lock().extend(of_page);
                }
                Err(error) => return Err(error),
            }
        }
        Ok((places.len() as u64, lost))
    }
}
