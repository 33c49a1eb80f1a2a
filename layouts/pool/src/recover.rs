//! Recovery: each lane says which operation it began last. One that is not over goes forward if all its backups are
//! there, and is taken back otherwise. It takes time by the number of lanes, not of files, and may be interrupted.

use nacre_engine::{BLOCK_SIZE, Block, Kind, Result};
use nacre_layout_parts::tree::edit::join;
use nacre_media::{Flushed, Pm};

use crate::format::RawItem;
use crate::geometry::Geometry;
use crate::lanes::{LaneState, read_lane, write_done};
use crate::mend::mend_page;
use crate::seeded::Mistake;

/// The result of a recovery.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Operations that went forward.
    pub(crate) forward: u64,
    /// Operations that were taken back.
    pub(crate) back: u64,
    /// The greatest number of an operation that a lane has.
    pub(crate) sequence: u64,
    /// `done` of each lane.
    pub(crate) done: Vec<u64>,
}

/// The state of all lanes.
pub(crate) fn read_lanes<P: Pm>(pm: &P, geometry: &Geometry) -> Result<Vec<LaneState>> {
    (0..geometry.lanes).map(|index| read_lane(pm, geometry, index)).collect()
}

/// Whether a lane's last operation may not be over.
fn is_unfinished(lane: &LaneState) -> bool {
    lane.begun.as_ref().is_some_and(|(sequence, _)| *sequence > lane.done)
}

/// Whether a recovery would write.
pub(crate) fn is_needed<P: Pm>(pm: &P, geometry: &Geometry) -> Result<bool> {
    Ok(read_lanes(pm, geometry)?.iter().any(is_unfinished))
}

/// Decides every operation that is not over.
pub(crate) fn recover<P: Pm>(pm: &P, geometry: &Geometry) -> Result<Recovered> {
    let mut lanes = read_lanes(pm, geometry)?;
    let mut recovered = Recovered::default();
    let begun = |lane: &LaneState| lane.begun.as_ref().map_or(0, |(sequence, _)| *sequence);
    recovered.sequence = lanes.iter().map(|lane| begun(lane).max(lane.done)).max().unwrap_or(0);
    recovered.done = lanes.iter().map(|lane| begun(lane).max(lane.done)).collect();
    lanes.retain(is_unfinished);
    // The newest first: what a later operation changed is then as it left it.
    lanes.sort_by_key(begun);
    if !Mistake::AscendingReplay.is_made(pm) {
        lanes.reverse();
    }
    let mut pending = None;
    for (_, items) in lanes.iter().filter_map(|lane| lane.begun.as_ref()) {
        // Where the backup cannot be read, a new primary says that all backups were there. Where neither can be, that
        // item is lost either way, and the others decide.
        let is_there = |item: &RawItem| {
            let copies = [geometry.twin(item.address()), item.address()];
            let bytes = copies.into_iter().find_map(|copy| read_item(pm, copy, item));
            bytes.is_none_or(|bytes| crc32c::crc32c(&bytes) == item.check)
        };
        if items.iter().all(is_there) || Mistake::ForwardUnchecked.is_made(pm) {
            recovered.forward += 1;
            for item in items {
                pending = copy_item(pm, geometry, item, true, pending)?;
            }
        } else {
            recovered.back += 1;
            for item in items.iter().filter(|_| !Mistake::BackupNotRefreshed.is_made(pm)) {
                pending = copy_item(pm, geometry, item, false, pending)?;
            }
        }
    }
    if !Mistake::SpentEarly.is_made(pm)
        && let Some(pending) = pending.take()
    {
        pm.fence(pending);
    }
    for lane in &lanes {
        let stored =
            retry_page(pm, geometry, lane.address, || write_done(pm, geometry, lane.address, begun(lane)))?;
        pending = join(pending, stored);
    }
    if let Some(pending) = pending {
        pm.fence(pending);
    }
    Ok(recovered)
}

fn read_item<P: Pm>(pm: &P, address: u64, item: &RawItem) -> Option<Vec<u8>> {
    let mut bytes = vec![0; item.len()];
    pm.read(address, &mut bytes).ok()?;
    Some(bytes)
}

/// Makes both copies of an item equal: from the backup, or from the primary. A lost one is no source: the other copy
/// is, and recovery has nothing to choose.
fn copy_item<P: Pm>(
    pm: &P,
    geometry: &Geometry,
    item: &RawItem,
    is_forward: bool,
    pending: Option<Flushed>,
) -> Result<Option<Flushed>> {
    let (primary, backup) = (item.address(), geometry.twin(item.address()));
    let (from, to) = if is_forward { (backup, primary) } else { (primary, backup) };
    let (from, to, bytes) = match read_item(pm, from, item) {
        Some(bytes) => (from, to, bytes),
        None => match read_item(pm, to, item) {
            Some(bytes) => (to, from, bytes),
            // That item alone is lost: readers of it get an error.
            None => return Ok(pending),
        },
    };
    if read_item(pm, to, item).is_some_and(|there| there == bytes) {
        return Ok(pending);
    }
    debug_assert_ne!(from, to);
    let copied = retry_page(pm, geometry, to, || pm.copy(to, &bytes))?;
    Ok(join(pending, copied))
}

/// Stores that fail for a media error are tried again after their page was written anew.
fn retry_page<P: Pm>(
    pm: &P,
    geometry: &Geometry,
    address: u64,
    store: impl Fn() -> Result<Flushed>,
) -> Result<Flushed> {
    match store() {
        Err(error) if error.kind() == Kind::Media => {
            for page in [address, geometry.twin(address)] {
                mend_page(pm, geometry, Block(page / BLOCK_SIZE), &[])?;
            }
            store()
        }
        stored => stored,
    }
}
