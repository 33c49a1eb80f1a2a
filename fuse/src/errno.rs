//! Conversion from the kinds of nacre's errors to the error numbers of the kernel, in one table.

use fuser::Errno;
use nacre_engine::{Error, Kind};

/// The error number for a caller of the kernel.
pub(crate) fn errno(error: &Error) -> Errno {
    match error.kind() {
        Kind::NotFound => Errno::ENOENT,
        Kind::Exists => Errno::EEXIST,
        Kind::NotDirectory => Errno::ENOTDIR,
        Kind::IsDirectory => Errno::EISDIR,
        Kind::NotEmpty => Errno::ENOTEMPTY,
        Kind::NameTooLong => Errno::ENAMETOOLONG,
        Kind::InvalidInput => Errno::EINVAL,
        Kind::NoSpace => Errno::ENOSPC,
        Kind::FileTooBig => Errno::EFBIG,
        Kind::AccessDenied => Errno::EACCES,
        Kind::NotPermitted => Errno::EPERM,
        Kind::ReadOnly => Errno::EROFS,
        Kind::CrossDevice => Errno::EXDEV,
        Kind::TooManyLinks => Errno::EMLINK,
        Kind::TooManySymlinks => Errno::ELOOP,
        Kind::NoAttribute => Errno::ENODATA,
        Kind::BufferTooSmall => Errno::ERANGE,
        // setxattr(2): the value is larger than the file system allows.
        Kind::TooBig => Errno::E2BIG,
        Kind::Stale => Errno::ESTALE,
        // EOPNOTSUPP and not ENOSYS: from ENOSYS the kernel concludes that the server does not know the whole request.
        Kind::Unsupported => Errno::EOPNOTSUPP,
        Kind::Busy => Errno::EBUSY,
        Kind::BadHandle => Errno::EBADF,
        Kind::NoSuchOffset => Errno::ENXIO,
        // As ext4 and XFS report it (EFSCORRUPTED).
        Kind::Corrupt => Errno::from_i32(libc::EUCLEAN),
        Kind::Media | Kind::DeviceLost | Kind::Io => {
            error.raw_os_error().filter(|code| *code != libc::ENOSYS).map_or(Errno::EIO, Errno::from_i32)
        }
        // New kinds may come; a kind without a number yet is an error of the device to a caller.
        _ => Errno::EIO,
    }
}

/// Whether the failure concerns the device and not the request.
pub(crate) fn is_alarming(kind: Kind) -> bool {
    matches!(kind, Kind::Corrupt | Kind::Media | Kind::DeviceLost | Kind::Io)
}

#[cfg(test)]
mod tests {
    use fuser::Errno;
    use nacre_engine::{Error, Kind};

    use super::{errno, is_alarming};

    #[test]
    fn each_kind_has_its_number() {
        let table = [
            (Kind::NotFound, libc::ENOENT),
            (Kind::Exists, libc::EEXIST),
            (Kind::NotDirectory, libc::ENOTDIR),
            (Kind::IsDirectory, libc::EISDIR),
            (Kind::NotEmpty, libc::ENOTEMPTY),
            (Kind::NameTooLong, libc::ENAMETOOLONG),
            (Kind::InvalidInput, libc::EINVAL),
            (Kind::NoSpace, libc::ENOSPC),
            (Kind::FileTooBig, libc::EFBIG),
            (Kind::AccessDenied, libc::EACCES),
            (Kind::NotPermitted, libc::EPERM),
            (Kind::ReadOnly, libc::EROFS),
            (Kind::CrossDevice, libc::EXDEV),
            (Kind::TooManyLinks, libc::EMLINK),
            (Kind::TooManySymlinks, libc::ELOOP),
            (Kind::NoAttribute, libc::ENODATA),
            (Kind::BufferTooSmall, libc::ERANGE),
            (Kind::TooBig, libc::E2BIG),
            (Kind::Stale, libc::ESTALE),
            (Kind::Unsupported, libc::EOPNOTSUPP),
            (Kind::Busy, libc::EBUSY),
            (Kind::BadHandle, libc::EBADF),
            (Kind::NoSuchOffset, libc::ENXIO),
            (Kind::Corrupt, libc::EUCLEAN),
            (Kind::Media, libc::EIO),
            (Kind::DeviceLost, libc::EIO),
            (Kind::Io, libc::EIO),
        ];
        for (kind, number) in table {
            assert_eq!(errno(&Error::new(kind)).code(), number, "{kind:?}");
        }
    }

    #[test]
    fn an_error_of_the_system_keeps_its_number() {
        let full = std::io::Error::from_raw_os_error(libc::EDQUOT);
        assert_eq!(errno(&Error::io("write", "tier 1", full)).code(), libc::EDQUOT);
    }

    #[test]
    fn no_error_makes_the_kernel_give_up_a_request() {
        let unknown = std::io::Error::from_raw_os_error(libc::ENOSYS);
        assert_eq!(errno(&Error::io("ioctl", "tier 1", unknown)), Errno::EIO);
        assert_ne!(errno(&Error::new(Kind::Unsupported)), Errno::ENOSYS);
    }

    #[test]
    fn only_failures_of_the_device_alarm() {
        assert!(is_alarming(Kind::Corrupt) && is_alarming(Kind::Media));
        assert!(!is_alarming(Kind::NotFound) && !is_alarming(Kind::NoSpace));
    }
}
