//! Logs that are compacted: nothing of the files changes, over mounts and crashes, and what is free is free.

use nacre_engine::{
    Attr, BLOCK_SIZE, CompactedLog, Data, Extents, FallocateMode, Kind, LogOffload, Names, SetAttr, XattrMode,
};
use nacre_layout_log::anatomy::{self, structures};
use nacre_layout_log::check::check;
use nacre_media::Pm;

use super::{BLOCK, Fs, Machine, bytes, create, mount, now, put};

type Node = nacre_layout_log::Node;
/// Names and values.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Blocks that all portions together have freed, and their number.
fn compact(fs: &Fs, node: &Node) -> (u64, usize) {
    let (mut freed, mut portions, mut begin) = (0, 0, true);
    loop {
        let free = fs.stat().free;
        let went: CompactedLog = fs.compact_log(node, std::mem::take(&mut begin)).unwrap();
        assert_eq!(fs.stat().free - free, went.freed);
        freed += went.freed;
        portions += 1;
        if went.is_done {
            return (freed, portions);
        }
    }
}

/// All that is to be seen of a file, but for the number of changes.
fn seen(machine: &Machine, fs: &Fs, node: &Node) -> (Vec<u8>, Attr, Xattrs) {
    let mut xattrs = fs.list_xattrs(node).unwrap();
    xattrs.sort();
    let values = xattrs.into_iter().map(|name| {
        let value = fs.get_xattr(node, &name).unwrap();
        (name, value)
    });
    let values = values.collect();
    (machine.content(fs, node), Attr { change: 0, ..fs.getattr(node).unwrap() }, values)
}

/// Compacts a log and looks whether all is as it was, here and after a mount.
fn compacts(machine: &Machine, fs: Fs, node: Node, crash: bool) -> (Fs, Node, u64) {
    fs.sync(&node).unwrap();
    let before = seen(machine, &fs, &node);
    let (freed, _) = compact(&fs, &node);
    assert!(seen(machine, &fs, &node) == before);
    assert_eq!(compact(&fs, &node), (0, 1), "once is enough");
    let change = fs.getattr(&node).unwrap().change;
    let name = b"file";
    drop(node);
    let fs = machine.remount(fs, crash);
    let node = fs.lookup(&fs.root(), name).unwrap();
    assert!(seen(machine, &fs, &node) == before);
    assert_eq!(fs.getattr(&node).unwrap().change, change, "numbers go on");
    (fs, node, freed)
}

#[test]
fn what_is_superseded_goes_and_what_lies_together_is_joined() {
    for crash in [false, true] {
        let (machine, fs) = Machine::new();
        let node = create(&fs, "file");
        // Every other block is written a hundred times, by turns: the pages are half dead, and the rest is in pieces.
        put(&fs, &node, 0, &bytes(200 * BLOCK, 1)).unwrap();
        for turn in 0..100 {
            for block in (0..200).step_by(20) {
                put(&fs, &node, block * BLOCK_SIZE, &bytes(BLOCK, turn)).unwrap();
            }
        }
        let (fs, node, freed) = compacts(&machine, fs, node, crash);
        assert!(freed >= 1, "{freed} pages");
        // It goes on as any log.
        put(&fs, &node, 5, &bytes(3 * BLOCK, 9)).unwrap();
        let (fs, node, _) = compacts(&machine, fs, node, !crash);
        let change = SetAttr { size: Some(7 * BLOCK_SIZE + 3), ..SetAttr::default() };
        fs.setattr(&node, &change, now(5)).unwrap();
        let (fs, node, _) = compacts(&machine, fs, node, crash);
        fs.unlink(&fs.root(), b"file", now(6)).unwrap();
        drop((node, fs));
    }
}

#[test]
fn a_log_of_little_goes_back_into_its_inode() {
    let (machine, fs) = Machine::new();
    let node = create(&fs, "file");
    put(&fs, &node, 0, &bytes(40 * BLOCK, 2)).unwrap();
    for turn in 0..70 {
        put(&fs, &node, 3 * BLOCK_SIZE, &bytes(BLOCK, turn)).unwrap();
    }
    machine.move_down(&fs, &node, 0, 40);
    let (fs, node, freed) = compacts(&machine, fs, node, true);
    assert!(freed >= 1);
    // A name, an inode, blocks of a tier: nothing else is in use but the directory's page and the chunk.
    let free = fs.stat().free;
    fs.unlink(&fs.root(), b"file", now(3)).unwrap();
    drop(node);
    assert_eq!(fs.stat().free, free, "no page was left");
    // The lines are used as those of a new file.
    let node = create(&fs, "file");
    put(&fs, &node, 0, &bytes(2 * BLOCK, 2)).unwrap();
    machine.move_down(&fs, &node, 0, 1);
    fs.set_xattr(&node, b"user.x", &[7; 90], XattrMode::Set, None, now(4)).unwrap();
    for turn in 0..9 {
        put(&fs, &node, BLOCK_SIZE, &bytes(BLOCK, turn)).unwrap();
    }
    let (fs, node, freed) = compacts(&machine, fs, node, false);
    // An attribute of three lines and two entries for blocks are more than fit.
    assert_eq!(freed, 0);
    fs.remove_xattr(&node, b"user.x", now(5)).unwrap();
    put(&fs, &node, BLOCK_SIZE, &bytes(BLOCK, 9)).unwrap();
    let (fs, node, freed) = compacts(&machine, fs, node, true);
    assert_eq!(freed, 1);
    let (fs, node, _) = {
        put(&fs, &node, 0, &bytes(BLOCK, 8)).unwrap();
        fs.fallocate(&node, FallocateMode::PunchHole, 0, BLOCK_SIZE, now(6)).unwrap();
        compacts(&machine, fs, node, true)
    };
    drop((node, fs));
}

#[test]
fn a_long_log_is_compacted_in_portions() {
    let (machine, fs) = Machine::new();
    let node = create(&fs, "file");
    // One run of blocks, which are written one by one, of each hundred the even ones first: neighbours are far from each other
    // in the log.
    let blocks = 2000;
    fs.fallocate(&node, FallocateMode::Allocate, 0, blocks * BLOCK_SIZE, now(1)).unwrap();
    for hundred in 0..blocks / 100 {
        for block in (0..100).step_by(2).chain((1..100).step_by(2)) {
            put(&fs, &node, (100 * hundred + block) * BLOCK_SIZE, &bytes(BLOCK, block as u8)).unwrap();
        }
    }
    let before = seen(&machine, &fs, &node);
    let (freed, portions) = compact(&fs, &node);
    assert!(portions >= 2 && freed >= 20, "{freed} pages in {portions} portions");
    // Longer again.
    for block in (0..blocks).step_by(2).chain((0..blocks).step_by(2)) {
        put(&fs, &node, block * BLOCK_SIZE, &before.0[block as usize * BLOCK..][..BLOCK]).unwrap();
    }
    // Between two portions others write.
    put(&fs, &node, 0, &before.0[..BLOCK]).unwrap();
    let mut begin = true;
    let mut turn = 0;
    while !fs.compact_log(&node, std::mem::take(&mut begin)).unwrap().is_done {
        put(&fs, &node, turn * BLOCK_SIZE, &before.0[turn as usize * BLOCK..][..BLOCK]).unwrap();
        fs.fallocate(&node, FallocateMode::PunchHole, (blocks + 9) * BLOCK_SIZE, 1, now(7)).unwrap();
        turn += 1;
    }
    assert!(turn > 0 && machine.content(&fs, &node) == before.0);
    let (fs, node, _) = compacts(&machine, fs, node, true);
    assert!(machine.content(&fs, &node) == before.0);
    drop((node, fs));
}

/// Random changes of a file, some of them of where its blocks are, and compactions of its log, against what it should hold.
#[test]
fn random_changes_and_compactions() {
    for seed in 1..=12u64 {
        println!("seed {seed}");
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (machine, mut fs) = Machine::new();
        let mut node = create(&fs, "file");
        let mut model: Vec<u8> = Vec::new();
        let grow = |model: &mut Vec<u8>, len: usize| model.resize(model.len().max(len), 0);
        for step in 0..400 {
            let (at, len) = (random(40) as usize * BLOCK, (1 + random(3)) as usize * BLOCK);
            match random(12) {
                0..=4 => {
                    let content = bytes(len, step as u8);
                    put(&fs, &node, at as u64, &content).unwrap();
                    grow(&mut model, at + len);
                    model[at..at + len].copy_from_slice(&content);
                }
                5 => {
                    machine.move_down(&fs, &node, (at / BLOCK) as u64, (len / BLOCK) as u64);
                }
                6 => machine.bring_up(&fs, &node, (at / BLOCK) as u64, (len / BLOCK) as u64),
                7 => {
                    let size = SetAttr { size: Some(at as u64), ..SetAttr::default() };
                    fs.setattr(&node, &size, now(step)).unwrap();
                    model.resize(at, 0);
                }
                8 => {
                    fs.fallocate(&node, FallocateMode::PunchHole, at as u64, len as u64, now(step)).unwrap();
                    let end = model.len();
                    model[at.min(end)..(at + len).min(end)].fill(0);
                }
                9 => {
                    let name = format!("user.{}", random(3));
                    let value = vec![step as u8; random(100) as usize];
                    fs.set_xattr(&node, name.as_bytes(), &value, XattrMode::Set, None, now(step)).unwrap();
                }
                10 => {
                    let name = format!("user.{}", random(3));
                    let done = fs.remove_xattr(&node, name.as_bytes(), now(step));
                    assert!(done.is_ok() || done.unwrap_err().kind() == Kind::NoAttribute);
                }
                _ if random(3) > 0 => {
                    compact(&fs, &node);
                }
                _ => (fs, node, _) = compacts(&machine, fs, node, random(2) == 0),
            }
            if step % 16 == 0 {
                assert!(machine.content(&fs, &node) == model, "step {step}");
            }
        }
        (fs, node, _) = compacts(&machine, fs, node, true);
        assert!(machine.content(&fs, &node) == model);
        drop((node, fs));
    }
}

/// Pages that a log leaves when it goes back into its inode validate still: where the head was damaged, they were taken for
/// the log.
#[test]
fn what_a_log_has_left_behind_is_not_taken_for_it() {
    let (machine, fs) = Machine::new();
    let node = create(&fs, "file");
    for block in [0, 2, 4, 6] {
        put(&fs, &node, block * BLOCK_SIZE, &bytes(BLOCK, 4)).unwrap();
    }
    put(&fs, &node, 0, &bytes(7 * BLOCK, 5)).unwrap();
    assert_eq!(compact(&fs, &node).0, 1);
    // In a line, and in no block that the page was in.
    fs.setattr(&node, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, now(2)).unwrap();
    let number = fs.id(&node).number;
    // What the last name of a directory leads to may be torn.
    drop((create(&fs, "last"), node));
    fs.abandon();
    let memory = &*machine.memory;
    let is_left = |block: u64| {
        let mut header = [0; 16];
        memory.read(block * BLOCK_SIZE, &mut header).unwrap();
        &header[4..8] == b"nlpg" && header[8..] == number.to_le_bytes()
    };
    assert!((0..memory.len() / BLOCK_SIZE).any(is_left));
    let all = structures(memory).unwrap();
    let head = all.iter().find(|one| one.kind == anatomy::Kind::Head && one.inode == number).unwrap();
    let garbled = memory.copy(head.offset, &0x1234_5678_9abc_def0u64.to_le_bytes()).unwrap();
    memory.fence(garbled);
    let report = check(memory, true).unwrap();
    assert!(report.is_sound() && report.problems.len() == 1, "{:?}", report.problems);
    let fs = mount(&machine.memory);
    let node = fs.lookup(&fs.root(), b"file").unwrap();
    assert_eq!(fs.getattr(&node).unwrap().mode, 0o600);
    assert!(machine.content(&fs, &node) == bytes(7 * BLOCK, 5));
}

#[test]
fn only_files_have_logs_to_compact() {
    let (_machine, fs) = Machine::new();
    assert!(fs.has_logs());
    assert_eq!(fs.compact_log(&fs.root(), true).unwrap_err().kind(), Kind::IsDirectory);
}
