//! `nacre tier`: the tiers of a mounted file system, which are devices below PM.

mod args;

pub(crate) use self::args::TierArgs;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use nacre_control::{
    Attached, Drained, Order, Question, TierAdded, TierInfo, TierToAdd, TierToTrim, TiersInfo, Trimmed,
};
use nacre_engine::size;
use serde_json::{Value, json};

use self::args::{HowArgs, NewArgs, TierCommand, WhichArgs};
use crate::failure::Failure;
use crate::{mounted, mover, output};

/// The attribute with a mount's tiers.
const QUESTION: &str = Question::Tiers.attribute();
/// The advice for a file system without tiers: if its layout can have tiers, and if it cannot.
pub(crate) const MAKE_ONE: &str = "nacre tier add makes one";
pub(crate) const NO_TIERS: &str = "its layout cannot have any; make a file system with one of the presets nacre, nova, \
                                   tpfs, bpfs and acbpfs";
/// Passes of a drain over all files. Writes during a pass may need another one.
const PASSES: u32 = 4;
/// Causes that keep blocks on a drained tier, with the remedy.
const USED: &str = "they belong to files that were removed and are open, or are written all the time: end the programs \
                    that use them, and try again";
const LEAKED: &str = "they belong to files that were removed while their extent maps could not be read: the next mount \
                      frees them; unmount and mount the file system, and try again";

/// The state of a tier, in words.
fn state(tier: &TierInfo) -> String {
    let state = match (&tier.missing, &tier.failing, tier.draining) {
        (Some(why), ..) => format!("missing: {why}"),
        (None, Some(why), _) => format!("failing: {why}"),
        (None, None, true) => "draining, takes no new blocks".to_owned(),
        (None, None, false) => "in use".to_owned(),
    };
    let mut parts = vec![state];
    if tier.leaked > 0 {
        parts.push(format!("{} leaked until the next mount", size::print(tier.leaked)));
    }
    if tier.errors > 0 {
        parts.push(output::count(tier.errors, "error", "errors"));
    }
    parts.join(", ")
}

/// The canonical path of a tier's device.
fn canonical(tier: &TierInfo) -> Option<PathBuf> {
    Path::new(tier.device.as_ref()?).canonicalize().ok()
}

/// Shows or changes tiers.
pub(crate) fn run(args: TierArgs) -> Result<(), Failure> {
    match args.command {
        TierCommand::List { json, path } => {
            let tiers = tiers_of("tier list", &path)?;
            match (json, &tiers[..]) {
                (true, _) => output::json(json!(TiersInfo { tiers })),
                (false, []) => {
                    let advice = if mover::is_there("tier list", &path)? { MAKE_ONE } else { NO_TIERS };
                    output::text_out(&format!("{}: it has no tiers; {advice}\n", path.display()))
                }
                (false, tiers) => list(tiers),
            }
        }
        TierCommand::Add { new, how, path, device } => {
            let mount = mounted::mountpoint("tier add", &path)?;
            let device = absolute("tier add", &device)?;
            is_elsewhere("tier add", &mount, &device)?;
            if how.dry_run {
                mounted::order::<()>("tier add", &mount, Order::CheckTier(to_add(&new, &device)))?;
                let would = format!("{}: would become a tier of {}", device.display(), mount.display());
                return done(&how, &would, json!({}));
            }
            let number = add("tier add", &mount, &new, &device)?;
            let text = format!("{}: is tier {number} of {}", device.display(), mount.display());
            done(&how, &text, json!({ "tier": number }))
        }
        TierCommand::Drain { cancel, which } => {
            let (mount, tier) = find("tier drain", &which)?;
            if cancel {
                let order = Order::UseTier(tier.number);
                return change("tier drain", &which.how, &mount, &tier, order, "used again");
            }
            let moved = drain("tier drain", &which.how, &mount, &tier)?;
            let text = moved.map_or_else(
                || {
                    format!(
                        "tier {}: {} would be moved to other places",
                        tier.number,
                        size::print(tier.used())
                    )
                },
                |moved| {
                    format!("tier {}: is empty, {} moved to other places", tier.number, size::print(moved))
                },
            );
            done(&which.how, &text, json!({ "tier": tier.number, "moved": moved }))
        }
        TierCommand::Remove { which } => {
            let (mount, tier) = find("tier remove", &which)?;
            remove("tier remove", &which.how, &mount, &tier)
        }
        TierCommand::Offline { which } => {
            let (mount, tier) = find("tier offline", &which)?;
            let order = Order::DetachTier(tier.number);
            change("tier offline", &which.how, &mount, &tier, order, "offline")
        }
        TierCommand::Online { how, emulate, path, device } => {
            let mount = mounted::mountpoint("tier online", &path)?;
            let device = absolute("tier online", &device)?;
            is_elsewhere("tier online", &mount, &device)?;
            if how.dry_run {
                let order = Order::CheckAttach(device.clone());
                let Attached { tier } = mounted::order("tier online", &mount, order)?;
                let text = format!("{}: would be tier {tier} of {}", device.display(), mount.display());
                return done(&how, &text, json!({ "tier": tier }));
            }
            let order = Order::AttachTier { path: device.clone(), emulate };
            let Attached { tier } = mounted::order("tier online", &mount, order)?;
            let text = format!("{}: is tier {tier} of {}", device.display(), mount.display());
            done(&how, &text, json!({ "tier": tier }))
        }
        TierCommand::Replace { new, which, device } => replace(&new, &which, &device),
        TierCommand::Trim { minimum, how, path, tier } => trim(minimum, &how, &path, tier),
    }
}

/// Trims one tier, or all that are online. A failed tier does not keep others from the trim.
fn trim(minimum: u64, how: &HowArgs, path: &Path, tier: Option<String>) -> Result<(), Failure> {
    const OPERATION: &str = "tier trim";
    let (mount, tiers) = match tier {
        Some(tier) => {
            let which = WhichArgs { how: how.clone(), path: path.to_owned(), tier };
            let (mount, tier) = find(OPERATION, &which)?;
            (mount, vec![tier])
        }
        None => {
            let mut tiers = tiers_of(OPERATION, path)?;
            tiers.retain(|tier| tier.missing.is_none());
            (mounted::mountpoint(OPERATION, path)?, tiers)
        }
    };
    let (mut words, mut results, mut failures) = (Vec::new(), Vec::new(), Vec::<Failure>::new());
    for tier in &tiers {
        let (number, free) = (tier.number, size::print(tier.free));
        if how.dry_run {
            words.push(format!("tier {number}: {free} of free blocks would be reported to its device"));
            results.push(json!({ "tier": number, "free": tier.free }));
            continue;
        }
        match trim_one(OPERATION, &mount, number, minimum) {
            Ok(Some(trimmed)) => {
                words.push(format!(
                    "tier {number}: {} of {free} of free blocks are trimmed",
                    size::print(trimmed)
                ));
                results.push(json!({ "tier": number, "trimmed": trimmed }));
            }
            Ok(None) => {
                words.push(format!("tier {number}: its device does not take reports of free blocks"));
                results.push(json!({ "tier": number, "trimmed": null }));
            }
            // A refusal of the mount is the same for each tier.
            Err(failure) if failures.iter().any(|other| other.message() == failure.message()) => {}
            Err(failure) => failures.push(failure),
        }
    }
    if tiers.is_empty() {
        words.push(format!("{}: it has no tiers that are there", path.display()));
    }
    let last = failures.pop();
    if last.is_none() || !results.is_empty() {
        done(how, &words.join("\n"), json!({ "tiers": results }))?;
    }
    for failure in &failures {
        failure.report();
    }
    last.map_or(Ok(()), Err)
}

/// Trims one tier. Returns the bytes trimmed, or `None` if the device has no use for trims.
fn trim_one(operation: &str, mount: &Path, tier: u8, minimum: u64) -> Result<Option<u64>, Failure> {
    let mut trimmed = 0;
    let (mut next, mut is_within) = (Some(0), false);
    while let Some(from) = next {
        let order = Order::TrimTier(TierToTrim { tier, from, is_within, least: minimum });
        let part: Trimmed = mounted::order(operation, mount, order)?;
        if part.useless {
            return Ok(None);
        }
        trimmed += part.trimmed;
        (next, is_within) = (part.next, part.within);
    }
    Ok(Some(trimmed))
}

fn list(tiers: &[TierInfo]) -> Result<(), Failure> {
    let cells = |tier: &TierInfo| {
        vec![
            tier.number.to_string(),
            size::print(tier.size),
            size::print(tier.used()),
            size::print(tier.free),
            tier.rank.to_string(),
            tier.device.clone().unwrap_or_else(|| "-".to_owned()),
            state(tier),
        ]
    };
    let head = ["tier", "size", "used", "free", "rank", "device ", "state "];
    output::text_out(&output::table(&head, &tiers.iter().map(cells).collect::<Vec<_>>()))
}

/// The tiers of the mount that serves a path or a device.
pub(crate) fn tiers_of(operation: &str, path: &Path) -> Result<Vec<TierInfo>, Failure> {
    let mount = mounted::mountpoint(operation, path)?;
    let TiersInfo { tiers } = mounted::ask(operation, &mount, QUESTION)?;
    Ok(tiers)
}

/// The tier that the arguments name, and its mountpoint.
fn find(operation: &str, which: &WhichArgs) -> Result<(PathBuf, TierInfo), Failure> {
    let tiers = tiers_of(operation, &which.path)?;
    let named = Path::new(&which.tier).canonicalize().ok();
    let is_meant = |tier: &&TierInfo| {
        tier.number.to_string() == which.tier
            || tier.uuid.eq_ignore_ascii_case(&which.tier)
            || named.is_some() && canonical(tier) == named
    };
    let found = tiers.iter().find(is_meant).cloned().ok_or_else(|| {
        Failure::new(operation, &which.tier, "it is no tier of this file system")
            .advice("nacre tier list shows them")
    })?;
    Ok((mounted::mountpoint(operation, &which.path)?, found))
}

fn to_add(new: &NewArgs, device: &Path) -> TierToAdd {
    let NewArgs { size, rank, emulate, force } = new.clone();
    TierToAdd { path: device.to_owned(), size, rank, force, emulate }
}

fn add(operation: &str, mount: &Path, new: &NewArgs, device: &Path) -> Result<u8, Failure> {
    let added: TierAdded = mounted::order(operation, mount, Order::AddTier(to_add(new, device)))?;
    if !added.found {
        is_not_found(operation, device);
    }
    Ok(added.tier)
}

/// Warns of a tier that the next mount does not find by itself. The tier is in use, even if standard error is closed.
pub(crate) fn is_not_found(operation: &str, device: &Path) {
    let device = device.display();
    let _ = writeln!(
        std::io::stderr(),
        "nacre: {operation}: {device}: the next mount will not find it: the superblock has no room for its path (255 bytes \
         for one, about 1000 for all), and it is neither a block device nor in the directory of the PM; mount with \
         -o tier={device}"
    );
}

/// Drains a tier. Returns the bytes moved, or `None` for a dry run.
fn drain(operation: &str, how: &HowArgs, mount: &Path, tier: &TierInfo) -> Result<Option<u64>, Failure> {
    if how.dry_run {
        return mounted::order(operation, mount, Order::CheckDrain(tier.number)).map(|()| None);
    }
    drain_all(operation, how, mount, tier).map(Some).map_err(|failure| {
        let is_it = |now: &TierInfo| now.number == tier.number && now.draining;
        let now = tiers_of(operation, mount).ok().and_then(|tiers| tiers.into_iter().find(is_it));
        // If the mount is gone, or nothing was begun, nothing is to be cancelled.
        match now {
            Some(now) => failure.advice(&still_drained(&now)),
            None => failure,
        }
    })
}

/// The progress of a failed drain, and how to cancel it.
fn still_drained(tier: &TierInfo) -> String {
    let (number, left) = (tier.number, size::print(tier.used()));
    format!(
        "tier {number} has {left} left, and new blocks do not go there until it is drained, or used again by drain \
         --cancel"
    )
}

fn drain_all(operation: &str, how: &HowArgs, mount: &Path, tier: &TierInfo) -> Result<u64, Failure> {
    let mut progress = Progress::new(how);
    let mut moved = 0;
    for _ in 0..PASSES {
        let left = loop {
            let part: Drained = mounted::order(operation, mount, Order::DrainTier(tier.number))?;
            progress.show(tier.number, moved + part.moved, part.left);
            if part.done {
                moved += part.moved;
                break part.left;
            }
        };
        if left == 0 {
            return Ok(moved);
        }
    }
    let tiers = tiers_of(operation, mount)?;
    // An unmount ends the programs' use of blocks, too.
    let has_leaked = tiers.iter().any(|now| now.number == tier.number && now.leaked > 0);
    let why = if has_leaked { LEAKED } else { USED };
    Err(Failure::new(operation, format!("tier {}", tier.number), "some blocks cannot leave it").advice(why))
}

fn remove(operation: &str, how: &HowArgs, mount: &Path, tier: &TierInfo) -> Result<(), Failure> {
    let number = tier.number;
    if how.dry_run {
        drain(operation, how, mount, tier)?;
        let text = format!(
            "tier {number}: {} would be moved to other places, and its device released",
            size::print(tier.used())
        );
        return done(how, &text, json!({ "tier": number }));
    }
    let moved = drain(operation, how, mount, tier)?.unwrap_or(0);
    mounted::order::<()>(operation, mount, Order::RemoveTier(number))?;
    let text =
        format!("tier {number}: {} moved to other places, and its device is released", size::print(moved));
    done(how, &text, json!({ "tier": number, "moved": moved }))
}

fn replace(new: &NewArgs, which: &WhichArgs, device: &Path) -> Result<(), Failure> {
    let (mount, tier) = find("tier replace", which)?;
    let device = absolute("tier replace", device)?;
    is_elsewhere("tier replace", &mount, &device)?;
    let tiers = tiers_of("tier replace", &mount)?;
    let named = device.canonicalize().ok();
    let is_there = |tier: &TierInfo| named.is_some() && canonical(tier) == named;
    if is_there(&tier) {
        return Err(Failure::new("tier replace", device.display(), "it is the device of that tier already"));
    }
    if let Some(why) = tier.missing.as_ref().filter(|_| tier.used() > 0) {
        // A new tier would be of no use.
        return Err(Failure::new("tier replace", format!("tier {}", tier.number), why).advice(
            "its blocks cannot be moved: bring its device back with nacre tier online, or remove the files; nothing \
             was changed",
        ));
    }
    // After an interruption the new tier exists already.
    let there = tiers.iter().find(|tier| is_there(tier)).map(|tier| tier.number);
    if which.how.dry_run {
        if there.is_none() {
            mounted::order::<()>("tier replace", &mount, Order::CheckTier(to_add(new, &device)))?;
        }
        let text = format!(
            "tier {}: {} would be moved to {} and other places, and its device released",
            tier.number,
            size::print(tier.used()),
            device.display()
        );
        return done(&which.how, &text, json!({ "tier": tier.number }));
    }
    let number = match there {
        Some(number) => number,
        None => {
            // The new tier gets the rank of the old one, unless a rank is given.
            let new = NewArgs { rank: new.rank.or(Some(tier.rank)), ..new.clone() };
            add("tier replace", &mount, &new, &device)?
        }
    };
    remove("tier replace", &which.how, &mount, &tier)
        .map_err(|failure| failure.advice(&format!("{} is tier {number} by now", device.display())))
}

/// Gives an order about one tier, and prints the tier's new state.
fn change(
    operation: &str,
    how: &HowArgs,
    mount: &Path,
    tier: &TierInfo,
    order: Order,
    state: &str,
) -> Result<(), Failure> {
    let number = tier.number;
    if how.dry_run {
        return done(how, &format!("tier {number}: would be {state}"), json!({ "tier": number }));
    }
    mounted::order::<()>(operation, mount, order)?;
    done(how, &format!("tier {number}: is {state}"), json!({ "tier": number }))
}

fn done(how: &HowArgs, text: &str, mut result: Value) -> Result<(), Failure> {
    if how.json {
        result["dry_run"] = json!(how.dry_run);
        return output::json(result);
    }
    output::text_out(&format!("{text}\n"))
}

/// The absolute path of a device, because the server works in another directory.
fn absolute(operation: &str, path: &Path) -> Result<PathBuf, Failure> {
    mounted::reach(operation, path)?;
    std::path::absolute(path).map_err(|error| Failure::new(operation, path.display(), error))
}

/// Refuses a device that lies on the file system itself, because such a tier would wait for itself.
fn is_elsewhere(operation: &str, mount: &Path, device: &Path) -> Result<(), Failure> {
    // A loop device counts as its file.
    let mut places = nacre::made_of(device);
    places.extend(device.parent().filter(|_| places.is_empty()).map(Path::to_owned));
    let is_here = |place: &PathBuf| {
        mounted::serving(operation, place).ok().flatten().is_some_and(|serving| serving.mountpoint == mount)
    };
    if places.iter().any(is_here) {
        return Err(Failure::new(
            operation,
            device.display(),
            "it is on the file system that it is to be a tier of",
        ));
    }
    Ok(())
}

/// Progress on a terminal.
struct Progress {
    is_shown: bool,
}

impl Progress {
    fn new(how: &HowArgs) -> Progress {
        Progress { is_shown: !how.json && std::io::stderr().is_terminal() }
    }

    fn show(&mut self, tier: u8, moved: u64, left: u64) {
        if self.is_shown {
            let (moved, left) = (size::print(moved), size::print(left));
            // A progress line that cannot be written is no loss.
            let _ = write!(std::io::stderr(), "\rtier {tier}: {moved} moved, {left} left    ");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r{:60}\r", "");
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre::Preset;

    use super::{NO_TIERS, TierInfo, state};

    /// One of them was forgotten.
    #[test]
    fn the_advice_names_all_presets_with_tiers() {
        for preset in Preset::ALL.into_iter().filter(|preset| preset.layout().capabilities().max_tiers > 0) {
            assert!(NO_TIERS.split([' ', ',']).any(|word| word == preset.as_str()), "{preset}");
        }
    }

    #[test]
    fn people_see_what_a_tier_is_up_to() {
        let mut tier = TierInfo {
            number: 1,
            uuid: "u".into(),
            size: 8192,
            free: 4096,
            leaked: 0,
            rank: 2,
            draining: false,
            device: Some("/dev/sdb".into()),
            missing: None,
            errors: 0,
            failing: None,
            io: None,
            traffic: nacre_control::TrafficInfo::default(),
        };
        assert_eq!((state(&tier).as_str(), tier.used()), ("in use", 4096));
        (tier.draining, tier.errors) = (true, 3);
        assert_eq!(state(&tier), "draining, takes no new blocks, 3 errors");
        tier.failing = Some("it takes nothing".into());
        assert_eq!(state(&tier), "failing: it takes nothing, 3 errors");
        tier.leaked = 8192;
        assert_eq!(state(&tier), "failing: it takes nothing, 8 KiB leaked until the next mount, 3 errors");
        tier.leaked = 0;
        tier.missing = Some("it was taken offline".into());
        assert_eq!(state(&tier), "missing: it was taken offline, 3 errors");
    }
}
