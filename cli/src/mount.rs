//! `nacre mount`, and `mount.nacre` as mount(8) calls it.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use nacre::{Emulation, FileSystem, Info, Kind, Promise, TierInfo};
use nacre_engine::{size, without_number};
use nacre_fuse::{Notices, ServeOptions, Unmounter, mounts};

use crate::control::Control;
use crate::daemon::{self, Log, Readiness, Role, Signals, Throttle, Warnings};
use crate::failure::Failure;
use crate::heap::Heap;
use crate::mount_options::{self, MountSettings, table};
use crate::telling::Telling;
use crate::{mounted, notice, opening, output, remount, utab};

/// Exit codes of mount(8).
pub(crate) const WRONG_CALL: u8 = 1;
const SYSTEM_ERROR: u8 = 2;
const MOUNT_FAILURE: u8 = 32;

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre mount /dev/dax0.0 /srv/fast
      Mounts a devdax device.
  nacre mount -o ro,require=power /dev/dax0.0 /srv/fast
      Mounts it read-only, if it is safe against power loss.
  nacre mount -o remount,mover_limit=100M /dev/dax0.0 /srv/fast
      Limits the moves of a running mount.

Exit status:
  0   the file system is mounted
  1   a wrong command line
  2   a failure of the system
  32  the mount failed

Files:
  /run/mount/utab
      The entry by which umount(8) finds the helper.

See also:
  mount.nacre(8), nacre-umount(8), nacre-info(8), mount(8), fstab(5)
";

/// Arguments of `nacre mount`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct MountArgs {
    /// Options as in fstab, separated by commas
    #[arg(short, long, value_name = "OPTIONS", long_help = table::help())]
    options: Vec<String>,
    /// Refuse every change
    #[arg(long)]
    ro: bool,
    /// Stay in the foreground, with messages on standard error
    #[arg(short, long)]
    foreground: bool,
    /// Emulate this kind of PM: pcm, optane, or latency=200,bandwidth=1G
    #[arg(long, value_name = "KIND", value_parser = |text: &str| text.parse::<Emulation>())]
    emulate: Option<Emulation>,
    /// Refuse a device whose persistence domain is less than this: process, power
    #[arg(long, value_name = "DOMAIN", value_parser = |text: &str| text.parse::<Promise>())]
    require: Option<Promise>,
    /// The device of a tier (repeatable), as the option tier=PATH
    #[arg(long = "tier", value_name = "PATH")]
    tiers: Vec<String>,
    /// Threads that answer requests; by default one a core, and at least 8 over tiers
    #[arg(long, value_name = "N", value_parser = mount_options::threads)]
    threads: Option<usize>,
    /// The file for messages from the background; by default the system's log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print the changes, and make none
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// A file, a block device, or a devdax device that holds a file system
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// The directory on which it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// A mount to be made: device, mountpoint and settings.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    device: PathBuf,
    dir: PathBuf,
    pub(crate) settings: MountSettings,
    foreground: bool,
    dry_run: bool,
    /// True if every flag that is not named is off, except for read-only and access times: mount(8) names all flags to
    /// set.
    names_all_flags: bool,
    /// True if a mount was there whose server had died.
    was_dead: bool,
}

/// The cause of a failed mount: message and exit code.
struct Refusal(String, u8);

impl From<nacre::Error> for Refusal {
    fn from(error: nacre::Error) -> Refusal {
        Refusal(Failure::named("mount", error).message().to_owned(), MOUNT_FAILURE)
    }
}

/// Mounts a file system. Returns when it can be used or, with `-f`, when it is unmounted.
pub(crate) fn run(args: MountArgs) -> ExitCode {
    match plan(args) {
        Ok(plan) => mount(plan),
        Err(message) => refuse(&format!("mount: {message}"), WRONG_CALL),
    }
}

pub(crate) fn plan(args: MountArgs) -> Result<Plan, String> {
    let mut settings = MountSettings::default();
    for options in &args.options {
        settings.take(options, false)?;
    }
    args.tiers.iter().try_for_each(|tier| settings.take_tier(tier))?;
    settings.read_only |= args.ro;
    settings.prefer("emulate", args.emulate, |settings| &mut settings.emulation);
    settings.prefer("threads", args.threads, |settings| &mut settings.threads);
    settings.prefer("log", args.log, |settings| &mut settings.log);
    settings.require(args.require);
    Ok(Plan {
        device: args.device,
        dir: args.dir,
        settings,
        foreground: args.foreground,
        dry_run: args.dry_run,
        names_all_flags: false,
        was_dead: false,
    })
}

/// Mounts as the helper of mount(8): `mount.nacre DEVICE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`. Here `-f`
/// does everything except the mount itself.
pub(crate) fn run_helper(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match parse_helper(args) {
        Ok(plan) => mount(plan),
        Err(message) => refuse(
            &format!("mount: {message}; usage: mount.nacre DEVICE DIR [-sfnv] [-o OPTIONS]"),
            WRONG_CALL,
        ),
    }
}

pub(crate) fn parse_helper(args: impl IntoIterator<Item = OsString>) -> Result<Plan, String> {
    let mut names: Vec<PathBuf> = Vec::new();
    let mut options: Vec<String> = Vec::new();
    let (mut sloppy, mut dry_run) = (false, false);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = match arg.to_str() {
            Some(text) if text.len() > 1 && text.starts_with('-') => text.to_owned(),
            _ => {
                names.push(arg.into());
                continue;
            }
        };
        for (at, letter) in text[1..].char_indices() {
            match letter {
                's' => sloppy = true,
                'f' => dry_run = true,
                'r' => options.push("ro".to_owned()),
                'w' => options.push("rw".to_owned()),
                'n' | 'v' | 'i' => {}
                'o' | 't' | 'N' => {
                    let value = match &text[1 + at + 1..] {
                        "" => {
                            let next = args.next().ok_or_else(|| format!("-{letter} takes a value"))?;
                            next.into_string()
                                .map_err(|_| format!("the value of -{letter} is not valid UTF-8"))?
                        }
                        rest => rest.to_owned(),
                    };
                    if letter == 'o' {
                        options.push(value);
                    }
                    break;
                }
                _ => return Err(format!("the flag -{letter} is unknown")),
            }
        }
    }
    let mut settings = MountSettings::default();
    for options in &options {
        settings.take(options, sloppy)?;
    }
    let [device, dir] = names.try_into().map_err(|_| "give a device and a directory".to_owned())?;
    Ok(Plan { device, dir, settings, foreground: false, dry_run, names_all_flags: true, was_dead: false })
}

fn refuse(message: &str, code: u8) -> ExitCode {
    Readiness::in_foreground().fail(message, code)
}

fn mount(plan: Plan) -> ExitCode {
    if !plan.dry_run && !plan.settings.remount {
        daemon::begin_anew();
    }
    let plan = match prepare(plan) {
        Ok(Some(plan)) => plan,
        Ok(None) => return ExitCode::SUCCESS,
        Err(Refusal(message, code)) => return refuse(&message, code),
    };
    if plan.foreground {
        return serve(&plan, Readiness::in_foreground());
    }
    match daemon::to_background() {
        Ok(Role::Parent(code)) => code,
        Ok(Role::Child(readiness)) => serve(&plan, readiness),
        Err(failure) => {
            failure.report();
            ExitCode::from(SYSTEM_ERROR)
        }
    }
}

/// All checks that do not touch the device; `None` when nothing is left to do.
fn prepare(mut plan: Plan) -> Result<Option<Plan>, Refusal> {
    plan.settings.check().map_err(|message| Refusal(format!("mount: {message}"), WRONG_CALL))?;
    for warning in plan.settings.notices() {
        notice::say(format_args!("mount: {warning}"));
    }
    reach(&plan).map_err(|failure| Refusal(failure.message().to_owned(), MOUNT_FAILURE))?;
    name_volume(&mut plan)?;
    plan.device = match nacre::canonical_device(&plan.device) {
        Ok(device) => device,
        // The mount is there, even if the name of the device has changed.
        Err(_) if plan.settings.remount => plan.device.clone(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && plan.settings.no_fail => {
            return Ok(None);
        }
        Err(error) => {
            let message = without_number(format!("mount: {}: {error}", plan.device.display()));
            return Err(Refusal(message, MOUNT_FAILURE));
        }
    };
    // The server works in another directory.
    for tier in &mut plan.settings.tiers {
        let absolute = std::path::absolute(&tier.path);
        tier.path = absolute.map_err(|error| {
            Refusal(without_number(format!("mount: tier {}: {error}", tier.path.display())), SYSTEM_ERROR)
        })?;
    }
    if let Some(log) = &mut plan.settings.log {
        let absolute = std::path::absolute(log.as_path());
        *log = absolute
            .map_err(|error| Refusal(without_number(format!("mount: log: {error}")), SYSTEM_ERROR))?;
    }
    plan.dir = mounts::absolute(&plan.dir)?;
    // A command that looks at a mount that hangs would hang, too.
    if let Some(there) = mounts::at(&plan.dir)?.filter(|there| there.fstype == mounts::FSTYPE) {
        mounted::answers("mount", &there)
            .map_err(|failure| Refusal(failure.message().to_owned(), MOUNT_FAILURE))?;
    }
    plan.was_dead = if plan.dry_run { is_dead_of_ours(&plan.dir)? } else { mounts::clear_dead(&plan.dir)? };
    if plan.settings.remount && plan.was_dead {
        let done = if plan.dry_run { "" } else { "; the dead mount is removed" };
        return Err(Refusal(
            format!(
                "remount: {}: its server has ended{done}; mount it without remount, which recovers it",
                plan.dir.display()
            ),
            MOUNT_FAILURE,
        ));
    }
    if plan.settings.remount {
        let how = (plan.names_all_flags, plan.dry_run);
        return remount::run(&plan.dir, &plan.settings, how)
            .map(|()| None)
            .map_err(|failure| Refusal(failure.message().to_owned(), MOUNT_FAILURE));
    }
    let refuse = |why: &str| Err(Refusal(format!("mount: {}: {why}", plan.dir.display()), MOUNT_FAILURE));
    match plan.dir.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        // A mount that is there would be cleared away.
        Err(_) if plan.was_dead && plan.dry_run => {}
        Ok(_) => return refuse("it is not a directory; give one to mount it on"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return refuse("there is no such directory; make it first");
        }
        Err(error) => return refuse(&error.to_string()),
    }
    if plan.dry_run { try_out(&plan).map(|()| None) } else { Ok(Some(plan)) }
}

/// Checks that the mounts on which the paths of a plan are answer. The one that is to be replaced need not.
fn reach(plan: &Plan) -> Result<(), Failure> {
    let tiers = plan.settings.tiers.iter().map(|tier| &tier.path);
    for path in tiers.chain(&plan.settings.log).chain([&plan.device]) {
        mounted::reach("mount", path)?;
    }
    mounted::reach_mountpoint("mount", &plan.dir)
}

/// Prints the mount that would be made. The errors are those of the mount, as far as they show without one.
fn try_out(plan: &Plan) -> Result<(), Refusal> {
    if let Some(log) = &plan.settings.log {
        Log::would_open(log).map_err(|error| Refusal(no_log(log, &error), SYSTEM_ERROR))?;
    }
    let (device, settings) = opening::would_open(&plan.device, &plan.settings).map_err(|error| {
        Refusal(Failure::on("mount", &plan.device, &error).message().to_owned(), MOUNT_FAILURE)
    })?;
    let (name, dir) = (plan.device.display(), plan.dir.display());
    if settings.read_only && !plan.settings.read_only {
        notice::say(format_args!("{name}: it is write-protected, and would be mounted read-only"));
    }
    output::text_out(&format!("{name}: would be mounted on {dir}; {}\n", device.promise_explanation))
        .map_err(|failure| Refusal(failure.message().to_owned(), SYSTEM_ERROR))
}

/// The message of a log that cannot be opened.
fn no_log(log: &Path, error: &io::Error) -> String {
    without_number(format!(
        "mount: open the log {}: {error}; give a file in a directory that is there, as log=FILE",
        log.display()
    ))
}

/// Puts the name of the volume, if an option has it, into the source of the mount.
fn name_volume(plan: &mut Plan) -> Result<(), Refusal> {
    let Some(option) = plan.settings.volume.take() else { return Ok(()) };
    let (device, volume) = nacre::device_and_volume(&plan.device);
    if volume.is_some_and(|volume| volume != option) {
        let device = plan.device.display();
        let why = format!(
            "mount: {device}: the option volume={option} names another volume; leave one of them out"
        );
        return Err(Refusal(why, WRONG_CALL));
    }
    plan.device = nacre::with_volume(&device, &option);
    Ok(())
}

/// The warning that the kernel may end this server first, with remedies.
fn is_ended_first(dir: &Path, error: io::Error) -> String {
    let why = without_number(error.to_string());
    format!(
        "{}: when DRAM is short, the kernel may end this server before other processes; the mount then fails until \
         it is mounted again; synchronised data is kept; its oom_score_adj cannot be set to -999 ({why}): mount it with \
         CAP_SYS_RESOURCE, which root has outside most containers, or with OOMScoreAdjust=-999 in a systemd unit",
        dir.display()
    )
}

/// True if a nacre mount is there whose server has died.
fn is_dead_of_ours(dir: &Path) -> nacre::Result<bool> {
    let is_ours = mounts::at(dir)?.is_some_and(|mount| mount.fstype == mounts::FSTYPE);
    Ok(is_ours && mounts::is_dead(dir))
}

/// Serves the mount until its end.
fn serve(plan: &Plan, mut readiness: Readiness) -> ExitCode {
    // Before any thread exists: they inherit both.
    let signals = Signals::hold_back();
    daemon::serve_while_memory_is_short();
    let log = match Log::new(plan.settings.log.as_deref(), readiness.in_background()) {
        Ok(log) => log,
        Err(error) => {
            let log = plan.settings.log.as_deref().unwrap_or(Path::new(""));
            return readiness.fail(&no_log(log, &error), SYSTEM_ERROR);
        }
    };
    daemon::abort_on_panic(&log);
    if let Err(error) = daemon::be_ended_last() {
        log.say(&is_ended_first(&plan.dir, error));
    }
    if plan.was_dead {
        log.say(&format!(
            "{}: the server of the previous mount here died: it was killed, or DRAM was short",
            plan.dir.display()
        ));
    }
    let before = nacre::info(&plan.device).ok();
    let warnings = readiness.warnings();
    let tell = |what: &str| {
        let message = format!("{}: {what}", plan.device.display());
        log.say(&message);
        warnings.say(&message);
    };
    let (file_system, settings) = match opening::open(&plan.device, &plan.settings) {
        Ok(opened) => opened,
        Err(error) if error.kind() == Kind::NotFound && plan.settings.no_fail => {
            return readiness.ready().map_or(ExitCode::from(SYSTEM_ERROR), |()| ExitCode::SUCCESS);
        }
        Err(error) => {
            return readiness.fail(Failure::on("mount", &plan.device, &error).message(), MOUNT_FAILURE);
        }
    };
    if settings.read_only && !plan.settings.read_only {
        tell("it is write-protected, and mounted read-only");
    }
    let plan = &Plan { settings, ..plan.clone() };
    // A new file system has nothing to recover, even if its layout counts blocks at the first mount.
    if file_system.is_recovered_in_dram() && before.as_ref().is_none_or(needed_recovery) {
        tell("there was no clean unmount: it is recovered in DRAM, and nothing is written to it");
    } else if plan.settings.read_only && file_system.is_device_written() {
        tell("there was no clean unmount, and recovery wrote to this device, which has no private mapping");
    }
    let mut was_ready = false;
    let (told, dir) = (log.clone(), plan.dir.display().to_string());
    let tell = Box::new(move |what: &str| told.tell(&format!("{dir}: {what}")));
    let control = Control::new(file_system.clone(), plan.settings.clone(), plan.dir.clone(), tell);
    let ends = control.ends();
    let options = serve_options(plan, &file_system, &log, control);
    tell_of_tiers(plan, &file_system, &log, readiness.warnings());
    let telling = Telling::new(&plan.device, file_system.findings(), &log);
    let served =
        nacre_fuse::serve(Arc::clone(file_system.vfs()), &plan.dir, &options, |unmounter, notices| {
            was_ready = true;
            tell_of_begin(plan, &file_system, before.as_ref(), &log);
            tell_of_losses(plan, &file_system, &log, notices);
            utab::note(&plan.device, &plan.dir);
            say_mounted(plan, &file_system);
            if readiness.ready().is_err() {
                // The process that asked for the mount was interrupted and has been told of nothing.
                let _ = unmounter.detach();
            }
            end_at_signals(signals, unmounter, telling.clone(), ends);
        });
    drop(options);
    // This process still has the device, so no other mount of the device can have taken the place of this one.
    if was_ready {
        utab::renew(&plan.device);
    }
    // All nodes are gone; the close writes the state that makes the next mount fast.
    let closed = file_system.close();
    telling.tell();
    match served.and(closed) {
        Ok(()) => {
            log.tell(&format!("{}: unmounted from {}", plan.device.display(), plan.dir.display()));
            ExitCode::SUCCESS
        }
        Err(error) if was_ready => {
            log.say(&format!("{}: {error}", plan.dir.display()));
            ExitCode::from(MOUNT_FAILURE)
        }
        Err(error) => readiness.fail(Failure::named("mount", error).message(), MOUNT_FAILURE),
    }
}

/// Prints the mount and its promise.
fn say_mounted(plan: &Plan, file_system: &FileSystem) {
    let (device, dir) = (plan.device.display(), plan.dir.display());
    // The reader of standard output may be gone.
    let _ =
        writeln!(io::stdout(), "{device}: mounted on {dir}; {}", file_system.device().promise_explanation);
}

/// True if a device was mounted for writing and not unmounted. A new one was never mounted.
fn needed_recovery(before: &Info) -> bool {
    before.volume.mount_epoch > 0 && !before.volume.clean
}

/// Logs the mount. After an unclean unmount, also logs the work of recovery.
fn tell_of_begin(plan: &Plan, file_system: &FileSystem, before: Option<&Info>, log: &Log) {
    let device = plan.device.display();
    let report = file_system.recovery();
    if before.is_some_and(needed_recovery) {
        log.tell(&format!(
            "{device}: there was no clean unmount; recovered in {:.3} s: {} and {} read, {} in flight erased and {} \
             undone, {} corrected",
            report.duration.as_secs_f64(),
            size::count(report.directories, "directory", "directories"),
            size::count(report.files, "other inode", "other inodes"),
            size::count(report.torn, "operation", "operations"),
            report.rolled_back,
            size::count(report.relinked, "link count", "link counts"),
        ));
    }
    if report.damage_count > 0 {
        log.say(&format!("{device}: damage was found: {}; run nacre fsck", report.damage.join("; ")));
    }
    // In the foreground standard output says so.
    if !matches!(log, Log::Terminal) {
        let (dir, version, settings) = (plan.dir.display(), env!("CARGO_PKG_VERSION"), &plan.settings);
        log.tell(&format!("{device}: mounted on {dir} by nacre {version}, options {settings}"));
    }
}

/// Sends events of tiers to the log and, until the mount is ready, also to the process that mounts.
fn tell_of_tiers(plan: &Plan, file_system: &FileSystem, log: &Log, warnings: Warnings) {
    let dir = plan.dir.display().to_string();
    let tell = {
        let (log, dir, warnings) = (log.clone(), dir.clone(), warnings.clone());
        move |what: &str| {
            let message = format!("{dir}: {what}");
            log.say(&message);
            warnings.say(&message);
        }
    };
    file_system.on_tiers(tell.clone());
    let tiers = file_system.tiers();
    let (missing, draining): (Vec<&TierInfo>, Vec<&TierInfo>) = tiers
        .iter()
        .filter(|tier| tier.missing.is_some() || tier.draining)
        .partition(|tier| tier.missing.is_some());
    if !missing.is_empty() {
        let numbers: Vec<u8> = missing.iter().map(|tier| tier.number).collect();
        // The log has each of them, and why.
        warnings.say(&missing_words(&numbers, &dir));
    }
    for tier in draining {
        tell(&draining_words(tier.number, tier.free, &dir));
    }
}

/// Has the log name files of which the write buffer gave up accepted data. The kernel still has it, and reads the file
/// again.
fn tell_of_losses(plan: &Plan, file_system: &FileSystem, log: &Log, notices: Notices) {
    let (log, dir) = (log.clone(), plan.dir.display().to_string());
    file_system.on_loss(move |id, bytes| {
        log.say(&format!(
            "{dir}: {} of accepted data of inode {} could not be written for a media error, and were given up; find \
             -inum names it",
            size::print(bytes),
            id.number
        ));
        // This thread frees blocks for writers.
        let notices = notices.clone();
        std::thread::spawn(move || notices.content_changed(id));
    });
}

/// The warning of missing tiers, with the way out.
fn missing_words(numbers: &[u8], dir: &str) -> String {
    if let [number] = numbers {
        return format!(
            "{dir}: mounted without tier {number}: its blocks cannot be read until nacre tier online {dir} DEVICE \
             brings it back; the mount option tiers=all refuses to mount without it"
        );
    }
    let numbers: Vec<String> = numbers.iter().map(u8::to_string).collect();
    format!(
        "{dir}: mounted without tiers {}: their blocks cannot be read until nacre tier online {dir} DEVICE brings \
         each back; the mount option tiers=all refuses to mount without them",
        numbers.join(", ")
    )
}

/// The message that a tier is being drained and takes no new blocks, which may be why a file system is full.
fn draining_words(number: u8, free: u64, dir: &str) -> String {
    format!(
        "tier {number} is being drained: new blocks do not go to its free {}; nacre tier drain {dir} {number} \
         continues the drain, and --cancel uses the tier again",
        size::print(free)
    )
}

/// The time between looks at the server's heap, at damage that was found, and at the entries for umount(8).
const HEAP_PERIOD: Duration = Duration::from_secs(2);

/// Unmounts at the first signal, and looks at the heap, findings and entries until then. If programs still use the
/// mount, it ends with the last of them or at a second signal.
fn end_at_signals(signals: Signals, unmounter: Unmounter, telling: Telling, ends: Arc<AtomicBool>) {
    let end = move || {
        let dir = unmounter.mountpoint().display().to_string();
        let mut heap = Heap::default();
        let log = telling.log().clone();
        let look = |heap: &mut Heap| {
            heap.look();
            telling.tell();
            utab::renew(telling.device());
        };
        let mut next = || signals.next(HEAP_PERIOD, || look(&mut heap));
        let name = next();
        match unmounter.unmount() {
            Ok(true) => return,
            Ok(false) => {
                ends.store(true, Ordering::Relaxed);
                log.say(&format!(
                    "{dir}: {name}: it is not mounted there any more; it ends with the programs that use it, or at another signal"
                ));
            }
            Err(error) if error.kind() == Kind::Busy => {
                ends.store(true, Ordering::Relaxed);
                log.say(&format!("{dir}: {name}: programs use it; it ends with them, or at another signal"));
                if let Err(error) = unmounter.detach() {
                    log.say(&error.to_string());
                }
            }
            Err(error) => log.say(&error.to_string()),
        }
        loop {
            let name = next();
            log.say(&format!("{dir}: {name}: it ends now"));
            ends.store(true, Ordering::Relaxed);
            if let Err(error) = unmounter.break_connection() {
                log.say(&error.to_string());
            }
        }
    };
    // Without this thread the mount can still be unmounted.
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(end);
}

/// The options of the server. For root, device nodes and set-id bits work unless an option turns them off: mount(8)
/// omits `dev` and `suid` when it calls a helper.
fn serve_options(plan: &Plan, file_system: &FileSystem, log: &Log, control: Control) -> ServeOptions {
    let settings = &plan.settings;
    let root = rustix::process::geteuid().is_root();
    let (log, dir) = (log.clone(), plan.dir.display().to_string());
    let throttle = Throttle::new();
    let tiers = file_system.clone();
    ServeOptions {
        source: plan.device.to_string_lossy().into_owned(),
        threads: settings.threads.or_else(|| threads_over_disks(file_system)),
        read_only: settings.read_only,
        allow_other: settings.allow_other.unwrap_or(root),
        dev: settings.dev.unwrap_or(root),
        suid: settings.suid.unwrap_or(root),
        exec: !settings.no_exec,
        no_symlinks: settings.no_symlinks,
        no_atime: settings.no_atime,
        sync: settings.sync,
        dirsync: settings.dirsync,
        writeback: settings.writeback,
        direct_io: settings.direct_io,
        alarm: Arc::new(move |error| {
            // A missing tier was reported when it went offline.
            let place = if tiers.is_of_missing_tier(error) { None } else { throttle.next() };
            match place {
                Some(false) => log.say(&format!("{dir}: {error}")),
                Some(true) => log.say(&format!("{dir}: {error}; more of this is not written for a while")),
                None => {}
            }
        }),
        control: Some(Arc::new(control)),
    }
}

/// The default number of threads over disks; `None` without tiers. Readers of a slow or hanging disk each hold a
/// thread. Other requests, such as the one that takes the disk offline, need threads beside these.
fn threads_over_disks(file_system: &FileSystem) -> Option<usize> {
    const AT_LEAST: usize = 8;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (!file_system.tiers().is_empty()).then(|| cores.clamp(AT_LEAST, 16))
}

/// True if a program name is that of the helper for mount(8).
pub(crate) fn is_helper(name: &Path) -> bool {
    matches!(name.file_name().and_then(|name| name.to_str()), Some("mount.nacre" | "mount.fuse.nacre"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser as _;

    use nacre::Promise;

    use super::{MountArgs, is_ended_first, is_helper, missing_words, parse_helper, plan};
    use crate::mount_options::MountSettings;

    fn parse(args: &[&str]) -> Result<super::Plan, String> {
        parse_helper(args.iter().map(Into::into))
    }

    #[test]
    fn missing_tiers_are_one_or_several() {
        let one = missing_words(&[3], "/mnt");
        assert!(
            one.starts_with("/mnt: mounted without tier 3: its blocks") && one.ends_with("without it"),
            "{one}"
        );
        let two = missing_words(&[1, 2], "/mnt");
        assert!(
            two.starts_with("/mnt: mounted without tiers 1, 2: their blocks")
                && two.ends_with("without them"),
            "{two}"
        );
    }

    #[test]
    fn a_server_without_protection_says_what_that_means_and_the_way_out() {
        let said = is_ended_first(Path::new("/mnt"), std::io::Error::from_raw_os_error(13));
        let words = [
            "/mnt: when DRAM is short",
            "synchronised data is kept",
            "-999 (Permission denied): mount",
            "CAP_SYS",
        ];
        assert!(words.iter().all(|word| said.contains(word)) && !said.contains("os error"), "{said}");
    }

    #[test]
    fn the_helper_takes_what_mount_gives() {
        let plan = parse(&["/dev/pmem0", "/mnt", "-v", "-o", "rw,nodev,x-systemd.automount", "-t", "nacre"])
            .unwrap();
        assert_eq!((plan.device.as_path(), plan.dir.as_path()), (Path::new("/dev/pmem0"), Path::new("/mnt")));
        assert_eq!(plan.settings.dev, Some(false));
        assert!(!plan.dry_run && !plan.foreground);
        let plan = parse(&["-sfnv", "-oro,unheard-of", "/dev/pmem0", "-N", "4711", "/mnt"]).unwrap();
        assert!(plan.dry_run && plan.settings.read_only);
    }

    #[test]
    fn the_helper_refuses_the_rest() {
        assert!(parse(&["/dev/pmem0"]).unwrap_err().contains("directory"));
        assert!(parse(&["/dev/pmem0", "/mnt", "-o"]).unwrap_err().contains("value"));
        assert!(parse(&["/dev/pmem0", "/mnt", "-q"]).unwrap_err().contains("-q"));
        assert!(parse(&["/dev/pmem0", "/mnt", "-o", "unheard-of"]).unwrap_err().contains("unheard-of"));
    }

    /// The settings of `nacre mount` with these options.
    fn of(words: &[&str]) -> Result<MountSettings, String> {
        #[derive(clap::Parser)]
        struct Mount {
            #[command(flatten)]
            args: MountArgs,
        }
        let words = ["mount"].iter().chain(words).chain(&["/dev/pmem0", "/mnt"]);
        plan(Mount::try_parse_from(words).unwrap().args).map(|plan| plan.settings)
    }

    /// The weaker requirement won, and one of two values was dropped without a word.
    #[test]
    fn an_option_of_the_command_and_one_within_o_do_not_drop_each_other_silently() {
        for (own, within, counts) in [
            ("process", "power", Promise::PowerLoss),
            ("power", "process", Promise::PowerLoss),
            ("none", "process", Promise::ProcessDeath),
        ] {
            let settings = of(&["--require", own, "-o", &format!("require={within}")]).unwrap();
            assert_eq!(settings.require, Some(counts), "{own} and {within}");
        }
        assert_eq!(of(&["--require", "power"]).unwrap().require, Some(Promise::PowerLoss));
        assert_eq!(of(&["-o", "require=process"]).unwrap().require, Some(Promise::ProcessDeath));
        let words = ["--threads", "2", "--log", "/a", "--emulate", "pcm", "-o"];
        let settings = of(&[&words[..], &["threads=3,log=/b,tune=emulate:optane"]].concat()).unwrap();
        assert_eq!((settings.threads, settings.log.as_deref()), (Some(2), Some(Path::new("/a"))));
        assert_eq!(settings.emulation, "pcm".parse().ok());
        let notices = ["emulate", "threads", "log"]
            .map(|name| format!("the option {name:?} has no effect: --{name} counts"));
        assert_eq!(settings.notices(), notices);
        // Those that say the same contradict nothing.
        let settings = of(&[&words[..], &["threads=2,log=/a,tune=emulate:pcm"]].concat()).unwrap();
        assert!(settings.notices().is_empty() && settings.threads == Some(2));
    }

    #[test]
    fn an_option_for_a_tier_is_the_mount_option() {
        let (as_option, named) =
            (of(&["--tier", "/dev/sdb", "--tier", "/dev/sdc"]), of(&["-o", "tier=/dev/sdb,tier=/dev/sdc"]));
        assert_eq!(as_option.clone().unwrap(), named.unwrap());
        assert_eq!(as_option.unwrap().tiers.len(), 2);
        let with_comma = of(&["--tier", "/srv/a,b"]).unwrap();
        assert_eq!(with_comma.tiers[0].path, Path::new("/srv/a,b"));
        assert!(of(&["--tier", ""]).unwrap_err().contains("give a path"));
    }

    #[test]
    fn names_of_the_helper() {
        assert!(is_helper(Path::new("/usr/sbin/mount.nacre")) && is_helper(Path::new("mount.fuse.nacre")));
        assert!(!is_helper(Path::new("/usr/bin/nacre")) && !is_helper(Path::new("umount.nacre")));
    }
}
