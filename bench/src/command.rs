//! The command line of `nacre bench`.

use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use nacre::Emulation;
use nacre_media::disk::Disk;

use crate::figures::FiguresArgs;
use crate::machine::Machine;
use crate::place::Workplace;
use crate::report::command::{CompareArgs, ReportArgs};
use crate::report::merge::{Document, Named};
use crate::report::schema::{Absent, Axis, Options, Report, SCHEMA};
use crate::report::{file, html, text};
use crate::run::effort::Effort;
use crate::run::experiment::{self, Place, Request};
use crate::run::memory::{Groups, LEAST};
use crate::run::rounds::Setting;
use crate::run::stop::Stop;
use crate::run::worker;
use crate::target::disk;
use crate::target::plan::{self, Plan};
use crate::trace::command::TraceCommand;
use crate::workload::group;
use crate::{Error, figures, leftovers, workload};

/// Measures nacre beside other file systems, on the same work, in one run
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run workloads on targets, in turns
    Run(Box<RunArgs>),
    /// Show workloads and targets
    List,
    Report(ReportArgs),
    Compare(CompareArgs),
    Figures(FiguresArgs),
    #[command(subcommand)]
    Trace(TraceCommand),
    /// What works on one target.
    #[command(hide = true)]
    Worker,
    /// What serves an emulated disk.
    #[command(hide = true)]
    Disk(DiskArgs),
}

#[derive(Debug, Args)]
struct DiskArgs {
    /// What it is, as nvme or nvme,flush=0.
    #[arg(long = "as", value_name = "DISK")]
    disk: Disk,
    /// The file with its bytes.
    data: PathBuf,
    /// Where it is mounted.
    dir: PathBuf,
}

/// Runs workloads on targets, in turns, until the ratios are sure enough
///
/// Each workload is an experiment of its own. Targets that cannot be had are reported, and do not fail the run. Ctrl-C
/// ends it; what was finished is reported, and everything that was mounted is gone.
#[derive(Debug, Args)]
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
    #[command(flatten)]
    common: Common,
}

/// What every run takes.
#[derive(Debug, Args)]
struct Common {
    /// How sure figures are to be: quick shows that it runs, default is about 3 %, high 1 %
    #[arg(long, value_name = "EFFORT", default_value = "default")]
    effort: Effort,
    /// Multiply the sizes of workloads
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    scale: f64,
    /// Slow nacre's memory down to this: pcm, optane, or latency=200,bandwidth=1G; dram only counts
    #[arg(long, value_name = "MEMORY")]
    emulate: Option<String>,
    /// Hold the page cache of targets to this (and the process that works on each), with memory cgroups; not that of
    /// tmpfs and ramfs, whose memory is the medium
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<u64>,
    /// Where files go that stand for disks
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Of random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the report to this file, after each experiment; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with charts to this file, after each experiment
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Keep directories and mounts for a look
    #[arg(long)]
    keep: bool,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1e-6..=1e3).contains(&factor) => Ok(factor),
        _ => Err("not a number from 0.000001 to 1000".to_owned()),
    }
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
        Command::Report(args) => args.run(),
        Command::Compare(args) => args.run(),
        Command::Figures(args) => figures::run(args),
        Command::Trace(command) => command.run(),
        Command::Worker => worker::work(),
        Command::Disk(args) => disk::serve(args.disk, &args.data, &args.dir),
    }
}

fn list() -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
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
    Ok(())
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
        let workloads =
            self.workloads.iter().map(|word| group::expand(word)).collect::<Result<Vec<_>, _>>()?;
        let requests = workloads
            .iter()
            .flatten()
            .map(|workload| self.request(workload, &plans, baseline.as_deref()))
            .collect::<Result<Vec<_>, Error>>()?;
        run_all(&self.common, &requests)
    }

    fn request(&self, text: &str, plans: &[Plan], baseline: Option<&str>) -> Result<Request, Error> {
        let work = workload::make(&text.parse()?, self.common.scale)?;
        let (axis, places) = match &self.sweep {
            None => {
                let axis = Axis { name: "workload".into(), unit: None, log2: false };
                let label = text.split(',').next().unwrap_or(text).to_owned();
                (axis, vec![Place { label, x: None, workload: text.to_owned() }])
            }
            Some(sweep) => swept(text, sweep)?,
        };
        for place in &places {
            workload::make(&place.workload.parse()?, self.common.scale)?;
        }
        let mut command = format!("nacre bench run {text}");
        plans.iter().for_each(|plan| command.push_str(&format!(" -t {}", plan.name())));
        if let Some(baseline) = baseline {
            command.push_str(&format!(" -b {baseline}"));
        }
        if let Some(sweep) = &self.sweep {
            command.push_str(&format!(" --sweep {sweep}"));
        }
        command.push_str(&self.common.as_options());
        Ok(Request {
            name: text.to_owned(),
            title: work.describe(),
            about: String::new(),
            paper: None,
            command,
            axis,
            places,
            plans: plans.to_vec(),
            baseline: baseline.map(str::to_owned),
        })
    }
}

/// The places of a sweep.
fn swept(text: &str, sweep: &str) -> Result<(Axis, Vec<Place>), Error> {
    let (key, values) =
        sweep.split_once('=').ok_or_else(|| format!("--sweep {sweep}: write PARAMETER=VALUE,VALUE..."))?;
    let mut places = Vec::new();
    for value in values.split(',') {
        let x = nacre_engine::size::parse(value).map(|bytes| bytes as f64).ok();
        places.push(Place { label: value.to_owned(), x, workload: format!("{text},{key}={value}") });
    }
    let numbers = places.iter().all(|place| place.x.is_some());
    if !numbers {
        places.iter_mut().for_each(|place| place.x = None);
    }
    let unit = numbers.then_some(if matches!(key, "io" | "file" | "size" | "record") { "B" } else { "" });
    Ok((Axis { name: key.to_owned(), unit: unit.map(str::to_owned), log2: numbers }, places))
}

impl Common {
    /// What repeats a run with these options.
    fn as_options(&self) -> String {
        let mut text = format!(" --effort {} --scale {} --seed {}", self.effort.name, self.scale, self.seed);
        if let Some(emulate) = &self.emulate {
            text.push_str(&format!(" --emulate {emulate}"));
        }
        if let Some(memory) = self.memory {
            text.push_str(&format!(" --memory {memory}"));
        }
        text
    }
}

/// Runs experiments, prints each when it is finished, and writes the report.
fn run_all(common: &Common, requests: &[Request]) -> Result<(), Error> {
    if let Some(emulate) = &common.emulate {
        emulate.parse::<Emulation>()?;
    }
    if common.html.as_deref() == Some(Path::new("-")) {
        return Err("--html -: it is written again after each experiment and needs a file".into());
    }
    let stop = Stop::on_signals()?;
    let program = std::env::current_exe()?;
    let disk = common.disk.clone().unwrap_or_else(std::env::temp_dir);
    leftovers::sweep(&std::env::temp_dir(), &disk);
    let place = Workplace::new(common.keep)?;
    let to_stdout = common.json.as_deref() == Some(Path::new("-"));
    let progress = Progress::new(requests.iter().map(|request| request.places.len() as u64).sum());
    let setting = Setting {
        place: &place,
        program: &program,
        disk: &disk,
        emulate: common.emulate.as_deref(),
        memory: common.memory.map(|bytes| Ok::<_, Error>((bytes, Groups::find()?))).transpose()?,
        seed: common.seed,
        scale: common.scale,
        effort: common.effort,
        stop: &stop,
        progress: &|text, share| progress.show(text, share),
    };
    let begin = Instant::now();
    let mut report = Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("NACRE_COMMIT").to_owned(),
        machine: Machine::detect(),
        began: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        seconds: 0.0,
        command: std::env::args().collect(),
        options: Options {
            effort: common.effort.name.to_owned(),
            seed: common.seed,
            scale: common.scale,
            emulate: common.emulate.clone(),
            memory: common.memory,
        },
        complete: false,
        experiments: Vec::new(),
        absent: Vec::new(),
    };
    if !to_stdout {
        println!("{}", report.machine.line());
    }
    for request in requests {
        let mut absent: Vec<Absent> = Vec::new();
        let done = experiment::run(&setting, request, &mut absent)?;
        for missing in absent {
            if !report.absent.contains(&missing) {
                report.absent.push(missing);
            }
        }
        if !to_stdout {
            progress.bar.suspend(|| println!("{}", text::experiment(&done)));
        }
        report.experiments.push(done);
        report.seconds = begin.elapsed().as_secs_f64();
        report.complete = !stop.is_set() && report.experiments.len() == requests.len();
        write(&report, common)?;
        if stop.is_set() {
            break;
        }
    }
    progress.bar.finish_and_clear();
    if to_stdout {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text::tail(&report));
    }
    if report.experiments.iter().all(|experiment| experiment.series.is_empty()) && !stop.is_set() {
        return Err("no target could be measured".into());
    }
    Ok(())
}

/// Writes what was asked for besides standard output.
fn write(report: &Report, common: &Common) -> Result<(), Error> {
    if let Some(path) = common.json.as_deref().filter(|path| *path != Path::new("-")) {
        file::replace(path, &serde_json::to_string_pretty(report)?)?;
    }
    if let Some(path) = &common.html {
        let named = Named { name: String::new(), report: report.clone() };
        file::replace(path, &html::page(&Document::new(vec![named])))?;
    }
    Ok(())
}

/// One line on the terminal that says what happens, and how much of all is behind it.
struct Progress {
    bar: ProgressBar,
    finished: Cell<u64>,
}

impl Progress {
    /// Of this many points.
    fn new(points: u64) -> Progress {
        let bar = ProgressBar::new(points * POINT);
        // Where standard error is no terminal nothing is drawn.
        let style = ProgressStyle::with_template("{elapsed} {bar:24} {percent:>3} % {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, finished: Cell::new(0) }
    }

    fn show(&self, text: &str, share: f64) {
        self.bar.set_position(self.finished.get() * POINT + (share * POINT as f64) as u64);
        self.bar.set_message(text.to_owned());
        self.finished.set(self.finished.get() + u64::from(share >= 1.0));
    }
}

/// Steps of the bar in a point.
const POINT: u64 = 1000;
