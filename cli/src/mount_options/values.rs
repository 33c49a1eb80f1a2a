//! The values of options, read from text and printed.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use nacre::{AntiCache, Emulation, MoverLimit};
use nacre_engine::{InodeCache, size};

/// The sizes that a buffer may have, in bytes.
const BUFFER: RangeInclusive<u64> = 1 << 20..=8 << 40;
/// The longest time in settings of the buffer, in milliseconds: a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// The most threads; more answer nothing faster.
const THREADS_MAX: usize = 256;
/// The value for a mover without a limit.
const NO_LIMIT: &str = "none";

/// Parses a value in the way of its type.
pub(super) fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Parses a number in a range.
pub(super) fn number(text: &str, what: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let parsed = text.parse().ok().filter(|number| range.contains(number));
    parsed.ok_or_else(|| format!("{text:?} is no {what}; give {} to {}", range.start(), range.end()))
}

/// Parses a percentage from `least` to 100.
pub(super) fn percentage(text: &str, least: u64) -> Result<u8, String> {
    number(text, "percentage", least..=100).map(|percent| percent as u8)
}

/// Parses a time of at least `least` and at most a day.
pub(super) fn milliseconds(text: &str, least: u64) -> Result<u64, String> {
    number(text, "number of milliseconds", least..=DAY_MS)
}

/// Parses a number of threads.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    number(text, "number of threads", 1..=THREADS_MAX as u64).map(|count| count as usize)
}

pub(super) fn inodes(text: &str) -> Result<u64, String> {
    number(text, "number of inodes", InodeCache::MIN_LIMIT..=u64::from(u32::MAX))
}

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

pub(super) fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// A path that is not empty.
pub(super) fn path(text: &str) -> Result<&str, String> {
    let path = Some(text).filter(|text| !text.is_empty());
    path.ok_or_else(|| "give a path, as tier=/dev/sdb or log=/var/log/nacre.log".to_owned())
}

/// Parses the size of the write buffer, in bytes.
pub(super) fn size_of_buffer(text: &str) -> Result<u64, String> {
    let size = Some(size::parse(text)?).filter(|size| BUFFER.contains(size));
    size.ok_or_else(|| format!("{text:?} is no size of a write buffer; give 1M to 8T"))
}

/// Parses the limit of the mover.
pub(super) fn rate(text: &str) -> Result<MoverLimit, String> {
    if text == NO_LIMIT {
        return Ok(MoverLimit::None);
    }
    size::parse(text).map(MoverLimit::Rate).map_err(|error| format!("{error}, or {NO_LIMIT}"))
}

pub(super) fn text_of_rate(limit: MoverLimit) -> String {
    match limit {
        MoverLimit::None => NO_LIMIT.to_owned(),
        MoverLimit::Rate(rate) => text_of_size(rate),
    }
}

pub(super) fn text_of_anticache(anticache: AntiCache) -> String {
    match anticache {
        AntiCache::Off => "off".to_owned(),
        AntiCache::Size(bytes) => text_of_size(bytes),
        AntiCache::Percent(percent) => format!("{percent}%"),
    }
}

/// Emulated PM, as after `tune=emulate:`: a preset by its name, another one by its numbers.
pub(super) fn text_of_emulation(emulation: &Emulation) -> String {
    if Emulation::preset(&emulation.name).is_some_and(|preset| preset == *emulation) {
        return emulation.name.to_string();
    }
    let numbers = [
        ("latency", emulation.write_latency_ns),
        ("bandwidth", emulation.write_bandwidth),
        ("read-latency", emulation.read_latency_ns),
        ("read-bandwidth", emulation.read_bandwidth),
    ];
    let numbers = numbers.iter().map(|(name, number)| format!("{name}={number}"));
    let poison = emulation.poison.iter().map(|(offset, len)| format!("poison={offset}+{len}"));
    numbers.chain(poison).collect::<Vec<_>>().join(":")
}

/// A size, as after `-o`.
pub(super) fn text_of_size(size: u64) -> String {
    let units = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];
    let whole = units.into_iter().find(|(_, shift)| size.is_multiple_of(1 << shift));
    whole.map_or_else(|| size.to_string(), |(letter, shift)| format!("{}{letter}", size >> shift))
}
