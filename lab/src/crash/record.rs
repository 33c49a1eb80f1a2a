//! Running a workload with a trace, beside the reference model.

use std::sync::Arc;

use nacre_engine::{Error, Kind, Result};
use nacre_media::sim::{Defect, Event, StoreKind};
use nacre_media::{SimPm, Trace};

use super::op::{Op, Runner};
use super::subject::Subject;
use super::tree::Tree;
use super::verify::free_when_empty;
use super::workload::Workload;
use crate::model::MemLayout;

/// Marks in a trace: the preparation is over; operation *n* begins; operation *n* was acknowledged.
const MARK_READY: u64 = 1;
const MARK_BEGIN: u64 = 1 << 32;
const MARK_END: u64 = 2 << 32;

/// A workload that was run, and what must be seen after a crash.
#[derive(Debug)]
pub struct Recording {
    /// Everything from mkfs on, over memory that was zero.
    pub trace: Trace,
    /// Size of the memory.
    pub len: u64,
    /// The model after so many operations of the workload.
    pub states: Vec<Tree>,
    /// Where the running system differed from the model, in words.
    pub live_differences: Vec<String>,
    /// Free blocks of a new file system on which files were written and removed.
    pub free_when_empty: u64,
    /// Fences and flushes before the first operation, and in all: what a [`Defect`] counts.
    pub fences: (u64, u64),
    /// See `fences`.
    pub flushes: (u64, u64),
}

/// How far the workload was at a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// Operations that were acknowledged.
    pub(super) acknowledged: usize,
    /// One more was in flight.
    pub(super) in_flight: bool,
}

impl Progress {
    /// From the last mark before the crash; `None` while the file system was still being prepared.
    pub(super) fn at(last_mark: Option<u64>) -> Option<Progress> {
        match last_mark? {
            MARK_READY => Some(Progress { acknowledged: 0, in_flight: false }),
            mark if mark >= MARK_END => {
                Some(Progress { acknowledged: (mark - MARK_END) as usize + 1, in_flight: false })
            }
            mark if mark >= MARK_BEGIN => {
                Some(Progress { acknowledged: (mark - MARK_BEGIN) as usize, in_flight: true })
            }
            _ => None,
        }
    }

    /// The states that may be seen.
    pub(super) fn allowed(self, states: &[Tree]) -> &[Tree] {
        &states[self.acknowledged..=self.acknowledged + usize::from(self.in_flight)]
    }
}

/// Runs a workload on `subject` over memory of `len` bytes that has `defect`, and on the model.
pub fn record<S: Subject>(
    subject: &S,
    workload: &Workload,
    len: u64,
    defect: Option<Defect>,
) -> Result<Recording> {
    let free_when_empty = free_when_empty(subject, len)?;
    let pm = Arc::new(SimPm::new(len));
    pm.start_recording_with(defect);
    subject.mkfs(&pm)?;
    let mut real = Runner::new(subject.mount(&pm)?);
    let mut model = Runner::new(MemLayout::default());
    // The root is born with the file system, at a time and with a mode that the layout chose.
    adopt_root(&real, &model)?;
    let mut live = Vec::new();
    for (step, op) in workload.setup.iter().enumerate() {
        run_both(&mut real, &mut model, step as u64, op, &mut live)?;
    }
    let mut states = vec![Tree::of(&model.fs)?];
    pm.mark(MARK_READY);
    for (index, op) in workload.ops.iter().enumerate() {
        pm.mark(MARK_BEGIN + index as u64);
        let step = (workload.setup.len() + index) as u64;
        run_both(&mut real, &mut model, step, op, &mut live)?;
        pm.mark(MARK_END + index as u64);
        let state = Tree::of(&model.fs)?;
        let differences = state.differences(&Tree::of(&real.fs)?);
        live.extend(differences.into_iter().map(|difference| format!("after {op:?}: {difference}")));
        states.push(state);
    }
    // The trace ends with the workload: closing files and unmounting are not part of it.
    let trace = pm.stop_recording();
    drop(real);
    let (fences, flushes) = count(&trace);
    Ok(Recording { trace, len, states, live_differences: live, free_when_empty, fences, flushes })
}

fn run_both<A: nacre_engine::Data, B: nacre_engine::Data>(
    real: &mut Runner<A>,
    model: &mut Runner<B>,
    step: u64,
    op: &Op,
    live: &mut Vec<String>,
) -> Result<()> {
    let (found, expected) = (real.run(step, op), model.run(step, op));
    let kinds = (found.as_ref().err().map(Error::kind), expected.as_ref().err().map(Error::kind));
    if kinds.0 != kinds.1 {
        live.push(format!("{op:?}: {found:?} instead of {expected:?}"));
    }
    match found {
        Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Media) => Err(error),
        _ => Ok(()),
    }
}

/// Gives the model's root the attributes of the layout's.
fn adopt_root<A: nacre_engine::Data, B: nacre_engine::Data>(
    real: &Runner<A>,
    model: &Runner<B>,
) -> Result<()> {
    let now = nacre_engine::Timestamp::new(999_999, 0);
    let change = nacre_engine::SetAttr {
        mode: Some(0o755),
        uid: Some(0),
        gid: Some(0),
        atime: Some(now),
        mtime: Some(now),
        ..Default::default()
    };
    real.fs.setattr(&real.fs.root(), &change, now)?;
    model.fs.setattr(&model.fs.root(), &change, now)?;
    Ok(())
}

/// Fences and flushes before the mark that ends the preparation, and in all.
fn count(trace: &Trace) -> ((u64, u64), (u64, u64)) {
    let (mut fences, mut flushes) = (0, 0);
    let mut ready = (0, 0);
    for event in &trace.events {
        match event {
            Event::Fence { .. } => fences += 1,
            Event::Flush { .. } | Event::Store { kind: StoreKind::NonTemporal, .. } => flushes += 1,
            Event::Mark(MARK_READY) => ready = (fences, flushes),
            _ => {}
        }
    }
    ((ready.0, fences), (ready.1, flushes))
}
