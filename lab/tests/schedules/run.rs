//! Running the threads of a workload in many schedules.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nacre_engine::sync::shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use nacre_engine::sync::shuttle::{Config, MaxSteps, Runner, thread};
use nacre_engine::{Data, Result};
use nacre_lab::crash::{Mounting, Subject, stay_on_this_thread};
use nacre_lab::environment::number;
use nacre_media::{Image, SimPm};

use crate::call::{Call, Ground, Tree, tree};
use crate::layouts::each_layout;
use crate::order::{Event, Orders, set_up};

const MEMORY: u64 = 16 << 20;
/// Schedules of each workload under each of the schedulers when the environment does not say how many.
const SCHEDULES: usize = 100;
/// The number of no mistake.
const NONE: u32 = 0;
/// Times that the scheduler PCT changes its mind.
const DEPTH: usize = 3;

/// Two lanes, and the background thread of a layout that has one, or not.
fn mounting(background: bool) -> Mounting {
    Mounting { lanes: 2, background, ..Mounting::default() }
}

fn assert_sound<S: Layout>(subject: S, pm: &Arc<SimPm>, after: &dyn std::fmt::Debug) {
    let problems = subject.check(pm).expect("it can be checked");
    assert!(problems.is_empty(), "after {after:#?}: {problems:#?}");
}

/// What many schedules share: a layout, by itself or below a write buffer.
pub(crate) trait Layout: Copy + Send + Sync + 'static {
    type Fs: Data;

    fn name(&self) -> String;
    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()>;
    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<Self::Fs>;
    fn unmount(&self, fs: Self::Fs) -> Result<()>;
    /// Lets go of it without an unmount. What waits for media has to be written first.
    fn abandon(&self, fs: Self::Fs);
    fn check(&self, pm: &Arc<SimPm>) -> Result<Vec<String>>;
}

impl<S: Subject + Copy + Send + 'static> Layout for S {
    type Fs = S::Fs;

    fn name(&self) -> String {
        Subject::name(self).to_owned()
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        Subject::mkfs(self, pm)
    }

    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<S::Fs> {
        Subject::mount(self, pm, mounting)
    }

    fn unmount(&self, fs: S::Fs) -> Result<()> {
        Subject::unmount(self, fs)
    }

    fn abandon(&self, fs: S::Fs) {
        Subject::abandon(self, fs);
    }

    fn check(&self, pm: &Arc<SimPm>) -> Result<Vec<String>> {
        Subject::check(self, pm, false)
    }
}

/// Whether a layout is to be explored: all are, or that which `NACRE_LAYOUT` names.
fn is_wanted(subject: impl Layout) -> bool {
    std::env::var("NACRE_LAYOUT").map_or(true, |wanted| wanted == subject.name())
}

/// What several threads call.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    pub(crate) setup: Vec<Call>,
    pub(crate) threads: Vec<Vec<Call>>,
    /// Made when all threads have ended.
    pub(crate) after: Vec<Call>,
}

/// How the threads are scheduled.
#[derive(Debug, Clone)]
pub(crate) enum How {
    Random(u64, usize),
    Pct(u64, usize),
    Again(String),
}

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    number("NACRE_SEED").unwrap_or(1)
}

/// The number of schedules: `NACRE_SCHEDULES`.
pub(crate) fn schedules() -> usize {
    number("NACRE_SCHEDULES").map_or(SCHEDULES, |count| count as usize)
}

/// Explores a workload on each layout; panics with what is wrong, after shuttle has printed the schedule.
pub(crate) fn explore(workload: &Workload) {
    explore_some(workload, schedules());
}

/// Explores `count` schedules of each kind on each layout.
pub(crate) fn explore_some(workload: &Workload, count: usize) {
    macro_rules! explore_layout {
        ($layout:ident, $registered:ty) => {
            explore_on(<$registered>::default(), workload, count)
        };
    }
    each_layout!(explore_layout);
}

/// Explores `count` schedules of each kind on one layout.
pub(crate) fn explore_on(subject: impl Layout, workload: &Workload, count: usize) {
    if !is_wanted(subject) {
        return;
    }
    // What a failure is of, for who wants to see it again.
    println!("layout {}", subject.name());
    if let Ok(schedule) = std::env::var("NACRE_SCHEDULE") {
        return run(subject, workload, &How::Again(schedule), NONE);
    }
    run(subject, workload, &How::Random(seed(), count), NONE);
    run(subject, workload, &How::Pct(seed(), count), NONE);
}

/// Whether a layout with a mistake on purpose, of this number, is found to be wrong.
pub(crate) fn finds(subject: impl Layout, workload: &Workload, mistake: u32) -> bool {
    // A thread that has to do all its work within a small window of another one is rare where each step is drawn.
    let tries = [How::Pct(1, 2000), How::Random(1, 2000)];
    tries.iter().any(|how| catch_unwind(AssertUnwindSafe(|| run(subject, workload, how, mistake))).is_err())
}

thread_local! {
    /// The memory of this test, which all schedules use.
    static PM: RefCell<Option<Arc<SimPm>>> = const { RefCell::new(None) };
}

/// Explores what `body` does with a file system that has the ground and nothing else; it gives the layout back.
pub(crate) fn explore_with<S: Layout>(
    subject: S,
    body: impl Fn(S::Fs) -> S::Fs + Copy + Send + Sync + 'static,
) {
    if !is_wanted(subject) {
        return;
    }
    println!("layout {}", subject.name());
    stay_on_this_thread();
    let pm = memory();
    let base = prepare(subject, &Workload { setup: Vec::new(), threads: Vec::new(), after: Vec::new() }, &pm);
    let once = move || {
        pm.load(&base);
        let fs = body(subject.mount(&pm, mounting(true)).expect("mount"));
        subject.unmount(fs).expect("unmount");
        assert_sound(subject, &pm, &"the calls");
    };
    if let Ok(schedule) = std::env::var("NACRE_SCHEDULE") {
        return start(ReplayScheduler::new_from_encoded(&schedule), once);
    }
    start(RandomScheduler::new_from_seed(seed(), schedules()), once.clone());
    start(PctScheduler::new_from_seed(seed(), DEPTH, schedules()), once);
}

fn memory() -> Arc<SimPm> {
    PM.with_borrow_mut(|pm| Arc::clone(pm.get_or_insert_with(|| Arc::new(SimPm::new(MEMORY)))))
}

fn run(subject: impl Layout, workload: &Workload, how: &How, mistake: u32) {
    stay_on_this_thread();
    let pm = memory();
    let base = prepare(subject, workload, &pm);
    let orders = Arc::new(Mutex::new(Orders::new(&workload.setup)));
    let workload = workload.clone();
    let once = move || once(subject, &workload, &pm, &base, &orders, mistake);
    match how {
        How::Random(seed, count) => start(RandomScheduler::new_from_seed(*seed, *count), once),
        How::Pct(seed, count) => start(PctScheduler::new_from_seed(*seed, DEPTH, *count), once),
        How::Again(schedule) => start(ReplayScheduler::new_from_encoded(schedule), once),
    }
}

fn start(scheduler: impl Scheduler + 'static, once: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(10_000_000);
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(once);
}

/// The file system that each schedule begins with.
fn prepare(subject: impl Layout, workload: &Workload, pm: &Arc<SimPm>) -> Image {
    let (pm, setup) = (Arc::clone(pm), workload.setup.clone());
    let made = Arc::new(Mutex::new(None));
    let result = Arc::clone(&made);
    start(RandomScheduler::new_from_seed(0, 1), move || {
        pm.seed_mistake(0);
        pm.load(&Image::zeros(MEMORY));
        subject.mkfs(&pm).expect("mkfs");
        let fs = subject.mount(&pm, mounting(true)).expect("mount");
        let ground = Ground::new(fs).expect("the ground");
        set_up(&ground, &setup);
        subject.unmount(ground.into_fs()).expect("unmount");
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(pm.image());
    });
    let image = made.lock().unwrap_or_else(PoisonError::into_inner).take();
    image.expect("it was made")
}

/// One schedule.
fn once<S: Layout>(
    subject: S,
    workload: &Workload,
    pm: &Arc<SimPm>,
    base: &Image,
    orders: &Mutex<Orders>,
    mistake: u32,
) {
    pm.seed_mistake(0);
    pm.load(base);
    let ground =
        Arc::new(Ground::new(subject.mount(pm, mounting(true)).expect("mount")).expect("the ground"));
    pm.seed_mistake(mistake);
    let clock = Arc::new(AtomicU64::new(0));
    let mut first = 0;
    let threads: Vec<_> = workload
        .threads
        .iter()
        .map(|calls| {
            let (ground, clock, calls, from) =
                (Arc::clone(&ground), Arc::clone(&clock), calls.clone(), first);
            first += calls.len() as u32;
            thread::spawn(move || {
                let make = |(&call, number): (&Call, u32)| {
                    let began = clock.fetch_add(1, Ordering::SeqCst);
                    let answer = ground.make(call, number);
                    Event { number, call, answer, began, ended: clock.fetch_add(1, Ordering::SeqCst) }
                };
                calls.iter().zip(10_000 + from..).map(make).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut events: Vec<Event> =
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
    pm.seed_mistake(0);
    for (&call, number) in workload.after.iter().zip(20_000..) {
        let answer = ground.make(call, number);
        events.push(Event { number, call, answer, began: number.into(), ended: number.into() });
    }
    let left = ground.tree().expect("it can be read");
    let explained = orders.lock().unwrap_or_else(PoisonError::into_inner).explain(&events, &left);
    assert!(explained, "no order of these calls explains {events:#?} and {left:#?}");

    // What a mount finds afterwards is what there was, whether this one was unmounted or not.
    let fs = Arc::into_inner(ground).expect("all threads have ended").into_fs();
    let dies = events.iter().map(|event| event.began * u64::from(event.number)).sum::<u64>() % 2 == 0;
    if dies {
        subject.abandon(fs);
    } else {
        subject.unmount(fs).expect("unmount");
    }
    assert_sound(subject, pm, &events);
    let again = tree(&subject.mount(pm, mounting(false)).expect("mount")).expect("it can be read");
    let named: Tree = left.into_iter().filter(|(path, _)| !path.starts_with("open")).collect();
    assert!(again == named, "after {events:#?} there was {named:#?}, and after a mount {again:#?}");
}
