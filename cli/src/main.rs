//! The binary of [`nacre_cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    nacre_cli::main()
}
