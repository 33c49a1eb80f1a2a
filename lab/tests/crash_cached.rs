//! The write buffer over each layout, crashed at every fence: what was synchronised is there, of the rest any part may be
//! missing, and nothing is torn against what the layout promises.
//!
//! Random sequences run on a small pool without threads, so that writers write back. After a crash the names must be
//! those before or after the operation in flight, and each file must be *explained*: its size is one between those that
//! it had since it was synchronised, and each unit of it (a block where data is copied on write, a word where it is
//! written in place) is what that unit was at some time since then, at a time when the file was so long.
//!
//! `NACRE_CRASH_SEED` is the first seed (1 by default), `NACRE_CRASH_IMAGES` how many images each layout has at least.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nacre_cache::{CacheFs, CacheOptions, Clock, Settings};
use nacre_engine::{
    Data, Durability, FallocateMode, FileKind, NewInode, RenameMode, Result, SetAttr, Timestamp, WriteAt,
};
use nacre_lab::crash::{Inplace, Log, MEMORY, Mounting, Subject, payload, stay_on_this_thread};
use nacre_lab::environment::number;
use nacre_media::crash::{Replay, Sampling};
use nacre_media::sim::Defect;
use nacre_media::{Image, SimPm, Trace};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Blocks of the pool.
const POOL: u64 = 8;
/// Operations of a sequence.
const LENGTH: usize = 60;
const BLOCK: usize = 4096;
/// No file has so many.
const MAX_BLOCKS: usize = 256;
const FILES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Debug, Clone, Copy)]
enum Op {
    Create(&'static str),
    Write(&'static str, usize, usize, Durability),
    Append(&'static str, usize),
    Truncate(&'static str, usize),
    Punch(&'static str, usize, usize),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Chmod(&'static str),
    Sync(&'static str),
    SyncAll,
}

/// A wrong belief about what was promised: the crashes must show that it is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Belief {
    Right,
    /// A sync is not asked for, and believed.
    LostSync,
    /// Every write is durable when it returns.
    DurableOnReturn,
    /// A file is synchronised when it gets a name that was free.
    RenameSyncs,
}

/// What is promised about one file.
#[derive(Debug, Clone, Default)]
struct Floor {
    /// Nothing older than in this state.
    all: usize,
    /// The same for single blocks.
    blocks: BTreeMap<usize, usize>,
    /// It is at least so long.
    len: usize,
    /// It was as long as it is in this state or a later one.
    sized: usize,
}

/// The state after so many operations.
#[derive(Debug, Clone, Default)]
struct State {
    names: BTreeMap<&'static str, usize>,
    files: BTreeMap<usize, Arc<Vec<u8>>>,
    floors: BTreeMap<usize, Floor>,
    next: usize,
}

impl State {
    /// The state after an operation, which makes state `number`.
    fn after(&self, op: &Op, number: usize, belief: Belief) -> State {
        let mut state = self.clone();
        match *op {
            Op::Create(name) => {
                state.names.insert(name, state.next);
                state.files.insert(state.next, Arc::default());
                state.floors.insert(state.next, Floor { all: number, ..Floor::default() });
                state.next += 1;
            }
            Op::Write(name, offset, len, durability) => {
                state.put(name, offset, &payload(number as u64, len));
                if durability != Durability::Lazy || belief == Belief::DurableOnReturn {
                    let floor = state.floor(name);
                    floor
                        .blocks
                        .extend((offset / BLOCK..(offset + len).div_ceil(BLOCK)).map(|b| (b, number)));
                    floor.len = floor.len.max(offset + len);
                }
            }
            Op::Append(name, len) => {
                let offset = state.content(name).len();
                state.put(name, offset, &payload(number as u64, len));
            }
            Op::Truncate(name, len) => {
                Arc::make_mut(state.content(name)).resize(len, 0);
                // That is durable on return; what is before the new end may still wait.
                let floor = state.floor(name);
                (floor.len, floor.sized) = (floor.len.min(len), number);
                floor.blocks.retain(|block, _| (block + 1) * BLOCK <= len);
                floor.blocks.extend((len.div_ceil(BLOCK)..MAX_BLOCKS).map(|block| (block, number)));
            }
            Op::Punch(name, offset, len) => {
                let content = Arc::make_mut(state.content(name));
                let end = (offset + len).min(content.len());
                content[offset.min(end)..end].fill(0);
                // It finds everything written.
                state.sync(state.names[name], number);
            }
            Op::Rename(from, to) => {
                let replaces = state.names.contains_key(to);
                let file = state.names.remove(from).expect("it is there");
                state.names.insert(to, file);
                if replaces || belief == Belief::RenameSyncs {
                    state.sync(file, number);
                }
            }
            Op::Link(from, to) => {
                let file = state.names[from];
                state.names.insert(to, file);
                state.sync(file, number);
            }
            Op::Unlink(name) => drop(state.names.remove(name)),
            Op::Chmod(_) => {}
            Op::Sync(name) => state.sync(state.names[name], number),
            Op::SyncAll => {
                state.files.keys().copied().collect::<Vec<_>>().iter().for_each(|&f| state.sync(f, number))
            }
        }
        state
    }

    fn content(&mut self, name: &str) -> &mut Arc<Vec<u8>> {
        self.files.get_mut(&self.names[name]).expect("it is there")
    }

    fn floor(&mut self, name: &str) -> &mut Floor {
        self.floors.get_mut(&self.names[name]).expect("it is there")
    }

    fn put(&mut self, name: &str, offset: usize, bytes: &[u8]) {
        let content = Arc::make_mut(self.content(name));
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn sync(&mut self, file: usize, number: usize) {
        let len = self.files[&file].len();
        self.floors.insert(file, Floor { all: number, blocks: BTreeMap::new(), len, sized: number });
    }
}

fn at(step: usize) -> Timestamp {
    Timestamp::new(1_000_000 + step as i64, 0)
}

/// Does an operation.
fn run<F: Data>(fs: &F, op: &Op, number: usize, belief: Belief) -> Result<()> {
    let (root, now) = (fs.root(), at(number));
    let find = |name: &str| fs.lookup(&root, name.as_bytes());
    let write = |name: &str, to: WriteAt, len: usize, how: Durability| {
        fs.write(&find(name)?, to, &[IoSlice::new(&payload(number as u64, len))], how, now).map(drop)
    };
    match *op {
        Op::Create(name) => {
            let kind = FileKind::Regular;
            let new = NewInode { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now };
            fs.create(&root, name.as_bytes(), &new).map(drop)
        }
        Op::Write(name, offset, len, how) => write(name, WriteAt::Offset(offset as u64), len, how),
        Op::Append(name, len) => write(name, WriteAt::End, len, Durability::Lazy),
        Op::Truncate(name, len) => {
            fs.setattr(&find(name)?, &SetAttr { size: Some(len as u64), ..SetAttr::default() }, now).map(drop)
        }
        Op::Punch(name, offset, len) => {
            fs.fallocate(&find(name)?, FallocateMode::PunchHole, offset as u64, len as u64, now)
        }
        Op::Rename(from, to) => {
            fs.rename(&root, from.as_bytes(), &root, to.as_bytes(), RenameMode::Replace, now)
        }
        Op::Link(from, to) => fs.link(&find(from)?, &root, to.as_bytes(), now),
        Op::Unlink(name) => fs.unlink(&root, name.as_bytes(), now),
        Op::Chmod(name) => {
            let change = SetAttr { mode: Some(0o600), mtime: Some(at(0)), ..SetAttr::default() };
            fs.setattr(&find(name)?, &change, now).map(drop)
        }
        Op::Sync(_) | Op::SyncAll if belief == Belief::LostSync => Ok(()),
        Op::Sync(name) => fs.sync(&find(name)?),
        Op::SyncAll => fs.sync_all(),
    }
}

/// An operation that can be done in this state.
fn choose(state: &State, random: &mut SmallRng) -> Op {
    let (known, free): (Vec<&'static str>, Vec<&'static str>) =
        FILES.iter().copied().partition(|name| state.names.contains_key(name));
    let pick = |names: &[&'static str], random: &mut SmallRng| {
        (!names.is_empty()).then(|| names[random.random_range(0..names.len())])
    };
    let Some(name) = pick(&known, random) else { return Op::Create("a") };
    let len = state.files[&state.names[name]].len();
    let size = |random: &mut SmallRng| match random.random_range(0..3) {
        0 => random.random_range(1..200),
        1 => random.random_range(1..3 * BLOCK),
        _ => BLOCK * random.random_range(1..4),
    };
    let offset = match random.random_range(0..3) {
        0 => random.random_range(0..=len),
        1 => random.random_range(0..8) * BLOCK,
        _ => random.random_range(0..8 * BLOCK),
    };
    match random.random_range(0..40) {
        0..=15 => Op::Write(name, offset, size(random), Durability::Lazy),
        16..=17 => Op::Write(name, offset, size(random), Durability::Now),
        18..=22 => Op::Append(name, size(random)),
        23..=25 => Op::Truncate(name, random.random_range(0..=len + BLOCK)),
        26 => Op::Punch(name, offset, size(random)),
        27..=28 => {
            match pick(&known, random).filter(|to| *to != name && state.names[to] != state.names[name]) {
                Some(to) => Op::Rename(name, to),
                None => Op::Chmod(name),
            }
        }
        29 => pick(&free, random).map_or(Op::Chmod(name), |to| Op::Rename(name, to)),
        30 => pick(&free, random).map_or(Op::Chmod(name), |to| Op::Link(name, to)),
        31 => Op::Unlink(name),
        32..=34 => pick(&free, random).map_or(Op::Sync(name), Op::Create),
        35..=38 => Op::Sync(name),
        _ => Op::SyncAll,
    }
}

/// A sequence that was run: the memory before it, what was stored, and the states.
struct Recording {
    start: Image,
    trace: Trace,
    ops: Vec<Op>,
    states: Vec<State>,
}

fn record<S: Subject>(
    subject: &S,
    pm: &Arc<SimPm>,
    seed: u64,
    belief: Belief,
    defect: Option<Defect>,
) -> Recording
where
    S::Fs: 'static,
{
    let mut random = SmallRng::seed_from_u64(seed);
    subject.mkfs(pm).expect("mkfs");
    subject.use_lane(0);
    let layout = subject.mount(pm, Mounting::default()).expect("mount");
    let settings = Settings { threads: 0, ..Settings::default() };
    let clock = Clock::Set(Arc::new(AtomicU64::new(1)));
    let options = CacheOptions { settings, clock, ..CacheOptions::new(POOL * BLOCK as u64) };
    let fs = CacheFs::new(layout, &options).expect("a cache");
    let start = pm.image();
    pm.start_recording_with(defect);
    let (mut ops, mut states) = (Vec::new(), vec![State::default()]);
    for number in 1..=LENGTH {
        let before = &states[number - 1];
        let op = choose(before, &mut random);
        pm.mark(2 * (number as u64 - 1));
        run(&fs, &op, number, belief).unwrap_or_else(|error| panic!("seed {seed}: {op:?}: {error}"));
        pm.mark(2 * (number as u64 - 1) + 1);
        let state = before.after(&op, number, belief);
        let seen = contents(&fs).expect("it can be read");
        let expected: BTreeMap<String, Vec<u8>> =
            state.names.iter().map(|(name, file)| ((*name).to_owned(), state.files[file].to_vec())).collect();
        assert!(seen == expected, "seed {seed}: after {op:?} the running system differs");
        ops.push(op);
        states.push(state);
    }
    let trace = pm.stop_recording();
    subject.abandon(fs.abandon());
    Recording { start, trace, ops, states }
}

/// The names in the root, and what the files contain.
fn contents<F: Data>(fs: &F) -> Result<BTreeMap<String, Vec<u8>>> {
    let root = fs.root();
    let mut names = Vec::new();
    fs.read_dir(&root, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })?;
    let mut files = BTreeMap::new();
    for name in names {
        let node = fs.lookup(&root, &name)?;
        let mut content = vec![0; fs.getattr(&node)?.size as usize + 1];
        let count = fs.read(&node, 0, &mut content, None)?;
        content.truncate(count);
        files.insert(String::from_utf8_lossy(&name).into_owned(), content);
    }
    Ok(files)
}

/// Whether a file can be what it is in `found`, after a crash in state `state` or on the way to `last`.
fn explain(
    states: &[State],
    state: usize,
    last: usize,
    file: usize,
    found: &[u8],
    unit: usize,
) -> Result<(), String> {
    let versions = |from: usize| (from..=last).filter_map(|number| states[number].files.get(&file));
    let floor = &states[state].floors[&file];
    let promised = floor.len.min(states[last].floors.get(&file).map_or(0, |floor| floor.len));
    let sizes = || versions(floor.all.max(floor.sized)).map(|version| version.len());
    let (shortest, longest) = (sizes().min().unwrap_or(0).max(promised), sizes().max().unwrap_or(0));
    if !(shortest..=longest).contains(&found.len()) {
        return Err(format!("{} bytes, not {shortest} to {longest}", found.len()));
    }
    for start in (0..found.len()).step_by(unit) {
        let end = (start + unit).min(found.len());
        let from = floor.blocks.get(&(start / BLOCK)).map_or(floor.all, |&block| block.max(floor.all));
        if !versions(from).any(|version| version.get(start..end) == Some(&found[start..end])) {
            return Err(format!(
                "bytes {start} to {end} of {} were never so since state {from}",
                found.len()
            ));
        }
    }
    Ok(())
}

/// Whether what was found can be there after a crash.
fn judge(
    states: &[State],
    acknowledged: usize,
    in_flight: bool,
    found: &BTreeMap<String, Vec<u8>>,
    unit: usize,
) -> Result<(), String> {
    let last = acknowledged + usize::from(in_flight);
    let mut why = format!("the names are {:?}", found.keys());
    for state in (acknowledged..=last).rev() {
        let names = &states[state].names;
        if !names.keys().copied().eq(found.keys().map(String::as_str)) {
            continue;
        }
        let files = names.iter().try_for_each(|(name, &file)| {
            explain(states, state, last, file, &found[*name], unit).map_err(|why| format!("{name}: {why}"))
        });
        match files {
            Ok(()) => return Ok(()),
            Err(other) => why = other,
        }
    }
    Err(why)
}

/// Crashes a recorded sequence at every fence. Gives the number of images, or the first that cannot be explained.
fn explore<S: Subject>(
    subject: &S,
    pm: &Arc<SimPm>,
    recording: &Recording,
    seed: u64,
) -> Result<u64, String> {
    let unit = if subject.atomic_write() { BLOCK } else { 8 };
    let sampling = Sampling { exhaustive_up_to: 16, samples: 12, seed };
    let mut replay = Replay::new(recording.start.clone(), &recording.trace);
    let mut count = 0;
    while let Some(point) = replay.advance() {
        let (acknowledged, in_flight) = match point.last_mark {
            None => (0, false),
            Some(mark) => (mark.div_ceil(2) as usize, mark % 2 == 0),
        };
        pm.load(replay.media());
        for image in replay.images(&sampling).iter() {
            image.apply(pm);
            count += 1;
            let situation = || {
                let op = recording.ops.get(acknowledged).filter(|_| in_flight);
                format!(
                    "seed {seed}, point {}, {acknowledged} acknowledged, in flight {op:?}, {image:?}",
                    point.index
                )
            };
            if count % 8 == 0 {
                let problems =
                    subject.check(pm, true).map_err(|error| format!("{}: {error}", situation()))?;
                if !problems.is_empty() {
                    return Err(format!("{}: {problems:?}", situation()));
                }
            }
            subject.use_lane(0);
            let found = subject.mount(pm, Mounting::default()).and_then(|fs| {
                let found = contents(&fs);
                subject.abandon(fs);
                found
            });
            let found = found.map_err(|error| format!("{}: {error}", situation()))?;
            judge(&recording.states, acknowledged, in_flight, &found, unit)
                .map_err(|why| format!("{}: {why}", situation()))?;
            pm.load(replay.media());
        }
    }
    Ok(count)
}

/// Explores sequences until there were so many images.
fn survives<S: Subject>(subject: &S)
where
    S::Fs: 'static,
{
    stay_on_this_thread();
    let pm = Arc::new(SimPm::new(MEMORY));
    let blank = Image::zeros(MEMORY);
    let (mut images, mut seed) = (0, number("NACRE_CRASH_SEED").unwrap_or(1));
    while images < number("NACRE_CRASH_IMAGES").unwrap_or(4000) {
        pm.load(&blank);
        let recording = record(subject, &pm, seed, Belief::Right, None);
        images += explore(subject, &pm, &recording, seed).unwrap_or_else(|why| panic!("{why}"));
        seed += 1;
    }
    println!("{}: {images} images, up to seed {}", subject.name(), seed - 1);
}

/// Sequences with a flaw: in one of them a crash shows it.
fn is_found<S: Subject>(subject: &S, belief: Belief, defect: Option<Defect>, mistake: u32)
where
    S::Fs: 'static,
{
    stay_on_this_thread();
    let pm = Arc::new(SimPm::new(MEMORY));
    let blank = Image::zeros(MEMORY);
    let found = (1..40).find_map(|seed| {
        pm.load(&blank);
        pm.seed_mistake(0);
        subject.mkfs(&pm).expect("mkfs");
        pm.seed_mistake(mistake);
        let recording = record(subject, &pm, seed, belief, defect);
        explore(subject, &pm, &recording, seed).err()
    });
    let flaw = (belief, defect, mistake);
    println!("{}: {flaw:?}: {}", subject.name(), found.unwrap_or_else(|| panic!("{flaw:?} is not found")));
}

fn mistake<S: Subject>(subject: &S, words: &str) -> u32 {
    let all = subject.mistakes();
    all.iter().find(|mistake| mistake.words == words).unwrap_or_else(|| panic!("{words} is a mistake")).number
}

#[test]
fn what_was_synchronised_survives_on_the_log_layout() {
    survives(&Log);
}

#[test]
fn what_was_synchronised_survives_on_the_inplace_layout() {
    survives(&Inplace);
}

/// The judge is not blind: whoever believes in more than is promised is shown a crash, and so is a broken machine.
#[test]
fn wrong_beliefs_and_flaws_are_found() {
    for belief in [Belief::LostSync, Belief::DurableOnReturn, Belief::RenameSyncs] {
        is_found(&Log, belief, None, 0);
        is_found(&Inplace, belief, None, 0);
    }
    is_found(&Log, Belief::Right, Some(Defect::NoFences), 0);
    is_found(&Inplace, Belief::Right, Some(Defect::NoFences), 0);
    is_found(
        &Inplace,
        Belief::Right,
        None,
        mistake(&Inplace, "a single word is stored before its data is durable"),
    );
    is_found(&Log, Belief::Right, None, mistake(&Log, "an entry is published before its data is durable"));
}
