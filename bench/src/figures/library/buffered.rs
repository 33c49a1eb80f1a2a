//! The write buffer: the cost of a write into DRAM compared with tmpfs, and the cost of the buffer for work that does
//! not need it.
//!
//! Where writes are to be buffered, PM is emulated at 200 ns a line: on PM as fast as DRAM they are not.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use nacre::{
    CacheOptions, Emulation, File, FileOptions, FileSystem, MkfsOptions, OpenOptions, Preset, WriteBuffer,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::pwrite;

use crate::figures::context::{Context, Outcome};
use crate::figures::measure::{Pairs, interleave, timed};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, buffer, offsets};

const MEBIBYTE: usize = 1 << 20;
/// The parameters of the emulator.
const SLOW: &str = "latency=200,bandwidth=1G";

const OVERWRITE: &str = "cache.overwrite-4k";
const OVERWRITE_WARM: &str = "cache.overwrite-4k-warm";
/// Bytes of a file that the caches of the CPU hold, on either side.
const WARM: u64 = 4 << 20;
const READ: &str = "cache.read-4k";
const READ_DIRTY: &str = "cache.read-4k-dirty";
/// The default preset beside the same layout without a buffer.
const DEFAULT: [&str; 3] = ["default.overwrite-4k", "default.read-4k", "default.append-4k"];

pub(super) fn run(context: &Context) -> Outcome {
    let wants = |rows: &[&str]| rows.iter().any(|row| context.wants(row));
    for (row, size) in [(OVERWRITE, context.sizes.small_file), (OVERWRITE_WARM, WARM)] {
        if context.wants(row) {
            overwrite(context, row, size)?;
        }
    }
    if wants(&[READ, READ_DIRTY]) {
        reads(context)?;
    }
    if wants(&DEFAULT) {
        defaults(context)?;
    }
    Ok(())
}

/// A file system with a file of some size.
struct Side {
    file: File,
    log: File,
    fs: FileSystem,
}

impl Side {
    fn new(
        device: &Path,
        context: &Context,
        preset: Preset,
        emulate: Option<&str>,
        size: u64,
    ) -> Result<Side, Box<dyn std::error::Error>> {
        let emulation = emulate.map(str::parse::<Emulation>).transpose()?;
        // The file several times over: nothing has to make room.
        let buffer = match preset.buffers_writes() {
            true => WriteBuffer::With(CacheOptions::new(4 * size)),
            false => WriteBuffer::Never,
        };
        let make = MkfsOptions { preset, ..MkfsOptions::with_size(size + context.sizes.slack) };
        let fs =
            FileSystem::create(device, &make, &OpenOptions { emulation, buffer, ..OpenOptions::default() })?;
        fs.prefault(&AtomicBool::new(false))?;
        let open = |name: &str| FileOptions::new().read(true).write(true).create_new(true).open(&fs, name);
        let (file, log) = (open("/file")?, open("/log")?);
        Ok(Side { file, log, fs })
    }

    fn fill(&self, size: u64) -> Outcome {
        let data = buffer(MEBIBYTE);
        (0..size).step_by(MEBIBYTE).try_for_each(|at| self.file.write_at(&data, at).map(drop))?;
        Ok(())
    }

    fn close(self) -> Outcome {
        let Side { file, log, fs } = self;
        drop((file, log));
        Ok(fs.close()?)
    }
}

/// An operation on one block at an offset.
type Act<'a> = &'a dyn Fn(u64);

/// Both sides at the same random offsets of files of `size` bytes.
fn beside(context: &Context, size: u64, ours: Act<'_>, peer: Act<'_>) -> Pairs {
    let count = context.sizes.batch;
    let batch = |act: Act<'_>, round| {
        let offsets = offsets(round, count, size, BLOCK as u64);
        timed(|| offsets.iter().for_each(|&offset| act(offset)))
    };
    interleave(&context.budget, count, &mut |round| batch(ours, round), &mut |round| batch(peer, round))
}

/// Blocks that are in DRAM are written again, beside pages of tmpfs.
fn overwrite(context: &Context, row: &str, size: u64) -> Outcome {
    let place = context.place.tmpfs("pm", false)?;
    let ours = Side::new(&place.path().join("device"), context, Preset::Hinfs, Some(SLOW), size)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let peer = rustix::fs::open(place.path().join("file"), flags, Mode::from_bits_truncate(0o644))?;
    let data = buffer(MEBIBYTE);
    ours.fill(size)?;
    for at in (0..size).step_by(MEBIBYTE) {
        pwrite(&peer, &data, at)?;
    }
    let data = buffer(BLOCK);
    let pairs = beside(
        context,
        size,
        &|offset| assert_eq!(ours.file.write_at(&data, offset).expect("a write of ours"), BLOCK),
        &|offset| assert_eq!(pwrite(&peer, &data, offset).expect("a write to tmpfs"), BLOCK),
    );
    ours.close()?;
    context.report(Figure::compared(rows::find(row), &pairs))
}

/// Reads of data that is not in DRAM, and of data that is, compared with the same layout without a buffer.
fn reads(context: &Context) -> Outcome {
    let place = context.place.tmpfs("pm", false)?;
    let size = context.sizes.small_file;
    let ours = Side::new(&place.path().join("ours"), context, Preset::Hinfs, Some(SLOW), size)?;
    let peer = Side::new(&place.path().join("peer"), context, Preset::Pmfs, Some(SLOW), size)?;
    ours.fill(size)?;
    peer.fill(size)?;
    for row in [READ_DIRTY, READ] {
        if row == READ {
            ours.fs.sync()?;
        }
        if context.wants(row) {
            context
                .report(Figure::compared(rows::find(row), &beside_reads(context, &ours.file, &peer.file)))?;
        }
    }
    ours.close()?;
    peer.close()
}

fn beside_reads(context: &Context, ours: &File, peer: &File) -> Pairs {
    let read = |file: &File, offset| {
        let mut data = [0; BLOCK];
        assert_eq!(file.read_at(&mut data, offset).expect("a read"), BLOCK);
        std::hint::black_box(&data);
    };
    let size = context.sizes.small_file;
    beside(context, size, &|offset| read(ours, offset), &|offset| read(peer, offset))
}

/// The default preset on PM as fast as DRAM, where it has nothing to buffer, compared with its layout alone.
fn defaults(context: &Context) -> Outcome {
    let place = context.place.tmpfs("pm", false)?;
    let size = context.sizes.small_file;
    let ours = Side::new(&place.path().join("ours"), context, Preset::Nacre, None, size)?;
    let peer = Side::new(&place.path().join("peer"), context, Preset::Nova, None, size)?;
    ours.fill(size)?;
    peer.fill(size)?;
    let data = buffer(BLOCK);
    let write = |file: &File, offset| assert_eq!(file.write_at(&data, offset).expect("a write"), BLOCK);
    let [overwrite, read, append] = DEFAULT;
    if context.wants(overwrite) {
        let pairs =
            beside(context, size, &|offset| write(&ours.file, offset), &|offset| write(&peer.file, offset));
        context.report(Figure::compared(rows::find(overwrite), &pairs))?;
    }
    if context.wants(read) {
        context.report(Figure::compared(rows::find(read), &beside_reads(context, &ours.file, &peer.file)))?;
    }
    if context.wants(append) {
        let count = context.sizes.batch;
        let rounds = (size / (count * BLOCK as u64)).max(1);
        let batch = |side: &Side, round: u64| {
            if round.is_multiple_of(rounds) {
                side.log.set_len(0).expect("a truncation");
            }
            let begin = round % rounds * count;
            timed(|| (begin..begin + count).for_each(|block| write(&side.log, block * BLOCK as u64)))
        };
        let pairs = interleave(&context.budget, count, &mut |round| batch(&ours, round), &mut |round| {
            batch(&peer, round)
        });
        context.report(Figure::compared(rows::find(append), &pairs))?;
    }
    ours.close()?;
    peer.close()
}
