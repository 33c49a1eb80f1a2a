//! Changing the names of a directory.
//!
//! An [`Edit`] changes copies of blocks and notes which words it changed: those that counted before are the
//! transaction's, those that were free space have no readers. A directory that has no room grows by a block.

use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Result};
use nacre_layout_parts::names::Name;
use nacre_layout_parts::rules::MAX_NAME;
use nacre_media::{Flushed, Pm};
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::alloc::{Purpose, Runs};
use crate::blockmap::{Piece, open, pack};
use crate::directory::{BLOCK, Directory, Found, Page, Record, find_record, needed, record_at};
use crate::format::{DENTRY_HEADER, RawDentry, word};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::transaction::{Transaction, join};
use crate::tree_edit;

/// A block of a directory that is being changed.
struct Changed {
    /// Which of the directory's blocks.
    at: usize,
    /// It is new: no word of it counts.
    is_new: bool,
    page: Box<Page>,
    /// The words that were changed, and whether they counted before.
    words: SmallVec<[(usize, bool); 8]>,
    /// The ranges of removed names: free in the copy, and valid on media until the commit.
    freed: SmallVec<[Range<usize>; 1]>,
}

impl Changed {
    fn new(at: usize, page: Box<Page>, is_new: bool) -> Changed {
        Changed { at, is_new, page, words: SmallVec::new(), freed: SmallVec::new() }
    }

    /// Puts bytes at a multiple of 8; the words count that `counts` says it of.
    fn put(&mut self, at: usize, bytes: &[u8], counts: impl Fn(usize) -> bool) {
        let (old, _) = self.page[at..at + bytes.len()].as_chunks_mut::<8>();
        let (new, rest) = bytes.as_chunks::<8>();
        debug_assert!(rest.is_empty());
        for (index, (old, new)) in old.iter_mut().zip(new).enumerate().filter(|(_, (old, new))| old != new) {
            *old = *new;
            let place = at + index * 8;
            self.words.push((place, counts(place)));
        }
    }

    /// Changes the header of a record that is there.
    fn put_header(&mut self, at: usize, raw: &RawDentry) {
        self.put(at, raw.as_bytes(), |_| true);
    }

    /// Takes the record at a place away; gives the room of the record that it leaves.
    fn remove(&mut self, within: usize) -> Result<usize> {
        let mut before: Option<Record> = None;
        let record = find_record(&self.page, |record| {
            if record.at == within {
                return Ok(Some(record));
            }
            before = Some(record);
            Ok(None)
        })?;
        let record = record.ok_or_else(|| Error::corrupt("directory: a name is not where it was"))?;
        self.freed.push(within..within + record.needed());
        let Some(before) = before else {
            self.put_header(0, &RawDentry { inode: 0, ..record.raw });
            return Ok(record.len());
        };
        let record_len = before.len() + record.len();
        self.put_header(before.at, &RawDentry { record_len: record_len as u16, ..before.raw });
        Ok(record_len - before.needed())
    }

    /// Puts a name where there is room for it, and gives its place; otherwise the most room that a record has.
    fn put_name(&mut self, name: &[u8], raw: RawDentry) -> Result<std::result::Result<usize, usize>> {
        let needed = needed(name.len());
        let mut most = 0;
        let fits = |record: Record| {
            let room = record.len() - record.needed();
            most = most.max(room);
            Ok((room >= needed).then_some(record))
        };
        let Some(record) = find_record(&self.page, fits)? else { return Ok(Err(most)) };
        let (at, len) = (record.at + record.needed(), record.len() - record.needed());
        if record.is_used() {
            self.put_header(record.at, &RawDentry { record_len: record.needed() as u16, ..record.raw });
        }
        let mut bytes = [0; DENTRY_HEADER + MAX_NAME + 1];
        bytes[..DENTRY_HEADER].copy_from_slice(RawDentry { record_len: len as u16, ..raw }.as_bytes());
        bytes[DENTRY_HEADER..DENTRY_HEADER + name.len()].copy_from_slice(name);
        // The header of a free record counts, too.
        let header = at..if record.is_used() { at } else { at + DENTRY_HEADER };
        let freed = self.freed.clone();
        let counts = |word| header.contains(&word) || freed.iter().any(|freed| freed.contains(&word));
        self.put(at, &bytes[..needed], counts);
        Ok(Ok(at))
    }

    /// The words that differ from those on media, in order, each once.
    fn differences(&self) -> SmallVec<[(usize, bool); 8]> {
        let mut words = self.words.clone();
        // One that counts comes first.
        words.sort_unstable_by_key(|&(place, counts)| (place, !counts));
        words.dedup_by_key(|&mut (place, _)| place);
        words
    }
}

/// A change for the index after the commit.
enum Note<'a> {
    Added(u64, u64, FileKind),
    Removed(Name<'a>, u64, FileKind),
    Replaced(FileKind, FileKind),
}

/// A change of one directory's names.
pub(crate) struct Edit<'a, P: Pm> {
    fs: &'a Shared<P>,
    inode: &'a Inode,
    pages: Vec<Changed>,
    /// Blocks with a record that has this much room now.
    freed: SmallVec<[(usize, usize); 1]>,
    /// Blocks in which no record has more room than this.
    full: SmallVec<[(usize, usize); 1]>,
    notes: Vec<Note<'a>>,
    /// The block that the directory grows by, and the tree with it.
    grown: Option<(Runs, tree_edit::Edit<'a, P>)>,
}

impl<'a, P: Pm> Edit<'a, P> {
    pub(crate) fn new(fs: &'a Shared<P>, inode: &'a Inode) -> Edit<'a, P> {
        Edit {
            fs,
            inode,
            pages: Vec::new(),
            freed: SmallVec::new(),
            full: SmallVec::new(),
            notes: Vec::new(),
            grown: None,
        }
    }

    /// The copy of a block.
    fn page(&mut self, directory: &Directory, at: usize) -> Result<&mut Changed> {
        let index = match self.pages.iter().position(|page| page.at == at) {
            Some(index) => index,
            None => {
                let mut page = Box::new([0; BLOCK]);
                directory.read_page(&*self.fs.pm, at, &mut page)?;
                self.pages.push(Changed::new(at, page, false));
                self.pages.len() - 1
            }
        };
        Ok(&mut self.pages[index])
    }

    /// Takes a name away.
    pub(crate) fn remove(&mut self, directory: &Directory, found: &Found, name: Name<'a>) -> Result<()> {
        let (at, within) = (found.offset as usize / BLOCK, found.offset as usize % BLOCK);
        let room = self.page(directory, at)?.remove(within)?;
        self.freed.push((at, room));
        self.notes.push(Note::Removed(name, found.offset, found.kind));
        Ok(())
    }

    /// A name refers to another inode.
    pub(crate) fn replace(&mut self, directory: &Directory, found: &Found, inode: &Inode) -> Result<()> {
        let within = found.offset as usize % BLOCK;
        let page = self.page(directory, found.offset as usize / BLOCK)?;
        let record = record_at(&page.page, within)?;
        let raw = RawDentry {
            inode: inode.number,
            kind: inode.kind as u8,
            generation: inode.generation,
            ..record.raw
        };
        page.put_header(within, &raw);
        self.notes.push(Note::Replaced(found.kind, inode.kind));
        Ok(())
    }

    /// Adds a name, which is not there.
    pub(crate) fn insert(
        &mut self,
        body: &Body,
        name: Name<'_>,
        inode: &Inode,
        purpose: Purpose,
    ) -> Result<()> {
        let directory = body.directory()?;
        let raw = RawDentry {
            inode: inode.number,
            record_len: 0,
            name_len: name.bytes.len() as u8,
            kind: inode.kind as u8,
            generation: inode.generation,
        };
        let place = match self.put_name(directory, name.bytes, raw)? {
            Some(place) => place,
            None => {
                let at = self.add_block(directory, body.root, purpose)?;
                let within = self.page(directory, at)?.put_name(name.bytes, raw)?;
                (at, within.map_err(|_| Error::corrupt("directory: a new block has no room"))?)
            }
        };
        let offset = (place.0 * BLOCK + place.1) as u64;
        self.notes.push(Note::Added(name.hash, offset, inode.kind));
        Ok(())
    }

    /// Puts a name into the first block in which a record has room for it; gives both places.
    fn put_name(
        &mut self,
        directory: &Directory,
        name: &[u8],
        raw: RawDentry,
    ) -> Result<Option<(usize, usize)>> {
        for at in 0..directory.blocks.len() {
            let is_changed = self.pages.iter().any(|page| page.at == at);
            if !is_changed && directory.room(at) < needed(name.len()) {
                continue;
            }
            match self.page(directory, at)?.put_name(name, raw)? {
                Ok(within) => return Ok(Some((at, within))),
                Err(most) if !is_changed => {
                    self.pages.pop();
                    self.full.push((at, most));
                }
                Err(_) => {}
            }
        }
        Ok(None)
    }

    fn add_block(&mut self, directory: &Directory, root: u64, purpose: Purpose) -> Result<usize> {
        let at = directory.blocks.len();
        let mut runs = Runs::new();
        self.fs.allocate(None, 1, purpose, &mut runs)?;
        let mut tree = tree_edit::Edit::new(self.fs, open(root));
        let result = tree.set(Piece { start: at as u64, len: 1, place: runs[0].start.0, is_written: true });
        self.grown = Some((runs, tree));
        result?;
        self.pages.push(Changed::new(at, empty_page(), true));
        Ok(at)
    }

    /// Adds the words to the transaction, and writes the words and blocks that nothing leads to yet.
    pub(crate) fn finish(
        &self,
        directory: &Directory,
        transaction: &mut Transaction,
        mut pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        for page in &self.pages {
            if page.is_new {
                let (runs, tree) =
                    self.grown.as_ref().ok_or_else(|| Error::corrupt("directory: no block"))?;
                pending = join(pending, self.fs.pm.copy(runs[0].start.offset(), &page.page[..])?);
                pending = tree_edit::finish(tree, transaction, pending)?;
                transaction.word(self.inode.address + word::ROOT, pack(tree.tree));
                transaction.word(self.inode.address + word::SIZE, (page.at as u64 + 1) * BLOCK_SIZE);
                continue;
            }
            let start = Block(directory.blocks[page.at]).offset();
            for (place, counts) in page.differences() {
                let address = start + place as u64;
                let (value, _) = u64::read_from_prefix(&page.page[place..])
                    .map_err(|_| Error::corrupt("directory: a word"))?;
                if counts {
                    transaction.word(address, value);
                } else {
                    transaction.idle_word(address, value);
                }
            }
        }
        Ok(pending)
    }

    /// After the commit: the state in DRAM follows.
    pub(crate) fn done(self, body: &mut Body) {
        use nacre_engine::sync::atomic::Ordering::{Relaxed, Release};
        let Some(directory) = &mut body.directory else { return };
        directory.make_memo();
        if let Some((runs, tree)) = &self.grown {
            directory.blocks.push(runs[0].start.0);
            body.root = pack(tree.tree);
            self.inode.size.store(directory.blocks.len() as u64 * BLOCK_SIZE, Release);
            self.inode.blocks.fetch_add(1, Relaxed);
        }
        for &(at, room) in &self.full {
            directory.note_room(at, room);
        }
        for &(at, room) in &self.freed {
            directory.note_room(at, room.max(directory.room(at)));
        }
        for note in &self.notes {
            let is_directory = |kind: FileKind| u32::from(kind == FileKind::Directory);
            match *note {
                Note::Added(hash, offset, kind) => {
                    directory.remember(hash, offset);
                    directory.entries += 1;
                    directory.subdirectories += is_directory(kind);
                }
                Note::Removed(name, offset, kind) => {
                    directory.forget(name, offset);
                    directory.entries -= 1;
                    directory.subdirectories -= is_directory(kind);
                }
                Note::Replaced(old, new) => {
                    directory.subdirectories += is_directory(new);
                    directory.subdirectories -= is_directory(old);
                }
            }
        }
        self.inode.entries.store(directory.entries, Relaxed);
        self.inode.subdirectories.store(directory.subdirectories, Relaxed);
    }

    /// The change was not committed: frees the blocks that it took.
    pub(crate) fn give_up(&self) {
        if let Some((runs, tree)) = self.grown.as_ref().filter(|_| !self.fs.is_broken()) {
            self.fs.free_runs(runs);
            tree.give_up();
        }
    }
}

/// A page of one free record.
fn empty_page() -> Box<Page> {
    let mut page = Box::new([0; BLOCK]);
    let free = RawDentry { record_len: BLOCK as u16, ..RawDentry::default() };
    page[..DENTRY_HEADER].copy_from_slice(free.as_bytes());
    page
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Changed, RawDentry, empty_page, find_record};
    use crate::directory::find_name;

    #[test]
    fn names_fill_a_page_and_are_found() {
        let mut changed = Changed::new(0, empty_page(), true);
        let mut count = 0u64;
        let name = |count: u64| format!("name-{count}").into_bytes();
        loop {
            let raw = RawDentry {
                inode: count + 1,
                name_len: name(count).len() as u8,
                kind: 1,
                generation: 1,
                record_len: 0,
            };
            match changed.put_name(&name(count), raw).unwrap() {
                Ok(_) => count += 1,
                Err(most) => {
                    assert!(most < 24);
                    break;
                }
            }
        }
        assert_eq!(count, BLOCK as u64 / 24);
        let mut seen = 0;
        find_record(&changed.page, |record| {
            assert_eq!(record.name(&changed.page), name(seen));
            assert_eq!(find_name(&changed.page, &name(seen)).unwrap().map(|found| found.at), Some(record.at));
            seen += 1;
            Ok(None::<()>)
        })
        .unwrap();
        assert_eq!(seen, count);
        assert!(find_name(&changed.page, &name(count)).unwrap().is_none());
        let second = 24;
        changed.put_header(second, &RawDentry { record_len: 24, name_len: 6, ..RawDentry::default() });
        assert!(find_name(&changed.page, b"name-1").unwrap().is_none(), "it refers to no inode");
        changed
            .put_header(second, &RawDentry { inode: 9, record_len: 24, name_len: 5, ..RawDentry::default() });
        assert!(find_name(&changed.page, b"name-1").unwrap().is_none(), "its name is shorter");
        assert_eq!(find_name(&changed.page, b"name-").unwrap().map(|found| found.at), Some(second));
        // What is left of a name in the free part of the record before it.
        changed.put_header(0, &RawDentry { inode: 1, record_len: 48, name_len: 6, ..RawDentry::default() });
        assert!(find_name(&changed.page, b"name-").unwrap().is_none());
        assert_eq!(find_name(&changed.page, b"name-0").unwrap().map(|found| found.at), Some(0));
        for record_len in [0, 12, 4092] {
            changed.put_header(0, &RawDentry { inode: 1, record_len, name_len: 6, ..RawDentry::default() });
            find_name(&changed.page, b"name-2").expect_err("a damaged record before it");
        }
    }

    #[test]
    fn names_of_every_length_are_found_among_their_prefixes() {
        let mut changed = Changed::new(0, empty_page(), true);
        let whole: Vec<u8> = (0..40).map(|at| b'a' + at % 26).collect();
        for len in (1..=whole.len()).rev() {
            let raw = RawDentry { inode: len as u64, name_len: len as u8, kind: 1, ..RawDentry::default() };
            changed.put_name(&whole[..len], raw).unwrap().unwrap();
        }
        for len in 1..=whole.len() {
            let found = find_name(&changed.page, &whole[..len]).unwrap().unwrap();
            assert_eq!((found.raw.inode, found.name(&changed.page)), (len as u64, &whole[..len]));
        }
        assert!(
            find_name(&changed.page, b"abd").unwrap().is_none()
                && find_name(&changed.page, b"").unwrap().is_none()
        );
    }

    #[test]
    fn words_count_that_somebody_reads_before_the_commit() {
        let raw = |inode| RawDentry { inode, name_len: 6, kind: 1, ..RawDentry::default() };
        let mut changed = Changed::new(0, empty_page(), false);
        assert_eq!(changed.put_name(b"name-0", raw(1)).unwrap(), Ok(0));
        let words = |changed: &Changed| changed.differences().to_vec();
        assert_eq!(words(&changed), [(0, true), (8, true), (16, false)], "its header says that it is free");

        let mut changed = Changed::new(0, changed.page, false);
        assert_eq!(changed.put_name(b"name-1", raw(2)).unwrap(), Ok(24));
        assert_eq!(words(&changed), [(8, true), (24, false), (32, false), (40, false)]);

        let mut changed = Changed::new(0, changed.page, false);
        assert_eq!(changed.remove(24).unwrap(), BLOCK - 24);
        assert_eq!(words(&changed), [(8, true)]);
        assert_eq!(changed.put_name(b"name-2", raw(3)).unwrap(), Ok(24));
        assert_eq!(words(&changed), [(8, true), (24, true), (40, true)], "a crash brings the first one back");

        assert_eq!(changed.remove(0).unwrap(), 24);
        assert_eq!(changed.put_name(b"name-3", raw(4)).unwrap(), Ok(0));
        assert_eq!(words(&changed)[..3], [(0, true), (8, true), (16, true)]);
    }
}
