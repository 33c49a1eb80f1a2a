//! Which layout a device holds, and what is there if none can be found.

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, size};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::superblock::{Summary, more_telling};
use nacre_media::{Pm, RealPm};

use crate::layout::of_kind;
use crate::preset::LayoutKind;
use crate::signature::{self, CONTENT, NACRE, TIER};

/// The layout of the file system on a device, and the content of its superblock. Reads the superblock only, where there
/// is one.
///
/// Each layout is asked, independent of the result of the one before. One of two copies is enough, and a copy that
/// cannot be read tells nothing of its layout. [`InvalidInput`](Kind::InvalidInput) when there is nothing of nacre's,
/// [`Corrupt`](Kind::Corrupt) when there is, but no whole superblock.
pub(crate) fn probe(pm: &RealPm) -> Result<(LayoutKind, Summary)> {
    let mut told: Option<Error> = None;
    for layout in LayoutKind::ALL {
        match of_kind!(layout, Layout => Layout::probe(pm)) {
            Ok(summary) => return Ok((layout, summary)),
            Err(error) => {
                told = Some(match told {
                    None => error,
                    Some(told) => more_telling(told, error),
                });
            }
        }
    }
    let error = told.unwrap_or_else(|| Kind::InvalidInput.into());
    Err(match error.kind() {
        Kind::InvalidInput => without_superblock(pm, error),
        // One was begun, or cannot be read: whatever is wrong with it, it is nothing to be overwritten.
        Kind::Corrupt | Kind::Media => error.advice(KEEP),
        _ => error,
    })
}

/// The same, of one volume where the layout can have several.
pub(crate) fn probe_volume(pm: &RealPm, volume: Option<&str>) -> Result<(LayoutKind, Summary)> {
    match probe(pm)? {
        (LayoutKind::Pool, _) if volume.is_some() => {
            Ok((LayoutKind::Pool, nacre_layout_pool::volumes::probe_volume(pm, volume)?))
        }
        found => Ok(found),
    }
}

/// The advice for a file system that no superblock leads into.
const KEEP: &str =
    "no copy of the superblock is whole: do not overwrite the device; restore its first 68 KiB from a backup";

/// The error that there is no superblock: the device holds something else, or the remains of a file system. Only if it
/// holds nothing known does the advice say how to make one.
fn without_superblock(pm: &RealPm, error: Error) -> Error {
    let found = match signature::detect_on(pm) {
        Ok(found) => found,
        Err(error) => return error,
    };
    if found.iter().any(|mark| mark.name == NACRE) {
        return Error::corrupt(format!("a nacre file system of which {} are left", size::exact(pm.len())))
            .advice("the device was truncated: restore its size before anything else");
    }
    if found.iter().any(|mark| mark.name == TIER) {
        return Error::new(Kind::InvalidInput).object(TIER).advice("give the PM that it belongs to");
    }
    if !found.is_empty() {
        let names = signature::names(&found);
        return Error::new(Kind::InvalidInput).object(names).advice("this is no nacre file system");
    }
    match first_trace(pm.len(), |offset, block| pm.read(offset, block)) {
        Some(at) => Error::corrupt(format!(
            "superblock: both copies are lost, but the structures at byte {at} are \
        there"
        ))
        .advice(KEEP),
        None => error.advice("this is no nacre file system; nacre mkfs makes one"),
    }
}

/// The first block, in the part where inodes and logs begin, that looks like one of ours: all that a file system without
/// superblocks leaves. The device has `len` bytes, and is read by a routine that reads at an offset.
pub(crate) fn first_trace(len: u64, mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Option<u64> {
    let mut block = [0; BLOCK_SIZE as usize];
    let end = len.min(CONTENT) / BLOCK_SIZE;
    let is_ours = |at: &u64| {
        read(*at, &mut block).is_ok()
            && LayoutKind::ALL
                .into_iter()
                .any(|layout| of_kind!(layout, Layout => Layout::leaves_trace(&block)))
    };
    (0..end).map(|index| index * BLOCK_SIZE).find(is_ours)
}
