//! The existing content of a device, so that `mkfs` destroys nothing by mistake.
//!
//! [`detect`] looks for the marks of file systems, volume managers, encryption and partition tables at their known
//! places at both ends of the device. Short marks count only together with a plausible field beside them. The offsets
//! are those that `blkid(8)` uses.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nacre_engine::{Error, Kind, Result};
use nacre_layout_parts::format::{SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_OFFSET, SUPERBLOCK_SPARE_OFFSET};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_media::{Pm, RealPm};

use crate::layout::of_kind;
use crate::preset::LayoutKind;

/// Bytes read from the start: everything up to the uberblocks of a ZFS label.
const HEAD: u64 = 256 << 10;
/// Bytes read from the end.
const TAIL: u64 = 128 << 10;
/// Bytes of a plain file that are searched for anything but zeros, and of a device for the remains of a nacre file
/// system.
pub(crate) const CONTENT: u64 = 64 << 20;

/// A mark that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The format that it marks, in words.
    pub name: &'static str,
    /// Its first byte on the device.
    pub offset: u64,
    /// Its length.
    pub len: u64,
}

/// Where a mark stands.
#[derive(Debug, Clone, Copy)]
enum At {
    /// From the start of the device.
    Start(u64),
    /// Before the end of the device.
    End(u64),
    /// In the last block of 4096 bytes that is whole, as counted by NILFS2, from its start.
    LastBlock(u64),
}

/// A mark, its place, and a condition on the bytes there.
#[derive(Clone, Copy)]
struct Mark {
    name: &'static str,
    at: At,
    magic: &'static [u8],
    also: Option<fn(&Image) -> bool>,
}

const fn mark(name: &'static str, at: u64, magic: &'static [u8]) -> Mark {
    Mark { name, at: At::Start(at), magic, also: None }
}

const fn mark_if(name: &'static str, at: u64, magic: &'static [u8], also: fn(&Image) -> bool) -> Mark {
    Mark { name, at: At::Start(at), magic, also: Some(also) }
}

const fn mark_at(name: &'static str, at: At, magic: &'static [u8]) -> Mark {
    Mark { name, at, magic, also: None }
}

pub(crate) const NACRE: &str = "a nacre file system";
pub(crate) const TIER: &str = "a tier of a nacre file system";
const SWAP: &str = "swap space";
const LVM: &str = "an LVM2 physical volume";
const LUKS: &str = "a LUKS encrypted volume";
const RAID: &str = "a member of a Linux RAID";
const MBR: &str = "a partition table or boot sector (MBR)";
const GPT: &str = "a GPT partition table";
const FAT: &str = "a FAT file system";
const REISER: &str = "a ReiserFS file system";
const MINIX: &str = "a Minix file system";
const NVDIMM: &str = "the info block of an NVDIMM namespace";
/// The name of content that cannot be read.
const UNREADABLE: &str = "bytes that cannot be read";
/// How much is read at a time where the whole cannot be.
const PIECE: usize = 4096;

/// The places of a superblock, of any layout: both copies, and the spare one.
const SUPERBLOCKS: [u64; 3] = [SUPERBLOCK_OFFSET, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_SPARE_OFFSET];

/// All marks; if two have the same place, the first one wins.
fn marks() -> impl Iterator<Item = Mark> {
    let of_layout = |layout| {
        let magic: &'static [u8] = of_kind!(layout, Layout => &Layout::MAGIC);
        SUPERBLOCKS.map(|at| mark(NACRE, at, magic))
    };
    LayoutKind::ALL.into_iter().flat_map(of_layout).chain(MARKS.iter().copied())
}

/// The marks of everything but our layouts.
const MARKS: &[Mark] = &[
    mark(TIER, 0, b"nacreTIR"),
    mark_at(TIER, At::LastBlock(0), b"nacreTIR"),
    mark_if("an ext4 file system", 0x438, &[0x53, 0xef], |image| image.u32(0x460) & 0x2c0 != 0),
    mark_if("an ext3 file system", 0x438, &[0x53, 0xef], |image| image.u32(0x45c) & 4 != 0),
    mark_if("an ext2 file system", 0x438, &[0x53, 0xef], |image| image.u32(0x418) <= 6),
    mark("an XFS file system", 0, b"XFSB"),
    mark("a Btrfs file system", 0x1_0040, b"_BHRfS_M"),
    mark(SWAP, 4086, b"SWAPSPACE2"),
    mark(SWAP, 4086, b"SWAP-SPACE"),
    mark(SWAP, 8182, b"SWAPSPACE2"),
    mark(SWAP, 16374, b"SWAPSPACE2"),
    mark(SWAP, 32758, b"SWAPSPACE2"),
    mark(SWAP, 65526, b"SWAPSPACE2"),
    mark("a hibernation image", 4086, b"S1SUSPEND"),
    mark("a hibernation image", 4086, b"S2SUSPEND"),
    mark(LVM, 0, b"LABELONE"),
    mark(LVM, 512, b"LABELONE"),
    mark(LVM, 1024, b"LABELONE"),
    mark(LVM, 1536, b"LABELONE"),
    mark(LUKS, 0, b"LUKS\xba\xbe"),
    mark(LUKS, 0x4000, b"SKUL\xba\xbe"),
    mark(LUKS, 0x8000, b"SKUL\xba\xbe"),
    mark(LUKS, 0x1_0000, b"SKUL\xba\xbe"),
    mark(LUKS, 0x2_0000, b"SKUL\xba\xbe"),
    mark("an NTFS file system", 3, b"NTFS    "),
    mark("a BitLocker volume", 3, b"-FVE-FS-"),
    mark("an exFAT file system", 3, b"EXFAT   "),
    mark_if(FAT, 82, b"FAT32   ", is_boot_sector),
    mark_if(FAT, 54, b"FAT16   ", is_boot_sector),
    mark_if(FAT, 54, b"FAT12   ", is_boot_sector),
    mark_if(FAT, 54, b"FAT     ", is_boot_sector),
    mark(GPT, 512, b"EFI PART"),
    mark(GPT, 4096, b"EFI PART"),
    mark_at(GPT, At::End(512), b"EFI PART"),
    mark_at(GPT, At::End(4096), b"EFI PART"),
    mark_if(MBR, BOOT_MARK, &[0x55, 0xaa], |image| !image.has_other_boot_sector()),
    mark("a SquashFS image", 0, b"hsqs"),
    mark("a SquashFS image", 0, b"sqsh"),
    mark("an EROFS image", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    mark("a cramfs image", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    mark("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    mark("an F2FS file system", 5120, &[0x10, 0x20, 0xf5, 0xf2]),
    mark_if("a NILFS2 file system", 1030, &[0x34, 0x34], |image| image.u32(1024) == 2),
    Mark {
        name: "a NILFS2 file system",
        at: At::LastBlock(6),
        magic: &[0x34, 0x34],
        also: Some(|image| image.last_block().is_some_and(|block| image.u32(block) == 2)),
    },
    mark(
        "a bcachefs file system",
        4120,
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
    mark(
        "a bcache device or bcachefs file system",
        4120,
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
    mark("an ISO 9660 image", 32769, b"CD001"),
    mark("a UDF file system", 32769, b"BEA01"),
    mark("a UDF file system", 32769, b"NSR0"),
    mark("a JFS file system", 32768, b"JFS1"),
    mark(REISER, 65588, b"ReIsEr"),
    mark(REISER, 8244, b"ReIsEr"),
    mark("a Reiser4 file system", 65536, b"ReIsEr4"),
    mark("a GFS2 or OCFS file system", 65536, &[0x01, 0x16, 0x19, 0x70]),
    mark("an OCFS2 file system", 4096, b"OCFSV2"),
    mark("an APFS container", 32, b"NXSB"),
    mark_if("an HFS+ file system", 1024, b"H+", |image| image.u16(1026) == 0x0400),
    mark_if("an HFSX file system", 1024, b"HX", |image| image.u16(1026) == 0x0500),
    mark_if(MINIX, 1040, &[0x7f, 0x13], is_minix),
    mark_if(MINIX, 1040, &[0x8f, 0x13], is_minix),
    mark_if(MINIX, 1040, &[0x68, 0x24], is_minix),
    mark_if(MINIX, 1040, &[0x78, 0x24], is_minix),
    mark_if(MINIX, 1048, &[0x5a, 0x4d], |image| image.u16(1030) != 0 && image.u16(1052) >= 1024),
    mark("a UBI image", 0, b"UBI#"),
    mark("a UBIFS file system", 0, &[0x31, 0x18, 0x10, 0x06]),
    mark(RAID, 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    mark(RAID, 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    mark_at(RAID, At::End(8192), &[0xfc, 0x4e, 0x2b, 0xa9]),
    mark_at(RAID, At::End(65536), &[0xfc, 0x4e, 0x2b, 0xa9]),
    mark("a Stratis pool", 516, b"!Stra0tis\x86\xff\x02^\x41rh"),
    mark("a Ceph BlueStore device", 0, b"bluestore block device"),
    mark_if("a NOVA file system", 4, &[0x41, 0x56, 0x4f, 0x4e], |image| image.u32(12) >= 512),
    mark_if("a PMFS file system", 2, &[0xfc, 0xef], |image| {
        [4 << 10, 2 << 20, 1 << 30].contains(&image.u32(4))
    }),
    mark(NVDIMM, 4096, b"NVDIMM_PFN_INFO"),
    mark(NVDIMM, 4096, b"NVDIMM_DAX_INFO"),
    mark(NVDIMM, 4096, b"BTT_ARENA_INFO"),
];

/// The mark at the end of a boot sector of any origin.
const BOOT_MARK: u64 = 510;

const ZFS: &str = "a member of a ZFS pool";
/// Uberblocks stand in the second half of a label of 256 KiB, one in each KiB, in either byte order.
const ZFS_UBERBLOCKS: std::ops::Range<u64> = 128 << 10..256 << 10;
const ZFS_MAGICS: [[u8; 8]; 2] = [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()];

fn is_boot_sector(image: &Image) -> bool {
    image.u16(BOOT_MARK) == 0xaa55
}

/// The first two versions: bitmaps of inodes and zones, and zones of one block.
fn is_minix(image: &Image) -> bool {
    image.u16(1028) != 0 && image.u16(1030) != 0 && image.u16(1034) == 0
}

/// Both ends of a device.
struct Image {
    head: Vec<u8>,
    tail: Vec<u8>,
    len: u64,
    /// Where it could not be read: zeros stand there.
    unreadable: Vec<Signature>,
}

impl Image {
    /// Reads both ends by a routine that reads at an offset. A part that cannot be read hides no mark elsewhere.
    fn read(len: u64, mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Image> {
        let mut unreadable: Vec<Signature> = Vec::new();
        let mut part = |start: u64, size: u64| -> Result<Vec<u8>> {
            let mut bytes = vec![0; size as usize];
            if read(start, &mut bytes).is_ok() {
                return Ok(bytes);
            }
            let mut first_error = None;
            let mut failed = 0;
            for (piece, offset) in bytes.chunks_mut(PIECE).zip((start..).step_by(PIECE)) {
                if let Err(error) = read(offset, piece) {
                    piece.fill(0);
                    failed += piece.len();
                    first_error.get_or_insert(error);
                    if unreadable.iter().all(|known| known.offset != offset) {
                        unreadable.push(Signature { name: UNREADABLE, offset, len: piece.len() as u64 });
                    }
                }
            }
            match first_error {
                Some(error) if failed == bytes.len() => Err(error),
                _ => Ok(bytes),
            }
        };
        let head = part(0, len.min(HEAD))?;
        let tail = len.min(TAIL);
        let tail = part(len - tail, tail)?;
        Ok(Image { head, tail, len, unreadable })
    }

    fn get(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let tail_start = self.len - self.tail.len() as u64;
        let part = |bytes, start: u64| -> Option<&[u8]> {
            let start = usize::try_from(offset.checked_sub(start)?).ok()?;
            <[u8]>::get(bytes, start..start.checked_add(len)?)
        };
        part(&self.head, 0).or_else(|| part(&self.tail, tail_start))
    }

    /// A little-endian number, or 0 beyond the ends.
    fn u16(&self, offset: u64) -> u16 {
        self.get(offset, 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&self, offset: u64) -> u32 {
        u32::from(self.u16(offset)) | u32::from(self.u16(offset + 2)) << 16
    }

    fn last_block(&self) -> Option<u64> {
        Some((self.len / 4096).checked_sub(1)? * 4096)
    }

    fn place(&self, at: At) -> Option<u64> {
        match at {
            At::Start(offset) => Some(offset),
            At::End(before) => self.len.checked_sub(before),
            At::LastBlock(within) => Some(self.last_block()? + within),
        }
    }

    fn holds(&self, mark: &Mark, offset: u64) -> bool {
        self.get(offset, mark.magic.len()) == Some(mark.magic) && mark.also.is_none_or(|also| also(self))
    }

    /// The boot sector belongs to a format that is named already, by another mark in it or a GPT behind it.
    fn has_other_boot_sector(&self) -> bool {
        marks().any(|mark| match mark.at {
            At::Start(offset) if offset < BOOT_MARK || mark.name == GPT => self.holds(&mark, offset),
            _ => false,
        })
    }

    fn signatures(&self) -> Vec<Signature> {
        let mut found: Vec<Signature> = Vec::new();
        for mark in marks() {
            let Some(offset) = self.place(mark.at) else { continue };
            if self.holds(&mark, offset) && !found.iter().any(|known| known.offset == offset) {
                found.push(Signature { name: mark.name, offset, len: mark.magic.len() as u64 });
            }
        }
        for offset in ZFS_UBERBLOCKS.step_by(1024) {
            if self.get(offset, 8).is_some_and(|bytes| ZFS_MAGICS.iter().any(|magic| magic == bytes)) {
                found.push(Signature { name: ZFS, offset, len: 8 });
            }
        }
        found.extend(self.unreadable.iter().cloned());
        found
    }
}

/// The marks on a device or in a file of `len` bytes.
pub fn detect(file: &File, len: u64, name: &str) -> Result<Vec<Signature>> {
    let image = Image::read(len, |offset, buf| {
        file.read_exact_at(buf, offset).map_err(|error| Error::io("read", name, error))
    })?;
    Ok(image.signatures())
}

/// The contents of a device according to its marks, in words.
pub(crate) fn names(signatures: &[Signature]) -> String {
    let mut names: Vec<&str> = signatures.iter().map(|signature| signature.name).collect();
    names.dedup();
    names.join(" and ")
}

/// The marks on a device that can only be mapped.
pub(crate) fn detect_on(pm: &RealPm) -> Result<Vec<Signature>> {
    Ok(Image::read(pm.len(), |offset, buf| pm.read(offset, buf))?.signatures())
}

/// Whether a plain file has anything but zeros in its first 64 MiB of data; holes are not looked at.
pub(crate) fn has_content(file: &File, len: u64, name: &str) -> Result<bool> {
    let failed = |error: std::io::Error| Error::io("read", name, error);
    let mut buf = vec![0; 1 << 20];
    let (mut offset, mut budget) = (0, CONTENT);
    while offset < len && budget > 0 {
        // A file system that knows no holes says that all of it is data.
        offset = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(false),
            Err(rustix::io::Errno::INVAL) => offset,
            Err(errno) => return Err(failed(errno.into())),
        };
        let count = file.read_at(&mut buf, offset).map_err(failed)?;
        if count == 0 {
            break;
        }
        if buf[..count].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        offset += count as u64;
        budget = budget.saturating_sub(count as u64);
    }
    Ok(false)
}

/// Erases marks that nothing else will overwrite, so that the device is no longer taken for its old content.
pub(crate) fn wipe(pm: &RealPm, signatures: &[Signature]) -> Result<()> {
    // Marks behind the present end were cut off.
    for signature in signatures.iter().filter(|mark| mark.offset + mark.len <= pm.len()) {
        match pm.zero(signature.offset, signature.len) {
            Ok(zeroed) => {
                pm.fence(zeroed);
            }
            // A range that can be neither read nor written is no mark.
            Err(error) if error.kind() == Kind::Media && signature.name == UNREADABLE => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Image, marks};

    const LEN: u64 = 1 << 20;

    fn names(parts: &[(u64, &[u8])]) -> Vec<&'static str> {
        let mut bytes = vec![0; LEN as usize];
        for (offset, part) in parts {
            bytes[*offset as usize..][..part.len()].copy_from_slice(part);
        }
        let image = Image::read(LEN, |offset, buf| {
            buf.copy_from_slice(&bytes[offset as usize..][..buf.len()]);
            Ok(())
        });
        image.unwrap().signatures().into_iter().map(|signature| signature.name).collect()
    }

    #[test]
    fn each_mark_is_found_where_it_stands() {
        let image = Image { head: vec![], tail: vec![], len: LEN, unreadable: vec![] };
        for mark in marks().filter(|mark| mark.also.is_none()) {
            let offset = image.place(mark.at).unwrap();
            assert_eq!(names(&[(offset, mark.magic)]), [mark.name]);
        }
        assert_eq!(names(&[]), [""; 0]);
    }

    #[test]
    fn the_generations_of_ext_are_told_apart() {
        let magic: (u64, &[u8]) = (0x438, &[0x53, 0xef]);
        assert_eq!(names(&[magic]), ["an ext2 file system"]);
        assert_eq!(names(&[magic, (0x45c, &[4])]), ["an ext3 file system"]);
        assert_eq!(names(&[magic, (0x45c, &[4]), (0x460, &[0x40])]), ["an ext4 file system"]);
        assert_eq!(names(&[magic, (0x418, &[200])]), [""; 0], "a block of 2^210 bytes");
    }

    #[test]
    fn short_marks_need_a_plausible_field() {
        let pmfs: (u64, &[u8]) = (2, &[0xfc, 0xef]);
        assert_eq!(names(&[pmfs]), [""; 0]);
        assert_eq!(names(&[pmfs, (4, &[0, 0x10, 0, 0])]), ["a PMFS file system"]);
        assert_eq!(names(&[(4, b"AVON"), (12, &[0, 0x10, 0, 0])]), ["a NOVA file system"]);
        assert_eq!(names(&[(LEN - 4090, &[0x34, 0x34]), (LEN - 4096, &[2])]), ["a NILFS2 file system"]);
    }

    #[test]
    fn a_boot_sector_is_named_after_its_owner() {
        let boot: (u64, &[u8]) = (510, &[0x55, 0xaa]);
        assert_eq!(names(&[boot]), ["a partition table or boot sector (MBR)"]);
        assert_eq!(names(&[(82, b"FAT32   "), boot]), ["a FAT file system"]);
        assert_eq!(names(&[(82, b"FAT32   ")]), [""; 0]);
        assert_eq!(names(&[(512, b"EFI PART"), boot]), ["a GPT partition table"]);
    }

    #[test]
    fn uberblocks_of_either_byte_order_are_found() {
        assert_eq!(names(&[(129 << 10, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0])]), ["a member of a ZFS pool"]);
        assert_eq!(names(&[(255 << 10, &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c])]), ["a member of a ZFS pool"]);
    }

    /// A bad page at the start hid everything that the rest of a device said.
    #[test]
    fn what_cannot_be_read_hides_nothing_elsewhere() {
        let image = Image::read(LEN, |offset, buf| {
            buf.fill(0);
            let end = offset + buf.len() as u64;
            if offset < 4096 {
                return Err(nacre_engine::Error::new(nacre_engine::Kind::Media));
            }
            if (offset..end).contains(&(64 << 10)) {
                let at = ((64 << 10) - offset) as usize;
                buf[at..at + 8].copy_from_slice(b"nacreINP");
            }
            Ok(())
        });
        let found = image.unwrap().signatures();
        let names: Vec<&str> = found.iter().map(|signature| signature.name).collect();
        assert_eq!(names, ["a nacre file system", "bytes that cannot be read"]);
        assert_eq!((found[1].offset, found[1].len), (0, 4096));
        let none = Image::read(LEN, |_, _| Err(nacre_engine::Error::new(nacre_engine::Kind::Media)));
        assert!(none.is_err(), "nothing can be read at all");
    }

    #[test]
    fn a_device_smaller_than_the_marks_places_is_no_error() {
        let image = Image::read(600, |_, buf| {
            buf.fill(0);
            Ok(())
        });
        assert!(image.unwrap().signatures().is_empty());
    }
}
