//! Damage that a mount meets, put into its log.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre::Findings;

use crate::daemon::Log;

/// Tells each finding of a mount once. It does not keep the file system open.
#[derive(Clone)]
pub(crate) struct Telling {
    device: PathBuf,
    findings: Arc<Findings>,
    log: Log,
}

impl Telling {
    /// For the mount of a device.
    pub(crate) fn new(device: &Path, findings: Arc<Findings>, log: &Log) -> Telling {
        Telling { device: device.to_owned(), findings, log: log.clone() }
    }

    /// The device of the mount.
    pub(crate) fn device(&self) -> &Path {
        &self.device
    }

    /// The log.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Tells what was found since the last call. To be called every few seconds.
    pub(crate) fn tell(&self) {
        for words in self.findings.take() {
            self.log.say(&format!("{}: damage was found: {words}", self.device.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use nacre::Findings;

    use super::Telling;
    use crate::daemon::Log;

    /// A read that took the second copy of something, and mended the first, was told nowhere.
    #[test]
    fn a_finding_is_a_line_of_the_log_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Log::new(Some(&path), true).unwrap();
        let findings = Arc::new(Findings::default());
        let telling = Telling::new(Path::new("/dev/pmem0"), Arc::clone(&findings), &log);
        telling.tell();
        findings.note("one copy of inode 7 is damaged".to_owned());
        telling.tell();
        telling.tell();
        let said = fs::read_to_string(&path).unwrap();
        let lines =
            said.lines().filter(|line| line.contains("damage was found: one copy of inode 7")).count();
        assert!(lines == 1 && said.contains("/dev/pmem0"), "{said}");
    }
}
