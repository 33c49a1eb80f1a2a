//! The content of simulated memory as a value: cheap to copy, and to compare with a relative.

use std::collections::BTreeMap;
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, LINE_SIZE};

const BLOCK: usize = BLOCK_SIZE as usize;

/// The content of simulated memory: a base that relatives share, and the blocks that differ from it.
#[derive(Debug, Clone)]
pub struct Image {
    base: Arc<Vec<u8>>,
    /// Each of [`BLOCK_SIZE`] bytes, the last one perhaps less.
    changed: Arc<BTreeMap<u64, Arc<Vec<u8>>>>,
}

impl Image {
    /// `len` zero bytes, a multiple of 64.
    pub fn zeros(len: u64) -> Image {
        Image::from(vec![0; len as usize])
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.base.len() as u64
    }

    /// True for an image without a byte.
    pub fn is_empty(&self) -> bool {
        self.base.is_empty()
    }

    /// All its bytes in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.base.to_vec();
        for (block, content) in &*self.changed {
            let start = *block as usize * BLOCK;
            bytes[start..start + content.len()].copy_from_slice(content);
        }
        bytes
    }

    /// The bytes of one block.
    pub fn block(&self, block: u64) -> &[u8] {
        match self.changed.get(&block) {
            Some(content) => content,
            None => {
                let start = block as usize * BLOCK;
                &self.base[start..(start + BLOCK).min(self.base.len())]
            }
        }
    }

    /// The bytes of one line (offset divided by 64).
    pub fn line(&self, line: u64) -> [u8; LINE_SIZE as usize] {
        let start = (line * LINE_SIZE % BLOCK_SIZE) as usize;
        self.block(line * LINE_SIZE / BLOCK_SIZE)[start..start + LINE_SIZE as usize]
            .try_into()
            .expect("a line")
    }

    /// Changes one line.
    pub fn set_line(&mut self, line: u64, bytes: &[u8; LINE_SIZE as usize]) {
        let block = line * LINE_SIZE / BLOCK_SIZE;
        if !self.changed.contains_key(&block) {
            self.set_block(block, self.block(block).to_vec());
        }
        let content = Arc::make_mut(&mut self.changed).get_mut(&block).expect("just inserted");
        let start = (line * LINE_SIZE % BLOCK_SIZE) as usize;
        Arc::make_mut(content)[start..start + LINE_SIZE as usize].copy_from_slice(bytes);
    }

    /// Changes one block.
    pub(crate) fn set_block(&mut self, block: u64, bytes: Vec<u8>) {
        Arc::make_mut(&mut self.changed).insert(block, Arc::new(bytes));
    }

    /// Blocks that may differ between two images; `None` when they have no common base and any may.
    pub(crate) fn differing_blocks(&self, other: &Image) -> Option<Vec<u64>> {
        if !Arc::ptr_eq(&self.base, &other.base) {
            return None;
        }
        if Arc::ptr_eq(&self.changed, &other.changed) {
            return Some(Vec::new());
        }
        let same = |block: &u64| match (self.changed.get(block), other.changed.get(block)) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            _ => false,
        };
        Some(self.changed.keys().chain(other.changed.keys()).filter(|block| !same(block)).copied().collect())
    }
}

impl From<Vec<u8>> for Image {
    /// The number of bytes must be a multiple of 64.
    fn from(bytes: Vec<u8>) -> Image {
        assert!((bytes.len() as u64).is_multiple_of(LINE_SIZE), "the size is a multiple of a line");
        Image { base: Arc::new(bytes), changed: Arc::default() }
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        self.len() == other.len()
            && match self.differing_blocks(other) {
                Some(blocks) => blocks.iter().all(|block| self.block(*block) == other.block(*block)),
                None => {
                    (0..self.len().div_ceil(BLOCK_SIZE)).all(|block| self.block(block) == other.block(block))
                }
            }
    }
}

impl Eq for Image {}

#[cfg(test)]
mod tests {
    use super::Image;

    #[test]
    fn relatives_differ_where_they_were_changed() {
        let one = Image::zeros(8192 + 64);
        let mut two = one.clone();
        two.set_line(128, &[7; 64]);
        two.set_line(3, &[8; 64]);
        assert_eq!((two.line(128), two.line(3), two.line(4)), ([7; 64], [8; 64], [0; 64]));
        assert_eq!(one.line(128), [0; 64]);
        assert_ne!(one, two);
        let mut three = two.clone();
        assert_eq!(three.differing_blocks(&two), Some(vec![]));
        three.set_line(3, &[0; 64]);
        three.set_line(128, &[0; 64]);
        assert_eq!(three, one);
        assert_eq!(two.to_vec(), Image::from(two.to_vec()).to_vec());
        assert_eq!(two, Image::from(two.to_vec()));
    }
}
