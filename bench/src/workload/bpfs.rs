//! The workloads of AC-BPFS (paper 004, section 4.2).
//!
//! - `bpfs.ops`: the operations of its table 1, one after the other. The time of each kind stands in the report's
//!   latencies under the nearest kind; `op=NAME` measures one operation alone.
//! - `bpfs.append`, `bpfs.randwrite`: figure 3; each write is followed by fsync, unless `sync=no`. With `align=4k` a
//!   write begins where a block does; otherwise at any byte, and its ends are parts of blocks.
//! - `bpfs.coldness`: figure 4; 400 KB are read as ten whole files of 40 KB, `cold` percent of which are on the disk.
//!   Between two times the file system has the time to move what is not the hot file, and the kernel forgets the others.
//! - `bpfs.filebench`: figure 5; a file server's files, 1.25 GB together, a third of the operations reads. The threshold
//!   of the figure is a setting of the file system, not of this workload.
//!
//! Before the first round, anti-caching has evicted what is above its threshold.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nacre_engine::size;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::recorder::on_threads;
use super::set::{FileSet, buffer, fill};
use super::{Measured, Op, Recorder, Round, Value, Workload, scaled};
use crate::Error;
use crate::spec::Spec;
use crate::target::{Open, Target, create_dir_all, remove_dir_all};

const DIR: &str = "bpfs";

/// Appends begin anew at this size.
const APPENDED: u64 = 16 << 20;

/// Files of figure 4, of 40 KB each: ten are read in a round.
const COLD_FILES: u64 = 10;
const COLD_SIZE: u64 = 40 << 10;

/// How often a round of figure 4 reads ten files, at most: each time is waited for.
const COLD_TIMES: u64 = 30;
/// Anti-caching has evicted what is above its threshold within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// The time of one of its ticks, and some.
const TICK: Duration = Duration::from_millis(12);

/// The operations of table 1, in its order.
const OPERATIONS: [&str; 13] = [
    "chmod",
    "create",
    "link",
    "mkdir",
    "read",
    "readdir",
    "rename_dir_intra",
    "rename_file_inter",
    "rmdir",
    "symlink",
    "unlink_16M",
    "unlink_hardlink",
    "write_1M_4k",
];

enum Kind {
    /// All operations, or one.
    Operations(Option<usize>),
    Append,
    RandomWrite {
        file: u64,
        /// Writes begin at multiples of this.
        align: u64,
    },
    Coldness {
        percent: u64,
    },
    Filebench {
        set: FileSet,
        mean: u64,
    },
}

struct Bpfs {
    kind: Kind,
    io: u64,
    sync: bool,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let sync = || spec.word("sync", "yes", &[("yes", true), ("no", false)]);
    let work = match spec.name() {
        "bpfs.ops" => {
            let mut words = vec![("all", None)];
            words.extend(OPERATIONS.iter().enumerate().map(|(at, name)| (*name, Some(at))));
            Bpfs { kind: Kind::Operations(spec.word("op", "all", &words)?), io: 4096, sync: false }
        }
        "bpfs.append" => Bpfs { kind: Kind::Append, io: spec.size("io", "4k")?, sync: sync()? },
        "bpfs.randwrite" => {
            let io = spec.size("io", "4k")?;
            let file = scaled(spec.size("file", "64m")?, scale, io.max(1 << 16));
            let align = spec.size("align", "1")?;
            if align == 0 {
                return Err("bpfs.randwrite: align is at least one byte".into());
            }
            Bpfs { kind: Kind::RandomWrite { file, align }, io, sync: sync()? }
        }
        "bpfs.coldness" => {
            let percent = spec.number("cold", 20, 0)?;
            if percent > 100 || percent % 10 != 0 {
                return Err("bpfs.coldness: cold is 0, 10 … 100 percent".into());
            }
            Bpfs { kind: Kind::Coldness { percent }, io: COLD_SIZE, sync: false }
        }
        _ => {
            let (total, mean) = (spec.size("total", "1280m")?, spec.size("size", "128k")?);
            if mean == 0 {
                return Err("bpfs.filebench: size is at least one byte".into());
            }
            let set = FileSet::new("bpfs/set", scaled(total / mean, scale, 16), 20, mean);
            let io = spec.size("io", "16k")?;
            Bpfs { kind: Kind::Filebench { set, mean }, io, sync: false }
        }
    };
    if work.io == 0 || work.io > APPENDED {
        return Err(format!("{}: io is from one byte to {}", spec.name(), size::print(APPENDED)));
    }
    Ok(Box::new(work))
}

fn name(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// One operation of table 1: its preconditions are made, it is done and timed, and its results are removed.
fn operation(at: usize, target: &dyn Target, recorder: &mut Recorder) -> Result<(), Error> {
    let (a, b, dir) = (name("a"), name("b"), name("dir"));
    let file = |path: &Path| target.open(path, Open::CREATE).map(drop);
    let mut data = buffer(4096);
    // The first state of each.
    match OPERATIONS[at] {
        "chmod" | "link" | "rename_file_inter" => file(&a)?,
        "unlink_hardlink" => {
            file(&a)?;
            target.link(&a, &b)?;
        }
        "read" => fill(target, &a, 4096)?,
        "unlink_16M" => fill(target, &a, 16 << 20)?,
        "rename_dir_intra" | "rmdir" => target.create_dir(&a)?,
        _ => {}
    }
    recorder.skip();
    match OPERATIONS[at] {
        "chmod" => {
            target.set_mode(&a, 0o600)?;
            recorder.lap(Op::Other);
        }
        "create" => {
            file(&a)?;
            recorder.lap(Op::Create);
        }
        "link" => {
            target.link(&a, &b)?;
            recorder.lap(Op::Other);
        }
        "mkdir" => {
            target.create_dir(&a)?;
            recorder.lap(Op::Mkdir);
        }
        "read" => {
            let count = target.open(&a, Open::READ)?.read_at(&mut data, 0)?;
            recorder.lap_read(Op::Read, count);
        }
        "readdir" => {
            target.read_dir(&name("many"), &mut |_| {})?;
            recorder.lap(Op::ReadDir);
        }
        "rename_dir_intra" => {
            target.rename(&a, &b)?;
            recorder.lap(Op::Rename);
        }
        "rename_file_inter" => {
            target.rename(&a, &dir.join("a"))?;
            recorder.lap(Op::Rename);
        }
        "rmdir" => {
            target.remove_dir(&a)?;
            recorder.lap(Op::Other);
        }
        "symlink" => {
            target.symlink("somewhere".as_ref(), &a)?;
            recorder.lap(Op::Other);
        }
        "unlink_16M" => {
            target.remove_file(&a)?;
            recorder.lap(Op::Unlink);
        }
        "unlink_hardlink" => {
            target.remove_file(&b)?;
            recorder.lap(Op::Unlink);
        }
        _ => {
            let file = target.open(&a, Open::CREATE)?;
            (0..256).try_for_each(|block| file.write_at(&data, block * 4096))?;
            drop(file);
            recorder.lap_write(Op::Write, 1 << 20);
        }
    }
    match OPERATIONS[at] {
        "rmdir" | "unlink_16M" | "readdir" => {}
        "link" => {
            target.remove_file(&a)?;
            target.remove_file(&b)?;
        }
        "mkdir" => target.remove_dir(&a)?,
        "rename_dir_intra" => target.remove_dir(&b)?,
        "rename_file_inter" => target.remove_file(&dir.join("a"))?,
        _ => target.remove_file(&a)?,
    }
    recorder.skip();
    Ok(())
}

/// Waits until no more data is on PM than anti-caching keeps there.
fn settle(target: &dyn Target) -> Result<(), Error> {
    let begin = Instant::now();
    let mut calm = 0;
    // Blocks may still be on their way up.
    while calm < 2 {
        match target.above_threshold() {
            None => return Ok(()),
            Some(0) => calm += 1,
            Some(_) if begin.elapsed() < SETTLED_WITHIN => calm = 0,
            Some(bytes) => return Err(format!("{bytes} bytes stay above the threshold on PM").into()),
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// The hot file of figure 4 is on PM, and the others are on the disk.
fn cool(target: &dyn Target) -> Result<(), Error> {
    let hot = name("cold0");
    target.open(&hot, Open::READ)?.read_at(&mut buffer(COLD_SIZE as usize), 0)?;
    settle(target)?;
    (1..COLD_FILES).try_for_each(|file| Ok(target.drop_pages(&name(&format!("cold{file}")))?))
}

impl Bpfs {
    fn append(&self, target: &dyn Target, recorder: &mut Recorder) -> Result<(), Error> {
        let data = buffer(self.io as usize);
        let how = Open { append: true, ..Open::CREATE };
        let file = target.open(&name("log"), how)?;
        recorder.skip();
        let mut size = 0;
        loop {
            file.append(&data)?;
            size += self.io;
            if self.sync {
                file.sync(false)?;
            }
            if !recorder.lap_write(Op::Append, data.len()) {
                return Ok(());
            }
            if size + self.io > APPENDED {
                file.set_len(0)?;
                size = 0;
                recorder.skip();
            }
        }
    }

    fn random_write(
        &self,
        (size, align): (u64, u64),
        target: &dyn Target,
        seed: u64,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let mut random = SmallRng::seed_from_u64(seed);
        let data = buffer(self.io as usize);
        let file = target.open(&name("random"), Open::WRITE)?;
        recorder.skip();
        loop {
            file.write_at(&data, random.random_range(0..=(size - self.io) / align) * align)?;
            if self.sync {
                file.sync(false)?;
            }
            if !recorder.lap_write(Op::Write, data.len()) {
                return Ok(());
            }
        }
    }

    /// Ten reads of whole files: the hot one again and again, and others in turn.
    fn coldness(
        &self,
        percent: u64,
        target: &dyn Target,
        round: u64,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let mut data = buffer(COLD_SIZE as usize);
        let cold = percent * COLD_FILES / 100;
        // Which of the others comes next; a round goes on where the one before it ended.
        let mut next = round * cold * COLD_TIMES;
        for time in 0.. {
            // Where all are hot, once.
            if cold > 0 || time == 0 {
                cool(target)?;
            }
            recorder.skip();
            for at in 0..COLD_FILES {
                let file = if at < cold {
                    next += 1;
                    1 + next % (COLD_FILES - 1)
                } else {
                    0
                };
                let count = target.open(&name(&format!("cold{file}")), Open::READ)?.read_at(&mut data, 0)?;
                recorder.lap_read(Op::Read, count);
            }
            if !recorder.goes_on() || cold > 0 && time + 1 == COLD_TIMES {
                break;
            }
        }
        Ok(())
    }

    /// A third reads a whole file, two thirds write one anew.
    fn filebench(
        &self,
        set: &FileSet,
        target: &dyn Target,
        seed: u64,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut data = buffer(self.io as usize);
        recorder.skip();
        while recorder.goes_on() {
            let number = random.random_range(0..set.files());
            let (path, size) = (set.path(number), set.size(number));
            let reads = random.random_range(0..3) == 0;
            let file = target.open(&path, if reads { Open::READ } else { Open::WRITE })?;
            let mut at = 0;
            while at < size {
                let len = (size - at).min(self.io) as usize;
                if reads {
                    match file.read_at(&mut data[..len], at)? {
                        0 => return Err(format!("{} ends at {at}", path.display()).into()),
                        count => at += count as u64,
                    }
                } else {
                    file.write_at(&data[..len], at)?;
                    at += len as u64;
                }
            }
            drop(file);
            if reads {
                recorder.lap_read(Op::Read, size as usize);
            } else {
                recorder.lap_write(Op::Write, size as usize);
            }
        }
        Ok(())
    }
}

impl Workload for Bpfs {
    fn describe(&self) -> String {
        let sync = if self.sync { ", fsync after each" } else { "" };
        let io = size::print(self.io);
        match &self.kind {
            Kind::Operations(None) => "AC-BPFS: the operations of its table 1 in turn".into(),
            Kind::Operations(Some(at)) => format!("AC-BPFS: {} of its table 1", OPERATIONS[*at]),
            Kind::Append => format!("AC-BPFS: appends of {io} to an empty file{sync}"),
            Kind::RandomWrite { file, align } => {
                let whole = if align.is_multiple_of(4096) { ", whole blocks" } else { "" };
                format!("AC-BPFS: random writes of {io} in a file of {}{whole}{sync}", size::print(*file))
            }
            Kind::Coldness { percent } => {
                format!("AC-BPFS: 400 KB read as files of 40 KB, {percent} % of them cold")
            }
            Kind::Filebench { set, mean } => format!(
                "AC-BPFS: {} files of {} (mean), {} together; a third read, two thirds written, {io} at a time",
                set.files(),
                size::print(*mean),
                size::print(set.files() * mean)
            ),
        }
    }

    fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Operations(_) => 18 << 20,
            Kind::Append => APPENDED + self.io,
            Kind::RandomWrite { file, .. } => *file,
            Kind::Coldness { .. } => COLD_FILES * COLD_SIZE,
            Kind::Filebench { set, mean } => set.files() * (mean + mean / 4 + 4096),
        }
    }

    fn files(&self) -> u64 {
        match &self.kind {
            Kind::Filebench { set, .. } => 2 * set.files() + 4,
            _ => 128,
        }
    }

    fn value(&self) -> Value {
        match self.kind {
            Kind::Operations(_) | Kind::Append | Kind::RandomWrite { .. } => Value::Operations,
            Kind::Coldness { .. } | Kind::Filebench { .. } => Value::Bytes,
        }
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        remove_dir_all(target, DIR.as_ref())?;
        create_dir_all(target, DIR.as_ref())?;
        match &self.kind {
            Kind::Operations(_) => {
                target.create_dir(&name("dir"))?;
                target.create_dir(&name("many"))?;
                for number in 0..64 {
                    drop(target.open(&name(&format!("many/{number}")), Open::CREATE)?);
                }
            }
            Kind::Append => {}
            Kind::RandomWrite { file, .. } => fill(target, &name("random"), *file)?,
            Kind::Coldness { .. } => {
                for number in 0..COLD_FILES {
                    fill(target, &name(&format!("cold{number}")), COLD_SIZE)?;
                }
            }
            Kind::Filebench { set, .. } => set.make(target, 1.0)?,
        }
        target.sync()?;
        settle(target)
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let seed = round.seed_of(0);
        on_threads(1, round.slice, |_, recorder| match &self.kind {
            Kind::Operations(which) => {
                loop {
                    match which {
                        Some(at) => operation(*at, target, recorder)?,
                        // A round has all of them equally often.
                        None => {
                            (0..OPERATIONS.len()).try_for_each(|at| operation(at, target, recorder))?;
                        }
                    }
                    if !recorder.goes_on() {
                        return Ok(());
                    }
                }
            }
            Kind::Append => self.append(target, recorder),
            Kind::RandomWrite { file, align } => self.random_write((*file, *align), target, seed, recorder),
            Kind::Coldness { percent } => self.coldness(*percent, target, round.number, recorder),
            Kind::Filebench { set, .. } => self.filebench(set, target, seed, recorder),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::OPERATIONS;
    use crate::workload::noted::{Call, Noted};
    use crate::workload::tests::targets;
    use crate::workload::{Op, Round, make};

    #[test]
    fn each_runs_on_a_directory_and_in_the_library() {
        let mut works: Vec<String> = OPERATIONS.iter().map(|op| format!("bpfs.ops,op={op}")).collect();
        works.extend(
            [
                "bpfs.ops",
                "bpfs.append",
                "bpfs.append,sync=no",
                "bpfs.randwrite,io=100",
                "bpfs.randwrite,io=8k,align=4k",
                "bpfs.coldness,cold=100",
            ]
            .map(str::to_owned),
        );
        works.push("bpfs.filebench,total=2m".to_owned());
        let dir = tempfile::tempdir().unwrap();
        for target in targets(&dir) {
            for work in &works {
                let made = make(&work.parse().unwrap(), 0.01).unwrap();
                made.prepare(&*target).unwrap();
                for number in 0..2 {
                    let round = Round { number, seed: 1, slice: Duration::from_millis(1) };
                    let measured = made.round(&*target, round).unwrap_or_else(|why| panic!("{work}: {why}"));
                    assert!(measured.operations > 0, "{work}");
                }
            }
        }
    }

    #[test]
    fn a_round_of_all_operations_has_each_equally_often() {
        let dir = tempfile::tempdir().unwrap();
        let work = make(&"bpfs.ops".parse().unwrap(), 1.0).unwrap();
        let target = &targets(&dir)[0];
        work.prepare(&**target).unwrap();
        let measured = work.round(&**target, Round { number: 0, seed: 1, slice: Duration::ZERO }).unwrap();
        assert_eq!(measured.operations, OPERATIONS.len() as u64);
        assert_eq!((measured.read, measured.written), (4096, 1 << 20));
        let count =
            |wanted| measured.times.iter().find(|(op, _)| *op == wanted).map(|(_, times)| times.len());
        assert_eq!((count(Op::Rename), count(Op::Unlink), count(Op::Other)), (Some(2), Some(2), Some(4)));
    }

    #[test]
    fn half_percents_are_refused() {
        assert!(make(&"bpfs.coldness,cold=25".parse().unwrap(), 1.0).is_err());
        assert!(make(&"bpfs.append,io=0".parse().unwrap(), 1.0).is_err());
        assert!(make(&"bpfs.randwrite,align=0".parse().unwrap(), 1.0).is_err());
    }

    #[test]
    fn aligned_writes_are_of_whole_blocks_and_others_of_parts() {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        for (align, whole) in [("4k", true), ("1", false)] {
            let spec = format!("bpfs.randwrite,io=8k,align={align},file=1m,sync=no");
            let work = make(&spec.parse().unwrap(), 1.0).unwrap();
            work.prepare(&target).unwrap();
            target.take();
            let round = Round { number: 0, seed: 1, slice: Duration::from_millis(20) };
            work.round(&target, round).unwrap();
            let calls = target.take();
            let writes = calls.iter().filter_map(|(_, call)| match call {
                Call::Write(at, bytes) => Some((*at, *bytes)),
                _ => None,
            });
            let (blocks, parts): (Vec<_>, Vec<_>) = writes.partition(|(at, _)| at.is_multiple_of(4096));
            let (some, none) = if whole { (blocks, parts) } else { (parts, blocks) };
            // One place in 4096 is the begin of a block by chance.
            assert!(some.len() > 10 && none.len() <= some.len() / 10, "{align}: {some:?} {none:?}");
            assert!(some.iter().all(|(at, bytes)| *bytes == 8192 && at + 8192 <= 1 << 20), "{some:?}");
        }
    }
}
