//! The devices of tiers: attached, detached, added and removed.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Error, Kind, MAX_TIERS, Resource, Result, Tier, TierChange, TierState, Tiered, Timestamp,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_tiers::{Attachment, Label, NewLabel};
use uuid::Uuid;

use crate::engine::Mover;

/// Why a tier is missing before anybody has attached its device.
pub const NOT_ATTACHED: &str = "it is not attached";

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// See [`TieredFs::attach`](crate::TieredFs::attach).
    pub(crate) fn attach(&self, device: D, volume: Uuid, token: Option<u64>) -> Result<u8> {
        let _changing = self.places.changing.lock();
        let (label, tier) = self.recognize(&device, volume)?;
        let has = label.token();
        self.places.tiers.attach(tier.number, device, label);
        let counted = self.places.layout.count_tier(tier.number);
        match counted.inspect_err(|error| self.places.tiers.detach(tier.number, error.to_string()))? {
            None => {}
            Some(error) => self.places.tiers.tell_later(format!(
                "tier {}: its free blocks are unknown, and new blocks do not go there: {error}",
                tier.number
            )),
        }
        if let Some(token) = token {
            self.use_from(&Tier { token: has, ..tier }, token)
                .inspect_err(|error| self.places.tiers.detach(tier.number, error.to_string()))?;
        }
        if let Some(Attachment { device: Ok(name), .. }) = self.places.tiers.attachment(tier.number) {
            self.places.tiers.tell(&format!("tier {} is there: {name}", tier.number));
        }
        self.places.note_tiers();
        Ok(tier.number)
    }

    /// See [`TieredFs::would_attach`](crate::TieredFs::would_attach).
    pub(crate) fn would_attach(&self, device: &D, volume: Uuid) -> Result<u8> {
        let _changing = self.places.changing.lock();
        self.recognize(device, volume).map(|(_, tier)| tier.number)
    }

    /// The superblock of a device that may become that of a tier, and the tier.
    fn recognize(&self, device: &D, volume: Uuid) -> Result<(Label, Tier)> {
        let label = Label::read(device)?.ok_or_else(|| {
            Error::new(Kind::InvalidInput)
                .operation("attach")
                .object(device.name())
                .advice("it is no tier; nacre tier add makes it one")
        })?;
        let is_this = |tier: &&Tier| tier.uuid == label.uuid().into_bytes() && label.volume() == volume;
        let known = self.places.layout.tiers();
        let Some(tier) = known.iter().find(is_this).copied() else {
            return Err(Error::new(Kind::InvalidInput)
                .operation("attach")
                .object(format!(
                    "{}: tier {} of file system {}",
                    device.name(),
                    label.number(),
                    label.volume()
                ))
                .advice("it belongs to another file system, or was removed from this one"));
        };
        if let Some(Attachment { device: Ok(there), .. }) = self.places.tiers.attachment(tier.number) {
            return Err(Error::new(Kind::Busy)
                .operation("attach")
                .object(format!("{}: tier {} is on {there}", device.name(), tier.number))
                .advice("take it offline first"));
        }
        let has = label.token();
        let is_current = has == tier.token || tier.pending != 0 && has == tier.pending;
        if !is_current || label.blocks() != tier.blocks {
            return Err(Error::corrupt(format!(
                "tier {} on {}: it was not used together with this file system last",
                tier.number,
                device.name()
            ))
            .operation("attach")
            .by_object()
            .advice("one of them is an older copy: give the one that belongs to the other"));
        }
        if label.was_cut(device) {
            return Err(Error::new(Kind::DeviceLost)
                .operation("attach")
                .object(format!(
                    "tier {} on {}: it was truncated, and made longer again",
                    tier.number,
                    device.name()
                ))
                .by_object()
                .advice(
                    "the data in the part that was cut off is lost: restore the device from a copy, or remove the \
                     files that were on it",
                ));
        }
        Ok((label, tier))
    }

    /// See [`TieredFs::detach`](crate::TieredFs::detach).
    pub(crate) fn detach(&self, number: u8, token: Option<u64>, why: &str) -> Result<()> {
        let changing = self.places.changing.lock();
        let known = self.places.layout.tiers();
        let tier = known.iter().find(|tier| tier.number == number).ok_or_else(|| {
            Error::new(Kind::InvalidInput).operation("detach").object(format!("tier {number}"))
        })?;
        let noted = |token: &u64| {
            let change = TierChange::Set(Tier { pending: *token, ..*tier });
            self.places.layout.change_tier(change).is_ok()
        };
        let is_there = self.places.tiers.attachment(number).is_some_and(|at| at.device.is_ok());
        let token = token.filter(|_| is_there).filter(noted);
        let device = self.places.tiers.let_go(number, why);
        drop(changing);
        // A device that hangs blocks no other operation: it is detached by now. The file system knows both numbers
        // until this is done.
        if let (Some(token), Some(device)) = (token, device)
            && device.write_token(token).is_ok()
        {
            let _changing = self.places.changing.lock();
            let known = self.places.layout.tiers();
            let is_same = |now: &&Tier| now.uuid == tier.uuid && now.pending == token;
            if let Some(now) = known.iter().find(is_same) {
                self.places.layout.change_tier(TierChange::Set(Tier { token, pending: 0, ..*now }))?;
            }
        }
        Ok(())
    }

    /// Notes in the file system, on the device, and in the file system again that this mount uses the tier. Nothing of
    /// it may change before that; a crash in between leaves the device with one of the two numbers that the file system
    /// has.
    fn use_from(&self, tier: &Tier, token: u64) -> Result<()> {
        self.places.layout.change_tier(TierChange::Set(Tier { pending: token, ..*tier }))?;
        self.places.tiers.write_token(tier.number, token)?;
        self.places.layout.change_tier(TierChange::Set(Tier { token, pending: 0, ..*tier }))
    }

    /// See [`TieredFs::add`](crate::TieredFs::add).
    pub(crate) fn add(&self, device: D, volume: Uuid, rank: u8, token: u64, now: Timestamp) -> Result<u8> {
        self.add_as(None, device, volume, rank, token, now)
    }

    /// See [`TieredFs::add_as`](crate::TieredFs::add_as).
    pub(crate) fn add_as(
        &self,
        uuid: Option<Uuid>,
        device: D,
        volume: Uuid,
        rank: u8,
        token: u64,
        now: Timestamp,
    ) -> Result<u8> {
        let _changing = self.places.changing.lock();
        let known = self.places.layout.tiers();
        let is_free = |number: &u8| known.iter().all(|tier| tier.number != *number);
        let number = (1..=MAX_TIERS).find(is_free).ok_or_else(|| {
            Error::no_space(Resource::Limit, 0)
                .operation("add")
                .object(format!("the {MAX_TIERS} tiers of a file system"))
        })?;
        let label = Label::create(&device, &NewLabel { uuid, volume, number, token, now })?;
        let uuid = label.uuid().into_bytes();
        let blocks = label.blocks();
        let tier = Tier { number, uuid, blocks, token, pending: 0, rank, state: TierState::Active };
        self.places.tiers.attach(number, device, label);
        self.places
            .layout
            .change_tier(TierChange::Set(tier))
            .inspect_err(|_| drop(self.places.tiers.forget(number)))?;
        self.places.note_tiers();
        Ok(number)
    }

    /// See [`TieredFs::remove`](crate::TieredFs::remove).
    pub(crate) fn remove(&self, number: u8) -> Result<()> {
        let changing = self.places.changing.lock();
        self.engine.trims.without(number, || self.places.layout.change_tier(TierChange::Remove(number)))?;
        self.engine.drains.lock().remove(&number);
        let device = self.places.tiers.forget(number);
        drop(changing);
        if let Some(device) = device {
            // It is free for other uses, which look at the device; an error here loses nothing.
            let _ = device.erase();
        }
        Ok(())
    }

    /// See [`TieredFs::set_state`](crate::TieredFs::set_state).
    pub(crate) fn set_state(&self, number: u8, state: TierState) -> Result<()> {
        let _changing = self.places.changing.lock();
        let known = self.places.layout.tiers();
        let tier = known.iter().find(|tier| tier.number == number);
        let tier = tier.ok_or_else(|| Error::new(Kind::InvalidInput).object(format!("tier {number}")))?;
        if tier.state == state {
            return Ok(());
        }
        let change = || self.places.layout.change_tier(TierChange::Set(Tier { state, ..*tier }));
        match state {
            TierState::Draining => self.places.without(number, change)?,
            TierState::Active => change()?,
        }
        self.engine.has_told_full.store(false, Ordering::Relaxed);
        if state == TierState::Active {
            self.engine.drains.lock().retain(|drained, drain| *drained != number || drain.is_none());
            // Blocks that no tier took find room now.
            self.engine.scan_again.store(true, Ordering::Relaxed);
            self.places.tiers.tell(&format!("tier {number} is used again"));
        } else {
            self.places.tiers.tell(&format!("tier {number} is being drained: new blocks do not go there"));
        }
        Ok(())
    }
}
