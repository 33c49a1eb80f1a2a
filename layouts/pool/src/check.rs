//! Checks a file system that is not mounted: both copies of everything, every structure that is reachable, every entry
//! and block against its bit, names against inodes.
//!
//! A repair without loss writes what one copy, or the rest of the structures, proves. A repair of everything also
//! gives up what nothing proves: a name whose inode is lost, the blocks behind a lost part of a map, the files of a
//! volume whose row is lost. Inodes without a name get one in `/lost+found`.
//!
//! A file system without a clean unmount is first recovered: on the media when it is repaired, else in DRAM over them.
//! So an operation that a crash interrupted is no damage.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nacre_engine::{Kind, Result, size};
use nacre_layout_parts::badblocks;
use nacre_layout_parts::report::{CheckReport, Problem, RecoveryReport, Repair};
use nacre_media::{Overlay, Pm};

use crate::bits;
use crate::copies::{Copies, Fix};
use crate::format::{RawVolume, purpose};
use crate::fs::Shared;
use crate::recover::{Recovered, recover};
use crate::repair::{self, Fixes};
use crate::rescue::Rescue;
use crate::superblock::Superblock;
use crate::walk::Walk;
use crate::{volumes, zones};

/// Passes that repair: the later ones repair problems that the earlier ones have uncovered.
const MOST_ROUNDS: usize = 10;
const SPOILT: &str = "a repair could not be finished; restore the device from a copy";
/// The repair of errors that were noted.
const FORGET: &str = "forget them";

/// Checks the file system on `pm`, which must not be mounted, or the zone of one of its volumes, and repairs what
/// `repair` allows.
///
/// An error means that nothing could be checked: there is no file system, or nothing that leads into it.
pub(crate) fn check<P: Pm>(pm: &P, repair: Repair, volume: Option<&str>) -> Result<CheckReport> {
    if repair == Repair::None {
        return would_do(pm, volume);
    }
    crate::superblock::read(pm)?.superblock.check_writable()?;
    if repair == Repair::Safe {
        let would = would_do(pm, volume)?;
        if would.loses() {
            return Ok(would);
        }
    }
    run(pm, repair, volume)
}

/// The problems that are found, and the repairs that would be done: they are done on an overlay, where they leave no
/// trace.
fn would_do<P: Pm>(pm: &P, volume: Option<&str>) -> Result<CheckReport> {
    let (found, _) = examine(&Overlay::new(pm), volume, true)?;
    if found.problems.is_empty() {
        return Ok(found);
    }
    let Ok(done) = run(&Overlay::new(pm), Repair::All, volume) else { return Ok(found) };
    let untold = |problem: Problem| Problem { repaired: false, ..problem };
    Ok(CheckReport { problems: done.problems.into_iter().map(untold).collect(), ..found })
}

/// Repairs in passes, as long as they find something.
fn run<P: Pm>(pm: &P, repair: Repair, volume: Option<&str>) -> Result<CheckReport> {
    let mut problems: Vec<Problem> = Vec::new();
    let mut round = 0;
    loop {
        let examined = examine(pm, volume, round == 0);
        let (mut report, fixes) = match round {
            0 => examined?,
            // A repair went by a copy that is whole and wrong.
            _ => examined.map_err(|error| error.advice(SPOILT))?,
        };
        let zones = volumes::zones_to_check(pm, &crate::superblock::read(pm)?.superblock, volume)?;
        let mut goes_on = false;
        let may_repair = round < MOST_ROUNDS && (repair == Repair::All || !report.loses());
        if may_repair && !report.problems.is_empty() {
            let left = repair::write(pm, &fixes, &zones)?;
            for problem in report.problems.iter_mut().filter(|problem| !problem.repair.is_empty()) {
                problem.repaired = !left.contains(&problem.repair);
                goes_on |= problem.repaired && problem.repair != FORGET;
            }
        }
        if !goes_on {
            if report.is_sound() {
                repair::finish(pm, &zones)?;
            } else {
                // They stay noted, so that the next check does not pass the device over.
                let forgotten = problems.iter_mut().chain(&mut report.problems);
                forgotten
                    .filter(|problem| problem.repair == FORGET)
                    .for_each(|problem| problem.repaired = false);
            }
            problems.append(&mut report.problems);
            report.problems = problems;
            return Ok(report);
        }
        // The rest is found again, and may have a repair then.
        problems.extend(report.problems.into_iter().filter(|problem| problem.repaired));
        round += 1;
    }
}

/// The volumes of a pass, and what their walks have in common.
struct Pass<'p, P: Pm> {
    pm: &'p P,
    superblock: Superblock,
    zones: Vec<u32>,
    /// The whole device is checked, with the tables that all zones share.
    is_device: bool,
    volumes: Vec<Shared<&'p P>>,
    /// Rows whose volumes cannot be opened, and why.
    damaged: BTreeMap<u32, String>,
    /// The rows that groups of a zone may name.
    owners: BTreeMap<u32, BTreeSet<u64>>,
}

/// One pass over everything, after recovery; gives the corrections. Errors that mounts noted are told if
/// `tells_errors`.
fn examine<P: Pm>(pm: &P, volume: Option<&str>, tells_errors: bool) -> Result<(CheckReport, Fixes)> {
    let started = Instant::now();
    let found = crate::superblock::read(pm)?;
    let mut report = CheckReport::begin(&found);
    let mut fixes = Fixes::default();
    let superblock = found.superblock.clone();
    let zones = volumes::zones_to_check(pm, &superblock, volume)?;
    // The superblock is checked with the device, and so are zones without a row.
    let is_device = volume.is_none() || zones::count(pm, &superblock) == 1;
    if is_device {
        lost_zones(pm, &superblock, &mut report, &mut fixes)?;
    } else {
        report.problems.clear();
    }
    let mut recovered = Recovered::default();
    for &zone in &zones {
        let of_zone = recover(pm, &zones::geometry(pm, &superblock, zone, 0)?)?;
        recovered.forward += of_zone.forward;
        recovered.back += of_zone.back;
    }
    let bad = badblocks::read(pm, &superblock)?;
    if !bad.damaged.is_empty() && is_device {
        let what = format!("the list of bad blocks has {} words that do not validate", bad.damaged.len());
        report.add(what, repair::FORGET_BAD_WORDS);
        fixes.forgets_bad_words = true;
    }
    report.bad_blocks = bad.blocks.len() as u64;
    let pass = Pass::begin(pm, superblock, zones, is_device)?;
    report.summary = match volume {
        Some(_) => volumes::probe_volume(pm, volume)?,
        None => volumes::probe(pm)?,
    };
    report.walk = RecoveryReport {
        walked: true,
        torn: recovered.back,
        rolled_back: recovered.forward,
        ..RecoveryReport::default()
    };
    pass.lost_rows(&mut report, &mut fixes)?;
    pass.zones.iter().try_for_each(|&zone| pass.zone(zone, &mut report, &mut fixes))?;
    let is_whole = report.problems.iter().all(|problem| !problem.repair.is_empty() && !problem.loses);
    for fs in pass.volumes.iter().filter(|_| is_whole && tells_errors) {
        let row = *fs.row.lock();
        if row.errors != 0 {
            let errors = size::count(row.errors.into(), "error was", "errors were");
            report.add(format!("{}{errors} noted while it was mounted", pass.of(&row)), FORGET);
        }
    }
    report.walk.duration = started.elapsed();
    Ok((report, fixes))
}

/// Zones whose rows are lost. The superblock proves what these said.
fn lost_zones<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    report: &mut CheckReport,
    fixes: &mut Fixes,
) -> Result<()> {
    for (zone, row) in (0..).zip(zones::expected(superblock)?) {
        if !zones::read_row(pm, superblock, zone).is_ok_and(|row| row.is_some()) {
            let what = format!("both copies of the row of zone {zone}: its volumes cannot be mounted");
            report.add(what, "write it anew: the size of the device says what it was");
            fixes.zones.push((zone, row));
        }
    }
    Ok(())
}

impl<'p, P: Pm> Pass<'p, P> {
    /// Opens the volumes of zones that are recovered.
    fn begin(pm: &'p P, superblock: Superblock, zones: Vec<u32>, is_device: bool) -> Result<Pass<'p, P>> {
        let mut pass = Pass {
            pm,
            superblock,
            zones,
            is_device,
            volumes: Vec::new(),
            damaged: BTreeMap::new(),
            owners: BTreeMap::new(),
        };
        for geometry in volumes::all(pm, &pass.superblock, &pass.zones)? {
            pass.owners.entry(geometry.zone).or_default().insert(geometry.volume.into());
            match volumes::open_one(pm, &pass.superblock, geometry, true) {
                Ok(fs) => pass.volumes.push(fs),
                Err(error) if error.kind() == Kind::Corrupt => {
                    pass.damaged.insert(geometry.volume, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        for (index, error) in volumes::Rows::read(pm, &pass.superblock).damaged {
            pass.damaged.insert(index, error.to_string());
        }
        for &zone in &pass.zones {
            let damaged = pass.damaged.keys().map(|&index| u64::from(index));
            pass.owners.entry(zone).or_default().extend(damaged);
        }
        Ok(pass)
    }

    /// Volumes whose rows are lost. The groups that name them become free with their rows, which loses what they hold.
    /// A row that no group names had no volume.
    fn lost_rows(&self, report: &mut CheckReport, fixes: &mut Fixes) -> Result<()> {
        if self.damaged.is_empty() {
            return Ok(());
        }
        let mut groups: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
        let mut are_read = self.is_device && fixes.zones.is_empty();
        for &zone in &self.zones {
            let none = volumes::open_none(self.pm, &self.superblock, zone, true)?;
            let owners = none.owners();
            are_read &= none.geometry.groups().all(|group| none.read_map(group).is_ok());
            for &index in self.damaged.keys() {
                let count = owners.get(&index.into()).copied();
                groups.entry(index).or_default().extend(count.map(|count| (zone, count)));
            }
        }
        for (&index, what) in &self.damaged {
            if self.is_mended(index, report, fixes)? {
                continue;
            }
            let of_row = groups.remove(&index).unwrap_or_default();
            for &(zone, count) in &of_row {
                let count = size::count(count, "group", "groups");
                let what = format!("{what}: its volume has {count} of zone {zone}, and cannot be mounted");
                report.problems.push(Problem {
                    what,
                    repair: "give up the volume: its groups become free, and its files are lost",
                    loses: true,
                    repaired: false,
                });
                fixes.rows.push((zone, index));
            }
            if of_row.is_empty() && self.is_device {
                // A map that cannot be read may be that of a group of the volume.
                report.add(what.clone(), if are_read { "free the row: no group names it" } else { "" });
                fixes.rows.extend(self.zones.first().filter(|_| are_read).map(|&zone| (zone, index)));
            }
        }
        Ok(())
    }

    /// Whether the lines of both copies of a damaged row give a whole one.
    fn is_mended(&self, index: u32, report: &mut CheckReport, fixes: &mut Fixes) -> Result<bool> {
        let Some(&zone) = self.zones.first() else { return Ok(false) };
        let geometry = zones::geometry(self.pm, &self.superblock, zone, index)?;
        let found = Copies::volume(&geometry).compare(self.pm, &geometry);
        let Some((what, mends)) = found.problem.filter(|(_, mends)| !mends.is_empty() && !found.is_readable)
        else {
            return Ok(false);
        };
        report.add(what, "put it together from lines of both");
        fixes.mends.extend(mends.into_iter().map(|fix| (geometry, fix)));
        Ok(true)
    }

    /// Words that say of which volume a problem is, if there are several.
    fn of(&self, row: &RawVolume) -> String {
        if self.volumes.len() > 1 { format!("volume {}: ", row.name()) } else { String::new() }
    }

    /// Walks over the volumes of a zone.
    fn zone(&self, zone: u32, report: &mut CheckReport, fixes: &mut Fixes) -> Result<()> {
        let none;
        let mut volumes: Vec<_> = self.volumes.iter().filter(|fs| fs.geometry.zone == zone).collect();
        if volumes.is_empty() {
            none = volumes::open_none(self.pm, &self.superblock, zone, true)?;
            volumes.push(&none);
        }
        let superblock = &self.superblock;
        let is_counted = zones::geometry(self.pm, superblock, zone, 0)
            .and_then(|geometry| zones::row(self.pm, superblock, &geometry))
            .is_ok_and(|row| row.counted == 1);
        let mut walks = Vec::new();
        for (index, fs) in volumes.into_iter().enumerate() {
            let row = *fs.row.lock();
            let mut walk = Walk::new(fs, self.owners.get(&zone).filter(|_| index == 0));
            walk.everything(&row, is_counted && row.clean == 1);
            walks.push((row, walk));
        }
        self.lost_maps(&mut walks);
        for (row, mut walk) in walks {
            let of = self.of(&row);
            let named = |problem: Problem| Problem { what: format!("{of}{}", problem.what), ..problem };
            report.problems.extend(std::mem::take(&mut walk.problems).into_iter().map(named));
            let geometry = walk.fs.geometry;
            let placed = |fix: Fix| (geometry, fix);
            fixes.mends.extend(std::mem::take(&mut walk.mends).into_iter().map(placed));
            fixes.edits.extend(std::mem::take(&mut walk.edits).into_iter().map(placed));
            let rescue = Rescue { branches: walk.branches, nameless: walk.nameless };
            fixes.rescues.extend((!rescue.is_empty()).then_some((geometry, rescue)));
            report.free_blocks += walk.free;
            report.used_blocks += walk.in_use;
            report.walk.directories += walk.directories;
            report.walk.files += walk.inodes.len() as u64 - walk.directories;
        }
        Ok(())
    }

    /// Groups whose maps cannot be read. Blocks that a volume of the zone has there are in use, the rest is free. This
    /// is known when nothing else is damaged.
    fn lost_maps(&self, walks: &mut [(RawVolume, Walk<'_, &'p P>)]) {
        let states: Vec<_> = walks.iter().map(|(_, walk)| walk.is_whole()).collect();
        let Some((_, first)) = walks.first() else { return };
        let lost: Vec<u64> = first.unread().collect();
        // The next pass tells what is left then.
        if states.iter().any(Option::is_none) {
            return;
        }
        let is_whole = self.damaged.is_empty() && states.iter().all(|state| *state == Some(true));
        for group in lost {
            let geometry = walks[0].1.fs.geometry;
            let regions = bits::run(0, geometry.regions_in(group));
            let index = (group - geometry.first_group) as usize;
            let used = |walk: &Walk<'_, &'p P>| bits::without(&walk.used[index], &regions);
            let users: Vec<usize> = (0..walks.len()).filter(|&at| used(&walks[at].1) != [0; 8]).collect();
            let what = format!("both copies of the map of group {group} are damaged");
            if !is_whole || users.len() > 1 {
                walks[0].1.damage(what);
                continue;
            }
            let of = users.first().copied().unwrap_or(0);
            let walk = &mut walks[of].1;
            let taken = bits::either(&walk.used[index], &regions);
            let free = bits::without(&[u64::MAX; 8], &taken);
            let is_pool = walk.reached.keys().any(|&entry| geometry.group_of(entry) == group);
            let of_group = match (users.is_empty(), is_pool) {
                (true, _) => purpose::FREE,
                (false, true) => walk.fs.geometry.pool(),
                (false, false) => walk.fs.geometry.data(),
            };
            walk.problem(what, "write it anew: everything in it is known");
            walk.put_map(group, &free, of_group);
        }
    }
}
