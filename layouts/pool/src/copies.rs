//! Both copies of each structure, compared: for a check and for a scrub.

use std::ops::Range;

use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::directory::{PLACE, dentry_of};
use crate::format::pools::{INODES, NODES, SETS, SIZES};
use crate::format::{
    ATIME, BYTES_HEAD, INODE_SIZE, LANE_DONE, LINE, MAP_WORDS, NEXT_ORPHAN, NODE_WORDS, ORPHAN_HEADS,
    POOL_MAGIC, RawBytes, RawInode, RawPoolHead, RawVolume, RawZone, VOLUME_BYTES, bytes_checksum, open_any,
    status,
};
use crate::geometry::Geometry;

/// Bytes that are to be stored.
pub(crate) struct Fix {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// How a structure is told from damage.
enum Form {
    /// Checked words with the seed of an address.
    Words(u64),
    /// Such a word, of which each copy is right.
    Done(u64),
    Zone,
    Volume,
    PoolHead,
    Inode,
    Name,
    Bytes,
}

/// A structure that is there twice.
pub(crate) struct Copies<'n> {
    address: u64,
    len: usize,
    form: Form,
    what: std::borrow::Cow<'n, str>,
}

/// The result of a comparison.
pub(crate) struct Compared {
    /// A description of the damage, and the corrections. None of them where neither copy is whole.
    pub(crate) problem: Option<(String, Vec<Fix>)>,
    /// A copy is whole.
    pub(crate) is_readable: bool,
}

impl<'n> Copies<'n> {
    fn new(address: u64, len: usize, form: Form, what: impl Into<std::borrow::Cow<'n, str>>) -> Copies<'n> {
        Copies { address, len, form, what: what.into() }
    }

    pub(crate) fn zone(geometry: &Geometry) -> Copies<'n> {
        let what = format!("the row of zone {}", geometry.zone);
        Copies::new(geometry.zone_row(), size_of::<RawZone>(), Form::Zone, what)
    }

    pub(crate) fn volume(geometry: &Geometry) -> Copies<'n> {
        let what = format!("the row of volume {}", geometry.volume);
        Copies::new(geometry.row(), VOLUME_BYTES, Form::Volume, what)
    }

    pub(crate) fn orphan_heads(geometry: &Geometry) -> Copies<'n> {
        let at = geometry.row();
        Copies::words(at + VOLUME_BYTES as u64, at, ORPHAN_HEADS, "the lists of orphans".to_owned())
    }

    pub(crate) fn done(geometry: &Geometry, index: u64) -> Copies<'n> {
        let lane = geometry.lane(index);
        Copies::new(lane + LANE_DONE, 8, Form::Done(lane), format!("lane {index}"))
    }

    pub(crate) fn map(geometry: &Geometry, group: u64) -> Copies<'n> {
        let map = geometry.map(group);
        Copies::words(map, map, MAP_WORDS + 1, format!("the map of group {group}"))
    }

    pub(crate) fn pool_head(_: &Geometry, block: u64) -> Copies<'n> {
        let what = format!("the head of the pool block at byte {block}");
        Copies::new(block, size_of::<RawPoolHead>(), Form::PoolHead, what)
    }

    /// Checked words, of which `owner` gives the seed.
    pub(crate) fn words(address: u64, owner: u64, count: usize, what: String) -> Copies<'n> {
        Copies::new(address, count * 8, Form::Words(owner), what)
    }

    /// The structures of an entry in use.
    pub(crate) fn entry(geometry: &Geometry, pool: usize, address: u64) -> Vec<Copies<'n>> {
        match pool {
            INODES => {
                let number = address / INODE_SIZE;
                let words = address + NEXT_ORPHAN;
                vec![
                    Copies::new(address, INODE_SIZE as usize, Form::Inode, format!("inode {number}")),
                    Copies::words(words, address, 2, format!("the list of inode {number}")),
                ]
            }
            SETS..=3 => (0..SIZES[pool] / PLACE)
                .map(|index| {
                    let place = address + index * PLACE;
                    Copies::new(place, PLACE as usize, Form::Name, format!("the name at byte {place}"))
                })
                .collect(),
            NODES => vec![Copies::words(address, address, NODE_WORDS, format!("the node at byte {address}"))],
            _ => {
                debug_assert!(geometry.is_entry(address, SIZES[pool]));
                vec![Copies::new(
                    address,
                    SIZES[pool] as usize,
                    Form::Bytes,
                    format!("the bytes at {address}"),
                )]
            }
        }
    }

    /// Where both copies are, their size in bytes, and the seed of their checksums.
    pub(crate) fn places(&self, geometry: &Geometry) -> ([u64; 2], u64, u32) {
        let owner = match self.form {
            Form::Words(owner) | Form::Done(owner) => owner,
            _ => self.address,
        };
        ([self.address, geometry.twin(self.address)], self.len as u64, geometry.seed(owner))
    }

    fn is_valid(&self, geometry: &Geometry, bytes: &[u8]) -> bool {
        let seed = geometry.seed(self.address);
        match self.form {
            Form::Words(owner) | Form::Done(owner) => {
                let seed = geometry.seed(owner);
                let (words, _) = bytes.as_chunks::<8>();
                words.iter().all(|word| open_any(u64::from_le_bytes(*word), seed).is_some())
            }
            Form::Zone => {
                let mut row = RawZone::new_zeroed();
                row.as_mut_bytes().copy_from_slice(bytes);
                row.is_whole(seed)
            }
            Form::Volume => {
                let mut row = RawVolume::new_zeroed();
                row.as_mut_bytes()[..VOLUME_BYTES].copy_from_slice(bytes);
                row.is_whole(seed)
            }
            Form::PoolHead => {
                let mut head = RawPoolHead::new_zeroed();
                head.as_mut_bytes().copy_from_slice(bytes);
                head.magic == POOL_MAGIC && head.checksum == head.compute_checksum(seed)
            }
            Form::Inode => {
                let mut raw = RawInode::new_zeroed();
                raw.as_mut_bytes().copy_from_slice(bytes);
                raw.head.status == status::CONSISTENT && raw.head.checksum == raw.compute_checksum(seed)
            }
            Form::Name => {
                let raw = dentry_of(bytes);
                raw.head.checksum == raw.compute_checksum(seed)
            }
            Form::Bytes => {
                used_bytes(bytes).is_some_and(|bytes| bytes[..4] == bytes_checksum(bytes, seed).to_le_bytes())
            }
        }
    }

    /// The bytes that both copies have alike.
    fn significant(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match self.form {
            Form::Inode => {
                // These are stored apart from the rest.
                bytes[ATIME as usize..ATIME as usize + 8].fill(0);
                bytes[NEXT_ORPHAN as usize..NEXT_ORPHAN as usize + 16].fill(0);
            }
            // The next operation of the lane flushes it, and it may be durable before, in one copy or in both.
            Form::Done(_) => bytes.clear(),
            Form::Bytes => bytes.truncate(used_bytes(&bytes).map_or(0, <[u8]>::len)),
            _ => {}
        }
        bytes
    }

    /// Compares the copies.
    pub(crate) fn compare(&self, pm: &impl Pm, geometry: &Geometry) -> Compared {
        let places = [self.address, geometry.twin(self.address)];
        let [primary, backup] = places.map(|place| {
            let mut bytes = vec![0; self.len];
            pm.read(place, &mut bytes).ok()?;
            self.is_valid(geometry, &bytes).then_some(bytes)
        });
        let from = |bytes: &[u8], address: u64| self.fixes(bytes, address);
        let what = &self.what;
        let problem = match (&primary, &backup) {
            (Some(primary), Some(backup)) if self.significant(primary) == self.significant(backup) => None,
            (Some(primary), Some(_)) => {
                Some((format!("the copies of {what} differ"), from(primary, places[1])))
            }
            (Some(primary), None) => {
                Some((format!("the backup of {what} is damaged"), from(primary, places[1])))
            }
            (None, Some(backup)) => {
                Some((format!("the primary of {what} is damaged"), from(backup, places[0])))
            }
            (None, None) => Some(self.together(pm, geometry, places)),
        };
        Compared { problem, is_readable: primary.is_some() || backup.is_some() }
    }

    /// The corrections that make a copy like the other one. Words within it that have their own checks stay as they
    /// are: in the other copy they may be the damaged ones.
    fn fixes(&self, bytes: &[u8], address: u64) -> Vec<Fix> {
        let apart = match self.form {
            Form::Inode => NEXT_ORPHAN as usize..NEXT_ORPHAN as usize + 16,
            _ => self.len..self.len,
        };
        let parts = [0..apart.start, apart.end..self.len];
        let fix =
            |part: Range<usize>| Fix { address: address + part.start as u64, bytes: bytes[part].to_vec() };
        parts.into_iter().filter(|part| !part.is_empty()).map(fix).collect()
    }

    /// Neither copy is whole, and together they may be: damage takes lines, or words.
    fn together(&self, pm: &impl Pm, geometry: &Geometry, places: [u64; 2]) -> (String, Vec<Fix>) {
        let fixes = match self.form {
            Form::Words(owner) => self.word_by_word(pm, geometry, owner),
            Form::Volume | Form::Inode => self.mixed(pm, geometry, places),
            _ => None,
        };
        match fixes {
            Some(fixes) => (format!("parts of both copies of {} are damaged", self.what), fixes),
            None => (format!("both copies of {} are damaged", self.what), Vec::new()),
        }
    }

    /// Each line of checked words from the copy in which it is whole, and each word of a line.
    fn word_by_word(&self, pm: &impl Pm, geometry: &Geometry, owner: u64) -> Option<Vec<Fix>> {
        let unit = if self.address % LINE + self.len as u64 > LINE { LINE } else { 8 };
        if self.len as u64 <= 8 {
            return None;
        }
        let (mut at, mut fixes) = (0, Vec::new());
        while at < self.len {
            let place = self.address + at as u64;
            let count = ((unit - place % unit) as usize).min(self.len - at);
            let part = Copies::words(place, owner, count / 8, self.what.to_string());
            if let Some((_, of_part)) = part.compare(pm, geometry).problem {
                if of_part.is_empty() {
                    return None;
                }
                fixes.extend(of_part);
            }
            at += count;
        }
        Some(fixes)
    }

    /// Lines of both copies that have the checksum together.
    fn mixed(&self, pm: &impl Pm, geometry: &Geometry, places: [u64; 2]) -> Option<Vec<Fix>> {
        let starts: Vec<usize> = (0..self.len).step_by(LINE as usize).collect();
        let read = |place: u64, start: usize| {
            let mut line = vec![0; (self.len - start).min(LINE as usize)];
            pm.read(place + start as u64, &mut line).ok().map(|()| line)
        };
        let lines: Vec<_> = starts.iter().map(|&start| places.map(|place| read(place, start))).collect();
        let bytes = (1..(1usize << lines.len()) - 1).find_map(|choice| {
            let chosen = lines.iter().enumerate().map(|(index, copies)| copies[choice >> index & 1].clone());
            let bytes = chosen.collect::<Option<Vec<_>>>()?.concat();
            self.is_valid(geometry, &bytes).then_some(bytes)
        })?;
        Some(places.into_iter().flat_map(|place| self.fixes(&bytes, place)).collect())
    }
}

/// The bytes of an entry of bytes that its checksum covers.
fn used_bytes(bytes: &[u8]) -> Option<&[u8]> {
    let mut raw = RawBytes::new_zeroed();
    raw.as_mut_bytes().copy_from_slice(bytes.get(..BYTES_HEAD)?);
    bytes.get(..BYTES_HEAD.checked_add(raw.len as usize)?)
}
