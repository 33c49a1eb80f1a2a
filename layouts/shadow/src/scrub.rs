//! The scrub of this layout: reads its metadata, and finds the files that media errors are in. The scrub itself is in
//! `nacre-layout-parts`.

use std::collections::{BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Block, DamagedCopy, Error, FileKind, Kind, Result, TierReader, TierRun};
use nacre_layout_parts::badblocks::Share;
use nacre_layout_parts::report::{MediaReport, in_no_file};
use nacre_layout_parts::scrub::{
    NameVisitor, Scrubbed, TierPart, Volume, all_bad_lines, bad_ranges, new_bad_blocks, untold,
};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::xattr::{self, Owner};
use nacre_media::{Overlay, Pm};

use crate::blockmap::{self, Bounds, Found as Kinds, Piece, block_of, tier_of};
use crate::directory::for_each_name;
use crate::format::{BLOCK_INODES, INODE_SIZE, ROOT_INODE, RawHeader};
use crate::fs::Shared;
use crate::recover::Walk;
use crate::state::State;
use crate::superblock::{Found, Superblock};
use crate::switches::Read;

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
            // One that cannot be read is said to be there, so that it is looked at.
            self.table
                .address(number)
                .and_then(|address| self.read_state(number, address))
                .map_or_else(|error| error.kind() != Kind::Stale, |_| true)
        };
        (1..self.table.numbers()).filter(is_used).collect()
    }

    fn check_inode(&self, number: u64) -> Result<u64> {
        self.with_state(number, |header, state| {
            let mut bytes = BLOCK_SIZE;
            let Some(kind) = FileKind::from_u8(header.kind) else { return Ok(bytes) };
            let tree = state.tree(kind);
            self.map(tree).for_each_used(&mut |found| {
                bytes += if matches!(found, Kinds::Node(_)) { BLOCK_SIZE } else { 0 };
                true
            })?;
            if kind == FileKind::Directory {
                bytes += state.slot.size;
                let is_reached = |tag| self.is_reached(tag);
                for_each_name(
                    &*self.pm,
                    self.bounds,
                    state,
                    &is_reached,
                    &mut |_| ControlFlow::Continue(()),
                )?;
            }
            if state.slot.xattrs() != 0 {
                let owner = self.owner_of(number, header.generation);
                bytes += xattr::blocks_of(&owner, state.slot.xattrs())?.len() as u64 * BLOCK_SIZE;
            }
            Ok(bytes)
        })
    }

    fn hits(&self, number: u64, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Result<Vec<String>> {
        let address = self.table.address(number)?;
        let in_inode = in_inode(address, bad, told);
        let contents = self.with_state(number, |header, state| {
            let contents = Contents { pm: &*self.pm, bounds: self.bounds, seed: self.seed };
            Ok(contents.hits(number, header, state, bad, told))
        });
        // Of an inode that cannot be read no more is known.
        Ok(in_inode.into_iter().chain(contents.unwrap_or_default()).collect())
    }

    fn for_each_name(&self, number: u64, visit: &mut NameVisitor<'_>) -> Result<()> {
        let node = self.hold(number)?;
        if !node.inode.is_directory() {
            return Ok(());
        }
        let is_reached = |tag| self.is_reached(tag);
        let mut after = 0;
        loop {
            let batch = node.inode.body.read().directory()?.read(&*self.pm, after, NAMES, &is_reached)?;
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

    fn tiers(&self) -> Vec<(u8, u64)> {
        let used = |number| {
            let space = self.tiers.space(number).unwrap_or_default();
            (space.blocks - space.free) * BLOCK_SIZE
        };
        self.tier_list().iter().map(|tier| (tier.number, used(tier.number))).collect()
    }

    fn check_tier(&self, number: u8) -> Result<Vec<DamagedCopy>> {
        self.reader_of_tiers()?.check_superblock(number)
    }

    /// No lock is held while a disk is waited for.
    fn on_tiers(&self, number: u64) -> Result<Vec<TierPart>> {
        self.with_state(number, |header, state| {
            let mut parts = Vec::new();
            // The trees of all others lead to blocks on PM.
            if header.kind == FileKind::Regular as u8 {
                let tree = state.tree(FileKind::Regular);
                self.map(tree).for_each(0, tree.end, &mut |piece| parts.extend(part_of(&piece)))?;
            }
            Ok(parts)
        })
    }

    fn read_tier(&self, run: TierRun) -> Result<()> {
        self.reader_of_tiers()?.read_image(run).map(drop)
    }
}

/// A piece that is on a tier, and written.
fn part_of(piece: &Piece) -> Option<TierPart> {
    let run = TierRun { tier: tier_of(piece.place), start: block_of(piece.place), len: piece.len };
    (run.tier != 0 && piece.is_written).then_some(TierPart { run, in_file: Some(piece.start) })
}

impl<P: Pm> Shared<P> {
    fn reader_of_tiers(&self) -> Result<Arc<dyn TierReader>> {
        let reader = self.tier_reader.read().clone();
        reader.ok_or_else(|| Error::new(Kind::DeviceLost).object("tiers: no reader is attached"))
    }

    /// Calls `look` with the state of an inode as media has it, while it does not change. A change needs the lock of
    /// the inode, and while the table is locked no inode outside DRAM is taken into use.
    fn with_state<R>(&self, number: u64, look: impl FnOnce(&RawHeader, &State) -> Result<R>) -> Result<R> {
        let address = self.table.address(number)?;
        let shard = self.table.shard(number).read();
        match shard.inodes.get(&number).map(Arc::clone) {
            Some(inode) => {
                drop(shard);
                let _body = inode.body.read();
                let (header, state) = self.read_state(number, address)?;
                look(&header, &state)
            }
            None => {
                let (header, state) = self.read_state(number, address)?;
                look(&header, &state)
            }
        }
    }
}

/// The bad lines that are in an inode, in words.
fn in_inode(address: u64, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Vec<String> {
    let ranges = bad_ranges(bad, address..address + INODE_SIZE, told);
    ranges.into_iter().map(|range| format!("a media error in its inode, at byte {}", range.start)).collect()
}

/// Where the contents of inodes are read.
struct Contents<'a, P> {
    pm: &'a P,
    bounds: Bounds,
    seed: u32,
}

impl<P: Pm> Contents<'_, P> {
    /// Descriptions of the bad lines in the blocks that an inode leads to.
    fn hits(
        &self,
        number: u64,
        header: &RawHeader,
        state: &State,
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
        let is_directory = header.kind == FileKind::Directory as u8;
        if let Some(kind) = FileKind::from_u8(header.kind) {
            // Behind a node that cannot be read nothing is known.
            let _ = blockmap::map(self.pm, state.tree(kind), self.bounds).for_each_used(&mut |found| {
                match found {
                    Kinds::Node(block) => look(block, &|within| {
                        let at = Block(block).offset() + within.start;
                        format!("a media error in its tree of blocks, at byte {at}")
                    }),
                    // The blocks on tiers are read there.
                    Kinds::Data(piece) if tier_of(piece.place) != 0 => {}
                    Kinds::Data(piece) => look(piece.place, &|within| {
                        let at = piece.start * BLOCK_SIZE;
                        let what = if is_directory { "the names in bytes" } else { "bytes" };
                        format!("a media error in {what} {} to {}", at + within.start, at + within.end)
                    }),
                }
                true
            });
        }
        let first = state.slot.xattrs();
        if first != 0 {
            let owner = Owner::new(self.pm, self.bounds, self.seed, number, header.generation);
            for block in xattr::places_of(&owner, first).unwrap_or_else(|_| vec![first]) {
                look(block, &|_| "a media error in its extended attributes".to_owned());
            }
        }
        hits
    }
}

/// Reads every block of a file system that is not mounted, and reports those that cannot be read and their owners. With
/// `record` they are put into the list of bad blocks.
pub fn check_media<P: Pm>(pm: &P, record: bool) -> Result<MediaReport> {
    let superblock = crate::superblock::read(pm)?.superblock;
    if record {
        superblock.check_writable()?;
    }
    let (lines, retired) = all_bad_lines(pm, &superblock)?;
    let [told, _] = locate(&Overlay::new(pm), &superblock, &retired)?;
    let errors = locate(&Overlay::new(pm), &superblock, &lines)?.concat();
    let new_blocks = new_bad_blocks(pm, &superblock, &lines, record.then_some(Share::ALL))?;
    Ok(MediaReport { errors, told, new_blocks })
}

/// Describes the bad lines in files, and then those that are in no file.
fn locate<P: Pm>(pm: &P, superblock: &Superblock, lines: &BTreeSet<u64>) -> Result<[Vec<String>; 2]> {
    if lines.is_empty() {
        return Ok([Vec::new(), Vec::new()]);
    }
    let switches = Read::from(pm, superblock)?;
    let is_reached = |tag| switches.is_reached(tag);
    let contents = Contents { pm, bounds: Bounds::of(superblock), seed: superblock.seed() };
    let mut inodes = Vec::new();
    let mut walk = Walk::new(pm, superblock, &switches);
    // Without a table no inode is known, and every line is in no file.
    let _ = walk.run(superblock, &mut |number, _, header, state| inodes.push((number, *header, *state)));
    let mut names: HashMap<u64, (u64, String)> = HashMap::new();
    for (number, _, state) in inodes.iter().filter(|(_, header, _)| header.kind == FileKind::Directory as u8)
    {
        let _ = for_each_name(pm, contents.bounds, state, &is_reached, &mut |name| {
            let shown = || (*number, String::from_utf8_lossy(name.bytes).into_owned());
            names.entry(name.inode).or_insert_with(shown);
            ControlFlow::Continue(())
        });
    }
    let mut told = BTreeSet::new();
    let mut words = Vec::new();
    for (number, header, state) in &inodes {
        let hits = contents.hits(*number, header, state, lines, &mut told);
        if !hits.is_empty() {
            let path = path_of(&names, *number);
            words.extend(hits.into_iter().map(|hit| format!("{path} (inode {number}): {hit}")));
        }
    }
    for (at, &block) in (0..).zip(&walk.table) {
        let start = Block(block).offset();
        let mut last = None;
        for &line in lines.range(start..start + BLOCK_SIZE).filter(|&line| told.insert(*line)) {
            let number = at * BLOCK_INODES + line % BLOCK_SIZE / INODE_SIZE;
            if last.replace(number) != Some(number) {
                let path = path_of(&names, number);
                words.push(format!("{path} (inode {number}): a media error in its inode, at byte {line}"));
            }
        }
    }
    Ok([words, untold(lines, &mut told).into_iter().map(in_no_file).collect()])
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
