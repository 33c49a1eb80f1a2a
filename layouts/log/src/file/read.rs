//! Reading.

use nacre_engine::sync::atomic::{Ordering, fence};
use nacre_engine::{BLOCK_SIZE, Error, FileBlock, Kind, Place, PlacedExtent, Result, TierRead, Timestamp};
use nacre_media::Pm;

use crate::blockmap::BlockMap;
use crate::fs::Shared;
use crate::inode::Inode;
use crate::places::place_of;
use crate::seeded::fault;

/// Contiguous bytes of a file, and the size of the file after they were read.
enum Piece {
    /// They are read.
    Read { count: usize, size: u64 },
    /// They are on a tier.
    OnTier { extent: PlacedExtent, size: u64 },
}

impl<P: Pm> Shared<P> {
    pub(crate) fn read(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        match self.read_or_resolve(inode, offset, buffer, now)? {
            TierRead::Done(count) => Ok(count),
            // Less than was asked for would say that the file ends here, and the kernel would believe it.
            TierRead::OnTier { done, .. } => {
                Err(at_byte(Error::new(Kind::Elsewhere), inode, offset + done as u64))
            }
        }
    }

    pub(crate) fn read_or_resolve(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<TierRead> {
        let map = self.file(inode)?;
        let mut size = inode.size();
        if offset >= size || buffer.is_empty() {
            return Ok(TierRead::Done(0));
        }
        let mut len = buffer.len().min((size - offset) as usize);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let piece = self.read_run(inode, map, at, &mut buffer[done..len], size);
            match piece.map_err(|error| at_byte(error, inode, at))? {
                Piece::Read { count, size: size_now } => {
                    if size_now > size && done + count == len && len < buffer.len() {
                        // The write that made it grow may be in the last block, with its other part behind the old end.
                        size = size_now;
                        len = buffer.len().min((size - offset) as usize);
                        continue;
                    }
                    done += count;
                    if size_now < offset + done as u64 {
                        // A truncation came first: bytes behind its end are free, or of a later append.
                        len = size_now.saturating_sub(offset) as usize;
                        done = len;
                    }
                }
                Piece::OnTier { extent, size } => return Ok(TierRead::OnTier { done, extent, size }),
            }
        }
        if let Some(now) = now {
            self.note_read(inode, now);
        }
        Ok(TierRead::Done(done))
    }

    /// Reads the contiguous data from `at` on, unless it is on a tier. `size` was the size of the file before.
    #[inline]
    fn read_run(
        &self,
        inode: &Inode,
        map: &BlockMap,
        at: u64,
        buffer: &mut [u8],
        size: u64,
    ) -> Result<Piece> {
        let within = (at % BLOCK_SIZE) as usize;
        let blocks = ((within + buffer.len()) as u64).div_ceil(BLOCK_SIZE);
        map.read_at(at / BLOCK_SIZE, blocks, |raw, len| {
            let count = (len as usize * BLOCK_SIZE as usize - within).min(buffer.len());
            let mut on_tier = None;
            match raw.map(place_of) {
                Some(Place::Pm(block)) => {
                    self.pm.read(block.offset() + within as u64, &mut buffer[..count])?;
                }
                Some(place @ Place::Tier { .. }) => {
                    on_tier = Some(PlacedExtent { start: FileBlock(at / BLOCK_SIZE), len, place });
                }
                _ => buffer[..count].fill(0),
            }
            // Before the version is looked at: an operation that grows the size again has changed the leaf before that.
            fence(Ordering::Acquire);
            let mut size_now = inode.size();
            fault!(self.pm, SizeNotReadAgain => size_now = size);
            Ok(match on_tier {
                None => Piece::Read { count, size: size_now },
                Some(extent) => Piece::OnTier { extent, size: size_now },
            })
        })
    }

    /// atime follows a read where relatime says so. It is kept in DRAM.
    pub(crate) fn note_read(&self, inode: &Inode, now: Timestamp) {
        if self.read_only || !inode.relatime.is_due(now) {
            return;
        }
        let mut attr = inode.attr.lock();
        attr.atime = now;
        inode.relatime.set(&attr);
        inode.lazy.store(true, Ordering::Release);
    }
}

fn at_byte(error: Error, inode: &Inode, at: u64) -> Error {
    error.object(format!("inode {} at byte {at}", inode.number))
}
