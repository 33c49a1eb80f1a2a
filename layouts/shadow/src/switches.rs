//! The switches: for each lane the generation of its last operation, in two lines.

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, MutexGuard};
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_layout_parts::renew::store_word;
use nacre_layout_parts::tree::edit::join;
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::lane_of_thread;
use crate::format::{LANES, LINE, MAX_GENERATION, Region, Tag, open_any, region, seal_any, switch_seed};
use crate::seeded::Mistake;
use crate::superblock::Superblock;

/// A lane: one operation after the other, each with a generation of its own.
pub(crate) struct Lane {
    pub(crate) number: u64,
    /// Where both copies of its switch are, without one that cannot be written.
    addresses: [Option<u64>; 2],
    seed: u32,
    /// The generation of the next operation.
    pub(crate) next: Mutex<u64>,
    /// The switch.
    done: AtomicU64,
}

/// A switch that is stored, and on its way to media.
///
/// Dropping it waits for the media and gives the lane to the next operation. Until then its operation is not
/// acknowledged, and the locks of its inodes are held. The state that only these locks give access to may change
/// meanwhile: it costs nothing beside the wait. A locked instruction would end the overlap, because it waits for the
/// stores before it.
#[must_use = "the operation is durable once this is dropped"]
pub(crate) struct Switched<'l, P: Pm> {
    pm: &'l P,
    lane: &'l Lane,
    /// The lane, unless it was let go of too early by mistake.
    next: Option<MutexGuard<'l, u64>>,
    generation: u64,
    pending: Option<Flushed>,
}

/// All lanes, in DRAM.
pub(crate) struct Switches {
    lanes: Vec<Lane>,
    /// How many of them this mount uses.
    used: usize,
}

/// The switches on media.
pub(crate) struct Read {
    /// The generation of each lane; 0 for one of which both copies are lost.
    pub(crate) generations: Vec<u64>,
    /// Lanes of which one copy is not as it should be.
    pub(crate) unequal: Vec<u64>,
    /// Lanes of which both copies are lost.
    pub(crate) lost: Vec<u64>,
}

/// Where the copies of a lane's switch are.
fn addresses(region: Region, lane: u64) -> [u64; 2] {
    [0, 1].map(|copy| Block(region.start + copy).offset() + lane * LINE)
}

/// A copy has a media error that stays: it is one of those that are not written any more.
pub(crate) fn unless_bad(written: Result<()>, address: u64, bad: &mut Vec<u64>) -> Result<()> {
    match written {
        Err(error) if error.kind() == Kind::Media => {
            bad.push(address);
            Ok(())
        }
        written => written,
    }
}

/// The copies of a structure that can be written: one at least, because a commit in none would be lost.
pub(crate) fn usable(copies: [u64; 2], bad: &[u64], what: impl Fn() -> String) -> Result<[Option<u64>; 2]> {
    let usable = copies.map(|address| Some(address).filter(|address| !bad.contains(address)));
    match usable {
        [None, None] => Err(Error::new(Kind::Media).object(format!("both copies of {}", what()))),
        _ => Ok(usable),
    }
}

impl Read {
    /// Reads the switches of a file system.
    pub(crate) fn from(pm: &impl Pm, superblock: &Superblock) -> Result<Read> {
        let region = superblock.region(region::SWITCHES)?;
        let mut read = Read { generations: Vec::new(), unequal: Vec::new(), lost: Vec::new() };
        for lane in 0..LANES {
            let seed = switch_seed(superblock.seed(), lane);
            let copies = addresses(region, lane).map(|address| {
                let word = pm.load_u64(address).ok()?;
                open_any(word, seed).filter(|&generation| generation < MAX_GENERATION)
            });
            // The second copy is stored after the first one, and the greater one counts.
            let generation = copies.into_iter().flatten().max();
            match generation {
                None => read.lost.push(lane),
                Some(_) if copies[0] != copies[1] => read.unequal.push(lane),
                Some(_) => {}
            }
            read.generations.push(generation.unwrap_or(0));
        }
        Ok(read)
    }

    /// Whether a switch is at the generation of a tag.
    pub(crate) fn is_reached(&self, tag: Tag) -> bool {
        self.generations.get(tag.lane as usize).is_some_and(|&generation| tag.generation <= generation)
    }

    /// Refuses to go on without a switch.
    pub(crate) fn check(&self) -> Result<()> {
        match self.lost.first() {
            None => Ok(()),
            Some(lane) => Err(Error::corrupt(format!("both copies of the switch of lane {lane}"))
                .advice("run nacre fsck, which makes a new one where everything else is sound")),
        }
    }

    /// Makes both copies of each lane alike, but for one with a media error that stays, which is added to `bad`. The
    /// caller fences.
    pub(crate) fn mend(
        &self,
        pm: &impl Pm,
        superblock: &Superblock,
        bad: &mut Vec<u64>,
    ) -> Result<Option<Flushed>> {
        let region = superblock.region(region::SWITCHES)?;
        let mut pending = None;
        for &lane in &self.unequal {
            let word = seal_any(self.generations[lane as usize], switch_seed(superblock.seed(), lane));
            for address in addresses(region, lane) {
                match pm.publish_u64(address, word, Durable::nothing_before()) {
                    Ok(stored) => pending = join(pending, pm.flush(stored)),
                    Err(error) if error.kind() == Kind::Media => {
                        unless_bad(store_word(pm, address, word), address, bad)?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(pending)
    }

    /// Makes the switches that are lost anew, at a generation. Only where nothing unfinished is in their lanes.
    pub(crate) fn renew_lost(&self, pm: &impl Pm, superblock: &Superblock, generation: u64) -> Result<()> {
        let region = superblock.region(region::SWITCHES)?;
        for &lane in &self.lost {
            let word = seal_any(generation, switch_seed(superblock.seed(), lane));
            addresses(region, lane).into_iter().try_for_each(|address| store_word(pm, address, word))?;
        }
        Ok(())
    }
}

/// The bytes of both blocks of switches in a new file system.
pub(crate) fn unused(volume_seed: u32) -> [u8; BLOCK_SIZE as usize] {
    let mut block = [0; BLOCK_SIZE as usize];
    for (lane, line) in (0..).zip(block.chunks_exact_mut(LINE as usize)) {
        line[..8].copy_from_slice(&seal_any(0, switch_seed(volume_seed, lane)).to_le_bytes());
    }
    block
}

impl Switches {
    /// The switches as they were read, of which a mount uses so many; `bad` are copies that cannot be written.
    pub(crate) fn new(read: &Read, superblock: &Superblock, used: usize, bad: &[u64]) -> Result<Switches> {
        let region = superblock.region(region::SWITCHES)?;
        let lane = |(number, &generation): (u64, &u64)| {
            let what = || format!("the switch of lane {number}");
            Ok::<_, Error>(Lane {
                number,
                addresses: usable(addresses(region, number), bad, what)?,
                seed: switch_seed(superblock.seed(), number),
                next: Mutex::new(generation + 1),
                done: AtomicU64::new(generation),
            })
        };
        let lanes = (0..).zip(&read.generations).map(lane).collect::<Result<_>>()?;
        Ok(Switches { lanes, used: used.clamp(1, LANES as usize) })
    }

    /// The lane of this thread.
    pub(crate) fn lane(&self) -> &Lane {
        &self.lanes[lane_of_thread() % self.used]
    }

    /// Whether a switch is at the generation of a tag.
    pub(crate) fn is_reached(&self, tag: Tag) -> bool {
        self.lanes
            .get(tag.lane as usize)
            .is_some_and(|lane| tag.generation <= lane.done.load(Ordering::Acquire))
    }
}

impl Lane {
    /// Both copies of the switch become `generation`, after everything that it makes count. They are on their way then.
    pub(crate) fn publish(
        &self,
        pm: &impl Pm,
        generation: u64,
        after: Durable,
        mut pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        let mut line = [0; LINE as usize];
        line[..8].copy_from_slice(&seal_any(generation, self.seed).to_le_bytes());
        let [first, second] = self.addresses;
        if let Some(first) = first {
            pending = join(pending, pm.publish_entry(first, &line, after.again())?);
        }
        if let Some(second) = second
            && !Mistake::SwitchInOneLine.is_made(pm)
        {
            pending = join(pending, pm.publish_entry(second, &line, after)?);
        }
        Ok(pending)
    }

    /// The switch became `generation`; `pending` is on its way. `next` is the lane, locked.
    pub(crate) fn switched<'l, P: Pm>(
        &'l self,
        pm: &'l P,
        next: Option<MutexGuard<'l, u64>>,
        generation: u64,
        pending: Option<Flushed>,
    ) -> Switched<'l, P> {
        Switched { pm, lane: self, next, generation, pending }
    }
}

impl<P: Pm> Drop for Switched<'_, P> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.pm.fence(pending);
        }
        self.lane.done.store(self.generation, Ordering::Release);
        if let Some(next) = &mut self.next
            && !Mistake::GenerationRepeated.is_made(self.pm)
        {
            **next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::sync::Mutex;
    use nacre_engine::sync::atomic::{AtomicU64, Ordering};
    use nacre_media::sim::Event;
    use nacre_media::{Durable, Pm, SimPm};

    use super::{Lane, open_any, usable};

    /// Names and slots that wait for a switch do not count before the switch is durable. No other operation has the lane
    /// until then.
    #[test]
    fn a_switch_counts_once_it_is_durable() {
        let pm = SimPm::new(8192);
        let (addresses, seed) = ([64, 4160], 5);
        let lane = Lane {
            number: 3,
            addresses: addresses.map(Some),
            seed,
            next: Mutex::new(7),
            done: AtomicU64::new(6),
        };
        pm.start_recording();
        let next = lane.next.lock();
        let pending = lane.publish(&pm, 7, Durable::nothing_before(), None).unwrap();
        let switched = lane.switched(&pm, Some(next), 7, pending);
        let fences = |pm: &SimPm| {
            let events = pm.take_trace().events;
            events.iter().filter(|event| matches!(event, Event::Fence { .. })).count()
        };
        assert_eq!(addresses.map(|at| open_any(pm.load_u64(at).unwrap(), seed)), [Some(7); 2]);
        assert_eq!((fences(&pm), lane.done.load(Ordering::Acquire)), (0, 6));
        assert!(lane.next.try_lock().is_none());
        drop(switched);
        assert_eq!((fences(&pm), lane.done.load(Ordering::Acquire)), (1, 7));
        assert_eq!(*lane.next.lock(), 8);
    }

    #[test]
    fn one_copy_is_enough_and_none_is_not() {
        let of = |bad: &[u64]| usable([64, 4160], bad, || "a switch".to_owned());
        assert_eq!(of(&[]).unwrap(), [Some(64), Some(4160)]);
        assert_eq!(of(&[64, 7]).unwrap(), [None, Some(4160)]);
        let error = of(&[4160, 64]).unwrap_err().to_string();
        assert!(error.contains("both copies of a switch"), "{error}");
    }
}
