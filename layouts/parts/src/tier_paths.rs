//! Where tiers were last: hints in the superblock, for the next mount.
//!
//! A record is the number of a tier, the length of its path, and the path; they stand one behind the other, and the
//! number 0 ends them. No device is taken for a tier because of its path: code that opens a path checks the UUID of the
//! device. So the only possible error of these bytes is that they lead nowhere.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nacre_engine::{Error, Kind, Result};
use nacre_media::Pm;

use crate::format::TIER_PATHS;
use crate::superblock::Superblock;

/// The records: which tier, and its path.
fn records(table: &[u8; TIER_PATHS]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = &table[..];
    std::iter::from_fn(move || {
        let [number, len, tail @ ..] = rest else { return None };
        let path = tail.get(..usize::from(*len)).filter(|_| *number != 0)?;
        rest = &tail[path.len()..];
        Some((*number, path))
    })
}

/// Takes a tier's path out.
pub(crate) fn forget(table: &mut [u8; TIER_PATHS], number: u8) {
    let before = *table;
    *table = [0; TIER_PATHS];
    let mut end = 0;
    for (other, path) in records(&before).filter(|(other, _)| *other != number) {
        put(table, &mut end, other, path);
    }
}

/// Replaces the known path of a tier; false, and nothing is known, if there is no room.
fn note(table: &mut [u8; TIER_PATHS], number: u8, path: &[u8]) -> bool {
    forget(table, number);
    let mut end = records(table).map(|(_, path)| 2 + path.len()).sum();
    put(table, &mut end, number, path)
}

fn put(table: &mut [u8; TIER_PATHS], end: &mut usize, number: u8, path: &[u8]) -> bool {
    let Ok(len) = u8::try_from(path.len()) else { return false };
    let Some(place) = table.get_mut(*end..*end + 2 + path.len()) else { return false };
    (place[0], place[1]) = (number, len);
    place[2..].copy_from_slice(path);
    *end += place.len();
    true
}

/// Where the tiers of a file system were last, as far as that is known.
pub fn known(superblock: &Superblock) -> Vec<(u8, PathBuf)> {
    records(&superblock.raw.tier_paths).map(|(number, path)| (number, to_path(path))).collect()
}

fn to_path(bytes: &[u8]) -> PathBuf {
    OsStr::from_bytes(bytes).into()
}

/// Notes where the device of a tier is, durably, for the next mount. False where there is no room for it: 255 bytes for
/// one path, about 1000 for all.
pub fn note_path(superblock: &mut Superblock, pm: &impl Pm, number: u8, path: &Path) -> Result<bool> {
    let index = usize::from(number).wrapping_sub(1);
    if superblock.raw.tiers.get(index).is_none_or(|row| row.state == 0) {
        return Err(Error::new(Kind::InvalidInput).object(format!("tier {number}")));
    }
    let before = superblock.raw.tier_paths;
    let has_room = note(&mut superblock.raw.tier_paths, number, path.as_os_str().as_bytes());
    if superblock.raw.tier_paths != before {
        superblock.write(pm)?;
    }
    Ok(has_room)
}

#[cfg(test)]
mod tests {
    use super::{forget, note, records};
    use crate::format::TIER_PATHS;

    fn all(table: &[u8; TIER_PATHS]) -> Vec<(u8, String)> {
        records(table).map(|(number, path)| (number, String::from_utf8_lossy(path).into_owned())).collect()
    }

    #[test]
    fn a_path_takes_the_place_of_the_one_before() {
        let mut table = [0; TIER_PATHS];
        assert!(note(&mut table, 2, b"/dev/sdb") && note(&mut table, 1, b"/srv/disk"));
        assert!(note(&mut table, 2, b"/dev/disk/by-id/x"));
        assert_eq!(all(&table), [(1, "/srv/disk".to_owned()), (2, "/dev/disk/by-id/x".to_owned())]);
        forget(&mut table, 1);
        assert_eq!(all(&table), [(2, "/dev/disk/by-id/x".to_owned())]);
        forget(&mut table, 2);
        assert_eq!(table, [0; TIER_PATHS]);
    }

    #[test]
    fn what_has_no_room_is_not_known_and_takes_no_room_from_others() {
        let mut table = [0; TIER_PATHS];
        assert!(!note(&mut table, 1, &[b'x'; 256]) && note(&mut table, 1, &[b'x'; 255]));
        assert!(note(&mut table, 2, &[b'y'; 255]) && note(&mut table, 3, &[b'z'; 255]));
        assert!(!note(&mut table, 4, &[b'a'; 255]), "1028 bytes");
        assert!(note(&mut table, 4, &[b'a'; 251]), "1024 bytes");
        assert!(!note(&mut table, 3, &[b'z'; 256]));
        assert_eq!(all(&table).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn bytes_that_are_no_records_end_them() {
        let mut table = [0xff; TIER_PATHS];
        assert_eq!(records(&table).count(), 3, "of 255 bytes each, and one that would reach behind the end");
        assert!(note(&mut table, 7, b"/dev/sdb"), "what was cut off has gone");
        table = [0; TIER_PATHS];
        (table[0], table[1]) = (1, 200);
        table[TIER_PATHS - 1] = 9;
        assert_eq!(records(&table).count(), 1);
    }
}
