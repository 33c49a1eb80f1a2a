//! The settings of a mount, each stated once: name, form of the value, default, meaning, parser and printer. The parser
//! of options, remounts, the help, the manual page and the reference go through this table.
//!
//! Options that change nothing are in `without_effect`.

use std::fmt::Display;

use nacre_engine::size;

use super::values::{
    all_or_found, inodes, milliseconds, number, on_off, on_or_off, parsed, path, percentage, rate,
    size_of_buffer, text_of_anticache, text_of_rate, text_of_size, threads,
};
use super::{Buffer, MountSettings, TierOption};

/// The option within which the settings for experiments stand.
pub(super) const TUNE: &str = "tune";

/// A setting as it was given.
#[derive(Debug, Clone, Copy)]
pub(super) enum Given<'v> {
    /// The name alone.
    On,
    /// A word that reverts a flag.
    Off,
    /// Its value.
    Value(&'v str),
}

impl<'v> Given<'v> {
    fn is_on(self) -> bool {
        !matches!(self, Given::Off)
    }

    /// The value, empty if there is none.
    fn value(self) -> &'v str {
        if let Given::Value(value) = self { value } else { "" }
    }
}

type Take = fn(&mut MountSettings, Given<'_>) -> Result<(), String>;
type Print = fn(&MountSettings) -> Vec<String>;

/// One setting.
pub(crate) struct Setting {
    /// Its name after `-o`, or within `tune=`.
    pub(super) name: &'static str,
    /// The form of its value: empty for a flag, in brackets if it can be left out.
    form: &'static str,
    /// The default in words, empty if there is none.
    pub(crate) default: &'static str,
    /// Its meaning, as sentences.
    pub(crate) meaning: &'static str,
    /// True if a remount can change it.
    pub(crate) remount: bool,
    /// Words that revert this flag.
    pub(super) reverts: &'static [&'static str],
    /// The name that it had before.
    pub(super) old: &'static str,
    /// It draws the figures of papers, and stands within `tune=`.
    pub(super) is_experimental: bool,
    /// Sets it.
    pub(super) take: Take,
    /// Its values as they describe a running mount; none for the default. A flag has an empty one.
    pub(super) print: Print,
}

/// A setting without most of its properties.
const fn setting(
    name: &'static str,
    form: &'static str,
    default: &'static str,
    meaning: &'static str,
    take: Take,
    print: Print,
) -> Setting {
    Setting {
        name,
        form,
        default,
        meaning,
        take,
        print,
        remount: false,
        reverts: &[],
        old: "",
        is_experimental: false,
    }
}

/// A flag.
const fn switch(name: &'static str, meaning: &'static str, take: Take, print: Print) -> Setting {
    setting(name, "", "", meaning, take, print)
}

/// A setting of those for experiments.
const fn experiment(
    name: &'static str,
    form: &'static str,
    default: &'static str,
    meaning: &'static str,
    take: Take,
    print: Print,
) -> Setting {
    Setting { is_experimental: true, ..setting(name, form, default, meaning, take, print) }
}

impl Setting {
    /// A remount can change it.
    const fn live(self) -> Setting {
        Setting { remount: true, ..self }
    }

    const fn usually(self, default: &'static str) -> Setting {
        Setting { default, ..self }
    }

    const fn reverted_by(self, reverts: &'static [&'static str]) -> Setting {
        Setting { reverts, ..self }
    }

    /// It had this name before.
    const fn once(self, old: &'static str) -> Setting {
        Setting { old, ..self }
    }

    pub(super) fn is_flag(&self) -> bool {
        self.form.is_empty() || self.form.starts_with('[')
    }

    pub(super) fn takes_value(&self) -> bool {
        !self.form.is_empty()
    }

    /// It as it is written, with the form of its value.
    pub(crate) fn form(&self) -> String {
        match self.form.strip_prefix('[').and_then(|form| form.strip_suffix(']')) {
            Some(form) => format!("{}[={form}]", self.name),
            None => self.text(self.form),
        }
    }

    /// It with a value, as after `-o`.
    pub(super) fn text(&self, value: &str) -> String {
        match (value, self.is_experimental) {
            ("", _) => self.name.to_owned(),
            (value, true) => format!("{TUNE}={}:{value}", self.name),
            (value, false) => format!("{}={value}", self.name),
        }
    }

    /// It as it describes a running mount.
    pub(super) fn printed(&self, settings: &MountSettings) -> impl Iterator<Item = String> {
        (self.print)(settings).into_iter().map(|value| {
            let text = self.text(&value);
            if text.contains(',') { text.replacen('=', "=\"", 1) + "\"" } else { text }
        })
    }

    /// Default and remount, in words; empty if there is nothing to say.
    pub(crate) fn properties(&self) -> String {
        let default = Some(format!("default: {}", self.default)).filter(|_| !self.default.is_empty());
        let remount = Some("remount".to_owned()).filter(|_| self.remount);
        [default, remount].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// All settings by groups, each with its title.
pub(crate) const GROUPS: [(&str, &[Setting]); 7] = [
    ("Flags", &FLAGS),
    ("Writes in the kernel", &KERNEL),
    ("The write buffer", &BUFFER),
    ("The mount", &MOUNT),
    ("Tiers", &TIERS),
    ("Moves between PM and tiers", &MOVES),
    ("For experiments", &EXPERIMENTS),
];

/// All settings, in the order in which they are printed.
pub(super) fn all() -> impl Iterator<Item = &'static Setting> {
    GROUPS.iter().flat_map(|(_, settings)| settings.iter())
}

/// Puts a value in its place, if it is one.
fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// A flag, printed if it is on.
fn flag(is_on: bool) -> Vec<String> {
    vec![String::new(); usize::from(is_on)]
}

/// A value, printed if it was given.
fn given<T: Display>(value: Option<T>) -> Vec<String> {
    value.iter().map(ToString::to_string).collect()
}

/// A setting of the write buffer, printed if it is not the default.
fn of_buffer(settings: &MountSettings, value: fn(&Buffer) -> u64) -> Vec<String> {
    let differs = |buffer: &Buffer| value(buffer) != value(&Buffer::default());
    given(settings.buffer.as_ref().filter(|buffer| differs(buffer)).map(value))
}

/// For settings that the options of a running mount do not show.
fn unprinted(_: &MountSettings) -> Vec<String> {
    Vec::new()
}

const FLAGS: [Setting; 12] = [
    switch(
        "ro",
        "Refuses every change. rw reverts it.",
        |to, given| put(&mut to.read_only, Ok(given.is_on())),
        // Each line of options begins with it, or with its opposite.
        unprinted,
    )
    .live()
    .reverted_by(&["rw"]),
    switch(
        "nodev",
        "Device nodes have no effect. dev reverts it.",
        |to, given| put(&mut to.dev, Ok(Some(!given.is_on()))),
        |of| flag(of.dev == Some(false)),
    )
    .usually("on for users, off for root")
    .live()
    .reverted_by(&["dev"]),
    switch(
        "nosuid",
        "Set-id bits have no effect. suid reverts it.",
        |to, given| put(&mut to.suid, Ok(Some(!given.is_on()))),
        |of| flag(of.suid == Some(false)),
    )
    .usually("on for users, off for root")
    .live()
    .reverted_by(&["suid"]),
    switch(
        "noexec",
        "No program can be executed. exec reverts it.",
        |to, given| put(&mut to.no_exec, Ok(given.is_on())),
        |of| flag(of.no_exec),
    )
    .live()
    .reverted_by(&["exec"]),
    switch(
        "nosymfollow",
        "Symbolic links are not followed. symfollow reverts it.",
        |to, given| put(&mut to.no_symlinks, Ok(given.is_on())),
        |of| flag(of.no_symlinks),
    )
    .live()
    .reverted_by(&["symfollow"]),
    switch(
        "noatime",
        "Reads do not change access times. relatime, atime and strictatime revert it.",
        |to, given| put(&mut to.no_atime, Ok(given.is_on())),
        |of| flag(of.no_atime),
    )
    .live()
    .reverted_by(&["relatime", "atime", "strictatime"]),
    switch(
        "sync",
        "Each write is durable when it returns. async reverts it before the mount.",
        |to, given| put(&mut to.sync, Ok(given.is_on())),
        |of| flag(of.sync),
    )
    .reverted_by(&["async"]),
    switch(
        "dirsync",
        "Each change of a directory is durable when it returns.",
        |to, _| put(&mut to.dirsync, Ok(true)),
        |of| flag(of.dirsync),
    ),
    switch(
        "direct_io",
        "Reads and writes bypass the kernel's page cache. It needs Linux 6.6.",
        |to, _| put(&mut to.direct_io, Ok(true)),
        |of| flag(of.direct_io),
    ),
    switch(
        "allow_other",
        "Other users can access the mount.",
        |to, _| put(&mut to.allow_other, Ok(Some(true))),
        unprinted,
    )
    .usually("on for root"),
    switch("nofail", "A missing device is no failure.", |to, _| put(&mut to.no_fail, Ok(true)), unprinted),
    switch(
        "remount",
        "Changes the mount that is there, by the options marked \"remount\".",
        |to, _| put(&mut to.remount, Ok(true)),
        unprinted,
    ),
];

const KERNEL: [Setting; 1] = [switch(
    "writeback",
    "The kernel buffers writes. fsync(2) and close(2) wait for them; sync(2) and syncfs(2) do not. A full device is \
     reported by fsync(2), by close(2), or by the next write to a file that lost a write. Files cannot be made \
     immutable or append-only, and do not report their holes.",
    |to, _| put(&mut to.writeback, Ok(true)),
    |of| flag(of.writeback),
)];

const BUFFER: [Setting; 2] = [
    setting(
        "buffer",
        "[SIZE]",
        "off; 256M without a SIZE",
        "Buffers writes in DRAM, 1M to 8T. fsync(2) makes a file durable; sync(2) does not reach the buffer.",
        |to, given| {
            let buffer = to.buffer();
            if let Given::Value(value) = given {
                buffer.size = size_of_buffer(value)?;
            }
            Ok(())
        },
        |of| given(of.buffer.map(|buffer| text_of_size(buffer.size))),
    )
    .once("lazy"),
    setting(
        "buffer_age",
        "MS",
        "30000",
        "A block of this age is written back. A repeated write doubles it.",
        |to, given| put(&mut to.buffer().settings.max_age_ms, milliseconds(given.value(), 0)),
        |of| of_buffer(of, |buffer| buffer.settings.max_age_ms),
    )
    .live()
    .once("lazy_age"),
];

const MOUNT: [Setting; 6] = [
    setting(
        "preset",
        "NAME",
        "that of mkfs",
        "Layout and policies; the layout must be that of the device.",
        |to, given| put(&mut to.preset, parsed(given.value()).map(Some)),
        |of| given(of.preset),
    ),
    setting(
        "volume",
        "NAME",
        "the only one",
        "The volume of a device with several, as in DEVICE#NAME.",
        |to, given| {
            let name = Some(given.value()).filter(|name| !name.is_empty());
            to.volume = Some(name.ok_or("name a volume")?.to_owned());
            Ok(())
        },
        |of| given(of.volume.as_ref()),
    ),
    setting(
        "threads",
        "N",
        "one a core; 8 at least over tiers",
        "Threads that answer requests, 1 to 256.",
        |to, given| put(&mut to.threads, threads(given.value()).map(Some)),
        |of| given(of.threads),
    ),
    setting(
        "inode_cache",
        "N",
        "262144",
        "Inodes that are kept in DRAM at most, besides those in use, from 1024 on.",
        |to, given| put(&mut to.inode_cache, inodes(given.value()).map(Some)),
        |of| given(of.inode_cache),
    ),
    setting(
        "log",
        "FILE",
        "the system's log",
        "The file for messages from the background.",
        |to, given| put(&mut to.log, Ok(Some(path(given.value())?.into()))),
        unprinted,
    ),
    setting(
        "require",
        "DOMAIN",
        "none",
        "Refuses a device whose persistence domain is less than this: process, power.",
        |to, given| put(&mut to.require, parsed(given.value()).map(Some)),
        |of| given(of.require.map(|require| require.as_str())),
    ),
];

const TIERS: [Setting; 4] = [
    setting(
        "tier_cache",
        "SIZE",
        "64M",
        "DRAM for blocks that are read from tiers, 1M to 1T. With buffer, both sizes are one budget.",
        |to, given| put(&mut to.tier_settings.cache, size::parse(given.value()).map(Some)),
        |of| given(of.tier_settings.cache.map(text_of_size)),
    )
    .live(),
    setting(
        "tier_threshold",
        "PERCENT",
        "90",
        "Use of a tier above which its least recently used files move to slower tiers, 50 to 100. With 100 they stay.",
        |to, given| put(&mut to.tier_settings.tier_threshold, percentage(given.value(), 50).map(Some)),
        |of| given(of.tier_settings.tier_threshold),
    )
    .live(),
    setting(
        "tiers",
        "all|found",
        "found",
        "With all, refuses to mount while a tier is missing.",
        |to, given| put(&mut to.all_tiers, all_or_found(given.value())),
        |of| given(of.all_tiers.then_some("all")),
    ),
    setting(
        "tier",
        "DEVICE[@DISK]",
        "the place of the last mount",
        "The place of a tier, and a disk to be as slow as (nvme:flush=0). It can be given for several tiers.",
        |to, given| {
            to.tiers.push(TierOption::parse(path(given.value())?));
            Ok(())
        },
        |of| of.tiers.iter().map(ToString::to_string).collect(),
    ),
];

const MOVES: [Setting; 3] = [
    setting(
        "mover_hours",
        "HH:MM-HH:MM",
        "always",
        "Hours of automatic moves in local time. Several windows have + between them: 12:00-13:00+22:00-06:00.",
        |to, given| put(&mut to.tier_settings.mover_hours, parsed(given.value()).map(Some)),
        |of| given(of.tier_settings.mover_hours),
    )
    .live(),
    setting(
        "mover_limit",
        "SIZE",
        "none",
        "Bytes that move in a second at most, 4K to 1T, or none.",
        |to, given| put(&mut to.tier_settings.mover_limit, rate(given.value()).map(Some)),
        |of| given(of.tier_settings.mover_limit.map(text_of_rate)),
    )
    .live(),
    setting(
        "anticache",
        "SIZE|PERCENT%|off",
        "40M in acbpfs, otherwise off",
        "Data that PM holds at most. Every 10 ms, the blocks above it that were used least recently move to disk; a \
         read brings them back. It takes the place of the other rules by which blocks move.",
        |to, given| put(&mut to.tier_settings.anticache, parsed(given.value()).map(Some)),
        |of| given(of.tier_settings.anticache.map(text_of_anticache)),
    )
    .live(),
];

const EXPERIMENTS: [Setting; 15] = [
    experiment(
        "buffer_low",
        "PERCENT",
        "5",
        "Writeback starts below this part of free buffer blocks, 0 to 100.",
        |to, given| put(&mut to.buffer().settings.low_percent, percentage(given.value(), 0)),
        |of| of_buffer(of, |buffer| buffer.settings.low_percent.into()),
    )
    .live()
    .once("lazy_low"),
    experiment(
        "buffer_high",
        "PERCENT",
        "20",
        "Writeback stops above this part of free buffer blocks, 0 to 100.",
        |to, given| put(&mut to.buffer().settings.high_percent, percentage(given.value(), 0)),
        |of| of_buffer(of, |buffer| buffer.settings.high_percent.into()),
    )
    .live()
    .once("lazy_high"),
    experiment(
        "buffer_period",
        "MS",
        "5000",
        "The interval of background writeback, and of the retries for a file whose writeback failed.",
        |to, given| put(&mut to.buffer().settings.period_ms, milliseconds(given.value(), 1)),
        |of| of_buffer(of, |buffer| buffer.settings.period_ms),
    )
    .live()
    .once("lazy_period"),
    experiment(
        "buffer_forget",
        "MS",
        "5000",
        "Blocks that were soon synchronised are buffered again after this time without a sync of their file.",
        |to, given| put(&mut to.buffer().settings.forget_ms, milliseconds(given.value(), 0)),
        |of| of_buffer(of, |buffer| buffer.settings.forget_ms),
    )
    .live()
    .once("lazy_forget"),
    experiment(
        "buffer_threads",
        "N",
        "fitted to the PM",
        "Threads of writeback, 0 to 64.",
        |to, given| {
            let threads = number(given.value(), "number of threads", 0..=64)?;
            let buffer = to.buffer();
            (buffer.settings.threads, buffer.names_threads) = (threads as usize, true);
            Ok(())
        },
        |of| given(of.buffer.filter(|buffer| buffer.names_threads).map(|buffer| buffer.settings.threads)),
    )
    .live()
    .once("lazy_threads"),
    experiment(
        "name_index",
        "on|off",
        "that of the preset",
        "An index in DRAM finds names in directories, in the layout inplace.",
        |to, given| put(&mut to.name_index, on_or_off(given.value()).map(Some)),
        |of| given(of.name_index.map(on_off)),
    ),
    experiment(
        "emulate",
        "KIND",
        "",
        "Makes the device as slow as this kind of PM, as in tune=emulate:latency=200:bandwidth=1G.",
        |to, given| put(&mut to.emulation, parsed(given.value()).map(Some)),
        unprinted,
    ),
    experiment(
        "tier_group",
        "SIZE",
        "16M",
        "The size of a move, 4K to 1G. A move takes one flush of the tier, and one commit of each file.",
        |to, given| put(&mut to.tier_settings.group, size::parse(given.value()).map(Some)),
        |of| given(of.tier_settings.group.map(text_of_size)),
    )
    .live(),
    experiment(
        "sync_threshold",
        "SIZE",
        "4M",
        "A file that is synchronised before this much was written is synchronous, 4K to 1T.",
        |to, given| put(&mut to.tier_settings.sync_threshold, size::parse(given.value()).map(Some)),
        |of| given(of.tier_settings.sync_threshold.map(text_of_size)),
    )
    .live(),
    experiment(
        "large_writes",
        "N",
        "4",
        "Data that was written more often than this in large pieces is large and stable, 0 to 65535.",
        |to, given| {
            let count = number(given.value(), "number of writes", 0..=u64::from(u16::MAX))?;
            to.tier_settings.large_writes = Some(count as u16);
            Ok(())
        },
        |of| given(of.tier_settings.large_writes),
    )
    .live(),
    experiment(
        "read_factor",
        "N",
        "2",
        "A file that was read more than N times over since its last write is read-dominated, 0 to 65535. With 0, \
         every file that was read is.",
        |to, given| {
            let factor = number(given.value(), "factor", 0..=u64::from(u16::MAX))?;
            to.tier_settings.read_factor = Some(factor as u16);
            Ok(())
        },
        |of| given(of.tier_settings.read_factor),
    )
    .live(),
    experiment(
        "tier_balance",
        "on|off",
        "on",
        "Blocks move because they are read.",
        |to, given| put(&mut to.tier_settings.balance, on_or_off(given.value()).map(Some)),
        |of| given(of.tier_settings.balance.map(on_off)),
    )
    .live(),
    experiment(
        "log_threshold",
        "PERCENT",
        "95",
        "Use of PM above which logs of files are compacted, 50 to 100. With 100, only writes that find no room \
         compact them.",
        |to, given| put(&mut to.tier_settings.log_threshold, percentage(given.value(), 50).map(Some)),
        |of| given(of.tier_settings.log_threshold),
    )
    .live(),
    experiment(
        "disk_threshold",
        "PERCENT",
        "0 in tpfs, otherwise 5 below the demotion threshold",
        "Use of PM above which large asynchronous writes go straight to disk, 0 for always to 100.",
        |to, given| put(&mut to.tier_settings.disk_threshold, percentage(given.value(), 0).map(Some)),
        |of| given(of.tier_settings.disk_threshold),
    )
    .live(),
    experiment(
        "prefetch_age",
        "MS",
        "5000",
        "With anticache, a block that was read ahead to DRAM and not read within this time, or twice that, is dropped.",
        |to, given| put(&mut to.tier_settings.prefetch_age_ms, milliseconds(given.value(), 1).map(Some)),
        |of| given(of.tier_settings.prefetch_age_ms),
    )
    .live(),
];

/// The help of `nacre mount -o`.
pub(crate) fn help() -> String {
    let mut text =
        "Options as in fstab, separated by commas. Those marked \"remount\" can be changed on a running \
                    mount, with remount."
            .to_owned();
    for (title, settings) in GROUPS {
        text += &format!("\n\n{title}:");
        for setting in settings {
            let properties = Some(setting.properties()).filter(|said| !said.is_empty());
            let properties = properties.map_or_else(String::new, |said| format!(" ({said})"));
            text += &format!("\n- {}: {}{properties}", setting.form(), setting.meaning);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::take;
    use super::{Setting, all};

    /// A value of each form.
    fn example(setting: &Setting) -> String {
        let value = match setting.form {
            "" => "",
            "[SIZE]" | "SIZE" | "SIZE|PERCENT%|off" => "64M",
            "PERCENT" if setting.name == "buffer_low" => "10",
            "PERCENT" => "60",
            "MS" => "1000",
            "NAME" => "nova",
            "on|off" => "on",
            "N" if setting.name == "inode_cache" => "5000",
            "N" => "3",
            "FILE" => "/var/log/nacre",
            "KIND" => "pcm",
            "DOMAIN" => "power",
            "DEVICE[@DISK]" => "/srv/disk@nvme:flush=0",
            "all|found" => "all",
            "HH:MM-HH:MM" => "22:00-06:00",
            form => panic!("no value for {form}"),
        };
        setting.text(value)
    }

    #[test]
    fn each_setting_is_known_and_prints_itself() {
        let unprinted = ["allow_other", "nofail", "remount", "log", "emulate"];
        for setting in all() {
            let example = example(setting);
            let taken = take(&example).unwrap_or_else(|message| panic!("{example}: {message}"));
            let printed = taken.to_string();
            assert_eq!(
                printed.split(',').any(|option| option == example),
                !unprinted.contains(&setting.name),
                "{example}: {printed}"
            );
            assert!(taken.notices().is_empty(), "{example}: {:?}", taken.notices());
            for word in setting.reverts {
                take(word).unwrap_or_else(|message| panic!("{word}: {message}"));
            }
        }
    }

    /// The names before still work, with a notice of the new one.
    #[test]
    fn old_names_are_taken_with_a_notice() {
        let mut count = 0;
        for setting in all().filter(|setting| setting.is_experimental || !setting.old.is_empty()) {
            let example = example(setting);
            let value = example.split_once([':', '=']).map_or("", |(_, value)| value);
            let value =
                if setting.is_experimental { value.split_once(':').expect("a value").1 } else { value };
            let old = if setting.old.is_empty() { setting.name } else { setting.old };
            let taken = take(&format!("{old}={value}")).unwrap();
            assert_eq!(taken.to_string(), take(&example).unwrap().to_string());
            let [notice] = taken.notices() else { panic!("{old}: {:?}", taken.notices()) };
            assert!(notice.contains(&format!("{old}=")) && notice.contains(&example), "{notice}");
            count += 1;
        }
        assert_eq!(count, 17);
        assert!(take("lazy").unwrap().notices()[0].contains("buffer"));
    }

    #[test]
    fn no_name_stands_for_two_settings() {
        let mut seen = BTreeSet::new();
        for setting in all() {
            for name in
                [setting.name, setting.old].iter().chain(setting.reverts).filter(|name| !name.is_empty())
            {
                assert!(seen.insert(*name), "{name}");
            }
        }
    }

    #[test]
    fn a_remount_takes_what_is_marked_so() {
        for setting in all().filter(|setting| setting.name != "remount") {
            let asked = take(&example(setting)).unwrap();
            let is_taken = match setting.form.is_empty() && setting.remount {
                true => true,
                // A buffer is asked for beside its settings.
                false => take("buffer=64M").unwrap().remounted(&asked, &[]).is_ok(),
            };
            let is_of_the_mount = ["buffer", "allow_other", "nofail"].contains(&setting.name);
            assert!(is_taken == setting.remount || is_of_the_mount, "{}: {is_taken}", setting.form());
        }
    }
}
