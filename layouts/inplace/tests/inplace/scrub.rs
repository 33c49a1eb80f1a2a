//! What a scrub writes.

use std::sync::Arc;
use std::time::Duration;

use nacre_layout_inplace::check::check;
use nacre_layout_inplace::{InplaceFs, MkfsOptions, MountOptions, mkfs};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};

/// A crash while it writes the superblock leaves one copy, whichever was damaged.
#[test]
fn the_only_valid_superblock_is_written_last() {
    for damaged in [0, 64 << 10] {
        let pm = Arc::new(SimPm::new(16 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = InplaceFs::mount(Arc::clone(&pm), &MountOptions::default()).unwrap();
        pm.poke(damaged + 100, &[0xdb; 64]);
        let before = pm.image();
        pm.start_recording();
        fs.start_scrub(u64::MAX).unwrap();
        while fs.scrub_status().running {
            std::thread::sleep(Duration::from_millis(1));
        }
        let trace = pm.stop_recording();
        assert_eq!(fs.scrub_status().repaired, 1);
        fs.abandon();
        let mut replay = Replay::new(before, &trace);
        while replay.advance().is_some() {
            for image in replay.images(&Sampling { samples: 8, ..Sampling::default() }).iter() {
                pm.load(&replay.crashed(&image));
                assert!(check(&*pm, false).is_ok(), "with the copy at byte {damaged} damaged: {image:?}");
            }
        }
    }
}
