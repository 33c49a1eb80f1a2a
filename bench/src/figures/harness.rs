//! The overhead that `nacre bench run` adds to the work that it times. One row is a recorded operation that does
//! nothing, which is the reading of a time-stamp. The others are its generator and a loop by hand, on the same file of
//! a tmpfs. The loop reads a time-stamp for each operation, too: the difference is the generator's own overhead. The
//! bare loop reads none: the difference is the whole overhead.

use std::path::Path;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{Mode, OFlags};
use rustix::io::{pread, pwrite};

use crate::clock::ticks;
use crate::figures::context::{Context, Outcome};
use crate::figures::measure::{interleave, timed};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, buffer};
use crate::stats::quantile;
use crate::target::directory::Directory;
use crate::workload::recorder::on_threads;
use crate::workload::{self, Op, Round};

/// Row, workload, and whether the loop by hand reads a time-stamp for each operation.
const LOOPS: [(&str, &str, bool); 4] = [
    ("harness.write-4k", "micro.write", true),
    ("harness.read-4k", "micro.read", true),
    ("harness.write-4k.bare", "micro.write", false),
    ("harness.read-4k.bare", "micro.read", false),
];
const LAP: &str = "harness.lap";
const SIZE: u64 = 64 << 20;
const SLICE: Duration = Duration::from_millis(20);

pub(crate) fn run(context: &Context) -> Outcome {
    if context.wants_any(LOOPS.map(|(name, ..)| name)) {
        let tmpfs = context.place.tmpfs("harness", false)?;
        for (name, kind, stamped) in LOOPS {
            if context.wants(name) {
                beside_a_loop(context, name, kind, stamped, tmpfs.path())?;
            }
        }
    }
    if context.wants(LAP) {
        let mut laps = Vec::new();
        for _ in 0..context.budget.rounds.0 {
            let measured = on_threads(1, SLICE, |_, recorder| {
                while recorder.lap(Op::Read) {}
                Ok(())
            })?;
            laps.push(measured.nanos / measured.operations as f64);
        }
        // The time when nothing else is in the way.
        let least = quantile(&laps, 0.0);
        context.report(Figure::single(rows::find(LAP), "ns", laps).value(least, Some("ns"), Vec::new()))?;
    }
    Ok(())
}

fn beside_a_loop(context: &Context, name: &str, kind: &str, stamped: bool, dir: &Path) -> Outcome {
    let work = workload::make(&format!("{kind},file={SIZE}").parse()?, 1.0)?;
    let target = Directory::open(dir)?;
    work.prepare(&target)?;
    let file = rustix::fs::open(dir.join("micro0"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut data = buffer(BLOCK);
    let operations = 15_000;
    let writes = kind == "micro.write";
    let pairs = interleave(
        &context.budget,
        operations,
        &mut |number| {
            let round = Round { number, seed: 1, slice: SLICE };
            let measured = work.round(&target, round).expect("the generator runs");
            Duration::from_nanos((measured.nanos / measured.operations as f64 * operations as f64) as u64)
        },
        &mut |number| {
            let mut random = SmallRng::seed_from_u64(number);
            let block = |_| random.random_range(0..SIZE / BLOCK as u64) * BLOCK as u64;
            let places: Vec<u64> = (0..operations).map(block).collect();
            let mut once = |at| {
                let moved = if writes { pwrite(&file, &data, at) } else { pread(&file, &mut data[..], at) };
                assert_eq!(moved.expect("a whole block"), BLOCK);
            };
            // Two loops, so that the bare one has no trace of the other.
            match stamped {
                true => timed(|| {
                    for &at in &places {
                        once(at);
                        std::hint::black_box(ticks());
                    }
                }),
                false => timed(|| places.iter().for_each(|&at| once(at))),
            }
        },
    );
    let row = rows::find(name);
    context.report(Figure::compared(row, &pairs))
}
