//! CRC32C of one word, by tables. Metadata is full of checked words, and the call of a routine for long buffers costs
//! more than the word.

/// The polynomial of CRC32C, its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// For each byte of a word: the effect of its values on the CRC.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut value = 0;
    while value < 256 {
        let mut crc = value as u32;
        let mut at = 0;
        // The last byte of a word is shifted by the least.
        while at < 64 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            at += 1;
            if at % 8 == 0 {
                tables[8 - at / 8][value] = crc;
            }
        }
        value += 1;
    }
    tables
}

/// The CRC32C of a word's bytes, seeded.
#[inline]
pub fn of_word(seed: u32, word: u64) -> u32 {
    let bytes = (word ^ u64::from(!seed)).to_le_bytes();
    !bytes.iter().zip(&TABLES).fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)])
}

#[cfg(test)]
mod tests {
    use super::of_word;

    #[test]
    fn the_value_is_that_of_the_routine_for_buffers() {
        let mut word = 0x9e37_79b9_7f4a_7c15u64;
        for step in 0..10_000 {
            let seed = (word >> 17) as u32;
            assert_eq!(of_word(seed, word), crc32c::crc32c_append(seed, &word.to_le_bytes()), "{step}");
            word = word.rotate_left(11).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> (step % 64);
        }
        assert_eq!(of_word(0, 0), crc32c::crc32c(&[0; 8]));
    }
}
