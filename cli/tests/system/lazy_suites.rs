//! The test programs of the world on mounts with our write buffer; `suites` has them on those without, beside their control.
//!
//! On the first such mount only, unless `NACRE_ALL_MOUNTS` is set.

use crate::harness::{self, Ground};
use crate::suites;

/// Mounts where there is no time for all.
const USUAL: usize = 1;

fn can_run(test: &str, program: &str) -> bool {
    harness::can_mount(test) && harness::has_program(test, program)
}

#[test]
fn pjdfstest() {
    if can_run("pjdfstest on lazy mounts", "pjdfstest") {
        suites::pjdfstest_on(Ground::lazy("256M", USUAL));
    }
}

#[test]
fn fsx() {
    if can_run("fsx on lazy mounts", "fsx") {
        suites::fsx_on(Ground::lazy("64M", USUAL), harness::number("NACRE_FSX_SEEDS", 1));
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    if can_run("fio on lazy mounts", "fio") {
        suites::fio_on(Ground::lazy("256M", USUAL));
    }
}

#[test]
fn sqlite_in_wal_mode_with_two_processes() {
    if can_run("SQLite on lazy mounts", "sqlite3") {
        suites::sqlite_on(Ground::lazy("128M", USUAL));
    }
}
