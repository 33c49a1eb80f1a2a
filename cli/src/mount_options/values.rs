//! The values of options, read from text.

use nacre::{AntiCache, MoverLimit, TierSettings};
use nacre_engine::InodeCache;

use super::{Lazy, NO_LIMIT, as_option};

/// The smallest buffer, in bytes.
const LAZY_MIN: u64 = 1 << 20;
/// The largest buffer, in bytes.
const LAZY_MAX: u64 = 8 << 40;
/// The longest time in settings of the buffer, in milliseconds: a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// The most threads; more answer nothing faster.
const THREADS_MAX: usize = 256;

/// Parses `tiers=`: true if a mount needs all tiers, false if it takes those that are found.
pub(super) fn all_or_found(text: &str) -> Result<bool, String> {
    match text {
        "all" => Ok(true),
        "found" => Ok(false),
        _ => Err(format!("{text:?} is neither all nor found")),
    }
}

pub(super) fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text:?} is neither on nor off")),
    }
}

/// Parses a number of threads.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=THREADS_MAX).contains(count))
        .ok_or_else(|| format!("{text:?} is no number of threads; give 1 to {THREADS_MAX}"))
}

pub(super) fn inodes(text: &str) -> Result<u64, String> {
    let least = InodeCache::MIN_LIMIT;
    text.parse()
        .ok()
        .filter(|count| (least..=u64::from(u32::MAX)).contains(count))
        .ok_or_else(|| format!("{text:?} is no number of inodes; give {least} to {}", u32::MAX))
}

impl Lazy {
    /// Parses one setting; false if it is unknown.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let number = |what: &str, from: u64, to: u64| {
            let parsed = value.parse().ok().filter(|number| (from..=to).contains(number));
            parsed.ok_or_else(|| format!("{value:?} is no {what}; give {from} to {to}"))
        };
        let settings = &mut self.settings;
        match key {
            "lazy" => self.size = lazy_size(value)?,
            "lazy_low" => settings.low_percent = number("percentage", 0, 100)? as u8,
            "lazy_high" => settings.high_percent = number("percentage", 0, 100)? as u8,
            "lazy_period" => settings.period_ms = number("number of milliseconds", 1, DAY_MS)?,
            "lazy_age" => settings.max_age_ms = number("number of milliseconds", 0, DAY_MS)?,
            "lazy_forget" => settings.forget_ms = number("number of milliseconds", 0, DAY_MS)?,
            "lazy_threads" => {
                settings.threads = number("number of threads", 0, 64)? as usize;
                self.names_threads = true;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Parses the size of the write buffer, in bytes.
fn lazy_size(text: &str) -> Result<u64, String> {
    let size = nacre_engine::size::parse(text)?;
    if (LAZY_MIN..=LAZY_MAX).contains(&size) {
        Ok(size)
    } else {
        Err(format!("{text:?} is no size of a write buffer; give 1M to 8T"))
    }
}

pub(super) fn take_tier_setting(settings: &mut TierSettings, key: &str, value: &str) -> Result<(), String> {
    let size = || nacre_engine::size::parse(value);
    match key {
        "tier_cache" => settings.cache = Some(size()?),
        "tier_group" => settings.group = Some(size()?),
        "sync_threshold" => settings.sync_threshold = Some(size()?),
        "large_writes" => {
            let count = value.parse();
            settings.large_writes =
                Some(count.map_err(|_| format!("{value:?} is no number of writes; give 0 to 65535"))?);
        }
        "read_factor" => {
            let factor = value.parse();
            settings.read_factor =
                Some(factor.map_err(|_| format!("{value:?} is no factor; give 0 to 65535"))?);
        }
        "tier_balance" => settings.balance = Some(on_or_off(value)?),
        "mover_hours" => settings.mover_hours = Some(value.parse()?),
        "anticache" => settings.anticache = Some(value.parse()?),
        "disk_threshold" => {
            let percent = value.parse();
            settings.disk_threshold =
                Some(percent.map_err(|_| format!("{value:?} is no percentage; give 0 to 100"))?);
        }
        "log_threshold" | "tier_threshold" => {
            let percent = value.parse();
            let percent = Some(percent.map_err(|_| format!("{value:?} is no percentage; give 50 to 100"))?);
            match key {
                "log_threshold" => settings.log_threshold = percent,
                _ => settings.tier_threshold = percent,
            }
        }
        _ if value == NO_LIMIT => settings.mover_limit = Some(MoverLimit::None),
        _ => {
            let rate = size().map_err(|error| format!("{error}, or none"))?;
            settings.mover_limit = Some(MoverLimit::Rate(rate));
        }
    }
    settings.check().map_err(|error| error.to_string())
}

/// The value of `anticache=` as an option.
pub(super) fn anticache_option(anticache: AntiCache) -> String {
    match anticache {
        AntiCache::Off => "off".to_owned(),
        AntiCache::Size(bytes) => as_option(bytes),
        AntiCache::Percent(percent) => format!("{percent}%"),
    }
}
