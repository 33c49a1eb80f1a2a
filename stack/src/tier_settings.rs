//! Settings of how data comes to tiers and from there, for opening a file system.

use std::ops::RangeInclusive;
use std::str::FromStr;

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, size};
use nacre_mover::{Hours, MoverOptions, Rules, Threshold};
use serde::{Deserialize, Serialize};

use crate::preset::Preset;

/// With less nothing would be kept, and no machine has more.
const CACHE: RangeInclusive<u64> = 1 << 20..=1 << 40;
/// From a block on, and no more than a disk writes in a second.
const GROUP: RangeInclusive<u64> = BLOCK_SIZE..=1 << 30;
/// From a block on, and no more than anybody writes between two syncs.
const SYNC_THRESHOLD: RangeInclusive<u64> = BLOCK_SIZE..=1 << 40;
/// From a block on, and more than any disk writes in a second.
const RATE: RangeInclusive<u64> = BLOCK_SIZE..=1 << 40;

/// From where blocks move down at the least, in percent; above 100 nothing is used.
const THRESHOLD: RangeInclusive<u8> = 50..=100;

/// The bytes that the mover moves in a second, at most; direct reclaim is exempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoverLimit {
    /// As much as it can.
    None,
    /// Bytes, 4 KiB to 1 TiB.
    Rate(u64),
}

impl MoverLimit {
    /// A limit of so many bytes, or none. [`InvalidInput`](Kind::InvalidInput) for one that cannot be had.
    pub fn of(rate: Option<u64>) -> Result<MoverLimit> {
        match rate {
            None => Ok(MoverLimit::None),
            Some(rate) if RATE.contains(&rate) => Ok(MoverLimit::Rate(rate)),
            Some(rate) => Err(Error::new(Kind::InvalidInput)
                .object(format!("a limit of {} in a second", size::exact(rate)))
                .advice("give 4 KiB to 1 TiB, or none")),
        }
    }

    fn rate(self) -> Option<u64> {
        match self {
            MoverLimit::None => None,
            MoverLimit::Rate(rate) => Some(rate),
        }
    }
}

/// How much data PM holds with anti-caching: what was not used for longest is on the tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AntiCache {
    /// There is none: blocks move as in TPFS.
    Off,
    /// So many bytes: a block of 4 KiB at least, or 0.
    Size(u64),
    /// So many percent of PM, 0 to 100.
    Percent(u8),
}

impl FromStr for AntiCache {
    type Err = String;

    /// A size, a percentage with its sign, or `off`.
    fn from_str(text: &str) -> std::result::Result<AntiCache, String> {
        if text == "off" {
            return Ok(AntiCache::Off);
        }
        let wrong = |why: String| format!("anticache={text}: {why}; give a size, 0% to 100%, or off");
        match text.strip_suffix('%') {
            Some(percent) => {
                percent.parse().map(AntiCache::Percent).map_err(|_| wrong("no percentage".into()))
            }
            None => size::parse(text).map(AntiCache::Size).map_err(wrong),
        }
    }
}

impl AntiCache {
    /// As AC-BPFS has it.
    pub(crate) const USUAL: AntiCache = AntiCache::Size(40 << 20);

    fn threshold(self) -> Option<Threshold> {
        match self {
            AntiCache::Off => None,
            AntiCache::Size(bytes) => Some(Threshold::Bytes(bytes)),
            AntiCache::Percent(percent) => Some(Threshold::Percent(percent)),
        }
    }
}

/// How data comes to tiers and from there. Settings left open are as in TPFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierSettings {
    /// Bytes of DRAM that keep data read from tiers, 1 MiB to 1 TiB; by default 64 MiB. With a write buffer both are
    /// one budget, bounded by the sum: writes may take half of this, and reads the part that writes do not use.
    pub cache: Option<u64>,
    /// Bytes that are moved as one, whole blocks of 4 KiB, up to 1 GiB; by default 16 MiB.
    pub group: Option<u64>,
    /// A file that is synchronised before so many bytes were written is synchronous, and is never written straight to disk:
    /// whole blocks, up to 1 TiB; by default 4 MiB.
    pub sync_threshold: Option<u64>,
    /// Blocks move for the sake of reads, too. If most reads come from PM, its most-read data moves to DRAM; if most
    /// come from tiers, theirs is promoted. By default they do.
    pub balance: Option<bool>,
    /// Data that was written more often than this in large pieces is written straight to disk; by default 4 times.
    pub large_writes: Option<u16>,
    /// A file is read-dominated, and moves for the sake of reads, when more than so many times its size was read since it was
    /// last written; by default 2.
    #[serde(default)]
    pub read_factor: Option<u16>,
    /// The hours in which blocks move by themselves, in local time; by default always. Outside them they move only for
    /// direct reclaim, and as users request.
    #[serde(default, with = "as_text")]
    pub mover_hours: Option<Hours>,
    /// The bytes that are moved in a second, at most; by default there is no limit.
    #[serde(default)]
    pub mover_limit: Option<MoverLimit>,
    /// The percentage of PM in use above which the logs of files that were not written for long are compacted, 50 to
    /// 100; by default 95. With 100 they are compacted only for direct reclaim.
    #[serde(default)]
    pub log_threshold: Option<u8>,
    /// The percentage of a tier in use above which files on it that were not used for long move to slower ones, 50 to 100; by
    /// default 90. With 100 they stay.
    #[serde(default)]
    pub tier_threshold: Option<u8>,
    /// The percentage of PM in use above which large asynchronous writes go to disk at once, 0 for always to 100. By
    /// default always in the preset `tpfs`, and in others 5 percent below the usage at which blocks are demoted.
    #[serde(default)]
    pub disk_threshold: Option<u8>,
    /// Anti-caching, which takes the place of all other rules; by default 40 MiB in the preset `acbpfs`, and else off.
    #[serde(default)]
    pub anticache: Option<AntiCache>,
    /// With anti-caching, the milliseconds for which a block that was read ahead waits for its first read, at least: up to
    /// twice as long; by default 5000.
    #[serde(default)]
    pub prefetch_age_ms: Option<u64>,
}

impl TierSettings {
    /// Checks the settings. An error names the value out of range, and the range.
    pub fn check(&self) -> Result<()> {
        // All that can be said of the others can be had.
        let Self {
            cache,
            group,
            sync_threshold,
            mover_limit,
            log_threshold,
            tier_threshold,
            disk_threshold,
            anticache,
            ..
        } = *self;
        let rate = mover_limit.and_then(MoverLimit::rate);
        let settings = [
            ("tier_cache", cache, CACHE, 1, "give 1 MiB to 1 TiB"),
            ("tier_group", group, GROUP, BLOCK_SIZE, "give 4 KiB to 1 GiB in whole blocks of 4 KiB"),
            (
                "sync_threshold",
                sync_threshold,
                SYNC_THRESHOLD,
                BLOCK_SIZE,
                "give 4 KiB to 1 TiB in whole blocks of 4 KiB",
            ),
            ("mover_limit", rate, RATE, 1, "give 4 KiB to 1 TiB, or none"),
        ];
        for (name, bytes, range, unit, advice) in settings {
            let Some(bytes) = bytes else { continue };
            if !range.contains(&bytes) || !bytes.is_multiple_of(unit) {
                let object = format!("{name} of {}", size::exact(bytes));
                return Err(Error::new(Kind::InvalidInput).object(object).advice(advice));
            }
        }
        for (name, percent) in [("log_threshold", log_threshold), ("tier_threshold", tier_threshold)] {
            if let Some(percent) = percent.filter(|percent| !THRESHOLD.contains(percent)) {
                let object = format!("{name} of {percent} percent");
                return Err(Error::new(Kind::InvalidInput).object(object).advice("give 50 to 100"));
            }
        }
        if let Some(percent) = disk_threshold.filter(|percent| *percent > 100) {
            let object = format!("disk_threshold of {percent} percent");
            return Err(Error::new(Kind::InvalidInput).object(object).advice("give 0 to 100"));
        }
        let (object, advice) = match anticache {
            Some(AntiCache::Percent(percent @ 101..)) => {
                (format!("anticache of {percent} percent"), "give 0% to 100%")
            }
            // The sign of a percentage was forgotten.
            Some(AntiCache::Size(bytes @ 1..BLOCK_SIZE)) => (
                format!("anticache of {}", size::exact(bytes)),
                "give 4 KiB or more, 0, or a percentage with its sign: 50% is a percentage, and 50 is a size",
            ),
            _ => return Ok(()),
        };
        Err(Error::new(Kind::InvalidInput).object(object).advice(advice))
    }

    /// The settings with those of a preset where they are left open.
    pub(crate) fn in_preset(self, preset: Option<Preset>) -> TierSettings {
        let anticache = self.anticache.or((preset == Some(Preset::Acbpfs)).then_some(AntiCache::USUAL));
        TierSettings { anticache, ..self }
    }

    pub(crate) fn mover_options(&self) -> Result<MoverOptions> {
        self.check()?;
        let (usual, rules) = (MoverOptions::default(), Rules::default());
        let blocks = |bytes: Option<u64>| bytes.map(|bytes| bytes / BLOCK_SIZE);
        Ok(MoverOptions {
            page_cache: self.cache.unwrap_or(usual.page_cache),
            group: blocks(self.group).unwrap_or(usual.group),
            rules: Rules {
                sync_blocks: blocks(self.sync_threshold).unwrap_or(rules.sync_blocks),
                large_writes: self.large_writes.unwrap_or(rules.large_writes),
                read_factor: self.read_factor.map_or(rules.read_factor, u64::from),
                ..rules
            },
            balance: self.balance.unwrap_or(usual.balance),
            hours: self.mover_hours.unwrap_or(usual.hours),
            rate: self.mover_limit.map_or(usual.rate, MoverLimit::rate),
            log_threshold: self.log_threshold.unwrap_or(usual.log_threshold),
            tier_threshold: self.tier_threshold.unwrap_or(usual.tier_threshold),
            disk_threshold: self.disk_threshold,
            anticache: self.anticache.and_then(AntiCache::threshold),
            prefetch_age_ms: self.prefetch_age_ms.unwrap_or(usual.prefetch_age_ms),
            ..usual
        })
    }
}

/// Hours as they are written, `22:00-06:00`.
mod as_text {
    use nacre_mover::Hours;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(hours: &Option<Hours>, serializer: S) -> Result<S::Ok, S::Error> {
        hours.map(|hours| hours.to_string()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Hours>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use nacre_mover::{MoverOptions, Threshold};

    use super::{AntiCache, MoverLimit, TierSettings};
    use crate::preset::Preset;

    #[test]
    fn what_is_said_is_so_and_the_rest_is_as_usual() {
        let usual = MoverOptions::default();
        let none = TierSettings::default();
        assert_eq!(none.mover_options().unwrap(), usual);
        let all = TierSettings {
            cache: Some(8 << 20),
            group: Some(1 << 20),
            sync_threshold: Some(64 << 10),
            large_writes: Some(2),
            read_factor: Some(5),
            balance: Some(false),
            mover_hours: Some("22:00-06:00".parse().unwrap()),
            mover_limit: Some(MoverLimit::Rate(1 << 20)),
            log_threshold: Some(99),
            tier_threshold: Some(60),
            disk_threshold: Some(0),
            anticache: Some(AntiCache::Percent(30)),
            prefetch_age_ms: Some(7),
        };
        let told = all.mover_options().unwrap();
        assert_eq!((told.page_cache, told.group, told.read_ahead), (8 << 20, 256, usual.read_ahead));
        assert!(usual.balance && !told.balance);
        assert_eq!((usual.log_threshold, told.log_threshold), (95, 99));
        assert_eq!((usual.tier_threshold, told.tier_threshold), (90, 60));
        assert_eq!((usual.disk_threshold, told.disk_threshold), (None, Some(0)));
        assert_eq!((told.hours.to_string().as_str(), told.rate), ("22:00-06:00", Some(1 << 20)));
        assert_eq!((usual.prefetch_age_ms, told.prefetch_age_ms), (5000, 7));
        assert_eq!((usual.anticache, told.anticache), (None, Some(Threshold::Percent(30))));
        let of =
            |settings: TierSettings, preset| settings.in_preset(preset).mover_options().unwrap().anticache;
        assert_eq!(of(none, Some(Preset::Acbpfs)), Some(Threshold::Bytes(40 << 20)));
        assert_eq!(of(none, Some(Preset::Bpfs)), None);
        assert_eq!(of(TierSettings { anticache: Some(AntiCache::Off), ..none }, Some(Preset::Acbpfs)), None);
        let none = TierSettings { mover_limit: Some(MoverLimit::None), ..none };
        assert_eq!(none.mover_options().unwrap(), usual);
        let rules = told.rules;
        assert_eq!((rules.sync_blocks, rules.large_writes, rules.read_factor), (16, 2, 5));
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let none = TierSettings::default();
        for (asked, name, can) in [
            (TierSettings { cache: Some(1 << 19), ..none }, "tier_cache of 512 KiB", "1 MiB to 1 TiB"),
            (TierSettings { cache: Some(1 << 41), ..none }, "tier_cache of 2 TiB", "1 MiB to 1 TiB"),
            (TierSettings { group: Some(0), ..none }, "tier_group", "4 KiB to 1 GiB in whole blocks"),
            (TierSettings { group: Some(2 << 30), ..none }, "tier_group of 2 GiB", "to 1 GiB"),
            (TierSettings { group: Some(5000), ..none }, "tier_group", "whole blocks of 4 KiB"),
            (TierSettings { sync_threshold: Some(1), ..none }, "sync_threshold", "4 KiB to 1 TiB"),
            (
                TierSettings { mover_limit: Some(MoverLimit::Rate(9)), ..none },
                "mover_limit of 9 bytes",
                "1 TiB, or none",
            ),
            (TierSettings { disk_threshold: Some(101), ..none }, "disk_threshold of 101", "0 to 100"),
            (
                TierSettings { anticache: Some(AntiCache::Percent(101)), ..none },
                "anticache of 101",
                "0% to 100%",
            ),
            (TierSettings { anticache: Some(AntiCache::Size(50)), ..none }, "anticache of 50", "50% is a"),
            (TierSettings { anticache: Some(AntiCache::Size(4095)), ..none }, "anticache of 4095", "4 KiB"),
            (TierSettings { log_threshold: Some(49), ..none }, "log_threshold of 49", "50 to 100"),
            (TierSettings { log_threshold: Some(101), ..none }, "log_threshold of 101", "50 to 100"),
            (TierSettings { tier_threshold: Some(49), ..none }, "tier_threshold of 49", "50 to 100"),
        ] {
            let error = asked.check().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(can), "{error}");
            assert!(asked.mover_options().is_err());
        }
        for bytes in [0, 4096, 5000] {
            TierSettings { anticache: Some(AntiCache::Size(bytes)), ..none }.check().unwrap();
        }
        for rate in [None, Some(4096), Some(1 << 20)] {
            let mover_limit = Some(MoverLimit::of(rate).unwrap());
            TierSettings { mover_limit, ..none }.check().unwrap();
        }
        assert!(MoverLimit::of(Some(0)).is_err() && MoverLimit::of(Some(u64::MAX)).is_err());
    }
}
