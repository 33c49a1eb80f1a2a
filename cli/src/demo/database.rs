//! SQLite in WAL mode under load: a transaction for each row, and a record of acknowledged rows.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::failure::Failure;

/// A running shell of SQLite.
pub(crate) struct Database {
    path: PathBuf,
    shell: Child,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Database {
    /// Starts to insert rows; `None` if the program sqlite3 is not installed.
    pub(crate) fn start(dir: &Path) -> Result<Option<Database>, Failure> {
        let path = dir.join("demo.db");
        let failed = |error: io::Error| Failure::new("SQLite", path.display(), error);
        let mut command = Command::new("sqlite3");
        // Its messages when the file system dies are expected.
        command.arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shell = match command.spawn() {
            Ok(shell) => shell,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut input = shell.stdin.take().expect("a pipe was asked for");
        let output = shell.stdout.take().expect("a pipe was asked for");
        input
            .write_all(b".bail on\nPRAGMA journal_mode=wal;\nPRAGMA synchronous=full;\nCREATE TABLE t(n PRIMARY KEY, body);\n")
            .map_err(failed)?;
        let mut lines = BufReader::new(output).lines();
        match lines.next() {
            Some(Ok(mode)) if mode == "wal" => {}
            other => {
                let cause = format!("WAL mode was refused, it answered {other:?}");
                return Err(Failure::new("SQLite", path.display(), cause));
            }
        }
        let acknowledged = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let counter = Arc::clone(&acknowledged);
        let reader = thread::spawn(move || {
            // The shell prints the number of a row only after the transaction has returned.
            for number in lines.map_while(Result::ok).filter_map(|line| line.parse().ok()) {
                counter.store(number, Ordering::Relaxed);
            }
        });
        let stopped = Arc::clone(&stop);
        let writer = thread::spawn(move || {
            for number in 1u64.. {
                let line = format!("INSERT INTO t VALUES({number}, randomblob(1000));\nSELECT {number};\n");
                if stopped.load(Ordering::Relaxed) || input.write_all(line.as_bytes()).is_err() {
                    return;
                }
            }
        });
        Ok(Some(Database { path, shell, acknowledged, stop, threads: vec![reader, writer] }))
    }

    /// Ends the shell. Returns the number of transactions that it acknowledged.
    pub(crate) fn acknowledged(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        // The file system is dead and the shell may be, too.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        for thread in self.threads.drain(..) {
            thread.join().expect("the threads of the demo do not panic");
        }
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Checks that the database is intact, and has every acknowledged row. Returns the result in words.
    pub(crate) fn verify(mut self) -> Result<String, Failure> {
        let acknowledged = self.acknowledged();
        let failed = |cause: String| Failure::new("verify", self.path.display(), cause);
        File::open(&self.path).map_err(|error| failed(error.to_string()))?;
        let question = format!("PRAGMA integrity_check; SELECT count(*) FROM t WHERE n <= {acknowledged};");
        let output = Command::new("sqlite3")
            .arg(&self.path)
            .arg(&question)
            .output()
            .map_err(|error| failed(error.to_string()))?;
        let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if answer == format!("ok\n{acknowledged}") {
            return Ok(format!(
                "SQLite: {acknowledged} acknowledged transactions, all there, integrity check ok"
            ));
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(failed(format!("{acknowledged} rows were acknowledged, it answers {answer:?} {said}")))
    }
}
