//! Whether a device may be overwritten: it is not in use, under any name, and is no part of a mounted file system.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_engine::{Error, Kind, Result};
use nacre_layout_parts::format::{SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_OFFSET};
use nacre_layout_parts::superblock::{SUPERBLOCK_SIZE, Sighting};
use nacre_media::block::{DiskOptions, RealDisk};
use nacre_media::usage;
use nacre_tiers::Label;

const ADVICE: &str =
    "a device of a mount is never overwritten, even with -f; if it is a copy, unmount that file system first";

/// [`Busy`](Kind::Busy) for a device that must not be overwritten.
pub(crate) fn require_free(path: &Path) -> Result<()> {
    usage::require_unused(path)?;
    // A device may have two names that nothing connects, as a disk that is reached by two ways. Its own superblock says
    // what it is.
    let here = superblock_on(path);
    let label = label_on(path);
    for mount in usage::mounts().into_iter().filter(usage::MountLine::is_ours) {
        let Some(mounted) = superblock_on(Path::new(&mount.source)) else { continue };
        let is_memory = here.as_ref().is_some_and(|here| here.is_of_the_same_mount(&mounted));
        let tier = label.as_ref().filter(|label| label.volume() == mounted.uuid);
        let is_tier = tier.filter(|label| mounted.has_tier(label.uuid(), label.token()));
        let what = match (is_memory, is_tier) {
            (true, _) => "the PM".to_owned(),
            (_, Some(label)) => format!("tier {}", label.number()),
            _ => continue,
        };
        let (name, place) = (path.display(), mount.mountpoint.display());
        return Err(Error::new(Kind::Busy)
            .object(format!("{name}: it is {what} of the file system on {place}"))
            .advice(ADVICE));
    }
    Ok(())
}

/// The content of our superblock on a device, if there is one. Other users of the device are not kept out.
fn superblock_on(path: &Path) -> Option<Sighting> {
    // Other devices do not answer, or block in open.
    let kind = std::fs::metadata(path).ok()?.file_type();
    let can_be_read = kind.is_file() || std::os::unix::fs::FileTypeExt::is_block_device(&kind);
    let file = can_be_read.then(|| File::open(path).ok())??;
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let copies = [SUPERBLOCK_OFFSET, SUPERBLOCK_COPY_OFFSET].into_iter();
    copies
        .filter_map(|offset| {
            file.read_exact_at(&mut bytes, offset).ok()?;
            Sighting::of(&bytes)
        })
        .max_by_key(|sighting| sighting.update)
}

fn label_on(path: &Path) -> Option<Label> {
    let options = DiskOptions { read_only: true, only_system_calls: true, ..DiskOptions::default() };
    Label::read(&RealDisk::open(path, &options).ok()?).ok()?
}
