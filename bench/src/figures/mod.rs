//! The figures that nacre is to reach, each measured beside its peer in one run.
//!
//! - [`measure`]: both sides in turns, in short batches; medians of ratios.
//! - [`rows`]: all rows and their targets. [`report`]: what comes out.
//! - [`library`]: the library beside tmpfs through the kernel. [`mount`]: a mount beside a FUSE server that does nothing.
//!   [`recovery`]: opening after a crash and after an orderly end; DRAM of the index. [`scale`]: large directories and
//!   shattered files beside small ones.
//! - [`harness`]: what the generator of `nacre bench run` adds. [`emulator`]: whether emulated memory is as slow as asked for.
//! - [`child`]: work in processes of its own.
//!
//! A slow figure never fails a run: the report says what was missed. An interrupted run says what it has.

mod child;
mod context;
mod cores;
mod emulator;
mod harness;
mod library;
mod measure;
mod mount;
mod recovery;
mod report;
mod rows;
mod scale;
mod work;

use clap::Args;

use crate::leftovers;
use crate::machine::Machine;
use context::Context;
use report::{Report, Verdict};

pub(crate) use context::Outcome;

/// Measures the figures that nacre is to reach, each beside its peer
///
/// A row that misses its target does not fail the run. Mounts (tmpfs with huge pages, FUSE) need root; what could not
/// be measured is said.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    /// Small sizes, few rounds: shows that everything runs, measures nothing
    #[arg(long)]
    quick: bool,
    /// Only this row, or with a star at the end all whose name begins so (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Say which rows there are
    #[arg(long)]
    list: bool,
    /// One JSON document instead of the table
    #[arg(long)]
    json: bool,
    /// Keep directories and mounts for a look
    #[arg(long)]
    keep: bool,
    /// Time for each row, beside its preparation
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// The work of a child process.
    #[arg(long, hide = true, value_name = "ROLE")]
    role: Option<String>,
    /// What it works with.
    #[arg(long, hide = true)]
    with: Vec<String>,
}

/// Measures, and prints what came out.
pub(crate) fn run(args: FiguresArgs) -> Outcome {
    if args.list {
        for row in rows::ROWS {
            println!("{:<24} {}", row.name, row.what);
        }
        return Ok(());
    }
    if let Some(role) = &args.role {
        return child::run(role, &args.with);
    }
    if let Some(unknown) =
        args.only.iter().find(|only| !rows::ROWS.iter().any(|row| context::matches(only, row.name)))
    {
        return Err(format!("--only {unknown}: no such row; --list shows them").into());
    }
    let machine = Machine::detect();
    if !args.json {
        println!("{}", machine.line());
    }
    let temporary = std::env::temp_dir();
    leftovers::sweep(&temporary, &temporary);
    let context = Context::new(args.quick, args.seconds, args.only, !args.json, args.keep)?;
    let measured = measure_all(&context);
    let complete = !context.is_interrupted();
    if complete {
        measured?;
    }
    let (figures, left_out) = context.into_results();
    let count = |verdict| figures.iter().filter(|figure| figure.verdict == verdict).count();
    let (reached, missed) = (count(Verdict::Reached), count(Verdict::Missed));
    if args.json {
        let report = Report { schema: 1, machine, quick: args.quick, complete, figures, left_out };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{reached} reached, {missed} missed");
    }
    if complete { Ok(()) } else { Err("interrupted: the other rows were not measured".into()) }
}

fn measure_all(context: &Context) -> Outcome {
    library::run(context)?;
    mount::run(context)?;
    recovery::run(context)?;
    scale::run(context)?;
    harness::run(context)?;
    emulator::run(context)
}
