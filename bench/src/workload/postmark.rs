//! Postmark (Katcher, 1997): a pool of small files that are made, read, appended to and removed.
//!
//! A round is a run: the pool is made, transactions run, the pool is removed; the time of the transactions is the value,
//! or of all three with `time=all`. Of a large pool on nacre, the part of the space in use that is not data of its files
//! is told (`space.metadata`). A transaction is one of read or append, and one of create or remove, as there; `bias_create=off` leaves the second half out.

use std::path::PathBuf;

use nacre_engine::{BLOCK_SIZE, size};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::recorder::whole;
use super::set::{Buffer, buffer};
use super::{Length, Measured, Op, Recorder, Round, Value, Workload, scaled};
use crate::Error;
use crate::counters::METADATA;
use crate::spec::Spec;
use crate::target::{Open, Target, create_dir_all};

struct Postmark {
    files: u64,
    transactions: u64,
    low: u64,
    high: u64,
    io: u64,
    subdirs: u64,
    /// In tenths: reads of reads and appends, creates of creates and removals. None leaves that half out.
    bias_read: Option<u64>,
    bias_create: Option<u64>,
    all: bool,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let files = scaled(spec.number("files", 20_000, 1)?, scale, 16);
    let transactions = scaled(spec.number("transactions", 100_000, 1)?, scale, 16);
    let (low, high) = (spec.size("low", "512")?, spec.size("high", "16k")?);
    let bias = |key: &str| match spec.text(key, "5")?.as_str() {
        "off" => Ok(None),
        text => match text.parse() {
            Ok(tenths @ 0..=10) => Ok(Some(tenths)),
            _ => Err(format!("postmark: {key}={text}: tenths from 0 to 10, or off")),
        },
    };
    let io = spec.size("io", "512")?;
    if low == 0 || low > high || io == 0 {
        return Err("postmark: low is at least one byte and at most high, io at least one byte".into());
    }
    let subdirs = spec.number("subdirs", 0, 0)?;
    let (bias_read, bias_create) = (bias("bias_read")?, bias("bias_create")?);
    let all = spec.word("time", "transactions", &[("transactions", false), ("all", true)])?;
    Ok(Box::new(Postmark { files, transactions, low, high, io, subdirs, bias_read, bias_create, all }))
}

/// From so many files on, the space beside their data is told. Fewer leave much of their blocks of metadata unused.
const LARGE: u64 = 20_000;

/// The pool of one run.
struct Pool<'a> {
    work: &'a Postmark,
    target: &'a dyn Target,
    random: SmallRng,
    files: Vec<(u64, u64)>,
    next: u64,
    data: Buffer,
}

impl Pool<'_> {
    fn path(&self, number: u64) -> PathBuf {
        match self.work.subdirs {
            0 => PathBuf::from(format!("pm/{number}")),
            dirs => PathBuf::from(format!("pm/s{}/{number}", number % dirs)),
        }
    }

    /// The part of the space in use that is not data of the files, in percent: of nacre with many files.
    fn metadata(&self) -> Option<f64> {
        if (self.files.len() as u64) < LARGE {
            return None;
        }
        let space = self.target.information()?.space?;
        let used = space.total.saturating_sub(space.free);
        let data: u64 = self.files.iter().map(|(_, size)| size.next_multiple_of(BLOCK_SIZE)).sum();
        Some(100.0 * used.saturating_sub(data) as f64 / used as f64)
    }

    fn create(&mut self, recorder: &mut Recorder) -> Result<(), Error> {
        let (number, size) = (self.next, self.random.random_range(self.work.low..=self.work.high));
        self.next += 1;
        let file = self.target.open(&self.path(number), Open { append: true, ..Open::CREATE })?;
        let mut left = size;
        while left > 0 {
            let len = left.min(self.work.io);
            file.append(&self.data[..len as usize])?;
            left -= len;
        }
        drop(file);
        recorder.lap_write(Op::Create, size as usize);
        self.files.push((number, size));
        Ok(())
    }

    fn remove(&mut self, recorder: &mut Recorder) -> Result<(), Error> {
        let at = self.random.random_range(0..self.files.len());
        let (number, _) = self.files.swap_remove(at);
        self.target.remove_file(&self.path(number))?;
        recorder.lap(Op::Unlink);
        Ok(())
    }

    fn read(&mut self, recorder: &mut Recorder) -> Result<(), Error> {
        let at = self.random.random_range(0..self.files.len());
        let (number, size) = self.files[at];
        let file = self.target.open(&self.path(number), Open::READ)?;
        let mut done = 0;
        while done < size {
            let len = (size - done).min(self.work.io) as usize;
            match file.read_at(&mut self.data[..len], done)? {
                0 => return Err(format!("{number} ends at {done}, and has {size} bytes").into()),
                count => done += count as u64,
            }
        }
        drop(file);
        recorder.lap_read(Op::Read, size as usize);
        Ok(())
    }

    fn append(&mut self, recorder: &mut Recorder) -> Result<(), Error> {
        let at = self.random.random_range(0..self.files.len());
        let (number, size) = self.files[at];
        if size < self.work.high {
            let more = self.random.random_range(1..=self.work.high - size);
            let file = self.target.open(&self.path(number), Open { append: true, ..Open::WRITE })?;
            let mut left = more;
            while left > 0 {
                let len = left.min(self.work.io);
                file.append(&self.data[..len as usize])?;
                left -= len;
            }
            drop(file);
            recorder.lap_write(Op::Append, more as usize);
            self.files[at].1 += more;
        }
        Ok(())
    }

    fn transaction(&mut self, recorder: &mut Recorder) -> Result<(), Error> {
        match self.work.bias_read {
            Some(reads) if self.random.random_range(0..10) < reads => self.read(recorder)?,
            Some(_) => self.append(recorder)?,
            None => {}
        }
        match self.work.bias_create {
            // The pool is never emptied by chance.
            Some(creates) if self.files.len() < 2 || self.random.random_range(0..10) < creates => {
                self.create(recorder)
            }
            Some(_) => self.remove(recorder),
            None => Ok(()),
        }
    }
}

impl Workload for Postmark {
    fn describe(&self) -> String {
        format!(
            "Postmark: {} files of {} to {}, {} transactions, {} at a time",
            self.files,
            size::print(self.low),
            size::print(self.high),
            self.transactions,
            size::print(self.io)
        )
    }

    fn bytes(&self) -> u64 {
        (self.files + self.transactions) * (self.high.next_multiple_of(4096) + 512)
    }

    fn files(&self) -> u64 {
        self.files + self.transactions + self.subdirs + 1
    }

    fn value(&self) -> Value {
        Value::Seconds
    }

    fn length(&self) -> Length {
        Length::Whole
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        create_dir_all(target, "pm".as_ref())?;
        for dir in 0..self.subdirs {
            create_dir_all(target, format!("pm/s{dir}").as_ref())?;
        }
        Ok(target.sync()?)
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let mut pool = Pool {
            work: self,
            target,
            random: SmallRng::seed_from_u64(round.seed_of(0)),
            files: Vec::new(),
            next: 0,
            data: buffer(self.io as usize),
        };
        let mut preparing = Recorder::start(std::time::Duration::ZERO);
        let make = |pool: &mut Pool<'_>, recorder: &mut Recorder| {
            (0..self.files).try_for_each(|_| pool.create(recorder))
        };
        let remove = |pool: &mut Pool<'_>, recorder: &mut Recorder| {
            while !pool.files.is_empty() {
                pool.remove(recorder)?;
            }
            Ok::<(), Error>(())
        };
        if !self.all {
            make(&mut pool, &mut preparing)?;
        }
        let metadata = pool.metadata();
        let mut measured = whole(|recorder| {
            if self.all {
                make(&mut pool, recorder)?;
            }
            (0..self.transactions).try_for_each(|_| pool.transaction(recorder))?;
            if self.all { remove(&mut pool, recorder) } else { Ok(()) }
        })?;
        remove(&mut pool, &mut preparing)?;
        measured.told.extend(metadata.map(|percent| (METADATA.to_owned(), percent)));
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::time::Duration;

    use super::{LARGE, METADATA};
    use crate::target::library::Library;
    use crate::target::{Open, Target};
    use crate::workload::noted::{Call, Calls, Noted};
    use crate::workload::{Measured, Op, Round, make};

    #[test]
    fn what_a_large_pool_takes_beside_its_data_is_told_on_nacre() {
        let dir = tempfile::tempdir().unwrap();
        let share = |files: u64, target: &dyn Target| {
            let spec =
                format!("postmark,files={files},transactions=16,low=1,high=1,bias_create=off,bias_read=10");
            let work = make(&spec.parse().unwrap(), 1.0).unwrap();
            work.prepare(target).unwrap();
            let round = Round { number: 0, seed: 1, slice: Duration::ZERO };
            work.round(target, round).unwrap().told.get(METADATA).copied()
        };
        let (size, options) = (192 << 20, nacre::OpenOptions::default());
        let pool =
            Library::create(&dir.path().join("pm"), size, nacre::Preset::Spfs, None, &options).unwrap();
        assert_eq!(share(LARGE - 1, &pool), None, "pool blocks of few files are hardly used");
        let metadata = share(LARGE, &pool).unwrap();
        // 20,000 blocks of data; inodes and names take two copies of some 350 bytes for each.
        assert!((10.0..25.0).contains(&metadata), "{metadata} %");
        std::fs::create_dir(dir.path().join("d")).unwrap();
        assert_eq!(share(LARGE, &Noted::new(&dir.path().join("d"))), None, "it is no nacre");
    }

    /// One run with these parameters: what was measured, and all calls after the preparation.
    fn run(parameters: &str) -> (Measured, Calls) {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        let spec = format!("postmark,files=50,transactions=400,low=100,high=2000,io=512{parameters}");
        let work = make(&spec.parse().unwrap(), 1.0).unwrap();
        work.prepare(&target).unwrap();
        target.take();
        let measured = work.round(&target, Round { number: 0, seed: 1, slice: Duration::ZERO }).unwrap();
        let calls = target.take();
        // The second run finds what the first one left: nothing.
        work.round(&target, Round { number: 1, seed: 1, slice: Duration::ZERO }).unwrap();
        let mut left = 0;
        target.read_dir("pm".as_ref(), &mut |_| left += 1).unwrap();
        assert_eq!(left, if parameters.contains("subdirs") { 3 } else { 0 });
        (measured, calls)
    }

    fn count(measured: &Measured, op: Op) -> u64 {
        measured.times.iter().find(|(other, _)| *other == op).map_or(0, |(_, times)| times.len())
    }

    #[test]
    fn half_of_each_transaction_is_content_and_half_is_names() {
        let (measured, calls) = run("");
        let [read, append, create, unlink] =
            [Op::Read, Op::Append, Op::Create, Op::Unlink].map(|op| count(&measured, op));
        assert_eq!(create + unlink, 400);
        // A file of the full size is not appended to, as in Postmark.
        assert!(read + append <= 400 && read + append > 300, "{read} reads, {append} appends");
        for half in [read, create] {
            assert!((160..=240).contains(&half), "{read} reads, {create} files made");
        }
        let made = calls.iter().filter(|(_, call)| matches!(call, Call::Open(how) if how.create)).count();
        let removed = calls.iter().filter(|(_, call)| *call == Call::Remove).count();
        assert_eq!((made as u64, removed), (50 + create, made), "fifty before, and all are removed after");
    }

    #[test]
    fn files_have_their_sizes_and_are_written_and_read_in_pieces() {
        let (_, calls) = run(",subdirs=3");
        let mut sizes: HashMap<PathBuf, u64> = HashMap::new();
        let (mut read, mut reading) = (0, false);
        for (path, call) in calls {
            assert_eq!(path.components().count(), 3, "{path:?} is in one of the directories");
            let size = sizes.entry(path.clone()).or_default();
            match call {
                Call::Open(how) => (read, reading) = (0, how == Open::READ),
                Call::Append(bytes) => {
                    assert!(bytes <= 512);
                    *size += bytes as u64;
                }
                Call::Read(at, bytes) => {
                    assert!(at == read && bytes <= 512);
                    read += bytes as u64;
                }
                Call::Close => {
                    assert!((100..=2000).contains(size), "{path:?}: {size} bytes");
                    assert!(!reading || read == *size, "{path:?}: {read} of {size} bytes are read");
                }
                Call::Remove => assert!(sizes.remove(&path).is_some(), "{path:?} is not there"),
                other => panic!("{other:?}"),
            }
        }
        assert!(sizes.is_empty());
    }

    #[test]
    fn halves_can_be_left_out_and_everything_can_count() {
        let (measured, _) = run(",bias_create=off,bias_read=10");
        assert_eq!((measured.operations, count(&measured, Op::Read)), (400, 400));
        let (measured, _) = run(",bias_read=off,bias_create=10,time=all");
        assert_eq!((count(&measured, Op::Create), count(&measured, Op::Unlink)), (450, 450));
    }
}
