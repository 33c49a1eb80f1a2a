//! The mover worked at any time of the day: who wanted it to work at night only had to pause and resume it from outside, and
//! again after each mount. It knows hours now.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Data, Durability, FileKind, Names, NewInode, Timestamp, WriteAt, XattrMode};
use nacre_layout_parts::lifecycle::{MkfsOptions, MountOptions};
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_mover::{Budget, MoverOptions, Phase, TIER, TieredFs};
use uuid::Uuid;

use crate::batches::machine::{Layout, Node};

type Fs<L> = TieredFs<L, SimDisk>;

const FILE: usize = 64 << 10;
/// 2023-11-15 0:00 UTC.
const MIDNIGHT_MS: u64 = 1_700_006_400_000;
const HOUR_MS: u64 = 3_600_000;

fn options(hours: &str) -> MoverOptions {
    MoverOptions { balance: false, hours: hours.parse().expect("hours"), ..MoverOptions::default() }
}

/// Local time is an hour ahead of UTC.
fn machine<L: Layout>(hours: &str) -> Fs<L> {
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[64 << 20]));
    L::mkfs(&memory, &MkfsOptions::default()).expect("mkfs");
    let layout = L::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    let fs = Fs::<L>::new(layout, options(hours)).with_local_time(|_| 3600);
    let now = Timestamp::new(1_700_000_000, 0);
    fs.add(SimDisk::of(&memory, 0), Uuid::from_u128(7), 1, 1, now).expect("a tier");
    fs
}

fn put<L: Layout>(fs: &Fs<L>, number: usize) -> Node<L> {
    let now = Timestamp::new(1_699_000_000 + number as i64, 0);
    let (kind, mode) = (FileKind::Regular, 0o644);
    let new = NewInode { kind, mode, uid: 0, gid: 0, rdev: 0, now, xattrs: &[], target: &[] };
    let node = fs.create(&fs.root(), number.to_string().as_bytes(), &new).expect("create");
    let bytes = vec![number as u8; FILE];
    fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, now).expect("room");
    node
}

/// Files of which more are in memory than are to be.
fn fill<L: Layout>(fs: &Fs<L>) -> Vec<Node<L>> {
    let mut files = Vec::new();
    while fs.usage() < 80.0 {
        files.push(put(fs, files.len()));
    }
    files
}

fn keep<L: Layout>(fs: &Fs<L>, hour: u64) -> u64 {
    fs.tick(MIDNIGHT_MS + hour * HOUR_MS, &Budget::default()).expect("it keeps")
}

fn blocks_move_by_themselves_in_its_hours_only<L: Layout>() {
    let fs = machine::<L>("22:00-06:00");
    let files = fill(&fs);
    // 6:00 to 21:00 in local time.
    for hour in 5..=20 {
        assert_eq!(keep(&fs, hour), 0, "{hour}");
        let status = fs.status();
        assert_eq!((status.phase, status.is_idle, status.paused), (Phase::OutsideHours, true, false));
        let next = status.next_window.expect("it begins again");
        assert_eq!((next.at_ms, next.minute.to_string()), (MIDNIGHT_MS + 21 * HOUR_MS, "22:00".to_owned()));
    }
    assert!(keep(&fs, 21) > 0 && fs.usage() <= fs.threshold(), "{} %", fs.usage());
    let status = fs.status();
    assert_eq!((status.phase, status.next_window), (Phase::BelowThreshold, None));
    drop(files);
}

fn hours_that_change_count_at_once<L: Layout>() {
    let fs = machine::<L>("always");
    let files = fill(&fs);
    fs.change(&options("22:00-06:00"));
    assert_eq!(keep(&fs, 12), 0);
    assert_eq!(fs.status().phase, Phase::OutsideHours);
    fs.change(&options("always"));
    assert_eq!((fs.status().phase, fs.status().next_window), (Phase::Beginning, None));
    assert!(!fs.status().is_idle && keep(&fs, 12) > 0);
    drop(files);
}

fn nobody_who_needs_space_waits_for_its_hours_and_no_order_does<L: Layout>() {
    let fs = machine::<L>("22:00-06:00");
    let mut files = fill(&fs);
    assert_eq!((keep(&fs, 12), fs.status().moved), (0, 0));
    // More than memory has.
    for number in files.len()..files.len() + 200 {
        files.push(put(&fs, number));
    }
    assert!(fs.status().moved > 0 && fs.status().phase == Phase::OutsideHours);
    let last = files.last().expect("a file");
    let set = fs.set_xattr(last, TIER, b"1", XattrMode::Set, None, Timestamp::new(1_700_000_000, 0));
    set.expect("an order");
    assert_eq!(fs.status().phase, Phase::Beginning, "no hours keep it");
    assert_eq!(keep(&fs, 12), FILE as u64 / BLOCK_SIZE);
    assert_eq!(fs.get_xattr(last, TIER).expect("where it is"), b"1");
    drop(files);
}

/// What a mount is told of the limit it has from the beginning.
fn the_limit_is_one_of_the_options<L: Layout>() {
    let rate = Some(FILE as u64);
    let limited = MoverOptions { rate, ..options("always") };
    let fs = machine::<L>("always");
    let files = fill(&fs);
    fs.change(&limited);
    assert_eq!(fs.status().rate, rate);
    assert_eq!(keep(&fs, 12), FILE as u64 / BLOCK_SIZE);
    fs.change(&options("always"));
    assert_eq!(fs.status().rate, None);
    drop(files);
    let memory = Arc::new(SimPm::with_disks(16 << 20, &[]));
    L::mkfs(&memory, &MkfsOptions::default()).expect("mkfs");
    let layout = L::mount(Arc::clone(&memory), &MountOptions::default()).expect("mount");
    assert_eq!(Fs::<L>::new(layout, limited).status().rate, rate);
}

over_each_layout!(
    blocks_move_by_themselves_in_its_hours_only,
    hours_that_change_count_at_once,
    nobody_who_needs_space_waits_for_its_hours_and_no_order_does,
    the_limit_is_one_of_the_options,
);
