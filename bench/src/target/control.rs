//! Questions and orders to a mount of nacre, as `nacre tier list` and `nacre demote` send them: attributes that no
//! inode stores.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::{Value, json};

use super::Below;

/// The attribute that lists its tiers.
const TIERS: &str = "system.nacre.tiers";
/// The attribute for orders, and the prefix of the one for their results.
const ORDER: &str = "system.nacre.do";
const RESULT: &str = "system.nacre.done.";
/// The largest value of an extended attribute.
const ATTRIBUTE_MAX: usize = 64 << 10;

/// The order to move a file, by the number of its inode, to a tier or up to PM, from a block on, under a name of its
/// own. A test of the command compares this with the format that mounts read.
pub fn move_file_order(id: &str, inode: u64, to: Option<u8>, from: u64) -> String {
    let order = json!({ "move_files": { "to": to, "from": from, "inodes": [inode] } });
    json!({ "id": id, "order": order }).to_string()
}

/// The tier of a mount that files are moved to; none where it is no mount of nacre.
pub(super) fn below(root: &impl AsFd) -> io::Result<Option<Below>> {
    let answer = match ask(root, TIERS) {
        Err(error) if is_no_answer(&error) => return Ok(None),
        answer => answer?,
    };
    fastest(&answer["tiers"])
        .map(Some)
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "it has no tier: give it tier="))
}

/// Of tiers as a mount lists them, the one that files are moved to.
pub(super) fn fastest(tiers: &Value) -> Option<Below> {
    let number = |tier: &Value, name: &str| tier[name].as_u64().unwrap_or_default();
    let is_usable =
        |tier: &&Value| tier["draining"] == false && tier["missing"].is_null() && tier["failing"].is_null();
    let usable = tiers.as_array()?.iter().filter(is_usable);
    let tier = usable.min_by_key(|tier| (number(tier, "rank"), number(tier, "number")))?;
    let moved = number(tier, "read") + number(tier, "written");
    Some(Below { tier: u8::try_from(number(tier, "number")).ok()?, moved })
}

/// Moves all of a file, part by part; gives the number of bytes that moved.
pub(super) fn move_file(file: &impl AsFd, to: Option<u8>) -> io::Result<u64> {
    static ORDERS: AtomicU64 = AtomicU64::new(0);
    let inode = rustix::fs::fstat(file)?.st_ino;
    let (mut moved, mut next) = (0, Some(0));
    while let Some(from) = next {
        let id = format!("bench-{}-{}", std::process::id(), ORDERS.fetch_add(1, Ordering::Relaxed));
        let order = move_file_order(&id, inode, to, from);
        rustix::fs::fsetxattr(file, ORDER, order.as_bytes(), XattrFlags::empty())?;
        let answer = ask(file, &format!("{RESULT}{id}"))?;
        let part = &answer["result"];
        if let Some(why) = answer["error"].as_str().or(part["failed"][0][1].as_str()) {
            return Err(io::Error::other(why));
        }
        let (Some(bytes), Some(done)) = (part["moved"].as_u64(), part["next"].as_u64()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the mount's answer: {answer}")));
        };
        moved += bytes;
        // An answer must not lead us backwards.
        next = part["from"].as_u64().filter(|next| done == 0 && *next > from);
    }
    Ok(moved)
}

/// The value of an extended attribute.
pub(super) fn attribute(file: &impl AsFd, name: &[u8]) -> io::Result<Vec<u8>> {
    let mut value = vec![0; ATTRIBUTE_MAX];
    let length = rustix::fs::fgetxattr(file, name, value.as_mut_slice())?;
    value.truncate(length);
    Ok(value)
}

fn ask(file: &impl AsFd, question: &str) -> io::Result<Value> {
    let answer = attribute(file, question.as_bytes())?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Whether an error is that of a file system that knows no such questions.
fn is_no_answer(error: &io::Error) -> bool {
    [Errno::NODATA, Errno::OPNOTSUPP].iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use crate::target::Target;
    use crate::target::directory::Directory;

    #[test]
    fn what_is_no_mount_of_nacre_has_no_tiers_and_moves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "text").unwrap();
        let target = Directory::open(dir.path()).unwrap();
        assert_eq!(target.below().unwrap(), None);
        assert!(target.move_file("file".as_ref(), Some(1)).is_err());
        assert!(target.move_file("file".as_ref(), None).is_err());
    }
}
