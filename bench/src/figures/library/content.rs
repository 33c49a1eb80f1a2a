//! Reading and writing.

use std::os::fd::OwnedFd;
use std::path::Path;

use nacre::{File, FileOptions, FileSystem};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rustix::fs::{Mode, OFlags};
use rustix::io::{pread, pwrite};

use crate::figures::context::{Context, Outcome};
use crate::figures::library::threads;
use crate::figures::measure::{interleave, timed};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, buffer, file_system, offsets};

const MEBIBYTE: usize = 1 << 20;
/// A file is appended to up to this size.
const APPEND_LIMIT: u64 = 256 << 20;

/// Rows of every variant.
const ROWS: [&str; 4] = ["overwrite-4k", "append-4k", "read-4k", "overwrite-1m"];
const AGED: &str = "aged.overwrite-1m";
const THREADED: [&str; 2] = ["overwrite-4k.2threads", "read-4k.2threads"];
/// Rows of the plain variant alone.
const PLAIN: [&str; 3] = [AGED, THREADED[0], THREADED[1]];

/// The file that the rows run on, and its tmpfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// The large file, plain tmpfs.
    Plain,
    /// The small file, plain tmpfs.
    Small,
    /// The large file, tmpfs with huge pages below both sides.
    Huge,
}

impl Variant {
    fn prefix(self) -> &'static str {
        match self {
            Variant::Plain => "",
            Variant::Small => "small.",
            Variant::Huge => "huge.",
        }
    }
}

/// The same file on both sides.
pub(super) struct Both {
    pub(super) ours: File,
    pub(super) peer: OwnedFd,
    pub(super) size: u64,
}

pub(super) fn run(context: &Context, variant: Variant) -> Outcome {
    let name = |row: &str| format!("{}{row}", variant.prefix());
    let all: Vec<String> = ROWS
        .iter()
        .map(|row| name(row))
        .chain(PLAIN.iter().filter(|_| variant == Variant::Plain).map(|row| (*row).to_owned()))
        .collect();
    let wants = |row: &str| all.iter().any(|name| name == row) && context.wants(row);
    if !all.iter().any(|row| context.wants(row)) {
        return Ok(());
    }
    let huge = variant == Variant::Huge;
    let size = if variant == Variant::Small { context.sizes.small_file } else { context.sizes.file };
    let (device, beside) = match (context.place.tmpfs("pm", huge), context.place.tmpfs("peer", huge)) {
        (Ok(device), Ok(beside)) => (device, beside),
        (Err(error), _) | (_, Err(error)) => {
            let why = format!("a tmpfs for it cannot be had: {error}");
            context.leave_out(all.iter().map(String::as_str), &why);
            return Ok(());
        }
    };
    let fs = file_system(&device.path().join("device"), size + context.sizes.slack)?;
    let both = Both {
        ours: FileOptions::new().read(true).write(true).create_new(true).open(&fs, "/file")?,
        peer: create(&beside.path().join("file"))?,
        size,
    };
    both.fill()?;
    if context.wants(&name("overwrite-1m")) {
        both.overwrite(context, &name("overwrite-1m"), MEBIBYTE)?;
    }
    both.age()?;
    if context.wants(&name("overwrite-4k")) {
        both.overwrite(context, &name("overwrite-4k"), BLOCK)?;
    }
    if context.wants(&name("append-4k")) {
        append(context, &name("append-4k"), &fs, beside.path())?;
    }
    if context.wants(&name("read-4k")) {
        both.read(context, &name("read-4k"))?;
    }
    if wants(AGED) {
        both.overwrite(context, AGED, MEBIBYTE)?;
    }
    if THREADED.iter().any(|row| wants(row)) {
        threads::content(context, &both)?;
    }
    drop(both);
    fs.close()?;
    Ok(())
}

fn create(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_bits_truncate(0o644))
}

/// The operations of a batch that moves `unit` bytes each.
fn batch(context: &Context, unit: usize) -> u64 {
    if unit > BLOCK { (context.sizes.batch / 32).max(4) } else { context.sizes.batch }
}

impl Both {
    /// Writes the file in large pieces.
    fn fill(&self) -> Outcome {
        let data = buffer(MEBIBYTE);
        for offset in (0..self.size).step_by(MEBIBYTE) {
            self.ours.write_at(&data, offset)?;
            pwrite(&self.peer, &data, offset)?;
        }
        Ok(())
    }

    /// Overwrites every block once at random: from then on the file is shattered as any old file.
    fn age(&self) -> Outcome {
        let data = buffer(BLOCK);
        let mut blocks: Vec<u64> = (0..self.size / BLOCK as u64).collect();
        blocks.shuffle(&mut SmallRng::seed_from_u64(1));
        for block in blocks {
            let offset = block * BLOCK as u64;
            self.ours.write_at(&data, offset)?;
            pwrite(&self.peer, &data, offset)?;
        }
        Ok(())
    }

    fn overwrite(&self, context: &Context, row: &str, unit: usize) -> Outcome {
        let data = buffer(unit);
        let count = batch(context, unit);
        let at = |round| offsets(round, count, self.size, unit as u64);
        let pairs = interleave(
            &context.budget,
            count,
            &mut |round| {
                let offsets = at(round);
                timed(|| {
                    for &offset in &offsets {
                        self.ours.write_at(&data, offset).expect("a write of ours");
                    }
                })
            },
            &mut |round| {
                let offsets = at(round);
                timed(|| {
                    for &offset in &offsets {
                        pwrite(&self.peer, &data, offset).expect("a write to tmpfs");
                    }
                })
            },
        );
        let row = rows::find(row);
        context.report(Figure::compared(row, &pairs))
    }

    fn read(&self, context: &Context, row: &str) -> Outcome {
        let (mut data, mut other) = (buffer(BLOCK), buffer(BLOCK));
        let count = batch(context, BLOCK);
        let at = |round| offsets(round, count, self.size, BLOCK as u64);
        let pairs = interleave(
            &context.budget,
            count,
            &mut |round| {
                let offsets = at(round);
                timed(|| {
                    for &offset in &offsets {
                        self.ours.read_at(&mut data, offset).expect("a read of ours");
                    }
                })
            },
            &mut |round| {
                let offsets = at(round);
                timed(|| {
                    for &offset in &offsets {
                        pread(&self.peer, &mut other[..], offset).expect("a read of tmpfs");
                    }
                })
            },
        );
        let row = rows::find(row);
        context.report(Figure::compared(row, &pairs))
    }
}

/// Appends; both files are cut to nothing together, outside the time.
fn append(context: &Context, row: &str, fs: &FileSystem, beside: &Path) -> Outcome {
    let ours = FileOptions::new().append(true).create_new(true).open(fs, "/log")?;
    let peer = create(&beside.join("log"))?;
    rustix::fs::fcntl_setfl(&peer, OFlags::APPEND)?;
    let data = buffer(BLOCK);
    let count = batch(context, BLOCK);
    let per_file = (APPEND_LIMIT.min(context.sizes.slack / 4) / (count * BLOCK as u64)).max(1);
    let pairs = interleave(
        &context.budget,
        count,
        &mut |round| {
            if round.is_multiple_of(per_file) {
                nacre_truncate(fs);
            }
            timed(|| {
                for _ in 0..count {
                    ours.append(&data).expect("an append of ours");
                }
            })
        },
        &mut |round| {
            if round.is_multiple_of(per_file) {
                rustix::fs::ftruncate(&peer, 0).expect("tmpfs truncates");
            }
            timed(|| {
                for _ in 0..count {
                    rustix::io::write(&peer, &data).expect("an append to tmpfs");
                }
            })
        },
    );
    drop(ours);
    fs.remove_file("/log")?;
    let row = rows::find(row);
    let figure = Figure::compared(row, &pairs);
    context.report(if row.target.is_none() { figure } else { figure.note("from an empty file on") })
}

fn nacre_truncate(fs: &FileSystem) {
    fs.truncate("/log", 0).expect("ours truncates");
}
