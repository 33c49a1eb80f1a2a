//! Makes a list smaller, as long as the property that is looked for stays.

use std::ops::Range;

use nacre_engine::Result;

/// Removes parts of a list of `len`, many at once as long as that works, then one by one. `without` tries to do without
/// a part of the rest, and returns the length that is left then.
pub(super) fn drop_parts(mut len: usize, mut without: impl FnMut(Range<usize>) -> usize) {
    let mut portion = len.div_ceil(2);
    while portion > 0 {
        let mut from = 0;
        while from < len {
            let left = without(from..(from + portion).min(len));
            if left < len {
                len = left;
            } else {
                from += portion;
            }
        }
        portion = if portion == 1 { 0 } else { portion.div_ceil(2) };
    }
}

/// Removes single items of a list of `len`. `without` tries to do without one of the rest, and returns whether that
/// works.
pub(super) fn drop_each(mut len: usize, mut without: impl FnMut(usize) -> Result<bool>) -> Result<()> {
    let mut index = 0;
    while index < len {
        if without(index)? {
            len -= 1;
        } else {
            index += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{drop_each, drop_parts};

    #[test]
    fn what_is_needed_stays_and_nothing_else() {
        let needed = [3, 17, 18, 40];
        let holds = |list: &[u32]| needed.iter().all(|item| list.contains(item));
        let mut list: Vec<u32> = (0..50).collect();
        drop_parts(list.len(), |part| {
            let mut fewer = list.clone();
            fewer.drain(part);
            if holds(&fewer) {
                list = fewer;
            }
            list.len()
        });
        assert_eq!(list, needed);
        let mut list: Vec<u32> = (0..50).collect();
        drop_each(list.len(), |index| {
            let mut fewer = list.clone();
            fewer.remove(index);
            let works = holds(&fewer);
            if works {
                list = fewer;
            }
            Ok(works)
        })
        .unwrap();
        assert_eq!(list, needed);
    }
}
