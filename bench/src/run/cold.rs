//! Empty page caches. Those that a preset with a tier has in the process are emptied by its worker.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

use crate::Error;

/// When the kernel drops its caches: pages, names and inodes, of everything on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cold {
    /// Never.
    #[default]
    Never,
    /// When everything is prepared, before the first round.
    Begin,
    /// Before every round.
    Rounds,
}

impl Cold {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Cold::Never => "never",
            Cold::Begin => "begin",
            Cold::Rounds => "rounds",
        }
    }

    /// Whether caches are emptied before this round.
    pub(super) fn before(self, round: u64) -> bool {
        match self {
            Cold::Never => false,
            Cold::Begin => round == 0,
            Cold::Rounds => true,
        }
    }
}

impl FromStr for Cold {
    type Err = String;

    fn from_str(text: &str) -> Result<Cold, String> {
        [Cold::Never, Cold::Begin, Cold::Rounds]
            .into_iter()
            .find(|cold| cold.as_str() == text)
            .ok_or_else(|| "never, begin or rounds".to_owned())
    }
}

/// Empties page caches, once the data of these directories is on their media: dirty pages stay.
pub(super) fn empty<'a>(dirs: impl Iterator<Item = &'a Path>) -> Result<(), Error> {
    for dir in dirs {
        let dir = rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::syncfs(&dir)?;
    }
    const FILE: &str = "/proc/sys/vm/drop_caches";
    fs::write(FILE, "3").map_err(|error| format!("page caches cannot be emptied: {FILE}: {error}").into())
}

#[cfg(test)]
mod tests {
    use super::Cold;

    #[test]
    fn words_are_read_as_they_are_written() {
        for word in ["never", "begin", "rounds"] {
            assert_eq!(word.parse::<Cold>().unwrap().as_str(), word);
        }
        assert!("always".parse::<Cold>().is_err());
        assert!(Cold::Begin.before(0) && !Cold::Begin.before(1) && Cold::Rounds.before(1));
    }
}
