//! The free blocks of a group as bits, and runs of them.

use crate::format::{GROUP_BLOCKS, MAP_WORDS, WORD_BITS};

/// One bit for each block of a group; 1 is free.
pub(crate) type Bits = [u64; 8];

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

/// The bits moved towards the first: each block has the bit of the one that is `distance` behind it.
fn ahead(bits: &Bits, distance: u64) -> Bits {
    let (cells, shift) = ((distance / 64) as usize, distance % 64);
    let cell = |index: usize| bits.get(index).copied().unwrap_or(0);
    std::array::from_fn(|index| {
        let low = cell(index + cells) >> shift;
        if shift == 0 { low } else { low | cell(index + cells + 1) << (64 - shift) }
    })
}

/// Those in both.
fn both(first: &Bits, second: &Bits) -> Bits {
    std::array::from_fn(|index| first[index] & second[index])
}

/// The first block of a run of `len` free blocks.
pub(crate) fn find(bits: &Bits, len: u64) -> Option<u64> {
    // Blocks that so many free ones begin at.
    let (mut starts, mut have) = (*bits, 1);
    while have < len {
        let step = have.min(len - have);
        starts = both(&starts, &ahead(&starts, step));
        have += step;
    }
    let cell = starts.iter().position(|&cell| cell != 0)?;
    Some(cell as u64 * 64 + u64::from(starts[cell].trailing_zeros()))
}

/// The first block of a run of `len` free blocks that is aligned to its size, a power of two.
pub(crate) fn find_aligned(bits: &Bits, len: u64) -> Option<u64> {
    (0..GROUP_BLOCKS).step_by(len as usize).find(|&start| free_from(bits, start, len) == len)
}

/// The number of blocks of the longest run of free ones.
pub(crate) fn longest(bits: &Bits) -> u64 {
    if *bits == [0; 8] {
        return 0;
    }
    // For each power of two the blocks that so many free ones begin at.
    let mut powers = [*bits; 10];
    let mut greatest = 0;
    while greatest + 1 < powers.len() {
        let next = both(&powers[greatest], &ahead(&powers[greatest], 1 << greatest));
        if next == [0; 8] {
            break;
        }
        greatest += 1;
        powers[greatest] = next;
    }
    let (mut starts, mut len) = (powers[greatest], 1 << greatest);
    for power in (0..greatest).rev() {
        let next = both(&starts, &ahead(&powers[power], len));
        if next != [0; 8] {
            starts = next;
            len += 1 << power;
        }
    }
    len
}

/// How many blocks are free from `start` on, up to `most`.
pub(crate) fn free_from(bits: &Bits, start: u64, most: u64) -> u64 {
    let end = (start + most).min(GROUP_BLOCKS);
    (start..end).take_while(|&block| bits[(block / 64) as usize] >> (block % 64) & 1 == 1).count() as u64
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
    fn runs_are_found_where_they_are_free() {
        for len in 1..=GROUP_BLOCKS {
            for start in [0, 1, 62, 63, 64, 65, 200, GROUP_BLOCKS - len] {
                if start + len <= GROUP_BLOCKS {
                    let bits = run(start, len);
                    assert_eq!(find(&bits, len), Some(start));
                    assert_eq!(find(&bits, len + 1), None);
                    assert_eq!(longest(&bits), len);
                    assert_eq!(longest(&either(&bits, &run(0, 1))), len + u64::from(start == 1));
                }
            }
        }
        assert_eq!(find(&either(&run(1, 3), &run(60, 9)), 4), Some(60));
        assert_eq!((find(&[0; 8], 1), longest(&[0; 8])), (None, 0));
        assert_eq!(find_aligned(&run(1, 3), 2), Some(2));
        assert_eq!(find_aligned(&run(3, 2), 2), None, "no pair of them is aligned");
        assert_eq!(free_from(&run(60, 10), 62, 100), 8);
    }

    #[test]
    fn the_longest_run_is_the_longest_that_is_found() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed.rotate_right(11)
        };
        for turn in 0..200 {
            let mut bits: Bits = std::array::from_fn(|_| random());
            for _ in 0..turn % 5 {
                let len = random() % 100 + 1;
                bits = either(&bits, &run(random() % (GROUP_BLOCKS - len), len));
            }
            let found = (1..=GROUP_BLOCKS).take_while(|&len| find(&bits, len).is_some()).last();
            assert_eq!(Some(longest(&bits)), found);
        }
    }
}
