//! The rules for making, linking, removing and renaming inodes and for their attributes: those of the kernel, the same
//! in every layout.

use std::sync::Arc;

use nacre_engine::{
    Attr, Error, FallocateMode, FileKind, Kind, NewInode, RenameMode, Result, Timestamp, WriteAt, XattrMode,
};

use crate::ranges::end_of;

/// The longest name, of a file or of an attribute.
pub const MAX_NAME: usize = 255;
/// The longest target of a symbolic link.
pub const MAX_TARGET: usize = 4095;

/// The facts that the rules need of an inode in DRAM.
pub trait InodeFacts {
    /// The number of the root.
    const ROOT: u64;

    /// Its number.
    fn number(&self) -> u64;

    /// True for a directory.
    fn is_directory(&self) -> bool;

    /// How many names it has; 0 for one that was removed.
    fn links(&self) -> u32;

    /// The flags of chattr(1).
    fn flags(&self) -> u32;

    /// The number of the directory that this one is in. An error unless this is a directory.
    fn parent(&self) -> Result<u64>;

    /// Whether this directory has no names. An error unless it is a directory.
    fn is_empty(&self) -> Result<bool>;
}

/// A name that a file can be given.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] | b"." | b".." => Err(Error::new(Kind::InvalidInput)),
        name if name.len() > MAX_NAME => Err(Error::new(Kind::NameTooLong)),
        name if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Error::new(Kind::InvalidInput)),
        _ => Ok(()),
    }
}

/// A name that can be looked up, whether a file can have it or not.
#[inline]
pub fn check_lookup(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME { Err(Error::new(Kind::NameTooLong)) } else { Ok(()) }
}

/// An inode that can be made, with attributes of at most `max_xattr` bytes each.
pub fn check_new(new: &NewInode<'_>, max_xattr: usize) -> Result<()> {
    let symlink = new.kind == FileKind::Symlink;
    if symlink == new.target.is_empty() {
        return Err(Error::new(Kind::InvalidInput));
    }
    if new.target.len() > MAX_TARGET {
        return Err(Error::new(Kind::NameTooLong));
    }
    if new.rdev > u64::from(u32::MAX) {
        return Err(Error::new(Kind::InvalidInput));
    }
    new.xattrs.iter().try_for_each(|(name, value)| check_xattr(name, value, max_xattr))
}

/// The inode that a rename leaves under its old name: a character device 0:0 without permissions, which union file
/// systems read as "removed".
pub fn whiteout(mode: RenameMode, now: Timestamp) -> Option<NewInode<'static>> {
    let RenameMode::Whiteout { uid, gid } = mode else { return None };
    Some(NewInode { uid, gid, ..NewInode::of_root(FileKind::CharDevice, 0, now) })
}

/// An attribute that an inode can be given.
pub fn check_xattr(name: &[u8], value: &[u8], max_xattr: usize) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(Error::new(Kind::BufferTooSmall));
    }
    if value.len() > max_xattr { Err(Error::new(Kind::TooBig)) } else { Ok(()) }
}

/// Whether an attribute that is there, or is not, may be set in this way.
pub fn check_xattr_mode(how: XattrMode, exists: bool) -> Result<()> {
    match how {
        XattrMode::Create if exists => Err(Error::new(Kind::Exists)),
        XattrMode::Replace if !exists => Err(Error::new(Kind::NoAttribute)),
        _ => Ok(()),
    }
}

/// An inode with these flags may be changed in a way that `forbidden` flags forbid.
pub fn check_flags(flags: u32, forbidden: u32) -> Result<()> {
    if flags & forbidden == 0 { Ok(()) } else { Err(Error::new(Kind::NotPermitted)) }
}

/// A file with these flags may be written to.
pub fn check_write(flags: u32, at: WriteAt) -> Result<()> {
    let overwrites = if at == WriteAt::End { 0 } else { Attr::APPEND_ONLY };
    check_flags(flags, Attr::IMMUTABLE | overwrites)
}

/// Space of a file with these flags may be changed in this way; gives the end of the range, in files of at most `max`
/// bytes.
pub fn check_fallocate(flags: u32, mode: FallocateMode, offset: u64, len: u64, max: u64) -> Result<u64> {
    check_flags(flags, Attr::IMMUTABLE)?;
    if len == 0 {
        return Err(Error::new(Kind::InvalidInput));
    }
    let end = end_of(offset, len, max)?;
    let takes_away = !matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize);
    check_flags(flags, if takes_away { Attr::APPEND_ONLY } else { 0 })?;
    Ok(end)
}

/// A name cannot leave a directory that is immutable or append-only, nor can the name of such an inode go.
pub fn check_removable<I: InodeFacts>(dir: &I, child: &I) -> Result<()> {
    let forbidden = Attr::IMMUTABLE | Attr::APPEND_ONLY;
    check_flags(dir.flags(), forbidden)?;
    check_flags(child.flags(), forbidden)
}

/// An inode can be given a name in a directory, where none is of that name. How many names it may have, its count says.
pub fn check_link<I: InodeFacts>(inode: &I, dir: &I) -> Result<()> {
    if inode.is_directory() {
        return Err(Error::new(Kind::NotPermitted));
    }
    check_flags(inode.flags(), Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
    check_flags(dir.flags(), Attr::IMMUTABLE)
}

/// One side of a rename.
pub struct Side<'a, I> {
    /// The directory.
    pub dir: &'a Arc<I>,
    /// The name in it.
    pub name: &'a [u8],
}

/// A rename as its caller asked for it.
pub struct Asked<'a, I> {
    /// The old name.
    pub from: Side<'a, I>,
    /// The new name.
    pub to: Side<'a, I>,
    /// The effect on a target.
    pub mode: RenameMode,
    /// The time of the change.
    pub now: Timestamp,
}

// `derive` would ask the inode itself to be `Copy`.
impl<I> Clone for Side<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Side<'_, I> {}

impl<I> Clone for Asked<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Asked<'_, I> {}

impl<'a, I: InodeFacts> Asked<'a, I> {
    /// The directories are two.
    pub fn is_across(&self) -> bool {
        self.from.dir.number() != self.to.dir.number()
    }

    /// The facts that the rules need.
    pub fn rules(&self, source: &'a I, target: Option<&'a I>) -> Rename<'a, I> {
        let Asked { from, to, mode, .. } = *self;
        Rename { from_dir: from.dir, to_dir: to.dir, source, target, mode }
    }
}

/// A rename that is asked for.
pub struct Rename<'a, I> {
    /// The directory that has the name.
    pub from_dir: &'a Arc<I>,
    /// The directory that is to have it.
    pub to_dir: &'a Arc<I>,
    /// The inode with the name.
    pub source: &'a I,
    /// The inode that has the new name now.
    pub target: Option<&'a I>,
    /// How the name is given.
    pub mode: RenameMode,
}

impl<I: InodeFacts> Rename<'_, I> {
    /// Whether it may happen; false when there is nothing to do. The directories are locked.
    pub fn check(&self) -> Result<bool> {
        self.check_target()?;
        let Some(target) = self.target else {
            check_removable(&**self.from_dir, self.source)?;
            check_flags(self.to_dir.flags(), Attr::IMMUTABLE)?;
            return Ok(true);
        };
        if self.source.number() == target.number() {
            return Ok(false);
        }
        check_removable(&**self.from_dir, self.source)?;
        check_removable(&**self.to_dir, target)?;
        if self.mode == RenameMode::Exchange {
            return Ok(true);
        }
        match (self.source.is_directory(), target.is_directory()) {
            (true, false) => Err(Error::new(Kind::NotDirectory)),
            (false, true) => Err(Error::new(Kind::IsDirectory)),
            (true, true) if !target.is_empty()? => Err(Error::new(Kind::NotEmpty)),
            _ => Ok(true),
        }
    }

    /// No directory may come to lie below itself. `hold` gives the inode with a number, of `inodes` that there are.
    pub fn check_no_cycle(&self, inodes: u64, hold: impl Fn(u64) -> Result<Arc<I>>) -> Result<()> {
        // The errors of the mode come before that of the cycle, as in the kernel.
        self.check_target()?;
        if self.source.is_directory() && is_within(self.to_dir, self.source.number(), inodes, &hold)? {
            return Err(Error::new(Kind::InvalidInput));
        }
        if let Some(target) = self.target
            && target.is_directory()
            && is_within(self.from_dir, target.number(), inodes, &hold)?
        {
            // Its name is on the way to the source, so it is not empty.
            let kind = if self.mode == RenameMode::Exchange { Kind::InvalidInput } else { Kind::NotEmpty };
            return Err(Error::new(kind));
        }
        Ok(())
    }

    /// Checks the new name against the mode.
    fn check_target(&self) -> Result<()> {
        match (self.mode, self.target) {
            (RenameMode::Exchange, None) => Err(Error::new(Kind::NotFound)),
            (RenameMode::NoReplace, Some(_)) => Err(Error::new(Kind::Exists)),
            _ => Ok(()),
        }
    }
}

/// True when `dir` is the directory `number` or below it.
fn is_within<I: InodeFacts>(
    dir: &Arc<I>,
    number: u64,
    inodes: u64,
    hold: &impl Fn(u64) -> Result<Arc<I>>,
) -> Result<bool> {
    let mut at = Arc::clone(dir);
    // No way up is longer than there are inodes, unless parents on media form a circle.
    for _ in 0..=inodes {
        if at.number() == number {
            return Ok(true);
        }
        if at.number() == I::ROOT {
            return Ok(false);
        }
        if at.links() == 0 {
            return Err(Error::new(Kind::NotFound)); // it was removed
        }
        at = hold(at.parent()?)?;
    }
    Err(Error::corrupt(format!("the parents of directory {} form a circle", at.number())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directories 1 to 9, each in the one before it; 10 to 19 are files.
    #[derive(Debug)]
    struct Fact {
        number: u64,
        flags: u32,
        parent: u64,
        is_empty: bool,
    }

    impl InodeFacts for Fact {
        const ROOT: u64 = 1;

        fn number(&self) -> u64 {
            self.number
        }

        fn is_directory(&self) -> bool {
            self.number < 10
        }

        fn links(&self) -> u32 {
            1
        }

        fn flags(&self) -> u32 {
            self.flags
        }

        fn parent(&self) -> Result<u64> {
            Ok(self.parent)
        }

        fn is_empty(&self) -> Result<bool> {
            Ok(self.is_empty)
        }
    }

    fn fact(number: u64) -> Arc<Fact> {
        Arc::new(Fact { number, flags: 0, parent: number.saturating_sub(1), is_empty: number >= 9 })
    }

    fn rename(from: u64, to: u64, source: u64, target: Option<u64>, mode: RenameMode) -> [Option<Kind>; 2] {
        let (from_dir, to_dir, source, target) = (fact(from), fact(to), fact(source), target.map(fact));
        let rename =
            Rename { from_dir: &from_dir, to_dir: &to_dir, source: &source, target: target.as_deref(), mode };
        let cycle = rename.check_no_cycle(10, |number| Ok(fact(number)));
        [cycle.err(), rename.check().err()].map(|error| error.map(|error| error.kind()))
    }

    #[test]
    fn no_directory_comes_to_lie_below_itself() {
        use RenameMode::{Exchange, NoReplace, Replace};
        assert_eq!(rename(1, 5, 2, None, Replace), [Some(Kind::InvalidInput), None]);
        assert_eq!(rename(1, 2, 3, None, Replace), [None, None]);
        assert_eq!(rename(5, 1, 6, Some(2), Replace), [Some(Kind::NotEmpty); 2]);
        assert_eq!(rename(5, 1, 6, Some(2), Exchange), [Some(Kind::InvalidInput), None]);
        // Files lie below nothing; the mode is looked at first.
        assert_eq!(rename(1, 5, 10, Some(11), Replace), [None, None]);
        assert_eq!(rename(1, 5, 2, None, Exchange), [Some(Kind::NotFound); 2]);
        assert_eq!(rename(5, 1, 6, Some(2), NoReplace), [Some(Kind::Exists); 2]);
    }

    #[test]
    fn parents_that_form_a_circle_are_damage() {
        let circle =
            |number: u64| Ok(Arc::new(Fact { number, flags: 0, parent: 5 - number, is_empty: false }));
        let error = is_within(&circle(2).unwrap(), 7, 10, &circle).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
    }

    #[test]
    fn kinds_and_flags_are_looked_at() {
        use RenameMode::Replace;
        assert_eq!(rename(1, 1, 2, Some(10), Replace)[1], Some(Kind::NotDirectory));
        assert_eq!(rename(1, 1, 10, Some(9), Replace)[1], Some(Kind::IsDirectory));
        assert_eq!(rename(1, 1, 8, Some(9), Replace)[1], None, "an empty directory is replaced");
        let guarded = Arc::new(Fact { number: 3, flags: Attr::APPEND_ONLY, parent: 1, is_empty: false });
        let into =
            Rename { from_dir: &fact(1), to_dir: &guarded, source: &fact(10), target: None, mode: Replace };
        assert!(into.check().unwrap(), "a name can be added");
        let out = Rename { from_dir: &guarded, to_dir: &fact(1), ..into };
        assert_eq!(out.check().unwrap_err().kind(), Kind::NotPermitted);
    }
}
