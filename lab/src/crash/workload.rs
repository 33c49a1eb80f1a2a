//! The operations before the crash: short scripts for every operation, and long ones.

use nacre_engine::{FallocateMode, FileKind, RenameMode};

use super::op::Op;
use super::subject::{Mounting, Subject};

/// Operations to prepare, and operations to crash in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// Its name, unique among the fixed ones.
    pub name: String,
    /// Done and durable before the first crash.
    pub setup: Vec<Op>,
    /// At each fence of these there is a crash.
    pub ops: Vec<Op>,
    /// But not before this one of them: a shorter workload has had these crashes.
    pub explored_from: usize,
    /// How the file system is mounted.
    pub mounting: Mounting,
    /// Operations may find the device full; they must then have changed nothing.
    pub fills: bool,
}

pub(super) fn workload(name: &str, setup: &[Op], ops: &[Op]) -> Workload {
    Workload { name: name.to_string(), setup: setup.to_vec(), ops: ops.to_vec(), ..Workload::default() }
}

pub(super) fn file(path: &'static str) -> Op {
    Op::Create(path, FileKind::Regular)
}

pub(super) fn dir(path: &'static str) -> Op {
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
    all.extend(mounts());
    all.extend((0..BATCH_POSITIONS).map(batch_over_pages));
    all
}

/// Positions in a page of the log, near its end, at which an operation of four entries begins.
const BATCH_POSITIONS: u32 = 7;

/// The entries of one operation are in two pages.
fn batch_over_pages(position: u32) -> Workload {
    let mut setup = vec![dir("d"), file("d/a"), file("d/b")];
    // The last of these are in the last lines of the first page.
    setup.extend((0..55 + position).map(|i| Op::SetAttr("d", 0o700 + i % 8)));
    let ops = [Op::Rename("d/a", "d/b", RenameMode::Exchange), file("d/c")];
    workload(&format!("batch-over-pages-{position}"), &setup, &ops)
}

/// Unmounting, mounting and making file systems.
fn mounts() -> Vec<Workload> {
    let base = [dir("d"), file("d/a"), Op::Write("d/a", 0, 5000), file("b"), dir("e")];
    let busy = [
        Op::Link("d/a", "a2"),
        Op::SetAttr("b", 0o600),
        Op::Hold("b"),
        Op::Unlink("b"),
        Op::Rename("d", "e/d", RenameMode::Replace),
        file("c"),
    ];
    vec![
        workload("remount", &base, &[&busy[..], &[Op::Remount, Op::Append("a2", 100), Op::Remount]].concat()),
        workload(
            "reads",
            &base,
            &[Op::Read("d/a"), Op::SetTimes("b", 77), Op::Read("b"), Op::Sync("d/a"), Op::Remount],
        ),
        // The thread that lets go writes the lazily kept state. The next operations begin with the state on media.
        workload(
            "let-go",
            &base,
            &[
                Op::Link("d/a", "a2"),
                Op::LetGo("a2"),
                Op::Read("d/a"),
                Op::LetGo("d/a"),
                Op::Append("a2", 3000),
                Op::LetGo("a2"),
                Op::Unlink("d/a"),
                Op::LetGo("a2"),
                Op::Unlink("a2"),
                file("c"),
            ],
        ),
        workload(
            "let-go-directory",
            &base,
            &[
                Op::Rename("d", "e/d", RenameMode::Replace),
                Op::LetGo("e/d"),
                file("e/d/new"),
                Op::LetGo("e/d"),
                Op::LetGo("e"),
                Op::Rename("e/d", "d", RenameMode::Replace),
                Op::LetGo("d"),
                Op::Remount,
            ],
        ),
        workload("read-and-overwrite", &base, &[Op::Read("d/a"), Op::Write("d/a", 1000, 3000)]),
        workload("mkfs", &base, &[file("c"), Op::Mkfs, file("new"), Op::Remount]),
    ]
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
        workload(
            "rename-whiteout",
            &base,
            &[Op::Rename("d/a", "d/z", RenameMode::WHITEOUT), Op::Rename("d/z", "d/b", RenameMode::WHITEOUT)],
        ),
        workload(
            "rename-whiteout-across",
            &base,
            &[
                Op::Rename("d/a", "e/c", RenameMode::WHITEOUT),
                Op::Rename("d/sub", "e/sub", RenameMode::WHITEOUT),
            ],
        ),
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
        // A tree of blocks ends before places that it had, and goes on over some of them.
        on(
            "cut-and-extended",
            &[
                Op::Write("f", 0, 40_000),
                Op::Truncate("f", 5000),
                Op::Write("f", 17_000, 100),
                Op::Append("f", 4096),
            ],
        ),
        // Small writes into a hole where there were blocks once.
        on(
            "written-where-it-was-cut",
            &[
                Op::Write("f", 0, 40_000),
                Op::Truncate("f", 5000),
                Op::Truncate("f", 30_000),
                Op::Write("f", 13_000, 50),
                Op::Write("f", 20_480, 4096),
            ],
        ),
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
            "truncate-remembered",
            &[
                Op::Truncate("f", 5000),
                Op::Truncate("f", 30_000),
                Op::SetAttr("f", 0o600),
                Op::SetAttr("f", 0o644),
                Op::Sync("f"),
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
        // A short entry where a longer one was.
        workload(
            "stale-lines",
            &[file("f")],
            &[
                Op::SetXattr("f", "user.x", 60),
                Op::RemoveXattr("f", "user.x"),
                Op::SetAttr("f", 0o600),
                Op::Remount,
                Op::SetAttr("f", 0o644),
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
        // In place, three of these fill a block: it splits, what is above it changes, and it goes again.
        workload(
            "xattr-tree",
            &[file("f"), Op::SetXattr("f", "user.b", 1000), Op::SetXattr("f", "user.d", 1000)],
            &[
                Op::SetXattr("f", "user.c", 1000),
                Op::SetXattr("f", "user.a", 1000),
                Op::SetXattr("f", "user.e", 3000),
                Op::SetXattr("f", "user.d", 900),
                Op::RemoveXattr("f", "user.e"),
                Op::RemoveXattr("f", "user.a"),
                Op::RemoveXattr("f", "user.b"),
                Op::RemoveXattr("f", "user.c"),
            ],
        ),
    ]
}

/// Number of operations within which every action of the layout at the end of a page happens.
const CRASHED: usize = 300;
/// So many times, each with something else before it, the inodes run out, because there are few ways to crash in that.
const CHUNKS: u64 = 32;
/// Workloads that make a chunk of single blocks: each has few images at the word that commits its list.
const SCATTERED_CHUNKS: u64 = 64;

/// So many times, for the same reason, logs are collected.
const COLLECTIONS: u64 = 160;

/// So many times large attributes are set, with few images each, too.
const LARGE_ATTRIBUTES: u64 = 32;

/// Workloads that read, and files of each. The time of a read is one word, of which there are few images.
const READERS: u64 = 10;
const FILES_READ: usize = 12;

/// Files of which the map goes at once.
const WIDE_MAPS: u64 = 8;
/// Nodes of such a map. In a lane of the pool layout there is room for 56 changes.
const WIDE: u64 = 60;
/// Nodes that the pool layout has in a pool block.
const NODES_TOGETHER: u64 = 7;

/// Crashes only in the last operations. The first ones are no preparation, because they must run in the same mount: the
/// layout's state of its logs in DRAM counts.
fn split(name: &str, first: &[Op], ops: Vec<Op>, crashed: usize) -> Workload {
    let explored_from = ops.len() - crashed;
    Workload { explored_from, ..workload(name, first, &ops) }
}

/// Logs that grow over many pages, so that pages are added and collected while there are crashes, and tables that fill.
/// These have many operations: explore them with few images each.
pub fn deep() -> Vec<Workload> {
    let mut all = growing();
    all.extend(crossing());
    all.push(mkfs_over_more());
    all.extend((0..CHUNKS).map(inodes_run_out));
    all.extend((0..2).map(inodes_run_out_on_used_blocks));
    all.extend((0..SCATTERED_CHUNKS).map(inodes_run_out_on_a_fragmented_device));
    all.extend((0..CHUNKS).map(removed_after_a_move));
    all.extend((0..COLLECTIONS).flat_map(collecting));
    all.extend((0..LARGE_ATTRIBUTES).map(large_attributes));
    all.extend((0..READERS).map(times_of_reads));
    all.extend((0..WIDE_MAPS).map(wide_map));
    all.extend(names_run_out());
    all.push(names_of_other_lengths());
    all
}

/// Short names that fill a block of a directory of lines.
const FULL_BLOCK: usize = 64;
const NAME_OF_TWO_LINES: &str = "d/a-name-of-more-than-one-line-in-a-directory-of-lines";
const NAME_OF_FOUR_LINES: &str = "d/a-name-that-takes-the-places-of-four-short-names-in-a-directory-of-lines-where-a-first-\
     line-has-less-of-it-than-those-behind-it-and-all-of-them-count-or-none";

/// A directory gets more names than it has places for: in the pool layout 16, 32 and 64 in one set, then sets below a
/// node, of which one is split. New inodes need room of their own on the way.
fn names_run_out() -> Vec<Workload> {
    let one_more = |count: usize| {
        let ops = [file("x"), dir("y"), file("z")];
        workload(&format!("more-than-{count}-names"), &many(count), &ops)
    };
    let more = (0..40).map(|i| Op::parse(&format!("create fifo n{i}")).expect("an operation"));
    let mut all: Vec<Workload> = [13, 27, 55].map(one_more).into();
    all.push(workload("many-more-names", &many(105), &more.collect::<Vec<_>>()));
    all
}

/// Names go from a directory that is full, and longer and shorter ones take their places.
fn names_of_other_lengths() -> Workload {
    let short = |i: usize| Op::parse(&format!("create fifo d/{i}")).expect("an operation");
    let gone = |i: usize| Op::parse(&format!("unlink d/{i}")).expect("an operation");
    let setup =
        [dir("d")].into_iter().chain((0..FULL_BLOCK).map(short)).chain((0..FULL_BLOCK * 3 / 4).map(gone));
    let ops = [
        file(NAME_OF_FOUR_LINES),
        file(NAME_OF_TWO_LINES),
        Op::Unlink(NAME_OF_FOUR_LINES),
        file("d/one-line"),
        Op::Rename(NAME_OF_TWO_LINES, "d/another", RenameMode::Replace),
        Op::Rename("d/one-line", NAME_OF_FOUR_LINES, RenameMode::Replace),
        Op::Remount,
        file(NAME_OF_TWO_LINES),
    ];
    workload("names-of-other-lengths", &setup.collect::<Vec<_>>(), &ops)
}

/// Files of single blocks far from each other, so that their maps have many nodes. Those of one file go at once, each
/// from among nodes of the other one.
fn wide_map(variant: u64) -> Workload {
    const BLOCK: u64 = 4096;
    let allocate = |i: u64| {
        let path = if i.is_multiple_of(NODES_TOGETHER) { "f" } else { "others" };
        Op::Fallocate(path, FallocateMode::AllocateKeepSize, i * 512 * BLOCK, BLOCK)
    };
    let mut setup = vec![file("f"), file("others"), file("g"), Op::Write("g", 0, 5000)];
    setup.extend((0..WIDE * NODES_TOGETHER + variant).map(allocate));
    let op = match variant % 4 {
        0 => Op::Unlink("f"),
        1 => Op::Truncate("f", 0),
        2 => Op::Rename("g", "f", RenameMode::Replace),
        _ => Op::Fallocate("f", FallocateMode::PunchHole, 0, 1 << 30),
    };
    workload(&format!("wide-map-{variant}"), &setup, &[op, file("c")])
}

/// Those of [`deep`] that are for a subject.
pub(super) fn deep_for<S: Subject>(subject: &S) -> Vec<Workload> {
    deep().into_iter().filter(|workload| subject.takes(&workload.name)).collect()
}

/// The log of a directory ends a page while the one before it is dead, and while eight are half dead: fast and thorough
/// collection. Crashes only around that.
fn collecting(variant: u64) -> [Workload; 2] {
    let setup = [dir("d"), Op::SetXattr("", "user.variant", variant as usize)];
    let names = ["d/a", "d/b", "d/c", "d/e"].map(file);
    let outdated = |i: usize| Op::SetAttr("d", 0o700 + (i % 8) as u32);
    let dead = names.into_iter().chain((0..200).map(outdated)).collect();
    let half_dead = (0..580).map(|i| match i % 12 {
        0 => Op::parse(&format!("create fifo d/{}", i / 12)).expect("an operation"),
        _ => outdated(i),
    });
    [
        split(&format!("collect-dead-{variant}"), &setup, dead, 30),
        split(&format!("collect-copies-{variant}"), &setup, half_dead.collect(), 90),
    ]
}

/// Operations of several entries at the end of a page of a log, and moves between directories whose logs are collected.
fn crossing() -> Vec<Workload> {
    let names = ["d/a", "d/b", "d/c", "d/e", "d/f"];
    let exchanges = (0..130usize).map(|i| {
        let (one, two) = (names[i % 5], names[(i * 2 + 1) % 5]);
        match i % 7 {
            0 => Op::Rename(one, "d/z", RenameMode::Replace),
            1 => Op::Rename("d/z", one, RenameMode::Replace),
            _ => Op::Rename(one, two, RenameMode::Exchange),
        }
    });
    let base = [&[dir("d")][..], &names.map(file)].concat();
    // The log of one directory is collected while that of the other still ends with the move between them.
    let quiet = [dir("quiet"), dir("busy"), file("busy/a"), file("busy/b"), file("quiet/x")];
    let mut moves = Vec::new();
    for round in 0..12 {
        moves.push(match round % 2 {
            0 => Op::Rename("busy/a", "quiet/a", RenameMode::Replace),
            _ => Op::Rename("quiet/a", "busy/a", RenameMode::NoReplace),
        });
        moves.extend((0..70).map(|i| Op::SetAttr("busy", 0o700 + (i % 2) * 0o11)));
    }
    let emptied = [
        Op::Rename("busy/a", "quiet/a", RenameMode::Replace),
        Op::Unlink("busy/b"),
        Op::Rmdir("busy"),
        dir("other"),
        file("other/f"),
    ];
    // Many small writes to one file in several extents each: batches of several entries.
    let extents = (0..200u64).map(|i| match i % 3 {
        0 => Op::Fallocate("f", FallocateMode::PunchHole, (i % 60) * 4096 + 100, 3 * 4096),
        1 => Op::Fallocate("f", FallocateMode::ZeroRange, (i * 7 % 60) * 4096 + 50, 4 * 4096),
        _ => Op::Write("f", (i * 5 % 60) * 4096 + 7, 5000),
    });
    vec![
        split("cross-page-exchange", &base, exchanges.collect(), 100),
        split("cross-directories-collect", &quiet, moves, CRASHED),
        workload("cross-directories-remove", &quiet, &emptied),
        split("cross-page-extents", &[file("f"), Op::Truncate("f", 400_000)], extents.collect(), 100),
    ]
}

/// Removal of a directory whose log has half of a move: the move is settled first.
fn removed_after_a_move(variant: u64) -> Workload {
    let setup = [dir("one"), dir("two"), file("one/a"), Op::SetXattr("", "user.variant", variant as usize)];
    let ops = [
        Op::Rename("one/a", "two/a", RenameMode::Replace),
        Op::Rmdir("one"),
        dir("other"),
        Op::Rename("two/a", "other/b", RenameMode::NoReplace),
    ];
    workload(&format!("settled-by-removal-{variant}"), &setup, &ops)
}

/// Names of files that are there only to be many.
pub(super) fn many(count: usize) -> Vec<Op> {
    (0..count).map(|i| Op::parse(&format!("create fifo {i}")).expect("an operation")).collect()
}

/// Attributes that get blocks of their own.
fn large_attributes(variant: u64) -> Workload {
    let size = 4100 + variant as usize * 997;
    let ops = [
        Op::SetXattr("d/a", "user.one", size),
        Op::SetXattr("d", "user.two", size / 2 + 3000),
        Op::SetXattr("d/a", "user.one", size + 64),
        Op::RemoveXattr("d", "user.two"),
    ];
    workload(&format!("large-attributes-{variant}"), &[dir("d"), file("d/a"), Op::Append("d/a", 100)], &ops)
}

/// Files are read, and the times of that reach media by a sync, by the thread that lets go of each, or by an unmount.
fn times_of_reads(variant: u64) -> Workload {
    let op = |words: &str, i: usize| Op::parse(&words.replace('#', &i.to_string())).expect("an operation");
    let files = 0..FILES_READ + variant as usize;
    let setup: Vec<Op> =
        files.clone().flat_map(|i| [op("create file #", i), op("append # 100", i)]).collect();
    let mut ops: Vec<Op> = match variant % 3 {
        0 => files.flat_map(|i| [op("read #", i), op("sync #", i)]).collect(),
        1 => files.flat_map(|i| [op("read #", i), op("let-go #", i)]).collect(),
        _ => files.map(|i| op("read #", i)).collect(),
    };
    ops.push(Op::Remount);
    workload(&format!("times-of-reads-{variant}"), &setup, &ops)
}

/// A file system is made over one with more inodes, and grows until its tables end where those of the old one went on.
fn mkfs_over_more() -> Workload {
    let mut ops = vec![Op::Mkfs, file("new"), Op::Append("new", 300_000)];
    ops.extend(many(2045));
    split("mkfs-over-more", &many(2300), ops, 1)
}

/// A new chunk of inodes is needed. Number 0 names none, 1 is the root.
fn inodes_run_out(variant: u64) -> Workload {
    let mut setup = many(253);
    setup.push(Op::SetXattr("", "user.variant", variant as usize));
    let ops = match variant % 4 {
        0 => [file("x"), file("y")],
        1 => [dir("x"), file("x/y")],
        2 => [Op::Symlink("x", "y"), Op::UnnamedThenLink("y", 100)],
        _ => [Op::CreateWithXattr("x"), Op::Unlink("x")],
    };
    workload(&format!("inode-chunk-{variant}"), &setup, &ops)
}

/// The same with free blocks that hold data of a removed file.
fn inodes_run_out_on_used_blocks(variant: u64) -> Workload {
    const PIECE: usize = 1 << 20;
    let mut setup = vec![file("big")];
    setup.extend((0..11).map(|_| Op::Append("big", PIECE)));
    setup.push(Op::Unlink("big"));
    setup.extend(many(253));
    let ops = if variant == 0 { [file("x"), file("y")] } else { [dir("x"), file("x/y")] };
    workload(&format!("inode-chunk-used-{variant}"), &setup, &ops)
}

/// The same where no free space is contiguous, so that the chunk is made of single blocks.
fn inodes_run_out_on_a_fragmented_device(variant: u64) -> Workload {
    const BLOCK: u64 = 4096;
    let mut setup = many(251);
    setup.extend([file("big"), Op::Fallocate("big", FallocateMode::Allocate, 0, 3900 * BLOCK), file("rest")]);
    // The free blocks are in one run; the holes are smaller than a chunk, and the rest of the run goes.
    setup.extend(
        (0..24 + variant).map(|i| Op::Fallocate("big", FallocateMode::PunchHole, i * 16 * BLOCK, 7 * BLOCK)),
    );
    setup.push(Op::Fallocate("rest", FallocateMode::Allocate, 0, REST_OF_DEVICE * BLOCK));
    workload(&format!("inode-chunk-scattered-{variant}"), &setup, &[file("x"), dir("y")])
}

/// Blocks that the fragmented device of 16 MiB has left in one run.
const REST_OF_DEVICE: u64 = 148;

fn growing() -> Vec<Workload> {
    let files = ["d/a", "d/b", "d/c", "d/d", "d/e", "d/f", "d/g", "d/h", "d/i", "d/j", "d/k", "d/l"];
    let attributes = (0..700).map(|i| Op::SetAttr("f", 0o600 + i % 8)).collect::<Vec<_>>();
    // Some blocks are changed often, some once: live and dead entries lie side by side.
    // Between names that stay there are changes that are soon outdated: whole portions of pages shrink to one.
    let sparse = (0..900).map(|i| match i % 12 {
        0 => Op::parse(&format!("create fifo d/{}", i / 12)).expect("an operation"),
        _ => Op::SetAttr("d", 0o700 + (i % 8) as u32),
    });
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
        split("grow-attributes", &[file("f")], attributes, CRASHED),
        split("grow-overwrites", &[file("f"), Op::Truncate("f", 300_000)], overwrites.collect(), CRASHED),
        split("grow-sparse", &[dir("d")], sparse.collect(), CRASHED),
        split("grow-directory", &[file("f"), dir("d")], churn.collect(), CRASHED),
    ]
}

/// A number below `n` that looks random and depends on `i` only.
fn scatter(i: u64, n: u64) -> u64 {
    let z = i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) % n
}
