//! Measures single requests on directories: `measure DIR...`, nanoseconds for each operation.
//!
//! Short bursts go through the directories in turn, so that what disturbs the machine disturbs all of them alike, and the
//! first quartile of the bursts is shown: what an operation costs when nothing disturbs it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

const ROUNDS: usize = 80;
const BURST: u32 = 250;
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

/// One directory with its files and what was measured there.
struct Place {
    dir: PathBuf,
    file: File,
    direct: File,
    log: File,
    times: [Vec<u64>; NAMES.len()],
}

fn main() -> io::Result<()> {
    let dirs: Vec<String> = std::env::args().skip(1).collect();
    let mut places = dirs.iter().map(|dir| Place::new(Path::new(dir))).collect::<io::Result<Vec<_>>>()?;
    for round in 0..ROUNDS {
        for place in &mut places {
            place.round(round as u32 * BURST)?;
        }
    }
    print!("{:18}", "ns");
    dirs.iter().for_each(|dir| print!("{dir:>24}"));
    println!();
    for (index, name) in NAMES.iter().enumerate() {
        print!("{name:18}");
        for place in &mut places {
            place.times[index].sort_unstable();
            print!("{:>24}", place.times[index][ROUNDS / 4]);
        }
        println!();
    }
    places.iter().try_for_each(Place::remove)
}

impl Place {
    fn new(dir: &Path) -> io::Result<Place> {
        let path = dir.join("fdata");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let megabyte = vec![1; 1 << 20];
        (0..(BLOCKS * BLOCK as u64) >> 20).try_for_each(|at| file.write_all_at(&megabyte, at << 20))?;
        let mut block = [0; BLOCK];
        (0..BLOCKS).try_for_each(|at| file.read_exact_at(&mut block, at * BLOCK as u64))?;
        Ok(Place {
            dir: dir.to_path_buf(),
            file,
            direct: OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path)?,
            log: File::create(dir.join("flog"))?,
            times: Default::default(),
        })
    }

    fn remove(&self) -> io::Result<()> {
        fs::remove_file(self.dir.join("fdata"))?;
        fs::remove_file(self.dir.join("flog"))
    }

    fn timed(
        &mut self,
        index: usize,
        mut operation: impl FnMut(&Place, u32) -> io::Result<()>,
    ) -> io::Result<()> {
        let start = Instant::now();
        (0..BURST).try_for_each(|number| operation(self, number))?;
        self.times[index].push(start.elapsed().as_nanos() as u64 / u64::from(BURST));
        Ok(())
    }

    fn round(&mut self, first: u32) -> io::Result<()> {
        // A block somewhere in the file.
        let scattered = |number: u32| (u64::from(first + number) * 7919 % BLOCKS) * BLOCK as u64;
        let name = |place: &Place, number: u32| place.dir.join(format!("n{:07}", first + number));
        let other = |place: &Place, number: u32| place.dir.join(format!("m{:07}", first + number));
        let mut block = [2; BLOCK];
        let mut room = vec![0; 2 * BLOCK];
        let aligned = room.as_ptr().align_offset(BLOCK);
        self.timed(0, |place, number| File::create_new(name(place, number)).map(drop))?;
        self.timed(1, |place, number| place.file.write_all_at(&block, scattered(number)))?;
        self.timed(2, |place, number| {
            place.log.write_all_at(&block, u64::from(first + number) * BLOCK as u64)
        })?;
        self.timed(3, |place, _| place.file.sync_all())?;
        self.timed(4, |place, number| {
            place.direct.read_exact_at(&mut room[aligned..aligned + BLOCK], scattered(number))
        })?;
        // Other blocks than before, which are still in the processor's caches.
        let elsewhere = scattered(BLOCKS as u32 / 2);
        self.timed(5, |place, number| {
            let at = (scattered(number) + elsewhere) % (BLOCKS * BLOCK as u64);
            place.file.read_exact_at(&mut block, at)
        })?;
        self.timed(6, |place, number| fs::metadata(name(place, number)).map(drop))?;
        self.timed(7, |place, number| fs::rename(name(place, number), other(place, number)))?;
        self.timed(8, |place, number| fs::remove_file(other(place, number)))
    }
}
