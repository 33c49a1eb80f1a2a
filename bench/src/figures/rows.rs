//! All rows: their sides, and the targets of their figures.

use crate::report::schema::{Bound, Pays};

/// A row of the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The comparison, in words.
    pub(crate) what: &'static str,
    pub(crate) sides: Sides,
    /// The target of the figure; nothing where it is only compared with others.
    pub(crate) target: Option<Bound>,
}

/// The measured side, and its peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sides {
    pub(crate) ours: Side,
    pub(crate) peer: Option<Side>,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side {
    /// Short, for charts.
    pub(crate) name: &'static str,
    /// The side, in words.
    pub(crate) about: &'static str,
    pub(crate) pays: Pays,
}

const fn side(name: &'static str, about: &'static str, pays: Pays) -> Side {
    Side { name, about, pays }
}

const fn beside(ours: Side, peer: Side) -> Sides {
    Sides { ours, peer: Some(peer) }
}

const fn alone(ours: Side) -> Sides {
    Sides { ours, peer: None }
}

const NOVA: Side = side("preset:nova", "nacre in the process, its device a file on a tmpfs", Pays::Library);
const TMPFS: Side = side("peer:tmpfs", "tmpfs", Pays::Kernel);
const MOUNT: Side = side("mount:nova", "nacre through FUSE, its device a file on a tmpfs", Pays::Fuse);

const LIBRARY: Sides = beside(NOVA, TMPFS);
const BUFFER: Side = side(
    "preset:hinfs",
    "nacre in the process with a write buffer in DRAM, on memory emulated at 200 ns a line",
    Pays::Library,
);
const BUFFERED: Sides = beside(BUFFER, TMPFS);
const UNDER_BUFFER: Sides =
    beside(BUFFER, side("preset:pmfs", "the same without a write buffer", Pays::Library));
const DEFAULTS: Sides = beside(
    side(
        "preset:nacre",
        "nacre in the process as it is without a word, its device a file on a tmpfs",
        Pays::Library,
    ),
    NOVA,
);
const ALONE: Sides = alone(NOVA);
const THREADS: Sides = beside(
    side("preset:nova, two threads", NOVA.about, Pays::Library),
    side("preset:nova, one thread", NOVA.about, Pays::Library),
);
const MOUNTED: Sides = beside(
    MOUNT,
    side("empty FUSE server", "a FUSE server that answers everything at once from nothing", Pays::Fuse),
);
const CACHED: Sides = beside(MOUNT, TMPFS);
const ENTRIES: Sides = beside(
    side("large directory", "nacre in the process, a directory of many entries", Pays::Library),
    side("small directory", "the same file system, a directory of few", Pays::Library),
);
const EXTENTS: Sides = beside(
    side("shattered file", "nacre in the process, a file of many extents", Pays::Library),
    side("whole file", "the same file system, a file of few", Pays::Library),
);
const GENERATOR: Side =
    side("generator", "what drives all targets of 'nacre bench run', on a tmpfs", Pays::Kernel);
const STAMPED: Sides =
    beside(GENERATOR, side("loop with time-stamps", "written by hand, on the same file", Pays::Kernel));
const BARE: Sides = beside(
    GENERATOR,
    side("bare loop", "written by hand, on the same file, without time-stamps", Pays::Kernel),
);
const RECORDER: Sides =
    alone(side("recorder", "what records operations of 'nacre bench run'", Pays::Library));
const EMULATED: Sides = alone(side("emulated memory", "DRAM, slowed down", Pays::Library));
const COUNTED: Sides = beside(
    side("preset:nova,emulate=dram", "nacre in the process, its stores counted", Pays::Library),
    side("preset:nova", "the same, its stores not counted", Pays::Library),
);

const DISK: Sides = alone(side(
    "emulated disk",
    "a loop device over a FUSE file that keeps to a disk's pace, its bytes on a tmpfs",
    Pays::Kernel,
));

const fn row(sides: Sides, name: &'static str, what: &'static str, target: Option<Bound>) -> Row {
    Row { name, what, sides, target }
}

const fn at_most(limit: f64) -> Option<Bound> {
    Some(Bound::AtMost(limit))
}

const fn at_least(limit: f64) -> Option<Bound> {
    Some(Bound::AtLeast(limit))
}

/// As slow as asked for, and no slower than 5 % more.
const EXACT: Option<Bound> = Some(Bound::Between(0.0, 5.0));

/// In the order in which they are measured.
pub(crate) const ROWS: &[Row] = &[
    row(LIBRARY, "overwrite-1m", "1 MiB random overwrite of a 2 GiB file: library / tmpfs", at_most(0.30)),
    row(LIBRARY, "overwrite-4k", "4 KiB random overwrite of a 2 GiB file: library / tmpfs", at_most(0.50)),
    row(LIBRARY, "append-4k", "4 KiB append: library / tmpfs", at_most(0.6)),
    row(LIBRARY, "read-4k", "4 KiB random read of a 2 GiB file: library / tmpfs", at_most(0.6)),
    row(
        LIBRARY,
        "aged.overwrite-1m",
        "1 MiB random overwrite after each block was overwritten alone: library / tmpfs",
        None,
    ),
    row(
        THREADS,
        "overwrite-4k.2threads",
        "two threads on one file, disjoint overwrites: times one thread",
        at_least(1.7),
    ),
    row(
        THREADS,
        "read-4k.2threads",
        "two threads on one file, disjoint reads: times one thread",
        at_least(1.7),
    ),
    row(LIBRARY, "small.overwrite-4k", "4 KiB random overwrite of a 64 MiB file: library / tmpfs", None),
    row(LIBRARY, "small.append-4k", "4 KiB append, the file system a small one: library / tmpfs", None),
    row(LIBRARY, "small.read-4k", "4 KiB random read of a 64 MiB file: library / tmpfs", None),
    row(LIBRARY, "small.overwrite-1m", "1 MiB random overwrite of a 64 MiB file: library / tmpfs", None),
    row(LIBRARY, "create", "create and close a file: library / tmpfs", at_most(0.33)),
    row(LIBRARY, "unlink", "unlink an empty file: library / tmpfs", at_most(0.33)),
    row(LIBRARY, "rename", "rename within a directory: library / tmpfs", at_most(0.33)),
    row(LIBRARY, "rename-across", "rename from directory to directory: library / tmpfs", at_most(0.5)),
    row(LIBRARY, "stat", "stat of 1,000 files in turn: library / tmpfs", at_most(0.2)),
    row(
        LIBRARY,
        "stat-million",
        "stat of random files in a directory of 1,000,000: library / tmpfs",
        at_most(0.35),
    ),
    row(THREADS, "create.2threads", "two threads create in one directory: times one thread", at_least(1.6)),
    row(
        LIBRARY,
        "huge.overwrite-4k",
        "4 KiB random overwrite, both sides on tmpfs with huge=always: library / tmpfs",
        None,
    ),
    row(
        LIBRARY,
        "huge.append-4k",
        "4 KiB append, both sides on tmpfs with huge=always: library / tmpfs",
        None,
    ),
    row(
        LIBRARY,
        "huge.read-4k",
        "4 KiB random read, both sides on tmpfs with huge=always: library / tmpfs",
        None,
    ),
    row(
        LIBRARY,
        "huge.overwrite-1m",
        "1 MiB random overwrite, both sides on tmpfs with huge=always: library / tmpfs",
        None,
    ),
    row(
        BUFFERED,
        "cache.overwrite-4k",
        "4 KiB random overwrite of a 64 MiB file in the write buffer: library / tmpfs",
        at_most(0.35),
    ),
    row(
        BUFFERED,
        "cache.overwrite-4k-warm",
        "the same of a 4 MiB file, which the caches of the CPU hold: library / tmpfs",
        at_most(0.35),
    ),
    row(
        UNDER_BUFFER,
        "cache.read-4k-dirty",
        "4 KiB random read of a 64 MiB file, all in the write buffer / without one",
        at_most(1.05),
    ),
    row(
        UNDER_BUFFER,
        "cache.read-4k",
        "4 KiB random read of a 64 MiB file, nothing in the write buffer / without one",
        at_most(1.05),
    ),
    row(
        DEFAULTS,
        "default.overwrite-4k",
        "4 KiB random overwrite: default preset / its layout",
        at_most(1.03),
    ),
    row(DEFAULTS, "default.read-4k", "4 KiB random read: default preset / its layout", at_most(1.03)),
    row(DEFAULTS, "default.append-4k", "4 KiB append: default preset / its layout", at_most(1.03)),
    row(MOUNTED, "mount.read-4k", "4 KiB read past the page cache: mount / empty FUSE server", at_most(1.25)),
    row(MOUNTED, "mount.write-4k", "4 KiB overwrite: mount / empty FUSE server", at_most(1.25)),
    row(MOUNTED, "mount.fsync", "fsync: mount / empty FUSE server", at_most(1.25)),
    row(MOUNTED, "mount.create", "create and close a file: mount / empty FUSE server", at_most(1.25)),
    row(MOUNTED, "mount.unlink", "unlink an empty file: mount / empty FUSE server", at_most(1.25)),
    row(CACHED, "mount.cached-read-4k", "4 KiB random read from the page cache: mount / tmpfs", at_most(1.5)),
    row(ALONE, "recovery.crash", "seconds to open 1,000,000 files and 4 GiB after SIGKILL", at_most(3.0)),
    row(
        ALONE,
        "recovery.clean",
        "seconds to open 1,000,000 files and 4 GiB after an orderly end, and to read a file",
        at_most(0.2),
    ),
    row(ALONE, "index.files", "DRAM for files of 64 KiB, percent of their data", at_most(1.0)),
    row(ALONE, "index.shattered", "DRAM for a file overwritten at random, percent of its data", at_most(1.0)),
    row(ENTRIES, "scale.create", "create in a directory of 1,000,000 / of 1,000", at_most(2.0)),
    row(ENTRIES, "scale.stat", "stat of 1,000 files in a directory of 1,000,000 / of 1,000", at_most(2.0)),
    row(ENTRIES, "scale.rename", "rename within a directory of 1,000,000 / of 1,000", at_most(2.0)),
    row(ENTRIES, "scale.unlink", "unlink in a directory of 1,000,000 / of 1,000", at_most(2.0)),
    row(
        EXTENTS,
        "scale.read",
        "4 KiB random read of a file of 1,000,000 extents / of a whole one",
        at_most(2.0),
    ),
    row(
        EXTENTS,
        "scale.overwrite",
        "4 KiB overwrite of a file of 1,000,000 extents / of a whole one",
        at_most(2.0),
    ),
    row(
        EXTENTS,
        "scale.append",
        "4 KiB append to a file of 1,000,000 extents / of a whole one",
        at_most(2.0),
    ),
    row(EXTENTS, "scale.truncate", "truncate a file of 1,000,000 extents / of 1,000", at_most(2.0)),
    row(EXTENTS, "scale.remove", "unlink a file of 1,000,000 extents / of 1,000", at_most(2.0)),
    row(
        STAMPED,
        "harness.write-4k",
        "4 KiB overwrite by the generator of 'run' / by a loop with time-stamps, tmpfs",
        at_most(1.02),
    ),
    row(
        STAMPED,
        "harness.read-4k",
        "4 KiB read by the generator of 'run' / by a loop with time-stamps, tmpfs",
        at_most(1.02),
    ),
    row(
        BARE,
        "harness.write-4k.bare",
        "4 KiB overwrite by the generator of 'run' / by a loop without time-stamps, tmpfs",
        at_most(1.02),
    ),
    row(
        BARE,
        "harness.read-4k.bare",
        "4 KiB read by the generator of 'run' / by a loop without time-stamps, tmpfs",
        at_most(1.02),
    ),
    row(RECORDER, "harness.lap", "one recorded operation that does nothing", at_most(25.0)),
    row(EMULATED, "emulator.line-200", "a line stored, flushed, fenced at 200 ns: percent off", at_most(5.0)),
    row(EMULATED, "emulator.line-400", "a line stored, flushed, fenced at 400 ns: percent off", at_most(5.0)),
    row(EMULATED, "emulator.line-800", "a line stored, flushed, fenced at 800 ns: percent off", at_most(5.0)),
    row(
        EMULATED,
        "emulator.line-1200",
        "a line stored, flushed, fenced at 1200 ns: percent off",
        at_most(5.0),
    ),
    row(EMULATED, "emulator.line-50", "a line at 50 ns: least measured / asked for", at_least(1.0)),
    row(EMULATED, "emulator.line-100", "a line at 100 ns: least measured / asked for", at_least(1.0)),
    row(EMULATED, "emulator.line-150", "a line at 150 ns: least measured / asked for", at_least(1.0)),
    row(
        EMULATED,
        "emulator.1writer",
        "one writer at 200 ns a line, no cap: percent off 320 MB/s",
        at_most(5.0),
    ),
    row(
        EMULATED,
        "emulator.2writers",
        "two writers at 200 ns a line, no cap: percent off 320 MB/s for each that has a core of its own",
        at_most(5.0),
    ),
    row(
        EMULATED,
        "emulator.2writers.slow",
        "two writers at 1200 ns a line: percent off 53.3 MB/s for each that has a core",
        at_most(5.0),
    ),
    row(
        EMULATED,
        "emulator.1writer.cap",
        "one writer at 200 ns, cap of 200 MB/s: percent off it",
        at_most(5.0),
    ),
    row(
        EMULATED,
        "emulator.2writers.cap",
        "two writers at 200 ns, cap of 450 MB/s: percent off it",
        at_most(5.0),
    ),
    row(
        EMULATED,
        "emulator.2writers.low-cap",
        "two writers at 200 ns, cap of 100 MB/s: percent off it",
        at_most(5.0),
    ),
    row(
        EMULATED,
        "emulator.4writers",
        "four writers at 200 ns, no cap: percent off 320 MB/s for each that has a core",
        at_most(5.0),
    ),
    row(
        EMULATED,
        "emulator.4writers.cap",
        "four writers at 200 ns, cap of 250 MB/s: percent off it",
        at_most(5.0),
    ),
    row(
        COUNTED,
        "emulator.dram",
        "4 KiB overwrite by the library, stores counted (emulate=dram) / not counted",
        at_most(1.02),
    ),
    row(
        DISK,
        "disk.hdd.read",
        "4 KiB read of an emulated hdd, one at a time: percent above the latency asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.hdd.write",
        "4 KiB write to an emulated hdd, one at a time: percent above the latency asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.hdd.flush",
        "flush of an emulated hdd after one write: percent above what was asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.hdd.read-bandwidth",
        "1 MiB reads of an emulated hdd: percent below the bandwidth asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.hdd.write-bandwidth",
        "1 MiB writes to an emulated hdd: percent below the bandwidth asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.sata-ssd.read",
        "4 KiB read of an emulated sata-ssd, one at a time: percent above the latency asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.sata-ssd.write",
        "4 KiB write to an emulated sata-ssd, one at a time: percent above the latency asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.sata-ssd.flush",
        "flush of an emulated sata-ssd after one write: percent above what was asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.sata-ssd.read-bandwidth",
        "1 MiB reads of an emulated sata-ssd: percent below the bandwidth asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.sata-ssd.write-bandwidth",
        "1 MiB writes to an emulated sata-ssd: percent below the bandwidth asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.nvme.read",
        "4 KiB read of an emulated nvme, one at a time: percent above the latency asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.nvme.write",
        "4 KiB write to an emulated nvme, one at a time: percent above the latency asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.nvme.flush",
        "flush of an emulated nvme after one write: percent above what was asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.nvme.read-bandwidth",
        "1 MiB reads of an emulated nvme: percent below the bandwidth asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.nvme.write-bandwidth",
        "1 MiB writes to an emulated nvme: percent below the bandwidth asked for",
        EXACT,
    ),
    row(
        DISK,
        "disk.optane-ssd.read",
        "4 KiB read of an emulated optane-ssd, one at a time: percent above the latency asked for",
        None,
    ),
    row(
        DISK,
        "disk.optane-ssd.write",
        "4 KiB write to an emulated optane-ssd, one at a time: percent above the latency asked for",
        None,
    ),
    row(
        DISK,
        "disk.optane-ssd.flush",
        "flush of an emulated optane-ssd after one write: percent above what was asked for",
        None,
    ),
    row(
        DISK,
        "disk.optane-ssd.read-bandwidth",
        "1 MiB reads of an emulated optane-ssd: percent below the bandwidth asked for",
        None,
    ),
    row(
        DISK,
        "disk.optane-ssd.write-bandwidth",
        "1 MiB writes to an emulated optane-ssd: percent below the bandwidth asked for",
        None,
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
