//! Which targets there are, and the parts of each.
//!
//! A [`Plan`] comes from text. [`Plan::set_up`] makes devices, mounts and servers, in the process that runs the benchmark,
//! and gives a [`Prepared`]; when that goes away, everything it made is gone. The work is done by another process, which
//! is given the [`Opening`]: where the file system is.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};

use nacre::{CacheOptions, OpenOptions, Preset, TierSettings, WriteBuffer};
use nacre_engine::size;
use serde::{Deserialize, Serialize};

use super::directory::{Directory, information};
use super::library::Library;
use super::medium::Device;
use super::peer::{self, Peer};
use super::pieces::{Mounted, Pieces, Server, run};
use super::tier::Tier;
use super::{Target, Traffic};
use crate::counters::DiskWork;
use crate::place::Workplace;
use crate::report::schema::Pays;
use crate::run::memory;
use crate::spec::Spec;
use crate::{Error, leftovers, say};

/// A target, as asked for.
#[derive(Debug, Clone)]
pub struct Plan {
    spec: Spec,
    kind: Kind,
    emulate: Option<String>,
    pm: Option<u64>,
    dram: Option<u64>,
    buffer: Option<u64>,
    name_index: Option<bool>,
    options: Option<String>,
    tier: Option<Tier>,
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

/// Bytes of a device of nacre for each inode that it can have.
const INODE_SPACE: u64 = 4096;

/// Those that are not peers with a device: for [`kinds`].
const KINDS: &[(&str, &str)] = &[
    (
        "preset:NAME",
        "a preset of nacre in the same process, without system calls; emulate=MEMORY slows it down, pm=SIZE is its device, \
         buffer=SIZE what it buffers in DRAM, of presets that do; name_index=on or off, of presets that have the choice; \
         tier=file|optane-ssd|nvme|sata-ssd|hdd is a disk below it, as disk= of peers (root, layouts log and \
         shadow, with pm=), of tier_size=SIZE (what the load needs), cache=SIZE (64M) the DRAM for what is read from it, which it shares with buffer=, \
         group=SIZE (16M) what is moved as one, sync_threshold=SIZE (4M) how much is written between syncs of a file that goes straight to it",
    ),
    (
        "mount:NAME",
        "the same through FUSE (root); emulate=, pm=, buffer= (0 for none), tier= and what is of tiers as there, options=OPTIONS as mount -o has them",
    ),
    (
        "dir:PATH",
        "any file system, in a directory of its own in PATH; any target with copy=WORD is one more of the same",
    ),
    ("peer:tmpfs", "a tmpfs of its own (root)"),
    ("peer:ramfs", "a ramfs of its own (root)"),
];

/// Every kind of target, and its description: for `nacre bench list`.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().chain(peer::KINDS).copied()
}

/// The common ground of all targets of a point.
#[derive(Debug, Clone)]
pub struct Ground<'a> {
    /// Where directories and mounts go.
    pub place: &'a Workplace,
    /// The needs of the workload.
    pub load: Load,
    /// Emulated PM of targets that do not say.
    pub emulate: Option<&'a str>,
    /// A directory on a disk, for peers on disks.
    pub disk: &'a Path,
    /// The program `nacre`.
    pub program: &'a Path,
}

/// The largest load that a workload puts on a target.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
}

/// The space that targets take of a machine, in bytes, beside page caches.
#[derive(Debug, Default, PartialEq)]
pub struct Footprint {
    /// Of DRAM.
    pub memory: u64,
    /// Of the file systems that directories are on.
    pub disks: Vec<(PathBuf, u64)>,
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
        /// The emulation of its PM.
        emulate: Option<String>,
        /// Bytes of its write buffer, where it is not to have the usual one.
        buffer: Option<u64>,
        /// Whether names are indexed, where the preset has that choice.
        name_index: Option<bool>,
        /// The device that becomes its tier, where it is to have one.
        tier: Option<PathBuf>,
        /// How data comes to that and from there.
        tier_settings: Box<TierSettings>,
    },
    /// A directory that is there.
    Directory(PathBuf),
}

impl Opening {
    /// Opens it, for the first time.
    pub fn open(&self) -> Result<Box<dyn Target>, Error> {
        self.open_as(true)
    }

    /// Opens it once more, after it was closed: with all that is there, and with nothing of it in DRAM.
    pub fn open_again(&self) -> Result<Box<dyn Target>, Error> {
        self.open_as(false)
    }

    /// Whether the process that works on it caches data of its disk in DRAM. That cache is no page cache, and is not
    /// emptied as one.
    pub fn has_cache(&self) -> bool {
        matches!(self, Opening::Library { tier: Some(_), .. })
    }

    fn open_as(&self, is_new: bool) -> Result<Box<dyn Target>, Error> {
        Ok(match self {
            Opening::Library { device, size, preset, emulate, buffer, name_index, tier, tier_settings } => {
                let buffer =
                    buffer.map_or(WriteBuffer::Preset, |bytes| WriteBuffer::With(CacheOptions::new(bytes)));
                let emulation = emulate.as_deref().map(str::parse).transpose()?;
                let (name_index, tier_settings) = (*name_index, **tier_settings);
                let options =
                    OpenOptions { emulation, buffer, name_index, tier_settings, ..OpenOptions::default() };
                let tier = tier.as_deref();
                Box::new(match is_new {
                    true => Library::create(device, *size, preset.parse()?, tier, &options)?,
                    false => Library::open(device, tier, &options)?,
                })
            }
            Opening::Directory(path) => {
                Box::new(Directory::open(path).map_err(|error| format!("{}: {error}", path.display()))?)
            }
        })
    }
}

/// A target that can be worked on. Its parts go away with it, in this order.
#[derive(Debug)]
pub struct Prepared {
    /// Where it is.
    pub opening: Opening,
    /// In words.
    pub about: String,
    /// The costs that its operations include.
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
        let (mut emulate, mut pm, mut buffer, mut name_index, mut options) = (None, None, None, None, None);
        let mut tier = None;
        let name = spec.name().to_owned();
        let kind = match name.split_once(':') {
            Some((kind @ ("preset" | "mount"), preset)) => {
                let preset: Preset = preset.parse().map_err(|error: nacre::Error| error.to_string())?;
                // A comma would end the parameter, so that `latency=200+bandwidth=1G` stands for one.
                let list = |key: &str| {
                    let text = spec.text(key, "")?;
                    Ok::<_, String>(Some(text.replace('+', ",")).filter(|text| !text.is_empty()))
                };
                emulate = list("emulate")?;
                pm = given(&spec, "pm")?;
                tier = Tier::parse(&spec, preset, pm)?;
                if preset.buffers_writes() {
                    buffer = given(&spec, "buffer")?;
                }
                if buffer == Some(0) && kind == "preset" {
                    return Err(format!("{name}: buffer=0 is for mounts, where nothing waits then"));
                }
                if kind == "preset" {
                    if !preset.layout().capabilities().always_indexes_names {
                        name_index = match &*spec.text("name_index", "")? {
                            "" => None,
                            "on" => Some(true),
                            "off" => Some(false),
                            other => return Err(format!("name_index={other}: it is on or off")),
                        };
                    }
                    Kind::Preset(preset)
                } else {
                    options = list("options")?;
                    Kind::Mount(preset)
                }
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
        let dram = match kind {
            Kind::Preset(_) | Kind::Tmpfs | Kind::Ramfs => None,
            _ => given(&spec, "dram")?,
        };
        if dram.is_some_and(|dram| dram < memory::LEAST) {
            return Err(format!("{name}: dram= is at least {}", size::print(memory::LEAST)));
        }
        spec.finish()?;
        Ok(Plan { spec, kind, emulate, pm, dram, buffer, name_index, options, tier })
    }

    /// As it was written.
    pub fn name(&self) -> String {
        self.spec.to_string()
    }

    /// The limit of its page cache, and of the process that works on it.
    pub fn dram(&self) -> Option<u64> {
        self.dram
    }

    /// An error says why this machine cannot have it, as far as that can be told without making it.
    pub fn check(&self) -> Result<(), Error> {
        let root = || match rustix::process::geteuid().is_root() {
            true => Ok(()),
            false => Err("it needs root".into()),
        };
        match &self.kind {
            Kind::Preset(_) if self.tier.is_none() => Ok(()),
            Kind::Preset(_) => root().and_then(|()| Tier::check()),
            Kind::Directory(path) => filesystem_of(path).map(drop),
            Kind::Tmpfs | Kind::Ramfs => root(),
            Kind::Mount(_) => {
                root()?;
                self.tier.as_ref().map_or(Ok(()), |_| Tier::check())?;
                fs::metadata("/dev/fuse").map(drop).map_err(|error| format!("/dev/fuse: {error}").into())
            }
            Kind::Peer(peer) => root().and_then(|()| peer.check()),
        }
    }

    /// Bytes of DRAM that it takes at most: its parts, and its page cache.
    pub fn needs(&self, load: Load) -> u64 {
        let cache = self.dram.unwrap_or(u64::MAX).min(load.bytes);
        match &self.kind {
            Kind::Preset(_) => self.memory(load),
            Kind::Mount(_) => self.memory(load) + cache,
            Kind::Directory(_) => cache,
            Kind::Tmpfs | Kind::Ramfs => load.bytes,
            Kind::Peer(peer) => peer.memory(load) + cache,
        }
    }

    /// The most space that the target takes and keeps, of DRAM and of disks; `disk` is where files go that stand for
    /// disks.
    pub fn footprint(&self, load: Load, disk: &Path) -> Footprint {
        let (memory, dir, on_disk) = match &self.kind {
            Kind::Preset(_) | Kind::Mount(_) => {
                (self.memory(load), disk, self.tier.as_ref().map_or(0, |tier| tier.on_disk(load)))
            }
            Kind::Directory(path) => (0, path.as_path(), load.bytes),
            Kind::Tmpfs | Kind::Ramfs => (load.bytes, disk, 0),
            Kind::Peer(peer) => (peer.memory(load), disk, peer.on_disk(load)),
        };
        let disks = if on_disk > 0 { vec![(dir.to_owned(), on_disk)] } else { Vec::new() };
        Footprint { memory, disks }
    }

    /// Bytes of DRAM of the parts of a preset.
    fn memory(&self, load: Load) -> u64 {
        let tier = self.tier.as_ref().map_or(0, |tier| tier.memory(load));
        self.device_size(load) + self.buffer.unwrap_or(0) + tier
    }

    /// nacre has an inode for each block of its device at the most.
    fn device_size(&self, load: Load) -> u64 {
        let inodes = load.files.saturating_mul(INODE_SPACE).saturating_add(16 << 20);
        let inodes = inodes.min(LARGEST).next_multiple_of(2 << 20);
        self.pm.unwrap_or_else(|| device_size(load).max(inodes))
    }

    /// Makes it. An error names the missing part.
    pub fn set_up(&self, ground: &Ground<'_>) -> Result<Prepared, Error> {
        let name = self.directory_name();
        match &self.kind {
            Kind::Directory(path) => {
                let kind = filesystem_of(path)?;
                let fuse = kind.starts_with("fuse.") || matches!(&*kind, "fuse" | "fuseblk");
                let pays = if fuse { Pays::Fuse } else { Pays::Kernel };
                let cached = !matches!(&*kind, "tmpfs" | "ramfs");
                let about = format!("{}, {kind}", path.display());
                let inside = Inside::new(path, &name)?;
                let opening = Opening::Directory(inside.path.clone());
                Ok(Prepared { cached, ..Prepared::plain(opening, about, pays) }.with(inside))
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
            Kind::Preset(preset) => self.set_up_preset(*preset, &name, ground),
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

    /// Its write buffer, in words.
    fn buffered(&self) -> String {
        self.buffer
            .filter(|bytes| *bytes > 0)
            .map_or_else(String::new, |bytes| format!(", with a buffer of {}", size::print(bytes)))
    }

    fn set_up_preset(&self, preset: Preset, name: &str, ground: &Ground<'_>) -> Result<Prepared, Error> {
        let mut pieces = Pieces::default();
        let below = self.set_up_tier(name, ground, &mut pieces)?;
        let tmpfs = ground.place.tmpfs(name, false)?;
        let emulate = self.emulation(ground);
        let indexed = match self.name_index {
            None => "",
            Some(true) => ", with an index of names",
            Some(false) => ", without an index of names",
        };
        let about = format!(
            "{preset} in the same process{}{indexed}, {}{}",
            self.buffered(),
            on_memory(emulate.as_deref()),
            below.about
        );
        let opening = Opening::Library {
            device: tmpfs.path().join("pm"),
            size: self.device_size(ground.load),
            preset: preset.to_string(),
            emulate,
            buffer: self.buffer,
            name_index: self.name_index,
            tier: below.path,
            tier_settings: Box::new(self.tier.as_ref().map(|tier| tier.settings).unwrap_or_default()),
        };
        pieces.keep(tmpfs);
        let plain = Prepared::plain(opening, about, Pays::Library);
        Ok(Prepared { cached: false, hurry: below.hurry, pieces, ..plain })
    }

    /// The device of its tier; one that is nowhere where it is to have none.
    fn set_up_tier(&self, name: &str, ground: &Ground<'_>, pieces: &mut Pieces) -> Result<Below, Error> {
        let Some(tier) = &self.tier else { return Ok(Below::default()) };
        let Device { path, about, hurry } = tier.set_up(name, ground, pieces)?;
        Ok(Below { path: Some(path), about, hurry })
    }

    fn set_up_mount(&self, preset: Preset, name: &str, ground: &Ground<'_>) -> Result<Prepared, Error> {
        let mut pieces = Pieces::default();
        let below = self.set_up_tier(name, ground, &mut pieces)?;
        let tmpfs = ground.place.tmpfs(&format!("{name}-pm"), false)?;
        let dir = ground.place.directory(name)?;
        let device = tmpfs.path().join("pm");
        pieces.keep(tmpfs);
        // A mount buffers only where it is told to, and in one place.
        let options = self.options.as_deref().unwrap_or_default();
        let in_kernel = options.split(',').any(|option| option == "writeback");
        let buffer = match self.buffer {
            Some(0) => None,
            Some(bytes) => Some(format!("buffer={bytes}")),
            None if in_kernel => None,
            // As a mount without further options.
            None if preset == Preset::Nacre => None,
            None => preset.buffers_writes().then(|| "buffer".to_owned()),
        };
        let mut options: Vec<String> = buffer.into_iter().collect();
        let size = self.device_size(ground.load).to_string();
        let mut mkfs = Command::new(ground.program);
        mkfs.args(["mkfs", "--preset", preset.as_str(), "--size", &size]);
        if let (Some(path), Some(tier)) = (&below.path, &self.tier) {
            mkfs.arg("--tier").arg(path);
            options.push(format!("tier={}", path.display()));
            options.extend(tier.options());
        }
        options.extend(self.options.clone());
        run(mkfs.arg(&device))?;
        let mut command = Command::new(ground.program);
        command.args(["mount", "--foreground"]);
        let emulate = self.emulation(ground);
        if let Some(emulate) = &emulate {
            command.args(["--emulate", emulate]);
        }
        if !options.is_empty() {
            command.args(["-o", &options.join(",")]);
        }
        let server = Server::start(command.arg(&device).arg(&dir), dir.clone())?;
        let on = on_memory(emulate.as_deref());
        let about = format!("{preset} through FUSE{}, {on}{}", self.buffered(), below.about);
        let plain = Prepared::plain(Opening::Directory(dir), about, Pays::Fuse);
        Ok(Prepared { server: Some(server), hurry: below.hurry, pieces, ..plain })
    }
}

/// The layer below nacre's PM: nothing, or a tier.
#[derive(Default)]
struct Below {
    path: Option<PathBuf>,
    about: String,
    /// Dropped before the user of the device, so that this ends soon.
    hurry: Option<ChildStdin>,
}

/// A directory of our own in one of the user's, where other files are not to be touched. It goes away with this value.
#[derive(Debug)]
struct Inside {
    path: PathBuf,
    /// Held as long as it is in use.
    _lock: File,
}

impl Inside {
    fn new(parent: &Path, name: &str) -> Result<Inside, Error> {
        leftovers::sweep_directory(parent);
        let path = parent.join(format!("{}{}-{name}", leftovers::PREFIX, std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let locked = leftovers::lock(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let inside = Inside { path, _lock: locked };
        let_through(&inside.path)?;
        Ok(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            say::failed(self.path.display(), format_args!("cannot be removed: {error}"));
        }
    }
}

/// A server that runs as another user reaches its files below.
fn let_through(path: &Path) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o711))
}

/// A number of bytes that need not be there.
pub(super) fn given(spec: &Spec, key: &str) -> Result<Option<u64>, String> {
    match spec.text(key, "")?.as_str() {
        "" => Ok(None),
        text => size::parse(text).map(Some).map_err(|why| format!("{}: {key}={text}: {why}", spec.name())),
    }
}

fn unknown(name: &str) -> String {
    format!("{name} is no target; 'nacre bench list' shows them")
}

/// The medium of nacre, in words.
fn on_memory(emulate: Option<&str>) -> String {
    match emulate {
        Some(emulation) => format!("on a tmpfs that emulates {emulation}"),
        None => "on a tmpfs".to_owned(),
    }
}

/// A device that is never nearly full: twice its content, with room for metadata.
pub(super) fn device_size(load: Load) -> u64 {
    let size = load.bytes.saturating_mul(2).saturating_add(load.files.saturating_mul(1024));
    size.saturating_add(64 << 20).min(LARGEST).next_multiple_of(2 << 20)
}

/// A size that no machine has: sums of it fit in 64 bits.
pub(super) const LARGEST: u64 = 1 << 60;

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

    /// The process that serves it. Its time is part of the work.
    pub fn server(&self) -> Option<u32> {
        self.server.as_ref().map(Server::process)
    }

    /// The work of the loop devices under it so far; none where it has none.
    pub fn disk_work(&self) -> Option<DiskWork> {
        self.pieces.disk_work()
    }

    /// The traffic of a mount of nacre so far. This process asks for it: a process of its own for each question would
    /// leave threads elsewhere, and caches with less in them, right before a measurement.
    pub fn traffic(&self) -> Option<Traffic> {
        let server = self.server.as_ref()?;
        Some(Traffic::of(&information(server.dir())?))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::{Footprint, Ground, Kind, Load, Plan, device_size, kinds};
    use crate::place::Workplace;
    use crate::workload::Round;

    #[test]
    fn what_is_listed_can_be_asked_for() {
        for (name, _) in kinds() {
            let name = name.replace("NAME", "nova").replace("PATH", "/tmp");
            assert_eq!(Plan::parse(&name).unwrap_or_else(|why| panic!("{why}")).name(), name);
        }
    }

    /// A directory that somebody names has files of theirs, under names that workloads use, too.
    #[test]
    fn a_directory_keeps_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["tree", "bpfs", "trace"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("file"), "theirs").unwrap();
        }
        std::fs::write(dir.path().join("micro0"), "theirs").unwrap();
        let own = tempfile::tempdir().unwrap();
        let place = Workplace::new_in(own.path(), false).unwrap();
        let plan = Plan::parse(&format!("dir:{}", dir.path().display())).unwrap();
        for workload in ["tree.grep", "bpfs.ops", "micro.write,file=16m"] {
            let work = crate::workload::make(&workload.parse().unwrap(), 0.01).unwrap();
            let ground = Ground {
                place: &place,
                load: Load { bytes: work.bytes(), files: work.files() },
                emulate: None,
                disk: dir.path(),
                program: Path::new("nacre"),
            };
            let prepared = plan.set_up(&ground).unwrap();
            let target = prepared.opening.open().unwrap();
            work.prepare(&*target).unwrap();
            let round = Round { number: 1, seed: 1, slice: Duration::from_millis(1) };
            work.round(&*target, round).unwrap();
        }
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["bpfs", "micro0", "trace", "tree"]);
        for file in ["tree/file", "bpfs/file", "trace/file", "micro0"] {
            assert_eq!(std::fs::read(dir.path().join(file)).unwrap(), b"theirs");
        }
    }

    #[test]
    fn emulation_is_a_parameter_and_strangers_are_told() {
        let plan = Plan::parse("preset:nova,emulate=latency=200+bandwidth=1G").unwrap();
        assert_eq!(plan.emulate.as_deref(), Some("latency=200,bandwidth=1G"));
        assert!(matches!(plan.kind, Kind::Preset(_)));
        assert!(Plan::parse("preset:nova,emulation=pcm").unwrap_err().contains("no parameter"));
        assert!(Plan::parse("peer:zfs").unwrap_err().contains("no target"));
        assert!(Plan::parse("preset:zfs").is_err());
    }

    #[test]
    fn memory_is_a_parameter_of_who_has_some() {
        let plan = |text: &str| Plan::parse(text);
        assert_eq!(plan("peer:ext4,dram=64m").unwrap().dram(), Some(64 << 20));
        let mount = plan("mount:nova,dram=1g,options=noatime+sync,pm=2g").unwrap();
        assert_eq!((mount.pm, mount.options.as_deref()), (Some(2 << 30), Some("noatime,sync")));
        assert!(plan("peer:tmpfs,dram=64m").unwrap_err().contains("no parameter dram"));
        assert_eq!(plan("preset:hinfs,buffer=8m").unwrap().buffer, Some(8 << 20));
        assert!(plan("preset:pmfs,buffer=8m").unwrap_err().contains("no parameter buffer"));
        assert!(plan("preset:hinfs,buffer=0m").unwrap_err().contains("buffer=0 is for mounts"));
        assert_eq!(plan("mount:tpfs,buffer=0m").unwrap().buffer, Some(0));
        assert_eq!(plan("preset:hinfs,name_index=on").unwrap().name_index, Some(true));
        assert!(plan("preset:hinfs,name_index=2").unwrap_err().contains("on or off"));
        assert!(plan("preset:nova,name_index=on").unwrap_err().contains("no parameter name_index"));
        let tiered = plan("mount:nova,tier=nvme,pm=64m,cache=8m").unwrap();
        assert_eq!(tiered.tier.map(|tier| tier.settings.cache), Some(Some(8 << 20)));
        assert!(plan("peer:ext4,tier=nvme").unwrap_err().contains("no parameter tier"));
        assert!(plan("peer:ext4,dram=1m").unwrap_err().contains("at least"));
        assert!(plan("peer:ext4,dram=much").unwrap_err().contains("dram=much"));
    }

    #[test]
    fn what_a_target_needs_is_what_it_is_made_of_and_its_cache() {
        let load = Load { bytes: 100 << 20, files: 10 };
        let needs = |text: &str| Plan::parse(text).unwrap().needs(load);
        assert_eq!((needs("peer:tmpfs"), needs("preset:nova,pm=16m")), (100 << 20, 16 << 20));
        assert_eq!(needs("mount:nova,dram=20m") - needs("preset:nova"), 20 << 20);
        let tiered = "preset:nova,pm=16m,tier=nvme,tier_size=32m,cache=8m";
        assert_eq!(needs(tiered) - needs("preset:nova,pm=16m"), 40 << 20);
        let many = Load { bytes: 0, files: 1_000_000 };
        assert!(Plan::parse("preset:nova").unwrap().needs(many) > 1_000_000 * 4096);
        assert_eq!(needs("preset:hinfs,buffer=8m") - needs("preset:pmfs"), 8 << 20);
        assert_eq!(needs("peer:ext4-disk"), 100 << 20, "a file on a disk takes no memory, its cache does");
        assert!(needs("peer:ext4-dj,disk=nvme,size=64m") > (2 * 100 + 64 + 100) << 20);
        let footprint = |text: &str| {
            let Footprint { memory, disks } = Plan::parse(text).unwrap().footprint(load, Path::new("/disk"));
            let disks: Vec<_> = disks.into_iter().map(|(dir, bytes)| (dir, bytes >> 20)).collect();
            (memory >> 20, disks)
        };
        assert_eq!(
            footprint("dir:/srv"),
            (0, vec![("/srv".into(), 100)]),
            "its page cache can be given back"
        );
        assert_eq!(footprint("peer:tmpfs"), (100, Vec::new()));
        let device = device_size(load) >> 20;
        assert_eq!(footprint("peer:ext4-disk"), (0, vec![("/disk".into(), device)]));
        assert_eq!(footprint("peer:ext4-dj,disk=nvme,size=64m"), (device + 64, Vec::new()));
        assert_eq!(footprint("preset:nova,pm=16m,tier=file,tier_size=32m").1, [("/disk".into(), 32)]);
    }
}
