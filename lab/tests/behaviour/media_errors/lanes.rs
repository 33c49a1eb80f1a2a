//! A crash that leaves an unfinished operation in each lane of the layout `pool`, and then a page that is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nacre_engine::{FileKind, Names, RenameMode, Result, SetAttr};
use nacre_lab::crash::Tree;
use nacre_layout_parts::lifecycle::{Lifecycle, MountOptions};
use nacre_layout_pool::{PoolFs, use_lane};
use nacre_media::crash::Replay;
use nacre_media::sim::Event;
use nacre_media::{Pm, SimPm};

use super::common::{LINE, checked, lookup, make, new, now, put, scrub};
use super::pool::{PAGE, metadata_pages};

type Fs = PoolFs<SimPm>;

/// The smallest device with all lanes.
const SIZE: u64 = 64 << 20;
const LANES: usize = 16;
/// One in so many pages of metadata is lost.
const STRIDE: usize = 4;

/// Lines of PM.
type Lines = BTreeMap<u64, [u8; LINE as usize]>;

fn mount(pm: &Arc<SimPm>) -> Fs {
    Fs::mount(Arc::clone(pm), &MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

/// A directory for each lane.
fn directories() -> Arc<SimPm> {
    let pm = Arc::new(SimPm::new(SIZE));
    make::<Fs>(&pm);
    let fs = mount(&pm);
    for lane in 0..LANES {
        use_lane(lane);
        let dir =
            fs.create(&fs.root(), format!("lane-{lane:02}").as_bytes(), &new(FileKind::Directory)).unwrap();
        for name in ["a", "b", "c"] {
            let file = fs.create(&dir, name.as_bytes(), &new(FileKind::Regular)).unwrap();
            put(&fs, &file, 0, &[lane as u8; 3000]).unwrap();
        }
    }
    fs.abandon();
    use_lane(0);
    pm
}

/// The operation of a lane. None changes a word of another, and only one takes an entry.
fn act(fs: &Fs, lane: usize) -> Result<()> {
    use_lane(lane);
    let dir = lookup(fs, &format!("lane-{lane:02}"))?;
    match lane {
        0 => fs.create(&dir, b"created", &new(FileKind::Regular)).map(drop),
        1..5 => fs.rename(&dir, b"a", &dir, b"renamed", RenameMode::Replace, now()),
        5..10 => fs.rename(&dir, b"a", &dir, b"b", RenameMode::Exchange, now()),
        _ => {
            let file = fs.lookup(&dir, b"a")?;
            fs.setattr(&file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, now()).map(drop)
        }
    }
}

/// An operation that was recorded.
struct Recorded {
    /// The lines that it has made durable with each of its fences, in order.
    steps: Vec<Lines>,
    /// The pages of its lane, both copies.
    lane: BTreeSet<u64>,
}

fn record(base: &[u8], pm: &SimPm, operation: impl FnOnce()) -> Recorded {
    pm.start_recording();
    operation();
    let trace = pm.stop_recording();
    let stored = trace.events.iter().filter_map(|event| match event {
        Event::Store { offset, bytes, .. } => Some((*offset, *offset + bytes.len() as u64)),
        _ => None,
    });
    let lines: Vec<u64> =
        stored.flat_map(|(from, to)| (from / LINE * LINE..to).step_by(LINE as usize)).collect();
    let of_lane = |event: &Event| match event {
        Event::Store { offset, site, .. } if site.file().ends_with("lanes.rs") => Some(offset / PAGE * PAGE),
        _ => None,
    };
    let lane = trace.events.iter().filter_map(of_lane).collect();
    let mut replay = Replay::new(base.to_vec(), &trace);
    let image = SimPm::new(SIZE);
    let mut steps = Vec::new();
    while replay.advance().is_some() {
        image.load(replay.media());
        let line = |&at: &u64| {
            let mut bytes = [0; LINE as usize];
            image.read(at, &mut bytes).unwrap();
            (at, bytes)
        };
        steps.push(lines.iter().map(line).collect());
    }
    Recorded { steps, lane }
}

/// Each operation is done or not, whatever became of the others.
fn assert_each_is_one_or_the_other(before: &Tree, after: &Tree, found: &Tree, what: &str) {
    let (undone, done) = (before.differences(found), after.differences(found));
    for lane in 0..LANES {
        let path = format!("/lane-{lane:02}");
        let differs = |list: &[String]| list.iter().any(|words| words.starts_with(&path));
        assert!(!differs(&undone) || !differs(&done), "{what}, lane {lane}: {undone:?} {done:?}");
    }
    let is_of_a_lane = |words: &&String| words.starts_with("/lane-");
    let others: Vec<_> = undone.iter().filter(|words| !is_of_a_lane(words)).collect();
    assert!(others.is_empty(), "{what}: {others:?}");
}

#[test]
fn a_lost_page_beside_an_unfinished_operation_in_each_lane_loses_nothing() {
    let pm = directories();
    let fs = mount(&pm);
    let before = Tree::of(&fs).unwrap();
    let base = pm.snapshot();
    let mut lanes = Vec::new();
    for lane in 0..LANES {
        let now = pm.snapshot();
        lanes.push(record(&now, &pm, || act(&fs, lane).unwrap()));
    }
    let after = Tree::of(&fs).unwrap();
    fs.abandon();
    use_lane(0);
    let fences = lanes.iter().map(|lane| lane.steps.len()).max().unwrap();
    assert!(fences >= 3, "{fences} fences");
    // Each crash looks at other pages.
    for step in 0..fences {
        let crashed = SimPm::from_image(&base);
        for lane in &lanes {
            let lines = lane.steps.get(step).or(lane.steps.last()).unwrap();
            lines.iter().for_each(|(&at, bytes)| crashed.poke(at, bytes));
        }
        let crashed = crashed.snapshot();
        let whole = {
            let fs = mount(&Arc::new(SimPm::from_image(&crashed)));
            let tree = Tree::of(&fs).unwrap();
            fs.abandon();
            tree
        };
        // All operations are at the same fence.
        let is_done = before.differences(&whole).len() == before.differences(&after).len();
        assert!(is_done || before.differences(&whole).is_empty(), "fence {step}");
        assert!(step != 0 || !is_done, "the first fence has the intents only");
        assert!(step + 1 != fences || is_done, "the last one has everything");
        let pages = metadata_pages(&Arc::new(SimPm::from_image(&crashed)));
        assert!(pages.len() > 50, "{} pages", pages.len());
        // Some intents, too, in both copies.
        let intents =
            lanes.iter().skip(step % STRIDE).step_by(STRIDE).flat_map(|lane| lane.lane.iter().copied());
        let pages: BTreeSet<u64> = pages.into_iter().skip(step).step_by(STRIDE).chain(intents).collect();
        for page in pages {
            let what = format!("fence {step}, page {page}");
            let pm = Arc::new(SimPm::from_image(&crashed));
            pm.poison(page, PAGE);
            let fs = mount(&pm);
            let found = Tree::of(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_each_is_one_or_the_other(&before, &after, &found, &what);
            scrub(&fs);
            fs.unmount().unwrap();
            let report = checked::<Fs>(&pm, false);
            assert!(report.is_sound(), "{what}: {:?}", report.problems);
        }
    }
}
