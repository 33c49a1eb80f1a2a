//! Extended attributes: all of an inode one behind the other in entries of bytes, written anew as a whole.

use nacre_engine::{Attr, Error, Kind, Resource, Result, Timestamp, XattrMode};
use nacre_layout_parts::rules::{check_flags, check_xattr_mode};
use nacre_media::Pm;

use crate::bytes::MAX_BYTES;
use crate::commit::Change;
use crate::counts::Purpose;
use crate::format::pools::ATTRIBUTES;
use crate::fs::Shared;
use crate::held::HeldInode;

/// An attribute: name and value.
type Xattr = (Vec<u8>, Vec<u8>);

/// Attributes as bytes: length of the name, length of the value, name, value.
fn encode<'x>(xattrs: impl Iterator<Item = (&'x [u8], &'x [u8])>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in xattrs {
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    bytes
}

/// The attributes of such bytes.
fn decode(bytes: &[u8]) -> Option<Vec<Xattr>> {
    let mut xattrs = Vec::new();
    let mut rest = bytes;
    while let Some((name_len, behind)) = rest.split_first() {
        let (value_len, behind) = behind.split_first_chunk::<4>()?;
        let (name, behind) = behind.split_at_checked(usize::from(*name_len))?;
        let (value, behind) = behind.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
        xattrs.push((name.to_vec(), value.to_vec()));
        rest = behind;
    }
    Some(xattrs)
}

impl<P: Pm> Shared<P> {
    /// The attributes at an address of an inode; none where that is 0.
    pub(crate) fn read_xattrs(&self, address: u64) -> Result<Vec<Xattr>> {
        let bytes = self.read_bytes(address, |_, _| {})?;
        decode(&bytes).ok_or_else(|| Error::corrupt(format!("the attributes at {address}")))
    }

    pub(crate) fn get_xattr(&self, inode: &HeldInode, name: &[u8]) -> Result<Vec<u8>> {
        let _lock = self.read_lock(inode.number);
        let xattrs = self.read_xattrs(self.read_inode(inode.number)?.attributes)?;
        let found = xattrs.into_iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value).ok_or(Error::new(Kind::NoAttribute))
    }

    pub(crate) fn list_xattrs(&self, inode: &HeldInode) -> Result<Vec<Vec<u8>>> {
        let _lock = self.read_lock(inode.number);
        let xattrs = self.read_xattrs(self.read_inode(inode.number)?.attributes)?;
        Ok(xattrs.into_iter().map(|(name, _)| name).collect())
    }

    /// Sets an attribute, or removes it.
    pub(crate) fn change_xattrs(
        &self,
        inode: &HeldInode,
        name: &[u8],
        value: Option<(&[u8], XattrMode)>,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        let _lock = self.lock(&[inode.number]);
        self.change(|change| {
            let raw = *change.edit(inode.number)?;
            check_flags(raw.flags, Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
            let mut xattrs = self.read_xattrs(raw.attributes)?;
            let before = xattrs.iter().position(|(other, _)| other == name);
            match value {
                Some((value, how)) => {
                    check_xattr_mode(how, before.is_some())?;
                    match before {
                        Some(index) => xattrs[index].1 = value.to_vec(),
                        None => xattrs.push((name.to_vec(), value.to_vec())),
                    }
                }
                None => {
                    let index = before.ok_or(Error::new(Kind::NoAttribute))?;
                    xattrs.remove(index);
                }
            }
            let of = xattrs.iter().map(|(name, value)| (&name[..], &value[..]));
            let purpose = if value.is_some() { Purpose::Data } else { Purpose::Metadata };
            let address = change.write_encoded(&encode(of), purpose)?;
            if raw.attributes != 0 {
                change.free_bytes(raw.attributes)?;
            }
            let new = change.edit(inode.number)?;
            new.attributes = address;
            if let Some(mode) = mode {
                new.mode = (mode & 0o7777) as u16;
            }
            new.changed(self.times.pack(now));
            change.commit()
        })
    }
}

impl<P: Pm> Change<'_, P> {
    /// Writes the attributes of a new inode; gives the first of their entries.
    pub(crate) fn write_attributes(&mut self, xattrs: &[(&[u8], &[u8])], purpose: Purpose) -> Result<u64> {
        self.write_encoded(&encode(xattrs.iter().copied()), purpose)
    }

    fn write_encoded(&mut self, bytes: &[u8], purpose: Purpose) -> Result<u64> {
        if bytes.len() > MAX_BYTES {
            return Err(
                Error::no_space(Resource::Limit, 0).object("the attributes of an inode, at most 4 MiB")
            );
        }
        self.write_bytes(bytes, ATTRIBUTES, purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn attributes_come_back() {
        let xattrs = [(&b"user.a"[..], &b"value"[..]), (b"user.empty", b""), (b"b", &[7; 70_000])];
        let decoded = decode(&encode(xattrs.iter().copied())).unwrap();
        assert!(decoded.iter().zip(xattrs).all(|((name, value), other)| (&name[..], &value[..]) == other));
        assert_eq!(decode(&[]), Some(Vec::new()));
        assert_eq!(decode(&[200, 0, 0]), None);
    }
}
