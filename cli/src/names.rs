//! Names of files for the inode numbers in a mount's messages.
//!
//! An inode has no reference to its names, so directories are read until all are found. The search has limits, so that
//! a command does not wait for millions of names.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The mark of an inode number in texts of a mount.
const INODE: &str = "inode ";
/// The limits of one search, in names and in time.
const MOST_NAMES: usize = 100_000;
const PATIENCE: Duration = Duration::from_millis(300);
/// The time after which a name that was not found is searched for again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The names of files of one mount, as far as they were found.
#[derive(Debug, Default)]
pub(crate) struct Names {
    mountpoint: PathBuf,
    /// Relative to the mountpoint.
    known: HashMap<u64, PathBuf>,
    /// Inodes without a name that was found, and the time of the search. They are not searched for again soon.
    missed: HashMap<u64, Instant>,
}

impl Names {
    /// An empty set of names of a mount.
    pub(crate) fn of(mountpoint: &Path) -> Names {
        Names { mountpoint: mountpoint.to_owned(), ..Names::default() }
    }

    /// Searches for names of inodes that are unknown or have been renamed.
    pub(crate) fn look_for(&mut self, inodes: impl IntoIterator<Item = u64>) {
        let mountpoint = &self.mountpoint;
        self.known.retain(|inode, path| {
            fs::symlink_metadata(mountpoint.join(path)).is_ok_and(|found| found.ino() == *inode)
        });
        self.missed.retain(|_, at| at.elapsed() < LOOK_AGAIN);
        let is_wanted =
            |inode: &u64| *inode != 0 && !self.known.contains_key(inode) && !self.missed.contains_key(inode);
        let mut wanted: Vec<u64> = inodes.into_iter().filter(is_wanted).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.walk(&mut wanted);
        self.missed.extend(wanted.into_iter().map(|inode| (inode, Instant::now())));
    }

    /// Searches the tree, and removes each inode that it finds from `wanted`.
    fn walk(&mut self, wanted: &mut Vec<u64>) {
        let Ok(root) = fs::symlink_metadata(&self.mountpoint) else { return };
        let (end, mut looked_at) = (Instant::now() + PATIENCE, 0);
        let mut waiting = VecDeque::from([PathBuf::new()]);
        while let Some(directory) = waiting.pop_front().filter(|_| !wanted.is_empty()) {
            let place = self.mountpoint.join(&directory);
            // Another file system may be mounted there, with inode numbers of its own.
            if !fs::symlink_metadata(&place).is_ok_and(|found| found.dev() == root.dev()) {
                continue;
            }
            for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
                looked_at += 1;
                if looked_at > MOST_NAMES || Instant::now() > end {
                    return;
                }
                let path = directory.join(entry.file_name());
                if let Ok(at) = wanted.binary_search(&entry.ino()) {
                    self.known.insert(wanted.remove(at), path.clone());
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push_back(path);
                }
            }
        }
    }

    /// A text of the mount with names in the place of inode numbers, as far as these are found.
    pub(crate) fn put_into(&mut self, text: &str) -> String {
        self.look_for(numbers(text).map(|(_, number)| number));
        named(text, |inode| self.get(inode))
    }

    /// A text of the mount with whole paths in the place of inode numbers, for messages that stand alone.
    pub(crate) fn put_paths_into(&mut self, text: &str) -> String {
        self.look_for(numbers(text).map(|(_, number)| number));
        named(text, |inode| Some(self.mountpoint.join(self.known.get(&inode)?).display().to_string()))
    }

    /// The name of a file, if it was found.
    pub(crate) fn get(&self, inode: u64) -> Option<String> {
        self.known.get(&inode).map(|path| path.display().to_string())
    }
}

/// A text of a mount with names in the place of `inode 7`, for the inodes that have one.
pub(crate) fn named(text: &str, name_of: impl Fn(u64) -> Option<String>) -> String {
    let (mut named, mut end) = (String::new(), 0);
    for (place, number) in numbers(text) {
        if let Some(name) = name_of(number) {
            named.push_str(&text[end..place.start]);
            named.push_str(&name);
            end = place.end;
        }
    }
    named + &text[end..]
}

/// The positions of `inode` with a number in a text, and the numbers.
fn numbers(text: &str) -> impl Iterator<Item = (Range<usize>, u64)> {
    text.match_indices(INODE).filter_map(|(start, _)| {
        let digits = &text[start + INODE.len()..];
        let len = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
        Some((start..start + INODE.len() + len, digits[..len].parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::Names;

    #[test]
    fn a_file_is_found_by_its_number_and_by_its_new_name() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "").unwrap();
        let inode = fs::metadata(deep.join("file")).unwrap().ino();
        let mut names = Names::of(dir.path());
        assert_eq!(names.get(inode), None);
        names.look_for([inode, u64::MAX, 0]);
        assert_eq!((names.get(inode).as_deref(), names.get(u64::MAX)), (Some("a/b/file"), None));
        fs::rename(deep.join("file"), dir.path().join("other")).unwrap();
        names.look_for([inode]);
        assert_eq!(names.get(inode).as_deref(), Some("other"));
        fs::remove_file(dir.path().join("other")).unwrap();
        names.look_for([inode]);
        assert_eq!(names.get(inode), None);
    }

    #[test]
    fn texts_name_files_that_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a b"), "").unwrap();
        let inode = fs::metadata(dir.path().join("a b")).unwrap().ino();
        let mut names = Names::of(dir.path());
        let text = format!("inode {inode}: tier 1: in use; log of inode {inode}, inode 0, inode of inode ");
        let expected = "a b: tier 1: in use; log of a b, inode 0, inode of inode ";
        assert_eq!(names.put_into(&text), expected);
        let whole = dir.path().join("a b").display().to_string();
        assert_eq!(names.put_paths_into(&text), expected.replace("a b", &whole));
        for same in ["", "inode", "inode 99999999999999999999999", "inode -1", "inode 0x1"] {
            assert_eq!(names.put_into(same), same);
        }
    }
}
