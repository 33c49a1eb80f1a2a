//! Claims next to the measured values.

use svg::node::element::Element;

use super::super::number;
use super::{Drawing, Scale, Width, element, hint, line, moved, whisker_x, words};
use crate::report::schema::{Bound, Claim, Verdict};
use crate::report::text;

/// A verdict in a sign and a word: neither needs a colour.
pub(in crate::report::html) fn verdict(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Holds => ("✓", "holds"),
        Verdict::Missed => ("✗", "missed"),
        Verdict::Better => ("+", "better"),
        Verdict::Beside => ("=", "beside"),
        Verdict::Waits => ("…", "waits"),
    }
}

/// The two ends of the range that a value is to lie in, where it has them.
fn ends(bound: Bound) -> (Option<f64>, Option<f64>) {
    match bound {
        Bound::AtLeast(least) => (Some(least), None),
        Bound::AtMost(most) => (None, Some(most)),
        Bound::Between(least, most) => (Some(least), Some(most)),
    }
}

/// A row for each claim: a diamond for the claim, a disc with its interval for the measured value, and a band where it
/// holds.
pub(in crate::report::html) fn draw(claims: &[&Claim], width: Width) -> Drawing {
    let right = width.units() - if width == Width::Wide { 90.0 } else { 6.0 };
    let values: Vec<f64> = claims
        .iter()
        .flat_map(|claim| {
            let (low, high) = claim.holds_if.map_or((None, None), ends);
            let interval = claim.interval.map_or([None; 2], |(low, high)| [Some(low), Some(high)]);
            [Some(claim.said), claim.found, low, high].into_iter().chain(interval).flatten()
        })
        .collect();
    let x = Scale::fitting(&values, (8.0, right - 8.0));
    let mut marks = Vec::new();
    let mut y = 6.0;
    for claim in claims {
        y += row(claim, &x, width, y, &mut marks);
    }
    let unit = claims.first().and_then(|claim| claim.unit.as_deref());
    let mut all = Vec::new();
    for tick in x.ticks(if width == Width::Wide { 7 } else { 4 }) {
        all.push(line("grid", (x.at(tick), 0.0), (x.at(tick), y)));
        all.push(words("tick mid", (x.at(tick), y + 15.0), &number::tick(tick, unit.unwrap_or_default())));
    }
    all.append(&mut marks);
    let value = unit.map_or("value".to_owned(), |unit| format!("value in {}", number::unit(unit)));
    let log = if x.is_log() { " (log axis)" } else { "" };
    all.push(words("axis", (0.0, y + 33.0), &format!("{value}{log}: ◇ said, ● found")));
    Drawing { height: y + 40.0, marks: all }
}

fn row(claim: &Claim, x: &Scale, width: Width, y: f64, marks: &mut Vec<Element>) -> f64 {
    let (sign, word) = verdict(claim.verdict());
    let verdict = format!("{sign} {word}");
    // On a phone there is no room beside the values.
    let (line_of_verdict, room) = if width == Width::Wide { (34.0, 0.0) } else { (13.0, 80.0) };
    let class = format!("verdict end {word}");
    marks.push(words(&class, (width.units(), y + line_of_verdict), &verdict));
    marks.push(words("label", (0.0, y + 13.0), &shortened(&claim.what, width.units() - room)));
    let middle = y + 30.0;
    let (low, high) = claim.holds_if.map_or((None, None), ends);
    if low.is_some() || high.is_some() {
        let from = low.map_or(0.0, |low| x.at(low));
        let to = high.map_or(x.at(f64::INFINITY) + 8.0, |high| x.at(high));
        let place = [("x", from), ("y", middle - 9.0), ("width", (to - from).max(1.0)), ("height", 18.0)];
        marks.push(hint(element("rect", "bound", &place), "where it holds"));
    }
    let said = moved("said", "M0 -7L6 0L0 7L-6 0Z", (x.at(claim.said), middle));
    if let Some(found) = claim.found {
        marks.push(line("between", (x.at(claim.said), middle), (x.at(found), middle)));
        if let Some((low, high)) = claim.interval {
            marks.push(whisker_x(word, (x.at(low), x.at(high)), middle));
        }
        let place = [("cx", x.at(found)), ("cy", middle), ("r", 5.0)];
        let text = format!("found {}", text::valued(claim, found));
        marks.push(hint(element("circle", &format!("found {word}"), &place), &text));
    }
    marks.push(hint(said, &format!("{} says {}", claim.source, text::said(claim))));
    48.0
}

/// As much as fits; the table below has all of it.
fn shortened(text: &str, room: f64) -> String {
    let most = (room / 7.0) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}
