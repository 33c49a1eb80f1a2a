//! A mount with our write buffer, whose server is killed: what was synchronised is there, and what replaced a file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use crate::harness::{self, Ground};

#[test]
fn what_was_synchronised_survives_the_death_of_a_lazy_mount() {
    if !harness::can_mount("a lazy mount") {
        return;
    }
    let mut ground = Ground::nacre("128M", Some("lazy=8M,lazy_age=86400000,lazy_period=86400000"));
    let path = |name: &str| ground.dir().join(name);
    let put = |name: &str, content: &[u8]| {
        let mut file = File::create(path(name)).expect("create");
        file.write_all(content).expect("write");
        file
    };
    for name in ["cut", "target"] {
        put(name, b"old").sync_all().expect("fsync");
    }
    let long = vec![7; 300_000];
    put("synced", &long).sync_data().expect("fdatasync");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(libc::O_SYNC)
        .open(path("sync"))
        .expect("open");
    file.write_all(&long).expect("a synchronous write");
    drop(file);
    drop(put("cut", b"new in place of what was cut"));
    drop(put("new", b"new by a rename"));
    fs::rename(path("new"), path("target")).expect("rename");
    drop(put("waits", &long));
    assert_eq!(fs::read(path("waits")).expect("read"), long);
    let paths = ["synced", "sync", "cut", "target", "waits"].map(path);
    ground.kill();
    ground.set_options(None);
    ground.mount();
    let [synced, sync, cut, target, waits] = paths.map(|path| fs::read(path).expect("read"));
    assert!(synced == long && sync == long);
    assert_eq!(cut, b"new in place of what was cut");
    assert_eq!(target, b"new by a rename");
    assert_eq!(waits, b"", "nobody asked for it, and the buffer was not full");
    ground.unmount();
    ground.fsck();
}
