//! One kind of operation, in every size and pattern, as fio has them. An fsync (`sync=N`) is an operation, too: with
//! `sync=1` half of the operations a second are writes. Bytes a second and latencies count none twice.

use std::fmt;
use std::path::PathBuf;

use nacre_engine::size;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

use super::recorder::on_threads;
use super::set::{buffer, fill};
use super::{Length, Measured, Op, Recorder, Round, Value, Workload};
use crate::Error;
use crate::spec::Spec;
use crate::target::{File, Known, Open, Target, read_all};

/// Operations that are drawn at once, in time that does not count: to choose one as it comes would cost as much as a
/// time-stamp does. So few that they take little of the processor's first cache from the work.
const DRAWN: usize = 1 << 10;
/// The bit of a drawn offset that says to read there; files are shorter.
const READS: u64 = 1 << 63;

/// Where the next operation goes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pattern {
    Sequential,
    Random,
    /// Few places often: the place of rank k with a probability of k^-theta.
    Zipf(f64),
}

/// When writes are made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    Never,
    /// Each by itself.
    Open,
    /// By fsync after so many.
    Every(u64),
}

/// The kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Append,
    /// Reads, in percent.
    Mix(u64),
}

#[derive(Debug)]
struct Micro {
    kind: Kind,
    pattern: Pattern,
    sync: Sync,
    io: u64,
    file: u64,
    threads: u64,
    shared: bool,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let kind = match spec.name() {
        "micro.read" => Kind::Read,
        "micro.append" => Kind::Append,
        "micro.mix" => match spec.number("reads", 50, 0)? {
            reads @ 0..=100 => Kind::Mix(reads),
            reads => return Err(format!("micro.mix: reads={reads}: more than all, in percent")),
        },
        _ => Kind::Write,
    };
    let io = spec.size("io", "4k")?;
    if io == 0 || io > 1 << 30 {
        return Err(format!("{}: io={io}: from one byte to 1G", spec.name()));
    }
    let file = ((spec.size("file", "2g")? as f64 * scale) as u64 / io).max(1) * io;
    let pattern = if kind == Kind::Append {
        Pattern::Sequential
    } else {
        let theta = spec.real("theta", 0.9, 0.0..=5.0)?;
        let words =
            [("seq", Pattern::Sequential), ("random", Pattern::Random), ("zipf", Pattern::Zipf(theta))];
        spec.word("pattern", "random", &words)?
    };
    let sync = match spec.text("sync", "never")?.as_str() {
        "never" => Sync::Never,
        "osync" => Sync::Open,
        number => match number.parse() {
            Ok(every) if every > 0 => Sync::Every(every),
            _ => return Err(format!("{}: sync={number}: never, osync, or a number", spec.name())),
        },
    };
    let threads = spec.number("threads", 1, 1)?;
    let shared = match kind {
        Kind::Append => false,
        _ => spec.word("files", "shared", &[("shared", true), ("each", false)])?,
    };
    Ok(Box::new(Micro { kind, pattern, sync, io, file, threads, shared }))
}

impl fmt::Display for Micro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            Pattern::Sequential => "sequential".to_owned(),
            Pattern::Random => "random".to_owned(),
            Pattern::Zipf(theta) => format!("zipf ({theta})"),
        };
        match self.kind {
            Kind::Read => write!(f, "{pattern} reads")?,
            Kind::Write => write!(f, "{pattern} overwrites")?,
            Kind::Append => write!(f, "appends")?,
            Kind::Mix(reads) => write!(f, "{pattern} reads ({reads} %) and overwrites")?,
        }
        let whose = if self.shared { "of one file" } else { "of a file for each thread" };
        write!(f, " of {}, {whose} of {}", size::print(self.io), size::print(self.file))?;
        if self.threads > 1 {
            write!(f, ", {} threads", self.threads)?;
        }
        match self.sync {
            Sync::Never => Ok(()),
            Sync::Open => write!(f, ", O_SYNC"),
            Sync::Every(1) => write!(f, ", fsync after each, an operation by itself"),
            Sync::Every(count) => write!(f, ", fsync after each {count}, an operation by itself"),
        }
    }
}

impl Micro {
    fn path(&self, thread: u64) -> PathBuf {
        PathBuf::from(format!("micro{}", if self.shared { 0 } else { thread }))
    }

    /// The draws of a thread in a round.
    fn draw(&self, seed: u64) -> Drawn {
        let mut random = SmallRng::seed_from_u64(seed);
        let count = self.file / self.io;
        let reads = match self.kind {
            Kind::Read => 100,
            Kind::Mix(reads) => reads,
            Kind::Write | Kind::Append => 0,
        };
        let last = random.random_range(0..count);
        let mut drawn = Drawn {
            pattern: self.pattern,
            io: self.io,
            count,
            places: Scattered::new(count),
            reads,
            random,
            last,
            all: Vec::new(),
            at: 0,
        };
        drawn.refill();
        drawn
    }

    /// The work of one thread on its file.
    fn work<F: File + ?Sized>(&self, file: &F, seed: u64, recorder: &mut Recorder) -> Result<(), Error> {
        if self.kind == Kind::Append {
            return self.append(file, recorder);
        }
        let mut drawn = self.draw(seed);
        let (data, mut read) = (buffer(self.io as usize), buffer(self.io as usize));
        let mut writes = 0;
        recorder.skip();
        loop {
            let (at, reads) = drawn.next(recorder);
            let goes_on = if reads {
                read_all(file, &mut read, at)?;
                recorder.lap_read(Op::Read, self.io as usize)
            } else {
                file.write_at(&data, at)?;
                writes += 1;
                recorder.lap_write(Op::Write, self.io as usize) & self.make_durable(file, writes, recorder)?
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    fn append<F: File + ?Sized>(&self, file: &F, recorder: &mut Recorder) -> Result<(), Error> {
        let data = buffer(self.io as usize);
        file.set_len(0)?;
        let mut size = 0;
        recorder.skip();
        loop {
            if size >= self.file {
                file.set_len(0)?;
                size = 0;
                recorder.skip();
            }
            file.append(&data)?;
            size += self.io;
            let goes_on = recorder.lap_write(Op::Append, data.len());
            if !self.make_durable(file, size / self.io, recorder)? || !goes_on {
                return Ok(());
            }
        }
    }

    /// After the `count`th write. Whether there is time left.
    fn make_durable<F: File + ?Sized>(
        &self,
        file: &F,
        count: u64,
        recorder: &mut Recorder,
    ) -> Result<bool, Error> {
        match self.sync {
            Sync::Every(every) if count.is_multiple_of(every) => {
                file.sync(false)?;
                Ok(recorder.lap(Op::Sync))
            }
            _ => Ok(true),
        }
    }
}

/// Ranks over the places of a file, so that neighbours are not neighbours there. Each place has one rank: multiplying by
/// a factor that has no divisor in common with their number is a permutation.
#[derive(Debug, Clone, Copy)]
struct Scattered {
    factor: u64,
    count: u64,
}

impl Scattered {
    fn new(count: u64) -> Scattered {
        const GOLDEN: f64 = 0.618_033_988_749_894_9;
        let first = ((count as f64 * GOLDEN) as u64).max(1);
        let factor = (first..).find(|&factor| gcd(factor, count) == 1).unwrap_or(1);
        Scattered { factor, count }
    }

    fn at(self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.factor) % u128::from(self.count)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Operations to come, without end.
struct Drawn {
    pattern: Pattern,
    io: u64,
    count: u64,
    places: Scattered,
    reads: u64,
    random: SmallRng,
    last: u64,
    /// Offsets, with [`READS`] where to read.
    all: Vec<u64>,
    at: usize,
}

impl Drawn {
    #[inline]
    fn next(&mut self, recorder: &mut Recorder) -> (u64, bool) {
        if self.at == self.all.len() {
            self.refill();
            recorder.skip();
        }
        self.at += 1;
        let drawn = self.all[self.at - 1];
        (drawn & !READS, drawn & READS != 0)
    }

    #[cold]
    fn refill(&mut self) {
        let Drawn { pattern, io, count, places, reads, random, last, all, at } = self;
        let ranks = match pattern {
            Pattern::Zipf(theta) => Zipf::new(*count as f64, *theta).ok(),
            _ => None,
        };
        all.clear();
        all.extend((0..DRAWN).map(|_| {
            *last = match (&*pattern, &ranks) {
                (_, Some(ranks)) => places.at(ranks.sample(random) as u64 - 1),
                (Pattern::Sequential, None) => (*last + 1) % *count,
                (_, None) => random.random_range(0..*count),
            };
            let is_read = *reads == 100 || *reads > 0 && random.random_range(0..100) < *reads;
            (*last * *io) | if is_read { READS } else { 0 }
        }));
        *at = 0;
    }
}

impl Workload for Micro {
    fn describe(&self) -> String {
        self.to_string()
    }

    fn bytes(&self) -> u64 {
        self.file * if self.shared { 1 } else { self.threads }
    }

    fn files(&self) -> u64 {
        self.threads
    }

    fn value(&self) -> Value {
        if self.io >= 1 << 16 { Value::Bytes } else { Value::Operations }
    }

    fn length(&self) -> Length {
        match self.sync {
            Sync::Every(count) if count > 1 => Length::Slice,
            _ => Length::Short,
        }
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        for thread in 0..if self.shared { 1 } else { self.threads } {
            fill(target, &self.path(thread), if self.kind == Kind::Append { 0 } else { self.file })?;
        }
        Ok(target.sync()?)
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        on_threads(self.threads, round.slice, |thread, recorder| {
            let how = Open {
                read: self.kind != Kind::Append,
                write: self.kind != Kind::Read,
                append: self.kind == Kind::Append,
                sync: self.sync == Sync::Open,
                ..Open::default()
            };
            let file = target.open(&self.path(thread), how)?;
            let seed = round.seed_of(thread);
            match file.known() {
                Known::Directory(file) => self.work(file, seed, recorder),
                Known::Library(file) => self.work(file, seed, recorder),
                Known::Other => self.work(&*file, seed, recorder),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::make;
    use super::super::tests::targets;
    use super::{Drawn, Kind, Micro, Pattern, READS, Scattered, Sync};
    use crate::target::{Open, Target};
    use crate::workload::{Measured, Op, Round};

    /// `op/s` of a write with its fsync is twice what a reader would take it for.
    #[test]
    fn an_fsync_is_an_operation_and_the_description_says_so() {
        let dir = tempfile::tempdir().unwrap();
        for target in targets(&dir) {
            let work = make(&"micro.write,file=64k,io=4k,sync=1".parse().unwrap(), 1.0).unwrap();
            assert!(work.describe().ends_with("fsync after each, an operation by itself"));
            work.prepare(&*target).unwrap();
            let round = Round { number: 0, seed: 1, slice: Duration::from_millis(1) };
            let done = work.round(&*target, round).unwrap();
            let writes = done.written / 4096;
            assert!(writes > 0 && done.operations.abs_diff(2 * writes) <= 1, "{} {writes}", done.operations);
        }
    }

    #[test]
    fn every_place_has_one_rank() {
        for count in [1, 2, 3, 12, 13_107, 1 << 14, 262_144, 99_991] {
            let places = Scattered::new(count);
            let mut seen = vec![false; count as usize];
            (0..count).for_each(|rank| seen[places.at(rank) as usize] = true);
            assert!(seen.into_iter().all(|seen| seen), "{count}");
            if count > 100 {
                let gap = places.at(1).abs_diff(places.at(2));
                assert!(gap > count / 10, "{count}: neighbours are {gap} apart");
            }
        }
    }

    fn drawn(pattern: Pattern, kind: Kind, count: u64) -> Drawn {
        let micro = Micro {
            kind,
            pattern,
            sync: Sync::Never,
            io: 4096,
            file: count * 4096,
            threads: 1,
            shared: true,
        };
        micro.draw(7)
    }

    /// How often each place comes among so many.
    fn hits(drawn: &mut Drawn, count: u64, draws: usize) -> Vec<u64> {
        let mut hits = vec![0; count as usize];
        let mut left = draws;
        while left > 0 {
            for offset in &drawn.all {
                hits[((offset & !READS) / 4096) as usize] += 1;
            }
            left = left.saturating_sub(drawn.all.len());
            drawn.refill();
        }
        hits
    }

    /// Paper 002, table 3: so many percent of all accesses go to so many percent of the places.
    #[test]
    fn zipf_has_the_localities_of_table_3() {
        let count = 13_107;
        for (accesses, of, theta) in
            [(0.9, 0.1, 1.04), (0.8, 0.2, 0.88), (0.7, 0.3, 0.71), (0.6, 0.4, 0.44), (0.5, 0.5, 0.0)]
        {
            let draws = 400_000;
            let mut hits = hits(&mut drawn(Pattern::Zipf(theta), Kind::Read, count), count, draws);
            let touched = hits.iter().filter(|&&hits| hits > 0).count();
            hits.sort_unstable_by(|a, b| b.cmp(a));
            let first = hits[..(count as f64 * of) as usize].iter().sum::<u64>() as f64;
            let share = first / hits.iter().sum::<u64>() as f64;
            assert!((share - accesses).abs() < 0.1, "{theta}: {share}, not {accesses}");
            assert!(touched as u64 > count * 9 / 10, "{theta}: {touched} of {count} places");
        }
    }

    #[test]
    fn a_mix_has_its_reads_and_a_sequence_its_order() {
        let mixed = drawn(Pattern::Random, Kind::Mix(30), 1000);
        let reads = mixed.all.iter().filter(|&offset| offset & READS != 0).count() as f64;
        assert!((reads / mixed.all.len() as f64 - 0.3).abs() < 0.05);
        let sequence = drawn(Pattern::Sequential, Kind::Write, 100);
        assert!(sequence.all.windows(2).all(|two| two[1] == (two[0] + 4096) % (100 * 4096)));
    }

    fn one_round(work: &str, target: &dyn Target) -> Measured {
        let work = make(&work.parse().unwrap(), 1.0).unwrap();
        work.prepare(target).unwrap();
        work.round(target, Round { number: 1, seed: 1, slice: Duration::from_millis(5) }).unwrap()
    }

    #[test]
    fn every_operation_moves_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        for target in targets(&dir) {
            for (work, op) in [
                ("micro.read,file=1m", Op::Read),
                ("micro.read,file=1m,io=100,pattern=zipf", Op::Read),
                ("micro.write,file=1m,pattern=seq,sync=osync", Op::Write),
                ("micro.write,file=1m,threads=2,files=each", Op::Write),
                ("micro.append,file=64k,io=16k", Op::Append),
            ] {
                let measured = one_round(work, &*target);
                let io = if work.contains("io=100") {
                    100
                } else if op == Op::Append {
                    16_384
                } else {
                    4096
                };
                assert!(measured.operations > 0);
                assert_eq!(measured.read + measured.written, measured.operations * io, "{work}");
                assert_eq!(measured.read > 0, op == Op::Read, "{work}");
                assert_eq!(measured.times.iter().map(|(op, _)| op).collect::<Vec<_>>(), [op], "{work}");
            }
            let size = target.stat(Path::new("micro0")).unwrap();
            assert!(size > 0 && size <= 64 << 10, "appends begin anew at the end: {size}");
            let synced = one_round("micro.write,file=1m,sync=2", &*target);
            let counts: Vec<u64> = synced.times.iter().map(|(_, times)| times.len()).collect();
            assert!(counts[0] / 2 == counts[1], "{counts:?}");
        }
    }

    /// A target that reads nothing is not the fastest.
    #[test]
    fn a_read_that_ends_early_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for target in targets(&dir) {
            for work in ["micro.read,file=1m", "iozone,phase=read,file=1m"] {
                let made = make(&work.parse().unwrap(), 1.0).unwrap();
                made.prepare(&*target).unwrap();
                for name in ["micro0", "iozone.tmp"] {
                    if target.stat(Path::new(name)).is_ok() {
                        target.open(Path::new(name), Open::WRITE).unwrap().set_len(5000).unwrap();
                    }
                }
                let round = Round { number: 1, seed: 1, slice: Duration::from_secs(20) };
                let why = made.round(&*target, round).err().map(|error| error.to_string());
                assert!(why.is_some_and(|why| why.contains("bytes of 4096")), "{work}");
            }
        }
    }
}
