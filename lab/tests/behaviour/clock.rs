//! A clock that goes backwards. Order on media comes from sequence numbers and from the journal, and in the write buffer
//! from a clock that never goes back; so nothing depends on the times of operations but the times of files.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_cache::{CacheFs, CacheOptions, Settings};
use nacre_engine::{
    Data, Durability, FallocateMode, FileKind, Names, NewInode, RenameMode, SetAttr, Timestamp, WriteAt,
    XattrMode,
};
use nacre_lab::crash::{Inplace, Log, Mounting, Pool, Shadow, Subject};
use nacre_media::SimPm;

const SIZE: u64 = 32 << 20;
const ROUNDS: i64 = 300;
const MOUNTING: Mounting = Mounting { lanes: 1, background: false, volume: None };

/// How it is mounted: a layout, with a write buffer or without.
trait Stack {
    type Fs: Data;

    fn mount(&self, pm: &Arc<SimPm>) -> Self::Fs;
    fn unmount(&self, fs: Self::Fs);
    /// Synchronises everything and lets go of it, as when its process dies then.
    fn die(&self, fs: Self::Fs);
}

struct Bare<L>(L);

impl<L: Subject> Stack for Bare<L> {
    type Fs = L::Fs;

    fn mount(&self, pm: &Arc<SimPm>) -> L::Fs {
        self.0.mount(pm, MOUNTING).expect("mount")
    }

    fn unmount(&self, fs: L::Fs) {
        self.0.unmount(fs).expect("unmount");
    }

    fn die(&self, fs: L::Fs) {
        self.0.abandon(fs);
    }
}

struct Buffered<L>(L, CacheOptions);

impl<L: Subject<Fs: 'static>> Stack for Buffered<L> {
    type Fs = CacheFs<L::Fs>;

    fn mount(&self, pm: &Arc<SimPm>) -> CacheFs<L::Fs> {
        CacheFs::new(self.0.mount(pm, MOUNTING).expect("mount"), &self.1).expect("a write buffer")
    }

    fn unmount(&self, fs: CacheFs<L::Fs>) {
        let (below, flushed) = fs.unmount();
        flushed.expect("everything is written");
        self.0.unmount(below).expect("unmount");
    }

    fn die(&self, fs: CacheFs<L::Fs>) {
        fs.sync_all().expect("sync");
        let (below, _) = fs.unmount();
        self.0.abandon(below);
    }
}

/// Where the clock stands in a round: it goes an hour on each time, or an hour back.
#[derive(Clone, Copy)]
struct Times(i64);

impl Times {
    const FORWARD: Times = Times(3600);
    const BACKWARD: Times = Times(-3600);

    fn at(self, round: i64) -> Timestamp {
        Timestamp::new(1_700_000_000 + round * self.0, 7)
    }
}

fn new(kind: FileKind, now: Timestamp) -> NewInode<'static> {
    NewInode::of_root(kind, 0o644, now)
}

/// Changes of all kinds, each round at the time of its own.
fn work<F: Data>(fs: &F, times: Times) {
    let root = fs.root();
    let file = |name: &[u8]| fs.create(&root, name, &new(FileKind::Regular, times.at(0))).expect("create");
    let (written, grown) = (file(b"written"), file(b"grown"));
    let mut change = fs.getattr(&written).expect("attributes").change;
    for round in 0..ROUNDS {
        let now = times.at(round);
        let bytes = [round as u8; 5000];
        let how = if round % 5 == 0 { Durability::Now } else { Durability::Lazy };
        let at = WriteAt::Offset((round % 7) as u64 * 3000);
        fs.write(&written, at, &[IoSlice::new(&bytes)], how, now).expect("write");
        let attr = fs.getattr(&written).expect("attributes");
        assert_eq!(attr.mtime, now, "round {round}");
        assert!(attr.change > change, "round {round}: the change counter is no clock");
        change = attr.change;
        fs.write(&grown, WriteAt::End, &[IoSlice::new(&bytes[..700])], Durability::Lazy, now)
            .expect("append");
        fs.read(&written, 0, &mut [0; 100], Some(now)).expect("read");
        let name = |prefix: &str, round: i64| format!("{prefix}-{round}").into_bytes();
        let made = fs.create(&root, &name("new", round), &new(FileKind::Regular, now)).expect("create");
        fs.write(&made, WriteAt::End, &[IoSlice::new(&bytes)], Durability::Lazy, now).expect("write");
        let (from, to) = (name("new", round), name("old", round));
        fs.rename(&root, &from, &root, &to, RenameMode::Replace, now).expect("rename");
        if round >= 10 {
            fs.unlink(&root, &name("old", round - 10), now).expect("unlink");
        }
        match round % 10 {
            0 => {
                let cut = SetAttr { size: Some(9000), ..SetAttr::default() };
                assert_eq!(fs.setattr(&grown, &cut, now).expect("truncate").mtime, now);
            }
            3 => fs.fallocate(&grown, FallocateMode::PunchHole, 100, 6000, now).expect("punch"),
            5 => fs
                .set_xattr(&grown, b"user.round", &bytes[..20], XattrMode::Set, None, now)
                .expect("an attribute"),
            7 => fs.sync(&written).expect("sync"),
            _ => {}
        }
    }
}

/// All that is seen of a file but its times.
type Seen = (FileKind, u32, u32, u64, Vec<u8>, Vec<Vec<u8>>);

fn look<F: Data>(fs: &F) -> BTreeMap<Vec<u8>, Seen> {
    let root = fs.root();
    let mut names = Vec::new();
    let mut note = |entry: nacre_engine::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    };
    fs.read_dir(&root, 0, &mut note).expect("the names");
    let see = |name: &[u8]| {
        let node = fs.lookup(&root, name).expect("lookup");
        let attr = fs.getattr(&node).expect("attributes");
        let mut bytes = vec![0; attr.size as usize];
        assert_eq!(fs.read(&node, 0, &mut bytes, None).expect("read"), bytes.len());
        let keys = fs.list_xattrs(&node).expect("attributes");
        let values = keys.iter().map(|key| fs.get_xattr(&node, key).expect("a value")).collect();
        (attr.kind, attr.mode, attr.links, attr.size, bytes, values)
    };
    names.into_iter().map(|name| (name.clone(), see(&name))).collect()
}

/// What is left after the work and a crash, and after two mounts: the same whatever the clock did.
fn end_of_work<S: Stack, L: Subject>(stack: &S, layout: &L, times: Times) -> BTreeMap<Vec<u8>, Seen> {
    let pm = Arc::new(SimPm::new(SIZE));
    layout.mkfs(&pm).expect("mkfs");
    let fs = stack.mount(&pm);
    work(&fs, times);
    let seen = look(&fs);
    stack.die(fs);
    for mount in 0..3 {
        let fs = stack.mount(&pm);
        assert!(look(&fs) == seen, "mount {mount}: it is not what was left");
        for (name, round) in
            [(&b"written"[..], ROUNDS - 1), (&b"grown"[..], ROUNDS - 1), (&b"old-295"[..], 295)]
        {
            let attr = fs.getattr_at(&fs.root(), name).expect("attributes");
            assert_eq!(attr.mtime, times.at(round), "mount {mount}: {}", String::from_utf8_lossy(name));
        }
        stack.unmount(fs);
        let problems = layout.check(&pm, false).expect("check");
        assert!(problems.is_empty(), "mount {mount}: the check finds: {problems:?}");
    }
    seen
}

fn the_clock_may_go_backwards<S: Stack, L: Subject>(stack: &S, layout: &L) {
    let forward = end_of_work(stack, layout, Times::FORWARD);
    let backward = end_of_work(stack, layout, Times::BACKWARD);
    assert!(forward == backward, "the clock decides about more than times");
}

fn under_a_write_buffer<L: Subject<Fs: 'static> + Copy>(layout: L) {
    the_clock_may_go_backwards(&Buffered(layout, CacheOptions::new(4 << 20)), &layout);
    // A small pool, whose threads look every few milliseconds.
    let settings = Settings { threads: 2, period_ms: 2, max_age_ms: 5, ..Settings::default() };
    let restless = CacheOptions { settings, ..CacheOptions::new(8 * 4096) };
    the_clock_may_go_backwards(&Buffered(layout, restless), &layout);
}

#[test]
fn the_clock_may_go_backwards_over_the_log_layout() {
    the_clock_may_go_backwards(&Bare(Log), &Log);
}

#[test]
fn the_clock_may_go_backwards_over_the_in_place_layout() {
    the_clock_may_go_backwards(&Bare(Inplace), &Inplace);
}

#[test]
fn the_clock_may_go_backwards_over_the_shadow_layout() {
    the_clock_may_go_backwards(&Bare(Shadow), &Shadow);
}

#[test]
fn the_clock_may_go_backwards_over_the_pool_layout() {
    the_clock_may_go_backwards(&Bare(Pool), &Pool);
}

#[test]
fn the_clock_may_go_backwards_under_a_write_buffer_over_the_pool_layout() {
    under_a_write_buffer(Pool);
}

#[test]
fn the_clock_may_go_backwards_under_a_write_buffer_over_the_log_layout() {
    under_a_write_buffer(Log);
}

#[test]
fn the_clock_may_go_backwards_under_a_write_buffer_over_the_in_place_layout() {
    under_a_write_buffer(Inplace);
}
