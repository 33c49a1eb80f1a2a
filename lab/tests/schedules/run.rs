//! Running the threads of a workload in many schedules.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nacre_engine::sync::shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use nacre_engine::sync::shuttle::{Config, MaxSteps, Runner, thread};
use nacre_lab::crash::stay_on_this_thread;
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::{LogFs, Mistake};
use nacre_media::{Image, SimPm};
use nacre_vfs::Layout;

use crate::call::{Call, Ground, Tree, tree};
use crate::order::{Event, Orders, set_up};

const MEMORY: u64 = 16 << 20;
/// Schedules of each workload under each of the schedulers when the environment does not say how many.
const SCHEDULES: usize = 100;
/// Times that the scheduler PCT changes its mind.
const DEPTH: usize = 3;

/// A layout.
pub(crate) trait Subject: Layout {
    const NAME: &str;

    fn make(pm: &SimPm);
    /// With its background thread, if it has one, or without.
    fn mount(pm: &Arc<SimPm>, background: bool) -> Self;
    fn unmount(self);
    fn abandon(self);
    fn assert_sound(pm: &SimPm, after: &dyn std::fmt::Debug);
}

macro_rules! subject {
    ($name:literal, $layout:ident, $fs:ident, |$background:ident| $options:expr) => {
        impl Subject for $fs<SimPm> {
            const NAME: &str = $name;

            fn make(pm: &SimPm) {
                $layout::mkfs(pm, &$layout::MkfsOptions::default()).expect("mkfs");
            }

            fn mount(pm: &Arc<SimPm>, $background: bool) -> Self {
                $fs::mount(Arc::clone(pm), &$options).expect("mount")
            }

            fn unmount(self) {
                $fs::unmount(self).expect("unmount");
            }

            fn abandon(self) {
                $fs::abandon(self);
            }

            fn assert_sound(pm: &SimPm, after: &dyn std::fmt::Debug) {
                let found = $layout::check::check(pm, false).expect("it can be checked");
                assert!(found.is_sound(), "after {after:#?}: {:#?}", found.problems);
            }
        }
    };
}

subject!("log", nacre_layout_log, LogFs, |background| nacre_layout_log::MountOptions {
    lanes: Some(2),
    background,
    ..Default::default()
});
subject!("inplace", nacre_layout_inplace, InplaceFs, |_background| nacre_layout_inplace::MountOptions {
    lanes: Some(2),
    ..Default::default()
});

/// Whether a layout is to be explored: all are, or that which `NACRE_LAYOUT` names.
pub(crate) fn is_wanted<S: Subject>() -> bool {
    std::env::var("NACRE_LAYOUT").map_or(true, |wanted| wanted == S::NAME)
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

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
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
    explore_on::<LogFs<SimPm>>(workload, count);
    explore_on::<InplaceFs<SimPm>>(workload, count);
}

fn explore_on<S: Subject>(workload: &Workload, count: usize) {
    if !is_wanted::<S>() {
        return;
    }
    // What a failure is of, for who wants to see it again.
    println!("layout {}", S::NAME);
    if let Ok(schedule) = std::env::var("NACRE_SCHEDULE") {
        return run::<S>(workload, &How::Again(schedule), None);
    }
    run::<S>(workload, &How::Random(seed(), count), None);
    run::<S>(workload, &How::Pct(seed(), count), None);
}

/// Whether the log layout with a mistake on purpose is found to be wrong.
pub(crate) fn finds(workload: &Workload, mistake: Mistake) -> bool {
    // A thread that has to do all its work within a small window of another one is rare where each step is drawn.
    let tries = [How::Pct(1, 2000), How::Random(1, 2000)];
    tries.iter().any(|how| {
        catch_unwind(AssertUnwindSafe(|| run::<LogFs<SimPm>>(workload, how, Some(mistake)))).is_err()
    })
}

thread_local! {
    /// The memory of this test, which all schedules use.
    static PM: RefCell<Option<Arc<SimPm>>> = const { RefCell::new(None) };
}

/// Explores what `body` does with a file system that has the ground and nothing else; it gives the layout back.
pub(crate) fn explore_with<S: Subject>(body: fn(S) -> S) {
    if !is_wanted::<S>() {
        return;
    }
    println!("layout {}", S::NAME);
    stay_on_this_thread();
    let pm = memory();
    let base = prepare::<S>(&Workload { setup: Vec::new(), threads: Vec::new(), after: Vec::new() }, &pm);
    let once = move || {
        pm.load(&base);
        body(S::mount(&pm, true)).unmount();
        S::assert_sound(&pm, &"the calls");
    };
    start(RandomScheduler::new_from_seed(seed(), schedules()), once.clone());
    start(PctScheduler::new_from_seed(seed(), DEPTH, schedules()), once);
}

fn memory() -> Arc<SimPm> {
    PM.with_borrow_mut(|pm| Arc::clone(pm.get_or_insert_with(|| Arc::new(SimPm::new(MEMORY)))))
}

fn run<S: Subject>(workload: &Workload, how: &How, mistake: Option<Mistake>) {
    stay_on_this_thread();
    let pm = memory();
    let base = prepare::<S>(workload, &pm);
    let orders = Arc::new(Mutex::new(Orders::new(&workload.setup)));
    let workload = workload.clone();
    let once = move || once::<S>(&workload, &pm, &base, &orders, mistake);
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
fn prepare<S: Subject>(workload: &Workload, pm: &Arc<SimPm>) -> Image {
    let (pm, setup) = (Arc::clone(pm), workload.setup.clone());
    let made = Arc::new(Mutex::new(None));
    let result = Arc::clone(&made);
    start(RandomScheduler::new_from_seed(0, 1), move || {
        pm.seed_mistake(0);
        pm.load(&Image::zeros(MEMORY));
        S::make(&pm);
        let ground = Ground::new(S::mount(&pm, true)).expect("the ground");
        set_up(&ground, &setup);
        ground.into_fs().unmount();
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(pm.image());
    });
    let image = made.lock().unwrap_or_else(PoisonError::into_inner).take();
    image.expect("it was made")
}

/// One schedule.
fn once<S: Subject>(
    workload: &Workload,
    pm: &Arc<SimPm>,
    base: &Image,
    orders: &Mutex<Orders>,
    mistake: Option<Mistake>,
) {
    pm.seed_mistake(0);
    pm.load(base);
    let ground = Arc::new(Ground::new(S::mount(pm, true)).expect("the ground"));
    pm.seed_mistake(mistake.map_or(0, |mistake| mistake as u32));
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
        fs.abandon();
    } else {
        fs.unmount();
    }
    S::assert_sound(pm, &events);
    let again = tree(&S::mount(pm, false)).expect("it can be read");
    let named: Tree = left.into_iter().filter(|(path, _)| !path.starts_with("open")).collect();
    assert!(again == named, "after {events:#?} there was {named:#?}, and after a mount {again:#?}");
}
