//! Who may do what, and what operations do to modes, owners and ACLs.

use std::io::IoSlice;

use crate::common::{
    ANN, ANN_CHECKED, BOB, GROUP, GROUP_OBJ, MASK, NO_ID, OTHER, OWNER, ROOT, USER, acl, chmod, mkdir, mode,
    open_fs, refused, touch,
};
use nacre_engine::{Durability, FileKind, Kind, RenameMode, SetAttr, Timestamp, WriteAt, XattrMode};
use nacre_lab::model::MemLayout;
use nacre_vfs::{
    ACL_ACCESS, ACL_DEFAULT, Caller, Create, SetTime, Vfs, VfsOptions, WANT_EXECUTE, WANT_READ, WANT_WRITE,
};

fn write(fs: &crate::common::Fs, caller: &Caller<'_>, node: &nacre_lab::model::MemNode, kill: bool) {
    let data = [IoSlice::new(b"x")];
    fs.write(caller, node, WriteAt::Offset(0), &data, Durability::Lazy, kill).unwrap();
}

#[test]
fn a_new_inode_has_owner_group_and_masked_mode() {
    let fs = open_fs();
    let file = touch(&fs, &ANN, fs.root(), "f", 0o666);
    let attr = fs.getattr(&file).unwrap();
    assert_eq!((attr.uid, attr.gid, attr.mode), (1000, 1000, 0o644));
    let dir = mkdir(&fs, &ANN, fs.root(), "d", 0o6777);
    assert_eq!(mode(&fs, &dir), 0o755, "mkdir takes no set-id bits");
    let unnamed = fs.create_unnamed(&ANN, &dir, 0o600).unwrap();
    assert_eq!((mode(&fs, &unnamed), fs.getattr(&unnamed).unwrap().links), (0o600, 0));
    fs.link(&ANN, &unnamed, &dir, b"named").unwrap();
    assert_eq!(fs.getattr(&unnamed).unwrap().links, 1);
}

#[test]
fn a_set_gid_directory_gives_its_group() {
    let fs = open_fs();
    let dir = mkdir(&fs, &ROOT, fs.root(), "d", 0o777);
    let change = SetAttr { mode: Some(0o2777), gid: Some(7), ..SetAttr::default() };
    fs.setattr(&ROOT, &dir, &change, false).unwrap();
    let sub = mkdir(&fs, &ANN, &dir, "sub", 0o755);
    let attr = fs.getattr(&sub).unwrap();
    assert_eq!((attr.gid, attr.mode), (7, 0o2755));
    let file = touch(&fs, &ANN, &dir, "f", 0o2755);
    let attr = fs.getattr(&file).unwrap();
    assert_eq!((attr.gid, attr.mode), (7, 0o755), "set-gid for a group that the caller is not in");
}

#[test]
fn names_in_a_directory_take_the_right_to_write_it() {
    let fs = open_fs();
    let dir = mkdir(&fs, &ANN, fs.root(), "d", 0o755);
    let file = touch(&fs, &ANN, &dir, "f", 0o644);
    refused(fs.create(&BOB, &dir, b"g", &Create::file(0o644)), Kind::AccessDenied);
    refused(fs.create(&BOB, &dir, b"f", &Create::file(0o644)), Kind::Exists);
    refused(fs.link(&BOB, &file, &dir, b"g"), Kind::AccessDenied);
    refused(fs.unlink(&BOB, &dir, b"f"), Kind::AccessDenied);
    refused(fs.unlink(&BOB, &dir, b"none"), Kind::NotFound);
    refused(fs.rename(&BOB, &dir, b"f", fs.root(), b"f", RenameMode::Replace), Kind::AccessDenied);
    chmod(&fs, &ANN, &dir, 0o700).unwrap();
    refused(fs.lookup(&BOB, &dir, b"f"), Kind::AccessDenied);
    assert!(fs.lookup(&Caller { check: false, ..BOB }, &dir, b"f").is_ok());
    fs.unlink(&ROOT, &dir, b"f").unwrap();
}

#[test]
fn in_a_sticky_directory_only_owners_remove() {
    let fs = open_fs();
    let dir = mkdir(&fs, &ROOT, fs.root(), "tmp", 0o777);
    chmod(&fs, &ROOT, &dir, 0o1777).unwrap();
    touch(&fs, &ANN, &dir, "a", 0o666);
    touch(&fs, &BOB, &dir, "b", 0o666);
    refused(fs.unlink(&BOB, &dir, b"a"), Kind::NotPermitted);
    refused(fs.rename(&BOB, &dir, b"a", &dir, b"c", RenameMode::Replace), Kind::NotPermitted);
    refused(fs.rename(&BOB, &dir, b"b", &dir, b"a", RenameMode::Replace), Kind::NotPermitted);
    refused(fs.rename(&BOB, &dir, b"b", &dir, b"a", RenameMode::NoReplace), Kind::Exists);
    fs.rename(&BOB, &dir, b"b", &dir, b"c", RenameMode::Replace).unwrap();
    fs.unlink(&ANN, &dir, b"a").unwrap();
    fs.unlink(&ANN_CHECKED, &dir, b"c").unwrap();
}

#[test]
fn a_directory_that_moves_must_be_writable_itself() {
    let fs = open_fs();
    let to = mkdir(&fs, &ANN, fs.root(), "to", 0o777);
    mkdir(&fs, &ROOT, fs.root(), "d", 0o755);
    refused(fs.rename(&ANN, fs.root(), b"d", &to, b"d", RenameMode::Replace), Kind::AccessDenied);
    fs.rename(&ANN, fs.root(), b"d", fs.root(), b"e", RenameMode::Replace).unwrap();
}

#[test]
fn chmod_and_chown_follow_ownership() {
    let fs = open_fs();
    let file = touch(&fs, &ANN, fs.root(), "f", 0o755);
    let owner = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
    refused(chmod(&fs, &BOB, &file, 0o777), Kind::NotPermitted);
    refused(fs.setattr(&ANN, &file, &owner(Some(1001), None), false), Kind::NotPermitted);
    refused(fs.setattr(&ANN, &file, &owner(None, Some(5)), false), Kind::NotPermitted);
    assert_eq!(chmod(&fs, &ANN, &file, 0o6755).unwrap(), 0o6755);
    let attr = fs.setattr(&ANN, &file, &owner(Some(1000), Some(100)), false).unwrap();
    assert_eq!((attr.gid, attr.mode), (100, 0o755), "chown drops set-id bits");
    fs.setattr(&ROOT, &file, &owner(None, Some(5)), false).unwrap();
    assert_eq!(chmod(&fs, &ANN, &file, 0o6755).unwrap(), 0o4755, "no set-gid outside one's groups");
    assert_eq!(chmod(&fs, &ROOT, &file, 0o6745).unwrap(), 0o6745);
    let attr = fs.setattr(&ROOT, &file, &owner(Some(0), None), false).unwrap();
    assert_eq!(attr.mode, 0o2745, "set-gid without execution by the group stays");
    let dir = mkdir(&fs, &ROOT, fs.root(), "d", 0o755);
    chmod(&fs, &ROOT, &dir, 0o2755).unwrap();
    let attr = fs.setattr(&ROOT, &dir, &owner(Some(1), Some(1)), false).unwrap();
    assert_eq!(attr.mode, 0o2755, "a directory keeps it");
}

#[test]
fn a_change_of_content_drops_set_id_bits_and_capabilities() {
    let fs = open_fs();
    let file = touch(&fs, &ANN, fs.root(), "f", 0o777);
    let set = || chmod(&fs, &ROOT, &file, 0o6777).unwrap();
    set();
    fs.set_xattr(&ROOT, &file, b"security.capability", b"c", XattrMode::Set).unwrap();
    write(&fs, &ROOT, &file, false);
    assert_eq!(mode(&fs, &file), 0o6777, "the super-user keeps set-id");
    refused(fs.get_xattr(&ROOT, &file, b"security.capability"), Kind::NoAttribute);
    write(&fs, &ROOT, &file, true);
    assert_eq!(mode(&fs, &file), 0o777);
    set();
    write(&fs, &ANN_CHECKED, &file, false);
    assert_eq!(mode(&fs, &file), 0o6777);
    write(&fs, &ANN, &file, false);
    assert_eq!(mode(&fs, &file), 0o777);
    set();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(&ANN_CHECKED, &file, &cut, true).unwrap();
    assert_eq!(mode(&fs, &file), 0o777);
}

#[test]
fn times_take_ownership_or_for_now_the_right_to_write() {
    let fs = open_fs();
    let file = touch(&fs, &ANN, fs.root(), "f", 0o666);
    chmod(&fs, &ANN, &file, 0o666).unwrap();
    let then = SetTime::At(Timestamp::new(-5, 7));
    refused(fs.set_times(&BOB, &file, then, SetTime::Omit), Kind::NotPermitted);
    refused(fs.set_times(&BOB, &file, SetTime::Now, SetTime::Omit), Kind::NotPermitted);
    fs.set_times(&BOB, &file, SetTime::Now, SetTime::Now).unwrap();
    chmod(&fs, &ANN, &file, 0o644).unwrap();
    refused(fs.set_times(&BOB, &file, SetTime::Now, SetTime::Now), Kind::AccessDenied);
    let before = fs.getattr(&file).unwrap();
    let attr = fs.set_times(&ANN, &file, then, SetTime::Omit).unwrap();
    assert_eq!((attr.atime, attr.mtime), (Timestamp::new(-5, 7), before.mtime));
}

#[test]
fn an_access_acl_decides_and_follows_chmod() {
    let fs = open_fs();
    let file = touch(&fs, &ROOT, fs.root(), "f", 0o640);
    let value = acl(&[
        (OWNER, 6, NO_ID),
        (USER, 6, 1000),
        (GROUP_OBJ, 0, NO_ID),
        (GROUP, 4, 100),
        (MASK, 6, NO_ID),
        (OTHER, 0, NO_ID),
    ]);
    fs.set_xattr(&ROOT, &file, ACL_ACCESS, &value, XattrMode::Set).unwrap();
    assert_eq!(mode(&fs, &file), 0o660, "the mode's group bits are the mask");
    fs.access(&ANN, &file, WANT_READ | WANT_WRITE).unwrap();
    fs.access(&BOB, &file, WANT_READ).unwrap();
    refused(fs.access(&BOB, &file, WANT_WRITE), Kind::AccessDenied);
    let stranger = Caller { uid: 9, gid: 9, groups: &[], ..ANN };
    refused(fs.access(&stranger, &file, WANT_READ), Kind::AccessDenied);
    chmod(&fs, &ROOT, &file, 0o644).unwrap();
    refused(fs.access(&ANN, &file, WANT_WRITE), Kind::AccessDenied);
    let stored = fs.get_xattr(&ANN, &file, ACL_ACCESS).unwrap();
    assert_eq!(&stored[4 + 4 * 8 + 2..][..2], &[4, 0], "the mask in the attribute");
    refused(fs.set_xattr(&ANN, &file, ACL_ACCESS, &value, XattrMode::Set), Kind::NotPermitted);
    let plain = acl(&[(OWNER, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)]);
    fs.set_xattr(&ROOT, &file, ACL_ACCESS, &plain, XattrMode::Set).unwrap();
    assert_eq!(mode(&fs, &file), 0o751);
    refused(fs.get_xattr(&ANN, &file, ACL_ACCESS), Kind::NoAttribute);
    refused(fs.set_xattr(&ROOT, &file, ACL_ACCESS, &value[..20], XattrMode::Set), Kind::InvalidInput);
    refused(fs.set_xattr(&ROOT, &file, ACL_DEFAULT, &plain, XattrMode::Set), Kind::AccessDenied);
}

#[test]
fn a_default_acl_is_inherited_in_place_of_the_umask() {
    let fs = open_fs();
    let dir = mkdir(&fs, &ANN, fs.root(), "d", 0o777);
    let default = acl(&[
        (OWNER, 7, NO_ID),
        (USER, 7, 1001),
        (GROUP_OBJ, 5, NO_ID),
        (MASK, 7, NO_ID),
        (OTHER, 0, NO_ID),
    ]);
    fs.set_xattr(&ANN, &dir, ACL_DEFAULT, &default, XattrMode::Set).unwrap();
    let file = touch(&fs, &ANN, &dir, "f", 0o666);
    assert_eq!(mode(&fs, &file), 0o660);
    let narrowed = acl(&[
        (OWNER, 6, NO_ID),
        (USER, 7, 1001),
        (GROUP_OBJ, 5, NO_ID),
        (MASK, 6, NO_ID),
        (OTHER, 0, NO_ID),
    ]);
    assert_eq!(fs.get_xattr(&ANN, &file, ACL_ACCESS).unwrap(), narrowed);
    fs.access(&BOB, &file, WANT_READ | WANT_WRITE).unwrap();
    let sub = mkdir(&fs, &ANN, &dir, "sub", 0o755);
    assert_eq!(fs.get_xattr(&ANN, &sub, ACL_DEFAULT).unwrap(), default);
    assert_eq!(mode(&fs, &sub), 0o750);
    let link = fs.create(&ANN, &dir, b"l", &Create::symlink(b"f")).unwrap();
    assert_eq!(mode(&fs, &link), 0o777);
    refused(fs.get_xattr(&ANN, &link, ACL_ACCESS), Kind::Unsupported);
    fs.remove_xattr(&ANN, &dir, ACL_DEFAULT).unwrap();
    fs.remove_xattr(&ANN, &dir, ACL_DEFAULT).unwrap();
    assert_eq!(mode(&fs, &touch(&fs, &ANN, &dir, "g", 0o666)), 0o644);
}

#[test]
fn namespaces_of_attributes_have_their_rules() {
    let fs = open_fs();
    let file = touch(&fs, &ANN, fs.root(), "f", 0o600);
    let set = |caller: &Caller<'_>, node: &nacre_lab::model::MemNode, name: &[u8]| {
        fs.set_xattr(caller, node, name, b"v", XattrMode::Set)
    };
    set(&ANN, &file, b"user.a").unwrap();
    refused(set(&BOB, &file, b"user.a"), Kind::AccessDenied);
    refused(fs.get_xattr(&BOB, &file, b"user.a"), Kind::AccessDenied);
    refused(set(&ANN, &file, b"trusted.a"), Kind::NotPermitted);
    refused(set(&ANN, &file, b"system.a"), Kind::Unsupported);
    set(&ROOT, &file, b"trusted.a").unwrap();
    refused(fs.get_xattr(&ANN, &file, b"trusted.a"), Kind::NoAttribute);
    assert_eq!(fs.list_xattrs(&ANN, &file).unwrap(), vec![b"user.a".to_vec()]);
    assert_eq!(fs.list_xattrs(&ROOT, &file).unwrap().len(), 2);
    let fifo = Create { kind: FileKind::Fifo, mode: 0o666, rdev: 0, target: &[] };
    let fifo = fs.create(&ANN, fs.root(), b"p", &fifo).unwrap();
    refused(set(&ANN, &fifo, b"user.a"), Kind::NotPermitted);
    refused(fs.get_xattr(&ANN, &fifo, b"user.a"), Kind::NoAttribute);
    let sticky = mkdir(&fs, &ROOT, fs.root(), "s", 0o777);
    chmod(&fs, &ROOT, &sticky, 0o1777).unwrap();
    refused(set(&ANN, &sticky, b"user.a"), Kind::NotPermitted);
    let too_big = vec![0; 64 << 10 | 1];
    refused(fs.set_xattr(&ANN, &file, b"user.b", &too_big, XattrMode::Set), Kind::TooBig);
}

#[test]
fn the_super_user_executes_only_what_somebody_may() {
    let fs = open_fs();
    let file = touch(&fs, &ANN, fs.root(), "f", 0o600);
    refused(fs.access(&ROOT, &file, WANT_EXECUTE), Kind::AccessDenied);
    fs.access(&ROOT, &file, WANT_READ | WANT_WRITE).unwrap();
    let device = Create { kind: FileKind::CharDevice, mode: 0o666, rdev: 0x103, target: &[] };
    refused(fs.create(&ANN, fs.root(), b"null", &device), Kind::NotPermitted);
    let null = fs.create(&ROOT, fs.root(), b"null", &device).unwrap();
    assert_eq!(fs.getattr(&null).unwrap().rdev, 0x103);
}

#[test]
fn a_read_only_file_system_refuses_changes() {
    let fs =
        Vfs::new(MemLayout::new(1 << 16, 1 << 16), VfsOptions { read_only: true, ..VfsOptions::default() });
    let root = fs.root().clone();
    refused(fs.create(&ROOT, &root, b"f", &Create::file(0o644)), Kind::ReadOnly);
    refused(fs.create_unnamed(&ROOT, &root, 0o644), Kind::ReadOnly);
    refused(fs.unlink(&ROOT, &root, b"f"), Kind::ReadOnly);
    refused(fs.rmdir(&ROOT, &root, b"f"), Kind::ReadOnly);
    refused(fs.rename(&ROOT, &root, b"f", &root, b"g", RenameMode::Replace), Kind::ReadOnly);
    refused(chmod(&fs, &ROOT, &root, 0o700), Kind::ReadOnly);
    refused(fs.set_xattr(&ROOT, &root, b"user.a", b"", XattrMode::Set), Kind::ReadOnly);
    refused(fs.access(&ROOT, &root, WANT_WRITE), Kind::ReadOnly);
    fs.access(&ROOT, &root, WANT_READ | WANT_EXECUTE).unwrap();
}
