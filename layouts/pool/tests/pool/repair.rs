//! Repairs: what a check gives up and what it keeps, and repairs that a crash interrupts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::{Data, Durability, FileKind, Names, NewInode, Result, Timestamp, WriteAt, XattrMode};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::{CheckReport, Repair};
use nacre_layout_pool::anatomy::{Kind, Structure, structures};
use nacre_layout_pool::volumes::{self, NewVolume};
use nacre_layout_pool::{Mistake, PoolFs};
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};

type Fs = PoolFs<SimPm>;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn made(size: u64, zones: u32) -> Arc<SimPm> {
    let pm = Arc::new(SimPm::new(size));
    let uuid = Some(uuid::Uuid::from_u128(11));
    Fs::mkfs(&pm, &MkfsOptions { zones, uuid, ..MkfsOptions::default() }).unwrap();
    pm
}

fn try_mount(pm: &Arc<SimPm>, volume: &str) -> Result<Fs> {
    let volume = Some(volume.to_owned());
    Fs::mount(Arc::clone(pm), &MountOptions { background: false, volume, ..MountOptions::default() })
}

fn mount(pm: &Arc<SimPm>) -> Fs {
    try_mount(pm, "main").unwrap()
}

fn check(pm: &SimPm, repair: Repair) -> CheckReport {
    Fs::check(pm, repair, None).unwrap()
}

fn assert_sound(pm: &SimPm) {
    let report = check(pm, Repair::None);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

fn words(report: &CheckReport) -> Vec<&str> {
    report.problems.iter().map(|problem| problem.what.as_str()).collect()
}

/// A file whose content no other one has.
fn put(fs: &Fs, dir: &<Fs as Names>::Node, name: &[u8], number: u32, len: usize) {
    let file = fs.create(dir, name, &NewInode::of_root(FileKind::Regular, 0o644, now())).unwrap();
    let data: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(len).collect();
    fs.write(&file, WriteAt::Offset(0), &[IoSlice::new(&data)], Durability::Now, now()).unwrap();
}

/// Structures of every kind: directories of one set and of a tree, long names, targets, attributes, a map with nodes.
fn populate(fs: &Fs) {
    let root = fs.root();
    let dir = |name: &[u8]| fs.create(&root, name, &NewInode::of_root(FileKind::Directory, 0o755, now()));
    let (small, big) = (dir(b"small").unwrap(), dir(b"big").unwrap());
    for index in 0..20 {
        put(fs, &small, format!("file-{index}").as_bytes(), index, 5000);
    }
    for index in 100..170 {
        put(fs, &big, format!("file-{index}").as_bytes(), index, 100);
    }
    put(fs, &root, &[b'n'; 200], 1000, 100);
    for len in [20, 90, 3000] {
        let target = vec![b't'; len];
        let link = NewInode { target: &target, ..NewInode::of_root(FileKind::Symlink, 0o777, now()) };
        fs.create(&root, format!("link-{len}").as_bytes(), &link).unwrap();
    }
    put(fs, &root, b"attributes", 1001, 100);
    let file = fs.lookup(&root, b"attributes").unwrap();
    fs.set_xattr(&file, b"user.a", &[7; 6000], XattrMode::Set, None, now()).unwrap();
    // Far behind each other: its map has nodes.
    put(fs, &root, b"sparse", 1002, 100);
    let file = fs.lookup(&root, b"sparse").unwrap();
    let bytes = [IoSlice::new(&[9; 4096])];
    fs.write(&file, WriteAt::Offset(5 << 20), &bytes, Durability::Now, now()).unwrap();
}

/// The files below a directory by their paths: the kind, and the content of a file. All of it can be read.
fn walk(fs: &Fs, dir: &<Fs as Names>::Node, path: &str, into: &mut BTreeMap<String, (u8, Vec<u8>)>) {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    for name in names {
        let node = fs.lookup(dir, &name).unwrap();
        let path = format!("{path}/{}", String::from_utf8_lossy(&name));
        let mut content = Vec::new();
        match fs.kind(&node) {
            FileKind::Directory => walk(fs, &node, &path, into),
            FileKind::Regular => {
                content = vec![0; fs.size(&node).unwrap() as usize];
                fs.read(&node, 0, &mut content, None).unwrap();
                fs.list_xattrs(&node).unwrap();
            }
            _ => content = fs.read_link(&node).unwrap(),
        }
        into.insert(path, (fs.kind(&node) as u8, content));
    }
}

fn tree(pm: &Arc<SimPm>) -> BTreeMap<String, (u8, Vec<u8>)> {
    let fs = mount(pm);
    let mut found = BTreeMap::new();
    walk(&fs, &fs.root(), "", &mut found);
    fs.unmount().unwrap();
    found
}

/// The contents of all files, wherever they are.
fn contents(tree: &BTreeMap<String, (u8, Vec<u8>)>) -> BTreeSet<Vec<u8>> {
    let files = tree.values().filter(|(kind, _)| *kind == FileKind::Regular as u8);
    files.map(|(_, content)| content.clone()).collect()
}

/// An image with everything, after a clean unmount.
fn everything() -> Arc<SimPm> {
    let pm = made(16 << 20, 1);
    let fs = mount(&pm);
    populate(&fs);
    fs.unmount().unwrap();
    assert_sound(&pm);
    pm
}

/// The primaries of a kind; each backup is right behind its primary.
fn pairs(pm: &SimPm, kind: Kind) -> Vec<[Structure; 2]> {
    let of_kind: Vec<Structure> =
        structures(pm).unwrap().into_iter().filter(|structure| structure.kind == kind).collect();
    of_kind.as_chunks::<2>().0.to_vec()
}

fn destroy(pm: &SimPm, pair: &[Structure; 2], len: u64) {
    for structure in pair {
        pm.poke(structure.offset, &vec![0x5a; structure.len.min(len) as usize]);
    }
}

/// A volume whose row was lost could not be removed, and its groups belonged to it for ever.
#[test]
fn a_lost_row_is_given_up_with_its_groups_on_request_alone() {
    let pm = made(64 << 20, 1);
    let fs = mount(&pm);
    put(&fs, &fs.root(), b"kept", 1, 50_000);
    fs.unmount().unwrap();
    let free = |pm: &SimPm| check(pm, Repair::None).free_blocks;
    let before = free(&pm);
    volumes::create(Arc::clone(&pm), &NewVolume { name: "mail".into(), now: now(), ..NewVolume::default() })
        .unwrap();
    let fs = try_mount(&pm, "mail").unwrap();
    (0..5).for_each(|index| put(&fs, &fs.root(), format!("file-{index}").as_bytes(), index, 3 << 20));
    fs.unmount().unwrap();
    let rows = pairs(&pm, Kind::Volume);
    assert_eq!(rows.len(), 2);
    destroy(&pm, &rows[1], 64);
    let image = pm.snapshot();
    let told = check(&pm, Repair::Safe);
    assert!(told.loses() && !told.is_sound(), "{:?}", told.problems);
    assert!(words(&told).iter().any(|what| what.contains("the row of volume 1") && what.contains("groups")));
    assert!(told.problems.iter().all(|problem| !problem.repaired) && pm.snapshot() == image);
    let report = check(&pm, Repair::All);
    assert!(report.is_sound() && report.loses(), "{:?}", report.problems);
    assert_sound(&pm);
    assert_eq!(free(&pm), before, "its groups are free");
    assert_eq!(volumes::list(&*pm).unwrap().len(), 1);
    assert_eq!(tree(&pm)["/kept"].1.len(), 50_000);
}

/// A new volume took such a row, and the groups of the lost volume for its own.
#[test]
fn groups_of_a_row_that_is_gone_are_not_taken_silently() {
    let pm = made(64 << 20, 1);
    let new = |name: &str| {
        let new = NewVolume { name: name.into(), now: now(), ..NewVolume::default() };
        volumes::create(Arc::clone(&pm), &new).unwrap();
    };
    new("mail");
    let fs = try_mount(&pm, "mail").unwrap();
    put(&fs, &fs.root(), b"file", 1, 3 << 20);
    fs.unmount().unwrap();
    for row in &pairs(&pm, Kind::Volume)[1] {
        pm.poke(row.offset, &[0; 512]);
    }
    let told = check(&pm, Repair::Safe);
    assert!(told.loses() && words(&told).iter().any(|what| what.contains("volume 1")), "{:?}", told.problems);
    new("other");
    let fs = try_mount(&pm, "other").unwrap();
    put(&fs, &fs.root(), b"own", 2, 1 << 20);
    fs.unmount().unwrap();
    let kept = |pm: &SimPm| {
        let image = pm.snapshot();
        let is_block = |at: &usize| image[*at..*at + 4096].chunks(4).all(|word| word == 1u32.to_le_bytes());
        (0..image.len()).step_by(4096).filter(is_block).count()
    };
    assert_eq!(kept(&pm), 768, "the lost volume's blocks");
    let report = check(&pm, Repair::All);
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_sound(&pm);
    let fs = try_mount(&pm, "other").unwrap();
    assert!(fs.lookup(&fs.root(), b"own").is_ok());
    fs.unmount().unwrap();
}

/// A row that no group names had no volume: to free it loses nothing.
#[test]
fn a_damaged_row_without_groups_is_free_again() {
    let pm = made(64 << 20, 1);
    let row = pairs(&pm, Kind::Volume)[0][0].offset + 3 * 512;
    let backup = pairs(&pm, Kind::Volume)[0][1].offset + 3 * 512;
    [row, backup].iter().for_each(|&at| pm.poke(at, &[0x77; 64]));
    let report = check(&pm, Repair::Safe);
    assert!(report.is_sound() && !report.loses() && report.problems.len() == 1, "{:?}", report.problems);
    assert_sound(&pm);
}

/// Media errors took both copies of rows. Zeros that cleared them said that there was no volume.
#[test]
fn a_row_with_media_errors_in_both_copies_is_not_taken_for_none() {
    let pm = made(64 << 20, 1);
    let new = NewVolume { name: "mail".into(), now: now(), ..NewVolume::default() };
    volumes::create(Arc::clone(&pm), &new).unwrap();
    let rows = pairs(&pm, Kind::Volume);
    let fs = try_mount(&pm, "mail").unwrap();
    rows[0].iter().for_each(|row| pm.poison(row.offset, 512));
    // A scrub writes the pages anew, which clears the errors.
    fs.start_scrub(1 << 40).unwrap();
    while fs.scrub_status().running {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs.unmount().unwrap();
    let mut row = [0; 512];
    assert!(nacre_media::Pm::read(&*pm, rows[0][0].offset, &mut row).is_ok() && row != [0; 512]);
    assert_eq!(Fs::probe(&pm).unwrap().errors, 1, "the row is damaged, and not free");
    let told = check(&pm, Repair::Safe);
    assert!(told.loses() && words(&told).iter().any(|what| what.contains("the row of volume 0")));
}

/// Without its row, a zone and all its volumes were lost, though the superblock says what the row was.
#[test]
fn a_lost_zone_is_found_again() {
    let pm = made(256 << 20, 2);
    let new = NewVolume { name: "other".into(), zone: 1, now: now(), ..NewVolume::default() };
    volumes::create(Arc::clone(&pm), &new).unwrap();
    let fs = try_mount(&pm, "other").unwrap();
    put(&fs, &fs.root(), b"file", 1, 100_000);
    fs.unmount().unwrap();
    let rows = pairs(&pm, Kind::Zone);
    assert_eq!(rows.len(), 2);
    for (row, bytes) in [(&rows[1], [0x5a; 64]), (&rows[0], [0x5a; 64]), (&rows[1], [0; 64])] {
        row.iter().for_each(|row| pm.poke(row.offset, &bytes));
        assert!(check(&pm, Repair::None).problems.iter().any(|problem| problem.what.contains("zone")));
        let report = check(&pm, Repair::Safe);
        assert!(report.is_sound() && !report.loses(), "{:?}", report.problems);
        assert_sound(&pm);
        let fs = try_mount(&pm, "other").unwrap();
        assert_eq!(fs.size(&fs.lookup(&fs.root(), b"file").unwrap()).unwrap(), 100_000);
        fs.unmount().unwrap();
        mount(&pm).unmount().unwrap();
    }
}

/// Each kind of structure is lost in both copies. A check could only say so; now it gives up what is behind it.
#[test]
fn what_nothing_proves_is_given_up_and_the_rest_is_whole() {
    let good = everything();
    let (image, before) = (good.snapshot(), contents(&tree(&good)));
    // The number of files that may be lost.
    let kinds = [
        (Kind::Orphans, 0),
        (Kind::Done, 0),
        (Kind::Map, 0),
        (Kind::PoolHead, 0),
        (Kind::PoolBits, 0),
        (Kind::Inode, 1),
        (Kind::Neighbours, 0),
        (Kind::Name, 0),
        (Kind::Node, 1),
        (Kind::Bytes, 0),
    ];
    for (kind, most) in kinds {
        let all = pairs(&SimPm::from_image(&image), kind);
        for pair in all.iter().step_by(all.len() / 6 + 1).chain(all.last()) {
            let pm = Arc::new(SimPm::from_image(&image));
            destroy(&pm, pair, 64);
            let what = format!("{kind:?} at {}", pair[0].offset);
            let told = check(&pm, Repair::None);
            if told.problems.is_empty() {
                // A place that was never used, or another word that nothing asks for.
                assert!(matches!(kind, Kind::Name | Kind::Done), "{what}");
            }
            let report = check(&pm, Repair::All);
            assert!(report.is_sound(), "{what}: {:?}", report.problems);
            assert_sound(&pm);
            let after = contents(&tree(&pm));
            let lost = before.difference(&after).count();
            assert!(lost <= most, "{what}: {lost} files are lost");
            assert!(most > 0 || !report.loses() || kind == Kind::Name || kind == Kind::Bytes, "{what}");
            assert_sound(&pm);
        }
    }
}

/// A node of a directory is lost as a whole. Its names go, and its files get others.
#[test]
fn files_of_a_lost_directory_are_in_lost_and_found() {
    let pm = everything();
    let before = tree(&pm);
    for pair in pairs(&pm, Kind::Node) {
        destroy(&pm, &pair, 4096);
    }
    let report = check(&pm, Repair::All);
    assert!(report.is_sound() && report.loses(), "{:?}", report.problems);
    let after = tree(&pm);
    assert_sound(&pm);
    let missing: Vec<_> = contents(&before).difference(&contents(&after)).cloned().collect();
    assert!(missing.len() <= 1, "the file with nodes alone");
    let found = after.keys().filter(|path| path.starts_with("/lost+found/#")).count();
    assert_eq!(found, 70, "the files of the large directory");
    // The directory can be used.
    let fs = mount(&pm);
    let big = fs.lookup(&fs.root(), b"big").unwrap();
    (0..300).for_each(|index| put(&fs, &big, format!("new-{index}").as_bytes(), 5000 + index, 10));
    drop(big);
    fs.unmount().unwrap();
    assert_sound(&pm);
}

/// A root that was lost kept everything else from being read.
#[test]
fn a_lost_root_is_made_anew() {
    let pm = everything();
    let before = contents(&tree(&pm));
    // The first inode of the volume.
    destroy(&pm, &pairs(&pm, Kind::Inode)[0], 256);
    assert!(try_mount(&pm, "main").is_err(), "it is the root");
    let report = check(&pm, Repair::All);
    assert!(report.is_sound() && report.loses(), "{:?}", report.problems);
    assert_eq!(contents(&tree(&pm)), before);
    assert_sound(&pm);
}

/// Lines of both copies were lost, each of another line. Nothing was missing, and no repair was made.
#[test]
fn damage_in_different_lines_of_both_copies_loses_nothing() {
    let pm = everything();
    let before = tree(&pm);
    for kind in [Kind::Map, Kind::Node, Kind::Orphans] {
        let pair = pairs(&pm, kind).into_iter().find(|pair| pair[0].len > 64).expect("one of several lines");
        pm.poke(pair[0].offset, &[0x5a; 8]);
        pm.poke(pair[1].offset + 64, &[0x5a; 8]);
        let report = check(&pm, Repair::Safe);
        assert!(report.is_sound() && !report.loses(), "{kind:?}: {:?}", report.problems);
        assert_sound(&pm);
    }
    assert_eq!(tree(&pm), before);
}

/// The head and the bits of a pool block, of which each alone was mended, were lost together. All names of the pool
/// block were given up, though its entries were whole.
#[test]
fn a_pool_block_without_head_and_bits_is_known_by_its_entries() {
    let good = everything();
    let (image, before) = (good.snapshot(), tree(&good));
    let heads = pairs(&good, Kind::PoolHead);
    assert!(heads.len() > 5, "{} pool blocks", heads.len());
    for pair in heads {
        let pm = Arc::new(SimPm::from_image(&image));
        pair.iter().for_each(|head| pm.poke(head.offset, &[0x5a; 4096]));
        let report = check(&pm, Repair::Safe);
        let pool = pool_of(&image, &pair);
        assert!(report.is_sound() && !report.loses(), "pool {pool}: {:?}", report.problems);
        assert_sound(&pm);
        assert_eq!(tree(&pm), before, "pool {pool}");
        assert_sound(&pm);
    }
}

/// The pool of a pool block.
fn pool_of(image: &[u8], pair: &[Structure; 2]) -> u32 {
    let at = pair[0].offset as usize + 8;
    u32::from_le_bytes(*image[at..].first_chunk().unwrap())
}

/// Both halves of a pool block of one of these pools are lost.
fn lose_pool_block(pm: &SimPm, pools: &[u32]) {
    let image = pm.snapshot();
    let heads = pairs(pm, Kind::PoolHead);
    let pair = heads.iter().find(|pair| pools.contains(&pool_of(&image, pair))).expect("a pool block");
    let half = vec![0x5a; (pair[1].offset - pair[0].offset) as usize];
    pair.iter().for_each(|head| pm.poke(head.offset, &half));
}

/// A pool block was lost as a whole, and no inode got a name in the place of the lost one: to find a place for it
/// failed at the lost pool block, which was to be given back, and was not because there were inodes without names.
#[test]
fn a_lost_pool_block_is_given_back_and_its_files_get_names() {
    let good = everything();
    let (image, before) = (good.snapshot(), contents(&tree(&good)));
    // Targets and names of two sizes, then attributes and long targets.
    for (pools, found) in [([5], 0), ([7], 1), ([10], 0)] {
        let pm = Arc::new(SimPm::from_image(&image));
        lose_pool_block(&pm, &pools);
        let damaged = pm.snapshot();
        let told = check(&pm, Repair::Safe);
        assert!(told.loses() && pm.snapshot() == damaged, "pool {pools:?}: {:?}", told.problems);
        let report = check(&pm, Repair::All);
        assert!(report.is_sound(), "pool {pools:?}: {:?}", report.problems);
        let given_back =
            report.problems.iter().filter(|problem| problem.repair.starts_with("give its blocks"));
        assert_eq!(given_back.count(), 1, "pool {pools:?}: {:?}", report.problems);
        assert_sound(&pm);
        let after = tree(&pm);
        let names = after.keys().filter(|path| path.starts_with("/lost+found/#")).count();
        assert_eq!((contents(&after), names), (before.clone(), found), "pool {pools:?}");
        assert_sound(&pm);
    }
}

/// Lines of both copies of a row, or of an inode, were lost, and never the same one. The volume was lost for that.
#[test]
fn a_row_and_an_inode_are_put_together_from_both_copies() {
    let pm = everything();
    let before = tree(&pm);
    for kind in [Kind::Volume, Kind::Inode] {
        let pair = *pairs(&pm, kind).last().unwrap();
        pm.poke(pair[0].offset + 8, &[0x5a; 8]);
        pm.poke(pair[1].offset + 72, &[0x5a; 8]);
        let report = check(&pm, Repair::Safe);
        assert!(report.is_sound() && !report.loses(), "{kind:?}: {:?}", report.problems);
        assert!(words(&report).iter().any(|what| what.contains("parts of both copies")), "{kind:?}");
        assert_sound(&pm);
        assert_eq!(tree(&pm), before, "{kind:?}");
    }
    // Of a node's line, different words.
    let pair = pairs(&pm, Kind::Node)[0];
    pm.poke(pair[0].offset, &[0x5a; 8]);
    pm.poke(pair[1].offset + 8, &[0x5a; 8]);
    let report = check(&pm, Repair::Safe);
    assert!(report.is_sound() && !report.loses(), "{:?}", report.problems);
    assert_sound(&pm);
    assert_eq!(tree(&pm), before);
}

/// A copy of an inode was written from the other one, with damaged words of the list of orphans, over good ones.
#[test]
fn a_mended_inode_keeps_its_words_that_are_whole() {
    let pm = everything();
    let [primary, backup] = *pairs(&pm, Kind::Inode).last().unwrap();
    // The mode of the primary, and the next orphan of the backup.
    pm.poke(primary.offset + 16, &[0xff; 2]);
    pm.poke(backup.offset + 128, &[0x5a; 8]);
    let report = check(&pm, Repair::Safe);
    assert!(report.is_sound(), "{:?}", report.problems);
    assert!(words(&report).iter().all(|what| !what.contains("both copies")), "{:?}", report.problems);
    assert_sound(&pm);
}

/// A mount did the same when it mended a copy that a read had found.
#[test]
fn a_mount_that_mends_an_inode_keeps_its_words_that_are_whole() {
    let pm = everything();
    let [primary, backup] = pairs(&pm, Kind::Inode)[3];
    pm.poke(primary.offset + 16, &[0xff; 2]);
    pm.poke(backup.offset + 128, &[0x5a; 8]);
    let fs = mount(&pm);
    let small = fs.lookup(&fs.root(), b"small").unwrap();
    for index in 0..20 {
        fs.getattr_at(&small, format!("file-{index}").as_bytes()).unwrap();
    }
    put(&fs, &small, b"more", 7000, 10);
    drop(small);
    fs.unmount().unwrap();
    assert_eq!(Fs::probe(&pm).unwrap().mended, 1);
    let report = check(&pm, Repair::Safe);
    assert!(report.is_sound(), "{:?}", report.problems);
    let told = words(&report);
    assert!(told.len() == 1 && told[0].contains("the backup of the list of inode"), "{told:?}");
    assert_sound(&pm);
}

/// Damage, and what it does to an image with everything.
type Damage = (&'static str, fn(&Arc<SimPm>));

fn lose(pm: &SimPm, kind: Kind, index: usize, len: u64) {
    destroy(pm, &pairs(pm, kind)[index], len);
}

/// A file keeps its link and its blocks, and no name leads to it.
fn forget_name(pm: &Arc<SimPm>) {
    let fs = mount(pm);
    pm.seed_mistake(Mistake::LinksForgotten.number());
    let file = fs.lookup(&fs.root(), b"attributes").unwrap();
    fs.unlink(&fs.root(), b"attributes", now()).unwrap();
    pm.seed_mistake(0);
    fs.abandon();
    drop(file);
}

const DAMAGES: [Damage; 9] = [
    ("a copy of an inode", |pm| pm.poke(pairs(pm, Kind::Inode)[7][0].offset + 16, &[0xff; 2])),
    ("a name", |pm| {
        let (names, image) = (pairs(pm, Kind::Name), pm.snapshot());
        let is_used = |pair: &&[Structure; 2]| image[pair[0].offset as usize + 16..][..8] != [0; 8];
        let used = names.iter().find(is_used).expect("a name");
        destroy(pm, used, 64);
    }),
    ("the root", |pm| lose(pm, Kind::Inode, 0, 256)),
    ("nodes", |pm| pairs(pm, Kind::Node).iter().for_each(|pair| destroy(pm, pair, 4096))),
    ("a map", |pm| lose(pm, Kind::Map, 1, 128)),
    ("the head of a pool block", |pm| lose(pm, Kind::PoolHead, 0, 64)),
    ("bits", |pm| lose(pm, Kind::PoolBits, 1, 64)),
    ("a pool block of names", |pm| lose_pool_block(pm, &[7])),
    ("an inode without a name", forget_name),
];

/// A repair is cut at each of its fences, and made again. The result is that of a repair that ends, with and without a
/// mount in between, and a mount in between does no harm.
#[test]
fn a_repair_that_is_cut_anywhere_is_made_again() {
    let good = everything().snapshot();
    for (what, damage) in DAMAGES {
        let pm = Arc::new(SimPm::from_image(&good));
        damage(&pm);
        let base = pm.snapshot();
        pm.start_recording();
        let report = check(&pm, Repair::All);
        let trace = pm.stop_recording();
        assert!(report.is_sound() && !report.problems.is_empty(), "{what}: {:?}", report.problems);
        let expected = contents(&tree(&pm));
        let mut replay = Replay::new(base, &trace);
        let mut count = 0;
        // Of very many points some.
        let step = trace.fences() / 200 + 1;
        while let Some(point) = replay.advance() {
            if !point.index.is_multiple_of(step) {
                continue;
            }
            let sampling = Sampling { exhaustive_up_to: 1, samples: 1, seed: point.index as u64 };
            for image in replay.images(&sampling).iter() {
                let pm = Arc::new(SimPm::new(16 << 20));
                pm.load(replay.media());
                image.apply(&pm);
                if count % 2 == 1
                    && let Ok(fs) = try_mount(&pm, "main")
                {
                    // It may meet damage, and then fails.
                    let _ = fs.create(
                        &fs.root(),
                        b"between",
                        &NewInode::of_root(FileKind::Directory, 0o755, now()),
                    );
                    let _ = fs.unmount();
                }
                let report = check(&pm, Repair::All);
                assert!(report.is_sound(), "{what}, {point:?}: {:?}", report.problems);
                assert_sound(&pm);
                assert_eq!(contents(&tree(&pm)), expected, "{what}, {point:?}");
                count += 1;
            }
        }
        assert!(count > 10, "{what}: {count} images");
    }
}

/// The same of a volume that is given up: it is there as a whole for the next repair, or a mount goes on with it.
#[test]
fn a_volume_is_given_up_though_a_crash_comes() {
    let pm = made(16 << 20, 1);
    let fs = mount(&pm);
    put(&fs, &fs.root(), b"kept", 1, 50_000);
    fs.unmount().unwrap();
    let new = NewVolume { name: "mail".into(), now: now(), ..NewVolume::default() };
    volumes::create(Arc::clone(&pm), &new).unwrap();
    let fs = try_mount(&pm, "mail").unwrap();
    put(&fs, &fs.root(), b"file", 2, 2 << 20);
    fs.unmount().unwrap();
    destroy(&pm, &pairs(&pm, Kind::Volume)[1], 64);
    let base = pm.snapshot();
    pm.start_recording();
    assert!(check(&pm, Repair::All).is_sound());
    let trace = pm.stop_recording();
    let free = check(&pm, Repair::None).free_blocks;
    let mut replay = Replay::new(base, &trace);
    let mut count = 0;
    while let Some(point) = replay.advance() {
        for image in
            replay.images(&Sampling { exhaustive_up_to: 2, samples: 2, seed: point.index as u64 }).iter()
        {
            let pm = Arc::new(SimPm::new(16 << 20));
            pm.load(replay.media());
            image.apply(&pm);
            let fs = mount(&pm);
            assert!(fs.lookup(&fs.root(), b"kept").is_ok(), "{point:?}");
            fs.unmount().unwrap();
            let report = check(&pm, Repair::All);
            assert!(report.is_sound(), "{point:?}: {:?}", report.problems);
            assert_sound(&pm);
            assert_eq!(check(&pm, Repair::None).free_blocks, free, "{point:?}");
            count += 1;
        }
    }
    assert!(count > 20, "{count} images");
}

/// An interrupted repair is seen by the next `fsck -p`, which looks at a device with errors.
#[test]
fn an_interrupted_repair_leaves_an_error_noted() {
    let pm = everything();
    lose(&pm, Kind::Inode, 0, 256);
    let base = pm.snapshot();
    pm.start_recording();
    check(&pm, Repair::All);
    let trace = pm.stop_recording();
    assert_eq!(Fs::probe(&pm).unwrap().errors, 0, "a repair that ended forgets it");
    let mut replay = Replay::new(base, &trace);
    let mut noted = 0;
    while replay.advance().is_some_and(|point| !point.is_end) {
        pm.load(replay.media());
        noted += Fs::probe(&pm).map_or(0, |summary| summary.errors.min(1));
    }
    assert!(noted > 10, "{noted} points with an error");
}

/// Damage that reads met was mended without a word, and no count of it was kept.
#[test]
fn damage_that_reads_meet_is_told_once_and_counted() {
    let pm = everything();
    let inodes = pairs(&pm, Kind::Inode);
    // One copy of one inode, and both copies of another.
    let (mended, lost) = (&inodes[3], &inodes[9]);
    pm.poke(mended[0].offset + 16, &[0xff; 2]);
    destroy(&pm, lost, 256);
    let fs = mount(&pm);
    assert_eq!(fs.findings().take(), Vec::<String>::new());
    let read_all = || {
        let small = fs.lookup(&fs.root(), b"small").unwrap();
        let names: Vec<String> = (0..20).map(|index| format!("file-{index}")).collect();
        names.iter().filter(|name| fs.getattr_at(&small, name.as_bytes()).is_err()).count()
    };
    assert_eq!(read_all(), 1, "the file that is lost");
    let told = fs.findings().take();
    let has = |words: &str| told.iter().filter(|finding| finding.contains(words)).count();
    assert_eq!((told.len(), has("one copy of inode"), has("both copies of inode")), (2, 1, 1), "{told:?}");
    assert_eq!(read_all(), 1);
    put(&fs, &fs.root(), b"more", 7000, 10);
    assert_eq!(read_all(), 1);
    assert_eq!(fs.findings().take(), Vec::<String>::new(), "each is told once");
    fs.unmount().unwrap();
    let summary = Fs::probe(&pm).unwrap();
    assert_eq!((summary.errors, summary.mended), (1, 1));
    assert!(summary.last_error.is_some());
    // The copy is whole again. A repair forgets the error, and not what mounts have mended so far.
    let report = check(&pm, Repair::All);
    assert!(report.is_sound() && report.problems.iter().all(|problem| !problem.what.contains("primary")));
    let summary = Fs::probe(&pm).unwrap();
    assert_eq!((summary.errors, summary.mended, summary.last_error), (0, 1, None));
    assert_sound(&pm);
}

/// A scrub mended copies, and the count of them stayed as it was.
#[test]
fn copies_that_a_scrub_mends_are_counted_once() {
    let pm = everything();
    let inodes = pairs(&pm, Kind::Inode);
    // A primary, which a reader meets first, a backup, which none looks at, and a media error.
    pm.poke(inodes[3][0].offset + 16, &[0xff; 2]);
    pm.poke(inodes[5][1].offset + 16, &[0xff; 2]);
    let bytes = pairs(&pm, Kind::Bytes);
    pm.poison(bytes[0][1].offset / 64 * 64, 64);
    let fs = mount(&pm);
    let small = fs.lookup(&fs.root(), b"small").unwrap();
    for index in 0..20 {
        fs.getattr_at(&small, format!("file-{index}").as_bytes()).unwrap();
    }
    drop(small);
    assert_eq!(fs.findings().take().len(), 1, "the reader has met the primary");
    fs.start_scrub(1 << 40).unwrap();
    while fs.scrub_status().running {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(fs.scrub_status().repaired, 3, "{:?}", fs.scrub_status().findings);
    assert_eq!(Fs::probe(&pm).unwrap().mended, 3, "at the end of the scrub");
    put(&fs, &fs.root(), b"more", 7000, 10);
    fs.unmount().unwrap();
    let summary = Fs::probe(&pm).unwrap();
    assert_eq!((summary.errors, summary.mended), (0, 3), "and after the next operation");
    assert_sound(&pm);
}

/// A crash comes while the count is written: it is that of before or of after.
#[test]
fn a_count_of_damage_survives_a_crash() {
    let pm = everything();
    let inode = pairs(&pm, Kind::Inode)[3];
    pm.poke(inode[0].offset + 16, &[0xff; 2]);
    let fs = mount(&pm);
    let small = fs.lookup(&fs.root(), b"small").unwrap();
    for index in 0..20 {
        fs.getattr_at(&small, format!("file-{index}").as_bytes()).unwrap();
    }
    let base = pm.snapshot();
    pm.start_recording();
    put(&fs, &fs.root(), b"more", 7000, 10);
    let trace = pm.stop_recording();
    drop(small);
    fs.abandon();
    let mut replay = Replay::new(base, &trace);
    let mut seen = BTreeSet::new();
    while let Some(point) = replay.advance() {
        for image in
            replay.images(&Sampling { exhaustive_up_to: 4, samples: 4, seed: point.index as u64 }).iter()
        {
            let pm = Arc::new(SimPm::new(16 << 20));
            pm.load(replay.media());
            image.apply(&pm);
            mount(&pm).unmount().unwrap();
            seen.insert(Fs::probe(&pm).unwrap().mended);
            let report = check(&pm, Repair::All);
            assert!(report.is_sound(), "{point:?}: {:?}", report.problems);
            assert_sound(&pm);
        }
    }
    assert_eq!(seen, BTreeSet::from([0, 1]));
}

/// Both copies of something were lost while an operation on it was interrupted. No mount went on.
#[test]
fn a_loss_within_an_interrupted_operation_is_that_of_one_inode() {
    let pm = everything();
    let small = pairs(&pm, Kind::Inode)[1];
    let fs = mount(&pm);
    let dir = fs.lookup(&fs.root(), b"small").unwrap();
    let base = pm.snapshot();
    pm.start_recording();
    put(&fs, &dir, b"new", 7000, 10);
    let trace = pm.stop_recording();
    drop(dir);
    fs.abandon();
    let mut replay = Replay::new(base, &trace);
    let mut failed = 0;
    while replay.advance().is_some() {
        let pm = Arc::new(SimPm::new(16 << 20));
        pm.load(replay.media());
        small.iter().for_each(|copy| pm.poison(copy.offset, 64));
        let fs = mount(&pm);
        failed += u64::from(fs.getattr_at(&fs.root(), b"small").is_err());
        assert!(fs.getattr_at(&fs.root(), b"attributes").is_ok());
        fs.unmount().unwrap();
        let report = check(&pm, Repair::All);
        assert!(report.is_sound(), "{:?}", report.problems);
        assert_sound(&pm);
        // Its files have other names.
        assert!(contents(&tree(&pm)).len() > 80);
    }
    assert!(failed > 5, "{failed} points with a loss");
}

/// New bad blocks were taken out of use before the counts of free space: a crash between the two left counts that were
/// too high, and a mount believed them.
#[test]
fn counts_are_right_after_a_search_for_media_errors_that_is_cut() {
    let pm = made(16 << 20, 1);
    mount(&pm).unmount().unwrap();
    let bad = 5 * 512 + 77;
    pm.list_as_bad(bad * 4096..bad * 4096 + 64);
    let base = pm.snapshot();
    pm.start_recording();
    assert_eq!(Fs::check_media(&pm, true).unwrap().new_blocks, 1);
    let trace = pm.stop_recording();
    assert_sound(&pm);
    let mut replay = Replay::new(base, &trace);
    let mut count = 0;
    while replay.advance().is_some() {
        let pm = Arc::new(SimPm::new(16 << 20));
        pm.load(replay.media());
        assert_sound(&pm);
        mount(&pm).unmount().unwrap();
        assert_sound(&pm);
        count += 1;
    }
    assert!(count > 5, "{count} points");
}
