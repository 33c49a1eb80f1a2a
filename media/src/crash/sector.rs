//! The writes to one sector of a disk that are not durable.

use nacre_engine::LINE_SIZE;

use super::LineBytes;
use crate::block::SECTOR_SIZE;

/// Lines of a sector.
pub(super) const SECTOR_LINES: u64 = SECTOR_SIZE / LINE_SIZE;

/// Bytes of a sector.
pub(super) type SectorBytes = [u8; SECTOR_SIZE as usize];

/// The writes to a sector since the last flush of its disk, in order, each with its place in the order of all stores.
/// A crash leaves the content of any one of them, or the content before them.
#[derive(Debug, Clone, Default)]
pub(super) struct Versions(Vec<(u64, SectorBytes)>);

impl Versions {
    pub(super) fn write(&mut self, sequence: u64, bytes: SectorBytes) {
        self.0.push((sequence, bytes));
    }

    /// The content that a flush makes durable.
    pub(super) fn last(&self) -> &SectorBytes {
        &self.0.last().expect("nothing is kept of a sector that was not written").1
    }

    /// Whether one of them has these bytes in a line.
    pub(super) fn may_leave(&self, line: u64, bytes: &LineBytes) -> bool {
        self.0.iter().any(|(_, version)| lines_in(version).nth(line as usize).as_ref() == Some(bytes))
    }

    /// The different contents that a crash may leave, `before` first, each with the place in order of its write.
    pub(super) fn outcomes(&self, before: SectorBytes) -> Vec<(u64, SectorBytes)> {
        let mut outcomes = vec![(0, before)];
        for (sequence, bytes) in &self.0 {
            // The last one of its kind: so that the last outcome is what a flush would leave, where that is another one.
            if bytes != &before {
                outcomes.retain(|(_, other)| other != bytes);
                outcomes.push((*sequence, *bytes));
            }
        }
        outcomes
    }
}

/// The number of the sector at an offset.
pub(super) fn number_of(offset: u64) -> u64 {
    offset / SECTOR_SIZE
}

/// The lines of a sector.
pub(super) fn lines_of(sector: u64) -> std::ops::Range<u64> {
    sector * SECTOR_LINES..(sector + 1) * SECTOR_LINES
}

/// The contents of its lines.
pub(super) fn lines_in(bytes: &SectorBytes) -> impl Iterator<Item = LineBytes> {
    bytes.chunks_exact(LINE_SIZE as usize).map(|line| line.try_into().expect("a line"))
}

/// A sector from its lines.
pub(super) fn joined(lines: impl Iterator<Item = LineBytes>) -> SectorBytes {
    let mut bytes = [0; SECTOR_SIZE as usize];
    for (part, line) in bytes.chunks_exact_mut(LINE_SIZE as usize).zip(lines) {
        part.copy_from_slice(&line);
    }
    bytes
}

/// Numbers and contents of the sectors of a write.
pub(super) fn sectors_of(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, SectorBytes)> {
    let sectors = bytes.chunks_exact(SECTOR_SIZE as usize);
    (number_of(offset)..).zip(sectors.map(|sector| sector.try_into().expect("a sector")))
}
