//! Inodes without names: a list through them, of which each change is a part of the operation around it. An inode that
//! has no holder is reclaimed, after the mount or by the next operation.

use std::collections::BTreeSet;

use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{FileKind, Result};
use nacre_media::Pm;

use crate::blockmap::Tree;
use crate::commit::Change;
use crate::format::pools::INODES;
use crate::format::{
    INLINE_TARGET, NEXT_ORPHAN, ORPHAN_HEADS, PREVIOUS_ORPHAN, RawInode, RawVolume, seal_any,
};
use crate::fs::Shared;
use crate::inode::kind_of;
use crate::seeded::Mistake;
use crate::space::STEP;

/// The largest number of inodes that an operation frees before its own work.
const RECLAIMED_AT_ONCE: usize = 8;

impl<P: Pm> Shared<P> {
    /// The word of the volume's row that begins the list of an inode, and the row.
    fn head_of(&self, number: u64) -> (u64, u64) {
        let row = self.geometry.row();
        let heads = row + std::mem::offset_of!(RawVolume, orphans) as u64;
        (heads + number % ORPHAN_HEADS as u64 * 8, row)
    }

    /// The first inode of a list, or 0.
    pub(crate) fn first_orphan(&self, list: usize) -> Result<u64> {
        let (word, row) = self.head_of(list as u64);
        self.read_word(word, self.geometry.seed(row), || "the lists of orphans".to_owned())
    }

    /// An inode of the lists that is neither held nor among those that were tried.
    pub(crate) fn orphan_left(&self, tried: &BTreeSet<u64>) -> Result<Option<u64>> {
        let _orphans = self.orphans.lock();
        // A list that leads to itself, on damaged media, ends with what could be passed over.
        let passed = self.held.len() + tried.len() as u64;
        for list in 0..ORPHAN_HEADS {
            let mut number = self.first_orphan(list)?;
            for _ in 0..=passed {
                if number == 0 {
                    break;
                }
                if !tried.contains(&number) && !self.held.is_held(number) {
                    return Ok(Some(number));
                }
                number = self.neighbours(number)?[0];
            }
        }
        Ok(None)
    }

    /// The neighbours of an inode in its list: the next and the one before.
    pub(crate) fn neighbours(&self, number: u64) -> Result<[u64; 2]> {
        let address = self.address(number)?;
        let mut words = [0; 2];
        let seed = self.geometry.seed(address);
        self.read_words(address + NEXT_ORPHAN, seed, &mut words, || format!("the list of inode {number}"))?;
        Ok(words)
    }

    /// Frees a few inodes without names or holders: more than an operation adds.
    pub(crate) fn reclaim_some(&self) {
        if !self.read_only && self.held.buried.some.load(Ordering::Acquire) {
            self.reclaim_at_most(RECLAIMED_AT_ONCE);
        }
    }

    /// Frees all of them, and waits for those that other threads free.
    pub(crate) fn reclaim_all(&self) {
        if self.read_only {
            return;
        }
        while self.reclaim_at_most(usize::MAX) {}
        if self.orphans_left.load(Ordering::Acquire) {
            self.reclaim_left(&AtomicBool::new(false));
        }
        drop(self.held.buried.freeing.write());
    }

    /// Gives whether there were some.
    fn reclaim_at_most(&self, count: usize) -> bool {
        let buried = &self.held.buried;
        let _freeing = buried.freeing.read();
        let taken = buried.take(count);
        for &number in &taken {
            // An inode that cannot be freed stays on its list.
            if self.reclaim(number).is_err() {
                self.orphans_left.store(true, Ordering::Release);
            }
        }
        !taken.is_empty()
    }

    /// Frees the inodes on the lists that have no holder: those that a crash left, or that could not be freed before.
    pub(crate) fn reclaim_left(&self, stop: &AtomicBool) {
        let mut tried = BTreeSet::new();
        while !stop.load(Ordering::Acquire) {
            let _freeing = self.held.buried.freeing.read();
            let Ok(Some(number)) = self.orphan_left(&tried) else {
                self.orphans_left.store(false, Ordering::Release);
                return;
            };
            // On damaged media a list may lead to an inode that is free, or that has names.
            if !self.reclaim(number).unwrap_or(false) {
                tried.insert(number);
            }
        }
    }

    /// Frees an inode without names, unless it has a holder; gives whether it was freed.
    pub(crate) fn reclaim(&self, number: u64) -> Result<bool> {
        let _lock = self.lock(&[number]);
        if self.held.is_held(number) || !self.is_inode(self.address(number)?)? {
            return Ok(false);
        }
        let mut raw = self.read_inode(number)?;
        if raw.links > 0 {
            return Ok(false);
        }
        let is_file = raw.kind == FileKind::Regular as u8;
        while is_file && raw.entries > STEP {
            let tree = self.tree(number, &raw)?;
            let Some(first) = self.first_piece(tree, 0, u64::MAX)? else { break };
            self.clear(number, first.start, first.start + STEP)?;
            raw = self.read_inode(number)?;
        }
        let _orphans = self.orphans.lock();
        self.change(|change| {
            change.free_inode(number, &raw)?;
            if Mistake::OrphanFreedEarly.is_made(&*self.pm) {
                change.commit()?;
            }
            change.leave_list(number)?;
            change.commit()
        })?;
        self.held.buried.freed.fetch_add(1, Ordering::Release);
        Ok(true)
    }
}

impl<P: Pm> Change<'_, P> {
    /// Puts an inode without names on the list. The caller has the lock of the lists.
    pub(crate) fn enter_list(&mut self, number: u64) -> Result<()> {
        let fs = self.fs;
        if Mistake::OrphanForgotten.is_made(&*fs.pm) {
            return Ok(());
        }
        let (word, row) = fs.head_of(number);
        let first = fs.read_word(word, fs.geometry.seed(row), || "the lists of orphans".to_owned())?;
        self.word(word, row, number);
        let address = fs.address(number)?;
        let seed = fs.geometry.seed(address);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&seal_any(first, seed).to_le_bytes());
        bytes[8..].copy_from_slice(&seal_any(0, seed).to_le_bytes());
        self.item(address + NEXT_ORPHAN, &bytes);
        if first != 0 {
            let address = fs.address(first)?;
            self.word(address + PREVIOUS_ORPHAN, address, number);
        }
        Ok(())
    }

    /// Takes an inode off the list.
    pub(crate) fn leave_list(&mut self, number: u64) -> Result<()> {
        let fs = self.fs;
        let [next, previous] = fs.neighbours(number)?;
        let (word, row) = fs.head_of(number);
        let first = fs.read_word(word, fs.geometry.seed(row), || "the lists of orphans".to_owned())?;
        if previous != 0 {
            let address = fs.address(previous)?;
            self.word(address + NEXT_ORPHAN, address, next);
        } else if first == number {
            self.word(word, row, next);
        }
        if next != 0 {
            let address = fs.address(next)?;
            self.word(address + PREVIOUS_ORPHAN, address, previous);
        }
        Ok(())
    }

    /// Frees an inode with everything that it has.
    pub(crate) fn free_inode(&mut self, number: u64, raw: &RawInode) -> Result<()> {
        let fs = self.fs;
        let root = fs.root_of(number, raw)?;
        match kind_of(raw)? {
            FileKind::Regular => {
                let tree = Tree { height: raw.height, root };
                self.free_tree(tree)?;
            }
            FileKind::Directory => self.free_directory(Tree { height: raw.height, root })?,
            FileKind::Symlink if raw.size > INLINE_TARGET as u64 => self.free_bytes(root)?,
            _ => {}
        }
        if raw.attributes != 0 {
            self.free_bytes(raw.attributes)?;
        }
        self.free_entry(INODES, fs.address(number)?)
    }
}
