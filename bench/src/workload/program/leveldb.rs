//! LevelDB, through its C library: the benchmarks fillseq, readrandom and readhot of its db_bench, as in section 6.4
//! of paper 002.
//!
//! The library has all its defaults, as in db_bench: a memtable of 4 MB, tables of 2 MB, snappy, writes that are not
//! synced. Values are half as large when compressed. Reads find their database from before and go on where they were, so
//! that they run in slices; `readhot` reads the first hundredth of the keys.

use std::ffi::{CStr, CString, c_char, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::recorder::on_threads;
use super::super::{Length, Measured, Op, Recorder, Round, Value, Workload, scaled};
use super::library::functions;
use super::{KEY, directory, fresh, remove};
use crate::Error;
use crate::spec::Spec;
use crate::target::Target;

/// Its possible names: by Debian, by others, and by the package for building.
const NAMES: [&str; 3] = ["libleveldb.so.1d", "libleveldb.so.1", "libleveldb.so"];
/// Memtables at once, each with its log: one that is filled, and one that is written to a table.
const MEMTABLES: u64 = 2;
/// Bytes of a memtable, by the library's own default.
const WRITE_BUFFER: u64 = 4 << 20;
/// Longer than any job takes.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

type Create = unsafe extern "C" fn() -> *mut c_void;
type Take = unsafe extern "C" fn(*mut c_void);
type Text = *mut *mut c_char;

functions! {
    /// The functions of leveldb/c.h in use.
    Api {
        open: "leveldb_open" unsafe extern "C" fn(*const c_void, *const c_char, Text) -> *mut c_void,
        close: "leveldb_close" Take,
        put: "leveldb_put" unsafe extern "C" fn(
            *mut c_void, *const c_void, *const u8, usize, *const u8, usize, Text,
        ),
        get: "leveldb_get" unsafe extern "C" fn(
            *mut c_void, *const c_void, *const u8, usize, *mut usize, Text,
        ) -> *mut c_char,
        free: "leveldb_free" Take,
        options: "leveldb_options_create" Create,
        options_end: "leveldb_options_destroy" Take,
        make: "leveldb_options_set_create_if_missing" unsafe extern "C" fn(*mut c_void, c_uchar),
        writes: "leveldb_writeoptions_create" Create,
        writes_end: "leveldb_writeoptions_destroy" Take,
        sync: "leveldb_writeoptions_set_sync" unsafe extern "C" fn(*mut c_void, c_uchar),
        reads: "leveldb_readoptions_create" Create,
        reads_end: "leveldb_readoptions_destroy" Take,
    }
}

/// The library, loaded once.
fn api() -> Result<&'static Api, String> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(|| Api::load(&NAMES).map_err(|error| error.to_string())).as_ref().map_err(Clone::clone)
}

/// An open database.
struct Db {
    api: &'static Api,
    db: *mut c_void,
    options: *mut c_void,
    writes: *mut c_void,
    reads: *mut c_void,
}

// SAFETY: LevelDB's doc/index.md: a database may be used by several threads at once without locks; the options are only
// read after they were set.
unsafe impl Send for Db {}
// SAFETY: as above.
unsafe impl Sync for Db {}

impl Db {
    /// Opens it, and makes it where it is not there.
    fn open(path: &Path, sync: bool) -> Result<Db, Error> {
        let api = api()?;
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: constructors without arguments, and setters on their results.
        let (options, writes, reads) = unsafe {
            let (options, writes, reads) = ((api.options)(), (api.writes)(), (api.reads)());
            (api.make)(options, 1);
            (api.sync)(writes, u8::from(sync));
            (options, writes, reads)
        };
        let mut db = Db { api, db: std::ptr::null_mut(), options, writes, reads };
        let mut why = std::ptr::null_mut();
        // SAFETY: the options are alive, the name ends with a NUL, and `why` takes a pointer.
        db.db = unsafe { (api.open)(options, name.as_ptr(), &mut why) };
        db.check(why)?;
        Ok(db)
    }

    /// The error, if there is one.
    fn check(&self, why: *mut c_char) -> Result<(), Error> {
        if why.is_null() {
            return Ok(());
        }
        // SAFETY: LevelDB gives a text that ends with a NUL and that is ours to free.
        let text = unsafe {
            let text = CStr::from_ptr(why).to_string_lossy().into_owned();
            (self.api.free)(why.cast());
            text
        };
        Err(format!("LevelDB: {text}").into())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let mut why = std::ptr::null_mut();
        // SAFETY: the database and its options are alive; both slices are copied before it returns.
        unsafe {
            (self.api.put)(
                self.db,
                self.writes,
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                &mut why,
            );
        }
        self.check(why)
    }

    /// The length of a value; none where there is no such key.
    fn get(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        let (mut why, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: the database and its options are alive, the key is only read; the value is ours to free.
        let value =
            unsafe { (self.api.get)(self.db, self.reads, key.as_ptr(), key.len(), &mut len, &mut why) };
        self.check(why)?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: LevelDB allocated it for us.
        unsafe { (self.api.free)(value.cast()) };
        Ok(Some(len))
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: all of them are from the library, are given back once, and the database before its options.
        unsafe {
            if !self.db.is_null() {
                (self.api.close)(self.db);
            }
            (self.api.options_end)(self.options);
            (self.api.writes_end)(self.writes);
            (self.api.reads_end)(self.reads);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bench {
    FillSeq,
    /// Reads of this share of the keys, as one over it.
    Read(u64),
}

struct LevelDb {
    name: String,
    bench: Bench,
    keys: u64,
    value: usize,
    threads: u64,
    sync: bool,
    values: Vec<u8>,
    /// The database of the reads, open from the preparation on.
    db: Mutex<Option<Db>>,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let benches =
        [("fillseq", Bench::FillSeq), ("readrandom", Bench::Read(1)), ("readhot", Bench::Read(100))];
    let bench = spec.word("bench", "fillseq", &benches)?;
    let name = spec.text("bench", "fillseq")?;
    let threads = spec.number("threads", 1, 1)?;
    // As many for each thread.
    let keys = scaled(spec.number("keys", 200_000, 1)?, scale, threads) / threads * threads;
    let value = spec.size_within("value", "100", 1..=1 << 20)? as usize;
    let sync = spec.word("sync", "0", &[("0", false), ("1", true)])?;
    let values = values(value);
    Ok(Box::new(LevelDb { name, bench, keys, value, threads, sync, values, db: Mutex::default() }))
}

/// Bytes that shrink to a half: of each hundred, fifty are random and stand twice.
fn values(longest: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(301);
    let mut bytes = Vec::with_capacity(longest + (1 << 20));
    while bytes.len() < longest + (1 << 20) {
        let half: [u8; 50] = std::array::from_fn(|_| random.random_range(b' '..b'~'));
        bytes.extend(half);
        bytes.extend(half);
    }
    bytes
}

/// A key as db_bench writes it: sixteen digits.
fn key(number: u64) -> [u8; KEY] {
    let (mut key, mut left) = ([b'0'; KEY], number);
    for digit in key.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

impl LevelDb {
    fn fill(&self, db: &Db, thread: u64, recorder: &mut Recorder) -> Result<(), Error> {
        let share = self.keys / self.threads;
        let mut at = 0;
        for number in thread * share..(thread + 1) * share {
            at = (at + self.value) % (self.values.len() - self.value);
            db.put(&key(number), &self.values[at..at + self.value])?;
            recorder.lap_write(Op::Write, KEY + self.value);
        }
        Ok(())
    }

    fn read(
        &self,
        db: &Db,
        one_of: u64,
        random: &mut SmallRng,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let range = self.keys.div_ceil(one_of);
        loop {
            let number = random.random_range(0..range);
            let Some(len) = db.get(&key(number))? else {
                return Err(format!("LevelDB: key {number} is gone").into());
            };
            if !recorder.lap_read(Op::Read, KEY + len) {
                return Ok(());
            }
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Db>> {
        self.db.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Workload for LevelDb {
    fn describe(&self) -> String {
        let threads =
            if self.threads == 1 { "one thread".to_owned() } else { format!("{} threads", self.threads) };
        let sync = if self.sync { ", synced" } else { "" };
        let (name, keys, value) = (&self.name, self.keys, self.value);
        format!("LevelDB, {name} on {threads}: {keys} keys of {KEY} bytes with {value} bytes{sync}")
    }

    fn bytes(&self) -> u64 {
        self.keys * (KEY + self.value) as u64 * 3 / 2 + (16 << 20)
    }

    fn files(&self) -> u64 {
        self.bytes() / (1 << 20) + 64
    }

    fn logs(&self) -> u64 {
        MEMTABLES * WRITE_BUFFER
    }

    fn value(&self) -> Value {
        Value::Operations
    }

    fn length(&self) -> Length {
        if self.bench == Bench::FillSeq { Length::Whole } else { Length::Slice }
    }

    fn missing(&self) -> Option<String> {
        let why = api().err()?;
        Some(format!("LevelDB's library is not installed (package libleveldb-dev, or libleveldb1d): {why}"))
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        let dir = fresh(target)?;
        if let Bench::Read(_) = self.bench {
            let db = Db::open(&dir, false)?;
            on_threads(1, FOREVER, |_, recorder| {
                (0..self.threads).try_for_each(|thread| self.fill(&db, thread, recorder))
            })?;
            // A database that was just opened has all of it in tables.
            drop(db);
            *self.held() = Some(Db::open(&dir, false)?);
        }
        Ok(())
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let Bench::Read(one_of) = self.bench else {
            let dir = directory(target)?;
            remove(&dir)?;
            let db = Db::open(&dir, self.sync)?;
            return on_threads(self.threads, FOREVER, |thread, recorder| self.fill(&db, thread, recorder));
        };
        let held = self.held();
        let db = held.as_ref().ok_or("LevelDB: nothing was prepared")?;
        on_threads(self.threads, round.slice, |thread, recorder| {
            let mut random = SmallRng::seed_from_u64(round.seed_of(thread));
            self.read(db, one_of, &mut random, recorder)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Db, api, key};

    #[test]
    fn keys_have_sixteen_digits() {
        assert_eq!(&key(148_000_007), b"0000000148000007");
    }

    #[test]
    fn what_was_put_is_there_after_it_was_opened_again() {
        if api().is_err() {
            eprintln!(
                "left out: what_was_put_is_there_after_it_was_opened_again: LevelDB's library is not installed"
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("db"), true).unwrap();
        db.put(b"a", &[7; 5000]).unwrap();
        let why = Db::open(&dir.path().join("db"), true).err().unwrap().to_string();
        assert!(why.contains("LevelDB: ") && why.contains("lock"), "{why}");
        drop(db);
        let db = Db::open(&dir.path().join("db"), false).unwrap();
        assert_eq!((db.get(b"a").unwrap(), db.get(b"b").unwrap()), (Some(5000), None));
    }
}
