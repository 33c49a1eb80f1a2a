//! POSIX access control lists in the form in which Linux passes them as extended attributes.
//!
//! The form: a little-endian version (2) in 4 bytes, then 8 bytes an entry: tag and permissions in 2 bytes each, and
//! the user or group in 4. Entries stand in the order owner, users, group, groups, mask, others.

use nacre_engine::{Attr, Kind, Result};

use crate::caller::Caller;

const VERSION: u32 = 2;
const ENTRY_LEN: usize = 8;
const NO_ID: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tag {
    UserObj,
    User,
    GroupObj,
    Group,
    Mask,
    Other,
}

impl Tag {
    fn from_bits(bits: u16) -> Option<Tag> {
        Some(match bits {
            0x01 => Tag::UserObj,
            0x02 => Tag::User,
            0x04 => Tag::GroupObj,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return None,
        })
    }

    fn bits(self) -> u16 {
        match self {
            Tag::UserObj => 0x01,
            Tag::User => 0x02,
            Tag::GroupObj => 0x04,
            Tag::Group => 0x08,
            Tag::Mask => 0x10,
            Tag::Other => 0x20,
        }
    }

    fn is_named(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    tag: Tag,
    perm: u32,
    id: u32,
}

/// A valid ACL: owner, group and others once each, and a mask if users or groups are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// The ACL of an attribute's value; `None` for a value without entries, which means no ACL.
    pub(crate) fn parse(value: &[u8]) -> Result<Option<Acl>> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, rest) = value.split_first_chunk::<4>().ok_or(Kind::InvalidInput)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Kind::Unsupported.into());
        }
        if !rest.len().is_multiple_of(ENTRY_LEN) {
            return Err(Kind::InvalidInput.into());
        }
        if rest.is_empty() {
            return Ok(None);
        }
        let entries = rest.chunks_exact(ENTRY_LEN).map(parse_entry).collect::<Result<Vec<_>>>()?;
        let acl = Acl { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Kind::InvalidInput.into()) }
    }

    fn is_valid(&self) -> bool {
        let ordered = self.entries.is_sorted_by(|a, b| a.tag < b.tag || a.tag == b.tag && a.tag.is_named());
        let has = |tag| self.entries.iter().any(|entry| entry.tag == tag);
        let complete = has(Tag::UserObj) && has(Tag::GroupObj) && has(Tag::Other);
        let masked = has(Tag::Mask) || !self.entries.iter().any(|entry| entry.tag.is_named());
        ordered && complete && masked
    }

    /// The value of the attribute.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 + self.entries.len() * ENTRY_LEN);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.tag.bits().to_le_bytes());
            bytes.extend_from_slice(&(entry.perm as u16).to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    /// Whether the ACL says no more than permission bits.
    pub(crate) fn is_only_mode(&self) -> bool {
        self.entries.iter().all(|entry| !entry.tag.is_named() && entry.tag != Tag::Mask)
    }

    fn perm(&self, tag: Tag) -> Option<u32> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// The entry that the permission bits of the group stand for: the mask if there is one.
    fn group_class(&self) -> Tag {
        if self.perm(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObj }
    }

    /// The permission bits (0777) of the ACL.
    pub(crate) fn mode(&self) -> u32 {
        let perm = |tag| self.perm(tag).unwrap_or(0);
        perm(Tag::UserObj) << 6 | perm(self.group_class()) << 3 | perm(Tag::Other)
    }

    /// Applies a chmod.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        let group_class = self.group_class();
        for entry in &mut self.entries {
            entry.perm = match entry.tag {
                Tag::UserObj => mode >> 6 & 7,
                tag if tag == group_class => mode >> 3 & 7,
                Tag::Other => mode & 7,
                _ => entry.perm,
            };
        }
    }

    /// Narrows an inherited ACL to the mode that the creator asked for; returns the mode narrowed likewise.
    pub(crate) fn narrow(&mut self, mode: u32) -> u32 {
        let narrowed = self.mode() & mode & 0o777;
        self.set_mode(narrowed);
        mode & !0o777 | narrowed
    }

    /// Whether the caller has all the rights in `want`.
    pub(crate) fn allows(&self, caller: &Caller<'_>, attr: &Attr, want: u32) -> bool {
        let mask = self.perm(Tag::Mask).unwrap_or(7);
        if caller.uid == attr.uid {
            return self.perm(Tag::UserObj).unwrap_or(0) & want == want;
        }
        let user = self.entries.iter().find(|entry| entry.tag == Tag::User && entry.id == caller.uid);
        if let Some(user) = user {
            return user.perm & mask & want == want;
        }
        let mut is_member = false;
        for entry in &self.entries {
            let group = match entry.tag {
                Tag::GroupObj => attr.gid,
                Tag::Group => entry.id,
                _ => continue,
            };
            if caller.in_group(group) {
                is_member = true;
                if entry.perm & want == want {
                    return mask & want == want;
                }
            }
        }
        !is_member && self.perm(Tag::Other).unwrap_or(0) & want == want
    }
}

fn parse_entry(bytes: &[u8]) -> Result<Entry> {
    let field = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let tag = Tag::from_bits(field(0)).ok_or(Kind::InvalidInput)?;
    let perm = u32::from(field(2));
    let id = u32::from(field(4)) | u32::from(field(6)) << 16;
    if perm > 7 || tag.is_named() && id == NO_ID {
        return Err(Kind::InvalidInput.into());
    }
    let id = if tag.is_named() { id } else { NO_ID };
    Ok(Entry { tag, perm, id })
}

#[cfg(test)]
pub(crate) mod tests {
    use nacre_engine::Kind;

    use super::Acl;

    pub(crate) const OWNER: u16 = 1;
    pub(crate) const USER: u16 = 2;
    pub(crate) const GROUP_OBJ: u16 = 4;
    pub(crate) const GROUP: u16 = 8;
    pub(crate) const MASK: u16 = 16;
    pub(crate) const OTHER: u16 = 32;

    /// An attribute's value from (tag, permissions, id).
    pub(crate) fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(perm.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    const N: u32 = u32::MAX;

    #[test]
    fn an_acl_survives_the_way_through_bytes() {
        let bytes = value(&[
            (OWNER, 7, N),
            (USER, 5, 1000),
            (GROUP_OBJ, 5, N),
            (GROUP, 1, 50),
            (MASK, 4, N),
            (OTHER, 0, N),
        ]);
        let acl = Acl::parse(&bytes).unwrap().unwrap();
        assert_eq!(acl.to_bytes(), bytes);
        assert_eq!(acl.mode(), 0o740);
        assert!(!acl.is_only_mode());
    }

    #[test]
    fn what_is_incomplete_or_out_of_order_is_refused() {
        for entries in [
            &[(OWNER, 7, N), (GROUP_OBJ, 5, N)][..],
            &[(OWNER, 7, N), (USER, 7, 1), (GROUP_OBJ, 5, N), (OTHER, 0, N)],
            &[(GROUP_OBJ, 5, N), (OWNER, 7, N), (OTHER, 0, N)],
            &[(OWNER, 8, N), (GROUP_OBJ, 5, N), (OTHER, 0, N)],
            &[(OWNER, 7, N), (OWNER, 7, N), (GROUP_OBJ, 5, N), (OTHER, 0, N)],
            &[(OWNER, 7, N), (GROUP_OBJ, 5, N), (OTHER, 0, N), (64, 0, N)],
        ] {
            assert_eq!(Acl::parse(&value(entries)).unwrap_err().kind(), Kind::InvalidInput, "{entries:?}");
        }
        assert_eq!(Acl::parse(&[2, 0, 0, 0, 1]).unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(Acl::parse(&[1, 0, 0, 0]).unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(Acl::parse(&value(&[])).unwrap(), None);
    }

    #[test]
    fn the_mask_follows_the_mode_and_the_group_does_not() {
        let mut acl = Acl::parse(&value(&[
            (OWNER, 7, N),
            (USER, 7, 1000),
            (GROUP_OBJ, 6, N),
            (MASK, 7, N),
            (OTHER, 5, N),
        ]))
        .unwrap()
        .unwrap();
        assert_eq!(acl.narrow(0o2640), 0o2640);
        assert_eq!(acl.mode(), 0o640);
        assert_eq!(
            acl.to_bytes(),
            value(&[(OWNER, 6, N), (USER, 7, 1000), (GROUP_OBJ, 6, N), (MASK, 4, N), (OTHER, 0, N)])
        );
    }
}
