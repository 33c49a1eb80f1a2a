//! A record of the accesses to simulated memory.

use std::fmt;
use std::panic::Location;

/// How bytes were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Through the CPU cache: within a line in order, and durable only after a flush and a fence.
    Cached,
    /// Past the CPU cache, word by word in any order, and durable after a fence.
    NonTemporal,
}

/// The place in the source that stored, flushed or fenced.
pub type Site = &'static Location<'static>;

/// One event of simulated memory. Threads are numbered in the order in which they first touched any simulated memory.
#[derive(Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were stored. A non-temporal store consists of whole aligned words.
    Store {
        /// The thread that stored.
        thread: u32,
        /// Where.
        offset: u64,
        /// The bytes.
        bytes: Box<[u8]>,
        /// How.
        kind: StoreKind,
        /// By which line of the program.
        site: Site,
    },
    /// The lines that hold a range started on their way to media.
    Flush {
        /// The thread that flushed.
        thread: u32,
        /// First byte of the range.
        offset: u64,
        /// Its length.
        len: u64,
        /// By which line of the program.
        site: Site,
    },
    /// Flushed lines and non-temporal stores of this thread became durable.
    Fence {
        /// The thread that waited.
        thread: u32,
        /// By which line of the program.
        site: Site,
    },
    /// Bytes were written to a disk: whole sectors, each of which lands or not.
    DiskWrite {
        /// The thread that wrote.
        thread: u32,
        /// The offset, counted from the first byte of the simulated memory.
        offset: u64,
        /// The bytes.
        bytes: Box<[u8]>,
        /// By which line of the program.
        site: Site,
    },
    /// All earlier writes to a disk became durable.
    DiskFlush {
        /// The thread that waited.
        thread: u32,
        /// The first byte of the disk, counted from that of the simulated memory.
        offset: u64,
        /// The size of the disk.
        len: u64,
        /// By which line of the program.
        site: Site,
    },
    /// The user's note, from [`SimPm::mark`](super::SimPm::mark).
    Mark(u64),
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Store { thread, offset, bytes, kind, site } => {
                write!(f, "thread {thread} stores {} bytes at {offset:#x} ({kind:?}, {site})", bytes.len())
            }
            Event::Flush { thread, offset, len, site } => {
                write!(f, "thread {thread} flushes {len} bytes at {offset:#x} ({site})")
            }
            Event::Fence { thread, site } => write!(f, "thread {thread} fences ({site})"),
            Event::DiskWrite { thread, offset, bytes, site } => {
                write!(f, "thread {thread} writes {} bytes to disk at {offset:#x} ({site})", bytes.len())
            }
            Event::DiskFlush { thread, offset, site, .. } => {
                write!(f, "thread {thread} flushes the disk at {offset:#x} ({site})")
            }
            Event::Mark(value) => write!(f, "mark {value}"),
        }
    }
}

/// The events in the order in which they took effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// The events, the oldest first.
    pub events: Vec<Event>,
}

impl Trace {
    /// The number of fences in it; the flush of a disk is one.
    pub fn fences(&self) -> usize {
        let is_fence = |event: &&Event| matches!(event, Event::Fence { .. } | Event::DiskFlush { .. });
        self.events.iter().filter(is_fence).count()
    }
}

/// A defect that the simulated hardware is given on purpose, to prove that a test can find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// The n-th fence that is recorded (from 0; the flush of a disk counts, too) does nothing.
    SkipFence(u64),
    /// The n-th flush that is recorded (from 0; a non-temporal store counts, too) does nothing.
    SkipFlush(u64),
    /// No fence does anything.
    NoFences,
    /// No flush of this line of the program does anything (a non-temporal store counts, too).
    SkipFlushAt(Site),
    /// No fence, and no flush of a disk, of this line of the program does anything.
    SkipFenceAt(Site),
}

/// Records the trace, without the events that the defect suppresses.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) trace: Trace,
    defect: Option<Defect>,
    fences: u64,
    flushes: u64,
}

impl Recorder {
    /// Of hardware with this defect.
    pub(super) fn new(defect: Option<Defect>) -> Recorder {
        Recorder { defect, ..Recorder::default() }
    }

    pub(super) fn skips_flush(&mut self, site: Site) -> bool {
        let index = self.flushes;
        self.flushes += 1;
        match self.defect {
            Some(Defect::SkipFlush(skipped)) => skipped == index,
            Some(Defect::SkipFlushAt(skipped)) => skipped == site,
            _ => false,
        }
    }

    pub(super) fn skips_fence(&mut self, site: Site) -> bool {
        let index = self.fences;
        self.fences += 1;
        match self.defect {
            Some(Defect::NoFences) => true,
            Some(Defect::SkipFence(skipped)) => skipped == index,
            Some(Defect::SkipFenceAt(skipped)) => skipped == site,
            _ => false,
        }
    }
}
