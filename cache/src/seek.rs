//! Data and holes of a file that is partly in DRAM.

use nacre_engine::{BLOCK_SIZE, BelowBuffer, Extents, Kind, Result, SeekTo};

use crate::file::{Blocks, CacheNode, File};
use crate::fs::Shared;

impl<L: BelowBuffer + Extents> Shared<L> {
    pub(crate) fn seek(&self, node: &CacheNode<L::Node>, offset: u64, to: SeekTo) -> Result<u64> {
        let file = match self.file_ref(node) {
            Ok(file) if file.is_cached() => file,
            _ => return self.layout.seek(&node.inner, offset, to),
        };
        let blocks = file.blocks.read();
        if offset >= file.size() {
            return Err(Kind::NoSuchOffset.into());
        }
        match to {
            SeekTo::Data => self.seek_data(&node.inner, file, &blocks, offset),
            SeekTo::Hole => self.seek_hole(&node.inner, file, &blocks, offset),
        }
    }

    fn seek_data(&self, node: &L::Node, file: &File, blocks: &Blocks, offset: u64) -> Result<u64> {
        let in_dram = blocks.index.range(offset / BLOCK_SIZE..u64::MAX).next();
        let in_dram = in_dram.map(|(block, _)| (block * BLOCK_SIZE).max(offset));
        // The rest of the layout's last block has the state of its first part.
        let below = file.below();
        let in_rest = below > 0 && (below..below.next_multiple_of(BLOCK_SIZE)).contains(&offset);
        let below = match self.layout.seek(node, if in_rest { below - 1 } else { offset }, SeekTo::Data) {
            Ok(found) => Some(found.max(offset)),
            Err(error) if error.kind() == Kind::NoSuchOffset => None,
            Err(error) => return Err(error),
        };
        let found = in_dram.into_iter().chain(below).min().filter(|&found| found < file.size());
        found.ok_or(Kind::NoSuchOffset.into())
    }

    fn seek_hole(&self, node: &L::Node, file: &File, blocks: &Blocks, offset: u64) -> Result<u64> {
        let (size, below) = (file.size(), file.below());
        let mut at = offset;
        while at < size {
            if blocks.index.get(at / BLOCK_SIZE).is_some() {
                at = (at / BLOCK_SIZE + 1) * BLOCK_SIZE;
                continue;
            }
            if at >= below {
                // The rest of the last block that the layout has is data, too.
                let rest = below.next_multiple_of(BLOCK_SIZE);
                let hole = if at < rest && below > 0 {
                    self.layout.seek(node, below - 1, SeekTo::Hole)? < below
                } else {
                    true
                };
                if hole {
                    return Ok(at);
                }
                at = rest;
                continue;
            }
            let hole = self.layout.seek(node, at, SeekTo::Hole)?;
            if hole < below {
                // Up to there the layout has data. There it has none, and DRAM may have some.
                if hole == at {
                    return Ok(at);
                }
                at = hole;
            } else {
                at = below.max(at + 1);
            }
        }
        Ok(size)
    }
}
