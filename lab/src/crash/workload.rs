//! What is done before the crash: short scripts for every operation, and random ones.

use nacre_engine::{FallocateMode, FileKind, RenameMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::op::Op;

/// Operations to prepare, and operations to crash in.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its name, unique among the fixed ones.
    pub name: String,
    /// Done and durable before the first crash.
    pub setup: Vec<Op>,
    /// At each fence of these there is a crash.
    pub ops: Vec<Op>,
}

fn workload(name: &str, setup: &[Op], ops: &[Op]) -> Workload {
    Workload { name: name.to_string(), setup: setup.to_vec(), ops: ops.to_vec() }
}

fn file(path: &'static str) -> Op {
    Op::Create(path, FileKind::Regular)
}

fn dir(path: &'static str) -> Op {
    Op::Create(path, FileKind::Directory)
}

const LONG_NAME: &str = "a-name-that-does-not-fit-into-one-line-of-sixty-four-bytes-and-therefore-takes-an-entry-of-\
                         several-lines-which-must-all-be-there-or-count-as-none-of-them";

/// One workload for each kind of operation.
pub fn fixed() -> Vec<Workload> {
    let mut all = namespace();
    all.extend(renames());
    all.extend(contents());
    all.extend(attributes());
    all
}

fn namespace() -> Vec<Workload> {
    let base = [dir("d"), file("d/a"), Op::Write("d/a", 0, 5000), file("b")];
    vec![
        workload(
            "create",
            &base,
            &[file("d/new"), file("c"), Op::Create("d/fifo", FileKind::Fifo), file(LONG_NAME)],
        ),
        workload("create-with-attribute", &base, &[Op::CreateWithXattr("d/born")]),
        workload("mkdir", &base, &[dir("e"), dir("d/e"), file("d/e/x")]),
        workload("symlink", &base, &[Op::Symlink("s", "d/a"), Op::Symlink("d/long", LONG_NAME)]),
        workload("link", &base, &[Op::Link("d/a", "a2"), Op::Link("a2", "d/a3"), Op::Unlink("d/a")]),
        workload("unlink", &base, &[Op::Unlink("d/a"), Op::Unlink("b"), file("b"), Op::Write("b", 0, 100)]),
        workload(
            "unlink-linked",
            &[&base[..], &[Op::Link("d/a", "x")]].concat(),
            &[Op::Unlink("x"), Op::Unlink("d/a")],
        ),
        workload(
            "unlink-held",
            &base,
            &[Op::Hold("d/a"), Op::Unlink("d/a"), file("d/b"), Op::Append("d/b", 4096), Op::Release],
        ),
        workload("rmdir", &[dir("d"), dir("d/e")], &[Op::Rmdir("d/e"), Op::Rmdir("d"), dir("d")]),
        workload("unnamed", &base, &[Op::UnnamedThenLink("d/named", 5000)]),
        workload(
            "reuse",
            &base,
            &[
                Op::Unlink("b"),
                dir("b"),
                file("b/x"),
                Op::Unlink("b/x"),
                Op::Rmdir("b"),
                Op::Symlink("b", "d"),
            ],
        ),
    ]
}

fn renames() -> Vec<Workload> {
    use RenameMode::{Exchange, NoReplace, Replace};
    let base =
        [dir("d"), dir("e"), file("d/a"), Op::Write("d/a", 0, 300), file("d/b"), file("e/c"), dir("d/sub")];
    let base = [&base[..], &[file("d/sub/x")]].concat();
    vec![
        workload(
            "rename-in-directory",
            &base,
            &[Op::Rename("d/a", "d/z", Replace), Op::Rename("d/z", "d/y", NoReplace)],
        ),
        workload("rename-replacing", &base, &[Op::Rename("d/a", "d/b", Replace)]),
        workload(
            "rename-across",
            &base,
            &[Op::Rename("d/a", "e/a", Replace), Op::Rename("e/a", "d/q", NoReplace)],
        ),
        workload("rename-across-replacing", &base, &[Op::Rename("d/a", "e/c", Replace)]),
        workload("rename-exchange", &base, &[Op::Rename("d/a", "d/b", Exchange)]),
        workload("rename-exchange-across", &base, &[Op::Rename("d/a", "e/c", Exchange)]),
        workload("rename-exchange-kinds", &base, &[Op::Rename("d/sub", "e/c", Exchange)]),
        workload("rename-directory", &base, &[Op::Rename("d/sub", "e/sub", Replace), file("e/sub/y")]),
        workload(
            "rename-directory-replacing",
            &[&base[..], &[dir("e/old")]].concat(),
            &[Op::Rename("d/sub", "e/old", Replace)],
        ),
        workload(
            "rename-long",
            &base,
            &[Op::Rename("d/a", LONG_NAME, Replace), Op::Rename(LONG_NAME, "d/a", Replace)],
        ),
        workload(
            "rename-replacing-held",
            &base,
            &[Op::Hold("d/b"), Op::Rename("d/a", "d/b", Replace), file("d/new"), Op::Release],
        ),
    ]
}

fn contents() -> Vec<Workload> {
    let base = [file("f"), Op::Write("f", 0, 20_000), file("g")];
    let on = |name, ops: &[Op]| workload(name, &base, ops);
    vec![
        on("write", &[Op::Write("g", 0, 4096), Op::Write("g", 4096, 8192), Op::Write("g", 100_000, 10)]),
        on("write-small", &[Op::Write("g", 0, 10), Op::Write("g", 3, 100), Op::Write("g", 0, 1)]),
        on(
            "append",
            &[Op::Append("f", 100), Op::Append("f", 4096), Op::Append("g", 1), Op::Append("g", 9000)],
        ),
        on("overwrite", &[Op::Write("f", 0, 4096), Op::Write("f", 5000, 3000), Op::Write("f", 19_000, 3000)]),
        on("overwrite-all", &[Op::Write("f", 0, 20_000), Op::Write("f", 0, 20_480)]),
        on(
            "truncate",
            &[
                Op::Truncate("f", 5000),
                Op::Truncate("f", 30_000),
                Op::Write("f", 25_000, 50),
                Op::Truncate("f", 0),
                Op::Append("f", 10),
            ],
        ),
        on(
            "allocate",
            &[
                Op::Fallocate("g", FallocateMode::AllocateKeepSize, 0, 30_000),
                Op::Write("g", 4096, 4096),
                Op::Fallocate("g", FallocateMode::Allocate, 0, 40_000),
                Op::Write("g", 100, 100),
            ],
        ),
        on(
            "punch",
            &[
                Op::Fallocate("f", FallocateMode::PunchHole, 4096, 8192),
                Op::Fallocate("f", FallocateMode::PunchHole, 100, 200),
                Op::Write("f", 6000, 100),
            ],
        ),
        on(
            "zero",
            &[
                Op::Fallocate("f", FallocateMode::ZeroRange, 3000, 10_000),
                Op::Fallocate("f", FallocateMode::ZeroRange, 18_000, 10_000),
                Op::Fallocate("f", FallocateMode::ZeroRangeKeepSize, 27_000, 10_000),
            ],
        ),
    ]
}

fn attributes() -> Vec<Workload> {
    let base = [dir("d"), file("d/a"), Op::SetXattr("d/a", "user.old", 30)];
    vec![
        workload(
            "setattr",
            &base,
            &[Op::SetAttr("d/a", 0o600), Op::SetAttr("d", 0o700), Op::SetAttr("", 0o711)],
        ),
        workload(
            "xattr",
            &base,
            &[
                Op::SetXattr("d/a", "user.new", 10),
                Op::SetXattr("d/a", "user.old", 50),
                Op::RemoveXattr("d/a", "user.new"),
                Op::SetXattr("d", "user.dir", 5),
            ],
        ),
        workload(
            "xattr-large",
            &base,
            &[
                Op::SetXattr("d/a", "user.large", 10_000),
                Op::SetXattr("d/a", "user.large", 20_000),
                Op::SetXattr("d/a", "user.large", 7),
                Op::RemoveXattr("d/a", "user.large"),
            ],
        ),
    ]
}

/// Logs that grow over many pages, so that pages are added and collected while there are crashes. These have many
/// operations: explore them with few images each.
pub fn growing() -> Vec<Workload> {
    // Whatever the layout does at the end of a page happens within so many operations.
    const CRASHED: usize = 420;
    let split = |name: &str, first: &[Op], mut ops: Vec<Op>| {
        let tail = ops.split_off(ops.len() - CRASHED);
        workload(name, &[first, &ops].concat(), &tail)
    };
    let files = ["d/a", "d/b", "d/c", "d/d", "d/e", "d/f", "d/g", "d/h", "d/i", "d/j", "d/k", "d/l"];
    let attributes = (0..700).map(|i| Op::SetAttr("f", 0o600 + i % 8)).collect();
    // Some blocks are changed often, some once: live and dead entries lie side by side.
    let overwrites = (0..1200u64).map(|i| {
        let block = scatter(i, 1 + i % 64) * 4096;
        match i % 16 {
            0 => Op::Write("f", block, 100),
            1..9 => Op::Fallocate("f", FallocateMode::AllocateKeepSize, block, 4096),
            _ => Op::Fallocate("f", FallocateMode::PunchHole, block, 4096),
        }
    });
    let churn = (0..1500u64).map(|i| {
        let name = files[scatter(i, files.len() as u64) as usize];
        match scatter(i + 5000, 5) {
            0 | 1 => file(name),
            2 => Op::Rename(name, files[scatter(i + 9000, files.len() as u64) as usize], RenameMode::Replace),
            3 => Op::Link("f", name),
            _ => Op::Unlink(name),
        }
    });
    vec![
        split("grow-attributes", &[file("f")], attributes),
        split("grow-overwrites", &[file("f"), Op::Truncate("f", 300_000)], overwrites.collect()),
        split("grow-directory", &[file("f"), dir("d")], churn.collect()),
    ]
}

/// A number below `n` that looks random and depends on `i` only.
fn scatter(i: u64, n: u64) -> u64 {
    let z = i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) % n
}

/// A random workload: `len` operations on a handful of names, of which some fail.
pub fn random(seed: u64, len: usize) -> Workload {
    let mut rng = SmallRng::seed_from_u64(seed);
    let setup = vec![dir("d"), dir("e"), file("d/a"), Op::Write("d/a", 0, 10_000), file("e/b"), file("c")];
    let ops = (0..len).map(|_| random_op(&mut rng)).collect();
    Workload { name: format!("random-{seed}-{len}"), setup, ops }
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
            const MODES: [RenameMode; 4] =
                [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            Op::Rename(one, two, MODES[rng.random_range(0..4)])
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
