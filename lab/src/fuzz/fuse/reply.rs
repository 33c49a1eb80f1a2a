//! Replies: the checks of the kernel before it accepts one.

use super::note_success;
use super::request::{self, Known, Message};

/// Bytes of a reply's header.
const HEADER: usize = 16;
/// The largest number that the kernel takes for an error.
const MAX_ERROR: i32 = 511;
/// Bytes of an entry: node, generation, lifetimes, attributes.
const ENTRY: usize = 128;
/// Where the attributes of an entry are, and those of a reply to GETATTR.
const ATTR_IN_ENTRY: usize = 40;
const ATTR_IN_REPLY: usize = 16;
/// Node ids and cookies that are remembered.
const MAX_KNOWN: usize = 200;

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Which request a reply answers.
pub(super) fn unique(reply: &[u8]) -> Option<u64> {
    u64_at(reply, 8)
}

/// Holds a reply to the rules of the protocol, and learns from it.
pub(super) fn check(message: &Message, reply: &[u8], known: &mut Known) -> Result<(), &'static str> {
    let (Some(len), Some(error), Some(unique)) = (u32_at(reply, 0), u32_at(reply, 4), unique(reply)) else {
        return Err("a reply without a header");
    };
    if len as usize != reply.len() {
        return Err("a reply of another length than it says");
    }
    if unique != message.unique {
        return Err("a reply to another request");
    }
    let error = error.cast_signed();
    if !(-MAX_ERROR..=0).contains(&error) {
        return Err("an error number that the kernel does not take");
    }
    let body = &reply[HEADER..];
    if error != 0 {
        return if body.is_empty() { Ok(()) } else { Err("an error with a body") };
    }
    note_success(message.opcode());
    success(message, body, known)
}

fn success(message: &Message, body: &[u8], known: &mut Known) -> Result<(), &'static str> {
    let exactly = |len| if body.len() == len { Ok(()) } else { Err("a body of the wrong length") };
    let at_most = |len: u32| if body.len() <= len as usize { Ok(()) } else { Err("more than was asked for") };
    match message.opcode() {
        request::LOOKUP => {
            exactly(ENTRY)?;
            // The node 0 says for how long the name is known to be absent.
            if u64_at(body, 0) == Some(0) { Ok(()) } else { entry(body, known) }
        }
        request::MKNOD | request::MKDIR | request::SYMLINK | request::LINK => {
            exactly(ENTRY)?;
            entry(body, known)
        }
        request::CREATE => {
            exactly(ENTRY + 16)?;
            entry(body, known)
        }
        request::GETATTR | request::SETATTR => {
            exactly(ATTR_IN_REPLY + 88)?;
            attributes(&body[ATTR_IN_REPLY..])
        }
        request::OPEN | request::OPENDIR => exactly(16),
        request::READ => at_most(message.in_body(16)),
        request::READLINK => at_most(4096),
        request::WRITE => {
            exactly(8)?;
            let asked = message.in_body(16);
            if u32_at(body, 0).is_some_and(|done| done <= asked) { Ok(()) } else { Err("more was written") }
        }
        request::COPY_FILE_RANGE | request::LSEEK => exactly(8),
        request::STATFS => exactly(80),
        request::GETXATTR | request::LISTXATTR => match message.in_body(0) {
            0 => exactly(8),
            size => at_most(size),
        },
        request::READDIR => {
            at_most(message.in_body(16))?;
            list(body, 0, known)
        }
        request::READDIRPLUS => {
            at_most(message.in_body(16))?;
            list(body, ENTRY, known)
        }
        request::IOCTL if body.len() >= 16 => at_most(message.in_body(28).saturating_add(16)),
        request::UNLINK
        | request::RMDIR
        | request::RENAME
        | request::RENAME2
        | request::RELEASE
        | request::RELEASEDIR
        | request::FSYNC
        | request::FSYNCDIR
        | request::SETXATTR
        | request::REMOVEXATTR
        | request::FLUSH
        | request::ACCESS
        | request::DESTROY
        | request::FALLOCATE => exactly(0),
        _ => Err("what nacre does not have was done"),
    }
}

fn entry(entry: &[u8], known: &mut Known) -> Result<(), &'static str> {
    let node = u64_at(entry, 0).ok_or("half an entry")?;
    if node == 0 || u64_at(entry, ATTR_IN_ENTRY) != Some(node) {
        return Err("an entry with a wrong node id");
    }
    if known.nodes.len() < MAX_KNOWN && !known.nodes.contains(&node) {
        known.nodes.push(node);
    }
    attributes(&entry[ATTR_IN_ENTRY..])
}

fn attributes(attr: &[u8]) -> Result<(), &'static str> {
    let (Some(size), Some(mode)) = (u64_at(attr, 8), u32_at(attr, 60)) else { return Err("half attributes") };
    let is_kind = matches!(mode >> 12, 0o1 | 0o2 | 0o4 | 0o6 | 0o10 | 0o12 | 0o14);
    if !is_kind || mode >> 16 != 0 {
        return Err("attributes of no kind of file");
    }
    let nanos = [48, 52, 56].iter().all(|at| u32_at(attr, *at).is_some_and(|nanos| nanos < 1_000_000_000));
    if !nanos {
        return Err("nanoseconds beyond a second");
    }
    if size > i64::MAX as u64 { Err("a size that the kernel does not take") } else { Ok(()) }
}

/// The entries of a directory, each after `before` bytes of its own.
fn list(mut body: &[u8], before: usize, known: &mut Known) -> Result<(), &'static str> {
    const FIXED: usize = 24;
    while !body.is_empty() {
        let (Some(number), Some(cookie), Some(len)) =
            (u64_at(body, before), u64_at(body, before + 8), u32_at(body, before + 16))
        else {
            return Err("half an entry of a directory");
        };
        let start = before + FIXED;
        let name = body.get(start..start + len as usize).ok_or("a name beyond the reply")?;
        if name.is_empty() || name.len() > 255 || name.contains(&b'/') || name.contains(&0) {
            return Err("a name that the kernel does not take");
        }
        if number == 0 || cookie == 0 || cookie > i64::MAX as u64 {
            return Err("an entry of a directory with a wrong number");
        }
        if known.cookies.len() < MAX_KNOWN {
            known.cookies.push(cookie);
        }
        if before > 0 && !matches!(name, b"." | b"..") {
            entry(body, known)?;
        }
        let whole = (start + name.len()).next_multiple_of(8);
        body = body.get(whole..).ok_or("an entry of a directory that is not padded")?;
    }
    Ok(())
}
