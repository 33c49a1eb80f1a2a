//! Names of files of which a mount tells the numbers: people know files by these.
//!
//! Nothing leads from an inode to its names, so directories are read until all are found, within bounds: who waits for an answer
//! does not wait for a look at millions of names.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How texts of a mount name a file.
const INODE: &str = "inode ";
/// Names that are looked at for one answer at the most, and for how long.
const MOST_NAMES: usize = 100_000;
const PATIENCE: Duration = Duration::from_millis(300);
/// After this long it is looked again for one that was not found.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The names of files of one mount, as far as they were found.
#[derive(Debug, Default)]
pub(crate) struct Names {
    mountpoint: PathBuf,
    /// Relative to the mountpoint.
    known: HashMap<u64, PathBuf>,
    /// Those that were not found, and when: they are not looked for again soon.
    missed: HashMap<u64, Instant>,
}

impl Names {
    /// Those of a mount, none of which is known yet.
    pub(crate) fn of(mountpoint: &Path) -> Names {
        Names { mountpoint: mountpoint.to_owned(), ..Names::default() }
    }

    /// Looks for the names of inodes that are not known, or that have another one by now.
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

    /// Takes those out of what is wanted that it finds.
    fn walk(&mut self, wanted: &mut Vec<u64>) {
        let Ok(root) = fs::symlink_metadata(&self.mountpoint) else { return };
        let (end, mut looked_at) = (Instant::now() + PATIENCE, 0);
        let mut waiting = VecDeque::from([PathBuf::new()]);
        while let Some(directory) = waiting.pop_front().filter(|_| !wanted.is_empty()) {
            let place = self.mountpoint.join(&directory);
            // Something else may be mounted there, with numbers of its own.
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

    /// A text of the mount in which inodes have their names, as far as these are found.
    pub(crate) fn put_into(&mut self, text: &str) -> String {
        self.look_for(numbers(text).map(|(_, number)| number));
        named(text, |inode| self.get(inode))
    }

    /// The same with whole paths, for messages that stand alone.
    pub(crate) fn put_paths_into(&mut self, text: &str) -> String {
        self.look_for(numbers(text).map(|(_, number)| number));
        named(text, |inode| Some(self.mountpoint.join(self.known.get(&inode)?).display().to_string()))
    }

    /// The name of a file, where it was found.
    pub(crate) fn get(&self, inode: u64) -> Option<String> {
        self.known.get(&inode).map(|path| path.display().to_string())
    }
}

/// A text of a mount, which tells `inode 7`, with names for the inodes that have one.
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

/// Where a text has `inode` and a number, and the number.
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
