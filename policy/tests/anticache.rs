//! Anti-caching against its definition, on random histories: blocks leave in the order of their last use, and none is
//! forgotten, however little is known.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use nacre_policy::migration::Chosen;
use nacre_policy::migration::anticache::{AntiCache, Bounds, Stage};
use proptest::prelude::*;

const PAUSE_MS: u64 = nacre_policy::migration::PAUSE_MS;
/// Blocks of a file that a walk looks at together.
const LOOK: u64 = 4;

#[derive(Debug, Clone)]
enum Event {
    /// A block is written, and the list hears of it.
    Used(u32, u64),
    /// The list hears only that something was not heard.
    Unheard(u32, u64),
    /// So many blocks leave.
    Evict(u64),
    /// So many were to leave and stay.
    Refuse(u64),
    Remove(u32),
    /// A walk goes on by a step.
    Step,
}

fn event() -> impl Strategy<Value = Event> {
    let block = || (0u32..12, 0u64..20);
    prop_oneof![
        8 => block().prop_map(|(file, block)| Event::Used(file, block)),
        2 => block().prop_map(|(file, block)| Event::Unheard(file, block)),
        2 => (1u64..12).prop_map(Event::Evict),
        1 => (1u64..12).prop_map(Event::Refuse),
        1 => (0u32..12).prop_map(Event::Remove),
        4 => Just(Event::Step),
    ]
}

/// Files with blocks on PM, and when they were modified.
#[derive(Default)]
struct World {
    on_pm: BTreeSet<(u32, u64)>,
    modified_ms: BTreeMap<u32, u64>,
}

impl World {
    fn write(&mut self, file: u32, block: u64, now_ms: u64) {
        self.on_pm.insert((file, block));
        self.modified_ms.insert(file, now_ms);
    }

    fn blocks(&self, file: u32, from: u64) -> impl Iterator<Item = u64> {
        self.on_pm.range((file, from)..=(file, u64::MAX)).map(|&(_, block)| block)
    }

    /// A walk begins or goes on. Whether it could.
    fn step(&self, list: &mut AntiCache<u32>, now_ms: u64) -> bool {
        match list.stage() {
            Stage::Rest => return list.begin_walk(now_ms, true),
            Stage::Names => {
                for (&file, &modified_ms) in &self.modified_ms {
                    if self.blocks(file, 0).next().is_some() {
                        list.found_file(modified_ms, file);
                    }
                }
                list.end_names(now_ms);
            }
            Stage::Blocks => {
                let Some((file, from)) = list.next_look() else { return true };
                let Some(first) = self.blocks(file, from).next() else {
                    list.looked(&[], None, now_ms);
                    return true;
                };
                let blocks = self.blocks(file, first).take_while(|block| *block < first + LOOK);
                let ranges: Vec<Range<u64>> = blocks.map(|block| block..block + 1).collect();
                list.looked(&ranges, Some(first + LOOK), now_ms);
            }
        }
        true
    }

    /// These blocks leave.
    fn evict(&mut self, chosen: &[Chosen<u32>]) {
        for (file, block) in blocks_of(chosen) {
            self.on_pm.remove(&(file, block));
        }
    }
}

fn blocks_of(chosen: &[Chosen<u32>]) -> Vec<(u32, u64)> {
    let spans = chosen.iter().flat_map(|part| part.spans.iter().map(move |span| (part.file, span)));
    spans.flat_map(|(file, span)| (span.start..span.end()).map(move |block| (file, block))).collect()
}

proptest! {
    /// All blocks leave PM in the end, though some were missed, given up, refused or removed on the way.
    #[test]
    fn no_block_is_forgotten(
        events in prop::collection::vec(event(), 1..200),
        blocks in 1usize..40,
        runs in 1usize..6,
        files in 1usize..6,
    ) {
        let mut list = AntiCache::new(Bounds { blocks, runs, files });
        let mut world = World::default();
        let mut now_ms = 0;
        let choose = |list: &mut AntiCache<u32>, most: u64| {
            let chosen = list.coldest(most);
            let all = blocks_of(&chosen);
            let once: BTreeSet<_> = all.iter().copied().collect();
            prop_assert_eq!(all.len(), once.len(), "a block comes once");
            prop_assert!(all.len() as u64 <= most);
            Ok(chosen)
        };
        for event in events {
            now_ms += 1;
            match event {
                Event::Used(file, block) => {
                    world.write(file, block, now_ms);
                    list.touch(file, block);
                }
                Event::Unheard(file, block) => {
                    world.write(file, block, now_ms);
                    list.miss();
                }
                Event::Evict(most) => world.evict(&choose(&mut list, most)?),
                Event::Refuse(most) => {
                    let chosen = choose(&mut list, most)?;
                    chosen.iter().rev().for_each(|part| list.put_back(part));
                }
                Event::Remove(file) => world.on_pm.retain(|(other, _)| *other != file),
                Event::Step => _ = world.step(&mut list, now_ms),
            }
        }
        // Walks without a reason come later than these pauses: nothing is left to them.
        let (mut pauses, mut steps) = (0, 0);
        while !world.on_pm.is_empty() {
            let chosen = choose(&mut list, 7)?;
            world.evict(&chosen);
            prop_assert!(!chosen.is_empty() || list.is_incomplete(), "nothing is known, and nothing is looked for");
            if chosen.is_empty() && !world.step(&mut list, now_ms) {
                now_ms += PAUSE_MS;
                pauses += 1;
            }
            steps += 1;
            prop_assert!(pauses < 4 && steps < 10_000, "{} blocks are forgotten", world.on_pm.len());
        }
    }

    /// With a list that is long enough, blocks leave in the order of their last use.
    #[test]
    fn blocks_leave_in_the_order_of_their_last_use(
        events in prop::collection::vec((0u32..4, 0u64..16, 0u64..3), 1..200),
    ) {
        let mut list = AntiCache::new(Bounds { blocks: 64, runs: 1, files: 1 });
        let mut order: Vec<(u32, u64)> = Vec::new();
        for (file, block, leave) in events {
            order.retain(|used| *used != (file, block));
            order.push((file, block));
            list.touch(file, block);
            let expected: BTreeSet<_> = order.drain(..order.len().min(leave as usize)).collect();
            let left: BTreeSet<_> = blocks_of(&list.coldest(leave)).into_iter().collect();
            prop_assert_eq!(left, expected);
        }
        prop_assert_eq!(list.len(), order.len() as u64);
        prop_assert!(order.into_iter().all(|used| blocks_of(&list.coldest(1)) == [used]));
    }
}
