//! What users say of files: that they stay, and where they are to be.

use std::io::IoSlice;

use nacre_engine::{Data, Durability, FileKind, Kind, Names, Timestamp, WriteAt, XattrMode};
use nacre_mover::{Budget, PIN, TIER as PLACE};

use super::{Layout, Machine, Node, TIER, bytes_below, new_inode};

fn pinned_files_stay_and_the_mover_moves_as_much_as_it_is_let<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::<L>::new(true);
    let time = |at: i64| Timestamp::new(1_700_000_000 + at, 0);
    let new = |kind, at| new_inode(kind, time(at));
    let put = |dir: &Node<L>, at: i64| {
        let node = fs.create(dir, format!("{at}").as_bytes(), &new(FileKind::Regular, at)).expect("create");
        let bytes = vec![at as u8; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(at))
            .expect("write");
        node
    };
    let below = |node: &Node<L>| bytes_below(&fs, node);
    // Whatever is made in a pinned directory, directly or not, is pinned; and it is the oldest.
    let outer = fs.create(&fs.root(), b"kept", &new(FileKind::Directory, 0)).expect("create");
    fs.set_xattr(&outer, PIN, b"1", XattrMode::Set, None, time(0)).expect("set");
    let inner = fs.create(&outer, b"inner", &new(FileKind::Directory, 0)).expect("create");
    let kept: Vec<_> = (1..=40).map(|at| put(&inner, at)).collect();
    let others: Vec<_> = (41..=58).map(|at| put(&fs.root(), at)).collect();
    assert_eq!(fs.get_xattr(&kept[0], PIN).expect("inherited"), b"1");
    assert!(fs.get_xattr(&others[0], PIN).is_err());

    let now = |second: u64| 1_700_010_000_000 + 1000 * second;
    assert!(fs.usage() > fs.threshold(), "{} %", fs.usage());
    fs.pause(true);
    assert_eq!(fs.tick(now(0), &Budget::default()).expect("it pauses"), 0);
    assert!(fs.status().paused && fs.status().is_idle);
    fs.pause(false);
    // A group of 128 KiB more than that is possible.
    fs.limit(Some(FILE));
    assert!(!fs.status().is_idle);
    let moved = 4096 * fs.tick(now(10), &Budget::default()).expect("blocks move");
    assert!((FILE..=FILE + (128 << 10)).contains(&moved), "{moved}");
    assert_eq!(fs.tick(now(10), &Budget::default()).expect("no time passed"), 0);
    let more = 4096 * fs.tick(now(11), &Budget::default()).expect("blocks move");
    assert!((FILE - (256 << 10)..=FILE + (128 << 10)).contains(&more), "{more}");
    assert_eq!(others.iter().map(below).sum::<u64>(), moved + more);
    let status = fs.status();
    assert_eq!((status.moved, status.rate, status.is_idle), (moved + more, Some(FILE), false));

    fs.limit(None);
    fs.tick(now(20), &Budget::default()).expect("blocks move");
    assert!(fs.usage() > fs.threshold() && fs.status().is_idle, "nothing else can move");
    // A wait for the mover ended before what was just written had been looked at.
    let late = put(&fs.root(), 59);
    assert!(!fs.status().is_idle, "what was just written can move");
    assert_eq!(others.iter().map(below).sum::<u64>(), 18 * FILE);
    assert_eq!(kept.iter().map(below).sum::<u64>(), 0, "pinned");
    // Who needs space does not get theirs, either: what goes down is the others'.
    fs.pause(true);
    let more: Vec<_> = (100..140).map(|at| put(&fs.root(), at)).collect();
    assert_eq!(kept.iter().map(below).sum::<u64>(), 0, "pinned");
    fs.pause(false);
    fs.remove_xattr(&kept[3], PIN, time(1000)).expect("unpin");
    fs.tick(now(2000), &Budget::default()).expect("blocks move");
    assert_eq!((below(&kept[3]), below(&kept[4])), (FILE, 0));
    drop((outer, inner, kept, others, late, more));
    machine.unmount(fs);
}

/// Who sets the attribute does not wait, and nothing of it stays behind.
fn a_file_goes_where_its_attribute_says<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::<L>::new(true);
    let now = Timestamp::new(1_700_000_000, 0);
    let put = |name: &str| {
        let node =
            fs.create(&fs.root(), name.as_bytes(), &new_inode(FileKind::Regular, now)).expect("create");
        let bytes = vec![name.as_bytes()[0]; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, now).expect("write");
        node
    };
    let says = |node: &Node<L>| {
        String::from_utf8(fs.get_xattr(node, PLACE).expect("it says where it is")).expect("text")
    };
    let set =
        |node: &Node<L>, value: &str| fs.set_xattr(node, PLACE, value.as_bytes(), XattrMode::Set, None, now);
    let keep =
        |second: u64| fs.tick(1_700_010_000_000 + 1000 * second, &Budget::default()).expect("it keeps");
    let (one, gone) = (put("one"), put("gone"));
    assert_eq!(says(&one), "pm");
    set(&one, "1").expect("set");
    set(&gone, "1").expect("set");
    fs.unlink(&fs.root(), b"gone", now).expect("unlink");
    drop(gone);
    assert_eq!((says(&one).as_str(), fs.status().told, fs.status().is_idle), ("pm", 2, false));
    assert!(fs.list_xattrs(&one).expect("list").is_empty(), "it is not stored");
    assert_eq!(keep(0), FILE / 4096);
    assert_eq!((says(&one).as_str(), bytes_below(&fs, &one)), ("1", FILE));
    assert_eq!((fs.status().told, fs.status().is_idle, fs.status().refused), (0, true, None));
    // A block that is written is in memory, and the rest is where it was.
    fs.write(&one, WriteAt::Offset(0), &[IoSlice::new(&[7; 4096])], Durability::Now, now).expect("write");
    assert_eq!(says(&one), "pm,1");

    for wrong in ["pm,1", "2", ""] {
        assert_eq!(set(&one, wrong).expect_err("no place").kind(), Kind::InvalidInput, "{wrong:?}");
        let refused = fs.status().refused.expect("in words");
        assert!(refused.contains(&format!("{wrong:?}")), "{refused}");
    }
    let create = fs.set_xattr(&one, PLACE, b"pm", XattrMode::Create, None, now);
    assert_eq!(create.expect_err("it is there").kind(), Kind::Exists);
    let dir = fs.create(&fs.root(), b"dir", &new_inode(FileKind::Directory, now)).expect("create");
    assert_eq!(set(&dir, "pm").expect_err("a directory").kind(), Kind::InvalidInput);
    assert_eq!(fs.get_xattr(&dir, PLACE).expect_err("a directory").kind(), Kind::NoAttribute);

    // What was taken back stays; what was not moves while the mover is paused, and no faster than it may.
    set(&one, "pm").expect("set");
    fs.remove_xattr(&one, PLACE, now).expect("taken back");
    assert_eq!(fs.remove_xattr(&one, PLACE, now).expect_err("nothing waits").kind(), Kind::NoAttribute);
    assert_eq!(keep(1), 0);
    fs.pause(true);
    fs.limit(Some(FILE / 4));
    set(&one, "pm").expect("set");
    assert!((FILE / 4..=FILE / 4 + (128 << 10)).contains(&(4096 * keep(10))));
    assert_eq!((says(&one).as_str(), fs.status().told), ("pm,1", 1));
    for second in 11..16 {
        keep(second);
    }
    assert_eq!((says(&one).as_str(), fs.status().told), ("pm", 0));

    fs.tiers().detach(TIER, "it was taken offline");
    assert_eq!(set(&one, "1").expect_err("missing").kind(), Kind::DeviceLost);
    drop((one, dir));
    machine.unmount(fs);
}

over_each_layout!(
    pinned_files_stay_and_the_mover_moves_as_much_as_it_is_let,
    a_file_goes_where_its_attribute_says,
);
