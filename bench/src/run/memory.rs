//! Limits on the DRAM of a worker, and of the page cache that it fills: a cgroup of its own.
//!
//! A peer keeps files in the page cache, as much as there is DRAM; nacre has the DRAM that it was given. With the same
//! limit, they can be compared. Pages belong to the group of the process that first touched them, so a worker goes
//! into its group before it opens anything. DRAM that a loop device and an emulated disk hold for their media was
//! allocated before, by others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Error, machine, say};

/// A worker needs this for itself.
pub const LEAST: u64 = 16 << 20;
/// How long a group may be busy after its process has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where groups are made.
#[derive(Debug, Clone, PartialEq)]
pub struct Groups {
    parent: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The file with the limit.
    fn limit(self) -> &'static str {
        match self {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        }
    }

    /// The file with the amount in use.
    fn usage(self) -> &'static str {
        match self {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        }
    }

    /// The bytes that a group leaves of its limit, if it has one.
    fn left(self, group: &Path) -> Option<u64> {
        let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        let (limit, used) = (number(self.limit())?, number(self.usage())?);
        // Pages of files that nothing has used lately are given back.
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let files = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok());
        Some(limit.saturating_sub(used.saturating_sub(files.unwrap_or(0))))
    }
}

/// Bytes of DRAM that this process and its children can have: the part of the machine's DRAM that its cgroups leave.
/// `None` when no source tells it.
pub fn left() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut least = machine::memory("MemAvailable");
    for (root, path, version) in own_groups(&own, &mounts) {
        let groups = Path::new(&path).ancestors().map(|group| root.join(group));
        least = least.into_iter().chain(groups.filter_map(|group| version.left(&group))).min();
    }
    least
}

impl Groups {
    /// Finds the place where this process can make groups with a limit; an error tells the missing part.
    pub fn find() -> Result<Groups, Error> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut tried = Vec::new();
        for groups in candidates(&own, &mounts) {
            match groups.make("probe", LEAST) {
                Ok(_group) => return Ok(groups),
                Err(error) => tried.push(format!("{}: {error}", groups.parent.display())),
            }
        }
        let tried =
            if tried.is_empty() { "no cgroup has a memory controller".to_owned() } else { tried.join("; ") };
        Err(format!("--memory needs a memory cgroup, and none can be made here ({tried})").into())
    }

    /// Makes a group that holds its processes and their page cache to so many bytes.
    pub fn make(&self, name: &str, bytes: u64) -> io::Result<Group> {
        let path = self.parent.join(format!("nacre-bench-{}-{name}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Group { path };
        fs::write(group.path.join(self.version.limit()), bytes.to_string())?;
        Ok(group)
    }

    /// Removes the groups of a process that is gone.
    pub(crate) fn sweep(process: u32) {
        let (Ok(own), Ok(mounts)) =
            (fs::read_to_string("/proc/self/cgroup"), fs::read_to_string("/proc/self/mounts"))
        else {
            return;
        };
        let prefix = format!("nacre-bench-{process}-");
        for groups in candidates(&own, &mounts) {
            for entry in fs::read_dir(&groups.parent).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(&prefix) {
                    // One that still has a process stays.
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
    }
}

/// The group of this process under each version that is mounted, from /proc/self/cgroup and /proc/self/mounts: where that
/// is, and the path from there.
fn own_groups(own: &str, mounts: &str) -> Vec<(PathBuf, String, Version)> {
    let mounted = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, dir, filesystem, options, ..] = words[..] else { return None };
            let has = option.is_empty() || options.split(',').any(|word| word == option);
            (filesystem == kind && has).then(|| PathBuf::from(dir))
        })
    };
    let group = |matches: fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            matches(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let controls = |controllers: &str| controllers.split(',').any(|controller| controller == "memory");
    let two = mounted("cgroup2", "").zip(group(str::is_empty));
    let one = mounted("cgroup", "memory").zip(group(controls));
    let with = |version| move |(root, path)| (root, path, version);
    two.map(with(Version::Two)).into_iter().chain(one.map(with(Version::One))).collect()
}

/// Where groups might be made: with version 2 the group of this process or one above it that delegates the controller
/// of such a limit, then version 1. With version 2, a group with processes cannot, except the root.
fn candidates(own: &str, mounts: &str) -> Vec<Groups> {
    let mut found = Vec::new();
    for (root, path, version) in own_groups(own, mounts) {
        let at = |group: &Path| if group.as_os_str().is_empty() { root.clone() } else { root.join(group) };
        if version == Version::One {
            found.push(Groups { parent: at(Path::new(&path)), version });
            continue;
        }
        for parent in Path::new(&path).ancestors().map(at) {
            let handed = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
            if handed.split_whitespace().any(|controller| controller == "memory") {
                found.push(Groups { parent, version });
            }
        }
    }
    found
}

/// A cgroup with a limit. It is removed when this value goes away; its processes have ended then.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Moves a process into it.
    pub fn enter(&self, process: u32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), process.to_string())
    }

    /// The most bytes that were in it; none where the kernel does not count that.
    pub fn peak(&self) -> Option<u64> {
        let names = ["memory.peak", "memory.max_usage_in_bytes"];
        let text = names.iter().find_map(|name| fs::read_to_string(self.path.join(name)).ok())?;
        text.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begin = Instant::now();
        loop {
            match fs::remove_dir(&self.path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && begin.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => {
                    say::failed(self.path.display(), format_args!("cannot be removed: {error}"));
                    return;
                }
                Ok(()) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Groups, Version, candidates};

    #[test]
    fn version_1_is_found_where_version_2_has_no_memory() {
        let own = "9:name=systemd:/\n4:memory:/api/7\n0::/\n";
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /nowhere/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /nowhere/unified cgroup2 rw,relatime 0 0\n";
        let expected = Groups { parent: PathBuf::from("/nowhere/memory/api/7"), version: Version::One };
        assert_eq!(candidates(own, mounts), [expected]);
        assert_eq!(candidates("0::/\n", "cgroup2 /nowhere cgroup2 rw 0 0\n"), []);
    }

    #[test]
    fn version_2_is_found_where_memory_is_handed_down() {
        let root = std::env::temp_dir().join(format!("nacre-bench-groups-{}", std::process::id()));
        let slice = root.join("user.slice/session.scope");
        std::fs::create_dir_all(&slice).unwrap();
        std::fs::write(root.join("user.slice/cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        std::fs::write(slice.join("cgroup.subtree_control"), "\n").unwrap();
        let found = candidates(
            "0::/user.slice/session.scope\n",
            &format!("cgroup2 {} cgroup2 rw 0 0", root.display()),
        );
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [Groups { parent: root.join("user.slice"), version: Version::Two }]);
    }

    #[test]
    fn what_a_group_leaves_is_its_limit_without_what_it_uses_and_cannot_give_back() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(Version::Two.left(dir.path()), None, "the root of all groups has no such file");
        put("memory.max", "max\n");
        put("memory.current", "300\n");
        assert_eq!(Version::Two.left(dir.path()), None, "no limit");
        put("memory.max", "1000\n");
        assert_eq!(Version::Two.left(dir.path()), Some(700));
        put("memory.stat", "anon 100\ninactive_file 150\nactive_file 50\n");
        assert_eq!(Version::Two.left(dir.path()), Some(850));
        put("memory.limit_in_bytes", "200\n");
        put("memory.usage_in_bytes", "390\n");
        assert_eq!(Version::One.left(dir.path()), Some(0));
    }

    #[test]
    fn a_group_holds_a_process_and_goes_away() {
        let Ok(groups) = Groups::find() else {
            eprintln!("left out: no memory cgroup can be made here");
            return;
        };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let group = groups.make("test", 32 << 20).unwrap();
        let path = group.path.clone();
        let entered = group.enter(child.id());
        let limit = std::fs::read_to_string(path.join(groups.version.limit()));
        let inside = std::fs::read_to_string(path.join("cgroup.procs"));
        child.kill().unwrap();
        child.wait().unwrap();
        drop(group);
        entered.unwrap();
        assert_eq!(limit.unwrap().trim(), (32 << 20).to_string());
        assert_eq!(inside.unwrap().trim(), child.id().to_string());
        assert!(!path.exists());
    }
}
