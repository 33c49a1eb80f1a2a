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
}

impl LayoutKind {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            LayoutKind::Log => "log",
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
            "inplace" | "shadow" | "pool" => Err(not_built("layout", text)),
            _ => Err(unknown("layout", text, "the layouts are: log")),
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
}

impl Preset {
    /// All that can be had.
    pub const ALL: [Preset; 2] = [Preset::Nacre, Preset::Nova];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Nacre => "nacre",
            Preset::Nova => "nova",
        }
    }

    /// The layout that it uses.
    pub fn layout(self) -> LayoutKind {
        match self {
            Preset::Nacre | Preset::Nova => LayoutKind::Log,
        }
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
            "pmfs" | "hinfs" | "hinfs-wb" | "hinfs-nclfw" | "tpfs" | "bpfs" | "acbpfs" | "spfs" => {
                Err(not_built("preset", text))
            }
            _ => Err(unknown("preset", text, "the presets are: nacre, nova")),
        }
    }
}

fn not_built(what: &'static str, name: &str) -> Error {
    Error::new(Kind::Unsupported)
        .object(format!("{what} {name}"))
        .advice("it is planned and not built yet; nacre and nova (layout log) exist")
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
