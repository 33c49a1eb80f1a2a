//! Moves between PM and a disk below it, and their effect on other work.
//!
//! - `tier.migrate`: files that were written once are moved to the disk, one after the other, with every flush and
//!   commit that belongs to it: bytes a second. They are promoted again before each round, which does not count. A
//!   file system that has no PM above its disk writes the same bytes there, in order, past its page cache, and flushes
//!   at the end of each file: the bandwidth of the disk.
//! - `tier.beside`: the 99th percentile of random reads and writes of a file that stays in PM. Meanwhile the mover
//!   demotes and promotes other files (`moving=yes`), or leaves them alone (`moving=no`). `tier.moved` counts the
//!   bytes that it moved.
//!
//! Where files are is asked by the attribute that users have for it (`user.nacre.tier`), and told by it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nacre_engine::size;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::recorder::{on_threads, whole};
use super::set::{buffer, fill};
use super::{Length, Measured, Op, Recorder, Round, Value, Workload, scaled};
use crate::Error;
use crate::counters::MOVED;
use crate::spec::Spec;
use crate::target::{Open, Target, create_dir_all, read_all, remove_dir_all};

const DIR: &str = "tier";
/// Bytes that are written to a disk at once where nothing moves. The mover's default unit has the same size, so that a
/// disk has as much to do at a time.
const PIECE: u64 = 16 << 20;
/// How long the mover may take until the first part of an order has moved.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the places of files are checked. Seldom enough that checking takes nothing from the work.
const LOOK: Duration = Duration::from_millis(5);
/// A round takes this long at the least, with and without a mover: a disk that is slow takes a group in a tenth of a second.
const SLICE: Duration = Duration::from_millis(250);
/// How often a round is tried in which nothing moved: the mover may not have been given a core.
const TRIES: usize = 20;
/// The value of the attribute of a file that is in PM.
const MEMORY: &[u8] = b"pm";

/// Files that move.
struct Files {
    count: u64,
    /// Bytes of each.
    size: u64,
}

/// Reads and writes during the moves.
struct Foreground {
    /// Bytes of its file, for each thread.
    file: u64,
    io: u64,
    /// In percent.
    reads: u64,
    sync: bool,
    threads: u64,
    moving: bool,
}

struct Migrate {
    files: Files,
}

struct Beside {
    files: Files,
    foreground: Foreground,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let name = spec.name();
    let count = spec.number("files", 4, 1)?;
    // Whole blocks: a part of one would not go past a page cache.
    let is_migration = name == "tier.migrate";
    let usual = if is_migration { "128m" } else { "32m" };
    let size = scaled(spec.size("size", usual)?, scale, 4096).next_multiple_of(4096);
    let files = Files { count, size };
    if is_migration {
        return Ok(Box::new(Migrate { files }));
    }
    let io = spec.size("io", "4k")?;
    let reads = spec.number("reads", 50, 0)?;
    if io == 0 || io > 1 << 30 || reads > 100 {
        return Err(format!("{name}: io is from one byte to 1G, reads are up to 100 percent"));
    }
    let file = scaled(spec.size("file", "256m")?, scale, io);
    let yes_or_no = [("yes", true), ("no", false)];
    let foreground = Foreground {
        file: file / io * io,
        io,
        reads,
        sync: spec.word("sync", "no", &yes_or_no)?,
        threads: spec.number("threads", 1, 1)?,
        moving: spec.word("moving", "yes", &yes_or_no)?,
    };
    Ok(Box::new(Beside { files, foreground }))
}

impl Files {
    fn path(&self, number: u64) -> PathBuf {
        Path::new(DIR).join(format!("moves{number}"))
    }

    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.count).map(|number| self.path(number))
    }

    fn bytes(&self) -> u64 {
        self.count * self.size
    }

    /// Made anew, and durable.
    fn make(&self, target: &dyn Target) -> Result<(), Error> {
        remove_dir_all(target, DIR.as_ref())?;
        create_dir_all(target, DIR.as_ref())?;
        self.paths().try_for_each(|path| fill_durably(target, &path, self.size))?;
        Ok(target.sync()?)
    }
}

/// As [`fill`], and nothing of it waits in a buffer. A sync of everything does not reach a buffer behind a mount, and
/// only data below the buffer can move.
fn fill_durably(target: &dyn Target, path: &Path, size: u64) -> Result<(), Error> {
    fill(target, path, size)?;
    Ok(target.open(path, Open::WRITE)?.sync(false)?)
}

impl Migrate {
    /// Each file moves to the disk.
    fn lower(&self, target: &dyn Target, tier: u8) -> Result<Measured, Error> {
        for path in self.files.paths() {
            target.move_file(&path, None)?;
        }
        whole(|recorder| {
            recorder.skip();
            for path in self.files.paths() {
                let moved = target.move_file(&path, Some(tier))?;
                // Less would be faster.
                if moved != self.files.size {
                    let all = self.files.size;
                    return Err(format!("{}: {moved} of {all} bytes moved", path.display()).into());
                }
                recorder.lap_write(Op::Other, moved as usize);
            }
            Ok(())
        })
    }

    /// Each file is written over on the disk.
    fn write(&self, target: &dyn Target) -> Result<Measured, Error> {
        let how = Open { direct: true, ..Open::WRITE };
        let files: Vec<_> =
            self.files.paths().map(|path| target.open(&path, how)).collect::<Result<_, _>>()?;
        let data = buffer(PIECE.min(self.files.size) as usize);
        whole(|recorder| {
            recorder.skip();
            for file in &files {
                let mut at = 0;
                while at < self.files.size {
                    let len = (self.files.size - at).min(data.len() as u64) as usize;
                    file.write_at(&data[..len], at)?;
                    at += len as u64;
                }
                file.sync(true)?;
                recorder.lap_write(Op::Other, self.files.size as usize);
            }
            Ok(())
        })
    }
}

impl Workload for Migrate {
    fn describe(&self) -> String {
        let Files { count, size } = self.files;
        format!(
            "{count} files of {} moved from memory to a tier, with its flushes; where there is no memory above the disk, written \
             to it in order, past the page cache",
            size::print(size)
        )
    }

    fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    fn files(&self) -> u64 {
        self.files.count + 1
    }

    fn value(&self) -> Value {
        Value::Bytes
    }

    fn length(&self) -> Length {
        Length::Whole
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        self.files.make(target)
    }

    fn round(&self, target: &dyn Target, _round: Round) -> Result<Measured, Error> {
        match target.below()? {
            Some(below) => self.lower(target, below.tier),
            None => self.write(target),
        }
    }
}

impl Foreground {
    fn path(thread: u64) -> PathBuf {
        Path::new(DIR).join(format!("stays{thread}"))
    }

    fn work(
        &self,
        target: &dyn Target,
        thread: u64,
        seed: u64,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let how = Open { read: true, sync: self.sync, ..Open::WRITE };
        let file = target.open(&Self::path(thread), how)?;
        let mut random = SmallRng::seed_from_u64(seed);
        let (data, mut read) = (buffer(self.io as usize), buffer(self.io as usize));
        recorder.skip();
        loop {
            let at = random.random_range(0..self.file / self.io) * self.io;
            let goes_on = if random.random_range(0..100) < self.reads {
                read_all(&*file, &mut read, at)?;
                recorder.lap_read(Op::Read, read.len())
            } else {
                file.write_at(&data, at)?;
                recorder.lap_write(Op::Write, data.len())
            };
            if !goes_on {
                return Ok(());
            }
        }
    }
}

/// Has the mover move files down and up again, as often as they have arrived.
struct Director<'a> {
    target: &'a dyn Target,
    paths: Vec<PathBuf>,
    /// The value of the attribute of a file that is on the tier.
    below: Vec<u8>,
    /// Where each is on its way to: down, or up.
    down: Vec<bool>,
}

impl<'a> Director<'a> {
    /// Sends each file to where it is not.
    fn start(target: &'a dyn Target, files: &Files) -> Result<Director<'a>, Error> {
        let Some(below) = target.below()? else { return Err("it has no tier, and so nothing moves".into()) };
        let below = below.tier.to_string().into_bytes();
        let paths: Vec<PathBuf> = files.paths().collect();
        let mut director = Director { target, paths, below, down: Vec::new() };
        for at in 0..director.paths.len() {
            let is_up = director.place(at)? == MEMORY;
            director.down.push(is_up);
            director.send(at)?;
        }
        Ok(director)
    }

    fn place(&self, at: usize) -> Result<Vec<u8>, Error> {
        Ok(self.target.attribute(&self.paths[at], nacre::TIER)?)
    }

    fn send(&self, at: usize) -> Result<(), Error> {
        let to = if self.down[at] { &self.below } else { MEMORY };
        Ok(self.target.set_attribute(&self.paths[at], nacre::TIER, to)?)
    }

    fn has_arrived(&self, at: usize) -> Result<bool, Error> {
        let place = self.place(at)?;
        Ok(place == if self.down[at] { self.below.as_slice() } else { MEMORY })
    }

    /// Turns those round that have arrived.
    fn look(&mut self) -> Result<(), Error> {
        for at in 0..self.paths.len() {
            if self.has_arrived(at)? {
                self.down[at] = !self.down[at];
                self.send(at)?;
            }
        }
        Ok(())
    }

    /// Waits until all have arrived: the next measurement is to have the machine for itself.
    fn finish(&self) -> Result<(), Error> {
        for at in 0..self.paths.len() {
            wait_until("a file has not arrived", || self.has_arrived(at))?;
        }
        Ok(())
    }
}

/// An error in these words when it is not so for long.
fn wait_until(why: &str, mut is_so: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    let begin = Instant::now();
    while !is_so()? {
        if begin.elapsed() > PATIENCE {
            return Err(format!("{why} in a minute").into());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Bytes that came to the tier and from it so far.
fn moved(target: &dyn Target) -> Result<u64, Error> {
    Ok(target.below()?.map_or(0, |below| below.moved))
}

impl Beside {
    fn work(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        on_threads(self.foreground.threads, round.slice.max(SLICE), |thread, recorder| {
            self.foreground.work(target, thread, round.seed_of(thread), recorder)
        })
    }

    /// The same, from the first byte that moves on, as long as the mover has something to do.
    fn work_beside(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let before = moved(target)?;
        let mut director = Director::start(target, &self.files)?;
        // A file that is promoted from DRAM moves no byte of the disk, and is demoted again.
        wait_until("nothing has moved", || {
            director.look()?;
            Ok(moved(target)? > before)
        })?;
        let is_over = AtomicBool::new(false);
        let (measured, directed) = thread::scope(|scope| {
            let directing = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    director.look().map_err(|error| error.to_string())?;
                    thread::sleep(LOOK);
                }
                Ok::<_, String>(())
            });
            let measured = self.work_while_it_moves(target, round);
            is_over.store(true, Ordering::Relaxed);
            (measured, directing.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
        });
        directed?;
        director.finish()?;
        measured
    }

    /// A round in which nothing moved at all was none beside a mover, and is tried again.
    fn work_while_it_moves(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        for _ in 0..TRIES {
            let before = moved(target)?;
            let mut measured = self.work(target, round)?;
            let meanwhile = moved(target)?.saturating_sub(before);
            if meanwhile > 0 {
                measured.told.insert(MOVED.to_owned(), meanwhile as f64);
                return Ok(measured);
            }
        }
        Err("nothing moved while it was measured".into())
    }
}

impl Workload for Beside {
    fn describe(&self) -> String {
        let Foreground { file, io, reads, sync, threads, moving } = self.foreground;
        let sync = if sync { ", O_SYNC" } else { "" };
        let threads = if threads > 1 { format!(", {threads} threads") } else { String::new() };
        let Files { count, size } = self.files;
        let beside = if moving { "beside" } else { "and nothing done to" };
        format!(
            "random reads ({reads} %) and overwrites of {} of a file of {} that stays in memory{sync}{threads}, {beside} {count} \
             files of {}{}",
            size::print(io),
            size::print(file),
            size::print(size),
            if moving { " that move to a tier and back" } else { "" },
        )
    }

    fn bytes(&self) -> u64 {
        self.files.bytes() + self.foreground.threads * self.foreground.file
    }

    fn files(&self) -> u64 {
        self.files.count + self.foreground.threads + 1
    }

    fn value(&self) -> Value {
        Value::Tail
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        self.files.make(target)?;
        // Whether it needs a tier shows in the first round.
        let has_tier = target.below().is_ok_and(|below| below.is_some());
        for thread in 0..self.foreground.threads {
            let path = Foreground::path(thread);
            drop(target.open(&path, Open::CREATE)?);
            if has_tier {
                target.set_attribute(&path, nacre::PIN, b"1")?;
            }
            fill_durably(target, &path, self.foreground.file)?;
        }
        Ok(target.sync()?)
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        match self.foreground.moving {
            true => self.work_beside(target, round),
            false => self.work(target, round),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;
    use std::path::Path;
    use std::time::Duration;

    use nacre::{OpenOptions, Preset};

    use super::MOVED;
    use crate::target::directory::Directory;
    use crate::target::library::Library;
    use crate::target::{Open, Target};
    use crate::workload::{Measured, Op, Round, Value, make};

    const MIB: u64 = 1 << 20;

    /// The library with a file as a tier.
    fn tiered(dir: &tempfile::TempDir, preset: Preset) -> Library {
        let tier = dir.path().join("tier");
        File::create(&tier).unwrap().set_len(64 * MIB).unwrap();
        Library::create(&dir.path().join("pm"), 64 * MIB, preset, Some(&tier), &OpenOptions::default())
            .unwrap()
    }

    fn rounds(work: &str, target: &dyn Target, count: u64) -> Result<Vec<Measured>, String> {
        let work = make(&work.parse().unwrap(), 1.0).unwrap();
        work.prepare(target).map_err(|error| error.to_string())?;
        let round = |number| Round { number, seed: 1, slice: Duration::from_millis(1) };
        (0..count)
            .map(|number| work.round(target, round(number)).map_err(|error| error.to_string()))
            .collect()
    }

    #[test]
    fn every_byte_is_on_the_tier_after_each_round() {
        let dir = tempfile::tempdir().unwrap();
        let target = tiered(&dir, Preset::Nova);
        let before = target.below().unwrap().unwrap();
        for measured in rounds("tier.migrate,files=3,size=2m", &target, 2).unwrap() {
            assert_eq!((measured.written, measured.operations, measured.read), (6 * MIB, 3, 0));
            assert!(measured.nanos > 0.0);
        }
        for number in 0..3 {
            let path = format!("tier/moves{number}");
            assert_eq!(target.attribute(Path::new(&path), nacre::TIER).unwrap(), b"1");
        }
        // Down twice, and up once between.
        let moved = target.below().unwrap().unwrap().moved - before.moved;
        assert!(moved >= 18 * MIB, "{moved}");
    }

    /// Where nothing is above the disk it is written, and as much; and nacre without a tier is no such place.
    #[test]
    fn elsewhere_as_much_is_written_past_the_page_cache() {
        let dir = tempfile::tempdir().unwrap();
        let target = Directory::open(dir.path()).unwrap();
        std::fs::write(dir.path().join("probe"), "").unwrap();
        match target.open(Path::new("probe"), Open { direct: true, ..Open::WRITE }) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                eprintln!("left out: elsewhere_as_much_is_written_past_the_page_cache (no O_DIRECT here)");
            }
            opened => {
                drop(opened.unwrap());
                let measured = rounds("tier.migrate,files=2,size=1100k", &target, 2).unwrap();
                // Whole blocks.
                assert!(measured.iter().all(|measured| measured.written == 2 * 1100 * 1024));
                assert!(target.attribute(Path::new("tier/moves0"), nacre::TIER).is_err());
            }
        }
        let without =
            Library::create(&dir.path().join("pm"), 64 * MIB, Preset::Nova, None, &OpenOptions::default());
        let why = rounds("tier.migrate,size=1m", &without.unwrap(), 1).err();
        assert!(why.as_ref().is_some_and(|why| why.contains("no tier")), "{why:?}");
    }

    /// Files in large pieces go to the disk as they are written, and stay in DRAM, too: they came up without a byte of the
    /// disk, which was taken for a mover that does nothing.
    #[test]
    fn what_begins_on_the_tier_moves() {
        let dir = tempfile::tempdir().unwrap();
        let target = tiered(&dir, Preset::Tpfs);
        for measured in rounds("tier.beside,files=2,size=12m,file=2m", &target, 2).unwrap() {
            assert!(measured.told[MOVED] > 0.0);
        }
    }

    #[test]
    fn the_foreground_stays_in_memory_while_others_move() {
        let dir = tempfile::tempdir().unwrap();
        let target = tiered(&dir, Preset::Nova);
        let work = "tier.beside,files=2,size=4m,file=2m";
        for measured in rounds(work, &target, 2).unwrap() {
            assert!(measured.told[MOVED] > 0.0);
            let kinds: Vec<Op> = measured.times.iter().map(|(op, _)| op).collect();
            assert_eq!(kinds, [Op::Read, Op::Write]);
            assert!(Value::Tail.of(&measured) > 0.0);
        }
        for number in 0..2 {
            let place = target.attribute(Path::new(&format!("tier/moves{number}")), nacre::TIER).unwrap();
            assert!(place == b"pm" || place == b"1", "all have arrived: {place:?}");
        }
        assert_eq!(target.attribute(Path::new("tier/stays0"), nacre::TIER).unwrap(), b"pm");
        let before = target.below().unwrap();
        let alone = rounds(&format!("{work},moving=no"), &target, 1).unwrap();
        assert!(alone[0].operations > 0 && alone[0].told.is_empty());
        assert_eq!(target.below().unwrap(), before, "nothing moved");
    }

    #[test]
    fn without_a_tier_nothing_is_beside_a_mover() {
        let dir = tempfile::tempdir().unwrap();
        let target = Directory::open(dir.path()).unwrap();
        let work = "tier.beside,files=1,size=1m,file=1m,reads=100";
        let why = rounds(work, &target, 1).err().unwrap();
        assert!(why.contains("nothing moves"), "{why}");
        assert!(rounds(&format!("{work},moving=no"), &target, 1).unwrap()[0].written == 0);
        assert!(make(&"tier.beside,reads=101".parse().unwrap(), 1.0).is_err());
        assert!(make(&"tier.beside,io=0".parse().unwrap(), 1.0).is_err());
    }
}
