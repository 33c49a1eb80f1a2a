//! One mount from beginning to end.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{Config, INodeNo, MountOption, Session, SessionACL};
use nacre_engine::{Error, InodeId, Kind, Result};
use nacre_vfs::{Layout, Vfs};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::connection::Connection;
use crate::control::Control;
use crate::kernel::Kernel;
use crate::mounts::{self, FSTYPE, FUSERMOUNT};
use crate::nodes::swapped;
use crate::requests::Requests;
use crate::server::{Alarm, Server, Settings};

/// The device through which the kernel and a server talk.
const FUSE_DEVICE: &str = "/dev/fuse";
/// KiB that the kernel reads ahead in one file, unless the mount bypasses the page cache.
const READ_AHEAD_KIB: u32 = 256;

/// The options of a mount.
#[derive(Clone)]
pub struct ServeOptions {
    /// The source in the table of mounts: the path of the device.
    pub source: String,
    /// Threads that answer requests; by default as many as cores, 2 to 16. If none waits for a disk, more threads only
    /// take turns, because the kernel wakes them one after the other, each with cold caches.
    pub threads: Option<usize>,
    /// Refuse changes.
    pub read_only: bool,
    /// Let other users in, as permissions allow.
    pub allow_other: bool,
    /// Device nodes work.
    pub dev: bool,
    /// Set-id bits work.
    pub suid: bool,
    /// Programs can be run from here.
    pub exec: bool,
    /// Symbolic links are not followed, if root mounts.
    pub no_symlinks: bool,
    /// Do not update atime.
    pub no_atime: bool,
    /// Every write is durable when it returns.
    pub sync: bool,
    /// Every change of a directory is durable when it returns.
    pub dirsync: bool,
    /// The kernel buffers writes and merges small ones. Data without a sync is lost in a crash, as with any file
    /// system of the kernel. SEEK_DATA and SEEK_HOLE take each file for data up to its end. No file is made immutable
    /// or append-only, because the kernel would write back data that it had accepted before.
    pub writeback: bool,
    /// Reads and writes bypass the page cache, and writers of one file run in parallel.
    pub direct_io: bool,
    /// The receiver of failures of the device.
    pub alarm: Alarm,
    /// The handler of the extended attributes `system.nacre.NAME`.
    pub control: Option<Arc<dyn Control>>,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            source: "nacre".to_string(),
            threads: None,
            read_only: false,
            allow_other: false,
            dev: false,
            suid: false,
            exec: true,
            no_symlinks: false,
            no_atime: false,
            sync: false,
            dirsync: false,
            writeback: false,
            direct_io: false,
            alarm: Arc::new(|error| drop(writeln!(io::stderr(), "nacre: {error}"))),
            control: None,
        }
    }
}

impl ServeOptions {
    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(cores.clamp(2, 16)).max(1)
    }

    fn acl(&self) -> SessionACL {
        if self.allow_other { SessionACL::All } else { SessionACL::Owner }
    }

    /// The flags of mount(2).
    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NODEV, !self.dev);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NOEXEC, !self.exec);
        flags.set(MountFlags::NOSYMFOLLOW, self.no_symlinks);
        flags.set(MountFlags::NOATIME, self.no_atime);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags.set(MountFlags::DIRSYNC, self.dirsync);
        flags
    }

    /// The same for fusermount3, which knows them by name.
    fn named(&self) -> Vec<MountOption> {
        let mut options = vec![
            MountOption::FSName(mounts::escape_option(&self.source)),
            MountOption::Subtype("nacre".to_string()),
            MountOption::DefaultPermissions,
            if self.read_only { MountOption::RO } else { MountOption::RW },
            if self.exec { MountOption::Exec } else { MountOption::NoExec },
        ];
        // fusermount3 never grants dev and suid to a user, and refuses them by name.
        let flags = [
            (self.no_atime, MountOption::NoAtime),
            (self.sync, MountOption::Sync),
            (self.dirsync, MountOption::DirSync),
        ];
        options.extend(flags.into_iter().filter(|(set, _)| *set).map(|(_, option)| option));
        options
    }
}

/// Tells the kernel of changes that do not pass through it.
#[derive(Clone)]
pub struct Notices {
    kernel: Arc<Kernel>,
    root_number: u64,
}

impl Notices {
    /// The contents of a file are others than the ones that its writers gave. Its pages and attributes are read again.
    /// The kernel may write pages of it meanwhile, so a thread that serves requests, or frees blocks for them, must not
    /// call this.
    pub fn content_changed(&self, id: InodeId) {
        let id = INodeNo(swapped(id.number, self.root_number));
        self.kernel.write_pages(id, 0..u64::MAX);
        self.kernel.attributes_changed(id);
    }
}

/// Ends a mount.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mountpoint: PathBuf,
    device: (u32, u32),
    /// The connection has ended, and another one may have its number.
    has_ended: Arc<AtomicBool>,
}

impl Unmounter {
    /// The mountpoint.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts; [`Busy`](Kind::Busy) while programs use it. False if it is not there any more: it was detached or
    /// moved, or another mount hides it.
    pub fn unmount(&self) -> Result<bool> {
        self.end(UnmountFlags::empty())
    }

    /// Detaches it from the tree at once. It is served until no program uses it any more. False as for
    /// [`unmount`](Unmounter::unmount).
    pub fn detach(&self) -> Result<bool> {
        self.end(UnmountFlags::DETACH)
    }

    /// Ends it at once; programs that use it get errors. False as for [`unmount`](Unmounter::unmount).
    pub fn abort(&self) -> Result<bool> {
        self.end(UnmountFlags::FORCE | UnmountFlags::DETACH)
    }

    /// Ends the connection itself, also that of a detached mount. Programs that use it get errors.
    pub fn break_connection(&self) -> Result<()> {
        if self.has_ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let connection = Connection::numbered(self.device.1);
        connection
            .and_then(|connection| connection.abort())
            .map_err(|error| Error::io("end the connection", self.mountpoint.display().to_string(), error))
    }

    /// Ends this mount only if it is still there, because another may have taken its place.
    fn end(&self, flags: UnmountFlags) -> Result<bool> {
        let is_there = self.is_mounted()?;
        if is_there {
            mounts::unmount(&self.mountpoint, flags)?;
        }
        Ok(is_there)
    }

    fn is_mounted(&self) -> Result<bool> {
        Ok(mounts::at_absolute(&self.mountpoint)?.is_some_and(|mount| mount.device == self.device))
    }
}

/// Mounts `vfs`, calls `ready` once the mount can be used, and serves it until it is unmounted. No node is held
/// afterwards.
pub fn serve<L: Layout>(
    vfs: Arc<Vfs<L>>,
    mountpoint: &Path,
    options: &ServeOptions,
    ready: impl FnOnce(Unmounter, Notices),
) -> Result<()> {
    mounts::clear_dead(mountpoint)?;
    let path = mounts::absolute(mountpoint)?;
    let metadata = fs::metadata(&path).map_err(|error| failed(&path, error))?;
    if !metadata.is_dir() {
        return Err(Error::new(Kind::NotDirectory).operation("mount").object(path.display().to_string()));
    }
    let server = server_of(vfs, options);
    let kernel = Arc::clone(&server.kernel);
    let notices = Notices { kernel: Arc::clone(&kernel), root_number: server.nodes.root_number() };
    let session = begin(Requests::new(server), &path, options)?;
    kernel.connect(session.notifier());
    // No code here may ask the mount, because its requests wait until the session runs.
    let has_ended = Arc::default();
    let unmounter = match mounts::at_absolute(&path)? {
        Some(mount) if mount.fstype == FSTYPE => {
            Unmounter { mountpoint: path, device: mount.device, has_ended }
        }
        // It was unmounted already; the session ends with its first read.
        _ => Unmounter { mountpoint: path, device: (0, 0), has_ended },
    };
    read_further_ahead(&unmounter);
    ready(unmounter.clone(), notices);
    let ended = ended(session.run()).map_err(|error| failed(&unmounter.mountpoint, error));
    unmounter.has_ended.store(true, Ordering::Release);
    // A connection that did not end by unmounting leaves a dead mount behind.
    unmounter.detach()?;
    ended
}

/// Serves an existing connection: a descriptor that gives one request with each read and takes one reply with each
/// write. Another program has mounted it, or it is a socket without a kernel behind it. Only replies are sent. Returns
/// when the connection ends; no node is held afterwards. A message that is no request ends it with an error.
pub fn serve_connection<L: Layout>(
    vfs: Arc<Vfs<L>>,
    connection: OwnedFd,
    options: &ServeOptions,
) -> Result<()> {
    let mut config = Config::default();
    config.n_threads = Some(options.threads());
    let failed = |error| Error::io("serve", "a connection", error);
    Session::from_fd(Requests::new(server_of(vfs, options)), connection, options.acl(), config)
        .map_err(failed)
        .and_then(|session| ended(session.run()).map_err(failed))
}

/// The result of a session. If the kernel ends the connection while it passes a request, the reader gets "aborted".
/// That request needs no answer, and unmounting is no error.
fn ended(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        outcome => outcome,
    }
}

fn server_of<L: Layout>(vfs: Arc<Vfs<L>>, options: &ServeOptions) -> Server<L> {
    let settings = Settings {
        writeback: options.writeback,
        direct_io: options.direct_io,
        sync: options.sync,
        durable_on_return: vfs.layout().capabilities().durable_on_return,
        ..Settings::default()
    };
    let ServeOptions { alarm, control, .. } = options.clone();
    Server::new(vfs, settings, alarm, control)
}

/// Mounts, and does the handshake with the kernel.
fn begin<L: Layout>(
    requests: Requests<L>,
    path: &Path,
    options: &ServeOptions,
) -> Result<Session<Requests<L>>> {
    let acl = options.acl();
    let mut config = Config::default();
    config.mount_options = options.named();
    config.acl = acl;
    config.n_threads = Some(options.threads());
    let device = File::options().read(true).write(true).open(FUSE_DEVICE);
    // A descriptor for each thread, if this process may open the device again.
    config.clone_fd = device.is_ok();
    if rustix::process::geteuid().is_root() {
        let device = device.map_err(|error| {
            Error::io("mount", FUSE_DEVICE, error).advice("load the kernel's module: modprobe fuse")
        })?;
        match mount_as_root(device.into(), path, options) {
            Ok(device) => {
                return Session::from_fd(requests, device, acl, config).map_err(|error| {
                    // A mount that cannot be served would be dead. The first error is returned.
                    let _ = mounts::unmount(path, UnmountFlags::DETACH);
                    failed(path, error)
                });
            }
            // Root of a container may not be allowed to mount.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            Err(error) => return Err(failed(path, error)),
        }
    } else if device.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return Err(Error::new(Kind::AccessDenied).operation("mount").object(FUSE_DEVICE).advice(
            "this user may not use FUSE; mount as root, or have the device opened to users (mode 0666)",
        ));
    }
    Session::new(requests, path, &config).map_err(|error| refused_to_user(path, options, error))
}

/// Mounts with mount(2).
fn mount_as_root(device: OwnedFd, path: &Path, options: &ServeOptions) -> io::Result<OwnedFd> {
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        fs::metadata(path)?.mode() & libc::S_IFMT,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    rustix::mount::mount(options.source.as_str(), path, FSTYPE, options.flags(), data.as_c_str())?;
    Ok(device)
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io("mount", path.display().to_string(), error)
}

/// An error with advice, for a mount that fusermount3 refused or that did not reach it.
fn refused_to_user(path: &Path, options: &ServeOptions, error: io::Error) -> Error {
    let advice = if error.kind() == io::ErrorKind::NotFound {
        "mounting as a user takes fusermount3, of the package fuse3; or mount as root"
    } else if options.allow_other {
        "a user may use allow_other only where /etc/fuse.conf has the line user_allow_other"
    } else {
        "mounting as a user takes the right to write to the directory, and fusermount3 installed set-uid root"
    };
    let said = error.to_string();
    let source =
        if said.trim().is_empty() { format!("{FUSERMOUNT} failed") } else { said.trim().to_string() };
    Error::new(Kind::NotPermitted)
        .operation("mount")
        .object(path.display().to_string())
        .advice(advice)
        .source(source)
}

/// Raises the kernel's read-ahead from 128 KiB, because a large request costs little more than a small one. The value
/// is moderate, because the kernel reads as much around each page of a mapping with random access.
///
/// Measured on PM and on an emulated Optane SSD:
///
/// - Sequential reads with 1 MiB: 2.44 and 1.79 GB/s; with this value: 2.49 and 1.69; with 128 KiB: 2.06 and 1.46.
/// - A page of a mapping takes 390 and 740 us with 1 MiB, 160 and 240 with this value, 80 and 180 with 128 KiB.
///
/// If it cannot be set (it takes root), reading is only a little slower.
fn read_further_ahead(unmounter: &Unmounter) {
    let (major, minor) = unmounter.device;
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let _ = fs::write(setting, READ_AHEAD_KIB.to_string());
}

#[cfg(test)]
mod tests {
    use std::io;

    use fuser::MountOption;
    use rustix::mount::MountFlags;

    use super::ServeOptions;

    #[test]
    fn an_end_in_the_middle_of_a_request_is_an_end() {
        let outcome = |code| super::ended(Err(io::Error::from_raw_os_error(code)));
        assert!(outcome(libc::ECONNABORTED).is_ok() && outcome(libc::EIO).is_err());
    }

    #[test]
    fn flags_of_the_mount() {
        let plain = ServeOptions::default();
        assert_eq!(plain.flags(), MountFlags::NODEV | MountFlags::NOSUID);
        let root = ServeOptions { dev: true, suid: true, read_only: true, exec: false, ..plain };
        assert_eq!(root.flags(), MountFlags::RDONLY | MountFlags::NOEXEC);
    }

    #[test]
    fn users_are_never_granted_dev_or_suid() {
        let options =
            ServeOptions { dev: true, suid: true, source: "a,b".to_string(), ..ServeOptions::default() };
        let named = options.named();
        assert!(!named.contains(&MountOption::Dev) && !named.contains(&MountOption::Suid));
        assert!(named.contains(&MountOption::FSName("a\\,b".to_string())));
    }

    #[test]
    fn there_is_always_a_thread() {
        assert!(ServeOptions::default().threads() >= 2);
        assert_eq!(ServeOptions { threads: Some(0), ..ServeOptions::default() }.threads(), 1);
    }
}
