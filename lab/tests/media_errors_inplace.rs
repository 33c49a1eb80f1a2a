//! Media errors in the in-place layout: the operation that meets one fails, everything else goes on, and a scrub and a
//! check find it, name it, and see to it that it is not used again.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FileBlock, FileKind, Kind, Names, NewInode, Place, Timestamp,
    WriteAt, XattrMode,
};
use nacre_layout_inplace::anatomy::{self, Structure, structures};
use nacre_layout_inplace::check::{check, check_media};
use nacre_layout_inplace::{InplaceFs, MkfsOptions, MountOptions, Node, ScrubStatus, mkfs};
use nacre_media::{Pm, SimPm};

type Fs = InplaceFs<SimPm>;

const SIZE: u64 = 16 << 20;
const LINE: u64 = 64;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now: now() }
}

fn mount(pm: &Arc<SimPm>) -> Fs {
    let options = MountOptions { lanes: Some(1), ..MountOptions::default() };
    InplaceFs::mount(Arc::clone(pm), &options).expect("mount")
}

fn put(fs: &Fs, node: &Node, offset: u64, bytes: &[u8]) -> nacre_engine::Result<u64> {
    fs.write(node, WriteAt::Offset(offset), &[IoSlice::new(bytes)], Durability::Now, now())
}

fn read(fs: &Fs, node: &Node, offset: u64, len: usize) -> Result<Vec<u8>, Kind> {
    let mut bytes = vec![0; len];
    let count = fs.read(node, offset, &mut bytes, None).map_err(|error| error.kind())?;
    bytes.truncate(count);
    Ok(bytes)
}

fn lookup(fs: &Fs, path: &str) -> nacre_engine::Result<Node> {
    path.split('/').try_fold(fs.root(), |dir, name| fs.lookup(&dir, name.as_bytes()))
}

/// Two files, one of them with attributes, and a directory with names; unmounted in order.
fn image() -> Arc<SimPm> {
    let pm = Arc::new(SimPm::new(SIZE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = mount(&pm);
    let root = fs.root();
    let dir = fs.create(&root, b"dir", &new(FileKind::Directory)).unwrap();
    for index in 0..100 {
        fs.create(&dir, format!("name-{index}").as_bytes(), &new(FileKind::Regular)).unwrap();
    }
    for name in ["bad", "good"] {
        let file = fs.create(&root, name.as_bytes(), &new(FileKind::Regular)).unwrap();
        for block in 0..50 {
            put(&fs, &file, block * 2 * BLOCK_SIZE, &[name.as_bytes()[0]; 4096]).unwrap();
        }
        fs.set_xattr(&file, b"user.large", &[9; 9000], XattrMode::Set, None, now()).unwrap();
    }
    drop((root, dir));
    fs.unmount().unwrap();
    pm
}

fn place_of(fs: &Fs, path: &str, block: u64) -> u64 {
    let places = fs.resolve(&lookup(fs, path).unwrap(), FileBlock(block), 1).unwrap();
    let Place::Pm(found) = places[0].place else { panic!("{places:?}") };
    found.offset()
}

/// What is not `bad` is as it was, and can be changed.
fn the_rest_lives(fs: &Fs) {
    let good = lookup(fs, "good").unwrap();
    for block in 0..50 {
        assert_eq!(read(fs, &good, block * 2 * BLOCK_SIZE, 4096).unwrap(), [b'g'; 4096]);
    }
    let node = fs.create(&fs.root(), b"new", &new(FileKind::Regular)).unwrap();
    put(fs, &node, 0, b"new").unwrap();
    fs.unlink(&fs.root(), b"new", now()).unwrap();
}

fn scrub(fs: &Fs) -> ScrubStatus {
    fs.start_scrub(u64::MAX).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let status = fs.scrub_status();
        if !status.running {
            return status;
        }
        assert!(Instant::now() < end, "{status:?}");
        std::thread::yield_now();
    }
}

/// Takes all space; none of it is at the bad place.
fn fill(fs: &Fs, bad: u64) {
    let node = fs.create(&fs.root(), b"fill", &new(FileKind::Regular)).unwrap();
    let mut size = 0;
    for piece in [64, 1] {
        while put(fs, &node, size, &vec![1; piece * 4096]).is_ok() {
            size += piece as u64 * BLOCK_SIZE;
        }
    }
    assert!(size > SIZE / 2);
    for extent in fs.resolve(&node, FileBlock(0), size / BLOCK_SIZE).unwrap() {
        let Place::Pm(block) = extent.place else { continue };
        assert!(!(block.offset()..block.offset() + extent.len * BLOCK_SIZE).contains(&bad));
    }
    drop(node);
    fs.unlink(&fs.root(), b"fill", now()).unwrap();
}

#[test]
fn a_sound_file_system_has_no_findings() {
    let pm = image();
    let fs = mount(&pm);
    let status = scrub(&fs);
    assert!(status.finished && status.findings.is_empty(), "{status:?}");
    assert_eq!((status.bytes, status.inodes), (SIZE, 104));
    fs.unmount().unwrap();
    assert!(check_media(&*pm, false).unwrap().errors.is_empty());
}

#[test]
fn bad_data_is_an_error_of_its_range_and_never_used_again() {
    let pm = image();
    let fs = mount(&pm);
    let at = place_of(&fs, "bad", 20);
    pm.poison(at + 128, LINE);
    let bad = lookup(&fs, "bad").unwrap();
    let offset = 20 * BLOCK_SIZE;
    assert_eq!(read(&fs, &bad, offset, 4096), Err(Kind::Media));
    assert_eq!(read(&fs, &bad, offset, 128).unwrap(), [b'b'; 128], "before the line");
    assert_eq!(read(&fs, &bad, offset + 192, 1000).unwrap(), [b'b'; 1000], "behind it");
    the_rest_lives(&fs);
    let status = scrub(&fs);
    let number = fs.id(&bad).number;
    let words = format!("/bad (inode {number}): a media error in bytes {} to {}", offset + 128, offset + 192);
    assert_eq!((status.findings, status.bad_blocks), (vec![words], 1));
    drop(bad);
    fs.unlink(&fs.root(), b"bad", now()).unwrap();
    fill(&fs, at);
    fs.unmount().unwrap();
    // Known again after a clean unmount, and after a crash.
    for round in 0..2 {
        let fs = mount(&pm);
        assert_eq!(fs.scrub_status().bad_blocks, 1);
        fill(&fs, at);
        if round == 0 { fs.abandon() } else { fs.unmount().unwrap() }
    }
    let report = check(&*pm, false).unwrap();
    assert!(report.problems.is_empty() && report.bad_blocks == 1, "{report:?}");
}

#[test]
fn a_check_names_bad_data_and_takes_it_out_of_use() {
    let pm = image();
    let fs = mount(&pm);
    let at = place_of(&fs, "bad", 20);
    fs.unmount().unwrap();
    pm.poison(at + 64, 2 * LINE);
    let free = SIZE - BLOCK_SIZE;
    pm.poison(free, 1);
    assert!(check(&*pm, false).unwrap().problems.is_empty(), "structures are sound");
    let found = check_media(&*pm, false).unwrap();
    assert_eq!(found.new_blocks, 2);
    let range = |from: u64| format!("a media error in bytes {from} to {}", from + LINE);
    for (index, from) in [64, 128].into_iter().enumerate() {
        let words = &found.errors[index];
        assert!(
            words.starts_with("/bad (inode") && words.ends_with(&range(20 * BLOCK_SIZE + from)),
            "{found:?}"
        );
    }
    assert!(found.errors[2].contains(&format!("byte {free}, in no file")), "{found:?}");
    assert_eq!(check_media(&*pm, true).unwrap().new_blocks, 2);
    assert_eq!(check_media(&*pm, false).unwrap().new_blocks, 0, "they are known");
    let fs = mount(&pm);
    fill(&fs, free);
    fs.unmount().unwrap();
}

#[test]
fn either_superblock_is_mended_from_the_other() {
    for offset in [0, 64 << 10] {
        for mounted in [false, true] {
            let pm = image();
            let fs = mounted.then(|| mount(&pm));
            pm.poison(offset, 3 * LINE);
            if let Some(fs) = fs {
                the_rest_lives(&fs);
                let status = scrub(&fs);
                assert_eq!((status.repaired, status.bad_blocks), (1, 0), "{status:?}");
                fs.unmount().unwrap();
            } else {
                assert!(!check(&*pm, false).unwrap().is_sound());
                assert!(check(&*pm, true).unwrap().is_sound());
            }
            pm.read(offset, &mut [0; 4096]).expect("written anew");
            assert!(check(&*pm, false).unwrap().problems.is_empty());
        }
    }
}

/// Metadata that goes bad under a mount is found and named, and what needs it fails while the rest goes on. A mount that
/// may write refuses what says which blocks are in use; one that only reads shows the rest.
#[test]
fn bad_metadata_is_an_error_of_its_file() {
    let pm = image();
    let found = structures(&*pm).unwrap();
    for kind in [anatomy::Kind::Inode, anatomy::Kind::Node, anatomy::Kind::Directory, anatomy::Kind::Xattrs] {
        let pm = image();
        let fs = mount(&pm);
        let (dir, bad) =
            (fs.id(&lookup(&fs, "dir").unwrap()).number, fs.id(&lookup(&fs, "bad").unwrap()).number);
        let (owner, path) = if kind == anatomy::Kind::Directory { (dir, "/dir") } else { (bad, "/bad") };
        let of_owner = |structure: &&Structure| structure.kind == kind && structure.inode == owner;
        let place = found.iter().find(of_owner).unwrap_or_else(|| panic!("{kind:?} of {owner}"));
        pm.poison(place.offset, 1);
        the_rest_lives(&fs);
        let status = scrub(&fs);
        let named = |words: &String| words.starts_with(&format!("{path} (inode {owner}): "));
        assert!(status.findings.iter().any(named), "{kind:?}: {status:?}");
        fs.abandon();
        let words = check_media(&*pm, false).unwrap().errors;
        assert!(words.iter().any(named), "{kind:?}: {words:?}");
        assert!(!check(&*pm, false).unwrap().is_sound(), "{kind:?}");
        let options = MountOptions { lanes: Some(1), ..MountOptions::default() };
        let mounted = InplaceFs::mount(Arc::clone(&pm), &options);
        if kind == anatomy::Kind::Directory {
            let fs = mounted.expect("names say nothing of blocks");
            assert!((0..100).any(|at| lookup(&fs, &format!("dir/name-{at}")).is_err()));
            the_rest_lives(&fs);
            fs.abandon();
            continue;
        }
        let refused = mounted.err().unwrap_or_else(|| panic!("{kind:?}: mounted"));
        assert!(matches!(refused.kind(), Kind::Corrupt | Kind::Media), "{kind:?}: {refused}");
        let fs =
            InplaceFs::mount(Arc::clone(&pm), &MountOptions { read_only: true, ..options }).expect("mount");
        assert_eq!(read(&fs, &lookup(&fs, "good").unwrap(), 0, 100).unwrap(), [b'g'; 100]);
        fs.unmount().unwrap();
    }
}
