//! The four personalities of filebench that the papers use, as its own definitions have them. Each thread runs the
//! operations of one in a loop, on files that it takes from a common set. The value is filebench's: operations a
//! second, where opening, reading, writing, syncing, closing and removing a file count as one each.
//!
//! Each loop of varmail puts a mail of one append in the place of another. So mails of a larger size are gone after as
//! many loops as there are mails. `aged=yes` begins there: a short run would otherwise measure more of the large ones
//! the slower a target is.
//!
//! Differences: a log that all threads append to begins anew at 64 MiB, because it would otherwise grow as long as a
//! run lasts.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nacre_engine::size;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::recorder::on_threads;
use super::set::{FileSet, buffer};
use super::{Measured, Op, Recorder, Round, Value, Workload, scaled};
use crate::Error;
use crate::spec::Spec;
use crate::target::{File, Open, Target};

/// The log of the web servers.
const LOG: &str = "weblog";
/// It begins anew at this size, which is scaled as the files are.
const LOG_LIMIT: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Personality {
    FileServer,
    WebServer,
    WebProxy,
    VarMail,
}

struct Filebench {
    personality: Personality,
    set: FileSet,
    mean: u64,
    io: u64,
    append: u64,
    log_limit: u64,
    threads: u64,
    /// Mails were replaced before it begins.
    aged: bool,
    pool: Mutex<Pool>,
}

/// Which files are there, and which could be made. A file that a thread works on is in neither.
#[derive(Debug, Default)]
struct Pool {
    there: Vec<u64>,
    absent: Vec<u64>,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    // Files, width of directories, mean size, threads: of filebench's own definitions.
    let (personality, files, width, mean, threads) = match spec.name() {
        "filebench.fileserver" => (Personality::FileServer, 10_000, 20, "128k", 50),
        "filebench.webserver" => (Personality::WebServer, 1000, 20, "16k", 100),
        "filebench.webproxy" => (Personality::WebProxy, 10_000, 1_000_000, "16k", 100),
        _ => (Personality::VarMail, 1000, 1_000_000, "16k", 16),
    };
    let threads = spec.number("threads", threads, 1)?;
    let files = scaled(spec.number("files", files, 1)?, scale, 4 * threads);
    let mean = spec.size("size", mean)?;
    let width = spec.number("width", width, 2)?;
    let (io, append) = (spec.size("io", "1m")?, spec.size("append", "16k")?);
    if io == 0 || append == 0 || mean == 0 {
        return Err(format!("{}: size, io and append are at least one byte", spec.name()));
    }
    let aged =
        personality == Personality::VarMail && spec.word("aged", "no", &[("no", false), ("yes", true)])?;
    let set = FileSet::new("files", files, width, mean);
    let log_limit = scaled(LOG_LIMIT, scale, 4 * threads * append);
    let pool = Mutex::default();
    Ok(Box::new(Filebench { personality, set, mean, io, append, log_limit, threads, aged, pool }))
}

/// One thread at work.
struct Worker<'a> {
    work: &'a Filebench,
    target: &'a dyn Target,
    recorder: &'a mut Recorder,
    random: SmallRng,
    data: super::set::Buffer,
    read: super::set::Buffer,
}

impl Worker<'_> {
    /// Takes a file that is there, to give it back with [`Self::give`].
    fn take(&mut self) -> Result<u64, Error> {
        let mut pool = self.work.pool.lock().map_err(|_| "another thread failed")?;
        let count = pool.there.len();
        if count == 0 {
            return Err("no file is left to work on; more files, or fewer threads".into());
        }
        Ok(pool.there.swap_remove(self.random.random_range(0..count)))
    }

    fn give(&self, file: u64, there: bool) -> Result<(), Error> {
        let mut pool = self.work.pool.lock().map_err(|_| "another thread failed")?;
        if there {
            pool.there.push(file)
        } else {
            pool.absent.push(file)
        }
        Ok(())
    }

    fn open(&mut self, file: u64, how: Open) -> Result<Box<dyn File>, Error> {
        let file = self.target.open(&self.work.set.path(file), how)?;
        self.recorder.lap(if how.create { Op::Create } else { Op::Open });
        Ok(file)
    }

    fn close(&mut self, file: Box<dyn File>) {
        drop(file);
        self.recorder.lap(Op::Close);
    }

    fn read_whole(&mut self, file: &dyn File) -> Result<(), Error> {
        let (mut at, len) = (0, self.read.len());
        loop {
            let count = file.read_at(&mut self.read, at)?;
            at += count as u64;
            if count < len {
                break;
            }
        }
        self.recorder.lap_read(Op::Read, at as usize);
        Ok(())
    }

    fn write_whole(&mut self, file: &dyn File, size: u64) -> Result<(), Error> {
        let mut at = 0;
        while at < size {
            let len = self.data.len().min((size - at) as usize);
            file.write_at(&self.data[..len], at)?;
            at += len as u64;
        }
        self.recorder.lap_write(Op::Write, size as usize);
        Ok(())
    }

    /// Appends up to so many bytes as a run of the benchmark appends.
    fn append(&mut self, file: &dyn File) -> Result<(), Error> {
        let len = self.random.random_range(1..=self.work.append) as usize;
        for piece in self.data[..len.min(self.data.len())].chunks(self.work.io as usize) {
            file.append(piece)?;
        }
        self.recorder.lap_write(Op::Append, len);
        Ok(())
    }

    fn sync(&mut self, file: &dyn File) -> Result<(), Error> {
        file.sync(false)?;
        self.recorder.lap(Op::Sync);
        Ok(())
    }

    /// Removes a file that is there; it is the next to be made.
    fn remove(&mut self) -> Result<(), Error> {
        let file = self.take()?;
        self.target.remove_file(&self.work.set.path(file))?;
        self.recorder.lap(Op::Unlink);
        self.give(file, false)
    }

    /// Takes a file that is not there, or one that is when all are.
    fn absent(&mut self) -> Result<u64, Error> {
        let absent = {
            let mut pool = self.work.pool.lock().map_err(|_| "another thread failed")?;
            let count = pool.absent.len();
            (count > 0).then(|| pool.absent.swap_remove(self.random.random_range(0..count)))
        };
        match absent {
            Some(file) => Ok(file),
            None => self.take(),
        }
    }

    fn read_one(&mut self) -> Result<(), Error> {
        let number = self.take()?;
        let file = self.open(number, Open::READ)?;
        self.read_whole(&*file)?;
        self.close(file);
        self.give(number, true)
    }

    fn append_log(&mut self, log: &dyn File) -> Result<(), Error> {
        self.append(log)?;
        if log.size()? > self.work.log_limit {
            log.set_len(0)?;
        }
        self.recorder.skip();
        Ok(())
    }

    fn file_server(&mut self) -> Result<(), Error> {
        let number = self.absent()?;
        let file = self.open(number, Open::CREATE)?;
        self.write_whole(&*file, self.work.set.size(number))?;
        self.close(file);
        self.give(number, true)?;

        let number = self.take()?;
        let file = self.open(number, Open { append: true, ..Open::WRITE })?;
        self.append(&*file)?;
        self.close(file);
        self.give(number, true)?;

        self.read_one()?;
        self.remove()?;
        let number = self.take()?;
        self.target.stat(&self.work.set.path(number))?;
        self.recorder.lap(Op::Stat);
        self.give(number, true)
    }

    fn web_server(&mut self, log: &dyn File) -> Result<(), Error> {
        (0..10).try_for_each(|_| self.read_one())?;
        self.append_log(log)
    }

    fn web_proxy(&mut self, log: &dyn File) -> Result<(), Error> {
        self.remove()?;
        let number = self.absent()?;
        let file = self.open(number, Open { append: true, ..Open::CREATE })?;
        self.append(&*file)?;
        self.close(file);
        self.give(number, true)?;
        (0..5).try_for_each(|_| self.read_one())?;
        self.append_log(log)
    }

    /// Data appended to a mail is durable before another thread can take the mail.
    fn deliver(&mut self, number: u64, file: Box<dyn File>) -> Result<(), Error> {
        self.append(&*file)?;
        self.sync(&*file)?;
        self.close(file);
        self.give(number, true)
    }

    /// The writes of a loop of varmail: a mail goes and another one comes, and one, which may be read first, grows.
    fn write_mails(&mut self, reads: bool) -> Result<(), Error> {
        self.remove()?;
        let number = self.absent()?;
        let file = self.open(number, Open { append: true, ..Open::CREATE })?;
        self.deliver(number, file)?;

        let number = self.take()?;
        let file = self.open(number, Open { read: reads, append: true, ..Open::WRITE })?;
        if reads {
            self.read_whole(&*file)?;
        }
        self.deliver(number, file)
    }

    fn var_mail(&mut self) -> Result<(), Error> {
        self.write_mails(true)?;
        self.read_one()
    }
}

impl Filebench {
    fn worker<'a>(&'a self, target: &'a dyn Target, seed: u64, recorder: &'a mut Recorder) -> Worker<'a> {
        Worker {
            work: self,
            target,
            random: SmallRng::seed_from_u64(seed),
            data: buffer(self.io.max(self.append) as usize),
            read: buffer(self.io as usize),
            recorder,
        }
    }
}

impl Workload for Filebench {
    fn describe(&self) -> String {
        let name = match self.personality {
            Personality::FileServer => "fileserver",
            Personality::WebServer => "webserver",
            Personality::WebProxy => "webproxy",
            Personality::VarMail => "varmail",
        };
        format!(
            "filebench {name}: {} files of {} (mean){}, reads and writes of {}, appends up to {}, {} threads",
            self.set.files(),
            size::print(self.mean),
            if self.aged { " that were replaced by what was appended" } else { "" },
            size::print(self.io),
            size::print(self.append),
            self.threads
        )
    }

    fn bytes(&self) -> u64 {
        // Appends make files longer than they were made, and each takes a block that is not full.
        self.set.files() * (2 * self.mean + self.append + 4096) + 2 * self.log_limit
    }

    fn files(&self) -> u64 {
        2 * self.set.files() + 1
    }

    fn value(&self) -> Value {
        Value::Operations
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        // Fileserver, webproxy and varmail begin with four files in five.
        let share = if self.personality == Personality::WebServer { 1.0 } else { 0.8 };
        self.set.make(target, share)?;
        drop(target.open(Path::new(LOG), Open::CREATE)?);
        let mut pool = Pool::default();
        for number in 0..self.set.files() {
            let path: PathBuf = self.set.path(number);
            if target.stat(&path).is_ok() { pool.there.push(number) } else { pool.absent.push(number) }
        }
        *self.pool.lock().map_err(|_| "another thread failed")? = pool;
        if self.aged {
            let mut recorder = Recorder::start(Duration::ZERO);
            let mut worker = self.worker(target, 0, &mut recorder);
            // Mails are replaced by chance: of those that were there, one in a hundred is left at the most.
            (0..4 * self.set.files()).try_for_each(|_| worker.write_mails(false))?;
        }
        Ok(target.sync()?)
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        on_threads(self.threads, round.slice, |thread, recorder| {
            let log = target.open(Path::new(LOG), Open::APPEND)?;
            let mut worker = self.worker(target, round.seed_of(thread), recorder);
            worker.recorder.skip();
            while worker.recorder.goes_on() {
                match self.personality {
                    Personality::FileServer => worker.file_server()?,
                    Personality::WebServer => worker.web_server(&*log)?,
                    Personality::WebProxy => worker.web_proxy(&*log)?,
                    Personality::VarMail => worker.var_mail()?,
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::LOG;
    use crate::target::{Open, Target};
    use crate::workload::noted::{Call, Noted};
    use crate::workload::{Round, make};

    const READ: Open = Open::READ;
    const CREATE_TO_APPEND: Open = Open { append: true, ..Open::CREATE };

    /// The operations of some rounds that are so short that each is one loop of one thread: what was done, and to which
    /// of the loop's files. A file that is read or written in pieces counts once, with all bytes.
    fn loops(name: &str) -> Vec<Vec<(usize, Call)>> {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        let work = make(&format!("{name},threads=1,files=40,size=20k,io=8k").parse().unwrap(), 1.0).unwrap();
        work.prepare(&target).unwrap();
        let sizes =
            |path: &Path| std::fs::metadata(dir.path().join(path)).map(|file| file.len()).unwrap_or(0);
        let round = |number| {
            target.take();
            let before = sizes(Path::new(LOG));
            let round = Round { number, seed: 1, slice: Duration::from_nanos(1) };
            let measured = work.round(&target, round).unwrap();
            let mut names = Vec::new();
            let mut calls: Vec<(usize, Call)> = Vec::new();
            for (path, call) in target.take() {
                let opens = matches!(call, Call::Open(_));
                if path == Path::new(LOG) && (opens || call == Call::Close) {
                    continue;
                }
                let file = names.iter().position(|name| *name == path).unwrap_or_else(|| {
                    names.push(path.clone());
                    names.len() - 1
                });
                match (calls.last_mut(), call) {
                    (Some((_, Call::Read(0, all))), Call::Read(at, more)) if at > 0 => *all += more,
                    (Some((_, Call::Write(0, all))), Call::Write(at, more)) if at > 0 => *all += more,
                    (Some((_, Call::Append(all))), Call::Append(more)) => *all += more,
                    (_, call) => calls.push((file, call)),
                }
            }
            assert_eq!(measured.operations, calls.len() as u64, "{name}: {calls:?}");
            let sum = |of: fn(&Call) -> usize| calls.iter().map(|(_, call)| of(call)).sum::<usize>() as u64;
            let read = sum(|call| if let Call::Read(_, bytes) = call { *bytes } else { 0 });
            let written = sum(|call| match call {
                Call::Append(bytes) | Call::Write(_, bytes) => *bytes,
                _ => 0,
            });
            assert_eq!((measured.read, measured.written), (read, written), "{name}");
            let logged = sizes(Path::new(LOG)) - before;
            assert_eq!(logged > 0, name.contains("web"), "{name}");
            calls
        };
        (0..20).map(round).collect()
    }

    /// Without the files, and with how much is read and written replaced by nothing.
    fn shape(calls: &[(usize, Call)]) -> Vec<Call> {
        let shape = |call: &Call| match call {
            Call::Read(0, _) => Call::Read(0, 0),
            Call::Write(0, _) => Call::Write(0, 0),
            Call::Append(bytes) => {
                assert!((1..=16 << 10).contains(bytes), "{bytes}");
                Call::Append(0)
            }
            other => other.clone(),
        };
        calls.iter().map(|(_, call)| shape(call)).collect()
    }

    fn read_whole() -> Vec<Call> {
        vec![Call::Open(READ), Call::Read(0, 0), Call::Close]
    }

    #[test]
    fn a_loop_of_the_file_server_is_filebenchs() {
        let append = Open { append: true, ..Open::WRITE };
        let expected = [
            vec![Call::Open(Open::CREATE), Call::Write(0, 0), Call::Close],
            vec![Call::Open(append), Call::Append(0), Call::Close],
            read_whole(),
            vec![Call::Remove, Call::Stat],
        ];
        for calls in loops("filebench.fileserver") {
            assert_eq!(shape(&calls), expected.concat());
        }
    }

    #[test]
    fn a_loop_of_the_web_server_is_filebenchs() {
        let expected = [vec![read_whole(); 10].concat(), vec![Call::Append(0)]].concat();
        for calls in loops("filebench.webserver") {
            assert_eq!(shape(&calls), expected);
        }
    }

    #[test]
    fn a_loop_of_the_web_proxy_is_filebenchs() {
        let made = vec![Call::Remove, Call::Open(CREATE_TO_APPEND), Call::Append(0), Call::Close];
        let expected = [made, vec![read_whole(); 5].concat(), vec![Call::Append(0)]].concat();
        for calls in loops("filebench.webproxy") {
            assert_eq!(shape(&calls), expected);
        }
    }

    #[test]
    fn a_loop_of_the_mail_server_is_filebenchs() {
        let written = [Call::Append(0), Call::Sync { data_only: false }, Call::Close];
        let reopened = Open { read: true, append: true, ..Open::WRITE };
        let expected = [
            vec![Call::Remove, Call::Open(CREATE_TO_APPEND)],
            written.to_vec(),
            vec![Call::Open(reopened), Call::Read(0, 0)],
            written.to_vec(),
            read_whole(),
        ];
        for calls in loops("filebench.varmail") {
            assert_eq!(shape(&calls), expected.concat());
        }
    }

    #[test]
    fn mails_that_are_aged_are_as_long_as_what_is_appended_to_them() {
        let mean = |aged| {
            let dir = tempfile::tempdir().unwrap();
            let target = Noted::new(dir.path());
            let text = format!("filebench.varmail,threads=1,files=50,size=2m,append=2k,aged={aged}");
            let work = make(&text.parse().unwrap(), 1.0).unwrap();
            work.prepare(&target).unwrap();
            let mut sizes = Vec::new();
            let mut directories = vec![dir.path().join("files")];
            while let Some(directory) = directories.pop() {
                for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
                    match entry.metadata().unwrap() {
                        found if found.is_dir() => directories.push(entry.path()),
                        found => sizes.push(found.len()),
                    }
                }
            }
            (sizes.len() as u64, sizes.iter().sum::<u64>() / sizes.len() as u64)
        };
        let ((count, before), (count_after, after)) = (mean("no"), mean("yes"));
        assert_eq!(count, count_after);
        assert!(before > 1 << 20 && (1 << 10..64 << 10).contains(&after), "{before}, then {after}");
    }

    #[test]
    fn a_log_of_the_web_begins_anew_and_files_of_many_threads_are_not_shared() {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        let work = make(&"filebench.webproxy,threads=4,files=64,size=4k".parse().unwrap(), 1.0).unwrap();
        work.prepare(&target).unwrap();
        target.open(LOG.as_ref(), Open::WRITE).unwrap().set_len(super::LOG_LIMIT).unwrap();
        target.take();
        let round = Round { number: 0, seed: 1, slice: Duration::from_millis(20) };
        work.round(&target, round).unwrap();
        let calls = target.take();
        assert!(target.stat(LOG.as_ref()).unwrap() < super::LOG_LIMIT);
        let mut open = std::collections::HashSet::new();
        for (path, call) in calls.iter().filter(|(path, _)| path != Path::new(LOG)) {
            match call {
                Call::Open(_) => assert!(open.insert(path), "{path:?} is open already"),
                Call::Remove => assert!(!open.contains(path), "{path:?} is open"),
                Call::Close => assert!(open.remove(path)),
                _ => {}
            }
        }
        assert!(open.is_empty() && calls.len() > 80, "{} calls", calls.len());
    }
}
