//! From values to places.

/// How values lie along an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::report::html) struct Scale {
    values: (f64, f64),
    places: (f64, f64),
    log: bool,
}

/// The share of a decade or a step that is added for a rounding error of binary numbers.
const SLACK: f64 = 1e-9;

impl Scale {
    /// From zero to at least the largest value.
    pub(in crate::report::html) fn from_zero(values: impl Iterator<Item = f64>, places: (f64, f64)) -> Scale {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most, 5);
        Scale { values: (0.0, (most / step - SLACK).ceil() * step), places, log: false }
    }

    /// By logarithms, from at most the least to at least the largest value above zero, in ends of 1, 2 or 5.
    pub(in crate::report::html) fn log(values: impl Iterator<Item = f64>, places: (f64, f64)) -> Scale {
        let positive: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
        let least = positive.iter().copied().fold(f64::INFINITY, f64::min);
        let most = positive.iter().copied().fold(0.0, f64::max);
        let (least, most) = if positive.is_empty() { (1.0, 10.0) } else { (least, most) };
        let low = round(least, |at, of| at <= of * (1.0 + SLACK), [5.0, 2.0, 1.0]);
        let high = round(most, |at, of| at >= of * (1.0 - SLACK), [1.0, 2.0, 5.0]);
        let high = if high > low { high } else { low * 10.0 };
        Scale { values: (low, high), places, log: true }
    }

    /// Between exactly these.
    pub(in crate::report::html) fn between(values: (f64, f64), places: (f64, f64), log: bool) -> Scale {
        let (low, high) = values;
        let high = if high > low { high } else { low + 1.0 };
        Scale { values: (low, high), places, log: log && low > 0.0 }
    }

    /// From zero, or by logarithms where values are so far apart that small ones could not be seen.
    pub(in crate::report::html) fn fitting(values: &[f64], places: (f64, f64)) -> Scale {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let least = finite.iter().copied().fold(f64::INFINITY, f64::min);
        let most = finite.iter().copied().fold(0.0, f64::max);
        if least > 0.0 && most > 25.0 * least {
            Scale::log(finite.into_iter(), places)
        } else {
            Scale::from_zero(finite.into_iter(), places)
        }
    }

    /// Whether it goes by logarithms.
    pub(in crate::report::html) fn is_log(&self) -> bool {
        self.log
    }

    /// The place of a value, within the axis.
    pub(in crate::report::html) fn at(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let value = if value.is_nan() { low } else { value.clamp(low, high) };
        let share =
            if self.log { (value / low).ln() / (high / low).ln() } else { (value - low) / (high - low) };
        self.places.0 + share * (self.places.1 - self.places.0)
    }

    /// Values to write beside the axis: about this many, or fewer.
    pub(in crate::report::html) fn ticks(&self, most: usize) -> Vec<f64> {
        let (low, high) = self.values;
        if !self.log {
            let step = step(high - low, most);
            let count = ((high - low) / step + SLACK).floor() as i32;
            return (0..=count).map(|at| low + f64::from(at) * step).collect();
        }
        let decades = (high / low).log10();
        let digits: &[f64] = match decades {
            decades if decades * 3.0 <= most as f64 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let every = (decades / most as f64).ceil().max(1.0) as i32;
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let round: Vec<f64> = (first..=last)
            .filter(|power| (power - first) % every == 0)
            .flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)))
            .filter(|value| (low * (1.0 - SLACK)..=high * (1.0 + SLACK)).contains(value))
            .collect();
        if round.len() > 1 { round } else { vec![low, high] }
    }
}

/// The smallest of 1, 2, 5 times a power of ten that needs at most this many steps.
fn step(range: f64, most: usize) -> f64 {
    let rough = range / most as f64;
    round(rough, |at, of| at >= of * (1.0 - SLACK), [1.0, 2.0, 5.0])
}

/// The first of these digits, in the value's decade or the next, that fits.
fn round(value: f64, fits: impl Fn(f64, f64) -> bool, digits: [f64; 3]) -> f64 {
    let decade = 10f64.powi(value.log10().floor() as i32);
    digits.iter().map(|digit| digit * decade).find(|at| fits(*at, value)).unwrap_or(decade * 10.0)
}

#[cfg(test)]
mod tests {
    use super::Scale;

    #[test]
    fn axes_begin_and_end_at_round_values() {
        let scale = Scale::from_zero([3.0, 87.0].into_iter(), (0.0, 100.0));
        assert_eq!(
            (scale.at(0.0), scale.at(100.0), scale.ticks(5)),
            (0.0, 100.0, vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0])
        );
        let scale = Scale::log([30.0, 80_000.0].into_iter(), (100.0, 0.0));
        assert_eq!((scale.at(20.0), scale.at(100_000.0)), (100.0, 0.0));
        assert_eq!(scale.ticks(5), [100.0, 1000.0, 10_000.0, 100_000.0]);
        let scale = Scale::log([1.0, 9.0].into_iter(), (0.0, 1.0));
        assert_eq!(scale.ticks(5), [1.0, 2.0, 5.0, 10.0]);
    }

    #[test]
    fn no_value_leaves_the_axis() {
        for scale in [
            Scale::from_zero([f64::NAN, f64::INFINITY].into_iter(), (0.0, 100.0)),
            Scale::log([0.0, -1.0].into_iter(), (0.0, 100.0)),
            Scale::between((5.0, 5.0), (0.0, 100.0), true),
            Scale::fitting(&[1.0, 1000.0], (0.0, 100.0)),
            Scale::fitting(&[], (0.0, 100.0)),
        ] {
            for value in [f64::NAN, f64::INFINITY, -1e300, 0.0, 1e300] {
                assert!((0.0..=100.0).contains(&scale.at(value)), "{scale:?} {value}");
            }
            assert!((2..10).contains(&scale.ticks(5).len()), "{scale:?} {:?}", scale.ticks(5));
        }
    }
}
