//! What of a mount that is there can be changed.

use nacre::TierSettings;

use super::{MountSettings, TIER_SETTINGS, tier_options};

impl MountSettings {
    /// What a running mount becomes, and the settings that this names: only those of tiers and of our write buffer can be
    /// changed, but for its size. Whatever else is named must be as it is, as `self` or the kernel says.
    pub(crate) fn remounted(
        &self,
        asked: &MountSettings,
        kernel: &[String],
    ) -> Result<(MountSettings, String), String> {
        // Which tiers there are is looked at below.
        let without_tiers =
            |settings: &MountSettings| MountSettings { tiers: Vec::new(), ..settings.clone() };
        let (is, wanted) = (without_tiers(self).to_string(), without_tiers(asked).to_string());
        let is: Vec<&str> = is.split(',').chain(kernel.iter().map(String::as_str)).collect();
        let can_change = |option: &str| {
            let key = option.split_once('=').map_or(option, |(key, _)| key);
            key.starts_with("lazy") || TIER_SETTINGS.contains(&key)
        };
        let other = |option: &&str| !is.contains(option) && !can_change(option);
        if let Some(option) = wanted.split(',').find(other) {
            return Err(format!(
                "{option:?} cannot be changed while it is mounted; unmount it and mount it anew"
            ));
        }
        if let Some(option) = asked.plain_named.iter().find(|option| self.is_taken_back(asked, option)) {
            return Err(format!(
                "{option:?} cannot be had while it is mounted; unmount it and mount it anew"
            ));
        }
        // What the words of a running mount do not show.
        if asked.emulation.is_some() || asked.log.is_some() {
            return Err("\"emulate\" and \"log\" cannot be changed while it is mounted".into());
        }
        if asked.tiers.iter().any(|tier| !self.tiers.contains(tier)) {
            return Err("tiers of a mount are changed by nacre tier online, add and remove".into());
        }
        let mut changed = self.clone();
        if asked.lazy.is_some() {
            let Some(mut lazy) = self.lazy else {
                return Err("the mount has no write buffer; unmount it and mount it with \"lazy\"".into());
            };
            let size = lazy.size;
            for option in &asked.lazy_named {
                let (key, value) = option.split_once('=').unwrap_or((option, ""));
                lazy.take(key, value)?;
            }
            if lazy.size != size {
                return Err("the size of the write buffer cannot be changed while it is mounted".into());
            }
            changed.lazy = Some(lazy);
        }
        changed.change_tier_settings(&asked.tier_settings);
        changed.check()?;
        let named = asked.lazy_named.iter().cloned().chain(tier_options(&asked.tier_settings));
        Ok((changed, named.collect::<Vec<_>>().join(",")))
    }

    /// Whether an option of a remount, which counts there, takes back what this mount has.
    fn is_taken_back(&self, asked: &MountSettings, option: &str) -> bool {
        match option {
            "rw" => self.read_only && !asked.read_only,
            "dev" => self.dev == Some(false) && asked.dev == Some(true),
            "suid" => self.suid == Some(false) && asked.suid == Some(true),
            "exec" => self.no_exec && !asked.no_exec,
            "async" => self.sync && !asked.sync,
            _ => self.no_atime && !asked.no_atime,
        }
    }

    /// Takes up the settings of tiers that were named.
    fn change_tier_settings(&mut self, asked: &TierSettings) {
        let is = self.tier_settings;
        self.tier_settings = TierSettings {
            cache: asked.cache.or(is.cache),
            group: asked.group.or(is.group),
            sync_threshold: asked.sync_threshold.or(is.sync_threshold),
            large_writes: asked.large_writes.or(is.large_writes),
            read_factor: asked.read_factor.or(is.read_factor),
            balance: asked.balance.or(is.balance),
            mover_hours: asked.mover_hours.or(is.mover_hours),
            mover_limit: asked.mover_limit.or(is.mover_limit),
            log_threshold: asked.log_threshold.or(is.log_threshold),
            tier_threshold: asked.tier_threshold.or(is.tier_threshold),
            disk_threshold: asked.disk_threshold.or(is.disk_threshold),
        };
    }
}

#[cfg(test)]
mod tests {
    use nacre::CacheSettings;

    use super::super::tests::take;

    #[test]
    fn a_remount_changes_the_settings_of_tiers() {
        let running = take("threads=2,tier_cache=8M,tier_balance=off,tier=/srv/disk").unwrap();
        let remount = |options: &str| running.remounted(&take(options).unwrap(), &[]);
        let (changed, named) =
            remount("remount,threads=2,tier_balance=on,tier_group=64K,read_factor=4").unwrap();
        assert_eq!(named, "tier_group=64K,read_factor=4,tier_balance=on");
        assert_eq!(
            changed.to_string(),
            "rw,threads=2,tier_cache=8M,tier_group=64K,read_factor=4,tier_balance=on,tier=/srv/disk"
        );
        // The same, as the server takes it up.
        assert_eq!(remount(&named).unwrap().0, changed);
        // No size is rounded on the way.
        assert_eq!(
            remount("remount,tier_group=1052672,tier_cache=1.5G").unwrap().1,
            "tier_cache=1536M,tier_group=1028K"
        );
        // Without a write buffer, too, and beside one.
        let lazy = take("lazy=64M").unwrap();
        let (changed, named) =
            lazy.remounted(&take("remount,sync_threshold=1M,lazy_age=7").unwrap(), &[]).unwrap();
        assert_eq!(named, "lazy_age=7,sync_threshold=1M");
        assert_eq!(changed.to_string(), "rw,lazy=64M,lazy_age=7,sync_threshold=1M");
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
        let running = take("lazy=64M,lazy_age=2000,threads=2").unwrap();
        let kernel = ["rw", "nosuid", "relatime"].map(str::to_owned);
        let remount = |options: &str| running.remounted(&take(options).unwrap(), &kernel);
        let (changed, named) =
            remount("remount,rw,nosuid,relatime,user_id=0,lazy_low=1,lazy_high=3").unwrap();
        assert_eq!(changed.to_string(), "rw,threads=2,lazy=64M,lazy_low=1,lazy_high=3,lazy_age=2000");
        assert_eq!(named, "lazy_low=1,lazy_high=3");
        // Threads that fit the memory stay, those that are named do not.
        let four = CacheSettings { threads: 4, ..CacheSettings::default() };
        assert_eq!(changed.buffer_settings(four).threads, 4);
        let (fewer, _) = remount("remount,lazy_threads=2").unwrap();
        assert_eq!(fewer.buffer_settings(four).threads, 2);
        let (same, named) = remount("remount,lazy=64M").unwrap();
        assert_eq!((&same, named.as_str()), (&running, "lazy=64M"));
        assert_eq!(remount("remount").unwrap(), (running.clone(), String::new()));
        for (options, word) in [
            ("remount,ro", "\"ro\" cannot be changed"),
            ("remount,noatime", "\"noatime\" cannot be changed"),
            ("remount,threads=3", "\"threads=3\""),
            ("remount,name_index=on", "\"name_index=on\""),
            ("remount,log=/tmp/log", "\"log\""),
            ("remount,emulate=pcm", "\"emulate\""),
            ("remount,lazy=32M", "size"),
            ("remount,lazy_low=90", "lazy_high"),
        ] {
            let message = remount(options).unwrap_err();
            assert!(message.contains(word), "{options}: {message}");
        }
        // What takes back an option that the mount has; where the last word is another one, nothing changes.
        let kernel = ["ro", "noexec", "nosuid", "nodev", "noatime"].map(str::to_owned);
        let strict = take("ro,noexec,nosuid,nodev,noatime,sync").unwrap();
        for back in ["rw", "exec", "suid", "dev", "atime", "relatime", "async"] {
            let options = format!("remount,ro,noexec,nosuid,nodev,noatime,sync,{back}");
            let message = strict.remounted(&take(&options).unwrap(), &kernel).unwrap_err();
            assert!(message.contains(&format!("{back:?}")), "{back}: {message}");
        }
        let twice = "remount,rw,exec,suid,dev,atime,async,ro,noexec,nosuid,nodev,noatime,sync";
        assert!(strict.remounted(&take(twice).unwrap(), &kernel).is_ok());
        let bare = take("threads=2").unwrap();
        let message = bare.remounted(&take("remount,lazy_low=1").unwrap(), &[]).unwrap_err();
        assert!(message.contains("no write buffer"), "{message}");
        let set = changed.buffer_settings(CacheSettings { sync: true, ..CacheSettings::default() });
        assert_eq!((set.low_percent, set.high_percent, set.max_age_ms, set.forget_ms), (1, 3, 2000, 5000));
        assert!(set.sync, "what has no option stays");
        let (forgets, named) = remount("remount,lazy_forget=60000").unwrap();
        assert_eq!(named, "lazy_forget=60000");
        assert_eq!(forgets.buffer_settings(CacheSettings::default()).forget_ms, 60_000);
    }
}
