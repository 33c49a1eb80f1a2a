//! Charts as inline SVG.
//!
//! The chart crates that we know write colours into each element, so that a page could not follow a reader's dark
//! mode. None of them draws intervals on logarithmic axes. So marks and axes are computed here and take their colours
//! from classes of the page's style; the crate `svg` makes elements and text of them. It does not escape quotes in
//! attributes: texts from a report stand in text nodes only.
//!
//! A chart is drawn twice, for wide and for narrow screens, and the style shows one of the two. Each has its title and its
//! description inside.

pub(super) mod bars;
pub(super) mod claims;
pub(super) mod latency;
pub(super) mod lines;
mod scale;

use svg::Node;
use svg::node::Text;
use svg::node::element::Element;

pub(super) use scale::Scale;

/// Colours, patterns, marks and dashes before they come again.
pub(super) const STYLES: usize = 8;

/// Room for a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// A screen or paper.
    Wide,
    /// A phone.
    Narrow,
}

impl Width {
    /// In units of text that is 13 high.
    pub(super) fn units(self) -> f64 {
        match self {
            Width::Wide => 820.0,
            Width::Narrow => 340.0,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Width::Wide => "wide",
            Width::Narrow => "narrow",
        }
    }
}

/// A drawing, and its height.
pub(super) struct Drawing {
    pub(super) height: f64,
    pub(super) marks: Vec<Element>,
}

/// A chart for both widths, with its text alternatives.
pub(super) fn chart(id: &str, title: &str, about: &str, draw: impl Fn(Width) -> Drawing) -> String {
    [Width::Wide, Width::Narrow].map(|width| one(id, title, about, width, draw(width))).concat()
}

fn one(id: &str, title: &str, about: &str, width: Width, drawing: Drawing) -> String {
    let class = width.class();
    let mut svg = Element::new("svg");
    svg.assign("class", format!("chart {class}"));
    svg.assign("role", "img");
    svg.assign("aria-labelledby", format!("{id}-{class}-title"));
    svg.assign("aria-describedby", format!("{id}-{class}-desc"));
    svg.assign("viewBox", format!("0 0 {} {}", width.units(), drawing.height.ceil()));
    for (name, text) in [("title", title), ("desc", about)] {
        let mut words = Element::new(name);
        words.assign("id", format!("{id}-{class}-{name}"));
        words.append(Text::new(text));
        svg.append(words);
    }
    drawing.marks.into_iter().for_each(|mark| svg.append(mark));
    svg.to_string()
}

/// A style's class, by the number of the target.
pub(super) fn style(number: usize) -> String {
    format!("s{}", number % STYLES)
}

/// Patterns and marks shift against colours after one turn, so that sixty-four targets look different.
fn shape(number: usize) -> usize {
    (number + number / STYLES) % STYLES
}

fn element(name: &str, class: &str, numbers: &[(&str, f64)]) -> Element {
    let mut made = Element::new(name);
    made.assign("class", class);
    for (name, number) in numbers {
        made.assign(*name, (number * 10.0).round() / 10.0);
    }
    made
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Element {
    element("line", class, &[("x1", from.0), ("y1", from.1), ("x2", to.0), ("y2", to.1)])
}

/// Text; classes `mid` and `end` move its anchor.
fn words(class: &str, at: (f64, f64), text: &str) -> Element {
    let mut made = element("text", class, &[("x", at.0), ("y", at.1)]);
    made.append(Text::new(text));
    made
}

/// Adds the text that is shown when the pointer rests on the mark.
fn hint(mut mark: Element, text: &str) -> Element {
    let mut title = Element::new("title");
    title.append(Text::new(text));
    mark.append(title);
    mark
}

/// A bar in the colour and the pattern of a target.
fn bar(number: usize, corner: (f64, f64), size: (f64, f64)) -> Element {
    let place = [("x", corner.0), ("y", corner.1), ("width", size.0.max(0.5)), ("height", size.1)];
    let mut group = element("g", &style(number), &[]);
    group.append(element("rect", "bar", &place));
    let mut pattern = element("rect", "hatch", &place);
    pattern.assign("fill", format!("url(#pattern{})", shape(number)));
    group.append(pattern);
    group
}

/// The patterns, once for a page: strips in the colour of the paper over the colour of the target.
pub(super) fn patterns() -> String {
    let drawn =
        ["", "M0 8L8 0", "M0 0L8 8", "M4 0V8", "M0 4H8", "M0 8L8 0M0 0L8 8", "M4 0V8M0 4H8", "M3 4H5"];
    let mut defs = Element::new("defs");
    for (number, path) in drawn.iter().enumerate() {
        let mut pattern = element("pattern", "pattern", &[("width", 8.0), ("height", 8.0)]);
        pattern.assign("id", format!("pattern{number}"));
        pattern.assign("patternUnits", "userSpaceOnUse");
        let mut mark = Element::new("path");
        mark.assign("class", "strip");
        mark.assign("d", *path);
        pattern.append(mark);
        defs.append(pattern);
    }
    let mut svg = Element::new("svg");
    svg.assign("class", "patterns");
    svg.assign("aria-hidden", "true");
    svg.append(defs);
    svg.to_string()
}

/// A mark in the colour and the shape of a target.
fn mark(number: usize, place: (f64, f64)) -> Element {
    let path = match shape(number) {
        0 => "M-4 0A4 4 0 1 1 4 0A4 4 0 1 1 -4 0Z",
        1 => "M-4 -4H4V4H-4Z",
        2 => "M0 -5L5 4H-5Z",
        3 => "M0 -6L5 0L0 6L-5 0Z",
        4 => "M0 5L5 -4H-5Z",
        5 => "M-5 -5L5 5M5 -5L-5 5",
        6 => "M-6 0H6M0 -6V6",
        _ => "M-5 -2H5V2H-5Z",
    };
    let open = if matches!(shape(number), 5 | 6) { "mark open" } else { "mark" };
    moved(&format!("{open} {}", style(number)), path, place)
}

/// A shape around a place.
fn moved(class: &str, path: &str, (x, y): (f64, f64)) -> Element {
    let mut made = element("path", class, &[]);
    made.assign("d", path);
    made.assign("transform", format!("translate({x:.1} {y:.1})"));
    made
}

/// A line through places, in the colour and the dashes of a target.
fn path(number: usize, places: &[(f64, f64)]) -> Element {
    let mut made = element("path", &format!("line {} d{}", style(number), shape(number)), &[]);
    let steps = places.iter().enumerate();
    let steps = steps.map(|(at, (x, y))| format!("{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' }));
    made.assign("d", steps.collect::<String>());
    made
}

/// A small drawing of a target's style for legends and tables. It is hidden from readers of text, since the name
/// stands next to it.
pub(super) fn swatch(number: usize) -> String {
    let mut svg = element("svg", "swatch", &[("width", 34.0), ("height", 14.0)]);
    svg.assign("viewBox", "0 0 34 14");
    svg.assign("aria-hidden", "true");
    svg.append(bar(number, (0.0, 1.0), (12.0, 12.0)));
    svg.append(path(number, &[(14.0, 7.0), (34.0, 7.0)]));
    svg.append(mark(number, (24.0, 7.0)));
    svg.to_string()
}

/// An interval with its ends, along x.
fn whisker_x(class: &str, (low, high): (f64, f64), y: f64) -> Element {
    let mut group = element("g", class, &[]);
    group.append(line("whisker", (low, y), (high, y)));
    for x in [low, high] {
        group.append(line("whisker", (x, y - 4.0), (x, y + 4.0)));
    }
    group
}

/// An interval with its ends, along y.
fn whisker_y(class: &str, x: f64, (low, high): (f64, f64)) -> Element {
    let mut group = element("g", class, &[]);
    group.append(line("whisker", (x, low), (x, high)));
    for y in [low, high] {
        group.append(line("whisker", (x - 3.0, y), (x + 3.0, y)));
    }
    group
}
