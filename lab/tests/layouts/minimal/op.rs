//! The operations of the journal, and their bytes: a tag, and the fields in order. Numbers are little-endian, bytes and
//! lists begin with their length, and an option begins with a byte that is 0 or 1.

use nacre_engine::{FallocateMode, FileKind, NewInode, RenameMode, SetAttr, Timestamp, WriteAt, XattrMode};

/// A value with a form on media.
trait Field<'a>: Sized {
    /// Appends it.
    fn put(&self, to: &mut Vec<u8>);

    /// Takes it off the front; `None` if the bytes are none.
    fn take(from: &mut &'a [u8]) -> Option<Self>;
}

/// Defines the operations with their tags, and both directions of their bytes.
macro_rules! operations {
    ($($tag:literal $(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ })+) => {
        /// One operation.
        #[derive(Debug)]
        pub(super) enum Op<'a> {
            $($(#[$doc])* $name { $($field: $type),+ }),+
        }

        impl<'a> Op<'a> {
            /// Its bytes.
            pub(super) fn encode(&self) -> Vec<u8> {
                let mut to = Vec::new();
                match self {
                    $(Op::$name { $($field),+ } => {
                        to.push($tag);
                        $($field.put(&mut to);)+
                    })+
                }
                to
            }

            /// The operation from its bytes, if they are one.
            pub(super) fn decode(bytes: &'a [u8]) -> Option<Op<'a>> {
                let (tag, mut from) = bytes.split_first()?;
                let op = match tag {
                    $($tag => Op::$name { $($field: Field::take(&mut from)?),+ },)+
                    _ => return None,
                };
                from.is_empty().then_some(op)
            }
        }
    };
}

operations! {
    1 /// The first record of an epoch: the next number of an inode, and whether a file was ever guarded by flags.
    Begin { next: u64, guarded: bool }
    2 /// A new inode; without a name if the directory is 0.
    Create { number: u64, dir: u64, name: &'a [u8], inode: Seed<'a> }
    3 /// Another name.
    Link { number: u64, dir: u64, name: &'a [u8], now: Timestamp }
    4 /// A removed name.
    Unlink { dir: u64, name: &'a [u8], now: Timestamp }
    5 /// A removed directory.
    Rmdir { dir: u64, name: &'a [u8], now: Timestamp }
    6 /// A moved name. A whiteout, if one is made, has this number.
    Rename { from: (u64, &'a [u8]), to: (u64, &'a [u8]), mode: RenameMode, whiteout: u64, now: Timestamp }
    7 /// Changed attributes.
    SetAttr { number: u64, change: SetAttr, now: Timestamp }
    8 /// An extended attribute.
    SetXattr {
        number: u64, name: &'a [u8], value: &'a [u8], how: XattrMode, mode: Option<u32>, now: Timestamp
    }
    9 /// A removed extended attribute.
    RemoveXattr { number: u64, name: &'a [u8], now: Timestamp }
    10 /// Written data.
    Write { number: u64, at: WriteAt, bytes: &'a [u8], now: Timestamp }
    11 /// A range that was allocated, freed or zeroed.
    Fallocate { number: u64, mode: FallocateMode, offset: u64, len: u64, now: Timestamp }
    12 /// Data that a write buffer wrote back.
    WriteBack { number: u64, offset: u64, bytes: &'a [u8], now: Timestamp }
    13 /// Times that a write buffer wrote back.
    Times { number: u64, mtime: Timestamp, atime: Option<Timestamp>, now: Timestamp }
}

impl Op<'_> {
    /// The number of bytes by which a compacted journal grows at most, if the operation has a record of `len` bytes. Data
    /// is counted by blocks elsewhere.
    pub(super) fn growth(&self, len: u64) -> u64 {
        /// Records of attributes, of a size, and of an extended attribute without its name and value.
        const RECORD: u64 = 128;
        match self {
            Op::Create { inode, .. } => len + (2 + inode.xattrs.len() as u64) * RECORD,
            Op::Rename { mode: RenameMode::Whiteout { .. }, .. } => len + 3 * RECORD,
            Op::Link { .. } | Op::Rename { .. } | Op::SetXattr { .. } => len,
            _ => 0,
        }
    }
}

/// The parts of a new inode.
#[derive(Debug)]
pub(super) struct Seed<'a> {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) rdev: u64,
    pub(super) target: &'a [u8],
    pub(super) xattrs: Vec<(&'a [u8], &'a [u8])>,
    pub(super) now: Timestamp,
}

impl<'a> Seed<'a> {
    pub(super) fn of(new: &NewInode<'a>) -> Seed<'a> {
        let &NewInode { kind, mode, uid, gid, rdev, target, xattrs, now } = new;
        Seed { kind, mode, owner: (uid, gid), rdev, target, xattrs: xattrs.to_vec(), now }
    }

    /// As the model takes it.
    pub(super) fn to_new(&self) -> NewInode<'_> {
        let Seed { kind, mode, owner: (uid, gid), rdev, target, ref xattrs, now } = *self;
        NewInode { kind, mode, uid, gid, rdev, target, xattrs, now }
    }
}

macro_rules! numbers {
    ($($type:ty),+) => {
        $(impl<'a> Field<'a> for $type {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend(self.to_le_bytes());
            }

            fn take(from: &mut &'a [u8]) -> Option<$type> {
                Some(<$type>::from_le_bytes(*from.split_off(..size_of::<$type>())?.first_chunk()?))
            }
        })+
    };
}

numbers!(u8, u32, u64, i64);

/// Values of an enumeration are bytes: their places in a list.
macro_rules! choices {
    ($($type:ty: $($value:expr),+;)+) => {
        $(impl<'a> Field<'a> for $type {
            fn put(&self, to: &mut Vec<u8>) {
                let place = [$($value),+].iter().position(|value| value == self).expect("all are listed");
                to.push(place as u8);
            }

            fn take(from: &mut &'a [u8]) -> Option<$type> {
                [$($value),+].get(usize::from(u8::take(from)?)).copied()
            }
        })+
    };
}

choices! {
    bool: false, true;
    XattrMode: XattrMode::Set, XattrMode::Create, XattrMode::Replace;
    FallocateMode: FallocateMode::Allocate, FallocateMode::AllocateKeepSize, FallocateMode::PunchHole,
        FallocateMode::ZeroRange, FallocateMode::ZeroRangeKeepSize;
}

/// The fields of a structure or a tuple, in order.
macro_rules! fields {
    ($type:ty, $pattern:pat, $($field:ident),+ => $value:expr) => {
        impl<'a> Field<'a> for $type {
            fn put(&self, to: &mut Vec<u8>) {
                let $pattern = self;
                $($field.put(to);)+
            }

            fn take(from: &mut &'a [u8]) -> Option<Self> {
                $(let $field = Field::take(from)?;)+
                Some($value)
            }
        }
    };
}

fields!(Timestamp, Timestamp { secs, nanos }, secs, nanos => Timestamp { secs, nanos });
fields!((u32, u32), (a, b), a, b => (a, b));
fields!((u64, &'a [u8]), (a, b), a, b => (a, b));
fields!((&'a [u8], &'a [u8]), (a, b), a, b => (a, b));
fields!(
    SetAttr,
    SetAttr { mode, uid, gid, atime, mtime, flags, size, touch },
    mode, uid, gid, atime, mtime, flags, size, touch =>
    SetAttr { mode, uid, gid, atime, mtime, flags, size, touch }
);
fields!(
    Seed<'a>,
    Seed { kind, mode, owner, rdev, target, xattrs, now },
    kind, mode, owner, rdev, target, xattrs, now =>
    Seed { kind, mode, owner, rdev, target, xattrs, now }
);

impl<'a> Field<'a> for FileKind {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(*self as u8);
    }

    fn take(from: &mut &'a [u8]) -> Option<FileKind> {
        FileKind::from_u8(u8::take(from)?)
    }
}

impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u32).put(to);
        to.extend_from_slice(self);
    }

    fn take(from: &mut &'a [u8]) -> Option<&'a [u8]> {
        let len = u32::take(from)?;
        from.split_off(..len as usize)
    }
}

impl<'a, T: Field<'a>> Field<'a> for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u32).put(to);
        self.iter().for_each(|value| value.put(to));
    }

    fn take(from: &mut &'a [u8]) -> Option<Vec<T>> {
        let len = u32::take(from)?;
        (0..len).map(|_| T::take(from)).collect()
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|value| value.put(to));
    }

    fn take(from: &mut &'a [u8]) -> Option<Option<T>> {
        if bool::take(from)? { T::take(from).map(Some) } else { Some(None) }
    }
}

impl<'a> Field<'a> for WriteAt {
    fn put(&self, to: &mut Vec<u8>) {
        let offset = match self {
            WriteAt::Offset(offset) => Some(*offset),
            WriteAt::End => None,
        };
        offset.put(to);
    }

    fn take(from: &mut &'a [u8]) -> Option<WriteAt> {
        Some(<Option<u64> as Field>::take(from)?.map_or(WriteAt::End, WriteAt::Offset))
    }
}

impl<'a> Field<'a> for RenameMode {
    fn put(&self, to: &mut Vec<u8>) {
        let (tag, owner) = match *self {
            RenameMode::Replace => (0u8, (0, 0)),
            RenameMode::NoReplace => (1, (0, 0)),
            RenameMode::Exchange => (2, (0, 0)),
            RenameMode::Whiteout { uid, gid } => (3, (uid, gid)),
        };
        tag.put(to);
        owner.put(to);
    }

    fn take(from: &mut &'a [u8]) -> Option<RenameMode> {
        let (tag, (uid, gid)) = (u8::take(from)?, Field::take(from)?);
        Some(match tag {
            0 => RenameMode::Replace,
            1 => RenameMode::NoReplace,
            2 => RenameMode::Exchange,
            3 => RenameMode::Whiteout { uid, gid },
            _ => return None,
        })
    }
}
