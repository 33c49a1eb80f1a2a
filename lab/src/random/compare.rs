//! Comparing two whole trees.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use nacre_engine::{Attr, Data, Error, Extents, FileKind, Kind, SeekTo};

use super::world::{Shown, Tolerance, World};

/// The most that is read of a hole, in bytes: a hole is sampled at its start and at its end.
const HOLE_SAMPLE: u64 = 1 << 16;

type Check = Result<(), String>;

/// Both sides of a comparison.
struct Pair<'a, A: Extents, B: Extents> {
    left: &'a A,
    right: &'a B,
    tolerance: Tolerance,
    /// Which inode of the right each inode of the left is: a bijection, or links were mixed up.
    same: BTreeMap<u64, u64>,
    same_back: BTreeMap<u64, u64>,
}

/// Compares everything that can be reached: by name, and by the handles of both worlds. The error says where the
/// layout under test (left) differs from the model (right).
pub(super) fn compare<A, B>(left: &World<'_, A>, right: &World<'_, B>, tolerance: Tolerance) -> Check
where
    A: Data + Extents,
    B: Data + Extents,
{
    let (same, same_back) = (BTreeMap::new(), BTreeMap::new());
    let mut pair = Pair { left: left.fs, right: right.fs, tolerance, same, same_back };
    pair.tree(&left.root, &right.root, "")?;
    for ((slot, a), (other_slot, b)) in left.held().zip(right.held()) {
        assert_eq!(slot, other_slot, "both worlds hold the same slots");
        pair.inode(a, b, &format!("#{slot}"))?;
    }
    Ok(())
}

/// The entries of a directory: name to (number, kind).
fn entries<L: Data>(fs: &L, dir: &L::Node) -> Result<BTreeMap<Vec<u8>, (u64, FileKind)>, Error> {
    let mut all = BTreeMap::new();
    let mut twice = false;
    fs.read_dir(dir, 0, &mut |entry| {
        twice |= all.insert(entry.name.to_vec(), (entry.id.number, entry.kind)).is_some();
        ControlFlow::Continue(())
    })?;
    assert!(!twice, "a name was listed twice");
    Ok(all)
}

fn differ<T: std::fmt::Debug>(path: &str, what: &str, left: T, right: T) -> Check {
    Err(format!("{path}: {what}: found {left:?}, the model has {right:?}"))
}

impl<A: Data + Extents, B: Data + Extents> Pair<'_, A, B> {
    fn tree(&mut self, a: &A::Node, b: &B::Node, path: &str) -> Check {
        self.inode(a, b, path)?;
        if self.right.kind(b) != FileKind::Directory {
            return Ok(());
        }
        let fail = |error: Error| format!("{path}: {error}");
        let (left, right) = (entries(self.left, a).map_err(fail)?, entries(self.right, b).map_err(fail)?);
        let names = |all: &BTreeMap<Vec<u8>, _>| {
            all.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>()
        };
        if !left.keys().eq(right.keys()) {
            return differ(path, "entries", names(&left), names(&right));
        }
        for (name, (number, kind)) in left {
            let inner = format!("{path}/{}", short(&name));
            let fail = |error: Error| format!("{inner}: {error}");
            let node = self.left.lookup(a, &name).map_err(fail)?;
            if (number, kind) != (self.left.id(&node).number, self.left.kind(&node)) {
                return Err(format!("{inner}: readdir and lookup disagree about its inode"));
            }
            let other = self.right.lookup(b, &name).map_err(fail)?;
            if self.left.kind(&node) == FileKind::Directory {
                let parent = self.left.parent(&node).map_err(fail)?;
                if self.left.id(&parent) != self.left.id(a) {
                    return Err(format!("{inner}: its parent is another"));
                }
            }
            self.tree(&node, &other, &inner)?;
        }
        Ok(())
    }

    fn inode(&mut self, a: &A::Node, b: &B::Node, path: &str) -> Check {
        let (left_id, right_id) = (self.left.id(a).number, self.right.id(b).number);
        let known = *self.same.entry(left_id).or_insert(right_id);
        let known_back = *self.same_back.entry(right_id).or_insert(left_id);
        if (known, known_back) != (right_id, left_id) {
            return Err(format!("{path}: it is another inode than the model says"));
        }
        let fail = |error: Error| format!("{path}: {error}");
        let (left, right) = (self.left.getattr(a).map_err(fail)?, self.right.getattr(b).map_err(fail)?);
        if self.left.node(left.id).map(|node| self.left.id(&node)).ok() != Some(left.id) {
            return Err(format!("{path}: it cannot be held by its number"));
        }
        // A time that is kept lazily may be older, never newer.
        let is_newer = !self.tolerance.exact_atime && left.atime > right.atime
            || !self.tolerance.exact_ctime && left.ctime > right.ctime;
        if is_newer {
            let times = |attr: &Attr| (attr.atime, attr.ctime);
            return differ(path, "atime and ctime", times(&left), times(&right));
        }
        let (left, right) = (Shown::new(&left, self.tolerance), Shown::new(&right, self.tolerance));
        if left != right {
            return differ(path, "attributes", left, right);
        }
        self.xattrs(a, b, path)?;
        match self.right.kind(b) {
            FileKind::Regular => self.content(a, b, path, right.size),
            FileKind::Symlink => {
                let (left, right) =
                    (self.left.read_link(a).map_err(fail)?, self.right.read_link(b).map_err(fail)?);
                if left == right { Ok(()) } else { differ(path, "target", left, right) }
            }
            _ => Ok(()),
        }
    }

    fn xattrs(&self, a: &A::Node, b: &B::Node, path: &str) -> Check {
        let fail = |error: Error| format!("{path}: {error}");
        let mut left = self.left.list_xattrs(a).map_err(fail)?;
        let mut right = self.right.list_xattrs(b).map_err(fail)?;
        left.sort();
        right.sort();
        if left != right {
            return differ(path, "extended attributes", left, right);
        }
        for name in left {
            let value = self.left.get_xattr(a, &name).map_err(fail)?;
            if value != self.right.get_xattr(b, &name).map_err(fail)? {
                return Err(format!("{path}: the value of {} differs", String::from_utf8_lossy(&name)));
            }
        }
        Ok(())
    }

    /// Compares data where the model has data, and zeros where it has none.
    fn content(&self, a: &A::Node, b: &B::Node, path: &str, size: u64) -> Check {
        let mut offset = 0;
        while offset < size {
            let data = match self.right.seek(b, offset, SeekTo::Data) {
                Ok(data) => data,
                Err(error) if error.kind() == Kind::NoSuchOffset => size,
                Err(error) => return Err(format!("{path}: {error}")),
            };
            self.range(a, b, path, offset, data.min(offset + HOLE_SAMPLE))?;
            self.range(a, b, path, offset.max(data.saturating_sub(HOLE_SAMPLE)), data)?;
            if self.tolerance.exact_holes {
                self.seeks(a, path, offset, data, size)?;
            }
            if data == size {
                break;
            }
            let hole = self.right.seek(b, data, SeekTo::Hole).map_err(|error| format!("{path}: {error}"))?;
            self.range(a, b, path, data, hole)?;
            if self.tolerance.exact_holes && self.left.seek(a, data, SeekTo::Hole).ok() != Some(hole) {
                return Err(format!("{path}: data from {data} on does not end at {hole}"));
            }
            offset = hole;
        }
        Ok(())
    }

    /// Checks that the left has a hole from `offset` to `data`.
    fn seeks(&self, a: &A::Node, path: &str, offset: u64, data: u64, size: u64) -> Check {
        let found = match self.left.seek(a, offset, SeekTo::Data) {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::NoSuchOffset => size,
            Err(error) => return Err(format!("{path}: {error}")),
        };
        if found == data { Ok(()) } else { differ(path, &format!("data after {offset}"), found, data) }
    }

    fn range(&self, a: &A::Node, b: &B::Node, path: &str, start: u64, end: u64) -> Check {
        let mut offset = start;
        while offset < end {
            let len = (end - offset).min(1 << 20) as usize;
            let (mut left, mut right) = (vec![0xEE; len], vec![0xDD; len]);
            let fail = |error: Error| format!("{path}: read {len} at {offset}: {error}");
            let counts = (
                self.left.read(a, offset, &mut left, None).map_err(fail)?,
                self.right.read(b, offset, &mut right, None).map_err(fail)?,
            );
            if counts != (len, len) {
                return differ(path, &format!("bytes read at {offset}"), counts.0, counts.1);
            }
            if let Some(at) = (0..len).find(|&at| left[at] != right[at]) {
                return differ(path, &format!("byte {}", offset + at as u64), left[at], right[at]);
            }
            offset += len as u64;
        }
        Ok(())
    }
}

/// A name for messages.
fn short(name: &[u8]) -> String {
    if name.len() > 60 {
        format!("<{} bytes>", name.len())
    } else {
        String::from_utf8_lossy(name).into_owned()
    }
}
