//! The scrub of this layout: reads its metadata, and finds the files that media errors are in. The scrub itself is in
//! `nacre-layout-parts`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Result};
use nacre_layout_parts::contract::read_dir;
use nacre_layout_parts::locate::{self, Lines, Paths};
use nacre_layout_parts::report::MediaReport;
use nacre_layout_parts::scrub::{NameVisitor, Scrubbed, Volume};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_media::Pm;

use crate::blockmap::{self, Bounds, Found as Used};
use crate::directory::for_each_name;
use crate::format::{BLOCK_INODES, INODE_SIZE, ROOT_INODE, RawInode, tree};
use crate::fs::Shared;
use crate::inode::has_tree;
use crate::recover::{Walk, read_journal, roll_back};
use crate::superblock::{Found, Superblock};
use crate::table::read_inode;
use crate::xattr::{self, Owner};

impl<P: Pm + 'static> Scrubbed for Shared<P> {
    type Media = P;

    fn volume(&self) -> Volume<'_, P> {
        Volume::of_device(&self.pm, &self.superblock, &self.alloc, self.read_only, ROOT_INODE)
    }

    fn read_superblock(&self) -> Result<Found> {
        crate::superblock::read(&*self.pm)
    }

    fn inodes(&self) -> Vec<u64> {
        let is_used = |&number: &u64| {
            let raw = self.table.address(number).and_then(|address| read_inode(&*self.pm, address));
            // One that cannot be read is said to be there, so that it is looked at.
            raw.map_or(true, |raw| raw.links != 0)
        };
        (1..self.table.numbers()).filter(is_used).collect()
    }

    fn check_inode(&self, number: u64) -> Result<u64> {
        self.with_raw(number, |raw| {
            if !raw.is_valid(self.seed, number) {
                return Err(Error::corrupt("header"));
            }
            let mut bytes = BLOCK_SIZE;
            if FileKind::from_u8(raw.kind).is_some_and(has_tree) {
                self.map(raw.root).for_each_used(&mut |found| {
                    bytes += if matches!(found, Used::Node(_)) { BLOCK_SIZE } else { 0 };
                    true
                })?;
            }
            if raw.kind == FileKind::Directory as u8 {
                bytes += raw.size;
                for_each_name(&*self.pm, self.bounds, raw, &mut |_| ControlFlow::Continue(()))?;
            }
            if raw.xattrs != 0 {
                let owner = Owner::new(&*self.pm, self.bounds, self.seed, number, raw.generation);
                let blocks = xattr::blocks_of(&owner, raw.xattrs)?;
                bytes += blocks.len() as u64 * BLOCK_SIZE;
            }
            Ok(bytes)
        })
    }

    fn hits(&self, number: u64, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Result<Vec<String>> {
        let address = self.table.address(number)?;
        let mut lines = Lines { bad, told };
        let in_inode = lines.in_inode(address..address + INODE_SIZE);
        let contents = self.with_raw(number, |raw| {
            Ok(in_contents(&*self.pm, (self.bounds, self.seed), number, raw, &mut lines))
        });
        // Of an inode that cannot be read no more is known.
        Ok(in_inode.into_iter().chain(contents.unwrap_or_default()).collect())
    }

    fn for_each_name(&self, number: u64, visit: &mut NameVisitor<'_>) -> Result<()> {
        let node = self.hold(number)?;
        if !node.inode.is_directory() {
            return Ok(());
        }
        let read = |after, limit| node.inode.body.read().directory()?.read(&*self.pm, after, limit);
        read_dir(0, read, &mut |entry| visit(entry.name, entry.id.number, entry.kind == FileKind::Directory))
    }
}

impl<P: Pm> Shared<P> {
    /// Calls `look` with an inode as media has it, while it does not change. [`Stale`](Kind::Stale) when it is free.
    fn with_raw<R>(&self, number: u64, look: impl FnOnce(&RawInode) -> Result<R>) -> Result<R> {
        let address = self.table.address(number)?;
        self.table.unchanged(number, || {
            let raw = read_inode(&*self.pm, address)?;
            if raw.links == 0 { Err(Error::new(Kind::Stale)) } else { look(&raw) }
        })
    }
}

/// Descriptions of the bad lines in the blocks that an inode leads to.
fn in_contents<P: Pm>(
    pm: &P,
    (bounds, seed): (Bounds, u32),
    number: u64,
    raw: &RawInode,
    lines: &mut Lines<'_>,
) -> Vec<String> {
    let mut hits = Vec::new();
    if FileKind::from_u8(raw.kind).is_some_and(has_tree) {
        let map = blockmap::map(pm, raw.root, bounds);
        lines.in_tree(&map, raw.kind == FileKind::Directory as u8, |_| true, &mut hits);
    }
    if raw.xattrs != 0 {
        let first = raw.xattrs & tree::BLOCK_MASK;
        let blocks = xattr::places_of(&Owner::new(pm, bounds, seed, number, raw.generation), raw.xattrs);
        lines.in_xattrs(blocks.unwrap_or_else(|_| vec![first]), &mut hits);
    }
    hits
}

/// Reads every block of a file system that is not mounted, and reports those that cannot be read and their owners. With
/// `record` they are put into the list of bad blocks.
pub fn check_media<P: Pm>(pm: &P, record: bool) -> Result<MediaReport> {
    let superblock = crate::superblock::read(pm)?.superblock;
    locate::check_media(pm, &superblock, record, |pm, lines| Ok(locate(pm, &superblock, lines)))
}

/// Describes the bad lines in files. Uncommitted changes are undone first, if they can be.
fn locate<P: Pm>(pm: &P, superblock: &Superblock, lines: &mut Lines<'_>) -> Vec<String> {
    let _ = read_journal(pm, superblock).and_then(|mut lanes| roll_back(pm, superblock, &mut lanes));
    let bounds = Bounds::of(superblock);
    let mut inodes = Vec::new();
    let mut walk = Walk::new(pm, superblock);
    // Without a table no inode is known, and every line is in no file.
    let _ = walk.run(superblock, &mut |_, number, raw| inodes.push((number, *raw)));
    let mut paths = Paths::new(ROOT_INODE);
    for (number, raw) in inodes.iter().filter(|(_, raw)| raw.kind == FileKind::Directory as u8) {
        let _ = for_each_name(pm, bounds, raw, &mut |name| {
            paths.add(*number, name);
            ControlFlow::Continue(())
        });
    }
    let mut words = Vec::new();
    let table = |number: u64| {
        let block = walk.table.get((number / BLOCK_INODES) as usize)?;
        Some(Block(*block).offset() + number % BLOCK_INODES * INODE_SIZE)
    };
    for (number, raw) in &inodes {
        let in_inode = |address| lines.in_inode(address..address + INODE_SIZE);
        let mut hits = table(*number).map_or_else(Vec::new, in_inode);
        hits.extend(in_contents(pm, (bounds, superblock.seed()), *number, raw, lines));
        paths.tell(*number, hits, &mut words);
    }
    for (at, &block) in (0..).zip(&walk.table) {
        let start = Block(block).offset();
        let rest: BTreeSet<u64> = lines.bad.range(start..start + BLOCK_SIZE).copied().collect();
        let rest: BTreeSet<u64> = rest.difference(lines.told).copied().collect();
        let number = |line: &u64| at * BLOCK_INODES + line % BLOCK_SIZE / INODE_SIZE;
        let (Some(first), Some(last)) = (rest.first(), rest.last()) else { continue };
        lines.told.extend(&rest);
        let bytes = format!("at byte {first}");
        match (number(first), number(last)) {
            (one, last) if one == last => {
                paths.tell(one, vec![format!("a media error in its inode, {bytes}")], &mut words);
            }
            (first, last) => {
                words.push(format!("inodes {first} to {last}: a media error in their block, {bytes}"));
            }
        }
    }
    words
}
