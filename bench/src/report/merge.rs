//! Several reports side by side: the same experiment becomes one chart.

use super::schema::{Absent, Experiment, Report};

/// A report and its name among others.
#[derive(Debug, Clone)]
pub struct Named {
    /// Short: the name of its file.
    pub name: String,
    /// The report.
    pub report: Report,
}

/// Reports that are drawn together.
#[derive(Debug, Clone)]
pub struct Document {
    /// As they were.
    pub runs: Vec<Named>,
    /// Experiments of all of them. Where there are several reports, targets carry the name of theirs.
    pub experiments: Vec<Experiment>,
    /// Targets that none or some of them could not have.
    pub absent: Vec<Absent>,
}

impl Document {
    /// Puts reports together. Experiments of one name are one when they have the same metric and axis. Their ratios
    /// remain those of each run: only targets that took turns are compared round by round.
    pub fn new(runs: Vec<Named>) -> Document {
        let several = runs.len() > 1;
        let mut experiments: Vec<Experiment> = Vec::new();
        let mut absent = Vec::new();
        for Named { name, report } in &runs {
            for experiment in &report.experiments {
                let experiment =
                    if several { labelled(experiment.clone(), name) } else { experiment.clone() };
                let same = |other: &&mut Experiment| {
                    (&other.name, &other.metric, &other.axis)
                        == (&experiment.name, &experiment.metric, &experiment.axis)
                };
                match experiments.iter_mut().find(same).filter(|_| several) {
                    Some(other) => join(other, experiment),
                    None => experiments.push(experiment),
                }
            }
            absent.extend(report.absent.iter().map(|missing| Absent {
                what: if several { label(&missing.what, name) } else { missing.what.clone() },
                why: missing.why.clone(),
            }));
        }
        Document { runs, experiments, absent }
    }
}

fn label(what: &str, name: &str) -> String {
    format!("{what} · {name}")
}

fn labelled(mut experiment: Experiment, name: &str) -> Experiment {
    for series in &mut experiment.series {
        series.target = label(&series.target, name);
    }
    for claim in &mut experiment.claims {
        claim.what = label(&claim.what, name);
    }
    for waiting in &mut experiment.waits {
        waiting.what = label(&waiting.what, name);
    }
    experiment.baseline = experiment.baseline.map(|target| label(&target, name));
    experiment
}

/// Adds the series of another run. Series of one target stand next to each other, so that runs can be compared.
fn join(into: &mut Experiment, from: Experiment) {
    let target_of = |target: &str| target.split(" · ").next().unwrap_or(target).to_owned();
    for series in from.series {
        let target = target_of(&series.target);
        let after = into.series.iter().rposition(|other| target_of(&other.target) == target);
        into.series.insert(after.map_or(into.series.len(), |at| at + 1), series);
    }
    into.claims.extend(from.claims);
    into.waits.extend(from.waits);
    if !into.command.lines().any(|line| line == from.command) {
        into.command.push('\n');
        into.command.push_str(&from.command);
    }
}
