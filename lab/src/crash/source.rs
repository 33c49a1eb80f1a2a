//! Places in a layout's source that store, flush or fence, under names that stay when lines are added elsewhere.

use std::collections::HashMap;
use std::sync::OnceLock;

use nacre_media::sim::Site;

/// What a line must contain to be counted among the sites of its function.
const CALLS: [&str; 9] =
    [".fence(", ".flush(", ".copy(", ".zero(", "publish_", "write(", "write_cached", ".link(", "write_page("];

/// Where a line of a layout's source is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) file: &'static str,
    pub(super) function: &'static str,
    pub(super) text: &'static str,
}

/// The files of a layout that store, flush or fence.
pub(super) struct Sources {
    dir: &'static str,
    files: &'static [(&'static str, &'static str)],
    spots: OnceLock<HashMap<&'static str, Vec<Spot>>>,
}

impl Sources {
    /// The files in a directory, each with its text.
    pub(super) const fn new(dir: &'static str, files: &'static [(&'static str, &'static str)]) -> Sources {
        Sources { dir, files, spots: OnceLock::new() }
    }

    /// The spot of every line of every source, by file and line.
    fn spots(&self) -> &HashMap<&'static str, Vec<Spot>> {
        self.spots.get_or_init(|| {
            let spots_of = |&(file, source): &(&'static str, &'static str)| {
                let mut function = "";
                let spots = source.lines().map(|text| {
                    let text = text.trim();
                    if let Some((before, after)) = text.split_once("fn ")
                        && (before.is_empty() || before.starts_with("pub"))
                    {
                        function = after.split(['(', '<']).next().unwrap_or_default();
                    }
                    Spot { file, function, text }
                });
                (file, spots.collect())
            };
            self.files.iter().map(spots_of).collect()
        })
    }

    /// Where a site is, if it is in this layout.
    pub(super) fn spot(&self, site: Site) -> Option<Spot> {
        let (rest, file) = site.file().rsplit_once('/')?;
        if !rest.ends_with(self.dir) {
            return None;
        }
        self.spots().get(file)?.get(site.line() as usize - 1).copied()
    }

    /// File, function, and which of several there.
    pub(super) fn name(&self, site: Site) -> String {
        let Some(spot) = self.spot(site) else { return site.to_string() };
        // Several in one function are told apart by their order.
        let lines = self.spots().get(spot.file).map_or(&[][..], Vec::as_slice);
        let is_site = |other: &&Spot| {
            other.function == spot.function && CALLS.iter().any(|call| other.text.contains(call))
        };
        let before = lines[..site.line() as usize - 1].iter().filter(is_site).count();
        format!("{} {} {}", spot.file, spot.function, before + 1)
    }
}
