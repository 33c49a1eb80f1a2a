//! Places in a layout's source that store, flush or fence, under names that stay when lines are added elsewhere.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use nacre_media::sim::Site;

/// Calls that make a line count among the sites of its function.
const CALLS: [&str; 9] =
    [".fence(", ".flush(", ".copy(", ".zero(", "publish_", "write(", "write_cached", ".link(", "write_page("];

/// Calls that start lines on their way to media, and calls that wait for them.
const TO_MEDIA: [&str; 5] = ["pm.fence(", "pm.flush(", "pm.flush_all(", "pm.copy(", "pm.zero("];

/// Where a line of a layout's source is.
#[derive(Debug, Clone, Copy)]
pub struct Spot {
    /// The file, below the directory of the sources.
    pub file: &'static str,
    /// The function.
    pub function: &'static str,
    /// The line.
    pub text: &'static str,
    /// Stores here count as stores of the caller of the function, or this is a test.
    elsewhere: bool,
}

/// The files of a layout that store, flush or fence.
pub struct Sources {
    dir: &'static str,
    files: &'static [(&'static str, &'static str)],
    spots: OnceLock<HashMap<&'static str, Vec<Spot>>>,
}

impl Sources {
    /// The files below a directory, each with its text.
    pub const fn new(dir: &'static str, files: &'static [(&'static str, &'static str)]) -> Sources {
        Sources { dir, files, spots: OnceLock::new() }
    }

    /// The spot of every line of every source, by file and line.
    fn spots(&self) -> &HashMap<&'static str, Vec<Spot>> {
        self.spots.get_or_init(|| {
            let spots_of = |&(file, source): &(&'static str, &'static str)| {
                let mut function = "";
                let (mut is_test, mut is_tracked, mut next_is_tracked) = (false, false, false);
                let spots = source.lines().map(|text| {
                    let text = text.trim();
                    is_test |= text == "#[cfg(test)]";
                    next_is_tracked |= text == "#[track_caller]";
                    if let Some((before, after)) = text.split_once("fn ")
                        && (before.is_empty() || before.starts_with("pub"))
                    {
                        function = after.split(['(', '<']).next().unwrap_or_default();
                        is_tracked = std::mem::take(&mut next_is_tracked);
                    }
                    Spot { file, function, text, elsewhere: is_test || is_tracked }
                });
                (file, spots.collect())
            };
            self.files.iter().map(spots_of).collect()
        })
    }

    /// All lines that store, flush or fence.
    #[cfg(test)]
    pub(super) fn stores(&self) -> Vec<Spot> {
        let is_meant = |spot: &&Spot| CALLS.iter().chain(&[".store("]).any(|call| spot.text.contains(call));
        self.spots().values().flatten().filter(is_meant).copied().collect()
    }

    /// The names of all lines that may be sites.
    #[cfg(test)]
    fn names(&self) -> HashSet<String> {
        let of_file = |spots: &Vec<Spot>| {
            let lines = spots.iter().enumerate();
            let is_site = |(_, spot): &(usize, &Spot)| CALLS.iter().any(|call| spot.text.contains(call));
            lines.filter(is_site).map(|(line, spot)| self.name_of(*spot, line)).collect::<Vec<_>>()
        };
        self.spots().values().flat_map(of_file).collect()
    }

    /// Where a site is, if it is in this layout.
    pub(super) fn spot(&self, site: Site) -> Option<Spot> {
        let (_, below) = site.file().rsplit_once(self.dir)?;
        let file = below.strip_prefix('/')?;
        self.spots().get(file)?.get(site.line() as usize - 1).copied()
    }

    /// File, function, and which of several there.
    pub(super) fn name(&self, site: Site) -> String {
        self.spot(site).map_or_else(|| site.to_string(), |spot| self.name_of(spot, site.line() as usize - 1))
    }

    fn name_of(&self, spot: Spot, line: usize) -> String {
        // Several in one function are told apart by their order.
        let lines = self.spots().get(spot.file).map_or(&[][..], Vec::as_slice);
        let is_site = |other: &&Spot| {
            other.function == spot.function && CALLS.iter().any(|call| other.text.contains(call))
        };
        let before = lines[..line].iter().filter(is_site).count();
        format!("{} {} {}", spot.file, spot.function, before + 1)
    }

    /// The names of the lines that flush or fence and are none of these sites.
    pub(super) fn all_but(&self, passed: &[Site]) -> Vec<String> {
        let passed: HashSet<(&str, usize)> = passed
            .iter()
            .filter_map(|site| Some((self.spot(site)?.file, site.line() as usize - 1)))
            .collect();
        let mut names = Vec::new();
        for (file, spots) in self.spots() {
            for (line, spot) in spots.iter().enumerate() {
                let writes = TO_MEDIA.iter().any(|call| spot.text.contains(call));
                // Zeros of no length are where a sum begins.
                let is_code =
                    !spot.elsewhere && !spot.text.starts_with("//") && !spot.text.contains("zero(0, 0)");
                if writes && is_code && !passed.contains(&(*file, line)) {
                    names.push(self.name_of(*spot, line));
                }
            }
        }
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::{Sources, TO_MEDIA};
    use crate::crash::subject::Registered;
    use crate::crash::{
        Inplace, InplaceLinear, Log, Pool, PoolVolumes, Shadow, ShadowInPlace, inplace, log, pool, shadow,
    };

    /// What flushes or fences and is no source of mutants, and why.
    const LEFT_OUT: [(&str, &str); 4] = [
        ("anatomy.rs", "damages images on purpose, for tests of fsck"),
        (
            "mend.rs",
            "of inplace: only where an inode table has media errors, which lab/tests/behaviour/media_errors crashes",
        ),
        ("state.rs", "only in its tests"),
        ("mend/write.rs", "only where damage is mended: lab/tests/behaviour/repair has mutants of its own"),
    ];

    /// The files below a directory, as they are called from `root`, that send lines to media.
    fn that_write(root: &Path, dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).expect("the source of the layout is there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                that_write(root, &path, found);
            } else if let Ok(text) = std::fs::read_to_string(&path)
                && TO_MEDIA.iter().any(|call| text.contains(call))
            {
                found.insert(path.strip_prefix(root).expect("below it").to_string_lossy().into_owned());
            }
        }
    }

    /// write_back.rs was not listed, and so a fence of it was in no mutant.
    #[test]
    fn every_file_that_flushes_or_fences_is_listed() {
        for sources in [&log::SOURCES, &inplace::SOURCES, &pool::SOURCES, &shadow::SOURCES] {
            let sources: &Sources = sources;
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(sources.dir);
            let mut found = BTreeSet::new();
            that_write(&dir, &dir, &mut found);
            found.retain(|file| !LEFT_OUT.iter().any(|(known, _)| known == file));
            let listed: BTreeSet<String> = sources.files.iter().map(|(file, _)| (*file).to_owned()).collect();
            let missing: Vec<_> = found.difference(&listed).collect();
            assert!(missing.is_empty(), "{}: {missing:?}", sources.dir);
        }
    }

    /// A function had another name, and its line no argument any more.
    #[test]
    fn arguments_are_of_lines_that_are_there() {
        fn missing<R: Registered>() -> Vec<&'static str> {
            let names = R::sources().names();
            let harmless = R::HARMLESS.iter().map(|harmless| harmless.site);
            let sites = harmless.chain(R::PASSED_ELSEWHERE.iter().map(|(site, _)| *site));
            // Those without a file are words of mistakes.
            let mut missing: Vec<_> =
                sites.filter(|site| site.contains(".rs ") && !names.contains(*site)).collect();
            let elsewhere = R::COVERED_ELSEWHERE.iter().chain(R::COVERED_UNBUFFERED);
            let points = elsewhere.flat_map(|other| other.points);
            missing.extend(points.filter(|point| !R::COMMIT_POINTS.contains(point)));
            missing
        }
        let missing = [
            missing::<Log>(),
            missing::<Inplace>(),
            missing::<InplaceLinear>(),
            missing::<Pool>(),
            missing::<PoolVolumes>(),
            missing::<Shadow>(),
            missing::<ShadowInPlace>(),
        ];
        assert_eq!(missing.concat(), Vec::<&str>::new());
    }
}
