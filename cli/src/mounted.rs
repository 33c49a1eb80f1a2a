//! Finding and asking mounts of ours: which one serves a path or a device, what it says, and what it is told.
//!
//! A mount whose server hangs is not waited for without end: calls that ask one are made by [`asking`](crate::asking).

use std::ffi::CString;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nacre_fuse::mounts::{self, FSTYPE, MountEntry};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use serde_json::Value;
use uuid::Uuid;

use crate::asking::{self, Answer, Asked};
use crate::control::{Envelope, Order};
use crate::failure::Failure;
use crate::names::Names;
use crate::servers::Server;

/// What a mount is asked about itself.
pub(crate) const INFO: &str = "system.nacre.info";
/// What a mount is told what to do by, and what it is asked for the result.
const ORDER: &str = "system.nacre.do";
const RESULT: &str = "system.nacre.done.";
/// How long a question may take that a mount answers without waiting for a device.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a server that is at work may take for a question beside it.
const PROBE: Duration = Duration::from_millis(500);
/// How long an order may take: some wait for disks, which may be slow.
const ORDER_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// All mounts of ours.
pub(crate) fn all() -> Result<Vec<MountEntry>, Failure> {
    Ok(mounts::list()?.into_iter().filter(|mount| mount.fstype == FSTYPE).collect())
}

/// The mount of ours that a file or directory is on.
pub(crate) fn serving(operation: &str, path: &Path) -> Result<Option<MountEntry>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(operation, path.display(), error);
    // Its own directory is found in the table, also when nothing answers there.
    let absolute = std::path::absolute(path).map_err(|error| failed(&error))?;
    let mounts = mounts::list()?;
    if let Some(mount) = mounts.iter().rfind(|mount| mount.mountpoint == absolute) {
        if mount.fstype != FSTYPE {
            return Ok(None);
        }
        // The next question would wait without end for a mount that hangs.
        return answers(operation, mount)?
            .map(|()| Some(mount.clone()))
            .ok_or_else(|| ended(operation, path));
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
        .map_err(|_| Failure::new("look at", path.display(), "there is a NUL in its name"))
}

/// The mount that a path is on by its name, without a look at it.
fn by_name(path: &Path) -> Option<MountEntry> {
    let path = std::path::absolute(path).ok()?;
    let above = |mount: &MountEntry| path.starts_with(&mount.mountpoint);
    let mount =
        mounts::list().ok()?.into_iter().filter(above).max_by_key(|mount| mount.mountpoint.as_os_str().len());
    mount.filter(|mount| mount.fstype == FSTYPE)
}

/// Tells a person what is waited for.
fn waiting(path: &Path) -> impl FnOnce() {
    let path = path.to_owned();
    move || {
        let silence = by_name(&path).map_or_else(|| "it does not answer".to_owned(), |mount| silence(&mount));
        eprintln!("nacre: {}: waiting: {silence}", path.display());
    }
}

/// Tells a person of a server that hangs; one that does what it was told takes its time, of which a terminal is told.
fn working(path: &Path) -> impl FnOnce() {
    let path = path.to_owned();
    move || {
        let answers = by_name(&path).is_some_and(|mount| {
            begin_statvfs(&mount.mountpoint).is_ok_and(|asked| asked.wait(PROBE, || {}) != Answer::None)
        });
        if !answers {
            waiting(&path)();
        } else if io::stderr().is_terminal() {
            eprintln!("nacre: {}: waiting: its server is at work", path.display());
        }
    }
}

/// Why a mount does not answer.
fn silence(mount: &MountEntry) -> String {
    Server::of(Path::new(&mount.source)).silence()
}

/// The failure of a question that was not answered in time.
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

/// The failure of a question to a mount whose server is gone.
pub(crate) fn ended(operation: &str, path: &Path) -> Failure {
    let dir = by_name(path).map_or_else(|| path.to_owned(), |mount| mount.mountpoint);
    Failure::new(operation, path.display(), "its server has ended")
        .advice(&format!("nacre umount {} clears it away, and the next mount recovers it", dir.display()))
}

/// The mount of ours of a device.
pub(crate) fn of_device(device: &Path) -> Result<Option<MountEntry>, Failure> {
    let same = |a: &Path, b: &Path| match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.ino() == b.ino() && a.dev() == b.dev(),
        _ => a == b,
    };
    Ok(all()?.into_iter().rfind(|mount| same(&PathBuf::from(&mount.source), device)))
}

/// The place in the tree of the mount that serves a path or a device.
pub(crate) fn mountpoint(operation: &str, path: &Path) -> Result<PathBuf, Failure> {
    let mount = match serving(operation, path)? {
        Some(mount) => Some(mount),
        None => of_device(path)?,
    };
    mount.map(|mount| mount.mountpoint).ok_or_else(|| {
        is_not_ours(operation, path)
            .advice("give a path on one, or the device of one; nacre df lists those that are mounted")
    })
}

/// The failure of a command on a path that no mount of ours serves.
pub(crate) fn is_not_ours(operation: &str, path: &Path) -> Failure {
    Failure::new(operation, path.display(), "it is not on a mounted nacre file system")
}

/// Has a mount do something, with the file of this path where it is for one; gives what came of it.
pub(crate) fn order(operation: &str, path: &Path, order: Order) -> Result<Value, Failure> {
    order_within(operation, path, order, ORDER_PATIENCE, working(path))
}

/// The same, where it is not waited for as long, with words of its own after a second.
pub(crate) fn order_within(
    operation: &str,
    path: &Path,
    order: Order,
    limit: Duration,
    notice: impl FnOnce(),
) -> Result<Value, Failure> {
    let failed = |cause: String| Failure::new(operation, path.display(), cause);
    // It goes on for long, and is given again and again.
    let or_gone = |failure| match serving(operation, path) {
        Ok(None) => failed("it is not mounted any more".to_owned()),
        _ => failure,
    };
    let id = Uuid::new_v4().to_string();
    let result = format!("{RESULT}{id}");
    let envelope = serde_json::to_string(&Envelope { id, order })
        .map_err(|_| failed("its name is no text that can be passed on".to_owned()))?;
    let name = as_c_string(path)?;
    let told = asking::ask(limit, notice, |_| {
        rustix::fs::lsetxattr(name.as_c_str(), ORDER, envelope.as_bytes(), XattrFlags::empty()).map(|()| 0)
    });
    match told {
        Answer::Bytes(_) => {}
        Answer::Refused(Errno::PERM) => {
            return Err(failed("only root and the user that mounted it may do this".to_owned()));
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
        Value::Object(mut answer) => match answer.remove("error") {
            Some(error) => {
                Err(Failure::named(operation, with_names(path, error.as_str().unwrap_or_default())))
            }
            None => Ok(answer.remove("result").unwrap_or_default()),
        },
        other => Err(failed(format!("the mount's answer: {other}"))),
    }
}

/// The words of a mount, in which it knows files by their numbers only.
fn with_names(path: &Path, said: &str) -> String {
    by_name(path).map_or_else(|| said.to_owned(), |mount| Names::of(&mount.mountpoint).put_paths_into(said))
}

/// The answer of a mount to a question, which is the name of a virtual extended attribute, for an operation that fails without
/// the answer.
pub(crate) fn ask(operation: &str, path: &Path, question: &str) -> Result<Value, Failure> {
    let failed = |cause: &str| Failure::new(operation, path.display(), cause);
    question_with(waiting(path), operation, path, question)?.ok_or_else(|| {
        failed("it does not answer").advice("it must be a file on a mounted nacre file system")
    })
}

/// The same without words while it is waited for.
pub(crate) fn ask_silently(operation: &str, path: &Path, question: &str) -> Result<Option<Value>, Failure> {
    question_with(|| {}, operation, path, question)
}

/// Has the kernel write what it holds of a file and its server does not know of: pages of mappings, with `writeback` others, too.
/// A file that this user may not read is left as it is.
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

/// The answer of a mount; none to a question that it does not know.
pub(crate) fn question(operation: &str, path: &Path, question: &str) -> Result<Option<Value>, Failure> {
    question_with(waiting(path), operation, path, question)
}

fn question_with(
    notice: impl FnOnce(),
    operation: &str,
    path: &Path,
    question: &str,
) -> Result<Option<Value>, Failure> {
    let failed = |cause: String| Failure::new(operation, path.display(), cause);
    let name = as_c_string(path)?;
    let answer =
        asking::ask(PATIENCE, notice, |buffer| rustix::fs::lgetxattr(name.as_c_str(), question, buffer));
    match answer {
        // An answer may be that there is nothing to say, which is `null`.
        Answer::Bytes(bytes) => serde_json::from_slice::<Value>(&bytes)
            .map(Some)
            .map_err(|error| failed(format!("the mount's answer: {error}"))),
        Answer::Refused(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Answer::Refused(Errno::NOTCONN | Errno::CONNABORTED) => Err(ended(operation, path)),
        Answer::Refused(error) => Err(failed(error.to_string())),
        Answer::None => Err(silent(operation, path)),
    }
}

/// Asks a mount for its space, which it alone knows: a question that shows whether it answers at all.
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
    asked.map_err(|error| Failure::new("look at", dir.display(), error))
}

/// Blocks, free and available ones, bytes of a block, inodes and free inodes, as the mount answers.
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

/// Whether a mount answers: none for a dead one. The question is statvfs(2), which the kernel never answers itself.
pub(crate) fn answers(operation: &str, mount: &MountEntry) -> Result<Option<()>, Failure> {
    let dir = &mount.mountpoint;
    match begin_statvfs(dir)?.wait(PATIENCE, waiting(dir)) {
        Answer::None => Err(silent(operation, dir)),
        Answer::Refused(Errno::NOTCONN | Errno::CONNABORTED) => Ok(None),
        Answer::Bytes(_) | Answer::Refused(_) => Ok(Some(())),
    }
}
