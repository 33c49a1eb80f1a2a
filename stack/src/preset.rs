//! Named choices of layout and policies.

use std::fmt;
use std::str::FromStr;

use nacre_cache::{CacheOptions, Checker, Granularity, Settings};
use nacre_engine::{Capabilities, Error, Kind, Result};
use nacre_layout_parts::lifecycle::Lifecycle;
use serde::Serialize;

use crate::layout::of_kind;

/// Bytes of a write buffer of the default size: at least and at most.
const MIN_CACHE: u64 = 1 << 20;
const MAX_CACHE: u64 = 1 << 30;

/// A media format with its commit protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LayoutKind {
    /// A log of self-validating entries per inode, copy-on-write data.
    Log,
    /// A tree of blocks per file, data in place, metadata under an undo journal.
    Inplace,
    /// All metadata on PM and twice, in pools of entries; copy-on-write data.
    Pool,
    /// A tree of blocks, of which the lowest part is copied that covers a change.
    Shadow,
}

impl LayoutKind {
    /// All of them.
    pub const ALL: [LayoutKind; 4] =
        [LayoutKind::Log, LayoutKind::Inplace, LayoutKind::Pool, LayoutKind::Shadow];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        of_kind!(self, Layout => Layout::NAME)
    }

    /// The capabilities of every file system with this layout.
    pub fn capabilities(self) -> Capabilities {
        of_kind!(self, Layout => Layout::CAPABILITIES)
    }
}

impl fmt::Display for LayoutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LayoutKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<LayoutKind> {
        let known = LayoutKind::ALL.into_iter().find(|layout| layout.as_str() == text);
        known.ok_or_else(|| unknown("layout", text, "the layouts are: log, inplace, pool, shadow"))
    }
}

/// A choice of layout and policies that makes nacre behave as one published system, or as nacre itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Preset {
    /// The `log` layout under a write buffer in DRAM with the benefit model, over tiers.
    #[default]
    Nacre,
    /// As NOVA: the `log` layout without cache and tiers.
    Nova,
    /// As TPFS: NOVA over tiers, large asynchronous writes through a buffer in DRAM to disk.
    Tpfs,
    /// As PMFS: the `inplace` layout without a cache, directories searched from their start.
    Pmfs,
    /// As HiNFS: PMFS under a write buffer in DRAM with the benefit model.
    Hinfs,
    /// As HiNFS-WB: only synchronous writes bypass the buffer.
    #[serde(rename = "hinfs-wb")]
    HinfsWb,
    /// As HiNFS-NCLFW: whole blocks are fetched and written back.
    #[serde(rename = "hinfs-nclfw")]
    HinfsNclfw,
    /// As SPFS: the `pool` layout without a cache, no metadata in DRAM.
    Spfs,
    /// As BPFS: the `shadow` layout without a cache, copy on write.
    Bpfs,
    /// As AC-BPFS: BPFS over a disk, with anti-caching; written blocks on PM are overwritten where they are.
    Acbpfs,
}

impl Preset {
    /// All that can be had.
    pub const ALL: [Preset; 10] = [
        Preset::Nacre,
        Preset::Nova,
        Preset::Tpfs,
        Preset::Pmfs,
        Preset::Hinfs,
        Preset::HinfsWb,
        Preset::HinfsNclfw,
        Preset::Spfs,
        Preset::Bpfs,
        Preset::Acbpfs,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Nacre => "nacre",
            Preset::Nova => "nova",
            Preset::Tpfs => "tpfs",
            Preset::Pmfs => "pmfs",
            Preset::Hinfs => "hinfs",
            Preset::HinfsWb => "hinfs-wb",
            Preset::HinfsNclfw => "hinfs-nclfw",
            Preset::Spfs => "spfs",
            Preset::Bpfs => "bpfs",
            Preset::Acbpfs => "acbpfs",
        }
    }

    /// The layout that it uses.
    pub fn layout(self) -> LayoutKind {
        match self {
            Preset::Nacre | Preset::Nova | Preset::Tpfs => LayoutKind::Log,
            Preset::Pmfs | Preset::Hinfs | Preset::HinfsWb | Preset::HinfsNclfw => LayoutKind::Inplace,
            Preset::Spfs => LayoutKind::Pool,
            Preset::Bpfs | Preset::Acbpfs => LayoutKind::Shadow,
        }
    }

    /// It has a write buffer in DRAM when a program opens the device itself: data that was not synchronised may be lost
    /// in a crash. A mount buffers only on request, because sync(2) does not reach it.
    pub fn buffers_writes(self) -> bool {
        !matches!(self, Preset::Nova | Preset::Pmfs | Preset::Spfs | Preset::Bpfs | Preset::Acbpfs)
    }

    /// A write buffer of the default size on a device of `device` bytes, if the preset has one: an eighth of that, at
    /// most 1 GiB.
    pub(crate) fn cache(self, device: u64) -> Option<CacheOptions> {
        self.buffers_writes().then(|| CacheOptions::new((device / 8).clamp(MIN_CACHE, MAX_CACHE)))
    }

    /// Applies the buffer settings of the preset to those that are left open.
    pub(crate) fn adjust(self, settings: &mut Settings) {
        match self {
            Preset::Nacre => settings.inherits = true,
            Preset::HinfsWb => settings.checker = Checker::Off,
            Preset::Tpfs => settings.checker = Checker::Disk,
            Preset::HinfsNclfw => settings.granularity = Granularity::Blocks,
            _ => {}
        }
    }

    /// Written blocks are overwritten where they are.
    pub(crate) fn overwrites_in_place(self) -> bool {
        self == Preset::Acbpfs
    }

    /// Directories are searched without an index in DRAM.
    pub(crate) fn searches_names(self) -> bool {
        !self.layout().capabilities().always_indexes_names
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Preset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Preset> {
        if let Some(preset) = Preset::ALL.into_iter().find(|preset| preset.as_str() == text) {
            return Ok(preset);
        }
        let advice =
            "the presets are: nacre, nova, tpfs, pmfs, hinfs, hinfs-wb, hinfs-nclfw, spfs, bpfs, acbpfs";
        Err(unknown("preset", text, advice))
    }
}

fn unknown(what: &'static str, name: &str, advice: &'static str) -> Error {
    Error::new(Kind::InvalidInput).object(format!("{what} {name:?}")).advice(advice)
}

#[cfg(test)]
mod tests {
    use nacre_engine::Kind;

    use super::{LayoutKind, Preset};

    #[test]
    fn what_exists_parses_and_the_rest_is_named() {
        for preset in Preset::ALL {
            assert_eq!(preset.as_str().parse::<Preset>().unwrap(), preset);
        }
        assert_eq!("nowhere".parse::<Preset>().unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!("paper".parse::<LayoutKind>().unwrap_err().kind(), Kind::InvalidInput);
    }
}
