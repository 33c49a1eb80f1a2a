//! From measurements to the answers that [`claims`](super::claims) asks for.

use super::runs::entrant_name;
use super::{Asked, Experiment, Reading, System, Way};
use crate::report::schema;
use crate::stats;

/// An experiment that ran.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) measured: schema::Experiment,
}

impl Found<'_> {
    /// The paper's claims, next to the measured values.
    pub(super) fn claims(&self) -> Vec<schema::Claim> {
        self.experiment.claims(&mut |asked| self.answer(asked))
    }

    /// Answers a question about it.
    pub(super) fn answer(&self, asked: Asked<'_>) -> Result<Reading, String> {
        let of = self.point(asked.of, asked.way)?;
        let over = asked.over.map(|over| self.point(over, asked.way)).transpose()?;
        let reading = match (asked.counter, over) {
            (None, None) => Reading { median: of.median, interval: Some(of.interval) },
            (None, Some(over)) => ratio(of, over),
            (Some(name), over) => {
                let count = |point: &schema::Point| {
                    point.counters.get(name).copied().ok_or_else(|| format!("{name} is not counted there"))
                };
                let over = over.map(count).transpose()?.unwrap_or(1.0);
                Reading { median: count(of)? / over, interval: None }
            }
        };
        match reading.median.is_finite() {
            true => Ok(reading),
            false => Err("what it is divided by is nothing".to_owned()),
        }
    }

    fn point(&self, (system, key): (&System, &str), way: Way) -> Result<&schema::Point, String> {
        let name = entrant_name(system, way);
        let label = &self.experiment.point(key).ok_or_else(|| format!("there is no point {key}"))?.label;
        let series = self.measured.series.iter().find(|series| series.target == name);
        let point = series.and_then(|series| series.points.iter().find(|point| point.label == *label));
        point.ok_or_else(|| self.why(&[&system.name, &name, label]))
    }

    /// Why something was not measured: the first of these that is known to wait.
    fn why(&self, what: &[&str]) -> String {
        let known = |name: &&str| {
            let at = format!("{name} at ");
            let is_it = |absent: &&schema::Absent| absent.what == **name || absent.what.starts_with(&at);
            self.measured.waits.iter().find(is_it)
        };
        let found = what.iter().find_map(known);
        // An experiment that waits as a whole says so by its own name.
        let whole = || self.measured.waits.iter().find(|absent| absent.what == self.experiment.name);
        match found.or_else(whole) {
            Some(absent) => absent.why.clone(),
            None => "it was not measured".to_owned(),
        }
    }
}

/// One over the other: round by round where both ran in the same rounds, else of their medians.
fn ratio(of: &schema::Point, over: &schema::Point) -> Reading {
    if of.label == over.label && of.samples.len() == over.samples.len() {
        let ratios: Vec<f64> = of.samples.iter().zip(&over.samples).map(|(of, over)| of / over).collect();
        return Reading { median: stats::median(&ratios), interval: Some(stats::median_interval(&ratios)) };
    }
    let interval = stats::ratio_interval(&of.samples, &over.samples);
    Reading { median: of.median / over.median, interval: Some(interval) }
}

#[cfg(test)]
mod tests {
    use super::Found;
    use crate::paper::{Asked, Way, find};
    use crate::report::schema::{Absent, Experiment, Pays, Point, Series, Verdict};

    fn series(target: &str, points: &[(&str, [f64; 3])]) -> Series {
        let points = points.iter().map(|(label, samples)| Point {
            label: (*label).to_owned(),
            samples: samples.to_vec(),
            median: samples[1],
            interval: (samples[0], samples[2]),
            counters: [("pm.bytes".to_owned(), samples[1] * 10.0)].into(),
            ..Point::default()
        });
        let (target, points) = (target.to_owned(), points.collect());
        Series { target, about: String::new(), pays: Pays::Kernel, points }
    }

    /// Figure 7 of the comparison, with NOVA and ext4 measured, and a reason for PMFS.
    fn found() -> Found<'static> {
        let experiment = find("compare-fig7")[0];
        let measured = Experiment {
            series: vec![
                series("NOVA (preset:nova)", &[("varmail", [11.0, 24.0, 39.0])]),
                series("NOVA (mount:nova)", &[("varmail", [1.0, 2.0, 3.0])]),
                series("Ext4 (peer:ext4)", &[("varmail", [10.0, 20.0, 30.0])]),
            ],
            waits: vec![Absent { what: "PMFS".to_owned(), why: "preset:pmfs is not built yet".to_owned() }],
            ..Experiment {
                name: experiment.name.clone(),
                title: String::new(),
                about: String::new(),
                paper: None,
                scale: None,
                command: String::new(),
                metric: experiment.metric.clone(),
                axis: experiment.axis.clone(),
                baseline: None,
                series: Vec::new(),
                claims: Vec::new(),
                waits: Vec::new(),
            }
        };
        Found { experiment, measured }
    }

    fn asked(way: Way, of: &str, over: Option<&str>, counter: Option<&'static str>) -> Result<f64, String> {
        let found = found();
        let system = |name: &str| found.experiment.system(name).unwrap_or_else(|| panic!("{name}"));
        let over = over.map(|over| (system(over), "varmail"));
        let of = (system(of), "varmail");
        let asked = Asked { experiment: found.experiment, of, over, way, counter };
        found.answer(asked).map(|reading| reading.median)
    }

    #[test]
    fn ratios_are_taken_round_by_round_on_either_way() {
        assert_eq!(asked(Way::Library, "NOVA", Some("Ext4"), None), Ok(1.2), "1.1, 1.2, 1.3");
        assert_eq!(asked(Way::Mount, "NOVA", Some("Ext4"), None), Ok(0.1));
        assert_eq!(asked(Way::Mount, "NOVA", None, None), Ok(2.0));
        assert_eq!(asked(Way::Library, "NOVA", None, Some("pm.bytes")), Ok(240.0));
    }

    #[test]
    fn what_is_missing_says_why() {
        let why = |of, counter| asked(Way::Library, of, None, counter).unwrap_err();
        assert_eq!(why("PMFS", None), "preset:pmfs is not built yet");
        assert_eq!(why("F2FS", None), "it was not measured");
        assert!(why("NOVA", Some("dram")).contains("not counted there"));
    }

    #[test]
    fn claims_stand_beside_what_was_found_and_the_rest_waits() {
        let claims = found().claims();
        let waits = claims.iter().filter(|claim| claim.verdict() == Verdict::Waits).count();
        assert_eq!((claims.len(), waits), (8, 8), "five values, three of them on both ways");
        assert_eq!(claims[0].waits_for.as_deref(), Some("preset:pmfs is not built yet"));
    }
}
