#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_lab::fuzz::tier::damaged_tier(data));
