//! `nacre bench paper --list`.

use std::fmt::Write;

use super::runs::{Means, Runs, entrant_name};
use super::{Paper, System, Way, papers};
use crate::report::schema::Absent;
use crate::report::text;

/// Every experiment by its paper: the parts that run here, and the reasons why the rest waits.
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

/// Those that run, on any of their ways.
fn systems<'a>(runs: &Runs<'a>) -> Vec<&'a str> {
    let entrants = || runs.places.iter().flat_map(|place| &place.entrants);
    let runs_here = |system: &&System| {
        [Way::Library, Way::Mount]
            .iter()
            .any(|&way| entrants().any(|entrant| entrant.name == entrant_name(system, way)))
    };
    runs.experiment.systems.iter().filter(runs_here).map(|system| system.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::runs::{Means, Runs};
    use super::super::{Way, experiments};
    use super::{entrant_name, systems};

    /// What is listed runs, and what waits on all its ways is not listed.
    #[test]
    fn a_system_that_waits_is_not_listed() {
        for experiment in experiments() {
            let runs = Runs::new(experiment, 0.001, &Means::default());
            let listed = systems(&runs);
            for system in &experiment.systems {
                let waits = |name: &str| runs.waits.iter().any(|absent| absent.what == name);
                let there = runs.places.iter().flat_map(|place| &place.entrants).any(|entrant| {
                    entrant.name == entrant_name(system, Way::Library)
                        || entrant.name == entrant_name(system, Way::Mount)
                });
                let is_listed = listed.contains(&system.name.as_str());
                assert_eq!(is_listed, there, "{}: {}", experiment.name, system.name);
                assert!(!(is_listed && waits(&system.name)), "{}: {}", experiment.name, system.name);
            }
        }
    }
}
