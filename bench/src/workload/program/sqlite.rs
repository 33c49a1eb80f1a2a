//! SQLite, through its library: transactions that insert, update or read rows of one table.
//!
//! `journal` and `sync` are its pragmas; all else is SQLite's default. An operation is a transaction of `rows` rows. An
//! insert fills a new database in a round; updates and reads find theirs from before, and run in slices.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::recorder::on_threads;
use super::super::set::buffer;
use super::super::{Length, Measured, Op, Recorder, Round, Value, Workload, scaled};
use super::fresh;
use super::library::functions;
use crate::Error;
use crate::spec::Spec;
use crate::target::Target;

const NAMES: [&str; 2] = ["libsqlite3.so.0", "libsqlite3.so"];
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// SQLITE_OK, SQLITE_ROW, SQLITE_DONE.
const OK: c_int = 0;
const ROW: c_int = 100;
const DONE: c_int = 101;
/// SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE.
const OPEN: c_int = 2 | 4;

type Handle = *mut c_void;

functions! {
    /// The functions of sqlite3.h in use.
    Api {
        open: "sqlite3_open_v2" unsafe extern "C" fn(*const c_char, *mut Handle, c_int, *const c_char) -> c_int,
        close: "sqlite3_close_v2" unsafe extern "C" fn(Handle) -> c_int,
        message: "sqlite3_errmsg" unsafe extern "C" fn(Handle) -> *const c_char,
        prepare: "sqlite3_prepare_v2" unsafe extern "C" fn(
            Handle, *const c_char, c_int, *mut Handle, *mut *const c_char,
        ) -> c_int,
        finalize: "sqlite3_finalize" unsafe extern "C" fn(Handle) -> c_int,
        bind_number: "sqlite3_bind_int64" unsafe extern "C" fn(Handle, c_int, i64) -> c_int,
        bind_bytes: "sqlite3_bind_blob" unsafe extern "C" fn(
            Handle, c_int, *const c_void, c_int, *const c_void,
        ) -> c_int,
        step: "sqlite3_step" unsafe extern "C" fn(Handle) -> c_int,
        reset: "sqlite3_reset" unsafe extern "C" fn(Handle) -> c_int,
        column_bytes: "sqlite3_column_bytes" unsafe extern "C" fn(Handle, c_int) -> c_int,
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
    db: Handle,
}

// SAFETY: SQLite's default threading mode lets a connection be used by any thread, one after the other or at once
// (sqlite.org/threadsafe.html); here it stands in a mutex besides.
unsafe impl Send for Db {}

impl Db {
    fn open(path: &Path, journal: &str, sync: &str) -> Result<Db, Error> {
        let api = api()?;
        let name = CString::new(path.as_os_str().as_bytes())?;
        let mut db = std::ptr::null_mut();
        // SAFETY: the name ends with a NUL, and `db` takes a handle, also where it fails.
        let result = unsafe { (api.open)(name.as_ptr(), &mut db, OPEN, std::ptr::null()) };
        let db = Db { api, db };
        db.check(result, OK)?;
        db.run(&format!("pragma journal_mode = {journal}"))?;
        db.run(&format!("pragma synchronous = {sync}"))?;
        Ok(db)
    }

    fn check(&self, result: c_int, wanted: c_int) -> Result<(), Error> {
        if result == wanted {
            return Ok(());
        }
        // SAFETY: the handle is alive, and the text is valid until the next call on it.
        let why = unsafe { CStr::from_ptr((self.api.message)(self.db)).to_string_lossy().into_owned() };
        Err(format!("SQLite: {why} (code {result})").into())
    }

    /// Runs a statement to its end.
    fn run(&self, text: &str) -> Result<(), Error> {
        self.prepare(text)?.run(&[], None).map(drop)
    }

    fn prepare(&self, text: &str) -> Result<Statement<'_>, Error> {
        let text = CString::new(text)?;
        let mut statement = std::ptr::null_mut();
        // SAFETY: the handle is alive and the text ends with a NUL, where SQLite stops reading.
        let result =
            unsafe { (self.api.prepare)(self.db, text.as_ptr(), -1, &mut statement, std::ptr::null_mut()) };
        self.check(result, OK)?;
        Ok(Statement { db: self, statement })
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: all statements borrow the database, so that they are gone; it is closed once.
        unsafe {
            (self.api.close)(self.db);
        }
    }
}

/// A statement that can be run again and again.
struct Statement<'a> {
    db: &'a Db,
    statement: Handle,
}

impl Statement<'_> {
    /// Runs it with these numbers as its first parameters and bytes as the next; the bytes of the first column of its rows.
    fn run(&self, numbers: &[i64], bytes: Option<&[u8]>) -> Result<u64, Error> {
        let (api, statement) = (self.db.api, self.statement);
        for (at, number) in numbers.iter().enumerate() {
            // SAFETY: the statement is alive and not running.
            self.db.check(unsafe { (api.bind_number)(statement, at as c_int + 1, *number) }, OK)?;
        }
        if let Some(bytes) = bytes {
            let at = numbers.len() as c_int + 1;
            let (data, len) = (bytes.as_ptr().cast(), bytes.len() as c_int);
            // SAFETY: as above; without a destructor SQLite keeps the pointer, and uses it only in the steps below, as
            // each run binds again.
            self.db.check(unsafe { (api.bind_bytes)(statement, at, data, len, std::ptr::null()) }, OK)?;
        }
        let mut got = 0;
        loop {
            // SAFETY: the statement is alive, and its bound values as well.
            match unsafe { (api.step)(statement) } {
                // SAFETY: there is a row, and a column in it.
                ROW => got += unsafe { (api.column_bytes)(statement, 0) }.max(0) as u64,
                result => {
                    // SAFETY: the statement is alive. This returns the result of the step.
                    unsafe { (api.reset)(statement) };
                    return self.db.check(result, DONE).map(|()| got);
                }
            }
        }
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        // SAFETY: it is finalized once, before its database is closed.
        unsafe {
            (self.db.api.finalize)(self.statement);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bench {
    Insert,
    Update,
    Read,
}

struct Sqlite {
    bench: Bench,
    journal: &'static str,
    sync: &'static str,
    keys: u64,
    value: usize,
    rows: u64,
    /// The database of this round; that of updates and reads is open from the preparation on.
    db: Mutex<Option<Db>>,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let benches = [("insert", Bench::Insert), ("update", Bench::Update), ("read", Bench::Read)];
    let same = |word: &'static str| (word, word);
    Ok(Box::new(Sqlite {
        bench: spec.word("bench", "insert", &benches)?,
        journal: spec.word(
            "journal",
            "wal",
            &["wal", "delete", "truncate", "persist", "memory", "off"].map(same),
        )?,
        sync: spec.word("sync", "full", &["full", "normal", "off", "extra"].map(same))?,
        keys: scaled(spec.number("keys", 10_000, 1)?, scale, 1),
        value: spec.size_within("value", "100", 1..=1 << 20)? as usize,
        rows: spec.number("rows", 1, 1)?,
        db: Mutex::default(),
    }))
}

impl Sqlite {
    fn open(&self, dir: &Path) -> Result<Db, Error> {
        let db = Db::open(&dir.join("test.db"), self.journal, self.sync)?;
        db.run("create table if not exists t(k integer primary key, v blob)")?;
        Ok(db)
    }

    fn insert(&self, db: &Db, rows: u64, recorder: &mut Recorder) -> Result<(), Error> {
        let data = buffer(self.value);
        let (begin, commit) = (db.prepare("begin")?, db.prepare("commit")?);
        let insert = db.prepare("insert into t values (?, ?)")?;
        recorder.skip();
        for first in (0..self.keys).step_by(rows as usize) {
            let count = rows.min(self.keys - first);
            begin.run(&[], None)?;
            for key in first..first + count {
                insert.run(&[key as i64], Some(&data))?;
            }
            commit.run(&[], None)?;
            recorder.lap_write(Op::Write, count as usize * self.value);
        }
        Ok(())
    }

    /// Inserts all rows, so many in a transaction.
    fn fill(&self, rows: u64) -> Result<Measured, Error> {
        on_threads(1, FOREVER, |_, recorder| {
            let held = self.held();
            self.insert(held.as_ref().ok_or("SQLite: nothing was prepared")?, rows, recorder)
        })
    }

    fn work(&self, db: &Db, random: &mut SmallRng, recorder: &mut Recorder) -> Result<(), Error> {
        let data = buffer(2 * self.value);
        let (begin, commit) = (db.prepare("begin")?, db.prepare("commit")?);
        let update = db.prepare("update t set v = ?2 where k = ?1")?;
        let read = db.prepare("select v from t where k = ?")?;
        recorder.skip();
        loop {
            let mut bytes = 0;
            begin.run(&[], None)?;
            for _ in 0..self.rows {
                let key = random.random_range(0..self.keys) as i64;
                if self.bench == Bench::Update {
                    let at = random.random_range(0..self.value);
                    update.run(&[key], Some(&data[at..at + self.value]))?;
                    bytes += self.value;
                } else {
                    bytes += read.run(&[key], None)? as usize;
                }
            }
            commit.run(&[], None)?;
            let goes_on = match self.bench {
                Bench::Read => recorder.lap_read(Op::Read, bytes),
                _ => recorder.lap_write(Op::Write, bytes),
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Db>> {
        self.db.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Workload for Sqlite {
    fn describe(&self) -> String {
        let what = match self.bench {
            Bench::Insert => "inserts of",
            Bench::Update => "random updates of",
            Bench::Read => "random reads of",
        };
        format!(
            "SQLite, {what} {} rows of {} bytes, {} a transaction, journal {}, synchronous {}",
            self.keys, self.value, self.rows, self.journal, self.sync
        )
    }

    fn bytes(&self) -> u64 {
        self.keys * (self.value as u64 + 32) * 2 + (16 << 20)
    }

    fn files(&self) -> u64 {
        8
    }

    fn value(&self) -> Value {
        Value::Operations
    }

    fn length(&self) -> Length {
        if self.bench == Bench::Insert { Length::Whole } else { Length::Slice }
    }

    fn missing(&self) -> Option<String> {
        Some(format!("SQLite's library is not installed (package libsqlite3-0): {}", api().err()?))
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        let db = self.open(&fresh(target)?)?;
        *self.held() = Some(db);
        if self.bench != Bench::Insert {
            self.fill(self.keys)?;
        }
        Ok(())
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        if self.bench == Bench::Insert {
            // Closed before its files go.
            *self.held() = None;
            let db = self.open(&fresh(target)?)?;
            *self.held() = Some(db);
            return self.fill(self.rows);
        }
        on_threads(1, round.slice, |thread, recorder| {
            let held = self.held();
            let db = held.as_ref().ok_or("SQLite: nothing was prepared")?;
            self.work(db, &mut SmallRng::seed_from_u64(round.seed_of(thread)), recorder)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Db, api};

    #[test]
    fn rows_are_written_and_read_and_mistakes_are_told() {
        if api().is_err() {
            eprintln!(
                "left out: rows_are_written_and_read_and_mistakes_are_told: SQLite's library is not installed"
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("db"), "delete", "full").unwrap();
        db.run("create table t(k integer primary key, v blob)").unwrap();
        let insert = db.prepare("insert into t values (?, ?)").unwrap();
        insert.run(&[3], Some(&[1; 70])).unwrap();
        assert!(insert.run(&[3], Some(&[1; 70])).unwrap_err().to_string().contains("UNIQUE"));
        assert_eq!(db.prepare("select v from t where k = ?").unwrap().run(&[3], None).unwrap(), 70);
        assert!(db.run("nonsense").unwrap_err().to_string().contains("syntax error"));
        assert!(Db::open(&dir.path().join("none/db"), "delete", "full").is_err());
    }
}
