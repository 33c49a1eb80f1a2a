//! The list of bad blocks: blocks with a media error, never to be allocated again.
//!
//! A region of checked words, each the number of a block, in no order; 0 is a free place. A block is added by one
//! atomic store and never taken out.

use nacre_engine::{BLOCK_SIZE, Block, Error, Resource, Result};
use nacre_media::Pm;

use crate::format::{Region, open_word, region, seal_word};
use crate::renew::store_word;
use crate::superblock::Superblock;

/// The contents of the region.
#[derive(Debug, Default)]
pub struct BadBlocks {
    /// Their numbers, in order.
    pub blocks: Vec<Block>,
    /// Words that do not validate, by index; they are passed over.
    pub damaged: Vec<u64>,
}

/// The seed of a word of the list.
pub fn seed(superblock: &Superblock) -> u32 {
    crc32c::crc32c_append(superblock.seed(), b"bad blocks")
}

fn words(superblock: &Superblock) -> Result<(Region, u64)> {
    let region = superblock.region(region::BAD_BLOCKS)?;
    Ok((region, region.blocks * BLOCK_SIZE / 8))
}

/// Reads the list. A word that does not validate, or cannot be read, costs no more than its own block number.
pub fn read(pm: &impl Pm, superblock: &Superblock) -> Result<BadBlocks> {
    let (region, count) = words(superblock)?;
    let mut bad = BadBlocks::default();
    for index in 0..count {
        let word = pm.load_u64(Block(region.start).offset() + index * 8);
        match word.and_then(|word| open_word(word, seed(superblock), &String::new)) {
            Ok(None) => {}
            Ok(Some(block)) if block < superblock.raw.device_blocks => bad.blocks.push(Block(block)),
            Ok(Some(_)) | Err(_) => bad.damaged.push(index),
        }
    }
    bad.blocks.sort_unstable();
    bad.blocks.dedup();
    Ok(bad)
}

/// The places of the list that a process may fill: every one of so many, from the first of its own on. So processes that
/// have parts of a device do not take one place for two blocks.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// The number of the part, from 0 on.
    pub part: u64,
    /// The number of parts.
    pub of: u64,
}

impl Share {
    /// Of a process that has the device alone.
    pub const ALL: Share = Share { part: 0, of: 1 };
}

/// Adds a block, durable when it returns. The caller sees to it that it is not in the list.
pub fn add(pm: &impl Pm, superblock: &Superblock, block: Block, share: Share) -> Result<()> {
    let (region, count) = words(superblock)?;
    for index in (share.part..count).step_by(share.of as usize) {
        let offset = Block(region.start).offset() + index * 8;
        if pm.load_u64(offset).is_ok_and(|word| word == 0) {
            return store_word(pm, offset, seal_word(block.0, seed(superblock)));
        }
    }
    Err(Error::no_space(Resource::Limit, 0)
        .object(format!("the list of bad blocks, which has room for {}", count / share.of))
        .advice("replace the device"))
}

/// Frees the places of words that do not validate. [`Media`](nacre_engine::Kind::Media) where the errors of their block stay: the
/// rest of the list counts nevertheless.
pub fn clear_damaged(pm: &impl Pm, superblock: &Superblock, bad: &BadBlocks) -> Result<()> {
    let (region, _) = words(superblock)?;
    for index in &bad.damaged {
        store_word(pm, Block(region.start).offset() + index * 8, 0)?;
    }
    Ok(())
}
