//! The subject of an exploration: a layout on simulated PM.

use std::sync::Arc;

use nacre_engine::{BelowBuffer, Error, Extents, Kind, Result, Timestamp};
use nacre_layout_parts::alloc::use_lane;
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::{CheckReport, Repair};
use nacre_media::SimPm;
use nacre_media::sim::Site;
use uuid::Uuid;

use super::op::{Op, Twin};
use super::source::{Sources, Spot};
use super::tree::Ctime;
use super::workload::Workload;

/// The file in which [`Subject::fill`] takes space.
pub(super) const FULL: &str = "full";

/// How the file system of a workload is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mounting {
    /// Parts that its allocators have; the steps of a workload, or its threads, use them in turn.
    pub lanes: usize,
    /// A background thread frees large inodes and truncated ranges, while operations go on.
    pub background: bool,
    /// The volume, where there may be several. When not given, the one that mkfs makes.
    pub volume: Option<&'static str>,
}

impl Default for Mounting {
    fn default() -> Mounting {
        Mounting { lanes: 1, background: false, volume: None }
    }
}

/// The stores and the fence between two crash points.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'m> {
    /// The stores: site and offset.
    pub stores: &'m [(Site, u64)],
    /// The fence that comes next.
    pub fence: Option<Site>,
    /// The fence before.
    pub last_fence: Option<Site>,
}

/// The part of an overwrite that a crash may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrites {
    /// All of it or nothing.
    Whole,
    /// Any words of the data. The times change only with all of it.
    InParts,
    /// Any words of the data, and the times with any of them.
    InPartsWithTimes,
}

/// A mistake that a layout can make on purpose.
#[derive(Debug, Clone, Copy)]
pub struct Mistake {
    /// Its number for [`SimPm::seed_mistake`].
    pub number: u32,
    /// The description of it.
    pub words: &'static str,
}

/// A flush or fence whose absence no crash shows, or a mistake that none shows, with the reason.
#[derive(Debug, Clone, Copy)]
pub struct Harmless {
    /// The site's name, as [`Subject::site_name`] gives it, or the words of the mistake.
    pub site: &'static str,
    /// It is a fence.
    pub is_fence: bool,
    /// Why nothing is lost without it.
    pub argument: &'static str,
    /// Something may be, in an interleaving of threads that few runs meet.
    pub by_chance: bool,
}

/// Commit points that other runs cover.
#[derive(Debug, Clone, Copy)]
pub struct Elsewhere {
    /// Their names.
    pub points: &'static [&'static str],
    /// Which runs cover them, and why this one need not.
    pub reason: &'static str,
}

/// The volume that mkfs makes. It is always there.
pub(super) const MAIN: &str = "main";

/// A volume, as a device lists it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeState {
    /// Its name.
    pub name: String,
    /// The most blocks that it may take; 0 for no limit.
    pub quota: u64,
    /// Its making or its removal is not over.
    pub is_going: bool,
}

/// The volumes of a device, none of which is mounted.
pub trait Volumes: Sync {
    /// All of them.
    fn list(&self, pm: &SimPm) -> Result<Vec<VolumeState>>;

    /// Makes one with this name, at most so many blocks, and this time of its root.
    fn make(&self, pm: &Arc<SimPm>, name: &str, quota: u64, now: Timestamp) -> Result<()>;

    /// Removes one with everything that it has.
    fn remove(&self, pm: &Arc<SimPm>, name: &str) -> Result<()>;
}

/// Why the fence of an inode without a name does no harm here.
pub(super) const LINKED_BY_ITS_MAKER: &str = "the thread that links the file fences for it; this one is for a link by another thread, to which operations on \
     paths cannot hand an unnamed file";

/// A layout, as far as the explorer has to know it.
pub trait Subject: Sync {
    /// The mounted file system.
    type Fs: BelowBuffer + Extents;

    /// Its name.
    fn name(&self) -> &'static str;

    /// The state of ctime after a crash.
    fn ctime(&self) -> Ctime;

    /// The part of an overwrite that a crash may leave.
    fn overwrites(&self) -> Overwrites;

    /// Blocks that are free, or would be on a disk that is no tier.
    fn free_blocks(&self, fs: &Self::Fs) -> u64 {
        fs.stat().free
    }

    /// Sizes in bytes of the disks beside PM.
    fn disks(&self) -> &'static [u64] {
        &[]
    }

    /// Whether whole blocks are written as a write buffer above writes them back, later than they were accepted.
    fn writes_back(&self) -> bool {
        false
    }

    /// Workloads of this subject, in addition to those of all layouts.
    fn workloads(&self) -> Vec<Workload> {
        Vec::new()
    }

    /// The volumes of its devices, where workloads make and remove some.
    fn volumes(&self) -> Option<&'static dyn Volumes> {
        None
    }

    /// Names of workloads with commits that others seldom meet. A campaign begins with them, and crashes in each recovery.
    fn first(&self) -> &'static [&'static str] {
        &[]
    }

    /// Workloads, deep ones and those of threads, that are not for it: the beginning of their names, and the reason.
    fn left_out(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Whether a workload of this name is for it.
    fn takes(&self, workload: &str) -> bool {
        !self.left_out().iter().any(|(name, _)| workload.starts_with(name))
    }

    /// Runs an operation that relocates blocks or logs and changes nothing that a user sees; `None` if it is none of
    /// these.
    fn relocate(&self, _fs: &Self::Fs, _op: &Op) -> Option<Result<()>> {
        None
    }

    /// Makes a file named [`FULL`] take all blocks of PM but so many. The file has no data that could move to a disk.
    fn fill(&self, _fs: &Self::Fs, _left: u64) -> Result<()> {
        Err(Error::new(Kind::Unsupported))
    }

    /// Damages one copy of a structure; see [`Op::Damage`].
    fn damage(&self, _pm: &SimPm, _kind: &str, _number: u64, _twin: Twin) -> Result<()> {
        Err(Error::new(Kind::Unsupported))
    }

    /// Makes an empty file system.
    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()>;

    /// Makes another one in its place. Structures of the first one that are left must not be taken for its own.
    fn remake(&self, pm: &Arc<SimPm>) -> Result<()> {
        self.mkfs(pm)
    }

    /// True when there is a file system, whole or not.
    fn is_formatted(&self, pm: &Arc<SimPm>) -> bool;

    /// Mounts, and recovers if needed.
    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<Self::Fs>;

    /// Makes the calling thread allocate from this lane from now on.
    fn use_lane(&self, lane: usize);

    /// Unmounts cleanly.
    fn unmount(&self, fs: Self::Fs) -> Result<()>;

    /// Lets go of it without an unmount, as when its process dies.
    fn abandon(&self, fs: Self::Fs);

    /// Repairs an unmounted file system, as fsck does.
    fn repair(&self, pm: &Arc<SimPm>) -> Result<()>;

    /// Checks every invariant of the format on an unmounted file system; returns the problems. `crashed` means that
    /// there was no clean unmount, so that an interrupted write is no damage.
    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>>;

    /// The places of its protocols where something is committed, by name.
    fn commit_points(&self) -> &'static [&'static str];

    /// Those of them that other runs cover.
    fn covered_elsewhere(&self) -> &'static [Elsewhere] {
        &[]
    }

    /// Those that other runs cover than runs through a write buffer.
    fn covered_unbuffered(&self) -> &'static [Elsewhere] {
        &[]
    }

    /// All that other runs cover, than one without a buffer or one through it.
    fn elsewhere(&self, is_buffered: bool) -> Vec<Elsewhere> {
        let unbuffered = if is_buffered { self.covered_unbuffered() } else { &[] };
        [self.covered_elsewhere(), unbuffered].concat()
    }

    /// Calls `hit` with each commit point (an index into [`Subject::commit_points`]) that a crash at this moment hits.
    fn commits_at(&self, moment: &Moment<'_>, hit: &mut dyn FnMut(usize));

    /// Which part of the layout's source stores, flushes or fences there; it stays the same when lines are added
    /// elsewhere.
    fn site_name(&self, site: Site) -> String;

    /// Mistakes that it can make on purpose.
    fn mistakes(&self) -> Vec<Mistake>;

    /// The flushes and fences that are there although no crash shows their absence.
    fn harmless(&self) -> &'static [Harmless];

    /// The lines of its source that flush or fence and are none of these sites, by name.
    fn unpassed(&self, passed: &[Site]) -> Vec<String>;

    /// Those of them that no workload has to pass: name and reason.
    fn passed_elsewhere(&self) -> &'static [(&'static str, &'static str)];
}

/// A layout on PM alone. By this one registration it goes through the behaviour suite, random sequences and system
/// calls beside the model, threads in many schedules, and the explorer (`lab/tests/layouts`).
pub trait Registered: Copy + Default + Send + Sync + 'static {
    /// The mounted file system.
    type Fs: Lifecycle<Pm = SimPm> + 'static;

    /// The state of ctime after a crash.
    const CTIME: Ctime;

    /// The files of its source that store, flush or fence.
    fn sources() -> &'static Sources;

    /// The places of its protocols where something is committed, by name.
    const COMMIT_POINTS: &'static [&'static str];

    /// The commit point of a store, by its place in the source and its offset on PM.
    fn commit_of_store(spot: Spot, offset: u64) -> Option<usize>;

    /// The commit point between two fences, by their places in the source.
    fn commit_of_fence(fence: Option<Spot>, last: Option<Spot>) -> Option<usize>;

    /// Mistakes that it can make on purpose.
    fn mistakes() -> Vec<Mistake>;

    /// The flushes and fences that are there although no crash shows their absence.
    const HARMLESS: &'static [Harmless];

    /// Sites that no workload has to pass: name and reason.
    const PASSED_ELSEWHERE: &'static [(&'static str, &'static str)];

    /// See [`Subject::first`].
    const FIRST: &'static [&'static str] = &[];

    /// Deep workloads that are not for it: the beginning of their names, and the reason.
    const LEFT_OUT: &'static [(&'static str, &'static str)] = &[];

    /// See [`Subject::covered_elsewhere`].
    const COVERED_ELSEWHERE: &'static [Elsewhere] = &[];

    /// See [`Subject::covered_unbuffered`].
    const COVERED_UNBUFFERED: &'static [Elsewhere] = &[];

    /// See [`Subject::volumes`].
    const VOLUMES: Option<&'static dyn Volumes> = None;

    /// See [`Subject::damage`].
    fn damage_one(_pm: &SimPm, _kind: &str, _number: u64, _twin: Twin) -> Result<()> {
        Err(Error::new(Kind::Unsupported))
    }

    /// See [`Subject::workloads`].
    fn own_workloads() -> Vec<Workload> {
        Vec::new()
    }

    /// Its name.
    fn name(&self) -> &'static str {
        Self::Fs::NAME
    }

    /// The part of an overwrite that a crash may leave.
    fn overwrites(&self) -> Overwrites {
        if Self::Fs::CAPABILITIES.atomic_write { Overwrites::Whole } else { Overwrites::InParts }
    }

    /// How mkfs makes its file systems. The UUID is always the same, so that an exploration can be repeated.
    fn properties(&self) -> MkfsOptions {
        let uuid = Uuid::from_u128(0x6e61_6372_6500_4000_8000_0000_0000_0001);
        MkfsOptions { uuid: Some(uuid), ..MkfsOptions::default() }
    }
}

impl<R: Registered> Subject for R {
    type Fs = R::Fs;

    fn name(&self) -> &'static str {
        Registered::name(self)
    }

    fn ctime(&self) -> Ctime {
        R::CTIME
    }

    fn overwrites(&self) -> Overwrites {
        Registered::overwrites(self)
    }

    fn first(&self) -> &'static [&'static str] {
        R::FIRST
    }

    fn left_out(&self) -> &'static [(&'static str, &'static str)] {
        R::LEFT_OUT
    }

    fn workloads(&self) -> Vec<Workload> {
        R::own_workloads()
    }

    fn volumes(&self) -> Option<&'static dyn Volumes> {
        R::VOLUMES
    }

    fn damage(&self, pm: &SimPm, kind: &str, number: u64, twin: Twin) -> Result<()> {
        R::damage_one(pm, kind, number, twin)
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        R::Fs::mkfs(pm, &self.properties()).map(drop)
    }

    fn remake(&self, pm: &Arc<SimPm>) -> Result<()> {
        let properties = self.properties();
        let uuid = properties.uuid.map(|uuid| Uuid::from_u128(uuid.as_u128() + 1));
        R::Fs::mkfs(pm, &MkfsOptions { uuid, ..properties }).map(drop)
    }

    fn is_formatted(&self, pm: &Arc<SimPm>) -> bool {
        R::Fs::probe(pm).is_ok()
    }

    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<R::Fs> {
        let Mounting { lanes, background, volume } = mounting;
        let volume = R::VOLUMES.map(|_| volume.unwrap_or(MAIN).to_owned());
        let options = MountOptions { lanes: Some(lanes), background, volume, ..MountOptions::default() };
        R::Fs::mount(Arc::clone(pm), &options)
    }

    fn use_lane(&self, lane: usize) {
        use_lane(lane);
    }

    fn unmount(&self, fs: R::Fs) -> Result<()> {
        fs.unmount()
    }

    fn abandon(&self, fs: R::Fs) {
        fs.abandon();
    }

    fn repair(&self, pm: &Arc<SimPm>) -> Result<()> {
        R::Fs::check(pm, Repair::All, None).map(drop)
    }

    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>> {
        Ok(words_of(R::Fs::check(pm, Repair::None, None)?, crashed))
    }

    fn commit_points(&self) -> &'static [&'static str] {
        R::COMMIT_POINTS
    }

    fn covered_elsewhere(&self) -> &'static [Elsewhere] {
        R::COVERED_ELSEWHERE
    }

    fn covered_unbuffered(&self) -> &'static [Elsewhere] {
        R::COVERED_UNBUFFERED
    }

    fn commits_at(&self, moment: &Moment<'_>, hit: &mut dyn FnMut(usize)) {
        let spot = |site: Site| R::sources().spot(site);
        let mut seen = vec![false; R::COMMIT_POINTS.len()];
        let stores = moment.stores.iter();
        let of_stores = stores.filter_map(|&(site, offset)| R::commit_of_store(spot(site)?, offset));
        let of_fence = R::commit_of_fence(moment.fence.and_then(spot), moment.last_fence.and_then(spot));
        of_stores.chain(of_fence).for_each(|point| seen[point] = true);
        (0..seen.len()).filter(|&point| seen[point]).for_each(hit);
    }

    fn site_name(&self, site: Site) -> String {
        R::sources().name(site)
    }

    fn mistakes(&self) -> Vec<Mistake> {
        R::mistakes()
    }

    fn harmless(&self) -> &'static [Harmless] {
        R::HARMLESS
    }

    fn unpassed(&self, passed: &[Site]) -> Vec<String> {
        R::sources().all_but(passed)
    }

    fn passed_elsewhere(&self) -> &'static [(&'static str, &'static str)] {
        R::PASSED_ELSEWHERE
    }
}

/// The problems of a report, in words.
pub(super) fn words_of(report: CheckReport, crashed: bool) -> Vec<String> {
    let problems = report.problems.into_iter().map(|problem| problem.what);
    // A crash may tear the copy that was being written. It looks like damage, and a mount mends it.
    let torn = |what: &String| crashed && what.ends_with("of the superblock is damaged");
    problems.filter(|what| !torn(what)).collect()
}
