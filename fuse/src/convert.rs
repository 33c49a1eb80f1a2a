//! Conversion between nacre's units and those of the FUSE protocol as `fuser` has them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use nacre_engine::{Attr, BLOCK_SIZE, FileKind, Timestamp};

/// The kind as `fuser` names it.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// The kind in the type bits of a mode, where mknod(2) takes 0 for a regular file.
pub(crate) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::Regular,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        _ => return None,
    })
}

/// The attributes for the kernel, under this node id. `writeback`: the kernel buffers writes.
pub(crate) fn file_attr(attr: &Attr, id: INodeNo, writeback: bool) -> FileAttr {
    FileAttr {
        ino: id,
        size: attr.size,
        blocks: sectors(attr, writeback),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: rdev_to_kernel(attr.rdev),
        blksize: BLOCK_SIZE as u32,
        flags: 0,
    }
}

/// Sectors of 512 bytes that the kernel reports. A file with a size has at least one. A mapping, or the kernel's
/// writeback cache, may hold content without a block yet, and tar(1) takes a file without blocks for one hole. With
/// that cache the kernel sets the size of a file by itself, and keeps these sectors.
fn sectors(attr: &Attr, writeback: bool) -> u64 {
    let may_have_pages = attr.kind == FileKind::Regular && (attr.size > 0 || writeback);
    attr.allocated.div_ceil(512).max(u64::from(may_have_pages))
}

/// A time for a reply; `fuser` encodes each of these exactly.
pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    if time.secs >= 0 {
        UNIX_EPOCH + Duration::new(time.secs as u64, time.nanos)
    } else {
        UNIX_EPOCH - Duration::from_secs(time.secs.unsigned_abs())
            + Duration::from_nanos(u64::from(time.nanos))
    }
}

/// A time of a request. `fuser` 0.18 decodes a time before 1970 as `secs - nanos`, although the protocol means `secs +
/// nanos`. The result is therefore split into the two numbers of the request again.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp::new(i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let secs = i64::try_from(before.as_secs()).map_or(i64::MIN, |secs| -secs);
            Timestamp::new(secs, before.subsec_nanos())
        }
    }
}

/// A time of a request, or the time now.
pub(crate) fn time_or_now(time: Option<TimeOrNow>, now: impl FnOnce() -> Timestamp) -> Option<Timestamp> {
    match time? {
        TimeOrNow::SpecificTime(time) => Some(timestamp(time)),
        TimeOrNow::Now => Some(now()),
    }
}

/// A device number in the kernel's 32 bits (`new_encode_dev`).
pub(crate) fn rdev_to_kernel(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// A device number from the kernel's 32 bits.
pub(crate) fn rdev_from_kernel(rdev: u32) -> u64 {
    let major = (rdev & 0xf_ff00) >> 8;
    let minor = (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00);
    libc::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use nacre_engine::{FileKind, Timestamp};

    use super::{file_type, kind_of_mode, rdev_from_kernel, rdev_to_kernel, system_time, timestamp};

    /// What `fuser` 0.18 makes of the two numbers of a SETATTR request.
    fn decoded_by_fuser(secs: i64, nanos: u32) -> std::time::SystemTime {
        if secs >= 0 {
            UNIX_EPOCH + Duration::new(secs as u64, nanos)
        } else {
            UNIX_EPOCH - Duration::new(secs.unsigned_abs(), nanos)
        }
    }

    #[test]
    fn times_before_1970_survive_the_decoder() {
        for (secs, nanos) in
            [(0, 0), (0, 1), (1, 999_999_999), (-1, 0), (-1, 1), (-2, 800_000_000), (-86_400, 5)]
        {
            assert_eq!(
                timestamp(decoded_by_fuser(secs, nanos)),
                Timestamp::new(secs, nanos),
                "{secs} {nanos}"
            );
        }
    }

    #[test]
    fn times_of_replies_are_exact() {
        let before = system_time(Timestamp::new(-2, 800_000_000));
        assert_eq!(before, UNIX_EPOCH - Duration::new(1, 200_000_000));
        assert_eq!(system_time(Timestamp::new(7, 9)), UNIX_EPOCH + Duration::new(7, 9));
    }

    #[test]
    fn times_beyond_the_format_are_kept_for_who_refuses_them() {
        for secs in [1 << 40, -(1 << 40), i64::MAX] {
            assert_eq!(timestamp(decoded_by_fuser(secs, 7)), Timestamp::new(secs, 7));
        }
        assert_eq!(timestamp(decoded_by_fuser(i64::MIN, 0)), Timestamp::new(i64::MIN, 0));
    }

    #[test]
    fn device_numbers_come_back() {
        for (major, minor) in [(0, 0), (8, 1), (259, 3), (10, 229), (0xfff, 0xf_ffff)] {
            let rdev = libc::makedev(major, minor);
            assert_eq!(rdev_from_kernel(rdev_to_kernel(rdev)), rdev);
        }
        assert_eq!(rdev_to_kernel(libc::makedev(1, 3)), 0x103);
    }

    #[test]
    fn kinds_of_modes() {
        assert_eq!(kind_of_mode(0o644), Some(FileKind::Regular));
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o600), Some(FileKind::Fifo));
        assert_eq!(kind_of_mode(0o170000), None);
        assert_eq!(file_type(FileKind::Fifo), fuser::FileType::NamedPipe);
    }
}
