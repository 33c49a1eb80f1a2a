//! Output for people: results on standard output, also when its reader has gone, and failures in words alone.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use nacre_engine::without_number;

/// Prints. A reader that went away is no failure of ours, and ends no measurement.
pub(crate) fn out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Tells of an event on standard error. A closed or full one ends no measurement.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Tells of something that failed and ends nothing, on standard error.
pub(crate) fn failed(object: impl Display, what: impl Display) {
    note(without_number(format!("{object}: {what}")));
}
