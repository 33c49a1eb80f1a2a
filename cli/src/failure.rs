//! How a command fails: operation, object, cause and way out on standard error, and an exit code.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// The operation failed.
pub(crate) const EXIT_FAILURE: u8 = 1;
/// The command line was wrong.
pub(crate) const EXIT_USAGE: u8 = 2;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// `operation: object: cause`.
    pub(crate) fn new(operation: &str, object: impl fmt::Display, cause: impl fmt::Display) -> Failure {
        Failure { message: format!("{operation}: {object}: {cause}"), code: EXIT_FAILURE }
    }

    /// `operation: cause`, where the cause names its object.
    pub(crate) fn named(operation: &str, cause: impl fmt::Display) -> Failure {
        Failure { message: format!("{operation}: {cause}"), code: EXIT_FAILURE }
    }

    /// A failure of the library on a device or file, which the message then names if it does not yet.
    pub(crate) fn on(path: &Path, error: &nacre_engine::Error) -> Failure {
        let (name, message) = (path.display().to_string(), error.to_string());
        let message = if message.contains(&name) { message } else { format!("{name}: {message}") };
        Failure { message, code: EXIT_FAILURE }
    }

    /// What is reported.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// A wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), code: EXIT_USAGE }
    }

    /// Adds what the user can do about it.
    pub(crate) fn advice(mut self, advice: &str) -> Failure {
        self.message.push_str("; ");
        self.message.push_str(advice);
        self
    }

    /// Names the file in whose name a mount did something, where the message does not.
    pub(crate) fn of(mut self, path: &Path) -> Failure {
        let name = path.display().to_string();
        if !self.message.contains(&name) {
            self.message = format!("{name}: {}", self.message);
        }
        self
    }

    /// Reports it and gives the exit code of the process.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("nacre: {}", self.message);
        ExitCode::from(self.code)
    }
}

impl From<nacre_engine::Error> for Failure {
    fn from(error: nacre_engine::Error) -> Failure {
        Failure { message: error.to_string(), code: EXIT_FAILURE }
    }
}
