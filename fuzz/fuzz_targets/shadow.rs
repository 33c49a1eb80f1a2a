#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_lab::fuzz::shadow::damaged_shadow(data));
