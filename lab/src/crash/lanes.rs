//! Several lanes: operations that take inodes and blocks from different parts of the allocators. The steps of a
//! workload use the lanes in turn.

use nacre_engine::{FallocateMode, FileKind};

use super::full::fill;
use super::op::Op;
use super::sequences::{Length, sequences};
use super::subject::Mounting;
use super::workload::{Workload, dir, file, fixed, many, workload};

const BLOCK: u64 = 4096;
/// Blocks that are free in each lane, where there are two and each has few.
const FEW: u64 = 20;

fn with_lanes(lanes: usize, workload: Workload) -> Workload {
    let name = format!("{lanes} lanes: {}", workload.name);
    Workload { name, mounting: Mounting { lanes, ..Mounting::default() }, ..workload }
}

/// All of them.
pub fn lanes(seed: u64) -> Vec<Workload> {
    let mut all: Vec<Workload> = fixed().into_iter().map(|workload| with_lanes(2, workload)).collect();
    all.extend(sequences(Length::One, seed).into_iter().map(|workload| with_lanes(3, workload)));
    all.extend((0..8).map(extents_of_two_lanes));
    all.extend((0..8).map(inodes_of_lanes_run_out));
    all
}

/// More is written than one lane has.
fn extents_of_two_lanes(variant: u64) -> Workload {
    let mut setup = vec![dir("d"), file("d/a"), Op::Append("d/a", 9000)];
    setup.extend(fill());
    for at in [variant, 2400 + variant] {
        setup.push(Op::Fallocate("full", FallocateMode::PunchHole, at * BLOCK, FEW * BLOCK));
    }
    let most = (FEW + FEW / 2) as usize * BLOCK as usize;
    let ops = match variant % 4 {
        0 => [Op::Append("d/a", most), Op::Append("d/a", most)],
        1 => [Op::Write("d/a", 0, most), Op::Unlink("d/a")],
        2 => [Op::Fallocate("d/a", FallocateMode::Allocate, 0, most as u64), Op::Truncate("d/a", 100)],
        _ => [Op::UnnamedThenLink("d/u", most), Op::Unlink("full")],
    };
    Workload { fills: true, ..with_lanes(2, workload(&format!("extents of both, {variant}"), &setup, &ops)) }
}

/// The inodes of some lanes run out, and those of others do not.
fn inodes_of_lanes_run_out(variant: u64) -> Workload {
    let setup = many(757 + variant as usize);
    let make =
        |i: usize| Op::parse(&format!("create {} n{i}", ["file", "directory"][i % 2])).expect("an operation");
    let mut ops: Vec<Op> = (0..10).map(make).collect();
    ops.extend([Op::Unlink("n0"), Op::Rmdir("n1"), Op::Create("again", FileKind::Regular)]);
    with_lanes(3, workload(&format!("inodes run out, {variant}"), &setup, &ops))
}
