//! The text of a trace: one call a line. `docs/reference/trace.md` describes it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::target::Open;

/// The first line.
const HEADER: &str = "nacre-trace 1";
/// Threads that a trace has at most.
pub const THREADS: u32 = 256;
/// Bytes that one call reads or writes at most.
pub const LARGEST_CALL: u64 = 64 << 20;
/// Where a file ends at most.
pub const LARGEST_FILE: u64 = 1 << 40;

/// The files before the first call, and the calls in the order in which they ended. Paths are relative, without `.`
/// and `..`; the directory itself is `.`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Directories that are there, parents first.
    pub dirs: Vec<PathBuf>,
    /// Files that are there, with their sizes in bytes.
    pub files: Vec<(PathBuf, u64)>,
    /// The calls.
    pub calls: Vec<Call>,
}

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Microseconds since the trace began; never less than in the call before.
    pub micros: u64,
    /// The thread, from 0.
    pub thread: u32,
    /// Whether it failed when it was recorded.
    pub failed: bool,
    /// The operation.
    pub what: What,
}

/// The operation of a call. A handle is a number from 0 that no other open in the trace has.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A file is opened, and made where that is asked for.
    Open {
        /// The open file.
        handle: u32,
        /// How it is opened.
        how: Open,
        /// Its path.
        path: PathBuf,
    },
    /// An open file is closed.
    Close {
        /// The open file.
        handle: u32,
    },
    /// Bytes are read.
    Read {
        /// The open file.
        handle: u32,
        /// Where it begins, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Bytes are written.
    Write {
        /// The open file.
        handle: u32,
        /// Where it begins, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Bytes are written at the end.
    Append {
        /// The open file.
        handle: u32,
        /// How many bytes.
        len: u64,
    },
    /// An open file is made durable.
    Sync {
        /// The open file.
        handle: u32,
        /// As fdatasync(2).
        data_only: bool,
    },
    /// An open file is truncated or grows.
    SetLen {
        /// The open file.
        handle: u32,
        /// Its size then, in bytes.
        size: u64,
    },
    /// Space is allocated.
    Allocate {
        /// The open file.
        handle: u32,
        /// Where it begins, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// The size of an open file is asked for.
    Size {
        /// The open file.
        handle: u32,
    },
    /// A file is truncated or grows.
    Truncate {
        /// Its path.
        path: PathBuf,
        /// Its size then, in bytes.
        size: u64,
    },
    /// Attributes are asked for.
    Stat {
        /// Its path.
        path: PathBuf,
    },
    /// A directory is listed.
    ReadDir {
        /// Its path.
        path: PathBuf,
    },
    /// A directory is made durable.
    SyncDir {
        /// Its path.
        path: PathBuf,
    },
    /// A directory is made.
    Mkdir {
        /// Its path.
        path: PathBuf,
    },
    /// A directory is removed.
    Rmdir {
        /// Its path.
        path: PathBuf,
    },
    /// A name is removed.
    Unlink {
        /// Its path.
        path: PathBuf,
    },
    /// A name is moved.
    Rename {
        /// Its path.
        path: PathBuf,
        /// The other name.
        to: PathBuf,
    },
    /// A file is given another name.
    Link {
        /// Its path.
        path: PathBuf,
        /// The other name.
        to: PathBuf,
    },
    /// A symbolic link is made.
    Symlink {
        /// Its path.
        path: PathBuf,
        /// The path that it points to.
        target: PathBuf,
    },
    /// Permission bits are changed.
    Chmod {
        /// Its path.
        path: PathBuf,
        /// The bits (07777).
        mode: u32,
    },
}

impl What {
    /// The handle that it uses or makes.
    pub fn handle(&self) -> Option<u32> {
        match *self {
            What::Open { handle, .. }
            | What::Close { handle }
            | What::Read { handle, .. }
            | What::Write { handle, .. }
            | What::Append { handle, .. }
            | What::Sync { handle, .. }
            | What::SetLen { handle, .. }
            | What::Allocate { handle, .. }
            | What::Size { handle } => Some(handle),
            _ => None,
        }
    }

    /// The paths that it names.
    pub fn paths(&self) -> [Option<&Path>; 2] {
        match self {
            What::Open { path, .. }
            | What::Truncate { path, .. }
            | What::Stat { path }
            | What::ReadDir { path }
            | What::SyncDir { path }
            | What::Mkdir { path }
            | What::Rmdir { path }
            | What::Unlink { path }
            | What::Symlink { path, .. }
            | What::Chmod { path, .. } => [Some(path), None],
            What::Rename { path, to } | What::Link { path, to } => [Some(path), Some(to)],
            _ => [None, None],
        }
    }
}

impl Trace {
    /// From text. An error names the line.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim_end()));
        match lines.next() {
            Some((_, HEADER)) => {}
            _ => return Err(format!("line 1: a trace begins with \"{HEADER}\"")),
        }
        let mut reader = Reader::default();
        for (at, line) in lines {
            if !line.is_empty() && !line.starts_with('#') {
                reader.line(line).map_err(|why| format!("line {at}: {why}"))?;
            }
        }
        Ok(reader.trace)
    }

    /// As text.
    pub fn print(&self) -> String {
        let mut text = format!("{HEADER}\n");
        self.dirs.iter().for_each(|path| text.push_str(&format!("dir {}\n", encode(path))));
        self.files.iter().for_each(|(path, size)| text.push_str(&format!("file {size} {}\n", encode(path))));
        self.calls.iter().for_each(|call| print_call(&mut text, call));
        text
    }

    /// Threads that the calls have: the highest number, and one.
    pub fn threads(&self) -> u32 {
        self.calls.iter().map(|call| call.thread + 1).max().unwrap_or(1)
    }

    /// Handles that the calls have: the highest number, and one.
    pub fn handles(&self) -> u32 {
        self.calls.iter().filter_map(|call| call.what.handle()).map(|handle| handle + 1).max().unwrap_or(0)
    }
}

fn print_call(text: &mut String, call: &Call) {
    let bang = if call.failed { "!" } else { "" };
    let mut put = |name: &str, rest: String| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{} {} {name}{bang} {rest}", call.micros, call.thread);
    };
    match &call.what {
        What::Open { handle, how, path } => {
            put("open", format!("{handle} {} {}", letters(*how), encode(path)))
        }
        What::Close { handle } => put("close", handle.to_string()),
        What::Read { handle, offset, len } => put("read", format!("{handle} {offset} {len}")),
        What::Write { handle, offset, len } => put("write", format!("{handle} {offset} {len}")),
        What::Append { handle, len } => put("append", format!("{handle} {len}")),
        What::Sync { handle, data_only } => {
            put(if *data_only { "fdatasync" } else { "fsync" }, handle.to_string());
        }
        What::SetLen { handle, size } => put("ftruncate", format!("{handle} {size}")),
        What::Allocate { handle, offset, len } => put("fallocate", format!("{handle} {offset} {len}")),
        What::Size { handle } => put("fstat", handle.to_string()),
        What::Truncate { path, size } => put("truncate", format!("{size} {}", encode(path))),
        What::Stat { path } => put("stat", encode(path)),
        What::ReadDir { path } => put("readdir", encode(path)),
        What::SyncDir { path } => put("syncdir", encode(path)),
        What::Mkdir { path } => put("mkdir", encode(path)),
        What::Rmdir { path } => put("rmdir", encode(path)),
        What::Unlink { path } => put("unlink", encode(path)),
        What::Rename { path, to } => put("rename", format!("{} {}", encode(path), encode(to))),
        What::Link { path, to } => put("link", format!("{} {}", encode(path), encode(to))),
        What::Symlink { path, target } => put("symlink", format!("{} {}", encode(target), encode(path))),
        What::Chmod { path, mode } => put("chmod", format!("{mode:o} {}", encode(path))),
    }
}

/// How a file is opened, in letters.
const LETTERS: [char; 6] = ['r', 'w', 'a', 'c', 't', 's'];

fn letters(how: Open) -> String {
    let flags = [how.read, how.write, how.append, how.create, how.truncate, how.sync];
    LETTERS.iter().zip(flags).filter(|(_, set)| *set).map(|(letter, _)| letter).collect()
}

fn how(text: &str) -> Result<Open, String> {
    let strange = text.chars().find(|letter| !LETTERS.contains(letter));
    if let Some(letter) = strange {
        return Err(format!("{letter:?} is no way to open a file"));
    }
    let has = |letter| text.contains(letter);
    let how = Open {
        read: has('r'),
        write: has('w'),
        append: has('a'),
        create: has('c'),
        truncate: has('t'),
        sync: has('s'),
        direct: false,
    };
    if how.read || how.write { Ok(how) } else { Err("a file is opened with r, w or both".into()) }
}

/// Everything but visible ASCII, and `%`, becomes `%` and two hexadecimal digits.
fn encode(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    text
}

fn decode(text: &str) -> Result<PathBuf, String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|byte| *byte != 0);
        bytes.push(byte.ok_or_else(|| format!("{text}: % and two hexadecimal digits"))?);
        rest = &rest[2..];
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

/// A path below the directory of the trace.
fn inner(text: &str) -> Result<PathBuf, String> {
    let path = decode(text)?;
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if path.as_os_str().is_empty() || !(plain || path == Path::new(".")) {
        return Err(format!("{text} is no relative path without . and .."));
    }
    Ok(path)
}

#[derive(Default)]
struct Reader {
    trace: Trace,
    micros: u64,
    open: HashSet<u32>,
    used: HashSet<u32>,
}

/// The words of a line.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Result<&'a str, String> {
        self.0.next().filter(|word| !word.is_empty()).ok_or_else(|| "something is missing".to_owned())
    }

    fn number(&mut self, most: u64) -> Result<u64, String> {
        let word = self.word()?;
        match word.parse() {
            Ok(number) if number <= most => Ok(number),
            _ => Err(format!("{word} is no whole number up to {most}")),
        }
    }

    fn path(&mut self) -> Result<PathBuf, String> {
        inner(self.word()?)
    }

    fn end(mut self) -> Result<(), String> {
        self.0.next().map_or(Ok(()), |word| Err(format!("{word:?} is one word too many")))
    }
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = Words(line.split(' '));
        let first = words.word()?;
        match first {
            "dir" | "file" if !self.trace.calls.is_empty() => {
                return Err("what was there before stands before the calls".into());
            }
            "dir" => self.trace.dirs.push(words.path()?),
            "file" => {
                let size = words.number(LARGEST_FILE)?;
                self.trace.files.push((words.path()?, size));
            }
            _ => {
                let micros = first.parse().map_err(|_| format!("{first:?} is no time in microseconds"))?;
                let call = self.call(micros, &mut words)?;
                self.trace.calls.push(call);
            }
        }
        words.end()
    }

    fn call(&mut self, micros: u64, words: &mut Words<'_>) -> Result<Call, String> {
        if micros < self.micros {
            return Err(format!("{micros}: the call before it was later"));
        }
        self.micros = micros;
        let thread = words.number(u64::from(THREADS) - 1)? as u32;
        let name = words.word()?;
        let (name, failed) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
        let what = self.what(name, failed, words)?;
        Ok(Call { micros, thread, failed, what })
    }

    /// A handle that is open.
    fn handle(&self, words: &mut Words<'_>) -> Result<u32, String> {
        let handle = words.number(u64::from(u32::MAX) - 1)? as u32;
        if self.open.contains(&handle) { Ok(handle) } else { Err(format!("handle {handle} is not open")) }
    }

    fn what(&mut self, name: &str, failed: bool, words: &mut Words<'_>) -> Result<What, String> {
        Ok(match name {
            "open" => {
                let handle = words.number(1 << 24)? as u32;
                if !self.used.insert(handle) {
                    return Err(format!("handle {handle} was used before"));
                }
                if !failed {
                    self.open.insert(handle);
                }
                What::Open { handle, how: how(words.word()?)?, path: words.path()? }
            }
            "close" => {
                let handle = self.handle(words)?;
                self.open.remove(&handle);
                What::Close { handle }
            }
            "read" | "write" => {
                let handle = self.handle(words)?;
                let (offset, len) = (words.number(LARGEST_FILE)?, words.number(LARGEST_CALL)?);
                match name {
                    "read" => What::Read { handle, offset, len },
                    _ => What::Write { handle, offset, len },
                }
            }
            "append" => What::Append { handle: self.handle(words)?, len: words.number(LARGEST_CALL)? },
            "fsync" | "fdatasync" => {
                What::Sync { handle: self.handle(words)?, data_only: name == "fdatasync" }
            }
            "ftruncate" => What::SetLen { handle: self.handle(words)?, size: words.number(LARGEST_FILE)? },
            "fallocate" => {
                let handle = self.handle(words)?;
                What::Allocate {
                    handle,
                    offset: words.number(LARGEST_FILE)?,
                    len: words.number(LARGEST_FILE)?,
                }
            }
            "fstat" => What::Size { handle: self.handle(words)? },
            "truncate" => {
                let size = words.number(LARGEST_FILE)?;
                What::Truncate { path: words.path()?, size }
            }
            "stat" => What::Stat { path: words.path()? },
            "readdir" => What::ReadDir { path: words.path()? },
            "syncdir" => What::SyncDir { path: words.path()? },
            "mkdir" => What::Mkdir { path: words.path()? },
            "rmdir" => What::Rmdir { path: words.path()? },
            "unlink" => What::Unlink { path: words.path()? },
            "rename" => What::Rename { path: words.path()?, to: words.path()? },
            "link" => What::Link { path: words.path()?, to: words.path()? },
            "symlink" => {
                let target = decode(words.word()?)?;
                What::Symlink { path: words.path()?, target }
            }
            "chmod" => {
                let word = words.word()?;
                let mode = u32::from_str_radix(word, 8).ok().filter(|mode| *mode <= 0o7777);
                let mode = mode.ok_or_else(|| format!("{word} are no permissions"))?;
                What::Chmod { path: words.path()?, mode }
            }
            _ => return Err(format!("{name} is no call")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Trace;

    const TEXT: &str = "nacre-trace 1\n\
        dir a%20b\n\
        file 4096 a%20b/f\n\
        0 0 open 0 rwcts a%20b/f\n\
        5 1 read 0 0 4096\n\
        5 0 write 0 8192 10\n\
        6 0 append 0 7\n\
        6 0 fsync 0\n\
        6 0 fdatasync 0\n\
        6 0 ftruncate 0 3\n\
        6 0 fallocate 0 0 4096\n\
        6 0 fstat 0\n\
        7 0 close 0\n\
        7 0 open! 1 r %ff\n\
        8 0 truncate 9 a%20b/f\n\
        8 0 stat! x\n\
        8 0 readdir .\n\
        8 0 syncdir a%20b\n\
        8 0 mkdir d\n\
        8 0 rmdir d\n\
        8 0 rename a%20b/f g\n\
        8 0 link g h\n\
        8 0 symlink ../x s\n\
        8 0 chmod 640 g\n\
        9 0 unlink g\n";

    #[test]
    fn every_call_is_printed_as_it_was_read() {
        let trace = Trace::parse(TEXT).unwrap();
        assert_eq!(trace.print(), TEXT);
        assert_eq!((trace.threads(), trace.handles()), (2, 2));
    }

    #[test]
    fn what_cannot_be_replayed_is_refused() {
        for (lines, why) in [
            ("0 0 read 0 0 1", "handle 0 is not open"),
            ("0 0 open 0 r f\n0 0 close 0\n0 0 fsync 0", "line 4: handle 0 is not open"),
            ("0 0 open 0 r f\n0 0 open 0 r f", "used before"),
            ("0 0 open! 0 r f\n0 0 close 0", "not open"),
            ("0 0 open 0 c f", "r, w or both"),
            ("0 0 open 0 rx f", "'x'"),
            ("5 0 stat f\n4 0 stat f", "was later"),
            ("0 256 stat f", "up to 255"),
            ("0 0 stat /f", "relative"),
            ("0 0 stat a/../f", "relative"),
            ("0 0 stat f g", "too many"),
            ("0 0 stat", "missing"),
            ("0 0 stat f%2", "hexadecimal"),
            ("0 0 fly f", "no call"),
            ("0 0 stat f\nfile 1 g", "before the calls"),
            ("0 0 open 0 r f\n0 0 read 0 0 99999999999", "up to"),
        ] {
            let error = Trace::parse(&format!("nacre-trace 1\n{lines}\n")).unwrap_err();
            assert!(error.contains(why), "{lines}: {error}");
        }
        assert!(Trace::parse("0 0 stat f\n").unwrap_err().contains("begins with"));
    }
}
