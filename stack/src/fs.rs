//! An open file system.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nacre_cache::{CacheOptions, Settings};
use nacre_control::{CacheInfo, DeviceInfo, Info, ScrubInfo};
use nacre_engine::sync::Mutex;
use nacre_engine::{BLOCK_SIZE, Error, FsStat, InodeCache, InodeId, Kind, Result};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::LogFs;
use nacre_layout_parts::findings::Findings;
use nacre_layout_parts::lifecycle::{Lifecycle, MountOptions, OverTiers};
use nacre_layout_parts::report::RecoveryReport;
use nacre_layout_parts::scrub::DEFAULT_RATE;
use nacre_layout_parts::superblock::Summary;
use nacre_layout_pool::PoolFs;
use nacre_layout_shadow::ShadowFs;
use nacre_media::block::RealDisk;
use nacre_media::{Emulation, Frames, PmOptions, Promise, RealPm};
use nacre_mover::TieredFs;
use nacre_vfs::{Vfs, VfsOptions};

use crate::buffered::Buffered;
use crate::cost;
use crate::identity::Identity;
use crate::info::{cache_info, device_info, scrub_info, space_info, volume_info};
use crate::keeper::Keeper;
use crate::layout::{AnyLayout, of_kind};
use crate::mkfs::{self, MkfsOptions};
use crate::preset::{LayoutKind, Preset};
use crate::probe::probe_volume;
use crate::tier_settings::TierSettings;
use crate::tiers::{self, TierDevice};
use crate::volumes::{self, Part};

/// Threads that write back to emulated PM, at most, when no number is set.
const MAX_WRITERS: u64 = 16;

/// Whether writes are buffered in DRAM.
#[derive(Debug, Clone, Default)]
pub enum WriteBuffer {
    /// As the preset does.
    #[default]
    Preset,
    /// They are not.
    Never,
    /// Writes are buffered. The buffer settings of the preset apply, too. On emulated PM the default number of threads
    /// stands for as many as keep it busy.
    With(CacheOptions),
}

/// How a file system is opened.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Refuse every change, and let others read at the same time. Nothing is written to the device, except for the
    /// recovery of a devdax device that was not cleanly unmounted.
    pub read_only: bool,
    /// Beside `read_only`: refuse such a device instead of its recovery.
    pub never_writes: bool,
    /// Never note that a file was read.
    pub no_atime: bool,
    /// Independent lanes of allocation; by default one for each core.
    pub lanes: Option<usize>,
    /// Keep an index of names in DRAM, where the layout has that choice (`inplace`; another refuses to be told); by default
    /// as mkfs was told.
    pub name_index: Option<bool>,
    /// The persistence domain that the device must have; less is refused.
    pub require: Promise,
    /// Slow the device down to the emulated latency and bandwidth, and count stores.
    pub emulation: Option<Emulation>,
    /// Inodes whose state is kept in DRAM at most, beside those that are in use. At least 1024, by default 262,144,
    /// which take some 200 MB. Beyond that, the state that was not used lately is dropped, and read again when it is
    /// asked for.
    pub inode_cache: Option<u64>,
    /// Buffer writes in DRAM: data that was not synchronised may be lost in a crash. By default as the preset does.
    pub buffer: WriteBuffer,
    /// Another preset than the one that the file system was made with, of the same layout.
    pub preset: Option<Preset>,
    /// Devices of its tiers; of those that are not given, where they are is looked for.
    pub tiers: Vec<TierDevice>,
    /// Refuse to open it while the device of one of its tiers is missing, or cannot be used.
    pub require_tiers: bool,
    /// How data comes to tiers and from there. Only of the layout `log`; another refuses to be told.
    pub tier_settings: TierSettings,
    /// The volume of a device with several; one in the path, as in `DEVICE#NAME`, says the same.
    pub volume: Option<String>,
    /// The identity of the caller.
    pub identity: Identity,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            never_writes: false,
            no_atime: false,
            lanes: None,
            name_index: None,
            require: Promise::None,
            emulation: None,
            inode_cache: None,
            buffer: WriteBuffer::Preset,
            preset: None,
            tiers: Vec::new(),
            require_tiers: false,
            tier_settings: TierSettings::default(),
            volume: None,
            identity: Identity::default(),
        }
    }
}

impl OpenOptions {
    /// The device of a path, and these options with its volume.
    fn of_path(&self, path: &Path) -> Result<(PathBuf, OpenOptions)> {
        let (device, volume) = volumes::place(path, self.volume.as_deref())?;
        Ok((device, OpenOptions { volume, ..self.clone() }))
    }

    fn media(&self, read_only: bool) -> PmOptions {
        PmOptions {
            read_only,
            require: self.require,
            emulation: self.emulation.clone(),
            ..PmOptions::default()
        }
    }
}

/// An open file system. Clones are the same file system; files keep it open.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) inner: Arc<Inner>,
}

/// The state that files and directories hold on to.
pub(crate) struct Inner {
    pub(crate) vfs: Arc<Vfs<AnyLayout>>,
    pub(crate) identity: Identity,
    pm: Arc<RealPm>,
    /// The name of its volume, if it was given.
    volume: Option<String>,
    /// From the first tier on; shared by all identities.
    keeper: Arc<Mutex<Option<Keeper>>>,
}

impl FileSystem {
    /// Opens the file system on a device. It is recovered if it was not closed in order.
    ///
    /// [`Busy`](Kind::Busy) when another process has it, [`Unsupported`](Kind::Unsupported) when the device promises
    /// less than is required, [`Corrupt`](Kind::Corrupt) when it is damaged.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<FileSystem> {
        let path = path.as_ref();
        let open = || {
            let (device, options) = options.of_path(path)?;
            let part = volumes::part(&device, Part::Volume(options.volume.as_deref()))?;
            let media = |read_only| PmOptions { part: part.clone(), ..options.media(read_only) };
            if options.read_only {
                open_to_read(&options, &media, &|how| RealPm::open(&device, how))
            } else {
                RealPm::open(&device, &media(false)).and_then(|pm| FileSystem::over(pm, &options))
            }
        };
        open().map_err(|error| error.operation("open").object(path.display().to_string()))
    }

    /// The device that would be opened, with the errors that [`open`](FileSystem::open) gives before it reads more than
    /// the superblock, and with that of a missing tier where all are required. Nothing is changed.
    pub fn would_open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<DeviceInfo> {
        let path = path.as_ref();
        let look = || {
            let (device, options) = options.of_path(path)?;
            let part = volumes::part(&device, Part::Volume(options.volume.as_deref()))?;
            let media = PmOptions { allocate: false, part, ..options.media(options.read_only) };
            let pm = RealPm::open(&device, &media)?;
            let (layout, summary) = probe_volume(&pm, options.volume.as_deref())?;
            check_options(layout, &summary.preset, &options)?;
            if !options.read_only {
                of_kind!(layout, Layout => Layout::check_writable(&pm))?;
            }
            if options.require_tiers {
                tiers::would_require_all(&pm, layout, summary.uuid, &options.tiers)?;
            }
            Ok(device_info(&pm))
        };
        look().map_err(|error: Error| error.operation("open").object(path.display().to_string()))
    }

    /// Makes a file system, as [`mkfs`](fn@crate::mkfs) does, and opens it.
    pub fn create(path: impl AsRef<Path>, make: &MkfsOptions, options: &OpenOptions) -> Result<FileSystem> {
        let path = path.as_ref();
        let make = MkfsOptions { emulation: options.emulation.clone(), ..make.clone() };
        let fs = mkfs::make(path, &make)
            .and_then(|(pm, _)| FileSystem::with_tiers_to_come(pm, options, !make.tiers.is_empty()))
            .map_err(|error| error.operation("create").object(path.display().to_string()))?;
        fs.add_tiers(&make.tiers).map(|()| fs)
    }

    /// A file system in heap memory that is gone with the process: for tests and measurements.
    pub fn in_memory(size: u64, options: &OpenOptions) -> Result<FileSystem> {
        let mut pm = RealPm::in_memory(size)?;
        if let Some(emulation) = &options.emulation {
            pm.emulate(emulation.clone());
        }
        nacre_layout_log::mkfs(&pm, &nacre_layout_log::MkfsOptions::default())?;
        FileSystem::over(pm, options)
    }

    pub(crate) fn over(pm: RealPm, options: &OpenOptions) -> Result<FileSystem> {
        FileSystem::with_tiers_to_come(pm, options, false)
    }

    /// One that tiers are about to be added to, or not.
    fn with_tiers_to_come(pm: RealPm, options: &OpenOptions, come: bool) -> Result<FileSystem> {
        let layout = mount(Arc::new(pm), options, come)?;
        let pm = layout.pm().clone();
        let vfs_options = VfsOptions { read_only: options.read_only, no_atime: options.no_atime };
        let vfs = Arc::new(Vfs::new(layout, vfs_options));
        let identity = options.identity.clone();
        let fs = FileSystem {
            inner: Arc::new(Inner {
                vfs,
                identity,
                pm,
                volume: options.volume.clone(),
                keeper: Arc::default(),
            }),
        };
        if !options.read_only && !fs.tiers().is_empty() {
            fs.start_keeper()?;
        }
        Ok(fs)
    }

    /// Has a thread look after persistent memory from now on.
    pub(crate) fn start_keeper(&self) -> Result<()> {
        // Two at once would be one too many, and the one that ends takes from the other what both share.
        let mut keeper = self.inner.keeper.lock();
        if keeper.is_none() {
            *keeper = Some(Keeper::start(&self.inner.vfs)?);
        }
        Ok(())
    }

    /// The same file system in another user's name.
    #[must_use]
    pub fn as_user(&self, identity: Identity) -> FileSystem {
        let Inner { vfs, pm, volume, keeper, .. } = &*self.inner;
        let (vfs, pm, volume, keeper) = (vfs.clone(), pm.clone(), volume.clone(), keeper.clone());
        FileSystem { inner: Arc::new(Inner { vfs, identity, pm, volume, keeper }) }
    }

    /// Closes it in order and says whether that succeeded. Without this call the same happens, silently, when the last
    /// file or clone is dropped.
    ///
    /// [`Busy`](Kind::Busy) when a file, a directory listing or a clone is still there; it is then closed with the
    /// last of them.
    pub fn close(self) -> Result<()> {
        let busy = || Error::new(Kind::Busy).operation("close").advice("drop all files and clones first");
        let inner = Arc::into_inner(self.inner).ok_or_else(busy)?;
        // It holds the file system now and then.
        drop(inner.keeper);
        let vfs = Arc::into_inner(inner.vfs).ok_or_else(busy)?;
        vfs.into_layout().unmount()
    }

    /// The report of the recovery when it was opened.
    pub fn recovery(&self) -> &RecoveryReport {
        self.inner.vfs.layout().recovery()
    }

    /// The rules of names and permissions, for front ends that work on nodes.
    pub fn vfs(&self) -> &Arc<Vfs<AnyLayout>> {
        &self.inner.vfs
    }

    /// It was not cleanly unmounted, and was recovered in DRAM only: the device keeps its content.
    pub fn is_recovered_in_dram(&self) -> bool {
        self.inner.pm.is_private()
    }

    /// Stores reach the device. Where it was opened to read that is because it could be recovered in no other way.
    pub fn is_device_written(&self) -> bool {
        !self.inner.pm.is_read_only() && !self.inner.pm.is_private()
    }

    /// The identity in whose name it acts.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Makes the pages of the whole device present in this process, so that no operation pays for a page fault. It is
    /// an advance payment only, returns when it is done or `stop` becomes true, and is meant for a thread of its own.
    pub fn prefault(&self, stop: &AtomicBool) -> Result<()> {
        self.inner.pm.prefault(0..nacre_media::Pm::len(&*self.inner.pm), stop).map(drop)
    }

    /// Starts to read everything in the background, at most `rate` bytes in a second (by default 1 GiB).
    /// [`FileSystem::scrub_status`] reports data that cannot be read or does not validate. Blocks with media errors are
    /// not allocated again. [`Busy`](Kind::Busy) while that is under way.
    pub fn start_scrub(&self, rate: Option<u64>) -> Result<()> {
        self.inner.vfs.layout().start_scrub(rate.unwrap_or(DEFAULT_RATE))
    }

    /// The progress and the findings of the last scrub.
    pub fn scrub_status(&self) -> ScrubInfo {
        scrub_info(self.inner.vfs.layout().scrub_status())
    }

    /// Damage of metadata that reads and writes meet, in words, each once. The answer does not keep the file system
    /// open. Only the layout `pool` finds some, because it has a second copy to go on with.
    pub fn findings(&self) -> Arc<Findings> {
        self.inner.vfs.layout().findings()
    }

    /// State and counters of the write buffer, where there is one.
    pub fn cache(&self) -> Option<CacheInfo> {
        let layout = self.inner.vfs.layout();
        Some(cache_info(layout.cache_status()?, layout.cache_settings()?))
    }

    /// Registers a function that hears of accepted data that the write buffer gave up: the file, and the bytes. Only data
    /// in blocks with media errors is given up. Only the first registration has an effect.
    pub fn on_loss(&self, tell: impl Fn(InodeId, u64) + Send + Sync + 'static) {
        self.inner.vfs.layout().on_loss(Box::new(tell));
    }

    /// The settings of the write buffer.
    pub fn cache_settings(&self) -> Option<Settings> {
        self.inner.vfs.layout().cache_settings()
    }

    /// Changes that. [`Unsupported`](Kind::Unsupported) without a write buffer.
    pub fn set_cache(&self, settings: Settings) -> Result<()> {
        match self.inner.vfs.layout().set_cache(settings) {
            Some(result) => result,
            None => Err(Error::new(Kind::Unsupported).object("the cache").advice("open it with one")),
        }
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        self.inner.vfs.sync_all()
    }

    /// Writes back waiting data and refuses every change from now on, or takes changes again; and has reads leave a
    /// trace or not. [`ReadOnly`](Kind::ReadOnly) if it was opened to read: its device cannot be written.
    pub fn remount(&self, read_only: bool, no_atime: bool) -> Result<()> {
        let vfs = &self.inner.vfs;
        if vfs.options().read_only && !read_only {
            return Err(Error::new(Kind::ReadOnly)
                .operation("remount")
                .advice("its server cannot write to the device; unmount it and mount it again"));
        }
        vfs.remount(VfsOptions { read_only, no_atime });
        if read_only { self.sync() } else { Ok(()) }
    }

    /// Space and its use.
    pub fn statfs(&self) -> FsStat {
        self.inner.vfs.stat()
    }

    /// The device below.
    pub fn device(&self) -> DeviceInfo {
        device_info(&self.inner.pm)
    }

    /// Everything about the device and the file system.
    pub fn info(&self) -> Result<Info> {
        let tiers = self.tiers();
        let (layout, summary) = probe_volume(&self.inner.pm, self.inner.volume.as_deref())?;
        Ok(Info {
            device: self.device(),
            volume: volume_info(layout, &summary),
            space: Some(space_info(self.statfs(), self.inner.vfs.layout())),
            cache: self.cache(),
            mover: if tiers.is_empty() { None } else { self.mover_status() },
            tiers,
            // A device with one zone has one mount, and is locked by it: no other process can read them.
            volumes: volumes::of_device(&self.inner.pm, layout)?,
            ..Info::default()
        })
    }
}

/// Mounts the layout that is on a device.
fn mount(pm: Arc<RealPm>, options: &OpenOptions, tiers_come: bool) -> Result<AnyLayout> {
    let media_read_only = pm.is_read_only();
    let OpenOptions { read_only, lanes, .. } = *options;
    let (layout, summary) = probe_volume(&pm, options.volume.as_deref())?;
    check_options(layout, &summary.preset, options)?;
    let cache = cache_options(&pm, &summary, options)?;
    let inode_cache = options.inode_cache.unwrap_or(InodeCache::DEFAULT_LIMIT);
    if inode_cache < InodeCache::MIN_LIMIT {
        return Err(Error::new(Kind::InvalidInput)
            .object(format!("{inode_cache} inodes in DRAM (inode_cache)"))
            .advice("give 1024 or more"));
    }
    let name_index = options.name_index;
    let mount = MountOptions {
        read_only,
        media_read_only,
        lanes,
        name_index,
        inode_cache,
        volume: options.volume.clone(),
        ..MountOptions::default()
    };
    let tiers = Tiering { summary: &summary, options, tiers_come };
    Ok(match layout {
        LayoutKind::Log => AnyLayout::Log(tiers.over(LogFs::mount(pm, &mount)?, cache)?),
        LayoutKind::Inplace => AnyLayout::Inplace(Buffered::new(InplaceFs::mount(pm, &mount)?, cache)?),
        LayoutKind::Pool => AnyLayout::Pool(Buffered::new(PoolFs::mount(pm, &mount)?, cache)?),
        LayoutKind::Shadow => AnyLayout::Shadow(tiers.over(ShadowFs::mount(pm, &mount)?, cache)?),
    })
}

/// How tiers come to a layout that may have some.
struct Tiering<'o> {
    summary: &'o Summary,
    options: &'o OpenOptions,
    tiers_come: bool,
}

impl Tiering<'_> {
    /// The layout with its tiers, under a write buffer if there is to be one.
    fn over<L: OverTiers<Pm = RealPm>>(
        &self,
        layout: L,
        cache: Option<CacheOptions>,
    ) -> Result<Buffered<TieredFs<L, RealDisk>>> {
        // Data that waits to be written and data read from tiers share their DRAM.
        let frames = Arc::new(Frames::default());
        let layout = tiers::mount(layout, self.summary, self.options, Arc::clone(&frames))?;
        let buffer = cache.map(|mut cache| {
            // Without tiers, the DRAM for data read from them was not asked for.
            let has_tiers = self.tiers_come || !layout.layout().tiers().is_empty();
            if has_tiers && !layout.layout().is_read_only() {
                cache.size += layout.lend_dram();
            }
            cache.frames = Some(frames);
            cache
        });
        Buffered::new(layout, buffer)
    }
}

/// Refuses options that the layout does not have. The preset that it was made with is always possible: a layout without
/// a preset has the default one.
fn check_options(layout: LayoutKind, made_with: &str, options: &OpenOptions) -> Result<()> {
    let refuse = |object: String, advice| Err(Error::new(Kind::InvalidInput).object(object).advice(advice));
    if let Some(asked) = options.preset
        && asked.layout() != layout
        && asked.as_str() != made_with
    {
        return refuse(format!("preset {asked} on the layout {layout}"), "choose a preset of that layout");
    }
    let has = layout.capabilities();
    if options.name_index.is_some() && has.always_indexes_names {
        return refuse(
            format!("name_index on the layout {layout}"),
            "leave it out: this layout always has an index of names",
        );
    }
    if let Some(volume) = options.volume.as_ref().filter(|_| has.max_volumes == 1) {
        return refuse(
            format!("volume {volume} on the layout {layout}"),
            "leave it out: a device of this layout is one volume",
        );
    }
    if let Some(tier) = options.tiers.first().filter(|_| has.max_tiers == 0) {
        return refuse(
            format!("tier {} on the layout {layout}", tier.path.display()),
            "leave it out: this layout has no tiers",
        );
    }
    if options.tier_settings != TierSettings::default() && has.max_tiers == 0 {
        return refuse(
            format!("settings of tiers on the layout {layout}"),
            "leave it out: this layout has no tiers",
        );
    }
    Ok(())
}

/// The write buffer of this mount. Its settings give the cost of a line; otherwise the cost is emulated and measured.
fn cache_options(pm: &RealPm, summary: &Summary, options: &OpenOptions) -> Result<Option<CacheOptions>> {
    // A preset that this program does not know has no buffer that it could have.
    let preset = options.preset.or_else(|| summary.preset.parse().ok());
    let cache = match &options.buffer {
        WriteBuffer::Preset => preset.and_then(|preset| preset.cache(summary.blocks * BLOCK_SIZE)),
        WriteBuffer::Never => None,
        WriteBuffer::With(cache) => Some(cache.clone()),
    };
    let Some(mut cache) = cache else { return Ok(None) };
    cache.read_only = options.read_only;
    if let Some(preset) = preset {
        preset.adjust(&mut cache.settings);
    }
    if let Some(emulation) = &options.emulation
        && cache.fits_threads
        && cache.settings.threads == Settings::default().threads
    {
        // As many as the emulated PM keeps busy; they sleep its delays.
        cache.settings.threads = cache.settings.threads.max(emulation.writers().min(MAX_WRITERS) as usize);
    }
    // Nothing is buffered where nothing may be written.
    if cache.settings.latencies.is_none() && !options.read_only && !pm.is_read_only() {
        cache.settings.latencies = Some(cost::latencies(pm, options.emulation.as_ref()));
    }
    Ok(Some(cache))
}

/// Opens a device for reading only. A file system that was not cleanly unmounted has to be recovered first. That is
/// done on private copies of the pages that change, and the device keeps its content. Only a devdax device has no
/// private copies, and is recovered itself, unless the options forbid that; if it cannot be written, the layout reports
/// what is possible.
fn open_to_read(
    options: &OpenOptions,
    media: &dyn Fn(bool) -> PmOptions,
    open: &dyn Fn(&PmOptions) -> Result<RealPm>,
) -> Result<FileSystem> {
    let pm = open(&media(true))?;
    if probe_volume(&pm, options.volume.as_deref())?.1.clean {
        return FileSystem::over(pm, options);
    }
    drop(pm);
    let denied = |kind| matches!(kind, Kind::AccessDenied | Kind::NotPermitted | Kind::ReadOnly | Kind::Io);
    let private = open(&PmOptions { private: true, ..media(true) });
    let opened = match private {
        Err(error) if error.kind() == Kind::Unsupported && options.never_writes => {
            return Err(Error::new(Kind::Unsupported)
                .object("recovery in DRAM of a devdax device without a clean unmount")
                .advice("looking needs to write to this device; mount it writable once"));
        }
        Err(error) if error.kind() == Kind::Unsupported => open(&media(false)),
        opened => opened,
    };
    match opened {
        Err(error) if denied(error.kind()) => open(&media(true)),
        opened => opened,
    }
    .and_then(|pm| FileSystem::over(pm, options))
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem").field("device", &self.inner.pm.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::Kind;
    use nacre_media::{PmOptions, RealPm};

    use super::{FileSystem, OpenOptions, open_to_read};
    use crate::mkfs::MkfsOptions;

    /// A look at a devdax device recovered it, without a word.
    #[test]
    fn a_look_at_a_device_without_private_copies_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (device, crashed) = (dir.path().join("pm"), dir.path().join("crashed"));
        let fs =
            FileSystem::create(&device, &MkfsOptions::with_size(32 << 20), &OpenOptions::default()).unwrap();
        fs.create_file("/file").unwrap();
        std::fs::copy(&device, &crashed).unwrap();
        fs.close().unwrap();
        let content = std::fs::read(&crashed).unwrap();
        // A file stands for devdax, which refuses private copies.
        let open = |how: &PmOptions| match how.private {
            true => Err(Kind::Unsupported.into()),
            false => RealPm::open(&crashed, how),
        };
        let look = |never_writes| {
            let options = OpenOptions { read_only: true, never_writes, ..OpenOptions::default() };
            open_to_read(&options, &|read_only| options.media(read_only), &open)
        };
        let error = look(true).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("looking needs to write to this device"), "{error}");
        assert!(std::fs::read(&crashed).unwrap() == content);
        // A mount tells that it writes.
        let fs = look(false).unwrap();
        assert!(fs.is_device_written() && !fs.is_recovered_in_dram());
        assert!(fs.metadata("/file").is_ok());
        fs.close().unwrap();
        // On private copies it writes nothing.
        std::fs::write(&crashed, &content).unwrap();
        let options = OpenOptions { read_only: true, never_writes: true, ..OpenOptions::default() };
        let fs = FileSystem::open(&crashed, &options).unwrap();
        assert!(fs.is_recovered_in_dram() && fs.metadata("/file").is_ok());
        fs.close().unwrap();
        assert!(std::fs::read(&crashed).unwrap() == content);
    }
}
