//! Immutable files on a mount: the opens that are refused, before and after the next mount, and after a kill.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use nacre::Preset;
use rustix::fs::{IFlags, ioctl_setflags};

use crate::harness::{self, Ground, nacre, succeed};

const LIMIT: Duration = Duration::from_secs(60);

/// The words of the mount about opens; none where it checks none.
fn opens(ground: &Ground) -> String {
    let info = succeed(nacre().arg("info").arg(ground.dir()), LIMIT);
    let line = info.lines().find_map(|line| line.strip_prefix("opens:"));
    line.unwrap_or_default().trim().to_owned()
}

fn open_to_write(path: &Path) -> Result<File, Option<i32>> {
    File::options().write(true).open(path).map_err(|error| error.raw_os_error())
}

/// As chattr(1) does it.
fn set_flags(path: &Path, flags: IFlags) {
    ioctl_setflags(File::open(path).expect("open"), flags).expect("FS_IOC_SETFLAGS");
}

#[test]
fn opens_of_immutable_files_are_refused_from_the_next_mount_on() {
    if !harness::can_mount("immutable files over mounts") {
        return;
    }
    for preset in Preset::ALL {
        for is_killed in [false, true] {
            let mut ground = Ground::preset(preset.as_str(), "64M", None);
            let name = format!("{}, killed: {is_killed}", ground.name());
            let path = ground.dir().join("file");
            fs::write(&path, b"content").expect("write");
            assert_eq!(opens(&ground), "", "{name}");
            set_flags(&path, IFlags::IMMUTABLE);
            let said = opens(&ground);
            assert!(said.starts_with("checked from the next mount on: "), "{name}: {said}");
            // The kernel asks for no open of this mount, and the server refuses the write.
            let mut file = open_to_write(&path).expect("it opens");
            assert_eq!(file.write(b"other").unwrap_err().raw_os_error(), Some(libc::EPERM), "{name}");
            drop(file);
            // A change of owner that changes nothing, too.
            let changed = std::os::unix::fs::chown(&path, None, None);
            assert_eq!(changed.unwrap_err().raw_os_error(), Some(libc::EPERM), "{name}");
            if is_killed {
                ground.kill();
                ground.mount();
            } else {
                ground.remount();
            }
            let said = opens(&ground);
            assert!(said.starts_with("checked: "), "{name}: {said}");
            assert_eq!(open_to_write(&path).unwrap_err(), Some(libc::EPERM), "{name}");
            assert_eq!(fs::read(&path).expect("read"), b"content", "{name}");
            // It was immutable once, so that opens are checked on; they are as before.
            set_flags(&path, IFlags::empty());
            open_to_write(&path).expect("it opens").write_all(b"another").expect("write");
            assert_eq!(fs::read(&path).expect("read"), b"another", "{name}");
            ground.unmount();
            ground.fsck();
        }
    }
}
