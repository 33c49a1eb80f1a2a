//! Attributes, extended attributes and the flags of chattr(1).

use fuser::{Errno, FileAttr, INodeNo, Request, TimeOrNow};
use nacre_engine::{Attr, BLOCK_SIZE, FileKind, Kind, Result, SetAttr, Timestamp, XattrMode};
use nacre_vfs::{ACL_ACCESS, Caller, Layout};

use crate::convert::time_or_now;
use crate::server::{Server, caller};
use crate::virtual_xattr::may_tell;

/// `FS_IOC_GETFLAGS`, as ioctl_iflags(2) has it on 64-bit machines.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`.
const GET_EXTENDED_FLAGS: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
const SET_EXTENDED_FLAGS: u32 = 0x401c_5820;
/// `FS_IOC_GETVERSION`.
const GET_VERSION: u32 = 0x8008_7601;

/// `FS_IOC_GETFSLABEL`.
const GET_LABEL: u32 = 0x8100_9431;

/// `FITRIM`.
const TRIM: u32 = 0xc018_5879;

/// Bytes of a label for the kernel, with the NUL behind it.
const LABEL_SIZE: usize = 256;

/// Bytes of the kernel's `struct fsxattr`, which begins with the flags.
const EXTENDED_FLAGS_SIZE: usize = 28;

/// Each flag of an inode as (ours, `FS_*_FL`, `FS_XFLAG_*`).
const FLAGS: [(u32, u32, u32); 2] = [(Attr::IMMUTABLE, 0x10, 0x8), (Attr::APPEND_ONLY, 0x20, 0x10)];

/// The changes that a SETATTR request asks for.
pub(crate) struct Change {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
    pub(crate) ctime: Option<Timestamp>,
}

impl<L: Layout> Server<L> {
    pub(crate) fn getattr(&self, id: INodeNo) -> Result<FileAttr> {
        Ok(self.file_attr(&self.vfs.getattr(&self.node(id)?)?))
    }

    /// The protocol has a bit for dropping set-id bits (`FATTR_KILL_SUIDGID`), but `fuser` does not pass it on. The
    /// kernel sets it with every change of owner, and with a change of size unless the caller has CAP_FSETID
    /// ([`Server::kills_set_id`]). A request without any field is a change of owner that gives neither, or comes
    /// before a write that drops the bits itself. From a stranger it is the latter. From the owner it counts as the
    /// former: bits that stay would be worse than bits that a write of root takes.
    pub(crate) fn setattr(&self, request: &Request, id: INodeNo, asked: &Change) -> Result<FileAttr> {
        let node = self.node(id)?;
        if asked.size == Some(0) {
            // Contents that were lost would be gone anyway.
            let _ = self.kernel.take_failure(id);
        }
        let change = SetAttr {
            mode: asked.mode.map(|mode| mode & 0o7777),
            uid: asked.uid,
            gid: asked.gid,
            atime: time_or_now(asked.atime, || self.vfs.now()),
            mtime: time_or_now(asked.mtime, || self.vfs.now()),
            touch: matches!((asked.atime, asked.mtime), (Some(TimeOrNow::Now), Some(TimeOrNow::Now))),
            size: asked.size,
            ..SetAttr::default()
        };
        // A kernel that buffers writes sends a size without times where it changes none, as truncate(2) to the same size.
        if self.settings.writeback && change == (SetAttr { size: asked.size, ..SetAttr::default() }) {
            let attr = self.vfs.getattr(&node)?;
            if asked.ctime.is_none() && asked.size == Some(attr.size) && attr.mode & 0o6000 == 0 {
                return Ok(self.file_attr(&attr));
            }
        }
        // It gives files times of its own, and their ctime.
        if let Some(ctime) = asked.ctime.filter(|_| self.settings.writeback && is_of_times(&change)) {
            // Before the change, because concurrent page writes read it again at their end.
            change.mtime.inspect(|&mtime| self.kernel.note_mtime(id, mtime));
            return Ok(self.file_attr(&self.vfs.set_times_as_of(&node, &change, ctime)?));
        }
        if change == SetAttr::default() && caller(request, 0).owns(&self.vfs.getattr(&node)?) {
            return Ok(self.file_attr(&self.vfs.chown(&caller(request, 0), &node, None, None)?));
        }
        let is_chown = asked.uid.is_some() || asked.gid.is_some();
        let kill_suidgid = self.vfs.kind(&node) != FileKind::Directory
            && (is_chown || asked.size.is_some() && self.kills_set_id(request, &node)?);
        let groups = self.groups_for(request, &node, kill_suidgid)?;
        let caller = Caller { groups: &groups, ..caller(request, 0) };
        change.mtime.filter(|_| self.settings.writeback).inspect(|&mtime| self.kernel.note_mtime(id, mtime));
        let ctime = asked.ctime.filter(|_| self.settings.writeback).unwrap_or_else(|| self.vfs.now());
        let attr = self.room.find(|| self.vfs.setattr_at(&caller, &node, &change, kill_suidgid, ctime))?;
        if change.size.is_some() {
            self.note_mtime(&attr);
        }
        Ok(self.file_attr(&attr))
    }

    /// Whether a change of contents by this caller drops set-id bits, if the kernel does not tell. A process without
    /// privileges drops them, and so does the super-user without CAP_FSETID, as in a container.
    pub(crate) fn kills_set_id(&self, request: &Request, node: &L::Node) -> Result<bool> {
        let has_set_id = self.vfs.getattr(node)?.mode & 0o6000 != 0;
        Ok(has_set_id && (request.uid() != 0 || !has_capability(&status_of(request), CAP_FSETID)))
    }

    /// The supplementary groups of the caller, if set-id bits are dropped and the choice depends on the groups.
    pub(crate) fn groups_for(&self, request: &Request, node: &L::Node, kills: bool) -> Result<Vec<u32>> {
        let depends = kills && self.vfs.getattr(node)?.mode & 0o2010 == 0o2000;
        Ok(if depends { groups_of(request) } else { Vec::new() })
    }

    pub(crate) fn getxattr(&self, request: &Request, id: INodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(id)?;
        match self.virtual_xattr(&node, request.uid(), name) {
            Some(value) => value,
            None => self.vfs.get_xattr(&caller(request, 0), &node, name),
        }
    }

    /// The names, each followed by a NUL. Only the super-user sees the namespace `trusted`, which the kernel leaves to
    /// the file system.
    pub(crate) fn listxattr(&self, request: &Request, id: INodeNo) -> Result<Vec<u8>> {
        let names = self.vfs.list_xattrs(&caller(request, 0), &self.node(id)?)?;
        let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
        for name in names {
            if request.uid() == 0 || !name.starts_with(b"trusted.") {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }

    pub(crate) fn setxattr(
        &self,
        request: &Request,
        id: INodeNo,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
        let how = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            // No name satisfies both: an existing one exists, and another is missing.
            BOTH => return self.getxattr(request, id, name).and(Err(Kind::Exists.into())),
            _ => return Err(Kind::InvalidInput.into()),
        };
        let node = self.node(id)?;
        if let Some(result) = self.set_virtual_xattr(&node, request.uid(), name, value) {
            return result;
        }
        let groups = if name == ACL_ACCESS { groups_of(request) } else { Vec::new() };
        let caller = Caller { groups: &groups, ..caller(request, 0) };
        self.room.find(|| self.vfs.set_xattr(&caller, &node, name, value, how))
    }

    pub(crate) fn removexattr(&self, request: &Request, id: INodeNo, name: &[u8]) -> Result<()> {
        let node = self.node(id)?;
        self.room.find(|| self.vfs.remove_xattr(&caller(request, 0), &node, name))
    }

    /// Answers the few requests of ioctl(2) that a file system serves, with the reply's bytes.
    pub(crate) fn ioctl(
        &self,
        request: &Request,
        id: INodeNo,
        command: u32,
        argument: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let node = self.node(id).map_err(|error| self.refuse(&error))?;
        let refuse = |error| self.refuse(&error);
        let attr = || self.vfs.getattr(&node).map_err(refuse);
        let flags_in =
            || argument.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes)).ok_or(Errno::EINVAL);
        match command {
            GET_FLAGS => Ok(outside(attr()?.flags, |flag| flag.1).to_le_bytes().to_vec()),
            GET_EXTENDED_FLAGS => {
                let mut reply = vec![0; EXTENDED_FLAGS_SIZE];
                reply[..4].copy_from_slice(&outside(attr()?.flags, |flag| flag.2).to_le_bytes());
                Ok(reply)
            }
            GET_VERSION => Ok(u64::from(self.vfs.id(&node).generation).to_le_bytes().to_vec()),
            SET_FLAGS => self.set_flags(request, &node, inside(flags_in()?, |flag| flag.1)?),
            SET_EXTENDED_FLAGS => {
                if argument.len() < EXTENDED_FLAGS_SIZE || argument[4..].iter().any(|byte| *byte != 0) {
                    return Err(Errno::EOPNOTSUPP);
                }
                self.set_flags(request, &node, inside(flags_in()?, |flag| flag.2)?)
            }
            GET_LABEL => {
                let control = self.control.as_ref().ok_or(Errno::ENOTTY)?;
                let mut reply = control.label().map_err(|error| self.refuse(&error))?.into_bytes();
                // The last byte stays for the NUL.
                reply.resize(reply.len().min(LABEL_SIZE - 1), 0);
                reply.resize(LABEL_SIZE, 0);
                Ok(reply)
            }
            TRIM => self.trim(request, argument),
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Trims the whole file system only, because it has no addresses for a part.
    fn trim(&self, request: &Request, argument: &[u8]) -> Result<Vec<u8>, Errno> {
        if !may_tell(request.uid()) {
            return Err(Errno::EPERM);
        }
        let [start, len, least] = range_in(argument).ok_or(Errno::EINVAL)?;
        if start != 0 || len / BLOCK_SIZE < self.vfs.stat().blocks {
            return Err(Errno::EINVAL);
        }
        let told = self.control.as_ref().and_then(|control| control.trim(least));
        let bytes = told.ok_or(Errno::EOPNOTSUPP)?.map_err(|error| self.refuse(&error))?;
        Ok([start, bytes, least].iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// Sets flags; the kernel has checked that the caller may. With its writeback cache, the kernel may hold accepted
    /// writes that new flags would forbid, and could not report their failure. Regular files therefore get no flags
    /// then, but can lose them.
    fn set_flags(&self, request: &Request, node: &L::Node, flags: u32) -> Result<Vec<u8>, Errno> {
        if self.settings.writeback && self.vfs.kind(node) == FileKind::Regular {
            let has = self.vfs.getattr(node).map_err(|error| self.refuse(&error))?.flags;
            if flags & !has != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
        }
        let change = SetAttr { flags: Some(flags), ..SetAttr::default() };
        match self.vfs.setattr(&caller(request, 0), node, &change, false) {
            Ok(_) => Ok(Vec::new()),
            Err(error) => Err(self.refuse(&error)),
        }
    }
}

/// Whether a request of ioctl(2) changes flags, and ctime with them.
pub(crate) fn sets_flags(command: u32) -> bool {
    matches!(command, SET_FLAGS | SET_EXTENDED_FLAGS)
}

/// The kernel's `struct fstrim_range`: start, length, and the shortest run that counts.
fn range_in(argument: &[u8]) -> Option<[u64; 3]> {
    let (words, []) = argument.as_chunks::<8>() else { return None };
    let words: &[[u8; 8]; 3] = words.try_into().ok()?;
    Some(words.map(u64::from_le_bytes))
}

/// Our flags in another column of the table.
fn outside(flags: u32, column: impl Fn(&(u32, u32, u32)) -> u32) -> u32 {
    FLAGS.iter().filter(|flag| flags & flag.0 != 0).map(&column).fold(0, |all, flag| all | flag)
}

/// Flags of another column as ours; an error for a flag without a counterpart.
fn inside(flags: u32, column: impl Fn(&(u32, u32, u32)) -> u32) -> Result<u32, Errno> {
    let known = FLAGS.iter().map(&column).fold(0, |all, flag| all | flag);
    if flags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(FLAGS.iter().filter(|flag| flags & column(flag) != 0).fold(0, |all, flag| all | flag.0))
}

/// Whether it sets times, and nothing else.
fn is_of_times(change: &SetAttr) -> bool {
    let times = SetAttr { atime: change.atime, mtime: change.mtime, ..SetAttr::default() };
    *change == times && times != SetAttr::default()
}

/// The supplementary groups of the caller, from /proc. They decide whether an ACL, or a change of content, may leave
/// set-gid on a file. None if /proc cannot be read for the caller.
fn groups_of(request: &Request) -> Vec<u32> {
    if request.uid() == 0 {
        return Vec::new();
    }
    groups_in_status(&status_of(request))
}

/// The caller's status in /proc; empty if it cannot be read.
fn status_of(request: &Request) -> String {
    std::fs::read_to_string(format!("/proc/{}/status", request.pid())).unwrap_or_default()
}

/// Bit of the capability to change a file and leave its set-id bits, from linux/capability.h.
const CAP_FSETID: u32 = 4;

fn has_capability(status: &str, bit: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> bit & 1 != 0)
}

fn groups_in_status(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_ascii_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use fuser::Errno;
    use nacre_engine::Attr;

    use super::{groups_in_status, inside, outside, range_in};

    #[test]
    fn flags_have_a_number_in_each_interface() {
        let both = Attr::IMMUTABLE | Attr::APPEND_ONLY;
        assert_eq!(outside(both, |flag| flag.1), 0x30);
        assert_eq!(outside(both, |flag| flag.2), 0x18);
        assert_eq!(inside(0x20, |flag| flag.1), Ok(Attr::APPEND_ONLY));
        assert_eq!(inside(0x8, |flag| flag.2), Ok(Attr::IMMUTABLE));
        assert_eq!(inside(0x1, |flag| flag.1), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn a_range_is_three_numbers() {
        let words = [0u64, u64::MAX, 4096].map(u64::to_le_bytes).concat();
        assert_eq!(range_in(&words), Some([0, u64::MAX, 4096]));
        assert!(
            range_in(&words[1..]).is_none() && range_in(&words[8..]).is_none() && range_in(&[]).is_none()
        );
    }

    #[test]
    fn groups_are_read_from_proc() {
        assert_eq!(groups_in_status("Name:\tsh\nGroups:\t4 24 1000 \nVmPeak:\t1 kB\n"), [4, 24, 1000]);
        assert!(groups_in_status("Name:\tsh\nGroups:\t\n").is_empty());
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(own.lines().any(|line| line.starts_with("Groups:")));
    }
}
