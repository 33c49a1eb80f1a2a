//! From the output of `strace -f -ttt -y`.
//!
//! The meaning of a descriptor follows from the calls: opens, duplicates, forks and exits are followed, so that a read
//! gets its offset. A process is a thread of the trace; the number of one that ended goes to the next that begins. A
//! seek from the end asks for the size. Calls outside the directory are left out, and calls that the format does not
//! have are counted.

mod line;
mod names;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::Converted;
use super::builder::{Builder, Opened};
use super::format::{THREADS, What};
use crate::target::Open;
use line::{Call, Line, Lines, call, descriptor, field, join, quoted};

/// Something that was opened, under any numbers.
#[derive(Debug)]
struct Description {
    what: Object,
    offset: u64,
}

#[derive(Debug)]
enum Object {
    File(Opened),
    /// A directory, and whether it was listed since it was opened.
    Dir(PathBuf, bool),
    Elsewhere,
}

type Shared = Rc<RefCell<Description>>;

/// The descriptors of a process: whether one is closed when a program is started.
type Table = HashMap<i32, (Shared, bool)>;

#[derive(Debug)]
struct Process {
    table: Rc<RefCell<Table>>,
    cwd: Option<PathBuf>,
    thread: u32,
}

/// Converts it. Only calls in `under`, an absolute path, are in the trace.
pub fn convert(text: &str, under: &Path) -> Result<Converted, String> {
    let mut converter = Converter {
        builder: Builder::default(),
        under: join(Path::new("/"), under),
        processes: HashMap::new(),
        threads: Vec::new(),
        forking: Vec::new(),
        closing: HashSet::new(),
    };
    let mut lines = Lines::default();
    for (at, line) in text.lines().enumerate() {
        match lines.read(line) {
            Some(Line::Call { pid, micros, text }) => converter.ended(pid, micros, &text),
            Some(Line::Begun { pid, text, .. }) if is_fork(&text) => {
                converter.forking.push((pid, text.contains("CLONE_FILES")));
            }
            Some(Line::Begun { pid, micros, text }) if text.starts_with("close(") => {
                converter.closing(pid, micros, &text);
            }
            Some(Line::Exit { pid }) => converter.exit(pid),
            Some(_) => {}
            None => {
                return Err(format!("line {}: no output of 'strace -f -ttt -y -o FILE': {line}", at + 1));
            }
        }
    }
    let mut left: Vec<_> = converter.processes.keys().copied().collect();
    left.sort_unstable();
    left.into_iter().for_each(|pid| converter.exit(pid));
    Ok(converter.builder.finish())
}

fn is_fork(text: &str) -> bool {
    ["clone(", "clone3(", "fork(", "vfork("].iter().any(|name| text.starts_with(name))
}

struct Converter {
    builder: Builder,
    under: PathBuf,
    processes: HashMap<u32, Process>,
    /// Which process has a thread of the trace.
    threads: Vec<Option<u32>>,
    /// Processes in the midst of a fork, and whether the child shares their descriptors.
    forking: Vec<(u32, bool)>,
    /// Processes in the midst of a close.
    closing: HashSet<u32>,
}

impl Converter {
    /// The process, made when it was not seen yet: as the child of one that forks.
    fn process(&mut self, pid: u32) -> &mut Process {
        if !self.processes.contains_key(&pid) {
            let parent = self.forking.last().copied().filter(|(parent, _)| *parent != pid);
            self.begin(pid, parent.map(|(parent, _)| parent), parent.is_some_and(|(_, shares)| shares));
        }
        self.processes.get_mut(&pid).expect("it was just made")
    }

    fn begin(&mut self, pid: u32, parent: Option<u32>, shares: bool) {
        let free = self.threads.iter().position(Option::is_none).unwrap_or(self.threads.len());
        if free == self.threads.len() {
            self.threads.push(None);
        }
        self.threads[free] = Some(pid);
        let thread = (free as u32).min(THREADS - 1);
        let (table, cwd) = match parent.and_then(|parent| self.processes.get(&parent)) {
            Some(parent) if shares => (parent.table.clone(), parent.cwd.clone()),
            Some(parent) => (Rc::new(RefCell::new(parent.table.borrow().clone())), parent.cwd.clone()),
            None => (Rc::default(), None),
        };
        self.processes.insert(pid, Process { table, cwd, thread });
    }

    fn exit(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        self.forking.retain(|(other, _)| *other != pid);
        if let Some(slot) = self.threads.iter_mut().find(|slot| **slot == Some(pid)) {
            *slot = None;
        }
        // Threads of one process share a table; the last one closes its files.
        if let Ok(table) = Rc::try_unwrap(process.table) {
            let mut open: Vec<_> = table.into_inner().into_iter().collect();
            open.sort_by_key(|(number, _)| *number);
            open.into_iter().for_each(|(_, (description, _))| self.release(description));
        }
    }

    /// A descriptor is gone; the file is closed with its last.
    fn release(&mut self, description: Shared) {
        if let Ok(description) = Rc::try_unwrap(description)
            && let Object::File(file) = description.into_inner().what
        {
            self.builder.add(false, What::Close { handle: file.handle });
        }
    }

    fn ended(&mut self, pid: u32, micros: u64, text: &str) {
        let Some(call) = call(text) else {
            self.builder.leave_out("lines that are no call");
            return;
        };
        if is_fork(text) {
            self.forking.retain(|(other, _)| *other != pid);
            self.process(pid);
            if let Some(child @ 1..) = call.result
                && !self.processes.contains_key(&(child as u32))
            {
                self.begin(child as u32, Some(pid), text.contains("CLONE_FILES"));
            }
            return;
        }
        let thread = self.process(pid).thread;
        self.builder.at(micros, thread);
        // A call that did not return, as exit, is told by the end of the process.
        if let Some(result) = call.result {
            self.call(pid, &call, result);
        }
    }

    /// A close that others interrupt: the number is free from its beginning on, and may be another's before its end.
    fn closing(&mut self, pid: u32, micros: u64, text: &str) {
        let thread = self.process(pid).thread;
        self.builder.at(micros, thread);
        self.close(pid, text.trim_start_matches("close("));
        self.closing.insert(pid);
    }

    fn close(&mut self, pid: u32, text: &str) {
        let Some((number, _)) = descriptor(text) else { return };
        let gone = self.process(pid).table.borrow_mut().remove(&number);
        if let Some((description, _)) = gone {
            self.release(description);
        }
    }

    /// The path relative to the directory, or none outside.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix(&self.under).ok()?;
        Some(if rest.as_os_str().is_empty() { PathBuf::from(".") } else { rest.to_owned() })
    }

    /// The description behind a descriptor. One that was open before is opened now, with the known facts.
    fn description(&mut self, pid: u32, text: &str) -> Option<Shared> {
        let (number, path) = descriptor(text)?;
        let table = self.process(pid).table.clone();
        if let Some((description, _)) = table.borrow().get(&number) {
            return Some(description.clone());
        }
        let path = self.inside(&path?)?;
        let file = self.builder.open(&path, Open { write: true, ..Open::READ }, false);
        let description = Rc::new(RefCell::new(Description { what: Object::File(file), offset: 0 }));
        table.borrow_mut().insert(number, (description.clone(), false));
        Some(description)
    }

    /// The file behind a descriptor, and where it stands.
    fn file(&mut self, pid: u32, text: &str) -> Option<(Shared, Opened, u64)> {
        let description = self.description(pid, text)?;
        let (file, offset) = match &*description.borrow() {
            Description { what: Object::File(file), offset } => (*file, *offset),
            _ => return None,
        };
        Some((description, file, offset))
    }

    fn put(&mut self, pid: u32, number: i64, description: Shared, cloexec: bool) {
        let table = self.process(pid).table.clone();
        let before = table.borrow_mut().insert(number as i32, (description, cloexec));
        if let Some((before, _)) = before {
            self.release(before);
        }
    }

    fn call(&mut self, pid: u32, call: &Call<'_>, result: i64) {
        let arg = |at: usize| call.args.get(at).copied().unwrap_or("");
        let failed = result < 0;
        match call.name {
            "open" => self.open(pid, call, None, arg(0), arg(1), result),
            "creat" => self.open(pid, call, None, arg(0), "O_WRONLY|O_CREAT|O_TRUNC", result),
            "openat" | "openat2" => self.open(pid, call, Some(arg(0)), arg(1), arg(2), result),
            "close" if self.closing.remove(&pid) || failed => {}
            "close" => self.close(pid, arg(0)),
            "dup" | "dup2" | "dup3" if !failed => self.dup(pid, call, result),
            "fcntl" if !failed && arg(1).starts_with("F_DUPFD") => self.dup(pid, call, result),
            "fcntl" if !failed && arg(1) == "F_SETFD" => {
                let Some((number, _)) = descriptor(arg(0)) else { return };
                if let Some(entry) = self.process(pid).table.borrow_mut().get_mut(&number) {
                    entry.1 = arg(2).contains("FD_CLOEXEC");
                }
            }
            "fcntl" if arg(1).contains("LK") && self.is_here(pid, arg(0)) => self.builder.leave_out("locks"),
            "fcntl" => {}
            "execve" | "execveat" if !failed => self.exec(pid),
            "chdir" if !failed => {
                let Some(path) = quoted(arg(0)) else { return };
                let process = self.process(pid);
                let whole = process.cwd.as_ref().map_or(path.clone(), |cwd| cwd.join(&path));
                process.cwd = whole.is_absolute().then(|| join(Path::new("/"), &whole));
            }
            "fchdir" if !failed => {
                if let Some((_, Some(path))) = descriptor(arg(0)) {
                    self.process(pid).cwd = Some(path);
                }
            }
            "read" | "readv" | "write" | "writev" => self.stream(pid, call, result),
            "pread64" | "preadv" | "preadv2" | "pwrite64" | "pwritev" | "pwritev2" => {
                self.positioned(pid, call, result);
            }
            "sendfile" | "copy_file_range" | "splice" => {
                if !failed && call.args.iter().any(|arg| self.is_here(pid, arg)) {
                    self.builder.leave_out(call.name);
                }
            }
            "mmap" if !failed && self.is_here(pid, arg(4)) => {
                let shared = arg(3).contains("MAP_SHARED") && arg(2).contains("PROT_WRITE");
                self.builder.leave_out(if shared { "mmap for writing" } else { "mmap for reading" });
            }
            "lseek" if !failed => {
                if let Some(description) = self.description(pid, arg(0)) {
                    if let (Object::File(file), "SEEK_END") = (&description.borrow().what, arg(2)) {
                        self.builder.size(*file, (arg(1) == "0").then_some(result as u64));
                    }
                    description.borrow_mut().offset = result as u64;
                    if let Object::Dir(_, listed) = &mut description.borrow_mut().what {
                        *listed = false;
                    }
                }
            }
            "getdents64" | "getdents" if !failed => self.list(pid, arg(0)),
            "fsync" | "fdatasync" if !failed => self.sync(pid, arg(0), call.name == "fdatasync"),
            "ftruncate" if !failed => {
                if let (Some((_, file, _)), Ok(size)) = (self.file(pid, arg(0)), arg(1).parse()) {
                    self.builder.set_len(file, size);
                }
            }
            "fallocate" if !failed => {
                let Some((_, file, _)) = self.file(pid, arg(0)) else { return };
                match (arg(1), arg(2).parse(), arg(3).parse()) {
                    ("0", Ok(offset), Ok(len)) => {
                        self.builder.add(false, What::Allocate { handle: file.handle, offset, len });
                    }
                    _ => self.builder.leave_out("fallocate with a mode"),
                }
            }
            "fstat" => self.size(pid, arg(0), arg(1)),
            "stat" | "lstat" => self.stat(pid, None, arg(0), arg(1), failed),
            "newfstatat" | "fstatat64" if arg(1) == "\"\"" => self.size(pid, arg(0), arg(2)),
            "newfstatat" | "fstatat64" => self.stat(pid, Some(arg(0)), arg(1), arg(2), failed),
            "statx" if arg(1) == "\"\"" => self.size(pid, arg(0), arg(4)),
            "statx" => self.stat(pid, Some(arg(0)), arg(1), arg(4), failed),
            "access" => self.stat(pid, None, arg(0), "", failed),
            "faccessat" | "faccessat2" => self.stat(pid, Some(arg(0)), arg(1), "", failed),
            _ => self.names(pid, call, failed),
        }
    }

    /// Whether an argument is a descriptor of something in the directory.
    fn is_here(&mut self, pid: u32, text: &str) -> bool {
        let Some((number, path)) = descriptor(text) else { return false };
        let known = self.process(pid).table.borrow().contains_key(&number);
        known && path.is_some_and(|path| self.inside(&path).is_some())
    }

    fn open(&mut self, pid: u32, call: &Call<'_>, dir: Option<&str>, path: &str, flags: &str, result: i64) {
        // openat2 has them in a structure.
        let flags = field(flags, "flags").unwrap_or(flags);
        let has = |flag: &str| flags.split('|').any(|other| other == flag);
        let how = Open {
            read: !has("O_WRONLY"),
            write: has("O_WRONLY") || has("O_RDWR"),
            append: has("O_APPEND"),
            create: has("O_CREAT"),
            truncate: has("O_TRUNC"),
            sync: has("O_SYNC") || has("O_DSYNC"),
            // Buffers of a replay are not where those of the program were.
            direct: false,
        };
        let asked = self.path(pid, dir, path);
        if result < 0 {
            match asked {
                None => {}
                Some(path) if has("O_DIRECTORY") && call.error == "ENOENT" => {
                    self.builder.add(true, What::ReadDir { path });
                }
                Some(_) if has("O_TMPFILE") || call.error != "ENOENT" => {
                    self.builder.leave_out(format!("open that failed ({})", call.error));
                }
                Some(path) => self.builder.open_failed(&path, how),
            }
            return;
        }
        // Where symbolic links led to.
        let real = call.result_path.as_deref().and_then(|path| self.inside(path));
        let what = match real.or(asked) {
            Some(path) if has("O_DIRECTORY") => {
                self.builder.is_dir(&path);
                Object::Dir(path, false)
            }
            Some(_) if has("O_TMPFILE") || has("O_PATH") => {
                self.builder.leave_out("open with O_TMPFILE or O_PATH");
                Object::Elsewhere
            }
            Some(path) if self.builder.knows_dir(&path) => Object::Dir(path, false),
            Some(path) => Object::File(self.builder.open(&path, how, has("O_EXCL") && how.create)),
            None => Object::Elsewhere,
        };
        let description = Rc::new(RefCell::new(Description { what, offset: 0 }));
        self.put(pid, result, description, has("O_CLOEXEC"));
    }

    fn dup(&mut self, pid: u32, call: &Call<'_>, result: i64) {
        let Some((number, _)) = call.args.first().and_then(|arg| descriptor(arg)) else { return };
        if i64::from(number) == result {
            return;
        }
        let cloexec = call.args.iter().any(|arg| arg.contains("CLOEXEC"));
        match self.description(pid, call.args[0]) {
            Some(description) => self.put(pid, result, description, cloexec),
            // Something else; the former file of this number is closed.
            None => {
                let elsewhere = Description { what: Object::Elsewhere, offset: 0 };
                self.put(pid, result, Rc::new(RefCell::new(elsewhere)), cloexec);
            }
        }
    }

    fn exec(&mut self, pid: u32) {
        let process = self.process(pid);
        // A table that others share, as after vfork, becomes the process's own.
        let own = process.table.borrow().clone();
        let before = std::mem::replace(&mut process.table, Rc::new(RefCell::new(own)));
        drop(before);
        let table = self.process(pid).table.clone();
        let mut closed: Vec<_> =
            table.borrow().iter().filter(|(_, (_, cloexec))| *cloexec).map(|(number, _)| *number).collect();
        closed.sort_unstable();
        for number in closed {
            let gone = table.borrow_mut().remove(&number);
            if let Some((description, _)) = gone {
                self.release(description);
            }
        }
    }

    /// Reads and writes where the file stands.
    fn stream(&mut self, pid: u32, call: &Call<'_>, result: i64) {
        let Some((description, file, offset)) = self.file(pid, call.args.first().unwrap_or(&"")) else {
            return;
        };
        if result < 0 {
            self.builder.leave_out(format!("{} that failed", call.name));
            return;
        }
        let done = result as u64;
        if call.name.starts_with("read") {
            match done {
                0 => self.builder.read_at_end(file, offset, asked(call)),
                _ => self.builder.read(file, offset, done),
            }
        } else {
            self.builder.write(file, offset, done);
        }
        description.borrow_mut().offset = offset + done;
    }

    fn positioned(&mut self, pid: u32, call: &Call<'_>, result: i64) {
        let Some((_, file, _)) = self.file(pid, call.args.first().unwrap_or(&"")) else { return };
        let Some(Ok(offset)) = call.args.get(3).map(|arg| arg.parse::<u64>()) else { return };
        match result {
            ..0 => self.builder.leave_out(format!("{} that failed", call.name)),
            _ if call.name.starts_with("pw") => self.builder.write(file, offset, result as u64),
            0 => self.builder.read_at_end(file, offset, asked(call)),
            _ => self.builder.read(file, offset, result as u64),
        }
    }

    fn list(&mut self, pid: u32, text: &str) {
        let Some(description) = self.description(pid, text) else { return };
        let mut description = description.borrow_mut();
        if let Object::Dir(path, listed) = &mut description.what
            && !std::mem::replace(listed, true)
        {
            self.builder.add(false, What::ReadDir { path: path.clone() });
        }
    }

    fn sync(&mut self, pid: u32, text: &str, data_only: bool) {
        let Some(description) = self.description(pid, text) else { return };
        match &description.borrow().what {
            Object::File(file) => self.builder.add(false, What::Sync { handle: file.handle, data_only }),
            Object::Dir(path, _) => self.builder.add(false, What::SyncDir { path: path.clone() }),
            Object::Elsewhere => {}
        }
    }

    fn size(&mut self, pid: u32, text: &str, told: &str) {
        let Some(description) = self.description(pid, text) else { return };
        let size = field(told, "st_size").or_else(|| field(told, "stx_size"));
        match &description.borrow().what {
            Object::File(file) => self.builder.size(*file, size.and_then(|size| size.parse().ok())),
            Object::Dir(path, _) => self.builder.add(false, What::Stat { path: path.clone() }),
            Object::Elsewhere => {}
        }
    }
}

/// How many bytes a read asked for.
fn asked(call: &Call<'_>) -> u64 {
    call.args.get(2).and_then(|arg| arg.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests;
