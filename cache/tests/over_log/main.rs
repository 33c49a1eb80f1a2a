//! The cache over the log layout on simulated memory.

mod content;
mod crash;
mod failing;
mod model;
mod newcomers;
mod ordering;
mod over;
mod pinned;
mod pressure;
mod space;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_cache::{CacheFs, CacheNode, CacheOptions, Clock, Settings};
use nacre_engine::{Attr, Data, Durability, FileKind, Names, NewInode, Result, SetAttr, Timestamp, WriteAt};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::SimPm;

pub(crate) type Fs = CacheFs<LogFs<SimPm>>;
pub(crate) type File = CacheNode<Node>;

pub(crate) const BLOCK: usize = 4096;
const SIZE: u64 = 16 << 20;

pub(crate) fn at(secs: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + secs, 7)
}

/// A file system with its memory and its clock.
pub(crate) struct World {
    pub(crate) pm: Arc<SimPm>,
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) fs: Fs,
}

pub(crate) fn mount_log(pm: &Arc<SimPm>) -> LogFs<SimPm> {
    let options = MountOptions { background: false, lanes: Some(1), ..MountOptions::default() };
    LogFs::mount(Arc::clone(pm), &options).unwrap()
}

/// A new file system under a cache of so many blocks, without threads unless `settings` has them.
pub(crate) fn world_with(blocks: u64, settings: Settings) -> World {
    let pm = Arc::new(SimPm::new(SIZE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let clock = Arc::new(AtomicU64::new(1));
    let options = CacheOptions {
        settings,
        clock: Clock::Set(Arc::clone(&clock)),
        ..CacheOptions::new(blocks * BLOCK as u64)
    };
    let fs = CacheFs::new(mount_log(&pm), &options).unwrap();
    World { pm, clock, fs }
}

pub(crate) fn without_threads() -> Settings {
    Settings { threads: 0, ..Settings::default() }
}

pub(crate) fn world(blocks: u64) -> World {
    world_with(blocks, without_threads())
}

impl World {
    pub(crate) fn create(&self, name: &str) -> File {
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
            xattrs: &[],
            now: at(0),
        };
        self.fs.create(&self.fs.root(), name.as_bytes(), &new).unwrap()
    }

    pub(crate) fn find(&self, name: &str) -> Result<File> {
        self.fs.lookup(&self.fs.root(), name.as_bytes())
    }

    pub(crate) fn put(&self, file: &File, offset: u64, bytes: &[u8]) {
        self.write(file, WriteAt::Offset(offset), bytes, Durability::Lazy).unwrap();
    }

    pub(crate) fn put_now(&self, file: &File, offset: u64, bytes: &[u8]) {
        self.write(file, WriteAt::Offset(offset), bytes, Durability::Now).unwrap();
    }

    pub(crate) fn append(&self, file: &File, bytes: &[u8]) -> u64 {
        self.write(file, WriteAt::End, bytes, Durability::Lazy).unwrap()
    }

    pub(crate) fn write(&self, file: &File, to: WriteAt, bytes: &[u8], how: Durability) -> Result<u64> {
        self.fs.write(file, to, &[IoSlice::new(bytes)], how, at(1))
    }

    pub(crate) fn get(&self, file: &File) -> Vec<u8> {
        contents(&self.fs, file)
    }

    pub(crate) fn attr(&self, file: &File) -> Attr {
        self.fs.getattr(file).unwrap()
    }

    pub(crate) fn truncate(&self, file: &File, size: u64) {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(self.fs.setattr(file, &change, at(2)).unwrap().size, size);
    }

    pub(crate) fn pass_ms(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::Relaxed);
    }

    /// What a process finds that mounts what is on media now.
    pub(crate) fn on_media(&self) -> LogFs<SimPm> {
        mount_log(&Arc::new(SimPm::from_image(&self.pm.snapshot())))
    }

    /// The bytes of a file that are on media now; `None` without the file.
    pub(crate) fn bytes_on_media(&self, name: &str) -> Option<Vec<u8>> {
        let fs = self.on_media();
        let file = fs.lookup(&fs.root(), name.as_bytes()).ok()?;
        Some(contents(&fs, &file))
    }

    pub(crate) fn unmount(self) {
        let (layout, flushed) = self.fs.unmount();
        flushed.unwrap();
        layout.unmount().unwrap();
        let report = nacre_layout_log::check::check(&*self.pm, false).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

pub(crate) fn contents<F: Data>(fs: &F, file: &F::Node) -> Vec<u8> {
    let mut bytes = vec![0xEE; fs.getattr(file).unwrap().size as usize + 10];
    let count = fs.read(file, 0, &mut bytes, None).unwrap();
    bytes.truncate(count);
    bytes
}
