//! The table of cases.

mod attributes;
mod content;
mod directories;
mod full;
mod load;
mod names;
mod opening;
mod rename;
mod rights;
mod sparse;
mod threads;
mod xattrs;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::fs::{Fs, View};
use super::runner::Case;
use super::target::{Need, Stat, User};

/// Every case, in the order in which they run.
pub fn all_cases() -> Vec<Case> {
    [
        opening::CASES,
        names::CASES,
        rename::CASES,
        directories::CASES,
        content::CASES,
        sparse::CASES,
        attributes::CASES,
        rights::CASES,
        xattrs::CASES,
        threads::CASES,
        load::CASES,
        full::CASES,
    ]
    .into_iter()
    .flatten()
    .map(|case| Case { ..*case })
    .collect()
}

const fn case(name: &'static str, needs: &'static [Need], run: fn(&mut Fs<'_>)) -> Case {
    Case { name, needs, run }
}

/// Users and groups that own nothing else.
const ALICE: User<'static> = User { uid: 4001, gid: 4001, groups: &[] };
const BOB: User<'static> = User { uid: 4002, gid: 4002, groups: &[] };
const CAROL: User<'static> = User { uid: 4003, gid: 4003, groups: &[4001, 4009] };

/// Waits until the coarse clock, which inodes are stamped with, has moved past any stamp that was given so far. The
/// clock itself is asked, because the time depends on when the kernel or its hypervisor counts ticks.
fn tick() {
    let past = clock_gettime(ClockId::Realtime);
    while clock_gettime(ClockId::RealtimeCoarse) <= past {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs an operation and checks which of an inode's times it changed: the letters `m` and `c`.
fn assert_times(fs: View<'_>, path: &str, changes: &str, operation: impl FnOnce()) {
    let before = fs.stat(path);
    tick();
    operation();
    assert_times_since(&before, &fs.stat(path), path, changes);
}

/// Checks which times differ.
fn assert_times_since(before: &Stat, after: &Stat, path: &str, changes: &str) {
    for (letter, old, new) in [('m', before.mtime, after.mtime), ('c', before.ctime, after.ctime)] {
        if changes.contains(letter) {
            assert!(new > old, "{letter}time of {path} did not move on: {old:?}, {new:?}");
        } else {
            assert_eq!(new, old, "{letter}time of {path} moved");
        }
    }
}
