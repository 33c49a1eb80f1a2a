//! A damaged image of the in-place layout.
//!
//! The first byte chooses the image. What follows are edits of 14 bytes: structure (2), offset in it (2), what is
//! done (1), how the structure is chosen and whether its checksum is made right again (1), a value (8). A structure is
//! one of all, or one of its kind: superblocks, commit entries, lines of the journal, the table, inodes, nodes of trees,
//! blocks of directories, attributes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use nacre_engine::Result;
use nacre_layout_inplace::anatomy::{Kind, Structure, reseal, structures};
use nacre_layout_inplace::check::check;
use nacre_layout_inplace::{InplaceFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::{Image, Pm, SimPm};

use super::Input;
use super::ground::{SIZE, change_all, memory, populate, read_all};

/// Edits that one input may have.
const MAX_EDITS: usize = 64;

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

/// The images: unmounted in order, and as a crash leaves it.
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

fn mount(pm: &Arc<SimPm>) -> Result<InplaceFs<SimPm>> {
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
        apply(&pm, ground, input);
        pm
    };
    use_damaged(&edit());
    repair(&edit());
}

/// Whatever is on it, it is told as an error or it works.
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

/// What a repair calls sound is sound.
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

fn apply(pm: &SimPm, ground: &Ground, mut input: Input<'_>) {
    let mut touched = Vec::new();
    for _ in 0..MAX_EDITS {
        if input.is_empty() {
            break;
        }
        let (index, within) = (usize::from(input.short()), u64::from(input.short()));
        let (what, how, value) = (input.byte(), input.byte(), input.word());
        let among = match usize::from(how >> 1) {
            0 => &ground.structures,
            kind => &ground.kinds[(kind - 1) % ground.kinds.len()],
        };
        let structure = among[index % among.len()];
        let within = within % structure.len;
        let width = [1u64, 2, 4, 8][usize::from(what & 3)].min(structure.len - within);
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..width as usize];
        if pm.read(structure.offset + within, bytes).is_err() {
            continue;
        }
        for (byte, given) in bytes.iter_mut().zip(value.to_le_bytes()) {
            *byte = match what >> 2 & 3 {
                0 => given,
                1 => *byte ^ given,
                2 => byte.wrapping_add(given),
                _ => 0,
            };
        }
        pm.poke(structure.offset + within, bytes);
        if how & 1 == 0 {
            touched.push(structure);
        }
    }
    for structure in touched {
        // A superblock that was changed beyond recognition cannot be sealed; then it is simply damaged.
        let _ = reseal(pm, &structure);
    }
}
