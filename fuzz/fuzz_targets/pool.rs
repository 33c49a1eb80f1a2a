#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_lab::fuzz::pool::damaged_pool(data));
