//! `nacre umount`, and `umount.nacre` as umount(8) calls it. The command returns when the buffered data is written, the
//! server has ended and its device is free. Otherwise it reports the cause.
//!
//! No code here accesses the directory itself before the mount has shown that it answers.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use nacre::Kind;
use nacre_control::{Order, Synced};
use nacre_fuse::Connection;
use nacre_fuse::mounts::{self, MountEntry};
use rustix::mount::UnmountFlags;

use crate::asking::{self, Answer};
use crate::failure::Failure;
use crate::servers::Server;
use crate::{mounted, notice, output, servers, users, utab};

/// The time that a server has to write its buffered data, and to end. Before its end it writes the state that makes the
/// next mount fast.
const PATIENCE: Duration = Duration::from_secs(120);
/// The same time with `--lazy` or `--force`.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);
/// The time that a server has for an answer that needs no device.
const ANSWER: Duration = Duration::from_secs(10);
const SHORT_ANSWER: Duration = Duration::from_secs(2);
/// The time for which a busy mount is tried again, because df(1) and similar programs use it for moments.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
/// The time within which the kernel begins to write the pages that syncfs(2) asked for.
const BEGIN: Duration = Duration::from_millis(20);
/// The time within which most servers end if nothing keeps them.
const SOON: Duration = Duration::from_millis(300);

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre umount /mnt
      Writes buffered data, unmounts, and waits until the device is free.
  nacre umount --force /dev/dax0.0
      Unmounts a device whose server hangs.

Files:
  /run/mount/utab
      The entry by which umount(8) finds the helper.

See also:
  umount.nacre(8), nacre-mount(8), umount(8)
";

/// Arguments of `nacre umount`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct UmountArgs {
    /// Remove the mount from the tree also while programs use it. They go on, and the command does not wait for the end
    /// of the server
    #[arg(short, long)]
    lazy: bool,
    /// Unmount also if programs use the mount, if its server hangs, or if buffered data cannot be written. The programs
    /// get errors, and the data is given up
    #[arg(short, long, conflicts_with = "lazy")]
    force: bool,
    /// Print the changes, and make none
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// True for a call by umount(8)
    #[arg(skip)]
    is_helper: bool,
    /// The directory, or the device that is mounted on it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// The state of a mount's server, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Answers,
    /// The server hangs, or is stopped.
    Silent,
    /// The server is gone, as the kernel reports.
    Ended,
}

/// One unmount.
struct Unmount {
    mount: MountEntry,
    device: PathBuf,
    server: Server,
    lazy: bool,
    force: bool,
}

/// Unmounts a file system.
pub(crate) fn run(args: UmountArgs) -> Result<(), Failure> {
    let UmountArgs { lazy, force, dry_run, is_helper, dir } = args;
    let mount = find(&dir)?;
    let device = PathBuf::from(&mount.source);
    let server = Server::of(&device);
    let unmount = Unmount { mount, device, server, lazy, force };
    if dry_run {
        return unmount.try_out();
    }
    let state = unmount.state()?;
    let mut is_kernel_written = true;
    if state == State::Answers {
        // The end of the connection discards the data in the kernel, too.
        is_kernel_written = !force || is_written_by_kernel(&unmount.mount, SHORT_PATIENCE);
        unmount.write_down()?;
    }
    let is_at_home = unmount.is_at_home(state);
    let is_off_for_good = unmount.take_off(state, is_kernel_written)?;
    if is_at_home {
        utab::renew(&unmount.device);
    } else if is_helper {
        utab::keep(&unmount.device, &unmount.mount.mountpoint);
    }
    if is_off_for_good { unmount.wait_for_the_end() } else { Ok(()) }
}

impl Unmount {
    fn failed(&self, cause: impl fmt::Display) -> Failure {
        Failure::new("umount", self.mount.mountpoint.display(), cause)
    }

    /// Prints the unmount that would be made. The error is that of the unmount, if programs visibly use the mount.
    fn try_out(&self) -> Result<(), Failure> {
        if !self.lazy && !self.force && !users::of(&self.mount).is_empty() {
            return Err(self.in_use());
        }
        let (device, dir) = (self.device.display(), self.mount.mountpoint.display());
        output::text_out(&format!("{device}: would be unmounted from {dir}\n"))
    }

    /// The failure because of the programs that use the mount.
    fn in_use(&self) -> Failure {
        let cause = match &users::of(&self.mount)[..] {
            "" => "in use, by no process that is visible here".to_owned(),
            users => format!("in use: {users}"),
        };
        self.failed(cause).advice(
            "end them and try again, --lazy lets them continue, --force unmounts and gives them errors",
        )
    }

    /// Prints a notice that is no failure.
    fn note(&self, what: impl fmt::Display) {
        notice::say(format_args!("umount: {}: {what}", self.mount.mountpoint.display()));
    }

    /// The state of the server. An error means that it does not answer and neither `--lazy` nor `--force` was given.
    fn state(&self) -> Result<State, Failure> {
        let asked = mounted::begin_statvfs(&self.mount.mountpoint)?;
        let hurries = self.lazy || self.force;
        let limit = if hurries { SHORT_ANSWER } else { ANSWER };
        let answer = asked.wait(limit, || {
            if !hurries {
                self.note(format_args!("waiting: {}", self.server.silence()));
            }
        });
        match answer {
            Answer::Refused(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED) => Ok(State::Ended),
            Answer::Bytes(_) | Answer::Refused(_) => Ok(State::Answers),
            Answer::None if self.force => Ok(State::Silent),
            Answer::None if self.lazy => {
                self.note(format_args!(
                    "{}; its buffered data is written when it continues, and it has the device until then",
                    self.server.silence()
                ));
                Ok(State::Silent)
            }
            Answer::None => Err(self.failed(self.server.silence()).advice(&format!(
                "it stays mounted; {}--force ends it without an answer, --lazy removes it from the tree",
                self.server.wake()
            ))),
        }
    }

    /// True if this mount namespace is that of the server, whose mounts the entries for umount(8) name. A dead server
    /// has none any more.
    fn is_at_home(&self, state: State) -> bool {
        match &self.server {
            Server::One(pid, _) => users::is_here(*pid),
            Server::Readers(pids) => pids.iter().any(|pid| users::is_here(*pid)),
            Server::Unknown => state == State::Ended,
        }
    }

    /// Has the server write its buffered data, which would otherwise be lost with the server. An error means that the
    /// data cannot be written, or not in time.
    fn write_down(&self) -> Result<(), Failure> {
        let dir = &self.mount.mountpoint;
        let limit = if self.lazy || self.force { SHORT_PATIENCE } else { PATIENCE };
        let notice = || self.note(format_args!("waiting: {} writes its buffered data", self.server.name()));
        let synced: Synced = match mounted::order_within("umount", dir, Order::Sync, limit, notice) {
            Ok(synced) => synced,
            Err(failure) if failure.is_silence() => return self.is_still_writing(),
            // A mount that takes no orders, as one that is read-only or that another one covers, has nothing to write here.
            Err(_) => Synced::default(),
        };
        match mounted::unsynced(&synced) {
            None => Ok(()),
            Some(why) if self.force => {
                self.note(format_args!("{why}; it is given up"));
                Ok(())
            }
            Some(why) if synced.unwritten.is_none() => {
                Err(self.failed(why).advice("it stays mounted; unmount it again to end it without that data"))
            }
            Some(why) => Err(self.failed(why).advice(
                "it stays mounted; free space or bring the device back, and try again, or --force gives the data up",
            )),
        }
    }

    /// The outcome of an unmount whose writeback takes too long.
    fn is_still_writing(&self) -> Result<(), Failure> {
        let what = "buffered data is still being written";
        if self.lazy || self.force {
            self.note(format_args!("{what}; {} continues", self.server.name()));
            return Ok(());
        }
        Err(self
            .failed(what)
            .advice("it stays mounted; try again, or --lazy has the server write it in the background"))
    }

    /// Unmounts; false if programs still use the mount after a lazy unmount. An error means that the mount is busy.
    fn take_off(&self, state: State, is_kernel_written: bool) -> Result<bool, Failure> {
        let dir = &self.mount.mountpoint;
        let hurries = self.lazy || self.force;
        let is_free = match state {
            State::Silent => Err(Kind::Busy.into()),
            State::Ended if hurries => Err(Kind::Busy.into()),
            _ => take_off_when_free(dir, if hurries { Duration::ZERO } else { BUSY_PATIENCE }),
        };
        match is_free {
            Err(error) if error.kind() == Kind::Busy => {}
            other => return other.map(|()| true).map_err(Failure::from),
        }
        if self.force {
            // Without root the connection goes on until the kernel has written.
            if !is_kernel_written && rustix::process::geteuid().is_root() {
                self.note("data in the kernel is given up, as far as it is not written by now");
            }
            mounts::unmount(dir, UnmountFlags::DETACH | UnmountFlags::FORCE)?;
            return Ok(true);
        }
        if self.lazy {
            mounts::unmount(dir, UnmountFlags::DETACH)?;
            return Ok(state == State::Ended);
        }
        Err(self.in_use())
    }

    /// Waits until the server has ended and the device is free, and checks that the unmount was clean.
    fn wait_for_the_end(&self) -> Result<(), Failure> {
        let device = self.device.display();
        let is_aborted = self.force && rustix::process::geteuid().is_root();
        if !is_aborted && is_served(&self.mount)? {
            return Ok(());
        }
        if !is_aborted && !self.server.has_ended(&self.device, SOON, || {}) {
            let elsewhere = users::elsewhere(&self.mount);
            if !elsewhere.is_empty() {
                self.note(format_args!(
                    "it is not mounted here any more; {} continues and keeps {device}, because {elsewhere}",
                    self.server.name()
                ));
                return Ok(());
            }
        }
        let notice =
            || self.note(format_args!("not mounted any more; waiting for the end of {}", self.server.name()));
        if !self.server.has_ended(&self.device, PATIENCE, notice) {
            return Err(if self.server.is_stopped() {
                Failure::new("umount", device, format_args!("it is unmounted, but {}", self.server.silence()))
                    .advice(&format!("{}until then it has the device", self.server.wake()))
            } else {
                Failure::new(
                    "umount",
                    device,
                    format_args!("it is unmounted, but {} has not ended yet", self.server.name()),
                )
                .advice("it may be writing; its log says more")
            });
        }
        let is_read_only = self.mount.flags.iter().any(|flag| flag == "ro");
        let was_served = matches!(self.server, Server::One(..));
        if was_served && !is_read_only && nacre::info(&self.device).is_ok_and(|info| !info.volume.clean) {
            return Err(Failure::new(
                "umount",
                device,
                "it is unmounted, but its server did not end cleanly",
            )
            .advice("its log says more; synchronised data is there, and the next mount recovers the rest"));
        }
        Ok(())
    }
}

/// Has the kernel write its dirty pages of a mount. False if that is not known to be done in time.
///
/// For a FUSE file system syncfs(2) returns before the pages are written. They are when no request waits at one moment.
fn is_written_by_kernel(mount: &MountEntry, limit: Duration) -> bool {
    let begun = Instant::now();
    let Ok(name) = std::ffi::CString::new(mount.mountpoint.as_os_str().as_encoded_bytes()) else {
        return false;
    };
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let answer = asking::ask(
        limit,
        || {},
        |_| {
            let opened = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty())?;
            rustix::io::retry_on_intr(|| rustix::fs::syncfs(&opened)).map(|()| 0)
        },
    );
    let Ok(connection) = Connection::of(mount) else { return false };
    let mut was_idle: Option<Instant> = None;
    while answer != Answer::None && begun.elapsed() < limit {
        match connection.waiting() {
            // Some kernels begin after syncfs(2) has returned, so one moment is not enough.
            Ok(0) if was_idle.is_some_and(|at| at.elapsed() >= BEGIN) => {
                return matches!(answer, Answer::Bytes(_));
            }
            Ok(0) => was_idle = was_idle.or_else(|| Some(Instant::now())),
            Ok(_) => {}
            Err(_) => return false,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Unmounts, and tries again for `limit` while the mount is busy.
fn take_off_when_free(dir: &Path, limit: Duration) -> nacre::Result<()> {
    let begun = Instant::now();
    loop {
        match mounts::unmount(dir, UnmountFlags::empty()) {
            Err(error) if error.kind() == Kind::Busy && begun.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

/// True if the same mount is still elsewhere in the tree, such as a bind mount. Its server then goes on.
fn is_served(mount: &MountEntry) -> Result<bool, Failure> {
    let others = mounts::list()?;
    Ok(others.iter().any(|other| other.fstype == mounts::FSTYPE && other.device == mount.device))
}

/// Unmounts as the helper of umount(8): `umount.nacre DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`.
pub(crate) fn run_helper(args: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    run(parse_helper(args)?)
}

pub(crate) fn parse_helper(args: impl IntoIterator<Item = OsString>) -> Result<UmountArgs, Failure> {
    let (mut dir, mut lazy, mut force) = (None, false, false);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let flags = match arg.to_str() {
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => &flags[1..],
            _ => {
                dir = Some(PathBuf::from(arg));
                continue;
            }
        };
        for (at, letter) in flags.char_indices() {
            match letter {
                'l' => lazy = true,
                'f' => force = true,
                'n' | 'r' | 'v' => {}
                // Their value is the rest of the word, or the next one.
                'N' | 't' => {
                    if at + 1 == flags.len() {
                        args.next();
                    }
                    break;
                }
                _ => return Err(Failure::usage(format!("umount.nacre: the flag -{letter} is unknown"))),
            }
        }
    }
    let dir = dir.ok_or_else(|| Failure::usage("umount.nacre: give a directory"))?;
    Ok(UmountArgs { lazy, force: force && !lazy, dry_run: false, is_helper: true, dir })
}

/// True if a program name is that of the helper for umount(8).
pub(crate) fn is_helper(name: &Path) -> bool {
    matches!(name.file_name().and_then(|name| name.to_str()), Some("umount.nacre" | "umount.fuse.nacre"))
}

/// The mount on a directory, otherwise the only mount of a device or volume.
fn find(path: &Path) -> Result<MountEntry, Failure> {
    mounted::reach_mountpoint("umount", path)?;
    let mount = match mounts::at(path).ok().flatten() {
        Some(mount) => Some(mount),
        None => mounted::only_of_device("umount", path)?,
    };
    let wrong = |cause| Err(Failure::new("umount", path.display(), cause));
    match mount {
        Some(mount) if mount.fstype == mounts::FSTYPE => Ok(mount),
        Some(mount) => wrong(format!("a mount of type {}, not of nacre", mount.fstype)),
        None if is_missing(&nacre::device_and_volume(path).0) => {
            wrong("there is no such directory or device".to_owned())
        }
        None => wrong(match servers::unlisted(path) {
            Some(place) => format!("nothing is mounted there by that name; {place}"),
            None => "nothing is mounted there; nacre df lists the mounts".to_owned(),
        }),
    }
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::is_helper;

    #[test]
    fn names_of_the_helper() {
        assert!(is_helper(Path::new("/sbin/umount.nacre")) && is_helper(Path::new("umount.fuse.nacre")));
        assert!(!is_helper(Path::new("mount.nacre")));
    }
}
