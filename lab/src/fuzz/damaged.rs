//! A damaged image of a layout is used as it is, and repaired.

use std::sync::Arc;

use nacre_engine::Result;
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_media::SimPm;

use super::ground::{Ground, SIZE, change_all, memory, populate, read_all};
use super::{Input, edit};

/// The images of a layout: one after a clean unmount, and one as a crash leaves it.
pub(super) fn grounds<F: Lifecycle<Pm = SimPm>, S: Copy, K: Ord>(
    structures: impl Fn(&SimPm) -> Result<Vec<S>>,
    kind: impl Fn(&S) -> K,
) -> [Ground<S>; 2] {
    let pm = Arc::new(SimPm::new(SIZE));
    let uuid = Some(uuid::Uuid::from_u128(0x6675_7a7a));
    F::mkfs(&pm, &MkfsOptions { uuid, ..MkfsOptions::default() }).expect("mkfs");
    let fs: F = mount(&pm).expect("mount");
    populate(&fs).expect("a tree");
    let crashed = pm.snapshot();
    fs.unmount().expect("unmount");
    [pm.snapshot(), crashed].map(|bytes| {
        let found = structures(&SimPm::from_image(&bytes)).expect("a sound image");
        Ground::new(bytes, found, &kind)
    })
}

/// Makes the image that the first byte of an input chooses, with the edits that follow. `range` gives the offset and the
/// length of a structure, and `reseal` makes it validate again.
pub(super) fn edited<S: Copy>(
    grounds: &[Ground<S>; 2],
    data: &[u8],
    range: impl Fn(&S) -> (u64, u64),
    reseal: impl Fn(&SimPm, &S) -> Result<()>,
) -> impl Fn() -> Arc<SimPm> {
    let mut input = Input::new(data);
    let ground = &grounds[usize::from(input.byte() & 1)];
    move || {
        let pm = memory(&ground.image);
        for structure in edit::apply(&*pm, &ground.structures, &ground.kinds, &range, input) {
            // A superblock that was changed beyond recognition cannot be sealed; then it is simply damaged.
            let _ = reseal(&pm, &structure);
        }
        pm
    }
}

/// Uses an image as it is, and another one like it after a repair.
pub(super) fn use_and_repair<F: Lifecycle<Pm = SimPm>>(image: impl Fn() -> Arc<SimPm>) {
    use_damaged::<F>(&image());
    repair::<F>(&image());
}

pub(super) fn mount<F: Lifecycle<Pm = SimPm>>(pm: &Arc<SimPm>) -> Result<F> {
    F::mount(Arc::clone(pm), &MountOptions { lanes: Some(1), ..MountOptions::default() })
}

/// Mounts, uses and checks a damaged image: each damage is an error or does no harm.
fn use_damaged<F: Lifecycle<Pm = SimPm>>(pm: &Arc<SimPm>) {
    if let Ok(fs) = mount::<F>(pm) {
        let (_, files) = read_all(&fs);
        change_all(&fs, &files);
        drop(files);
        // It may find out only now that something contradicts itself.
        let _ = fs.unmount();
    }
    let _ = F::check(pm, Repair::None, None);
}

/// Repairs a damaged image: the result is sound if the repair says so.
fn repair<F: Lifecycle<Pm = SimPm>>(pm: &Arc<SimPm>) {
    let Ok(report) = F::check(pm, Repair::All, None) else { return };
    if !report.is_sound() {
        return;
    }
    let again = F::check(pm, Repair::None, None).expect("it was checked a moment ago");
    assert!(
        again.problems.is_empty(),
        "after a repair: {:?}\nwhich did: {:?}",
        again.problems,
        report.problems
    );
    let fs: F = mount(pm).expect("what is repaired can be mounted");
    let (error, files) = read_all(&fs);
    assert!(error.is_none(), "after a repair: {error:?}\nwhich did: {:?}", report.problems);
    change_all(&fs, &files);
    drop(files);
    fs.unmount().expect("and unmounted");
    let last = F::check(pm, Repair::None, None).expect("it was unmounted a moment ago");
    assert!(
        last.problems.is_empty(),
        "after it was used: {:?}\nrepaired: {:?}",
        last.problems,
        report.problems
    );
}
