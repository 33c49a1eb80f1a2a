//! The state of a worker's directory: names, and the contents of files, which several names may share. The same type
//! holds the expected and the real state.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The entry of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Directory,
    /// The target.
    Symlink(String),
    /// The number of the file's contents in [`Tree::files`].
    File(u64),
}

/// The data and attributes of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) bytes: Vec<u8>,
    pub(super) xattrs: BTreeMap<String, Vec<u8>>,
}

/// A directory tree. Names are paths below the worker's directory.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    pub(super) names: BTreeMap<String, Entry>,
    files: BTreeMap<u64, Contents>,
    next: u64,
}

/// The new path of an entry after `from` has become `to`, with everything below it; `None` for other paths.
fn moved(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
}

/// True if one of two paths is the other one or leads to it.
pub(super) fn nested(one: &str, other: &str) -> bool {
    moved(one, other, "").is_some() || moved(other, one, "").is_some()
}

impl Tree {
    /// The contents of a file.
    pub(super) fn file(&self, name: &str) -> Option<&Contents> {
        match self.names.get(name)? {
            Entry::File(number) => self.files.get(number),
            _ => None,
        }
    }

    /// The contents of a file, to change them.
    pub(super) fn file_mut(&mut self, name: &str) -> Option<&mut Contents> {
        match self.names.get(name)? {
            Entry::File(number) => self.files.get_mut(number),
            _ => None,
        }
    }

    /// Makes a new file, in the place of the entry with the name.
    pub(super) fn put(&mut self, name: &str, bytes: Vec<u8>) {
        self.next += 1;
        self.files.insert(self.next, Contents { bytes, xattrs: BTreeMap::new() });
        self.names.insert(name.to_owned(), Entry::File(self.next));
        self.forget_unnamed();
    }

    /// Adds a name to a file.
    pub(super) fn link(&mut self, from: &str, to: &str) {
        if let Some(entry) = self.names.get(from).cloned() {
            self.names.insert(to.to_owned(), entry);
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.names.remove(name);
        self.forget_unnamed();
    }

    /// Renames as rename(2) does: two names of one file both stay.
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        let same = matches!(self.names.get(from), Some(Entry::File(_)))
            && self.names.get(from) == self.names.get(to);
        if !same {
            self.names.remove(to);
            self.map_names(|path| moved(path, from, to));
        }
    }

    pub(super) fn exchange(&mut self, one: &str, other: &str) {
        self.map_names(|path| moved(path, one, other).or_else(|| moved(path, other, one)));
    }

    fn map_names(&mut self, new: impl Fn(&str) -> Option<String>) {
        let names = std::mem::take(&mut self.names);
        self.names = names.into_iter().map(|(path, entry)| (new(&path).unwrap_or(path), entry)).collect();
        self.forget_unnamed();
    }

    fn forget_unnamed(&mut self) {
        let names = &self.names;
        self.files.retain(|number, _| names.values().any(|entry| *entry == Entry::File(*number)));
    }

    pub(super) fn is_empty_directory(&self, name: &str) -> bool {
        self.names.get(name) == Some(&Entry::Directory)
            && !self.names.keys().any(|path| path != name && moved(path, name, "").is_some())
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes.len() as u64).sum()
    }

    /// Reads a directory. A file whose link count is not the number of its names is an error.
    pub(super) fn read(dir: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        let mut links = BTreeMap::new();
        tree.read_below(dir, "", &mut links)?;
        for (number, count) in links {
            let names: Vec<_> =
                tree.names.iter().filter(|(_, entry)| **entry == Entry::File(number)).map(|n| n.0).collect();
            if names.len() as u64 != count {
                return Err(io::Error::other(format!("{names:?} have {count} links")));
            }
        }
        Ok(tree)
    }

    fn read_below(&mut self, dir: &Path, prefix: &str, links: &mut BTreeMap<u64, u64>) -> io::Result<()> {
        for found in fs::read_dir(dir)? {
            let found = found?;
            let (path, name) = (found.path(), format!("{prefix}{}", found.file_name().to_string_lossy()));
            let metadata = fs::symlink_metadata(&path)?;
            if metadata.is_dir() {
                self.names.insert(name.clone(), Entry::Directory);
                self.read_below(&path, &format!("{name}/"), links)?;
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path)?.to_string_lossy().into_owned();
                self.names.insert(name, Entry::Symlink(target));
            } else {
                let number = metadata.ino();
                if links.insert(number, metadata.nlink()).is_none() {
                    self.files.insert(number, read_file(&path)?);
                }
                self.names.insert(name, Entry::File(number));
            }
        }
        Ok(())
    }

    /// The first name of each file. It tells apart two trees with the same contents and different links.
    fn first_names(&self) -> BTreeMap<u64, &str> {
        let mut first = BTreeMap::new();
        for (name, entry) in &self.names {
            if let Entry::File(number) = entry {
                first.entry(*number).or_insert(name.as_str());
            }
        }
        first
    }

    /// True if the real tree is this one.
    pub(super) fn is(&self, real: &Tree) -> bool {
        self.differences(real).is_empty()
    }

    /// The differences of the real tree from this one, in words.
    pub(super) fn differences(&self, real: &Tree) -> Vec<String> {
        let (mut wrong, first, first_real) = (Vec::new(), self.first_names(), real.first_names());
        for (name, entry) in &self.names {
            match (entry, real.names.get(name)) {
                (_, None) => wrong.push(format!("{name} is missing ({entry:?})")),
                (Entry::File(number), Some(Entry::File(found))) => {
                    let (one, other) = (first[number], first_real[found]);
                    if one != other {
                        wrong.push(format!("{name} is a link to {other}, not to {one}"));
                    }
                    wrong.extend(difference(name, &self.files[number], &real.files[found]));
                }
                (_, Some(found)) if entry == found => {}
                (_, Some(found)) => wrong.push(format!("{name} is {found:?}, not {entry:?}")),
            }
        }
        let more = real.names.keys().filter(|name| !self.names.contains_key(*name));
        wrong.extend(more.map(|name| format!("{name} is too much")));
        wrong
    }
}

fn read_file(path: &Path) -> io::Result<Contents> {
    let mut contents = Contents { bytes: fs::read(path)?, xattrs: BTreeMap::new() };
    let mut list = vec![0_u8; 64 << 10];
    let len = rustix::fs::listxattr(path, &mut list[..])?;
    for name in list[..len].split(|byte| *byte == 0).map(String::from_utf8_lossy) {
        // Other attributes, such as those of a security module, do not count.
        if name.starts_with("user.") {
            let mut value = vec![0_u8; 64 << 10];
            let len = rustix::fs::getxattr(path, &*name, &mut value[..])?;
            value.truncate(len);
            contents.xattrs.insert(name.into_owned(), value);
        }
    }
    Ok(contents)
}

fn difference(name: &str, expected: &Contents, found: &Contents) -> Option<String> {
    if expected.xattrs != found.xattrs {
        let keys = |contents: &Contents| contents.xattrs.keys().cloned().collect::<Vec<_>>().join(" ");
        return Some(format!("{name} has other attributes ({}; {} expected)", keys(found), keys(expected)));
    }
    let (found, expected) = (&found.bytes, &expected.bytes);
    if found == expected {
        return None;
    }
    let common = found.len().min(expected.len());
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(common);
    let (is, should) = (found.len(), expected.len());
    Some(format!("{name} differs from byte {at} on (it has {is} bytes, {should} expected)"))
}
