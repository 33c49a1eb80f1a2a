//! Workloads that move blocks between PM and disks.

use nacre_engine::{BLOCK_SIZE, FallocateMode, FileKind};

use super::op::Op;
use super::sequences::{operations, setup};
use super::workload::Workload;

/// All blocks of any file here.
pub(super) const ALL: u64 = 64;

/// Operations that move blocks, or change which tiers there are.
fn relocations() -> Vec<Op> {
    vec![
        Op::Demote("d/a", 0, ALL),
        Op::Demote("d/a", 1, 1),
        Op::Demote("d/b", 0, ALL),
        Op::Demote("d/large", 0, ALL),
        // The last block of the one and the only one of the other are a group.
        Op::DemoteBoth("d/a", "d/b"),
        Op::Promote("d/a", 0, ALL),
        Op::Promote("d/a", 1, 1),
        Op::Promote("d/large", 1, 3),
        Op::Compact("d/a"),
        Op::Compact("d/b"),
        Op::Compact("d/large"),
        Op::Compact("d/worn"),
        Op::MoveLog("d/a"),
        Op::MoveLog("d/large"),
        Op::Demote("d/worn", 0, ALL),
        Op::Trim,
        Op::AddTier,
        Op::RemoveTier,
        Op::Remount,
    ]
}

/// A file of several groups.
pub(super) fn large() -> Vec<Op> {
    vec![
        Op::Create("d/large", FileKind::Regular),
        Op::Write("d/large", 0, 7 * BLOCK_SIZE as usize),
        Op::Fallocate("d/large", FallocateMode::PunchHole, 5 * BLOCK_SIZE, BLOCK_SIZE),
    ]
}

/// A file whose log has several pages with few valid entries, which do not fit into the inode's lines.
pub(super) fn worn() -> Vec<Op> {
    let mut ops = vec![
        Op::Create("d/worn", FileKind::Regular),
        Op::Write("d/worn", 0, 9 * BLOCK_SIZE as usize),
        Op::Fallocate("d/worn", FallocateMode::PunchHole, 2 * BLOCK_SIZE, BLOCK_SIZE),
        Op::SetXattr("d/worn", "user.x", 20),
    ];
    for turn in 0..70 {
        ops.push(Op::Write("d/worn", turn % 2 * 4 * BLOCK_SIZE, BLOCK_SIZE as usize));
    }
    ops
}

/// So that the log of a small file has a page.
pub(super) fn rewritten() -> Vec<Op> {
    (0..6).map(|turn| Op::Write("d/a", turn % 2 * BLOCK_SIZE, 200)).collect()
}

/// Moves logs to the disk, of files that are there.
fn logs_down() -> Vec<Op> {
    vec![Op::Demote("d/worn", 0, ALL), Op::MoveLog("d/a"), Op::MoveLog("d/large"), Op::MoveLog("d/worn")]
}

/// Operations that take the log of that file back from its tier, and such that do not.
fn changes_of_worn() -> Vec<Op> {
    let size = 9 * BLOCK_SIZE;
    vec![
        Op::Write("d/worn", 0, BLOCK_SIZE as usize),
        Op::Write("d/worn", 10, 5),
        Op::Write("d/worn", size, 100),
        Op::Truncate("d/worn", 5 * BLOCK_SIZE),
        Op::Truncate("d/worn", 20 * BLOCK_SIZE),
        Op::Fallocate("d/worn", FallocateMode::PunchHole, 4 * BLOCK_SIZE, BLOCK_SIZE),
        Op::SetXattr("d/worn", "user.z", 200),
        Op::Promote("d/worn", 0, 2),
        Op::Compact("d/worn"),
        Op::Unlink("d/worn"),
    ]
}

/// Operations of which the last one is crashed, after others that are not looked at.
fn sequence(place: &str, setup: &[Op], ops: &[&Op]) -> Workload {
    let words: Vec<String> = ops.iter().map(|op| op.to_text()).collect();
    Workload {
        name: format!("{place}: {}", words.join("; ")),
        setup: setup.to_vec(),
        ops: ops.iter().map(|op| (*op).clone()).collect(),
        explored_from: ops.len() - 1,
        ..Workload::default()
    }
}

/// A block of a file was overwritten alone: the slot of the file may wait for the word that leads to the block.
fn overwritten(setup: &[Op]) -> Vec<Op> {
    [setup, &[Op::Write("d/a", BLOCK_SIZE, BLOCK_SIZE as usize)]].concat()
}

/// Each operation and each relocation, each relocation before and behind each operation, with files on PM and on the
/// disk.
pub fn tiered() -> Vec<Workload> {
    let setup = [setup(), large(), worn()].concat();
    let down = [Op::Demote("d/a", 0, ALL), Op::Demote("d/b", 0, ALL), Op::Demote("d/large", 0, ALL)];
    let below = [&setup[..], &down].concat();
    // Their logs are there, too: what fits into the inode's lines besides, and what does not.
    let whole = [&setup[..], &rewritten(), &down, &logs_down()].concat();
    let (plain, moves) = (operations(), relocations());
    let mut all = Vec::new();
    let mut add = |place: &str, setup: &[Op], ops: &[&Op]| all.push(sequence(place, setup, ops));
    for op in &plain {
        add("below", &below, &[op]);
    }
    for op in plain.iter().chain(&moves).chain(&changes_of_worn()) {
        add("logs below", &whole, &[op]);
        add("logs below, read anew", &whole, &[&Op::Remount, op]);
    }
    for one in [Op::Demote("d/a", 1, 1), Op::Demote("d/a", 0, ALL)] {
        add("overwritten", &overwritten(&setup), &[&one]);
        add("overwritten below", &overwritten(&below), &[&one]);
    }
    for (place, setup) in [("above", &setup), ("below", &below)] {
        for one in &moves {
            add(place, setup, &[one]);
            for two in plain.iter().chain(&moves) {
                add(place, setup, &[one, two]);
                add(place, setup, &[two, one]);
            }
        }
    }
    all
}

/// Evictions, reads that bring blocks up, and what else moves blocks or changes which tiers there are, each alone, and
/// before and behind each other one and each operation; with files on PM and on the disk.
pub fn anticached() -> Vec<Workload> {
    let above = [setup(), large()].concat();
    let below = [&above[..], &[Op::Evict(0)]].concat();
    let apart = [&above[..], &[Op::Read("d/a"), Op::Evict(3)]].concat();
    let moves = [
        Op::Evict(0),
        Op::Evict(2),
        Op::BringUp("d/a"),
        Op::BringUp("d/b"),
        Op::BringUp("d/large"),
        Op::Promote("d/large", 1, 3),
        Op::Trim,
        Op::AddTier,
        Op::RemoveTier,
        Op::Remount,
    ];
    let mut all = vec![sequence("overwritten", &overwritten(&below), &[&Op::Evict(0)])];
    for (place, setup) in [("above", &above), ("below", &below), ("apart", &apart)] {
        for one in &moves {
            all.push(sequence(place, setup, &[one]));
            all.extend(moves.iter().map(|two| sequence(place, setup, &[one, two])));
            for op in &operations() {
                all.extend([sequence(place, setup, &[one, op]), sequence(place, setup, &[op, one])]);
            }
        }
    }
    all
}

/// Each relocation alone, behind each other one, and before and behind each operation, with files on PM and on both of
/// two disks. Each also runs with both disks gone, or with one that went and came back.
pub fn between_tiers() -> Vec<Workload> {
    let files = [setup(), large(), worn()].concat();
    let apart = [
        Op::Demote("d/a", 0, 1),
        Op::Demote("d/large", 0, 4),
        Op::Demote("d/worn", 0, ALL),
        Op::MoveLog("d/worn"),
        Op::AddTier,
        Op::DemoteLast("d/b"),
    ];
    let setup = [&files[..], &apart].concat();
    let mut moves = relocations();
    moves.extend(["d/a", "d/b", "d/large", "d/worn"].map(Op::DemoteLast));
    moves.push(Op::Descend);
    let sequence = |ops: &[&Op]| sequence("between", &setup, ops);
    let (others, mut all) = (operations(), Vec::new());
    let moved = [&Op::Demote("d/a", 1, 1)];
    all.push(self::sequence("between, overwritten", &overwritten(&setup), &moved));
    for one in &moves {
        all.push(sequence(&[one]));
        for two in &moves {
            all.push(sequence(&[one, two]));
        }
        for two in &others {
            all.extend([sequence(&[one, two]), sequence(&[two, one])]);
        }
    }
    // Both disks go, and come back.
    for one in &moves {
        all.push(sequence(&[&Op::RemoveTier, &Op::RemoveTier, one]));
        all.push(sequence(&[&Op::RemoveTier, &Op::AddTier, one]));
        all.push(sequence(&[&Op::RemoveTier, one, &Op::RemoveTier]));
    }
    all
}
