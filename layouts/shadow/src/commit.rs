//! The commit protocol: an operation is published by one slot, by one word, or by one switch.
//!
//! 1. **A slot alone.** Everything that the slot leads to is durable: one fence, if there is anything. The slot is
//!    written, without a condition; one fence. Until it is whole its checksum is wrong, and the other slot counts.
//! 2. **A word and a slot.** Data, new nodes and the slot, on condition that the word has its new value; one fence. The
//!    word is stored; one fence. The condition is false before the store and true after it: the word and the slot
//!    turn by the same store.
//! 3. **A switch.** Everything new, slots and names tagged with the lane and its next generation; one fence. Both lines
//!    of the switch take the generation; one fence. Nothing tagged counts before one of these words is on media, and
//!    all of it after.
//!
//! A commit holds the locks of all inodes that it writes until it is acknowledged, and a lane until its last fence. The
//! state in DRAM that only these locks give access to changes while a switch is on its way ([`Switched`]). Values that
//! are read without a lock change behind the last fence.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, Kind, Result};
use nacre_layout_parts::tree::edit::join;
use nacre_media::{Durable, Flushed, Pm};
use zerocopy::IntoBytes;

use crate::format::{Condition, Tag};
use crate::fs::Shared;
use crate::lift::Publish;
use crate::seeded::Mistake;
use crate::state::NewSlot;
use crate::switches::Switched;

impl<P: Pm> Shared<P> {
    /// Refuses changes after a commit that failed half way.
    pub(crate) fn check_unbroken(&self) -> Result<()> {
        if self.broken.load(Ordering::Acquire) {
            return Err(Error::new(Kind::Media)
                .object("a commit")
                .advice("it failed on the media: unmount and mount again, which keeps it or takes it back"));
        }
        Ok(())
    }

    /// Notes that the media refused a part of a commit: only the next mount can know whether it counts.
    pub(crate) fn unless_broken<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|_| self.broken.store(true, Ordering::Release))
    }

    /// Computes the rest of a slot, which counts under a condition.
    fn seal(&self, new: &mut NewSlot, when: Condition) {
        if Mistake::SequenceKept.is_made(&*self.pm) {
            new.slot.sequence = new.slot.sequence.wrapping_sub(1);
        }
        new.slot.set_condition(when);
        new.slot.checksum = new.slot.compute_checksum(new.seed);
    }

    /// Writes a sealed slot.
    fn put_sealed(&self, new: &NewSlot, pending: Option<Flushed>) -> Result<Option<Flushed>> {
        Ok(join(pending, self.pm.copy(new.address, new.slot.as_bytes())?))
    }

    /// Writes a slot that counts when it is whole.
    pub(crate) fn put_slot(&self, new: &mut NewSlot, pending: Option<Flushed>) -> Result<Option<Flushed>> {
        self.seal(new, Condition::Always);
        self.put_sealed(new, pending)
    }

    fn wait_for(&self, pending: Option<Flushed>) -> Durable {
        pending.map_or_else(Durable::nothing_before, |pending| self.pm.fence(pending))
    }

    /// Publishes a slot, and with it what the lifted tree of its inode asks for. `write` writes what it leads to.
    pub(crate) fn commit(
        &self,
        new: &mut NewSlot,
        publish: Publish,
        write: impl FnOnce() -> Result<Option<Flushed>>,
    ) -> Result<()> {
        self.check_unbroken()?;
        let when = match publish {
            Publish::Word { address, value } if !Mistake::UnconditionalSlot.is_made(&*self.pm) => {
                Condition::Word { address, value }
            }
            _ => Condition::Always,
        };
        // Before data is written: a checksum loads bytes of the slot that were stored a moment ago. It would wait for
        // all stores past the cache before them.
        self.seal(new, when);
        let pending = write()?;
        self.unless_broken(match publish {
            Publish::Slot => self.publish_slot(new, pending),
            Publish::Together => self.put_sealed(new, pending).map(|pending| _ = self.wait_for(pending)),
            Publish::Word { address, value } => self.publish_word(new, address, value, pending),
        })
    }

    /// Publishes a slot that goes with nothing else.
    pub(crate) fn commit_slot(&self, new: &mut NewSlot, pending: Option<Flushed>) -> Result<()> {
        self.commit(new, Publish::Slot, || Ok(pending))
    }

    fn publish_slot(&self, new: &NewSlot, pending: Option<Flushed>) -> Result<()> {
        let together = match pending {
            // The slot does not wait for the data.
            Some(pending) if Mistake::SlotBeforeData.is_made(&*self.pm) => Some(pending),
            pending => {
                self.wait_for(pending);
                None
            }
        };
        let pending = self.put_sealed(new, together)?;
        self.wait_for(pending);
        Ok(())
    }

    fn publish_word(&self, new: &NewSlot, address: u64, value: u64, pending: Option<Flushed>) -> Result<()> {
        let pending = self.put_sealed(new, pending)?;
        self.store_word(address, value, pending)
    }

    /// Of the mistake to move blocks without a slot: publishes a word alone.
    pub(crate) fn commit_word(
        &self,
        address: u64,
        value: u64,
        write: impl FnOnce() -> Result<Option<Flushed>>,
    ) -> Result<()> {
        self.check_unbroken()?;
        let pending = write()?;
        self.unless_broken(self.store_word(address, value, pending))
    }

    fn store_word(&self, address: u64, value: u64, pending: Option<Flushed>) -> Result<()> {
        let (before, pending) = match Mistake::WordBeforeSlot.is_made(&*self.pm) {
            true => (Durable::nothing_before(), pending),
            false => (self.wait_for(pending), None),
        };
        let stored = self.pm.publish_u64(address, value, before)?;
        self.wait_for(join(pending, self.pm.flush(stored)));
        Ok(())
    }

    /// Publishes by a switch the slots, and the lines that `write` writes under a tag. The switch is on its way then, and no
    /// error can follow.
    pub(crate) fn commit_tagged(
        &self,
        slots: &mut [&mut NewSlot],
        write: impl FnOnce(Tag) -> Result<Option<Flushed>>,
    ) -> Result<Switched<'_, P>> {
        let lane = self.switches.lane();
        let mut next = Some(lane.next.lock());
        // Also after a failure of another commit while this waited for the lane.
        self.check_unbroken()?;
        let generation = next.as_deref().copied().unwrap_or_default();
        let tag = Tag { lane: lane.number, generation };
        if Mistake::LaneShared.is_made(&*self.pm)
            && let Some(mut next) = next.take()
        {
            *next += 1;
        }
        let written = write(tag).and_then(|pending| {
            // Names are few lines: the checksums cost nothing while these are on their way.
            slots.iter_mut().for_each(|slot| self.seal(slot, Condition::Switch(tag)));
            slots.iter().try_fold(pending, |pending, slot| self.put_sealed(slot, pending))
        });
        // Broken before the lane is unlocked: nothing may take this generation again.
        let written = self.unless_broken(written)?;
        let (before, early) = match Mistake::SwitchEarly.is_made(&*self.pm) {
            true => (Durable::nothing_before(), written),
            false => (self.wait_for(written), None),
        };
        let pending = self.unless_broken(lane.publish(&*self.pm, generation, before, early))?;
        Ok(lane.switched(&*self.pm, next, generation, pending))
    }
}
