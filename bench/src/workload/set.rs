//! Files to work on, and contents to write into them.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Gamma};

use crate::Error;
use crate::target::{Open, Target, create_dir_all};

/// Where buffers begin.
const PAGE: usize = 4096;

/// Bytes that are written at once when files are made: as TPFS's figures have it (paper 002, section 6.2), and others give none.
const PIECE: usize = 2 << 20;

/// A buffer that starts at a page, as `rep movsb` in library and kernel likes it, and whose pages are present.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

/// A buffer of this length.
pub(crate) fn buffer(len: usize) -> Buffer {
    let bytes: Vec<u8> = (0..len + PAGE).map(|at| (at % 251) as u8).collect();
    let start = bytes.as_ptr().align_offset(PAGE);
    Buffer { bytes, start }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.bytes.len() - PAGE]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.bytes.len() - PAGE;
        &mut self.bytes[self.start..self.start + len]
    }
}

/// Makes a file of this size, with content.
pub fn fill(target: &dyn Target, path: &Path, size: u64) -> Result<(), Error> {
    let file = target.open(path, Open::CREATE)?;
    let bytes = buffer(PIECE.min(size as usize));
    let mut at = 0;
    while at < size {
        let len = bytes.len().min((size - at) as usize);
        file.write_at(&bytes[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

/// Many files in a tree of directories, as filebench makes them. Their sizes follow a gamma distribution with shape
/// 1.5 around the mean; their directories are as wide as asked for.
#[derive(Debug, Clone)]
pub struct FileSet {
    root: PathBuf,
    files: u64,
    width: u64,
    mean: u64,
}

impl FileSet {
    /// Nothing is made yet. A mean of no bytes makes empty files.
    pub fn new(root: &str, files: u64, width: u64, mean: u64) -> FileSet {
        FileSet { root: PathBuf::from(root), files, width: width.max(2), mean }
    }

    /// The number of files.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// The path of one of them.
    pub fn path(&self, number: u64) -> PathBuf {
        self.dir(number / self.width).join(format!("{number:08}"))
    }

    /// The directories are leaves of a tree that is as wide as they are.
    fn dir(&self, mut leaf: u64) -> PathBuf {
        let mut parts = Vec::new();
        let mut leaves = self.files.div_ceil(self.width).max(1);
        while leaves > 1 {
            parts.push(leaf % self.width);
            leaf /= self.width;
            leaves = leaves.div_ceil(self.width);
        }
        parts.iter().rev().fold(self.root.clone(), |path, part| path.join(format!("d{part}")))
    }

    /// The size that a file has when it is made; the same in every run.
    pub fn size(&self, number: u64) -> u64 {
        if self.mean == 0 {
            return 0;
        }
        let gamma = Gamma::new(1.5, self.mean as f64 / 1.5).expect("shape and scale are positive");
        let size = gamma.sample(&mut SmallRng::seed_from_u64(number ^ 0x7365_7473));
        // Filebench's sizes have no bound; one of ten times the mean is one in two million.
        (size.round() as u64).clamp(1, 10 * self.mean)
    }

    /// Makes the directories, and this share of the files.
    pub fn make(&self, target: &dyn Target, share: f64) -> Result<(), Error> {
        for leaf in 0..self.files.div_ceil(self.width).max(1) {
            create_dir_all(target, &self.dir(leaf))?;
        }
        let mut random = SmallRng::seed_from_u64(0x6d61_6b65);
        for number in 0..self.files {
            if share >= 1.0 || random.random_bool(share) {
                fill(target, &self.path(number), self.size(number))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{FileSet, fill};
    use crate::workload::noted::{Call, Noted};

    #[test]
    fn files_are_made_two_megabytes_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        let path = Path::new("file");
        fill(&target, path, 5 << 20).unwrap();
        let calls = target.take().into_iter().map(|(_, call)| call);
        let writes: Vec<Call> = calls.filter(|call| matches!(call, Call::Write(..))).collect();
        let mib = |at: u64, len: usize| Call::Write(at << 20, len << 20);
        assert_eq!(writes, [mib(0, 2), mib(2, 2), mib(4, 1)]);
    }

    #[test]
    fn sizes_have_their_mean_and_names_are_unique() {
        let set = FileSet::new("set", 5000, 20, 128 << 10);
        let mean = (0..5000).map(|number| set.size(number)).sum::<u64>() as f64 / 5000.0;
        assert!((mean / f64::from(128 << 10) - 1.0).abs() < 0.05, "{mean}");
        let paths: std::collections::HashSet<_> = (0..5000).map(|number| set.path(number)).collect();
        assert_eq!(paths.len(), 5000);
        let deepest = paths.iter().map(|path| path.components().count()).max();
        assert_eq!(deepest, Some(4), "250 directories of 20 files are two levels of 20");
    }
}
