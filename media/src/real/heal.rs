//! Writing over media errors.
//!
//! A page with a media error is out of the mapping: stores to it fail as loads do. The kernel clears the error when
//! all of the page is written by write(2) to the file or the block device; a devdax device has no write(2), and its
//! errors are cleared from outside (ndctl). So a copy, or zeros, that cover whole blocks go on over errors in them. A
//! store to a part of such a block fails, because nothing could say what the rest of it was.

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result};

use super::{RealPm, fault};
use crate::pm::Pm;
use crate::token::Flushed;

const BLOCK: usize = BLOCK_SIZE as usize;

impl RealPm {
    /// Copies bytes that met a media error, block by block.
    #[cold]
    #[inline(never)]
    pub(super) fn copy_over_errors(&self, offset: u64, bytes: &[u8], error: Error) -> Result<Flushed> {
        if bytes.len() < BLOCK {
            return Err(error);
        }
        let mut flushed = Flushed::new();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let count = ((BLOCK_SIZE - at % BLOCK_SIZE) as usize).min(bytes.len() - done);
            let piece = &bytes[done..done + count];
            flushed = flushed.and(match self.copy_mapped(at, piece) {
                Err(error) if error.kind() == Kind::Media && count == BLOCK => {
                    self.rewrite(at, piece, error)?
                }
                copied => copied?,
            });
            done += count;
        }
        Ok(flushed)
    }

    /// The same for zeros.
    #[cold]
    #[inline(never)]
    pub(super) fn zero_over_errors(&self, offset: u64, len: u64, error: Error) -> Result<Flushed> {
        if len < BLOCK_SIZE {
            return Err(error);
        }
        let mut flushed = Flushed::new();
        let mut at = offset;
        while at < offset + len {
            let count = (BLOCK_SIZE - at % BLOCK_SIZE).min(offset + len - at);
            flushed = flushed.and(match self.zero_mapped(at, count) {
                Err(error) if error.kind() == Kind::Media && count == BLOCK_SIZE => {
                    self.rewrite(at, &[0; BLOCK], error)?
                }
                zeroed => zeroed?,
            });
            at += count;
        }
        Ok(flushed)
    }

    /// Writes a whole block past its media error; `error` is returned if that does not help.
    fn rewrite(&self, offset: u64, block: &[u8], error: Error) -> Result<Flushed> {
        if let Some(device) = &self.device
            && let Err(advice) = device.write_block(offset, block)
        {
            return Err(error.advice(advice));
        }
        if let Some(emulator) = &self.emulator {
            emulator.heal(offset..offset + BLOCK_SIZE);
        }
        if self.device.is_none() {
            return self.copy_mapped(offset, block);
        }
        let address = self.base.addr() as u64 + offset;
        fault::forget(address..address + BLOCK_SIZE);
        // The content of the mapping is what counts.
        let mut seen = [0; BLOCK];
        if self.read(offset, &mut seen).is_err() || seen != block {
            return Err(error.advice("the kernel did not clear it"));
        }
        Ok(Flushed::new())
    }
}
