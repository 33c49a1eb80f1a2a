//! From the catalogs to the types of [`super`].
//!
//! A file holds a paper: `name`, `short`, `title`, and `[settings]` for all of it. A `[[system]]` stands for each that
//! is compared (`name`, `target` or the reason why it is `absent`, `about`, `settings`). `[[overall]]` holds values,
//! and an `[[experiment]]` each figure. The points of a figure are listed (`points`, each with `settings` of its own
//! where it has some), or made from a list of texts. That list is `sweep`: each text stands for every `{}` in
//! `workload` and in the settings, those of systems included. `[[experiment.panel]]` makes an experiment of its own
//! from the differences: it replaces the keys that it gives, and its settings go before the figure's.
//!
//! A value with a `goal` holds or is missed, on the way that the goal names (`on = "process"`) or on all. The others
//! are only shown. `both_ways` looks for a value mounted, too, where no peer asks for that.

use serde::Deserialize;

use super::{
    Across, Experiment, OverAt, Overall, Paper, Point, Settings, Source, System, Taken, Value, Way, size,
};
use crate::report::schema::{Axis, Bound, Meant, Metric};

const CATALOGS: [(&str, &str); 6] = [
    ("hinfs.toml", include_str!("catalog/hinfs.toml")),
    ("spfs.toml", include_str!("catalog/spfs.toml")),
    ("tpfs.toml", include_str!("catalog/tpfs.toml")),
    ("compare.toml", include_str!("catalog/compare.toml")),
    ("acbpfs.toml", include_str!("catalog/acbpfs.toml")),
    ("tiers.toml", include_str!("catalog/tiers.toml")),
];

/// The placeholder for a sweep's texts.
pub(super) const PLACE: &str = "{}";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPaper {
    name: String,
    short: String,
    title: String,
    #[serde(default)]
    settings: Settings,
    system: Vec<RawSystem>,
    #[serde(default)]
    overall: Vec<RawValue>,
    experiment: Vec<RawExperiment>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSystem {
    name: String,
    target: Option<String>,
    absent: Option<String>,
    #[serde(default)]
    about: String,
    #[serde(default)]
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExperiment {
    name: String,
    about: String,
    differs: String,
    baseline: Option<String>,
    #[serde(default)]
    panel: Vec<RawPanel>,
    figure: String,
    title: String,
    metric: Option<Metric>,
    latency: Option<String>,
    counter: Option<String>,
    axis: Option<RawAxis>,
    systems: Option<Vec<String>>,
    #[serde(default)]
    settings: Settings,
    workload: Option<String>,
    sweep: Option<Vec<String>>,
    points: Option<Vec<RawPoint>>,
    #[serde(default)]
    values: Vec<RawValue>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPanel {
    name: String,
    figure: Option<String>,
    title: Option<String>,
    metric: Option<Metric>,
    latency: Option<String>,
    axis: Option<RawAxis>,
    systems: Option<Vec<String>>,
    #[serde(default)]
    settings: Settings,
    workload: Option<String>,
    sweep: Option<Vec<String>>,
    points: Option<Vec<RawPoint>>,
    #[serde(default)]
    values: Vec<RawValue>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAxis {
    name: String,
    unit: Option<String>,
    #[serde(default)]
    log2: bool,
    #[serde(default)]
    chosen: bool,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPoint {
    label: String,
    workload: Option<String>,
    absent: Option<String>,
    /// The stand-in for the paper's workload.
    about: Option<String>,
    #[serde(default)]
    settings: Settings,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawValue {
    of: Names,
    #[serde(default)]
    over: Names,
    #[serde(default)]
    at: Names,
    over_at: Option<String>,
    ratio: Option<f64>,
    value: Option<f64>,
    #[serde(default)]
    is: Meant,
    #[serde(default)]
    across: Across,
    #[serde(default)]
    source: Source,
    place: Option<String>,
    goal: Option<RawGoal>,
    counter: Option<String>,
    #[serde(default)]
    both_ways: bool,
    #[serde(default)]
    note: String,
    /// Of an overall value only.
    #[serde(default)]
    experiments: Vec<String>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGoal {
    at_least: Option<f64>,
    at_most: Option<f64>,
    /// The only way on which it is a goal.
    on: Option<Way>,
}

/// One or several.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

impl Default for Names {
    fn default() -> Names {
        Names::Several(Vec::new())
    }
}

impl Names {
    fn list(&self) -> Vec<String> {
        match self {
            Names::One(name) => vec![name.clone()],
            Names::Several(names) => names.clone(),
        }
    }
}

/// Every paper.
pub(super) fn all() -> Result<Vec<Paper>, String> {
    CATALOGS.iter().map(|(file, text)| paper(text).map_err(|why| format!("{file}: {why}"))).collect()
}

/// A paper from its file.
pub(super) fn paper(text: &str) -> Result<Paper, String> {
    let raw: RawPaper = toml::from_str(text).map_err(|error| error.to_string())?;
    let systems = raw.system.iter().map(system).collect::<Result<Vec<_>, _>>()?;
    let mut experiments = Vec::new();
    for figure in &raw.experiment {
        let alone = [RawPanel::default()];
        let panels = if figure.panel.is_empty() { &alone[..] } else { &figure.panel };
        for panel in panels {
            let made = experiment(&raw, &systems, figure, panel);
            experiments.push(made.map_err(|why| format!("{} {}: {why}", figure.name, panel.name))?);
        }
    }
    let overall = raw
        .overall
        .iter()
        .map(|raw| Ok(Overall { value: value(raw)?, experiments: raw.experiments.clone() }))
        .collect::<Result<_, String>>()?;
    Ok(Paper { name: raw.name, short: raw.short, title: raw.title, experiments, overall })
}

/// One of two that exclude each other.
fn either(
    here: &Option<String>,
    absent: &Option<String>,
    what: &str,
) -> Result<Result<String, String>, String> {
    match (here, absent) {
        (Some(here), None) => Ok(Ok(here.clone())),
        (None, Some(why)) => Ok(Err(why.clone())),
        _ => Err(format!("{what} is there, or says why it is absent")),
    }
}

fn system(raw: &RawSystem) -> Result<System, String> {
    Ok(System {
        name: raw.name.clone(),
        target: either(&raw.target, &raw.absent, &raw.name)?,
        about: raw.about.clone(),
        settings: raw.settings.clone(),
    })
}

fn experiment(
    paper: &RawPaper,
    systems: &[System],
    figure: &RawExperiment,
    panel: &RawPanel,
) -> Result<Experiment, String> {
    let axis = panel.axis.as_ref().or(figure.axis.as_ref()).ok_or("no axis")?;
    let metric = panel.metric.as_ref().or(figure.metric.as_ref()).ok_or("no metric")?.clone();
    let taken = match (panel.latency.as_ref().or(figure.latency.as_ref()), &figure.counter) {
        (None, None) => Taken::Workload,
        (Some(operation), None) => Taken::Latency(operation.clone()),
        (None, Some(counter)) => Taken::Counter(counter.clone()),
        (Some(_), Some(_)) => return Err("values are a latency or a counter".into()),
    };
    let names = panel.systems.as_ref().or(figure.systems.as_ref()).ok_or("no systems")?;
    let systems = names
        .iter()
        .map(|name| {
            let found = systems.iter().find(|system| system.name == *name);
            found.cloned().ok_or_else(|| format!("{name} is no system of the paper"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let settings = panel.settings.or(&figure.settings).or(&paper.settings);
    let points = points(figure, panel, axis, &settings)?;
    let mut common = settings;
    for text in common.texts() {
        text.take_if(|text| text.contains(PLACE));
    }
    let mut values = figure.values.iter().chain(&panel.values).map(value).collect::<Result<Vec<_>, _>>()?;
    for value in values.iter_mut().filter(|value| value.at.is_empty()) {
        value.at = points.iter().map(|point| point.key.clone()).collect();
    }
    let title = match (&panel.title, panel.name.as_str()) {
        (Some(title), _) => format!("{}: {title}", figure.title),
        (None, "") => figure.title.clone(),
        (None, name) => format!("{}: {name}", figure.title),
    };
    Ok(Experiment {
        name: if panel.name.is_empty() {
            figure.name.clone()
        } else {
            format!("{}.{}", figure.name, panel.name)
        },
        paper: paper.short.clone(),
        figure: panel.figure.as_ref().unwrap_or(&figure.figure).clone(),
        title,
        about: figure.about.clone(),
        differs: figure.differs.clone(),
        metric,
        taken,
        axis: Axis { name: axis.name.clone(), unit: axis.unit.clone(), log2: axis.log2 },
        chosen: axis.chosen,
        baseline: figure.baseline.clone(),
        systems,
        common,
        points,
        values,
    })
}

fn points(
    figure: &RawExperiment,
    panel: &RawPanel,
    axis: &RawAxis,
    settings: &Settings,
) -> Result<Vec<Point>, String> {
    let own = |raw: &RawPoint| {
        let label = match &raw.about {
            Some(about) => format!("{}: {about}", raw.label),
            None => raw.label.clone(),
        };
        let workload = either(&raw.workload, &raw.absent, &raw.label)?;
        Ok(Point { key: raw.label.clone(), label, x: None, workload, settings: raw.settings.clone() })
    };
    let listed = panel.points.as_ref().or(figure.points.as_ref());
    let sweep = panel.sweep.as_ref().or(figure.sweep.as_ref());
    match (listed, sweep) {
        (Some(points), None) => points.iter().map(own).collect(),
        (None, Some(sweep)) => {
            let workload = panel.workload.as_ref().or(figure.workload.as_ref()).ok_or("no workload")?;
            sweep.iter().map(|text| swept(text, workload, axis, settings)).collect()
        }
        _ => Err("points are listed, or come from a sweep".into()),
    }
}

/// One point of a sweep.
fn swept(text: &str, workload: &str, axis: &RawAxis, settings: &Settings) -> Result<Point, String> {
    let bytes = axis.unit.as_deref() == Some("B");
    let x = if bytes {
        size::parse(text)? as f64
    } else {
        text.parse().map_err(|_| format!("{text:?} is no number"))?
    };
    let mut own = Settings::default();
    for (mine, common) in own.texts().into_iter().zip(settings.clone().texts()) {
        *mine = common.take_if(|common| common.contains(PLACE)).map(|common| common.replace(PLACE, text));
    }
    Ok(Point {
        key: text.to_owned(),
        label: if bytes { size::print(x as u64) } else { text.to_owned() },
        x: Some(x),
        workload: Ok(workload.replace(PLACE, text)),
        settings: own,
    })
}

fn value(raw: &RawValue) -> Result<Value, String> {
    let (of, over) = (raw.of.list(), raw.over.list());
    let said = match (raw.ratio, raw.value) {
        (Some(ratio), None) if !over.is_empty() => ratio,
        (None, Some(value)) if over.is_empty() => value,
        _ => return Err(format!("{of:?}: a ratio over another system, or a value by itself")),
    };
    let goal = match raw.goal.as_ref().map(|goal| (goal.at_least, goal.at_most)) {
        None => None,
        Some((Some(low), None)) => Some(Bound::AtLeast(low)),
        Some((None, Some(high))) => Some(Bound::AtMost(high)),
        Some((Some(low), Some(high))) => Some(Bound::Between(low, high)),
        Some((None, None)) => return Err(format!("{of:?}: a goal has a bound")),
    };
    let over_at = raw.over_at.as_ref().map(|key| match key.as_str() {
        "best" => OverAt::Best,
        key => OverAt::Point(key.to_owned()),
    });
    Ok(Value {
        of,
        over,
        at: raw.at.list(),
        over_at,
        said,
        is: raw.is,
        across: raw.across,
        source: raw.source,
        place: raw.place.clone(),
        goal,
        goal_on: raw.goal.as_ref().and_then(|goal| goal.on),
        on_both: raw.both_ways,
        counter: raw.counter.clone(),
        note: raw.note.clone(),
    })
}
