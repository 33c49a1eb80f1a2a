//! All short sequences of operations over a few files and directories, as in the bounded testing of CrashMonkey and
//! ACE. Most bugs of crash consistency need two operations and a crash.

use nacre_engine::{Attr, FallocateMode, FileKind, RenameMode};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::op::Op;
use super::workload::Workload;

/// How long the sequences are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Each operation alone.
    One,
    /// Each pair, in an order that the seed gives.
    Two,
    /// So many random triples.
    Three(usize),
}

/// The file system before a sequence: directories with files, some of them empty, linked, or with attributes.
pub fn setup() -> Vec<Op> {
    vec![
        Op::Create("d", FileKind::Directory),
        Op::Create("e", FileKind::Directory),
        Op::Create("d/a", FileKind::Regular),
        Op::Write("d/a", 0, 9000),
        Op::Create("d/b", FileKind::Regular),
        Op::Write("d/b", 0, 300),
        Op::SetXattr("d/b", "user.x", 20),
        Op::Create("e/c", FileKind::Regular),
        Op::Link("d/b", "e/b2"),
        Op::Create("d/sub", FileKind::Directory),
        Op::Create("d/sub/x", FileKind::Regular),
        Op::Create("e/old", FileKind::Directory),
    ]
}

const LONG_TARGET: &str = "a/target/that/does/not/fit/into/the/three/lines/of/log/that/an/inode/has/by/itself/and/that/\
                           therefore/goes/to/a/block/of/its/own/before/the/name/is/published/so/that/there/is/one/more/\
                           thing/that/must/be/durable";
const LONG_NAME: &str =
    "d/a-name-of-more-than-one-line-in-the-log-of-its-directory-that-must-be-there-wholly";

/// The operations that sequences are made of.
pub fn operations() -> Vec<Op> {
    let mut all = names();
    all.extend(moves());
    all.extend(contents());
    all.extend(attributes());
    all
}

fn names() -> Vec<Op> {
    vec![
        Op::Create("d/n", FileKind::Regular),
        Op::Create("n", FileKind::Regular),
        Op::Create(LONG_NAME, FileKind::Regular),
        Op::CreateWithXattr("e/n"),
        Op::Create("e/p", FileKind::Fifo),
        Op::Create("d/m", FileKind::Directory),
        Op::Create("d/sub/n", FileKind::Directory),
        Op::Symlink("d/s", "a"),
        Op::Symlink("e/s", LONG_TARGET),
        Op::UnnamedThenLink("d/u", 5000),
        Op::Link("d/a", "d/l"),
        Op::Link("d/a", "e/n"),
        Op::Unlink("d/a"),
        Op::Unlink("d/b"),
        Op::Unlink("e/c"),
        Op::UnlinkOpen("d/a"),
        Op::Unlink("d/n"),
        Op::Rmdir("e/old"),
        Op::Rmdir("d/sub"),
        Op::Unlink("d/sub/x"),
    ]
}

fn moves() -> Vec<Op> {
    use RenameMode::{Exchange, NoReplace, Replace};
    vec![
        Op::Rename("d/a", "d/n", Replace),
        Op::Rename("d/a", "d/b", Replace),
        Op::Rename("d/a", "e/n", Replace),
        Op::Rename("d/a", "e/c", Replace),
        Op::Rename("e/n", "d/a", NoReplace),
        Op::Rename("d/a", "d/b", NoReplace),
        Op::Rename("d/b", "d/n", NoReplace),
        Op::Rename("d/a", "d/b", Exchange),
        Op::Rename("d/a", "e/c", Exchange),
        Op::Rename("d/a", "d/n", RenameMode::WHITEOUT),
        Op::Rename("d/a", "e/c", RenameMode::WHITEOUT),
        Op::Rename("d/sub", "e/sub", RenameMode::WHITEOUT),
        Op::Rename("d/sub", "e/sub", Replace),
        Op::Rename("d/sub", "e/old", Replace),
        Op::Rename("d/sub", "e/c", Exchange),
        Op::Rename("d", "e/d", Replace),
        Op::Rename("e", "d/sub", Exchange),
    ]
}

fn contents() -> Vec<Op> {
    use FallocateMode::{Allocate, AllocateKeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize};
    vec![
        Op::Write("d/a", 0, 4096),
        Op::Write("d/a", 4096, 4096),
        Op::Write("d/a", 1000, 100),
        Op::Write("d/a", 3000, 3000),
        Op::Write("d/a", 20_000, 500),
        Op::Write("e/c", 0, 10),
        Op::Write("e/c", 0, 8192),
        Op::Write("d/n", 0, 5000),
        Op::Append("d/a", 100),
        Op::Append("d/a", 5000),
        Op::Append("d/b", 1),
        Op::Read("d/a"),
        Op::Truncate("d/a", 0),
        Op::Truncate("d/a", 5000),
        Op::Truncate("d/a", 30_000),
        Op::Truncate("d/b", 10),
        Op::Fallocate("d/a", Allocate, 5000, 10_000),
        Op::Fallocate("e/c", AllocateKeepSize, 0, 10_000),
        Op::Fallocate("d/a", PunchHole, 100, 5000),
        Op::Fallocate("d/a", PunchHole, 0, 12_288),
        Op::Fallocate("d/a", ZeroRange, 3000, 9000),
        Op::Fallocate("d/a", ZeroRangeKeepSize, 0, 4096),
    ]
}

fn attributes() -> Vec<Op> {
    vec![
        Op::SetAttr("d/a", 0o600),
        Op::SetAttr("d", 0o700),
        Op::SetTimes("d/a", 77),
        Op::SetFlags("d/a", Attr::APPEND_ONLY),
        Op::SetFlags("e/c", Attr::IMMUTABLE),
        Op::SetXattr("d/a", "user.x", 10),
        Op::SetXattr("d/b", "user.x", 6000),
        Op::SetXattr("d", "user.y", 30),
        Op::RemoveXattr("d/b", "user.x"),
        Op::Sync("d/a"),
        Op::Release,
        Op::Remount,
    ]
}

/// The sequences of one length.
pub fn sequences(length: Length, seed: u64) -> Vec<Workload> {
    let ops = operations();
    let of = |picked: &[usize]| {
        let name: Vec<String> = picked.iter().map(|&index| ops[index].to_text()).collect();
        Workload {
            name: name.join("; "),
            setup: setup(),
            ops: picked.iter().map(|&index| ops[index].clone()).collect(),
            // The crashes before the last operation are those of a shorter sequence.
            explored_from: picked.len() - 1,
            ..Workload::default()
        }
    };
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5e9);
    match length {
        Length::One => (0..ops.len()).map(|one| of(&[one])).collect(),
        Length::Two => {
            let all = 0..ops.len();
            let mut pairs: Vec<[usize; 2]> =
                all.clone().flat_map(|one| all.clone().map(move |two| [one, two])).collect();
            pairs.shuffle(&mut rng);
            pairs.iter().map(|pair| of(pair)).collect()
        }
        Length::Three(count) => {
            (0..count).map(|_| of(&[0; 3].map(|_: usize| rng.random_range(0..ops.len())))).collect()
        }
    }
}
