//! The check of names in a layout of inode tables. Every directory that can be reached is read. Links and
//! parents, which its names prove, are compared with the words of the inodes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use nacre_engine::{FileKind, Result, size};

use crate::report::{CheckReport, Problem};
use crate::rules::check_name;

/// The words of an inode in use about itself.
pub struct Said {
    /// Its kind.
    pub kind: u8,
    /// Which inode of its number it is.
    pub generation: u32,
    /// Names that refer to it.
    pub links: u32,
    /// Of a directory, the directory that it is in.
    pub parent: u64,
}

/// A name in a directory.
pub struct Name<'n> {
    /// Its bytes.
    pub bytes: &'n [u8],
    /// The number of the inode that it leads to.
    pub inode: u64,
    /// The generation of that inode.
    pub generation: u32,
    /// The kind of that inode.
    pub kind: u8,
}

/// Receives names, until it wants no more.
pub type Visitor<'v> = dyn FnMut(&Name<'_>) -> std::ops::ControlFlow<()> + 'v;

/// The values that a repair gives an inode.
pub struct Proved {
    /// Its number.
    pub number: u64,
    /// Names that refer to it.
    pub links: u32,
    /// Of a directory that said something else, the directory that it is in.
    pub parent: Option<u64>,
}

struct Check<'a> {
    inodes: &'a BTreeMap<u64, Said>,
    report: &'a mut CheckReport,
    /// How many names refer to each inode.
    links: HashMap<u64, u32>,
    /// The directory that each directory's name is in.
    parents: HashMap<u64, u64>,
    queue: VecDeque<u64>,
}

/// Reads every directory that can be reached from `root`, but for the damaged ones, which were reported. `read` gives
/// the names of one. Problems go to the report. The result are the inodes that a repair changes; there are none where
/// something else is damaged, because counts differ for that reason.
pub fn check(
    root: u64,
    inodes: &BTreeMap<u64, Said>,
    damaged: &BTreeSet<u64>,
    read: &dyn Fn(u64, &mut Visitor<'_>) -> Result<()>,
    report: &mut CheckReport,
) -> Vec<Proved> {
    let mut check = Check {
        inodes,
        report,
        links: HashMap::from([(root, 1)]),
        parents: HashMap::from([(root, root)]),
        queue: VecDeque::from([root]),
    };
    while let Some(number) = check.queue.pop_front() {
        let Some(said) = inodes.get(&number) else {
            check.report.add(format!("directory {number} is not there"), "");
            continue;
        };
        if said.kind != FileKind::Directory as u8 {
            check.report.add(format!("inode {number} is no directory"), "");
            continue;
        }
        if damaged.contains(&number) {
            continue;
        }
        let mut seen = HashSet::new();
        let read = read(number, &mut |name| {
            check.name(number, name, &mut seen);
            std::ops::ControlFlow::Continue(())
        });
        if let Err(error) = read {
            check.report.add(error.object(format!("directory {number}")).to_string(), "");
        }
    }
    check.compare()
}

impl Check<'_> {
    fn name(&mut self, dir: u64, name: &Name<'_>, seen: &mut HashSet<Vec<u8>>) {
        let shown = String::from_utf8_lossy(name.bytes);
        if check_name(name.bytes).is_err() {
            self.report.add(format!("directory {dir}: the name {shown:?} cannot be one"), "");
        }
        if !seen.insert(name.bytes.to_vec()) {
            self.report.add(format!("directory {dir}: two names {shown:?}"), "");
        }
        let is_it = |said: &&Said| said.generation == name.generation && said.kind == name.kind;
        if self.inodes.get(&name.inode).filter(is_it).is_none() {
            self.report.add(format!("directory {dir}: {shown:?} refers to no inode"), "");
            return;
        }
        *self.links.entry(name.inode).or_default() += 1;
        if name.kind == FileKind::Directory as u8 {
            match self.parents.insert(name.inode, dir) {
                None => self.queue.push_back(name.inode),
                Some(_) => self.report.add(format!("directory {} has two names", name.inode), ""),
            }
        }
    }

    /// Compares what inodes say with what names prove.
    fn compare(self) -> Vec<Proved> {
        let mut proved = Vec::new();
        let is_whole = self.report.is_provable();
        for (&number, said) in self.inodes {
            let links = self.links.get(&number).copied().unwrap_or(0);
            if links != said.links {
                let what = size::count(said.links.into(), "link", "links");
                let what = format!("inode {number} says {what} and has {links}");
                // Nothing tells one that was removed from one whose new name was lost.
                let loses = links == 0 && is_whole;
                let repair = if loses { "free it, with all that is in it" } else { "count them" };
                let repair = if is_whole { repair } else { "" };
                self.report.problems.push(Problem { what, repair, loses, repaired: false });
            }
            let is_directory = said.kind == FileKind::Directory as u8;
            let parent = self.parents.get(&number).copied();
            let parent = parent.filter(|&parent| is_directory && parent != said.parent);
            if let Some(parent) = parent {
                let what = format!("directory {number} does not say that it is in directory {parent}");
                self.report.add(what, if is_whole { "say so" } else { "" });
            }
            if links != said.links || parent.is_some() {
                proved.push(Proved { number, links, parent });
            }
        }
        if is_whole { proved } else { Vec::new() }
    }
}
