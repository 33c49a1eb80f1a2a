//! The mount options, as the help, the manual page and the reference have them. Options that change nothing are in
//! `without_effect`.

/// One mount option.
pub(crate) struct OptionHelp {
    /// The option as it is written, with the form of its value.
    pub(crate) form: &'static str,
    /// Its meaning, as sentences.
    pub(crate) meaning: &'static str,
    /// The default in words, empty if there is none.
    pub(crate) default: &'static str,
    /// True if a remount can change it.
    pub(crate) remount: bool,
}

impl OptionHelp {
    /// An option that a remount can change.
    const fn live(form: &'static str, default: &'static str, meaning: &'static str) -> OptionHelp {
        OptionHelp { form, meaning, default, remount: true }
    }

    /// An option that stays as long as the mount.
    const fn fixed(form: &'static str, default: &'static str, meaning: &'static str) -> OptionHelp {
        OptionHelp { form, meaning, default, remount: false }
    }

    /// Default and remount, in words; empty if there is nothing to say.
    pub(crate) fn properties(&self) -> String {
        let default = Some(format!("default: {}", self.default)).filter(|_| !self.default.is_empty());
        let remount = Some("remount".to_owned()).filter(|_| self.remount);
        [default, remount].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// All options by groups, each with its title.
pub(crate) const GROUPS: [(&str, &[OptionHelp]); 6] = [
    ("Flags", &FLAGS),
    ("Writes in the kernel", &KERNEL),
    ("The write buffer", &BUFFER),
    ("The mount", &MOUNT),
    ("Tiers", &TIERS),
    ("Moves between PM and tiers", &MOVES),
];

const FLAGS: [OptionHelp; 12] = [
    OptionHelp::live("ro", "", "Refuses every change. rw reverts it."),
    OptionHelp::live(
        "noatime",
        "",
        "Reads do not change access times. relatime, atime and strictatime revert it.",
    ),
    OptionHelp::live("nodev", "on for users, off for root", "Device nodes have no effect. dev reverts it."),
    OptionHelp::live("nosuid", "on for users, off for root", "Set-id bits have no effect. suid reverts it."),
    OptionHelp::live("noexec", "", "No program can be executed. exec reverts it."),
    OptionHelp::live("nosymfollow", "", "Symbolic links are not followed. symfollow reverts it."),
    OptionHelp::fixed(
        "sync",
        "",
        "Each write is durable when it returns. async reverts it before the mount.",
    ),
    OptionHelp::fixed("dirsync", "", "Each change of a directory is durable when it returns."),
    OptionHelp::fixed(
        "direct_io",
        "",
        "Reads and writes bypass the kernel's page cache. It needs Linux 6.6.",
    ),
    OptionHelp::fixed("allow_other", "on for root", "Other users can access the mount."),
    OptionHelp::fixed("nofail", "", "A missing device is no failure."),
    OptionHelp::fixed("remount", "", "Changes the mount that is there, by the options marked \"remount\"."),
];

const KERNEL: [OptionHelp; 1] = [OptionHelp::fixed(
    "writeback",
    "",
    "The kernel buffers writes. fsync(2) and close(2) wait for them; sync(2) and syncfs(2) do not. A full device is \
     reported by fsync(2), by close(2), or by the next write to a file that lost a write. Files cannot be made \
     immutable or append-only, and do not report their holes.",
)];

const BUFFER: [OptionHelp; 7] = [
    OptionHelp::fixed(
        "lazy[=SIZE]",
        "off; 256M without a SIZE",
        "Buffers writes in DRAM, 1M to 8T. fsync(2) makes a file durable; sync(2) does not reach the buffer.",
    ),
    OptionHelp::live(
        "lazy_low=PERCENT",
        "5",
        "Writeback starts below this part of free buffer blocks, 0 to 100.",
    ),
    OptionHelp::live(
        "lazy_high=PERCENT",
        "20",
        "Writeback stops above this part of free buffer blocks, 0 to 100.",
    ),
    OptionHelp::live(
        "lazy_period=MS",
        "5000",
        "The interval of background writeback, and of the retries for a file whose writeback failed.",
    ),
    OptionHelp::live(
        "lazy_age=MS",
        "30000",
        "A block of this age is written back. A repeated write doubles it.",
    ),
    OptionHelp::live(
        "lazy_forget=MS",
        "5000",
        "Blocks that were soon synchronised are buffered again after this time without a sync of their file.",
    ),
    OptionHelp::live("lazy_threads=N", "fitted to the PM", "Threads of writeback, 0 to 64."),
];

const MOUNT: [OptionHelp; 8] = [
    OptionHelp::fixed(
        "preset=NAME",
        "that of mkfs",
        "Layout and policies; the layout must be that of the device.",
    ),
    OptionHelp::fixed(
        "name_index=on|off",
        "that of the preset",
        "An index in DRAM finds names in directories, in the layout inplace.",
    ),
    OptionHelp::fixed(
        "volume=NAME",
        "the only one",
        "The volume of a device with several, as in DEVICE#NAME.",
    ),
    OptionHelp::fixed(
        "threads=N",
        "one a core; 8 at least over tiers",
        "Threads that answer requests, 1 to 256.",
    ),
    OptionHelp::fixed(
        "inode_cache=N",
        "262144",
        "Inodes that are kept in DRAM at most, besides those in use, from 1024 on.",
    ),
    OptionHelp::fixed("log=FILE", "the system's log", "The file for messages from the background."),
    OptionHelp::fixed(
        "emulate=KIND",
        "",
        "Makes the device as slow as this kind of PM. Colons replace commas: emulate=latency=200:bandwidth=1G.",
    ),
    OptionHelp::fixed(
        "require=DOMAIN",
        "none",
        "Refuses a device whose persistence domain is less than this: process, power.",
    ),
];

const TIERS: [OptionHelp; 8] = [
    OptionHelp::fixed(
        "tier=DEVICE[@DISK]",
        "the place of the last mount",
        "The place of a tier, and a disk to be as slow as (nvme:flush=0). It can be given for several tiers.",
    ),
    OptionHelp::fixed("tiers=all|found", "found", "With all, refuses to mount while a tier is missing."),
    OptionHelp::live(
        "tier_cache=SIZE",
        "64M",
        "DRAM for blocks that are read from tiers, 1M to 1T. With lazy, both sizes are one budget.",
    ),
    OptionHelp::live(
        "tier_group=SIZE",
        "16M",
        "The size of a move, 4K to 1G. A move takes one flush of the tier, and one commit of each file.",
    ),
    OptionHelp::live(
        "sync_threshold=SIZE",
        "4M",
        "A file that is synchronised before this much was written is synchronous, 4K to 1T.",
    ),
    OptionHelp::live(
        "large_writes=N",
        "4",
        "Data that was written more often than this in large pieces is large and stable, 0 to 65535.",
    ),
    OptionHelp::live(
        "read_factor=N",
        "2",
        "A file that was read more than N times over since its last write is read-dominated, 0 to 65535. With 0, \
         every file that was read is.",
    ),
    OptionHelp::live("tier_balance=on|off", "on", "Blocks move because they are read."),
];

const MOVES: [OptionHelp; 6] = [
    OptionHelp::live(
        "mover_hours=HH:MM-HH:MM",
        "always",
        "Hours of automatic moves in local time. Several windows have + between them: 12:00-13:00+22:00-06:00.",
    ),
    OptionHelp::live("mover_limit=SIZE", "none", "Bytes that move in a second at most, 4K to 1T, or none."),
    OptionHelp::live(
        "log_threshold=PERCENT",
        "95",
        "Use of PM above which logs of files are compacted, 50 to 100. With 100, only writes that find no room \
         compact them.",
    ),
    OptionHelp::live(
        "tier_threshold=PERCENT",
        "90",
        "Use of a tier above which its least recently used files move to slower tiers, 50 to 100. With 100 they stay.",
    ),
    OptionHelp::live(
        "disk_threshold=PERCENT",
        "0 in tpfs, otherwise 5 below the demotion threshold",
        "Use of PM above which large asynchronous writes go straight to disk, 0 for always to 100.",
    ),
    OptionHelp::live(
        "anticache=SIZE|PERCENT%|off",
        "40M in acbpfs, otherwise off",
        "Data that PM holds at most. Every 10 ms, the blocks above it that were used least recently move to disk; a \
         read brings them back. It takes the place of the other rules by which blocks move.",
    ),
];

/// The help of `nacre mount -o`.
pub(crate) fn text() -> String {
    let mut text =
        "Options as in fstab, separated by commas. Those marked \"remount\" can be changed on a running \
                    mount, with remount."
            .to_owned();
    for (title, options) in GROUPS {
        text += &format!("\n\n{title}:");
        for option in options {
            let properties = Some(option.properties()).filter(|said| !said.is_empty());
            let properties = properties.map_or_else(String::new, |said| format!(" ({said})"));
            text += &format!("\n- {}: {}{properties}", option.form, option.meaning);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::take;
    use super::super::{PLAIN, TIER_SETTINGS};
    use super::{GROUPS, OptionHelp};

    /// A value of each form.
    fn example(option: &OptionHelp) -> String {
        let (name, form) = option.form.split_once('=').unwrap_or((option.form, ""));
        let value = match form {
            "" => return name.to_owned(),
            "SIZE]" => return name.trim_end_matches('[').to_owned() + "=64M",
            "SIZE" | "SIZE|PERCENT%|off" => "64M",
            "PERCENT" if name == "lazy_low" => "10",
            "PERCENT" => "60",
            "MS" => "1000",
            "NAME" => "nova",
            "on|off" => "on",
            "N" if name == "inode_cache" => "5000",
            "N" => "3",
            "FILE" => "/var/log/nacre",
            "KIND" => "pcm",
            "DOMAIN" => "power",
            "DEVICE[@DISK]" => "/srv/disk@nvme:flush=0",
            "all|found" => "all",
            "HH:MM-HH:MM" => "22:00-06:00",
            form => panic!("no value for {form}"),
        };
        format!("{name}={value}")
    }

    fn all() -> impl Iterator<Item = &'static OptionHelp> {
        GROUPS.iter().flat_map(|(_, options)| options.iter())
    }

    fn name(option: &OptionHelp) -> &'static str {
        option.form.split(['=', '[']).next().expect("a name")
    }

    #[test]
    fn each_option_of_the_help_is_known() {
        for option in all() {
            let example = example(option);
            take(&example).unwrap_or_else(|message| panic!("{example}: {message}"));
        }
    }

    #[test]
    fn each_option_that_has_an_effect_is_in_the_help() {
        let named: BTreeSet<&str> = all().map(name).collect();
        let source = include_str!("../mount_options.rs");
        let (_, parser) = source.split_once("fn take_one(").expect("the parser of options");
        let (parser, _) = parser.split_once("\nimpl ").expect("the end of the parser");
        let of_buffer =
            source.split_once("impl Lazy {").and_then(|(_, rest)| rest.split_once("fn lazy_size"));
        let arms = parser.lines().chain(of_buffer.into_iter().flat_map(|(_, rest)| rest.lines()));
        let words = arms
            .filter_map(|line| line.trim_start().strip_prefix('"')?.split_once("\" =>"))
            .flat_map(|(names, _)| names.split("\" | \""));
        // Flags that revert others stand with them. mount(8) makes binds itself.
        let others = "rw dev suid exec atime relatime symfollow async strictatime bind rbind move";
        let with_effect = words.filter(|word| others.split(' ').all(|other| other != *word));
        let missing: Vec<&str> =
            with_effect.chain(TIER_SETTINGS).filter(|word| !named.contains(word)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(named.len() > 35);
    }

    #[test]
    fn a_remount_takes_what_is_marked_so() {
        for option in all().filter(|option| name(option) != "remount") {
            let asked = take(&example(option)).unwrap();
            let is_taken = match PLAIN.contains(&name(option)) {
                true => true,
                // A buffer is asked for beside its settings.
                false => take("lazy=64M").unwrap().remounted(&asked, &[]).is_ok(),
            };
            let is_of_the_mount = ["lazy", "allow_other", "nofail", "tiers"].contains(&name(option));
            assert!(is_taken == option.remount || is_of_the_mount, "{}: {is_taken}", option.form);
        }
    }
}
