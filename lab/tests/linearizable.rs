//! Threads on one directory and one file at once: what each call answered must be what it would have answered in some
//! order of all calls in which no call that had ended before another began comes after it.
//!
//! `NACRE_MODEL_SECONDS` is how long it tries on each layout (4 by default).

use std::collections::{BTreeMap, HashSet};
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use nacre_engine::{
    Data, Durability, FileKind, Kind, Names, NewInode, RenameMode, Result, Timestamp, WriteAt,
};
use nacre_lab::crash::{Inplace, Log, Mounting, Subject};
use nacre_lab::environment::model_time;
use nacre_media::SimPm;
use rand::rngs::SmallRng;
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
    let now = Timestamp::new(1, 0);
    NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: &[], xattrs: &[], now }
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

fn look_for_what_has_no_order<S: Subject>(subject: S) {
    let pm = Arc::new(SimPm::new(64 << 20));
    subject.mkfs(&pm).expect("mkfs");
    let fs = &subject.mount(&pm, Mounting { lanes: THREADS, background: true }).expect("mount");
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
