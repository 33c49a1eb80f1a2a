//! Paths: the walk from a directory to an inode.

use nacre_engine::{Attr, FileKind, Kind, Result};

use crate::caller::{Caller, WANT_EXECUTE};
use crate::{Layout, Vfs, name};

/// The longest path in bytes.
const PATH_MAX: usize = 4095;

/// Symbolic links that one path may pass through.
const SYMLINKS_MAX: u32 = 40;

/// A directory held by the walk or by the walk's caller.
///
/// Cloning a node counts references on a cache line that threads share. A walk therefore borrows its starting node.
pub enum PathBase<'a, N> {
    /// The start of the path.
    Start(&'a N),
    /// A directory that the walk has reached.
    Reached(N),
}

impl<N> PathBase<'_, N> {
    /// The node.
    #[inline]
    pub fn node(&self) -> &N {
        match self {
            PathBase::Start(node) => node,
            PathBase::Reached(node) => node,
        }
    }
}

impl<N: Clone> PathBase<'_, N> {
    fn into_node(self) -> N {
        match self {
            PathBase::Start(node) => node.clone(),
            PathBase::Reached(node) => node,
        }
    }
}

/// The last component of a path, and its directory.
pub struct PathEnd<'a, N> {
    /// The directory.
    pub dir: PathBase<'a, N>,
    /// The last component: a name, `.` or `..`; `.` for the root and for paths that end in `/.`.
    pub name: &'a [u8],
    /// The path ends in a slash: it names a directory or nothing.
    pub must_be_dir: bool,
}

/// Splits off the first component: (component, rest without leading slashes, whether a slash followed). One pass finds
/// its end and checks that it can be a name. It is empty for an empty path only.
#[inline]
fn split(path: &[u8]) -> Result<(&[u8], &[u8], bool)> {
    let mut end = 0;
    while end < path.len() && path[end] != b'/' {
        if path[end] == 0 {
            return Err(Kind::InvalidInput.into());
        }
        end += 1;
    }
    if end > name::NAME_MAX {
        return Err(Kind::NameTooLong.into());
    }
    let (component, rest) = path.split_at(end);
    Ok((component, skip_slashes(rest), !rest.is_empty()))
}

#[inline]
fn skip_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    &path[start..]
}

impl<L: Layout> Vfs<L> {
    /// The inode that a path names, from `start` on, or from the root if it starts with a slash. A symbolic link at
    /// its end is followed if `follow` is true or a slash follows it.
    ///
    /// [`TooManySymlinks`](Kind::TooManySymlinks) after 40, [`NameTooLong`](Kind::NameTooLong) beyond 4095 bytes.
    pub fn resolve(
        &self,
        caller: &Caller<'_>,
        start: &L::Node,
        path: &[u8],
        follow: bool,
    ) -> Result<L::Node> {
        let mut budget = SYMLINKS_MAX;
        self.walk(caller, start, path, follow, &mut budget).map(PathBase::into_node)
    }

    /// The attributes of the inode that a path names, as [`Vfs::resolve`] finds it. Only a symbolic link need be held
    /// for that.
    #[inline]
    pub fn getattr_at(
        &self,
        caller: &Caller<'_>,
        start: &L::Node,
        path: &[u8],
        follow: bool,
    ) -> Result<Attr> {
        let mut budget = SYMLINKS_MAX;
        let PathEnd { dir, name, must_be_dir } = self.walk_to_place(caller, start, path, &mut budget)?;
        if !must_be_dir && !matches!(name, b"." | b"..") {
            self.permit(caller, dir.node(), WANT_EXECUTE)?;
            let attr = self.layout.getattr_at(dir.node(), name)?;
            if attr.kind != FileKind::Symlink || !follow {
                return Ok(attr);
            }
        }
        let end = self.step(caller, dir, name, follow || must_be_dir, &mut budget)?;
        if must_be_dir && self.layout.kind(end.node()) != FileKind::Directory {
            return Err(Kind::NotDirectory.into());
        }
        self.layout.getattr(end.node())
    }

    /// The directory of a path's last component, and that component, which need not exist.
    pub fn resolve_place<'a>(
        &'a self,
        caller: &Caller<'_>,
        start: &'a L::Node,
        path: &'a [u8],
    ) -> Result<PathEnd<'a, L::Node>> {
        let mut budget = SYMLINKS_MAX;
        self.walk_to_place(caller, start, path, &mut budget)
    }

    /// The number of symbolic links that one path may pass through.
    pub(crate) fn symlink_budget() -> u32 {
        SYMLINKS_MAX
    }

    fn begin<'a>(&'a self, start: &'a L::Node, path: &'a [u8]) -> Result<(&'a L::Node, &'a [u8])> {
        if path.len() > PATH_MAX {
            return Err(Kind::NameTooLong.into());
        }
        match path.first() {
            None => Err(Kind::NotFound.into()),
            Some(b'/') => Ok((&self.root, skip_slashes(path))),
            Some(_) => Ok((start, path)),
        }
    }

    fn walk<'a>(
        &'a self,
        caller: &Caller<'_>,
        start: &'a L::Node,
        path: &'a [u8],
        follow: bool,
        budget: &mut u32,
    ) -> Result<PathBase<'a, L::Node>> {
        let (start, mut rest) = self.begin(start, path)?;
        let mut at = PathBase::Start(start);
        while !rest.is_empty() {
            let (component, after, slash) = split(rest)?;
            rest = after;
            let next = self.step(caller, at, component, follow || slash, budget)?;
            if slash && self.layout.kind(next.node()) != FileKind::Directory {
                return Err(Kind::NotDirectory.into());
            }
            at = next;
        }
        Ok(at)
    }

    /// Walks one component further, through a symbolic link if it is to be followed.
    #[inline]
    fn step<'a>(
        &'a self,
        caller: &Caller<'_>,
        at: PathBase<'a, L::Node>,
        component: &[u8],
        follow: bool,
        budget: &mut u32,
    ) -> Result<PathBase<'a, L::Node>> {
        self.permit(caller, at.node(), WANT_EXECUTE)?;
        if component == b"." {
            return match self.layout.kind(at.node()) {
                FileKind::Directory => Ok(at),
                _ => Err(Kind::NotDirectory.into()),
            };
        }
        let next = match component {
            b".." => self.lookup_permitted(at.node(), component)?,
            _ => self.layout.lookup(at.node(), component)?,
        };
        if follow && self.layout.kind(&next) == FileKind::Symlink {
            let target = self.follow_link(&next, budget)?;
            let node = self.walk(caller, at.node(), &target, true, budget)?.into_node();
            return Ok(PathBase::Reached(node));
        }
        Ok(PathBase::Reached(next))
    }

    pub(crate) fn follow_link(&self, link: &L::Node, budget: &mut u32) -> Result<Vec<u8>> {
        *budget = budget.checked_sub(1).ok_or(Kind::TooManySymlinks)?;
        self.layout.read_link(link)
    }

    pub(crate) fn walk_to_place<'a>(
        &'a self,
        caller: &Caller<'_>,
        start: &'a L::Node,
        path: &'a [u8],
        budget: &mut u32,
    ) -> Result<PathEnd<'a, L::Node>> {
        let (start, mut rest) = self.begin(start, path)?;
        let mut dir = PathBase::Start(start);
        if rest.is_empty() {
            return Ok(PathEnd { dir, name: b".", must_be_dir: true });
        }
        loop {
            let (component, after, slash) = split(rest)?;
            if after.is_empty() {
                if self.layout.kind(dir.node()) != FileKind::Directory {
                    return Err(Kind::NotDirectory.into());
                }
                return Ok(PathEnd { dir, name: component, must_be_dir: slash });
            }
            rest = after;
            dir = self.step(caller, dir, component, true, budget)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::Kind;

    use super::split;

    #[test]
    fn components_are_split_at_runs_of_slashes() {
        assert_eq!(split(b"a//b/").unwrap(), (&b"a"[..], &b"b/"[..], true));
        assert_eq!(split(b"b/").unwrap(), (&b"b"[..], &b""[..], true));
        assert_eq!(split(b"b").unwrap(), (&b"b"[..], &b""[..], false));
        assert_eq!(split(b"a\0/b").unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(split(&[b'x'; 256]).unwrap_err().kind(), Kind::NameTooLong);
    }
}
