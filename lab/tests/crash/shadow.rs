//! The shadow layout in the crash explorer, beside `each.rs`: the explorer is not blind to its flaws.

use nacre_lab::crash::{Flaw, MEMORY, Rig, Settings, Shadow, explore};
use nacre_media::crash::Sampling;
use nacre_media::sim::Defect;

use crate::each::{by_name, mistake, quick};

fn settings(flaw: Flaw) -> Settings {
    Settings { recovery_every: 16, empty_every: 4, ..quick(flaw) }
}

/// Without any fence, and with a mistake of each shape of commit and of recovery.
#[test]
fn flaws_are_found() {
    let mut rig = Rig::new(&Shadow, MEMORY);
    for name in ["create", "append", "overwrite", "rename-across", "truncate", "setattr", "xattr"] {
        let report = explore(&mut rig, &by_name(name), &settings(Flaw::Memory(Defect::NoFences)));
        assert!(report.map_or(true, |report| !report.violations.is_empty()), "{name} without any fence");
    }
    for (words, name) in [
        ("a slot is written before its data is durable", "append"),
        ("a slot that goes with a word has no condition", "overwrite"),
        ("a word is stored before its slot is durable", "overwrite"),
        ("a switch is stored before what it makes count", "create"),
        ("recovery leaves what uncommitted operations tagged", "create"),
        ("an operation has the generation of the one before", "create"),
        ("a slot keeps the sequence of the one before", "setattr"),
        ("blocks are free before the commit that takes them away", "truncate"),
        ("a new inode is not written before its name", "create"),
        ("the last name goes and the inode keeps its link", "unlink"),
        ("a rename is two operations", "rename-across"),
        ("a file grows over bytes that were not zeroed", "truncate"),
    ] {
        let flaw = Flaw::Layout(mistake(&Shadow, words).number);
        let found = explore(&mut rig, &by_name(name), &settings(flaw));
        // A mistake may also be such that the workload itself fails.
        assert_ne!(found.map(|report| report.violations.len()).ok(), Some(0), "{words}, in {name}");
    }
}

/// The inode table grows.
#[test]
fn a_table_that_grows_survives() {
    let mut rig = Rig::new(&Shadow, MEMORY);
    let settings = Settings {
        sampling: Sampling { exhaustive_up_to: 4, samples: 4, seed: 1 },
        empty_every: 64,
        recovery_every: 512,
        ..Settings::default()
    };
    for name in ["inode-chunk-0", "grow-sparse", "cross-directories-remove"] {
        let report = explore(&mut rig, &by_name(name), &settings).expect("it can be run");
        println!("{name}: {report}");
        assert!(report.violations.is_empty() && report.images > 0, "{name}: {report}");
    }
}
