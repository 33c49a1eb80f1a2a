//! The kernel's files about a connection, in the file system `fusectl`.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::mounts::MountEntry;

/// The directory of that file system, if mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The kernel's directory of one connection.
#[derive(Debug)]
pub struct Connection(File);

impl Connection {
    /// That of a mount. Root can open it; the user that mounted can, too, where `fusectl` is mounted.
    pub fn of(mount: &MountEntry) -> io::Result<Connection> {
        Connection::numbered(mount.device.1)
    }

    /// That with this number, which is the minor number of the device of its mount.
    pub(crate) fn numbered(number: u32) -> io::Result<Connection> {
        let name = number.to_string();
        let standard = Path::new(CONNECTIONS).join(&name);
        if standard.exists() {
            return File::open(standard).map(Connection);
        }
        // The directory has the name of this process, so that one thread at a time has it.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = std::env::temp_dir().join(format!("nacre-fusectl-{}", std::process::id()));
        fs::create_dir(&dir)?;
        // Detached before use, because this process may end at any moment and must not leave it there.
        let opened = rustix::mount::mount("fusectl", &dir, "fusectl", MountFlags::empty(), None)
            .map_err(io::Error::from)
            .and_then(|()| {
                let opened = File::open(dir.join(name));
                rustix::mount::unmount(&dir, UnmountFlags::DETACH)?;
                opened
            });
        fs::remove_dir(&dir).and(opened).map(Connection)
    }

    /// The number of requests that the server has not answered yet; 0 after the end of the connection.
    pub fn waiting(&self) -> io::Result<u64> {
        let mut text = String::new();
        // The kernel counts at the first read of a file, and has none for a connection that has ended.
        match self.open("waiting", OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            opened => opened?.read_to_string(&mut text)?,
        };
        Ok(text.trim().parse().unwrap_or(0))
    }

    /// Ends the connection. Programs that use the mount get errors.
    pub(crate) fn abort(&self) -> io::Result<()> {
        self.open("abort", OFlags::WRONLY)?.write_all(b"1")
    }

    fn open(&self, name: &str, how: OFlags) -> io::Result<File> {
        Ok(rustix::fs::openat(&self.0, name, how | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}
