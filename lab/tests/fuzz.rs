//! The fuzz targets on stable: seeds that are made here, and inputs that found something once.
//!
//! `NACRE_FUZZ` is the number of random inputs for each target (150 by default), `NACRE_FUZZ_SEED` the first of them.

use nacre_lab::fuzz::image::damaged_image;
use nacre_lab::fuzz::log::any_log;
use nacre_lab::fuzz::settings::any_settings;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number of a size that is as likely as any other.
    fn any_size(&mut self) -> u64 {
        self.next() >> self.below(64)
    }
}

fn replay(target: &str, body: fn(&[u8]), make: impl Fn(&mut Random) -> Vec<u8>) {
    let first = variable("NACRE_FUZZ_SEED", 1);
    for seed in first..first + variable("NACRE_FUZZ", 150) {
        let data = make(&mut Random(seed));
        let result = std::panic::catch_unwind(|| body(&data));
        assert!(
            result.is_ok(),
            "{target}: NACRE_FUZZ_SEED={seed} NACRE_FUZZ=1 does it again; input {data:02x?}"
        );
    }
}

/// Seeds of images that found something, the story of each.
const FOUND_IMAGES: [(u64, &str); 3] = [
    (14, "more names than links: the count of links went below zero when the last one was removed"),
    (26, "a symbolic link whose log was lost: the repair called it sound, and nobody could read its target"),
    (
        493,
        "a name whose number was smaller than the one before it: its removal was not found when the log was read",
    ),
];

/// Seeds of logs that found something.
const FOUND_LOGS: [(u64, &str); 1] = [(
    24,
    "an attribute whose value did not validate: fsck did not look at values that have blocks of their own",
)];

#[test]
fn what_was_found_once_stays_found() {
    for (seed, story) in FOUND_IMAGES {
        println!("{story}");
        damaged_image(&image_input(&mut Random(seed)));
    }
    for (seed, story) in FOUND_LOGS {
        println!("{story}");
        any_log(&log_input(&mut Random(seed)));
    }
}

#[test]
fn damaged_images() {
    replay("image", damaged_image, image_input);
}

#[test]
fn logs_of_any_content() {
    replay("log", any_log, log_input);
}

fn image_input(random: &mut Random) -> Vec<u8> {
    let mut data = vec![random.below(2) as u8];
    for _ in 0..1 + random.below(4) {
        data.extend((random.next() as u16).to_le_bytes());
        // Early bytes of a structure say more than late ones.
        data.extend((random.any_size() as u16 % 64).to_le_bytes());
        data.push(random.next() as u8);
        data.push(u8::from(random.below(4) == 0));
        data.extend(random.any_size().to_le_bytes());
    }
    data
}

fn log_input(random: &mut Random) -> Vec<u8> {
    let mut data = vec![random.below(2) as u8];
    data.extend((random.next() as u16).to_le_bytes());
    for _ in 0..1 + random.below(40) {
        let kind = if random.below(8) == 0 { random.next() } else { 1 + random.below(9) };
        let flags = if random.below(4) == 0 { random.next() } else { random.below(2) };
        let lines = if random.below(4) == 0 { random.below(5) } else { 1 };
        data.extend([kind as u8, flags as u8, lines as u8, random.below(3) as u8]);
        (0..6).for_each(|_| data.extend(random.any_size().to_le_bytes()));
    }
    data
}

#[test]
fn settings_of_any_kind() {
    const WORDS: [&str; 16] = [
        "pcm",
        "optane",
        "dram",
        ",",
        "=",
        "latency",
        "bandwidth",
        "poison",
        "+",
        "1G",
        "-1",
        "1e400",
        "NaN",
        "factor",
        "power",
        "\u{fffd}",
    ];
    replay("settings", any_settings, |random| {
        (0..random.below(9)).flat_map(|_| WORDS[random.below(16) as usize].bytes()).collect()
    });
}
