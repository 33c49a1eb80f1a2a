//! Lanes: where an operation says what it changes before it does. The protocol is in `commit`.

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicU64, AtomicUsize};
use nacre_engine::{Error, Result};
use nacre_media::{Flushed, Pm, Stored};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::format::pools::POOLS;
use crate::format::{
    LANE_DONE, LANE_ITEMS, LINE, MAX_ITEMS, RawIntent, RawItem, intent_checksum, open_any, seal_any,
};
use crate::geometry::Geometry;
use crate::mend::read_either;
use crate::seeded::Mistake;

/// Changes of words: places, checks and new bytes.
#[derive(Default)]
pub(crate) struct Items {
    pub(crate) list: Vec<RawItem>,
    /// The bytes of all items, one behind the other.
    pub(crate) bytes: Vec<u8>,
}

impl Items {
    /// The bytes at an address become these.
    pub(crate) fn put(&mut self, address: u64, bytes: &[u8]) {
        debug_assert!(address.is_multiple_of(8) && bytes.len().is_multiple_of(8) && bytes.len() <= 4096);
        self.list.push(RawItem::new(address, bytes));
        self.bytes.extend_from_slice(bytes);
    }

    /// The checked word at an address becomes this.
    pub(crate) fn put_word(&mut self, address: u64, value: u64, seed: u32) {
        self.put(address, &seal_any(value, seed).to_le_bytes());
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
    }

    /// Each item with its bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut at = 0;
        self.list.iter().map(move |item| {
            at += item.len();
            (item.address(), &self.bytes[at - item.len()..at])
        })
    }
}

/// A lane of a mounted file system.
pub(crate) struct Lane {
    pub(crate) address: u64,
    /// The operation that has the lane makes its list here.
    pub(crate) scratch: Mutex<Items>,
    /// The last operation that needs no recovery, as media has it or will.
    pub(crate) done: Mutex<u64>,
    /// The pool block that entries of each pool come from; 0 for none. Changed under the lock of its group.
    pub(crate) active: [AtomicU64; POOLS],
    /// The word of that block's bits where the search begins.
    pub(crate) cursor: [AtomicUsize; POOLS],
    /// The group where the search for blocks begins.
    pub(crate) group: AtomicU64,
    /// The group where the search for pool blocks begins.
    pub(crate) pool_group: AtomicU64,
}

impl Lane {
    /// Lane `index`, whose last operation is over.
    pub(crate) fn new(geometry: &Geometry, index: u64, done: u64) -> Lane {
        let groups = geometry.groups();
        let first = groups.start + (groups.end - groups.start) / geometry.lanes * index;
        Lane {
            address: geometry.lane(index),
            scratch: Mutex::default(),
            done: Mutex::new(done),
            active: std::array::from_fn(|_| AtomicU64::new(0)),
            cursor: std::array::from_fn(|_| AtomicUsize::new(0)),
            group: AtomicU64::new(first),
            pool_group: AtomicU64::new(first),
        }
    }

    /// An operation of this lane needs no recovery any more. The next one writes that back: locks that are let go of
    /// now would wait for it.
    pub(crate) fn is_done<P: Pm>(&self, pm: &P, geometry: &Geometry, sequence: u64) -> Result<()> {
        let mut done = self.done.lock();
        *done = sequence;
        store_done(pm, geometry, self.address, sequence)?.into_iter().for_each(Stored::may_be_lost);
        Ok(())
    }

    /// Starts writing back what [`Lane::is_done`] stored, by whichever thread.
    pub(crate) fn flush_done<P: Pm>(&self, pm: &P, geometry: &Geometry) -> Result<Flushed> {
        let done = self.done.lock();
        write_done(pm, geometry, self.address, *done)
    }
}

/// Stores `done` in both copies of a lane.
fn store_done<P: Pm>(pm: &P, geometry: &Geometry, lane: u64, sequence: u64) -> Result<[Stored; 2]> {
    let word = seal_any(sequence, geometry.seed(lane)).to_le_bytes();
    let primary = pm.store(lane + LANE_DONE, &word)?;
    Ok([primary, pm.store(geometry.twin(lane) + LANE_DONE, &word)?])
}

/// Stores it, and starts writing it back.
pub(crate) fn write_done<P: Pm>(pm: &P, geometry: &Geometry, lane: u64, sequence: u64) -> Result<Flushed> {
    let [primary, backup] = store_done(pm, geometry, lane, sequence)?;
    let primary = pm.flush(primary);
    Ok(primary.and(pm.flush(backup)))
}

/// Writes the intent of an operation, both copies, and its items where there is no list elsewhere.
pub(crate) fn write_intent<P: Pm>(
    pm: &P,
    geometry: &Geometry,
    lane: u64,
    intent: &RawIntent,
    items: &[RawItem],
) -> Result<Flushed> {
    // Whole lines go past the cache.
    let (whole, rest) = items.as_chunks::<{ LINE as usize / size_of::<RawItem>() }>();
    let mut last = [RawItem::new_zeroed(); _];
    last[..rest.len()].copy_from_slice(rest);
    let lines = if rest.is_empty() { &[][..] } else { &[last][..] };
    let write = |place: u64| {
        let mut written = pm.copy(place, intent.as_bytes())?;
        if intent.list != 0 {
            return Ok(written);
        }
        let mut at = place + LANE_ITEMS;
        for lines in [whole, lines].into_iter().filter(|lines| !lines.is_empty()) {
            written = written.and(pm.copy(at, lines.as_bytes())?);
            at += lines.as_bytes().len() as u64;
        }
        Ok::<_, Error>(written)
    };
    let primary = write(lane)?;
    if Mistake::IntentInOneCopy.is_made(pm) {
        return Ok(primary);
    }
    Ok(primary.and(write(geometry.twin(lane))?))
}

/// The state of a lane on media.
pub(crate) struct LaneState {
    pub(crate) address: u64,
    /// Every operation up to this one is over.
    pub(crate) done: u64,
    /// The last operation that was begun, as far as its intent is whole.
    pub(crate) begun: Option<(u64, Vec<RawItem>)>,
}

/// Reads a lane.
pub(crate) fn read_lane<P: Pm>(pm: &P, geometry: &Geometry, index: u64) -> Result<LaneState> {
    let address = geometry.lane(index);
    let seed = geometry.seed(address);
    let copies = [address, geometry.twin(address)];
    // Of two that differ the greater is right: it was stored later.
    let done = copies.map(|copy| pm.load_u64(copy + LANE_DONE).ok().and_then(|word| open_any(word, seed)));
    let done = done.into_iter().flatten().max();
    let mut begun: Option<(u64, Vec<RawItem>)> = None;
    for copy in copies {
        if let Some((sequence, items)) = read_intent(pm, geometry, copy, seed)
            && begun.as_ref().is_none_or(|(other, _)| sequence > *other)
        {
            begun = Some((sequence, items));
        }
    }
    // Without a readable `done` the operation is looked at: one that is over is left as it is by that.
    let done = done.unwrap_or(0);
    Ok(LaneState { address, done, begun })
}

fn read_intent<P: Pm>(pm: &P, geometry: &Geometry, place: u64, seed: u32) -> Option<(u64, Vec<RawItem>)> {
    let mut intent = RawIntent::new_zeroed();
    pm.read(place, intent.as_mut_bytes()).ok()?;
    let count = u64::from(intent.items);
    if intent.sequence == 0 || count == 0 || count > MAX_ITEMS || intent.sequence >= 1 << 48 {
        return None;
    }
    let mut bytes = vec![0; count as usize * size_of::<RawItem>()];
    let is_valid = |bytes: &[u8]| intent.checksum == intent_checksum(&intent, bytes, seed);
    if intent.list == 0 {
        if count as usize > geometry.lane_items() {
            return None;
        }
        pm.read(place + LANE_ITEMS, &mut bytes).ok()?;
        if !is_valid(&bytes) {
            return None;
        }
    } else {
        read_either(pm, [intent.list, intent.list_backup], &mut bytes, is_valid).ok()?;
    }
    let items = bytes.chunks_exact(size_of::<RawItem>()).map(RawItem::read_from_bytes);
    Some((intent.sequence, items.collect::<Result<_, _>>().ok()?))
}
