//! A report for terminals.

use std::fmt::Write;

use super::merge::Document;
use super::schema::{Absent, Better, Claim, Experiment, Pays, Point, Report, Verdict};

/// Everything.
pub fn document(document: &Document) -> String {
    let mut text = String::new();
    for run in &document.runs {
        let report = &run.report;
        let name = if document.runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
        let _ = writeln!(text, "{name}{}, commit {}, {}", report.began, report.commit, report.machine.line());
        if !report.complete {
            let _ = writeln!(text, "{name}{INTERRUPTED}");
        }
    }
    for made in &document.experiments {
        let _ = write!(text, "\n{}", experiment(made));
        made.command.lines().for_each(|command| {
            let _ = writeln!(text, "  repeat it: {command}");
        });
    }
    text.push_str(&missing(&document.absent));
    text
}

/// A few lines for each experiment.
pub fn experiment(experiment: &Experiment) -> String {
    let mut text = format!("{}: {}\n", experiment.name, experiment.title);
    if !experiment.about.is_empty() && experiment.about != experiment.title {
        let _ = writeln!(text, "  {}", experiment.about);
    }
    let better = match experiment.metric.better {
        Better::More => "more is better",
        Better::Less => "less is better",
    };
    let to = experiment.baseline.as_deref().map_or(String::new(), |name| format!("over {name}"));
    let _ = writeln!(
        text,
        "  {:<28} {:>12} {:>14} {:>19} {:>9} {:>9} {:>7}  ({}, {better})",
        "target", experiment.metric.unit, to, "95 %", "p50", "p99", "rounds", experiment.metric.name
    );
    let several = experiment.series.iter().any(|series| series.points.len() > 1);
    for series in &experiment.series {
        for point in &series.points {
            let name =
                if several { format!("{} {}", series.target, point.label) } else { series.target.clone() };
            line(&mut text, &name, point);
        }
    }
    for pays in [Pays::Library, Pays::Kernel, Pays::Fuse] {
        let who: Vec<&str> = experiment
            .series
            .iter()
            .filter(|series| series.pays == pays)
            .map(|series| series.target.as_str())
            .collect();
        if !who.is_empty() {
            let _ = writeln!(text, "  {} pay for {}", who.join(", "), pays.words());
        }
    }
    experiment.claims.iter().for_each(|said| claim(&mut text, said));
    text.push_str(&waits(&experiment.waits));
    text
}

/// The waiting parts, by the reason of their wait.
pub fn waits(waits: &[Absent]) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for Absent { what, why } in waits {
        match reasons.iter_mut().find(|(known, _)| known == why) {
            None => reasons.push((why, vec![what])),
            Some((_, all)) if !all.contains(&what.as_str()) => all.push(what),
            Some(_) => {}
        }
    }
    reasons.iter().map(|(why, what)| format!("  waits: {}: {why}\n", what.join(", "))).collect()
}

fn line(text: &mut String, name: &str, point: &Point) {
    // There is none to nothing.
    let ratio = point.ratio.as_ref().filter(|ratio| ratio.median.is_finite());
    let (ratio, interval) = ratio.map_or((String::new(), String::new()), |ratio| {
        (short(ratio.median), format!("{} - {}", short(ratio.interval.0), short(ratio.interval.1)))
    });
    // The kind of operation that took most of the time.
    let main =
        point.latency.iter().max_by(|a, b| (a.mean * a.count as f64).total_cmp(&(b.mean * b.count as f64)));
    let at = |share: f64| {
        main.and_then(|latency| latency.quantiles.iter().find(|(at, _)| *at == share))
            .map_or(String::new(), |(_, nanos)| time(*nanos))
    };
    let _ = writeln!(
        text,
        "  {name:<28} {:>12} {ratio:>14} {interval:>19} {:>9} {:>9} {:>7}",
        short(point.median),
        at(0.5),
        at(0.99),
        point.samples.len()
    );
}

fn claim(text: &mut String, claim: &Claim) {
    let verdict = match claim.verdict() {
        Verdict::Holds => "holds",
        Verdict::Missed => "MISSED",
        Verdict::Better => "better",
        Verdict::Beside => "beside",
        Verdict::Waits => "waits",
    };
    let found = match (claim.found, &claim.waits_for) {
        (Some(found), _) => format!("found {}", valued(claim, found)),
        (None, Some(why)) => format!("waits for {why}"),
        (None, None) => "not found".to_owned(),
    };
    let said = said(claim);
    let _ = writeln!(text, "  {verdict:<7} {}: {} says {said}, {found}", claim.what, claim.source);
}

/// The stated value, and how it is meant.
pub fn said(claim: &Claim) -> String {
    format!("{}{}", claim.meant.words(), valued(claim, claim.said))
}

/// A value of a claim with its unit.
pub fn valued(claim: &Claim, value: f64) -> String {
    match claim.unit.as_deref() {
        None => short(value),
        Some("ns") => time(value),
        Some(unit) => format!("{} {unit}", short(value)),
    }
}

/// The parts that could not be had, and the machine of the run.
pub fn tail(report: &Report) -> String {
    let mut text = missing(&report.absent);
    if !report.complete {
        let _ = writeln!(text, "{INTERRUPTED}");
    }
    text
}

const INTERRUPTED: &str = "interrupted: what is here was finished";

fn missing(absent: &[Absent]) -> String {
    let mut text = String::new();
    for absent in absent {
        let _ = writeln!(text, "absent: {}: {}", absent.what, absent.why);
    }
    text
}

/// A number with three digits or so.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 10e6 => format!("{:.1}M", value / 1e6),
        size if size >= 10e3 => format!("{:.1}k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

/// Nanoseconds with a unit.
pub fn time(nanos: f64) -> String {
    match nanos {
        nanos if nanos >= 10e9 => format!("{:.1} s", nanos / 1e9),
        nanos if nanos >= 10e6 => format!("{:.1} ms", nanos / 1e6),
        nanos if nanos >= 10e3 => format!("{:.1} us", nanos / 1e3),
        nanos => format!("{nanos:.0} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::{short, time};

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 0.5, 12.345, 123.4, 12_345.0, 123_456_789.0].map(short),
            ["0.000", "0.500", "12.3", "123", "12.3k", "123.5M"]
        );
        assert_eq!([870.0, 12_000.0, 12e6, 12e9].map(time), ["870 ns", "12.0 us", "12.0 ms", "12.0 s"]);
    }
}
