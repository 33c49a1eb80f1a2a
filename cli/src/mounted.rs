//! Nacre mounts: finds the one that serves a path or a device, queries it, and gives it orders.
//!
//! Calls that query a mount are made by [`asking`](crate::asking), so that a server that hangs does not block the
//! command.

use std::ffi::CString;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nacre_control::{Command, Envelope, Order, Outcome, Synced, result_attribute};
use nacre_engine::size;
use nacre_fuse::mounts::{self, FSTYPE, MountEntry};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::asking::{self, Answer, Asked};
use crate::failure::Failure;
use crate::names::Names;
use crate::notice;
use crate::servers::Server;

/// The time limit for an answer that needs no device.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a mount that may be left out.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);
/// The time limit for a second answer while the server executes an order.
const PROBE: Duration = Duration::from_millis(500);
/// The time limit for an order: some wait for slow disks.
const ORDER_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// The cause of a refusal for other users.
pub(crate) const NOT_YOURS: &str = "only root and the user that mounted it may do this";

/// All nacre mounts.
pub(crate) fn all() -> Result<Vec<MountEntry>, Failure> {
    Ok(mounts::list()?.into_iter().filter(|mount| mount.fstype == FSTYPE).collect())
}

/// Checks that each nacre mount on the way to a path answers. Every command calls this for each path that it is given,
/// before anything accesses the path: that access would wait forever for a mount that hangs.
pub(crate) fn reach(operation: &str, path: &Path) -> Result<(), Failure> {
    let (passed, _) = mounts::passed(path)?;
    passed.iter().try_for_each(|mount| answers_or_fails(operation, mount))?;
    match nacre::device_and_volume(path) {
        (device, Some(_)) => reach(operation, &device),
        _ => Ok(()),
    }
}

/// The same for a directory to mount on, or to unmount: the mount on the directory itself need not answer.
pub(crate) fn reach_mountpoint(operation: &str, dir: &Path) -> Result<(), Failure> {
    let (passed, absolute) = mounts::passed(dir)?;
    match passed.split_last() {
        Some((mount, above)) if mount.mountpoint == absolute => {
            above.iter().try_for_each(|mount| answers_or_fails(operation, mount))
        }
        _ => reach(operation, dir),
    }
}

fn answers_or_fails(operation: &str, mount: &MountEntry) -> Result<(), Failure> {
    answers(operation, mount)?.ok_or_else(|| ended(operation, &mount.mountpoint))
}

/// True if no nacre mount on the way to a path hangs or is dead. For paths that a command meets, and was not given.
pub(crate) fn is_reachable(path: &Path) -> bool {
    let answers = |mount: &MountEntry| {
        let asked = begin_statvfs(&mount.mountpoint);
        asked.is_ok_and(|asked| matches!(asked.wait(SHORT_PATIENCE, || {}), Answer::Bytes(_)))
    };
    mounts::passed(path).is_ok_and(|(passed, _)| passed.iter().all(answers))
}

/// The nacre mount that holds a file or directory; `None` on other file systems.
pub(crate) fn serving(operation: &str, path: &Path) -> Result<Option<MountEntry>, Failure> {
    reach(operation, path)?;
    let failed = |error: &dyn std::fmt::Display| Failure::new(operation, path.display(), error);
    let (path, _) = &nacre::device_and_volume(path);
    let absolute = std::path::absolute(path).map_err(|error| failed(&error))?;
    let mounts = mounts::list()?;
    if let Some(mount) = mounts.iter().rfind(|mount| mount.mountpoint == absolute) {
        return Ok(Some(mount.clone()).filter(|mount| mount.fstype == FSTYPE));
    }
    let name = as_c_string(path)?;
    let answer = asking::ask(PATIENCE, waiting(path), |buffer| {
        let device = rustix::fs::stat(name.as_c_str())?.st_dev;
        buffer[..8].copy_from_slice(&device.to_ne_bytes());
        Ok(8)
    });
    let device = match answer {
        Answer::Bytes(bytes) => u64::from_ne_bytes(bytes.try_into().unwrap_or_default()),
        Answer::Refused(Errno::NOTCONN | Errno::CONNABORTED) => return Err(ended(operation, path)),
        Answer::Refused(error) => return Err(failed(&error)),
        Answer::None => return Err(silent(operation, path)),
    };
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(mounts.into_iter().rfind(|mount| mount.fstype == FSTYPE && mount.device == device))
}

fn as_c_string(path: &Path) -> Result<CString, Failure> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Failure::new("ask", path.display(), "there is a NUL in its name"))
}

/// The nacre mount of a path by its name alone, without access to it.
fn by_name(path: &Path) -> Option<MountEntry> {
    mounts::passed(path).ok()?.0.pop()
}

/// Prints the reason for a wait.
fn waiting(path: &Path) -> impl FnOnce() {
    let path = path.to_owned();
    move || {
        let silence = by_name(&path).map_or_else(|| "it does not answer".to_owned(), |mount| silence(&mount));
        notice::say(format_args!("{}: waiting: {silence}", path.display()));
    }
}

/// Prints the reason for the wait for an order: a server that hangs or, on a terminal only, one that is at work.
fn working(path: &Path) -> impl FnOnce() {
    let path = path.to_owned();
    move || {
        let answers = by_name(&path).is_some_and(|mount| {
            begin_statvfs(&mount.mountpoint).is_ok_and(|asked| asked.wait(PROBE, || {}) != Answer::None)
        });
        if !answers {
            waiting(&path)();
        } else if io::stderr().is_terminal() {
            notice::say(format_args!("{}: waiting: its server is at work", path.display()));
        }
    }
}

/// The reason that a mount does not answer, in words.
fn silence(mount: &MountEntry) -> String {
    Server::of(Path::new(&mount.source)).silence()
}

/// The failure of a query that was not answered in time.
fn silent(operation: &str, path: &Path) -> Failure {
    let Some(mount) = by_name(path) else {
        return Failure::new(operation, path.display(), "it does not answer").of_silence();
    };
    let server = Server::of(Path::new(&mount.source));
    Failure::new(operation, path.display(), server.silence()).of_silence().advice(&format!(
        "{}nacre umount --force {} unmounts it without an answer",
        server.wake(),
        mount.mountpoint.display()
    ))
}

/// The failure of a query to a mount whose server is gone.
pub(crate) fn ended(operation: &str, path: &Path) -> Failure {
    let dir = by_name(path).map_or_else(|| path.to_owned(), |mount| mount.mountpoint);
    Failure::new(operation, path.display(), "its server has ended")
        .advice(&format!("nacre umount {} removes the mount, and the next mount recovers it", dir.display()))
}

/// The nacre mounts of a device, which are those of all its volumes, or of a volume. One that is bound elsewhere, too,
/// is there once.
pub(crate) fn all_of_device(device: &Path) -> Result<Vec<MountEntry>, Failure> {
    let (bare, volume) = nacre::device_and_volume(device);
    let same = |a: &Path, b: &Path| match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.ino() == b.ino() && a.dev() == b.dev(),
        _ => a == b,
    };
    let is_it = |mount: &MountEntry| {
        // An image on a mount that hangs is compared by its name, as one that is gone.
        if !is_reachable(Path::new(&mount.source)) {
            return mount.source == *device;
        }
        let (mounted, its) = nacre::device_and_volume(Path::new(&mount.source));
        let is_volume = volume.is_none() || its.is_none() || its == volume;
        is_volume && same(&mounted, &bare)
    };
    let mut mounts: Vec<MountEntry> = Vec::new();
    for mount in all()?.into_iter().filter(is_it) {
        mounts.retain(|other| other.device != mount.device);
        mounts.push(mount);
    }
    Ok(mounts)
}

/// The last of these mounts, if any.
pub(crate) fn of_device(device: &Path) -> Result<Option<MountEntry>, Failure> {
    Ok(all_of_device(device)?.pop())
}

/// The mount of a device or of a volume, if any. An error means that several volumes of the device are mounted.
pub(crate) fn only_of_device(operation: &str, device: &Path) -> Result<Option<MountEntry>, Failure> {
    let mut mounts = all_of_device(device)?;
    let volume = |mount: &MountEntry| nacre::device_and_volume(Path::new(&mount.source)).1;
    if mounts.iter().any(|mount| volume(mount) != volume(&mounts[0])) {
        let named = |mount: &MountEntry| {
            format!("{} on {}", Path::new(&mount.source).display(), mount.mountpoint.display())
        };
        let named: Vec<String> = mounts.iter().map(named).collect();
        let cause = format!("it has several mounted volumes, {}", named.join(", "));
        return Err(Failure::new(operation, device.display(), cause).advice("say which one, as DEVICE#NAME"));
    }
    Ok(mounts.pop())
}

/// The mountpoint of the mount that serves a path or a device. An error means that there is none, or not one alone.
pub(crate) fn mountpoint(operation: &str, path: &Path) -> Result<PathBuf, Failure> {
    let mount = match serving(operation, path)? {
        Some(mount) => Some(mount),
        None => only_of_device(operation, path)?,
    };
    mount.map(|mount| mount.mountpoint).ok_or_else(|| {
        is_not_ours(operation, path)
            .advice("give a path on one, or the device of one; nacre df lists those that are mounted")
    })
}

/// The failure of a command on a path that no nacre mount serves.
pub(crate) fn is_not_ours(operation: &str, path: &Path) -> Failure {
    Failure::new(operation, path.display(), "it is not on a mounted nacre file system")
}

/// Gives an order to a mount, on behalf of the file with this path. Returns the result of the order.
pub(crate) fn order<T: DeserializeOwned>(operation: &str, path: &Path, order: Order) -> Result<T, Failure> {
    order_within(operation, path, order, ORDER_PATIENCE, working(path))
}

/// Gives an order with a time limit and a notice of its own, which is called after a second.
pub(crate) fn order_within<T: DeserializeOwned>(
    operation: &str,
    path: &Path,
    order: Order,
    limit: Duration,
    notice: impl FnOnce(),
) -> Result<T, Failure> {
    let failed = |cause: String| Failure::new(operation, path.display(), cause);
    // A long order is repeated until it is done, and the mount may end meanwhile.
    let or_gone = |failure| match serving(operation, path) {
        Ok(None) => failed("it is not mounted any more".to_owned()),
        _ => failure,
    };
    let id = Uuid::new_v4().to_string();
    let result = result_attribute(&id);
    let envelope = serde_json::to_string(&Envelope { id, order })
        .map_err(|_| failed("its name is not valid UTF-8".to_owned()))?;
    let name = as_c_string(path)?;
    let told = asking::ask(limit, notice, |_| {
        rustix::fs::lsetxattr(
            name.as_c_str(),
            Command::Order.attribute(),
            envelope.as_bytes(),
            XattrFlags::empty(),
        )
        .map(|()| 0)
    });
    match told {
        Answer::Bytes(_) => {}
        Answer::Refused(Errno::PERM) => {
            return Err(failed(NOT_YOURS.to_owned()));
        }
        Answer::Refused(Errno::ROFS) => {
            return Err(failed("the file system is mounted read-only".to_owned())
                .advice("mount -o remount,rw lets it change"));
        }
        Answer::Refused(Errno::NOTCONN | Errno::CONNABORTED) => {
            return Err(or_gone(ended(operation, path)));
        }
        Answer::Refused(error) => return Err(or_gone(failed(error.to_string()))),
        Answer::None => return Err(silent(operation, path)),
    }
    match ask(operation, path, &result).map_err(or_gone)? {
        Outcome::Result(result) => Ok(result),
        Outcome::Error(error) => Err(Failure::named(operation, with_names(path, &error))),
    }
}

/// The cause for a command that needs everything written, and has not got it.
pub(crate) fn unsynced(synced: &Synced) -> Option<String> {
    let unwritten = synced.unwritten.as_ref().map(|why| format!("buffered data cannot be written: {why}"));
    match synced.given_up {
        0 => unwritten,
        bytes => Some(format!(
            "{} of accepted data could not be written for a media error, and were given up; the log of the mount names \
             the files",
            size::print(bytes)
        )),
    }
}

/// A message of a mount, with paths in the place of inode numbers.
fn with_names(path: &Path, said: &str) -> String {
    by_name(path).map_or_else(|| said.to_owned(), |mount| Names::of(&mount.mountpoint).put_paths_into(said))
}

/// The answer of a mount to a query, which is the name of a virtual extended attribute. No answer is an error.
pub(crate) fn ask<T: DeserializeOwned>(operation: &str, path: &Path, question: &str) -> Result<T, Failure> {
    let failed = |cause: &str| Failure::new(operation, path.display(), cause);
    question_with(waiting(path), operation, path, question)?.ok_or_else(|| {
        failed("it does not answer").advice("it must be a file on a mounted nacre file system")
    })
}

/// The answer of a mount to a query, without a notice during the wait.
pub(crate) fn ask_silently<T: DeserializeOwned>(
    operation: &str,
    path: &Path,
    question: &str,
) -> Result<Option<T>, Failure> {
    question_with(|| {}, operation, path, question)
}

/// Has the kernel write dirty pages of a file that its server does not have: pages of mappings and, with `writeback`,
/// others. A file that this user may not read is left as it is.
pub(crate) fn write_pages(operation: &str, path: &Path) -> Result<(), Failure> {
    let name = as_c_string(path)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let call = |_: &mut [u8]| {
        let file = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
        rustix::fs::fdatasync(&file).map(|()| 0)
    };
    match asking::ask(PATIENCE, waiting(path), call) {
        Answer::None => Err(silent(operation, path)),
        Answer::Bytes(_) | Answer::Refused(_) => Ok(()),
    }
}

/// The answer of a mount to a query; `None` if it does not know the query.
pub(crate) fn question<T: DeserializeOwned>(
    operation: &str,
    path: &Path,
    question: &str,
) -> Result<Option<T>, Failure> {
    question_with(waiting(path), operation, path, question)
}

fn question_with<T: DeserializeOwned>(
    notice: impl FnOnce(),
    operation: &str,
    path: &Path,
    question: &str,
) -> Result<Option<T>, Failure> {
    let failed = |cause: String| Failure::new(operation, path.display(), cause);
    let name = as_c_string(path)?;
    let answer =
        asking::ask(PATIENCE, notice, |buffer| rustix::fs::lgetxattr(name.as_c_str(), question, buffer));
    match answer {
        Answer::Bytes(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| failed(format!("the mount's answer: {error}"))),
        Answer::Refused(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Answer::Refused(Errno::NOTCONN | Errno::CONNABORTED) => Err(ended(operation, path)),
        Answer::Refused(Errno::PERM) => Err(failed(NOT_YOURS.to_owned())),
        Answer::Refused(error) => Err(failed(error.to_string())),
        Answer::None => Err(silent(operation, path)),
    }
}

/// Begins a query for the space of a mount. Only the server can answer it, so it shows whether the server answers at
/// all.
pub(crate) fn begin_statvfs(dir: &Path) -> Result<Asked, Failure> {
    let name = as_c_string(dir)?;
    let asked = Asked::begin(|buffer| {
        let stat = rustix::fs::statvfs(name.as_c_str())?;
        let fields = [stat.f_blocks, stat.f_bfree, stat.f_bavail, stat.f_frsize, stat.f_files, stat.f_ffree];
        for (place, field) in buffer.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        Ok(8 * fields.len())
    });
    asked.map_err(|error| Failure::new("ask", dir.display(), error))
}

/// Blocks, free and available blocks, bytes of a block, inodes and free inodes, as the mount answers.
pub(crate) fn statvfs(
    operation: &str,
    asked: Asked,
    mount: &MountEntry,
    limit: Duration,
) -> Result<[u64; 6], Failure> {
    let dir = &mount.mountpoint;
    match asked.wait(limit, || {}) {
        Answer::Bytes(bytes) => {
            let mut fields = [0; 6];
            for (field, bytes) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
                *field = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
            }
            Ok(fields)
        }
        Answer::Refused(Errno::NOTCONN | Errno::CONNABORTED) => Err(ended(operation, dir)),
        Answer::Refused(error) => Err(Failure::new(operation, dir.display(), error)),
        Answer::None => Err(silent(operation, dir)),
    }
}

/// Checks that a mount answers; `None` for a dead one. The query is statvfs(2), which the kernel never answers itself.
pub(crate) fn answers(operation: &str, mount: &MountEntry) -> Result<Option<()>, Failure> {
    let dir = &mount.mountpoint;
    match begin_statvfs(dir)?.wait(PATIENCE, waiting(dir)) {
        Answer::None => Err(silent(operation, dir)),
        Answer::Refused(Errno::NOTCONN | Errno::CONNABORTED) => Ok(None),
        Answer::Bytes(_) | Answer::Refused(_) => Ok(Some(())),
    }
}
