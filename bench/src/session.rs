//! The common part of every command that measures: its options, and a report that is valid whenever it ends.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::machine::{self, Machine};
use crate::place::Workplace;
use crate::report::merge::{Document, Named};
use crate::report::schema::{Absent, Experiment, Options, Place, Report, SCHEMA};
use crate::report::{file, html, text};
use crate::run::effort::Effort;
use crate::run::memory::Groups;
use crate::run::rounds::{FoundGroups, Setting};
use crate::run::stop::Stop;
use crate::{Error, leftovers, nacre_program, say};

/// Arguments that every run takes.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The precision of figures: quick shows that everything runs, default is about 3 %, high 1 %
    #[arg(long, value_name = "EFFORT", default_value = "default")]
    pub(crate) effort: Effort,
    /// A directory on a disk, for files that stand for disks; by default that for temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// The seed of random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Where its report goes, and what stays.
#[derive(Debug, Clone, Args)]
pub(crate) struct Output {
    /// Write the report to this file, after each experiment; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a page with charts to this file, after each experiment
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Keep directories and mounts
    #[arg(long)]
    pub(crate) keep: bool,
}

/// A factor for sizes and counts.
pub(crate) fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1e-6..=1e3).contains(&factor) => Ok(factor),
        _ => Err("not a number from 0.000001 to 1000".to_owned()),
    }
}

impl Common {
    /// The options that repeat a run with these options and this factor.
    pub(crate) fn as_options(&self, scale: Option<f64>) -> String {
        let mut text = format!(" --effort {}", self.effort.name);
        if let Some(scale) = scale {
            text.push_str(&format!(" --scale {scale}"));
        }
        if let Some(disk) = &self.disk {
            text.push_str(&format!(" --disk {}", disk.display()));
        }
        text.push_str(&format!(" --seed {}", self.seed));
        text
    }

    /// Where files go that stand for disks.
    pub(crate) fn disk(&self) -> PathBuf {
        self.disk.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Whether the report goes to standard output, and nothing else may.
    pub(crate) fn to_stdout(&self) -> bool {
        self.output.json.as_deref() == Some(Path::new("-"))
    }
}

/// A run: where it happens, and its results so far.
pub(crate) struct Session<'a> {
    common: &'a Common,
    place: Rc<Workplace>,
    program: PathBuf,
    disk: PathBuf,
    stop: Stop,
    groups: FoundGroups,
    progress: Progress,
    begin: Instant,
    report: Report,
    planned: usize,
}

impl<'a> Session<'a> {
    /// Begins one of so many experiments, with so many points together. `options` are those of the report that are not in `common`.
    pub(crate) fn begin(
        common: &'a Common,
        planned: usize,
        points: usize,
        options: impl FnOnce(Options) -> Options,
    ) -> Result<Session<'a>, Error> {
        if common.output.html.as_deref() == Some(Path::new("-")) {
            return Err("--html -: it is written again after each experiment and needs a file".into());
        }
        // A measurement may take hours.
        let json = common.output.json.as_deref().filter(|_| !common.to_stdout());
        json.into_iter().chain(common.output.html.as_deref()).try_for_each(file::check)?;
        let stop = Stop::on_signals()?;
        let disk = common.disk();
        leftovers::sweep(&std::env::temp_dir(), &disk);
        let plain = Options {
            effort: common.effort.name.to_owned(),
            seed: common.seed,
            scale: 1.0,
            emulate: None,
            memory: None,
            cold: None,
            warm_up: None,
            settle: None,
            flush: None,
            disk: Some(Place {
                path: disk.display().to_string(),
                file_system: machine::file_system(&disk).map_err(|error| {
                    format!("{}: {error}: --disk is where files go that stand for disks", disk.display())
                })?,
            }),
        };
        let report = Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: env!("NACRE_COMMIT").to_owned(),
            machine: Machine::detect(),
            began: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            seconds: 0.0,
            command: std::env::args().collect(),
            options: options(plain),
            complete: false,
            experiments: Vec::new(),
            absent: Vec::new(),
        };
        if !common.to_stdout() {
            say::out(&format!("{}\n", report.machine.line()))?;
        }
        Ok(Session {
            common,
            place: Rc::new(Workplace::new(common.output.keep)?),
            program: nacre_program()?,
            disk,
            stop,
            groups: FoundGroups::new(|| Groups::find().map_err(|error| error.to_string())),
            progress: Progress::new(points as u64),
            begin: Instant::now(),
            report,
            planned,
        })
    }

    /// Calls `body` with the setting of experiments.
    pub(crate) fn with_setting<T>(&self, scale: f64, body: impl FnOnce(&Setting<'_>) -> T) -> T {
        body(&Setting {
            place: &self.place,
            program: &self.program,
            disk: &self.disk,
            emulate: self.report.options.emulate.as_deref(),
            memory: self.report.options.memory,
            groups: &self.groups,
            seed: self.common.seed,
            scale,
            effort: self.common.effort,
            stop: &self.stop,
            progress: &|text, share| self.progress.show(text, share),
        })
    }

    /// Where DRAM can be limited, or why not.
    pub(crate) fn groups(&self) -> Result<(), String> {
        self.groups.as_ref().map(drop).map_err(Clone::clone)
    }

    /// Whether it is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }

    /// The flag that tells that.
    pub(crate) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Where it happens.
    pub(crate) fn place(&self) -> Rc<Workplace> {
        self.place.clone()
    }

    /// Notes targets that could not be had.
    pub(crate) fn note(&mut self, absent: Vec<Absent>) {
        for missing in absent {
            if !self.report.absent.contains(&missing) {
                self.report.absent.push(missing);
            }
        }
    }

    /// Notes that a planned experiment cannot be had here: the run is complete without it.
    pub(crate) fn leave_out(&mut self, missing: Absent) {
        self.note(vec![missing]);
        self.planned -= 1;
        self.judge();
    }

    /// Shows an experiment that is finished, and writes the report.
    pub(crate) fn add(&mut self, done: Experiment) -> Result<(), Error> {
        let said = format!("{}\n", text::experiment(&done));
        self.add_as(done, &said)
    }

    /// As [`Session::add`], shown in these words.
    pub(crate) fn add_as(&mut self, done: Experiment, said: &str) -> Result<(), Error> {
        if !self.common.to_stdout() {
            self.progress.bar.suspend(|| say::out(said))?;
        }
        self.report.experiments.push(done);
        self.judge();
        self.write()
    }

    /// Shows that one of its points is finished.
    pub(crate) fn show_finished(&self, point: &str) {
        self.progress.show(point, 1.0);
    }

    fn judge(&mut self) {
        self.report.seconds = self.begin.elapsed().as_secs_f64();
        self.report.complete = !self.stop.is_set() && self.report.experiments.len() == self.planned;
    }

    /// Ends it: the report on standard output where it was asked for there.
    pub(crate) fn finish(self) -> Result<Report, Error> {
        self.progress.bar.finish_and_clear();
        // Targets left out after the last experiment are not written yet.
        self.write()?;
        if self.common.to_stdout() {
            say::out(&format!("{}\n", serde_json::to_string_pretty(&self.report)?))?;
        } else {
            say::out(&text::tail(&self.report))?;
        }
        Ok(self.report)
    }

    /// Writes the requested files besides standard output.
    fn write(&self) -> Result<(), Error> {
        if let Some(path) = self.common.output.json.as_deref().filter(|_| !self.common.to_stdout()) {
            file::replace(path, &serde_json::to_string_pretty(&self.report)?)?;
        }
        if let Some(path) = &self.common.output.html {
            let named = Named { name: String::new(), report: self.report.clone() };
            file::replace(path, &html::page(&Document::new(vec![named])))?;
        }
        Ok(())
    }
}

/// One line on the terminal that shows the current work, and how much of all is behind it.
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
