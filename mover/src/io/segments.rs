//! Whole blocks on their way to disk, in pages that a device writes as they are.

use std::io::IoSlice;

use nacre_engine::{BLOCK_SIZE, TierRun};
use nacre_media::block::Pages;

/// Bytes together.
pub(crate) fn length(data: &[IoSlice<'_>]) -> u64 {
    data.iter().map(|slice| slice.len() as u64).sum()
}

/// So many blocks with these bytes from `at` on, one slice behind the other, and zeros around them.
pub(crate) fn gather(blocks: u64, mut at: usize, data: &[IoSlice<'_>]) -> Pages {
    let mut content = Pages::lent((blocks * BLOCK_SIZE) as usize);
    content[..at].fill(0);
    for slice in data {
        content[at..at + slice.len()].copy_from_slice(slice);
        at += slice.len();
    }
    content[at..].fill(0);
    content
}

/// To each run its part of the content, one behind the other.
pub(crate) fn split(runs: impl IntoIterator<Item = TierRun>, content: &[u8]) -> Vec<(TierRun, &[u8])> {
    let mut rest = content;
    let part = |run: TierRun| {
        let (here, behind) = rest.split_at((run.len * BLOCK_SIZE) as usize);
        rest = behind;
        (run, here)
    };
    runs.into_iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use nacre_engine::{Block, TierRun};

    use super::{gather, length, split};

    #[test]
    fn slices_become_blocks_and_blocks_the_parts_of_runs() {
        // A buffer that is lent is as it was left.
        drop(gather(3, 0, &[IoSlice::new(&[9; 12_288])]));
        let (first, second) = ([1; 4000], [2; 8000]);
        let data = [IoSlice::new(&first), IoSlice::new(&second)];
        assert_eq!(length(&data), 12_000);
        let content = gather(3, 100, &data);
        assert_eq!((content[99], content[100], content[4099], content[4100]), (0, 1, 1, 2));
        assert_eq!((content[12_099], content[12_100], content.len()), (2, 0, 12_288));

        let run = |start, len| TierRun { tier: 1, start: Block(start), len };
        let parts = split([run(7, 1), run(20, 2)], &content);
        assert_eq!(parts, [(run(7, 1), &content[..4096]), (run(20, 2), &content[4096..])]);
    }
}
