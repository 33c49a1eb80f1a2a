//! Reading.

use nacre_engine::sync::atomic::{Ordering, fence};
use nacre_engine::{BLOCK_SIZE, Result, Timestamp};
use nacre_media::Pm;

use crate::blockmap::BlockMap;
use crate::fs::Shared;
use crate::inode::Inode;
use crate::places::{is_written, media_offset};
use crate::seeded::fault;

impl<P: Pm> Shared<P> {
    pub(crate) fn read(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let map = self.file(inode)?;
        let mut size = inode.size();
        if offset >= size || buffer.is_empty() {
            return Ok(0);
        }
        let mut len = buffer.len().min((size - offset) as usize);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            match self.read_run(inode, map, at, &mut buffer[done..len], size) {
                Ok((count, size_now)) => {
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
                // Less than was asked for would say that the file ends here, and the kernel would believe it.
                Err(error) => return Err(error.object(format!("inode {} at byte {at}", inode.number))),
            }
        }
        if let Some(now) = now {
            self.note_read(inode, now);
        }
        Ok(done)
    }

    /// Reads the contiguous data from `at` on: its length, and the size of the file after that; `size` was it before.
    #[inline]
    fn read_run(
        &self,
        inode: &Inode,
        map: &BlockMap,
        at: u64,
        buffer: &mut [u8],
        size: u64,
    ) -> Result<(usize, u64)> {
        let within = (at % BLOCK_SIZE) as usize;
        let blocks = ((within + buffer.len()) as u64).div_ceil(BLOCK_SIZE);
        map.read_at(at / BLOCK_SIZE, blocks, |place, len| {
            let count = (len as usize * BLOCK_SIZE as usize - within).min(buffer.len());
            match place {
                Some(raw) if is_written(raw) => {
                    self.pm.read(media_offset(raw)? + within as u64, &mut buffer[..count])?;
                }
                _ => buffer[..count].fill(0),
            }
            // Before the version is looked at: an operation that grows the size again has changed the leaf before that.
            fence(Ordering::Acquire);
            let mut size_now = inode.size();
            fault!(self.pm, SizeNotReadAgain => size_now = size);
            Ok((count, size_now))
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
