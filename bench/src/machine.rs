//! The machine that figures come from.

use std::fs;

use serde::{Deserialize, Serialize};

/// What a reader needs to know to compare figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// All memory.
    pub memory_gib: f64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Processes that ran or wanted to, over the last minute, before we started: the machine should be idle.
    pub load: f64,
}

impl Machine {
    /// This machine, now.
    pub fn detect() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let uname = rustix::system::uname();
        Machine {
            cpu: name.map_or("unknown", |(_, name)| name).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory("MemTotal").unwrap_or(0) as f64 / f64::from(1 << 30),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let Machine { cpu, cores, memory_gib, kernel, load } = self;
        format!("{cpu}, {cores} cores, {memory_gib:.0} GiB, {kernel}, load {load:.1} at the start")
    }
}

/// A value of /proc/meminfo in bytes.
pub fn memory(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}
