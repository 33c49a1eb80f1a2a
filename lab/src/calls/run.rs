//! Running a sequence on two targets, and finding the shortest one that fails.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use nacre_engine::Kind;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::call::Call;
use super::generate::Generator;
use super::play::{Answer, Player};
use crate::suite::{SetTime, Target};

/// Time limit of a search for a shorter sequence; the shortest one so far is kept.
const SHRINK_LIMIT: Duration = Duration::from_secs(60);

/// From so many calls on, the share of each kind is no matter of luck.
const ENOUGH: u64 = 20_000;

/// Settings of the sequences to run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Calls of each.
    pub calls: usize,
    /// Whole trees are compared after so many calls, and at the end.
    pub compare_every: usize,
    /// One call in so many is a mount, after an unmount or a crash, of targets that can.
    pub remount_every: Option<u32>,
    /// Allocated bytes are those of the blocks that were written.
    pub exact_allocation: bool,
}

/// Counts of the calls that sequences made.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// For each call: how often it was made, and how often it succeeded.
    pub calls: BTreeMap<&'static str, (u64, u64)>,
}

impl Stats {
    /// All calls: made, and succeeded.
    pub fn total(&self) -> (u64, u64) {
        self.calls.values().fold((0, 0), |sum, (made, good)| (sum.0 + made, sum.1 + good))
    }

    /// Panics if a kind of call succeeded less than once in a hundred calls, because such a run says little about it. A
    /// run that is too short to judge passes.
    pub fn assert_mixed(&self) {
        let made = self.total().0;
        if made < ENOUGH {
            return;
        }
        let wanted = made as f64 / 100.0;
        // Four standard deviations: what is one in a hundred is a little less in every other run.
        let least = wanted - 4.0 * wanted.sqrt();
        for (name, (_, succeeded)) in &self.calls {
            // How often a target is mounted is a setting.
            let is_setting = [Call::Remount.name(), Call::Crash.name()].contains(name);
            assert!(
                is_setting || *succeeded as f64 >= least,
                "{name}: {succeeded} successes of {made} calls"
            );
        }
    }

    /// Adds the counts of another sequence.
    pub fn add(&mut self, other: &Stats) {
        for (name, (made, good)) in &other.calls {
            let entry = self.calls.entry(name).or_default();
            entry.0 += made;
            entry.1 += good;
        }
    }

    fn count(&mut self, call: &Call, answer: &Answer) {
        let entry = self.calls.entry(call.name()).or_default();
        entry.0 += 1;
        entry.1 += u64::from(!matches!(answer, Answer::Failed(_)));
    }
}

/// A difference from the model, and how to see it again.
pub struct Failure {
    what: String,
    seed: u64,
    message: String,
    /// The shortest sequence that was found to fail.
    pub sequence: Vec<Call>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.what, self.message)?;
        writeln!(f, "NACRE_SEED={} runs it again; {} calls are enough:", self.seed, self.sequence.len())?;
        self.sequence.iter().enumerate().try_for_each(|(step, call)| writeln!(f, "  {step}. {call:?}"))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct Broken {
    /// Calls that were made until it was seen.
    made: usize,
    message: String,
}

/// Where the calls of a run come from.
enum Calls<'c> {
    New(Generator, usize),
    List(&'c [Call]),
}

/// The two file systems that are compared, and the directory on each.
struct Pair<'p> {
    subject: &'p mut dyn Target,
    model: &'p mut dyn Target,
    /// Runs so far: each has a directory of its own.
    runs: usize,
    settings: Settings,
}

/// Runs the sequence of this seed on both; a failure comes with the shortest sequence that could be found for it.
pub fn check(
    subject: &mut dyn Target,
    model: &mut dyn Target,
    seed: u64,
    settings: Settings,
) -> Result<Stats, Failure> {
    let what = format!("{} differs from {}", subject.describe(), model.describe());
    let mut pair = Pair { subject, model, runs: 0, settings };
    let mut made = Vec::new();
    let mut stats = Stats::default();
    let generator = Generator::new(seed, settings.remount_every);
    let Err(broken) = pair.run(Calls::New(generator, settings.calls), &mut made, &mut stats) else {
        return Ok(stats);
    };
    println!("seed {seed}, call {}: {}; looking for a shorter sequence", broken.made, broken.message);
    let (sequence, broken) = pair.shrink(made, broken);
    Err(Failure { what, seed, message: broken.message, sequence })
}

/// Runs sequences of this seed alone, or of seeds by chance until the time is over.
pub fn check_for(
    subject: &mut dyn Target,
    model: &mut dyn Target,
    settings: Settings,
    seed: Option<u64>,
    time: Duration,
) -> Result<Stats, Failure> {
    if let Some(seed) = seed {
        return check(subject, model, seed, settings);
    }
    let (start, mut rng, mut total) = (Instant::now(), SmallRng::from_os_rng(), Stats::default());
    loop {
        total.add(&check(subject, model, rng.random_range(0..1 << 32), settings)?);
        if start.elapsed() > time {
            return Ok(total);
        }
    }
}

impl Pair<'_> {
    fn fails(&mut self, calls: &[Call]) -> Option<Broken> {
        self.run(Calls::List(calls), &mut Vec::new(), &mut Stats::default()).err()
    }

    /// Drops calls as long as it still fails.
    fn shrink(&mut self, mut calls: Vec<Call>, mut broken: Broken) -> (Vec<Call>, Broken) {
        let start = Instant::now();
        self.settings.compare_every = self.settings.compare_every.min(8);
        let mut size = calls.len().div_ceil(2);
        while size > 0 && start.elapsed() < SHRINK_LIMIT {
            if calls.len() <= 60 {
                self.settings.compare_every = 1;
            }
            let (mut at, mut dropped) = (0, false);
            while at < calls.len() && start.elapsed() < SHRINK_LIMIT {
                let mut fewer = calls.clone();
                fewer.drain(at..(at + size).min(calls.len()));
                match self.fails(&fewer) {
                    Some(again) => {
                        fewer.truncate(again.made);
                        (calls, broken, dropped) = (fewer, again, true);
                    }
                    None => at += size,
                }
            }
            if !dropped || size > 1 {
                size /= 2;
            }
        }
        (calls, broken)
    }

    fn run(&mut self, mut calls: Calls<'_>, made: &mut Vec<Call>, stats: &mut Stats) -> Result<(), Broken> {
        self.runs += 1;
        let outer = format!("run-{}", self.runs);
        // Two levels, so that `..` stays inside.
        let dir = format!("{outer}/w");
        for target in [&*self.subject, &*self.model] {
            for path in [&outer, &dir] {
                target.mkdir(path.as_bytes(), 0o755).map_err(|kind| Broken {
                    made: 0,
                    message: format!("{}: mkdir {path}: {kind:?}", target.describe()),
                })?;
            }
        }
        let mut result = Ok(());
        while result.is_ok() && self.has_more(&calls, made) {
            result = self.segment(&dir, &mut calls, made, stats);
            let Some(last @ (Call::Remount | Call::Crash)) = made.last().filter(|_| result.is_ok()) else {
                continue;
            };
            match last {
                Call::Crash => self.subject.crash(),
                _ => self.subject.remount(),
            }
            self.model.remount();
            let after =
                |broken: Broken| Broken { message: format!("after {last:?}: {}", broken.message), ..broken };
            result = self.compare(&dir, made.len()).map_err(after);
            stats.count(last, &Answer::Done);
        }
        let removed = self.remove(&outer);
        result.and_then(|()| self.compare_gone(removed, made.len()))
    }

    fn has_more(&self, calls: &Calls<'_>, made: &[Call]) -> bool {
        match calls {
            Calls::New(_, count) => made.len() < *count,
            Calls::List(list) => made.len() < list.len(),
        }
    }

    /// Makes calls up to the next mount.
    fn segment(
        &mut self,
        dir: &str,
        calls: &mut Calls<'_>,
        made: &mut Vec<Call>,
        stats: &mut Stats,
    ) -> Result<(), Broken> {
        let exact = self.settings.exact_allocation;
        let mut subject = Player::new(&*self.subject, dir.as_bytes(), exact);
        let mut model = Player::new(&*self.model, dir.as_bytes(), exact);
        let mut compared = true;
        while self.has_more(calls, made) {
            let call = match calls {
                Calls::New(generator, _) => generator.call(),
                Calls::List(list) => list[made.len()].clone(),
            };
            made.push(call.clone());
            if matches!(call, Call::Remount | Call::Crash) {
                break;
            }
            let lacks = |target: &dyn Target| call.needs().iter().any(|need| target.lacks(*need).is_some());
            if lacks(&*self.subject) || lacks(&*self.model) || !makes_sense(&call, &model) {
                continue;
            }
            let (found, expected) = (subject.play(&call), model.play(&call));
            if !agree(found.as_ref(), expected.as_ref()) {
                let message = format!("{call:?}: found {found:?}, expected {expected:?}");
                return Err(Broken { made: made.len(), message });
            }
            let Some(answer) = expected else { continue };
            stats.count(&call, &answer);
            if let Calls::New(generator, _) = calls {
                generator.learn(&call, &answer);
            }
            compared = made.len().is_multiple_of(self.settings.compare_every);
            if compared {
                compare_trees(&subject, &model, made.len())?;
            }
        }
        if compared { Ok(()) } else { compare_trees(&subject, &model, made.len()) }
    }

    fn compare(&self, dir: &str, made: usize) -> Result<(), Broken> {
        let exact = self.settings.exact_allocation;
        let subject = Player::new(&*self.subject, dir.as_bytes(), exact);
        let model = Player::new(&*self.model, dir.as_bytes(), exact);
        compare_trees(&subject, &model, made)
    }

    fn remove(&self, dir: &str) -> [Result<(), String>; 2] {
        [&*self.subject, &*self.model].map(|target| Player::new(target, dir.as_bytes(), false).remove(b""))
    }

    fn compare_gone(&self, removed: [Result<(), String>; 2], made: usize) -> Result<(), Broken> {
        removed.into_iter().collect::<Result<(), String>>().map_err(|message| Broken { made, message })
    }
}

/// Whether both answers are the same. If both fail, one of them may be "name too long", because the order of checks is
/// not specified.
fn agree(found: Option<&Answer>, expected: Option<&Answer>) -> bool {
    let too_long = Some(&Answer::Failed(Kind::NameTooLong));
    let both_fail = [found, expected].iter().all(|answer| matches!(answer, Some(Answer::Failed(_))));
    found == expected || both_fail && (found == too_long || expected == too_long)
}

/// Calls that a program would not make, or that the targets take differently by design.
fn makes_sense(call: &Call, model: &Player<'_>) -> bool {
    match call {
        // The directory of the sequence stays.
        Call::Rmdir { path } | Call::Unlink { path } => !path.0.is_empty(),
        Call::Rename { from, to, .. } => !from.0.is_empty() && !to.0.is_empty(),
        // FUSE does not tell the server of it, so that set-id bits stay there.
        Call::Chown { uid: None, gid: None, .. } => false,
        // The kernel answers it for directories, in several ways.
        Call::Lseek { slot, .. } => !model.is_directory(*slot),
        // Without a time to set, the kernel does not look at the path.
        Call::Utimens { atime: SetTime::Omit, mtime: SetTime::Omit, .. } => false,
        // The position of a file that is not opened for appending is the target's own.
        Call::Append { slot, .. } => model.is_open(*slot).is_none_or(|how| how.append),
        _ => true,
    }
}

fn compare_trees(subject: &Player<'_>, model: &Player<'_>, made: usize) -> Result<(), Broken> {
    let broken = |message| Broken { made, message };
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    subject.tree(b"", &mut found).map_err(broken)?;
    model.tree(b"", &mut expected).map_err(|message| Broken { made, message })?;
    for (found, expected) in found.iter().zip(&expected) {
        if found != expected {
            let show =
                |(path, about): &(Vec<u8>, Vec<Answer>)| format!("\"{}\": {about:?}", path.escape_ascii());
            let message = format!("trees differ: found {}, expected {}", show(found), show(expected));
            return Err(Broken { made, message });
        }
    }
    if found.len() != expected.len() {
        let message = format!("trees differ: {} names, expected {}", found.len(), expected.len());
        return Err(Broken { made, message });
    }
    Ok(())
}
