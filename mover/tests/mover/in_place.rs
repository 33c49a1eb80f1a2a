//! Blocks of a tier that are written where they are, over the shadow layout: a range of zeros leaves them their file's,
//! at the same place.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FallocateMode, FileBlock, FileKind, Kind, Names, NewInode, Place,
    Result, Timestamp, WriteAt, XattrMode,
};
use nacre_layout_shadow::{MkfsOptions, MountOptions, ShadowFs, mkfs};
use nacre_media::SimPm;
use nacre_mover::{MoverOptions, PIN, TieredFs};
use uuid::Uuid;

use crate::batches::machine::Disk;

type Fs = TieredFs<ShadowFs<SimPm>, Disk>;
type Node = <Fs as Names>::Node;

const BLOCK: usize = BLOCK_SIZE as usize;
const TIER: u8 = 1;
const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);

fn create(fs: &Fs, name: &str) -> Node {
    let new = NewInode::of_root(FileKind::Regular, 0o644, NOW);
    fs.create(&fs.root(), name.as_bytes(), &new).expect("create")
}

fn write(fs: &Fs, node: &Node, offset: u64, bytes: &[u8]) -> Result<u64> {
    fs.write(node, WriteAt::Offset(offset), &[IoSlice::new(bytes)], Durability::Now, NOW)
}

/// Fills PM with blocks that stay there. A file may need a node with a block, and its first block needs none.
fn fill(fs: &Fs) {
    let fillers = ["one", "two", "three", "four"].map(|name| create(fs, name));
    for node in &fillers {
        fs.set_xattr(node, PIN, b"1", XattrMode::Set, None, NOW).expect("a pin");
    }
    for node in &fillers {
        let (mut size, mut blocks) = (0, 64);
        while blocks > 0 {
            match write(fs, node, size, &vec![2; blocks * BLOCK]) {
                Ok(_) => size += (blocks * BLOCK) as u64,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::NoSpace);
                    blocks /= 2;
                }
            }
        }
    }
}

/// A reader that found the block when it was written before put its old bytes into DRAM, where they stayed.
#[test]
fn a_reader_from_before_leaves_no_old_bytes_in_dram() {
    let pm = Arc::new(SimPm::with_disks(16 << 20, &[16 << 20]));
    mkfs(&*pm, &MkfsOptions::default()).expect("mkfs");
    let layout = ShadowFs::mount(Arc::clone(&pm), &MountOptions::default()).expect("mount");
    let options = MoverOptions { balance: false, ..MoverOptions::default() };
    let (fs, disk) = (Arc::new(Fs::new(layout, options)), Disk::of(&pm, 0));
    fs.add(disk.clone(), Uuid::from_u128(7), 1, 1, NOW).expect("a tier");
    let file = create(&fs, "file");
    write(&fs, &file, 0, &[1; BLOCK]).expect("there is room");
    fs.demote(&file, TIER, FileBlock(0), 1, false).expect("there is room");
    fs.tiers().pages().drop_tier(TIER);
    let place = || fs.layout().resolve(&file, FileBlock(0), 1).expect("its place")[0].place;
    let before = place();
    assert!(matches!(before, Place::Tier { tier: TIER, .. }), "{before:?}");
    fill(&fs);
    let (other, node) = (Arc::clone(&fs), file.clone());
    *disk.after_read.lock().unwrap() = Some(Box::new(move || {
        other.fallocate(&node, FallocateMode::ZeroRange, 0, BLOCK_SIZE, NOW).expect("it needs no space");
        write(&other, &node, 0, &[7; BLOCK]).expect("it has the block");
    }));
    let read = || {
        let mut seen = vec![0; BLOCK];
        assert_eq!(fs.read(&file, 0, &mut seen, None).expect("read"), BLOCK);
        seen
    };
    read();
    assert!(disk.after_read.lock().unwrap().is_none(), "the disk was read");
    assert_eq!(place(), before, "there is no room elsewhere");
    assert!(read().iter().all(|byte| *byte == 7), "it was acknowledged");
}
