#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_cli::fuzz::any_options(data));
