#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_lab::fuzz::log::any_log(data));
