//! `nacre stat`: the places of a file's blocks.

use std::path::{Path, PathBuf};

use clap::Args;
use nacre::{FileSystem, OpenOptions, Place, PlacedExtent};
use nacre_control::Question;
use nacre_engine::size;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::failure::Failure;
use crate::{mounted, output};

/// The attribute with a file's extents.
const QUESTION: &str = Question::Extents.attribute();
/// Bytes in a block, the unit of extents.
const BLOCK: u64 = 4096;

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre stat /mnt/some/file
      Lists the extents of a file on a mount.
  nacre stat --device /dev/dax0.0 some/file
      Lists them on a device that is not mounted.

See also:
  nacre-promote(8), nacre-demote(8)
";

/// Arguments of `nacre stat`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct StatArgs {
    /// Read this device, which is not mounted; PATH begins at its root
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
    /// Print it as JSON, with exact bytes
    #[arg(long)]
    json: bool,
    /// A regular file on a mounted file system
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

/// Contiguous blocks of a file in one place.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Extent {
    /// First block in the file.
    start: u64,
    /// Number of blocks.
    len: u64,
    /// `pm`, `unwritten`, `tier` or `hole`.
    place: String,
    /// The first block in that place; `None` for a hole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    /// The number of the tier, if the place is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<u8>,
}

/// One answer of a mount.
#[derive(Deserialize)]
struct Page {
    extents: Vec<Extent>,
    next: Option<u64>,
}

/// Lists the extents of a file.
pub(crate) fn run(args: StatArgs) -> Result<(), Failure> {
    let (bytes, extents) = match &args.device {
        Some(device) => from_device(device, &args.path)?,
        None => from_mount(&args.path)?,
    };
    let sum = |place: &str| {
        let there = extents.iter().filter(|extent| extent.place == place);
        there.map(|extent| extent.len).sum::<u64>() * BLOCK
    };
    if args.json {
        return output::json(json!({
            "path": args.path.display().to_string(),
            "size": bytes,
            "bytes": { "pm": sum("pm"), "unwritten": sum("unwritten"), "tier": sum("tier"), "hole": sum("hole") },
            "extents": extents,
        }));
    }
    let places = in_places(&extents);
    let count = output::count(extents.len() as u64, "extent", "extents");
    let mut text = format!("{}: {}, {places}, {count}\n", args.path.display(), size::print(bytes));
    if !extents.is_empty() {
        text += &output::table(
            &["offset", "size", "place ", "block"],
            &extents.iter().map(cells).collect::<Vec<_>>(),
        );
    }
    output::text_out(&text)
}

/// The sizes of extents in each place, in words.
fn in_places(extents: &[Extent]) -> String {
    const NAMES: [(&str, bool, &str); 5] = [
        ("pm", false, "on PM"),
        ("unwritten", false, "on PM, not written"),
        ("tier", true, "on tiers"),
        ("unwritten", true, "on tiers, not written"),
        ("hole", false, "nowhere"),
    ];
    let size = |place: &str, on_tier: bool| {
        let there = extents.iter().filter(|extent| extent.place == place && extent.tier.is_some() == on_tier);
        there.map(|extent| extent.len).sum::<u64>() * BLOCK
    };
    let sizes = NAMES.map(|(place, on_tier, name)| (size(place, on_tier), name));
    let there = sizes.iter().filter(|(size, _)| *size > 0);
    let places: Vec<String> = there.map(|(bytes, name)| format!("{} {name}", size::print(*bytes))).collect();
    if places.is_empty() { "no blocks".to_owned() } else { places.join(", ") }
}

fn cells(extent: &Extent) -> Vec<String> {
    let place = match (extent.place.as_str(), extent.tier) {
        ("tier", Some(tier)) => format!("tier {tier}"),
        ("unwritten", Some(tier)) => format!("tier {tier}, not written"),
        ("unwritten", _) => "pm, not written".to_owned(),
        (place, _) => place.to_owned(),
    };
    let block = extent.block.map_or_else(|| "-".to_owned(), |block| block.to_string());
    vec![(extent.start * BLOCK).to_string(), size::print(extent.len * BLOCK), place, block]
}

fn from_mount(path: &Path) -> Result<(u64, Vec<Extent>), Failure> {
    if mounted::serving("stat", path)?.is_none() {
        return Err(
            mounted::is_not_ours("stat", path).advice("--device DEVICE reads a device that is not mounted")
        );
    }
    // A mount answers questions about the file itself, not about a symbolic link.
    let failed = |error: std::io::Error| Failure::new("stat", path.display(), error);
    let path = &std::fs::canonicalize(path).map_err(failed)?;
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(Failure::new("stat", path.display(), "only regular files have extents"));
    }
    mounted::write_pages("stat", path)?;
    let mut extents = Vec::new();
    let mut next = Some(0);
    while let Some(start) = next {
        let page: Page = mounted::ask("stat", path, &format!("{QUESTION}.{start}"))?;
        extents.extend(page.extents);
        // A file that changes meanwhile must not lead backwards.
        next = page.next.filter(|next| *next > start);
    }
    Ok((metadata.len(), extents))
}

fn from_device(device: &Path, path: &Path) -> Result<(u64, Vec<Extent>), Failure> {
    mounted::reach("stat", device)?;
    let options = OpenOptions { read_only: true, never_writes: true, ..OpenOptions::default() };
    let look = || {
        let fs = FileSystem::open(device, &options)?;
        let named = |error: nacre::Error| error.object(path.display().to_string());
        let metadata = fs.metadata(path).map_err(named)?;
        let extents = if metadata.is_file() { Some(fs.extents(path).map_err(named)?) } else { None };
        fs.close().map(|()| (metadata.len(), extents))
    };
    match look().map_err(|error| Failure::on("stat", device, &error))? {
        (size, Some(extents)) => Ok((size, extents.iter().map(extent).collect())),
        (_, None) => Err(Failure::new("stat", path.display(), "only regular files have extents")),
    }
}

fn extent(placed: &PlacedExtent) -> Extent {
    let (place, block, tier) = match placed.place {
        Place::Hole => ("hole", None, None),
        Place::Pm(block) => ("pm", Some(block.0), None),
        Place::Unwritten(block) => ("unwritten", Some(block.0), None),
        Place::UnwrittenOnTier { tier, block } => ("unwritten", Some(block.0), Some(tier)),
        Place::Tier { tier, block } => ("tier", Some(block.0), Some(tier)),
    };
    Extent { start: placed.start.0, len: placed.len, place: place.to_owned(), block, tier }
}

#[cfg(test)]
mod tests {
    use super::{Extent, in_places};

    /// Unwritten blocks of a tier were said to be on PM.
    #[test]
    fn sizes_are_told_by_place() {
        let extent =
            |place: &str, tier| Extent { start: 0, len: 256, place: place.to_owned(), block: None, tier };
        let extents = [
            extent("unwritten", Some(1)),
            extent("unwritten", None),
            extent("tier", Some(2)),
            extent("unwritten", Some(2)),
        ];
        assert_eq!(
            in_places(&extents),
            "1 MiB on PM, not written, 1 MiB on tiers, 2 MiB on tiers, not written"
        );
        assert_eq!(in_places(&[]), "no blocks");
    }
}
