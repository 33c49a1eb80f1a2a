//! File systems of the kernel, on loop devices: over tmpfs, over a file, over an emulated disk. Some have a journal, a
//! log or a write cache on DRAM that stands for PM, as in paper 002.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nacre_engine::size;

use super::medium::{Device, Medium};
use super::pieces::{Backing, Blank, LoopDevice, Mapped, Mounted, Pieces, check_program, run};
use super::plan::{Ground, Load, Opening, Prepared, device_size};
use crate::Error;
use crate::report::schema::Pays;
use crate::spec::Spec;

/// Blocks of ext4 and of its journal's device, which must be alike, and of the write cache.
const BLOCK: u64 = 4096;
/// The largest log of xfs: 2 GiB, less 10 MiB.
const LARGEST_LOG: u64 = (2 << 30) - (10 << 20);
/// xfs refuses less.
const SMALLEST_XFS: u64 = 320 << 20;
/// Beside the file system, for a journal or a cache: paper 002, section 6.1.
const ASIDE: &str = "2G";

/// A peer, as asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Peer {
    filesystem: &'static str,
    home: Home,
    aside: Aside,
}

/// Where its data is.
#[derive(Debug, Clone, PartialEq)]
enum Home {
    /// A tmpfs.
    Memory,
    /// A disk.
    Disk(Medium),
    /// A device that the user names, mounted with `dax`.
    Dax(PathBuf),
}

/// Its part on PM besides its data, and the size of that part.
#[derive(Debug, Clone, PartialEq)]
enum Aside {
    Nothing,
    /// An external journal, for data, too.
    Journal(u64),
    /// An external log.
    Log(u64),
    /// A cache of the device mapper that holds written data.
    Cache(u64),
}

/// For `nacre bench list`.
pub(super) const KINDS: &[(&str, &str)] = &[
    ("peer:ext4", "ext4 on a loop device over tmpfs (root)"),
    ("peer:ext2", "ext2, the same (root)"),
    ("peer:xfs", "xfs, the same (root)"),
    (
        "peer:ext4-disk",
        "ext4 on a file where --disk says, or disk=optane-ssd|nvme|sata-ssd|hdd for an emulated disk (root)",
    ),
    ("peer:xfs-disk", "xfs, the same (root)"),
    ("peer:ext4-dj", "ext4-disk with data=journal, its journal of size=2G on tmpfs; disk= as there (root)"),
    ("peer:xfs-ml", "xfs-disk with its log of size=2G on tmpfs; disk= as there (root)"),
    (
        "peer:dm-writecache",
        "fs=ext4|xfs on DM-WriteCache of size=2G on tmpfs over a disk; disk= as there (root, dm-writecache)",
    ),
    ("peer:ext4-dax", "ext4 with dax on device=DEVICE, a blank device of persistent memory (root)"),
    ("peer:nilfs2", "NILFS2 on a loop device over tmpfs (root, a kernel with NILFS2)"),
    ("peer:f2fs", "F2FS on a loop device over tmpfs (root, a kernel with F2FS)"),
];

impl Peer {
    /// From the text after `peer:`. None when it is no peer of this kind.
    pub(super) fn parse(name: &str, spec: &Spec) -> Result<Option<Peer>, String> {
        let on_memory = |filesystem| Ok(Some(Peer { filesystem, home: Home::Memory, aside: Aside::Nothing }));
        let on_disk = |filesystem, aside| {
            let home = Home::Disk(Medium::parse(&spec.text("disk", "file")?)?);
            Ok(Some(Peer { filesystem, home, aside }))
        };
        let beside = || Ok::<_, String>(spec.size("size", ASIDE)?.next_multiple_of(BLOCK));
        match name {
            "ext2" => on_memory("ext2"),
            "ext4" => on_memory("ext4"),
            "xfs" => on_memory("xfs"),
            "nilfs2" => on_memory("nilfs2"),
            "f2fs" => on_memory("f2fs"),
            "ext4-disk" => on_disk("ext4", Aside::Nothing),
            "xfs-disk" => on_disk("xfs", Aside::Nothing),
            "ext4-dj" => on_disk("ext4", Aside::Journal(beside()?)),
            "xfs-ml" => on_disk("xfs", Aside::Log(beside()?.min(LARGEST_LOG))),
            "dm-writecache" => {
                let filesystem = spec.word("fs", "ext4", &[("ext4", "ext4"), ("xfs", "xfs")])?;
                on_disk(filesystem, Aside::Cache(beside()?))
            }
            "ext4-dax" => {
                let home = Home::Dax(spec.text("device", "")?.into());
                Ok(Some(Peer { filesystem: "ext4", home, aside: Aside::Nothing }))
            }
            _ => Ok(None),
        }
    }

    /// An error names the part that this machine lacks for it.
    pub(super) fn check(&self) -> Result<(), Error> {
        check_kernel(self.filesystem)?;
        if matches!(self.aside, Aside::Cache(_)) {
            check_mapper()?;
        }
        let mkfs = format!("mkfs.{}", self.filesystem);
        check_program(&mkfs)?;
        match &self.home {
            Home::Dax(device) if device.as_os_str().is_empty() => {
                Err("it needs persistent memory that the kernel knows: give device=/dev/pmem0".into())
            }
            Home::Dax(_) => ["blkid", "wipefs"].into_iter().try_for_each(check_program),
            Home::Memory | Home::Disk(_) => check_program("losetup"),
        }
    }

    /// Bytes of DRAM that it is made of.
    pub(super) fn memory(&self, load: Load) -> u64 {
        let aside = match self.aside {
            Aside::Nothing => 0,
            Aside::Journal(size) | Aside::Log(size) | Aside::Cache(size) => size,
        };
        let home = match &self.home {
            Home::Memory => self.size(load),
            Home::Disk(medium) => medium.memory(self.size(load)),
            Home::Dax(_) => 0,
        };
        aside + home
    }

    /// Bytes that it takes where files stand for disks.
    pub(super) fn on_disk(&self, load: Load) -> u64 {
        match &self.home {
            Home::Disk(medium) => medium.on_disk(self.size(load)),
            Home::Memory | Home::Dax(_) => 0,
        }
    }

    /// The size of its device.
    fn size(&self, load: Load) -> u64 {
        device_size(load).max(if self.filesystem == "xfs" { SMALLEST_XFS } else { 0 })
    }

    /// Makes it. An error names the missing part.
    pub(super) fn set_up(&self, name: &str, ground: &Ground<'_>) -> Result<Prepared, Error> {
        self.check()?;
        let mut pieces = Pieces::default();
        let Device { path: mut device, about: home, hurry } = self.home(name, ground, &mut pieces)?;
        let mut about = format!("{} on {home}", self.filesystem);
        let (mut mkfs, mut mount) = (Vec::new(), String::new());
        match self.aside {
            Aside::Nothing => {}
            Aside::Journal(size) => {
                let journal = on_tmpfs(&format!("{name}-journal"), size, ground, &mut pieces)?;
                let block = BLOCK.to_string();
                run(Command::new("mke2fs")
                    .args(["-q", "-F", "-O", "journal_dev", "-b", &block])
                    .arg(&journal))?;
                mkfs.extend([
                    "-b".to_owned(),
                    block,
                    "-J".to_owned(),
                    format!("device={}", journal.display()),
                ]);
                mount.push_str("data=journal");
                about.push_str(&format!(", data=journal, its journal of {} on tmpfs", size::print(size)));
            }
            Aside::Log(size) => {
                let log = on_tmpfs(&format!("{name}-log"), size, ground, &mut pieces)?;
                mkfs.extend(["-l".to_owned(), format!("logdev={},size={size}", log.display())]);
                mount.push_str(&format!("logdev={}", log.display()));
                about.push_str(&format!(", its log of {} on tmpfs", size::print(size)));
            }
            Aside::Cache(size) => {
                let cache = on_tmpfs(&format!("{name}-cache"), size, ground, &mut pieces)?;
                let sectors = run(Command::new("blockdev").arg("--getsz").arg(&device))?;
                let table =
                    format!("0 {sectors} writecache s {} {} {BLOCK} 0", device.display(), cache.display());
                let mapped = Mapped::new(format!("nacre-bench-{}-{name}", std::process::id()), &table)?;
                device = mapped.path();
                pieces.keep(mapped);
                about.push_str(&format!(", DM-WriteCache of {} on tmpfs before it", size::print(size)));
            }
        }
        make(self.filesystem, &device, &mkfs, ground)?;
        if matches!(self.home, Home::Dax(_)) {
            mount.push_str("dax");
        }
        let mounted = Mounted::new(self.filesystem, &device, ground.place.directory(name)?, &mount)?;
        let opening = Opening::Directory(mounted.path.clone());
        pieces.keep(mounted);
        Ok(Prepared { hurry, pieces, ..Prepared::plain(opening, about, Pays::Kernel) })
    }

    /// The device for its data.
    fn home(&self, name: &str, ground: &Ground<'_>, pieces: &mut Pieces) -> Result<Device, Error> {
        let size = self.size(ground.load);
        match &self.home {
            Home::Memory => {
                let path = on_tmpfs(&format!("{name}-dev"), size, ground, pieces)?;
                Ok(Device { path, about: "a loop device over tmpfs".to_owned(), hurry: None })
            }
            Home::Disk(medium) => medium.set_up(name, size, ground, pieces),
            Home::Dax(device) => {
                // 2: nothing that it knows is there.
                let probe = Command::new("blkid").arg("-p").arg(device).output()?;
                if probe.status.code() != Some(2) {
                    return Err(
                        format!("{}: it is not blank; 'wipefs -a' makes it so", device.display()).into()
                    );
                }
                pieces.keep(Blank(device.clone()));
                let about = format!("{} with dax", device.display());
                Ok(Device { path: device.clone(), about, hurry: None })
            }
        }
    }
}

/// A loop device over a file on a tmpfs of its own.
fn on_tmpfs(name: &str, size: u64, ground: &Ground<'_>, pieces: &mut Pieces) -> Result<PathBuf, Error> {
    let tmpfs = ground.place.tmpfs(name, false)?;
    let file = tmpfs.path().join("data");
    pieces.keep(tmpfs);
    pieces.keep(Backing::new(file.clone(), size)?);
    Ok(pieces.keep_loop(LoopDevice::new(&file, false)?))
}

/// Makes a file system.
fn make(filesystem: &str, device: &Path, more: &[String], ground: &Ground<'_>) -> Result<(), Error> {
    let mut command = Command::new(format!("mkfs.{filesystem}"));
    match filesystem {
        "ext2" | "ext4" => {
            // Nothing is left to be initialised in the background.
            command.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
            let inodes = ground.load.files + ground.load.files / 4 + 1024;
            command.args(["-N", &inodes.to_string()]);
        }
        _ => {
            command.args(["-q", "-f"]);
        }
    }
    run(command.args(more).arg(device)).map(drop)
}

/// An error when the kernel cannot have this file system.
fn check_kernel(filesystem: &str) -> Result<(), Error> {
    let known = fs::read_to_string("/proc/filesystems")?;
    if is_known(filesystem, &known) || run(Command::new("modprobe").args(["-n", "-q", filesystem])).is_ok() {
        return Ok(());
    }
    Err(format!("this kernel has no {filesystem}: neither /proc/filesystems nor modprobe knows it").into())
}

/// Whether a text as /proc/filesystems names a file system.
fn is_known(filesystem: &str, known: &str) -> bool {
    known.lines().any(|line| line.split_whitespace().last() == Some(filesystem))
}

/// An error when the device mapper has no write cache.
fn check_mapper() -> Result<(), Error> {
    let _ = run(Command::new("modprobe").args(["-q", "dm-writecache"]));
    let targets = run(Command::new("dmsetup").arg("targets")).map_err(|error| {
        let why = error.to_string();
        let first = why.lines().next().unwrap_or_default().to_owned();
        format!("this kernel has no device mapper ({first})")
    })?;
    match targets.lines().any(|line| line.starts_with("writecache ")) {
        true => Ok(()),
        false => Err("the device mapper of this kernel has no target writecache".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Aside, Home, LARGEST_LOG, Medium, Peer, is_known};

    fn parse(text: &str) -> Result<Option<Peer>, String> {
        let spec = text.parse()?;
        let peer = Peer::parse(crate::spec::Spec::name(&spec), &spec)?;
        spec.finish()?;
        Ok(peer)
    }

    fn peer(text: &str) -> Peer {
        parse(text).unwrap().unwrap()
    }

    #[test]
    fn those_of_paper_002_have_two_gigabytes_of_memory_beside_a_disk() {
        let dj = peer("ext4-dj");
        let file = Home::Disk(Medium::File);
        assert_eq!((dj.filesystem, dj.home, dj.aside), ("ext4", file, Aside::Journal(2 << 30)));
        assert_eq!(peer("xfs-ml").aside, Aside::Log(LARGEST_LOG));
        let dm = peer("dm-writecache,fs=xfs,size=64m");
        assert_eq!((dm.filesystem, dm.aside), ("xfs", Aside::Cache(64 << 20)));
        assert_eq!(peer("ext4-disk").aside, Aside::Nothing);
    }

    #[test]
    fn disks_are_emulated_where_asked_for() {
        let emulated = |text: &str| match peer(text).home {
            Home::Disk(Medium::Emulated(disk)) => *disk,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(emulated("xfs-disk,disk=optane-ssd").name, "optane-ssd");
        assert_eq!(emulated("ext4-dj,disk=nvme+flush=0").flush_ns, 0);
        assert!(parse("ext4-disk,disk=tape").unwrap_err().contains("optane-ssd"));
        assert!(parse("ext4,disk=nvme").unwrap_err().contains("no parameter disk"));
        assert!(parse("ext4-disk,size=1G").unwrap_err().contains("no parameter size"));
        assert_eq!(parse("zfs"), Ok(None));
    }

    #[test]
    fn file_systems_are_found_by_their_whole_name() {
        let known = "nodev\tsysfs\nnodev\ttmpfs\n\text4\n\txfs\n";
        assert!(is_known("ext4", known) && is_known("sysfs", known));
        assert!(!is_known("ext", known) && !is_known("f2fs", known) && !is_known("nodev", known));
    }
}
