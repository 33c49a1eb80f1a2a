//! Mapped memory and file handles, through the kernel.
#![allow(unsafe_code)] // mmap and open_by_handle_at have no safe interface.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Mounted, root_options};
use nacre_fuse::ServeOptions;
use nacre_vfs::Caller;
use rustix::fs::{CWD, RenameFlags};

/// A shared, writable mapping of the first bytes of a file.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn of(file: &File, len: usize) -> Mapping {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice takes nothing away from this program.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Mapping { start: start.cast(), len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long and lives as long as self; no file here becomes shorter than it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    fn sync(&self) {
        // SAFETY: the range is the mapping.
        let done = unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // munmap(2) waits for what it writes back, and holds the lock of this process' memory meanwhile, which the server
        // in this process may want for its heap: nothing may be left to be written. msync(2) does not hold it.
        // SAFETY: the range is the mapping, and no slice of it outlives self.
        unsafe {
            libc::msync(self.start.cast(), self.len, libc::MS_SYNC);
            libc::munmap(self.start.cast(), self.len);
        }
    }
}

/// Writes through a mapping are seen by read(2) and the file system, and writes by write(2) in the mapping.
fn share_memory(options: ServeOptions) {
    const LEN: usize = 1 << 20;
    let Some(mount) = Mounted::with(options) else { return };
    let file = File::options().read(true).write(true).create_new(true).open(mount.path("file")).unwrap();
    file.set_len(LEN as u64).unwrap();
    let mut first = Mapping::of(&file, LEN);
    let mut second =
        Mapping::of(&File::options().read(true).write(true).open(mount.path("file")).unwrap(), LEN);
    for (index, byte) in first.bytes().iter_mut().enumerate() {
        *byte = (index / 4096) as u8;
    }
    assert_eq!(second.bytes()[LEN - 1], 255);
    first.sync();
    let caller = nacre_vfs::Caller::ROOT;
    let vfs = mount.vfs();
    let node = vfs.lookup(&caller, vfs.root(), b"file").unwrap();
    let mut stored = vec![0; LEN];
    assert_eq!(vfs.read(&node, 0, &mut stored).unwrap(), LEN);
    assert!(stored == first.bytes(), "msync brings it to the file system");
    drop(node);

    file.write_all_at(b"from write", 12_345).unwrap();
    assert_eq!(&first.bytes()[12_345..12_355], b"from write");
    second.bytes()[20_000..20_004].copy_from_slice(b"mmap");
    let mut read = [0; 4];
    file.read_exact_at(&mut read, 20_000).unwrap();
    assert_eq!(&read, b"mmap");
    drop((first, second, file));
    // Nothing that was written through the mapping is lost by unmapping without a sync.
    let content = fs::read(mount.path("file")).unwrap();
    assert_eq!(&content[20_000..20_004], b"mmap");
    mount.end().unwrap();
}

#[test]
fn memory_is_shared() {
    share_memory(root_options());
}

#[test]
fn memory_is_shared_with_writeback() {
    share_memory(ServeOptions { writeback: true, ..root_options() });
}

#[test]
fn memory_is_shared_past_the_page_cache() {
    share_memory(ServeOptions { direct_io: true, ..root_options() });
}

/// cp and tar copied zeros: they ask for data and holes, and the layout did not know of pages that a mapping had changed.
#[test]
fn pages_of_a_mapping_are_no_hole() {
    const LEN: usize = 1 << 20;
    // With one thread that serves, a request that waited for another one would wait for ever.
    for threads in [1, 2] {
        let Some(mount) = Mounted::with(ServeOptions { threads: Some(threads), ..root_options() }) else {
            return;
        };
        let path = mount.path("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.set_len(LEN as u64).unwrap();
        let mut mapping = Mapping::of(&file, LEN);
        let seek = |to| rustix::fs::seek(&file, to);
        let (data, hole) = (rustix::fs::SeekFrom::Data, rustix::fs::SeekFrom::Hole);
        mapping.bytes()[65_536] = 7;
        assert_eq!(seek(data(4096)), Ok(65_536), "threads {threads}");
        assert_eq!(seek(hole(65_536)), Ok(65_536 + 4096));
        assert_eq!(seek(data(65_536 + 4096)), Err(rustix::io::Errno::NXIO));
        // A hole whose beginning fills ends later.
        mapping.bytes()[4096] = 7;
        assert_eq!(seek(hole(0)), Ok(8192));
        mapping.bytes()[8192..65_536].fill(7);
        assert_eq!(seek(hole(0)), Ok(65_536 + 4096));
        // cp and tar copy these pages, too.
        for page in (200_704..LEN).step_by(131_072) {
            mapping.bytes()[page] = 9;
        }
        let copy = mount.path("copy");
        for script in ["cp $F $C", "tar -C $(dirname $F) -S -cf - file 2>/dev/null | tar -xOf - >$C"] {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-ec", script]).env("F", &path).env("C", &copy);
            assert!(shell.status().unwrap().success());
            assert!(fs::read(&copy).unwrap() == mapping.bytes(), "{script}");
            mapping.bytes()[LEN - 1] += 1;
        }
        assert_eq!(std::fs::copy(&path, &copy).unwrap(), LEN as u64);
        assert!(fs::read(&copy).unwrap() == mapping.bytes());
        drop((mapping, file));
        mount.end().unwrap();
    }
}

/// A linker stores into the hole of a new file, and renames it over the old one. A crash left zeros under the name.
#[test]
fn pages_of_a_mapping_are_there_before_the_name() {
    const LEN: usize = 10_000;
    for threads in [1, 2] {
        let Some(mount) = Mounted::with(ServeOptions { threads: Some(threads), ..root_options() }) else {
            return;
        };
        let [name, new] = ["name", "new"].map(|name| mount.path(name));
        let read_below = || {
            let vfs = mount.vfs();
            let node = vfs.lookup(&Caller::ROOT, vfs.root(), b"name").unwrap();
            let mut content = vec![0; 2 * LEN];
            let count = vfs.read(&node, 0, &mut content).unwrap();
            content.truncate(count);
            content
        };
        let create = || {
            let file = File::options().read(true).write(true).create_new(true).open(&new).unwrap();
            file.set_len(LEN as u64).unwrap();
            let mapping = Mapping::of(&file, LEN);
            (file, mapping)
        };
        fs::write(&name, [1; LEN]).unwrap();
        let (file, mut mapping) = create();
        mapping.bytes().fill(2);
        fs::rename(&new, &name).unwrap();
        assert!(read_below() == [2; LEN], "threads {threads}");
        let (other, mut other_mapping) = create();
        other_mapping.bytes().fill(3);
        rustix::fs::renameat_with(CWD, &new, CWD, &name, RenameFlags::EXCHANGE).unwrap();
        assert!(read_below() == [3; LEN], "threads {threads}");
        // The mappings are still those of the files.
        other_mapping.bytes()[0] = 4;
        assert_eq!(fs::read(&name).unwrap()[..2], [4, 3]);
        drop((mapping, file, other_mapping, other));
        mount.end().unwrap();
    }
}

/// tar(1) takes a file that reports no blocks for one hole and asks for nothing.
#[test]
fn a_file_whose_pages_have_no_blocks_yet_is_no_hole_for_tar() {
    const LEN: usize = 1 << 20;
    for writeback in [false, true] {
        let Some(mount) = Mounted::with(ServeOptions { writeback, ..root_options() }) else { return };
        let file =
            |name| File::options().read(true).write(true).create_new(true).open(mount.path(name)).unwrap();
        let mapped = file("mapped");
        mapped.set_len(LEN as u64).unwrap();
        let mut mapping = Mapping::of(&mapped, LEN);
        mapping.bytes().fill(7);
        let written = file("written");
        written.write_all_at(&[8; LEN], 0).unwrap();
        written.sync_all().unwrap();
        for (name, byte) in [("mapped", 7), ("written", 8)] {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-ec", "tar -C $D -S -cf - $F | tar -xOf - >$D/copy"]);
            assert!(shell.env("D", mount.dir()).env("F", name).status().unwrap().success());
            let copy = fs::read(mount.path("copy")).unwrap();
            assert!(copy == [byte; LEN], "{name}, writeback {writeback}");
        }
        drop((mapping, mapped, written));
        mount.end().unwrap();
    }
}

/// A file handle as the kernel gives it out: at most 128 bytes after its header.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: u32,
    kind: i32,
    content: [u8; 128],
}

fn handle_of(path: &Path) -> io::Result<Handle> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle { bytes: 128, kind: 0, content: [0; 128] };
    let mut mount_id = 0;
    // SAFETY: `handle` has the layout of struct file_handle with room for `bytes` bytes, and the path ends with NUL.
    let done = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount_id, 0)
    };
    if done == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
}

fn open_handle(mount: &File, handle: &Handle) -> io::Result<File> {
    let mut handle = handle.clone();
    // SAFETY: the handle has the layout of struct file_handle; the descriptor is new and ours.
    unsafe {
        let fd = libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), libc::O_RDWR);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(fd)) }
    }
}

#[test]
fn handles_open_files_that_the_kernel_forgot() {
    let Some(mount) = Mounted::plain() else { return };
    fs::create_dir_all(mount.path("deep/down")).unwrap();
    fs::write(mount.path("deep/down/file"), b"found again").unwrap();
    fs::write(mount.path("doomed"), b"").unwrap();
    let handle = handle_of(&mount.path("deep/down/file")).unwrap();
    let doomed = handle_of(&mount.path("doomed")).unwrap();
    let root = File::open(mount.dir()).unwrap();
    // Dropping caches twice: inodes of dropped names go with the second round.
    for _ in 0..2 {
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    }
    let mut content = String::new();
    open_handle(&root, &handle).unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "found again");
    open_handle(&root, &handle).unwrap().write_all(b"FOUND").unwrap();
    assert_eq!(fs::read(mount.path("deep/down/file")).unwrap(), b"FOUND again");

    // On a busy machine the kernel keeps the inode for a while after its name.
    let gone = || {
        (0..100).find_map(|_| {
            fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
            let error = open_handle(&root, &doomed).err();
            if error.is_none() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            error?.raw_os_error()
        })
    };
    fs::remove_file(mount.path("doomed")).unwrap();
    assert_eq!(gone(), Some(libc::ESTALE));
    // The number may be given to another file; the handle still names the one that is gone.
    for number in 0..50 {
        fs::write(mount.path(&format!("next{number}")), b"").unwrap();
    }
    assert_eq!(gone(), Some(libc::ESTALE));
    drop(root);
    mount.end().unwrap();
}
