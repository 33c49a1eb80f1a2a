//! The emulated machine of the demo: a file that stands for PM, a mount, and the process that serves it.

use std::fs;
use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nacre::MkfsOptions;
use nacre_fuse::mounts::{self, FSTYPE};
use rustix::mount::UnmountFlags;

use crate::failure::Failure;
use nacre_engine::size;

/// The time limit for a mount to become usable, and for its process to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// The directory of a file system in DRAM.
const MEMORY: &str = "/dev/shm";

/// Unmounts and removes everything when its standard input ends: after the demo, or when it was killed.
const SWEEP: &str =
    "cat >/dev/null; { umount -l \"$1\" || fusermount3 -uz \"$1\"; } 2>/dev/null; rm -rf \"$2\" \"$3\"";

/// The machine. The drop removes everything.
pub(crate) struct Machine {
    home: PathBuf,
    image: PathBuf,
    emulation: Option<String>,
    server: Option<Child>,
    sweeper: Option<(Child, PipeWriter)>,
}

impl Machine {
    /// Makes the file system, without a mount. An error means too little space, or a failed step.
    pub(crate) fn new(size: u64, emulation: Option<String>) -> Result<Machine, Failure> {
        let name = format!("nacre-demo-{}", std::process::id());
        let memory = Path::new(MEMORY);
        let memory = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let stat =
            rustix::fs::statvfs(&memory).map_err(|error| Failure::new("demo", memory.display(), error))?;
        let room = stat.f_bavail * stat.f_frsize;
        if room < size {
            let cause = format!("{} are free there, {} are needed", size::print(room), size::print(size));
            return Err(Failure::new("demo", memory.display(), cause).advice("--size makes it smaller"));
        }
        let home = std::env::temp_dir().join(&name);
        let image = memory.join(format!("{name}.pm"));
        let made = |error: io::Error| Failure::new("demo", home.display(), error);
        fs::create_dir(&home).map_err(made)?;
        let mut machine = Machine { home: home.clone(), image, emulation, server: None, sweeper: None };
        fs::create_dir(machine.dir()).map_err(made)?;
        machine.sweeper = Some(machine.sweeper().map_err(made)?);
        nacre::mkfs(&machine.image, &MkfsOptions::with_size(size))?;
        Ok(machine)
    }

    /// A process that cleans up even if this one is killed. It is in a process group of its own, so that the interrupt
    /// key does not reach it.
    fn sweeper(&self) -> io::Result<(Child, PipeWriter)> {
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SWEEP, "sweep"]).arg(self.dir()).arg(&self.home).arg(&self.image);
        let child = command.stdin(reader).stdout(Stdio::null()).process_group(0).spawn()?;
        Ok((child, writer))
    }

    /// The mountpoint.
    pub(crate) fn dir(&self) -> PathBuf {
        self.home.join("mnt")
    }

    /// A directory that does not die with the mount.
    pub(crate) fn beside(&self) -> &Path {
        &self.home
    }

    /// The file that stands for PM.
    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    /// Mounts the file system. Returns the time that this took.
    pub(crate) fn mount(&mut self) -> Result<Duration, Failure> {
        let failed = |cause: String| Failure::new("mount", self.dir().display(), cause);
        let started = Instant::now();
        let program = nacre_bench::nacre_program().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(program);
        command.args(["mount", "-f"]);
        if let Some(emulation) = &self.emulation {
            command.args(["--emulate", emulation]);
        }
        command.arg(&self.image).arg(self.dir());
        let mut server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        while !self.is_usable() {
            match server.try_wait() {
                Ok(None) => {}
                // The process has reported the cause on standard error.
                Ok(Some(status)) => return Err(failed(format!("the mount process ended: {status}"))),
                Err(error) => return Err(failed(error.to_string())),
            }
            if started.elapsed() > PATIENCE {
                // The process may be gone already.
                let _ = server.kill();
                return Err(failed(format!("not usable after {PATIENCE:?}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.server = Some(server);
        Ok(started.elapsed())
    }

    fn is_usable(&self) -> bool {
        let ours = mounts::list().is_ok_and(|list| {
            list.iter().any(|mount| mount.fstype == FSTYPE && mount.mountpoint == self.dir())
        });
        // Attributes of a dead mount may still be cached; this always reaches the server.
        ours && rustix::fs::statfs(self.dir()).is_ok()
    }

    /// Kills the process that serves the mount.
    pub(crate) fn kill(&mut self) -> Result<(), Failure> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        server
            .kill()
            .and_then(|()| server.wait())
            .map_err(|error| Failure::new("kill", "the mount process", error))?;
        Ok(())
    }

    /// Makes a clean unmount.
    pub(crate) fn unmount(&mut self) -> Result<(), Failure> {
        mounts::unmount(&self.dir(), UnmountFlags::empty())?;
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let status = server.wait().map_err(|error| Failure::new("unmount", self.dir().display(), error))?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::new("unmount", self.dir().display(), format!("the mount process ended: {status}")))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some((mut sweeper, writer)) = self.sweeper.take() else { return };
        // The sweeper does all that can be done; its failures have no reader.
        drop(writer);
        let _ = sweeper.wait();
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
    }
}
