//! `mount -o remount`: changes an existing mount.
//!
//! Flags are changed in the kernel, and the server adopts them from the kernel afterwards. Settings go to the server.
//! The order of steps loses no buffered data, because data in DRAM is written before the mount becomes read-only. The
//! kernel refuses first, because it knows which processes have files open for writing.

use std::path::Path;

use nacre_control::{Command, FlagsTaken, Info, Order, Question, Synced};
use nacre_fuse::mounts::{self, FSTYPE, MountEntry};
use rustix::fs::XattrFlags;
use rustix::mount::MountFlags;

use crate::failure::Failure;
use crate::mount_options::{MountSettings, kernel_flags};
use crate::{mounted, output, users};

/// The attribute that takes the new options of a running mount.
const OPTIONS: &str = Command::Options.attribute();
/// The attribute whose query makes the server adopt the kernel's flags.
const FLAGS: &str = Question::Flags.attribute();

/// Changes the mount on a directory. With `names_all`, flags that are not named are turned off.
pub(crate) fn run(
    dir: &Path,
    asked: &MountSettings,
    (names_all, dry_run): (bool, bool),
) -> Result<(), Failure> {
    let failed = |why: String| Failure::new("remount", dir.display(), why);
    let Some(entry) = mounts::at(dir)?.filter(|mount| mount.fstype == FSTYPE) else {
        return Err(failed("no nacre file system is mounted there".into()));
    };
    let said: Info = mounted::ask("remount", dir, Question::Info.attribute())?;
    let mount = said.mount.unwrap_or_default();
    let mut running = MountSettings::default();
    running.take(&mount.options, false).map_err(failed)?;
    running.take_unshown(&mount);
    let (_, named) = running.remounted(asked, &entry.flags).map_err(failed)?;
    let is = kernel_flags(&entry);
    let becomes = asked.flags_after(is, names_all);
    let (was_read_only, is_read_only) =
        (is.contains(MountFlags::RDONLY), becomes.contains(MountFlags::RDONLY));
    if was_read_only && !is_read_only && mount.opened_to_read {
        return Err(failed("it was mounted read-only, and its server cannot write to the device".into())
            .advice("unmount it and mount it again"));
    }
    if was_read_only && is_read_only && !named.is_empty() {
        return Err(
            failed(format!("{named} cannot be set while it is read-only")).advice("remount it with rw")
        );
    }
    if dry_run {
        let words = changes(is, becomes, &named);
        let words = if words.is_empty() { "nothing".to_owned() } else { words };
        return output::text_out(&format!("{}: would be changed by a remount: {words}\n", dir.display()));
    }
    if !was_read_only {
        set_options(dir, &named)?;
    }
    if becomes != is {
        if is_read_only && !was_read_only {
            write_down(dir)?;
        }
        set_flags(&entry, is, becomes)?;
        mounted::ask::<FlagsTaken>("remount", dir, FLAGS)?;
    }
    if was_read_only { set_options(dir, &named) } else { Ok(()) }
}

/// The flags that change, as options, and the settings that are named.
fn changes(is: MountFlags, becomes: MountFlags, named: &str) -> String {
    const WORDS: [(MountFlags, &str, &str); 6] = [
        (MountFlags::RDONLY, "ro", "rw"),
        (MountFlags::NODEV, "nodev", "dev"),
        (MountFlags::NOSUID, "nosuid", "suid"),
        (MountFlags::NOEXEC, "noexec", "exec"),
        (MountFlags::NOSYMFOLLOW, "nosymfollow", "symfollow"),
        (MountFlags::NOATIME, "noatime", "relatime"),
    ];
    let changed = WORDS.into_iter().filter(|(flag, ..)| (is ^ becomes).contains(*flag));
    let words = changed.map(|(flag, on, off)| if becomes.contains(flag) { on } else { off });
    words.chain((!named.is_empty()).then_some(named)).collect::<Vec<_>>().join(",")
}

fn set_options(dir: &Path, named: &str) -> Result<(), Failure> {
    if named.is_empty() {
        return Ok(());
    }
    rustix::fs::setxattr(dir, OPTIONS, named.as_bytes(), XattrFlags::empty()).map_err(|error| match error {
        rustix::io::Errno::OPNOTSUPP => {
            let cause = format!("{named} cannot be set: its layout has no tiers");
            Failure::new("remount", dir.display(), cause).advice("leave it out")
        }
        error => Failure::new("remount", dir.display(), format!("set {named}: {error}")),
    })
}

/// Has the server write its buffered data. If that fails, the mount stays as it is.
fn write_down(dir: &Path) -> Result<(), Failure> {
    let synced: Synced = mounted::order("remount", dir, Order::Sync)?;
    match mounted::unsynced(&synced) {
        None => Ok(()),
        Some(cause) => Err(Failure::new("remount", dir.display(), cause).advice("it stays as it is")),
    }
}

/// Changes the flags in the kernel: those of this mount and, for read-only, those of the whole file system.
fn set_flags(entry: &MountEntry, is: MountFlags, becomes: MountFlags) -> Result<(), Failure> {
    let dir = &entry.mountpoint;
    let of_all = (is ^ becomes).contains(MountFlags::RDONLY);
    // The kernel keeps the flags of access times where none of them is given.
    let same_times = !(is ^ becomes).contains(MountFlags::NOATIME);
    let times = MountFlags::NOATIME | MountFlags::NODIRATIME | MountFlags::RELATIME;
    let flags = if same_times { becomes - times } else { becomes };
    let flags = if of_all { flags } else { (flags - MountFlags::SYNCHRONOUS) | MountFlags::BIND };
    let failed = |why: String| Failure::new("remount", dir.display(), why);
    rustix::mount::mount_remount(dir, flags, "").map_err(|error| match error {
        rustix::io::Errno::BUSY => {
            let writers = match users::writers(entry) {
                writers if writers.is_empty() => "files are open for writing".to_owned(),
                writers => writers,
            };
            failed(format!("in use: {writers}")).advice("close the files, and try again")
        }
        rustix::io::Errno::PERM => failed("only root may change flags of a mount".into()),
        error => failed(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use rustix::mount::MountFlags;

    use super::changes;

    #[test]
    fn the_changes_are_flags_and_settings() {
        let (ro, no_exec, times) = (MountFlags::RDONLY, MountFlags::NOEXEC, MountFlags::RELATIME);
        assert_eq!(changes(no_exec | times, ro | times, "mover_limit=3M"), "ro,exec,mover_limit=3M");
        assert_eq!(changes(ro | times, MountFlags::NOATIME, ""), "rw,noatime");
        assert_eq!(
            changes(no_exec, no_exec, "buffer_age=7,tune=buffer_low:1"),
            "buffer_age=7,tune=buffer_low:1"
        );
        assert_eq!(changes(no_exec | times, no_exec, ""), "");
    }
}
