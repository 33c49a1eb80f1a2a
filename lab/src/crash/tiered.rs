//! A layout over PM and one disk or two.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Data, Error, Extents, FallocateMode, FileBlock, FileKind, Kind, LogOffload, Names, NewInode,
    Place, PlacedExtent, Result, Tier, TierTable, Timestamp,
};
use nacre_layout_parts::lifecycle::{Lifecycle, MountOptions, OverTiers};
use nacre_layout_parts::report::Repair;
use nacre_media::SimPm;
use nacre_media::block::SimDisk;
use nacre_media::sim::Site;
use nacre_mover::{Budget, MoverOptions, Rules, Threshold, TieredFs, TrimFrom};
use nacre_tiers::{Label, TierSet};
use uuid::Uuid;

use super::disk::{Disk, DiskMistake, as_promotion};
use super::log::{self, Log};
use super::op::Op;
use super::relocations::{ALL, anticached, between_tiers, tiered};
use super::shadow::{self, Shadow, ShadowInPlace};
use super::subject::{
    Elsewhere, FULL, Harmless, Mistake, Moment, Mounting, Overwrites, Registered, Subject, words_of,
};
use super::tree::Ctime;
use super::workload::Workload;

/// A layout whose files may have blocks on tiers.
pub trait OverDisks: Registered<Fs: OverTiers> {
    /// Its names with one disk, straight to the disk, with anti-caching, and with two disks.
    const NAMES: [&'static str; 4];

    /// Commit points that runs without tiers cover.
    const COVERED_WITHOUT_TIERS: &'static [Elsewhere];

    /// Mistakes that show only with tiers.
    fn mistakes_with_tiers() -> Vec<Mistake> {
        Vec::new()
    }
}

impl OverDisks for Log {
    const NAMES: [&'static str; 4] = ["log-with-disk", "log-on-disk", "log-anticache", "log-with-disks"];
    const COVERED_WITHOUT_TIERS: &'static [Elsewhere] = &log::COVERED_WITHOUT_TIERS;

    fn mistakes_with_tiers() -> Vec<Mistake> {
        let own = nacre_layout_log::Mistake::WITH_TIERS.into_iter();
        own.map(|mistake| Mistake { number: mistake as u32, words: mistake.words() }).collect()
    }
}

impl OverDisks for Shadow {
    const NAMES: [&'static str; 4] =
        ["shadow-with-disk", "shadow-on-disk", "shadow-anticache", "shadow-with-disks"];
    const COVERED_WITHOUT_TIERS: &'static [Elsewhere] = &shadow::COVERED_WITHOUT_TIERS;

    fn mistakes_with_tiers() -> Vec<Mistake> {
        shadow::mistakes_with_tiers()
    }
}

impl OverDisks for ShadowInPlace {
    const NAMES: [&'static str; 4] = [
        "shadow-in-place-with-disk",
        "shadow-in-place-on-disk",
        "shadow-in-place-anticache",
        "shadow-in-place-with-disks",
    ];
    const COVERED_WITHOUT_TIERS: &'static [Elsewhere] = &shadow::COVERED_WITHOUT_TIERS;

    fn mistakes_with_tiers() -> Vec<Mistake> {
        shadow::mistakes_with_tiers()
    }
}

/// The log layout with a tier, or two.
pub type LogWithDisk = WithDisk<Log>;
/// The shadow layout with a tier, or two.
pub type ShadowWithDisk = WithDisk<Shadow>;

/// The same, with written blocks overwritten in place.
pub type ShadowInPlaceWithDisk = WithDisk<ShadowInPlace>;

/// A layout with a tier, or two.
#[derive(Debug, Clone, Copy)]
pub struct WithDisk<R> {
    layout: PhantomData<R>,
    /// The rules by which writes of a write buffer go to PM or to the disk.
    rules: Rules,
    /// Writes come as from a write buffer, and there is no page cache for blocks on the disk.
    is_buffered: bool,
    /// Anti-caching says which blocks are on the disk.
    evicts: bool,
    /// Sizes of the disks.
    disks: &'static [u64],
}

impl<R: OverDisks> Default for WithDisk<R> {
    /// Rules that give short sequences writes for PM and for the disk. The second write in a row to about the same
    /// blocks counts as large and stable. A file that is synchronised before two of its blocks were written does not go
    /// to the disk.
    fn default() -> Self {
        let rules = Rules { sync_blocks: 2, large_writes: 0, ..Rules::default() };
        WithDisk { layout: PhantomData, rules, is_buffered: false, evicts: false, disks: &ONE }
    }
}

type Fs<R> = TieredFs<<R as Registered>::Fs, Disk>;

const ONE: [u64; 1] = [4 << 20];
/// The first is the faster one, and so small that some files are more than a percent of it.
const TWO: [u64; 2] = [1 << 20, 8 << 20];
/// The prefix of all places that are noted for tiers.
const PLACE: &str = "/disks/";
/// The tier of the first disk that becomes one.
const TIER: u8 = 1;
/// Blocks that are taken at once at the most, where all are to be taken.
const LARGEST: u64 = 1024;
/// Behind the times of all operations, and longer than files are warm.
const LATER_MS: u64 = 2_000_000_000;
/// The file system's, as every [`Registered`] layout makes it.
const VOLUME: Uuid = Uuid::from_u128(0x6e61_6372_6500_4000_8000_0000_0000_0001);

impl<R: OverDisks> WithDisk<R> {
    /// Writes of whole blocks go straight to the disk: all that are made without a buffer above, and those of a buffer
    /// from the second one in a row on. No file counts as synchronised often.
    pub const ON_DISK: WithDisk<R> = WithDisk {
        layout: PhantomData,
        rules: Rules { sync_blocks: 1, large_writes: 0, large_blocks: 1, read_factor: 2 },
        is_buffered: true,
        evicts: false,
        disks: &ONE,
    };

    /// With anti-caching.
    pub fn anticached() -> WithDisk<R> {
        WithDisk { evicts: true, ..WithDisk::default() }
    }

    /// Over two disks, between which blocks move.
    pub fn with_two() -> WithDisk<R> {
        WithDisk { disks: &TWO, ..WithDisk::default() }
    }

    fn open(self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<Fs<R>> {
        let Mounting { lanes, background, .. } = mounting;
        let options = MountOptions { lanes: Some(lanes), background, ..MountOptions::default() };
        let layout = <R::Fs as Lifecycle>::mount(Arc::clone(pm), &options)?;
        let fs = TieredFs::new(layout, self.options());
        // A crash may come before there is one.
        for tier in fs.layout().tiers() {
            // The only disk is attached without a check: the attach itself reports best why it cannot be the tier.
            let number = if self.disks.len() == 1 { 0 } else { self.disk_of(pm, &tier)? };
            fs.attach(Disk::of(pm, number), VOLUME, Some(Self::token(&fs)))?;
            Self::note_path(&fs, tier.number)?;
        }
        Ok(fs)
    }

    /// Notes a path for a tier, another one for each mount, so that each mount writes the note.
    fn note_path(fs: &Fs<R>, tier: u8) -> Result<()> {
        let path = format!("{PLACE}{tier}/{}", Self::token(fs));
        fs.layout().note_tier_path(tier, Path::new(&path)).map(drop)
    }

    /// Errors in the noted places of tiers: each tier has a place of its own, as long as it is a tier.
    fn misplaced(pm: &SimPm) -> Result<Vec<String>> {
        let tiers = R::Fs::known_tiers(pm)?;
        let is_right = |(number, path): &(u8, PathBuf)| {
            tiers.iter().any(|tier| tier.number == *number) && path.starts_with(format!("{PLACE}{number}"))
        };
        let wrong = R::Fs::known_tier_paths(pm)?.into_iter().filter(|place| !is_right(place));
        Ok(wrong.map(|(number, path)| format!("tier {number} is said to be at {}", path.display())).collect())
    }

    /// Options with groups of two blocks, so that a file has several. With and without a page cache for blocks on the
    /// disk.
    fn options(self) -> MoverOptions {
        let page_cache = if self.is_buffered { 0 } else { 16 * BLOCK_SIZE };
        // Nothing is evicted until it is said.
        let anticache = self.evicts.then_some(Threshold::Percent(100));
        let rules = self.rules;
        MoverOptions { page_cache, read_ahead: 1, group: 2, rules, anticache, ..MoverOptions::default() }
    }

    /// The disk that is a tier.
    fn disk_of(self, pm: &Arc<SimPm>, tier: &Tier) -> Result<usize> {
        let is_it = |number: &usize| {
            let label = Label::read(&SimDisk::of(pm, *number));
            label.is_ok_and(|label| label.is_some_and(|label| label.uuid().into_bytes() == tier.uuid))
        };
        (0..self.disks.len()).find(is_it).ok_or_else(|| {
            Error::new(Kind::DeviceLost).object(format!("tier {}: no disk is it", tier.number))
        })
    }

    /// The first disk that is no tier.
    fn unused(self, fs: &Fs<R>) -> Result<Option<usize>> {
        let used: Result<Vec<usize>> =
            fs.layout().tiers().iter().map(|tier| self.disk_of(fs.layout().pm(), tier)).collect();
        let used = used?;
        Ok((0..self.disks.len()).find(|number| !used.contains(number)))
    }

    /// Another number for each mount.
    fn token(fs: &Fs<R>) -> u64 {
        Lifecycle::summary(fs.layout()).mount_epoch + 2
    }

    /// Where there is another disk for one.
    fn add_tier(self, fs: &Fs<R>) -> Result<()> {
        let Some(number) = self.unused(fs)? else { return Ok(()) };
        let disk = Disk::of(fs.layout().pm(), number);
        let (token, now) = (Self::token(fs), Timestamp::new(1_000_000, 0));
        // Another one for each tier, and the same whenever the same is done: or a trace of a crash would say nothing.
        let writes = fs.tiers().traffic_of(TIER).writes;
        let of_disk = (number as u128) << 24;
        let uuid =
            Uuid::from_u128(VOLUME.as_u128() + (u128::from(token) << 32) + of_disk + u128::from(writes));
        let tier = fs.add_as(Some(uuid), disk, VOLUME, number as u8 + 1, token, now)?;
        Self::note_path(fs, tier)
    }

    /// The first tier, which demoted blocks go to.
    fn first(fs: &Fs<R>) -> u8 {
        fs.layout().tiers().iter().map(|tier| tier.number).min().unwrap_or(TIER)
    }

    /// The last one.
    fn last(fs: &Fs<R>) -> u8 {
        fs.layout().tiers().iter().map(|tier| tier.number).max().unwrap_or(TIER)
    }

    /// Files share groups if they fit into them; a file that does not exist, or is no file, does not keep the other
    /// from moving.
    fn demote_both(fs: &Fs<R>, one: &str, other: &str) -> Result<()> {
        let nodes = [one, other].map(|path| Self::walk(fs, path));
        let mut there = Vec::new();
        let mut done = Ok(());
        for node in nodes {
            match node {
                Ok(node) => there.push(node),
                Err(error) => done = Err(error),
            }
        }
        fs.demote_files(&there, Self::first(fs), false)
            .into_iter()
            .fold(done, |done, moved| done.and(moved.map(drop)))
    }

    /// Runs the mover with a time long after all operations before, and with a threshold of the first tier that equals
    /// the used share of the last tier, in whole percents.
    fn descend(self, fs: &Fs<R>) -> Result<()> {
        let last = fs.layout().tier_space(Self::last(fs))?;
        let tier_threshold = ((last.blocks - last.free) * 100).div_ceil(last.blocks) as u8;
        fs.change(&MoverOptions { tier_threshold, ..self.options() });
        // Later each time: nothing is on the first one that was not written there.
        let now_ms = LATER_MS * (1 + fs.tiers().traffic_of(Self::first(fs)).writes);
        let done = fs.tick(now_ms, &Budget::default());
        fs.change(&self.options());
        done.map(drop)
    }

    /// One tick of anti-caching, with a threshold of so many blocks.
    fn evict(self, fs: &Fs<R>, blocks: u64) -> Result<()> {
        let anticache = Some(Threshold::Bytes(blocks * BLOCK_SIZE));
        fs.change(&MoverOptions { anticache, ..self.options() });
        let done = fs.tick(LATER_MS, &Budget::default());
        fs.change(&self.options());
        done.map(drop)
    }

    /// Reads a file as a program does, and does what is left to the threads behind that.
    fn bring_up(fs: &Fs<R>, path: &str) -> Result<()> {
        let node = Self::walk(fs, path)?;
        let mut bytes = vec![0; fs.size(&node)? as usize];
        fs.ahead().begin();
        let read = fs.read(&node, 0, &mut bytes, None);
        let extents = fs.layout().resolve(&node, FileBlock(0), ALL)?;
        let is_below = |extent: &PlacedExtent| matches!(extent.place, Place::Tier { .. });
        let fetched = match read {
            Ok(count) if count > 0 && extents.iter().any(is_below) => {
                fs.ahead().take().map_or(Ok(()), |fetch| fs.fetch(&fetch))
            }
            read => read.map(drop),
        };
        fs.ahead().end();
        fetched
    }

    /// All portions of it. Only files have logs that can be compacted.
    fn compact(fs: &Fs<R>, path: &str) -> Result<()> {
        let node = Self::walk(fs, path)?;
        let mut begin = true;
        if !fs.layout().has_logs() {
            return Ok(());
        }
        while !fs.layout().compact_log(&node, std::mem::take(&mut begin))?.is_done {}
        Ok(())
    }

    /// Only files have logs that can move.
    fn move_log(fs: &Fs<R>, path: &str) -> Result<()> {
        let node = Self::walk(fs, path)?;
        if !fs.layout().has_logs() {
            return Ok(());
        }
        fs.move_log(&node).map(drop)
    }

    fn walk(fs: &Fs<R>, path: &str) -> Result<<Fs<R> as Names>::Node> {
        path.split('/').try_fold(fs.root(), |dir, name| fs.lookup(&dir, name.as_bytes()))
    }
}

impl<R: OverDisks> Subject for WithDisk<R> {
    type Fs = Fs<R>;

    fn name(&self) -> &'static str {
        match self.disks.len() {
            _ if self.is_buffered => R::NAMES[1],
            _ if self.evicts => R::NAMES[2],
            1 => R::NAMES[0],
            _ => R::NAMES[3],
        }
    }

    fn ctime(&self) -> Ctime {
        R::default().ctime()
    }

    fn overwrites(&self) -> Overwrites {
        Subject::overwrites(&R::default())
    }

    fn disks(&self) -> &'static [u64] {
        self.disks
    }

    fn writes_back(&self) -> bool {
        self.is_buffered
    }

    fn workloads(&self) -> Vec<Workload> {
        match self.disks.len() {
            _ if self.evicts => anticached(),
            1 => tiered(),
            _ => between_tiers(),
        }
    }

    fn free_blocks(&self, fs: &Fs<R>) -> u64 {
        let used =
            |tier: &Tier| fs.layout().tier_space(tier.number).map_or(0, |space| space.blocks - space.free);
        let used: u64 = fs.layout().tiers().iter().map(used).sum();
        // Two of each are superblocks.
        let blocks: u64 = self.disks.iter().map(|len| len / BLOCK_SIZE - 2).sum();
        fs.layout().stat().free + blocks - used
    }

    fn relocate(&self, fs: &Fs<R>, op: &Op) -> Option<Result<()>> {
        Some(match op {
            Op::Demote(path, start, blocks) => Self::walk(fs, path)
                .and_then(|node| fs.demote(&node, Self::first(fs), FileBlock(*start), *blocks, false))
                .map(drop),
            Op::DemoteLast(path) => Self::walk(fs, path)
                .and_then(|node| fs.demote(&node, Self::last(fs), FileBlock(0), ALL, false))
                .map(drop),
            Op::DemoteBoth(one, other) => Self::demote_both(fs, one, other),
            Op::Trim if fs.layout().tiers().is_empty() => Ok(()),
            Op::Trim => fs.trim(Self::first(fs), TrimFrom::default(), 0, &Budget::default()).map(drop),
            Op::Descend if fs.layout().tiers().is_empty() => Ok(()),
            Op::Descend => self.descend(fs),
            Op::Evict(_) if fs.layout().tiers().is_empty() => Ok(()),
            Op::Evict(blocks) => self.evict(fs, *blocks),
            Op::BringUp(path) => Self::bring_up(fs, path),
            Op::Promote(path, start, blocks) => Self::walk(fs, path)
                .and_then(|node| as_promotion(|| fs.promote(&node, FileBlock(*start), *blocks)))
                .map(drop),
            Op::Compact(path) => Self::compact(fs, path),
            Op::MoveLog(path) => Self::move_log(fs, path),
            Op::AddTier => self.add_tier(fs),
            Op::RemoveTier if fs.layout().tiers().is_empty() => Ok(()),
            Op::RemoveTier => {
                let tier = Self::first(fs);
                match fs.drain(tier, &Budget::default()).and_then(|_| fs.remove(tier)) {
                    // Files that are open and have no name.
                    Err(error) if error.kind() == Kind::Busy => Ok(()),
                    other => other,
                }
            }
            _ => return None,
        })
    }

    fn fill(&self, fs: &Fs<R>, left: u64) -> Result<()> {
        let (layout, now) = (fs.layout(), Timestamp::new(1_000_000, 0));
        let new = NewInode::of_root(FileKind::Regular, 0o600, now);
        let node = layout.create(&layout.root(), FULL.as_bytes(), &new)?;
        let mut end = 0;
        loop {
            let count = layout.stat().available.saturating_sub(left).min(LARGEST);
            if count == 0 {
                return Ok(());
            }
            let (mode, len) = (FallocateMode::AllocateKeepSize, count * BLOCK_SIZE);
            layout.fallocate(&node, mode, end, len, now)?;
            end += len;
        }
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        R::default().mkfs(pm)?;
        let fs = self.open(pm, Mounting::default())?;
        self.add_tier(&fs)?;
        Lifecycle::unmount(fs.into_layout())
    }

    fn is_formatted(&self, pm: &Arc<SimPm>) -> bool {
        R::default().is_formatted(pm)
    }

    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<Fs<R>> {
        self.open(pm, mounting)
    }

    fn use_lane(&self, lane: usize) {
        R::default().use_lane(lane);
    }

    fn unmount(&self, fs: Fs<R>) -> Result<()> {
        Lifecycle::unmount(fs.into_layout())
    }

    fn abandon(&self, fs: Fs<R>) {
        Lifecycle::abandon(fs.into_layout());
    }

    fn repair(&self, pm: &Arc<SimPm>) -> Result<()> {
        R::default().repair(pm)
    }

    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>> {
        let (tiers, mut damage) = (TierSet::new(0), Vec::new());
        for number in 0..self.disks.len() {
            let disk = SimDisk::of(pm, number);
            match Label::read(&disk) {
                Ok(Some(label)) => tiers.attach(label.number(), disk, label),
                Ok(None) => {}
                Err(error) => damage.push(error.to_string()),
            }
        }
        // Blocks that offloaded extent maps on the tiers name are checked against everything else.
        let mut problems = words_of(R::Fs::check(pm, Repair::None, Some(&tiers))?, crashed);
        problems.extend(damage);
        problems.extend(Self::misplaced(pm)?);
        Ok(problems)
    }

    fn commit_points(&self) -> &'static [&'static str] {
        R::default().commit_points()
    }

    fn covered_elsewhere(&self) -> &'static [Elsewhere] {
        R::COVERED_WITHOUT_TIERS
    }

    fn covered_unbuffered(&self) -> &'static [Elsewhere] {
        R::COVERED_UNBUFFERED
    }

    fn commits_at(&self, moment: &Moment<'_>, hit: &mut dyn FnMut(usize)) {
        R::default().commits_at(moment, hit);
    }

    fn site_name(&self, site: Site) -> String {
        R::default().site_name(site)
    }

    fn mistakes(&self) -> Vec<Mistake> {
        R::mistakes().into_iter().chain(R::mistakes_with_tiers()).chain(DiskMistake::listed()).collect()
    }

    fn harmless(&self) -> &'static [Harmless] {
        R::default().harmless()
    }

    fn unpassed(&self, passed: &[Site]) -> Vec<String> {
        R::default().unpassed(passed)
    }

    fn passed_elsewhere(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::{BLOCK_SIZE, Extents, LogOffload, TierTable};
    use nacre_media::SimPm;
    use nacre_media::block::{BlockDevice, SimDisk};

    use super::super::relocations::{ALL, between_tiers, large, rewritten, worn};
    use super::{LogWithDisk, TIER};
    use crate::crash::Log;
    use crate::crash::explore::MEMORY;
    use crate::crash::op::{Op, Runner};
    use crate::crash::sequences::setup;
    use crate::crash::subject::{Mounting, Subject};

    type Fs = super::Fs<Log>;

    /// What there is after these operations.
    fn after(ops: &[Op]) -> (LogWithDisk, Fs) {
        let subject = LogWithDisk::default();
        let memory = Arc::new(SimPm::with_disks(MEMORY, subject.disks()));
        subject.mkfs(&memory).unwrap();
        let mut runner = Runner::new(subject.mount(&memory, Mounting::default()).unwrap());
        ops.iter().enumerate().for_each(|(step, op)| runner.run(step as u64, op).unwrap());
        (subject, runner.into_fs())
    }

    /// Or else no crash comes between the commits of two files that one flush is for.
    #[test]
    fn two_files_share_a_group() {
        let (subject, fs) = after(&setup());
        let before = fs.tiers().traffic_of(TIER);
        subject.relocate(&fs, &Op::DemoteBoth("d/a", "d/b")).unwrap().unwrap();
        let after = fs.tiers().traffic_of(TIER);
        // The first two blocks of the one, and its third one with the other file.
        assert_eq!((after.writes - before.writes, after.written_bytes - before.written_bytes), (2, 4 * 4096));
        subject.unmount(fs).unwrap();
    }

    /// With two disks, what there is before the operations between them.
    fn apart() -> (LogWithDisk, Fs) {
        let subject = LogWithDisk::with_two();
        let memory = Arc::new(SimPm::with_disks(MEMORY, subject.disks()));
        subject.mkfs(&memory).unwrap();
        let mut runner = Runner::new(subject.mount(&memory, Mounting::default()).unwrap());
        for (step, op) in between_tiers()[0].setup.iter().enumerate() {
            let done = subject.relocate(&runner.fs, op);
            done.unwrap_or_else(|| runner.run(step as u64, op)).unwrap();
        }
        (subject, runner.into_fs())
    }

    fn used(fs: &Fs, tier: u8) -> u64 {
        fs.layout().tier_space(tier).map(|space| space.blocks - space.free).unwrap()
    }

    /// Or else no crash comes while blocks go from one disk to another, be it by a drain or by an order.
    #[test]
    fn blocks_go_from_one_disk_to_another() {
        let (subject, fs) = apart();
        let (first, second) = (used(&fs, TIER), used(&fs, TIER + 1));
        assert!(first > 10 && second > 0, "{first} and {second}");
        subject.relocate(&fs, &Op::DemoteLast("d/large")).unwrap().unwrap();
        // Four of its blocks come from the first disk, and two from PM.
        assert_eq!((used(&fs, TIER), used(&fs, TIER + 1)), (first - 4, second + 6));
        subject.relocate(&fs, &Op::RemoveTier).unwrap().unwrap();
        assert_eq!(fs.layout().tiers().len(), 1);
        // The blocks of the first disk are on the second, except an offloaded extent map, which is in PM again.
        assert_eq!(used(&fs, TIER + 1), first - 4 - 1 + second + 6);
        subject.unmount(fs).unwrap();
    }

    /// Or else no crash comes while cold files go from one disk to another by themselves, nor when they do so again.
    #[test]
    fn cold_files_descend_from_one_disk_to_another() {
        let (subject, fs) = apart();
        let (first, second) = (used(&fs, TIER), used(&fs, TIER + 1));
        let worn = LogWithDisk::walk(&fs, "d/worn").unwrap();
        assert!(fs.layout().log_image_at(&worn).is_some());
        subject.relocate(&fs, &Op::Descend).unwrap().unwrap();
        let moved = used(&fs, TIER + 1) - second;
        // All but what is two percent of the disk, and with the log that was there.
        assert!(moved > first - 5 && used(&fs, TIER) < 5, "{moved} moved, {first} and {second} before");
        assert!(fs.layout().log_image_at(&worn).is_none());
        // All of it comes back, and goes again.
        for path in ["d/a", "d/large", "d/worn"] {
            subject.relocate(&fs, &Op::Promote(path, 0, ALL)).unwrap().unwrap();
            subject.relocate(&fs, &Op::Demote(path, 0, ALL)).unwrap().unwrap();
        }
        let second = used(&fs, TIER + 1);
        subject.relocate(&fs, &Op::Descend).unwrap().unwrap();
        assert!(used(&fs, TIER + 1) > second, "another one, later");
        drop(worn);
        subject.unmount(fs).unwrap();
    }

    /// Or else no crash comes after what was free on a disk is gone from it.
    #[test]
    fn what_is_free_is_forgotten() {
        let (subject, fs) = apart();
        let disk = SimDisk::of(fs.layout().pm(), 0);
        let written = || {
            let mut bytes = vec![0; disk.len() as usize];
            disk.read(0, &mut bytes).unwrap();
            bytes.chunks(BLOCK_SIZE as usize).filter(|block| block.iter().all(|byte| *byte == 0xDC)).count()
        };
        assert_eq!(written(), 0);
        subject.relocate(&fs, &Op::DemoteLast("d/large")).unwrap().unwrap();
        subject.relocate(&fs, &Op::Trim).unwrap().unwrap();
        // Its four blocks that were there.
        assert_eq!(written(), 4);
        subject.unmount(fs).unwrap();
    }

    /// Or else no crash comes between the stores that put images in the place of logs, in pages and in the inode, or that bring
    /// a log back from the inode's lines.
    #[test]
    fn logs_move_to_the_disk() {
        let (subject, fs) = after(&[setup(), large(), worn(), rewritten()].concat());
        for (path, pages) in [("d/a", 0), ("d/large", 0), ("d/worn", 1)] {
            subject.relocate(&fs, &Op::Demote(path, 0, ALL)).unwrap().unwrap();
            subject.relocate(&fs, &Op::MoveLog(path)).unwrap().unwrap();
            let node = LogWithDisk::walk(&fs, path).unwrap();
            assert!(fs.layout().log_image_at(&node).is_some(), "{path}");
            let before = fs.layout().stat().free;
            assert!(fs.layout().take_log_back(&node).unwrap(), "{path}");
            assert!(before - fs.layout().stat().free <= pages + 1, "{path}");
        }
        subject.unmount(fs).unwrap();
    }

    /// Or else no crash comes between the stores of a compaction: one that leaves pages, one of a log that goes back into its
    /// inode, and one that has nothing to do.
    #[test]
    fn logs_are_compacted() {
        let (subject, fs) = after(&[setup(), worn()].concat());
        subject.relocate(&fs, &Op::Demote("d/b", 0, 1)).unwrap().unwrap();
        for (path, freed) in [("d/worn", 1), ("d/b", 0), ("d/worn", 0)] {
            let before = subject.free_blocks(&fs);
            subject.relocate(&fs, &Op::Compact(path)).unwrap().unwrap();
            assert_eq!(subject.free_blocks(&fs) - before, freed, "{path}");
        }
        subject.unmount(fs).unwrap();
    }
}
