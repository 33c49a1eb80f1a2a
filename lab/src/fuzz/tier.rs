//! A damaged file system over PM and a disk.
//!
//! The first byte chooses the image (1 bit) and the number of edits of PM (2 bits), as `edit.rs` reads them; edits of
//! the disk follow. Structures of the disk are both copies of its superblock, and the offloaded extent maps.

use std::cell::OnceCell;
use std::io::IoSlice;
use std::sync::{Arc, OnceLock};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, FileBlock, FileKind, Names, NewInode, Result, Timestamp, WriteAt,
};
use nacre_layout_log::anatomy::{Structure, images, reseal, reseal_image, structures};
use nacre_layout_log::check::{CheckReport, Repair, check_with_tiers};
use nacre_layout_log::{LogFs, MkfsOptions, mkfs};
use nacre_media::block::SimDisk;
use nacre_media::{Image, SimPm};
use nacre_mover::{Budget, MoverOptions, TieredFs};
use nacre_tiers::{Label, TierSet};
use uuid::Uuid;

use super::Input;
use super::edit::{self, Place};
use super::ground::{SIZE, change_all, mount, populate, read_all};

type Fs = TieredFs<LogFs<SimPm>, SimDisk>;

const DISK: u64 = 4 << 20;
const TIER: u8 = 1;
const VOLUME: Uuid = Uuid::from_u128(0x6675_7a7a);
/// Bytes of an edit.
const EDIT: usize = 14;
/// Bytes of a superblock of a tier before its reserved part.
const LABEL_FIELDS: u64 = 96;
/// Where it has its checksum.
const LABEL_CHECKSUM: usize = 8;
/// Files that are moved.
const MOVED: usize = 20;
/// Long after everything was written, in milliseconds.
const LATER_MS: u64 = 1_800_000_000_000;

/// A structure on the disk.
#[derive(Debug, Clone, Copy)]
enum OnDisk {
    /// The block of a superblock.
    Label(u64),
    /// An offloaded extent map: the entry in PM that names it, its first byte and its length.
    LogImage(Structure, u64, u64),
}

impl OnDisk {
    fn range(&self) -> (u64, u64) {
        match *self {
            OnDisk::Label(offset) => (offset, LABEL_FIELDS),
            OnDisk::LogImage(_, offset, len) => (offset, len),
        }
    }

    /// Makes it validate again.
    fn reseal(&self, pm: &Arc<SimPm>, disk: &SimDisk) {
        match *self {
            OnDisk::Label(offset) => {
                let mut block = vec![0; BLOCK_SIZE as usize];
                disk.look(offset, &mut block);
                block[LABEL_CHECKSUM..][..4].fill(0);
                let checksum = crc32c::crc32c(&block).to_le_bytes();
                disk.change(offset + LABEL_CHECKSUM as u64, &checksum);
            }
            OnDisk::LogImage(entry, offset, len) => {
                let mut content = vec![0; len as usize];
                disk.look(offset, &mut content);
                // An entry that was changed, too, may name another one by now.
                let _ = reseal_image(&**pm, &entry, &content);
            }
        }
    }
}

struct Ground {
    image: Image,
    in_memory: Vec<Structure>,
    on_disk: Vec<OnDisk>,
    /// Those of a kind.
    disk_kinds: Vec<Vec<OnDisk>>,
}

impl Ground {
    fn new(pm: &Arc<SimPm>) -> Ground {
        let in_memory = structures(&**pm).expect("a sound image");
        let labels = vec![OnDisk::Label(0), OnDisk::Label(DISK - BLOCK_SIZE)];
        let logs = images(&**pm, &in_memory).expect("entries that can be read");
        let logs: Vec<OnDisk> = logs
            .into_iter()
            .map(|(entry, run)| OnDisk::LogImage(entry, run.start.offset(), run.len * BLOCK_SIZE))
            .collect();
        assert!(logs.len() > 2, "logs have moved");
        let on_disk = [&labels[..], &logs].concat();
        Ground { image: pm.image(), in_memory, on_disk, disk_kinds: vec![labels, logs] }
    }
}

/// The images: one after a clean unmount, and one as a crash leaves it.
fn grounds() -> &'static [Ground; 2] {
    static GROUNDS: OnceLock<[Ground; 2]> = OnceLock::new();
    GROUNDS.get_or_init(|| {
        let pm = Arc::new(SimPm::with_disks(SIZE, &[DISK]));
        mkfs(&*pm, &MkfsOptions { uuid: Some(VOLUME), ..MkfsOptions::default() }).expect("mkfs");
        let fs = Fs::new(mount(&pm).expect("mount"), options());
        let now = Timestamp::new(1_700_000_000, 0);
        fs.add_as(Some(Uuid::from_u128(7)), SimDisk::of(&pm, 0), VOLUME, 1, 1, now).expect("a tier");
        populate(&fs).expect("a tree");
        scattered(&fs, now).expect("more files");
        let (error, files) = read_all(&fs);
        assert!(error.is_none(), "{error:?}");
        for node in files.iter().filter(|node| fs.id(node).number % 3 > 0) {
            fs.demote(node, TIER, FileBlock(0), u64::MAX, false).expect("there is room");
            fs.move_log(node).expect("it moves, or stays");
        }
        drop(files);
        let crashed = Ground::new(&pm);
        fs.into_layout().unmount().expect("unmount");
        [Ground::new(&pm), crashed]
    })
}

/// Files whose logs have pages, so that relocation makes offloaded extent maps, of one block and of two.
fn scattered(fs: &Fs, now: Timestamp) -> Result<()> {
    let new = NewInode::of_root(FileKind::Regular, 0o644, now);
    for (number, blocks) in [5, 8, 8, 13, 21, 180].into_iter().enumerate() {
        let node = fs.create(&fs.root(), format!("scattered-{number}").as_bytes(), &new)?;
        for block in 0..blocks {
            let (at, bytes) = (WriteAt::Offset(block * 3 * BLOCK_SIZE), [number as u8; BLOCK_SIZE as usize]);
            fs.write(&node, at, &[IoSlice::new(&bytes)], Durability::Now, now)?;
        }
    }
    Ok(())
}

fn options() -> MoverOptions {
    MoverOptions { page_cache: 64 * BLOCK_SIZE, group: 64, ..MoverOptions::default() }
}

/// The simulated PM and the disk of this thread, with the bytes of an image.
fn machine(image: &Image) -> Arc<SimPm> {
    thread_local!(static MEMORY: OnceCell<Arc<SimPm>> = const { OnceCell::new() });
    let make = || Arc::new(SimPm::with_disks(SIZE, &[DISK]));
    let pm = MEMORY.with(|memory| Arc::clone(memory.get_or_init(make)));
    pm.load(image);
    pm
}

/// Damages PM and disk, checks them, uses them as they are, repairs them, and uses them again.
///
/// Panics when a repaired file system is not sound, cannot be mounted, or cannot be read though its tier is there.
pub fn damaged_tier(data: &[u8]) {
    let mut input = Input::new(data);
    let first = input.byte();
    let ground = &grounds()[usize::from(first & 1)];
    let (of_memory, of_disk) = input.split(usize::from(first >> 1 & 3) * EDIT);
    let edit = || {
        let pm = machine(&ground.image);
        let disk = SimDisk::of(&pm, 0);
        let range = |structure: &Structure| (structure.offset, structure.len);
        let all = &ground.in_memory;
        for structure in edit::apply(&*pm, all, std::slice::from_ref(all), range, of_memory) {
            let _ = reseal(&*pm, &structure);
        }
        for structure in edit::apply(&disk, &ground.on_disk, &ground.disk_kinds, OnDisk::range, of_disk) {
            structure.reseal(&pm, &disk);
        }
        pm
    };
    use_damaged(&edit());
    repair(&edit());
}

/// Mounts it, and attaches the disk, if it can be.
fn open(pm: &Arc<SimPm>) -> Result<(Fs, bool)> {
    let fs = Fs::new(mount(pm)?, options());
    let token = fs.layout().summary().mount_epoch + 2;
    let is_there = fs.attach(SimDisk::of(pm, 0), VOLUME, Some(token)).is_ok();
    Ok((fs, is_there))
}

/// Moves all blocks, down and up, until nothing is on the tier.
fn move_all(fs: &Fs, files: &[<Fs as Names>::Node]) {
    let some = &files[..files.len().min(MOVED)];
    let _ = fs.demote_files(some, TIER, true);
    for node in some {
        let _ = fs.move_log(node);
        let _ = fs.promote(node, FileBlock(0), 8);
    }
    let _ = fs.tick(LATER_MS, &Budget::default());
    let _ = fs.drain(TIER, &Budget::default());
    let _ = fs.remove(TIER);
    let _ = fs.status();
}

/// Mounts, uses and checks a damaged image: each damage is an error or does no harm.
fn use_damaged(pm: &Arc<SimPm>) {
    if let Ok((fs, _)) = open(pm) {
        let (_, files) = read_all(&fs);
        change_all(&fs, &files);
        move_all(&fs, &files);
        drop(files);
        let _ = fs.into_layout().unmount();
    }
    let _ = check(pm, Repair::None);
}

fn check(pm: &Arc<SimPm>, repair: Repair) -> Result<CheckReport> {
    let (disk, tiers) = (SimDisk::of(pm, 0), TierSet::new(0));
    if let Ok(Some(label)) = Label::read(&disk) {
        tiers.attach(label.number(), disk, label);
    }
    check_with_tiers(&**pm, repair, Some(&tiers))
}

/// Repairs a damaged image: the result is sound if the repair says so.
fn repair(pm: &Arc<SimPm>) {
    let Ok(told) = check(pm, Repair::None) else { return };
    let report = match check(pm, Repair::All) {
        // Features that only a newer program may write beside.
        Err(error) if error.kind() == nacre_engine::Kind::Unsupported => return,
        report => report.expect("what can be checked can be repaired, or said to be beyond it"),
    };
    if !report.is_sound() {
        assert!(!told.is_sound(), "a repair finds what a check does not: {report:?}");
        return;
    }
    let is_whole = |when: &str| {
        let again = check(pm, Repair::None).expect("it was checked a moment ago");
        assert!(again.problems.is_empty(), "{when}: {:?}\nrepaired: {:?}", again.problems, report.problems);
    };
    is_whole("after a repair");
    let (fs, is_there) = open(pm).expect("what is repaired can be mounted");
    let (error, files) = read_all(&fs);
    assert!(error.is_none() || !is_there, "after a repair: {error:?}\nwhich did: {:?}", report.problems);
    change_all(&fs, &files);
    move_all(&fs, &files);
    drop(files);
    fs.into_layout().unmount().expect("and unmounted");
    is_whole("after it was used");
}
