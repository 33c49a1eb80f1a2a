//! Bars for categories: the median, its interval, and every round as a dot.

use super::super::number;
use super::{Drawing, Scale, Width, bar, element, hint, line, whisker_x, words};
use crate::report::schema::{Better, Experiment, Point, Series};

/// Dots of a bar. Of more rounds every second one is drawn, or every third: thousands would only be a smear.
const DOTS: usize = 200;

/// The names of the categories, in order.
pub(in crate::report::html) fn categories(experiment: &Experiment) -> Vec<&str> {
    let mut labels: Vec<&str> = Vec::new();
    for point in experiment.series.iter().flat_map(|series| &series.points) {
        if !labels.contains(&point.label.as_str()) {
            labels.push(&point.label);
        }
    }
    labels
}

/// Where the bars begin and end, in one width.
struct Columns {
    width: Width,
    scale: Scale,
    label: f64,
}

/// Bars, one below the other, in groups by category. `number` tells the style of a target.
pub(in crate::report::html) fn draw(
    experiment: &Experiment,
    number: &dyn Fn(&str) -> usize,
    width: Width,
) -> Drawing {
    let points = experiment.series.iter().flat_map(|series| &series.points);
    let values =
        points.flat_map(|point| point.samples.iter().chain([&point.median, &point.interval.1]).copied());
    let longest = experiment.series.iter().map(|series| series.target.chars().count()).max().unwrap_or(0);
    let label = match width {
        Width::Wide => (longest as f64 * 7.3 + 12.0).clamp(80.0, 280.0),
        Width::Narrow => 0.0,
    };
    let end = if width == Width::Wide { width.units() - 160.0 } else { width.units() - 6.0 };
    let scale = Scale::from_zero(values, (label + 2.0, end));
    let columns = Columns { width, scale, label };
    let labels = categories(experiment);
    let mut marks = Vec::new();
    let mut y = 4.0;
    for category in &labels {
        if labels.len() > 1 {
            y += 20.0;
            marks.push(words("heading", (0.0, y - 4.0), category));
        }
        let top = y;
        for series in &experiment.series {
            let Some(point) = series.points.iter().find(|point| point.label == *category) else { continue };
            y += columns.row(experiment, series, point, number(&series.target), y, &mut marks);
        }
        if let Some(median) = baseline(experiment, category) {
            let x = columns.scale.at(median);
            let to = experiment.baseline.as_deref().unwrap_or_default();
            marks.push(hint(line("baseline", (x, top), (x, y)), &format!("{to}: the baseline")));
        }
        y += 6.0;
    }
    let mut all: Vec<_> = Vec::new();
    for tick in columns.scale.ticks(if width == Width::Wide { 6 } else { 3 }) {
        let x = columns.scale.at(tick);
        all.push(line("grid", (x, 0.0), (x, y)));
        let anchor = if tick == 0.0 && width == Width::Narrow { "tick" } else { "tick mid" };
        let (x, anchor) = if x > width.units() - 12.0 { (width.units(), "tick end") } else { (x, anchor) };
        all.push(words(anchor, (x, y + 15.0), &number::tick(tick, &experiment.metric.unit)));
    }
    all.append(&mut marks);
    all.push(words("axis", (label + 2.0, y + 33.0), &axis(experiment)));
    Drawing { height: y + 40.0, marks: all }
}

/// The label of the values' axis.
pub(super) fn axis(experiment: &Experiment) -> String {
    let metric = &experiment.metric;
    let better = match metric.better {
        Better::More => "more is better",
        Better::Less => "less is better",
    };
    format!("{} in {}, {better}", metric.name, number::unit(&metric.unit))
}

fn baseline(experiment: &Experiment, category: &str) -> Option<f64> {
    let name = experiment.baseline.as_ref()?;
    let series = experiment.series.iter().find(|series| series.target == *name)?;
    Some(series.points.iter().find(|point| point.label == category)?.median)
}

impl Columns {
    /// One bar with everything about it; returns how much height it took.
    fn row(
        &self,
        experiment: &Experiment,
        series: &Series,
        point: &Point,
        number: usize,
        y: f64,
        marks: &mut Vec<svg::node::element::Element>,
    ) -> f64 {
        let unit = &experiment.metric.unit;
        let mut value = number::value(point.median, unit);
        if let Some(ratio) = &point.ratio {
            value = format!("{value} ({})", number::times(ratio.median));
        }
        let (bar_y, height) = match self.width {
            Width::Wide => {
                marks.push(words("label end", (self.label - 6.0, y + 15.0), &series.target));
                marks.push(words("value end", (self.width.units(), y + 15.0), &value));
                (y + 2.0, 26.0)
            }
            Width::Narrow => {
                marks.push(words("label", (2.0, y + 12.0), &series.target));
                marks.push(words("value end", (self.width.units(), y + 12.0), &value));
                (y + 17.0, 42.0)
            }
        };
        if point.median.is_finite() {
            let text = format!(
                "{}, {}: {} {unit}, 95 % between {} and {}, {} rounds",
                series.target,
                point.label,
                number::value(point.median, unit),
                number::value(point.interval.0, unit),
                number::value(point.interval.1, unit),
                point.samples.len()
            );
            let from = self.scale.at(0.0);
            let size = (self.scale.at(point.median) - from, 18.0);
            marks.push(hint(bar(number, (from, bar_y), size), &text));
            for sample in point.samples.iter().step_by(point.samples.len().div_ceil(DOTS)) {
                let place = [("cx", self.scale.at(*sample)), ("cy", bar_y + 14.0), ("r", 1.6)];
                marks.push(element("circle", "dot", &place));
            }
            let ends = (self.scale.at(point.interval.0), self.scale.at(point.interval.1));
            marks.push(whisker_x("", ends, bar_y + 7.0));
        }
        height
    }
}
