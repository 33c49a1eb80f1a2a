//! The fuzz target `options` on stable: its corpus in `fuzz/corpus/options`, and random lines. `NACRE_FUZZ` is the number
//! of random inputs (2000 by default), `NACRE_FUZZ_SEED` the seed.

use std::panic::catch_unwind;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::any_options;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn corpus_of_options() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/options");
    let mut files: Vec<_> =
        dir.read_dir().expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}: no inputs", dir.display());
    for file in files {
        let data = std::fs::read(&file).expect("an input");
        assert!(catch_unwind(|| any_options(&data)).is_ok(), "{} does it again", file.display());
    }
}

#[test]
fn lines_of_any_kind() {
    let seed = variable("NACRE_FUZZ_SEED", 1);
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..variable("NACRE_FUZZ", 2000) {
        // Mostly words that mean something, in any order.
        let form = random.random_range(0..5);
        let count = random.random_range(0..12);
        let more = (0..count).map(|_| match random.random_range(0..10) {
            0..3 => b'\n',
            3 => random.random(),
            _ => random.random_range(0x80..=0xff),
        });
        let data: Vec<u8> = std::iter::once(form).chain(more).collect();
        assert!(catch_unwind(|| any_options(&data)).is_ok(), "NACRE_FUZZ_SEED={seed}: input {data:02x?}");
    }
}
