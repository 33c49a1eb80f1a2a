//! Finding and asking mounts of ours: which one serves a path or a device, and what it says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nacre_fuse::mounts::{self, FSTYPE, MountEntry};
use serde_json::Value;

use crate::failure::Failure;

/// What a mount is asked about itself.
pub(crate) const INFO: &str = "system.nacre.info";
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

/// What a mount answers to a question, which is the name of a virtual extended attribute.
pub(crate) fn ask(path: &Path, question: &str) -> Result<Value, Failure> {
    let failed = |cause: String| Failure::new("ask the mount", path.display(), cause);
    let mut buffer = vec![0; XATTR_MAX];
    let length =
        rustix::fs::getxattr(path, question, buffer.as_mut_slice()).map_err(|error| match error {
            rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => {
                failed("it does not answer".to_owned())
                    .advice("it must be a file on a mounted nacre file system")
            }
            error => failed(error.to_string()),
        })?;
    serde_json::from_slice(&buffer[..length]).map_err(|error| failed(error.to_string()))
}
