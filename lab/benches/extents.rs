//! How long a mount takes after a crash, and how much DRAM the index does, with many extents on a large tier: by default
//! 10 million extents of 64 KiB on 640 GiB. Only the log layout is at work: nothing is written to the tier, which need not
//! be there, for a mount reads nothing of it. It fails where an extent takes more than 64 bytes of DRAM; how long a mount
//! may take depends on the machine (15 s on two cores is what it is held to) and is for who reads it.
//!
//! `cargo bench -p nacre-lab --bench extents -- [EXTENTS]`; it takes some 100 bytes for an extent in a file beside others
//! for temporary files, or on tmpfs.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nacre_engine::{
    BLOCK_SIZE, Draw, Extents, FileBlock, FileKind, Names, NewInode, Place, Result, Tier, TierBlocks,
    TierChange, TierState, TierTable, Timestamp, WriteToTier, Written,
};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::{Durable, PmOptions, RealPm};

type Fs = LogFs<RealPm>;

const TIER: u8 = 1;
/// Blocks of an extent.
const BLOCKS: u64 = 16;
/// Extents of a file.
const PER_FILE: u64 = 1024;
const MIB: u64 = 1 << 20;
/// DRAM that the index may take for an extent, in bytes, where there are as many.
const MOST_BYTES: f64 = 64.0;
const MANY: u64 = 1_000_000;

fn main() -> Result<()> {
    // cargo tells a benchmark that it is one.
    let given = std::env::args().skip(1).find(|word| !word.starts_with("--"));
    let wanted: u64 = given.map_or(10_000_000, |word| word.parse().expect("a number of extents"));
    let files = wanted.div_ceil(2 * PER_FILE) * 2;
    let extents = files * PER_FILE;
    let shared = Path::new("/dev/shm");
    let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    let dir = dir.expect("a directory");
    let pm = RealPm::create(dir.path().join("pm"), 256 * MIB + extents * 100, &PmOptions::default())?;
    let pm = Arc::new(pm);
    let before = own_memory();
    mkfs(&*pm, &MkfsOptions::default())?;
    let fs = mount(&pm)?;
    let blocks = extents * BLOCKS * 21 / 20;
    let (uuid, state) = ([7; 16], TierState::Active);
    fs.change_tier(TierChange::Set(Tier {
        number: TIER,
        uuid,
        blocks,
        token: 1,
        pending: 0,
        rank: 2,
        state,
    }))?;

    let begun = Instant::now();
    (0..files).step_by(2).try_for_each(|first| fill(&fs, first))?;
    println!(
        "{extents} extents of 64 KiB in {files} files on a tier of {} GiB, made in {:.1} s",
        (blocks * BLOCK_SIZE) >> 30,
        begun.elapsed().as_secs_f64()
    );
    fs.abandon();

    let begun = Instant::now();
    let fs = mount(&pm)?;
    println!("mounted after a crash in {:.2} s", begun.elapsed().as_secs_f64());
    let space = fs.tier_space(TIER)?;
    assert_eq!(space.blocks - space.free, extents * BLOCKS, "every extent is there");

    let root = fs.root();
    let nodes: Result<Vec<_>> = (0..files).map(|file| fs.lookup(&root, name(file).as_bytes())).collect();
    let nodes = nodes?;
    for node in &nodes {
        fs.resolve(node, FileBlock(0), 1)?;
    }
    // More than this cannot be: what the first mount had is given back, and the second takes it again.
    let bytes = own_memory().saturating_sub(before);
    let each = bytes as f64 / extents as f64;
    println!("DRAM with the index of all files: at most {each:.1} bytes an extent");
    // Of fewer extents it is mostly what does not grow with them.
    assert!(extents < MANY || each <= MOST_BYTES, "more than {MOST_BYTES} bytes an extent");
    for file in [0, files - 1] {
        let found = fs.resolve(&nodes[file as usize], FileBlock(0), u64::MAX)?;
        let on_tier = found.iter().filter(|extent| matches!(extent.place, Place::Tier { tier: TIER, .. }));
        assert_eq!(on_tier.count() as u64, PER_FILE, "they lie apart");
    }
    drop((root, nodes));
    let begun = Instant::now();
    fs.unmount()?;
    println!("unmounted in {:.2} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    drop(mount(&pm)?);
    println!("mounted after that in {:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn mount(pm: &Arc<RealPm>) -> Result<Fs> {
    LogFs::mount(Arc::clone(pm), &MountOptions::default())
}

fn name(file: u64) -> String {
    format!("file-{file}")
}

/// Two files whose extents lie between each other's, so that no two of one are joined.
fn fill(fs: &Fs, first: u64) -> Result<()> {
    let now = Timestamp::new(1_700_000_000, 0);
    let new = NewInode::of_root(FileKind::Regular, 0o644, now);
    let root = fs.root();
    let create = |file| fs.create(&root, name(file).as_bytes(), &new);
    let nodes = [create(first)?, create(first + 1)?];
    for extent in 0..PER_FILE {
        for node in &nodes {
            let runs = fs.allocate_on(TIER, None, BLOCKS)?;
            let start = FileBlock(extent * BLOCKS);
            let mut at = start;
            let mut written = Vec::with_capacity(runs.len());
            for run in runs {
                written.push(Written { start: at, run });
                at = FileBlock(at.0 + run.len);
            }
            // Nothing was written of which this would have to be the proof.
            let proof = Durable::nothing_before();
            fs.publish_write(node, &written, at.offset(), Draw::Available, now, proof)?;
        }
    }
    Ok(())
}

/// Bytes of DRAM that this process has for itself: not what it has mapped of the file that stands for memory.
fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("what the kernel knows of this process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its own pages");
    let kib = line.trim().trim_end_matches(" kB").trim();
    kib.parse::<u64>().expect("a number") * 1024
}
