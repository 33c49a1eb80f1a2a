//! Mistakes that the layout makes on purpose, so that the crash explorer can be seen to find them.
//!
//! The media says which one is made ([`Pm::is_seeded`](nacre_media::Pm::is_seeded)): simulated PM that was told so.
//! Over real PM the answer is a constant, so that none of this is compiled into code that mounts a device.

use nacre_layout_parts::seeded::mistakes;

mistakes! {
    /// A slot is written before the data that it leads to is durable.
    SlotBeforeData: "a slot is written before its data is durable",
    /// A slot that goes with a word has no condition.
    UnconditionalSlot: "a slot that goes with a word has no condition",
    /// A word is stored before the slot that goes with it is durable.
    WordBeforeSlot: "a word is stored before its slot is durable",
    /// Several words of a node in use are stored where they are.
    NodeInPlace: "several words of a node in use are stored in place",
    /// A switch is stored before everything that it makes count is durable.
    SwitchEarly: "a switch is stored before what it makes count",
    /// A switch is stored in one of its lines.
    SwitchInOneLine: "a switch is in one line",
    /// Recovery leaves what operations without a commit have tagged.
    NotNeutralised: "recovery leaves what uncommitted operations tagged",
    /// An operation takes the generation of the one before in its lane.
    GenerationRepeated: "an operation has the generation of the one before",
    /// A slot has the sequence of the slot before.
    SequenceKept: "a slot keeps the sequence of the one before",
    /// The lines of a name have the status of the first one.
    NameLineTagged: "every line of a name is tagged",
    /// The lines of dead names are used for others before they are free on media.
    DeadJoined: "lines of dead names are joined before they are free",
    /// A record says that it is one line.
    SpanForgotten: "a record does not say how many lines it has",
    /// Blocks are free before the commit that takes them away.
    BlocksFreedTooSoon: "blocks are free before the commit that takes them away",
    /// A new inode's header is not written before its name.
    InodeUnwritten: "a new inode is not written before its name",
    /// A directory that moves does not say where to.
    ParentForgotten: "a directory that moves keeps its parent",
    /// The last name goes, and the inode still says that it has one.
    LinksForgotten: "the last name goes and the inode keeps its link",
    /// A rename is two operations.
    RenamedInSteps: "a rename is two operations",
    /// A file grows over bytes behind its end that were not zeroed.
    GapNotZeroed: "a file grows over bytes that were not zeroed",
    /// The bytes around the written data in a new block are not written.
    EdgesNotZeroed: "the rest of a new block is not written",
    /// The end of a tree passes words that were not written.
    GarbageBehindEnd: "the end of a tree passes words that were not written",
    /// A word behind the end of a tree counts as its block's.
    LeftoverWord: "a word behind the end of a tree is taken for its block's",
    /// The inode table grows before its new blocks are zeroed.
    TableUnwritten: "the inode table grows over blocks that were not zeroed",
    /// A lane is free for the next operation before this one has stored its switch.
    LaneShared: "two operations are in one lane",
    /// Blocks of a file move by a word alone: the slot before it waited for the old word, and counts no more.
    MovedWithoutSlot: "blocks move by a word, without a slot",
    /// Inodes are locked in the order in which a rename names them.
    LockedAsCalled: "a rename locks in the order of the call",
}

impl Mistake {
    /// Those that show after a crash of a file system with tiers.
    pub const WITH_TIERS: [Mistake; 1] = [Mistake::MovedWithoutSlot];

    /// Those that show between threads, without a crash.
    pub const BETWEEN_THREADS: [Mistake; 1] = [Mistake::LockedAsCalled];

    /// Whether it shows after a crash without tiers.
    pub fn shows_alone(self) -> bool {
        !Mistake::WITH_TIERS.contains(&self) && !Mistake::BETWEEN_THREADS.contains(&self)
    }
}
