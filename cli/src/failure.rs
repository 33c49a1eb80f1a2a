//! How a command fails: operation, object, cause and way out on standard error, and an exit code.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use nacre_engine::{Kind, without_number};

use crate::servers;

/// The operation failed.
pub(crate) const EXIT_FAILURE: u8 = 1;
/// The command line was wrong.
pub(crate) const EXIT_USAGE: u8 = 2;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
    /// The process that was asked has not answered in time.
    is_silence: bool,
}

impl Failure {
    /// `operation: object: cause`.
    pub(crate) fn new(operation: &str, object: impl fmt::Display, cause: impl fmt::Display) -> Failure {
        Failure::of_message(format!("{operation}: {object}: {cause}"), EXIT_FAILURE)
    }

    /// `operation: cause`, where the cause names its object.
    pub(crate) fn named(operation: &str, cause: impl fmt::Display) -> Failure {
        Failure::of_message(format!("{operation}: {cause}"), EXIT_FAILURE)
    }

    /// A failure of the library on a device or file, which the message then names if it does not yet.
    pub(crate) fn on(path: &Path, error: &nacre_engine::Error) -> Failure {
        let (name, message) = (path.display().to_string(), error.to_string());
        let message = if message.contains(&name) { message } else { format!("{name}: {message}") };
        let failure = Failure::of_message(message, EXIT_FAILURE);
        if error.kind() != Kind::Busy {
            return failure;
        }
        match servers::who_has(path) {
            who if who.is_empty() => failure,
            who => failure.advice(&who),
        }
    }

    fn of_message(message: String, code: u8) -> Failure {
        Failure { message: without_number(message), code, is_silence: false }
    }

    /// The failure of who was asked and has not answered in time.
    pub(crate) fn of_silence(mut self) -> Failure {
        self.is_silence = true;
        self
    }

    /// Whether it is one of these.
    pub(crate) fn is_silence(&self) -> bool {
        self.is_silence
    }

    /// What is reported.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// A wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::of_message(message.into(), EXIT_USAGE)
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
        Failure::of_message(error.to_string(), EXIT_FAILURE)
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, without_number};

    #[test]
    fn messages_have_no_numbers_of_errors() {
        let missing = std::io::Error::from_raw_os_error(2);
        assert_eq!(Failure::new("mount", "/x", &missing).message(), "mount: /x: No such file or directory");
        let inner = format!("open: a: input/output error ({missing}); try again");
        assert_eq!(
            without_number(inner),
            "open: a: input/output error (No such file or directory); try again"
        );
        for same in ["a (os error x) b", "a (os error 5", "none"] {
            assert_eq!(without_number(same.to_owned()), same);
        }
    }
}
