//! Creating, removing, renaming, asking.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nacre::FileSystem;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::figures::context::{Context, Outcome};
use crate::figures::library::threads;
use crate::figures::measure::{Side, interleave, timed};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, Names, create_ours, file_system, open_directory};

/// A file system and the root of a tmpfs.
pub(crate) struct Roots {
    pub(crate) fs: FileSystem,
    pub(crate) peer: OwnedFd,
}

pub(crate) fn create_peer(root: BorrowedFd<'_>, path: &CString) {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(root, path.as_c_str(), flags, Mode::from_bits_truncate(0o644)).expect("tmpfs creates");
}

pub(crate) fn unlink_peer(root: BorrowedFd<'_>, path: &CString) {
    rustix::fs::unlinkat(root, path.as_c_str(), AtFlags::empty()).expect("tmpfs unlinks");
}

impl Roots {
    pub(crate) fn make_dir(&self, name: &str) -> Outcome {
        self.fs.create_dir(name)?;
        rustix::fs::mkdirat(&self.peer, name, Mode::from_bits_truncate(0o755))?;
        Ok(())
    }

    pub(crate) fn create_all(&self, names: &Names) {
        names.ours.iter().for_each(|path| create_ours(&self.fs, path));
        names.peer.iter().for_each(|path| create_peer(self.peer.as_fd(), path));
    }

    fn report(
        &self,
        context: &Context,
        row: &str,
        operations: u64,
        ours: Side<'_>,
        peer: Side<'_>,
    ) -> Outcome {
        let pairs = interleave(&context.budget, operations, ours, peer);
        let row = rows::find(row);
        context.report(Figure::compared(row, &pairs))
    }

    /// Files are made in a directory that holds some, and removed outside the time.
    fn create(&self, context: &Context, names: &Names) -> Outcome {
        let (fs, root) = (&self.fs, self.peer.as_fd());
        self.report(
            context,
            "create",
            names.ours.len() as u64,
            &mut |_| {
                let time = timed(|| names.ours.iter().for_each(|path| create_ours(fs, path)));
                names.ours.iter().for_each(|path| fs.remove_file(path).expect("ours unlinks"));
                time
            },
            &mut |_| {
                let time = timed(|| names.peer.iter().for_each(|path| create_peer(root, path)));
                names.peer.iter().for_each(|path| unlink_peer(root, path));
                time
            },
        )
    }

    fn unlink(&self, context: &Context, names: &Names) -> Outcome {
        let (fs, root) = (&self.fs, self.peer.as_fd());
        self.report(
            context,
            "unlink",
            names.ours.len() as u64,
            &mut |_| {
                names.ours.iter().for_each(|path| create_ours(fs, path));
                timed(|| names.ours.iter().for_each(|path| fs.remove_file(path).expect("ours unlinks")))
            },
            &mut |_| {
                names.peer.iter().for_each(|path| create_peer(root, path));
                timed(|| names.peer.iter().for_each(|path| unlink_peer(root, path)))
            },
        )
    }

    /// Renames there in one round and back in the next.
    fn rename(&self, context: &Context, row: &str, one: &Names, other: &Names) -> Outcome {
        let root = self.peer.as_fd();
        self.create_all(one);
        fn turn<'a>(round: u64, one: &'a Names, other: &'a Names) -> (&'a Names, &'a Names) {
            if round.is_multiple_of(2) { (one, other) } else { (other, one) }
        }
        let mut last = 0;
        self.report(
            context,
            row,
            one.ours.len() as u64,
            &mut |round| {
                last = round;
                let (from, to) = turn(round, one, other);
                let pairs = from.ours.iter().zip(&to.ours);
                timed(|| pairs.for_each(|(from, to)| self.fs.rename(from, to).expect("ours renames")))
            },
            &mut |round| {
                let (from, to) = turn(round, one, other);
                let rename = |(from, to): (&CString, &CString)| {
                    rustix::fs::renameat(root, from.as_c_str(), root, to.as_c_str()).expect("tmpfs renames");
                };
                timed(|| from.peer.iter().zip(&to.peer).for_each(rename))
            },
        )?;
        let there = turn(last, one, other).1;
        there.ours.iter().for_each(|path| self.fs.remove_file(path).expect("ours unlinks"));
        there.peer.iter().for_each(|path| unlink_peer(root, path));
        Ok(())
    }

    fn stat(&self, context: &Context, row: &str, names: &Names) -> Outcome {
        let root = self.peer.as_fd();
        let count = context.sizes.batch;
        let order = |round| -> Vec<usize> {
            let mut random = SmallRng::seed_from_u64(round);
            (0..count).map(|_| random.random_range(0..names.ours.len())).collect()
        };
        self.report(
            context,
            row,
            count,
            &mut |round| {
                let paths: Vec<&PathBuf> = order(round).into_iter().map(|at| &names.ours[at]).collect();
                timed(|| {
                    for path in &paths {
                        std::hint::black_box(self.fs.metadata(path).expect("ours knows it"));
                    }
                })
            },
            &mut |round| {
                let paths: Vec<&CString> = order(round).into_iter().map(|at| &names.peer[at]).collect();
                timed(|| {
                    for path in &paths {
                        let stat = rustix::fs::statat(root, path.as_c_str(), AtFlags::empty());
                        std::hint::black_box(stat.expect("tmpfs knows it"));
                    }
                })
            },
        )
    }
}

pub(super) fn run(context: &Context) -> Outcome {
    let rows = ["create", "unlink", "rename", "rename-across", "stat", "stat-million", "create.2threads"];
    if !context.wants_any(rows) {
        return Ok(());
    }
    let (device, beside) = (context.place.tmpfs("pm", false)?, context.place.tmpfs("peer", false)?);
    // The format holds an inode for each block.
    let size = context.sizes.slack + context.sizes.many * BLOCK as u64;
    let fs = file_system(&device.path().join("device"), size)?;
    let roots = Roots { fs, peer: open_directory(beside.path())? };
    roots.make_dir("dir")?;
    roots.make_dir("other")?;
    roots.create_all(&Names::new("dir", "old-", context.sizes.few));
    let names = Names::new("dir", "file-", context.sizes.batch);
    if context.wants("create") {
        roots.create(context, &names)?;
    }
    if context.wants("unlink") {
        roots.unlink(context, &names)?;
    }
    if context.wants("rename") {
        roots.rename(context, "rename", &names, &Names::new("dir", "new-", context.sizes.batch))?;
    }
    if context.wants("rename-across") {
        roots.rename(context, "rename-across", &names, &Names::new("other", "file-", context.sizes.batch))?;
    }
    if context.wants("stat") {
        roots.stat(context, "stat", &Names::new("dir", "old-", context.sizes.few))?;
    }
    if context.wants("create.2threads") {
        threads::create(context, &roots)?;
    }
    if context.wants("stat-million") {
        roots.make_dir("million")?;
        let names = Names::new("million", "file-", context.sizes.many);
        roots.create_all(&names);
        roots.stat(context, "stat-million", &names)?;
    }
    roots.fs.close()?;
    Ok(())
}
