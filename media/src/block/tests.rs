use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nacre_engine::{BLOCK_SIZE, Kind};

use super::buffers::{BUFFERS, Pool};
use super::{BlockDevice, DiskOptions, Io, Pages, RealDisk, SimDisk, Transfer, transfer_memory};
use crate::crash::{Replay, Sampling};
use crate::pm::Pm;
use crate::sim::SimPm;

const BLOCK: usize = BLOCK_SIZE as usize;
const SIZE: u64 = 64 * BLOCK_SIZE;

/// A disk of each kind: through io_uring and through system calls, on a tmpfs and on a disk; simulated.
fn disks(dir: &tempfile::TempDir) -> Vec<Box<dyn BlockDevice>> {
    let mut disks: Vec<Box<dyn BlockDevice>> = Vec::new();
    let memory = Arc::new(SimPm::with_disks(BLOCK_SIZE, &[SIZE]));
    disks.push(Box::new(SimDisk::of(&memory, 0)));
    for (name, only_system_calls) in [("ring", false), ("calls", true)] {
        let options = DiskOptions { only_system_calls, ..DiskOptions::default() };
        disks.push(Box::new(RealDisk::create(dir.path().join(name), SIZE, &options).unwrap()));
    }
    disks
}

fn bytes(len: usize, first: u8) -> Pages {
    let mut pages = Pages::new(len);
    pages.iter_mut().enumerate().for_each(|(at, byte)| *byte = first.wrapping_add((at / 512) as u8));
    pages
}

#[test]
fn what_was_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    for disk in disks(&dir) {
        let mut model = vec![0u8; SIZE as usize];
        // More at once than a ring holds.
        let written: Vec<_> = (0..50).map(|at| bytes((1 + at % 3) * BLOCK, at as u8)).collect();
        for round in 0..3 {
            let mut batch = Vec::new();
            let mut at = round * BLOCK;
            for pages in &written {
                if at + pages.len() > SIZE as usize {
                    break;
                }
                model[at..at + pages.len()].copy_from_slice(pages);
                batch.push(Transfer::Write { offset: at as u64, from: pages });
                at += pages.len();
            }
            disk.transfer(&mut batch).unwrap();
            disk.flush().unwrap();
            let mut seen = Pages::new(SIZE as usize);
            let pieces = seen.chunks_mut(2 * BLOCK).enumerate();
            let mut batch: Vec<_> =
                pieces.map(|(at, into)| Transfer::Read { offset: (at * 2 * BLOCK) as u64, into }).collect();
            disk.transfer(&mut batch).unwrap();
            assert!(seen[..] == model[..], "{}: round {round}", disk.name());
        }
    }
}

/// Blocks that are neighbours on the disk and scattered in DRAM, as those of a page cache are.
#[test]
fn blocks_are_read_to_where_they_belong() {
    let dir = tempfile::tempdir().unwrap();
    for disk in disks(&dir) {
        let written = bytes(SIZE as usize, 7);
        disk.write(0, &written).unwrap();
        for (first, blocks) in [(0, 2), (3, 40), (SIZE as usize / BLOCK - 5, 5)] {
            let mut parts: Vec<Pages> = (0..blocks).map(|_| Pages::new(BLOCK)).collect();
            let offset = |at: usize| ((first + at) * BLOCK) as u64;
            // In order, and not.
            for turned in [0, 1] {
                let mut batch: Vec<_> = parts
                    .iter_mut()
                    .enumerate()
                    .map(|(at, part)| Transfer::Read { offset: offset(at), into: part })
                    .collect();
                batch.rotate_left(turned);
                disk.transfer(&mut batch).unwrap();
                for (at, part) in parts.iter_mut().enumerate() {
                    assert!(part[..] == written[(first + at) * BLOCK..][..BLOCK], "{}: {at}", disk.name());
                    part.fill(0);
                }
            }
        }
    }
}

#[test]
fn memory_need_not_be_aligned() {
    let dir = tempfile::tempdir().unwrap();
    for disk in disks(&dir) {
        let written = [vec![1; 3 + BLOCK], vec![2; 3 + 2 * BLOCK]];
        let mut batch = [
            Transfer::Write { offset: 0, from: &written[0][3..] },
            Transfer::Write { offset: BLOCK_SIZE, from: &written[1][3..] },
        ];
        disk.transfer(&mut batch).unwrap();
        let mut seen = vec![0; 5 + 3 * BLOCK];
        disk.read(0, &mut seen[5..]).unwrap();
        assert!(seen[5..5 + BLOCK].iter().all(|byte| *byte == 1), "{}", disk.name());
        assert!(seen[5 + BLOCK..].iter().all(|byte| *byte == 2), "{}", disk.name());
    }
}

#[test]
fn what_is_not_on_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for disk in disks(&dir) {
        let mut pages = Pages::new(2 * BLOCK);
        for (offset, len) in
            [(SIZE, BLOCK), (SIZE - BLOCK_SIZE, 2 * BLOCK), (512, BLOCK), (0, 100), (u64::MAX, BLOCK)]
        {
            let error = disk.read(offset, &mut pages[..len]).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidInput, "{}: {offset}+{len}", disk.name());
        }
        disk.discard(0, SIZE).unwrap();
        assert!(disk.transfer(&mut []).is_ok() && disk.len() == SIZE && !disk.is_empty());
    }
}

#[test]
fn a_second_owner_is_refused_and_a_shortened_file_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let disk = RealDisk::create(&path, SIZE, &DiskOptions::default()).unwrap();
    let again = RealDisk::open(&path, &DiskOptions::default());
    assert_eq!(again.unwrap_err().kind(), Kind::Busy);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SIZE / 2).unwrap();
    let mut pages = Pages::new(4 * BLOCK);
    let (one, two) = pages.split_at_mut(2 * BLOCK);
    let mut batch = [
        Transfer::Read { offset: 0, into: one },
        Transfer::Read { offset: SIZE / 2 - BLOCK_SIZE, into: two },
    ];
    let error = disk.transfer(&mut batch).unwrap_err();
    assert_eq!(error.kind(), Kind::DeviceLost);
    assert!(error.to_string().contains("read") && error.to_string().contains("disk"), "{error}");
    let blocks = pages.chunks_mut(BLOCK).zip((SIZE / 2 - 2 * BLOCK_SIZE..).step_by(BLOCK));
    let mut batch: Vec<_> = blocks.map(|(into, offset)| Transfer::Read { offset, into }).collect();
    let error = disk.transfer(&mut batch).unwrap_err();
    assert_eq!(error.kind(), Kind::DeviceLost);
    assert!(
        error.to_string().contains(&(SIZE / 2).to_string()),
        "it names the first that is not there: {error}"
    );
    drop(disk);
    let reader = DiskOptions { read_only: true, ..DiskOptions::default() };
    let disks = [0, 1].map(|_| RealDisk::open(&path, &reader).unwrap());
    assert_eq!(disks[0].len(), SIZE / 2);
    assert_eq!(disks[1].write(0, &pages[..BLOCK]).unwrap_err().kind(), Kind::ReadOnly);
}

/// A write behind the new end made the file as long as before, and what had been cut off read as zeros.
#[test]
fn what_was_cut_off_never_reads_as_zeros() {
    let dir = tempfile::tempdir().unwrap();
    for only_system_calls in [false, true] {
        let path = dir.path().join(only_system_calls.to_string());
        let options = DiskOptions { only_system_calls, ..DiskOptions::default() };
        let disk = RealDisk::create(&path, SIZE, &options).unwrap();
        disk.write(0, &bytes(SIZE as usize, 1)).unwrap();
        disk.flush().unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(SIZE / 2).unwrap();
        let is_lost = |result: nacre_engine::Result<()>| result.unwrap_err().kind() == Kind::DeviceLost;
        for offset in [SIZE - BLOCK_SIZE, SIZE / 2, 0] {
            assert!(is_lost(disk.write(offset, &bytes(BLOCK, 9))), "{offset}");
        }
        disk.discard(SIZE / 2, BLOCK_SIZE).unwrap();
        assert_eq!(file.metadata().unwrap().len(), SIZE / 2);
        // Who makes it longer brings nothing back.
        file.set_len(SIZE).unwrap();
        let mut seen = Pages::new(BLOCK);
        assert!(is_lost(disk.read(SIZE / 2, &mut seen)) && is_lost(disk.write(0, &bytes(BLOCK, 9))));
        disk.read(SIZE / 2 - BLOCK_SIZE, &mut seen).unwrap();
        assert!(seen[..] == bytes(SIZE as usize, 1)[SIZE as usize / 2 - BLOCK..SIZE as usize / 2]);
    }
}

#[test]
fn an_emulated_disk_is_never_faster() {
    let dir = tempfile::tempdir().unwrap();
    let emulation = Some("sata-ssd,read-latency=3000000,flush=2000000,write-bandwidth=10M".parse().unwrap());
    let options = DiskOptions { emulation, ..DiskOptions::default() };
    let disk = RealDisk::create(dir.path().join("disk"), SIZE, &options).unwrap();
    let mut pages = Pages::new(16 * BLOCK);
    let mut time = |work: &mut dyn FnMut(&mut [u8])| {
        let begin = Instant::now();
        work(&mut pages);
        begin.elapsed()
    };
    assert!(time(&mut |pages| disk.read(0, &mut pages[..BLOCK]).unwrap()) >= Duration::from_millis(3));
    let mut flush = |_: &mut [u8]| {
        let _proof = disk.flush().unwrap();
    };
    assert!(time(&mut flush) >= Duration::from_millis(2));
    let all = Duration::from_nanos(16 * BLOCK_SIZE * 100);
    assert!(time(&mut |pages| disk.write(0, pages).unwrap()) >= all);
}

/// PM of one block, and two disks of eight blocks.
fn machine() -> (Arc<SimPm>, [SimDisk; 2]) {
    let memory = Arc::new(SimPm::with_disks(BLOCK_SIZE, &[8 * BLOCK_SIZE; 2]));
    let disks = [0, 1].map(|number| SimDisk::of(&memory, number));
    (memory, disks)
}

/// The first byte of PM, and of the first two blocks of each disk, in all images of the last point.
fn outcomes(
    memory: &SimPm,
    before: crate::Image,
    trace: &crate::Trace,
) -> std::collections::BTreeSet<[u8; 5]> {
    let mut replay = Replay::new(before, trace);
    while replay.advance().is_some_and(|point| !point.is_end) {}
    let images = replay.images(&Sampling { exhaustive_up_to: 1 << 20, ..Sampling::default() });
    assert!(images.is_exhaustive());
    let start = memory.len() / BLOCK_SIZE;
    images
        .iter()
        .map(|image| {
            let media = replay.crashed(&image);
            [0, start, start + 1, start + 8, start + 9].map(|block| media.block(block)[0])
        })
        .collect()
}

#[test]
fn a_crash_leaves_any_sectors_until_the_disk_is_flushed() {
    let (memory, disks) = machine();
    let before = memory.image();
    memory.start_recording();
    let mut page = Pages::new(BLOCK);
    let mut write = |disk: &SimDisk, block: u64, byte: u8| {
        page[0] = byte;
        disk.write(block * BLOCK_SIZE, &page).unwrap();
    };
    write(&disks[0], 0, 1);
    write(&disks[1], 0, 2);
    disks[0].flush().unwrap();
    write(&disks[0], 0, 3);
    write(&disks[0], 0, 4);
    write(&disks[0], 1, 5);
    // A fence is not for disks, and the flush of one not for the other, nor for memory.
    memory.fence(memory.copy(0, &[9; 64]).unwrap());
    memory.store(0, &[8]).unwrap().may_be_lost();
    disks[0].flush().unwrap();
    write(&disks[0], 1, 6);
    let trace = memory.stop_recording();
    assert_eq!(trace.fences(), 3);
    let seen = outcomes(&memory, before, &trace);
    let mut expected = std::collections::BTreeSet::new();
    for memory in [9, 8] {
        for again in [5, 6] {
            for other in [0, 2] {
                expected.insert([memory, 4, again, other, 0]);
            }
        }
    }
    assert_eq!(seen, expected);
}

#[test]
fn of_two_writes_to_a_sector_either_may_be_there_and_of_a_block_any_sectors() {
    let (memory, disks) = machine();
    let before = memory.image();
    memory.start_recording();
    disks[0].write(0, &bytes(BLOCK, 10)).unwrap();
    disks[0].write(0, &bytes(BLOCK, 100)).unwrap();
    let trace = memory.stop_recording();
    let mut replay = Replay::new(before, &trace);
    assert!(replay.advance().unwrap().is_end);
    assert_eq!(replay.pending_lines(), 8);
    let images = replay.images(&Sampling { exhaustive_up_to: 1 << 20, ..Sampling::default() });
    assert_eq!(images.len(), 3u64.pow(8));
    for image in replay.images(&Sampling { exhaustive_up_to: 1, samples: 300, seed: 7 }).iter() {
        let media = replay.crashed(&image);
        for (at, sector) in media.block(1).chunks(512).enumerate() {
            let at = at as u8;
            assert!(
                [0, 10 + at, 100 + at].contains(&sector[0]) && sector.iter().all(|byte| *byte == sector[0])
            );
        }
        for (line, bytes) in &image.lines {
            assert!(replay.allows(*line, bytes));
        }
    }
    assert!(!replay.allows(64, &[11; 64]), "that was written elsewhere");
}

#[test]
fn a_sector_that_cannot_be_read_is_good_again_when_it_is_written() {
    let (_, disks) = machine();
    disks[0].poison(BLOCK_SIZE + 512, 512);
    let mut pages = Pages::new(2 * BLOCK);
    disks[1].read(0, &mut pages).unwrap();
    disks[0].read(0, &mut pages[..BLOCK]).unwrap();
    assert_eq!(disks[0].read(0, &mut pages).unwrap_err().kind(), Kind::Media);
    disks[0].write(BLOCK_SIZE, &pages[..BLOCK]).unwrap();
    disks[0].read(0, &mut pages).unwrap();
}

/// Tests that need the pool of the process, or want it empty, wait for each other.
static POOL: Mutex<()> = Mutex::new(());

/// Bytes lent by the pool, or of the heap when it has none any more.
fn lent(len: usize, first: u8) -> Pages {
    let mut pages = Pages::lent(len);
    pages.copy_from_slice(&bytes(len, first));
    pages
}

fn is_lent(pages: &Pages) -> bool {
    Pool::of_process().is_some_and(|pool| pool.holds(pages.as_ptr(), pages.len()))
}

/// The way of I/O that this kernel allows this process, found out without the code under test.
fn expected_io() -> Io {
    let Ok(ring) = io_uring::IoUring::new(4) else { return Io::SystemCalls };
    let memory = crate::real::map::Mapping::anonymous(BUFFERS).unwrap();
    let whole = libc::iovec { iov_base: memory.base().as_ptr().cast(), iov_len: BUFFERS as usize };
    // SAFETY: nothing is ever transferred from or to this memory, and the ring holds its pages, not its addresses.
    match unsafe { ring.submitter().register_buffers(&[whole]) } {
        Ok(()) => Io::RegisteredBuffers,
        Err(_) => Io::Ring,
    }
}

/// Writes and reads 100 pieces at once, more than the pool holds. Another reader checks the content of the file.
fn more_than_the_pool_has(dir: &tempfile::TempDir, name: &str, options: &DiskOptions) -> RealDisk {
    let path = dir.path().join(name);
    let disk = RealDisk::create(&path, 400 * BLOCK_SIZE, options).unwrap();
    let written: Vec<_> = (0..100).map(|at| lent((1 + at % 4) * BLOCK, at as u8)).collect();
    assert!(written.iter().any(is_lent) && !written.iter().all(is_lent));
    let place = |at: usize| (at * 4) as u64 * BLOCK_SIZE;
    let mut batch = Vec::new();
    for (at, from) in written.iter().enumerate() {
        batch.push(Transfer::Write { offset: place(at), from });
    }
    disk.transfer(&mut batch).unwrap();
    let other = std::fs::File::open(&path).unwrap();
    for (at, pages) in written.iter().enumerate() {
        let mut seen = vec![0; pages.len()];
        other.read_exact_at(&mut seen, place(at)).unwrap();
        assert!(seen == pages[..], "{name}: piece {at}");
    }
    drop(written);
    let mut read: Vec<_> = (0..100).map(|at| lent((1 + at % 4) * BLOCK, 77)).collect();
    assert!(read.iter().any(is_lent) && !read.iter().all(is_lent));
    let mut batch = Vec::new();
    for (at, into) in read.iter_mut().enumerate() {
        batch.push(Transfer::Read { offset: place(at), into });
    }
    disk.transfer(&mut batch).unwrap();
    for (at, pages) in read.iter().enumerate() {
        assert!(pages[..] == bytes(pages.len(), at as u8)[..], "{name}: piece {at}");
    }
    disk
}

#[test]
fn lent_memory_moves_the_same_bytes_however_a_disk_does_it() {
    let _alone = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        ("registered", DiskOptions::default(), expected_io()),
        (
            "unregistered",
            DiskOptions { unregistered: true, ..DiskOptions::default() },
            if expected_io() == Io::SystemCalls { Io::SystemCalls } else { Io::Ring },
        ),
        ("calls", DiskOptions { only_system_calls: true, ..DiskOptions::default() }, Io::SystemCalls),
    ];
    for (name, options, expected) in cases {
        let disk = more_than_the_pool_has(&dir, name, &options);
        assert_eq!(disk.io(), Some(expected), "{name}");
    }
    assert_eq!(transfer_memory(), BUFFERS);
    assert_eq!(Pages::lent(BUFFERS as usize)[..100], [0; 100], "of the heap");
}

/// RLIMIT_MEMLOCK holds for processes without the right to lock pages.
#[test]
fn where_memory_may_not_be_pinned_transfers_go_on() {
    let _alone = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let limited = std::thread::spawn(|| {
        let dir = tempfile::tempdir().unwrap();
        give_up_rights();
        let before = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        let limit = |current| {
            let limit = rustix::process::Rlimit { current, ..before };
            rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).unwrap();
        };
        limit(Some(before.current.unwrap_or(u64::MAX).min(1 << 20)));
        let refused = expected_io();
        let io = more_than_the_pool_has(&dir, "limited", &DiskOptions::default()).io();
        limit(before.current);
        (refused, io)
    });
    let (refused, io) = limited.join().unwrap();
    assert_ne!(refused, Io::RegisteredBuffers, "the limit is one");
    assert_eq!(io, Some(refused));
}

/// This thread has no capabilities any more.
fn give_up_rights() {
    let none = rustix::thread::CapabilitySets {
        effective: rustix::thread::CapabilitySet::empty(),
        permitted: rustix::thread::CapabilitySet::empty(),
        inheritable: rustix::thread::CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).unwrap();
}

#[test]
fn a_file_that_ends_early_is_told_and_lent_memory_is_good_for_others_after() {
    let _alone = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    // A quarter of it takes a ring for itself.
    const LARGE: u64 = 4 * SIZE;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let disk = RealDisk::create(&path, LARGE, &DiskOptions::default()).unwrap();
    disk.write(0, &lent(LARGE as usize, 1)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for (len, kind) in [(LARGE / 2 + BLOCK_SIZE, "in it"), (LARGE / 4, "before it")] {
        file.set_len(len).unwrap();
        let mut whole = [lent(8 * BLOCK, 9), lent(LARGE as usize / 2, 9)];
        let [good, short] = &mut whole;
        let mut batch =
            [Transfer::Read { offset: 0, into: good }, Transfer::Read { offset: LARGE / 2, into: short }];
        assert_eq!(disk.transfer(&mut batch).unwrap_err().kind(), Kind::DeviceLost, "{kind}");
        // The same alone.
        let alone = disk.read(LARGE / 2, &mut whole[1]).unwrap_err();
        assert_eq!(alone.kind(), Kind::DeviceLost, "{kind}");
        disk.read(0, &mut whole[0]).unwrap();
        assert!(whole[0][..] == bytes(8 * BLOCK, 1)[..], "{kind}");
    }
    // A disk that only reads, whose writes fail, and the ring of the other is gone.
    drop((disk, file));
    let reader = DiskOptions { read_only: true, ..DiskOptions::default() };
    let disk = RealDisk::open(&path, &reader).unwrap();
    let mut pages = lent(64 * BLOCK, 5);
    assert_eq!(disk.write(0, &pages).unwrap_err().kind(), Kind::ReadOnly);
    assert!(pages[..] == bytes(64 * BLOCK, 5)[..]);
    disk.read(0, &mut pages).unwrap();
    assert!(pages[..] == bytes(64 * BLOCK, 1)[..]);
}

/// More threads than a disk has rings.
#[test]
fn threads_move_lent_memory_side_by_side() {
    let _alone = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    const THREADS: usize = 12;
    const EACH: usize = 72 * BLOCK;
    let dir = tempfile::tempdir().unwrap();
    let len = (THREADS * EACH) as u64;
    let disk = RealDisk::create(dir.path().join("disk"), len, &DiskOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let disk = &disk;
            scope.spawn(move || {
                let start = (thread * EACH) as u64;
                for round in 0..20 {
                    let first = (thread * 20 + round) as u8;
                    let whole = lent(EACH, first);
                    let (one, two) = whole.split_at(17 * BLOCK);
                    let mut batch = [
                        Transfer::Write { offset: start, from: one },
                        Transfer::Write { offset: start + one.len() as u64, from: two },
                    ];
                    disk.transfer(&mut batch).unwrap();
                    drop(whole);
                    let mut seen = lent(EACH, !first);
                    disk.read(start, &mut seen).unwrap();
                    assert!(seen[..] == bytes(EACH, first)[..], "thread {thread}, round {round}");
                }
            });
        }
    });
}
