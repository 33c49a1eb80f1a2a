//! Mistakes that the layout makes on purpose, one for each step of its protocols.
//!
//! The crash explorer proves with the first ones that it finds such mistakes, the tests of interleavings with the rest.
//! The media says which one is made ([`is_seeded`](nacre_media::Pm::is_seeded)): simulated memory that was told so.
//! Over real PM the answer is a constant, so that none of this is compiled into code that mounts a device.
//!
//! Each mistake is a line of its own ([`fault`]) beside the right code: without these lines, the code is right.

/// Makes a mistake if the media says so: `fault!(pm, Mistake => code)` runs the code then.
macro_rules! fault {
    ($pm:expr, $mistake:ident => $code:expr) => {
        if $pm.is_seeded($crate::seeded::Mistake::$mistake as u32) {
            $code
        }
    };
}

pub(crate) use fault;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mistake {
    /// The word that names a log's first page is stored before the page is written.
    HeadStoredEarly = 1,
    /// The word that links a further page is stored before the page is written.
    PageLinkedEarly,
    /// The entries of a batch do not say that more follows.
    BatchNotChained,
    /// A write publishes its entry before its data is durable.
    EntryBeforeData,
    /// An overwrite frees the old blocks before it allocates the new ones.
    BlocksFreedTooSoon,
    /// Garbage collection frees a page before its copy is linked.
    PageFreedTooSoon,
    /// A line of the inode is used again while its entry still counts: a truncation of blocks that are named before it.
    TruncationForgotten,
    /// A short entry in the inode leaves the rest of the longer one before it.
    StaleLines,
    /// A reused inode keeps its generation, which the checksums of its entries are bound to.
    GenerationKept,
    /// A transaction is settled before its second half is written.
    SettledEarly,
    /// Pages with transactions are freed before these are settled.
    NotSettled,
    /// Recovery leaves torn entries where they are.
    TornNotErased,
    /// Recovery keeps half a transaction.
    HalfTransactionKept,
    /// Recovery keeps a name although its inode is not there.
    UnbornKept,
    /// Recovery does not count links.
    LinksNotCounted,
    /// A mount does not mark the file system dirty.
    NotMarkedDirty,
    /// An unmount marks the file system clean before it writes lazily kept values.
    CleanTooSoon,
    /// The word that publishes a chunk of inodes is stored and not made durable.
    ChunkNotPublished,
    /// A file grows over bytes behind its end that were not zeroed.
    GapNotZeroed,
    /// Garbage collection drops a removal although a page before it holds the removed entry.
    RemovalForgotten,
    /// Two directories are locked in the order in which the call names them.
    LockedAsCalled,
    /// A name is looked for before its directory is locked.
    NameSoughtEarly,
    /// An inode is held after its directory was let go.
    HeldLate,
    /// An append takes the size before it is alone.
    SizeReadEarly,
    /// A write does not look again whether the block that it keeps a part of is still the one that it read.
    EdgeNotChecked,
    /// A write does not look whether the file has grown within a block of which it keeps a part.
    GrowthNotSeen,
    /// A file is linked without a look at whether its last name is gone.
    LinkedWhenGone,
    /// A rename within a directory shows the new name before the old one goes.
    RenamedInSteps,
    /// A read does not look whether a truncation came between.
    SizeNotReadAgain,
    /// Recovery takes blocks that only images of logs name for free.
    ImagesNotCounted,
}

impl Mistake {
    /// Those that show after a crash.
    pub const ALL: [Mistake; 20] = [
        Mistake::HeadStoredEarly,
        Mistake::PageLinkedEarly,
        Mistake::BatchNotChained,
        Mistake::EntryBeforeData,
        Mistake::BlocksFreedTooSoon,
        Mistake::PageFreedTooSoon,
        Mistake::TruncationForgotten,
        Mistake::StaleLines,
        Mistake::GenerationKept,
        Mistake::SettledEarly,
        Mistake::NotSettled,
        Mistake::TornNotErased,
        Mistake::HalfTransactionKept,
        Mistake::UnbornKept,
        Mistake::LinksNotCounted,
        Mistake::NotMarkedDirty,
        Mistake::CleanTooSoon,
        Mistake::ChunkNotPublished,
        Mistake::GapNotZeroed,
        Mistake::RemovalForgotten,
    ];

    /// Those that show between threads.
    pub const BETWEEN_THREADS: [Mistake; 9] = [
        Mistake::LockedAsCalled,
        Mistake::NameSoughtEarly,
        Mistake::HeldLate,
        Mistake::SizeReadEarly,
        Mistake::EdgeNotChecked,
        Mistake::GrowthNotSeen,
        Mistake::LinkedWhenGone,
        Mistake::RenamedInSteps,
        Mistake::SizeNotReadAgain,
    ];

    /// Those that show after a crash of a file system with tiers.
    pub const WITH_TIERS: [Mistake; 1] = [Mistake::ImagesNotCounted];

    /// The mistake in words.
    pub fn words(self) -> &'static str {
        match self {
            Mistake::HeadStoredEarly => "the head of a log is stored before its page is written",
            Mistake::PageLinkedEarly => "a page is linked before it is written",
            Mistake::BatchNotChained => "the entries of a batch do not say that more follows",
            Mistake::EntryBeforeData => "an entry is committed before its data is durable",
            Mistake::BlocksFreedTooSoon => "an overwrite frees old blocks before it allocates new ones",
            Mistake::PageFreedTooSoon => "garbage collection frees a page before its copy is linked",
            Mistake::TruncationForgotten => "the line of a truncation is reused while it counts",
            Mistake::StaleLines => "a short entry leaves the rest of a longer one behind it",
            Mistake::GenerationKept => "a reused inode keeps its generation",
            Mistake::SettledEarly => "a transaction is settled before its second half is written",
            Mistake::NotSettled => "pages are freed before their transactions are settled",
            Mistake::TornNotErased => "recovery leaves torn entries",
            Mistake::HalfTransactionKept => "recovery keeps half a transaction",
            Mistake::UnbornKept => "recovery keeps a name whose inode is not there",
            Mistake::LinksNotCounted => "recovery does not count links",
            Mistake::NotMarkedDirty => "a mount does not mark the file system dirty",
            Mistake::CleanTooSoon => "an unmount marks it clean before it is done",
            Mistake::ChunkNotPublished => "the word of a new chunk of inodes is not made durable",
            Mistake::GapNotZeroed => "a file grows over bytes that were not zeroed",
            Mistake::RemovalForgotten => "garbage collection drops a removal before the removed name",
            Mistake::LockedAsCalled => "directories are locked in the order of the call",
            Mistake::NameSoughtEarly => "a name is looked for before its directory is locked",
            Mistake::HeldLate => "an inode is held after its directory was let go",
            Mistake::SizeReadEarly => "an append takes the size before it is alone",
            Mistake::EdgeNotChecked => "a write does not look at the block that it keeps again",
            Mistake::GrowthNotSeen => {
                "a write does not see that the file has grown in the block that it keeps"
            }
            Mistake::LinkedWhenGone => "a file is linked after its last name went",
            Mistake::RenamedInSteps => "a rename shows the new name before the old one goes",
            Mistake::SizeNotReadAgain => "a read does not look for a truncation",
            Mistake::ImagesNotCounted => "recovery does not count the blocks that offloaded extent maps name",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mistake;

    #[test]
    fn all_are_listed_once() {
        let all = Mistake::ALL.iter().chain(&Mistake::BETWEEN_THREADS).chain(&Mistake::WITH_TIERS);
        for (index, mistake) in all.enumerate() {
            assert_eq!(*mistake as usize, index + 1);
        }
    }
}
