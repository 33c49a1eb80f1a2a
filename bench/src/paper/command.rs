//! `nacre bench paper`.

use std::path::PathBuf;

use clap::Args;
use nacre_engine::size::count;

use super::answers::Found;
use super::runs::{Means, Runs, entrant_name};
use super::{Asked, Experiment, estimate, experiments, find, list, papers};
use crate::report::schema::{self, Absent, Options};
use crate::run::cold::Cold;
use crate::run::effort::QUICK;
use crate::run::experiment::{self, Place, Request};
use crate::run::memory::Groups;
use crate::session::{Common, Session, factor};
use crate::{Error, machine, say};

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre bench paper --list
      Lists every experiment.
  nacre bench paper hinfs-fig8 --html hinfs.html
      Runs a figure with all its panels.
";

/// Draw the papers' figures again: run the parts that can run here, and compare our values with the papers'
///
/// A name is an experiment (hinfs-fig8.webproxy), a figure with all its panels (hinfs-fig8) or a paper (hinfs); --list
/// shows them. Parts of a figure that this nacre or this machine lacks are named with the reason. The metric is the
/// figure's. docs/reference/papers.md lists the differences from the papers. It runs as root, because peers are
/// mounted.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct PaperArgs {
    /// Experiments, figures or papers
    #[arg(value_name = "NAME", required_unless_present = "list")]
    names: Vec<String>,
    /// Show every experiment, and the parts of it that run here
    #[arg(long, conflicts_with_all = ["names", "json", "html", "dry_run"])]
    list: bool,
    /// Print the runs as commands, with an estimate of the time of each, instead of running them
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Multiply the papers' sizes and counts; by default the largest factor up to 1 with which a target has 1 GiB of
    /// data at most, and all of them together half of the free DRAM
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    scale: Option<f64>,
    /// The file of a trace, as facebook=FILE (repeatable)
    #[arg(long = "trace", value_name = "NAME=FILE", value_parser = trace)]
    traces: Vec<(String, PathBuf)>,
    /// A blank device of persistent memory, for ext4 with DAX
    #[arg(long, value_name = "DEVICE")]
    dax: Option<PathBuf>,
    /// Only presets in the same process: neither mounts nor peers, which take most of the time
    #[arg(long)]
    in_process: bool,
    #[command(flatten)]
    common: Common,
}

fn trace(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("write NAME=FILE")?;
    let file = PathBuf::from(file);
    match file.is_file() {
        true => Ok((name.to_owned(), std::path::absolute(&file).unwrap_or(file))),
        false => Err(format!("{}: no file is there", file.display())),
    }
}

impl PaperArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<(), Error> {
        let (traces, dax, in_process) = (self.traces.clone(), self.dax.clone(), self.in_process);
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let hasty = self.common.effort == QUICK;
        let mut means = Means { traces, dax, uncapped: false, in_process, hasty, cores };
        if self.list {
            return Ok(say::out(&list::list(&means))?);
        }
        let chosen = chosen(&self.names)?;
        let held = Groups::find().map_err(|error| error.to_string());
        means.uncapped = held.is_err();
        let planned: Vec<Runs<'_>> =
            chosen.iter().map(|experiment| self.planned(experiment, &means)).collect();
        if self.dry_run {
            let commands: String = planned.iter().map(|runs| self.commands(runs)).collect();
            let points: usize = planned.iter().map(|runs| runs.places.len()).sum();
            let time = estimate::about(planned.iter().map(|runs| self.seconds(runs)).sum());
            let (points, experiments) = (
                count(points as u64, "point", "points"),
                count(planned.len() as u64, "experiment", "experiments"),
            );
            return Ok(say::out(&format!("{commands}# {points} of {experiments}, {time} in all\n"))?);
        }
        self.measure(&planned, held.err())
    }

    fn planned<'a>(&self, experiment: &'a Experiment, means: &Means) -> Runs<'a> {
        let mut runs = match self.scale {
            Some(scale) => Runs::new(experiment, scale, means),
            None => Runs::fitting(experiment, means, free() / 2),
        };
        // Some of the free DRAM is left to other programs.
        runs.leave_out_larger_than(free() / 4 * 3);
        runs
    }

    /// The time of an experiment, as it is estimated.
    fn seconds(&self, runs: &Runs<'_>) -> f64 {
        let of = |place| estimate::seconds(place, runs.scale, &self.common.effort);
        runs.places.iter().map(of).sum()
    }

    /// The runs of an experiment, as the commands that repeat them.
    fn commands(&self, runs: &Runs<'_>) -> String {
        let experiment = runs.experiment;
        let time = estimate::about(self.seconds(runs));
        let mut text = format!(
            "# {}: {}, {}: {} ({time})\n",
            experiment.name, experiment.paper, experiment.figure, experiment.title
        );
        for place in &runs.places {
            let time = estimate::about(estimate::seconds(place, runs.scale, &self.common.effort));
            text.push_str(&format!("# {} ({time})\n{}\n", place.label, self.command(runs, place)));
        }
        for Absent { what, why } in &runs.waits {
            text.push_str(&format!("# waits: {what}: {why}\n"));
        }
        text
    }

    fn command(&self, runs: &Runs<'_>, place: &Place) -> String {
        let mut command = format!("nacre bench run {}", place.workload);
        let mut option = |name: &str, value: &str| command.push_str(&format!(" {name} {value}"));
        for entrant in &place.entrants {
            option("-t", &entrant.plan.name());
        }
        let baseline =
            place.entrants.iter().find(|entrant| runs.baseline.as_deref() == Some(entrant.name.as_str()));
        if let Some(baseline) = baseline {
            option("-b", &baseline.plan.name());
        }
        if let Some(measure) = &runs.measure {
            option("--metric", &measure.to_string());
        }
        if place.cold != Cold::Never {
            option("--cold", place.cold.as_str());
        }
        if place.warm_up > 0 {
            option("--warm-up", &place.warm_up.to_string());
        }
        if place.settle > 0 {
            option("--settle", &place.settle.to_string());
        }
        if let Some(bytes) = place.flush {
            option("--flush", &bytes.to_string());
        }
        command.push_str(&self.common.as_options(Some(runs.scale)));
        command
    }

    fn measure(&self, planned: &[Runs<'_>], uncapped: Option<String>) -> Result<(), Error> {
        let first = planned.first().map_or(f64::NAN, |runs| runs.scale);
        let scale = if planned.iter().all(|runs| runs.scale == first) { first } else { f64::NAN };
        let points = planned.iter().map(|runs| runs.places.len()).sum();
        let options = |plain| Options { scale, ..plain };
        let mut session = Session::begin(&self.common, planned.len(), points, options)?;
        if let Some(why) = uncapped {
            session.note(vec![Absent { what: "page caches of the papers' sizes".to_owned(), why }]);
        }
        let mut found: Vec<Found<'_>> = Vec::new();
        for (at, runs) in planned.iter().enumerate() {
            let mut done = self.one(&session, runs)?;
            done.measured.claims = done.claims();
            found.push(done);
            let rest: Vec<&Experiment> = planned[at + 1..].iter().map(|runs| runs.experiment).collect();
            let overall = if session.is_stopped() { Vec::new() } else { overall(&found, &rest) };
            if let Some(done) = found.last_mut() {
                done.measured.claims.extend(overall);
                session.add(done.measured.clone())?;
            }
            if session.is_stopped() {
                break;
            }
        }
        session.finish().map(drop)
    }

    fn one<'a>(&self, session: &Session<'_>, runs: &Runs<'a>) -> Result<Found<'a>, Error> {
        let experiment = runs.experiment;
        let Experiment { about, differs, title, .. } = experiment;
        let machine = experiment.common.machine.as_deref().unwrap_or("another machine");
        let scale = runs.scale;
        let request = Request {
            name: experiment.name.clone(),
            title: title.clone(),
            about: format!(
                "{about} What differs from the paper, which ran on {machine}: {differs} Sizes and counts are the \
                 paper's times {scale}."
            ),
            paper: Some(format!("{}, {}", experiment.paper, experiment.figure)),
            command: self.repeats(runs),
            axis: experiment.axis.clone(),
            places: runs.places.clone(),
            baseline: runs.baseline.clone(),
            measure: runs.measure.clone().unwrap_or(crate::run::measure::Measure::Counter(String::new())),
            metric: experiment.metric.clone(),
        };
        let mut absent = Vec::new();
        let mut measured =
            session.with_setting(scale, |setting| experiment::run(setting, &request, &mut absent))?;
        measured.waits = runs.waits.iter().cloned().chain(absent).collect();
        for series in &mut measured.series {
            let system = experiment.systems.iter().find(|system| {
                experiment.ways().iter().any(|way| entrant_name(system, *way) == series.target)
            });
            if let Some(system) = system.filter(|system| !system.about.is_empty()) {
                series.about.push_str(&format!("; {}", system.about));
            }
        }
        Ok(Found { experiment, measured })
    }

    /// The command that repeats an experiment.
    fn repeats(&self, runs: &Runs<'_>) -> String {
        let mut command = format!("nacre bench paper {}", runs.experiment.name);
        for (name, file) in &self.traces {
            command.push_str(&format!(" --trace {name}={}", file.display()));
        }
        if let Some(dax) = &self.dax {
            command.push_str(&format!(" --dax {}", dax.display()));
        }
        if self.in_process {
            command.push_str(" --in-process");
        }
        command + &self.common.as_options(Some(runs.scale))
    }
}

/// Free DRAM, in bytes.
fn free() -> u64 {
    machine::memory("MemAvailable").unwrap_or(1 << 30)
}

/// Experiments by their names, each once, in the order given. An unknown name is told with those that are near.
fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>, Error> {
    let mut chosen: Vec<&Experiment> = Vec::new();
    for name in names {
        let found = find(name);
        if found.is_empty() {
            return Err(unknown(name).into());
        }
        for experiment in found {
            if !chosen.iter().any(|known| known.name == experiment.name) {
                chosen.push(experiment);
            }
        }
    }
    Ok(chosen)
}

fn unknown(name: &str) -> String {
    let mut known: Vec<&str> = papers().iter().map(|paper| paper.name.as_str()).collect();
    for experiment in experiments() {
        let figure = experiment.name.split('.').next().unwrap_or_default();
        known.extend([figure, &experiment.name]);
    }
    known.dedup();
    let mut near: Vec<(f64, &str)> =
        known.into_iter().map(|other| (strsim::jaro_winkler(name, other), other)).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.dedup_by_key(|(_, name)| *name);
    let near: Vec<&str> =
        near.into_iter().take(3).filter(|(alike, _)| *alike > 0.8).map(|(_, name)| name).collect();
    match near.is_empty() {
        true => format!("{name} is no experiment, figure or paper; 'nacre bench paper --list' shows them"),
        false => format!(
            "{name} is no experiment, figure or paper; near it are {}, and 'nacre bench paper --list' shows all",
            near.join(", ")
        ),
    }
}

/// Papers' claims about several experiments, when the last experiment of those that are to run has.
fn overall(found: &[Found<'_>], rest: &[&Experiment]) -> Vec<schema::Claim> {
    let Some(last) = found.last() else { return Vec::new() };
    let ran: Vec<&Experiment> = found.iter().map(|found| found.experiment).collect();
    let mut answer = |asked: Asked<'_>| {
        let of = found.iter().find(|found| found.experiment.name == asked.experiment.name);
        of.ok_or_else(|| "it was not run".to_owned())?.answer(asked)
    };
    let mut claims = Vec::new();
    for paper in papers() {
        let due = paper.overall.iter().filter(|overall| {
            let meant =
                |experiment: &Experiment| overall.experiments.iter().any(|name| experiment.answers_to(name));
            meant(last.experiment) && !rest.iter().any(|experiment| meant(experiment))
        });
        for overall in due {
            claims.extend(paper.overall_claims(overall, &ran, &mut answer));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::{chosen, unknown};

    fn names(asked: &[&str]) -> Vec<&'static str> {
        let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
        let found = chosen(&asked).unwrap_or_else(|why| panic!("{why}"));
        found.iter().map(|experiment| experiment.name.as_str()).collect()
    }

    #[test]
    fn experiments_are_chosen_once_by_any_of_their_names() {
        assert_eq!(names(&["compare-fig2", "compare-fig2.b"]), ["compare-fig2.a", "compare-fig2.b"]);
        assert!(names(&["spfs"]).len() > 10);
    }

    #[test]
    fn a_name_that_nobody_has_is_told_with_those_near_it() {
        assert!(unknown("hinfs-fig77").contains("hinfs-fig7"), "{}", unknown("hinfs-fig77"));
        assert!(unknown("hinf").contains("near it are hinfs"), "{}", unknown("hinf"));
        assert!(!unknown("xyz").contains("near it"), "{}", unknown("xyz"));
    }
}
