//! The binary of `nacre crash` and `nacre demo`.

use std::process::ExitCode;

fn main() -> ExitCode {
    nacre_cli::lab_main()
}
