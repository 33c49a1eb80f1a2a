//! The scrub of this layout: reads its metadata, and finds the files that media errors are in. The scrub itself is in
//! `nacre-layout-parts`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Block, DamagedCopy, Error, FileKind, Kind, Result, TierReader, TierRun};
use nacre_layout_parts::contract::read_dir;
use nacre_layout_parts::locate::{self, Lines, Paths};
use nacre_layout_parts::report::MediaReport;
use nacre_layout_parts::scrub::{NameVisitor, Scrubbed, TierPart, Volume};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::xattr::{self, Owner};
use nacre_media::Pm;

use crate::blockmap::{self, Bounds, Found as Kinds, Piece, block_of, tier_of};
use crate::directory::for_each_name;
use crate::format::{BLOCK_INODES, INODE_SIZE, ROOT_INODE, RawHeader};
use crate::fs::Shared;
use crate::recover::Walk;
use crate::state::State;
use crate::superblock::{Found, Superblock};
use crate::switches::Read;

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
        let mut lines = Lines { bad, told };
        let in_inode = lines.in_inode(address..address + INODE_SIZE);
        let contents = self.with_state(number, |header, state| {
            let contents = Contents { pm: &*self.pm, bounds: self.bounds, seed: self.seed };
            Ok(contents.hits(number, header, state, &mut lines))
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
        let read =
            |after, limit| node.inode.body.read().directory()?.read(&*self.pm, after, limit, &is_reached);
        read_dir(0, read, &mut |entry| visit(entry.name, entry.id.number, entry.kind == FileKind::Directory))
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

    /// Calls `look` with the state of an inode as media has it, while it does not change.
    fn with_state<R>(&self, number: u64, look: impl FnOnce(&RawHeader, &State) -> Result<R>) -> Result<R> {
        let address = self.table.address(number)?;
        self.table.unchanged(number, || {
            let (header, state) = self.read_state(number, address)?;
            look(&header, &state)
        })
    }
}

/// Where the contents of inodes are read.
struct Contents<'a, P> {
    pm: &'a P,
    bounds: Bounds,
    seed: u32,
}

impl<P: Pm> Contents<'_, P> {
    /// Descriptions of the bad lines in the blocks that an inode leads to. The blocks on tiers are read there.
    fn hits(&self, number: u64, header: &RawHeader, state: &State, lines: &mut Lines<'_>) -> Vec<String> {
        let mut hits = Vec::new();
        if let Some(kind) = FileKind::from_u8(header.kind) {
            let map = blockmap::map(self.pm, state.tree(kind), self.bounds);
            let is_on_pm = |piece: &Piece| tier_of(piece.place) == 0;
            lines.in_tree(&map, kind == FileKind::Directory, is_on_pm, &mut hits);
        }
        let first = state.slot.xattrs();
        if first != 0 {
            let owner = Owner::new(self.pm, self.bounds, self.seed, number, header.generation);
            lines.in_xattrs(xattr::places_of(&owner, first).unwrap_or_else(|_| vec![first]), &mut hits);
        }
        hits
    }
}

/// Reads every block of a file system that is not mounted, and reports those that cannot be read and their owners. With
/// `record` they are put into the list of bad blocks.
pub fn check_media<P: Pm>(pm: &P, record: bool) -> Result<MediaReport> {
    let superblock = crate::superblock::read(pm)?.superblock;
    locate::check_media(pm, &superblock, record, |pm, lines| locate(pm, &superblock, lines))
}

/// Describes the bad lines in files.
fn locate<P: Pm>(pm: &P, superblock: &Superblock, lines: &mut Lines<'_>) -> Result<Vec<String>> {
    let switches = Read::from(pm, superblock)?;
    let is_reached = |tag| switches.is_reached(tag);
    let contents = Contents { pm, bounds: Bounds::of(superblock), seed: superblock.seed() };
    let mut inodes = Vec::new();
    let mut walk = Walk::new(pm, superblock, &switches);
    // Without a table no inode is known, and every line is in no file.
    let _ = walk.run(superblock, &mut |number, _, header, state| inodes.push((number, *header, *state)));
    let mut paths = Paths::new(ROOT_INODE);
    for (number, _, state) in inodes.iter().filter(|(_, header, _)| header.kind == FileKind::Directory as u8)
    {
        let _ = for_each_name(pm, contents.bounds, state, &is_reached, &mut |name| {
            paths.add(*number, name);
            ControlFlow::Continue(())
        });
    }
    let mut words = Vec::new();
    for (number, header, state) in &inodes {
        paths.tell(*number, contents.hits(*number, header, state, lines), &mut words);
    }
    for (at, &block) in (0..).zip(&walk.table) {
        let start = Block(block).offset();
        let mut last = None;
        for &line in lines.bad.range(start..start + BLOCK_SIZE).filter(|&line| lines.told.insert(*line)) {
            let number = at * BLOCK_INODES + line % BLOCK_SIZE / INODE_SIZE;
            if last.replace(number) != Some(number) {
                paths.tell(number, vec![format!("a media error in its inode, at byte {line}")], &mut words);
            }
        }
    }
    Ok(words)
}
