//! A report with everything that a report can have, of made-up values: for tests.

use std::collections::BTreeMap;

use super::schema::{
    Absent, Axis, Better, Bound, Claim, Experiment, Latency, Meant, Metric, Options, Pays, Place, Point,
    Ratio, Report, SCHEMA, Series,
};
use crate::machine::Machine;
use crate::stats;

const TARGETS: [(&str, &str, Pays, f64); 4] = [
    ("preset:nova", "nova in the same process, on a tmpfs", Pays::Library, 1.9),
    ("mount:nova", "nova through FUSE, on a tmpfs", Pays::Fuse, 0.4),
    ("peer:ext4", "ext4 on a loop device over tmpfs, 64 MiB of page cache", Pays::Kernel, 0.7),
    ("peer:tmpfs", "tmpfs", Pays::Kernel, 1.0),
];

/// The report: categories, a sweep, one workload with latencies, claims of all verdicts, of ratios and of values,
/// waiting parts, something absent, interrupted.
pub fn report() -> Report {
    Report {
        schema: SCHEMA,
        version: "0.1.0".to_owned(),
        commit: "0123456789ab+".to_owned(),
        machine: Machine {
            cpu: "A <Processor> & Co".to_owned(),
            cores: 2,
            memory_gib: 23.5,
            kernel: "Linux 6.18.0".to_owned(),
            load: 0.1,
        },
        began: "2026-01-02T03:04:05Z".to_owned(),
        seconds: 1234.5,
        command: ["nacre", "bench", "run", "filebench.varmail"].map(str::to_owned).to_vec(),
        options: Options {
            effort: "default".to_owned(),
            seed: 1,
            scale: 1.0,
            memory: None,
            emulate: Some("pcm".to_owned()),
            cold: Some("never".to_owned()),
            warm_up: Some(0),
            settle: None,
            flush: None,
            disk: Some(Place { path: "/tmp".to_owned(), file_system: "ext4".to_owned() }),
        },
        complete: false,
        experiments: vec![categories(), sweep(), one()],
        absent: vec![Absent {
            what: "peer:nilfs2".to_owned(),
            why: "this kernel has no <nilfs2>".to_owned(),
        }],
    }
}

fn experiment(name: &str, title: &str, metric: (&str, &str, Better), axis: Axis) -> Experiment {
    Experiment {
        name: name.to_owned(),
        title: title.to_owned(),
        about: "Made up for tests; <b>not</b> measured.".to_owned(),
        paper: None,
        scale: Some(1.0),
        command: format!("nacre bench run {name} -t preset:nova -t peer:tmpfs --seed 1"),
        metric: Metric { name: metric.0.to_owned(), unit: metric.1.to_owned(), better: metric.2 },
        axis,
        baseline: Some("peer:tmpfs".to_owned()),
        series: Vec::new(),
        claims: Vec::new(),
        waits: Vec::new(),
    }
}

fn series(places: &[(&str, Option<f64>, String, f64)]) -> Vec<Series> {
    TARGETS
        .iter()
        .map(|(target, about, pays, factor)| Series {
            target: (*target).to_owned(),
            about: (*about).to_owned(),
            pays: *pays,
            points: places
                .iter()
                .map(|(label, x, workload, value)| point(label, *x, workload, value * factor, *factor))
                .collect(),
        })
        .collect()
}

/// Ten rounds around a value, spread by a tenth.
fn point(label: &str, x: Option<f64>, workload: &str, value: f64, factor: f64) -> Point {
    let samples: Vec<f64> =
        (0..10).map(|round| value * (0.95 + f64::from((round * 7) % 10) / 100.0)).collect();
    let counters =
        [("cpu", 900.0), ("operations", 1e5), ("pm.lines", 66.5), ("dram", 3e6), ("user.written", 4e8)];
    Point {
        label: label.to_owned(),
        x,
        workload: workload.to_owned(),
        target: String::new(),
        sittings: vec![5, 5],
        disturbed: 1,
        median: stats::median(&samples),
        interval: stats::median_interval(&samples),
        ratio: (factor != 1.0).then_some(Ratio {
            median: factor,
            interval: (factor * 0.97, factor * 1.02),
            p: 0.002,
        }),
        samples,
        latency: ["write", "fsync"].map(|operation| latency(operation, 1000.0 / factor)).to_vec(),
        counters: counters
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
    }
}

/// A tail that halves from one power of two to the next.
fn latency(operation: &str, median: f64) -> Latency {
    let histogram: Vec<(f64, u64)> =
        (0..16).map(|step| (median * f64::from(1 << step), 1_u64 << (16 - step))).collect();
    Latency {
        operation: operation.to_owned(),
        count: histogram.iter().map(|(_, count)| count).sum(),
        mean: median * 8.0,
        quantiles: vec![
            (0.5, median),
            (0.9, median * 8.0),
            (0.99, median * 64.0),
            (0.999, median * 512.0),
            (1.0, median * 32768.0),
        ],
        histogram,
    }
}

fn categories() -> Experiment {
    let axis = Axis { name: "workload".to_owned(), unit: None, log2: false };
    let mut made = experiment("filebench", "filebench's four", ("throughput", "op/s", Better::More), axis);
    made.paper = Some("HiNFS, figure 7".to_owned());
    let names = ["fileserver", "webserver", "webproxy", "varmail"];
    let places: Vec<_> = (1..)
        .zip(names)
        .map(|(at, name)| (name, None, format!("filebench.{name}"), 20_000.0 * f64::from(at)))
        .collect();
    made.series = series(&places);
    let claim = |what: &str, said, found: Option<f64>, holds_if| Claim {
        what: what.to_owned(),
        source: "HiNFS, figure 7".to_owned(),
        said,
        meant: Meant::About,
        unit: None,
        found,
        interval: found.map(|found| (found * 0.97, found * 1.02)),
        holds_if,
        waits_for: found.is_none().then(|| "the preset hinfs".to_owned()),
        weak_spot: None,
    };
    made.claims = vec![
        claim("nova over tmpfs, fileserver", 1.8, Some(1.9), Some(Bound::AtLeast(1.5))),
        claim("nova over tmpfs, mounted, fileserver", 0.9, Some(0.4), Some(Bound::Between(0.8, 1.0))),
        claim("ext4 over tmpfs, varmail", 0.5, Some(0.7), None),
        claim("hinfs over pmfs, webproxy", 2.84, None, Some(Bound::AtLeast(2.0))),
        Claim {
            meant: Meant::AtLeast,
            unit: Some("op/s".to_owned()),
            ..claim("nova, varmail", 100_000.0, Some(152_000.0), None)
        },
        Claim { weak_spot: Some(Better::More), ..claim("hinfs over nova, varmail", 0.9, Some(1.1), None) },
    ];
    made.waits = vec![Absent { what: "hinfs".to_owned(), why: "preset:hinfs is not <built> yet".to_owned() }];
    made
}

fn sweep() -> Experiment {
    let axis = Axis { name: "io".to_owned(), unit: Some("B".to_owned()), log2: true };
    let mut made =
        experiment("micro.write", "overwrites by size", ("throughput", "MB/s", Better::More), axis);
    let sizes =
        [("64", 64.0), ("256", 256.0), ("1k", 1024.0), ("4k", 4096.0), ("64k", 65536.0), ("1m", 1048576.0)];
    let places: Vec<_> = sizes
        .iter()
        .map(|(label, x)| (*label, Some(*x), format!("micro.write,io={label}"), 5.0 * f64::sqrt(*x)))
        .collect();
    made.series = series(&places);
    made
}

fn one() -> Experiment {
    let axis = Axis { name: "workload".to_owned(), unit: None, log2: false };
    let mut made = experiment("postmark", "Postmark", ("time", "s", Better::Less), axis);
    made.series = series(&[("postmark", None, "postmark".to_owned(), 12.0)]);
    made
}
