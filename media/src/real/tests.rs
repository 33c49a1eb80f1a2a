//! Mapped memory against a plain vector, and everything that can be refused.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use nacre_engine::Kind;

use super::{PmOptions, Promise, RealPm};
use crate::pm::Pm;
use crate::token::Durable;

/// A path in a directory of its own that is removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("nacre-media-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Scratch(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.join("pm")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

#[test]
fn every_length_and_alignment_stores_and_reads_what_it_should() {
    let pm = RealPm::in_memory(1 << 16).unwrap();
    let mut model = vec![0u8; 1 << 16];
    let mut random = Random(7);
    for round in 0..20_000u64 {
        let len = if round % 3 == 0 { random.below(5000) } else { random.below(300) };
        let offset = random.below((1 << 16) - len);
        let range = offset as usize..(offset + len) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        match round % 4 {
            0 => {
                let stored = pm.store(offset, &bytes).unwrap();
                pm.fence(pm.flush(stored));
                model[range].copy_from_slice(&bytes);
            }
            1 => {
                pm.fence(pm.copy(offset, &bytes).unwrap());
                model[range].copy_from_slice(&bytes);
            }
            2 => {
                pm.fence(pm.zero(offset, len).unwrap());
                model[range].fill(0);
            }
            _ => {
                let mut guarded = vec![0xEE; len as usize + 16];
                pm.read(offset, &mut guarded[8..8 + len as usize]).unwrap();
                assert_eq!(guarded[8..8 + len as usize], model[range], "{len} bytes at {offset}");
                assert!(guarded[..8].iter().chain(&guarded[8 + len as usize..]).all(|byte| *byte == 0xEE));
            }
        }
    }
    let mut all = vec![0; 1 << 16];
    pm.read(0, &mut all).unwrap();
    assert!(all == model);
}

#[test]
fn every_set_of_instructions_does_the_same() {
    use super::asm;
    let source: Vec<u8> = (0..3000u32).map(|i| (i * 7 % 251) as u8).collect();
    let avx2 = is_x86_feature_detected!("avx2");
    let mut reads: Vec<asm::Copy> = vec![asm::nacre_pm_read_sse2];
    let mut copies: Vec<asm::Copy> = vec![asm::nacre_pm_copy_sse2];
    let mut zeros: Vec<asm::Sweep> = vec![asm::nacre_pm_zero_sse2];
    if avx2 {
        reads.extend([asm::nacre_pm_read_avx as asm::Copy, asm::nacre_pm_read_avx_erms]);
        copies.push(asm::nacre_pm_copy_avx2);
    }
    if is_x86_feature_detected!("avx512f") {
        copies.push(asm::nacre_pm_copy_avx512);
        zeros.push(asm::nacre_pm_zero_avx512);
    }
    for read in reads {
        for len in (0..300).chain([1023, 1535, 1536, 1537, 2999]) {
            let mut target = vec![0xEE; len + 1];
            // SAFETY: both sides are vectors of at least that length.
            let outcome = unsafe { read(target.as_mut_ptr(), source.as_ptr().add(1), len) };
            assert_eq!(outcome.fault, 0);
            assert!(target[..len] == source[1..=len] && target[len] == 0xEE, "{len} bytes");
        }
    }
    let pm = RealPm::in_memory(1 << 16).unwrap();
    let mut seen = vec![0; 3008];
    for lines in 0..40usize {
        for copy in &copies {
            // SAFETY: the memory is larger than 40 lines, and so is the source.
            assert_eq!(unsafe { copy(pm.base, source.as_ptr(), lines) }.fault, 0);
            pm.read(0, &mut seen).unwrap();
            assert!(seen[..lines * 64] == source[..lines * 64] && seen[lines * 64] == 0, "{lines} lines");
            for zero in &zeros {
                // SAFETY: the memory is larger than 40 lines.
                assert_eq!(unsafe { zero(pm.base, 0, lines) }.fault, 0);
                pm.read(0, &mut seen).unwrap();
                assert!(seen.iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn a_file_keeps_what_was_fenced_and_has_one_owner() {
    let scratch = Scratch::new("file");
    let pm = RealPm::create(scratch.path(), 4 << 20, &PmOptions::default()).unwrap();
    assert_eq!(RealPm::create(scratch.path(), 4096, &PmOptions::default()).unwrap_err().kind(), Kind::Exists);
    assert_eq!((pm.len(), pm.promise()), (4 << 20, Promise::ProcessDeath));
    let busy = RealPm::open(scratch.path(), &PmOptions::default()).unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
    assert!(busy.to_string().contains("another process uses this device"), "{busy}");
    let reader = PmOptions { read_only: true, ..PmOptions::default() };
    assert_eq!(RealPm::open(scratch.path(), &reader).unwrap_err().kind(), Kind::Busy);

    pm.fence(pm.copy(100, b"kept").unwrap());
    let stored = pm.publish_u64(8, 77, Durable::nothing_before()).unwrap();
    pm.fence(pm.flush(stored));
    assert_eq!(pm.prefault(0..u64::MAX, &AtomicBool::new(false)).unwrap(), 4 << 20);
    assert_eq!(pm.prefault(0..u64::MAX, &AtomicBool::new(true)).unwrap(), 0);
    drop(pm);

    let (one, two) =
        (RealPm::open(scratch.path(), &reader).unwrap(), RealPm::open(scratch.path(), &reader).unwrap());
    assert_eq!(RealPm::open(scratch.path(), &PmOptions::default()).unwrap_err().kind(), Kind::Busy);
    let mut kept = [0; 4];
    one.read(100, &mut kept).unwrap();
    assert_eq!((&kept, two.load_u64(8).unwrap()), (b"kept", 77));
    assert_eq!(one.store(0, b"x").unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(one.copy(0, b"x").unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(one.prefault(0..4096, &AtomicBool::new(false)).unwrap(), 4096);
}

#[test]
fn bounds_and_alignment_are_checked() {
    let pm = RealPm::in_memory(4096).unwrap();
    for (offset, len) in [(4096, 1), (4090, 8), (u64::MAX, 2), (u64::MAX - 1, 1)] {
        let mut buf = vec![0; len];
        assert_eq!(pm.read(offset, &mut buf).unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(pm.store(offset, &buf).unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(pm.copy(offset, &buf).unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(pm.zero(offset, len as u64).unwrap_err().kind(), Kind::InvalidInput);
    }
    pm.read(4096, &mut []).unwrap();
    assert_eq!(pm.load_u64(4).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(pm.load_u64(4096).unwrap_err().kind(), Kind::InvalidInput);
    let entry = [1; 64];
    assert_eq!(
        pm.publish_entry(32, &entry, Durable::nothing_before()).unwrap_err().kind(),
        Kind::InvalidInput
    );
    assert_eq!(
        pm.publish_entry(64, &entry[1..], Durable::nothing_before()).unwrap_err().kind(),
        Kind::InvalidInput
    );
}

#[test]
fn a_bus_error_is_the_error_of_one_access() {
    let scratch = Scratch::new("bus");
    let pm = RealPm::create(scratch.path(), 1 << 20, &PmOptions::default()).unwrap();
    File::options().write(true).open(scratch.path()).unwrap().set_len(8192).unwrap();
    let block = vec![1u8; 8192];
    let mut buf = vec![0u8; 8192];
    for len in [1, 8, 16, 40, 64, 100, 200, 1000, 4096, 8192] {
        for offset in [8192, 16_385] {
            let error = pm.read(offset, &mut buf[..len]).unwrap_err();
            assert_eq!(error.kind(), Kind::Media, "{len} bytes at {offset}");
            assert_eq!(pm.store(offset, &block[..len]).unwrap_err().kind(), Kind::Media);
            assert_eq!(pm.copy(offset, &block[..len]).unwrap_err().kind(), Kind::Media);
            assert_eq!(pm.zero(offset, len as u64).unwrap_err().kind(), Kind::Media);
        }
    }
    assert_eq!(pm.load_u64(8192).unwrap_err().kind(), Kind::Media);
    // The byte that failed is named, not only the range.
    let error = pm.read(4096, &mut buf).unwrap_err();
    assert!(error.to_string().contains("bytes 4096 to 12288, at 8192"), "{error}");
    // A flush of lines that went away is survived, too.
    let stored = pm.store(8128, &block[..64]).unwrap();
    File::options().write(true).open(scratch.path()).unwrap().set_len(4096).unwrap();
    pm.fence(pm.flush(stored));
    // What is still there works.
    pm.fence(pm.copy(0, &block[..4096]).unwrap());
    pm.read(0, &mut buf[..4096]).unwrap();
    assert!(buf[..4096] == block[..4096]);
}

#[test]
fn threads_survive_bus_errors_at_the_same_time() {
    let scratch = Scratch::new("threads");
    let pm = RealPm::create(scratch.path(), 1 << 20, &PmOptions::default()).unwrap();
    File::options().write(true).open(scratch.path()).unwrap().set_len(4096).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut buf = [0; 512];
                for round in 0..500 {
                    assert_eq!(pm.read(4096 + round * 512, &mut buf).unwrap_err().kind(), Kind::Media);
                    pm.read(0, &mut buf).unwrap();
                }
            });
        }
    });
}

/// Sends this thread a bus error with a code and an address, as the kernel does.
fn send_bus_error(code: i32, address: u64, shift: u16) {
    let mut info = [0u64; 16];
    info[0] = libc::SIGBUS as u64;
    info[1] = u64::from(code as u32);
    info[2] = address;
    info[3] = u64::from(shift);
    // SAFETY: a siginfo is 128 bytes, and the call only reads it; a process may send itself any code.
    let failed = unsafe {
        let (process, thread) = (libc::getpid(), libc::gettid());
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, libc::SIGBUS, info.as_ptr())
    };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

/// The handler passed every bus error that was no access of ours on to that of the Rust runtime. That one then took
/// itself away, and ours with it. The next bus error ended the process, and so did a read behind the end of a truncated
/// device. The test runs in a process of its own, which dies where the handler is wrong.
#[test]
fn a_bus_error_without_an_access_takes_nothing_away() {
    const CHILD: &str = "NACRE_TEST_BUS_ERRORS";
    if std::env::var_os(CHILD).is_none() {
        let name = "real::tests::a_bus_error_without_an_access_takes_nothing_away";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{}: {out}{err}", output.status);
        return;
    }
    let scratch = Scratch::new("sent");
    let pm = RealPm::create(scratch.path(), 4 << 20, &PmOptions::default()).unwrap();
    let mut buf = [0; 64];
    for _ in 0..3 {
        let kill =
            std::process::Command::new("kill").args(["-BUS", &std::process::id().to_string()]).status();
        assert!(kill.unwrap().success());
        pm.read(0, &mut buf).unwrap();
    }
    assert_eq!(pm.reported_errors(), []);
    let base = pm.base.addr() as u64;
    for _ in 0..2 {
        send_bus_error(5, base + 8192 + 100, 12);
        send_bus_error(5, base + (2 << 20), 21);
        // Not ours: the process's own stack, and the range behind the device.
        send_bus_error(5, (&raw const buf).addr() as u64, 12);
        send_bus_error(5, base + (4 << 20), 12);
    }
    assert_eq!(pm.reported_errors(), [8192..12_288, 2 << 20..4 << 20]);
    // One that comes in the middle of a copy does not end it.
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let pm = &pm;
        let copies = scope.spawn(move || {
            // SAFETY: the call needs nothing.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            let (bytes, mut seen) = (vec![7; 1 << 20], vec![0; 1 << 20]);
            for _ in 0..100 {
                pm.fence(pm.copy(0, &bytes).unwrap());
                pm.read(0, &mut seen).unwrap();
            }
        });
        let thread = told.recv().unwrap();
        while !copies.is_finished() {
            // SAFETY: it was not joined yet, so that its name is valid; what is sent has a handler.
            unsafe { libc::pthread_kill(thread, libc::SIGBUS) };
        }
        copies.join().unwrap();
    });
    File::options().write(true).open(scratch.path()).unwrap().set_len(8192).unwrap();
    assert_eq!(pm.read(8192, &mut buf).unwrap_err().kind(), Kind::Media);
    drop(pm);
    assert_eq!(RealPm::in_memory(4 << 20).unwrap().reported_errors(), [], "another device");
}

#[test]
fn a_promise_that_cannot_be_kept_is_refused() {
    let scratch = Scratch::new("promise");
    let options = PmOptions { require: Promise::PowerLoss, ..PmOptions::default() };
    match RealPm::create(scratch.path(), 1 << 20, &options) {
        Ok(pm) => assert_eq!(pm.promise(), Promise::PowerLoss),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains("not against power loss"), "{error}");
            assert!(!scratch.path().exists(), "a refused creation leaves nothing behind");
        }
    }
}

#[test]
fn the_space_of_a_file_is_allocated_when_it_is_opened() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("space");
    File::create(scratch.path()).unwrap().set_len(1 << 20).unwrap();
    let pm = RealPm::open(scratch.path(), &PmOptions::default()).unwrap();
    assert!(std::fs::metadata(scratch.path()).unwrap().blocks() * 512 >= 1 << 20);
    assert_eq!(pm.load_u64(0).unwrap(), 0);
    drop(pm);
    std::fs::remove_file(scratch.path()).unwrap();
    let sparse = PmOptions { allocate: false, ..PmOptions::default() };
    let pm = RealPm::create(scratch.path(), 1 << 40, &sparse).unwrap();
    pm.fence(pm.copy((1 << 40) - 4, b"last").unwrap());
    drop(pm);
    drop(RealPm::open(scratch.path(), &sparse).unwrap());
    assert!(std::fs::metadata(scratch.path()).unwrap().blocks() < 1 << 20);
    File::create(scratch.path()).unwrap();
    assert_eq!(RealPm::open(scratch.path(), &PmOptions::default()).unwrap_err().kind(), Kind::InvalidInput);
}

/// A loop device over a file, detached when dropped; `None` without the right to make one.
struct Loop(String);

impl Loop {
    fn over(path: &std::path::Path) -> Option<Loop> {
        let output =
            std::process::Command::new("losetup").args(["--find", "--show"]).arg(path).output().ok()?;
        output.status.success().then(|| Loop(String::from_utf8_lossy(&output.stdout).trim().to_string()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_can_be_mapped_by_one_owner() {
    let scratch = Scratch::new("block");
    drop(RealPm::create(scratch.path(), 4 << 20, &PmOptions::default()).unwrap());
    let Some(device) = Loop::over(&scratch.path()) else {
        eprintln!("left out: no right to make a loop device");
        return;
    };
    let pm = RealPm::open(&device.0, &PmOptions::default()).unwrap();
    assert_eq!((pm.len(), pm.promise()), (4 << 20, Promise::ProcessDeath));
    pm.fence(pm.copy(4096, b"kept").unwrap());
    assert_eq!(RealPm::open(&device.0, &PmOptions::default()).unwrap_err().kind(), Kind::Busy);
    // As a process that the owner has just started: it has the descriptor until it runs its own program.
    let inherited = pm.device.as_ref().unwrap().file.try_clone().unwrap();
    drop(pm);
    let child = std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(inherited);
    });
    let mut kept = [0; 4];
    RealPm::open(&device.0, &PmOptions::default()).unwrap().read(4096, &mut kept).unwrap();
    assert_eq!(&kept, b"kept");
    child.join().unwrap();
}

/// It was called DRAM of the process, in which everything is lost, with the reason of the device behind it.
#[test]
fn private_copies_promise_as_much_as_their_device() {
    let scratch = Scratch::new("private-promise");
    drop(RealPm::create(scratch.path(), 1 << 20, &PmOptions::default()).unwrap());
    let private = |require| PmOptions { read_only: true, private: true, require, ..PmOptions::default() };
    let shared = RealPm::open(scratch.path(), &PmOptions { read_only: true, ..PmOptions::default() });
    let (promise, said) = shared.map(|pm| (pm.promise(), pm.promise_explanation())).unwrap();
    assert_ne!(promise, Promise::None);
    let pm = RealPm::open(scratch.path(), &private(promise)).unwrap();
    assert!(pm.is_private() && !pm.is_read_only());
    assert_eq!(pm.promise(), promise);
    assert_eq!(pm.promise_explanation(), format!("{said}; nothing is written to it now"));
    drop(pm);
    if promise != Promise::PowerLoss {
        let error = RealPm::open(scratch.path(), &private(Promise::PowerLoss)).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    }
}
