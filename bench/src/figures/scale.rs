//! Large directories and shattered files beside small ones: no operation may become much slower.
//!
//! Both sides are ours, in one file system, on as many names and offsets, which lie as far apart. So the cost of the
//! size of the directory and of the number of extents is compared, not the processor's caches.

use std::time::Duration;

use nacre::{File, FileOptions, FileSystem};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::figures::context::{Context, Outcome};
use crate::figures::measure::{Pairs, Side, interleave, timed};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, Names, buffer, create_ours, file_system};

const ENTRIES: [&str; 4] = ["scale.create", "scale.stat", "scale.rename", "scale.unlink"];
const EXTENTS: [&str; 5] =
    ["scale.read", "scale.overwrite", "scale.append", "scale.truncate", "scale.remove"];
/// Times that a large file is made to be cut or removed.
const REMOVALS: u64 = 5;
/// A pause before each of them.
const SETTLE: Duration = Duration::from_millis(100);
/// Bytes that are appended before a file is cut back to its first size.
const APPEND_LIMIT: u64 = 64 << 20;

pub(crate) fn run(context: &Context) -> Outcome {
    if context.wants_any(ENTRIES) {
        entries(context)?;
    }
    if context.wants_any(EXTENTS) {
        extents(context)?;
    }
    Ok(())
}

fn compare(context: &Context, row: &str, count: u64, large: Side<'_>, small: Side<'_>) -> Outcome {
    let pairs = interleave(&context.budget, count, large, small);
    report(context, row, &pairs)
}

fn report(context: &Context, row: &str, pairs: &Pairs) -> Outcome {
    let row = rows::find(row);
    context.report(Figure::compared(row, pairs))
}

/// A directory, and the names in it that operations use.
struct Directory {
    /// Files that exist, spread over the directory.
    there: Names,
    new: Names,
    moved: Names,
}

impl Directory {
    fn new(context: &Context, fs: &FileSystem, dir: &str) -> Result<Directory, nacre::Error> {
        fs.create_dir(dir)?;
        let batch = context.sizes.batch;
        let none = Names::new(dir, "", 0);
        Ok(Directory {
            there: none,
            new: Names::new(dir, "new-", batch),
            moved: Names::new(dir, "moved-", batch),
        })
    }
}

/// Makes both directories. The files of the small one are made between those of the large one, and the same number
/// of the large one's, from all over it, is worked on.
fn directories(context: &Context, fs: &FileSystem) -> Result<(Directory, Directory), nacre::Error> {
    let (many, few) = (context.sizes.many, context.sizes.few);
    let (mut large, mut small) =
        (Directory::new(context, fs, "large")?, Directory::new(context, fs, "small")?);
    let step = (many / few) as usize;
    let (all, beside) = (Names::new("large", "file-", many), Names::new("small", "file-", few));
    for (number, path) in all.ours.iter().enumerate() {
        create_ours(fs, path);
        if number % step == 0 {
            create_ours(fs, &beside.ours[number / step]);
        }
    }
    large.there.ours = all.ours.into_iter().step_by(step).collect();
    small.there = beside;
    Ok((large, small))
}

fn entries(context: &Context) -> Outcome {
    let place = context.place.tmpfs("pm", false)?;
    let size = context.sizes.slack + context.sizes.many * BLOCK as u64;
    let fs = file_system(&place.path().join("device"), size)?;
    let (large, small) = directories(context, &fs)?;
    let batch = context.sizes.batch;
    let create = |names: &Names| timed(|| names.ours.iter().for_each(|path| create_ours(&fs, path)));
    let unlink = |names: &Names| {
        timed(|| names.ours.iter().for_each(|path| fs.remove_file(path).expect("ours unlinks")))
    };
    if context.wants("scale.create") {
        let made = |side: &Directory| {
            let time = create(&side.new);
            unlink(&side.new);
            time
        };
        compare(context, "scale.create", batch, &mut |_| made(&large), &mut |_| made(&small))?;
    }
    if context.wants("scale.stat") {
        let stat = |side: &Directory| {
            timed(|| {
                for path in &side.there.ours {
                    std::hint::black_box(fs.metadata(path).expect("ours knows it"));
                }
            })
        };
        compare(context, "scale.stat", context.sizes.few, &mut |_| stat(&large), &mut |_| stat(&small))?;
    }
    if context.wants("scale.rename") {
        create(&large.new);
        create(&small.new);
        let mut turn = 0;
        let mut rename = |side: &Directory, round: u64| {
            turn = round;
            let (from, to) =
                if round.is_multiple_of(2) { (&side.new, &side.moved) } else { (&side.moved, &side.new) };
            let pairs = from.ours.iter().zip(&to.ours);
            timed(|| pairs.for_each(|(from, to)| fs.rename(from, to).expect("ours renames")))
        };
        let pairs = {
            let rename = std::cell::RefCell::new(&mut rename);
            interleave(
                &context.budget,
                batch,
                &mut |round| (rename.borrow_mut())(&large, round),
                &mut |round| (rename.borrow_mut())(&small, round),
            )
        };
        report(context, "scale.rename", &pairs)?;
        for side in [&large, &small] {
            unlink(if turn % 2 == 0 { &side.moved } else { &side.new });
        }
    }
    if context.wants("scale.unlink") {
        let unlinked = |side: &Directory| {
            create(&side.new);
            unlink(&side.new)
        };
        compare(context, "scale.unlink", batch, &mut |_| unlinked(&large), &mut |_| unlinked(&small))?;
    }
    fs.close()?;
    Ok(())
}

fn create(fs: &FileSystem, path: &str) -> Result<File, nacre::Error> {
    FileOptions::new().read(true).write(true).create_new(true).open(fs, path)
}

/// A file of which every second block is there, each an extent of its own.
fn shatter(fs: &FileSystem, path: &str, extents: u64) -> Result<File, nacre::Error> {
    let file = create(fs, path)?;
    let data = buffer(BLOCK);
    (0..extents).try_for_each(|extent| file.write_at(&data, extent * 2 * BLOCK as u64).map(drop))?;
    Ok(file)
}

fn extents(context: &Context) -> Outcome {
    let (many, few) = (context.sizes.many, context.sizes.few);
    let place = context.place.tmpfs("pm", false)?;
    // The shattered file with its log, and a whole one of half its blocks.
    let size = 2 * context.sizes.slack + (many + many / 8 + many / 2) * BLOCK as u64;
    let fs = file_system(&place.path().join("device"), size)?;
    let large = shatter(&fs, "/large", many)?;
    let small = create(&fs, "/small")?;
    let piece = buffer(1 << 20);
    let whole = many / 2 * BLOCK as u64 / piece.len() as u64 * piece.len() as u64;
    (0..whole).step_by(piece.len()).try_for_each(|at| small.write_at(&piece, at).map(drop))?;
    // The same number of blocks on both sides, spread over the file, in random order.
    let spread = |blocks: u64, stride: u64| -> Vec<u64> {
        let mut offsets: Vec<u64> = (0..few).map(|at| at * (blocks / few) * stride * BLOCK as u64).collect();
        offsets.shuffle(&mut SmallRng::seed_from_u64(7));
        offsets
    };
    let (large_at, small_at) = (spread(many, 2), spread(whole / BLOCK as u64, 1));
    let mut data = buffer(BLOCK);
    if context.wants("scale.read") {
        let mut other = buffer(BLOCK);
        let read = |file: &File, at: &[u64], data: &mut [u8]| {
            timed(|| at.iter().for_each(|&at| assert_eq!(file.read_at(data, at).expect("ours reads"), BLOCK)))
        };
        compare(context, "scale.read", few, &mut |_| read(&large, &large_at, &mut data), &mut |_| {
            read(&small, &small_at, &mut other)
        })?;
    }
    if context.wants("scale.overwrite") {
        let write = |file: &File, at: &[u64]| {
            timed(|| {
                at.iter().for_each(|&at| assert_eq!(file.write_at(&data, at).expect("ours writes"), BLOCK))
            })
        };
        let (ours, peer) = (|_| write(&large, &large_at), |_| write(&small, &small_at));
        compare(context, "scale.overwrite", few, &mut { ours }, &mut { peer })?;
    }
    if context.wants("scale.append") {
        let batch = context.sizes.batch;
        let per_file = APPEND_LIMIT / BLOCK as u64 / batch;
        let append = |file: &File, round: u64, len: u64| {
            if round.is_multiple_of(per_file) {
                file.set_len(len).expect("ours truncates");
            }
            timed(|| {
                for _ in 0..batch {
                    file.append(&data).expect("ours appends");
                }
            })
        };
        compare(
            context,
            "scale.append",
            batch,
            &mut |round| append(&large, round, many * 2 * BLOCK as u64),
            &mut |round| append(&small, round, whole),
        )?;
    }
    drop((large, small));
    fs.remove_file("/large")?;
    fs.remove_file("/small")?;
    removals(context, &fs)?;
    fs.close()?;
    Ok(())
}

/// Cutting and removing whole files: one call each, for which both files are made.
fn removals(context: &Context, fs: &FileSystem) -> Outcome {
    let cut = |path: &str| -> Result<Duration, nacre::Error> {
        let file = FileOptions::new().write(true).open(fs, path)?;
        let time = timed(|| file.set_len(0).expect("ours truncates"));
        drop(file);
        fs.remove_file(path)?;
        Ok(time)
    };
    let remove = |path: &str| Ok(timed(|| fs.remove_file(path).expect("ours unlinks")));
    type Removal<'a> = &'a dyn Fn(&str) -> Result<Duration, nacre::Error>;
    let kinds: [(&str, Removal<'_>); 2] = [("scale.truncate", &cut), ("scale.remove", &remove)];
    for (row, removal) in kinds {
        if !context.wants(row) {
            continue;
        }
        let mut pairs = Pairs::default();
        for round in 0..REMOVALS {
            drop(shatter(fs, "/large", context.sizes.many)?);
            drop(shatter(fs, "/small", context.sizes.few)?);
            let mut times = [0.0; 2];
            for turn in [round % 2, (round + 1) % 2] {
                // Blocks that are freed in the background by now are not in the way.
                std::thread::sleep(SETTLE);
                times[turn as usize] = removal(["/large", "/small"][turn as usize])?.as_nanos() as f64;
            }
            pairs.ours.push(times[0]);
            pairs.peer.push(times[1]);
        }
        report(context, row, &pairs)?;
    }
    Ok(())
}
