//! The options after `-o`: those of mount(8) and fstab(5), and nacre's own.
//!
//! mount(8) hands a helper most of its options, so this module knows the options of every file system. An option that
//! cannot be met is an error and is never dropped silently. `-s` tolerates unknown options.

mod remount;
pub(crate) mod table;
mod values;
mod without_effect;

pub(crate) use self::remount::kernel_flags;
use self::table::{Given, Setting, TUNE};
pub(crate) use self::values::threads;

use std::fmt;
use std::path::PathBuf;

use nacre::{CacheOptions, CacheSettings, Disk, Emulation, Preset, Promise, TierDevice, TierSettings};

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
    /// nacre's write buffer, if there is one.
    pub(crate) buffer: Option<Buffer>,
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
    /// Settings that were given with a value: their names, and the values as written.
    named: Vec<(&'static str, String)>,
    /// Flags that were given, and their opposites.
    flags_named: Vec<&'static str>,
    /// Notices of options that change nothing here, or have another name.
    notices: Vec<String>,
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

/// nacre's write buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Buffer {
    /// Its size, in bytes of DRAM.
    size: u64,
    settings: CacheSettings,
    /// True if the number of threads was named. Otherwise the number is fitted to the PM.
    names_threads: bool,
}

impl Buffer {
    /// The buffer in the type of the library.
    pub(crate) fn options(&self) -> CacheOptions {
        CacheOptions {
            settings: self.settings,
            fits_threads: !self.names_threads,
            ..CacheOptions::new(self.size)
        }
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer { size: BUFFER_DEFAULT, settings: CacheSettings::default(), names_threads: false }
    }
}

/// Options for mount(8) or systemd that mean nothing to a file system.
const FOR_OTHERS: [&str; 16] = [
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
    "diratime",
    "nostrictatime",
    "default_permissions",
];

/// Prefixes of options for others. A remount brings the kernel's own options of the mount.
const PREFIXES_FOR_OTHERS: [&str; 8] =
    ["x-", "X-", "comment=", "user=", "uhelper=", "user_id=", "group_id=", "max_read="];

/// The size of the buffer without a size in `buffer`, in bytes.
const BUFFER_DEFAULT: u64 = 256 << 20;

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

    /// Takes the option `tier=`, whose path may have commas here.
    pub(crate) fn take_tier(&mut self, path: &str) -> Result<(), String> {
        self.take_value("tier", path).map(|_| ())
    }

    /// Parses one option; false if it is unknown.
    fn take_one(&mut self, option: &str) -> Result<bool, String> {
        if let Some((name, value)) = option.split_once('=')
            && self.take_value(name, value)?
        {
            return Ok(true);
        }
        if self.take_flag(option)? {
            self.notices.extend(without_effect::reason(option));
            return Ok(true);
        }
        if let "bind" | "rbind" | "move" = option {
            return Err(format!("{option:?} is done by mount(8) itself: mount --{option} FROM TO"));
        }
        if let Some(setting) = table::all().find(|setting| setting.name == option) {
            return Err(format!("the mount option {option:?} needs a value: {}", setting.form()));
        }
        let known = without_effect::reason(option);
        let is_known = known.is_some() || without_effect::is_so_anyway(option);
        self.notices.extend(known);
        Ok(is_known || is_for_others(option))
    }

    /// Takes a flag, or a word that reverts one; false if it is none.
    fn take_flag(&mut self, word: &str) -> Result<bool, String> {
        for setting in table::all().filter(|setting| setting.is_flag()) {
            let off = setting.reverts.iter().find(|revert| **revert == word);
            if let Some(off) = off {
                self.flags_named.push(off);
                (setting.take)(self, Given::Off)?;
            } else if word == setting.name || word == setting.old {
                self.flags_named.push(setting.name);
                self.tell_of_name(setting, word, "");
                (setting.take)(self, Given::On)?;
            } else {
                continue;
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Takes a setting with a value; false if it is unknown.
    fn take_value(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let (name, value, is_tuned) = match value.split_once(':') {
            Some((name_within, value)) if name == TUNE => (name_within, value, true),
            _ if name == TUNE => {
                return Err(format!("the mount option {TUNE:?}: {value:?} is no NAME:VALUE; {}", tunable()));
            }
            _ => (name, value, false),
        };
        let setting = table::all().filter(|setting| setting.takes_value()).find(|setting| match is_tuned {
            true => setting.is_experimental && setting.name == name,
            false => name == setting.name || name == setting.old,
        });
        let Some(setting) = setting else {
            return match is_tuned {
                true => Err(format!("the mount option {TUNE:?}: {name:?} is unknown; {}", tunable())),
                false => Ok(false),
            };
        };
        let taken = (setting.take)(self, Given::Value(value));
        let taken = taken.and_then(|()| self.tier_settings.check().map_err(|error| error.to_string()));
        taken.map_err(|error| format!("the mount option {name:?}: {error}"))?;
        if !is_tuned {
            self.tell_of_name(setting, name, value);
        }
        self.named.push((setting.name, value.to_owned()));
        Ok(true)
    }

    /// Notes that a setting was given as it was called before, with the name that it has now.
    fn tell_of_name(&mut self, setting: &Setting, name: &str, value: &str) {
        if name != setting.name || setting.is_experimental {
            let before = if value.is_empty() { name.to_owned() } else { format!("{name}={value}") };
            self.notices.push(format!("the option {before:?} is {:?} now", setting.text(value)));
        }
    }

    /// The write buffer, which there is from now on.
    fn buffer(&mut self) -> &mut Buffer {
        self.buffer.get_or_insert_default()
    }

    /// Notices for the user: options that were given and have no effect, or have another name now.
    pub(crate) fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The settings for a running write buffer, which has the settings `running`.
    pub(crate) fn buffer_settings(&self, running: CacheSettings) -> CacheSettings {
        let Some(Buffer { settings, names_threads, .. }) = self.buffer else { return running };
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

    /// When data that programs write is durable, as a sentence; empty if it is read-only.
    pub(crate) fn durable(&self) -> String {
        const NO_SYNC: &str = "sync(2) and syncfs(2) do not wait";
        match &self.buffer {
            _ if self.read_only => String::new(),
            Some(Buffer { settings, .. }) => format!(
                "when fsync(2) returns, otherwise {} ms after a write, or twice that (buffer_age); {NO_SYNC}",
                settings.max_age_ms
            ),
            None if self.writeback => {
                format!("when fsync(2) returns; {NO_SYNC}, and a full device is told later")
            }
            None => "when a write returns, and of a mapping when msync(2) or fsync(2) returns".to_owned(),
        }
    }

    /// Takes the value of an option of the command. A different one within `-o` does not count, and a notice says so.
    pub(crate) fn prefer<T: PartialEq>(
        &mut self,
        name: &str,
        own: Option<T>,
        of: fn(&mut MountSettings) -> &mut Option<T>,
    ) {
        let Some(own) = own else { return };
        let there = of(self).replace(own);
        if there.is_some() && there != *of(self) {
            self.notices.push(format!("the option {name:?} has no effect: --{name} counts"));
        }
    }

    /// Takes a persistence domain that an option of the command requires, unless `-o` requires more.
    pub(crate) fn require(&mut self, own: Option<Promise>) {
        if own.is_some_and(|own| self.require.is_none_or(|there| own.satisfies(there))) {
            self.require = own;
        }
    }

    /// Whether a setting was given, with a value or without one.
    fn is_named(&self, name: &str) -> bool {
        self.flags_named.contains(&name) || self.named.iter().any(|(named, _)| *named == name)
    }

    /// Checks for options that exclude each other. The error names them.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.writeback && self.direct_io {
            return Err(
                "writeback and direct_io exclude each other: one uses the page cache, one goes past it; leave one of them out"
                    .into(),
            );
        }
        if self.buffer.is_some() && (self.writeback || self.sync) {
            return Err(
                "buffer excludes writeback and sync: writes are buffered here, in the kernel, or nowhere; choose one"
                    .into(),
            );
        }
        // A remount is for the buffer of the mount, if there is one.
        if !self.remount
            && !self.is_named("buffer")
            && let Some((name, _)) = self.named.iter().find(|(name, _)| name.starts_with("buffer_"))
        {
            return Err(format!(
                "{name:?} is a setting of the write buffer, and there is none; add \"buffer\""
            ));
        }
        if let Some(Buffer { settings, .. }) = &self.buffer
            && settings.low_percent > settings.high_percent
        {
            return Err(format!(
                "buffer_low:{} exceeds buffer_high:{}; give a smaller buffer_low, or a larger buffer_high",
                settings.low_percent, settings.high_percent
            ));
        }
        if let Some(preset) = self.preset
            && preset.buffers_writes()
            && preset != Preset::Nacre
            && self.buffer.is_none()
        {
            // The image may have the preset from mkfs, for programs that open the device. The option here means this
            // mount.
            return Err(format!(
                "the preset {preset} buffers writes, and a mount does so with \"buffer\" only: add it"
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
        for option in table::all().flat_map(|setting| setting.printed(self)) {
            write!(f, ",{option}")?;
        }
        Ok(())
    }
}

/// The settings within `tune=`, as an advice.
fn tunable() -> String {
    let names = table::all().filter(|setting| setting.is_experimental).map(|setting| setting.name);
    format!("the names are {}", names.collect::<Vec<_>>().join(", "))
}

fn is_for_others(option: &str) -> bool {
    FOR_OTHERS.contains(&option) || PREFIXES_FOR_OTHERS.iter().any(|prefix| option.starts_with(prefix))
}

/// Settings within the values of `tune=emulate:` and `tier=PATH@DISK`. Alone, they are parts that a comma has cut off.
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
            "a comma ends an option, so colons separate the settings of tune=emulate: and of tier=PATH@DISK, as in \
             tune=emulate:latency=200:bandwidth=1G"
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
        let settings = MountSettings { flags_named: Vec::new(), ..take(options).unwrap() };
        assert_eq!(settings, MountSettings::default());
        let settings = take("acl,user_xattr,nodiscard,nolazytime,nomand,symfollow,uhelper=nacre").unwrap();
        assert_eq!(MountSettings { flags_named: Vec::new(), ..settings }, MountSettings::default());
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
        let flags_named = settings.flags_named.clone();
        assert_eq!(settings, MountSettings { dev: Some(true), flags_named, ..MountSettings::default() });
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
        assert_eq!(settings.notices().len(), words.len());
        for (option, warning) in words.iter().zip(settings.notices()) {
            assert!(warning.starts_with(&format!("the option {option:?} has no effect: ")), "{warning}");
        }
        assert!(!take("noatime,strictatime").unwrap().no_atime);
    }

    #[test]
    fn ours_are_taken_up() {
        let settings =
            take("writeback,require=power,log=/var/log/nacre,tune=\"emulate:pcm,latency=500\"").unwrap();
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
        let all = "rw,tier_cache=1M,tier_threshold=60,mover_hours=12:00-13:00+22:00-06:00,mover_limit=100M,anticache=40M,\
                   tune=tier_group:64K,tune=sync_threshold:1M,tune=large_writes:2,tune=read_factor:0,tune=tier_balance:off,\
                   tune=log_threshold:99,tune=disk_threshold:0";
        assert_eq!(take(all).unwrap().to_string(), all);
        for said in ["rw,mover_hours=always,mover_limit=none", "rw,anticache=30%", "rw,anticache=off"] {
            assert_eq!(take(said).unwrap().to_string(), said);
        }
        assert_eq!(take("buffer").unwrap().buffer.unwrap().options().size, 256 << 20);
        assert_eq!(take("buffer=64M").unwrap().to_string(), "rw,buffer=64M");
        let all = "rw,buffer=64M,buffer_age=2000,preset=hinfs-wb,tune=buffer_low:10,tune=buffer_high:30,\
                   tune=buffer_period:1000,tune=buffer_forget:0,tune=buffer_threads:3";
        assert_eq!(take(all).unwrap().to_string(), all);
        let settings = take("buffer_age=7,buffer").unwrap().buffer.unwrap().options().settings;
        assert_eq!(settings, CacheSettings { max_age_ms: 7, ..CacheSettings::default() });
        let said =
            take("ro,noatime,threads=3,direct_io,nodev,x-gvfs,tune=name_index:off,require=process").unwrap();
        assert_eq!(
            said.to_string(),
            "ro,nodev,noatime,direct_io,threads=3,require=process,tune=name_index:off"
        );
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
            ("buffer=4K", "1M to 8T"),
            ("buffer=9T", "1M to 8T"),
            ("tier=", "a path"),
            ("log=", "a path"),
            ("mover_limit=slow", "or none"),
            ("inode_cache=4294967296", "1024 to 4294967295"),
            ("tune=buffer_low:101", "percentage"),
            ("tune=buffer_period:0", "milliseconds"),
            ("tune=buffer_forget:86400001", "milliseconds"),
            ("buffer_color=red", "buffer_color"),
            ("tune=color:red", "the names are buffer_low"),
            ("tune=tier_group", "no NAME:VALUE"),
            ("tune=threads:3", "\"threads\" is unknown"),
            ("threads", "threads=N"),
            ("preset=zfs", "the presets are"),
            ("tune=name_index:maybe", "neither on nor off"),
            ("inode_cache=1023", "1024 to 4294967295"),
            ("inode_cache=all", "number of inodes"),
            ("tier_cache=64K", "1 MiB to 1 TiB"),
            ("tier_cache=2T", "1 MiB to 1 TiB"),
            ("tune=tier_group:5000", "whole blocks"),
            ("tune=sync_threshold:512", "4 KiB to 1 TiB"),
            ("tune=large_writes:-1", "0 to 65535"),
            ("tune=read_factor:65536", "0 to 65535"),
            ("tune=read_factor:twice", "read_factor"),
            ("tier_cache=much", "tier_cache"),
            ("mover_hours=22:00", "22:00-06:00"),
            ("mover_hours=night", "mover_hours"),
            ("mover_limit=1K", "4 KiB to 1 TiB, or none"),
            ("mover_limit=slow", "mover_limit"),
            ("anticache=101%", "0% to 100%"),
            ("anticache=50", "50% is a percentage"),
            ("anticache=much", "anticache"),
            ("tune=log_threshold:20", "50 to 100"),
            ("tune=log_threshold:high", "log_threshold"),
            ("tier_threshold=101", "50 to 100"),
            ("tier_threshold=full", "tier_threshold"),
            ("tiers=some", "neither all nor found"),
            ("tune=disk_threshold:101", "0 to 100"),
            ("tune=disk_threshold:-1", "disk_threshold"),
            ("emulate=nothing", "after -o by colons"),
            ("tune=emulate:latency=200,bandwidth=1G", "tune=emulate:latency=200:bandwidth=1G"),
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
        assert!(take("buffer,writeback").unwrap().check().is_err());
        assert!(take("buffer,sync").unwrap().check().is_err());
        assert!(take("buffer,direct_io").unwrap().check().is_ok());
        // They made a buffer of the default size, which nobody had asked for.
        for option in ["buffer_age=7", "tune=buffer_low:1", "tune=buffer_threads:2", "lazy_age=7"] {
            let message = take(option).unwrap().check().unwrap_err();
            assert!(message.contains("buffer_") && message.contains("add \"buffer\""), "{option}: {message}");
            for buffer in ["buffer", "buffer=8M", "lazy"] {
                take(&format!("{option},{buffer}")).unwrap().check().unwrap();
            }
            take(&format!("remount,{option}")).unwrap().check().unwrap();
        }
        assert!(take("buffer,tune=buffer_low:50,tune=buffer_high:40").unwrap().check().is_err());
        assert!(take("writeback,sync,async").unwrap().check().is_ok());
        let message = take("preset=hinfs-wb").unwrap().check().unwrap_err();
        assert!(message.contains("\"buffer\" only"), "{message}");
        assert!(take("preset=hinfs-wb,buffer").unwrap().check().is_ok());
        assert!(
            take("preset=pmfs").unwrap().check().is_ok() && take("preset=nacre").unwrap().check().is_ok()
        );
    }
}
