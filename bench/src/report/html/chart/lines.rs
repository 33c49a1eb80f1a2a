//! Lines for sweeps: the median and its interval at each place.

use svg::node::element::Element;

use super::super::number;
use super::{Drawing, Scale, Width, bars, hint, line, mark, path, whisker_y, words};
use crate::report::schema::Experiment;

/// True when every point has its place on the axis.
pub(in crate::report::html) fn is_sweep(experiment: &Experiment) -> bool {
    let mut points = experiment.series.iter().flat_map(|series| &series.points);
    experiment.axis.unit.is_some() && points.all(|point| point.x.is_some_and(f64::is_finite))
}

/// Places of all points along the axis, with the labels below them.
fn places(experiment: &Experiment) -> Vec<(f64, &str)> {
    let points = experiment.series.iter().flat_map(|series| &series.points);
    let mut places: Vec<(f64, &str)> =
        points.filter_map(|point| Some((point.x?, point.label.as_str()))).collect();
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places.dedup_by(|a, b| a.0 == b.0);
    places
}

/// One line for each target. `number` tells the style of a target.
pub(in crate::report::html) fn draw(
    experiment: &Experiment,
    number: &dyn Fn(&str) -> usize,
    width: Width,
) -> Drawing {
    let (left, right, top) = (52.0, width.units() - 16.0, 26.0);
    let bottom = if width == Width::Wide { 330.0 } else { 260.0 };
    let points = || experiment.series.iter().flat_map(|series| &series.points);
    let values: Vec<f64> =
        points().flat_map(|point| [point.median, point.interval.0, point.interval.1]).collect();
    let y = Scale::fitting(&values, (bottom, top));
    let places = places(experiment);
    let ends = (places.first().map_or(0.0, |place| place.0), places.last().map_or(1.0, |place| place.0));
    let x = Scale::between(ends, (left + 14.0, right - 10.0), experiment.axis.log2);
    let mut marks = frame(experiment, width, (left, right, top, bottom), &y);
    below(&places, &x, (top, bottom), &mut marks);
    let unit = &experiment.metric.unit;
    for series in &experiment.series {
        let style = number(&series.target);
        let finite = || series.points.iter().filter(|point| point.median.is_finite());
        let at = |point: &crate::report::schema::Point| (x.at(point.x.unwrap_or(0.0)), y.at(point.median));
        marks.push(path(style, &finite().map(at).collect::<Vec<_>>()));
        for point in finite() {
            let ends = (y.at(point.interval.0), y.at(point.interval.1));
            marks.push(whisker_y(&super::style(style), at(point).0, ends));
            let text = format!(
                "{}, {} {}: {} {unit}, 95 % between {} and {}",
                series.target,
                experiment.axis.name,
                point.label,
                number::value(point.median, unit),
                number::value(point.interval.0, unit),
                number::value(point.interval.1, unit)
            );
            marks.push(hint(mark(style, at(point)), &text));
        }
    }
    let axis = &experiment.axis;
    let name = match axis.unit.as_deref() {
        Some(unit) if !unit.is_empty() => format!("{} in {}", axis.name, number::unit(unit)),
        _ => axis.name.clone(),
    };
    let name = if axis.log2 { format!("{name} (by powers of two)") } else { name };
    marks.push(words("axis mid", (f64::midpoint(left, right), bottom + 36.0), &name));
    Drawing { height: bottom + 44.0, marks }
}

/// The values' axis with its grid.
fn frame(
    experiment: &Experiment,
    width: Width,
    (left, right, top, bottom): (f64, f64, f64, f64),
    y: &Scale,
) -> Vec<Element> {
    let mut marks = Vec::new();
    for tick in y.ticks(if width == Width::Wide { 7 } else { 5 }) {
        marks.push(line("grid", (left, y.at(tick)), (right, y.at(tick))));
        let text = number::tick(tick, &experiment.metric.unit);
        marks.push(words("tick end", (left - 6.0, y.at(tick) + 4.0), &text));
    }
    marks.push(line("frame", (left, top), (left, bottom)));
    marks.push(line("frame", (left, bottom), (right, bottom)));
    let log = if y.is_log() { " (log axis)" } else { "" };
    marks.push(words("axis", (0.0, 12.0), &format!("{}{log}", bars::axis(experiment))));
    marks
}

/// Labels below the axis; those that would touch the one before are left out, and their marks stay.
fn below(places: &[(f64, &str)], x: &Scale, (top, bottom): (f64, f64), marks: &mut Vec<Element>) {
    let mut free = f64::NEG_INFINITY;
    for (value, label) in places {
        let at = x.at(*value);
        marks.push(line("grid", (at, top), (at, bottom)));
        let half = label.chars().count() as f64 * 3.7;
        if at - half >= free {
            marks.push(words("tick mid", (at, bottom + 17.0), label));
            free = at + half + 6.0;
        }
    }
}
