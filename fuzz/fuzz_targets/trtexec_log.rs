//! Any bytes as a console log: facts, verdicts and failures are made of them; nothing panics or grows without bound.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: planforge_fuzz::report_stack_overflows(), |bytes: &[u8]| {
    planforge_tensorrt::fuzzing::log(bytes)
});
