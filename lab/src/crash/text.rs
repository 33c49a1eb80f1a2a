//! Operations as lines of text, for traces that are kept in files.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use nacre_engine::{Error, FallocateMode, FileKind, Kind, RenameMode, Result};

use super::op::{Op, Twin};

const KINDS: [(FileKind, &str); 7] = [
    (FileKind::Regular, "file"),
    (FileKind::Directory, "directory"),
    (FileKind::Symlink, "symlink"),
    (FileKind::CharDevice, "character-device"),
    (FileKind::BlockDevice, "block-device"),
    (FileKind::Fifo, "fifo"),
    (FileKind::Socket, "socket"),
];

const MODES: [(FallocateMode, &str); 5] = [
    (FallocateMode::Allocate, "allocate"),
    (FallocateMode::AllocateKeepSize, "allocate-keep-size"),
    (FallocateMode::PunchHole, "punch"),
    (FallocateMode::ZeroRange, "zero"),
    (FallocateMode::ZeroRangeKeepSize, "zero-keep-size"),
];

const RENAMES: [(RenameMode, &str); 4] = [
    (RenameMode::Replace, "replace"),
    (RenameMode::NoReplace, "no-replace"),
    (RenameMode::Exchange, "exchange"),
    (RenameMode::WHITEOUT, "whiteout"),
];

const TWINS: [(Twin, &str); 2] = [(Twin::Primary, "primary"), (Twin::Backup, "backup")];

fn name_of<T: PartialEq>(table: &[(T, &'static str)], value: &T) -> &'static str {
    table.iter().find(|(other, _)| other == value).map_or("unknown", |(_, name)| name)
}

/// The root has an empty path, which would be lost between blanks.
fn shown(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

impl Op {
    /// The operation as words that [`Op::parse`] reads.
    pub fn to_text(&self) -> String {
        match self {
            Op::Create(path, kind) => format!("create {} {path}", name_of(&KINDS, kind)),
            Op::CreateWithXattr(path) => format!("create-with-xattr {path}"),
            Op::Symlink(path, target) => format!("symlink {path} {target}"),
            Op::Write(path, offset, len) => format!("write {path} {offset} {len}"),
            Op::Append(path, len) => format!("append {path} {len}"),
            Op::Read(path) => format!("read {path}"),
            Op::Truncate(path, size) => format!("truncate {path} {size}"),
            Op::Fallocate(path, mode, offset, len) => {
                format!("fallocate {} {path} {offset} {len}", name_of(&MODES, mode))
            }
            Op::Rename(from, to, mode) => format!("rename {} {from} {to}", name_of(&RENAMES, mode)),
            Op::Link(from, to) => format!("link {from} {to}"),
            Op::Unlink(path) => format!("unlink {path}"),
            Op::Rmdir(path) => format!("rmdir {path}"),
            Op::SetAttr(path, mode) => format!("setattr {} {mode:o}", shown(path)),
            Op::SetTimes(path, secs) => format!("set-times {} {secs}", shown(path)),
            Op::SetFlags(path, flags) => format!("set-flags {} {flags}", shown(path)),
            Op::SetXattr(path, name, len) => format!("set-xattr {} {name} {len}", shown(path)),
            Op::RemoveXattr(path, name) => format!("remove-xattr {} {name}", shown(path)),
            Op::Hold(path) => format!("hold {path}"),
            Op::Release => "release".to_string(),
            Op::LetGo(path) => format!("let-go {}", shown(path)),
            Op::UnnamedThenLink(path, len) => format!("unnamed {path} {len}"),
            Op::WriteThrough(path, offset, len) => format!("write-through {path} {offset} {len}"),
            Op::Close(path) => format!("close {path}"),
            Op::Sync(path) => format!("sync {}", shown(path)),
            Op::SyncAll => "sync-all".to_string(),
            Op::UnlinkOpen(path) => format!("unlink-open {path}"),
            Op::Demote(path, start, blocks) => format!("demote {path} {start} {blocks}"),
            Op::DemoteBoth(one, other) => format!("demote-both {one} {other}"),
            Op::DemoteLast(path) => format!("demote-last {path}"),
            Op::Descend => "descend".to_string(),
            Op::Evict(blocks) => format!("evict {blocks}"),
            Op::BringUp(path) => format!("bring-up {path}"),
            Op::Trim => "trim".to_string(),
            Op::Promote(path, start, blocks) => format!("promote {path} {start} {blocks}"),
            Op::Compact(path) => format!("compact {path}"),
            Op::MoveLog(path) => format!("move-log {path}"),
            Op::AddTier => "add-tier".to_string(),
            Op::RemoveTier => "remove-tier".to_string(),
            Op::Remount => "remount".to_string(),
            Op::Mkfs => "mkfs".to_string(),
            Op::MakeVolume(name, quota) => format!("make-volume {name} {quota}"),
            Op::RemoveVolume(name) => format!("remove-volume {name}"),
            Op::UseVolume(name) => format!("use-volume {name}"),
            Op::Damage(kind, number, twin) => format!("damage {kind} {number} {}", name_of(&TWINS, twin)),
        }
    }

    /// Parses the output of [`Op::to_text`].
    pub fn parse(text: &str) -> Result<Op> {
        let mut words = Words { text, rest: text.split_whitespace() };
        let op = match words.word()? {
            "create" => {
                let kind = words.one_of(&KINDS)?;
                Op::Create(words.path()?, kind)
            }
            "create-with-xattr" => Op::CreateWithXattr(words.path()?),
            "symlink" => Op::Symlink(words.path()?, words.path()?),
            "write" => Op::Write(words.path()?, words.number()?, words.number()? as usize),
            "append" => Op::Append(words.path()?, words.number()? as usize),
            "read" => Op::Read(words.path()?),
            "truncate" => Op::Truncate(words.path()?, words.number()?),
            "fallocate" => {
                let mode = words.one_of(&MODES)?;
                Op::Fallocate(words.path()?, mode, words.number()?, words.number()?)
            }
            "rename" => {
                let mode = words.one_of(&RENAMES)?;
                Op::Rename(words.path()?, words.path()?, mode)
            }
            "link" => Op::Link(words.path()?, words.path()?),
            "unlink" => Op::Unlink(words.path()?),
            "rmdir" => Op::Rmdir(words.path()?),
            "setattr" => {
                let path = words.path()?;
                let mode = u32::from_str_radix(words.word()?, 8).map_err(|_| words.wrong())?;
                Op::SetAttr(path, mode)
            }
            "set-times" => Op::SetTimes(words.path()?, words.number()? as i64),
            "set-flags" => Op::SetFlags(words.path()?, words.number()? as u32),
            "set-xattr" => Op::SetXattr(words.path()?, words.path()?, words.number()? as usize),
            "remove-xattr" => Op::RemoveXattr(words.path()?, words.path()?),
            "hold" => Op::Hold(words.path()?),
            "release" => Op::Release,
            "let-go" => Op::LetGo(words.path()?),
            "unnamed" => Op::UnnamedThenLink(words.path()?, words.number()? as usize),
            "write-through" => Op::WriteThrough(words.path()?, words.number()?, words.number()? as usize),
            "close" => Op::Close(words.path()?),
            "sync" => Op::Sync(words.path()?),
            "sync-all" => Op::SyncAll,
            "unlink-open" => Op::UnlinkOpen(words.path()?),
            "demote" => Op::Demote(words.path()?, words.number()?, words.number()?),
            "demote-both" => Op::DemoteBoth(words.path()?, words.path()?),
            "demote-last" => Op::DemoteLast(words.path()?),
            "descend" => Op::Descend,
            "evict" => Op::Evict(words.number()?),
            "bring-up" => Op::BringUp(words.path()?),
            "trim" => Op::Trim,
            "promote" => Op::Promote(words.path()?, words.number()?, words.number()?),
            "compact" => Op::Compact(words.path()?),
            "move-log" => Op::MoveLog(words.path()?),
            "add-tier" => Op::AddTier,
            "remove-tier" => Op::RemoveTier,
            "remount" => Op::Remount,
            "mkfs" => Op::Mkfs,
            "make-volume" => Op::MakeVolume(words.path()?, words.number()?),
            "remove-volume" => Op::RemoveVolume(words.path()?),
            "use-volume" => Op::UseVolume(words.path()?),
            "damage" => Op::Damage(words.path()?, words.number()?, words.one_of(&TWINS)?),
            _ => return Err(words.wrong()),
        };
        match words.rest.next() {
            Some(_) => Err(words.wrong()),
            None => Ok(op),
        }
    }
}

struct Words<'t> {
    text: &'t str,
    rest: std::str::SplitWhitespace<'t>,
}

impl<'t> Words<'t> {
    fn wrong(&self) -> Error {
        Error::new(Kind::InvalidInput).object(format!("\"{}\", which is no operation", self.text))
    }

    fn word(&mut self) -> Result<&'t str> {
        self.rest.next().ok_or_else(|| self.wrong())
    }

    fn path(&mut self) -> Result<&'static str> {
        let word = self.word()?;
        Ok(if word == "/" { "" } else { kept(word) })
    }

    fn number(&mut self) -> Result<u64> {
        self.word()?.parse().map_err(|_| self.wrong())
    }

    fn one_of<T: Copy>(&mut self, table: &[(T, &str)]) -> Result<T> {
        let word = self.word()?;
        table.iter().find(|(_, name)| *name == word).map(|(value, _)| *value).ok_or_else(|| self.wrong())
    }
}

/// Operations have names that live as long as the program, because nearly all are literals. A name from a file is kept
/// once, however often it is read.
pub(super) fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(kept) = names.get(name) {
        return kept;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::Op;
    use crate::crash::damage::with_damage;
    use crate::crash::volume_workloads::with_volumes;
    use crate::crash::{Log, LogWithDisk, between_tiers, cached, deep, fixed, random, sequences, tiered};

    #[test]
    fn every_operation_can_be_written_and_read() {
        let mut all: Vec<Op> = sequences::operations();
        for workload in fixed().into_iter().chain(deep()).chain((0..50).map(|seed| random(seed, 40))) {
            all.extend(workload.setup.iter().cloned());
            all.extend(workload.ops);
        }
        all.extend((0..20).flat_map(|seed| cached(&Log, seed).ops));
        all.extend((0..20).flat_map(|seed| cached(&LogWithDisk::with_two(), seed).ops));
        all.extend(between_tiers().into_iter().flat_map(|workload| workload.ops));
        all.extend(tiered().into_iter().flat_map(|workload| workload.ops));
        all.extend(with_volumes().into_iter().flat_map(|workload| [workload.setup, workload.ops].concat()));
        all.extend(with_damage().into_iter().flat_map(|workload| workload.setup));
        for op in all {
            assert_eq!(Op::parse(&op.to_text()).unwrap(), op, "{}", op.to_text());
        }
        for wrong in ["", "create", "create file", "write a 1", "write a 1 x", "unlink a b", "fly a"] {
            Op::parse(wrong).unwrap_err();
        }
    }
}
