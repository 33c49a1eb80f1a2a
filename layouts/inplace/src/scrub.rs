//! The scrub of this layout: reads its metadata, and finds the files that media errors are in. The scrub itself is in
//! `nacre-layout-parts`.

use std::collections::{BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Result};
use nacre_layout_parts::badblocks::Share;
use nacre_layout_parts::report::{MediaReport, in_no_file};
use nacre_layout_parts::scrub::{
    NameVisitor, Scrubbed, Volume, all_bad_lines, bad_ranges, new_bad_blocks, untold,
};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_media::{Overlay, Pm};

use crate::blockmap::{self, Bounds, Found as Used};
use crate::directory::for_each_name;
use crate::format::{BLOCK_INODES, INODE_SIZE, ROOT_INODE, RawInode, tree};
use crate::fs::Shared;
use crate::inode::{Inode, has_tree};
use crate::recover::{Walk, read_journal, roll_back};
use crate::superblock::{Found, Superblock};
use crate::table::read_inode;
use crate::xattr::{self, Owner};

/// Names that are read at a time.
const NAMES: usize = 128;

impl<P: Pm + 'static> Scrubbed for Shared<P> {
    type Media = P;

    fn volume(&self) -> Volume<'_, P> {
        Volume {
            pm: &self.pm,
            superblock: &self.superblock,
            retired: &self.alloc,
            read_only: self.read_only,
            is_shared: false,
            share: Share::ALL,
            root: ROOT_INODE,
        }
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
        let in_inode = in_inode(address, bad, told);
        let contents = self.with_raw(number, |raw| {
            Ok(in_contents(&*self.pm, (self.bounds, self.seed), number, raw, bad, told))
        });
        // Of an inode that cannot be read no more is known.
        Ok(in_inode.into_iter().chain(contents.unwrap_or_default()).collect())
    }

    fn for_each_name(&self, number: u64, visit: &mut NameVisitor<'_>) -> Result<()> {
        let node = self.hold(number)?;
        if !node.inode.is_directory() {
            return Ok(());
        }
        let mut after = 0;
        loop {
            let batch = node.inode.body.read().directory()?.read(&*self.pm, after, NAMES)?;
            for listed in &batch {
                after = listed.cookie;
                if visit(&listed.name, listed.id.number, listed.kind == FileKind::Directory).is_break() {
                    return Ok(());
                }
            }
            if batch.len() < NAMES {
                return Ok(());
            }
        }
    }
}

impl<P: Pm> Shared<P> {
    /// Calls `look` with an inode as media has it, while it does not change. A change needs the lock of the inode, and
    /// while the table is locked no inode outside DRAM is taken into use. [`Stale`](Kind::Stale) when it is free.
    fn with_raw<R>(&self, number: u64, look: impl FnOnce(&RawInode) -> Result<R>) -> Result<R> {
        let address = self.table.address(number)?;
        let read = || {
            let raw = read_inode(&*self.pm, address)?;
            if raw.links == 0 { Err(Error::new(Kind::Stale)) } else { Ok(raw) }
        };
        let shard = self.table.shard(number).read();
        match shard.inodes.get(&number).map(Arc::clone) {
            Some(inode) => {
                drop(shard);
                let inode: &Inode = &inode;
                let _body = inode.body.read();
                look(&read()?)
            }
            None => look(&read()?),
        }
    }
}

/// The bad lines that are in an inode, in words.
fn in_inode(address: u64, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Vec<String> {
    let ranges = bad_ranges(bad, address..address + INODE_SIZE, told);
    ranges.into_iter().map(|range| format!("a media error in its inode, at byte {}", range.start)).collect()
}

/// Descriptions of the bad lines in the blocks that an inode leads to.
fn in_contents<P: Pm>(
    pm: &P,
    (bounds, seed): (Bounds, u32),
    number: u64,
    raw: &RawInode,
    bad: &BTreeSet<u64>,
    told: &mut BTreeSet<u64>,
) -> Vec<String> {
    let mut hits = Vec::new();
    let mut look = |block: u64, words: &dyn Fn(Range<u64>) -> String| {
        let start = Block(block).offset();
        for range in bad_ranges(bad, start..start + BLOCK_SIZE, told) {
            hits.push(words(range.start - start..range.end - start));
        }
    };
    let is_directory = raw.kind == FileKind::Directory as u8;
    if FileKind::from_u8(raw.kind).is_some_and(has_tree) {
        // Behind a node that cannot be read nothing is known.
        let _ = blockmap::map(pm, raw.root, bounds).for_each_used(&mut |found| {
            match found {
                Used::Node(block) => look(block, &|within| {
                    let at = Block(block).offset() + within.start;
                    format!("a media error in its tree of blocks, at byte {at}")
                }),
                Used::Data(piece) => look(piece.place, &|within| {
                    let at = piece.start;
                    let (from, to) = (at * BLOCK_SIZE + within.start, at * BLOCK_SIZE + within.end);
                    let what = if is_directory { "the names in bytes" } else { "bytes" };
                    format!("a media error in {what} {from} to {to}")
                }),
            }
            true
        });
    }
    if raw.xattrs != 0 {
        let first = raw.xattrs & tree::BLOCK_MASK;
        let blocks = xattr::places_of(&Owner::new(pm, bounds, seed, number, raw.generation), raw.xattrs);
        for block in blocks.unwrap_or_else(|_| vec![first]) {
            look(block, &|_| "a media error in its extended attributes".to_owned());
        }
    }
    hits
}

/// Reads every block of a file system that is not mounted, and reports those that cannot be read and their owners. With
/// `record` they are put into the list of bad blocks.
pub fn check_media<P: Pm>(pm: &P, record: bool) -> Result<MediaReport> {
    let superblock = crate::superblock::read(pm)?.superblock;
    if record {
        superblock.check_writable()?;
    }
    let (lines, retired) = all_bad_lines(pm, &superblock)?;
    let [told, _] = locate(&Overlay::new(pm), &superblock, &retired);
    let errors = locate(&Overlay::new(pm), &superblock, &lines).concat();
    let new_blocks = new_bad_blocks(pm, &superblock, &lines, record.then_some(Share::ALL))?;
    Ok(MediaReport { errors, told, new_blocks })
}

/// Describes the bad lines in files, and then those that are in no file. Uncommitted changes are undone first, if they
/// can be.
fn locate<P: Pm>(pm: &P, superblock: &Superblock, lines: &BTreeSet<u64>) -> [Vec<String>; 2] {
    if lines.is_empty() {
        return [Vec::new(), Vec::new()];
    }
    let _ = read_journal(pm, superblock).and_then(|mut lanes| roll_back(pm, superblock, &mut lanes));
    let bounds = Bounds::of(superblock);
    let mut inodes = Vec::new();
    let mut walk = Walk::new(pm, superblock);
    // Without a table no inode is known, and every line is in no file.
    let _ = walk.run(superblock, &mut |_, number, raw| inodes.push((number, *raw)));
    let mut names: HashMap<u64, (u64, String)> = HashMap::new();
    for (number, raw) in inodes.iter().filter(|(_, raw)| raw.kind == FileKind::Directory as u8) {
        let _ = for_each_name(pm, bounds, raw, &mut |name| {
            let shown = || (*number, String::from_utf8_lossy(name.bytes).into_owned());
            names.entry(name.inode).or_insert_with(shown);
            ControlFlow::Continue(())
        });
    }
    let mut told = BTreeSet::new();
    let mut words = Vec::new();
    let table = |number: u64| {
        let block = walk.table.get((number / BLOCK_INODES) as usize)?;
        Some(Block(*block).offset() + number % BLOCK_INODES * INODE_SIZE)
    };
    for (number, raw) in &inodes {
        let mut hits = table(*number).map_or_else(Vec::new, |address| in_inode(address, lines, &mut told));
        hits.extend(in_contents(pm, (bounds, superblock.seed()), *number, raw, lines, &mut told));
        if !hits.is_empty() {
            let path = path_of(&names, *number);
            words.extend(hits.into_iter().map(|hit| format!("{path} (inode {number}): {hit}")));
        }
    }
    for (at, &block) in (0..).zip(&walk.table) {
        let start = Block(block).offset();
        let rest: BTreeSet<u64> = lines.range(start..start + BLOCK_SIZE).copied().collect();
        let rest: BTreeSet<u64> = rest.difference(&told).copied().collect();
        let number = |line: &u64| at * BLOCK_INODES + line % BLOCK_SIZE / INODE_SIZE;
        let (Some(first), Some(last)) = (rest.first(), rest.last()) else { continue };
        told.extend(&rest);
        let bytes = format!("at byte {first}");
        words.push(match (number(first), number(last)) {
            (one, last) if one == last => {
                format!("{} (inode {one}): a media error in its inode, {bytes}", path_of(&names, one))
            }
            (first, last) => format!("inodes {first} to {last}: a media error in their block, {bytes}"),
        });
    }
    [words, untold(lines, &mut told).into_iter().map(in_no_file).collect()]
}

/// A path that leads to an inode.
fn path_of(names: &HashMap<u64, (u64, String)>, number: u64) -> String {
    let mut path = String::new();
    let mut at = number;
    // Damaged directories may lead in a circle.
    for _ in 0..names.len() + 1 {
        if at == ROOT_INODE {
            return if path.is_empty() { "/".to_owned() } else { path };
        }
        let Some((parent, name)) = names.get(&at) else { break };
        path = format!("/{name}{path}");
        at = *parent;
    }
    if path.is_empty() { "a file without a name".to_owned() } else { format!("...{path}") }
}
