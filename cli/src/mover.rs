//! `nacre mover`: the mover, which moves blocks between PM and tiers by itself.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use nacre::MoverLimit;
use nacre_control::{DoingInfo, MoverInfo, Order, Question, QueueInfo, QueuedInfo};
use nacre_engine::size;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::names::Names;
use crate::{mounted, output};

/// The attribute with the state of a mount's mover.
const QUESTION: &str = Question::Mover.attribute();
/// The phase in which the mover waits for its hours.
const OUTSIDE_HOURS: &str = "outside_hours";
/// The phase in which nothing needs to move, and the reason of blocks that would.
const BELOW_THRESHOLD: &str = "below_threshold";
const SPACE: &str = "space";
/// The reason of blocks that stay where they are.
const COMPACTED: &str = "compacted";
/// The period of polls during a wait.
const PERIOD: Duration = Duration::from_millis(100);

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre mover status /mnt
      Shows the activity of the mover, and the event that it waits for.

See also:
  nacre-tier(8), nacre-top(8), nacre-mount(8)
";

/// Arguments of `nacre mover`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct MoverArgs {
    #[command(subcommand)]
    command: MoverCommand,
}

/// Examples and exit codes, for the help and the manual page.
const STATUS_MANUAL: &str = "\
Examples:
  nacre mover status --json /mnt
      Prints the counters for a script.
";
/// Examples and exit codes, for the help and the manual page.
const PAUSE_MANUAL: &str = "\
Examples:
  nacre mover pause /mnt
      Keeps disks idle while a program is measured.
";
/// Examples and exit codes, for the help and the manual page.
const RESUME_MANUAL: &str = "\
Examples:
  nacre mover resume /mnt
      Moves blocks as before the pause.
";
/// Examples and exit codes, for the help and the manual page.
const LIMIT_MANUAL: &str = "\
Examples:
  nacre mover limit /mnt 100M
      Moves at most 100 MiB in a second. The rate none ends the limit.
";
/// Examples and exit codes, for the help and the manual page.
const WAIT_MANUAL: &str = "\
Examples:
  nacre mover wait --timeout 60 /mnt
      Waits for a minute at most. The exit code is 1 if there is still something to move.
";

#[derive(Debug, Subcommand)]
enum MoverCommand {
    /// Show the state of the mover, its rules and its counters
    #[command(after_long_help = STATUS_MANUAL)]
    Status {
        #[command(flatten)]
        how: HowArgs,
    },
    /// Move blocks only when a write finds no space
    ///
    /// This ends with `nacre mover resume`, and when the file system is unmounted.
    #[command(after_long_help = PAUSE_MANUAL)]
    Pause {
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// End a pause
    #[command(after_long_help = RESUME_MANUAL)]
    Resume {
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Limit the bytes that move in a second, until the file system is unmounted
    ///
    /// A write that finds no space does not wait for the limit. For fstab there are the mount options mover_limit=RATE
    /// and mover_hours=22:00-06:00.
    #[command(after_long_help = LIMIT_MANUAL)]
    Limit {
        #[command(flatten)]
        change: ChangeArgs,
        /// As 100M, or none
        #[arg(value_name = "RATE", value_parser = rate)]
        rate: Rate,
    },
    /// Wait until there is nothing to move
    #[command(after_long_help = WAIT_MANUAL)]
    Wait {
        /// The longest time to wait
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u64>,
        #[command(flatten)]
        how: HowArgs,
    },
}

#[derive(Debug, Args)]
struct HowArgs {
    /// Print the result as JSON, with exact bytes
    #[arg(long)]
    json: bool,
    /// A file or directory on the mounted file system, or its device
    #[arg(value_name = "DIR|DEVICE")]
    path: PathBuf,
}

/// Arguments of commands that change the mover.
#[derive(Debug, Args)]
struct ChangeArgs {
    /// Print the changes, and make none
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    how: HowArgs,
}

/// Bytes per second, if there is a limit.
#[derive(Debug, Clone, Copy)]
struct Rate(Option<u64>);

fn rate(text: &str) -> Result<Rate, String> {
    let rate = match text {
        "none" => None,
        _ => Some(size::parse(text).map_err(|error| format!("{error}, or none"))?),
    };
    MoverLimit::of(rate).map(|_| Rate(rate)).map_err(|error| error.to_string())
}

/// Queries the mover or gives it an order, then shows its state.
pub(crate) fn run(args: MoverArgs) -> Result<(), Failure> {
    match args.command {
        MoverCommand::Status { how } => {
            let mount = mounted::mountpoint("mover status", &how.path)?;
            let mut status = status("mover status", &mount)?;
            name_files(&mut status, &mount);
            if how.json { output::json(json!(status)) } else { output::text_out(&describe(&status)) }
        }
        MoverCommand::Pause { change } => tell("mover pause", &change, Order::PauseMover(true)),
        MoverCommand::Resume { change } => tell("mover resume", &change, Order::PauseMover(false)),
        MoverCommand::Limit { change, rate } => tell("mover limit", &change, Order::LimitMover(rate.0)),
        MoverCommand::Wait { timeout, how } => {
            let mount = mounted::mountpoint("mover wait", &how.path)?;
            let status = wait(&mount, timeout)?;
            if how.json {
                return output::json(json!(status));
            }
            output::text_out(&format!("{}: there is nothing to move\n", mount.display()))
        }
    }
}

/// Gives an order. A dry run prints its effect, and fails if there is no mover.
fn tell(operation: &str, change: &ChangeArgs, order: Order) -> Result<(), Failure> {
    let ChangeArgs { dry_run, how } = change;
    let mount = mounted::mountpoint(operation, &how.path)?;
    let done = in_words(&order, *dry_run);
    if !*dry_run {
        mounted::order::<()>(operation, &mount, order)?;
    }
    let status = status(operation, &mount)?;
    if how.json {
        let mut status = json!(status);
        status["dry_run"] = Value::Bool(*dry_run);
        return output::json(status);
    }
    output::text_out(&format!("{}: {done}\n", mount.display()))
}

/// The effect of an order to the mover, done or planned, in words.
fn in_words(order: &Order, dry_run: bool) -> String {
    let verb = |does: &'static str, would: &'static str| if dry_run { would } else { does };
    match order {
        Order::PauseMover(true) => {
            format!("blocks {} only when a write finds no space", verb("move", "would move"))
        }
        Order::LimitMover(Some(rate)) => {
            let moves = verb("moves", "would move");
            format!("at most {} {moves} in a second", size::print(*rate))
        }
        Order::LimitMover(None) => {
            format!("there {} no limit to the bytes that move in a second", verb("is", "would be"))
        }
        _ => format!("blocks {} as usual", verb("move", "would move")),
    }
}

fn status(operation: &str, mount: &Path) -> Result<MoverInfo, Failure> {
    let failed = |cause: &str| Failure::new(operation, mount.display(), cause);
    mounted::question(operation, mount, QUESTION)?.ok_or_else(|| {
        failed("its layout has no tiers, and nothing to move")
            .advice("the presets nacre, nova, tpfs, bpfs and acbpfs can have tiers")
    })
}

/// True if the mount of a path has a mover, so that its layout can have tiers.
pub(crate) fn is_there(operation: &str, path: &Path) -> Result<bool, Failure> {
    let mount = mounted::mountpoint(operation, path)?;
    Ok(mounted::question::<MoverInfo>(operation, &mount, QUESTION)?.is_some())
}

fn wait(mount: &Path, timeout: Option<u64>) -> Result<MoverInfo, Failure> {
    let begun = Instant::now();
    loop {
        let status = status("mover wait", mount)?;
        let failed = |why: String| Err(Failure::new("mover wait", mount.display(), why));
        if status.paused {
            return failed("it is paused; nacre mover resume ends that".to_owned());
        }
        if let Some(failure) = &status.failure {
            return failed(Names::of(mount).put_into(failure));
        }
        if status.phase == OUTSIDE_HOURS && is_above(&status) {
            return failed(format!("{}, and there is more to move", reason(&status)));
        }
        if status.idle {
            return Ok(status);
        }
        if timeout.is_some_and(|seconds| begun.elapsed() >= Duration::from_secs(seconds)) {
            return failed("there is more to move; nacre mover status names it, and why it waits".to_owned());
        }
        std::thread::sleep(PERIOD);
    }
}

/// Adds file names to the inode numbers in a status.
fn name_files(status: &mut MoverInfo, mount: &Path) {
    let mut names = Names::of(mount);
    let queued = status.queue.first.iter().map(|file| file.inode);
    names.look_for(queued.chain(status.doing.as_ref().map(|doing| doing.inode)));
    if let Some(doing) = &mut status.doing {
        doing.name = names.get(doing.inode);
    }
    for file in &mut status.queue.first {
        file.name = names.get(file.inode);
    }
    for text in [&mut status.failure, &mut status.refused].into_iter().flatten() {
        *text = names.put_into(text);
    }
}

/// True if PM holds more data, or has more in use, than it should.
fn is_above(status: &MoverInfo) -> bool {
    match status.anticache {
        Some(anticache) => status.data > anticache,
        None => status.usage_percent > status.threshold_percent,
    }
}

fn describe(status: &MoverInfo) -> String {
    let state = match (status.paused, status.idle, is_above(status)) {
        (true, ..) => "paused",
        _ if status.phase == OUTSIDE_HOURS => "waiting for its hours",
        // A drain does not wait for the mover's own work.
        _ if status.doing.is_some() => "moving blocks",
        (_, true, true) => "idle: no block in use can move",
        (_, true, false) => "idle",
        _ => "moving blocks",
    };
    let mut fields = vec![("mover", state.to_owned()), ("PM", pm(status))];
    if !status.phase.is_empty() {
        fields.push(("why", status.doing.as_ref().map_or_else(|| reason(status), moves)));
    }
    fields.push(("queue", queue(status)));
    let phase_of = |why: &str| phase(why, status.hours.as_deref(), status.next_window.as_deref());
    fields.extend(status.queue.first.iter().map(|queued| ("waits", waits(queued, &phase_of))));
    let bytes = size::print;
    fields.extend([
        ("moved", bytes(status.moved)),
        ("logs", logs(status)),
        ("for reads", format!("{} moved down into DRAM, {} up", bytes(status.lowered), bytes(status.raised))),
        ("anti-caching", anticaching(status)),
        ("to slower tiers", bytes(status.descended)),
        (
            "accesses",
            format!(
                "{} read, {} read below, {} written",
                bytes(status.read),
                bytes(status.read_below),
                bytes(status.written)
            ),
        ),
        ("predictor", predictor(status)),
        (
            "DRAM",
            format!(
                "{} for transfers, {} for blocks of tiers{}",
                bytes(status.transfer_buffers),
                bytes(status.cached),
                hits(status)
            ),
        ),
    ]);
    if let Some(hours) = &status.hours {
        fields.push(("hours", hours.clone()));
    }
    if let Some(rate) = status.rate {
        fields.push(("limit", format!("{} in a second", bytes(rate))));
    }
    if let Some(failure) = &status.failure {
        fields.push(("failed", failure.clone()));
    }
    if status.told > 0 {
        fields.push((
            "told",
            output::count(status.told, "file, which waits to be moved", "files, which wait to be moved"),
        ));
    }
    if let Some(refused) = &status.refused {
        fields.push(("refused", refused.clone()));
    }
    output::fields(&fields)
}

/// The phase of the mover in words, with the end of the phase if known.
pub(crate) fn reason(status: &MoverInfo) -> String {
    phase(&status.phase, status.hours.as_deref(), status.next_window.as_deref())
}

/// A phase in words, with the hours of the mover and the begin of the next ones.
pub(crate) fn phase(phase: &str, hours: Option<&str>, next: Option<&str>) -> String {
    match (phase, hours, next) {
        (OUTSIDE_HOURS, Some(hours), Some(next)) => format!("it is outside its hours, {hours}, until {next}"),
        _ => words(phase).to_owned(),
    }
}

fn words(phase: &str) -> &'static str {
    match phase {
        "moving" => "blocks are moving",
        "paused" => "it is paused",
        "no_tier" => "no tier takes blocks",
        OUTSIDE_HOURS => "it is outside its hours",
        "failed" => "its last move failed",
        "below_threshold" => "usage is below the threshold",
        "below_anticache" => "PM holds no more data than anti-caching leaves there",
        "limited" => "as much was moved as the limit allows for now",
        "beginning" => "it is about to move blocks, or to search for some",
        "young" => "the blocks that can move are too young",
        _ => "no block in use can move",
    }
}

/// The target and the reason of a move, in words.
fn way(way: &str) -> &'static str {
    match way {
        "lowered" => "down, and into DRAM, because it is read",
        "raised" => "up, because it is read",
        "descended" => "to a slower tier, because this one is nearly full",
        "told" => "to its requested place",
        _ => "down, because space is short",
    }
}

/// The files that move together, in words: the first of them, their number, target and reason.
pub(crate) fn moves(doing: &DoingInfo) -> String {
    let DoingInfo { inode, name, files, way: why, tier, left } = doing;
    let file = name.clone().unwrap_or_else(|| format!("inode {inode}"));
    let others = match files {
        0 | 1 => String::new(),
        2 => " with 1 other".to_owned(),
        more => format!(" with {} others", more - 1),
    };
    if why == COMPACTED {
        return format!("the log of {file} is compacted, because space is short");
    }
    let moves = format!("{file} moves{others}");
    let Some(tier) = tier else { return format!("{moves} {}", way(why)) };
    let moves = if *files == 0 { "looking for files".to_owned() } else { moves };
    format!("tier {tier} is drained, {} left: {moves}", size::print(left.unwrap_or(0)))
}

/// The queue of the mover in words: files that wait to be moved, and operations that wait for room.
fn queue(status: &MoverInfo) -> String {
    let QueueInfo { files, young, looking, .. } = &status.queue;
    let looking = if *looking { ", looking for more" } else { "" };
    let waiting = output::count(status.waiting, "operation waits", "operations wait");
    if status.anticache.is_some() {
        return format!("{waiting} for room{looking}");
    }
    format!(
        "{}, {young} with young blocks{looking}; {waiting} for room",
        output::count(*files, "file", "files"),
    )
}

/// A waiting file and the reason, in words.
fn waits(queued: &QueuedInfo, phase_of: &dyn Fn(&str) -> String) -> String {
    let QueuedInfo { inode, name, bytes, way: why_it_moves, tier, why, young_for_ms } = queued;
    let file = name.clone().unwrap_or_else(|| format!("inode {inode}"));
    let bytes = size::print(*bytes);
    if let Some(tier) = tier {
        return format!(
            "tier {tier}, {bytes} to be drained: the drain was interrupted; nacre tier drain continues it"
        );
    }
    let why = match (why.as_str(), young_for_ms) {
        ("turn", _) => "for its turn".to_owned(),
        ("no_room", _) => "for room on PM below the threshold".to_owned(),
        (_, Some(ms)) => format!("{} s more, until its blocks are old enough", ms.div_ceil(1000)),
        (phase, None) => phase_of(phase),
    };
    // Space is not short then.
    if why_it_moves == SPACE && queued.why == BELOW_THRESHOLD {
        return format!("{file}, {bytes}: it moves down once usage is above the threshold");
    }
    format!("{file}, {bytes}, {}: {why}", way(why_it_moves))
}

/// The use of PM, and from where blocks leave it.
fn pm(status: &MoverInfo) -> String {
    let (usage, threshold) = (status.usage_percent, status.threshold_percent);
    match status.anticache {
        Some(anticache) => format!(
            "{usage:.1} % in use; {} of data; above {} the least recently used blocks go",
            size::print(status.data),
            size::print(anticache)
        ),
        None => format!("{usage:.1} % in use; above {threshold:.1} % cold blocks are demoted"),
    }
}

/// The work of anti-caching.
fn anticaching(status: &MoverInfo) -> String {
    if status.anticache.is_none() {
        return "off".to_owned();
    }
    format!(
        "{} evicted, {} brought up, {} known",
        size::print(status.evicted),
        size::print(status.promoted),
        output::count(status.listed_blocks, "block", "blocks")
    )
}

/// The threshold for the compaction of logs, and its results so far, in words.
fn logs(status: &MoverInfo) -> String {
    let (compacted, freed) = (status.logs_compacted, size::print(status.log_bytes_freed));
    match status.log_threshold_percent {
        // Mounts of older versions do not report this.
        0 => "not compacted".to_owned(),
        threshold => {
            let moved = match status.logs_moved {
                0 => String::new(),
                moved => format!(" and {moved} moved to tiers"),
            };
            format!("{compacted} compacted{moved}, which freed {freed}; they are above {threshold} % in use")
        }
    }
}

/// The share of reads of tiers that DRAM served, in words.
fn hits(status: &MoverInfo) -> String {
    let (hits, all) = (status.cache_hits, status.cache_hits + status.cache_misses);
    match all {
        0 => String::new(),
        _ => format!(", which served {:.1} % of their reads", 100.0 * hits as f64 / all as f64),
    }
}

/// The accuracy of the predictor of soon synchronised files, in words.
pub(crate) fn predictor(status: &MoverInfo) -> String {
    let right = status.synchronicity_right;
    match right + status.synchronicity_wrong {
        0 => "no file was synchronised twice".to_owned(),
        all => {
            let percent = 100.0 * right as f64 / all as f64;
            format!("{percent:.1} % of {all} intervals between syncs were as expected")
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_control::{MoverInfo, Order};
    use serde_json::{Value, json};

    use super::in_words;

    fn info(status: &Value) -> MoverInfo {
        serde_json::from_value(status.clone()).unwrap()
    }

    fn describe(status: &Value) -> String {
        super::describe(&info(status))
    }

    #[test]
    fn what_it_is_told_is_said_in_one_line() {
        let orders = || [Order::PauseMover(true), Order::PauseMover(false), Order::LimitMover(Some(1 << 20))];
        let would = orders().map(|order| in_words(&order, true));
        assert_eq!(would[0], "blocks would move only when a write finds no space");
        assert_eq!(would[2], "at most 1 MiB would move in a second");
        let done = orders().map(|order| in_words(&order, false));
        assert_eq!(done[1], "blocks move as usual");
        assert_eq!(done[2], "at most 1 MiB moves in a second");
        assert_eq!(
            in_words(&Order::LimitMover(None), false),
            "there is no limit to the bytes that move in a second"
        );
    }

    /// It said that space was short, and that usage was below the threshold.
    #[test]
    fn what_need_not_move_is_not_said_to_move_because_space_is_short() {
        let status = json!({ "phase": "below_threshold", "usage_percent": 2.0, "threshold_percent": 70.0,
            "queue": { "files": 1, "young": 0, "first": [
                { "inode": 6, "name": "a/b", "bytes": 4096, "way": "space", "why": "below_threshold" }] } });
        let text = describe(&status);
        assert!(text.contains(" a/b, 4 KiB: it moves down once usage is above the threshold\n"), "{text}");
        assert!(text.contains(" 1 file, 0 with young blocks; 0 operations wait for room\n"), "{text}");
        assert!(!text.contains("short"), "{text}");
    }

    /// It spoke of the rules that anti-caching replaces.
    #[test]
    fn with_anti_caching_its_own_threshold_is_meant() {
        let mut status = json!({ "idle": true, "phase": "below_anticache", "usage_percent": 80.0,
            "threshold_percent": 50.0, "anticache": 1 << 20, "data": 4096 });
        let text = describe(&status);
        assert!(text.contains(" idle\n"), "{text}");
        assert!(text.contains(" PM holds no more data than anti-caching leaves there\n"), "{text}");
        assert!(!text.contains("threshold") && !text.contains("young"), "{text}");
        status["data"] = json!(2 << 20);
        assert!(describe(&status).contains(" idle: no block in use can move\n"));
    }

    #[test]
    fn people_see_when_it_goes_on() {
        let status = json!({ "paused": false, "idle": true, "usage_percent": 80.0, "threshold_percent": 70.0,
            "phase": "outside_hours", "hours": "12:00-13:00+22:00-06:00", "next_window": "22:00" });
        let text = describe(&status);
        assert!(text.contains("waiting for its hours\n"), "{text}");
        assert!(text.contains("outside its hours, 12:00-13:00+22:00-06:00, until 22:00\n"), "{text}");
        assert!(text.contains(" 12:00-13:00+22:00-06:00\n") && super::is_above(&info(&status)), "{text}");
    }

    #[test]
    fn people_see_what_it_does() {
        let mut status = json!({ "paused": false, "idle": true, "usage_percent": 12.34, "threshold_percent": 70.0,
            "moved": 1 << 20, "rate": null, "read": 0, "written": 4096, "cached": 0, "failure": null });
        let text = describe(&status);
        assert!(text.contains("idle\n") && text.contains("12.3 % in use; above 70.0 %"), "{text}");
        assert!(text.contains("1 MiB\n") && !text.contains("limit"), "{text}");
        assert!(text.contains("no file was synchronised twice"), "{text}");
        (status["lowered"], status["raised"]) = (json!(8192), json!(4096));
        assert!(describe(&status).contains("8 KiB moved down into DRAM, 4 KiB up"));
        assert!(describe(&status).lines().any(|line| line.contains("anti-caching") && line.ends_with("off")));
        (status["anticache"], status["data"], status["listed_blocks"]) =
            (json!(40 << 20), json!(8192), json!(2));
        (status["evicted"], status["promoted"]) = (json!(16384), json!(4096));
        let text = describe(&status);
        assert!(text.contains("16 KiB evicted, 4 KiB brought up, 2 blocks known"), "{text}");
        assert!(text.contains("8 KiB of data; above 40 MiB the least recently used blocks go"), "{text}");
        status["anticache"] = json!(null);
        status["descended"] = json!(12288);
        assert!(
            describe(&status)
                .lines()
                .any(|line| line.contains("to slower tiers") && line.ends_with("12 KiB"))
        );
        (status["synchronicity_right"], status["synchronicity_wrong"]) = (json!(7), json!(1));
        assert!(describe(&status).contains("87.5 % of 8 intervals"));
        assert!(describe(&status).contains("not compacted"));
        status["log_threshold_percent"] = json!(95);
        (status["logs_compacted"], status["log_bytes_freed"]) = (json!(3), json!(20480));
        assert!(describe(&status).contains("3 compacted, which freed 20 KiB; they are above 95 % in use"));
        status["logs_moved"] = json!(2);
        assert!(describe(&status).contains("3 compacted and 2 moved to tiers, which freed 20 KiB"));
        status["usage_percent"] = json!(80.0);
        assert!(describe(&status).contains("no block in use can move"));
        assert!(!describe(&status).contains("why") && !describe(&status).contains("of their reads"));
        (status["phase"], status["queue"]) =
            (json!("young"), json!({ "files": 0, "young": 7, "looking": true }));
        status["queue"]["first"] = json!([
            { "inode": 5, "bytes": 8192, "way": "told", "tier": null, "why": "limited" },
            { "inode": 0, "bytes": 1 << 20, "way": "drained", "tier": 2, "why": "interrupted" },
            { "inode": 6, "bytes": 4096, "way": "space", "why": "turn" },
            { "inode": 7, "bytes": 4096, "way": "space", "why": "young", "young_for_ms": 1001 },
            { "inode": 8, "bytes": 4096, "way": "raised", "why": "no_room" },
            { "inode": 9, "bytes": 4096, "way": "descended", "why": "turn" },
        ]);
        let text = describe(&status);
        let waits: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("waits:")).map(str::trim).collect();
        let expected = [
            "inode 5, 8 KiB, to its requested place: as much was moved as the limit allows for now",
            "tier 2, 1 MiB to be drained: the drain was interrupted; nacre tier drain continues it",
            "inode 6, 4 KiB, down, because space is short: for its turn",
            "inode 7, 4 KiB, down, because space is short: 2 s more, until its blocks are old enough",
            "inode 8, 4 KiB, up, because it is read: for room on PM below the threshold",
            "inode 9, 4 KiB, to a slower tier, because this one is nearly full: for its turn",
        ];
        assert_eq!(waits, expected, "{text}");
        (status["cache_hits"], status["cache_misses"]) = (json!(3), json!(1));
        let text = describe(&status);
        assert!(
            text.contains("too young") && text.contains("7 with young blocks, looking for more;"),
            "{text}"
        );
        assert!(text.contains("served 75.0 % of their reads"), "{text}");
        status["doing"] = json!({ "inode": 17, "way": "raised" });
        assert!(describe(&status).contains("inode 17 moves up, because it is read"));
        status["doing"]["way"] = json!("compacted");
        assert!(describe(&status).contains("the log of inode 17 is compacted, because"));
        status["doing"]["way"] = json!("raised");
        status["doing"]["files"] = json!(300);
        assert!(describe(&status).contains("inode 17 moves with 299 others up, because"));
        status["doing"]["files"] = json!(1);
        (status["doing"]["way"], status["told"]) = (json!("told"), json!(2));
        status["refused"] = json!("inode 9: tier 1: in use");
        let text = describe(&status);
        assert!(
            text.contains("inode 17 moves to its requested place") && text.contains("2 files, which wait"),
            "{text}"
        );
        assert!(text.contains("inode 9: tier 1: in use"), "{text}");
        // A drain does not wait for the mover's own work.
        assert!(text.contains("moving blocks\n"), "{text}");
        status["doing"] = json!({ "inode": 17, "files": 3, "way": "drained", "tier": 2, "left": 5 << 20 });
        let text = describe(&status);
        assert!(text.contains("tier 2 is drained, 5 MiB left: inode 17 moves with 2 others\n"), "{text}");
        (status["doing"]["inode"], status["doing"]["files"]) = (json!(0), json!(0));
        assert!(describe(&status).contains("5 MiB left: looking for files\n"));
        (status["idle"], status["rate"]) = (json!(false), json!(4096));
        let text = describe(&status);
        assert!(!text.contains("hours"), "{text}");
        assert!(text.contains("moving blocks") && text.contains("4 KiB in a second"), "{text}");
    }
}
