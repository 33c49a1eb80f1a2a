//! File handles as NFS servers and backup programs use them: name_to_handle_at(2) and open_by_handle_at(2).

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::harness::{self, Ground};

/// Room for any handle (MAX_HANDLE_SZ).
const HANDLE_BYTES: usize = 128;

/// A `struct file_handle` with its bytes.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES],
}

fn name_to_handle(path: &Path) -> io::Result<Handle> {
    let mut handle = Handle { bytes: HANDLE_BYTES as u32, kind: 0, handle: [0; HANDLE_BYTES] };
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL in a path");
    let mut mount = 0;
    // SAFETY: the path is a C string, `handle` has the layout of struct file_handle with room for as many bytes as it
    // says, and `mount` is an int; the kernel writes to nothing else.
    let result = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount, 0)
    };
    if result == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
}

fn open_by_handle(mount: &File, handle: &Handle) -> io::Result<File> {
    let mut handle = handle.clone();
    // SAFETY: `handle` has the layout of struct file_handle and was filled by the kernel; the call returns a new file
    // descriptor or -1.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), libc::O_RDONLY) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Makes the kernel forget what it knows of names and inodes: a FUSE server gets FORGET for each.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").expect("drop_caches");
}

#[test]
fn a_handle_outlives_forget_and_not_the_file() {
    if !harness::can_mount("file handles") {
        return;
    }
    for mut ground in Ground::each("64M") {
        let name = ground.name().to_owned();
        let deep = ground.dir().join("a/b/c");
        fs::create_dir_all(&deep).expect("directories");
        let path = deep.join("file");
        fs::write(&path, "found again").expect("a file");
        let handle =
            name_to_handle(&path).unwrap_or_else(|error| panic!("{name}: name_to_handle_at: {error}"));
        let dir_handle = name_to_handle(&deep).expect("a handle of a directory");
        let read_back = |ground: &Ground, when: &str| {
            let mount = File::open(ground.dir()).expect("the mount");
            let mut text = String::new();
            let mut file =
                open_by_handle(&mount, &handle).unwrap_or_else(|error| panic!("{name}, {when}: {error}"));
            file.read_to_string(&mut text).expect("its content");
            assert_eq!(text, "found again", "{name}, {when}");
            let dir =
                open_by_handle(&mount, &dir_handle).unwrap_or_else(|error| panic!("{name}, {when}: {error}"));
            assert!(dir.metadata().expect("a directory").is_dir());
        };
        read_back(&ground, "at once");
        forget();
        read_back(&ground, "after FORGET");
        if ground.is_nacre() {
            // tmpfs has no second life; a persistent file system keeps its handles.
            ground.remount();
            read_back(&ground, "after a remount");
        }
        fs::remove_file(&path).expect("unlink");
        forget();
        // The number may be used again by a new file; the old handle must not lead there.
        for index in 0..64 {
            fs::write(deep.join(format!("other{index}")), "another").expect("a file");
        }
        let mount = File::open(ground.dir()).expect("the mount");
        let error = open_by_handle(&mount, &handle).expect_err("the file is gone");
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{name}: {error}");
    }
}
