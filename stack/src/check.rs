//! Checking a file system that is not open anywhere, and repairing what the format can prove.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nacre_control::VolumeInfo;
use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, size};
use nacre_layout_parts::lifecycle::Lifecycle;
pub use nacre_layout_parts::report::Repair;
use nacre_layout_parts::report::{self, MediaReport};
use nacre_media::block::RealDisk;
use nacre_media::{Emulation, PmOptions, RealPm};
use serde::Serialize;

use crate::info::volume_info;
use crate::layout::of_kind;
use crate::preset::LayoutKind;
use crate::probe::probe;
use crate::tier_check;
use crate::volumes::{self, Part};

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The object, and its problem, in words.
    pub what: String,
    /// The repair for it; none when nothing can be proved.
    pub repair: Option<&'static str>,
    /// The advice where no repair helps, if there is any.
    pub advice: Option<&'static str>,
    /// The repair gives up data that cannot be saved.
    pub loses: bool,
    /// It was repaired.
    pub repaired: bool,
}

/// The result of [`check`].
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// The content of the superblock.
    pub volume: VolumeInfo,
    /// The problems found. An operation that a crash interrupted is none: the next mount completes or erases it.
    pub problems: Vec<Problem>,
    /// Errors of the media, when these were looked for: path and range, where one is in a file. The data there is lost.
    pub unreadable: Vec<String>,
    /// Those in files whose blocks are out of use already: they were reported before.
    pub told_before: Vec<String>,
    /// Blocks that are never allocated.
    pub bad_blocks: u64,
    /// Directories with a name.
    pub directories: u64,
    /// Other inodes with a name.
    pub files: u64,
    /// Operations that a crash interrupted.
    pub interrupted: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Tiers of the file system that were not given, and so not checked.
    pub tiers_not_checked: Vec<UncheckedTier>,
    /// How long it took.
    pub duration: Duration,
}

/// A tier that a check did not look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UncheckedTier {
    /// Its number.
    pub number: u8,
    /// Where it was when the file system was mounted last, if that is known.
    pub last: Option<PathBuf>,
}

impl CheckReport {
    /// Takes over the result of a layout's check.
    fn of(layout: LayoutKind, found: &report::CheckReport) -> CheckReport {
        let problem = |problem: &report::Problem| Problem {
            what: problem.what.clone(),
            repair: (!problem.repair.is_empty()).then_some(problem.repair),
            advice: None,
            loses: problem.loses,
            repaired: problem.repaired,
        };
        CheckReport {
            volume: volume_info(layout, &found.summary),
            problems: found.problems.iter().map(problem).collect(),
            unreadable: Vec::new(),
            told_before: Vec::new(),
            bad_blocks: found.bad_blocks,
            directories: found.walk.directories,
            files: found.walk.files,
            interrupted: found.walk.torn + found.walk.rolled_back + u64::from(found.interrupted_superblock),
            used: found.used_blocks * BLOCK_SIZE,
            free: found.free_blocks * BLOCK_SIZE,
            tiers_not_checked: Vec::new(),
            duration: found.walk.duration,
        }
    }

    /// Nothing is wrong, or everything that was is repaired.
    pub fn is_sound(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    /// Something was repaired.
    pub fn is_repaired(&self) -> bool {
        self.problems.iter().any(|problem| problem.repaired)
    }

    /// Takes over the result of a search for media errors, and whether they were recorded.
    fn add_media(&mut self, media: MediaReport, recorded: bool) {
        self.unreadable = media.errors;
        self.told_before = media.told;
        if media.new_blocks > 0 {
            self.problems.push(Problem {
                what: format!(
                    "{} with media errors may be allocated",
                    size::count(media.new_blocks, "block", "blocks")
                ),
                repair: Some("put them into the list of bad blocks"),
                advice: None,
                loses: false,
                repaired: recorded,
            });
            self.bad_blocks += if recorded { media.new_blocks } else { 0 };
        }
    }
}

/// The scope of a check.
#[derive(Debug, Clone, Default)]
pub struct CheckOptions {
    /// Also read every block, for errors of the media.
    pub media: bool,
    /// Devices of its tiers. Each is to be one, as it was when the file system was used last.
    pub tiers: Vec<PathBuf>,
    /// Slow the device down to the emulated latency and bandwidth.
    pub emulation: Option<Emulation>,
}

/// Checks every structure of the file system on a device, or for `DEVICE#NAME` of the zone of a volume, while volumes of
/// other zones may be open. Only repairs that `repair` allows are written: provable ones,
/// and with [`Repair::All`] also those that have to give up something.
///
/// Errors:
///
/// - [`InvalidInput`](nacre_engine::Kind::InvalidInput): a device that was given is no tier of the file system.
/// - [`Busy`](nacre_engine::Kind::Busy): the device, or a tier that was given, is open elsewhere.
/// - [`Corrupt`](nacre_engine::Kind::Corrupt): there is no file system, or nothing that leads into it.
///
/// ```
/// # fn main() -> nacre::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let path = dir.path().join("pm");
/// nacre::mkfs(&path, &nacre::MkfsOptions::with_size(64 << 20))?;
/// let report = nacre::check(&path, nacre::Repair::None, &nacre::CheckOptions::default())?;
/// assert!(report.is_sound() && !report.is_repaired());
/// assert_eq!((report.directories, report.files), (1, 0));
/// # Ok(())
/// # }
/// ```
pub fn check(path: impl AsRef<Path>, repair: Repair, checked: &CheckOptions) -> Result<CheckReport> {
    let name = path.as_ref().display().to_string();
    let read_only = repair == Repair::None;
    let tiers = tier_check::open(&checked.tiers, repair)?;
    let run = || {
        let (device, volume) = volumes::place(path.as_ref(), None)?;
        let part = match &volume {
            Some(volume) => volumes::part(&device, Part::Volume(Some(volume)))?,
            None if read_only => volumes::part(&device, Part::Zones)?,
            // A check that writes has the device alone.
            None => None,
        };
        let options =
            PmOptions { read_only, part, emulation: checked.emulation.clone(), ..PmOptions::default() };
        let pm = RealPm::open(&device, &options)?;
        let layout = probe(&pm)?.0;
        if let Some(volume) = volume {
            volumes::require(layout)?;
            return check_volume(&pm, layout, repair, checked, &volume);
        }
        if !tiers.is_empty() && layout.capabilities().max_tiers == 0 {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("tiers of {name}, on the layout {layout}"))
                .advice("leave them out: this layout has none"));
        }
        of_kind!(layout, Layout => check_layout::<Layout>(&pm, layout, repair, checked, &tiers))
    };
    run().map_err(|error: Error| error.operation("check").object(&*name))
}

fn check_layout<L: Lifecycle<Pm = RealPm>>(
    pm: &RealPm,
    layout: LayoutKind,
    repair: Repair,
    checked: &CheckOptions,
    tiers: &[RealDisk],
) -> Result<CheckReport> {
    let mut tiers_not_checked = Vec::new();
    let found = if layout.capabilities().max_tiers > 0 {
        tiers_not_checked = tier_check::require_own::<L>(pm, tiers)?;
        let readable = tier_check::Readable::of::<L>(pm, tiers)?;
        L::check(pm, repair, Some(&readable))?
    } else {
        L::check(pm, repair, None)?
    };
    let mut report = CheckReport { tiers_not_checked, ..CheckReport::of(layout, &found) };
    for device in tiers {
        report.problems.extend(tier_check::check(device, found.summary.uuid, &found.tiers, repair));
    }
    if checked.media {
        let record = may_record(repair, &report.problems);
        report.add_media(L::check_media(pm, record)?, record);
    }
    Ok(report)
}

/// Checks the zone of a volume.
fn check_volume(
    pm: &RealPm,
    layout: LayoutKind,
    repair: Repair,
    checked: &CheckOptions,
    volume: &str,
) -> Result<CheckReport> {
    let mut report = CheckReport::of(layout, &nacre_layout_pool::check_volume(pm, repair, volume)?);
    if checked.media {
        let record = may_record(repair, &report.problems);
        report.add_media(nacre_layout_pool::check_media_of_volume(pm, record, volume)?, record);
    }
    Ok(report)
}

/// Whether bad blocks are noted. They are not while a repair with possible loss is left to do: it finds everything as
/// it was.
fn may_record(repair: Repair, problems: &[Problem]) -> bool {
    let is_left = |problem: &Problem| !problem.repaired && problem.repair.is_some();
    repair == Repair::All || repair == Repair::Safe && !problems.iter().any(is_left)
}
