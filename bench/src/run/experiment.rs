//! One comparison: workloads along an axis, on targets.

use super::cold::Cold;
use super::measure::Measure;
use super::rounds::{Setting, run_point};
use crate::Error;
use crate::report::schema::{Absent, Axis, Experiment, Metric, Series};
use crate::target::plan::Plan;
use crate::workload;

/// A target, and its name in the report.
#[derive(Debug, Clone)]
pub struct Entrant {
    /// The same at all places.
    pub name: String,
    /// The target, with the parameters that it has at this place.
    pub plan: Plan,
}

/// A place on the axis.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its label.
    pub label: String,
    /// Where it is, in a sweep.
    pub x: Option<f64>,
    /// The workload there.
    pub workload: String,
    /// On these.
    pub entrants: Vec<Entrant>,
    /// When page caches are emptied.
    pub cold: Cold,
    /// At least so many rounds come before those that count.
    pub warm_up: u64,
    /// At least so many seconds of work come before them.
    pub settle: u64,
    /// Each round writes at least so many bytes, and a sync of everything ends it, which counts.
    pub flush: Option<u64>,
}

/// A request for an experiment.
#[derive(Debug, Clone)]
pub struct Request {
    /// As in the report.
    pub name: String,
    /// As in the report.
    pub title: String,
    /// As in the report; descriptions of the workloads follow it.
    pub about: String,
    /// The figure of a paper.
    pub paper: Option<String>,
    /// The command that repeats it.
    pub command: String,
    /// The axis.
    pub axis: Axis,
    /// Its places.
    pub places: Vec<Place>,
    /// The entrant that others are compared with.
    pub baseline: Option<String>,
    /// How the value of a round is measured.
    pub measure: Measure,
    /// The name of that metric.
    pub metric: Metric,
}

/// Runs it. The result includes everything that was finished when the run was to end.
pub fn run(setting: &Setting<'_>, request: &Request, absent: &mut Vec<Absent>) -> Result<Experiment, Error> {
    let mut series: Vec<Series> = Vec::new();
    let mut about = request.about.clone();
    for place in &request.places {
        if setting.stop.is_set() {
            break;
        }
        let work = workload::make(&place.workload.parse()?, setting.scale)?;
        if request.places.len() == 1 && about.is_empty() {
            about = work.describe();
        }
        let outcomes = run_point(setting, request, place, absent)?;
        (setting.progress)(&place.workload, 1.0);
        for outcome in outcomes {
            let mut point = outcome.point;
            point.label.clone_from(&place.label);
            point.x = place.x;
            match series.iter_mut().find(|series| series.target == outcome.target) {
                Some(series) => series.points.push(point),
                None => series.push(Series {
                    target: outcome.target,
                    about: outcome.about,
                    pays: outcome.pays,
                    points: vec![point],
                }),
            }
        }
    }
    absent.dedup();
    Ok(Experiment {
        name: request.name.clone(),
        title: request.title.clone(),
        about,
        paper: request.paper.clone(),
        scale: Some(setting.scale),
        command: request.command.clone(),
        metric: request.metric.clone(),
        axis: request.axis.clone(),
        baseline: request.baseline.clone(),
        series,
        claims: Vec::new(),
        waits: Vec::new(),
    })
}
