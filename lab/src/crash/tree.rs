//! All that can be seen of a file system, to compare one with another.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use nacre_engine::{Attr, Data, Error, FileKind, InodeId, Result, Timestamp};

/// How exact ctime must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ctime {
    /// Equal.
    Exact,
    /// Not newer: after names or links of an inode changed, the new ctime may be lost in a crash.
    MayLag,
}

/// Everything below the root, by path; the root is the empty path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
    /// Something was read: the time of that may be lost in a crash.
    atime_may_lag: bool,
    /// Something was overwritten on a full device, where no entry of a log may say when.
    times_may_lag: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    kind: FileKind,
    ctime: Timestamp,
    attributes: Attributes,
    /// The first path in order that leads to the same inode.
    same_as: String,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Everything of the attributes that a layout does not choose for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attributes {
    mode: u32,
    links: u32,
    owner: (u32, u32),
    rdev: u64,
    flags: u32,
    atime: Timestamp,
    mtime: Timestamp,
    /// Not of the root, which was born before the workload.
    btime: Option<Timestamp>,
    /// Not of a directory, because its size depends on the layout.
    size: Option<u64>,
    /// Bytes of blocks, of a regular file.
    allocated: Option<u64>,
}

impl Tree {
    /// Walks a whole file system. A directory that reports an entry that cannot be looked up, or twice, is an error.
    pub fn of<F: Data>(fs: &F) -> Result<Tree> {
        let mut walker = Walker { fs, entries: BTreeMap::new(), first: HashMap::new() };
        walker.visit(String::new(), &fs.root())?;
        Ok(Tree { entries: walker.entries, atime_may_lag: false, times_may_lag: false })
    }

    /// Several trees as one. Each has a prefix, which differs from those of the others, before its paths.
    pub(super) fn joined<'t>(trees: impl IntoIterator<Item = (String, &'t Tree)>) -> Tree {
        let mut all = Tree::default();
        for (prefix, tree) in trees {
            all.atime_may_lag |= tree.atime_may_lag;
            all.times_may_lag |= tree.times_may_lag;
            for (path, entry) in &tree.entries {
                let same_as = format!("{prefix}{}", entry.same_as);
                all.entries.insert(format!("{prefix}{path}"), Entry { same_as, ..entry.clone() });
            }
        }
        all
    }

    /// The same, after something was read.
    pub(super) fn after_reads(self) -> Tree {
        Tree { atime_may_lag: true, ..self }
    }

    /// The same, after something was overwritten on a full device.
    pub(super) fn after_overwrites(self) -> Tree {
        Tree { times_may_lag: true, ..self }
    }

    /// Number of names below the root.
    pub fn len(&self) -> usize {
        self.entries.len().saturating_sub(1)
    }

    /// True when the root has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inodes: what has several names counts once.
    pub(super) fn inodes(&self) -> usize {
        self.entries.iter().filter(|(path, entry)| **path == entry.same_as).count()
    }

    /// The paths below the root, those of a directory's entries after its own.
    pub fn paths(&self) -> impl DoubleEndedIterator<Item = (&str, FileKind)> {
        self.entries.iter().filter(|(path, _)| !path.is_empty()).map(|(path, entry)| (&path[1..], entry.kind))
    }

    /// The paths below the root whose flags forbid something.
    pub(super) fn protected(&self) -> impl Iterator<Item = &str> {
        let flagged = self.entries.iter().filter(|(_, entry)| entry.attributes.flags != 0);
        flagged.filter(|(path, _)| !path.is_empty()).map(|(path, _)| &path[1..])
    }

    /// How another one differs, in words; empty when it does not.
    pub fn differences(&self, found: &Tree) -> Vec<String> {
        self.differences_with(found, Ctime::Exact)
    }

    /// The same, where ctime may lag behind.
    pub fn differences_with(&self, found: &Tree, ctime: Ctime) -> Vec<String> {
        let mut differences = Vec::new();
        for (path, expected) in &self.entries {
            match found.entries.get(path) {
                None => differences.push(format!("{path} is missing")),
                Some(found) => {
                    expected.differences(path, &self.without_lag(expected, found), ctime, &mut differences)
                }
            }
        }
        let extra = found.entries.keys().filter(|path| !self.entries.contains_key(*path));
        differences.extend(extra.map(|path| format!("{path} should not exist")));
        differences
    }

    /// The entry that was found, with the times that were expected where they may lag and do.
    fn without_lag<'f>(&self, expected: &Entry, found: &'f Entry) -> Cow<'f, Entry> {
        let mut found = Cow::Borrowed(found);
        if self.atime_may_lag && found.attributes.atime < expected.attributes.atime {
            found.to_mut().attributes.atime = expected.attributes.atime;
        }
        if self.times_may_lag && expected.kind == FileKind::Regular {
            let found = found.to_mut();
            found.attributes.mtime = found.attributes.mtime.max(expected.attributes.mtime);
            found.ctime = found.ctime.max(expected.ctime);
        }
        found
    }

    /// True if `found` differs from this only in contents of files, and each aligned word of 8 bytes there is that of
    /// this or of one of `through`.
    pub(super) fn is_torn(&self, found: &Tree, through: &[&Tree], ctime: Ctime) -> bool {
        self.entries.len() == found.entries.len()
            && self.entries.iter().all(|(path, expected)| {
                let Some(found) = found.entries.get(path) else { return false };
                let mut found = self.without_lag(expected, found);
                let others: Vec<&[u8]> = through
                    .iter()
                    .filter_map(|tree| tree.entries.get(path))
                    .map(|entry| entry.content.as_slice())
                    .collect();
                let mut differences = Vec::new();
                if expected.content != found.content {
                    if !expected.is_mixture(&found.content, &others) {
                        return false;
                    }
                    found.to_mut().content.clone_from(&expected.content);
                }
                expected.differences(path, &found, ctime, &mut differences);
                differences.is_empty()
            })
    }
}

impl Entry {
    /// Every word of `content` is the one here or the one in the same place of one of the others.
    fn is_mixture(&self, content: &[u8], others: &[&[u8]]) -> bool {
        self.kind == FileKind::Regular
            && self.content.len() == content.len()
            && content.chunks(8).zip(self.content.chunks(8)).enumerate().all(|(index, (found, expected))| {
                let range = index * 8..index * 8 + found.len();
                found == expected || others.iter().any(|other| other.get(range.clone()) == Some(found))
            })
    }

    fn differences(&self, path: &str, found: &Entry, ctime: Ctime, out: &mut Vec<String>) {
        let good = match ctime {
            Ctime::Exact => found.ctime == self.ctime,
            Ctime::MayLag => found.ctime <= self.ctime,
        };
        if !good {
            out.push(format!(
                "{path}: ctime is {} instead of {}",
                in_words(found.ctime),
                in_words(self.ctime)
            ));
        }
        if self.kind != found.kind {
            out.push(format!("{path} is a {:?} instead of a {:?}", found.kind, self.kind));
            return;
        }
        if self.attributes != found.attributes {
            let pairs = self.attributes.in_words().into_iter().zip(found.attributes.in_words());
            for ((name, expected), (_, found)) in pairs.filter(|(expected, found)| expected != found) {
                out.push(format!("{path}: {name} is {found} instead of {expected}"));
            }
        }
        if self.same_as != found.same_as {
            out.push(format!("{path} is the same file as {} instead of {}", found.same_as, self.same_as));
        }
        if self.content != found.content {
            let at = self.content.iter().zip(&found.content).position(|(a, b)| a != b);
            let at = at.unwrap_or(self.content.len().min(found.content.len()));
            out.push(format!(
                "{path}: the content differs from byte {at} on ({} bytes instead of {}; there {:02x?} instead of {:02x?})",
                found.content.len(),
                self.content.len(),
                &found.content[at..found.content.len().min(at + 8)],
                &self.content[at..self.content.len().min(at + 8)],
            ));
        }
        if self.xattrs != found.xattrs {
            let names = |xattrs: &BTreeMap<Vec<u8>, Vec<u8>>| {
                let words = xattrs
                    .iter()
                    .map(|(name, value)| format!("{}={} bytes", String::from_utf8_lossy(name), value.len()));
                words.collect::<Vec<_>>().join(", ")
            };
            out.push(format!(
                "{path}: attributes [{}] instead of [{}]",
                names(&found.xattrs),
                names(&self.xattrs)
            ));
        }
    }
}

struct Walker<'f, F: Data> {
    fs: &'f F,
    entries: BTreeMap<String, Entry>,
    first: HashMap<InodeId, String>,
}

impl<F: Data> Walker<'_, F> {
    fn visit(&mut self, path: String, node: &F::Node) -> Result<()> {
        let attr = self.fs.getattr(node)?;
        let content = match attr.kind {
            FileKind::Regular => self.content(node, attr.size)?,
            FileKind::Symlink => self.fs.read_link(node)?,
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for name in self.fs.list_xattrs(node)? {
            let value = self.fs.get_xattr(node, &name)?;
            xattrs.insert(name, value);
        }
        let same_as = self.first.entry(attr.id).or_insert_with(|| path.clone()).clone();
        let entry = Entry {
            kind: attr.kind,
            ctime: attr.ctime,
            attributes: Attributes::of(&attr, path.is_empty()),
            same_as,
            content,
            xattrs,
        };
        if attr.kind == FileKind::Directory {
            self.visit_entries(&path, node)?;
        }
        self.entries.insert(path, entry);
        Ok(())
    }

    fn visit_entries(&mut self, path: &str, dir: &F::Node) -> Result<()> {
        let mut names = Vec::new();
        self.fs.read_dir(dir, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.id, entry.kind));
            ControlFlow::Continue(())
        })?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        for pair in names.windows(2) {
            if pair[0].0 == pair[1].0 {
                return Err(Error::corrupt(format!(
                    "{path}/{}: reported twice",
                    String::from_utf8_lossy(&pair[0].0)
                )));
            }
        }
        for (name, id, kind) in names {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let node = self.fs.lookup(dir, &name).map_err(|e| e.object(path.clone()))?;
            if self.fs.id(&node) != id || self.fs.kind(&node) != kind {
                return Err(Error::corrupt(format!("{path}: readdir and lookup disagree")));
            }
            self.visit(path, &node)?;
        }
        Ok(())
    }

    fn content(&self, node: &F::Node, size: u64) -> Result<Vec<u8>> {
        // One byte more than the size must not be there.
        let mut content = vec![0; size as usize + 1];
        let len = self.fs.read(node, 0, &mut content, None)?;
        content.truncate(len);
        Ok(content)
    }
}

fn in_words(time: Timestamp) -> String {
    format!("{}.{:09}", time.secs, time.nanos)
}

impl Attributes {
    fn of(attr: &Attr, is_root: bool) -> Attributes {
        Attributes {
            mode: attr.mode,
            links: attr.links,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            flags: attr.flags,
            atime: attr.atime,
            mtime: attr.mtime,
            btime: (!is_root).then_some(attr.btime),
            size: (attr.kind != FileKind::Directory).then_some(attr.size),
            allocated: (attr.kind == FileKind::Regular).then_some(attr.allocated),
        }
    }

    fn in_words(&self) -> [(&'static str, String); 10] {
        [
            ("mode", format!("{:o}", self.mode)),
            ("links", self.links.to_string()),
            ("owner", format!("{}:{}", self.owner.0, self.owner.1)),
            ("device number", self.rdev.to_string()),
            ("flags", self.flags.to_string()),
            ("atime", in_words(self.atime)),
            ("mtime", in_words(self.mtime)),
            ("btime", self.btime.map_or_else(String::new, in_words)),
            ("size", self.size.map_or_else(String::new, |size| size.to_string())),
            ("allocated", self.allocated.map_or_else(String::new, |bytes| bytes.to_string())),
        ]
    }
}
