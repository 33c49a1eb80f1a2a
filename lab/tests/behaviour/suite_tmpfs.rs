//! The behaviour suite on a tmpfs: the control. What fails here is wrong in the suite.

use std::path::Path;

use nacre_lab::suite::{DirectoryTarget, Need, all_cases, run};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// What a tmpfs cannot do.
const LACKING: &[(Need, &str)] = &[
    (Need::ZeroRange, "tmpfs has no FALLOC_FL_ZERO_RANGE"),
    (Need::WholeBlocks, "the kernel copies without a lock that readers would take"),
    (Need::SizeLimit, "the largest file of tmpfs is the largest offset there is"),
];

/// Cases that are about more than tmpfs promises.
const EXCLUSIONS: &[(&str, &str)] =
    &[("readdir-replace-as-read", "a name that another file takes has a new place in a directory of tmpfs")];

/// A tmpfs of its own, or a directory of one when this is not root.
struct Tmpfs {
    dir: tempfile::TempDir,
    mounted: bool,
}

impl Tmpfs {
    fn new() -> Tmpfs {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on a tmpfs");
        let options = Some(c"size=64m,mode=755");
        let mounted = mount("tmpfs", dir.path(), "tmpfs", MountFlags::NODEV, options).is_ok();
        Tmpfs { dir, mounted }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        if self.mounted {
            let _ = unmount(self.path(), UnmountFlags::DETACH);
        }
    }
}

#[test]
fn the_suite_passes_on_tmpfs() {
    let tmpfs = Tmpfs::new();
    let mut lacking = LACKING.to_vec();
    if !tmpfs.mounted {
        println!("this is not root: a directory of /dev/shm stands in for a tmpfs of its own");
        lacking.push((Need::SmallDevice, "/dev/shm is not ours to fill"));
        lacking.push((Need::ExactAllocation, "others use /dev/shm, too"));
    }
    let mut target = DirectoryTarget::new(tmpfs.path(), &lacking, None);
    run(&mut target, &all_cases(), EXCLUSIONS).assert_clean();
}

/// A suite whose mount was gone once filled the disk below the mount's directory.
#[test]
fn nothing_runs_on_the_directory_of_a_mount_that_is_gone() {
    let tmpfs = Tmpfs::new();
    let fails = Box::new(|| panic!("this mount does not come back"));
    let mut target = DirectoryTarget::new(tmpfs.path(), LACKING, Some(fails));
    let cases = all_cases()
        .into_iter()
        .filter(|case| case.name.starts_with("fallocate-remount") || case.name == "many-directories");
    let report = run(&mut target, &cases.collect::<Vec<_>>(), &[]);
    assert_eq!(report.failed.len(), 2, "{:?}", report.failed);
    assert!(report.failed[1].1.contains("a remount before this failed"), "{:?}", report.failed);
}
