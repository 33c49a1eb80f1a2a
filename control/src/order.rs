//! Orders to a mount, about its tiers, its mover, or files, and their results.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An order, and the name under which its result is read.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope {
    /// That name, which the sender chooses.
    pub id: String,
    /// The order.
    pub order: Order,
}

/// The result of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// Its value.
    Result(T),
    /// Why it failed.
    Error(String),
}

/// An order. Long ones are done in slices: the sender repeats them until they are done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Makes a device a tier: [`TierAdded`].
    AddTier(TierToAdd),
    /// A dry run of `AddTier`: the same errors, and no change.
    CheckTier(TierToAdd),
    /// Gives a tier its device again: [`Attached`].
    AttachTier {
        /// The device.
        path: PathBuf,
        /// A device that it is to be as slow as.
        emulate: Option<String>,
    },
    /// A dry run of `AttachTier`: [`Attached`].
    CheckAttach(PathBuf),
    /// Takes the device of a tier away.
    DetachTier(u8),
    /// One slice of the drain: [`Drained`].
    DrainTier(u8),
    /// A dry run of `DrainTier`.
    CheckDrain(u8),
    /// Ends a drain: new blocks are placed on the tier again.
    UseTier(u8),
    /// Removes a tier that is empty.
    RemoveTier(u8),
    /// One slice of the trim: [`Trimmed`].
    TrimTier(TierToTrim),
    /// One slice of a move of files, to a tier or to PM: [`FilesMoved`].
    MoveFiles(FilesToMove),
    /// Pauses the mover, or lets it go on.
    PauseMover(bool),
    /// Bytes per second; `None` for no limit.
    LimitMover(Option<u64>),
    /// Writes back all buffered data: [`Synced`].
    Sync,
}

/// A device that is to become a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierToAdd {
    /// The device.
    pub path: PathBuf,
    /// The size of a file that is to be made.
    pub size: Option<u64>,
    /// Smaller is faster.
    pub rank: Option<u8>,
    /// Data on the device is overwritten.
    pub force: bool,
    /// A device that it is to be as slow as.
    pub emulate: Option<String>,
}

/// The tier that a device has become.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierAdded {
    /// Its number.
    pub tier: u8,
    /// The next mount finds it by itself.
    pub found: bool,
}

/// The tier whose device is there again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Its number.
    pub tier: u8,
}

/// The result of one slice of a drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Bytes that this pass over all files has moved so far.
    pub moved: u64,
    /// Bytes that are left on the tier.
    pub left: u64,
    /// The pass is over.
    pub done: bool,
}

/// A tier whose free blocks are reported to its device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierToTrim {
    /// Its number.
    pub tier: u8,
    /// The first block, and whether it lies within a run that is long enough.
    pub from: u64,
    /// See `from`.
    pub is_within: bool,
    /// The shortest run that is trimmed, in bytes.
    pub least: u64,
}

/// The result of one slice of a trim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trimmed {
    /// Bytes that were reported.
    pub trimmed: u64,
    /// The block to continue with; none at the end.
    pub next: Option<u64>,
    /// Whether that block lies within a run that is long enough.
    pub within: bool,
    /// The device takes no such reports.
    pub useless: bool,
}

/// Files that are to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesToMove {
    /// The tier; `None` for PM.
    pub to: Option<u8>,
    /// The first block to move, in the first file.
    pub from: u64,
    /// Inode numbers.
    pub inodes: Vec<u64>,
}

/// The result of one slice of `MoveFiles`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesMoved {
    /// Bytes that have been moved.
    pub moved: u64,
    /// The file to continue with, as an index into the order.
    pub next: usize,
    /// The first block of it that remains.
    pub from: u64,
    /// Failed files before `next`: index and cause.
    pub failed: Vec<(usize, String)>,
}

/// The result of `Sync`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Synced {
    /// Why some data could not be written.
    pub unwritten: Option<String>,
    /// Bytes of accepted data that were given up since the order before this one.
    pub given_up: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Drained, Envelope, FilesToMove, Order, Outcome};

    /// Other versions of the command and the server read these words.
    #[test]
    fn the_words_of_the_protocol_stay() {
        let files = FilesToMove { to: Some(1), from: 7, inodes: vec![5] };
        let sent = Envelope { id: "a".into(), order: Order::MoveFiles(files) };
        let words = json!({ "id": "a", "order": { "move_files": { "to": 1, "from": 7, "inodes": [5] } } });
        assert_eq!(serde_json::to_value(&sent).unwrap(), words);
        let orders = [(Order::Sync, json!("sync")), (Order::DrainTier(3), json!({ "drain_tier": 3 }))];
        for (order, words) in orders {
            assert_eq!(serde_json::to_value(&order).unwrap(), words);
            assert_eq!(serde_json::from_value::<Order>(words).unwrap(), order);
        }
        let drained = Drained { moved: 1, left: 2, done: false };
        let words = json!({ "result": { "moved": 1, "left": 2, "done": false } });
        assert_eq!(serde_json::to_value(Outcome::Result(drained.clone())).unwrap(), words);
        assert_eq!(serde_json::from_value::<Outcome<Drained>>(words).unwrap(), Outcome::Result(drained));
        let failed: Outcome<()> = serde_json::from_value(json!({ "error": "it is full" })).unwrap();
        assert_eq!(failed, Outcome::Error("it is full".into()));
        let nothing: Outcome<()> = serde_json::from_value(json!({ "result": Value::Null })).unwrap();
        assert_eq!(nothing, Outcome::Result(()));
    }
}
