//! Measures single requests on directories: `measure DIR...`, nanoseconds for each operation, median of seven rounds.
//!
//! The rounds go through the directories in turn, so that what disturbs the machine disturbs all of them alike.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;
const OPERATIONS: u32 = 4000;
const BLOCK: usize = 4096;
/// Blocks of the file that is read and written: 64 MiB.
const BLOCKS: u64 = 16_384;

/// What is measured, in the order in which it happens.
const NAMES: [&str; 9] = [
    "create",
    "write 4k",
    "append 4k",
    "fsync",
    "read 4k (direct)",
    "read 4k (warm)",
    "stat (warm)",
    "rename",
    "unlink",
];

fn main() -> io::Result<()> {
    let dirs: Vec<String> = std::env::args().skip(1).collect();
    let mut times = vec![[const { Vec::new() }; NAMES.len()]; dirs.len()];
    for _ in 0..ROUNDS {
        for (dir, times) in dirs.iter().zip(&mut times) {
            for (all, time) in times.iter_mut().zip(round(Path::new(dir))?) {
                all.push(time.as_nanos() as u64 / u64::from(OPERATIONS));
            }
        }
    }
    print!("{:18}", "ns");
    dirs.iter().for_each(|dir| print!("{dir:>24}"));
    println!();
    for (index, name) in NAMES.iter().enumerate() {
        print!("{name:18}");
        for times in &mut times {
            times[index].sort_unstable();
            print!("{:>24}", times[index][ROUNDS / 2]);
        }
        println!();
    }
    Ok(())
}

fn timed(mut operation: impl FnMut(u32) -> io::Result<()>) -> io::Result<Duration> {
    let start = Instant::now();
    (0..OPERATIONS).try_for_each(&mut operation)?;
    Ok(start.elapsed())
}

/// A block somewhere in the file.
fn scattered(number: u32) -> u64 {
    (u64::from(number) * 7919 % BLOCKS) * BLOCK as u64
}

fn round(dir: &Path) -> io::Result<[Duration; NAMES.len()]> {
    let name = |number: u32| dir.join(format!("n{number:05}"));
    let other = |number: u32| dir.join(format!("m{number:05}"));
    let create = timed(|number| File::create_new(name(number)).map(drop))?;
    let path = dir.join("data");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    let megabyte = vec![1; 1 << 20];
    (0..BLOCKS * BLOCK as u64 >> 20).try_for_each(|at| file.write_all_at(&megabyte, at << 20))?;
    let mut block = [2; BLOCK];
    let write = timed(|number| file.write_all_at(&block, scattered(number)))?;
    let log = File::create(dir.join("log"))?;
    let append = timed(|number| log.write_all_at(&block, u64::from(number) * BLOCK as u64))?;
    let fsync = timed(|_| file.sync_all())?;
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path)?;
    let mut room = vec![0; 2 * BLOCK];
    let aligned = room.as_ptr().align_offset(BLOCK);
    let read = timed(|number| direct.read_exact_at(&mut room[aligned..aligned + BLOCK], scattered(number)))?;
    (0..BLOCKS).try_for_each(|at| file.read_exact_at(&mut block, at * BLOCK as u64))?;
    let warm = timed(|number| file.read_exact_at(&mut block, scattered(number)))?;
    let stat = timed(|number| fs::metadata(name(number)).map(drop))?;
    let rename = timed(|number| fs::rename(name(number), other(number)))?;
    let unlink = timed(|number| fs::remove_file(other(number)))?;
    fs::remove_file(&path)?;
    fs::remove_file(dir.join("log"))?;
    Ok([create, write, append, fsync, read, warm, stat, rename, unlink])
}
