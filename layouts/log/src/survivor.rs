//! Live entries on their way to other pages, and live blocks apart from the entries that name them.

use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Block};
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::blockmap::{BlockMap, Piece};
use crate::format::{EntryHeader, LINE, MAX_FILE_SIZE, PAGE_LINES, WriteEntry, flag, kind, place, seal};
use crate::inode::{Body, Inode};
use crate::log::{Owner, Page, is_negative};

/// Blocks of an entry that are looked at before the limit of its pieces is.
const LIVE_STEP: u64 = 1 << 12;

/// A live entry, sealed for its new place, and the references to it.
#[derive(Clone)]
pub(crate) struct Survivor {
    pub(crate) bytes: SmallVec<[u8; LINE]>,
    pub(crate) sequence: u64,
    pub(crate) old_owner: Owner,
    pub(crate) old_address: u64,
    pub(crate) references: References,
}

/// Runs of blocks; of an entry for one block, one.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// An entry where it is before a collection.
pub(crate) struct OldEntry<'a> {
    pub(crate) owner: Owner,
    pub(crate) address: u64,
    pub(crate) header: EntryHeader,
    /// All its lines.
    pub(crate) bytes: &'a [u8],
}

/// The live entries of some pages.
pub(crate) struct Gathered {
    /// The pages begin at the head of the log: nothing is older.
    pub(crate) at_head: bool,
    pub(crate) survivors: Vec<Survivor>,
    /// Something of these pages is dead that an entry in a later page may have taken away.
    pub(crate) dead: bool,
    /// A copy holds such a thing, too.
    pub(crate) stuck: bool,
    /// Blocks apart from the entries that name them, for a compaction.
    pub(crate) loose: Option<Loose>,
}

impl Gathered {
    /// Nothing yet.
    pub(crate) fn new(at_head: bool, loose: Option<Loose>) -> Gathered {
        Gathered { at_head, survivors: Vec::new(), dead: false, stuck: false, loose }
    }

    /// Keeps an entry, sealed for its new place.
    pub(crate) fn keep(&mut self, old: &OldEntry<'_>, bytes: &[u8], references: References, seed: u32) {
        let mut bytes = SmallVec::from_slice(bytes);
        reseal(&mut bytes, seed);
        let (old_owner, old_address, sequence) = (old.owner, old.address, old.header.sequence);
        self.survivors.push(Survivor { bytes, sequence, old_owner, old_address, references });
    }
}

#[derive(Clone)]
pub(crate) enum References {
    /// Blocks of the map.
    Pieces(Pieces),
    /// A name of the directory.
    Name,
    /// An extended attribute.
    Attribute,
    /// The target of the symbolic link that the inode is, or the image that says where its blocks are.
    Inode,
    /// Nothing but its being the last of its kind, or an entry that it takes away.
    Nothing,
}

/// Blocks that are live in a portion, apart from their entries. Several entries may say the same of one block.
#[derive(Default)]
pub(crate) struct Loose {
    pub(crate) blocks: Vec<LooseBlocks>,
    /// All of a log is gathered, to say otherwise where its blocks are: of write entries, and of that of an image, none
    /// stays.
    pub(crate) is_whole: bool,
    /// Those of the last write: its entry stays as it is.
    pub(crate) kept: Range<u64>,
    /// The greatest sequence number of the portion.
    pub(crate) greatest: u64,
}

impl Loose {
    /// Pages that are compacted at once: about as many as can be before other operations notice that the log is locked.
    pub(crate) const PAGES: usize = 16;
    /// Runs of blocks of a portion; with more of them it would not become smaller.
    pub(crate) const MOST_PIECES: usize = Loose::PAGES * PAGE_LINES;

    /// For all of a log.
    pub(crate) fn of_whole() -> Loose {
        Loose { is_whole: true, ..Loose::default() }
    }

    /// All blocks of a file, for a log that is gathered whole.
    pub(crate) fn take_all(&mut self, map: &BlockMap, modified: u64) {
        self.blocks.clear();
        map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| {
            self.blocks.push(LooseBlocks { piece, modified });
        });
    }
}

/// Blocks in one place, and their time.
pub(crate) struct LooseBlocks {
    pub(crate) piece: Piece,
    /// Packed, when they were written.
    pub(crate) modified: u64,
}

/// An entry that says nothing of the file but where its blocks are: one for blocks that were moved, or for an image.
pub(crate) fn only_places(header: &EntryHeader) -> bool {
    header.kind == kind::WRITE && header.flags & flag::MOVED != 0 || header.kind == kind::IMAGE
}

/// The blocks of a write entry that are still where it says, by its word. Not all of them when they are in more than
/// `limit` pieces.
pub(crate) fn live_pieces(inode: &Inode, page: u32, entry: &[u8], limit: usize) -> Pieces {
    let mut pieces = Pieces::new();
    let (Body::File(map), Ok((raw, _))) = (&inode.body, WriteEntry::read_from_prefix(entry)) else {
        return pieces;
    };
    let start = raw.file_block & place::BLOCK_MASK;
    let end = start + u64::from(raw.blocks);
    let mut at = start;
    while at < end && pieces.len() <= limit {
        let step = LIVE_STEP.min(end - at);
        map.for_each(at, step, |piece| {
            if piece.owner == page && piece.place == raw.place + (piece.start - start) {
                pieces.push(piece);
            }
        });
        at += step;
    }
    pieces
}

/// Whether all blocks of a write entry are live.
pub(crate) fn is_whole(entry: &[u8], pieces: &Pieces) -> bool {
    let live: u64 = pieces.iter().map(|piece| piece.len).sum();
    WriteEntry::read_from_prefix(entry).is_ok_and(|(raw, _)| live == u64::from(raw.blocks))
}

/// Survivors that go to one page.
pub(crate) struct Packed<'a> {
    pub(crate) survivors: &'a [Survivor],
}

impl Packed<'_> {
    /// The sequence number of the first.
    pub(crate) fn first_sequence(&self) -> u64 {
        self.survivors.first().map_or(0, |survivor| survivor.sequence)
    }

    /// The page that they make at a block.
    pub(crate) fn page(&self, block: Block) -> Page {
        Page {
            first_sequence: self.first_sequence(),
            lines: line_count(self.survivors) as u16,
            negatives: self.negatives(),
            ..Page::empty(block)
        }
    }

    fn negatives(&self) -> u16 {
        let negative = |survivor: &&Survivor| {
            EntryHeader::read_from_prefix(&survivor.bytes)
                .is_ok_and(|(header, _)| is_negative(header.kind, header.flags))
        };
        self.survivors.iter().filter(negative).count() as u16
    }

    /// All their lines.
    pub(crate) fn lines(&self) -> Vec<u8> {
        let mut lines = Vec::with_capacity(LINE * PAGE_LINES);
        for survivor in self.survivors {
            lines.extend_from_slice(&survivor.bytes);
        }
        lines
    }
}

/// Lines that survivors take.
pub(crate) fn line_count(survivors: &[Survivor]) -> usize {
    survivors.iter().map(|survivor| survivor.bytes.len() / LINE).sum()
}

/// Cuts survivors into pages.
pub(crate) fn pack(survivors: &[Survivor]) -> Vec<Packed<'_>> {
    let mut pages = Vec::new();
    let mut first = 0;
    let mut lines = 0;
    for (index, survivor) in survivors.iter().enumerate() {
        let count = survivor.bytes.len() / LINE;
        if lines + count > PAGE_LINES {
            pages.push(Packed { survivors: &survivors[first..index] });
            (first, lines) = (index, 0);
        }
        lines += count;
    }
    if first < survivors.len() {
        pages.push(Packed { survivors: &survivors[first..] });
    }
    pages
}

/// An entry that is copied stands alone: the rest of its batch is committed, too.
pub(crate) fn reseal(bytes: &mut [u8], seed: u32) {
    if let Ok((header, _)) = EntryHeader::mut_from_prefix(bytes) {
        header.flags &= !flag::MORE;
    }
    seal(bytes, seed);
}

/// Names loose blocks by new entries, in the order of the file, those together that lie together, each block once.
pub(crate) fn name_anew(loose: Loose, seed: u32, survivors: &mut Vec<Survivor>) {
    let Loose { mut blocks, kept, greatest, .. } = loose;
    blocks.sort_unstable_by_key(|blocks| blocks.piece.start);
    let first = survivors.len();
    let mut named = 0;
    for LooseBlocks { piece, modified } in blocks {
        let before = clip(piece, named..kept.start);
        let behind = clip(piece, named.max(kept.end)..u64::MAX);
        for piece in before.into_iter().chain(behind) {
            name(piece, modified, greatest, first, survivors);
        }
        named = named.max(piece.start + piece.len);
    }
    survivors[first..].iter_mut().for_each(|survivor| reseal(&mut survivor.bytes, seed));
}

/// The blocks of a piece that are in a range.
fn clip(piece: Piece, range: Range<u64>) -> Option<Piece> {
    let start = piece.start.max(range.start);
    let end = (piece.start + piece.len).min(range.end);
    let place = piece.place + (start - piece.start);
    (start < end).then(|| Piece { start, len: end - start, place, ..piece })
}

/// Names blocks by the last of the new entries, from `first` on, where they continue it, or by another one.
fn name(piece: Piece, modified: u64, sequence: u64, first: usize, survivors: &mut Vec<Survivor>) {
    if let Some(last) = survivors[first..].last_mut()
        && let References::Pieces(pieces) = &mut last.references
        && let Ok((entry, _)) = WriteEntry::mut_from_prefix(&mut last.bytes)
        && entry.file_block + u64::from(entry.blocks) == piece.start
        && entry.place + u64::from(entry.blocks) == piece.place
        && u64::from(entry.blocks) + piece.len <= u64::from(u32::MAX)
    {
        entry.blocks += piece.len as u32;
        entry.mtime = entry.mtime.max(modified);
        pieces.push(piece);
        return;
    }
    let mut entry = WriteEntry {
        place: piece.place,
        file_block: piece.start,
        blocks: piece.len as u32,
        mtime: modified,
        ..WriteEntry::default()
    };
    entry.header = EntryHeader { kind: kind::WRITE, flags: flag::MOVED, lines: 1, sequence, ..entry.header };
    survivors.push(Survivor {
        bytes: SmallVec::from_slice(entry.as_bytes()),
        sequence,
        old_owner: piece.owner,
        old_address: 0,
        references: References::Pieces(SmallVec::from_slice(&[piece])),
    });
}
