//! Damage that is found after a crash: what was interrupted is decided as a mount decides it, and what was finished stays.

use super::*;

/// An image of a crash behind a rename from `/b/f` to `/a/f`, of which everybody was told, and its files.
pub(crate) fn renamed() -> (Vec<u8>, BTreeMap<String, File>) {
    let pm = Arc::new(SimPm::new(SIZE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = mount(&pm);
    populate(&fs);
    let root = fs.root();
    let [a, b] = [b"a", b"b"].map(|name| fs.create(&root, name, &new(FileKind::Directory)).unwrap());
    // What was created last is not there after a crash where its header is damaged.
    fs.create(&root, b"last", &new(FileKind::Regular)).unwrap();
    for index in 0..100usize {
        fs.create(&b, format!("other-{index}").as_bytes(), &new(FileKind::Regular)).unwrap();
    }
    let file = fs.create(&b, b"f", &new(FileKind::Regular)).unwrap();
    put(&fs, &file, 0, &content(5, 50_000));
    fs.rename(&b, b"f", &a, b"f", RenameMode::Replace, at(4)).unwrap();
    let files = walk(&fs).unwrap();
    let image = pm.snapshot();
    drop((root, a, b, file));
    fs.abandon();
    (image, files)
}

/// The image with half of the rename: this directory's part did not reach media.
fn half(image: &[u8], directory: u64) -> Vec<u8> {
    let mut image = image.to_vec();
    let batch = *entries(&image, directory, 6).last().unwrap();
    let end = batch / BLOCK * BLOCK + BLOCK;
    image[batch..end].fill(0);
    image
}

/// Repairs what must be repaired without any loss, and gives what is there then.
fn mend_safely(what: &str, image: &[u8]) -> BTreeMap<String, File> {
    let mut after = Vec::new();
    for level in [Repair::Safe, Repair::All] {
        let pm = Arc::new(SimPm::from_image(image));
        let report = check_with(&*pm, level).unwrap();
        assert!(report.is_sound() && !report.problems.is_empty(), "{what}: {level:?}:\n{}", words(&report));
        assert!(report.problems.iter().all(|problem| !problem.loses), "{what}:\n{}", words(&report));
        assert!(check(&*pm, false).unwrap().problems.is_empty(), "{what}: {level:?}: after the repair");
        after.push(walk(&mount(&pm)).unwrap());
    }
    assert_eq!(after[0], after[1], "{what}");
    after.remove(0)
}

/// Offsets of bits of a directory that each prove themselves: in its header, the head of its log, a link, an entry.
fn bits_of(image: &[u8], directory: u64) -> [(&'static str, usize); 4] {
    let pages = log(image, directory);
    [
        ("its header", address(image, directory) + 24),
        ("the head of its log", address(image, directory) + 41),
        ("a link of its log", pages[0] + 49),
        ("an operation", pages[0] + 7 * LINE + 20),
    ]
}

/// A directory that cannot be read says nothing of a rename: its peer's half was taken back, and with it the file went.
#[test]
fn a_rename_stays_when_a_bit_of_the_other_directory_flips() {
    let (image, files) = renamed();
    for (what, offset) in bits_of(&image, files["/b"].inode) {
        let mut damaged = image.clone();
        damaged[offset] ^= 0x10;
        assert_eq!(mend_safely(what, &damaged), files, "{what}");
        // To look at it changes nothing of that.
        let pm = Arc::new(SimPm::from_image(&damaged));
        let options = MountOptions { read_only: true, background: false, ..MountOptions::default() };
        drop(LogFs::mount(Arc::clone(&pm), &options).unwrap());
        assert_eq!(mend_safely(what, &pm.snapshot()), files, "{what}, looked at");
    }
    let header = address(&image, files["/b"].inode);
    let mut damaged = image.clone();
    garble(&mut damaged[header..header + 256]);
    mend("all of the other directory", &damaged, &files, 1);
}

/// Half of a rename was committed when the log that has it was written anew for another reason.
#[test]
fn half_a_rename_is_taken_back_when_a_bit_of_its_directory_flips() {
    let (image, files) = renamed();
    let mut before = files.clone();
    let moved = before.remove("/a/f").unwrap();
    before.insert("/b/f".to_owned(), moved);
    let half = half(&image, files["/a"].inode);
    let pm = Arc::new(SimPm::from_image(&half));
    assert_eq!(walk(&mount(&pm)).unwrap(), before, "a mount takes it back");
    for (what, offset) in bits_of(&half, files["/b"].inode) {
        let mut damaged = half.clone();
        damaged[offset] ^= 0x10;
        assert_eq!(mend_safely(what, &damaged), before, "{what}");
    }
    // The same of one that has to do with neither.
    let mut damaged = half.clone();
    damaged[log(&half, files["/many"].inode)[0] + 7 * LINE + 20] ^= 0x10;
    assert_eq!(mend_safely("another directory", &damaged), before);
}

/// The lines of a log page that hold something, from its end.
fn lines_from_end(image: &[u8], page: usize) -> impl Iterator<Item = usize> + '_ {
    let is_used = |line: &usize| image[*line..line + LINE].iter().any(|&byte| byte != 0);
    (1..64).rev().map(move |line| page + line * LINE).filter(is_used)
}

/// The strict pass could not read such a page, a repair saw no damage in it, and so it was never mounted again.
#[test]
fn a_line_that_cannot_be_read_is_repaired_behind_the_end_of_a_log_too() {
    let (image, files) = renamed();
    for path in ["/many", "/b", "/many/deep/written"] {
        let page = *log(&image, files[path].inode).last().unwrap();
        let last = lines_from_end(&image, page).next().unwrap();
        for line in [last, last + LINE, last + 3 * LINE] {
            let pm = Arc::new(SimPm::from_image(&image));
            pm.poison(line as u64, LINE as u64);
            let told = check_with(&*pm, Repair::Safe).unwrap();
            assert!(told.problems.iter().any(|problem| problem.loses), "{path}: {}", words(&told));
            let report = check(&*pm, true).unwrap();
            assert!(report.is_sound(), "{path}: {}", words(&report));
            let after = walk(&mount(&pm)).unwrap();
            let missing = files.iter().filter(|(other, file)| after.get(*other) != Some(file)).count();
            assert!(missing <= usize::from(line == last), "{path}: {missing}");
        }
    }
}

/// What stands in the next page shows that the last operation of a page was finished; nobody looked.
#[test]
fn the_last_operation_of_a_page_is_not_lost_silently() {
    let (image, files) = renamed();
    for (path, also) in [("/many", false), ("/many/deep/written", false), ("/many/deep/written", true)] {
        let page = log(&image, files[path].inode)[1];
        let last = lines_from_end(&image, page).next().unwrap();
        let mut damaged = image.clone();
        garble(&mut damaged[last + 40..last + LINE]);
        if also {
            damaged[page + 5 * LINE + 30] ^= 0x10;
        }
        nothing_is_written(&damaged);
        mend(path, &damaged, &files, 1);
        let mut damaged = image.clone();
        damaged[page + 9 * LINE..page + 10 * LINE].fill(0);
        mend(&format!("a line of zeros in {path}"), &damaged, &files, 1);
    }
}
