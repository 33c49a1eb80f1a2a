//! Permissions of users, and operations that need them.

use nacre_engine::{FileKind, Kind, Timestamp, XattrMode};

use super::super::fs::Fs;
use super::super::runner::Case;
use super::super::target::{Need, Open, SetTime, User};
use super::{ALICE, BOB, CAROL, case};

const USERS: &[Need] = &[Need::Users];

pub(super) const CASES: &[Case] = &[
    case("rights-of-directories", USERS, directories),
    case("rights-of-groups", USERS, groups),
    case("rights-of-the-owner", USERS, owner),
    case("rights-to-chmod", USERS, to_chmod),
    case("rights-to-chown", USERS, to_chown),
    case("rights-to-set-times", USERS, to_set_times),
    case("set-id-goes-with-a-write", USERS, set_id_write),
    case("set-id-goes-with-a-truncation", USERS, set_id_truncate),
    case("set-gid-needs-the-group", USERS, set_gid_group),
    case("set-gid-directory", USERS, set_gid_directory),
    case("sticky-directory", USERS, sticky),
    case("sticky-directory-rename", USERS, sticky_rename),
    case("rename-directory-needs-write", USERS, rename_directory),
    case("mknod-needs-privilege", USERS, mknod),
    case("owner-of-what-is-made", USERS, owner_of_made),
    case("acl-grants-and-masks", &[Need::Users, Need::Acls], acl_grants),
    case("acl-inherited", &[Need::Acls], acl_inherited),
    case("xattrs-of-others", &[Need::Users, Need::UserXattrs], xattrs_of_others),
    case("xattrs-trusted", &[Need::Users, Need::TrustedXattrs], xattrs_trusted),
];

fn directories(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.touch("dir/file");
    fs.chmod("dir", 0o754).unwrap();
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.names("dir"), [b"file"], "read without search");
        assert_eq!(fs.try_stat("dir/file"), Err(Kind::AccessDenied));
        assert_eq!(fs.open_error("dir/file", Open::READ), Kind::AccessDenied);
    });
    fs.chmod("dir", 0o751).unwrap();
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.read_dir("dir", 0, 1), Err(Kind::AccessDenied), "search without read");
        assert!(fs.try_stat("dir/file").is_ok());
        assert_eq!(fs.open_error("dir/new", Open::CREATE), Kind::AccessDenied);
        assert_eq!(fs.unlink("dir/file"), Err(Kind::AccessDenied));
        assert_eq!(fs.mkdir("dir/new"), Err(Kind::AccessDenied));
        assert_eq!(fs.mkdir("dir/file"), Err(Kind::Exists), "what exists is told first");
        assert_eq!(fs.rename("dir/file", "dir/new"), Err(Kind::AccessDenied));
        assert_eq!(fs.symlink("t", "dir/new"), Err(Kind::AccessDenied));
        assert_eq!(fs.unlink("dir/no"), Err(Kind::NotFound));
    });
    fs.chmod("dir", 0o757).unwrap();
    fs.as_user(ALICE, |fs| {
        fs.touch("dir/new");
        assert_eq!(fs.unlink("dir/file"), Ok(()), "the directory decides, not the file");
    });
}

fn groups(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"for the group");
    fs.chown("file", Some(4999), Some(4009)).unwrap();
    fs.chmod("file", 0o640).unwrap();
    fs.as_user(CAROL, |fs| {
        assert_eq!(fs.read_file("file"), b"for the group", "by a further group");
        assert_eq!(fs.open_error("file", Open::WRITE), Kind::AccessDenied);
    });
    fs.as_user(ALICE, |fs| assert_eq!(fs.open_error("file", Open::READ), Kind::AccessDenied));
    fs.chmod("file", 0o604).unwrap();
    fs.as_user(CAROL, |fs| assert_eq!(fs.open_error("file", Open::READ), Kind::AccessDenied));
    fs.as_user(ALICE, |fs| assert_eq!(fs.read_file("file"), b"for the group"));
}

fn owner(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"mine");
    fs.chown("file", Some(ALICE.uid), Some(ALICE.gid)).unwrap();
    fs.chmod("file", 0o066).unwrap();
    fs.as_user(ALICE, |fs| {
        assert_eq!(
            fs.open_error("file", Open::READ),
            Kind::AccessDenied,
            "the first class that fits decides"
        );
    });
    fs.as_user(BOB, |fs| assert_eq!(fs.read_file("file"), b"mine"));
    fs.as_user(ALICE, |fs| {
        fs.chmod("file", 0o600).unwrap();
        assert_eq!(fs.read_file("file"), b"mine", "but the owner may change that");
    });
}

fn to_chmod(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.chmod("file", 0o666).unwrap();
    fs.as_user(BOB, |fs| assert_eq!(fs.chmod("file", 0o777), Err(Kind::NotPermitted)));
    fs.chown("file", Some(BOB.uid), Some(BOB.gid)).unwrap();
    fs.as_user(BOB, |fs| assert_eq!(fs.chmod("file", 0o4711), Ok(())));
    assert_eq!(fs.stat("file").mode, 0o4711);
}

fn to_chown(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let refused = Err(Kind::NotPermitted);
    fs.touch("file");
    fs.chown("file", Some(CAROL.uid), Some(CAROL.gid)).unwrap();
    fs.as_user(CAROL, |fs| {
        assert_eq!(fs.chown("file", Some(BOB.uid), None), refused, "nothing is given away");
        assert_eq!(fs.chown("file", None, Some(BOB.gid)), refused);
        fs.chmod("file", 0o6755).unwrap();
        assert_eq!(fs.chown("file", None, Some(4009)), Ok(()), "to a group that one is in");
        assert_eq!((fs.stat("file").gid, fs.stat("file").mode), (4009, 0o755));
        assert_eq!(fs.chown("file", Some(CAROL.uid), None), Ok(()), "to whom it belongs already");
    });
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.chown("file", None, Some(ALICE.gid)), refused);
        assert_eq!(fs.chown("file", Some(ALICE.uid), None), refused);
    });
}

fn to_set_times(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let at = SetTime::At(Timestamp::new(5, 5));
    fs.touch("file");
    fs.chmod("file", 0o644).unwrap();
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.set_times("file", SetTime::Now, SetTime::Now), Err(Kind::AccessDenied));
        assert_eq!(fs.set_times("file", at, at), Err(Kind::NotPermitted));
    });
    fs.chmod("file", 0o666).unwrap();
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.set_times("file", SetTime::Now, SetTime::Now), Ok(()), "who may write may touch");
        assert_eq!(fs.set_times("file", at, at), Err(Kind::NotPermitted));
        assert_eq!(fs.set_times("file", SetTime::Omit, SetTime::Now), Err(Kind::NotPermitted));
    });
    fs.chown("file", Some(ALICE.uid), None).unwrap();
    fs.chmod("file", 0o000).unwrap();
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.set_times("file", at, at), Ok(()));
        assert_eq!(fs.set_times("file", SetTime::Now, SetTime::Now), Ok(()));
    });
}

fn set_id_write(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"program");
    fs.chmod("file", 0o6777).unwrap();
    fs.opened("file", Open::WRITE).write_at(0, b"P").unwrap();
    assert_eq!(fs.stat("file").mode, 0o6777, "the privileged keep them");
    fs.as_user(ALICE, |fs| {
        let file = fs.opened("file", Open::WRITE);
        file.write_at(0, b"p").unwrap();
        assert_eq!(fs.stat("file").mode, 0o777);
    });
    fs.chmod("file", 0o6777).unwrap();
    fs.as_user(ALICE, |fs| {
        fs.opened("file", Open { append: true, ..Open::WRITE }).append(b"!").unwrap();
        assert_eq!(fs.stat("file").mode, 0o777);
    });
    assert_eq!(fs.read_file("file"), b"program!");
}

fn set_id_truncate(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("file", b"program");
    fs.chmod("file", 0o6777).unwrap();
    fs.as_user(ALICE, |fs| fs.truncate("file", 3).unwrap());
    assert_eq!((fs.stat("file").mode, fs.read_file("file")), (0o777, b"pro".to_vec()));
    fs.chmod("file", 0o6777).unwrap();
    fs.as_user(ALICE, |fs| drop(fs.opened("file", Open { truncate: true, ..Open::WRITE })));
    assert_eq!(fs.stat("file").mode, 0o777);
}

fn set_gid_group(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.chown("file", Some(ALICE.uid), Some(4009)).unwrap();
    fs.as_user(ALICE, |fs| {
        fs.chmod("file", 0o2755).unwrap();
        assert_eq!(fs.stat("file").mode, 0o755, "not a member: the bit is dropped in silence");
    });
    fs.chown("file", Some(CAROL.uid), None).unwrap();
    fs.as_user(CAROL, |fs| {
        fs.chmod("file", 0o2755).unwrap();
        assert_eq!(fs.stat("file").mode, 0o2755);
    });
}

fn set_gid_directory(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.directory("plain");
    fs.chown("dir", None, Some(4009)).unwrap();
    fs.chmod("dir", 0o2777).unwrap();
    fs.chmod("plain", 0o777).unwrap();
    fs.as_user(ALICE, |fs| {
        fs.touch("dir/file");
        fs.directory("dir/sub");
        fs.directory("dir/sub/sub");
        fs.symlink("t", "dir/link").unwrap();
        for path in ["dir/file", "dir/sub", "dir/sub/sub", "dir/link"] {
            assert_eq!((fs.stat(path).uid, fs.stat(path).gid), (ALICE.uid, 4009), "{path}");
        }
        assert_eq!((fs.stat("dir/sub").mode, fs.stat("dir/sub/sub").mode), (0o2755, 0o2755));
        assert_eq!(fs.stat("dir/file").mode & 0o2000, 0);
        fs.touch("plain/file");
        assert_eq!(fs.stat("plain/file").gid, ALICE.gid);
    });
}

fn sticky(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.chmod("dir", 0o1777).unwrap();
    fs.as_user(ALICE, |fs| {
        fs.touch("dir/a");
        fs.directory("dir/d");
        fs.touch("dir/second");
    });
    fs.as_user(BOB, |fs| {
        assert_eq!(fs.unlink("dir/a"), Err(Kind::NotPermitted));
        assert_eq!(fs.rmdir("dir/d"), Err(Kind::NotPermitted));
        assert_eq!(fs.rename("dir/a", "dir/b"), Err(Kind::NotPermitted));
        fs.touch("dir/mine");
        assert_eq!(fs.unlink("dir/mine"), Ok(()));
    });
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.unlink("dir/a"), Ok(()));
        assert_eq!(fs.rmdir("dir/d"), Ok(()));
    });
    fs.chown("dir", Some(BOB.uid), None).unwrap();
    fs.as_user(BOB, |fs| assert_eq!(fs.unlink("dir/second"), Ok(()), "the directory is Bob's now"));
}

fn sticky_rename(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.directory("dir");
    fs.directory("free");
    fs.chmod("dir", 0o1777).unwrap();
    fs.chmod("free", 0o777).unwrap();
    fs.as_user(ALICE, |fs| fs.touch("dir/alice"));
    fs.as_user(BOB, |fs| {
        fs.touch("dir/bob");
        fs.touch("free/bob");
        assert_eq!(fs.rename("dir/bob", "dir/alice"), Err(Kind::NotPermitted), "it would remove Alice's");
        assert_eq!(fs.rename("free/bob", "dir/alice"), Err(Kind::NotPermitted));
        assert_eq!(fs.rename("dir/alice", "free/alice"), Err(Kind::NotPermitted));
        assert_eq!(fs.rename("free/bob", "dir/bob"), Ok(()));
        assert_eq!(fs.rename("dir/bob", "free/bob"), Ok(()));
    });
}

fn rename_directory(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for name in ["from", "to"] {
        fs.directory(name);
        fs.chmod(name, 0o777).unwrap();
    }
    fs.as_user(ALICE, |fs| {
        fs.directory("from/dir");
        fs.chmod("from/dir", 0o555).unwrap();
        assert_eq!(fs.rename("from/dir", "from/renamed"), Ok(()), "its parent stays");
        assert_eq!(fs.rename("from/renamed", "to/dir"), Err(Kind::AccessDenied), "its `..` would change");
        fs.chmod("from/renamed", 0o755).unwrap();
        assert_eq!(fs.rename("from/renamed", "to/dir"), Ok(()));
    });
}

fn mknod(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.chmod("", 0o777).unwrap();
    fs.as_user(ALICE, |fs| {
        let null = rustix::fs::makedev(1, 3);
        assert_eq!(fs.mknod("null", FileKind::CharDevice, 0o666, null), Err(Kind::NotPermitted));
        assert_eq!(fs.mknod("disk", FileKind::BlockDevice, 0o666, null), Err(Kind::NotPermitted));
        assert_eq!(fs.mknod("fifo", FileKind::Fifo, 0o666, 0), Ok(()));
    });
    assert_eq!(fs.names(""), [b"fifo"]);
}

fn owner_of_made(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.chmod("", 0o777).unwrap();
    fs.as_user(BOB, |fs| {
        fs.touch("file");
        fs.directory("dir");
        fs.symlink("t", "link").unwrap();
        fs.mknod("fifo", FileKind::Fifo, 0o600, 0).unwrap();
    });
    for path in ["file", "dir", "link", "fifo"] {
        assert_eq!((fs.stat(path).uid, fs.stat(path).gid), (BOB.uid, BOB.gid), "{path}");
    }
}

/// The binary form of a POSIX ACL: (tag, permissions, id) for each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const OWNER: u16 = 1;
const NAMED_USER: u16 = 2;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NOBODY: u32 = u32::MAX;

fn acl_grants(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let name = "system.posix_acl_access";
    fs.write_file("file", b"secret");
    fs.chmod("file", 0o600).unwrap();
    let value = acl(&[
        (OWNER, 6, NOBODY),
        (NAMED_USER, 6, ALICE.uid),
        (GROUP, 0, NOBODY),
        (MASK, 4, NOBODY),
        (OTHER, 0, NOBODY),
    ]);
    fs.set_xattr("file", name, &value, XattrMode::Set).unwrap();
    assert_eq!(fs.get_xattr("file", name).unwrap(), value);
    assert_eq!(fs.stat("file").mode, 0o640, "the mask stands in the place of the group");
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.read_file("file"), b"secret");
        assert_eq!(fs.open_error("file", Open::WRITE), Kind::AccessDenied, "masked");
    });
    fs.as_user(BOB, |fs| assert_eq!(fs.open_error("file", Open::READ), Kind::AccessDenied));
    fs.chmod("file", 0o660).unwrap();
    fs.as_user(ALICE, |fs| assert!(fs.open("file", Open::WRITE).is_ok(), "chmod changes the mask"));
    fs.remove_xattr("file", name).unwrap();
    assert_eq!(fs.get_xattr("file", name), Err(Kind::NoAttribute));
    let other: User<'_> = User { uid: ALICE.uid, gid: ALICE.gid, groups: &[] };
    fs.as_user(other, |fs| assert_eq!(fs.open_error("file", Open::READ), Kind::AccessDenied));
}

fn acl_inherited(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let default = "system.posix_acl_default";
    fs.directory("dir");
    let value = acl(&[
        (OWNER, 7, NOBODY),
        (NAMED_USER, 6, ALICE.uid),
        (GROUP, 5, NOBODY),
        (MASK, 7, NOBODY),
        (OTHER, 0, NOBODY),
    ]);
    fs.set_xattr("dir", default, &value, XattrMode::Set).unwrap();
    fs.opened("dir/file", Open::NEW.mode(0o666));
    fs.mkdir_mode("dir/sub", 0o777).unwrap();
    assert_eq!(fs.stat("dir/file").mode, 0o660);
    assert_eq!(fs.stat("dir/sub").mode, 0o770);
    assert_eq!(fs.get_xattr("dir/sub", default).unwrap(), value);
    assert_eq!(fs.get_xattr("dir/file", default), Err(Kind::NoAttribute));
    let inherited = fs.get_xattr("dir/file", "system.posix_acl_access").unwrap();
    assert_eq!(inherited.len(), value.len());
    fs.touch("plain");
    assert_eq!(fs.set_xattr("plain", default, &value, XattrMode::Set), Err(Kind::AccessDenied));
}

fn xattrs_of_others(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.set_xattr("file", "user.a", "1", XattrMode::Set).unwrap();
    fs.chmod("file", 0o644).unwrap();
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.get_xattr("file", "user.a").unwrap(), b"1");
        assert_eq!(fs.set_xattr("file", "user.b", "1", XattrMode::Set), Err(Kind::AccessDenied));
        assert_eq!(fs.remove_xattr("file", "user.a"), Err(Kind::AccessDenied));
    });
    fs.chmod("file", 0o602).unwrap();
    fs.as_user(ALICE, |fs| {
        assert_eq!(fs.get_xattr("file", "user.a"), Err(Kind::AccessDenied));
        assert_eq!(fs.set_xattr("file", "user.b", "1", XattrMode::Set), Ok(()));
    });
}

fn xattrs_trusted(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.touch("file");
    fs.chown("file", Some(ALICE.uid), Some(ALICE.gid)).unwrap();
    fs.set_xattr("file", "trusted.a", "1", XattrMode::Set).unwrap();
    assert_eq!(fs.xattr_names("file", "trusted."), [b"trusted.a"]);
    fs.as_user(ALICE, |fs| {
        assert!(fs.xattr_names("file", "trusted.").is_empty());
        assert_eq!(fs.get_xattr("file", "trusted.a"), Err(Kind::NoAttribute));
        assert_eq!(fs.set_xattr("file", "trusted.b", "1", XattrMode::Set), Err(Kind::NotPermitted));
        assert_eq!(fs.remove_xattr("file", "trusted.a"), Err(Kind::NotPermitted));
    });
}
