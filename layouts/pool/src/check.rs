//! Checks a file system that is not mounted: both copies of everything, every structure that is reachable, every entry
//! and block against its bit, names against inodes. Repairs what one copy or the rest of the structures prove.
//!
//! A file system without a clean unmount is first recovered: on the media when it is repaired, else in DRAM over them.
//! So an operation that a crash interrupted is no damage.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Instant;

use nacre_engine::{BLOCK_SIZE, Block, FileKind, Kind, Result, size};
use nacre_layout_parts::badblocks;
use nacre_layout_parts::report::{CheckReport, Problem, RecoveryReport, Repair};
use nacre_layout_parts::rules::check_name;
use nacre_media::{Overlay, Pm};

use crate::bits::{self, Bits};
use crate::blockmap::{Tree, node_of, span};
use crate::copies::{Copies, Fix};
use crate::directory::{Part, TIE_BITS, hash, long_name};
use crate::format::pools::{INODES, NODES, SIZES};
use crate::format::{
    GROUP_BLOCKS, GROUP_BYTES, INLINE_TARGET, LONG_NAME, NODE_WORDS, ORPHAN_HEADS, POOL_BITS, POOL_HEAD,
    ROOT_INODE, RawInode, RawVolume, WORD_BITS, purpose, seal_any, volume_state, word,
};
use crate::fs::Shared;
use crate::geometry::{Geometry, Use};
use crate::inode::kind_of;
use crate::mend::mend_page;
use crate::recover::{Recovered, recover};
use crate::superblock::Superblock;
use crate::{volumes, zones};

/// Checks the file system on `pm`, which must not be mounted, or the zone of one of its volumes, and repairs what
/// `repair` allows.
///
/// An error means that nothing could be checked: there is no file system, or nothing that leads into it.
pub(crate) fn check<P: Pm>(pm: &P, repair: Repair, volume: Option<&str>) -> Result<CheckReport> {
    if repair == Repair::None {
        return examine(&Overlay::new(pm), volume).map(|(report, _)| report);
    }
    crate::superblock::read(pm)?.superblock.check_writable()?;
    let mut problems: Vec<Problem> = Vec::new();
    let mut round = 0;
    loop {
        let examined = examine(pm, volume);
        let (mut report, fixes) = match round {
            0 => examined?,
            // A repair went by a copy that is whole and wrong.
            _ => examined.map_err(|error| error.advice(SPOILT))?,
        };
        let may_repair = round < MOST_ROUNDS && (repair == Repair::All || !report.loses());
        let is_clean = report.problems.is_empty();
        if may_repair && (round == 0 || !is_clean) {
            repair_all(pm, fixes, volume)?;
            let repaired = report.problems.iter_mut().filter(|problem| !problem.repair.is_empty());
            repaired.for_each(|problem| problem.repaired = true);
        }
        // A repair is examined, too: it may lead to structures that could not be seen before.
        let goes_on = may_repair && !is_clean && report.is_sound();
        problems.append(&mut report.problems);
        if !goes_on {
            report.problems = problems;
            return Ok(report);
        }
        round += 1;
    }
}

/// Passes that repair: the later ones repair problems that the earlier ones have uncovered.
const MOST_ROUNDS: usize = 4;
const SPOILT: &str = "a repair could not be finished; restore the device from a copy";

/// Writes the corrections of one pass, and what follows from them.
fn repair_all<P: Pm>(pm: &P, fixes: Vec<Placed>, volume: Option<&str>) -> Result<()> {
    let found = crate::superblock::read(pm)?;
    for (geometry, fix) in fixes {
        apply(pm, &geometry, &fix)?;
    }
    renew_rows(pm, &found.superblock, &volumes::zones_to_check(pm, &found.superblock, volume)?)?;
    if pm.is_shared() {
        return Ok(());
    }
    let mut superblock = found.superblock.clone();
    superblock.note_copies(&found);
    superblock.write(pm)
}

/// Counts free blocks and inodes anew after repairs, which may have freed some, and forgets errors that were noted.
fn renew_rows<P: Pm>(pm: &P, superblock: &Superblock, zones: &[u32]) -> Result<()> {
    for geometry in volumes::all(pm, superblock, zones)? {
        // Damage that no repair mends may keep a volume from being opened.
        let Ok(fs) = volumes::open_one(pm, superblock, geometry, false) else { continue };
        let row = *fs.row.lock();
        // Damage that no repair mends may keep the bits from being read. The counts are then as wrong as before.
        let Ok(counts) = fs.count() else { continue };
        if row.clean == 1 || row.errors != 0 {
            let renewed = |row: &mut RawVolume| {
                row.keep(&counts);
                (row.errors, row.last_error) = (0, 0);
            };
            fs.change_rows(renewed, |zone| zone.keep(&counts))?;
            fs.settle_lanes()?;
        }
    }
    Ok(())
}

/// Writes one correction. Pages with media errors are written anew.
fn apply<P: Pm>(pm: &P, geometry: &Geometry, fix: &Fix) -> Result<()> {
    let stored = match pm.copy(fix.address, &fix.bytes) {
        Err(error) if error.kind() == Kind::Media => {
            let first = fix.address / BLOCK_SIZE;
            let last = (fix.address + fix.bytes.len() as u64 - 1) / BLOCK_SIZE;
            for page in first..=last {
                mend_page(pm, geometry, Block(page), &[])?;
            }
            pm.copy(fix.address, &fix.bytes)?
        }
        stored => stored?,
    };
    pm.fence(stored);
    Ok(())
}

/// A correction, with the places of what it corrects.
type Placed = (Geometry, Fix);

/// One pass over everything, after recovery; gives the corrections.
fn examine<P: Pm>(pm: &P, volume: Option<&str>) -> Result<(CheckReport, Vec<Placed>)> {
    let started = Instant::now();
    let found = crate::superblock::read(pm)?;
    let mut report = CheckReport::begin(&found);
    let superblock = found.superblock.clone();
    let zones = volumes::zones_to_check(pm, &superblock, volume)?;
    // The superblock is checked with the device, and so are zones without a row.
    let of_device = volume.is_none() || zones::count(pm, &superblock) == 1;
    if of_device {
        for zone in (0..zones::count(pm, &superblock)).filter(|zone| !zones.contains(zone)) {
            report.add(format!("the row of zone {zone}: its volumes cannot be mounted"), "");
        }
    } else {
        report.problems.clear();
    }
    let mut recovered = Recovered::default();
    for &zone in &zones {
        let of_zone = recover(pm, &zones::geometry(pm, &superblock, zone, 0)?)?;
        recovered.forward += of_zone.forward;
        recovered.back += of_zone.back;
    }
    let bad = badblocks::read(pm, &superblock)?;
    if !bad.damaged.is_empty() && of_device {
        let what = format!("the list of bad blocks has {} words that do not validate", bad.damaged.len());
        report.add(what, "forget what they said; fsck -c finds bad blocks again");
        badblocks::clear_damaged(pm, &superblock, &bad)?;
    }
    report.bad_blocks = bad.blocks.len() as u64;
    let (mut volumes, mut owners) = (Vec::new(), BTreeSet::new());
    for geometry in volumes::all(pm, &superblock, &zones)? {
        owners.insert(u64::from(geometry.volume));
        match volumes::open_one(pm, &superblock, geometry, true) {
            Ok(fs) => volumes.push(fs),
            Err(error) => report.add(error.to_string(), ""),
        }
    }
    for (index, error) in volumes::Rows::read(pm, &superblock).damaged {
        owners.insert(index.into());
        report.add(error.to_string(), "");
    }
    report.summary = match volume {
        Some(_) => volumes::probe_volume(pm, volume)?,
        None => volumes::probe(pm)?,
    };
    report.walk = RecoveryReport {
        walked: true,
        torn: recovered.back,
        rolled_back: recovered.forward,
        ..RecoveryReport::default()
    };
    let mut fixes = Vec::new();
    for zone in zones {
        let mut of_zone: Vec<_> = volumes.iter().filter(|fs| fs.geometry.zone == zone).collect();
        let none;
        if of_zone.is_empty() {
            none = volumes::open_none(pm, &superblock, zone)?;
            of_zone.push(&none);
        }
        for (index, fs) in of_zone.iter().enumerate() {
            let row = *fs.row.lock();
            if row.errors != 0 {
                let errors = size::count(row.errors.into(), "error was", "errors were");
                report.add(format!("{errors} noted while it was mounted"), "forget them");
            }
            let mut walk = Walk::new(fs, (index == 0).then_some(&owners));
            walk.everything(&row);
            let Walk { free, in_use, copies, problems, directories, inodes, .. } = walk;
            for (what, repair) in problems {
                let of = if volumes.len() > 1 { format!("volume {}: ", row.name()) } else { String::new() };
                report.add(format!("{of}{what}"), repair);
            }
            fixes.extend(copies.into_iter().map(|fix| (fs.geometry, fix)));
            report.free_blocks += free;
            report.used_blocks += in_use;
            report.walk.directories += directories;
            report.walk.files += inodes.len() as u64 - directories;
        }
    }
    report.walk.duration = started.elapsed();
    Ok((report, fixes))
}

/// The findings about an inode.
pub(crate) struct Seen {
    pub(crate) raw: RawInode,
    /// Names that refer to it.
    pub(crate) names: u32,
    /// The directory of its name.
    pub(crate) parent: u64,
    pub(crate) entries: u64,
    pub(crate) subdirectories: u32,
}

pub(crate) struct Walk<'f, P: Pm> {
    pub(crate) fs: &'f Shared<P>,
    /// The rows of all volumes, if this one is to look at the groups of none, too.
    pub(crate) owners: Option<&'f BTreeSet<u64>>,
    pub(crate) problems: Vec<(String, &'static str)>,
    pub(crate) copies: Vec<Fix>,
    /// The bits of each group, and its purpose.
    pub(crate) maps: Vec<(Bits, u64)>,
    /// Entries in use, by their bits, with their pools.
    pub(crate) allocated: BTreeMap<u64, usize>,
    /// Entries that something leads to.
    pub(crate) reached: HashMap<u64, usize>,
    /// Blocks that something is in.
    pub(crate) used: Vec<Bits>,
    pub(crate) inodes: BTreeMap<u64, Seen>,
    pub(crate) directories: u64,
    pub(crate) free: u64,
    pub(crate) in_use: u64,
}

impl<'f, P: Pm> Walk<'f, P> {
    fn new(fs: &'f Shared<P>, owners: Option<&'f BTreeSet<u64>>) -> Walk<'f, P> {
        Walk {
            fs,
            owners,
            problems: Vec::new(),
            copies: Vec::new(),
            maps: Vec::new(),
            allocated: BTreeMap::new(),
            reached: HashMap::new(),
            used: vec![[0; 8]; fs.geometry.groups().count()],
            inodes: BTreeMap::new(),
            directories: 0,
            free: 0,
            in_use: 0,
        }
    }

    fn everything(&mut self, row: &RawVolume) {
        self.rows();
        self.space();
        if row.state == volume_state::LIVE {
            self.tree();
            self.orphans();
        }
        self.compare_entries();
        self.compare_blocks();
        self.compare_inodes();
        if row.clean == 1 {
            self.compare_counts(row);
        }
    }

    pub(crate) fn damage(&mut self, what: impl Into<String>) {
        self.problems.push((what.into(), ""));
    }

    /// Compares both copies of a structure. Gives the one that is whole.
    fn both(&mut self, copies: &Copies<'_>) -> Option<Vec<u8>> {
        let found = copies.compare(&*self.fs.pm, &self.fs.geometry);
        if let Some((what, fix)) = found.problem {
            self.problems.push((what, if fix.is_some() { "write it from the other copy" } else { "" }));
            self.copies.extend(fix);
        }
        found.bytes
    }

    /// A correction of both copies.
    pub(crate) fn fix(&mut self, address: u64, bytes: &[u8]) {
        for address in [address, self.fs.geometry.twin(address)] {
            self.copies.push(Fix { address, bytes: bytes.to_vec() });
        }
    }

    /// Rows of zones and volumes, and lanes.
    fn rows(&mut self) {
        let geometry = self.fs.geometry;
        if self.owners.is_some() {
            self.both(&Copies::zone(&geometry));
            for index in 0..geometry.lanes {
                self.both(&Copies::done(&geometry, index));
            }
        }
        if self.fs.row.lock().state == volume_state::LIVE {
            self.both(&Copies::volume(&geometry));
            self.both(&Copies::orphan_heads(&geometry));
        }
    }

    /// Maps, and the heads of pool blocks; which entries are in use.
    fn space(&mut self) {
        let geometry = self.fs.geometry;
        for group in geometry.groups() {
            self.both(&Copies::map(&geometry, group));
            let map = self.fs.read_map(group).unwrap_or_else(|error| {
                self.damage(error.to_string());
                ([0; 8], purpose::FREE)
            });
            self.maps.push(map);
            let (free, of_group) = map;
            let of = geometry.use_of(of_group);
            if self.is_ours(of) {
                let usable = bits::count(&bits::without(&free, &self.fs.bad.of_group(group)));
                self.free += usable;
                // A damaged map may have blocks of regions free.
                self.in_use += (GROUP_BLOCKS - geometry.regions_in(group)).saturating_sub(usable);
            }
            if of != Use::Pool {
                continue;
            }
            let blocks = geometry.pool_block / BLOCK_SIZE;
            for slot in 0..geometry.pool_blocks_in_group() {
                let within = slot * blocks;
                let all = bits::run(within, blocks);
                if !bits::meet(&free, &all) {
                    self.pool_block(group * GROUP_BYTES + slot * geometry.pool_block);
                } else if bits::without(&all, &free) != [0; 8] {
                    self.damage(format!("group {group}: a part of a pool block is free"));
                }
            }
        }
    }

    /// Whether this walk looks at a group with such a use. The first one of a zone takes those of no volume.
    pub(crate) fn is_ours(&self, of: Use) -> bool {
        match of {
            Use::Free => self.owners.is_some(),
            Use::Data | Use::Pool => true,
            Use::Other(owner) => self.owners.is_some_and(|owners| !owners.contains(&owner)),
        }
    }

    fn pool_block(&mut self, block: u64) {
        let geometry = self.fs.geometry;
        self.mark(block / BLOCK_SIZE, geometry.pool_block / BLOCK_SIZE, "a pool block");
        self.both(&Copies::pool_head(&geometry, block));
        let Ok(head) = self.fs.read_head(block) else {
            return self.damage(format!("the pool block at byte {block}"));
        };
        let pool = head.pool as usize;
        let count = u64::from(head.count);
        self.both(&Copies::words(
            block + POOL_BITS,
            block,
            count.div_ceil(WORD_BITS) as usize,
            format!("the bits of the pool block at byte {block}"),
        ));
        for (address, bits) in self.fs.bits_behind_the_end(block, pool).unwrap_or_default() {
            let what = format!("the pool block at byte {block} says that entries behind its end are free");
            self.problems.push((what, "say so no more"));
            self.fix(address, &seal_any(bits, geometry.seed(block)).to_le_bytes());
        }
        for index in 0..count {
            let entry = block + POOL_HEAD + index * SIZES[pool];
            match self.fs.is_in_use(pool, entry) {
                Ok(true) => {
                    self.allocated.insert(entry, pool);
                    for copies in Copies::entry(&geometry, pool, entry) {
                        self.both(&copies);
                    }
                }
                Ok(false) => {}
                Err(error) => return self.damage(error.to_string()),
            }
        }
    }

    /// Blocks have an owner.
    pub(crate) fn mark(&mut self, start: u64, len: u64, what: &str) {
        let mut at = start;
        while at < start + len {
            let group = at / GROUP_BLOCKS;
            let count = (GROUP_BLOCKS - at % GROUP_BLOCKS).min(start + len - at);
            let run = bits::run(at % GROUP_BLOCKS, count);
            let index = group.checked_sub(self.fs.geometry.first_group);
            let Some(used) = index.and_then(|index| self.used.get_mut(index as usize)) else {
                return self.damage(format!("{what}: block {at} is beyond the zone"));
            };
            let twice = bits::meet(used, &run);
            *used = bits::either(used, &run);
            if twice {
                self.damage(format!("{what}: blocks {at}+{count} have two owners"));
            }
            at += count;
        }
    }

    /// An entry is led to.
    fn reach(&mut self, pool: usize, address: u64, what: &str) -> bool {
        if !self.fs.geometry.is_entry(address, SIZES[pool]) {
            self.damage(format!("{what} leads to byte {address}, where no entry is"));
            return false;
        }
        if self.reached.insert(address, pool).is_some() {
            self.damage(format!("two things lead to the entry at byte {address}, one of them {what}"));
            return false;
        }
        true
    }

    /// Every inode that a name leads to.
    fn tree(&mut self) {
        let mut queue = VecDeque::from([ROOT_INODE]);
        self.inode(ROOT_INODE, ROOT_INODE);
        while let Some(number) = queue.pop_front() {
            let Some(seen) = self.inodes.get(&number) else { continue };
            let raw = seen.raw;
            if let Err(error) = self.directory(number, &raw, &mut queue) {
                self.damage(error.object(format!("directory {number}")).to_string());
            }
        }
    }

    /// Reads an inode and everything that it has, the first time that it is met. Whether it is there.
    fn inode(&mut self, number: u64, parent: u64) -> bool {
        if self.inodes.contains_key(&number) {
            return true;
        }
        let (Ok(address), Ok(raw)) = (self.fs.address(number), self.fs.read_inode(number)) else {
            self.damage(format!("inode {number} cannot be read"));
            return false;
        };
        self.reach(INODES, address, &format!("a name of inode {number}"));
        let what = format!("inode {number}");
        if let Err(error) = self.contents(number, &raw, &what) {
            self.damage(error.object(what).to_string());
        }
        if self.fs.attr(number, &raw).is_err() {
            self.damage(format!("inode {number}: its attributes"));
        }
        self.directories += u64::from(raw.is_directory());
        self.inodes.insert(number, Seen { raw, names: 0, parent, entries: 0, subdirectories: 0 });
        true
    }

    fn contents(&mut self, number: u64, raw: &RawInode, what: &str) -> Result<()> {
        if raw.attributes != 0 {
            self.bytes(raw.attributes, what)?;
            self.fs.read_xattrs(raw.attributes)?;
        }
        let root = self.fs.root_of(number, raw)?;
        match kind_of(raw)? {
            FileKind::Regular => {
                let tree = Tree { height: raw.height, root };
                let mut blocks = 0;
                if let Some(extent) = tree.extent() {
                    self.mark(extent.block, extent.len, what);
                    blocks = extent.len;
                } else if tree.height > 0 {
                    blocks = self.node(node_of(root), u32::from(tree.height), what)?;
                }
                if blocks != raw.entries {
                    self.damage(format!("{what} says {} blocks and has {blocks}", raw.entries));
                }
                // Each piece lies where pieces can.
                self.fs.for_each(tree, 0, u64::MAX, &mut |_| Ok(()))?;
            }
            FileKind::Directory => {
                let mut parts = Vec::new();
                self.fs.for_each_part(Tree { height: raw.height, root }, &mut |part| {
                    parts.push(part);
                    Ok(())
                })?;
                for part in parts {
                    match part {
                        Part::Set(set) => self.reach(set.pool, set.address, what),
                        Part::Node(node) => self.reach(NODES, node, what),
                    };
                }
            }
            FileKind::Symlink => {
                if raw.size as usize > INLINE_TARGET {
                    self.bytes(root, what)?;
                }
                let target = self.fs.target_of(number, raw)?;
                if target.is_empty() || target.contains(&0) {
                    self.damage(format!("{what}: its target"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Marks a node of a file and what is below it; gives how many blocks that are.
    fn node(&mut self, node: u64, height: u32, what: &str) -> Result<u64> {
        if !self.reach(NODES, node, what) {
            return Ok(0);
        }
        let mut words = [0; NODE_WORDS];
        self.fs.read_node(node, 0, &mut words)?;
        let mut blocks = 0;
        for value in words.into_iter().filter(|&value| value != 0) {
            if height == 1 || height == 2 && value & word::HUGE != 0 {
                self.mark(value & word::BLOCK_MASK, span(height - 1), what);
                blocks += span(height - 1);
            } else {
                blocks += self.node(node_of(value), height - 1, what)?;
            }
        }
        Ok(blocks)
    }

    fn bytes(&mut self, address: u64, what: &str) -> Result<()> {
        let mut parts = Vec::new();
        self.fs.read_bytes(address, |pool, at| parts.push((pool, at)))?;
        for (pool, at) in parts {
            self.reach(pool, at, what);
        }
        Ok(())
    }

    fn directory(&mut self, number: u64, raw: &RawInode, queue: &mut VecDeque<u64>) -> Result<()> {
        let fs = self.fs;
        let tree = fs.directory(number, raw)?;
        let mut sets = Vec::new();
        fs.for_each_part(tree, &mut |part| {
            if let Part::Set(set) = part {
                sets.push(set);
            }
            Ok(())
        })?;
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        let mut cookies = BTreeSet::new();
        for set in sets {
            for raw in fs.names_of(set)? {
                if raw.flags & LONG_NAME != 0 {
                    self.bytes(long_name(&raw), &format!("a name of directory {number}"))?;
                }
                let name = fs.name_of(&raw)?.to_vec();
                let shown = String::from_utf8_lossy(&name).into_owned();
                let hash = hash(&name, fs.hash_seed);
                if check_name(&name).is_err() {
                    self.damage(format!("directory {number}: the name {shown:?} cannot be one"));
                }
                let is_placed = fs.way(tree, hash)?.is_some_and(|way| way.set == set);
                if raw.cookie >> TIE_BITS != hash || !is_placed || fs.find(tree, &name)?.is_none() {
                    self.damage(format!("directory {number}: {shown:?} is not where it is looked for"));
                }
                if !names.insert(name) || !cookies.insert(raw.cookie) {
                    self.damage(format!("directory {number}: {shown:?} is there twice"));
                }
                self.name(number, &raw, &shown, queue);
            }
        }
        Ok(())
    }

    fn name(&mut self, dir: u64, raw: &crate::format::RawDentry, shown: &str, queue: &mut VecDeque<u64>) {
        let is_new = !self.inodes.contains_key(&raw.inode);
        let is_directory = raw.kind == FileKind::Directory as u8;
        if !self.inode(raw.inode, dir) {
            return;
        }
        let Some(seen) = self.inodes.get_mut(&raw.inode) else { return };
        seen.names += 1;
        let matches = seen.raw.generation == raw.generation && seen.raw.kind == raw.kind;
        if !matches {
            self.damage(format!("directory {dir}: {shown:?} refers to no inode"));
        }
        match (is_directory, is_new) {
            (true, true) => queue.push_back(raw.inode),
            (true, false) => self.damage(format!("directory {} has two names", raw.inode)),
            _ => {}
        }
        if let Some(parent) = self.inodes.get_mut(&dir) {
            parent.entries += 1;
            parent.subdirectories += u32::from(is_directory);
        }
    }

    /// The lists of inodes without names.
    fn orphans(&mut self) {
        for list in 0..ORPHAN_HEADS {
            let mut number = match self.fs.first_orphan(list) {
                Ok(first) => first,
                Err(error) => return self.damage(error.to_string()),
            };
            let mut before = 0;
            while number != 0 {
                let listed =
                    self.fs.neighbours(number).and_then(|near| Ok((near, self.fs.read_inode(number)?)));
                let ([next, previous], raw) = match listed {
                    Ok(listed) => listed,
                    Err(error) => return self.damage(error.to_string()),
                };
                if previous != before || raw.links != 0 || self.inodes.contains_key(&number) {
                    self.damage(format!("inode {number}: its place in a list of orphans"));
                    break;
                }
                self.inode(number, 0);
                (before, number) = (number, next);
            }
        }
    }
}
