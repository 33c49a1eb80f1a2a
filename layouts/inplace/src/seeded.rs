//! Mistakes that the layout makes on purpose, so that the crash explorer can be seen to find them.
//!
//! The media says which one is made ([`Pm::is_seeded`](nacre_media::Pm::is_seeded)): simulated memory that was told so.
//! Over real PM the answer is a constant, so that none of this is compiled into code that mounts a device.

use nacre_media::Pm;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mistake {
    /// Words are stored in place before their old values are durable in the journal.
    UndoNotDurable = 1,
    /// The commit entry is stored before the words that it covers are durable.
    CommittedEarly,
    /// A transaction's generation is that of the one before.
    GenerationKept,
    /// A single word is stored before the data that it refers to is durable.
    WordBeforeData,
    /// Recovery does not undo uncommitted transactions.
    NotUndone,
    /// Recovery ends a transaction before the undone words are durable.
    SettledEarly,
    /// Recovery does not end a transaction that it undid: another mount undoes it again.
    NotSettled,
    /// A file grows over bytes behind its end that were not zeroed.
    GapNotZeroed,
    /// A new block's bytes around the written data are not zeroed.
    EdgesNotZeroed,
    /// A file's blocks are free before the transaction that takes them away.
    BlocksFreedTooSoon,
    /// A new inode is not written before its name.
    InodeUnwritten,
    /// The last name goes, and the inode still says that it has one.
    LinksForgotten,
    /// A directory that moves does not say where to.
    ParentForgotten,
    /// A rename is two transactions.
    RenamedInSteps,
    /// The inode table grows before its new blocks are zeroed.
    TableUnwritten,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Mistake; 15] = [
        Mistake::UndoNotDurable,
        Mistake::CommittedEarly,
        Mistake::GenerationKept,
        Mistake::WordBeforeData,
        Mistake::NotUndone,
        Mistake::SettledEarly,
        Mistake::NotSettled,
        Mistake::GapNotZeroed,
        Mistake::EdgesNotZeroed,
        Mistake::BlocksFreedTooSoon,
        Mistake::InodeUnwritten,
        Mistake::LinksForgotten,
        Mistake::ParentForgotten,
        Mistake::RenamedInSteps,
        Mistake::TableUnwritten,
    ];

    /// The mistake in words.
    pub fn words(self) -> &'static str {
        match self {
            Mistake::UndoNotDurable => "words are stored before the undo entries are durable",
            Mistake::CommittedEarly => "a transaction is committed before its words are durable",
            Mistake::GenerationKept => "a transaction keeps the generation of the one before",
            Mistake::WordBeforeData => "a single word is stored before its data is durable",
            Mistake::NotUndone => "recovery does not undo",
            Mistake::SettledEarly => "recovery ends a transaction before it is undone",
            Mistake::NotSettled => "recovery does not end the transactions that it undid",
            Mistake::GapNotZeroed => "a file grows over bytes that were not zeroed",
            Mistake::EdgesNotZeroed => "the rest of a new block is not zeroed",
            Mistake::BlocksFreedTooSoon => "blocks are free before the commit that takes them away",
            Mistake::InodeUnwritten => "a new inode is not written before its name",
            Mistake::LinksForgotten => "the last name goes and the inode keeps its link",
            Mistake::ParentForgotten => "a directory that moves keeps its parent",
            Mistake::RenamedInSteps => "a rename is two transactions",
            Mistake::TableUnwritten => "the inode table grows over blocks that were not zeroed",
        }
    }

    /// Whether it shall be made.
    #[inline(always)]
    pub(crate) fn is_made(self, pm: &impl Pm) -> bool {
        pm.is_seeded(self as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::Mistake;

    #[test]
    fn all_are_listed_once() {
        for (index, mistake) in Mistake::ALL.iter().enumerate() {
            assert_eq!(*mistake as usize, index + 1);
        }
    }
}
