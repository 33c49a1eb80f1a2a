//! A device and a directory to mount it on, as people have them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::mount::UnmountFlags;
use rustix::process::Pid;
use tempfile::TempDir;

use crate::harness::{is_mount_point, memory, nacre, run, scratch, succeed, text, until};

const LIMIT: Duration = Duration::from_secs(60);

/// A device with a file system, and a directory to mount it on.
pub(crate) struct Place {
    pub(crate) memory: TempDir,
    pub(crate) scratch: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let place = Place { memory: memory(), scratch: scratch() };
        succeed(nacre().args(["mkfs", "--size", "64M"]).arg(place.device()), LIMIT);
        fs::create_dir(place.dir()).unwrap();
        place
    }

    pub(crate) fn device(&self) -> PathBuf {
        self.memory.path().join("pm.img")
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    pub(crate) fn mount(&self, arguments: &[&str]) -> Output {
        run(nacre().arg("mount").args(arguments).arg(self.device()).arg(self.dir()), LIMIT).unwrap()
    }

    pub(crate) fn umount(&self, arguments: &[&str]) -> Output {
        run(nacre().arg("umount").args(arguments).arg(self.dir()), LIMIT).unwrap()
    }

    /// Unmounts what no test holds open. Another test may be starting a program just now, which has a copy of every
    /// open file until it is loaded, so what is in use is tried again.
    pub(crate) fn free(&self, mut umount: impl FnMut() -> Command) {
        until("it is unmounted", || {
            let output = run(&mut umount(), LIMIT).unwrap();
            let busy = text(&output).contains("in use");
            assert!(busy || output.status.success(), "{}", text(&output));
            !busy
        });
        assert!(!is_mount_point(&self.dir()));
    }

    /// The command that unmounts.
    pub(crate) fn umount_command(&self, target: &Path) -> Command {
        let mut command = nacre();
        command.arg("umount").arg(target);
        command
    }

    /// Mounts in the foreground and waits until it can be used.
    pub(crate) fn serve(&self) -> Child {
        let mut command = nacre();
        command.args(["mount", "-f"]).arg(self.device()).arg(self.dir());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        until("it is mounted", || is_mount_point(&self.dir()));
        child
    }

    /// The command under another name.
    pub(crate) fn helper(&self, name: &str) -> Command {
        let path = self.scratch.path().join(name);
        if !path.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nacre"), &path).unwrap();
        }
        Command::new(path)
    }

    /// The line of the kernel's table that shows the mount.
    pub(crate) fn entry(&self) -> String {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let dir = self.dir();
        let line = mounts.lines().rfind(|line| line.split(' ').nth(4) == dir.to_str());
        line.expect("it is mounted").to_owned()
    }

    /// The process that serves the mount.
    pub(crate) fn server(&self) -> Pid {
        let info = succeed(nacre().args(["info", "--json"]).arg(self.dir()), LIMIT);
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        Pid::from_raw(info["mount"]["pid"].as_i64().expect("a process") as i32).unwrap()
    }

    /// Whether the file system was closed in order.
    pub(crate) fn is_clean(&self) -> bool {
        let info = succeed(nacre().args(["info"]).arg(self.device()), LIMIT);
        info.contains("clean unmount") && !info.contains("no clean unmount")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Only what a failed test left; the servers end with their mounts.
        while is_mount_point(&self.dir())
            && rustix::mount::unmount(self.dir(), UnmountFlags::DETACH | UnmountFlags::FORCE).is_ok()
        {
        }
    }
}
