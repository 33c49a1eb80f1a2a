//! The options after `-o`: those of mount(8) and fstab(5), and nacre's own.
//!
//! mount(8) hands a helper most of its options, so this module knows the options of every file system. An option that
//! cannot be met is an error and is never dropped silently. `-s` tolerates unknown options.

pub(crate) mod help;
mod remount;
mod values;
mod without_effect;

pub(crate) use self::remount::kernel_flags;
pub(crate) use self::values::threads;
use self::values::{all_or_found, inodes, on_or_off, take_tier_setting};

use std::fmt;
use std::path::PathBuf;

use nacre::{
    CacheOptions, CacheSettings, Disk, Emulation, MoverLimit, Preset, Promise, TierDevice, TierSettings,
};

/// The options of one mount.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MountSettings {
    /// Refuse every change.
    pub(crate) read_only: bool,
    /// Device nodes work; the default for root.
    pub(crate) dev: Option<bool>,
    /// Set-id bits work; the default for root.
    pub(crate) suid: Option<bool>,
    /// Programs cannot be executed.
    pub(crate) no_exec: bool,
    /// Symbolic links are not followed.
    pub(crate) no_symlinks: bool,
    /// Reads do not update times of access.
    pub(crate) no_atime: bool,
    /// Writes are durable when they return.
    pub(crate) sync: bool,
    /// Changes of directories are durable when they return.
    pub(crate) dirsync: bool,
    /// Other users may access the mount; the default for root.
    pub(crate) allow_other: Option<bool>,
    /// The kernel buffers writes.
    pub(crate) writeback: bool,
    /// Settings of nacre's write buffer; `None` without it.
    pub(crate) lazy: Option<Lazy>,
    /// The preset of this mount, if it is not the one from mkfs.
    pub(crate) preset: Option<Preset>,
    /// Use an index in DRAM to find names in directories, if the layout leaves that open.
    pub(crate) name_index: Option<bool>,
    /// The volume of a device with several.
    pub(crate) volume: Option<String>,
    /// The most inodes whose state is kept in DRAM, in addition to those in use.
    pub(crate) inode_cache: Option<u64>,
    /// Reads and writes bypass the page cache.
    pub(crate) direct_io: bool,
    /// The number of threads that answer requests.
    pub(crate) threads: Option<usize>,
    /// Emulation of a slower device.
    pub(crate) emulation: Option<Emulation>,
    /// The persistence domain that the device must have.
    pub(crate) require: Option<Promise>,
    /// The devices of tiers that are named.
    pub(crate) tiers: Vec<TierOption>,
    /// Refuse the mount while a tier is missing.
    pub(crate) all_tiers: bool,
    /// Policy of data movement between PM and tiers.
    pub(crate) tier_settings: TierSettings,
    /// The log of a background server.
    pub(crate) log: Option<PathBuf>,
    /// A missing device is no failure.
    pub(crate) no_fail: bool,
    /// Change the existing mount.
    pub(crate) remount: bool,
    /// Settings of the write buffer that were named, as written.
    lazy_named: Vec<String>,
    /// Flags that were named, and their opposites.
    plain_named: Vec<&'static str>,
    /// Known options that change nothing here, with the reason.
    without_effect: Vec<String>,
}

/// The option `tier=`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TierOption {
    pub(crate) path: PathBuf,
    /// The emulated disk, as written.
    pub(crate) disk: Option<String>,
}

impl TierOption {
    /// Parses `PATH` or `PATH@DISK`.
    pub(crate) fn parse(text: &str) -> TierOption {
        match text.rsplit_once('@') {
            Some((path, disk)) if disk.parse::<Disk>().is_ok() => {
                TierOption { path: path.into(), disk: Some(disk.to_owned()) }
            }
            _ => TierOption { path: text.into(), disk: None },
        }
    }

    /// The tier in the type of the library.
    pub(crate) fn device(&self) -> TierDevice {
        let emulation = self.disk.as_ref().and_then(|disk| disk.parse().ok());
        TierDevice { path: self.path.clone(), emulation }
    }
}

impl fmt::Display for TierOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.disk.as_ref().map_or(Ok(()), |disk| write!(f, "@{disk}"))
    }
}

/// Options of nacre's write buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lazy {
    /// The size of the buffer, in bytes of DRAM.
    size: u64,
    settings: CacheSettings,
    /// True if the number of threads was named. Otherwise the number is fitted to the PM.
    names_threads: bool,
}

impl Lazy {
    /// The buffer in the type of the library.
    pub(crate) fn options(&self) -> CacheOptions {
        CacheOptions {
            settings: self.settings,
            fits_threads: !self.names_threads,
            ..CacheOptions::new(self.size)
        }
    }
}

impl Default for Lazy {
    fn default() -> Lazy {
        Lazy { size: LAZY_DEFAULT, settings: CacheSettings::default(), names_threads: false }
    }
}

/// Options for mount(8) or systemd that mean nothing to a file system.
const FOR_OTHERS: [&str; 21] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "silent",
    "loud",
    "rw",
    "exec",
    "async",
    "atime",
    "diratime",
    "relatime",
    "nostrictatime",
    "default_permissions",
];

/// Flags and their opposites.
const PLAIN: [&str; 15] = [
    "ro",
    "rw",
    "nodev",
    "dev",
    "nosuid",
    "suid",
    "noexec",
    "exec",
    "nosymfollow",
    "symfollow",
    "noatime",
    "atime",
    "relatime",
    "strictatime",
    "async",
];

/// Prefixes of options for others. A remount brings the kernel's own options of the mount.
const PREFIXES_FOR_OTHERS: [&str; 8] =
    ["x-", "X-", "comment=", "user=", "uhelper=", "user_id=", "group_id=", "max_read="];

/// The size of the buffer without a size in `lazy`, in bytes.
const LAZY_DEFAULT: u64 = 256 << 20;
/// Settings of data movement between PM and tiers. A remount can change these and the settings of the buffer.
const TIER_SETTINGS: [&str; 12] = [
    "tier_cache",
    "tier_group",
    "sync_threshold",
    "large_writes",
    "read_factor",
    "tier_balance",
    "mover_hours",
    "mover_limit",
    "log_threshold",
    "tier_threshold",
    "disk_threshold",
    "anticache",
];
/// The value for a mover without a limit.
const NO_LIMIT: &str = "none";

impl MountSettings {
    /// Parses options separated by commas. The later of two conflicting options counts. With `sloppy`, unknown options
    /// are ignored.
    pub(crate) fn take(&mut self, options: &str, sloppy: bool) -> Result<(), String> {
        for option in split(options)? {
            if !option.is_empty() && !self.take_one(&option)? && !sloppy {
                return Err(format!("the mount option {option:?} is unknown; {}", hint(&option)));
            }
        }
        Ok(())
    }

    /// Parses one option; false if it is unknown.
    fn take_one(&mut self, option: &str) -> Result<bool, String> {
        if let Some((key, value)) = option.split_once('=')
            && self.take_setting(key, value)?
        {
            return Ok(true);
        }
        self.plain_named.extend(PLAIN.iter().filter(|plain| **plain == option));
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "dev" => self.dev = Some(true),
            "nodev" => self.dev = Some(false),
            "suid" => self.suid = Some(true),
            "nosuid" => self.suid = Some(false),
            "exec" => self.no_exec = false,
            "noexec" => self.no_exec = true,
            "atime" | "relatime" => self.no_atime = false,
            "noatime" => self.no_atime = true,
            "symfollow" => self.no_symlinks = false,
            "nosymfollow" => self.no_symlinks = true,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "allow_other" => self.allow_other = Some(true),
            "writeback" => self.writeback = true,
            "lazy" => self.lazy = Some(self.lazy.unwrap_or_default()),
            "direct_io" => self.direct_io = true,
            "nofail" => self.no_fail = true,
            "strictatime" => {
                self.no_atime = false;
                self.without_effect.extend(without_effect::reason(option));
            }
            "remount" => self.remount = true,
            "bind" | "rbind" | "move" => {
                return Err(format!("{option:?} is done by mount(8) itself: mount --{option} FROM TO"));
            }
            _ => {
                let known = without_effect::reason(option);
                let is_known = known.is_some() || without_effect::is_so_anyway(option);
                self.without_effect.extend(known);
                return Ok(is_known || is_for_others(option));
            }
        }
        Ok(true)
    }

    /// Options that were given and have no effect, in words.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.without_effect
    }

    fn take_setting(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("the mount option {key:?}: {error}");
        match key {
            "threads" => self.threads = Some(threads(value).map_err(|error| wrong(&error))?),
            "preset" => self.preset = Some(value.parse().map_err(|error| wrong(&error))?),
            _ if key == "lazy" || key.starts_with("lazy_") => {
                let mut lazy = self.lazy.unwrap_or_default();
                if !lazy.take(key, value).map_err(|error| wrong(&error))? {
                    return Ok(false);
                }
                self.lazy = Some(lazy);
                self.lazy_named.push(format!("{key}={value}"));
            }
            "volume" if value.is_empty() => return Err(wrong(&"name a volume")),
            "volume" => self.volume = Some(value.to_owned()),
            "name_index" => self.name_index = Some(on_or_off(value).map_err(|error| wrong(&error))?),
            "inode_cache" => self.inode_cache = Some(inodes(value).map_err(|error| wrong(&error))?),
            "emulate" => self.emulation = Some(value.parse().map_err(|error| wrong(&error))?),
            "require" => self.require = Some(value.parse().map_err(|error| wrong(&error))?),
            "tier" | "log" if value.is_empty() => {
                return Err(wrong(&"give a path, as tier=/dev/sdb or log=/var/log/nacre.log"));
            }
            "tier" => self.tiers.push(TierOption::parse(value)),
            "tiers" => self.all_tiers = all_or_found(value).map_err(|error| wrong(&error))?,
            _ if TIER_SETTINGS.contains(&key) => {
                take_tier_setting(&mut self.tier_settings, key, value).map_err(|error| wrong(&error))?;
            }
            "log" => self.log = Some(PathBuf::from(value)),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The settings for a running write buffer, which has the settings `running`.
    pub(crate) fn buffer_settings(&self, running: CacheSettings) -> CacheSettings {
        let Some(Lazy { settings, names_threads, .. }) = self.lazy else { return running };
        CacheSettings {
            threads: if names_threads { settings.threads } else { running.threads },
            low_percent: settings.low_percent,
            high_percent: settings.high_percent,
            period_ms: settings.period_ms,
            max_age_ms: settings.max_age_ms,
            forget_ms: settings.forget_ms,
            ..running
        }
    }

    /// Checks for options that exclude each other. The error names them.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.writeback && self.direct_io {
            return Err(
                "writeback and direct_io exclude each other: one uses the page cache, one goes past it; leave one of them out"
                    .into(),
            );
        }
        if self.lazy.is_some() && (self.writeback || self.sync) {
            return Err(
                "lazy excludes writeback and sync: writes are buffered here, in the kernel, or nowhere; choose one"
                    .into(),
            );
        }
        if let Some(Lazy { settings, .. }) = &self.lazy
            && settings.low_percent > settings.high_percent
        {
            return Err(format!(
                "lazy_low={} exceeds lazy_high={}; give a smaller lazy_low, or a larger lazy_high",
                settings.low_percent, settings.high_percent
            ));
        }
        if let Some(preset) = self.preset
            && preset.buffers_writes()
            && preset != Preset::Nacre
            && self.lazy.is_none()
        {
            // The image may have the preset from mkfs, for programs that open the device. The option here means this
            // mount.
            return Err(format!(
                "the preset {preset} buffers writes, and a mount does so with \"lazy\" only: add it"
            ));
        }
        if self.writeback && self.sync {
            return Err("writeback and sync exclude each other: one defers writes, one does not; leave one of them out".into());
        }
        Ok(())
    }
}

impl fmt::Display for MountSettings {
    /// Writes the options that describe the running mount, as after `-o`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.read_only { "ro" } else { "rw" })?;
        let flags = [
            (self.dev == Some(false), "nodev"),
            (self.suid == Some(false), "nosuid"),
            (self.no_exec, "noexec"),
            (self.no_symlinks, "nosymfollow"),
            (self.no_atime, "noatime"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.writeback, "writeback"),
            (self.direct_io, "direct_io"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            write!(f, ",{name}")?;
        }
        if let Some(threads) = self.threads {
            write!(f, ",threads={threads}")?;
        }
        if let Some(inodes) = self.inode_cache {
            write!(f, ",inode_cache={inodes}")?;
        }
        if let Some(lazy) = self.lazy {
            write!(f, ",lazy={}", as_option(lazy.size))?;
            let (set, usual) = (lazy.settings, CacheSettings::default());
            let settings = [
                ("low", u64::from(set.low_percent), u64::from(usual.low_percent)),
                ("high", u64::from(set.high_percent), u64::from(usual.high_percent)),
                ("period", set.period_ms, usual.period_ms),
                ("age", set.max_age_ms, usual.max_age_ms),
                ("forget", set.forget_ms, usual.forget_ms),
            ];
            for (name, set, _) in settings.iter().filter(|(_, set, usual)| set != usual) {
                write!(f, ",lazy_{name}={set}")?;
            }
            if lazy.names_threads {
                write!(f, ",lazy_threads={}", set.threads)?;
            }
        }
        if let Some(preset) = self.preset {
            write!(f, ",preset={preset}")?;
        }
        if let Some(is_on) = self.name_index {
            write!(f, ",name_index={}", on_off(is_on))?;
        }
        if let Some(volume) = &self.volume {
            write!(f, ",volume={volume}")?;
        }
        if let Some(require) = self.require {
            write!(f, ",require={}", require.as_str())?;
        }
        for option in tier_options(&self.tier_settings) {
            write!(f, ",{option}")?;
        }
        if self.all_tiers {
            f.write_str(",tiers=all")?;
        }
        for tier in &self.tiers {
            let text = tier.to_string();
            let quote = if text.contains(',') { "\"" } else { "" };
            write!(f, ",tier={quote}{text}{quote}")?;
        }
        Ok(())
    }
}

/// Named settings of tiers, as after `-o`.
fn tier_options(settings: &TierSettings) -> Vec<String> {
    let TierSettings {
        cache,
        group,
        sync_threshold,
        large_writes,
        read_factor,
        balance,
        mover_hours,
        mover_limit,
        log_threshold,
        tier_threshold,
        disk_threshold,
        anticache,
    } = *settings;
    let limit = |limit| match limit {
        MoverLimit::None => NO_LIMIT.to_owned(),
        MoverLimit::Rate(rate) => as_option(rate),
    };
    let values = [
        cache.map(as_option),
        group.map(as_option),
        sync_threshold.map(as_option),
        large_writes.map(|count| count.to_string()),
        read_factor.map(|factor| factor.to_string()),
        balance.map(|is_on| on_off(is_on).to_owned()),
        mover_hours.map(|hours| hours.to_string()),
        mover_limit.map(limit),
        log_threshold.map(|percent| percent.to_string()),
        tier_threshold.map(|percent| percent.to_string()),
        disk_threshold.map(|percent| percent.to_string()),
        anticache.map(values::anticache_option),
    ];
    let option = |(name, value): (&str, Option<String>)| value.map(|value| format!("{name}={value}"));
    TIER_SETTINGS.into_iter().zip(values).filter_map(option).collect()
}

fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// A size, as after `-o`.
fn as_option(size: u64) -> String {
    let units = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];
    let whole = units.into_iter().find(|(_, shift)| size.is_multiple_of(1 << shift));
    whole.map_or_else(|| size.to_string(), |(letter, shift)| format!("{}{letter}", size >> shift))
}

fn is_for_others(option: &str) -> bool {
    FOR_OTHERS.contains(&option) || PREFIXES_FOR_OTHERS.iter().any(|prefix| option.starts_with(prefix))
}

/// Settings within the values of `emulate=` and `tier=PATH@DISK`. Alone, they are parts that a comma has cut off.
const WITHIN_VALUES: [&str; 9] = [
    "latency",
    "write-latency",
    "read-latency",
    "bandwidth",
    "write-bandwidth",
    "read-bandwidth",
    "factor",
    "poison",
    "flush",
];

/// The advice for an unknown option, also for a comma within a value.
fn hint(option: &str) -> &'static str {
    match option.split_once('=') {
        Some((key, _)) if WITHIN_VALUES.contains(&key) => {
            "a comma ends an option, so colons separate the settings of emulate= and of tier=PATH@DISK, as in \
             emulate=latency=200:bandwidth=1G"
        }
        _ => "leave it out, or see nacre mount --help for those that are known",
    }
}

/// Splits options at commas. A value in double quotes may hold commas, as with mount(8).
fn split(options: &str) -> Result<Vec<String>, String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for character in options.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => parts.push(String::new()),
            other => parts.last_mut().expect("there is always a part").push(other),
        }
    }
    if quoted { Err(format!("a quotation mark is missing in {options:?}")) } else { Ok(parts) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nacre::{CacheSettings, Promise};

    use super::MountSettings;

    pub(super) fn take(options: &str) -> Result<MountSettings, String> {
        let mut settings = MountSettings::default();
        settings.take(options, false).map(|()| settings)
    }

    #[test]
    fn what_fstab_says_to_others_changes_nothing() {
        let options = "defaults,rw,auto,noauto,user,users,nouser,owner,group,_netdev,x-systemd.automount,X-home,\
                       comment=home,user=joe,relatime,exec,async,default_permissions,,diratime";
        let settings = MountSettings { plain_named: Vec::new(), ..take(options).unwrap() };
        assert_eq!(settings, MountSettings::default());
        let settings = take("acl,user_xattr,nodiscard,nolazytime,nomand,symfollow,uhelper=nacre").unwrap();
        assert_eq!(MountSettings { plain_named: Vec::new(), ..settings }, MountSettings::default());
        assert!(take("nofail").unwrap().no_fail);
    }

    #[test]
    fn flags_are_taken_up_and_the_last_one_counts() {
        let settings = take("ro,nodev,nosuid,noexec,noatime,sync,dirsync,allow_other").unwrap();
        assert!(
            settings.read_only && settings.no_exec && settings.no_atime && settings.sync && settings.dirsync
        );
        assert_eq!(
            (settings.dev, settings.suid, settings.allow_other),
            (Some(false), Some(false), Some(true))
        );
        let settings = take("ro,rw,nodev,dev,noexec,exec,sync,async,noatime,relatime").unwrap();
        let plain_named = settings.plain_named.clone();
        assert_eq!(settings, MountSettings { dev: Some(true), plain_named, ..MountSettings::default() });
        // As with mount(8), options come in several pieces.
        let mut settings = take("ro").unwrap();
        settings.take("rw,threads=3", false).unwrap();
        assert!(!settings.read_only);
        assert_eq!(settings.threads, Some(3));
        assert_eq!(take("nosymfollow").unwrap().to_string(), "rw,nosymfollow");
    }

    #[test]
    fn what_other_file_systems_have_is_said_to_change_nothing() {
        let options = "strictatime,norelatime,X-mount.mkdir,X-mount.mode=0755,lazytime,mand,iversion,discard,discard=async,dax,dax=always,noacl,nouser_xattr,\
                       barrier=1,nobarrier,errors=remount-ro,commit=5,data=ordered,context=system_u";
        let settings = take(options).unwrap();
        assert_eq!(settings.to_string(), "rw");
        let words: Vec<&str> = options.split(',').collect();
        assert_eq!(settings.warnings().len(), words.len());
        for (option, warning) in words.iter().zip(settings.warnings()) {
            assert!(warning.starts_with(&format!("the option {option:?} has no effect: ")), "{warning}");
        }
        assert!(!take("noatime,strictatime").unwrap().no_atime);
    }

    #[test]
    fn ours_are_taken_up() {
        let settings =
            take("writeback,require=power,log=/var/log/nacre,emulate=\"pcm,latency=500\"").unwrap();
        assert!(settings.writeback);
        assert_eq!(settings.require, Some(Promise::PowerLoss));
        assert_eq!(settings.log.as_deref(), Some(Path::new("/var/log/nacre")));
        assert_eq!(settings.emulation.unwrap().write_latency_ns, 500);
        assert!(take("direct_io").unwrap().direct_io);
        let settings = take("tier_cache=8M,tier=/srv/disk").unwrap();
        assert_eq!((settings.tier_settings.cache, settings.tiers.len()), (Some(8 << 20), 1));
        assert!(take("tiers=all").unwrap().all_tiers && !take("tiers=all,tiers=found").unwrap().all_tiers);
        assert_eq!(take("tiers=all,tier=/srv/disk").unwrap().to_string(), "rw,tiers=all,tier=/srv/disk");
        assert_eq!(settings.to_string(), "rw,tier_cache=8M,tier=/srv/disk");
        let all = "rw,tier_cache=1M,tier_group=64K,sync_threshold=1M,large_writes=2,read_factor=0,\
                   tier_balance=off,mover_hours=12:00-13:00+22:00-06:00,mover_limit=100M,log_threshold=99,tier_threshold=60,disk_threshold=0,anticache=40M";
        assert_eq!(take(all).unwrap().to_string(), all);
        for said in ["rw,mover_hours=always,mover_limit=none", "rw,anticache=30%", "rw,anticache=off"] {
            assert_eq!(take(said).unwrap().to_string(), said);
        }
        assert_eq!(take("lazy").unwrap().lazy.unwrap().options().size, 256 << 20);
        assert_eq!(take("lazy=64M").unwrap().to_string(), "rw,lazy=64M");
        let all = "rw,lazy=64M,lazy_low=10,lazy_high=30,lazy_period=1000,lazy_age=2000,lazy_forget=0,\
                   lazy_threads=3,preset=hinfs-wb";
        assert_eq!(take(all).unwrap().to_string(), all);
        let settings = take("lazy_age=7,lazy").unwrap().lazy.unwrap().options().settings;
        assert_eq!(settings, CacheSettings { max_age_ms: 7, ..CacheSettings::default() });
        let said =
            take("ro,noatime,threads=3,direct_io,nodev,x-gvfs,name_index=off,require=process").unwrap();
        assert_eq!(said.to_string(), "ro,nodev,noatime,direct_io,threads=3,name_index=off,require=process");
        assert_eq!(take("inode_cache=5000").unwrap().to_string(), "rw,inode_cache=5000");
    }

    #[test]
    fn what_is_unknown_or_cannot_be_had_is_refused() {
        for (options, word) in [
            ("ro,compress=zstd", "compress=zstd"),
            ("errors", "errors"),
            ("commit", "commit"),
            ("threads=0", "1 to 256"),
            ("threads=many", "1 to 256"),
            ("lazy=4K", "1M to 8T"),
            ("lazy=9T", "1M to 8T"),
            ("tier=", "a path"),
            ("log=", "a path"),
            ("mover_limit=slow", "or none"),
            ("inode_cache=4294967296", "1024 to 4294967295"),
            ("lazy_low=101", "percentage"),
            ("lazy_period=0", "milliseconds"),
            ("lazy_forget=86400001", "milliseconds"),
            ("lazy_color=red", "lazy_color"),
            ("preset=zfs", "the presets are"),
            ("name_index=maybe", "neither on nor off"),
            ("inode_cache=1023", "1024 to 4294967295"),
            ("inode_cache=all", "number of inodes"),
            ("tier_cache=64K", "1 MiB to 1 TiB"),
            ("tier_cache=2T", "1 MiB to 1 TiB"),
            ("tier_group=5000", "whole blocks"),
            ("sync_threshold=512", "4 KiB to 1 TiB"),
            ("large_writes=-1", "0 to 65535"),
            ("read_factor=65536", "0 to 65535"),
            ("read_factor=twice", "read_factor"),
            ("tier_cache=much", "tier_cache"),
            ("mover_hours=22:00", "22:00-06:00"),
            ("mover_hours=night", "mover_hours"),
            ("mover_limit=1K", "4 KiB to 1 TiB, or none"),
            ("mover_limit=slow", "mover_limit"),
            ("anticache=101%", "0% to 100%"),
            ("anticache=much", "anticache"),
            ("log_threshold=20", "50 to 100"),
            ("log_threshold=high", "log_threshold"),
            ("tier_threshold=101", "50 to 100"),
            ("tier_threshold=full", "tier_threshold"),
            ("tiers=some", "neither all nor found"),
            ("disk_threshold=101", "0 to 100"),
            ("disk_threshold=-1", "disk_threshold"),
            ("emulate=nothing", "after -o by colons"),
            ("emulate=latency=200,bandwidth=1G", "emulate=latency=200:bandwidth=1G"),
            ("tier=/srv/disk@nvme,flush=0", "colons separate"),
            ("require=luck", "require"),
            ("emulate=\"pcm,latency=5", "quotation mark"),
            ("bind", "mount(8)"),
        ] {
            let message = take(options).unwrap_err();
            assert!(message.contains(word), "{options}: {message}");
        }
    }

    #[test]
    fn the_sloppy_pass_over_what_is_unknown_only() {
        let mut settings = MountSettings::default();
        settings.take("compress=zstd,ro", true).unwrap();
        assert!(settings.read_only);
        assert!(settings.take("threads=0", true).is_err());
    }

    #[test]
    fn what_excludes_each_other_is_refused() {
        assert!(take("writeback,direct_io").unwrap().check().is_err());
        assert!(take("writeback,sync").unwrap().check().is_err());
        assert!(take("lazy,writeback").unwrap().check().is_err());
        assert!(take("lazy,sync").unwrap().check().is_err());
        assert!(take("lazy,direct_io").unwrap().check().is_ok());
        assert!(take("lazy,lazy_low=50,lazy_high=40").unwrap().check().is_err());
        assert!(take("writeback,sync,async").unwrap().check().is_ok());
        let message = take("preset=hinfs-wb").unwrap().check().unwrap_err();
        assert!(message.contains("\"lazy\" only"), "{message}");
        assert!(take("preset=hinfs-wb,lazy").unwrap().check().is_ok());
        assert!(
            take("preset=pmfs").unwrap().check().is_ok() && take("preset=nacre").unwrap().check().is_ok()
        );
    }
}
