//! The attributes of an inode in DRAM, read without a lock.
//!
//! Every step along a path and every stat reads them, from several threads at once; a lock there would be written by
//! each reader. So they are words behind a version, which is odd while a writer changes them: a reader copies the words
//! and looks whether the version is still the same.

use std::ops::{Deref, DerefMut};

use nacre_engine::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use nacre_engine::sync::{EXPLORED, Mutex, MutexGuard, hint};
use nacre_engine::{SetAttr, TimeRange, Timestamp};

/// The attributes that are changed together, without the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Permission bits with set-id and sticky bits (07777).
    pub mode: u16,
    /// Policy bits, for tiers and the cache.
    pub policy: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Flags of the inode ([`nacre_engine::Attr::IMMUTABLE`] and others).
    pub flags: u32,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
}

impl Attributes {
    /// These after a change at a time. With `sized` the size changes, too.
    #[must_use]
    pub fn after(self, change: &SetAttr, now: Timestamp, sized: bool) -> Attributes {
        let mtime = if sized { now } else { self.mtime };
        Attributes {
            mode: change.mode.map_or(self.mode, |mode| (mode & 0o7777) as u16),
            uid: change.uid.unwrap_or(self.uid),
            gid: change.gid.unwrap_or(self.gid),
            flags: change.flags.unwrap_or(self.flags),
            atime: change.atime.unwrap_or(self.atime),
            mtime: change.mtime.unwrap_or(mtime),
            ctime: now,
            ..self
        }
    }

    /// These after writeback of times that were accepted before: ctime does not go back.
    #[must_use]
    pub fn written_back(self, mtime: Timestamp, atime: Option<Timestamp>, now: Timestamp) -> Attributes {
        Attributes { mtime, atime: atime.unwrap_or(self.atime), ctime: now.max(self.ctime), ..self }
    }

    fn to_words(self, times: TimeRange) -> [u64; WORDS] {
        [
            u64::from(self.mode) | u64::from(self.policy) << 16 | u64::from(self.uid) << 32,
            u64::from(self.gid) | u64::from(self.flags) << 32,
            times.pack(self.atime),
            times.pack(self.mtime),
            times.pack(self.ctime),
        ]
    }

    fn from_words(words: [u64; WORDS], times: TimeRange) -> Attributes {
        let unpack = |word| times.unpack_own(word);
        Attributes {
            mode: words[0] as u16,
            policy: (words[0] >> 16) as u16,
            uid: (words[0] >> 32) as u32,
            gid: words[1] as u32,
            flags: (words[1] >> 32) as u32,
            atime: unpack(words[2]),
            mtime: unpack(words[3]),
            ctime: unpack(words[4]),
        }
    }
}

const WORDS: usize = 5;
/// Turns after which a reader waits for the writer.
const OPTIMISTIC_READS: usize = if EXPLORED { 2 } else { 64 };

/// The attributes of one inode.
pub struct AttributeCell {
    version: AtomicU32,
    /// How times are packed in the words: as on media.
    times: TimeRange,
    writer: Mutex<()>,
    words: [AtomicU64; WORDS],
}

/// The right to change them; changes are visible when it is dropped.
pub struct AttributeGuard<'a> {
    cell: &'a AttributeCell,
    before: Attributes,
    now: Attributes,
    _writer: MutexGuard<'a, ()>,
}

impl AttributeCell {
    /// A cell with these attributes; `times` is the range of times in the format of the inode.
    pub fn new(attributes: Attributes, times: TimeRange) -> AttributeCell {
        let words = attributes.to_words(times).map(AtomicU64::new);
        AttributeCell { version: AtomicU32::new(0), times, writer: Mutex::new(()), words }
    }

    /// The times that the inode's format holds.
    pub fn times(&self) -> TimeRange {
        self.times
    }

    /// All of them, as they were at one moment.
    #[inline]
    pub fn get(&self) -> Attributes {
        for _ in 0..OPTIMISTIC_READS {
            let version = self.version.load(Ordering::Acquire);
            let words = self.load();
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return Attributes::from_words(words, self.times);
            }
            hint::spin_loop();
        }
        let _writer = self.writer.lock();
        Attributes::from_words(self.load(), self.times)
    }

    /// Locks them for a change.
    pub fn lock(&self) -> AttributeGuard<'_> {
        let writer = self.writer.lock();
        let before = Attributes::from_words(self.load(), self.times);
        AttributeGuard { cell: self, before, now: before, _writer: writer }
    }

    /// Sets mtime and ctime.
    pub fn touch(&self, now: Timestamp) {
        let _writer = self.writer.lock();
        let word = self.times.pack(now);
        self.change(|words| {
            words[3].store(word, Ordering::Relaxed);
            words[4].store(word, Ordering::Relaxed);
        });
    }

    /// Sets ctime.
    pub fn touch_ctime(&self, now: Timestamp) {
        let _writer = self.writer.lock();
        let word = self.times.pack(now);
        self.change(|words| words[4].store(word, Ordering::Relaxed));
    }

    #[inline]
    fn load(&self) -> [u64; WORDS] {
        self.words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Under the writer's lock.
    fn change(&self, change: impl FnOnce(&[AtomicU64; WORDS])) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change(&self.words);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

impl Deref for AttributeGuard<'_> {
    type Target = Attributes;

    fn deref(&self) -> &Attributes {
        &self.now
    }
}

impl DerefMut for AttributeGuard<'_> {
    fn deref_mut(&mut self) -> &mut Attributes {
        &mut self.now
    }
}

impl Drop for AttributeGuard<'_> {
    fn drop(&mut self) {
        if self.now != self.before {
            let words = self.now.to_words(self.cell.times);
            self.cell.change(|cell| {
                for (word, value) in cell.iter().zip(words) {
                    word.store(value, Ordering::Relaxed);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AttributeCell, Attributes};
    use nacre_engine::{TimeRange, Timestamp};

    fn sample(value: u32) -> Attributes {
        let time = Timestamp::new(i64::from(value), value);
        Attributes {
            mode: value as u16 & 0o7777,
            policy: value as u16,
            uid: value,
            gid: value ^ u32::MAX,
            flags: value,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    #[test]
    fn what_was_set_is_read() {
        let cell = AttributeCell::new(sample(1), TimeRange::default());
        assert_eq!(cell.get(), sample(1));
        *cell.lock() = sample(77);
        assert_eq!(cell.get(), sample(77));
        cell.touch(Timestamp::new(-5, 9));
        let time = Timestamp::new(-5, 9);
        assert_eq!(cell.get(), Attributes { mtime: time, ctime: time, ..sample(77) });
        let later = Timestamp::new(6, 8);
        cell.touch_ctime(later);
        assert_eq!(cell.get(), Attributes { mtime: time, ctime: later, ..sample(77) });
    }

    /// Readers never see a mixture of two changes.
    #[test]
    fn readers_see_one_change_or_the_other() {
        let cell = AttributeCell::new(sample(0), TimeRange::default());
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let cell = &cell;
                scope.spawn(move || (0..20_000).for_each(|turn| *cell.lock() = sample(turn * 2 + writer)));
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let seen = cell.get();
                        assert_eq!(seen, sample(seen.uid));
                    }
                });
            }
        });
    }
}

#[cfg(all(test, nacre_loom))]
mod interleavings {
    use std::sync::Arc;

    use nacre_engine::sync::{Weakening, explore, fails_without, thread};
    use nacre_engine::{TimeRange, Timestamp};

    use super::{AttributeCell, Attributes};

    /// A reader beside a writer, who changes two words.
    fn read_beside_a_writer() {
        explore(3, || {
            let cell = Arc::new(AttributeCell::new(Attributes::default(), TimeRange::default()));
            let now = Timestamp::new(7, 7);
            let writer = thread::spawn({
                let cell = Arc::clone(&cell);
                move || cell.touch(now)
            });
            let seen = cell.get();
            assert_eq!(seen.mtime, seen.ctime, "parts of two changes");
            writer.join().unwrap();
            assert_eq!(cell.get().mtime, now);
        });
    }

    /// Two writers, each of whom changes what the other one has left.
    #[test]
    fn no_change_is_lost() {
        explore(3, || {
            let cell = Arc::new(AttributeCell::new(Attributes::default(), TimeRange::default()));
            let writer = thread::spawn({
                let cell = Arc::clone(&cell);
                move || cell.lock().uid += 1
            });
            cell.lock().uid += 1;
            writer.join().unwrap();
            assert_eq!(cell.get().uid, 2);
        });
    }

    #[test]
    fn readers_see_one_change_or_the_other_in_all_interleavings() {
        read_beside_a_writer();
    }

    #[test]
    fn each_order_of_the_cell_is_needed() {
        for order in [
            Weakening::AcquireLoads,
            Weakening::ReleaseStores,
            Weakening::AcquireFences,
            Weakening::ReleaseFences,
        ] {
            assert!(fails_without(order, read_beside_a_writer), "nothing shows without {order:?}");
        }
    }
}
