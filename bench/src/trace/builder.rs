//! Puts calls together to a trace. The files that must have been there before the first call follow from the calls. A
//! process that opens a file without making it finds one, and a process that reads up to some byte finds that many.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Converted;
use super::format::{Call, LARGEST_CALL, THREADS, Trace, What};
use crate::target::Open;

/// A file, under any names.
#[derive(Debug)]
struct Object {
    /// Its name when it was seen first.
    path: PathBuf,
    origin: Origin,
    /// Bytes that it had before.
    before: u64,
    /// Bytes that it has now, as far as is known.
    size: u64,
    /// The trace set its size: no present size tells the size before.
    cut: bool,
    /// It was opened: it is no directory.
    opened: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Origin {
    /// The trace made it.
    Made,
    /// The trace would have made it if it was not there: it was not, unless more is read than was written.
    Maybe,
    /// It was there.
    Before,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Node {
    File(usize),
    Dir,
}

/// A file that the trace has opened.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    /// Of the trace.
    pub handle: u32,
    object: usize,
    append: bool,
}

/// A trace as it grows.
#[derive(Debug, Default)]
pub struct Builder {
    calls: Vec<Call>,
    left_out: BTreeMap<String, u64>,
    names: BTreeMap<PathBuf, Node>,
    objects: Vec<Object>,
    dirs: BTreeSet<PathBuf>,
    handles: u32,
    first: Option<u64>,
    last: u64,
    /// When, and on which thread, the calls happen that are added.
    now: (u64, u32),
}

impl Builder {
    /// Calls added from now on happened at this time, in microseconds since anything, on this thread.
    pub fn at(&mut self, micros: u64, thread: u32) {
        let first = *self.first.get_or_insert(micros);
        self.last = self.last.max(micros.saturating_sub(first));
        self.now = (self.last, thread.min(THREADS - 1));
    }

    /// Notes a call that the trace will not have.
    pub fn leave_out(&mut self, why: impl Into<String>) {
        *self.left_out.entry(why.into()).or_default() += 1;
    }

    /// Adds a call that failed, or one that tells nothing about the files before.
    pub fn add(&mut self, failed: bool, what: What) {
        let (micros, thread) = self.now;
        self.calls.push(Call { micros, thread, failed, what });
    }

    /// The directories on the way to a path are there.
    fn parents(&mut self, path: &Path) {
        for dir in path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()) {
            self.is_dir(dir);
        }
    }

    /// There is a directory.
    pub fn is_dir(&mut self, path: &Path) {
        match self.names.get(path) {
            Some(Node::Dir) => return,
            // Taken for a file so far.
            Some(&Node::File(at))
                if self.objects[at].origin == Origin::Before && !self.objects[at].opened =>
            {
                self.objects[at].origin = Origin::Made;
            }
            Some(Node::File(_)) => return,
            None => {}
        }
        if path != Path::new(".") {
            self.names.insert(path.to_owned(), Node::Dir);
            self.dirs.insert(path.to_owned());
            self.parents(path);
        }
    }

    /// There is something: a file, unless it turns out to be a directory.
    pub fn exists(&mut self, path: &Path, size: Option<u64>) {
        self.parents(path);
        let at = match self.names.get(path) {
            Some(Node::Dir) => return,
            Some(&Node::File(at)) => at,
            None if path == Path::new(".") => return,
            None => self.object(path, Origin::Before),
        };
        if let Some(size) = size {
            self.has(at, size);
        }
    }

    fn object(&mut self, path: &Path, origin: Origin) -> usize {
        let at = self.objects.len();
        let path = path.to_owned();
        self.names.insert(path.clone(), Node::File(at));
        self.objects.push(Object { path, origin, before: 0, size: 0, cut: false, opened: false });
        at
    }

    /// A file has so many bytes, or more.
    fn has(&mut self, at: usize, size: u64) {
        let object = &mut self.objects[at];
        if size > object.size && !object.cut && object.origin != Origin::Made {
            object.before = object.before.max(size);
            object.size = size;
        }
    }

    /// A file was opened.
    pub fn open(&mut self, path: &Path, how: Open, new: bool) -> Opened {
        self.parents(path);
        let object = match self.names.get(path) {
            Some(&Node::File(at)) => at,
            _ if new => self.object(path, Origin::Made),
            _ if how.create => self.object(path, Origin::Maybe),
            _ => self.object(path, Origin::Before),
        };
        self.objects[object].opened = true;
        if how.truncate {
            self.objects[object].size = 0;
            self.objects[object].cut = true;
        }
        let handle = self.new_handle();
        self.add(false, What::Open { handle, how, path: path.to_owned() });
        Opened { handle, object, append: how.append }
    }

    /// An open that failed.
    pub fn open_failed(&mut self, path: &Path, how: Open) {
        let handle = self.new_handle();
        self.add(true, What::Open { handle, how, path: path.to_owned() });
    }

    fn new_handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles - 1
    }

    /// Bytes were read; more than one call may have are several calls.
    pub fn read(&mut self, file: Opened, offset: u64, len: u64) {
        self.has(file.object, offset + len);
        let pieces = len.div_ceil(LARGEST_CALL).max(1);
        for piece in 0..pieces {
            let done = piece * LARGEST_CALL;
            let len = (len - done).min(LARGEST_CALL);
            self.add(false, What::Read { handle: file.handle, offset: offset + done, len });
        }
    }

    /// Something was asked for where the file ends.
    pub fn read_at_end(&mut self, file: Opened, offset: u64, len: u64) {
        self.add(false, What::Read { handle: file.handle, offset, len: len.min(LARGEST_CALL) });
    }

    /// Bytes were written, at the end if the file was opened so.
    pub fn write(&mut self, file: Opened, offset: u64, len: u64) {
        let object = &mut self.objects[file.object];
        object.size = if file.append { object.size + len } else { object.size.max(offset + len) };
        let pieces = len.div_ceil(LARGEST_CALL).max(1);
        for piece in 0..pieces {
            let done = piece * LARGEST_CALL;
            let len = (len - done).min(LARGEST_CALL);
            let what = if file.append {
                What::Append { handle: file.handle, len }
            } else {
                What::Write { handle: file.handle, offset: offset + done, len }
            };
            self.add(false, what);
        }
    }

    /// The size was asked for, and was this.
    pub fn size(&mut self, file: Opened, size: Option<u64>) {
        if let Some(size) = size {
            self.has(file.object, size);
        }
        self.add(false, What::Size { handle: file.handle });
    }

    /// The size was set.
    pub fn set_len(&mut self, file: Opened, size: u64) {
        self.cut(file.object, size);
        self.add(false, What::SetLen { handle: file.handle, size });
    }

    fn cut(&mut self, object: usize, size: u64) {
        self.objects[object].size = size;
        self.objects[object].cut = true;
    }

    /// Whether something is a directory, as far as is known.
    pub fn knows_dir(&self, path: &Path) -> bool {
        path == Path::new(".") || self.names.get(path) == Some(&Node::Dir)
    }

    /// The size was set by path.
    pub fn truncate(&mut self, path: &Path, size: u64) {
        self.exists(path, None);
        if let Some(&Node::File(at)) = self.names.get(path) {
            self.cut(at, size);
        }
        self.add(false, What::Truncate { path: path.to_owned(), size });
    }

    /// A directory was made.
    pub fn mkdir(&mut self, path: &Path) {
        self.parents(path);
        self.names.insert(path.to_owned(), Node::Dir);
        self.add(false, What::Mkdir { path: path.to_owned() });
    }

    /// A directory was removed.
    pub fn rmdir(&mut self, path: &Path) {
        self.is_dir(path);
        self.names.remove(path);
        self.add(false, What::Rmdir { path: path.to_owned() });
    }

    /// A name was removed.
    pub fn unlink(&mut self, path: &Path) {
        self.exists(path, None);
        self.names.remove(path);
        self.add(false, What::Unlink { path: path.to_owned() });
    }

    /// A name, or a directory with all in it, was renamed.
    pub fn rename(&mut self, path: &Path, to: &Path) {
        self.exists(path, None);
        self.parents(to);
        let moved: Vec<_> = self.names.keys().filter(|name| name.starts_with(path)).cloned().collect();
        for name in moved {
            if let (Some(node), Ok(rest)) = (self.names.remove(&name), name.strip_prefix(path)) {
                let new = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
                self.names.insert(new, node);
            }
        }
        self.add(false, What::Rename { path: path.to_owned(), to: to.to_owned() });
    }

    /// A file got another name.
    pub fn link(&mut self, path: &Path, to: &Path) {
        self.exists(path, None);
        self.parents(to);
        if let Some(&node) = self.names.get(path) {
            self.names.insert(to.to_owned(), node);
        }
        self.add(false, What::Link { path: path.to_owned(), to: to.to_owned() });
    }

    /// A symbolic link was made.
    pub fn symlink(&mut self, path: &Path, target: PathBuf) {
        self.parents(path);
        self.object(path, Origin::Made);
        self.add(false, What::Symlink { path: path.to_owned(), target });
    }

    /// All of it.
    pub fn finish(self) -> Converted {
        let there = |object: &&Object| match object.origin {
            Origin::Before => true,
            Origin::Maybe => object.before > 0,
            Origin::Made => false,
        };
        let files: BTreeMap<_, _> =
            self.objects.iter().filter(there).map(|object| (object.path.clone(), object.before)).collect();
        let dirs: Vec<_> = self.dirs.into_iter().filter(|dir| !files.contains_key(dir)).collect();
        let trace = Trace { dirs, files: files.into_iter().collect(), calls: self.calls };
        Converted { trace, left_out: self.left_out }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::Builder;
    use crate::target::Open;

    #[test]
    fn what_was_there_before_follows_from_the_calls() {
        let mut builder = Builder::default();
        builder.at(100, 0);
        let old = builder.open(Path::new("d/old"), Open::READ, false);
        builder.read(old, 100, 50);
        let new = builder.open(Path::new("d/new"), Open { create: true, ..Open::WRITE }, false);
        builder.write(new, 0, 10);
        builder.read(new, 0, 10);
        builder.rename(Path::new("d/new"), Path::new("d/newer"));
        builder.exists(Path::new("d/newer"), Some(10));
        let log = builder.open(Path::new("log"), Open { create: true, read: true, ..Open::WRITE }, false);
        builder.read(log, 0, 7);
        builder.exists(Path::new("other"), None);
        builder.exists(Path::new("other/in"), Some(3));
        builder.at(50, 0);
        let done = builder.finish();
        assert_eq!(done.trace.dirs, [PathBuf::from("d"), PathBuf::from("other")]);
        let files: Vec<_> =
            done.trace.files.iter().map(|(path, size)| (path.to_str().unwrap(), *size)).collect();
        assert_eq!(files, [("d/old", 150), ("log", 7), ("other/in", 3)]);
        assert!(super::Trace::parse(&done.trace.print()).is_ok());
    }
}
