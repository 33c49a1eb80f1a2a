//! Pages of a log on media: writing one, and linking it.

use nacre_engine::{BLOCK_SIZE, Block, Result};
use nacre_media::{Durable, Flushed, Pm};
use zerocopy::IntoBytes;

use crate::format::{INODE_HEAD_OFFSET, LINE, PAGE_MAGIC, PAGE_NEXT_OFFSET, RawPageHeader, seal_word};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::log::{Log, NO_PAGE, Page};

impl Log {
    /// Stores the word that names the page after `page` (or the first page, after [`NO_PAGE`]).
    #[track_caller]
    pub(crate) fn link<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        page: u32,
        next: Option<Block>,
        after: Durable,
    ) -> Result<Flushed> {
        let word = next.map_or(0, |block| seal_word(block.0, inode.seed));
        let offset = match page {
            NO_PAGE => inode.address + INODE_HEAD_OFFSET,
            page => self.index.pages[page as usize].block.offset() + PAGE_NEXT_OFFSET,
        };
        let stored = fs.pm.publish_u64(offset, word, after)?;
        Ok(fs.pm.flush(stored))
    }
}

/// Writes a whole page, its lines and zeros behind them, and makes it durable.
#[track_caller]
pub(crate) fn write_page<P: Pm>(
    fs: &Shared<P>,
    inode: &Inode,
    page: &Page,
    next_word: u64,
    lines: &[u8],
) -> Result<Durable> {
    let mut bytes = [0u8; BLOCK_SIZE as usize];
    let mut header = RawPageHeader {
        checksum: 0,
        magic: PAGE_MAGIC,
        inode: inode.number,
        generation: inode.generation,
        reserved: 0,
        first_sequence: page.first_sequence,
        reserved2: [0; 2],
        next: next_word,
        reserved3: 0,
    };
    header.checksum = header.compute_checksum(inode.seed);
    bytes[..LINE].copy_from_slice(header.as_bytes());
    bytes[LINE..LINE + lines.len()].copy_from_slice(lines);
    let copied = fs.pm.copy(page.block.offset(), &bytes)?;
    Ok(fs.pm.fence(copied))
}
