//! Work on a tree of sources: kernel-grep and kernel-make of paper 000, as far as a file system sees them.
//!
//! The tree is made here, the same each time. Directories and sizes of files are shaped like those of a kernel's
//! sources: a median of 5 KiB, a mean of about 15 KiB, some files of 1 MiB; a quarter are headers.
//! - `tree.grep` lists every directory, reads every file whole, and searches it for a word that none has.
//! - `tree.make` is the file-system side of a kernel's build, not a compiler. For each source, in turn, it finds and
//!   reads the source and some headers, and writes the object and a list of its dependencies. It reads the list, and
//!   writes the command file that make reads the next time in its place under another name. Then it removes the list,
//!   and renames. When a directory is done its objects are read and written as one, and at the end these are, as the
//!   kernel. The products are removed afterwards, untimed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, LogNormal};

use super::recorder::whole;
use super::set::{Buffer, buffer, fill};
use super::{Length, Measured, Op, Recorder, Round, Value, Workload, scaled};
use crate::Error;
use crate::spec::Spec;
use crate::target::{Open, Target, create_dir_all, remove_dir_all};

const ROOT: &str = "tree";
/// The product of a build.
const KERNEL: &str = "vmlinux.o";
/// Source files and headers of one directory.
const PER_DIRECTORY: u64 = 15;
/// Bytes of the list of an object's dependencies, some hundred paths, and of the command file made from it.
const DEPENDENCIES: u64 = 12 << 10;
const COMMAND: u64 = 2 * DEPENDENCIES;
/// Larger files are as good as none in a tree of sources.
const LARGEST: u64 = 1 << 20;
/// The median, in bytes, and the spread of the log-normal distribution of sizes.
const MEDIAN: f64 = 5120.0;
const SPREAD: f64 = 1.45;
/// Bytes of one read or write.
const IO: usize = 128 << 10;
/// No content has it: those are bytes up to 250.
const WORD: [u8; 4] = [254, 255, 254, 255];

struct Tree {
    make: bool,
    files: u64,
    headers: u64,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let make = spec.name() == "tree.make";
    let files = scaled(spec.number("files", 4000, 8)?, scale, 8);
    let headers = if make { spec.number("headers", 20, 0)? } else { 0 };
    Ok(Box::new(Tree { make, files, headers }))
}

/// Every fourth file is a header.
fn is_header(number: u64) -> bool {
    number % 4 == 3
}

/// Some 15 files in a directory, directories two to four levels deep.
fn directory(number: u64) -> PathBuf {
    let leaf = number / PER_DIRECTORY;
    let mut path = Path::new(ROOT).join(format!("d{}", leaf % 20));
    if leaf % 20 > 3 {
        path.push(format!("s{}", leaf / 20 % 12));
    }
    if leaf.is_multiple_of(3) {
        path.push(format!("t{}", leaf / 240));
    }
    path
}

fn path(number: u64) -> PathBuf {
    directory(number).join(format!("f{number}.{}", if is_header(number) { "h" } else { "c" }))
}

fn size(number: u64) -> u64 {
    let sizes = LogNormal::new(MEDIAN.ln(), SPREAD).expect("the spread is finite");
    let size: f64 = sizes.sample(&mut SmallRng::seed_from_u64(number ^ 0x7472_6565));
    (size as u64).clamp(64, LARGEST)
}

/// An object is somewhat larger than its source.
fn object_size(number: u64) -> u64 {
    size(number) * 3 / 2
}

fn object(number: u64) -> PathBuf {
    path(number).with_extension("o")
}

/// The files of make for an object: the list that the compiler writes, the command file, and that before it is whole.
fn beside(number: u64, suffix: &str) -> PathBuf {
    directory(number).join(format!(".f{number}.o.{suffix}"))
}

/// All objects of a directory as one.
fn built_in(leaf: u64) -> PathBuf {
    directory(leaf * PER_DIRECTORY).join(format!("built-in{leaf}.o"))
}

/// Writes a file piece by piece.
fn write_whole(
    target: &dyn Target,
    path: &Path,
    size: u64,
    content: &Buffer,
    recorder: &mut Recorder,
) -> Result<(), Error> {
    let file = target.open(path, Open::CREATE)?;
    recorder.lap(Op::Create);
    let mut at = 0;
    while at < size {
        let len = content.len().min((size - at) as usize);
        file.write_at(&content[..len], at)?;
        recorder.lap_write(Op::Write, len);
        at += len as u64;
    }
    drop(file);
    recorder.lap(Op::Close);
    Ok(())
}

/// Reads a file whole, and gives each piece.
fn read_whole(
    target: &dyn Target,
    path: &Path,
    data: &mut Buffer,
    recorder: &mut Recorder,
    mut each: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let file = target.open(path, Open::READ)?;
    recorder.lap(Op::Open);
    let mut at = 0;
    loop {
        let count = file.read_at(data, at)?;
        recorder.lap_read(Op::Read, count);
        at += count as u64;
        each(&data[..count])?;
        // Searching is part of the work, and no operation.
        recorder.wait();
        if count < data.len() {
            break;
        }
    }
    drop(file);
    recorder.lap(Op::Close);
    Ok(())
}

impl Tree {
    fn sources(&self) -> impl Iterator<Item = u64> {
        (0..self.files).filter(|number| !is_header(*number))
    }

    fn grep(&self, target: &dyn Target, recorder: &mut Recorder) -> Result<(), Error> {
        let mut data = buffer(IO);
        let mut found = 0;
        let mut dirs = vec![PathBuf::from(ROOT)];
        let mut read = 0;
        while let Some(dir) = dirs.pop() {
            let mut names = Vec::new();
            target.read_dir(&dir, &mut |name: &OsStr| names.push(dir.join(name)))?;
            recorder.lap(Op::ReadDir);
            for path in names {
                // Files have a suffix in this tree, and directories none.
                if path.extension().is_none() {
                    dirs.push(path);
                    continue;
                }
                read += 1;
                read_whole(target, &path, &mut data, recorder, |piece| {
                    found += piece.windows(WORD.len()).filter(|window| *window == WORD).count();
                    Ok(())
                })?;
            }
        }
        match (read == self.files, found) {
            (true, 0) => Ok(()),
            (false, _) => Err(format!("{read} of {} files were there", self.files).into()),
            (true, _) => Err("a word was found that no file has".into()),
        }
    }

    /// The directories' numbers.
    fn leaves(&self) -> impl Iterator<Item = u64> {
        0..self.files.div_ceil(PER_DIRECTORY)
    }

    fn sources_in(&self, leaf: u64) -> impl Iterator<Item = u64> {
        let end = self.files.min((leaf + 1) * PER_DIRECTORY);
        (leaf * PER_DIRECTORY..end).filter(|number| !is_header(*number))
    }

    fn build(&self, target: &dyn Target, recorder: &mut Recorder) -> Result<(), Error> {
        let mut make = Make {
            target,
            // Which headers a source has is the same in each round.
            random: SmallRng::seed_from_u64(0x006d_616b),
            headers: self.headers,
            all_headers: self.files / 4,
            data: buffer(IO),
            content: buffer(IO),
            pieces: Vec::new(),
        };
        // Filling them was no operation.
        recorder.wait();
        for leaf in self.leaves() {
            for number in self.sources_in(leaf) {
                make.compile(number, recorder)?;
            }
            make.link(self.sources_in(leaf).map(object), &built_in(leaf), recorder)?;
        }
        make.link(self.leaves().map(built_in), &Path::new(ROOT).join(KERNEL), recorder)
    }

    /// Removes the products of a build, and of one that did not come to its end.
    fn clean(&self, target: &dyn Target) -> Result<(), Error> {
        let beside_each = self.sources().flat_map(|number| {
            [object(number), beside(number, "cmd"), beside(number, "d"), beside(number, "tmp")]
        });
        let made = beside_each.chain(self.leaves().map(built_in));
        for path in made.chain([Path::new(ROOT).join(KERNEL)]) {
            if target.stat(&path).is_ok() {
                target.remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// A build under way.
struct Make<'a> {
    target: &'a dyn Target,
    random: SmallRng,
    /// Headers of each source.
    headers: u64,
    /// Headers that there are.
    all_headers: u64,
    /// The data that is read.
    data: Buffer,
    /// The data that is written.
    content: Buffer,
    /// A file that is read whole, to be written on.
    pieces: Vec<u8>,
}

impl Make<'_> {
    fn compile(&mut self, number: u64, recorder: &mut Recorder) -> Result<(), Error> {
        let Make { target, random, headers, all_headers, data, content, .. } = self;
        target.stat(&path(number))?;
        recorder.lap(Op::Stat);
        // No object is there yet, as in a tree that was not built.
        let _ = target.stat(&object(number));
        recorder.lap(Op::Stat);
        read_whole(*target, &path(number), data, recorder, |_| Ok(()))?;
        for _ in 0..*headers {
            let header = path(random.random_range(0..*all_headers) * 4 + 3);
            read_whole(*target, &header, data, recorder, |_| Ok(()))?;
        }
        let [list, unfinished, command] = ["d", "tmp", "cmd"].map(|suffix| beside(number, suffix));
        write_whole(*target, &object(number), object_size(number), content, recorder)?;
        write_whole(*target, &list, DEPENDENCIES, content, recorder)?;
        read_whole(*target, &list, data, recorder, |_| Ok(()))?;
        write_whole(*target, &unfinished, COMMAND, content, recorder)?;
        target.remove_file(&list)?;
        recorder.lap(Op::Unlink);
        target.rename(&unfinished, &command)?;
        recorder.lap(Op::Rename);
        Ok(())
    }

    /// Reads files and writes them as one.
    fn link(
        &mut self,
        from: impl Iterator<Item = PathBuf>,
        to: &Path,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let Make { target, data, pieces, .. } = self;
        let file = target.open(to, Open { append: true, ..Open::CREATE })?;
        recorder.lap(Op::Create);
        for path in from {
            pieces.clear();
            read_whole(*target, &path, data, recorder, |piece| {
                pieces.extend_from_slice(piece);
                Ok(())
            })?;
            file.append(pieces)?;
            recorder.lap_write(Op::Append, pieces.len());
        }
        drop(file);
        recorder.lap(Op::Close);
        Ok(())
    }
}

impl Workload for Tree {
    fn describe(&self) -> String {
        match self.make {
            false => format!("a tree of {} source files searched for a word that none has", self.files),
            true => format!(
                "the file-system side of a build: {} source files with {} headers each, objects, a kernel",
                self.sources().count(),
                self.headers
            ),
        }
    }

    fn bytes(&self) -> u64 {
        let blocks = |size: u64| size.next_multiple_of(4096);
        let tree: u64 = (0..self.files).map(|number| blocks(size(number))).sum();
        let kept = |number| 3 * blocks(object_size(number)) + blocks(COMMAND);
        let made: u64 = self.sources().map(kept).sum();
        if self.make { tree + made + DEPENDENCIES } else { tree }
    }

    fn files(&self) -> u64 {
        4 * self.files + 300
    }

    fn value(&self) -> Value {
        Value::Seconds
    }

    fn length(&self) -> Length {
        Length::Whole
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        remove_dir_all(target, ROOT.as_ref())?;
        for number in 0..self.files {
            create_dir_all(target, &directory(number))?;
            fill(target, &path(number), size(number))?;
        }
        Ok(target.sync()?)
    }

    fn round(&self, target: &dyn Target, _round: Round) -> Result<Measured, Error> {
        if !self.make {
            return whole(|recorder| self.grep(target, recorder));
        }
        self.clean(target)?;
        let measured = whole(|recorder| self.build(target, recorder))?;
        self.clean(target)?;
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{is_header, object_size, size};
    use crate::workload::tests::targets;
    use crate::workload::{Op, Round, make};

    const ROUND: Round = Round { number: 0, seed: 1, slice: Duration::ZERO };

    #[test]
    fn sizes_are_those_of_sources() {
        let mut sizes: Vec<_> = (0..20_000).map(size).collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<u64>() / 20_000;
        assert!((4800..5500).contains(&sizes[10_000]), "{}", sizes[10_000]);
        assert!((11_000..18_000).contains(&mean), "{mean}");
    }

    #[test]
    fn a_search_reads_every_byte_and_a_build_writes_every_object() {
        let dir = tempfile::tempdir().unwrap();
        let (all, objects) = (0..40).fold((0, 0), |(all, objects), number| {
            (all + size(number), objects + if is_header(number) { 0 } else { object_size(number) })
        });
        for target in targets(&dir) {
            let grep = make(&"tree.grep,files=40".parse().unwrap(), 1.0).unwrap();
            grep.prepare(&*target).unwrap();
            let measured = grep.round(&*target, ROUND).unwrap();
            assert_eq!((measured.read, measured.written), (all, 0));

            let build = make(&"tree.make,files=40,headers=2".parse().unwrap(), 1.0).unwrap();
            for _ in 0..2 {
                let measured = build.round(&*target, ROUND).unwrap();
                assert_eq!(measured.written, 3 * objects + 30 * (super::DEPENDENCIES + super::COMMAND));
                let opens = measured.times.iter().find(|(op, _)| *op == Op::Open).unwrap().1.len();
                assert_eq!(
                    opens,
                    30 * (3 + 1 + 1) + 3,
                    "source, two headers, list, object; three directories"
                );
            }
            let measured = grep.round(&*target, ROUND).unwrap();
            assert_eq!((measured.read, measured.written), (all, 0), "what was made is gone");
            target.remove_file(&super::path(7)).unwrap();
            assert!(grep.round(&*target, ROUND).is_err());
        }
    }
}
