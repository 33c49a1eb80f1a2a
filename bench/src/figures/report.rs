//! What was measured, for people and for scripts.

use std::io::{self, Write};

use serde::Serialize;

use crate::figures::measure::{Pairs, quantile};
use crate::machine::Machine;

/// What a figure is held against.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// It must not be larger.
    AtMost(f64),
    /// It must not be smaller.
    AtLeast(f64),
    /// It stands beside others for comparison.
    None,
}

/// Whether a figure meets its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Reached,
    Missed,
    Beside,
}

impl Target {
    fn verdict(self, value: f64) -> Verdict {
        let reached = match self {
            Target::AtMost(limit) => value <= limit,
            Target::AtLeast(limit) => value >= limit,
            Target::None => return Verdict::Beside,
        };
        if reached { Verdict::Reached } else { Verdict::Missed }
    }

    fn text(self) -> String {
        match self {
            Target::AtMost(limit) => format!("<= {limit}"),
            Target::AtLeast(limit) => format!(">= {limit}"),
            Target::None => String::new(),
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    /// What is compared, in words.
    pub(crate) what: String,
    /// The unit of `ours` and `peer`.
    pub(crate) unit: &'static str,
    pub(crate) ours: f64,
    pub(crate) peer: Option<f64>,
    /// The value that is held against the target.
    pub(crate) value: f64,
    /// The 10th and 90th percentile of the value over the rounds.
    pub(crate) spread: Option<(f64, f64)>,
    /// All time of ours over all time of the peer, rare slow batches included.
    pub(crate) total: Option<f64>,
    /// Rounds that count, and rounds in which the scheduler ran somebody else.
    pub(crate) rounds: usize,
    pub(crate) disturbed: usize,
    pub(crate) target: Target,
    pub(crate) verdict: Verdict,
    pub(crate) note: String,
}

impl Figure {
    /// Times side by side; the value is the median of the ratios.
    pub(crate) fn compared(name: &str, what: &str, target: Target, pairs: &Pairs) -> Figure {
        let ratios = pairs.ratios();
        let value = quantile(&ratios, 0.5);
        Figure {
            name: name.into(),
            what: what.into(),
            unit: "ns",
            ours: quantile(&pairs.ours, 0.5),
            peer: Some(quantile(&pairs.peer, 0.5)),
            value,
            spread: Some((quantile(&ratios, 0.1), quantile(&ratios, 0.9))),
            total: Some(pairs.total_ratio()),
            rounds: ratios.len(),
            disturbed: pairs.disturbed,
            target,
            verdict: target.verdict(value),
            note: String::new(),
        }
    }

    /// One value of its own.
    pub(crate) fn single(name: &str, what: &str, unit: &'static str, target: Target, value: f64) -> Figure {
        Figure {
            name: name.into(),
            what: what.into(),
            unit,
            ours: value,
            peer: None,
            value,
            spread: None,
            total: None,
            rounds: 1,
            disturbed: 0,
            target,
            verdict: target.verdict(value),
            note: String::new(),
        }
    }

    /// Adds a remark.
    #[must_use]
    pub(crate) fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }

    /// Replaces the value and judges again.
    #[must_use]
    pub(crate) fn value(mut self, value: f64, spread: (f64, f64)) -> Figure {
        self.value = value;
        self.spread = Some(spread);
        self.verdict = self.target.verdict(value);
        self
    }
}

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    pub(crate) machine: Machine,
    /// Sizes were cut for a smoke test: the figures mean nothing.
    pub(crate) quick: bool,
    /// It was not interrupted.
    pub(crate) complete: bool,
    pub(crate) figures: Vec<Figure>,
    /// What was left out, and why.
    pub(crate) left_out: Vec<String>,
}

/// Prints the head of the table.
pub(crate) fn print_head(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<24} {:>11} {:>11} {:>7} {:>13} {:>7} {:>9} {:>8}  {:<7} note",
        "row", "nacre", "peer", "value", "p10-p90", "total", "rounds", "target", "verdict"
    )
}

/// Prints one figure.
pub(crate) fn print_figure(out: &mut impl Write, figure: &Figure) -> io::Result<()> {
    let spread = figure.spread.map_or(String::new(), |(low, high)| format!("{}-{}", short(low), short(high)));
    let verdict = match figure.verdict {
        Verdict::Reached => "reached",
        Verdict::Missed => "MISSED",
        Verdict::Beside => "",
    };
    writeln!(
        out,
        "{:<24} {:>11} {:>11} {:>7} {:>13} {:>7} {:>9} {:>8}  {:<7} {}",
        figure.name,
        with_unit(figure.ours, figure.unit),
        figure.peer.map_or(String::new(), |peer| with_unit(peer, figure.unit)),
        short(figure.value),
        spread,
        figure.total.map_or(String::new(), short),
        format!("{}/{}", figure.rounds, figure.rounds + figure.disturbed),
        figure.target.text(),
        verdict,
        figure.note
    )
}

fn short(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "ns" if value >= 10e6 => format!("{:.1} ms", value / 1e6),
        "ns" if value >= 10e3 => format!("{:.1} us", value / 1e3),
        "ns" => format!("{value:.0} ns"),
        unit => format!("{} {unit}", short(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, Target, Verdict};
    use crate::figures::measure::Pairs;

    #[test]
    fn a_figure_is_judged_by_the_median_of_the_ratios() {
        let pairs = Pairs { ours: vec![10.0, 10.0, 90.0], peer: vec![20.0, 40.0, 30.0], disturbed: 0 };
        let figure = Figure::compared("x", "", Target::AtMost(0.5), &pairs);
        assert_eq!((figure.value, figure.verdict), (0.5, Verdict::Reached));
        assert_eq!(Figure::single("y", "", "s", Target::AtLeast(2.0), 1.9).verdict, Verdict::Missed);
    }
}
