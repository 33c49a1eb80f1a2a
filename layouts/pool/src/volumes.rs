//! The rows of volumes.

use nacre_engine::{Error, Result, TimeRange};
use nacre_media::Pm;
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use crate::commit::Change;
use crate::counts::Counts;
use crate::format::{RawVolume, VOLUME_BYTES, volume_state};
use crate::fs::Shared;
use crate::geometry::Geometry;
use crate::mend::read_either;
use crate::superblock::{self, Found, Summary};
use crate::zones::read_geometry;

/// Reads the row of the volume.
pub(crate) fn read(pm: &impl Pm, geometry: &Geometry) -> Result<RawVolume> {
    let address = geometry.volumes.start;
    let seed = geometry.seed(address);
    let mut row = RawVolume::new_zeroed();
    let is_valid = |bytes: &[u8]| {
        let mut row = RawVolume::new_zeroed();
        row.as_mut_bytes()[..VOLUME_BYTES].copy_from_slice(bytes);
        row.state == volume_state::LIVE && row.checksum == row.compute_checksum(seed)
    };
    let copies = [address, geometry.twin(address)];
    read_either(pm, copies, &mut row.as_mut_bytes()[..VOLUME_BYTES], is_valid)
        .map_err(|error| error.object("the row of the volume"))?;
    if geometry.inode(crate::format::ROOT_INODE, row.root).is_none() || row.zone != 0 {
        return Err(Error::corrupt("the row of the volume"));
    }
    Ok(row)
}

/// The summary of the file system on a device, without mounting it.
pub(crate) fn probe(pm: &impl Pm) -> Result<Summary> {
    let found = superblock::read(pm)?;
    let geometry = read_geometry(pm, &found.superblock)?;
    let row = read(pm, &geometry)?;
    Ok(summary(&found, &row))
}

/// The summary of a file system: what the superblock says, and what the volume does.
pub(crate) fn summary(found: &Found, row: &RawVolume) -> Summary {
    let times = TimeRange::of_version(found.superblock.raw.version);
    Summary {
        uuid: Uuid::from_bytes(row.uuid),
        features: [row.features_compatible, 0, found.superblock.raw.features_incompatible],
        mount_epoch: row.mount_epoch,
        clean: row.clean == 1,
        errors: row.errors,
        last_error: (row.last_error != 0).then(|| times.unpack(row.last_error)).flatten(),
        ..found.superblock.summary(found.valid)
    }
}

impl RawVolume {
    /// The counts, as a clean unmount keeps them.
    pub(crate) fn counts(&self) -> [u64; 4] {
        [self.free_blocks, self.free_in_pools, self.whole_groups, self.inodes]
    }

    /// Takes these counts.
    pub(crate) fn keep(&mut self, counts: &Counts) {
        let Counts { free, in_pools, whole, inodes, .. } = *counts;
        [self.free_blocks, self.free_in_pools, self.whole_groups, self.inodes] =
            [free, in_pools, whole, inodes];
    }
}

impl<P: Pm> Shared<P> {
    /// Changes the row in an operation of its own.
    pub(crate) fn change_row(&self, edit: impl Fn(&mut RawVolume)) -> Result<()> {
        self.change(|change| {
            let mut row = self.row.lock();
            let after = change.put_row(&row, &edit);
            change.commit()?;
            *row = after;
            Ok(())
        })
    }
}

impl<P: Pm> Change<'_, P> {
    /// The row after an edit, which becomes a part of this operation. The caller has its lock until the commit.
    pub(crate) fn put_row(&mut self, row: &RawVolume, edit: impl Fn(&mut RawVolume)) -> RawVolume {
        let mut after = *row;
        edit(&mut after);
        let address = self.fs.geometry.volumes.start;
        after.checksum = after.compute_checksum(self.fs.geometry.seed(address));
        self.item(address, &after.as_bytes()[..VOLUME_BYTES]);
        after
    }
}
