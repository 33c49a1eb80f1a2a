//! A mount of the reference model, served by threads of the test's own process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nacre_engine::{Kind, Result};
use nacre_fuse::{ServeOptions, Unmounter, serve};
use nacre_lab::model::MemLayout;
use nacre_vfs::{Vfs, VfsOptions};

/// A mount that ends with its value.
pub(crate) struct Mounted {
    dir: tempfile::TempDir,
    unmounter: Unmounter,
    server: Option<JoinHandle<Result<()>>>,
    vfs: Arc<Vfs<MemLayout>>,
}

impl Mounted {
    /// Mounts an empty model with these options; `None` where that cannot be done here, which is said.
    pub(crate) fn with(options: ServeOptions) -> Option<Mounted> {
        Mounted::of(MemLayout::default(), options)
    }

    /// Mounts what is there.
    pub(crate) fn of(layout: MemLayout, options: ServeOptions) -> Option<Mounted> {
        if !rustix::process::geteuid().is_root() || std::fs::File::open("/dev/fuse").is_err() {
            eprintln!("left out: this test takes root and /dev/fuse");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let vfs = Arc::new(Vfs::new(layout, VfsOptions::default()));
        let (ready, is_ready) = mpsc::channel();
        let served = (Arc::clone(&vfs), dir.path().to_path_buf());
        let server = std::thread::spawn(move || {
            serve(served.0, &served.1, &options, |unmounter, _| ready.send(unmounter).unwrap())
        });
        let unmounter = match is_ready.recv() {
            Ok(unmounter) => unmounter,
            Err(_) => panic!("the mount failed: {:?}", server.join()),
        };
        Some(Mounted { dir, unmounter, server: Some(server), vfs })
    }

    /// Mounts as root would by default.
    pub(crate) fn plain() -> Option<Mounted> {
        Mounted::with(root_options())
    }

    /// A path in the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The mountpoint.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What ends it.
    pub(crate) fn unmounter(&self) -> &Unmounter {
        &self.unmounter
    }

    /// The file system behind it.
    pub(crate) fn vfs(&self) -> &Vfs<MemLayout> {
        &self.vfs
    }

    /// Unmounts it and gives what the server returned. Another test may be starting a program just now, which has a
    /// copy of every open file until it is loaded, so what is busy is tried again for a while.
    pub(crate) fn end(mut self) -> Result<()> {
        let mut unmounted = self.unmounter.unmount();
        for _ in 0..100 {
            if !unmounted.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            unmounted = self.unmounter.unmount();
        }
        unmounted?;
        self.server.take().unwrap().join().unwrap()
    }

    /// Waits until the server ends on its own.
    pub(crate) fn join(mut self) -> Result<()> {
        self.server.take().unwrap().join().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            // A test that failed may still have files open.
            let _ = self.unmounter.abort();
            let _ = server.join();
        }
    }
}

/// What the command gives to a mount by root.
pub(crate) fn root_options() -> ServeOptions {
    ServeOptions {
        allow_other: true,
        dev: true,
        suid: true,
        source: "model".to_string(),
        ..ServeOptions::default()
    }
}

/// Makes the kernel give up what it can of its caches, which sends FORGET for inodes that are not in use.
pub(crate) fn drop_caches() {
    std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}
