//! Lines on standard error.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Prints a line that is no result. A closed or full standard error changes neither the command nor its exit code.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "nacre: {text}");
}
