//! Measured figures: a line of the table for people, and an experiment of the report that all commands write.

use std::fmt::Write;

use crate::figures::measure::Pairs;
use crate::figures::rows::{Row, Side};
use crate::report::schema::{
    Axis, Better, Bound, Claim, Experiment, Meant, Metric, Point, Ratio, Series, Verdict,
};
use crate::stats;

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) row: Row,
    /// Of all samples.
    unit: &'static str,
    /// A sample for each round that counts.
    ours: Vec<f64>,
    /// Of the same rounds; none without a peer.
    peer: Vec<f64>,
    /// The other sides, for comparison.
    others: Vec<(Side, Vec<f64>)>,
    /// The value that the target applies to, and its unit; none of a ratio.
    value: f64,
    value_unit: Option<&'static str>,
    /// The same of each round, where it is made of them.
    values: Vec<f64>,
    /// Rounds in which the scheduler ran another process.
    disturbed: usize,
    note: String,
}

impl Figure {
    /// Times side by side; the value is the median of the ratios.
    pub(crate) fn compared(row: Row, pairs: &Pairs) -> Figure {
        let values = pairs.ratios();
        Figure {
            row,
            unit: "ns",
            ours: pairs.ours.clone(),
            peer: pairs.peer.clone(),
            others: Vec::new(),
            value: stats::median(&values),
            value_unit: None,
            values,
            disturbed: pairs.disturbed,
            note: String::new(),
        }
    }

    /// Samples without a peer; the value is their median.
    pub(crate) fn single(row: Row, unit: &'static str, samples: Vec<f64>) -> Figure {
        Figure {
            row,
            unit,
            value: stats::median(&samples),
            value_unit: Some(unit),
            values: samples.clone(),
            ours: samples,
            peer: Vec::new(),
            others: Vec::new(),
            disturbed: 0,
            note: String::new(),
        }
    }

    /// Replaces the value, and its values of each round, if there are any.
    #[must_use]
    pub(crate) fn value(self, value: f64, value_unit: Option<&'static str>, values: Vec<f64>) -> Figure {
        Figure { value, value_unit, values, ..self }
    }

    /// Adds samples of another side.
    #[must_use]
    pub(crate) fn beside(mut self, side: Side, samples: Vec<f64>) -> Figure {
        self.others.push((side, samples));
        self
    }

    /// Adds a remark.
    #[must_use]
    pub(crate) fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }

    /// Whether it meets its target.
    pub(crate) fn verdict(&self) -> Verdict {
        self.claim().map_or(Verdict::Beside, |claim| claim.verdict())
    }

    /// The claim about it; nothing where it is only compared with others.
    fn claim(&self) -> Option<Claim> {
        let holds_if = self.row.target?;
        let (said, meant) = match holds_if {
            Bound::AtMost(limit) | Bound::Between(_, limit) => (limit, Meant::AtMost),
            Bound::AtLeast(limit) => (limit, Meant::AtLeast),
        };
        Some(Claim {
            what: self.row.what.to_owned(),
            source: "nacre".to_owned(),
            said,
            meant,
            unit: self.value_unit.map(str::to_owned),
            found: Some(self.value),
            interval: (self.values.len() > 1).then(|| stats::median_interval(&self.values)),
            holds_if: Some(holds_if),
            waits_for: None,
            weak_spot: None,
        })
    }

    /// As the common report has it. `command` repeats it.
    pub(crate) fn experiment(&self, command: String) -> Experiment {
        let sides = self.row.sides;
        let (name, better) = match self.unit {
            "MB/s" => ("throughput", Better::More),
            "%" => ("share", Better::Less),
            _ => ("time", Better::Less),
        };
        let mut series = vec![self.series(sides.ours, &self.ours)];
        if let Some(peer) = sides.peer {
            series[0].points[0].ratio = Some(ratio(&self.ours, &self.peer));
            series.push(self.series(peer, &self.peer));
        }
        series.extend(self.others.iter().map(|(side, samples)| self.series(*side, samples)));
        Experiment {
            name: self.row.name.to_owned(),
            title: self.row.what.to_owned(),
            about: self.note.clone(),
            paper: None,
            scale: None,
            command,
            metric: Metric { name: name.to_owned(), unit: self.unit.to_owned(), better },
            axis: Axis { name: "row".to_owned(), unit: None, log2: false },
            baseline: sides.peer.map(|peer| peer.name.to_owned()),
            series,
            claims: self.claim().into_iter().collect(),
            waits: Vec::new(),
        }
    }

    fn series(&self, side: Side, samples: &[f64]) -> Series {
        let point = Point {
            label: self.row.name.to_owned(),
            workload: self.row.name.to_owned(),
            target: side.name.to_owned(),
            samples: samples.to_vec(),
            disturbed: self.disturbed,
            median: stats::median(samples),
            interval: stats::median_interval(samples),
            ..Point::default()
        };
        Series {
            target: side.name.to_owned(),
            about: side.about.to_owned(),
            pays: side.pays,
            points: vec![point],
        }
    }

    /// Its line of the table.
    pub(crate) fn line(&self) -> String {
        let spread = match self.values.len() {
            0 | 1 => String::new(),
            _ => {
                let at = |share| short(stats::quantile(&self.values, share));
                format!("{}-{}", at(0.1), at(0.9))
            }
        };
        // The cost of rare slow batches is in it.
        let total = match self.peer.is_empty() {
            true => String::new(),
            false => short(self.ours.iter().sum::<f64>() / self.peer.iter().sum::<f64>()),
        };
        let verdict = match self.verdict() {
            Verdict::Holds => "reached",
            Verdict::Missed => "MISSED",
            Verdict::Better | Verdict::Beside | Verdict::Waits => "",
        };
        let median = |samples: &[f64]| match samples {
            [] => String::new(),
            samples => with_unit(stats::median(samples), self.unit),
        };
        let mut line = String::new();
        let _ = writeln!(
            line,
            "{:<27} {:>11} {:>11} {:>7} {:>13} {:>7} {:>9} {:>8}  {:<7} {}",
            self.row.name,
            median(&self.ours),
            median(&self.peer),
            short(self.value),
            spread,
            total,
            format!("{}/{}", self.ours.len(), self.ours.len() + self.disturbed),
            self.row.target.map_or(String::new(), bound),
            verdict,
            self.note
        );
        line
    }
}

/// The head of the table.
pub(crate) fn head() -> String {
    format!(
        "{:<27} {:>11} {:>11} {:>7} {:>13} {:>7} {:>9} {:>8}  {:<7} note\n",
        "row", "nacre", "peer", "value", "p10-p90", "total", "rounds", "target", "verdict"
    )
}

/// Ours over the peer's, round by round.
fn ratio(ours: &[f64], peer: &[f64]) -> Ratio {
    let ratios: Vec<f64> = ours.iter().zip(peer).map(|(ours, peer)| ours / peer).collect();
    Ratio {
        median: stats::median(&ratios),
        interval: stats::median_interval(&ratios),
        p: stats::alike(&ratios),
    }
}

fn bound(bound: Bound) -> String {
    match bound {
        Bound::AtMost(limit) => format!("<= {limit}"),
        Bound::AtLeast(limit) => format!(">= {limit}"),
        Bound::Between(low, high) => format!("{low} - {high}"),
    }
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
    use super::Figure;
    use crate::figures::measure::Pairs;
    use crate::figures::rows;
    use crate::report::schema::{Bound, Meant, Verdict};

    #[test]
    fn a_figure_is_judged_by_the_median_of_the_ratios() {
        let pairs = Pairs { ours: vec![10.0, 10.0, 90.0], peer: vec![20.0, 40.0, 30.0], disturbed: 0 };
        let row = rows::Row { target: Some(Bound::AtMost(0.5)), ..rows::find("overwrite-4k") };
        let figure = Figure::compared(row, &pairs);
        assert_eq!((figure.value, figure.verdict()), (0.5, Verdict::Holds));
        let row = rows::Row { target: Some(Bound::AtLeast(2.0)), ..rows::find("recovery.clean") };
        assert_eq!(Figure::single(row, "s", vec![1.9]).verdict(), Verdict::Missed);
        let row = rows::Row { target: None, ..row };
        assert_eq!(Figure::single(row, "s", vec![1.9]).verdict(), Verdict::Beside);
    }

    #[test]
    fn its_experiment_has_every_sample_and_what_is_held_against_it() {
        let pairs = Pairs { ours: vec![1.0, 2.0, 3.0], peer: vec![4.0; 3], disturbed: 2 };
        let row = rows::find("overwrite-4k");
        let experiment = Figure::compared(row, &pairs).note("a remark").experiment("again".to_owned());
        assert_eq!(experiment.series[0].points[0].samples, pairs.ours);
        assert_eq!(experiment.series[1].points[0].samples, pairs.peer);
        assert_eq!(experiment.series[0].points[0].ratio.as_ref().expect("a ratio").median, 0.5);
        assert_eq!(experiment.baseline.as_deref(), Some(experiment.series[1].target.as_str()));
        let claim = &experiment.claims[0];
        assert_eq!((claim.found, claim.meant, claim.holds_if), (Some(0.5), Meant::AtMost, row.target));
        assert_eq!((experiment.about.as_str(), experiment.command.as_str()), ("a remark", "again"));
        let alone = Figure::single(rows::find("index.files"), "%", vec![0.7]).experiment(String::new());
        assert!(alone.baseline.is_none() && alone.series.len() == 1 && alone.claims[0].interval.is_none());
    }
}
