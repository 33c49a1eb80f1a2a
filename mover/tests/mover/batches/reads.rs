//! What moved for the sake of reads had a flush for each file.

use nacre_engine::{BLOCK_SIZE, Data, Extents, FileBlock, Names, Place, XattrMode};
use nacre_mover::{Budget, MoverOptions, PIN, Rules};

use super::machine::{BLOCK, Layout, Machine, Node, TIER, content, time};

/// Milliseconds at which the first second is over.
const NOW_MS: u64 = 1_700_001_000_000;

/// Each file is read once in each of so many seconds, after which the mover looks.
fn read_for<L: Layout>(machine: &Machine<L>, files: &[Node<L>], seconds: std::ops::Range<u64>) {
    for second in seconds {
        let now = time(1000 + second as usize);
        for (number, node) in files.iter().enumerate() {
            assert!(machine.read_at(node, Some(now)) == content(number, 2), "file {number}");
        }
        machine.fs.tick(NOW_MS + second * 1000 + 500, &Budget::default()).expect("blocks move");
    }
}

fn what_is_read_moves_into_dram_with_few_flushes<L: Layout>() {
    for count in [40, 400] {
        let machine = Machine::<L>::with(&[64 << 20], MoverOptions::default());
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
fn what_is_read_too_seldom_for_the_rule_stays<L: Layout>() {
    let rules = |read_factor| Rules { read_factor, ..Rules::default() };
    let usual = MoverOptions::default();
    let machine = Machine::<L>::with(&[64 << 20], MoverOptions { rules: rules(100), ..usual });
    let files = machine.files([2].repeat(40));
    read_for(&machine, &files, 0..8);
    assert_eq!(machine.fs.status().lowered, 0, "each was read eight times");
    machine.fs.change(&MoverOptions { rules: rules(2), ..usual });
    read_for(&machine, &files, 8..10);
    assert_eq!(machine.fs.status().lowered, 40 * 2 * nacre_engine::BLOCK_SIZE);
}

/// No more moves than the limit allows, although a batch has room for all.
fn the_limit_holds_for_what_moves_together<L: Layout>() {
    let machine = Machine::<L>::with(&[64 << 20], MoverOptions::default());
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

/// Memory gave nearly all that was read, DRAM the rest but for a little, of which each read waited for the disk: to the
/// balance of reads that was no reason to move anything.
fn what_a_disk_is_waited_for_comes_up_though_reads_are_in_balance<L: Layout>() {
    const FAR: u64 = 2000;
    let options = MoverOptions { page_cache: 1024 * BLOCK_SIZE, ..MoverOptions::default() };
    let machine = Machine::<L>::with(&[64 << 20], options);
    let sizes = [40, 40, FAR as usize, 1];
    let files = machine.files(sizes);
    let [near, hot, far, pinned] = &files[..] else { panic!("four files") };
    for node in [hot, far, pinned] {
        assert!(machine.fs.demote_files(std::slice::from_ref(node), TIER, false)[0].is_ok());
    }
    machine.fs.set_xattr(pinned, PIN, b"1", XattrMode::Set, None, time(0)).expect("set");
    let far_content = content(2, FAR as usize);
    let mut block = [0; BLOCK];
    let mut device_reads = Vec::new();
    for second in 0..8 {
        let now = Some(time(1000 + second as usize));
        // Of each window a block that is not in DRAM yet, the last one first: in no order.
        for at in (0..FAR).rev().filter(|at| at % 16 == second) {
            machine.fs.read(far, at * BLOCK_SIZE, &mut block, now).expect("read");
            assert!(block[..] == far_content[at as usize * BLOCK..][..BLOCK], "block {at}");
            for node in [near, hot] {
                (0..8).for_each(|more| {
                    let offset = (at * 7 + more * 5) % 40 * BLOCK_SIZE;
                    machine.fs.read(node, offset, &mut block, now).expect("read");
                });
            }
        }
        machine.fs.read(pinned, 0, &mut block, now).expect("read");
        device_reads.push(machine.fs.tiers().traffic_of(TIER).reads);
        machine.fs.tick(NOW_MS + second * 1000 + 500, &Budget::default()).expect("blocks move");
        assert_eq!(machine.fs.status().raised > 0, second >= 3, "after {second}");
        assert_eq!((machine.fs.status().lowered, machine.below(hot)), (0, 40), "they are in balance");
    }
    assert!(device_reads[..4].is_sorted_by(|before, then| then - before >= FAR / 16), "{device_reads:?}");
    assert_eq!((machine.below(pinned), machine.below(near)), (1, 0));
    assert!(machine.below(far) <= FAR / 4, "{} blocks, of what is in DRAM", machine.below(far));
    // What came up was read once for that, and not again.
    assert_eq!(device_reads[5..], [device_reads[5]; 3]);
    let expected: Vec<_> = sizes.into_iter().enumerate().map(|(number, len)| content(number, len)).collect();
    drop(files);
    machine.crash(&expected);
}

/// A backup reads all that is cold, once.
fn what_a_disk_is_waited_for_once_stays<L: Layout>() {
    let options = MoverOptions { page_cache: 64 * BLOCK_SIZE, ..MoverOptions::default() };
    let machine = Machine::<L>::with(&[64 << 20], options);
    let files = machine.files([40, 1600]);
    assert!(machine.fs.demote_files(&files[1..], TIER, false)[0].is_ok());
    let mut block = [0; BLOCK];
    for second in 0..10 {
        let now = Some(time(1000 + second as usize));
        for at in (second * 160..second * 160 + 160).rev().step_by(16) {
            machine.fs.read(&files[1], at * BLOCK_SIZE, &mut block, now).expect("read");
            for more in 0..16 {
                machine.fs.read(&files[0], (at + more) * 7 % 40 * BLOCK_SIZE, &mut block, now).expect("read");
            }
        }
        machine.fs.tick(NOW_MS + second * 1000 + 500, &Budget::default()).expect("it looks");
    }
    assert_eq!((machine.fs.status().raised, machine.below(&files[1])), (0, 1600));
}

/// What cannot be read beside it, and nobody asked for, keeps nothing else from coming up.
fn what_a_disk_is_waited_for_comes_up_beside_what_cannot_be_read<L: Layout>() {
    const WINDOW: u64 = 16;
    let machine = Machine::<L>::with(&[64 << 20], MoverOptions { page_cache: 0, ..MoverOptions::default() });
    let files = machine.files([40, 20 * WINDOW as usize]);
    let [near, far] = &files[..] else { panic!("two files") };
    assert!(machine.fs.demote_files(std::slice::from_ref(far), TIER, false)[0].is_ok());
    // The last block of the fourth window.
    let bad = 4 * WINDOW - 1;
    let place = machine.fs.resolve(far, FileBlock(bad), 1).expect("resolve")[0];
    let Place::Tier { block, .. } = place.place else { panic!("{place:?}") };
    machine.disks[0].unreadable.lock().unwrap().push(block.0 + (bad - place.start.0));
    let mut block = [0; BLOCK];
    for second in 0..8 {
        let now = Some(time(1000 + second as usize));
        for window in (0..20).rev() {
            machine.fs.read(far, (window * WINDOW + second) * BLOCK_SIZE, &mut block, now).expect("read");
            for at in 0..40 {
                machine.fs.read(near, at * 7 % 40 * BLOCK_SIZE, &mut block, now).expect("read");
            }
        }
        machine.fs.tick(NOW_MS + second * 1000 + 500, &Budget::default()).expect("it looks");
    }
    let is_up = |at: u64| {
        let found = machine.fs.resolve(far, FileBlock(at), 1).expect("resolve");
        matches!(found[0].place, Place::Pm(_))
    };
    let there: Vec<u64> = (0..20 * WINDOW).filter(|at| !is_up(*at)).collect();
    assert!(there.iter().all(|at| at / WINDOW == bad / WINDOW) && there.contains(&bad), "{there:?}");
    assert!(there.len() < WINDOW as usize, "what was waited for itself can be read");
}

over_each_layout!(
    what_is_read_moves_into_dram_with_few_flushes,
    what_is_read_too_seldom_for_the_rule_stays,
    the_limit_holds_for_what_moves_together,
    what_a_disk_is_waited_for_comes_up_though_reads_are_in_balance,
    what_a_disk_is_waited_for_once_stays,
    what_a_disk_is_waited_for_comes_up_beside_what_cannot_be_read,
);
