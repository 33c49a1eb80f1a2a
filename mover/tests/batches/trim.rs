//! What nobody uses on a tier its device may forget; a test disk forgets it at once.

use nacre_engine::{BLOCK_SIZE, Block, Names, RenameMode, Tiered};
use nacre_media::block::BlockDevice;
use nacre_mover::Trimmed;

use crate::machine::{BLOCK, Machine, TIER, content, time};

const DISK: u64 = 4 << 20;

/// Blocks of the disk that hold something of these files.
fn found(machine: &Machine, contents: &[Vec<u8>]) -> usize {
    let mut bytes = vec![0; DISK as usize];
    machine.disks[0].read(0, &mut bytes).expect("read");
    let holds = |block: &&[u8]| contents.iter().any(|content| content.chunks(BLOCK).any(|one| one == *block));
    bytes.chunks(BLOCK).filter(holds).count()
}

#[test]
fn what_was_removed_is_forgotten_and_nothing_else() {
    let machine = Machine::new(DISK);
    let files = machine.files([3, 4, 5, 6]);
    let expected: Vec<_> = (0..4).map(|number| content(number, number + 3)).collect();
    machine.fs.move_files_down(&files, TIER, true).into_iter().for_each(|moved| assert!(moved.is_ok()));
    machine.fs.tiers().pages().drop_tier(TIER);
    assert_eq!(found(&machine, &expected), 18);
    for number in ["1", "3"] {
        machine.fs.unlink(&machine.fs.root(), number.as_bytes(), time(9)).expect("unlink");
    }
    let (before, gone) = (machine.used(TIER), [expected[1].clone(), expected[3].clone()]);
    // They are in use as long as they are open.
    assert!(before == 18 && machine.fs.trim(TIER, Block(0), 0, &mut || true).is_ok());
    assert_eq!(found(&machine, &gone), 10);
    let mut files = files;
    files.remove(3);
    files.remove(1);
    // Who changes a name next frees them.
    machine
        .fs
        .rename(&machine.fs.root(), b"0", &machine.fs.root(), b"other", RenameMode::Replace, time(9))
        .expect("rename");
    let free = machine.fs.layout().tier_space(TIER).expect("space").free;
    assert_eq!(machine.used(TIER), 8);
    let done = machine.fs.trim(TIER, Block(0), 0, &mut || true).expect("trim");
    assert_eq!(done, Trimmed { bytes: free * BLOCK_SIZE, next: None });
    assert_eq!((machine.used(TIER), found(&machine, &gone)), (8, 0));
    for (node, number) in files.iter().zip([0, 2]) {
        assert!(machine.read(node) == expected[number], "file {number}");
    }
    // All of it can be used again.
    let last = machine.file(4, 40);
    machine.fs.move_files_down(&[last], TIER, true).remove(0).expect("move");
    assert_eq!(machine.used(TIER), 48);
}

/// Who asks in parts is told where to go on, and short runs are left out.
#[test]
fn it_goes_on_where_it_ended() {
    let machine = Machine::new(DISK);
    let files = machine.files([1; 9]);
    machine.fs.move_files_down(&files, TIER, true).into_iter().for_each(|moved| assert!(moved.is_ok()));
    let mut kept = Vec::new();
    for (number, node) in files.into_iter().enumerate() {
        if number % 2 == 0 {
            kept.push(node);
        } else {
            drop(node);
            machine.fs.unlink(&machine.fs.root(), number.to_string().as_bytes(), time(9)).expect("unlink");
        }
    }
    let space = machine.fs.layout().tier_space(TIER).expect("space");
    assert_eq!(space.blocks - space.free, 5);
    let (mut next, mut told, mut calls) = (Some(Block(0)), 0, 0);
    while let Some(from) = next {
        let mut turns = 0;
        let goes_on = &mut || std::mem::replace(&mut turns, 1) == 0;
        let done = machine.fs.trim(TIER, from, 2 * BLOCK_SIZE, goes_on).expect("trim");
        assert!(done.next.is_none_or(|next| next > from), "{done:?} from {from:?}");
        (told, next, calls) = (told + done.bytes, done.next, calls + 1);
    }
    // Each of the four that were removed lies alone.
    assert_eq!(told, (space.free - 4) * BLOCK_SIZE);
    assert!(calls > 16, "a sixteenth of what is free at the most: {calls}");
    assert_eq!(machine.fs.layout().tier_space(TIER).expect("space").free, space.free);
    assert!(machine.fs.trim(TIER + 1, Block(0), 0, &mut || true).is_err(), "there is no such tier");
}
