//! A minimal layout: the least that a layout writes to go through all tests of this directory.
//!
//! The state in DRAM is the reference model. The state on PM is a redo journal: each operation that changes something is
//! one record, and a mount applies the records to an empty model.
//!
//! ```text
//!  block 0       the superblock, written last by mkfs
//!  block 1       the epoch: a word, whose lowest bit selects the current half
//!  half 0        records of an even epoch, from the start of the half on
//!  half 1        records of an odd epoch
//! ```
//!
//! **Operation.** One lock covers all. An operation finds room for its record, changes the model, appends the record by one
//! copy and one fence, and only then releases the lock. So no reader sees a change that is not durable.
//!
//! **Record.** A header of length, epoch and checksum, and the operation. The checksum covers the position and the epoch,
//! too. The first record that does not validate is the end of the journal. A torn record is therefore an operation that did
//! not happen. A damaged one cannot be told from it: this layout does not handle media errors.
//!
//! **Compaction.** When the half is full, the records that make the current state are written into the other half, with a
//! later epoch. After a fence the word of the epoch is stored. A mount compacts, too, so that bytes of a torn record never
//! count again. So does an unmount, which thereby keeps the values of atime.
//!
//! **Room.** Twelve sixteenths of a half are for data: the capacity of the model. Three are for names and attributes, which
//! [`fs`] counts. So a compaction always fits, and one is left for records of removals.
//!
//! | file | contents |
//! | --- | --- |
//! | `op` | the operations, and their bytes |
//! | `journal` | everything that is stored on PM |
//! | `state` | the model with the layout's own inode numbers; applying operations; a state as operations |
//! | `fs` | the contract |
//! | `lifecycle` | mkfs, mount, unmount, check |

mod fs;
mod journal;
mod lifecycle;
mod op;
mod state;

use nacre_lab::crash::{Ctime, Harmless, Mistake, Registered, Sources, Spot};

use fs::MinimalFs;

/// The registration of the layout.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Minimal;

static SOURCES: Sources = Sources::new("layouts/minimal", &[("journal.rs", include_str!("journal.rs"))]);

/// A mistake on purpose, which the explorer must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Seeded {
    RecordNotFenced = 1,
    EpochBeforeRecords,
    TornRecords,
}

impl Seeded {
    const ALL: [(Seeded, &'static str); 3] = [
        (Seeded::RecordNotFenced, "an operation returns before its record is durable"),
        (Seeded::EpochBeforeRecords, "the epoch is published before its records are durable"),
        (Seeded::TornRecords, "recovery does not compare the checksums of records"),
    ];
}

impl Registered for Minimal {
    type Fs = MinimalFs;

    const CTIME: Ctime = Ctime::Exact;
    const COMMIT_POINTS: &'static [&'static str] = &["a record", "records of a new epoch", "an epoch"];
    const HARMLESS: &'static [Harmless] = &[];
    const PASSED_ELSEWHERE: &'static [(&'static str, &'static str)] = &[];

    const LEFT_OUT: &'static [(&'static str, &'static str)] = &[(
        "blocks of names reused",
        "it is for places of metadata; here an allocation may not fit any more when its record is replayed",
    )];

    fn sources() -> &'static Sources {
        &SOURCES
    }

    fn commit_of_store(spot: Spot, _: u64) -> Option<usize> {
        match spot.function {
            "append" => Some(0),
            "begin_epoch" if spot.text.contains("publish_u64") => Some(2),
            "begin_epoch" => Some(1),
            _ => None,
        }
    }

    fn commit_of_fence(_: Option<Spot>, _: Option<Spot>) -> Option<usize> {
        None
    }

    fn mistakes() -> Vec<Mistake> {
        Seeded::ALL.iter().map(|&(mistake, words)| Mistake { number: mistake as u32, words }).collect()
    }
}
