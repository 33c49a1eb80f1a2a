//! Replays a trace of system calls ([`crate::trace`]): from a file, or one of those that we recorded.
//!
//! A round makes the files before the trace, replays the whole trace, and removes the rest; the replay alone is the
//! value. Threads of the trace are threads here. A call waits for those before it on other threads that have a handle
//! or a path in common, and all wait for renamed and removed directories. Calls follow each other without the pauses
//! that were recorded, unless `pace=recorded`. Calls that failed when they were recorded and succeed here, and the
//! other way round, are counted; the first round says so on standard error.

mod order;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nacre_engine::size;

use order::{Done, dependencies};

use super::recorder::on_threads;
use super::set::{Buffer, buffer, fill};
use super::{Length, Measured, Op, Recorder, Round, Value, Workload};
use crate::spec::Spec;
use crate::target::{File, Open, Target, create_dir_all, remove_dir_all};
use crate::trace::format::{Call, Trace, What};
use crate::trace::mobibench;
use crate::{Error, say};

/// Where it happens.
const ROOT: &str = "trace";

/// Longer than any trace takes.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// Traces of `scripts/record-traces.sh`.
const RECORDED: [(&str, &str); 4] = [
    ("trace.git", include_str!("../../../traces/git.trace")),
    ("trace.mail", include_str!("../../../traces/mail.trace")),
    ("trace.postgresql", include_str!("../../../traces/postgresql.trace")),
    ("trace.sqlite", include_str!("../../../traces/sqlite.trace")),
];

struct Replay {
    name: String,
    /// The trace to replay, or why it cannot be.
    trace: Result<Trace, String>,
    /// For each call, those on other threads that it waits for.
    after: Vec<Vec<u32>>,
    threads: u32,
    recorded_pace: bool,
    /// Differences are told once.
    told: AtomicBool,
}

pub(super) fn make(spec: &Spec, _scale: f64) -> Result<Box<dyn Workload>, String> {
    let recorded = RECORDED.iter().find(|(name, _)| *name == spec.name());
    let from = if recorded.is_some() { String::new() } else { spec.text("from", "")? };
    let one = spec.word("threads", "trace", &[("trace", false), ("1", true)])?;
    let recorded_pace = spec.word("pace", "fast", &[("fast", false), ("recorded", true)])?;
    let trace = if let Some((_, text)) = recorded {
        Ok(parse(text)?)
    } else if from.is_empty() {
        Err(format!("{}: give the trace with from=FILE", spec.name()))
    } else {
        let text = fs::read_to_string(&from).map_err(|error| format!("{from}: {error}"))?;
        Ok(parse(&text).map_err(|why| format!("{from}: {why}"))?)
    };
    let mut replay = Replay {
        name: spec.name().to_owned(),
        trace,
        after: Vec::new(),
        threads: 1,
        recorded_pace,
        told: AtomicBool::new(false),
    };
    if let Ok(trace) = &mut replay.trace {
        if one {
            trace.calls.iter_mut().for_each(|call| call.thread = 0);
        }
        replay.threads = trace.threads();
        replay.after = dependencies(trace, replay.threads);
    }
    Ok(Box::new(replay))
}

/// A trace of our own format, or of MobiBench's.
fn parse(text: &str) -> Result<Trace, String> {
    if mobibench::is_one(text) { Ok(mobibench::convert(text)?.trace) } else { Trace::parse(text) }
}

/// One replay.
struct Run<'a> {
    work: &'a Replay,
    trace: &'a Trace,
    target: &'a dyn Target,
    /// The files behind the handles.
    files: Vec<Mutex<Option<Box<dyn File>>>>,
    /// How far each thread is.
    done: Vec<Done>,
    failed: AtomicBool,
    begin: Instant,
    /// Calls that failed here only, and there only.
    differ: [AtomicU64; 2],
}

impl Run<'_> {
    fn thread(&self, thread: u32, recorder: &mut Recorder) -> Result<(), Error> {
        let largest = |call: &Call| match call.what {
            What::Read { len, .. } | What::Write { len, .. } | What::Append { len, .. } => len as usize,
            _ => 0,
        };
        let mine = || self.trace.calls.iter().enumerate().filter(|(_, call)| call.thread == thread);
        let mut data = buffer(mine().map(|(_, call)| largest(call)).max().unwrap_or(0));
        recorder.skip();
        for (at, call) in mine() {
            let mut waited = false;
            for &before in &self.work.after[at] {
                waited |= self.done[self.trace.calls[before as usize].thread as usize].wait(before);
            }
            // A thread that gave up has waked all up.
            if self.failed.load(Ordering::Relaxed) {
                self.done[thread as usize].reach(u64::MAX);
                return Ok(());
            }
            if self.work.recorded_pace {
                let due = Duration::from_micros(call.micros);
                std::thread::sleep(due.saturating_sub(self.begin.elapsed()));
                waited = true;
            }
            if waited {
                recorder.wait();
            }
            let result = self.call(&call.what, &mut data, recorder);
            if result.is_err() != call.failed {
                self.differ[usize::from(call.failed)].fetch_add(1, Ordering::Relaxed);
            }
            if let Err(error) = result {
                // A full device measures nothing.
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::ReadOnlyFilesystem) {
                    self.failed.store(true, Ordering::Relaxed);
                    self.done[thread as usize].reach(u64::MAX);
                    return Err(format!("call {}: {error}", at + 1).into());
                }
                recorder.lap(Op::Other);
            }
            self.done[thread as usize].reach(at as u64 + 1);
        }
        Ok(())
    }

    /// Calls `body` with the file that is open under a handle, if its open succeeded.
    fn with(&self, handle: u32, body: impl FnOnce(&dyn File) -> io::Result<()>) -> io::Result<()> {
        let file = self.files[handle as usize].lock().map_err(|_| io::ErrorKind::Other)?;
        body(&**file.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?)
    }

    /// Makes a call, and takes its time where it succeeds.
    fn call(&self, what: &What, data: &mut Buffer, recorder: &mut Recorder) -> io::Result<()> {
        let below = |path: &Path| -> PathBuf {
            if path == Path::new(".") { ROOT.into() } else { Path::new(ROOT).join(path) }
        };
        let target = self.target;
        match what {
            What::Open { handle, how, path } => {
                let path = below(path);
                recorder.wait();
                let file = target.open(&path, *how)?;
                recorder.lap(if how.create { Op::Create } else { Op::Open });
                *self.files[*handle as usize].lock().map_err(|_| io::ErrorKind::Other)? = Some(file);
            }
            What::Close { handle } => {
                let file = self.files[*handle as usize].lock().map_err(|_| io::ErrorKind::Other)?.take();
                let there = file.is_some();
                drop(file);
                if !there {
                    return Err(io::Error::from_raw_os_error(libc::EBADF));
                }
                recorder.lap(Op::Close);
            }
            What::Read { handle, offset, len } => {
                let mut count = 0;
                self.with(*handle, |file| {
                    count = file.read_at(&mut data[..*len as usize], *offset)?;
                    Ok(())
                })?;
                recorder.lap_read(Op::Read, count);
            }
            What::Write { handle, offset, len } => {
                self.with(*handle, |file| file.write_at(&data[..*len as usize], *offset))?;
                recorder.lap_write(Op::Write, *len as usize);
            }
            What::Append { handle, len } => {
                self.with(*handle, |file| file.append(&data[..*len as usize]))?;
                recorder.lap_write(Op::Append, *len as usize);
            }
            What::Sync { handle, data_only } => {
                self.with(*handle, |file| file.sync(*data_only))?;
                recorder.lap(Op::Sync);
            }
            What::SetLen { handle, size } => {
                self.with(*handle, |file| file.set_len(*size))?;
                recorder.lap(Op::Other);
            }
            What::Allocate { handle, offset, len } => {
                self.with(*handle, |file| file.allocate(*offset, *len))?;
                recorder.lap(Op::Other);
            }
            What::Size { handle } => {
                self.with(*handle, |file| file.size().map(drop))?;
                recorder.lap(Op::Stat);
            }
            other => self.by_path(other, below, recorder)?,
        }
        Ok(())
    }

    fn by_path(
        &self,
        what: &What,
        below: impl Fn(&Path) -> PathBuf,
        recorder: &mut Recorder,
    ) -> io::Result<()> {
        let [Some(path), to] = what.paths() else { return Ok(()) };
        let (path, to, target) = (below(path), to.map(below).unwrap_or_default(), self.target);
        recorder.wait();
        let op = match what {
            What::Truncate { size, .. } => {
                target.open(&path, Open::WRITE)?.set_len(*size).map(|()| Op::Other)
            }
            What::Stat { .. } => target.stat(&path).map(|_| Op::Stat),
            What::ReadDir { .. } => target.read_dir(&path, &mut |_| {}).map(|()| Op::ReadDir),
            What::SyncDir { .. } => target.sync_dir(&path).map(|()| Op::Sync),
            What::Mkdir { .. } => target.create_dir(&path).map(|()| Op::Mkdir),
            What::Rmdir { .. } => target.remove_dir(&path).map(|()| Op::Other),
            What::Unlink { .. } => target.remove_file(&path).map(|()| Op::Unlink),
            What::Rename { .. } => target.rename(&path, &to).map(|()| Op::Rename),
            What::Link { .. } => target.link(&path, &to).map(|()| Op::Other),
            What::Symlink { target: text, .. } => target.symlink(text, &path).map(|()| Op::Other),
            What::Chmod { mode, .. } => target.set_mode(&path, *mode).map(|()| Op::Other),
            _ => return Ok(()),
        }?;
        recorder.lap(op);
        Ok(())
    }
}

impl Replay {
    fn trace(&self) -> Result<&Trace, Error> {
        self.trace.as_ref().map_err(|why| why.clone().into())
    }

    /// Makes the files before the trace.
    fn restore(&self, target: &dyn Target) -> Result<(), Error> {
        let trace = self.trace()?;
        remove_dir_all(target, ROOT.as_ref())?;
        create_dir_all(target, ROOT.as_ref())?;
        for dir in &trace.dirs {
            create_dir_all(target, &Path::new(ROOT).join(dir))?;
        }
        for (path, size) in &trace.files {
            fill(target, &Path::new(ROOT).join(path), *size)?;
        }
        Ok(target.sync()?)
    }
}

impl Workload for Replay {
    fn describe(&self) -> String {
        match &self.trace {
            Err(why) => why.clone(),
            Ok(trace) => {
                let before: u64 = trace.files.iter().map(|(_, size)| size).sum();
                let pace = if self.recorded_pace { "at the recorded pace" } else { "without pauses" };
                format!(
                    "{}: {} on {} {pace}, {} of {} before",
                    self.name,
                    size::count(trace.calls.len() as u64, "call", "calls"),
                    size::count(self.threads.into(), "thread", "threads"),
                    size::count(trace.files.len() as u64, "file", "files"),
                    size::print(before)
                )
            }
        }
    }

    fn bytes(&self) -> u64 {
        let Ok(trace) = &self.trace else { return 1 };
        let before: u64 = trace.files.iter().map(|(_, size)| size.next_multiple_of(4096)).sum();
        let grown = trace.calls.iter().map(|call| match call.what {
            What::Write { len, .. } | What::Append { len, .. } | What::Allocate { len, .. } => {
                len.next_multiple_of(4096)
            }
            _ => 0,
        });
        before + grown.sum::<u64>() + 4096
    }

    fn files(&self) -> u64 {
        let Ok(trace) = &self.trace else { return 1 };
        let made = trace.calls.iter().filter(|call| match &call.what {
            What::Open { how, .. } => how.create,
            What::Mkdir { .. } | What::Symlink { .. } | What::Link { .. } => true,
            _ => false,
        });
        (trace.dirs.len() + trace.files.len() + made.count() + 1) as u64
    }

    fn value(&self) -> Value {
        Value::Seconds
    }

    fn length(&self) -> Length {
        Length::Whole
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        self.restore(target)
    }

    fn round(&self, target: &dyn Target, _round: Round) -> Result<Measured, Error> {
        let trace = self.trace()?;
        self.restore(target)?;
        let run = Run {
            work: self,
            trace,
            target,
            files: (0..trace.handles()).map(|_| Mutex::new(None)).collect(),
            done: (0..self.threads).map(|_| Done::default()).collect(),
            failed: AtomicBool::new(false),
            begin: Instant::now(),
            differ: Default::default(),
        };
        let threads = u64::from(self.threads);
        let mut measured =
            on_threads(threads, FOREVER, |thread, recorder| run.thread(thread as u32, recorder))?;
        let [here, there] = run.differ.map(AtomicU64::into_inner);
        measured.told = [("trace.failed", here), ("trace.succeeded", there)]
            .map(|(name, count)| (name.to_owned(), count as f64))
            .into();
        if here + there > 0 && !self.told.swap(true, Ordering::Relaxed) {
            say::note(format_args!(
                "{}: {} here, but succeeded when recorded; {} here, but failed then",
                self.name,
                size::count(here, "call fails", "calls fail"),
                size::count(there, "call succeeds", "calls succeed")
            ));
        }
        // Files that the trace left open are closed before they are removed.
        drop(run.files);
        remove_dir_all(target, ROOT.as_ref())?;
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::RECORDED;
    use crate::trace::format::Trace;
    use crate::workload::tests::targets;
    use crate::workload::{Op, Round, make};

    const ROUND: Round = Round { number: 0, seed: 1, slice: Duration::ZERO };

    #[test]
    fn a_trace_is_replayed_on_its_threads_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let text = "nacre-trace 1\nfile 5000 old\n\
            0 0 mkdir d\n0 1 open 0 wcs d/f\n0 2 write 0 4096 100\n0 1 fsync 0\n0 1 close 0\n\
            0 2 rename d/f g\n0 0 unlink! d/f\n0 1 open 1 rw old\n0 2 read 1 4000 4000\n0 2 readdir .\n\
            0 0 rmdir d\n0 1 symlink g s\n0 2 chmod 600 g\n0 0 syncdir .\n0 0 link g h\n0 1 truncate 7 h\n\
            0 1 fallocate 1 0 1\n0 0 stat! d\n0 2 mkdir left\n";
        let path = dir.path().join("x.trace");
        std::fs::write(&path, text).unwrap();
        for threads in ["trace", "1"] {
            let spec = format!("trace.file,from={},threads={threads}", path.display());
            let work = make(&spec.parse().unwrap(), 1.0).unwrap();
            let dir = tempfile::tempdir().unwrap();
            for target in targets(&dir) {
                work.prepare(&*target).unwrap();
                let measured = work.round(&*target, ROUND).unwrap();
                assert_eq!((measured.read, measured.written), (1000, 100));
                assert_eq!(measured.operations, 19);
                assert_eq!(
                    measured.told,
                    [("trace.failed".to_owned(), 0.0), ("trace.succeeded".to_owned(), 0.0)].into()
                );
                let writes = measured.times.iter().find(|(op, _)| *op == Op::Write).unwrap().1.len();
                assert_eq!(writes, 1);
                assert!(target.stat("trace".as_ref()).is_err());
            }
        }
    }

    #[test]
    fn what_was_recorded_is_replayed_as_it_was() {
        for (name, text) in RECORDED {
            let trace = Trace::parse(text).unwrap_or_else(|why| panic!("{name}: {why}"));
            assert_eq!(trace.print(), text, "{name}");
            for threads in ["trace", "1"] {
                let work = make(&format!("{name},threads={threads}").parse().unwrap(), 1.0).unwrap();
                let dir = tempfile::tempdir().unwrap();
                for target in targets(&dir) {
                    work.prepare(&*target).unwrap();
                    let measured = work.round(&*target, ROUND).unwrap();
                    assert_eq!(measured.operations, trace.calls.len() as u64, "{name}");
                    assert!(measured.told.values().all(|count| *count == 0.0), "{name}: {:?}", measured.told);
                }
            }
        }
    }

    #[test]
    fn a_call_that_fails_elsewhere_only_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.trace");
        let text = "nacre-trace 1\n0 0 mkdir! d\n0 1 unlink a\n0 1 rmdir d\n0 1 stat! b\n0 0 open! 0 rwc b\n0 1 stat b\n0 0 unlink c\n";
        std::fs::write(&path, text).unwrap();
        let work = make(&format!("trace.file,from={}", path.display()).parse().unwrap(), 1.0).unwrap();
        for target in targets(&dir) {
            work.prepare(&*target).unwrap();
            let told = work.round(&*target, ROUND).unwrap().told;
            assert_eq!((told["trace.failed"], told["trace.succeeded"]), (2.0, 2.0));
        }
    }

    #[test]
    fn a_trace_that_is_not_there_says_how_to_give_it() {
        let work = make(&"trace.facebook".parse().unwrap(), 1.0).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let why = work.prepare(&*targets(&dir)[1]).unwrap_err().to_string();
        assert!(why.contains("from=FILE"), "{why}");
        assert!(make(&"trace.file,from=/none".parse().unwrap(), 1.0).is_err());
    }
}
