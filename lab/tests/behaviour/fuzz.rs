//! The fuzz targets on stable: the corpus in `fuzz/corpus`, seeds that are made here, and inputs that found something
//! once. The target `options` is in `cli/src/fuzz/tests.rs`.
//!
//! `NACRE_FUZZ` is the number of random inputs for each target (150 by default), `NACRE_FUZZ_SEED` the first of them.

use std::path::Path;

use nacre_lab::environment::number;
use nacre_lab::fuzz::fuse::{any_requests, succeeded};
use nacre_lab::fuzz::image::damaged_image;
use nacre_lab::fuzz::inplace::damaged_inplace;
use nacre_lab::fuzz::log::any_log;
use nacre_lab::fuzz::pool::damaged_pool;
use nacre_lab::fuzz::shadow::damaged_shadow;
use nacre_lab::fuzz::tier::damaged_tier;

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
    let first = number("NACRE_FUZZ_SEED").unwrap_or(1);
    for seed in first..first + number("NACRE_FUZZ").unwrap_or(150) {
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

/// An edit of a superblock, the first or the second copy, with its checksum made right.
const fn superblock_edit(copy: u8, offset: u16, value: u64) -> [u8; 14] {
    let ([low, high], v) = (offset.to_le_bytes(), value.to_le_bytes());
    [copy, 0, low, high, 3, 0, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]]
}

/// Counts of the superblock that were at the end of all numbers, and were counted on from there: a panic in builds that
/// look for overflows, and in others a file system whose newest superblock was the oldest. The last one is a row of the
/// table of regions that is not in use and reaches beyond all blocks.
#[test]
fn counts_at_the_end_of_all_numbers() {
    const UPDATE: u16 = 176;
    const MOUNT_EPOCH: u16 = 184;
    const SETTLED: u16 = 208;
    const ROW_5_START: u16 = 232 + 5 * 24 + 8;
    for offset in [UPDATE, MOUNT_EPOCH, SETTLED, ROW_5_START] {
        for ground in 0..2 {
            let both = [superblock_edit(0, offset, u64::MAX), superblock_edit(1, offset, u64::MAX)];
            let mut data = vec![ground];
            data.extend(both.as_flattened());
            // A row that begins in the middle, so that it is the sum that is too large.
            if offset == ROW_5_START {
                data.extend(superblock_edit(0, offset + 8, 1));
                data.extend(superblock_edit(1, offset + 8, 1));
            }
            damaged_image(&data);
        }
    }
}

/// A table of regions in which the list of bad blocks lies over another region, or over the superblocks: a repair of the
/// one damaged the other, and did not see it. Found by the fuzz target image.
#[test]
fn regions_that_overlap() {
    const ROW_0_START: u16 = 232 + 8;
    const ROW_0_BLOCKS: u16 = 232 + 16;
    for ground in 0..2 {
        for (offset, value) in [(ROW_0_START, 18), (ROW_0_START, 16), (ROW_0_BLOCKS, 2)] {
            let both = [0, 1].map(|copy| superblock_edit(copy, offset, value));
            let data = [&[ground], both.as_flattened()].concat();
            damaged_image(&data);
            damaged_inplace(&data);
            damaged_shadow(&data);
            damaged_pool(&data);
        }
    }
}

/// A feature that allows who does not know it to read only: a repair wrote all the same, and called sound what could not
/// be mounted. Both copies, of both layouts.
#[test]
fn a_feature_that_allows_reading_only() {
    const READ_ONLY_COMPATIBLE: u16 = 32;
    for ground in 0..2 {
        let both = [0, 1].map(|copy| superblock_edit(copy, READ_ONLY_COMPATIBLE, 1 << 40));
        let data = [&[ground], both.as_flattened()].concat();
        damaged_image(&data);
        damaged_inplace(&data);
        damaged_shadow(&data);
        damaged_pool(&data);
    }
}

/// A transaction whose number is the last of all: what is settled was counted on from it.
#[test]
fn a_transaction_at_the_end_of_all_numbers() {
    const TRANSACTION: u8 = 6;
    for ground in 0..2 {
        for page in 0..4 {
            let mut data = vec![ground, page, 0, TRANSACTION, 0, 1, 1];
            data.extend([0xff; 8]);
            data.extend([0; 40]);
            any_log(&data);
        }
    }
}

/// A hole at the end of all numbers: where it ends was counted on from there, in the mount and in the check.
#[test]
fn a_hole_at_the_end_of_all_numbers() {
    const HOLE: u8 = 3;
    for ground in 0..2 {
        for page in 0..8 {
            for start in [u64::MAX, u64::MAX - 1, 1 << 62] {
                let mut data = vec![ground, page, 0, HOLE, 0, 1, 1];
                data.extend(start.to_le_bytes());
                data.extend([0xff; 8]);
                data.extend([0; 32]);
                any_log(&data);
            }
        }
    }
}

/// A file with two names, one of which refers to an earlier inode of that number: only the name that came first in the walk
/// was compared with the inode. Found by the fuzz target image.
#[test]
fn a_second_name_of_another_generation() {
    const GENERATION: u8 = 24;
    for ground in 0..2 {
        // Entry 0x2833 is the name /dir/deep/file, whose inode is /second, too.
        damaged_image(&[ground, 0x33, 0x28, GENERATION + 2, 0, 0, 0, 0x6a, 0, 0, 0, 0, 0, 0, 0]);
    }
}

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
fn damaged_images_of_the_in_place_layout() {
    replay("inplace", damaged_inplace, inplace_input);
}

#[test]
fn damaged_images_of_the_pool_layout() {
    replay("pool", damaged_pool, inplace_input);
}

#[test]
fn damaged_images_of_the_shadow_layout() {
    replay("shadow", damaged_shadow, inplace_input);
}

#[test]
fn logs_of_any_content() {
    replay("log", any_log, log_input);
}

#[test]
fn damaged_tiers() {
    replay("tier", damaged_tier, tier_input);
}

/// Up to three edits of memory, and some of the disk, most with right checksums.
fn tier_input(random: &mut Random) -> Vec<u8> {
    let in_memory = if random.below(3) == 0 { 1 + random.below(3) } else { 0 };
    let mut data = vec![random.below(2) as u8 | (in_memory as u8) << 1];
    for number in 0..in_memory + 1 + random.below(3) {
        data.extend((random.next() as u16).to_le_bytes());
        let width = if number < in_memory { 64 } else { 256 };
        data.extend((random.any_size() as u16 % width).to_le_bytes());
        data.push(random.next() as u8);
        // Of the disk a superblock or an image.
        let kind = if number < in_memory { 0 } else { 1 + random.below(2) as u8 };
        data.push(kind << 1 | u8::from(random.below(4) == 0));
        data.extend(random.any_size().to_le_bytes());
    }
    data
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

fn inplace_input(random: &mut Random) -> Vec<u8> {
    let mut data = vec![random.below(2) as u8];
    for _ in 0..1 + random.below(4) {
        data.extend((random.next() as u16).to_le_bytes());
        let early = random.below(2) == 0;
        let within = if early { random.any_size() as u16 % 128 } else { random.next() as u16 };
        data.extend(within.to_le_bytes());
        data.push(random.next() as u8);
        // One of its kind, mostly: there are far more nodes and inodes than anything else.
        data.push((random.below(9) << 1) as u8 | u8::from(random.below(4) == 0));
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

/// A connection: how it is served and begins, and requests.
fn fuse_input(random: &mut Random) -> Vec<u8> {
    let mut data =
        vec![random.next() as u8, if random.below(16) == 0 { 0xff } else { random.next() as u8 & 3 }];
    for _ in 0..1 + random.below(24) {
        // Opcode, node, form, caller.
        data.extend([random.below(54) as u8, random.below(12) as u8]);
        data.push(if random.below(8) == 0 { random.next() as u8 } else { 0 });
        data.push(if random.below(8) == 0 { random.next() as u8 } else { 0 });
        for _ in 0..random.below(24) {
            data.push(random.any_size() as u8);
        }
    }
    data
}

#[test]
fn requests_of_any_form() {
    replay("fuse", any_requests, fuse_input);
}

/// Replays what coverage-guided fuzzing has kept of a target.
fn corpus(target: &str, body: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        dir.read_dir().expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}: no inputs", dir.display());
    for file in files {
        let data = std::fs::read(&file).expect("an input");
        let result = std::panic::catch_unwind(|| body(&data));
        assert!(result.is_ok(), "{} does it again", file.display());
    }
}

#[test]
fn corpus_of_images() {
    corpus("image", damaged_image);
}

#[test]
fn corpus_of_images_of_the_in_place_layout() {
    corpus("inplace", damaged_inplace);
}

/// The first inputs failed, each by what its file is named after: a repair went by the copy of a row that was whole and
/// impossible; counts that underflowed; two lost copies of one line that a comparison called itself for; entries behind
/// the end of a pool block that were given out.
#[test]
fn corpus_of_images_of_the_pool_layout() {
    corpus("pool", damaged_pool);
}

#[test]
fn corpus_of_images_of_the_shadow_layout() {
    corpus("shadow", damaged_shadow);
}

#[test]
fn corpus_of_logs() {
    corpus("log", any_log);
}

/// The corpus is worth something only while it gets as far as success with every request that nacre answers.
#[test]
fn corpus_of_requests() {
    corpus("fuse", any_requests);
    let done = succeeded();
    // From LOOKUP to COPY_FILE_RANGE. Absent: what has no answer (FORGET), what nacre leaves to the kernel or has not
    // (FLUSH, locks, ACCESS, INTERRUPT, BMAP, POLL), and INIT, which is looked at otherwise.
    let answered = [
        1, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 21, 22, 23, 24, 27, 28, 29, 35, 38, 39, 43,
        44, 45, 46, 47,
    ];
    let missing: Vec<u32> = answered.into_iter().filter(|opcode| !done.contains(opcode)).collect();
    assert!(missing.is_empty(), "no input succeeds with the opcodes {missing:?}");
}

/// Two names of a directory with one number, by which a name is removed: a repair kept both, and a removal of the one took
/// the other, so that an inode was left without names. Found by the fuzz target image.
#[test]
fn two_names_with_one_number() {
    damaged_image(include_bytes!("../../../fuzz/corpus/image/8666aa55bc55a17a57c8c7452e24cccfccd69529"));
}

/// What showed that an operation is complete is an interrupted one behind it: the repair erased that, and called a log sound
/// that now ended in the middle. Found by the fuzz target log; garbage collection leaves no such log.
#[test]
fn an_end_that_only_an_interrupted_operation_shows() {
    any_log(include_bytes!("../../../fuzz/corpus/log/a40bef0f3d58c9e15a0c756ace302f5aca2de718"));
}

/// Among them one that gives a tier more blocks than any device has: a mount took memory for a bit of each, and the process
/// ended there.
#[test]
fn corpus_of_tiers() {
    corpus("tier", damaged_tier);
}
