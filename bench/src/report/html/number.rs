//! Numbers for people.

use crate::report::text;

/// A value of a metric: three digits, and times with their unit.
pub(super) fn value(value: f64, unit: &str) -> String {
    match unit {
        _ if !value.is_finite() => "–".to_owned(),
        "ns" => time(value),
        _ => short(value),
    }
}

/// Nanoseconds with a unit.
pub(super) fn time(nanos: f64) -> String {
    text::time(nanos).replace("us", "µs")
}

/// Three digits, with k and M.
pub(super) fn short(value: f64) -> String {
    if value.is_finite() { text::short(value) } else { "–".to_owned() }
}

/// A value beside an axis: without zeros that say nothing.
pub(super) fn tick(value: f64, unit: &str) -> String {
    let scaled = |factor: f64, suffix: &str| {
        // Twelve digits hide the errors of binary fractions.
        let rounded = format!("{:.6}", value / factor);
        let digits = if rounded.contains('.') {
            rounded.trim_end_matches('0').trim_end_matches('.')
        } else {
            &rounded
        };
        format!("{digits}{suffix}")
    };
    match unit {
        "ns" if value >= 1e9 => scaled(1e9, " s"),
        "ns" if value >= 1e6 => scaled(1e6, " ms"),
        "ns" if value >= 1e3 => scaled(1e3, " µs"),
        "ns" => scaled(1.0, " ns"),
        _ if value.abs() >= 1e9 => scaled(1e9, "G"),
        _ if value.abs() >= 1e6 => scaled(1e6, "M"),
        _ if value.abs() >= 1e3 => scaled(1e3, "k"),
        _ => scaled(1.0, ""),
    }
}

/// A unit in words, where its letters alone would puzzle.
pub(super) fn unit(unit: &str) -> &str {
    match unit {
        "B" => "bytes",
        "op/s" => "operations a second",
        "s" => "seconds",
        "ns" => "time",
        other => other,
    }
}

/// A ratio.
pub(super) fn times(ratio: f64) -> String {
    if !ratio.is_finite() {
        return "–".to_owned();
    }
    let digits = match ratio {
        ratio if ratio >= 100.0 => 0,
        ratio if ratio >= 10.0 => 1,
        ratio if ratio >= 0.1 => 2,
        _ => 4,
    };
    format!("{ratio:.digits$}×")
}

/// A probability.
pub(super) fn probability(p: f64) -> String {
    match p {
        p if !p.is_finite() => "–".to_owned(),
        p if p < 0.001 => "< 0.001".to_owned(),
        p => format!("{p:.3}"),
    }
}

/// A counter, by its name: see [`crate::counters`].
pub(super) fn counter(name: &str, value: f64) -> String {
    match name {
        "cpu" => time(value),
        "dram" | "memory.peak" | "user.read" | "user.written" => bytes(value),
        _ => short(value),
    }
}

fn bytes(value: f64) -> String {
    match value {
        value if value >= f64::from(1 << 30) => format!("{:.2} GiB", value / f64::from(1 << 30)),
        value if value >= f64::from(1 << 20) => format!("{:.1} MiB", value / f64::from(1 << 20)),
        value if value >= 1024.0 => format!("{:.1} KiB", value / 1024.0),
        value => format!("{value:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, probability, tick, times, value};

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(
            [0.0, 0.1 + 0.2, 50.0, 2500.0, 2e6].map(|value| tick(value, "op/s")),
            ["0", "0.3", "50", "2.5k", "2M"]
        );
        assert_eq!([200.0, 5e3, 1e6].map(|value| tick(value, "ns")), ["200 ns", "5 µs", "1 ms"]);
        assert_eq!([0.0123, 0.5, 12.34, 123.4].map(times), ["0.0123×", "0.50×", "12.3×", "123×"]);
        assert_eq!([0.0001, 0.25, f64::NAN].map(probability), ["< 0.001", "0.250", "–"]);
        assert_eq!([17.0, 2048.0, 3e6].map(bytes), ["17 B", "2.0 KiB", "2.9 MiB"]);
        assert_eq!(value(f64::NAN, "s"), "–");
    }
}
