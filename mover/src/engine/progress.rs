//! The progress of relocations, for status queries: the phase, the files that move, the queue and its causes.

use std::collections::BTreeMap;

use nacre_engine::sync::Mutex;

/// The phase of the mover, or the reason for idling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Blocks move.
    Moving,
    /// It was told to pause.
    Paused,
    /// No tier takes blocks: there is none, or all are missing, failing, or being drained.
    NoTier,
    /// It is outside its hours.
    OutsideHours,
    /// Nothing could be moved when it last tried.
    Failed,
    /// Usage is below the threshold.
    BelowThreshold,
    /// With anti-caching: PM holds no more data than it may.
    BelowAnticache,
    /// As much was moved as the limit allows for now.
    Limited,
    /// There is something to move, or to look for, and it begins soon.
    Beginning,
    /// Every file that could move is too young.
    Young,
    /// Nothing that is in use can move.
    Nothing,
}

impl Phase {
    /// Its name for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Moving => "moving",
            Phase::Paused => "paused",
            Phase::NoTier => "no_tier",
            Phase::OutsideHours => "outside_hours",
            Phase::Failed => "failed",
            Phase::BelowThreshold => "below_threshold",
            Phase::BelowAnticache => "below_anticache",
            Phase::Limited => "limited",
            Phase::Beginning => "beginning",
            Phase::Young => "young",
            Phase::Nothing => "nothing",
        }
    }
}

/// A file whose blocks are moving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doing {
    /// The number of its inode; 0 where a drain looks for files.
    pub inode: u64,
    /// Files that move together, this one the first of them; none where a drain looks for files.
    pub files: u64,
    /// Why they move.
    pub way: Way,
}

/// Why blocks move, and so where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Down, because space is short.
    Space,
    /// Down, into DRAM, because they are read.
    Lowered,
    /// Up, because they are read.
    Raised,
    /// From a tier that is nearly full to a slower one.
    Descended,
    /// To where the file was told to be.
    Told,
    /// They do not: the log of the file is compacted, because space is short.
    Compacted,
    /// Away from a tier that is drained.
    Drained {
        /// Its number.
        tier: u8,
        /// Bytes that were on it when these files were looked for.
        left: u64,
    },
}

impl Way {
    /// Its name for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Way::Space => "space",
            Way::Lowered => "lowered",
            Way::Raised => "raised",
            Way::Descended => "descended",
            Way::Told => "told",
            Way::Compacted => "compacted",
            Way::Drained { .. } => "drained",
        }
    }

    /// The tier that is drained, and bytes that are on it.
    pub fn drained(self) -> Option<(u8, u64)> {
        match self {
            Way::Drained { tier, left } => Some((tier, left)),
            _ => None,
        }
    }
}

/// The moves in progress: those of background passes and direct reclaim, and one drain of each tier.
#[derive(Debug, Default)]
pub(crate) struct AllDoing {
    /// By a number of their own, the first one first.
    own: BTreeMap<u64, Doing>,
    /// The number of the next one.
    next: u64,
    drains: BTreeMap<u8, Doing>,
}

impl AllDoing {
    pub(crate) fn first(&self) -> Option<Doing> {
        self.own.values().chain(self.drains.values()).next().copied()
    }
}

/// Blocks of a file move as long as this lives.
pub(crate) struct Moving<'f> {
    all: &'f Mutex<AllDoing>,
    of: Of,
}

/// The key of a move.
#[derive(Clone, Copy)]
enum Of {
    /// Of the mover itself: its number.
    Own(u64),
    /// Of a drain: its tier.
    Drain(u8),
}

impl<'f> Moving<'f> {
    pub(crate) fn begin(all: &'f Mutex<AllDoing>, doing: Doing) -> Moving<'f> {
        let mut moves = all.lock();
        let of = if let Way::Drained { tier, .. } = doing.way {
            moves.drains.insert(tier, doing);
            Of::Drain(tier)
        } else {
            let number = moves.next;
            moves.next += 1;
            moves.own.insert(number, doing);
            Of::Own(number)
        };
        Moving { all, of }
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut moves = self.all.lock();
        match self.of {
            Of::Own(number) => drop(moves.own.remove(&number)),
            Of::Drain(tier) => drop(moves.drains.remove(&tier)),
        }
    }
}

/// The queue of data to be moved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// Files that move when it is their turn: the coldest first. With anti-caching blocks leave, and no file waits.
    pub files: u64,
    /// Files of which some blocks are too young.
    pub young: u64,
    /// Accesses that it will hear of when it looks.
    pub accesses: u64,
    /// It looks for files of which it knows nothing.
    pub is_looking: bool,
    /// The next items, a few of each kind: requested placements, tiers that wait for their drain to go on, cold files,
    /// young files, files that reads ask for, and files to be rebalanced to slower tiers.
    pub first: Vec<Queued>,
}

/// A file of which blocks wait to be moved, or a tier that waits to be drained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// The number of its inode; 0 of a tier.
    pub inode: u64,
    /// Bytes that the file has, wherever they are, or that are on the tier.
    pub bytes: u64,
    /// Why it is to move.
    pub way: Way,
    /// Why it has not.
    pub cause: Cause,
}

/// The cause for which something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Those before it.
    Turn,
    /// Until its blocks are old enough: so many milliseconds more, if none is written.
    Young(u64),
    /// A caller that resumes an interrupted drain.
    Interrupted,
    /// PM with room below the threshold.
    NoRoom,
    /// The reason why the mover moves nothing by itself.
    Mover(Phase),
}

impl Cause {
    /// Its name for machines: that of the phase, where this is what keeps it.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Turn => "turn",
            Cause::Young(_) => Phase::Young.as_str(),
            Cause::Interrupted => "interrupted",
            Cause::NoRoom => "no_room",
            Cause::Mover(phase) => phase.as_str(),
        }
    }

    /// The cause that keeps a movable item waiting while the mover is in this phase.
    pub(crate) fn of(phase: Phase) -> Cause {
        match phase {
            // It is about to, or it was about to when it looked last.
            Phase::Moving | Phase::Beginning | Phase::Young | Phase::Nothing => Cause::Turn,
            Phase::Paused
            | Phase::NoTier
            | Phase::OutsideHours
            | Phase::Failed
            | Phase::BelowThreshold
            | Phase::BelowAnticache
            | Phase::Limited => Cause::Mover(phase),
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::sync::Mutex;

    use super::{AllDoing, Doing, Moving, Way};

    #[test]
    fn drains_show_beside_what_moves_by_itself() {
        let all = Mutex::new(AllDoing::default());
        let begin = |inode, way| Moving::begin(&all, Doing { inode, files: 1, way });
        let shown = || all.lock().first().map(|doing| doing.inode);
        let first = begin(10, Way::Drained { tier: 1, left: 0 });
        let second = begin(20, Way::Drained { tier: 2, left: 0 });
        assert_eq!(shown(), Some(10));
        let state = begin(30, Way::Space);
        assert_eq!(shown(), Some(30));
        // A move that ends takes nothing else with it.
        drop(first);
        assert_eq!(shown(), Some(30));
        drop(state);
        assert_eq!(shown(), Some(20));
        drop(second);
        assert_eq!(shown(), None);
    }
}
