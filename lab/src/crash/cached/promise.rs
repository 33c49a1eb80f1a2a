//! The guarantees of a file system under a write buffer, and whether an image after a crash keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use nacre_engine::{FallocateMode, RenameMode};

use super::super::op::{Op, payload};
use super::BLOCK;

/// No file has so many blocks.
const MAX_BLOCKS: usize = 1024;

/// The guarantees that the judge assumes. All but the first are wrong: crashes must show it, or the judge is blind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Belief {
    /// The guarantees as they are.
    #[default]
    Right,
    /// A sync is not asked for, and believed.
    LostSync,
    /// Every write is durable when it returns.
    DurableOnReturn,
    /// A file is synchronised when it gets a name that was free.
    RenameSyncs,
    /// A file is synchronised whenever it is closed.
    CloseSyncs,
}

/// The guarantees about one file.
#[derive(Debug, Clone, Default)]
struct Floor {
    /// Nothing older than in this state.
    all: usize,
    /// The same for single blocks.
    blocks: BTreeMap<usize, usize>,
    /// It is at least so long.
    len: usize,
    /// It was as long as it is in this state or a later one.
    sized: usize,
}

/// The state after so many operations.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    names: BTreeMap<&'static str, usize>,
    files: BTreeMap<usize, Arc<Vec<u8>>>,
    floors: BTreeMap<usize, Floor>,
    /// Files that were cut to nothing: the next close with something written synchronises them.
    cut: BTreeSet<usize>,
    next: usize,
}

/// The names that were found, each with the number of its inode and its content.
pub(super) type Found = BTreeMap<String, (u64, Vec<u8>)>;

impl State {
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Two names of the same file.
    pub(super) fn are_one(&self, name: &str, other: &str) -> bool {
        self.names[name] == self.names[other]
    }

    pub(super) fn content(&self, name: &str) -> &[u8] {
        &self.files[&self.names[name]]
    }

    /// The operation can be done, and this module knows its effect.
    pub(super) fn allows(&self, op: &Op) -> bool {
        match op {
            Op::Create(name, _) => !self.has(name),
            Op::Rename(from, to, RenameMode::NoReplace) | Op::Link(from, to) => {
                self.has(from) && !self.has(to)
            }
            Op::Rename(from, to, _) => self.has(from) && self.has(to) && !self.are_one(from, to),
            Op::Fallocate(name, mode, ..) => {
                self.has(name) && matches!(mode, FallocateMode::PunchHole | FallocateMode::ZeroRange)
            }
            Op::Write(name, ..)
            | Op::WriteThrough(name, ..)
            | Op::Append(name, _)
            | Op::Truncate(name, _)
            | Op::Unlink(name)
            | Op::SetAttr(name, _)
            | Op::Close(name)
            | Op::Sync(name)
            | Op::LetGo(name)
            | Op::Demote(name, ..)
            | Op::Promote(name, ..)
            | Op::DemoteLast(name)
            | Op::Compact(name)
            | Op::BringUp(name)
            | Op::MoveLog(name) => self.has(name),
            Op::DemoteBoth(one, other) => self.has(one) && self.has(other),
            Op::SyncAll
            | Op::Remount
            | Op::AddTier
            | Op::RemoveTier
            | Op::Descend
            | Op::Evict(_)
            | Op::Trim => true,
            _ => false,
        }
    }

    /// The state after an operation that is allowed, which makes state `number`.
    pub(super) fn after(&self, op: &Op, number: usize, belief: Belief) -> State {
        let mut state = self.clone();
        let data = |len: usize| payload(number as u64, len);
        match *op {
            Op::Create(name, _) => {
                state.names.insert(name, state.next);
                state.files.insert(state.next, Arc::default());
                state.floors.insert(state.next, Floor { all: number, ..Floor::default() });
                state.next += 1;
            }
            Op::Write(name, offset, len) => {
                state.put(name, offset as usize, &data(len));
                if belief == Belief::DurableOnReturn {
                    state.promise(name, offset as usize, len, number);
                }
            }
            Op::WriteThrough(name, offset, len) => {
                state.put(name, offset as usize, &data(len));
                state.promise(name, offset as usize, len, number);
            }
            Op::Append(name, len) => {
                let offset = state.content(name).len();
                state.put(name, offset, &data(len));
            }
            Op::Truncate(name, len) => state.truncate(name, len as usize, number),
            Op::Fallocate(name, mode, offset, len) => {
                state.clear(name, mode, offset as usize..(offset + len) as usize);
                // It finds everything written.
                state.sync(state.names[name], number);
            }
            Op::Rename(from, to, RenameMode::Exchange) => {
                let (one, two) = (state.names[from], state.names[to]);
                state.names.extend([(from, two), (to, one)]);
                state.sync(one, number);
                state.sync(two, number);
            }
            Op::Rename(from, to, mode) => {
                if let Some(file) = state.names.remove(from) {
                    state.names.insert(to, file);
                    if mode == RenameMode::Replace || belief == Belief::RenameSyncs {
                        state.sync(file, number);
                    }
                }
            }
            Op::Link(from, to) => {
                let file = state.names[from];
                state.names.insert(to, file);
                state.sync(file, number);
            }
            Op::Unlink(name) => drop(state.names.remove(name)),
            Op::Close(name) => {
                let file = state.names[name];
                // A close before anything was written is none that the new contents could be behind.
                let is_written = !state.files[&file].is_empty();
                if is_written && state.cut.remove(&file) || belief == Belief::CloseSyncs {
                    state.sync(file, number);
                }
            }
            Op::Sync(name) => state.sync(state.names[name], number),
            Op::SyncAll => state.sync_all(number),
            Op::Remount => {
                state.sync_all(number);
                // Files that were cut are closed now, so the cuts no longer count.
                state.cut.clear();
            }
            // Relocations below the buffer change no contents, and buffered data stays buffered.
            _ => {}
        }
        state
    }

    fn content_mut(&mut self, name: &str) -> &mut Vec<u8> {
        Arc::make_mut(self.files.entry(self.names[name]).or_default())
    }

    fn put(&mut self, name: &str, offset: usize, bytes: &[u8]) {
        let content = self.content_mut(name);
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// A hole or zeros.
    fn clear(&mut self, name: &str, mode: FallocateMode, range: Range<usize>) {
        let content = self.content_mut(name);
        if mode == FallocateMode::ZeroRange {
            content.resize(content.len().max(range.end), 0);
        }
        let end = range.end.min(content.len());
        content[range.start.min(end)..end].fill(0);
    }

    fn floor(&mut self, name: &str) -> &mut Floor {
        self.floors.entry(self.names[name]).or_default()
    }

    /// The written bytes are durable; buffered bytes beside them may still be missing.
    fn promise(&mut self, name: &str, offset: usize, len: usize, number: usize) {
        let floor = self.floor(name);
        floor.blocks.extend((offset / BLOCK..(offset + len).div_ceil(BLOCK)).map(|block| (block, number)));
        floor.len = floor.len.max(offset + len);
    }

    /// A new size is durable on return; data before the new end may still be buffered.
    fn truncate(&mut self, name: &str, len: usize, number: usize) {
        // Of what media never had to show nothing is taken away.
        if len == 0 && self.floor(name).len > 0 {
            self.cut.insert(self.names[name]);
        }
        self.content_mut(name).resize(len, 0);
        let floor = self.floor(name);
        (floor.len, floor.sized) = (floor.len.min(len), number);
        floor.blocks.retain(|block, _| (block + 1) * BLOCK <= len);
        floor.blocks.extend((len.div_ceil(BLOCK)..MAX_BLOCKS).map(|block| (block, number)));
    }

    fn sync(&mut self, file: usize, number: usize) {
        let len = self.files[&file].len();
        self.floors.insert(file, Floor { all: number, blocks: BTreeMap::new(), len, sized: number });
    }

    fn sync_all(&mut self, number: usize) {
        let all: Vec<usize> = self.files.keys().copied().collect();
        all.into_iter().for_each(|file| self.sync(file, number));
    }

    /// How the running system differs from this state, in words.
    pub(super) fn differs(&self, found: &Found) -> Option<String> {
        if !self.names.keys().copied().eq(found.keys().map(String::as_str)) {
            return Some(format!("the names are {:?}", found.keys()));
        }
        let other = self.names.iter().find(|(name, file)| found[**name].1 != **self.files[file]);
        other.map(|(name, _)| format!("{name} has other contents")).or_else(|| self.mixes_up(found))
    }

    /// Names of one file lead to one inode, and those of two to two.
    fn mixes_up(&self, found: &Found) -> Option<String> {
        let inodes: BTreeSet<(usize, u64)> =
            self.names.iter().map(|(name, file)| (*file, found[*name].0)).collect();
        let files: BTreeSet<usize> = inodes.iter().map(|(file, _)| *file).collect();
        let numbers: BTreeSet<u64> = inodes.iter().map(|(_, number)| *number).collect();
        (files.len() != inodes.len() || numbers.len() != inodes.len())
            .then(|| "two names of one file lead to different ones, or the other way round".to_owned())
    }
}

/// Whether the files found can be there after a crash, in units of which each is written whole.
pub(super) fn judge(
    states: &[State],
    acknowledged: usize,
    in_flight: bool,
    found: &Found,
    unit: usize,
) -> Result<(), String> {
    let last = acknowledged + usize::from(in_flight);
    let mut why = format!("the names are {:?}", found.keys());
    for state in (acknowledged..=last).rev() {
        let names = &states[state].names;
        if !names.keys().copied().eq(found.keys().map(String::as_str)) {
            continue;
        }
        let files = names.iter().try_for_each(|(name, &file)| {
            explain(states, state, last, file, &found[*name].1, unit).map_err(|why| format!("{name}: {why}"))
        });
        match files.and(states[state].mixes_up(found).map_or(Ok(()), Err)) {
            Ok(()) => return Ok(()),
            Err(other) => why = other,
        }
    }
    Err(why)
}

/// Whether `found` is a possible state of a file, after a crash in state `state` or on the way to `last`.
fn explain(
    states: &[State],
    state: usize,
    last: usize,
    file: usize,
    found: &[u8],
    unit: usize,
) -> Result<(), String> {
    let floor = &states[state].floors[&file];
    // From its creation on every state has the file.
    let since = floor.all;
    let versions: Vec<&[u8]> =
        states[since..=last].iter().map(|state| state.files[&file].as_slice()).collect();
    let promised = floor.len.min(states[last].floors.get(&file).map_or(0, |floor| floor.len));
    let sizes = || versions[floor.sized.saturating_sub(since)..].iter().map(|version| version.len());
    let (shortest, longest) = (sizes().min().unwrap_or(0).max(promised), sizes().max().unwrap_or(0));
    if !(shortest..=longest).contains(&found.len()) {
        return Err(format!("{} bytes, not {shortest} to {longest}", found.len()));
    }
    for start in (0..found.len()).step_by(unit) {
        let end = (start + unit).min(found.len());
        let from = floor.blocks.get(&(start / BLOCK)).map_or(since, |&block| block.max(since));
        if !is_explained(&versions[from - since..], found, start..end) {
            return Err(format!(
                "bytes {start} to {end} of {} were never so since operation {from}",
                found.len()
            ));
        }
    }
    Ok(())
}

/// Whether a unit of a file has the content of one of these versions, one after each operation; or a remainder of that.
fn is_explained(versions: &[&[u8]], found: &[u8], unit: Range<usize>) -> bool {
    let is_part = |version: &&[u8], part: Range<usize>| version.get(part.clone()) == Some(&found[part]);
    let is_inside = |until: usize| unit.start < until && until < unit.end;
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    // The size may have grown by the write of another block: from the old end on the unit reads as zeros.
    let may_grow = unit.end < found.len();
    let is_whole = |version: &&[u8]| {
        let end = version.len();
        is_part(version, unit.clone())
            || may_grow
                && is_inside(end)
                && is_part(version, unit.start..end)
                && is_zero(&found[end..unit.end])
    };
    // A cut is durable at once, and may meet what was there before a write that still waits.
    let is_rest = |cut: usize| {
        let until = versions[cut].len();
        until < versions[cut - 1].len()
            && is_inside(until)
            && is_zero(&found[until..unit.end])
            && versions[..cut].iter().any(|version| is_part(version, unit.start..until))
            && (may_grow || versions[cut..].iter().any(|version| is_part(version, until..unit.end)))
    };
    versions.iter().any(is_whole) || (1..versions.len()).any(is_rest)
}

#[cfg(test)]
mod tests {
    use super::is_explained;

    #[test]
    fn a_unit_is_one_of_its_versions() {
        let versions: [&[u8]; 2] = [b"aaaaaaaa", b"bbbbaaaabbbb"];
        assert!(is_explained(&versions, b"bbbbaaaabbbb", 0..8));
        assert!(is_explained(&versions, b"aaaaaaaabbbb", 0..8));
        assert!(!is_explained(&versions[1..], b"aaaaaaaabbbb", 0..8));
        assert!(!is_explained(&versions, b"aaaabbbbbbbb", 0..8));
    }

    #[test]
    fn behind_an_old_end_there_are_zeros_where_another_unit_let_the_file_grow() {
        let versions: [&[u8]; 2] = [b"aaaa", b"aaaabbbbbbbb"];
        assert!(is_explained(&versions, b"aaaa\0\0\0\0bbbb", 0..8));
        assert!(!is_explained(&versions, b"aaaa\0\0\0\0", 0..8), "its own size shows what was not written");
        assert!(!is_explained(&versions, b"aaaa\0b\0\0bbbb", 0..8));
    }

    #[test]
    fn a_cut_meets_what_a_write_that_waits_would_have_replaced() {
        let versions: [&[u8]; 4] = [b"aaaaaaaa", b"bbaaaaaa", b"bbaa", b"bbaa\0\0\0\0cc"];
        assert!(is_explained(&versions, b"aaaa\0\0\0\0cc", 0..8));
        assert!(is_explained(&versions, b"aaaa\0\0\0\0", 0..8), "it grew to there once");
        assert!(!is_explained(&versions, b"bbaaaa\0\0cc", 0..8), "the cut was durable");
        assert!(!is_explained(&versions, b"aa\0\0\0\0\0\0cc", 0..8), "it was no deeper");
        let appended: [&[u8]; 4] = [b"aaaaaaaa", b"bbaaaaaa", b"bbaa", b"bbaacccc"];
        assert!(!is_explained(&appended, b"aaaa\0\0\0\0", 0..8), "what was appended came with its size");
    }
}
