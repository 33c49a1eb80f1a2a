//! Random operations before the crash.

use nacre_engine::{FallocateMode, RenameMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::op::Op;
use super::workload::{Workload, dir, file};

/// A random workload: `len` operations on a handful of names, of which some fail.
pub fn random(seed: u64, len: usize) -> Workload {
    let mut rng = SmallRng::seed_from_u64(seed);
    let setup = vec![dir("d"), dir("e"), file("d/a"), Op::Write("d/a", 0, 10_000), file("e/b"), file("c")];
    let ops = (0..len).map(|_| random_op(&mut rng)).collect();
    Workload { name: format!("random-{seed}-{len}"), setup, ops, ..Workload::default() }
}

fn random_op(rng: &mut SmallRng) -> Op {
    const NAMES: [&str; 12] = ["a", "b", "c", "d", "e", "d/a", "d/b", "d/c", "e/a", "e/b", "e/d", "e/d/x"];
    let path = |rng: &mut SmallRng| NAMES[rng.random_range(0..NAMES.len())];
    let one = path(rng);
    let two = path(rng);
    let offset = [0, 1, 64, 4000, 4096, 8192, 20_000, 65_536][rng.random_range(0..8)];
    let len = [1, 7, 64, 100, 4096, 5000, 12_288, 30_000][rng.random_range(0..8)];
    match rng.random_range(0..26) {
        0..4 => file(one),
        4..6 => dir(one),
        6 => Op::Symlink(one, two),
        7..10 => Op::Write(one, offset, len),
        10..12 => Op::Append(one, len),
        12 => Op::Truncate(one, offset),
        13 => {
            const MODES: [FallocateMode; 5] = [
                FallocateMode::Allocate,
                FallocateMode::AllocateKeepSize,
                FallocateMode::PunchHole,
                FallocateMode::ZeroRange,
                FallocateMode::ZeroRangeKeepSize,
            ];
            Op::Fallocate(one, MODES[rng.random_range(0..5)], offset, len as u64)
        }
        14..18 => {
            const MODES: [RenameMode; 5] = [
                RenameMode::Replace,
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
                RenameMode::WHITEOUT,
            ];
            Op::Rename(one, two, MODES[rng.random_range(0..MODES.len())])
        }
        18 => Op::Link(one, two),
        19 | 20 => Op::Unlink(one),
        21 => Op::Rmdir(one),
        22 => Op::SetAttr(one, 0o600 | len as u32 & 0o77),
        23 => Op::SetXattr(one, ["user.x", "user.y"][rng.random_range(0..2)], len.min(6000)),
        24 => Op::RemoveXattr(one, "user.x"),
        _ => [Op::Hold(one), Op::Release, Op::UnnamedThenLink(one, len)][rng.random_range(0..3)].clone(),
    }
}
