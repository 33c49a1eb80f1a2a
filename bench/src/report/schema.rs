//! The document of a run: every sample, the machine, the commit, and how to do it again.
//!
//! [`SCHEMA`] is raised when a field changes its meaning or goes away, or when a reader would miss an addition; older
//! documents are read for ever. Times are in nanoseconds, sizes in bytes, moments in RFC 3339 and UTC, unless a unit
//! is given.
//!
//! - 1: the first.
//! - 2: figures of papers. The name of a series ([`Series::target`]) may have the paper's name before the target,
//!   which stands in [`Point::target`] then; [`Experiment::waits`], [`Claim::meant`] and [`Claim::unit`].
//! - 3: all options of a run ([`Options::cold`], [`Options::warm_up`], [`Options::flush`], [`Options::disk`]), the
//!   factor of each experiment ([`Experiment::scale`]), and the rounds that belong together ([`Point::sittings`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::machine::Machine;

/// The version of the document.
pub const SCHEMA: u32 = 3;

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`] when it was written.
    pub schema: u32,
    /// The version of nacre, and the commit it was built from; a `+` behind it means that files were changed.
    pub version: String,
    /// As [`Report::version`].
    pub commit: String,
    /// Where it ran.
    pub machine: Machine,
    /// When it began.
    pub began: String,
    /// How long it took.
    pub seconds: f64,
    /// The command line.
    pub command: Vec<String>,
    /// The options in use, given or by default.
    pub options: Options,
    /// False when it was interrupted: the parts here were finished.
    pub complete: bool,
    /// In the order in which they ran.
    pub experiments: Vec<Experiment>,
    /// Requested targets that could not be had.
    pub absent: Vec<Absent>,
}

/// The options of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// `quick`, `default` or `high`.
    pub effort: String,
    /// Of random numbers.
    pub seed: u64,
    /// Sizes of workloads were multiplied by this; not a number where experiments had different factors, which stand in
    /// [`Experiment::scale`].
    #[serde(deserialize_with = "number")]
    pub scale: f64,
    /// The emulation of persistent memory, in the words of `--emulate`.
    pub emulate: Option<String>,
    /// The limit of the page cache of targets, in bytes.
    #[serde(default)]
    pub memory: Option<u64>,
    /// When page caches were emptied, in the words of `--cold`. Here and below: none where that is up to each experiment, and
    /// in documents before version 3.
    #[serde(default)]
    pub cold: Option<String>,
    /// Rounds before those that count, at least.
    #[serde(default)]
    pub warm_up: Option<u64>,
    /// Seconds of work before those, at least.
    #[serde(default)]
    pub settle: Option<u64>,
    /// Bytes that each round wrote at least before the sync that ended it; none also where no sync did.
    #[serde(default)]
    pub flush: Option<u64>,
    /// Where files went that stood for disks.
    #[serde(default)]
    pub disk: Option<Place>,
}

/// A directory, and the medium below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub path: String,
    /// The kind of its file system: `ext4`, `tmpfs`.
    pub file_system: String,
}

impl Place {
    /// In words.
    pub fn words(&self) -> String {
        format!("{} ({})", self.path, self.file_system)
    }
}

/// A part that could not be had, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// A target, a workload, or an experiment.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// One comparison: a chart of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Experiment {
    /// A short name, unique in a report: `micro.write`, `hinfs-fig7`.
    pub name: String,
    /// For people.
    pub title: String,
    /// The work and the points to look at; plain text.
    pub about: String,
    /// The figure of a paper that this draws again.
    pub paper: Option<String>,
    /// The factor of the sizes of its workloads, given or chosen; none where it has sizes of its own, and in documents
    /// before version 3.
    #[serde(default)]
    pub scale: Option<f64>,
    /// The command that repeats this experiment alone.
    pub command: String,
    /// The metric of the values of points.
    pub metric: Metric,
    /// The labels below the chart: categories, or a sweep.
    pub axis: Axis,
    /// The target that ratios refer to.
    pub baseline: Option<String>,
    /// A line or a bar for each target.
    pub series: Vec<Series>,
    /// Claims of a paper or of nacre about it, next to the measured values.
    pub claims: Vec<Claim>,
    /// Systems and points that a figure of a paper has and this one does not yet, and the reasons for their wait.
    #[serde(default)]
    pub waits: Vec<Absent>,
}

/// The kind of values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// `throughput`, `time`, `latency`, `share`...
    pub name: String,
    /// Its unit: `op/s`, `MB/s`, `s`, `ns`, `%`.
    pub unit: String,
    /// Which is better.
    pub better: Better,
}

impl Metric {
    /// In words.
    pub fn words(&self) -> String {
        format!("{} ({} is better)", self.unit, if self.better == Better::More { "more" } else { "less" })
    }
}

/// Which of two values is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// The larger.
    More,
    /// The smaller.
    Less,
}

/// The axis along which the points of a series differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// `workload`, `I/O size`, `threads`, `latency of a line`.
    pub name: String,
    /// The unit of a sweep: points have [`Point::x`] then, and lines are drawn; bars for none.
    pub unit: Option<String>,
    /// The sweep is drawn by powers of two.
    pub log2: bool,
}

/// The results of one target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Series {
    /// As on the command line: `preset:nova`, `peer:ext4`. In a figure of a paper it comes after the paper's name for it:
    /// `NOVA (preset:nova)`.
    pub target: String,
    /// The target, in words: device, emulation, options, PM and DRAM.
    pub about: String,
    /// Which way its operations go.
    pub pays: Pays,
    /// In the order of the axis.
    pub points: Vec<Point>,
}

/// Which way operations go, and so the costs that they include.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pays {
    /// Calls of a library in the same process.
    Library,
    /// System calls, served by a file system in the kernel.
    Kernel,
    /// System calls, served by a process through FUSE.
    Fuse,
}

impl Pays {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Pays::Library => "calls of a library: no system calls",
            Pays::Kernel => "system calls, served in the kernel",
            Pays::Fuse => "system calls, served through FUSE",
        }
    }
}

/// The results of one target at one place of the axis.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Point {
    /// Its label below the axis.
    pub label: String,
    /// Its place in a sweep.
    pub x: Option<f64>,
    /// The workload with all its parameters, as the command takes it.
    pub workload: String,
    /// The target with all its parameters at this place, likewise; empty in documents of version 1.
    #[serde(default)]
    pub target: String,
    /// The value of each round that counts, in the order of rounds.
    #[serde(deserialize_with = "numbers")]
    pub samples: Vec<f64>,
    /// How many of these each sitting had, in their order. Rounds of one sitting depend on each other, because they
    /// share the pages and addresses that the target was given. Empty where that is not known, as in documents before
    /// version 3.
    #[serde(default)]
    pub sittings: Vec<usize>,
    /// Rounds in which the scheduler ran another process. They count: on a busy machine there are no others.
    pub disturbed: usize,
    /// Of the samples: the median and its confidence interval of 95 %.
    #[serde(deserialize_with = "number")]
    pub median: f64,
    /// As [`Point::median`].
    #[serde(deserialize_with = "pair")]
    pub interval: (f64, f64),
    /// Against the baseline.
    pub ratio: Option<Ratio>,
    /// One for each kind of operation.
    pub latency: Vec<Latency>,
    /// Means over all rounds, by name: see [`crate::counters`].
    pub counters: BTreeMap<String, f64>,
}

/// Value over the baseline's value, round by round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The median of the rounds' ratios.
    #[serde(deserialize_with = "number")]
    pub median: f64,
    /// Its confidence interval of 95 %.
    #[serde(deserialize_with = "pair")]
    pub interval: (f64, f64),
    /// The probability that the sides are alike and the rounds fell as they did (Wilcoxon's signed ranks).
    #[serde(deserialize_with = "number")]
    pub p: f64,
}

/// How long operations of one kind took.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Latency {
    /// `read`, `write`, `fsync`, `create`...
    pub operation: String,
    /// How many.
    pub count: u64,
    /// Mean.
    #[serde(deserialize_with = "number")]
    pub mean: f64,
    /// Pairs of a share and the time that this share of all operations stayed within: 0.5, 0.9, 0.99, 0.999, 1.
    pub quantiles: Vec<(f64, f64)>,
    /// Pairs of a time and the number of operations up to it and above the one before, for the drawing.
    pub histogram: Vec<(f64, u64)>,
}

/// A statement about an experiment, next to the measured value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// In words: `HiNFS over PMFS, fileserver, one thread`.
    pub what: String,
    /// The source of the claim: `HiNFS, figure 7`, or `nacre`.
    pub source: String,
    /// The value that is said.
    pub said: f64,
    /// How it is meant.
    #[serde(default)]
    pub meant: Meant,
    /// Its unit; none where it is a ratio.
    #[serde(default)]
    pub unit: Option<String>,
    /// The value that we found, where it could be found.
    pub found: Option<f64>,
    /// Of [`Claim::found`].
    pub interval: Option<(f64, f64)>,
    /// The range of the measured value in which the claim holds; none where values only stand side by side.
    pub holds_if: Option<Bound>,
    /// Why there is no value: the missing part.
    pub waits_for: Option<String>,
    /// The stated value is a weak spot of the paper's own system. A value on this side of it is better than the paper's.
    #[serde(default)]
    pub weak_spot: Option<Better>,
}

/// How a stated value is meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meant {
    /// As it stands, rounded.
    #[default]
    #[serde(alias = "about")]
    About,
    /// It, or more.
    #[serde(alias = "at least")]
    AtLeast,
    /// It, or less.
    #[serde(alias = "at most")]
    AtMost,
}

impl Meant {
    /// To stand before the value.
    pub fn words(self) -> &'static str {
        match self {
            Meant::About => "",
            Meant::AtLeast => "at least ",
            Meant::AtMost => "at most ",
        }
    }
}

/// A bound of a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// Between these.
    Between(f64, f64),
}

/// The verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The value is within its bound.
    Holds,
    /// It is not.
    Missed,
    /// Nothing was to be held, and the paper's own system has a weak spot that ours has not.
    Better,
    /// Nothing was to be held.
    Beside,
    /// There is no value.
    Waits,
}

impl Claim {
    /// The verdict on it.
    pub fn verdict(&self) -> Verdict {
        let Some(found) = self.found else { return Verdict::Waits };
        let holds = match self.holds_if {
            None => {
                return match self.weak_spot {
                    Some(Better::More) if found > self.said => Verdict::Better,
                    Some(Better::Less) if found < self.said => Verdict::Better,
                    _ => Verdict::Beside,
                };
            }
            Some(Bound::AtLeast(limit)) => found >= limit,
            Some(Bound::AtMost(limit)) => found <= limit,
            Some(Bound::Between(low, high)) => (low..=high).contains(&found),
        };
        if holds { Verdict::Holds } else { Verdict::Missed }
    }
}

/// JSON writes a value that is not a number as null; it is read back as such.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

fn pair<'de, D: Deserializer<'de>>(from: D) -> Result<(f64, f64), D::Error> {
    let (low, high): (Option<f64>, Option<f64>) = Deserialize::deserialize(from)?;
    Ok((low.unwrap_or(f64::NAN), high.unwrap_or(f64::NAN)))
}

fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let all: Vec<Option<f64>> = Deserialize::deserialize(from)?;
    Ok(all.into_iter().map(|one| one.unwrap_or(f64::NAN)).collect())
}
