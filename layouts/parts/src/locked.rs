//! Inodes that are locked together for a change: in the order of their numbers, so that no two operations wait for each
//! other.

use std::sync::Arc;

use nacre_engine::sync::{RwLock, RwLockWriteGuard};
use nacre_engine::{Error, Kind, Result};
use smallvec::SmallVec;

/// An inode with a lock.
pub trait Lockable {
    /// The state that the lock guards.
    type Body;

    /// Its number.
    fn number(&self) -> u64;

    /// The lock.
    fn body(&self) -> &RwLock<Self::Body>;
}

/// Inodes that are locked for a change.
pub struct Locked<'a, I: Lockable> {
    list: SmallVec<[(u64, RwLockWriteGuard<'a, I::Body>); 4]>,
}

/// Locks inodes in the order of their numbers, each once.
pub fn lock_all<'a, I: Lockable>(inodes: &[&'a Arc<I>]) -> Locked<'a, I> {
    let lock = |inode: &&'a Arc<I>| (inode.number(), inode.body().write());
    // Mostly one, or a directory and a younger file.
    if inodes.is_sorted_by(|one, next| one.number() < next.number()) {
        return Locked { list: inodes.iter().map(lock).collect() };
    }
    let mut order: SmallVec<[&'a Arc<I>; 4]> = SmallVec::from_slice(inodes);
    order.sort_unstable_by_key(|inode| inode.number());
    order.dedup_by_key(|inode| inode.number());
    Locked { list: order.iter().map(lock).collect() }
}

/// Locks inodes as they are given, each once: a mistake that layouts make on purpose, by which two operations may wait
/// for each other.
pub fn lock_as_given<'a, I: Lockable>(inodes: &[&'a Arc<I>]) -> Locked<'a, I> {
    let mut list: SmallVec<[(u64, RwLockWriteGuard<'a, I::Body>); 4]> = SmallVec::new();
    for inode in inodes {
        if list.iter().all(|(number, _)| *number != inode.number()) {
            list.push((inode.number(), inode.body().write()));
        }
    }
    Locked { list }
}

impl<'a, I: Lockable> Locked<'a, I> {
    /// Locks one more, if its number is above those of all that are locked. False if it is not.
    pub fn lock_above(&mut self, inode: &'a Arc<I>) -> bool {
        let number = inode.number();
        if self.list.last().is_some_and(|(last, _)| *last >= number) {
            return false;
        }
        self.list.push((number, inode.body().write()));
        true
    }

    /// The state of one of them.
    pub fn body(&mut self, inode: &I) -> Result<&mut I::Body> {
        let found = self.list.iter_mut().find(|(number, _)| *number == inode.number());
        found.map(|(_, body)| &mut **body).ok_or(Error::new(Kind::InvalidInput))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::Kind;
    use nacre_engine::sync::RwLock;

    use super::{Lockable, lock_all};

    struct Numbered {
        number: u64,
        body: RwLock<u64>,
    }

    impl Lockable for Numbered {
        type Body = u64;

        fn number(&self) -> u64 {
            self.number
        }

        fn body(&self) -> &RwLock<u64> {
            &self.body
        }
    }

    fn numbered(number: u64) -> Arc<Numbered> {
        Arc::new(Numbered { number, body: RwLock::new(10 * number) })
    }

    #[test]
    fn inodes_are_locked_once_in_the_order_of_their_numbers() {
        let [one, two, three] = [1, 2, 3].map(numbered);
        for (inodes, order) in [
            (vec![&two], vec![2]),
            (vec![&one, &two, &three], vec![1, 2, 3]),
            (vec![&three, &one], vec![1, 3]),
            (vec![&two, &two], vec![2]),
            (vec![&one, &three, &three, &two], vec![1, 2, 3]),
        ] {
            let mut locked = lock_all(&inodes);
            assert_eq!(locked.list.iter().map(|(number, _)| *number).collect::<Vec<_>>(), order);
            for inode in [&one, &two, &three] {
                let is_locked = order.contains(&inode.number);
                assert_eq!(inode.body.try_write().is_none(), is_locked, "{order:?}");
                let body = locked.body(inode).map(|body| *body).map_err(|error| error.kind());
                assert_eq!(body, if is_locked { Ok(10 * inode.number) } else { Err(Kind::InvalidInput) });
            }
        }
        assert!([&one, &two, &three].iter().all(|inode| inode.body.try_write().is_some()));
    }

    #[test]
    fn one_more_is_locked_if_it_is_above_the_others() {
        let [one, two, three] = [1, 2, 3].map(numbered);
        let mut locked = lock_all(&[&two]);
        assert!(!locked.lock_above(&one) && !locked.lock_above(&two));
        assert!(one.body.try_write().is_some());
        assert!(locked.lock_above(&three));
        assert!(three.body.try_write().is_none() && !locked.lock_above(&three));
        assert_eq!([&two, &three].map(|inode| *locked.body(inode).unwrap()), [20, 30]);
    }
}
