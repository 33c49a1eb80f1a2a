//! How long operations took: by the share of operations, so that tails can be seen.
//!
//! Along x stands the share of operations by "nines" (none, 90 %, 99 %, ...: the logarithm of the share that took longer),
//! along y the time that this share stayed within.

use super::super::number;
use super::{Drawing, Scale, Width, line, mark, path, words};
use crate::report::schema::Latency;

/// Shares that are named below the axis, and marked on the lines.
const SHARES: [(f64, &str); 7] = [
    (0.0, "0"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.99999, "99.999 %"),
];

/// The most nines that are drawn.
const NINES: f64 = 5.0;

/// One line for each target: the number of its style, its name, and its latencies.
pub(in crate::report::html) fn draw(lines: &[(usize, &Latency)], width: Width) -> Drawing {
    let (left, right, top) = (58.0, width.units() - 26.0, 26.0);
    let bottom = if width == Width::Wide { 300.0 } else { 250.0 };
    let most = lines.iter().map(|(_, latency)| latency.count).max().unwrap_or(1);
    let nines = (most.max(10) as f64).log10().min(NINES);
    let x = Scale::between((0.0, nines), (left, right), false);
    let times = lines.iter().flat_map(|(_, latency)| latency.histogram.iter().map(|(time, _)| *time));
    let y = Scale::log(times, (bottom, top));
    let mut marks = Vec::new();
    for tick in y.ticks(if width == Width::Wide { 7 } else { 5 }) {
        marks.push(line("grid", (left, y.at(tick)), (right, y.at(tick))));
        marks.push(words("tick end", (left - 6.0, y.at(tick) + 4.0), &number::tick(tick, "ns")));
    }
    let mut free = f64::NEG_INFINITY;
    for (share, label) in SHARES {
        let at = self::nines(share);
        if at > nines {
            break;
        }
        let (at, half) = (x.at(at), label.chars().count() as f64 * 3.7);
        marks.push(line("grid", (at, top), (at, bottom)));
        if at - half >= free {
            marks.push(words("tick mid", (at, bottom + 17.0), label));
            free = at + half + 4.0;
        }
    }
    marks.push(line("frame", (left, top), (left, bottom)));
    marks.push(line("frame", (left, bottom), (right, bottom)));
    marks.push(words("axis", (0.0, 12.0), "time (log axis), less is better"));
    marks.push(words(
        "axis mid",
        (f64::midpoint(left, right), bottom + 36.0),
        "share of operations within it",
    ));
    for (style, latency) in lines {
        let steps: Vec<_> =
            steps(latency).into_iter().map(|(share, time)| (x.at(share), y.at(time))).collect();
        marks.push(path(*style, &steps));
        for (share, _) in SHARES.iter().skip(1) {
            let enough = self::nines(*share) <= (latency.count.max(1) as f64).log10().min(nines);
            if let Some(time) = within(latency, *share).filter(|_| enough) {
                marks.push(mark(*style, (x.at(self::nines(*share)), y.at(time))));
            }
        }
    }
    Drawing { height: bottom + 44.0, marks }
}

/// A share of one would be infinitely far.
fn nines(share: f64) -> f64 {
    -(1.0 - share).max(1e-12).log10()
}

/// Corners of the line, in nines and times: each bin reaches from the share before it to the share with it.
fn steps(latency: &Latency) -> Vec<(f64, f64)> {
    let all: u64 = latency.histogram.iter().map(|(_, count)| count).sum();
    let mut corners = Vec::new();
    let mut below = 0;
    for (time, count) in &latency.histogram {
        for edge in [below, below + count] {
            // The slowest operation of a thousand is drawn at a share of 99.9 %: nothing is known beyond.
            let share = (edge as f64 / all as f64).min(1.0 - 1.0 / all as f64);
            corners.push((nines(share.max(0.0)), *time));
        }
        below += count;
    }
    corners
}

/// The time that a share of operations stayed within.
fn within(latency: &Latency, share: f64) -> Option<f64> {
    let all: u64 = latency.histogram.iter().map(|(_, count)| count).sum();
    let mut below = 0;
    latency.histogram.iter().find_map(|(time, count)| {
        below += count;
        (below as f64 >= share * all as f64).then_some(*time)
    })
}

#[cfg(test)]
mod tests {
    use super::{Latency, steps, within};

    #[test]
    fn shares_are_those_of_the_histogram() {
        let histogram = vec![(10.0, 90), (20.0, 9), (500.0, 1)];
        let latency = Latency { count: 100, histogram, ..Latency::default() };
        let close = |found: Option<f64>, expected: f64| assert_eq!(found, Some(expected));
        close(within(&latency, 0.5), 10.0);
        close(within(&latency, 0.95), 20.0);
        close(within(&latency, 1.0), 500.0);
        let corners = steps(&latency);
        let expected = [(0.0, 10.0), (1.0, 10.0), (1.0, 20.0), (2.0, 20.0), (2.0, 500.0), (2.0, 500.0)];
        assert!(
            corners.iter().zip(expected).all(|(a, b)| (a.0 - b.0).abs() < 1e-9 && a.1 == b.1),
            "{corners:?}"
        );
        assert_eq!(within(&Latency::default(), 0.5), None);
    }
}
