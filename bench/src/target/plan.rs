//! Which targets there are, and what each is made of.
//!
//! A [`Plan`] comes from text. [`Plan::set_up`] makes devices, mounts and servers, in the process that runs the benchmark,
//! and gives a [`Prepared`]; when that goes away, everything it made is gone. The work is done by another process, which
//! is given the [`Opening`]: where the file system is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nacre::Preset;
use rustix::mount::{MountFlags, UnmountFlags};
use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::library::Library;
use super::{Target, Traffic};
use crate::Error;
use crate::place::{Tmpfs, Workplace};
use crate::report::schema::Pays;
use crate::spec::Spec;

/// How long a mount may take to appear, and a server to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A target, as asked for.
#[derive(Debug, Clone)]
pub struct Plan {
    spec: Spec,
    kind: Kind,
    emulate: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Preset(Preset),
    Mount(Preset),
    Directory(PathBuf),
    Tmpfs,
    Ramfs,
    Loop { filesystem: &'static str, disk: bool },
}

/// What is there without further ado: for `nacre bench list`.
pub const KINDS: &[(&str, &str)] = &[
    (
        "preset:NAME",
        "a preset of nacre in the same process, without system calls; emulate=MEMORY slows it down",
    ),
    ("mount:NAME", "the same through FUSE (root); emulate=MEMORY slows it down"),
    ("dir:PATH", "a directory of any file system"),
    ("peer:tmpfs", "a tmpfs of its own (root)"),
    ("peer:ramfs", "a ramfs of its own (root)"),
    ("peer:ext4", "ext4 on a loop device over tmpfs (root)"),
    ("peer:xfs", "xfs on a loop device over tmpfs (root)"),
    ("peer:ext4-disk", "ext4 on a loop device over a file where --disk says (root)"),
    ("peer:xfs-disk", "xfs on a loop device over a file where --disk says (root)"),
];

/// What is known, and cannot be had by this program: a reason for each.
const ELSEWHERE: &[(&str, &str)] = &[
    ("peer:ext4-dax", "needs persistent memory that the kernel knows; mount it and use dir:PATH"),
    ("peer:nilfs2", "needs a kernel with NILFS2; mount it and use dir:PATH"),
    ("peer:f2fs", "needs a kernel with F2FS; mount it and use dir:PATH"),
];

/// What all targets of a point are made for.
#[derive(Debug, Clone)]
pub struct Ground<'a> {
    /// Where directories and mounts go.
    pub place: &'a Workplace,
    /// Bytes and files that the workload needs.
    pub bytes: u64,
    /// As [`Ground::bytes`].
    pub files: u64,
    /// Emulated memory of targets that do not say.
    pub emulate: Option<&'a str>,
    /// A directory on a disk, for peers on disks.
    pub disk: &'a Path,
    /// The program `nacre`.
    pub program: &'a Path,
}

/// Where a file system is, for the process that works on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Opening {
    /// To be made and opened by the library, on a device that does not exist yet.
    Library {
        /// The device.
        device: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The name of a preset.
        preset: String,
        /// What it is slowed down to.
        emulate: Option<String>,
    },
    /// A directory that is there.
    Directory(PathBuf),
}

impl Opening {
    /// Opens it.
    pub fn open(&self) -> Result<Box<dyn Target>, Error> {
        Ok(match self {
            Opening::Library { device, size, preset, emulate } => {
                Box::new(Library::create(device, *size, preset.parse()?, emulate.as_deref())?)
            }
            Opening::Directory(path) => {
                Box::new(Directory::open(path).map_err(|error| format!("{}: {error}", path.display()))?)
            }
        })
    }
}

/// A target that can be worked on. What it was made of goes away with it, in this order.
#[derive(Debug)]
pub struct Prepared {
    /// Where it is.
    pub opening: Opening,
    /// In words.
    pub about: String,
    /// What its operations pay for.
    pub pays: Pays,
    /// The server of a mount.
    server: Option<Server>,
    _mount: Option<Mounted>,
    _loop: Option<LoopDevice>,
    _backing: Option<Backing>,
    _tmpfs: Option<Tmpfs>,
}

impl Plan {
    /// From text: a kind, a colon, a name, and parameters.
    pub fn parse(text: &str) -> Result<Plan, String> {
        let spec: Spec = text.parse()?;
        let mut emulate = None;
        let name = spec.name().to_owned();
        let kind = match name.split_once(':') {
            Some((kind @ ("preset" | "mount"), preset)) => {
                let preset = preset.parse().map_err(|error: nacre::Error| error.to_string())?;
                let text = spec.text("emulate", "")?;
                if !text.is_empty() {
                    // A comma would end the parameter, so that `latency=200+bandwidth=1G` stands for one.
                    emulate = Some(text.replace('+', ","));
                }
                if kind == "preset" { Kind::Preset(preset) } else { Kind::Mount(preset) }
            }
            Some(("dir", path)) if !path.is_empty() => Kind::Directory(path.into()),
            Some(("peer", "tmpfs")) => Kind::Tmpfs,
            Some(("peer", "ramfs")) => Kind::Ramfs,
            Some(("peer", "ext4")) => Kind::Loop { filesystem: "ext4", disk: false },
            Some(("peer", "xfs")) => Kind::Loop { filesystem: "xfs", disk: false },
            Some(("peer", "ext4-disk")) => Kind::Loop { filesystem: "ext4", disk: true },
            Some(("peer", "xfs-disk")) => Kind::Loop { filesystem: "xfs", disk: true },
            _ => {
                return Err(match ELSEWHERE.iter().find(|(other, _)| *other == name) {
                    Some((name, why)) => format!("{name}: {why}"),
                    None => format!("{name} is no target; 'nacre bench list' shows them"),
                });
            }
        };
        spec.finish()?;
        Ok(Plan { spec, kind, emulate })
    }

    /// As it was written.
    pub fn name(&self) -> String {
        self.spec.to_string()
    }

    /// Makes it. An error says what is missing.
    pub fn set_up(&self, ground: &Ground<'_>) -> Result<Prepared, Error> {
        let name = self.directory_name();
        match &self.kind {
            Kind::Directory(path) => {
                let about = format!("{}, {}", path.display(), filesystem_of(path)?);
                let pays = if about.contains("fuse") { Pays::Fuse } else { Pays::Kernel };
                Ok(Prepared::plain(Opening::Directory(path.clone()), about, pays))
            }
            Kind::Tmpfs => {
                let tmpfs = ground.place.tmpfs(&name, false)?;
                let opening = Opening::Directory(tmpfs.path().to_owned());
                let prepared = Prepared::plain(opening, "tmpfs".into(), Pays::Kernel);
                Ok(Prepared { _tmpfs: Some(tmpfs), ..prepared })
            }
            Kind::Ramfs => {
                let dir = ground.place.directory(&name)?;
                let mount = Mounted::new("ramfs", Path::new("nacre-bench"), dir, "mode=700")?;
                let opening = Opening::Directory(mount.path.clone());
                let prepared = Prepared::plain(opening, "ramfs".into(), Pays::Kernel);
                Ok(Prepared { _mount: Some(mount), ..prepared })
            }
            Kind::Loop { filesystem, disk } => set_up_loop(filesystem, *disk, &name, ground),
            Kind::Preset(preset) => {
                let tmpfs = ground.place.tmpfs(&name, false)?;
                let (size, emulate) = (device_size(ground), self.emulation(ground));
                let about = format!("{preset} in the same process, {}", on_memory(emulate.as_deref()));
                let device = tmpfs.path().join("pm");
                let opening = Opening::Library { device, size, preset: preset.to_string(), emulate };
                Ok(Prepared { _tmpfs: Some(tmpfs), ..Prepared::plain(opening, about, Pays::Library) })
            }
            Kind::Mount(preset) => self.set_up_mount(*preset, &name, ground),
        }
    }

    /// A name for its directory.
    fn directory_name(&self) -> String {
        self.spec.name().replace([':', '/'], "-")
    }

    fn emulation(&self, ground: &Ground<'_>) -> Option<String> {
        self.emulate.clone().or_else(|| ground.emulate.map(str::to_owned))
    }

    fn set_up_mount(&self, preset: Preset, name: &str, ground: &Ground<'_>) -> Result<Prepared, Error> {
        let tmpfs = ground.place.tmpfs(&format!("{name}-pm"), false)?;
        let dir = ground.place.directory(name)?;
        let device = tmpfs.path().join("pm");
        let preset = preset.to_string();
        let size = device_size(ground).to_string();
        run(Command::new(ground.program).args(["mkfs", "--preset", &preset, "--size", &size]).arg(&device))?;
        let mut command = Command::new(ground.program);
        command.args(["mount", "--foreground"]);
        let emulate = self.emulation(ground);
        if let Some(emulate) = &emulate {
            command.args(["--emulate", emulate]);
        }
        let server = Server::start(command.arg(&device).arg(&dir), dir.clone())?;
        let about = format!("{preset} through FUSE, {}", on_memory(emulate.as_deref()));
        let prepared = Prepared::plain(Opening::Directory(dir), about, Pays::Fuse);
        Ok(Prepared { server: Some(server), _tmpfs: Some(tmpfs), ..prepared })
    }
}

/// What nacre is on, in words.
fn on_memory(emulate: Option<&str>) -> String {
    match emulate {
        Some(emulation) => format!("on a tmpfs that emulates {emulation}"),
        None => "on a tmpfs".to_owned(),
    }
}

/// A device that is never nearly full: what it holds, twice, with room for metadata.
fn device_size(ground: &Ground<'_>) -> u64 {
    (2 * ground.bytes + ground.files * 1024 + (64 << 20)).next_multiple_of(2 << 20)
}

fn set_up_loop(
    filesystem: &'static str,
    disk: bool,
    name: &str,
    ground: &Ground<'_>,
) -> Result<Prepared, Error> {
    // xfs refuses less than 300 MiB.
    let size = device_size(ground).max(320 << 20);
    let tmpfs = if disk { None } else { Some(ground.place.tmpfs(&format!("{name}-dev"), false)?) };
    let parent = tmpfs.as_ref().map_or(ground.disk, Tmpfs::path);
    let backing = Backing::new(parent.join(format!("nacre-bench-{}-{name}.img", std::process::id())), size)?;
    let device = LoopDevice::new(&backing.path)?;
    let mkfs = format!("mkfs.{filesystem}");
    let options: &[&str] = match filesystem {
        // Nothing is left to be initialised in the background.
        "ext4" => &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
        _ => &["-q", "-f"],
    };
    let mut command = Command::new(&mkfs);
    command.args(options);
    if filesystem == "ext4" {
        let inodes = ground.files + ground.files / 4 + 1024;
        command.args(["-N", &inodes.to_string()]);
    }
    run(command.arg(&device.path))?;
    let dir = ground.place.directory(name)?;
    let mount = Mounted::new(filesystem, &device.path, dir, "")?;
    let whereon = if disk { format!("a file in {}", ground.disk.display()) } else { "tmpfs".to_owned() };
    let about = format!("{filesystem} on a loop device over {whereon}");
    let opening = Opening::Directory(mount.path.clone());
    Ok(Prepared {
        _mount: Some(mount),
        _loop: Some(device),
        _backing: Some(backing),
        _tmpfs: tmpfs,
        ..Prepared::plain(opening, about, Pays::Kernel)
    })
}

/// The kind of file system that a directory is on.
fn filesystem_of(path: &Path) -> Result<String, Error> {
    let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut kind = ("", "");
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        if let (Some(dir), Some(name)) = (words.next(), words.next())
            && path.starts_with(dir)
            && dir.len() >= kind.0.len()
        {
            kind = (dir, name);
        }
    }
    Ok(kind.1.to_owned())
}

/// Runs a program that is to succeed.
pub(super) fn run(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{name} is not installed"),
        _ => format!("{name}: {error}"),
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name}: {}: {}", output.status, said.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Prepared {
    fn plain(opening: Opening, about: String, pays: Pays) -> Prepared {
        Prepared {
            opening,
            about,
            pays,
            server: None,
            _mount: None,
            _loop: None,
            _backing: None,
            _tmpfs: None,
        }
    }

    /// The process that serves it, whose time is part of the work.
    pub fn server(&self) -> Option<u32> {
        self.server.as_ref().map(|server| server.child.id())
    }

    /// What a mount of nacre stored so far.
    pub fn traffic(&self, program: &Path) -> Option<Traffic> {
        let server = self.server.as_ref()?;
        let text = run(Command::new(program).args(["info", "--json"]).arg(&server.dir)).ok()?;
        let info: serde_json::Value = serde_json::from_str(&text).ok()?;
        let counters = &info["device"]["counters"];
        Some(Traffic {
            bytes: counters["bytes_stored"].as_u64()?,
            lines: counters["lines_flushed"].as_u64()?,
            fences: counters["fences"].as_u64()?,
            dram: info["space"]["index_bytes"].as_u64().unwrap_or(0),
        })
    }
}

/// A mount that a process serves.
#[derive(Debug)]
struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    /// Starts it, and waits until something is mounted on the directory.
    fn start(command: &mut Command, dir: PathBuf) -> Result<Server, Error> {
        let before = rustix::fs::stat(&dir)?.st_dev;
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut server = Server { child, dir };
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
}

impl Drop for Server {
    fn drop(&mut self) {
        if rustix::mount::unmount(&self.dir, UnmountFlags::empty()).is_err() {
            // Somebody still has a file open, or it died: it goes away when the last one lets go.
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
struct Mounted {
    path: PathBuf,
}

impl Mounted {
    fn new(filesystem: &str, device: &Path, path: PathBuf, options: &str) -> Result<Mounted, Error> {
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
            Err(error) => eprintln!("{}: cannot be removed: {error}", self.path.display()),
        }
    }
}

/// A file under a loop device.
#[derive(Debug)]
struct Backing {
    path: PathBuf,
}

impl Backing {
    fn new(path: PathBuf, size: u64) -> Result<Backing, Error> {
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
            eprintln!("{}: cannot be removed: {error}", self.path.display());
        }
    }
}

/// A loop device.
#[derive(Debug)]
struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    fn new(backing: &Path) -> Result<LoopDevice, Error> {
        let path = run(Command::new("losetup").args(["--find", "--show"]).arg(backing))?;
        Ok(LoopDevice { path: path.into() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("losetup").arg("--detach").arg(&self.path)) {
            eprintln!("{}: cannot be detached: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS, Kind, Plan};

    #[test]
    fn what_is_listed_can_be_asked_for() {
        for (name, _) in KINDS {
            let name = name.replace("NAME", "nova").replace("PATH", "/tmp");
            assert_eq!(Plan::parse(&name).unwrap_or_else(|why| panic!("{why}")).name(), name);
        }
    }

    #[test]
    fn emulation_is_a_parameter_and_strangers_are_told() {
        let plan = Plan::parse("preset:nova,emulate=latency=200+bandwidth=1G").unwrap();
        assert_eq!(plan.emulate.as_deref(), Some("latency=200,bandwidth=1G"));
        assert!(matches!(plan.kind, Kind::Preset(_)));
        assert!(Plan::parse("preset:nova,emulation=pcm").unwrap_err().contains("no parameter"));
        assert!(Plan::parse("peer:f2fs").unwrap_err().contains("needs a kernel"));
        assert!(Plan::parse("peer:zfs").unwrap_err().contains("no target"));
        assert!(Plan::parse("preset:pmfs").is_err());
    }
}
