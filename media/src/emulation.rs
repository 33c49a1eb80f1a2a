//! The persistent memory to emulate: latencies and bandwidths, by name or by numbers.
//!
//! The model is that of HiNFS (paper 000, section 5.1): PM is slower than DRAM by a delay for each line that is
//! flushed or stored past the cache, and all writers together have a bandwidth.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use nacre_engine::{Error, Kind, LINE_SIZE};

/// Latencies in nanoseconds, bandwidths in bytes per second over all threads; 0 is no delay and no cap.
///
/// A latency is the whole time of an access: the time that the underlying DRAM or PM took is deducted from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emulation {
    /// The name of the preset, or `custom`.
    pub name: Cow<'static, str>,
    /// For each line that is flushed or stored past the cache.
    pub write_latency_ns: u64,
    /// Cap on the sum of all writers.
    pub write_bandwidth: u64,
    /// For the first line of a read that misses the CPU's caches.
    pub read_latency_ns: u64,
    /// Cap on the sum of all readers.
    pub read_bandwidth: u64,
    /// Bytes that cannot be accessed, as after an uncorrectable error of the hardware: offset and length. Their lines
    /// are good again when their whole block of 4096 bytes is written.
    pub poison: Vec<(u64, u64)>,
}

/// One row of the table of presets.
struct Preset {
    name: &'static str,
    write_latency_ns: u64,
    write_bandwidth: u64,
    read_latency_ns: u64,
    read_bandwidth: u64,
    /// Where the numbers come from.
    source: &'static str,
}

const GB: u64 = 1_000_000_000;

/// Every number of every preset.
const PRESETS: [Preset; 5] = [
    Preset {
        name: "dram",
        write_latency_ns: 0,
        write_bandwidth: 0,
        read_latency_ns: 0,
        read_bandwidth: 0,
        source: "no delay; counts stores, flushes and fences only",
    },
    Preset {
        name: "pcm",
        write_latency_ns: 200,
        write_bandwidth: GB,
        read_latency_ns: 0,
        read_bandwidth: 0,
        source: "HiNFS, section 5.1: 200 ns a line and 1 GB/s, reads as DRAM",
    },
    Preset {
        name: "optane",
        write_latency_ns: 52,
        write_bandwidth: 12_200_000_000,
        read_latency_ns: 300,
        read_bandwidth: 43_800_000_000,
        source: "TPFS, table 1: 0.3 us to read; figure 7: 43.8 and 12.2 GB/s, writes saturated by ten threads, \
                 which is a line in 52 ns for each; factor=N scales the bandwidths to fewer modules than its twelve",
    },
    Preset {
        name: "reram",
        write_latency_ns: 200,
        write_bandwidth: GB,
        read_latency_ns: 0,
        read_bandwidth: 0,
        source: "HiNFS, section 1: writes slower than DRAM as those of PCM, reads alike; no figures of its own",
    },
    Preset {
        name: "stt",
        write_latency_ns: 50,
        write_bandwidth: 0,
        read_latency_ns: 0,
        read_bandwidth: 0,
        source: "the comparison of file systems (paper 003), section IV: latency and bandwidth similar to DRAM; \
                 50 ns is the low end of its sweep of write latencies",
    },
];

const ADVICE: &str = "give dram, pcm, optane, reram or stt, and settings such as latency=200,bandwidth=1G,\
                      read-latency=300,read-bandwidth=2G,factor=0.1,poison=4096+64, separated by commas or colons (after -o by colons: a comma \
                      ends a mount option)";

impl Emulation {
    /// The preset with this name.
    pub fn preset(name: &str) -> Option<Emulation> {
        let preset = PRESETS.iter().find(|preset| preset.name == name)?;
        Some(Emulation {
            name: Cow::Borrowed(preset.name),
            write_latency_ns: preset.write_latency_ns,
            write_bandwidth: preset.write_bandwidth,
            read_latency_ns: preset.read_latency_ns,
            read_bandwidth: preset.read_bandwidth,
            poison: Vec::new(),
        })
    }

    /// Name and source of every preset.
    pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
        PRESETS.iter().map(|preset| (preset.name, preset.source))
    }

    /// True when accesses are delayed, and not only counted.
    pub fn delays(&self) -> bool {
        self.write_latency_ns | self.write_bandwidth | self.read_latency_ns | self.read_bandwidth != 0
    }

    /// Writers that together have the whole bandwidth, each with one line at a time; 1 where there is no cap.
    pub fn writers(&self) -> u64 {
        (self.write_bandwidth as f64 * self.write_latency_ns as f64 / 1e9 / LINE_SIZE as f64).ceil().max(1.0)
            as u64
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "latency" | "write-latency" => self.write_latency_ns = nanoseconds(value)?,
            "read-latency" => self.read_latency_ns = nanoseconds(value)?,
            "bandwidth" | "write-bandwidth" => self.write_bandwidth = bandwidth(value)?,
            "read-bandwidth" => self.read_bandwidth = bandwidth(value)?,
            "factor" => {
                let factor: f64 = value.parse().ok().filter(|factor| (1e-6..=1e6).contains(factor))?;
                for bandwidth in [&mut self.write_bandwidth, &mut self.read_bandwidth] {
                    *bandwidth = (*bandwidth as f64 * factor) as u64;
                }
            }
            "poison" => {
                let (offset, len) = value.split_once('+')?;
                self.poison.push((offset.parse().ok()?, len.parse().ok().filter(|&len| len > 0)?));
            }
            _ => return None,
        }
        Some(())
    }
}

/// The separators of settings. Mount options have colons there, because a comma ends an option in every parser of them.
pub(crate) const SEPARATORS: [char; 2] = [',', ':'];

/// Reads a preset's name, settings, or a name and settings that change it: `pcm`, `latency=200,bandwidth=1G`,
/// `pcm:latency=500`.
impl FromStr for Emulation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Emulation, Error> {
        let wrong = |part: &str| {
            Error::new(Kind::InvalidInput)
                .object(format!("emulation \"{text}\", at \"{part}\""))
                .advice(ADVICE)
        };
        let mut emulation = Emulation::preset("dram").expect("a preset");
        for (index, part) in text.split(SEPARATORS).enumerate() {
            match part.split_once('=') {
                Some((key, value)) => {
                    emulation.set(key.trim(), value.trim()).ok_or_else(|| wrong(part))?;
                    emulation.name = Cow::Borrowed("custom");
                }
                None if index == 0 => {
                    emulation = Emulation::preset(part.trim()).ok_or_else(|| wrong(part))?
                }
                None => return Err(wrong(part)),
            }
        }
        Ok(emulation)
    }
}

impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if !self.delays() {
            return f.write_str(" (no delay)");
        }
        write!(f, " (write {} ns a line", self.write_latency_ns)?;
        for (what, rate) in [("", self.write_bandwidth), ("read ", self.read_bandwidth)] {
            if rate != 0 {
                write!(f, ", {what}{:.2} GB/s", rate as f64 / GB as f64)?;
            }
        }
        if self.read_latency_ns != 0 {
            write!(f, ", read {} ns", self.read_latency_ns)?;
        }
        f.write_str(")")
    }
}

pub(crate) fn nanoseconds(text: &str) -> Option<u64> {
    let number: u64 = text.strip_suffix("ns").unwrap_or(text).trim().parse().ok()?;
    (number <= GB).then_some(number)
}

/// Bytes per second, with a decimal unit: `800M`, `1G`, `1.5G`.
pub(crate) fn bandwidth(text: &str) -> Option<u64> {
    let text = text.strip_suffix("/s").unwrap_or(text).trim();
    let text = text.strip_suffix(['B', 'b']).unwrap_or(text);
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        _ => return None,
    };
    let rate = digits.trim().parse::<f64>().ok()? * unit;
    (rate == 0.0 || (1e3..=1e15).contains(&rate)).then_some(rate as u64)
}

#[cfg(test)]
mod tests {
    use super::Emulation;

    #[test]
    fn names_and_numbers_are_read() {
        let pcm: Emulation = "pcm".parse().unwrap();
        assert_eq!((pcm.write_latency_ns, pcm.write_bandwidth, &*pcm.name), (200, 1_000_000_000, "pcm"));
        assert_eq!(pcm.to_string(), "pcm (write 200 ns a line, 1.00 GB/s)");
        let writers = |text: &str| text.parse::<Emulation>().unwrap().writers();
        assert_eq!((pcm.writers(), writers("pcm,latency=800"), writers("latency=800")), (4, 13, 1));
        let custom: Emulation = "latency=50ns, bandwidth=1.5GB/s,read-latency=300".parse().unwrap();
        assert_eq!(
            (custom.write_latency_ns, custom.write_bandwidth, custom.read_latency_ns),
            (50, 1_500_000_000, 300)
        );
        assert_eq!(custom.name, "custom");
        let colons: Emulation = "latency=50ns:bandwidth=1.5GB/s:read-latency=300".parse().unwrap();
        assert_eq!(colons, custom);
        let slower: Emulation = "optane,factor=0.5,latency=100".parse().unwrap();
        assert_eq!((slower.write_latency_ns, slower.write_bandwidth), (100, 6_100_000_000));
        let bad: Emulation = "dram,poison=4096+64,poison=8192+1".parse().unwrap();
        assert_eq!(bad.poison, [(4096, 64), (8192, 1)]);
        let dram: Emulation = "dram".parse().unwrap();
        assert!(!dram.delays());
        for (name, source) in Emulation::presets() {
            assert!(!source.is_empty() && Emulation::preset(name).is_some());
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_place() {
        for text in [
            "",
            "flash",
            "latency",
            "poison=7",
            "poison=1+0",
            "pcm,optane",
            "latency=fast",
            "bandwidth=1X",
            "speed=1",
            "bandwidth=-1",
        ] {
            let error = text.parse::<Emulation>().unwrap_err();
            assert!(error.to_string().contains("separated by commas"), "{error}");
        }
    }
}
