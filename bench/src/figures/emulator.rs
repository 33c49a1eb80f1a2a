//! Whether emulated memory is as slow as asked for: the cost of a line, and the bandwidth of all writers together.
//!
//! One line is stored, flushed and fenced, again and again. Under 200 ns real memory and the instructions around it may
//! take longer than what is asked for, and only the lower bound holds. Writers copy 4 KiB past the cache and fence; a
//! line of theirs takes the latency, so one has 64 bytes per latency, and all together not more than the cap.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nacre::Emulation;
use nacre_media::{Pm, RealPm};

use crate::figures::context::{Context, Outcome};
use crate::figures::measure::{quantile, timed, times_taken_away};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::BLOCK;

const LINE: u64 = 64;
/// Bytes that each writer goes over.
const REGION: u64 = 8 << 20;
const LINES_A_ROUND: u64 = 1000;
const SLICE: Duration = Duration::from_millis(100);

/// Row and latency: the cost is to be what is asked for.
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
const WRITERS: [(&str, u32, u64, u64); 6] = [
    ("emulator.1writer", 1, 200, 0),
    ("emulator.2writers", 2, 200, 0),
    ("emulator.2writers.slow", 2, 1200, 0),
    ("emulator.1writer.cap", 1, 200, 200_000_000),
    ("emulator.2writers.cap", 2, 200, 450_000_000),
    ("emulator.2writers.low-cap", 2, 200, 100_000_000),
];

pub(crate) fn run(context: &Context) -> Outcome {
    for (name, latency) in EXACT {
        if context.wants(name) {
            let costs = line_costs(context, latency)?;
            let ratio = quantile(&costs, 0.5) / latency as f64;
            report(context, name, "ns", quantile(&costs, 0.5), percent(ratio), costs.len())?;
        }
    }
    for (name, latency) in AT_LEAST {
        if context.wants(name) {
            let costs = line_costs(context, latency)?;
            let least = quantile(&costs, 0.0);
            report(context, name, "ns", least, least / latency as f64, costs.len())?;
        }
    }
    for (name, writers, latency, cap) in WRITERS {
        if !context.wants(name) {
            continue;
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        if cores < writers as usize {
            context.leave_out(format!("{name}: it needs {writers} cores"));
            continue;
        }
        let rates = rates(context, writers, latency, cap)?;
        let alone = f64::from(writers) * LINE as f64 / (latency as f64 * 1e-9);
        let expected = if cap == 0 { alone } else { alone.min(cap as f64) };
        let rate = quantile(&rates, 0.5);
        report(context, name, "MB/s", rate / 1e6, percent(rate / expected), rates.len())?;
    }
    Ok(())
}

/// How far from one, in percent.
fn percent(ratio: f64) -> f64 {
    (ratio - 1.0).abs() * 100.0
}

fn report(
    context: &Context,
    name: &str,
    unit: &'static str,
    ours: f64,
    value: f64,
    rounds: usize,
) -> Outcome {
    let row = rows::find(name);
    let figure = Figure::single(row.name, row.what, unit, row.target, value);
    context.report(Figure { ours, rounds, ..figure })
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

/// What a line costs, in nanoseconds, in each round in which nobody took the core away.
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

/// Bytes per second of all writers together, in each round.
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
        thread::scope(|scope| {
            let write = |writer: u64| {
                let (pm, start, stop) = (&pm, &start, &stop);
                scope.spawn(move || {
                    let bytes = [2; BLOCK];
                    start.wait();
                    let (begin, mut written) = (Instant::now(), 0u64);
                    while !stop.load(Ordering::Relaxed) {
                        let at = writer * REGION + written % REGION;
                        let copied = pm.copy(at, &bytes).expect("a block inside");
                        black_box(pm.fence(copied));
                        written += BLOCK as u64;
                    }
                    written as f64 / begin.elapsed().as_secs_f64()
                })
            };
            let threads: Vec<_> = (0..u64::from(writers)).map(write).collect();
            start.wait();
            thread::sleep(SLICE);
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().expect("a writer ends")).sum::<f64>()
        })
    };
    Ok((0..rounds).map(rate).collect())
}
