//! Requests: a header of 40 bytes and the opcode's own bytes, most of them of the right form.
//!
//! A request is taken from the input as opcode (1), node (1), form (1), caller (1), and then field by field. Requests
//! that a kernel cannot send and that `fuser` 0.18 answers with a panic are put right by [`tame`].

use crate::fuzz::Input;

pub(super) const LOOKUP: u32 = 1;
pub(super) const FORGET: u32 = 2;
pub(super) const GETATTR: u32 = 3;
pub(super) const SETATTR: u32 = 4;
pub(super) const READLINK: u32 = 5;
pub(super) const SYMLINK: u32 = 6;
pub(super) const MKNOD: u32 = 8;
pub(super) const MKDIR: u32 = 9;
pub(super) const UNLINK: u32 = 10;
pub(super) const RMDIR: u32 = 11;
pub(super) const RENAME: u32 = 12;
pub(super) const LINK: u32 = 13;
pub(super) const OPEN: u32 = 14;
pub(super) const READ: u32 = 15;
pub(super) const WRITE: u32 = 16;
pub(super) const STATFS: u32 = 17;
pub(super) const RELEASE: u32 = 18;
pub(super) const FSYNC: u32 = 20;
pub(super) const SETXATTR: u32 = 21;
pub(super) const GETXATTR: u32 = 22;
pub(super) const LISTXATTR: u32 = 23;
pub(super) const REMOVEXATTR: u32 = 24;
pub(super) const FLUSH: u32 = 25;
const INIT: u32 = 26;
pub(super) const OPENDIR: u32 = 27;
pub(super) const READDIR: u32 = 28;
pub(super) const RELEASEDIR: u32 = 29;
pub(super) const FSYNCDIR: u32 = 30;
const GETLK: u32 = 31;
const SETLKW: u32 = 33;
pub(super) const ACCESS: u32 = 34;
pub(super) const CREATE: u32 = 35;
const INTERRUPT: u32 = 36;
const BMAP: u32 = 37;
pub(super) const DESTROY: u32 = 38;
pub(super) const IOCTL: u32 = 39;
const POLL: u32 = 40;
const BATCH_FORGET: u32 = 42;
pub(super) const FALLOCATE: u32 = 43;
pub(super) const READDIRPLUS: u32 = 44;
pub(super) const RENAME2: u32 = 45;
pub(super) const LSEEK: u32 = 46;
pub(super) const COPY_FILE_RANGE: u32 = 47;
/// The last opcode that an input's byte stands for itself; `fuser` does not know SYNCFS, TMPFILE and STATX.
const LAST_OPCODE: u8 = 53;

/// Bytes of a request's header.
const HEADER: usize = 40;
/// The node id of the root.
const ROOT: u64 = 1;
/// The largest read whose reply surely fits a message of the socket.
const SURE_READ: u32 = 128 << 10;
/// Bytes of content in one request at most.
const MAX_CONTENT: usize = 100 << 10;

/// Numbers that mean something at a limit.
const LIMITS: [u64; 16] = [
    0,
    1,
    511,
    4095,
    4096,
    4097,
    1 << 16,
    1 << 20,
    (1 << 20) + 1,
    2 << 20,
    16 << 20,
    (16 << 40) - 4096,
    16 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

const NAMES: [&[u8]; 20] = [
    b"dir",
    b"deep",
    b"file",
    b"second",
    b"link",
    b"long",
    b"fifo",
    b"empty",
    b"moved",
    b"new",
    b"newer",
    b"",
    b".",
    b"..",
    b"...",
    b"a/b",
    b"/",
    b"\xff\xfe",
    b"1-nn",
    b"lost+found",
];

const ATTRIBUTES: [&[u8]; 18] = [
    b"user.small",
    b"user.large",
    b"user.new",
    b"user.",
    b"trusted.new",
    b"security.capability",
    b"security.new",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
    b"system.nacre.info",
    b"system.nacre.scrub",
    b"system.nacre.extents",
    b"system.nacre.extents.7",
    b"system.nacre.extents.4294967296",
    b"system.nacre.extents.18446744073709551615",
    b"system.nacre.",
    b"system.unknown",
    b"",
];

/// `FS_IOC_{GET,SET}FLAGS`, `FS_IOC_FS{GET,SET}XATTR`, `FS_IOC_GETVERSION`.
const COMMANDS: [u32; 5] = [0x8008_6601, 0x4008_6602, 0x801c_581f, 0x401c_5820, 0x8008_7601];

/// Node ids and directory cookies from earlier replies.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Node ids that the server gave out.
    pub(super) nodes: Vec<u64>,
    /// Where directories can be read on from.
    pub(super) cookies: Vec<u64>,
}

/// Whether a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Always,
    Never,
    /// The reply may be too large for the socket.
    Perhaps,
    /// It is no request, and ends the connection.
    Ends,
}

/// A request as it is sent.
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    pub(super) unique: u64,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = self.body();
        let shown = &body[..body.len().min(200)];
        write!(f, "request {} of opcode {}, body {shown:02x?}", self.unique, self.opcode())
    }
}

impl Message {
    /// A request of no more than its header, on the root.
    pub(super) fn plain(opcode: u32, unique: u64) -> Message {
        Message::new(opcode, unique, ROOT, 0, &[])
    }

    fn new(opcode: u32, unique: u64, node: u64, uid: u32, body: &[u8]) -> Message {
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend(((HEADER + body.len()) as u32).to_le_bytes());
        bytes.extend(opcode.to_le_bytes());
        bytes.extend(unique.to_le_bytes());
        bytes.extend(node.to_le_bytes());
        bytes.extend([uid, uid, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(body);
        Message { bytes, unique }
    }

    pub(super) fn opcode(&self) -> u32 {
        self.number(4)
    }

    /// The length in the header.
    fn len(&self) -> usize {
        self.number(0) as usize
    }

    /// The bytes after the header that the server sees.
    pub(super) fn body(&self) -> &[u8] {
        &self.bytes[HEADER..self.len().clamp(HEADER, self.bytes.len())]
    }

    /// The number at this place of the body, 0 beyond its end.
    pub(super) fn in_body(&self, offset: usize) -> u32 {
        let bytes = self.body().get(offset..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn number(&self, offset: usize) -> u32 {
        self.bytes[offset..].first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn answer(&self) -> Answer {
        let body = self.body().len();
        let forgotten = self.in_body(0) as usize;
        match self.opcode() {
            _ if self.len() > self.bytes.len() => Answer::Ends,
            FORGET if body >= 8 => Answer::Never,
            BATCH_FORGET if body >= 8 && (body - 8) / 16 >= forgotten => Answer::Never,
            READ if self.in_body(16) > SURE_READ => Answer::Perhaps,
            _ => Answer::Always,
        }
    }
}

/// Field by field, little-endian.
struct Body<'a, 'd> {
    bytes: Vec<u8>,
    input: &'a mut Input<'d>,
    known: &'a Known,
}

impl Body<'_, '_> {
    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Four bytes of the input.
    fn any(&mut self) -> &mut Self {
        let bytes: [u8; 4] = self.input.take();
        self.bytes.extend(bytes);
        self
    }

    /// A size or an offset.
    fn size(&mut self) -> &mut Self {
        let value = number(self.input);
        self.u64(value)
    }

    fn short_size(&mut self) -> &mut Self {
        let value = number(self.input);
        self.u32(u32::try_from(value).unwrap_or(u32::MAX))
    }

    fn node(&mut self) -> &mut Self {
        let node = node(self.input, self.known);
        self.u64(node)
    }

    /// One of these, or any.
    fn one_of(&mut self, values: &[u32]) -> &mut Self {
        match values.get(usize::from(self.input.byte())) {
            Some(value) => self.u32(*value),
            None => self.any(),
        }
    }

    fn name(&mut self, names: &[&[u8]]) -> &mut Self {
        let index = usize::from(self.input.byte());
        match index - index.min(names.len()) {
            _ if index < names.len() => self.bytes.extend(names[index]),
            0 => self.bytes.extend([b'n'; 255]),
            1 => self.bytes.extend([b'n'; 256]),
            2 => self.bytes.extend([b'n'; 5000]),
            _ => self.raw(64),
        }
        self.bytes.push(0);
        self
    }

    fn raw(&mut self, most: u8) {
        for _ in 0..self.input.byte() % most {
            let byte = self.input.byte();
            self.bytes.push(byte);
        }
    }

    /// Content: as many of one byte as a size says, or bytes of the input.
    fn content(&mut self) {
        match self.input.byte() {
            0xff => self.raw(u8::MAX),
            fill => {
                let len = number(self.input).min(MAX_CONTENT as u64) as usize;
                self.bytes.extend(std::iter::repeat_n(fill, len));
            }
        }
    }
}

fn number(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        index @ 0..16 => LIMITS[usize::from(index)],
        16..128 => u64::from(input.short()),
        _ => input.word(),
    }
}

fn node(input: &mut Input<'_>, known: &Known) -> u64 {
    match input.byte() {
        0 => ROOT,
        0xff => input.word(),
        index => {
            let index = usize::from(index) - 1;
            known.nodes.get(index % known.nodes.len().max(1)).copied().unwrap_or(index as u64)
        }
    }
}

/// The first request, and whether it is one that a kernel of today sends.
pub(super) fn init(input: &mut Input<'_>, unique: u64) -> (Message, bool) {
    let selector = input.byte();
    let usual = selector < 0xf0;
    let mut body = Vec::new();
    if usual {
        // Offers: everything but OPEN and OPENDIR without messages, where a bit of the selector is set.
        let withheld = [(1, 1u32 << 17), (2, 1 << 24)];
        let flags = withheld
            .iter()
            .filter(|(bit, _)| selector & bit != 0)
            .fold(u32::MAX, |all, (_, flag)| all & !flag);
        body.extend([7, 45, 1 << 17, flags, u32::MAX].iter().flat_map(|word| word.to_le_bytes()));
        body.resize(64, 0);
    } else {
        body.extend(input.take::<20>());
        body.truncate(usize::from(selector & 0xf) * 4);
    }
    (Message::new(INIT, unique, 0, 0, &body), usual)
}

/// A request.
pub(super) fn make(input: &mut Input<'_>, known: &Known, unique: u64) -> Message {
    let opcode = match input.byte() {
        0xff => u32::from_le_bytes(input.take()),
        byte => u32::from(byte % (LAST_OPCODE + 1)),
    };
    // Inputs end the connection by ending.
    let opcode = if opcode == DESTROY { STATFS } else { opcode };
    let node = node(input, known);
    let form = input.byte();
    let uid = match input.byte() {
        0..0x80 => 0,
        0xff => u32::MAX,
        uid => 1000 + u32::from(uid & 1),
    };
    let mut body = Body { bytes: Vec::new(), input, known };
    fill(opcode, &mut body);
    let mut bytes = body.bytes;
    match form {
        0xf0..0xf8 => bytes.truncate(bytes.len().saturating_sub(usize::from(input.byte()))),
        0xf8..0xfc => bytes.extend(std::iter::repeat_n(form, usize::from(input.byte()))),
        _ => {}
    }
    let mut message = Message::new(opcode, unique, node, uid, &bytes);
    if form >= 0xfc {
        let len = if form == 0xff { u32::from_le_bytes(input.take()) } else { u32::from(input.short()) };
        message.put(0, &len.to_le_bytes());
    }
    tame(&mut message);
    message
}

/// The opcode's own bytes.
fn fill(opcode: u32, body: &mut Body<'_, '_>) {
    const MODES: [u32; 8] =
        [0o100_644, 0o40_755, 0o10_600, 0o20_600, 0o60_600, 0o140_600, 0o120_777, 0o106_777];
    match opcode {
        LOOKUP | UNLINK | RMDIR => drop(body.name(&NAMES)),
        FORGET => drop(body.size()),
        GETATTR => drop(body.any().u32(0).u64(0)),
        SETATTR => {
            body.any().u32(0).u64(0).size().u64(0);
            body.size().size().size().any().any().any();
            body.one_of(&MODES).u32(0).any().any().u32(0);
        }
        SYMLINK => drop(body.name(&NAMES).name(&NAMES)),
        MKNOD => drop(body.one_of(&MODES).any().any().u32(0).name(&NAMES)),
        MKDIR => drop(body.one_of(&MODES).any().name(&NAMES)),
        RENAME => drop(body.node().name(&NAMES).name(&NAMES)),
        RENAME2 => drop(body.node().one_of(&[0, 1, 2, 3, 4, 5]).u32(0).name(&NAMES).name(&NAMES)),
        LINK => drop(body.node().name(&NAMES)),
        OPEN | OPENDIR => drop(body.any().u32(0)),
        READ => drop(body.size().size().short_size().any().u64(0).any().u32(0)),
        READDIR | READDIRPLUS => {
            body.size();
            let index = usize::from(body.input.byte());
            match body.known.cookies.get(index) {
                Some(cookie) => body.u64(*cookie),
                None => body.size(),
            };
            body.short_size().any().u64(0).any().u32(0);
        }
        WRITE => {
            body.size().size().u32(0).any().u64(0).any().u32(0);
            body.content();
        }
        RELEASE | RELEASEDIR => drop(body.size().any().any().size()),
        FSYNC | FSYNCDIR => drop(body.size().any().u32(0)),
        SETXATTR => {
            body.u32(0).one_of(&[0, 1, 2, 3]).name(&ATTRIBUTES);
            body.content();
        }
        GETXATTR => drop(body.short_size().u32(0).name(&ATTRIBUTES)),
        LISTXATTR => drop(body.short_size().u32(0)),
        REMOVEXATTR => drop(body.name(&ATTRIBUTES)),
        FLUSH => drop(body.size().u64(0).size()),
        INIT => drop(body.any().any().any().any().any().u64(0).u64(0)),
        GETLK..=SETLKW => drop(body.size().size().size().size().any().any().any().u32(0)),
        ACCESS => drop(body.any().u32(0)),
        CREATE => drop(body.any().one_of(&MODES).any().u32(0).name(&NAMES)),
        INTERRUPT => drop(body.size()),
        BMAP => drop(body.size().any().u32(0)),
        IOCTL => {
            body.size().any().one_of(&COMMANDS).u64(0).short_size().short_size();
            body.content();
        }
        POLL => drop(body.size().size().any().any()),
        BATCH_FORGET => {
            let count = body.input.byte();
            let said = if count == 0xff { u32::MAX } else { u32::from(count % 8) };
            body.u32(said).u32(0);
            for _ in 0..count % 8 {
                body.node().size();
            }
        }
        FALLOCATE => drop(body.size().size().size().one_of(&[0, 1, 3, 0x10, 0x11, 2, 8]).u32(0)),
        LSEEK => drop(body.size().size().one_of(&[3, 4, 0, 1, 2]).u32(0)),
        COPY_FILE_RANGE => drop(body.size().size().node().size().size().size().u64(0)),
        _ => body.raw(u8::MAX),
    }
}

/// Corrects values that no kernel sends and that `fuser` 0.18 panics at. These are lengths that are less than a header,
/// and sizes that differ from the bytes after them (WRITE, SETXATTR, IOCTL). Times that the kernel clamps or refuses
/// itself are corrected, too (SETATTR).
fn tame(message: &mut Message) {
    let len = (message.len().max(HEADER) as u32).to_le_bytes();
    message.put(0, &len);
    let body = message.body().len();
    match message.opcode() {
        WRITE if body >= 40 => message.put(HEADER + 16, &((body - 40) as u32).to_le_bytes()),
        SETXATTR if body >= 8 => {
            if let Some(name) = message.body()[8..].iter().position(|byte| *byte == 0) {
                let value = body - 8 - name - 1;
                message.put(HEADER, &(value as u32).to_le_bytes());
            }
        }
        IOCTL if body >= 32 => {
            let size = message.in_body(24).min((body - 32) as u32);
            message.put(HEADER + 24, &size.to_le_bytes());
        }
        SETATTR if body >= 88 => {
            for time in [32, 40, 48] {
                let secs = i64::from_le_bytes(message.body()[time..time + 8].try_into().unwrap_or_default());
                message.put(HEADER + time, &secs.max(-i64::MAX).to_le_bytes());
            }
            for nanos in [56, 60, 64] {
                let value = message.in_body(nanos) % 1_000_000_000;
                message.put(HEADER + nanos, &value.to_le_bytes());
            }
        }
        _ => {}
    }
}
