//! Large directories and shattered files beside small ones: no operation may become much slower.
//!
//! Both sides are ours, and work on as many names and offsets: what is compared is what the rest of the directory or
//! file costs, not the processor's caches.

use std::time::Duration;

use nacre::{File, FileOptions, FileSystem};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::context::{Context, Outcome};
use crate::measure::{Pairs, Side, interleave, quantile, timed};
use crate::report::Figure;
use crate::rows;
use crate::work::{BLOCK, Names, buffer, create_ours, file_system};

const ENTRIES: [&str; 4] = ["scale.create", "scale.stat", "scale.rename", "scale.unlink"];
const EXTENTS: [&str; 5] =
    ["scale.read", "scale.overwrite", "scale.append", "scale.truncate", "scale.remove"];
/// Times that a large file is made to be cut or removed.
const REMOVALS: u64 = 3;
/// Bytes that are appended before a file is cut back to what it was.
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
    let pairs = interleave(context.budget, count, large, small);
    report(context, row, &pairs)
}

fn report(context: &Context, row: &str, pairs: &Pairs) -> Outcome {
    let row = rows::find(row);
    context.report(Figure::compared(row.name, row.what, row.target, pairs))
}

/// A directory, and the names in it that operations use.
struct Directory {
    /// Files that exist, spread over the directory.
    there: Names,
    new: Names,
    moved: Names,
}

impl Directory {
    fn new(
        context: &Context,
        fs: &FileSystem,
        dir: &str,
        count: u64,
    ) -> Result<Directory, Box<dyn std::error::Error>> {
        fs.create_dir(dir)?;
        let all = Names::new(dir, "file-", count);
        all.ours.iter().for_each(|path| create_ours(fs, path));
        let step = (count / context.sizes.few).max(1) as usize;
        let there = Names { ours: all.ours.into_iter().step_by(step).collect(), peer: Vec::new() };
        let batch = context.sizes.batch;
        Ok(Directory { there, new: Names::new(dir, "new-", batch), moved: Names::new(dir, "moved-", batch) })
    }
}

fn entries(context: &Context) -> Outcome {
    let place = context.place.tmpfs("pm", false)?;
    let size = context.sizes.slack + context.sizes.many * BLOCK as u64;
    let fs = file_system(&place.path().join("device"), size)?;
    let large = Directory::new(context, &fs, "large", context.sizes.many)?;
    let small = Directory::new(context, &fs, "small", context.sizes.few)?;
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
                context.budget,
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

/// Writes every second block, so that each is an extent of its own, in an order that is good for nobody.
fn shatter(fs: &FileSystem, path: &str, extents: u64) -> Result<File, nacre::Error> {
    let file = FileOptions::new().read(true).write(true).create(true).open(fs, path)?;
    let data = buffer(BLOCK);
    // In order: what is measured is the file, not how it came to be.
    (0..extents).try_for_each(|extent| file.write_at(&data, extent * 2 * BLOCK as u64).map(drop))?;
    Ok(file)
}

fn extents(context: &Context) -> Outcome {
    let (many, few) = (context.sizes.many, context.sizes.few);
    let place = context.place.tmpfs("pm", false)?;
    let size = 2 * context.sizes.slack + many * BLOCK as u64 + many * BLOCK as u64 / 8;
    let fs = file_system(&place.path().join("device"), size)?;
    let large = shatter(&fs, "/large", many)?;
    let small = shatter(&fs, "/small", few)?;
    // The same number of blocks on both sides, spread over the file, in random order.
    let spread = |extents: u64| -> Vec<u64> {
        let mut offsets: Vec<u64> = (0..few).map(|at| at * (extents / few) * 2 * BLOCK as u64).collect();
        offsets.shuffle(&mut SmallRng::seed_from_u64(7));
        offsets
    };
    let (large_at, small_at) = (spread(many), spread(few));
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
        let end = |extents: u64| extents * 2 * BLOCK as u64;
        compare(
            context,
            "scale.append",
            batch,
            &mut |round| append(&large, round, end(many)),
            &mut |round| append(&small, round, end(few)),
        )?;
    }
    drop((large, small));
    removals(context, &fs)?;
    fs.close()?;
    Ok(())
}

/// Cutting and removing whole files: one call each, for which a file is made.
fn removals(context: &Context, fs: &FileSystem) -> Outcome {
    let cut = |path: &str, extents: u64| -> Result<Duration, nacre::Error> {
        let file = shatter(fs, path, extents)?;
        Ok(timed(|| file.set_len(0).expect("ours truncates")))
    };
    let remove = |path: &str, extents: u64| -> Result<Duration, nacre::Error> {
        drop(shatter(fs, path, extents)?);
        Ok(timed(|| fs.remove_file(path).expect("ours unlinks")))
    };
    type Removal<'a> = &'a dyn Fn(&str, u64) -> Result<Duration, nacre::Error>;
    let kinds: [(&str, Removal<'_>); 2] = [("scale.truncate", &cut), ("scale.remove", &remove)];
    for (row, removal) in kinds {
        if !context.wants(row) {
            continue;
        }
        let mut pairs = Pairs::default();
        for _ in 0..REMOVALS {
            pairs.ours.push(removal("/large", context.sizes.many)?.as_nanos() as f64);
            // The median of several: one short call is at the mercy of everything.
            let times: Result<Vec<f64>, _> =
                (0..9).map(|_| removal("/small", context.sizes.few).map(|t| t.as_nanos() as f64)).collect();
            pairs.peer.push(quantile(&times?, 0.5));
        }
        report(context, row, &pairs)?;
    }
    Ok(())
}
