//! The one error type of the whole system.

use std::fmt;

use crate::reclaim::{Resource, Shortage};

/// The result of every fallible operation of nacre.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kinds of errors, as a caller can act on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The name or object does not exist.
    NotFound,
    /// The name exists already.
    Exists,
    /// A component of the path, or the object, is not a directory.
    NotDirectory,
    /// The object is a directory where none is allowed.
    IsDirectory,
    /// The directory still has entries.
    NotEmpty,
    /// A name is longer than 255 bytes or a path longer than 4095.
    NameTooLong,
    /// An argument is invalid for this operation.
    InvalidInput,
    /// No space is left on the device (or only the reserve that keeps it deletable).
    NoSpace,
    /// The offset or size is beyond the largest file.
    FileTooBig,
    /// The permission bits forbid it.
    AccessDenied,
    /// The caller lacks the privilege, or a flag (immutable, append-only) forbids it.
    NotPermitted,
    /// The file system is mounted read-only.
    ReadOnly,
    /// The two objects are on different file systems.
    CrossDevice,
    /// The inode has as many links as it can.
    TooManyLinks,
    /// More symbolic links than a path may have.
    TooManySymlinks,
    /// The extended attribute does not exist.
    NoAttribute,
    /// The value does not fit the caller's buffer.
    BufferTooSmall,
    /// The value (an attribute, a list) is larger than the file system can hold.
    TooBig,
    /// The inode that was named is gone, or its number was given to another.
    Stale,
    /// The layout or this build cannot do it.
    Unsupported,
    /// The object is in use in a way that forbids it.
    Busy,
    /// The handle is not open for this operation.
    BadHandle,
    /// No data or hole at or after the offset.
    NoSuchOffset,
    /// Data on media contradicts the format.
    Corrupt,
    /// The media reported an uncorrectable error for this range.
    Media,
    /// The blocks are not resident: they are on a tier, which a layout does not read.
    Elsewhere,
    /// The device is gone or was truncated.
    DeviceLost,
    /// The operating system refused an operation; see the source.
    Io,
}

impl Kind {
    /// The kind in words, as in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::NotFound => "no such file or directory",
            Kind::Exists => "it exists already",
            Kind::NotDirectory => "not a directory",
            Kind::IsDirectory => "is a directory",
            Kind::NotEmpty => "the directory is not empty",
            Kind::NameTooLong => "the name is too long",
            Kind::InvalidInput => "invalid argument",
            Kind::NoSpace => "no space left on the device",
            Kind::FileTooBig => "beyond the largest file size",
            Kind::AccessDenied => "permission denied",
            Kind::NotPermitted => "operation not permitted",
            Kind::ReadOnly => "the file system is read-only",
            Kind::CrossDevice => "on another file system",
            Kind::TooManyLinks => "too many links",
            Kind::TooManySymlinks => "too many levels of symbolic links",
            Kind::NoAttribute => "no such attribute",
            Kind::BufferTooSmall => "the buffer is too small",
            Kind::TooBig => "too big to store",
            Kind::Stale => "the inode is gone",
            Kind::Unsupported => "not supported",
            Kind::Busy => "in use",
            Kind::BadHandle => "the handle is not open for this",
            Kind::NoSuchOffset => "no data or hole at that offset",
            Kind::Corrupt => "the file system is damaged",
            Kind::Media => "uncorrectable media error",
            Kind::Elsewhere => "the blocks are on a tier",
            Kind::DeviceLost => "the device is gone",
            Kind::Io => "input/output error",
        }
    }
}

/// Kind, operation, object and source of a failure.
///
/// An error of a bare kind does not allocate, so expected failures (a lookup of an absent name) cost nothing. Neither does
/// a lack of space.
pub struct Error {
    kind: Kind,
    /// The resource that is short, and the number of blocks that were asked for.
    short: Option<Resource>,
    blocks: u32,
    detail: Option<Box<Detail>>,
}

#[derive(Debug, Default)]
struct Detail {
    operation: &'static str,
    object: String,
    advice: &'static str,
    /// The object names the cause.
    is_cause: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind without details.
    pub const fn new(kind: Kind) -> Error {
        Error { kind, short: None, blocks: 0, detail: None }
    }

    /// A lack of space: the resource that is short, and the number of blocks that were asked for.
    pub fn no_space(of: Resource, blocks: u64) -> Error {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        Error { short: Some(of), blocks, ..Error::new(Kind::NoSpace) }
    }

    /// A structure on media that contradicts the format: which one, and how.
    pub fn corrupt(object: impl Into<String>) -> Error {
        Error::new(Kind::Corrupt).object(object)
    }

    /// A failed call to the operating system.
    pub fn io(operation: &'static str, object: impl Into<String>, source: std::io::Error) -> Error {
        Error::new(Kind::Io).operation(operation).object(object).source(source)
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The shortage of a lack of space, if it is known.
    pub fn shortage(&self) -> Option<Shortage> {
        self.short.map(|of| Shortage { of, blocks: u64::from(self.blocks) })
    }

    /// The object of the failed operation, empty if unknown.
    pub fn object_name(&self) -> &str {
        self.detail.as_ref().map_or("", |d| &d.object)
    }

    /// The error number of the underlying call to the operating system, if there was one.
    pub fn raw_os_error(&self) -> Option<i32> {
        let source = self.detail.as_ref()?.source.as_ref()?;
        source.downcast_ref::<std::io::Error>()?.raw_os_error()
    }

    /// Sets the operation that failed, unless one is set.
    #[must_use]
    pub fn operation(mut self, operation: &'static str) -> Error {
        let detail = self.detail.get_or_insert_default();
        if detail.operation.is_empty() {
            detail.operation = operation;
        }
        self
    }

    /// Sets the object that it failed on, unless one is set.
    #[must_use]
    pub fn object(mut self, object: impl Into<String>) -> Error {
        let detail = self.detail.get_or_insert_default();
        if detail.object.is_empty() {
            detail.object = object.into();
        }
        self
    }

    /// The object names the cause, so that messages leave out the words of the kind, which would be untrue.
    #[must_use]
    pub fn by_object(mut self) -> Error {
        self.detail.get_or_insert_default().is_cause = true;
        self
    }

    /// Sets advice for the user.
    #[must_use]
    pub fn advice(mut self, advice: &'static str) -> Error {
        self.detail.get_or_insert_default().advice = advice;
        self
    }

    /// Adds the underlying cause.
    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.detail.get_or_insert_default().source = Some(source.into());
        self
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error::new(kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(detail) = &self.detail {
            if !detail.operation.is_empty() {
                write!(f, "{}: ", detail.operation)?;
            }
            if detail.is_cause && !detail.object.is_empty() {
                f.write_str(&detail.object)?;
                return if detail.advice.is_empty() { Ok(()) } else { write!(f, "; {}", detail.advice) };
            }
            if !detail.object.is_empty() {
                write!(f, "{}: ", detail.object)?;
            }
        }
        // Object and advice name the cause and the remedy; the kind adds nothing.
        if let Some(Detail { object, advice, source: None, .. }) = self.detail.as_deref()
            && self.kind == Kind::InvalidInput
            && !object.is_empty()
            && !advice.is_empty()
        {
            return f.write_str(advice);
        }
        let source = self.detail.as_ref().and_then(|detail| detail.source.as_ref());
        let source = source.map(|source| without_number(source.to_string()));
        match source {
            // The kind adds nothing.
            Some(source) if self.kind == Kind::Io => f.write_str(&source)?,
            Some(source) => write!(f, "{} ({source})", self.kind.as_str())?,
            None => f.write_str(self.kind.as_str())?,
        }
        if let Some(shortage) = self.shortage() {
            write!(f, " ({shortage})")?;
        }
        if let Some(detail) = &self.detail
            && !detail.advice.is_empty()
        {
            write!(f, "; {}", detail.advice)?;
        }
        Ok(())
    }
}

/// Removes the error numbers with which the standard library ends errors of the operating system: `(os error 2)`.
pub fn without_number(mut text: String) -> String {
    const MARK: &str = " (os error ";
    while let Some(start) = text.find(MARK)
        && let Some(len) = text[start + MARK.len()..].find(')')
        && text[start + MARK.len()..][..len].bytes().all(|byte| byte.is_ascii_digit())
    {
        text.replace_range(start..start + MARK.len() + len + 1, "");
    }
    text
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.detail.as_ref()?.source.as_ref()?;
        Some(source.as_ref())
    }
}

/// For readers and writers of the standard library. The error stays inside, and [`std::io::Error::downcast`] returns
/// it.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        use std::io::ErrorKind;
        let kind = match error.kind {
            Kind::NotFound => ErrorKind::NotFound,
            Kind::Exists => ErrorKind::AlreadyExists,
            Kind::NotDirectory => ErrorKind::NotADirectory,
            Kind::IsDirectory => ErrorKind::IsADirectory,
            Kind::NotEmpty => ErrorKind::DirectoryNotEmpty,
            Kind::NameTooLong => ErrorKind::InvalidFilename,
            Kind::InvalidInput | Kind::BufferTooSmall => ErrorKind::InvalidInput,
            Kind::NoSpace => ErrorKind::StorageFull,
            Kind::FileTooBig | Kind::TooBig => ErrorKind::FileTooLarge,
            Kind::AccessDenied | Kind::NotPermitted => ErrorKind::PermissionDenied,
            Kind::ReadOnly => ErrorKind::ReadOnlyFilesystem,
            Kind::CrossDevice => ErrorKind::CrossesDevices,
            Kind::TooManyLinks => ErrorKind::TooManyLinks,
            Kind::Stale => ErrorKind::StaleNetworkFileHandle,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::Busy => ErrorKind::ResourceBusy,
            Kind::Corrupt => ErrorKind::InvalidData,
            _ => ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, Kind, without_number};

    #[test]
    fn a_message_names_operation_object_cause_and_way_out() {
        let error = Error::new(Kind::Busy).operation("mount").object("/dev/pmem0").advice("unmount it first");
        assert_eq!(error.to_string(), "mount: /dev/pmem0: in use; unmount it first");
    }

    #[test]
    fn an_argument_is_said_to_be_invalid_only_where_nothing_else_is() {
        let invalid = || Error::new(Kind::InvalidInput).operation("mkfs");
        let named = invalid().object("a size of 1 byte");
        assert_eq!(named.to_string(), "mkfs: a size of 1 byte: invalid argument");
        let error = named.advice("give a multiple of 4096");
        assert_eq!(error.to_string(), "mkfs: a size of 1 byte: give a multiple of 4096");
        assert_eq!(invalid().advice("give a size").to_string(), "mkfs: invalid argument; give a size");
    }

    /// An older copy of a tier was said to be damage of the file system.
    #[test]
    fn a_cause_that_the_object_names_is_not_said_in_other_words() {
        let error = Error::corrupt("tier 1: it is an older copy").operation("attach").by_object();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (Kind::Corrupt, "attach: tier 1: it is an older copy")
        );
        assert_eq!(
            error.advice("give the other").to_string(),
            "attach: tier 1: it is an older copy; give the other"
        );
    }

    #[test]
    fn the_innermost_name_stays() {
        let error = Error::corrupt("inode 7").object("file system").operation("read");
        assert_eq!(error.to_string(), "read: inode 7: the file system is damaged");
    }

    #[test]
    fn no_message_has_numbers_of_the_operating_system() {
        let busy = || std::io::Error::from_raw_os_error(16);
        let error = Error::new(Kind::Media).object("a").source(busy());
        assert_eq!(error.to_string(), "a: uncorrectable media error (Device or resource busy)");
        assert_eq!(Error::io("open", "a", busy()).to_string(), "open: a: Device or resource busy");
        assert_eq!(without_number("b (os error 2): c (os error x)".into()), "b: c (os error x)");
    }

    #[test]
    fn a_bare_error_is_small() {
        assert!(size_of::<Error>() <= 16);
    }
}
