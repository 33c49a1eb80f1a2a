//! A damaged image of a layout is used as it is, and repaired.

use std::collections::BTreeMap;
use std::sync::Arc;

use nacre_engine::Result;
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_media::{Image, SimPm};

use super::ground::{SIZE, change_all, populate, read_all};

/// An image and where its structures are.
pub(super) struct Ground<S> {
    pub(super) image: Image,
    pub(super) structures: Vec<S>,
    /// The same by their kinds.
    pub(super) kinds: Vec<Vec<S>>,
}

impl<S: Copy> Ground<S> {
    fn new<K: Ord>(bytes: Vec<u8>, structures: Vec<S>, kind: impl Fn(&S) -> K) -> Ground<S> {
        let mut kinds: BTreeMap<K, Vec<S>> = BTreeMap::new();
        for structure in &structures {
            kinds.entry(kind(structure)).or_default().push(*structure);
        }
        Ground { structures, kinds: kinds.into_values().collect(), image: Image::from(bytes) }
    }
}

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

pub(super) fn mount<F: Lifecycle<Pm = SimPm>>(pm: &Arc<SimPm>) -> Result<F> {
    F::mount(Arc::clone(pm), &MountOptions { lanes: Some(1), ..MountOptions::default() })
}

/// Mounts, uses and checks a damaged image: each damage is an error or does no harm.
pub(super) fn use_damaged<F: Lifecycle<Pm = SimPm>>(pm: &Arc<SimPm>) {
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
pub(super) fn repair<F: Lifecycle<Pm = SimPm>>(pm: &Arc<SimPm>) {
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
