//! Named choices of layout and policies.

use std::fmt;
use std::str::FromStr;

use nacre_engine::{Error, Kind, Result};
use serde::Serialize;

/// A media format with its commit protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LayoutKind {
    /// A log of self-validating entries per inode, copy-on-write data.
    Log,
    /// A tree of blocks per file, data in place, metadata under an undo journal.
    Inplace,
}

impl LayoutKind {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            LayoutKind::Log => "log",
            LayoutKind::Inplace => "inplace",
        }
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
        match text {
            "log" => Ok(LayoutKind::Log),
            "inplace" => Ok(LayoutKind::Inplace),
            "shadow" | "pool" => Err(not_built("layout", text)),
            _ => Err(unknown("layout", text, "the layouts are: log, inplace")),
        }
    }
}

/// A choice of layout and policies that makes nacre behave as one published system, or as nacre itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Preset {
    /// The `log` layout. Its cache and tiers are not built yet, so that it equals `nova` for now.
    #[default]
    Nacre,
    /// As NOVA: the `log` layout without cache and tiers.
    Nova,
    /// As PMFS: the `inplace` layout without a cache, directories searched from their start.
    Pmfs,
}

impl Preset {
    /// All that can be had.
    pub const ALL: [Preset; 3] = [Preset::Nacre, Preset::Nova, Preset::Pmfs];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Nacre => "nacre",
            Preset::Nova => "nova",
            Preset::Pmfs => "pmfs",
        }
    }

    /// The layout that it uses.
    pub fn layout(self) -> LayoutKind {
        match self {
            Preset::Nacre | Preset::Nova => LayoutKind::Log,
            Preset::Pmfs => LayoutKind::Inplace,
        }
    }

    /// Directories are searched without an index in DRAM, where the layout has that choice.
    pub(crate) fn searches_names(self) -> bool {
        self == Preset::Pmfs
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
        match text {
            "nacre" => Ok(Preset::Nacre),
            "nova" => Ok(Preset::Nova),
            "pmfs" => Ok(Preset::Pmfs),
            "hinfs" | "hinfs-wb" | "hinfs-nclfw" | "tpfs" | "bpfs" | "acbpfs" | "spfs" => {
                Err(not_built("preset", text))
            }
            _ => Err(unknown("preset", text, "the presets are: nacre, nova, pmfs")),
        }
    }
}

fn not_built(what: &'static str, name: &str) -> Error {
    Error::new(Kind::Unsupported).object(format!("{what} {name}")).advice(
        "it is planned and not built yet; nacre and nova (layout log) and pmfs (layout inplace) exist",
    )
}

fn unknown(what: &'static str, name: &str, advice: &'static str) -> Error {
    Error::new(Kind::InvalidInput).object(format!("{what} {name:?}")).advice(advice)
}

#[cfg(test)]
mod tests {
    use nacre_engine::Kind;

    use super::{LayoutKind, Preset};

    #[test]
    fn what_exists_parses_and_the_rest_says_why_not() {
        for preset in Preset::ALL {
            assert_eq!(preset.as_str().parse::<Preset>().unwrap(), preset);
        }
        let planned = "hinfs".parse::<Preset>().unwrap_err();
        assert_eq!(planned.kind(), Kind::Unsupported);
        assert!(planned.to_string().contains("not built yet"), "{planned}");
        assert_eq!("nowhere".parse::<Preset>().unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!("pool".parse::<LayoutKind>().unwrap_err().kind(), Kind::Unsupported);
    }
}
