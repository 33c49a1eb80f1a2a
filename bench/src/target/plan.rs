//! Which targets there are, and what each is made of.
//!
//! A [`Plan`] comes from text. [`Plan::set_up`] makes devices, mounts and servers, in the process that runs the benchmark,
//! and gives a [`Prepared`]; when that goes away, everything it made is gone. The work is done by another process, which
//! is given the [`Opening`]: where the file system is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};

use nacre::Preset;
use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::library::Library;
use super::peer::{self, Peer};
use super::pieces::{Mounted, Pieces, Server, run};
use super::{Target, Traffic};
use crate::Error;
use crate::place::Workplace;
use crate::report::schema::Pays;
use crate::spec::Spec;

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
    Peer(Peer),
}

/// Those that are not peers with a device: for [`kinds`].
const KINDS: &[(&str, &str)] = &[
    (
        "preset:NAME",
        "a preset of nacre in the same process, without system calls; emulate=MEMORY slows it down",
    ),
    ("mount:NAME", "the same through FUSE (root); emulate=MEMORY slows it down"),
    ("dir:PATH", "a directory of any file system; any target with copy=WORD is one more of the same"),
    ("peer:tmpfs", "a tmpfs of its own (root)"),
    ("peer:ramfs", "a ramfs of its own (root)"),
];

/// Every kind of target, and what it is: for `nacre bench list`.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().chain(peer::KINDS).copied()
}

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
    /// Whether it is reached through a page cache that is not the medium itself.
    pub cached: bool,
    /// The standard input of an emulated disk. Dropped first, it delays nothing any more, and the rest ends soon.
    pub hurry: Option<ChildStdin>,
    /// The server of a mount.
    pub(super) server: Option<Server>,
    pub(super) pieces: Pieces,
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
            Some(("peer", other)) => match Peer::parse(other, &spec)? {
                Some(peer) => Kind::Peer(peer),
                None => return Err(unknown(&name)),
            },
            _ => return Err(unknown(&name)),
        };
        // It makes two of the same out of one, each with a device of its own.
        spec.text("copy", "")?;
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
                let cached = !about.ends_with("tmpfs") && !about.ends_with("ramfs");
                Ok(Prepared { cached, ..Prepared::plain(Opening::Directory(path.clone()), about, pays) })
            }
            Kind::Tmpfs => {
                let tmpfs = ground.place.tmpfs(&name, false)?;
                let_through(tmpfs.path())?;
                let opening = Opening::Directory(tmpfs.path().to_owned());
                let prepared = Prepared::plain(opening, "tmpfs".into(), Pays::Kernel);
                Ok(Prepared { cached: false, ..prepared }.with(tmpfs))
            }
            Kind::Ramfs => {
                let dir = ground.place.directory(&name)?;
                let mount = Mounted::new("ramfs", Path::new("nacre-bench"), dir, "mode=700")?;
                let_through(&mount.path)?;
                let opening = Opening::Directory(mount.path.clone());
                let prepared = Prepared::plain(opening, "ramfs".into(), Pays::Kernel);
                Ok(Prepared { cached: false, ..prepared }.with(mount))
            }
            Kind::Peer(peer) => peer.set_up(&name, ground),
            Kind::Preset(preset) => {
                let tmpfs = ground.place.tmpfs(&name, false)?;
                let (size, emulate) = (device_size(ground), self.emulation(ground));
                let about = format!("{preset} in the same process, {}", on_memory(emulate.as_deref()));
                let device = tmpfs.path().join("pm");
                let opening = Opening::Library { device, size, preset: preset.to_string(), emulate };
                let prepared = Prepared::plain(opening, about, Pays::Library);
                Ok(Prepared { cached: false, ..prepared }.with(tmpfs))
            }
            Kind::Mount(preset) => self.set_up_mount(*preset, &name, ground),
        }
    }

    /// A name for its directory, another one for other parameters.
    fn directory_name(&self) -> String {
        self.name().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
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
        Ok(Prepared { server: Some(server), ..prepared }.with(tmpfs))
    }
}

/// A server that runs as another user reaches its files below.
fn let_through(path: &Path) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o711))
}

fn unknown(name: &str) -> String {
    format!("{name} is no target; 'nacre bench list' shows them")
}

/// What nacre is on, in words.
fn on_memory(emulate: Option<&str>) -> String {
    match emulate {
        Some(emulation) => format!("on a tmpfs that emulates {emulation}"),
        None => "on a tmpfs".to_owned(),
    }
}

/// A device that is never nearly full: what it holds, twice, with room for metadata.
pub(super) fn device_size(ground: &Ground<'_>) -> u64 {
    (2 * ground.bytes + ground.files * 1024 + (64 << 20)).next_multiple_of(2 << 20)
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

impl Prepared {
    pub(super) fn plain(opening: Opening, about: String, pays: Pays) -> Prepared {
        Prepared { opening, about, pays, cached: true, hurry: None, server: None, pieces: Pieces::default() }
    }

    /// With something more that it is made of.
    fn with(mut self, piece: impl std::fmt::Debug + 'static) -> Prepared {
        self.pieces.keep(piece);
        self
    }

    /// The process that serves it, whose time is part of the work.
    pub fn server(&self) -> Option<u32> {
        self.server.as_ref().map(Server::process)
    }

    /// What a mount of nacre stored so far.
    pub fn traffic(&self, program: &Path) -> Option<Traffic> {
        let server = self.server.as_ref()?;
        let text = run(Command::new(program).args(["info", "--json"]).arg(server.dir())).ok()?;
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

#[cfg(test)]
mod tests {
    use super::{Kind, Plan, kinds};

    #[test]
    fn what_is_listed_can_be_asked_for() {
        for (name, _) in kinds() {
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
        assert!(Plan::parse("peer:zfs").unwrap_err().contains("no target"));
        assert!(Plan::parse("preset:pmfs").is_err());
    }
}
