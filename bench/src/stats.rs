//! Medians, how sure they are, and whether two sides differ.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal, StudentsT};

/// The value below which this share of all values lies; not a number when there are none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len => {
            let at = (len - 1) as f64 * share;
            let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
            low + (high - low) * at.fract()
        }
    }
}

/// The middle.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The geometric mean, in which a ratio and its inverse are one together; the arithmetic one where a value is none of a
/// ratio, which can be zero.
pub fn mean(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if values.iter().all(|value| *value > 0.0) {
        (values.iter().map(|value| value.ln()).sum::<f64>() / count).exp()
    } else {
        values.iter().sum::<f64>() / count
    }
}

/// Fewer values than this have no [`median_interval`] of 95 %.
pub const FEWEST_FOR_INTERVAL: usize = 6;

/// The confidence interval of 95 % of the median, by order statistics: it assumes nothing about how values are
/// distributed. Under six values it is their whole range, and says less.
pub fn median_interval(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else { return (f64::NAN, f64::NAN) };
    let Ok(coin) = Binomial::new(0.5, sorted.len() as u64) else { return (first, last) };
    // How many of the lowest values the median is above with 97.5 %.
    let below = (0..sorted.len() as u64 / 2).take_while(|&k| coin.cdf(k) <= 0.025).count();
    match below {
        0 => (first, last),
        k => (sorted[k - 1], sorted[sorted.len() - k]),
    }
}

/// The probability of ratios as far from 1 as these, or farther, when both sides are alike: Wilcoxon's signed ranks of
/// their logarithms, with the normal approximation. One when there are too few to say anything.
pub fn alike(ratios: &[f64]) -> f64 {
    let mut logs: Vec<f64> =
        ratios.iter().map(|ratio| ratio.ln()).filter(|log| *log != 0.0 && log.is_finite()).collect();
    let count = logs.len() as f64;
    if logs.len() < FEWEST_FOR_INTERVAL {
        return 1.0;
    }
    logs.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let positive: f64 =
        (1..).zip(&logs).filter(|(_, log)| **log > 0.0).map(|(rank, _)| f64::from(rank)).sum();
    let mean = count * (count + 1.0) / 4.0;
    let deviation = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
    let distance = ((positive - mean).abs() - 0.5).max(0.0) / deviation;
    2.0 * (1.0 - Normal::standard().cdf(distance))
}

/// Fewer samples than this on one side say nothing to [`same_source`].
pub const FEWEST: usize = 4;

/// The probability of two sets of samples as far apart as these when both come from the same source: Mann's and
/// Whitney's test, with the normal approximation and without pairs. One when there are too few.
pub fn same_source(a: &[f64], b: &[f64]) -> f64 {
    if a.len() < FEWEST || b.len() < FEWEST {
        return 1.0;
    }
    let wins: f64 = a
        .iter()
        .flat_map(|x| {
            b.iter().map(move |y| {
                if x > y {
                    1.0
                } else if x == y {
                    0.5
                } else {
                    0.0
                }
            })
        })
        .sum();
    let (n, m) = (a.len() as f64, b.len() as f64);
    let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
    let distance = ((wins - n * m / 2.0).abs() - 0.5).max(0.0) / deviation;
    2.0 * (1.0 - Normal::standard().cdf(distance))
}

/// As [`same_source`], of values that are each the median of many and above zero: Welch's test of their logarithms. A few of
/// them are enough to be sure of a clear difference, which ranks of so few never are when many points are asked about.
pub fn same_mean(a: &[f64], b: &[f64]) -> f64 {
    let logs = |values: &[f64]| -> Option<Vec<f64>> {
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        (logs.len() >= FEWEST && logs.iter().all(|log| log.is_finite())).then_some(logs)
    };
    let (Some(a), Some(b)) = (logs(a), logs(b)) else { return same_source(a, b) };
    // The mean, and the variance of that.
    let moments = |values: &[f64]| {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (mean, squares / (count - 1.0) / count)
    };
    let ((mean_a, error_a), (mean_b, error_b)) = (moments(&a), moments(&b));
    let error = error_a + error_b;
    if error == 0.0 {
        return if mean_a == mean_b { 1.0 } else { 0.0 };
    }
    let free = |error: f64, values: &[f64]| error.powi(2) / (values.len() - 1) as f64;
    let freedom = error.powi(2) / (free(error_a, &a) + free(error_b, &b));
    match StudentsT::new(0.0, 1.0, freedom) {
        Ok(student) => 2.0 * (1.0 - student.cdf((mean_a - mean_b).abs() / error.sqrt())),
        Err(_) => 1.0,
    }
}

/// The confidence interval of 95 % of the ratio of two medians, `over` by `under`, without pairs: a bootstrap, which draws
/// both sides again many times. The same samples give the same interval.
pub fn ratio_interval(over: &[f64], under: &[f64]) -> (f64, f64) {
    /// Enough for two digits of the ends.
    const DRAWS: usize = 2000;
    if over.is_empty() || under.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let mut random = SmallRng::seed_from_u64(1);
    let mut again = |values: &[f64]| {
        let drawn: Vec<f64> = values.iter().map(|_| values[random.random_range(0..values.len())]).collect();
        median(&drawn)
    };
    let ratios: Vec<f64> = (0..DRAWS).map(|_| again(over) / again(under)).collect();
    (quantile(&ratios, 0.025), quantile(&ratios, 0.975))
}

/// Probabilities as they are when that many questions were asked at once, in the order given (Benjamini and Hochberg).
/// Of those below a level, at most that share is expected to be found by chance.
pub fn adjusted(probabilities: &[f64]) -> Vec<f64> {
    let count = probabilities.len() as f64;
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    let mut adjusted = vec![1.0; probabilities.len()];
    let mut least: f64 = 1.0;
    for (above, at) in order.into_iter().enumerate() {
        least = least.min(probabilities[at] * count / (count - above as f64));
        adjusted[at] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::{
        adjusted, alike, mean, median, median_interval, quantile, ratio_interval, same_mean, same_source,
    };

    #[test]
    fn quantiles_lie_between_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[3.0, 1.0], 0.0), 1.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_ratio_and_its_inverse_are_one_together() {
        assert_eq!(mean(&[4.0, 0.25]), 1.0);
        assert_eq!(mean(&[4.0, 0.0]), 2.0);
        assert!(mean(&[]).is_nan());
    }

    /// The ranks are those of tables of the sign test: for 10 values the 2nd and 9th, for 20 the 6th and 15th.
    #[test]
    fn intervals_are_those_of_the_tables() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(median_interval(&values(10)), (2.0, 9.0));
        assert_eq!(median_interval(&values(20)), (6.0, 15.0));
        assert_eq!(median_interval(&values(3)), (1.0, 3.0));
    }

    #[test]
    fn sides_that_differ_are_told_apart_and_others_are_not() {
        let same: Vec<f64> = (0..30).map(|at| if at % 2 == 0 { 1.01 } else { 1.0 / 1.01 }).collect();
        let other: Vec<f64> = (0..30).map(|at| 1.05 + f64::from(at % 3) / 100.0).collect();
        assert!(alike(&same) > 0.5, "{}", alike(&same));
        assert!(alike(&other) < 1e-5, "{}", alike(&other));
        assert_eq!(alike(&[2.0; 3]), 1.0);
        assert!(same_source(&same, &same) > 0.9);
        assert!(same_source(&same, &other) < 1e-9);
    }

    /// Worked by hand: t is 3 with 6 degrees of freedom, of which a table has 2.4 %.
    #[test]
    fn a_few_medians_are_told_apart() {
        let around = |log: f64| [-3.0, -1.0, 1.0, 3.0].map(|step: f64| (log + step * 0.01).exp());
        let error = (2.0 * (20.0 / 3.0 * 1e-4) / 4.0_f64).sqrt();
        let found = same_mean(&around(0.0), &around(3.0 * error));
        assert!((found - 0.0240).abs() < 2e-4, "{found}");
        assert!(same_mean(&around(0.0), &around(0.0)) > 0.99);
        assert!(same_mean(&around(0.0), &around(0.3)) < 1e-5);
        assert_eq!((same_mean(&[2.0; 4], &[2.0; 4]), same_mean(&[2.0; 4], &[3.0; 4])), (1.0, 0.0));
        assert_eq!(same_mean(&[0.0, 1.0, 2.0, 3.0], &[1.0; 3]), 1.0, "too few");
    }

    #[test]
    fn the_interval_of_a_ratio_holds_it_and_tightens() {
        let around = |middle: f64, count: u32| -> Vec<f64> {
            (0..count).map(|at| middle * (0.95 + 0.1 * f64::from(at) / f64::from(count - 1))).collect()
        };
        let (low, high) = ratio_interval(&around(2.0, 10), &around(1.0, 10));
        assert!(low < 2.0 && 2.0 < high && high - low < 0.4, "{low} {high}");
        let (closer_low, closer_high) = ratio_interval(&around(2.0, 100), &around(1.0, 100));
        assert!(closer_high - closer_low < high - low);
        assert_eq!(ratio_interval(&[4.0], &[2.0]), (2.0, 2.0));
        assert!(ratio_interval(&[], &[1.0]).0.is_nan());
    }

    /// Worked by hand: times count over rank, and never above that of a larger one.
    #[test]
    fn probabilities_are_adjusted_for_their_number() {
        let found = adjusted(&[0.01, 0.9, 0.02, 0.021]);
        let expected = [0.028, 0.9, 0.028, 0.028];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        assert_eq!(adjusted(&[0.3]), [0.3]);
        assert!(adjusted(&[]).is_empty());
    }
}
