//! The binary of `nacre bench`.

use std::process::ExitCode;

fn main() -> ExitCode {
    nacre_cli::bench_main()
}
