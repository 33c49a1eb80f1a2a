//! Media errors in every structure: the operation that meets one fails, everything else goes on, and it is found, named
//! and never used again.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FileBlock, FileKind, Kind, Names, NewInode, Place, Timestamp,
    WriteAt,
};
use nacre_layout_log::check::{Repair, check, check_media, check_with};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, Node, ScrubStatus, mkfs};
use nacre_media::{Pm, SimPm};

type Fs = LogFs<SimPm>;

const SIZE: u64 = 16 << 20;
const LINE: u64 = 64;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now: now() }
}

fn mount(pm: &Arc<SimPm>) -> Fs {
    try_mount(pm).expect("mount")
}

fn try_mount(pm: &Arc<SimPm>) -> nacre_engine::Result<Fs> {
    let options = MountOptions { background: false, lanes: Some(1), ..MountOptions::default() };
    LogFs::mount(Arc::clone(pm), &options)
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

/// Two files and a directory with names, unmounted in order.
fn image() -> Arc<SimPm> {
    let pm = Arc::new(SimPm::new(SIZE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = mount(&pm);
    let root = fs.root();
    let dir = fs.create(&root, b"dir", &new(FileKind::Directory)).unwrap();
    for index in 0..200 {
        let file = fs.create(&dir, format!("name-{index}").as_bytes(), &new(FileKind::Regular)).unwrap();
        put(&fs, &file, 0, &[index as u8; 100]).unwrap();
    }
    for name in ["bad", "good"] {
        let file = fs.create(&root, name.as_bytes(), &new(FileKind::Regular)).unwrap();
        for block in 0..150 {
            put(&fs, &file, block * 2 * BLOCK_SIZE, &[name.as_bytes()[0]; 4096]).unwrap();
        }
    }
    drop((root, dir));
    fs.unmount().unwrap();
    pm
}

fn lookup(fs: &Fs, path: &str) -> nacre_engine::Result<Node> {
    path.split('/').try_fold(fs.root(), |dir, name| fs.lookup(&dir, name.as_bytes()))
}

/// Where a block of a file is.
fn place_of(pm: &Arc<SimPm>, path: &str, block: u64) -> u64 {
    let fs = mount(pm);
    let places = fs.resolve(&lookup(&fs, path).unwrap(), FileBlock(block), 1).unwrap();
    let Place::Pm(found) = places[0].place else { panic!("{places:?}") };
    fs.unmount().unwrap();
    found.offset()
}

/// Everything but `bad` is as it was, and can be changed.
fn the_rest_lives(fs: &Fs, what: &str) {
    let good = lookup(fs, "good").unwrap_or_else(|error| panic!("{what}: {error}"));
    for block in 0..150 {
        let bytes =
            read(fs, &good, block * 2 * BLOCK_SIZE, 4096).unwrap_or_else(|kind| panic!("{what}: {kind:?}"));
        assert!(bytes.iter().all(|&byte| byte == b'g'), "{what}");
    }
    put(fs, &good, 0, &[b'g'; 4096]).unwrap_or_else(|error| panic!("{what}: {error}"));
    let new =
        fs.create(&fs.root(), b"new", &new(FileKind::Regular)).unwrap_or_else(|e| panic!("{what}: {e}"));
    put(fs, &new, 0, b"new").unwrap();
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

#[test]
fn bad_data_is_an_error_of_its_range_and_never_used_again() {
    let pm = image();
    let at = place_of(&pm, "bad", 20);
    pm.poison(at + 128, LINE);
    let fs = mount(&pm);
    let bad = lookup(&fs, "bad").unwrap();
    let offset = 20 * BLOCK_SIZE;
    assert_eq!(read(&fs, &bad, offset, 4096), Err(Kind::Media));
    assert_eq!(
        read(&fs, &bad, offset - 8192, 16384),
        Err(Kind::Media),
        "less would look like the end of the file"
    );
    assert_eq!(read(&fs, &bad, offset, 128).unwrap(), [b'b'; 128], "before the line");
    assert_eq!(read(&fs, &bad, offset + 192, 1000).unwrap(), [b'b'; 1000], "behind it");
    assert_eq!(read(&fs, &bad, 40 * BLOCK_SIZE, 4096).unwrap(), [b'b'; 4096], "another block");
    the_rest_lives(&fs, "data");

    let status = scrub(&fs);
    assert!(status.finished && status.bad_blocks == 1, "{status:?}");
    let words = format!(
        "/bad (inode {}): a media error in bytes {} to {}",
        fs.id(&bad).number,
        offset + 128,
        offset + 192
    );
    assert_eq!(status.findings, [words], "{status:?}");
    // A whole block in its place heals the file; the old one goes out of use.
    put(&fs, &bad, offset, &[b'b'; 4096]).unwrap();
    assert_eq!(read(&fs, &bad, offset, 4096).unwrap(), [b'b'; 4096]);
    assert_eq!(place_now(&fs, &bad, 20).map(|place| place == at), Some(false));
    drop(bad);
    fill(&fs, at);
    fs.unmount().unwrap();
    for round in 0..2 {
        // Known again after a clean unmount, and after a crash.
        let fs = mount(&pm);
        assert_eq!(fs.scrub_status().bad_blocks, 1);
        fill(&fs, at);
        if round == 0 { fs.abandon() } else { fs.unmount().unwrap() }
    }
    assert!(check(&*pm, false).unwrap().problems.is_empty());
    assert_eq!(check(&*pm, false).unwrap().bad_blocks, 1);
}

fn place_now(fs: &Fs, node: &Node, block: u64) -> Option<u64> {
    match fs.resolve(node, FileBlock(block), 1).unwrap()[0].place {
        Place::Pm(block) => Some(block.offset()),
        _ => None,
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
fn fsck_names_bad_data_and_takes_it_out_of_use() {
    let pm = image();
    let at = place_of(&pm, "bad", 20);
    pm.poison(at + 64, 2 * LINE);
    let free = SIZE - BLOCK_SIZE;
    pm.poison(free, 1);
    assert!(check(&*pm, false).unwrap().problems.is_empty(), "structures are sound");
    let found = check_media(&*pm, false).unwrap();
    assert_eq!(found.new_blocks, 2);
    assert!(found.errors[0].contains("/bad (inode"), "{found:?}");
    assert!(found.errors[0].contains(&format!(
        "bytes {} to {}",
        20 * BLOCK_SIZE + 64,
        20 * BLOCK_SIZE + 128
    )));
    assert!(found.errors[2].contains(&format!("byte {free}, in no file")), "{found:?}");
    assert_eq!(check_media(&*pm, true).unwrap().new_blocks, 2);
    assert_eq!(check_media(&*pm, false).unwrap().new_blocks, 0, "they are known");
    assert_eq!(check(&*pm, false).unwrap().bad_blocks, 2);
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
                the_rest_lives(&fs, "superblock");
                let status = scrub(&fs);
                assert_eq!((status.repaired, status.bad_blocks), (1, 0), "{status:?}");
                fs.unmount().unwrap();
            } else {
                assert!(!check(&*pm, false).unwrap().is_sound());
                assert!(check_with(&*pm, Repair::Safe).unwrap().is_sound());
            }
            pm.read(offset, &mut [0; 4096]).expect("written anew");
            assert!(check(&*pm, false).unwrap().problems.is_empty());
        }
    }
}

/// The address of an inode in the only chunks of this image.
fn inode_address(pm: &SimPm, number: u64) -> u64 {
    let word = pm.load_u64(18 * BLOCK_SIZE + number / 256 * 8).unwrap();
    (word & ((1 << 47) - 1)) * BLOCK_SIZE + number % 256 * 256
}

fn log_pages(pm: &SimPm, number: u64) -> Vec<u64> {
    let mut next = pm.load_u64(inode_address(pm, number) + 40).unwrap();
    let mut pages = Vec::new();
    while next != 0 {
        let page = (next & ((1 << 48) - 1)) * BLOCK_SIZE;
        pages.push(page);
        next = pm.load_u64(page + 48).unwrap();
    }
    pages
}

#[test]
fn bad_metadata_is_an_error_of_its_file() {
    for what in ["header", "entry", "page header", "directory"] {
        let pm = image();
        let fs = mount(&pm);
        let number = fs.id(&lookup(&fs, "bad").unwrap()).number;
        let directory = fs.id(&lookup(&fs, "dir").unwrap()).number;
        fs.unmount().unwrap();
        let (pages, names) = (log_pages(&pm, number), log_pages(&pm, directory));
        let (at, path) = match what {
            "header" => (inode_address(&pm, number), "bad"),
            "entry" => (pages[1] + 20 * LINE, "bad"),
            "page header" => (pages[1], "bad"),
            _ => (names[1] + 10 * LINE, "dir/name-3"),
        };
        pm.poison(at, LINE);
        // After an unmount in order an inode is read when it is used.
        let fs = mount(&pm);
        assert_eq!(lookup(&fs, path).map(drop).map_err(|error| error.kind()), Err(Kind::Media), "{what}");
        the_rest_lives(&fs, what);
        let status = scrub(&fs);
        let owner = if what == "directory" { "/dir (inode" } else { "/bad (inode" };
        assert!(status.findings.iter().any(|finding| finding.starts_with(owner)), "{what}: {status:?}");
        fs.unmount().unwrap();

        let told = check(&*pm, false).unwrap();
        assert!(!told.is_sound(), "{what}");
        assert!(
            told.problems.iter().any(|p| p.what.contains(owner) || p.what.contains("/bad")),
            "{what}: {told:?}"
        );
        let report = check(&*pm, true).unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
        assert!(check(&*pm, false).unwrap().problems.is_empty(), "{what}");
        let fs = mount(&pm);
        the_rest_lives(&fs, what);
        let names = (0..200).filter(|index| lookup(&fs, &format!("dir/name-{index}")).is_ok()).count();
        assert_eq!(names, if what == "directory" { 199 } else { 200 });
        if let Ok(bad) = lookup(&fs, "bad") {
            let lost = (0..150)
                .filter(|block| read(&fs, &bad, block * 2 * BLOCK_SIZE, 4096).unwrap() != [b'b'; 4096]);
            assert!(lost.count() <= 1, "{what}");
        } else {
            panic!("{what}: the file is gone");
        }
        fs.unmount().unwrap();
    }
}

#[test]
fn a_crash_does_not_hide_bad_metadata() {
    let pm = image();
    let fs = mount(&pm);
    let number = fs.id(&lookup(&fs, "bad").unwrap()).number;
    fs.abandon();
    let page = log_pages(&pm, number)[1];
    pm.poison(page + 20 * LINE, LINE);
    let refused = try_mount(&pm).map(drop).expect_err("recovery cannot read it");
    assert!(refused.to_string().contains("fsck"), "{refused}");
    assert!(check(&*pm, true).unwrap().is_sound());
    the_rest_lives(&mount(&pm), "after the repair");
}

#[test]
fn a_damaged_list_of_bad_blocks_costs_no_more_than_its_words() {
    let pm = image();
    check_media(&*pm, true).unwrap();
    pm.poison(SIZE - 4096, 1);
    pm.poison(SIZE - 8192, 1);
    assert_eq!(check_media(&*pm, true).unwrap().new_blocks, 2);
    pm.poke(17 * BLOCK_SIZE, &[0x55; 8]);
    let fs = mount(&pm);
    assert_eq!(fs.scrub_status().bad_blocks, 1);
    fs.unmount().unwrap();
    let told = check(&*pm, false).unwrap();
    assert!(!told.is_sound() && told.problems[0].what.contains("list of bad blocks"), "{told:?}");
    assert!(check_with(&*pm, Repair::Safe).unwrap().is_sound());
    assert_eq!(check_media(&*pm, true).unwrap().new_blocks, 1, "found again");
    assert_eq!(check(&*pm, false).unwrap().bad_blocks, 2);
}

/// Order comes from sequence numbers, never from times: a clock that goes backwards changes nothing but the times.
#[test]
fn the_clock_may_go_backwards() {
    let pm = image();
    let fs = mount(&pm);
    let good = lookup(&fs, "good").unwrap();
    let earlier = |hours: i64| Timestamp::new(1_700_000_000 - hours * 3600, 0);
    for hour in 0..300 {
        let bytes = [hour as u8; 100];
        fs.write(&good, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, earlier(hour)).unwrap();
        let name = format!("at-{hour}");
        let new = NewInode { now: earlier(hour), ..new(FileKind::Regular) };
        fs.create(&fs.root(), name.as_bytes(), &new).unwrap();
        if hour > 0 {
            fs.unlink(&fs.root(), format!("at-{}", hour - 1).as_bytes(), earlier(hour)).unwrap();
        }
    }
    drop(good);
    fs.abandon();
    for _ in 0..2 {
        let fs = mount(&pm);
        let good = lookup(&fs, "good").unwrap();
        assert_eq!(read(&fs, &good, 0, 100).unwrap(), [(299 % 256) as u8; 100]);
        assert_eq!(fs.getattr(&good).unwrap().mtime, earlier(299));
        assert!(lookup(&fs, "at-299").is_ok() && lookup(&fs, "at-298").is_err());
        drop(good);
        fs.unmount().unwrap();
        assert!(check(&*pm, false).unwrap().problems.is_empty());
    }
}
