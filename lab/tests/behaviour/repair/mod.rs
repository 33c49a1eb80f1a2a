//! fsck on damaged images: for each structure, what is found, what a repair makes of it, and that it touches nothing
//! else.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FallocateMode, FileKind, LogOffload, Names, NewInode, RenameMode,
    Tier, TierChange, TierState, TierTable, Timestamp, WriteAt, XattrMode,
};
use nacre_layout_log::check::{CheckReport, Repair, check, check_with};
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, Node, mkfs};
use nacre_media::crash::{Replay, Sampling};
use nacre_media::sim::{Defect, Event, Site, StoreKind};
use nacre_media::{Image, Pm, SimPm};

mod crashed;

type Fs = LogFs<SimPm>;

const SIZE: u64 = 16 << 20;
const LINE: usize = 64;
const BLOCK: usize = BLOCK_SIZE as usize;
const FIRST_DATA: usize = 19 * BLOCK;

fn at(secs: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + secs, 5)
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode { kind, mode: 0o640, uid: 3, gid: 4, rdev: 0, target: b"", xattrs: &[], now: at(0) }
}

fn mount(pm: &Arc<SimPm>) -> Fs {
    let options = MountOptions { background: false, lanes: Some(1), ..MountOptions::default() };
    LogFs::mount(Arc::clone(pm), &options).expect("mount")
}

fn put(fs: &Fs, node: &Node, offset: u64, bytes: &[u8]) {
    fs.write(node, WriteAt::Offset(offset), &[IoSlice::new(bytes)], Durability::Now, at(1)).expect("write");
}

fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) + seed * 7 + i / 251) as u8 | 1).collect()
}

/// A tree in which every structure occurs.
fn populate(fs: &Fs) {
    let root = fs.root();
    let many = fs.create(&root, b"many", &new(FileKind::Directory)).unwrap();
    let deep = fs.create(&many, b"deep", &new(FileKind::Directory)).unwrap();
    for index in 0..300usize {
        let name = format!("file-{index}-{}", "x".repeat(index % 50));
        let node = fs.create(&many, name.as_bytes(), &new(FileKind::Regular)).unwrap();
        put(fs, &node, 0, &content(index, 100 * (index % 9)));
    }
    let written = fs.create(&deep, b"written", &new(FileKind::Regular)).unwrap();
    for index in 0..200usize {
        put(fs, &written, (index * 2 * BLOCK) as u64, &content(index, 3000));
    }
    fs.fallocate(&written, FallocateMode::PunchHole, 40 * BLOCK_SIZE, 8 * BLOCK_SIZE, at(2)).unwrap();
    let small = fs.create(&deep, b"small", &new(FileKind::Regular)).unwrap();
    put(fs, &small, 0, b"small");
    fs.set_xattr(&small, b"user.large", &content(3, 5000), XattrMode::Set, None, at(3)).unwrap();
    fs.link(&small, &root, b"linked", at(3)).unwrap();
    let link = NewInode { target: b"many/deep", ..new(FileKind::Symlink) };
    fs.create(&root, b"link", &link).unwrap();
    fs.rename(&many, b"file-7-xxxxxxx", &deep, b"moved", RenameMode::Replace, at(4)).unwrap();
    for index in 20..40usize {
        fs.unlink(&many, format!("file-{index}-{}", "x".repeat(index % 50)).as_bytes(), at(5)).unwrap();
    }
}

/// An image that was unmounted in order, and its files.
fn image() -> (Vec<u8>, BTreeMap<String, File>) {
    image_of(|_| {})
}

/// The same, with more in it.
fn image_of(more: impl FnOnce(&Fs)) -> (Vec<u8>, BTreeMap<String, File>) {
    let pm = Arc::new(SimPm::new(SIZE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = mount(&pm);
    populate(&fs);
    more(&fs);
    let files = walk(&fs).expect("all can be read");
    fs.unmount().unwrap();
    (pm.snapshot(), files)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    inode: u64,
    kind: FileKind,
    content: Vec<u8>,
}

/// Everything below the root.
fn walk(fs: &Fs) -> nacre_engine::Result<BTreeMap<String, File>> {
    let mut files = BTreeMap::new();
    let mut pending = vec![(String::new(), fs.root())];
    while let Some((path, node)) = pending.pop() {
        let attr = fs.getattr(&node)?;
        let mut content = Vec::new();
        match attr.kind {
            FileKind::Regular => {
                content = vec![0; attr.size as usize];
                assert_eq!(fs.read(&node, 0, &mut content, None)?, content.len());
            }
            FileKind::Symlink => content = fs.read_link(&node)?,
            _ => {}
        }
        for name in fs.list_xattrs(&node)? {
            content.extend(fs.get_xattr(&node, &name)?);
        }
        if attr.kind == FileKind::Directory {
            let mut names = Vec::new();
            fs.read_dir(&node, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                ControlFlow::Continue(())
            })?;
            for name in names {
                let child = fs.lookup(&node, &name)?;
                pending.push((format!("{path}/{}", String::from_utf8_lossy(&name)), child));
            }
        }
        if !path.is_empty() {
            files.insert(path, File { inode: attr.id.number, kind: attr.kind, content });
        }
    }
    Ok(files)
}

fn words(report: &CheckReport) -> String {
    report.problems.iter().map(|problem| format!("  {problem:?}\n")).collect()
}

/// Repairs a damaged image and looks at what became of it. What no problem names must be as it was; what lost its name
/// must be in lost+found. `lost` is how many files may be missing or changed.
fn mend(what: &str, bytes: &[u8], before: &BTreeMap<String, File>, lost: usize) -> CheckReport {
    let pm = Arc::new(SimPm::from_image(bytes));
    let told = check(&*pm, false).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(!told.is_sound(), "{what}: nothing was found");
    assert_eq!(pm.snapshot(), bytes, "{what}: a check changed something");
    let report = check(&*pm, true).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.is_sound(), "{what}: not repaired:\n{}", words(&report));
    assert!(!report.problems.is_empty(), "{what}: repaired, and nothing said");
    let again = check(&*pm, false).unwrap();
    assert!(again.problems.is_empty(), "{what}: after the repair:\n{}", words(&again));
    let fs = mount(&pm);
    let after = walk(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let by_inode: BTreeMap<u64, &File> = after.values().map(|file| (file.inode, file)).collect();
    let mut gone = Vec::new();
    for (path, file) in before {
        let named = report.problems.iter().any(|problem| problem.what.contains(path.as_str()));
        let intact = after.get(path) == Some(file);
        let found = by_inode.get(&file.inode).is_some_and(|found| **found == *file);
        if !intact && !found {
            assert!(named, "{what}: {path} is not what it was, and nobody says so:\n{}", words(&report));
            gone.push(path);
        }
    }
    assert!(gone.len() <= lost, "{what}: lost {gone:?}:\n{}", words(&report));
    use_it(what, &pm, fs, &after);
    report
}

/// Writes to the repaired file system, and removes everything.
fn use_it(what: &str, pm: &Arc<SimPm>, fs: Fs, files: &BTreeMap<String, File>) {
    let root = fs.root();
    let node = fs.create(&root, b"written later", &new(FileKind::Regular)).unwrap();
    put(&fs, &node, 0, &content(9, 50_000));
    fs.unlink(&root, b"written later", at(9)).unwrap();
    drop(node);
    for (path, file) in files.iter().rev() {
        let (dir, name) = path.rsplit_once('/').unwrap();
        let dir =
            dir.split('/').skip(1).fold(root.clone(), |dir, name| fs.lookup(&dir, name.as_bytes()).unwrap());
        let removed = match file.kind {
            FileKind::Directory => fs.rmdir(&dir, name.as_bytes(), at(9)),
            _ => fs.unlink(&dir, name.as_bytes(), at(9)),
        };
        removed.unwrap_or_else(|error| panic!("{what}: remove {path}: {error}"));
    }
    assert!(fs.stat().free + 40 > fs.stat().blocks, "{what}: {:?}", fs.stat());
    drop(root);
    fs.unmount().unwrap();
    assert!(check(&**pm, false).unwrap().problems.is_empty(), "{what}: when all is removed");
}

fn magic(image: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(image[offset + 4..offset + 8].try_into().unwrap())
}

fn number(image: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(image[offset..offset + 8].try_into().unwrap())
}

/// Where the log pages of an inode are, forgotten ones included.
fn pages(image: &[u8], inode: u64) -> Vec<usize> {
    let is_page = |&offset: &usize| magic(image, offset) == 0x6770_6c6e && number(image, offset + 8) == inode;
    (FIRST_DATA..image.len()).step_by(BLOCK).filter(is_page).collect()
}

/// The pages that the log of an inode has now, in order.
fn log(image: &[u8], inode: u64) -> Vec<usize> {
    let mut next = number(image, address(image, inode) + 40);
    let mut log = Vec::new();
    while next != 0 {
        let page = (next & ((1 << 48) - 1)) as usize * BLOCK;
        log.push(page);
        next = number(image, page + 48);
    }
    log
}

/// Where an inode is; the chunks of this image are each in one piece.
fn address(image: &[u8], inode: u64) -> usize {
    let word = number(image, 18 * BLOCK + inode as usize / 256 * 8);
    (word & ((1 << 47) - 1)) as usize * BLOCK + inode as usize % 256 * 256
}

fn garble(bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte ^= 0x5a ^ (index as u8).wrapping_mul(37);
    }
}

#[test]
fn a_flipped_bit_in_any_structure_is_turned_back() {
    let (image, files) = image();
    let written = files["/many/deep/written"].inode;
    let many = files["/many"].inode;
    let small = files["/many/deep/small"].inode;
    let page = log(&image, written)[1];
    let cases = [
        ("an entry of a file", page + 5 * LINE + 30),
        ("the number of lines of an entry", page + 7 * LINE + 6),
        ("the header of a page", page + 24),
        ("a link between pages", page + 49),
        ("the link at the end of a log", *log(&image, written).last().unwrap() + 50),
        ("an entry of a directory", log(&image, many)[1] + 5 * LINE + 45),
        ("the header of an inode", address(&image, small) + 12),
        ("the generation of an inode", address(&image, small) + 8),
        ("the head of a log", address(&image, written) + 41),
        ("the head of a log that has no page", address(&image, small) + 43),
        ("an entry in an inode", address(&image, small) + LINE + 20),
        ("a word of the chunk table", 18 * BLOCK + 1),
    ];
    for (what, offset) in cases {
        let mut damaged = image.clone();
        damaged[offset] ^= 0x10;
        // What loses nothing is repaired by -p, too.
        let pm = SimPm::from_image(&damaged);
        let report = check_with(&pm, Repair::Safe).unwrap();
        assert!(report.is_sound(), "{what}:\n{}", words(&report));
        mend(what, &damaged, &files, 0);
    }
}

#[test]
fn a_lost_entry_costs_what_it_said() {
    let (image, files) = image();
    let written = files["/many/deep/written"].inode;
    let page = log(&image, written)[1];
    let mut damaged = image.clone();
    // The data checksum and what follows: the range can still be read.
    garble(&mut damaged[page + 9 * LINE + 40..page + 10 * LINE]);
    nothing_is_written(&damaged);
    let report = mend("a write", &damaged, &files, 1);
    let told = words(&report);
    assert!(told.contains("/many/deep/written (inode") && told.contains("a write of bytes"), "{told}");

    // Of a file with a lost write everything else is there.
    let pm = Arc::new(SimPm::from_image(&damaged));
    check(&*pm, true).unwrap();
    let after = walk(&mount(&pm)).unwrap();
    let (old, new) = (&files["/many/deep/written"].content, &after["/many/deep/written"].content);
    assert_eq!(old.len(), new.len());
    let differing: Vec<usize> = (0..old.len() / BLOCK)
        .filter(|block| old[block * BLOCK..][..BLOCK] != new[block * BLOCK..][..BLOCK])
        .collect();
    assert_eq!(differing.len(), 1, "one block is lost: {differing:?}");
    assert!(new[differing[0] * BLOCK..][..BLOCK].iter().all(|&byte| byte == 0), "and reads as zeros");

    // A number that is damaged with it puts nothing behind it out of order.
    let mut more = damaged.clone();
    more[page + 9 * LINE + 9] ^= 0x3;
    let report = mend("a write and its number", &more, &files, 1);
    let told = words(&report);
    assert!(told.contains("a write of bytes") && !told.contains("out of order"), "{told}");

    // A file whose name is lost is in lost+found.
    let many = files["/many"].inode;
    let mut damaged = image.clone();
    let page = log(&image, many)[1];
    garble(&mut damaged[page + 3 * LINE..page + 8 * LINE]);
    let report = mend("names", &damaged, &files, 0);
    assert!(words(&report).contains("/lost+found"), "{}", words(&report));
}

/// What would give something up is not begun by a repair that must not.
fn nothing_is_written(damaged: &[u8]) {
    let pm = SimPm::from_image(damaged);
    let report = check_with(&pm, Repair::Safe).unwrap();
    assert!(report.problems.iter().any(|problem| problem.loses), "{}", words(&report));
    assert!(report.problems.iter().all(|problem| !problem.repaired), "{}", words(&report));
    assert_eq!(pm.snapshot(), damaged, "-p gives nothing up");
}

/// Where a name was lost, a repair that was to lose nothing wrote over the file that had it.
#[test]
fn what_loses_nothing_waits_for_what_does() {
    for (image, files) in [image(), crashed::renamed()] {
        let mut damaged = image.clone();
        let page = log(&image, files["/many"].inode)[1];
        garble(&mut damaged[page + 3 * LINE..page + 8 * LINE]);
        damaged[log(&image, files["/many/deep/written"].inode)[1] + 5 * LINE + 30] ^= 0x10;
        nothing_is_written(&damaged);
        mend("a name and a bit", &damaged, &files, 0);
    }
}

#[test]
fn a_lost_page_costs_its_entries() {
    let (image, files) = image();
    let many = files["/many"].inode;
    let written = files["/many/deep/written"].inode;
    for inode in [many, written] {
        let chain = log(&image, inode);
        assert!(chain.len() > 3, "{chain:?}");
        for (index, &page) in chain.iter().enumerate() {
            let mut damaged = image.clone();
            garble(&mut damaged[page..page + BLOCK]);
            // All names in the page, or the file.
            mend(&format!("page {index} of inode {inode}"), &damaged, &files, 1);
            let mut damaged = image.clone();
            garble(&mut damaged[page..page + LINE]);
            mend(&format!("the header of page {index} of inode {inode}"), &damaged, &files, 1);
            let mut damaged = image.clone();
            garble(&mut damaged[page + 48..page + 56]);
            mend(&format!("the link of page {index} of inode {inode}"), &damaged, &files, 1);
        }
    }
}

/// All entries of a log that was gathered have one number, and so have its pages: behind one whose link was lost the rest
/// seemed to be no part of it, and was dropped as if nothing was lost.
#[test]
fn a_lost_link_in_a_log_that_was_gathered_costs_nothing() {
    let (image, files) = image_of(|fs| {
        let (uuid, state) = ([1; 16], TierState::Active);
        let tier = Tier { number: 1, uuid, blocks: 300, token: 1, pending: 0, rank: 1, state };
        fs.change_tier(TierChange::Set(tier)).unwrap();
        let file = fs.create(&fs.root(), b"gathered", &new(FileKind::Regular)).unwrap();
        // Half of each page is superseded.
        for index in (0..400usize).chain((0..400).step_by(2)) {
            put(fs, &file, (index * 2 * BLOCK) as u64, &content(index, 3000));
        }
        let mut begin = true;
        while !fs.compact_log(&file, std::mem::take(&mut begin)).unwrap().is_done {}
        fs.change_tier(TierChange::Remove(1)).unwrap();
    });
    let inode = files["/gathered"].inode;
    let chain = log(&image, inode);
    let firsts: Vec<u64> = chain.iter().map(|page| number(&image, page + 24)).collect();
    assert!(chain.len() > 3 && firsts[1] == firsts[2], "{firsts:?}");
    for (index, &page) in chain.iter().enumerate() {
        for (what, range) in [("header", page..page + LINE), ("link", page + 48..page + 56)] {
            let mut damaged = image.clone();
            garble(&mut damaged[range]);
            mend(&format!("the {what} of page {index}"), &damaged, &files, 0);
        }
    }
}

#[test]
fn a_damaged_inode_is_rebuilt_or_given_up() {
    let (image, files) = image();
    for path in ["/many", "/many/deep/written", "/many/deep/small", "/link", "/many/file-0-", "/many/deep"] {
        let inode = address(&image, files[path].inode);
        let mut damaged = image.clone();
        garble(&mut damaged[inode..inode + 40]);
        let report = mend(&format!("header of {path}"), &damaged, &files, 1);
        let told = words(&report);
        assert!(told.contains(path) || told.contains(&format!("(inode {})", files[path].inode)), "{told}");
        let mut damaged = image.clone();
        garble(&mut damaged[inode..inode + 256]);
        // A small file is gone, with each of its names.
        mend(&format!("all of {path}"), &damaged, &files, 2);
        let mut damaged = image.clone();
        damaged[inode..inode + 256].fill(0);
        mend(&format!("{path} zeroed"), &damaged, &files, 2);
    }
}

#[test]
fn the_root_is_made_anew() {
    let (image, files) = image();
    let root = address(&image, 1);
    for (what, range) in [("header", root..root + 64), ("all", root..root + 256)] {
        let mut damaged = image.clone();
        garble(&mut damaged[range]);
        let report = mend(&format!("{what} of the root"), &damaged, &files, 0);
        assert!(words(&report).contains("/ (inode 1)"), "{}", words(&report));
    }
}

#[test]
fn the_chunk_table_is_rebuilt_from_the_inodes() {
    let (image, files) = image();
    for chunk in 0..2 {
        let word = 18 * BLOCK + chunk * 8;
        assert_ne!(number(&image, word), 0, "the image has two chunks");
        let mut damaged = image.clone();
        garble(&mut damaged[word..word + 8]);
        mend(&format!("word {chunk}"), &damaged, &files, 0);
    }
    let mut damaged = image.clone();
    damaged[18 * BLOCK..18 * BLOCK + 8].fill(0);
    mend("the word of the root's chunk is zero", &damaged, &files, 0);
}

/// Writes a right checksum into an entry whose contents were changed.
fn reseal(image: &mut [u8], entry: usize, inode: u64, generation: u32) {
    let lines = usize::from(image[entry + 6]);
    let seed = crc32c::crc32c(&image[56..72]);
    let mut name = inode.to_le_bytes().to_vec();
    name.extend(generation.to_le_bytes());
    let seed = crc32c::crc32c_append(seed, &name);
    let sum = crc32c::crc32c_append(seed, &image[entry + 4..entry + lines * LINE]);
    image[entry..entry + 4].copy_from_slice(&sum.to_le_bytes());
}

/// The entries of a kind in an inode's log.
fn entries(image: &[u8], inode: u64, kind: u8) -> Vec<usize> {
    let pages = log(image, inode);
    let lines = pages.into_iter().flat_map(|page| (1..64).map(move |line| page + line * LINE));
    lines.filter(|&entry| image[entry + 4] == kind && number(image, entry + 8) < 1 << 32).collect()
}

#[test]
fn what_is_claimed_twice_is_parted() {
    let (image, files) = image();
    let (many, written) = (files["/many"].inode, files["/many/deep/written"].inode);
    let writes = entries(&image, written, 1);
    let generation =
        |inode: u64| u32::from_le_bytes(image[address(&image, inode) + 8..][..4].try_into().unwrap());
    let place = number(&image, writes[3] + 16);

    // Two blocks of a file in one place: both keep a copy.
    let mut damaged = image.clone();
    damaged[writes[150] + 16..writes[150] + 24].copy_from_slice(&place.to_le_bytes());
    reseal(&mut damaged, writes[150], written, generation(written));
    let report = mend("a block twice in a file", &damaged, &files, 1);
    assert!(words(&report).contains("belong to another"), "{}", words(&report));

    // A block of a file in the log of a directory: the file loses it, the directory nothing.
    let mut damaged = image.clone();
    let page = (log(&image, many)[1] / BLOCK) as u64;
    damaged[writes[10] + 16..writes[10] + 24].copy_from_slice(&page.to_le_bytes());
    reseal(&mut damaged, writes[10], written, generation(written));
    mend("a log page in a file", &damaged, &files, 1);

    // And one in the superblock.
    let mut damaged = image.clone();
    damaged[writes[10] + 16..writes[10] + 24].copy_from_slice(&16u64.to_le_bytes());
    reseal(&mut damaged, writes[10], written, generation(written));
    mend("the superblock in a file", &damaged, &files, 1);

    // A name of a file that refers to the inode of another generation, to none, and to a directory that has a name.
    let names = entries(&image, many, 4);
    for (what, inode, kind) in [
        ("nothing", 4000u64, 1u8),
        ("no inode", 0, 1),
        ("a directory with a name", files["/many/deep"].inode, 2),
    ] {
        let mut damaged = image.clone();
        let name = names[200];
        damaged[name + 16..name + 24].copy_from_slice(&inode.to_le_bytes());
        damaged[name + 28] = kind;
        reseal(&mut damaged, name, many, generation(many));
        mend(&format!("a name that leads to {what}"), &damaged, &files, 0);
    }
    assert!(!pages(&image, many).is_empty());
}

/// A repair that is interrupted at any of its fences is finished by the next one.
#[test]
fn a_repair_can_crash() {
    let (image, files) = image();
    let many = files["/many"].inode;
    let mut damaged = image.clone();
    let page = log(&image, many)[1];
    garble(&mut damaged[page..page + BLOCK]);
    let inode = address(&image, files["/many/deep/small"].inode);
    garble(&mut damaged[inode..inode + 40]);
    let pm = Arc::new(SimPm::from_image(&damaged));
    pm.start_recording();
    assert!(check(&*pm, true).unwrap().is_sound());
    let trace = pm.stop_recording();
    let mut replay = Replay::new(damaged, &trace);
    let sampling = Sampling { exhaustive_up_to: 4, samples: 8, seed: 1 };
    let mut tried = 0;
    while replay.advance().is_some() {
        for crash in replay.images(&sampling).iter() {
            let pm = Arc::new(SimPm::from_image(&replay.crashed(&crash).to_vec()));
            let report = check(&*pm, true).unwrap();
            assert!(report.is_sound(), "{crash:?}:\n{}", words(&report));
            let after = walk(&mount(&pm)).unwrap();
            let inodes: Vec<u64> = after.values().map(|file| file.inode).collect();
            let missing = files.values().filter(|file| !inodes.contains(&file.inode)).count();
            assert_eq!(missing, 0, "{crash:?}: files have vanished:\n{}", words(&report));
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried} images");
}

/// Images with damage, one for each thing that a repair writes, and what is damaged.
fn damaged_images() -> Vec<(&'static str, Vec<u8>)> {
    let (image, files) = image();
    let (many, written) = (files["/many"].inode, files["/many/deep/written"].inode);
    let small = address(&image, files["/many/deep/small"].inode);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut damaged = image.clone();
        change(&mut damaged);
        damaged
    };
    let page = log(&image, many)[1];
    let writes = entries(&image, written, 1);
    let generation = u32::from_le_bytes(image[address(&image, written) + 8..][..4].try_into().unwrap());
    let images = vec![
        (
            "names and the header of an inode",
            with(&|bytes| {
                garble(&mut bytes[page..page + BLOCK]);
                garble(&mut bytes[small..small + 40]);
            }),
        ),
        ("an entry of a file", with(&|bytes| garble(&mut bytes[log(&image, written)[1] + 9 * LINE..][..24]))),
        ("the root", with(&|bytes| garble(&mut bytes[address(&image, 1)..][..256]))),
        ("a word of the chunk table", with(&|bytes| garble(&mut bytes[18 * BLOCK + 8..][..8]))),
        (
            "a block claimed twice",
            with(&|bytes| {
                bytes.copy_within(writes[3] + 16..writes[3] + 24, writes[150] + 16);
                reseal(bytes, writes[150], written, generation);
            }),
        ),
        ("a copy of the superblock", with(&|bytes| bytes[16 * BLOCK..17 * BLOCK].fill(0))),
    ];
    images
}

/// What is wrong after another repair of an image, beside what the first one made when nobody interrupted it.
fn trouble(image: &Image, ideal: &BTreeMap<String, File>) -> Option<String> {
    let pm = Arc::new(SimPm::from_image(&image.to_vec()));
    let report = match check(&*pm, true) {
        Ok(report) => report,
        Err(error) => return Some(error.to_string()),
    };
    if !report.is_sound() {
        return Some(words(&report));
    }
    let options = MountOptions { background: false, lanes: Some(1), ..MountOptions::default() };
    let after = LogFs::mount(pm, &options).and_then(|fs| walk(&fs));
    let after = match after {
        Ok(after) => after,
        Err(error) => return Some(error.to_string()),
    };
    let found: BTreeMap<u64, &File> = after.values().map(|file| (file.inode, file)).collect();
    // The directory that is made for what has lost its name may be made again.
    let mut old = ideal.iter().filter(|(path, _)| *path != "/lost+found");
    let lost = old.find(|(_, file)| found.get(&file.inode).is_none_or(|found| found != file));
    lost.map(|(path, _)| format!("{path} is not what it was"))
}

/// Crashes a repair at each of its fences and at its end; tells what the next repair, or a check, finds wrong.
fn crash_repair(damaged: &[u8], ideal: &BTreeMap<String, File>, defect: Option<Defect>) -> Option<String> {
    let pm = SimPm::from_image(damaged);
    pm.start_recording_with(defect);
    let repaired = check(&pm, true);
    let trace = pm.stop_recording();
    if !repaired.is_ok_and(|report| report.is_sound()) {
        return Some("the repair itself fails".to_owned());
    }
    let mut replay = Replay::new(damaged.to_vec(), &trace);
    let sampling = Sampling { exhaustive_up_to: 4, samples: 4, seed: 1 };
    while replay.advance().is_some() {
        for crash in replay.images(&sampling).iter() {
            if let Some(trouble) = trouble(&replay.crashed(&crash), ideal) {
                return Some(format!("{crash:?}: {trouble}"));
            }
        }
    }
    // What was repaired is repaired when the command has said so.
    let told = check(&SimPm::from_image(&replay.media().to_vec()), false);
    if !told.is_ok_and(|report| report.problems.is_empty()) {
        return Some("the repair is not durable".to_owned());
    }
    trouble(replay.media(), ideal)
}

/// Flushes and fences of a repair that no crash misses: what the line says, whether it fences, and why it is there.
const HARMLESS: [(&str, bool, &str); 3] = [
    (
        "self.pm.copy(source.address + LINE as u64, lines)?",
        false,
        "an inode with a page of its own has nothing in its lines; zeros keep old entries from being taken for a log \
         where its header is lost again",
    ),
    (
        "self.pm.fence(flushed);",
        true,
        "whatever a repair writes next has a fence, at the least the superblock's, and one that is interrupted in between \
         is finished by the next; it is there so that what is damaged is less after each step",
    ),
    ("pm.fence(flushed);", true, "likewise, of a word of the chunk table"),
];

/// A line of the source of a repair; none of what others are tested with.
fn line_of(site: Site) -> Option<&'static str> {
    let sources = [
        ("layouts/log/src/mend/write.rs", include_str!("../../../../layouts/log/src/mend/write.rs")),
        ("layouts/log/src/check.rs", include_str!("../../../../layouts/log/src/check.rs")),
    ];
    let (_, source) = sources.into_iter().find(|(path, _)| site.file().ends_with(path))?;
    source.lines().nth(site.line() as usize - 1).map(str::trim)
}

#[test]
fn a_repair_needs_each_of_its_flushes_and_fences() {
    let images = damaged_images();
    let mut sites: BTreeMap<(Site, bool), Vec<usize>> = BTreeMap::new();
    let mut ideals = Vec::new();
    for (index, (what, damaged)) in images.iter().enumerate() {
        let pm = Arc::new(SimPm::from_image(damaged));
        pm.start_recording();
        assert!(check(&*pm, true).unwrap().is_sound(), "{what}");
        for event in pm.stop_recording().events {
            let (site, fences) = match event {
                Event::Fence { site, .. } => (site, true),
                Event::Flush { site, .. } | Event::Store { kind: StoreKind::NonTemporal, site, .. } => {
                    (site, false)
                }
                _ => continue,
            };
            if line_of(site).is_none() {
                continue;
            }
            let seen = sites.entry((site, fences)).or_default();
            if seen.last() != Some(&index) {
                seen.push(index);
            }
        }
        let ideal = walk(&mount(&pm)).unwrap();
        assert_eq!(crash_repair(damaged, &ideal, None), None, "{what}: without any mutation");
        ideals.push(ideal);
    }
    let mut missed = Vec::new();
    for (&(site, fences), seen) in &sites {
        let defect = if fences { Defect::SkipFenceAt(site) } else { Defect::SkipFlushAt(site) };
        let found =
            seen.iter().any(|&index| crash_repair(&images[index].1, &ideals[index], Some(defect)).is_some());
        let line = line_of(site).unwrap_or_default();
        let argued = HARMLESS.iter().any(|(text, is_fence, _)| line == *text && *is_fence == fences);
        if found == argued {
            let what = if fences { "fence" } else { "flush" };
            missed.push(format!("{what} {site}: {line}: found {found}, argued {argued}"));
        }
    }
    assert!(sites.len() > 9 && missed.is_empty(), "{} sites: {missed:#?}", sites.len());
}

/// A crash while a superblock is written leaves a copy that does not validate; that is no damage.
#[test]
fn a_torn_superblock_is_no_damage() {
    let pm = Arc::new(SimPm::new(SIZE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = mount(&pm);
    populate(&fs);
    let crashed = pm.snapshot();
    fs.unmount().unwrap();
    let clean = pm.snapshot();
    for (what, base, other) in [("while mounted", &crashed, &clean), ("unmounted", &clean, &crashed)] {
        for offset in [0, 16 * BLOCK] {
            let mut torn = base.clone();
            // The words of the other state landed in part.
            torn[offset + 176..offset + 184].copy_from_slice(&other[offset + 176..offset + 184]);
            let pm = SimPm::from_image(&torn);
            let report = check(&pm, false).unwrap();
            assert!(report.is_sound() && report.interrupted_superblock, "{what}:\n{}", words(&report));
            assert!(check(&pm, true).unwrap().is_sound());
            let after = check(&pm, false).unwrap();
            assert!(!after.interrupted_superblock && after.summary.valid_copies == 2);
            let mut gone = base.clone();
            gone[offset..offset + BLOCK].fill(0);
            assert!(!check(&SimPm::from_image(&gone), false).unwrap().is_sound(), "{what}: one copy is gone");
        }
    }
    assert_eq!(pm.len(), SIZE);
}
