//! Damaged images: a bit flipped in each kind of structure. Whatever happens is told as an error, never by a panic, an
//! endless loop, or wrong content.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nacre::{FileSystem, Kind, MkfsOptions, OpenOptions, Preset};
use nacre_layout_inplace::anatomy as inplace;
use nacre_layout_pool::anatomy as pool;
use nacre_layout_shadow::anatomy as shadow;
use nacre_media::SimPm;

use crate::harness::{self, Ground, nacre};

const SIZE: u64 = 16 << 20;
const LINE: usize = 64;
const BLOCK: usize = 4096;
/// How long anything may take on an image of this size.
const LIMIT: Duration = Duration::from_secs(30);
/// A preset for each layout.
const PRESETS: [Preset; 4] = [Preset::Nova, Preset::Pmfs, Preset::Bpfs, Preset::Spfs];
/// Files of a greater size, which damage may claim, are not read.
const LARGEST: u64 = 4 * SIZE;
/// What the blocks of files are filled with, so that they are told from structures; data has no checksums yet.
const FILL: u8 = 0xd5;

/// Names and contents that the image was made with.
type Tree = BTreeMap<PathBuf, Vec<u8>>;

fn populate(fs: &FileSystem) -> nacre::Result<Tree> {
    let mut tree = Tree::new();
    for dir in ["/a", "/a/b", "/many"] {
        fs.create_dir(dir)?;
    }
    let mut put = |path: String, content: Vec<u8>| -> nacre::Result<()> {
        fs.write(&path, &content)?;
        tree.insert(path.into(), content);
        Ok(())
    };
    for index in 0..120 {
        let name = "long-name-".repeat(index % 20);
        put(format!("/many/{name}{index}"), vec![FILL; 64 * (index % 7)])?;
    }
    put("/a/b/large".into(), vec![FILL; 300 * BLOCK])?;
    put("/a/empty".into(), Vec::new())?;
    // Many entries in one log: pages, not only the lines in the inode.
    let file = fs.create_file("/a/written")?;
    for index in 0..200u64 {
        file.write_at(&[FILL; 100], index * 3 * BLOCK as u64)?;
    }
    file.punch_hole(30 * BLOCK as u64, 60 * BLOCK as u64)?;
    tree.insert("/a/written".into(), fs.read("/a/written")?);
    fs.symlink("target-of-a-link", "/a/link")?;
    fs.symlink("t".repeat(1000), "/a/long-link")?;
    fs.set_xattr("/a/empty", "user.small", b"value", nacre::XattrMode::Set)?;
    fs.set_xattr("/a/empty", "user.large", &[FILL; 5000], nacre::XattrMode::Set)?;
    fs.rename("/many/0", "/a/b/moved")?;
    let moved = tree.remove(Path::new("/many/0")).expect("it was put there");
    tree.insert("/a/b/moved".into(), moved);
    for index in 100..110 {
        let path = PathBuf::from(format!("/many/{}{index}", "long-name-".repeat(index % 20)));
        fs.remove_file(&path)?;
        tree.remove(&path);
    }
    Ok(tree)
}

/// Images: unmounted in order, and as a crash leaves it.
fn images(dir: &Path, preset: Preset) -> (Tree, Vec<u8>, Vec<u8>) {
    let path = dir.join("good.img");
    let make = MkfsOptions { preset, ..MkfsOptions::with_size(SIZE) };
    nacre::mkfs(&path, &make).expect("mkfs");
    let fs = open(&path).expect("open");
    let tree = populate(&fs).expect("the tree");
    let crashed = fs::read(&path).expect("the image");
    fs.close().expect("close");
    (tree, fs::read(&path).expect("the image"), crashed)
}

/// Opens an image that nobody has. Another test may be starting a program just now, which has a copy of every open file,
/// and so of the lock, until it is loaded; what is in use is tried again.
fn open(image: &Path) -> Result<FileSystem, nacre::Error> {
    let end = Instant::now() + LIMIT;
    loop {
        match FileSystem::open(image, &OpenOptions::default()) {
            Err(error) if error.kind() == Kind::Busy && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// False where a line says nothing: there are only zeros, or contents of files.
fn says_something(line: &[u8]) -> bool {
    line.iter().any(|byte| *byte != 0) && line.iter().filter(|byte| **byte == FILL).count() <= LINE / 2
}

/// What a line of an image of the log layout belongs to, as far as can be told by the magic numbers around it.
fn structure(image: &[u8], line: usize) -> Option<String> {
    let offset = line * LINE;
    if !says_something(&image[offset..offset + LINE]) {
        return None;
    }
    let magic = |at: usize| u32::from_le_bytes(image[at + 4..at + 8].try_into().expect("four bytes"));
    let block = offset / BLOCK * BLOCK;
    let inode = offset / 256 * 256;
    Some(match (block, magic(block), magic(inode) & 0x00ff_ffff) {
        (0, ..) => "superblock".into(),
        (0x10000, ..) => "second superblock".into(),
        (_, 0x6770_6c6e, _) if offset == block => "header of a log page".into(),
        (_, 0x6770_6c6e, _) => format!("entry of kind {} in a log page", image[offset + 4]),
        (_, 0x7063_6e6c, _) => "checkpoint".into(),
        (_, _, 0x01_4e49) if offset == inode => "header of an inode".into(),
        (_, _, 0x01_4e49) => format!("entry of kind {} in an inode", image[offset + 4]),
        _ => "table or block of a value".into(),
    })
}

/// The lines of a structure.
#[derive(Default)]
struct Lines {
    lines: Vec<usize>,
    /// Each bit of it is under a checksum, or is known otherwise.
    proven: bool,
}

/// A structure of an image.
struct Piece {
    name: String,
    /// See [`Lines`].
    proven: bool,
    offset: u64,
    len: u64,
}

/// Of inodes only what never changes is under a checksum; trees and directories have none, as in PMFS.
fn inplace_pieces(image: &[u8]) -> Vec<Piece> {
    use inplace::Kind::{Commit, Superblock, Undo, Xattrs};
    let pieces = inplace::structures(&SimPm::from_image(image)).expect("a sound image").into_iter();
    let piece = |inplace::Structure { kind, offset, len, .. }| {
        let proven = matches!(kind, Superblock | Commit | Undo | Xattrs);
        Piece { name: format!("{kind:?}"), proven, offset, len }
    };
    pieces.map(piece).collect()
}

/// A slot with a wrong checksum is taken for one that a crash has torn, and the state before it counts. Trees and
/// directories have no checksums, as in BPFS.
fn shadow_pieces(image: &[u8]) -> Vec<Piece> {
    use shadow::Kind::{Directory, Node, Slot};
    let pieces = shadow::structures(&SimPm::from_image(image)).expect("a sound image").into_iter();
    let piece = |shadow::Structure { kind, offset, len, .. }| {
        let proven = !matches!(kind, Slot | Node | Directory);
        Piece { name: format!("{kind:?}"), proven, offset, len }
    };
    pieces.map(piece).collect()
}

/// Each structure is there twice, under a checksum.
fn pool_pieces(image: &[u8]) -> Vec<Piece> {
    let pieces = pool::structures(&SimPm::from_image(image)).expect("a sound image").into_iter();
    let piece = |pool::Structure { kind, offset, len, .. }| Piece {
        name: format!("{kind:?}"),
        proven: true,
        offset,
        len,
    };
    pieces.map(piece).collect()
}

/// Lines of each structure.
fn structures(image: &[u8], preset: Preset) -> BTreeMap<String, Lines> {
    let mut found: BTreeMap<String, Lines> = BTreeMap::new();
    let pieces = match preset {
        Preset::Pmfs => inplace_pieces(image),
        Preset::Bpfs => shadow_pieces(image),
        Preset::Spfs => pool_pieces(image),
        _ => Vec::new(),
    };
    if !pieces.is_empty() {
        for Piece { name, proven, offset, len } in pieces {
            let entry = found.entry(name).or_default();
            entry.proven = proven;
            let (first, end) = (offset as usize, (offset + len) as usize);
            let lines = first / LINE..end.div_ceil(LINE);
            entry.lines.extend(lines.filter(|line| says_something(&image[line * LINE..(line + 1) * LINE])));
        }
        found.retain(|_, entry| !entry.lines.is_empty());
        return found;
    }
    for line in 0..image.len() / LINE {
        if let Some(name) = structure(image, line) {
            let entry = found.entry(name).or_default();
            entry.proven = true;
            entry.lines.push(line);
        }
    }
    found
}

/// Structures that an image must have; else the test does not know its format.
fn expected_structures(preset: Preset) -> &'static [&'static str] {
    match preset {
        Preset::Pmfs => &["Superblock", "Commit", "Undo", "Table", "Inode", "Node", "Directory", "Xattrs"],
        Preset::Bpfs => {
            &["Superblock", "Switch", "TableSlot", "Header", "Slot", "Node", "Directory", "Xattrs"]
        }
        Preset::Spfs => &["Zone", "Volume", "Map", "PoolHead", "PoolBits", "Inode", "Name", "Node", "Bytes"],
        _ => &["superblock", "second superblock", "header of a log page", "header of an inode"],
    }
}

/// Does something that must end, in a thread that must not panic.
fn bounded<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        // The receiver is gone when this took too long.
        let _ = sender.send(work());
    });
    match receiver.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: still running after {LIMIT:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            thread.join().expect_err("a thread that sent nothing panicked");
            panic!("{what}: it panicked, see above")
        }
    }
}

/// Opens the image and reads everything in it. Names that could not be read with an error of damage are returned;
/// wrong content is what the test looks for.
fn read_all(image: &Path, tree: &Tree, exact: bool) -> Result<Vec<String>, nacre::Error> {
    let fs = open(image)?;
    let mut damaged = Vec::new();
    let mut pending = vec![PathBuf::from("/")];
    while let Some(dir) = pending.pop() {
        match fs.read_dir(&dir).and_then(|entries| entries.collect::<nacre::Result<Vec<_>>>()) {
            Ok(entries) => pending
                .extend(entries.iter().filter(|e| e.kind() == nacre::FileKind::Directory).map(|e| e.path())),
            Err(error) => damaged.push(format!("{}: {error}", dir.display())),
        }
    }
    for (path, content) in tree {
        let bytes = fs
            .metadata(path)
            .and_then(|found| if found.len() > LARGEST { Ok(None) } else { fs.read(path).map(Some) });
        match bytes {
            Ok(found) => {
                let right = found.as_ref() == Some(content);
                assert!(!exact || right, "{}: wrong content, and no error", path.display());
            }
            Err(error) if error.kind() == Kind::NotFound => {
                // After a crash the damaged end of a log is taken for an operation that was interrupted.
                assert!(!exact, "{}: lost without a word", path.display());
            }
            Err(error) => damaged.push(format!("{}: {error}", path.display())),
        }
    }
    // Only whether they panic or hang is of interest here.
    let _ = (fs.read_link("/a/link"), fs.read_link("/a/long-link"));
    let _ = (fs.get_xattr("/a/empty", "user.small"), fs.get_xattr("/a/empty", "user.large"));
    // A damaged file system may refuse to be closed in order.
    let _ = fs.close();
    Ok(damaged)
}

/// Exit code and words of fsck; see [`open`] for why it may have to be tried again.
fn fsck(flag: &str, image: &Path) -> (i32, String) {
    let end = Instant::now() + LIMIT;
    loop {
        let output = harness::run(nacre().args(["fsck", flag]).arg(image), LIMIT).expect("fsck ends");
        let text = harness::text(&output);
        let code = output.status.code().unwrap_or_else(|| panic!("fsck {flag}: {}\n{text}", output.status));
        assert!(!text.contains("panicked"), "fsck {flag}:\n{text}");
        if code != 8 || !text.contains("in use") || Instant::now() > end {
            return (code, text);
        }
    }
}

/// Damages one bit and looks at what becomes of it. `exact`: nothing may be taken for an operation that a crash
/// interrupted, or for what somebody wrote; so each file has its content or is an error.
fn damage_one(dir: &Path, image: &[u8], tree: &Tree, what: &str, bit: usize, exact: bool) {
    let path = dir.join("damaged.img");
    let mut bytes = image.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    let what = format!("{what}, bit {bit}");
    let write = || fs::write(&path, &bytes).expect("the damaged image");
    let read = |exact: bool| {
        let (path, tree) = (path.clone(), tree.clone());
        bounded(&what, move || read_all(&path, &tree, exact))
    };

    write();
    let (found, text) = fsck("-n", &path);
    assert!(matches!(found, 0 | 4), "{what}: fsck -n exits with {found}\n{text}");
    let opened = read(exact);
    if found == 0 {
        let damaged = opened.unwrap_or_else(|error| panic!("{what}: fsck -n finds nothing, but: {error}"));
        assert!(damaged.is_empty(), "{what}: fsck -n finds nothing, but: {damaged:?}");
    }

    write();
    let (mended, text) = fsck("-y", &path);
    assert!(matches!(mended, 0 | 1 | 4 | 5), "{what}: fsck -y exits with {mended}\n{text}");
    // Without its inode the root directory is made anew, and what it named has other names.
    let exact = exact && !text.contains("with a name for each of them");
    if mended & 4 == 0 {
        let (again, text) = fsck("-n", &path);
        assert_eq!(again, 0, "{what}: fsck -y says it is sound, fsck -n says:\n{text}");
        let damaged = read(exact).unwrap_or_else(|error| panic!("{what}: sound after fsck -y, but: {error}"));
        assert!(damaged.is_empty(), "{what}: sound after fsck -y, but: {damaged:?}");
    } else {
        // Whether it opens or refuses is its choice; read_all looks for wrong content.
        let _ = read(exact);
    }
}

#[test]
fn a_flipped_bit_is_refused_or_repaired() {
    let seed = harness::seed("a flipped bit");
    for preset in PRESETS {
        flip_bits(preset, seed);
    }
}

fn flip_bits(preset: Preset, seed: u64) {
    let dir = harness::memory();
    let (tree, clean, crashed) = images(dir.path(), preset);
    let mut random = seed;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let bits = harness::number("NACRE_FLIPS", 6);
    for (image, state) in [(&clean, "clean unmount"), (&crashed, "crashed")] {
        let found = structures(image, preset);
        let counts: Vec<_> = found.iter().map(|(name, entry)| (name, entry.lines.len())).collect();
        println!("{}, {state}: {counts:?}", preset.as_str());
        for kind in expected_structures(preset) {
            assert!(found.contains_key(*kind), "the image has no {kind}; does this test know the format?");
        }
        for (name, Lines { lines, proven }) in &found {
            let what = format!("{} {state}: {name} (NACRE_SEED={seed})", preset.as_str());
            for _ in 0..bits {
                let bit = (lines[next(lines.len())] * LINE + next(LINE)) * 8 + next(8);
                damage_one(dir.path(), image, &tree, &what, bit, *proven && state != "crashed");
            }
        }
    }
}

/// Reads everything on a mount, and what must be there. Gives what could not be read; each time that must be the device's
/// fault.
fn walk_mount(root: &Path, tree: Option<&Tree>) -> Vec<PathBuf> {
    let mut bad = Vec::new();
    let mut note = |path: &Path, error: &std::io::Error| {
        let raw = error.raw_os_error();
        assert_eq!(raw, Some(libc::EIO), "{}: {error}", path.display());
        bad.push(path.to_owned());
    };
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        let entries = match fs::read_dir(&dir).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => {
                note(&dir, &error);
                continue;
            }
        };
        for entry in entries {
            match fs::symlink_metadata(entry.path()) {
                Ok(metadata) if metadata.is_dir() => pending.push(entry.path()),
                Ok(metadata) if metadata.is_symlink() => match fs::read_link(entry.path()) {
                    Ok(_) => {}
                    Err(error) => note(&entry.path(), &error),
                },
                Ok(_) => match fs::read(entry.path()) {
                    Ok(_) => {}
                    Err(error) => note(&entry.path(), &error),
                },
                Err(error) => note(&entry.path(), &error),
            }
        }
    }
    for (path, content) in tree.into_iter().flatten() {
        let path = root.join(path.strip_prefix("/").expect("absolute"));
        match fs::read(&path) {
            Ok(found) => assert!(found == *content, "{}: wrong content, and no error", path.display()),
            Err(error) => note(&path, &error),
        }
    }
    bad
}

/// A line that cannot be read, in each kind of structure of a mounted file system: what is told of it is EIO, the mount
/// lives, scrub finds it, and fsck says what it did.
#[test]
fn a_media_error_in_metadata_leaves_the_mount_alive() {
    if !harness::can_mount("media errors in metadata") {
        return;
    }
    let seed = harness::seed("a media error in metadata");
    spoil_metadata(Preset::Nova, seed);
}

fn spoil_metadata(preset: Preset, seed: u64) {
    let dir = harness::memory();
    let (tree, clean, _) = images(dir.path(), preset);
    let mut ground = Ground::preset(preset.as_str(), "16M", None);
    ground.unmount();
    let (mut refused, mut told, mut kept) = (0, 0, 0);
    for (index, (name, Lines { lines, .. })) in structures(&clean, preset).into_iter().enumerate() {
        let at = lines[(seed.rotate_left(index as u32 * 7) % lines.len() as u64) as usize] * LINE;
        let what = format!("{}: {name}, line at {at:#x} (NACRE_SEED={seed})", preset.as_str());
        let poison = format!("poison={at}+{LINE}");
        fs::write(ground.image(), &clean).expect("the image");
        ground.set_options(Some(&format!("emulate={poison}")));
        if let Err(words) = ground.try_mount() {
            assert!(words.contains("media error") && !words.contains("panicked"), "{what}: {words}");
            refused += 1;
        } else {
            let root = ground.dir();
            let bad = walk_mount(&root, Some(&tree));
            told += usize::from(!bad.is_empty());
            // What is made now may need what is damaged, and is told so.
            if let Err(error) = fs::write(root.join("new"), "new") {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{what}: {error}");
            }
            let (_, words) = harness::scrubbed(&ground);
            assert!(bad.is_empty() || words.contains("media error"), "{what}: {bad:?}, but scrub: {words}");
            assert!(rustix::fs::statfs(&root).is_ok(), "{what}: the mount is gone");
            // In order it may not be possible: what it writes then may be what is damaged.
            ground.kill();
        }
        let output =
            harness::run(nacre().args(["fsck", "-y", "-c", "--emulate", &poison]).arg(ground.image()), LIMIT)
                .expect("fsck ends");
        let (code, words) = (output.status.code().unwrap_or(-1), harness::text(&output));
        assert!(
            matches!(code, 0 | 1 | 4 | 5) && !words.contains("panicked"),
            "{what}: fsck: {code}: {words}"
        );
        if code & 4 != 0 {
            continue;
        }
        kept += 1;
        // A page that was written over was good again, and its emulated error would be there anew.
        ground.set_options(None);
        ground.mount();
        // The target of a long link is in a block of its own, as data is: it is gone, and that is told.
        let mut bad = walk_mount(&ground.dir(), None);
        bad.retain(|path| !words.contains(&*path.file_name().unwrap_or_default().to_string_lossy()));
        assert!(bad.is_empty(), "{what}: fsck -y says it is sound, but {bad:?}\n{words}");
        ground.unmount();
    }
    println!("{refused} mounts refused, {told} with files that cannot be read, {kept} repaired");
    assert!(told > 0 && kept > 0, "nothing of what this is for has happened");
}

/// Images that are no file system at all, or only a part of one.
#[test]
fn what_is_no_file_system_is_refused() {
    PRESETS.into_iter().for_each(refuse_what_is_none);
}

fn refuse_what_is_none(preset: Preset) {
    let dir = harness::memory();
    let (_, clean, _) = images(dir.path(), preset);
    let mut cases: Vec<(&str, Vec<u8>)> = vec![
        ("zeros", vec![0; SIZE as usize]),
        ("all bits set", vec![0xff; SIZE as usize]),
        ("cut in half", clean[..clean.len() / 2].to_vec()),
        ("cut after the first superblock", clean[..BLOCK].to_vec()),
        ("empty", Vec::new()),
    ];
    let mut headless = clean.clone();
    headless[..BLOCK].fill(0);
    headless[0x10000..0x10000 + BLOCK].fill(0);
    cases.push(("both superblocks gone", headless));
    for (what, bytes) in cases {
        let path = dir.path().join("none.img");
        fs::write(&path, &bytes).expect("the image");
        for arguments in [&["info"][..], &["fsck", "-n"], &["fsck", "-y"], &["df"]] {
            let output = harness::run(nacre().args(arguments).arg(&path), LIMIT).expect("it ends");
            let text = harness::text(&output);
            let code =
                output.status.code().unwrap_or_else(|| panic!("{what}: {arguments:?}: {}", output.status));
            assert!(code != 0 && code < 100, "{what}: {arguments:?} exits with {code}\n{text}");
            assert!(text.contains("none.img"), "{what}: {arguments:?} does not say which device:\n{text}");
        }
    }
}

/// One superblock of two is enough, and is used to mend the other.
#[test]
fn a_lost_superblock_is_mended_from_its_copy() {
    PRESETS.into_iter().for_each(lose_a_superblock);
}

fn lose_a_superblock(preset: Preset) {
    let dir = harness::memory();
    let (tree, clean, _) = images(dir.path(), preset);
    for offset in [0, 0x10000] {
        let path = dir.path().join("damaged.img");
        let mut bytes = clean.clone();
        bytes[offset..offset + BLOCK].fill(0);
        fs::write(&path, &bytes).expect("the damaged image");
        assert_eq!(fsck("-n", &path).0, 4);
        assert_eq!(
            fsck("-p", &path).0,
            1,
            "what was unmounted in order is checked when a superblock is gone"
        );
        assert_eq!(fsck("-n", &path).0, 0);
        let damaged = read_all(&path, &tree, true).expect("it opens");
        assert!(damaged.is_empty(), "{damaged:?}");
    }
}
