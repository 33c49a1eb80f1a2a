//! Whether emulated PM is as slow as asked for: the cost of a line, and the bandwidth of all writers together.
//!
//! One line is stored, flushed and fenced, again and again. Under 200 ns real DRAM and the instructions around it may
//! take longer than the requested latency, and only the lower bound holds. Writers copy 4 KiB past the cache and
//! fence. A line of theirs takes the latency, so one writer has 64 bytes per latency. As many writers as there are
//! cores have that much each, and all together at most the cap. More writers than cores share the cores, and gain
//! nothing.
//!
//! PM as fast as DRAM is emulated to count written bytes. That is to cost nothing: the library is measured against
//! itself.

use std::hint::black_box;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nacre::{Emulation, File, FileOptions, FileSystem, OpenOptions};
use nacre_media::{Pm, RealPm};

use crate::figures::context::{Context, Outcome};
use crate::figures::measure::{Budget, Pairs, interleave, timed, times_taken_away};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, buffer, durable, file_system, offsets};
use crate::stats::{median, quantile};

const LINE: u64 = 64;
/// Bytes that each writer goes over.
const REGION: u64 = 8 << 20;
const LINES_A_ROUND: u64 = 1000;
const SLICE: Duration = Duration::from_millis(100);
/// The row of emulation that delays nothing.
const DRAM: &str = "emulator.dram";

/// Row and latency: the cost is to be the requested one.
const EXACT: [(&str, u64); 4] = [
    ("emulator.line-200", 200),
    ("emulator.line-400", 400),
    ("emulator.line-800", 800),
    ("emulator.line-1200", 1200),
];

/// Row and latency: the cost is not to be less.
const AT_LEAST: [(&str, u64); 3] =
    [("emulator.line-50", 50), ("emulator.line-100", 100), ("emulator.line-150", 150)];

/// Row, writers, latency, and the cap in bytes per second.
const WRITERS: [(&str, u32, u64, u64); 8] = [
    ("emulator.1writer", 1, 200, 0),
    ("emulator.2writers", 2, 200, 0),
    ("emulator.2writers.slow", 2, 1200, 0),
    ("emulator.1writer.cap", 1, 200, 200_000_000),
    ("emulator.2writers.cap", 2, 200, 450_000_000),
    ("emulator.2writers.low-cap", 2, 200, 100_000_000),
    ("emulator.4writers", 4, 200, 0),
    ("emulator.4writers.cap", 4, 200, 250_000_000),
];

pub(crate) fn run(context: &Context) -> Outcome {
    for (name, latency) in EXACT {
        if context.wants(name) {
            let costs = line_costs(context, latency)?;
            let off = costs.iter().map(|cost| percent(cost / latency as f64)).collect();
            let value = percent(median(&costs) / latency as f64);
            context.report(Figure::single(rows::find(name), "ns", costs).value(value, Some("%"), off))?;
        }
    }
    for (name, latency) in AT_LEAST {
        if context.wants(name) {
            let costs = line_costs(context, latency)?;
            let least = quantile(&costs, 0.0) / latency as f64;
            context.report(Figure::single(rows::find(name), "ns", costs).value(least, None, Vec::new()))?;
        }
    }
    for (name, writers, latency, cap) in WRITERS {
        if !context.wants(name) {
            continue;
        }
        let rates = rates(context, writers, latency, cap)?;
        let expected = expected_rate(writers, latency, cap);
        let off = rates.iter().map(|rate| percent(rate / expected)).collect();
        let value = percent(median(&rates) / expected);
        let rates = rates.iter().map(|rate| rate / 1e6).collect();
        context.report(Figure::single(rows::find(name), "MB/s", rates).value(value, Some("%"), off))?;
    }
    if context.wants(DRAM) {
        counting(context)?;
    }
    Ok(())
}

/// Bytes per second that so many writers are to have together.
fn expected_rate(writers: u32, latency: u64, cap: u64) -> f64 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let at_once = f64::from(writers).min(cores as f64);
    let alone = at_once * LINE as f64 / (latency as f64 * 1e-9);
    if cap == 0 { alone } else { alone.min(cap as f64) }
}

/// How far from one, in percent.
fn percent(ratio: f64) -> f64 {
    (ratio - 1.0).abs() * 100.0
}

fn memory(regions: u64, latency: u64, cap: u64) -> Result<RealPm, Box<dyn std::error::Error>> {
    let mut pm = RealPm::in_memory(regions * REGION)?;
    for block in 0..regions * REGION / BLOCK as u64 {
        let written = pm.copy(block * BLOCK as u64, &[1; BLOCK])?;
        pm.fence(written);
    }
    pm.emulate(format!("latency={latency},bandwidth={cap}").parse::<Emulation>()?);
    Ok(pm)
}

/// The cost of a line, in nanoseconds, in each round in which no other process took the core away.
fn line_costs(context: &Context, latency: u64) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let pm = memory(1, latency, 0)?;
    let (mut costs, mut disturbed) = (Vec::new(), Vec::new());
    let rounds = context.budget.rounds.0.max(3);
    let mut line = 0;
    // Undisturbed rounds are looked for a while.
    for _ in 0..10 * rounds {
        let taken_away = times_taken_away();
        let time = timed(|| {
            for _ in 0..LINES_A_ROUND {
                line = (line + 1) % (REGION / LINE);
                let stored = pm.store(line * LINE, &[line as u8; LINE as usize]).expect("a line inside");
                let flushed = pm.flush(stored);
                black_box(pm.fence(flushed));
            }
        });
        let kept = if times_taken_away() == taken_away { &mut costs } else { &mut disturbed };
        kept.push(time.as_nanos() as f64 / LINES_A_ROUND as f64);
        if costs.len() == rounds {
            break;
        }
    }
    Ok(if costs.is_empty() { disturbed } else { costs })
}

/// Bytes that a writer has written so far. They have lines of their own, because writers would otherwise wait for each
/// other to count.
#[derive(Default)]
#[repr(align(128))]
struct Written(AtomicU64);

/// Bytes per second of all writers together, in each round: the bytes that all of them wrote in one span of time.
/// Writers that wait for a core therefore count as such.
fn rates(
    context: &Context,
    writers: u32,
    latency: u64,
    cap: u64,
) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let pm = memory(u64::from(writers), latency, cap)?;
    let rounds = (context.budget.rounds.0 / 2).max(3);
    let rate = |_| {
        let (start, stop) = (Barrier::new(writers as usize + 1), AtomicBool::new(false));
        let written: Vec<Written> = (0..writers).map(|_| Written::default()).collect();
        let all = || written.iter().map(|Written(bytes)| bytes.load(Ordering::Relaxed)).sum::<u64>();
        thread::scope(|scope| {
            for (region, Written(bytes)) in (0..).zip(&written) {
                let (pm, start, stop) = (&pm, &start, &stop);
                scope.spawn(move || {
                    start.wait();
                    write_until(pm, region, bytes, stop);
                });
            }
            start.wait();
            thread::sleep(SLICE / 10);
            let (begin, before) = (Instant::now(), all());
            thread::sleep(SLICE);
            let rate = (all() - before) as f64 / begin.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            rate
        })
    };
    Ok((0..rounds).map(rate).collect())
}

/// The life of a writer on its region.
fn write_until(pm: &RealPm, region: u64, written: &AtomicU64, stop: &AtomicBool) {
    let (bytes, mut done) = ([2; BLOCK], 0);
    while !stop.load(Ordering::Relaxed) {
        let copied = pm.copy(region * REGION + done % REGION, &bytes).expect("a block inside");
        black_box(pm.fence(copied));
        done += BLOCK as u64;
        written.store(done, Ordering::Relaxed);
    }
}

/// Overwrites through the library with stores counted beside overwrites without. Which pages a device was given by chance
/// makes some percent, so both take both devices; the value is the geometric mean of the two halves.
fn counting(context: &Context) -> Outcome {
    let size = context.sizes.small_file;
    let place = context.place.tmpfs("pm", false)?;
    let devices = ["one", "other"].map(|name| place.path().join(name));
    for device in &devices {
        let fs = file_system(device, size + context.sizes.slack)?;
        let data = buffer(1 << 20);
        let file = fs.create_file("/file")?;
        (0..size).step_by(data.len()).try_for_each(|at| file.write_at(&data, at).map(drop))?;
        drop(file);
        fs.close()?;
    }
    let (mut all, mut product) = (Pairs::default(), 1.0);
    for half in 0..2 {
        let (counted, plain) = (&devices[half], &devices[1 - half]);
        let mut pairs = beside_uncounted(context, counted, plain, size)?;
        product *= median(&pairs.ratios());
        all.ours.append(&mut pairs.ours);
        all.peer.append(&mut pairs.peer);
        all.disturbed += pairs.disturbed;
    }
    let ratios = all.ratios();
    context.report(Figure::compared(rows::find(DRAM), &all).value(product.sqrt(), None, ratios))
}

fn beside_uncounted(
    context: &Context,
    counted: &Path,
    plain: &Path,
    size: u64,
) -> Result<Pairs, Box<dyn std::error::Error>> {
    let open = |device: &Path, emulation| -> Result<(FileSystem, File), nacre::Error> {
        let fs = FileSystem::open(device, &OpenOptions { emulation, ..durable() })?;
        fs.prefault(&AtomicBool::new(false))?;
        let file = FileOptions::new().write(true).open(&fs, "/file")?;
        Ok((fs, file))
    };
    let (ours, peer) = (open(counted, Some("dram".parse::<Emulation>()?))?, open(plain, None)?);
    let data = buffer(BLOCK);
    let count = context.sizes.batch;
    let overwrite = |file: &File, round| {
        let offsets = offsets(round, count, size, BLOCK as u64);
        timed(|| {
            for &at in &offsets {
                file.write_at(&data, at).expect("a write of ours");
            }
        })
    };
    let pairs = interleave(
        &Budget { time: context.budget.time / 2, ..context.budget.clone() },
        count,
        &mut |round| overwrite(&ours.1, round),
        &mut |round| overwrite(&peer.1, round),
    );
    for (fs, file) in [ours, peer] {
        drop(file);
        fs.close()?;
    }
    Ok(pairs)
}
