//! The needs of every measurement: sizes, the choice of rows, and where figures go.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::figures::measure::Budget;
use crate::figures::report::{self, Figure};
use crate::place::Workplace;
use crate::report::schema::{Absent, Verdict};
use crate::session::Session;

/// Anything that stops a measurement.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Sizes of the work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Bytes of the large file.
    pub(crate) file: u64,
    /// Bytes of the small one.
    pub(crate) small_file: u64,
    /// Bytes of a device beside the file that it holds.
    pub(crate) slack: u64,
    /// Operations in a batch.
    pub(crate) batch: u64,
    /// Entries of a small directory, extents of a simple file.
    pub(crate) few: u64,
    /// Entries of a large directory, extents of a shattered file.
    pub(crate) many: u64,
    /// Bytes of data in the file systems for the rows of recovery and of index size.
    pub(crate) stored: u64,
}

impl Sizes {
    pub(crate) const FULL: Sizes = Sizes {
        file: 2 << 30,
        small_file: 64 << 20,
        slack: 1 << 30,
        batch: 500,
        few: 1000,
        many: 1_000_000,
        stored: 4 << 30,
    };

    pub(crate) const QUICK: Sizes = Sizes {
        file: 16 << 20,
        small_file: 4 << 20,
        slack: 48 << 20,
        batch: 100,
        few: 100,
        many: 2000,
        stored: 16 << 20,
    };
}

/// Whether a row is meant by a name, or by the beginning of names with a star behind it.
pub(crate) fn matches(pattern: &str, row: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == row, |beginning| row.starts_with(beginning))
}

/// The state of a run.
pub(crate) struct Context<'a> {
    pub(crate) sizes: Sizes,
    pub(crate) budget: Budget,
    pub(crate) place: Rc<Workplace>,
    only: Vec<String>,
    /// Options to add after the name of a row to measure it alone.
    options: String,
    head: Cell<bool>,
    counts: Cell<(usize, usize)>,
    session: RefCell<Session<'a>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(session: Session<'a>, quick: bool, seconds: f64, only: Vec<String>) -> Context<'a> {
        let stop = session.stop();
        let budget = if quick {
            Budget { time: Duration::ZERO, rounds: (3, 3), warm_up: 1, stop }
        } else {
            Budget { time: Duration::from_secs_f64(seconds), rounds: (20, 2000), warm_up: 10, stop }
        };
        Context {
            sizes: if quick { Sizes::QUICK } else { Sizes::FULL },
            budget,
            place: session.place(),
            only,
            options: if quick { " --quick".to_owned() } else { format!(" --seconds {seconds}") },
            head: Cell::new(false),
            counts: Cell::default(),
            session: RefCell::new(session),
        }
    }

    /// Whether a row is wanted: all are, or those that were named.
    pub(crate) fn wants(&self, row: &str) -> bool {
        wants(&self.only, row)
    }

    /// Whether any of these rows is wanted.
    pub(crate) fn wants_any<'b>(&self, rows: impl IntoIterator<Item = &'b str>) -> bool {
        rows.into_iter().any(|row| self.wants(row))
    }

    /// Whether the run is to end: by Ctrl-C, say.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.budget.stop.is_set()
    }

    /// Takes a figure into the report, and prints it. A figure that was being measured when the run was interrupted is
    /// an error, which ends everything.
    pub(crate) fn report(&self, figure: Figure) -> Outcome {
        let name = figure.row.name;
        if self.is_interrupted() {
            return Err(format!("interrupted while measuring {name}").into());
        }
        let (reached, missed) = self.counts.get();
        self.counts.set(match figure.verdict() {
            Verdict::Holds => (reached + 1, missed),
            Verdict::Missed => (reached, missed + 1),
            Verdict::Better | Verdict::Beside | Verdict::Waits => (reached, missed),
        });
        let head = if self.head.replace(true) { String::new() } else { report::head() };
        let command = format!("nacre bench figures --only {name}{}", self.options);
        let mut session = self.session.borrow_mut();
        session.add_as(figure.experiment(command), &format!("{head}{}", figure.line()))?;
        session.show_finished(name);
        Ok(())
    }

    /// Notes which of these rows were wanted and cannot be had here.
    pub(crate) fn leave_out<'b>(&self, rows: impl IntoIterator<Item = &'b str>, why: &str) {
        for row in rows.into_iter().filter(|row| self.wants(row)) {
            let missing = Absent { what: row.to_owned(), why: why.to_owned() };
            self.session.borrow_mut().leave_out(missing);
        }
    }

    /// The session of the rows, and how many have reached and missed their target.
    pub(crate) fn into_results(self) -> (Session<'a>, (usize, usize)) {
        (self.session.into_inner(), self.counts.get())
    }
}

/// Whether a row is one of those that were named, or none was.
pub(crate) fn wants(only: &[String], row: &str) -> bool {
    only.is_empty() || only.iter().any(|only| matches(only, row))
}
