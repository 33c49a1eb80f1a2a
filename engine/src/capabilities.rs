//! The capabilities of a layout.

/// The capabilities of a layout, which select the tests of the behaviour suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Every operation is durable when it returns.
    pub durable_on_return: bool,
    /// A write of any size is all or nothing after a crash. On a full device an overwrite is atomic in pieces only. If
    /// even its metadata finds no space, it is not atomic.
    pub atomic_write: bool,
    /// A rename is all or nothing after a crash, across directories and with exchange.
    pub atomic_rename: bool,
    /// Largest size of a file in bytes.
    pub max_file_size: u64,
    /// Largest value of an extended attribute in bytes.
    pub max_xattr_size: usize,
}
