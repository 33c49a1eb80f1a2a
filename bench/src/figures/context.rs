//! What every measurement needs: sizes, the choice of rows, and where figures go.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Duration;

use crate::figures::measure::Budget;
use crate::figures::report::{self, Figure};
use crate::place::Workplace;
use crate::run::stop::Stop;

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
    /// Bytes of data in the file systems that are recovered and whose index is weighed.
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
pub(crate) struct Context {
    pub(crate) sizes: Sizes,
    pub(crate) budget: Budget,
    pub(crate) place: Workplace,
    only: Vec<String>,
    print: bool,
    head: Cell<bool>,
    figures: RefCell<Vec<Figure>>,
    left_out: RefCell<Vec<String>>,
}

impl Context {
    pub(crate) fn new(
        quick: bool,
        seconds: f64,
        only: Vec<String>,
        print: bool,
        keep: bool,
    ) -> io::Result<Context> {
        let stop = Stop::on_signals()?;
        let budget = if quick {
            Budget { time: Duration::ZERO, rounds: (3, 3), warm_up: 1, stop }
        } else {
            Budget { time: Duration::from_secs_f64(seconds), rounds: (20, 2000), warm_up: 10, stop }
        };
        Ok(Context {
            sizes: if quick { Sizes::QUICK } else { Sizes::FULL },
            budget,
            place: Workplace::new(keep)?,
            only,
            print,
            head: Cell::new(false),
            figures: RefCell::default(),
            left_out: RefCell::default(),
        })
    }

    /// Whether a row is wanted: all are, or those that were named.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| matches(only, row))
    }

    /// Whether any of these rows is wanted.
    pub(crate) fn wants_any<'a>(&self, rows: impl IntoIterator<Item = &'a str>) -> bool {
        rows.into_iter().any(|row| self.wants(row))
    }

    /// Whether the run is to end: by Ctrl-C, say.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.budget.stop.is_set()
    }

    /// Takes a figure into the report, and prints it. What was being measured when the run was interrupted is none: that
    /// is an error, which ends everything.
    pub(crate) fn report(&self, figure: Figure) -> Outcome {
        if self.is_interrupted() {
            return Err(format!("interrupted while measuring {}", figure.name).into());
        }
        if self.print {
            let mut out = io::stdout().lock();
            if !self.head.replace(true) {
                report::print_head(&mut out)?;
            }
            report::print_figure(&mut out, &figure)?;
        }
        self.figures.borrow_mut().push(figure);
        Ok(())
    }

    /// Notes what was not measured.
    pub(crate) fn leave_out(&self, what: impl Into<String>) {
        let what = what.into();
        if self.print {
            println!("left out: {what}");
        }
        self.left_out.borrow_mut().push(what);
    }

    pub(crate) fn into_results(self) -> (Vec<Figure>, Vec<String>) {
        (self.figures.into_inner(), self.left_out.into_inner())
    }
}
