//! A system of an experiment as a target of `nacre bench run`.
//!
//! Each setting of the catalog becomes parameters of the target, or belongs to a part that the system does not have.
//! An example is the disk of a paper, for a file system that has none. Otherwise the system waits, with the reason.
//! Every setting of a paper that is left out is reported.

use std::path::Path;

use nacre::Preset;

use super::runs::Means;
use super::{Amount, Settings, System, Way};
use crate::run::cold::Cold;
use crate::workload::Workload;

/// A page cache is not held to less, since the process that works on it is held with it.
const LEAST_CACHE: u64 = 32 << 20;
/// The least size of a write buffer, or of a cache of data on tiers, in bytes. Smaller ones are of no use.
pub(super) const LEAST_BUFFER: u64 = 1 << 20;
/// mkfs refuses less.
const LEAST_MEMORY: u64 = 16 << 20;
/// nacre demotes nothing while its PM is used less than this, in percent, at any load (docs/guide/tiering.md: 50 to
/// 90). Logs of a program that take no more stay there; of larger ones the old parts would go to disk.
const NOTHING_MOVES: u64 = 50;
/// The divisor for the space of a program's logs beyond their bytes: RocksDB allocates a tenth more for each, and
/// nacre has the logs of their inodes.
const BESIDE_LOGS: u64 = 8;
/// mkfs refuses less for an external log of xfs, and for a journal of ext4.
const LEAST_ASIDE: [(&str, u64); 3] =
    [("peer:xfs-ml", 64 << 20), ("peer:ext4-dj", 8 << 20), ("peer:dm-writecache", 8 << 20)];
/// Peers on a disk with nothing beside it.
const ON_DISK: [&str; 2] = ["peer:ext4-disk", "peer:xfs-disk"];
/// Peers with DRAM as their medium.
const IN_MEMORY: [&str; 2] = ["peer:tmpfs", "peer:ramfs"];
/// Presets that always have a disk below their PM.
const TIERED: [&str; 2] = ["tpfs", "acbpfs"];
/// Presets that have one where their experiment names it, as in the figures of TPFS, and none otherwise, as in those
/// of HiNFS. Others have none in an experiment, even where they could: NOVA is in PM alone.
const TIERED_OVER_A_DISK: [&str; 1] = ["nacre"];
/// Options that only these have, and that are parameters of a target with a tier.
const PARAMETERS_OF_TIERED: [&str; 3] = ["group", "sync_threshold", "anticache"];

/// The end of a share that is one of the data of the workload, and not of PM: `anticache=20%-of-data`.
const OF_DATA: &str = "-of-data";

/// Writes wait nowhere: each is durable when it returns, as on a mount that is told nothing.
const THROUGH: &str = "through";

/// The [`Settings`] that tell how a target is made. The others tell how work on it is done, or are only shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Emulate,
    Dram,
    Pm,
    Disk,
    Options,
    Cold,
}

impl Setting {
    /// Settings that can be refused come first, so that the refusal is the reason, and not its consequence.
    const ALL: [Setting; 6] =
        [Setting::Options, Setting::Cold, Setting::Disk, Setting::Pm, Setting::Dram, Setting::Emulate];
}

/// The effect of a setting on a target.
#[derive(Debug, PartialEq)]
enum Fate {
    /// These parameters.
    Parameters(Vec<(&'static str, String)>),
    /// None: the part that it belongs to is missing. The text says so.
    Without(&'static str),
}

impl Fate {
    fn one(key: &'static str, value: String) -> Fate {
        Fate::Parameters(vec![(key, value)])
    }
}

/// How much there is of a workload, at the factor that it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Bytes on a target.
    pub(super) data: u64,
    /// Bytes of write-ahead logs.
    pub(super) logs: u64,
    /// The factor of the paper's sizes.
    pub(super) scale: f64,
}

impl Sizes {
    /// Those of a workload that was made with that factor.
    pub(super) fn of(work: &dyn Workload, scale: f64) -> Sizes {
        Sizes { data: work.bytes(), logs: work.logs(), scale }
    }

    /// The persistent memory, in bytes, in which the write-ahead logs stay. Paper 002 has 2 GB for 128 MB of them, and
    /// its section 6.5 calls this decisive. No target has less, at any factor.
    fn least_memory(self) -> u64 {
        (self.logs + self.logs / BESIDE_LOGS) * 100 / NOTHING_MOVES
    }
}

/// A system on one of its ways, at a point.
pub(super) struct Subject<'a> {
    /// As the catalog has it, parameters that it gives included.
    target: String,
    settings: &'a Settings,
    sizes: Sizes,
    means: &'a Means,
}

impl<'a> Subject<'a> {
    /// With the settings of that point, and a workload of these sizes.
    pub(super) fn new(
        system: &System,
        way: Way,
        settings: &'a Settings,
        sizes: Sizes,
        means: &'a Means,
    ) -> Result<Subject<'a>, String> {
        let target = system.target(way).ok_or("no target")?;
        Ok(Subject { target, settings, sizes, means })
    }

    /// The target with its parameters. An error says which setting it cannot have.
    pub(super) fn text(&self) -> Result<String, String> {
        let mut text = self.target.clone();
        for setting in Setting::ALL {
            if let Fate::Parameters(parameters) = self.fate(setting)? {
                for (key, value) in parameters {
                    text.push_str(&format!(",{key}={}", value.replace(',', "+")));
                }
            }
        }
        if self.kind() == "peer:ext4-dax"
            && let Some(device) = &self.means.dax
        {
            text.push_str(&format!(",device={}", Path::display(device)));
        }
        Ok(text)
    }

    /// Its kind, without parameters.
    fn kind(&self) -> &str {
        self.target.split(',').next().unwrap_or_default()
    }

    /// The name of its preset, when it is nacre.
    fn preset(&self) -> Option<&str> {
        let (kind, name) = self.kind().split_once(':')?;
        matches!(kind, "preset" | "mount").then_some(name)
    }

    fn is_mounted(&self) -> bool {
        self.kind().starts_with("mount:")
    }

    fn is_tiered(&self) -> bool {
        self.preset().is_some_and(|name| {
            TIERED.contains(&name) || self.settings.disk.is_some() && TIERED_OVER_A_DISK.contains(&name)
        })
    }

    fn buffers(&self) -> bool {
        self.preset().is_some_and(|name| name.parse().is_ok_and(Preset::buffers_writes))
    }

    fn fate(&self, setting: Setting) -> Result<Fate, String> {
        match setting {
            Setting::Emulate => Ok(self.emulate()),
            Setting::Dram => self.dram(),
            Setting::Pm => self.pm(),
            Setting::Disk => self.disk(),
            Setting::Options => self.options(),
            Setting::Cold => self.cold(),
        }
    }

    fn emulate(&self) -> Fate {
        match &self.settings.emulate {
            None => Fate::Without("nothing is said"),
            Some(emulate) if self.preset().is_some() => {
                Fate::one("emulate", emulate.clone() + &self.factor().unwrap_or_default())
            }
            Some(_) => Fate::Without("peers are on memory that is as fast as DRAM"),
        }
    }

    /// The factor that turns bandwidths of PM into those of fewer cores than the paper has.
    fn factor(&self) -> Option<String> {
        let ours = self.means.cores as f64 / self.settings.cores? as f64;
        (self.means.cores > 0 && ours < 1.0).then(|| format!(",factor={ours:.4}"))
    }

    /// The DRAM of a target: the buffer of presets that have one, the cache of data on tiers, and otherwise the page
    /// cache. With tiers, the existing ones of these share it in equal parts.
    fn dram(&self) -> Result<Fate, String> {
        let amount = |least| self.amount(self.settings.dram.as_deref(), least);
        let Some(all) = amount(0)? else { return self.unsaid("dram") };
        let megabytes = |count: u64| format!("{count}m");
        let least = |least| Ok::<_, String>(amount(least)?.unwrap_or(all));
        if self.is_tiered() {
            let caches = [("buffer", 0), ("cache", 0), ("dram", LEAST_CACHE >> 20)];
            let caches = caches.into_iter().zip(self.shares()).filter(|(_, eighths)| *eighths > 0);
            let caches =
                caches.map(|((name, least), eighths)| (name, (all * eighths).div_ceil(8).max(least)));
            let caches = caches.filter(|(name, _)| *name != "dram" || !self.means.uncapped);
            return Ok(Fate::Parameters(caches.map(|(name, share)| (name, megabytes(share))).collect()));
        }
        if self.buffers() {
            let mut caches = vec![("buffer", megabytes(least(LEAST_BUFFER)?))];
            // The kernel's page cache above it must not hold data that the buffer of peers cannot.
            if self.is_mounted() && !self.means.uncapped {
                caches.push(("dram", megabytes(LEAST_CACHE >> 20)));
            }
            return Ok(Fate::Parameters(caches));
        }
        if self.preset().is_some() && !self.is_mounted() {
            return Ok(Fate::Without("it has no cache"));
        }
        if IN_MEMORY.contains(&self.kind()) {
            return Ok(Fate::Without("its memory is the medium"));
        }
        if self.means.uncapped {
            return Ok(Fate::Without("page caches cannot be held to a size here, and the report says so"));
        }
        Ok(Fate::one("dram", megabytes(least(LEAST_CACHE)?)))
    }

    /// The shares of DRAM of a tiered system, in eighths: the write buffer, the cache of data on tiers, and the
    /// kernel's page cache. On a mount most of it is the kernel's, as on a mount of peers: data found there causes no
    /// request.
    fn shares(&self) -> [u64; 3] {
        let waits_elsewhere = self.is_mounted_with("writeback") || self.is_mounted_with(THROUGH);
        match (self.is_mounted(), self.buffers() && !waits_elsewhere) {
            (false, true) => [4, 4, 0],
            (false, false) => [0, 8, 0],
            (true, true) => [2, 2, 4],
            (true, false) => [0, 1, 7],
        }
    }

    /// Whether it is a mount with a disk below, and this is one of its options.
    fn is_mounted_with(&self, name: &str) -> bool {
        let options = self.settings.options.as_deref().unwrap_or_default();
        self.is_mounted() && self.is_tiered() && options.split(',').any(|option| option == name)
    }

    fn pm(&self) -> Result<Fate, String> {
        let amount = |least| self.amount(self.settings.pm.as_deref(), least);
        let Some(_) = amount(0)? else { return self.unsaid("pm") };
        // Peers have their journal, log or cache in as much PM as nacre has.
        let least_memory = self.sizes.least_memory();
        let megabytes = |least: u64| {
            Ok::<_, String>(format!("{}m", amount(least.max(least_memory))?.unwrap_or_default()))
        };
        if self.preset().is_some() {
            return Ok(Fate::one("pm", megabytes(LEAST_MEMORY)?));
        }
        if let Some((_, least)) = LEAST_ASIDE.iter().find(|(name, _)| *name == self.kind()) {
            return Ok(Fate::one("size", megabytes(*least)?));
        }
        match self.kind() {
            "peer:ext4-dax" => Err(self.refusal("pm", "the device that is given has a size of its own")),
            _ => Ok(Fate::Without("it has no persistent memory")),
        }
    }

    fn disk(&self) -> Result<Fate, String> {
        let Some(disk) = &self.settings.disk else { return self.unsaid("disk") };
        if self.is_tiered() {
            return Ok(Fate::one("tier", disk.clone()));
        }
        let has_one =
            ON_DISK.contains(&self.kind()) || LEAST_ASIDE.iter().any(|(name, _)| *name == self.kind());
        Ok(if has_one { Fate::one("disk", disk.clone()) } else { Fate::Without("it has no disk") })
    }

    fn options(&self) -> Result<Fate, String> {
        let Some(options) = &self.settings.options else { return self.unsaid("options") };
        if self.preset().is_none() {
            return Ok(Fate::Without("they are for nacre"));
        }
        let (mut taken, mut parameters) = (Vec::new(), Vec::new());
        for option in options.split(',') {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if let Some(name) = PARAMETERS_OF_TIERED.iter().find(|name| **name == key) {
                let value = match value.strip_suffix(OF_DATA) {
                    None => value.to_owned(),
                    Some(share) => format!("{}m", self.amount(Some(share), 0)?.unwrap_or_default()),
                };
                parameters.extend(self.is_tiered().then_some((*name, value)));
                continue;
            }
            match key {
                // In the process these presets buffer writes without being told.
                "buffer" if self.buffers() => taken.extend(self.is_mounted().then_some(option)),
                // In the process there is no kernel that could; those without a disk write through, as NOVA does.
                "writeback" => taken.extend(self.is_mounted_with(key).then_some(option)),
                THROUGH => parameters.extend(self.is_mounted_with(key).then(|| ("buffer", "0m".to_owned()))),
                _ => return Err(self.refusal(option, "no target has such a parameter yet")),
            }
        }
        if !taken.is_empty() {
            parameters.push(("options", taken.join(",")));
        }
        Ok(match parameters.is_empty() {
            true => Fate::Without("it is so, or has nothing that they are of"),
            false => Fate::Parameters(parameters),
        })
    }

    /// The worker of a target empties page caches, and in the process the caches of data on tiers.
    fn cold(&self) -> Result<Fate, String> {
        match self.settings.cold {
            Some(cold) if cold != Cold::Never && self.is_tiered() && self.is_mounted() => {
                let setting = format!("cold={}", cold.as_str());
                Err(self.refusal(&setting, "nothing empties its cache of what is on tiers yet"))
            }
            _ => Ok(Fate::Without("it is no matter of the target")),
        }
    }

    /// Of a setting that is not there: with tiers nothing may be left to chance.
    fn unsaid(&self, name: &str) -> Result<Fate, String> {
        match self.is_tiered() && name != "options" {
            true => Err(self.refusal(name, "the experiment does not say how much or which, and it needs it")),
            false => Ok(Fate::Without("nothing is said")),
        }
    }

    fn refusal(&self, setting: &str, why: &str) -> String {
        format!("the setting {setting} cannot be had on {}: {why}", self.kind())
    }

    /// An amount of PM or DRAM in whole MiB.
    fn amount(&self, text: Option<&str>, least: u64) -> Result<Option<u64>, String> {
        amount(text, least, self.settings, self.sizes)
    }
}

/// An amount of PM or DRAM in whole MiB, of a workload with so much data.
pub(super) fn amount(
    text: Option<&str>,
    least: u64,
    settings: &Settings,
    Sizes { data, scale, .. }: Sizes,
) -> Result<Option<u64>, String> {
    let data = match settings.data.as_deref().map(str::parse) {
        Some(Ok(Amount::Bytes(bytes))) => bytes as f64 * scale,
        _ => data as f64,
    };
    let bytes = match text.map(str::parse::<Amount>) {
        None => return Ok(None),
        Some(Ok(Amount::Bytes(bytes))) => bytes as f64 * scale,
        Some(Ok(Amount::Share(share))) => data * share,
        Some(Err(why)) => return Err(why),
    };
    Ok(Some((bytes.max(least as f64) / f64::from(1 << 20)).ceil().max(1.0) as u64))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Fate, LEAST_ASIDE, ON_DISK, PARAMETERS_OF_TIERED, Setting, Sizes, Subject, TIERED};
    use crate::paper::runs::Means;
    use crate::paper::{Experiment, Settings, System, Way, experiments, find};
    use crate::run::cold::Cold;
    use crate::spec::Spec;
    use crate::workload;

    const WAYS: [Way; 2] = [Way::Library, Way::Mount];

    /// Of a workload without logs.
    fn sizes(scale: f64) -> Sizes {
        Sizes { data: 1 << 30, logs: 0, scale }
    }

    /// The words of a setting, where it is there.
    fn said(settings: &Settings, setting: Setting) -> Option<String> {
        match setting {
            Setting::Emulate => settings.emulate.clone(),
            Setting::Dram => settings.dram.clone(),
            Setting::Pm => settings.pm.clone(),
            Setting::Disk => settings.disk.clone(),
            Setting::Options => settings.options.clone(),
            Setting::Cold => {
                settings.cold.filter(|cold| *cold != Cold::Never).map(|cold| cold.as_str().into())
            }
        }
    }

    fn is_nacre(system: &System) -> bool {
        system.target.as_ref().is_ok_and(|target| target.starts_with("preset:"))
    }

    fn has_disk(system: &System) -> bool {
        let Ok(target) = &system.target else { return false };
        let kind = target.split(',').next().unwrap_or_default();
        let tiered = kind.split_once(':').is_some_and(|(_, name)| TIERED.contains(&name));
        tiered || ON_DISK.contains(&kind) || LEAST_ASIDE.iter().any(|(name, _)| *name == kind)
    }

    fn is_tiered(system: &System) -> bool {
        system
            .target
            .as_ref()
            .is_ok_and(|target| target.split_once(':').is_some_and(|(_, name)| TIERED.contains(&name)))
    }

    /// Whether all options of an experiment are of presets with tiers.
    fn said_of_tiers(experiment: &Experiment) -> bool {
        let options = experiment.common.options.iter().flat_map(|options| options.split(','));
        let mut names = options.map(|option| option.split('=').next().unwrap_or(option));
        names.all(|name| PARAMETERS_OF_TIERED.contains(&name))
    }

    fn text(experiment: &str, system: &str, way: Way, scale: f64) -> Result<String, String> {
        let experiment = find(experiment)[0];
        let system = experiment.system(system).expect("a system");
        let settings = experiment.settings(system, &experiment.points[0]);
        Subject::new(system, way, &settings, sizes(scale), &Means::default())?.text()
    }

    #[test]
    fn every_setting_is_used_or_refused_by_name() {
        let means = Means::default();
        for experiment in experiments() {
            for setting in Setting::ALL {
                let (mut is_said, mut is_told) = (false, false);
                for system in experiment.systems.iter().filter(|system| system.target.is_ok()) {
                    for point in &experiment.points {
                        let settings = experiment.settings(system, point);
                        let Some(words) = said(&settings, setting) else { continue };
                        is_said = true;
                        for way in WAYS {
                            let subject = Subject::new(system, way, &settings, sizes(1.0), &means).unwrap();
                            let name = format!("{}: {}: {words}", experiment.name, subject.target);
                            is_told |= match (subject.fate(setting), subject.text()) {
                                (Ok(Fate::Without(_)), _) => false,
                                (Ok(Fate::Parameters(parameters)), Ok(text)) => {
                                    for (key, value) in parameters {
                                        let parameter = format!(",{key}={}", value.replace(',', "+"));
                                        assert!(text.contains(&parameter), "{name}: {text}");
                                    }
                                    true
                                }
                                // Another setting is what it waits for.
                                (Ok(Fate::Parameters(_)), Err(_)) => true,
                                (Err(why), whole) => {
                                    let named = words.split(',').any(|word| why.contains(word));
                                    assert!(named && whole.is_err(), "{name}: {why}");
                                    true
                                }
                            };
                        }
                    }
                }
                let is_of_others = match setting {
                    // Page caches are emptied by who works, not by a target.
                    Setting::Cold => true,
                    // The memory of a paper's other experiments.
                    Setting::Emulate => experiment.systems.iter().all(|system| !is_nacre(system)),
                    // The disk of a paper's other experiments.
                    Setting::Disk => !experiment.systems.iter().any(has_disk),
                    // The threshold of a paper's other experiments, of which no system has one.
                    Setting::Options => {
                        !experiment.systems.iter().any(is_tiered) && said_of_tiers(experiment)
                    }
                    _ => false,
                };
                assert!(!is_said || is_told || is_of_others, "{}: {setting:?} is left out", experiment.name);
            }
        }
    }

    /// What is done to all targets of a point alike cannot be said of one system.
    #[test]
    fn settings_of_a_system_are_of_its_target() {
        for system in experiments().flat_map(|experiment| &experiment.systems) {
            let Settings { cold, aged, settles, wraps, seconds, runs, .. } = &system.settings;
            let alike = cold.is_none() && aged.is_none() && settles.is_none() && wraps.is_none();
            assert!(alike && seconds.is_none() && runs.is_none(), "{}", system.name);
        }
    }

    #[test]
    fn few_cores_get_their_share_of_the_memorys_bandwidth() {
        let means = |cores| Means { cores, ..Means::default() };
        let of = |name, means| {
            let experiment = find(name)[0];
            let system = experiment.system("NOVA").unwrap();
            let settings = experiment.settings(system, &experiment.points[0]);
            Subject::new(system, Way::Library, &settings, sizes(0.01), &means).unwrap().text().unwrap()
        };
        assert_eq!(of("tpfs-fig8.optane", means(2)), "preset:nova,emulate=optane+factor=0.0556");
        assert_eq!(of("tpfs-fig8.optane", means(48)), "preset:nova,emulate=optane");
        assert_eq!(of("tpfs-fig9.optane", means(2)), "preset:nova,emulate=optane");
    }

    #[test]
    fn a_preset_with_tiers_has_the_papers_disk_memory_and_dram_or_waits() {
        let library = text("tpfs-fig13.optane", "TPFS-2", Way::Library, 0.01).unwrap();
        assert_eq!(library, "preset:tpfs,tier=optane-ssd,pm=21m,buffer=82m,cache=82m,emulate=optane");
        // Its caches are together as large as the one of the others, and writes wait where those of the others do.
        let mounted = text("tpfs-fig11.optane", "TPFS-2", Way::Mount, 0.01).unwrap();
        let caches = "cache=21m,dram=144m";
        assert_eq!(
            mounted,
            format!("mount:tpfs,options=writeback,tier=optane-ssd,pm=21m,{caches},emulate=optane")
        );
        let lazy = text("tpfs-fig9.optane", "TPFS-128", Way::Mount, 0.01).unwrap();
        assert!(lazy.contains("buffer=41m,cache=41m,dram=82m"), "{lazy}");
        // Where all that is written is synchronised, nothing waits.
        let through = text("tpfs-fig13.optane", "TPFS-2", Way::Mount, 0.01).unwrap();
        let expected = "mount:tpfs,buffer=0m,tier=optane-ssd,pm=21m,cache=21m,dram=144m,emulate=optane";
        assert_eq!(through, expected);
        let sata = text("tpfs-fig13.sata", "TPFS-2", Way::Library, 0.01).unwrap();
        assert!(sata.contains("tier=sata-ssd"), "{sata}");
        let tiny = text("tpfs-fig13.optane", "TPFS-2", Way::Mount, 0.0001).unwrap();
        assert!(tiny.contains("pm=16m,cache=1m,dram=32m"), "{tiny}");
        let group = text("tpfs-fig17.fio-read", "TPFS-2", Way::Library, 0.01).unwrap();
        assert!(group.contains(",group=4k,tier=optane-ssd,"), "{group}");
        let threshold = text("tpfs-predictor.threshold", "TPFS-2", Way::Mount, 0.01).unwrap();
        assert!(threshold.contains(",sync_threshold=4k,"), "{threshold}");
        // The default has the same over the same disk, and beside HiNFS it has no disk.
        let default = text("tpfs-fig13.optane", "nacre-2", Way::Library, 0.01).unwrap();
        assert_eq!(default, library.replace("preset:tpfs", "preset:nacre"));
        let default = text("tpfs-fig13.sata", "nacre-2", Way::Mount, 0.01).unwrap();
        assert_eq!(default, through.replace("mount:tpfs", "mount:nacre").replace("optane-ssd", "sata-ssd"));
        let in_memory = text("hinfs-fig7", "nacre", Way::Library, 1.0).unwrap();
        assert_eq!(in_memory, "preset:nacre,buffer=2048m,emulate=pcm");
        // One that buffers writes has its buffer, and hardly a page cache above it.
        let buffering = text("hinfs-fig7", "HiNFS", Way::Mount, 1.0).unwrap();
        assert!(buffering.contains("buffer=2048m,dram=32m"), "{buffering}");
        // Figure 4 begins cold, and no caches of a mount's tiers are emptied.
        for (experiment, setting, ways) in
            [("acbpfs-table1", "anticache=40m", &WAYS[..]), ("acbpfs-fig4", "anticache=40k", &[Way::Library])]
        {
            for way in ways {
                let text = text(experiment, "AC-BPFS", *way, 0.01).unwrap();
                assert!(text.contains(setting) && text.contains("tier=sata-ssd"), "{experiment}: {text}");
            }
        }
        // A share of the data, as the figure has it, where the option means one of PM.
        let share = text("acbpfs-fig5a", "AC-BPFS", Way::Library, 0.1).unwrap();
        assert!(share.contains(",anticache=27m,"), "a fifth of 133 MiB: {share}");
        // A system's own settings follow the sweep, too.
        let held = text("acbpfs-fig5a", "ext4, as much DRAM", Way::Library, 1.0).unwrap();
        assert_eq!(held, "peer:ext4-disk,copy=held,disk=sata-ssd,dram=267m");
        // It has no tiers, and so nothing that the option could be of.
        let without = text("acbpfs-table1", "BPFS", Way::Mount, 0.01).unwrap();
        assert_eq!(without, "mount:bpfs,pm=21m,dram=164m,emulate=dram");
    }

    /// Paper 002, section 6.5. The logs are counted here by what the programs document, not by what their workloads say.
    #[test]
    fn persistent_memory_is_never_below_the_sum_of_the_write_ahead_logs() {
        let (mut panels, mut memories, means) = (HashSet::new(), 0, Means::default());
        for (experiment, scale) in
            experiments().flat_map(|experiment| [1.0, 0.1, 0.0086, 0.0001].map(|scale| (experiment, scale)))
        {
            for point in &experiment.points {
                let Ok(spec) = point.workload.as_ref().map(|text| text.parse::<Spec>().unwrap()) else {
                    continue;
                };
                // Two of what is in memory at once, with a log each.
                let logs = match spec.name() {
                    "program.rocksdb" => 2.0 * f64::max(1.0, 64.0 * scale),
                    "program.leveldb" => 2.0 * 4.0,
                    _ => continue,
                };
                panels.insert(&experiment.name);
                let sizes = Sizes::of(&*workload::make(&spec, scale).unwrap(), scale);
                for system in experiment.systems.iter().filter(|system| system.target.is_ok()) {
                    let settings = experiment.settings(system, point);
                    let subject = Subject::new(system, Way::Mount, &settings, sizes, &means).unwrap();
                    let Ok(text) = subject.text() else { continue };
                    let memory = text.split(',').find_map(|parameter| {
                        parameter.strip_prefix("pm=").or(parameter.strip_prefix("size="))?.strip_suffix('m')
                    });
                    let Some(memory) = memory.map(|megabytes| megabytes.parse::<f64>().unwrap()) else {
                        continue;
                    };
                    // Half of it is where blocks begin to move down, and something is beside them.
                    assert!(
                        memory >= 2.0 * 1.1 * logs,
                        "{} at {scale}: {logs} MiB of logs: {text}",
                        point.key
                    );
                    memories += 1;
                }
            }
        }
        let figures: HashSet<_> = panels.iter().filter_map(|name| name.split('.').next()).collect();
        let expected = ["tpfs-fig14", "tpfs-fig15", "tpfs-fig16", "tpfs-fig17", "tpfs-predictor"];
        assert_eq!(figures, expected.into());
        assert!(memories > 100, "{memories}");
        // As large as the paper's at its own sizes, and where the least counts as small as the logs allow.
        let of = |logs, scale| Sizes { data: 1 << 30, logs, scale }.least_memory() >> 20;
        assert_eq!((of(128 << 20, 1.0), of(8 << 20, 0.001), of(0, 1.0)), (288, 18, 0));
    }

    #[test]
    fn what_a_tier_needs_is_not_left_to_chance() {
        let experiment = find("tpfs-fig13.optane")[0];
        let system = experiment.system("TPFS-2").expect("a system");
        let all = experiment.settings(system, &experiment.points[0]);
        let means = Means::default();
        let text = |way, settings: &Settings| {
            Subject::new(system, way, settings, sizes(1.0), &means).unwrap().text()
        };
        for (settings, name) in [
            (Settings { disk: None, ..all.clone() }, "disk"),
            (Settings { pm: None, ..all.clone() }, "pm"),
            (Settings { dram: None, ..all.clone() }, "dram"),
        ] {
            let why = text(Way::Library, &settings).unwrap_err();
            assert!(why.contains(&format!("the setting {name} cannot be had on preset:tpfs")), "{why}");
        }
        let cold = Settings { cold: Some(Cold::Begin), ..all.clone() };
        let why = text(Way::Mount, &cold).unwrap_err();
        assert!(why.contains("the setting cold=begin cannot be had on mount:tpfs"), "{why}");
        assert_eq!(text(Way::Library, &cold), text(Way::Library, &all), "who works on it empties its caches");
    }
}
