//! The state of a mount at one time, in the shape that is drawn: places, the mover, caches, and hot files.
//!
//! Counters count since the mount; recent activity is the difference of two snapshots.

use nacre_control::{CacheInfo, HotFileInfo, Info, MoverInfo, TemperatureInfo, TierInfo};
use serde::Serialize;

use crate::names::Names;

/// A mount at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) mountpoint: String,
    pub(crate) device: String,
    pub(crate) preset: String,
    /// The process that serves the mount. A new process has counters of its own.
    pub(crate) pid: u32,
    /// Milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// PM, DRAM, and each tier.
    pub(crate) places: Vec<Place>,
    pub(crate) mover: Option<MoverInfo>,
    pub(crate) buffer: Option<CacheInfo>,
    /// `None` while blocks move, and without a mover.
    pub(crate) temperature: Option<TemperatureInfo>,
}

/// A place for data.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Place {
    /// `pm`, `dram`, or `tier 1`.
    pub(crate) name: String,
    /// The device of the place.
    pub(crate) device: String,
    /// The problem of the place, if any, otherwise empty.
    pub(crate) state: String,
    pub(crate) size: u64,
    pub(crate) used: u64,
    /// Bytes that were read there. For PM, known only if there are tiers.
    pub(crate) read: Option<u64>,
    pub(crate) written: Option<u64>,
    /// Accesses; for tiers only.
    pub(crate) reads: Option<u64>,
    pub(crate) writes: Option<u64>,
}

/// A tier as one of the places of data.
fn place_of(tier: TierInfo) -> Place {
    let used = tier.used();
    let state = match (tier.missing, tier.failing, tier.draining) {
        (Some(why), ..) => format!("missing: {why}"),
        (None, Some(why), _) => format!("failing: {why}"),
        (None, None, true) => "draining".to_owned(),
        (None, None, false) => String::new(),
    };
    Place {
        name: format!("tier {}", tier.number),
        device: tier.device.unwrap_or_default(),
        state,
        size: tier.size,
        used,
        read: Some(tier.traffic.read),
        written: Some(tier.traffic.written),
        reads: Some(tier.traffic.reads),
        writes: Some(tier.traffic.writes),
    }
}

impl Snapshot {
    /// The snapshot in a mount's answers about itself and about access statistics.
    pub(crate) fn of(
        mountpoint: &str,
        at_ms: u64,
        info: Info,
        temperature: Option<TemperatureInfo>,
    ) -> Snapshot {
        let below: u64 = info.tiers.iter().map(|tier| tier.size).sum();
        let mut places = vec![memory(&info, below)];
        places.extend(dram(&info));
        places.extend(info.tiers.into_iter().map(place_of));
        Snapshot {
            mountpoint: mountpoint.to_owned(),
            device: info.device.name,
            preset: info.volume.preset,
            pid: info.mount.map_or(0, |mount| mount.pid),
            at_ms,
            places,
            mover: info.mover,
            buffer: info.cache,
            temperature,
        }
    }
}

impl Snapshot {
    /// Adds file names to the inode numbers.
    pub(crate) fn name_files(&mut self, names: &mut Names) {
        let hottest = self.temperature.iter_mut().flat_map(|temperature| &mut temperature.hottest);
        let mut hottest: Vec<&mut HotFileInfo> = hottest.collect();
        let doing = self.mover.as_mut().and_then(|mover| mover.doing.as_mut());
        names.look_for(hottest.iter().map(|file| file.inode).chain(doing.as_ref().map(|doing| doing.inode)));
        for file in &mut hottest {
            file.name = names.get(file.inode);
        }
        if let Some(doing) = doing {
            doing.name = names.get(doing.inode);
        }
        if let Some(failure) = self.mover.as_mut().and_then(|mover| mover.failure.as_mut()) {
            *failure = names.put_into(failure);
        }
    }
}

/// The place PM. The space in the mount's answer includes `below` bytes of tiers.
fn memory(info: &Info, below: u64) -> Place {
    let space = info.space.unwrap_or_default();
    let mover = info.mover.as_ref();
    let size = space.total.saturating_sub(below);
    // As df(1) counts: the reserve is free. A tier that takes no blocks has no free ones in the answer.
    let taken = |tier: &TierInfo| if tier.is_in_use() { tier.used() } else { tier.size };
    let used_below: u64 = info.tiers.iter().map(taken).sum();
    let used = space.total.saturating_sub(space.free).saturating_sub(used_below).min(size);
    // The counter of an emulation is used if there are no tiers.
    let stored = info.device.counters.map(|counters| counters.bytes_stored);
    Place {
        name: "pm".to_owned(),
        device: info.device.name.clone(),
        size,
        used,
        read: mover.map(|mover| mover.read),
        written: mover.map(|mover| mover.written).or(stored),
        ..Place::default()
    }
}

/// The place DRAM: the write buffer, cached blocks of tiers, and transfer buffers; `None` without a mover and a buffer.
fn dram(info: &Info) -> Option<Place> {
    if info.mover.is_none() && info.cache.is_none() {
        return None;
    }
    let (mover, buffer) = (info.mover.clone().unwrap_or_default(), info.cache.unwrap_or_default());
    Some(Place {
        name: "dram".to_owned(),
        size: mover.transfer_buffers + mover.cache_size + buffer.size,
        used: mover.transfer_buffers + mover.cached + buffer.used,
        read: Some(mover.cache_hits + buffer.read_from_dram),
        written: Some(buffer.written_lazily),
        ..Place::default()
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::MetadataExt;

    use nacre_control::CounterInfo;
    use serde_json::{from_value, json};

    use super::{Info, Names, Snapshot, TemperatureInfo};

    /// The answers of a mount with a buffer and two tiers.
    pub(crate) fn answer() -> (Info, TemperatureInfo) {
        let info = json!({
            "device": { "name": "/dev/pmem0", "counters": null },
            "volume": { "preset": "nacre" },
            "mount": { "options": "", "pid": 77 },
            "space": { "total": 400u64 << 20, "free": 95 << 20, "available": 90 << 20 },
            "cache": { "size": 32 << 20, "used": 8 << 20, "written_lazily": 5000, "written_eagerly": 100,
                "written_back": 4000, "write_hits": 30, "write_misses": 10, "read_from_dram": 700, "stalls": 2 },
            "tiers": [{ "number": 1, "size": 100 << 20, "free": 75 << 20, "draining": false, "device": "/dev/sdb",
                    "missing": null, "reads": 4, "read": 16384, "writes": 2, "written": 8192 },
                { "number": 3, "size": 200 << 20, "free": 0, "draining": false, "device": null,
                    "missing": "it was taken offline" }],
            "mover": { "phase": "moving", "doing": { "inode": 17, "way": "space" }, "waiting": 1,
                "usage_percent": 80.0, "threshold_percent": 70.0, "moved": 1 << 20, "lowered": 0, "raised": 4096,
                "rate": null, "read": 1000, "written": 9000, "unheard": 0, "cached": 1 << 20,
                "cache_size": 64 << 20, "transfer_buffers": 32 << 20, "cache_hits": 300, "cache_misses": 100, "failure": null },
        });
        let temperature = json!({ "ages_s": [30, 300, 3600],
            "memory": { "files": [1, 2, 3, 4], "bytes": [4096, 8192, 0, 1 << 20] },
            "below": { "files": [0, 0, 1, 0], "bytes": [0, 0, 4096, 0] },
            "hottest": [{ "inode": 12, "size": 1 << 20, "below": false, "read_ago_ms": 1500, "written_ago_ms": null },
                { "inode": 99, "size": 4096, "below": true, "read_ago_ms": 90_000, "written_ago_ms": 7_300_000 }] });
        (from_value(info).unwrap(), from_value(temperature).unwrap())
    }

    pub(crate) fn snapshot() -> Snapshot {
        let (info, temperature) = answer();
        Snapshot::of("/mnt", 1_000_000, info, Some(temperature))
    }

    #[test]
    fn places_are_what_the_answers_say() {
        let now = snapshot();
        let names: Vec<&str> = now.places.iter().map(|place| place.name.as_str()).collect();
        assert_eq!(names, ["pm", "dram", "tier 1", "tier 3"]);
        let [memory, dram, first, third] = &now.places[..] else { panic!("four") };
        assert_eq!((memory.size, memory.used), (100 << 20, 80 << 20));
        assert_eq!((memory.read, memory.written), (Some(1000), Some(9000)));
        assert_eq!((dram.size, dram.used), (128 << 20, 41 << 20));
        assert_eq!((dram.read, dram.written), (Some(1000), Some(5000)));
        assert_eq!((first.used, first.reads, first.written), (25 << 20, Some(4), Some(8192)));
        assert_eq!(third.state, "missing: it was taken offline");
        assert_eq!((now.pid, now.temperature.as_ref().unwrap().hottest.len()), (77, 2));
    }

    #[test]
    fn a_failure_of_the_mover_names_its_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let inode = std::fs::metadata(dir.path().join("file")).unwrap().ino();
        let mut now = snapshot();
        now.mover.as_mut().unwrap().failure = Some(format!("inode {inode}: tier 1: in use"));
        now.name_files(&mut Names::of(dir.path()));
        assert_eq!(now.mover.unwrap().failure.as_deref(), Some("file: tier 1: in use"));
    }

    #[test]
    fn a_mount_without_tiers_or_buffer_has_memory_alone() {
        let (mut info, _) = answer();
        (info.cache, info.tiers, info.mover) = (None, Vec::new(), None);
        info.device.counters = Some(CounterInfo { bytes_stored: 4096, ..CounterInfo::default() });
        let now = Snapshot::of("/mnt", 0, info, None);
        assert_eq!(now.places.len(), 1);
        let memory = &now.places[0];
        assert_eq!((memory.size, memory.used), (400 << 20, 305 << 20));
        assert_eq!((memory.read, memory.written), (None, Some(4096)));
        assert!(now.mover.is_none() && now.temperature.is_none());
    }
}
