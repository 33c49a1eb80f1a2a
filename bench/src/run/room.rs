//! Whether a machine has room for a run: asked before anything is made, because a machine without free DRAM kills
//! processes.
//!
//! The most that targets take counts ([`Plan::footprint`]), all of a place together, for they are there at the same
//! time. Page caches do not count: the kernel gives them back.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nacre_engine::size;

use super::experiment::{Place, Request};
use super::memory::{self, LEAST};
use crate::target::plan::{Footprint, Load};
use crate::{Error, machine, workload};

/// An error when the targets of a place take more than there is.
pub fn check(requests: &[Request], scale: f64, disk: &Path) -> Result<(), Error> {
    let memory = memory::left();
    for place in requests.iter().flat_map(|request| &request.places) {
        let work = workload::make(&place.workload.parse()?, scale)?;
        let load = Load { bytes: work.bytes(), files: work.files() };
        let taken = taken_at(place, load, disk);
        if let Some(memory) = memory
            && taken.memory > memory
        {
            return Err(too_much(&place.workload, "memory", taken.memory, memory));
        }
        for (dir, bytes) in taken.disks {
            let there = rustix::fs::statvfs(&dir).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
            // A missing directory is reported by its user.
            if let Ok(there) = there
                && bytes > there
            {
                let what = format!("the space in {}", dir.display());
                return Err(too_much(&place.workload, &what, bytes, there));
            }
        }
    }
    Ok(())
}

fn too_much(workload: &str, what: &str, needs: u64, there: u64) -> Error {
    let (needs, there) = (size::print(needs), size::print(there));
    format!(
        "{workload}: its targets take up to {needs} of {what} together, and {there} are free: \
         make it smaller (its sizes, pm=, --scale), or name fewer targets"
    )
    .into()
}

/// The space that all targets of a place take; targets that cannot be had here take none. Files on tmpfs and ramfs
/// count as DRAM.
fn taken_at(place: &Place, load: Load, disk: &Path) -> Footprint {
    let mut all = Footprint::default();
    let mut devices: Vec<u64> = Vec::new();
    for entrant in place.entrants.iter().filter(|entrant| entrant.plan.check().is_ok()) {
        let Footprint { memory, disks } = entrant.plan.footprint(load, disk);
        all.memory = all.memory.saturating_add(memory).saturating_add(LEAST);
        for (dir, bytes) in disks {
            let kind = machine::file_system(&dir).unwrap_or_default();
            if matches!(kind.as_str(), "tmpfs" | "ramfs") {
                all.memory = all.memory.saturating_add(bytes);
            }
            add(&mut all.disks, &mut devices, dir, bytes);
        }
    }
    all
}

/// Directories of one device share its free space.
fn add(disks: &mut Vec<(PathBuf, u64)>, devices: &mut Vec<u64>, dir: PathBuf, bytes: u64) {
    let device = fs::metadata(&dir).map_or(0, |metadata| metadata.dev());
    match devices.iter().position(|other| *other == device) {
        Some(at) => disks[at].1 = disks[at].1.saturating_add(bytes),
        None => {
            devices.push(device);
            disks.push((dir, bytes));
        }
    }
}
