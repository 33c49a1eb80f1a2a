//! The figures that nacre is to reach, each measured beside its peer in one run.
//!
//! - [`measure`]: both sides in turns, in short batches; medians of ratios.
//! - [`rows`]: all rows, their sides and their targets. [`report`]: the results: a line for people, and an experiment
//!   of the document that all of `nacre bench` writes.
//! - [`library`]: the library beside tmpfs through the kernel. [`mount`]: a mount beside a FUSE server that does nothing.
//!   [`recovery`]: opening after a crash and after an orderly end; DRAM of the index. [`scale`]: large directories and
//!   shattered files beside small ones.
//! - [`harness`]: the overhead of the generator of `nacre bench run`. [`emulator`]: whether emulated PM is as slow as
//!   asked for; [`disk`]: whether emulated disks are.
//! - [`child`]: work in processes of its own.
//!
//! A slow figure never fails a run: the report names the missed targets. An interrupted run prints the results that it
//! has.

mod child;
mod context;
mod cores;
mod disk;
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

use crate::run::effort;
use crate::say;
use crate::session::{Common, Output, Session};
use context::Context;

pub(crate) use context::Outcome;

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre bench figures --only 'write*' --seconds 1
      Measures the rows whose name begins with write.
";

/// Measure the figures that nacre is to reach, each with its peer
///
/// Each row is an experiment of the report, with a target. A row that misses its target does not fail the run. Mounts
/// (tmpfs with huge pages, FUSE) need root. Rows that could not be measured are named.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub struct FiguresArgs {
    /// Small sizes, few rounds: shows that everything runs, and measures nothing
    #[arg(long)]
    quick: bool,
    /// Only this row, or with a star at the end all whose name begins so (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the rows
    #[arg(long)]
    list: bool,
    /// The time for each row after its preparation
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    #[command(flatten)]
    output: Output,
    /// The work of a child process.
    #[arg(long, hide = true, value_name = "ROLE")]
    role: Option<String>,
    /// Arguments of that work.
    #[arg(long, hide = true)]
    with: Vec<String>,
}

/// Measures, and prints the results.
pub(crate) fn run(args: FiguresArgs) -> Outcome {
    if args.list {
        let rows: String = rows::ROWS.iter().map(|row| format!("{:<27} {}\n", row.name, row.what)).collect();
        return Ok(say::out(&rows)?);
    }
    if let Some(role) = &args.role {
        return child::run(role, &args.with);
    }
    if let Some(unknown) =
        args.only.iter().find(|only| !rows::ROWS.iter().any(|row| context::matches(only, row.name)))
    {
        return Err(format!("--only {unknown}: no such row; --list shows them").into());
    }
    let common = Common {
        effort: if args.quick { effort::QUICK } else { effort::DEFAULT },
        disk: None,
        seed: 1,
        output: args.output,
    };
    let planned = rows::ROWS.iter().filter(|row| context::wants(&args.only, row.name)).count();
    let session = Session::begin(&common, planned, planned, |plain| plain)?;
    let context = Context::new(session, args.quick, args.seconds, args.only);
    let measured = measure_all(&context);
    let interrupted = context.is_interrupted();
    let (session, (reached, missed)) = context.into_results();
    session.finish()?;
    if interrupted {
        return Err("interrupted: the other rows were not measured".into());
    }
    measured?;
    if !common.to_stdout() {
        say::out(&format!("{reached} reached, {missed} missed\n"))?;
    }
    Ok(())
}

fn measure_all(context: &Context) -> Outcome {
    library::run(context)?;
    mount::run(context)?;
    recovery::run(context)?;
    scale::run(context)?;
    harness::run(context)?;
    emulator::run(context)?;
    disk::run(context)
}
