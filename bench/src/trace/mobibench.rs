//! From the traces that come with MobiBench: thread, microseconds, call, arguments.
//!
//! Details that these traces have lost are filled in as MobiBench itself does it, or plainly:
//! - Its lines go thread by thread; they are put in the order of their times, since threads share descriptors.
//! - Descriptors are those of one process. A descriptor that was never opened has a file of its own, open to read and
//!   to write. So has one that was opened to write without a name that says which file it is (`/data/data`, a
//!   directory that others are in).
//! - Sizes of reads are taken as the bytes read: files are as large as their reads need. A read that failed asks for a
//!   byte.
//! - Files outside `/data` are files below the directory, too; files in `/dev` and `/proc` are left out.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use super::Converted;
use super::builder::{Builder, Opened};
use super::format::{THREADS, What};
use crate::target;

/// Converts it.
pub fn convert(text: &str) -> Result<Converted, String> {
    let mut converter = Converter::default();
    // Directories first: a name that others are below is one from the beginning.
    for line in text.lines() {
        if let Some(path) = line.split(' ').nth(3).and_then(inside) {
            let itself = usize::from(!line.contains("O_DIRECTORY"));
            converter.dirs.extend(path.ancestors().skip(itself).map(Path::to_owned));
        }
    }
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let time = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
        lines.push((time.ok_or_else(|| format!("line {}: no time: {line}", at + 1))?, at, line));
    }
    lines.sort_by_key(|(time, ..)| *time);
    for (_, at, line) in lines {
        converter.line(line).map_err(|why| format!("line {}: {why}: {line}", at + 1))?;
    }
    Ok(converter.builder.finish())
}

/// Whether a text looks like one.
pub fn is_one(text: &str) -> bool {
    let mut words = text.split([' ', '\n']);
    let numbers = words.by_ref().take(2).filter(|word| word.parse::<u64>().is_ok()).count();
    numbers == 2 && words.next().is_some_and(|word| word.chars().all(|letter| letter.is_ascii_alphanumeric()))
}

/// A path below the directory, which stands for the root. None is no path.
fn inside(text: &str) -> Option<PathBuf> {
    let text = text.trim_end_matches("/nil").trim_matches('"');
    let mut path = PathBuf::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => drop(path.pop()),
            _ => {}
        }
    }
    if path.as_os_str().is_empty() {
        path.push(".");
    }
    // Names of files in the root stand without a slash, too.
    (text.contains('/') || text.ends_with(".db")).then_some(path)
}

/// The object behind a descriptor.
#[derive(Debug, Clone)]
enum Open {
    /// A file, and where it stands.
    File(Opened, u64),
    Dir(PathBuf),
}

#[derive(Default)]
struct Converter {
    builder: Builder,
    dirs: HashSet<PathBuf>,
    threads: HashMap<u64, u32>,
    open: HashMap<u64, Open>,
}

impl Converter {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<_> = line.split_whitespace().collect();
        let word = |at: usize| words.get(at).copied().ok_or("something is missing");
        let number = |at: usize| word(at)?.parse::<u64>().map_err(|_| "no number");
        let next = self.threads.len() as u32;
        let thread = *self.threads.entry(number(0)?).or_insert(next);
        self.builder.at(number(1)?, thread.min(THREADS - 1));
        let path = |at: usize| Ok::<_, &str>(inside(word(at)?));
        let failed = words.last().is_some_and(|word| *word == "-1");
        match word(2)? {
            "open" => self.open(path(3)?, word(4)?, word(5)?.parse().ok()),
            "close" => match self.open.remove(&number(3)?) {
                Some(Open::File(file, _)) => {
                    self.builder.add(false, What::Close { handle: file.handle });
                }
                Some(Open::Dir(_)) => {}
                None => self.builder.leave_out("close of what was not open"),
            },
            "read" if failed => {
                let (file, offset) = self.file(number(3)?);
                self.builder.add(true, What::Read { handle: file.handle, offset, len: 1 });
            }
            "read" => {
                let (fd, len) = (number(3)?, number(4)?);
                let (file, offset) = self.file(fd);
                self.builder.read(file, offset, len);
                self.open.insert(fd, Open::File(file, offset + len));
            }
            "write" => {
                let (fd, len) = (number(3)?, number(4)?);
                let (file, offset) = self.file(fd);
                self.builder.write(file, offset, len);
                self.open.insert(fd, Open::File(file, offset + len));
            }
            "pread" => {
                let file = self.file(number(3)?).0;
                self.builder.read(file, number(4)?, number(5)?);
            }
            "pwrite" => {
                let file = self.file(number(3)?).0;
                self.builder.write(file, number(4)?, number(5)?);
            }
            "fsync" | "fdatasync" => {
                let fd = number(3)?;
                let what = match self.open.get(&fd) {
                    Some(Open::Dir(path)) => What::SyncDir { path: path.clone() },
                    _ => {
                        let handle = self.file(fd).0.handle;
                        What::Sync { handle, data_only: words[2] == "fdatasync" }
                    }
                };
                self.builder.add(false, what);
            }
            "fstat" | "fstat64" => {
                let fd = number(3)?;
                match self.open.get(&fd).cloned() {
                    Some(Open::Dir(path)) => self.builder.add(false, What::Stat { path }),
                    _ => {
                        let file = self.file(fd).0;
                        self.builder.size(file, None);
                    }
                }
            }
            call @ ("stat" | "stat64" | "lstat64" | "access" | "unlink") => match path(3)? {
                Some(path) if is_storage(&path) => self.by_path(call, path, failed),
                _ => self.builder.leave_out("calls outside of storage"),
            },
            other => self.builder.leave_out(other),
        }
        Ok(())
    }

    fn by_path(&mut self, call: &str, path: PathBuf, failed: bool) {
        let dir = self.dirs.contains(&path);
        match (call, failed) {
            ("unlink", false) if !dir => self.builder.unlink(&path),
            ("unlink", _) => self.builder.add(true, What::Unlink { path }),
            (_, true) => self.builder.add(true, What::Stat { path }),
            (_, false) => {
                if dir {
                    self.builder.is_dir(&path);
                } else {
                    self.builder.exists(&path, None);
                }
                self.builder.add(false, What::Stat { path });
            }
        }
    }

    fn open(&mut self, path: Option<PathBuf>, flags: &str, fd: Option<u64>) {
        let has = |flag: &str| flags.split('|').any(|other| other == flag);
        let how = target::Open {
            read: !has("O_WRONLY"),
            write: has("O_WRONLY") || has("O_RDWR"),
            append: has("O_APPEND"),
            create: has("O_CREAT"),
            truncate: has("O_TRUNC"),
            sync: has("O_SYNC"),
            direct: false,
        };
        let Some(fd) = fd else {
            match path {
                Some(path) if is_storage(&path) => self.builder.open_failed(&path, how),
                _ => self.builder.leave_out("calls outside of storage"),
            }
            return;
        };
        if let Some(Open::File(before, _)) = self.open.remove(&fd) {
            self.builder.add(false, What::Close { handle: before.handle });
        }
        let (path, how) = match path {
            Some(path) if !is_storage(&path) => return self.builder.leave_out("calls outside of storage"),
            Some(path) if self.dirs.contains(&path) && !how.write => {
                self.builder.is_dir(&path);
                if has("O_DIRECTORY") {
                    self.builder.add(false, What::ReadDir { path: path.clone() });
                }
                self.open.insert(fd, Open::Dir(path));
                return;
            }
            Some(path) if !self.dirs.contains(&path) => (path, how),
            // Opened to write, it is read from, too: these are pipes and sockets for the most part.
            _ => (unnamed(fd), target::Open { read: true, write: true, ..how }),
        };
        let file = self.builder.open(&path, how, false);
        self.open.insert(fd, Open::File(file, 0));
    }

    /// The file behind a descriptor, and where it stands.
    fn file(&mut self, fd: u64) -> (Opened, u64) {
        if let Some(&Open::File(file, offset)) = self.open.get(&fd) {
            return (file, offset);
        }
        let how = target::Open { write: true, create: true, ..target::Open::READ };
        let file = self.builder.open(&unnamed(fd), how, false);
        self.open.insert(fd, Open::File(file, 0));
        (file, 0)
    }
}

fn unnamed(fd: u64) -> PathBuf {
    PathBuf::from(format!("unnamed/{fd}"))
}

fn is_storage(path: &Path) -> bool {
    !path.starts_with("dev") && !path.starts_with("proc")
}

#[cfg(test)]
mod tests {
    use super::super::format::Trace;
    use super::{convert, is_one};

    #[test]
    fn lines_are_sorted_by_time_and_directories_are_no_files() {
        let text = "1 0 open /data/data O_RDWR|O_CREAT 5\n1 9 close 5\n1 20 stat64 \"/data/data/app/..\" 0\n\
            1 21 stat64 \"/\" 0\n2 3 write 5 8\n2 4 read 5 -1\n\
            2 10 open \"/data/data/app\" O_RDONLY 5\n2 11 fsync 5\n2 12 close 5\n\
            2 13 open \"/data/data/app/x\" O_RDONLY -1\n2 14 open \"/cache\" O_RDONLY|O_DIRECTORY 6\n";
        assert_eq!(
            convert(text).unwrap().trace.print(),
            "nacre-trace 1\n\
             dir cache\ndir data\ndir data/data\ndir data/data/app\ndir unnamed\n\
             0 0 open 0 rwc unnamed/5\n\
             3 1 write 0 0 8\n\
             4 1 read! 0 8 1\n\
             9 0 close 0\n\
             11 1 syncdir data/data/app\n\
             13 1 open! 1 r data/data/app/x\n\
             14 1 readdir cache\n\
             20 0 stat data/data\n\
             21 0 stat .\n"
        );
    }

    #[test]
    fn paths_are_mapped_and_descriptors_become_handles() {
        let text = "1 0 open /data/data O_WRONLY|O_CREAT|O_TRUNC|O_LARGEFILE 36\n\
            1 0 write 36 4\n\
            2 5 pread 27 100 30\n\
            2 6 access \"/data/data/app/a.db\" 0\n\
            2 7 stat64 \"/data/data/app/none\" -1\n\
            2 8 open \"/proc/meminfo\" O_RDONLY 9\n\
            2 9 unlink \"/data/data/app/a.db\" 0\n\
            1 10 read 36 2\n\
            1 11 close 36\n";
        assert!(is_one(text) && !is_one("nacre-trace 1\n"));
        let done = convert(text).unwrap();
        assert_eq!(
            done.trace.print(),
            "nacre-trace 1\n\
             dir data\ndir data/data\ndir data/data/app\ndir unnamed\n\
             file 0 data/data/app/a.db\nfile 130 unnamed/27\n\
             0 0 open 0 rwct unnamed/36\n\
             0 0 write 0 0 4\n\
             5 1 open 1 rwc unnamed/27\n\
             5 1 read 1 100 30\n\
             6 1 stat data/data/app/a.db\n\
             7 1 stat! data/data/app/none\n\
             9 1 unlink data/data/app/a.db\n\
             10 0 read 0 4 2\n\
             11 0 close 0\n"
        );
        assert_eq!(done.left_out.get("calls outside of storage"), Some(&1));
        assert_eq!(Trace::parse(&done.trace.print()).unwrap(), done.trace);
    }
}
