//! Emulated disks: the times at which accesses to a disk that is not there would be done.
//!
//! A [`Disk`] is the specification, by name or by numbers. A [`Pace`] is one such disk at work: it takes every read,
//! write and flush, and returns the time at which each is done; [`wait_until`] waits for that. The data is somewhere
//! else.
//!
//! The model: an access takes its latency, and its bytes take their share of the disk's bandwidth, which reads and
//! writes share. It is done when both are over. So many small accesses at once overlap, and large ones run at the
//! bandwidth. A disk that seeks does one access at a time, and an access that continues at the end of the last one
//! has no latency.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nacre_engine::{Error, Kind};

use crate::emulation::{SEPARATORS, bandwidth, nanoseconds};

/// Latencies in nanoseconds, bandwidths in bytes per second over all accesses at once; 0 is no delay and no cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The name of the preset, or `custom`.
    pub name: Cow<'static, str>,
    /// Of a small read, its transfer included.
    pub read_latency_ns: u64,
    /// Of a small write, its transfer included.
    pub write_latency_ns: u64,
    /// Of a flush of earlier writes.
    pub flush_ns: u64,
    /// Of reads, when nothing is written.
    pub read_bandwidth: u64,
    /// Of writes, when nothing is read.
    pub write_bandwidth: u64,
    /// It has one head that must be moved.
    pub seeks: bool,
}

/// One row of the table of presets.
struct Preset {
    name: &'static str,
    read_latency_ns: u64,
    write_latency_ns: u64,
    read_bandwidth: u64,
    write_bandwidth: u64,
    seeks: bool,
    /// Where the numbers come from.
    source: &'static str,
}

const US: u64 = 1000;
const MB: u64 = 1_000_000;

/// Every number of every preset. A flush costs one write latency.
const PRESETS: [Preset; 4] = [
    Preset {
        name: "optane-ssd",
        read_latency_ns: 10 * US,
        write_latency_ns: 10 * US,
        read_bandwidth: 2400 * MB,
        write_bandwidth: 2000 * MB,
        seeks: false,
        source: "TPFS (paper 002), table 1 for latency, table 2 for bandwidth: Intel Optane DC P4800",
    },
    Preset {
        name: "nvme",
        read_latency_ns: 120 * US,
        write_latency_ns: 30 * US,
        read_bandwidth: 2000 * MB,
        write_bandwidth: 500 * MB,
        seeks: false,
        source: "TPFS, table 1",
    },
    Preset {
        name: "sata-ssd",
        read_latency_ns: 80 * US,
        write_latency_ns: 85 * US,
        read_bandwidth: 500 * MB,
        write_bandwidth: 260 * MB,
        seeks: false,
        source: "TPFS, table 1 for latency, table 2 for bandwidth: Intel DC S4600",
    },
    Preset {
        name: "hdd",
        read_latency_ns: 10_000 * US,
        write_latency_ns: 10_000 * US,
        read_bandwidth: 100 * MB,
        write_bandwidth: 100 * MB,
        seeks: true,
        source: "TPFS, table 1",
    },
];

const ADVICE: &str = "give optane-ssd, nvme, sata-ssd or hdd, and settings such as read-latency=80000,\
                      write-latency=30000,flush=0,read-bandwidth=2G,write-bandwidth=500M, separated by commas or colons (after -o by colons)";

impl Disk {
    /// The preset with this name.
    pub fn preset(name: &str) -> Option<Disk> {
        let preset = PRESETS.iter().find(|preset| preset.name == name)?;
        Some(Disk {
            name: Cow::Borrowed(preset.name),
            read_latency_ns: preset.read_latency_ns,
            write_latency_ns: preset.write_latency_ns,
            flush_ns: preset.write_latency_ns,
            read_bandwidth: preset.read_bandwidth,
            write_bandwidth: preset.write_bandwidth,
            seeks: preset.seeks,
        })
    }

    /// Name and source of every preset.
    pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
        PRESETS.iter().map(|preset| (preset.name, preset.source))
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let field = match key {
            "read-latency" => &mut self.read_latency_ns,
            "write-latency" => &mut self.write_latency_ns,
            "flush" => &mut self.flush_ns,
            "read-bandwidth" => &mut self.read_bandwidth,
            "write-bandwidth" => &mut self.write_bandwidth,
            _ => return None,
        };
        *field = if key.ends_with("bandwidth") { bandwidth(value)? } else { nanoseconds(value)? };
        Some(())
    }
}

/// Reads a preset's name, and settings that change it: `nvme`, `sata-ssd,flush=0`, `sata-ssd:flush=0`.
impl FromStr for Disk {
    type Err = Error;

    fn from_str(text: &str) -> Result<Disk, Error> {
        let wrong = |part: &str| {
            Error::new(Kind::InvalidInput).object(format!("disk \"{text}\", at \"{part}\"")).advice(ADVICE)
        };
        let mut parts = text.split(SEPARATORS);
        let name = parts.next().unwrap_or_default();
        let mut disk = Disk::preset(name.trim()).ok_or_else(|| wrong(name))?;
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| wrong(part))?;
            disk.set(key.trim(), value.trim()).ok_or_else(|| wrong(part))?;
            disk.name = Cow::Borrowed("custom");
        }
        Ok(disk)
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / US as f64;
        let mb = |rate: u64| rate / MB;
        write!(
            f,
            "{} (read {} us, {} MB/s; write {} us, {} MB/s; flush {} us)",
            self.name,
            us(self.read_latency_ns),
            mb(self.read_bandwidth),
            us(self.write_latency_ns),
            mb(self.write_bandwidth),
            us(self.flush_ns),
        )
    }
}

/// An access to a disk; offsets and lengths in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads so many bytes there.
    Read {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// Writes so many bytes there.
    Write {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// Makes earlier writes durable.
    Flush,
}

/// One emulated disk at work. Times are nanoseconds of any clock that never goes back.
#[derive(Debug)]
pub struct Pace {
    disk: Disk,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Everything granted so far is through at this time.
    busy_until: u64,
    /// Where the head is: at the end of the last access.
    head: u64,
}

impl Pace {
    /// A disk that has nothing to do yet.
    pub fn new(disk: Disk) -> Pace {
        Pace { disk, state: Mutex::default() }
    }

    /// The time at which an access that comes `now` is done.
    pub fn admit(&self, now: u64, access: Access) -> u64 {
        let disk = &self.disk;
        let (latency, cost, span) = match access {
            Access::Read { offset, len } => {
                (disk.read_latency_ns, transfer(len, disk.read_bandwidth), Some((offset, len)))
            }
            Access::Write { offset, len } => {
                (disk.write_latency_ns, transfer(len, disk.write_bandwidth), Some((offset, len)))
            }
            Access::Flush => (disk.flush_ns, 0, None),
        };
        // The state is two numbers that are always valid.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let free_at = state.busy_until.max(now);
        if !disk.seeks {
            state.busy_until = free_at + cost;
            return state.busy_until.max(now + latency);
        }
        let goes_on = span.is_some_and(|(offset, _)| offset == state.head);
        if let Some((offset, len)) = span {
            state.head = offset + len;
        }
        state.busy_until = free_at + cost + if goes_on { 0 } else { latency };
        state.busy_until
    }
}

/// The share of a disk's time that bytes take, in nanoseconds.
fn transfer(len: u64, bandwidth: u64) -> u64 {
    match bandwidth {
        0 => 0,
        rate => u64::try_from(u128::from(len) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
    }
}

/// A sleep may last longer by this, on a kernel that is told to wake us on time; the rest is spun.
const OVERSLEEP: Duration = Duration::from_micros(10);

/// Waits, asleep but for the last microseconds. The timer slack of the thread should be 1 ns.
pub fn wait_until(deadline: Instant) {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > OVERSLEEP {
            std::thread::sleep(left - OVERSLEEP);
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Access, Disk, Pace, wait_until};

    const BLOCK: u64 = 4096;

    fn pace(text: &str) -> Pace {
        Pace::new(text.parse().unwrap())
    }

    fn read(offset: u64, len: u64) -> Access {
        Access::Read { offset, len }
    }

    fn write(offset: u64, len: u64) -> Access {
        Access::Write { offset, len }
    }

    #[test]
    fn a_small_access_takes_its_latency_and_small_ones_overlap() {
        let disk = pace("sata-ssd");
        assert_eq!(disk.admit(1000, read(0, BLOCK)), 1000 + 80_000);
        assert_eq!(disk.admit(1000, write(0, BLOCK)), 1000 + 85_000);
        assert_eq!(disk.admit(500_000, Access::Flush), 500_000 + 85_000);
    }

    #[test]
    fn bytes_take_the_bandwidth_that_all_share() {
        let disk = pace("sata-ssd");
        // A second's worth of reads, then half a second's worth of writes, all at once.
        let last = (0..500).map(|at| disk.admit(0, read(at << 20, 1_000_000))).last().unwrap();
        assert_eq!(last, 1_000_000_000);
        assert_eq!(disk.admit(0, write(0, 130_000_000)), 1_500_000_000);
        // What is not used is not saved up.
        assert_eq!(disk.admit(9_000_000_000, read(0, 500_000_000)), 10_000_000_000);
    }

    #[test]
    fn latency_bounds_one_at_a_time_and_bandwidth_many() {
        let disk = pace("nvme");
        let mut now = 0;
        for at in 0..100 {
            now = disk.admit(now, write(at * BLOCK, BLOCK));
        }
        assert_eq!(now, 100 * 30_000);
        let many = (0..1000).map(|at| disk.admit(now, write(at * BLOCK, BLOCK))).max().unwrap();
        assert_eq!(many - now, 1000 * (BLOCK * 1_000_000_000 / 500_000_000));
    }

    #[test]
    fn a_head_goes_on_for_nothing_and_is_moved_for_its_latency() {
        let (disk, seek, megabyte) = (pace("hdd"), 10_000_000, 10_000_000);
        assert_eq!(disk.admit(0, read(0, 1_000_000)), megabyte);
        assert_eq!(disk.admit(0, read(1_000_000, 1_000_000)), 2 * megabyte);
        assert_eq!(disk.admit(0, write(0, 1_000_000)), 3 * megabyte + seek);
        // One after the other, although all came at the same time.
        assert_eq!(disk.admit(0, Access::Flush), 3 * megabyte + 2 * seek);
    }

    #[test]
    fn names_and_settings_are_read_and_nonsense_is_refused() {
        for (name, source) in Disk::presets() {
            let disk: Disk = name.parse().unwrap();
            assert!(disk.name == name && disk.flush_ns == disk.write_latency_ns && !source.is_empty());
        }
        let disk: Disk = "nvme, flush=0,read-bandwidth=1.5G".parse().unwrap();
        assert_eq!((disk.flush_ns, disk.read_bandwidth, &*disk.name), (0, 1_500_000_000, "custom"));
        assert_eq!(
            Disk::preset("optane-ssd").unwrap().to_string(),
            "optane-ssd (read 10 us, 2400 MB/s; write 10 us, 2000 MB/s; flush 10 us)"
        );
        for text in ["", "floppy", "nvme,flush", "nvme,latency=1", "flush=1", "nvme,read-bandwidth=-1"] {
            assert!(text.parse::<Disk>().unwrap_err().to_string().contains("separated by commas"), "{text}");
        }
    }

    #[test]
    fn nobody_waits_less_than_asked() {
        for micros in [0, 3, 200] {
            let deadline = Instant::now() + Duration::from_micros(micros);
            wait_until(deadline);
            assert!(Instant::now() >= deadline);
        }
    }
}
