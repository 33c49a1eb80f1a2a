//! The process that works on one target.
//!
//! It reads one [`Order`] a line from standard input and answers each with one [`Answer`] a line on standard output;
//! it ends when its input ends. Standard error of the target goes to the terminal.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::stop::{Stop, ignore_signals};
use crate::place::Scratch;
use crate::target::command::mount_time;
use crate::target::plan::Opening;
use crate::target::watch::{Sums, Synced, Watched};
use crate::target::{Open, Target, Traffic};
use crate::workload::program::child::{descendants, tie, wait_for_end};
use crate::workload::recorder::{Encoded, Times};
use crate::workload::{self, Measured, Reopening, Round};
use crate::{Error, counters, nacre_program};

/// An order to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Open the target and prepare the workload on it.
    Prepare {
        /// Where the target is.
        opening: Opening,
        /// The workload, with its parameters.
        workload: String,
        /// Its sizes are multiplied by this.
        scale: f64,
        /// Count the synced bytes.
        watch: bool,
    },
    /// Close the target, and open it with empty caches.
    Empty,
    /// Open a target once more, change it, and wait to be killed.
    Touch {
        /// Where the target is.
        opening: Opening,
    },
    /// Run a round.
    Run {
        /// Its number.
        number: u64,
        /// The seed of the run.
        seed: u64,
        /// How long, where the workload runs in slices.
        slice: Duration,
        /// At least so many bytes are to be written, and then everything synchronised, which counts.
        flush: Option<u64>,
    },
}

/// The answer to an order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is prepared, or its caches are empty.
    Ready,
    /// A round was run.
    Ran(Box<Ran>),
    /// It could not; it ends.
    Failed(String),
}

/// A round, as it is sent.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ran {
    operations: u64,
    read: u64,
    written: u64,
    nanos: f64,
    busy: f64,
    times: Encoded,
    told: BTreeMap<String, f64>,
    /// Processor time of the worker, in nanoseconds, its threads together.
    pub cpu: u64,
    /// Bytes that reached media, where the worker can tell.
    pub traffic: Option<Traffic>,
    /// How often the scheduler took the core away from the thread that worked.
    pub disturbed: u64,
    /// Bytes written and synced, where they were to be counted.
    pub synced: Option<Synced>,
}

impl Ran {
    /// The measurements of the round.
    pub fn measured(&self) -> Measured {
        Measured {
            operations: self.operations,
            read: self.read,
            written: self.written,
            nanos: self.nanos,
            busy: self.busy,
            times: Times::decode(&self.times),
            told: self.told.clone(),
        }
    }
}

/// The whole life of a worker.
pub fn work() -> Result<(), Error> {
    ignore_signals();
    let (mut state, mut touched) = (None, Vec::new());
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            Order::Prepare { opening, workload, scale, watch } => prepare(&opening, &workload, scale, watch)
                .map(|made| {
                    state = Some(made);
                    Answer::Ready
                }),
            Order::Empty => match state.take().map(Made::emptied) {
                Some(made) => made.map(|made| {
                    state = Some(made);
                    Answer::Ready
                }),
                None => Err("nothing is prepared".into()),
            },
            Order::Touch { opening } => touch(&opening).map(|target| {
                touched.push(target);
                Answer::Ready
            }),
            Order::Run { number, seed, slice, flush } => match state.take().map(Made::ready) {
                Some(made) => made.and_then(|(made, took)| {
                    let ran = made.run(Round { number, seed, slice }, flush, took);
                    state = Some(made);
                    Ok(Answer::Ran(Box::new(ran?)))
                }),
                None => Err("nothing is prepared".into()),
            },
        };
        let answer = answer.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

/// The prepared workload.
struct Made {
    opening: Opening,
    target: Box<dyn Target>,
    workload: Box<dyn workload::Workload>,
    sums: Option<Arc<Sums>>,
}

fn prepare(opening: &Opening, workload: &str, scale: f64, watch: bool) -> Result<Made, Error> {
    let workload = workload::make(&workload.parse()?, scale)?;
    let (target, sums) = watched(opening.open()?, watch);
    workload.prepare(&*target)?;
    Ok(Made { opening: opening.clone(), target, workload, sums })
}

/// Files that are made before a process is killed.
const TOUCHED: u64 = 16;

/// A target that was opened once more and changed.
fn touch(opening: &Opening) -> Result<Box<dyn Target>, Error> {
    let target = opening.open_again()?;
    for number in 0..TOUCHED {
        let file = target.open(format!("touched{number}").as_ref(), Open::CREATE)?;
        file.write_at(&[number as u8; 4096], 0)?;
    }
    Ok(target)
}

/// Has another process open a closed target and change it, and kills that process (SIGKILL).
fn kill_in_use(program: &Path, opening: &Opening) -> Result<(), Error> {
    let mut other = Worker::start(program)?;
    other.tell(&Order::Touch { opening: opening.clone() }, &Stop::default())?;
    // It is killed as it goes away.
    drop(other);
    Ok(())
}

/// A target as it is, or wrapped in one that sees synced bytes.
fn watched(target: Box<dyn Target>, watch: bool) -> (Box<dyn Target>, Option<Arc<Sums>>) {
    if !watch {
        return (target, None);
    }
    let watched = Watched::new(target);
    let sums = watched.sums();
    (Box::new(watched), Some(sums))
}

impl Made {
    /// The same with empty caches: closed, and open again.
    fn emptied(self) -> Result<Made, Error> {
        let Made { opening, target, workload, sums } = self;
        target.close()?;
        let (target, sums) = watched(opening.open_again()?, sums.is_some());
        Ok(Made { opening, target, workload, sums })
    }

    /// The same for a round. If the workload is about that it is opened again, with the time that this took.
    fn ready(self) -> Result<(Made, Option<Duration>), Error> {
        let Some(Reopening { after_kill, by_command }) = self.workload.reopens() else {
            return Ok((self, None));
        };
        if let Opening::Directory(path) = &self.opening {
            let path = path.display();
            return Err(format!("{path}: only a preset in the process can be opened again").into());
        }
        let program = nacre_program()?;
        let Made { opening, target, workload, sums } = self;
        target.close()?;
        if after_kill {
            kill_in_use(&program, &opening)?;
        }
        let command = by_command.then(|| mount_time(&program, &opening)).transpose()?;
        let (target, sums) = watched(opening.open_again()?, sums.is_some());
        let took = command.or_else(|| target.mounted_in());
        Ok((Made { opening, target, workload, sums }, took))
    }

    /// Runs a round, on a target that was opened again in some time or stayed open.
    fn run(&self, round: Round, flush: Option<u64>, took: Option<Duration>) -> Result<Ran, Error> {
        // The question for the traffic takes time that is not the workload's.
        let (traffic, before) = (self.target.traffic(), usage());
        let synced = self.sums.as_ref().map(|sums| sums.get());
        let measured = match (took, flush) {
            (Some(took), _) => self.workload.opened(&*self.target, round, took)?,
            (None, None) => self.workload.round(&*self.target, round)?,
            (None, Some(least)) => self.flushed(round, least)?,
        };
        let after = usage();
        let traffic = self.target.traffic().map(|now| counters::difference(traffic.unwrap_or_default(), now));
        let synced = self.sums.as_ref().zip(synced).map(|(sums, then)| {
            let now = sums.get();
            Synced { written: now.written - then.written, synced: now.synced - then.synced }
        });
        Ok(Ran {
            operations: measured.operations,
            read: measured.read,
            written: measured.written,
            nanos: measured.nanos,
            busy: measured.busy,
            times: measured.times.encode(),
            told: measured.told,
            cpu: after.0.saturating_sub(before.0),
            traffic,
            disturbed: after.1.saturating_sub(before.1),
            synced,
        })
    }

    /// A round that is repeated until so many bytes are written, and the time until all that is durable.
    fn flushed(&self, round: Round, least: u64) -> Result<Measured, Error> {
        let mut all = self.workload.round(&*self.target, round)?;
        while all.written < least && !round.slice.is_zero() {
            // Other random numbers than those of any other round.
            let number = round.number | all.operations << 32;
            let more = self.workload.round(&*self.target, Round { number, ..round })?;
            if more.written == 0 {
                break;
            }
            all.append(&more);
        }
        let begin = Instant::now();
        self.target.sync()?;
        all.wait(begin.elapsed());
        Ok(all)
    }
}

/// Processor time in nanoseconds, that of programs that ended among it, and how often the scheduler took the core away.
fn usage() -> (u64, u64) {
    let of = |who: i32| {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call fills a struct of that type, and all zeros are one, too.
        unsafe {
            libc::getrusage(who, usage.as_mut_ptr());
            usage.assume_init()
        }
    };
    let (own, programs) = (of(libc::RUSAGE_SELF), of(libc::RUSAGE_CHILDREN));
    let nanos = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    let all = [own.ru_utime, own.ru_stime, programs.ru_utime, programs.ru_stime];
    (all.map(nanos).iter().sum(), own.ru_nivcsw as u64)
}

/// A running worker, seen from outside. It is killed when this value goes away.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<io::Result<String>>,
}

impl Worker {
    /// Starts one: `program bench worker`.
    pub fn start(program: &Path) -> Result<Worker, Error> {
        let mut command = Command::new(program);
        // When this process dies, it and the programs that it runs do, too.
        tie(&mut command, libc::SIGKILL);
        let mut child =
            command.args(["bench", "worker"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let (send, answers) = channel();
        // It ends when the worker's output does.
        std::thread::spawn(move || {
            for line in output.lines() {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Worker { child, orders, answers })
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order and waits for the answer. None when the run is to end.
    pub fn tell(&mut self, order: &Order, stop: &Stop) -> Result<Option<Answer>, Error> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        if self.orders.write_all(&line).and_then(|()| self.orders.flush()).is_err() {
            return Err("the process that works on it ended".into());
        }
        loop {
            match self.answers.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => match serde_json::from_str(&line?)? {
                    Answer::Failed(why) => return Err(why.into()),
                    answer => return Ok(Some(answer)),
                },
                Err(RecvTimeoutError::Timeout) if stop.is_set() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    return Err(format!("the process that works on it ended with {status}").into());
                }
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Its target is thrown away, so that nothing is lost by ending it at once. Programs that it runs are told by
        // the kernel; while one of them has a file open, the target could not be taken down.
        let programs = descendants(self.process());
        let _ = self.child.kill();
        let _ = self.child.wait();
        wait_for_end(&programs);
        Scratch::remove(self.process());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use nacre::TierSettings;

    use super::prepare;
    use crate::place::Workplace;
    use crate::target::plan::{Ground, Load, Opening, Plan};
    use crate::target::{Open, Target};
    use crate::workload::{self, Round};

    /// What was read from the disk once is read from there again, and is the same.
    #[test]
    fn emptied_caches_of_a_tier_have_nothing_and_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tier = dir.path().join("tier");
        std::fs::File::create(&tier).unwrap().set_len(64 << 20).unwrap();
        let opening = Opening::Library {
            device: dir.path().join("pm"),
            size: 64 << 20,
            preset: "tpfs".to_owned(),
            emulate: None,
            buffer: Some(8 << 20),
            name_index: None,
            tier: Some(tier),
            tier_settings: Box::new(TierSettings::default()),
        };
        assert!(opening.has_cache());
        let mut made = prepare(&opening, "micro.read,file=4m,io=1m", 1.0, true).unwrap();
        let path = Path::new("micro0");
        assert_eq!(made.target.move_file(path, Some(1)).unwrap(), 4 << 20);
        let read = |target: &dyn Target| {
            let before = target.below().unwrap().unwrap().moved;
            let mut data = vec![0; 4 << 20];
            let count = target.open(path, Open::READ).unwrap().read_at(&mut data, 0).unwrap();
            (target.below().unwrap().unwrap().moved - before, count, data)
        };
        let (_, count, data) = read(&*made.target);
        assert_eq!((count, read(&*made.target).0), (4 << 20, 0), "it is in DRAM");
        made = made.emptied().unwrap();
        let (fetched, count, again) = read(&*made.target);
        assert!(fetched >= 4 << 20, "{fetched}");
        assert!(count == 4 << 20 && again == data && made.sums.is_some());
    }

    #[test]
    fn a_round_that_is_flushed_writes_enough_and_leaves_nothing_behind() {
        const WORK: &str = "filebench.fileserver,files=50,threads=1";
        let own = tempfile::tempdir().unwrap();
        let place = Workplace::new_in(own.path(), false).unwrap();
        let work = workload::make(&WORK.parse().unwrap(), 1.0).unwrap();
        let ground = Ground {
            place: &place,
            load: Load { bytes: work.bytes(), files: work.files() },
            emulate: None,
            disk: Path::new("/tmp"),
            program: Path::new("nacre"),
        };
        let plan = Plan::parse("preset:hinfs,buffer=4m,emulate=latency=50").unwrap();
        let prepared = plan.set_up(&ground).unwrap();
        let made = prepare(&prepared.opening, WORK, 1.0, false).unwrap();
        let round = Round { number: 3, seed: 1, slice: Duration::from_millis(1) };
        let short = made.run(round, None, None).unwrap();
        let long = made.run(round, Some(12 << 20), None).unwrap();
        assert!(short.written < 12 << 20 && long.written >= 12 << 20, "{} {}", short.written, long.written);
        assert!(long.operations > short.operations && long.busy >= long.nanos * 0.99, "{long:?}");
        let after = made.target.traffic().unwrap();
        made.target.sync().unwrap();
        assert_eq!(made.target.traffic().unwrap().bytes, after.bytes, "nothing was left to write");
    }
}
