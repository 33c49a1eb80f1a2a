//! `nacre mount` as a command, timed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::pieces::run;
use super::plan::Opening;
use crate::Error;

/// Mounts a closed target with the command, beside its device, and unmounts it; gives the time of the mount, from the
/// start of the command to its end.
pub(crate) fn mount_time(program: &Path, opening: &Opening) -> Result<Duration, Error> {
    let Opening::Library { device, tier: None, .. } = opening else {
        return Err("the command is timed on targets in the process without a tier".into());
    };
    let dir = device.with_file_name("mnt");
    fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let begin = Instant::now();
    run(Command::new(program).arg("mount").arg(device).arg(&dir))?;
    let took = begin.elapsed();
    run(Command::new(program).arg("umount").arg(&dir))?;
    fs::remove_dir(&dir)?;
    Ok(took)
}
