//! A damaged image.
//!
//! The first byte chooses the image. Edits follow, as `edit.rs` reads them. Kinds of structures:
//!
//! - superblocks, words of the chunk table;
//! - the parts of inodes and of log pages;
//! - entries by kind (those of transactions are the journal);
//! - blocks of the checkpoint, words of the list of bad blocks.

use nacre_engine::Kind;
use nacre_layout_log::anatomy::{Structure, reseal};
use nacre_layout_log::check::check;
use nacre_media::SimPm;

use super::damaged;
use super::ground::{change_all, grounds, mount, read_all};

/// Damages an image, checks it, uses it as it is, repairs it, and uses it again.
///
/// Panics when a repaired file system is not sound, cannot be mounted, or cannot be read.
pub fn damaged_image(data: &[u8]) {
    let range = |structure: &Structure| (structure.offset, structure.len);
    let image = damaged::edited(grounds(), data, range, reseal);
    use_damaged(&image());
    repair(&image());
}

/// Mounts, uses and checks a damaged image: each damage is an error or does no harm.
pub(super) fn use_damaged(pm: &std::sync::Arc<SimPm>) {
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
pub(super) fn repair(pm: &std::sync::Arc<SimPm>) {
    let Ok(told) = check(&**pm, false) else { return };
    let report = match check(&**pm, true) {
        // Features that only a newer program may write beside.
        Err(error) if error.kind() == Kind::Unsupported => return,
        report => report.expect("what can be checked can be repaired, or said to be beyond it"),
    };
    if !report.is_sound() {
        assert!(!told.is_sound(), "a repair finds what a check does not: {report:?}");
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
