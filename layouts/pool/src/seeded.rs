//! Mistakes that the layout makes on purpose, so that the crash explorer can be seen to find them.
//!
//! The media says which one is made ([`Pm::is_seeded`](nacre_media::Pm::is_seeded)): simulated memory that was told so.
//! Over real PM the answer is a constant, so that none of this is compiled into code that mounts a device.

use nacre_layout_parts::seeded::mistakes;

mistakes! {
    /// An operation records no intent.
    NoIntent: "an operation records no intent",
    /// The intent and the backups share a fence.
    IntentWithBackups: "the intent and the backups share a fence",
    /// The backups and the primaries share a fence.
    BackupsWithPrimaries: "the backups and the primaries share a fence",
    /// `done` is stored before the primaries.
    DoneEarly: "an operation is done before its primaries are durable",
    /// The intent is in the primary copy of the lane only.
    IntentInOneCopy: "an intent is in one copy",
    /// A pool block changes its purpose while recovery may still look at old operations in it.
    StaleIntent: "a pool block changes its purpose before operations in it are done",
    /// Recovery replays the oldest operation first.
    AscendingReplay: "recovery replays the oldest operation first",
    /// Recovery copies backups over primaries without a look at their checks.
    ForwardUnchecked: "recovery goes forward without checks",
    /// Recovery leaves backups of an operation that it takes back as they are.
    BackupNotRefreshed: "recovery leaves the backups of what it takes back",
    /// Recovery stores `done` before the copies are durable.
    SpentEarly: "recovery is done before its copies are durable",
    /// A new entry is written in its primary only.
    FreshBackupForgotten: "a new entry is written in one copy",
    /// Data is not durable before the backups lead to it.
    DataAfterIntent: "data is not durable before what leads to it",
    /// Bits of free blocks are stored beside the operation.
    BitsOutside: "bits of free blocks are no items",
    /// A directory leads to a larger set before that is written.
    SetSwappedEarly: "a larger set of names is led to before it is written",
    /// A set of names that is split is two operations.
    SplitInSteps: "a set of names is split in two operations",
    /// A rename is two operations.
    RenamedInSteps: "a rename is two operations",
    /// A directory that moves does not say where to.
    ParentForgotten: "a directory that moves keeps its parent",
    /// The last name goes, and the inode still says that it has one.
    LinksForgotten: "the last name goes and the inode keeps its link",
    /// An inode without names is on no list of orphans.
    OrphanForgotten: "an inode without names is on no list",
    /// An inode without names is freed before it leaves its list.
    OrphanFreedEarly: "an inode without names is freed before it leaves its list",
    /// A file grows over bytes behind its end that were not zeroed.
    GapNotZeroed: "a file grows over bytes that were not zeroed",
    /// The bytes around the written data in a new block are not zeroed.
    EdgesNotZeroed: "the rest of a new block is not zeroed",
    /// An inode's number is used again with the same generation.
    GenerationKept: "the number of an inode keeps its generation",
    /// A volume can be mounted before it has a root.
    VolumeRowEarly: "the row of a volume is there before its root",
    /// The row of a volume goes before its groups.
    VolumeRemovedInSteps: "the row of a volume goes before its groups",
    /// A mount goes on with sequences that a lane has already.
    SequenceEarly: "a mount uses sequences of operations that lanes have",
}
