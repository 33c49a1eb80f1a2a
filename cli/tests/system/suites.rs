//! Test programs of the world: pjdfstest, fsx, fio and SQLite.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{self, Ground};

/// Tests of pjdfstest that do not run, each with its reason: (how the name contains it, why).
const PJDFSTEST_EXCLUDED: [(&str, &str); 2] = [
    (
        "::erofs_",
        "they remount read-only while the program itself still holds files open for writing, which fails on tmpfs too; \
         the test of read-only mounts beside this one stands in",
    ),
    (
        "link::link_count_max",
        "pathconf(3) knows no LINK_MAX for tmpfs or FUSE, so the program has nothing to test",
    ),
];

const PJDFSTEST_SETTINGS: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utimensat = {}
utime_now = {}

[settings]
naptime = 0.02
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

#[test]
fn pjdfstest() {
    if !harness::can_mount("pjdfstest") || !harness::has_program("pjdfstest", "pjdfstest") {
        return;
    }
    pjdfstest_on(Ground::each("256M"));
}

pub(crate) fn pjdfstest_on(grounds: impl Iterator<Item = Ground>) {
    let second = Ground::tmpfs("16M");
    for ground in grounds {
        let settings = ground.beside().join("pjdfstest.toml");
        fs::write(&settings, PJDFSTEST_SETTINGS).expect("the settings");
        let mut command = harness::program("pjdfstest");
        command.arg("-c").arg(&settings).arg("-p").arg(ground.dir()).arg("-s").arg(second.dir());
        let output = harness::run(&mut command, Duration::from_secs(300)).expect("pjdfstest runs");
        let text = harness::text(&output);
        let name = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        let failed: Vec<String> = text.lines().filter(|line| line.ends_with("FAILED")).map(name).collect();
        let skipped = text.lines().filter(|line| line.ends_with("skipped")).map(name);
        let unexplained: Vec<String> =
            skipped.filter(|name| !PJDFSTEST_EXCLUDED.iter().any(|(part, _)| name.contains(part))).collect();
        assert!(failed.is_empty(), "pjdfstest on {}: {failed:?} failed\n{text}", ground.name());
        assert!(
            unexplained.is_empty(),
            "pjdfstest on {}: left out without a reason: {unexplained:?}",
            ground.name()
        );
        assert!(
            output.status.success() && text.contains("Summary: 0 failed"),
            "on {}:\n{text}",
            ground.name()
        );
    }
}

/// All that fsx can do.
const FSX_SETTINGS: &str = "
flen = 1048576
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 3
sendfile = 3
posix_fadvise = 1
copy_file_range = 3
";

#[test]
fn fsx() {
    if !harness::can_mount("fsx") || !harness::has_program("fsx", "fsx") {
        return;
    }
    fsx_on(Ground::each("64M"), harness::number("NACRE_FSX_SEEDS", 2));
}

pub(crate) fn fsx_on(grounds: impl Iterator<Item = Ground>, seeds: u64) {
    let operations = harness::number("NACRE_FSX_OPERATIONS", 20_000).to_string();
    for ground in grounds {
        let settings = ground.beside().join("fsx.toml");
        fs::write(&settings, FSX_SETTINGS).expect("the settings");
        for seed in 1..=seeds {
            let mut command = harness::program("fsx");
            command.arg("-f").arg(&settings).args(["-N", &operations, "-S", &seed.to_string()]);
            command.arg("-P").arg(ground.beside()).arg(ground.dir().join(format!("fsx{seed}")));
            let output = harness::run(&mut command, Duration::from_secs(600)).expect("fsx runs");
            assert!(
                output.status.success(),
                "fsx, seed {seed}, on {}:\n{}",
                ground.name(),
                harness::text(&output)
            );
        }
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !harness::can_mount("fio") || !harness::has_program("fio", "fio") {
        return;
    }
    fio_on(Ground::each("256M"));
}

pub(crate) fn fio_on(grounds: impl Iterator<Item = Ground>) {
    // Mappings are checked in whole pages.
    let engines = [("psync", ["512-64k", "512"]), ("mmap", ["4k-64k", "4k"])];
    for mut ground in grounds {
        for (engine, [sizes, align]) in engines {
            let job = |dir: &Path, verify_only: bool| {
                let mut command = harness::program("fio");
                command.arg("--name=verify").arg(format!("--directory={}", dir.display()));
                command.arg(format!("--filename=fio.{engine}")).arg(format!("--ioengine={engine}"));
                command.arg(format!("--bsrange={sizes}")).arg(format!("--blockalign={align}"));
                command.args([
                    "--rw=randwrite",
                    "--size=32M",
                    "--fsync=64",
                    "--verify=crc32c",
                    "--verify_fatal=1",
                ]);
                command.args(["--randseed=20100", "--verify_state_save=0"]);
                if verify_only {
                    command.arg("--verify_only=1");
                }
                command.current_dir(std::env::temp_dir());
                command
            };
            println!("fio, {engine} on {}", ground.name());
            harness::succeed(&mut job(&ground.dir(), false), Duration::from_secs(120));
            ground.remount();
            harness::succeed(&mut job(&ground.dir(), true), Duration::from_secs(120));
        }
    }
}

/// Runs SQL with the sqlite3 shell and returns what it prints.
fn sql(database: &Path, statements: &str) -> String {
    let mut command = harness::program("sqlite3");
    command.arg("-bail").arg("-cmd").arg(".timeout 60000").arg(database).arg(statements);
    harness::succeed(&mut command, Duration::from_secs(120)).trim().to_owned()
}

#[test]
fn sqlite_in_wal_mode_with_two_processes() {
    if !harness::can_mount("SQLite") || !harness::has_program("SQLite", "sqlite3") {
        return;
    }
    sqlite_on(Ground::each("128M"));
}

pub(crate) fn sqlite_on(grounds: impl Iterator<Item = Ground>) {
    const ROWS: u32 = 400;
    for mut ground in grounds {
        let database = ground.dir().join("test.db");
        // WAL needs shared memory between processes: where that does not work, SQLite answers another mode.
        let mode = sql(
            &database,
            "PRAGMA journal_mode=wal; CREATE TABLE t(writer, n, body, PRIMARY KEY(writer, n));",
        );
        assert_eq!(mode, "wal", "on {}", ground.name());
        let writers: Vec<_> = (1..=2)
            .map(|writer| {
                let script = ground.beside().join(format!("writer{writer}.sql"));
                let insert =
                    |n| format!("INSERT INTO t VALUES({writer}, {n}, randomblob(abs(random()) % 3000));\n");
                let update = |n| format!("UPDATE t SET body = randomblob(100) WHERE n = {n} / 2;\n");
                let lines: String = (0..ROWS).map(|n| insert(n) + &update(n)).collect();
                fs::write(&script, format!("PRAGMA synchronous=full;\n{lines}")).expect("the script");
                let input = fs::File::open(&script).expect("the script");
                let mut command: Command = harness::program("sqlite3");
                command.arg("-bail").arg("-cmd").arg(".timeout 60000").arg(&database);
                command.stdin(input).stdout(Stdio::null()).stderr(Stdio::inherit());
                command.spawn().expect("sqlite3 runs")
            })
            .collect();
        for writer in writers {
            let status = harness::wait(writer, Duration::from_secs(180)).expect("a writer ends");
            assert!(status.success(), "a writer on {}: {status}", ground.name());
        }
        let check = "PRAGMA integrity_check; SELECT count(*) FROM t;";
        assert_eq!(sql(&database, check), format!("ok\n{}", 2 * ROWS), "on {}", ground.name());
        ground.remount();
        assert_eq!(
            sql(&database, check),
            format!("ok\n{}", 2 * ROWS),
            "on {} after a remount",
            ground.name()
        );
    }
}
