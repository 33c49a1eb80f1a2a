//! The part of an experiment that can run on this machine, its targets, and its factor of the paper's sizes.

use std::path::PathBuf;

use nacre::Preset;

use super::target::{LEAST_BUFFER, Sizes, Subject, amount};
use super::{Experiment, Point, System, Taken, Way};
use crate::Error;
use crate::counters;
use crate::report::schema::Absent;
use crate::run::cold::Cold;
use crate::run::experiment::{Entrant, Place};
use crate::run::measure::Measure;
use crate::spec::Spec;
use crate::target::plan::{Load, Plan};
use crate::workload::{self, Value};

/// Rounds before those that count, where a paper measures a file system that was used: the work runs twice.
const AGEING: u64 = 2;
/// Why mounts and peers wait, where they are not wanted.
const LEFT_OUT: &str = "it was left out (--in-process)";
/// By default, a target has no more data than this.
const DATA: u64 = 1 << 30;

/// The means of a run, besides programs and the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Means {
    /// Files of traces, by name: `facebook`.
    pub(super) traces: Vec<(String, PathBuf)>,
    /// A device of persistent memory for ext4 with DAX.
    pub(super) dax: Option<PathBuf>,
    /// Page caches cannot be held to a size.
    pub(super) uncapped: bool,
    /// Neither mounts nor peers are to run.
    pub(super) in_process: bool,
    /// Figures only need to show that they run: no round waits until data has moved.
    pub(super) hasty: bool,
    /// Cores that there are, or 0 where that does not matter.
    pub(super) cores: usize,
}

/// An experiment, as it can run here.
#[derive(Debug)]
pub(super) struct Runs<'a> {
    pub(super) experiment: &'a Experiment,
    /// Sizes and counts are the paper's times this.
    pub(super) scale: f64,
    /// Places with something that runs; each has the label of its point.
    pub(super) places: Vec<Place>,
    pub(super) measure: Option<Measure>,
    /// The name of the entrant that others are compared with.
    pub(super) baseline: Option<String>,
    /// Systems and points that do not run, and why.
    pub(super) waits: Vec<Absent>,
}

/// The name in the report of a system on one of its ways: `NOVA (mount:nova)`.
pub(super) fn entrant_name(system: &System, way: Way) -> String {
    match system.target(way) {
        Some(target) => format!("{} ({target})", system.name),
        None => system.name.clone(),
    }
}

/// Whether it is nacre.
fn is_preset(system: &System) -> bool {
    system.target.as_ref().is_ok_and(|target| target.starts_with("preset:"))
}

impl<'a> Runs<'a> {
    /// At a factor.
    pub(super) fn new(experiment: &'a Experiment, scale: f64, means: &Means) -> Runs<'a> {
        let mut runs =
            Runs { experiment, scale, places: Vec::new(), measure: None, baseline: None, waits: Vec::new() };
        match measure(experiment) {
            Ok(measure) => runs.measure = Some(measure),
            Err(why) => {
                runs.wait(&experiment.name, why);
                return runs;
            }
        }
        let there = runs.there(means);
        for point in &experiment.points {
            match runs.place(point, &there, means) {
                Ok(place) if place.entrants.is_empty() => {}
                Ok(place) => runs.places.push(place),
                Err(why) => runs.wait(&point.label, why),
            }
        }
        let known = |name: &String| {
            runs.places.iter().any(|place| place.entrants.iter().any(|entrant| entrant.name == *name))
        };
        let system = experiment.baseline.as_deref().and_then(|name| experiment.system(name));
        runs.baseline = system
            .into_iter()
            .flat_map(|system| [Way::Library, Way::Mount].map(|way| entrant_name(system, way)))
            .find(known)
            .or_else(|| Some(runs.places.first()?.entrants.first()?.name.clone()));
        runs
    }

    /// The runs at the largest factor up to 1 with which a target has at most [`DATA`] and everything together fits
    /// into `room` bytes of DRAM.
    pub(super) fn fitting(experiment: &'a Experiment, means: &Means, room: u64) -> Runs<'a> {
        let (mut scale, mut last) = (1.0, f64::INFINITY);
        loop {
            let runs = Runs::new(experiment, scale, means);
            let (data, needs) = runs.needs();
            let over = (data as f64 / DATA as f64).max(needs as f64 / room as f64);
            // Counts and devices have a least size, and traces have their own: such sizes do not shrink.
            if over <= 1.0 || over > 0.95 * last {
                return runs;
            }
            last = over;
            scale = rounded(scale / over.max(1.1));
        }
    }

    /// Bytes of data of the largest target, and bytes of DRAM that all targets of a point take together; the largest
    /// of all points.
    pub(super) fn needs(&self) -> (u64, u64) {
        let needs = self.places.iter().map(|place| self.needs_at(place));
        needs.fold((0, 0), |most, needs| (most.0.max(needs.0), most.1.max(needs.1)))
    }

    /// The same at one place.
    fn needs_at(&self, place: &Place) -> (u64, u64) {
        let work = place.workload.parse().map_err(Error::from);
        let Ok(work) = work.and_then(|spec: Spec| Ok(workload::make(&spec, self.scale)?)) else {
            return (0, 0);
        };
        let load = Load { bytes: work.bytes(), files: work.files() };
        (load.bytes, place.entrants.iter().map(|entrant| entrant.plan.needs(load)).sum())
    }

    /// Places whose targets take more than `most` bytes of DRAM together wait, for a smaller factor or a larger
    /// machine.
    pub(super) fn leave_out_larger_than(&mut self, most: u64) {
        for place in std::mem::take(&mut self.places) {
            let needs = self.needs_at(&place).1;
            if needs <= most {
                self.places.push(place);
                continue;
            }
            let why = format!(
                "it takes {} MiB of memory at --scale {}, and {} MiB may be used here",
                needs >> 20,
                self.scale,
                most >> 20
            );
            self.wait(&format!("{} of {}", place.label, self.experiment.name), why);
        }
    }

    /// The systems that this machine has, each with the ways on which it can be reached; the others wait.
    fn there(&mut self, means: &Means) -> Vec<(&'a System, Way)> {
        let experiment = self.experiment;
        let mut there: Vec<(&System, Way)> = Vec::new();
        for system in &experiment.systems {
            let mut ways = experiment.ways();
            if !is_preset(system) {
                ways.truncate(1);
            }
            for way in ways {
                match missing(experiment, system, way, means) {
                    None => there.push((system, way)),
                    Some(why) if way == Way::Mount && is_preset(system) => {
                        self.wait(&entrant_name(system, way), why);
                    }
                    Some(why) => {
                        self.wait(&system.name, why);
                        break;
                    }
                }
            }
        }
        there
    }

    fn wait(&mut self, what: &str, why: String) {
        self.waits.push(Absent { what: what.to_owned(), why });
    }

    fn place(&self, point: &Point, systems: &[(&System, Way)], means: &Means) -> Result<Place, String> {
        let workload = workload_text(point, means)?;
        let work = workload::make(&workload.parse()?, self.scale)?;
        if let Some(why) = work.missing() {
            return Err(why);
        }
        let sizes = Sizes::of(&*work, self.scale);
        let common = self.experiment.settings(self.experiment.systems.first().ok_or("no systems")?, point);
        let outside = point.needs_directory();
        if outside && self.measure == Some(Measure::Counter(counters::SYNCED.to_owned())) {
            return Err("what another program syncs is not counted".to_owned());
        }
        let mut entrants: Vec<Entrant> = Vec::new();
        for &(system, way) in systems {
            // Presets are mounted beside peers, or where nothing else is possible.
            let fits = match way {
                _ if !is_preset(system) => true,
                Way::Library => !outside,
                Way::Mount => outside || self.experiment.has_peers(),
            };
            if fits {
                let settings = self.experiment.settings(system, point);
                let subject = Subject::new(system, way, &settings, sizes, means)?;
                let text = subject.text()?;
                entrants.push(Entrant { name: entrant_name(system, way), plan: Plan::parse(&text)? });
            }
        }
        Ok(Place {
            label: point.label.clone(),
            x: point.x,
            workload,
            entrants,
            cold: common.cold.unwrap_or(Cold::Never),
            warm_up: if common.aged == Some(true) { AGEING } else { 0 },
            settle: if means.hasty { 0 } else { common.settles.unwrap_or(0) },
            flush: match common.wraps {
                Some(wraps) => amount(common.dram.as_deref(), LEAST_BUFFER, &common, sizes)?
                    .map(|megabytes| wraps * (megabytes << 20)),
                None => None,
            },
        })
    }
}

/// How the value of a round is measured; an error where no workload gives it.
fn measure(experiment: &Experiment) -> Result<Measure, String> {
    match &experiment.taken {
        Taken::Counter(name) => Ok(Measure::Counter(name.clone())),
        Taken::Latency(kind) => Ok(Measure::Latency(kind.clone())),
        Taken::Workload => Value::ALL
            .into_iter()
            .find(|value| value.metric().unit == experiment.metric.unit)
            .map(Measure::Value)
            .ok_or_else(|| format!("no workload gives {}", experiment.metric.unit)),
    }
}

/// Why a system cannot run here on one of its ways.
fn missing(experiment: &Experiment, system: &System, way: Way, means: &Means) -> Option<String> {
    if means.in_process && (way == Way::Mount || !is_preset(system)) {
        return Some(LEFT_OUT.to_owned());
    }
    let target = match &system.target {
        Ok(target) => target,
        Err(why) => return Some(why.clone()),
    };
    if let Some(preset) = target.strip_prefix("preset:")
        && preset.parse::<Preset>().is_err()
    {
        return Some(format!("{target} is not built yet"));
    }
    if target == "peer:ext4-dax" && means.dax.is_none() {
        return Some("it needs a blank device of persistent memory: give it with --dax DEVICE".to_owned());
    }
    // One point with a setting that it cannot have is enough: a figure with holes would be taken for a whole one.
    let plan = |point: &Point| {
        let settings = experiment.settings(system, point);
        let sizes = Sizes { data: 1 << 30, logs: 0, scale: 1.0 };
        let text = Subject::new(system, way, &settings, sizes, means)?.text()?;
        Plan::parse(&text)
    };
    let plans: Result<Vec<Plan>, String> = experiment.points.iter().map(plan).collect();
    match plans {
        Ok(plans) => plans.first()?.check().err().map(|why| why.to_string()),
        Err(why) => Some(why),
    }
}

/// The workload of a point; an error gives the reason for its wait.
fn workload_text(point: &Point, means: &Means) -> Result<String, String> {
    let text = point.workload.clone()?;
    let spec: Spec = text.parse()?;
    let name = spec.name();
    let trace = name.strip_prefix("trace.");
    if let Some((_, file)) = means.traces.iter().find(|(known, _)| Some(known.as_str()) == trace) {
        // Any trace can be replayed, under any name.
        return Ok(format!("{},from={}", text.replacen(name, "trace.file", 1), file.display()));
    }
    match (name, workload::KINDS.iter().any(|kind| kind.name == name)) {
        ("mount.command", _) if means.in_process => Err(LEFT_OUT.to_owned()),
        // It is no part of nacre.
        ("trace.facebook", _) => Err("its trace is not here: give it with --trace facebook=FILE".to_owned()),
        (_, true) => Ok(on_cores(&spec, means.cores).unwrap_or(text)),
        (_, false) => Err(format!("the workload {name} is not built yet")),
    }
}

/// Random reads of more threads than there are cores, each of a file of its own, are changed: as many threads as cores
/// read one file that is as large as all. Otherwise a thread that finds all of its file in DRAM would make nearly all
/// reads while the others wait for the disk. The sum would then tell which caches hold one file, not how much of all
/// data they hold.
fn on_cores(spec: &Spec, cores: usize) -> Option<String> {
    let is_meant = spec.name() == "micro.read"
        && spec.word("files", "shared", &[("shared", false), ("each", true)]).ok()?
        && spec.text("pattern", "random").ok()? != "seq";
    let (threads, cores) = (spec.number("threads", 1, 1).ok()?, cores as u64);
    if !is_meant || cores == 0 || threads <= cores {
        return None;
    }
    let file = spec.size("file", "1g").ok()?.checked_mul(threads)?;
    let rest = spec.clone().without("files").without("threads").without("file");
    Some(format!("{rest},file={file},threads={cores}"))
}

/// Two digits, to be repeated from a command line.
fn rounded(scale: f64) -> f64 {
    let digit = 10_f64.powf(scale.log10().floor() - 1.0);
    let down = (scale / digit).floor() * digit;
    format!("{down:.2e}").parse().unwrap_or(scale)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Means, Runs, Sizes, Subject, rounded};
    use crate::paper::{Way, experiments, find};
    use crate::run::cold::Cold;

    fn runs(name: &str, scale: f64) -> Runs<'static> {
        Runs::new(find(name)[0], scale, &Means::default())
    }

    /// So does `scripts/nightly.sh`, of which this is the bound of memory.
    #[test]
    fn random_reads_of_many_threads_on_few_cores_are_of_one_file() {
        let on = |text: &str, cores| super::on_cores(&text.parse().unwrap(), cores);
        let text = "micro.read,pattern=zipf,theta=0.88,io=4k,file=1g,files=each,threads=32";
        let expected = "micro.read,io=4k,pattern=zipf,theta=0.88,file=34359738368,threads=2";
        assert_eq!(on(text, 2).as_deref(), Some(expected));
        for (text, cores) in [
            (text, 32),
            (text, 0),
            ("micro.read,pattern=random,io=4k,file=1g,threads=32", 2),
            ("micro.read,pattern=seq,io=4k,file=1g,files=each,threads=32", 2),
            ("micro.write,pattern=random,io=4k,file=1g,files=each,threads=32,sync=osync", 2),
        ] {
            assert_eq!(on(text, cores), None, "{text} on {cores}");
        }
    }

    #[test]
    fn all_experiments_are_small_when_their_scale_is() {
        let means = Means { in_process: true, ..Means::default() };
        for experiment in experiments() {
            let (_, needs) = Runs::new(experiment, 0.001, &means).needs();
            assert!(needs <= 8 << 30, "{}: {} MiB", experiment.name, needs >> 20);
        }
    }

    #[test]
    fn in_the_process_there_are_neither_mounts_nor_peers() {
        let means = Means { in_process: true, ..Means::default() };
        for experiment in experiments() {
            let runs = Runs::new(experiment, 0.01, &means);
            let entrants = runs.places.iter().flat_map(|place| &place.entrants);
            for entrant in entrants {
                assert!(entrant.plan.name().starts_with("preset:"), "{}", entrant.plan.name());
            }
        }
        let runs = Runs::new(find("hinfs-fig7")[0], 0.01, &means);
        assert_eq!(runs.places.len(), 4, "and the rest runs");
        assert!(runs.waits.iter().any(|absent| absent.why.contains("--in-process")));
    }

    /// The target of an entrant at a place, as the command takes it.
    fn target(runs: &Runs<'_>, label: &str, name: &str) -> Option<String> {
        let place = runs.places.iter().find(|place| place.label == label)?;
        Some(place.entrants.iter().find(|entrant| entrant.name == name)?.plan.name())
    }

    #[test]
    fn what_every_experiment_runs_can_be_told_apart() {
        for experiment in experiments() {
            let runs = Runs::new(experiment, 0.01, &Means::default());
            for place in &runs.places {
                let targets: HashSet<_> = place.entrants.iter().map(|entrant| entrant.plan.name()).collect();
                let names: HashSet<_> = place.entrants.iter().map(|entrant| &entrant.name).collect();
                assert_eq!(targets.len(), place.entrants.len(), "{}: {}", experiment.name, place.label);
                assert_eq!(names.len(), targets.len(), "{}: {}", experiment.name, place.label);
                assert!(runs.measure.is_some() && runs.baseline.is_some(), "{}", experiment.name);
            }
            let nothing = runs.places.is_empty() || experiment.systems.len() > runs.places[0].entrants.len();
            assert!(!nothing || !runs.waits.is_empty(), "{}: and nobody says why", experiment.name);
        }
    }

    #[test]
    fn settings_of_a_point_become_parameters_of_targets() {
        let sweep = runs("compare-fig8", 0.01);
        let of = |label: &str| target(&sweep, label, "NOVA (preset:nova)");
        assert_eq!(of("50").as_deref(), Some("preset:nova,emulate=latency=50"));
        assert_eq!(of("1200").as_deref(), Some("preset:nova,emulate=latency=1200"));
        assert_eq!(sweep.baseline.as_deref(), Some("NOVA (preset:nova)"));

        let caches = runs("hinfs-fig11.fileserver", 0.1);
        assert!(caches.places.iter().all(|place| place.cold == Cold::Begin));
        let mounted = |label: &str| target(&caches, label, "NOVA (mount:nova)").unwrap_or_default();
        // It has a buffer of that size: a tenth of 512 MiB.
        assert_eq!(
            target(&caches, "10", "HiNFS (preset:hinfs)").as_deref(),
            Some("preset:hinfs,buffer=52m,emulate=pcm"),
        );
        // As root only, with FUSE: a tenth and all of 512 MiB.
        assert!(mounted("10").is_empty() || mounted("10").contains("dram=52m"), "{}", mounted("10"));
        assert!(mounted("10").is_empty() || mounted("100").contains("dram=512m"), "{}", mounted("100"));
        assert_eq!(
            target(&caches, "10", "NOVA (preset:nova)").as_deref(),
            Some("preset:nova,emulate=pcm"),
            "it has no cache"
        );

        let aged = runs("spfs-fig7a.read", 1.0);
        assert!(aged.places.iter().all(|place| place.warm_up == 2 && place.cold == Cold::Never));

        let settled = |hasty| {
            let means = Means { hasty, ..Means::default() };
            let runs = Runs::new(find("tpfs-fig8.optane")[0], 0.001, &means);
            runs.places.iter().map(|place| place.settle).collect::<HashSet<_>>()
        };
        assert_eq!((settled(false), settled(true)), (HashSet::from([30]), HashSet::from([0])));
    }

    #[test]
    fn disks_and_journals_are_those_of_the_paper() {
        let runs = runs("tpfs-fig13.optane", 0.01);
        let mut targets = runs.places.iter().flat_map(|place| &place.entrants).map(|one| one.plan.name());
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let all: Vec<String> = targets.by_ref().collect();
        for expected in [
            "peer:ext4-dj,disk=optane-ssd,dram=164m,size=21m",
            "peer:xfs-ml,disk=optane-ssd,dram=164m,size=64m",
            "peer:ext4-disk,disk=optane-ssd,dram=164m",
        ] {
            assert!(all.iter().any(|name| name == expected), "{expected}: {all:?}");
        }
        // Of one that this kernel may not have.
        let experiment = find("tpfs-fig13.optane")[0];
        let system = experiment.system("XFS-DM").expect("a system");
        let settings = experiment.settings(system, &experiment.points[0]);
        let means = Means::default();
        let sizes = Sizes { data: 1 << 30, logs: 0, scale: 0.01 };
        let subject = Subject::new(system, Way::Library, &settings, sizes, &means).expect("a target");
        let text = subject.text().expect("all its settings");
        assert!(text.starts_with("peer:dm-writecache,fs=xfs,") && text.contains("disk=optane-ssd"), "{text}");
    }

    #[test]
    fn what_is_not_there_is_named_with_the_reason() {
        let runs = runs("hinfs-fig13", 0.01);
        let why = |what: &str| runs.waits.iter().find(|absent| absent.what == what).map(|found| &*found.why);
        assert_eq!(why("HiNFS"), None, "it is there");
        assert_eq!(why("Usr1"), Some("the traces of FIU cannot be had"));
        assert!(why("Facebook").is_some_and(|why| why.contains("--trace facebook=FILE")), "{:?}", runs.waits);
        let tiers = super::Runs::new(find("tpfs-fig13.optane")[0], 0.01, &Means::default());
        let tpfs = tiers.waits.iter().find(|absent| absent.what == "TPFS-2");
        assert_eq!(tpfs.map(|absent| &*absent.why), None, "it is there");
        let anticaching = super::Runs::new(find("acbpfs-fig4")[0], 0.01, &Means::default());
        let waits = anticaching.waits.iter().find(|absent| absent.what == "AC-BPFS");
        assert_eq!(waits.map(|absent| &*absent.why), None, "it is there");
    }

    #[test]
    fn a_factor_is_found_that_fits() {
        for name in ["spfs-fig5.a", "compare-fig2.b", "tpfs-fig9.sata", "hinfs-fig7", "spfs-fig7c"] {
            let room = 16 << 30;
            let runs = Runs::fitting(find(name)[0], &Means::default(), room);
            let (data, needs) = runs.needs();
            assert!(data > 0 && data <= 1 << 30 && needs <= room, "{name}: {data} {needs} {}", runs.scale);
            assert!(
                runs.scale == 1.0 || data > 512 << 20 || needs > room / 2,
                "{name}: {data} {}",
                runs.scale
            );
        }
        assert_eq!(Runs::fitting(find("spfs-fig5.a")[0], &Means::default(), 16 << 30).scale, 1.0);
    }

    #[test]
    fn places_that_do_not_fit_wait_and_the_others_run() {
        let mut all = runs("hinfs-fig11.fileserver", 0.01);
        let needs: Vec<u64> = all.places.iter().map(|place| all.needs_at(place).1).collect();
        let (least, most) = (needs.iter().min().unwrap(), needs.iter().max().unwrap());
        assert!(least < most, "buffers of several sizes: {needs:?}");
        all.leave_out_larger_than(*most);
        assert_eq!(all.places.len(), needs.len());
        let waits = all.waits.len();
        all.leave_out_larger_than(*least);
        let left = needs.iter().filter(|&needs| needs <= least).count();
        assert_eq!((all.places.len(), all.waits.len() - waits), (left, needs.len() - left));
        assert!(all.waits[waits].why.contains("MiB of memory at --scale 0.01"), "{:?}", all.waits[waits]);
    }

    #[test]
    fn factors_have_two_digits() {
        assert_eq!([0.123_456, 0.0506, 0.999, 0.00209].map(rounded), [0.12, 0.05, 0.99, 0.002]);
    }
}
