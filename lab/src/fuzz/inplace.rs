//! A damaged image of the in-place layout.
//!
//! The first byte chooses the image. Edits follow, as `edit.rs` reads them. Kinds of structures are superblocks, commit
//! entries, lines of the journal, the table, inodes, nodes of trees, blocks of directories, attributes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use nacre_engine::Result;
use nacre_layout_inplace::anatomy::{Kind, Structure, reseal, structures};
use nacre_layout_inplace::check::check;
use nacre_layout_inplace::{InplaceFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::{Image, SimPm};

use super::ground::{SIZE, change_all, memory, populate, read_all};
use super::{Input, edit};

/// An image and where its structures are.
struct Ground {
    image: Image,
    structures: Vec<Structure>,
    kinds: Vec<Vec<Structure>>,
}

impl Ground {
    fn new(bytes: Vec<u8>) -> Ground {
        let structures = structures(&SimPm::from_image(&bytes)).expect("a sound image");
        let mut kinds: BTreeMap<Kind, Vec<Structure>> = BTreeMap::new();
        for structure in &structures {
            kinds.entry(structure.kind).or_default().push(*structure);
        }
        Ground { structures, kinds: kinds.into_values().collect(), image: Image::from(bytes) }
    }
}

/// The images: one after a clean unmount, and one as a crash leaves it.
fn grounds() -> &'static [Ground; 2] {
    static GROUNDS: OnceLock<[Ground; 2]> = OnceLock::new();
    GROUNDS.get_or_init(|| {
        let pm = Arc::new(SimPm::new(SIZE));
        let uuid = Some(uuid::Uuid::from_u128(0x6675_7a7a));
        mkfs(&*pm, &MkfsOptions { uuid, ..MkfsOptions::default() }).expect("mkfs");
        let fs = mount(&pm).expect("mount");
        populate(&fs).expect("a tree");
        let crashed = pm.snapshot();
        fs.unmount().expect("unmount");
        [pm.snapshot(), crashed].map(Ground::new)
    })
}

/// The image after a clean unmount (0), or the one as a crash leaves it (1).
pub(super) fn image(which: usize) -> &'static Image {
    &grounds()[which].image
}

pub(super) fn mount(pm: &Arc<SimPm>) -> Result<InplaceFs<SimPm>> {
    InplaceFs::mount(Arc::clone(pm), &MountOptions { lanes: Some(1), ..MountOptions::default() })
}

/// Damages an image, checks it, uses it as it is, repairs it, and uses it again.
///
/// Panics when a repaired file system is not sound, cannot be mounted, or cannot be read.
pub fn damaged_inplace(data: &[u8]) {
    let mut input = Input::new(data);
    let ground = &grounds()[usize::from(input.byte() & 1)];
    let edit = || {
        let pm = memory(&ground.image);
        let range = |structure: &Structure| (structure.offset, structure.len);
        for structure in edit::apply(&*pm, &ground.structures, &ground.kinds, range, input) {
            // A superblock that was changed beyond recognition cannot be sealed; then it is simply damaged.
            let _ = reseal(&*pm, &structure);
        }
        pm
    };
    use_damaged(&edit());
    repair(&edit());
}

/// Mounts, uses and checks a damaged image: each damage is an error or does no harm.
fn use_damaged(pm: &Arc<SimPm>) {
    if let Ok(fs) = mount(pm) {
        let (_, files) = read_all(&fs);
        change_all(&fs, &files);
        drop(files);
        // It may find out only now that something contradicts itself.
        let _ = fs.unmount();
    }
    let _ = check(&**pm, false);
}

/// Repairs a damaged image: the result is sound if the repair says so.
fn repair(pm: &Arc<SimPm>) {
    let Ok(report) = check(&**pm, true) else { return };
    if !report.is_sound() {
        return;
    }
    let again = check(&**pm, false).expect("it was checked a moment ago");
    assert!(
        again.problems.is_empty(),
        "after a repair: {:?}\nwhich did: {:?}",
        again.problems,
        report.problems
    );
    let fs = mount(pm).expect("what is repaired can be mounted");
    let (error, files) = read_all(&fs);
    assert!(error.is_none(), "after a repair: {error:?}\nwhich did: {:?}", report.problems);
    change_all(&fs, &files);
    drop(files);
    fs.unmount().expect("and unmounted");
    let last = check(&**pm, false).expect("it was unmounted a moment ago");
    assert!(
        last.problems.is_empty(),
        "after it was used: {:?}\nrepaired: {:?}",
        last.problems,
        report.problems
    );
}
