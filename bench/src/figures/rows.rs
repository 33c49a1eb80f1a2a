//! All rows, with what they are held against.

use crate::figures::report::Target;

/// A row of the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) target: Target,
}

const fn row(name: &'static str, what: &'static str, target: Target) -> Row {
    Row { name, what, target }
}

const fn at_most(limit: f64) -> Target {
    Target::AtMost(limit)
}

const fn at_least(limit: f64) -> Target {
    Target::AtLeast(limit)
}

/// In the order in which they are measured.
pub(crate) const ROWS: &[Row] = &[
    row("overwrite-1m", "1 MiB random overwrite of a 2 GiB file: library / tmpfs", at_most(0.30)),
    row("overwrite-4k", "4 KiB random overwrite of a 2 GiB file: library / tmpfs", at_most(0.50)),
    row("append-4k", "4 KiB append: library / tmpfs", at_most(0.6)),
    row("read-4k", "4 KiB random read of a 2 GiB file: library / tmpfs", at_most(0.6)),
    row("aged.overwrite-1m", "the same after each block was overwritten alone", Target::None),
    row(
        "overwrite-4k.2threads",
        "two threads on one file, disjoint overwrites: times one thread",
        at_least(1.7),
    ),
    row("read-4k.2threads", "two threads on one file, disjoint reads: times one thread", at_least(1.7)),
    row("small.overwrite-4k", "the same on a 64 MiB file", Target::None),
    row("small.append-4k", "the same on a 64 MiB file", Target::None),
    row("small.read-4k", "the same on a 64 MiB file", Target::None),
    row("small.overwrite-1m", "the same on a 64 MiB file", Target::None),
    row("create", "create and close a file: library / tmpfs", at_most(0.33)),
    row("unlink", "unlink an empty file: library / tmpfs", at_most(0.33)),
    row("rename", "rename within a directory: library / tmpfs", at_most(0.33)),
    row("rename-across", "rename from directory to directory: library / tmpfs", at_most(0.5)),
    row("stat", "stat of 1,000 files in turn: library / tmpfs", at_most(0.2)),
    row("stat-million", "stat of random files in a directory of 1,000,000: library / tmpfs", at_most(0.35)),
    row("create.2threads", "two threads create in one directory: times one thread", at_least(1.6)),
    row("huge.overwrite-4k", "the same on tmpfs with huge=always, both sides", Target::None),
    row("huge.append-4k", "the same on tmpfs with huge=always, both sides", Target::None),
    row("huge.read-4k", "the same on tmpfs with huge=always, both sides", Target::None),
    row("huge.overwrite-1m", "the same on tmpfs with huge=always, both sides", Target::None),
    row("mount.read-4k", "4 KiB read past the page cache: mount / empty FUSE server", at_most(1.25)),
    row("mount.write-4k", "4 KiB overwrite: mount / empty FUSE server", at_most(1.25)),
    row("mount.fsync", "fsync: mount / empty FUSE server", at_most(1.25)),
    row("mount.create", "create and close a file: mount / empty FUSE server", at_most(1.25)),
    row("mount.unlink", "unlink an empty file: mount / empty FUSE server", at_most(1.25)),
    row("mount.cached-read-4k", "4 KiB random read from the page cache: mount / tmpfs", at_most(1.5)),
    row("recovery.crash", "seconds to open 1,000,000 files and 4 GiB after SIGKILL", at_most(3.0)),
    row("recovery.clean", "seconds to open the same after an orderly end, and to read a file", at_most(0.2)),
    row("index.files", "DRAM for files of 64 KiB, percent of their data", at_most(1.0)),
    row("index.shattered", "DRAM for a file overwritten at random, percent of its data", at_most(1.0)),
    row("scale.create", "create in a directory of 1,000,000 / of 1,000", at_most(2.0)),
    row("scale.stat", "stat of 1,000 files in a directory of 1,000,000 / of 1,000", at_most(2.0)),
    row("scale.rename", "rename within a directory of 1,000,000 / of 1,000", at_most(2.0)),
    row("scale.unlink", "unlink in a directory of 1,000,000 / of 1,000", at_most(2.0)),
    row("scale.read", "4 KiB random read of a file of 1,000,000 extents / of a whole one", at_most(2.0)),
    row("scale.overwrite", "4 KiB overwrite of a file of 1,000,000 extents / of a whole one", at_most(2.0)),
    row("scale.append", "4 KiB append to a file of 1,000,000 extents / of a whole one", at_most(2.0)),
    row("scale.truncate", "truncate a file of 1,000,000 extents / of 1,000", at_most(2.0)),
    row("scale.remove", "unlink a file of 1,000,000 extents / of 1,000", at_most(2.0)),
    row(
        "harness.write-4k",
        "4 KiB overwrite by the generator of 'run' / by a loop with time-stamps, tmpfs",
        at_most(1.02),
    ),
    row(
        "harness.read-4k",
        "4 KiB read by the generator of 'run' / by a loop with time-stamps, tmpfs",
        at_most(1.02),
    ),
    row(
        "harness.write-4k.bare",
        "4 KiB overwrite by the generator of 'run' / by a loop without time-stamps, tmpfs",
        at_most(1.02),
    ),
    row(
        "harness.read-4k.bare",
        "4 KiB read by the generator of 'run' / by a loop without time-stamps, tmpfs",
        at_most(1.02),
    ),
    row("harness.lap", "one recorded operation that does nothing", at_most(25.0)),
    row("emulator.line-200", "a line stored, flushed, fenced at 200 ns: percent off", at_most(5.0)),
    row("emulator.line-400", "a line stored, flushed, fenced at 400 ns: percent off", at_most(5.0)),
    row("emulator.line-800", "a line stored, flushed, fenced at 800 ns: percent off", at_most(5.0)),
    row("emulator.line-1200", "a line stored, flushed, fenced at 1200 ns: percent off", at_most(5.0)),
    row("emulator.line-50", "the same at 50 ns: least measured / asked for", at_least(1.0)),
    row("emulator.line-100", "the same at 100 ns: least measured / asked for", at_least(1.0)),
    row("emulator.line-150", "the same at 150 ns: least measured / asked for", at_least(1.0)),
    row("emulator.1writer", "one writer at 200 ns a line, no cap: percent off 320 MB/s", at_most(5.0)),
    row(
        "emulator.2writers",
        "two of them: percent off 320 MB/s for each that has a core of its own",
        at_most(5.0),
    ),
    row(
        "emulator.2writers.slow",
        "two at 1200 ns a line: percent off 53.3 MB/s for each that has a core",
        at_most(5.0),
    ),
    row("emulator.1writer.cap", "one at 200 ns, cap of 200 MB/s: percent off it", at_most(5.0)),
    row("emulator.2writers.cap", "two at 200 ns, cap of 450 MB/s: percent off it", at_most(5.0)),
    row("emulator.2writers.low-cap", "two at 200 ns, cap of 100 MB/s: percent off it", at_most(5.0)),
    row(
        "emulator.4writers",
        "four at 200 ns, no cap: percent off 320 MB/s for each that has a core",
        at_most(5.0),
    ),
    row("emulator.4writers.cap", "four at 200 ns, cap of 250 MB/s: percent off it", at_most(5.0)),
    row(
        "emulator.dram",
        "4 KiB overwrite by the library, stores counted (emulate=dram) / not counted",
        at_most(1.02),
    ),
];

/// The row with this name.
pub(crate) fn find(name: &str) -> Row {
    *ROWS.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name} is no row"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::ROWS;

    #[test]
    fn names_are_unique() {
        assert_eq!(ROWS.iter().map(|row| row.name).collect::<HashSet<_>>().len(), ROWS.len());
    }
}
