//! The kernel's statements about a device in sysfs: whether stores survive a power failure, and which parts are known
//! to be bad.
//!
//! A device can be mapped like persistent memory without being any: virtio-pmem is the page cache of the host, e820 and
//! dax_hmem are DRAM. The kernel knows a region behind each real one, `ndbusN/regionN`, whose attributes say how it
//! persists. Everything is read below a root, so that tests have a tree of their own.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::device::{Device, DeviceKind, parse_number};

/// Devices that stand on others, below each other.
const MAX_DEPTH: u32 = 8;
/// The unit of lists of bad blocks, independent of the device.
const SECTOR: u64 = 512;

/// Sysfs, or a tree like it.
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// That of the kernel.
    pub(super) fn of_kernel() -> Sysfs {
        Sysfs::at(Path::new("/sys"))
    }

    fn at(root: &Path) -> Sysfs {
        Sysfs { root: root.canonicalize().unwrap_or_else(|_| root.to_owned()) }
    }

    /// Whether the device keeps fenced data over a power failure, as far as the kernel says; otherwise the reason why
    /// not. Only for mappings without the page cache.
    pub(super) fn keeps(&self, device: &Device) -> Result<(), String> {
        let Ok(metadata) = device.file.metadata() else { return Err(NOTHING_SAID.to_owned()) };
        match device.kind {
            DeviceKind::Devdax => self.devdax_keeps(metadata.rdev()),
            DeviceKind::Block => self.block_keeps(metadata.rdev()),
            DeviceKind::File => self.block_keeps(metadata.dev()),
        }
    }

    /// The ranges of a device that the kernel knows to be bad. It keeps no list for files.
    pub(super) fn bad_ranges(&self, device: &Device) -> Vec<Range<u64>> {
        let Ok(metadata) = device.file.metadata() else { return Vec::new() };
        let (list, base) = match device.kind {
            DeviceKind::File => return Vec::new(),
            DeviceKind::Block => self.list_of_block(metadata.rdev()),
            DeviceKind::Devdax => self.list_of_devdax(metadata.rdev()),
        }
        .unwrap_or_default();
        ranges(&list, base, device.len)
    }

    fn devdax_keeps(&self, number: u64) -> Result<(), String> {
        let dir = self.dir("char", number).ok_or(NOTHING_SAID)?;
        match self.region(&dir) {
            Some(region) => region_keeps(&region),
            None => Err(format!("the kernel does not call {} persistent", name(&dir))),
        }
    }

    fn block_keeps(&self, number: u64) -> Result<(), String> {
        let dir = self.dir("block", number).ok_or(NOTHING_SAID)?;
        self.disk_keeps(&dir, 0)
    }

    /// Of a disk that stands on others all must.
    fn disk_keeps(&self, dir: &Path, depth: u32) -> Result<(), String> {
        if let Some(region) = self.region(dir) {
            return region_keeps(&region);
        }
        let slaves = fs::read_dir(dir.join("slaves")).into_iter().flatten().flatten();
        let slaves: Vec<PathBuf> = slaves.filter_map(|slave| slave.path().canonicalize().ok()).collect();
        if slaves.is_empty() || depth == MAX_DEPTH {
            return Err(format!("the kernel does not know {} as PM", name(dir)));
        }
        slaves.iter().try_for_each(|slave| self.disk_keeps(slave, depth + 1))
    }

    /// The list of a disk, and where a partition begins in it.
    fn list_of_block(&self, number: u64) -> Option<(String, u64)> {
        let dir = self.dir("block", number)?;
        if !dir.join("partition").exists() {
            return Some((read(&dir.join("badblocks"))?, 0));
        }
        let start = parse_number(&read(&dir.join("start"))?)?;
        Some((read(&dir.parent()?.join("badblocks"))?, start.checked_mul(SECTOR)?))
    }

    /// The list of the region that a devdax device is in, and where it begins there.
    fn list_of_devdax(&self, number: u64) -> Option<(String, u64)> {
        let dir = self.dir("char", number)?;
        let region = self.region(&dir)?;
        let resource = |dir: &Path| parse_number(&read(&dir.join("resource"))?);
        let base = resource(&dir)?.checked_sub(resource(&region)?)?;
        Some((read(&region.join("badblocks"))?, base))
    }

    /// The directory of a device.
    fn dir(&self, kind: &str, number: u64) -> Option<PathBuf> {
        let (major, minor) = (libc::major(number), libc::minor(number));
        self.root.join(format!("dev/{kind}/{major}:{minor}")).canonicalize().ok()
    }

    /// The region of NVDIMMs that a device is in.
    fn region(&self, dir: &Path) -> Option<PathBuf> {
        let is_region = |dir: &&Path| {
            is_numbered(dir, "region") && dir.parent().is_some_and(|bus| is_numbered(bus, "ndbus"))
        };
        dir.ancestors().take_while(|dir| dir.starts_with(&self.root)).find(is_region).map(Path::to_owned)
    }
}

const NOTHING_SAID: &str = "the kernel does not say which kind of PM or DRAM it is";

/// Whether a region keeps fenced data.
fn region_keeps(region: &Path) -> Result<(), String> {
    let bus = region.parent().unwrap_or(region);
    let mut drivers = bus.ancestors().filter_map(|dir| fs::read_link(dir.join("driver")).ok());
    let provider = read(&bus.join("provider")).unwrap_or_default();
    let mut is_of = |provider_name: &str, driver: &[&str]| {
        provider.trim() == provider_name || drivers.any(|link| driver.contains(&name(&link).as_str()))
    };
    if is_of("virtio-pmem", &["virtio_pmem"]) {
        return Err(format!("{} is virtio-pmem, the page cache of the host", name(region)));
    }
    if is_of("e820", &["e820_pmem", "nd_e820"]) {
        return Err(format!("{} is DRAM, by a parameter of the kernel (memmap=, e820)", name(region)));
    }
    if read(&region.join("uevent")).is_some_and(|text| text.contains("DEVTYPE=nd_volatile")) {
        return Err(format!("{} is volatile", name(region)));
    }
    let domain = read(&region.join("persistence_domain")).unwrap_or_default();
    // It is there where the kernel knows how stores get to the medium; 0 is that they do so by themselves.
    let flush = read(&region.join("deep_flush")).and_then(|text| parse_number(&text));
    match (domain.trim(), flush) {
        ("cpu_cache" | "memory_controller", _) | (_, Some(_)) => Ok(()),
        _ => Err(format!("the kernel is unable to guarantee persistence of writes to {}", name(region))),
    }
}

/// A list of bad blocks. The device begins at byte `base` of the region or disk that the list covers.
fn ranges(list: &str, base: u64, len: u64) -> Vec<Range<u64>> {
    let range = |line: &str| {
        let (first, count) = line.trim().split_once(' ')?;
        let start = parse_number(first)?.checked_mul(SECTOR)?;
        let end = start.checked_add(parse_number(count)?.checked_mul(SECTOR)?)?;
        let range = start.saturating_sub(base)..end.saturating_sub(base).min(len);
        (!range.is_empty()).then_some(range)
    };
    list.lines().filter_map(range).collect()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_numbered(path: &Path, kind: &str) -> bool {
    let name = name(path);
    let digits = name.strip_prefix(kind).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    use super::Sysfs;

    /// A tree that looks like sysfs, removed afterwards.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let root = std::env::temp_dir().join(format!("nacre-sysfs-{}-{name}", std::process::id()));
            for dir in ["dev/char", "dev/block"] {
                fs::create_dir_all(root.join(dir)).unwrap();
            }
            Tree(root.canonicalize().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// A region of a bus, with attributes.
        fn region(&self, bus: &str, provider: &str, attributes: &[(&str, &str)]) -> String {
            self.write(&format!("{bus}/provider"), &format!("{provider}\n"));
            for (name, text) in attributes {
                self.write(&format!("{bus}/region0/{name}"), &format!("{text}\n"));
            }
            format!("{bus}/region0")
        }

        /// A device of this number, whose directory that is.
        fn device(&self, kind: &str, number: (u32, u32), dir: &str) -> u64 {
            fs::create_dir_all(self.0.join(dir)).unwrap();
            let link = self.0.join(format!("dev/{kind}/{}:{}", number.0, number.1));
            symlink(Path::new("../..").join(dir), link).unwrap();
            libc::makedev(number.0, number.1)
        }

        fn sysfs(&self) -> Sysfs {
            Sysfs::at(&self.0)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Every devdax device was called safe against power loss: page caches of hosts and plain DRAM, too.
    #[test]
    fn only_what_the_kernel_calls_persistent_keeps_what_was_fenced() {
        type Case = (&'static str, &'static [(&'static str, &'static str)], Option<&'static str>);
        let cases: [Case; 9] = [
            ("ACPI.NFIT", &[("persistence_domain", "memory_controller"), ("deep_flush", "1")], None),
            ("ACPI.NFIT", &[("persistence_domain", "cpu_cache")], None),
            ("ACPI.NFIT", &[("deep_flush", "0")], None),
            ("ACPI.NFIT", &[("persistence_domain", "")], Some("unable to guarantee persistence")),
            ("ACPI.NFIT", &[("uevent", "DEVTYPE=nd_volatile"), ("deep_flush", "0")], Some("volatile")),
            ("virtio-pmem", &[], Some("virtio-pmem")),
            ("virtio-pmem", &[("deep_flush", "1")], Some("virtio-pmem")),
            ("e820", &[], Some("e820")),
            ("e820", &[("persistence_domain", "cpu_cache")], Some("e820")),
        ];
        for (index, (provider, attributes, reason)) in cases.into_iter().enumerate() {
            let tree = Tree::new(&format!("keeps-{index}"));
            let region = tree.region("devices/x/ndbus0", provider, attributes);
            let dax = tree.device("char", (251, 1), &format!("{region}/dax0.1/dax0.0"));
            let disk = tree.device("block", (259, 0), &format!("{region}/namespace0.0/block/pmem0"));
            let part = tree.device("block", (259, 1), &format!("{region}/namespace0.0/block/pmem0/pmem0p1"));
            for said in [
                tree.sysfs().devdax_keeps(dax),
                tree.sysfs().block_keeps(disk),
                tree.sysfs().block_keeps(part),
            ] {
                match (reason, said) {
                    (None, said) => assert_eq!(said, Ok(()), "{provider} {attributes:?}"),
                    (Some(reason), said) => assert!(said.unwrap_err().contains(reason), "{provider}"),
                }
            }
        }
    }

    #[test]
    fn a_driver_says_what_a_provider_does_not() {
        let tree = Tree::new("driver");
        let region = tree.region("devices/virtio2/ndbus0", "other", &[("deep_flush", "1")]);
        let dax = tree.device("char", (251, 1), &format!("{region}/dax0.1/dax0.0"));
        assert_eq!(tree.sysfs().devdax_keeps(dax), Ok(()));
        symlink("../../bus/virtio/drivers/virtio_pmem", tree.0.join("devices/virtio2/driver")).unwrap();
        assert!(tree.sysfs().devdax_keeps(dax).unwrap_err().contains("virtio-pmem"));
    }

    #[test]
    fn what_belongs_to_no_region_keeps_nothing() {
        let tree = Tree::new("none");
        let hmem = tree.device("char", (251, 0), "devices/platform/hmem.0/dax0.0");
        assert!(tree.sysfs().devdax_keeps(hmem).unwrap_err().contains("dax0.0"));
        let disk = tree.device("block", (8, 0), "devices/pci/host0/block/sda");
        assert!(tree.sysfs().block_keeps(disk).unwrap_err().contains("sda"));
        assert!(tree.sysfs().block_keeps(libc::makedev(0, 42)).is_err(), "a file system without a device");
        assert!(tree.sysfs().devdax_keeps(libc::makedev(251, 9)).is_err());
    }

    #[test]
    fn of_a_disk_over_others_all_must_keep() {
        let tree = Tree::new("dm");
        let good = tree.region("devices/a/ndbus0", "ACPI.NFIT", &[("deep_flush", "0")]);
        let bad = tree.region("devices/b/ndbus1", "e820", &[]);
        tree.device("block", (259, 0), &format!("{good}/namespace0.0/block/pmem0"));
        tree.device("block", (259, 1), &format!("{bad}/namespace1.0/block/pmem1"));
        let mapped = tree.device("block", (252, 0), "devices/virtual/block/dm-0");
        let slaves = tree.0.join("devices/virtual/block/dm-0/slaves");
        fs::create_dir(&slaves).unwrap();
        symlink(tree.0.join(good).join("namespace0.0/block/pmem0"), slaves.join("pmem0")).unwrap();
        assert_eq!(tree.sysfs().block_keeps(mapped), Ok(()));
        symlink(tree.0.join(bad).join("namespace1.0/block/pmem1"), slaves.join("pmem1")).unwrap();
        assert!(tree.sysfs().block_keeps(mapped).unwrap_err().contains("e820"));
    }

    #[test]
    fn lists_of_bad_blocks_are_those_of_the_device() {
        let tree = Tree::new("bad");
        let attributes = [("badblocks", "16 8\n4104 1\n9000 1"), ("resource", "0x100000000")];
        let region = tree.region("devices/a/ndbus0", "ACPI.NFIT", &attributes);
        let disk_dir = format!("{region}/namespace0.0/block/pmem0");
        tree.write(&format!("{disk_dir}/badblocks"), "8 8\n100 2\n");
        tree.write(&format!("{disk_dir}/pmem0p1/partition"), "1\n");
        tree.write(&format!("{disk_dir}/pmem0p1/start"), "10\n");
        let disk = tree.device("block", (259, 0), &disk_dir);
        let part = tree.device("block", (259, 1), &format!("{disk_dir}/pmem0p1"));
        let dax_dir = format!("{region}/dax0.1/dax0.0");
        tree.write(&format!("{dax_dir}/resource"), "0x100200000\n");
        let dax = tree.device("char", (251, 1), &dax_dir);
        let sysfs = tree.sysfs();
        let ranges = |(list, base): (String, u64), len| super::ranges(&list, base, len);
        assert_eq!(ranges(sysfs.list_of_block(disk).unwrap(), 1 << 30), [4096..8192, 51_200..52_224]);
        assert_eq!(ranges(sysfs.list_of_block(part).unwrap(), 1 << 30), [0..3072, 46_080..47_104]);
        // Of the region's list, what is in the device: from 2 MiB on.
        let of_dax = ranges(sysfs.list_of_devdax(dax).unwrap(), 1 << 20);
        assert!(of_dax.len() == 1 && of_dax[0] == (4096..4608), "{of_dax:?}");
        assert!(sysfs.list_of_block(libc::makedev(1, 1)).is_none());
    }
}
