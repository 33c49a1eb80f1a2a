//! Repairs of the pool layout are crashed: whatever of one reached media, the next one ends it, and the whole tree is
//! there. A check repairs an unmounted file system, a scrub a mounted one.

use std::collections::BTreeSet;
use std::sync::Arc;

use nacre_lab::crash::Tree;
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_parts::report::Repair;
use nacre_layout_pool::PoolFs;
use nacre_layout_pool::anatomy::{Kind, structures};
use nacre_media::crash::{Replay, Sampling};
use nacre_media::sim::Defect;
use nacre_media::{Pm as _, SimPm, Trace};

use super::common::{LINE, checked, mount, scrub, try_mount};
use super::pool::{everything, pm_len};

type Fs = PoolFs<SimPm>;

/// Structures of each kind that are damaged.
const EACH: usize = 3;
/// The bytes of a damaged line. A repair writes others, so that it is known which lines it has reached.
const GARBAGE: [u8; LINE as usize] = [0xa7; LINE as usize];

const KINDS: [Kind; 12] = [
    Kind::Zone,
    Kind::Volume,
    Kind::Orphans,
    Kind::Done,
    Kind::Map,
    Kind::PoolHead,
    Kind::PoolBits,
    Kind::Inode,
    Kind::Neighbours,
    Kind::Name,
    Kind::Node,
    Kind::Bytes,
];

/// The kind of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Check,
    Scrub,
}

/// The first lines of some structures of each kind: of one the primary, of the next one the backup. Of none both.
fn lines_to_damage(pm: &SimPm) -> Vec<u64> {
    let all = structures(pm).unwrap();
    let (mut lines, mut taken) = (Vec::new(), BTreeSet::new());
    for (index, kind) in KINDS.into_iter().enumerate() {
        let of_kind: Vec<_> = all.iter().filter(|structure| structure.kind == kind).collect();
        // A primary, and its backup right behind it.
        let pairs: Vec<_> = of_kind.chunks_exact(2).collect();
        assert!(!pairs.is_empty(), "{kind:?}");
        let first = if pairs.len() > 4 * EACH { index % EACH } else { 0 };
        for pair in pairs.iter().skip(first).step_by(pairs.len().div_ceil(EACH)) {
            let [primary, backup] = [0, 1].map(|copy| pair[copy].offset / LINE * LINE);
            // The neighbours of an inode are in a line of the inode.
            let owner = match kind {
                Kind::Inode | Kind::Neighbours => primary / 256 * 256,
                _ => primary,
            };
            if taken.insert(owner) {
                lines.push(if lines.len() % 2 == 0 { primary } else { backup });
            }
        }
    }
    lines
}

/// The lines of these that no repair has reached.
fn still_damaged(pm: &SimPm, lines: &[u64]) -> Vec<u64> {
    let is_damaged = |line: &&u64| {
        let mut bytes = [0; LINE as usize];
        pm.read(**line, &mut bytes).unwrap();
        bytes == GARBAGE
    };
    lines.iter().filter(is_damaged).copied().collect()
}

/// Damages lines of a file system and repairs them with a record of that. Gives the record, and the bytes before.
fn repaired(
    pm: &Arc<SimPm>,
    lines: &[u64],
    is_lost: bool,
    by: By,
    defect: Option<Defect>,
) -> (Vec<u8>, Trace) {
    // A mount writes some of the rows. That is no repair.
    let fs = (by == By::Scrub).then(|| mount::<Fs>(pm));
    lines.iter().for_each(|&line| pm.poke(line, &GARBAGE));
    if is_lost {
        lines.iter().for_each(|&line| pm.poison(line, 1));
    }
    let base = pm.snapshot();
    pm.start_recording_with(defect);
    match fs {
        Some(fs) => {
            let status = scrub(&fs);
            assert!(status.repaired > 0, "{status:?}");
            let trace = pm.stop_recording();
            fs.abandon();
            (base, trace)
        }
        None => {
            let report = <Fs as Lifecycle>::check(pm, Repair::All, None).unwrap();
            assert!(!report.problems.is_empty());
            (base, pm.stop_recording())
        }
    }
}

/// After a crash in a repair another repair ends it, and nothing is missing.
fn ends_well(pm: &Arc<SimPm>, expected: &Tree, what: &str) {
    <Fs as Lifecycle>::check(pm, Repair::All, None).unwrap_or_else(|error| panic!("{what}: {error}"));
    let fs: Fs = try_mount(pm).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = Tree::of(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(expected.differences(&found), Vec::<String>::new(), "{what}");
    fs.unmount().unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = checked::<Fs>(pm, false);
    assert!(report.is_sound() && report.problems.is_empty(), "{what}: {:?}", report.problems);
}

#[test]
fn a_repair_that_is_interrupted_loses_nothing() {
    let good = everything().snapshot();
    let expected = {
        let fs: Fs = mount(&Arc::new(SimPm::from_image(&good)));
        let tree = Tree::of(&fs).unwrap();
        fs.abandon();
        tree
    };
    let lines = lines_to_damage(&SimPm::from_image(&good));
    assert!(lines.len() > 20, "{} lines", lines.len());
    for (by, is_lost) in [(By::Check, false), (By::Check, true), (By::Scrub, false), (By::Scrub, true)] {
        let pm = Arc::new(SimPm::from_image(&good));
        let (base, trace) = repaired(&pm, &lines, is_lost, by, None);
        let mut replay = Replay::new(base, &trace);
        let (mut images, mut halfway) = (0, 0);
        while let Some(point) = replay.advance() {
            let sampling = Sampling { exhaustive_up_to: 2, samples: 3, seed: 1 };
            for image in replay.images(&sampling).iter() {
                let pm = Arc::new(SimPm::new(pm_len(&pm)));
                pm.load(replay.media());
                image.apply(&pm);
                let damaged = still_damaged(&pm, &lines);
                if is_lost {
                    damaged.iter().for_each(|&line| pm.poison(line, 1));
                }
                images += 1;
                halfway += usize::from(!damaged.is_empty() && damaged.len() < lines.len());
                ends_well(&pm, &expected, &format!("{by:?}, lost: {is_lost}, {point:?}, {image:?}"));
            }
        }
        assert!(
            images > 30 && halfway > 10,
            "{by:?}, lost: {is_lost}: {images} images, {halfway} on the way"
        );
        // At its end the repair is durable.
        let pm = Arc::new(SimPm::new(pm_len(&pm)));
        pm.load(replay.media());
        assert_eq!(still_damaged(&pm, &lines), Vec::<u64>::new(), "{by:?}, lost: {is_lost}");
        assert!(checked::<Fs>(&pm, false).problems.is_empty(), "{by:?}, lost: {is_lost}");
    }
}

/// The test above sees a repair that waits for nothing.
#[test]
fn a_repair_without_fences_is_not_durable() {
    let good = everything().snapshot();
    let lines = lines_to_damage(&SimPm::from_image(&good));
    for by in [By::Check, By::Scrub] {
        let pm = Arc::new(SimPm::from_image(&good));
        let (base, trace) = repaired(&pm, &lines, false, by, Some(Defect::NoFences));
        let mut replay = Replay::new(base, &trace);
        while replay.advance().is_some() {}
        let pm = Arc::new(SimPm::new(pm_len(&pm)));
        pm.load(replay.media());
        assert_eq!(still_damaged(&pm, &lines), lines, "{by:?}");
    }
}
