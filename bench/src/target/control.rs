//! Questions and orders to a mount of nacre, as `nacre tier list` and `nacre demote` send them: attributes that no
//! inode stores.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_control::{
    ANSWER_MAX, Command, Envelope, FilesMoved, FilesToMove, Order, Outcome, Question, TierInfo, TiersInfo,
    result_attribute,
};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::Below;

/// The tier of a mount that files are moved to; none where it is no mount of nacre.
pub(super) fn below(root: &impl AsFd) -> io::Result<Option<Below>> {
    match ask(root, Question::Tiers.attribute()) {
        Err(error) if is_no_answer(&error) => Ok(None),
        answer => {
            let TiersInfo { tiers } = answer?;
            fastest(&tiers).map(Some)
        }
    }
}

/// The tier that files are moved to.
pub(super) fn fastest(tiers: &[TierInfo]) -> io::Result<Below> {
    let tier = tiers.iter().filter(|tier| tier.is_in_use()).min_by_key(|tier| (tier.rank, tier.number));
    let none = || io::Error::new(io::ErrorKind::Unsupported, "it has no tier: give it tier=");
    let tier = tier.ok_or_else(none)?;
    Ok(Below { tier: tier.number, moved: tier.traffic.read + tier.traffic.written })
}

/// Moves all of a file, part by part; gives the number of bytes that moved.
pub(super) fn move_file(file: &impl AsFd, to: Option<u8>) -> io::Result<u64> {
    static ORDERS: AtomicU64 = AtomicU64::new(0);
    let inode = rustix::fs::fstat(file)?.st_ino;
    let (mut moved, mut next) = (0, Some(0));
    while let Some(from) = next {
        let id = format!("bench-{}-{}", std::process::id(), ORDERS.fetch_add(1, Ordering::Relaxed));
        let result = result_attribute(&id);
        let order = Envelope { id, order: Order::MoveFiles(FilesToMove { to, from, inodes: vec![inode] }) };
        let order = serde_json::to_vec(&order)?;
        rustix::fs::fsetxattr(file, Command::Order.attribute(), &order, XattrFlags::empty())?;
        let part: FilesMoved = match ask(file, &result)? {
            Outcome::Result(part) => part,
            Outcome::Error(why) => return Err(io::Error::other(why)),
        };
        if let Some((_, why)) = part.failed.into_iter().next() {
            return Err(io::Error::other(why));
        }
        moved += part.moved;
        // An answer must not lead us backwards.
        next = (part.next == 0 && part.from > from).then_some(part.from);
    }
    Ok(moved)
}

/// The value of an extended attribute.
pub(super) fn attribute(file: &impl AsFd, name: &[u8]) -> io::Result<Vec<u8>> {
    let mut value = vec![0; ANSWER_MAX];
    let length = rustix::fs::fgetxattr(file, name, value.as_mut_slice())?;
    value.truncate(length);
    Ok(value)
}

fn ask<T: DeserializeOwned>(file: &impl AsFd, question: &str) -> io::Result<T> {
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
