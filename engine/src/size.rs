//! Sizes as people write them: `1G`, `512M`, `4096`; numbers of things as people read them.

/// Suffixes, from large to small.
const UNITS: [(char, u64); 5] =
    [('P', 1 << 50), ('T', 1 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// A size from `1G`, `1GiB`, `1.5G`, `512M`, `4096`. All units are powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is no size; write bytes, or a number with K, M, G, T or P (1024 each), as 512M");
    let upper = text.trim().to_ascii_uppercase();
    let number = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let unit = UNITS.iter().find(|(letter, _)| number.ends_with(*letter));
    let (number, factor) = match unit {
        Some((letter, factor)) => (number.strip_suffix(*letter).unwrap_or(number), *factor),
        // A bare number of bytes carries no "iB".
        None if upper.ends_with("IB") => return Err(wrong()),
        None => (number, 1),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(wrong);
    }
    let (whole, fraction) = number.split_once('.').ok_or_else(wrong)?;
    let digits = fraction.len() as u32;
    if factor == 1 || digits == 0 || digits > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
    let fraction: u64 = fraction.parse().map_err(|_| wrong())?;
    let part = u128::from(fraction) * u128::from(factor) / 10u128.pow(digits);
    whole.checked_mul(factor).and_then(|bytes| bytes.checked_add(part as u64)).ok_or_else(wrong)
}

/// A size for people: the largest unit that leaves at least 1 as it is rounded, with one decimal unless it is whole.
pub fn print(bytes: u64) -> String {
    // From a twentieth of the smaller unit below it on, a size is rounded to one of the larger unit.
    let rounded = |factor: u64| bytes.saturating_add(factor / 1024 / 20);
    let Some((letter, factor)) = UNITS.iter().find(|(_, factor)| rounded(*factor) >= *factor) else {
        return format!("{bytes} B");
    };
    if bytes.is_multiple_of(*factor) {
        return format!("{} {letter}iB", bytes / factor);
    }
    format!("{:.1} {letter}iB", bytes as f64 / *factor as f64)
}

/// A size for people who may enter it again: in the largest unit in which it is whole, as [`parse`] reads it.
pub fn exact(bytes: u64) -> String {
    let whole = UNITS.iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    match whole {
        Some((letter, factor)) => format!("{} {letter}iB", bytes / factor),
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
}

/// A number of things, in words.
pub fn count(number: u64, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::{count, exact, parse, print};

    #[test]
    fn one_thing_is_no_many() {
        let files = |number| count(number, "file", "files");
        assert_eq!((&files(1)[..], &files(0)[..], &files(2)[..]), ("1 file", "0 files", "2 files"));
    }

    #[test]
    fn exact_sizes_are_not_rounded() {
        for (bytes, text) in
            [(0, "0 bytes"), (1, "1 byte"), (1000, "1000 bytes"), (1536, "1536 bytes"), (1 << 20, "1 MiB")]
        {
            assert_eq!(exact(bytes), text);
        }
        assert_eq!(exact((1 << 30) + 4096), "1048580 KiB");
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1024),
            ("512M", 512 << 20),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("1gb", 1 << 30),
            ("1.5G", 3 << 29),
            (".5K", 512),
            ("16T", 16 << 40),
            ("64B", 64),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "G", "1X", "-1", "1.5", "1..5G", "1.G", "1 G G", "99999999P", "1e3", "5iB", "GG", "1KK"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_printed() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1 << 30, "1 GiB"),
            // It was 1024.0 MiB.
            ((1 << 30) - 4096, "1.0 GiB"),
            ((1 << 30) - 53_000, "1023.9 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 40, "5 TiB"),
        ] {
            assert_eq!(print(bytes), text);
        }
    }
}
