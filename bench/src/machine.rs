//! The machine that figures come from.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// Facts about the machine that a reader needs to compare figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// All DRAM, in GiB.
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

/// File systems by the numbers that statfs(2) gives them: those that one may find under a directory.
const FILE_SYSTEMS: &[(u32, &str)] = &[
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0x794c_7630, "overlay"),
    (0x6573_5546, "fuse"),
    (0x6969, "nfs"),
];

/// The kind of file system that a directory lies on: `ext4` (ext2 and ext3 call themselves so, too), `tmpfs`; its number
/// where we have no name for it.
pub(crate) fn file_system(path: &Path) -> io::Result<String> {
    // The number is one of 32 bits, in any type that the kernel gives it in.
    let number = rustix::fs::statfs(path)?.f_type as u32;
    let name = FILE_SYSTEMS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    Ok(name.map_or_else(|| format!("{number:#x}"), str::to_owned))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::file_system;

    #[test]
    fn a_file_system_has_a_name_or_a_number() {
        assert_eq!(file_system(Path::new("/proc")).unwrap(), "0x9fa0", "nobody has files for disks there");
        if Path::new("/dev/shm").is_dir() {
            assert_eq!(file_system(Path::new("/dev/shm")).unwrap(), "tmpfs");
        }
        assert!(file_system(Path::new("/nowhere")).is_err());
    }
}
