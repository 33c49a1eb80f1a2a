//! Threads on one directory and one file at once: what each call answered must be what it would have answered in some
//! order of all calls in which no call that had ended before another began comes after it.
//!
//! Of many threads nobody can search all orders. What they leave must add up: each record that was appended is there once,
//! a name that all of them want has one winner, and after a crash there is what there was.
//!
//! `NACRE_MODEL_SECONDS` is how long it tries on each layout (2 by default).

use std::collections::{BTreeMap, HashSet};
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use nacre_cache::{CacheFs, CacheOptions, Settings as CacheSettings};
use nacre_engine::{
    Data, Durability, FileKind, Kind, Names, NewInode, RenameMode, Result, Timestamp, WriteAt,
};
use nacre_lab::crash::{Inplace, Log, Mounting, Pool, PoweredPm, Shadow, Subject};
use nacre_lab::environment::model_time;
use nacre_layout_log::Mistake;
use nacre_media::SimPm;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const THREADS: usize = 3;
const CALLS: usize = 6;
const NAMES: u8 = 3;

/// An inode by number and generation.
type Id = (u64, u32);

#[derive(Debug, Clone, Copy)]
enum Call {
    Create(u8),
    Unlink(u8),
    Rename(u8, u8, RenameMode),
    Lookup(u8),
    Append(u64),
    Size,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Done,
    Inode(Id),
    Number(u64),
    Failed(Kind),
}

#[derive(Debug, Clone, Copy)]
struct Event {
    call: Call,
    answer: Answer,
    /// Ticks of one clock for all threads.
    began: u64,
    ended: u64,
}

/// What the calls are about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    names: BTreeMap<u8, Id>,
    size: u64,
}

impl State {
    /// Makes the call; false when it would not have answered so.
    fn admits(&mut self, call: Call, answer: Answer) -> bool {
        match (call, answer) {
            (Call::Create(name), Answer::Inode(id)) => self.names.insert(name, id).is_none(),
            (Call::Create(name), Answer::Failed(Kind::Exists)) => self.names.contains_key(&name),
            (Call::Unlink(name), Answer::Done) => self.names.remove(&name).is_some(),
            (Call::Unlink(name), Answer::Failed(Kind::NotFound)) => !self.names.contains_key(&name),
            (Call::Lookup(name), Answer::Inode(id)) => self.names.get(&name) == Some(&id),
            (Call::Lookup(name), Answer::Failed(Kind::NotFound)) => !self.names.contains_key(&name),
            (Call::Append(len), Answer::Number(offset)) => {
                let fits = offset == self.size;
                self.size += len;
                fits
            }
            (Call::Size, Answer::Number(size)) => size == self.size,
            (Call::Rename(from, to, mode), answer) => self.admits_rename(from, to, mode, answer),
            _ => false,
        }
    }

    fn admits_rename(&mut self, from: u8, to: u8, mode: RenameMode, answer: Answer) -> bool {
        let (source, target) = (self.names.get(&from).copied(), self.names.get(&to).copied());
        let expected = match (source, target, mode) {
            (None, _, _) | (_, None, RenameMode::Exchange) => Answer::Failed(Kind::NotFound),
            (_, Some(_), RenameMode::NoReplace) => Answer::Failed(Kind::Exists),
            (Some(source), target, _) => {
                if from != to {
                    self.names.remove(&from);
                    self.names.insert(to, source);
                    if let (Some(target), RenameMode::Exchange) = (target, mode) {
                        self.names.insert(from, target);
                    }
                }
                Answer::Done
            }
        };
        answer == expected
    }
}

/// Whether there is an order for these events that starts with this state.
fn has_an_order(events: &[Event], start: &State) -> bool {
    fn search(events: &[Event], done: u32, state: &State, seen: &mut HashSet<(u32, State)>) -> bool {
        if done.count_ones() as usize == events.len() {
            return true;
        }
        if !seen.insert((done, state.clone())) {
            return false;
        }
        let open = |index: &usize| done >> index & 1 == 0;
        let first_end = (0..events.len()).filter(open).map(|index| events[index].ended).min();
        (0..events.len()).filter(open).any(|index| {
            let event = events[index];
            // What began after another had ended cannot come before it.
            if first_end.is_some_and(|end| event.began > end) {
                return false;
            }
            let mut next = state.clone();
            next.admits(event.call, event.answer) && search(events, done | 1 << index, &next, seen)
        })
    }
    search(events, 0, start, &mut HashSet::new())
}

fn new_file() -> NewInode<'static> {
    NewInode::of_root(FileKind::Regular, 0o644, Timestamp::new(1, 0))
}

fn random_call(rng: &mut SmallRng) -> Call {
    let mut name = || rng.random_range(0..NAMES);
    let (a, b) = (name(), name());
    match rng.random_range(0..12) {
        0..3 => Call::Create(a),
        3..5 => Call::Unlink(a),
        5..7 => Call::Rename(a, b, RenameMode::Replace),
        7 => Call::Rename(a, b, RenameMode::NoReplace),
        8 => Call::Rename(a, b, RenameMode::Exchange),
        9 => Call::Lookup(a),
        10 => Call::Append(rng.random_range(1..9000)),
        _ => Call::Size,
    }
}

fn make<L: Data>(fs: &L, dir: &L::Node, file: &L::Node, call: Call) -> Answer {
    let now = Timestamp::new(2, 0);
    let id = |node: L::Node| {
        let id = fs.id(&node);
        Answer::Inode((id.number, id.generation))
    };
    let answer: Result<Answer> = match call {
        Call::Create(name) => fs.create(dir, &[b'a' + name], &new_file()).map(id),
        Call::Unlink(name) => fs.unlink(dir, &[b'a' + name], now).map(|()| Answer::Done),
        Call::Rename(from, to, mode) => {
            fs.rename(dir, &[b'a' + from], dir, &[b'a' + to], mode, now).map(|()| Answer::Done)
        }
        Call::Lookup(name) => fs.lookup(dir, &[b'a' + name]).map(id),
        Call::Append(len) => {
            let bytes = vec![len as u8; len as usize];
            fs.write(file, WriteAt::End, &[IoSlice::new(&bytes)], Durability::Now, now).map(Answer::Number)
        }
        Call::Size => fs.getattr(file).map(|attr| Answer::Number(attr.size)),
    };
    answer.unwrap_or_else(|error| Answer::Failed(error.kind()))
}

/// One thread's calls of one round.
fn calls<L: Data>(fs: &L, dir: &L::Node, file: &L::Node, clock: &AtomicU64, seed: u64) -> Vec<Event> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..CALLS)
        .map(|_| {
            let call = random_call(&mut rng);
            let began = clock.fetch_add(1, Ordering::SeqCst);
            let answer = make(fs, dir, file, call);
            Event { call, answer, began, ended: clock.fetch_add(1, Ordering::SeqCst) }
        })
        .collect()
}

#[test]
fn calls_of_threads_on_the_log_layout_have_an_order() {
    look_for_what_has_no_order(Log);
}

#[test]
fn calls_of_threads_on_the_in_place_layout_have_an_order() {
    look_for_what_has_no_order(Inplace);
}

#[test]
fn calls_of_threads_on_the_pool_layout_have_an_order() {
    look_for_what_has_no_order(Pool);
}

#[test]
fn calls_of_threads_on_the_shadow_layout_have_an_order() {
    look_for_what_has_no_order(Shadow);
}

fn look_for_what_has_no_order<S: Subject>(subject: S) {
    let pm = Arc::new(SimPm::new(64 << 20));
    subject.mkfs(&pm).expect("mkfs");
    let fs = &subject
        .mount(&pm, Mounting { lanes: THREADS, background: true, ..Mounting::default() })
        .expect("mount");
    let limit = model_time();
    let root = fs.root();
    let file = fs.create(&root, b"file", &new_file()).expect("create");
    let dir_inode = NewInode { kind: FileKind::Directory, ..new_file() };
    let dir = fs.create(&root, b"dir", &dir_inode).expect("create");
    let (clock, barrier) = (AtomicU64::new(0), Barrier::new(THREADS));
    let (start, mut seed, mut rounds) = (Instant::now(), SmallRng::from_os_rng().random::<u64>() >> 1, 0);
    while start.elapsed() < limit {
        fs.setattr(
            &file,
            &nacre_engine::SetAttr { size: Some(0), ..Default::default() },
            Timestamp::new(2, 0),
        )
        .expect("truncate");
        let mut before = State::default();
        for name in 0..NAMES {
            if let Ok(node) = fs.lookup(&dir, &[b'a' + name]) {
                let id = fs.id(&node);
                before.names.insert(name, (id.number, id.generation));
            }
        }
        let events: Vec<Event> = thread::scope(|scope| {
            let run = |thread: usize| {
                let (dir, file, clock, barrier) = (&dir, &file, &clock, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    calls(fs, dir, file, clock, seed + thread as u64)
                })
            };
            let running: Vec<_> = (0..THREADS).map(run).collect();
            running.into_iter().flat_map(|thread| thread.join().expect("no thread panics")).collect()
        });
        assert!(has_an_order(&events, &before), "seed {seed}, from {before:?}: no order for {events:#?}");
        seed += THREADS as u64;
        rounds += 1;
    }
    println!("{rounds} rounds of {THREADS} threads with {CALLS} calls each");
}

/// The search can fail: histories that cannot have been are refused.
#[test]
fn what_cannot_have_been_has_no_order() {
    let event = |call, answer, began, ended| Event { call, answer, began, ended };
    let made = Answer::Inode((7, 1));
    let gone = Answer::Failed(Kind::NotFound);
    let start = State::default();
    // Found before it was made.
    let early = [event(Call::Lookup(0), made, 0, 1), event(Call::Create(0), made, 2, 3)];
    assert!(!has_an_order(&early, &start));
    // The same while both were under way.
    let meanwhile = [event(Call::Lookup(0), made, 0, 2), event(Call::Create(0), made, 1, 3)];
    assert!(has_an_order(&meanwhile, &start));
    // A name that is replaced was away for a moment.
    let both = State { names: BTreeMap::from([(0, (7, 1)), (1, (8, 1))]), size: 0 };
    let rename = event(Call::Rename(0, 1, RenameMode::Replace), Answer::Done, 0, 5);
    assert!(!has_an_order(&[rename, event(Call::Lookup(1), gone, 1, 2)], &both));
    // Two appends at one offset.
    let append = |began, ended| event(Call::Append(10), Answer::Number(0), began, ended);
    assert!(!has_an_order(&[append(0, 3), append(1, 4)], &start));
    // A size between them that neither leaves.
    let grown = event(Call::Append(10), Answer::Number(10), 2, 3);
    let size = event(Call::Size, Answer::Number(15), 4, 5);
    assert!(!has_an_order(&[append(0, 1), grown, size], &start));
}

/// Threads of a crowd.
const CROWD: usize = 8;
/// Records that each of them appends.
const RECORDS: u32 = 10;
/// Bytes of a record before those that follow from them.
const HEADER: usize = 12;
/// Names that all of them want.
const WANTED: u8 = 6;
/// Calls of each of them on these names, after the fights for one call each.
const SCRAMBLE: usize = 40;
/// Rounds whose memory loses its power.
const CRASHES: u64 = 4;

/// How long a mistake is looked for.
const LIMIT: Duration = Duration::from_secs(60);

const NOW: Timestamp = Timestamp::new(2, 0);

/// A record: whose it is, the how manieth, its length, and bytes that follow from these.
fn record(thread: u32, sequence: u32, len: usize) -> Vec<u8> {
    let mut bytes = [thread, sequence, len as u32].map(u32::to_le_bytes).concat();
    let first = thread.wrapping_mul(37).wrapping_add(sequence.wrapping_mul(11));
    bytes.extend((HEADER..len).map(|at| first.wrapping_add(at as u32 / 16) as u8));
    bytes
}

/// Whose records there are, which, and where, if there is nothing but whole records.
fn records(bytes: &[u8]) -> std::result::Result<Vec<(u32, u32, u64)>, String> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let header = bytes.get(at..at + HEADER).ok_or(format!("a part of a header at {at}"))?;
        let word = |index: usize| {
            u32::from_le_bytes(header[index * 4..index * 4 + 4].try_into().expect("four bytes"))
        };
        let (thread, sequence, len) = (word(0), word(1), word(2) as usize);
        let whole = bytes.get(at..at + len).filter(|whole| whole.len() >= HEADER);
        if whole != Some(record(thread, sequence, len.min(bytes.len())).as_slice()) {
            return Err(format!(
                "at {at} of {}: record {sequence} of thread {thread} is not whole",
                bytes.len()
            ));
        }
        found.push((thread, sequence, at as u64));
        at += len;
    }
    Ok(found)
}

fn content<L: Data>(fs: &L, file: &L::Node) -> Vec<u8> {
    let size = fs.getattr(file).expect("getattr").size as usize;
    let mut bytes = vec![0xEE; size];
    assert_eq!(fs.read(file, 0, &mut bytes, None).expect("read"), size, "what is counted can be read");
    bytes
}

/// Runs the same on all threads of a crowd at once.
fn crowd<T: Send>(run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(CROWD);
    thread::scope(|scope| {
        let start = |thread| {
            let (run, barrier) = (&run, &barrier);
            scope.spawn(move || {
                barrier.wait();
                run(thread)
            })
        };
        let running: Vec<_> = (0..CROWD).map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

/// Everyone appends to one file, and looks at it in between.
fn append_in_a_crowd<L: Data>(fs: &L, file: &L::Node, seed: u64) {
    let places = crowd(|thread| {
        let mut rng = SmallRng::seed_from_u64(seed ^ thread as u64);
        let append = |sequence| {
            let len =
                if rng.random() { rng.random_range(HEADER..200) } else { rng.random_range(HEADER..9000) };
            let durability = if rng.random_ratio(1, 3) { Durability::Now } else { Durability::Lazy };
            let bytes = record(thread as u32, sequence, len);
            let at = fs.write(file, WriteAt::End, &[IoSlice::new(&bytes)], durability, NOW).expect("append");
            match rng.random_range(0..6) {
                0 => fs.sync(file).expect("sync"),
                1 => drop(records(&content(fs, file)).expect("records while they are appended")),
                _ => {}
            }
            at
        };
        (0..RECORDS).map(append).collect::<Vec<u64>>()
    });
    let found = records(&content(fs, file)).expect("records");
    for (thread, places) in (0..).zip(places) {
        let his: Vec<_> = found.iter().filter(|(whose, ..)| *whose == thread).collect();
        let told: Vec<_> = (0..).zip(places).map(|(sequence, at)| (thread, sequence, at)).collect();
        assert!(his.iter().copied().eq(&told), "thread {thread}: found {his:?}, was told {told:?}");
    }
    assert_eq!(found.len(), CROWD * RECORDS as usize);
}

/// All names of a directory, and what they lead to.
fn names_of<L: Data>(fs: &L, dir: &L::Node) -> BTreeMap<Vec<u8>, L::Node> {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })
    .expect("read_dir");
    let count = names.len();
    let all: BTreeMap<_, _> =
        names.into_iter().map(|name| (name.clone(), fs.lookup(dir, &name).expect("lookup"))).collect();
    assert_eq!(all.len(), count, "a name was listed twice");
    all
}

/// What a call was answered, where another thread may have come first.
fn won<T>(answer: Result<T>, lost: &[Kind]) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(error) if lost.contains(&error.kind()) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Everyone makes the same call for each name, each in an order of his own: who won which name, and what.
fn fight<T: Send>(seed: u64, call: impl Fn(usize, u8) -> Option<T> + Sync) -> BTreeMap<u8, (usize, T)> {
    let won = crowd(|thread| {
        let mut names: Vec<u8> = (0..WANTED).collect();
        names.shuffle(&mut SmallRng::seed_from_u64(seed ^ thread as u64));
        names.into_iter().filter_map(|name| call(thread, name).map(|value| (name, value))).collect::<Vec<_>>()
    });
    let mut winners = BTreeMap::new();
    for (thread, names) in won.into_iter().enumerate() {
        for (name, value) in names {
            let before = winners.insert(name, (thread, value));
            assert!(before.is_none(), "name {name} was won twice");
        }
    }
    assert_eq!(winners.len(), WANTED as usize, "each name is won by someone: {:?}", winners.keys());
    winners
}

/// Names are made, removed and moved by everyone at once, and each has one winner.
fn fight_for_names<L: Data>(fs: &L, dir: &L::Node, seed: u64) {
    let made = fight(seed, |_, name| won(fs.create(dir, &[b'a' + name], &new_file()), &[Kind::Exists]));
    let names = names_of(fs, dir);
    assert_eq!(names.len(), WANTED as usize);
    for (name, (_, node)) in &made {
        assert_eq!(fs.id(&names[&vec![b'a' + name]]), fs.id(node), "name {name} is its winner's");
    }
    let taken = fight(seed, |thread, name| {
        let from = [b'a' + name];
        let answer = match name % 2 {
            0 => fs.unlink(dir, &from, NOW),
            _ => fs.rename(dir, &from, dir, &[b'A' + thread as u8, name], RenameMode::Replace, NOW),
        };
        won(answer, &[Kind::NotFound])
    });
    let names = names_of(fs, dir);
    assert_eq!(names.len(), WANTED as usize / 2);
    for (name, (_, node)) in &made {
        let (thread, ()) = taken[name];
        let moved = names.get([b'A' + thread as u8, *name].as_slice());
        let expected = (name % 2 == 1).then(|| fs.id(node));
        assert_eq!(moved.map(|moved| fs.id(moved)), expected, "name {name}, which thread {thread} took");
        assert_eq!(fs.getattr(node).expect("getattr").links, u32::from(expected.is_some()));
    }
}

/// Everyone does anything to the same names. What was made and was neither removed nor replaced is left.
fn scramble_names<L: Data>(fs: &L, dir: &L::Node, seed: u64) {
    let replaces = seed.is_multiple_of(2);
    let done = crowd(|thread| {
        let mut rng = SmallRng::seed_from_u64(seed ^ thread as u64);
        let (mut made, mut removed, mut moved) = (Vec::new(), 0, 0);
        for _ in 0..SCRAMBLE {
            let (a, b) = ([b'a' + rng.random_range(0..WANTED)], [b'a' + rng.random_range(0..WANTED)]);
            match rng.random_range(0..7) {
                0..3 => made.extend(won(fs.create(dir, &a, &new_file()), &[Kind::Exists])),
                3..5 => removed += usize::from(won(fs.unlink(dir, &a, NOW), &[Kind::NotFound]).is_some()),
                5 if replaces && a != b => {
                    let answer = fs.rename(dir, &a, dir, &b, RenameMode::Replace, NOW);
                    moved += usize::from(won(answer, &[Kind::NotFound]).is_some());
                }
                // Neither changes how many there are.
                kind => {
                    let mode = if kind == 5 { RenameMode::NoReplace } else { RenameMode::Exchange };
                    won(fs.rename(dir, &a, dir, &b, mode, NOW), &[Kind::NotFound, Kind::Exists]);
                }
            }
        }
        (made, removed, moved)
    });
    let left: HashSet<_> = names_of(fs, dir).values().map(|node| fs.id(node)).collect();
    assert_eq!(left.len(), names_of(fs, dir).len(), "each name has an inode of its own");
    let removed: usize = done.iter().map(|(_, removed, _)| removed).sum();
    let moved: usize = done.iter().map(|(.., moved)| moved).sum();
    let made: Vec<_> = done.into_iter().flat_map(|(made, ..)| made).collect();
    let gone = made.len().checked_sub(left.len()).expect("nothing is left that nobody made");
    assert!((removed..=removed + moved).contains(&gone), "{gone} gone, {removed} removed, {moved} moved");
    for node in &made {
        let links = u32::from(left.contains(&fs.id(node)));
        assert_eq!(fs.getattr(node).expect("getattr").links, links, "{:?}", fs.id(node));
    }
}

/// One round of everything in a directory of its own.
fn round<L: Data>(fs: &L, seed: u64) {
    let new_dir = NewInode { kind: FileKind::Directory, ..new_file() };
    let dir = fs.create(&fs.root(), b"round", &new_dir).expect("create");
    let (fought, scrambled) = (b"fought".as_slice(), b"scrambled".as_slice());
    let file = fs.create(&dir, b"file", &new_file()).expect("create");
    append_in_a_crowd(fs, &file, seed);
    fight_for_names(fs, &fs.create(&dir, fought, &new_dir).expect("create"), seed);
    scramble_names(fs, &fs.create(&dir, scrambled, &new_dir).expect("create"), seed);
}

/// What a round left, by path: inodes, their links and contents.
fn leftovers<L: Data>(fs: &L, dir: &L::Node, path: &[u8]) -> BTreeMap<Vec<u8>, (Id, u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for (name, node) in names_of(fs, dir) {
        let path = [path, b"/", &name].concat();
        let (id, attr) = (fs.id(&node), fs.getattr(&node).expect("getattr"));
        let bytes = match attr.kind {
            FileKind::Directory => {
                all.extend(leftovers(fs, &node, &path));
                Vec::new()
            }
            _ => content(fs, &node),
        };
        all.insert(path, ((id.number, id.generation), attr.links, bytes));
    }
    all
}

/// Removes what a round left.
fn clear<L: Data>(fs: &L, dir: &L::Node) {
    for (name, node) in names_of(fs, dir) {
        if fs.kind(&node) == FileKind::Directory {
            clear(fs, &node);
            fs.rmdir(dir, &name, NOW).expect("rmdir");
        } else {
            fs.unlink(dir, &name, NOW).expect("unlink");
        }
    }
}

/// How the crowd uses a layout.
trait Access<S: Subject> {
    type Fs: Data;
    fn open(&self, below: S::Fs) -> Self::Fs;
    /// Everything is durable, as far as it is not when a call returns.
    fn sync(&self, fs: &Self::Fs);
    /// Lets go of it with nothing written.
    fn abandon(&self, fs: Self::Fs) -> S::Fs;
}

/// As it is.
struct Bare;

impl<S: Subject> Access<S> for Bare {
    type Fs = S::Fs;

    fn open(&self, below: S::Fs) -> S::Fs {
        below
    }

    fn sync(&self, _: &S::Fs) {}

    fn abandon(&self, fs: S::Fs) -> S::Fs {
        fs
    }
}

/// Through a small write buffer whose threads look every few milliseconds.
struct Buffered;

impl<S: Subject> Access<S> for Buffered {
    type Fs = CacheFs<S::Fs>;

    fn open(&self, below: S::Fs) -> CacheFs<S::Fs> {
        let settings = CacheSettings { threads: 2, period_ms: 2, max_age_ms: 5, ..CacheSettings::default() };
        CacheFs::new(below, &CacheOptions { settings, ..CacheOptions::new(32 * 4096) }).expect("a cache")
    }

    fn sync(&self, fs: &CacheFs<S::Fs>) {
        fs.sync_all().expect("sync");
    }

    fn abandon(&self, fs: CacheFs<S::Fs>) -> S::Fs {
        fs.abandon()
    }
}

/// Rounds until the time is over, then some whose memory loses its power: recording makes threads wait for each other.
fn what_a_crowd_leaves_adds_up<S: Subject, A: Access<S>>(subject: &S, access: &A) {
    let mounting = Mounting { lanes: 4, background: true, ..Mounting::default() };
    let sound = |pm: &Arc<SimPm>, crashed| {
        let problems = subject.check(pm, crashed).expect("check");
        assert!(problems.is_empty(), "the check finds: {problems:?}");
    };
    let pm = Arc::new(SimPm::new(64 << 20));
    subject.mkfs(&pm).expect("mkfs");
    let fs = access.open(subject.mount(&pm, mounting).expect("mount"));
    let (start, limit, mut rounds) = (Instant::now(), model_time(), 0);
    let seed = SmallRng::from_os_rng().random::<u64>() >> 8 << 7;
    println!("seed {seed}");
    while rounds == 0 || start.elapsed() < limit {
        round(&fs, seed + rounds);
        clear(&fs, &fs.root());
        rounds += 1;
    }
    access.sync(&fs);
    subject.unmount(access.abandon(fs)).expect("unmount");
    sound(&pm, false);

    let mut memory = PoweredPm::new(64 << 20);
    subject.mkfs(memory.pm()).expect("mkfs");
    for crash in 0..CRASHES {
        let fs = access.open(subject.mount(memory.pm(), mounting).expect("mount"));
        clear(&fs, &fs.root());
        round(&fs, seed + crash);
        access.sync(&fs);
        let before = leftovers(&fs, &fs.root(), b"");
        memory.lose_power();
        subject.abandon(access.abandon(fs));
        sound(memory.pm(), true);
        let fs = subject.mount(memory.pm(), mounting).expect("mount");
        let after = leftovers(&fs, &fs.root(), b"");
        assert!(before.keys().eq(after.keys()), "{:?} instead of {:?}", after.keys(), before.keys());
        for (path, expected) in &before {
            assert!(after[path] == *expected, "{} is not what it was", path.escape_ascii());
        }
        subject.unmount(fs).expect("unmount");
        memory.lose_power();
    }
    println!("{rounds} rounds of {CROWD} threads");
}

#[test]
fn what_a_crowd_leaves_on_the_log_layout_adds_up() {
    what_a_crowd_leaves_adds_up(&Log, &Bare);
}

#[test]
fn what_a_crowd_leaves_on_the_in_place_layout_adds_up() {
    what_a_crowd_leaves_adds_up(&Inplace, &Bare);
}

#[test]
fn what_a_crowd_leaves_on_the_pool_layout_adds_up() {
    what_a_crowd_leaves_adds_up(&Pool, &Bare);
}

#[test]
fn what_a_crowd_leaves_on_the_shadow_layout_adds_up() {
    what_a_crowd_leaves_adds_up(&Shadow, &Bare);
}

#[test]
fn what_a_crowd_leaves_over_a_write_buffer_on_the_log_layout_adds_up() {
    what_a_crowd_leaves_adds_up(&Log, &Buffered);
}

#[test]
fn what_a_crowd_leaves_over_a_write_buffer_on_the_pool_layout_adds_up() {
    what_a_crowd_leaves_adds_up(&Pool, &Buffered);
}

#[test]
fn what_a_crowd_leaves_over_a_write_buffer_on_the_in_place_layout_adds_up() {
    what_a_crowd_leaves_adds_up(&Inplace, &Buffered);
}

/// The rounds can fail: the layout makes mistakes that only show between threads.
#[test]
fn mistakes_between_threads_show_in_a_crowd() {
    for mistake in [Mistake::SizeReadEarly, Mistake::NameSoughtEarly] {
        let pm = Arc::new(SimPm::new(64 << 20));
        Log.mkfs(&pm).expect("mkfs");
        pm.seed_mistake(mistake as u32);
        let start = Instant::now();
        let found = (0..10_000).find_map(|seed| {
            let fs = Log
                .mount(&pm, Mounting { lanes: 4, background: true, ..Mounting::default() })
                .expect("mount");
            clear(&fs, &fs.root());
            let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| round(&fs, seed))).is_err();
            Log.abandon(fs);
            (shown || start.elapsed() > LIMIT).then_some((shown, seed))
        });
        println!("{}: {found:?} after {:?}", mistake.words(), start.elapsed());
        assert!(found.is_some_and(|(shown, _)| shown), "{}", mistake.words());
    }
}

/// The check of the records can fail.
#[test]
fn records_that_are_torn_or_mixed_are_no_records() {
    let (one, two) = (record(1, 2, 300), record(3, 4, HEADER));
    assert_eq!(records(&[one.clone(), two.clone()].concat()), Ok(vec![(1, 2, 0), (3, 4, 300)]));
    assert!(records(&one[..299]).is_err() && records(&two[..5]).is_err());
    let mut torn = one.clone();
    torn[200] ^= 1;
    assert!(records(&torn).is_err());
    assert!(records(&[&one[..100], &two, &one[100..]].concat()).is_err());
}
