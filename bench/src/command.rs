//! The command line of `nacre bench`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use nacre::Emulation;
use nacre_media::disk::Disk;

use crate::figures::FiguresArgs;
use crate::paper::command::PaperArgs;
use crate::report::command::{CompareArgs, ReportArgs};
use crate::report::schema::{Absent, Axis, Options};
use crate::run::cold::Cold;
use crate::run::experiment::{self, Entrant, Place, Request};
use crate::run::itself;
use crate::run::measure::Measure;
use crate::run::memory::LEAST;
use crate::run::room;
use crate::run::worker;
use crate::session::{Common, Session, factor};
use crate::target::disk;
use crate::target::plan::{self, Plan};
use crate::trace::command::TraceCommand;
use crate::workload::group;
use crate::{Error, figures, say, workload};

/// Examples and exit codes, for the help and the manual page.
const LIST_MANUAL: &str = "\
Examples:
  nacre bench list
      Shows the parameters of each workload, and the forms of targets.
";

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre bench list
      Shows workloads and targets.
  nacre bench run group:small -t preset:nova -t peer:tmpfs
      Runs a group of small workloads.
";

/// Compare nacre with other file systems, on the same work, in one run
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run workloads on targets, in turns
    Run(Box<RunArgs>),
    /// Show workloads and targets
    #[command(after_long_help = LIST_MANUAL)]
    List,
    Paper(Box<PaperArgs>),
    Report(ReportArgs),
    Compare(CompareArgs),
    Figures(FiguresArgs),
    #[command(subcommand)]
    Trace(TraceCommand),
}

/// Commands that a run gives to processes of its own. No help and no completion has them.
#[derive(Debug, Parser)]
#[command(name = "nacre bench")]
enum Internal {
    /// The process that works on one target.
    Worker,
    /// The server of an emulated disk.
    Disk(DiskArgs),
}

#[derive(Debug, Args)]
struct DiskArgs {
    /// The disk to emulate, as nvme or nvme,flush=0.
    #[arg(long = "as", value_name = "DISK")]
    disk: Disk,
    /// The file with its bytes.
    data: PathBuf,
    /// Where it is mounted.
    dir: PathBuf,
}

/// Examples and exit codes, for the help and the manual page.
const RUN_MANUAL: &str = "\
Examples:
  nacre bench run micro.write,io=4k -t preset:nova -t peer:tmpfs
      Compares small writes in the process with tmpfs.

See also:
  nacre-bench-list(8), nacre-bench-report(8), nacre-bench-compare(8)
";

/// Run workloads on targets, in turns, until the ratios are sure enough
///
/// Each workload is an experiment of its own. Targets that cannot be had are reported, and do not fail the run. If the
/// targets of a workload take more DRAM or disk space than is free, nothing is begun. Ctrl-C ends the run: finished
/// parts are reported, and everything that was mounted is gone.
#[derive(Debug, Args)]
#[command(after_long_help = RUN_MANUAL)]
struct RunArgs {
    /// A workload with its parameters, as micro.write,io=4k,threads=2, or group:NAME for several; 'nacre bench list'
    /// shows them
    #[arg(value_name = "WORKLOAD", required = true)]
    workloads: Vec<String>,
    /// A target, as preset:nova, mount:nova, peer:ext4, dir:PATH (repeatable)
    #[arg(short, long = "target", value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// The target that the others are compared with; by default the last one
    #[arg(short, long, value_name = "TARGET")]
    baseline: Option<String>,
    /// Run each workload with each of these values of a parameter, as io=64,256,4k
    #[arg(long, value_name = "PARAMETER=VALUES")]
    sweep: Option<String>,
    /// The value to report: op/s, MB/s, s, p99, latency:KIND or counter:NAME; by default the workload's own, and MB/s in a
    /// sweep across sizes
    #[arg(long, value_name = "METRIC")]
    metric: Option<Measure>,
    /// Empty the page cache of the machine (root), and the cache of presets with a tier in the process, but not of mounts:
    /// never, at the begin of each workload, or before all rounds
    #[arg(long, value_name = "WHEN", default_value = "never")]
    cold: Cold,
    /// Rounds before those that count, at least
    #[arg(long, value_name = "ROUNDS", default_value_t = 0)]
    warm_up: u64,
    /// Time of work before the rounds that count, at least, for targets that move data while it is used
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    settle: u64,
    /// Bytes that each round writes at least. A sync that counts ends the round: for targets that buffer writes
    #[arg(long, value_name = "SIZE", value_parser = nacre_engine::size::parse)]
    flush: Option<u64>,
    /// Multiply the sizes of workloads
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    scale: f64,
    /// Emulate this kind of PM: pcm, optane, or latency=200,bandwidth=1G; dram only counts
    #[arg(long, value_name = "KIND")]
    emulate: Option<String>,
    /// Limit the page cache of targets (and the process that works on each), with cgroups. It is not limited for tmpfs and
    /// ramfs, where it is the medium
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<u64>,
    #[command(flatten)]
    common: Common,
}

fn memory(text: &str) -> Result<u64, String> {
    match nacre_engine::size::parse(text)? {
        bytes if bytes >= LEAST => Ok(bytes),
        _ => Err(format!("less than {}", nacre_engine::size::print(LEAST))),
    }
}

/// Runs the command.
pub fn run(args: BenchArgs) -> Result<(), Error> {
    match args.command {
        Command::Run(args) => args.run(),
        Command::List => list(),
        Command::Paper(args) => args.run(),
        Command::Report(args) => args.run(),
        Command::Compare(args) => args.run(),
        Command::Figures(args) => figures::run(args),
        Command::Trace(command) => command.run(),
    }
}

/// True for the name of a command that a run gives to processes of its own.
pub fn is_internal(name: &OsStr) -> bool {
    Internal::command().find_subcommand(name).is_some()
}

/// Runs a command that a run gives to processes of its own, with these arguments: its name is the first.
pub fn run_internal(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Error> {
    let program = std::iter::once(OsString::from("nacre bench"));
    match Internal::try_parse_from(program.chain(arguments))? {
        Internal::Worker => worker::work(),
        Internal::Disk(args) => disk::serve(args.disk, &args.data, &args.dir),
    }
}

fn list() -> Result<(), Error> {
    let mut out = String::new();
    writeln!(out, "workloads (parameters behind the name, as micro.write,io=4k):")?;
    for kind in workload::KINDS {
        let spec = kind.name.parse()?;
        workload::make(&spec, 1.0)?;
        let parameters: Vec<_> =
            spec.in_use().into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        writeln!(out, "  {:<22} {}", kind.name, kind.about)?;
        writeln!(out, "  {:<22} {}", "", parameters.join(" "))?;
    }
    writeln!(out, "groups of workloads:")?;
    for group in group::GROUPS {
        writeln!(out, "  {:<22} {}", format!("group:{}", group.name), group.about)?;
        writeln!(out, "  {:<22} {}", "", group.workloads.join(" "))?;
    }
    writeln!(out, "targets:")?;
    for (name, about) in plan::kinds() {
        writeln!(out, "  {name:<22} {about}")?;
    }
    Ok(say::out(&out)?)
}

impl RunArgs {
    fn run(self) -> Result<(), Error> {
        let plans = self.targets.iter().map(|text| Plan::parse(text)).collect::<Result<Vec<_>, _>>()?;
        for (at, plan) in plans.iter().enumerate() {
            if plans[..at].iter().any(|other| other.name() == plan.name()) {
                return Err(format!("{} is given twice", plan.name()).into());
            }
        }
        let baseline = match &self.baseline {
            None => plans.last().map(Plan::name),
            // Its parameters may be given in another order.
            Some(name)
                if plans.iter().any(|plan| Ok(plan.name()) == Plan::parse(name).map(|same| same.name())) =>
            {
                Some(Plan::parse(name)?.name())
            }
            Some(name) => return Err(format!("--baseline {name}: it is none of the targets").into()),
        };
        let entrants: Vec<Entrant> =
            plans.into_iter().map(|plan| Entrant { name: plan.name(), plan }).collect();
        let workloads =
            self.workloads.iter().map(|word| group::expand(word)).collect::<Result<Vec<_>, _>>()?;
        let requests = workloads
            .iter()
            .flatten()
            .map(|workload| self.request(workload, &entrants, baseline.as_deref()))
            .collect::<Result<Vec<_>, Error>>()?;
        if let Some(emulate) = &self.emulate {
            emulate.parse::<Emulation>()?;
        }
        room::check(&requests, self.scale, &self.common.disk())?;
        let options = |plain| Options {
            scale: self.scale,
            emulate: self.emulate.clone(),
            memory: self.memory,
            cold: Some(self.cold.as_str().to_owned()),
            warm_up: Some(self.warm_up),
            settle: Some(self.settle),
            flush: self.flush,
            ..plain
        };
        let points = requests.iter().map(|request| request.places.len()).sum();
        let mut session = Session::begin(&self.common, requests.len(), points, options)?;
        if self.memory.is_some()
            && let Err(why) = session.groups()
        {
            // Each target that has a page cache says so, too; the others can be measured.
            session.note(vec![Absent { what: "--memory".to_owned(), why }]);
        }
        for request in &requests {
            let mut absent = Vec::new();
            let mut done =
                session.with_setting(self.scale, |setting| experiment::run(setting, request, &mut absent))?;
            done.claims = itself::claims(&done, &self.common.effort);
            session.note(absent);
            session.add(done)?;
            if session.is_stopped() {
                break;
            }
        }
        let stopped = session.is_stopped();
        let report = session.finish()?;
        if report.experiments.iter().all(|experiment| experiment.series.is_empty()) && !stopped {
            return Err("no target could be measured".into());
        }
        Ok(())
    }

    fn request(&self, text: &str, entrants: &[Entrant], baseline: Option<&str>) -> Result<Request, Error> {
        let work = workload::make(&text.parse()?, self.scale)?;
        let (axis, places) = match &self.sweep {
            None => {
                let axis = Axis { name: "workload".into(), unit: None, log2: false };
                let label = text.split(',').next().unwrap_or(text).to_owned();
                (axis, vec![(label, None, text.to_owned())])
            }
            Some(sweep) => swept(text, sweep)?,
        };
        let values = places
            .iter()
            .map(|(_, _, workload)| Ok(workload::make(&workload.parse()?, self.scale)?.value()))
            .collect::<Result<Vec<_>, Error>>()?;
        let measure = match &self.metric {
            Some(measure) => measure.clone(),
            None => Measure::of_all(&values)?,
        };
        let place = |(label, x, workload): (String, Option<f64>, String)| Place {
            label,
            x,
            workload,
            entrants: entrants.to_vec(),
            cold: self.cold,
            warm_up: self.warm_up,
            settle: self.settle,
            flush: self.flush,
        };
        Ok(Request {
            name: text.to_owned(),
            title: work.describe(),
            about: String::new(),
            paper: None,
            command: self.command(text, entrants, baseline),
            axis,
            places: places.into_iter().map(place).collect(),
            baseline: baseline.map(str::to_owned),
            metric: measure.metric(),
            measure,
        })
    }

    /// The command that repeats one workload.
    fn command(&self, text: &str, entrants: &[Entrant], baseline: Option<&str>) -> String {
        let mut command = format!("nacre bench run {text}");
        entrants.iter().for_each(|entrant| command.push_str(&format!(" -t {}", entrant.name)));
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                command.push_str(&format!(" {name} {value}"));
            }
        };
        option("-b", baseline.map(str::to_owned));
        option("--sweep", self.sweep.clone());
        option("--metric", self.metric.as_ref().map(ToString::to_string));
        option("--cold", (self.cold != Cold::Never).then(|| self.cold.as_str().to_owned()));
        option("--warm-up", (self.warm_up > 0).then(|| self.warm_up.to_string()));
        option("--settle", (self.settle > 0).then(|| self.settle.to_string()));
        option("--flush", self.flush.map(|bytes| bytes.to_string()));
        command.push_str(&self.common.as_options(Some(self.scale)));
        if let Some(emulate) = &self.emulate {
            command.push_str(&format!(" --emulate {emulate}"));
        }
        if let Some(memory) = self.memory {
            command.push_str(&format!(" --memory {memory}"));
        }
        command
    }
}

/// Label, place and workload.
type Swept = (String, Option<f64>, String);

/// The places of a sweep.
fn swept(text: &str, sweep: &str) -> Result<(Axis, Vec<Swept>), Error> {
    let (key, values) =
        sweep.split_once('=').ok_or_else(|| format!("--sweep {sweep}: write PARAMETER=VALUE,VALUE..."))?;
    let mut places = Vec::new();
    for value in values.split(',') {
        let x = nacre_engine::size::parse(value).map(|bytes| bytes as f64).ok();
        places.push((value.to_owned(), x, format!("{text},{key}={value}")));
    }
    let numbers = places.iter().all(|(_, x, _)| x.is_some());
    if !numbers {
        places.iter_mut().for_each(|(_, x, _)| *x = None);
    }
    let unit = numbers.then_some(if matches!(key, "io" | "file" | "size" | "record") { "B" } else { "" });
    Ok((Axis { name: key.to_owned(), unit: unit.map(str::to_owned), log2: numbers }, places))
}
