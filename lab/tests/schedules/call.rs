//! What threads call, on a layout or on the model.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::ControlFlow;

use nacre_engine::{
    Attr, Data, Durability, FallocateMode, FileKind, Kind, NewInode, RenameMode, Result, SetAttr, Timestamp,
    WriteAt, XattrMode,
};

/// One of the directories, by index: the root, `d`, `e`, `h`, which is empty.
pub(crate) type Dir = usize;
pub(crate) const D: Dir = 1;
pub(crate) const E: Dir = 2;
pub(crate) const H: Dir = 3;

/// One of the files that are held open, by index: `d/f`, `e/g`.
pub(crate) type File = usize;
pub(crate) const F: File = 0;
pub(crate) const G: File = 1;

/// One call. Whom it makes, and what it writes, its own number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Create(Dir, &'static str),
    Mkdir(Dir, &'static str),
    Unlink(Dir, &'static str),
    Rmdir(Dir, &'static str),
    Rename(Dir, &'static str, Dir, &'static str, RenameMode),
    Link(File, Dir, &'static str),
    Lookup(Dir, &'static str),
    /// Looks it up and lets go of it: nothing of it stays in DRAM where nobody else has it.
    LetGo(Dir, &'static str),
    /// The same by way of who keeps it without holding it.
    Park(Dir, &'static str),
    ReadDir(Dir),
    Write(File, u64, usize),
    /// As [`Call::Write`], on media when it returns.
    WriteNow(File, u64, usize),
    Append(File, usize),
    /// Writes to whatever file has this name, which nobody else holds.
    WriteNamed(Dir, &'static str, u64, usize),
    Truncate(File, u64),
    Punch(File, u64, u64),
    /// Reads a part of one block.
    Read(File, u64, usize),
    Size(File),
    /// Seconds of atime.
    Atime(File),
    SetMode(File, u32),
    Mode(File),
    SetXattr(File, &'static str, usize),
    GetXattr(File, &'static str),
    SetFlags(File, u32),
    Sync(File),
    SyncAll,
}

/// What it answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Done,
    Number(u64),
    /// Each byte, and how often it comes.
    Bytes(Vec<(u8, usize)>),
    Names(Vec<String>),
    Failed(Kind),
}

/// A file system and what the threads hold of it.
pub(crate) struct Ground<S: Data> {
    pub(crate) fs: S,
    dirs: Vec<S::Node>,
    files: Vec<S::Node>,
}

/// The time of the call with this number.
fn time(number: u32) -> Timestamp {
    Timestamp::new(number.into(), 0)
}

pub(crate) fn new_inode(kind: FileKind, uid: u32) -> NewInode<'static> {
    NewInode { kind, mode: 0o644, uid, gid: 0, rdev: 0, target: &[], xattrs: &[], now: time(uid) }
}

impl<S: Data> Ground<S> {
    /// The directories and files, made with the first use.
    pub(crate) fn new(fs: S) -> Result<Ground<S>> {
        let root = fs.root();
        let make = |dir: &S::Node, name: &[u8], kind, uid| match fs.lookup(dir, name) {
            Err(error) if error.kind() == Kind::NotFound => fs.create(dir, name, &new_inode(kind, uid)),
            other => other,
        };
        let d = make(&root, b"d", FileKind::Directory, 1)?;
        let e = make(&root, b"e", FileKind::Directory, 2)?;
        let f = make(&d, b"f", FileKind::Regular, 3)?;
        let g = make(&e, b"g", FileKind::Regular, 4)?;
        let h = make(&root, b"h", FileKind::Directory, 5)?;
        Ok(Ground { fs, dirs: vec![root, d, e, h], files: vec![f, g] })
    }

    /// The file system, when nobody else has the ground.
    pub(crate) fn into_fs(self) -> S {
        self.fs
    }

    /// Makes the call with this number.
    pub(crate) fn make(&self, call: Call, number: u32) -> Answer {
        self.try_make(call, number).unwrap_or_else(|error| Answer::Failed(error.kind()))
    }

    fn try_make(&self, call: Call, number: u32) -> Result<Answer> {
        let Ground { fs, dirs, files } = self;
        let now = time(number);
        let write = |node: &S::Node, at, len: usize, durability| {
            let bytes = vec![number as u8; len];
            fs.write(node, at, &[IoSlice::new(&bytes)], durability, now).map(Answer::Number)
        };
        let set = |file: File, change| fs.setattr(&files[file], &change, now).map(|_| Answer::Done);
        let done = |()| Answer::Done;
        match call {
            Call::Create(dir, name) => {
                fs.create(&dirs[dir], name.as_bytes(), &new_inode(FileKind::Regular, number))?;
                Ok(Answer::Done)
            }
            Call::Mkdir(dir, name) => {
                fs.create(&dirs[dir], name.as_bytes(), &new_inode(FileKind::Directory, number))?;
                Ok(Answer::Done)
            }
            Call::Unlink(dir, name) => fs.unlink(&dirs[dir], name.as_bytes(), now).map(done),
            Call::Rmdir(dir, name) => fs.rmdir(&dirs[dir], name.as_bytes(), now).map(done),
            Call::Rename(from_dir, from, to_dir, to, mode) => {
                let (from_dir, to_dir) = (&dirs[from_dir], &dirs[to_dir]);
                fs.rename(from_dir, from.as_bytes(), to_dir, to.as_bytes(), mode, now).map(done)
            }
            Call::Link(file, dir, name) => fs.link(&files[file], &dirs[dir], name.as_bytes(), now).map(done),
            Call::Lookup(dir, name) => {
                let node = fs.lookup(&dirs[dir], name.as_bytes())?;
                Ok(Answer::Number(fs.getattr(&node)?.uid.into()))
            }
            Call::LetGo(dir, name) => {
                let node = fs.lookup(&dirs[dir], name.as_bytes())?;
                let found = Answer::Number(fs.getattr(&node)?.uid.into());
                fs.let_go(node);
                Ok(found)
            }
            Call::Park(dir, name) => {
                let node = fs.lookup(&dirs[dir], name.as_bytes())?;
                let (id, found) = (fs.id(&node), Answer::Number(fs.getattr(&node)?.uid.into()));
                if fs.park(node).is_none() {
                    // The inode is there, whatever becomes of its names.
                    let node = fs.node_by_number(id.number)?;
                    assert_eq!(fs.id(&node), id, "another inode has its number");
                    drop(node);
                    fs.unpark(id.number);
                }
                Ok(found)
            }
            Call::ReadDir(dir) => names(fs, &dirs[dir]).map(Answer::Names),
            Call::Write(file, at, len) => write(&files[file], WriteAt::Offset(at), len, Durability::Lazy),
            Call::WriteNow(file, at, len) => write(&files[file], WriteAt::Offset(at), len, Durability::Now),
            Call::Append(file, len) => write(&files[file], WriteAt::End, len, Durability::Lazy),
            Call::WriteNamed(dir, name, at, len) => {
                let node = fs.lookup(&dirs[dir], name.as_bytes())?;
                write(&node, WriteAt::Offset(at), len, Durability::Lazy)
            }
            Call::Truncate(file, size) => set(file, SetAttr { size: Some(size), ..SetAttr::default() }),
            Call::Punch(file, offset, len) => {
                fs.fallocate(&files[file], FallocateMode::PunchHole, offset, len, now).map(done)
            }
            Call::Read(file, offset, len) => {
                let mut bytes = vec![0; len];
                let count = fs.read(&files[file], offset, &mut bytes, Some(now))?;
                bytes.truncate(count);
                Ok(Answer::Bytes(runs(&bytes)))
            }
            Call::Size(file) => Ok(Answer::Number(fs.size(&files[file])?)),
            Call::Atime(file) => Ok(Answer::Number(fs.getattr(&files[file])?.atime.secs as u64)),
            Call::SetMode(file, mode) => set(file, SetAttr { mode: Some(mode), ..SetAttr::default() }),
            Call::SetFlags(file, flags) => set(file, SetAttr { flags: Some(flags), ..SetAttr::default() }),
            Call::Mode(file) => Ok(Answer::Number(fs.getattr(&files[file])?.mode.into())),
            Call::SetXattr(file, name, len) => {
                let value = vec![number as u8; len];
                fs.set_xattr(&files[file], name.as_bytes(), &value, XattrMode::Set, None, now).map(done)
            }
            Call::GetXattr(file, name) => {
                fs.get_xattr(&files[file], name.as_bytes()).map(|value| Answer::Bytes(runs(&value)))
            }
            Call::Sync(file) => fs.sync(&files[file]).map(done),
            Call::SyncAll => fs.sync_all().map(done),
        }
    }

    /// All that can be seen in the end, and what is only held.
    pub(crate) fn tree(&self) -> Result<Tree> {
        let mut tree = tree(&self.fs)?;
        for (index, file) in self.files.iter().enumerate() {
            tree.insert(format!("open {index}"), seen(&self.fs, file)?);
        }
        Ok(tree)
    }
}

/// All that can be seen: of each path its kind, maker, links, mode, size and content.
pub(crate) fn tree<S: Data>(fs: &S) -> Result<Tree> {
    let mut tree = Tree::new();
    visit(fs, String::new(), &fs.root(), &mut tree)?;
    Ok(tree)
}

/// See [`tree`].
pub(crate) type Tree = BTreeMap<String, String>;

fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

fn names<S: Data>(fs: &S, dir: &S::Node) -> Result<Vec<String>> {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        ControlFlow::Continue(())
    })?;
    names.sort_unstable();
    Ok(names)
}

fn visit<S: Data>(fs: &S, path: String, node: &S::Node, tree: &mut Tree) -> Result<()> {
    tree.insert(path.clone(), seen(fs, node)?);
    if fs.kind(node) == FileKind::Directory {
        for name in names(fs, node)? {
            let child = fs.lookup(node, name.as_bytes())?;
            visit(fs, format!("{path}/{name}"), &child, tree)?;
        }
    }
    Ok(())
}

fn seen<S: Data>(fs: &S, node: &S::Node) -> Result<String> {
    let attr = fs.getattr(node)?;
    let mut content = Vec::new();
    if attr.kind == FileKind::Regular {
        content.resize(attr.size as usize, 0);
        let count = fs.read(node, 0, &mut content, None)?;
        content.truncate(count);
    }
    let size = if attr.kind == FileKind::Directory { 0 } else { attr.size };
    let runs = runs(&content);
    let mut xattrs = Vec::new();
    for name in fs.list_xattrs(node)? {
        let value = fs.get_xattr(node, &name)?;
        xattrs.push((String::from_utf8_lossy(&name).into_owned(), value.len(), value.first().copied()));
    }
    xattrs.sort_unstable();
    let Attr { kind, uid, links, mode, .. } = attr;
    Ok(format!("{kind:?} of {uid}, {links} links, {mode:o}, {size} bytes {runs:?} {xattrs:?}"))
}
