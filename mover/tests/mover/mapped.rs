//! Relocations of blocks that a mapping holds, and stores through it.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Copied, CopiedFile, Durability, FileBlock, FileKind, NewInode, Place, Timestamp, WriteAt,
};
use nacre_layout_log::LogFs;
use nacre_layout_parts::lifecycle::{MkfsOptions, MountOptions, OverTiers};
use nacre_layout_shadow::ShadowFs;
use nacre_media::block::{BlockDevice, SimDisk};
use nacre_media::{Pm, SimPm};
use nacre_mover::{MoverOptions, TieredFs};
use uuid::Uuid;

/// A store through a mapping that began and ended while the mover copied its block was lost: nothing had changed a version.
fn a_copy_from_before_a_store_is_refused<L: OverTiers<Pm = SimPm>>() {
    let now = Timestamp::new(1_700_000_000, 0);
    let pm = Arc::new(SimPm::with_disks(16 << 20, &[16 << 20]));
    L::mkfs(&pm, &MkfsOptions::default()).expect("mkfs");
    let layout = L::mount(Arc::clone(&pm), &MountOptions::default()).expect("mount");
    let fs = TieredFs::<L, SimDisk>::new(layout, MoverOptions::default());
    let disk = SimDisk::of(&pm, 0);
    fs.add(disk.clone(), Uuid::from_u128(7), 1, 1, now).expect("a tier");
    let layout = fs.layout();
    let new = NewInode::of_root(FileKind::Regular, 0o644, now);
    let node = layout.create(&layout.root(), b"file", &new).expect("create");
    let data = [IoSlice::new(&[1; 2 * BLOCK_SIZE as usize])];
    layout.write(&node, WriteAt::Offset(0), &data, Durability::Now, now).expect("write");

    let found = layout.resolve_movable(&node, FileBlock(0), 2).expect("its places");
    let [from] = found[..] else { panic!("one piece, not {found:?}") };
    let run = layout.allocate_on(1, None, 2).expect("there is room")[0];
    let copied = [Copied { from, tier: 1, block: run.start }];
    // Its copy would be here.
    let held = layout.pin(&node, FileBlock(0), 1).expect("it is held");
    let Place::Pm(block) = held[0].place else { panic!("it is at {held:?}") };
    let stored = pm.copy(block.offset(), &[2; 64]).expect("a store");
    pm.fence(stored);
    layout.unpin(&node);

    let file = CopiedFile { node: &node, copied: &copied, modified: now };
    let proof = disk.flush().expect("flush");
    let refused = layout.publish(&[file], proof).remove(0).expect("it is decided");
    assert_eq!(refused, copied);
    let mut line = [0; 64];
    layout.read(&node, 0, &mut line, None).expect("read");
    assert_eq!(line, [2; 64]);
}

#[test]
fn a_copy_from_before_a_store_through_a_mapping_is_refused() {
    a_copy_from_before_a_store_is_refused::<LogFs<SimPm>>();
    a_copy_from_before_a_store_is_refused::<ShadowFs<SimPm>>();
}
