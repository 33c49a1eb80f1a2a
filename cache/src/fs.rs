//! The mounted cache: setup, changes and unmount.

use std::sync::{Arc, OnceLock};

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::thread::{self, JoinHandle};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, Error, Extents, FileKind, FsStat, InodeId, Kind, LINE_SIZE, Result, WriteCost,
    size,
};
use nacre_policy::ghost::ghosts_for;
use nacre_policy::{Checker, Model, Newcomers};

use crate::buffer::LINES;
use crate::clock::Clock;
use crate::file::{CacheNode, File};
use crate::pool::Pool;
use crate::settings::{CacheOptions, CacheStatus, Counters, Granularity, Posted, Rules, Settings};
use crate::table::Table;

/// The smallest pool: a block that a write needs, one for its copy, and as many again.
const MIN_BLOCKS: u64 = 4;
/// The largest pool: 8 TiB.
const MAX_BLOCKS: u64 = 1 << 31;

/// Receives a file with accepted data that was given up, and the number of bytes.
pub type LossListener = Box<dyn Fn(InodeId, u64) + Send + Sync>;

/// A layout under a write buffer; see the [crate](crate). Dropping it writes everything back and ignores errors.
pub struct CacheFs<L: BelowBuffer + Extents> {
    pub(crate) shared: Arc<Shared<L>>,
    keeper: Keeper<L>,
}

/// The threads, and the work at the end of the cache.
struct Keeper<L: BelowBuffer + Extents> {
    shared: Arc<Shared<L>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held while settings change.
    changing: Mutex<()>,
    /// Nothing is left to be written back.
    is_done: bool,
}

/// State that operations and threads share.
pub(crate) struct Shared<L> {
    pub(crate) layout: L,
    pub(crate) pool: Pool<File>,
    pub(crate) table: Table,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    pub(crate) read_only: bool,
    /// Lines of the layout's unit of writing.
    pub(crate) unit_lines: usize,
    pub(crate) max_file_size: u64,
    /// The cost of reservations for blocks that wait.
    pub(crate) cost: WriteCost,
    settings: RwLock<Settings>,
    /// The settings that each write reads.
    posted: Posted,
    /// Blocks that the model tracks, and the largest number of them.
    ghosts: AtomicU64,
    max_ghosts: u64,
    /// The new-file predictor.
    pub(crate) newcomers: Mutex<Newcomers>,
    /// Held by a writeback of some blocks until their space is given back.
    pub(crate) flying: RwLock<()>,
    /// The error that the next sync of everything reports.
    pub(crate) error: Mutex<Option<Kind>>,
    /// Hears of data that was given up.
    pub(crate) on_loss: OnceLock<LossListener>,
}

impl<L: BelowBuffer + Extents> CacheFs<L> {
    /// A cache over a mounted layout.
    ///
    /// [`InvalidInput`](Kind::InvalidInput) for a size below 4 blocks or settings that contradict each other.
    pub fn new(layout: L, options: &CacheOptions) -> Result<CacheFs<L>> {
        options.settings.check()?;
        let blocks = options.size / BLOCK_SIZE;
        if !(MIN_BLOCKS..=MAX_BLOCKS).contains(&blocks) {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("a write buffer of {}", size::exact(options.size)))
                .advice("give it 16 KiB to 8 TiB, and some MiB to be of use"));
        }
        let shared = Shared {
            unit_lines: (layout.capabilities().write_unit / LINE_SIZE).clamp(1, LINES as u64) as usize,
            max_file_size: layout.capabilities().max_file_size,
            cost: layout.capabilities().write_cost,
            layout,
            pool: Pool::new(blocks, options.frames.clone().unwrap_or_default()),
            table: Table::new(),
            counters: Counters::default(),
            clock: options.clock.clone(),
            read_only: options.read_only,
            settings: RwLock::new(options.settings),
            posted: Posted::new(&options.settings),
            ghosts: AtomicU64::new(0),
            max_ghosts: ghosts_for(blocks * BLOCK_SIZE),
            newcomers: Mutex::default(),
            flying: RwLock::new(()),
            error: Mutex::new(None),
            on_loss: OnceLock::new(),
        };
        shared.configure_pool();
        let shared = Arc::new(shared);
        let keeper = Keeper {
            shared: Arc::clone(&shared),
            threads: Mutex::default(),
            changing: Mutex::default(),
            is_done: false,
        };
        keeper.start_threads()?;
        Ok(CacheFs { shared, keeper })
    }

    /// The layout below. Changes to files there miss dirty data.
    pub fn layout(&self) -> &L {
        &self.shared.layout
    }

    /// Sets the listener for accepted data that was given up, because no repetition could have written it. There is one
    /// listener; later ones are ignored. A thread of the buffer calls it, with none of its locks.
    pub fn on_loss(&self, listener: LossListener) {
        let _ = self.shared.on_loss.set(listener);
    }

    /// The present settings.
    pub fn settings(&self) -> Settings {
        self.shared.settings()
    }

    /// Changes the settings at run time. Without a cost of a line, the present cost stays.
    pub fn set(&self, mut settings: Settings) -> Result<()> {
        settings.check()?;
        // One at a time, because threads that end for one change must not count as running for another.
        let _changing = self.keeper.changing.lock();
        let running = self.shared.settings();
        settings.latencies = settings.latencies.or(running.latencies);
        let fewer = settings.threads < running.threads;
        *self.shared.settings.write() = settings;
        self.shared.posted.post(&settings);
        self.shared.configure_pool();
        if fewer {
            self.keeper.stop_threads();
            self.shared.pool.set_stopping(false);
        }
        // Waiting writers read the settings again.
        self.shared.pool.settings_changed();
        self.keeper.start_threads()?;
        self.shared.pool.call_threads();
        Ok(())
    }

    /// State and counters.
    pub fn status(&self) -> CacheStatus {
        let shared = &*self.shared;
        let Counters {
            written_lazily,
            written_eagerly,
            overwritten,
            discarded,
            fetched,
            written_back,
            write_hits,
            write_misses,
            read_from_dram,
            stalls,
            failures,
            lost,
            accurate,
            inaccurate,
        } = &shared.counters;
        CacheStatus {
            blocks: shared.pool.capacity(),
            used: shared.pool.capacity() - shared.pool.free(),
            ghosts: shared.ghosts.load(Ordering::Relaxed),
            written_lazily: written_lazily.get(),
            written_eagerly: written_eagerly.get(),
            overwritten: overwritten.get(),
            discarded: discarded.get(),
            fetched: fetched.get(),
            written_back: written_back.get(),
            write_hits: write_hits.get(),
            write_misses: write_misses.get(),
            read_from_dram: read_from_dram.get(),
            stalls: stalls.get(),
            failures: failures.get(),
            lost: lost.get(),
            accurate: accurate.get(),
            inaccurate: inaccurate.get(),
        }
    }

    /// Writes everything back, and returns the layout for the unmount and the first error. All nodes must be dropped.
    pub fn unmount(self) -> (L, Result<()>) {
        self.keeper.stop_threads();
        let flushed = self.shared.flush_everything();
        let told = self.shared.take_error();
        (self.into_layout(), flushed.and(told))
    }

    /// Returns the layout with nothing written, as when the process is killed.
    pub fn abandon(self) -> L {
        self.keeper.stop_threads();
        self.into_layout()
    }

    fn into_layout(self) -> L {
        let CacheFs { shared, mut keeper } = self;
        keeper.is_done = true;
        drop(keeper);
        Arc::into_inner(shared).unwrap_or_else(|| unreachable!("the threads have ended")).layout
    }

    /// Writes the file's dirty blocks and sends every write to media at once until [`CacheFs::end_bypass`], as a
    /// mapping needs it. Calls are counted.
    pub fn bypass(&self, node: &CacheNode<L::Node>) -> Result<()> {
        let file = self.shared.file(node)?;
        file.pinned.fetch_add(1, Ordering::AcqRel);
        // Also without known dirty blocks, because a write under way has not seen the bypass and waits for its turn.
        let flushed = {
            let mut blocks = self.shared.still(&file);
            self.shared.flush_range(&node.inner, &file, &mut blocks, 0..u64::MAX)
        };
        flushed.inspect_err(|_| {
            file.pinned.fetch_sub(1, Ordering::AcqRel);
        })
    }

    /// Ends one [`CacheFs::bypass`].
    pub fn end_bypass(&self, node: &CacheNode<L::Node>) {
        if let Ok(file) = self.shared.file(node) {
            let before = file.pinned.fetch_sub(1, Ordering::AcqRel);
            assert!(before > 0, "ended more often than begun");
        }
    }
}

impl<L: BelowBuffer + Extents> Shared<L> {
    pub(crate) fn settings(&self) -> Settings {
        *self.settings.read()
    }

    /// The settings that each write reads.
    pub(crate) fn rules(&self) -> Rules {
        self.posted.read()
    }

    /// A part of the pool in blocks, at least one.
    pub(crate) fn blocks_of(&self, percent: u8) -> u64 {
        (self.pool.capacity() * u64::from(percent) / 100).max(1)
    }

    /// Passes its settings to the pool.
    fn configure_pool(&self) {
        let settings = self.settings();
        self.pool.configure(self.blocks_of(settings.low_percent), settings.max_age_ms);
    }

    /// Space statistics: each waiting block counts as one used block. The rest of the reservation is for metadata,
    /// which mostly takes less. If an operation needs the rest, everything is written.
    pub(crate) fn stat(&self) -> FsStat {
        let mut stat = self.layout.stat();
        let waiting = self.pool.capacity() - self.pool.free();
        let spare = stat.reserved.saturating_sub(waiting);
        stat.free += spare;
        stat.available += spare;
        stat.reserved -= spare;
        stat
    }

    /// The constants of the model.
    pub(crate) fn model_of(&self, rules: &Rules) -> Model {
        let &Rules { latencies, checker, inherits, forget_ms, granularity, .. } = rules;
        let unit_lines = if granularity == Granularity::Blocks { LINES } else { self.unit_lines } as u32;
        Model { latencies, checker, forget_ms, unit_lines, inherits: inherits && checker == Checker::Full }
    }

    /// The state of a held file; an error unless it is a regular file.
    pub(crate) fn file(&self, node: &CacheNode<L::Node>) -> Result<Arc<File>> {
        self.file_ref(node).cloned()
    }

    pub(crate) fn file_ref<'n>(&self, node: &'n CacheNode<L::Node>) -> Result<&'n Arc<File>> {
        if let Some(file) = node.file.get() {
            return Ok(file);
        }
        if self.layout.kind(&node.inner) != FileKind::Regular {
            return Err(Kind::InvalidInput.into());
        }
        let id = self.layout.id(&node.inner);
        let make = || self.layout.getattr(&node.inner).map(|attr| File::new(&attr));
        let file = self.table.get_or_make(id, make, |dropped| self.forget_ghosts(dropped))?;
        Ok(node.file.get_or_init(|| file))
    }

    /// The state of the file if it is known. An unknown file has nothing that waits for media.
    pub(crate) fn known_file<'n>(&self, node: &'n CacheNode<L::Node>) -> Option<&'n Arc<File>> {
        if let Some(file) = node.file.get() {
            return Some(file);
        }
        if self.layout.kind(&node.inner) != FileKind::Regular {
            return None;
        }
        let file = self.table.get(self.layout.id(&node.inner))?;
        Some(node.file.get_or_init(|| file))
    }

    /// The right to track one block more, to be given back with [`Shared::drop_ghosts`] if unused.
    pub(crate) fn may_grow(&self) -> bool {
        let taken = self.ghosts.fetch_add(1, Ordering::Relaxed) < self.max_ghosts;
        if !taken {
            self.drop_ghosts(1);
        }
        taken
    }

    pub(crate) fn drop_ghosts(&self, count: u64) {
        self.ghosts.fetch_sub(count, Ordering::Relaxed);
    }

    /// Removes the model's state of a file.
    pub(crate) fn forget_ghosts(&self, file: &File) {
        let count = file.history.lock().clear();
        file.ghosts.store(0, Ordering::Relaxed);
        self.drop_ghosts(count);
    }

    pub(crate) fn take_error(&self) -> Result<()> {
        match self.error.lock().take() {
            None => Ok(()),
            Some(kind) => Err(Error::new(kind).operation("writeback")),
        }
    }
}

impl<L: BelowBuffer + Extents> Keeper<L> {
    fn start_threads(&self) -> Result<()> {
        if self.shared.read_only {
            return Ok(());
        }
        let mut threads = self.threads.lock();
        while threads.len() < self.shared.settings().threads {
            let (shared, number) = (Arc::clone(&self.shared), threads.len());
            let thread = thread::Builder::new()
                .name(format!("nacre-write-{number}"))
                .spawn(move || shared.run_writeback(number))
                .map_err(|error| Error::io("mount", "writeback thread", error))?;
            threads.push(thread);
        }
        Ok(())
    }

    fn stop_threads(&self) {
        self.shared.pool.set_stopping(true);
        for thread in self.threads.lock().drain(..) {
            // A panic of the thread was reported when it happened. The flush that follows writes the rest.
            let _ = thread.join();
        }
    }
}

impl<L: BelowBuffer + Extents> Drop for Keeper<L> {
    fn drop(&mut self) {
        if !self.is_done {
            self.stop_threads();
            // Errors are reported by `unmount`.
            let _ = self.shared.flush_everything();
        }
    }
}
