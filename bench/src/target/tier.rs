//! A disk below nacre's PM, for targets `preset:` and `mount:`: the same device that a peer on a disk gets
//! ([`Medium`]), so that both pay alike. nacre itself emulates no disk here.

use nacre::{AntiCache, Preset, TierSettings};
use nacre_engine::size;

use super::medium::{Device, Medium};
use super::pieces::{Pieces, check_program};
use super::plan::{Ground, LARGEST, Load, given};
use crate::Error;
use crate::spec::Spec;

/// The parameters of a target that are about it.
const PARAMETERS: [&str; 6] = ["tier", "tier_size", "cache", "group", "sync_threshold", "anticache"];
/// As nacre has it by itself; said aloud, so that a report names it.
const USUAL_CACHE: &str = "64M";

/// A tier, as asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tier {
    medium: Medium,
    /// Bytes, where that is said.
    size: Option<u64>,
    /// How data comes to it and from there.
    pub(super) settings: TierSettings,
}

impl Tier {
    /// From the parameters of a target of this preset, with so many bytes of PM where that is given. None when there
    /// is to be no tier.
    pub(super) fn parse(spec: &Spec, preset: Preset, pm: Option<u64>) -> Result<Option<Tier>, String> {
        let name = spec.name();
        let asked = PARAMETERS.iter().find(|key| spec.has(key));
        if preset.layout().capabilities().max_tiers == 0 {
            return asked.map_or(Ok(None), |key| {
                let layout = preset.layout();
                Err(format!("{name}: {key}=: the layout {layout} has no tiers; presets of the layouts log and shadow do"))
            });
        }
        let text = spec.text("tier", "")?;
        let (size, cache) = (given(spec, "tier_size")?, spec.size("cache", USUAL_CACHE)?);
        match asked {
            None => return Ok(None),
            Some(key) if text.is_empty() => {
                return Err(format!("{name}: {key}= is about a tier: give tier=, too"));
            }
            Some(_) => {}
        }
        if pm.is_none() {
            return Err(format!(
                "{name}: with tier= give pm=, too, less than the data: memory of the usual size has room for twice the \
                 data, and nothing would ever move down"
            ));
        }
        let settings = TierSettings {
            cache: Some(cache),
            group: given(spec, "group")?,
            sync_threshold: given(spec, "sync_threshold")?,
            anticache: match spec.text("anticache", "")?.as_str() {
                "" => None,
                text => Some(text.parse().map_err(|why| format!("{name}: {why}"))?),
            },
            ..TierSettings::default()
        };
        settings.check().map_err(|error| format!("{name}: {error}"))?;
        let medium = Medium::parse(&text).map_err(|why| format!("{name}: tier={text}: {why}"))?;
        Ok(Some(Tier { medium, size, settings }))
    }

    /// An error names the part that this machine lacks for it.
    pub(super) fn check() -> Result<(), Error> {
        check_program("losetup")
    }

    /// Its settings as options of a mount.
    pub(super) fn options(&self) -> Vec<String> {
        let TierSettings { cache, group, sync_threshold, anticache, .. } = self.settings;
        let all =
            [("tier_cache=", cache), ("tune=tier_group:", group), ("tune=sync_threshold:", sync_threshold)];
        let anticache = anticache.map(|anticache| match anticache {
            AntiCache::Off => "anticache=off".to_owned(),
            AntiCache::Size(bytes) => format!("anticache={bytes}"),
            AntiCache::Percent(percent) => format!("anticache={percent}%"),
        });
        let sizes = all.into_iter().filter_map(|(name, value)| Some(format!("{name}{}", value?)));
        sizes.chain(anticache).collect()
    }

    /// Bytes of DRAM that it takes at most.
    pub(super) fn memory(&self, load: Load) -> u64 {
        self.medium.memory(self.size(load)) + self.cache()
    }

    /// Bytes that it takes where files stand for disks.
    pub(super) fn on_disk(&self, load: Load) -> u64 {
        self.medium.on_disk(self.size(load))
    }

    /// Bytes of DRAM with data that was read from it.
    fn cache(&self) -> u64 {
        self.settings.cache.unwrap_or_default()
    }

    fn size(&self, load: Load) -> u64 {
        self.size.unwrap_or_else(|| tier_size(load))
    }

    /// Makes the device, and describes in words what nacre has then.
    pub(super) fn set_up(
        &self,
        name: &str,
        ground: &Ground<'_>,
        pieces: &mut Pieces,
    ) -> Result<Device, Error> {
        let size = self.size(ground.load);
        let device = self.medium.set_up(&format!("{name}-tier"), size, ground, pieces)?;
        let (cache, size) = (size::print(self.cache()), size::print(size));
        let about = format!(", with a tier of {size} and {cache} of DRAM for it, on {}", device.about);
        Ok(Device { about, ..device })
    }
}

/// The data of a workload, with an eighth to spare and its last blocks whole: PM above it gives room to move, and
/// takes the metadata. A figure of paper 002 has eight targets with a tier each, and all of them are there at once.
fn tier_size(load: Load) -> u64 {
    let size = load.bytes.saturating_add(load.bytes / 8).saturating_add(load.files.saturating_mul(4096));
    size.saturating_add(64 << 20).min(LARGEST).next_multiple_of(2 << 20)
}

#[cfg(test)]
mod tests {
    use nacre::Preset;

    use super::Tier;
    use crate::spec::Spec;
    use crate::target::plan::Load;

    fn parse(text: &str, preset: Preset, pm: Option<u64>) -> Result<Option<Tier>, String> {
        let spec: Spec = text.parse()?;
        Tier::parse(&spec, preset, pm).and_then(|tier| spec.finish().map(|()| tier))
    }

    #[test]
    fn a_tier_is_what_peers_call_a_disk() {
        let pm = Some(64 << 20);
        let tier = |text: &str| parse(text, Preset::Nova, pm).unwrap().unwrap();
        let load = Load { bytes: 1 << 30, files: 1 };
        let usual = tier("preset:nova,tier=nvme+flush=0");
        assert_eq!(usual.cache(), 64 << 20);
        let room = (load.bytes + (64 << 20)..2 * load.bytes).contains(&usual.memory(load));
        assert!(room, "the data with its cache, and not twice: {}", usual.memory(load));
        assert_eq!(tier("preset:nova,tier=hdd,tier_size=1g,cache=8m").memory(load), (1 << 30) + (8 << 20));
        assert_eq!(tier("preset:nova,tier=file,tier_size=1g,cache=8m").memory(load), 8 << 20);
        assert_eq!(usual.options(), ["tier_cache=67108864"]);
        let set = tier("preset:nova,tier=nvme,cache=8m,group=1m,sync_threshold=64k");
        let options = ["tier_cache=8388608", "tune=tier_group:1048576", "tune=sync_threshold:65536"];
        assert_eq!(set.options(), options);
        assert_eq!(parse("preset:nova", Preset::Nova, pm), Ok(None));
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let pm = Some(64 << 20);
        for (text, preset, pm, why) in [
            ("preset:nova,tier=tape", Preset::Nova, pm, "optane-ssd"),
            ("preset:nova,tier=nvme", Preset::Nova, None, "give pm="),
            ("preset:nova,cache=8m", Preset::Nova, pm, "cache= is about a tier"),
            ("preset:nova,tier_size=1g", Preset::Nova, pm, "tier_size= is about a tier"),
            ("preset:nova,group=1m", Preset::Nova, pm, "group= is about a tier"),
            ("preset:nova,tier=nvme,group=2g", Preset::Nova, pm, "4 KiB to 1 GiB"),
            ("preset:nova,tier=nvme,sync_threshold=1k", Preset::Nova, pm, "4 KiB to 1 TiB"),
            ("preset:nova,tier=nvme,cache=64k", Preset::Nova, pm, "1 MiB to 1 TiB"),
            ("preset:pmfs,tier=nvme", Preset::Pmfs, pm, "tier=: the layout inplace has no tiers"),
            ("preset:pmfs,cache=8m", Preset::Pmfs, pm, "cache=: the layout inplace has no tiers"),
        ] {
            let refused = parse(text, preset, pm).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
