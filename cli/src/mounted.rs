//! Finding and asking mounts of ours: which one serves a path or a device, what it says, and what it is told.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nacre_fuse::mounts::{self, FSTYPE, MountEntry};
use serde_json::Value;
use uuid::Uuid;

use crate::control::{Envelope, Order};
use crate::failure::Failure;

/// What a mount is asked about itself.
pub(crate) const INFO: &str = "system.nacre.info";
/// What a mount is told what to do by, and what it is asked for the result.
const ORDER: &str = "system.nacre.do";
const RESULT: &str = "system.nacre.done.";
/// The largest value of an extended attribute.
const XATTR_MAX: usize = 64 * 1024;

/// All mounts of ours.
pub(crate) fn all() -> Result<Vec<MountEntry>, Failure> {
    Ok(mounts::list()?.into_iter().filter(|mount| mount.fstype == FSTYPE).collect())
}

/// The mount of ours that a file or directory is on.
pub(crate) fn serving(path: &Path) -> Result<Option<MountEntry>, Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::new("look at", path.display(), error))?;
    let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    Ok(all()?.into_iter().rfind(|mount| mount.device == device))
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
    let mount = match serving(path)? {
        Some(mount) => Some(mount),
        None => of_device(path)?,
    };
    mount
        .map(|mount| mount.mountpoint)
        .ok_or_else(|| Failure::new(operation, path.display(), "it is not on a mounted nacre file system"))
}

/// Has a mount do something, with the file of this path where it is for one; gives what came of it.
pub(crate) fn order(operation: &str, path: &Path, order: Order) -> Result<Value, Failure> {
    let failed = |cause: String| Failure::new(operation, path.display(), cause);
    // It goes on for long, and is given again and again.
    let or_gone = |failure| match serving(path) {
        Ok(None) => failed("it is not mounted any more".to_owned()),
        _ => failure,
    };
    let id = Uuid::new_v4().to_string();
    let result = format!("{RESULT}{id}");
    let envelope = serde_json::to_string(&Envelope { id, order })
        .map_err(|_| failed("its name is no text that can be passed on".to_owned()))?;
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::lsetxattr(path, ORDER, envelope.as_bytes(), flags).map_err(|error| match error {
        rustix::io::Errno::PERM => failed("only root and the user that mounted it may do this".to_owned()),
        error => or_gone(failed(error.to_string())),
    })?;
    match ask(path, &result).map_err(or_gone)? {
        Value::Object(mut answer) => match answer.remove("error") {
            Some(error) => Err(Failure::named(operation, error.as_str().unwrap_or_default())),
            None => Ok(answer.remove("result").unwrap_or_default()),
        },
        other => Err(failed(format!("the mount's answer: {other}"))),
    }
}

/// What a mount answers to a question, which is the name of a virtual extended attribute.
pub(crate) fn ask(path: &Path, question: &str) -> Result<Value, Failure> {
    let failed = |cause: String| Failure::new("ask the mount", path.display(), cause);
    let mut buffer = vec![0; XATTR_MAX];
    let length =
        rustix::fs::lgetxattr(path, question, buffer.as_mut_slice()).map_err(|error| match error {
            rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => {
                failed("it does not answer".to_owned())
                    .advice("it must be a file on a mounted nacre file system")
            }
            error => failed(error.to_string()),
        })?;
    serde_json::from_slice(&buffer[..length]).map_err(|error| failed(error.to_string()))
}
