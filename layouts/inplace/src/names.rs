//! Changing the names of a directory.
//!
//! An [`Edit`] changes copies of blocks and then says which words differ: those that counted before are the
//! transaction's, those that were free space nobody reads. A directory that has no room grows by a block.

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Result};
use nacre_media::{Flushed, Pm};
use zerocopy::IntoBytes;

use crate::alloc::{Purpose, Runs};
use crate::blockmap;
use crate::commit::{Transaction, join};
use crate::directory::{
    BLOCK, Directory, Found, Page, Record, directory_of, find_record, hash, needed, record_at,
};
use crate::format::{DENTRY_HEADER, RawDentry, word};
use crate::fs::Shared;
use crate::inode::{Body, Inode};

/// A block of a directory that is being changed.
struct Changed {
    /// Which of the directory's blocks.
    at: usize,
    /// As it is on media; a new block has none.
    old: Option<Box<Page>>,
    new: Box<Page>,
}

/// What the index is told after the commit.
enum Note {
    Added(u64, u64, FileKind),
    Removed(u64, u64, FileKind),
    Replaced(FileKind, FileKind),
}

/// A change of one directory's names.
pub(crate) struct Edit<'a, P: Pm> {
    fs: &'a Shared<P>,
    inode: &'a Inode,
    pages: Vec<Changed>,
    notes: Vec<Note>,
    /// The block that the directory grows by, and the tree with it.
    grown: Option<(Runs, blockmap::Edit<'a, P>)>,
}

impl<'a, P: Pm> Edit<'a, P> {
    pub(crate) fn new(fs: &'a Shared<P>, inode: &'a Inode) -> Edit<'a, P> {
        Edit { fs, inode, pages: Vec::new(), notes: Vec::new(), grown: None }
    }

    /// The copy of a block.
    fn page(&mut self, directory: &Directory, at: usize) -> Result<&mut Changed> {
        let index = match self.pages.iter().position(|page| page.at == at) {
            Some(index) => index,
            None => {
                let mut old = Box::new([0; BLOCK]);
                directory.read_page(&*self.fs.pm, at, &mut old)?;
                self.pages.push(Changed { at, new: old.clone(), old: Some(old) });
                self.pages.len() - 1
            }
        };
        Ok(&mut self.pages[index])
    }

    /// Takes a name away.
    pub(crate) fn remove(&mut self, directory: &Directory, found: &Found, name: &[u8]) -> Result<()> {
        let within = found.offset as usize % BLOCK;
        let page = self.page(directory, found.offset as usize / BLOCK)?;
        let mut before: Option<Record> = None;
        let record = find_record(&page.new, |record| {
            if record.at == within {
                return Ok(Some(record));
            }
            before = Some(record);
            Ok(None)
        })?;
        let record = record.ok_or_else(|| Error::corrupt("directory: a name is not where it was"))?;
        match before {
            Some(before) => {
                let raw = RawDentry { record_len: (before.len() + record.len()) as u16, ..before.raw };
                put_header(&mut page.new, before.at, &raw);
            }
            None => put_header(&mut page.new, 0, &RawDentry { inode: 0, ..record.raw }),
        }
        self.notes.push(Note::Removed(hash(name, self.fs.hash_seed), found.offset, found.kind));
        Ok(())
    }

    /// A name refers to another inode.
    pub(crate) fn replace(&mut self, directory: &Directory, found: &Found, inode: &Inode) -> Result<()> {
        let within = found.offset as usize % BLOCK;
        let page = self.page(directory, found.offset as usize / BLOCK)?;
        let record = record_at(&page.new, within)?;
        let raw = RawDentry {
            inode: inode.number,
            kind: inode.kind as u8,
            generation: inode.generation,
            ..record.raw
        };
        put_header(&mut page.new, within, &raw);
        self.notes.push(Note::Replaced(found.kind, inode.kind));
        Ok(())
    }

    /// Adds a name, which is not there.
    pub(crate) fn insert(&mut self, body: &Body, name: &[u8], inode: &Inode, purpose: Purpose) -> Result<()> {
        let directory = directory_of(body)?;
        let raw = RawDentry {
            inode: inode.number,
            record_len: 0,
            name_len: name.len() as u8,
            kind: inode.kind as u8,
            generation: inode.generation,
        };
        let at = match self.block_with_room(directory, needed(name.len()))? {
            Some(at) => at,
            None => self.add_block(directory, body.root, purpose)?,
        };
        let page = self.page(directory, at)?;
        let within = put_name(&mut page.new, name, raw)?
            .ok_or_else(|| Error::corrupt("directory: room that is not there"))?;
        let offset = (at * BLOCK + within) as u64;
        self.notes.push(Note::Added(hash(name, self.fs.hash_seed), offset, inode.kind));
        Ok(())
    }

    /// The first block in which a record has so much room.
    fn block_with_room(&self, directory: &Directory, needed: usize) -> Result<Option<usize>> {
        let mut buffer = [0; BLOCK];
        for at in 0..directory.blocks.len() {
            let page = match self.pages.iter().find(|page| page.at == at) {
                Some(page) => &page.new,
                None => {
                    if directory.room(at) < needed {
                        continue;
                    }
                    directory.read_page(&*self.fs.pm, at, &mut buffer)?;
                    &buffer
                }
            };
            if largest_room(page)? >= needed {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn add_block(&mut self, directory: &Directory, root: u64, purpose: Purpose) -> Result<usize> {
        let at = directory.blocks.len();
        let mut runs = Runs::new();
        self.fs.allocate(None, 1, purpose, &mut runs)?;
        let mut tree = blockmap::Edit::new(self.fs, root);
        let result = tree.set(at as u64, 1, runs[0].start.0);
        self.grown = Some((runs, tree));
        result?;
        self.pages.push(Changed { at, old: None, new: empty_page() });
        Ok(at)
    }

    /// Adds the words to the transaction, and writes what nothing leads to yet.
    pub(crate) fn finish(
        &self,
        directory: &Directory,
        transaction: &mut Transaction,
        mut pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        for page in &self.pages {
            match &page.old {
                Some(old) => {
                    let address = Block(directory.blocks[page.at]).offset();
                    put_difference(transaction, address, old, &page.new)?;
                }
                None => {
                    let (runs, tree) =
                        self.grown.as_ref().ok_or_else(|| Error::corrupt("directory: no block"))?;
                    pending = join(pending, self.fs.pm.copy(runs[0].start.offset(), &page.new[..])?);
                    pending = tree.finish(transaction, pending)?;
                    transaction.word(self.inode.address + word::ROOT, tree.root);
                    transaction.word(self.inode.address + word::SIZE, (page.at as u64 + 1) * BLOCK_SIZE);
                }
            }
        }
        Ok(pending)
    }

    /// After the commit: what is known in DRAM follows.
    pub(crate) fn done(self, body: &mut Body) {
        use nacre_engine::sync::atomic::Ordering::{Relaxed, Release};
        let Some(directory) = &mut body.directory else { return };
        directory.forget_last();
        if let Some((runs, tree)) = &self.grown {
            directory.blocks.push(runs[0].start.0);
            body.root = tree.root;
            self.inode.size.store(directory.blocks.len() as u64 * BLOCK_SIZE, Release);
            self.inode.blocks.fetch_add(1, Relaxed);
        }
        for page in &self.pages {
            directory.note_room(page.at, largest_room(&page.new).unwrap_or(BLOCK));
        }
        for note in &self.notes {
            let is_directory = |kind: FileKind| u32::from(kind == FileKind::Directory);
            match *note {
                Note::Added(hash, offset, kind) => {
                    directory.remember(hash, offset);
                    directory.entries += 1;
                    directory.subdirectories += is_directory(kind);
                }
                Note::Removed(hash, offset, kind) => {
                    directory.forget(hash, offset);
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

    /// The change was not committed: gives back what it took.
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

fn put_header(page: &mut Page, at: usize, raw: &RawDentry) {
    page[at..at + DENTRY_HEADER].copy_from_slice(raw.as_bytes());
}

fn largest_room(page: &Page) -> Result<usize> {
    let mut room = 0;
    find_record(page, |record| {
        room = room.max(record.len() - record.needed());
        Ok(None::<()>)
    })?;
    Ok(room)
}

/// Puts a name where there is room; gives its place.
fn put_name(page: &mut Page, name: &[u8], raw: RawDentry) -> Result<Option<usize>> {
    let needed = needed(name.len());
    let fits = |record: Record| Ok((record.len() - record.needed() >= needed).then_some(record));
    let Some(record) = find_record(page, fits)? else { return Ok(None) };
    let (at, len) = (record.at + record.needed(), record.len() - record.needed());
    if record.is_used() {
        put_header(page, record.at, &RawDentry { record_len: record.needed() as u16, ..record.raw });
    }
    page[at..at + needed].fill(0);
    put_header(page, at, &RawDentry { record_len: len as u16, ..raw });
    page[at + DENTRY_HEADER..at + DENTRY_HEADER + name.len()].copy_from_slice(name);
    Ok(Some(at))
}

/// The words in which two pages differ: those that count in the old one, and those that are free space there.
fn put_difference(transaction: &mut Transaction, address: u64, old: &Page, new: &Page) -> Result<()> {
    let mut counts = [false; BLOCK / 8];
    find_record(old, |record| {
        let end = record.at + record.needed().max(DENTRY_HEADER);
        counts[record.at / 8..end / 8].fill(true);
        Ok(None::<()>)
    })?;
    let words = old.chunks_exact(8).zip(new.chunks_exact(8)).enumerate();
    for (index, (old, new)) in words.filter(|(_, (old, new))| old != new) {
        let (at, value) =
            (address + index as u64 * 8, u64::from_le_bytes(new.try_into().unwrap_or_default()));
        debug_assert_ne!(old, new);
        if counts[index] { transaction.word(at, value) } else { transaction.idle_word(at, value) }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, RawDentry, empty_page, find_record, largest_room, put_header, put_name};
    use crate::directory::find_name;

    #[test]
    fn names_fill_a_page_and_are_found() {
        let mut page = empty_page();
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
            match put_name(&mut page, &name(count), raw).unwrap() {
                Some(_) => count += 1,
                None => break,
            }
        }
        assert_eq!(count, BLOCK as u64 / 24);
        assert!(largest_room(&page).unwrap() < 24);
        let mut seen = 0;
        find_record(&page, |record| {
            assert_eq!(record.name(&page), name(seen));
            assert_eq!(find_name(&page, &name(seen)).unwrap().map(|found| found.at), Some(record.at));
            seen += 1;
            Ok(None::<()>)
        })
        .unwrap();
        assert_eq!(seen, count);
        assert!(find_name(&page, &name(count)).unwrap().is_none());
        let second = 24;
        put_header(&mut page, second, &RawDentry { record_len: 24, name_len: 6, ..RawDentry::default() });
        assert!(find_name(&page, b"name-1").unwrap().is_none(), "it refers to no inode");
        put_header(
            &mut page,
            second,
            &RawDentry { inode: 9, record_len: 24, name_len: 5, ..RawDentry::default() },
        );
        assert!(find_name(&page, b"name-1").unwrap().is_none(), "its name is shorter");
        assert_eq!(find_name(&page, b"name-").unwrap().map(|found| found.at), Some(second));
        // What is left of a name in the free part of the record before it.
        put_header(
            &mut page,
            0,
            &RawDentry { inode: 1, record_len: 48, name_len: 6, ..RawDentry::default() },
        );
        assert!(find_name(&page, b"name-").unwrap().is_none());
        assert_eq!(find_name(&page, b"name-0").unwrap().map(|found| found.at), Some(0));
        for record_len in [0, 12, 4092] {
            put_header(
                &mut page,
                0,
                &RawDentry { inode: 1, record_len, name_len: 6, ..RawDentry::default() },
            );
            find_name(&page, b"name-2").expect_err("a damaged record before it");
        }
    }

    #[test]
    fn names_of_every_length_are_found_among_their_prefixes() {
        let mut page = empty_page();
        let whole: Vec<u8> = (0..40).map(|at| b'a' + at % 26).collect();
        for len in (1..=whole.len()).rev() {
            let raw = RawDentry { inode: len as u64, name_len: len as u8, kind: 1, ..RawDentry::default() };
            put_name(&mut page, &whole[..len], raw).unwrap().unwrap();
        }
        for len in 1..=whole.len() {
            let found = find_name(&page, &whole[..len]).unwrap().unwrap();
            assert_eq!((found.raw.inode, found.name(&page)), (len as u64, &whole[..len]));
        }
        assert!(find_name(&page, b"abd").unwrap().is_none() && find_name(&page, b"").unwrap().is_none());
    }
}
