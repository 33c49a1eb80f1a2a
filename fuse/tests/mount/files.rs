//! Files, names and attributes; how a mount ends.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use crate::common::{Mounted, drop_caches, root_options};
use nacre_engine::{Attr, Kind, Names, SetAttr};
use nacre_fuse::ServeOptions;
use nacre_vfs::Caller;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, RenameFlags, Timespec, Timestamps, XattrFlags,
    fallocate, getxattr, getxattr_query, ioctl_setflags, listxattr, mknodat, removexattr, renameat_with,
    setxattr, statvfs, utimensat,
};

fn code(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Everything that a program commonly does with files, under these options.
fn use_files(options: ServeOptions) {
    let Some(mount) = Mounted::with(options) else { return };
    let path = mount.path("file");
    let data = random_bytes(3_000_001, 7);
    fs::write(&path, &data).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
    assert_eq!(fs::metadata(&path).unwrap().len(), data.len() as u64);

    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"the end").unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(data.len() as u64)).unwrap();
    let mut tail = String::new();
    file.read_to_string(&mut tail).unwrap();
    assert_eq!(tail, "the end");

    file.write_all_at(b"middle", 1_000_000).unwrap();
    file.set_len(1_000_003).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(file.read_at(&mut bytes, 1_000_000).unwrap(), 3);
    assert_eq!(&bytes[..3], b"mid");
    file.set_len(1_000_010).unwrap();
    assert_eq!(file.read_at(&mut bytes, 1_000_000).unwrap(), 8);
    assert_eq!(&bytes, b"mid\0\0\0\0\0");
    // Truncation on open.
    File::options().write(true).truncate(true).open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);

    fs::write(mount.path("to copy"), &data).unwrap();
    assert_eq!(fs::copy(mount.path("to copy"), mount.path("copy")).unwrap(), data.len() as u64);
    assert_eq!(fs::read(mount.path("copy")).unwrap(), data);
    drop(file);
    mount.end().unwrap();
}

#[test]
fn files_work() {
    use_files(root_options());
}

#[test]
fn files_work_with_writeback() {
    use_files(ServeOptions { writeback: true, ..root_options() });
}

#[test]
fn files_work_past_the_page_cache() {
    use_files(ServeOptions { direct_io: true, ..root_options() });
}

#[test]
fn files_work_with_one_thread() {
    use_files(ServeOptions { threads: Some(1), ..root_options() });
}

#[test]
fn the_table_of_mounts_names_type_and_device() {
    let Some(mount) = Mounted::plain() else { return };
    let entry = nacre_fuse::mounts::at(mount.dir()).unwrap().unwrap();
    assert_eq!(entry.fstype, "fuse.nacre");
    assert_eq!(entry.source, "model");
    mount.end().unwrap();
}

#[test]
fn names_work() {
    let Some(mount) = Mounted::plain() else { return };
    fs::create_dir(mount.path("dir")).unwrap();
    assert_eq!(fs::metadata(mount.dir()).unwrap().nlink(), 3);
    fs::write(mount.path("dir/a"), b"a").unwrap();
    fs::hard_link(mount.path("dir/a"), mount.path("b")).unwrap();
    assert_eq!(fs::metadata(mount.path("b")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(mount.path("b")).unwrap().ino(),
        fs::metadata(mount.path("dir/a")).unwrap().ino()
    );
    symlink("dir/a", mount.path("link")).unwrap();
    assert_eq!(fs::read_link(mount.path("link")).unwrap(), Path::new("dir/a"));
    assert_eq!(fs::read(mount.path("link")).unwrap(), b"a");

    fs::rename(mount.path("b"), mount.path("dir/c")).unwrap();
    // A name that was looked for before it existed must not stay absent.
    assert_eq!(code(fs::metadata(mount.path("new"))), Some(libc::ENOENT));
    assert_eq!(code(fs::metadata(mount.path("new"))), Some(libc::ENOENT));
    fs::rename(mount.path("dir/c"), mount.path("new")).unwrap();
    assert_eq!(fs::read(mount.path("new")).unwrap(), b"a");
    assert_eq!(code(fs::metadata(mount.path("dir/c"))), Some(libc::ENOENT));

    assert_eq!(code(fs::remove_dir(mount.path("dir"))), Some(libc::ENOTEMPTY));
    assert_eq!(code(fs::create_dir(mount.path("dir"))), Some(libc::EEXIST));
    assert_eq!(code(fs::remove_file(mount.path("dir"))), Some(libc::EISDIR));
    assert_eq!(code(fs::write(mount.path(&"n".repeat(256)), b"")), Some(libc::ENAMETOOLONG));
    fs::write(mount.path(&"n".repeat(255)), b"").unwrap();
    fs::remove_file(mount.path("dir/a")).unwrap();
    assert_eq!(fs::metadata(mount.path("new")).unwrap().nlink(), 1);
    fs::remove_dir(mount.path("dir")).unwrap();
    mount.end().unwrap();
}

#[test]
fn renames_replace_refuse_and_exchange() {
    let Some(mount) = Mounted::plain() else { return };
    let (a, b) = (mount.path("a"), mount.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let rename = |flags| renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    assert_eq!(rename(RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Err(rustix::io::Errno::INVAL));
    rename(RenameFlags::empty()).unwrap();
    assert_eq!((code(fs::metadata(&a)), fs::read(&b).unwrap()), (Some(libc::ENOENT), b"b".to_vec()));
    mount.end().unwrap();
}

/// The old name is a character device 0:0 afterwards. The kernel sees to the flag that forbids a replacement.
#[test]
fn a_rename_leaves_a_whiteout() {
    let Some(mount) = Mounted::plain() else { return };
    let (a, b) = (mount.path("a"), mount.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let rename = |flags| renameat_with(CWD, &a, CWD, &b, RenameFlags::WHITEOUT | flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"a");
    fs::remove_file(&b).unwrap();
    let is_whiteout = || {
        let left = fs::symlink_metadata(&a).unwrap();
        left.file_type().is_char_device() && (left.rdev(), left.mode() & 0o7777) == (0, 0)
    };
    assert!(is_whiteout());
    rename(RenameFlags::NOREPLACE).unwrap();
    assert!(is_whiteout() && fs::symlink_metadata(&b).unwrap().file_type().is_char_device());
    mount.end().unwrap();
}

#[test]
fn attributes_work() {
    let Some(mount) = Mounted::plain() else { return };
    let path = mount.path("file");
    fs::write(&path, b"12345").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4750)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), libc::S_IFREG | 0o4750);
    std::os::unix::fs::chown(&path, Some(1000), Some(1001)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (1000, 1001));
    assert_eq!(metadata.mode() & 0o7777, 0o750, "a change of owner drops set-uid");
    assert_eq!(metadata.blksize(), 4096);
    assert_eq!(metadata.blocks(), 8);

    // Times before 1970 with fractions, which the library below decodes wrongly.
    let times = Timestamps {
        last_access: Timespec { tv_sec: -2, tv_nsec: 800_000_000 },
        last_modification: Timespec { tv_sec: 86_400, tv_nsec: 123_456_789 },
    };
    utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.atime(), metadata.atime_nsec()), (-2, 800_000_000));
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (86_400, 123_456_789));

    // What was written changes the times that the kernel shows.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"6").unwrap();
    let written = fs::metadata(&path).unwrap();
    assert_eq!(written.len(), 6);
    assert!(written.mtime() > 86_400 && written.ctime() >= metadata.ctime());
    mount.end().unwrap();
}

#[test]
fn special_files_work() {
    let Some(mount) = Mounted::plain() else { return };
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, mount.path("fifo"), FileType::Fifo, mode, 0).unwrap();
    mknodat(CWD, mount.path("null"), FileType::CharacterDevice, mode, libc::makedev(1, 3)).unwrap();
    mknodat(CWD, mount.path("large"), FileType::BlockDevice, mode, libc::makedev(259, 70_000)).unwrap();
    assert_eq!(fs::metadata(mount.path("fifo")).unwrap().mode(), libc::S_IFIFO | 0o600);
    assert_eq!(fs::metadata(mount.path("large")).unwrap().rdev(), libc::makedev(259, 70_000));
    // The mount was told that devices work.
    File::options().write(true).open(mount.path("null")).unwrap().write_all(b"gone").unwrap();
    let listener = std::os::unix::net::UnixListener::bind(mount.path("socket")).unwrap();
    assert_eq!(fs::metadata(mount.path("socket")).unwrap().mode() & libc::S_IFMT, libc::S_IFSOCK);
    drop(listener);
    mount.end().unwrap();
}

#[test]
fn extended_attributes_work() {
    let Some(mount) = Mounted::plain() else { return };
    let path = mount.path("file");
    fs::write(&path, b"").unwrap();
    let set = |value: &[u8], flags| setxattr(&path, "user.colour", value, flags);
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    assert_eq!(set(b"red", XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
    assert_eq!(set(b"red", both), Err(rustix::io::Errno::NODATA));
    set(b"red", XattrFlags::CREATE).unwrap();
    assert_eq!(set(b"blue", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(set(b"blue", both), Err(rustix::io::Errno::EXIST));
    let mut three = [0; 3];
    assert_eq!(getxattr_query(&path, "user.colour"), Ok(3), "a size of 0 asks for the size");
    assert_eq!(getxattr(&path, "user.colour", &mut three), Ok(3));
    assert_eq!(&three, b"red");
    assert_eq!(getxattr(&path, "user.colour", &mut [0; 2]), Err(rustix::io::Errno::RANGE));
    set(&random_bytes(60_000, 3), XattrFlags::REPLACE).unwrap();
    let mut large = vec![0; 65_536];
    assert_eq!(getxattr(&path, "user.colour", &mut large), Ok(60_000));
    assert_eq!(large[..60_000], random_bytes(60_000, 3));
    let mut names = [0; 64];
    let len = listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], b"user.colour\0");
    removexattr(&path, "user.colour").unwrap();
    assert_eq!(getxattr(&path, "user.colour", &mut three), Err(rustix::io::Errno::NODATA));
    mount.end().unwrap();
}

#[test]
fn space_is_allocated_punched_and_found() {
    let Some(mount) = Mounted::plain() else { return };
    let file = File::create_new(mount.path("file")).unwrap();
    file.write_all_at(&[1; 65_536], 0).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 60_000, 10_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 70_000);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 70_000);
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
    let content = fs::read(mount.path("file")).unwrap();
    assert!(content[4096..12_288].iter().chain(&content[60_000..]).all(|byte| *byte == 0));
    assert!(content[..4096].iter().chain(&content[12_288..60_000]).all(|byte| *byte == 1));
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(12_288));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(2 << 20)), Err(rustix::io::Errno::NXIO));

    let space = statvfs(mount.dir()).unwrap();
    let stat = mount.vfs().stat();
    assert_eq!((space.f_blocks, space.f_bfree, space.f_bavail), (stat.blocks, stat.free, stat.available));
    assert_eq!((space.f_files, space.f_ffree), (stat.inodes, stat.inodes_free));
    assert_eq!((space.f_frsize, space.f_namemax), (4096, 255));
    drop(file);
    mount.end().unwrap();
}

/// A copy that leaves out what it takes for holes must miss nothing that waits in the kernel.
#[test]
fn what_waits_in_the_kernel_is_no_hole() {
    let Some(mount) = Mounted::with(ServeOptions { writeback: true, ..root_options() }) else { return };
    let file = File::options().read(true).write(true).create_new(true).open(mount.path("file")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[1; 4096], 65_536).unwrap();
    let seek = |to| rustix::fs::seek(&file, to);
    let data = seek(rustix::fs::SeekFrom::Data(0)).unwrap();
    let hole = seek(rustix::fs::SeekFrom::Hole(data)).unwrap();
    assert!(data <= 65_536 && hole >= 65_536 + 4096, "{data} to {hole}");
    // Also what it grew by.
    file.write_all_at(&[1; 4096], 2 << 20).unwrap();
    let hole = seek(rustix::fs::SeekFrom::Hole(2 << 20));
    assert_eq!(hole, Ok((2 << 20) + 4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(3 << 20)), Err(rustix::io::Errno::NXIO));
    drop(file);
    mount.end().unwrap();
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let Some(mount) = Mounted::plain() else { return };
    let path = mount.path("file");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop_caches();
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut content).unwrap();
    assert_eq!(content, [7; 100_000]);
    file.write_all_at(b"still", 99_999).unwrap();
    drop(file);
    // The kernel forgets the inode in its own time; then its space is free.
    let full = mount.vfs().stat().blocks;
    for _ in 0..200 {
        if mount.vfs().stat().free == full {
            mount.end().unwrap();
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the space of an unlinked file that was closed is still in use: {:?}", mount.vfs().stat());
}

/// Lookups are counted with every reply that names an inode, and taken back with FORGET. If a single one were counted
/// too often, an inode without a name would stay for ever; if too seldom, one in use would vanish.
#[test]
fn the_kernel_and_the_server_count_alike() {
    const THREADS: u64 = 3;
    let Some(mount) = Mounted::plain() else { return };
    let before = mount.vfs().stat();
    let all: Vec<_> = (0..THREADS).map(|seed| (seed, mount.dir().to_path_buf())).collect();
    std::thread::scope(|scope| {
        for (seed, dir) in &all {
            scope.spawn(move || change_at_random(dir, seed + 1, 2_000));
        }
        scope.spawn(|| {
            for _ in 0..20 {
                drop_caches();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
    });
    for entry in fs::read_dir(mount.dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while mount.vfs().stat().inodes_free != before.inodes_free || mount.vfs().stat().free != before.free {
        assert!(std::time::Instant::now() < end, "{before:?} became {:?}", mount.vfs().stat());
        drop_caches();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    mount.end().unwrap();
}

/// Makes, links, moves, reads, lists and removes a few names that other threads work on, too. Any of it may fail as the
/// others come first, but a file that is open works.
fn change_at_random(dir: &Path, seed: u64, operations: usize) {
    let bytes = random_bytes(operations * 3, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for choice in bytes.chunks_exact(3) {
        let name = |number: u8| dir.join(format!("{}", number % 12));
        let (one, other) = (name(choice[1]), name(choice[2]));
        match choice[0] % 8 {
            0 | 1 => {
                if let Ok(mut file) =
                    File::options().read(true).write(true).create(true).truncate(false).open(&one)
                {
                    file.write_all(&[choice[1]; 5000]).unwrap();
                    let _ = fs::remove_file(&one);
                    file.write_all(&[choice[1]; 5000]).unwrap();
                    assert!(file.metadata().unwrap().len() >= 10_000);
                }
            }
            2 => drop(fs::hard_link(&one, &other)),
            3 => drop(fs::rename(&one, &other)),
            4 => drop(fs::create_dir(&one)),
            5 => drop(fs::read_dir(dir).unwrap().filter_map(|entry| entry.ok()?.metadata().ok()).count()),
            6 => drop(fs::remove_dir(&one).or_else(|_| fs::remove_file(&one))),
            _ => drop(File::create_new(&one)),
        }
    }
}

#[test]
fn a_directory_can_be_read_while_it_changes() {
    const FILES: usize = 10_000;
    let Some(mount) = Mounted::plain() else { return };
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..FILES {
        File::create_new(dir.join(format!("{number:05}"))).unwrap();
    }
    let number_of = |name: &OsStr| std::str::from_utf8(name.as_bytes()).unwrap().parse::<usize>().unwrap();
    // What is odd is removed and what is new is made while the directory is read; what is even stays throughout.
    let changes = std::thread::spawn({
        let dir = dir.clone();
        move || {
            for number in (1..FILES).step_by(2) {
                fs::remove_file(dir.join(format!("{number:05}"))).unwrap();
                File::create_new(dir.join(format!("{}", FILES + number))).unwrap();
            }
        }
    });
    for _ in 0..4 {
        let mut seen = vec![0; 2 * FILES];
        for entry in fs::read_dir(&dir).unwrap() {
            seen[number_of(&entry.unwrap().file_name())] += 1;
        }
        for number in (0..FILES).step_by(2) {
            assert_eq!(seen[number], 1, "{number} was there all the time");
        }
        assert!(seen.iter().all(|times| *times <= 1), "a name was seen twice");
    }
    changes.join().unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), FILES);
    // Removing everything while reading leaves nothing behind.
    fs::remove_dir_all(&dir).unwrap();
    mount.end().unwrap();
}

#[test]
fn other_users_are_held_to_permissions() {
    let Some(mount) = Mounted::plain() else { return };
    let secret = mount.path("secret");
    fs::write(&secret, b"x").unwrap();
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    fs::set_permissions(mount.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    let as_nobody = |script: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
        command.env("M", mount.dir()).status().unwrap().success()
    };
    // A directory of the test's own is not open to others.
    fs::set_permissions(mount.dir().parent().unwrap(), fs::metadata("/tmp").unwrap().permissions()).unwrap();
    assert!(as_nobody("ls $M >/dev/null"));
    assert!(!as_nobody("cat $M/secret 2>/dev/null"));
    assert!(!as_nobody("touch $M/new 2>/dev/null"));
    fs::set_permissions(mount.dir(), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(as_nobody("umask 027 && touch $M/new"));
    let metadata = fs::metadata(mount.path("new")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (65_534, 65_534, 0o640));
    // A write by somebody else than root takes set-uid away.
    fs::set_permissions(mount.path("new"), PermissionsExt::from_mode(0o4777)).unwrap();
    assert!(as_nobody("echo changed >> $M/new"));
    assert_eq!(fs::metadata(mount.path("new")).unwrap().mode() & 0o7777, 0o777);
    // So does what changes contents without a write; root's leaves it.
    for how in ["--punch-hole", "--zero-range", "--posix"] {
        fs::set_permissions(mount.path("new"), PermissionsExt::from_mode(0o6777)).unwrap();
        let mut command = std::process::Command::new("fallocate");
        command.args([how, "--offset", "0", "--length", "4096"]).arg(mount.path("new"));
        assert!(command.status().unwrap().success());
        assert_eq!(fs::metadata(mount.path("new")).unwrap().mode() & 0o7777, 0o6777, "{how}");
        assert!(as_nobody(&format!("fallocate {how} --offset 0 --length 4096 $M/new")));
        assert_eq!(fs::metadata(mount.path("new")).unwrap().mode() & 0o7777, 0o777, "{how}");
    }
    mount.end().unwrap();
}

/// Sets the flags of chattr(1).
fn set_flags(path: &Path, flags: IFlags) -> std::io::Result<()> {
    Ok(ioctl_setflags(&File::open(path)?, flags)?)
}

#[test]
fn a_file_that_may_only_be_appended_to_is() {
    for direct_io in [false, true] {
        let Some(mount) = Mounted::with(ServeOptions { direct_io, ..root_options() }) else { return };
        let path = mount.path("log");
        fs::write(&path, b"one ").unwrap();
        let other = File::options().write(true).open(&path).unwrap();
        set_flags(&path, IFlags::APPEND).unwrap();
        let mut log = File::options().append(true).open(&path).unwrap();
        log.write_all(b"two ").unwrap();
        // In several requests.
        let long = random_bytes(3_000_001, 7);
        log.write_all(&long).unwrap();
        assert_eq!(code(log.set_len(0)), Some(libc::EPERM));
        // Elsewhere, and by who has not said that he appends.
        // The server is asked about each opening where the kernel does not take that upon itself.
        let opened = File::options().write(true).open(&path);
        assert_eq!(code(opened), direct_io.then_some(libc::EPERM));
        let end = log.metadata().unwrap().len();
        for offset in [0, end, end + 1] {
            assert_eq!(code(other.write_at(b"no", offset)), Some(libc::EPERM), "at {offset}");
        }
        let content = fs::read(&path).unwrap();
        assert!(content.strip_prefix(b"one two ").unwrap() == long);
        set_flags(&path, IFlags::APPEND | IFlags::IMMUTABLE).unwrap();
        assert_eq!(code(log.write(b"no")), Some(libc::EPERM));
        set_flags(&path, IFlags::empty()).unwrap();
        other.write_all_at(b"1", 0).unwrap();
        drop((log, other));
        mount.end().unwrap();
    }
}

/// The kernel would be refused what it has accepted.
#[test]
fn flags_are_not_set_where_the_kernel_has_writes() {
    let Some(mount) = Mounted::with(ServeOptions { writeback: true, ..root_options() }) else { return };
    let (path, dir) = (mount.path("file"), mount.path("dir"));
    fs::create_dir(&dir).unwrap();
    fs::write(&path, b"accepted").unwrap();
    for flags in [IFlags::IMMUTABLE, IFlags::APPEND, IFlags::IMMUTABLE | IFlags::APPEND] {
        assert_eq!(code(set_flags(&path, flags)), Some(libc::EOPNOTSUPP));
    }
    File::open(&path).unwrap().sync_all().unwrap();
    drop_caches();
    assert_eq!(fs::read(&path).unwrap(), b"accepted");
    // Those that it has from elsewhere can be taken away, also one by one.
    let layout = mount.vfs().layout();
    let node = layout.lookup(&layout.root(), b"file").unwrap();
    let both = SetAttr { flags: Some(Attr::IMMUTABLE | Attr::APPEND_ONLY), ..SetAttr::default() };
    mount.vfs().setattr(&Caller::ROOT, &node, &both, false).unwrap();
    set_flags(&path, IFlags::APPEND).unwrap();
    assert_eq!(code(set_flags(&path, IFlags::IMMUTABLE)), Some(libc::EOPNOTSUPP));
    set_flags(&path, IFlags::empty()).unwrap();
    // Names do not wait.
    set_flags(&dir, IFlags::IMMUTABLE).unwrap();
    assert_eq!(code(File::create_new(dir.join("new"))), Some(libc::EPERM));
    set_flags(&dir, IFlags::empty()).unwrap();
    mount.end().unwrap();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let Some(mount) = Mounted::with(ServeOptions { read_only: true, ..root_options() }) else { return };
    assert_eq!(code(fs::write(mount.path("file"), b"")), Some(libc::EROFS));
    mount.end().unwrap();
}

#[test]
fn direct_io_is_possible_file_by_file() {
    let Some(mount) = Mounted::plain() else { return };
    let path = mount.path("file");
    fs::write(&path, vec![3; 8192]).unwrap();
    let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let memory = vec![5; 3 * 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    file.write_all_at(&memory[aligned..aligned + 4096], 4096).unwrap();
    // What went past the page cache is seen through it.
    let content = fs::read(&path).unwrap();
    assert!(content[..4096].iter().all(|byte| *byte == 3) && content[4096..].iter().all(|byte| *byte == 5));
    drop(file);
    mount.end().unwrap();
}

#[test]
fn a_mount_in_use_is_busy_and_can_be_detached() {
    let Some(mount) = Mounted::plain() else { return };
    let mut file = File::create_new(mount.path("file")).unwrap();
    assert_eq!(mount.unmounter().unmount().unwrap_err().kind(), Kind::Busy);
    mount.unmounter().detach().unwrap();
    file.write_all(b"still served").unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.join().unwrap();
}

#[test]
fn a_mount_that_was_detached_can_still_be_ended() {
    let Some(mount) = Mounted::plain() else { return };
    let mut file = File::create_new(mount.path("file")).unwrap();
    mount.unmounter().detach().unwrap();
    mount.unmounter().break_connection().unwrap();
    assert_eq!(file.write_all(b"lost").map_err(|error| error.kind()), Err(ErrorKind::NotConnected));
    mount.join().unwrap();
}

#[test]
fn the_kernel_says_how_many_requests_wait() {
    let Some(mount) = Mounted::plain() else { return };
    let entry = nacre_fuse::mounts::at(mount.dir()).unwrap().unwrap();
    let connection = nacre_fuse::Connection::of(&entry).unwrap();
    fs::write(mount.path("file"), b"x").unwrap();
    // The kernel may ask for something of its own at times.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while connection.waiting().unwrap() > 0 {
        assert!(std::time::Instant::now() < end);
    }
    mount.unmounter().break_connection().unwrap();
    mount.join().unwrap();
    assert_eq!(connection.waiting().unwrap(), 0);
}

#[test]
fn a_mount_can_be_ended_by_force() {
    let Some(mount) = Mounted::plain() else { return };
    let mut file = File::create_new(mount.path("file")).unwrap();
    mount.unmounter().abort().unwrap();
    assert_eq!(file.write_all(b"lost").map_err(|error| error.kind()), Err(ErrorKind::NotConnected));
    mount.join().unwrap();
}

#[test]
fn a_connection_that_broke_leaves_no_dead_mount() {
    let Some(mount) = Mounted::plain() else { return };
    let dir = mount.dir().to_path_buf();
    mount.unmounter().break_connection().unwrap();
    mount.join().unwrap();
    // The directory is gone with the test's value; what counts is that nothing is mounted on it.
    assert!(nacre_fuse::mounts::list().unwrap().iter().all(|entry| entry.mountpoint != dir));
}
