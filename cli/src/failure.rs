//! The failure of a command: operation, object, cause and remedy on standard error, and an exit code.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use nacre_engine::{Kind, without_number};

use crate::{notice, servers};

/// The operation failed.
pub(crate) const EXIT_FAILURE: u8 = 1;
/// The command line was wrong.
pub(crate) const EXIT_USAGE: u8 = 2;

/// Operations of the library that are a part of every command with a device.
const WITHIN: [&str; 4] = ["open", "check", "add the tier", "attach the tier"];

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    /// The length of the operation at the start of the message, in bytes.
    operation_len: usize,
    code: u8,
    /// True if the server has not answered in time.
    is_silence: bool,
}

impl Failure {
    /// `operation: object: cause`.
    pub(crate) fn new(operation: &str, object: impl fmt::Display, cause: impl fmt::Display) -> Failure {
        let message = format!("{operation}: {object}: {cause}");
        Failure { operation_len: operation.len(), ..Failure::of_message(message, EXIT_FAILURE) }
    }

    /// `operation: cause`, with an object that the cause names. If the cause names an operation of the library that
    /// says no more than `operation`, only `operation` stays.
    pub(crate) fn named(operation: &str, cause: impl fmt::Display) -> Failure {
        let cause = cause.to_string();
        let is_ours = |within: &str| {
            within == operation
                || operation.rsplit_once(' ').is_some_and(|(_, last)| last == within)
                || WITHIN.contains(&within)
        };
        let said =
            cause.split_once(": ").filter(|(within, _)| is_ours(within)).map_or(&cause[..], |(_, said)| said);
        Failure {
            operation_len: operation.len(),
            ..Failure::of_message(format!("{operation}: {said}"), EXIT_FAILURE)
        }
    }

    /// A failure of the library on a device or file. The message then names the path, if it does not yet.
    pub(crate) fn on(operation: &str, path: &Path, error: &nacre_engine::Error) -> Failure {
        let failure = Failure::named(operation, error).of(path);
        if error.kind() != Kind::Busy {
            return failure;
        }
        match servers::who_has(operation, path) {
            who if who.is_empty() => failure,
            who => failure.advice(&who),
        }
    }

    fn of_message(message: String, code: u8) -> Failure {
        Failure { message: without_number(message), operation_len: 0, code, is_silence: false }
    }

    /// Marks the failure as a missing answer.
    pub(crate) fn of_silence(mut self) -> Failure {
        self.is_silence = true;
        self
    }

    /// True if the failure is a missing answer.
    pub(crate) fn is_silence(&self) -> bool {
        self.is_silence
    }

    /// The message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// A wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::of_message(message.into(), EXIT_USAGE)
    }

    /// Adds a remedy for the user.
    pub(crate) fn advice(mut self, advice: &str) -> Failure {
        self.message.push_str("; ");
        self.message.push_str(advice);
        self
    }

    /// Adds the path of the file that an order was for, if the message does not have it.
    pub(crate) fn of(mut self, path: &Path) -> Failure {
        let name = path.display().to_string();
        if !self.message.contains(&name) {
            match self.operation_len {
                0 => self.message.insert_str(0, &format!("{name}: ")),
                len => self.message.insert_str(len, &format!(": {name}")),
            }
        }
        self
    }

    /// Reports the failure and returns the exit code of the process.
    pub(crate) fn report(&self) -> ExitCode {
        notice::say(&self.message);
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
    use std::path::Path;

    use nacre_engine::{Error, Kind};

    use super::{Failure, without_number};

    #[test]
    fn the_operation_of_the_command_stands_in_front_of_the_object() {
        let said = |operation: &'static str, object: &str| {
            let error = Error::new(Kind::NoSpace).operation(operation).object(object);
            Failure::on("mkfs", Path::new("/x"), &error).message().to_owned()
        };
        assert_eq!(said("", "tier 1"), "mkfs: /x: tier 1: no space left on the device");
        for same in ["", "open", "mkfs"] {
            assert_eq!(said(same, "/x"), "mkfs: /x: no space left on the device");
        }
        assert_eq!(said("open", "/y"), "mkfs: /x: /y: no space left on the device");
        assert_eq!(said("create", "/x"), "mkfs: create: /x: no space left on the device");
        let drain = Failure::named("tier drain", "drain: tier 1: in use");
        assert_eq!(drain.message(), "tier drain: tier 1: in use");
        assert_eq!(Failure::usage("wrong").of(Path::new("/x")).message(), "/x: wrong");
    }

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
