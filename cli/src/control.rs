//! The server's side of commands: answers about a mount, and the execution of orders (`nacre-control` says what they
//! are).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nacre::{
    Block, Budget, FileBlock, FileSystem, InodeId, Kind, MovedFiles, MoverLimit, NewTier, TierDevice,
    TrimFrom,
};
use nacre_control::{
    Attached, Command, Drained, Envelope, FilesMoved, FilesToMove, FlagsTaken, Info, MountInfo, Order,
    Outcome, Question, Synced, TierAdded, TierToAdd, TierToTrim, TiersInfo, Trimmed, result_id,
};
use nacre_engine::{Error, Names as _, Result};
use nacre_fuse::mounts;
use serde_json::{Value, json};

use crate::daemon;
use crate::mount_options::MountSettings;

/// Results kept at most. A sender reads its result at once, so that only unwanted results are dropped.
const MAX_RESULTS: usize = 64;
/// The longest time of one slice of an order. The sender then repeats the order.
const SLICE: Duration = Duration::from_millis(200);
/// Failed files named in one answer at most, because the answer is the value of an attribute.
const MAX_FAILED: usize = 64;

/// The answer about moved files, with as many failed ones as it has room for.
fn files_moved(done: MovedFiles) -> FilesMoved {
    let MovedFiles { moved, mut next, mut from, mut failed } = done;
    // The other files fail again in the next slice, which reports them.
    if let Some((file, _)) = failed.get(MAX_FAILED) {
        (next, from) = (*file, 0);
        failed.truncate(MAX_FAILED);
    }
    let failed = failed.into_iter().map(|(file, error)| (file, error.to_string())).collect();
    FilesMoved { moved, next, from, failed }
}

/// The sink for events of a mount, such as its log.
pub(crate) type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// The server's side.
pub(crate) struct Control {
    file_system: FileSystem,
    settings: Mutex<MountSettings>,
    results: Mutex<VecDeque<(String, Value)>>,
    /// True once the mount is to end.
    ends: Arc<AtomicBool>,
    /// True if open(2) for writing is checked against the flags of the file. The kernel learns of it once, when the
    /// mount begins.
    checks_opens: bool,
    /// The mountpoint.
    dir: PathBuf,
    /// Records events.
    tell: Tell,
    /// True if the mover was paused when the mount became read-only.
    was_paused: AtomicBool,
    /// Bytes that the write buffer gave up, as far as a sync reported them.
    told_lost: AtomicU64,
}

impl Control {
    pub(crate) fn new(file_system: FileSystem, settings: MountSettings, dir: PathBuf, tell: Tell) -> Control {
        let checks_opens = settings.direct_io || file_system.vfs().layout().has_guarded();
        let (settings, results) = (Mutex::new(settings), Mutex::default());
        Control {
            file_system,
            settings,
            results,
            ends: Arc::default(),
            checks_opens,
            dir,
            tell,
            was_paused: AtomicBool::default(),
            told_lost: AtomicU64::default(),
        }
    }

    /// The flag that ends long orders; the owner sets it when the mount is to end.
    pub(crate) fn ends(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ends)
    }

    fn info(&self) -> Info {
        let info = self.file_system.info();
        let mut info =
            info.unwrap_or_else(|error| Info { error: Some(error.to_string()), ..Info::default() });
        let settings = lock(&self.settings).clone();
        let (log, emulate) = settings.unshown();
        let opens = match (self.checks_opens, self.file_system.vfs().layout().has_guarded()) {
            (true, _) => "checked",
            (false, false) => "unchecked",
            (false, true) => "checked from the next mount on",
        };
        info.mount = Some(MountInfo {
            options: settings.to_string(),
            pid: std::process::id(),
            opens: opens.to_owned(),
            durable: settings.durable(),
            opened_to_read: self.file_system.vfs().options().read_only,
            oom_score_adj: daemon::oom_score_adj(),
            log,
            emulate,
        });
        info
    }

    /// Applies the options of a remount.
    fn change(&self, options: &str) -> Result<()> {
        let wrong = |why: String| Error::new(Kind::InvalidInput).object(why);
        let mut asked = MountSettings::default();
        asked.take(options, false).map_err(wrong)?;
        let mut settings = lock(&self.settings);
        // Settings that are not named stay.
        asked.read_only = settings.read_only;
        let (changed, _) = settings.remounted(&asked, &[]).map_err(wrong)?;
        if changed.tier_settings != settings.tier_settings {
            self.file_system.set_tiers(&changed.tier_settings)?;
        }
        if let Some(running) = self.file_system.cache_settings() {
            self.file_system.set_cache(changed.buffer_settings(running))?;
        }
        *settings = changed;
        Ok(())
    }

    /// Adopts the flags that the kernel shows for the mount, after a remount. A read-only mount takes no order with the
    /// flags, so the server reads the kernel's table.
    fn take_up_flags(&self) -> Result<FlagsTaken> {
        let entry = mounts::at(&self.dir)?.filter(|entry| entry.fstype == mounts::FSTYPE);
        let Some(entry) = entry else {
            return Err(Error::new(Kind::NotFound).object(self.dir.display().to_string()));
        };
        let mut settings = lock(&self.settings);
        let mut changed = settings.clone();
        changed.take_up_flags(&entry);
        if changed.read_only && !settings.read_only {
            let is_paused = self.file_system.mover_status().is_some_and(|mover| mover.paused);
            self.was_paused.store(is_paused, Ordering::Relaxed);
            self.let_move(false);
        }
        self.file_system.remount(changed.read_only, changed.no_atime)?;
        if settings.read_only && !changed.read_only && !self.was_paused.load(Ordering::Relaxed) {
            self.let_move(true);
        }
        *settings = changed;
        (self.tell)(&format!("remounted, options {settings}"));
        Ok(FlagsTaken { options: settings.to_string() })
    }

    /// Resumes or pauses the mover.
    fn let_move(&self, moves: bool) {
        // Without tiers nothing moves.
        let _ = self.file_system.pause_mover(!moves);
    }

    fn run(&self, order: Order) -> Result<Value> {
        let fs = &self.file_system;
        let budget = Budget::until(Instant::now() + SLICE);
        let device = |path, emulate: Option<String>| -> Result<TierDevice> {
            let emulation = emulate.map(|text| text.parse()).transpose()?;
            Ok(TierDevice { path, emulation })
        };
        Ok(match order {
            Order::AddTier(TierToAdd { path, size, rank, force, emulate }) => {
                let tier = fs.add_tier(&NewTier { device: device(path, emulate)?, size, rank, force })?;
                json!(TierAdded { tier, found: fs.is_tier_found(tier) })
            }
            Order::AttachTier { path, emulate } => {
                json!(Attached { tier: fs.attach_tier(&device(path, emulate)?)? })
            }
            Order::CheckTier(TierToAdd { path, size, rank, force, emulate }) => {
                let new = NewTier { device: device(path, emulate)?, size, rank, force };
                json!(fs.would_add_tier(&new)?)
            }
            Order::CheckAttach(path) => json!(Attached { tier: fs.would_attach_tier(&device(path, None)?)? }),
            Order::DetachTier(number) => json!(fs.detach_tier(number)?),
            Order::DrainTier(number) => {
                let drained = fs.drain_tier(number, &budget)?;
                json!(Drained { moved: drained.moved, left: drained.left, done: drained.is_done })
            }
            Order::CheckDrain(number) => json!(fs.would_drain_tier(number)?),
            Order::UseTier(number) => json!(fs.use_tier(number)?),
            Order::RemoveTier(number) => json!(fs.remove_tier(number)?),
            Order::TrimTier(TierToTrim { tier, from, is_within, least }) => {
                let from = TrimFrom { block: Block(from), is_within };
                let done = fs.trim_tier(tier, from, least, &budget)?;
                let within = done.next.is_some_and(|next| next.is_within);
                let next = done.next.map(|next| next.block.0);
                json!(Trimmed { trimmed: done.bytes, next, within, useless: done.is_useless })
            }
            Order::MoveFiles(FilesToMove { to, from, inodes }) => {
                let done = fs.move_files(&inodes, to, FileBlock(from), &budget)?;
                json!(files_moved(done))
            }
            Order::PauseMover(paused) => json!(fs.pause_mover(paused)?),
            Order::LimitMover(rate) => json!(self.limit(rate)?),
            Order::Sync => json!(self.sync()),
        })
    }

    fn sync(&self) -> Synced {
        // The first sync also returns earlier errors of data that may have been written since.
        let unwritten = self.file_system.sync().or_else(|_| self.file_system.sync()).err();
        let lost = self.file_system.cache().map_or(0, |cache| cache.lost);
        let given_up = lost - self.told_lost.swap(lost, Ordering::Relaxed);
        Synced { unwritten: unwritten.map(|error| error.to_string()), given_up }
    }

    /// Sets the limit of the mover, in bytes per second. The limit is a mount setting, so a remount that does not name
    /// it keeps it.
    fn limit(&self, rate: Option<u64>) -> Result<()> {
        let limit = MoverLimit::of(rate)?;
        let mut settings = lock(&self.settings);
        self.file_system.limit_mover(rate)?;
        settings.tier_settings.mover_limit = Some(limit);
        Ok(())
    }

    fn order(&self, value: &str) -> Result<()> {
        let Envelope { id, order } = serde_json::from_str(value)
            .map_err(|error| Error::new(Kind::InvalidInput).object(error.to_string()))?;
        let what = order.clone();
        let result = match self.run(order) {
            Ok(result) => {
                event(&what, &result).iter().for_each(|event| (self.tell)(event));
                Outcome::Result(result)
            }
            Err(error) => Outcome::Error(error.to_string()),
        };
        let mut results = lock(&self.results);
        if results.len() >= MAX_RESULTS {
            results.pop_front();
        }
        results.push_back((id, json!(result)));
        Ok(())
    }

    fn result(&self, id: &str) -> Option<Value> {
        // The result stays, because readers often ask for the length of an attribute first.
        lock(&self.results).iter().find(|(done, _)| done == id).map(|(_, result)| result.clone())
    }
}

impl nacre_fuse::Control for Control {
    fn ask(&self, _: InodeId, name: &str, may_tell: bool) -> Option<Result<String>> {
        let answer = match Question::of(name) {
            // The answer holds paths of files that other users may not see.
            Some(Question::Scrub) if !may_tell => return Some(Err(Kind::NotPermitted.into())),
            Some(Question::Info) => json!(self.info()),
            Some(Question::Flags) => match self.take_up_flags() {
                Ok(taken) => json!(taken),
                Err(error) => return Some(Err(error)),
            },
            Some(Question::Scrub) => json!(self.file_system.scrub_status()),
            Some(Question::Tiers) => json!(TiersInfo { tiers: self.file_system.tiers() }),
            Some(Question::Mover) => json!(self.file_system.mover_status()?),
            // None while blocks move.
            Some(Question::Temperature) => json!(self.file_system.temperature()),
            // The front end answers it.
            Some(Question::Extents) => return None,
            None => self.result(result_id(name)?)?,
        };
        Some(Ok(answer.to_string()))
    }

    fn tell(&self, _: InodeId, name: &str, value: &str) -> Option<Result<()>> {
        Some(match Command::of(name)? {
            Command::Scrub => match rate_of(value) {
                Some(rate) => self.file_system.start_scrub(rate),
                None => Err(Kind::InvalidInput.into()),
            },
            Command::Options => self.change(value),
            Command::Order => self.order(value),
        })
    }

    fn trim(&self, least: u64) -> Option<Result<u64>> {
        let tiers = self.file_system.tiers();
        let (mut bytes, mut failure, mut has_told) = (0, None, false);
        // The caller cannot stop the trim before its answer; only the end of the mount does.
        let is_over = || self.ends.load(Ordering::Relaxed);
        let budget = Budget::default().unless(&is_over);
        for tier in tiers.iter().filter(|tier| tier.device.is_some()) {
            // A failed tier does not keep others from the trim.
            match self.file_system.trim_tier(tier.number, TrimFrom::default(), least, &budget) {
                Ok(trimmed) => (bytes, has_told) = (bytes + trimmed.bytes, has_told || !trimmed.is_useless),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) => Some(Err(error)),
            None => has_told.then_some(Ok(bytes)),
        }
    }

    fn label(&self) -> Result<String> {
        self.file_system.info().map(|info| info.volume.label)
    }
}

/// The effect of an order on the tiers of a mount, in words; `None` for an order without an entry in the log.
fn event(order: &Order, result: &Value) -> Option<String> {
    match order {
        Order::AddTier(new) => Some(format!("tier {} was added: {}", result["tier"], new.path.display())),
        Order::DetachTier(number) => Some(format!("tier {number} was taken offline")),
        Order::DrainTier(number) if result["done"] == true => Some(format!("tier {number} is drained")),
        Order::UseTier(number) => Some(format!("blocks are placed on tier {number} again")),
        Order::RemoveTier(number) => Some(format!("tier {number} was removed")),
        _ => None,
    }
}

/// The rate in `start` or `start RATE`, if any.
fn rate_of(value: &str) -> Option<Option<u64>> {
    match value.strip_prefix("start")? {
        "" => Some(None),
        rest => rest.strip_prefix(' ')?.parse().ok().map(Some),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use nacre::{FileSystem, Kind, MovedFiles, OpenOptions};
    use nacre_fuse::Control as _;
    use serde_json::{Value, json};

    use nacre_control::Order;

    use super::{Control, MAX_FAILED, MAX_RESULTS, event, files_moved, rate_of};
    use crate::mount_options::MountSettings;

    #[test]
    fn a_scrub_is_started_by_its_word() {
        assert_eq!(rate_of("start"), Some(None));
        assert_eq!(rate_of("start 4096"), Some(Some(4096)));
        assert_eq!((rate_of("starting"), rate_of("start "), rate_of("stop")), (None, None, None));
    }

    #[test]
    fn the_log_is_told_what_was_done_with_tiers() {
        assert_eq!(event(&Order::RemoveTier(3), &Value::Null).unwrap(), "tier 3 was removed");
        assert_eq!(event(&Order::DrainTier(3), &json!({ "done": false })), None);
        assert_eq!(event(&Order::DrainTier(3), &json!({ "done": true })).unwrap(), "tier 3 is drained");
        assert_eq!(event(&Order::Sync, &Value::Null), None);
    }

    #[test]
    fn a_limit_is_there_after_a_remount_that_says_nothing_of_it() {
        let file_system = FileSystem::in_memory(64 << 20, &OpenOptions::default()).unwrap();
        let control = Control::new(file_system, MountSettings::default(), "/mnt".into(), Box::new(|_| {}));
        let rate = |control: &Control| control.file_system.mover_status().unwrap().rate;
        control.limit(Some(1 << 20)).unwrap();
        control.change("tune=tier_group:64K").unwrap();
        assert_eq!(rate(&control), Some(1 << 20));
        assert_eq!(control.info().mount.unwrap().options, "rw,mover_limit=1M,tune=tier_group:64K");
        control.change("mover_limit=2M,mover_hours=22:00-06:00").unwrap();
        assert_eq!(rate(&control), Some(2 << 20));
        assert_eq!(control.file_system.mover_status().unwrap().hours.as_deref(), Some("22:00-06:00"));
        // Less than a block, or more than can be set, is refused, and nothing changes: it was taken for what comes nearest.
        for wanted in [0, 4095, u64::MAX] {
            assert_eq!(control.limit(Some(wanted)).unwrap_err().kind(), Kind::InvalidInput);
            assert_eq!(rate(&control), Some(2 << 20));
        }
        control.limit(None).unwrap();
        control.change("mover_hours=always").unwrap();
        let status = control.file_system.mover_status().unwrap();
        assert_eq!((status.rate, status.hours), (None, None));
    }

    #[test]
    fn an_answer_has_room_for_the_files_that_it_names() {
        let failed = |count: usize| (0..count).map(|file| (file * 2, Kind::NoSpace.into())).collect();
        let done = |count| files_moved(MovedFiles { moved: 7, next: 900, from: 5, failed: failed(count) });
        let all = done(MAX_FAILED);
        assert_eq!((all.next, all.from, all.failed.len()), (900, 5, MAX_FAILED));
        // It goes on with the first of those that it does not name.
        let some = done(MAX_FAILED + 10);
        assert_eq!((some.moved, some.next, some.from), (7, 2 * MAX_FAILED, 0));
        assert_eq!(some.failed, all.failed);
    }

    #[test]
    fn the_result_of_an_order_has_words() {
        let file_system = FileSystem::in_memory(64 << 20, &OpenOptions::default()).unwrap();
        let vfs = file_system.vfs();
        let root = vfs.id(vfs.root());
        let control =
            Control::new(file_system.clone(), MountSettings::default(), "/mnt".into(), Box::new(|_| {}));
        let give = |id: &str, order: Value| {
            let value = json!({ "id": id, "order": order }).to_string();
            control.tell(root, "do", &value)?.ok()
        };
        let read = |id: &str| {
            let text = control.ask(root, &format!("done.{id}"), true)?.ok()?;
            serde_json::from_str::<Value>(&text).ok()
        };
        assert!(give("a", json!({ "remove_tier": 3 })).is_some());
        assert!(read("a").unwrap()["error"].as_str().unwrap().contains("tier 3"));
        assert!(give("b", json!({ "pause_mover": true })).is_some());
        assert_eq!(read("b").unwrap(), json!({ "result": null }));
        let status: Value =
            serde_json::from_str(&control.ask(root, "mover", false).unwrap().unwrap()).unwrap();
        assert_eq!(status["paused"], true);
        // What is no order is refused, and leaves nothing behind.
        assert!(give("c", json!({ "remove_tier": 300 })).is_none() && read("c").is_none());
        assert!(control.tell(root, "nothing", "").is_none() && control.ask(root, "nothing", true).is_none());
        // What a scrub has found names files of others.
        let scrub = |may_tell| control.ask(root, "scrub", may_tell).unwrap().map_err(|error| error.kind());
        assert_eq!((scrub(true).is_ok(), scrub(false)), (true, Err(Kind::NotPermitted)));
        for number in 0..MAX_RESULTS {
            give(&number.to_string(), json!({ "pause_mover": false })).unwrap();
        }
        assert!(read("a").is_none() && read("0").is_some());
    }
}
