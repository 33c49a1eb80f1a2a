//! Directories: blocks of 64 lines, in which a name is a record of one to five. Names are indexed in DRAM.
//!
//! Records stay where they are as long as their names do, so the line of a record is its cookie. A name that is replaced
//! is written elsewhere and then brought back, so that a reader of the directory meets it once. A name that was
//! removed leaves a dead record. Its lines are used again together, for a name that needs no more of them; what it does
//! not need is free, since every line behind the first says so. Before its lines are joined with others, the record is
//! set to free on media. How names change is in `names`.

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, InodeId, Result};
use nacre_layout_parts::contract::Listed;
use nacre_layout_parts::links;
use nacre_layout_parts::names::{Name, NameIndex, hash};
use nacre_layout_parts::namespace;
use nacre_layout_parts::rules::MAX_NAME;
use nacre_media::Pm;
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::blockmap::{self, BlockMap, Bounds};
use crate::format::{BLOCK_LINES, FIRST_NAME, LINE, MORE_NAME, RawRecord, STATUS, Status, Tag};
use crate::state::State;

pub(crate) const BLOCK: usize = BLOCK_SIZE as usize;
const LINE_BYTES: usize = LINE as usize;
/// Cookies below are those of `.` and `..` in front ends.
const FIRST_COOKIE: u64 = 3;
/// The most lines of a record.
pub(crate) const MAX_SPAN: usize = 5;

pub(crate) type Page = [u8; BLOCK];
/// A line of a directory.
pub(crate) type Line = [u8; LINE_BYTES];
/// Whether the switch of a lane is at a generation.
pub(crate) type Reached<'r> = dyn Fn(Tag) -> bool + 'r;

/// Lines that a name needs.
pub(crate) fn span_of(name_len: usize) -> usize {
    1 + name_len.saturating_sub(FIRST_NAME).div_ceil(MORE_NAME)
}

/// A record of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// Its first line in the block.
    pub(crate) line: usize,
    pub(crate) raw: RawRecord,
    pub(crate) status: Status,
}

impl Record {
    pub(crate) fn span(&self) -> usize {
        usize::from(self.raw.span)
    }

    /// It is a name now.
    pub(crate) fn counts(&self, is_reached: &Reached<'_>) -> bool {
        match self.status {
            Status::Free => false,
            Status::Live => true,
            Status::Born(tag) => is_reached(tag),
            Status::Dying(tag) => !is_reached(tag),
        }
    }

    /// The name, from its page.
    pub(crate) fn name(&self, page: &Page) -> SmallVec<[u8; 40]> {
        let mut name = SmallVec::from_slice(self.raw.name.as_flattened());
        for line in self.line + 1..self.line + self.span() {
            name.extend_from_slice(&page[line * LINE_BYTES..][..MORE_NAME]);
        }
        name.truncate(usize::from(self.raw.name_len));
        name
    }

    pub(crate) fn kind(&self) -> Result<FileKind> {
        FileKind::from_u8(self.raw.kind).ok_or_else(|| Error::corrupt("directory: kind of a name"))
    }

    pub(crate) fn id(&self) -> InodeId {
        InodeId { number: self.raw.inode, generation: self.raw.generation, volume: 0 }
    }
}

/// The lines of a record with this status.
pub(crate) fn lines_of(name: &[u8], id: InodeId, kind: FileKind, status: Status) -> SmallVec<[Line; 1]> {
    let (first, rest) = name.split_at(name.len().min(FIRST_NAME));
    let mut raw = RawRecord {
        inode: id.number,
        generation: id.generation,
        kind: kind as u8,
        name_len: name.len() as u8,
        span: span_of(name.len()) as u8,
        status: status.pack(),
        ..RawRecord::default()
    };
    raw.name.as_flattened_mut()[..first.len()].copy_from_slice(first);
    let mut lines = SmallVec::new();
    let mut line = [0; LINE_BYTES];
    line.copy_from_slice(raw.as_bytes());
    lines.push(line);
    for part in rest.chunks(MORE_NAME) {
        let mut line = [0; LINE_BYTES];
        line[..part.len()].copy_from_slice(part);
        lines.push(line);
    }
    lines
}

/// The record that begins at a line of a page, validated; `None` for a free line.
pub(crate) fn record_at(page: &Page, line: usize) -> Result<Option<Record>> {
    let damaged = || Error::corrupt("directory: a record");
    let bytes = page.get(line * LINE_BYTES..).ok_or_else(damaged)?;
    let (raw, _) = RawRecord::read_from_prefix(bytes).map_err(|_| damaged())?;
    let status = Status::unpack(raw.status).ok_or_else(damaged)?;
    if status == Status::Free {
        return Ok(None);
    }
    let record = Record { line, raw, status };
    let (span, len) = (record.span(), usize::from(raw.name_len));
    let fits = (1..=MAX_SPAN).contains(&span) && line + span <= BLOCK_LINES;
    if !fits || len == 0 || span_of(len) != span || raw.reserved != 0 {
        return Err(damaged());
    }
    for line in line + 1..line + span {
        if page[line * LINE_BYTES + STATUS as usize..][..8] != [0; 8] {
            return Err(damaged());
        }
    }
    Ok(Some(record))
}

/// Calls `visit` with each record of a page, and of a free line with nothing, until it gives something.
pub(crate) fn find_record<T>(
    page: &Page,
    mut visit: impl FnMut(usize, Option<Record>) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let mut line = 0;
    while line < BLOCK_LINES {
        let record = record_at(page, line)?;
        if let Some(found) = visit(line, record)? {
            return Ok(Some(found));
        }
        line += record.map_or(1, |record| record.span());
    }
    Ok(None)
}

/// Calls `visit` with the names of a directory as media has it.
pub(crate) fn for_each_name<P: Pm>(
    pm: &P,
    bounds: Bounds,
    state: &State,
    is_reached: &Reached<'_>,
    visit: &mut links::Visitor<'_>,
) -> Result<()> {
    let tree = state.tree(FileKind::Directory);
    let mut blocks = Vec::new();
    blockmap::map(pm, tree, bounds)
        .for_each(0, tree.end, &mut |piece| blocks.extend(piece.place..piece.place + piece.len))?;
    let mut page = [0; BLOCK];
    for block in blocks {
        pm.read(Block(block).offset(), &mut page)?;
        let stopped = find_record(&page, |_, record| {
            let Some(record) = record.filter(|record| record.counts(is_reached)) else {
                return Ok(None);
            };
            let RawRecord { inode, generation, kind, .. } = record.raw;
            let name = links::Name { bytes: &record.name(&page), inode, generation, kind };
            Ok(visit(&name).is_break().then_some(()))
        })?;
        if stopped.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// A name that was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// The first line of its record, in the directory.
    pub(crate) line: u64,
    pub(crate) span: usize,
    pub(crate) id: InodeId,
    pub(crate) kind: FileKind,
}

impl namespace::Record for Found {
    fn id(&self) -> InodeId {
        self.id
    }

    fn kind(&self) -> FileKind {
        self.kind
    }
}

/// Lines that were taken for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lines {
    /// The first one, in the directory.
    pub(crate) line: u64,
    /// How many there are: more than are needed, perhaps, when they are a dead record's.
    pub(crate) span: usize,
    is_dead: bool,
}

impl Lines {
    /// Those of a dead record.
    pub(crate) fn of_dead(line: u64, span: usize) -> Lines {
        Lines { line, span, is_dead: true }
    }
}

/// The state of a directory in DRAM.
#[derive(Default)]
pub(crate) struct Directory {
    /// Its blocks, in order.
    pub(crate) blocks: Vec<u64>,
    pub(crate) entries: u64,
    pub(crate) subdirectories: u32,
    pub(crate) index: NameIndex,
    /// The free lines of each block, a bit for each.
    free: Vec<u64>,
    /// The first lines of dead records, by their number of lines less one.
    dead: [Vec<u64>; MAX_SPAN],
    /// No block before it has as many free lines in a row as its index plus one.
    least: [usize; MAX_SPAN],
}

impl Directory {
    /// Reads all of a directory: counts its names, and indexes them.
    pub(crate) fn load<P: Pm>(
        map: &BlockMap<'_, P>,
        hash_seed: u64,
        is_reached: &Reached<'_>,
    ) -> Result<Directory> {
        let mut directory = Directory::default();
        let count = map.tree.end;
        map.for_each(0, count, &mut |piece| {
            directory.blocks.extend(piece.place..piece.place + piece.len);
        })?;
        if directory.blocks.len() as u64 != count {
            return Err(Error::corrupt("directory: a block is missing"));
        }
        let mut page = [0; BLOCK];
        for at in 0..directory.blocks.len() {
            directory.read_page(map.pm, at, &mut page)?;
            let mut free = 0;
            find_record(&page, |line, record| {
                let place = (at * BLOCK_LINES + line) as u64;
                match record {
                    None => free |= 1 << line,
                    Some(record) if record.counts(is_reached) => {
                        directory.entries += 1;
                        directory.subdirectories += u32::from(record.kind()? == FileKind::Directory);
                        directory.index.insert(hash(&record.name(&page), hash_seed), place);
                    }
                    Some(record) => directory.dead[record.span() - 1].push(place),
                }
                Ok(None::<()>)
            })?;
            directory.free.push(free);
        }
        Ok(directory)
    }

    pub(crate) fn read_page(&self, pm: &impl Pm, at: usize, page: &mut Page) -> Result<()> {
        pm.read(Block(self.blocks[at]).offset(), page)
    }

    /// Where a line is on media.
    pub(crate) fn address(&self, line: u64) -> Result<u64> {
        let block = self.blocks.get(line as usize / BLOCK_LINES);
        let block = block.ok_or_else(|| Error::corrupt("directory: a line beyond its end"))?;
        Ok(Block(*block).offset() + line % BLOCK_LINES as u64 * LINE)
    }

    /// Looks a name up.
    pub(crate) fn find(&self, pm: &impl Pm, name: Name<'_>) -> Result<Option<Found>> {
        if name.bytes.len() > MAX_NAME {
            return Ok(None);
        }
        for line in self.index.find(name.hash) {
            if let Some(found) = self.found_at(pm, line, name.bytes)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The inode in the record at a line, if it has this name.
    fn found_at(&self, pm: &impl Pm, line: u64, name: &[u8]) -> Result<Option<Found>> {
        let (mut short, mut long);
        let span = span_of(name.len());
        // Most names are short, and every step along a path comes here.
        let bytes: &mut [u8] = if span == 1 {
            short = [0; LINE_BYTES];
            &mut short
        } else {
            long = [0; MAX_SPAN * LINE_BYTES];
            &mut long[..span * LINE_BYTES]
        };
        if line as usize % BLOCK_LINES + span > BLOCK_LINES {
            return Ok(None);
        }
        pm.read(self.address(line)?, bytes)?;
        let (raw, rest) =
            RawRecord::read_from_prefix(bytes).map_err(|_| Error::corrupt("directory: a record"))?;
        let (first, more) = name.split_at(name.len().min(FIRST_NAME));
        let is_it = usize::from(raw.name_len) == name.len()
            && raw.name.as_flattened().starts_with(first)
            && more.chunks(MORE_NAME).zip(rest.chunks(LINE_BYTES)).all(|(part, line)| line.starts_with(part));
        if !is_it {
            return Ok(None);
        }
        let record = Record { line: 0, raw, status: Status::Live };
        Ok(Some(Found { line, span, id: record.id(), kind: record.kind()? }))
    }

    /// Lines for a record, which are taken: those of a dead record, or free ones. `None` when the directory must grow.
    pub(crate) fn take(&mut self, span: usize) -> Option<Lines> {
        if let Some(line) = self.dead[span - 1].pop() {
            return Some(Lines { line, span, is_dead: true });
        }
        if let Some(line) = self.take_free(span) {
            return Some(Lines { line, span, is_dead: false });
        }
        let longer = (span + 1..=MAX_SPAN).find(|longer| !self.dead[longer - 1].is_empty())?;
        let line = self.dead[longer - 1].pop()?;
        Some(Lines { line, span: longer, is_dead: true })
    }

    /// A record of `span` lines stands in lines that were taken. Those behind it are free: the first line, which said
    /// that they are its own, does not any more.
    pub(crate) fn fill(&mut self, lines: Lines, span: usize) {
        if lines.span > span {
            self.give(lines.line + span as u64, lines.span - span);
        }
    }

    /// Nothing was written to lines that were taken.
    pub(crate) fn put_back(&mut self, lines: Lines) {
        if lines.is_dead { self.bury(lines.line, lines.span) } else { self.give(lines.line, lines.span) }
    }

    fn take_free(&mut self, span: usize) -> Option<u64> {
        for at in self.least[span - 1]..self.free.len() {
            let mut starts = self.free[at];
            for _ in 1..span {
                starts &= starts >> 1;
            }
            if starts != 0 {
                self.least[span - 1] = at;
                let line = starts.trailing_zeros();
                self.free[at] &= !(mask(span) << line);
                return Some((at * BLOCK_LINES) as u64 + u64::from(line));
            }
        }
        self.least[span - 1] = self.free.len();
        None
    }

    /// Lines are free.
    pub(crate) fn give(&mut self, line: u64, count: usize) {
        let at = line as usize / BLOCK_LINES;
        self.free[at] |= mask(count) << (line % BLOCK_LINES as u64);
        self.least.iter_mut().for_each(|least| *least = (*least).min(at));
    }

    /// A record is dead.
    pub(crate) fn bury(&mut self, line: u64, span: usize) {
        self.dead[span - 1].push(line);
    }

    /// The lines of a dead record are used again.
    pub(crate) fn dig_up(&mut self, lines: Lines) {
        let dead = &mut self.dead[lines.span - 1];
        if let Some(at) = dead.iter().rposition(|&line| line == lines.line) {
            dead.swap_remove(at);
        }
    }

    /// A block was added, of which the first lines are taken.
    pub(crate) fn grown(&mut self, block: u64, taken: usize) {
        self.blocks.push(block);
        self.free.push(!mask(taken));
    }

    /// The lines of all dead records, which are free from now on; each with its number of lines. There are enough of
    /// them, so that it is worth the while.
    pub(crate) fn take_dead(&mut self) -> Vec<(u64, usize)> {
        let mut all = Vec::new();
        for (index, dead) in self.dead.iter_mut().enumerate() {
            all.extend(std::mem::take(dead).into_iter().map(|line| (line, index + 1)));
        }
        all
    }

    /// How many lines dead records have.
    pub(crate) fn dead_lines(&self) -> usize {
        self.dead.iter().enumerate().map(|(index, dead)| dead.len() * (index + 1)).sum()
    }

    /// Up to `limit` entries behind the one with the cookie `after`, or from the first one on where that is 0.
    ///
    /// They are read from the last one to the first. Names that come meanwhile where the directory grows are not
    /// reported, and few fit in the room that others left. In the other order, a caller that makes a name for each
    /// reported one would meet these, too, and so on for ever.
    pub(crate) fn read(
        &self,
        pm: &impl Pm,
        after: u64,
        limit: usize,
        is_reached: &Reached<'_>,
    ) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let end = (self.blocks.len() * BLOCK_LINES) as u64;
        let end = after.checked_sub(FIRST_COOKIE).map_or(end, |line| line.min(end));
        let mut page = [0; BLOCK];
        for at in (0..(end as usize).div_ceil(BLOCK_LINES)).rev() {
            self.read_page(pm, at, &mut page)?;
            let before = listed.len();
            find_record(&page, |line, record| {
                let place = (at * BLOCK_LINES + line) as u64;
                if place >= end {
                    return Ok(Some(()));
                }
                if let Some(record) = record.filter(|record| record.counts(is_reached)) {
                    listed.push(Listed {
                        cookie: place + FIRST_COOKIE,
                        name: record.name(&page),
                        id: record.id(),
                        kind: record.kind()?,
                    });
                }
                Ok(None)
            })?;
            listed[before..].reverse();
            if listed.len() >= limit {
                listed.truncate(limit);
                break;
            }
        }
        Ok(listed)
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        let dead: usize = self.dead.iter().map(Vec::capacity).sum();
        (size_of::<Directory>() + (self.blocks.capacity() + self.free.capacity() + dead) * 8) as u64
            + self.index.heap_bytes() as u64
    }
}

/// The lowest `count` bits.
fn mask(count: usize) -> u64 {
    if count >= BLOCK_LINES { u64::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests {
    use nacre_engine::{FileKind, InodeId};

    use super::{BLOCK, Directory, Line, Page, find_record, lines_of, record_at, span_of};
    use crate::format::{Status, Tag};

    fn put(page: &mut Page, line: usize, lines: &[Line]) {
        page[line * 64..][..lines.len() * 64].copy_from_slice(lines.as_flattened());
    }

    #[test]
    fn names_of_every_length_come_back() {
        let id = InodeId { number: 7, generation: 2, volume: 0 };
        for len in 1..=255 {
            let name: Vec<u8> = (0..len).map(|at| b'a' + (at % 26) as u8).collect();
            let mut page = [0; BLOCK];
            let lines = lines_of(&name, id, FileKind::Regular, Status::Live);
            assert_eq!(lines.len(), span_of(len));
            put(&mut page, 3, &lines);
            let record = record_at(&page, 3).unwrap().unwrap();
            assert_eq!((record.name(&page).as_slice(), record.id()), (&name[..], id));
            for line in (0..64).filter(|line| *line != 3) {
                assert!(record_at(&page, line).unwrap().is_none(), "lines of a name are free alone");
            }
        }
    }

    #[test]
    fn a_record_that_is_dead_leaves_its_lines() {
        let tag = |generation| Tag { lane: 1, generation };
        let id = InodeId { number: 7, generation: 2, volume: 0 };
        let mut page = [0; BLOCK];
        let statuses =
            [Status::Born(tag(5)), Status::Born(tag(6)), Status::Dying(tag(5)), Status::Dying(tag(6))];
        for (line, status) in statuses.into_iter().enumerate() {
            put(&mut page, line, &lines_of(b"name", id, FileKind::Regular, status));
        }
        let mut counting = Vec::new();
        find_record(&page, |line, record| {
            counting.extend(record.filter(|record| record.counts(&|tag| tag.generation <= 5)).map(|_| line));
            Ok(None::<()>)
        })
        .unwrap();
        assert_eq!(counting, [0, 3]);
    }

    #[test]
    fn lines_are_taken_and_given() {
        let mut directory = Directory::default();
        let take = |directory: &mut Directory, span| {
            directory.take(span).map(|lines| {
                directory.fill(lines, span);
                lines.line
            })
        };
        assert_eq!(take(&mut directory, 1), None);
        directory.grown(100, 60);
        assert_eq!([5, 3, 2].map(|span| take(&mut directory, span)), [None, Some(60), None]);
        assert_eq!([1, 1].map(|span| take(&mut directory, span)), [Some(63), None]);
        directory.bury(60, 3);
        assert_eq!([3, 1].map(|span| take(&mut directory, span)), [Some(60), None]);
        directory.bury(60, 3);
        assert_eq!(take(&mut directory, 1), Some(60), "of a longer one, a part");
        assert_eq!([2, 1].map(|span| take(&mut directory, span)), [Some(61), None]);
        directory.bury(60, 3);
        let lines = directory.take(1).unwrap();
        assert_eq!(directory.take(1), None, "nothing is written yet");
        directory.put_back(lines);
        assert_eq!(take(&mut directory, 3), Some(60));
        directory.bury(60, 1);
        directory.bury(61, 2);
        assert_eq!(take(&mut directory, 3), None, "dead ones are not joined");
        assert_eq!(directory.dead_lines(), 3);
        let dead = directory.take_dead();
        dead.iter().for_each(|&(line, span)| directory.give(line, span));
        assert_eq!([3, 1].map(|span| take(&mut directory, span)), [Some(60), None]);
    }
}
