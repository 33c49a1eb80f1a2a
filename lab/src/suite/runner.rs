//! Runs the cases and reports the results.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nacre_engine::FileKind;

use super::fs::Fs;
use super::target::{Need, Outcome, Target};

/// One named behaviour.
pub struct Case {
    /// Its name, also that of the directory that it runs in.
    pub name: &'static str,
    /// The capabilities that the target must have.
    pub needs: &'static [Need],
    /// Panics when the behaviour is another.
    pub run: fn(&mut Fs<'_>),
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that were left out, with the reason.
    pub left_out: Vec<(&'static str, String)>,
    /// Cases that failed, with the message.
    pub failed: Vec<(&'static str, String)>,
}

impl Report {
    /// Panics with all failures unless every case that could run has passed.
    pub fn assert_clean(&self) {
        let failures: Vec<_> = self.failed.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        assert!(
            failures.is_empty(),
            "{} of {} cases failed:\n{}",
            failures.len(),
            failures.len() + self.passed,
            failures.join("\n")
        );
        assert!(self.passed > 0, "no case ran");
    }
}

/// Runs every case of the table on a target, or those whose name contains NACRE_CASE. `exclusions` are names of cases
/// to leave out, each with the reason.
pub fn run(target: &mut dyn Target, cases: &[Case], exclusions: &[(&str, &str)]) -> Report {
    for (excluded, _) in exclusions {
        assert!(cases.iter().any(|case| case.name == *excluded), "no case is named {excluded}");
    }
    let wanted = std::env::var("NACRE_CASE").unwrap_or_default();
    let mut report = Report::default();
    println!("the suite on {}", target.describe());
    for case in cases.iter().filter(|case| case.name.contains(&wanted)) {
        if let Some(why) = reason_to_leave_out(target, case, exclusions) {
            println!("  left out  {}: {why}", case.name);
            report.left_out.push((case.name, why));
            continue;
        }
        let start = std::time::Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| run_one(target, case)));
        match result {
            Ok(()) => {
                println!("  passed    {} ({} ms)", case.name, start.elapsed().as_millis());
                report.passed += 1;
            }
            Err(panic) => {
                let why = message_of(panic.as_ref());
                println!("  FAILED    {}: {why}", case.name);
                report.failed.push((case.name, why));
                // Leftovers of the case must not disturb the others; whether this works does not matter any more.
                let _ = catch_unwind(AssertUnwindSafe(|| remove_tree(target, case.name.as_bytes())));
            }
        }
    }
    report
}

fn reason_to_leave_out(target: &dyn Target, case: &Case, exclusions: &[(&str, &str)]) -> Option<String> {
    let excluded = exclusions.iter().find(|(name, _)| *name == case.name).map(|(_, why)| *why);
    excluded.or_else(|| case.needs.iter().find_map(|need| target.lacks(*need))).map(str::to_owned)
}

fn run_one(target: &mut dyn Target, case: &Case) {
    target.mkdir(case.name.as_bytes(), 0o755).expect("a directory for the case");
    (case.run)(&mut Fs::new(target, case.name));
    remove_tree(target, case.name.as_bytes()).expect("the case's directory can be removed");
}

/// Removes a directory and everything below it.
pub(super) fn remove_tree(target: &dyn Target, path: &[u8]) -> Outcome<()> {
    loop {
        let entries = target.read_dir(path, 0, 1000)?;
        if entries.is_empty() {
            return target.rmdir(path);
        }
        for entry in entries {
            let inner = [path, b"/", &entry.name].concat();
            if entry.kind == FileKind::Directory {
                remove_tree(target, &inner)?;
            } else {
                target.unlink(&inner)?;
            }
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "it panicked without a message".to_owned())
}
