//! What moved for the sake of reads had a flush for each file.

use nacre_engine::{Extents, FileBlock, Names, XattrMode};
use nacre_mover::{MoverOptions, PIN, Placement, Rules};

use crate::machine::{Machine, Node, TIER, content, time};

/// Milliseconds at which the first second is over.
const NOW_MS: u64 = 1_700_001_000_000;

/// Each file is read once in each of so many seconds, after which the mover looks.
fn read_for(machine: &Machine, files: &[Node], seconds: std::ops::Range<u64>) {
    for second in seconds {
        let now = time(1000 + second as usize);
        for (number, node) in files.iter().enumerate() {
            assert!(machine.read_at(node, Some(now)) == content(number, 2), "file {number}");
        }
        machine.fs.keep(NOW_MS + second * 1000 + 500, &|| true).expect("blocks move");
    }
}

#[test]
fn what_is_read_moves_into_dram_with_few_flushes() {
    for count in [40, 400] {
        let machine = Machine::with(&[64 << 20], MoverOptions::default());
        let files = machine.files([2].repeat(count));
        machine.fs.set_xattr(&files[3], PIN, b"1", XattrMode::Set, None, time(0)).expect("set");
        machine.fs.layout().pin(&files[5], FileBlock(0), 2).expect("pin");
        read_for(&machine, &files, 0..6);
        for (number, node) in files.iter().enumerate() {
            let stays = matches!(number, 3 | 5);
            assert_eq!(machine.below(node), if stays { 0 } else { 2 }, "file {number}");
        }
        assert!(machine.flushes(TIER) <= 2, "{} flushes for {count} files", machine.flushes(TIER));
        let traffic = machine.fs.tiers().traffic_of(TIER);
        assert!(traffic.reads == 0 && traffic.writes <= 2, "they are in DRAM: {traffic:?}");
        let lowered = (count as u64 - 2) * 2 * nacre_engine::BLOCK_SIZE;
        assert_eq!((machine.fs.status().lowered, machine.fs.status().moved), (lowered, 0));
        machine.fs.layout().unpin(&files[5]);
        let expected: Vec<_> = (0..count).map(|number| content(number, 2)).collect();
        drop(files);
        machine.crash(&expected);
    }
}

/// How often a file is to be read before it moves may be said, also while it is mounted.
#[test]
fn what_is_read_too_seldom_for_the_rule_stays() {
    let rules = |read_factor| Placement::Predicted(Rules { read_factor, ..Rules::default() });
    let usual = MoverOptions::default();
    let machine = Machine::with(&[64 << 20], MoverOptions { placement: rules(100), ..usual });
    let files = machine.files([2].repeat(40));
    read_for(&machine, &files, 0..8);
    assert_eq!(machine.fs.status().lowered, 0, "each was read eight times");
    machine.fs.change(&MoverOptions { placement: rules(2), ..usual });
    read_for(&machine, &files, 8..10);
    assert_eq!(machine.fs.status().lowered, 40 * 2 * nacre_engine::BLOCK_SIZE);
}

/// No more moves than the limit allows, although a batch has room for all.
#[test]
fn the_limit_holds_for_what_moves_together() {
    let machine = Machine::with(&[64 << 20], MoverOptions::default());
    let files = machine.files([2; 200]);
    let rate = 20 * 4096;
    machine.fs.limit(Some(rate));
    for second in 0..12 {
        read_for(&machine, &files, second..second + 1);
        // What was allowed in the first second is among it.
        let most = (second + 2) * rate + 2 * 4096;
        assert!(machine.fs.status().lowered <= most, "{} after {second}", machine.fs.status().lowered);
    }
    assert!(machine.fs.status().lowered >= 4 * rate, "{}", machine.fs.status().lowered);
    let flushes = machine.flushes(TIER);
    assert!((4..=12).contains(&flushes), "{flushes}");
    machine.fs.pause(true);
    read_for(&machine, &files, 12..16);
    assert_eq!(machine.flushes(TIER), flushes, "it is paused");
}
