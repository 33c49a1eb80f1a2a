//! Inodes without names: a list through them, of which each change is a part of the operation around it. An inode that
//! has no holder is reclaimed, after the mount or by the next operation.

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

impl<P: Pm> Shared<P> {
    /// The word of the volume's row that begins the list of an inode, and the row.
    fn head_of(&self, number: u64) -> (u64, u64) {
        let row = self.geometry.volumes.start;
        let heads = row + std::mem::offset_of!(RawVolume, orphans) as u64;
        (heads + number % ORPHAN_HEADS as u64 * 8, row)
    }

    /// The first inodes of all lists.
    pub(crate) fn first_orphans(&self) -> Result<Vec<u64>> {
        let heads = (0..ORPHAN_HEADS as u64).map(|index| {
            let (word, row) = self.head_of(index);
            self.read_word(word, self.geometry.seed(row), || "the lists of orphans".to_owned())
        });
        heads.filter(|head| !matches!(head, Ok(0))).collect()
    }

    /// The neighbours of an inode in its list: the next and the one before.
    pub(crate) fn neighbours(&self, number: u64) -> Result<[u64; 2]> {
        let address = self.address(number)?;
        let mut words = [0; 2];
        let seed = self.geometry.seed(address);
        self.read_words(address + NEXT_ORPHAN, seed, &mut words, || format!("the list of inode {number}"))?;
        Ok(words)
    }

    /// Frees inodes that have neither names nor holders. Gives whether there were some.
    pub(crate) fn reclaim_buried(&self) -> bool {
        if self.read_only {
            return false;
        }
        let buried = self.held.take_buried();
        for &number in &buried {
            // An inode that cannot be freed stays on its list, and the next mount finds it.
            let _ = self.reclaim(number);
        }
        !buried.is_empty()
    }

    /// Frees an inode without names, unless it has a holder.
    pub(crate) fn reclaim(&self, number: u64) -> Result<()> {
        let _lock = self.lock(&[number]);
        if self.held.is_held(number) || !self.is_inode(self.address(number)?)? {
            return Ok(());
        }
        let mut raw = self.read_inode(number)?;
        if raw.links > 0 {
            return Ok(());
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
            change.leave_list(number)?;
            change.free_inode(number, &raw)?;
            change.commit()
        })
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
        self.account.inodes -= 1;
        self.free_entry(INODES, fs.address(number)?)
    }
}
