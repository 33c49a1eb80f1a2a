//! `nacre bench paper --list`.

use std::fmt::Write;

use super::runs::{Means, Runs};
use super::{Paper, papers};
use crate::report::schema::Absent;
use crate::report::text;

/// Every experiment by its paper: what runs here, and what the rest waits for.
pub(super) fn list(means: &Means) -> String {
    let mut text = String::new();
    for paper in papers() {
        of_paper(paper, means, &mut text);
    }
    text.push_str("Names: an experiment, a figure with all its panels (hinfs-fig8), or a paper (hinfs).\n");
    text
}

fn of_paper(paper: &Paper, means: &Means, text: &mut String) {
    let _ = writeln!(text, "{}: {}", paper.name, paper.title);
    let mut waits: Vec<Absent> = Vec::new();
    for experiment in &paper.experiments {
        // Nothing depends on sizes here, and small workloads are made sooner.
        let runs = Runs::new(experiment, 0.001, means);
        let state = match (runs.places.is_empty(), runs.waits.is_empty()) {
            (true, _) => "waits",
            (false, true) => "runs",
            (false, false) => "in part",
        };
        let _ = write!(text, "  {:<28} {state:<8} {}", experiment.name, experiment.title);
        if !runs.places.is_empty() {
            let _ = write!(text, " ({})", systems(&runs).join(", "));
        }
        text.push('\n');
        waits.extend(runs.waits);
    }
    text.push_str(&text::waits(&waits));
    text.push('\n');
}

/// Those that run.
fn systems<'a>(runs: &Runs<'a>) -> Vec<&'a str> {
    let waits = |name: &str| runs.waits.iter().any(|absent| absent.what == name);
    let names = runs.experiment.systems.iter().map(|system| system.name.as_str());
    names.filter(|name| !waits(name)).collect()
}
