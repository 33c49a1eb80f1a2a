//! The parts of targets: mounts, loop devices, files, servers. Each goes away with its value.

use std::fmt::Debug;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::counters::{DiskWork, processor_time};
use crate::{Error, say};

/// How long a mount may take to appear, and a server to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The parts of a target, in the order in which they were made. They are taken down in the other order.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    all: Vec<Box<dyn Debug>>,
    /// Loop devices among them.
    loops: Vec<PathBuf>,
    /// Processes that serve emulated disks among them.
    disks: Vec<u32>,
}

impl Pieces {
    /// Keeps one until the end.
    pub(super) fn keep(&mut self, piece: impl Debug + 'static) {
        self.all.push(Box::new(piece));
    }

    /// Keeps a loop device; gives its path. Bytes written to it are counted.
    pub(super) fn keep_loop(&mut self, device: LoopDevice) -> PathBuf {
        let path = device.path.clone();
        self.loops.push(path.clone());
        self.keep(device);
        path
    }

    /// Keeps the server of an emulated disk. Its processor time is counted.
    pub(super) fn keep_disk(&mut self, server: Server) {
        self.disks.push(server.process());
        self.keep(server);
    }

    /// The work of its loop devices so far; none where there are no such devices.
    pub(super) fn disk_work(&self) -> Option<DiskWork> {
        let written = self.loops.iter().map(|device| written_to(device)).sum::<Option<u64>>()?;
        let cpu = self.disks.iter().map(|&disk| processor_time(disk)).sum();
        (!self.loops.is_empty()).then_some(DiskWork { written, cpu: (!self.disks.is_empty()).then_some(cpu) })
    }
}

/// Bytes written to a block device so far.
fn written_to(device: &Path) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/sys/block").join(device.file_name()?).join("stat")).ok()?;
    // The seventh number: sectors of 512 bytes, at any sector size of the device.
    Some(stat.split_whitespace().nth(6)?.parse::<u64>().ok()? * 512)
}

impl Drop for Pieces {
    fn drop(&mut self) {
        while let Some(piece) = self.all.pop() {
            drop(piece);
        }
    }
}

/// Runs a program that is to succeed.
pub(super) fn run(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Ctrl-C on the terminal is for us alone: half-made parts could not be taken down.
    command.stdin(Stdio::null()).process_group(0);
    let output = loop {
        let output = command.output().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("{name} is not installed"),
            _ => format!("{name}: {error}"),
        })?;
        // Before a child has a group of its own, Ctrl-C ends it, too: its program has not begun.
        if output.status.signal() != Some(libc::SIGINT) {
            break output;
        }
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name}: {}: {}", output.status, said.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// An error when a program is not on the path.
pub(super) fn check_program(program: &str) -> Result<(), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|dir| dir.join(program).is_file()) {
        true => Ok(()),
        false => Err(format!("{program} is not installed").into()),
    }
}

/// A mount that a process serves.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    hurry: Option<ChildStdin>,
    dir: PathBuf,
}

impl Server {
    /// Starts it, and waits until something is mounted on the directory.
    pub(super) fn start(command: &mut Command, dir: PathBuf) -> Result<Server, Error> {
        let before = rustix::fs::stat(&dir)?.st_dev;
        let mut child = command
            .stdin(Stdio::piped())
            // The message that it is mounted is of no use to a benchmark.
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let hurry = child.stdin.take();
        let mut server = Server { child, hurry, dir };
        let begin = Instant::now();
        while rustix::fs::stat(&server.dir).map_or(before, |stat| stat.st_dev) == before {
            if let Some(status) = server.child.try_wait()? {
                let mut said = String::new();
                if let Some(mut output) = server.child.stderr.take() {
                    std::io::Read::read_to_string(&mut output, &mut said)?;
                }
                return Err(format!("the mount ended with {status}: {}", said.trim()).into());
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("{}: nothing was mounted in a minute", server.dir.display()).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Its process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Where it is mounted.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its standard input. When that ends, an emulated disk delays nothing any more.
    pub(super) fn take_hurry(&mut self) -> Option<ChildStdin> {
        self.hurry.take()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if rustix::mount::unmount(&self.dir, UnmountFlags::empty()).is_err() {
            // A process still has a file open, or the server died: the mount goes away when the last one lets go.
            let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        }
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir(&self.dir);
    }
}

/// A mount by the kernel.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) path: PathBuf,
}

impl Mounted {
    pub(super) fn new(
        filesystem: &str,
        device: &Path,
        path: PathBuf,
        options: &str,
    ) -> Result<Mounted, Error> {
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::empty();
        match rustix::mount::mount(device, &path, filesystem, flags, options.as_c_str()) {
            Ok(()) => Ok(Mounted { path }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(format!("mounting {filesystem}: {error}").into())
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = rustix::mount::unmount(&self.path, UnmountFlags::empty())
            .or_else(|_| rustix::mount::unmount(&self.path, UnmountFlags::DETACH));
        match unmounted.map_err(Error::from).and_then(|()| Ok(fs::remove_dir(&self.path)?)) {
            Ok(()) => {}
            Err(error) => say::failed(self.path.display(), format_args!("cannot be removed: {error}")),
        }
    }
}

/// A file under a loop device.
#[derive(Debug)]
pub(super) struct Backing {
    pub(super) path: PathBuf,
}

impl Backing {
    pub(super) fn new(path: PathBuf, size: u64) -> Result<Backing, Error> {
        let file = fs::File::create_new(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let backing = Backing { path };
        // All its blocks are there before anything is measured.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size)
            .map_err(|error| format!("{}: {error}", backing.path.display()))?;
        Ok(backing)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            say::failed(self.path.display(), format_args!("cannot be removed: {error}"));
        }
    }
}

/// A device that was blank, and is made so again.
#[derive(Debug)]
pub(super) struct Blank(pub(super) PathBuf);

impl Drop for Blank {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("wipefs").args(["--all", "--quiet"]).arg(&self.0)) {
            say::failed(self.0.display(), format_args!("cannot be wiped: {error}"));
        }
    }
}

/// A loop device.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
}

impl LoopDevice {
    /// Over a file; `direct` goes past the page cache of that file, and it is an error when the kernel does not. Over a
    /// tmpfs nothing is direct: its page cache is where the data is.
    pub(super) fn new(backing: &Path, direct: bool) -> Result<LoopDevice, Error> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]);
        if direct {
            command.arg("--direct-io=on");
        }
        let path = run(command.arg(backing))?;
        let device = LoopDevice { path: path.into() };
        // A file system that cannot do it makes the kernel fall back to the page cache and say nothing.
        if direct && !device.is_direct()? {
            let file = backing.display();
            return Err(format!("a loop device over {file} does not go past the page cache there").into());
        }
        Ok(device)
    }

    fn is_direct(&self) -> Result<bool, Error> {
        let name = self.path.file_name().unwrap_or_default();
        let setting = Path::new("/sys/block").join(name).join("loop/dio");
        let text = fs::read_to_string(&setting).map_err(|error| format!("{}: {error}", setting.display()))?;
        Ok(text.trim() == "1")
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("losetup").arg("--detach").arg(&self.path)) {
            say::failed(self.path.display(), format_args!("cannot be detached: {error}"));
        }
    }
}

/// A device of the device mapper.
#[derive(Debug)]
pub(super) struct Mapped {
    name: String,
}

impl Mapped {
    /// One with this name and table.
    pub(super) fn new(name: String, table: &str) -> Result<Mapped, Error> {
        run(Command::new("dmsetup").args(["create", &name, "--table", table]))?;
        Ok(Mapped { name })
    }

    pub(super) fn path(&self) -> PathBuf {
        Path::new("/dev/mapper").join(&self.name)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("dmsetup").args(["remove", "--retry", &self.name])) {
            say::failed(&self.name, format_args!("cannot be removed: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Blank, run};

    /// Ctrl-C between fork and the group of a child failed the run, and left what the child was to take down.
    #[test]
    fn a_program_that_ctrl_c_ended_before_it_began_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let script = "[ -e begun ] && exec echo done; : >begun; kill -INT $$";
        // A shell cannot undo that its caller ignores the signal.
        let mut command = Command::new("env");
        let said =
            run(command.args(["--default-signal=INT", "sh", "-c", script]).current_dir(dir.path())).unwrap();
        assert_eq!(said, "done");
    }

    #[test]
    fn what_was_blank_is_blank_again() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("device");
        std::fs::File::create(&device).unwrap().set_len(8 << 20).unwrap();
        let tools = run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device)).is_ok()
            && run(Command::new("wipefs").arg("--version")).is_ok();
        if !tools {
            eprintln!("left out: what_was_blank_is_blank_again (mkfs.ext4 or wipefs is not installed)");
            return;
        }
        let magic = |device: &std::path::Path| std::fs::read(device).unwrap()[1024 + 56..1024 + 58].to_vec();
        assert_eq!(magic(&device), [0x53, 0xef]);
        drop(Blank(device.clone()));
        assert_eq!(magic(&device), [0, 0]);
    }
}
