//! Whether emulated disks are as slow as asked for, from the program that uses them to the bytes. Peers and tiers get
//! them the same way, through the loop device and FUSE.
//!
//! Latency is that of one access at a time, each far from the one before. Bandwidth is that of large accesses, one
//! after the other, by several threads at once. A disk that seeks has one thread, because several would move its head
//! between them. The expected value is the model's for a disk with nothing else to do. A figure is how much slower the
//! disk is in percent, by its median. It is negative, by its fastest sample, if that is faster than asked for.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nacre_media::disk::{Access, Disk, Pace};
use rustix::fs::{Mode, OFlags};
use rustix::io::{pread, pwrite};

use crate::figures::context::{Context, Outcome};
use crate::figures::measure::timed;
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, buffer};
use crate::stats::{median, quantile};
use crate::target::medium::EmulatedDisk;
use crate::target::plan::{Ground, Load};
use crate::{Error, nacre_program};

const PRESETS: [&str; 4] = ["hdd", "sata-ssd", "nvme", "optane-ssd"];
const MEBIBYTE: u64 = 1 << 20;
/// Bytes of a disk.
const SIZE: u64 = 256 * MEBIBYTE;
/// From one access to the next, in blocks: so many that the head is moved, and prime, so that all blocks have their turn.
const STRIDE: u64 = 7919;
/// How long the bytes of a sample of bandwidth take, at the expected bandwidth.
const SPAN: Duration = Duration::from_millis(300);
/// Threads that move them.
const THREADS: u64 = 4;
/// Samples of a latency, at most.
const SAMPLES: usize = 1000;

/// The operation of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    ReadBandwidth,
    WriteBandwidth,
}

const KINDS: [(&str, Kind); 5] = [
    ("read", Kind::Read),
    ("write", Kind::Write),
    ("flush", Kind::Flush),
    ("read-bandwidth", Kind::ReadBandwidth),
    ("write-bandwidth", Kind::WriteBandwidth),
];

pub(crate) fn run(context: &Context) -> Outcome {
    for preset in PRESETS {
        let names = KINDS.map(|(kind, _)| format!("disk.{preset}.{kind}"));
        if !context.wants_any(names.iter().map(String::as_str)) {
            continue;
        }
        let disk = Disk::preset(preset).ok_or("a preset has another name")?;
        match set_up(context, preset, &disk) {
            Ok(made) => measure(context, &names, &disk, &made)?,
            Err(why) => context.leave_out(names.iter().map(String::as_str), &why.to_string()),
        }
    }
    Ok(())
}

fn set_up(context: &Context, preset: &str, disk: &Disk) -> Result<EmulatedDisk, Error> {
    if !rustix::process::geteuid().is_root() {
        return Err("loop devices and mounts need root".into());
    }
    let (temporary, program) = (std::env::temp_dir(), nacre_program()?);
    let ground = Ground {
        place: &context.place,
        load: Load { bytes: SIZE, files: 1 },
        emulate: None,
        disk: &temporary,
        program: &program,
    };
    EmulatedDisk::set_up(&format!("figure-{preset}"), disk.clone(), SIZE, &ground)
}

fn measure(context: &Context, names: &[String], disk: &Disk, made: &EmulatedDisk) -> Outcome {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(&made.path, flags, Mode::empty())?;
    for (name, (_, kind)) in names.iter().zip(KINDS) {
        if !context.wants(name) {
            continue;
        }
        let figure = match kind {
            Kind::Read | Kind::Write | Kind::Flush => {
                let asked = latency_ns(disk, kind) as f64;
                let samples = latencies(context, &file, kind)?;
                let slower = samples.iter().map(|nanos| (nanos / asked - 1.0) * 100.0).collect();
                figure(name, "ns", samples, slower)
            }
            Kind::ReadBandwidth | Kind::WriteBandwidth => {
                let asked = bandwidth(disk, kind) as f64 / 1e6;
                let samples = rates(context, &file, disk, kind)?;
                let slower = samples.iter().map(|rate| (1.0 - rate / asked) * 100.0).collect();
                figure(name, "MB/s", samples, slower)
            }
        };
        context.report(figure)?;
    }
    Ok(())
}

/// `slower`: by how many percent each sample is.
fn figure(name: &str, unit: &'static str, samples: Vec<f64>, slower: Vec<f64>) -> Figure {
    let least = quantile(&slower, 0.0);
    let value = if least < 0.0 { least } else { median(&slower) };
    let asked = format!("the fastest sample is {least:.2} % slower than asked for");
    Figure::single(rows::find(name), unit, samples).value(value, Some("%"), slower).note(asked)
}

/// The model's time of one access alone, not where the one before ended.
fn latency_ns(disk: &Disk, kind: Kind) -> u64 {
    let (offset, len) = (SIZE / 2, BLOCK as u64);
    let access = match kind {
        Kind::Read | Kind::ReadBandwidth => Access::Read { offset, len },
        Kind::Write | Kind::WriteBandwidth => Access::Write { offset, len },
        Kind::Flush => Access::Flush,
    };
    Pace::new(disk.clone()).admit(0, access)
}

fn bandwidth(disk: &Disk, kind: Kind) -> u64 {
    if kind == Kind::ReadBandwidth { disk.read_bandwidth } else { disk.write_bandwidth }
}

/// Nanoseconds of each access.
fn latencies(context: &Context, file: &OwnedFd, kind: Kind) -> Result<Vec<f64>, Error> {
    let mut data = buffer(BLOCK);
    let (fewest, begin) = (context.budget.rounds.0, Instant::now());
    let mut samples = Vec::new();
    for turn in 0.. {
        let is_enough = samples.len() >= fewest && begin.elapsed() >= context.budget.time;
        if is_enough || samples.len() >= SAMPLES || context.is_interrupted() {
            break;
        }
        let at = turn * STRIDE % (SIZE / BLOCK as u64) * BLOCK as u64;
        let mut moved = Ok(BLOCK);
        let mut flushed = Ok(());
        if kind == Kind::Flush {
            pwrite(file, &data, at)?;
        }
        let time = match kind {
            Kind::Read | Kind::ReadBandwidth => timed(|| moved = pread(file, &mut data[..], at)),
            Kind::Write | Kind::WriteBandwidth => timed(|| moved = pwrite(file, &data, at)),
            Kind::Flush => timed(|| flushed = rustix::fs::fdatasync(file)),
        };
        flushed?;
        if moved? != BLOCK {
            return Err("a short transfer".into());
        }
        if turn >= context.budget.warm_up as u64 {
            samples.push(time.as_nanos() as f64);
        }
    }
    Ok(samples)
}

/// Megabytes per second of each span.
fn rates(context: &Context, file: &OwnedFd, disk: &Disk, kind: Kind) -> Result<Vec<f64>, Error> {
    let threads = if disk.seeks { 1 } else { THREADS };
    let span = (bandwidth(disk, kind) as f64 * SPAN.as_secs_f64()) as u64;
    let pieces = (span / MEBIBYTE).max(2 * threads);
    let next = AtomicU64::new(0);
    let mut rates = Vec::new();
    // The first one moves the head, and is not counted.
    for round in 0..=(context.budget.rounds.0 / 2).max(3) {
        if context.is_interrupted() {
            break;
        }
        let last = next.load(Ordering::Relaxed) + pieces;
        let begin = Instant::now();
        let moved: Vec<rustix::io::Result<()>> = thread::scope(|scope| {
            let work = || move_pieces(file, kind, &next, last);
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let first = work();
            let others = others.into_iter().map(|other| other.join().expect("a thread ends"));
            others.chain([first]).collect()
        });
        let time = begin.elapsed();
        next.store(last, Ordering::Relaxed);
        moved.into_iter().collect::<Result<(), _>>()?;
        if round > 0 {
            rates.push((pieces * MEBIBYTE) as f64 / 1e6 / time.as_secs_f64());
        }
    }
    Ok(rates)
}

/// Moves one piece after the other, whichever is next, up to the last one.
fn move_pieces(file: &OwnedFd, kind: Kind, next: &AtomicU64, last: u64) -> rustix::io::Result<()> {
    let mut data = buffer(MEBIBYTE as usize);
    loop {
        let piece = next.fetch_add(1, Ordering::Relaxed);
        if piece >= last {
            return Ok(());
        }
        let at = piece % (SIZE / MEBIBYTE) * MEBIBYTE;
        let moved = match kind {
            Kind::ReadBandwidth => pread(file, &mut data[..], at)?,
            _ => pwrite(file, &data, at)?,
        };
        assert_eq!(moved as u64, MEBIBYTE, "a short transfer");
    }
}

#[cfg(test)]
mod tests {
    use nacre_media::disk::Disk;

    use super::{KINDS, Kind, PRESETS, figure, latency_ns};
    use crate::figures::rows;
    use crate::report::schema::Verdict;

    #[test]
    fn every_preset_of_the_model_has_its_rows() {
        let all: Vec<&str> = Disk::presets().map(|(name, _)| name).collect();
        assert!(all.len() == PRESETS.len() && PRESETS.iter().all(|name| all.contains(name)), "{all:?}");
        for preset in PRESETS {
            for (kind, _) in KINDS {
                let name = format!("disk.{preset}.{kind}");
                assert_eq!(rows::find(&name).name, name);
            }
        }
    }

    #[test]
    fn what_is_asked_for_is_what_the_model_says() {
        let disk = |name| Disk::preset(name).unwrap();
        assert_eq!(latency_ns(&disk("sata-ssd"), Kind::Write), 85_000);
        // A head that is moved, and the bytes behind it.
        assert_eq!(latency_ns(&disk("hdd"), Kind::Read), 10_040_960);
    }

    #[test]
    fn one_sample_that_is_too_fast_misses() {
        let verdict = |slower: &[f64]| {
            figure("disk.nvme.read", "ns", vec![1.0; slower.len()], slower.to_vec()).verdict()
        };
        assert_eq!(verdict(&[1.0, 4.0, 90.0]), Verdict::Holds);
        assert_eq!(verdict(&[-0.1, 4.0, 4.0]), Verdict::Missed);
        assert_eq!(verdict(&[6.0, 7.0, 8.0]), Verdict::Missed);
    }
}
