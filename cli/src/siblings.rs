//! The programs that are installed beside `nacre` and have the code of `nacre bench`, `nacre crash` and `nacre demo`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::Failure;

/// Programs that have some of the subcommands of `nacre`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sibling {
    Bench,
    Lab,
}

impl Sibling {
    fn name(self) -> &'static str {
        match self {
            Sibling::Bench => "nacre-bench",
            Sibling::Lab => "nacre-lab",
        }
    }

    /// Continues as that program, with these arguments. Returns only a failure.
    pub(crate) fn run(self, operation: &str, arguments: &[OsString]) -> Failure {
        let name = self.name();
        let Some(program) = beside(name) else {
            return Failure::new(operation, name, "it is not installed beside nacre").advice(
                "the package nacre-cli has it: cargo build -p nacre-cli makes it, make install puts it there",
            );
        };
        let error = Command::new(&program).args(arguments).exec();
        Failure::new(operation, program.display(), error)
    }
}

/// The program of this name in the directory of this one, if it is there.
fn beside(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name(name);
    program.is_file().then_some(program)
}
