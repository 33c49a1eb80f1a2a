//! The image of a log on a tier: its bytes, and what an inode in DRAM knows of it. See [`offload`](crate::offload).

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{BLOCK_SIZE, Block, Error, Result, TierReader, TierRun};
use zerocopy::{FromBytes, IntoBytes};

use crate::blockmap::{BlockMap, Piece};
use crate::format::{IMAGE_MAGIC, ImageEntry, ImageExtent, MAX_FILE_SIZE, RawImageHeader, inode_seed, place};
use crate::log::IN_IMAGE;
use crate::places::Reach;

/// The place of an image, and its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) run: TierRun,
    pub(crate) extents: u32,
    /// Blocks of the file.
    pub(crate) file_blocks: u64,
    checksum: u32,
}

/// The inode that an image belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whose {
    pub(crate) number: u64,
    pub(crate) generation: u32,
}

/// The image of an inode, if there is one.
#[derive(Default)]
pub(crate) struct ImageSlot {
    /// Changed under the log's lock.
    is_there: AtomicBool,
    /// The map has nothing of it yet.
    is_unread: AtomicBool,
    image: Mutex<Option<Box<Image>>>,
}

impl ImageSlot {
    /// The slot of an inode after its log was read.
    pub(crate) fn unread(image: Option<Image>) -> ImageSlot {
        let is_there = image.is_some();
        ImageSlot {
            is_there: AtomicBool::new(is_there),
            is_unread: AtomicBool::new(is_there),
            image: Mutex::new(image.map(Box::new)),
        }
    }

    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self) -> Option<Image> {
        self.image.lock().as_deref().copied()
    }

    /// Has `fill` take the image into the map, unless that was done. Other callers wait for it.
    pub(crate) fn fill(&self, fill: impl FnOnce(&Image) -> Result<()>) -> Result<()> {
        let image = self.image.lock();
        if let Some(image) = image.as_deref().filter(|_| self.is_unread()) {
            fill(image)?;
            self.is_unread.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// The log names it from now on, or none any more; the map has its contents.
    pub(crate) fn set(&self, image: Option<Image>) {
        self.is_there.store(image.is_some(), Ordering::Release);
        *self.image.lock() = image.map(Box::new);
    }
}

impl Image {
    /// The image that an entry names, if the entry is plausible.
    pub(crate) fn of(entry: &ImageEntry, reach: &Reach) -> Option<Image> {
        let ImageEntry { place: raw, image_blocks, extents, file_blocks, image_checksum, .. } = *entry;
        let len = u64::from(image_blocks);
        let is_whole = extents > 0
            && len == blocks_of(u64::from(extents))
            && entry.reserved == 0
            && entry.reserved2 == [0; 2]
            // All of it is on that tier, so that no heap memory is taken for blocks that are not there.
            && (u64::from(extents)..=reach.blocks_of(place::tier(raw))).contains(&file_blocks);
        let is_there = place::tier(raw) != 0 && raw & place::UNWRITTEN == 0 && reach.holds(raw, len);
        let run = TierRun { tier: place::tier(raw), start: Block(raw & place::BLOCK_MASK), len };
        (is_whole && is_there).then_some(Image { run, extents, file_blocks, checksum: image_checksum })
    }

    /// Its place, as an entry names it.
    pub(crate) fn place(&self) -> u64 {
        place::on_tier(self.run.tier, self.run.start.0)
    }

    /// Reads it, and gives the extents that it names.
    pub(crate) fn read(
        &self,
        reader: &dyn TierReader,
        whose: Whose,
        volume_seed: u32,
        reach: &Reach,
    ) -> Result<Vec<Piece>> {
        let content = reader.read_image(self.run)?;
        self.extents_in(&content, whose, inode_seed(volume_seed, whose.number, whose.generation), reach)
            .ok_or_else(|| self.damaged(whose))
    }

    pub(crate) fn damaged(&self, Whose { number, .. }: Whose) -> Error {
        let TierRun { tier, start, .. } = self.run;
        Error::corrupt(format!(
            "tier {tier}: the offloaded extent map at block {} of inode {number}",
            start.0
        ))
        .advice("the blocks of the file cannot be found: restore the tier, or remove the file")
    }

    /// The extents in its content, if that is whole and can be.
    fn extents_in(&self, content: &[u8], whose: Whose, seed: u32, reach: &Reach) -> Option<Vec<Piece>> {
        let (header, rest) = RawImageHeader::read_from_prefix(content).ok()?;
        let is_this = content.len() as u64 == self.run.len * BLOCK_SIZE
            && crc32c::crc32c_append(seed, content) == self.checksum
            && header.magic == IMAGE_MAGIC
            && (header.inode, header.generation) == (whose.number, whose.generation)
            && (header.extents, header.file_blocks) == (self.extents, self.file_blocks);
        if !is_this {
            return None;
        }
        let mut pieces = Vec::with_capacity(self.extents as usize);
        let (mut end, mut sum) = (0, 0);
        for bytes in rest.chunks_exact(size_of::<ImageExtent>()).take(self.extents as usize) {
            let extent = ImageExtent::read_from_bytes(bytes).ok()?;
            let ImageExtent { file_block: start, place: raw, .. } = extent;
            let len = u64::from(extent.blocks);
            let is_in_file = len > 0 && start >= end && start.checked_add(len)? <= MAX_FILE_SIZE / BLOCK_SIZE;
            if !is_in_file || place::tier(raw) != self.run.tier || !reach.holds(raw, len) {
                return None;
            }
            pieces.push(Piece { start, len, place: raw, owner: IN_IMAGE });
            (end, sum) = (start + len, sum + len);
        }
        (pieces.len() == self.extents as usize && sum == self.file_blocks).then_some(pieces)
    }
}

/// Blocks that an image with so many extents takes.
fn blocks_of(extents: u64) -> u64 {
    (size_of::<RawImageHeader>() as u64 + extents * size_of::<ImageExtent>() as u64).div_ceil(BLOCK_SIZE)
}

/// The content of the image of a file with these extents.
pub(crate) fn content_of(whose: Whose, extents: &[ImageExtent], file_blocks: u64) -> Vec<u8> {
    let header = RawImageHeader {
        magic: IMAGE_MAGIC,
        generation: whose.generation,
        inode: whose.number,
        extents: extents.len() as u32,
        reserved: 0,
        file_blocks,
    };
    let mut content = header.as_bytes().to_vec();
    content.extend_from_slice(extents.as_bytes());
    content.resize((blocks_of(extents.len() as u64) * BLOCK_SIZE) as usize, 0);
    content
}

/// All blocks of a file, if they are on one tier: which, and its extents.
pub(crate) fn extents_on_one_tier(map: &BlockMap) -> Option<(u8, Vec<ImageExtent>, u64)> {
    let mut found: Option<(u8, Vec<ImageExtent>, u64)> = None;
    let mut is_one = true;
    map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| {
        let here = place::tier(piece.place);
        let (tier, extents, blocks) = found.get_or_insert_with(|| (here, Vec::new(), 0));
        is_one &= here == *tier && here != 0 && piece.place & place::SHARED == 0;
        if !is_one {
            return;
        }
        *blocks += piece.len;
        if let Some(last) = extents.last_mut()
            && last.file_block + u64::from(last.blocks) == piece.start
            && last.place + u64::from(last.blocks) == piece.place
            && u64::from(last.blocks) + piece.len <= u64::from(u32::MAX)
        {
            last.blocks += piece.len as u32;
            return;
        }
        let blocks = u32::try_from(piece.len).unwrap_or(0);
        is_one &= blocks > 0;
        extents.push(ImageExtent { file_block: piece.start, place: piece.place, blocks, reserved: 0 });
    });
    found.filter(|(_, extents, _)| is_one && u32::try_from(extents.len()).is_ok())
}

#[cfg(test)]
mod tests {
    use nacre_engine::{BLOCK_SIZE, Block, TierRun};
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    use super::{Image, Whose, blocks_of, content_of};
    use crate::format::{ImageEntry, ImageExtent, RawImageHeader, RawSuperblock, place};
    use crate::places::Reach;

    const WHOSE: Whose = Whose { number: 7, generation: 3 };
    const SEED: u32 = 99;
    const BLOCKS: u64 = 1000;

    fn reach() -> Reach {
        let mut raw = RawSuperblock::new_zeroed();
        raw.device_blocks = 5000;
        raw.tiers[0].state = 1;
        raw.tiers[0].blocks = BLOCKS;
        Reach::of(5000, &raw)
    }

    fn of_content(content: &[u8], extents: u32, file_blocks: u64) -> Image {
        let run = TierRun { tier: 1, start: Block(10), len: content.len() as u64 / BLOCK_SIZE };
        Image { run, extents, file_blocks, checksum: crc32c::crc32c_append(SEED, content) }
    }

    fn extents() -> Vec<ImageExtent> {
        let extent = |at: u64| ImageExtent {
            file_block: at * 5,
            place: place::on_tier(1, 100 + at * 4),
            blocks: 3,
            reserved: 0,
        };
        (0..200).map(extent).collect()
    }

    #[test]
    fn what_an_image_says_is_read_back() {
        let extents = extents();
        let content = content_of(WHOSE, &extents, 600);
        assert_eq!(content.len() as u64, blocks_of(200) * BLOCK_SIZE);
        let image = of_content(&content, 200, 600);
        let found = image.extents_in(&content, WHOSE, SEED, &reach()).expect("it is whole");
        assert!(found.iter().zip(&extents).all(|(piece, extent)| {
            (piece.start, piece.place, piece.len) == (extent.file_block, extent.place, 3)
        }));
        assert!(image.extents_in(&content, Whose { number: 8, ..WHOSE }, SEED, &reach()).is_none());
        for bit in (0..content.len() * 8).step_by(77) {
            let mut damaged = content.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(image.extents_in(&damaged, WHOSE, SEED, &reach()).is_none(), "bit {bit}");
        }
    }

    /// With a checksum that is right, too, nothing is believed that cannot be.
    #[test]
    fn what_cannot_be_is_refused() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let values = [0, 1, 2, 3, BLOCKS, u64::from(u32::MAX), 1 << 48, u64::MAX, place::on_tier(2, 5)];
        for _ in 0..20_000 {
            let mut content = content_of(WHOSE, &extents(), 600);
            let field = next() as usize % (200 * 3 + 2);
            let value = values[next() as usize % values.len()];
            let at = if field < 2 { 16 + field * 8 } else { 32 + (field - 2) * 8 };
            content[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let (header, _) = RawImageHeader::read_from_prefix(&content).unwrap();
            let image = of_content(&content, header.extents, header.file_blocks);
            let Some(found) = image.extents_in(&content, WHOSE, SEED, &reach()) else { continue };
            let mut end = 0;
            for piece in found {
                assert!(piece.start >= end && piece.len > 0 && reach().holds(piece.place, piece.len));
                end = piece.start + piece.len;
            }
        }
    }

    #[test]
    fn an_entry_names_no_more_than_there_is() {
        let entry = ImageEntry {
            place: place::on_tier(1, 10),
            image_blocks: 2,
            extents: 200,
            file_blocks: 600,
            ..ImageEntry::default()
        };
        assert!(Image::of(&entry, &reach()).is_some());
        for wrong in [
            ImageEntry { file_blocks: BLOCKS + 1, ..entry },
            ImageEntry { file_blocks: 199, ..entry },
            ImageEntry { image_blocks: 3, ..entry },
            ImageEntry { extents: u32::MAX, image_blocks: blocks_of(u64::from(u32::MAX)) as u32, ..entry },
            ImageEntry { extents: 0, image_blocks: 1, ..entry },
            ImageEntry { place: 10, ..entry },
            ImageEntry { place: place::on_tier(2, 10), ..entry },
            ImageEntry { place: place::on_tier(1, BLOCKS - 2), ..entry },
            ImageEntry { place: place::on_tier(1, 10) | place::UNWRITTEN, ..entry },
            ImageEntry { reserved: 1, ..entry },
        ] {
            assert!(Image::of(&wrong, &reach()).is_none(), "{wrong:?}");
            assert_eq!(wrong.as_bytes().len(), 64);
        }
    }
}
