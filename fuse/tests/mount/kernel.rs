//! Changes that the server makes by itself, beside the kernel's caches: modes, times, pages.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use nacre_engine::{Names, Timestamp};
use nacre_fuse::ServeOptions;
use nacre_vfs::{Caller, SetTime};
use rustix::fs::{AtFlags, CWD, IFlags, StatxFlags, ioctl_setflags, statx};

use crate::common::{Mounted, root_options};

/// A shell as a user without privileges, with the mountpoint in `$M`.
fn as_nobody(mount: &Mounted, script: &str) -> std::process::Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
    command.env("M", mount.dir()).output().unwrap()
}

/// One field of the attributes, which the kernel may answer by itself.
fn field(path: &Path, which: StatxFlags) -> rustix::fs::Statx {
    statx(CWD, path, AtFlags::empty(), which).unwrap()
}

fn mode(path: &Path) -> u32 {
    u32::from(field(path, StatxFlags::MODE).stx_mode) & 0o7777
}

/// A program that was set-user-ID root, and that a user has changed since, ran as root: the server took the bit away, and
/// the kernel went on with the mode that it had.
#[test]
fn a_changed_program_does_not_run_as_its_owner() {
    let all = [
        root_options(),
        ServeOptions { writeback: true, ..root_options() },
        ServeOptions { direct_io: true, ..root_options() },
    ];
    let changes = [
        "dd if=/usr/bin/id of=$M/id bs=4096 count=1 conv=notrunc",
        "dd if=/usr/bin/id of=$M/id bs=4096 count=1 conv=notrunc oflag=direct",
        "cat /usr/bin/id >$M/id",
        "truncate -s +1 $M/id",
        "fallocate -l 4096 -z -o 1000000 $M/id",
        "fallocate -l 4096 -o 1000000 $M/id",
        "fallocate -l 4096 -p -o 1000000 $M/id",
    ];
    for options in all {
        let Some(mount) = Mounted::with(options.clone()) else { return };
        fs::set_permissions(mount.dir(), PermissionsExt::from_mode(0o777)).unwrap();
        fs::set_permissions(mount.dir().parent().unwrap(), fs::metadata("/tmp").unwrap().permissions())
            .unwrap();
        let path = mount.path("id");
        for change in changes {
            fs::copy("/usr/bin/id", &path).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
            let who = || String::from_utf8(as_nobody(&mount, "$M/id -u").stdout).unwrap();
            assert_eq!((who().trim(), mode(&path)), ("0", 0o6777));
            let changed = as_nobody(&mount, change);
            assert!(changed.status.success(), "{changed:?}");
            assert_eq!(
                (who().trim(), mode(&path)),
                ("65534", 0o777),
                "{change}, {options:?}",
                options = options.writeback
            );
        }
        mount.end().unwrap();
    }
}

/// Set-gid without execution by the group marks a file for old programs. A member of the group keeps the mark.
#[test]
fn set_gid_goes_with_a_change_by_a_stranger_to_the_group() {
    let Some(mount) = Mounted::plain() else { return };
    fs::set_permissions(mount.dir(), PermissionsExt::from_mode(0o777)).unwrap();
    fs::set_permissions(mount.dir().parent().unwrap(), fs::metadata("/tmp").unwrap().permissions()).unwrap();
    let path = mount.path("file");
    let changes = [
        "printf x | dd of=$M/file conv=notrunc",
        "truncate -s +1 $M/file",
        "fallocate -l 4096 -o 1000000 $M/file",
        "printf x >$M/file",
    ];
    for change in changes {
        for (gid, left) in [(0, 0o666), (65_534, 0o2666)] {
            fs::write(&path, [1; 10_000]).unwrap();
            std::os::unix::fs::chown(&path, Some(0), Some(gid)).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o6666)).unwrap();
            let changed = as_nobody(&mount, change);
            assert!(changed.status.success(), "{change}: {changed:?}");
            assert_eq!(mode(&path), left, "{change}, group {gid}");
        }
    }
    mount.end().unwrap();
}

/// chown(2) that gives neither owner nor group is a request without a field.
#[test]
fn a_change_of_owner_to_the_same_takes_set_id_bits() {
    let Some(mount) = Mounted::plain() else { return };
    let path = mount.path("file");
    fs::write(&path, "content").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6755)).unwrap();
    fs::set_permissions(mount.dir(), PermissionsExt::from_mode(0o777)).unwrap();
    fs::set_permissions(mount.dir().parent().unwrap(), fs::metadata("/tmp").unwrap().permissions()).unwrap();
    as_nobody(&mount, "chown : $M/file");
    assert_eq!(mode(&path), 0o6755);
    std::os::unix::fs::chown(&path, None, None).unwrap();
    assert_eq!(mode(&path), 0o755);
    mount.end().unwrap();
}

/// The super-user of a container may lack CAP_FSETID. A change of size says nothing of that.
#[test]
fn the_super_user_keeps_set_id_bits_only_with_the_right_to() {
    let Some(mount) = Mounted::plain() else { return };
    let path = mount.path("file");
    for change in ["truncate -s +1 $F", "truncate -s 0 $F", "fallocate -l 4096 -o 1000000 $F"] {
        for (has_right, left) in [(true, 0o6777), (false, 0o777)] {
            fs::write(&path, [1; 10_000]).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
            let mut command = Command::new("setpriv");
            command.args(if has_right { [].as_slice() } else { &["--bounding-set", "-fsetid"] });
            let done = command.args(["sh", "-c", change]).env("F", &path).status().unwrap();
            assert!(done.success(), "{change}");
            assert_eq!(mode(&path), left, "{change}");
        }
    }
    mount.end().unwrap();
}

/// A file that is written in the clock tick in which it was made gets no time from the kernel. Its pages came much later,
/// and with the time of then.
#[test]
fn a_file_that_is_written_at_once_keeps_its_mtime_with_writeback() {
    let Some(mount) = Mounted::with(ServeOptions { writeback: true, ..root_options() }) else { return };
    let make = |number: usize| {
        let path = mount.path(&format!("file{number}"));
        let mut file = File::create(&path).unwrap();
        file.write_all(b"content").unwrap();
        (file, path)
    };
    let files: Vec<_> = (0..20).map(make).collect();
    let mtime = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let before: Vec<_> = files.iter().map(|(_, path)| mtime(path)).collect();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let paths: Vec<_> = files.into_iter().map(|(_, path)| path).collect();
    File::open(mount.dir()).and_then(|dir| dir.sync_all()).unwrap();
    // Dropping caches twice: inodes of dropped names go with the second round.
    for _ in 0..2 {
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    }
    let after: Vec<_> = paths.iter().map(|path| mtime(path)).collect();
    assert_eq!(after, before);
    mount.end().unwrap();
}

/// The same for what a copy within the file system overwrites.
#[test]
fn a_program_that_was_copied_over_does_not_run_as_its_owner() {
    let Some(mount) = Mounted::plain() else { return };
    let (from, to) = (mount.path("from"), mount.path("to"));
    fs::write(&from, [1; 10_000]).unwrap();
    fs::write(&to, [2; 10_000]).unwrap();
    for path in [&from, &to] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o4777)).unwrap();
    }
    fs::set_permissions(mount.dir().parent().unwrap(), fs::metadata("/tmp").unwrap().permissions()).unwrap();
    fs::set_permissions(mount.dir(), PermissionsExt::from_mode(0o777)).unwrap();
    let copied = as_nobody(&mount, "xfs_io -c \"copy_range -l 10000 $M/from\" $M/to");
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!((mode(&from), mode(&to)), (0o4777, 0o777));
    assert_eq!(fs::read(&to).unwrap(), [1; 10_000]);
    mount.end().unwrap();
}

#[test]
fn chattr_moves_ctime() {
    let Some(mount) = Mounted::plain() else { return };
    let path = mount.path("file");
    fs::write(&path, b"x").unwrap();
    let ctime = || {
        let time = field(&path, StatxFlags::CTIME).stx_ctime;
        (time.tv_sec, time.tv_nsec)
    };
    let before = ctime();
    // The clock of the kernel ticks every few milliseconds.
    while mount.vfs().now() <= Timestamp::new(before.0, before.1) {
        std::thread::yield_now();
    }
    ioctl_setflags(File::open(&path).unwrap(), IFlags::IMMUTABLE).unwrap();
    assert!(ctime() > before);
    ioctl_setflags(File::open(&path).unwrap(), IFlags::empty()).unwrap();
    mount.end().unwrap();
}

/// A file that is written, renamed over another one while it is open, and not synchronised: a crash left an empty one.
#[test]
fn what_replaces_a_file_is_there_before_its_name() {
    for threads in [1, 2] {
        let options = ServeOptions { writeback: true, threads: Some(threads), ..root_options() };
        let Some(mount) = Mounted::with(options) else { return };
        let read_below = |name: &[u8]| {
            let vfs = mount.vfs();
            let node = vfs.lookup(&Caller::ROOT, vfs.root(), name).unwrap();
            let mut content = vec![0; 20_000];
            let count = vfs.read(&node, 0, &mut content).unwrap();
            content.truncate(count);
            content
        };
        fs::write(mount.path("name"), [1; 10_000]).unwrap();
        let mut file = File::create_new(mount.path("new")).unwrap();
        file.write_all(&[2; 20_000]).unwrap();
        fs::rename(mount.path("new"), mount.path("name")).unwrap();
        assert!(read_below(b"name") == [2; 20_000], "a file system that crashed now would have this");
        // Both change their names here.
        let mut other = File::create_new(mount.path("other")).unwrap();
        other.write_all(&[3; 15_000]).unwrap();
        file.write_all_at(&[4; 20_000], 0).unwrap();
        let exchange = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(CWD, mount.path("other"), CWD, mount.path("name"), exchange).unwrap();
        assert!(read_below(b"name") == [3; 15_000] && read_below(b"other") == [4; 20_000]);
        drop((file, other));
        mount.end().unwrap();
    }
}

/// write(2) accepted bytes without end that writeback then could not place, and only fsync and close told.
#[test]
fn failed_writeback_is_told_to_the_next_write() {
    let Some(mount) = Mounted::with(ServeOptions { writeback: true, ..root_options() }) else { return };
    let file = File::options().read(true).write(true).create_new(true).open(mount.path("file")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    // Beyond the largest file of the layout.
    let beyond = nacre_lab::model::MAX_FILE_SIZE;
    file.write_all_at(b"x", beyond).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EFBIG));
    // Reading and stat(2) are not told.
    assert_eq!(file.read_at(&mut [0; 10], beyond + 1).unwrap(), 0);
    assert_eq!(fs::metadata(mount.path("file")).unwrap().len(), beyond + 1);
    rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).unwrap();
    file.write_all_at(b"y", beyond).unwrap();
    let _ = file.sync_all();
    assert_eq!(file.write_at(b"y", 0).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    // Once: a program that goes on does.
    file.write_all_at(b"y", 0).unwrap();
    file.set_len(100).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.end().unwrap();
}

/// A rename replaced a file by one whose data was lost, and a copy within the server left that data out.
#[test]
fn a_file_with_lost_data_replaces_no_other() {
    let Some(mount) = Mounted::with(ServeOptions { writeback: true, ..root_options() }) else { return };
    let [old, new, again] = ["old", "new", "again"].map(|name| mount.path(name));
    let create = |path: &Path| File::options().read(true).write(true).create_new(true).open(path).unwrap();
    let rename = |from: &Path, flags| rustix::fs::renameat_with(CWD, from, CWD, &old, flags);
    let (replace, exchange) = (rustix::fs::RenameFlags::empty(), rustix::fs::RenameFlags::EXCHANGE);
    // Beyond the largest file of the layout.
    let beyond = nacre_lab::model::MAX_FILE_SIZE;
    fs::write(&old, "old").unwrap();

    let file = create(&new);
    file.write_all_at(b"xy", beyond).unwrap();
    for flags in [replace, exchange, replace] {
        assert_eq!(rename(&new, flags), Err(rustix::io::Errno::FBIG), "{flags:?}");
        assert_eq!(fs::read(&old).unwrap(), b"old");
    }
    // Once it is cut, nothing of it is lost.
    drop(file);
    fs::write(&new, "new").unwrap();
    rename(&new, replace).unwrap();
    assert_eq!(fs::read(&old).unwrap(), b"new");

    let file = create(&again);
    file.write_all_at(b"xy", beyond).unwrap();
    file.sync_all().unwrap_err();
    // The pages are in the kernel, which has the failure for this call, too.
    let copy = create(&mount.path("copy"));
    let copied = || rustix::fs::copy_file_range(&file, Some(&mut (beyond + 1)), &copy, Some(&mut 0), 1);
    assert_eq!(copied().or_else(|_| copied()), Ok(1));
    assert_eq!(fs::read(mount.path("copy")).unwrap(), b"y");
    assert_eq!(rename(&again, replace), Err(rustix::io::Errno::FBIG));
    // A program that was told, mends the file, and synchronises it.
    file.set_len(1).unwrap();
    file.write_at(b"z", 0).or_else(|_| file.write_at(b"z", 0)).unwrap();
    file.sync_all().unwrap();
    rename(&again, replace).unwrap();
    assert_eq!(fs::read(&old).unwrap(), b"z");
    drop((file, copy));
    mount.end().unwrap();
}

/// Each reader of a time sees what the server keeps.
#[test]
fn times_that_the_server_moves_are_seen() {
    let Some(mount) = Mounted::plain() else { return };
    let (dir, link, file) = (mount.path("dir"), mount.path("link"), mount.path("file"));
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    fs::write(&file, [1; 5000]).unwrap();
    let vfs = mount.vfs();
    let long_ago = SetTime::At(Timestamp::new(1000, 0));
    for name in ["dir", "link", "file"] {
        let node = vfs.layout().lookup(&vfs.layout().root(), name.as_bytes()).unwrap();
        vfs.set_times(&Caller::ROOT, &node, long_ago, SetTime::Omit).unwrap();
    }
    crate::common::drop_caches();
    let atime = |path: &Path| fs::symlink_metadata(path).unwrap().atime();
    assert_eq!([atime(&dir), atime(&link), atime(&file)], [1000; 3]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("file"));
    assert_eq!(fs::copy(&file, mount.path("copy")).unwrap(), 5000);
    let time = |path: &Path| {
        statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ATIME).unwrap().stx_atime.tv_sec
    };
    assert!(
        [time(&dir), time(&link), time(&file)].iter().all(|time| *time > 1000),
        "{:?}",
        [time(&dir), time(&link), time(&file)]
    );
    mount.end().unwrap();
}

/// O_NOATIME comes with each request to read.
#[test]
fn reading_can_leave_no_trace() {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let Some(mount) = Mounted::plain() else { return };
    let path = mount.path("file");
    fs::write(&path, [1; 5000]).unwrap();
    let vfs = mount.vfs();
    let node = vfs.layout().lookup(&vfs.layout().root(), b"file").unwrap();
    let long_ago = SetTime::At(Timestamp::new(1000, 0));
    vfs.set_times(&Caller::ROOT, &node, long_ago, SetTime::Omit).unwrap();
    drop(node);
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    let mut options = File::options();
    let mut content = Vec::new();
    options.read(true).custom_flags(libc::O_NOATIME).open(&path).unwrap().read_to_end(&mut content).unwrap();
    assert_eq!((content.len(), fs::metadata(&path).unwrap().atime()), (5000, 1000));
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), 5000);
    assert!(fs::metadata(&path).unwrap().atime() > 1000);
    mount.end().unwrap();
}

/// Opening for writing is the server's to refuse, for the kernel does not know these flags. Without that, stores through a
/// mapping were accepted and lost.
#[test]
fn guarded_files_are_not_opened_for_writing() {
    let layout = nacre_lab::model::MemLayout::default();
    let new = nacre_engine::NewInode::of_root(nacre_engine::FileKind::Regular, 0o644, Timestamp::default());
    let node = layout.create(&layout.root(), b"first", &new).unwrap();
    let flags = |flags| nacre_engine::SetAttr { flags: Some(flags), ..Default::default() };
    assert!(!layout.has_guarded());
    layout.setattr(&node, &flags(nacre_engine::Attr::APPEND_ONLY), Timestamp::default()).unwrap();
    layout.setattr(&node, &flags(0), Timestamp::default()).unwrap();
    drop(node);
    // Once is enough: a mount cannot begin to be asked later.
    assert!(layout.has_guarded());
    let Some(mount) = Mounted::of(layout, root_options()) else { return };
    let code = |error: std::io::Error| error.raw_os_error();
    let path = mount.path("file");
    fs::write(&path, b"content").unwrap();
    let set = |flags| ioctl_setflags(File::open(&path).unwrap(), flags).unwrap();
    let (read, mut write) = (File::open(&path).unwrap(), File::options());
    write.write(true);
    let (mut both, mut append) = (File::options(), File::options());
    both.read(true).write(true);
    append.append(true);
    set(IFlags::IMMUTABLE);
    for how in [&write, &both, &append] {
        assert_eq!(how.open(&path).err().and_then(code), Some(libc::EPERM), "{how:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"content");
    let touch = || Command::new("touch").arg(&path).output().unwrap().status.success();
    assert!(!touch());
    set(IFlags::APPEND);
    for how in [&write, &both] {
        assert_eq!(how.open(&path).err().and_then(code), Some(libc::EPERM), "{how:?}");
    }
    append.open(&path).unwrap().write_all(b" and more").unwrap();
    assert_eq!(append.truncate(false).open(&path).unwrap().set_len(1).map_err(code), Err(Some(libc::EPERM)));
    // Its times may be those of now, and no others.
    assert!(touch());
    let chosen = Command::new("touch").args(["-d", "2001-01-01"]).arg(&path).output().unwrap();
    assert!(!chosen.status.success());
    set(IFlags::empty());
    assert_eq!(fs::read(&path).unwrap(), b"content and more");
    write.open(&path).unwrap().write_all(b"C").unwrap();
    drop(read);
    mount.end().unwrap();
}
