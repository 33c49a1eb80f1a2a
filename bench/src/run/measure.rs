//! The value of a round: the workload's own value, or another of its measurements.

use std::fmt;
use std::str::FromStr;

use crate::clock::nanos_per_tick;
use crate::counters::{self, Counters};
use crate::report::schema::{Better, Metric};
use crate::workload::{Measured, Op, Value};

/// The latency of every operation, of any kind.
const ALL: &str = "all";

/// The value that is taken of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Measure {
    /// Operations, bytes, time, or the tail of latencies.
    Value(Value),
    /// The mean latency of one kind of operation, or of `all`, in nanoseconds.
    Latency(String),
    /// A counter: see [`crate::counters`].
    Counter(String),
}

impl FromStr for Measure {
    type Err = String;

    /// `op/s`, `MB/s`, `s`, `p99`, `latency:KIND` or `counter:NAME`.
    fn from_str(text: &str) -> Result<Measure, String> {
        match text.split_once(':') {
            None => Value::ALL
                .into_iter()
                .find(|value| value.word() == text)
                .map(Measure::Value)
                .ok_or_else(|| "op/s, MB/s, s, p99, latency:KIND or counter:NAME".to_owned()),
            Some(("latency", kind)) => {
                let known = || Op::ALL.into_iter().map(Op::name).chain([ALL]);
                match known().any(|name| name == kind) {
                    true => Ok(Measure::Latency(kind.to_owned())),
                    false => Err(format!("the kinds are {}", known().collect::<Vec<_>>().join(", "))),
                }
            }
            Some(("counter", name)) => match counters::unit(name) {
                Some(_) => Ok(Measure::Counter(name.to_owned())),
                None => Err(format!("the counters are {}", counters::names().collect::<Vec<_>>().join(", "))),
            },
            Some((other, _)) => Err(format!("{other:?} is neither latency nor counter")),
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Measure::Value(value) => f.write_str(value.word()),
            Measure::Latency(kind) => write!(f, "latency:{kind}"),
            Measure::Counter(name) => write!(f, "counter:{name}"),
        }
    }
}

impl Measure {
    /// One measure for workloads that are compared along an axis: theirs, or bytes where some would give operations and
    /// others bytes, since operations of different sizes do not compare.
    pub fn of_all(values: &[Value]) -> Result<Measure, String> {
        let all = |those: &[Value]| values.iter().all(|value| those.contains(value));
        match values.first() {
            Some(first) if all(&[*first]) => Ok(Measure::Value(*first)),
            Some(_) if all(&[Value::Operations, Value::Bytes]) => Ok(Measure::Value(Value::Bytes)),
            _ => {
                Err("some workloads give a throughput, others a time or a latency: choose one with --metric"
                    .to_owned())
            }
        }
    }

    /// For the report.
    pub fn metric(&self) -> Metric {
        match self {
            Measure::Value(value) => value.metric(),
            Measure::Latency(kind) if kind == ALL => {
                Metric { name: "latency".into(), unit: "ns".into(), better: Better::Less }
            }
            Measure::Latency(kind) => {
                Metric { name: format!("latency of {kind}"), unit: "ns".into(), better: Better::Less }
            }
            Measure::Counter(name) => Metric {
                name: name.clone(),
                unit: counters::unit(name).unwrap_or_default().to_owned(),
                better: counters::better(name).unwrap_or(Better::Less),
            },
        }
    }

    /// The value of one round; an error says why it has none.
    pub fn of(&self, measured: &Measured, counters: &Counters) -> Result<f64, String> {
        match self {
            Measure::Value(value) => Ok(value.of(measured)),
            Measure::Latency(kind) => {
                let (mut count, mut sum) = (0, 0.0);
                for (op, times) in measured.times.iter() {
                    if kind == ALL || op.name() == kind {
                        count += times.len();
                        sum += times.mean() * times.len() as f64;
                    }
                }
                match count {
                    0 => Err(format!("it has no {kind} in a round")),
                    count => Ok(sum / count as f64 * nanos_per_tick()),
                }
            }
            Measure::Counter(name) => {
                counters.finish().get(name).copied().ok_or_else(|| format!("{name} is not counted there"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Measure;
    use crate::counters::Counters;
    use crate::report::schema::Better;
    use crate::workload::{Measured, Value};

    #[test]
    fn measures_are_read_as_they_are_written() {
        for text in ["op/s", "MB/s", "s", "p99", "latency:all", "latency:fsync", "counter:pm.bytes"] {
            assert_eq!(text.parse::<Measure>().unwrap().to_string(), text);
        }
        for (wrong, says) in
            [("GB/s", "op/s"), ("latency:wait", "fsync"), ("counter:luck", "pm.bytes"), ("a:b", "neither")]
        {
            assert!(wrong.parse::<Measure>().unwrap_err().contains(says), "{wrong}");
        }
    }

    /// A predictor that is right more often once stood as what got worse.
    #[test]
    fn a_counter_says_itself_which_of_two_values_is_better() {
        let better = |name: &str| Measure::Counter(name.into()).metric().better;
        for name in ["model.accuracy", "predictor.accuracy", "operations", "user.written"] {
            assert_eq!(better(name), Better::More, "{name}");
        }
        for name in ["cpu", "pm.bytes", "write.amplification", "share.write", "memory.peak"] {
            assert_eq!(better(name), Better::Less, "{name}");
        }
    }

    #[test]
    fn sizes_of_a_sweep_are_compared_by_bytes() {
        let of = |values: &[Value]| Measure::of_all(values);
        assert_eq!(of(&[Value::Operations, Value::Operations]), Ok(Measure::Value(Value::Operations)));
        assert_eq!(of(&[Value::Operations, Value::Bytes]), Ok(Measure::Value(Value::Bytes)));
        assert!(of(&[Value::Bytes, Value::Seconds]).unwrap_err().contains("--metric"));
    }

    #[test]
    fn what_was_not_measured_has_no_value() {
        let none = Measured::default();
        assert!(Measure::Latency("read".into()).of(&none, &Counters::default()).is_err());
        let counted = |name: &str| Measure::Counter(name.into()).of(&none, &Counters::default());
        assert!(counted("pm.bytes").unwrap_err().contains("not counted"));
        assert_eq!(counted("operations"), Ok(0.0));
    }
}
