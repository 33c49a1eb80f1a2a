//! Changes of a running mount: the flags of the kernel, the settings of tiers, and those of the write buffer.

use std::path::PathBuf;

use nacre_control::MountInfo;
use nacre_fuse::mounts::MountEntry;
use rustix::mount::MountFlags;

use super::table::{self, Given, Setting};
use super::values::{text_of_emulation, text_of_size};
use super::{Buffer, MountSettings};

/// The setting with the size of the write buffer.
const BUFFER: &str = "buffer";

impl MountSettings {
    /// The kernel's flags of a mount with these settings after this remount. A flag that is not named stays. With
    /// `all`, as mount(8) hands flags on, it is off, except for read-only and access times.
    pub(crate) fn flags_after(&self, is: MountFlags, all: bool) -> MountFlags {
        let named = |words: &[&str]| self.flags_named.iter().any(|word| words.contains(word));
        let flags = [
            (MountFlags::RDONLY, self.read_only, named(&["ro", "rw"])),
            (MountFlags::NODEV, self.dev == Some(false), all || named(&["nodev", "dev"])),
            (MountFlags::NOSUID, self.suid == Some(false), all || named(&["nosuid", "suid"])),
            (MountFlags::NOEXEC, self.no_exec, all || named(&["noexec", "exec"])),
            (MountFlags::NOSYMFOLLOW, self.no_symlinks, all || named(&["nosymfollow", "symfollow"])),
            (MountFlags::NOATIME, self.no_atime, named(&["noatime", "atime", "relatime", "strictatime"])),
        ];
        let mut after = is;
        for (flag, is_set, counts) in flags {
            if counts {
                after.set(flag, is_set);
            }
        }
        after.set(MountFlags::RELATIME, !after.contains(MountFlags::NOATIME));
        after
    }

    /// Adopts the kernel's flags of a mount.
    pub(crate) fn take_up_flags(&mut self, entry: &MountEntry) {
        let is = kernel_flags(entry);
        self.read_only = is.contains(MountFlags::RDONLY);
        self.no_exec = is.contains(MountFlags::NOEXEC);
        self.no_symlinks = is.contains(MountFlags::NOSYMFOLLOW);
        self.no_atime = is.contains(MountFlags::NOATIME);
        for (setting, flag) in [(&mut self.dev, MountFlags::NODEV), (&mut self.suid, MountFlags::NOSUID)] {
            // A flag that was never named stays unnamed while it is off.
            *setting = if is.contains(flag) { Some(false) } else { setting.and(Some(true)) };
        }
    }

    /// Settings that the options of a running mount do not show: the log, and the emulated PM.
    pub(crate) fn unshown(&self) -> (Option<String>, Option<String>) {
        let log = self.log.as_ref().map(|log| log.display().to_string());
        (log, self.emulation.as_ref().map(text_of_emulation))
    }

    /// Adopts these settings from a mount. mount(8) adds the options of fstab to each remount, these included.
    pub(crate) fn take_unshown(&mut self, mount: &MountInfo) {
        self.log = mount.log.as_ref().map(PathBuf::from);
        self.emulation = mount.emulate.as_ref().and_then(|text| text.parse().ok());
    }

    /// The settings of a running mount after a remount, and the settings that the remount names. A remount can change
    /// settings of tiers and of the write buffer, except for the buffer's size. Any other named setting must be as in
    /// `self` or in the kernel, otherwise the remount is an error. Flags of the kernel are the matter of
    /// [`flags_after`](MountSettings::flags_after).
    pub(crate) fn remounted(
        &self,
        asked: &MountSettings,
        kernel: &[String],
    ) -> Result<(MountSettings, String), String> {
        // Tiers and the buffer are looked at below.
        let is_fixed = |setting: &&Setting| !setting.remount && !["tier", BUFFER].contains(&setting.name);
        for setting in table::all().filter(is_fixed) {
            let is: Vec<String> = setting.printed(self).collect();
            if let Some(option) =
                setting.printed(asked).find(|option| !is.contains(option) && !kernel.contains(option))
            {
                return Err(format!(
                    "{option:?} cannot be changed while it is mounted; unmount it and mount it again"
                ));
            }
        }
        if asked.flags_named.contains(&"async") && self.sync && !asked.sync {
            return Err("\"async\" cannot be set while it is mounted; unmount it and mount it again".into());
        }
        for (name, is_other) in [
            ("emulate", asked.emulation.is_some() && asked.emulation != self.emulation),
            ("log", asked.log.is_some() && asked.log != self.log),
        ] {
            if is_other {
                return Err(format!(
                    "{name:?} cannot be changed while it is mounted; unmount it and mount it again"
                ));
            }
        }
        if asked.tiers.iter().any(|tier| !self.tiers.contains(tier)) {
            return Err("tiers of a mount are changed by nacre tier online, add and remove".into());
        }
        if asked.buffer.is_some() && self.buffer.is_none() {
            return Err("the mount has no write buffer; unmount it and mount it with \"buffer\"".into());
        }
        let (mut changed, mut named) = (self.clone(), Vec::new());
        for setting in table::all().filter(|setting| setting.remount || setting.name == BUFFER) {
            // The last one counts.
            let given = asked.named.iter().rev().find(|(name, _)| *name == setting.name);
            if let Some((_, value)) = given {
                (setting.take)(&mut changed, Given::Value(value))?;
                named.push(setting.text(value));
            }
        }
        let size = |settings: &MountSettings| settings.buffer.map(|Buffer { size, .. }| size);
        if let Some(is) = size(self).filter(|_| size(&changed) != size(self)) {
            return Err(format!(
                "the size of the write buffer cannot be changed while it is mounted: it is {BUFFER}={}; unmount it and mount it again",
                text_of_size(is)
            ));
        }
        changed.check()?;
        Ok((changed, named.join(",")))
    }
}

/// The flags of a mount, as in the kernel's table. The read-only flag is that of the file system.
pub(crate) fn kernel_flags(entry: &MountEntry) -> MountFlags {
    let names = [
        ("nodev", MountFlags::NODEV),
        ("nosuid", MountFlags::NOSUID),
        ("noexec", MountFlags::NOEXEC),
        ("nosymfollow", MountFlags::NOSYMFOLLOW),
        ("noatime", MountFlags::NOATIME),
        ("nodiratime", MountFlags::NODIRATIME),
        ("relatime", MountFlags::RELATIME),
    ];
    let mut flags = MountFlags::empty();
    for (_, flag) in names.iter().filter(|(name, _)| entry.flags.iter().any(|flag| flag == name)) {
        flags |= *flag;
    }
    let of_all = [("ro", MountFlags::RDONLY), ("sync", MountFlags::SYNCHRONOUS)];
    for (_, flag) in of_all.iter().filter(|(name, _)| entry.super_flags.iter().any(|flag| flag == name)) {
        flags |= *flag;
    }
    flags
}

#[cfg(test)]
mod tests {
    use nacre::{CacheSettings, Emulation};
    use nacre_control::MountInfo;
    use nacre_fuse::mounts;
    use rustix::mount::MountFlags;

    use super::kernel_flags;

    use super::super::tests::take;

    #[test]
    fn a_remount_changes_the_settings_of_tiers() {
        let running = take("threads=2,tier_cache=8M,tune=tier_balance:off,tier=/srv/disk").unwrap();
        let remount = |options: &str| running.remounted(&take(options).unwrap(), &[]);
        let (changed, named) = remount(
            "remount,threads=2,tune=tier_balance:on,tune=tier_group:64K,tier_threshold=60,tune=tier_balance:off",
        )
        .unwrap();
        assert_eq!(
            named, "tier_threshold=60,tune=tier_group:64K,tune=tier_balance:off",
            "the last one counts"
        );
        assert_eq!(
            changed.to_string(),
            "rw,threads=2,tier_cache=8M,tier_threshold=60,tier=/srv/disk,tune=tier_group:64K,tune=tier_balance:off"
        );
        // The same, as the server takes it up.
        assert_eq!(remount(&named).unwrap().0, changed);
        // No size is rounded on the way.
        assert_eq!(
            remount("remount,tier_group=1052672,tier_cache=1.5G").unwrap().1,
            "tier_cache=1.5G,tune=tier_group:1052672"
        );
        // Without a write buffer, too, and beside one.
        let buffered = take("buffer=64M").unwrap();
        let (changed, named) =
            buffered.remounted(&take("remount,tune=sync_threshold:1M,buffer_age=7").unwrap(), &[]).unwrap();
        assert_eq!(named, "buffer_age=7,tune=sync_threshold:1M");
        assert_eq!(changed.to_string(), "rw,buffer=64M,buffer_age=7,tune=sync_threshold:1M");
        assert_eq!(remount("remount").unwrap(), (running.clone(), String::new()));
        // Hours and limits are taken back, too.
        let nights = take("mover_hours=22:00-06:00,mover_limit=1M").unwrap();
        let always = take("remount,mover_hours=always,mover_limit=none").unwrap();
        let (always, named) = nights.remounted(&always, &[]).unwrap();
        assert_eq!(named, "mover_hours=always,mover_limit=none");
        assert_eq!(always.to_string(), "rw,mover_hours=always,mover_limit=none");
        assert_eq!(nights.remounted(&take("remount").unwrap(), &[]).unwrap().0, nights);
        let message = remount("remount,tier=/srv/other").unwrap_err();
        assert!(message.contains("nacre tier online"), "{message}");
    }

    #[test]
    fn a_remount_changes_the_write_buffer_and_nothing_else() {
        let running = take("buffer=64M,buffer_age=2000,threads=2").unwrap();
        let kernel = ["rw", "nosuid", "relatime"].map(str::to_owned);
        let remount = |options: &str| running.remounted(&take(options).unwrap(), &kernel);
        let (changed, named) =
            remount("remount,rw,nosuid,relatime,user_id=0,tune=buffer_low:1,tune=buffer_high:3").unwrap();
        assert_eq!(
            changed.to_string(),
            "rw,buffer=64M,buffer_age=2000,threads=2,tune=buffer_low:1,tune=buffer_high:3"
        );
        assert_eq!(named, "tune=buffer_low:1,tune=buffer_high:3");
        // Threads that fit the memory stay, those that are named do not.
        let four = CacheSettings { threads: 4, ..CacheSettings::default() };
        assert_eq!(changed.buffer_settings(four).threads, 4);
        let (fewer, _) = remount("remount,tune=buffer_threads:2").unwrap();
        assert_eq!(fewer.buffer_settings(four).threads, 2);
        let (same, named) = remount("remount,buffer=64M").unwrap();
        assert_eq!((&same, named.as_str()), (&running, "buffer=64M"));
        assert_eq!(remount("remount").unwrap(), (running.clone(), String::new()));
        for (options, word) in [
            ("remount,sync", "\"sync\" cannot be changed"),
            ("remount,dirsync", "\"dirsync\" cannot be changed"),
            ("remount,threads=3", "\"threads=3\""),
            ("remount,tune=name_index:on", "\"tune=name_index:on\""),
            ("remount,log=/tmp/log", "\"log\""),
            ("remount,emulate=pcm", "\"emulate\""),
            ("remount,buffer=32M", "size"),
            ("remount,tune=buffer_low:90", "buffer_high"),
        ] {
            let message = remount(options).unwrap_err();
            assert!(message.contains(word), "{options}: {message}");
        }
        let sync = take("sync").unwrap();
        let message = sync.remounted(&take("remount,sync,async").unwrap(), &kernel).unwrap_err();
        assert!(message.contains("\"async\""), "{message}");
        assert!(sync.remounted(&take("remount,async,sync").unwrap(), &kernel).is_ok());
        let bare = take("threads=2").unwrap();
        let message = bare.remounted(&take("remount,tune=buffer_low:1").unwrap(), &[]).unwrap_err();
        assert!(message.contains("no write buffer"), "{message}");
        let set = changed.buffer_settings(CacheSettings { sync: true, ..CacheSettings::default() });
        assert_eq!((set.low_percent, set.high_percent, set.max_age_ms, set.forget_ms), (1, 3, 2000, 5000));
        assert!(set.sync, "what has no option stays");
        let (forgets, named) = remount("remount,tune=buffer_forget:60000").unwrap();
        assert_eq!(named, "tune=buffer_forget:60000");
        assert_eq!(forgets.buffer_settings(CacheSettings::default()).forget_ms, 60_000);
    }

    /// mount(8) adds the options of fstab to each remount: with one of these it was refused.
    #[test]
    fn a_remount_may_name_the_log_and_the_emulation_that_there_are() {
        let emulations = Emulation::presets().map(|(name, _)| name).chain([
            "pcm:latency=500",
            "latency=200:bandwidth=1.5G",
            "optane:factor=0.3:poison=4096+64:poison=8192+1",
            "latency=0",
        ]);
        for emulation in emulations {
            let options = format!("log=/var/log/nacre,tune=emulate:{emulation}");
            let served = take(&options).unwrap();
            let (log, emulate) = served.unshown();
            // As the command has it from the server.
            let mut running = take(&served.to_string()).unwrap();
            running.take_unshown(&MountInfo { log, emulate, ..MountInfo::default() });
            let remount = |options: &str| running.remounted(&take(options).unwrap(), &[]);
            let (changed, named) = remount(&format!("remount,ro,{options}")).unwrap();
            assert_eq!((&changed, named.as_str()), (&running, ""), "{emulation}");
            for (other, word) in
                [("log=/var/log/other", "\"log\" cannot"), ("tune=emulate:latency=7", "\"emulate\" cannot")]
            {
                let message = remount(&format!("remount,{other}")).unwrap_err();
                assert!(message.contains(word), "{other}: {message}");
            }
        }
    }

    #[test]
    fn a_remount_changes_flags_of_the_kernel() {
        let line = |flags: &str, of_all: &str| {
            let line = format!("77 29 0:61 / /mnt {flags} - fuse.nacre /dev/pmem0 {of_all},user_id=0");
            mounts::in_table(line.as_bytes()).remove(0)
        };
        let entry = line("ro,nosuid,noatime", "rw,sync");
        let is = kernel_flags(&entry);
        assert_eq!(is, MountFlags::NOSUID | MountFlags::NOATIME | MountFlags::SYNCHRONOUS);
        let after = |options: &str, all| take(options).unwrap().flags_after(is, all);
        let kept = MountFlags::SYNCHRONOUS;
        assert_eq!(after("remount", false), is);
        assert_eq!(after("remount,ro,noexec", false), is | MountFlags::RDONLY | MountFlags::NOEXEC);
        assert_eq!(after("remount,suid,relatime", false), kept | MountFlags::RELATIME);
        // The last word counts.
        assert_eq!(
            after("remount,ro,noatime,rw,atime,nosuid", false),
            kept | MountFlags::RELATIME | MountFlags::NOSUID
        );
        // mount(8) leaves out what is off.
        assert_eq!(after("rw,remount,nodev", true), kept | MountFlags::NODEV | MountFlags::NOATIME);
        // The server takes up the flags that the kernel says, and says the same.
        let mut settings = take("nodev,buffer=64M").unwrap();
        settings.take_up_flags(&line("rw,nosuid,noexec,nosymfollow,relatime", "ro"));
        assert_eq!(settings.to_string(), "ro,nosuid,noexec,nosymfollow,buffer=64M");
        settings.take_up_flags(&line("rw,relatime", "rw"));
        assert_eq!(settings.to_string(), "rw,buffer=64M");
    }
}
