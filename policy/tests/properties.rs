//! The model against its definition, on random histories of one block and of one file.

use std::collections::HashMap;

use nacre_policy::benefit::{Block, Latencies, Model, Path};
use nacre_policy::ghost::{FileHistory, Judged};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Event {
    Write { lines: u64 },
    WrittenBack { lines: u64 },
    Sync,
}

fn event() -> impl Strategy<Value = Event> {
    let few = (0u32..64, 1u32..64).prop_map(|(start, len)| (u64::MAX >> (64 - len)) << start);
    let few = few.prop_filter("some line", |lines| *lines != 0);
    prop_oneof![
        6 => few.clone().prop_map(|lines| Event::Write { lines }),
        1 => few.prop_map(|lines| Event::WrittenBack { lines }),
        2 => Just(Event::Sync),
    ]
}

proptest! {
    /// With a unit of one line the verdict is inequality (1), reckoned from the whole history.
    #[test]
    fn the_verdict_is_inequality_one(
        events in prop::collection::vec(event(), 1..60),
        dram_ns in 1u32..400,
        pm_ns in 1u32..1200,
    ) {
        let model = Model { latencies: Latencies { dram_ns, pm_ns }, ..Model::default() };
        let mut block = Block::NEW;
        let (mut ncw, mut unflushed, mut last) = (0u64, [false; 64], None);
        for event in events {
            match event {
                Event::Write { lines } => {
                    block.wrote(lines, &model);
                    ncw += u64::from(lines.count_ones());
                    (0..64).filter(|line| lines >> line & 1 == 1).for_each(|line| unflushed[line] = true);
                }
                Event::WrittenBack { lines } => {
                    block.written_back(lines);
                    (0..64).filter(|line| lines >> line & 1 == 1).for_each(|line| unflushed[line] = false);
                }
                Event::Sync => {
                    let ncf = unflushed.iter().filter(|line| **line).count() as u64;
                    let (dram, pm) = (u64::from(dram_ns), u64::from(pm_ns));
                    let path = if ncw * dram + ncf * pm < ncw * pm { Path::Lazy } else { Path::Eager };
                    let verdict = block.synced(&model);
                    prop_assert_eq!(verdict.map(|verdict| verdict.path), (ncw > 0).then_some(path));
                    if let Some(verdict) = verdict {
                        prop_assert_eq!(verdict.as_before, last.map(|last| last == path));
                        last = Some(path);
                    }
                    (ncw, unflushed) = (0, [false; 64]);
                }
            }
        }
    }

    /// A write that nothing follows before the sync is eager where DRAM costs anything, whatever the layout's unit.
    #[test]
    fn one_write_a_sync_is_never_worth_buffering(lines in 1u64.., unit_lines in 1u32..=64, pm_ns in 1u32..1000) {
        let latencies = Latencies { dram_ns: 1, pm_ns };
        let model = Model { latencies, unit_lines, ..Model::default() };
        let mut block = Block::NEW;
        block.wrote(lines, &model);
        prop_assert_eq!(block.synced(&model).map(|verdict| verdict.path), Some(Path::Eager));
    }

    /// The ghosts of a file never exceed the rights that were given, and what is remembered is what a map would hold.
    #[test]
    fn a_history_is_bounded_and_forgets_the_oldest(
        calls in prop::collection::vec((0u64..12, any::<bool>(), 0u8..10), 1..200),
        bound in 0u64..8,
    ) {
        let model = Model::default();
        let mut file = FileHistory::default();
        let mut plain: HashMap<u64, Block> = HashMap::new();
        let mut used = 0;
        for (turn, (block, is_sync, what)) in calls.into_iter().enumerate() {
            if is_sync && what < 3 {
                file.synced(turn as u64, &model, &mut Judged::default());
                for block in plain.values_mut() {
                    block.synced(&model);
                }
            } else if what == 9 {
                prop_assert_eq!(file.take(block).is_some(), plain.remove(&block).is_some());
                used = file.len();
            } else {
                used += u64::from(file.wrote(block, 1 << what, &model, used < bound));
                plain.entry(block).or_default().wrote(1 << what, &model);
                plain.retain(|&block, _| {
                    let kept = file.take(block);
                    kept.is_some_and(|state| { file.put(block, state, true); true })
                });
            }
            prop_assert!(file.len() <= bound, "{} of {bound}", file.len());
            prop_assert_eq!(file.len(), used);
            prop_assert_eq!(plain.len() as u64, file.len());
        }
        for (block, state) in plain {
            prop_assert_eq!(file.take(block), Some(state));
        }
    }
}
