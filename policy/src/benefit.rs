//! The buffer benefit model of one block (paper 000, section 3.2).
//!
//! At each synchronisation, with `Ncw` the line writes since the last one and `Ncf` the lines that this one has to
//! flush (not those that background writeback flushed before), buffering was better when
//!
//! ```text
//! Ncw * Ldram + Ncf * Lpm < Ncw * Lpm                                                      (1)
//! ```
//!
//! Then the block is lazy until the next synchronisation, else eager. A block starts lazy, and an eager one becomes
//! lazy again when, at the time of a write, its file was last synchronised more than 5 s ago.
//!
//! A block on a medium whose lines cost hardly more than those of DRAM is outside of the paper (its slowest is 50 ns
//! against some 15). There, a write is worth a place in DRAM only if media would take more lines for it than it has:
//! see [`Model::can_pay`].
//!
//! Where a layout copies on write, a line costs a block. The model then counts in lines that media would take: a
//! direct write of any part of a block [`Model::unit_lines`] of them, a flush of any number of dirty lines as many.
//! With a unit of one line this is (1) to the letter.

/// Lines in a block.
pub const LINES: u32 = 64;
/// Bytes in a line.
const LINE: u64 = 64;

/// The costs of one line, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latencies {
    /// A write of a line to DRAM.
    pub dram_ns: u32,
    /// A write of a line to persistent memory.
    pub pm_ns: u32,
}

impl Default for Latencies {
    /// The paper's emulator: 200 ns for a line of persistent memory; 15 ns for one of DRAM.
    fn default() -> Latencies {
        Latencies { dram_ns: 15, pm_ns: 200 }
    }
}

/// Whether the state of a block is asked at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checker {
    /// Writes to eager blocks bypass DRAM.
    #[default]
    Full,
    /// Only synchronous writes do (`hinfs-wb`). Verdicts are still given, and counted.
    Off,
    /// All writes do but those that go to a disk (`tpfs`). Verdicts are still given, and counted.
    Disk,
}

/// The constants of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// The costs of lines.
    pub latencies: Latencies,
    /// Whether eager blocks bypass.
    pub checker: Checker,
    /// An eager block is lazy again when its file was not synchronised for longer than this, in milliseconds.
    pub forget_ms: u64,
    /// Lines that media takes at the least for one write to a block: 1 where data is updated in place, 64 where it is
    /// copied on write. A power of two from 1 to 64.
    pub unit_lines: u32,
    /// Whether appends follow earlier appends, see [`crate::appends`]; otherwise they begin lazy, as all blocks of
    /// the paper.
    pub inherits: bool,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            latencies: Latencies::default(),
            checker: Checker::Full,
            forget_ms: 5000,
            unit_lines: 1,
            inherits: false,
        }
    }
}

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// To DRAM first.
    Lazy,
    /// To persistent memory.
    Eager,
}

/// The result of a synchronisation for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The path of the writes from now on.
    pub path: Path,
    /// It is the verdict of the synchronisation before, too: the prediction was right (figure 4). `None` for the first.
    pub as_before: Option<bool>,
}

/// The state of one block in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    path: Path,
    /// The last verdict; `None` before the first.
    last: Option<Path>,
    /// `Ncw`: lines written since the last synchronisation, each as often as it was.
    line_writes: u32,
    /// Lines that media would have taken had each write gone there at once.
    direct_lines: u32,
    /// Lines that the next synchronisation has to flush if every write goes to DRAM; one bit each. `Ncf` is their
    /// number.
    pending: u64,
}

impl Default for Block {
    fn default() -> Block {
        Block::NEW
    }
}

impl Block {
    /// A block that was never synchronised: lazy.
    pub const NEW: Block =
        Block { path: Path::Lazy, last: None, line_writes: 0, direct_lines: 0, pending: 0 };

    /// A write of these lines (one bit each), whichever path it takes.
    pub fn wrote(&mut self, lines: u64, model: &Model) {
        let count = lines.count_ones();
        self.line_writes = self.line_writes.saturating_add(count);
        self.direct_lines = self.direct_lines.saturating_add(model.lines_on_media(count));
        self.pending |= lines;
    }

    /// Background writeback flushed these lines: the next synchronisation need not.
    pub fn written_back(&mut self, lines: u64) {
        self.pending &= !lines;
    }

    /// Was written since the last synchronisation.
    pub fn was_written(&self) -> bool {
        self.line_writes > 0
    }

    /// Lines that the next synchronisation has to flush, `Ncf` of (1), one bit each.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// The path of an asynchronous write that comes now. `last_sync_ms` is when the file was last synchronised.
    pub fn path_of_write(&mut self, last_sync_ms: Option<u64>, now_ms: u64, model: &Model) -> Path {
        let forgotten = last_sync_ms.is_none_or(|last| now_ms.saturating_sub(last) > model.forget_ms);
        if forgotten {
            self.path = Path::Lazy;
        }
        if model.checker == Checker::Off { Path::Lazy } else { self.path }
    }

    /// Notes a synchronisation, which has flushed all pending lines. `None` when the block was not written since the
    /// last one: it then has no part in this one.
    pub fn synced(&mut self, model: &Model) -> Option<Verdict> {
        if !self.was_written() {
            return None;
        }
        let path = model.judge(self.line_writes, self.direct_lines, self.pending.count_ones());
        let as_before = self.last.map(|last| last == path);
        *self = Block { path, last: Some(path), ..Block::NEW };
        Some(Verdict { path, as_before })
    }
}

impl Model {
    /// Whether a write of the bytes `from..to` of a file of `size` bytes may be worth a place in DRAM, even if it
    /// never reaches media. In DRAM a line counts twice: it is written, and read again when it is written back.
    /// Appended bytes are not copied even if blocks are copied on write: media takes only their lines.
    pub fn can_pay(&self, from: u64, to: u64, size: u64) -> bool {
        let (dram_ns, pm_ns) = (u64::from(self.latencies.dram_ns), u64::from(self.latencies.pm_ns));
        if from >= to || self.checker == Checker::Off || pm_ns > 2 * dram_ns {
            return true;
        }
        let units =
            |from: u64, to: u64, len: u64| if from < to { (to - 1) / len - from / len + 1 } else { 0 };
        let unit = u64::from(self.unit_lines.clamp(1, LINES));
        let copied = units(from, to.min(size), unit * LINE) * unit;
        let (media, dram) = (copied + units(from.max(size), to, LINE), 2 * units(from, to, LINE));
        u128::from(media) * u128::from(pm_ns) > u128::from(dram) * u128::from(dram_ns)
    }

    /// Lines that media takes for a write of so many lines of a block.
    fn lines_on_media(&self, lines: u32) -> u32 {
        lines.next_multiple_of(self.unit_lines.clamp(1, LINES))
    }

    /// Inequality (1), with `direct_lines` in the place of the second `Ncw`.
    fn judge(&self, line_writes: u32, direct_lines: u32, flushed_lines: u32) -> Path {
        let Latencies { dram_ns, pm_ns } = self.latencies;
        let buffered = u64::from(line_writes) * u64::from(dram_ns)
            + u64::from(self.lines_on_media(flushed_lines)) * u64::from(pm_ns);
        if buffered < u64::from(direct_lines) * u64::from(pm_ns) { Path::Lazy } else { Path::Eager }
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, Checker, Latencies, Model, Path};

    /// 20 ns against 200: numbers to reckon with.
    fn model() -> Model {
        Model { latencies: Latencies { dram_ns: 20, pm_ns: 200 }, ..Model::default() }
    }

    fn first(lines: u32) -> u64 {
        if lines == 64 { u64::MAX } else { (1 << lines) - 1 }
    }

    #[test]
    fn a_block_written_once_between_syncs_becomes_eager() {
        let model = model();
        let mut block = Block::NEW;
        assert_eq!(block.path_of_write(None, 0, &model), Path::Lazy, "blocks start lazy");
        block.wrote(first(64), &model);
        // 64 * 20 + 64 * 200 = 14080, and 64 * 200 = 12800.
        let verdict = block.synced(&model).unwrap();
        assert_eq!((verdict.path, verdict.as_before), (Path::Eager, None));
        assert_eq!(block.path_of_write(Some(100), 200, &model), Path::Eager);
    }

    #[test]
    fn a_block_overwritten_between_syncs_stays_lazy() {
        let model = model();
        let mut block = Block::NEW;
        block.wrote(first(10), &model);
        block.wrote(first(10), &model);
        // 20 * 20 + 10 * 200 = 2400 < 20 * 200 = 4000.
        assert_eq!(block.synced(&model).unwrap().path, Path::Lazy);
    }

    #[test]
    fn equality_is_eager() {
        let mut block = Block::NEW;
        let model = Model { latencies: Latencies { dram_ns: 100, pm_ns: 200 }, ..model() };
        block.wrote(1, &model);
        block.wrote(1, &model);
        // 2 * 100 + 1 * 200 = 400 is not less than 2 * 200 = 400.
        assert_eq!(block.synced(&model).unwrap().path, Path::Eager);
    }

    #[test]
    fn what_writeback_flushed_before_costs_the_sync_nothing() {
        let model = model();
        let mut block = Block::NEW;
        block.wrote(first(64), &model);
        block.written_back(first(63));
        // 64 * 20 + 1 * 200 = 1480 < 12800.
        assert_eq!(block.pending().count_ones(), 1);
        assert_eq!(block.synced(&model).unwrap().path, Path::Lazy);
    }

    #[test]
    fn a_sync_without_writes_says_nothing() {
        let model = model();
        let mut block = Block::NEW;
        assert_eq!(block.synced(&model), None);
        block.wrote(1, &model);
        assert_eq!(block.synced(&model).unwrap().path, Path::Eager);
        assert_eq!(block.synced(&model), None, "and the state stays");
        assert_eq!(block.path_of_write(Some(0), 1, &model), Path::Eager);
    }

    #[test]
    fn accuracy_is_agreement_of_two_syncs_in_a_row() {
        let model = model();
        let mut block = Block::NEW;
        let mut verdicts = Vec::new();
        for writes in [1, 1, 3, 3, 1] {
            (0..writes).for_each(|_| block.wrote(first(8), &model));
            verdicts.push(block.synced(&model).unwrap().as_before);
        }
        assert_eq!(verdicts, [None, Some(true), Some(false), Some(true), Some(false)]);
    }

    #[test]
    fn an_eager_block_is_lazy_again_five_seconds_after_the_last_sync() {
        let model = model();
        let mut block = Block::NEW;
        block.wrote(1, &model);
        block.synced(&model);
        assert_eq!(block.path_of_write(Some(1000), 6000, &model), Path::Eager, "5 s are not more than 5 s");
        assert_eq!(block.path_of_write(Some(1000), 6001, &model), Path::Lazy);
        assert_eq!(block.path_of_write(Some(6002), 6003, &model), Path::Lazy, "it stays lazy");
    }

    #[test]
    fn without_the_check_everything_is_lazy_and_judged_all_the_same() {
        let model = Model { checker: Checker::Off, ..model() };
        let mut block = Block::NEW;
        block.wrote(1, &model);
        assert_eq!(block.synced(&model).unwrap().path, Path::Eager);
        assert_eq!(block.path_of_write(Some(0), 1, &model), Path::Lazy);
    }

    #[test]
    fn over_copy_on_write_two_small_writes_are_worth_buffering() {
        let model = Model { unit_lines: 64, ..model() };
        let mut block = Block::NEW;
        block.wrote(0b01, &model);
        // 20 + 64 * 200 is not less than 64 * 200.
        assert_eq!(block.synced(&model).unwrap().path, Path::Eager);
        block.wrote(0b01, &model);
        block.wrote(0b10, &model);
        // 2 * 20 + 64 * 200 = 12840 < 128 * 200; by lines alone, 2 * 20 + 2 * 200 = 440 would not be less than 400.
        assert_eq!(block.synced(&model).unwrap().path, Path::Lazy);
    }

    #[test]
    fn on_memory_as_fast_as_dram_only_parts_of_blocks_that_are_copied_are_worth_buffering() {
        let fast = Latencies { dram_ns: 8, pm_ns: 9 };
        let in_place = Model { latencies: fast, ..model() };
        assert!(!in_place.can_pay(0, 64, u64::MAX) && !in_place.can_pay(100, 5000, u64::MAX));
        let copied = Model { unit_lines: 64, ..in_place };
        assert!(!copied.can_pay(0, 4096, u64::MAX) && !copied.can_pay(8192, 1 << 20, u64::MAX));
        assert!(
            copied.can_pay(10, 20, u64::MAX) && copied.can_pay(4090, 4100, u64::MAX),
            "64 and 128 lines for 1 and 2"
        );
        // 40 lines of 64: 64 * 9 is not more than 2 * 40 * 8.
        assert!(!copied.can_pay(0, 40 * 64, u64::MAX));
        assert!(Model { checker: Checker::Off, ..in_place }.can_pay(0, 4096, u64::MAX), "nobody asks");
        assert!(!copied.can_pay(10, 20, 10) && !copied.can_pay(4090, 4100, 4090), "appended, and not copied");
        assert!(copied.can_pay(10, 20, 15), "the end that is there is");
        let broken = Latencies { dram_ns: u32::MAX, pm_ns: u32::MAX };
        assert!(!Model { latencies: broken, ..copied }.can_pay(0, u64::MAX, u64::MAX), "nothing overflows");
        assert!(
            model().can_pay(0, 4096, u64::MAX)
                && Model { unit_lines: 64, ..model() }.can_pay(0, 1 << 30, u64::MAX)
        );
    }
}
