//! Any bytes as a plan or timing cache: their headers are read or refused; nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: planforge_fuzz::report_stack_overflows(), |bytes: &[u8]| {
    planforge_tensorrt::fuzzing::headers(bytes)
});
