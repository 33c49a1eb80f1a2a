//! Devices that are full, and nearly full: each allocation of each operation fails in some workload. An operation that
//! fails must have changed nothing, now and after a crash; and a full file system can be emptied.

use nacre_engine::{FallocateMode, FileKind};

use super::op::Op;
use super::sequences::{operations, setup};
use super::workload::{Workload, file, many, workload};

const BLOCK: u64 = 4096;
/// The largest portion of the device that is taken at once, in blocks.
const LARGEST: u64 = 2048;
/// Files whose logs need more blocks than the layout reserves for logs.
const LOGS: usize = 40;

/// The space that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// So many blocks for data.
    Blocks(u64),
    /// Not even blocks for logs; only the reserve for removals.
    Removals,
}

/// Every operation on a device that is full, then with room again. Of each kind with logs that have lines left and logs
/// that need a page first.
pub fn full() -> Vec<Workload> {
    let mut all = vec![full_of_removals(), full_at_unmount(0), full_at_unmount(1), full_at_unmount(2)];
    all.extend(overwritten());
    for left in [0, 1, 2, 3, 5].map(Left::Blocks).into_iter().chain([Left::Removals]) {
        for entries in [0, 2] {
            let setup = full_setup(left, entries);
            all.extend(operations().into_iter().filter(|op| *op != Op::Remount).map(|op| {
                let name = format!("full ({left:?}, {entries} entries): {}", op.to_text());
                filling(&name, &setup, &[op.clone(), Op::Unlink("full"), op])
            }));
        }
    }
    all
}

fn filling(name: &str, setup: &[Op], ops: &[Op]) -> Workload {
    Workload { fills: true, ..workload(name, setup, ops) }
}

/// Written blocks are overwritten, and allocated ones are written. This uses blocks that are reserved for it, works in
/// several pieces, and writes in place if logs find no page.
fn overwritten() -> Vec<Workload> {
    const SIZE: u64 = 40 * BLOCK;
    // Where, and how much.
    let writes = [(5 * BLOCK + 100, 3000), (8 * BLOCK, 4096), (3 * BLOCK + 7, 12_288), (0, SIZE as usize)];
    let there = [
        file("d/w"),
        Op::Write("d/w", 0, SIZE as usize),
        file("d/p"),
        // Old content is left in its blocks, which no reader may see.
        Op::Write("d/p", 0, SIZE as usize),
        Op::Fallocate("d/p", FallocateMode::ZeroRange, 0, SIZE),
    ];
    let mut all = Vec::new();
    // So many blocks behind the end, each an entry of its own; the last ones give each of both logs a second page.
    let behind =
        |path, n: u64| Op::Fallocate(path, FallocateMode::AllocateKeepSize, SIZE + 2 * n * BLOCK, BLOCK);
    let kinds = [Left::Blocks(0), Left::Removals].into_iter().flat_map(|left| [0, 2, 70].map(|n| (left, n)));
    for (left, entries) in kinds {
        let pieces = (1..=entries).flat_map(|n| ["d/w", "d/p"].map(|path| behind(path, n)));
        let setup = full_setup_with(&there.iter().cloned().chain(pieces).collect::<Vec<_>>(), left, 0);
        for (path, (offset, len)) in
            ["d/w", "d/p"].into_iter().flat_map(|path| writes.map(|write| (path, write)))
        {
            let op = Op::Write(path, offset, len);
            let name =
                format!("overwritten on a full device ({left:?}, {entries} entries): {}", op.to_text());
            let ops = [op.clone(), Op::Write(path, 20 * BLOCK, 5000), op, Op::Unlink("full")];
            all.push(filling(&name, &setup, &ops));
        }
    }
    all
}

/// The files of sequences with so many entries more in each log, and a file without data that has all the space.
fn full_setup(left: Left, entries: u32) -> Vec<Op> {
    full_setup_with(&[], left, entries)
}

/// The same with other files.
fn full_setup_with(others: &[Op], left: Left, entries: u32) -> Vec<Op> {
    let mut all = setup();
    all.extend_from_slice(others);
    if left == Left::Removals {
        all.extend(many(LOGS));
    }
    for entry in 0..entries {
        all.extend(["d", "e", "d/a", "d/b", "e/c", "d/sub"].map(|path| Op::SetAttr(path, 0o700 + entry)));
    }
    all.extend(fill());
    match left {
        Left::Blocks(0) => {}
        Left::Blocks(count) => {
            all.push(Op::Fallocate("full", FallocateMode::PunchHole, 0, count * BLOCK));
        }
        Left::Removals => all.extend(take_logs()),
    }
    all
}

/// Takes all space for data. A write that does not fit is left out.
pub(super) fn fill() -> Vec<Op> {
    let mut ops = vec![file("full")];
    let mut offset = 0;
    let mut take = |blocks: u64| {
        let op = Op::Fallocate("full", FallocateMode::AllocateKeepSize, offset, blocks * BLOCK);
        offset += blocks * BLOCK;
        op
    };
    let halves = std::iter::successors(Some(LARGEST), |blocks| (*blocks > 1).then_some(blocks / 2));
    ops.extend(halves.map(&mut take));
    // Logs may have grown, or holes were too small, meanwhile.
    ops.extend([4, 2, 1, 1].map(take));
    ops
}

/// Takes the space that is kept for logs: each of these gets a page, since no entry replaces another one.
fn take_logs() -> Vec<Op> {
    let op = |i: usize| {
        Op::parse(&format!("set-xattr {} trusted.{} 20", i % LOGS, i / LOGS)).expect("an operation")
    };
    (0..4 * LOGS).map(op).collect()
}

/// Files that are removed and held give nothing back, and their directories' logs grow: in the end not even a removal
/// finds a block.
fn full_of_removals() -> Workload {
    let op = |text: String| Op::parse(&text).expect("an operation");
    let mut all = many(LOGS);
    for i in 0..LOGS {
        all.push(op(format!("create directory r{i}")));
        all.push(op(format!("create file r{i}/x")));
        all.extend((0..3).map(|entry| op(format!("setattr r{i} {:o}", 0o700 + entry))));
    }
    all.extend(fill());
    all.extend(take_logs());
    let mut ops: Vec<Op> = (0..LOGS).map(|i| op(format!("unlink-open r{i}/x"))).collect();
    ops.extend([Op::Release, Op::Unlink("full"), Op::Create("n", FileKind::Directory)]);
    Workload { explored_from: 28, ..filling("full of removals", &all, &ops) }
}

/// No space is left for the writes of an unmount.
fn full_at_unmount(left: u64) -> Workload {
    let ops = [
        Op::Link("d/a", "e/l"),
        Op::SetAttr("d/a", 0o600),
        Op::Append("e/c", 100),
        Op::Remount,
        Op::Append("e/c", 5000),
        Op::Unlink("full"),
        Op::Remount,
    ];
    filling(&format!("full at an unmount ({left} blocks)"), &full_setup(Left::Blocks(left), 0), &ops)
}
