//! `nacre crash`: crashes a layout at every fence of many workloads, over simulated memory. The command touches no
//! device.

use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use nacre_lab::crash::sequences::Length;
use nacre_lab::crash::{
    COVERED, Campaign, Case, Elsewhere, Inplace, InplaceLinear, Limits, Log, LogWithDisk, MEMORY, Mutant,
    Outcome, Pool, PoolVolumes, Progress, Rig, SelfTest, SelfTestStep, Shadow, ShadowInPlace,
    ShadowInPlaceWithDisk, ShadowWithDisk, Stage, Subject, Verdict, minimise, reproduce, self_test,
};
use serde_json::{Value, json};

use crate::failure::{EXIT_FAILURE, Failure};
use crate::output;

/// The workloads of a run that must cover every commit point.
const LONG_RUN: &str = "all workloads, pairs of operations among them";
/// The time between lines of progress when standard error is no terminal.
const SLOW_PROGRESS: Duration = Duration::from_secs(30);
/// The same of a self-test, which takes hours.
const SELF_TEST_PROGRESS: Duration = Duration::from_secs(60);

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre crash --layout inplace --seed 7
      Explores the in-place layout, with another seed.
  nacre crash --self-test
      Leaves out flushes and fences, one at a time, and checks that the explorer notices each.

Exit status:
  0   no violation was found
  1   a violation, too few images at a commit point, or failure
  2   a wrong command line
";

/// Arguments of `nacre crash`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct CrashArgs {
    /// The layout
    #[arg(long, value_enum, value_name = "LAYOUT", default_value = "log")]
    layout: Explored,
    /// Sequences of operations: each alone, each pair as well, or a sample of triples as well
    #[arg(long, value_enum, value_name = "LENGTH", default_value = "2")]
    sequences: Sequences,
    /// The number of triples in 3-sample
    #[arg(long, value_name = "COUNT", default_value_t = 4000)]
    triples: usize,
    /// Random workloads of some dozen operations
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    random: usize,
    /// Interleavings of each workload of several threads
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    threads: u64,
    /// Explore only this number of random sequences through a write buffer over the layout. Synchronised data must be
    /// there, any other data may be missing, and nothing is torn. With disks, buffered data goes to them, too, and blocks
    /// move meanwhile
    #[arg(long, value_name = "COUNT", value_parser = at_least_one::<u64>,
        conflicts_with_all = ["sequences", "triples", "random", "threads", "self_test"])]
    cached: Option<u64>,
    /// The seed of samples and random workloads
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Threads; the number of CPUs by default
    #[arg(long, value_name = "COUNT", value_parser = at_least_one::<usize>)]
    jobs: Option<usize>,
    /// Stop after this number of seconds. Until then the run is spread over the workloads as with --images
    #[arg(long, value_name = "SECONDS", value_parser = at_least_one::<u64>)]
    time: Option<u64>,
    /// Stop after this number of images. Until then the run is spread over the workloads. It tries few images of each
    /// crash point of one workload of each kind. The other workloads follow, first those of kinds that reach a commit
    /// point with fewer than 100 images. In the end each is explored in full. With --resume, all are explored in full,
    /// one after the other. With --self-test: look no longer for a mutant that is argued to do no harm
    #[arg(long, value_name = "COUNT", value_parser = at_least_one::<u64>)]
    images: Option<u64>,
    /// Stop after this number of violations
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = at_least_one::<usize>)]
    violations: usize,
    /// Go on from the state in this file, and keep it up to date
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// The directory for traces of violations
    #[arg(long, value_name = "DIR", default_value = ".")]
    traces: PathBuf,
    /// Produce the crash of a trace again, and nothing else
    #[arg(long, value_name = "FILE", conflicts_with_all = ["resume", "self_test"])]
    replay: Option<PathBuf>,
    /// Check that mutants are found: one without each flush or fence, one with each known mistake of the layout and of a
    /// write buffer over it. Some workload must pass every line of the layout that flushes or fences
    #[arg(long, conflicts_with = "resume")]
    self_test: bool,
    /// With --self-test: only mutants whose name contains this
    #[arg(long, value_name = "TEXT", requires = "self_test")]
    mutants: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The layout under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Explored {
    /// A log per inode
    Log,
    /// The same over PM and a disk, which are crashed together. Blocks move, disks come and go; with --cached, large
    /// asynchronous writes go to the disk
    LogWithDisk,
    /// The same, where writes of whole blocks go straight to the disk; with --cached, all whole blocks that leave the buffer
    LogOnDisk,
    /// As log-with-disk over PM and two disks: blocks also move from one to the other
    LogWithDisks,
    /// Data in place, an undo journal
    Inplace,
    /// The same without an index of names, as the presets pmfs and hinfs have it
    InplaceLinear,
    /// All metadata twice, in pools of entries
    Pool,
    /// The same with volumes that are made, removed, and mounted in turn
    PoolVolumes,
    /// Trees that one word, one slot or one switch publishes
    Shadow,
    /// The same with written blocks overwritten in place, as the preset acbpfs has it
    ShadowInPlace,
    /// As shadow, over PM and a disk, which are crashed together while blocks move
    ShadowWithDisk,
    /// The same with anti-caching, which evicts blocks and brings them up
    ShadowAnticache,
    /// The same as the preset acbpfs has it
    ShadowInPlaceAnticache,
}

/// The length of sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sequences {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
    #[value(name = "3-sample")]
    Three,
}

/// Runs the exploration.
pub(crate) fn run(args: &CrashArgs) -> Result<ExitCode, Failure> {
    match args.layout {
        Explored::Log => run_on(&Log, args),
        Explored::LogWithDisk => run_on(&LogWithDisk::default(), args),
        Explored::LogOnDisk => run_on(&LogWithDisk::ON_DISK, args),
        Explored::LogWithDisks => run_on(&LogWithDisk::with_two(), args),
        Explored::Inplace => run_on(&Inplace, args),
        Explored::InplaceLinear => run_on(&InplaceLinear, args),
        Explored::Pool => run_on(&Pool, args),
        Explored::PoolVolumes => run_on(&PoolVolumes, args),
        Explored::Shadow => run_on(&Shadow, args),
        Explored::ShadowInPlace => run_on(&ShadowInPlace, args),
        Explored::ShadowWithDisk => run_on(&ShadowWithDisk::default(), args),
        Explored::ShadowAnticache => run_on(&ShadowWithDisk::anticached(), args),
        Explored::ShadowInPlaceAnticache => run_on(&ShadowInPlaceWithDisk::anticached(), args),
    }
}

fn run_on<S: Subject>(subject: &S, args: &CrashArgs) -> Result<ExitCode, Failure> {
    let is_good = match &args.replay {
        Some(file) => replay(subject, file, args.json)?,
        None if args.self_test => run_self_test(subject, args)?,
        None => explore(subject, args)?,
    };
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILURE) })
}

fn at_least_one<T: FromStr + Default + PartialOrd>(text: &str) -> Result<T, String> {
    text.parse()
        .ok()
        .filter(|count| *count > T::default())
        .ok_or_else(|| format!("{text:?} is no number of them; give 1 or more"))
}

impl CrashArgs {
    fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn campaign(&self) -> Campaign {
        if let Some(count) = self.cached {
            return Campaign { seed: self.seed, stages: vec![Stage::Cached(count)], per_point: None };
        }
        let mut stages = vec![
            Stage::Own,
            Stage::Fixed,
            Stage::Sequences(Length::One),
            Stage::Lanes,
            Stage::Full(1),
            Stage::Threads(self.threads),
            Stage::Random(self.random),
            Stage::Deep,
        ];
        if self.sequences != Sequences::One {
            stages.push(Stage::Sequences(Length::Two));
        }
        if self.sequences == Sequences::Three {
            stages.push(Stage::Sequences(Length::Three(self.triples)));
        }
        Campaign { seed: self.seed, stages, per_point: None }
    }
}

fn explore<S: Subject>(subject: &S, args: &CrashArgs) -> Result<bool, Failure> {
    let limits = Limits {
        jobs: args.jobs(),
        time: args.time.map(Duration::from_secs),
        images: args.images,
        violations: args.violations,
    };
    let mut line = ProgressLine::new(SLOW_PROGRESS);
    let outcome = args.campaign().run(subject, &limits, args.resume.as_deref(), &mut |progress| {
        line.show(&describe_progress(progress));
    })?;
    line.clear();
    let traces = write_traces(subject, &outcome, &args.traces)?;
    let coverage = Coverage::new(subject, args, &outcome);
    if args.json {
        output::json(outcome_json(subject, args, &outcome, &coverage, &traces))?;
    } else {
        output::text_out(&(describe(&outcome, &coverage, &traces) + &left_out(subject)))?;
    }
    Ok(outcome.is_good() && !coverage.fails())
}

/// The images at each commit point of the layout.
struct Coverage {
    counts: Vec<(&'static str, u64)>,
    /// Commit points that other runs cover.
    elsewhere: Vec<Elsewhere>,
    /// True if this run must have enough images at each commit point.
    is_demanded: bool,
}

impl Coverage {
    fn new<S: Subject>(subject: &S, args: &CrashArgs, outcome: &Outcome) -> Coverage {
        let counts =
            subject.commit_points().iter().copied().zip(outcome.report.commit_points.iter().copied());
        let is_complete = outcome.workloads.0 == outcome.workloads.1;
        Coverage {
            counts: counts.collect(),
            elsewhere: subject.elsewhere(args.cached.is_some()),
            is_demanded: is_complete
                && args.sequences != Sequences::One
                && args.cached.is_none()
                && outcome.is_good(),
        }
    }

    /// Why this run need not cover a commit point.
    fn reason(&self, name: &str) -> Option<&'static str> {
        self.elsewhere.iter().find(|other| other.points.contains(&name)).map(|other| other.reason)
    }

    /// The commit points that this run is to cover.
    fn own(&self) -> impl Iterator<Item = &(&'static str, u64)> {
        self.counts.iter().filter(|(name, _)| self.reason(name).is_none())
    }

    fn missing(&self) -> impl Iterator<Item = &(&'static str, u64)> {
        self.own().filter(|(_, count)| *count < COVERED)
    }

    fn fails(&self) -> bool {
        self.is_demanded && self.missing().next().is_some()
    }

    fn least(&self) -> Option<&(&'static str, u64)> {
        self.own().min_by_key(|(_, count)| *count)
    }

    /// The end of a report: the least covered commit point, and those with too few images. Those that other runs cover
    /// are named with the reason.
    fn in_words(&self) -> String {
        let mut text = String::new();
        if let Some((name, count)) = self.least() {
            text += &format!("least images at a commit point: {count}, at \"{name}\"\n");
        }
        for (name, count) in self.missing() {
            let word = if self.is_demanded { "NOT COVERED" } else { "not covered by this run" };
            text += &format!("{word}: {count} images at \"{name}\", fewer than {COVERED}\n");
        }
        for other in &self.elsewhere {
            let few =
                self.counts.iter().filter(|(name, count)| other.points.contains(name) && *count < COVERED);
            let few: Vec<String> = few.map(|(name, count)| format!("\"{name}\" ({count} images)")).collect();
            if !few.is_empty() {
                text += &format!("covered elsewhere: {}: {}\n", few.join(", "), other.reason);
            }
        }
        if self.fails() {
            text +=
                &format!("failed: a run of {LONG_RUN}, has at least {COVERED} images at each commit point\n");
        }
        text
    }
}

/// The deep workloads that are not for a layout, with the reasons.
fn left_out<S: Subject>(subject: &S) -> String {
    let lines = subject.left_out().iter();
    lines.map(|(name, reason)| format!("left out: workloads {name}-*: {reason}\n")).collect()
}

fn rate(images: u64, elapsed: Duration) -> f64 {
    images as f64 / elapsed.as_secs_f64().max(0.001)
}

/// Workloads that are explored, of how many, and how many of them in full.
fn workloads(visited: usize, (done, all): (usize, usize)) -> String {
    let in_full = if done == visited { String::new() } else { format!(" ({done} of them in full)") };
    format!("{visited} of {all} workloads{in_full}")
}

fn describe_progress(progress: &Progress<'_>) -> String {
    let covered = progress.report.commit_points.iter().filter(|&&count| count >= COVERED).count();
    format!(
        "{}, {} images, {:.0} images/s, {}, {covered} of {} commit points covered",
        workloads(progress.visited, progress.workloads),
        progress.report.images + progress.report.recovery_crashes,
        rate(progress.images, progress.elapsed),
        output::count(progress.report.violations.len() as u64, "violation", "violations"),
        progress.report.commit_points.len(),
    )
}

/// Makes each violation smaller and writes it to a file.
fn write_traces<S: Subject>(subject: &S, outcome: &Outcome, dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut rig = Rig::new(subject, MEMORY);
    let mut files = Vec::new();
    for (index, violation) in outcome.report.violations.iter().enumerate() {
        let smaller = minimise(&mut rig, violation)?;
        let mut words = vec![smaller.situation.clone()];
        words.extend(smaller.problems.iter().take(20).cloned());
        let text = smaller.case.to_text(subject, &words);
        let file = dir.join(format!("nacre-crash-{}.trace", index + 1));
        std::fs::write(&file, text).map_err(|error| Failure::new("write", file.display(), error))?;
        files.push(file);
    }
    Ok(files)
}

fn describe(outcome: &Outcome, coverage: &Coverage, traces: &[PathBuf]) -> String {
    let report = &outcome.report;
    let counts = coverage.counts.iter();
    let rows: Vec<Vec<String>> =
        counts.map(|(name, count)| vec![(*name).to_owned(), count.to_string()]).collect();
    let mut text = output::table(&["commit point ", "images"], &rows);
    text += &format!(
        "\n{} in {:.0} s, {:.0} images/s\n{report}",
        workloads(outcome.visited, outcome.workloads),
        outcome.elapsed.as_secs_f64(),
        rate(outcome.images, outcome.elapsed),
    );
    for trace in traces {
        text += &format!("nacre crash --replay {}\n", trace.display());
    }
    for failure in &outcome.failures {
        text += &format!("could not be run: {failure}\n");
    }
    text + &coverage.in_words()
}

fn outcome_json<S: Subject>(
    subject: &S,
    args: &CrashArgs,
    outcome: &Outcome,
    coverage: &Coverage,
    traces: &[PathBuf],
) -> Value {
    let report = &outcome.report;
    let point = |(name, count): &(&str, u64)| {
        let elsewhere = coverage.reason(name);
        json!({ "name": name, "images": count, "covered": *count >= COVERED, "elsewhere": elsewhere })
    };
    let points: Vec<Value> = coverage.counts.iter().map(point).collect();
    let violations: Vec<Value> = report
        .violations
        .iter()
        .zip(traces)
        .map(|(violation, trace)| {
            json!({
                "workload": violation.case.name(),
                "situation": violation.situation,
                "problems": violation.problems,
                "trace": trace.display().to_string(),
            })
        })
        .collect();
    let left_out = subject.left_out().iter();
    let left_out: Vec<Value> =
        left_out.map(|(name, reason)| json!({ "workloads": name, "why": reason })).collect();
    json!({
        "layout": subject.name(),
        "seed": args.seed,
        "complete": outcome.workloads.0 == outcome.workloads.1,
        "workloads": { "visited": outcome.visited, "done": outcome.workloads.0, "all": outcome.workloads.1 },
        "seconds": outcome.elapsed.as_secs_f64(),
        "images_per_second": rate(outcome.images, outcome.elapsed),
        "crash_points": { "all": report.points, "exhaustive": report.exhaustive },
        "images": {
            "different": report.images,
            "repeated": report.repeated,
            "checked": report.checked,
            "emptied": report.emptied,
            "in_recovery": report.recovery_crashes,
        },
        "commit_points": points,
        "least_at_a_commit_point": coverage.least().map(|(_, count)| count),
        "commit_points_fail": coverage.fails(),
        "violations": violations,
        "failures": outcome.failures,
        "left_out": left_out,
    })
}

fn replay<S: Subject>(subject: &S, file: &Path, as_json: bool) -> Result<bool, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure::new("read", file.display(), error))?;
    let (layout, case) = Case::parse(&text).map_err(|error| Failure::on("crash", file, &error))?;
    if layout != subject.name() {
        return Err(Failure::usage(format!("{}: this is a trace of the layout {layout}", file.display())));
    }
    let (situation, problems) = reproduce(&mut Rig::new(subject, MEMORY), &case)?;
    if as_json {
        output::json(json!({ "layout": layout, "situation": situation, "problems": problems }))?;
    } else {
        let mut text = format!("{situation}\n");
        for problem in &problems {
            text += &format!("    {problem}\n");
        }
        if problems.is_empty() {
            text += "    nothing is wrong\n";
        }
        output::text_out(&text)?;
    }
    Ok(problems.is_empty())
}

fn run_self_test<S: Subject>(subject: &S, args: &CrashArgs) -> Result<bool, Failure> {
    let started = Instant::now();
    let only = args.mutants.as_deref().unwrap_or_default();
    let line = Mutex::new(ProgressLine::new(SELF_TEST_PROGRESS));
    let test = SelfTest { seed: args.seed, only, argued: args.images };
    let mutants = self_test(subject, args.jobs(), test, &|step| {
        show_step(&mut line.lock().unwrap_or_else(PoisonError::into_inner), step);
    });
    line.into_inner().unwrap_or_else(PoisonError::into_inner).clear();
    let mutants = mutants?;
    if mutants.is_empty() {
        return Err(Failure::usage(format!("crash: no mutant has \"{only}\" in its name")));
    }
    let missed = mutants.iter().filter(|mutant| !mutant.is_good()).count();
    if args.json {
        let mutants: Vec<Value> = mutants
            .iter()
            .map(|mutant| {
                let (word, why) = verdict(mutant);
                json!({ "kind": mutant.kind, "name": mutant.name, "verdict": word, "why": why, "images": mutant.images })
            })
            .collect();
        let seconds = started.elapsed().as_secs_f64();
        output::json(
            json!({ "layout": subject.name(), "seconds": seconds, "missed": missed, "mutants": mutants }),
        )?;
    } else {
        let rows: Vec<Vec<String>> = mutants
            .iter()
            .map(|mutant| {
                let (word, why) = verdict(mutant);
                let why: String = why.chars().take(100).collect();
                vec![
                    mutant.kind.to_owned(),
                    mutant.name.clone(),
                    mutant.images.to_string(),
                    word.to_owned(),
                    why,
                ]
            })
            .collect();
        let mut text = output::table(&["what ", "where ", "images", "verdict ", "why "], &rows);
        text += &format!(
            "\n{} mutants, {missed} not found and not argued, {:.0} s\n",
            mutants.len(),
            started.elapsed().as_secs_f64()
        );
        output::text_out(&(text + &left_out(subject)))?;
    }
    Ok(missed == 0)
}

/// How far a self-test is. A mutant that makes it fail has its line at once.
fn show_step(line: &mut ProgressLine, step: SelfTestStep<'_>) {
    match step {
        SelfTestStep::Prepared(done, all) => line.show(&format!("{done} of {all} workloads prepared")),
        SelfTestStep::Tried(mutant, done, all) => {
            if !mutant.is_good() {
                line.keep(&format!("{}: {}: {}", mutant.kind, mutant.name, verdict(mutant).0));
            }
            line.show(&format!(
                "{done} of {all} mutants tried, the last one {}: {}",
                mutant.kind, mutant.name
            ));
        }
    }
}

fn verdict(mutant: &Mutant) -> (&'static str, &str) {
    match &mutant.verdict {
        Verdict::Found(problem) => ("found", problem),
        Verdict::Argued(argument) => ("harmless", argument),
        Verdict::Missed => ("MISSED", ""),
        Verdict::WronglyArgued(problem) => ("NOT HARMLESS", problem),
    }
}

/// A progress line on standard error: overwritten on a terminal, otherwise a new line from time to time.
struct ProgressLine {
    is_terminal: bool,
    pause: Duration,
    last: Option<Instant>,
    width: usize,
}

impl ProgressLine {
    /// Where each line is a new one, there are none within `pause` of each other.
    fn new(pause: Duration) -> ProgressLine {
        ProgressLine { is_terminal: std::io::stderr().is_terminal(), pause, last: None, width: 0 }
    }

    fn show(&mut self, text: &str) {
        // A progress line that cannot be written is no loss.
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r{text:width$}", width = self.width);
            self.width = text.chars().count();
        } else if self.last.is_none_or(|last| last.elapsed() >= self.pause) {
            if self.last.is_some() {
                let _ = writeln!(std::io::stderr(), "{text}");
            }
            self.last = Some(Instant::now());
        }
    }

    /// Writes a line that stays.
    fn keep(&mut self, text: &str) {
        self.clear();
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    fn clear(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r{:width$}\r", "", width = self.width);
            self.width = 0;
        }
    }
}
