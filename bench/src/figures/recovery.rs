//! Opening after a crash and after an orderly end, and the DRAM that indexes take.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nacre::FileSystem;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::figures::child::{Helper, say_ready, wait_for_end};
use crate::figures::context::{Context, Outcome};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, buffer, durable, file_system};

/// Files in one directory.
const PER_DIRECTORY: u64 = 1000;
/// Crashes and orderly ends that are measured.
const CRASHES: usize = 3;
const ENDS: usize = 5;
/// Bytes of the smallest files that the index is weighed against.
const FILE: u64 = 64 << 10;

fn name(number: u64) -> String {
    format!("/d{:04}/f{number:07}", number / PER_DIRECTORY)
}

/// The role of a child: makes a file system with so many files and bytes, then waits to be killed.
pub(crate) fn populate(device: &Path, size: u64, files: u64, bytes: u64) -> Outcome {
    let fs = file_system(device, size)?;
    let data = buffer(size_of_file(files, bytes) as usize);
    for number in 0..files {
        if number % PER_DIRECTORY == 0 {
            fs.create_dir(format!("/d{:04}", number / PER_DIRECTORY))?;
        }
        fs.create_file(name(number))
            .and_then(|file| file.write_at(&data, 0))
            .map_err(|error| error.object(name(number)))?;
    }
    let (rest, file) = (buffer(1 << 20), fs.create_file("/rest")?);
    for offset in (0..bytes - files * data.len() as u64).step_by(rest.len()) {
        file.write_at(&rest, offset)?;
    }
    say_ready(&[]);
    wait_for_end();
    Ok(())
}

/// Whole blocks; the rest of all bytes goes to one large file.
fn size_of_file(files: u64, bytes: u64) -> u64 {
    bytes / files / BLOCK as u64 * BLOCK as u64
}

/// The role of a child: opens the file system, changes something, then waits to be killed.
pub(crate) fn touch(device: &Path) -> Outcome {
    let fs = FileSystem::open(device, &durable())?;
    fs.write("/touched", b"touched")?;
    say_ready(&[]);
    wait_for_end();
    Ok(())
}

/// The role of a child: stores so many bytes in files of 64 KiB, or in one file block by block in random order. It
/// prints the size of its index: by its own account, and by the growth of this process.
pub(crate) fn index(device: &Path, bytes: u64, shattered: u64) -> Outcome {
    let fs = file_system(device, bytes + bytes / 2 + (64 << 20))?;
    let before = anonymous_memory()?;
    let counted = index_bytes(&fs)?;
    if shattered != 0 {
        let file = fs.create_file("/file")?;
        let data = buffer(1 << 20);
        (0..bytes).step_by(1 << 20).try_for_each(|at| file.write_at(&data, at).map(drop))?;
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..bytes / BLOCK as u64 {
            let block = random.random_range(0..bytes / BLOCK as u64);
            file.write_at(&data[..BLOCK], block * BLOCK as u64)?;
        }
    } else {
        let data = buffer(FILE as usize);
        for number in 0..bytes / FILE {
            if number % PER_DIRECTORY == 0 {
                fs.create_dir(format!("/d{:04}", number / PER_DIRECTORY))?;
            }
            fs.create_file(name(number))?.write_at(&data, 0)?;
        }
    }
    say_ready(&[index_bytes(&fs)?.saturating_sub(counted), anonymous_memory()?.saturating_sub(before)]);
    wait_for_end();
    Ok(())
}

fn index_bytes(fs: &FileSystem) -> Result<u64, nacre::Error> {
    Ok(fs.info()?.space.map_or(0, |space| space.index_bytes))
}

/// Bytes of this process that belong to it alone.
fn anonymous_memory() -> Result<u64, Box<dyn std::error::Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? << 10)
}

pub(crate) fn run(context: &Context) -> Outcome {
    opening(context)?;
    weigh(context, "index.files", 0)?;
    weigh(context, "index.shattered", 1)
}

fn opening(context: &Context) -> Outcome {
    if !context.wants_any(["recovery.crash", "recovery.clean"]) {
        return Ok(());
    }
    let place = context.place.tmpfs("pm", false)?;
    let device = place.path().join("device");
    let path = device.display().to_string();
    let (files, bytes) = (context.sizes.many, context.sizes.stored);
    let size = bytes + files * 512 + context.sizes.slack;
    let (child, _) =
        Helper::start("populate", &[&path, &size.to_string(), &files.to_string(), &bytes.to_string()])?;
    child.kill()?;
    let mut crashes = Vec::new();
    for crash in 0..CRASHES {
        if crash > 0 {
            Helper::start("touch", &[&path])?.0.kill()?;
        }
        let (fs, time) = open_and_use(&device, files)?;
        crashes.push(time.as_secs_f64());
        // All of it must be there.
        assert_eq!(fs.read(name(files / 2))?.len() as u64, size_of_file(files, bytes));
        fs.close()?;
    }
    let mut ends = Vec::new();
    for _ in 0..ENDS {
        let (fs, time) = open_and_use(&device, files)?;
        ends.push(time.as_secs_f64());
        fs.close()?;
    }
    for (name, times) in [("recovery.crash", crashes), ("recovery.clean", ends)] {
        if context.wants(name) {
            context.report(Figure::single(rows::find(name), "s", times))?;
        }
    }
    Ok(())
}

/// Opens it and reads the last file.
fn open_and_use(device: &Path, files: u64) -> Result<(FileSystem, Duration), Box<dyn std::error::Error>> {
    let begin = Instant::now();
    let fs = FileSystem::open(device, &durable())?;
    fs.open_file(name(files - 1))?.read_at(&mut [0; BLOCK], 0)?;
    Ok((fs, begin.elapsed()))
}

fn weigh(context: &Context, row: &str, shattered: u64) -> Outcome {
    if !context.wants(row) {
        return Ok(());
    }
    let place = context.place.tmpfs("pm", false)?;
    let device = place.path().join("device").display().to_string();
    let bytes = context.sizes.stored / 2;
    let (child, found) = Helper::start("index", &[&device, &bytes.to_string(), &shattered.to_string()])?;
    child.finish()?;
    let [counted, grown] = found[..] else { return Err("the child said nothing".into()) };
    let percent = |part: u64| part as f64 * 100.0 / bytes as f64;
    let figure = Figure::single(rows::find(row), "%", vec![percent(grown)]);
    context
        .report(figure.note(format!("growth of the process; by its own account {:.2} %", percent(counted))))
}
