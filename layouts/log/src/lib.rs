//! The log layout: a log of self-validating entries per inode, copy-on-write data.
