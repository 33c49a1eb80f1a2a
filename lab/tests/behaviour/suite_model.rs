//! The behaviour suite on the reference model: model, suite and `vfs` agree on what is right.

use std::sync::Arc;

use nacre_lab::model::MemLayout;
use nacre_lab::suite::{VfsTarget, all_cases, run};

#[test]
fn the_suite_passes_on_the_reference_model() {
    // 64 MiB of data, so that it can be filled.
    let layout = MemLayout::new(16_384, 1 << 20);
    let mut target =
        VfsTarget::new("the reference model", layout, Arc::new(|old: MemLayout| old.remount()), &[]);
    run(&mut target, &all_cases(), &[]).assert_clean();
}
