//! Measures what the routines of `media` cost on this machine: `cargo run --release -p nacre-media --example latency
//! [FILE]`. The file is made with 256 MiB, by default in /dev/shm, and removed afterwards.

use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use nacre_media::{Pm, PmOptions, RealPm};

const LEN: u64 = 256 << 20;
const ROUNDS: usize = 7;

fn main() -> Result<(), nacre_engine::Error> {
    let path =
        std::env::args().nth(1).unwrap_or_else(|| format!("/dev/shm/nacre-latency-{}", std::process::id()));
    let pm = RealPm::create(&path, LEN, &PmOptions::default())?;
    pm.prefault(0..LEN, &AtomicBool::new(false))?;
    println!("{path}: {}, {}", pm.instructions(), pm.promise().explanation());

    let block = vec![7u8; 1 << 20];
    let mut buf = vec![0u8; 1 << 20];
    for len in [64, 256, 4096, 65_536, 1 << 20] {
        let count = (64 << 20) / len.max(512);
        report(&format!("copy {len} bytes and fence, at random"), count, |i| {
            let offset = scatter(i) % (LEN / len as u64) * len as u64;
            pm.fence(pm.copy(offset, &block[..len]).expect("inside"));
        });
    }
    report("zero 4096 bytes and fence, at random", 50_000, |i| {
        pm.fence(pm.zero(scatter(i) % (LEN / 4096) * 4096, 4096).expect("inside"));
    });
    report("store 8 bytes, flush and fence, same line", 100_000, |i| {
        let stored = pm.store(0, &(i as u64).to_le_bytes()).expect("inside");
        pm.fence(pm.flush(stored));
    });
    report("store 64 bytes, flush and fence, at random", 100_000, |i| {
        let stored = pm.store(scatter(i) % (LEN / 64) * 64, &block[..64]).expect("inside");
        pm.fence(pm.flush(stored));
    });
    for len in [8, 24, 64, 128, 256, 512, 1024, 2048, 4096, 65_536, 1 << 20] {
        let count = (256 << 20) / len.max(256);
        report(&format!("read {len} bytes, cached"), count, |_| {
            pm.read(black_box(4096), &mut buf[..len]).expect("inside");
            black_box(&buf);
        });
    }
    for len in [64, 1024, 4096, 65_536, 1 << 20] {
        let count = (64 << 20) / len.max(512);
        report(&format!("read {len} bytes, at random"), count, |i| {
            pm.read(scatter(i) % (LEN / len as u64) * len as u64, &mut buf[..len]).expect("inside");
            black_box(&buf);
        });
    }
    report("load 8 bytes, cached", 1_000_000, |_| {
        black_box(pm.load_u64(black_box(4096)).expect("inside"));
    });
    report("store 64 bytes, cached, not flushed", 1_000_000, |_| {
        pm.store(black_box(4096), &block[..64]).expect("inside").may_be_lost();
    });
    let error = std::fs::remove_file(&path).err();
    error.map_or(Ok(()), |e| Err(nacre_engine::Error::io("remove", path, e)))
}

/// Spreads consecutive numbers over all of 64 bits.
fn scatter(i: usize) -> u64 {
    let z = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 20
}

/// Prints the median of several rounds.
fn report(what: &str, count: usize, mut operation: impl FnMut(usize)) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let start = Instant::now();
            for i in 0..count {
                operation(round * count + i);
            }
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:48} {:10.1} ns", rounds[ROUNDS / 2]);
}
