//! The content of the page: all words and numbers as they are shown. Templates escape them.

use askama::Template;
use nacre_engine::size;

use super::chart::{self, Width, bars, claims, latency, lines};
use super::number;
use crate::report::merge::Document;
use crate::report::schema::{Absent, Claim, Experiment, Latency, Place, Point, Report, Series, Verdict};
use crate::report::text;

/// Fewer rounds than this say nothing about a probability: see [`crate::stats::alike`].
const FEW: usize = 6;

/// The whole page.
#[derive(Template)]
#[template(path = "report.html")]
pub(super) struct Page<'a> {
    patterns: String,
    runs: Vec<Run<'a>>,
    several: bool,
    verdicts: Vec<(&'static str, &'static str, usize)>,
    experiments: Vec<Section<'a>>,
    absent: &'a [Absent],
}

/// One report.
struct Run<'a> {
    name: &'a str,
    complete: bool,
    facts: Vec<(&'static str, String)>,
    command: String,
}

/// A chart, drawn for both widths.
struct Figure {
    caption: String,
    svg: String,
    /// Swatches and names.
    legend: Vec<(String, String)>,
    commands: Vec<String>,
}

/// One experiment.
struct Section<'a> {
    id: String,
    experiment: &'a Experiment,
    about: &'a str,
    main: Figure,
    targets: Vec<Target<'a>>,
    several: bool,
    unit: &'a str,
    rows: Vec<Row>,
    /// Ratios, and values of each unit.
    claims: Vec<Claimed<'a>>,
    waits: &'a [Absent],
    latency: Vec<Distribution>,
    counters: Vec<String>,
    counted: Vec<Counted>,
}

struct Target<'a> {
    swatch: String,
    name: &'a str,
    pays: &'static str,
    about: &'a str,
}

/// One point in the table of values.
struct Row {
    target: String,
    label: String,
    median: String,
    interval: String,
    ratio: String,
    ratio_interval: String,
    p: String,
    rounds: usize,
    disturbed: usize,
}

/// Claims with one axis.
struct Claimed<'a> {
    figure: Figure,
    unit: &'a str,
    rows: Vec<ClaimRow<'a>>,
}

struct ClaimRow<'a> {
    claim: &'a Claim,
    said: String,
    found: String,
    sign: &'static str,
    word: &'static str,
}

/// Latencies of one kind of operation at one place.
struct Distribution {
    heading: String,
    open: bool,
    figure: Figure,
    /// Target, count, mean, and times by share.
    rows: Vec<(String, Vec<String>)>,
}

struct Counted {
    target: String,
    label: String,
    values: Vec<String>,
}

impl<'a> Page<'a> {
    pub(super) fn new(document: &'a Document) -> Page<'a> {
        // A target keeps its colour through the whole page.
        let mut targets: Vec<&str> = Vec::new();
        for series in document.experiments.iter().flat_map(|experiment| &experiment.series) {
            if !targets.contains(&series.target.as_str()) {
                targets.push(&series.target);
            }
        }
        let number = |target: &str| targets.iter().position(|name| *name == target).unwrap_or(0);
        let all: Vec<Verdict> = document
            .experiments
            .iter()
            .flat_map(|experiment| experiment.claims.iter().map(Claim::verdict))
            .collect();
        let verdicts = [Verdict::Holds, Verdict::Missed, Verdict::Better, Verdict::Beside, Verdict::Waits]
            .map(|verdict| (verdict, all.iter().filter(|other| **other == verdict).count()))
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(verdict, count)| {
                let (sign, word) = claims::verdict(verdict);
                (sign, word, count)
            });
        Page {
            patterns: chart::patterns(),
            runs: document.runs.iter().map(|run| Run::new(&run.name, &run.report)).collect(),
            several: document.runs.len() > 1,
            verdicts: verdicts.collect(),
            experiments: (1..)
                .zip(&document.experiments)
                .map(|(at, experiment)| Section::new(at, experiment, &number))
                .collect(),
            absent: &document.absent,
        }
    }
}

impl<'a> Run<'a> {
    fn new(name: &'a str, report: &Report) -> Run<'a> {
        let options = &report.options;
        let machine = &report.machine;
        let mut facts = vec![
            ("began", report.began.replace('T', " ").replace('Z', " UTC")),
            ("took", format!("{:.0} min {:.0} s", (report.seconds / 60.0).floor(), report.seconds % 60.0)),
            ("nacre", format!("{}, commit {}", report.version, report.commit)),
            ("processor", format!("{}, {} cores", machine.cpu, machine.cores)),
            ("memory", format!("{:.0} GiB", machine.memory_gib)),
            ("kernel", machine.kernel.clone()),
            ("load before", number::tick(machine.load, "")),
            ("effort", options.effort.clone()),
            (
                "scale",
                if options.scale.is_nan() { "by experiment".to_owned() } else { options.scale.to_string() },
            ),
            ("seed", options.seed.to_string()),
            ("emulated memory", options.emulate.clone().unwrap_or_else(|| "none".to_owned())),
            ("page caches held to", options.memory.map_or_else(|| "by target".to_owned(), size::print)),
        ];
        let asked = [
            ("page caches emptied", options.cold.clone()),
            ("rounds before", options.warm_up.map(|rounds| rounds.to_string())),
            ("seconds before", options.settle.map(|seconds| seconds.to_string())),
            ("a round writes and syncs", options.flush.map(size::print)),
            ("files for disks", options.disk.as_ref().map(Place::words)),
        ];
        facts.extend(asked.into_iter().filter_map(|(name, value)| Some((name, value?))));
        Run { name, complete: report.complete, facts, command: report.command.join(" ") }
    }
}

impl<'a> Section<'a> {
    fn new(at: usize, experiment: &'a Experiment, number: &dyn Fn(&str) -> usize) -> Section<'a> {
        let id = format!("e{at}");
        let sweep = lines::is_sweep(experiment);
        let commands: Vec<String> = experiment.command.lines().map(str::to_owned).collect();
        let draw = |width: Width| {
            if sweep { lines::draw(experiment, number, width) } else { bars::draw(experiment, number, width) }
        };
        let name = &experiment.metric.name;
        let title = format!("{}: {name}", experiment.title);
        let legend = experiment.series.iter().map(|series| entry(series, number)).collect();
        let main = Figure {
            caption: if sweep {
                format!("{name}: medians, and whiskers for their confidence interval of 95 %")
            } else {
                format!(
                    "{name}: medians, a dot for each round, and whiskers for the confidence interval of 95 %"
                )
            },
            svg: chart::chart(&id, &title, &described(experiment, sweep), draw),
            // Bars have their names beside them.
            legend: if sweep { legend } else { Vec::new() },
            commands: commands.clone(),
        };
        let mut names: Vec<&String> =
            points(experiment).flat_map(|(_, point)| point.counters.keys()).collect();
        names.sort();
        names.dedup();
        Section {
            about: if experiment.about == experiment.title { "" } else { &experiment.about },
            main,
            targets: experiment.series.iter().map(|series| target(series, number)).collect(),
            several: points(experiment).any(|(series, _)| series.points.len() > 1),
            unit: &experiment.metric.unit,
            rows: points(experiment).map(|(series, point)| row(experiment, series, point)).collect(),
            claims: claimed(&id, experiment, &commands),
            waits: &experiment.waits,
            latency: distributions(&id, experiment, number, &commands),
            counted: points(experiment)
                .map(|(series, point)| Counted {
                    target: series.target.clone(),
                    label: point.label.clone(),
                    values: names
                        .iter()
                        .map(|name| {
                            point
                                .counters
                                .get(*name)
                                .map_or("–".to_owned(), |value| number::counter(name, *value))
                        })
                        .collect(),
                })
                .collect(),
            counters: names.into_iter().cloned().collect(),
            id,
            experiment,
        }
    }
}

/// Every point with its series, in the order of the axis within each target.
fn points(experiment: &Experiment) -> impl Iterator<Item = (&Series, &Point)> {
    experiment.series.iter().flat_map(|series| series.points.iter().map(move |point| (series, point)))
}

fn entry(series: &Series, number: &dyn Fn(&str) -> usize) -> (String, String) {
    (chart::swatch(number(&series.target)), series.target.clone())
}

fn target<'a>(series: &'a Series, number: &dyn Fn(&str) -> usize) -> Target<'a> {
    Target {
        swatch: chart::swatch(number(&series.target)),
        name: &series.target,
        pays: series.pays.words(),
        about: &series.about,
    }
}

fn row(experiment: &Experiment, series: &Series, point: &Point) -> Row {
    let unit = &experiment.metric.unit;
    let between = |low: String, high: String| format!("{low} – {high}");
    let ratio = point.ratio.as_ref();
    let is_baseline = experiment.baseline.as_deref() == Some(&series.target);
    Row {
        target: series.target.clone(),
        label: point.label.clone(),
        median: number::value(point.median, unit),
        interval: between(number::value(point.interval.0, unit), number::value(point.interval.1, unit)),
        ratio: match ratio {
            Some(ratio) => number::times(ratio.median),
            None if is_baseline => "baseline".to_owned(),
            None => "–".to_owned(),
        },
        ratio_interval: ratio.map_or(String::new(), |ratio| {
            between(number::times(ratio.interval.0), number::times(ratio.interval.1))
        }),
        p: match ratio {
            Some(ratio) if point.samples.len() >= FEW => number::probability(ratio.p),
            Some(_) => "too few rounds".to_owned(),
            None => String::new(),
        },
        rounds: point.samples.len(),
        disturbed: point.disturbed,
    }
}

/// The chart in a few sentences, for readers that cannot see it.
fn described(experiment: &Experiment, sweep: bool) -> String {
    let unit = &experiment.metric.unit;
    let kind = if sweep { "Lines" } else { "Bars" };
    let name = &experiment.metric.name;
    let targets: Vec<&str> = experiment.series.iter().map(|series| series.target.as_str()).collect();
    let mut text = format!("{kind} of {name} in {} for {}.", number::unit(unit), targets.join(", "));
    let shown = |point: &Point| format!("{} {unit}", number::value(point.median, unit));
    for series in &experiment.series {
        match series.points.as_slice() {
            [] => {}
            [point] => text.push_str(&format!(" {}: {}.", series.target, shown(point))),
            [first, .., last] => text.push_str(&format!(
                " {}: from {} at {} to {} at {}.",
                series.target,
                shown(first),
                first.label,
                shown(last),
                last.label
            )),
        }
    }
    text.push_str(" All values are in the table below.");
    text
}

/// Values of one unit have one axis.
fn claimed<'a>(id: &str, experiment: &'a Experiment, commands: &[String]) -> Vec<Claimed<'a>> {
    let mut units: Vec<Option<&str>> = Vec::new();
    for claim in &experiment.claims {
        if !units.contains(&claim.unit.as_deref()) {
            units.push(claim.unit.as_deref());
        }
    }
    (1..)
        .zip(units)
        .map(|(at, unit)| {
            let claims: Vec<&Claim> =
                experiment.claims.iter().filter(|claim| claim.unit.as_deref() == unit).collect();
            Claimed {
                figure: claimed_in(&format!("{id}-claims{at}"), experiment, &claims, commands),
                unit: unit.unwrap_or("ratios"),
                rows: claims.into_iter().map(claim_row).collect(),
            }
        })
        .collect()
}

fn claimed_in(id: &str, experiment: &Experiment, claims: &[&Claim], commands: &[String]) -> Figure {
    let told: Vec<String> = claims
        .iter()
        .map(|claim| {
            let found = claim.found.map_or("nothing yet".to_owned(), |found| text::valued(claim, found));
            let said = text::said(claim);
            format!("{}: said {said}, found {found}, {}.", claim.what, claims::verdict(claim.verdict()).1)
        })
        .collect();
    let title = format!("{}: what is said, and what was found", experiment.title);
    let draw = |width| claims::draw(claims, width);
    Figure {
        caption:
            "Said and found: the band is where a claim holds, whiskers are the confidence interval of 95 %"
                .to_owned(),
        svg: chart::chart(id, &title, &told.join(" "), draw),
        legend: Vec::new(),
        commands: commands.to_vec(),
    }
}

fn claim_row(claim: &Claim) -> ClaimRow<'_> {
    let (sign, word) = claims::verdict(claim.verdict());
    let shown = |value: f64| if value.is_finite() { text::valued(claim, value) } else { "–".to_owned() };
    let found = match (claim.found, claim.interval, &claim.waits_for) {
        (Some(found), Some((low, high)), _) => {
            format!("{} ({} – {})", shown(found), shown(low), shown(high))
        }
        (Some(found), None, _) => shown(found),
        (None, _, Some(why)) => format!("waits for {why}"),
        (None, _, None) => "–".to_owned(),
    };
    ClaimRow { claim, said: text::said(claim), found, sign, word }
}

/// A chart for each place of the axis and each kind of operation. The kind that took most of the time comes first, and is
/// the one that is open.
fn distributions(
    id: &str,
    experiment: &Experiment,
    number: &dyn Fn(&str) -> usize,
    commands: &[String],
) -> Vec<Distribution> {
    let labels = bars::categories(experiment);
    let mut all = Vec::new();
    for label in &labels {
        let here: Vec<(&Series, &Latency)> = points(experiment)
            .filter(|(_, point)| point.label == *label)
            .flat_map(|(series, point)| point.latency.iter().map(move |latency| (series, latency)))
            .filter(|(_, latency)| !latency.histogram.is_empty())
            .collect();
        let mut operations: Vec<(&str, f64)> = Vec::new();
        for (_, latency) in &here {
            let total = latency.mean * latency.count as f64;
            match operations.iter_mut().find(|(name, _)| *name == latency.operation) {
                Some((_, sum)) => *sum += total,
                None => operations.push((&latency.operation, total)),
            }
        }
        operations.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (operation, _) in operations {
            let lines: Vec<(&Series, &Latency)> =
                here.iter().filter(|(_, latency)| latency.operation == operation).copied().collect();
            let heading =
                if labels.len() > 1 { format!("{operation}, {label}") } else { operation.to_owned() };
            let id = format!("{id}-latency{}", all.len());
            let open = all.is_empty();
            let title = &experiment.title;
            all.push(distribution(&id, title, heading, open, &lines, number, commands));
        }
    }
    all
}

/// Shares in the table of latencies.
const SHARES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 1.0];

fn distribution(
    id: &str,
    title: &str,
    heading: String,
    open: bool,
    lines: &[(&Series, &Latency)],
    number: &dyn Fn(&str) -> usize,
    commands: &[String],
) -> Distribution {
    let at = |latency: &Latency, share: f64| {
        let found = latency.quantiles.iter().find(|(at, _)| *at == share);
        found.map_or("–".to_owned(), |(_, nanos)| number::time(*nanos))
    };
    let told: Vec<String> = lines
        .iter()
        .map(|(series, latency)| {
            format!("{}: half within {}, 99 % within {}.", series.target, at(latency, 0.5), at(latency, 0.99))
        })
        .collect();
    let drawn: Vec<(usize, &Latency)> =
        lines.iter().map(|(series, latency)| (number(&series.target), *latency)).collect();
    let rows = lines.iter().map(|(series, latency)| {
        let mut values = vec![latency.count.to_string(), number::time(latency.mean)];
        values.extend(SHARES.map(|share| at(latency, share)));
        (series.target.clone(), values)
    });
    let title = format!("{title}: latency of {heading}");
    Distribution {
        open,
        figure: Figure {
            caption: format!("Latency of {heading}: how long this share of all operations took at most"),
            svg: chart::chart(id, &title, &told.join(" "), |width| latency::draw(&drawn, width)),
            legend: lines.iter().map(|(series, _)| entry(series, number)).collect(),
            commands: commands.to_vec(),
        },
        rows: rows.collect(),
        heading,
    }
}
