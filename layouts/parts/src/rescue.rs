//! The steps that are alike in repairs of inode tables: inodes without names get names in the root directory.

use std::collections::BTreeSet;

use nacre_engine::{BLOCK_SIZE, Block, Error, Resource, Result, size};
use nacre_media::{Overlay, Pm};
use zerocopy::IntoBytes;

use crate::alloc::{Allocator, Purpose, Runs};
use crate::renew::{LostInodes, is_lost, renew};
use crate::report::Problem;
use crate::tree::{NODE_WORDS, Tree};

type Page = [u8; BLOCK_SIZE as usize];

/// The bytes of a block of the table, with the pattern of lost bytes in lines that cannot be read. `None` where even
/// its copy on an overlay cannot be read.
pub fn page_of(pm: &impl Pm, block: Block) -> Option<Page> {
    let over = Overlay::new(pm);
    if is_lost(pm, block) {
        renew(&over, block, |_| {}).ok()?;
    }
    let mut page = [0; BLOCK_SIZE as usize];
    over.read(block.offset(), &mut page).ok()?;
    Some(page)
}

/// Writes the blocks with media errors anew. From now on lost inodes stay so, also if the hardware reads them again one
/// day: their blocks are free.
pub fn renew_all(pm: &impl Pm, lost: &[LostInodes]) -> Result<()> {
    let mut bad = lost.iter().filter(|lost| lost.has_error);
    bad.try_for_each(|lost| renew(pm, lost.block, |_| {}))
}

/// The problem of a lost root, with so many inodes that no other directory names.
pub fn root_is_lost(orphans: usize) -> Problem {
    let nameless = size::count(orphans as u64, "inode has", "inodes have");
    let what = format!("the root directory is lost, and {nameless} no name");
    Problem::loss(what, "write a new one, with a name for each of them: #NUMBER")
}

/// The problem of so many inodes that lost directories named.
pub fn names_are_lost(orphans: usize) -> Problem {
    let nameless = size::count(orphans as u64, "inode was", "inodes were");
    let what = format!("{nameless} named in lost directories");
    Problem::loss(what, "give them names in the root directory: #NUMBER")
}

/// A name for an inode that is not taken.
pub fn name_for(number: u64, taken: &BTreeSet<Vec<u8>>) -> String {
    let mut name = format!("#{number}");
    while taken.contains(name.as_bytes()) {
        name.push('-');
    }
    name
}

/// A directory of these blocks and these pages, which are written with the node that leads to them, durable.
pub fn directory_of(pm: &impl Pm, alloc: &Allocator, mut blocks: Vec<u64>, pages: &[Page]) -> Result<Tree> {
    let count = blocks.len() + pages.len();
    if count > NODE_WORDS {
        return Err(Error::no_space(Resource::Limit, 0).object("names for inodes without names"));
    }
    let mut runs = Runs::new();
    alloc.allocate(pages.len() as u64 + u64::from(count > 1), Purpose::Metadata, &mut runs)?;
    let mut free = runs.iter().flat_map(|run| run.start.0..run.start.0 + run.len);
    let mut flushed = pm.zero(0, 0)?;
    for (page, block) in pages.iter().zip(&mut free) {
        flushed = flushed.and(pm.copy(Block(block).offset(), page)?);
        blocks.push(block);
    }
    let mut words = [0u64; NODE_WORDS];
    words[..count].copy_from_slice(&blocks);
    let (mut root, mut height) = (words[0], 0);
    if let Some(node) = free.next() {
        flushed = flushed.and(pm.copy(Block(node).offset(), words.as_bytes())?);
        (root, height) = (node, 1);
    }
    pm.fence(flushed);
    Ok(Tree { root, height, end: count as u64 })
}
