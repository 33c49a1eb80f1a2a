//! One kind of operation, in every size and pattern, as fio has them.

use std::fmt;
use std::path::PathBuf;

use nacre_engine::size;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

use super::recorder::on_threads;
use super::set::{buffer, fill};
use super::{Measured, Op, Recorder, Round, Value, Workload};
use crate::Error;
use crate::spec::Spec;
use crate::target::{File, Open, Target};

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

/// What is done.
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
            Sync::Every(1) => write!(f, ", fsync after each"),
            Sync::Every(count) => write!(f, ", fsync after each {count}"),
        }
    }
}

impl Micro {
    fn path(&self, thread: u64) -> PathBuf {
        PathBuf::from(format!("micro{}", if self.shared { 0 } else { thread }))
    }

    /// What a thread does in a round.
    fn draw(&self, seed: u64) -> Drawn {
        let mut random = SmallRng::seed_from_u64(seed);
        let count = self.file / self.io;
        let reads = match self.kind {
            Kind::Read => 100,
            Kind::Mix(reads) => reads,
            Kind::Write | Kind::Append => 0,
        };
        let last = random.random_range(0..count);
        let mut drawn =
            Drawn { pattern: self.pattern, io: self.io, count, reads, random, last, all: Vec::new(), at: 0 };
        drawn.refill();
        drawn
    }

    fn append(&self, file: &dyn File, recorder: &mut Recorder) -> Result<(), Error> {
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
    fn make_durable(&self, file: &dyn File, count: u64, recorder: &mut Recorder) -> Result<bool, Error> {
        match self.sync {
            Sync::Every(every) if count.is_multiple_of(every) => {
                file.sync(false)?;
                Ok(recorder.lap(Op::Sync))
            }
            _ => Ok(true),
        }
    }
}

/// Operations to come, without end.
struct Drawn {
    pattern: Pattern,
    io: u64,
    count: u64,
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
        let Drawn { pattern, io, count, reads, random, last, all, at } = self;
        let ranks = match pattern {
            Pattern::Zipf(theta) => Zipf::new(*count as f64, *theta).ok(),
            _ => None,
        };
        all.clear();
        all.extend((0..DRAWN).map(|_| {
            *last = match (&*pattern, &ranks) {
                // Neighbouring ranks are not neighbours in the file.
                (_, Some(ranks)) => {
                    (ranks.sample(random) as u64 - 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % *count
                }
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
            if self.kind == Kind::Append {
                return self.append(&*file, recorder);
            }
            let mut drawn = self.draw(round.seed_of(thread));
            let (data, mut read) = (buffer(self.io as usize), buffer(self.io as usize));
            let mut writes = 0;
            recorder.skip();
            loop {
                let (at, reads) = drawn.next(recorder);
                let goes_on = if reads {
                    file.read_at(&mut read, at)?;
                    recorder.lap_read(Op::Read, self.io as usize)
                } else {
                    file.write_at(&data, at)?;
                    writes += 1;
                    recorder.lap_write(Op::Write, self.io as usize)
                        & self.make_durable(&*file, writes, recorder)?
                };
                if !goes_on {
                    return Ok(());
                }
            }
        })
    }
}
