//! The free blocks of a group as bits: runs of powers of two, aligned to their size.

use crate::format::{GROUP_BLOCKS, MAP_WORDS, WORD_BITS};

/// One bit for each block of a group; 1 is free.
pub(crate) type Bits = [u64; 8];

/// The greatest order: the whole group.
pub(crate) const MAX_ORDER: u32 = 9;

/// The bits in words of 48, as a map has them.
pub(crate) fn to_words(bits: &Bits) -> [u64; MAP_WORDS] {
    let mut words = [0; MAP_WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        let at = index as u64 * WORD_BITS;
        let (cell, shift) = ((at / 64) as usize, at % 64);
        let mut value = bits[cell] >> shift;
        if shift > 16 && cell + 1 < bits.len() {
            value |= bits[cell + 1] << (64 - shift);
        }
        *word = value & ((1 << WORD_BITS) - 1);
    }
    words
}

/// The bits of such words. Those behind the group's end are left out.
pub(crate) fn of_words(words: &[u64; MAP_WORDS]) -> Bits {
    let mut bits = [0; 8];
    for (index, word) in words.iter().enumerate() {
        let at = index as u64 * WORD_BITS;
        let (cell, shift) = ((at / 64) as usize, at % 64);
        bits[cell] |= word << shift;
        if shift > 16 && cell + 1 < bits.len() {
            bits[cell + 1] |= word >> (64 - shift);
        }
    }
    bits
}

/// The bits of a run.
pub(crate) fn run(start: u64, len: u64) -> Bits {
    let mut bits = [0; 8];
    for (index, cell) in bits.iter_mut().enumerate() {
        let first = index as u64 * 64;
        let (from, to) = (start.max(first), (start + len).min(first + 64));
        if from < to {
            *cell = u64::MAX >> (64 - (to - from)) << (from - first);
        }
    }
    bits
}

/// How many are free.
pub(crate) fn count(bits: &Bits) -> u64 {
    bits.iter().map(|cell| u64::from(cell.count_ones())).sum()
}

/// Those of the first that are not in the second.
pub(crate) fn without(bits: &Bits, taken: &Bits) -> Bits {
    std::array::from_fn(|index| bits[index] & !taken[index])
}

/// Those of either.
pub(crate) fn either(first: &Bits, second: &Bits) -> Bits {
    std::array::from_fn(|index| first[index] | second[index])
}

/// Whether the two have a bit in common.
pub(crate) fn meet(first: &Bits, second: &Bits) -> bool {
    first.iter().zip(second).any(|(first, second)| first & second != 0)
}

/// The first block of a free run of 2^order blocks, aligned to its size.
pub(crate) fn find(bits: &Bits, order: u32) -> Option<u64> {
    if order >= 6 {
        let cells = 1usize << (order - 6);
        let mut runs = bits.chunks_exact(cells);
        return runs
            .position(|run| run.iter().all(|&cell| cell == u64::MAX))
            .map(|at| (at * cells * 64) as u64);
    }
    // Bits where a run can begin.
    let aligned = (0..64).step_by(1 << order).fold(0u64, |mask, bit| mask | 1 << bit);
    bits.iter().enumerate().find_map(|(index, &cell)| {
        let starts = (0..order).fold(cell, |starts, step| starts & starts >> (1 << step)) & aligned;
        (starts != 0).then(|| index as u64 * 64 + u64::from(starts.trailing_zeros()))
    })
}

/// The greatest order of which there is a run.
pub(crate) fn largest(bits: &Bits) -> Option<u32> {
    (0..=MAX_ORDER).rev().find(|&order| find(bits, order).is_some())
}

/// How many blocks are free from `start` on, up to `most`.
pub(crate) fn free_from(bits: &Bits, start: u64, most: u64) -> u64 {
    let end = (start + most).min(GROUP_BLOCKS);
    (start..end).take_while(|&block| bits[(block / 64) as usize] >> (block % 64) & 1 == 1).count() as u64
}

/// The order whose run holds so many blocks.
pub(crate) fn order_of(blocks: u64) -> u32 {
    blocks.next_power_of_two().trailing_zeros().min(MAX_ORDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bits_are_the_same() {
        let bits: Bits = std::array::from_fn(|index| 0x9e37_79b9_7f4a_7c15u64.rotate_left(index as u32 * 7));
        assert_eq!(of_words(&to_words(&bits)), bits);
        assert_eq!(of_words(&to_words(&[u64::MAX; 8])), [u64::MAX; 8]);
        assert!(to_words(&[u64::MAX; 8]).iter().all(|word| word >> WORD_BITS == 0));
    }

    #[test]
    fn runs_are_found_where_they_are_free_and_aligned() {
        for order in 0..=MAX_ORDER {
            let len = 1 << order;
            for start in (0..GROUP_BLOCKS).step_by(len as usize) {
                assert_eq!(find(&run(start, len), order), Some(start));
                assert_eq!(largest(&run(start, len)), Some(order));
            }
        }
        assert_eq!(find(&run(1, 3), 1), Some(2));
        assert_eq!(find(&run(3, 2), 1), None, "no pair of them is aligned");
        assert_eq!(largest(&[0; 8]), None);
        assert_eq!(free_from(&run(60, 10), 62, 100), 8);
    }
}
