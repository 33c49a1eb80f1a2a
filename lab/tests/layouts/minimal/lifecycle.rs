//! The life of the layout. Its check applies the journal, as a mount does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nacre_engine::{BLOCK_SIZE, Block, Capabilities, Extents, Kind, Result, SetAttr, Tier, TierReader};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::{CheckReport, MediaReport, Problem, RecoveryReport, Repair, in_no_file};
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_layout_parts::superblock::Summary;
use nacre_media::{Pm, SimPm};

use super::fs::{CAPABILITIES, MinimalFs, Shared};
use super::journal::{self, Journal, MAGIC, Step};
use super::op::Op;
use super::state::{ROOT, State};

/// The state that is on PM, without a change of it.
fn recover(pm: &SimPm) -> Result<Shared> {
    let mut journal = Journal::open(pm)?;
    let state = State::replay(|| journal.next(pm))?;
    Ok(Shared::new(pm, state, journal))
}

impl Lifecycle for MinimalFs {
    type Pm = SimPm;

    const NAME: &'static str = "minimal";
    const MAGIC: [u8; 8] = MAGIC;
    const CAPABILITIES: Capabilities = CAPABILITIES;

    fn probe(pm: &SimPm) -> Result<Summary> {
        journal::read_superblock(pm)
    }

    fn leaves_trace(block: &[u8]) -> bool {
        block.starts_with(&MAGIC)
    }

    fn known_tiers(_: &SimPm) -> Result<Vec<Tier>> {
        Ok(Vec::new())
    }

    fn known_tier_paths(_: &SimPm) -> Result<Vec<(u8, PathBuf)>> {
        Ok(Vec::new())
    }

    fn check_writable(_: &SimPm) -> Result<()> {
        Ok(())
    }

    fn mkfs(pm: &SimPm, options: &MkfsOptions) -> Result<Summary> {
        journal::erase(pm)?;
        let mut state = State::empty();
        let (uid, gid) = options.root_owner;
        let times = Some(options.now);
        let change =
            SetAttr { uid: Some(uid), gid: Some(gid), atime: times, mtime: times, ..SetAttr::default() };
        state.apply(&Op::SetAttr { number: ROOT, change, now: options.now })?;
        Shared::new(pm, state, Journal::open(pm)?).compact(pm, Step::Mkfs)?;
        journal::write_superblock(pm, options)?;
        journal::read_superblock(pm)
    }

    fn mount(pm: Arc<SimPm>, options: &MountOptions) -> Result<MinimalFs> {
        if options.media_read_only {
            return Err(Kind::Unsupported.into());
        }
        let start = Instant::now();
        let summary = journal::read_superblock(&pm)?;
        let mut shared = recover(&pm)?;
        shared.compact(&pm, Step::Mount)?;
        let recovery = RecoveryReport { walked: true, duration: start.elapsed(), ..Default::default() };
        MinimalFs::new(pm, shared, summary, recovery)
    }

    fn unmount(self) -> Result<()> {
        self.lock().compact(&self.pm, Step::Compaction)
    }

    fn abandon(self) {}

    fn pm(&self) -> &Arc<SimPm> {
        &self.pm
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }

    fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    fn check(pm: &SimPm, _: Repair, _: Option<&dyn TierReader>) -> Result<CheckReport> {
        let mut report = CheckReport {
            summary: journal::read_superblock(pm)?,
            tiers: Vec::new(),
            problems: Vec::new(),
            interrupted_superblock: false,
            walk: RecoveryReport { walked: true, ..RecoveryReport::default() },
            bad_blocks: 0,
            used_blocks: 0,
            free_blocks: 0,
        };
        match recover(pm) {
            Ok(shared) => {
                let stat = shared.state.model.stat();
                (report.used_blocks, report.free_blocks) = (stat.blocks - stat.free, stat.free);
            }
            Err(error) => {
                let what = format!("the journal: {error}");
                report.problems.push(Problem { what, repair: "", loses: false, repaired: false });
            }
        }
        Ok(report)
    }

    /// It keeps no list of bad blocks, and tells of no files.
    fn check_media(pm: &SimPm, _: bool) -> Result<MediaReport> {
        let mut report = MediaReport::default();
        let mut bytes = [0; BLOCK_SIZE as usize];
        for block in 0..pm.len() / BLOCK_SIZE {
            let at = Block(block).offset();
            match pm.read(at, &mut bytes) {
                Err(error) if error.kind() == Kind::Media => {
                    report.errors.push(in_no_file(at..at + BLOCK_SIZE));
                    report.new_blocks += 1;
                }
                read => read?,
            }
        }
        Ok(report)
    }

    fn retire_listed(_: &SimPm) -> Result<u64> {
        Ok(0)
    }

    fn start_scrub(&self, _: u64) -> Result<()> {
        Err(Kind::Unsupported.into())
    }

    fn scrub_status(&self) -> ScrubStatus {
        ScrubStatus::default()
    }
}
