//! The owners of bad lines, in words, in layouts of inodes and trees of blocks.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Block, Result};
use nacre_media::{Overlay, Pm};

use crate::badblocks::Share;
use crate::links::Name;
use crate::report::{MediaReport, in_no_file};
use crate::scrub::{all_bad_lines, bad_ranges, new_bad_blocks, untold};
use crate::superblock::Superblock;
use crate::tree::{BlockMap, Found, Piece, Words};

/// Bad lines, and those of them that were reported.
pub struct Lines<'a> {
    /// All of them.
    pub bad: &'a BTreeSet<u64>,
    /// The reported ones.
    pub told: &'a mut BTreeSet<u64>,
}

impl Lines<'_> {
    /// Descriptions of those in an inode.
    pub fn in_inode(&mut self, inode: Range<u64>) -> Vec<String> {
        let ranges = bad_ranges(self.bad, inode, self.told);
        ranges
            .into_iter()
            .map(|range| format!("a media error in its inode, at byte {}", range.start))
            .collect()
    }

    fn in_block(&mut self, block: u64, words: impl Fn(Range<u64>) -> String) -> Vec<String> {
        let start = Block(block).offset();
        let ranges = bad_ranges(self.bad, start..start + BLOCK_SIZE, self.told);
        ranges.into_iter().map(|range| words(range.start - start..range.end - start)).collect()
    }

    /// Adds descriptions of those in the nodes of a tree, and in its blocks that are on PM. Behind a node that cannot
    /// be read nothing is known.
    pub fn in_tree<P: Pm, W: Words>(
        &mut self,
        map: &BlockMap<'_, P, W>,
        is_directory: bool,
        is_on_pm: impl Fn(&Piece) -> bool,
        hits: &mut Vec<String>,
    ) {
        let what = if is_directory { "the names in bytes" } else { "bytes" };
        let _ = map.for_each_used(&mut |found| {
            match found {
                Found::Node(block) => hits.extend(self.in_block(block, |within| {
                    let at = Block(block).offset() + within.start;
                    format!("a media error in its tree of blocks, at byte {at}")
                })),
                Found::Data(piece) if is_on_pm(&piece) => hits.extend(self.in_block(piece.place, |within| {
                    let at = piece.start * BLOCK_SIZE;
                    format!("a media error in {what} {} to {}", at + within.start, at + within.end)
                })),
                Found::Data(_) => {}
            }
            true
        });
    }

    /// Adds descriptions of those in the blocks of an inode's extended attributes.
    pub fn in_xattrs(&mut self, blocks: Vec<u64>, hits: &mut Vec<String>) {
        for block in blocks {
            hits.extend(self.in_block(block, |_| "a media error in its extended attributes".to_owned()));
        }
    }
}

/// The names of a file system that is not mounted.
pub struct Paths {
    root: u64,
    /// The first directory that names an inode, and the name there.
    names: HashMap<u64, (u64, String)>,
}

impl Paths {
    /// No name is known but that of the root, an inode of this number.
    pub fn new(root: u64) -> Paths {
        Paths { root, names: HashMap::new() }
    }

    /// A directory has a name.
    pub fn add(&mut self, directory: u64, name: &Name<'_>) {
        let shown = || (directory, String::from_utf8_lossy(name.bytes).into_owned());
        self.names.entry(name.inode).or_insert_with(shown);
    }

    /// Adds descriptions of bad lines of an inode, each with a path that leads there.
    pub fn tell(&self, number: u64, hits: Vec<String>, words: &mut Vec<String>) {
        if !hits.is_empty() {
            let path = self.of(number);
            words.extend(hits.into_iter().map(|hit| format!("{path} (inode {number}): {hit}")));
        }
    }

    /// A path that leads to an inode.
    fn of(&self, number: u64) -> String {
        let mut path = String::new();
        let mut at = number;
        // Damaged directories may lead in a circle.
        for _ in 0..self.names.len() + 1 {
            if at == self.root {
                return if path.is_empty() { "/".to_owned() } else { path };
            }
            let Some((parent, name)) = self.names.get(&at) else { break };
            path = format!("/{name}{path}");
            at = *parent;
        }
        if path.is_empty() { "a file without a name".to_owned() } else { format!("...{path}") }
    }
}

/// Reads every block of a file system that is not mounted, and reports those that cannot be read and their owners. With
/// `record` they are put into the list of bad blocks. `locate` describes the bad lines that have an owner.
pub fn check_media<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    record: bool,
    locate: impl Fn(&Overlay<'_, P>, &mut Lines<'_>) -> Result<Vec<String>>,
) -> Result<MediaReport> {
    if record {
        superblock.check_writable()?;
    }
    let in_words = |bad: &BTreeSet<u64>| -> Result<[Vec<String>; 2]> {
        let mut told = BTreeSet::new();
        let owned = match bad.is_empty() {
            true => Vec::new(),
            false => locate(&Overlay::new(pm), &mut Lines { bad, told: &mut told })?,
        };
        Ok([owned, untold(bad, &mut told).into_iter().map(in_no_file).collect()])
    };
    let (lines, retired) = all_bad_lines(pm, superblock)?;
    let [told, _] = in_words(&retired)?;
    let errors = in_words(&lines)?.concat();
    let new_blocks = new_bad_blocks(pm, superblock, &lines, record.then_some(Share::ALL))?;
    Ok(MediaReport { errors, told, new_blocks })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Lines, Paths};
    use crate::links::Name;

    #[test]
    fn paths_lead_from_the_root_and_circles_end() {
        let mut paths = Paths::new(1);
        for (directory, bytes, inode) in [(1, "a", 2), (2, "b", 3), (5, "again", 3), (7, "x", 6), (6, "y", 7)]
        {
            paths.add(directory, &Name { bytes: bytes.as_bytes(), inode, generation: 1, kind: 1 });
        }
        let shown = [1, 2, 3, 4, 5].map(|number| paths.of(number));
        assert_eq!(shown, ["/", "/a", "/a/b", "a file without a name", "a file without a name"]);
        assert!(paths.of(6).starts_with(".../"), "{}", paths.of(6));
        let mut words = Vec::new();
        paths.tell(3, vec!["one".to_owned(), "two".to_owned()], &mut words);
        paths.tell(2, Vec::new(), &mut words);
        assert_eq!(words, ["/a/b (inode 3): one", "/a/b (inode 3): two"]);
    }

    #[test]
    fn lines_are_told_where_they_are() {
        let bad = BTreeSet::from([4096, 4160, 8192]);
        let mut told = BTreeSet::new();
        let mut lines = Lines { bad: &bad, told: &mut told };
        assert_eq!(lines.in_inode(4096..4352), ["a media error in its inode, at byte 4096"]);
        let mut hits = Vec::new();
        lines.in_xattrs(vec![2, 3], &mut hits);
        assert_eq!(hits, ["a media error in its extended attributes"]);
        assert_eq!(told, bad);
    }
}
