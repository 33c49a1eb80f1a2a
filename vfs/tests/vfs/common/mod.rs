//! A file system in memory and some people who use it.

#![allow(dead_code, reason = "each test binary uses a part")]

use nacre_engine::{Error, Kind, Result};
use nacre_lab::model::{MemLayout, MemNode};
use nacre_vfs::{Caller, Create, Vfs, VfsOptions};

pub(crate) type Fs = Vfs<MemLayout>;

pub(crate) const ROOT: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[], umask: 0o022, check: true };
pub(crate) const ANN: Caller<'static> =
    Caller { uid: 1000, gid: 1000, groups: &[100], umask: 0o022, check: true };
pub(crate) const BOB: Caller<'static> =
    Caller { uid: 1001, gid: 1001, groups: &[100], umask: 0o022, check: true };
/// Ann, after the kernel has checked.
pub(crate) const ANN_CHECKED: Caller<'static> = Caller { check: false, ..ANN };

/// An empty file system whose root everybody may write to.
pub(crate) fn open_fs() -> Fs {
    let fs = Vfs::new(MemLayout::new(1 << 16, 1 << 16), VfsOptions::default());
    let change = nacre_engine::SetAttr { mode: Some(0o777), ..Default::default() };
    fs.setattr(&ROOT, fs.root(), &change, false).unwrap();
    fs
}

pub(crate) fn mkdir(fs: &Fs, caller: &Caller<'_>, dir: &MemNode, name: &str, mode: u32) -> MemNode {
    fs.create(caller, dir, name.as_bytes(), &Create::directory(mode)).unwrap()
}

pub(crate) fn touch(fs: &Fs, caller: &Caller<'_>, dir: &MemNode, name: &str, mode: u32) -> MemNode {
    fs.create(caller, dir, name.as_bytes(), &Create::file(mode)).unwrap()
}

pub(crate) fn chmod(fs: &Fs, caller: &Caller<'_>, node: &MemNode, mode: u32) -> Result<u32> {
    let change = nacre_engine::SetAttr { mode: Some(mode), ..Default::default() };
    fs.setattr(caller, node, &change, false).map(|attr| attr.mode)
}

pub(crate) fn mode(fs: &Fs, node: &MemNode) -> u32 {
    fs.getattr(node).unwrap().mode
}

#[track_caller]
pub(crate) fn refused<T>(result: Result<T>, kind: Kind) {
    assert_eq!(result.err().as_ref().map(Error::kind), Some(kind));
}

/// The attribute of an ACL from (tag, permissions, user or group).
pub(crate) fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

pub(crate) const OWNER: u16 = 1;
pub(crate) const USER: u16 = 2;
pub(crate) const GROUP_OBJ: u16 = 4;
pub(crate) const GROUP: u16 = 8;
pub(crate) const MASK: u16 = 16;
pub(crate) const OTHER: u16 = 32;
pub(crate) const NO_ID: u32 = u32::MAX;
