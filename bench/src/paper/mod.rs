//! The papers' measurements: every figure and table with numbers, as an experiment that can be run here. nacre's own
//! goals for tiers stand with them like one more paper (`catalog/tiers.toml`), because no paper has figures for them.
//!
//! The data lies in `catalog/*.toml`, a file for each paper; [`read`] makes it into the types below and knows every
//! key. docs/reference/papers.md lists the differences from the papers and their reasons. `runs` finds the part of it
//! that can run on this machine. `target` finds the parameters that a system has there, and `command` runs it.
//! [`claims`] puts the statements of a text next to the answers of `answers`.
//!
//! - [`papers`] and [`experiments`] list everything; [`find`] knows experiments, figures and papers by name.
//! - An [`Experiment`] is one chart: [`System`]s, each with the target that stands for it, on the [`Point`]s of an axis,
//!   under [`Settings`]. A figure of several panels is several experiments: `hinfs-fig8.webproxy`.
//! - A [`Value`] is a number from a text or a table; numbers that only a picture shows are left out. A [`Goal`] next
//!   to it is nacre's own target.
//!
//! Sizes are the papers'; a run multiplies sizes and counts by one factor. The metric is the paper's, too, also where
//! the workload has another by default.

mod answers;
mod claims;
pub(crate) mod command;
mod estimate;
mod list;
mod read;
mod runs;
mod target;

use std::str::FromStr;
use std::sync::LazyLock;

use nacre_engine::size;
use serde::Deserialize;

pub use claims::{Answers, Asked, Reading};

use crate::report::schema::{Axis, Bound, Meant, Metric};
use crate::run::cold::Cold;

/// A paper.
#[derive(Debug, Clone, PartialEq)]
pub struct Paper {
    /// A word for the command line: `hinfs`.
    pub name: String,
    /// The name that it gives its system.
    pub short: String,
    /// Title and where it appeared.
    pub title: String,
    /// In the order of the paper.
    pub experiments: Vec<Experiment>,
    /// Its statements about several experiments together.
    pub overall: Vec<Overall>,
}

/// One chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// `hinfs-fig7`, or with a panel `hinfs-fig8.webproxy`.
    pub name: String,
    /// The system of the paper, and where it stands there: `HiNFS`, `figure 7`.
    pub paper: String,
    /// As [`Experiment::paper`].
    pub figure: String,
    /// For people.
    pub title: String,
    /// The work, and the points to look at.
    pub about: String,
    /// Differences from the paper, and their reasons.
    pub differs: String,
    /// The metric of its values.
    pub metric: Metric,
    /// Where values are taken from.
    pub taken: Taken,
    /// The labels below the chart.
    pub axis: Axis,
    /// Some points of the axis are ours: the paper has them only in a picture, or not at all.
    pub chosen: bool,
    /// The system that charts are relative to.
    pub baseline: Option<String>,
    /// In the order of the chart.
    pub systems: Vec<System>,
    /// Of all systems and points; see [`Experiment::settings`].
    pub common: Settings,
    /// In the order of the axis.
    pub points: Vec<Point>,
    /// The paper's values.
    pub values: Vec<Value>,
}

/// Where the value of a run is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// Operations, bytes or time of the workload, as the metric's unit says.
    Workload,
    /// The mean latency of this kind of operation, or of `all`.
    Latency(String),
    /// A counter of this name: one of [`crate::counters`].
    Counter(String),
}

/// Something that is compared.
#[derive(Debug, Clone, PartialEq)]
pub struct System {
    /// As the paper calls it.
    pub name: String,
    /// `preset:hinfs` or `peer:ext4`; none where nothing stands for it, and then the reason.
    pub target: Result<String, String>,
    /// Remarks on it, or on its stand-in.
    pub about: String,
    /// Its own.
    pub settings: Settings,
}

/// Which way nacre's operations go. Peers are always reached through the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// In the same process.
    #[serde(rename = "process")]
    Library,
    /// Through FUSE.
    Mount,
}

/// A place of the axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The key that values refer to: `4k`, `webproxy`.
    pub key: String,
    /// The label below the chart: `4 KiB`; a stand-in is named.
    pub label: String,
    /// Its place in a sweep: bytes, nanoseconds, threads, percent.
    pub x: Option<f64>,
    /// The workload; the reason where it cannot be had.
    pub workload: Result<String, String>,
    /// Its own.
    pub settings: Settings,
}

/// How things are set up. Settings that are not given are up to the user who runs it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Persistent memory, in the words of `--emulate`.
    pub emulate: Option<String>,
    /// Cores of the paper's machine, where their number keeps the PM busy: fewer cores of ours get the same share of
    /// its bandwidths.
    pub cores: Option<u64>,
    /// All data of the workload, in bytes. Shares refer to it where the workload does not know better.
    pub data: Option<String>,
    /// Buffer or cache of nacre, and page cache of its peers: an [`Amount`].
    pub dram: Option<String>,
    /// Persistent memory that a system may use: an [`Amount`].
    pub pm: Option<String>,
    /// An emulated disk below, of peers that have one and of presets with tiers: `optane-ssd`, `nvme`, `sata-ssd`, `hdd`.
    pub disk: Option<String>,
    /// For nacre, in the words of `mount -o`; sizes among them are not scaled: `group=16m`. A share ending in
    /// `-of-data` is one of the data of the workload. `buffer`, `writeback` and `through`, a word of ours, are for
    /// mounts: only they need to be told whether writes wait here, in the kernel or nowhere.
    pub options: Option<String>,
    /// How long the paper runs, in seconds.
    pub seconds: Option<u64>,
    /// How many times the paper runs it.
    pub runs: Option<u64>,
    /// When the page cache is emptied.
    pub cold: Option<Cold>,
    /// The work ran twice before, so that the file system is used.
    pub aged: Option<bool>,
    /// Work goes on for so many seconds before the rounds that count. Systems that move data while it is used are
    /// measured after the move, as in a paper that runs for minutes. Not with the effort `quick`.
    pub settles: Option<u64>,
    /// A round writes as much as `dram` so many times, and ends when all of that is durable. Otherwise the data left
    /// in a buffer at the end would cost nothing.
    pub wraps: Option<u64>,
    /// The paper's machine, to be shown.
    pub machine: Option<String>,
}

/// An amount of PM or DRAM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Bytes, to be scaled with the data.
    Bytes(u64),
    /// A share of the data: 0.1 is a tenth.
    Share(f64),
}

impl FromStr for Amount {
    type Err = String;

    /// `2g` or `10%`.
    fn from_str(text: &str) -> Result<Amount, String> {
        match text.strip_suffix('%') {
            None => size::parse(text).map(Amount::Bytes),
            Some(percent) => match percent.parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent.is_finite() => Ok(Amount::Share(percent / 100.0)),
                _ => Err(format!("{text:?} is no share, as 10%")),
            },
        }
    }
}

/// A statement about an experiment: a ratio of two systems, or a value by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// These systems.
    pub of: Vec<String>,
    /// Over these: each with each, or in pairs where both lists are equally long. Nothing for a value by itself.
    pub over: Vec<String>,
    /// At these points.
    pub at: Vec<String>,
    /// Where the other system is, if it is not at the same point.
    pub over_at: Option<OverAt>,
    /// The ratio, or the value in the unit of the metric.
    pub said: f64,
    /// How it is meant.
    pub is: Meant,
    /// How several pairs and points make one value.
    pub across: Across,
    /// The origin of the value.
    pub source: Source,
    /// Where, if not at the figure.
    pub place: Option<String>,
    /// The bound that nacre aims at.
    pub goal: Option<Bound>,
    /// The only way on which the bound holds or is missed, where it is of one. On the other the values are shown.
    pub goal_on: Option<Way>,
    /// It is looked for on both ways, also where no peer is in it.
    pub on_both: bool,
    /// A counter that it speaks of, instead of the experiment's metric.
    pub counter: Option<String>,
    /// Further remarks.
    pub note: String,
}

/// A value of several experiments, at all of their points or at those that it names, which all of them have.
#[derive(Debug, Clone, PartialEq)]
pub struct Overall {
    /// The statement. An empty list of points is all of them.
    pub value: Value,
    /// Names that [`find`] knows.
    pub experiments: Vec<String>,
}

/// The point of the system below the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverAt {
    /// This one.
    Point(String),
    /// The one where it is best.
    Best,
}

/// How several pairs and points make one value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Across {
    /// It is said of each.
    #[default]
    Each,
    /// Of their mean.
    Mean,
    /// Of the largest: `up to`.
    Most,
    /// Of the smallest.
    Least,
}

/// The origin of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The paper's text.
    #[default]
    Text,
    /// A table of it.
    Table,
    /// nacre itself, not a paper.
    Nacre,
}

/// Every paper.
pub fn papers() -> &'static [Paper] {
    static PAPERS: LazyLock<Vec<Paper>> =
        LazyLock::new(|| read::all().expect("the catalogs are part of the program, and a test reads them"));
    &PAPERS
}

/// Every experiment, in the order of papers and figures.
pub fn experiments() -> impl Iterator<Item = &'static Experiment> {
    papers().iter().flat_map(|paper| &paper.experiments)
}

/// The experiments with a name: one, all panels of a figure (`hinfs-fig8`), all figures that are parts of one
/// (`hinfs-fig10` for `hinfs-fig10a` and `hinfs-fig10b`), or all of a paper (`hinfs`). Empty where there are none.
pub fn find(name: &str) -> Vec<&'static Experiment> {
    experiments().filter(|experiment| experiment.answers_to(name)).collect()
}

impl Experiment {
    /// Whether [`find`] gives it for this name.
    pub fn answers_to(&self, name: &str) -> bool {
        let figure = self.name.split('.').next().unwrap_or_default();
        let part = |whole: &str| {
            whole.strip_prefix(name).is_some_and(|rest| {
                let ends_in_digit = name.ends_with(|last: char| last.is_ascii_digit());
                ends_in_digit && rest.len() == 1 && rest.bytes().all(|byte| byte.is_ascii_lowercase())
            })
        };
        self.name == name || figure == name || part(figure) || figure.split('-').next() == Some(name)
    }

    /// The system with this name.
    pub fn system(&self, name: &str) -> Option<&System> {
        self.systems.iter().find(|system| system.name == name)
    }

    /// The point with this key.
    pub fn point(&self, key: &str) -> Option<&Point> {
        self.points.iter().find(|point| point.key == key)
    }

    /// The setup of a system at a point. The point's settings take precedence over the system's, and the system's over
    /// the common ones.
    pub fn settings(&self, system: &System, point: &Point) -> Settings {
        let mut settings = point.settings.or(&system.settings).or(&self.common);
        // A system's own settings may follow the sweep, too.
        for text in settings.texts().into_iter().flatten() {
            if text.contains(read::PLACE) {
                *text = text.replace(read::PLACE, &point.key);
            }
        }
        settings
    }

    /// Whether file systems of the kernel are among the systems.
    pub fn has_peers(&self) -> bool {
        self.systems
            .iter()
            .any(|system| system.target.as_ref().is_ok_and(|target| target.starts_with("peer:")))
    }

    /// The ways in which nacre's presets run: in the process, unless every workload needs a directory, and mounted, where
    /// a workload does or where peers pay for system calls.
    pub fn ways(&self) -> Vec<Way> {
        let (outside, inside): (Vec<&Point>, Vec<&Point>) = self
            .points
            .iter()
            .filter(|point| point.workload.is_ok())
            .partition(|point| point.needs_directory());
        let mut ways = Vec::new();
        if !inside.is_empty() {
            ways.push(Way::Library);
        }
        if !outside.is_empty() || self.has_peers() {
            ways.push(Way::Mount);
        }
        ways
    }
}

impl Point {
    /// Whether the workload is another program, which finds files by path only.
    pub fn needs_directory(&self) -> bool {
        self.workload.as_ref().is_ok_and(|workload| workload.starts_with("program."))
    }
}

impl System {
    /// Its target on one of the ways: `mount:hinfs` for `preset:hinfs`. Peers have the same on both.
    pub fn target(&self, way: Way) -> Option<String> {
        let target = self.target.as_ref().ok()?;
        Some(match (way, target.strip_prefix("preset:")) {
            (Way::Mount, Some(preset)) => format!("mount:{preset}"),
            _ => target.clone(),
        })
    }
}

impl Settings {
    /// These, and the others where these say nothing.
    pub fn or(&self, other: &Settings) -> Settings {
        let text =
            |mine: &Option<String>, theirs: &Option<String>| mine.as_ref().or(theirs.as_ref()).cloned();
        Settings {
            emulate: text(&self.emulate, &other.emulate),
            cores: self.cores.or(other.cores),
            data: text(&self.data, &other.data),
            dram: text(&self.dram, &other.dram),
            pm: text(&self.pm, &other.pm),
            disk: text(&self.disk, &other.disk),
            options: text(&self.options, &other.options),
            seconds: self.seconds.or(other.seconds),
            runs: self.runs.or(other.runs),
            cold: self.cold.or(other.cold),
            aged: self.aged.or(other.aged),
            settles: self.settles.or(other.settles),
            wraps: self.wraps.or(other.wraps),
            machine: text(&self.machine, &other.machine),
        }
    }

    /// Every text of these, to be changed.
    fn texts(&mut self) -> [&mut Option<String>; 7] {
        [
            &mut self.emulate,
            &mut self.data,
            &mut self.dram,
            &mut self.pm,
            &mut self.disk,
            &mut self.options,
            &mut self.machine,
        ]
    }
}

#[cfg(test)]
mod tests;
