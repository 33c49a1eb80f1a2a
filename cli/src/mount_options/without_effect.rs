//! Options that other file systems have and that change nothing here. Their request is met anyway, or cannot be met and
//! does no harm. A line of fstab with such an option works, and the user gets a notice.

/// Options, each with the reason that it changes nothing.
const REASONS: [(&str, &str); 11] = [
    ("nodiratime", "times of access of directories follow relatime, and noatime turns all of them off"),
    ("strictatime", RELATIME),
    ("norelatime", RELATIME),
    ("lazytime", "times are written with the change that sets them"),
    ("mand", "locks are advisory"),
    ("iversion", "files have no version"),
    ("noacl", "ACLs are always there"),
    ("nouser_xattr", "extended attributes are always there"),
    ("nobarrier", BARRIERS),
    ("discard", DISCARD),
    ("dax", DAX),
];

/// Options with a value, each with the reason that it changes nothing.
const REASONS_WITH_VALUE: [(&str, &str); 10] = [
    ("errors", "damaged files give errors, and all others are served"),
    ("commit", "writes are durable when they return; with buffer, buffer_age says when they are"),
    ("data", "data is there when its size is"),
    ("barrier", BARRIERS),
    ("discard", DISCARD),
    ("dax", DAX),
    ("context", LABELS),
    ("fscontext", LABELS),
    ("defcontext", LABELS),
    ("rootcontext", LABELS),
];

/// The prefix of options that mount(8) follows itself, and does not hand to a helper.
const OF_MOUNT: &str = "X-mount.";

const RELATIME: &str = "times of access are noted as with relatime";
const BARRIERS: &str = "writes are always ordered";
const DISCARD: &str = "fstrim(8) and nacre tier trim report free blocks to disks";
const DAX: &str = "the server has the device mapped, the kernel has pages of files";
const LABELS: &str = "labels are those of files";

/// Options whose request is met anyway.
const SO_ANYWAY: [&str; 7] =
    ["acl", "user_xattr", "nodiscard", "nolazytime", "nomand", "noiversion", "noquota"];

/// The reason that a known option changes nothing, as a sentence.
pub(super) fn reason(option: &str) -> Option<String> {
    let (reasons, name) = match option.split_once('=') {
        Some((name, _)) => (&REASONS_WITH_VALUE[..], name),
        None => (&REASONS[..], option),
    };
    let known = reasons.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason);
    let reason = known.or_else(|| name.starts_with(OF_MOUNT).then_some("only mount(8) does this"))?;
    Some(format!("the option {option:?} has no effect: {reason}"))
}

/// True for an option that needs no notice.
pub(super) fn is_so_anyway(option: &str) -> bool {
    SO_ANYWAY.contains(&option)
}
