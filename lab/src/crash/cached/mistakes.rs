//! Mistakes that a write buffer could make, so that the explorer can be seen to find them.
//!
//! The shipped buffer makes none of them, and has no option for it. An operation that is to go wrong bypasses the
//! buffer, or comes before or after a write that the buffer would not have made there. Between operations the running
//! system looks as it would without the mistake, except after an unmount: only a crash reveals it.

use std::collections::BTreeMap;
use std::io::IoSlice;

use nacre_cache::{CacheFs, CacheNode};
use nacre_engine::{BelowBuffer, Data, Durability, Extents, FileBlock, Names, RenameMode, Result, WriteAt};

use super::super::op::{Hands, Op, Runner, Writing, time};
use super::BLOCK;
use super::explore::files_in_root;

/// A mistake of a write buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum BufferMistake {
    /// An fsync reaches the layout, but the buffered data of the file stays in DRAM.
    SyncForgets = 1,
    /// A sync of everything leaves a file out.
    SyncAllForgetsOne,
    /// The data of a file is not written before a rename over an existing name.
    RenameForgets,
    /// The data of two exchanged files is not written before the exchange.
    ExchangeForgets,
    /// The data of a file is not written before the file gets a further name.
    LinkForgets,
    /// The new contents of a file that was truncated to zero are still buffered after the file is closed.
    CloseForgets,
    /// An unmount drops buffered data.
    UnmountForgets,
    /// A synchronous write is buffered as any other.
    SynchronousWaits,
    /// The size of a buffered write is on media before its data.
    SizeBeforeData,
    /// A file is extended before buffered data behind its old end is written.
    GrowsBeforeData,
    /// The bytes of a block beside its buffered bytes are zeros, until the block is written whole.
    BesideIsZero,
    /// The buffered bytes of one block are written in two operations.
    BlockInTwo,
}

impl BufferMistake {
    /// All of them.
    pub const ALL: [BufferMistake; 12] = [
        BufferMistake::SyncForgets,
        BufferMistake::SyncAllForgetsOne,
        BufferMistake::RenameForgets,
        BufferMistake::ExchangeForgets,
        BufferMistake::LinkForgets,
        BufferMistake::CloseForgets,
        BufferMistake::UnmountForgets,
        BufferMistake::SynchronousWaits,
        BufferMistake::SizeBeforeData,
        BufferMistake::GrowsBeforeData,
        BufferMistake::BesideIsZero,
        BufferMistake::BlockInTwo,
    ];

    /// The mistake in words.
    pub fn words(self) -> &'static str {
        match self {
            BufferMistake::SyncForgets => "an fsync leaves what waits in the buffer",
            BufferMistake::SyncAllForgetsOne => "a sync of everything leaves one file in the buffer",
            BufferMistake::RenameForgets => "a rename over a name leaves its source in the buffer",
            BufferMistake::ExchangeForgets => "an exchange of names leaves both files in the buffer",
            BufferMistake::LinkForgets => "a link leaves its file in the buffer",
            BufferMistake::CloseForgets => "a close leaves in the buffer what replaces old contents",
            BufferMistake::UnmountForgets => "an unmount drops what is in the buffer",
            BufferMistake::SynchronousWaits => "a synchronous write waits in the buffer",
            BufferMistake::SizeBeforeData => "a size is on media, its data in the buffer",
            BufferMistake::GrowsBeforeData => "a truncation shows a size, its data in the buffer",
            BufferMistake::BesideIsZero => "what is beside a write in the buffer is written as zeros",
            BufferMistake::BlockInTwo => "a block of the buffer is written in two operations",
        }
    }

    /// The one with this number in a trace.
    pub(super) fn numbered(number: u32) -> Option<BufferMistake> {
        BufferMistake::ALL.into_iter().find(|mistake| *mistake as u32 == number)
    }

    /// Whether this is a mistake over such a layout. `BlockInTwo` is none if words are written in place, because then
    /// no two words of a block are guaranteed to come together.
    pub fn is_one(self, atomic_write: bool) -> bool {
        self != BufferMistake::BlockInTwo || atomic_write
    }

    /// Does one operation as [`Runner::run`] does, with this mistake. Of an unmount only the caller can make one.
    pub(super) fn run<L: BelowBuffer + Extents>(
        self,
        runner: &mut Runner<CacheFs<L>>,
        step: u64,
        op: &Op,
    ) -> Result<()> {
        match (self, op) {
            (BufferMistake::SyncForgets, Op::Sync(_))
            | (BufferMistake::RenameForgets, Op::Rename(_, _, RenameMode::Replace))
            | (BufferMistake::ExchangeForgets, Op::Rename(_, _, RenameMode::Exchange))
            | (BufferMistake::LinkForgets, Op::Link(..))
            | (BufferMistake::CloseForgets, Op::Close(_)) => past(&runner.fs, step, op),
            (BufferMistake::SyncAllForgetsOne, Op::SyncAll) => sync_all_but_one(&runner.fs),
            (BufferMistake::SynchronousWaits, &Op::WriteThrough(path, offset, len)) => {
                runner.run(step, &Op::Write(path, offset, len))
            }
            (BufferMistake::SizeBeforeData, &(Op::Write(path, ..) | Op::Append(path, _))) => {
                runner.run(step, op)?;
                show_size(&runner.fs, step, path)
            }
            (BufferMistake::GrowsBeforeData, Op::Truncate(..)) => {
                past(&runner.fs, step, op)?;
                runner.run(step, op)
            }
            (BufferMistake::BesideIsZero, Op::Sync(path)) => {
                write_beside_as_zeros(&runner.fs, step, path)?;
                runner.run(step, op)
            }
            (BufferMistake::BlockInTwo, Op::Sync(path)) => {
                write_half(&runner.fs, step, path)?;
                runner.run(step, op)
            }
            _ => runner.run(step, op),
        }
    }
}

/// Does an operation on the layout, of which the buffer knows nothing.
fn past<L: BelowBuffer + Extents>(fs: &CacheFs<L>, step: u64, op: &Op) -> Result<()> {
    Hands { fs: fs.layout(), writing: Writing::As(Durability::Now) }.run(step, op, &mut Vec::new())
}

fn sync_all_but_one<L: BelowBuffer + Extents>(fs: &CacheFs<L>) -> Result<()> {
    // By number, as a file may have several names, and nothing of it may be written by another one.
    let files = files_in_root(fs)?.into_iter();
    let nodes: BTreeMap<_, _> = files.map(|(_, node)| (fs.id(&node).number, node)).collect();
    let mut is_left_out = false;
    for node in nodes.values() {
        let (below, above) = (content(fs.layout(), node.below())?, content(fs, node)?);
        if below != above && !std::mem::replace(&mut is_left_out, true) {
            continue;
        }
        // A resolve writes all buffered data of the file.
        fs.resolve(node, FileBlock(0), 1)?;
    }
    fs.layout().sync_all()
}

/// Passes a size that the buffer has accepted to the layout.
fn show_size<L: BelowBuffer + Extents>(fs: &CacheFs<L>, step: u64, path: &'static str) -> Result<()> {
    let node = fs.lookup(&fs.root(), path.as_bytes())?;
    let size = fs.size(&node)?;
    if fs.layout().getattr(node.below())?.size < size {
        past(fs, step, &Op::Truncate(path, size))
    } else {
        Ok(())
    }
}

/// Writes a partly buffered block, first with zeros for the rest of it, and then with the true rest.
fn write_beside_as_zeros<L: BelowBuffer + Extents>(fs: &CacheFs<L>, step: u64, path: &str) -> Result<()> {
    let node = fs.lookup(&fs.root(), path.as_bytes())?;
    let differs = |below: &[u8], above: &[u8]| below != above;
    let Some(Waiting { offset, below, above }) = waiting_block(fs, &node, differs)? else { return Ok(()) };
    let zeroed: Vec<u8> =
        below.iter().zip(&above).map(|(old, new)| if old == new { 0 } else { *new }).collect();
    write_below(fs, &node, step, offset, &zeroed)?;
    write_below(fs, &node, step, offset, &above)
}

/// Writes the first half of a block both halves of which wait.
fn write_half<L: BelowBuffer + Extents>(fs: &CacheFs<L>, step: u64, path: &str) -> Result<()> {
    let node = fs.lookup(&fs.root(), path.as_bytes())?;
    let half = BLOCK / 2;
    let differs = |below: &[u8], above: &[u8]| {
        below.len() == BLOCK && below[..half] != above[..half] && below[half..] != above[half..]
    };
    let Some(Waiting { offset, above, .. }) = waiting_block(fs, &node, differs)? else { return Ok(()) };
    write_below(fs, &node, step, offset, &above[..half])
}

fn write_below<L: BelowBuffer + Extents>(
    fs: &CacheFs<L>,
    node: &CacheNode<L::Node>,
    step: u64,
    offset: u64,
    bytes: &[u8],
) -> Result<()> {
    let (at, data) = (WriteAt::Offset(offset), [IoSlice::new(bytes)]);
    fs.layout().write(node.below(), at, &data, Durability::Now, time(step)).map(drop)
}

/// A block of a file in the buffer.
struct Waiting {
    offset: u64,
    /// The bytes that media has of it.
    below: Vec<u8>,
    /// The same bytes, as the buffer has them.
    above: Vec<u8>,
}

/// A file's first block that is, below the buffer and in it, as `is_wanted` wants it.
fn waiting_block<L: BelowBuffer + Extents>(
    fs: &CacheFs<L>,
    node: &CacheNode<L::Node>,
    is_wanted: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<Option<Waiting>> {
    let (below, above) = (content(fs.layout(), node.below())?, content(fs, node)?);
    let blocks = below.chunks(BLOCK).zip(above.chunks(BLOCK)).enumerate();
    let mut pairs = blocks.map(|(block, (old, new))| (block, old, &new[..old.len().min(new.len())]));
    let found = pairs.find(|(_, old, new)| old.len() == new.len() && is_wanted(old, new));
    Ok(found.map(|(block, old, new)| Waiting {
        offset: (block * BLOCK) as u64,
        below: old.to_vec(),
        above: new.to_vec(),
    }))
}

fn content<F: Data>(fs: &F, node: &F::Node) -> Result<Vec<u8>> {
    let mut content = vec![0; fs.size(node)? as usize];
    let count = fs.read(node, 0, &mut content, None)?;
    content.truncate(count);
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::BufferMistake;

    #[test]
    fn each_mistake_has_a_number_and_words_of_its_own() {
        for mistake in BufferMistake::ALL {
            assert_eq!(BufferMistake::numbered(mistake as u32), Some(mistake));
            let same = BufferMistake::ALL.iter().filter(|other| other.words() == mistake.words());
            assert_eq!(same.count(), 1, "{}", mistake.words());
        }
        assert_eq!(BufferMistake::numbered(0), None);
        assert_eq!(BufferMistake::numbered(BufferMistake::ALL.len() as u32 + 1), None);
    }
}
