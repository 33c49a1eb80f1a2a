//! PostgreSQL under pgbench, in the place of the DBT2 that paper 000 runs on it. Both are transactions with a few
//! updates and one commit each, but pgbench's are TPC-B's and not TPC-C's.
//!
//! The server's data lies on the target. It runs as user postgres when this is run by root, and listens to nothing but
//! a socket without a file. It has PostgreSQL's defaults with three exceptions. Its buffers have 32 MB, as in the
//! paper's version. Its log is no longer than twice the data at its first size, because it would otherwise be most of
//! the space of a small database. Autovacuum is off. A round starts it, has pgbench run its transactions, and stops
//! it; the figure is pgbench's own for the transactions.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nacre_engine::size;

use super::super::recorder::Times;
use super::super::{Length, Measured, Op, Round, Value, Workload, scaled};
use super::child::{Server, find, run};
use super::{directory, fresh};
use crate::Error;
use crate::place::Scratch;
use crate::spec::Spec;
use crate::target::Target;

/// Accounts of one unit of pgbench's scale, and about the space that they take on disk with all that belongs to them.
const ACCOUNTS: u64 = 100_000;
const UNIT: u64 = 16 << 20;
/// Bytes of a new cluster.
const CLUSTER: u64 = 64 << 20;
/// The log between two checkpoints: PostgreSQL's default, and the least that leaves it room.
const MOST_LOG: u64 = 1 << 30;
const LEAST_LOG: u64 = 128 << 20;

struct Pgbench {
    units: u64,
    threads: u64,
    transactions: u64,
    sync: bool,
    buffers: u64,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let threads = spec.number("threads", 1, 1)?;
    Ok(Box::new(Pgbench {
        units: scaled(spec.number("keys", 100_000, 1)?, scale, 1).div_ceil(ACCOUNTS),
        threads,
        transactions: scaled(spec.number("transactions", 1000, 1)?, scale, threads),
        sync: spec.word("sync", "1", &[("0", false), ("1", true)])?,
        buffers: spec.size("buffers", "32m")?.max(1 << 20),
    }))
}

/// Where Debian puts PostgreSQL's programs; the newest first.
fn directories() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    found.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    found.into_iter().map(|(_, path)| path).collect()
}

fn program(name: &str) -> Result<PathBuf, String> {
    // Debian has a script in PATH that looks for them there.
    let found = directories().iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    found.or_else(|| find(name)).ok_or_else(|| format!("{name} is not installed (package postgresql)"))
}

/// User and group of the server; none for the one that runs this. It refuses to be root.
fn user() -> Result<Option<(u32, u32)>, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let ids = line.and_then(|line| {
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    ids.map(Some).ok_or_else(|| "there is no user postgres (package postgresql)".into())
}

/// A program as the server's user.
fn command(name: &str) -> Result<Command, Error> {
    let mut command = Command::new(program(name)?);
    // It may be run from where that user must not be.
    command.current_dir("/").env("LC_ALL", "C");
    if let Some((user, group)) = user()? {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// The output of pgbench at its end, and of each transaction.
#[derive(Debug, PartialEq)]
struct Said {
    transactions: u64,
    failed: u64,
    per_second: f64,
}

impl Said {
    fn parse(output: &str) -> Option<Said> {
        let after = |what: &str| output.lines().find_map(|line| line.strip_prefix(what));
        let number =
            |text: &str| text.trim().split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok();
        Some(Said {
            transactions: number(after("number of transactions actually processed:")?)?,
            // Older ones have no such line.
            failed: after("number of failed transactions:").and_then(number).unwrap_or(0),
            per_second: after("tps =")?.split_whitespace().next()?.parse().ok()?,
        })
    }
}

/// Times of transactions in pgbench's log: the third word of each line, in microseconds.
fn times(log: &str, times: &mut Times) {
    for line in log.lines() {
        if let Some(Ok(micros)) = line.split(' ').nth(2).map(str::parse::<f64>) {
            times.add_many(Op::Other, micros * 1e3, 1);
        }
    }
}

impl Pgbench {
    /// A socket without a file, of this process alone.
    fn socket() -> String {
        format!("@nacre-bench-{}", std::process::id())
    }

    fn start(&self, data: &Path) -> Result<Server, Error> {
        let mut postgres = command("postgres")?;
        postgres.arg("-D").arg(data);
        let settings = [
            "listen_addresses=".to_owned(),
            format!("unix_socket_directories={}", Self::socket()),
            format!("shared_buffers={}kB", self.buffers >> 10),
            format!("synchronous_commit={}", if self.sync { "on" } else { "off" }),
            "autovacuum=off".to_owned(),
            format!("max_wal_size={}kB", self.log() >> 10),
            format!("max_connections={}", self.threads + 8),
        ];
        settings.iter().for_each(|setting| {
            postgres.args(["-c", setting]);
        });
        let mut server = Server::start(&mut postgres, libc::SIGINT, libc::SIGQUIT)?;
        let ready = program("pg_isready")?;
        server.wait_until(|| {
            let mut command = Command::new(&ready);
            command.args(["-q", "-h", &Self::socket()]).stdout(Stdio::null()).stderr(Stdio::null());
            Ok(command.status()?.success())
        })?;
        Ok(server)
    }

    /// Bytes of the log between two checkpoints at most.
    fn log(&self) -> u64 {
        (self.units * UNIT * 2).clamp(LEAST_LOG, MOST_LOG)
    }

    fn pgbench(&self) -> Result<Command, Error> {
        let mut command = Command::new(program("pgbench")?);
        command.env("LC_ALL", "C").args(["-h", &Self::socket(), "-U", "postgres"]);
        Ok(command)
    }
}

impl Workload for Pgbench {
    fn describe(&self) -> String {
        format!(
            "PostgreSQL, {} of pgbench's transactions of {} clients on {} accounts, {} of buffers, {}",
            self.transactions,
            self.threads,
            self.units * ACCOUNTS,
            size::print(self.buffers),
            if self.sync { "synced" } else { "not synced" }
        )
    }

    fn bytes(&self) -> u64 {
        // A checkpoint may begin a little late.
        self.units * UNIT * 2 + CLUSTER + self.log() / 4 * 5
    }

    fn files(&self) -> u64 {
        2000
    }

    fn value(&self) -> Value {
        Value::Seconds
    }

    fn length(&self) -> Length {
        Length::Whole
    }

    fn missing(&self) -> Option<String> {
        let programs = ["postgres", "initdb", "pg_isready", "pgbench"];
        programs.iter().find_map(|name| program(name).err()).or_else(|| user().err())
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        let data = fresh(target)?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        if let Some((user, group)) = user()? {
            chown(&data, Some(user), Some(group))?;
        }
        // Not synced, as nothing of it is measured.
        run(command("initdb")?.arg("-D").arg(&data).args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-N",
            "--no-locale",
        ]))?;
        let server = self.start(&data)?;
        run(self.pgbench()?.args(["-i", "-q", "-s", &self.units.to_string(), "postgres"]))?;
        server.stop()
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let data = directory(target)?;
        let scratch = Scratch::new()?;
        let server = self.start(&data)?;
        let mut pgbench = self.pgbench()?;
        let count = (self.transactions / self.threads).to_string();
        let (clients, jobs) = (self.threads.to_string(), self.threads.min(2).to_string());
        pgbench.args(["-c", &clients, "-j", &jobs, "-t", &count, "-l"]);
        pgbench.arg(format!("--random-seed={}", round.seed_of(0) >> 1));
        pgbench.arg(format!("--log-prefix={}", scratch.path().join("log").display())).arg("postgres");
        let result = run(&mut pgbench);
        server.stop()?;
        let (output, took) = result?;
        let said = Said::parse(&output).ok_or_else(|| format!("pgbench has no result: {output}"))?;
        if said.failed > 0 {
            return Err(format!("pgbench: {} transactions failed", said.failed).into());
        }
        let mut all = Times::default();
        for entry in fs::read_dir(scratch.path())? {
            times(&fs::read_to_string(entry?.path())?, &mut all);
        }
        Ok(Measured {
            operations: said.transactions,
            nanos: said.transactions as f64 / said.per_second.max(f64::MIN_POSITIVE) * 1e9,
            times: all,
            told: [("program.seconds".to_owned(), took.as_secs_f64())].into(),
            ..Measured::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Said, times};
    use crate::workload::recorder::{Op, Times};

    /// pgbench of PostgreSQL 15.
    const OUTPUT: &str = "pgbench (15.18)\ntransaction type: <builtin: TPC-B (sort of)>\nscaling factor: 1\n\
        number of transactions per client: 60\nnumber of transactions actually processed: 120/120\n\
        number of failed transactions: 0 (0.000%)\nlatency average = 31.530 ms\ninitial connection time = 114.851 ms\n\
        tps = 63.432155 (without initial connection time)\n";

    #[test]
    fn its_output_is_understood() {
        let said = Said { transactions: 120, failed: 0, per_second: 63.432_155 };
        assert_eq!(Said::parse(OUTPUT), Some(said));
        assert_eq!(Said::parse("pgbench: error: connection to server failed"), None);
        let mut all = Times::default();
        times("0 0 4821 0 1669000000 123456\n1 0 5210 0 1669000000 223456\n", &mut all);
        let (op, histogram) = all.iter().next().unwrap();
        assert_eq!((op, histogram.len()), (Op::Other, 2));
        let mean = histogram.mean() * crate::clock::nanos_per_tick() / 1e3;
        assert!((mean / 5015.5 - 1.0).abs() < 0.01, "{mean}");
    }
}
