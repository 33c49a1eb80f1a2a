//! Whether devices are tiers of a file system that is not open, and are as they were when it was used last.

use std::path::PathBuf;

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, Tier, TierReader, TierRun, size};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::report::Repair;
use nacre_media::block::{BlockDevice, DiskOptions, RealDisk};
use nacre_tiers::{COPIES, Label};
use uuid::Uuid;

use crate::check::{Problem, UncheckedTier};

/// Opens devices, for a repair so that it may write. [`Busy`](Kind::Busy) when one is in use.
pub(crate) fn open(paths: &[PathBuf], repair: Repair) -> Result<Vec<RealDisk>> {
    let options = DiskOptions { read_only: repair == Repair::None, ..DiskOptions::default() };
    let open = |path: &PathBuf| {
        RealDisk::open(path, &options).map_err(|error| error.object(path.display().to_string()))
    };
    paths.iter().map(open).collect()
}

/// Devices that are tiers of a file system and were used with it last: the parts of logs on them can be read.
pub(crate) struct Readable<'d>(Vec<(u8, &'d RealDisk)>);

impl<'d> Readable<'d> {
    /// Those of the devices that are; of the others [`check`] says why.
    pub(crate) fn of<L: Lifecycle>(pm: &L::Pm, devices: &'d [RealDisk]) -> Result<Readable<'d>> {
        let volume = L::probe(pm)?.uuid;
        let known = L::known_tiers(pm)?;
        let number = |device: &RealDisk| {
            let label = read(device).ok()?;
            let uuid = label.uuid().into_bytes();
            let tier = known.iter().find(|tier| tier.uuid == uuid && label.volume() == volume)?;
            differs(device, &label, tier).is_none().then_some(tier.number)
        };
        let tiers = devices.iter().filter_map(|device| Some((number(device)?, device)));
        Ok(Readable(tiers.collect()))
    }
}

impl TierReader for Readable<'_> {
    fn read_image(&self, run: TierRun) -> Result<Vec<u8>> {
        let device = self.0.iter().find(|(tier, _)| *tier == run.tier);
        let (_, device) = device.ok_or_else(|| {
            Error::new(Kind::DeviceLost).object(format!("tier {}: it was not given", run.tier))
        })?;
        let mut content = vec![0; (run.len * BLOCK_SIZE) as usize];
        device.read(run.start.offset(), &mut content)?;
        Ok(content)
    }
}

/// The problems of a device that is to be one of the known tiers of a file system. A damaged copy of its superblock is
/// written from the other one, which loses nothing. Nothing else can be repaired here: only the owner knows which of
/// two states of a file system is wanted.
pub(crate) fn check(device: &impl BlockDevice, volume: Uuid, known: &[Tier], repair: Repair) -> Vec<Problem> {
    let label = match read(device) {
        Ok(label) => label,
        Err(problem) => return vec![problem],
    };
    let uuid = label.uuid().into_bytes();
    let Some(tier) = known.iter().find(|tier| tier.uuid == uuid && label.volume() == volume) else {
        // It was one before the repair.
        let what = format!("{}: the repair has given up tier {}", device.name(), label.number());
        return vec![unrepairable(what, "leave it out")];
    };
    if let Some(problem) = differs(device, &label, tier) {
        return vec![problem];
    }
    let damaged = label.damaged(device);
    let is_to_mend = repair != Repair::None && damaged.contains(&true);
    let has_failed = is_to_mend && label.mend(device, damaged).is_err();
    let copies = COPIES.iter().zip(damaged).filter(|(_, is_damaged)| *is_damaged);
    let problem = |(copy, _): (&&str, bool)| Problem {
        what: format!(
            "tier {} on {}: the {copy} copy of its superblock is damaged",
            tier.number,
            device.name()
        ),
        repair: (!has_failed).then_some("write it from the other"),
        advice: has_failed.then_some("it cannot be written: nacre tier replace moves to another device"),
        loses: false,
        repaired: is_to_mend && !has_failed,
    };
    copies.map(problem).collect()
}

fn read(device: &impl BlockDevice) -> std::result::Result<Label, Problem> {
    let refused = |error: Error| {
        let advice = match error.kind() {
            Kind::Unsupported => "use a newer nacre",
            Kind::DeviceLost => "it was truncated: restore its size before anything else",
            _ => "restore a copy of it that was made when the file system was used last",
        };
        unrepairable(error.object_name().to_owned(), advice)
    };
    Label::read(device)
        .map_err(refused)?
        .ok_or_else(|| unrepairable(format!("{}: it is no tier", device.name()), "give the device of a tier"))
}

/// Refuses devices that are no tiers of the file system: the caller was mistaken, and nothing is damaged. A device
/// whose own superblock is damaged, or that is older, is left to [`check`]. Gives the tiers of which no device was
/// given.
pub(crate) fn require_own<L: Lifecycle>(pm: &L::Pm, devices: &[RealDisk]) -> Result<Vec<UncheckedTier>> {
    let volume = L::probe(pm)?.uuid;
    let known = L::known_tiers(pm)?;
    let mut left = known.clone();
    let wrong = |what: String, advice| Err(Error::new(Kind::InvalidInput).object(what).advice(advice));
    let mut are_all_known = true;
    for device in devices {
        let name = device.name();
        let label = match Label::read(device) {
            Ok(Some(label)) => label,
            Ok(None) => {
                return wrong(format!("{name}: it is no tier"), "give the device of a tier, or leave it out");
            }
            // Which one it is cannot be said.
            Err(_) => {
                are_all_known = false;
                continue;
            }
        };
        let number = label.number();
        if label.volume() != volume {
            let of = label.volume();
            let what = format!("{name}: it is tier {number} of file system {of}, and this one is {volume}");
            return wrong(what, "give the tier that belongs to this file system, or leave it out");
        }
        let uuid = label.uuid().into_bytes();
        let Some(at) = left.iter().position(|tier| tier.uuid == uuid) else {
            let is_known = known.iter().any(|tier| tier.uuid == uuid);
            let how = if is_known { "is given twice" } else { "was removed from it" };
            return wrong(format!("{name}: tier {number} of this file system {how}"), "leave it out");
        };
        left.remove(at);
    }
    if !are_all_known {
        return Ok(Vec::new());
    }
    let paths = L::known_tier_paths(pm)?;
    let last = |number| paths.iter().find(|(of, _)| *of == number).map(|(_, path)| path.clone());
    Ok(left.iter().map(|tier| UncheckedTier { number: tier.number, last: last(tier.number) }).collect())
}

/// It was not used together with the file system last, has another size, or had one.
fn differs(device: &impl BlockDevice, label: &Label, tier: &Tier) -> Option<Problem> {
    let (name, number, has) = (device.name(), tier.number, label.token());
    if has != tier.token && (tier.pending == 0 || has != tier.pending) {
        let what = format!("tier {number} on {name}: it was not used together with this file system last");
        return Some(unrepairable(
            what,
            "one of them is an older copy: give the one that belongs to the other, and write to neither before",
        ));
    }
    if label.blocks() != tier.blocks {
        let [is, was] = [label.blocks(), tier.blocks].map(|blocks| size::exact(blocks * BLOCK_SIZE));
        let what = format!("tier {number} on {name}: it has {is}, and the file system says {was}");
        return Some(unrepairable(what, "restore the one or the other from a copy of the same time"));
    }
    label.was_cut(device).then(|| {
        let what = format!(
            "tier {number} on {name}: it was truncated, and made longer again: the part that was cut off reads as zeros"
        );
        unrepairable(what, "restore it from a copy of the same time, or remove the files that were on it")
    })
}

fn unrepairable(what: String, advice: &'static str) -> Problem {
    Problem { what, repair: None, advice: Some(advice), loses: false, repaired: false }
}
