//! Operations per second on this mount, on tmpfs and on the machine's own disk, in one run.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::output;

/// The time of each measurement.
const DURATION: Duration = Duration::from_millis(500);
/// The size of the file that is written and read, in bytes.
const FILE_SIZE: u64 = 16 << 20;
/// The size of each write and read, in bytes.
const BLOCK: usize = 4096;
/// The most files that are created in one measurement.
const MAX_FILES: u64 = 20_000;
/// File systems in DRAM, by the type that statfs(2) shows: tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The operations, in the order of the table.
const OPERATIONS: [&str; 5] = ["create", "4 KiB write + fsync", "4 KiB read", "rename", "unlink"];

/// The table of results. A file system that is not there has no column.
pub(crate) fn table(mount: &Path) -> Result<String, Failure> {
    let mut head = vec!["operation ".to_owned(), "this mount".to_owned()];
    let mut columns = vec![measure(mount)?];
    if Path::new("/dev/shm").is_dir() {
        head.push("tmpfs".to_owned());
        columns.push(measure(Path::new("/dev/shm"))?);
    }
    if let Some(disk) = disk() {
        head.push(format!("disk ({})", disk.display()));
        columns.push(measure(&disk)?);
    }
    let rows: Vec<Vec<String>> = OPERATIONS
        .iter()
        .enumerate()
        .map(|(row, name)| {
            let rates = columns.iter().map(|column| thousands(column[row] as u64));
            [(*name).to_owned()].into_iter().chain(rates).collect()
        })
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    Ok(output::table(&head, &rows).lines().map(|line| format!("   {line}\n")).collect())
}

/// A writable directory on the machine's disk.
fn disk() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let places = [Some(PathBuf::from("/var/tmp")), home, std::env::current_dir().ok(), Some("/tmp".into())];
    places.into_iter().flatten().find(|place| {
        let writable = rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok();
        writable && rustix::fs::statfs(place).is_ok_and(|stat| !IN_MEMORY.contains(&(stat.f_type as u64)))
    })
}

/// Operations per second, in the order of the table.
fn measure(place: &Path) -> Result<Vec<f64>, Failure> {
    let dir = place.join(format!("nacre-demo-speed-{}", std::process::id()));
    let failed = |error: io::Error| match (error.kind(), Failure::new("measure", dir.display(), error)) {
        (io::ErrorKind::StorageFull, failure) => failure.advice("--size makes the file system larger"),
        (_, failure) => failure,
    };
    fs::create_dir(&dir).map_err(failed)?;
    let rates = measure_in(&dir).map_err(failed);
    let removed = fs::remove_dir_all(&dir).map_err(failed);
    removed.and(rates)
}

fn measure_in(dir: &Path) -> io::Result<Vec<f64>> {
    let name = |number: u64| dir.join(format!("file{number}"));
    let renamed = |number: u64| dir.join(format!("renamed{number}"));
    let (created, create) = rate(MAX_FILES, |number| File::create_new(name(number)).map(drop))?;
    let (moved, rename) = rate(created, |number| fs::rename(name(number), renamed(number)))?;
    let (_, unlink) = rate(moved, |number| fs::remove_file(renamed(number)))?;

    let file = OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("data"))?;
    let mut buffer = vec![0x5a; 1 << 20];
    for offset in (0..FILE_SIZE).step_by(buffer.len()) {
        file.write_all_at(&buffer, offset)?;
    }
    file.sync_all()?;
    let blocks = FILE_SIZE / BLOCK as u64;
    // A multiplier without a common divisor with the number of blocks visits them all in a scattered order.
    let offset = |number: u64| number.wrapping_mul(2_654_435_761) % blocks * BLOCK as u64;
    let (_, write) = rate(u64::MAX, |number| {
        file.write_all_at(&buffer[..BLOCK], offset(number))?;
        file.sync_data()
    })?;
    let (_, read) = rate(u64::MAX, |number| file.read_exact_at(&mut buffer[..BLOCK], offset(number)))?;
    Ok(vec![create, write, read, rename, unlink])
}

/// Repeats an operation for a while, at most `limit` times. Returns the count, and the rate per second.
fn rate(limit: u64, mut operation: impl FnMut(u64) -> io::Result<()>) -> io::Result<(u64, f64)> {
    let started = Instant::now();
    let mut count = 0;
    while count < limit && started.elapsed() < DURATION {
        operation(count)?;
        count += 1;
    }
    Ok((count, count as f64 / started.elapsed().as_secs_f64()))
}

/// A number with commas between its thousands.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn numbers_can_be_read() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }
}
