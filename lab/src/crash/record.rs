//! Running a workload with a trace, beside the reference model.

use std::collections::HashMap;
use std::sync::Arc;

use nacre_engine::{Data, Error, Extents, Kind, Result, SetAttr, Timestamp};
use nacre_media::crash::CrashImage;
use nacre_media::sim::{Defect, Event, Site, StoreKind};
use nacre_media::{Image, SimPm, Trace};

use super::cached::BufferMistake;
use super::models::Models;
use super::op::{Op, Runner, time};
use super::subject::{Mounting, Subject};
use super::threads::Threads;
use super::tree::Tree;
use super::verify::{caught, free_when_empty, panic_words};
use super::volumes::alone;
use super::workload::Workload;
use crate::model::MemLayout;

/// Marks in a trace: operation *n* begins; operation *n*, which makes a file system, has made it; operation *n* was
/// acknowledged.
pub(super) const MARK_BEGIN: u64 = 1 << 32;
const MARK_MADE: u64 = 2 << 32;
pub(super) const MARK_END: u64 = 3 << 32;
/// Prepared images that a rig keeps.
const MAX_PREPARED: usize = 16;

/// The deliberate flaw, to test whether it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flaw {
    /// Nothing.
    #[default]
    None,
    /// The simulated PM does not do as it is told.
    Memory(Defect),
    /// The layout makes the mistake with this number.
    Layout(u32),
    /// The write buffer over it makes this one.
    Cache(BufferMistake),
}

impl Flaw {
    pub(super) fn defect(self) -> Option<Defect> {
        match self {
            Flaw::Memory(defect) => Some(defect),
            _ => None,
        }
    }

    pub(super) fn mistake(self) -> u32 {
        match self {
            Flaw::Layout(number) => number,
            _ => 0,
        }
    }

    pub(super) fn of_buffer(self) -> Option<BufferMistake> {
        match self {
            Flaw::Cache(mistake) => Some(mistake),
            _ => None,
        }
    }
}

/// A workload that was run, and the states that a crash may leave.
#[derive(Debug)]
pub struct Recording {
    /// The contents of simulated PM when the first operation began, all of it durable.
    pub start: Image,
    /// The operations.
    pub trace: Trace,
    /// The model after so many of them.
    pub states: Vec<Tree>,
    /// Where the running system differed from the model, in words.
    pub live_differences: Vec<String>,
    /// How it was mounted after so many of them: with which volume.
    pub(super) mountings: Vec<Mounting>,
    /// So many blocks are free when everything is removed, without a crash.
    pub free_when_empty: u64,
}

impl Recording {
    /// The lines of the program that flush (or store past the cache), and those that fence, each once.
    pub fn sites(&self) -> (Vec<Site>, Vec<Site>) {
        sites_of(&self.trace)
    }
}

/// See [`Recording::sites`].
pub(super) fn sites_of(trace: &Trace) -> (Vec<Site>, Vec<Site>) {
    let (mut flushes, mut fences) = (Vec::new(), Vec::new());
    for event in &trace.events {
        match event {
            Event::Flush { site, .. } | Event::Store { kind: StoreKind::NonTemporal, site, .. } => {
                flushes.push(*site);
            }
            Event::Fence { site, .. } => fences.push(*site),
            _ => {}
        }
    }
    for list in [&mut flushes, &mut fences] {
        list.sort_unstable();
        list.dedup();
    }
    (flushes, fences)
}

/// How far the workload was at a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Progress {
    /// Operations that were acknowledged.
    pub(super) acknowledged: usize,
    /// One more was in flight.
    pub(super) in_flight: bool,
    /// That one makes a file system, and has made it.
    pub(super) made: bool,
}

impl Progress {
    /// From the last mark before the crash.
    pub(super) fn at(last_mark: Option<u64>) -> Progress {
        match last_mark {
            Some(mark) if mark >= MARK_END => {
                Progress { acknowledged: (mark - MARK_END) as usize + 1, in_flight: false, made: false }
            }
            Some(mark) if mark >= MARK_MADE => {
                Progress { acknowledged: (mark - MARK_MADE) as usize, in_flight: true, made: true }
            }
            Some(mark) => {
                Progress { acknowledged: (mark - MARK_BEGIN) as usize, in_flight: true, made: false }
            }
            None => Progress { acknowledged: 0, in_flight: false, made: false },
        }
    }

    /// The workload is explored from here on.
    pub(super) fn is_explored(self, workload: &Workload) -> bool {
        self.acknowledged + usize::from(self.in_flight) > workload.explored_from
    }

    /// The states that may be seen: from the first of these to the last.
    pub(super) fn allowed(self) -> std::ops::RangeInclusive<usize> {
        self.acknowledged..=self.acknowledged + usize::from(self.in_flight)
    }

    /// The operation in flight, and the lines that landed.
    pub(super) fn situation(self, ops: &[Op], image: &CrashImage) -> String {
        let doing = match self {
            Progress { acknowledged, in_flight: true, .. } => format!("during \"{:?}\"", ops[acknowledged]),
            Progress { acknowledged: 0, .. } => "before the first operation".to_owned(),
            Progress { acknowledged, .. } => format!("after \"{:?}\"", ops[acknowledged - 1]),
        };
        format!("{doing}; {image:?}")
    }
}

/// Simulated PM to run workloads in and to recover their images in, for one thread. It is reused, because creating one
/// takes longer than exploring it.
pub struct Rig<'s, S: Subject> {
    pub(super) subject: &'s S,
    pub(super) pm: Arc<SimPm>,
    /// An image of zeros.
    pub(super) blank: Image,
    prepared: HashMap<String, Arc<Prepared>>,
}

/// A file system after the preparation of a workload, unmounted, and the model of it.
struct Prepared {
    image: Image,
    models: Models,
    live_differences: Vec<String>,
    free_when_empty: u64,
}

/// A mounted file system, and the model of it.
struct Pair<S: Subject> {
    real: Runner<S::Fs>,
    models: Models,
    /// Where they differ, in words.
    live: Vec<String>,
    mounting: Mounting,
    fills: bool,
}

/// Makes the calling thread run work that recovery would hand to a pool of threads.
pub fn stay_on_this_thread() {
    thread_local!(static POOL: Option<rayon::ThreadPool> =
        rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().ok());
    POOL.with(|_| ());
}

impl<'s, S: Subject> Rig<'s, S> {
    /// A rig with simulated PM of `len` bytes.
    pub fn new(subject: &'s S, len: u64) -> Rig<'s, S> {
        stay_on_this_thread();
        let disks = subject.disks();
        // Memory without disks may be of any number of lines.
        let pm = if disks.is_empty() { SimPm::new(len) } else { SimPm::with_disks(len, disks) };
        let blank = Image::zeros(len + disks.iter().sum::<u64>());
        Rig { subject, pm: Arc::new(pm), blank, prepared: HashMap::new() }
    }

    /// A file system on which threads can begin, the model of it, and its free blocks when everything is removed.
    pub(super) fn prepare(&mut self, threads: &Threads) -> Result<(Image, MemLayout, u64)> {
        let prepared = self.prepared(&threads.setup, 1, threads.fills)?;
        Ok((prepared.image.clone(), prepared.models.used.fs.remount(), prepared.free_when_empty))
    }

    fn prepared(&mut self, setup: &[Op], lanes: usize, fills: bool) -> Result<Arc<Prepared>> {
        let ops: Vec<String> = setup.iter().map(Op::to_text).collect();
        let key = format!("{lanes} {fills} {}", ops.join("\n"));
        let mounting = Mounting { lanes, ..Mounting::default() };
        if let Some(prepared) = self.prepared.get(&key) {
            return Ok(Arc::clone(prepared));
        }
        self.pm.seed_mistake(0);
        self.pm.load(&self.blank);
        self.subject.mkfs(&self.pm)?;
        let mut pair = self.mounted(Models::default(), mounting, fills)?;
        adopt_root(&pair.real.fs, &pair.models.used.fs)?;
        for (step, op) in setup.iter().enumerate() {
            self.subject.use_lane(step);
            pair = self.do_step(pair, step as u64, op)?;
        }
        let Pair { real, models, live, .. } = pair;
        self.subject.unmount(real.into_fs())?;
        let image = self.pm.image();
        let fs = self.subject.mount(&self.pm, models.mounting(mounting))?;
        let free_when_empty = free_when_empty(self.subject, alone(self.subject, &self.pm, fs)?, fills, 0)?;
        // Nothing is held.
        let models = models.remount();
        let prepared = Arc::new(Prepared { image, models, live_differences: live, free_when_empty });
        if self.prepared.len() >= MAX_PREPARED {
            self.prepared.clear();
        }
        self.prepared.insert(key, Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Mounts the volume that the models say, beside these models.
    fn mounted(&self, models: Models, mounting: Mounting, fills: bool) -> Result<Pair<S>> {
        let fs = self.subject.mount(&self.pm, models.mounting(mounting))?;
        let real = Runner::writing(fs, self.subject.writes_back());
        Ok(Pair { real, models, live: Vec::new(), mounting, fills })
    }

    /// The same after an unmount and a mount, with something done in between.
    fn remounted(
        &self,
        pair: Pair<S>,
        between: impl FnOnce(&mut Models, &mut Vec<String>) -> Result<()>,
    ) -> Result<Pair<S>> {
        let Pair { real, models, mut live, mounting, fills } = pair;
        self.subject.unmount(real.into_fs())?;
        let mut models = models.remount();
        between(&mut models, &mut live)?;
        Ok(Pair { live, ..self.mounted(models, mounting, fills)? })
    }

    /// Does one operation, on the file system or on its volumes, and in the model.
    fn do_step(&self, mut pair: Pair<S>, step: u64, op: &Op) -> Result<Pair<S>> {
        if op.is_of_volumes() {
            return self.remounted(pair, |models, live| self.change_volumes(models, step, op, live));
        }
        let Pair { real, models, live, fills, .. } = &mut pair;
        self.run_step(real, &mut models.used, step, op, *fills, live)?;
        Ok(pair)
    }

    /// Makes or removes a volume, or changes over to one, while none is mounted.
    fn change_volumes(&self, models: &mut Models, step: u64, op: &Op, live: &mut Vec<String>) -> Result<()> {
        let Some(volumes) = self.subject.volumes() else {
            return Err(Error::new(Kind::Unsupported).object(format!("{op:?} where there are no volumes")));
        };
        let list = || volumes.list(&self.pm);
        let refusal = models.refusal(op);
        let done = match op {
            // The layout is not asked.
            _ if refusal == Some(Kind::Busy) => return Ok(()),
            Op::MakeVolume(name, quota) => volumes.make(&self.pm, name, *quota, time(step)),
            Op::RemoveVolume(name) => volumes.remove(&self.pm, name),
            Op::UseVolume(name) if list()?.iter().any(|volume| volume.name == *name) => Ok(()),
            _ => Err(Error::new(Kind::NotFound)),
        };
        match done {
            Ok(()) if refusal.is_some() => live.push(format!("{op:?} is done instead of {refusal:?}")),
            Ok(()) => models.change(step, op)?,
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Media) => return Err(error),
            Err(error) if Some(error.kind()) == refusal => {}
            Err(error) => live.push(format!("{op:?}: {error}")),
        }
        let listed = list()?.into_iter().map(|volume| (volume.name, volume.quota)).collect();
        if models.list() != listed {
            live.push(format!("after {op:?}: the volumes {listed:?} instead of {:?}", models.list()));
        }
        Ok(())
    }

    fn run_step<B: Data + Extents>(
        &self,
        real: &mut Runner<S::Fs>,
        model: &mut Runner<B>,
        step: u64,
        op: &Op,
        fills: bool,
        live: &mut Vec<String>,
    ) -> Result<()> {
        match self.subject.relocate(&real.fs, op) {
            None => run_both(real, model, step, op, fills, live),
            Some(done) => {
                // A name that is not there, a file that is none: as for everybody else.
                live.extend(
                    done.as_ref()
                        .err()
                        .filter(|error| is_unexpected(error))
                        .map(|error| format!("{op:?}: {error}")),
                );
                Ok(())
            }
        }
    }

    /// Runs a workload and the model of it. A panic is an error.
    pub fn record(&mut self, workload: &Workload, flaw: Flaw) -> Result<Recording> {
        let recording = caught(|| self.record_uncaught(workload, flaw));
        self.pm.stop_recording();
        self.pm.seed_mistake(0);
        recording.unwrap_or_else(|panic| {
            let words = panic_words(&*panic).to_string();
            Err(Error::corrupt(format!("panic in {}: {words}", workload.name)))
        })
    }

    fn record_uncaught(&mut self, workload: &Workload, flaw: Flaw) -> Result<Recording> {
        let Workload { mounting, fills, .. } = *workload;
        let prepared = self.prepared(&workload.setup, mounting.lanes, fills)?;
        self.pm.load(&prepared.image);
        self.pm.seed_mistake(flaw.mistake());
        let mut pair = self.mounted(prepared.models.remount(), mounting, fills)?;
        pair.live.clone_from(&prepared.live_differences);
        for op in &workload.setup {
            if let Op::Damage(kind, number, twin) = *op {
                self.subject.damage(&self.pm, kind, number, twin)?;
            }
        }
        let start = self.pm.image();
        self.pm.start_recording_with(flaw.defect());
        let reads = workload.ops.iter().any(|op| matches!(op, Op::Read(_)));
        let mut states = vec![pair.models.state()?];
        let mut mountings = vec![pair.models.mounting(mounting)];
        for (index, op) in workload.ops.iter().enumerate() {
            self.pm.mark(MARK_BEGIN + index as u64);
            let step = (workload.setup.len() + index) as u64;
            self.subject.use_lane(step as usize);
            pair = match op {
                Op::Remount => self.remounted(pair, |_, _| Ok(()))?,
                Op::Mkfs => self.remade(pair, index)?,
                _ => self.do_step(pair, step, op)?,
            };
            self.pm.mark(MARK_END + index as u64);
            mountings.push(pair.models.mounting(mounting));
            if index + 1 < workload.explored_from {
                // This state is not needed: no crash comes near it.
                states.push(Tree::default());
                continue;
            }
            let differences = Tree::of(&pair.models.used.fs)?.differences(&Tree::of(&pair.real.fs)?);
            pair.live.extend(differences.into_iter().map(|difference| format!("after {op:?}: {difference}")));
            let state = pair.models.state()?;
            let state = if reads { state.after_reads() } else { state };
            let overwritten = fills && workload.ops[..=index].iter().any(Op::overwrites);
            states.push(if overwritten { state.after_overwrites() } else { state });
        }
        // The trace ends with the workload: closing files is not part of it.
        let trace = self.pm.stop_recording();
        let Pair { real, live, .. } = pair;
        let real = real.into_fs();
        let mut free = prepared.free_when_empty;
        if live.is_empty() {
            // Its operations, or one alone, may have made something that stays, as chunks of inodes do. So may what the
            // judge makes, where a crash left more inodes than there are at the end.
            let most = states.iter().map(Tree::inodes).max().unwrap_or(0);
            let real = alone(self.subject, &self.pm, real)?;
            free = free.min(free_when_empty(self.subject, real, fills, most)?);
        } else {
            self.subject.abandon(real);
        }
        Ok(Recording { start, trace, states, mountings, live_differences: live, free_when_empty: free })
    }

    /// Another file system in the place of this one.
    fn remade(&self, pair: Pair<S>, index: usize) -> Result<Pair<S>> {
        let Pair { real, live, mounting, fills, .. } = pair;
        self.subject.abandon(real.into_fs());
        self.subject.remake(&self.pm)?;
        self.pm.mark(MARK_MADE + index as u64);
        let pair = self.mounted(Models::default(), mounting, fills)?;
        adopt_root(&pair.real.fs, &pair.models.used.fs)?;
        Ok(Pair { live, ..pair })
    }
}

/// Whether relocating blocks must not fail with this error.
pub(super) fn is_unexpected(error: &Error) -> bool {
    !matches!(error.kind(), Kind::NotFound | Kind::NotDirectory | Kind::NoSpace | Kind::InvalidInput)
}

fn run_both<A: Data + Extents, B: Data + Extents>(
    real: &mut Runner<A>,
    model: &mut Runner<B>,
    step: u64,
    op: &Op,
    fills: bool,
    live: &mut Vec<String>,
) -> Result<()> {
    let found = real.run(step, op);
    if fills && found.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace) {
        return Ok(()); // the model, which is never full, does not do it either
    }
    let expected = model.run(step, op);
    let kinds = (found.as_ref().err().map(Error::kind), expected.as_ref().err().map(Error::kind));
    if kinds.0 != kinds.1 {
        live.push(format!("{op:?}: {found:?} instead of {expected:?}"));
    }
    match found {
        Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Media) => Err(error),
        _ => Ok(()),
    }
}

/// Gives both roots the same attributes, because the layout chose times and a mode of its own when the file system was
/// made.
fn adopt_root<A: Data, B: Data>(real: &A, model: &B) -> Result<()> {
    let now = Timestamp::new(999_999, 0);
    let change = SetAttr {
        mode: Some(0o755),
        uid: Some(0),
        gid: Some(0),
        atime: Some(now),
        mtime: Some(now),
        ..Default::default()
    };
    real.setattr(&real.root(), &change, now)?;
    model.setattr(&model.root(), &change, now)?;
    Ok(())
}
