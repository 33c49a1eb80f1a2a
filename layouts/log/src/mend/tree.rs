//! Walks everything that names lead to, as far as it validates, and decides on the changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nacre_engine::{Block, FileKind};
use nacre_media::Pm;

use super::Finding;
use super::salvage::Saved;
use super::survey::Chunks;
use super::take::{Claim, Taken, Taker, is_attribute};
use crate::alloc::{Run, for_each_mask};
use crate::format::{LINE, MAX_FILE_SIZE, ROOT_INODE, inode_seed, kind, place};
use crate::inode::Body;
use crate::log::dentry_name;
use crate::places::Reach;
use crate::scan::read_inode;

/// A change of an inode: its log is written anew, without some entries and with some more.
pub(super) struct Edit {
    pub(super) taken: Taken,
    /// Entries that go, by index.
    pub(super) drop: HashSet<usize>,
    pub(super) append: Vec<Append>,
    /// Something is lost.
    pub(super) loses: bool,
}

impl Edit {
    /// The log is written anew as it is.
    pub(super) fn of(taken: Taken) -> Edit {
        let loses = taken.loses();
        Edit { taken, drop: HashSet::new(), append: Vec::new(), loses }
    }
}

/// An entry that is added to a log.
pub(super) enum Append {
    /// These blocks of the file belong to something else.
    Hole { start: u64, blocks: u64 },
    /// These blocks of the file get copies of the blocks at `from`.
    Copy { start: u64, blocks: u64, from: u64 },
    /// A name.
    Name { name: Vec<u8>, claim: Claim },
}

/// An inode that was visited.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visited {
    pub(super) claim: Claim,
    /// The directory that its first name is in.
    pub(super) parent: u64,
    /// Its claims are not proven: its log lost something, or nothing proved that it still exists.
    pub(super) suspect: bool,
}

/// A name that a walk has found.
#[derive(Debug, Clone)]
pub(super) struct Name {
    pub(super) name: Vec<u8>,
    /// Its entry in the directory's log.
    pub(super) index: usize,
    pub(super) claim: Claim,
}

/// The walk.
pub(super) struct Tree<'t, P> {
    pub(super) taker: &'t Taker<'t, P>,
    pub(super) chunks: &'t Chunks,
    pub(super) visited: Vec<Visited>,
    /// Where in `visited` each inode is; directories are known before they are visited.
    known: HashMap<u64, Option<usize>>,
    pub(super) paths: HashMap<u64, String>,
    pub(super) edits: BTreeMap<u64, Edit>,
    pub(super) findings: Vec<Finding>,
    /// Blocks in use, by their number among all, tiers included.
    pub(super) used: Vec<u64>,
    /// Tiers with blocks that images own; the images are not read here.
    pub(super) image_tiers: BTreeSet<u8>,
    /// A directory lost names, so that inodes may have none though they exist.
    pub(super) lost_names: bool,
    twice: bool,
    /// Directories to look at: (claim, parent, path, suspect).
    pending: Vec<(Claim, u64, String, bool)>,
    /// Names of directories that say that they are elsewhere; looked at when nothing else is left.
    doubtful: Vec<(Name, u64, String, bool)>,
}

impl<'t, P: Pm> Tree<'t, P> {
    pub(super) fn new(taker: &'t Taker<'t, P>, chunks: &'t Chunks, first_data_block: u64) -> Tree<'t, P> {
        let blocks = taker.reach.total();
        let mut tree = Tree {
            taker,
            chunks,
            visited: Vec::new(),
            known: HashMap::new(),
            paths: HashMap::new(),
            edits: BTreeMap::new(),
            findings: Vec::new(),
            used: vec![0; blocks.div_ceil(64) as usize],
            image_tiers: BTreeSet::new(),
            lost_names: false,
            twice: false,
            pending: Vec::new(),
            doubtful: Vec::new(),
        };
        tree.mark(Run { start: Block(0), len: first_data_block });
        chunks.blocks().for_each(|block| {
            tree.mark(Run { start: block, len: 1 });
        });
        tree
    }

    pub(super) fn is_known(&self, number: u64) -> bool {
        self.known.contains_key(&number)
    }

    fn visited_as(&self, number: u64) -> Option<Visited> {
        self.known.get(&number)?.map(|index| self.visited[index])
    }

    /// Marks blocks as used; true when none was before.
    pub(super) fn mark(&mut self, run: Run) -> bool {
        let mut free = true;
        let len = run.len.min(self.taker.reach.total().saturating_sub(run.start.0));
        for_each_mask(run.start.0, len, |word, mask| {
            free &= self.used[word] & mask == 0;
            self.used[word] |= mask;
        });
        free
    }

    /// The greatest generation that an inode is known to have had.
    pub(super) fn generation_of(&self, number: u64) -> u32 {
        let pm = self.taker.grounds.pm;
        let raw = self.chunks.address(number).and_then(|address| read_inode(pm, address).ok());
        let valid =
            raw.filter(|raw| raw.is_valid(inode_seed(self.taker.volume_seed, number, raw.generation)));
        let pages = self.taker.grounds.survey.greatest_generation(number);
        valid.map_or(0, |raw| raw.generation).max(pages)
    }

    pub(super) fn is_free(&self, run: Run) -> bool {
        let mut free = true;
        for_each_mask(run.start.0, run.len, |word, mask| free &= self.used[word] & mask == 0);
        free
    }

    /// Whether blocks of an inode may belong to the image of another file, or its image may name such blocks. Images
    /// are not read here, so this stays unknown.
    pub(super) fn may_be_of_an_image(&self, taken: &Taken) -> bool {
        let inode = &taken.loaded.inode;
        let mut is_on = inode.image.get().is_some();
        if let Body::File(map) = &inode.body {
            map.for_each(0, MAX_FILE_SIZE / nacre_engine::BLOCK_SIZE, |piece| {
                is_on |= self.image_tiers.contains(&place::tier(piece.place));
            });
        }
        is_on
    }

    /// Walks from a directory that was taken already.
    pub(super) fn walk(&mut self, root: Taken, path: String, suspect: bool) {
        let claim = claim_of(&root);
        self.visit(root, ROOT_INODE, &path, suspect);
        self.paths.insert(claim.number, path);
        self.drain();
    }

    pub(super) fn drain(&mut self) {
        loop {
            while let Some((claim, parent, path, suspect)) = self.pending.pop() {
                match self.taker.take(claim) {
                    Ok(taken) => self.visit(taken, parent, &path, suspect),
                    // It could be taken when its name was found; media that change their mind cannot be trusted.
                    Err(_) => self.lost_names = true,
                }
            }
            let Some((name, directory, path, suspect)) = self.doubtful.pop() else { return };
            if self.is_known(name.claim.number) {
                let what = format!("{path}: a second name of directory {}", name.claim.number);
                self.remove_name(directory, &name, what, false);
            } else {
                self.enter(&name, directory, path, suspect, true);
            }
        }
    }

    /// Looks at an inode that has a name: its blocks, its damage, and the contents of a directory.
    fn visit(&mut self, taken: Taken, parent: u64, path: &str, suspect: bool) {
        let claim = claim_of(&taken);
        let suspect = suspect || taken.loses();
        self.known.insert(claim.number, Some(self.visited.len()));
        self.visited.push(Visited { claim, parent, suspect });
        self.image_tiers.extend(taken.loaded.inode.image.get().map(|image| image.run.tier));
        for run in runs_of(&taken, &self.taker.reach) {
            self.twice |= !self.mark(run);
        }
        for (what, lost) in &taken.damage {
            let what = format!("{} (inode {}): {what}", shown(path), claim.number);
            let repair =
                if *lost { "keep the parts that validate" } else { "write it again; nothing is lost" };
            self.findings.push(Finding::new(claim.number, what, repair, *lost));
        }
        if claim.kind != FileKind::Directory {
            if !taken.damage.is_empty() {
                self.edit(taken);
            }
            return;
        }
        self.lost_names |= taken.loses();
        self.paths.insert(claim.number, path.to_owned());
        let names = names_of(&taken);
        if !taken.damage.is_empty() {
            self.edit(taken);
        }
        for name in names {
            self.name(name, claim.number, path, suspect);
        }
    }

    /// Looks at a name.
    fn name(&mut self, name: Name, directory: u64, dir_path: &str, suspect: bool) {
        let path = format!("{dir_path}/{}", String::from_utf8_lossy(&name.name));
        self.enter(&name, directory, path, suspect, false);
    }

    fn enter(&mut self, name: &Name, directory: u64, path: String, suspect: bool, certain: bool) {
        let number = name.claim.number;
        let is_directory = name.claim.kind == FileKind::Directory;
        if self.is_known(number) && !is_directory {
            // Another name of a file, if it is that file.
            let same = self.visited_as(number).is_some_and(|visited| visited.claim == name.claim);
            if !same {
                let what = format!("{path}: leads to an inode {number} that is gone or of another kind");
                self.remove_name(directory, name, what, true);
            }
            return;
        }
        if is_directory && self.is_known(number) {
            let what = format!("{path}: a second name of directory {number}");
            return self.remove_name(directory, name, what, false);
        }
        match self.taker.take(name.claim) {
            Err(why) => {
                self.lost_names |= is_directory;
                self.remove_name(directory, name, format!("{path}: leads to {why}"), true);
            }
            Ok(taken) if is_directory => {
                let elsewhere = taken.raw.cached_is_valid(taken.source.seed) && taken.raw.parent != directory;
                if elsewhere && !certain {
                    self.doubtful.push((name.clone(), directory, path, suspect));
                } else {
                    self.known.insert(number, None);
                    self.pending.push((name.claim, directory, path, suspect));
                }
            }
            Ok(taken) => self.visit(taken, directory, &path, suspect),
        }
    }

    fn remove_name(&mut self, directory: u64, name: &Name, what: String, loses: bool) {
        self.findings.push(Finding::new(directory, what, "remove the name", loses));
        if let Some(edit) = self.edit_of(directory) {
            edit.drop.insert(name.index);
            edit.loses |= loses;
        }
    }

    fn edit(&mut self, taken: Taken) -> &mut Edit {
        self.edits.entry(taken.source.number).or_insert_with(|| Edit::of(taken))
    }

    /// The edit of an inode that was visited; it is taken again when it has none yet.
    pub(super) fn edit_of(&mut self, number: u64) -> Option<&mut Edit> {
        if !self.edits.contains_key(&number) {
            let visited = self.visited_as(number)?;
            let taken = self.taker.take(visited.claim).ok()?;
            self.edit(taken);
        }
        self.edits.get_mut(&number)
    }

    /// Finds blocks with several owners, and decides: logs and tables first, because they prove themselves, then files
    /// with whole logs, then the others.
    pub(super) fn part(&mut self, first_data_block: u64) {
        if !std::mem::take(&mut self.twice) {
            return;
        }
        self.used.fill(0);
        self.mark(Run { start: Block(0), len: first_data_block });
        self.chunks.blocks().for_each(|block| {
            self.mark(Run { start: block, len: 1 });
        });
        let all = self.visited.clone();
        for visited in &all {
            let Ok(taken) = self.taker.take(visited.claim) else { continue };
            for &page in &taken.pages {
                self.mark(Run { start: page, len: 1 });
            }
        }
        let metadata = self.used.clone();
        for suspect in [false, true] {
            for visited in all.iter().filter(|visited| visited.suspect == suspect) {
                let Ok(taken) = self.taker.take(visited.claim) else { continue };
                self.part_image(*visited, &taken);
                self.part_values(*visited, &taken);
                self.part_blocks(*visited, &taken, &metadata);
            }
        }
    }

    fn part_blocks(&mut self, visited: Visited, taken: &Taken, metadata: &[u64]) {
        let Body::File(map) = &taken.loaded.inode.body else { return };
        let mut pieces = Vec::new();
        map.for_each(0, MAX_FILE_SIZE / nacre_engine::BLOCK_SIZE, |piece| pieces.push(piece));
        let mut appended: Vec<Append> = Vec::new();
        for piece in pieces {
            let first = self.taker.reach.index(piece.place);
            // Blocks on a tier are not read here.
            let is_elsewhere = place::tier(piece.place) != 0;
            for index in 0..piece.len {
                let (block, file_block) = (first + index, piece.start + index);
                if self.mark(Run { start: Block(block), len: 1 }) {
                    continue;
                }
                let is_metadata = metadata[(block / 64) as usize] >> (block % 64) & 1 == 1;
                match appended.last_mut() {
                    Some(Append::Hole { start, blocks }) if *start + *blocks == file_block => *blocks += 1,
                    Some(Append::Copy { start, blocks, from })
                        if *start + *blocks == file_block && *from + *blocks == block && !is_metadata =>
                    {
                        *blocks += 1;
                    }
                    _ if is_metadata || is_elsewhere || visited.suspect => {
                        appended.push(Append::Hole { start: file_block, blocks: 1 });
                    }
                    _ => appended.push(Append::Copy { start: file_block, blocks: 1, from: block }),
                }
            }
        }
        let path = self.path_of(visited);
        for append in appended {
            let (start, blocks, repair, loses) = match append {
                Append::Copy { start, blocks, .. } => (start, blocks, "give it a copy", false),
                Append::Hole { start, blocks } => (start, blocks, "make it a hole there", true),
                Append::Name { .. } => continue,
            };
            let (from, to) = (start * nacre_engine::BLOCK_SIZE, (start + blocks) * nacre_engine::BLOCK_SIZE);
            let number = visited.claim.number;
            let what = format!(
                "{path} (inode {number}): bytes {from} to {to} are in blocks that belong to another, too"
            );
            self.findings.push(Finding::new(number, what, repair, loses));
            if let Some(edit) = self.edit_of(number) {
                edit.append.push(append);
                edit.loses |= loses;
            }
        }
    }

    /// An image in blocks of another owner is invalid: the content of the file is lost.
    fn part_image(&mut self, visited: Visited, taken: &Taken) {
        let Some(run) = image_run(taken, &self.taker.reach) else { return };
        if self.mark(run) {
            return;
        }
        let (path, number) = (self.path_of(visited), visited.claim.number);
        let what = format!("{path} (inode {number}): its extent map is in blocks of another");
        self.findings.push(Finding::new(number, what, "make it a hole", true));
        let images = |saved: &Saved| saved.header.kind == kind::IMAGE;
        if let Some(edit) = self.edit_of(number) {
            edit.drop
                .extend((0..).zip(&edit.taken.entries).filter(|(_, saved)| images(saved)).map(|(at, _)| at));
            edit.loses = true;
        }
    }

    /// Of two values of attributes in one place the later one goes.
    fn part_values(&mut self, visited: Visited, taken: &Taken) {
        let mut lost = Vec::new();
        crate::xattr_index::for_each(&taken.loaded.inode.xattrs, |xattr| {
            if let Some(run) = xattr.run
                && !self.mark(run)
            {
                lost.push(xattr.name.clone());
            }
            std::ops::ControlFlow::Continue(())
        });
        for name in lost {
            let (path, number) = (self.path_of(visited), visited.claim.number);
            let shown = String::from_utf8_lossy(&name);
            let what =
                format!("{path} (inode {number}): the value of attribute {shown} is in blocks of another");
            self.findings.push(Finding::new(number, what, "remove the attribute", true));
            if let Some(edit) = self.edit_of(number) {
                drop_attribute(edit, &name);
            }
        }
    }

    /// A path of an inode that was visited.
    pub(super) fn path_of(&self, visited: Visited) -> String {
        let number = visited.claim.number;
        if let Some(path) = self.paths.get(&number) {
            return shown(path).to_owned();
        }
        let names = self
            .visited_as(visited.parent)
            .and_then(|parent| self.taker.take(parent.claim).ok())
            .map(|taken| names_of(&taken));
        let name = names.into_iter().flatten().find(|name| name.claim == visited.claim);
        let name = name.map_or_else(String::new, |name| String::from_utf8_lossy(&name.name).into_owned());
        format!("{}/{name}", self.paths.get(&visited.parent).map_or("", String::as_str))
    }
}

/// An attribute goes, with all older values of it.
fn drop_attribute(edit: &mut Edit, name: &[u8]) {
    for (index, saved) in edit.taken.entries.iter().enumerate() {
        if is_attribute(saved, name) {
            edit.drop.insert(index);
        }
    }
    edit.loses = true;
}

/// The root has an empty path, and is shown with its slash.
pub(super) fn shown(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

pub(super) fn claim_of(taken: &Taken) -> Claim {
    let inode = &taken.loaded.inode;
    Claim { number: inode.number, generation: inode.generation, kind: inode.kind }
}

/// The blocks that an inode uses: the pages of its log, its blocks by their numbers among all, the values of its
/// attributes.
pub(super) fn runs_of(taken: &Taken, reach: &Reach) -> Vec<Run> {
    let mut runs: Vec<Run> = taken.pages.iter().map(|&start| Run { start, len: 1 }).collect();
    if let Body::File(map) = &taken.loaded.inode.body {
        map.for_each(0, MAX_FILE_SIZE / nacre_engine::BLOCK_SIZE, |piece| {
            runs.push(Run { start: Block(reach.index(piece.place)), len: piece.len });
        });
    }
    crate::xattr_index::for_each(&taken.loaded.inode.xattrs, |xattr| {
        runs.extend(xattr.run);
        std::ops::ControlFlow::Continue(())
    });
    runs.extend(image_run(taken, reach));
    runs
}

/// The blocks of the image of a log, by their numbers among all. The blocks that the image names are not read.
fn image_run(taken: &Taken, reach: &Reach) -> Option<Run> {
    let image = taken.loaded.inode.image.get()?;
    Some(Run { start: Block(reach.index(image.place())), len: image.run.len })
}

/// The names of a directory. Of several entries for one name the last counts.
pub(super) fn names_of(taken: &Taken) -> Vec<Name> {
    let mut names: BTreeMap<Vec<u8>, Name> = BTreeMap::new();
    for child in &taken.loaded.children {
        let index = (child.address / LINE as u64) as usize;
        let name = dentry_name(&taken.entries[index].bytes).unwrap_or_default().to_vec();
        let claim = Claim { number: child.number, generation: child.generation, kind: child.kind };
        names.insert(name.clone(), Name { name, index, claim });
    }
    let order: BTreeSet<(usize, Vec<u8>)> = names.values().map(|n| (n.index, n.name.clone())).collect();
    order.into_iter().filter_map(|(_, name)| names.remove(&name)).collect()
}
