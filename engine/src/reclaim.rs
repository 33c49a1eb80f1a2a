//! Out of space: the one chain of steps that make room.
//!
//! An operation that finds no space fails with [`Kind::NoSpace`] and a [`Shortage`]. The layer that can make room takes
//! its [`Step`] of the chain then, and tries the operation again. Each layer does so once around its own operations, so
//! the steps come in the order of the layers, from the layout to the server of the mount:
//!
//! | step | layer | room comes from |
//! | --- | --- | --- |
//! | [`Step::Counting`] | layout | blocks whose bits were not counted yet since a crash |
//! | [`Step::DeferredFrees`] | layout | removed files and cut ranges that are freed in the background |
//! | [`Step::Collection`] | layout | dead entries of the log that needs a page |
//! | [`Step::Relocation`] | mover | blocks that move to tiers; then compaction of logs |
//! | [`Step::Reserve`] | layout, mover | the reserve for overwriting, or a tier for the data itself |
//! | [`Step::Flush`] | write buffer | reservations of buffered data, after all of it was written |
//! | [`Step::Forgets`] | server | removed files that the kernel is about to forget |
//! | [`Step::Accepted`] | server | the reserve, for pages that the kernel accepted before |
//!
//! Optional work is left out if there is no space, and data with a choice among places goes to the next one:
//! [`unless_full`].
//!
//! A step is taken if it [helps](Step::helps) against the shortage, and at most [`Step::tries`] times.

use std::fmt;

use crate::error::{Kind, Result};
use crate::size;
use crate::units::BLOCK_SIZE;

/// A resource that can be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Blocks of PM.
    Pm,
    /// Blocks of a tier.
    Tier(u8),
    /// Blocks of any tier.
    Tiers,
    /// Inodes.
    Inodes,
    /// A limit of the format, which no step changes.
    Limit,
}

/// The resource that an operation did not find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// The resource.
    pub of: Resource,
    /// The number of blocks that were asked for; 0 if the resource is no blocks.
    pub blocks: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.blocks {
            0 => String::new(),
            blocks => format!("asked for {} of ", size::print(blocks.saturating_mul(BLOCK_SIZE))),
        };
        match self.of {
            Resource::Pm => write!(f, "{size}PM"),
            Resource::Tier(tier) => write!(f, "{size}tier {tier}"),
            Resource::Tiers => write!(f, "{size}tiers"),
            Resource::Inodes => f.write_str("no free inode"),
            Resource::Limit => f.write_str("a limit of the format"),
        }
    }
}

/// A step of the chain, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The layout counts all of its free blocks.
    Counting,
    /// The layout frees blocks and inodes that wait for that.
    DeferredFrees,
    /// The layout collects the garbage of the log that needs a page.
    Collection,
    /// The mover demotes blocks, and compacts logs if nothing can move.
    Relocation,
    /// Existing data is overwritten with the reserve for that. Data with a reservation goes to a tier.
    Reserve,
    /// The write buffer writes everything.
    Flush,
    /// The server waits for the kernel to forget inodes.
    Forgets,
    /// Pages that the kernel accepted before take a part of the reserve.
    Accepted,
}

impl Step {
    /// The largest number of times that the step is taken for one operation of its layer. Others may take the room before
    /// the operation does.
    pub const fn tries(self) -> u32 {
        match self {
            Step::Relocation => 16,
            Step::Forgets => 6,
            _ => 1,
        }
    }

    /// Whether the step can end the shortage. An unknown shortage may be any.
    pub fn helps(self, shortage: Option<Shortage>) -> bool {
        match shortage.map(|shortage| shortage.of) {
            None | Some(Resource::Pm) => true,
            Some(Resource::Tier(_) | Resource::Tiers) => {
                !matches!(self, Step::Counting | Step::Collection | Step::Relocation)
            }
            Some(Resource::Inodes) => matches!(self, Step::DeferredFrees | Step::Forgets),
            Some(Resource::Limit) => false,
        }
    }
}

/// Passes the result of an operation on, unless a step makes room after a lack of space: `None` then, and the operation
/// is to be tried again, or in another way. `make` returns false if it made no room.
#[inline]
pub fn made_room<T>(
    step: Step,
    result: Result<T>,
    make: impl FnOnce(Option<Shortage>) -> Result<bool>,
) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind() == Kind::NoSpace && step.helps(error.shortage()) => {
            if make(error.shortage())? { Ok(None) } else { Err(error) }
        }
        other => other.map(Some),
    }
}

/// Passes the result of an operation on, unless there is another way after a lack of space. `way` returns `None` if there
/// is none.
#[inline]
pub fn or_another_way<T>(
    step: Step,
    result: Result<T>,
    way: impl FnOnce() -> Result<Option<T>>,
) -> Result<T> {
    match result {
        Err(error) if error.kind() == Kind::NoSpace && step.helps(error.shortage()) => way()?.ok_or(error),
        other => other,
    }
}

/// `None` for a lack of space: for optional work, and for a choice among places. It makes no room.
#[inline]
pub fn unless_full<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind() == Kind::NoSpace => Ok(None),
        other => other.map(Some),
    }
}

/// Runs an operation, and again as long as it finds no space and the step makes room, [`Step::tries`] times at most.
#[inline]
pub fn with_room<T>(
    step: Step,
    mut act: impl FnMut() -> Result<T>,
    mut make: impl FnMut(Option<Shortage>) -> Result<bool>,
) -> Result<T> {
    for _ in 0..step.tries() {
        if let Some(done) = made_room(step, act(), &mut make)? {
            return Ok(done);
        }
    }
    act()
}

#[cfg(test)]
mod tests {
    use super::{Resource, Shortage, Step, made_room, with_room};
    use crate::error::{Error, Kind, Result};

    const STEPS: [Step; 8] = [
        Step::Counting,
        Step::DeferredFrees,
        Step::Collection,
        Step::Relocation,
        Step::Reserve,
        Step::Flush,
        Step::Forgets,
        Step::Accepted,
    ];

    fn full() -> Error {
        Error::no_space(Resource::Pm, 3)
    }

    /// However often a step says that it made room, an operation is tried a fixed number of times.
    #[test]
    fn tries_are_bounded() {
        for step in STEPS {
            let (mut tried, mut made) = (0, 0);
            let result: Result<()> = with_room(
                step,
                || {
                    tried += 1;
                    Err(full())
                },
                |_| {
                    made += 1;
                    Ok(true)
                },
            );
            assert_eq!(result.unwrap_err().kind(), Kind::NoSpace);
            assert_eq!((tried, made), (step.tries() + 1, step.tries()), "{step:?}");
        }
    }

    #[test]
    fn a_step_that_makes_no_room_ends_the_tries() {
        let mut tried = 0;
        let result: Result<()> = with_room(
            Step::Relocation,
            || {
                tried += 1;
                Err(full())
            },
            |shortage| {
                assert_eq!(shortage, Some(Shortage { of: Resource::Pm, blocks: 3 }));
                Ok(false)
            },
        );
        assert_eq!((result.unwrap_err().shortage().map(|short| short.blocks), tried), (Some(3), 1));
    }

    #[test]
    fn steps_are_taken_for_shortages_that_they_can_end() {
        let takes = |step: Step, error: Error| made_room::<()>(step, Err(error), |_| Ok(true)).is_ok();
        for step in STEPS {
            assert!(takes(step, Kind::NoSpace.into()) && takes(step, full()), "{step:?}");
            assert!(!takes(step, Error::no_space(Resource::Limit, 0)), "{step:?}");
            assert!(!takes(step, Kind::Io.into()), "{step:?}");
        }
        assert!(!takes(Step::Relocation, Error::no_space(Resource::Tier(2), 1)));
        assert!(!takes(Step::Flush, Error::no_space(Resource::Inodes, 0)));
        assert!(takes(Step::Forgets, Error::no_space(Resource::Inodes, 0)));
    }

    #[test]
    fn a_message_names_the_shortage() {
        let text = |of| Error::no_space(of, 12).operation("write").to_string();
        assert_eq!(text(Resource::Pm), "write: no space left on the device (asked for 48 KiB of PM)");
        assert_eq!(
            text(Resource::Tier(2)),
            "write: no space left on the device (asked for 48 KiB of tier 2)"
        );
        assert_eq!(text(Resource::Inodes), "write: no space left on the device (no free inode)");
        assert_eq!(text(Resource::Limit), "write: no space left on the device (a limit of the format)");
    }
}
