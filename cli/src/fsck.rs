//! `nacre fsck`, and `fsck.nacre` as fsck(8) calls it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use nacre::{CheckOptions, CheckReport, Emulation, Kind, Repair};
use nacre_engine::size;
use serde_json::json;

use crate::failure::Failure;
use crate::{mounted, output};

/// Exit bits of fsck(8).
const CORRECTED: u8 = 1;
const UNCORRECTED: u8 = 4;
const OPERATIONAL_ERROR: u8 = 8;
/// The exit code of fsck(8) for a wrong command line.
pub(crate) const WRONG_CALL: u8 = 16;

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre fsck -n /dev/dax0.0
      Checks, and changes nothing.
  nacre fsck -p -f /dev/dax0.0
      Checks, and repairs without data loss.
  nacre fsck -n --tier /dev/sdb /dev/dax0.0
      Checks a tier, too.

Exit status:
  0   the file system is sound
  1   errors were repaired
  4   errors are left
  5   errors were repaired, and others are left: the codes add up
  8   the check failed
  16  a wrong command line

Files:
  /lost+found
      The directory for files that have lost their name.

See also:
  fsck.nacre(8), nacre-scrub(8), nacre-info(8), fsck(8)
";

/// Arguments of `nacre fsck`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct FsckArgs {
    /// Change nothing; also the default
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    no: bool,
    /// Repair without data loss, or change nothing; skip a device after a clean unmount (for boot)
    #[arg(short = 'p', short_alias = 'a')]
    preen: bool,
    /// Repair everything: keep all data that the format proves, and give up the rest. Files without a name go to
    /// /lost+found
    #[arg(short = 'y', conflicts_with = "preen")]
    yes: bool,
    /// With -p: check also after a clean unmount
    #[arg(short, long)]
    force: bool,
    /// Also read every block, and name the data that media errors have destroyed. With -p or -y, blocks with errors are
    /// never allocated again
    #[arg(short = 'c', long)]
    media: bool,
    /// Also check this device of a tier (repeatable): that it is the one that was used last, and the offloaded extent
    /// maps there. With -p or -y, a damaged copy of its superblock is written from the other one
    #[arg(long = "tier", value_name = "PATH")]
    tiers: Vec<PathBuf>,
    /// Emulate this kind of PM, as dram,poison=OFFSET+LENGTH
    #[arg(long, value_name = "KIND")]
    emulate: Option<Emulation>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Skip a device that is mounted
    #[arg(short = 'M')]
    unmounted_only: bool,
    /// Taken for fsck(8), and without effect: the report has everything
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    /// Taken for fsck(8), and without effect: there is no title
    #[arg(short = 'T', hide = true)]
    no_title: bool,
    /// Taken for fsck(8), and without effect: a check takes seconds
    #[arg(short = 'C', value_name = "FD", allow_negative_numbers = true, hide = true)]
    progress: Option<i32>,
    /// A device that is not mounted, or DEVICE#NAME for the zone of a volume, of which none is mounted
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// Checks a file system. The exit code has the bits of fsck(8).
pub(crate) fn run(args: &FsckArgs) -> ExitCode {
    match check(args) {
        Ok(code) => ExitCode::from(code),
        Err((failure, code)) => {
            failure.report();
            ExitCode::from(code)
        }
    }
}

fn check(args: &FsckArgs) -> Result<u8, (Failure, u8)> {
    let operational = |failure: Failure| (failure, OPERATIONAL_ERROR);
    let printed = |result: Result<(), Failure>| result.map_err(operational);
    for path in [&args.device].into_iter().chain(&args.tiers) {
        mounted::reach("fsck", path).map_err(operational)?;
    }
    if args.unmounted_only
        && let Some(mount) = mounted::of_device(&args.device).map_err(operational)?
    {
        printed(pass_over(args, &format!("mounted on {}, not checked", mount.mountpoint.display())))?;
        return Ok(0);
    }
    let is_more_than_usual = args.force || args.media || !args.tiers.is_empty();
    if args.preen && !is_more_than_usual && may_be_passed_over(&args.device) {
        printed(pass_over(args, "clean unmount, not checked"))?;
        return Ok(0);
    }
    let checked =
        CheckOptions { media: args.media, tiers: args.tiers.clone(), emulation: args.emulate.clone() };
    let repair = match (args.preen, args.yes) {
        (_, true) => Repair::All,
        (true, _) => Repair::Safe,
        _ => Repair::None,
    };
    let report = nacre::check(&args.device, repair, &checked).map_err(|error| {
        let code = if error.kind() == Kind::Corrupt { UNCORRECTED } else { OPERATIONAL_ERROR };
        (Failure::on("fsck", &args.device, &error), code)
    })?;
    if args.json {
        let report = json!(report);
        printed(output::json(json!({ "device": args.device.display().to_string(), "report": report })))?;
    } else {
        printed(output::text_out(&describe(&args.device, &report, repair != Repair::None)))?;
    }
    let mut code = 0;
    if report.is_repaired() {
        code |= CORRECTED;
    }
    if !report.is_sound() {
        code |= UNCORRECTED;
    }
    Ok(code)
}

/// Reports a device that is not checked, and why.
fn pass_over(args: &FsckArgs, why: &str) -> Result<(), Failure> {
    let device = args.device.display();
    if args.json {
        return output::json(json!({ "device": device.to_string(), "passed_over": true }));
    }
    output::text_out(&format!("{device}: {why}\n"))
}

/// True after a clean unmount without an error, if both superblocks can be read.
fn may_be_passed_over(device: &Path) -> bool {
    nacre::info(device)
        .is_ok_and(|info| info.volume.clean && info.volume.errors == 0 && info.volume.superblock_copies == 2)
}

fn describe(device: &Path, report: &CheckReport, repair: bool) -> String {
    let mut text = String::new();
    // If any repair loses data, -p begins none.
    let loses = report.problems.iter().any(|problem| problem.loses);
    for problem in &report.problems {
        let outcome = match (problem.repaired, problem.repair, repair) {
            (true, Some(repair), _) => format!("repaired: {repair}"),
            (_, Some(repair), begun) if loses || begun => format!("-y would: {repair}"),
            (_, Some(repair), _) => format!("-p would: {repair}"),
            (_, None, _) => problem
                .advice
                .unwrap_or(
                    "nothing proves its content; mount it read-only and save the files that can be read",
                )
                .to_owned(),
        };
        text += &format!("{}: {} ({outcome})\n", device.display(), problem.what);
    }
    for error in &report.unreadable {
        text += &format!("{}: {error} (its data is lost)\n", device.display());
    }
    for error in &report.told_before {
        text += &format!("{}: {error} (reported before; its block is retired)\n", device.display());
    }
    if report.interrupted > 0 {
        let fate = if repair { "erased" } else { "the next mount erases that" };
        text += &format!(
            "{}: {} interrupted by a crash ({fate})\n",
            device.display(),
            output::count(report.interrupted, "operation was", "operations were")
        );
    }
    for tier in &report.tiers_not_checked {
        let last = tier.last.as_deref().unwrap_or(Path::new("PATH")).display();
        text += &format!(
            "{}: tier {} was not checked, nor the blocks of files there; --tier {last} checks it, too\n",
            device.display(),
            tier.number
        );
    }
    let verdict = match (report.is_sound(), report.is_repaired()) {
        (true, false) => "sound",
        (true, true) => "repaired",
        (false, _) => "DAMAGED",
    };
    text += &format!(
        "{}: {verdict}; {}; checked in {:.2} s\n",
        device.display(),
        counts(report),
        report.duration.as_secs_f64(),
    );
    text
}

/// The files and blocks that were counted, in words.
fn counts(report: &CheckReport) -> String {
    // Every file system has blocks. The damage ended this check before it counted them.
    if report.used == 0 && report.free == 0 {
        return "the check ended before it could count files and blocks".to_owned();
    }
    format!(
        "{}, {}, {} used, {} free",
        output::count(report.directories, "directory", "directories"),
        output::count(report.files, "file", "files"),
        size::print(report.used),
        size::print(report.free)
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nacre::{CheckReport, Problem};

    use super::describe;

    fn problem(what: &str, loses: bool) -> Problem {
        let (what, repair) = (what.to_owned(), Some("mend it"));
        Problem { what, repair, advice: None, loses, repaired: false }
    }

    /// The report of a check that found these problems.
    fn report(problems: Vec<Problem>, used: u64) -> CheckReport {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pm");
        nacre::mkfs(&path, &nacre::MkfsOptions::with_size(16 << 20)).unwrap();
        let sound = nacre::check(&path, nacre::Repair::None, &nacre::CheckOptions::default()).unwrap();
        CheckReport { problems, used, free: used, ..sound }
    }

    /// `-p` was said to make repairs beside one that loses data, for which it makes none.
    #[test]
    fn a_finding_says_which_option_repairs_it() {
        let said = |report: &CheckReport, repair| describe(Path::new("x"), report, repair);
        let alone = report(vec![problem("a", false)], 4096);
        assert!(said(&alone, false).starts_with("x: a (-p would: mend it)\n"), "{}", said(&alone, false));
        let beside = report(vec![problem("a", false), problem("b", true)], 4096);
        for repair in [false, true] {
            let text = said(&beside, repair);
            assert!(
                text.starts_with("x: a (-y would: mend it)\nx: b (-y would: mend it)\nx: DAMAGED"),
                "{text}"
            );
        }
    }

    /// Zeros stood there, as if the file system were empty.
    #[test]
    fn a_check_that_ended_early_has_no_counts() {
        let counted = describe(Path::new("x"), &report(Vec::new(), 4096), false);
        assert!(
            counted.contains("sound; 1 directory, 0 files, 4 KiB used, 4 KiB free; checked in"),
            "{counted}"
        );
        let early = describe(Path::new("x"), &report(vec![problem("a", true)], 0), false);
        assert!(early.contains("DAMAGED; the check ended before it could count"), "{early}");
        assert!(!early.contains("0 directories"), "{early}");
    }
}
